"""Counts against the paper's own tables and invariants; published models: reference/test_published_shapes.py."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from families import PAPER
from model_configs import CONFIGS
from moescale.models.architecture import Architecture
from moescale.models.family import architecture
from moescale.models.hf_config import from_config
from moescale.models.operations import Attention, Indexer, State, operations
from moescale.models.parameters import (
    STATE_FLOPS,
    active_matmul_params,
    count_parameters,
    expected_distinct_experts,
    kv_bytes_per_request,
    kv_bytes_per_token,
    training_flops_per_token,
    weight_bytes_per_gpu,
)
from moescale.models.published import shapes
from moescale.typing import FloatArray, Real
from random_models import real_models


def decode_flops_per_token(architecture: Architecture, context_tokens: Real) -> FloatArray:
    """FLOPs to produce one token after `context_tokens` others: 2 a matmul parameter it meets, and attention.

    Attention: 4 l (n_heads head_dim) context, within the window or index_topk tokens; latent attention as servers run it, in its
    compressed width (arXiv 2405.04434, section 2.1.2); a linear layer its state.
    """
    flops, context = 2.0 * active_matmul_params(architecture), np.asarray(context_tokens)
    for op in operations(architecture):
        if isinstance(op, Attention):
            unread = (
                op.sparse_layers * np.maximum(context - op.chosen, 0.0) if np.any(np.asarray(op.chosen) > 0) else 0.0
            )
            flops = flops + 2.0 * op.heads * op.decode_channels * (op.held(context) - unread)
        elif isinstance(op, Indexer):  # its queries meet the keys of all tokens
            flops = flops + 2.0 * op.layers * op.heads * op.head_dim * context
        elif isinstance(op, State):
            flops = flops + STATE_FLOPS * op.layers * op.elements
    return flops


def paper_model(width: int, depth: int, d_ffn: int, n_experts: float, top_k: float = 2.0) -> Architecture:
    """The paper's family as Qwen3-MoE builds it: experts in every other layer."""
    return Architecture(
        n_layers=depth, d_model=width, n_heads=width // 64, n_kv_heads=width // 64, head_dim=64, d_ffn=d_ffn,
        n_moe_layers=depth // 2 if n_experts > 1 else 0, n_experts=n_experts, top_k=min(top_k, n_experts),
        d_expert=d_ffn, qk_norm=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("width", "depth", "d_ffn", "totals", "active"),
    [
        (768, 12, 2048, [85.0, 169.9, 283.2, 509.7, 962.8], 113.3),
        (1536, 16, 4096, [453.0, 906.1, 1510.1, 2718.2, 5134.3], 604.1),
    ],
)
def test_counts_of_the_papers_architecture(
    width: int, depth: int, d_ffn: int, totals: list[float], active: float
) -> None:
    without_router = None
    for n_experts, total in zip([1, 4, 8, 16, 32], totals, strict=True):
        counted = count_parameters(paper_model(width, depth, d_ffn, n_experts))
        assert float(counted.non_embedding_total) / 1e6 == pytest.approx(total, abs=0.051)
        if n_experts == 4:  # the stated figure; each further expert adds its router's row, nothing else
            assert float(counted.non_embedding_active) / 1e6 == pytest.approx(active, abs=0.051)
            without_router = counted.non_embedding_active - counted.router
        if n_experts > 4:
            assert counted.non_embedding_active - counted.router == without_router


@pytest.mark.parametrize(
    ("width", "depth", "ffn_ratio", "stated", "with_embedding"),
    [
        (768, 12, 2.5, 81_395_712, 106e6), (896, 20, 2.5, 184_647_680, 213e6), (1024, 24, 2.5, 289_406_976, 322e6),
        (1536, 24, 8 / 3, 679_477_248, 729e6),
    ],
)  # fmt: skip
def test_table_1_of_the_paper(width: int, depth: int, ffn_ratio: float, stated: int, with_embedding: float) -> None:
    model = Architecture(
        n_layers=depth, d_model=width, n_heads=1, n_kv_heads=1, head_dim=width, d_ffn=ffn_ratio * width
    )
    counted = count_parameters(model)
    assert float(counted.attention + counted.dense_ffn) == pytest.approx(stated, rel=1e-12)
    embedded = count_parameters(replace(model, vocab_size=32000, tied_embeddings=True))
    assert float(embedded.total) == pytest.approx(with_embedding, abs=0.6e6)


EXPERTS = st.floats(1.0, 4096.0)


