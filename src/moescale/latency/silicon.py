"""Iteration latency composed from measured kernels, for every shape: NVIDIA's tables, read from aiconfigurator-core.

A pass is the sum of its kernels, each interpolated between measured sizes: the matrix products of attention, of the FFN
in layers without experts, of shared experts, routers and LM head; attention itself; the experts of MoE layers; norms,
activations and the lookup of embeddings; two all-reduces a layer. Layers with and without experts are counted as the
model has them. Where the host takes longer to schedule and sample than the kernels run, it sets the pace.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np

from moescale import catalogue
from moescale.accounting import expected_distinct_experts
from moescale.architecture import Architecture, FloatArray, Real
from moescale.errors import InputError, unknown_name
from moescale.hardware import Gpu
from moescale.latency import common_shape
from moescale.latency.attention_kernels import Attention, attention, head_dims
from moescale.latency.gemm_kernels import gemm_grid, gemm_types
from moescale.latency.kernel_tables import System, default_version, engines, find_system, versions
from moescale.latency.latent_kernels import MEASURED, latent_grid, latent_roofline_s, latent_types
from moescale.latency.link_kernels import all_reduce_grid
from moescale.latency.log_grid import LogGrid
from moescale.latency.moe_kernels import MoeKernels, Shape, moe_kernels, moe_types, rates

ROOFLINE = "take the roofline as the latency source; it answers for every GPU"
ENGINE = "vllm"
# How unevenly tokens fall on experts: a power law with this exponent is what aiconfigurator-core takes for MoE models.
LOAD = "power_law_1.2"
ACTIVATION_BYTES = 2.0  # bf16, also where weights have fewer bits
# A prompt's attention comes with kernels of its own around it (rotary positions, writing the cache): so many launches
# reproduce what the package's own engine adds to its tables, with and without norms of queries and keys.
PROMPT_LAUNCHES = 4.4
PROMPT_LAUNCHES_QK_NORM = 13.2
FP8_BYTES = (0.9, 1.2)  # a weight or cached element of so many bytes is 8-bit
WIDE_BYTES = 1.5  # and from here on 16-bit


@cache
def host_s() -> float:
    """Seconds that the host needs for one pass of a server (catalogue/roofline.toml, host.per_iteration_overhead_s)."""
    return float(catalogue.read("roofline.toml")["host"]["per_iteration_overhead_s"]["value"])


@dataclass(frozen=True)
class Silicon:
    """Measured kernels of `backend` at `version` (None: the package's current one) on `gpu`, tensor-parallel.

    fp8 weights take measured fp8 kernels where there are any (128 x 128 blocks, as published fp8 checkpoints have, before
    per-tensor scales). Whatever was not measured is a measured kernel times the ratio of its rooflines: fewer bits a
    weight, other head dimensions, a card with less bandwidth or arithmetic than the measured part, such as the 40 GB A100.
    Beyond a table's largest size a kernel is taken as saturated, up to 64 times that size; further on, above 8 GPUs, and
    for latent attention where its kernels were not measured, the answer is NaN.

    Raises InputError when the package, or a table for the GPU, engine or version, is missing.
    """

    gpu: Gpu
    backend: str = ENGINE
    version: str | None = None
    weight_bytes_per_param: float = 2.0
    kv_bytes_per_element: float = 2.0
    load: str = LOAD
    host_s: float | None = None  # seconds a pass takes on the host at least; None: host_s(), 0: kernels alone

    def __post_init__(self) -> None:
        system = self._system
        if self.backend not in engines(system.name):
            raise unknown_name("engine", self.backend, engines(system.name), where=f"kernels of {system.name}")
        if self.version is not None and self.version not in versions(system.name, self.backend):
            raise unknown_name(
                "version", self.version, versions(system.name, self.backend), where=f"{self.backend} on {system.name}"
            )

    @property
    def name(self) -> str:
        """`silicon`."""
        return "silicon"

    def prefill_s(
        self, model: Architecture, gpus: Real, batch: Real, prompt_tokens: Real, *, expert_parallel: Real = 1.0
    ) -> FloatArray:
        """Seconds to process `batch` prompts of `prompt_tokens` tokens each; the common shape of all arguments."""
        return self._pass_s(model, gpus, None, 1.0, batch, prompt_tokens, expert_parallel)

    def decode_s(
        self, model: Architecture, gpus: Real, batch: Real, context_tokens: Real, *, expert_parallel: Real = 1.0
    ) -> FloatArray:
        """Seconds to produce one token for each of `batch` requests that hold `context_tokens` tokens on average."""
        return self._pass_s(model, gpus, batch, context_tokens, None, 1.0, expert_parallel)

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
        """Seconds of one pass that decodes for `batch` requests and processes `prompts` prompts (or a part of one)."""
        return self._pass_s(model, gpus, batch, context_tokens, prompts, prompt_tokens, expert_parallel)

    # What is read once.

    @cached_property
    def _system(self) -> System:
        if self.gpu.silicon_system is None:
            raise InputError(f"there are no measured kernels for {self.gpu.name}", where="silicon", next_step=ROOFLINE)
        return find_system(self.gpu.silicon_system)

    @cached_property
    def _tables(self) -> tuple[str, str, str]:
        """System, engine and version of the tables."""
        name = self._system.name
        return name, self.backend, self.version or default_version(name, self.backend)

    @cached_property
    def _gemm(self) -> tuple[LogGrid, str]:
        kind = _kind(self.weight_bytes_per_param, gemm_types(*self._tables))
        return gemm_grid(*self._tables, kind), kind

    @cached_property
    def _gemm_bf16(self) -> LogGrid:
        return gemm_grid(*self._tables, "bfloat16")

    @cached_property
    def _moe(self) -> tuple[MoeKernels, str]:
        kind = _kind(self.weight_bytes_per_param, moe_types(*self._tables))
        return moe_kernels(*self._tables, kind, self.load), kind

    @cached_property
    def _links(self) -> LogGrid:
        system = self.gpu.silicon_link_system or self._system.name
        if system == self._system.name:
            return all_reduce_grid(*self._tables)
        return all_reduce_grid(system, self.backend, default_version(system, self.backend))

    # One pass.

    def _pass_s(
        self,
        model: Architecture,
        gpus: Real,
        batch: Real | None,
        context_tokens: Real,
        prompts: Real | None,
        prompt_tokens: Real,
        expert_parallel: Real,
    ) -> FloatArray:
        """Decoding `batch` requests, where there are any, and processing `prompts`, where there are any."""
        count = np.asarray(gpus, dtype=np.float64)
        tokens: Real = 0.0 if batch is None else batch
        requests: Real = tokens  # each meets the LM head once
        attention_s: Real = 0.0
        if batch is not None:
            attention_s = self._attention_s("generation", model, count, batch, context_tokens)
        if prompts is not None:
            tokens = tokens + prompts * np.asarray(prompt_tokens, dtype=np.float64)
            requests = requests + prompts
            attention_s = attention_s + self._attention_s("context", model, count, prompts, prompt_tokens)
            launches = PROMPT_LAUNCHES_QK_NORM if model.qk_norm else PROMPT_LAUNCHES
            attention_s = attention_s + model.n_layers * (launches * self._system.elementwise_latency_s)
        total_s = attention_s + self._products_s(model, count, tokens, requests)
        if np.any(np.asarray(model.n_moe_layers) > 0):
            total_s = total_s + self._experts_s(model, count, tokens, expert_parallel)
        total_s = total_s + self._moved_s(model, count, tokens)
        total_s = total_s + self._links_s(model, count, tokens)
        slowest = np.maximum(total_s, host_s() if self.host_s is None else self.host_s)
        shape = common_shape(model, gpus, tokens, context_tokens, prompt_tokens, expert_parallel)
        return np.asarray(slowest) if np.shape(slowest) == shape else np.broadcast_to(slowest, shape).copy()

    def _products_s(self, model: Architecture, gpus: FloatArray, tokens: Real, requests: Real) -> FloatArray:
        """All matrix products but those of the routed experts and of latent attention, whose kernels hold their own."""
        d, layers = model.d_model, model.n_layers
        total_s: FloatArray = np.asarray(0.0)
        if not _is_latent(model):
            queries, cached = model.n_heads * model.head_dim / gpus, _kv_heads(model, gpus) * model.head_dim
            total_s = layers * (
                self._product_s(tokens, queries + 2.0 * cached, d) + self._product_s(tokens, d, queries)
            )
        dense_layers = np.asarray(layers, dtype=np.float64) - model.n_moe_layers
        if np.any(dense_layers > 0):
            total_s = total_s + dense_layers * self._ffn_s(model, tokens, model.d_ffn / gpus)
        if np.any(np.asarray(model.n_moe_layers) > 0):
            total_s = total_s + model.n_moe_layers * self._product_s(tokens, model.n_experts, d, bf16=True)
            if np.any(np.asarray(model.d_shared_expert) > 0):
                shared = np.where(
                    np.asarray(model.d_shared_expert) > 0, self._ffn_s(model, tokens, model.d_shared_expert / gpus), 0.0
                )
                total_s = total_s + model.n_moe_layers * shared
        if np.any(np.asarray(model.vocab_size) > 0):
            total_s = total_s + self._product_s(requests, model.vocab_size / gpus, d, bf16=True)
        return np.asarray(total_s)

    def _ffn_s(self, model: Architecture, tokens: Real, width: Real) -> FloatArray:
        width = np.maximum(width, 1.0)  # layers that a model does not have are counted zero times
        into = self._product_s(tokens, (model.ffn_matrices - 1) * width, model.d_model)
        activation = self._elementwise_s(tokens * (model.ffn_matrices * width * ACTIVATION_BYTES))
        return into + activation + self._product_s(tokens, model.d_model, width)

    def _product_s(self, m: Real, n: Real, k: Real, *, bf16: bool = False) -> FloatArray:
        """Seconds of an (m, k) times (k, n) product."""
        grid, kind = (self._gemm_bf16, "bfloat16") if bf16 else self._gemm
        seconds = grid.seconds(m, n, k)
        wanted = 2.0 if bf16 else self.weight_bytes_per_param
        weights = np.asarray(n, dtype=np.float64) * k
        moved = ACTIVATION_BYTES * m * (np.asarray(n, dtype=np.float64) + k)
        return self._rescaled(seconds, weights, moved, 2.0 * m * weights, kind, wanted)

    def _experts_s(self, model: Architecture, gpus: FloatArray, tokens: Real, expert_parallel: Real) -> FloatArray:
        kernels, kind = self._moe
        ep = np.minimum(np.asarray(expert_parallel, dtype=np.float64), model.n_experts)
        local, width = np.ceil(model.n_experts / ep), np.maximum(model.d_expert * ep / gpus, 1.0)
        shape = Shape(
            tokens=np.maximum(tokens, 1.0),
            d_model=model.d_model,
            width=width,
            local_experts=local,
            top_k=np.maximum(model.top_k, 1.0),
            expert_parallel=ep,
            matrices=float(model.ffn_matrices),
        )
        weights = model.ffn_matrices * np.asarray(model.d_model, dtype=np.float64) * width
        pairs = tokens * np.asarray(model.top_k, dtype=np.float64) / ep
        met = expected_distinct_experts(local, np.minimum(local, model.top_k), pairs / np.minimum(local, model.top_k))
        seconds = self._rescaled(
            kernels.seconds(shape),
            met * weights,
            ACTIVATION_BYTES * pairs * (2.0 * np.asarray(model.d_model) + model.ffn_matrices * width),
            2.0 * pairs * weights,
            kind,
            self.weight_bytes_per_param,
        )
        return np.where(np.asarray(model.n_moe_layers) > 0, model.n_moe_layers * seconds, 0.0)

    def _attention_s(self, stage: str, model: Architecture, gpus: FloatArray, batch: Real, tokens: Real) -> FloatArray:
        """Seconds of attention in all layers, for `batch` contexts (generation) or prompts (context) of `tokens`."""
        if _is_latent(model):
            return self._latent_s(stage, model, gpus, batch, tokens)
        heads, kv_heads = np.maximum(model.n_heads / gpus, 1.0), _kv_heads(model, gpus)
        whole, part = np.maximum(batch, 1.0), np.minimum(batch, 1.0)

        def layer_s(length: Real) -> FloatArray:
            seconds = self._attention_kernel_s(stage, model, whole, length, heads, kv_heads)
            return seconds * (part if stage == "context" else 1.0)

        local = np.asarray(model.n_window_layers, dtype=np.float64)
        if not np.any(local > 0):
            return model.n_layers * layer_s(tokens)
        window = np.where(local > 0, model.window_tokens, np.inf)
        inside = np.minimum(tokens, np.maximum(window, 1.0))
        local_s = layer_s(inside)
        if stage == "context":  # beyond the window every token meets a whole one, within it half of one on average
            local_s = local_s * np.maximum(2.0 * np.asarray(tokens, dtype=np.float64) / inside - 1.0, 1.0)
        return (model.n_layers - local) * layer_s(tokens) + local * local_s

    def _attention_kernel_s(
        self, stage: str, model: Architecture, batch: Real, tokens: Real, heads: Real, kv_heads: Real
    ) -> FloatArray:
        kernel, measured_bytes = self._attention(stage, float(np.max(model.head_dim)))
        seconds = kernel.seconds(batch, tokens, heads, kv_heads, model.head_dim)
        elements = 2.0 * batch * np.asarray(kv_heads) * model.head_dim * tokens
        meets = 4.0 * tokens if stage == "generation" else 2.0 * np.asarray(tokens, dtype=np.float64) ** 2
        flops = meets * batch * np.asarray(heads) * model.head_dim
        if stage == "context":
            return self._for_this_gpu(seconds, elements * ACTIVATION_BYTES, elements * ACTIVATION_BYTES, flops)
        return self._for_this_gpu(seconds, elements * measured_bytes, elements * self.kv_bytes_per_element, flops)

    def _latent_s(self, stage: str, model: Architecture, gpus: FloatArray, batch: Real, tokens: Real) -> FloatArray:
        """Seconds of latent attention and its projections in all layers; NaN where the engine's were not measured."""
        weights = "fp8_block" if self._gemm[1].startswith("fp8") else "bfloat16"
        cached = "fp8" if self.kv_bytes_per_element < WIDE_BYTES else "bfloat16"
        if (weights, cached) not in latent_types(*self._tables, stage):
            return np.full(common_shape(model, gpus, batch, tokens), np.nan)
        heads, whole, part = np.maximum(model.n_heads / gpus, 1.0), np.maximum(batch, 1.0), np.minimum(batch, 1.0)
        seconds = latent_grid(*self._tables, stage, weights, cached).seconds(heads, whole, tokens)
        measured_bytes, _ = rates(self._system, weights)
        this = latent_roofline_s(model, heads, whole, tokens, stage, self._system, self.weight_bytes_per_param)
        measured = latent_roofline_s(MEASURED, heads, whole, tokens, stage, self._system, measured_bytes)
        return model.n_layers * seconds * (this / measured) * (part if stage == "context" else 1.0)

    def _attention(self, stage: str, head_dim: float) -> tuple[Attention, float]:
        """The measured attention nearest in head dimension, and the bytes of its cached elements."""
        wanted = self.kv_bytes_per_element
        for kind, measured in (("fp8", 1.0), ("bfloat16", 2.0)):
            dims = head_dims(*self._tables, stage, kind) if wanted < WIDE_BYTES or kind == "bfloat16" else ()
            if dims:
                nearest = min(dims, key=lambda dim: abs(np.log(dim / head_dim)))
                return attention(*self._tables, stage, kind, nearest), measured
        raise InputError(f"no attention was measured on {self._system.name}", where="silicon", next_step=ROOFLINE)

    def _moved_s(self, model: Architecture, gpus: FloatArray, tokens: Real) -> FloatArray:
        """Norms with their residual additions, two a layer (two reads and two writes each), and the embeddings."""
        row = np.asarray(model.d_model, dtype=np.float64) * ACTIVATION_BYTES
        return 2.0 * model.n_layers * self._elementwise_s(4.0 * tokens * row) + self._elementwise_s(tokens * row)

    def _elementwise_s(self, moved_bytes: Real) -> FloatArray:
        system = self._system
        rate = self.gpu.memory_bandwidth_bytes_per_s * system.elementwise_efficiency
        return system.elementwise_latency_s + np.asarray(moved_bytes, dtype=np.float64) / rate

    def _links_s(self, model: Architecture, gpus: FloatArray, tokens: Real) -> FloatArray:
        """Two all-reduces a layer and one of the embeddings; none on one GPU, unknown beyond the largest server."""
        if not np.any(gpus > 1):
            return np.zeros(np.shape(gpus))
        message = np.maximum(tokens, 1.0) * np.asarray(model.d_model, dtype=np.float64)
        seconds = self._links.seconds(np.maximum(gpus, 2.0), message)
        most = np.exp(self._links.axes[0][-1])
        seconds = np.where(gpus > most + 0.5, np.nan, seconds)
        return np.where(gpus > 1, (2.0 * model.n_layers + 1.0) * seconds, 0.0)

    # From the measured part to this GPU and this number format.

    def _rescaled(
        self, seconds: FloatArray, weights: Real, moved_bytes: Real, flops: Real, kind: str, wanted_bytes: float
    ) -> FloatArray:
        measured_bytes, _ = rates(self._system, kind)
        if abs(wanted_bytes / measured_bytes - 1.0) < 0.1:  # scales of blocks are part of the kernels
            wanted_bytes = measured_bytes
        before, after = weights * measured_bytes + moved_bytes, weights * wanted_bytes + moved_bytes
        return self._for_this_gpu(seconds, before, after, flops, kind)

    def _for_this_gpu(
        self, seconds: FloatArray, measured_bytes: Real, wanted_bytes: Real, flops: Real, kind: str = "bfloat16"
    ) -> FloatArray:
        """A measured time times the ratio of rooflines: this GPU and number format over the measured ones."""
        system, gpu = self._system, self.gpu
        _, measured_peak = rates(system, kind)
        peak = (gpu.fp8_flops_per_s or gpu.bf16_flops_per_s) if kind.startswith("fp8") else gpu.bf16_flops_per_s
        bandwidth, measured_bandwidth = gpu.memory_bandwidth_bytes_per_s, system.memory_bandwidth_bytes_per_s
        # Data sheets are rounded; the measured part itself is not to be scaled.
        bandwidth = measured_bandwidth if abs(bandwidth / measured_bandwidth - 1.0) < 0.02 else bandwidth
        peak = measured_peak if abs(peak / measured_peak - 1.0) < 0.02 else peak
        if measured_bytes is wanted_bytes and bandwidth == measured_bandwidth and peak == measured_peak:
            return seconds
        now = np.maximum(np.asarray(wanted_bytes) / bandwidth, np.asarray(flops) / peak)
        measured = np.maximum(np.asarray(measured_bytes) / measured_bandwidth, np.asarray(flops) / measured_peak)
        return seconds * (now / measured)


def _is_latent(model: Architecture) -> bool:
    """Whether the models have latent attention; raises InputError where some have and others have not."""
    latent = np.asarray(model.kv_lora_rank) > 0
    if latent.any() and not latent.all():
        raise InputError(
            "one array of models mixes latent and ordinary attention",
            where="silicon",
            next_step="ask for each kind alone",
        )
    return bool(latent.any())


def _kv_heads(model: Architecture, gpus: FloatArray) -> FloatArray:
    """Key-value heads a GPU holds: with more GPUs than heads each GPU still holds one."""
    return np.maximum(np.asarray(model.n_kv_heads, dtype=np.float64) / gpus, 1.0)


def _kind(bytes_per_weight: float, measured: tuple[str, ...]) -> str:
    """The measured number format to take: fp8 kernels for 8-bit weights where there are any, else bf16 to be scaled."""
    if FP8_BYTES[0] <= bytes_per_weight <= FP8_BYTES[1]:
        for kind in ("fp8_block", "fp8"):
            if kind in measured:
                return kind
    return "bfloat16"
