"""The command that imports tracked runs."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest

from moescale.cli import main
from moescale.runs.table import read_runs

CONFIG: dict[str, Any] = {"name": "tiny", "n_params_dense": 1000, "n_experts": 2, "mfu": ""}
ROW: dict[str, Any] = {**CONFIG, "tokens": 4096, "loss": 3.3000000000000003, "diverged": False}


def finished(folder: Path, row: dict[str, Any]) -> None:
    """What version 0.2 wrote of a run as transformers' Trainer would, the row under a key of its own."""
    folder.mkdir(parents=True)
    state = {"global_step": 10, "max_steps": 10, "num_input_tokens_seen": row["tokens"], "log_history": []}
    (folder / "trainer_state.json").write_text(json.dumps({**state, "config": CONFIG, "moescale": row}))


def run(*arguments: object) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    code: Any = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main([str(a) for a in arguments])
        except SystemExit as stop:
            code = stop.code or 0
    return code, out.getvalue(), err.getvalue()


def test_the_command_writes_a_table_that_fit_reads(tmp_path: Path) -> None:
    for name, tokens in (("a", 1000), ("b", 2000)):
        finished(tmp_path / name, {**ROW, "name": name, "tokens": tokens})
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
