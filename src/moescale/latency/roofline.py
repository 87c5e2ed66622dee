"""Analytic iteration latency: every kernel takes the longer of its memory time and its arithmetic time."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

import numpy as np

from moescale import catalogue
from moescale.accounting import expected_distinct_experts
from moescale.architecture import Architecture, FloatArray, Real
from moescale.hardware import Gpu
from moescale.latency import common_shape

ACTIVATION_BYTES = 2.0  # bf16 activations, also where weights are fp8


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
    Two ring all-reduces a layer when gpus > 1. Left out: activations other than the all-reduced ones, the router,
    unequal load of the experts, and padding of small expert batches. Never falls when a batch or a model grows.
    """

    gpu: Gpu
    weight_bytes_per_param: float = 2.0
    kv_bytes_per_element: float = 2.0
    constants: RooflineConstants = field(default_factory=default_constants)

    @property
    def name(self) -> str:
        """`roofline`."""
        return "roofline"

    def prefill_s(self, model: Architecture, gpus: Real, batch: Real, prompt_tokens: Real) -> FloatArray:
        """Seconds to process `batch` prompts of `prompt_tokens` tokens each; the common shape of all arguments."""
        constants, share = self.constants, 1.0 / np.asarray(gpus, dtype=np.float64)
        tokens = batch * np.asarray(prompt_tokens, dtype=np.float64)
        # Causal attention: a token meets half of its prompt, twice (scores and values), 2 FLOPs each.
        flops_s = 2.0 / (self.gpu.bf16_flops_per_s * constants.attention_compute_efficiency)
        element_s = 2.0 * self.kv_bytes_per_element * self._byte_s
        query_heads = model.n_heads * share
        attention_s = (model.n_layers * model.head_dim) * np.maximum(
            query_heads * (flops_s * prompt_tokens), _kv_heads(model, share) * element_s
        )
        return self._iteration_s(model, gpus, share, tokens, batch, attention_s * tokens)

    def decode_s(self, model: Architecture, gpus: Real, batch: Real, context_tokens: Real) -> FloatArray:
        """Seconds to produce one token for each of `batch` requests that hold `context_tokens` tokens on average."""
        constants, share = self.constants, 1.0 / np.asarray(gpus, dtype=np.float64)
        flops_s = 4.0 / (self.gpu.bf16_flops_per_s * constants.attention_compute_efficiency)
        element_s = 2.0 * self.kv_bytes_per_element * self._byte_s
        attention_s = (model.n_layers * model.head_dim * context_tokens) * np.maximum(
            model.n_heads * share * flops_s, _kv_heads(model, share) * element_s
        )
        return self._iteration_s(model, gpus, share, batch, batch, attention_s * batch)

    @property
    def _byte_s(self) -> float:
        return 1.0 / (self.gpu.memory_bandwidth_bytes_per_s * self.constants.memory_efficiency)

    def _iteration_s(
        self, model: Architecture, gpus: Real, share: FloatArray, tokens: Real, requests: Real, attention_s: FloatArray
    ) -> FloatArray:
        """Everything but attention, for `tokens` tokens of which the last one of each request meets the LM head."""
        constants = self.constants
        fp8 = self.weight_bytes_per_param <= 1.0 and self.gpu.fp8_flops_per_s
        peak = self.gpu.fp8_flops_per_s if fp8 and self.gpu.fp8_flops_per_s else self.gpu.bf16_flops_per_s
        read_s = self.weight_bytes_per_param * self._byte_s  # to read one weight
        multiply_s = 2.0 / (peak * constants.gemm_compute_efficiency)  # to multiply one weight with one token
        expert_multiply_s = 2.0 / (peak * constants.moe_compute_efficiency)

        # Per GPU: query and output projections are split, key and value projections split until one head is left.
        d_model, ffn = model.d_model, model.ffn_matrices
        projections = (2.0 * model.n_layers * d_model * model.head_dim) * (
            model.n_heads * share + _kv_heads(model, share)
        )
        dense_width = (model.n_layers - model.n_moe_layers) * model.d_ffn + model.n_moe_layers * model.d_shared_expert
        dense = projections + (ffn * d_model * dense_width) * share
        total_s = dense * np.maximum(multiply_s * tokens, read_s)
        total_s = total_s + attention_s

        if np.any(np.asarray(model.n_moe_layers) > 0):
            expert = (ffn * model.n_moe_layers * d_model * model.d_expert) * share
            distinct = expected_distinct_experts(model.n_experts, model.top_k, tokens)
            total_s += expert * np.maximum(distinct * read_s, (expert_multiply_s * model.top_k) * tokens)
        if np.any(np.asarray(model.vocab_size) > 0):
            total_s += (model.vocab_size * d_model) * share * np.maximum(multiply_s * requests, read_s)

        # Ring all-reduce: each GPU sends and receives 2 (g - 1) / g of the message; none for one GPU.
        link_s = ACTIVATION_BYTES / (self.gpu.interconnect_bytes_per_s * constants.interconnect_efficiency)
        total_s += (4.0 * link_s * model.n_layers * d_model) * (1.0 - share) * tokens
        launch_s = constants.per_layer_overhead_s + 2.0 * constants.allreduce_latency_s * (share < 1.0)
        total_s += launch_s * model.n_layers + constants.per_iteration_overhead_s

        shape = common_shape(model, gpus, tokens, attention_s)
        return np.asarray(total_s) if np.shape(total_s) == shape else np.broadcast_to(total_s, shape).copy()


def _kv_heads(model: Architecture, share: FloatArray) -> FloatArray:
    """Key-value heads a GPU holds: with more GPUs than heads each GPU still holds one."""
    return np.maximum(model.n_kv_heads * share, 1.0)
