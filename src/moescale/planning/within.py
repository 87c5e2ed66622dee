"""The plan whose model takes the days or dollars that were stated: what they buy depends on the model that they are spent on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from moescale.planning.plan import Plan

MOST_PLANS = 5  # that are made
NEAR = 0.02  # of what was stated
OVER = 0.003  # share that it may be exceeded by: 10 days still print as 10


def plan_within(at_mfu: Callable[[float | None], Plan], most: Mapping[str, float | None], budget: float | None) -> Plan:
    """The largest of a few plans whose training stays within `most` of its figures, such as `{"days": 30.0}`.

    `at_mfu` makes the plan of the FLOPs that they buy at an MFU (None: that of the base); `budget` is what is stated in FLOPs.
    """
    answer = at_mfu(None)
    found: list[tuple[float, Plan]] = []
    bought: float | None = None  # the MFU that the budget was bought at
    for _ in range(MOST_PLANS):
        use = answer.training
        taken = [(getattr(use, name), limit) for name, limit in most.items() if limit is not None]
        ratio = max((value / limit for value, limit in taken if value is not None), default=None)
        if ratio is None or use is None or use.mfu is None or answer.lifetime is not None:
            return answer
        found.append((ratio, answer))
        if -NEAR < ratio - 1.0 < OVER or (ratio < 1.0 and answer.budget_flops == budget):
            return answer
        bought = use.mfu if bought is None else math.sqrt(bought * use.mfu)
        answer = at_mfu(bought)
    within = [each for each in found if each[0] <= 1.0 + OVER]
    return max(within, key=lambda each: each[0])[1] if within else min(found, key=lambda each: each[0])[1]
