"""Intervals of a plan: the same allocations under every one of a law's draws."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moescale.planning.allocation import at_size, loss_optimal, smallest_at_loss
from moescale.planning.candidate import Costs, Limits
from moescale.planning.search import Search
from moescale.planning.total_cost import LifetimeCost
from moescale.scaling_laws.law import interval
from moescale.typing import FloatArray

CURVE_SIZES = 128  # of the cost curve that intervals are read from
WIDEST_SIZES = 512
KNOWN = 0.9  # of the draws, as many as an interval holds


@dataclass(frozen=True, slots=True)
class Spread:
    """A plan's questions answered under each of k of the law's draws, for m expert counts.

    `cheapest_share` is the share of draws in which that expert count is the cheapest at the base's loss.
    """

    draws: FloatArray  # (k, p)
    sampled: SampledCosts
    base_losses: FloatArray  # (k,)
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
    curve = _sampled(costs, experts, (1e7, 1e11), CURVE_SIZES)
    if curve.served[0].all() and curve.served.any(axis=1).mean() > 0.5:
        return curve
    wide = _sampled(costs, experts, (1e4, 1e13), WIDEST_SIZES)  # steps of 4%
    known = np.flatnonzero(wide.served.any(axis=1))
    if known.size == 0:
        return curve
    ends = wide.ln_n[[max(known[0] - 1, 0), min(known[-1] + 1, WIDEST_SIZES - 1)]]
    return _sampled(costs, experts, (math.exp(ends[0]), math.exp(ends[1])), CURVE_SIZES)


def _sampled(costs: Costs, experts: FloatArray, sizes: tuple[float, float], count: int) -> SampledCosts:
    """Curves over dense-equivalent sizes between two."""
    ln_n = np.linspace(math.log(sizes[0]), math.log(sizes[1]), count)
    shape = (count, experts.size)
    usd = costs.usd_per_mtok(np.broadcast_to(np.exp(ln_n)[:, None], shape), np.broadcast_to(experts, shape))
    served = np.isfinite(usd)
    return SampledCosts(ln_n, np.log(np.where(served, usd, 1.0)), served)


def spread_of(search: Search) -> Spread | None:
    """The plan's questions once for each of the law's draws (k, p); None without draws.

    Costs come from one curve for each expert count, because cost does not depend on the law.
    """
    law, question, experts = search.law, search.question, search.best.experts
    draws = law.draws if question.draws is None else law.draws[: question.draws]
    if not len(draws):
        return None
    budget, base = question.budget, question.experts.index(question.match_experts)
    sampled = sample_costs(search.costs, experts)
    best = loss_optimal(law, budget, experts, theta=draws)
    best_usd = sampled.usd_per_mtok(best.n_params)
    base_loss, base_usd = best.loss[:, [base]], best_usd[:, [base]]
    small = smallest_at_loss(law, budget, experts, base_loss, theta=draws, optimal=best)
    small_usd = sampled.usd_per_mtok(small.n_params)
    within = at_size(law, budget, np.fmin(sampled.size_within(base_usd[:, 0]), best.n_params), experts, theta=draws)
    of_small = {"n_params": small.n_params, "tokens": small.tokens, "loss": small.loss, "usd_per_mtok": small_usd}
    of_small |= {"size_ratio": small.n_params / best.n_params, "cost_ratio": small_usd / base_usd}
    return Spread(
        draws,
        sampled,
        base_loss[:, 0],
        _limits({"n_params": best.n_params, "tokens": best.tokens, "loss": best.loss, "usd_per_mtok": best_usd}),
        _limits(of_small),
        _limits({"n_params": within.n_params, "loss": within.loss, "loss_gain": base_loss - within.loss}),
        share_of_least(small_usd, law.allows(experts)),
    )


def lifetime_limits(found: LifetimeCost) -> list[Limits]:
    """Intervals of lifetime models (k, m)."""
    names = ("n_params", "tokens", "loss", "training_flops", "training_usd", "serving_usd", "total_usd")
    return _limits({name: getattr(found, name) for name in names})


def share_of_least(values: FloatArray, allowed: npt.NDArray[np.bool_]) -> FloatArray:
    """The share of rows of (k, m) values in which each allowed column is the least; rows without a number count for none."""
    known = np.where(np.isfinite(values) & allowed, values, np.inf)
    least = np.where(np.isfinite(known.min(axis=1)), known.argmin(axis=1), -1)
    return np.array([float(np.mean(least == j)) for j in range(allowed.size)])


def _limits(figures: dict[str, FloatArray]) -> list[Limits]:
    """Intervals of named figures (k, m) of each of m models; without those that fewer than KNOWN of the draws have.

    An interval of the others alone could leave out the answer: half of an ensemble may know no such model.
    """
    found: list[Limits] = [{} for _ in range(next(iter(figures.values())).shape[1])]
    for name, values in figures.items():
        known = np.flatnonzero(np.isfinite(values).mean(axis=0) >= KNOWN)
        if known.size == 0:
            continue
        finite = np.where(np.isfinite(values[:, known]), values[:, known], np.nan)
        for j, low, high in zip(known, *interval(finite), strict=True):
            found[j][name] = (float(low), float(high))
    return found
