"""Runs of Weights & Biases: its offline files (run-*.wandb), read without wandb, and the CSV export of its run table."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from moescale.errors import InputError
from moescale.io import frames
from moescale.io.files import read_bytes
from moescale.runs.importers import wire
from moescale.runs.importers.tracked_run import (
    FILE_LIMIT_BYTES,
    FINISHED,
    Scalar,
    TrackedRun,
    files_under,
    scalar,
    scalars,
    series,
)

# The names under which libraries log the optimiser's step; W&B's own _step counts calls of log.
STEPS = ("train/global_step", "trainer/global_step", "global_step", "step", "iteration", "iter", "_step")

# The log format of LevelDB (https://github.com/google/leveldb/blob/main/doc/log_format.md) after seven bytes of W&B's.
_MAGIC, _BLOCK, _HEADER = b":W&B", 32768, 7
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
# Field numbers of wandb_internal.proto.
_HISTORY, _SUMMARY, _CONFIG, _RUN, _EXIT = 2, 3, 5, 17, 18
_TYPED = {4, 5, 6}  # of a history item: boolean, integer, number


@dataclass
class _Log:
    """What the files of one run have said so far."""

    where: str
    name: str = ""
    history: list[dict[str, Any]] = field(default_factory=lambda: [])
    summary: dict[str, Any] = field(default_factory=lambda: {})
    config: dict[str, Any] = field(default_factory=lambda: {})
    exit_code: int | None = None


def read_wandb(source: str) -> tuple[list[TrackedRun], list[str]]:
    """The runs of all .wandb files under a folder (files of one run id are one run), or of a CSV export; and warnings.

    Raises InputError where there is neither.
    """
    path = Path(source)
    if path.is_file() and path.suffix.lower() in (".csv", ".tsv"):
        return _exported(path), []
    logs: dict[str, _Log] = {}
    warnings: list[str] = []
    for file in files_under(path):  # folders are named by their time, so that a run's parts come in order
        if file.suffix != ".wandb":
            continue
        log = _Log(str(file))
        identifier = str(file)
        try:
            for record in _records(read_bytes(file, limit_bytes=FILE_LIMIT_BYTES)):
                found = _take(record, log)
                if found:
                    identifier = found
                    logs[identifier] = log = _joined(logs.get(identifier), log)
        except wire.MalformedError as error:
            warnings.append(f"{file}: {error}; what stands before is used")
        except InputError as error:
            if file == path:
                raise
            warnings.append(str(error))
        if identifier == str(file) and (log.history or log.config):
            logs[identifier] = log
    if not logs and not warnings:
        raise InputError(
            "there is no offline run (*.wandb) in it",
            where=source,
            next_step="give a wandb folder, or a CSV export of the run table",
        )
    return [_run(identifier, log) for identifier, log in logs.items()], warnings


def _joined(before: _Log | None, log: _Log) -> _Log:
    if before is None or before is log:
        return log
    before.config.update(log.config)
    before.where, before.name, before.exit_code = log.where, log.name or before.name, log.exit_code
    return before


def _records(data: bytes) -> Iterator[bytes]:
    if data[:4] != _MAGIC:
        raise wire.MalformedError("is not a W&B file")
    position, parts = _HEADER, b""
    while position + _HEADER <= len(data):
        left = _BLOCK - position % _BLOCK
        if left < _HEADER:  # the rest of a block that holds no header
            position += left
            continue
        _, size, kind = struct.unpack_from("<IHB", data, position)
        if kind == 0 and size == 0:  # preallocated and never written
            position += left
            continue
        piece = data[position + _HEADER : position + _HEADER + size]
        if len(piece) < size:
            return  # the writer was stopped in the middle of it
        if kind not in (_FULL, _FIRST, _MIDDLE, _LAST) or size > left - _HEADER:
            raise wire.MalformedError(f"damaged at byte {position}")
        position += _HEADER + size
        parts = piece if kind in (_FULL, _FIRST) else parts + piece
        if kind in (_FULL, _LAST):
            yield parts
            parts = b""


def _take(record: bytes, log: _Log) -> str:
    """Take one record into the log; the run id where the record states it."""
    identifier = ""
    for key, value in wire.fields(record):
        if not isinstance(value, bytes):
            continue
        if key == _HISTORY:
            log.history.append(_history(value))
        elif key == _SUMMARY:
            log.summary.update(_items(value, 1))
        elif key == _CONFIG:
            log.config.update(_items(value, 1))
        elif key == _RUN:
            identifier = wire.text(wire.last(value, 1))
            log.config.update(_items(wire.last(value, 4), 1))
            log.name = wire.text(wire.last(value, 8)) or log.name
        elif key == _EXIT:
            log.exit_code = next((wire.signed(code) for number, code in wire.fields(value) if number == 1), 0)
    return identifier


def _history(data: bytes) -> dict[str, Any]:
    entry = _items(data, 1)
    for number, value in wire.fields(wire.last(data, 2)):
        if number == 1:
            entry.setdefault("_step", wire.signed(value))
    return entry


def _items(data: bytes, number: int) -> dict[str, Any]:
    """Keys (nested ones joined by dots) with their values: JSON in field 16, or a value of its own type."""
    found: dict[str, Any] = {}
    for item in wire.inside(data, number):
        names: list[str] = []
        key, value = "", cast("Any", None)
        for field_number, content in wire.fields(item):
            if field_number == 1 and isinstance(content, bytes):
                key = wire.text(content)
            elif field_number == 2 and isinstance(content, bytes):
                names.append(wire.text(content))
            elif field_number in (8, 16) and isinstance(content, bytes):
                try:
                    value = json.loads(wire.text(content))
                except (ValueError, RecursionError):
                    value = None
            elif field_number == 7 and isinstance(content, bytes):
                value = wire.text(content)
            elif field_number in _TYPED:
                whole = wire.signed(content) if field_number == 5 else content
                value = bool(content) if field_number == 4 else whole
        found[".".join(names) or key] = value
    return found


def _run(identifier: str, log: _Log) -> TrackedRun:
    names = {key for entry in log.history for key in entry}
    step_name = next((name for name in STEPS if name in names), "_step")
    points: dict[str, list[tuple[float, float]]] = {}
    for entry in log.history:
        step = scalar(entry.get(step_name))
        at = float(step) if isinstance(step, float) else math.nan
        for key, value in scalars(entry).items():
            if isinstance(value, float) and not key.startswith("_") and key != step_name:
                points.setdefault(key, []).append((at, value))
    config = {key: value for key, value in log.config.items() if not key.startswith("_")}
    summary = {key: value for key, value in log.summary.items() if not key.startswith("_") and key not in names}
    params: dict[str, Scalar] = {**scalars(config), **scalars(summary)}
    state = "not ended" if log.exit_code is None else FINISHED if log.exit_code == 0 else f"exit code {log.exit_code}"
    name = log.name or (identifier if "/" not in identifier else Path(identifier).stem)
    return TrackedRun(
        name,
        log.where,
        params,
        {key: series(values) for key, values in points.items()},
        state,
        config if isinstance(config.get("model_type"), str) else None,
    )


def _exported(path: Path) -> list[TrackedRun]:
    """The rows of a run table: Name, State, config and summary, one run a row."""
    table = frames.read_table(str(path))
    columns: dict[str, list[Any]] = {name: frames.as_values(column).tolist() for name, column in table.columns.items()}
    if "Name" not in columns:
        raise InputError(
            "no column 'Name': not an export of W&B's run table",
            where=str(path),
            next_step="export the table of runs, not a chart",
        )
    runs: list[TrackedRun] = []
    for row in range(table.n_rows):
        cells = {name: scalar(values[row]) for name, values in columns.items()}
        given = {k: v for k, v in cells.items() if v is not None and not (isinstance(v, float) and math.isnan(v))}
        state = str(given.pop("State", FINISHED)).lower()
        name = str(given.pop("Name", f"row {row + 1}"))
        runs.append(TrackedRun(name, f"{path}, data row {row + 1}", given, {}, state))
    return runs
