"""One grid, one engine, one table: measure what the table lacks, and keep every row as soon as it is known.

The grid is visited in rounds, each with fresh engines: repeats in one stretch agree with each other far better than with
the same measurement minutes later or in another process (Kalibera and Jones 2013, ISMM), so a spread that is to hold for the
next profile must come from visits that lie apart. The first round fills the table; the others say how much to trust it.
"""

from __future__ import annotations

import datetime
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import numpy as np

from moescale.errors import InputError, install
from moescale.experiments.profiling.grid import Grid, Model
from moescale.io.files import check_target, opened_to_append
from moescale.io.locks import lock_beside, locked
from moescale.latency.measurements import (
    FAILED,
    KEY,
    OK,
    OUT_OF_MEMORY,
    Key,
    Measurement,
    check_table,
    key_of,
    read_measurements,
    write_measurements,
)
from moescale.units import plural

Report = Callable[[str], None]
Point = tuple[str, int, int]  # stage, batch, tokens
HERE = Path(__file__).parent
START_S = 60.0  # within which an interpreter says that it is one
INSTALL = {
    "vllm": "name the interpreter that has it with --python, or make one with `moescale profile --setup vllm`",
    "torch": f"{install('profile')}, or name the interpreter that has it with --python",
}
NOTCH = 1.57  # half-width of the median's interval in IQR / sqrt(n): McGill, Tukey and Larsen 1978, Am. Stat. 32:12


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeats:
    """When the median of a round is stable: 1.57 IQR / sqrt(n) is at most `tolerance` of it, after `least` repeats.

    Without that it is taken after `most` repeats, or after `seconds` of them; the row's spread says how it went.
    `rounds` is how often the grid is visited.
    """

    least: int = 5
    most: int = 50
    tolerance: float = 0.02
    seconds: float = 30.0
    rounds: int = 3

    def enough(self, measured_s: Sequence[float]) -> bool:
        """Whether these repeats do."""
        n = len(measured_s)
        if n < self.least:
            return n > 0 and sum(measured_s) > self.seconds
        low, median, high = np.quantile(measured_s, (0.25, 0.5, 0.75))
        stable = NOTCH * (high - low) / n**0.5 <= self.tolerance * median
        return bool(stable) or n >= self.most or sum(measured_s) > self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiled:
    """What a run of `profile` did."""

    table: str
    points: int  # of the grid
    measured: int  # points that this run measured, in one round or more
    found: int  # that had all their rounds already
    missing: int  # that still lack a round
    not_ok: dict[str, int] = field(default_factory=dict[str, int])  # points of the grid by status, if not ok
    seconds: float = 0.0

    def to_dict(self) -> dict[str, object]:
        """JSON-ready values."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """How engines are started."""

    python: str | Path | None = None  # the interpreter that has the engine; None: this one
    file: str | Path | None = None  # another engine than the grid's, as worker.py describes
    device: str | None = None
    limit_s: float = 1800.0  # the longest wait for a model to load or a point to be measured, which then has failed
    log: str | Path | None = None  # file for what the engine itself prints


def profile(
    grid: Grid,
    table: str | Path,
    *,
    engine: Engine | None = None,
    repeats: Repeats | None = None,
    retry: bool = False,
    seconds: float | None = None,
    report: Report | None = None,
) -> Profiled:
    """Measure the points of `grid` that `table` lacks, and write each as soon as it is known.

    `seconds` stops the run, between two points, after that time. With `retry` failed rows are measured again. Raises
    InputError where the engine cannot start, and where the table holds another engine, version or dtype, and where another
    process is writing it.
    """
    used = engine or Engine()
    check_table(table)
    if used.log is not None:
        check_target(used.log)
    busy = InputError(
        "is being written by another process", where=str(table), next_step="wait for it, or name another file"
    )
    with locked(lock_beside(table), busy=busy):
        profiling = _Profiling(grid, Path(table), used, repeats or Repeats(), seconds, report or _silent)
        return profiling.run(retry=retry)


@dataclass(frozen=True, slots=True)
class _Place:
    """One model on so many GPUs: what one start of an engine measures."""

    model: Model
    gpus: int
    columns: Mapping[str, Any]
    keys: Mapping[Point, Key]


class _Profiling:
    """The table while it is measured."""

    def __init__(
        self, grid: Grid, table: Path, engine: Engine, rule: Repeats, seconds: float | None, say: Report
    ) -> None:
        self.grid, self.table, self.engine, self.rule, self.say = grid, table, engine, rule, say
        self.start, self.seconds = time.monotonic(), seconds
        self.rows: dict[Key, Measurement] = {}
        self.written: tuple[int, int, int] | None = None
        self._take_what_is_there()
        self.places = [self._place(model, gpus) for model in grid.models for gpus in grid.gpus]
        self.again: set[Key] = set()  # failures that are measured once more
        self.visited = self.visits = 0

    def _place(self, model: Model, gpus: int) -> _Place:
        grid = self.grid
        columns = {"gpu": grid.gpu, "gpus": gpus, "engine": grid.engine, "dtype": grid.dtype, **model.columns()}
        keys = {point: tuple({**columns, **_columns(point)}[name] for name in KEY) for point in grid.points()}
        return _Place(model, gpus, columns, keys)

    def run(self, *, retry: bool) -> Profiled:
        """Every round of the grid."""
        keys = [key for place in self.places for key in place.keys.values()]
        rounds = range(1, self.rule.rounds + 1)
        self.again = {key for key in keys if retry and key in self.rows and self.rows[key].status == FAILED}
        found = sum(not self._lacks(key, self.rule.rounds) for key in keys)
        self.visits = sum(self._lacks(key, number) for key in keys for number in rounds)
        measured: set[Key] = set()
        for number in rounds:
            for place in self.places:
                before = [point for point, key in place.keys.items() if self._lacks(key, number)]
                wanted = deque(before)
                while wanted and not self._over():
                    self._measure_some(place, wanted)
                measured.update(place.keys[point] for point in before if point not in wanted)
            self.again.clear()
        statuses = [self.rows[key].status for key in keys if key in self.rows]
        return Profiled(
            table=str(self.table),
            points=len(keys),
            measured=len(measured),
            found=found,
            missing=sum(self._lacks(key, self.rule.rounds) for key in keys),
            not_ok={status: statuses.count(status) for status in (OUT_OF_MEMORY, FAILED) if status in statuses},
            seconds=time.monotonic() - self.start,
        )

    def _lacks(self, key: Key, rounds: int) -> bool:
        """Whether a point is to be visited in the round of this number."""
        row = self.rows.get(key)
        return row is None or (len(row.rounds_s) < rounds if row.status == OK else key in self.again)

    def _over(self) -> bool:
        return self.seconds is not None and time.monotonic() - self.start >= self.seconds

    def _take_what_is_there(self) -> None:
        version = _version(self.table)
        if version != self.written:  # also where somebody has changed it by hand, unaware of the lock: those rows stay
            changed = read_measurements(self.table) if version is not None else ()
            self.rows.update({key_of(row): row for row in changed})

    def _keep(self, found: Sequence[Measurement]) -> None:
        self._take_what_is_there()
        self.rows.update({key_of(row): row for row in found})
        write_measurements(self.table, self.rows.values())
        self.written = _version(self.table)

    def _measure_some(self, place: _Place, wanted: deque[Point]) -> None:
        """Start the engine once and measure from `wanted` until it is empty or the engine is gone."""
        task = {
            "config": dict(place.model.config), "gpus": place.gpus, "dtype": self.grid.dtype,
            "device": self.engine.device, "points": list(wanted),
        }  # fmt: skip
        python = self.engine.python or sys.executable
        columns = {**place.columns, "engine_version": "", "device": ""}
        with Worker(python, self.engine.file or HERE / f"{self.grid.engine}_engine.py", self.engine.log) as worker:
            ready = worker.ask(task, self.engine.limit_s)
            if ready.get("error") == "engine":
                raise InputError(
                    f"engine {self.grid.engine} does not start: {ready['reason']}",
                    where=str(python),
                    next_step=INSTALL[self.grid.engine],
                )
            if "error" in ready:
                self._record(
                    place, columns, list(wanted), (), ready["error"], f"the model did not load: {ready['reason']}"
                )
                wanted.clear()
                return
            columns.update(ready["ready"])
            _check_same_engine(self.rows, columns)
            while wanted and not self._over():
                point = wanted.popleft()
                measured_s, answer = self._measure(worker, point)
                self._record(place, columns, [point], measured_s, answer.get("error", OK), answer.get("reason", ""))
                if answer.get("error") == OUT_OF_MEMORY:  # what needs more will not fit either
                    larger = [p for p in wanted if p[0] == point[0] and p[1] >= point[1] and p[2] >= point[2]]
                    for each in larger:
                        wanted.remove(each)
                    reason = f"batch {point[1]} at {point[2]} tokens did not fit"
                    self._record(place, columns, larger, (), OUT_OF_MEMORY, reason)
                if "error" in answer and not worker.alive():
                    return

    def _measure(self, worker: Worker, point: Point) -> tuple[list[float], dict[str, Any]]:
        """The repeats of a point, in seconds, and the last answer; no repeats where it is an error."""
        measured_s: list[float] = []
        answer: dict[str, Any] = {}
        while not self.rule.enough(measured_s):
            # The first portion is one repeat, which says how long a few will take.
            portion = min(self.rule.least, self.rule.most - len(measured_s)) if measured_s else 1
            answer = worker.ask({**_columns(point), "repeats": portion}, self.engine.limit_s)
            if "error" in answer:
                return [], answer
            measured_s.extend(answer["seconds"])
        return measured_s, answer

    def _record(
        self, place: _Place, columns: Mapping[str, Any], points: Sequence[Point], seconds: Sequence[float],
        status: str, reason: str,
    ) -> None:  # fmt: skip
        """A row for each point: this round and those before it, or why there is no latency."""
        if not points:
            return
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        kept: list[Measurement] = []
        said: list[str] = []
        for point in points:
            row = self.rows.get(place.keys[point])
            stated: dict[str, Any] = {**columns, **_columns(point), "date": today}
            earlier = row if row is not None and row.status == OK else None
            text = f"{status} ({reason})"
            if seconds:
                row = _with_round(earlier, seconds, stated)
                text = f"{1e3 * row.rounds_s[-1]:.4g} ms, spread {row.spread or 0:.1%}"
                text += f" of {len(row.rounds_s)} rounds" if len(row.rounds_s) > 1 else ""
            else:  # a failure does not undo the rounds that went well
                row = earlier or Measurement(**stated, status=status, reason=reason, latency_s=None)
            kept.append(row)
            said.append(
                f"{place.model.name}, {plural(place.gpus, 'GPU')}, {point[0]}, batch {point[1]}, {point[2]} tokens: {text}"
            )
        self._keep(kept)  # one writing of the table, however many points did not fit
        for line in said:
            self.visited += 1
            self.say(f"[{self.visited}/{self.visits}] {line}")


def _columns(point: Point) -> dict[str, Any]:
    return dict(zip(("stage", "batch", "tokens"), point, strict=True))


def _with_round(earlier: Measurement | None, seconds: Sequence[float], columns: Mapping[str, Any]) -> Measurement:
    """The row with the repeats of one more round: the median of the rounds' medians, and how far all that scatters."""
    low, median, high = np.quantile(seconds, (0.25, 0.5, 0.75))
    rounds = (*(earlier.rounds_s if earlier else ()), float(median))
    latency = float(np.median(rounds))
    scatter = max((earlier.spread or 0.0) if earlier else 0.0, float((high - low) / median))
    return Measurement(
        **columns, latency_s=latency, rounds_s=rounds, repeats=len(seconds) + (earlier.repeats if earlier else 0),
        spread=max(scatter, (max(rounds) - min(rounds)) / latency),
    )  # fmt: skip


