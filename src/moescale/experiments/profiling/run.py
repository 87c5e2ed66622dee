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

from moescale.errors import InputError
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

Report = Callable[[str], None]
Point = tuple[str, int, int]  # stage, batch, tokens
HERE = Path(__file__).parent
START_S = 60.0  # within which an interpreter says that it is one
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


def profile(
    grid: Grid,
    table: str | Path,
    *,
    python: str | Path | None = None,
    engine_file: str | Path | None = None,
    device: str | None = None,
    repeats: Repeats | None = None,
    retry: bool = False,
    limit_s: float = 1800.0,
    seconds: float | None = None,
    report: Report | None = None,
    log: str | Path | None = None,
) -> Profiled:
    """Measure the points of `grid` that `table` lacks, and write each as soon as it is known.

    `python` is the interpreter that has the engine (default: this one); `engine_file` another engine than the grid's, as
    worker.py describes; `limit_s` the longest wait for a model to load or a point to be measured, which then is a row with
    status failed; `seconds` stops the run, between two points, after that time. With `retry` failed rows are measured
    again. The engine's own output goes to the file `log`. Raises InputError where the engine cannot start, and where the
    table holds another engine, version or dtype, and where another process is writing it.
    """
    check_table(table)
    if log is not None:
        check_target(log)
    busy = InputError(
        "is being written by another process", where=str(table), next_step="wait for it, or name another file"
    )
    with locked(lock_beside(table), busy=busy):
        return _profile(
            grid, table, python=python, engine_file=engine_file, device=device, rule=repeats or Repeats(), retry=retry,
            limit_s=limit_s, seconds=seconds, say=report or _silent, log=log,
        )  # fmt: skip


def _profile(
    grid: Grid, table: str | Path, *, python: str | Path | None, engine_file: str | Path | None, device: str | None,
    rule: Repeats, retry: bool, limit_s: float, seconds: float | None, say: Report, log: str | Path | None,
) -> Profiled:  # fmt: skip
    start = _now()
    rows = {key_of(row): row for row in (read_measurements(table) if Path(table).exists() else ())}
    written = _version(table)
    total = grid.size

    def keep(found: Sequence[Measurement]) -> None:
        nonlocal written
        if written != _version(table):  # somebody has changed it by hand, unaware of the lock: those rows stay
            changed = read_measurements(table) if Path(table).exists() else ()
            rows.update({key_of(row): row for row in changed})
        rows.update({key_of(row): row for row in found})
        write_measurements(table, rows.values())
        written = _version(table)

    keys = [
        _key(grid, model.columns(), gpus, point)
        for model in grid.models for gpus in grid.gpus for point in grid.points()
    ]  # fmt: skip
    again = {key for key in keys if retry and key in rows and rows[key].status == FAILED}

    def lacks(key: Key, rounds: int) -> bool:
        """Whether a point is to be visited in the round of this number."""
        row = rows.get(key)
        return row is None or (len(row.rounds_s) < rounds if row.status == OK else key in again)

    found = total - sum(lacks(key, rule.rounds) for key in keys)
    visits = sum(lacks(key, number) for key in keys for number in range(1, rule.rounds + 1))
    measured: set[Key] = set()
    visited = 0
    for number in range(1, rule.rounds + 1):
        for model in grid.models:
            columns = model.columns()
            for gpus in grid.gpus:
                key_at = {point: _key(grid, columns, gpus, point) for point in grid.points()}
                wanted = deque(point for point, key in key_at.items() if lacks(key, number))
                before = list(wanted)
                while wanted and not _over(start, seconds):
                    visited += _measure_some(
                        grid, model, gpus, wanted, rows, key_at, keep,
                        python=python, engine_file=engine_file, device=device, rule=rule, limit_s=limit_s,
                        over=lambda: _over(start, seconds), say=lambda text, n: say(f"[{n}/{visits}] {text}"),
                        count=visited, log=log,
                    )  # fmt: skip
                measured.update(key_at[point] for point in before if point not in wanted)
        again.clear()
    return Profiled(
        table=str(table),
        points=total,
        measured=len(measured),
        found=found,
        missing=sum(lacks(key, rule.rounds) for key in keys),
        not_ok={
            status: count
            for status in (OUT_OF_MEMORY, FAILED)
            if (count := sum(rows[key].status == status for key in keys if key in rows))
        },
        seconds=_now() - start,
    )


