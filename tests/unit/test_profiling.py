"""Latency tables are measured, kept row by row, extended and read; vLLM is a formula in a process of its own."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moescale.errors import InputError
from moescale.experiments.profile import Grid, Model, Profiled, profile, read_grid
from moescale.latency.table import Measurement, key_of, read_latency_table, read_measurements, write_measurements
from reference_data import TESTS
from stub_vllm import decode_s, prefill_s

STUB = TESTS / "stub_vllm.py"
VLLM = (sys.executable, "-S", str(STUB))


Asked = tuple[Grid, list[Model]]


def grid(stub: dict[str, Any] | None = None, **options: Any) -> Asked:
    """A model of a size on the stub, whose config holds what goes wrong."""
    models = [{"n_params": 2e6, "experts": 4}]
    table = {"gpu": "stub", "batch": [1, 2, 4], "prompt_tokens": [16, 32], "models": models, **options}
    made = Grid.model_validate(table)
    built = made.models[0].models(Path(), math.lcm(*made.gpus))
    return made, [replace(model, config={**model.config, "stub": stub or {}}) for model in built]


def measure(table: Path, wanted: Asked, **options: Any) -> Profiled:
    return profile(*wanted, table, **{"vllm": VLLM, "repeats": 3, "rounds": 1, **options})


def rows_of(table: Path) -> tuple[Measurement, ...]:
    rows = read_measurements(table)
    assert len({key_of(row) for row in rows}) == len(rows)
    return rows


def latency_s(row: Measurement) -> float:
    """What the stub's formula says of a row: a decode step at `tokens` tokens on average."""
    formula = prefill_s if row.stage == "prefill" else decode_s
    return formula(row.batch, row.tokens, row.gpus)


@pytest.mark.system
def test_the_table_holds_what_vllm_took_and_is_not_measured_again(tmp_path: Path) -> None:
    table, log = tmp_path / "t.parquet", tmp_path / "log"
    done = measure(table, grid({"log": str(log)}, batch=[1, 2], gpus=[1, 2]))
    assert (done.points, done.measured, done.not_ok) == (16, 16, {})
    for row in rows_of(table):
        assert row.latency_s == pytest.approx(latency_s(row))
        assert (row.status, row.engine_version, row.repeats) == ("ok", "1", 3)
    read = read_latency_table(table, "stub")
    model = grid()[1][0].architecture
    assert read.decode_s(model, 2, 2, 16) == pytest.approx(decode_s(2, 16, 2))
    assert read.prefill_s(model, 1, 2, 24) == pytest.approx(prefill_s(2, 24, 1))
    assert np.isnan(read.decode_s(model, 1, 5, 16))
    # Prefill is a start of vLLM with one output token, decode one more with the tokens that are timed.
    starts = ("16 1", "32 1", "8 1", "8 16", "24 1", "24 16")  # tokens of a prompt, and of output
    assert set(log.read_text().splitlines()) == {f"{batch} {tokens}" for batch in (1, 2) for tokens in starts}
    before, asked = rows_of(table), log.read_text()
    wider = measure(table, grid({"log": str(log)}, batch=[1, 2, 4]))
    assert (wider.points, wider.measured) == (12, 4)
    assert {line.split()[0] for line in log.read_text().removeprefix(asked).splitlines()} == {"4"}
    assert rows_of(table)[: len(before)] == before


@pytest.mark.system
@pytest.mark.parametrize("stub", [{"does_not_fit": 2}, {"cache": 20}])
def test_what_does_not_fit_is_a_row_and_larger_ones_are_not_tried(stub: dict[str, Any], tmp_path: Path) -> None:
    table, log = tmp_path / "t.csv", tmp_path / "log"
    done = measure(table, grid({"log": str(log), **stub}, prompt_tokens=[16]))
    assert done.not_ok == {"out of memory": 6 if "cache" in stub else 4} or "cache" in stub
    rows = rows_of(table)
    assert len(rows) == 6
    assert all(row.latency_s is None and row.reason for row in rows if row.status != "ok")
    assert not any(line.startswith("4 ") for line in log.read_text().splitlines())
    assert np.isnan(read_latency_table(table).decode_s(grid()[1][0].architecture, 1, 2, 16))


