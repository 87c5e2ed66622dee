"""Every claim of the paper evaluated: the paper's number, ours with its interval, and whether direction and size hold."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np

from moescale.errors import InputError
from moescale.planning.allocation import Budget, loss_optimal
from moescale.planning.candidate import Costs
from moescale.reproduction.claims import Claim, Part, claims, sweep_experts
from moescale.reproduction.quantities import OF_COSTS, value_of
from moescale.reproduction.world import SampledPricing, World, of_the_papers_models, world_of
from moescale.scaling_laws.law import Law, interval
from moescale.serving.deployment import batch_cap
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
class Verdict:
    """What follows from one number a part of a claim."""

    rel_error: float | None  # of the judged part that is furthest off
    direction_holds: bool | None
    magnitude_holds: bool | None
    holds: bool | None  # both, as far as the claim states them; None where a number is missing


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One claim: `holds` is None for inputs of the law, repeated facts and what cannot be computed; `reason` says which."""

    claim: Claim
    role: str  # input or prediction
    parts: tuple[PartOutcome, ...]
    rel_error: float | None
    direction_holds: bool | None
    direction_share: float | None  # of the law's draws in which the direction holds
    magnitude_holds: bool | None
    holds: bool | None
    counts: bool  # a prediction that is judged, also where its number cannot be computed with these costs
    reason: str
    inputs: Mapping[str, object]
    drawn: FloatArray | None = None  # a number each of the law's draws and each part, (k, parts)

    def to_dict(self) -> dict[str, object]:
        """The record of the command line's contract, JSON-ready: what is not known is null."""
        claim = self.claim
        printed = any(part.paper is not None for part in claim.parts)
        judgement = ("rel_error", "direction_holds", "direction_share", "magnitude_holds", "holds", "reason", "role")
        return {
            "claim": claim.id,
            **{name: getattr(claim, name) for name in ("statement", "kind", "unit")},
            "paper": self._one_or_all("paper")
            if printed
            else claim.bound.replace("< ", "below ").replace("> ", "above "),
            "ours": self._one_or_all("ours"),
            "interval": self._one_or_all("interval"),
            **{name: getattr(self, name) for name in judgement},
            "tolerances": sorted({p.tolerance.why for p in claim.parts if p.tolerance is not None}),
            "inputs": dict(self.inputs),
            "note": claim.note,
            "source_line": claim.line,
            "parts": [asdict(part) for part in self.parts],
        }

    def _one_or_all(self, name: str) -> object:
        values = [getattr(part, name) for part in self.parts]
        return values[0] if len(values) == 1 else values


def reproduce(law: Law, costs: Costs) -> tuple[Outcome, ...]:
    """Evaluate every claim of the catalogue under `law`, its models served as `costs` say.

    A law of another family is asked about the paper's models: its own N and E of the same body, expansion and tokens.
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
    central = world_of(law, costs)
    sampled = SampledPricing.of(central.costs, experts) if len(law.draws) else None
    drawn = None if sampled is None else World(law, law.draws, sampled, central.costs)
    return tuple(_outcome(claim, central, drawn) for claim in claims())


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _rel_error(part: Part, ours: float) -> float | None:
    if part.paper is None or not math.isfinite(ours):
        return None
    return ours if part.paper == 0.0 else ours / part.paper - 1.0  # a surface is compared by its RMS log difference


def _within(part: Part, ours: float) -> bool | None:
    """Whether a part's magnitude holds; None where the paper prints no number."""
    error = _rel_error(part, ours)
    return None if error is None or part.tolerance is None else abs(error) <= part.tolerance.value


def _direction(claim: Claim, ours: FloatArray) -> bool | None:
    if not np.all(np.isfinite(ours)):
        return None
    steps = np.diff(ours)
    checks = [steps < 0] * claim.falling + [steps > 0] * claim.rising
    checks += [] if claim.below is None else [ours < claim.below]
    checks += [] if claim.above is None else [ours > claim.above]
    return all(np.all(check) for check in checks) if checks else None


