"""Serving costs on a grid of sizes: what searches that price millions of models read."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from moescale.latency import LatencySource
from moescale.models.family import ModelFamily
from moescale.planning.candidate import Costs
from moescale.serving.deployment import Deployment
from moescale.typing import FloatArray

CURVE_SIZES = 64  # of the cost curve of an expert count: expected regrets are within 0.001 of those by 512
WIDEST_SIZES = 512


@dataclass(frozen=True, slots=True)
class SampledCosts:
    """Serving costs on a grid of sizes, one curve for each of m expert counts, interpolated in logarithms; NaN where nothing serves and beyond the grid."""

    ln_n: FloatArray  # (s,)
    ln_usd: FloatArray  # (s, m)
    served: npt.NDArray[np.bool_]  # (s, m)

    def usd_per_mtok(self, n_params: FloatArray) -> FloatArray:
        """Dollars per million tokens at sizes (..., m)."""
        return np.stack([self.usd_of(j, n_params[..., j]) for j in range(n_params.shape[-1])], axis=-1)

    def usd_of(self, column: int, n_params: FloatArray) -> FloatArray:
        """Dollars per million tokens at sizes of any shape of one expert count; NaN sizes stay NaN."""
        ok = self.served[:, column]
        if not ok.any():
            return np.full(n_params.shape, np.nan)
        return np.exp(np.interp(np.log(n_params), self.ln_n[ok], self.ln_usd[ok, column], left=np.nan, right=np.nan))

    def next_to_largest(self, n_params: FloatArray) -> npt.NDArray[np.bool_]:
        """Which sizes (m,) lie less than two steps below the largest sample that is served."""
        largest = np.where(self.served, self.ln_n[:, None], -np.inf).max(axis=0)
        with np.errstate(invalid="ignore"):
            return np.log(n_params) > largest - 2.0 * (self.ln_n[1] - self.ln_n[0])

    def size_within(self, usd_limit: FloatArray) -> FloatArray:
        """The largest size of each expert count within limits (k,), shape (k, m)."""
        ln_limit = np.log(np.where(np.isfinite(usd_limit), usd_limit, np.nan))
        out = np.full((usd_limit.size, self.served.shape[1]), np.nan)
        for j in np.flatnonzero(self.served.any(axis=0)):
            ok = self.served[:, j]
            out[:, j] = np.interp(ln_limit, np.maximum.accumulate(self.ln_usd[ok, j]), self.ln_n[ok], left=np.nan)
        return np.exp(out)


USUAL = (1e7, 1e11)  # dense-equivalent sizes


def sampled_costs(
    costs: Costs, experts: FloatArray, sizes: tuple[float, float] = USUAL, count: int = CURVE_SIZES
) -> SampledCosts:
    """The serving costs of expert counts (m,) at so many sizes between two.

    They depend on no law and no budget, so that plans for one server share them. A source that does not answer for the smallest
    of the usual sizes or for most of them, such as a table of measured latencies, is sampled between the ends of what it knows.
    """
    of_server = (costs.family, costs.latency, costs.deployment, costs.kv_heads, costs.vocab_size, costs.disaggregated)
    return _sampled_on(of_server, tuple(experts.tolist()), sizes, count)


@lru_cache(maxsize=32)
def _sampled_on(
    of_server: tuple[ModelFamily, LatencySource, Deployment, float | None, int | None, bool],
    experts: tuple[float, ...],
    sizes: tuple[float, float],
    count: int,
) -> SampledCosts:
    costs = Costs(*of_server)

    def sampled(ln_sizes: tuple[float, float], count: int) -> SampledCosts:
        ln_n = np.linspace(*ln_sizes, count)
        usd = costs.usd_per_mtok(np.repeat(np.exp(ln_n), len(experts)), np.tile(experts, count)).reshape(count, -1)
        served = np.isfinite(usd)
        return SampledCosts(ln_n, np.log(np.where(served, usd, 1.0)), served)

    curve = sampled((math.log(sizes[0]), math.log(sizes[1])), count)
    if curve.served[0].all() and curve.served.any(axis=1).mean() > 0.5:
        return curve
    wide = sampled((math.log(1e4), math.log(1e13)), WIDEST_SIZES)  # steps of 4%
    known = np.flatnonzero(wide.served.any(axis=1))
    if known.size == 0:
        return curve
    low, high = wide.ln_n[[max(known[0] - 1, 0), min(known[-1] + 1, WIDEST_SIZES - 1)]].tolist()
    return sampled((low, high), CURVE_SIZES)
