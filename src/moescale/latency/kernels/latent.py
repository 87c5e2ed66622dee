"""Times of multi-head latent attention with its projections, from measured modules of DeepSeek-V3's widths.

Where an engine's modules were not measured its attention alone may have been, between the projections (stage context) or
in the compressed space (generation), with the batched products that lead there and back.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from moescale.latency.kernels.log_grid import LogGrid, grid_of
from moescale.latency.kernels.tables import default_version, engines, find_table, read_columns
from moescale.models.architecture import Architecture
from moescale.models.operations import attention_products
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


@cache
def latent_types(system: str, engine: str, version: str, stage: str) -> tuple[tuple[str, str], ...]:
    """Measured pairs of number formats (weights, cache), such as (fp8_block, bfloat16); empty where there are none."""
    table = find_table(system, "mla", engine, version, f"mla_{stage}_module_perf")
    if table is None:
        return ()
    return tuple((w, c) for w in table.text_values("gemm_type") for c in table.text_values("kv_cache_dtype"))


@cache
def latent_grid(system: str, engine: str, version: str, stage: str, weights: str, cache_type: str) -> LogGrid:
    """Seconds of one layer over (heads, requests, tokens); tokens as in kernels.attention."""
    kind = ("mla", f"mla_{stage}_module_perf", stage)
    equal = (("gemm_type", weights), ("kv_cache_dtype", cache_type))
    others = [
        module_grid(system, other, default_version(system, other), *kind, equal)
        for other in engines(system)
        if other != engine
        and stage != "context"
        and (weights, cache_type) in latent_types(system, other, default_version(system, other), stage)
    ]
    return in_graphs(module_grid(system, engine, version, *kind, equal), others, stage)


def in_graphs(grid: LogGrid, others: list[LogGrid], stage: str) -> LogGrid:
    """An engine's modules, decoding in CUDA graphs, given those of the other engines.

    Some tables of decoding hold the host's launches: of latent attention vLLM's on H100, H200 and B300 take 70 to 90 us for one
    token and one head, on B200 40 us, as TensorRT-LLM's on all of them; of sparse attention both take 140 to 240 us on H100 and
    H200, SGLang's 66. Such rows, told by LAUNCHES, are answered by the faster of their own time and of the other engines'.
    """
    least = [float(np.exp(found.log_s.min())) for found in (grid, *others)]
    if stage == "context" or least[0] < LAUNCHES * min(least):
        return grid
    sizes = np.meshgrid(*(np.exp(axis) for axis in grid.axes), indexing="ij")
    faster = np.min([grid.log_s, *(np.log(found.seconds(*sizes)) for found in others)], axis=0)
    return LogGrid(grid.axes, faster, grid.slopes)


@cache
def module_grid(
    system: str, engine: str, version: str, family: str, stem: str, stage: str, equal: tuple[tuple[str, str], ...]
) -> LogGrid:
    """Seconds of one layer over (heads, requests, tokens), of the rows of a table whose texts equal these."""
    table = find_table(system, family, engine, version, stem)
    assert table is not None
    rows = read_columns(table, COLUMNS, **dict(equal))
    keep = (rows["step"] == 0) | (stage != "context")  # a prompt after a cached prefix is another question
    tokens = rows["isl"] if stage == "context" else rows["step"] + 1.0
    sizes = (rows["num_heads"][keep], rows["batch_size"][keep], tokens[keep])
    # Beyond the measured sizes attention, or an indexer that meets all tokens, sets the pace.
    return grid_of(sizes, rows["latency"][keep], (1.0, 1.0, 2.0 if stage == "context" else 1.0))


def nearest_latent(
    system: str, engine: str, version: str, stage: str, weights: tuple[str, ...], cache_type: str
) -> tuple[str, str] | None:
    """The measured pair of formats (weights, cache) next to the wanted ones, of which the first of `weights` is best."""
    pairs = latent_types(system, engine, version, stage)
    found = [(weights.index(w), c != cache_type, w, c) for w, c in pairs if w in weights]
    return min(found)[2:] if found else None


@cache
def attention_grid(system: str, engine: str, version: str, stage: str, cache_type: str) -> LogGrid | None:
    """Seconds of the attention of one layer alone over (heads, requests, tokens); None where it was not measured."""
    table = find_table(system, "mla", engine, version, f"{stage}_mla_perf")
    if table is None:
        return None
    rows = read_columns(table, COLUMNS, mla_dtype="bfloat16", kv_cache_dtype=cache_type)
    if not rows["latency"].size:
        return None
    tokens = rows["isl"] if stage == "context" else rows["step"] + 1.0
    return grid_of(
        (rows["num_heads"], rows["batch_size"], tokens), rows["latency"], (1.0, 1.0, 2.0 if stage == "context" else 1.0)
    )


@cache
def into_space_grids(system: str, engine: str, version: str, kind: str) -> tuple[LogGrid, ...]:
    """Seconds over (heads, tokens) of the products that bring queries into the latent space, and results out of it."""
    table = find_table(system, "mla_bmm", engine, version, "mla_bmm_perf")
    if table is None or kind not in table.text_values("bmm_dtype"):
        return ()
    names = ("num_heads", "num_tokens", "latency")
    both = [read_columns(table, names, bmm_dtype=kind, op_name=op) for op in ("mla_gen_pre", "mla_gen_post")]
    return tuple(grid_of((rows["num_heads"], rows["num_tokens"]), rows["latency"], (1.0, 1.0)) for rows in both)


def latent_roofline_s(
    a: Architecture,
    heads: Real,
    batch: Real,
    tokens: Real,
    stage: str,
    bytes_per_s: float,
    flops_per_s: float,
    weight_bytes: float,
    cache_bytes: float,
    *,
    prefix: Real = 0.0,
    queries: Real = 1.0,
) -> FloatArray:
    """Roofline of one layer on one GPU with `heads` of the heads, for ratios between models and formats.

    Weights of no bytes stand for attention alone, without its projections. Prompts may follow a cached `prefix`, which
    every new token meets whole; a context may meet several `queries`.
    """
    heads, requests = np.asarray(heads, dtype=np.float64), np.asarray(batch, dtype=np.float64)
    rank, params = np.asarray(a.kv_lora_rank, dtype=np.float64), sum(op.params for op in attention_products(a, heads))
    if stage == "context":
        pairs = np.square(tokens) + 2.0 * np.asarray(prefix) * tokens  # twice: a token meets half of its own prompt
        new, pairs_flops = requests * tokens, heads * (a.head_dim + np.asarray(a.v_head_dim)) * requests * pairs
        tokens = tokens + np.asarray(prefix)
    else:  # queries are brought into the latent space, and meet the cache there
        new = requests * queries
        pairs_flops = heads * 2.0 * (2.0 * rank + a.qk_rope_head_dim) * new * tokens
    params = params * (weight_bytes > 0.0)
    moved = weight_bytes * params + cache_bytes * (rank + a.qk_rope_head_dim) * requests * tokens
    flops = 2.0 * params * new + pairs_flops
    return np.maximum(moved / bytes_per_s, flops / flops_per_s)