def _check_same_engine(rows: Mapping[Key, Measurement], columns: Mapping[str, Any]) -> None:
    """Rows of different engines, versions or number formats do not belong in one table."""
    for name in ("engine", "engine_version", "dtype"):
        others = {str(getattr(row, name)) for row in rows.values() if getattr(row, name) and row.gpu == columns["gpu"]}
        if others - {columns[name]}:
            raise InputError(
                f"the table was measured with {name} {', '.join(sorted(others))}, and this is {columns[name]}",
                next_step="write to another file",
            )


class Worker:
    """An engine in a process of its own; leaving the context ends it, with all its children."""

    def __init__(self, python: str | Path, engine_file: str | Path, log: str | Path | None = None) -> None:
        # Closed by _end: the process writes to it for as long as it lives.
        self._log: IO[bytes] | int = subprocess.DEVNULL if log is None else opened_to_append(log)
        try:
            self._process = subprocess.Popen(
                [str(python), str(HERE / "worker.py"), str(engine_file)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, encoding="utf-8",
                start_new_session=True,  # Ctrl-C reaches us alone, and the whole group can be ended
            )  # fmt: skip
        except OSError as error:
            self._close_log()
            raise InputError(
                f"cannot be run: {error.strerror or error}", where=str(python), next_step="give a Python interpreter"
            ) from error
        self._answers: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if "hello" not in self._answer(START_S):
            self._end()
            raise InputError("does not run as a Python interpreter", where=str(python), next_step="give one that does")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put("")

    def alive(self) -> bool:
        """Whether it can be asked for more."""
        return self._process.poll() is None

    def ask(self, request: dict[str, Any], limit_s: float) -> dict[str, Any]:
        """The answer to one request; a dead or silent engine answers with an error of its own."""
        assert self._process.stdin is not None
        with suppress(OSError):  # a dead engine is noticed below
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        return self._answer(limit_s)

    def _answer(self, limit_s: float) -> dict[str, Any]:
        try:
            line = self._answers.get(timeout=limit_s)
        except queue.Empty:
            self._end()
            return {"error": FAILED, "reason": f"no answer within {limit_s:g} s"}
        if line:
            try:
                return dict(json.loads(line))
            except (ValueError, TypeError):
                return {"error": FAILED, "reason": f"the engine printed {line[:60]!r}"}
        code = self._process.wait()
        if code == -9:
            return {"error": OUT_OF_MEMORY, "reason": "the engine was killed, as by a system without memory left"}
        return {"error": FAILED, "reason": f"the engine ended with code {code}"}

    def _end(self) -> None:
        with suppress(OSError):  # already gone
            if hasattr(os, "killpg"):
                os.killpg(self._process.pid, signal.SIGKILL)
            else:  # Windows: the engine alone
                self._process.kill()
        self._process.wait()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        self._close_log()

    def _close_log(self) -> None:
        if not isinstance(self._log, int):
            self._log.close()


def _version(table: Path) -> tuple[int, int, int] | None:
    """What tells whether a file was changed; None where there is none."""
    try:
        found = table.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _silent(_: str) -> None:
    pass
