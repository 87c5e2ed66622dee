"""Times of dense matrix products from measured kernels."""

from __future__ import annotations

from functools import cache

import numpy as np

from moescale.errors import InputError
from moescale.latency.kernels.formats import PRODUCTS_OF
from moescale.latency.kernels.log_grid import LogGrid, grid_of
from moescale.latency.kernels.tables import default_version, find_table, read_columns

# What fp8 products with a scale a tensor were timed with, by family `quantize`: the largest of the activations is looked
# for, and they are divided by it. A checkpoint that holds the scales needs only the second, and neither where the kernel
# before writes fp8. A difference of two times is noise below a share of the first.
SCALE, QUANTISE = "computescale_perf", "scale_matrix_perf"
LEAST_SHARE = 0.1
LEAST_S = 1e-9


@cache
def gemm_grid(system: str, engine: str, version: str, kind: str, without: tuple[str, ...] = ()) -> LogGrid:
    """Seconds of an (m, k) times (k, n) product over (m, n, k); a saturated product takes time in proportion to each.

    `without` are kernels of the family `quantize`, SCALE and QUANTISE, whose time is taken off where it was measured.
    """
    table = find_table(system, "gemm", engine, version, "gemm_perf")
    if table is None:
        raise InputError(f"no matrix products were measured for {engine} on {system}", where="silicon")
    names = ("m", "n", "k", "latency")
    columns = read_columns(table, names, gemm_dtype=kind)
    for other in PRODUCTS_OF.get((engine, kind), ()) if columns["latency"].size else ():  # of each size the faster
        theirs = find_table(system, "gemm", other, default_version(system, other), "gemm_perf")
        rows = {} if theirs is None else read_columns(theirs, names, gemm_dtype=kind)
        if rows and rows["latency"].size:
            grid = grid_of((rows["m"], rows["n"], rows["k"]), rows["latency"], (1.0, 1.0, 1.0))
            faster = grid.seconds(columns["m"], columns["n"], columns["k"])
            columns["latency"] = np.minimum(columns["latency"], faster)
    seconds = columns["latency"]
    for stem in without:
        if (quantising := find_table(system, "quantize", engine, version, stem)) is not None:
            rows = read_columns(quantising, ("m", "k", "latency"), quant_dtype="fp8")
            grid = grid_of((rows["m"], rows["k"]), np.maximum(rows["latency"], LEAST_S), (1.0, 1.0))
            seconds = seconds - grid.seconds(columns["m"], columns["k"])
    seconds = np.maximum(seconds, LEAST_SHARE * columns["latency"])
    return grid_of((columns["m"], columns["n"], columns["k"]), seconds, (1.0, 1.0, 1.0))
