"""Times of what surrounds routed experts that are spread over groups of attention: collectives, and DeepEP's all-to-alls.

Within a server the engines gather every group's tokens and scatter the sums (the default of vLLM and SGLang with attention
data parallelism, and of TensorRT-LLM without its own all-to-all). Across servers they send each token to its experts alone:
DeepEP's low-latency kernels for passes that decode, its normal ones for passes with prompts.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from moescale.latency.kernels.log_grid import LogGrid, grid_of
from moescale.latency.kernels.tables import find_table, read_columns, text_values

NEWEST = "99"  # of a library's versions
# The shape that DeepEP was measured with on several servers: DeepSeek-V3's. Other shapes send as many bytes less or more.
MEASURED_WIDTH, MEASURED_TOP_K = 7168.0, 8.0
SMS = 20.0  # streaming multiprocessors of the normal kernels: DeepEP's own default (deep_ep.Buffer.num_sms)
GPUS_PER_NODE = 8.0  # of the measured servers
# Kernels of one version and folder, of which only the oldest was measured on several servers.
DEEPEP_VERSION = "0.5.6.post2"


@cache
def collective_grid(system: str, operation: str) -> LogGrid | None:
    """Seconds of NCCL's all_gather or reduce_scatter over (GPUs from 2 on, 16-bit elements of the whole message).

    None where it was not measured. Read as bytes, the sizes would leave NVLink at half of what it is known for.
    """
    path = find_table(system, "comm", "nccl", NEWEST, "nccl_perf")
    if path is None or operation not in text_values(path, "op_name"):
        return None
    rows = read_columns(path, ("num_gpus", "message_size", "latency"), op_name=operation, nccl_dtype="half")
    return grid_of((rows["num_gpus"], rows["message_size"]), rows["latency"], (0.0, 1.0))


@cache
def deepep_grid(system: str, *, low_latency: bool) -> LogGrid | None:
    """Seconds of DeepEP's dispatch and combine over (servers of 8 GPUs, tokens of each GPU); None where not measured.

    Of DeepSeek-V3's shape (256 or 288 experts, top 8, 7168 wide; dispatched in fp8, combined in bf16).
    """
    stem = f"wideep_deepep_{'ll' if low_latency else 'normal'}_perf"
    path = find_table(system, "comm", "sglang", DEEPEP_VERSION, stem)
    if path is None:
        return None
    times = (
        ("dispatch_avg_t_us", "combine_avg_t_us")
        if low_latency
        else ("dispatch_transmit_us", "dispatch_notify_us", "combine_transmit_us")
    )
    rows = read_columns(path, ("node_num", "num_token", "hidden_size", "num_topk", "dispatch_sms", *times))
    kept = (rows["hidden_size"] == MEASURED_WIDTH) & (rows["num_topk"] == MEASURED_TOP_K)
    kept &= low_latency | (rows["dispatch_sms"] == SMS)
    seconds = 1e-6 * np.sum([rows[name][kept] for name in times], axis=0)
    nodes = rows["node_num"][kept]
    if not np.any(nodes > 1):
        return None
    return grid_of((nodes, rows["num_token"][kept]), seconds, (0.0, 1.0))
