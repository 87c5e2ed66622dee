"""How far the runs of a sweep are: read from the files they write, and shown while they run."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from moescale.units import format_count

TAIL_BYTES = 65_536
LINE_EVERY_S = 30.0  # where standard error is no terminal


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The last line of a run's progress.jsonl; 0 and None where it does not say."""

    step: float = 0.0
    steps: float = 0.0
    tokens: float = 0.0
    tokens_per_s: float = 0.0
    seconds: float = 0.0
    loss: float | None = None
    mfu: float | None = None

    @property
    def share(self) -> float:
        """How much of the run is done, 0 to 1."""
        return min(self.step / self.steps, 1.0) if self.steps > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """A sweep at one moment."""

    total: int
    done: int
    failed: int
    running: Mapping[str, Progress | None]  # by name; None until it has written a line
    share: float  # of the FLOPs of all runs
    tokens_per_s: float  # of all that run, together
    mfu: float | None  # mean of the runs that state it

    def line(self) -> str:
        """The status in one line."""
        parts = [f"{self.done}/{self.total} runs done", f"{len(self.running)} running"]
        if self.failed:
            parts.append(f"{self.failed} failed")
        if self.tokens_per_s:
            parts.append(f"{format_count(self.tokens_per_s)} tokens/s")
        if self.mfu is not None:
            parts.append(f"MFU {self.mfu:.1%}")
        return ", ".join(parts)


def read_progress(output: str | Path, *, since: float = 0.0) -> Progress | None:
    """The last whole line of the progress.jsonl in a run's folder, or None.

    None as well where the file was last written before `since` (seconds of the epoch). Lines that are torn or hold
    something else are passed over: a run that was killed may leave one.
    """
    file = Path(output) / "progress.jsonl"
    try:
        with file.open("rb") as stream:
            size = stream.seek(0, 2)
            if file.stat().st_mtime < since:
                return None
            stream.seek(max(0, size - TAIL_BYTES))
            lines = stream.read().splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        try:
            found: object = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict) and _number(found, "step") is not None:
            return Progress(
                **{n: _number(found, n) or 0.0 for n in ("step", "steps", "tokens", "tokens_per_s", "seconds")},
                loss=_number(found, "loss"),
                mfu=_number(found, "mfu"),
            )
    return None


def _number(line: object, name: str) -> float | None:
    value = cast("dict[str, object]", line).get(name)
    return float(value) if isinstance(value, int | float) and abs(value) <= sys.float_info.max else None


@contextmanager
def watch_lines(say: Callable[[str], None], every_s: float = LINE_EVERY_S) -> Generator[Callable[[Status], None]]:
    """A callback that says a line when the count of runs changes, and every `every_s` seconds."""
    last = (-1, -1)
    said_at = time.monotonic()

    def watch(status: Status) -> None:
        nonlocal last, said_at
        now = (status.done, status.failed)
        if now != last or time.monotonic() - said_at >= every_s:
            last, said_at = now, time.monotonic()
            say(status.line())

    yield watch


@contextmanager
def watch_live(console: Any) -> Generator[tuple[Callable[[Status], None], Callable[[str], None]]]:
    """Callbacks that keep a bar for the sweep and one for each running run on a rich console, and print lines above."""
    from rich.progress import BarColumn, TaskID, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn(), TextColumn("{task.fields[note]}"))
    with Bars(*columns, console=console, transient=True) as bars:
        whole = bars.add_task("sweep", total=1.0, note="")
        tasks: dict[str, TaskID] = {}

        def watch(status: Status) -> None:
            bars.update(whole, completed=status.share, note=status.line())
            for name in set(tasks) - set(status.running):
                bars.remove_task(tasks.pop(name))
            for name, progress in status.running.items():
                if name not in tasks:
                    tasks[name] = bars.add_task(name, total=1.0, note="starting")
                if progress is not None:
                    note = f"step {progress.step:.0f}/{progress.steps:.0f}"
                    note += "" if progress.loss is None else f", loss {progress.loss:.3f}"
                    bars.update(tasks[name], completed=progress.share, note=note)

        yield watch, lambda line: bars.console.print(line, highlight=False, markup=False)
