"""Times of sparse latent attention with its indexer and projections, from measured modules of DeepSeek-V3.2 and GLM-5."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np

from moescale.latency.kernels.latent import MEASURED, in_graphs, module_grid
from moescale.latency.kernels.log_grid import LogGrid
from moescale.latency.kernels.tables import (
    System,
    default_version,
    engines,
    find_table,
)
from moescale.models.architecture import Architecture
from moescale.models.operations import attention_products, index_products
from moescale.typing import FloatArray, Real

# The widths that the tables' modules have, one layer of each; heads vary.
_V32 = replace(
    MEASURED, index_topk=2048.0, n_sparse_layers=1.0, index_n_heads=64.0, index_head_dim=128.0, n_index_layers=1.0
)
_GLM5 = replace(_V32, d_model=6144.0, n_heads=64.0, n_kv_heads=64.0, head_dim=256.0, q_lora_rank=2048.0)
MODULES = {"deepseek-ai/DeepSeek-V3.2": _V32, "zai-org/GLM-5": replace(_GLM5, v_head_dim=256.0, index_n_heads=32.0)}


@cache
def sparse_types(system: str, engine: str, version: str, stage: str) -> tuple[tuple[str, str, str], ...]:
    """Measured triples of a name of MODULES and formats of weights and cache; empty where there are none."""
    table = find_table(system, "sparse_attention", engine, version, f"dsa_{stage}_module_perf")
    if table is None:
        return ()
    found = table.distinct_rows(("model", "gemm_type", "kv_cache_dtype"))
    return tuple((name, weights, cached) for name, weights, cached in found if name in MODULES)


def nearest_module(a: Architecture, types: tuple[tuple[str, str, str], ...], weights: str, cached: str) -> str | None:
    """The measured module whose width is next to the model's, in these formats; None where there is none."""
    wide = float(np.max(np.asarray(a.d_model)))
    names = [name for name, *formats in types if formats == [weights, cached]]
    return min(names, key=lambda name: abs(float(np.asarray(MODULES[name].d_model)) - wide), default=None)


@cache
def sparse_grid(system: str, engine: str, version: str, stage: str, model: str, weights: str, cached: str) -> LogGrid:
    """Seconds of one layer over (heads, requests, tokens); other engines' launches may stand in in the next formats."""

    def grid(which: str, version: str, weights: str, cached: str) -> LogGrid:
        equal = (("model", model), ("gemm_type", weights), ("kv_cache_dtype", cached))
        return module_grid(system, which, version, "sparse_attention", f"dsa_{stage}_module_perf", stage, equal)

    others: list[LogGrid] = []
    for other in engines(system):
        theirs = default_version(system, other)
        held = [formats for name, *formats in sparse_types(system, other, theirs, stage) if name == model]
        if other != engine and held and stage != "context":
            others.append(grid(other, theirs, *min(held, key=lambda f: (f[0] != weights, f[1] != cached))))
    return in_graphs(grid(engine, version, weights, cached), others, stage)


def sparse_roofline_s(
    a: Architecture, heads: Real, batch: Real, tokens: Real, stage: str, system: System, weight_bytes: float
) -> FloatArray:
    """Roofline of an average layer on one GPU with `heads` of the heads, for ratios between models of other widths."""
    heads, requests = np.asarray(heads, dtype=np.float64), np.asarray(batch, dtype=np.float64)
    context, chosen = np.asarray(tokens, dtype=np.float64), np.asarray(a.index_topk, dtype=np.float64)
    met, rank = np.minimum(context, chosen), np.asarray(a.kv_lora_rank, dtype=np.float64)
    indexed = np.asarray(a.n_index_layers, dtype=np.float64) / a.n_layers
    params = sum(op.params for op in attention_products(a, heads))
    params = params + sum(op.params for op in index_products(a)) / a.n_layers
    index_flops = indexed * 2.0 * a.index_n_heads * a.index_head_dim
    if stage == "context":
        new, pairs = requests * context, requests * met * (context - met / 2.0)
        flops = 2.0 * heads * (a.head_dim + np.asarray(a.v_head_dim)) * pairs
        flops = flops + index_flops * 0.5 * requests * np.square(context)
    else:
        new, pairs = requests, requests * met
        flops = 2.0 * heads * (2.0 * rank + a.qk_rope_head_dim) * pairs + index_flops * requests * context
    cached = 2.0 * (rank + a.qk_rope_head_dim) * requests * met + indexed * a.index_head_dim * requests * context
    moved = weight_bytes * params + cached
    flops = flops + 2.0 * params * new
    return np.maximum(moved / system.memory_bandwidth_bytes_per_s, flops / system.bf16_flops_per_s)
