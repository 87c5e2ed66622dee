"""What all draws of a law say of a plan: which sizes keep its promise, and what a choice loses where a draw is right.

A draw of an ensemble is a draw of one of its laws, so that the laws' disagreement is counted as each law's own doubt is.
Losses of different laws are in different units: every draw judges a model by its own loss of the base, one fixed model.

Regret is what a choice loses against a lab that knows the draw to be true, as a share of the base's dollars a token:

    (usd - c(L)) / base + |c(L) - c(goal)| / base

with L the loss of the choice under the draw and c(l) the least that any model costs to serve at a loss of l. The first part is
paid for nothing; the second is loss that was not asked for, or that is missing, at its price.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from moescale.planning.allocation import Allocation, Budget, at_size, inputs_at, loss_optimal, smallest_at_loss
from moescale.planning.sampled_costs import SampledCosts
from moescale.scaling_laws.law import Law
from moescale.typing import FloatArray

CURVE_SIZES = 40  # of a draw's curve of loss against cost, of each expert count
SMALLEST = 0.01  # of a draw's loss-optimal size: where its curve begins
TRIED = 33  # sizes that are tried where those that satisfy some draws are too large for others
UNLIKELY = 0.95  # of draws: a regret that only one in 20 exceeds
MET = 1e-9  # of a loss or a probability, relative: rounding
TINY = 1e-300
BEYOND = 1e3  # stands for the ln of what there is not


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """The draws (k, p) of a law, the loss that each asks for, and its own models of m expert counts on a budget."""

    law: Law
    budget: Budget
    experts: FloatArray  # (m,)
    theta: FloatArray  # (k, p)
    weights: FloatArray  # (k,): sum to 1
    goal: FloatArray  # (k,): the loss that a model must not exceed
    best: Allocation  # (k, m): loss-optimal
    smallest: Allocation  # (k, m): at the goal, NaN where the draw knows none

    @property
    def by_law(self) -> FloatArray:
        """The weights of the draws of each law of an ensemble, (laws, k), each row a mean over them."""
        count = len(self.law.members) or 1
        own = self.theta[:, :count].T != 0.0 if count > 1 else np.ones((1, len(self.theta)), dtype=np.bool_)
        weights = own * self.weights
        return weights / np.maximum(weights.sum(axis=1, keepdims=True), TINY)

    def worst(self, regrets: FloatArray) -> FloatArray:
        """The mean of regrets (k, j) under the worst law of several, (j,); of one law, what one draw in 20 exceeds."""
        return (self.by_law @ regrets).max(axis=0) if len(self.law.members) > 1 else self.quantile(regrets, UNLIKELY)

    def quantile(self, values: FloatArray, share: float) -> FloatArray:
        """The least of values (k, j) that so large a share of the draws does not exceed, (j,); NaN counts as the largest."""
        order = np.argsort(values, axis=0, kind="stable")
        enough = np.cumsum(self.weights[order], axis=0) >= share - MET
        return np.take_along_axis(np.take_along_axis(values, order, axis=0), enough.argmax(axis=0)[None], axis=0)[0]

    def asking_for(self, loss: float) -> Draws:
        """The same draws, which ask for a loss instead."""
        goal = np.full(len(self.theta), loss)
        return replace(self, goal=goal, smallest=_smallest(self.law, self.budget, goal, self.theta, self.best))

    def losses(self, n_params: FloatArray, experts: FloatArray, law: Law | None = None) -> FloatArray:
        """Loss under each draw of models (j,) that use the budget, (k, j); `law` counts the sizes of a built shape."""
        return at_size(law or self.law, self.budget, n_params, experts, theta=self.theta).loss

    def probability(self, losses: FloatArray) -> FloatArray:
        """With which losses (k, j) meet the goals, (j,)."""
        return np.minimum(self.weights @ self.meets(losses), 1.0)  # rounding of the sum

    def meets(self, losses: FloatArray) -> FloatArray:
        """Which losses (k, j) meet the goals, as 0 and 1."""
        return (losses <= self.goal[:, None] * (1.0 + MET)).astype(float)

    def sizes(self, confidence: float) -> FloatArray:
        """The smallest size of each expert count that meets the goal with such a probability, (m,); NaN where none does."""
        needed = np.where(np.isnan(self.smallest.n_params), np.inf, self.smallest.n_params)
        found = self.quantile(needed, confidence)
        known = np.where(np.isfinite(found), found, self.best.n_params.max(axis=0))
        sure = self.probability(self.losses(known, self.experts)) >= confidence - MET
        found = np.where(sure & np.isfinite(found), found, np.nan)
        # On a budget large models see fewer tokens: a size may be large enough for most draws and too large for some.
        for j in np.flatnonzero(~sure & np.isfinite(needed).any(axis=0)):
            tried = self._tried()[:, j]
            good = self.probability(self.losses(tried, np.full(TRIED, self.experts[j]))) >= confidence - MET
            found[j] = tried[good.argmax()] if good.any() else np.nan
        return found

    def most_sure(self, largest: FloatArray, wanted: NDArray[np.bool_]) -> FloatArray:
        """The largest probability with which one size of an expert count, `largest` (m,) at most, meets the goal, (m,); NaN for those not `wanted`."""
        sizes = np.minimum(self._tried(), largest)[:, wanted]
        found = np.full(wanted.shape, np.nan)
        if sizes.size:
            losses = self.losses(sizes.ravel(), np.broadcast_to(self.experts[wanted], sizes.shape).ravel())
            found[wanted] = self.probability(losses).reshape(sizes.shape).max(axis=0)
        return found

    def _tried(self) -> FloatArray:
        """Sizes among those that draws need or know as best, at even steps of their number, (TRIED, m): draws differ by decades."""
        known = np.concatenate((self.smallest.n_params, self.best.n_params))
        return np.nanquantile(known, np.linspace(0.0, 1.0, TRIED), axis=0)


@dataclass(frozen=True, slots=True)
class Oracle:
    """What each of k draws knows of loss and serving cost: a curve of s sizes for each of a expert counts that may be chosen.

    Where nothing serves a size it is left out: the first `known` points of a curve count.
    """

    sampled: SampledCosts
    allowed: NDArray[np.intp]  # (a,): columns of the expert counts
    ln_loss: FloatArray  # (k, a, s), rising
    ln_usd: FloatArray  # (k, a, s)
    known: NDArray[np.intp]  # (k, a)
    kinked: list[tuple[int, int]]  # draws and columns of curves whose loss falls somewhere: of a law with kinks

    def usd_at(self, losses: FloatArray) -> FloatArray:
        """The least dollars a million tokens at losses (k, j), (k, j); infinite below what any model reaches."""
        ln, found = np.log(losses), np.empty((*losses.shape, self.allowed.size))
        xs, ys, last = self.ln_loss, self.ln_usd, self.known - 1
        curves = (np.arange(len(xs))[:, None], np.arange(self.allowed.size))
        for j in range(ln.shape[1]):  # as np.interp does, of all curves at once
            x = ln[:, j, None]
            right = np.minimum((xs <= x[..., None]).sum(axis=-1), last + 1)
            at, after = (*curves, np.maximum(right - 1, 0)), (*curves, np.minimum(right, last))
            run = xs[after] - xs[at]
            slope = np.where(run > 0.0, ys[after] - ys[at], 0.0) / np.where(run > 0.0, run, 1.0)
            found[:, j] = np.where(right > 0, slope * (x - xs[at]) + ys[at], np.inf)
        for k, a in self.kinked:
            ends = slice(self.known[k, a])
            found[k, :, a] = np.interp(ln[k], xs[k, a, ends], ys[k, a, ends], left=np.inf)
        return np.exp(found.min(axis=-1))

    def usd_at_goal(self, draws: Draws) -> FloatArray:
        """The least dollars with which each draw meets its goal, (k,); infinite where it does not."""
        usd = self.sampled.usd_per_mtok(draws.smallest.n_params)[:, self.allowed]
        return np.where(np.isnan(usd), np.inf, usd).min(axis=1)

    def regrets(self, draws: Draws, losses: FloatArray, usd: FloatArray, base_usd: float) -> FloatArray:
        """Regret of models that cost `usd` (j,) and have losses (k, j), (k, j)."""
        worth = np.minimum(self.usd_at(losses), usd)  # that of the model itself at most, whatever the curves' steps
        goal = self.usd_at_goal(draws)[:, None]
        with np.errstate(invalid="ignore"):
            wrong = np.where(np.isfinite(goal), np.abs(worth - goal), 0.0)
        return (usd - worth + wrong) / base_usd


def draws_of(
    law: Law,
    budget: Budget,
    experts: FloatArray,
    base: Allocation,
    *,
    base_inputs: Mapping[str, float] | None = None,
    draws: int | None = None,
    alone: bool = False,
) -> Draws:
    """The draws of a law, which ask for each draw's own loss of the base model (1,).

    The base has the further inputs of the budget, or `base_inputs` of its own. `draws` says how many, spread evenly over all; None or 0: all.
    Without draws, or `alone`, the laws of an ensemble, or the one law, speak by their coefficients.
    """
    if len(law.draws) and not alone:
        theta, weights = some_draws(law, draws or len(law.draws))
    elif law.members:
        count = len(law.members)
        theta, weights = np.tile(law.theta, (count, 1)), np.array([member.weight for member in law.members])
        theta[:, :count] = np.eye(count)
    else:
        theta, weights = law.theta[None], np.ones(1)
    further = budget.extra if base_inputs is None else base_inputs
    known = inputs_at(law, further, base.n_params, np.log(base.tokens), base.experts)
    goal, best = np.exp(law.form.log_loss(theta, known))[:, 0], loss_optimal(law, budget, experts, theta=theta)
    smallest = _smallest(law, budget, goal, theta, best)
    return Draws(
        law=law, budget=budget, experts=experts, theta=theta, weights=weights, goal=goal, best=best, smallest=smallest
    )


def some_draws(law: Law, draws: int) -> tuple[FloatArray, FloatArray]:
    """So many of a law's draws, spread evenly over all laws of an ensemble, (k, p), and their weights (k,)."""
    count = min(draws, len(law.draws))
    at = np.round(np.linspace(0, len(law.draws) - 1, count)).astype(int)
    return law.draws[at], np.full(count, 1.0 / count)


