"""What claims are evaluated in: a law with one or many coefficient sets, and serving costs, exact or sampled."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from moescale.latency import LatencySource, Pass, PassSource, kernels_alone, local_experts, with_moe_execution
from moescale.models.architecture import Architecture
from moescale.models.family import find_family
from moescale.planning.allocation import Allocation, Budget, loss_optimal, smallest_at_loss
from moescale.planning.candidate import Costs
from moescale.planning.sampled_costs import SampledCosts
from moescale.planning.total_cost import flops_optimal
from moescale.reproduction.claims import Setting, sweep_experts
from moescale.scaling_laws.ensemble import restate
from moescale.scaling_laws.law import Law
from moescale.serving.deployment import Deployment
from moescale.serving.traffic import find_traffic
from moescale.typing import FloatArray, Real


class Pricing(Protocol):
    """Serving costs as claims need them, for expert counts (m,) and k coefficient sets."""

    def usd_per_mtok(self, n_params: FloatArray, experts: FloatArray) -> FloatArray:
        """Dollars per million output tokens at sizes (k, m), NaN where nothing serves."""
        ...

    def size_within(self, usd_limit: FloatArray, experts: FloatArray) -> FloatArray:
        """The largest sizes (k, m) within limits (k,), NaN where there is none."""
        ...


@dataclass(frozen=True)
class ExactPricing:
    """Every model priced by itself."""

    costs: Costs

    def usd_per_mtok(self, n_params: FloatArray, experts: FloatArray) -> FloatArray:
        """As in Pricing."""
        known = np.isfinite(n_params)
        usd = self.costs.usd_per_mtok(np.where(known, n_params, 1e9), np.broadcast_to(experts, n_params.shape))
        return np.where(known & np.isfinite(usd), usd, np.nan)

    def size_within(self, usd_limit: FloatArray, experts: FloatArray) -> FloatArray:
        """As in Pricing."""
        ln_n = np.log(np.geomspace(1e7, 1e12, 65))[:, None, None]
        cuts = np.linspace(0.0, 1.0, 17)[:, None, None]
        low = np.full((usd_limit.size, experts.size), np.nan)
        for _ in range(10):  # the first on all sizes, each later one divides the interval by 16: down to 1e-12
            sizes = np.broadcast_to(np.exp(ln_n), (len(ln_n), *low.shape))
            usd = self.costs.usd_per_mtok(sizes, np.broadcast_to(experts, sizes.shape))
            # The last size before the first that is too dear. The smallest sizes may have no answer at all: their batches
            # lie beyond every kernel table.
            dear = usd > np.where(np.isfinite(usd), usd_limit[:, None], np.inf)
            before = np.where(dear.any(axis=0), np.argmax(dear, axis=0) - 1, -1)[None]
            at, place = np.log(sizes), before.clip(min=0)
            found = (before >= 0) & np.isfinite(np.take_along_axis(usd, place, 0))
            low = np.where(found, np.take_along_axis(at, place, 0), np.nan)[0]
            high = np.take_along_axis(at, (place + 1).clip(max=len(ln_n) - 1), 0)[0]
            start = np.where(np.isnan(low), at[0], low)
            ln_n = start + np.where(np.isnan(low), 0.0, high - low) * cuts
        return np.exp(low)


@dataclass(frozen=True)
class SampledPricing:
    """Costs interpolated on curves, one for each of some expert counts: for many coefficient sets at once."""

    sampled: SampledCosts
    experts: FloatArray  # (s,) that were sampled

    def usd_per_mtok(self, n_params: FloatArray, experts: FloatArray) -> FloatArray:
        """As in Pricing."""
        return self._of(experts).usd_per_mtok(n_params)

    def size_within(self, usd_limit: FloatArray, experts: FloatArray) -> FloatArray:
        """As in Pricing."""
        return self._of(experts).size_within(usd_limit)

    @staticmethod
    def of(costs: Costs, experts: FloatArray) -> SampledPricing:
        """Curves of expert counts (s,), in rising order."""
        n = np.geomspace(3e7, 1e11, 512)
        shape = (n.size, experts.size)
        usd = costs.usd_per_mtok(np.broadcast_to(n[:, None], shape), np.broadcast_to(experts, shape))
        served = np.isfinite(usd)
        return SampledPricing(SampledCosts(np.log(n), np.log(np.where(served, usd, 1.0)), served), experts)

    def _of(self, experts: FloatArray) -> SampledCosts:
        at = np.searchsorted(self.experts, experts)
        return replace(self.sampled, ln_usd=self.sampled.ln_usd[:, at], served=self.sampled.served[:, at])


@dataclass(frozen=True, eq=False)
class World:
    """A law, the coefficient sets (k, p) to answer with, and what serving costs.

    Models are kept once computed: those that depend on the law alone also for worlds that replace the costs.
    """

    law: Law
    theta: FloatArray
    pricing: Pricing
    costs: Costs
    _known: dict[tuple[object, ...], Allocation] = field(default_factory=dict[tuple[object, ...], Allocation])
    _priced: dict[tuple[float, ...], FloatArray] = field(
        default_factory=dict[tuple[float, ...], FloatArray], init=False
    )

    def optimum(self, budget_flops: float, experts: float) -> Allocation:
        """The loss-optimal model of one expert count, (k, 1)."""
        key = ("optimum", budget_flops, experts)
        if key not in self._known:
            self._known[key] = loss_optimal(self.law, Budget(budget_flops), experts, theta=self.theta)
        return self._known[key]

    def at_base_loss(self, budget_flops: float, experts: float, base_experts: float) -> Allocation:
        """Algorithm 1: the smallest model of `experts` at the loss of the base's optimum, (k, 1)."""
        key = ("at base's loss", budget_flops, experts, base_experts)
        if key not in self._known:
            base, own = self.optimum(budget_flops, base_experts), self.optimum(budget_flops, experts)
            self._known[key] = smallest_at_loss(
                self.law, Budget(budget_flops), experts, base.loss, theta=self.theta, optimal=own
            )
        return self._known[key]

    def optimal_at_base_loss(self, budget_flops: float, experts: float, base_experts: float) -> Allocation:
        """The model of `experts` that reaches the loss of the base's optimum with the fewest FLOPs, (k, 1)."""
        key = ("fewest FLOPs", budget_flops, experts, base_experts)
        if key not in self._known:
            base = self.optimum(budget_flops, base_experts)
            found = flops_optimal(self.law, experts, base.loss, 0.0, theta=self.theta)
            self._known[key] = Allocation(found.experts, found.n_params, found.tokens, found.loss)
        return self._known[key]

    def usd(self, n_params: FloatArray, experts: float) -> FloatArray:
        """Dollars per million output tokens of sizes (k, 1)."""
        return self.pricing.usd_per_mtok(n_params, np.array([experts]))

    def size_at_base_cost(self, budget_flops: float, experts: float, base_experts: float) -> FloatArray:
        """The size of `experts` that costs what the base's optimum costs, (k, 1); also beyond its own optimum."""
        key = (budget_flops, experts, base_experts)
        if key not in self._priced:
            base = self.optimum(budget_flops, base_experts)
            limit = self.usd(base.n_params, base_experts)[:, 0]
            # Claims ask for several counts one after the other: all at once take little longer than one.
            asked = sweep_experts() if experts in sweep_experts() else (experts,)
            sizes = self.pricing.size_within(limit, np.array(asked))
            self._priced.update(((budget_flops, e, base_experts), sizes[:, [i]]) for i, e in enumerate(asked))
        return self._priced[key]


