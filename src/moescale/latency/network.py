"""Messages that leave a server: what the network adds to collectives and exchanges within each of several servers."""

from __future__ import annotations

import numpy as np

from moescale.hardware.gpus import Gpu
from moescale.typing import FloatArray, Real

# From one server to the next: node.p2p_latency of the measured systems' specifications (aiconfigurator-core 0.12).
HOP_S = 10e-6


def servers(gpu: Gpu, gpus: Real) -> FloatArray:
    """How many servers hold so many GPUs."""
    return np.ceil(np.asarray(gpus, dtype=np.float64) / gpu.gpus_per_server)


def in_server(gpu: Gpu, gpus: Real) -> FloatArray:
    """GPUs of each of these servers."""
    return gpus / servers(gpu, gpus)


def gather_s(gpu: Gpu, gpus: Real, message_bytes: Real) -> FloatArray:
    """Seconds that the network adds to an all-gather, or a reduce-scatter, of so many bytes: each GPU sends its share, in a tree of servers."""
    count = servers(gpu, gpus)
    leaves = np.asarray(message_bytes, dtype=np.float64) * (1.0 - 1.0 / count) / in_server(gpu, gpus)
    return leaves / gpu.network_bytes_per_s + HOP_S * np.log2(count)


def all_reduce_s(gpu: Gpu, gpus: Real, message_bytes: Real) -> FloatArray:
    """The same for an all-reduce: a reduce-scatter and an all-gather."""
    return 2.0 * gather_s(gpu, gpus, message_bytes)


def exchange_s(gpu: Gpu, gpus: Real, sent_bytes: Real) -> FloatArray:
    """Seconds of an all-to-all whose GPUs each send so many bytes evenly to all: what leaves the server, and a hop."""
    count = servers(gpu, gpus)
    leaves = np.asarray(sent_bytes, dtype=np.float64) * (1.0 - 1.0 / count)
    return leaves / gpu.network_bytes_per_s + HOP_S * (count > 1.0)