def _measure_some(
    grid: Grid, model: Model, gpus: int, wanted: deque[Point], rows: Mapping[Key, Measurement],
    key_at: Mapping[Point, Key], keep: Callable[[Sequence[Measurement]], None], *, python: str | Path | None,
    engine_file: str | Path | None, device: str | None, rule: Repeats, limit_s: float, over: Callable[[], bool], say: Callable[[str, int], None],
    count: int, log: str | Path | None,
) -> int:  # fmt: skip
    """Start the engine once and measure from `wanted` until it is empty or the engine is gone; how many were."""
    what = f"{model.name}, {gpus} GPU{'' if gpus == 1 else 's'}"
    common: dict[str, Any] = {
        "gpu": grid.gpu, "gpus": gpus, "engine": grid.engine, "dtype": grid.dtype, "engine_version": "", "device": "",
        **model.columns(),
    }  # fmt: skip
    done = 0

    def record(points: Sequence[Point], seconds: Sequence[float], status: str = OK, reason: str = "") -> None:
        """A row for each point: this round and those before it, or why there is no latency."""
        nonlocal done
        common["date"] = datetime.datetime.now(datetime.UTC).date().isoformat()
        kept: list[Measurement] = []
        said: list[str] = []
        for point in points:
            row = rows.get(key_at[point])
            stage, batch, tokens = point
            place: dict[str, Any] = {"stage": stage, "batch": batch, "tokens": tokens}
            text = f"{status} ({reason})"
            if seconds:
                earlier = row if row is not None and row.status == OK else None
                row = _with_round(earlier, seconds, {**common, **place})
                text = f"{1e3 * row.rounds_s[-1]:.4g} ms, spread {row.spread or 0:.1%}"
                text += f" of {len(row.rounds_s)} rounds" if len(row.rounds_s) > 1 else ""
            elif row is None or row.status != OK:  # a failure does not undo the rounds that went well
                row = Measurement(**common, **place, status=status, reason=reason, latency_s=None)
            kept.append(row)
            said.append(f"{what}, {stage}, batch {batch}, {tokens} tokens: {text}")
        keep(kept)  # one writing of the table, however many points did not fit
        for line in said:
            done += 1
            say(line, count + done)

    def drop_larger(point: Point) -> None:
        """What needs more memory than a point that did not fit, will not fit."""
        larger = [p for p in wanted if p[0] == point[0] and p[1] >= point[1] and p[2] >= point[2]]
        if larger:
            for each in larger:
                wanted.remove(each)
            record(larger, (), OUT_OF_MEMORY, f"batch {point[1]} at {point[2]} tokens did not fit")

    task = {
        "config": dict(model.config), "gpus": gpus, "dtype": grid.dtype, "device": device, "points": list(wanted),
    }  # fmt: skip
    with Worker(python or sys.executable, engine_file or HERE / f"{grid.engine}_engine.py", log) as engine:
        ready = engine.ask(task, limit_s)
        if ready.get("error") == "engine":
            raise InputError(
                f"engine {grid.engine} does not start: {ready['reason']}",
                where=str(python or sys.executable),
                next_step="name the interpreter that has it with --python, or make one with `moescale profile --setup vllm`"
                if grid.engine == "vllm"
                else "pip install 'moescale[profile]', or name the interpreter that has it with --python",
            )
        if "error" in ready:
            record(list(wanted), (), ready["error"], f"the model did not load: {ready['reason']}")
            wanted.clear()
            return done
        common.update(ready["ready"])
        _check_same_engine(rows, common)
        while wanted and not over():
            point = wanted.popleft()
            stage, batch, tokens = point
            measured_s: list[float] = []
            answer: dict[str, Any] = {}
            while not rule.enough(measured_s) and "error" not in answer:
                # The first portion is one repeat, which says how long a few will take.
                portion = min(rule.least, rule.most - len(measured_s)) if measured_s else 1
                asked = {"stage": stage, "batch": batch, "tokens": tokens, "repeats": portion}
                answer = engine.ask(asked, limit_s)
                measured_s.extend(answer.get("seconds", ()))
            if "error" not in answer:
                record([point], measured_s)
                continue
            record([point], (), answer["error"], answer["reason"])
            if answer["error"] == OUT_OF_MEMORY:
                drop_larger(point)
            if not engine.alive():
                break
    return done


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


def _check_same_engine(rows: Mapping[Key, Measurement], common: dict[str, Any]) -> None:
    """Rows of different engines, versions or number formats do not belong in one table."""
    for name in ("engine", "engine_version", "dtype"):
        others = {str(getattr(row, name)) for row in rows.values() if getattr(row, name) and row.gpu == common["gpu"]}
        if others - {common[name]}:
            raise InputError(
                f"the table was measured with {name} {', '.join(sorted(others))}, and this is {common[name]}",
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
                return {"error": FAILED, "reason": f"the engine said {line[:60]!r}"}
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


def _key(grid: Grid, columns: dict[str, Any], gpus: int, point: Point) -> Key:
    stage, batch, tokens = point
    values: dict[str, Any] = {
        **columns, "gpu": grid.gpu, "gpus": gpus, "engine": grid.engine, "dtype": grid.dtype, "stage": stage,
        "batch": batch, "tokens": tokens,
    }  # fmt: skip
    return tuple(values[name] for name in KEY)


def _version(table: str | Path) -> tuple[int, int, int] | None:
    """What tells whether a file was changed; None where there is none."""
    try:
        found = os.stat(table)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _now() -> float:
    return time.monotonic()


def _over(start: float, seconds: float | None) -> bool:
    return seconds is not None and _now() - start >= seconds


def _silent(_: str) -> None:
    pass
