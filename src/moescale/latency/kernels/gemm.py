"""Times of dense matrix products from measured kernels."""

from __future__ import annotations

from functools import cache

from moescale.errors import InputError
from moescale.latency.kernels.log_grid import LogGrid, grid_of
from moescale.latency.kernels.tables import find_table, read_columns, text_values


@cache
def gemm_types(system: str, engine: str, version: str) -> tuple[str, ...]:
    """Number formats with measured matrix products, such as bfloat16 and fp8_block."""
    path = find_table(system, "gemm", engine, version, "gemm_perf")
    return () if path is None else text_values(path, "gemm_dtype")


@cache
def gemm_grid(system: str, engine: str, version: str, kind: str) -> LogGrid:
    """Seconds of an (m, k) times (k, n) product over (m, n, k); a saturated product takes time in proportion to each."""
    path = find_table(system, "gemm", engine, version, "gemm_perf")
    if path is None:
        raise InputError(f"no matrix products were measured for {engine} on {system}", where="silicon")
    columns = read_columns(path, ("m", "n", "k", "latency"), gemm_dtype=kind)
    return grid_of((columns["m"], columns["n"], columns["k"]), columns["latency"], (1.0, 1.0, 1.0))
