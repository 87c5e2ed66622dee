"""Counts against published models, the paper's own tables and invariants."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from families import PAPER
from moescale.accounting import (
    CONVENTIONS,
    JOINT_EXPERT_SHARE,
    TRAINING_COUNTS,
    active_matmul_params,
    active_multiple,
    count_parameters,
    decode_flops_per_token,
    expected_distinct_experts,
    kv_bytes_per_token,
    total_params,
    training_flops_per_token,
)
from moescale.architecture import Architecture, Shape, dense_equivalent_params, published_shapes, shapes
from moescale.errors import InputError
from moescale.family import architecture


@pytest.mark.parametrize("shape", published_shapes().values(), ids=published_shapes())
def test_published_sizes_to_the_stated_digit(shape: Shape) -> None:
    counted = count_parameters(shape.architecture)
    # A whole unit of the last digit: LLaMA 65.2B and GPT-3 2.7B are cut off or named, not rounded (65.29B, 2.65B).
    total = float(counted.total) + shape.not_modelled
    assert total == pytest.approx(shape.published_total, abs=shape.published_digit)
    if counted.experts > 0:
        looked_up = 0.0 if shape.active_input_embedding else shape.architecture.vocab_size * shape.architecture.d_model
        active = float(counted.active) - looked_up
        assert active == pytest.approx(shape.published_active, abs=shape.published_active_digit)
    if shape.published_kv_bytes is not None:
        held = float(kv_bytes_per_token(shape.architecture))
        assert held == pytest.approx(shape.published_kv_bytes, abs=shape.published_kv_digit)


def test_mixtral_and_qwen_to_the_parameter() -> None:
    # As transformers counts them on the meta device (the engine test of test_architecture.py repeats that).
    exact = {
        "mixtral-8x7b": 46_702_792_704,
        "llama-3.1-8b": 8_030_261_248,
        "llama-2-7b": 6_738_415_616,
        "qwen3-30b-a3b": 30_532_122_624,
        "olmoe-1b-7b": 6_919_161_856,
        "gpt-oss-20b": 20_914_757_184,
        "gpt-oss-120b": 116_829_156_672,
        "deepseek-v2": 235_741_434_880,
        "deepseek-v2-lite": 15_706_484_224,
        "deepseek-v3": 671_026_419_200,  # with 14,848 that correct the scores of its routers
        "llama-4-scout": 108_641_793_536 - 871_932_416,  # all weights without those of vision
        "llama-4-maverick": 401_583_781_376 - 871_932_416,
    }
    assert {name: int(count_parameters(shapes()[name]).total) for name in exact} == exact


def test_non_embedding_counts_of_qwen3_model_cards() -> None:
    stated = {"qwen3-0.6b": 0.44e9, "qwen3-1.7b": 1.4e9, "qwen3-8b": 6.95e9, "qwen3-30b-a3b": 29.9e9}
    for name, published in stated.items():
        assert float(count_parameters(shapes()[name]).non_embedding_total) == pytest.approx(published, rel=0.01)


def paper_model(width: int, depth: int, d_ffn: int, n_experts: float, top_k: float = 2.0) -> Architecture:
    """The paper's family as Qwen3-MoE builds it: experts in every other layer."""
    return Architecture(
        n_layers=depth,
        d_model=width,
        n_heads=width // 64,
        n_kv_heads=width // 64,
        head_dim=64,
        d_ffn=d_ffn,
        n_moe_layers=depth // 2 if n_experts > 1 else 0,
        n_experts=n_experts,
        top_k=min(top_k, n_experts),
        d_expert=d_ffn,
        qk_norm=True,
    )


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
        (768, 12, 2.5, 81_395_712, 106e6),
        (896, 20, 2.5, 184_647_680, 213e6),
        (1024, 24, 2.5, 289_406_976, 322e6),
        (1536, 24, 8 / 3, 679_477_248, 729e6),
    ],
)
def test_table_1_of_the_paper(width: int, depth: int, ffn_ratio: float, stated: int, with_embedding: float) -> None:
    model = Architecture(
        n_layers=depth, d_model=width, n_heads=1, n_kv_heads=1, head_dim=width, d_ffn=ffn_ratio * width
    )
    counted = count_parameters(model)
    assert float(counted.attention + counted.dense_ffn) == pytest.approx(stated, rel=1e-12)
    embedded = count_parameters(replace(model, vocab_size=32000, tied_embeddings=True))
    assert float(embedded.total) == pytest.approx(with_embedding, abs=0.6e6)


