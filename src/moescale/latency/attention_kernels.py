"""Times of attention from measured kernels.

Each key-value head of each request is a problem of its own, worked on side by side with the others. So a model with more
key-value heads than were measured is priced as proportionally more requests with the most heads that were: rows of the
tables that can be compared so agree to a few percent.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from moescale.architecture import FloatArray, Real
from moescale.errors import InputError
from moescale.latency.kernel_tables import find_table, read_columns
from moescale.latency.log_grid import LogGrid, grid_of

COLUMNS = ("batch_size", "isl", "step", "num_heads", "num_key_value_heads", "head_dim", "window_size", "latency")
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
    """Rows of full-context attention with this type of cached keys and values; empty where it was not measured."""
    path = find_table(system, "attention", engine, version, f"{stage}_attention_perf")
    if path is None:
        raise InputError(f"no attention was measured for {engine} on {system}", where="silicon")
    columns = read_columns(path, COLUMNS, attn_dtype="bfloat16", kv_cache_dtype=cache_type)
    kv = columns["num_key_value_heads"]
    columns["num_key_value_heads"] = np.where(kv > 0, kv, columns["num_heads"])  # 0 stands for one a query head
    regular = np.isin(columns["num_key_value_heads"], (1.0, 2.0, 4.0, MOST_KV_HEADS)) & (columns["window_size"] == 0)
    return {name: values[regular] for name, values in columns.items()}


@cache
def head_dims(system: str, engine: str, version: str, stage: str, cache_type: str) -> tuple[float, ...]:
    """Measured head dimensions, ascending; empty where the cache type was not measured."""
    return tuple(float(d) for d in np.unique(_rows(system, engine, version, stage, cache_type)["head_dim"]))


@cache
def attention(system: str, engine: str, version: str, stage: str, cache_type: str, head_dim: float) -> Attention:
    """Measured attention of a head dimension that head_dims lists."""
    rows = _rows(system, engine, version, stage, cache_type)
    rows = {name: values[rows["head_dim"] == head_dim] for name, values in rows.items()}
    kv = rows["num_key_value_heads"]
    tokens = rows["step"] + 1.0 if stage == "generation" else rows["isl"]
    # A saturated kernel takes time in proportion to its heads and requests, and decoding to the context; a prompt meets
    # itself, which takes its square.
    slopes = (1.0, 1.0, 1.0, 1.0 if stage == "generation" else 2.0)
    sizes = (kv, rows["num_heads"] / kv, rows["batch_size"], tokens)
    return Attention(grid_of(sizes, rows["latency"], slopes), head_dim)
