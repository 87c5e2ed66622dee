"""Intervals of a plan: the same allocations under every one of a law's draws."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moescale.planning.allocation import Allocation, Budget, at_size, loss_optimal, smallest_at_loss
from moescale.planning.candidate import Costs
from moescale.planning.total_cost import LifetimeCost
from moescale.scaling_laws.law import Law, interval
from moescale.typing import FloatArray

CURVE_SIZES = 128  # of the cost curve that intervals are read from
CURVE_RANGE = (1e7, 1e11)  # dense-equivalent parameters
WIDEST_RANGE = (1e4, 1e13)  # looked through, in steps of 4%, for a source that knows few sizes
WIDEST_SIZES = 512

Limits = dict[str, tuple[float, float]]  # a figure's name -> the interval that holds 90% of the draws


@dataclass(frozen=True, slots=True)
class Spread:
    """For each of m expert counts: intervals of the loss-optimal, bounded-loss and bounded-cost models.

    `cheapest_share` is the share of draws in which that expert count is the cheapest at the base's loss.
    """

    loss_optimal: list[Limits]
    bounded_loss: list[Limits]
    bounded_cost: list[Limits]
    cheapest_share: FloatArray


@dataclass(frozen=True, slots=True)
class SampledCosts:
    """Serving costs on a grid of sizes, one curve for each of m expert counts, interpolated in logarithms.

    For searches that price millions of models. Answers are NaN where nothing serves and beyond the sampled sizes.
    """

    ln_n: FloatArray  # (s,)
    ln_usd: FloatArray  # (s, m)
    served: npt.NDArray[np.bool_]  # (s, m)

    def usd_per_mtok(self, n_params: FloatArray) -> FloatArray:
        """Dollars per million tokens at sizes (..., m)."""
        out = np.full(n_params.shape, np.nan)
        for j in range(n_params.shape[-1]):
            ok = self.served[:, j]
            known = np.isfinite(n_params[..., j])
            if ok.any():
                at = np.log(n_params[..., j][known])
                out[..., j][known] = np.interp(at, self.ln_n[ok], self.ln_usd[ok, j], left=np.nan, right=np.nan)
        return np.exp(out)

    def size_within(self, usd_limit: FloatArray) -> FloatArray:
        """The largest size of each expert count within limits (k,), shape (k, m)."""
        out = np.full((usd_limit.size, self.served.shape[1]), np.nan)
        known = np.isfinite(usd_limit)
        for j in range(out.shape[1]):
            ok = self.served[:, j]
            if ok.any():
                rising = np.maximum.accumulate(self.ln_usd[ok, j])
                out[known, j] = np.interp(np.log(usd_limit[known]), rising, self.ln_n[ok], left=np.nan)
        return np.exp(out)


def sample_costs(costs: Costs, experts: FloatArray) -> SampledCosts:
    """The serving costs of expert counts (m,) on a grid of sizes.

    A source that does not answer for the smallest of the usual sizes or for most of them, such as a table of measured
    latencies, is sampled between the ends of what it knows.
    """
    curve = _sampled(costs, experts, CURVE_RANGE, CURVE_SIZES)
    if curve.served[0].all() and curve.served.any(axis=1).mean() > 0.5:
        return curve
    wide = _sampled(costs, experts, WIDEST_RANGE, WIDEST_SIZES)
    known = np.flatnonzero(wide.served.any(axis=1))
    if known.size == 0:
        return curve
    ends = wide.ln_n[[max(known[0] - 1, 0), min(known[-1] + 1, WIDEST_SIZES - 1)]]
    return _sampled(costs, experts, (math.exp(ends[0]), math.exp(ends[1])), CURVE_SIZES)


def _sampled(costs: Costs, experts: FloatArray, sizes: tuple[float, float], count: int) -> SampledCosts:
    ln_n = np.linspace(math.log(sizes[0]), math.log(sizes[1]), count)
    shape = (count, experts.size)
    usd = costs.usd_per_mtok(np.broadcast_to(np.exp(ln_n)[:, None], shape), np.broadcast_to(experts, shape))
    served = np.isfinite(usd)
    return SampledCosts(ln_n, np.log(np.where(served, usd, 1.0)), served)


def _limits(figures: dict[str, FloatArray], count: int) -> list[Limits]:
    """Intervals of each named figure, given as (k, m), for each of m models; figures that are nowhere finite are left out."""
    found: list[Limits] = [{} for _ in range(count)]
    for name, values in figures.items():
        known = np.flatnonzero(np.isfinite(values).mean(axis=0) >= 0.5)  # else most draws have no such model
        if known.size == 0:
            continue
        finite = np.where(np.isfinite(values[:, known]), values[:, known], np.nan)
        for j, low, high in zip(known, *interval(finite), strict=True):
            found[j][name] = (float(low), float(high))
    return found


def spread_of(
    law: Law,
    budget: Budget,
    costs: Costs,
    experts: FloatArray,
    base: int,
    draws: FloatArray,
    allowed: FloatArray,
    *,
    sampled: SampledCosts | None = None,
) -> Spread:
    """Answer the plan's questions once for each of the law's draws (k, p), the base being expert count number `base`.

    `allowed` (m,) tells which expert counts may be recommended. Costs come from one curve for each expert count (`sampled`
    saves computing them again), because cost does not depend on the law.
    """
    sampled = sample_costs(costs, experts) if sampled is None else sampled
    best: Allocation = loss_optimal(law, budget, experts, theta=draws)
    best_usd = sampled.usd_per_mtok(best.n_params)
    base_loss, base_usd = best.loss[:, [base]], best_usd[:, [base]]
    small = smallest_at_loss(law, budget, experts, base_loss, theta=draws, optimal=best)
    small_usd = sampled.usd_per_mtok(small.n_params)
    within = at_size(law, budget, np.fmin(sampled.size_within(base_usd[:, 0]), best.n_params), experts, theta=draws)

    m = experts.size
    return Spread(
        _limits({"n_params": best.n_params, "tokens": best.tokens, "loss": best.loss, "usd_per_mtok": best_usd}, m),
        _limits(
            {
                "n_params": small.n_params,
                "tokens": small.tokens,
                "loss": small.loss,
                "usd_per_mtok": small_usd,
                "size_ratio": small.n_params / best.n_params,
                "cost_ratio": small_usd / base_usd,
            },
            m,
        ),
        _limits({"n_params": within.n_params, "loss": within.loss, "loss_gain": base_loss - within.loss}, m),
        _share_of_least(small_usd, allowed),
    )


def lifetime_spread(found: LifetimeCost, allowed: FloatArray) -> tuple[list[Limits], FloatArray]:
    """Intervals of lifetime models (k, m), and the share of draws in which each allowed expert count has the lowest total."""
    figures = {
        "n_params": found.n_params,
        "tokens": found.tokens,
        "loss": found.loss,
        "training_flops": found.training_flops,
        "training_usd": found.training_usd,
        "serving_usd": found.serving_usd,
        "total_usd": found.total_usd,
    }
    return _limits(figures, allowed.size), _share_of_least(found.total_usd, allowed)


def share_of_lowest_loss(found: LifetimeCost, allowed: FloatArray) -> FloatArray:
    """The share of draws in which each allowed expert count has the lowest loss, (m,)."""
    return _share_of_least(found.loss, allowed)


def _share_of_least(values: FloatArray, allowed: FloatArray) -> FloatArray:
    """The share of rows of (k, m) values in which each allowed column is the least; rows without a number count for none."""
    known = np.where(np.isfinite(values) & (allowed > 0), values, np.inf)
    least = np.where(np.isfinite(known.min(axis=1)), known.argmin(axis=1), -1)
    return np.array([float(np.mean(least == j)) for j in range(allowed.size)])
