"""Every claim of the paper evaluated: the paper's number, ours with its interval, and whether direction and size hold."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from moescale.errors import InputError
from moescale.planning.allocation import Budget, loss_optimal
from moescale.planning.candidate import Costs
from moescale.reproduction.claims import Claim, Part, claims, sweep_experts
from moescale.reproduction.quantities import OF_COSTS, value_of
from moescale.reproduction.world import World, of_the_papers_models, world_of, world_of_draws
from moescale.scaling_laws.law import Law, interval
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
class Outcome(Verdict):
    """One claim: `holds` is None for inputs of the law, repeated facts and what cannot be computed; `reason` says which."""

    claim: Claim
    role: str  # input or prediction
    parts: tuple[PartOutcome, ...]
    direction_share: float | None  # of the law's draws in which the direction holds
    counts: bool  # a prediction that is judged, also where its number cannot be computed with these costs
    reason: str
    inputs: Mapping[str, object]
    drawn: FloatArray | None = None  # a number each of the law's draws and each part, (k, parts)

    def to_dict(self) -> dict[str, object]:
        """The record of the command line's contract, JSON-ready: what is not known is null."""
        claim = self.claim
        judgement = ("rel_error", "direction_holds", "direction_share", "magnitude_holds", "holds", "reason", "role")
        columns = {name: [getattr(part, name) for part in self.parts] for name in ("paper", "ours", "interval")}
        numbers: dict[str, Any] = {name: of[0] if len(of) == 1 else of for name, of in columns.items()}
        if all(part.paper is None for part in claim.parts):
            numbers["paper"] = claim.bound.replace("< ", "below ").replace("> ", "above ")
        return {
            "claim": claim.id,
            **{name: getattr(claim, name) for name in ("statement", "kind", "unit")},
            **numbers,
            **{name: getattr(self, name) for name in judgement},
            "tolerances": sorted({p.tolerance.why for p in claim.parts if p.tolerance is not None}),
            "inputs": dict(self.inputs),
            "note": claim.note,
            "source_line": claim.line,
            "parts": [asdict(part) for part in self.parts],
        }


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
    loss_optimal(law, Budget(5e21), np.array(sweep_experts()))  # raises where the form has no optimum
    central = world_of(law, costs)
    drawn = world_of_draws(central) if len(law.draws) else None
    return tuple(_outcome(claim, central, drawn) for claim in claims())


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _off(part: Part, ours: float) -> tuple[float | None, bool | None]:
    """The error relative to the printed number, and whether the magnitude holds; None where the paper prints no number."""
    if part.paper is None or not math.isfinite(ours):
        return None, None
    error = ours if part.paper == 0.0 else ours / part.paper - 1.0  # a surface is compared by its RMS log difference
    return error, None if part.tolerance is None else abs(error) <= part.tolerance.value


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
    judged = [_off(claim.parts[i], float(ours[i])) for i in claim.judged]
    known = [error for error, _ in judged if error is not None]
    worst = max(known, key=lambda error: abs(math.log1p(error)) if error > -1.0 else math.inf) if known else None
    if not np.all(np.isfinite(ours[claim.judged])):
        return Verdict(rel_error=worst, direction_holds=None, magnitude_holds=None, holds=None)
    direction, within = _direction(claim, ours[claim.judged]), [holds for _, holds in judged]
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
    reason = _not_judged(claim, central.law.name, is_input, other_data if claim.data is not None else set())
    counts = reason is None
    if reason is None and verdict.holds is None:
        reason = "some of these models do not exist or cannot be served, so the number cannot be computed"
    of_parts = draws.T if draws is not None else [None] * len(ours)
    parts = tuple(map(_part_outcome, claim.parts, ours.tolist(), of_parts))
    return Outcome(
        **asdict(verdict) | {"holds": verdict.holds if counts else None}, claim=claim,
        role="input" if is_input else "prediction", direction_share=share, counts=counts, drawn=draws,
        parts=parts, inputs=_inputs(claim, central), reason=reason or _why(parts, verdict),
    )  # fmt: skip


def _not_judged(claim: Claim, law: str, is_input: bool, other_data: Collection[str | None]) -> str | None:
    if claim.cannot is not None:
        return claim.cannot
    if claim.same_as is not None:
        return f"the same fact as {claim.same_as}, which is judged"
    if is_input:
        return f"an input of {law}: agreement is not a test"
    if other_data:
        others = " and ".join(sorted(name or "other data" for name in other_data))
        return f"losses on {others} are not those on {claim.data}"
    return None


def _part_outcome(part: Part, ours: float, draws: FloatArray | None) -> PartOutcome:
    limits, (error, within) = None, _off(part, ours)
    if draws is not None and np.isfinite(draws).mean() >= 0.5 and math.isfinite(ours):
        low, high = interval(np.where(np.isfinite(draws), draws, np.nan))
        limits = (float(low), float(high))
    return PartOutcome(
        label=part.label, paper=part.paper, judged=part.judged, ours=_number(ours), interval=limits, rel_error=error,
        within=within, tolerance=part.tolerance and part.tolerance.value,
    )  # fmt: skip


