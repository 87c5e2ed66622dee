"""Times of multi-head latent attention with its projections, from measured modules of DeepSeek's and GLM-5's widths.

Where an engine's modules were not measured its attention alone may have been, between the projections (stage context) or
in the compressed space (generation), with the batched products that lead there and back.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import numpy as np

from moescale.latency.kernels.log_grid import LogGrid, grid_of
from moescale.latency.kernels.tables import Table, default_version, engines, find_table, read_columns
from moescale.models.architecture import Architecture
from moescale.models.operations import attention_products, index_products
from moescale.typing import FloatArray, Real

COLUMNS = ("num_heads", "batch_size", "isl", "step", "latency")
LAUNCHES = 1.5  # modules whose smallest takes so many times as long as another engine's were launched from the host
# The widths that the tables' modules have (DeepSeek-V3, arXiv 2412.19437, section 4.2); heads vary.
MEASURED = Architecture(
    n_layers=1.0,
    d_model=7168.0,
    n_heads=128.0,
    n_kv_heads=128.0,
    head_dim=192.0,
    d_ffn=18432.0,
    kv_lora_rank=512.0,
    q_lora_rank=1536.0,
    qk_rope_head_dim=64.0,
    v_head_dim=128.0,
)


# The same of sparse attention with its indexer: DeepSeek-V3.2 and GLM-5, one layer of each.
_V32 = replace(
    MEASURED, index_topk=2048.0, n_sparse_layers=1.0, index_n_heads=64.0, index_head_dim=128.0, n_index_layers=1.0
)
_GLM5 = replace(_V32, d_model=6144.0, n_heads=64.0, n_kv_heads=64.0, head_dim=256.0, q_lora_rank=2048.0)
SPARSE = {"deepseek-ai/DeepSeek-V3.2": _V32, "zai-org/GLM-5": replace(_GLM5, v_head_dim=256.0, index_n_heads=32.0)}
Module = tuple[str, str, str]  # a name of SPARSE, or none of ordinary latent attention; formats of weights and cache


@cache
def module_types(system: str, engine: str, version: str, stage: str, *, sparse: bool = False) -> tuple[Module, ...]:
    """Measured modules, such as ("", fp8_block, bfloat16), of ordinary or sparse latent attention; often none."""
    found = _module_table(system, engine, version, stage, sparse=sparse)
    names = ("gemm_type", "kv_cache_dtype")
    if found is None:
        return ()
    rows = found.distinct_rows(("model", *names)) if sparse else [("", *row) for row in found.distinct_rows(names)]
    return tuple((name, weights, cached) for name, weights, cached in rows if not sparse or name in SPARSE)


@cache
def module_grid(system: str, engine: str, version: str, stage: str, module: Module) -> LogGrid:
    """Seconds of one layer of a measured module over (heads, requests, tokens); tokens as in kernels.attention.

    Some tables of decoding hold the host's launches, where others decode in CUDA graphs: of latent attention vLLM's on H100,
    H200 and B300 take 70 to 90 us for one token and one head, on B200 40 us, as TensorRT-LLM's on all of them; of sparse
    attention both take 140 to 240 us on H100 and H200, SGLang's 66. Such rows, told by LAUNCHES, are answered by the faster of
    their own time and of the other engines', of sparse attention in the next formats.
    """
    grid, (name, weights, cached) = _module_grid(system, engine, version, stage, module), module
    others: list[LogGrid] = []
    for other in engines(system) if stage != "context" else ():
        theirs = default_version(system, other)
        held = [m for m in module_types(system, other, theirs, stage, sparse=bool(name)) if m[0] == name]
        if other != engine and held and (name or module in held):
            nearest = min(held, key=lambda m: (m[1] != weights, m[2] != cached))
            others.append(_module_grid(system, other, theirs, stage, nearest))
    least = [float(np.exp(found.log_s.min())) for found in (grid, *others)]
    if least[0] < LAUNCHES * min(least):
        return grid
    sizes = np.meshgrid(*(np.exp(axis) for axis in grid.axes), indexing="ij")
    faster = np.min([grid.log_s, *(np.log(found.seconds(*sizes)) for found in others)], axis=0)
    return LogGrid(grid.axes, faster, grid.slopes)


def _module_table(system: str, engine: str, version: str, stage: str, *, sparse: bool) -> Table | None:
    family, stem = ("sparse_attention", "dsa") if sparse else ("mla", "mla")
    return find_table(system, family, engine, version, f"{stem}_{stage}_module_perf")


@cache
def _module_grid(system: str, engine: str, version: str, stage: str, module: Module) -> LogGrid:
    name, weights, cached = module
    table = _module_table(system, engine, version, stage, sparse=bool(name))
    assert table is not None
    of_model = {"model": name} if name else {}
    rows = read_columns(table, COLUMNS, **of_model, gemm_type=weights, kv_cache_dtype=cached)
    # A prompt after a cached prefix is another question.
    return _grid(rows if stage != "context" else {n: v[rows["step"] == 0] for n, v in rows.items()}, stage)


def _grid(rows: dict[str, FloatArray], stage: str) -> LogGrid:
    tokens, of_tokens = (rows["isl"], 2.0) if stage == "context" else (rows["step"] + 1.0, 1.0)
    # Beyond the measured sizes attention, or an indexer that meets all tokens, sets the pace.
    return grid_of((rows["num_heads"], rows["batch_size"], tokens), rows["latency"], (1.0, 1.0, of_tokens))


def nearest_latent(
    system: str, engine: str, version: str, stage: str, weights: tuple[str, ...], cache_type: str
) -> Module | None:
    """The measured module in the formats next to the wanted ones, of which the first of `weights` is best."""
    modules = module_types(system, engine, version, stage)
    found = [(weights.index(m[1]), m[2] != cache_type, m) for m in modules if m[1] in weights]
    return min(found)[2] if found else None


@cache
def attention_grid(system: str, engine: str, version: str, stage: str, cache_type: str) -> LogGrid | None:
    """Seconds of the attention of one layer alone over (heads, requests, tokens); None where it was not measured."""
    table = find_table(system, "mla", engine, version, f"{stage}_mla_perf")
    if table is None:
        return None
    rows = read_columns(table, COLUMNS, mla_dtype="bfloat16", kv_cache_dtype=cache_type)
    if not rows["latency"].size:
        return None
    return _grid(rows, stage)


@cache
def into_space_grids(system: str, engine: str, version: str, kind: str) -> tuple[LogGrid, ...]:
    """Seconds over (heads, tokens) of the products that bring queries into the latent space, and results out of it."""
    table = find_table(system, "mla_bmm", engine, version, "mla_bmm_perf")
    if table is None or kind not in table.text_values("bmm_dtype"):
        return ()
    names = ("num_heads", "num_tokens", "latency")
    both = [read_columns(table, names, bmm_dtype=kind, op_name=op) for op in ("mla_gen_pre", "mla_gen_post")]
    return tuple(grid_of((rows["num_heads"], rows["num_tokens"]), rows["latency"], (1.0, 1.0)) for rows in both)


def latent_params(a: Architecture, heads: Real) -> Real:
    """Parameters of a layer's projections with so many heads."""
    return sum((op.params for op in attention_products(a, heads)), start=0.0)


