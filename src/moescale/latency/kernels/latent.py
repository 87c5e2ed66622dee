"""Times of multi-head latent attention with its projections, from measured modules of DeepSeek-V3's widths."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np

from moescale.latency.kernels.log_grid import LogGrid, grid_of
from moescale.latency.kernels.tables import System, find_table, read_columns, text_values
from moescale.models.architecture import Architecture
from moescale.models.kv_cache import value_head_dim
from moescale.models.parameters import attention_matrix_params
from moescale.typing import FloatArray, Real

COLUMNS = ("num_heads", "batch_size", "isl", "step", "latency")
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


@cache
def latent_types(system: str, engine: str, version: str, stage: str) -> tuple[tuple[str, str], ...]:
    """Measured pairs of number formats (weights, cache), such as (fp8_block, bfloat16); empty where there are none."""
    path = find_table(system, "mla", engine, version, f"mla_{stage}_module_perf")
    if path is None:
        return ()
    return tuple((w, c) for w in text_values(path, "gemm_type") for c in text_values(path, "kv_cache_dtype"))


@cache
def latent_grid(system: str, engine: str, version: str, stage: str, weights: str, cache_type: str) -> LogGrid:
    """Seconds of one layer over (heads, requests, tokens); tokens as in attention_kernels."""
    path = find_table(system, "mla", engine, version, f"mla_{stage}_module_perf")
    assert path is not None
    rows = read_columns(path, COLUMNS, gemm_type=weights, kv_cache_dtype=cache_type)
    # A prompt after a cached prefix is another question.
    keep = (rows["step"] == 0) | (stage != "context")
    tokens = rows["isl"] if stage == "context" else rows["step"] + 1.0
    sizes = (rows["num_heads"][keep], rows["batch_size"][keep], tokens[keep])
    return grid_of(sizes, rows["latency"][keep], (1.0, 1.0, 2.0 if stage == "context" else 1.0))


def latent_roofline_s(
    a: Architecture,
    heads: Real,
    batch: Real,
    tokens: Real,
    stage: str,
    system: System,
    weight_bytes: float,
    *,
    prefix: Real = 0.0,
    queries: Real = 1.0,
) -> FloatArray:
    """Roofline of one layer on one GPU with `heads` of the heads, for ratios between models of other widths.

    Prompts may follow a cached `prefix`, which every new token meets whole; a context may meet several `queries`.
    """
    heads, requests = np.asarray(heads, dtype=np.float64), np.asarray(batch, dtype=np.float64)
    rank, params = np.asarray(a.kv_lora_rank, dtype=np.float64), attention_matrix_params(replace(a, n_heads=heads))
    if stage == "context":
        pairs = np.square(tokens) + 2.0 * np.asarray(prefix) * tokens  # twice: a token meets half of its own prompt
        new, pairs_flops = requests * tokens, heads * (a.head_dim + value_head_dim(a)) * requests * pairs
        tokens = tokens + np.asarray(prefix)
    else:  # queries are brought into the latent space, and meet the cache there
        new = requests * queries
        pairs_flops = heads * 2.0 * (2.0 * rank + a.qk_rope_head_dim) * new * tokens
    moved = weight_bytes * params + 2.0 * (rank + a.qk_rope_head_dim) * requests * tokens
    flops = 2.0 * params * new + pairs_flops
    return np.maximum(moved / system.memory_bandwidth_bytes_per_s, flops / system.bf16_flops_per_s)
