"""Seconds of attention by measured kernels.

Each key-value head of each request is a problem of its own, worked on side by side: a model with more of them than were
measured is priced as proportionally more requests with the most that were.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from moescale.errors import InputError
from moescale.latency import Pass
from moescale.latency.card import ROOFLINE, WIDE_BYTES, Card, Stage
from moescale.latency.engines import NO_ENGINE, engines
from moescale.latency.kernels.formats import BF16, peak_of
from moescale.latency.kernels.log_grid import LogGrid, grid_of
from moescale.latency.kernels.tables import find_table, of_the_fastest, read_columns
from moescale.latency.latent import Module, is_latent, latent_s, sparse_s
from moescale.latency.roofline import ACTIVATION_BYTES, causal_pairs
from moescale.models.architecture import Architecture, some
from moescale.models.operations import Attention, attention_products
from moescale.typing import FloatArray, Real

COLUMNS = ("batch_size", "isl", "step", "num_heads", "num_key_value_heads", "head_dim", "window_size", "latency")
FP8_FP8 = "fp8_fp8"  # cached keys and values in fp8, and multiplied in it
MOST_KV_HEADS = 8.0  # measured for every number of query heads a key-value head
# A prompt's attention comes with kernels of its own around it (rotary positions, writing the cache): so many launches
# reproduce what the package's own engine adds to its tables; and so many more for norms of queries and keys, which a
# token that is decoded needs as well.
PROMPT_LAUNCHES, QK_NORM_LAUNCHES = 4.4, 8.8


@cache
def _rows(system: str, engine: str, version: str, stage: str, cache_type: str) -> dict[str, FloatArray]:
    """Rows of attention with this type of cached keys and values (fp8_fp8 multiplies in fp8, too), of each size those of the fastest kernel."""
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
    pairs = np.unique(np.stack([rows["head_dim"], rows["window_size"]], axis=1), axis=0)
    return tuple((head_dim, window) for head_dim, window in pairs.tolist())


@cache
def attention_grid(
    system: str, engine: str, version: str, stage: str, cache_type: str, head_dim: float, window: float = 0.0
) -> LogGrid:
    """Seconds of one layer over key-value heads, query heads of each, requests and tokens: the context of generation, or the prompt."""
    return grid_of(*grid_rows(system, engine, version, stage, cache_type, head_dim, window))


def grid_rows(
    system: str, engine: str, version: str, stage: str, cache_type: str, head_dim: float, window: float
) -> tuple[tuple[FloatArray, FloatArray, FloatArray, FloatArray], FloatArray, tuple[float, float, float, float]]:
    """Sizes (one array an axis of attention_grid), seconds and saturated slopes of the rows of one kind."""
    rows = _rows(system, engine, version, stage, cache_type)
    asked = (rows["head_dim"] == head_dim) & (rows["window_size"] == window)
    rows = {name: values[asked] for name, values in rows.items()}
    kv = rows["num_key_value_heads"]
    tokens = rows["step"] + 1.0 if stage == "generation" else rows["isl"]
    # A saturated kernel takes time in proportion to its heads and requests, and decoding to the context; a prompt meets
    # itself, which takes its square. Beyond a window decoding takes no longer, and a prompt time in proportion.
    of_tokens = (1.0 if stage == "generation" else 2.0) - (window > 0)
    return (kv, rows["num_heads"] / kv, rows["batch_size"], tokens), rows["latency"], (1.0, 1.0, 1.0, of_tokens)


@cache
def _nearest(
    system: str, engine: str, version: str, stage: str, types: tuple[tuple[str, float], ...], head_dim: float
) -> tuple[str, float, float]:
    """Cache type with its bytes an element, one of `types`, and head dimension of the nearest kernel that was measured: by head dimension first."""
    found = [
        ((abs(float(np.log(dim / head_dim))), order), (kind, measured_bytes, dim))
        for order, (kind, measured_bytes) in enumerate(types)
        for dim, window in attention_kinds(system, engine, version, stage, kind)
        if window == 0.0
    ]
    if not found:
        raise InputError(f"no attention was measured on {system}", where="silicon", next_step=ROOFLINE)
    return min(found)[1]


def attention_s(card: Card, op: Attention, model: Architecture, module: Module | None, a: Pass) -> Real:
    """Seconds of the attention of layers whose heads are alike, with the kernels around it; `module`: of sparse latent attention."""
    heads, latent = np.maximum(op.heads, 1.0), is_latent(model)
    total_s, launches = 0.0, 0.0
    if some(op.gate):
        gates = op.heads * np.asarray(op.gate)
        gated_s = card.elementwise_s(a.tokens * (ACTIVATION_BYTES * (2.0 * op.heads * op.head_dim + gates)))
        total_s = total_s + np.where(gates > 0, op.layers * gated_s, 0.0)
    params = sum(product.params for product in attention_products(model, heads)) if latent else 0.0
    asked: list[tuple[Real, Stage]] = []  # with the share of a request or prompt that there is
    if a.batch is not None:
        there_are, batch = np.where(np.asarray(a.batch) > 0.0, 1.0, 0.0), np.maximum(a.batch, 1.0)
        stage = Stage("generation", batch, a.context_tokens, heads, queries=a.query_tokens, params=params)
        asked.append((there_are, stage))
    if a.prompts is not None:
        prompts = np.maximum(a.prompts, 1.0)
        stage = Stage("context", prompts, a.prompt_tokens, heads, prefix=a.prefix_tokens, params=params)
        asked.append((np.minimum(a.prompts, 1.0), stage))
        launches = PROMPT_LAUNCHES * (np.asarray(a.prompts) > 0.0)
    if model.qk_norm and not engines().get(card.backend, NO_ENGINE).fused_norms:
        launches = launches + QK_NORM_LAUNCHES
    if np.any(launches):
        total_s = total_s + op.layers * (launches * card.system.elementwise_latency_s)
    for share, stage in asked:
        if module is not None:
            seconds = op.layers * sparse_s(card, stage, model, module)
        elif latent:
            seconds = op.layers * latent_s(card, stage, model)
        else:
            seconds = _grouped_s(card, stage, op.with_chosen_window())
        total_s = total_s + share * seconds
    return np.asarray(total_s)


def _grouped_s(card: Card, a: Stage, op: Attention) -> Real:
    """Seconds of all layers: those with a window by their window, the others by the full context."""
    full_s, windowed = _layer_s(card, a, op), np.asarray(op.window_layers, dtype=np.float64)
    if not np.any(windowed > 0):
        return op.layers * full_s
    total_s = (op.layers - windowed) * full_s
    sizes = np.broadcast_to(np.asarray(op.window, dtype=np.float64), windowed.shape)
    for window in np.unique(sizes[windowed > 0]):
        layers = np.where(sizes == window, windowed, 0.0)
        window_s = _layer_s(card, a, op, float(window))
        # What the window holds is attention to everything, of which more was measured.
        total_s = total_s + layers * np.where(np.asarray(a.tokens) + a.prefix <= window, full_s, window_s)
    return total_s


def _layer_s(card: Card, a: Stage, op: Attention, window: float = 0.0) -> FloatArray:
    """Seconds of one layer that attends to everything, or to the last `window` tokens.

    Where a window, or a prompt after a prefix, was not measured, full attention answers for as much work: a context of
    the window's tokens, a prompt of as many pairs of tokens. A prompt over a cache of 8 bits is multiplied in fp8 where
    that was measured.
    """
    prompts, kv_heads, wanted_bytes = a.name == "context", np.maximum(op.kv_heads, 1.0), card.kv_bytes_per_element
    attended, after_prefix = a.tokens, bool(np.any(np.asarray(a.prefix) > 0))
    if prompts and (window or after_prefix):
        within = max(window, 1.0) if window else math.inf
        attended = np.sqrt(
            2.0 * (causal_pairs(np.asarray(a.tokens) + a.prefix, within) - causal_pairs(a.prefix, within))
        )
    elif window:
        attended = np.minimum(a.tokens, max(window, 1.0))
    types = ((BF16, 2.0),)
    if wanted_bytes < WIDE_BYTES:
        types = (("fp8", 1.0), *types)
        if prompts and card.gpu.fp8_flops_per_s is not None:
            types = ((FP8_FP8, 1.0), *types)
    kind, measured_bytes, head_dim = _nearest(*card.tables, a.name, types, float(np.max(op.head_dim)))
    measured = (head_dim, window) in attention_kinds(*card.tables, a.name, kind) and not after_prefix
    grid = attention_grid(*card.tables, a.name, kind, head_dim, window if measured else 0.0)
    side_by_side = np.minimum(kv_heads, MOST_KV_HEADS)
    sizes = (side_by_side, a.heads / kv_heads, a.batch * (kv_heads / side_by_side), a.tokens if measured else attended)
    seconds = grid.seconds(*sizes) * (op.head_dim / head_dim)  # time is in proportion to the head dimension
    elements = 2.0 * a.batch * kv_heads * op.head_dim * attended
    multiplied = 2.0 * np.asarray(attended, dtype=np.float64) ** 2 if prompts else 4.0 * attended
    flops = multiplied * a.batch * np.asarray(a.heads) * op.head_dim
    if prompts:  # whose own keys and values are not read from the cache
        measured_bytes = wanted_bytes = ACTIVATION_BYTES
    arithmetic = "fp8" if kind == FP8_FP8 else BF16
    if np.any(np.asarray(a.queries) != 1.0):
        peak = peak_of(card.system, arithmetic)
        read_s = elements * measured_bytes / card.system.memory_bandwidth_bytes_per_s
        seconds = seconds * (np.maximum(read_s, a.queries * flops / peak) / np.maximum(read_s, flops / peak))
        flops = a.queries * flops
    seconds = card.for_this_gpu(seconds, elements * measured_bytes, elements * wanted_bytes, flops, arithmetic)
    return np.maximum(seconds, card.limit_s(elements, flops, arithmetic, wanted_bytes))