def _smallest(law: Law, budget: Budget, goal: FloatArray, theta: FloatArray, best: Allocation) -> Allocation:
    return smallest_at_loss(law, budget, best.experts[0], goal[:, None], theta=theta, optimal=best)


def oracle_of(draws: Draws, sampled: SampledCosts, allowed: NDArray[np.bool_]) -> Oracle:
    """The curves of the draws over the expert counts that are allowed, (m,), from serving costs on a grid of sizes."""
    at = np.flatnonzero(allowed)
    sizes = draws.best.n_params[:, at, None] * np.geomspace(1.0, SMALLEST, CURVE_SIZES)  # (k, a, s)
    flat, experts = sizes.reshape(len(sizes), -1), np.repeat(draws.experts[at], CURVE_SIZES)
    losses = at_size(draws.law, draws.budget, flat, experts, theta=draws.theta).loss
    usd = np.stack([sampled.usd_of(int(j), sizes[:, i]) for i, j in enumerate(at)], axis=1)
    ln_loss, ln_usd = np.log(losses).reshape(sizes.shape), np.log(usd)
    known = np.isfinite(ln_usd)
    order = np.argsort(~known, axis=-1, kind="stable")
    ln_loss, ln_usd = (
        np.take_along_axis(np.where(known, values, BEYOND), order, axis=-1) for values in (ln_loss, ln_usd)
    )
    falls = (np.diff(ln_loss, axis=-1) < 0.0).any(axis=-1) & known.any(axis=-1)
    return Oracle(sampled, at, ln_loss, ln_usd, known.sum(axis=-1), [(k, a) for k, a in np.argwhere(falls).tolist()])