@given(real_models())
def test_parts_add_up_active_never_exceeds_total_and_more_experts_are_never_fewer_parameters(
    model: Architecture,
) -> None:
    counted = count_parameters(model)
    names = ("embedding", "attention", "dense_ffn", "experts", "shared_experts", "router", "norms")
    assert counted.total == sum(getattr(counted, name) for name in names)
    assert 0 < counted.active <= counted.total
    assert counted.total - counted.active == counted.experts - counted.active_experts
    assert counted.non_embedding_active <= counted.active
    more = replace(model, n_experts=model.n_experts + 1)
    assert count_parameters(more).total >= counted.total
    added = count_parameters(more).active - counted.active
    # A router's row in each layer, with its bias, nothing else.
    assert added == model.n_moe_layers * (model.d_model + model.router_bias)


@pytest.mark.system
@given(real_models(), st.lists(st.integers(1, 512), min_size=2, max_size=4))
def test_broadcasting_equals_scalar_calls(model: Architecture, experts: list[int]) -> None:
    many = replace(model, n_experts=np.array(experts, dtype=float), top_k=1, d_model=np.array([[64.0], [512.0]]))
    together = count_parameters(many)
    assert together.total.shape == together.attention.shape == (2, len(experts))
    for row, width in enumerate((64, 512)):
        for column, n_experts in enumerate(experts):
            alone = replace(model, n_experts=n_experts, top_k=1, d_model=width)
            assert together.total[row, column] == count_parameters(alone).total
            assert together.active[row, column] == count_parameters(alone).active
            flops = training_flops_per_token(many)[row, column]
            assert flops == training_flops_per_token(alone)
            decode = np.broadcast_to(decode_flops_per_token(many, 100.0), (2, len(experts)))
            assert decode[row, column] == decode_flops_per_token(alone, 100.0)


# The fields that make a model larger, each by a factor; what depends on another field moves with it.
ALONE = [
    "n_layers", "d_model", "d_ffn", "n_experts", "d_expert", "d_shared_expert", "vocab_size", "kv_lora_rank",
    "q_lora_rank", "v_head_dim", "window_tokens",
]  # fmt: skip
GROWTH = [("n_heads", "n_kv_heads"), *((name,) for name in ALONE)]


@pytest.mark.system
@given(
    real_models(), st.sampled_from(GROWTH), st.integers(2, 5), st.floats(0, 1e5),
    st.sampled_from([1, 2, 3, 4, 8, 64]), st.sampled_from([0.5, 1.0, 2.0, 4.0]),
)  # fmt: skip
def test_a_larger_model_needs_no_less(
    model: Architecture, grown: tuple[str, ...], factor: int, context: float, gpus: int, size: float
) -> None:
    larger = replace(model, **{name: factor * getattr(model, name) for name in grown})

    def needs(a: Architecture) -> list[float]:
        counted = count_parameters(a)
        return [
            float(value)
            for value in (
                counted.total,
                counted.active,
                active_matmul_params(a),
                weight_bytes_per_gpu(a, size),
                weight_bytes_per_gpu(a, size, gpus),
                weight_bytes_per_gpu(a, size, gpus, gpus),
                kv_bytes_per_token(a, size),
                kv_bytes_per_request(a, context, size, gpus),
                decode_flops_per_token(a, context),
                training_flops_per_token(a, sequence_tokens=context),
            )
        ]

    before = needs(model)
    assert all(0 <= value < np.inf for value in before)
    assert all(after >= value * (1 - 1e-12) for after, value in zip(needs(larger), before, strict=True))


@pytest.mark.system
@given(
    real_models(),
    st.integers(1, 64),
    st.integers(1, 16),
    st.sampled_from([0.5, 1.0, 2.0, 4.0]),
    st.floats(1e-6, 1e5) | st.just(0.0),
)
def test_gpus_together_hold_the_whole_model_and_no_gpu_more_than_it(
    model: Architecture, gpus_of_a_group: int, groups: int, size: float, context: float
) -> None:
    gpus = gpus_of_a_group * groups
    whole = float(weight_bytes_per_gpu(model, size))
    one = float(weight_bytes_per_gpu(model, size, gpus, groups))
    assert whole / gpus * (1 - 1e-12) <= one <= whole * (1 + 1e-12)
    assert float(weight_bytes_per_gpu(model, size)) == whole
    held = float(kv_bytes_per_request(model, context, size))
    share = float(kv_bytes_per_request(model, context, size, gpus))
    assert held / gpus * (1 - 1e-12) <= share <= held * (1 + 1e-12)
    states = float(kv_bytes_per_request(model, 0.0, size))  # of linear layers, whatever the context
    assert held <= (states + float(kv_bytes_per_token(model, size)) * context) * (1 + 1e-12)
    # Twice the GPUs of each group never hold more on one.
    assert float(weight_bytes_per_gpu(model, size, 2 * gpus, groups)) <= one * (1 + 1e-12)
    assert float(kv_bytes_per_request(model, context, size, 2 * gpus)) <= share * (1 + 1e-12)