def test_the_joint_runs_family() -> None:
    # n_params_total of the public runs is d^2 (9 E + 4) n_blocks + 2 d 50257.
    d_model, n_blocks, experts = 768.0, 12.0, np.array([1.0, 2.0, 8.0, 32.0])
    model = Architecture(
        n_layers=n_blocks,
        d_model=d_model,
        n_heads=12,
        n_kv_heads=12,
        head_dim=64,
        d_ffn=3 * d_model,
        n_moe_layers=n_blocks,
        n_experts=experts,
        d_expert=3 * d_model,
        vocab_size=50257,
    )
    counted = count_parameters(model)
    stated = d_model**2 * (9 * experts + 4) * n_blocks + 2 * d_model * 50257
    np.testing.assert_allclose(counted.total - counted.router - counted.norms, stated, rtol=1e-14)
    dense = 13 * d_model**2 * n_blocks
    np.testing.assert_allclose(
        total_params(dense, experts, JOINT_EXPERT_SHARE), counted.experts + counted.attention, rtol=1e-14
    )
    np.testing.assert_array_equal(active_multiple(experts, 1, "exact", ffn_share=JOINT_EXPERT_SHARE), 1.0)


EXPERTS = st.floats(1.0, 4096.0)


@st.composite
def architectures(draw: st.DrawFn) -> Architecture:
    layers = draw(st.integers(1, 128))
    experts = draw(st.integers(1, 256))
    heads = draw(st.integers(1, 64))
    return Architecture(
        n_layers=layers,
        d_model=draw(st.integers(1, 8192)),
        n_heads=heads,
        n_kv_heads=draw(st.integers(1, heads)),
        head_dim=draw(st.sampled_from([32, 64, 128])),
        d_ffn=draw(st.integers(1, 30000)),
        n_moe_layers=draw(st.integers(0, layers)),
        n_experts=experts,
        top_k=draw(st.integers(1, experts)),
        d_expert=draw(st.integers(1, 30000)),
        d_shared_expert=draw(st.sampled_from([0, 1024])),
        ffn_matrices=draw(st.sampled_from([2, 3])),
        vocab_size=draw(st.sampled_from([0, 32000])),
        tied_embeddings=draw(st.booleans()),
        qk_norm=draw(st.booleans()),
        qk_norm_full_width=draw(st.booleans()),
        qkv_bias=draw(st.booleans()),
        attention_output_bias=draw(st.booleans()),
        ffn_bias=draw(st.booleans()),
        shared_expert_gate=draw(st.booleans()),
    )


@given(architectures())
def test_parts_add_up_and_active_never_exceeds_total(model: Architecture) -> None:
    counted = count_parameters(model)
    parts = (
        counted.embedding
        + counted.attention
        + counted.dense_ffn
        + counted.experts
        + counted.shared_experts
        + counted.router
        + counted.norms
    )
    assert counted.total == parts
    assert 0 < counted.active <= counted.total
    assert counted.total - counted.active == counted.experts - counted.active_experts
    assert counted.non_embedding_active <= counted.active
    assert counted.to_dict()["total"] == float(counted.total)


@given(architectures())
def test_more_experts_are_never_fewer_parameters(model: Architecture) -> None:
    more = replace(model, n_experts=model.n_experts + 1)
    assert count_parameters(more).total >= count_parameters(model).total
    added = count_parameters(more).active - count_parameters(model).active
    assert added == model.n_moe_layers * model.d_model  # a router's row in each layer, nothing else


@given(architectures(), st.lists(st.integers(1, 512), min_size=2, max_size=4))
def test_broadcasting_equals_scalar_calls(model: Architecture, experts: list[int]) -> None:
    many = replace(model, n_experts=np.array(experts, dtype=float), top_k=1, d_model=np.array([[64.0], [512.0]]))
    together = count_parameters(many)
    assert together.total.shape == together.attention.shape == (2, len(experts))
    for row, width in enumerate((64, 512)):
        for column, n_experts in enumerate(experts):
            alone = replace(model, n_experts=n_experts, top_k=1, d_model=width)
            assert together.total[row, column] == count_parameters(alone).total
            assert together.active[row, column] == count_parameters(alone).active
            flops = training_flops_per_token(many, counted="matmul")[row, column]
            assert flops == training_flops_per_token(alone, counted="matmul")
            decode = np.broadcast_to(decode_flops_per_token(many, 100.0), (2, len(experts)))
            assert decode[row, column] == decode_flops_per_token(alone, 100.0)


def test_kv_cache_bytes() -> None:
    # Llama-3-8B: 2 x 32 layers x 8 heads x 128 x 2 bytes = 128 KiB; Llama-2-7B without grouped queries: 512 KiB.
    assert float(kv_bytes_per_token(shapes()["llama-3.1-8b"])) == 131072
    assert float(kv_bytes_per_token(shapes()["llama-2-7b"])) == 524288
    assert float(kv_bytes_per_token(shapes()["llama-2-7b"], 1.0)) == 262144


