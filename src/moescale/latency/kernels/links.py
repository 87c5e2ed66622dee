"""Times of all-reduces from measured kernels."""

from __future__ import annotations

from functools import cache

import numpy as np

from moescale.errors import InputError
from moescale.latency.kernels.log_grid import LogGrid, grid_of
from moescale.latency.kernels.tables import find_table, read_columns
from moescale.typing import FloatArray, Real


@cache
def all_reduce_grid(system: str, engine: str, version: str) -> LogGrid:
    """Seconds of an all-reduce over (GPUs from 2 on, elements of the message); within one server, in a CUDA graph.

    The tables state sizes in bf16 elements: read as bytes, NVLink would reach half of what it is known for.
    """
    table = find_table(system, "comm", engine, version, "custom_allreduce_perf")
    if table is None:
        raise InputError(f"no all-reduce was measured for {engine} on {system}", where="silicon")
    graph = [backend for backend in table.text_values("backend") if backend.endswith("graph")]
    chosen = {"backend": graph[0]} if graph else {}
    rows = read_columns(table, ("num_gpus", "message_size", "latency"), **chosen)
    return grid_of((rows["num_gpus"], rows["message_size"]), rows["latency"], (0.0, 1.0))


def within_server_s(grid: LogGrid, gpus: Real, elements: Real) -> FloatArray:
    """Seconds of a collective over GPUs of one server: beyond the counts that were measured, by a ring's share.

    Each of g GPUs passes on (g - 1) / g of the message.
    """
    most = np.exp(grid.axes[0][-1])
    count = np.maximum(np.asarray(gpus, dtype=np.float64), 2.0)
    seconds = grid.seconds(np.minimum(count, most), elements)
    if not np.any(count > most + 0.5):
        return seconds
    return seconds * np.where(count > most + 0.5, (1.0 - 1.0 / count) / (1.0 - 1.0 / most), 1.0)
