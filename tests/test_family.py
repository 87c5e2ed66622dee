"""What N and E mean in a family of models: parameters, FLOPs, and the shape that serving is computed for."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from families import DENSE, JOINT, PAPER
from moescale.errors import InputError
from moescale.models.family import (
    ModelFamily,
    architecture,
    aspect_ratio,
    elasticity,
    flops_multiple,
    n_active,
    n_total,
    tokens_within,
    training_flops,
    width,
    with_convention,
)
from moescale.models.flops import CONVENTIONS
from moescale.models.kv_cache import kv_bytes_per_token
from moescale.models.parameters import count_parameters, dense_equivalent_params
from moescale.runs.table import RunTable

FAMILIES = (PAPER, JOINT, DENSE)
EXPERTS = np.array([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0])

families = st.sampled_from(FAMILIES)
sizes = st.floats(1e6, 1e13)
expert_counts = st.floats(1.0, 1024.0)


@st.composite
def any_families(draw: st.DrawFn) -> ModelFamily:
    """Families of every kind, also ones that nobody has fitted a law to."""
    return ModelFamily(
        name="drawn",
        top_k=draw(st.integers(1, 8)),
        moe_every=draw(st.integers(1, 4)),
        ffn_ratio=draw(st.floats(0.5, 8.0)),
        d_model_per_layer=draw(st.floats(10.0, 500.0)),
        ffn_matrices=draw(st.sampled_from([2, 3])),
        vocab_size=draw(st.sampled_from([0.0, 32000.0, 250000.0])),
        embedding_matrices=draw(st.integers(0, 2)),
        convention=draw(st.sampled_from(["paper", "exact", "dense"])),
    )


def test_the_papers_family() -> None:
    np.testing.assert_allclose(n_total(PAPER, 3e9, EXPERTS), (1 + (EXPERTS - 1) / 3) * 3e9, rtol=1e-14)
    np.testing.assert_allclose(flops_multiple(PAPER, 3e9, EXPERTS), [1] + [5 / 3] * 6, rtol=1e-14)
    exact = with_convention(PAPER, "exact")
    np.testing.assert_allclose(flops_multiple(exact, 3e9, EXPERTS), [1] + [4 / 3] * 6, rtol=1e-14)
    np.testing.assert_array_equal(flops_multiple(with_convention(PAPER, "dense"), 3e9, EXPERTS), 1.0)
    np.testing.assert_allclose(training_flops(PAPER, 1e9, 2e10, [1.0, 8.0]), [1.2e20, 2e20], rtol=1e-14)


def test_the_joint_family_against_the_public_runs(joint_runs: RunTable) -> None:
    table = joint_runs.columns
    d_model, n_blocks = table["d_model"], table["n_blocks"]
    stated_total, stated_active = table["n_params_total"], joint_runs.n_params
    ours = n_total(JOINT, stated_active, joint_runs.experts)
    on_ratio = d_model == 64 * n_blocks
    assert 100 <= on_ratio.sum() < on_ratio.size
    np.testing.assert_allclose(ours[on_ratio], stated_total[on_ratio], rtol=1e-12)
    np.testing.assert_allclose(width(JOINT, stated_active)[on_ratio], d_model[on_ratio], rtol=1e-12)
    # Elsewhere the family's shape is not the run's, which moves parameters between embeddings and layers.
    np.testing.assert_allclose(ours, stated_total, rtol=0.02)
    exact = joint_runs.experts == 1
    np.testing.assert_allclose(ours[exact], stated_total[exact], rtol=1e-12)
    # With the run's own aspect ratio nothing is left to explain.
    for ratio in np.unique(d_model / n_blocks):
        rows = d_model / n_blocks == ratio
        own = n_total(replace(JOINT, d_model_per_layer=float(ratio)), stated_active[rows], joint_runs.experts[rows])
        np.testing.assert_allclose(own, stated_total[rows], rtol=1e-12)
    # Top-1: a token meets as much as in the dense model.
    np.testing.assert_allclose(n_active(JOINT, stated_active, joint_runs.experts), stated_active, rtol=1e-14)


@given(any_families(), sizes, expert_counts)
def test_the_shape_holds_what_the_abstraction_says(family: ModelFamily, n_params: float, experts: float) -> None:
    counted = count_parameters(architecture(family, n_params, experts))
    assert float(counted.total) == pytest.approx(float(n_total(family, n_params, experts)), rel=1e-12)
    if family.embedding_matrices == 0 or family.vocab_size == 0:
        shape = architecture(family, n_params, experts)
        assert float(dense_equivalent_params(shape)) == pytest.approx(n_params, rel=1e-12)
    met = float(n_active(replace(family, convention="exact"), n_params, experts))
    assert float(counted.active) == pytest.approx(met, rel=1e-12)


@given(any_families(), sizes, expert_counts, st.floats(1.001, 10.0))
def test_more_is_never_less(family: ModelFamily, n_params: float, experts: float, factor: float) -> None:
    assert n_total(family, n_params * factor, experts) > n_total(family, n_params, experts)
    assert n_total(family, n_params, experts * factor) > n_total(family, n_params, experts) * (1 - 1e-12)
    assert n_active(family, n_params * factor, experts) > n_active(family, n_params, experts)
    multiples = [float(flops_multiple(with_convention(family, name), n_params, experts)) for name in CONVENTIONS]
    paper, exact, dense = multiples
    assert paper >= exact * (1 - 1e-12)
    assert exact >= dense == 1.0
    dense_total = float(n_total(family, n_params, 1.0))
    assert dense_total == n_params


@given(any_families(), sizes, expert_counts, st.floats(1e15, 1e28))
def test_a_budget_buys_the_tokens_that_cost_it(
    family: ModelFamily, n_params: float, experts: float, flops: float
) -> None:
    tokens = tokens_within(family, flops, n_params, experts)
    assert float(training_flops(family, n_params, tokens, experts)) == pytest.approx(flops, rel=1e-13)


@given(any_families(), sizes, expert_counts)
def test_elasticities_are_those_of_finite_differences(family: ModelFamily, n_params: float, experts: float) -> None:
    step = 1e-4
    for size in (n_active, n_total):
        wider, narrower = (size(family, n_params * math.exp(s), experts) for s in (step, -step))
        found = elasticity(family, n_params, size(family, n_params, experts))
        assert float(found) == pytest.approx(float(np.log(wider / narrower)) / (2 * step), rel=1e-7)


@pytest.mark.system
@given(families, st.lists(sizes, min_size=2, max_size=3), st.lists(expert_counts, min_size=2, max_size=3))
def test_arrays_equal_scalars(family: ModelFamily, some_sizes: list[float], some_experts: list[float]) -> None:
    n, e = np.array(some_sizes)[:, None], np.array(some_experts)
    shape = architecture(family, n, e)
    total, active = n_total(family, n, e), n_active(family, n, e)
    tokens = tokens_within(family, 1e21, n, e)
    for i, size in enumerate(some_sizes):
        for j, experts in enumerate(some_experts):
            alone = architecture(family, size, experts)
            for name in ("n_layers", "d_model", "n_heads", "n_moe_layers", "d_expert", "top_k"):
                assert getattr(shape, name)[i, j] == pytest.approx(float(getattr(alone, name)), rel=1e-14)
            assert total[i, j] == pytest.approx(float(n_total(family, size, experts)), rel=1e-14)
            assert active[i, j] == pytest.approx(float(n_active(family, size, experts)), rel=1e-14)
            assert tokens[i, j] == pytest.approx(float(tokens_within(family, 1e21, size, experts)), rel=1e-14)


@given(families, sizes, expert_counts)
def test_key_value_heads_change_the_cache_and_nothing_else(
    family: ModelFamily, n_params: float, experts: float
) -> None:
    full, grouped = architecture(family, n_params, experts), architecture(family, n_params, experts, kv_heads=2)
    assert replace(grouped, n_kv_heads=full.n_kv_heads) == full
    assert count_parameters(grouped).to_dict() == count_parameters(full).to_dict()
    shrunk = float(kv_bytes_per_token(grouped) / kv_bytes_per_token(full))
    assert shrunk == pytest.approx(min(1.0, 2.0 / float(full.n_heads)), rel=1e-12)


def test_a_size_becomes_a_shape_like_the_real_ones() -> None:
    # Llama-7B holds 6.476e9 parameters beside its embeddings, in 32 layers of 4096.
    made = architecture(PAPER, 6.476e9, 1.0)
    assert float(made.d_model) == pytest.approx(4096, rel=0.1)
    assert float(made.n_layers) == pytest.approx(32, rel=0.2)


def test_one_expert_is_the_dense_model() -> None:
    made = architecture(PAPER, 1e9, EXPERTS)
    counted = count_parameters(made)
    assert np.asarray(made.n_moe_layers)[0] == 0
    assert counted.experts[0] == 0
    assert counted.total[0] == pytest.approx(1e9, rel=1e-14)
    np.testing.assert_array_equal(np.asarray(made.top_k), np.minimum(2.0, EXPERTS))
    np.testing.assert_array_equal(np.asarray(architecture(PAPER, 1e9, EXPERTS, top_k=1).top_k), 1.0)
    assert np.all(np.diff(counted.total) > 0)
    experts = count_parameters(architecture(replace(JOINT, embedding_matrices=0), 1e9, 8.0)).experts
    assert float(experts / 8 / 1e9) == pytest.approx(9 / 13, rel=1e-12)


@given(st.floats(0.01, 0.1), st.floats(5.0, 30.0), sizes)
def test_aspect_ratio_is_that_of_the_two_thirds_power(mu: float, layer_multiple: float, n_params: float) -> None:
    family = replace(PAPER, ffn_ratio=(layer_multiple - 4) / 3, d_model_per_layer=aspect_ratio(mu, layer_multiple))
    d = float(width(family, n_params))
    assert d * d / family.d_model_per_layer == pytest.approx(mu * n_params ** (2 / 3), rel=1e-9)


@pytest.mark.parametrize(
    "arguments",
    [
        {"n_params": 0.0},
        {"n_params": -1e9},
        {"n_params": math.nan},
        {"n_params": np.array([1e9, math.inf])},
        {"experts": 0.5},
        {"experts": math.nan},
        {"top_k": 0},
        {"kv_heads": 0},
    ],
)
def test_impossible_models_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=rf"yun2024: {next(iter(arguments))} must be finite"):
        architecture(PAPER, **({"n_params": 1e9, "experts": 4.0} | arguments))


def test_unknown_conventions_are_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match="unknown convention 'exakt'; nearest: exact; known: paper, exact, dense"):
        with_convention(PAPER, "exakt")