@pytest.mark.system
@given(real_models(), st.floats(1.0, 1e5), st.floats(1.0, 64.0))
def test_a_longer_context_costs_no_less(model: Architecture, context: float, factor: float) -> None:
    for cost in (kv_bytes_per_request, decode_flops_per_token):
        assert cost(model, context) <= cost(model, context * factor) * (1 + 1e-12)


QWEN3_NEXT, DEEPSEEK_V32, NEMOTRON = (
    from_config(CONFIGS[n]) for n in ("QWEN3_NEXT", "DEEPSEEK_V32", "NEMOTRON_3_NANO")
)
FLASH, PRO, GEMMA = (from_config(CONFIGS[n]) for n in ("DEEPSEEK_V4_FLASH", "DEEPSEEK_V4_PRO", "GEMMA_4_26B"))
# Attention layers, keys and values, heads, channels, bf16; states in fp32, and three tokens of the convolution.
NEXT_TOKEN, NEXT_STATE = 12 * 2 * 2 * 256 * 2, 36 * (32 * 128 * 128 * 4 + 3 * (2 * 16 * 128 + 32 * 128) * 2)
GEMMA_FULL, GEMMA_LOCAL = 5 * 2 * 2 * 512 * 2, 25 * 2 * 8 * 256 * 2  # full attention has wider and fewer heads


@pytest.mark.parametrize(
    ("model", "a_token", "context", "gpus", "a_request"),
    [
        ("llama-3.1-8b", 2 * 32 * 8 * 128 * 2, 10, 1, 10 * 131072),
        ("llama-2-7b", 2 * 32 * 32 * 128 * 2, 10, 1, 10 * 524288),  # without grouped queries
        # More GPUs than heads replicate them.
        *(("llama-3.1-70b", 327_680, 1000, gpus, 327_680_000 / min(gpus, 8)) for gpus in (1, 2, 8, 16, 64)),
        *(("deepseek-v3", 70_272, 1000, gpus, 70_272_000) for gpus in (1, 8)),
        # 24 layers of 8 heads of 64: 2 KiB a token and layer; half of them hold 128 tokens.
        ("gpt-oss-20b", 24 * 2048, 100, 1, 2048 * 24 * 100),
        ("gpt-oss-20b", 24 * 2048, 1000, 1, 2048 * (12 * 1000 + 12 * 128)),
        ("mistral-7b", 131072, 10_000, 1, 131072 * 4096),
        (QWEN3_NEXT, NEXT_TOKEN, 1000, 1, 1000 * NEXT_TOKEN + NEXT_STATE),
        (QWEN3_NEXT, NEXT_TOKEN, 1000, 4, 1000 * NEXT_TOKEN / 2 + NEXT_STATE / 4),  # two key-value heads
        (NEMOTRON, 6 * 2 * 2 * 128 * 2, 0, 1, 23 * (64 * 64 * 128 * 4 + 3 * (64 * 64 + 2 * 8 * 128) * 2)),
        (DEEPSEEK_V32, 61 * ((512 + 64) * 2 + 128 + 4), 10, 1, 610 * ((512 + 64) * 2 + 128 + 4)),  # with indexers' keys
        (GEMMA, GEMMA_FULL + GEMMA_LOCAL, 10_000, 1, 10_000 * GEMMA_FULL + 1024 * GEMMA_LOCAL),
    ],
)  # fmt: skip
def test_cache_by_hand(
    model: str | Architecture, a_token: float, context: float, gpus: float, a_request: float
) -> None:
    shape = shapes()[model] if isinstance(model, str) else model
    assert kv_bytes_per_token(shape) == a_token
    assert kv_bytes_per_request(shape, float(context), tensor_parallel=gpus) == a_request
    assert kv_bytes_per_token(shapes()["deepseek-v3"], 1.0) == 35_136


