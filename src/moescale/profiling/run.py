"""One grid, one engine, one table: measure what the table lacks, and keep every row as soon as it is known."""

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
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import numpy as np

from moescale.errors import InputError
from moescale.files import check_target
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
from moescale.profiling.grid import Grid, Model

Report = Callable[[str], None]
Point = tuple[str, int, int]  # stage, batch, tokens
HERE = Path(__file__).parent
START_S = 60.0  # within which an interpreter says that it is one
NOTCH = 1.57  # half-width of the median's interval in IQR / sqrt(n): McGill, Tukey and Larsen 1978, Am. Stat. 32:12


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeats:
    """When a median is stable: 1.57 IQR / sqrt(n) is at most `tolerance` of it, after `least` repeats.

    Without that it is taken after `most` repeats, or after `seconds` of them; the row's spread says how it went.
    """

    least: int = 5
    most: int = 50
    tolerance: float = 0.02
    seconds: float = 30.0

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
    measured: int  # by this run
    found: int  # in the table already
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
    table holds another engine, version or dtype.
    """
    rule = repeats or Repeats()
    say = report or _silent
    start = _now()
    check_table(table)
    if log is not None:
        check_target(log)
    rows = list(read_measurements(table)) if Path(table).exists() else []
    known = {key_of(row): row for row in rows}
    total = grid.size
    keys: list[Key] = []
    measured = found = 0

    def keep(found: Sequence[Measurement]) -> None:
        rows.extend(found)
        known.update({key_of(row): row for row in found})
        write_measurements(table, rows)

    for model in grid.models:
        columns = model.columns()
        for gpus in grid.gpus:
            key_at = {point: _key(grid, columns, gpus, point) for point in grid.points()}
            keys.extend(key_at.values())
            wanted = deque(
                p for p, key in key_at.items() if key not in known or (retry and known[key].status == FAILED)
            )
            found += len(key_at) - len(wanted)
            while wanted and not _over(start, seconds):
                done = _measure_some(
                    grid, model, gpus, wanted, rows, keep,
                    python=python, engine_file=engine_file, device=device, rule=rule, limit_s=limit_s,
                    over=lambda: _over(start, seconds), say=lambda text, n: say(f"[{n}/{total}] {text}"),
                    count=found + measured, log=log,
                )  # fmt: skip
                measured += done
    return Profiled(
        table=str(table),
        points=total,
        measured=measured,
        found=found,
        not_ok={
            status: count
            for status in (OUT_OF_MEMORY, FAILED)
            if (count := sum(known[key].status == status for key in keys if key in known))
        },
        seconds=_now() - start,
    )


def _measure_some(
    grid: Grid, model: Model, gpus: int, wanted: deque[Point], rows: Sequence[Measurement],
    keep: Callable[[Sequence[Measurement]], None], *, python: str | Path | None, engine_file: str | Path | None,
    device: str | None, rule: Repeats, limit_s: float, over: Callable[[], bool], say: Callable[[str, int], None],
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
        nonlocal done
        date = datetime.datetime.now(datetime.UTC).date().isoformat()
        low, median, high = np.quantile(seconds, (0.25, 0.5, 0.75)) if seconds else (0.0, 0.0, 0.0)
        kept = [
            Measurement(
                **common, stage=stage, batch=batch, tokens=tokens, status=status, reason=reason, date=date,
                repeats=len(seconds), latency_s=float(median) if seconds else None,
                spread=float((high - low) / median) if seconds else None,
            )
            for stage, batch, tokens in points
        ]  # fmt: skip
        keep(kept)
        for (stage, batch, tokens), row in zip(points, kept, strict=True):
            done += 1
            shown = (
                f"{1e3 * (row.latency_s or 0):.4g} ms, spread {row.spread or 0:.1%}"
                if seconds
                else f"{status} ({reason})"
            )
            say(f"{what}, {stage}, batch {batch}, {tokens} tokens: {shown}", count + done)

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


def _check_same_engine(rows: Sequence[Measurement], common: dict[str, Any]) -> None:
    """Rows of different engines, versions or number formats do not belong in one table."""
    for name in ("engine", "engine_version", "dtype"):
        others = {str(getattr(row, name)) for row in rows if getattr(row, name) and row.gpu == common["gpu"]}
        if others - {common[name]}:
            raise InputError(
                f"the table was measured with {name} {', '.join(sorted(others))}, and this is {common[name]}",
                next_step="write to another file",
            )


class Worker:
    """An engine in a process of its own; leaving the context ends it, with all its children."""

    def __init__(self, python: str | Path, engine_file: str | Path, log: str | Path | None = None) -> None:
        # Closed by _end: the process writes to it for as long as it lives.
        self._log: IO[bytes] | int = subprocess.DEVNULL if log is None else Path(log).open("ab")  # noqa: SIM115
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
            os.killpg(self._process.pid, signal.SIGKILL)
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


def _now() -> float:
    return time.monotonic()


def _over(start: float, seconds: float | None) -> bool:
    return seconds is not None and _now() - start >= seconds


def _silent(_: str) -> None:
    pass
