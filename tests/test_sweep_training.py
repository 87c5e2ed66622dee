"""Sweeps: what a grid expands to, and that driving one loses nothing and does nothing twice, whoever is killed."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from moescale import catalogue
from moescale.cli import main
from moescale.errors import InputError
from moescale.experiments.run_table import add_rows, read_result
from moescale.experiments.sweeps import driver
from moescale.experiments.sweeps.driver import Drive, Swept, dry_run
from moescale.experiments.sweeps.executors import BUSY, Local, Process, execute
from moescale.experiments.sweeps.progress import Progress, Status, read_progress, watch_lines, watch_live
from moescale.experiments.sweeps.sweep import Sweep, expand, paper_shapes, read_sweep
from moescale.experiments.training.folder import settings_in
from moescale.experiments.training.run import _check_same
from moescale.experiments.training.settings import settings_of
from moescale.io.locks import acquire, is_held
from moescale.io.signals import Terminated
from moescale.runs.table import read_runs
from script_modules import load_script

pytestmark = pytest.mark.system

STUB = Path(__file__).with_name("stub_training.py")
ROOT = Path(__file__).parents[1]
GRID: dict[str, Any] = {"shapes": [[64, 2], [128, 2]], "experts": [1, 4], "tokens": ["1M"]}


def document(**tables: Any) -> dict[str, Any]:
    return {
        "data": {"corpus": "corpus"},
        "training": {"sequence_tokens": 64, "batch_tokens": 1024},
        "grid": GRID,
        **tables,
    }


def made(folder: Path, **tables: Any) -> Sweep:
    """A sweep in a folder, with what the stub must know of it."""
    return know(expand(document(table=str(folder / "runs.csv"), folder=str(folder / "sweep"), **tables)))


def know(sweep: Sweep) -> Sweep:
    names = ("n_params_dense", "n_params_active", "n_params_total", "training_flops")
    found = {
        run.name: {"sha256": run.settings.sha256, **{name: getattr(run, name) for name in names}} for run in sweep.runs
    }
    if sweep.folder.parent.is_dir():
        (sweep.folder.parent / "facts.json").write_text(json.dumps(found))
    return sweep


def stub_command(file: Path) -> list[str]:
    return [sys.executable, "-S", str(STUB), str(file)]


def drive_stub(sweep: Sweep, **options: Any) -> Swept:
    return Drive(sweep, **{"command": stub_command, "poll_s": 0.02, **options}).run()


def faults(sweep: Sweep, **by_name: Any) -> None:
    sweep.folder.mkdir(parents=True, exist_ok=True)
    (sweep.folder / "stub.json").write_text(json.dumps({name.replace("every", "*"): f for name, f in by_name.items()}))


def starts(sweep: Sweep) -> Counter[str]:
    file = sweep.folder / "starts.txt"
    return Counter(line.split()[0] for line in file.read_text().splitlines()) if file.exists() else Counter()


def rows_of(table: Path) -> list[str]:
    """The lines of a table in order of their text: runs may end in any order."""
    head, *rows = table.read_text().splitlines()
    return [head, *sorted(rows)]


def wait_for(what: Callable[[], bool], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


# The grid.


def test_the_papers_shapes_have_the_papers_parameters(tmp_path: Path) -> None:
    sweep = made(tmp_path, grid={"shapes": "paper", "experts": [1, 4, 8, 16, 32], "tokens": "paper"}, training={})
    assert len(sweep.runs) == 4 * 5 * 5
    published = catalogue.read("published_yun2024.toml")["sweep"]
    for shape, n_params in zip(paper_shapes(), published["n_params"], strict=True):
        attention_and_ffn = 4 * shape["d_model"] ** 2 + 3 * shape["d_model"] * shape["d_ffn"]
        assert attention_and_ffn * shape["n_layers"] == n_params
    # Norms are all that the exact counts add: two of the width a layer, queries' and keys' of each head, the last one.
    dense = {run.n_params_dense for run in sweep.runs}
    norms = [s["n_layers"] * (2 * s["d_model"] + 2 * s["head_dim"]) + s["d_model"] for s in paper_shapes()]
    assert dense == {n + norm for n, norm in zip(published["n_params"], norms, strict=True)}
    assert {run.tokens for run in sweep.runs} == {(int(tokens),) for tokens in published["tokens"]}


def test_what_all_runs_share_is_in_each(tmp_path: Path) -> None:
    sweep = made(
        tmp_path,
        name="a",
        seed=3,
        model={"top_k": 1, "moe_every": 1},
        training={"sequence_tokens": 64, "batch_tokens": 1024, "peak_lr": 0.001},
        data={"corpus": "c", "sources": ["x/*.txt", "hf:owner/name"], "vocab_size": 512},
    )
    assert {run.name for run in sweep.runs} == {f"a-e{e}-{d}x2-1m" for e in (1, 4) for d in (64, 128)}
    for run in sweep.runs:
        s = run.settings
        assert (s.seed, s.model.top_k, s.model.moe_every, s.training.peak_lr) == (3, 1, 1, 0.001)
        assert (s.data.corpus, s.data.sources) == (
            str(Path("c").absolute()),
            (str(Path("x/*.txt").absolute()), "hf:owner/name"),
        )
        assert s.output == str((tmp_path / "sweep" / run.name).absolute())
    flops = [run.training_flops for run in sweep.runs]
    assert flops == sorted(flops)


def test_tokens_may_be_a_multiple_of_the_built_size(tmp_path: Path) -> None:
    sweep = made(tmp_path, grid={"n_params": "1M", "experts": [1, 8], "tokens_per_param": [5, 20]})
    for run in sweep.runs:
        ratio = 5 if "-5per" in run.name else 20
        assert run.tokens == (round(ratio * run.n_params_dense),)
    assert len({run.n_params_dense for run in sweep.runs}) == 1


def test_with_branches_one_run_has_all_lengths(tmp_path: Path) -> None:
    sweep = made(
        tmp_path,
        grid={**GRID, "tokens": ["4M", "1M"], "seeds": [0, 1]},
        training={"schedule": "wsd", "sequence_tokens": 64, "batch_tokens": 1024},
    )
    assert len(sweep.runs) == 8
    assert {run.tokens for run in sweep.runs} == {(1_000_000, 4_000_000)}
    assert {run.name for run in sweep.runs} >= {"e4-64x2-wsd", "e4-64x2-wsd-s1"}


SIZES = st.lists(st.sampled_from([(64, 2), (64, 4), (128, 2)]), min_size=1, max_size=3, unique=True)
COUNTS = st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, max_size=3, unique=True)
LENGTHS = st.lists(st.integers(1_000, 10**12), min_size=1, max_size=3, unique=True)


@settings(max_examples=25)
@given(sizes=SIZES, experts=COUNTS, tokens=LENGTHS)
def test_every_combination_is_one_run_and_its_file_says_all(
    sizes: list[tuple[int, int]], experts: list[int], tokens: list[int]
) -> None:
    sweep = expand(document(grid={"shapes": [list(size) for size in sizes], "experts": experts, "tokens": tokens}))
    assert len({run.name for run in sweep.runs}) == len(sizes) * len(experts) * len(tokens)
    assert {(run.n_experts, *run.tokens) for run in sweep.runs} == {(e, d) for e in experts for d in tokens}
    for run in sweep.runs:
        assert settings_of(tomllib.loads(tomli_w.dumps(run.settings.to_dict()))) == run.settings


@pytest.mark.parametrize(
    ("tables", "what"),
    [
        ({"grid": {**GRID, "tokens": ["1M", 1e6]}}, "is listed twice"),
        ({"grid": {**GRID, "experts": [4, 4]}}, "are the same run: e4-64x2-1m and e4-64x2-1m"),
        ({"grid": {"n_params": ["10M", "10.001M"], "tokens": "1M"}}, "are the same run: e1-10m-1m and e1-10.001m-1m"),
        ({"grid": {**GRID, "n_params": "1M"}}, "needs n_params or shapes, and not both"),
        ({"grid": {"n_params": "1M"}}, "needs tokens or tokens_per_param"),
        ({"grid": {**GRID, "expert": 1}}, "unknown key 'expert'; nearest: experts"),
        ({"grid": {**GRID, "shapes": [[768]]}}, "[768] is no shape"),
        ({"grid": {**GRID, "shapes": [{"d_model": 64, "layers": 2}]}}, "unknown key 'layers'"),
        ({"grid": {**GRID, "shapes": []}}, "is empty"),
        ({"grid": {**GRID, "experts": 1.5}}, "1.5 is not a whole number"),
        ({"grid": {**GRID, "experts": "many"}}, "'many' is not a quantity"),
        ({"grid": {**GRID, "tokens": ["1GB"]}}, "'1GB' is a number of bytes, and a count is needed; nearest: 1G"),
        ({"grid": 5}, "is not a table"),
        ({"grid": {**GRID, "tokens": list(range(1, 10**4)), "seeds": list(range(9))}}, "at most 10,000 are taken"),
        ({"model": {"experts": 4}}, "state it in [grid]"),
        ({"output": "x"}, "output belongs to one run"),
        ({"name": "../x"}, "is not a valid file name"),
        ({"name": "x" * 65}, "is not a valid file name"),
        ({"folder": "\0"}, "is not a text"),
        ({"table": "x" * 300}, "cannot be a path: File name too long"),
        ({"folder": ""}, "'' is not a text"),
        ({"trainig": {}}, "unknown key 'trainig'"),
        ({"training": {"batch": 3}}, "unknown key 'batch'"),
        ({"execute": {"on": "cloud"}}, "unknown place 'cloud'"),
        ({"execute": {"slurm": 5}}, "is not a table"),
        ({"execute": {"jobs": 0}}, "jobs: 0 is not from 1"),
    ],
)  # fmt: skip
def test_bad_sweeps_are_refused_with_the_reason(tables: dict[str, Any], what: str, tmp_path: Path) -> None:
    file = tmp_path / "sweep.toml"
    file.write_text(tomli_w.dumps({**document(), **tables}))
    with pytest.raises(InputError) as error:
        read_sweep(file)
    assert what in str(error.value)
    assert "sweep.toml" in str(error.value)


def test_a_file_that_is_no_toml_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "sweep.toml"
    file.write_text("[grid")
    with pytest.raises(InputError, match="is not valid TOML"):
        read_sweep(file)


# The list.


def listed(*runs: dict[str, Any], **tables: Any) -> dict[str, Any]:
    return {key: value for key, value in document(runs=list(runs), **tables).items() if key != "grid"}


def test_a_list_holds_each_run_as_it_is_stated() -> None:
    training = {"sequence_tokens": 64, "batch_tokens": 1024, "peak_lr": 0.002, "warmup": 0.1}
    small = {"n_params": "1M", "tokens": "30M"}
    wide = {"d_model": 128, "n_layers": 2, "head_dim": 32, "experts": 8, "tokens": "4M", "batch_tokens": 4096}
    sweep = expand(listed(small, wide | {"peak_lr": 0.01, "warmup": 0.02, "seed": 7}, training=training, name="a"))
    first, second = sorted(sweep.runs, key=lambda run: run.n_experts)
    assert (first.name, second.name) == ("a-e1-1m-30m", "a-e8-128x2-4m-s7")
    stated = first.settings.training
    assert (stated.batch_tokens, stated.peak_lr, stated.warmup, first.tokens) == (1024, 0.002, 0.1, (30_000_000,))
    stated = second.settings.training
    assert (stated.batch_tokens, stated.peak_lr, stated.warmup, second.settings.seed) == (4096, 0.01, 0.02, 7)
    assert (second.settings.model.d_model, second.settings.model.head_dim, second.tokens) == (128, 32, (4_000_000,))
    flops = [run.training_flops for run in sweep.runs]
    assert flops == sorted(flops)
    assert second.to_dict()["peak_lr"] == 0.01


def test_a_list_of_all_combinations_is_the_grid() -> None:
    runs = [
        {"d_model": d, "n_layers": 2, "experts": e, "tokens": tokens, "seed": seed}
        for d in (64, 128) for e in (1, 4) for tokens in ("1M", "4M") for seed in (0, 3)
    ]  # fmt: skip
    assert expand(listed(*runs)).runs == expand(document(grid={**GRID, "tokens": ["1M", "4M"], "seeds": [0, 3]})).runs


def test_runs_that_differ_in_batch_or_rate_alone_have_names_that_stay_when_the_list_grows() -> None:
    run = {"d_model": 64, "n_layers": 2, "tokens": "1M"}
    runs = [run, run | {"batch_tokens": 2048}, run | {"batch_tokens": 2048, "peak_lr": 0.01}, run | {"d_ffn": 256}]
    training = {"sequence_tokens": 64, "batch_tokens": 1024, "peak_lr": 0.002}
    names = ["e1-64x2-1m", "e1-64x2-1m-b2.048k", "e1-64x2-1m-b2.048k-lr0.01", "e1-64x2-1m-f256"]
    for count in (1, 2, 3, 4):
        found = expand(listed(*runs[:count], training=training)).runs
        assert {each.name for each in found} == set(names[:count])
    stated = {each.name: (each.settings.training.batch_tokens, each.settings.model.d_ffn) for each in found}
    assert [stated[name] for name in names] == [(1024, 192), (2048, 192), (2048, 192), (1024, 256)]


RUN: dict[str, Any] = {"n_params": "1M", "tokens": "1M"}


@pytest.mark.parametrize(
    ("tables", "what"),
    [
        ({"runs": [RUN], "grid": GRID}, "holds [grid] and [[runs]]"),
        ({"runs": []}, "holds no [grid] and no [[runs]]"),
        ({"runs": [RUN, RUN]}, "two entries of [[runs]] are the same run: e1-1m-1m and e1-1m-1m"),
        ({"runs": [RUN, RUN | {"batch_tokens": 1025}]}, "are the same run"),  # whole sequences of both are 16
        ({"runs": [RUN, RUN | {"n_params": "1.001M"}]}, "are the same run: e1-1m-1m and e1-1.001m-1m"),
        ({"runs": [RUN, {"tokens": "1M"}]}, "[[runs]] 2: needs n_params, or d_model and n_layers"),
        ({"runs": [RUN | {"d_model": 64, "n_layers": 2}]}, "and not both"),
        ({"runs": [{"d_model": 64, "tokens": "1M"}]}, "needs n_params, or d_model and n_layers"),
        ({"runs": [RUN | {"n_heads": 4}]}, "n_heads does not go with n_params"),
        ({"runs": [{"n_params": "1M"}]}, "[[runs]] 1: tokens is missing"),
        ({"runs": [RUN, RUN | {"expert": 4}]}, "[[runs]] 2: unknown key 'expert'; nearest: experts"),
        ({"runs": [RUN | {"tokens": ["1M", "2M"]}]}, "[[runs]] 1, tokens: ['1M', '2M'] is not a number"),
        ({"runs": [RUN | {"peak_lr": 11}]}, "[[runs]] 1, peak_lr: 11 is not from 0 to 10"),
        ({"runs": 5}, "[[runs]] 1: is not a table"),
        ({"runs": [RUN], "model": {"experts": 4}}, "experts belongs to one run"),
        ({"runs": [RUN], "training": {"tokens": "1M"}}, "tokens belongs to one run"),
        ({"runs": [{"d_model": 64, "n_layers": 2, "n_heads": 2, "tokens": 9}], "model": {"n_heads": 1}}, "n_heads belongs to one run"),
        ({"runs": [{"d_model": 64, "n_layers": 2, "tokens": i} for i in range(1, 10_002)]}, "at most 10,000 are taken"),
    ],
)  # fmt: skip
def test_bad_lists_are_refused_with_the_reason(tables: dict[str, Any], what: str, tmp_path: Path) -> None:
    file = tmp_path / "sweep.toml"
    file.write_text(tomli_w.dumps({**listed(), **tables}))
    with pytest.raises(InputError) as error:
        read_sweep(file)
    assert what in str(error.value)
    assert "sweep.toml" in str(error.value)


# The table.


def row(name: str, loss: float, **more: Any) -> dict[str, Any]:
    fixed = {"n_experts": 1, "tokens": 10, "n_params_dense": 5.0, "diverged": False}
    return {"name": name, "settings_sha256": name, **fixed, "loss": loss, **more}


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
def test_rows_keep_every_digit_and_come_once(suffix: str, tmp_path: Path) -> None:
    table = tmp_path / f"runs{suffix}"
    third = 1 / 3
    assert add_rows(table, [row("a", third), row("b", 2.0)]) == 2
    first = table.read_text()
    assert add_rows(table, [row("a", third)]) == 0
    assert table.read_text() == first
    assert add_rows(table, [row("c", float("nan"), diverged=True, why='a "b",\tc'), row("a", 4.0)]) == 1
    lines = table.read_text().splitlines()
    assert len(lines) == 4
    assert lines[2].startswith(first.splitlines()[2])  # a row that was there keeps its text
    read = read_runs(table)
    assert read.loss.tolist() == [4.0, 2.0]
    assert any("1 run left out: column 'diverged' is true" in warning for warning in read.warnings)
    assert repr(third) in first


def test_several_processes_add_rows_at_once(tmp_path: Path) -> None:
    table = tmp_path / "runs.csv"
    code = (
        "import sys\nfrom moescale.experiments.run_table import add_rows\n"
        "for i in range(25):\n"
        "    add_rows(sys.argv[1], [{'name': f'{sys.argv[2]}-{i}', 'settings_sha256': 's', 'tokens': i, sys.argv[2]: 1}])"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, str(table), name]) for name in ("a", "b", "c")]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    names = [line.split(",")[0] for line in table.read_text().splitlines()[1:]]
    assert Counter(names) == Counter(f"{name}-{i}" for name in "abc" for i in range(25))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("name,loss\na,1\n", "has no column settings_sha256, tokens"),
        ("name,settings_sha256,tokens\na,b\n", "data row 1"),
    ],
)
def test_tables_of_others_are_left_alone(text: str, what: str, tmp_path: Path) -> None:
    table = tmp_path / "runs.csv"
    table.write_text(text)
    with pytest.raises(InputError, match=what):
        drive_stub(made(tmp_path))
    assert table.read_text() == text
    with pytest.raises(InputError, match=r"unknown suffix of a run table '\.json'"):
        add_rows(tmp_path / "runs.json", [row("a", 1.0)])


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"rows": []}', '{"rows": [1]}', '{"rows": [{"name": "a"}]}', "\udcff"]
)
def test_a_result_that_is_none_is_an_error(text: str, tmp_path: Path) -> None:
    assert read_result(tmp_path) is None
    (tmp_path / "result.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(InputError):
        read_result(tmp_path)


# Progress.


def test_the_last_whole_line_is_read(tmp_path: Path) -> None:
    file = tmp_path / "progress.jsonl"
    assert read_progress(tmp_path) is None
    file.write_text('{"step": 1, "steps": 4, "tokens": 10, "tokens_per_s": 5, "loss": 2.5}\n{"step": 2, "ste')
    found = read_progress(tmp_path)
    assert found == Progress(step=1, steps=4, tokens=10, tokens_per_s=5, loss=2.5)
    assert found.share == 0.25
    file.write_text('{"step": 3, "loss": NaN, "mfu": "", "steps": 0}\n[]\n7\nnull\n')
    assert read_progress(tmp_path) == Progress(step=3)
    assert read_progress(tmp_path, since=time.time() + 10) is None


def test_lines_come_with_every_change(tmp_path: Path) -> None:
    said: list[str] = []
    state = Status(total=3, done=1, failed=0, running={}, share=0.3, tokens_per_s=12_340.0, mfu=0.314)
    with watch_lines(said.append) as watch:
        for status in (state, state, replace(state, done=2, failed=1, mfu=None)):
            watch(status)
    assert said == [
        "1/3 runs done, 0 running, 12.3K tokens/s, MFU 31.4%",
        "2/3 runs done, 0 running, 1 failed, 12.3K tokens/s",
    ]


# Driving.


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The table that the sweep leaves when nothing happens."""
    sweep = made(tmp_path_factory.mktemp("undisturbed"))
    done = drive_stub(sweep, jobs=2)
    assert (done.runs, done.finished, done.found, done.left, done.failed) == (4, 4, 0, 0, ())
    assert starts(sweep) == dict.fromkeys((run.name for run in sweep.runs), 1)
    assert len(read_runs(sweep.table)) == 4
    return rows_of(sweep.table)


