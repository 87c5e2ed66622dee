"""Drive a sweep: start what is not finished, keep every row as soon as it is known, start again what died."""

from __future__ import annotations

import heapq
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli_w

from moescale.errors import InputError
from moescale.experiments.run_table import add_rows, check_run_table, read_result
from moescale.experiments.sweeps.executors import (
    BUSY,
    GRACE_S,
    LOST,
    Executor,
    Job,
    Local,
    Ray,
    Submitit,
    check_system,
    train_command,
)
from moescale.experiments.sweeps.progress import Progress, Status, read_progress
from moescale.experiments.sweeps.sweep import Execution, PlannedRun, Sweep
from moescale.experiments.training.run import check_libraries
from moescale.io.files import make_folder, write_atomically
from moescale.io.locks import is_held
from moescale.io.records import record
from moescale.io.signals import sigterm_interrupts, uninterrupted

Say = Callable[[str], None]
Watch = Callable[[Status], None]
Command = Callable[[Path], list[str]]
Row = Mapping[str, Any]

POLL_S = 0.5
HELD_S = 1.0  # between two looks at a run that another process has
TAIL_LINES = 15
TAIL_BYTES = 16_384

FINISHED, INTERRUPTED, RUNNING, NEW = "finished", "interrupted", "running", "new"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What a run would take."""

    run: PlannedRun
    state: str  # finished, interrupted, running or new
    share: float  # done
    seconds: float | None  # still to go; None where no rate is known

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values; without seconds where they are not known."""
        return self.run.to_dict() | record(self, without=("run",))


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """A sweep before it is executed."""

    sweep: Sweep
    runs: tuple[Outlook, ...]
    jobs: int
    training_flops: float  # of all runs
    seconds: float | None  # until the last has ended, with so many at once
    rate_from: str  # what the estimate of time stands on

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values; without seconds where they are not known."""
        places = {"table": str(self.sweep.table), "folder": str(self.sweep.folder)}
        return places | record(self, without=("sweep",))


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A run that ended without a result, as often as it was tried."""

    name: str
    attempts: int
    exit_code: int
    log: str
    log_end: str

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values."""
        return record(self)


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
    trunks: int  # that several rows of the table share
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values."""
        return record(self)


def dry_run(sweep: Sweep) -> DryRun:
    """What a sweep would do and take, from what is there; starts nothing.

    Times are FLOPs over `flops_per_s` of [execute], or over the rate of the finished run nearest in size and experts.
    """
    results = _results(sweep)
    rates = _Rates(sweep, results)
    outlooks = [_outlook(run, run.name in results, rates) for run in sweep.runs]
    jobs = _jobs(sweep.execution, len(sweep.runs))
    times = [outlook.seconds for outlook in outlooks]
    known = [seconds for seconds in times if seconds is not None]
    return DryRun(
        sweep=sweep,
        runs=tuple(outlooks),
        jobs=jobs,
        training_flops=sum(run.training_flops for run in sweep.runs),
        seconds=_makespan(known, jobs) if len(known) == len(times) else None,
        rate_from=rates.source,
    )


def _silent(_: str) -> None:
    pass


def _unwatched(_: Status) -> None:
    pass


class _Attempt:
    def __init__(self, run: PlannedRun, job: Job) -> None:
        self.run, self.job = run, job
        self.started = time.time()

    def progress(self) -> Progress | None:
        return read_progress(self.run.output, since=self.started)


