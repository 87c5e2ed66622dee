"""Times of all-reduces from measured kernels."""

from __future__ import annotations

from functools import cache

from moescale.errors import InputError
from moescale.latency.kernels.log_grid import LogGrid, grid_of
from moescale.latency.kernels.tables import find_table, read_columns, text_values


@cache
def all_reduce_grid(system: str, engine: str, version: str) -> LogGrid:
    """Seconds of an all-reduce over (GPUs from 2 on, elements of the message); within one server, in a CUDA graph.

    The tables state sizes in bf16 elements: read as bytes, NVLink would reach half of what it is known for.
    """
    path = find_table(system, "comm", engine, version, "custom_allreduce_perf")
    if path is None:
        raise InputError(f"no all-reduce was measured for {engine} on {system}", where="silicon")
    graph = [backend for backend in text_values(path, "backend") if backend.endswith("graph")]
    chosen = {"backend": graph[0]} if graph else {}
    rows = read_columns(path, ("num_gpus", "message_size", "latency"), **chosen)
    return grid_of((rows["num_gpus"], rows["message_size"]), rows["latency"], (0.0, 1.0))
