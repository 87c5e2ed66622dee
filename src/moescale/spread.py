"""Intervals of a plan: the same allocations under every one of a law's draws."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from moescale.allocation import Allocation, Budget, at_size, loss_optimal, smallest_at_loss
from moescale.architecture import FloatArray
from moescale.candidates import Costs
from moescale.laws.law import Law, interval

CURVE_SIZES = 128  # of the cost curve that intervals are read from
CURVE_RANGE = (1e7, 1e11)  # dense-equivalent parameters

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
    law: Law, budget: Budget, costs: Costs, experts: FloatArray, base: int, draws: FloatArray, allowed: FloatArray
) -> Spread:
    """Answer the plan's questions once for each of the law's draws (k, p), the base being expert count number `base`.

    `allowed` (m,) tells which expert counts may be recommended. Costs come from one curve for each expert count, because
    cost does not depend on the law; between its points they are interpolated in logarithms.
    """
    ln_n = np.linspace(math.log(CURVE_RANGE[0]), math.log(CURVE_RANGE[1]), CURVE_SIZES)
    shape = (CURVE_SIZES, experts.size)
    usd = costs.usd_per_mtok(np.broadcast_to(np.exp(ln_n)[:, None], shape), np.broadcast_to(experts, shape))
    served = np.isfinite(usd)
    curve = np.log(np.where(served, usd, 1.0))

    def cost_at(n_params: FloatArray) -> FloatArray:
        out = np.full(n_params.shape, np.nan)
        for j in range(experts.size):
            ok = served[:, j]
            known = np.isfinite(n_params[:, j])
            if ok.any():
                out[known, j] = np.interp(np.log(n_params[known, j]), ln_n[ok], curve[ok, j], right=np.nan)
        return np.exp(out)

    def size_at(usd_limit: FloatArray) -> FloatArray:
        out = np.full((usd_limit.size, experts.size), np.nan)
        known = np.isfinite(usd_limit)
        for j in range(experts.size):
            ok = served[:, j]
            if ok.any():
                rising = np.maximum.accumulate(curve[ok, j])
                out[known, j] = np.interp(np.log(usd_limit[known]), rising, ln_n[ok], left=np.nan)
        return np.exp(out)

    best: Allocation = loss_optimal(law, budget, experts, theta=draws)
    best_usd = cost_at(best.n_params)
    base_loss, base_usd = best.loss[:, [base]], best_usd[:, [base]]
    small = smallest_at_loss(law, budget, experts, base_loss, theta=draws, optimal=best)
    small_usd = cost_at(small.n_params)
    within = at_size(law, budget, np.fmin(size_at(base_usd[:, 0]), best.n_params), experts, theta=draws)

    payable = np.where(np.isfinite(small_usd) & (allowed > 0), small_usd, np.inf)
    cheapest = np.where(np.isfinite(payable.min(axis=1)), payable.argmin(axis=1), -1)
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
        np.array([float(np.mean(cheapest == j)) for j in range(m)]),
    )
