"""One kind of GPU with the measured kernels of one engine, for weights and a cache of one number format."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from moescale.errors import InputError
from moescale.hardware.gpus import Gpu
from moescale.latency import FUSED
from moescale.latency.engines import NO_ENGINE, engines
from moescale.latency.kernels.exchange import all_reduce_grid
from moescale.latency.kernels.formats import BF16, KINDS, STATIC_SCALES, expert_kinds, format_of, product_kinds, rates
from moescale.latency.kernels.gemm import QUANTISE, SCALE, gemm_grid, gemm_types
from moescale.latency.kernels.log_grid import LogGrid
from moescale.latency.kernels.moe import moe_types
from moescale.latency.kernels.tables import System, default_version, find_system
from moescale.latency.roofline import ACTIVATION_BYTES, Roofline
from moescale.models.architecture import Architecture
from moescale.models.operations import Product
from moescale.models.parameters import share_taken
from moescale.typing import FloatArray, Real

WIDE_BYTES = 1.5  # and from here on 16-bit
SCALES = 0.1  # of a weight's bytes: block scales, which belong to the measured kernels
ROUNDING = 0.02  # of data sheets
ROOFLINE = "take the roofline as the latency source; it covers every GPU"
Asked = tuple[Product, float]  # with the share of it that is quantised


# How unevenly tokens fall on experts: a power law with this exponent is what aiconfigurator-core takes for MoE models.
ENGINE, LOAD = "vllm", "power_law_1.2"


@dataclass(frozen=True)
class Card:
    """What every measured kernel is looked up with, and carried over to this GPU and these formats: the fields of Silicon."""

    gpu: Gpu
    backend: str = ENGINE
    version: str | None = None
    weight_bytes_per_param: float = 2.0
    kv_bytes_per_element: float = 2.0
    load: str = LOAD
    host_s: float | None = None  # seconds a pass takes on the host at least; None: host_s(), 0: kernels alone
    moe_execution: str = FUSED  # a name of MOE_EXECUTION
    weights: str | None = None  # name of the number format of the weights; None: the one with such bytes

    @cached_property
    def system(self) -> System:
        """The measured kind of GPU."""
        if self.gpu.silicon_system is None:
            raise InputError(f"there are no measured kernels for {self.gpu.name}", where="silicon", next_step=ROOFLINE)
        return find_system(self.gpu.silicon_system)

    @cached_property
    def tables(self) -> tuple[str, str, str]:
        """System, engine and version of the tables."""
        name = self.system.name
        return name, self.backend, self.version or default_version(name, self.backend)

    @cached_property
    def format(self) -> str:
        """Number format of the weights."""
        return format_of(self.weights, self.weight_bytes_per_param)

    def share(self, model: Architecture, part: str) -> float:
        """What a checkpoint holds of a part in the weights' format; all but router and LM head where that is bf16 anyway."""
        if self.weight_bytes_per_param < WIDE_BYTES:
            return share_taken(model.quantised, "attention" if part == "expert_projection" else part)
        return 0.0 if part in ("router", "lm_head") else 1.0

    def product_kind(self, model: Architecture, *, with_experts: bool) -> str:
        """The measured products of the weights' format in a model with or without experts."""
        per_tensor, measured = model.quantised.scale_per_tensor, gemm_types(*self.tables)
        wanted = product_kinds(self.format, self.backend, with_experts=with_experts, per_tensor=per_tensor)
        return next((kind for kind in wanted if kind in measured), BF16)

    def expert_kind(self, model: Architecture) -> str:
        """The measured experts of the weights' format."""
        measured = moe_types(*self.tables)
        wanted = expert_kinds(self.format, per_tensor=model.quantised.scale_per_tensor)
        return next((kind for kind in wanted if kind in measured), BF16)

    def products_s(self, asked: list[Asked], tokens: Real, model: Architecture) -> Real:
        """Seconds of products with so many tokens each, what is quantised in the kernels of models with experts or without."""
        kinds = [self.product_kind(model, with_experts=with_experts) for with_experts in (False, True)]
        if kinds == [BF16, BF16] and self.weight_bytes_per_param == 2.0:  # nothing is quantised: all in one
            return self.summed_s([(op, 1.0) for op, _ in sorted(asked, key=lambda each: -each[1])], tokens, None, ())
        static, sparse = self.backend in STATIC_SCALES and "fp8" in kinds, np.asarray(model.n_moe_layers) > 0
        total_s: Real = 0.0
        alike = kinds[0] == kinds[1] or not sparse.any()
        for fused in (False, True) if static else (None,):
            those = [(op, share) for op, share in asked if share > 0.0 and (fused is None or op.closes == fused)]
            without = () if fused is None else (SCALE, QUANTISE) if fused else (SCALE,)
            dense_s, sparse_s = (
                0.0 if unused else self.summed_s(those, tokens, kind, without if kind == "fp8" else ())
                for kind, unused in zip(kinds, (not alike and bool(sparse.all()), alike), strict=True)
            )
            total_s = total_s + (dense_s if alike else np.where(sparse, sparse_s, dense_s))
        plain = [(op, 1.0 - share) for op, share in asked if share < 1.0]
        return total_s + self.summed_s(plain, tokens, None, ())

    def summed_s(self, asked: list[Asked], tokens: Real, quantised: str | None, without: tuple[str, ...]) -> Real:
        """Seconds of all products, in one question, which costs a third of as many: of bf16 weights, or in kernels of a kind."""
        if not asked:
            return 0.0
        fields = np.broadcast_arrays(*(size for op, share in asked for size in (op.times * share, op.n, op.k)))
        # Sizes of products along the first axis, and axes that tokens alone have after it: each size is looked up once.
        alone = (1,) * (np.ndim(tokens) - fields[0].ndim)
        times, n, k = (np.stack(fields[start::3]).reshape(-1, *alone, *fields[0].shape) for start in range(3))
        n, k, kind = np.maximum(n, 1.0), np.maximum(k, 1.0), quantised or BF16
        wanted = 2.0 if quantised is None else self.weight_bytes_per_param
        weights = n * k
        flops, moved = 2.0 * tokens * weights, ACTIVATION_BYTES * tokens * (n + k)
        seconds = gemm_grid(*self.tables, kind, without).seconds(tokens, n, k)
        seconds = self.rescaled(seconds, weights, moved, flops, kind, wanted)
        return np.sum(times * np.maximum(seconds, self.limit_s(weights, flops, kind, wanted)), axis=0)

    def limit_s(self, weights: Real, flops: Real, kind: str, wanted_bytes: float) -> FloatArray:
        """Seconds that the data sheet allows at least: every weight read from memory once, every product multiplied.

        Tables were measured one kernel again and again, so that small matrices stay in the GPU's cache; in a model the next
        layer takes their place.
        """
        read_s = np.asarray(weights) * (wanted_bytes / self.gpu.memory_bandwidth_bytes_per_s)
        return np.maximum(read_s, np.asarray(flops) / self.peak(kind))

    def peak(self, kind: str) -> float:
        """FLOPs a second of this GPU's data sheet."""
        own = {"fp8": self.gpu.fp8_flops_per_s, "fp4": self.gpu.fp4_flops_per_s}
        return own.get(KINDS[kind].arithmetic) or self.gpu.bf16_flops_per_s

    def elementwise_s(self, moved_bytes: Real) -> FloatArray:
        system = self.system
        rate = self.gpu.memory_bandwidth_bytes_per_s * system.elementwise_efficiency
        return system.elementwise_latency_s + np.asarray(moved_bytes, dtype=np.float64) / rate

    def ratios(self, kind: str) -> tuple[float, float]:
        """This GPU's memory bandwidth and FLOP rate over the measured part's; data sheets are rounded, so near 1 is 1."""
        _, measured_peak = rates(self.system, kind)
        bandwidth = self.gpu.memory_bandwidth_bytes_per_s / self.system.memory_bandwidth_bytes_per_s
        peak = self.peak(kind) / measured_peak
        return (1.0 if abs(bandwidth - 1.0) < ROUNDING else bandwidth, 1.0 if abs(peak - 1.0) < ROUNDING else peak)

    def rescaled(
        self, seconds: FloatArray, weights: Real, moved_bytes: Real, flops: Real, kind: str, wanted_bytes: float
    ) -> FloatArray:
        """Kernels of `kind` with weights of so many bytes; as they are on the measured part with the measured weights."""
        measured_bytes, _ = rates(self.system, kind)
        if abs(wanted_bytes / measured_bytes - 1.0) < SCALES:
            wanted_bytes = measured_bytes
            if self.ratios(kind) == (1.0, 1.0):
                return seconds
        before, after = weights * measured_bytes + moved_bytes, weights * wanted_bytes + moved_bytes
        return self.for_this_gpu(seconds, before, after, flops, kind)

    def for_this_gpu(
        self, seconds: FloatArray, measured_bytes: Real, wanted_bytes: Real, flops: Real, kind: str = BF16
    ) -> FloatArray:
        """A measured time times the ratio of rooflines: this GPU and number format over the measured ones."""
        bandwidth, peak = self.ratios(kind)
        _, measured_peak = rates(self.system, kind)
        memory = 1.0 / self.system.memory_bandwidth_bytes_per_s
        now = np.maximum(np.asarray(wanted_bytes) * (memory / bandwidth), np.asarray(flops) / (measured_peak * peak))
        measured = np.maximum(np.asarray(measured_bytes) * memory, np.asarray(flops) / measured_peak)
        return seconds * (now / measured)

    @cached_property
    def fused_norms(self) -> bool:
        """Whether the engine norms queries and keys in the kernel of their rotary positions."""
        return engines().get(self.backend, NO_ENGINE).fused_norms

    @cached_property
    def cache_type(self) -> str:
        return "fp8" if self.kv_bytes_per_element < WIDE_BYTES else BF16

    @cached_property
    def analytic(self) -> Roofline:
        return Roofline(self.gpu, self.weight_bytes_per_param, self.kv_bytes_per_element, weights=self.weights)

    @cached_property
    def links(self) -> tuple[LogGrid, float]:
        """All-reduces, and how many times slower than the measured links those of this card are."""
        system = self.gpu.silicon_link_system
        if system is None:
            return all_reduce_grid(*self.tables), 1.0
        slower = find_system(system).link_bytes_per_s / self.gpu.interconnect_bytes_per_s
        return all_reduce_grid(system, self.backend, default_version(system, self.backend)), slower
