"""How much of the paper holds: printed numbers, claims, and both over the law's draws, by the rules of catalogue/claims.toml."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from moescale.reproduction.evaluate import Outcome, judge
from moescale.typing import FloatArray

WITHIN = (0.15, 0.25)


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Counts under one server; `drawn_held` and `drawn_within` have an entry a draw of the law."""

    printed: int
    within_15: int
    within_25: int
    median_error: float | None  # None where half of them cannot be computed
    judged: int
    held: int
    trends: int
    trends_held: int
    drawn_held: tuple[int, ...]
    drawn_within: tuple[int, ...]  # 15%
    first_count: tuple[
        int, int, int, float | None
    ]  # printed, within 15% and 25%, median error as counted before the rules
    which: tuple[str, ...]  # the claims that hold
    values: Mapping[str, float | None]  # ours, by claim and number, of all that is judged
    claims: int
    inputs: int
    unknown: int  # cannot be computed

    def to_dict(self) -> dict[str, object]:
        """The record of the command line's contract."""
        numbers = ("printed", "within_15", "within_25", "median_error")
        counted = ("judged", "held", "trends", "trends_held")
        return {
            "numbers": {name: getattr(self, name) for name in numbers},
            "numbers_first_count": dict(zip(numbers, self.first_count, strict=True)),
            "claims": {**{name: getattr(self, name) for name in counted}, "which": list(self.which)},
            "draws": {"n": len(self.drawn_held), "held": list(self.drawn_held), "within_15": list(self.drawn_within)},
            "values": dict(self.values),
        }


def score(outcomes: Sequence[Outcome]) -> Score:
    """Count what holds."""
    judged = [o for o in outcomes if o.counts]
    ours, paper = _numbers(judged)
    again, ends = _numbers([o for o in outcomes if o.claim.same_as is not None], judged)
    drawn = [
        o.drawn[:, [p.judged and p.paper is not None for p in o.claim.parts]] for o in judged if o.drawn is not None
    ]
    every = np.abs(np.concatenate(drawn, axis=1) / paper - 1.0) if drawn else np.empty((0, paper.size))
    printed, within_15, within_25, median = _count(ours, paper)
    verdicts = [[judge(o.claim, row)[3] is True for row in o.drawn] for o in judged if o.drawn is not None]
    return Score(
        printed=printed,
        within_15=within_15,
        within_25=within_25,
        median_error=median,
        first_count=_count(np.append(ours, again), np.append(paper, ends)),
        judged=len(judged),
        held=sum(o.holds is True for o in judged),
        trends=sum(o.claim.ordered for o in judged),
        trends_held=sum(o.direction_holds is True for o in judged),
        drawn_held=tuple(np.sum(verdicts, axis=0).tolist()) if verdicts else (),
        drawn_within=tuple(np.sum(every <= WITHIN[0], axis=1).tolist()),
        which=tuple(o.claim.id for o in judged if o.holds),
        values={f"{o.claim.id}, {p.label}": p.ours for o in judged for p in o.parts if p.judged},
        claims=len(outcomes),
        inputs=sum(o.role == "input" for o in outcomes),
        unknown=sum(o.role != "input" and not o.counts and o.claim.same_as is None for o in outcomes),
    )


def _numbers(outcomes: Sequence[Outcome], ends: Sequence[Outcome] = ()) -> tuple[FloatArray, FloatArray]:
    """Ours and the printed value of judged parts, then of those of `ends` whose printed end is assumed; NaN: none of ours."""
    pairs = [(o.parts[i].ours, p.paper) for o in outcomes for i, p in enumerate(o.claim.parts) if p.judged]
    pairs += [(o.parts[i].ours, p.unprinted) for o in ends for i, p in enumerate(o.claim.parts) if p.judged]
    ours, paper = np.array([pair for pair in pairs if pair[1] is not None], float).reshape(-1, 2).T
    return ours, paper


def _count(ours: FloatArray, paper: FloatArray) -> tuple[int, int, int, float | None]:
    """How many numbers, within 15%, within 25%, and the median error; a number that cannot be computed is off by more."""
    errors = np.nan_to_num(np.abs(ours / paper - 1.0), nan=np.inf)
    within = [int(np.sum(errors <= share)) for share in WITHIN]
    median = float(np.median(errors)) if paper.size else math.inf
    return paper.size, within[0], within[1], median if math.isfinite(median) else None
