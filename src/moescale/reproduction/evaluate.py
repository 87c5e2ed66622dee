"""Every claim of the paper evaluated: the paper's number, ours with its interval, and whether direction and size hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from moescale.errors import InputError
from moescale.latency import LatencySource, kernels_alone, moe_execution_of
from moescale.planning.allocation import Budget, loss_optimal
from moescale.planning.candidate import Costs
from moescale.reproduction.claims import Claim, Part, claims, settings_of, sweep_experts
from moescale.reproduction.quantities import NEEDS_COSTS, QUANTITIES
from moescale.reproduction.world import (
    ExactPricing,
    HostBound,
    SampledPricing,
    World,
    as_in_the_paper,
    costs_under,
    of_the_papers_models,
)
from moescale.scaling_laws.law import Law, interval
from moescale.serving.deployment import Deployment, batch_cap
from moescale.typing import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class PartOutcome:
    """One number of a claim; `interval` holds 90% of the law's draws, `within` compares with the tolerance."""

    label: str
    paper: float | None
    ours: float | None
    interval: tuple[float, float] | None
    rel_error: float | None
    tolerance: float | None
    within: bool | None
    judged: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Elsewhere:
    """The same claim in another world: another latency source or another setting of serving."""

    setting: str
    latency: str
    ours: tuple[float | None, ...]  # a number each part
    rel_error: float | None
    direction_holds: bool | None
    magnitude_holds: bool | None
    holds: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One claim: `holds` is None for inputs of the law and for what cannot be computed, and `reason` says which."""

    claim: Claim
    role: str  # input or prediction
    parts: tuple[PartOutcome, ...]
    rel_error: float | None  # of the judged part that is furthest off
    direction_holds: bool | None
    direction_share: float | None  # of the law's draws in which the direction holds
    magnitude_holds: bool | None
    holds: bool | None
    reason: str
    inputs: Mapping[str, object]
    other_latencies: tuple[Elsewhere, ...] = ()
    sensitivity: tuple[Elsewhere, ...] = ()

    def to_dict(self) -> dict[str, object]:
        """The record of the command line's contract, JSON-ready: what is not known is null."""
        claim = self.claim
        words = {"<": "below", ">": "above"}
        printed = any(part.paper is not None for part in claim.parts)
        judgement = ("rel_error", "direction_holds", "direction_share", "magnitude_holds", "holds", "reason", "role")
        return {
            "claim": claim.id,
            **{name: getattr(claim, name) for name in ("statement", "kind", "unit")},
            "paper": self._one_or_all("paper") if printed else f"{words[claim.bound[0]]}{claim.bound[1:]}",
            "ours": self._one_or_all("ours"),
            "interval": self._one_or_all("interval"),
            **{name: getattr(self, name) for name in judgement},
            "tolerances": sorted({p.tolerance.why for p in claim.parts if p.tolerance is not None}),
            "inputs": dict(self.inputs),
            "note": claim.note,
            "source_line": claim.line,
            "parts": [asdict(part) for part in self.parts],
            "other_latencies": [asdict(world) for world in self.other_latencies],
            "sensitivity": [asdict(world) for world in self.sensitivity],
        }

    def _one_or_all(self, name: str) -> object:
        values = [getattr(part, name) for part in self.parts]
        return values[0] if len(values) == 1 else values


