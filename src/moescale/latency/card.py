"""One kind of GPU with the measured kernels of one engine, for weights and a cache of one number format; its matrix products."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np

from moescale.errors import InputError
from moescale.hardware.gpus import Gpu
from moescale.latency import FUSED
from moescale.latency.kernels import formats
from moescale.latency.kernels.formats import BF16, KINDS, peak_of
from moescale.latency.kernels.log_grid import LogGrid, grid_of
from moescale.latency.kernels.tables import (
    System,
    default_version,
    find_grid,
    find_system,
    find_table,
    measured_formats,
    read_columns,
)
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
ENGINE = "vllm"
# What fp8 products with a scale a tensor were timed with, by family `quantize`: the largest of the activations is looked
# for, and they are divided by it. A checkpoint that holds the scales needs only the second, and neither where the kernel
# before writes fp8. A difference of two times is noise below a share of the first.
SCALE, QUANTISE = "computescale_perf", "scale_matrix_perf"
LEAST_SHARE = 0.1
LEAST_S = 1e-9


@dataclass(frozen=True, slots=True)
class Stage:
    """What attention computes in one layer on one GPU: `batch` contexts (generation) or prompts (context)."""

    name: str
    batch: Real
    tokens: Real  # of each
    heads: Real
    prefix: Real = 0.0  # tokens that the cache holds already of each prompt
    queries: Real = 1.0  # new tokens of each context
    params: Real = 0.0  # of the projections of latent attention


@cache
def gemm_grid(system: str, engine: str, version: str, kind: str, without: tuple[str, ...] = ()) -> LogGrid:
    """Seconds of an (m, k) times (k, n) product over (m, n, k), without the kernels of the family `quantize` that `without` names."""
    table = find_table(system, "gemm", engine, version, "gemm_perf")
    if table is None:
        raise InputError(f"no matrix products were measured for {engine} on {system}", where="silicon")
    sizes, slopes = ("m", "n", "k"), (1.0, 1.0, 1.0)
    m, n, k, measured_s = read_columns(table, (*sizes, "latency"), gemm_dtype=kind).values()
    for other in formats.PRODUCTS_OF.get((engine, kind), ()):
        theirs = (system, "gemm", other, default_version(system, other), "gemm_perf")
        if (grid := find_grid(theirs, sizes, slopes, gemm_dtype=kind)) is not None:
            measured_s = np.minimum(measured_s, grid.seconds(m, n, k))
    seconds = measured_s
    for stem in without:
        if (quantising := find_table(system, "quantize", engine, version, stem)) is not None:
            rows = read_columns(quantising, ("m", "k", "latency"), quant_dtype="fp8")
            grid = grid_of((rows["m"], rows["k"]), np.maximum(rows["latency"], LEAST_S), (1.0, 1.0))
            seconds = seconds - grid.seconds(m, k)
    return grid_of((m, n, k), np.maximum(seconds, LEAST_SHARE * measured_s), slopes)


def by_share(share: float, seconds: Callable[..., Real], in_format: tuple[Any, ...], plain: tuple[Any, ...]) -> Real:
    """Seconds of matrices of which a share has the weights' format and the others are plain, each asked with its arguments."""
    total_s: Real = 0.0
    for part, arguments in ((share, in_format), (1.0 - share, plain)):
        if part > 0.0:
            total_s = total_s + part * seconds(*arguments)
    return total_s


