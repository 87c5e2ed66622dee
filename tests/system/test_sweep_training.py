"""Driving a sweep loses nothing and does nothing twice, whoever is killed; its jobs are submitit's, its training a stub."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from filelock import FileLock

from command_line import run
from moescale.errors import InputError
from moescale.experiments import sweep as driver
from moescale.experiments.jobs import BUSY, LOST, Jobs, execute
from moescale.experiments.run import read_result
from moescale.experiments.sweep import Swept, drive, dry_run
from moescale.experiments.sweep_file import Sweep, expand, read_sweep
from moescale.runs.table import read_runs
from processes import lives, until
from reference_data import TESTS
from stub_training import GRID, document, know, made, step_of
from stub_training import command as stub_command

pytest.importorskip("submitit", reason="needs submitit: pip install '.[train]'")

STUB = TESTS / "stub_training.py"


def drive_stub(sweep: Sweep, **options: Any) -> Swept:
    return drive(sweep, **{"command": stub_command, "poll_s": 0.02, "jobs": 4, **options})


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


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The table that the sweep leaves when nothing happens."""
    sweep = made(tmp_path_factory.mktemp("undisturbed"))
    done = drive_stub(sweep)
    assert (done.runs, done.finished, done.found, done.left, done.failed) == (4, 4, 0, 0, ())
    assert starts(sweep) == dict.fromkeys((run.name for run in sweep.runs), 1)
    assert len(read_runs(sweep.table)) == 4
    before = starts(sweep)
    sweep.table.unlink()
    assert drive_stub(sweep).found == 4  # the table comes back from the results, and nothing is trained again
    assert starts(sweep) == before
    with pytest.raises(InputError, match="holds a finished run of other settings"):
        drive_stub(made(sweep.folder.parent, training={"sequence_tokens": 64, "batch_tokens": 2048}))
    return rows_of(sweep.table)


