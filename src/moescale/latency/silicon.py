"""Iteration latency composed from measured kernels, for every shape: NVIDIA's tables (latency/kernels/tables.py).

A pass is the sum of its kernels, each interpolated between measured sizes: the matrix products of attention, of the FFN
in layers without experts, of shared experts, routers and LM head; attention itself; the experts of MoE layers; norms,
activations and the lookup of embeddings; two all-reduces a layer. Layers with and without experts are counted as the
model has them. With attention data parallelism all but the experts is what the busiest group of GPUs computes, and exchanges
of tokens stand before and after the experts instead. Where the host takes longer to schedule and sample than the kernels
run, it sets the pace.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np
import numpy.typing as npt

from moescale import catalogue
from moescale.errors import InputError, UnknownNameError, nearest_names, unknown_name
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
    network,
)
from moescale.latency.kernels.attention import FP8_FP8, attention, attention_kinds
from moescale.latency.kernels.exchange import (
    MEASURED_TOP_K,
    MEASURED_WIDTH,
    collective_grid,
    deepep_grid,
    spread_experts,
)
from moescale.latency.kernels.formats import (
    BF16,
    KINDS,
    LATENT,
    STATIC_SCALES,
    expert_kinds,
    format_of,
    product_kinds,
    rates,
)
from moescale.latency.kernels.gemm import QUANTISE, SCALE, gemm_grid, gemm_types
from moescale.latency.kernels.latent import (
    MEASURED,
    attention_grid,
    into_space_grids,
    latent_grid,
    latent_roofline_s,
    nearest_latent,
)
from moescale.latency.kernels.linear import linear_kernels
from moescale.latency.kernels.links import all_reduce_grid, within_server_s
from moescale.latency.kernels.log_grid import LogGrid
from moescale.latency.kernels.moe import Shape, moe_kernels, moe_types
from moescale.latency.kernels.sparse import MODULES, nearest_module, sparse_grid, sparse_roofline_s, sparse_types
from moescale.latency.kernels.tables import (
    System,
    check_present,
    default_version,
    engines,
    find_system,
    versions,
)
from moescale.latency.roofline import Roofline
from moescale.models.architecture import Architecture, some
from moescale.models.flops import expected_distinct_experts
from moescale.models.operations import Attention, Indexer, Product, State, attention_products, operations
from moescale.models.parameters import share_taken
from moescale.typing import FloatArray, Real

ROOFLINE = "take the roofline as the latency source; it covers every GPU"
ENGINE = "vllm"
# How unevenly tokens fall on experts: a power law with this exponent is what aiconfigurator-core takes for MoE models.
LOAD = "power_law_1.2"
ACTIVATION_BYTES = 2.0  # bf16, also where weights have fewer bits
# A prompt's attention comes with kernels of its own around it (rotary positions, writing the cache): so many launches
# reproduce what the package's own engine adds to its tables, with and without norms of queries and keys.
PROMPT_LAUNCHES = 4.4
PROMPT_LAUNCHES_QK_NORM = 13.2
# Linear layers whose output meets a norm and a gate in a kernel of its own, which the tables do not hold.
GATED_NORMS = ("gated-delta", "kda", "mamba2")
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

    Weights take the measured kernels of their format where there are any (kernels/formats.py), and each part of a model
    as many of them as `quantised` says that it holds in that format, the rest in bf16. Whatever was not measured is a
    measured kernel times the ratio of its rooflines, and never faster than the data sheet allows: formats without kernels,
    other head dimensions, a card with less bandwidth or arithmetic than the measured part, such as the 40 GB A100. Beyond
    a table's largest size a kernel is taken as saturated, up to 10,000 times that size; further on, and for latent
    attention where its kernels were not measured, the answer is NaN. What leaves a server takes the network's time as well.
    Tokens fall on experts as unevenly as `load` says. `moe_execution` all-experts takes measured
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
            raise unknown_name("engine", self.backend, engines(system), otherwise=f"those were measured on {system}")
        check_present(system, *self._tables[1:])
        if self.version is None:
            return
        known = versions(system, self.backend)
        if self.version not in known:
            what = f"unknown version {self.version!r} of {self.backend} on {system}"
            raise UnknownNameError(
                what, nearest=nearest_names(self.version, known) or known[-1], next_step=f"known: {', '.join(known)}"
            )

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

    @property
    def tables(self) -> tuple[str, str, str]:
        """System, engine and version of the tables."""
        return self._tables

    @cached_property
    def _tables(self) -> tuple[str, str, str]:
        """As `tables`."""
        name = self._system.name
        return name, self.backend, self.version or default_version(name, self.backend)

    @cached_property
    def _format(self) -> str:
        """The number format of the weights, by its name or else by its bytes."""
        return format_of(self.weights, self.weight_bytes_per_param)

    def _share(self, model: Architecture, part: str) -> float:
        """What a checkpoint holds of a part in the weights' format; all but router and LM head where that is bf16 anyway."""
        if self.weight_bytes_per_param < WIDE_BYTES:
            return share_taken(model.quantised, "attention" if part == "expert_projection" else part)
        return 0.0 if part in ("router", "lm_head") else 1.0

    def _product_kind(self, *, with_experts: bool) -> str:
        """The measured products of the weights' format in a model with or without experts."""
        measured = gemm_types(*self._tables)
        wanted = product_kinds(self._format, self.backend, with_experts=with_experts)
        return next((kind for kind in wanted if kind in measured), BF16)

    @cached_property
    def _expert_kind(self) -> str:
        """The measured experts of the weights' format."""
        measured = moe_types(*self._tables)
        return next((kind for kind in expert_kinds(self._format) if kind in measured), BF16)

    def unmeasured(self, model: Architecture) -> list[str]:
        """The parts of a model whose matrices are priced as scaled bf16 kernels: nobody measured those of their format."""
        if self._format == "bf16":
            return []
        products = (op for op in operations(model) if isinstance(op, Product) and some(op.times))
        held = {op.part for op in products if share_taken(model.quantised, op.part) > 0.0}
        latent, pair = _is_latent(model) and "attention" in held, None
        if latent:
            wanted = (*LATENT.get(self._format, ()), BF16)
            pair = nearest_latent(*self._tables, "generation", wanted, self._cache_type)
        dense = held & {"dense_ffn", "shared_experts", "lm_head", *(() if _is_latent(model) else ("attention",))}
        parts = {
            "latent attention": pair is not None and pair[0] == BF16,
            "matrix products": dense and self._product_kind(with_experts=some(model.n_moe_layers)) == BF16,
            "experts": "experts" in held and self._expert_kind == BF16,
        }
        return [name for name, scaled in parts.items() if scaled]

    @cached_property
    def _links(self) -> tuple[LogGrid, float]:
        """All-reduces, and how many times slower than the measured links those of this card are."""
        system = self.gpu.silicon_link_system
        if system is None:
            return all_reduce_grid(*self._tables), 1.0
        slower = find_system(system).link_bytes_per_s / self.gpu.interconnect_bytes_per_s
        return all_reduce_grid(system, self.backend, default_version(system, self.backend)), slower

    def pass_s(self, model: Architecture, a: Pass) -> FloatArray:
        """Seconds of a pass: its operations, moved activations and messages, or the host's."""
        whole, a = a, a.busiest_rank
        gpus, sparse = np.asarray(a.gpus, dtype=np.float64), np.asarray(model.n_moe_layers) > 0
        latent, module = _is_latent(model), self._sparse_module(model)
        asked: dict[bool, list[_Asked]] = {False: [], True: []}  # whether of the LM head, which meets fewer tokens
        total_s: Real = 0.0
        for op in operations(model, gpus):
            if isinstance(op, Attention):
                total_s = total_s + self._attention_s(op, model, module, a)
            elif isinstance(op, State):
                total_s = total_s + self._state_s(op, a)
            elif isinstance(op, Indexer) or (isinstance(op, Product) and op.part == "indexer"):
                if module is None:  # else it is part of the measured one
                    total_s = total_s + self._analytic.operation_s(op, a)
            elif isinstance(op, Product) and op.part != "experts" and some(op.times):
                if not (latent and op.part == "attention"):  # whose kernels hold their own
                    asked[op.part == "lm_head"].append((op, self._share(model, op.part)))
                if op.closes and op.part in ("dense_ffn", "shared_experts"):
                    width = np.maximum(op.k, 1.0)
                    moved_s = self._elementwise_s(a.tokens * (model.ffn_matrices * width * ACTIVATION_BYTES))
                    total_s = total_s + op.times * moved_s
        for of_head, tokens in ((False, a.tokens), (True, a.requests)):
            total_s = total_s + self._products_s(asked[of_head], tokens, sparse)
        if np.any(sparse):
            total_s = total_s + self._all_experts_s(model, whole)
        total_s = total_s + self._moved_s(model, a.tokens) + self._links_s(model, whole, a)
        if model.qk_norm_full_width:
            total_s = total_s + self._norm_links_s(model, gpus, a.tokens)
        return np.maximum(total_s, host_s() if self.host_s is None else self.host_s)

    def _products_s(self, asked: list[_Asked], tokens: Real, sparse: npt.NDArray[np.bool_]) -> Real:
        """Seconds of products with so many tokens each, what is quantised in the kernels of models with experts or without."""
        kinds = [self._product_kind(with_experts=with_experts) for with_experts in (False, True)]
        static = self.backend in STATIC_SCALES and "fp8" in kinds
        total_s: Real = 0.0
        alike = kinds[0] == kinds[1] or not sparse.any()
        for fused in (False, True) if static else (None,):
            those = [(op, share) for op, share in asked if share > 0.0 and (fused is None or op.closes == fused)]
            without = () if fused is None else (SCALE, QUANTISE) if fused else (SCALE,)
            dense_s, sparse_s = (
                0.0 if unused else self._summed_s(those, tokens, kind, without if kind == "fp8" else ())
                for kind, unused in zip(kinds, (not alike and bool(sparse.all()), alike), strict=True)
            )
            total_s = total_s + (dense_s if alike else np.where(sparse, sparse_s, dense_s))
        plain = [(op, 1.0 - share) for op, share in asked if share < 1.0]
        return total_s + self._summed_s(plain, tokens, None, ())

    def _summed_s(self, asked: list[_Asked], tokens: Real, kind: str | None, without: tuple[str, ...]) -> Real:
        """Seconds of all products in kernels of one kind, in one question, which costs a third of as many."""
        if not asked:
            return 0.0
        sizes = ([op.times * share for op, share in asked], [op.n for op, _ in asked], [op.k for op, _ in asked])
        fields = np.broadcast_arrays(*(size for part in sizes for size in part), tokens)
        times, n, k = (np.stack(fields[start * len(asked) : (start + 1) * len(asked)]) for start in range(3))
        return np.sum(times * self._product_s(tokens, np.maximum(n, 1.0), np.maximum(k, 1.0), kind, without), axis=0)

    def _product_s(
        self, m: Real, n: Real, k: Real, quantised: str | None = None, without: tuple[str, ...] = ()
    ) -> FloatArray:
        """Seconds of an (m, k) times (k, n) product of bf16 weights, or of quantised ones in kernels of the stated kind."""
        kind = quantised or BF16
        seconds = gemm_grid(*self._tables, kind, without).seconds(m, n, k)
        wanted = 2.0 if quantised is None else self.weight_bytes_per_param
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
        own = {"fp8": self.gpu.fp8_flops_per_s, "fp4": self.gpu.fp4_flops_per_s}
        return own.get(KINDS[kind].arithmetic) or self.gpu.bf16_flops_per_s

    def _experts_s(self, model: Architecture, gpus: FloatArray, tokens: Real, expert_parallel: Real) -> FloatArray:
        """Seconds of the routed experts of all layers; asked for the models that have any."""
        if self.moe_execution == ALL_EXPERTS:
            return self._looped_experts_s(model, gpus, tokens)
        top_k = model.n_experts if self.moe_execution == ALL_EXPERTS_GROUPED else model.top_k
        sizes = (model.n_moe_layers, _expert_model_width(model), model.n_experts, top_k, model.d_expert)
        arrays = np.broadcast_arrays(*(np.asarray(n, np.float64) for n in (*sizes, gpus, tokens, expert_parallel)))
        some = arrays[0] > 0
        every = bool(some.all())
        layers, d_model, experts, met, width, count, batch, ways = arrays if every else [part[some] for part in arrays]
        ep = np.minimum(ways, experts)
        local, width = np.ceil(experts / ep), np.maximum(width * ep / count, 1.0)
        matrices = float(model.ffn_matrices)
        shape = Shape(np.maximum(batch, 1.0), d_model, width, local, np.maximum(met, 1.0), ep, matrices)
        share, pairs = self._share(model, "experts"), batch * met / ep
        layer_s: Real = 0.0
        if share > 0.0:
            layer_s = share * self._expert_layer_s(shape, pairs, self._expert_kind, self.weight_bytes_per_param)
        if share < 1.0:
            layer_s = layer_s + (1.0 - share) * self._expert_layer_s(shape, pairs, BF16, 2.0)
        layers_s = layers * layer_s
        if every:
            return layers_s
        seconds = np.zeros(some.shape)
        seconds[some] = layers_s
        return seconds

    def _all_experts_s(self, model: Architecture, a: Pass) -> FloatArray:
        """Seconds of the routed experts of all layers, of the tokens of all groups of attention."""
        gpus = np.asarray(a.gpus, dtype=np.float64)
        seconds, alone = self._experts_s(model, gpus, a.tokens, a.expert_parallel), self._sends_alone(a)
        if not np.any(alone):
            return seconds
        experts = spread_experts(self._system.name, prompts=a.prompts is not None)
        if experts is None:
            return seconds
        weights = float(model.ffn_matrices) * np.asarray(model.d_model, dtype=np.float64) * model.d_expert
        layer_s = experts.seconds(gpus, a.tokens, model.top_k, model.n_experts, weights)
        pairs = np.asarray(a.tokens, dtype=np.float64) * model.top_k / gpus
        moved = ACTIVATION_BYTES * pairs * (2.0 * model.d_model + model.ffn_matrices * model.d_expert)
        local = np.ceil(np.asarray(model.n_experts, dtype=np.float64) / gpus)
        read = weights * np.minimum(local, pairs)
        flops, wanted = 2.0 * pairs * weights, self.weight_bytes_per_param
        layer_s = self._rescaled(layer_s, read, moved, flops, "fp8_block", wanted)
        return np.where(alone, model.n_moe_layers * layer_s, seconds)

    def _sends_alone(self, a: Pass) -> npt.NDArray[np.bool_]:
        """Where groups of attention send each token to its experts alone: over several servers, to whole experts."""
        gpus = np.asarray(a.gpus, dtype=np.float64)
        several = (gpus > self.gpu.gpus_per_server) & (np.asarray(a.attention_dp) > 1)
        return several & (np.asarray(a.expert_parallel, dtype=np.float64) >= gpus)

    def _expert_layer_s(self, shape: Shape, pairs: FloatArray, kind: str, wanted: float) -> FloatArray:
        """Seconds of one layer's experts that so many pairs of a token and an expert meet on each GPU."""
        kernels = moe_kernels(*self._tables, kind, self.load)
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
        layers, d = np.asarray(model.n_moe_layers, dtype=np.float64), _expert_model_width(model)
        width, gates = np.maximum(model.d_expert, 1.0), model.ffn_matrices - 2
        each_of = (Product("experts", 1.0 + gates, width, d), Product("experts", 1.0, d, width, closes=True))
        share = self._share(model, "experts")
        products_s = self._products_s([(op, share) for op in each_of], tokens, layers > 0)
        moved_bytes = ACTIVATION_BYTES * np.asarray(tokens) * ((2.0 + 3.0 * gates) * width + 5.0 * d)
        small_s = self._elementwise_s(moved_bytes) + (5.0 + gates) * self._system.elementwise_latency_s
        each = np.where(layers > 0, local_experts(model, gpus), 0.0)
        return layers * each * (products_s + small_s)

    def _state_s(self, op: State, a: Pass) -> Real:
        """Seconds of layers with a state, by measured kernels of this engine, or where there are none by the roofline."""
        stages = {"generation": (a.decoded, None), "context": (a.prompts, a.prompt_tokens)}
        kernels = {stage: linear_kernels(*self._tables, op.kind, stage) for stage in stages}
        if None in kernels.values():
            return self._analytic.operation_s(op, a)
        seconds: Real = 0.0
        for stage, (batch, tokens) in stages.items():
            kernel = kernels[stage]
            if kernel is not None and batch is not None and np.any(np.asarray(batch) > 0):
                each_s = kernel.seconds(op, np.maximum(batch, 1.0), tokens)
                seconds = seconds + op.layers / self._ratios(BF16)[0] * each_s * np.minimum(batch, 1.0)
        if op.kind in GATED_NORMS:
            seconds = seconds + op.layers * self._elementwise_s(a.tokens * (3.0 * ACTIVATION_BYTES * op.values))
        return seconds

    def _sparse_module(self, model: Architecture) -> tuple[str, str, str] | None:
        """Measured module and formats of sparse latent attention, where this engine has them for prompts and decoding."""
        if not (some(model.index_topk) and _is_latent(model)):
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

    def _sparse_s(self, a: _Attention, model: Architecture, module: tuple[str, str, str]) -> FloatArray:
        """Seconds of one layer's sparse latent attention, its indexer and projections.

        Every query chooses for itself, as a request of its own does; after a cached prefix a prompt takes what it takes
        longer than the prefix alone.
        """
        if a.stage == "context" and np.any(np.asarray(a.prefix) > 0.0):
            lengths = (np.asarray(a.tokens) + a.prefix, np.maximum(a.prefix, 1.0), a.tokens)
            parts = (replace(a, tokens=tokens, prefix=0.0) for tokens in lengths)
            whole_s, before_s, alone_s = (self._sparse_s(part, model, module) for part in parts)
            return np.where(np.asarray(a.prefix) > 0.0, np.maximum(whole_s - before_s, alone_s), alone_s)
        name, weights, cached = module
        measured_bytes, _ = rates(self._system, weights)
        sizes = (a.heads, a.batch * np.asarray(a.queries), a.tokens)
        where = (*sizes, a.stage, self._system)
        ratio = sparse_roofline_s(model, *where, self._attention_bytes(model)) / sparse_roofline_s(
            MODULES[name], *where, measured_bytes
        )
        return sparse_grid(*self._tables, a.stage, name, weights, cached).seconds(*sizes) * ratio

    def _attention_bytes(self, model: Architecture) -> float:
        """Bytes of an average weight of attention."""
        share = model.quantised.attention
        return share * self.weight_bytes_per_param + (1.0 - share) * max(self.weight_bytes_per_param, 2.0)

    @cached_property
    def _analytic(self) -> Roofline:
        return Roofline(self.gpu, self.weight_bytes_per_param, self.kv_bytes_per_element, weights=self.weights)

    def _attention_s(self, op: Attention, model: Architecture, module: tuple[str, str, str] | None, a: Pass) -> Real:
        """Seconds of the attention of layers whose heads are alike, and of the kernels around it."""
        heads, total_s = np.maximum(op.heads, 1.0), 0.0
        if some(op.gate):
            gates = op.heads * np.asarray(op.gate)
            gated_s = self._elementwise_s(a.tokens * (ACTIVATION_BYTES * (2.0 * op.heads * op.head_dim + gates)))
            total_s = total_s + np.where(gates > 0, op.layers * gated_s, 0.0)
        asked: list[_Attention] = []
        if a.batch is not None:
            asked.append(_Attention("generation", a.batch, a.context_tokens, heads, queries=a.query_tokens))
        if a.prompts is not None:
            asked.append(_Attention("context", a.prompts, a.prompt_tokens, heads, prefix=a.prefix_tokens))
            # Norms of queries and keys take time here, and none where tokens are decoded.
            launches = PROMPT_LAUNCHES_QK_NORM if model.qk_norm else PROMPT_LAUNCHES
            total_s = total_s + op.layers * (launches * self._system.elementwise_latency_s)
        for part in asked:
            share = np.minimum(part.batch, 1.0) if part.stage == "context" else 1.0  # of a prompt
            one = replace(part, batch=np.maximum(part.batch, 1.0))
            if module is not None:
                seconds = op.layers * self._sparse_s(one, model, module)
            elif _is_latent(model):
                seconds = op.layers * self._latent_s(one, model)
            else:
                seconds = self._grouped_s(one, op.with_chosen_window())
            total_s = total_s + share * seconds
        return total_s

    def _grouped_s(self, a: _Attention, op: Attention) -> Real:
        """Seconds of ordinary attention in all layers."""
        full_s, local = self._attention_layer_s(a, op), np.asarray(op.window_layers, dtype=np.float64)
        if not np.any(local > 0):
            return op.layers * full_s
        total_s = (op.layers - local) * full_s
        sizes = np.broadcast_to(np.asarray(op.window, dtype=np.float64), local.shape)
        for window in np.unique(sizes[local > 0]):
            layers = np.where(sizes == window, local, 0.0)
            window_s = self._attention_layer_s(a, op, float(window))
            # What the window holds is attention to everything, of which more was measured.
            total_s = total_s + layers * np.where(np.asarray(a.tokens) + a.prefix <= window, full_s, window_s)
        return total_s

    def _attention_layer_s(self, a: _Attention, op: Attention, window: float = 0.0) -> FloatArray:
        """Seconds of one layer that attends to everything, or to the last `window` tokens.

        Where a window was not measured with the head dimension, full attention answers for as much work: a context of the
        window's tokens, a prompt of as many pairs of tokens (T w - w^2 / 2 of T tokens beyond w). So it does for a prompt
        after a prefix, which was not measured either; several queries of a context take the ratio of their rooflines.
        """
        kv_heads = np.maximum(op.kv_heads, 1.0)
        met, after_prefix = a.tokens, bool(np.any(np.asarray(a.prefix) > 0))
        if after_prefix:
            met = _tokens_of_pairs(a.tokens, a.prefix, window or math.inf)
        elif window:
            met = np.minimum(a.tokens, max(window, 1.0))
            if a.stage == "context":
                met = np.sqrt(met * (2.0 * np.asarray(a.tokens, dtype=np.float64) - met))
        narrow = self.kv_bytes_per_element < WIDE_BYTES
        in_fp8 = a.stage == "context" and self.gpu.fp8_flops_per_s is not None
        found = _nearest_attention(*self._tables, a.stage, narrow, float(np.max(op.head_dim)), in_fp8)
        if found is None:
            raise InputError(f"no attention was measured on {self._system.name}", where="silicon", next_step=ROOFLINE)
        kind, head_dim, measured_bytes = found
        measured = (head_dim, window) in attention_kinds(*self._tables, a.stage, kind) and not after_prefix
        kernel = attention(*self._tables, a.stage, kind, head_dim, window if measured else 0.0)
        seconds = kernel.seconds(a.batch, a.tokens if measured else met, a.heads, kv_heads, op.head_dim)
        elements = 2.0 * a.batch * kv_heads * op.head_dim * met
        meets = 4.0 * met if a.stage == "generation" else 2.0 * np.asarray(met, dtype=np.float64) ** 2
        flops, wanted_bytes = meets * a.batch * np.asarray(a.heads) * op.head_dim, self.kv_bytes_per_element
        if a.stage == "context":  # a prompt's own keys and values are not read from the cache
            measured_bytes = wanted_bytes = ACTIVATION_BYTES
        arithmetic = "fp8" if kind == FP8_FP8 else BF16
        if np.any(np.asarray(a.queries) != 1.0):
            _, peak = rates(self._system, arithmetic)
            read_s = elements * measured_bytes / self._system.memory_bandwidth_bytes_per_s
            seconds = seconds * (np.maximum(read_s, a.queries * flops / peak) / np.maximum(read_s, flops / peak))
            flops = a.queries * flops
        seconds = self._for_this_gpu(seconds, elements * measured_bytes, elements * wanted_bytes, flops, arithmetic)
        return np.maximum(seconds, self._limit_s(elements, flops, arithmetic, wanted_bytes))

    def _latent_s(self, a: _Attention, model: Architecture) -> Real:
        """Seconds of one layer's latent attention and its projections; NaN where the engine's were not measured."""
        share, seconds = self._share(model, "attention"), 0.0
        if share > 0.0:
            seconds = share * self._latent_layer_s(a, model, LATENT.get(self._format, ()), self.weight_bytes_per_param)
        if share < 1.0:
            seconds = seconds + (1.0 - share) * self._latent_layer_s(a, model, (), 2.0)
        return seconds

    @cached_property
    def _cache_type(self) -> str:
        return "fp8" if self.kv_bytes_per_element < WIDE_BYTES else BF16

    def _latent_layer_s(
        self, a: _Attention, model: Architecture, kinds: tuple[str, ...], weight_bytes: float
    ) -> FloatArray:
        """Seconds of one layer whose weights have so many bytes, of the nearest formats of modules that were measured."""
        pair = nearest_latent(*self._tables, a.stage, (*kinds, BF16), self._cache_type)
        if pair is None:
            return self._latent_parts_s(a, model, weight_bytes)
        weights, cached = pair
        seconds = latent_grid(*self._tables, a.stage, weights, cached).seconds(a.heads, a.batch, a.tokens)
        return seconds * self._latent_ratio(a, model, cached, weight_bytes, KINDS[weights].bytes_per_weight)

    def _latent_ratio(
        self, a: _Attention, model: Architecture, cached: str, weight_bytes: float, measured_bytes: float
    ) -> FloatArray:
        """Roofline of this model, GPU and formats over that of the measured ones; no bytes: attention alone."""
        where, system, (bandwidth, peak) = (a.heads, a.batch, a.tokens, a.stage), self._system, self._ratios(BF16)
        if measured_bytes and abs(weight_bytes / measured_bytes - 1.0) < SCALES:
            weight_bytes = measured_bytes
        rate, flops = system.memory_bandwidth_bytes_per_s, system.bf16_flops_per_s
        measured_cache = KINDS[cached].bytes_per_weight
        wanted_cache = KINDS[self._cache_type].bytes_per_weight
        these = (rate * bandwidth, flops * peak, weight_bytes, wanted_cache)
        this = latent_roofline_s(model, *where, *these, prefix=a.prefix, queries=a.queries)
        measured = latent_roofline_s(MEASURED, *where, rate, flops, measured_bytes, measured_cache)
        return this / measured

    def _latent_parts_s(self, a: _Attention, model: Architecture, weight_bytes: float) -> FloatArray:
        """Seconds of one layer from attention alone and its products; NaN where attention was not measured either."""
        cached = next((c for c in (self._cache_type, BF16) if attention_grid(*self._tables, a.stage, c)), BF16)
        grid = attention_grid(*self._tables, a.stage, cached)
        if grid is None:
            return np.full(common_shape(model, a.heads, a.batch, a.tokens, a.prefix, a.queries), np.nan)
        seconds = grid.seconds(a.heads, a.batch, a.tokens) * self._latent_ratio(a, model, cached, 0.0, 0.0)
        prompts, share = a.stage == "context", 1.0 if weight_bytes < WIDE_BYTES else 0.0
        new = a.batch * np.asarray(a.tokens if prompts else a.queries)
        products = [op for op in attention_products(model, a.heads) if prompts or not op.expands]
        if not prompts:
            kind = "fp8" if share else BF16
            grids = into_space_grids(*self._tables, kind) or into_space_grids(*self._tables, BF16)
            seconds = seconds + sum(g.seconds(a.heads, new) for g in grids)
        ranks = model.q_lora_rank + np.asarray(model.kv_lora_rank)
        norms_s = 2.0 * self._elementwise_s(ACTIVATION_BYTES * new * ranks)
        asked = [(replace(op, closes=False), share) for op in products]
        return np.asarray(seconds + norms_s + self._products_s(asked, new, np.asarray(model.n_moe_layers) > 0))

    def _moved_s(self, model: Architecture, tokens: Real) -> FloatArray:
        """Norms with their residual additions, two a layer (two reads and two writes each), and the embeddings."""
        row = np.asarray(model.d_model, dtype=np.float64) * ACTIVATION_BYTES
        norms = model.norms_per_layer * np.asarray(model.n_layers, dtype=np.float64) - model.n_layers_without_ffn
        return norms * self._elementwise_s(4.0 * tokens * row) + self._elementwise_s(tokens * row)

    def _elementwise_s(self, moved_bytes: Real) -> FloatArray:
        system = self._system
        rate = self.gpu.memory_bandwidth_bytes_per_s * system.elementwise_efficiency
        return system.elementwise_latency_s + np.asarray(moved_bytes, dtype=np.float64) / rate

    def _links_s(self, model: Architecture, whole: Pass, rank: Pass) -> FloatArray:
        """Two all-reduces a layer and one of the embeddings; none on one GPU.

        With attention data parallelism they are within a group, and an exchange among all GPUs stands for the second one of
        a layer with experts.
        """
        gpus = np.asarray(rank.gpus, dtype=np.float64)
        times = 2.0 * np.asarray(model.n_layers, dtype=np.float64) - model.n_layers_without_ffn + 1.0
        if whole is rank:
            return self._all_reduces_s(model, gpus, rank.tokens, times)
        spread = np.asarray(whole.attention_dp, dtype=np.float64) > 1.0
        seconds = self._all_reduces_s(model, gpus, rank.tokens, times - np.where(spread, model.n_moe_layers, 0.0))
        return seconds + np.where(spread, model.n_moe_layers * self._exchange_s(model, whole, rank), 0.0)

    def _all_reduces_s(self, model: Architecture, gpus: FloatArray, tokens: Real, times: Real) -> FloatArray:
        """So many all-reduces of the tokens' activations over so many GPUs."""
        if not np.any(gpus > 1):
            return np.zeros(np.shape(gpus))
        grid, slower = self._links
        # A link of half the rate takes as long for a message as the measured one for twice of it.
        elements = np.maximum(tokens, 1.0) * np.asarray(model.d_model, dtype=np.float64)
        seconds = within_server_s(grid, network.in_server(self.gpu, gpus), slower * elements)
        if np.any(gpus > self.gpu.gpus_per_server):
            seconds = seconds + network.all_reduce_s(self.gpu, gpus, ACTIVATION_BYTES * elements)
        return np.where(gpus > 1, times * seconds, 0.0)

    def _exchange_s(self, model: Architecture, whole: Pass, rank: Pass) -> FloatArray:
        """Seconds that tokens take to the experts of one layer, and their sums back, among all GPUs."""
        gpus, tokens = np.asarray(whole.gpus, dtype=np.float64), np.maximum(whole.tokens, 1.0)
        d_model = np.asarray(model.d_model, dtype=np.float64)
        elements, each = tokens * d_model, network.in_server(self.gpu, gpus)
        _, slower = self._links
        system = self.gpu.silicon_link_system or self._system.name
        gather, scatter = (collective_grid(system, name) for name in ("all_gather", "reduce_scatter"))
        if gather is None or scatter is None:  # an all-reduce is both
            inside_s = within_server_s(self._links[0], each, slower * elements)
        else:
            inside_s = within_server_s(gather, each, slower * elements) + within_server_s(
                scatter, each, slower * elements
            )
        far = gpus > self.gpu.gpus_per_server
        if not np.any(far):
            return inside_s
        # To its experts each token is sent alone, from the GPU that holds it: fp8 there and bf16 back.
        own = np.maximum(np.asarray(rank.tokens, dtype=np.float64) / rank.gpus, 1.0)
        deepep = deepep_grid(self._system.name, low_latency=whole.prompts is None)
        if deepep is not None:
            like = own * (d_model * model.top_k / (MEASURED_WIDTH * MEASURED_TOP_K))
            sent_s = deepep.seconds(network.servers(self.gpu, gpus), like)
        else:
            sent_bytes = own * model.top_k * d_model * (1.0 + ACTIVATION_BYTES)
            in_one_s = within_server_s(self._links[0], each, slower * elements / network.servers(self.gpu, gpus))
            sent_s = in_one_s + network.exchange_s(self.gpu, gpus, sent_bytes) + network.HOP_S
        # An expert that is split itself needs every token of all its GPUs.
        all_s = inside_s + network.all_reduce_s(self.gpu, gpus, ACTIVATION_BYTES * elements)
        return np.where(far, np.where(self._sends_alone(whole), sent_s, all_s), inside_s)

    def _norm_links_s(self, model: Architecture, gpus: FloatArray, tokens: Real) -> FloatArray:
        """Norms over all heads, which tensor-parallel GPUs share: an all-reduce of two sums of squares a token and layer."""
        if not np.any(gpus > 1):
            return np.zeros(np.shape(gpus))
        grid, _ = self._links
        seconds = grid.seconds(np.maximum(gpus, 2.0), 2.0 * np.maximum(tokens, 1.0))
        return np.where(gpus > 1, model.n_layers * seconds, 0.0)

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
        self, seconds: FloatArray, measured_bytes: Real, wanted_bytes: Real, flops: Real, kind: str = BF16
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
    prefix: Real = 0.0  # tokens that the cache holds already of each prompt
    queries: Real = 1.0  # new tokens of each context


