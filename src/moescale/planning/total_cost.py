"""What a model costs over its life, and the size and tokens of each expert count for which training plus serving cost least.

Legend: N dense-equivalent size, D training tokens, E experts, l a target loss. Training costs its FLOPs at a price of a FLOP;
serving costs T output tokens at any function of (N, E). At a target loss D follows from N, so that only N is free; within
total dollars D is what serving leaves to pay for. Serving costs have kinks where the cheapest GPU count changes, hence a
scan of sizes before the local search. With serving at 2 N FLOPs a token and dense models this is the objective of Sardana
and Frankle (arXiv 2401.00448), which `flops_optimal` solves for comparison.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated

import numpy as np

from moescale.bounds import POSITIVE, Bound, check_bounds
from moescale.models.family import elasticity, n_active, tokens_within, training_flops
from moescale.planning.allocation import Allocation, CostOf, check_trade_off, inputs_at, slopes_at, theta_or_own
from moescale.roots import RESOLUTION, bracket
from moescale.scaling_laws.law import Law
from moescale.typing import FloatArray, Real

SIZES = 10.0 ** np.linspace(6.0, 15.0, 145)  # of models that are served for a life: 16 to a decade
MOST_TOKENS = 1e24  # where no smaller number of training tokens is given: as good as infinitely many
SAME_USD = 1e-6  # of dollars, relative: what costs as much but for rounding has nothing to repay
# Sizes of each scan of a range, and how many either way of its best the next takes.
# The best of three in the end: where the least lies on the border of what there is, only one end may be a model at all.
SCANS = ((73, 3), (97, 1), *((13, 1),) * 6, (3, 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetime:
    """The conditions of a model's life: output tokens served, dollars a training FLOP, and what limits the choice."""

    served_tokens: Annotated[float, Bound(0)]
    usd_per_flop: Annotated[float, POSITIVE]
    max_tokens: Annotated[float | None, POSITIVE] = None  # of training
    max_usd_per_mtok: Annotated[float | None, POSITIVE] = None  # of serving
    extra: Mapping[str, float] = field(default_factory=dict[str, float])  # further inputs of the law
    usd_per_flop_at: Callable[[FloatArray], FloatArray] | None = None  # by expert counts, instead of one for all

    def __post_init__(self) -> None:
        check_bounds(self, where="lifetime")

    def flop_price(self, experts: FloatArray) -> FloatArray | float:
        """Dollars a training FLOP of models of so many experts."""
        return self.usd_per_flop if self.usd_per_flop_at is None else self.usd_per_flop_at(experts)


@dataclass(frozen=True, slots=True)
class LifetimeCost(Allocation):
    """Models and the dollars of their lives, all of shape (m,) or (k, m); NaN (dollars: infinity) where there is none."""

    training_flops: FloatArray
    training_usd: FloatArray
    serving_usd: FloatArray

    @property
    def total_usd(self) -> FloatArray:
        """Training and serving dollars."""
        return self.training_usd + self.serving_usd


@dataclass(frozen=True, slots=True)
class LifetimeFlops(Allocation):
    """Models and the FLOPs of their lives, all of shape (m,) or (k, m); NaN where there is none."""

    training_flops: FloatArray
    inference_flops: FloatArray

    @property
    def total_flops(self) -> FloatArray:
        """Training and inference FLOPs."""
        return self.training_flops + self.inference_flops


def break_even_tokens(
    training_usd: float | None, others_training_usd: float | None, usd_per_mtok: float | None, others_usd: float | None
) -> float | None:
    """The output tokens by which a lower price of serving has repaid dearer training; None where a figure is not known, and where nothing is repaid."""
    if training_usd is None or others_training_usd is None or usd_per_mtok is None or others_usd is None:
        return None
    more, saved = training_usd - others_training_usd, others_usd - usd_per_mtok
    return 1e6 * more / saved if more > SAME_USD * training_usd and saved > 0.0 else None


def lowest_loss(law: Law, experts: FloatArray, life: Lifetime) -> FloatArray:
    """The lowest loss of each expert count at any size from 1e6 to 1e15 and any tokens that a life allows, (m,)."""
    return np.exp(np.min(_ln_loss_on_grid(law, law.theta, experts, life), axis=0))


def tokens_at_loss(
    law: Law,
    n_params: FloatArray,
    experts: FloatArray,
    loss: Real,
    *,
    max_tokens: float | None = None,
    extra: Mapping[str, float] | None = None,
    theta: FloatArray | None = None,
) -> FloatArray:
    """Training tokens with which models reach `loss`, as exactly as it rounds; NaN where no number up to `max_tokens` does.

    `n_params` (..., m) and `experts` (m,), with `theta` (k, p) `n_params` (..., k, m) or (m,); `loss` broadcasts.
    """
    use, ceiling = theta_or_own(law, theta), math.log(max_tokens or MOST_TOKENS)
    x = inputs_at(law, extra or {}, n_params, np.full(n_params.shape, ceiling), experts)

    def surplus(ln_d: FloatArray) -> FloatArray:
        return np.log(loss) - law.form.log_loss(use, replace(x, ln_d=ln_d))

    with np.errstate(all="ignore"):  # points that have no answer are worked on and then dropped
        reached = surplus(x.ln_d) >= 0.0
        low, high = np.where(reached, 0.0, ceiling), np.full(reached.shape, ceiling)
        _, ln_d = bracket(surplus, low, high, close=0.25 * RESOLUTION)  # L may change as fast as ln D
    return np.where(reached, np.exp(ln_d), np.nan)


