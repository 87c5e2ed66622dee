"""Analytic iteration latency: a kernel takes its memory time or its arithmetic time, whichever is longer."""

from __future__ import annotations

import functools
from dataclasses import dataclass, fields, replace
from statistics import NormalDist

import numpy as np

from moescale import catalogue
from moescale.hardware.gpus import Gpu
from moescale.latency import (
    ALL_EXPERTS,
    ALL_EXPERTS_GROUPED,
    EXACT,
    FUSED,
    Pass,
    PassSource,
    check_moe_execution,
    local_experts,
    network,
)
from moescale.latency.mixed import (
    expert_width,
    has_mixers,
    index_cost,
    index_product,
    mixer_products,
    over_attention_groups,
)
from moescale.models.architecture import Architecture, Quantised, some
from moescale.models.flops import STATE_FLOPS, expected_distinct_experts
from moescale.models.mixers import attention_groups, state_elements
from moescale.models.parameters import attention_matrix_params
from moescale.typing import FloatArray, Real

ACTIVATION_BYTES = 2.0  # bf16 activations, also where weights are fp8
UNQUANTISED_BYTES = 2.0  # published fp8 and int4 checkpoints leave the LM head in bf16
LINKS = ("interconnect_efficiency", "interconnect_contention", "allreduce_latency_s", "allreduce_latency_per_gpu_s")
# Shares of the data sheet that NVIDIA's GPUs reach where an accelerator without tables has a share of its own, by the same
# benchmarks: up to 93% in large products, up to 90% in long copies (Ambati et al., arXiv 2510.27583, October 2025).
USUAL_ARITHMETIC_SHARE, USUAL_MEMORY_SHARE = 0.93, 0.90
ARITHMETIC = ("gemm_compute_efficiency", "moe_compute_efficiency", "attention_compute_efficiency")
MEMORY = ("memory_efficiency", "expert_memory_efficiency", "cache_memory_efficiency")
# Of peak arithmetic that prompts reach in gated delta nets, counting STATE_FLOPS: geometric mean over H100, H200, B200,
# GB200 and L40S of vLLM 0.24's kernels in aiconfigurator-core 0.12.0, 64 heads, one prompt of 8,192 tokens (0.03 to 0.09).
STATE_COMPUTE_EFFICIENCY = 0.056
# Bytes a weight, scales included, between which fp8 arithmetic is meant; int4 weights are multiplied in bf16.
FP8_BYTES = (0.75, 1.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflineConstants:
    """What the data sheet does not say; values and sources in catalogue/roofline.toml.

    With every efficiency 1 and all else 0 the GPU reaches its data sheet, and nothing but weights, cache, arithmetic and
    messages takes time.
    """

    memory_efficiency: float  # reached share of memory bandwidth, weights of dense matrix products and all activations
    expert_memory_efficiency: float  # the same, weights of experts
    cache_memory_efficiency: float  # the same, KV cache in decode attention
    gemm_compute_efficiency: float  # reached share of peak arithmetic, dense matrix products
    moe_compute_efficiency: float  # the same, expert matrix products
    attention_compute_efficiency: float  # the same, prefill attention
    # How far reading and arithmetic of one product add up near the ridge: (r^p + a^p)^(1/p) with p = 1 / softness.
    # 0: the longer of the two, 1: their sum.
    ridge_softness: float
    activation_traffic: float  # moved bytes of norms, activations and products, over those of _activation_bytes
    interconnect_efficiency: float  # reached share of interconnect bandwidth in an all-reduce
    interconnect_contention: float  # every GPU beyond two adds this share of a message's time: a bus that all share
    allreduce_latency_s: float  # of a message without bytes between two GPUs
    allreduce_latency_per_gpu_s: float  # what every further GPU adds to it
    per_layer_overhead_s: float  # kernel launches of one layer
    per_moe_layer_overhead_s: float  # what the router and the experts of a layer add
    per_latent_layer_overhead_s: float  # what the further products of latent attention add
    per_prompt_layer_overhead_s: float  # what a pass with prompts adds to a layer: rotary positions, filling the cache
    per_iteration_overhead_s: float  # scheduling and sampling on the CPU as the GPU works: the least that a pass takes


@functools.cache
def measured_constants() -> dict[str, RooflineConstants]:
    """The constants by measured system, such as h100_sxm and h100_sxm.fp8 (weights multiplied in fp8), and `default`.

    `default` is of GPUs whose kernels nobody tabulated: geometric means of the measured systems.
    Source: catalogue/roofline.toml, which `python scripts/calibrate_roofline.py` writes.
    """
    table = catalogue.read("roofline.toml")
    host = {name: float(entry["value"]) for name, entry in table["host"].items()}
    names = [f.name for f in fields(RooflineConstants) if f.name not in host]
    found: dict[str, RooflineConstants] = {}
    for system, entry in table["system"].items():
        found[system] = RooflineConstants(**{name: float(entry[name]) for name in names}, **host)
        fp8 = {name: float(value) for name, value in entry.get("fp8", {}).items()}
        found[f"{system}.fp8"] = replace(found[system], **fp8)
    return found


def constants_of(gpu: Gpu, weight_bytes_per_param: float = 2.0, weights: str | None = None) -> RooflineConstants:
    """The constants of a GPU with weights of so many bytes, those of its links included; else the default ones.

    Products in fp4, which nobody calibrated, are taken to reach the share of their peak that those in fp8 do.

    Where a GPU without tables is known to reach another share of its data sheet than NVIDIA's do by the same benchmark,
    the default efficiencies are less in that proportion; launches, activations and links stay as they are, but for
    measured_overheads.
    """
    fewer_bits = _multiplies_fp8(gpu, weight_bytes_per_param) or _multiplies_fp4(gpu, weights)
    known, suffix = measured_constants(), ".fp8" if fewer_bits else ""

    def named(name: str | None) -> RooflineConstants:
        return known[f"{name if name in known else 'default'}{suffix}"]

    links = named(gpu.silicon_link_system or gpu.silicon_system)
    found = replace(named(gpu.silicon_system), **{name: getattr(links, name) for name in LINKS})
    if gpu.silicon_system in known:
        return found
    ratios = {name: (gpu.arithmetic_share or USUAL_ARITHMETIC_SHARE) / USUAL_ARITHMETIC_SHARE for name in ARITHMETIC}
    ratios |= {name: (gpu.memory_share or USUAL_MEMORY_SHARE) / USUAL_MEMORY_SHARE for name in MEMORY}
    found = replace(found, **{name: min(ratio * getattr(found, name), 1.0) for name, ratio in ratios.items()})
    return replace(found, **measured_overheads().get(gpu.name, {}))


@functools.cache
def measured_overheads() -> dict[str, dict[str, float]]:
    """Constants by GPU that were chosen on measured servings: catalogue/measured_overheads.toml, with the rule."""
    entries = catalogue.read("measured_overheads.toml")["gpu"].items()
    return {name: {key: value for key, value in entry.items() if key.endswith("_s")} for name, entry in entries}


def basis(gpu: Gpu, *, latent: bool = False) -> str | None:
    """What the times of a GPU without measured kernels rest on, in a sentence; None for the others.

    `latent`: the model has latent attention.
    """
    if gpu.silicon_system is not None:
        return None
    found = f"{gpu.name}: roofline with the mean efficiencies of the measured GPUs"
    if gpu.arithmetic_share is not None or gpu.memory_share is not None:
        arithmetic, memory = gpu.arithmetic_share or USUAL_ARITHMETIC_SHARE, gpu.memory_share or USUAL_MEMORY_SHARE
        found += f", lowered to {arithmetic:.0%} of its arithmetic and {memory:.0%} of its bandwidth"
    entry = catalogue.read("measured_overheads.toml")["gpu"].get(gpu.name)
    if entry is None:
        return f"{found}; no measurement of {gpu.name} was compared"
    if latent:
        each_us = entry["per_latent_layer_overhead_s"] * 1e6
        found += f"; latent layers carry {each_us:.0f} us each, from servings of DeepSeek-R1 on {entry['measured_on'].upper()}"
    return found if entry["measured_on"] == gpu.name else f"{found}; no measurement of {gpu.name} was compared"


def _multiplies_fp8(gpu: Gpu, weight_bytes_per_param: float) -> bool:
    return FP8_BYTES[0] <= weight_bytes_per_param <= FP8_BYTES[1] and gpu.fp8_flops_per_s is not None


def _multiplies_fp4(gpu: Gpu, weights: str | None) -> bool:
    """nvfp4 activations too have 4 bits, where the GPU multiplies them; int4 and mxfp4 weights are brought to 16."""
    return weights == "nvfp4" and gpu.fp4_flops_per_s is not None


@dataclass(frozen=True)
class Roofline(PassSource):
    """Roofline of a tensor-parallel model on one kind of GPU, for every shape and every real-valued size.

    A layer's kernels are added up. Each takes bytes / bandwidth and FLOPs / peak, both times an efficiency: the longer
    one, or somewhat more near the ridge, where neither hides the other. Decode reads the weights of the experts that the
    batch's tokens are expected to meet (uniform routing), and the KV cache. Two ring all-reduces a layer when gpus > 1;
    expert parallelism keeps them, as every GPU holds the tokens and adds what its experts say. With attention data
    parallelism they are within a group, and the tokens of all groups are gathered before the experts and their sums
    scattered after them. Beyond a server the network's time is added. Latent attention decodes
    on the compressed cache, which every GPU holds; layers with a window attend to no more than the window, sparse ones to
    as many tokens as they choose, their indexers to all; linear layers read and write a state a token. The host
    works while the GPU does, so that a pass takes the longer of its kernels and of the host. Left out: unequal load of
    the experts of one GPU, and padding to tiles and waves of matrix products. Never falls when a batch or a model grows.
    `moe_execution` all-experts holds whole experts, whatever `expert_parallel` says, and answers NaN beyond a GPU an expert.
    """

    gpu: Gpu
    weight_bytes_per_param: float = 2.0
    kv_bytes_per_element: float = 2.0
    constants: RooflineConstants | None = None  # None: those of this GPU
    moe_execution: str = FUSED  # a name of MOE_EXECUTION
    weights: str | None = None  # name of the number format of the weights; None: the one with such bytes

    def __post_init__(self) -> None:
        check_moe_execution(self.moe_execution)

    @property
    def name(self) -> str:
        """`roofline`."""
        return "roofline"

    def without_host(self) -> Roofline:
        """The same without the host's time."""
        return replace(self, constants=replace(self._constants, per_iteration_overhead_s=0.0))

    def pass_s(self, model: Architecture, a: Pass) -> FloatArray:
        """Seconds of a pass: matrix products see the tokens of batch and prompts at once; the attention of both adds up."""
        whole, a = a, a.busiest_rank
        constants, count, tokens = self._constants, np.asarray(a.gpus, dtype=np.float64), a.tokens
        all_gpus = np.asarray(whole.gpus, dtype=np.float64)
        share = 1.0 / count
        attention_s: Real = 0.0
        if a.batch is not None:
            attention_s = self._decode_attention_s(model, share, a.batch, a.context_tokens, a.query_tokens)
        if a.prompts is not None:
            prefill_s = self._prefill_attention_s(model, share, a.prompts, a.prompt_tokens, a.prefix_tokens)
            attention_s = attention_s + prefill_s
        if has_mixers(model):
            attention_s = attention_s + self.mixers_s(model, count, a)
        if self.moe_execution == ALL_EXPERTS_GROUPED:
            model = replace(model, top_k=model.n_experts)
        total_s = self._dense_s(model, share, tokens) + attention_s
        launches_s = np.asarray(model.n_moe_layers) * constants.per_moe_layer_overhead_s
        met, has_experts = model, np.asarray(model.n_moe_layers) > 0
        if np.any(has_experts) and self.moe_execution == ALL_EXPERTS:
            # Dense products of every whole expert that a GPU holds, each with as many launches as a dense layer.
            local = np.where(has_experts, local_experts(model, all_gpus), 0.0)
            weights = (model.ffn_matrices * model.n_moe_layers * expert_width(model) * model.d_expert) * local
            total_s = total_s + self._product_s(weights, whole.tokens, self._held(model).experts)
            launches_s = launches_s + model.n_moe_layers * local * constants.per_layer_overhead_s
            met = replace(model, top_k=local, d_expert=model.d_expert * all_gpus)  # what the activations below see
        elif np.any(has_experts):
            total_s = total_s + self._experts_s(model, 1.0 / all_gpus, whole.tokens, a.expert_parallel)
        if np.any(np.asarray(model.vocab_size) > 0):
            read_s = max(self.weight_bytes_per_param, UNQUANTISED_BYTES) * self._byte_s
            multiply_s = 2.0 / (self.gpu.bf16_flops_per_s * constants.gemm_compute_efficiency)
            head, held = (model.vocab_size * model.d_model) * share, self._held(model).lm_head
            head_s = head * _ridge(read_s, multiply_s * a.requests, constants.ridge_softness)
            if held > 0.0:
                head_s = self._product_s(head, a.requests, held)
            total_s = total_s + head_s
        if whole is a:
            total_s = total_s + self._moved_s(met, count) * tokens
            total_s = total_s + model.n_layers * (
                constants.per_layer_overhead_s + 2.0 * (self._start_s(count) * (share < 1.0))
            )
        else:
            total_s = total_s + self._spread_s(met, whole, a) + model.n_layers * constants.per_layer_overhead_s
        if np.any(all_gpus > self.gpu.gpus_per_server):
            total_s = total_s + self._network_s(model, whole, a)
        latent = (model.n_layers - np.asarray(model.n_linear_layers)) * (np.asarray(model.kv_lora_rank) > 0)
        total_s = total_s + launches_s + latent * constants.per_latent_layer_overhead_s
        return np.maximum(total_s, constants.per_iteration_overhead_s)

    @functools.cached_property
    def _constants(self) -> RooflineConstants:
        if self.constants is not None:
            return self.constants
        return constants_of(self.gpu, self.weight_bytes_per_param, self.weights)

    @functools.cached_property
    def _cache_element_s(self) -> float:
        byte_s = 1.0 / (self.gpu.memory_bandwidth_bytes_per_s * self._constants.cache_memory_efficiency)
        return self.kv_bytes_per_element * byte_s

    @functools.cached_property
    def _byte_s(self) -> float:
        return 1.0 / (self.gpu.memory_bandwidth_bytes_per_s * self._constants.memory_efficiency)

    @functools.cached_property
    def _peak(self) -> float:
        """FLOPs a second of products of weights in their own format."""
        fp8 = _multiplies_fp8(self.gpu, self.weight_bytes_per_param) and self.gpu.fp8_flops_per_s
        fp4 = _multiplies_fp4(self.gpu, self.weights) and self.gpu.fp4_flops_per_s
        return fp4 or fp8 or self.gpu.bf16_flops_per_s

    @functools.cached_property
    def _attention_flop_s(self) -> float:
        return 1.0 / (self.gpu.bf16_flops_per_s * self._constants.attention_compute_efficiency)

    def mixers_s(self, model: Architecture, count: FloatArray, a: Pass) -> FloatArray:
        """Layers with a state, indexers, and projections that experts share: what a model has beside attention and FFNs.

        A token that is decoded reads and writes the state of its request; a prompt writes it once.
        """
        seconds: FloatArray = np.zeros(())
        for times, n, k in (*mixer_products(model, count), index_product(model)):
            seconds = seconds + self._product_s(np.asarray(times * (np.asarray(n) * k)), a.tokens)
        decoded, prompts = a.decoded, 0.0 if a.prompts is None else a.prompts
        if np.any(np.asarray(model.n_linear_layers) > 0):
            state = np.asarray(model.n_linear_layers) * state_elements(model, count)
            byte_s = self._cache_element_s / self.kv_bytes_per_element
            moved_s = state * model.linear_state_bytes * byte_s * (2.0 * np.asarray(decoded) + prompts)
            flop_s = STATE_FLOPS / (self.gpu.bf16_flops_per_s * STATE_COMPUTE_EFFICIENCY)
            seconds = seconds + moved_s + state * flop_s * (np.asarray(prompts) * a.prompt_tokens)
        if np.any(np.asarray(model.n_index_layers) > 0):
            read, flops = index_cost(model, decoded, a.context_tokens, prompts, a.prompt_tokens)
            peak = self.gpu.fp8_flops_per_s or self.gpu.bf16_flops_per_s
            multiply_s = flops / (peak * self._constants.attention_compute_efficiency)
            seconds = seconds + np.maximum(read * (self._cache_element_s / self.kv_bytes_per_element), multiply_s)
        return seconds

    @over_attention_groups
    def _prefill_attention_s(
        self, model: Architecture, share: FloatArray, prompts: Real, prompt_tokens: Real, prefix_tokens: Real
    ) -> FloatArray:
        """Attention of prompts in all layers, to themselves and to a cached prefix; the cache of both is touched once."""
        if np.any(np.asarray(prefix_tokens) > 0):
            return self._after_prefix_s(model, share, prompts, prompt_tokens, prefix_tokens)
        # Causal: a token meets half of its prompt, once for the scores and once for the values, 2 FLOPs a channel.
        flops_s = 0.5 * (2.0 * (model.head_dim + _value_dim(model))) * self._attention_flop_s
        element_s = self._cached_elements(model, share) * self._cache_element_s
        met = np.asarray(prompt_tokens, dtype=np.float64)
        one_s = model.n_layers * np.maximum(model.n_heads * share * (flops_s * met), element_s)
        if np.any(np.asarray(model.n_window_layers) > 0):
            # In a window of w tokens: T w - w^2 / 2 pairs of a prompt of T > w, against the T^2 / 2 of all.
            window = np.minimum(model.window_tokens, met)
            met_in_window = window * (2.0 - window / met)
            windowed_s = np.maximum(model.n_heads * share * (flops_s * met_in_window), element_s)
            one_s = one_s * (1.0 - model.n_window_layers / model.n_layers) + model.n_window_layers * windowed_s
        launch_s = model.n_layers * self._constants.per_prompt_layer_overhead_s * (np.asarray(prompts) > 0.0)
        return np.asarray(one_s * (prompts * met) + launch_s)

    def _after_prefix_s(
        self, model: Architecture, share: FloatArray, prompts: Real, prompt_tokens: Real, prefix_tokens: Real
    ) -> FloatArray:
        """Attention of prompts that follow a cached prefix: as many pairs as the whole has without those of the prefix."""
        new, prefix = np.asarray(prompt_tokens, dtype=np.float64), np.asarray(prefix_tokens, dtype=np.float64)
        flops_s = 2.0 * (model.head_dim + _value_dim(model)) * self._attention_flop_s
        element_s = self._cached_elements(model, share) * self._cache_element_s

        def layer_s(window: Real) -> FloatArray:
            before, whole = np.minimum(prefix, window), np.minimum(prefix + new, window)
            pairs = whole * (prefix + new - whole / 2.0) - before * (prefix - before / 2.0)
            touched = np.minimum(prefix + new, window + new)
            return np.maximum(model.n_heads * share * (flops_s * pairs), element_s * touched)

        local = np.asarray(model.n_window_layers, dtype=np.float64)
        one_s = (model.n_layers - local) * layer_s(np.inf)
        if np.any(local > 0):
            one_s = one_s + local * layer_s(model.window_tokens)
        launch_s = model.n_layers * self._constants.per_prompt_layer_overhead_s * (np.asarray(prompts) > 0.0)
        return np.asarray(one_s * prompts + launch_s)

    @over_attention_groups
    def _decode_attention_s(
        self, model: Architecture, share: FloatArray, batch: Real, context_tokens: Real, queries: Real
    ) -> FloatArray:
        """Attention of a token, or several, of each request in all layers, which read the whole cache once."""
        latent = np.asarray(model.kv_lora_rank) > 0
        channels = model.head_dim + _value_dim(model)
        if np.any(latent):  # queries are brought into the compressed space; scores also see the position's channels
            channels = np.where(latent, 2.0 * model.kv_lora_rank + model.qk_rope_head_dim, channels)
        multiply_s = model.n_heads * share * (2.0 * channels * self._attention_flop_s) * queries
        token_s = np.maximum(multiply_s, self._cached_elements(model, share) * self._cache_element_s)
        context = np.asarray(context_tokens, dtype=np.float64)
        held = model.n_layers * context
        if np.any(np.asarray(model.n_window_layers) > 0):
            held = held - model.n_window_layers * np.maximum(context - model.window_tokens, 0.0)
        return np.asarray(token_s * (held * batch))

    def _cached_elements(self, model: Architecture, share: FloatArray) -> Real:
        """Elements of cache that one token leaves in one layer on each GPU; latent caches are held by every GPU."""
        elements, rank = _kv_heads(model, share) * (model.head_dim + _value_dim(model)), np.asarray(model.kv_lora_rank)
        return np.where(rank > 0, rank + model.qk_rope_head_dim, elements) if np.any(rank > 0) else elements

    def _dense_s(self, model: Architecture, share: FloatArray, tokens: Real) -> FloatArray:
        """Projections of attention, FFNs of layers without experts, and shared experts."""
        held = self._held(model)
        dense = model.n_layers - model.n_moe_layers - model.n_layers_without_ffn
        attention = sum(group.n_layers * _projections(group, share) for group in attention_groups(model))
        if held == Quantised():
            width = dense * model.d_ffn + model.n_moe_layers * model.d_shared_expert
            return self._product_s(attention + (model.ffn_matrices * model.d_model * width) * share, tokens)
        matrix = (model.ffn_matrices * model.d_model) * share
        return (
            self._product_s(attention, tokens, held.attention)
            + self._product_s(dense * model.d_ffn * matrix, tokens, held.dense_ffn)
            + self._product_s(model.n_moe_layers * model.d_shared_expert * matrix, tokens, held.shared_experts)
        )

    def _held(self, model: Architecture) -> Quantised:
        """Which parts have the format of the weights; all of them where that has 16 bits, as nothing is quantised then."""
        return model.quantised if self.weight_bytes_per_param < UNQUANTISED_BYTES else Quantised()

    def _product_s(self, weights: Real, tokens: Real, quantised: float = 1.0) -> FloatArray:
        """To read so many weights, or to multiply them with every token; a share has the weights' format, the rest bf16."""
        efficiency, softness = self._constants.gemm_compute_efficiency, self._constants.ridge_softness
        flop_s, read_s = 2.0 / (self._peak * efficiency), self.weight_bytes_per_param * self._byte_s
        weight_s = _ridge(read_s, flop_s * tokens, softness)
        if quantised < 1.0:
            flop_s, read_s = 2.0 / (self.gpu.bf16_flops_per_s * efficiency), UNQUANTISED_BYTES * self._byte_s
            weight_s = quantised * weight_s + (1.0 - quantised) * _ridge(read_s, flop_s * tokens, softness)
        return np.asarray(weights * weight_s)

    def _experts_s(self, model: Architecture, share: FloatArray, tokens: Real, expert_parallel: Real) -> FloatArray:
        """Routed experts, of which the busiest GPU sets the pace."""
        constants, bandwidth = self._constants, self.gpu.memory_bandwidth_bytes_per_s
        split = share * expert_parallel  # of one expert's matrices
        expert = (model.ffn_matrices * model.n_moe_layers * expert_width(model) * model.d_expert) * split
        distinct, expert_tokens = _busiest(model, tokens, expert_parallel)
        read_s = self.weight_bytes_per_param / (bandwidth * constants.expert_memory_efficiency)
        flop_s = 2.0 / (self._peak * constants.moe_compute_efficiency)
        seconds, held = _ridge(distinct * read_s, flop_s * expert_tokens, constants.ridge_softness), self._held(model)
        if held.experts < 1.0:
            read_s = UNQUANTISED_BYTES / (bandwidth * constants.expert_memory_efficiency)
            flop_s = 2.0 / (self.gpu.bf16_flops_per_s * constants.moe_compute_efficiency)
            rest_s = _ridge(distinct * read_s, flop_s * expert_tokens, constants.ridge_softness)
            seconds = held.experts * seconds + (1.0 - held.experts) * rest_s
        return expert * seconds

    def _moved_s(self, model: Architecture, count: FloatArray) -> FloatArray:
        """Seconds a token: its two all-reduces a layer, and its activations.

        Ring all-reduce: each GPU sends and receives 2 (g - 1) / g of the message; none for one GPU.
        """
        constants, share = self._constants, 1.0 / count
        messages = 2.0 * model.n_layers - model.n_layers_without_ffn
        token_s = (messages * model.d_model) * self._sent_s(count)
        if constants.activation_traffic > 0.0:
            token_s = token_s + constants.activation_traffic * self._byte_s * _activation_bytes(model, share)
        return token_s

    def _sent_s(self, count: FloatArray) -> FloatArray:
        """Seconds of one activation of one token in one all-reduce over so many GPUs."""
        constants, share = self._constants, 1.0 / count
        sent = (2.0 / constants.interconnect_efficiency) * (1.0 - share)
        sent = sent + constants.interconnect_contention * np.maximum(count - 2.0, 0.0)
        return ACTIVATION_BYTES / self.gpu.interconnect_bytes_per_s * sent

    def _start_s(self, count: FloatArray) -> FloatArray:
        """Seconds of an all-reduce without bytes over so many GPUs, of more than one."""
        constants = self._constants
        return constants.allreduce_latency_s + constants.allreduce_latency_per_gpu_s * np.maximum(count - 2.0, 0.0)

    def _spread_s(self, model: Architecture, whole: Pass, rank: Pass) -> FloatArray:
        """Messages and moved activations of groups of attention whose tokens meet the experts of all GPUs.

        To gather all tokens and to scatter their sums is what an all-reduce does; it stands for the second one of a layer
        with experts. Entries with one group have what `pass_s` has for them.
        """
        constants, tokens = self._constants, np.asarray(whole.tokens, dtype=np.float64)
        rank_gpus, gpus = (np.asarray(a.gpus, dtype=np.float64) for a in (rank, whole))
        spread = np.asarray(whole.attention_dp, dtype=np.float64) > 1.0
        exchanged = np.where(spread, model.n_moe_layers, 0.0)
        reduced = 2.0 * model.n_layers - exchanged
        total_s = reduced * (model.d_model * self._sent_s(rank_gpus) * rank.tokens)
        total_s = total_s + reduced * (self._start_s(rank_gpus) * (rank_gpus > 1.0))
        total_s = total_s + exchanged * (model.d_model * self._sent_s(gpus) * tokens + self._start_s(gpus))
        if constants.activation_traffic > 0.0:
            own = _activation_bytes(replace(model, top_k=0.0), 1.0 / rank_gpus) * rank.tokens
            ways = np.minimum(np.asarray(whole.expert_parallel, dtype=np.float64), gpus)
            split = np.where(spread, ways, 1.0)  # as for one group: see _activation_bytes
            pairs, width = tokens * model.top_k / split, model.d_expert * split / gpus
            routed = model.n_moe_layers * pairs * (2.0 * model.d_model + 2.0 * model.ffn_matrices * width)
            moved = own + ACTIVATION_BYTES * routed
            total_s = total_s + constants.activation_traffic * self._byte_s * moved
        return np.asarray(total_s)

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
        return np.asarray((2.0 * model.n_layers - exchanged) * reduced_s + exchanged * exchanged_s)


def _ridge(read_s: Real, multiply_s: Real, softness: float) -> Real:
    """The longer of two times where softness is 0, their sum where it is 1, a smooth maximum between; arguments broadcast."""
    longer = np.maximum(read_s, multiply_s)
    if softness == 0.0:
        return longer
    part = np.minimum(read_s, multiply_s) / np.maximum(longer, np.finfo(np.float64).tiny)
    return longer * (1.0 + part ** (1.0 / softness)) ** softness


def _activation_bytes(model: Architecture, share: FloatArray) -> Real:
    """Bytes of activations that one token moves on one GPU, all layers: norms, and both sides of every product."""
    d_model, gated = model.d_model, 2.0 * model.ffn_matrices
    attention = 10.0 * d_model + 2.0 * (model.n_heads * model.head_dim) * share  # two norms of 4 d_model each
    dense = model.n_layers - model.n_moe_layers - model.n_layers_without_ffn
    dense = dense * (2.0 * d_model + gated * model.d_ffn * share)
    expert, shared = 2.0 * d_model + gated * model.d_expert * share, gated * model.d_shared_expert * share
    routed = model.n_moe_layers * (model.top_k * expert + shared)
    return ACTIVATION_BYTES * (model.n_layers * attention + dense + routed)


def _value_dim(model: Architecture) -> Real:
    """Width of a head's value: head_dim where the model states none."""
    stated = np.asarray(model.v_head_dim, dtype=np.float64)
    return np.where(stated > 0, stated, model.head_dim) if np.any(stated > 0) else model.head_dim


def _kv_heads(model: Architecture, share: FloatArray) -> FloatArray:
    """Key-value heads a GPU holds: with more GPUs than heads each GPU still holds one."""
    return np.maximum(model.n_kv_heads * share, 1.0)


def _projections(model: Architecture, share: FloatArray) -> Real:
    """Weights of the attention projections of one layer on one GPU: key and value projections keep a head at least."""
    heads = model.n_heads * share
    plain = model.d_model * (model.head_dim + _value_dim(model)) * (heads + _kv_heads(model, share))
    if some(model.attention_gate):
        plain = plain + model.d_model * heads * model.attention_gate
    if model.full_keys_are_values:
        plain = plain - model.d_model * _kv_heads(model, share) * _value_dim(model)
    latent = np.asarray(model.kv_lora_rank) > 0
    return np.where(latent, attention_matrix_params(replace(model, n_heads=heads)), plain) if np.any(latent) else plain


def _busiest(model: Architecture, tokens: Real, expert_parallel: Real) -> tuple[Real, Real]:
    """Distinct experts, and tokens they multiply, of the busiest of `expert_parallel` GPUs that hold whole experts.

    Uniform routing without replacement sends each of n GPUs a number of tokens around the same mean; the n numbers add
    up, so that the largest lies on average by the expected maximum of n normal variables times sqrt(mean (E - K) /
    (E - 1)) above it; the same is taken for the distinct experts. Both are bounded by what there is. Simulated routing
    (8 to 256 experts, 4 and 8 GPUs) agrees within 10% for one token and within 7% for 4 to 1024 tokens. Where n does not
    divide the experts, some GPUs hold one more.
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
