"""Analytic iteration latency: every kernel takes the longer of its memory time and its arithmetic time."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from statistics import NormalDist

import numpy as np

from moescale import catalogue
from moescale.accounting import expected_distinct_experts
from moescale.architecture import Architecture, FloatArray, Real
from moescale.hardware import Gpu
from moescale.latency import common_shape

ACTIVATION_BYTES = 2.0  # bf16 activations, also where weights are fp8
UNQUANTISED_BYTES = 2.0  # published fp8 and int4 checkpoints leave the LM head in bf16
EXACT = 1e-12  # experts / GPUs this close above a whole number is that number
# Bytes a weight, scales included, between which fp8 arithmetic is meant; int4 weights are multiplied in bf16.
FP8_BYTES = (0.75, 1.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflineConstants:
    """What the data sheet does not say; values and sources in catalogue/roofline.toml."""

    memory_efficiency: float  # reached share of memory bandwidth
    gemm_compute_efficiency: float  # reached share of peak arithmetic, dense matrix products
    moe_compute_efficiency: float  # the same, expert matrix products
    attention_compute_efficiency: float  # the same, prefill attention
    interconnect_efficiency: float  # reached share of interconnect bandwidth in an all-reduce
    allreduce_latency_s: float  # of a message without bytes
    per_layer_overhead_s: float  # kernel launches of one layer
    per_iteration_overhead_s: float  # scheduling and sampling on the CPU


@functools.cache
def default_constants() -> RooflineConstants:
    """The constants of catalogue/roofline.toml."""
    return RooflineConstants(**{name: float(entry["value"]) for name, entry in catalogue.read("roofline.toml").items()})


@dataclass(frozen=True, slots=True)
class Roofline:
    """Roofline of a tensor-parallel model on one kind of GPU, for every shape and every real-valued size.

    A layer's kernels are added up; each takes max(bytes / bandwidth, FLOPs / peak), both times an efficiency. Decode
    reads the weights of the experts that the batch's tokens are expected to meet (uniform routing), and the KV cache.
    Two ring all-reduces a layer when gpus > 1; expert parallelism keeps them, as every GPU holds the tokens and adds
    what its experts say. Latent attention decodes on the compressed cache, which every GPU holds; layers with a window
    attend to no more than the window. Left out: activations other than the all-reduced ones, the router, unequal load
    of the experts of one GPU, and padding of small expert batches. Never falls when a batch or a model grows.
    """

    gpu: Gpu
    weight_bytes_per_param: float = 2.0
    kv_bytes_per_element: float = 2.0
    constants: RooflineConstants = field(default_factory=default_constants)

    @property
    def name(self) -> str:
        """`roofline`."""
        return "roofline"

    def prefill_s(
        self, model: Architecture, gpus: Real, batch: Real, prompt_tokens: Real, *, expert_parallel: Real = 1.0
    ) -> FloatArray:
        """Seconds to process `batch` prompts of `prompt_tokens` tokens each; the common shape of all arguments."""
        tokens = batch * np.asarray(prompt_tokens, dtype=np.float64)
        attention_s = self._prefill_attention_s(model, gpus, batch, prompt_tokens)
        return self._pass_s(model, gpus, tokens, batch, attention_s, expert_parallel)

    def decode_s(
        self, model: Architecture, gpus: Real, batch: Real, context_tokens: Real, *, expert_parallel: Real = 1.0
    ) -> FloatArray:
        """Seconds to produce one token for each of `batch` requests that hold `context_tokens` tokens on average."""
        attention_s = self._decode_attention_s(model, gpus, batch, context_tokens)
        return self._pass_s(model, gpus, batch, batch, attention_s, expert_parallel)

    def mixed_s(
        self,
        model: Architecture,
        gpus: Real,
        batch: Real,
        context_tokens: Real,
        prompts: Real,
        prompt_tokens: Real,
        *,
        expert_parallel: Real = 1.0,
    ) -> FloatArray:
        """Seconds of one pass that decodes `batch` requests and processes `prompts` prompts (or a part of one).

        Matrix products see the tokens of both at once; the attention of both adds up.
        """
        tokens = batch + prompts * np.asarray(prompt_tokens, dtype=np.float64)
        attention_s = self._decode_attention_s(model, gpus, batch, context_tokens) + self._prefill_attention_s(
            model, gpus, prompts, prompt_tokens
        )
        return self._pass_s(model, gpus, tokens, batch + np.asarray(prompts), attention_s, expert_parallel)

    @property
    def _byte_s(self) -> float:
        return 1.0 / (self.gpu.memory_bandwidth_bytes_per_s * self.constants.memory_efficiency)

    @property
    def _attention_flop_s(self) -> float:
        return 1.0 / (self.gpu.bf16_flops_per_s * self.constants.attention_compute_efficiency)

    def _prefill_attention_s(self, model: Architecture, gpus: Real, prompts: Real, prompt_tokens: Real) -> FloatArray:
        """Attention of whole prompts in all layers; the cache that they leave is touched once."""
        share = 1.0 / np.asarray(gpus, dtype=np.float64)
        # Causal: a token meets half of its prompt, once for the scores and once for the values, 2 FLOPs a channel.
        flops_s = 0.5 * (2.0 * (model.head_dim + _value_dim(model))) * self._attention_flop_s
        element_s = self._cached_elements(model, share) * (self.kv_bytes_per_element * self._byte_s)
        met = np.asarray(prompt_tokens, dtype=np.float64)
        one_s = model.n_layers * np.maximum(model.n_heads * share * (flops_s * met), element_s)
        if np.any(np.asarray(model.n_window_layers) > 0):
            # In a window of w tokens: T w - w^2 / 2 pairs of a prompt of T > w, against the T^2 / 2 of all.
            window = np.minimum(model.window_tokens, met)
            met_in_window = window * (2.0 - window / met)
            windowed_s = np.maximum(model.n_heads * share * (flops_s * met_in_window), element_s)
            one_s = one_s * (1.0 - model.n_window_layers / model.n_layers) + model.n_window_layers * windowed_s
        return np.asarray(one_s * (prompts * met))

    def _decode_attention_s(self, model: Architecture, gpus: Real, batch: Real, context_tokens: Real) -> FloatArray:
        """Attention of one token of each request in all layers, which reads the whole cache."""
        share = 1.0 / np.asarray(gpus, dtype=np.float64)
        latent = np.asarray(model.kv_lora_rank) > 0
        channels = model.head_dim + _value_dim(model)
        if np.any(latent):  # queries are brought into the compressed space; scores also see the position's channels
            channels = np.where(latent, 2.0 * model.kv_lora_rank + model.qk_rope_head_dim, channels)
        token_s = np.maximum(
            model.n_heads * share * (2.0 * channels * self._attention_flop_s),
            self._cached_elements(model, share) * (self.kv_bytes_per_element * self._byte_s),
        )
        context = np.asarray(context_tokens, dtype=np.float64)
        held = model.n_layers * context
        if np.any(np.asarray(model.n_window_layers) > 0):
            beyond = np.maximum(context - model.window_tokens, 0.0)
            held = held - model.n_window_layers * beyond
        return np.asarray(token_s * (held * batch))

    def _cached_elements(self, model: Architecture, share: FloatArray) -> Real:
        """Elements of cache that one token leaves in one layer on each GPU; latent caches are held by every GPU."""
        elements = _kv_heads(model, share) * (model.head_dim + _value_dim(model))
        latent = np.asarray(model.kv_lora_rank) > 0
        if np.any(latent):
            return np.where(latent, np.asarray(model.kv_lora_rank) + model.qk_rope_head_dim, elements)
        return elements

    def _pass_s(
        self,
        model: Architecture,
        gpus: Real,
        tokens: Real,
        requests: Real,
        attention_s: FloatArray,
        expert_parallel: Real,
    ) -> FloatArray:
        """Everything but attention, for `tokens` tokens of which the last one of each request meets the LM head."""
        constants, share = self.constants, 1.0 / np.asarray(gpus, dtype=np.float64)
        fp8 = FP8_BYTES[0] <= self.weight_bytes_per_param <= FP8_BYTES[1] and self.gpu.fp8_flops_per_s
        peak = self.gpu.fp8_flops_per_s if fp8 and self.gpu.fp8_flops_per_s else self.gpu.bf16_flops_per_s
        read_s = self.weight_bytes_per_param * self._byte_s  # to read one weight
        multiply_s = 2.0 / (peak * constants.gemm_compute_efficiency)  # to multiply one weight with one token
        expert_multiply_s = 2.0 / (peak * constants.moe_compute_efficiency)

        d_model, ffn = model.d_model, model.ffn_matrices
        dense_width = (model.n_layers - model.n_moe_layers) * model.d_ffn + model.n_moe_layers * model.d_shared_expert
        dense = model.n_layers * _projections(model, share) + (ffn * d_model * dense_width) * share
        total_s = dense * np.maximum(multiply_s * tokens, read_s)
        total_s = total_s + attention_s

        if np.any(np.asarray(model.n_moe_layers) > 0):
            split = share * expert_parallel  # of one expert's matrices
            expert = (ffn * model.n_moe_layers * d_model * model.d_expert) * split
            distinct, expert_tokens = _busiest(model, tokens, expert_parallel)
            total_s += expert * np.maximum(distinct * read_s, expert_multiply_s * expert_tokens)
        if np.any(np.asarray(model.vocab_size) > 0):
            head_read_s = max(self.weight_bytes_per_param, UNQUANTISED_BYTES) * self._byte_s
            head_multiply_s = 2.0 / (self.gpu.bf16_flops_per_s * constants.gemm_compute_efficiency)
            total_s += (model.vocab_size * d_model) * share * np.maximum(head_multiply_s * requests, head_read_s)

        # Ring all-reduce: each GPU sends and receives 2 (g - 1) / g of the message; none for one GPU.
        link_s = ACTIVATION_BYTES / (self.gpu.interconnect_bytes_per_s * constants.interconnect_efficiency)
        total_s += (4.0 * link_s * model.n_layers * d_model) * (1.0 - share) * tokens
        launch_s = constants.per_layer_overhead_s + 2.0 * constants.allreduce_latency_s * (share < 1.0)
        total_s += launch_s * model.n_layers + constants.per_iteration_overhead_s

        shape = common_shape(model, gpus, tokens, requests, attention_s, expert_parallel)
        return np.asarray(total_s) if np.shape(total_s) == shape else np.broadcast_to(total_s, shape).copy()


def _value_dim(model: Architecture) -> Real:
    """Width of a head's value: head_dim where the model states none."""
    stated = np.asarray(model.v_head_dim, dtype=np.float64)
    return np.where(stated > 0, stated, model.head_dim) if np.any(stated > 0) else model.head_dim