def cheapest_at_loss(
    law: Law,
    experts: Real,
    loss: Real,
    life: Lifetime,
    cost_of: CostOf,
    *,
    theta: FloatArray | None = None,
    loss_at: Callable[[FloatArray], FloatArray] | None = None,
) -> LifetimeCost:
    """The size and tokens of each expert count that reach `loss` for the fewest training plus serving dollars.

    `experts` (m,), `loss` a number or (k, 1); answers (m,), with `theta` (k, p) (k, m). `cost_of` gives dollars per million
    output tokens, infinite where nothing serves. `loss_at` gives the loss that sizes (..., m) have to reach, `loss` at most,
    where it depends on them. Infinite dollars where an expert count reaches the loss at no size, or cannot be served there.
    """
    check_trade_off(law)
    e, use = np.atleast_1d(np.asarray(experts, float)), theta_or_own(law, theta)
    low, high = _sizes_that_reach(law, use, e, loss, life)

    def tokens(n_params: FloatArray) -> FloatArray:
        goal = loss if loss_at is None else loss_at(n_params)
        return tokens_at_loss(law, n_params, e, goal, max_tokens=life.max_tokens, extra=life.extra, theta=theta)

    def lives(n_params: FloatArray) -> LifetimeCost:
        return life_costs(law, life, cost_of, n_params, tokens(n_params), e, theta=theta)

    return lives(_least(lambda n_params: lives(n_params).total_usd, low, high))


def best_within_total(
    law: Law, experts: Real, total_usd: Real, life: Lifetime, cost_of: CostOf, *, theta: FloatArray | None = None
) -> LifetimeCost:
    """The size and tokens of each expert count with the lowest loss for which training and serving cost `total_usd`.

    Shapes as in `cheapest_at_loss`. What `max_tokens` leaves stays unspent. NaN where serving alone costs more at every size.
    """
    check_trade_off(law)
    e, use = np.atleast_1d(np.asarray(experts, float)), theta_or_own(law, theta)

    def payable(n_params: FloatArray) -> FloatArray:
        left = np.asarray(total_usd, float) - _serving(life, cost_of, n_params, e)
        tokens = tokens_within(law.family, np.maximum(left, 0.0) / life.flop_price(e), n_params, e)
        return np.where(left > 0, np.clip(tokens, 1.0, life.max_tokens), np.nan)

    def lives(n_params: FloatArray) -> LifetimeCost:
        return life_costs(law, life, cost_of, n_params, payable(n_params), e, theta=theta)

    def loss(n_params: FloatArray) -> FloatArray:
        return np.nan_to_num(lives(n_params).loss, nan=np.inf)

    ends = (np.full((*use.shape[:-1], e.size), math.log(SIZES[at])) for at in (0, -1))
    return lives(_least(loss, *ends))


def flops_optimal(
    law: Law,
    experts: Real,
    loss: Real,
    inference_tokens: Real,
    *,
    max_tokens: float | None = None,
    extra: Mapping[str, float] | None = None,
    theta: FloatArray | None = None,
) -> LifetimeFlops:
    """The size and tokens that reach `loss` with the fewest FLOPs, 6 n_active D + 2 n_active D_inf.

    `inference_tokens` D_inf counts input and output tokens; `experts` (m,), the others broadcast. With dense models the
    objective of Sardana and Frankle (arXiv 2401.00448), whose optimum satisfies (N dL/dN) / (D dL/dD) = 1 + D_inf / (3 D).
    Without inference tokens it is the loss-optimal model of its own budget. NaN where no size reaches the loss.
    """
    check_trade_off(law)
    e, use = np.atleast_1d(np.asarray(experts, float)), theta_or_own(law, theta)
    life = Lifetime(served_tokens=0.0, usd_per_flop=1.0, max_tokens=max_tokens, extra=extra or {})
    served = np.asarray(inference_tokens, float)

    def tokens(n_params: FloatArray) -> FloatArray:
        return tokens_at_loss(law, n_params, e, loss, max_tokens=max_tokens, extra=extra, theta=theta)

    def rising(ln_n: FloatArray) -> FloatArray:
        """The derivative of all FLOPs in ln N along the curve of equal loss, over that of training FLOPs alone in ln D."""
        n = np.exp(ln_n)
        d = tokens(n)
        in_n, in_d = slopes_at(law, life.extra, use, n, d, e)
        widening = elasticity(law.family, n, n_active(law.family, n, e))
        return np.where(np.isnan(d), 1.0, widening * (1.0 + served / (3.0 * d)) - in_n / in_d)

    low, high = _sizes_that_reach(law, use, e, loss, life)
    low, high = bracket(rising, low + np.zeros(served.shape), high)
    n = np.exp(0.5 * (low + high))
    found = life_costs(law, life, lambda n_params, _: np.zeros(n_params.shape), n, tokens(n), e, theta=theta)
    inference = 2.0 * n_active(law.family, found.n_params, e) * served
    return LifetimeFlops(found.experts, found.n_params, found.tokens, found.loss, found.training_flops, inference)


