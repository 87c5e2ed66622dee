"""Iteration latency composed from measured kernels, for every shape: NVIDIA's tables, read from aiconfigurator-core.

A pass is the sum of its kernels, each interpolated between measured sizes: the matrix products of attention, of the FFN
in layers without experts, of shared experts, routers and LM head; attention itself; the experts of MoE layers; norms,
activations and the lookup of embeddings; two all-reduces a layer. Layers with and without experts are counted as the
model has them. Where the host takes longer to schedule and sample than the kernels run, it sets the pace.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np

from moescale import catalogue
from moescale.errors import InputError, unknown_name
from moescale.hardware.gpus import Gpu
from moescale.latency import (
    ALL_EXPERTS,
    ALL_EXPERTS_GROUPED,
    FUSED,
    Pass,
    PassSource,
    check_moe_execution,
    common_shape,
    local_experts,
)
from moescale.latency.kernels.attention import attention, attention_kinds
from moescale.latency.kernels.gemm import gemm_grid, gemm_types
from moescale.latency.kernels.latent import MEASURED, latent_grid, latent_roofline_s, latent_types
from moescale.latency.kernels.linear import linear_kernels
from moescale.latency.kernels.links import all_reduce_grid
from moescale.latency.kernels.log_grid import LogGrid
from moescale.latency.kernels.moe import MoeKernels, Shape, moe_kernels, moe_types, rates
from moescale.latency.kernels.sparse import MODULES, nearest_module, sparse_grid, sparse_roofline_s, sparse_types
from moescale.latency.kernels.tables import System, default_version, engines, find_system, versions
from moescale.latency.mixed import expert_width, has_mixers, mixer_products, over_attention_groups
from moescale.latency.roofline import Roofline
from moescale.models.architecture import Architecture
from moescale.models.flops import expected_distinct_experts
from moescale.models.mixers import attention_groups
from moescale.typing import FloatArray, Real

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
# Which fp8 kernels, the first that was measured. Matrix products: one scale a tensor or channel, as vLLM quantises by
# itself; with 128 x 128 blocks the tables have 62 us on H100 for a product of one token that takes 7 us otherwise. Experts:
# blocks, as published checkpoints have them; rows of one scale a tensor look untuned on H100.
FP8_PRODUCTS = ("fp8", "fp8_block")
FP8_EXPERTS = ("fp8_block", "fp8")
WIDE_BYTES = 1.5  # and from here on 16-bit
SCALES = 0.1  # of a weight's bytes: block scales, which belong to the measured kernels
ROUNDING = 0.02  # of data sheets


@cache
def host_s() -> float:
    """Seconds that the host needs for one pass of a server (catalogue/roofline.toml, host.per_iteration_overhead_s)."""
    return float(catalogue.read("roofline.toml")["host"]["per_iteration_overhead_s"]["value"])


@dataclass(frozen=True)
class Silicon(PassSource):
    """Measured kernels of `backend` at `version` (None: the package's current one) on `gpu`, tensor-parallel.

    fp8 weights take measured fp8 kernels where there are any (FP8_PRODUCTS, FP8_EXPERTS). Whatever was not measured is a
    measured kernel times the ratio of its rooflines, and never faster than the data sheet allows: fewer bits a weight,
    other head dimensions, a card with less bandwidth or arithmetic than the measured part, such as the 40 GB A100. Beyond
    a table's largest size a kernel is taken as saturated, up to 10,000 times that size; further on, above 8 GPUs, and for
    latent attention where its kernels were not measured, the answer is NaN. `moe_execution` all-experts takes measured
    dense products for each whole expert that a GPU holds, whatever `expert_parallel` says; NaN beyond a GPU an expert.

    Raises InputError when the package, or a table for the GPU, engine or version, is missing.
    """

    gpu: Gpu
    backend: str = ENGINE
    version: str | None = None
    weight_bytes_per_param: float = 2.0
    kv_bytes_per_element: float = 2.0
    load: str = LOAD
    host_s: float | None = None  # seconds a pass takes on the host at least; None: host_s(), 0: kernels alone
    moe_execution: str = FUSED  # a name of MOE_EXECUTION
    weights: str | None = None  # name of the number format of the weights; None: the one with such bytes

    def __post_init__(self) -> None:
        check_moe_execution(self.moe_execution)
        system = self._system.name
        if self.backend not in engines(system):
            raise unknown_name("engine", self.backend, engines(system), where=f"kernels of {system}")
        known = versions(system, self.backend)
        if self.version is not None and self.version not in known:
            raise unknown_name("version", self.version, known, where=f"{self.backend} on {system}")

    @property
    def name(self) -> str:
        """`silicon`."""
        return "silicon"

    def without_host(self) -> Silicon:
        """The same without the host's time."""
        return replace(self, host_s=0.0)

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
        kind = _kind(self.weight_bytes_per_param, gemm_types(*self._tables), FP8_PRODUCTS)
        return gemm_grid(*self._tables, kind), kind

    @cached_property
    def _gemm_bf16(self) -> LogGrid:
        return gemm_grid(*self._tables, "bfloat16")

    @cached_property
    def _moe(self) -> tuple[MoeKernels, str]:
        kind = _kind(self.weight_bytes_per_param, moe_types(*self._tables), FP8_EXPERTS)
        return moe_kernels(*self._tables, kind, self.load), kind

    @cached_property
    def _links(self) -> tuple[LogGrid, float]:
        """All-reduces, and how many times slower than the measured links those of this card are."""
        system = self.gpu.silicon_link_system
        if system is None:
            return all_reduce_grid(*self._tables), 1.0
        slower = find_system(system).link_bytes_per_s / self.gpu.interconnect_bytes_per_s
        return all_reduce_grid(system, self.backend, default_version(system, self.backend)), slower

    def pass_s(self, model: Architecture, a: Pass) -> FloatArray:
        """Seconds of a pass: its attention, products, experts, moved activations and messages, or the host's."""
        count, tokens = np.asarray(a.gpus, dtype=np.float64), a.tokens
        total_s: Real = 0.0
        if a.batch is not None:
            total_s = self._attention_s("generation", model, count, a.batch, a.context_tokens)
        if a.prompts is not None:
            total_s = total_s + self._attention_s("context", model, count, a.prompts, a.prompt_tokens)
            launches = PROMPT_LAUNCHES_QK_NORM if model.qk_norm else PROMPT_LAUNCHES
            total_s = total_s + model.n_layers * (launches * self._system.elementwise_latency_s)
        if has_mixers(model):
            total_s = total_s + self._mixers_s(model, count, a)
        total_s = total_s + self._products_s(model, count, tokens, a.requests)
        if np.any(np.asarray(model.n_moe_layers) > 0):
            total_s = total_s + self._experts_s(model, count, tokens, a.expert_parallel)
        total_s = total_s + self._moved_s(model, tokens) + self._links_s(model, count, tokens)
        return np.maximum(total_s, host_s() if self.host_s is None else self.host_s)

    def _products_s(self, model: Architecture, gpus: FloatArray, tokens: Real, requests: Real) -> FloatArray:
        """All matrix products but those of the routed experts and of latent attention, whose kernels hold their own."""
        d, layers, total_s = model.d_model, np.asarray(model.n_layers, dtype=np.float64), np.asarray(0.0)
        quantised: list[tuple[Real, Real, Real]] = []  # times, n, k of products with all tokens, in the weights' format
        if not _is_latent(model):
            for group in attention_groups(model):
                queries, cached = group.n_heads * group.head_dim / gpus, _kv_heads(group, gpus) * group.head_dim
                gates = group.n_heads * np.asarray(group.attention_gate) / gpus
                outputs = queries + gates + (1.0 if group.full_keys_are_values else 2.0) * cached
                quantised += [(group.n_layers, outputs, d), (group.n_layers, d, queries)]
        dense = layers - model.n_moe_layers - model.n_layers_without_ffn
        for times, whole in ((dense, model.d_ffn), (model.n_moe_layers, model.d_shared_expert)):
            there = (np.asarray(times) > 0) & (np.asarray(whole) > 0)
            if np.any(there):
                count, width = np.where(there, times, 0.0), np.maximum(whole / gpus, 1.0)
                quantised += [(count, (model.ffn_matrices - 1) * width, d), (count, d, width)]
                moved_s = self._elementwise_s(tokens * (model.ffn_matrices * width * ACTIVATION_BYTES))
                total_s = total_s + count * moved_s
        if quantised:
            # All in one question, which costs a third of as many.
            times, n, k = zip(*quantised, strict=True)
            fields = np.broadcast_arrays(*times, *n, *k, tokens)
            parts = [np.stack(fields[start : start + len(times)]) for start in range(0, 3 * len(times), len(times))]
            total_s = total_s + np.sum(parts[0] * self._product_s(tokens, parts[1], parts[2]), axis=0)
        if np.any(np.asarray(model.n_moe_layers) > 0):
            total_s = total_s + model.n_moe_layers * self._product_s(tokens, model.n_experts, d, bf16=True)
        if np.any(np.asarray(model.vocab_size) > 0):
            total_s = total_s + self._product_s(requests, model.vocab_size / gpus, d, bf16=True)
        return np.asarray(total_s)

    def _product_s(self, m: Real, n: Real, k: Real, *, bf16: bool = False) -> FloatArray:
        """Seconds of an (m, k) times (k, n) product."""
        grid, kind = (self._gemm_bf16, "bfloat16") if bf16 else self._gemm
        seconds = grid.seconds(m, n, k)
        wanted = 2.0 if bf16 else self.weight_bytes_per_param
        weights = np.asarray(n, dtype=np.float64) * k
        flops, moved = 2.0 * m * weights, ACTIVATION_BYTES * m * (np.asarray(n, dtype=np.float64) + k)
        seconds = self._rescaled(seconds, weights, moved, flops, kind, wanted)
        return np.maximum(seconds, self._limit_s(weights, flops, kind, wanted))

    def _limit_s(self, weights: Real, flops: Real, kind: str, wanted_bytes: float) -> FloatArray:
        """Seconds that the data sheet allows at least: every weight read from memory once, every product multiplied.

        Tables were measured one kernel again and again, so that small matrices stay in the GPU's cache; in a model the next
        layer takes their place.
        """
        read_s = np.asarray(weights) * (wanted_bytes / self.gpu.memory_bandwidth_bytes_per_s)
        return np.maximum(read_s, np.asarray(flops) / self._peak(kind))

    def _peak(self, kind: str) -> float:
        """FLOPs a second of this GPU's data sheet."""
        return (kind.startswith("fp8") and self.gpu.fp8_flops_per_s) or self.gpu.bf16_flops_per_s

    def _experts_s(self, model: Architecture, gpus: FloatArray, tokens: Real, expert_parallel: Real) -> FloatArray:
        """Seconds of the routed experts of all layers; asked for the models that have any."""
        if self.moe_execution == ALL_EXPERTS:
            return self._looped_experts_s(model, gpus, tokens)
        top_k = model.n_experts if self.moe_execution == ALL_EXPERTS_GROUPED else model.top_k
        sizes = (model.n_moe_layers, expert_width(model), model.n_experts, top_k, model.d_expert)
        arrays = np.broadcast_arrays(*(np.asarray(n, np.float64) for n in (*sizes, gpus, tokens, expert_parallel)))
        some = arrays[0] > 0
        every = bool(some.all())
        layers, d_model, experts, met, width, count, batch, ways = arrays if every else [part[some] for part in arrays]
        ep = np.minimum(ways, experts)
        local, width = np.ceil(experts / ep), np.maximum(width * ep / count, 1.0)
        matrices = float(model.ffn_matrices)
        shape = Shape(np.maximum(batch, 1.0), d_model, width, local, np.maximum(met, 1.0), ep, matrices)
        layers_s = layers * self._expert_layer_s(shape, batch * met / ep)
        if every:
            return layers_s
        seconds = np.zeros(some.shape)
        seconds[some] = layers_s
        return seconds

    def _expert_layer_s(self, shape: Shape, pairs: FloatArray) -> FloatArray:
        """Seconds of one layer's experts that so many pairs of a token and an expert meet on each GPU."""
        (kernels, kind), wanted = self._moe, self.weight_bytes_per_param
        seconds = kernels.seconds(shape)
        local, weights = np.asarray(shape.local_experts), shape.matrices * shape.d_model * shape.width
        chosen = np.minimum(local, shape.top_k)
        read = expected_distinct_experts(local, chosen, pairs / chosen) * weights
        flops = 2.0 * pairs * weights
        moved = ACTIVATION_BYTES * pairs * (2.0 * shape.d_model + shape.matrices * shape.width)
        seconds = self._rescaled(seconds, read, moved, flops, kind, wanted)
        # Experts as they were measured are believed: uneven routing reads fewer of them than even routing does.
        limit_s = self._limit_s(read, flops, kind, wanted)
        return np.maximum(seconds, np.where(kernels.is_measured(shape.d_model, shape.width), 0.0, limit_s))

    def _looped_experts_s(self, model: Architecture, gpus: FloatArray, tokens: Real) -> FloatArray:
        """Seconds of the routed experts of all layers where each GPU runs its whole experts one after another.

        An expert of vLLM's loop launches its products one by one, and kernels of their own for the activation, the
        product of gate and up, the token's weight (three: compare, multiply, sum), its application, and the sum.
        """
        layers, d = np.asarray(model.n_moe_layers, dtype=np.float64), expert_width(model)
        width, gates = np.maximum(model.d_expert, 1.0), model.ffn_matrices - 2
        products_s = (1 + gates) * self._product_s(tokens, width, d) + self._product_s(tokens, d, width)
        moved_bytes = ACTIVATION_BYTES * np.asarray(tokens) * ((2.0 + 3.0 * gates) * width + 5.0 * d)
        small_s = self._elementwise_s(moved_bytes) + (5.0 + gates) * self._system.elementwise_latency_s
        each = np.where(layers > 0, local_experts(model, gpus), 0.0)
        return layers * each * (products_s + small_s)

    def _mixers_s(self, model: Architecture, gpus: FloatArray, a: Pass) -> FloatArray:
        """Seconds of layers with a state and of projections that experts share; measured kernels of this engine for states.

        Where there are none for them the roofline answers, as it does for the indexers of ordinary attention.
        """
        seconds = np.asarray(0.0)
        for times, n, k in mixer_products(model, gpus):
            seconds = seconds + times * self._product_s(a.tokens, np.maximum(n, 1.0), np.maximum(k, 1.0))
        rest = replace(model, d_expert_model=0.0)
        linear = np.asarray(model.n_linear_layers, dtype=np.float64)
        stages = {"generation": (a.decoded, None), "context": (a.prompts, a.prompt_tokens)}
        kernels = {stage: linear_kernels(*self._tables, model.linear_kind, stage) for stage in stages}
        if np.any(linear > 0) and None not in kernels.values():
            memory, _ = self._ratios("bfloat16")
            for stage, (batch, tokens) in stages.items():
                kernel = kernels[stage]
                if kernel is not None and batch is not None and np.any(np.asarray(batch) > 0):
                    each_s = kernel.seconds(model, gpus, np.maximum(batch, 1.0), tokens)
                    seconds = seconds + linear / memory * each_s * np.minimum(batch, 1.0)
            rest = replace(rest, n_linear_layers=0.0)
        if _is_latent(model) and self._sparse_kind(model) is not None:
            rest = replace(rest, n_index_layers=0.0)  # part of the measured modules
        return seconds + self._analytic.mixers_s(rest, gpus, a) if has_mixers(rest) else seconds

    def _sparse_kind(self, model: Architecture) -> tuple[str, str, str] | None:
        """Measured module and formats of sparse latent attention, where this engine has them for prompts and decoding."""
        if not np.any(np.asarray(model.index_topk) > 0):
            return None
        of_8_bits = self.weight_bytes_per_param < WIDE_BYTES and model.quantised.attention > 0.5
        narrow = self.kv_bytes_per_element < WIDE_BYTES
        types = set(sparse_types(*self._tables, "context")) & set(sparse_types(*self._tables, "generation"))
        for weights in ("fp8_block", "bfloat16") if of_8_bits else ("bfloat16", "fp8_block"):
            for cached in ("fp8", "bfloat16") if narrow else ("bfloat16", "fp8"):
                name = nearest_module(model, tuple(sorted(types)), weights, cached)
                if name is not None:
                    return name, weights, cached
        return None

    def _sparse_s(self, stage: str, model: Architecture, gpus: FloatArray, batch: Real, tokens: Real) -> FloatArray:
        """Seconds of sparse latent attention, its indexers and projections in all layers."""
        found = self._sparse_kind(model)
        if found is None:
            return np.full(common_shape(model, gpus, batch, tokens), np.nan)
        name, weights, cached = found
        heads, whole, part = np.maximum(model.n_heads / gpus, 1.0), np.maximum(batch, 1.0), np.minimum(batch, 1.0)
        measured_bytes, _ = rates(self._system, weights)
        where = (heads, whole, tokens, stage, self._system)
        ratio = sparse_roofline_s(model, *where, self._attention_bytes(model)) / sparse_roofline_s(
            MODULES[name], *where, measured_bytes
        )
        seconds = sparse_grid(*self._tables, stage, name, weights, cached).seconds(heads, whole, tokens)
        return model.n_layers * seconds * ratio * (part if stage == "context" else 1.0)

    def _attention_bytes(self, model: Architecture) -> float:
        """Bytes of an average weight of attention."""
        share = model.quantised.attention
        return share * self.weight_bytes_per_param + (1.0 - share) * max(self.weight_bytes_per_param, 2.0)

    @cached_property
    def _analytic(self) -> Roofline:
        return Roofline(self.gpu, self.weight_bytes_per_param, self.kv_bytes_per_element)

    @over_attention_groups
    def _attention_s(self, stage: str, model: Architecture, gpus: FloatArray, batch: Real, tokens: Real) -> FloatArray:
        """Seconds of attention in all layers, for `batch` contexts (generation) or prompts (context) of `tokens`."""
        if _is_latent(model) and self._sparse_kind(model) is not None:
            return self._sparse_s(stage, model, gpus, batch, tokens)
        if _is_latent(model):
            return self._latent_s(stage, model, gpus, batch, tokens)
        heads, kv_heads = np.maximum(model.n_heads / gpus, 1.0), _kv_heads(model, gpus)
        asked = _Attention(stage, np.maximum(batch, 1.0), tokens, heads, kv_heads, model.head_dim)
        share = np.minimum(batch, 1.0) if stage == "context" else 1.0
        local = np.asarray(model.n_window_layers, dtype=np.float64)
        full_s = share * self._attention_layer_s(asked)
        if not np.any(local > 0):
            return model.n_layers * full_s
        total_s = (model.n_layers - local) * full_s
        sizes = np.broadcast_to(np.asarray(model.window_tokens, dtype=np.float64), local.shape)
        for window in np.unique(sizes[local > 0]):
            layers = np.where(sizes == window, local, 0.0)
            window_s = share * self._attention_layer_s(asked, float(window))
            # What the window holds is attention to everything, of which more was measured.
            total_s = total_s + layers * np.where(np.asarray(tokens) <= window, full_s, window_s)
        return total_s

    def _attention_layer_s(self, a: _Attention, window: float = 0.0) -> FloatArray:
        """Seconds of one layer that attends to everything, or to the last `window` tokens.

        Where a window was not measured with the head dimension, full attention answers for as much work: a context of the
        window's tokens, a prompt of as many pairs of tokens (T w - w^2 / 2 of T tokens beyond w).
        """
        met = a.tokens
        if window:
            met = np.minimum(a.tokens, max(window, 1.0))
            if a.stage == "context":
                met = np.sqrt(met * (2.0 * np.asarray(a.tokens, dtype=np.float64) - met))
        narrow = self.kv_bytes_per_element < WIDE_BYTES
        found = _nearest_attention(*self._tables, a.stage, narrow, float(np.max(a.head_dim)))
        if found is None:
            raise InputError(f"no attention was measured on {self._system.name}", where="silicon", next_step=ROOFLINE)
        kind, head_dim, measured_bytes = found
        measured = (head_dim, window) in attention_kinds(*self._tables, a.stage, kind)
        kernel = attention(*self._tables, a.stage, kind, head_dim, window if measured else 0.0)
        seconds = kernel.seconds(a.batch, a.tokens if measured else met, a.heads, a.kv_heads, a.head_dim)
        elements = 2.0 * a.batch * np.asarray(a.kv_heads) * a.head_dim * met
        meets = 4.0 * met if a.stage == "generation" else 2.0 * np.asarray(met, dtype=np.float64) ** 2
        flops, wanted_bytes = meets * a.batch * np.asarray(a.heads) * a.head_dim, self.kv_bytes_per_element
        if a.stage == "context":  # a prompt's own keys and values are not read from the cache
            measured_bytes = wanted_bytes = ACTIVATION_BYTES
        seconds = self._for_this_gpu(seconds, elements * measured_bytes, elements * wanted_bytes, flops)
        return np.maximum(seconds, self._limit_s(elements, flops, "bfloat16", wanted_bytes))

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

    def _moved_s(self, model: Architecture, tokens: Real) -> FloatArray:
        """Norms with their residual additions, two a layer (two reads and two writes each), and the embeddings."""
        row = np.asarray(model.d_model, dtype=np.float64) * ACTIVATION_BYTES
        norms = model.norms_per_layer * np.asarray(model.n_layers, dtype=np.float64) - model.n_layers_without_ffn
        return norms * self._elementwise_s(4.0 * tokens * row) + self._elementwise_s(tokens * row)

    def _elementwise_s(self, moved_bytes: Real) -> FloatArray:
        system = self._system
        rate = self.gpu.memory_bandwidth_bytes_per_s * system.elementwise_efficiency
        return system.elementwise_latency_s + np.asarray(moved_bytes, dtype=np.float64) / rate

    def _links_s(self, model: Architecture, gpus: FloatArray, tokens: Real) -> FloatArray:
        """Two all-reduces a layer and one of the embeddings; none on one GPU, unknown beyond the largest server."""
        if not np.any(gpus > 1):
            return np.zeros(np.shape(gpus))
        grid, slower = self._links
        # A link of half the rate takes as long for a message as the measured one for twice of it.
        message = slower * np.maximum(tokens, 1.0) * np.asarray(model.d_model, dtype=np.float64)
        beyond = gpus > np.exp(grid.axes[0][-1]) + 0.5
        seconds = np.where(beyond, np.nan, grid.seconds(np.maximum(gpus, 2.0), message))
        messages = 2.0 * np.asarray(model.n_layers, dtype=np.float64) - model.n_layers_without_ffn + 1.0
        return np.where(gpus > 1, messages * seconds, 0.0)

    def _ratios(self, kind: str) -> tuple[float, float]:
        """This GPU's memory bandwidth and FLOP rate over the measured part's; data sheets are rounded, so near 1 is 1."""
        _, measured_peak = rates(self._system, kind)
        bandwidth = self.gpu.memory_bandwidth_bytes_per_s / self._system.memory_bandwidth_bytes_per_s
        peak = self._peak(kind) / measured_peak
        return (1.0 if abs(bandwidth - 1.0) < ROUNDING else bandwidth, 1.0 if abs(peak - 1.0) < ROUNDING else peak)

    def _rescaled(
        self, seconds: FloatArray, weights: Real, moved_bytes: Real, flops: Real, kind: str, wanted_bytes: float
    ) -> FloatArray:
        """Kernels of `kind` with weights of so many bytes; as they are on the measured part with the measured weights."""
        measured_bytes, _ = rates(self._system, kind)
        if abs(wanted_bytes / measured_bytes - 1.0) < SCALES:
            wanted_bytes = measured_bytes
            if self._ratios(kind) == (1.0, 1.0):
                return seconds
        before, after = weights * measured_bytes + moved_bytes, weights * wanted_bytes + moved_bytes
        return self._for_this_gpu(seconds, before, after, flops, kind)

    def _for_this_gpu(
        self, seconds: FloatArray, measured_bytes: Real, wanted_bytes: Real, flops: Real, kind: str = "bfloat16"
    ) -> FloatArray:
        """A measured time times the ratio of rooflines: this GPU and number format over the measured ones."""
        bandwidth, peak = self._ratios(kind)
        _, measured_peak = rates(self._system, kind)
        memory = 1.0 / self._system.memory_bandwidth_bytes_per_s
        now = np.maximum(np.asarray(wanted_bytes) * (memory / bandwidth), np.asarray(flops) / (measured_peak * peak))
        measured = np.maximum(np.asarray(measured_bytes) * memory, np.asarray(flops) / measured_peak)
        return seconds * (now / measured)


@dataclass(frozen=True, slots=True)
class _Attention:
    """Attention of one layer on one GPU: `batch` contexts (generation) or prompts (context) of `tokens` tokens."""

    stage: str
    batch: Real
    tokens: Real
    heads: Real
    kv_heads: Real
    head_dim: Real


@cache
def _nearest_attention(
    system: str, engine: str, version: str, stage: str, narrow: bool, head_dim: float
) -> tuple[str, float, float] | None:
    """Cache type, head dimension and bytes of a cached element; None where nothing was measured.

    The nearest head dimension first, and of those the cache type that is meant: kernels of 512 channels are others than
    those of 128, which quantisation is not.
    """
    types = (("fp8", 1.0), ("bfloat16", 2.0)) if narrow else (("bfloat16", 2.0),)
    found = [
        (abs(float(np.log(dim / head_dim))), order, kind, dim, measured)
        for order, (kind, measured) in enumerate(types)
        for dim, window in attention_kinds(system, engine, version, stage, kind)
        if window == 0.0
    ]
    return min(found)[2:] if found else None


def _is_latent(model: Architecture) -> bool:
    """Whether the models have latent attention; raises InputError where some have and others have not."""
    latent = np.asarray(model.kv_lora_rank) > 0
    if latent.any() and not latent.all():
        what = "one array of models mixes latent and ordinary attention"
        raise InputError(what, where="silicon", next_step="ask for each kind alone")
    return bool(latent.any())


def _kv_heads(model: Architecture, gpus: FloatArray) -> FloatArray:
    """Key-value heads a GPU holds: with more GPUs than heads each GPU still holds one."""
    return np.maximum(np.asarray(model.n_kv_heads, dtype=np.float64) / gpus, 1.0)


def _kind(bytes_per_weight: float, measured: tuple[str, ...], fp8: tuple[str, str]) -> str:
    """The measured number format to take: fp8 kernels for 8-bit weights where there are any, else bf16 to be scaled."""
    is_fp8 = FP8_BYTES[0] <= bytes_per_weight <= FP8_BYTES[1]
    return next((kind for kind in fp8 if is_fp8 and kind in measured), "bfloat16")
