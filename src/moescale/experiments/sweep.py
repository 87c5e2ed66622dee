"""Drive a sweep: start what is not finished, keep every row as soon as it is known, start again what died."""

from __future__ import annotations

import heapq
import json
import math
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, cast

import tomli_w

from moescale.errors import InputError
from moescale.experiments.jobs import BUSY, LOST, Jobs
from moescale.experiments.launches import read_log, write_launch
from moescale.experiments.run import add_rows, check_libraries, check_run_table, read_result
from moescale.experiments.sweep_file import PlannedRun, Sweep
from moescale.io.files import make_folder, write_atomically
from moescale.io.records import record
from moescale.io.signals import sigterm_interrupts, uninterrupted
from moescale.units import format_count

Say = Callable[[str], None]
Command = Callable[[Path], list[str]]
Row = dict[str, Any]

POLL_S = 0.5
LINE_EVERY_S = 30.0
TAIL_LINES, TAIL_BYTES = 15, 65_536
UNKNOWN = "set flops_per_s of [execute], or finish one run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A run that ended without a result, as often as it was tried."""

    name: str
    attempts: int
    exit_code: int
    log: str
    log_end: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """What driving a sweep came to."""

    table: str
    runs: int
    finished: int  # while this drove
    found: int  # finished before
    left: int  # neither finished nor failed: stopped by the limit of time
    failed: tuple[Failure, ...]
    diverged: tuple[str, ...]  # names; in the table, marked
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values."""
        return record(self)


def dry_run(sweep: Sweep, jobs: int | None = None) -> dict[str, Any]:
    """What a sweep would do and take, from what is there, as JSON-ready values; starts nothing.

    Times are FLOPs over `flops_per_s` of [execute], or over the median rate of the finished runs; where neither is known,
    `seconds` are absent.
    """
    results = {run.name: rows[0] for run in sweep.runs if (rows := result_of(run)) is not None}
    rates: list[float] = []
    for row in results.values():
        with suppress(KeyError, TypeError, ZeroDivisionError):
            rates.append(row["training_flops"] / row["seconds"])
    stated, count = sweep.execution.flops_per_s, _jobs(sweep, len(sweep.runs), jobs)
    rate = stated or (median(rates) if rates else None)
    outlooks: list[dict[str, Any]] = []
    free = [0.0] * count  # when each place has done what it was given: each run takes the first
    for run in sweep.runs:
        progress = read_progress(run.output)
        share = min(progress["step"] / progress["steps"], 1.0) if progress.get("steps") else 0.0
        state = "interrupted" if progress else "new"
        if run.name in results:
            state, share = "finished", 1.0
        outlook: dict[str, Any] = run.to_dict() | {"state": state, "share": share}
        if share == 1.0 or rate:
            outlook["seconds"] = (1 - share) * run.training_flops / (rate or 1.0)
            heapq.heappush(free, heapq.heappop(free) + outlook["seconds"])
        outlooks.append(outlook)
    finished = f"the median of {len(rates)} finished run{'s' * (len(rates) > 1)}"
    plan = {
        "table": str(sweep.table),
        "folder": str(sweep.folder),
        "engine": sweep.engine,
        "runs": outlooks,
        "jobs": count,
        "training_flops": sum(run.training_flops for run in sweep.runs),
        "rate_from": "flops_per_s of [execute]" if stated else finished if rates else UNKNOWN,
    }
    return plan | ({"seconds": max(free)} if all("seconds" in outlook for outlook in outlooks) else {})


def drive(
    sweep: Sweep,
    *,
    jobs: int | None = None,
    retries: int = 1,
    resume: bool = True,
    seconds: float | None = None,
    say: Say = lambda line: None,
    command: Command | None = None,
    poll_s: float = POLL_S,
) -> Swept:
    """Train every run that has no result, and add its rows to the table when it has ended.

    `jobs` are run at once. A run whose command ended without a result is started again, `retries` times, and goes on from
    its checkpoint; one that another driver has is waited for. After `seconds` all that run are stopped, to go on at the
    next call. Without `resume` a run that was interrupted starts anew. `command` makes another command of a run's RUN.toml.

    Ctrl-C and SIGTERM stop the runs and raise KeyboardInterrupt and signals.Terminated. Raises InputError where a folder
    holds another run, where table or place cannot be used, and where the libraries that train are missing.
    """
    start = time.monotonic()
    make_folder(sweep.table.parent)
    check_run_table(sweep.table)
    make_folder(sweep.folder)
    results = {run.name: rows for run in sweep.runs if (rows := result_of(run)) is not None}
    found, failed = len(results), dict[str, Failure]()
    add_rows(sweep.table, [row for rows in results.values() for row in rows])
    waiting = deque(run for run in sweep.runs if run.name not in results)
    attempts = Counter[str]()  # that have ended

    def command_of(run: PlannedRun) -> list[str]:
        file = run.beside("toml").absolute()
        if command is not None:
            return command(file)
        if sweep.engine != "moescale":
            return write_launch(run, sweep.engine, sweep.execution)
        return train_command(file, resume=resume or attempts[run.name] > 0)

    def collect(run: PlannedRun, *, ended: bool = False) -> bool:
        rows = result_of(run)
        if rows is None and ended and sweep.engine != "moescale" and (rows := read_log(run, sweep.engine)):
            make_folder(run.output)
            write_atomically(run.output / "result.json", json.dumps({"rows": rows}, indent=2))
        if rows is None:
            return False
        results[run.name] = rows
        add_rows(sweep.table, rows)
        for row in rows:
            say(f"{row['name']}: {_outcome(row)}")
        return True

    def ended(run: PlannedRun, code: int) -> None:
        if collect(run, ended=code in (0, BUSY)):
            return
        attempts[run.name] += code != BUSY
        how = "was lost" if code == LOST else f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        # Whatever the code: `train` returns that of bad input too where one of its processes was killed.
        if attempts[run.name] <= retries:
            say(f"{run.name}: {how}; starting it again from its checkpoint" if code != BUSY else f"{run.name}: is free")
            waiting.appendleft(run)
            return
        log = run.beside("log")
        end = "\n".join(_tail(log).decode("utf-8", "replace").splitlines()[-TAIL_LINES:])
        failed[run.name] = Failure(
            name=run.name, attempts=attempts[run.name], exit_code=code, log=str(log), log_end=end
        )
        say(f"{run.name}: {how} and failed; see {log}")

    if waiting:
        if command is None and sweep.engine == "moescale":
            check_libraries()  # else each run would find out for itself, and be started again
        for run in waiting:
            write_atomically(run.beside("toml"), tomli_w.dumps(run.settings.to_dict()))
        most = _jobs(sweep, len(waiting), jobs)
        place = Jobs(sweep.execution.on, sweep.execution.slurm, (sweep.folder / ".submitit").absolute(), most)
        active: list[tuple[PlannedRun, Any]] = []
        status, said_at = (-1, -1), 0.0
        with sigterm_interrupts():
            try:
                while waiting or active:
                    for run, job in list(active):
                        if (code := place.poll(job)) is not None:
                            active.remove((run, job))
                            ended(run, code)
                    while waiting and len(active) < most:
                        run = waiting.popleft()
                        if collect(run):  # another driver may have finished it
                            continue
                        line, log, lock = command_of(run), run.beside("log").absolute(), run.lock.absolute()
                        with uninterrupted():  # a run that is started and not known would be left behind
                            active.append((run, place.start(line, log, lock)))
                    if (now := (len(results), len(failed))) != status or time.monotonic() - said_at > LINE_EVERY_S:
                        status, said_at = now, time.monotonic()
                        say(_status(sweep, *now, [run for run, _ in active]))
                    if seconds is not None and time.monotonic() >= start + seconds:
                        break
                    if active:
                        time.sleep(poll_s)
            finally:
                place.end([job for _, job in active])
                for run, _ in active:  # what was just finishing is kept
                    collect(run)
    rows = [row for rows in results.values() for row in rows]
    return Swept(
        table=str(sweep.table), runs=len(sweep.runs), finished=len(results) - found, found=found,
        left=len(sweep.runs) - len(results) - len(failed), failed=tuple(failed.values()),
        diverged=tuple(str(row["name"]) for row in rows if row.get("diverged") is True), seconds=time.monotonic() - start,
    )  # fmt: skip


def _outcome(row: Row) -> str:
    if row.get("diverged") is True:
        return f"diverged ({row.get('diverged_why') or 'no reason given'})"
    loss = row.get("loss")
    return f"loss {loss:.4f}" if isinstance(loss, float) and math.isfinite(loss) else "no loss"


def _status(sweep: Sweep, finished: int, failed: int, active: list[PlannedRun]) -> str:
    rate = sum(read_progress(run.output).get("tokens_per_s", 0.0) for run in active)
    parts = [f"{finished}/{len(sweep.runs)} runs done", f"{len(active)} running"]
    parts += [f"{failed} failed"] * (failed > 0) + [f"{format_count(rate)} tokens/s"] * (rate > 0)
    return ", ".join(parts)


def train_command(run_file: Path, *, resume: bool = True) -> list[str]:
    """The command that trains one run here."""
    command = [sys.executable, "-m", "moescale", "train", str(run_file), "--json"]
    return command if resume else [*command, "--no-resume"]


def result_of(run: PlannedRun) -> list[Row] | None:
    """The rows of a finished run, or None; InputError where its folder holds another run."""
    rows = read_result(run.output)
    if rows is not None and any(row["settings_sha256"] != run.settings.sha256 for row in rows):
        step = "give the sweep another name or folder, or remove that one"
        raise InputError("holds a finished run of other settings", where=str(run.output), next_step=step)
    return rows


def read_progress(output: str | Path) -> Mapping[str, float]:
    """The finite numbers of the last whole line of the progress.jsonl in a run's folder; empty where there is none.

    Lines that are torn or hold something else are passed over: a run that was killed may leave one.
    """
    for line in reversed(_tail(Path(output) / "progress.jsonl").splitlines()):
        found: object = None
        with suppress(ValueError, RecursionError):
            found = json.loads(line)
        values = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
        known = {k: float(v) for k, v in values.items() if isinstance(v, int | float) and abs(v) < 1e300}
        if "step" in known:
            return known
    return {}


def _tail(file: Path) -> bytes:
    with suppress(OSError), file.open("rb") as stream:
        stream.seek(max(0, stream.seek(0, 2) - TAIL_BYTES))
        return stream.read()
    return b""


def _jobs(sweep: Sweep, runs: int, stated: int | None) -> int:
    return max(1, min(stated or sweep.execution.jobs or (1 if sweep.execution.on == "local" else runs), runs))