def life_costs(
    law: Law,
    life: Lifetime,
    cost_of: CostOf,
    n_params: FloatArray,
    tokens: FloatArray,
    experts: FloatArray,
    *,
    theta: FloatArray | None = None,
) -> LifetimeCost:
    """The record of models of known size and tokens (..., m), of experts (m,); NaN tokens mean that there is no such model."""
    serving = _serving(life, cost_of, n_params, experts)
    gone = np.isnan(tokens) | ~np.isfinite(serving)
    x = inputs_at(law, life.extra, n_params, np.log(np.where(gone, 1.0, tokens)), experts)
    with np.errstate(over="ignore"):
        loss = np.exp(law.form.log_loss(theta_or_own(law, theta), x))
    flops = training_flops(law.family, n_params, tokens, experts)

    figures = (np.where(gone, np.nan, values) for values in (n_params, tokens, loss, flops))
    dollars = (np.where(gone, np.inf, usd) for usd in (flops * life.flop_price(experts), serving))
    return LifetimeCost(np.broadcast_to(experts, gone.shape), *figures, *dollars)


def _ln_loss_on_grid(law: Law, theta: FloatArray, experts: FloatArray, life: Lifetime) -> FloatArray:
    """ln L at every grid size with all tokens there are, (sizes, ..., m)."""
    n = np.tile(SIZES.reshape(-1, *(1 for _ in theta.shape)), experts.size)
    x = inputs_at(law, life.extra, n, np.full(n.shape, math.log(life.max_tokens or MOST_TOKENS)), experts)
    with np.errstate(over="ignore"):
        return law.form.log_loss(theta, x)


def _sizes_that_reach(
    law: Law, theta: FloatArray, experts: FloatArray, loss: Real, life: Lifetime
) -> tuple[FloatArray, FloatArray]:
    """ln of the smallest size that reaches the loss with all tokens there are, and of a size at or beyond the largest."""
    ceiling = math.log(life.max_tokens or MOST_TOKENS)
    ln_n, ln_target = np.log(SIZES), np.log(np.asarray(loss, float))
    reached = _ln_loss_on_grid(law, theta, experts, life) <= ln_target
    first, last = np.argmax(reached, axis=0), reached.shape[0] - 1 - np.argmax(reached[::-1], axis=0)

    def reaches(at: FloatArray) -> FloatArray:
        x = inputs_at(law, life.extra, np.exp(at), np.full(at.shape, ceiling), experts)
        return np.broadcast_to(ln_target, at.shape) - law.form.log_loss(theta, x)

    with np.errstate(over="ignore"):
        _, low = bracket(reaches, ln_n[np.maximum(first - 1, 0)], ln_n[first])
    low = np.where(first == 0, ln_n[0], low + 1e-12)  # on the side that reaches it
    return low, np.maximum(ln_n[np.minimum(last + 1, SIZES.size - 1)], low)


def _serving(life: Lifetime, cost_of: CostOf, n_params: FloatArray, experts: FloatArray) -> FloatArray:
    """Dollars of serving all tokens; infinite where nothing serves, or only above the price that is allowed."""
    usd = cost_of(n_params, np.broadcast_to(experts, n_params.shape))
    allowed = np.isfinite(usd) & (usd <= (life.max_usd_per_mtok or math.inf))
    return np.where(allowed, np.where(allowed, usd, 0.0) * (life.served_tokens / 1e6), np.inf)


def _least(value: Callable[[FloatArray], FloatArray], low: FloatArray, high: FloatArray) -> FloatArray:
    """The sizes between exp(low) and exp(high), (..., m), at which `value` is least: scans of the range and around its best, ever closer.

    Dollars jump with the GPU count: a rival minimum that the first scans miss costs less than a per cent less.
    """
    for count, reach in SCANS:
        shares = np.linspace(0.0, 1.0, count).reshape(-1, *(1 for _ in low.shape))
        at = low * (1.0 - shares) + high * shares
        best = np.argmin(value(np.exp(at)), axis=0)[None]
        low, high = (np.take_along_axis(at, np.clip(best + side * reach, 0, count - 1), axis=0)[0] for side in (-1, 1))
    return np.exp(low)