def reproduce(
    law: Law,
    deployment: Deployment,
    latency: LatencySource,
    others: Sequence[LatencySource] = (),
    *,
    sensitivity: bool = True,
    kv_heads: float | None = None,
) -> tuple[Outcome, ...]:
    """Evaluate every claim of the catalogue under `law`, served as `deployment` says with `latency`.

    A law of another family is asked about the paper's models: its own N and E of the same body, expansion and tokens.
    Claims that involve cost are evaluated again with each of the `others`, and under each setting of the catalogue that
    `latency` can answer for.
    Raises InputError for a law that knows no experts, InfeasibleError for one without loss-optimal sizes.
    """
    law = of_the_papers_models(law)
    if not law.form.uses_experts:
        raise InputError(
            f"{law.name} is a law of dense models, and the claims are about experts",
            next_step="take a law with experts, such as yun2024-recovered (`moescale laws` lists them)",
        )
    experts = np.array(sweep_experts())
    loss_optimal(law, Budget(5e21), experts)  # raises where the form has no optimum
    costs = Costs(law.family, latency, as_in_the_paper(deployment), kv_heads)
    central = World(law, law.theta[None], ExactPricing(costs), costs)
    drawn = World(law, law.draws, SampledPricing.of(costs, experts), costs) if len(law.draws) else None
    varied = settings_of(latency) if sensitivity else ()
    places = [(source.name, replace(costs, latency=source)) for source in others]
    places += [(setting.name, costs_under(costs, setting)) for setting in varied]
    # A world remembers what it priced: one for all claims.
    worlds = [(name, replace(central, pricing=ExactPricing(own), costs=own)) for name, own in places]
    found: list[Outcome] = []
    for claim in claims():
        outcome = _outcome(claim, central, drawn)
        if any(part.quantity in NEEDS_COSTS for part in claim.parts):
            elsewhere = tuple(_elsewhere(outcome, name, world) for name, world in worlds)
            beside, under = elsewhere[: len(others)], elsewhere[len(others) :]
            outcome = replace(outcome, other_latencies=beside, sensitivity=under)
        found.append(outcome)
    return tuple(found)


def value_of(part: Part, world: World) -> FloatArray:
    """One number a coefficient set, (k,); NaN where there is none."""
    if part.quantity is None:
        return np.full(len(world.theta), np.nan)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(QUANTITIES[part.quantity](world, part), float)


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _rel_error(part: Part, ours: float) -> float | None:
    if part.paper is None or not math.isfinite(ours):
        return None
    return ours if part.paper == 0.0 else ours / part.paper - 1.0  # a surface is compared by its RMS log difference


def _within(claim: Claim, part: Part, ours: float) -> bool | None:
    """Whether a part's magnitude holds; None where the paper prints no number."""
    error = _rel_error(part, ours)
    if error is None or part.tolerance is None:
        return None
    return (error if claim.at_most else abs(error)) <= part.tolerance.value


def _direction(claim: Claim, ours: FloatArray) -> bool | None:
    """Whether the judged numbers (j,) stand as the claim says; None where it says nothing or one is missing."""
    if not np.all(np.isfinite(ours)):
        return None
    steps = np.diff(ours)
    checks = [steps < 0] * claim.falling + [steps > 0] * claim.rising
    checks += [] if claim.below is None else [ours < claim.below]
    checks += [] if claim.above is None else [ours > claim.above]
    return all(np.all(check) for check in checks) if checks else None


def _judge(claim: Claim, ours: FloatArray) -> tuple[float | None, bool | None, bool | None, bool | None]:
    """Largest error, direction, magnitude and both, from a number each part."""
    judged = claim.judged
    known = [error for i in judged if (error := _rel_error(claim.parts[i], ours[i])) is not None]
    worst = max(known, key=lambda error: abs(math.log1p(error)) if error > -1.0 else math.inf) if known else None
    direction = _direction(claim, ours[judged])
    within = [_within(claim, claim.parts[i], ours[i]) for i in judged]
    magnitude = None if any(w is None for w in within) else all(within)
    if not np.all(np.isfinite(ours[judged])):
        return worst, None, None, None
    told = [verdict for verdict in (direction, magnitude) if verdict is not None]
    return worst, direction, magnitude, all(told) if told else None


