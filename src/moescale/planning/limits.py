"""The stated days and dollars of a plan, and how surely its run stays within them, by the errors of predicted times and prices."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

from moescale.planning.plan import Plan
from moescale.serving.accuracy import Accuracy, accuracy_of_any
from moescale.training.step_time import StepError

QUANTILES, HALVINGS = 200, 50  # of training dollars, and of the search for dollars that are enough


@dataclass(frozen=True, slots=True)
class StatedLimit:
    """Days or dollars that are stated, and what the model takes of them as predicted; the errors of both parts are independent."""

    name: str  # as in `Plan.asked`
    most: float
    training: float  # days or dollars
    error: StepError
    serving_usd: float = 0.0
    servings: Accuracy | None = None  # whose error the price of serving has; None: it is taken as exact

    @property
    def chance(self) -> float:
        """That no more is taken."""
        return self.kept(self.most)

    def kept(self, most: float) -> float:
        """The chance that no more than so many days or dollars are taken."""
        if self.servings is None:
            return self.error.kept((most - self.serving_usd) / self.training)
        served = NormalDist(math.log(self.servings.geometric_mean), math.log(self.servings.spread))
        times = (self.error.times((i + 0.5) / QUANTILES) for i in range(QUANTILES))
        left = ((most - each * self.training) / self.serving_usd for each in times)
        return sum(served.cdf(math.log(each)) for each in left if each > 0.0) / QUANTILES

    def taken(self, chance: float) -> float:
        """What is enough with a chance."""
        if self.servings is None:
            return self.serving_usd + self.training * self.error.times(chance)
        low, high = (math.log((self.training + self.serving_usd) * share) for share in (0.1, 10.0))
        for _ in range(HALVINGS):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if self.kept(math.exp(middle)) < chance else (low, middle)
        return math.exp(high)


def stated_limits(plan: Plan) -> list[StatedLimit]:
    """The limits that a plan states, the one that is kept least surely first; none where the error of training is unknown."""
    use, found = plan.training, list[StatedLimit]()
    if use is None or use.error is None or not use.usd:
        return found
    days, usd, total = (plan.asked.get(name) for name in ("max_days", "max_training_usd", "max_total_usd"))
    if isinstance(days, float) and use.days is not None:
        found.append(StatedLimit("max_days", days, use.days, use.error))
    if isinstance(usd, float):
        found.append(StatedLimit("max_training_usd", usd, use.usd, use.error))
    if plan.of_life and isinstance(total, float):
        serving = plan.decision.model.serving_usd or 0.0
        servings = plan.accuracy or accuracy_of_any() if plan.latency_source == "silicon" else None
        found.append(StatedLimit("max_total_usd", total, use.usd, use.error, serving, servings))
    return sorted(found, key=lambda limit: limit.chance)
