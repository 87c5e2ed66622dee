"""Times of attention from measured kernels.

Each key-value head of each request is a problem of its own, worked on side by side with the others. So a model with more
key-value heads than were measured is priced as proportionally more requests with the most heads that were: rows of the
tables that can be compared so agree to a few percent.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from moescale.errors import InputError
from moescale.latency.kernels.log_grid import LogGrid, grid_of
from moescale.latency.kernels.tables import find_table, of_the_fastest, read_columns
from moescale.typing import FloatArray, Real

COLUMNS = ("batch_size", "isl", "step", "num_heads", "num_key_value_heads", "head_dim", "window_size", "latency")
FP8_FP8 = "fp8_fp8"  # cached keys and values in fp8, and multiplied in it
MOST_KV_HEADS = 8.0  # measured for every number of query heads a key-value head


@dataclass(frozen=True, slots=True)
class Attention:
    """Measured attention of one stage: generation (one new token a request) or context (causal, over a whole prompt)."""

    grid: LogGrid  # key-value heads, query heads a key-value head, requests, tokens
    head_dim: float

    def seconds(self, batch: Real, tokens: Real, heads: Real, kv_heads: Real, head_dim: Real) -> FloatArray:
        """Seconds of one layer; `tokens` is the context (generation) or the prompt (context). Arguments broadcast.

        Another head dimension than the measured one takes time in proportion.
        """
        cached = np.minimum(kv_heads, MOST_KV_HEADS)
        requests = batch * (kv_heads / cached)
        seconds = self.grid.seconds(cached, np.asarray(heads, dtype=np.float64) / kv_heads, requests, tokens)
        return seconds * (np.asarray(head_dim, dtype=np.float64) / self.head_dim)


@cache
def _rows(system: str, engine: str, version: str, stage: str, cache_type: str) -> dict[str, FloatArray]:
    """Rows of attention with this type of cached keys and values, or of `fp8_fp8`, which multiplies in fp8 as well.

    Of each size those of the fastest kernel source; empty where it was not measured.
    """
    table = find_table(system, "attention", engine, version, f"{stage}_attention_perf")
    if table is None:
        raise InputError(f"no attention was measured for {engine} on {system}", where="silicon")
    multiplied = "fp8" if cache_type == FP8_FP8 else "bfloat16"
    names = (*COLUMNS, "kernel_source")
    columns = read_columns(table, names, attn_dtype=multiplied, kv_cache_dtype=cache_type.partition("_")[0])
    if np.unique(columns["kernel_source"]).size > 1:
        keys = np.stack([columns[name] for name in COLUMNS[:-1]], axis=1)
        places, seconds = of_the_fastest(keys, columns["kernel_source"], columns["latency"])
        columns = dict(zip(COLUMNS, (*places.T, seconds), strict=True))
    kv = columns["num_key_value_heads"]
    columns["num_key_value_heads"] = np.where(kv > 0, kv, columns["num_heads"])  # 0 stands for one a query head
    regular = np.isin(columns["num_key_value_heads"], (1.0, 2.0, 4.0, MOST_KV_HEADS))
    return {name: values[regular] for name, values in columns.items()}


@cache
def attention_kinds(
    system: str, engine: str, version: str, stage: str, cache_type: str
) -> tuple[tuple[float, float], ...]:
    """Measured pairs of head dimension and window (0: the full context), ascending; empty where there are none."""
    rows = _rows(system, engine, version, stage, cache_type)
    dims, windows = rows["head_dim"], rows["window_size"]
    return tuple((d, w) for d in np.unique(dims).tolist() for w in np.unique(windows[dims == d]).tolist())


@cache
def attention(
    system: str, engine: str, version: str, stage: str, cache_type: str, head_dim: float, window: float = 0.0
) -> Attention:
    """Measured attention of a head dimension and a window that attention_kinds lists together."""
    rows = grid_rows(system, engine, version, stage, cache_type, head_dim, window)
    return Attention(grid_of(*rows), head_dim)


def grid_rows(
    system: str, engine: str, version: str, stage: str, cache_type: str, head_dim: float, window: float
) -> tuple[tuple[FloatArray, FloatArray, FloatArray, FloatArray], FloatArray, tuple[float, float, float, float]]:
    """Sizes (one array an axis of Attention.grid), seconds and saturated slopes of the rows of one kind."""
    rows = _rows(system, engine, version, stage, cache_type)
    asked = (rows["head_dim"] == head_dim) & (rows["window_size"] == window)
    rows = {name: values[asked] for name, values in rows.items()}
    kv = rows["num_key_value_heads"]
    tokens = rows["step"] + 1.0 if stage == "generation" else rows["isl"]
    # A saturated kernel takes time in proportion to its heads and requests, and decoding to the context; a prompt meets
    # itself, which takes its square. Beyond a window decoding takes no longer, and a prompt time in proportion.
    of_tokens = (1.0 if stage == "generation" else 2.0) - (window > 0)
    return (kv, rows["num_heads"] / kv, rows["batch_size"], tokens), rows["latency"], (1.0, 1.0, 1.0, of_tokens)