def _outcome(claim: Claim, central: World, drawn: World | None) -> Outcome:
    ours = np.array([value_of(part, central)[0] for part in claim.parts])
    draws = None if drawn is None else np.stack([value_of(part, drawn) for part in claim.parts], axis=1)  # (k, parts)
    worst, direction, magnitude, verdict = _judge(claim, ours)
    laws = [member.law for member in central.law.members] or [central.law]
    # A law was made from an input, or cannot but agree with it.
    made_from = any(law.name in claim.input_of or law.form.name in claim.input_of_form for law in laws)
    datasets = {law.family.dataset for law in laws}
    role, share = "input" if made_from else "prediction", None
    if draws is not None and direction is not None:
        share = float(np.mean([bool(_direction(claim, row[claim.judged])) for row in draws]))
    if claim.cannot is not None:
        holds, reason = None, claim.cannot
    elif role == "input":
        holds, reason = None, f"an input of {central.law.name}: agreement is not a test"
    elif claim.data is not None and datasets != {claim.data}:
        others = " and ".join(sorted(name or "other data" for name in datasets - {claim.data}))
        holds, reason = None, f"losses on {others} are not those on {claim.data}"
    elif verdict is None:
        holds, reason = None, "some of these models do not exist or cannot be served, so the number cannot be computed"
    else:
        holds, reason = verdict, _why(claim, ours, direction, magnitude)
    return Outcome(
        claim=claim,
        role=role,
        parts=tuple(
            _part_outcome(claim, part, float(ours[i]), None if draws is None else draws[:, i])
            for i, part in enumerate(claim.parts)
        ),
        rel_error=worst,
        direction_holds=direction,
        direction_share=share,
        magnitude_holds=magnitude,
        holds=holds,
        reason=reason,
        inputs=_inputs(claim, central),
    )


def _part_outcome(claim: Claim, part: Part, ours: float, draws: FloatArray | None) -> PartOutcome:
    limits = None
    if draws is not None and np.isfinite(draws).mean() >= 0.5 and math.isfinite(ours):
        low, high = interval(np.where(np.isfinite(draws), draws, np.nan))
        limits = (float(low), float(high))
    return PartOutcome(
        label=part.label,
        paper=part.paper,
        ours=_number(ours),
        interval=limits,
        rel_error=_rel_error(part, ours),
        within=_within(claim, part, ours),
        tolerance=None if part.tolerance is None else part.tolerance.value,
        judged=part.judged,
    )


def _why(claim: Claim, ours: FloatArray, direction: bool | None, magnitude: bool | None) -> str:
    """The verdict in words."""
    said = [] if direction is None else ["the direction holds" if direction else "the direction fails"]
    if magnitude is not None:
        off = [
            f"{part.label}: {_rel_error(part, value):+.0%} against {part.tolerance.value:.3g}"
            for part, value in zip(claim.parts, ours, strict=True)
            if part.judged and part.tolerance is not None and not _within(claim, part, value)
        ]
        said.append("every number is within its tolerance" if magnitude else f"beyond tolerance ({'; '.join(off)})")
    return ", ".join(said)


def _inputs(claim: Claim, world: World) -> dict[str, object]:
    """What the claim's numbers rest on."""
    used: dict[str, object] = {"law": world.law.name, "convention": world.law.family.convention}
    if any(part.quantity in NEEDS_COSTS for part in claim.parts):
        d = world.costs.deployment
        used |= {
            "latency": world.costs.latency.name,
            "moe_execution": moe_execution_of(world.costs.latency),
            "gpu": d.gpu.name,
            "max_gpus": d.max_gpus,
            "prompt_tokens": float(d.prompt_tokens),
            "output_tokens": float(d.output_tokens),
            "memory_fraction": float(d.memory_fraction),
            "max_num_seqs": _number(float(batch_cap(d))),
        }
    return used


