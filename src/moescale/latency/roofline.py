"""Analytic iteration latency: a kernel takes its memory time or its arithmetic time, whichever is longer."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import ClassVar

import numpy as np

from moescale.hardware.gpus import Gpu
from moescale.latency import (
    ALL_EXPERTS,
    ALL_EXPERTS_GROUPED,
    EXACT,
    FUSED,
    LatencySource,
    Pass,
    check_moe_execution,
    local_experts,
    network,
)
from moescale.latency.roofline_constants import RooflineConstants, constants_of, narrow_peak
from moescale.models.architecture import UNQUANTISED_BYTES, Architecture, some
from moescale.models.operations import Attention, Indexer, Operation, Product, State, operations
from moescale.models.parameters import STATE_FLOPS, expected_distinct_experts, share_taken
from moescale.typing import FloatArray, Real

ACTIVATION_BYTES = 2.0  # bf16 activations, also where weights are fp8
# Parts that are priced in the format of the weights whatever a checkpoint's `quantised` says.
NEVER_SHARED = ("states", "indexer", "expert_projection")
# Of peak arithmetic that prompts reach in gated delta nets, counting STATE_FLOPS: geometric mean over H100, H200, B200,
# GB200 and L40S of vLLM 0.24's kernels in aiconfigurator-core 0.12.0, 64 heads, one prompt of 8,192 tokens (0.03 to 0.09).
STATE_COMPUTE_EFFICIENCY = 0.056


@dataclass(frozen=True)
class Roofline(LatencySource):
    """Roofline of a tensor-parallel model on one kind of GPU, for every shape and every real-valued size.

    A layer's kernels are added up: each takes bytes / bandwidth or FLOPs / peak, both times an efficiency, and somewhat
    more near the ridge. Decode reads the experts that the batch's tokens are expected to meet (uniform routing), and
    the cache. Expert parallelism keeps the two all-reduces of a layer, as every GPU holds the tokens. A pass takes the
    longer of its kernels and of the host. Left out: unequal load of the experts of one GPU, and padding to tiles and
    waves.
    """

    name = "roofline"
    takes_none: ClassVar[bool] = True

    gpu: Gpu
    weight_bytes_per_param: float = 2.0
    kv_bytes_per_element: float = 2.0
    constants: RooflineConstants | None = None  # None: those of this GPU
    moe_execution: str = FUSED  # a name of MOE_EXECUTION
    weights: str | None = None  # name of the number format of the weights; None: the one with such bytes
    host_s: float | None = None  # seconds a pass takes on the host at least; None: those of the constants

    def __post_init__(self) -> None:
        check_moe_execution(self.moe_execution)

    def pass_s(self, model: Architecture, a: Pass) -> FloatArray:
        """Seconds of a pass: its operations, activations, messages and launches, or the host's."""
        whole, a, constants = a, a.busiest_rank, self._constants
        gpus, all_gpus = np.asarray(a.gpus, dtype=np.float64), np.asarray(whole.gpus, dtype=np.float64)
        if self.moe_execution == ALL_EXPERTS_GROUPED:
            model = replace(model, top_k=model.n_experts)
        looped = self.moe_execution == ALL_EXPERTS
        experts = (1.0, None) if looped else (all_gpus, a.expert_parallel)
        total_s: Real = 0.0
        weights: dict[float, Real] = {}  # of products by what share of them is quantised, which all see the same tokens
        expert: Real = 0.0  # weights of one routed expert on a GPU, of all layers
        for op in operations(model, gpus, expert_gpus=experts[0], expert_parallel=experts[1]):
            if not isinstance(op, Product):
                total_s = total_s + self.operation_s(op, a)
            elif op.part == "experts":
                expert = expert + op.times * (op.n * op.k)
            elif op.part == "lm_head":
                total_s = total_s + op.params * self._weight_s(self._share(model, op.part), a.requests)
            elif op.part != "router":  # its time is in per_moe_layer_overhead_s
                share = self._share(model, op.part)
                weights[share] = weights.get(share, 0.0) + op.params
        for share, params in weights.items():
            total_s = total_s + params * self._weight_s(share, a.tokens)
        launches_s = model.n_layers * constants.per_layer_overhead_s
        met = model  # as activations are moved
        if some(model.n_moe_layers):
            launches_s = launches_s + model.n_moe_layers * constants.per_moe_layer_overhead_s
            if looped:  # dense products of all whole experts of a GPU, each with as many launches as a dense layer
                local = np.where(np.asarray(model.n_moe_layers) > 0, local_experts(model, all_gpus), 0.0)
                total_s = total_s + expert * local * self._weight_s(self._share(model, "experts"), whole.tokens)
                launches_s = launches_s + model.n_moe_layers * local * constants.per_layer_overhead_s
                met = replace(model, top_k=local, d_expert=model.d_expert * all_gpus)
            else:
                distinct, met_tokens = _busiest(model, whole.tokens, a.expert_parallel)
                share = self._share(model, "experts")
                total_s = total_s + expert * self._weight_s(share, met_tokens, distinct, of_experts=True)
        if some(model.kv_lora_rank):
            latent = np.where(np.asarray(model.kv_lora_rank) > 0, model.n_layers - model.n_linear_layers, 0.0)
            launches_s = launches_s + latent * constants.per_latent_layer_overhead_s
        total_s = total_s + self._moved_s(met, whole, a) + launches_s
        if np.any(all_gpus > self.gpu.gpus_per_server):
            total_s = total_s + self._network_s(model, whole, a)
        return np.maximum(total_s, constants.per_iteration_overhead_s if self.host_s is None else self.host_s)

    def operation_s(self, op: Operation, a: Pass) -> Real:
        """Seconds of one operation but the routed experts, in all layers."""
        if isinstance(op, Product):
            return op.params * self._weight_s(1.0, a.tokens)
        if isinstance(op, Attention):
            return self._attention_s(op.with_chosen_window(), a)
        byte_s, decoded = self._byte_s(self._constants.cache_memory_efficiency), np.asarray(a.decoded)
        prompts, prompt_tokens = np.asarray(0.0 if a.prompts is None else a.prompts), np.asarray(a.prompt_tokens)
        if isinstance(op, State):  # a decoded token reads and writes the state of its request; a prompt writes it once
            state = op.layers * op.elements
            flop_s = STATE_FLOPS / (self.gpu.bf16_flops_per_s * STATE_COMPUTE_EFFICIENCY)
            moved_s = state * op.element_bytes * byte_s * (2.0 * decoded + prompts)
            return moved_s + state * flop_s * (prompts * prompt_tokens)
        if isinstance(op, Indexer):  # every GPU does the same, with all heads, in 8 bits
            pairs = decoded * a.context_tokens + 0.5 * prompts * np.square(prompt_tokens)
            peak = self.gpu.fp8_flops_per_s or self.gpu.bf16_flops_per_s
            multiply_s = 2.0 * op.heads * pairs / (peak * self._constants.attention_compute_efficiency)
            return op.layers * op.head_dim * np.maximum(decoded * a.context_tokens * byte_s, multiply_s)
        return 0.0

    @functools.cached_property
    def _constants(self) -> RooflineConstants:
        if self.constants is not None:
            return self.constants
        return constants_of(self.gpu, self.weight_bytes_per_param, self.weights)

    def _byte_s(self, efficiency: float) -> float:
        return 1.0 / (self.gpu.memory_bandwidth_bytes_per_s * efficiency)

    def _attention_s(self, op: Attention, a: Pass) -> Real:
        """Seconds of tokens that read the whole cache once, and of prompts, which attend to themselves and to a cached prefix."""
        flop_s = 1.0 / (self.gpu.bf16_flops_per_s * self._constants.attention_compute_efficiency)
        element_s = self.kv_bytes_per_element * self._byte_s(self._constants.cache_memory_efficiency)
        total_s, token_s = 0.0, op.cached_elements * element_s
        if a.batch is not None:
            multiply_s = op.heads * (2.0 * op.decode_channels * flop_s) * a.query_tokens
            total_s = np.maximum(multiply_s, token_s) * (op.held(a.context_tokens) * a.batch)
        if a.prompts is None:
            return total_s
        new, prefix = np.asarray(a.prompt_tokens, dtype=np.float64), np.asarray(a.prefix_tokens, dtype=np.float64)
        pair_s, whole = 2.0 * op.heads * (op.head_dim + op.value_dim) * flop_s, prefix + new
        # Causal: a token meets half of its prompt, once for the scores and once for the values, 2 FLOPs a channel.
        pairs = new * (prefix + new / 2.0)
        one_s = (op.layers - op.window_layers) * np.maximum(pair_s * pairs, token_s * whole)
        if some(op.window_layers):
            # As many pairs as the whole has without those of the prefix; T w - w^2 / 2 of a prompt of T beyond w.
            pairs = causal_pairs(whole, op.window) - causal_pairs(prefix, op.window)
            windowed_s = np.maximum(pair_s * pairs, token_s * np.minimum(whole, op.window + new))
            one_s = one_s + op.window_layers * windowed_s
        launch_s = op.layers * self._constants.per_prompt_layer_overhead_s * (np.asarray(a.prompts) > 0.0)
        return total_s + one_s * a.prompts + launch_s

    def _share(self, model: Architecture, part: str) -> float:
        """What of a part has the format of the weights; all where that has 16 bits, as nothing is quantised then."""
        if self.weight_bytes_per_param >= UNQUANTISED_BYTES or part in NEVER_SHARED:
            return 1.0
        return share_taken(model.quantised, part)

    def _weight_s(self, quantised: float, tokens: Real, read: Real = 1.0, *, of_experts: bool = False) -> Real:
        """Seconds of one weight, of which a share has the weights' format and the rest bf16, read so often and multiplied with so many tokens."""
        constants = self._constants
        memory, compute = constants.memory_efficiency, constants.gemm_compute_efficiency
        if of_experts:
            memory, compute = constants.expert_memory_efficiency, constants.moe_compute_efficiency
        bf16, total_s = self.gpu.bf16_flops_per_s, 0.0
        own_peak = narrow_peak(self.gpu, self.weight_bytes_per_param, self.weights) or bf16
        formats = ((quantised, self.weight_bytes_per_param, own_peak), (1.0 - quantised, UNQUANTISED_BYTES, bf16))
        for share, weight_bytes, peak in formats:
            if share > 0.0:
                read_s, multiply_s = read * (weight_bytes * self._byte_s(memory)), 2.0 / (peak * compute) * tokens
                total_s = total_s + share * _ridge(read_s, multiply_s, constants.ridge_softness)
        return total_s

    def _moved_s(self, model: Architecture, whole: Pass, rank: Pass) -> Real:
        """Ring all-reduces, two a layer, and the activations; to gather all tokens and scatter their sums stands for the second one."""
        constants, rank_gpus, gpus = self._constants, *(np.asarray(a.gpus, dtype=np.float64) for a in (rank, whole))
        exchanged, split = 0.0, 1.0
        if whole is not rank:
            spread = np.asarray(whole.attention_dp, dtype=np.float64) > 1.0
            exchanged = np.where(spread, model.n_moe_layers, 0.0)
            split = np.where(spread, np.minimum(np.asarray(whole.expert_parallel, dtype=np.float64), gpus), 1.0)
        reduced, (sent_s, start_s) = _reductions(model) - exchanged, self._message_s(rank_gpus)
        total_s = reduced * (model.d_model * sent_s * rank.tokens + start_s * (rank_gpus > 1.0))
        if whole is not rank:
            sent_s, start_s = self._message_s(gpus)
            total_s = total_s + exchanged * (model.d_model * sent_s * whole.tokens + start_s)
        if constants.activation_traffic > 0.0:
            pairs, width = whole.tokens * (model.top_k / split), model.d_expert * split / gpus
            routed = model.n_moe_layers * pairs * (2.0 * model.d_model + 2.0 * model.ffn_matrices * width)
            moved = ACTIVATION_BYTES * (_activations(model, rank_gpus) * rank.tokens + routed)
            total_s = total_s + constants.activation_traffic * self._byte_s(constants.memory_efficiency) * moved
        return total_s

    def _message_s(self, count: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Seconds of an all-reduce over so many GPUs: for one activation of one token, and of a message without bytes."""
        constants, further = self._constants, np.maximum(count - 2.0, 0.0)
        sent = (
            2.0 / constants.interconnect_efficiency * (1.0 - 1.0 / count) + constants.interconnect_contention * further
        )
        start_s = constants.allreduce_latency_s + constants.allreduce_latency_per_gpu_s * further
        return ACTIVATION_BYTES / self.gpu.interconnect_bytes_per_s * sent, start_s

    def _network_s(self, model: Architecture, whole: Pass, rank: Pass) -> FloatArray:
        """What the network adds where a group, or all of them, are more GPUs than a server holds."""
        row = ACTIVATION_BYTES * np.asarray(model.d_model, dtype=np.float64)
        exchanged = np.where(np.asarray(whole.attention_dp) > 1.0, model.n_moe_layers, 0.0)
        reduced_s = network.all_reduce_s(self.gpu, rank.gpus, row * rank.tokens)
        # Each token alone to the GPUs of its whole experts, or all of them to all where experts are split.
        own = np.asarray(rank.tokens, dtype=np.float64) / rank.gpus
        sent_s = 2.0 * network.exchange_s(self.gpu, whole.gpus, own * model.top_k * row)
        all_s = network.all_reduce_s(self.gpu, whole.gpus, row * whole.tokens)
        held_whole = np.asarray(whole.expert_parallel, dtype=np.float64) >= whole.gpus
        exchanged_s = np.where(held_whole, np.minimum(sent_s, all_s), all_s)
        return np.asarray((_reductions(model) - exchanged) * reduced_s + exchanged * exchanged_s)


def causal_pairs(length: Real, window: Real = math.inf) -> FloatArray:
    """Pairs of tokens of so long a prompt, in which a token meets half of it, or of a window."""
    met = np.minimum(length, window)
    return met * (np.asarray(length, dtype=np.float64) - met / 2.0)


def _reductions(model: Architecture) -> Real:
    """All-reduces of a pass within a group of GPUs: after attention, and after the FFN where a layer has one."""
    return 2.0 * model.n_layers - model.n_layers_without_ffn


def _ridge(read_s: Real, multiply_s: Real, softness: float) -> Real:
    """The longer of two times where softness is 0, their sum where it is 1, a smooth maximum between; arguments broadcast."""
    longer = np.maximum(read_s, multiply_s)
    if softness == 0.0:
        return longer
    part = np.minimum(read_s, multiply_s) / np.maximum(longer, np.finfo(np.float64).tiny)
    return longer * (1.0 + part ** (1.0 / softness)) ** softness


def _activations(model: Architecture, gpus: FloatArray) -> Real:
    """What one token moves on one GPU but in the routed experts, all layers: norms, and both sides of every product."""
    d_model, gated = model.d_model, 2.0 * model.ffn_matrices
    attention = 6.0 * d_model + 2.0 * (model.n_heads * model.head_dim) / gpus  # its norm moves 4 d_model
    norms = 4.0 * d_model * (model.n_layers - model.n_layers_without_ffn)  # before the FFN
    dense = model.n_layers - model.n_moe_layers - model.n_layers_without_ffn
    dense = dense * (2.0 * d_model + gated * model.d_ffn / gpus)
    return model.n_layers * attention + norms + dense + model.n_moe_layers * (gated * model.d_shared_expert / gpus)


def _busiest(model: Architecture, tokens: Real, expert_parallel: Real) -> tuple[Real, Real]:
    """Distinct experts, and tokens they multiply, of the busiest of `expert_parallel` GPUs that hold whole experts.

    Uniform routing without replacement: the largest of n numbers of tokens lies on average by the expected maximum of n
    normal variables times sqrt(mean (E - K) / (E - 1)) above the mean, and so are the distinct experts taken to.
    Simulated routing (8 to 256 experts, 4 and 8 GPUs) agrees within 10%.
    """
    distinct = expected_distinct_experts(model.n_experts, model.top_k, tokens)
    met = model.top_k * np.asarray(tokens)
    ways = np.asarray(expert_parallel, dtype=np.float64)
    if np.all(ways == 1.0):
        return distinct, met
    experts = np.asarray(model.n_experts, dtype=np.float64)
    local = np.where(ways > 1.0, np.ceil(experts / ways * (1.0 - EXACT)), experts)
    share, scatter = local / experts, _expected_maximum(ways)
    mean, touched = met * share, distinct * share
    spread = np.sqrt(np.maximum(experts - model.top_k, 0.0) / np.maximum(experts - 1.0, 1.0))
    most = np.minimum(local, model.top_k) * np.asarray(tokens)
    busiest = np.minimum(np.maximum(mean + scatter * spread * np.sqrt(mean), np.minimum(met, 1.0)), most)
    unmet = np.maximum(1.0 - distinct / experts, 0.0)
    busiest_touched = np.maximum(touched + scatter * np.sqrt(touched * unmet), np.minimum(met, 1.0))
    return np.minimum(np.minimum(busiest_touched, local), busiest), busiest


def _expected_maximum(count: FloatArray) -> FloatArray:
    """Expected largest of `count` standard normal variables, 0 for one, within 5%; source: G. Blom, Statistical Estimates
    and Transformed Beta-Variables, 1958."""
    each, where = np.unique(count, return_inverse=True)
    at = [0.0 if n <= 1.0 else NormalDist().inv_cdf((n - 0.375) / (n + 0.25)) for n in each]
    return np.asarray(at)[where].reshape(np.shape(count))
