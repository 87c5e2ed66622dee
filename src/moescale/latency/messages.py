"""Seconds of what GPUs send each other, by measured collectives.

Within a server the engines gather every group's tokens and scatter the sums (the default of vLLM and SGLang with attention
data parallelism). Across servers they send each token to its experts alone: DeepEP's low-latency kernels for passes that
decode, its normal ones for passes with prompts. So do they over more GPUs of an NVLink domain than eight, by TensorRT-LLM's.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from moescale.errors import InputError
from moescale.latency import Pass, network
from moescale.latency.card import Card
from moescale.latency.kernels.log_grid import LogGrid, grid_of
from moescale.latency.kernels.tables import default_version, find_grid, find_system, find_table, read_columns
from moescale.latency.roofline import ACTIVATION_BYTES
from moescale.models.architecture import Architecture
from moescale.typing import FloatArray, Real

NEWEST = "99"  # of a library's versions
# The shape that DeepEP was measured with on several servers: DeepSeek-V3's. Other shapes send as many bytes less or more.
MEASURED_WIDTH, MEASURED_TOP_K = 7168.0, 8.0
SMS = 20.0  # streaming multiprocessors of the normal kernels: DeepEP's own default (deep_ep.Buffer.num_sms)
GPUS_PER_NODE = 8.0  # of the measured servers
DEEPEP_VERSION = "0.5.6.post2"  # of the folder, of which only the oldest was measured on several servers
# The one system whose all-to-all was measured over more GPUs of an NVLink domain than eight; GB300's switches are the same.
NVLINK_SYSTEM, NVLINK_VERSION, NVLINK = "gb200", "1.3.0rc10", "NVLinkTwoSided"
NVLINK_PARTS = ("alltoall_prepare", "alltoall_dispatch", "alltoall_combine")
# The format, by its name in the table of NVLink, in which tokens go to experts: that of the experts' products.
DISPATCHED = {"nvfp4": "nvfp4", "fp8": "fp8", "fp8_block": "fp8"}


@cache
def all_reduce_grid(system: str, engine: str, version: str) -> LogGrid:
    """Seconds of an all-reduce within a server over (GPUs from 2 on, bf16 elements of the message: as bytes NVLink would reach half its rate)."""
    place = (system, "comm", engine, version, "custom_allreduce_perf")
    table = find_table(*place)
    graph = [backend for backend in table.text_values("backend") if backend.endswith("graph")] if table else []
    chosen = {"backend": graph[0]} if graph else {}
    grid = find_grid(place, ("num_gpus", "message_size"), (0.0, 1.0), **chosen)
    if grid is None:
        raise InputError(f"no all-reduce was measured for {engine} on {system}", where="silicon")
    return grid


def collective_grid(system: str, operation: str) -> LogGrid | None:
    """Seconds of NCCL's all_gather or reduce_scatter over (GPUs from 2 on, 16-bit elements of the whole message)."""
    place = (system, "comm", "nccl", NEWEST, "nccl_perf")
    return find_grid(place, ("num_gpus", "message_size"), (0.0, 1.0), op_name=operation, nccl_dtype="half")


@cache
def deepep_grid(system: str, *, low_latency: bool) -> LogGrid | None:
    """Seconds of DeepEP's dispatch (fp8) and combine (bf16) over (servers of 8 GPUs, tokens of each GPU), of DeepSeek-V3's shape."""
    stem = f"wideep_deepep_{'ll' if low_latency else 'normal'}_perf"
    table = find_table(system, "comm", "sglang", DEEPEP_VERSION, stem)
    if table is None:
        return None
    times = ("dispatch_transmit_us", "dispatch_notify_us", "combine_transmit_us")
    if low_latency:
        times = ("dispatch_avg_t_us", "combine_avg_t_us")
    rows = read_columns(table, ("node_num", "num_token", "hidden_size", "num_topk", "dispatch_sms", *times))
    kept = (rows["hidden_size"] == MEASURED_WIDTH) & (rows["num_topk"] == MEASURED_TOP_K)
    kept &= low_latency | (rows["dispatch_sms"] == SMS)
    seconds = 1e-6 * np.sum([rows[name][kept] for name in times], axis=0)
    nodes = rows["node_num"][kept]
    return grid_of((nodes, rows["num_token"][kept]), seconds, (0.0, 1.0)) if np.any(nodes > 1) else None


@cache
def nvlink_grid(dispatched: str) -> LogGrid | None:
    """Seconds of TensorRT-LLM's two-sided dispatch and combine (bf16), DeepSeek-V3's shape, over (GPUs of one NVLink domain, tokens of each)."""
    table = find_table(NVLINK_SYSTEM, "comm", "trtllm", NVLINK_VERSION, "trtllm_alltoall_perf")
    if table is None:
        return None
    names, chosen = ("moe_ep_size", "num_tokens", "latency"), {"kernel_source": NVLINK, "moe_dtype": dispatched}
    parts = [read_columns(table, names, op_name=part, **chosen) for part in NVLINK_PARTS]
    gpus, tokens, seconds = (np.concatenate([rows[name] for rows in parts]) for name in names)
    sizes, place = np.unique(np.stack([gpus, tokens]), axis=1, return_inverse=True)
    total_s = np.asarray(np.bincount(place.ravel(), seconds), dtype=np.float64)
    return grid_of(tuple(sizes), total_s, (0.0, 1.0)) if seconds.size else None