def _tokens_of_pairs(tokens: Real, prefix: Real, window: float) -> FloatArray:
    """Tokens of a prompt on its own with as many pairs of tokens as `tokens` after a cached `prefix`, within a window."""

    def pairs(length: Real) -> FloatArray:
        met = np.minimum(np.asarray(length, dtype=np.float64), window)
        return met * (np.asarray(length, dtype=np.float64) - met / 2.0)

    return np.sqrt(2.0 * (pairs(np.asarray(tokens) + prefix) - pairs(prefix)))


_Asked = tuple[Product, float]  # with the share of it that is quantised


@cache
def _nearest_attention(
    system: str, engine: str, version: str, stage: str, narrow: bool, head_dim: float, in_fp8: bool
) -> tuple[str, float, float] | None:
    """Cache type, head dimension and bytes of a cached element; None where nothing was measured.

    The nearest head dimension first, and of those the cache type that is meant: kernels of 512 channels are others than
    those of 128, which quantisation is not. A prompt over a cache of 8 bits is multiplied in fp8 where that was measured.
    """
    types = (("fp8", 1.0), (BF16, 2.0)) if narrow else ((BF16, 2.0),)
    if narrow and in_fp8:
        types = ((FP8_FP8, 1.0), *types)
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


def _expert_model_width(a: Architecture) -> Real:
    """What routed experts read and write."""
    return np.where(np.asarray(a.d_expert_model) > 0, a.d_expert_model, a.d_model)
