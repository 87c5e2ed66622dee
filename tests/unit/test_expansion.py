"""What tables say of their models: the body that one token meets, and the expansion of the FFNs."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moescale.runs.expansion import expert_shape, layer_expansion
from moescale.runs.table import RunTable, read_runs
from reference_data import JOINT_MOE_RUNS, PUBLIC

NUMBERS = {"n_params_dense": [1e8, 1e8], "n_experts": [1.0, 64.0], "tokens": [2e9, 2e9], "loss": [3.0, 2.8]}

experts = st.integers(1, 512).map(float)
widths = st.floats(1e-2, 1e4)


def _runs(**columns: list[float]) -> RunTable:
    return read_runs(NUMBERS | columns)


@given(experts)
def test_top_1_expands_by_the_number_of_experts_and_the_papers_family_by_a_third_of_each(e: float) -> None:
    # Top-2 in every other layer, experts as wide as a dense layer's FFN.
    expected = (1 + e) / 3 if e > 1 else 1.0
    assert layer_expansion(e, 2.0, 0.5, 1.0, 0.0, 1.0) == pytest.approx(expected)
    assert layer_expansion(e) == e


@given(experts, st.integers(1, 16).map(float), st.floats(0.1, 1.0), widths, widths, widths, st.floats(1e-3, 1e3))
def test_an_expansion_has_no_unit_and_lies_between_one_and_all_experts(
    e: float, k: float, share: float, expert: float, shared: float, dense: float, unit: float
) -> None:
    found = float(layer_expansion(e, k, share, expert, shared, dense))
    assert 1.0 <= found <= max(e / min(k, e), 1.0) * (1 + 1e-12)
    assert layer_expansion(e, k, share, unit * expert, unit * shared, unit * dense) == pytest.approx(found)
    # Splitting each expert into two halves of which twice as many are met changes nothing.
    if e > 1:
        assert layer_expansion(2 * e, 2 * k, share, expert / 2, shared, dense) == pytest.approx(found)


@pytest.mark.parametrize(
    ("columns", "x"),
    [
        ({}, 64.0),
        ({"top_k": [1.0, 8.0]}, 8.0),
        ({"top_k": [float("nan"), 8.0]}, 8.0),  # nothing is needed of a dense model
        ({"top_k": [1.0, 2.0], "moe_every": [2.0, 2.0]}, 65 / 3),
        ({"top_k": [1.0, 1.0], "routing_frequency": [0.5, 0.5]}, 32.5),
        ({"top_k": [1.0, 6.0], "expert_width": [1.0, 1408.0], "shared_width": [0.0, 2816.0]}, 66 / 8),
        ({"top_k": [1.0, 6.0], "expert_width": [1.0, 0.25], "moe_every": [1.0, 2.0]}, (64 + 6) / 12),
        (
            {"top_k": [1.0, 6.0], "expert_width": [1.0, 0.25], "ffn_width": [1.0, 2.0], "moe_every": [1.0, 2.0]},
            (16 + 2) / (1.5 + 2),
        ),
        ({"expansion": [1.0, 11.0], "top_k": [1.0, 2.0]}, 11.0),
    ],
)
def test_a_table_states_its_expansion(columns: dict[str, list[float]], x: float) -> None:
    runs = _runs(**columns)
    assert runs.warnings == ()
    np.testing.assert_allclose(runs.expansion, [1.0, x], rtol=1e-14)


@pytest.mark.parametrize("name", ["expansion", "top_k", "moe_every", "expert_width", "n_params_nonemb"])
@pytest.mark.parametrize("cell", [float("nan"), 0.0, -1.0, float("inf")])
def test_a_column_with_a_broken_cell_is_not_used_and_named(name: str, cell: float) -> None:
    runs = _runs(**{name: [1.0, cell]})
    (note,) = runs.warnings
    assert note.startswith(f"column {name!r} is not used: 1 cell of it is not a number from")
    assert "data row 2" in note
    assert runs.active_body is None
    np.testing.assert_array_equal(runs.expansion, [1.0, 64.0])


def test_the_public_routing_runs_have_experts_in_every_other_layer() -> None:
    runs = read_runs(PUBLIC / "routing_S-Base.csv")
    assert set(runs.columns["routing_frequency"]) == {0.5}
    expected = np.where(runs.experts > 1, 0.5 * runs.experts + 0.5, 1.0)
    np.testing.assert_allclose(runs.expansion, expected, rtol=1e-15)


def _without_body(runs: RunTable) -> dict[str, object]:
    columns = dict(runs.to_columns())
    for name in ("n_params_active_nonemb", "n_params_nonemb"):
        columns.pop(name, None)
    return columns


@pytest.mark.parametrize(
    ("table", "vocabulary"),
    [
        (JOINT_MOE_RUNS, 50257),
        (PUBLIC / "routing_S-Base.csv", 32000),
        (PUBLIC / "gemstones_cool.csv", 50304),
        *((PUBLIC / f"gadre_{name}.csv", 50432) for name in ("c4", "rpj", "rw")),
    ],
    ids=lambda value: getattr(value, "stem", str(value)),
)
def test_sizes_without_embeddings_follow_from_a_vocabulary_and_a_width(table: object, vocabulary: int) -> None:
    runs = read_runs(table)
    columns = _without_body(runs)
    if "gadre" in str(table):  # open_lm names most of its runs by their width
        named = [re.search(r"-d=(\d+)_", name) for name in runs.columns["run_id"]]
        runs = runs.select(np.array([found is not None for found in named]))
        columns = _without_body(runs) | {"width": np.array([float(found[1]) for found in named if found])}
    rows = {"vocab_size": np.full(len(runs), float(vocabulary))}
    body = read_runs(columns | rows).active_body
    assert body is not None
    assert runs.active_body is not None
    np.testing.assert_allclose(body, runs.active_body, rtol=1e-12)
    assert read_runs(columns).active_body is None


def test_the_active_size_counts_and_not_the_total_and_a_vocabulary_is_a_column() -> None:
    others = {"d_model": [512.0, 512.0], "n_params_active": [1e8, 2e8], "n_params_total": [1e8, 9e8]}
    others["vocab_size"] = [1000.0, 1000.0]
    np.testing.assert_allclose(read_runs(NUMBERS | others).active_body, [1e8 - 1.024e6, 2e8 - 1.024e6])
    del others["n_params_active"]
    total = read_runs(NUMBERS | others, size_column="n_params_total")
    assert total.active_body is None
    assert total.where("n_experts == 1").active_body is not None
    shape = {"d_model": [512.0, 512.0]}
    np.testing.assert_allclose(_runs(vocab_size=[3e4, 4e4], **shape).active_body, 1e8 - 1024 * np.array([3e4, 4e4]))
    assert _runs(vocab_size=[5e4, 5e4], d_model=[512.0, 1e9]).active_body is None  # more than all


def test_sizes_of_our_own_runs_count_no_embeddings() -> None:
    """`train` writes n_params_embedding apart: its active size is the body, from which no tables are taken again."""
    runs = read_runs(PUBLIC.parents[2] / "examples" / "stdlib-runs.csv")
    body = runs.active_body
    assert body is not None
    np.testing.assert_array_equal(body, runs.columns["n_params_active"])
    older = replace(runs, columns={k: v for k, v in runs.columns.items() if k not in ("n_params_nonemb", "moe_every")})
    assert older.active_body is not None
    np.testing.assert_array_equal(older.active_body, body)
    # Top-2 of 8 in every other layer; in the others an FFN as wide as one expert.
    np.testing.assert_allclose(runs.expansion[runs.experts == 8], layer_expansion(8, 2, 0.5, dense_width=1.0))


def test_the_shape_of_experts_follows_from_widths_in_neurons_or_in_dense_layers() -> None:
    experts, d = np.array([1.0, 64.0]), np.full(2, 512.0)
    columns = {
        "expert_width": np.array([np.nan, 256.0]),
        "shared_width": np.array([np.nan, 512.0]),
        "top_k": np.full(2, 4.0),
    }
    found = expert_shape(experts, columns | {"d_model": d})
    np.testing.assert_allclose(found["granularity"], [1.0, 8.0 * 512.0 / (3.0 * 256.0)])
    np.testing.assert_allclose(found["shared_ffn"], [0.0, 512.0 / (512.0 + 4.0 * 256.0)])
    np.testing.assert_allclose(
        expert_shape(experts, columns | {"ffn_width": np.full(2, 1024.0)})["granularity"], [1.0, 4.0]
    )
    quarter = {"expert_width": np.array([np.nan, 0.25]), "d_model": d}
    np.testing.assert_allclose(expert_shape(experts, quarter)["granularity"], [1.0, 4.0])
    assert expert_shape(experts, {"d_model": d}) == {}
