"""The latency source of a table of measurements: between its points, outside of them, and its faults."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from latency_tables import BATCHES, LENGTHS, MODEL, SIZES, measured, trilinear, write
from moescale.errors import InputError
from moescale.latency import with_moe_execution
from moescale.latency.table import NEEDED, read_latency_table
from moescale.models.architecture import Architecture
from moescale.models.parameters import count_parameters

DENSE = Architecture(n_layers=3, d_model=1024, n_heads=8, n_kv_heads=2, head_dim=128, d_ffn=4096)


@pytest.mark.system
@given(st.floats(*SIZES), st.floats(BATCHES[0], BATCHES[-1]), st.floats(*LENGTHS))
def test_interpolation_is_exact_on_a_function_linear_in_each_axis(
    tmp_path_factory: pytest.TempPathFactory, size: float, batch: float, tokens: float
) -> None:
    path = tmp_path_factory.getbasetemp() / "trilinear.csv"
    if not path.exists():
        write(path, measured(trilinear))
    table = read_latency_table(path)
    model = sized(size)
    exact = trilinear(float(count_parameters(model).total), batch, tokens)
    assert table.decode_s(model, 2, batch, tokens) == pytest.approx(exact, rel=1e-9)
    assert table.prefill_s(model, 2, batch, tokens) == pytest.approx(10 * exact, rel=1e-9)


def sized(n_params_total: float) -> Architecture:
    """A model of 8 experts with this many parameters: its dense FFN layers take up what is missing."""
    layers = replace(MODEL, n_layers=33.0, n_moe_layers=24.0)
    slope = 9 * 3 * layers.d_model
    rest = float(count_parameters(replace(layers, d_ffn=0.0)).total)
    return replace(layers, d_ffn=(n_params_total - rest) / slope)


@pytest.mark.parametrize(
    ("size", "gpus", "batch", "tokens"),
    [
        (3.99e10, 2, 8, 512), (5.01e10, 2, 8, 512), (4.5e10, 1, 8, 512), (4.5e10, 2, 0.5, 512), (4.5e10, 2, 65, 512),
        (4.5e10, 2, 8, 255), (4.5e10, 2, 8, 1025),
    ],
)  # fmt: skip
def test_outside_the_measured_range_the_answer_is_nan(
    size: float, gpus: int, batch: float, tokens: float, tmp_path: Path
) -> None:
    table = read_latency_table(write(tmp_path / "t.csv", measured(trilinear)))
    assert np.isfinite(table.decode_s(sized(4.5e10), 2, 8, 512))
    assert np.isnan(table.decode_s(sized(size), gpus, batch, tokens))
    assert np.isnan(table.decode_s(replace(sized(4.5e10), n_experts=4), 2, 8, 512))


def test_sizes_may_have_batches_of_their_own(tmp_path: Path) -> None:
    rows = [
        row for row in measured(trilinear) if not (row["n_params_total"] == SIZES[1] and row["batch"] == BATCHES[-1])
    ]
    table = read_latency_table(write(tmp_path / "t.csv", rows))
    at = table.decode_s(sized(SIZES[0]), 2, np.array([8.0, 64.0]), 512)
    assert np.all(np.isfinite(at))
    between = table.decode_s(sized(4.5e10), 2, np.array([8.0, 64.0]), 512)
    assert np.isfinite(between).tolist() == [True, False]


def test_repeats_become_their_median_and_a_dense_model_is_one_expert(tmp_path: Path) -> None:
    rows = measured(lambda *_: 1.0) + measured(lambda *_: 2.0) + measured(lambda *_: 40.0)
    assert read_latency_table(write(tmp_path / "t.csv", rows)).decode_s(sized(4.5e10), 2, 8, 512) == pytest.approx(2.0)
    dense = replace(DENSE, n_experts=7.0)  # without MoE layers the number of experts means nothing
    size = float(count_parameters(dense).total)
    rows = [{**row, "n_experts": 1, "n_params_total": size} for row in measured(lambda *_: 0.5)]
    assert read_latency_table(write(tmp_path / "t.csv", rows)).decode_s(dense, 2, 8, 512) == 0.5


def test_one_gpu_is_chosen_where_a_table_holds_several(tmp_path: Path) -> None:
    other = [{**row, "gpu": "h100-sxm"} for row in measured(lambda *_: 0.25)]
    path = write(tmp_path / "t.csv", measured(lambda *_: 0.5) + other)
    with pytest.raises(InputError, match="several GPUs: a100-sxm-80gb, h100-sxm"):
        read_latency_table(path)
    assert read_latency_table(path, "h100-sxm").decode_s(MODEL, 2, 8, 512) == pytest.approx(0.25)
    with pytest.raises(InputError, match=r"unknown GPU 'h200-sxm'.*nearest: h100-sxm"):
        read_latency_table(path, "h200-sxm")


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("latency_s", "fast", r"data row 2, column latency_s: 'fast' is not a number"),
        ("latency_s", "-1", r"data row 2, column latency_s: '-1' must be positive and finite"),
        ("latency_s", "nan", r"data row 2, column latency_s: 'nan' must be positive and finite"),
        ("batch", "0", r"data row 2, column batch: '0' must be positive"),
        ("tokens", "inf", r"data row 2, column tokens: 'inf' must be positive"),
        ("gpus", "1.5", r"data row 2, column gpus: '1.5' must be a whole number"),
        ("n_experts", "", r"data row 2, column n_experts: '' is not a number"),
        ("stage", "train", r"data row 2, column stage: 'train' must be prefill or decode"),
        ("gpu", " ", r"data row 2, column gpu: is empty"),
    ],
)
def test_a_malformed_cell_is_named(column: str, value: str, message: str, tmp_path: Path) -> None:
    rows = measured(trilinear)
    rows[1] = {**rows[1], column: value}
    with pytest.raises(InputError, match=message):
        read_latency_table(write(tmp_path / "bad.csv", rows))


def test_a_missing_column_is_named_with_the_nearest(tmp_path: Path) -> None:
    rows = [{**row, "latency": row["latency_s"]} for row in measured(trilinear)]
    columns = [column for column in NEEDED if column != "latency_s"] + ["latency"]
    with pytest.raises(InputError, match=r"'latency_s' is missing; nearest: latency"):
        read_latency_table(write(tmp_path / "t.csv", rows, columns))


def test_a_table_knows_separate_passes_of_experts_as_they_were_measured_only(tmp_path: Path) -> None:
    table = read_latency_table(write(tmp_path / "measured.csv", measured(trilinear)))
    assert np.isnan(table.mixed_s(MODEL, 2, np.array([8.0, 16.0]), 512, 0.5, 512)).tolist() == [True, True]
    assert np.isnan(table.decode_s(MODEL, 2, 8, 512, expert_parallel=np.array([1.0, 2.0]))).tolist() == [False, True]
    assert with_moe_execution(table, "fused") is table
    with pytest.raises(InputError, match="measured in another execution"):
        with_moe_execution(table, "all-experts")