@pytest.mark.system
@pytest.mark.parametrize(
    ("stub", "status", "reason"),
    [
        ({"fails": 2}, "failed", "ValueError: an assertion"),
        ({"exits": 2}, "failed", "ended with code 7"),
        ({"kills": 2}, "out of memory", "killed"),
    ],
)
def test_a_start_that_breaks_costs_one_point(stub: dict[str, Any], status: str, reason: str, tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    measure(table, grid(stub, prompt_tokens=[16]))
    rows = rows_of(table)
    assert len(rows) == 6
    assert {row.batch for row in rows if row.status == status and reason in row.reason} == {2}
    assert {row.batch for row in rows if row.status == "ok"} >= {1}
    # Only failures are worth another try; what does not fit stays.
    done = measure(table, grid(prompt_tokens=[16]))
    assert done.measured == (2 if status == "failed" else 0)
    assert len(rows_of(table)) == 6


def test_a_vllm_that_is_not_there_is_an_error_and_no_row(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot be run.*--python"):
        measure(tmp_path / "t.csv", grid(), vllm=(str(tmp_path / "none"),))
    with pytest.raises(InputError, match=r"vLLM does not start.*--python"):
        measure(tmp_path / "t.csv", grid(), vllm=(sys.executable, "-m", "no_such_module"))
    with pytest.raises(InputError, match=r"none/log: .*create the folder"):
        measure(tmp_path / "t.csv", grid(), log=tmp_path / "none" / "log")
    assert not (tmp_path / "t.csv").exists()


def test_versions_are_not_mixed_in_one_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measure(tmp_path / "t.csv", grid(batch=[1], prompt_tokens=[16]))
    monkeypatch.setenv("STUB_VERSION", "2")
    with pytest.raises(InputError, match="engine_version 1, and this is 2"):
        measure(tmp_path / "t.csv", grid(batch=[2], prompt_tokens=[16]))
    rows = rows_of(tmp_path / "t.csv")
    write_measurements(tmp_path / "mixed.csv", [*rows, replace(rows[0], engine="torch")])
    with pytest.raises(InputError, match="'torch', 'vllm'"):
        read_latency_table(tmp_path / "mixed.csv")


@pytest.mark.system
def test_rounds_visit_the_grid_again_and_a_late_failure_leaves_the_latency(tmp_path: Path) -> None:
    """The first round fills the table; an interrupted second one is taken up where it was."""
    table, slower = tmp_path / "t.csv", str(tmp_path / "starts")
    wanted = grid({"slower": slower}, batch=[1, 2], prompt_tokens=[16])
    measure(table, wanted)
    first = {key_of(row): row for row in rows_of(table)}
    done = measure(table, wanted, rounds=3)
    assert (done.points, done.measured) == (4, 4)
    for row in rows_of(table):
        at = latency_s(row)
        assert row.rounds_s == pytest.approx([at, 2 * at, 3 * at])  # every start is slower
        assert row.rounds_s[0] == first[key_of(row)].latency_s
        assert row.latency_s == pytest.approx(2 * at)
        assert row.spread == pytest.approx(1.0)  # (3 - 1) / 2
        assert row.repeats == 9
    assert measure(table, wanted, rounds=3).measured == 0
    before = rows_of(table)
    done = measure(table, grid({"fails": 2}, batch=[1, 2], prompt_tokens=[16]), rounds=4)
    assert done.not_ok == {}
    assert {(row.batch, len(row.rounds_s)) for row in rows_of(table)} == {(1, 4), (2, 3)}
    assert [row.latency_s for row in rows_of(table) if row.batch == 2] == [
        row.latency_s for row in before if row.batch == 2
    ]


def measured(
    latency: Any, batches: tuple[int, ...] = (1, 2, 4, 8), sizes: tuple[float, ...] = (1e9, 2e9, 4e9)
) -> list[Measurement]:
    shape: dict[str, Any] = dict.fromkeys(
        ("n_layers", "d_model", "n_heads", "n_kv_heads", "head_dim", "d_ffn", "n_moe_layers", "top_k", "d_expert"), 1
    )
    fixed: dict[str, Any] = {
        "gpu": "g", "gpus": 1, "n_experts": 1, "stage": "decode", "engine": "torch", "engine_version": "1",
        "dtype": "bfloat16", "device": "d", "date": "2026-01-02", "n_params": 1.0, "n_params_non_embedding": 1.0, **shape,
    }  # fmt: skip
    return [
        Measurement(
            **fixed, n_params_total=n, vocab_size=int(n / 1e9), model=f"m{n:g}", batch=b, tokens=16,
            latency_s=latency(b, n), repeats=5, spread=0.01,
        )
        for n in sizes
        for b in batches
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("column", "value", "what"),
    [
        ("status", "fine", "not ok"), ("batch", "1.5", "whole"), ("latency_s", "", "positive"),
        ("latency_s", "-1", "negative"), ("latency_s", "0", "needs a positive latency"),
        ("latency_s", "5e-324", "needs a positive latency"), ("stage", "both", "neither"),
        ("d_model", "wide", "not a number"),
    ],
)  # fmt: skip
def test_bad_rows_are_named(column: str, value: str, what: str, tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    row = {k: "" if v in (None, ()) else v for k, v in asdict(measured(lambda b, n: 1.0)[0]).items()}
    row[column] = value
    table.write_text(",".join(row) + "\n" + ",".join(map(str, row.values())) + "\n")
    with pytest.raises(InputError, match=rf"data row 1, column {column}.*{what}"):
        read_measurements(table)


def test_tables_of_others_are_not_extended(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    write_measurements(table, measured(lambda b, n: 1.0))
    lines = table.read_text().splitlines()
    table.write_text("\n".join([lines[0] + ",note", *(line + ",x" for line in lines[1:])]))
    with pytest.raises(InputError, match="extending the table would lose it"):
        measure(table, grid())
    table.write_text("gpu,gpus\na,1\n")
    with pytest.raises(InputError, match="'n_params_total' is missing"):
        measure(table, grid())
    with pytest.raises(InputError, match="end the name in"):
        measure(tmp_path / "t.json", grid())


# Grids.

GRID = """
gpu = "h100-sxm"
batch = [8, 1, "1K"]
prompt_tokens = 128
context_tokens = [256, 512]
gpus = [1, 2]
[[models]]
n_params = ["20M", 3e7]
experts = [1, 4]
[[models]]
config = "mine.json"
"""


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """The folder of a config.json that a grid names."""
    (tmp_path / "mine.json").write_text(json.dumps(dict(grid(gpus=[1, 2])[1][0].config) | {"stub": None}))
    return tmp_path


def test_a_grid_file_is_read(files: Path) -> None:
    (files / "p.toml").write_text(GRID)
    found, models = read_grid(files / "p.toml")
    assert found.points()[0] == ("prefill", 1, 128)
    assert {stage: sorted({t for s, _, t in found.points() if s == stage}) for stage in ("prefill", "decode")} == {
        "prefill": [128], "decode": [256, 512],
    }  # fmt: skip
    assert sorted({batch for _, batch, _ in found.points()}) == [1, 8, 1000]
    assert [model.columns()["n_experts"] for model in models] == [1, 4, 1, 4, 4]
    assert models[-1].name == "mine"
    for model, wanted in zip(models[:4], (2e7, 2e7, 3e7, 3e7), strict=True):
        assert model.columns()["n_params"] == pytest.approx(wanted, rel=0.2)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (("gpu = ", "gpuu = "), "unknown key 'gpuu'; nearest: gpu"),
        (('gpu = "h100-sxm"', ""), "gpu is missing"),
        (('[8, 1, "1K"]', "[0]"), "batch: 0 is not at least 1; nearest: 1"),
        (('[8, 1, "1K"]', "[]"), "batch: is empty"),
        (("experts = [1, 4]", "experts = []"), r"\[\[models\]\] 1, experts: is empty"),
        (('["20M", 3e7]', '["20X"]'), "n_params: .*20X"),
        (('["20M", 3e7]', "[1]"), "1 is not at least 100000"),
        (('["20M", 3e7]', str([3e7] * 3000)), "more than 100 entries"),
        (('n_params = ["20M", 3e7]', ""), "needs n_params or config"),
        (('"mine.json"', '"none.json"'), "none.json: no such file"),
        (("prompt_tokens = 128", "prompt_tokens = ="), "not valid TOML"),
    ],
)
def test_bad_grids_are_refused(change: tuple[str, str], what: str, files: Path) -> None:
    (files / "p.toml").write_text(GRID.replace(*change))
    with pytest.raises(InputError, match=what) as caught:
        read_grid(files / "p.toml")
    assert str(files) in str(caught.value)
