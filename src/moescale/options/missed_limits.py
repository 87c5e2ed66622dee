"""Which limits a priced server misses by the known error of its kind, and what keeps them: another server, or a smaller batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from moescale.errors import MoescaleError

if TYPE_CHECKING:
    from moescale.serving.accuracy import Accuracy
    from moescale.serving.deployment import Deployment
    from moescale.serving.gpu_counts import Cost
    from moescale.serving.loads import OpenLoop
    from moescale.serving.workload import Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """The cheapest server found that keeps all limits by the known error of its kind, and the stricter limits that give it."""

    answer: Cost
    opened: OpenLoop | None = None
    limits_s: dict[str, float]  # by option, such as --max-tpot; none: the server was looked at under the stated limits

    @property
    def usd_per_mtok(self) -> float:
        """At the rate, or of the closed loop, where one is stated."""
        return (self.opened or self.answer.closed_loop or self.answer).usd_per_mtok or 0.0

    def to_dict(self) -> dict[str, object]:
        """JSON-ready values."""
        one, groups = self.opened or self.answer, self.answer.attention_dp
        record: dict[str, object] = {"gpus": one.gpus, "replicas": one.replicas or 1, "usd_per_mtok": self.usd_per_mtok}
        record |= {} if groups is None else {"attention_dp": groups}
        return record | {f"{option[2:].replace('-', '_')}_s": s for option, s in self.limits_s.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Missed:
    """Which limits an answer misses by the known error of its kind, with the seconds as corrected, and what keeps them."""

    times_s: dict[str, float]
    kept: Kept | None  # None: nothing that was looked at


def missed_by_error(
    answer: Cost,
    opened: OpenLoop | None,
    accuracy: Accuracy | None,
    deployment: Deployment,
    ask: Callable[[Deployment], tuple[Cost, OpenLoop | None, Accuracy | None]],
) -> Missed | None:
    """What the known error says of the limits; None where all are kept.

    `ask` answers the same question under other limits: as strict as the error is large, which smaller batches may keep.
    """
    from moescale.serving.accuracy import limits_missed

    def late(times: Measured | Cost, error: Accuracy | None) -> dict[str, float]:
        return limits_missed(error, (times.ttft_s, deployment.max_ttft_s), (times.tpot_s, deployment.max_tpot_s))

    first = missed = late(opened or answer.closed_loop or answer, accuracy)
    if not first:
        return None
    found = [Kept(answer=c, limits_s={}) for c in answer.candidates or () if opened is None and c.batch is not None]
    found = [k for k in found if not late(k.answer.closed_loop or k.answer, accuracy)]
    strict: dict[str, float] = {}
    asked, error = deployment, accuracy
    for _ in range(2):  # the smaller batch may miss the other limit
        for name in missed:
            stated, band = f"max_{name.lower()}_s", getattr(error, name.lower())
            most_s = _three_digits(float(getattr(deployment, stated)) * band.geometric_mean)
            asked, strict = replace(asked, **{stated: most_s}), strict | {f"--max-{name.lower()}": most_s}
        try:
            one, at_rate, error = ask(asked)
        except MoescaleError:
            break
        if not (missed := late(at_rate or one.closed_loop or one, error)):
            found.append(Kept(answer=one, opened=at_rate, limits_s=strict))
            break
    found = [k for k in found if k.answer.closed_loop is None or k.answer.closed_loop.meets_limits]
    return Missed(times_s=first, kept=min(found, key=lambda k: float(f"{k.usd_per_mtok:.9g}"), default=None))


def _three_digits(value: float) -> float:
    """Rounded down, as a limit is stated."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return float(f"{math.floor(value / unit) * unit:.3g}")
