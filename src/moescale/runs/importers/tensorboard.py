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
from moescale.runs.importers import tracked_run
from moescale.runs.importers.tracked_run import FINISHED, Points, Scalar, TrackedRun, Wanted, curves, scalar, scalars
from moescale.runs.importers.wire import MalformedError, Message

# Field numbers of tensorboard/compat/proto (event, summary, tensor) and tensorboard/plugins/hparams.
_STEP, _SUMMARY, _SESSION_LOG = 2, 5, 7
_VALUE, _TAG, _SIMPLE, _TENSOR, _METADATA = 1, 1, 2, 8, 9
_HPARAMS_FOLDER = re.compile(r"\d+\.\d+")
_ENDED = {0: "", 1: FINISHED, 2: "failed", 3: "running"}  # api.proto, Status
_TYPES = {1: "<f4", 2: "<f8", 3: "<i4", 9: "<i8"}  # types.proto: DT_FLOAT, DT_DOUBLE, DT_INT32, DT_INT64


@dataclass
class _Log:
    """What the event files of one folder have said so far."""

    points: Points = field(default_factory=lambda: {})
    params: dict[str, Scalar] = field(default_factory=lambda: {})
    state: str = ""
    config: dict[str, Any] | None = None


def read_tensorboard(source: str, wanted: Wanted) -> tuple[list[TrackedRun], list[str]]:
    """The runs under a folder, one a folder that holds event files, and warnings about damaged files.

    A folder of hparams alone, or with a time as its name (as torch's add_hparams makes it), belongs to the one above it. Texts that
    transformers' Trainer logs, its arguments and the model's config, are params too. Raises InputError where there is
    no event file.
    """
    path = Path(source)
    logs: dict[Path, _Log] = {}
    warnings: list[str] = []
    for file in tracked_run.files_under(path):
        if "tfevents" not in file.name and file != path:
            continue
        log = logs.setdefault(file.parent, _Log())
        with tracked_run.damage_noted(file, path, warnings):
            for event in _records(read_bytes(file, limit_bytes=tracked_run.FILE_LIMIT_BYTES)):
                _take(log, Message(event))
    if not logs:
        raise InputError("there is no event file (*tfevents*) in it", where=source, next_step="give a log folder")
    for folder in sorted(logs, reverse=True):  # from the innermost
        above = logs.get(folder.parent)
        if above is not None and above.points and (not logs[folder].points or _HPARAMS_FOLDER.fullmatch(folder.name)):
            inner = logs.pop(folder)
            above.params = {**inner.params, **above.params}
            above.points = {**inner.points, **above.points}
            above.state = above.state or inner.state
    named = [(tracked_run.run_name(folder, path), str(folder), log) for folder, log in sorted(logs.items())]
    runs = [TrackedRun(name, at, log.params, curves(log.points), log.state, log.config) for name, at, log in named]
    return runs, warnings


def _records(data: bytes) -> Iterator[bytes]:
    """The records of a TFRecord file: length, its checksum, content, its checksum; a last one cut off is left out."""
    position = 0
    while position + 12 <= len(data):
        (size,) = struct.unpack_from("<Q", data, position)
        content = data[position + 12 : position + 12 + size]
        if len(content) < size:
            if position == 0:
                raise MalformedError("is not an event file")
            return  # the writer was stopped in the middle of it
        yield content
        position += 12 + size + 4


def _take(log: _Log, event: Message) -> None:
    step = float(event.whole(_STEP) or 0)
    # A session that starts (status 1) after others: what was logged from its step on is void.
    if event.message(_SESSION_LOG).whole(1) == 1:
        log.points = {tag: [p for p in points if p[0] < step] for tag, points in log.points.items()}
    for item in event.message(_SUMMARY).messages(_VALUE):
        tag, tensor = item.text(_TAG), item.message(_TENSOR)
        plugin = item.message(_METADATA).message(1)
        logged = item.numbers(_SIMPLE)[-1:]
        if not logged and plugin.text(1) == "hparams":
            _take_hparams(log, plugin.message(2))
        elif not logged and (plugin.text(1) == "text" or tag.endswith("/text_summary")):
            _take_text(log, tag, tensor.text(8))
        else:
            for value in logged or _one_number(tensor):
                log.points.setdefault(tag, []).append((step, float(value)))


def _one_number(tensor: Message) -> list[float]:
    """The one number of a tensor; none for a tensor of anything else."""
    packed = [(piece, _TYPES[kind]) for piece in tensor.pieces(4) if (kind := tensor.whole(1) or 0) in _TYPES]
    packed += [(piece, "<f4") for piece in tensor.pieces(5)] + [(piece, "<f8") for piece in tensor.pieces(6)]
    numbers = [value for value in (*tensor.numbers(5), *tensor.numbers(6)) if isinstance(value, float)]
    for piece, kind in packed:
        numbers += np.frombuffer(piece[: len(piece) // int(kind[2]) * int(kind[2])], kind).astype(float).tolist()
    return numbers if len(numbers) == 1 else []


def _take_hparams(log: _Log, content: Message) -> None:
    for begun in content.messages(3):  # session_start_info
        for entry in begun.messages(1):  # a map: key, google.protobuf.Value
            value = entry.message(2)
            stated = [*value.numbers(2), *(bool(truth) for truth in value.numbers(4)), value.text(3)]
            plain = scalar(stated[0])
            if plain is not None:
                log.params[entry.text(1)] = plain
    for ended in content.messages(4):  # session_end_info
        if (status := ended.whole(1)) is not None:
            log.state = _ENDED.get(status, "")


def _take_text(log: _Log, tag: str, text: str) -> None:
    """The JSON object of a text, as Trainer's callback logs `args` and `model_config`."""
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError):
        return
    if isinstance(found, dict):
        values = cast("dict[str, Any]", found)
        log.params.update({key: value for key, value in scalars(values).items() if key not in log.params})
        if tag.startswith("model_config"):
            log.config = values