# GiB of cache at 2^20 tokens with the indexers' keys in bf16, as the rest: vllm.ai/blog/deepseek-v4 and the sum that it
# explains (24 April 2026).
@pytest.mark.parametrize(("model", "gib"), [(FLASH, 6.72), (PRO, 9.62)])
def test_compressed_attention_has_the_published_cache(model: Architecture, gib: float) -> None:
    assert kv_bytes_per_request(model, 2.0**20) == kv_bytes_per_request(model, 2.0**20, tensor_parallel=8)
    wider = float(model.n_compressed_layers) * 2**20 / 4 * (2 * 128 - 132)  # keys of 8 bits and a scale
    window = float(model.n_layers) * 128 * 512 * 2
    assert (float(kv_bytes_per_request(model, 2.0**20)) + wider - window) / 2**30 == pytest.approx(gib, abs=0.005)


def test_flops_of_compressed_attention() -> None:
    """27% of DeepSeek-V3.2's at a million tokens (DeepSeek-V4's report, section 1), in arithmetic of equal precision."""
    new, old = (float(decode_flops_per_token(model, 1e6)) for model in (PRO, DEEPSEEK_V32))
    assert new / old == pytest.approx(0.27, abs=0.01)
    # With 128 tokens more heavily compressed layers meet one entry more, indexers 32, and nobody else any.
    far, further = (decode_flops_per_token(FLASH, n) for n in (1e5, 1e5 + 128))
    assert further - far == pytest.approx(20 * 4 * 64 * 512 + 21 * 2 * 64 * 128 * 32, rel=1e-6)


def test_weights_of_fp8_and_int4_leave_tables_norms_and_routers_alone() -> None:
    model = shapes()["mixtral-8x7b"]
    counted = count_parameters(model)
    matrices = counted.attention + counted.experts
    rest = counted.embedding + counted.router + counted.norms
    assert weight_bytes_per_gpu(model, 1.0) == matrices + 2 * rest
    assert weight_bytes_per_gpu(model, 0.5) == 0.5 * matrices + 2 * rest
    # The paper's abstraction of N and E knows matrices only.
    abstract = architecture(PAPER, 3e9, 8.0)
    assert 2 * weight_bytes_per_gpu(abstract, 1.0) == weight_bytes_per_gpu(abstract)
    assert weight_bytes_per_gpu(abstract, 1.0, 4.0, 2.0) == weight_bytes_per_gpu(abstract, 1.0) / 4


def test_the_fullest_gpu_by_hand() -> None:
    d, t = 4096, 4
    mixtral = shapes()["mixtral-8x7b"]
    attention, expert = 32 * 2 * (32 + 8) * 128 * d, 32 * 3 * 14336 * d
    everywhere = 32 * 8 * d + 65 * d  # routers and norms
    tables = 2 * 32000 * d
    split_evenly = 2 * ((attention + 8 * expert + tables) / t + everywhere)
    assert weight_bytes_per_gpu(mixtral, 2.0, t) == split_evenly
    assert weight_bytes_per_gpu(mixtral, 2.0, t, 4) == weight_bytes_per_gpu(mixtral, 2.0, t, 2) == split_evenly
    # 60 experts on 8 GPUs: the fullest holds 8 of them.
    qwen = shapes()["qwen1.5-moe-a2.7b"]
    uneven = weight_bytes_per_gpu(qwen, 2.0, 8, 8) - weight_bytes_per_gpu(qwen, 2.0, 8, 1)
    assert uneven == 2 * 24 * 3 * 1408 * 2048 * (8 - 60 / 8)
    # Llama-3.1-70B on 16 GPUs: 4 of 64 query heads each, and one of 8 key-value heads instead of a half.
    llama = shapes()["llama-3.1-70b"]
    d = 8192
    projections = 80 * 2 * (4 + 1) * 128 * d
    ffn = 80 * 3 * 28672 * d / 16
    assert weight_bytes_per_gpu(llama, 2.0, 16) == 2 * (projections + ffn + 2 * 128256 * d / 16 + 161 * d)
    # DeepSeek-V3 on 8: the compressing projections (1536 + 512 + 64 wide) and their norms are on every GPU.
    deepseek, d = shapes()["deepseek-v3"], 7168
    compressing = d * (1536 + 576)
    heads = 1536 * 16 * 192 + 512 * 16 * (128 + 128) + 16 * 128 * d
    ffns = (3 * 3 * 18432 * d + 58 * 257 * 3 * 2048 * d) / 8
    norms = 61 * (2 * d + 1536 + 512) + d
    rest = 2 * 129280 * d / 8 + norms + 58 * 256 * (d + 1)
    assert weight_bytes_per_gpu(deepseek, 1.0, 8) == 61 * (compressing + heads) + ffns + 2 * rest
    # gpt-oss: sinks and biases of heads go with the heads, biases of outputs stay whole on every GPU that sums them.
    oss, d = shapes()["gpt-oss-20b"], 2880
    projections = 24 * 2 * d * (16 + 2) * 64
    vectors = 24 * (18 * 64 + 2 * 64 + d + 16 + 2 * d) + d  # biases of q, k and v, of o; sinks; norms, with the last
    routers = 24 * 32 * (d + 1)
    experts, expert_biases = 24 * 32 * 3 * d * d / 4, 24 * 32 * (2 * d / 4 + d)
    tables = 2 * 201088 * d / 4
    # Attention stays in 16 bits, as published.
    assert weight_bytes_per_gpu(oss, 1.0, 4) == experts + 2 * (projections + vectors + routers + expert_biases + tables)


