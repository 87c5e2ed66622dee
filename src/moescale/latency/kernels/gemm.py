"""Times of dense matrix products from measured kernels."""

from __future__ import annotations

from functools import cache

import numpy as np

from moescale.errors import InputError
from moescale.latency.kernels.formats import PRODUCTS_OF
from moescale.latency.kernels.log_grid import LogGrid, grid_of
from moescale.latency.kernels.tables import default_version, find_table, read_columns
from moescale.typing import FloatArray

# What fp8 products with a scale a tensor were timed with, by family `quantize`: the largest of the activations is looked
# for, and they are divided by it. A checkpoint that holds the scales needs only the second, and neither where the kernel
# before writes fp8. A difference of two times is noise below a share of the first.
SCALE, QUANTISE = "computescale_perf", "scale_matrix_perf"
LEAST_SHARE = 0.1
LEAST_S = 1e-9


@cache
def gemm_types(system: str, engine: str, version: str) -> tuple[str, ...]:
    """Number formats with measured matrix products, such as bfloat16 and fp8_block."""
    table = find_table(system, "gemm", engine, version, "gemm_perf")
    return () if table is None else table.text_values("gemm_dtype")


@cache
def gemm_grid(system: str, engine: str, version: str, kind: str, without: tuple[str, ...] = ()) -> LogGrid:
    """Seconds of an (m, k) times (k, n) product over (m, n, k); a saturated product takes time in proportion to each.

    `without` are kernels of the family `quantize`, SCALE and QUANTISE, whose time is taken off where it was measured.
    """
    table = find_table(system, "gemm", engine, version, "gemm_perf")
    if table is None:
        raise InputError(f"no matrix products were measured for {engine} on {system}", where="silicon")
    columns = read_columns(table, ("m", "n", "k", "latency"), gemm_dtype=kind)
    for other in PRODUCTS_OF.get((engine, kind), ()) if columns["latency"].size else ():
        columns = _faster(columns, _rows_of(system, other, kind))
    seconds = columns["latency"]
    for stem in without:
        seconds = seconds - _quantising_s(system, engine, version, stem, columns["m"], columns["k"])
    seconds = np.maximum(seconds, LEAST_SHARE * columns["latency"])
    return grid_of((columns["m"], columns["n"], columns["k"]), seconds, (1.0, 1.0, 1.0))


def _rows_of(system: str, engine: str, kind: str) -> dict[str, FloatArray]:
    table = find_table(system, "gemm", engine, default_version(system, engine), "gemm_perf")
    assert table is not None
    return read_columns(table, ("m", "n", "k", "latency"), gemm_dtype=kind)


def _faster(one: dict[str, FloatArray], other: dict[str, FloatArray]) -> dict[str, FloatArray]:
    """Of each size that `one` has the faster of its time and that of `other`."""
    if not other["latency"].size:
        return one
    grid = grid_of((other["m"], other["n"], other["k"]), other["latency"], (1.0, 1.0, 1.0))
    return one | {"latency": np.minimum(one["latency"], grid.seconds(one["m"], one["n"], one["k"]))}


def _quantising_s(
    system: str, engine: str, version: str, stem: str, m: FloatArray, k: FloatArray
) -> FloatArray | float:
    """Seconds of a quantising kernel on (m, k) activations; 0 where it was not measured."""
    table = find_table(system, "quantize", engine, version, stem)
    if table is None:
        return 0.0
    rows = read_columns(table, ("m", "k", "latency"), quant_dtype="fp8")
    return grid_of((rows["m"], rows["k"]), np.maximum(rows["latency"], LEAST_S), (1.0, 1.0)).seconds(m, k)