@dataclass(slots=True, kw_only=True)
class Drive:
    """One call that drives a sweep: trains every run that has no result, and adds its rows to the table when it has ended.

    `jobs` are run at once. A run whose command ended without a result is started again, `retries` times, and goes on from
    its checkpoint; one that another driver has is waited for. After `seconds` all that run are stopped, to go on at the
    next call. Without `resume` a run that was interrupted starts anew. `executor` and `command` take the place of what
    [execute] names and of `moescale train`.
    """

    sweep: Sweep = field(kw_only=False)
    executor: Executor | None = None
    command: Command | None = None
    jobs: int | None = None
    retries: int = 1
    resume: bool = True
    seconds: float | None = None
    say: Say = _silent
    watch: Watch = _unwatched
    poll_s: float = POLL_S
    # As it goes.
    results: dict[str, list[dict[str, Any]]] = field(init=False, default_factory=dict[str, list[dict[str, Any]]])
    waiting: deque[PlannedRun] = field(init=False, default_factory=deque[PlannedRun])
    held: dict[str, tuple[PlannedRun, float]] = field(init=False, default_factory=dict[str, tuple[PlannedRun, float]])
    active: list[_Attempt] = field(init=False, default_factory=list[_Attempt])
    attempts: Counter[str] = field(init=False, default_factory=Counter[str])
    failed: dict[str, Failure] = field(init=False, default_factory=dict[str, Failure])

    def run(self) -> Swept:
        """Drive it to its end.

        Ctrl-C and SIGTERM stop the runs and raise KeyboardInterrupt and signals.Terminated. Raises InputError where a folder
        holds another run, where table or place cannot be used, where the libraries that train are missing, and on Windows.
        """
        start, sweep = time.monotonic(), self.sweep
        if not self.resume and self.command is not None:
            raise InputError("resume=False goes with moescale's own command")
        self._prepare()
        found = len(self.results)
        if self.waiting:
            place = self.executor or make_executor(sweep)
            try:
                with sigterm_interrupts():
                    self._loop(place, None if self.seconds is None else start + self.seconds)
            finally:
                if self.executor is None:
                    place.close()
        rows = [row for rows in self.results.values() for row in rows]
        trunks = Counter(str(row.get("trunk", "")) for row in rows)
        return Swept(
            table=str(sweep.table),
            runs=len(sweep.runs),
            finished=len(self.results) - found,
            found=found,
            left=len(sweep.runs) - len(self.results) - len(self.failed),
            failed=tuple(self.failed.values()),
            diverged=tuple(str(row["name"]) for row in rows if row.get("diverged") is True),
            trunks=sum(count > 1 for count in trunks.values()),
            seconds=time.monotonic() - start,
        )

    def _prepare(self) -> None:
        """Take up what is finished, and write the RUN.toml of what is not."""
        check_system()
        check_run_table(_made(self.sweep.table))
        _made(self.sweep.folder / "x")
        self.results = _results(self.sweep)
        add_rows(self.sweep.table, [row for rows in self.results.values() for row in rows])
        self.waiting.extend(run for run in self.sweep.runs if run.name not in self.results)
        if self.waiting and self.command is None:  # else each run would find out for itself, and be started again
            check_libraries()
        for run in self.waiting:
            write_atomically(run.run_file, tomli_w.dumps(run.settings.to_dict()), follow_links=False)

    def _loop(self, place: Executor, limit: float | None) -> None:
        jobs = _jobs(self.sweep.execution, len(self.waiting), self.jobs)
        try:
            while self.waiting or self.held or self.active:
                for attempt in list(self.active):
                    code = attempt.job.poll()
                    if code is not None:
                        self.active.remove(attempt)
                        self._ended(attempt, code)
                self._look_again()
                while self.waiting and len(self.active) < jobs:
                    self._begin(self.waiting.popleft(), place)
                self.watch(self._status())
                if limit is not None and time.monotonic() >= limit:
                    break
                if self.waiting or self.held or self.active:
                    time.sleep(self.poll_s)
        finally:
            self._stop()
        self.watch(self._status())

    def _begin(self, run: PlannedRun, place: Executor) -> None:
        if is_held(run.lock):
            self._hold(run)
            return
        if self._collect(run):  # another driver may have finished it
            return
        anew = not self.resume and not self.attempts[run.name]
        file, log, lock = (path.absolute() for path in (run.run_file, run.log, run.lock))
        command = self.command(file) if self.command is not None else train_command(file, resume=not anew)
        with uninterrupted():  # a run that is started and not known would be left behind
            job = place.start(command, log=log, lock=lock)
            if job is not None:
                self.active.append(_Attempt(run, job))
        if job is None:
            self._hold(run)
        else:
            self.attempts[run.name] += 1

    def _hold(self, run: PlannedRun) -> None:
        if run.name not in self.held:
            self.say(f"{run.name}: another process trains it; waiting")
        self.held[run.name] = (run, time.monotonic() + HELD_S)

    def _look_again(self) -> None:
        for name, (run, when) in list(self.held.items()):
            if time.monotonic() < when:
                continue
            if is_held(run.lock):
                self.held[name] = (run, time.monotonic() + HELD_S)
                continue
            del self.held[name]
            if not self._collect(run):
                self.waiting.appendleft(run)

    def _collect(self, run: PlannedRun) -> bool:
        rows = result_of(run)
        if rows is None:
            return False
        self.results[run.name] = rows
        add_rows(self.sweep.table, rows)
        for row in rows:
            loss = row.get("loss")
            told = f"loss {loss:.4f}" if isinstance(loss, float) and math.isfinite(loss) else "no loss"
            if row.get("diverged") is True:
                told = f"diverged ({row.get('diverged_why') or 'no reason given'})"
            self.say(f"{row['name']}: {told}")
        return True

    def _ended(self, attempt: _Attempt, code: int) -> None:
        run = attempt.run
        if code == BUSY:
            self.attempts[run.name] -= 1
            self._hold(run)
            return
        if self._collect(run):
            return
        tried = self.attempts[run.name]
        how = "was lost" if code == LOST else f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        # Whatever the code: `train` returns that of bad input too where one of its processes was killed.
        if tried <= self.retries:
            self.say(f"{run.name}: {how}; starting it again from its checkpoint")
            self.waiting.appendleft(run)
            return
        self.failed[run.name] = Failure(
            name=run.name, attempts=tried, exit_code=code, log=str(run.log), log_end=_end_of(run.log)
        )
        self.say(f"{run.name}: {how} and failed; see {run.log}")

    def _stop(self) -> None:
        """Ask all that run to end, and end those that have not within the grace."""
        for attempt in self.active:
            attempt.job.terminate()
        end = time.monotonic() + GRACE_S
        try:
            while any(attempt.job.poll() is None for attempt in self.active) and time.monotonic() < end:
                time.sleep(0.05)
        finally:
            for attempt in self.active:
                if attempt.job.poll() is None:
                    attempt.job.kill()
        # What was just finishing is kept.
        self.active = [attempt for attempt in self.active if not self._collect(attempt.run)]

    def _status(self) -> Status:
        going = {attempt.run.name: attempt.progress() for attempt in self.active}
        known = [progress for progress in going.values() if progress is not None]
        shares = {name: progress.share for name, progress in going.items() if progress is not None}
        shares.update(dict.fromkeys(self.results, 1.0))
        mfus = [progress.mfu for progress in known if progress.mfu is not None]
        whole = sum(run.training_flops for run in self.sweep.runs)
        return Status(
            total=len(self.sweep.runs),
            done=len(self.results),
            failed=len(self.failed),
            running=going,
            share=sum(shares.get(run.name, 0.0) * run.training_flops for run in self.sweep.runs) / whole,
            tokens_per_s=sum(progress.tokens_per_s for progress in known),
            mfu=sum(mfus) / len(mfus) if mfus else None,
        )