def judge(claim: Claim, ours: FloatArray) -> Verdict:
    """The verdict of a claim, from a number each part."""
    judged = [(claim.parts[i], float(ours[i])) for i in claim.judged]
    known = [error for part, value in judged if (error := _rel_error(part, value)) is not None]
    worst = max(known, key=lambda error: abs(math.log1p(error)) if error > -1.0 else math.inf) if known else None
    if not all(math.isfinite(value) for _, value in judged):
        return Verdict(rel_error=worst, direction_holds=None, magnitude_holds=None, holds=None)
    direction, within = _direction(claim, ours[claim.judged]), [_within(part, value) for part, value in judged]
    magnitude = None if None in within else all(within)
    stated = [holds for holds in (direction, magnitude) if holds is not None]
    both = all(stated) if stated else None
    return Verdict(rel_error=worst, direction_holds=direction, magnitude_holds=magnitude, holds=both)


def _outcome(claim: Claim, central: World, drawn: World | None) -> Outcome:
    ours = np.array([value_of(part, central)[0] for part in claim.parts])
    draws = None if drawn is None else np.stack([value_of(part, drawn) for part in claim.parts], axis=1)
    verdict = judge(claim, ours)
    laws = [member.law for member in central.law.members] or [central.law]
    # A law was made from an input, or cannot but agree with it.
    is_input = any(law.name in claim.input_of or law.form.name in claim.input_of_form for law in laws)
    other_data = {law.family.dataset for law in laws} - {claim.data}
    share = None
    if draws is not None and verdict.direction_holds is not None:
        share = float(np.mean([bool(_direction(claim, row[claim.judged])) for row in draws]))
    counts = False
    if claim.cannot is not None:
        reason = claim.cannot
    elif claim.same_as is not None:
        reason = f"the same fact as {claim.same_as}, which is judged"
    elif is_input:
        reason = f"an input of {central.law.name}: agreement is not a test"
    elif claim.data is not None and other_data:
        others = " and ".join(sorted(name or "other data" for name in other_data))
        reason = f"losses on {others} are not those on {claim.data}"
    else:
        counts = True
        reason = "some of these models do not exist or cannot be served, so the number cannot be computed"
        if verdict.holds is not None:
            reason = _why(claim, ours, verdict)
    return Outcome(
        claim=claim,
        role="input" if is_input else "prediction",
        parts=tuple(
            _part_outcome(part, float(ours[i]), None if draws is None else draws[:, i])
            for i, part in enumerate(claim.parts)
        ),
        rel_error=verdict.rel_error,
        direction_holds=verdict.direction_holds,
        direction_share=share,
        magnitude_holds=verdict.magnitude_holds,
        holds=verdict.holds if counts else None,
        counts=counts,
        reason=reason,
        inputs=_inputs(claim, central),
        drawn=draws,
    )


def _part_outcome(part: Part, ours: float, draws: FloatArray | None) -> PartOutcome:
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
        within=_within(part, ours),
        tolerance=None if part.tolerance is None else part.tolerance.value,
        judged=part.judged,
    )


def _why(claim: Claim, ours: FloatArray, verdict: Verdict) -> str:
    parts: list[str] = []
    if verdict.direction_holds is not None:
        parts.append("the direction holds" if verdict.direction_holds else "the direction fails")
    if verdict.magnitude_holds is not None:
        off = [
            f"{part.label}: {_rel_error(part, value):+.0%} against {part.tolerance.value:.3g}"
            for part, value in zip(claim.parts, ours, strict=True)
            if part.judged and part.tolerance is not None and not _within(part, value)
        ]
        parts.append(f"beyond tolerance ({'; '.join(off)})" if off else "every number is within its tolerance")
    return ", ".join(parts)


def _inputs(claim: Claim, world: World) -> dict[str, object]:
    used: dict[str, object] = {"law": world.law.name, "convention": world.law.family.convention}
    if any(part.quantity in OF_COSTS for part in claim.parts):
        d, latency = world.costs.deployment, world.costs.latency
        execution = getattr(latency, "moe_execution", "as measured")
        used |= {"latency": latency.name, "moe_execution": execution, "gpu": d.gpu.name}
        used |= {"max_gpus": d.max_gpus, "max_num_seqs": _number(float(batch_cap(d)))}
        used |= {name: float(getattr(d, name)) for name in ("prompt_tokens", "output_tokens", "memory_fraction")}
    return used
