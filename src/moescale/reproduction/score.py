"""How much of the paper holds: printed numbers, claims, and both over the law's draws, by the rules of catalogue/claims.toml."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from moescale.reproduction.evaluate import Outcome, judge


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
        median = float(np.median(errors)) if errors.size else math.inf
        within_15, within_25 = (int(np.sum(errors <= share)) for share in (0.15, 0.25))
        return Numbers(errors.size, within_15, within_25, median if math.isfinite(median) else None)


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
    parts = [(o, i, part) for o in judged for i, part in enumerate(o.claim.parts) if part.judged]
    pairs = [(o.parts[i].ours, part.paper) for o, i, part in parts]
    repeated = [o for o in outcomes if o.claim.same_as is not None]
    first = [(o.parts[i].ours, part.paper) for o in repeated for i, part in enumerate(o.claim.parts) if part.judged]
    first += [(o.parts[i].ours, part.unprinted) for o, i, part in parts]
    drawn = [o for o in judged if o.drawn is not None]
    verdicts = [[judge(o.claim, row).holds is True for row in o.drawn] for o in drawn if o.drawn is not None]
    near = [abs(o.drawn[:, i] / part.paper - 1.0) <= 0.15 for o, i, part in parts if o.drawn is not None and part.paper]
    return Score(
        numbers=Numbers.of(pairs),
        first_count=Numbers.of([*pairs, *first]),
        judged=len(judged),
        trends=sum(o.claim.ordered for o in judged),
        trends_held=sum(o.direction_holds is True for o in judged),
        which=tuple(o.claim.id for o in judged if o.holds),
        drawn_held=tuple(np.sum(verdicts, axis=0).tolist()) if verdicts else (),
        drawn_within=tuple(np.sum(near, axis=0).tolist()) if near else (),
        values={f"{o.claim.id}, {part.label}": o.parts[i].ours for o, i, part in parts},
        claims=len(outcomes),
        inputs=sum(o.role == "input" for o in outcomes),
        unknown=sum(o.role != "input" and not o.counts and o.claim.same_as is None for o in outcomes),
    )
