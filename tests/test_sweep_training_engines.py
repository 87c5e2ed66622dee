"""Sweeps on submitit and Ray, as on this machine, and one of real models; `make test-engines` runs them."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from moescale.experiments.sweeps.driver import Drive, make_executor
from moescale.experiments.sweeps.executors import Executor
from moescale.experiments.sweeps.progress import read_progress
from moescale.experiments.sweeps.sweep import Sweep

from moescale.io.locks import is_held
from moescale.runs.table import read_runs
from test_sweep_training import drive_stub, faults, is_running, made, rows_of, starts, wait_for

pytestmark = pytest.mark.engine
PLACES = {
    "slurm": {"on": "slurm", "jobs": 2, "slurm": {"cluster": "local", "timeout_min": 5, "partition": "none"}},
    "ray": {"on": "ray", "jobs": 2},
}


@pytest.fixture(scope="module", params=["slurm", "ray"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Generator[tuple[str, Executor]]:
    """One executor for all tests: Ray takes seconds to start."""
    library = {"slurm": "submitit", "ray": "ray"}[request.param]
    pytest.importorskip(library, reason=f"needs {library}: pip install '.[cluster]'")
    executor = make_executor(made(tmp_path_factory.mktemp("place"), execute=PLACES[request.param]))
    yield request.param, executor
    executor.close()


def on(place: str, folder: Path) -> Sweep:
    return made(folder, execute=PLACES[place])


def test_the_table_is_that_of_this_machine(place: tuple[str, Executor], tmp_path: Path) -> None:
    name, executor = place
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    here, there = made(tmp_path / "here"), on(name, tmp_path / "there")
    drive_stub(here)
    victim = there.runs[0].name
    faults(there, **{victim: {"kill_at": 5, "child": True}})
    done = drive_stub(there, executor=executor)
    assert (done.finished, done.failed) == (4, ())
    assert rows_of(there.table) == rows_of(here.table)
    assert starts(there) == {run.name: 1 + (run.name == victim) for run in there.runs}
    assert not is_running(int((there.folder / "child.txt").read_text()))
    assert drive_stub(there, executor=executor).found == 4


def test_a_run_that_fails_is_listed_and_the_limit_of_time_stops_jobs(
    place: tuple[str, Executor], tmp_path: Path
) -> None:
    name, executor = place
    sweep = on(name, tmp_path)
    first, second = sweep.runs[0].name, sweep.runs[1].name
    faults(sweep, **{first: {"code": 7}, second: {"sleep_s": 60}})
    done = drive_stub(sweep, executor=executor, retries=0, seconds=12.0)
    assert [(failure.name, failure.exit_code) for failure in done.failed] == [(first, 7)]
    assert done.failed[0].log_end == "the stub ends as asked"
    assert done.left >= 1
    pids = [int(line.split()[1]) for line in (sweep.folder / "starts.txt").read_text().splitlines()]
    wait_for(lambda: not any(is_running(pid) for pid in pids))
    assert not any(is_held(run.lock) for run in sweep.runs)


def test_a_real_sweep_goes_on_to_the_same_losses(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs torch")
    pytest.importorskip("transformers", reason="needs transformers")
    pytest.importorskip("tokenizers", reason="needs tokenizers")
    from moescale.experiments.data.pack import pack

    text = tmp_path / "text"
    text.mkdir()
    for number in range(40):
        (text / f"{number}.txt").write_text(" ".join(str((number * 7919 + i * i) % 997) for i in range(2000)))
    pack([str(text / "*.txt")], str(tmp_path / "corpus"), vocab_size=300, validation=0.1)
    tables: dict[str, Any] = {
        "data": {"corpus": str(tmp_path / "corpus")},
        "model": {"head_dim": 16},
        "grid": {"shapes": [[32, 2]], "experts": [1, 4], "tokens": ["8K"]},
        "training": {"sequence_tokens": 64, "batch_tokens": 512, "micro_batch_tokens": 512, "validation_tokens": "2K",
                     "checkpoint_every_steps": 4},
    }  # fmt: skip
    undisturbed, disturbed = (made(folder, **tables) for folder in (tmp_path / "a", tmp_path / "b"))
    Drive(undisturbed, jobs=2).run()
    victim = disturbed.runs[1]
    killed: list[int] = []

    def kill_once(_: object) -> None:
        progress = read_progress(victim.output)
        if not killed and progress is not None and progress.step >= 5:
            killed.append(int((victim.output / "lock").read_text().split()[-1]))  # of the training process
            os.kill(killed[0], signal.SIGKILL)

    said: list[str] = []
    done = Drive(disturbed, watch=kill_once, say=said.append, poll_s=0.02).run()
    assert (done.finished, done.failed) == (2, ())
    assert f"{victim.name}: was killed by signal 9; starting it again from its checkpoint" in said
    columns = ("name", "tokens", "loss", "n_params_total")
    rows = [json.loads((run.output / "result.json").read_text())["rows"][0] for run in undisturbed.runs]
    again = [json.loads((run.output / "result.json").read_text())["rows"][0] for run in disturbed.runs]
    assert [[row[c] for c in columns] for row in rows] == [[row[c] for c in columns] for row in again]
    table = read_runs(undisturbed.table)
    assert sorted(table.experts) == [1.0, 4.0]
    assert sorted(table.n_params) == sorted(run.n_params_dense for run in undisturbed.runs)
