"""Seconds of multi-head latent attention with its projections, from measured modules of DeepSeek's and GLM-5's widths.

Where an engine's modules were not measured its attention alone may have been, with the batched products that lead there
and back.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import numpy as np

from moescale.errors import InputError
from moescale.latency import common_shape
from moescale.latency.card import SCALES, WIDE_BYTES, Card, Stage, by_share
from moescale.latency.kernels.formats import BF16, KINDS, LATENT
from moescale.latency.kernels.log_grid import LogGrid, grid_of
from moescale.latency.kernels.tables import Place, default_version, engines, find_grid, find_table, read_columns
from moescale.latency.roofline import ACTIVATION_BYTES, causal_pairs
from moescale.models.architecture import Architecture, some
from moescale.models.operations import attention_products, index_products
from moescale.models.published import find_shape
from moescale.typing import FloatArray, Real

COLUMNS = ("num_heads", "batch_size", "isl", "step", "latency")
LAUNCHES = 1.5  # modules whose smallest takes so many times as long as another engine's were launched from the host
# The models whose widths the tables' modules have, heads aside: of ordinary latent attention, and of sparse with its indexer.
MEASURED, SPARSE = "deepseek-v3", ("deepseek-ai/DeepSeek-V3.2", "zai-org/GLM-5")
Module = tuple[str, str, str]  # a name of SPARSE, or none of ordinary latent attention; formats of weights and cache


def is_latent(model: Architecture) -> bool:
    """Whether the models have latent attention; raises InputError where some have and others have not."""
    latent = np.asarray(model.kv_lora_rank) > 0
    if latent.any() and not latent.all():
        what = "one array of models mixes latent and ordinary attention"
        raise InputError(what, where="silicon", next_step="ask for each kind alone")
    return bool(latent.any())


def _module_place(system: str, engine: str, version: str, stage: str, *, sparse: bool) -> Place:
    family, stem = ("sparse_attention", "dsa") if sparse else ("mla", "mla")
    return system, family, engine, version, f"{stem}_{stage}_module_perf"


@cache
def module_types(system: str, engine: str, version: str, stage: str, *, sparse: bool = False) -> tuple[Module, ...]:
    """Measured modules, such as ("", fp8_block, bfloat16), of ordinary or sparse latent attention; often none."""
    found, names = (
        find_table(*_module_place(system, engine, version, stage, sparse=sparse)),
        ("gemm_type", "kv_cache_dtype"),
    )
    if found is None:
        return ()
    rows = found.distinct_rows(("model", *names)) if sparse else [("", *row) for row in found.distinct_rows(names)]
    return tuple((name, weights, cached) for name, weights, cached in rows if not sparse or name in SPARSE)


@cache
def module_grid(system: str, engine: str, version: str, stage: str, module: Module) -> LogGrid:
    """Seconds of one layer of a measured module over (heads, requests, tokens); tokens as in latency.attention.

    Some tables of decoding hold the host's launches: of one token and one head vLLM's take 70 to 90 us on H100, on B200
    40, as TensorRT-LLM's everywhere; of sparse attention 140 to 240 us, SGLang's 66. Such rows, told by LAUNCHES, are
    answered by the faster of their own time and of the other engines', of sparse attention in the next formats.
    """
    name, weights, cached = module
    asked = [(engine, version, module)]
    for other in engines(system) if stage != "context" else ():
        theirs = default_version(system, other)
        held = [m for m in module_types(system, other, theirs, stage, sparse=bool(name)) if m[0] == name]
        if other != engine and held and (name or module in held):
            asked.append((other, theirs, min(held, key=lambda m: (m[1] != weights, m[2] != cached))))
    grids: list[LogGrid] = []
    for of_engine, of_version, (_, gemm_type, kv_type) in asked:
        equal = {"gemm_type": gemm_type, "kv_cache_dtype": kv_type} | ({"model": name} if name else {})
        found = _grid(_module_place(system, of_engine, of_version, stage, sparse=bool(name)), stage, **equal)
        assert found is not None
        grids.append(found)
    least = [float(np.exp(found.log_s.min())) for found in grids]
    grid = grids[0]
    if least[0] < LAUNCHES * min(least):
        return grid
    sizes = np.meshgrid(*(np.exp(axis) for axis in grid.axes), indexing="ij")
    faster = np.min([grid.log_s, *(np.log(found.seconds(*sizes)) for found in grids[1:])], axis=0)
    return LogGrid(grid.axes, faster, grid.slopes)


@cache
def _grid(place: Place, stage: str, **equal: str) -> LogGrid | None:
    """Seconds of one layer over (heads, requests, tokens), of the rows with these texts; None where there are none."""
    table = find_table(*place)
    rows = {} if table is None else read_columns(table, COLUMNS, **equal)
    if stage == "context":  # a prompt after a cached prefix is another question
        rows = {name: values[rows["step"] == 0] for name, values in rows.items()}
    if not rows or not rows["latency"].size:
        return None
    tokens, of_tokens = (rows["isl"], 2.0) if stage == "context" else (rows["step"] + 1.0, 1.0)
    # Beyond the measured sizes attention, or an indexer that meets all tokens, sets the pace.
    return grid_of((rows["num_heads"], rows["batch_size"], tokens), rows["latency"], (1.0, 1.0, of_tokens))


def _attention_grid(system: str, engine: str, version: str, stage: str, cache_type: str) -> LogGrid | None:
    """The same of the attention of one layer alone."""
    return _grid(
        (system, "mla", engine, version, f"{stage}_mla_perf"), stage, mla_dtype=BF16, kv_cache_dtype=cache_type
    )


def _into_space_grids(system: str, engine: str, version: str, kind: str) -> list[LogGrid]:
    """Seconds over (heads, tokens) of the products that bring queries into the latent space, and results out of it."""
    place, sizes = (system, "mla_bmm", engine, version, "mla_bmm_perf"), ("num_heads", "num_tokens")
    both = ("mla_gen_pre", "mla_gen_post")
    grids = [find_grid(place, sizes, (1.0, 1.0), bmm_dtype=kind, op_name=name) for name in both]
    return [grid for grid in grids if grid is not None]


def nearest_module(card: Card, stage: str, kinds: tuple[str, ...]) -> Module | None:
    """The measured module in the formats next to the wanted ones: weights of the first of `kinds`, or in bf16."""
    wanted, modules = (*kinds, BF16), module_types(*card.tables, stage)
    found = [(wanted.index(m[1]), m[2] != card.cache_type, m) for m in modules if m[1] in wanted]
    return min(found)[2] if found else None


def sparse_module(card: Card, model: Architecture) -> Module | None:
    """The measured module of sparse latent attention next to a model, where this engine has it for prompts and decoding."""
    if not (some(model.index_topk) and is_latent(model)):
        return None
    of_8_bits = card.weight_bytes_per_param < WIDE_BYTES and model.quantised.attention > 0.5
    wanted, wide = "fp8_block" if of_8_bits else BF16, float(np.max(np.asarray(model.d_model)))
    prompts, decoding = (set(module_types(*card.tables, stage, sparse=True)) for stage in ("context", "generation"))

    def away(module: Module) -> tuple[bool, bool, float, str]:
        name, weights, cached = module
        return weights != wanted, cached != card.cache_type, abs(float(_measured(name).d_model) - wide), name

    known = [module for module in prompts & decoding if module[1] in (BF16, "fp8_block") and module[2] in (BF16, "fp8")]
    return min(known, key=away, default=None)


def latent_s(card: Card, a: Stage, model: Architecture) -> Real:
    """Seconds of one layer's latent attention and its projections; NaN where the engine's were not measured."""
    in_format = (card, a, model, LATENT.get(card.format, ()), card.weight_bytes_per_param)
    return by_share(card.share(model, "attention"), _layer_s, in_format, (card, a, model, (), 2.0))


def _layer_s(card: Card, a: Stage, model: Architecture, kinds: tuple[str, ...], weight_bytes: float) -> FloatArray:
    """Seconds of one layer whose weights have so many bytes, of the nearest formats of modules that were measured."""
    module = nearest_module(card, a.name, kinds)
    if module is None:
        return _parts_s(card, a, model, weight_bytes)
    measured_bytes, measured_cache = (KINDS[kind].bytes_per_weight for kind in module[1:])
    weight_bytes = measured_bytes if abs(weight_bytes / measured_bytes - 1.0) < SCALES else weight_bytes
    seconds = module_grid(*card.tables, a.name, module).seconds(a.heads, a.batch, a.tokens)
    wanted = weight_bytes, KINDS[card.cache_type].bytes_per_weight
    return seconds * _ratio(card, a, model, "", wanted, (measured_bytes, measured_cache))


def _parts_s(card: Card, a: Stage, model: Architecture, weight_bytes: float) -> FloatArray:
    """Seconds of one layer from attention alone and its products; NaN where attention was not measured either."""
    cached = next((c for c in (card.cache_type, BF16) if _attention_grid(*card.tables, a.name, c)), BF16)
    grid = _attention_grid(*card.tables, a.name, cached)
    if grid is None:
        return np.full(common_shape(model, a.heads, a.batch, a.tokens, a.prefix, a.queries), np.nan)
    wanted, measured = ((0.0, KINDS[kind].bytes_per_weight) for kind in (card.cache_type, cached))
    seconds = grid.seconds(a.heads, a.batch, a.tokens) * _ratio(card, a, model, "", wanted, measured)
    prompts, share = a.name == "context", 1.0 if weight_bytes < WIDE_BYTES else 0.0
    new = a.batch * np.asarray(a.tokens if prompts else a.queries)
    products = [op for op in attention_products(model, a.heads) if prompts or not op.expands]
    if not prompts:
        kind = "fp8" if share else BF16
        grids = _into_space_grids(*card.tables, kind) or _into_space_grids(*card.tables, BF16)
        seconds = seconds + sum(g.seconds(a.heads, new) for g in grids)
    ranks = model.q_lora_rank + np.asarray(model.kv_lora_rank)
    norms_s = 2.0 * card.elementwise_s(ACTIVATION_BYTES * new * ranks)
    asked = [(replace(op, closes=False), share) for op in products]
    return np.asarray(seconds + norms_s + card.products_s(asked, new, model))


def _ratio(
    card: Card, a: Stage, model: Architecture, name: str, wanted: tuple[float, float], measured: tuple[float, float]
) -> FloatArray:
    """Roofline over that of a measured module, a name of SPARSE or none, by bytes of a weight (0: none is read) and of the cache."""
    (bandwidth, peak), system = card.ratios(BF16), card.system
    rate, flops = system.memory_bandwidth_bytes_per_s, system.bf16_flops_per_s
    shared, of_head = _params_by_heads(name)
    as_measured = replace(a, prefix=0.0, queries=1.0, params=shared + of_head * a.heads)
    this = _roofline_s(model, a, (rate * bandwidth, flops * peak), *wanted, sparse=bool(name))
    return this / _roofline_s(_measured(name), as_measured, (rate, flops), *measured, sparse=bool(name))


def sparse_s(card: Card, a: Stage, model: Architecture, module: Module) -> FloatArray:
    """Seconds of one layer's sparse latent attention, its indexer and projections; a cached prefix is what a prompt takes longer."""
    if a.name == "context" and np.any(np.asarray(a.prefix) > 0.0):
        lengths = (np.asarray(a.tokens) + a.prefix, np.maximum(a.prefix, 1.0), a.tokens)
        parts = (replace(a, tokens=tokens, prefix=0.0) for tokens in lengths)
        whole_s, before_s, alone_s = (sparse_s(card, part, model, module) for part in parts)
        return np.where(np.asarray(a.prefix) > 0.0, np.maximum(whole_s - before_s, alone_s), alone_s)
    (name, weights, _), share = module, model.quantised.attention
    wanted_bytes = share * card.weight_bytes_per_param + (1.0 - share) * max(card.weight_bytes_per_param, 2.0)
    each = replace(a, batch=a.batch * np.asarray(a.queries), queries=1.0)
    seconds = module_grid(*card.tables, a.name, module).seconds(a.heads, each.batch, a.tokens)
    return seconds * _ratio(card, each, model, name, (wanted_bytes, 2.0), (KINDS[weights].bytes_per_weight, 2.0))


