"""Seconds of attention and of layers with a state, by measured kernels."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from moescale.errors import InputError
from moescale.latency import Pass, common_shape
from moescale.latency.card import ROOFLINE, SCALES, WIDE_BYTES, Card
from moescale.latency.kernels.attention import FP8_FP8, attention, attention_kinds
from moescale.latency.kernels.formats import BF16, KINDS, LATENT, rates
from moescale.latency.kernels.latent import (
    MEASURED,
    SPARSE,
    Module,
    attention_grid,
    into_space_grids,
    latent_params,
    latent_roofline_s,
    module_grid,
    module_types,
    nearest_latent,
)
from moescale.latency.kernels.linear import linear_kernels
from moescale.latency.roofline import ACTIVATION_BYTES
from moescale.models.architecture import Architecture, some
from moescale.models.operations import Attention, State, attention_products
from moescale.typing import FloatArray, Real

# A prompt's attention comes with kernels of its own around it (rotary positions, writing the cache): so many launches
# reproduce what the package's own engine adds to its tables; and so many more for norms of queries and keys, which a
# token that is decoded needs as well.
PROMPT_LAUNCHES, QK_NORM_LAUNCHES = 4.4, 8.8
# Linear layers whose output meets a norm and a gate in a kernel of its own, which the tables do not hold.
GATED_NORMS = ("gated-delta", "kda", "mamba2")


@dataclass(frozen=True, slots=True)
class _Attention:
    """Attention of one layer on one GPU: `batch` contexts (generation) or prompts (context) of `tokens` tokens."""

    stage: str
    batch: Real
    tokens: Real
    heads: Real
    prefix: Real = 0.0  # tokens that the cache holds already of each prompt
    queries: Real = 1.0  # new tokens of each context
    params: tuple[Real | None, Real | None] = (
        None,
        None,
    )  # of latent attention's projections, and of the measured ones


def sparse_module(card: Card, model: Architecture) -> Module | None:
    """The measured module of sparse latent attention next to a model, where this engine has it for prompts and decoding."""
    if not (some(model.index_topk) and is_latent(model)):
        return None
    of_8_bits = card.weight_bytes_per_param < WIDE_BYTES and model.quantised.attention > 0.5
    wanted, wide = "fp8_block" if of_8_bits else BF16, float(np.max(np.asarray(model.d_model)))
    prompts, decoding = (set(module_types(*card.tables, stage, sparse=True)) for stage in ("context", "generation"))

    def away(module: Module) -> tuple[bool, bool, float, str]:
        name, weights, cached = module
        return weights != wanted, cached != card.cache_type, abs(float(np.asarray(SPARSE[name].d_model)) - wide), name

    known = [module for module in prompts & decoding if module[1] in (BF16, "fp8_block") and module[2] in (BF16, "fp8")]
    return min(known, key=away, default=None)


def attention_s(card: Card, op: Attention, model: Architecture, module: Module | None, a: Pass) -> Real:
    """Seconds of the attention of layers whose heads are alike, and of the kernels around it."""
    heads, total_s, launches = np.maximum(op.heads, 1.0), 0.0, 0.0
    if some(op.gate):
        gates = op.heads * np.asarray(op.gate)
        gated_s = card.elementwise_s(a.tokens * (ACTIVATION_BYTES * (2.0 * op.heads * op.head_dim + gates)))
        total_s = total_s + np.where(gates > 0, op.layers * gated_s, 0.0)
    asked: list[_Attention] = []
    if a.batch is not None:
        asked.append(_Attention("generation", a.batch, a.context_tokens, heads, queries=a.query_tokens))
    if a.prompts is not None:
        asked.append(_Attention("context", a.prompts, a.prompt_tokens, heads, prefix=a.prefix_tokens))
        launches = PROMPT_LAUNCHES * (np.asarray(a.prompts) > 0.0)
    if model.qk_norm and not card.fused_norms:
        launches = launches + QK_NORM_LAUNCHES
    if np.any(launches):
        total_s = total_s + op.layers * (launches * card.system.elementwise_latency_s)
    latent = is_latent(model)
    params = (
        (latent_params(model, heads), latent_params(MEASURED, heads)) if latent and module is None else (None, None)
    )
    for part in asked:
        share = np.minimum(part.batch, 1.0) if part.stage == "context" else np.asarray(part.batch) > 0.0  # of a prompt
        one = replace(part, batch=np.maximum(part.batch, 1.0), params=params)
        if module is not None:
            seconds = op.layers * _sparse_s(card, one, model, module)
        elif latent:
            seconds = op.layers * _latent_s(card, one, model)
        else:
            seconds = _grouped_s(card, one, op.with_chosen_window())
        total_s = total_s + share * seconds
    return np.asarray(total_s)


def _grouped_s(card: Card, a: _Attention, op: Attention) -> Real:
    full_s, local = _attention_layer_s(card, a, op), np.asarray(op.window_layers, dtype=np.float64)
    if not np.any(local > 0):
        return op.layers * full_s
    total_s = (op.layers - local) * full_s
    sizes = np.broadcast_to(np.asarray(op.window, dtype=np.float64), local.shape)
    for window in np.unique(sizes[local > 0]):
        layers = np.where(sizes == window, local, 0.0)
        window_s = _attention_layer_s(card, a, op, float(window))
        # What the window holds is attention to everything, of which more was measured.
        total_s = total_s + layers * np.where(np.asarray(a.tokens) + a.prefix <= window, full_s, window_s)
    return total_s


def _attention_layer_s(card: Card, a: _Attention, op: Attention, window: float = 0.0) -> FloatArray:
    """Seconds of one layer that attends to everything, or to the last `window` tokens.

    Where a window was not measured with the head dimension, full attention answers for as much work: a context of the
    window's tokens, a prompt of as many pairs of tokens (T w - w^2 / 2 of T tokens beyond w). So it does for a prompt
    after a prefix, which was not measured either; several queries of a context take the ratio of their rooflines.
    """
    kv_heads = np.maximum(op.kv_heads, 1.0)
    met, after_prefix = a.tokens, bool(np.any(np.asarray(a.prefix) > 0))
    if after_prefix:
        met = _tokens_of_pairs(a.tokens, a.prefix, window or math.inf)
    elif window:
        met = np.minimum(a.tokens, max(window, 1.0))
        if a.stage == "context":
            met = np.sqrt(met * (2.0 * np.asarray(a.tokens, dtype=np.float64) - met))
    narrow = card.kv_bytes_per_element < WIDE_BYTES
    in_fp8 = a.stage == "context" and card.gpu.fp8_flops_per_s is not None
    found = _nearest_attention(*card.tables, a.stage, narrow, float(np.max(op.head_dim)), in_fp8)
    if found is None:
        raise InputError(f"no attention was measured on {card.system.name}", where="silicon", next_step=ROOFLINE)
    kind, head_dim, measured_bytes = found
    measured = (head_dim, window) in attention_kinds(*card.tables, a.stage, kind) and not after_prefix
    kernel = attention(*card.tables, a.stage, kind, head_dim, window if measured else 0.0)
    seconds = kernel.seconds(a.batch, a.tokens if measured else met, a.heads, kv_heads, op.head_dim)
    elements = 2.0 * a.batch * kv_heads * op.head_dim * met
    meets = 4.0 * met if a.stage == "generation" else 2.0 * np.asarray(met, dtype=np.float64) ** 2
    flops, wanted_bytes = meets * a.batch * np.asarray(a.heads) * op.head_dim, card.kv_bytes_per_element
    if a.stage == "context":  # a prompt's own keys and values are not read from the cache
        measured_bytes = wanted_bytes = ACTIVATION_BYTES
    arithmetic = "fp8" if kind == FP8_FP8 else BF16
    if np.any(np.asarray(a.queries) != 1.0):
        _, peak = rates(card.system, arithmetic)
        read_s = elements * measured_bytes / card.system.memory_bandwidth_bytes_per_s
        seconds = seconds * (np.maximum(read_s, a.queries * flops / peak) / np.maximum(read_s, flops / peak))
        flops = a.queries * flops
    seconds = card.for_this_gpu(seconds, elements * measured_bytes, elements * wanted_bytes, flops, arithmetic)
    return np.maximum(seconds, card.limit_s(elements, flops, arithmetic, wanted_bytes))


def _latent_s(card: Card, a: _Attention, model: Architecture) -> Real:
    """Seconds of one layer's latent attention and its projections; NaN where the engine's were not measured."""
    share, seconds = card.share(model, "attention"), 0.0
    if share > 0.0:
        seconds = share * _latent_layer_s(card, a, model, LATENT.get(card.format, ()), card.weight_bytes_per_param)
    if share < 1.0:
        seconds = seconds + (1.0 - share) * _latent_layer_s(card, a, model, (), 2.0)
    return seconds


def _latent_layer_s(
    card: Card, a: _Attention, model: Architecture, kinds: tuple[str, ...], weight_bytes: float
) -> FloatArray:
    """Seconds of one layer whose weights have so many bytes, of the nearest formats of modules that were measured."""
    module = nearest_latent(*card.tables, a.stage, (*kinds, BF16), card.cache_type)
    if module is None:
        return _latent_parts_s(card, a, model, weight_bytes)
    _, weights, cached = module
    seconds = module_grid(*card.tables, a.stage, module).seconds(a.heads, a.batch, a.tokens)
    return seconds * _latent_ratio(card, a, model, cached, weight_bytes, KINDS[weights].bytes_per_weight)


def _latent_ratio(
    card: Card, a: _Attention, model: Architecture, cached: str, weight_bytes: float, measured_bytes: float
) -> FloatArray:
    """Roofline of this model, GPU and formats over that of the measured ones; no bytes: attention alone."""
    where, system, (bandwidth, peak) = (a.heads, a.batch, a.tokens, a.stage), card.system, card.ratios(BF16)
    if measured_bytes and abs(weight_bytes / measured_bytes - 1.0) < SCALES:
        weight_bytes = measured_bytes
    rate, flops = system.memory_bandwidth_bytes_per_s, system.bf16_flops_per_s
    measured_cache = KINDS[cached].bytes_per_weight
    wanted_cache = KINDS[card.cache_type].bytes_per_weight
    here = (rate * bandwidth, flops * peak)
    own, theirs = a.params
    this = latent_roofline_s(
        model, *where, here, weight_bytes, wanted_cache, prefix=a.prefix, queries=a.queries, params=own
    )
    return this / latent_roofline_s(MEASURED, *where, (rate, flops), measured_bytes, measured_cache, params=theirs)


def _latent_parts_s(card: Card, a: _Attention, model: Architecture, weight_bytes: float) -> FloatArray:
    """Seconds of one layer from attention alone and its products; NaN where attention was not measured either."""
    cached = next((c for c in (card.cache_type, BF16) if attention_grid(*card.tables, a.stage, c)), BF16)
    grid = attention_grid(*card.tables, a.stage, cached)
    if grid is None:
        return np.full(common_shape(model, a.heads, a.batch, a.tokens, a.prefix, a.queries), np.nan)
    seconds = grid.seconds(a.heads, a.batch, a.tokens) * _latent_ratio(card, a, model, cached, 0.0, 0.0)
    prompts, share = a.stage == "context", 1.0 if weight_bytes < WIDE_BYTES else 0.0
    new = a.batch * np.asarray(a.tokens if prompts else a.queries)
    products = [op for op in attention_products(model, a.heads) if prompts or not op.expands]
    if not prompts:
        kind = "fp8" if share else BF16
        grids = into_space_grids(*card.tables, kind) or into_space_grids(*card.tables, BF16)
        seconds = seconds + sum(g.seconds(a.heads, new) for g in grids)
    ranks = model.q_lora_rank + np.asarray(model.kv_lora_rank)
    norms_s = 2.0 * card.elementwise_s(ACTIVATION_BYTES * new * ranks)
    asked = [(replace(op, closes=False), share) for op in products]
    return np.asarray(seconds + norms_s + card.products_s(asked, new, model))


def _sparse_s(card: Card, a: _Attention, model: Architecture, module: Module) -> FloatArray:
    """Seconds of one layer's sparse latent attention, its indexer and projections.

    Every query chooses for itself, as a request of its own does; after a cached prefix a prompt takes what it takes
    longer than the prefix alone.
    """
    if a.stage == "context" and np.any(np.asarray(a.prefix) > 0.0):
        lengths = (np.asarray(a.tokens) + a.prefix, np.maximum(a.prefix, 1.0), a.tokens)
        parts = (replace(a, tokens=tokens, prefix=0.0) for tokens in lengths)
        whole_s, before_s, alone_s = (_sparse_s(card, part, model, module) for part in parts)
        return np.where(np.asarray(a.prefix) > 0.0, np.maximum(whole_s - before_s, alone_s), alone_s)
    name, weights, _ = module
    (measured_bytes, _), system, share = rates(card.system, weights), card.system, model.quantised.attention
    wanted_bytes = share * card.weight_bytes_per_param + (1.0 - share) * max(card.weight_bytes_per_param, 2.0)
    sizes = (a.heads, a.batch * np.asarray(a.queries), a.tokens)
    where = (*sizes, a.stage, (system.memory_bandwidth_bytes_per_s, system.bf16_flops_per_s))
    this = latent_roofline_s(model, *where, wanted_bytes, 2.0, sparse=True)
    measured = latent_roofline_s(SPARSE[name], *where, measured_bytes, 2.0, sparse=True)
    return module_grid(*card.tables, a.stage, module).seconds(*sizes) * (this / measured)


def state_s(card: Card, op: State, a: Pass) -> Real:
    """Seconds of layers with a state, by measured kernels of this engine, or where there are none by the roofline."""
    stages = {"generation": (a.decoded, None), "context": (a.prompts, a.prompt_tokens)}
    kernels = {stage: linear_kernels(*card.tables, op.kind, stage) for stage in stages}
    if None in kernels.values():
        return card.analytic.operation_s(op, a)
    seconds: Real = 0.0
    for stage, (batch, tokens) in stages.items():
        kernel = kernels[stage]
        if kernel is not None and batch is not None and np.any(np.asarray(batch) > 0):
            each_s = kernel.seconds(op, np.maximum(batch, 1.0), tokens)
            seconds = seconds + op.layers / card.ratios(BF16)[0] * each_s * np.minimum(batch, 1.0)
    if op.kind in GATED_NORMS:
        seconds = seconds + op.layers * card.elementwise_s(a.tokens * (3.0 * ACTIVATION_BYTES * op.values))
    return seconds


def _tokens_of_pairs(tokens: Real, prefix: Real, window: float) -> FloatArray:
    """Tokens of a prompt on its own with as many pairs of tokens as `tokens` after a cached `prefix`, within a window."""

    def pairs(length: Real) -> FloatArray:
        met = np.minimum(np.asarray(length, dtype=np.float64), window)
        return met * (np.asarray(length, dtype=np.float64) - met / 2.0)

    return np.sqrt(2.0 * (pairs(np.asarray(tokens) + prefix) - pairs(prefix)))


@cache
def _nearest_attention(
    system: str, engine: str, version: str, stage: str, narrow: bool, head_dim: float, in_fp8: bool
) -> tuple[str, float, float] | None:
    """Cache type, head dimension and bytes of a cached element; None where nothing was measured.

    The nearest head dimension first, and of those the cache type that is meant: kernels of 512 channels are others than
    those of 128, which quantisation is not. A prompt over a cache of 8 bits is multiplied in fp8 where that was measured.
    """
    types = (("fp8", 1.0), (BF16, 2.0)) if narrow else ((BF16, 2.0),)
    if narrow and in_fp8:
        types = ((FP8_FP8, 1.0), *types)
    found = [
        (abs(float(np.log(dim / head_dim))), order, kind, dim, measured)
        for order, (kind, measured) in enumerate(types)
        for dim, window in attention_kinds(system, engine, version, stage, kind)
        if window == 0.0
    ]
    return min(found)[2:] if found else None


def is_latent(model: Architecture) -> bool:
    """Whether the models have latent attention; raises InputError where some have and others have not."""
    latent = np.asarray(model.kv_lora_rank) > 0
    if latent.any() and not latent.all():
        what = "one array of models mixes latent and ordinary attention"
        raise InputError(what, where="silicon", next_step="ask for each kind alone")
    return bool(latent.any())