def _elsewhere(outcome: Outcome, name: str, world: World) -> Elsewhere:
    """The claim under other costs, with the law's own coefficients."""
    claim = outcome.claim
    ours = np.array(
        [
            value_of(part, world)[0] if part.quantity in NEEDS_COSTS else math.nan if known.ours is None else known.ours
            for part, known in zip(claim.parts, outcome.parts, strict=True)
        ]
    )
    worst, direction, magnitude, verdict = _judge(claim, ours)
    counted = claim.cannot is None and outcome.role == "prediction"
    return Elsewhere(
        setting=name,
        latency=world.costs.latency.name,
        ours=tuple(_number(float(value)) for value in ours),
        rel_error=worst,
        direction_holds=direction,
        magnitude_holds=magnitude,
        holds=verdict if counted else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTime:
    """The host's time that would bring one cost ratio to the printed one: seconds a sequence, or seconds a pass; None: none."""

    claim: str
    label: str
    paper: float
    max_num_seqs: float | None
    kernels_alone: float | None  # our ratio without any time on the host
    per_sequence_s: float | None
    per_pass_s: float | None


def host_times(
    law: Law, deployment: Deployment, latency: LatencySource, *, kv_heads: float | None = None
) -> tuple[HostTime, ...]:
    """For each cost ratio that the paper prints, the host's time beside the kernels that would reproduce it.

    A sensitivity, never a setting: once a sequence with nothing a pass, once a pass with nothing a sequence, with the
    batch limited by memory and by vLLM's own max_num_seqs for this GPU.
    """
    law = of_the_papers_models(law)
    found: list[HostTime] = []
    for most in (math.inf, float(deployment.gpu.default_max_num_seqs)):
        capped = replace(as_in_the_paper(deployment), max_num_seqs=most)
        costs = Costs(law.family, kernels_alone(latency), capped, kv_heads)
        world = World(law, law.theta[None], ExactPricing(costs), costs)
        for claim in claims():
            for part in claim.parts:
                if part.quantity != "cost_ratio_at_base_loss" or part.paper is None:
                    continue
                ratio = _ratio_with_host(world, part)
                found.append(
                    HostTime(
                        claim=claim.id,
                        label=part.label,
                        paper=part.paper,
                        max_num_seqs=_number(most),
                        kernels_alone=_number(float(ratio(np.zeros(1), np.zeros(1))[0])),
                        per_sequence_s=_crossing(lambda s, ratio=ratio: ratio(np.zeros(1), s), part.paper),
                        per_pass_s=_crossing(lambda s, ratio=ratio: ratio(s, np.zeros(1)), part.paper),
                    )
                )
    return tuple(found)


def _ratio_with_host(world: World, part: Part) -> Callable[[FloatArray, FloatArray], FloatArray]:
    """The ratio (h,) as a function of seconds a pass and seconds a sequence, both (h,); sizes do not depend on them."""
    budget = part.budget_flops
    small = world.at_base_loss(budget, part.experts, part.base_experts).n_params[0, 0]
    n = np.array([small, world.optimum(budget, part.base_experts).n_params[0, 0]])
    e = np.array([part.experts, part.base_experts])

    def ratio(per_pass_s: FloatArray, per_sequence_s: FloatArray) -> FloatArray:
        host = HostBound(world.costs.latency, per_pass_s[:, None], per_sequence_s[:, None])
        shape = (max(per_pass_s.size, per_sequence_s.size), 2)
        hosted = replace(world.costs, latency=host)
        usd = hosted.usd_per_mtok(np.broadcast_to(n, shape), np.broadcast_to(e, shape))
        return usd[:, 0] / usd[:, 1]

    return ratio


def _crossing(ratio: Callable[[FloatArray], FloatArray], target: float) -> float | None:
    """The least time at which the ratio reaches the target; None where it does not within a second."""
    if ratio(np.zeros(1))[0] >= target:
        return 0.0
    steps = 85  # 12 a decade before the crossing is refined
    grid = np.geomspace(1e-7, 1.0, steps)
    for _ in range(6):
        reached = np.flatnonzero(ratio(grid) >= target)
        if reached.size == 0:
            return None
        at = int(reached[0])
        grid = np.geomspace(grid[max(at - 1, 0)], grid[at], steps)
    return float(grid[-1])


def summary(outcomes: Sequence[Outcome]) -> dict[str, int]:
    """How many claims hold, fail (of these with the right direction), are inputs, and cannot be computed."""
    return {
        "hold": sum(o.holds is True for o in outcomes),
        "fail": sum(o.holds is False for o in outcomes),
        "fail in size only": sum(o.holds is False and o.direction_holds is True for o in outcomes),
        "inputs": sum(o.role == "input" and o.claim.cannot is None for o in outcomes),
        "not computable": sum(o.holds is None and (o.role != "input" or o.claim.cannot is not None) for o in outcomes),
    }
