"""What claims are evaluated in: a law with one or many coefficient sets, and serving costs, exact or sampled."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from moescale.models.family import find_family
from moescale.planning.allocation import Allocation, Budget, largest_within_cost, loss_optimal, smallest_at_loss
from moescale.planning.candidate import Costs
from moescale.planning.sampled_costs import SampledCosts
from moescale.planning.total_cost import flops_optimal
from moescale.reproduction.claims import sweep_experts
from moescale.scaling_laws.ensemble import restate
from moescale.scaling_laws.law import Law
from moescale.typing import FloatArray, Real

SMALL = 1e8  # parameters: what costs nothing below has no kernels
once = lru_cache(maxsize=4096)  # answers of the worlds in use; more than one evaluation asks for


@dataclass(frozen=True, eq=False)
class World:
    """A law, the coefficient sets (k, p) to answer with, and what serving costs; models are kept once computed.

    `sampled` are costs on curves, one for each of sweep_experts(): for many coefficient sets at once. Without it every model is
    priced by itself.
    """

    law: Law
    theta: FloatArray
    costs: Costs
    sampled: SampledCosts | None = None

    @once
    def optimum(self, budget_flops: float, experts: float) -> Allocation:
        """The loss-optimal model of one expert count, (k, 1)."""
        return loss_optimal(self.law, Budget(budget_flops), experts, theta=self.theta)

    @once
    def at_base_loss(self, budget_flops: float, experts: float, base_experts: float) -> Allocation:
        """Algorithm 1: the smallest model of `experts` at the loss of the base's optimum, (k, 1)."""
        base, own = self.optimum(budget_flops, base_experts), self.optimum(budget_flops, experts)
        return smallest_at_loss(self.law, Budget(budget_flops), experts, base.loss, theta=self.theta, optimal=own)

    @once
    def optimal_at_base_loss(self, budget_flops: float, experts: float, base_experts: float) -> Allocation:
        """The model of `experts` that reaches the loss of the base's optimum with the fewest FLOPs, (k, 1)."""
        target = self.optimum(budget_flops, base_experts).loss
        found = flops_optimal(self.law, experts, target, 0.0, theta=self.theta)
        return Allocation(found.experts, found.n_params, found.tokens, found.loss)

    def _curves(self, sampled: SampledCosts, experts: FloatArray) -> SampledCosts:
        at = np.searchsorted(sweep_experts(), experts)
        return replace(sampled, ln_usd=sampled.ln_usd[:, at], served=sampled.served[:, at])

    def usd(self, n_params: FloatArray, experts: Real) -> FloatArray:
        """Dollars per million output tokens at sizes (k, m) of expert counts (m,), or of any shape of one; NaN where nothing serves."""
        if self.sampled is not None:
            if isinstance(experts, np.ndarray):
                return self._curves(self.sampled, experts).usd_per_mtok(n_params)
            return self.sampled.usd_of(sweep_experts().index(experts), n_params)
        known = np.isfinite(n_params)
        usd = self.costs.usd_per_mtok(np.where(known, n_params, 1e9), np.broadcast_to(experts, n_params.shape))
        return np.where(known & np.isfinite(usd), usd, np.nan)

    def size_within(self, usd_limit: FloatArray, experts: Real) -> FloatArray:
        """The largest sizes (k, m) of expert counts (m,) within limits (k,), NaN where there is none."""
        e = np.atleast_1d(experts)
        if self.sampled is not None:
            return self._curves(self.sampled, e).size_within(usd_limit)

        def usd(n_params: FloatArray, experts: FloatArray) -> FloatArray:
            found = self.costs.usd_per_mtok(n_params, experts)
            # The smallest sizes may have no answer: their batches lie beyond every kernel table. They are not too dear.
            return np.where(np.isfinite(found) | (n_params > SMALL), found, 0.0)

        sizes = largest_within_cost(np.broadcast_to(e, (usd_limit.size, e.size)), usd_limit[:, None], usd)
        return np.where(np.isfinite(self.usd(sizes, e)), sizes, np.nan)

    def size_at_base_cost(self, budget_flops: float, experts: float, base_experts: float) -> FloatArray:
        """The size of `experts` that costs what the base's optimum costs, (k, 1); also beyond its own optimum."""
        # Claims ask for several counts one after the other: all at once take little longer than one.
        counts = sweep_experts() if experts in sweep_experts() else (experts,)
        return self._sizes_at_base_cost(budget_flops, counts, base_experts)[:, [counts.index(experts)]]

    @once
    def _sizes_at_base_cost(self, budget_flops: float, counts: tuple[float, ...], base_experts: float) -> FloatArray:
        limit = self.usd(self.optimum(budget_flops, base_experts).n_params, base_experts)[:, 0]
        return self.size_within(limit, np.array(counts))


def of_the_papers_models(law: Law) -> Law:
    """The law with N and E as the paper counts them, so that a claim is about the same models under every law."""
    return restate(law, replace(find_family("yun2024"), convention=law.family.convention))


def world_of(law: Law, costs: Costs) -> World:
    """The law's own coefficients, and the costs of its own models, as wide for their depth as the costs say."""
    family = replace(law.family, d_model_per_layer=costs.family.d_model_per_layer)
    return World(law, law.theta[None], replace(costs, family=family))


def world_of_draws(world: World) -> World:
    """The same with every draw of the law, its costs sampled."""
    n, e = np.meshgrid(np.geomspace(3e7, 1e11, 512), sweep_experts(), indexing="ij")
    usd = world.costs.usd_per_mtok(n, e)
    served = np.isfinite(usd)
    sampled = SampledCosts(np.log(n[:, 0]), np.log(np.where(served, usd, 1.0)), served)
    return World(world.law, world.law.draws, world.costs, sampled)
