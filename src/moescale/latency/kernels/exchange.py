"""Times of what GPUs send each other: all-reduces, and what surrounds experts that are spread over groups of attention.

Within a server the engines gather every group's tokens and scatter the sums (the default of vLLM and SGLang with attention
data parallelism, and of TensorRT-LLM without its own all-to-all). Across servers they send each token to its experts alone:
DeepEP's low-latency kernels for passes that decode, its normal ones for passes with prompts. So do they over more GPUs of an
NVLink domain than eight, by TensorRT-LLM's kernels. What comes in over them meets experts of kernels of their own, which see
no token that is not theirs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from moescale.errors import InputError
from moescale.latency.kernels.log_grid import LogGrid, grid_of
from moescale.latency.kernels.tables import find_table, read_columns
from moescale.typing import FloatArray, Real

NEWEST = "99"  # of a library's versions
# The shape that DeepEP was measured with on several servers: DeepSeek-V3's. Other shapes send as many bytes less or more.
MEASURED_WIDTH, MEASURED_TOP_K, MEASURED_EXPERTS, MEASURED_EXPERT_WIDTH = 7168.0, 8.0, 256.0, 2048.0
MEASURED_MATRICES = 3.0
# Over several servers experts are balanced: who serves so holds the busiest ones twice (DeepSeek's EPLB, which SGLang, vLLM
# and TensorRT-LLM have). Chosen with both published points of LMSYS's 12 servers (May 2025, H100, DeepSeek-V3) in sight:
# predicted over measured throughput is 0.88 of decoding (256 requests a GPU) and 0.88 of prompts (8 a GPU), and was 0.34 and
# 0.18 with one server's kernels under power_law_1.2. That they overlap messages with computing is left out.
BALANCED = "uniform"
SMS = 20.0  # streaming multiprocessors of the normal kernels: DeepEP's own default (deep_ep.Buffer.num_sms)
GPUS_PER_NODE = 8.0  # of the measured servers
# Kernels of one version and folder, of which only the oldest was measured on several servers.
DEEPEP_VERSION, EXPERTS_VERSION = "0.5.6.post2", "0.5.10"
# The one system whose all-to-all was measured over more GPUs of an NVLink domain than eight; GB300's switches are the same.
NVLINK_SYSTEM, NVLINK_VERSION, NVLINK = "gb200", "1.3.0rc10", "NVLinkTwoSided"
NVLINK_PARTS = ("alltoall_prepare", "alltoall_dispatch", "alltoall_combine")


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


@cache
def collective_grid(system: str, operation: str) -> LogGrid | None:
    """Seconds of NCCL's all_gather or reduce_scatter over (GPUs from 2 on, 16-bit elements of the whole message).

    None where it was not measured. Read as bytes, the sizes would leave NVLink at half of what it is known for.
    """
    table = find_table(system, "comm", "nccl", NEWEST, "nccl_perf")
    if table is None or operation not in table.text_values("op_name"):
        return None
    rows = read_columns(table, ("num_gpus", "message_size", "latency"), op_name=operation, nccl_dtype="half")
    return grid_of((rows["num_gpus"], rows["message_size"]), rows["latency"], (0.0, 1.0))


@cache
def deepep_grid(system: str, *, low_latency: bool) -> LogGrid | None:
    """Seconds of DeepEP's dispatch and combine over (servers of 8 GPUs, tokens of each GPU); None where not measured.

    Of DeepSeek-V3's shape (256 or 288 experts, top 8, 7168 wide; dispatched in fp8, combined in bf16).
    """
    stem = f"wideep_deepep_{'ll' if low_latency else 'normal'}_perf"
    table = find_table(system, "comm", "sglang", DEEPEP_VERSION, stem)
    if table is None:
        return None
    times = (
        ("dispatch_avg_t_us", "combine_avg_t_us")
        if low_latency
        else ("dispatch_transmit_us", "dispatch_notify_us", "combine_transmit_us")
    )
    rows = read_columns(table, ("node_num", "num_token", "hidden_size", "num_topk", "dispatch_sms", *times))
    kept = (rows["hidden_size"] == MEASURED_WIDTH) & (rows["num_topk"] == MEASURED_TOP_K)
    kept &= low_latency | (rows["dispatch_sms"] == SMS)
    seconds = 1e-6 * np.sum([rows[name][kept] for name in times], axis=0)
    nodes = rows["node_num"][kept]
    if not np.any(nodes > 1):
        return None
    return grid_of((nodes, rows["num_token"][kept]), seconds, (0.0, 1.0))


@cache
def nvlink_grid(dispatched: str) -> LogGrid | None:
    """Seconds of TensorRT-LLM's dispatch and combine over (GPUs of one NVLink domain, tokens of each); None where not measured.

    Of DeepSeek-V3's shape, dispatched in a format of the table, combined in bf16; its two-sided kernels, which alone were
    measured in every format and with up to 64 GPUs.
    """
    table = find_table(NVLINK_SYSTEM, "comm", "trtllm", NVLINK_VERSION, "trtllm_alltoall_perf")
    if table is None:
        return None
    seconds: dict[tuple[float, float], float] = {}
    for part in NVLINK_PARTS:
        chosen = {"kernel_source": NVLINK, "op_name": part, "moe_dtype": dispatched}
        rows = read_columns(table, ("moe_ep_size", "num_tokens", "latency"), **chosen)
        for gpus, tokens, part_s in zip(*rows.values(), strict=True):
            seconds[gpus, tokens] = seconds.get((gpus, tokens), 0.0) + part_s
    if not seconds:
        return None
    gpus, tokens = np.array(list(seconds)).T
    return grid_of((gpus, tokens), np.array(list(seconds.values())), (0.0, 1.0))


@dataclass(frozen=True, slots=True)
class SpreadExperts:
    """Routed experts of a layer that get their tokens over DeepEP, each GPU its whole ones, in fp8."""

    grid: LogGrid  # over (GPUs that share the experts, tokens of all of them)

    def seconds(self, gpus: Real, tokens: Real, top_k: Real, experts: Real, weights: Real) -> FloatArray:
        """Seconds with `weights` parameters an expert: as the measured shape with as many experts and pairs on each GPU.

        A pair of a token and an expert, and an expert that is read, take time in proportion to its parameters.
        """
        local = np.ceil(np.asarray(experts, dtype=np.float64) / gpus)
        like = MEASURED_EXPERTS / local
        pairs = np.asarray(tokens, dtype=np.float64) * top_k / gpus
        measured = MEASURED_MATRICES * MEASURED_WIDTH * MEASURED_EXPERT_WIDTH
        least = np.exp(self.grid.axes[0][0])  # GPUs: fewer hold more experts than were measured on one
        seconds = self.grid.seconds(like, np.maximum(pairs * like / MEASURED_TOP_K, 1.0))
        return seconds * np.maximum(least / like, 1.0) * (weights / measured)


@cache
def spread_experts(system: str, *, prompts: bool) -> SpreadExperts | None:
    """DeepSeek-V3's experts behind DeepEP, of passes with prompts or those that decode; None where not measured."""
    stem = f"wideep_{'context' if prompts else 'generation'}_moe_perf"
    table = find_table(system, "moe", "sglang", EXPERTS_VERSION, stem)
    if table is None:
        return None
    names = ("moe_ep_size", "num_tokens", "latency")
    rows = read_columns(table, names, distribution=BALANCED, moe_dtype="fp8_block")
    if not rows["latency"].size:
        return None
    return SpreadExperts(grid_of((rows["moe_ep_size"], rows["num_tokens"]), rows["latency"], (0.0, 1.0)))
