"""Tracking without the trackers' libraries, and the command that reads back what it wrote."""

from __future__ import annotations

import contextlib
import io
import json
import math
from pathlib import Path
from typing import Any

import pytest

from moescale.cli import main
from moescale.errors import InputError
from moescale.experiments.training import tracking
from moescale.experiments.training.settings import TrackingSettings
from moescale.runs.importers import import_runs
from moescale.runs.table import read_runs

CONFIG: dict[str, Any] = {"name": "tiny", "n_params_dense": 1000, "n_experts": 2, "mfu": ""}
ROW: dict[str, Any] = {**CONFIG, "tokens": 4096, "loss": 3.3000000000000003, "diverged": False}


def begin(folder: Path) -> tracking.Tracker:
    return tracking.start(TrackingSettings(to=("trainer",)), "tiny", CONFIG, folder)


def run(*arguments: object) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    code: Any = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main([str(a) for a in arguments])
        except SystemExit as stop:
            code = stop.code or 0
    return code, out.getvalue(), err.getvalue()


def test_what_was_logged_after_the_checkpoint_is_void_once_the_run_goes_on_from_it(tmp_path: Path) -> None:
    first = begin(tmp_path)
    for step in range(1, 8):
        first.log(step, {"train/loss": 9.0, "train/lr": 0.1})
    first.close()
    second = begin(tmp_path)
    for step in range(5, 11):
        second.log(step, {"train/loss": 1.0})
    second.log(10, {"validation/loss": math.inf})
    second.finish(ROW)
    second.close()
    state = json.loads((tmp_path / "tracking" / "trainer_state.json").read_text())
    assert [entry["loss"] for entry in state["log_history"] if "loss" in entry] == [9.0] * 4 + [1.0] * 6
    assert (state["global_step"], state["max_steps"], state["num_input_tokens_seen"]) == (10, 10, 4096)
    row = {name: values.tolist()[0] for name, values in import_runs("trainer", tmp_path).columns.items()}
    assert {key: row.get(key) for key in ROW if key != "mfu"} == {key: v for key, v in ROW.items() if key != "mfu"}


def test_a_run_that_is_not_finished_is_no_row(tmp_path: Path) -> None:
    tracker = begin(tmp_path)
    tracker.log(1, {"train/loss": 3.0})
    tracker.close()
    with pytest.raises(InputError, match="not finished"):
        import_runs("trainer", tmp_path)


def test_a_tracker_that_fails_later_does_not_end_the_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tracker = begin(tmp_path)
    state = tmp_path / "tracking" / "trainer_state.json"
    state.unlink()
    state.mkdir()
    tracker.finish(ROW)
    tracker.close()
    assert capsys.readouterr().err.count("warning: trainer receives no more events") == 1


def test_no_tracker_leaves_nothing_behind(tmp_path: Path) -> None:
    tracker = tracking.start(TrackingSettings(), "tiny", CONFIG, tmp_path)
    tracker.log(1, {"train/loss": 3.0})
    tracker.finish(ROW)
    tracker.close()
    assert list(tmp_path.iterdir()) == []


def test_a_missing_library_is_told_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking.importlib.util, "find_spec", lambda name: None)
    settings = TrackingSettings(to=("trainer", "mlflow"))
    with pytest.raises(InputError, match=r"needs mlflow.*pip install '\.\[track\]'"):
        tracking.start(settings, "tiny", CONFIG, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_command_writes_a_table_that_fit_reads(tmp_path: Path) -> None:
    for name, tokens in (("a", 1000), ("b", 2000)):
        tracker = begin(tmp_path / name)
        tracker.finish({**ROW, "name": name, "tokens": tokens})
        tracker.close()
    table = tmp_path / "runs.csv"
    code, out, err = run("import", "trainer", tmp_path, "-o", table, "--json")
    answer = json.loads(out)
    assert (code, err, answer["n_runs"], answer["table"], answer["left_out"]) == (0, "", 2, str(table), [])
    assert read_runs(table).tokens.tolist() == [1000, 2000]
    code, out, _ = run("import", "trainer", tmp_path, "--where", "tokens > 1000")
    assert code == 0
    assert "1 of 2 runs" in out
    assert "excluded by --where" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("import", "trianer", "."), ("'trianer'", "nearest: trainer")),
        (("import", "trainer", "nowhere"), ("no such file or folder",)),
        (("import", "trainer", "examples/trainer", "-o", "runs.xls"), (".xls", "known: .csv")),
        (("import", "trainer", "examples/trainer", "--where", "tokns > 1"), ("--where", "'tokns'", "nearest: tokens")),
        (("import", "trainer", "examples/trainer", "--mapping", "no.toml"), ("no.toml", "no such file")),
    ],
)
def test_bad_input_is_one_message(
    arguments: tuple[str, ...], words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parents[1])
    code, out, err = run(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert [word for word in words if word not in err] == []
