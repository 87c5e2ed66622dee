"""Runs of Weights & Biases: its offline files (run-*.wandb), read without wandb, and the CSV export of its run table."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moescale.errors import InputError
from moescale.io.files import read_bytes
from moescale.runs.importers import tracked_run
from moescale.runs.importers.csv import read_csv
from moescale.runs.importers.tracked_run import FINISHED, STEPS, Points, TrackedRun, Wanted, curves, scalar, scalars
from moescale.runs.importers.wire import MalformedError, Message

# The log format of LevelDB (https://github.com/google/leveldb/blob/main/doc/log_format.md) after seven bytes of W&B's.
_MAGIC, _BLOCK, _HEADER = b":W&B", 32768, 7
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
# Field numbers of wandb_internal.proto.
_HISTORY, _SUMMARY, _CONFIG, _RUN, _EXIT = 2, 3, 5, 17, 18


@dataclass
class _Log:
    """What the files of one run have said so far."""

    where: str
    name: str = ""
    history: list[dict[str, Any]] = field(default_factory=lambda: [])
    summary: dict[str, Any] = field(default_factory=lambda: {})
    config: dict[str, Any] = field(default_factory=lambda: {})
    exit_code: int | None = None


def read_wandb(source: str, wanted: Wanted) -> tuple[list[TrackedRun], list[str]]:
    """The runs of all .wandb files under a folder (files of one run id are one run), or of a CSV export; and warnings.

    Raises InputError where there is neither.
    """
    path = Path(source)
    if path.is_file() and path.suffix.lower() in (".csv", ".tsv"):
        return read_csv(source, wanted)
    logs: dict[str, _Log] = {}
    warnings: list[str] = []
    for file in tracked_run.files_under(path):  # folders are named by their time, so that a run's parts come in order
        if file.suffix != ".wandb":
            continue
        log, identifier = _Log(str(file)), str(file)
        with tracked_run.damage_noted(file, path, warnings):
            for record in _records(read_bytes(file, limit_bytes=tracked_run.FILE_LIMIT_BYTES)):
                if stated := _take(Message(record), log):
                    identifier = stated
                    logs[identifier] = log = _joined(logs.get(identifier), log)
        if identifier == str(file) and (log.history or log.config):
            logs[identifier] = log
    if not logs and not warnings:
        advice = "give a wandb folder, or a CSV export of the run table"
        raise InputError("there is no offline run (*.wandb) in it", where=source, next_step=advice)
    return [_run(identifier, log) for identifier, log in logs.items()], warnings


def _joined(before: _Log | None, log: _Log) -> _Log:
    if before is None or before is log:
        return log
    before.config.update(log.config)
    before.where, before.name, before.exit_code = log.where, log.name or before.name, log.exit_code
    return before


def _records(data: bytes) -> Iterator[bytes]:
    if data[:4] != _MAGIC:
        raise MalformedError("is not a W&B file")
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
            raise MalformedError(f"damaged at byte {position}")
        position += _HEADER + size
        parts = piece if kind in (_FULL, _FIRST) else parts + piece
        if kind in (_FULL, _LAST):
            yield parts
            parts = b""


def _take(record: Message, log: _Log) -> str:
    """Take one record into the log; the run id where the record states it."""
    for entry in record.messages(_HISTORY):
        step = entry.message(2).whole(1)
        log.history.append(({} if step is None else {"_step": step}) | _items(entry))
    for part, into in ((_SUMMARY, log.summary), (_CONFIG, log.config)):
        for found in record.messages(part):
            into.update(_items(found))
    for run in record.messages(_RUN):
        log.config.update(_items(run.message(4)))
        log.name = run.text(8) or log.name
    for ended in record.messages(_EXIT):
        log.exit_code = ended.whole(1) or 0
    return record.message(_RUN).text(1)


def _items(content: Message) -> dict[str, Any]:
    """Keys (nested ones joined by dots) with their values: JSON in field 8 or 16, or a value of its own type."""
    found: dict[str, Any] = {}
    for item in content.messages(1):
        typed = [*(bool(truth) for truth in item.numbers(4)), item.whole(5), *item.numbers(6), item.text(7) or None]
        value: Any = next((value for value in typed if value is not None), None)
        try:
            value = json.loads(item.text(16) or item.text(8)) if value is None else value
        except (ValueError, RecursionError):
            value = None
        names = [name.decode("utf-8", "replace") for name in item.pieces(2)]
        found[".".join(names) or item.text(1)] = value
    return found


def _run(identifier: str, log: _Log) -> TrackedRun:
    names = {key for entry in log.history for key in entry}
    step_name = next((name for name in STEPS if name in names), "_step")
    points: Points = {}
    for entry in log.history:
        step = scalar(entry.get(step_name))
        at = float(step) if isinstance(step, float) else math.nan
        for key, value in scalars(entry).items():
            if isinstance(value, float) and not key.startswith("_") and key != step_name:
                points.setdefault(key, []).append((at, value))
    config = {key: value for key, value in log.config.items() if not key.startswith("_")}
    summary = {key: value for key, value in log.summary.items() if not key.startswith("_") and key not in names}
    state = "not ended" if log.exit_code is None else FINISHED if log.exit_code == 0 else f"exit code {log.exit_code}"
    name = log.name or (identifier if "/" not in identifier else Path(identifier).stem)
    shape = config if isinstance(config.get("model_type"), str) else None
    return TrackedRun(name, log.where, {**scalars(config), **scalars(summary)}, curves(points), state, shape)