def _why(parts: Sequence[PartOutcome], verdict: Verdict) -> str:
    said = (
        [] if verdict.direction_holds is None else [f"the direction {'holds' if verdict.direction_holds else 'fails'}"]
    )
    if verdict.magnitude_holds is not None:
        missed = [part for part in parts if part.judged and part.within is False]
        off = [f"{part.label}: {part.rel_error:+.0%} against {part.tolerance:.3g}" for part in missed]
        said.append(f"beyond tolerance ({'; '.join(off)})" if off else "every number is within its tolerance")
    return ", ".join(said)


def _inputs(claim: Claim, world: World) -> dict[str, object]:
    used: dict[str, object] = {"law": world.law.name, "convention": world.law.family.convention}
    if all(part.quantity not in OF_COSTS for part in claim.parts):
        return used
    d, latency = world.costs.deployment, world.costs.latency
    execution, batch = getattr(latency, "moe_execution", "as measured"), _number(float(d.batch_cap))
    used |= {"latency": latency.name, "moe_execution": execution, "gpu": d.gpu.name, "max_gpus": d.max_gpus}
    lengths = {name: float(getattr(d, name)) for name in ("prompt_tokens", "output_tokens", "memory_fraction")}
    return used | {"max_num_seqs": batch} | lengths


@dataclass(frozen=True, slots=True)
class Numbers:
    """Printed numbers by their error; one that cannot be computed is off by more than any."""

    printed: int
    within_15: int
    within_25: int
    median_error: float | None  # None where half of them cannot be computed

    @staticmethod
    def of(pairs: Iterable[tuple[float | None, float | None]]) -> Numbers:
        """The count over pairs of our number and the printed one; pairs without the latter are left out."""
        errors = np.array([math.inf if ours is None else abs(ours / paper - 1.0) for ours, paper in pairs if paper])
        within_15, within_25 = (int(np.sum(errors <= share)) for share in (0.15, 0.25))
        return Numbers(errors.size, within_15, within_25, _number(float(np.median(errors))) if errors.size else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Counts under one server; `drawn_held` and `drawn_within` (15%) have an entry a draw of the law."""

    numbers: Numbers
    first_count: Numbers  # as counted before the rules
    judged: int
    trends: int
    trends_held: int
    which: tuple[str, ...]  # the claims that hold
    drawn_held: tuple[int, ...]
    drawn_within: tuple[int, ...]
    values: Mapping[str, float | None]  # ours, by claim and number, of all that is judged
    claims: int
    inputs: int
    unknown: int  # cannot be computed

    @property
    def held(self) -> int:
        """Claims that hold."""
        return len(self.which)

    def to_dict(self) -> dict[str, object]:
        """The record of the command line's contract."""
        counted = ("judged", "held", "trends", "trends_held")
        return {
            "numbers": asdict(self.numbers),
            "numbers_first_count": asdict(self.first_count),
            "claims": {**{name: getattr(self, name) for name in counted}, "which": list(self.which)},
            "draws": {"n": len(self.drawn_held), "held": list(self.drawn_held), "within_15": list(self.drawn_within)},
            "values": dict(self.values),
        }


def score(outcomes: Sequence[Outcome]) -> Score:
    """Count what holds."""
    judged = [o for o in outcomes if o.counts]
    parts = [(o, i, o.claim.parts[i]) for o in judged for i in o.claim.judged]
    pairs = [(o.parts[i].ours, part.paper) for o, i, part in parts]
    first = [(part.ours, part.paper) for o in outcomes if o.claim.same_as for part in o.parts if part.judged]
    first += [(o.parts[i].ours, part.unprinted) for o, i, part in parts]
    verdicts = [[judge(o.claim, row).holds is True for row in o.drawn] for o in judged if o.drawn is not None]
    near = [abs(o.drawn[:, i] / part.paper - 1.0) <= 0.15 for o, i, part in parts if o.drawn is not None and part.paper]
    return Score(
        numbers=Numbers.of(pairs), first_count=Numbers.of([*pairs, *first]), judged=len(judged), claims=len(outcomes),
        trends=sum(o.claim.ordered for o in judged), trends_held=sum(o.direction_holds is True for o in judged),
        which=tuple(o.claim.id for o in judged if o.holds),
        drawn_held=tuple(np.sum(verdicts, axis=0).tolist()) if verdicts else (),
        drawn_within=tuple(np.sum(near, axis=0).tolist()) if near else (),
        values={f"{o.claim.id}, {part.label}": o.parts[i].ours for o, i, part in parts},
        inputs=sum(o.role == "input" for o in outcomes),
        unknown=sum(o.role != "input" and not o.counts and o.claim.same_as is None for o in outcomes),
    )  # fmt: skip