def make_executor(sweep: Sweep) -> Executor:
    """The place that [execute] names."""
    if sweep.execution.on == "slurm":
        return Submitit(sweep.execution.slurm, (sweep.folder / ".submitit").absolute())
    if sweep.execution.on == "ray":
        return Ray(sweep.execution.ray)
    return Local()


def result_of(run: PlannedRun) -> list[dict[str, Any]] | None:
    """The rows of a finished run, or None; InputError where its folder holds another run."""
    rows = read_result(run.output)
    if rows is not None and any(row["settings_sha256"] != run.settings.sha256 for row in rows):
        raise InputError(
            "holds a finished run of other settings",
            where=str(run.output),
            next_step="give the sweep another name or folder, or remove that one",
        )
    return rows


def _results(sweep: Sweep) -> dict[str, list[dict[str, Any]]]:
    """The rows of the runs that are finished, by name."""
    return {run.name: rows for run in sweep.runs if (rows := result_of(run)) is not None}


class _Rates:
    """FLOP/s of a run: as stated, or measured on the finished run that is nearest in active size and experts."""

    def __init__(self, sweep: Sweep, results: Mapping[str, Sequence[Row]]) -> None:
        self._stated = sweep.execution.flops_per_s
        self._measured: list[tuple[float, float, float]] = []
        for run in sweep.runs:
            seconds = sum(_positive(row.get("seconds")) for row in results.get(run.name, ()))
            flops = sum(_positive(row.get("training_flops")) for row in results.get(run.name, ()))
            if seconds and flops:
                self._measured.append((math.log(run.n_params_active), math.log(run.n_experts), flops / seconds))
        if self._stated is not None:
            self.source = "flops_per_s of [execute]"
        elif self._measured:
            n = len(self._measured)
            self.source = f"the nearest of {n} finished run{'s' if n > 1 else ''}"
        else:
            self.source = "set flops_per_s of [execute], or finish one run"

    def flops_per_s(self, run: PlannedRun) -> float | None:
        if self._stated is not None:
            return self._stated
        if not self._measured:
            return None
        size, experts = math.log(run.n_params_active), math.log(run.n_experts)
        return min(self._measured, key=lambda m: (m[0] - size) ** 2 + (m[1] - experts) ** 2)[2]


def _positive(value: object) -> float:
    return float(value) if isinstance(value, int | float) and 0 < value < math.inf else 0.0


def _outlook(run: PlannedRun, finished: bool, rates: _Rates) -> Outlook:
    if finished:
        return Outlook(run=run, state=FINISHED, share=1.0, seconds=0.0)
    progress = read_progress(run.output)
    state = RUNNING if is_held(run.lock) else INTERRUPTED if progress else NEW
    share = progress.share if progress else 0.0
    rate = rates.flops_per_s(run)
    return Outlook(
        run=run, state=state, share=share, seconds=None if rate is None else (1 - share) * run.training_flops / rate
    )


def _makespan(seconds: Sequence[float], jobs: int) -> float:
    """When the last ends, where each starts, in this order, as soon as one of `jobs` places is free."""
    places = [0.0] * min(jobs, max(1, len(seconds)))
    for duration in seconds:
        heapq.heappush(places, heapq.heappop(places) + duration)
    return max(places)


def _jobs(execution: Execution, runs: int, asked: int | None = None) -> int:
    stated = asked or execution.jobs or (1 if execution.on == "local" else runs)
    return max(1, min(stated, runs))


def _made(path: Path) -> Path:
    """The path, its folder made."""
    make_folder(path.parent)
    return path


def _end_of(log: Path) -> str:
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, stream.seek(0, 2) - TAIL_BYTES))
            lines = stream.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    return "\n".join(lines[-TAIL_LINES:])