def test_flops_per_token() -> None:
    model = shapes()["llama-2-7b"]
    counted = count_parameters(model)
    assert training_flops_per_token(model) == 6 * active_matmul_params(model)
    assert training_flops_per_token(model, counted.active) == 6 * counted.active
    # DeepSeek: a decoded token attends in the compressed width, a trained one head by head.
    deepseek = shapes()["deepseek-v3"]
    assert decode_flops_per_token(deepseek, 1000.0) - decode_flops_per_token(deepseek, 0.0) == (
        2 * 61 * 128 * (2 * 512 + 64) * 1000
    )
    heads = training_flops_per_token(deepseek, sequence_tokens=4096.0) - training_flops_per_token(deepseek)
    assert heads == 3 * 61 * 128 * (192 + 128) * 4096
    # A window of 128 in half of gpt-oss's layers: by decode 128 tokens seen, in training a share of the causal pairs.
    oss = shapes()["gpt-oss-20b"]
    per_token = 4 * 64 * 64
    assert decode_flops_per_token(oss, 1000.0) - decode_flops_per_token(oss, 0.0) == per_token * 12 * (1000 + 128)
    pairs = np.minimum(np.arange(1, 100_001), 128).sum() / 100_000  # tokens seen on average, themselves among them
    windowed = training_flops_per_token(oss, sequence_tokens=1e5) - training_flops_per_token(oss)
    assert float(windowed) == pytest.approx(3 * per_token * 12 * (5e4 + pairs), rel=1e-4)
    # Attention over T tokens, causal: 6 l d T.
    extra = training_flops_per_token(model, sequence_tokens=2048.0) - training_flops_per_token(model)
    assert extra == 6 * 32 * 4096 * 2048
    # Without context a token costs twice its matmul parameters; a context of 1000 adds 4 l d 1000.
    assert decode_flops_per_token(model, 0.0) == 2 * active_matmul_params(model)
    assert decode_flops_per_token(model, 1000.0) - decode_flops_per_token(model, 0.0) == 4 * 32 * 4096 * 1000
    assert active_matmul_params(model) == counted.active - counted.norms - 32000 * 4096
    # A tied table counts once as parameters and once as a matrix product.
    model = shapes()["qwen3-0.6b"]
    counted = count_parameters(model)
    assert counted.embedding == 151936 * 1024
    assert active_matmul_params(model) == counted.total - counted.norms


@pytest.mark.parametrize(
    ("experts", "top_k", "tokens", "distinct"),
    [
        *((8, 2, 1, 2), (8, 2, 2, 8 * (1 - 0.75**2)), (8, 2, 1e9, 8), (1, 1, 5, 1), (8, 2, 0, 0), (8, 8, 0, 0)),
        (1, 2, 5, 1),  # K above E
        (1e12, 1, 1e-6, 1e-6),  # a direct 1 - (1 - K/E)^t would lose every digit here
    ],
)
def test_distinct_experts_by_hand(experts: float, top_k: float, tokens: float, distinct: float) -> None:
    assert float(expected_distinct_experts(experts, top_k, tokens)) == pytest.approx(distinct, rel=1e-9)


@given(EXPERTS, st.floats(1.0, 16.0), st.floats(0.0, 1e6), st.floats(1.0, 2.0))
def test_distinct_experts_bounds_and_growth(n_experts: float, top_k: float, tokens: float, factor: float) -> None:
    touched = float(expected_distinct_experts(n_experts, top_k, tokens))
    assert 0 <= touched <= n_experts
    assert touched <= min(top_k, n_experts) * max(tokens, 1.0) * (1 + 1e-9)
    assert float(expected_distinct_experts(n_experts, top_k, tokens * factor)) >= touched * (1 - 1e-12)
    np.testing.assert_array_equal(expected_distinct_experts(n_experts, top_k, np.array([tokens, tokens])), touched)