@dataclass(frozen=True)
class Card:
    """What every measured kernel is looked up with, and carried over to this GPU and these formats: the fields of Silicon."""

    gpu: Gpu
    backend: str = ENGINE
    weight_bytes_per_param: float = 2.0
    kv_bytes_per_element: float = 2.0
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
        return name, self.backend, default_version(name, self.backend)

    @cached_property
    def format(self) -> str:
        """Number format of the weights: the named one, or where none is fp8 for 8-bit weights and else bf16."""
        is_fp8 = formats.FP8_BYTES[0] <= self.weight_bytes_per_param <= formats.FP8_BYTES[1]
        return self.weights or ("fp8" if is_fp8 else "bf16")

    def share(self, model: Architecture, part: str) -> float:
        """What a checkpoint holds of a part in the weights' format; all but router and LM head where that is bf16 anyway."""
        if self.weight_bytes_per_param < WIDE_BYTES:
            return share_taken(model.quantised, "attention" if part == "expert_projection" else part)
        return 0.0 if part in ("router", "lm_head") else 1.0

    def product_kind(self, model: Architecture, *, with_experts: bool) -> str:
        """The measured products of the weights' format in a model with or without experts."""
        blocks = self.backend in formats.BLOCK_ENGINES and with_experts and not model.quantised.scale_per_tensor
        return self._first_measured("gemm", formats.PRODUCTS, reverse=blocks)

    def expert_kind(self, model: Architecture) -> str:
        """The measured experts of the weights' format."""
        return self._first_measured("moe", formats.EXPERTS, reverse=model.quantised.scale_per_tensor)

    def _first_measured(self, family: str, kernels: Mapping[str, tuple[str, ...]], *, reverse: bool) -> str:
        """The first kernels of the weights' format that were measured, in fp8 from the last where `reverse`; else bf16 ones."""
        wanted, measured = kernels.get(self.format, ()), measured_formats(family, *self.tables)
        wanted = wanted[::-1] if reverse and self.format == "fp8" else wanted
        return next((kind for kind in wanted if kind in measured), BF16)

    def products_s(self, asked: list[Asked], tokens: Real, model: Architecture) -> Real:
        """Seconds of products with so many tokens each, what is quantised in the kernels of models with experts or without."""
        dense, sparse = (self.product_kind(model, with_experts=with_experts) for with_experts in (False, True))
        if dense == sparse == BF16 and self.weight_bytes_per_param == 2.0:  # nothing is quantised: all in one
            return self._summed_s([(op, 1.0) for op, _ in asked], tokens, BF16, 2.0)
        has_experts = np.asarray(model.n_moe_layers) > 0
        if dense != sparse and has_experts.any() and not has_experts.all():
            total_s = np.where(has_experts, *(self._quantised_s(asked, tokens, kind) for kind in (sparse, dense)))
        else:
            total_s = self._quantised_s(asked, tokens, sparse if has_experts.any() else dense)
        plain = [(op, 1.0 - share) for op, share in asked if share < 1.0]
        return total_s + self._summed_s(plain, tokens, BF16, 2.0)

    def _quantised_s(self, asked: list[Asked], tokens: Real, kind: str) -> Real:
        """Seconds of what is quantised in products; of static scales a kernel before the last of a block writes fp8 itself."""
        held = [(op, share) for op, share in asked if share > 0.0]
        if kind != "fp8" or self.backend not in formats.STATIC_SCALES:
            return self._summed_s(held, tokens, kind, self.weight_bytes_per_param)
        total_s: Real = 0.0
        for closes, without in ((False, (SCALE,)), (True, (SCALE, QUANTISE))):
            those = [each for each in held if each[0].closes == closes]
            total_s = total_s + self._summed_s(those, tokens, kind, self.weight_bytes_per_param, without)
        return total_s

    def _summed_s(
        self, asked: list[Asked], tokens: Real, kind: str, weight_bytes: float, without: tuple[str, ...] = ()
    ) -> Real:
        """Seconds of all products in kernels of a kind, in one question, which costs a third of as many."""
        if not asked:
            return 0.0
        fields = np.broadcast_arrays(*(size for op, share in asked for size in (op.times * share, op.n, op.k)))
        # Sizes of products along the first axis, and axes that tokens alone have after it: each size is looked up once.
        alone = (1,) * (np.ndim(tokens) - fields[0].ndim)
        times, n, k = (np.stack(fields[start::3]).reshape(-1, *alone, *fields[0].shape) for start in range(3))
        n, k = np.maximum(n, 1.0), np.maximum(k, 1.0)
        weights = n * k
        flops, moved = 2.0 * tokens * weights, ACTIVATION_BYTES * tokens * (n + k)
        measured_s = gemm_grid(*self.tables, kind, without).seconds(tokens, n, k)
        seconds = self.rescaled(measured_s, weights, moved, flops, kind, weight_bytes)
        return np.sum(times * np.maximum(seconds, self.limit_s(weights, flops, kind, weight_bytes)), axis=0)

    def limit_s(self, weights: Real, flops: Real, kind: str, wanted_bytes: float) -> FloatArray:
        """Seconds that the data sheet allows at least: tables were measured again and again, with small matrices in the GPU's cache."""
        read_s = np.asarray(weights) * (wanted_bytes / self.gpu.memory_bandwidth_bytes_per_s)
        return np.maximum(read_s, np.asarray(flops) / peak_of(self.gpu, kind))

    def elementwise_s(self, moved_bytes: Real) -> FloatArray:
        rate = self.gpu.memory_bandwidth_bytes_per_s * self.system.elementwise_efficiency
        return self.system.elementwise_latency_s + np.asarray(moved_bytes, dtype=np.float64) / rate

    def ratios(self, kind: str) -> tuple[float, float]:
        """This GPU's memory bandwidth and FLOP rate over the measured part's; data sheets are rounded, so near 1 is 1."""
        bandwidth = self.gpu.memory_bandwidth_bytes_per_s / self.system.memory_bandwidth_bytes_per_s
        peak = peak_of(self.gpu, kind) / peak_of(self.system, kind)
        return (1.0 if abs(bandwidth - 1.0) < ROUNDING else bandwidth, 1.0 if abs(peak - 1.0) < ROUNDING else peak)

    def rescaled(
        self, seconds: FloatArray, weights: Real, moved_bytes: Real, flops: Real, kind: str, wanted_bytes: float
    ) -> FloatArray:
        """Kernels of `kind` with weights of so many bytes; as they are on the measured part with the measured weights."""
        measured_bytes = KINDS[kind].bytes_per_weight
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
        (bandwidth, peak), measured_peak = self.ratios(kind), peak_of(self.system, kind)
        memory = 1.0 / self.system.memory_bandwidth_bytes_per_s
        now = np.maximum(np.asarray(wanted_bytes) * (memory / bandwidth), np.asarray(flops) / (measured_peak * peak))
        measured = np.maximum(np.asarray(measured_bytes) * memory, np.asarray(flops) / measured_peak)
        return seconds * (now / measured)

    @cached_property
    def cache_type(self) -> str:
        return "fp8" if self.kv_bytes_per_element < WIDE_BYTES else BF16

    @cached_property
    def analytic(self) -> Roofline:
        return Roofline(self.gpu, self.weight_bytes_per_param, self.kv_bytes_per_element, weights=self.weights)