@dataclass(frozen=True)
class HostBound(PassSource):
    """A latency source with time on the host beside each pass: so much a pass, a sequence, and an expert of a layer.

    `per_sequence_s` is of decoding sequences; a prompt's pass does not pay it. `per_expert_s` is of each whole expert of
    an MoE layer that a GPU holds, whose kernels are launched one by one. Kernels wait for the host, as in servers that
    schedule, sample and launch synchronously.
    """

    kernels: LatencySource
    per_pass_s: Real
    per_sequence_s: Real
    per_expert_s: float = 0.0

    @property
    def name(self) -> str:
        """The name of the kernels' source."""
        return self.kernels.name

    def pass_s(self, model: Architecture, a: Pass) -> FloatArray:
        """As in PassSource."""
        host_s = np.asarray(self.per_pass_s, float)
        if self.per_expert_s:
            layers = np.asarray(model.n_moe_layers, float)
            host_s = host_s + self.per_expert_s * np.where(layers > 0, layers * local_experts(model, a.gpus), 0.0)
        source, prompts, split = self.kernels, a.prompts, {"expert_parallel": a.expert_parallel}
        if a.batch is None:
            return (
                source.prefill_s(model, a.gpus, 1.0 if prompts is None else prompts, a.prompt_tokens, **split) + host_s
            )
        host_s = host_s + self.per_sequence_s * np.asarray(a.batch, float)
        if prompts is None:
            return source.decode_s(model, a.gpus, a.batch, a.context_tokens, **split) + host_s
        return source.mixed_s(model, a.gpus, a.batch, a.context_tokens, prompts, a.prompt_tokens, **split) + host_s


def of_the_papers_models(law: Law) -> Law:
    """The law with N and E as the paper counts them, so that a claim is about the same models under every law."""
    return restate(law, replace(find_family("yun2024"), convention=law.family.convention))


def as_in_the_paper(deployment: Deployment) -> Deployment:
    """The same deployment as the paper has it: every GPU count up to the largest, and batches that fill the memory.

    Where the deployment does not state them, memory alone limits the batch and nothing is reserved.
    """
    every = tuple(range(1, deployment.max_gpus + 1))
    cap = math.inf if deployment.max_num_seqs is None else deployment.max_num_seqs
    reserve = 0.0 if deployment.reserve_bytes is None else deployment.reserve_bytes
    return replace(
        deployment, tensor_parallel_degrees=every, batching="largest", max_num_seqs=cap, reserve_bytes=reserve
    )


def costs_under(costs: Costs, setting: Setting) -> Costs:
    """The same costs under one setting of the sensitivity analysis."""
    latency, deployment = costs.latency, costs.deployment
    if setting.moe_execution is not None:
        latency = with_moe_execution(latency, setting.moe_execution)
    in_line = (setting.host_per_pass_s, setting.host_per_sequence_s)
    if any(seconds is not None for seconds in in_line):
        latency = kernels_alone(latency)
    host = [seconds or 0.0 for seconds in (*in_line, setting.host_per_expert_s)]
    if any(host):
        latency = HostBound(latency, *host)
    names = ("memory_fraction", "max_num_seqs", "scheduling")
    changes = {name: getattr(setting, name) for name in names if getattr(setting, name) is not None}
    if setting.memory_bytes_multiple is not None:
        gpu = deployment.gpu
        changes["gpu"] = replace(gpu, memory_bytes=gpu.memory_bytes * setting.memory_bytes_multiple)
    if setting.traffic is not None:
        traffic = find_traffic(setting.traffic)
        changes |= {"prompt_tokens": traffic.prompt_tokens, "output_tokens": traffic.output_tokens}
    return replace(costs, latency=latency, deployment=replace(deployment, **changes))