def messages_s(card: Card, model: Architecture, whole: Pass, rank: Pass) -> FloatArray:
    """Two all-reduces a layer and one of the embeddings; none on one GPU.

    With attention data parallelism they are within a group, and an exchange among all GPUs stands for the second one of
    a layer with experts. Norms over all heads reduce two sums of squares a token and layer.
    """
    gpus, in_server = np.asarray(rank.gpus, dtype=np.float64), network.in_server(card.gpu, rank.gpus)
    times = 2.0 * np.asarray(model.n_layers, dtype=np.float64) - model.n_layers_without_ffn + 1.0
    exchanged_s: Real = 0.0
    if whole is not rank:
        spread = np.asarray(whole.attention_dp, dtype=np.float64) > 1.0
        times = times - np.where(spread, model.n_moe_layers, 0.0)
        exchanged_s = np.where(spread, model.n_moe_layers * _exchange_s(card, model, whole, rank), 0.0)
    if not np.any(gpus > 1):
        return np.zeros(np.shape(gpus)) + exchanged_s
    grid, slower = _links(card)
    # A link of half the rate takes as long for a message as the measured one for twice of it.
    elements = np.maximum(rank.tokens, 1.0) * np.asarray(model.d_model, dtype=np.float64)
    reduced_s = times * within_server_s(grid, in_server, slower * elements)
    if np.any(gpus > card.gpu.gpus_per_server):
        reduced_s = reduced_s + times * network.all_reduce_s(card.gpu, gpus, ACTIVATION_BYTES * elements)
    if model.qk_norm_full_width:
        sums = slower * 2.0 * np.maximum(rank.tokens, 1.0)
        reduced_s = reduced_s + model.n_layers * within_server_s(grid, in_server, sums)
    return np.where(gpus > 1, reduced_s, 0.0) + exchanged_s


def _links(card: Card) -> tuple[LogGrid, float]:
    """All-reduces, and how many times slower than the measured links those of this card are."""
    system = card.gpu.silicon_link_system
    if system is None:
        return all_reduce_grid(*card.tables), 1.0
    slower = find_system(system).link_bytes_per_s / card.gpu.interconnect_bytes_per_s
    return all_reduce_grid(system, card.backend, default_version(system, card.backend)), slower


def within_server_s(grid: LogGrid, gpus: Real, elements: Real) -> FloatArray:
    """Seconds of a collective over GPUs of one server: beyond the measured counts by a ring's share, (g - 1) / g of g GPUs."""
    most = np.exp(grid.axes[0][-1])
    count = np.maximum(np.asarray(gpus, dtype=np.float64), 2.0)
    seconds = grid.seconds(np.minimum(count, most), elements)
    return seconds * np.where(count > most + 0.5, (1.0 - 1.0 / count) / (1.0 - 1.0 / most), 1.0)


def _exchange_s(card: Card, model: Architecture, whole: Pass, rank: Pass) -> FloatArray:
    """Seconds that tokens take to the experts of one layer, and their sums back, among all GPUs."""
    gpus, tokens = np.asarray(whole.gpus, dtype=np.float64), np.maximum(whole.tokens, 1.0)
    d_model = np.asarray(model.d_model, dtype=np.float64)
    elements, each = tokens * d_model, network.in_server(card.gpu, gpus)
    all_reduce, slower = _links(card)
    system = card.gpu.silicon_link_system or card.system.name
    halves = [collective_grid(system, name) for name in ("all_gather", "reduce_scatter")]
    grids = [grid for grid in halves if grid is not None]
    grids = grids if len(grids) == 2 else [all_reduce]  # which is both
    inside_s = np.sum([within_server_s(grid, each, slower * elements) for grid in grids], axis=0)
    far, alone = gpus > card.gpu.gpus_per_server, sends_alone(card, whole)
    if not np.any(far | alone):
        return inside_s
    # To its experts each token is sent alone, from the GPU that holds it: fp8 there and bf16 back.
    own = np.maximum(np.asarray(rank.tokens, dtype=np.float64) / rank.gpus, 1.0)
    like = own * (d_model * model.top_k / (MEASURED_WIDTH * MEASURED_TOP_K))
    deepep = deepep_grid(card.system.name, low_latency=whole.prompts is None)
    dispatched = DISPATCHED.get(card.expert_kind(model), "bfloat16")
    if card.gpu.gpus_per_server > GPUS_PER_NODE and (nvlink := nvlink_grid(dispatched)) is not None:
        inside_s = np.where(alone, nvlink.seconds(gpus, like), inside_s)
    if not np.any(far):
        return inside_s
    if deepep is not None:
        sent_s = deepep.seconds(network.servers(card.gpu, gpus), like)
    else:
        sent_bytes = own * model.top_k * d_model * (1.0 + ACTIVATION_BYTES)
        in_one_s = within_server_s(all_reduce, each, slower * elements / network.servers(card.gpu, gpus))
        sent_s = in_one_s + network.exchange_s(card.gpu, gpus, sent_bytes) + network.HOP_S
    # An expert that is split itself needs every token of all its GPUs.
    all_s = inside_s + network.all_reduce_s(card.gpu, gpus, ACTIVATION_BYTES * elements)
    return np.where(far, np.where(alone, sent_s, all_s), inside_s)


def sends_alone(card: Card, a: Pass) -> npt.NDArray[np.bool_]:
    """Where groups of attention send each token alone: to whole experts, over several servers or more than eight GPUs of one."""
    gpus = np.asarray(a.gpus, dtype=np.float64)
    several = (gpus > min(card.gpu.gpus_per_server, GPUS_PER_NODE)) & (np.asarray(a.attention_dp) > 1)
    return several & (np.asarray(a.expert_parallel, dtype=np.float64) >= gpus)