def latent_roofline_s(
    a: Architecture,
    heads: Real,
    batch: Real,
    tokens: Real,
    stage: str,
    rates: tuple[float, float],
    weight_bytes: float,
    cache_bytes: float,
    *,
    prefix: Real = 0.0,
    queries: Real = 1.0,
    sparse: bool = False,
    params: Real | None = None,
) -> FloatArray:
    """Roofline of an average layer on one GPU with `heads` of the heads, for ratios between models and formats.

    `rates` are bytes and FLOPs a second. Weights of no bytes stand for attention alone, without its projections. Prompts may
    follow a cached `prefix`, which every new token meets whole; a context may meet several `queries`. `sparse`: each query
    meets the tokens that it chooses, and the indexer all. `params`: `latent_params`, where they are known.
    """
    heads, requests = np.asarray(heads, dtype=np.float64), np.asarray(batch, dtype=np.float64)
    rank, params = np.asarray(a.kv_lora_rank, dtype=np.float64), latent_params(a, heads) if params is None else params
    chosen = np.asarray(a.index_topk, dtype=np.float64) if sparse else np.asarray(math.inf)

    def pairs(length: Real) -> FloatArray:  # twice: a token meets half of its own prompt
        met = np.minimum(length, chosen)
        return met * (2.0 * np.asarray(length) - met)

    if stage == "context":
        new, tokens, indexed = requests * tokens, tokens + np.asarray(prefix), 0.5 * np.square(tokens)
        pairs_flops = heads * (a.head_dim + np.asarray(a.v_head_dim)) * requests * (pairs(tokens) - pairs(prefix))
    else:  # queries are brought into the latent space, and meet the cache there
        new, indexed = requests * queries, np.asarray(tokens)
        pairs_flops = heads * 2.0 * (2.0 * rank + a.qk_rope_head_dim) * new * np.minimum(tokens, chosen)
    index_flops, index_bytes = 0.0, 0.0
    if sparse:
        params = params + sum(op.params for op in index_products(a)) / a.n_layers
        each = np.asarray(a.n_index_layers, dtype=np.float64) / a.n_layers * a.index_head_dim * requests
        index_flops, index_bytes = 2.0 * a.index_n_heads * each * indexed, each * tokens
    params = params * (weight_bytes > 0.0)
    cached = cache_bytes * (rank + a.qk_rope_head_dim) * requests * np.minimum(tokens, chosen)
    flops = 2.0 * params * new + pairs_flops + index_flops
    return np.maximum((weight_bytes * params + cached + index_bytes) / rates[0], flops / rates[1])