def test_runs_that_die_go_on_or_are_listed_with_the_end_of_their_log(tmp_path: Path) -> None:
    sweep = made(tmp_path)
    first, second, third, fourth = (run.name for run in sweep.runs)
    faults(sweep, **{first: {"kill_at": 7, "child": True}, second: {"code": 2}, third: {"diverge": True}})
    said: list[str] = []
    done = drive_stub(sweep, say=said.append)
    assert (done.finished, done.left, done.diverged) == (3, 0, (third,))
    assert f"{first}: was killed by signal 9; starting it again from its checkpoint" in said
    assert starts(sweep) == {first: 2, second: 2, third: 1, fourth: 1}
    # Every step was made once, by one of the two.
    lines = (sweep.folder / first / "progress.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(1, 21))
    # Nothing that a killed command had started in its group is left.
    child = int((sweep.folder / "child.txt").read_text())
    until(lambda: not lives(child))
    (failure,) = done.failed
    assert (failure.name, failure.attempts, failure.exit_code) == (second, 2, 2)
    assert failure.log_end.splitlines() == ["the stub ends as asked"] * 2
    read = read_runs(sweep.table)
    assert len(read) == 2
    assert "1 run left out: column 'diverged' is true" in read.warnings[0]
    # What failed is tried again by the next call.
    faults(sweep)
    assert drive_stub(sweep).finished == 1


def driver_process(sweep: Sweep, *, jobs: int = 2) -> subprocess.Popen[str]:
    """Another process that drives the same sweep with the stub."""
    code = (
        "import json, sys\n"
        "from moescale.experiments.sweep_file import expand\n"
        "from moescale.experiments.sweep import drive\n"
        "command = lambda file: [sys.executable, sys.argv[2], str(file)]\n"
        "drive(expand(json.loads(sys.argv[1])), command=command, poll_s=0.02, jobs=int(sys.argv[3]))"
    )
    stated = document(table=str(sweep.table), folder=str(sweep.folder))
    command = [sys.executable, "-c", code, json.dumps(stated), str(STUB), str(jobs)]
    sweep.folder.mkdir(exist_ok=True)
    with (sweep.folder / "driver.txt").open("a") as errors:  # not a pipe, which would be open as long as a job lives
        return subprocess.Popen(command, stderr=errors, text=True)


def reached(sweep: Sweep, step: int) -> bool:
    """Whether one run is finished and another has come so far."""
    finished = {run.name for run in sweep.runs if read_result(run.output) is not None}  # first: another must still run
    others = (run.output for run in sweep.runs if run.name not in finished)
    return bool(finished) and any(step_of(output) >= step for output in others)


def test_a_killed_driver_ends_its_runs_and_the_next_goes_on(tmp_path: Path, undisturbed: list[str]) -> None:
    sweep = made(tmp_path)
    faults(sweep, **{run.name: {"sleep_s": 0.2} for run in sweep.runs[1:]})
    other = driver_process(sweep)
    until(lambda: reached(sweep, 3))
    finished = {run.name for run in sweep.runs if read_result(run.output)}
    other.kill()
    other.communicate()
    pids = [int(line.split()[1]) for line in (sweep.folder / "starts.txt").read_text().splitlines()]
    until(lambda: not any(lives(pid) for pid in pids))
    faults(sweep)
    done = drive_stub(sweep)
    assert done.finished + done.found == 4
    assert rows_of(sweep.table) == undisturbed
    assert all(starts(sweep)[name] == 1 for name in finished)
    assert max(starts(sweep).values()) == 2


def assert_every_step_was_made_once(sweep: Sweep) -> None:
    for each in sweep.runs:
        lines = (each.output / "progress.jsonl").read_text().splitlines()
        assert [json.loads(line)["step"] for line in lines] == list(range(1, 21))


def test_two_drivers_share_a_sweep(tmp_path: Path, undisturbed: list[str]) -> None:
    sweep = made(tmp_path)
    faults(sweep, every={"sleep_s": 0.02})
    drivers = [driver_process(sweep, jobs=1), driver_process(sweep, jobs=1)]
    assert [process.wait() for process in drivers] == [0, 0]
    assert_every_step_was_made_once(sweep)  # a job that finds its run finished starts nothing anew
    assert rows_of(sweep.table) == undisturbed


def test_an_interrupted_driver_stops_its_workers(tmp_path: Path, undisturbed: list[str]) -> None:
    sweep = made(tmp_path)
    faults(sweep, **{run.name: {"sleep_s": 5.0, "child": True} for run in sweep.runs[1:]})
    other = driver_process(sweep)
    until(lambda: reached(sweep, 1))
    other.send_signal(signal.SIGINT)
    other.communicate()
    assert "KeyboardInterrupt" in (sweep.folder / "driver.txt").read_text()
    pids = [int(line.split()[1]) for line in (sweep.folder / "starts.txt").read_text().splitlines()]
    assert not any(lives(pid) for pid in pids)
    assert not lives(int((sweep.folder / "child.txt").read_text()))
    faults(sweep)
    assert drive_stub(sweep).found == 1
    assert rows_of(sweep.table) == undisturbed


def test_the_limit_of_time_stops_runs_that_go_on_later(tmp_path: Path, undisturbed: list[str]) -> None:
    sweep = made(tmp_path)
    faults(sweep, every={"sleep_s": 5.0})
    done = drive_stub(sweep, seconds=1.0)
    assert (done.finished, done.left, done.failed) == (0, 4, ())
    assert not any(run.lock.exists() for run in sweep.runs)
    faults(sweep)
    assert drive_stub(sweep).finished == 4
    assert rows_of(sweep.table) == undisturbed


def test_a_sweep_without_the_libraries_that_train_is_refused_before_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("moescale.experiments.run.LIBRARIES", ("no_such_library",))
    (tmp_path / "sweep.toml").write_text(tomli_w.dumps(document()))
    code, out, err = run("sweep", "sweep.toml")
    assert (code, out) == (2, "")
    assert (
        err
        == "moescale: training needs no_such_library, which is not installed; pip install '.[train]' in a clone of moescale\n"
    )
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["sweep", "sweep.toml"]
    assert run("sweep", "sweep.toml", "--dry-run")[0] == 0
    (tmp_path / "run.toml").write_text(tomli_w.dumps(expand(document()).runs[0].settings.to_dict()))
    refused = run("train", "run.toml")
    assert (refused.code, "pip install '.[train]'" in refused.err) == (2, True)
    drive_stub(know(read_sweep("sweep.toml")))
    assert run("sweep", "sweep.toml")[0] == 0  # nothing is left to train


@pytest.mark.filterwarnings("default")
def test_a_sweep_on_a_cluster_leaves_the_same_table(tmp_path: Path, undisturbed: list[str]) -> None:
    # submitit's own stand-in of a cluster, in place of Slurm
    sweep = made(tmp_path, execute={"on": "slurm", "slurm": {"cluster": "local", "timeout_min": 5}})
    faults(sweep, **{sweep.runs[0].name: {"kill_at": 7}})
    assert drive_stub(sweep).finished == 4
    assert rows_of(sweep.table) == undisturbed
    with pytest.raises(InputError, match="rejected by submitit"):
        drive_stub(made(tmp_path / "b", execute={"on": "slurm", "slurm": {"cluster": "local", "no_such": 5}}))


def test_a_dry_run_says_what_is_left(tmp_path: Path) -> None:
    sweep = made(tmp_path)
    plan = dry_run(sweep)
    assert [outlook["state"] for outlook in plan["runs"]] == ["new"] * 4
    assert not sweep.folder.exists()
    first = made(tmp_path, grid={**GRID, "shapes": [[64, 2]], "experts": 1})
    drive_stub(first)
    (sweep.runs[1].output).mkdir()
    (sweep.runs[1].output / "progress.jsonl").write_text('{"step": 5, "steps": 20}\n')
    later = dry_run(sweep)
    assert [outlook["state"] for outlook in later["runs"]] == ["finished", "interrupted", "new", "new"]


def test_a_command_waits_for_the_lock_of_its_run_and_says_that_another_had_it(tmp_path: Path) -> None:
    log, lock = (str(tmp_path / name) for name in ("log", "lock"))
    command = [sys.executable, "-c", "print('ran')"]
    place = Jobs("local", {}, tmp_path, 2)
    with FileLock(lock):
        job = place.start(command, Path(log), Path(lock))
        time.sleep(0.2)
        assert place.poll(job) is None
    until(lambda: place.poll(job) is not None)
    assert place.poll(job) == BUSY
    assert execute(command, log, lock) == 0
    assert execute([*command[:2], "raise SystemExit(7)"], log, lock) == 7
    assert Path(log).read_text() == "ran\n"
    held = FileLock(lock)
    with held:
        job = place.start(command, Path(log), Path(lock))
        place.end([job])
        assert place.poll(job) == LOST


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's end")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_command_ends_with_the_job_that_runs_it(number: signal.Signals, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    child = f"import os, time, pathlib; pathlib.Path({str(pid_file)!r}).write_text(str(os.getpid())); time.sleep(600)"
    code = f"import sys; from moescale.experiments.jobs import execute; execute([sys.executable, '-c', {child!r}], 'log', 'lock')"
    job = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, stderr=subprocess.DEVNULL)
    until(lambda: pid_file.exists() and pid_file.read_text() != "")
    pid = int(pid_file.read_text())
    job.send_signal(number)
    job.wait()
    until(lambda: not lives(pid))
    with FileLock(tmp_path / "lock", timeout=0):
        pass


