"""Runs of TensorBoard: the scalars, hparams and texts of event files, read without TensorBoard."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np

from moescale.errors import InputError
from moescale.io.files import read_bytes
from moescale.runs.importers import wire
from moescale.runs.importers.tracked_run import (
    FILE_LIMIT_BYTES,
    FINISHED,
    Scalar,
    TrackedRun,
    files_under,
    run_name,
    scalar,
    scalars,
    series,
)

# Field numbers of tensorboard/compat/proto (event, summary, tensor) and tensorboard/plugins/hparams.
_STEP, _SUMMARY, _SESSION_LOG = 2, 5, 7
_VALUE, _TAG, _SIMPLE, _TENSOR, _METADATA = 1, 1, 2, 8, 9
_HPARAMS_FOLDER = re.compile(r"\d+\.\d+")
_ENDED = {0: "", 1: FINISHED, 2: "failed", 3: "running"}  # api.proto, Status


@dataclass
class _Log:
    """What the event files of one folder have said so far."""

    points: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: {})
    params: dict[str, Scalar] = field(default_factory=lambda: {})
    state: str = ""
    config: dict[str, Any] | None = None


def read_tensorboard(source: str) -> tuple[list[TrackedRun], list[str]]:
    """The runs under a folder, one a folder that holds event files, and warnings about damaged files.

    A folder of hparams alone, or with a time as its name (as torch's add_hparams makes it), belongs to the one above it. Texts that
    transformers' Trainer logs, its arguments and the model's config, are params too. Raises InputError where there is
    no event file.
    """
    path = Path(source)
    logs: dict[Path, _Log] = {}
    warnings: list[str] = []
    for file in files_under(path):
        if "tfevents" not in file.name and file != path:
            continue
        log = logs.setdefault(file.parent, _Log())
        try:
            for event in _records(read_bytes(file, limit_bytes=FILE_LIMIT_BYTES)):
                _take(log, event)
        except wire.MalformedError as error:
            warnings.append(f"{file}: {error}; what stands before is used")
        except InputError as error:
            if file == path:
                raise
            warnings.append(str(error))
    if not logs:
        raise InputError("there is no event file (*tfevents*) in it", where=source, next_step="give a log folder")
    for folder in sorted(logs, reverse=True):  # from the innermost
        above = logs.get(folder.parent)
        if above is not None and above.points and (not logs[folder].points or _HPARAMS_FOLDER.fullmatch(folder.name)):
            inner = logs.pop(folder)
            above.params = {**inner.params, **above.params}
            above.points = {**inner.points, **above.points}
            above.state = above.state or inner.state
    return [
        TrackedRun(
            run_name(folder, path),
            str(folder),
            log.params,
            {tag: series(points) for tag, points in log.points.items()},
            log.state,
            log.config,
        )
        for folder, log in sorted(logs.items())
    ], warnings


def _records(data: bytes) -> Iterator[bytes]:
    """The records of a TFRecord file: length, its checksum, content, its checksum; a last one cut off is left out."""
    position = 0
    while position + 12 <= len(data):
        (size,) = struct.unpack_from("<Q", data, position)
        content = data[position + 12 : position + 12 + size]
        if len(content) < size:
            if position == 0:
                raise wire.MalformedError("is not an event file")
            return  # the writer was stopped in the middle of it
        yield content
        position += 12 + size + 4


def _take(log: _Log, event: bytes) -> None:
    step = 0.0
    summary, session = b"", b""
    for key, value in wire.fields(event):
        if key == _STEP:
            step = float(wire.signed(value))
        elif key == _SUMMARY and isinstance(value, bytes):
            summary = value
        elif key == _SESSION_LOG and isinstance(value, bytes):
            session = value
    # A session that starts (status 1) after others: what was logged from its step on is void.
    if session and any(key == 1 and value == 1 for key, value in wire.fields(session)):
        log.points = {tag: [p for p in points if p[0] < step] for tag, points in log.points.items()}
    for item in wire.inside(summary, _VALUE):
        _take_value(log, step, item)


def _take_value(log: _Log, step: float, item: bytes) -> None:
    tag, tensor, plugin = "", b"", b""
    simple: float | None = None
    for key, value in wire.fields(item):
        if isinstance(value, bytes):
            if key == _TAG:
                tag = wire.text(value)
            elif key == _TENSOR:
                tensor = value
            elif key == _METADATA:
                plugin = wire.last(value, 1)
        elif key == _SIMPLE:
            simple = float(value)
    if simple is not None:
        log.points.setdefault(tag, []).append((step, simple))
        return
    kind = wire.text(wire.last(plugin, 1)) if plugin else ""
    if kind == "hparams":
        _take_hparams(log, wire.last(plugin, 2))
    elif kind == "text" or tag.endswith("/text_summary"):
        _take_text(log, tag, tensor)
    elif tensor:
        value = _tensor_number(tensor)
        if value is not None:
            log.points.setdefault(tag, []).append((step, value))


def _tensor_number(tensor: bytes) -> float | None:
    """The one number of a tensor; None for a tensor of anything else."""
    formats = {1: "<f4", 2: "<f8", 3: "<i4", 9: "<i8"}  # DT_FLOAT, DT_DOUBLE, DT_INT32, DT_INT64
    numbers: list[float] = []
    kind = 0
    for key, value in wire.fields(tensor):
        if key == 1 and isinstance(value, int):
            kind = value
        elif key == 4 and isinstance(value, bytes) and kind in formats:
            width = int(formats[kind][2])
            numbers += np.frombuffer(value[: len(value) // width * width], formats[kind]).astype(float).tolist()
        elif key in (5, 6) and isinstance(value, bytes):  # packed floats or doubles
            width = 4 if key == 5 else 8
            numbers += np.frombuffer(value[: len(value) // width * width], f"<f{width}").astype(float).tolist()
        elif key in (5, 6) and isinstance(value, float):
            numbers.append(value)
    return numbers[0] if len(numbers) == 1 else None


def _take_hparams(log: _Log, content: bytes) -> None:
    for begun in wire.inside(content, 3):  # session_start_info
        for entry in wire.inside(begun, 1):  # a map: key, google.protobuf.Value
            for key, value in wire.fields(wire.last(entry, 2)):
                plain: Scalar | None = None
                if key == 2 and isinstance(value, float):
                    plain = value
                elif key == 3 and isinstance(value, bytes):
                    plain = scalar(wire.text(value))
                elif key == 4:
                    plain = bool(value)
                if plain is not None:
                    log.params[wire.text(wire.last(entry, 1))] = plain
    for ended in wire.inside(content, 4):  # session_end_info
        for key, value in wire.fields(ended):
            if key == 1 and isinstance(value, int):
                log.state = _ENDED.get(value, "")


def _take_text(log: _Log, tag: str, tensor: bytes) -> None:
    """The JSON object of a text, as Trainer's callback logs `args` and `model_config`."""
    try:
        found: Any = json.loads(wire.text(wire.last(tensor, 8)))
    except (ValueError, RecursionError):
        return
    if isinstance(found, dict):
        values = cast("dict[str, Any]", found)
        log.params.update({key: value for key, value in scalars(values).items() if key not in log.params})
        if tag.startswith("model_config"):
            log.config = values