def test_flops_per_token() -> None:
    model = shapes()["llama-2-7b"]
    counted = count_parameters(model)
    assert training_flops_per_token(model) == 6 * counted.active
    assert training_flops_per_token(model, counted="non-embedding") == 6 * counted.non_embedding_active
    # GPT-3's table of training compute: 175B takes 1.05e12 FLOPs a token.
    assert float(training_flops_per_token(shapes()["gpt3-175b"])) == pytest.approx(1.05e12, rel=0.005)
    # Attention over T tokens, causal: 6 l d T.
    extra = training_flops_per_token(model, sequence_tokens=2048.0) - training_flops_per_token(model)
    assert extra == 6 * 32 * 4096 * 2048
    # Without context a token costs twice its matmul parameters; a context of 1000 adds 4 l d 1000.
    assert decode_flops_per_token(model, 0.0) == 2 * active_matmul_params(model)
    assert decode_flops_per_token(model, 1000.0) - decode_flops_per_token(model, 0.0) == 4 * 32 * 4096 * 1000
    assert active_matmul_params(model) == counted.active - counted.norms - 32000 * 4096
    with pytest.raises(InputError, match="non-embedding"):
        training_flops_per_token(model, counted="non_embedding")
    assert all(np.isfinite(training_flops_per_token(model, counted=name)) for name in TRAINING_COUNTS)


def test_a_tied_table_counts_once_as_parameters_and_once_as_matmul() -> None:
    model = shapes()["qwen3-0.6b"]
    counted = count_parameters(model)
    assert counted.embedding == 151936 * 1024
    assert active_matmul_params(model) == counted.total - counted.norms


def test_distinct_experts_of_small_large_and_impossible_batches() -> None:
    assert float(expected_distinct_experts(8, 2, 1)) == pytest.approx(2, rel=1e-15)
    assert float(expected_distinct_experts(8, 2, 2)) == pytest.approx(8 * (1 - 0.75**2), rel=1e-15)
    assert float(expected_distinct_experts(8, 2, 1e9)) == 8
    assert float(expected_distinct_experts(1, 1, 5)) == 1
    assert float(expected_distinct_experts(1, 2, 5)) == 1  # K above E
    assert float(expected_distinct_experts(8, 2, 0)) == 0
    assert float(expected_distinct_experts(8, 8, 0)) == 0
    # A direct 1 - (1 - K/E)^t would lose every digit here.
    assert float(expected_distinct_experts(1e12, 1, 1e-6)) == pytest.approx(1e-6, rel=1e-9)


@given(EXPERTS, st.floats(1.0, 16.0), st.floats(0.0, 1e6), st.floats(1.0, 2.0))
def test_distinct_experts_bounds_and_growth(n_experts: float, top_k: float, tokens: float, factor: float) -> None:
    touched = float(expected_distinct_experts(n_experts, top_k, tokens))
    assert 0 <= touched <= n_experts
    assert touched <= min(top_k, n_experts) * max(tokens, 1.0) * (1 + 1e-9)
    assert float(expected_distinct_experts(n_experts, top_k, tokens * factor)) >= touched * (1 - 1e-12)
    np.testing.assert_array_equal(expected_distinct_experts(n_experts, top_k, np.array([tokens, tokens])), touched)


def test_distinct_experts_against_a_draw() -> None:
    rng = np.random.default_rng(0)
    drawn = [len({e for _ in range(12) for e in rng.choice(16, 2, replace=False)}) for _ in range(4000)]
    spread = np.std(drawn) / np.sqrt(len(drawn))
    assert np.mean(drawn) == pytest.approx(float(expected_distinct_experts(16, 2, 12)), abs=4 * spread)


def test_conventions_of_the_abstraction() -> None:
    experts = np.array([1.0, 2.0, 4.0, 64.0])
    np.testing.assert_allclose(total_params(3e9, experts), 3e9 * np.array([1, 4 / 3, 2, 22]))
    np.testing.assert_allclose(active_multiple(experts, 2, "paper"), [1, 5 / 3, 5 / 3, 5 / 3])
    np.testing.assert_allclose(active_multiple(experts, 2, "exact"), [1, 4 / 3, 4 / 3, 4 / 3])
    np.testing.assert_array_equal(active_multiple(experts, 2, "dense"), 1.0)
    assert set(CONVENTIONS) == {"paper", "exact", "dense"}
    with pytest.raises(InputError, match="exact"):
        active_multiple(4, 2, "exacct")


@given(st.floats(1e7, 1e12), st.integers(1, 128))
def test_a_shape_of_the_paper_agrees_with_the_abstraction(n_params: float, n_experts: int) -> None:
    model = architecture(PAPER, n_params, float(n_experts))
    counted = count_parameters(model)
    body = counted.attention + counted.dense_ffn
    assert float(body + counted.experts) == pytest.approx(float(total_params(n_params, n_experts)), rel=1e-9)
    met = float(active_multiple(n_experts, 2, "exact")) * n_params
    assert float(body + counted.active_experts) == pytest.approx(met, rel=1e-9)
    assert float(dense_equivalent_params(model)) == pytest.approx(n_params, rel=1e-9)
