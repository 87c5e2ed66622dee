"""Runs of TensorBoard: the scalars, hparams and texts of event files, read by TensorBoard's own EventAccumulator."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import numpy as np

from moescale.errors import InputError
from moescale.io.json_text import parse_json
from moescale.runs.importers import tracked_run
from moescale.runs.importers.tracked_run import FINISHED, TrackedRun, Wanted, scalars

_HPARAMS_FOLDER = re.compile(r"\d+\.\d+")
_ENDED = {0: "", 1: FINISHED, 2: "failed", 3: "running"}  # hparams/api.proto, Status


def read_tensorboard(source: str, wanted: Wanted) -> tuple[list[TrackedRun], list[str]]:
    """The runs under a folder, one a folder that holds event files, and warnings about damaged ones.

    A folder of hparams alone, or with a time as its name (as torch's add_hparams makes it), belongs to the one above
    it. Texts that transformers' Trainer logs, its arguments and the model's config, are params too.
    """
    path = Path(source)
    warnings: list[str] = []
    kind = "event file (*tfevents*)"
    files = tracked_run.files_of(source, lambda file: "tfevents" in file.name, kind, "give a log folder")
    logs: dict[Path, TrackedRun] = {}
    for folder in dict.fromkeys(file.parent for file in files):
        place = path if path.is_file() else folder
        with tracked_run.damage_noted(place, path, warnings), tracked_run.read_by("TensorBoard", str(place)):
            log = TrackedRun(tracked_run.run_name(folder, path), str(folder))
            _read(log, place, source)
            logs[folder] = log
    for folder in sorted(logs, reverse=True):  # from the innermost
        above = logs.get(folder.parent)
        if above is not None and above.points and (not logs[folder].points or _HPARAMS_FOLDER.fullmatch(folder.name)):
            inner = logs.pop(folder)
            above.params = {**inner.params, **above.params}
            above.points = {**inner.points, **above.points}
            above.state = above.state or inner.state
    return [logs[folder] for folder in sorted(logs)], warnings


def _read(log: TrackedRun, place: Path, source: str) -> None:
    reading = "tensorboard.backend.event_processing.event_accumulator"
    events = tracked_run.library(reading, "tensorboard", source).EventAccumulator(
        str(place), size_guidance={"scalars": 0, "tensors": 0}
    )
    events.Reload()
    tags = events.Tags()
    for tag in tags["scalars"]:
        log.points[tag] = [(float(event.step), float(event.value)) for event in events.Scalars(tag)]
    for tag in tags["tensors"]:
        for event in events.Tensors(tag):
            value = event.tensor_proto
            if value.string_val:
                _take_text(log, tag, value.string_val[0].decode("utf-8", "replace"))
            elif (numbers := _numbers(value)).size == 1:
                log.points.setdefault(tag, []).append((float(event.step), float(numbers.flat[0])))
    with suppress(KeyError):  # where there are no hparams
        plugin: Any = tracked_run.library("tensorboard.plugins.hparams.plugin_data_pb2", "tensorboard", source)
        for content in events.PluginTagToContent("hparams").values():
            hparams = plugin.HParamsPluginData.FromString(content)
            values = hparams.session_start_info.hparams.items()
            log.params |= scalars({key: getattr(v, v.WhichOneof("kind") or "string_value") for key, v in values})
            if hparams.HasField("session_end_info"):
                log.state = _ENDED.get(hparams.session_end_info.status, "")


def _numbers(tensor: Any) -> np.ndarray[Any, Any]:
    """A tensor of numbers as an array; empty for one of anything else."""
    from tensorboard.util import tensor_util  # pyright: ignore[reportMissingImports]

    try:
        array = np.asarray(tensor_util.make_ndarray(tensor))
    except (TypeError, ValueError):
        return np.empty(0)
    return array if array.dtype.kind in "iuf" else np.empty(0)


def _take_text(log: TrackedRun, tag: str, text: str) -> None:
    """The JSON object of a text, as Trainer's callback logs `args` and `model_config`."""
    found: object = None
    with suppress(InputError):
        found = parse_json(text, where=tag)
    if isinstance(found, dict):
        values = cast("dict[str, Any]", found)
        log.params.update({key: value for key, value in scalars(values).items() if key not in log.params})
        if tag.startswith("model_config"):
            log.config = values