def test_finished_runs_are_not_trained_again(tmp_path: Path, undisturbed: list[str]) -> None:
    sweep = made(tmp_path)
    seen: list[Status] = []
    drive_stub(sweep, watch=seen.append)
    assert (seen[0].done, seen[-1].done, seen[-1].share, seen[-1].running) == (0, 4, 1.0, {})
    assert max(len(status.running) for status in seen) == 1
    before = starts(sweep)
    again = drive_stub(sweep)
    assert (again.finished, again.found) == (0, 4)
    sweep.table.unlink()
    assert drive_stub(sweep).found == 4
    assert starts(sweep) == before
    assert rows_of(sweep.table) == undisturbed
    # A larger grid trains what is new, and its rows join the table.
    larger = made(tmp_path, grid={**GRID, "experts": [1, 2, 4]})
    assert (drive_stub(larger).finished, len(read_runs(sweep.table))) == (2, 6)


def test_a_killed_worker_goes_on_from_its_checkpoint(tmp_path: Path, undisturbed: list[str]) -> None:
    sweep = made(tmp_path)
    victim = sweep.runs[1].name
    faults(sweep, **{victim: {"kill_at": 7, "child": True}})
    said: list[str] = []
    done = drive_stub(sweep, say=said.append)
    assert (done.finished, done.failed) == (4, ())
    assert f"{victim}: was killed by signal 9; starting it again from its checkpoint" in said
    assert starts(sweep)[victim] == 2
    assert rows_of(sweep.table) == undisturbed
    # Every step was made once, by one of the two.
    lines = (sweep.folder / victim / "progress.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(1, 21))
    # Nothing that a killed command had started in its group is left.
    child = int((sweep.folder / "child.txt").read_text())
    wait_for(lambda: not is_running(child))


def is_running(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def test_a_run_that_keeps_dying_is_listed_with_the_end_of_its_log(tmp_path: Path) -> None:
    sweep = made(tmp_path)
    first, second, third, _ = (run.name for run in sweep.runs)
    faults(sweep, **{first: {"kill_always": True}, second: {"code": 2}, third: {"code": 1}})
    done = drive_stub(sweep, retries=2)
    assert (done.finished, done.left) == (1, 0)
    found = {failure.name: failure for failure in done.failed}
    assert {name: (f.attempts, f.exit_code) for name, f in found.items()} == {
        first: (3, -9), second: (3, 2), third: (3, 1),
    }  # fmt: skip
    assert found[second].log_end.splitlines() == ["the stub ends as asked"] * 3
    assert len(read_runs(sweep.table)) == 1
    # What failed is tried again by the next call.
    faults(sweep)
    assert drive_stub(sweep).finished == 3


def test_diverged_runs_are_rows_that_fit_leaves_out(tmp_path: Path) -> None:
    sweep = made(tmp_path)
    faults(sweep, **{sweep.runs[0].name: {"diverge": True}})
    said: list[str] = []
    done = drive_stub(sweep, say=said.append)
    assert (done.finished, done.diverged) == (4, (sweep.runs[0].name,))
    assert f"{sweep.runs[0].name}: diverged (loss is not a number)" in said
    read = read_runs(sweep.table)
    assert len(read) == 3
    assert "1 run left out: column 'diverged' is true" in read.warnings[0]


def test_branches_of_a_trunk_are_marked(tmp_path: Path) -> None:
    sweep = made(
        tmp_path,
        grid={**GRID, "tokens": ["1M", "2M"]},
        training={"schedule": "wsd", "sequence_tokens": 64, "batch_tokens": 1024},
    )
    assert drive_stub(sweep, jobs=4).trunks == 4
    assert len(read_runs(sweep.table)) == 8


def driver_process(sweep: Sweep, *, jobs: int = 2) -> subprocess.Popen[str]:
    """Another process that drives the same sweep with the stub."""
    code = (
        "import sys, tomllib, json\n"
        "from pathlib import Path\n"
        "from moescale.experiments.sweeps.sweep import expand\n"
        "from moescale.experiments.sweeps.driver import Drive\n"
        "document = json.loads(sys.argv[1])\n"
        "command = lambda file: [sys.executable, sys.argv[2], str(file)]\n"
        "Drive(expand(document), command=command, poll_s=0.02, jobs=int(sys.argv[3])).run()"
    )
    stated = document(table=str(sweep.table), folder=str(sweep.folder))
    return subprocess.Popen(
        [sys.executable, "-c", code, json.dumps(stated), str(STUB), str(jobs)], stderr=subprocess.PIPE, text=True
    )


def reached(sweep: Sweep, step: int) -> bool:
    """Whether one run is finished and another has come so far."""
    progress = [read_progress(run.output) for run in sweep.runs if read_result(run.output) is None]
    finished = sum(read_result(run.output) is not None for run in sweep.runs)
    return finished >= 1 and any(p is not None and p.step >= step for p in progress)


def test_a_killed_driver_loses_nothing_and_does_nothing_twice(tmp_path: Path, undisturbed: list[str]) -> None:
    sweep = made(tmp_path)
    slow = {run.name: {"sleep_s": 0.05} for run in sweep.runs[1:]}
    faults(sweep, **slow)
    other = driver_process(sweep)
    wait_for(lambda: reached(sweep, 3))
    other.kill()
    other.communicate()
    running = [run.name for run in sweep.runs if is_held(run.lock)]
    assert running  # the workers live on, and hold their runs
    said: list[str] = []
    done = drive_stub(sweep, say=said.append)
    assert done.finished + done.found == 4
    assert any("another process trains it; waiting" in line for line in said)
    assert starts(sweep) == dict.fromkeys((run.name for run in sweep.runs), 1)
    assert rows_of(sweep.table) == undisturbed


def test_killing_driver_and_workers_loses_no_finished_run(tmp_path: Path, undisturbed: list[str]) -> None:
    sweep = made(tmp_path)
    faults(sweep, **{run.name: {"sleep_s": 0.05} for run in sweep.runs[1:]})
    other = driver_process(sweep)
    wait_for(lambda: reached(sweep, 3))
    finished = {run.name for run in sweep.runs if read_result(run.output)}
    other.kill()
    for line in (sweep.folder / "starts.txt").read_text().splitlines():
        pid = int(line.split()[1])
        if is_running(pid):
            os.kill(pid, signal.SIGKILL)
    other.communicate()
    faults(sweep)
    drive_stub(sweep)
    assert rows_of(sweep.table) == undisturbed
    assert all(starts(sweep)[name] == 1 for name in finished)
    assert max(starts(sweep).values()) == 2


def test_two_drivers_share_a_sweep(tmp_path: Path, undisturbed: list[str]) -> None:
    sweep = made(tmp_path)
    faults(sweep, every={"sleep_s": 0.02})
    drivers = [driver_process(sweep, jobs=1), driver_process(sweep, jobs=1)]
    assert [process.communicate()[1] for process in drivers] == ["", ""]
    assert starts(sweep) == dict.fromkeys((run.name for run in sweep.runs), 1)
    assert rows_of(sweep.table) == undisturbed


def test_an_interrupted_driver_stops_its_workers(tmp_path: Path, undisturbed: list[str]) -> None:
    sweep = made(tmp_path)
    faults(sweep, **{run.name: {"sleep_s": 5.0, "child": True} for run in sweep.runs[1:]})
    other = driver_process(sweep)
    wait_for(lambda: reached(sweep, 1))
    other.send_signal(signal.SIGINT)
    _, complaint = other.communicate()
    assert "KeyboardInterrupt" in complaint
    pids = [int(line.split()[1]) for line in (sweep.folder / "starts.txt").read_text().splitlines()]
    assert not any(is_running(pid) for pid in pids)
    assert not is_running(int((sweep.folder / "child.txt").read_text()))
    faults(sweep)
    assert drive_stub(sweep, jobs=2).found == 1
    assert rows_of(sweep.table) == undisturbed


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_a_run_is_being_started_leaves_nothing_behind(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = made(tmp_path)
    faults(sweep, every={"sleep_s": 5.0})
    started: list[int] = []
    start = Process.start

    def interrupted(command: Any, **options: Any) -> Process | None:
        process = start(command, **options)
        assert process is not None
        started.append(process.pid)
        signal.raise_signal(number)
        return process

    monkeypatch.setattr(Process, "start", interrupted)
    with pytest.raises((KeyboardInterrupt, Terminated)):
        drive_stub(sweep)
    assert len(started) == 1
    assert not is_running(started[0])
    assert not any(is_held(run.lock) for run in sweep.runs)


def test_the_limit_of_time_stops_runs_that_go_on_later(tmp_path: Path, undisturbed: list[str]) -> None:
    sweep = made(tmp_path)
    faults(sweep, every={"sleep_s": 5.0})
    done = drive_stub(sweep, seconds=1.0, jobs=2)
    assert (done.finished, done.left, done.failed) == (0, 4, ())
    assert not any(is_held(run.lock) for run in sweep.runs)
    faults(sweep)
    assert drive_stub(sweep, jobs=2).finished == 4
    assert rows_of(sweep.table) == undisturbed


def test_a_folder_with_another_run_is_refused(tmp_path: Path) -> None:
    drive_stub(made(tmp_path))
    other = made(tmp_path, training={"sequence_tokens": 64, "batch_tokens": 2048})
    with pytest.raises(InputError, match="holds a finished run of other settings"):
        drive_stub(other)


def test_a_sweep_without_the_libraries_that_train_is_refused_before_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("moescale.experiments.training.run.LIBRARIES", ("no_such_library",))
    (tmp_path / "sweep.toml").write_text(tomli_w.dumps(document()))
    code, out, err = run(capsys, "sweep.toml")
    assert (code, out) == (2, "")
    assert (
        err
        == "moescale: training needs no_such_library, which is not installed; pip install '.[train]' in a clone of moescale\n"
    )
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["sweep", "sweep.toml"]
    assert run(capsys, "sweep.toml", "--dry-run")[0] == 0
    drive_stub(know(read_sweep("sweep.toml")))
    assert run(capsys, "sweep.toml")[0] == 0  # nothing is left to train


def test_one_run_without_the_libraries_that_train_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("moescale.experiments.training.run.LIBRARIES", ("no_such_library",))
    file = tmp_path / "run.toml"
    file.write_text(tomli_w.dumps(expand(document()).runs[0].settings.to_dict()))
    with pytest.raises(SystemExit) as stop:
        main(["train", str(file)])
    assert stop.value.code == 2
    assert "pip install '.[train]'" in capsys.readouterr().err


@pytest.mark.parametrize("absent", ["fcntl", "killpg"])
def test_a_system_without_locks_or_groups_refuses_a_sweep_and_lists_it(
    absent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if absent == "fcntl":
        monkeypatch.setitem(sys.modules, "fcntl", None)
    else:
        monkeypatch.delattr(os, "killpg")
    sweep = made(tmp_path)
    with pytest.raises(InputError, match="a sweep needs file locks and process groups, which this system"):
        drive_stub(sweep)
    assert not sweep.folder.exists()
    assert len(dry_run(sweep).runs) == 4


def test_a_command_that_cannot_start_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere: cannot be started: No such file"):
        drive_stub(made(tmp_path), command=lambda _: ["nowhere"])
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot be made"):
        drive_stub(made(tmp_path / "file"))


# Time.


def test_the_estimate_stands_on_stated_or_measured_rates(tmp_path: Path) -> None:
    sweep = made(tmp_path)
    plan = dry_run(sweep)
    assert plan.seconds is None
    assert [outlook.state for outlook in plan.runs] == ["new"] * 4
    assert not sweep.folder.exists()
    assert "seconds" not in plan.to_dict()
    assert "seconds" not in plan.to_dict()["runs"][0]
    stated = dry_run(made(tmp_path, execute={"flops_per_s": 1e9, "jobs": 2}))
    times = [run.training_flops / 1e9 for run in sweep.runs]
    assert [outlook.seconds for outlook in stated.runs] == pytest.approx(times)
    # The two first start at once; each place takes the next when it is free.
    assert stated.seconds == pytest.approx(max(times[0] + times[2], times[1] + times[3]))

    first = made(tmp_path, grid={**GRID, "shapes": [[64, 2]], "experts": 1})
    drive_stub(first)
    (sweep.runs[1].output).mkdir()
    (sweep.runs[1].output / "progress.jsonl").write_text('{"step": 5, "steps": 20}\n')
    later = dry_run(sweep)
    assert later.rate_from == "the nearest of 1 finished run"
    rate = sweep.runs[0].training_flops / 10.0  # what the stub says
    assert [outlook.state for outlook in later.runs] == ["finished", "interrupted", "new", "new"]
    shares = [0.0, 0.75, 1.0, 1.0]
    assert [o.seconds for o in later.runs] == pytest.approx(
        [s * r.training_flops / rate for s, r in zip(shares, sweep.runs, strict=True)]
    )
    held = acquire(sweep.runs[2].lock)
    assert held is not None
    assert dry_run(sweep).runs[2].state == "running"
    os.close(held)


# Executing one command.


def test_a_command_whose_lock_is_held_is_not_started(tmp_path: Path) -> None:
    command, log, lock = [sys.executable, "-c", "print('ran')"], tmp_path / "log", tmp_path / "lock"
    held = acquire(lock)
    assert held is not None
    assert execute(command, str(log), str(lock)) == BUSY
    assert Local().start(command, log=log, lock=lock) is None
    assert not log.exists()
    os.close(held)
    assert execute(command, str(log), str(lock)) == 0
    assert execute([*command[:2], "raise SystemExit(7)"], str(log), str(lock)) == 7
    assert log.read_text() == "ran\n"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's end")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_command_ends_with_the_job_that_runs_it(number: signal.Signals, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    child = f"import os, time, pathlib; pathlib.Path({str(pid_file)!r}).write_text(str(os.getpid())); time.sleep(600)"
    code = f"import sys; from moescale.experiments.sweeps.executors import execute; execute([sys.executable, '-c', {child!r}], 'log', 'lock')"
    job = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, stderr=subprocess.DEVNULL)
    wait_for(lambda: pid_file.exists() and pid_file.read_text() != "")
    pid = int(pid_file.read_text())
    assert is_held(tmp_path / "lock")
    job.send_signal(number)
    job.wait()
    wait_for(lambda: not is_running(pid))
    assert not is_held(tmp_path / "lock")


# The command.


@pytest.fixture
def stubbed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder with a sweep.toml, and the stub in place of training."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(driver, "check_libraries", lambda: None)
    monkeypatch.setattr(driver, "train_command", lambda file, resume=True: stub_command(file))
    (tmp_path / "sweep.toml").write_text(tomli_w.dumps(document()))
    know(read_sweep("sweep.toml"))
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = 0
    try:
        main(["sweep", *arguments])
    except SystemExit as stop:
        code = int(stop.code or 0)
    out, err = capsys.readouterr()
    return code, out, err


def test_the_command_lists_trains_and_says_so(stubbed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "sweep.toml", "--dry-run", "--jobs", "2", "--max-time", "9m")
    assert (code, err) == (0, "")
    assert "e4-128x2-1m" in out
    assert "4 runs, 0 finished" in out
    assert "2 in parallel" in out
    assert not (stubbed / "sweep").exists()
    code, out, _ = run(capsys, "sweep.toml", "--dry-run", "--json")
    assert [len(json.loads(out)["runs"]), code] == [4, 0]
    code, out, err = run(capsys, "sweep.toml", "--jobs", "2")
    assert (code, out.splitlines()[0].partition(";")[0]) == (0, "runs.csv: 4 of 4 runs")
    assert "4/4 runs done" in err
    code, out, err = run(capsys, "sweep.toml", "--json")
    assert (code, json.loads(out)["found"], json.loads(out)["failed"]) == (0, 4, [])
    code, out, _ = run(capsys, "sweep.toml", "--dry-run")
    assert "4 runs, 4 finished" in out


def test_the_command_exits_with_1_where_runs_failed(stubbed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (stubbed / "sweep").mkdir()
    (stubbed / "sweep" / "stub.json").write_text('{"e1-64x2-1m": {"code": 2}}')
    code, out, err = run(capsys, "sweep.toml", "--json")
    assert code == 1
    assert json.loads(out)["failed"][0]["name"] == "e1-64x2-1m"
    assert "moescale: 1 of 4 runs failed: e1-64x2-1m" in err
    assert err.rstrip().endswith("the stub ends as asked")


@pytest.mark.usefixtures("stubbed")
def test_the_command_stops_in_time(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "sweep.toml", "--max-time", "1ms")
    assert code == 0
    assert "left to train: run the same command again" in out


def test_the_example_is_a_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    sweep = read_sweep("examples/sweep.toml")
    assert len({run.n_params_dense for run in sweep.runs}) >= 3
    assert {run.n_experts for run in sweep.runs} == {1, 2, 4, 8}
    assert len({run.tokens for run in sweep.runs}) >= 3


def test_the_sweep_for_a_gpu_is_one_too() -> None:
    script = load_script("benchmarks/gpu/sweep.py")
    sweep = expand(script.document(Path("x"), corpus=Path("x/corpus"), device="cuda", tiny=False))
    assert {run.n_experts for run in sweep.runs} == {1, 2, 4, 8, 16, 32}
    sizes = sorted({run.n_params_dense for run in sweep.runs})
    assert (len(sizes), 9e6 < sizes[0] < 11e6, 290e6 < sizes[-1] < 310e6) == (6, True, True)
    for run in sweep.runs:
        stated = run.settings.training
        assert 0.99e17 <= run.training_flops <= 1.01e19  # tokens are stated to three digits
        assert 7.9 <= run.tokens[0] / run.n_params_dense <= 801
        assert (run.settings.parallel.device, stated.dtype) == ("cuda", "bfloat16")
    # DeepSeek LLM, arXiv 2401.02954, equation 1, at both ends of its range: batches of 0.11M and 0.48M to a power of two.
    assert script.recipe(1e17) == {"batch_tokens": 131_072, "peak_lr": 0.00234}
    assert script.recipe(1e19) == {"batch_tokens": 524_288, "peak_lr": 0.00131}
    assert script.hours(3600 * 989e12, 1.0) == pytest.approx(1.0, rel=0.01)
    assert script.outlook(sweep, 0.25)[-1].startswith(f"{len(sweep.runs)} runs, ")
    tiny = expand(script.document(Path("x"), corpus=Path("x/corpus"), device="cpu", tiny=True))
    assert [run.n_experts for run in tiny.runs] == [1, 2]


def test_bars_on_a_terminal_come_and_go() -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=160)
    going = {"e4-64x2-1m": Progress(step=5, steps=20, loss=2.5)}
    state = Status(total=2, done=0, failed=0, running=going, share=0.1, tokens_per_s=5.0, mfu=None)
    with watch_live(console) as (watch, say):
        watch(state)
        say("e1-64x2-1m: loss [2.5]")
        watch(replace(state, running={"b": None}, done=1))
        watch(replace(state, running={}, done=2, share=1.0))
    shown = stream.getvalue()
    assert "e1-64x2-1m: loss [2.5]" in shown
    assert "2/2 runs done" in shown


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**20), 10**20), st.floats(), st.text(max_size=5),
    st.sampled_from(["paper", "wsd", "1M", "local", [[64, 2]], [], {}, {"n_params": 1}, [{}], [[1, 2], 3], [None], "a/b", "\0"]),
)  # fmt: skip
PLACED = (
    "table",
    "folder",
    "name",
    "seed",
    "grid",
    "runs",
    "data",
    "model",
    "training",
    "execute",
    "parallel",
    "tracking",
)
INNER = {
    "grid": ("n_params", "shapes", "experts", "tokens", "tokens_per_param", "seeds"),
    "execute": ("on", "jobs", "flops_per_s", "slurm", "ray"),
    "data": ("corpus", "sources", "tokenizer", "vocab_size"),
    "training": ("schedule", "batch_tokens", "tokens"),
    "model": ("head_dim", "top_k", "experts"),
}


