"""Runs of Hugging Face's Trainer: trainer_state.json, and config.json beside it. Pickled training_args.bin is not read."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from moescale.errors import InputError
from moescale.io.files import read_text
from moescale.runs.importers.tracked_run import (
    FINISHED,
    Scalar,
    TrackedRun,
    files_under,
    number,
    run_name,
    scalar,
    scalars,
    series,
)

STATE = "trainer_state.json"
ROW = "moescale"
"""The key under which moescale's own trainer leaves the row of its run table."""

_CHECKPOINT = re.compile(r"checkpoint-\d+|tracking")


def read_trainer(source: str) -> tuple[list[TrackedRun], list[str]]:
    """The runs under a folder (or of one trainer_state.json), and warnings about files that are none.

    Of a run's checkpoints the latest counts. Raises InputError where there is no trainer_state.json.
    """
    path = Path(source)
    latest: dict[Path, tuple[tuple[float, bool], Path, dict[str, Any]]] = {}
    warnings: list[str] = []
    found = False
    for file in files_under(path):
        if file.name != STATE and file != path:
            continue
        found = True
        try:
            state = _object(file)
        except InputError as error:
            if file == path:
                raise
            warnings.append(str(error))
            continue
        if not isinstance(state.get("log_history"), list):
            warnings.append(f"{file}: has no log_history: not a Trainer's state")
            continue
        folder = file.parent
        while _CHECKPOINT.fullmatch(folder.name):
            folder = folder.parent
        rank = (number(state.get("global_step", 0)), ROW in state)
        if folder not in latest or rank >= latest[folder][0]:
            latest[folder] = (rank, file, state)
    if not found:
        raise InputError(
            f"there is no {STATE} in it", where=source, next_step="give the output folder of a Trainer, or one above it"
        )
    return [_run(run_name(folder, path), *latest[folder][1:], folder, warnings) for folder in sorted(latest)], warnings


def _object(path: Path) -> dict[str, Any]:
    text = read_text(path)
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"is not JSON ({str(error)[:100]})", where=str(path)) from error
    if not isinstance(found, dict):
        raise InputError("is not a JSON object", where=str(path))
    return cast("dict[str, Any]", found)


def _run(name: str, file: Path, state: dict[str, Any], folder: Path, warnings: list[str]) -> TrackedRun:
    points: dict[str, list[tuple[float, float]]] = {}
    for entry in cast("list[Any]", state["log_history"]):
        if not isinstance(entry, Mapping):
            continue
        record = cast("Mapping[str, Any]", entry)
        step = number(record.get("step"))
        for key, value in record.items():
            plain = scalar(value)
            if key != "step" and isinstance(plain, float):
                points.setdefault(str(key), []).append((step, plain))
    named = {key: value for key, value in state.items() if key not in ("log_history", "config", ROW)}
    params: dict[str, Scalar] = {k: v for k, v in scalars(named).items() if "." not in k}
    for key in ("config", ROW):
        if isinstance(state.get(key), Mapping):
            params.update(scalars(cast("Mapping[str, Any]", state[key])))
    step, steps = number(state.get("global_step")), number(state.get("max_steps"))
    ended = FINISHED if steps > 0 and step >= steps else ""
    if steps > 0 and step < steps and not math.isnan(step):
        ended = f"at step {step:g} of {steps:g}"
    if isinstance(state.get("config"), Mapping):  # moescale's own, which adds the row at the end
        ended = FINISHED if ROW in state else "not finished"
    config = None
    for beside in (file.parent, folder, folder / "model"):
        if (beside / "config.json").is_file():
            try:
                config = _object(beside / "config.json")
                break
            except InputError as error:
                warnings.append(str(error))
    metrics = {key: series(values) for key, values in points.items()}
    return TrackedRun(name, str(file), params, metrics, ended, config)
