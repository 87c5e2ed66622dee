"""Runs of Weights & Biases: its offline files (run-*.wandb), and the CSV export of its run table.

Their records are messages of wandb's own protobuf module. Since 0.20 the package has no reader of the log that frames them
(LevelDB's: https://github.com/google/leveldb/blob/main/doc/log_format.md), after seven bytes of W&B's.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moescale.errors import DamagedFileError, InputError
from moescale.io.files import read_bytes
from moescale.io.json_text import parse_json
from moescale.runs.importers import tracked_run
from moescale.runs.importers.csv import read_csv
from moescale.runs.importers.tracked_run import FINISHED, STEPS, Points, TrackedRun, Wanted, number, scalars

_BLOCK, _HEADER = 32768, 7
_FULL, _FIRST, _LAST = 1, 2, 4  # of a record's pieces; 3 lies between the first and the last


@dataclass
class _Log:
    where: str
    name: str = ""
    history: list[dict[str, Any]] = field(default_factory=lambda: [])
    summary: dict[str, Any] = field(default_factory=lambda: {})
    config: dict[str, Any] = field(default_factory=lambda: {})
    exit_code: int | None = None


def read_wandb(source: str, wanted: Wanted) -> tuple[list[TrackedRun], list[str]]:
    """The runs of all .wandb files under a folder (files of one run id are one run), or of a CSV export; and warnings.

    Raises InputError where there is neither, and where files are there and wandb is not.
    """
    path = Path(source)
    if path.is_file() and path.suffix.lower() in (".csv", ".tsv"):
        return read_csv(source, wanted)
    logs: dict[str, _Log] = {}
    warnings: list[str] = []
    advice = "give a wandb folder, or a CSV export of the run table"
    # Folders are named by their time, so that a run's parts come in order.
    files = tracked_run.files_of(source, lambda file: file.suffix == ".wandb", "offline run (*.wandb)", advice)
    messages = tracked_run.library("wandb.proto.wandb_internal_pb2", "wandb", source)
    for file in files:
        key, log = str(file), _Log(str(file))
        with tracked_run.damage_noted(file, path, warnings):
            for data in _records(read_bytes(file, limit_bytes=2**31), str(file)):
                try:
                    record = messages.Record.FromString(data)
                except Exception as error:  # protobuf's
                    raise _damaged(str(file)) from error
                if record.run.run_id:
                    key = record.run.run_id
                    log = logs.setdefault(key, log)
                    log.where, log.exit_code = str(file), None
                _take(record, log)
        if log.history or log.config:
            logs.setdefault(key, log)
    return [_run(identifier, log) for identifier, log in logs.items()], warnings


def _damaged(file: str) -> DamagedFileError:
    return DamagedFileError("is not a W&B file, or damaged", where=file, next_step="the part before is used")


def _records(data: bytes, file: str) -> Iterator[bytes]:
    """The records of a log; a last one that was cut off is left out."""
    if data[:4] != b":W&B":
        raise _damaged(file)
    position, parts = _HEADER, b""
    while position + _HEADER <= len(data):
        left = _BLOCK - position % _BLOCK
        _, size, kind = struct.unpack_from("<IHB", data, position) if left >= _HEADER else (0, 0, 0)
        if kind == size == 0:  # the rest of a block, or preallocated and never written
            position += left
            continue
        piece = data[position + _HEADER : position + _HEADER + size]
        if len(piece) < size:
            return
        if not _FULL <= kind <= _LAST or size > left - _HEADER:
            raise _damaged(file)
        position += _HEADER + size
        parts = piece if kind in (_FULL, _FIRST) else parts + piece
        if kind in (_FULL, _LAST):
            yield parts


def _take(record: Any, log: _Log) -> None:
    if items := record.history.item:
        log.history.append({"_step": record.history.step.num} | _items(items))
    log.summary.update(_items(record.summary.update))
    log.config.update(_items(record.config.update) | _items(record.run.config.update))
    log.name = record.run.display_name or log.name
    if record.HasField("exit"):
        log.exit_code = record.exit.exit_code


def _items(items: Iterable[Any]) -> dict[str, Any]:
    """Keys (nested ones joined by dots) with their values: JSON, or a value of its own type."""
    found: dict[str, Any] = {}
    for item in items:
        stated = {each.name: value for each, value in item.ListFields()}
        name = ".".join(stated.pop("nested_key", ())) or stated.get("key", "")
        stated.pop("key", None)
        for kind, value in stated.items():
            with suppress(InputError):
                found[name] = parse_json(value, where=name) if "json" in kind else None if kind == "none" else value
    return found


def _run(identifier: str, log: _Log) -> TrackedRun:
    names = {key for entry in log.history for key in entry}
    step_name = next((name for name in STEPS if name in names), "_step")
    points: Points = {}
    for entry in log.history:
        step = number(entry.get(step_name))
        for key, value in scalars(entry).items():
            if isinstance(value, float) and not key.startswith("_") and key != step_name:
                points.setdefault(key, []).append((step, value))
    config = {key: value for key, value in log.config.items() if not key.startswith("_")}
    summary = {key: value for key, value in log.summary.items() if not key.startswith("_") and key not in names}
    state = "not ended" if log.exit_code is None else FINISHED if log.exit_code == 0 else f"exit code {log.exit_code}"
    name = log.name or (Path(identifier).stem if "/" in identifier else identifier)
    shape = config if isinstance(config.get("model_type"), str) else None
    return TrackedRun(name, log.where, {**scalars(config), **scalars(summary)}, points, state, shape)