@settings(max_examples=150)
@given(st.data())
def test_no_document_yields_a_traceback(data: st.DataObject) -> None:
    run = {"n_params": "1M", "tokens": "1M"}
    keys = ("n_params", "d_model", "n_layers", "head_dim", "experts", "tokens", "batch_tokens", "peak_lr", "seed", "x")
    stated = document()
    if data.draw(st.booleans()):
        stated = listed(run, {**run, data.draw(st.sampled_from(keys)): data.draw(VALUES)})
    for table in data.draw(st.lists(st.sampled_from(PLACED), min_size=1, max_size=2)):
        if table in INNER and data.draw(st.booleans()):
            inner = stated.get(table, {})
            if isinstance(inner, dict):
                stated[table] = {**inner, data.draw(st.sampled_from(INNER[table])): data.draw(VALUES)}
        else:
            stated[table] = data.draw(VALUES)
    with suppress(InputError):
        assert expand(stated).runs


@pytest.mark.parametrize(("on", "library"), [("slurm", "submitit"), ("ray", "ray")])
def test_a_cluster_needs_its_library(on: str, library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(InputError, match=rf"needs {library}.*\.\[cluster\]"):
        drive_stub(made(tmp_path, execute={"on": on}))


def test_a_number_beyond_all_floats_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "progress.jsonl").write_text(f'{{"step": 1}}\n{{"step": 1{"0" * 400}}}\n')
    assert read_progress(tmp_path) == Progress(step=1)


@pytest.mark.parametrize("content", ["", "[1]", "1.5", "null", "{", "[" * 5000, '"x"', "\0", '{"identity": []}'])
def test_a_folder_with_damaged_settings_holds_no_run(tmp_path: Path, content: str) -> None:
    path = tmp_path / "settings.json"
    path.write_text(content)
    with pytest.raises(InputError) as caught:
        settings_in(tmp_path)
    assert str(path) in str(caught.value)
    _check_same(tmp_path, {"settings_sha256": "ab", "corpus_sha256": "cd"})  # of a run that never began
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(InputError, match="other settings"):
        _check_same(tmp_path, {"settings_sha256": "ab", "corpus_sha256": "cd"})
