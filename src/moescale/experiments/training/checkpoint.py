"""Checkpoints: weights and optimiser through torch's distributed checkpoints, the rest as JSON; a folder or nothing."""

# Where torch is not installed, nothing is known of its types; where it is, the strict rules hold in full.
# pyright: reportMissingImports=false, reportUnknownParameterType=false, reportUntypedFunctionDecorator=false

from __future__ import annotations

import json
import os
import re
import shutil
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from moescale.errors import InputError, UnwrittenError
from moescale.io.files import write_atomically, write_error

MOMENTS = ("exp_avg", "exp_avg_sq")
OS_ERROR = re.compile(r"\(os error (\d+)\)")  # as libraries written in Rust end an error of the system


def tensors_of(model: nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Any]:
    """Weights and moments by name; DTensors where the model is laid out over processes."""
    found: dict[str, Any] = {}
    for name, parameter in model.named_parameters():
        found[name] = parameter.detach()
        state = optimiser.state[parameter]
        state.setdefault("step", torch.zeros((), device=parameter.device))
        for moment in MOMENTS:
            if moment not in state:
                state[moment] = torch.zeros_like(parameter.detach(), memory_format=torch.preserve_format)
            found[f"{moment}/{name}"] = state[moment]
    return found


def save(folder: Path, name: str, model: nn.Module, optimiser: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Write the checkpoint `name`; it takes its place only when it is whole. Every process calls this.

    Raises UnwrittenError where it cannot be written, such as on a full disk, and leaves nothing of it then.
    """
    dcp: Any = import_module("torch.distributed.checkpoint")
    alone = not dist.is_initialized()
    first = alone or dist.get_rank() == 0
    aside, place = folder / f".{name}.tmp", folder / name
    try:
        if first:
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir(parents=True)
        _wait()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there is no process group, which is no news
            dcp.save(tensors_of(model, optimiser), checkpoint_id=aside, no_dist=alone)
        if first:
            write_atomically(aside / "state.json", json.dumps(state))
            shutil.rmtree(place, ignore_errors=True)
            aside.rename(place)
    except (OSError, RuntimeError, UnwrittenError, dcp.api.CheckpointException) as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise unwritten(place, error) from error
    _wait()


def unwritten(place: Path, error: BaseException) -> UnwrittenError:
    """Why weights could not be written: the system's error, which the libraries wrap in errors of their own."""
    failures: Any = getattr(error, "failures", {})  # of dcp: by process, an error and where it was raised
    queue: list[BaseException | None] = [error, *(failure[0] for failure in failures.values())]
    while queue:
        cause = queue.pop(0)
        if isinstance(cause, UnwrittenError):
            return cause
        if cause is None:
            continue
        if isinstance(cause, OSError) and cause.errno:
            return write_error(str(place), cause)
        if found := OS_ERROR.search(str(cause)):
            return write_error(str(place), OSError(int(found[1]), os.strerror(int(found[1]))))
        queue += [cause.__cause__, cause.__context__]
    lines = str(error).strip().splitlines()
    return UnwrittenError(
        f"cannot be written: {lines[-1][:300] if lines else type(error).__name__}", where=str(place),
        next_step="mend it; the run goes on from its last checkpoint",
    )  # fmt: skip


def load(folder: Path, name: str, model: nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Any]:
    """Restore the checkpoint `name` in place, in any layout; returns its state. Every process calls this."""
    dcp: Any = import_module("torch.distributed.checkpoint")
    place = folder / name
    try:
        state = json.loads((place / "state.json").read_text(encoding="utf-8"))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dcp.load(tensors_of(model, optimiser), checkpoint_id=place, no_dist=not dist.is_initialized())
    except (OSError, ValueError, RuntimeError, dcp.api.CheckpointException) as error:
        reason = str(error).strip().splitlines()
        raise InputError(
            f"cannot be read as a checkpoint: {reason[-1] if reason else type(error).__name__}", where=str(place),
            next_step="remove that folder to go on from an earlier one, or start over with --no-resume",
        ) from error  # fmt: skip
    for parameter in model.parameters():
        steps = torch.tensor(float(state["updates"]), device=parameter.device)
        optimiser.state[parameter]["step"] = steps
    return state


def names(folder: Path) -> list[str]:
    """Whole checkpoints, the oldest first."""
    if not folder.is_dir():
        return []
    found = [path for path in folder.iterdir() if not path.name.startswith(".") and (path / "state.json").exists()]
    return [path.name for path in sorted(found, key=lambda path: (path / "state.json").stat().st_mtime_ns)]


def remove(folder: Path, but: set[str]) -> None:
    """Drop every checkpoint, and what a killed process left, except those named. One process calls this."""
    if folder.is_dir():
        for path in folder.iterdir():
            if path.name not in but:
                shutil.rmtree(path, ignore_errors=True)


def _wait() -> None:
    if dist.is_initialized():
        dist.barrier()