def _kv_heads(model: Architecture, share: FloatArray) -> FloatArray:
    """Key-value heads a GPU holds: with more GPUs than heads each GPU still holds one."""
    return np.maximum(model.n_kv_heads * share, 1.0)


def _projections(model: Architecture, share: FloatArray) -> Real:
    """Weights of the attention projections of one layer on one GPU.

    Query and output projections are split, key and value projections split until one head is left. In latent attention
    the projections down to the compressed widths are held by every GPU, those up to the heads are split.
    """
    d_model, value_dim = model.d_model, _value_dim(model)
    query_heads = model.n_heads * share
    plain = d_model * (model.head_dim + value_dim) * (query_heads + _kv_heads(model, share))
    rank = np.asarray(model.kv_lora_rank, dtype=np.float64)
    if not np.any(rank > 0):
        return plain
    query_rank = np.asarray(model.q_lora_rank, dtype=np.float64)
    query = np.where(
        query_rank > 0,
        query_rank * (d_model + query_heads * model.head_dim),
        d_model * query_heads * model.head_dim,
    )
    down = d_model * (rank + model.qk_rope_head_dim)
    up = rank * query_heads * (model.head_dim - model.qk_rope_head_dim + value_dim)
    return np.where(rank > 0, query + down + up + query_heads * value_dim * d_model, plain)


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
    """Expected largest of `count` standard normal variables, 0 for one: Blom's approximation (Statistical Estimates and
    Transformed Beta-Variables, 1958), within 5%.
    """
    each, where = np.unique(count, return_inverse=True)
    at = [0.0 if n <= 1.0 else NormalDist().inv_cdf((n - 0.375) / (n + 0.25)) for n in each]
    return np.asarray(at)[where].reshape(np.shape(count))
