"""What a law says that experts save: training FLOPs of a reference of equal loss over those of the MoE."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from moescale.planning.allocation import Allocation, Budget, loss_optimal
from moescale.roots import bracket
from moescale.scaling_laws.form import known_to
from moescale.scaling_laws.law import Law
from moescale.typing import FloatArray, Real

STEP, WIDEST = float(np.log(4.0)), float(np.log(1e5))  # what a search goes by first, and how far it goes at most
CLOSE = 1e-6  # of a ratio, relative


@dataclass(frozen=True, slots=True)
class Leverage:
    """Ratios (m,) of training FLOPs at equal loss, and the loss-optimal models and references that they compare."""

    ratio: FloatArray
    models: Allocation
    references: Allocation


def leverage(
    law: Law, budget: Budget, experts: Real, *, reference: Law | None = None, reference_experts: float = 1.0
) -> Leverage:
    """FLOPs of the reference over the budget, both loss-optimal and of one loss, for each expert count (m,).

    The reference is a dense model of the same law, or `reference_experts` experts of the law `reference`, whose losses must
    be in the same units. NaN where the ratio lies beyond 1e-5 to 1e5. Raises InfeasibleError as `loss_optimal` does.
    """
    other = law if reference is None else reference
    models = loss_optimal(law, budget, experts)
    known = known_to(other.form, budget.extra)

    def optimum(ln_ratio: float) -> Allocation:
        return loss_optimal(
            other, replace(budget, flops=budget.flops * np.exp(ln_ratio), extra=known), reference_experts
        )

    def solve(loss: float) -> float:
        def rising(at: FloatArray) -> FloatArray:
            return loss - optimum(float(at)).loss[0]

        up = rising(np.array(0.0)) < 0.0  # where the reference needs more than the budget
        near, far = 0.0, STEP if up else -STEP
        while (rising(np.array(far)) < 0.0) == up:
            near, far = far, 2.0 * far
            if abs(far) > WIDEST:
                return np.nan
        return float(np.mean(bracket(rising, np.array(min(near, far)), np.array(max(near, far)), close=CLOSE)))

    found = np.array([solve(float(loss)) for loss in models.loss])
    at = [optimum(ln_ratio) if np.isfinite(ln_ratio) else None for ln_ratio in found]

    def column(name: str) -> FloatArray:
        return np.array([np.nan if one is None else getattr(one, name)[0] for one in at])

    references = Allocation(*(column(name) for name in ("experts", "n_params", "tokens", "loss")))
    return Leverage(np.exp(found), models, references)