def _measured(name: str) -> Architecture:
    return find_shape(name or MEASURED).architecture


@cache
def _params_by_heads(name: str) -> tuple[float, float]:
    """Parameters of the projections of a measured module, a name of SPARSE or none: those that all GPUs hold, and of a head."""
    none, one = (sum(float(op.params) for op in attention_products(_measured(name), n)) for n in (0.0, 1.0))
    return none, one - none


def _roofline_s(
    model: Architecture,
    a: Stage,
    rates: tuple[float, float],
    weight_bytes: float,
    cache_bytes: float,
    *,
    sparse: bool = False,
) -> FloatArray:
    """Roofline of an average layer on one GPU with some of the heads, for ratios between models and formats.

    `rates` are bytes and FLOPs a second; weights of no bytes stand for attention alone. `sparse`: each query meets the
    tokens that it chooses, and the indexer all.
    """
    heads, requests, tokens = np.asarray(a.heads, dtype=np.float64), np.asarray(a.batch, dtype=np.float64), a.tokens
    rank = np.asarray(model.kv_lora_rank, dtype=np.float64)
    chosen = np.asarray(model.index_topk if sparse else math.inf)
    if a.name == "context":
        new, tokens, indexed = requests * tokens, tokens + np.asarray(a.prefix), 0.5 * np.square(tokens)
        channels = heads * (model.head_dim + np.asarray(model.v_head_dim))
        flops = channels * requests * 2.0 * (causal_pairs(tokens, chosen) - causal_pairs(a.prefix, chosen))
    else:  # queries are brought into the latent space, and meet the cache there
        new, indexed = requests * a.queries, np.asarray(tokens)
        flops = heads * 2.0 * (2.0 * rank + model.qk_rope_head_dim) * new * np.minimum(tokens, chosen)
    moved = cache_bytes * (rank + model.qk_rope_head_dim) * requests * np.minimum(tokens, chosen)
    params = a.params if weight_bytes else 0.0
    if sparse:
        params = params + sum(op.params for op in index_products(model)) / model.n_layers
        each = np.asarray(model.n_index_layers, dtype=np.float64) / model.n_layers * model.index_head_dim * requests
        flops, moved = flops + 2.0 * model.index_n_heads * each * indexed, moved + each * tokens
    return np.maximum((weight_bytes * params + moved) / rates[0], (2.0 * params * new + flops) / rates[1])
