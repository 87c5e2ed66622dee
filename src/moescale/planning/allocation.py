"""How to spend a training budget: loss-optimal size, cheapest size at a loss (Algorithm 1), best loss at a cost (2).

All functions take a law and arrays of expert counts (m,); with `theta` (k, p) they answer for each of k coefficient
sets at once and gain a leading axis of k. Sizes are real-valued; a buildable shape is planning's affair.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import EllipsisType
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from moescale.bounds import FLOPS, TOKENS, check_bounds
from moescale.errors import InfeasibleError, InputError
from moescale.models.family import elasticity, law_size, n_active, tokens_within
from moescale.roots import RESOLUTION, bracket_rows, last_within
from moescale.scaling_laws.form import Inputs, further_inputs, option
from moescale.scaling_laws.law import Law
from moescale.typing import FloatArray, Real

SIZES = 10.0 ** np.linspace(4.0, 15.0, 177)  # where the optimum is bracketed before it is refined: 16 to a decade
COARSE = 4  # of them one in so many, for draws: there are hundreds, and refining is cheap
CLOSE = 1e-12  # of a size, relative: limits that one step of cost crosses lead to one size
NEARBY = 0.03  # of ln N around a size that is expected to be the answer
# Of a loss-optimal size, relative: rounding of the slope decides beyond, and the loss is the same to 1e-22.
FLAT = 1e-11
# The same of draws, whose quantiles are printed to four digits: where a law's slope jumps, each further digit takes three steps.
OF_DRAWS = 1e-9
# "Training with up to 4 epochs of repeated data yields negligible changes to loss compared to having unique data" (arXiv 2305.16264, abstract).
FEW_EPOCHS = 4.0

CostOf = Callable[[FloatArray, FloatArray], FloatArray]  # dollars per million tokens at (n_params, experts), one shape


@dataclass(frozen=True, slots=True)
class Allocation:
    """Sizes, tokens and losses, all of shape (m,) or (k, m); NaN where there is no such allocation."""

    experts: FloatArray
    n_params: FloatArray
    tokens: FloatArray
    loss: FloatArray


@dataclass(frozen=True, slots=True)
class Budget:
    """Training compute, and the largest number of tokens that may be used (None: as many as the compute pays for).

    Raises InputError for what no model is trained with. `extra` holds further inputs of the law by name, the same for every model of a plan.
    `by_experts` is of budgets in days or dollars, which buy more FLOPs at a higher MFU.
    """

    flops: Annotated[float, FLOPS]
    max_tokens: Annotated[float | None, TOKENS] = None
    extra: Mapping[str, float] = field(default_factory=dict[str, float])
    by_experts: tuple[tuple[float, float], ...] = ()  # (experts, FLOPs), experts rising; (): `flops` for all
    max_epochs: float | None = None  # of unique tokens, where nobody stated the `max_tokens` that they are

    def __post_init__(self) -> None:
        check_bounds(self, where="--budget")

    def flops_at(self, experts: Real) -> FloatArray | float:
        """Training FLOPs of models of so many experts: between those of `by_experts` by ln E, beyond them as the nearest."""
        if not self.by_experts:
            return self.flops
        counts, flops = np.array(self.by_experts).T
        return np.interp(np.log(np.asarray(experts, float)), np.log(counts), flops)


def inputs_at(
    law: Law, extra: Mapping[str, Real], n_params: FloatArray, ln_tokens: FloatArray, experts: FloatArray
) -> Inputs:
    """The law's inputs for dense-equivalent sizes and tokens (..., m) and experts (m,); `extra` as in Budget.

    Raises InputError for further inputs that the law lacks, misses, or takes from the expert counts itself.
    """
    implied = law.form.implied_inputs(experts, law.family.top_k) if law.form.implied_inputs else {}
    if twice := sorted(set(implied) & set(extra)):
        raise InputError(
            f"{law.name} takes {', '.join(twice)} from the expert counts of a plan",
            next_step=f"leave {', '.join(option(name) for name in twice)} out and give --experts",
        )
    further = further_inputs(law.form, {**implied, **extra}, where=law.name)
    arrays = {name: np.broadcast_to(np.asarray(value, float), experts.shape) for name, value in further.items()}
    ln_n = np.log(law_size(law.family, n_params, experts))
    return Inputs(ln_n, ln_tokens, experts, arrays)


def slopes_at(
    law: Law,
    extra: Mapping[str, float],
    theta: FloatArray,
    n_params: FloatArray,
    tokens: FloatArray,
    experts: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """d ln L / d ln N of the dense-equivalent size, and d ln L / d ln D; shapes as in `inputs_at`."""
    in_n, in_d = law.form.slopes(theta, inputs_at(law, extra, n_params, np.log(tokens), experts))
    if law.family.n_counts == "total":
        in_n = in_n * elasticity(law.family, n_params, law_size(law.family, n_params, experts))
    return in_n, in_d


def _tokens(law: Law, budget: Budget, n_params: FloatArray, experts: FloatArray) -> FloatArray:
    free = tokens_within(law.family, budget.flops_at(experts), n_params, experts)
    return np.minimum(free, budget.max_tokens or np.inf)


def theta_or_own(law: Law, theta: FloatArray | None) -> FloatArray:
    return law.theta if theta is None else theta


def loss_on_budget(
    law: Law, budget: Budget, n_params: FloatArray, experts: FloatArray, *, theta: FloatArray | None = None
) -> FloatArray:
    """Loss of models that use the whole budget; `n_params` (..., m) and `experts` (m,), answer (..., m)."""
    return np.exp(_ln_loss(law, budget, n_params, experts, theta_or_own(law, theta)))


def _ln_loss(law: Law, budget: Budget, n_params: FloatArray, experts: FloatArray, theta: FloatArray) -> FloatArray:
    ln_tokens = np.log(_tokens(law, budget, n_params, experts))
    return law.form.log_loss(theta, inputs_at(law, budget.extra, n_params, ln_tokens, experts))


def _slope_on_budget(law: Law, budget: Budget, ln_n: FloatArray, experts: FloatArray, theta: FloatArray) -> FloatArray:
    """d ln L / d ln N along the budget."""
    n = np.exp(ln_n)
    free, most = tokens_within(law.family, budget.flops_at(experts), n, experts), budget.max_tokens or np.inf
    fall = np.where(free > most, 0.0, elasticity(law.family, n, n_active(law.family, n, experts)))  # of ln D
    in_n, in_d = slopes_at(law, budget.extra, theta, n, np.minimum(free, most), experts)
    return in_n - in_d * fall


def loss_optimal(law: Law, budget: Budget, experts: Real, *, theta: FloatArray | None = None) -> Allocation:
    """The size with the lowest loss for the budget at each expert count.

    Raises InfeasibleError where the form has no such trade-off, and where the loss falls or rises over the whole range.
    """
    e, use = np.atleast_1d(np.asarray(experts, float)), theta_or_own(law, theta)
    several = use.ndim > 1
    check_trade_off(law)
    sizes = SIZES[::COARSE] if several else SIZES
    flat = _ln_loss(law, budget, np.tile(sizes, e.size), np.repeat(e, sizes.size), use)
    best = np.argmin(flat.reshape(*use.shape[:-1], e.size, sizes.size), axis=-1)
    if not several and np.any((best == 0) | (best == sizes.size - 1)):
        what = f"{law.name} has no loss-optimal size between {SIZES[0]:.0e} and {SIZES[-1]:.0e} parameters at"
        if budget.max_tokens is not None and budget.max_tokens < SIZES[0]:
            raise InfeasibleError(
                f"{what} {budget.flops:.3g} FLOPs and {budget.max_tokens:g} tokens",
                next_step=f"allow more than {budget.max_tokens:g} training tokens (300B, 2T)",
            )
        next_step = "give a budget closer to the fitted range, or another law"
        raise InfeasibleError(f"{what} {budget.flops:.3g} FLOPs", next_step=next_step)

    def slope(at: FloatArray, rows: NDArray[np.intp] | EllipsisType) -> FloatArray:
        return _slope_on_budget(law, budget, at, e, use[rows] if several else use)

    ln = np.log(sizes)  # of draws without an optimum an end of them
    ends = ln[np.maximum(best - 1, 0)], ln[np.minimum(best + 1, sizes.size - 1)]
    low, high = bracket_rows(slope, *ends, close=OF_DRAWS if several else FLAT, by_row=several)
    return at_size(law, budget, np.exp(0.5 * (low + high)), e, theta=theta)


def at_size(
    law: Law, budget: Budget, n_params: FloatArray, experts: FloatArray, *, theta: FloatArray | None = None
) -> Allocation:
    """The allocation that trains models of given size with the whole budget; NaN sizes stay NaN."""
    gone = ~np.isfinite(n_params)
    known = np.where(gone, 1e9, n_params)
    tokens = _tokens(law, budget, known, experts)
    x = inputs_at(law, budget.extra, known, np.log(tokens), experts)
    loss = np.exp(law.form.log_loss(theta_or_own(law, theta), x))
    return Allocation(
        np.broadcast_to(experts, n_params.shape), n_params, np.where(gone, np.nan, tokens), np.where(gone, np.nan, loss)
    )


def smallest_at_loss(
    law: Law,
    budget: Budget,
    experts: Real,
    loss: Real,
    *,
    theta: FloatArray | None = None,
    optimal: Allocation | None = None,
) -> Allocation:
    """Algorithm 1: the smallest model of each expert count that reaches `loss` within the budget.

    `loss` broadcasts against (..., m). NaN where even the loss-optimal model of that expert count does not reach it.
    The search follows the over-trained branch, left of the optimum, where loss falls with size (along a budget ln L is
    convex in ln N for laws that are a sum of powers). `optimal` saves computing loss_optimal again.
    """
    e, use = np.atleast_1d(np.asarray(experts, float)), theta_or_own(law, theta)
    best = loss_optimal(law, budget, e, theta=theta) if optimal is None else optimal
    target = np.broadcast_to(np.asarray(loss, float), best.loss.shape)
    ln_target = np.log(target)

    def rising(at: FloatArray, rows: NDArray[np.intp] | EllipsisType = ...) -> FloatArray:
        return ln_target[rows] - _ln_loss(law, budget, np.exp(at), e, use[rows] if several else use)

    # At the optimum itself the curve is flat: a target that equals its loss to rounding is met there and nowhere else.
    top, several = np.log(best.n_params), use.ndim > 1
    bottom = np.where(best.loss >= target * (1.0 - 1e-12), top, np.log(SIZES[0]))
    _, ln_n = bracket_rows(rising, bottom, top, close=OF_DRAWS if several else RESOLUTION, by_row=several)
    reachable = best.loss <= target * (1.0 + 1e-12)
    return at_size(law, budget, np.where(reachable, np.exp(ln_n), np.nan), e, theta=theta)


def best_within_cost(
    law: Law,
    budget: Budget,
    experts: Real,
    usd_per_mtok: Real,
    cost_of: CostOf,
    *,
    theta: FloatArray | None = None,
    optimal: Allocation | None = None,
    near: FloatArray | None = None,
    close: float = CLOSE,
) -> Allocation:
    """Algorithm 2: the lowest loss of each expert count whose serving cost stays within `usd_per_mtok`.

    Cost rises with size, so this is the largest size within the cost, but never beyond that expert count's own optimum,
    where more size would only raise the loss. NaN where even a model of SIZES[0] parameters costs more. `optimal`
    saves computing loss_optimal again, and `near` (..., m), sizes that may be the answer, most of the search; sizes are
    `close`, relative.
    """
    e = np.atleast_1d(np.asarray(experts, float))
    best = loss_optimal(law, budget, e, theta=theta) if optimal is None else optimal
    n = largest_within_cost(
        np.broadcast_to(e, best.n_params.shape), usd_per_mtok, cost_of, largest=best.n_params, near=near, close=close
    )
    return at_size(law, budget, n, e, theta=theta)


def largest_within_cost(
    experts: FloatArray,
    usd_per_mtok: Real,
    cost_of: CostOf,
    *,
    largest: Real = SIZES[-1],
    near: Real | None = None,
    close: float = CLOSE,
) -> FloatArray:
    """The largest size up to `largest` that serves at `usd_per_mtok` or less; arguments broadcast.

    NaN where even a model of SIZES[0] parameters costs more. Assumes that cost rises with size; where it has steps, the
    answer is below the first size that is too dear, or with `near`, a guess, one that is nearby.
    """
    e, limit, top = (np.array(x, float) for x in np.broadcast_arrays(experts, usd_per_mtok, largest))
    shape, e, limit, top = e.shape, e.ravel(), limit.ravel(), top.ravel()
    low, high = np.full(e.shape, np.log(SIZES[0])), np.log(top)
    guess = high if near is None else np.log(np.where(np.isfinite(near), near, np.reshape(top, shape))).ravel()
    below, above = (np.clip(guess + side * NEARBY, low, high) for side in (-1, 1))
    sizes = np.exp(np.stack((low, high, below, above)))
    sizes[1] = top  # to the last bit
    reachable, free, under, within = cost_of(sizes, np.broadcast_to(e, sizes.shape)) <= limit
    bracketed = under & ~within & (near is not None)

    def over(ln_n: FloatArray, searched: NDArray[np.bool_]) -> FloatArray:
        return (cost_of(np.exp(ln_n), np.broadcast_to(e[searched], ln_n.shape)) - limit[searched])[None]

    ln_n, _ = last_within(over, np.where(bracketed, below, low), np.where(bracketed, above, high), close=close)
    return np.reshape(np.where(free, top, np.where(reachable, np.exp(ln_n), np.nan)), shape)


def check_trade_off(law: Law) -> None:
    """InfeasibleError for a law whose form has no trade-off between size and tokens."""
    if law.form.no_allocation:
        raise InfeasibleError(
            f"{law.name} gives no loss-optimal size for a training budget: {law.form.no_allocation}",
            next_step="plan with another law (`moescale laws` lists them); this law works with predict, fit and compare",
        )
