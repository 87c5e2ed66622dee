"""Runs of Hugging Face's Trainer: trainer_state.json, and config.json beside it. Pickled training_args.bin is not read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from moescale.io.json_text import read_object
from moescale.runs.importers import tracked_run
from moescale.runs.importers.tracked_run import FINISHED, Points, TrackedRun, Wanted, number, scalar, scalars

STATE = "trainer_state.json"
_CHECKPOINT = re.compile(r"checkpoint-\d+|tracking")


def read_trainer(source: str, wanted: Wanted) -> tuple[list[TrackedRun], list[str]]:
    """The runs under a folder (or of one trainer_state.json), each by its latest checkpoint; warnings of bad files."""
    path = Path(source)
    latest: dict[Path, tuple[float, Path, dict[str, Any]]] = {}
    warnings: list[str] = []
    advice = "give the output folder of a Trainer, or one above it"
    for file in tracked_run.files_of(source, lambda file: file.name == STATE, STATE, advice):
        with tracked_run.damage_noted(file, path, warnings):
            state = read_object(file)
            if not isinstance(state.get("log_history"), list):
                warnings.append(f"{file}: has no log_history: not a Trainer's state")
                continue
            folder = file.parent
            while _CHECKPOINT.fullmatch(folder.name):
                folder = folder.parent
            rank = number(state.get("global_step", 0))
            if folder not in latest or rank >= latest[folder][0]:
                latest[folder] = (rank, file, state)
    named = {folder: tracked_run.run_name(folder, path) for folder in sorted(latest)}
    return [_run(name, *latest[folder][1:], folder, warnings) for folder, name in named.items()], warnings


def _run(name: str, file: Path, state: dict[str, Any], folder: Path, warnings: list[str]) -> TrackedRun:
    points: Points = {}
    for entry in cast("list[Any]", state["log_history"]):
        record = cast("Mapping[str, Any]", entry if isinstance(entry, Mapping) else {})
        step = number(record.get("step"))
        for key, value in record.items():
            if key != "step" and isinstance(plain := scalar(value), float):
                points.setdefault(str(key), []).append((step, plain))
    params = scalars({key: value for key, value in state.items() if key != "log_history"}, depth=0)
    step, steps = number(state.get("global_step")), number(state.get("max_steps"))
    ended = FINISHED if steps > 0 and step >= steps else f"at step {step:g} of {steps:g}" if 0 < steps > step else ""
    config = None
    for beside in (file.parent, folder, folder / "model"):
        with tracked_run.damage_noted(beside / "config.json", file, warnings):
            if config is None and (beside / "config.json").is_file():
                config = read_object(beside / "config.json")
    return TrackedRun(name, str(file), params, points, ended, config)