@pytest.fixture
def stubbed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder with a sweep.toml, and the stub in place of training."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(driver, "check_libraries", lambda: None)
    monkeypatch.setattr(driver, "train_command", lambda file, resume=True: stub_command(file))
    (tmp_path / "sweep.toml").write_text(tomli_w.dumps(document()))
    know(read_sweep("sweep.toml"))
    return tmp_path


def test_the_command_lists_trains_and_says_so(stubbed: Path) -> None:
    code, out, err = run("sweep", "sweep.toml", "--dry-run", "--jobs", "2", "--max-time", "9m")
    assert (code, err) == (0, "")
    assert "e4-128x2-1m" in out
    assert "4 runs, 0 finished" in out
    assert "2 in parallel" in out
    assert not (stubbed / "sweep").exists()
    code, out, _ = run("sweep", "sweep.toml", "--max-time", "1ms")
    assert (code, "left to train: run the same command again" in out) == (0, True)
    code, out, _ = run("sweep", "sweep.toml", "--dry-run", "--json")
    assert [len(json.loads(out)["runs"]), code] == [4, 0]
    code, out, err = run("sweep", "sweep.toml", "--jobs", "2")
    assert (code, out.splitlines()[0].partition(";")[0]) == (0, "runs.csv: 4 of 4 runs")
    assert "4/4 runs done" in err
    code, out, err = run("sweep", "sweep.toml", "--json")
    assert (code, json.loads(out)["found"], json.loads(out)["failed"]) == (0, 4, [])
    code, out, _ = run("sweep", "sweep.toml", "--dry-run")
    assert "4 runs, 4 finished" in out


def test_the_command_exits_with_1_where_runs_failed(stubbed: Path) -> None:
    (stubbed / "sweep").mkdir()
    (stubbed / "sweep" / "stub.json").write_text('{"e1-64x2-1m": {"code": 2}}')
    code, out, err = run("sweep", "sweep.toml", "--json")
    assert code == 1
    assert json.loads(out)["failed"][0]["name"] == "e1-64x2-1m"
    assert "moescale: 1 of 4 runs failed: e1-64x2-1m" in err
    assert err.rstrip().endswith("the stub ends as asked")
