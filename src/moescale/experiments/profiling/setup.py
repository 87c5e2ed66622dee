"""The environment of an engine that pins its own torch: a virtual environment made by pip."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from moescale import catalogue
from moescale.errors import InputError, unknown_name


def default_folder(engine: str) -> Path:
    """Where `--setup` makes the environment when no folder is given, below the user's cache folder."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "moescale" / engine


def python_of(folder: Path) -> Path:
    """The interpreter of a virtual environment."""
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def commands(engine: str, python: Path, *, nvidia: bool) -> list[list[str]]:
    """The pip commands that catalogue/engines.toml states for this kind of machine, in order."""
    known = catalogue.read("engines.toml")
    if engine not in known:
        raise unknown_name("engine", engine, known, where="--setup")
    steps = known[engine]["nvidia" if nvidia else "cpu"]["pip"]
    return [[str(python), "-m", "pip", *step] for step in steps]


def set_up(engine: str, folder: Path | None = None, *, report: Callable[[str], None] | None = None) -> Path:
    """Make the environment of `engine` in `folder`, and return its interpreter; several GB, some minutes.

    An environment that is there is completed. Raises InputError where a step fails, with the end of what pip said.
    """
    place = folder or default_folder(engine)
    python = python_of(place)
    steps = commands(engine, python, nvidia=shutil.which("nvidia-smi") is not None)
    pip = (*place.glob("lib/python*/site-packages/pip"), *place.glob("Lib/site-packages/pip"))
    if not (python.exists() and pip):  # without pip it was killed halfway
        steps.insert(0, [sys.executable, "-m", "venv", str(place)])
    for step in steps:
        if report is not None:
            report(" ".join(step))
        try:
            done = subprocess.run(step, capture_output=True, text=True, check=False)
        except OSError as error:
            raise InputError(f"cannot be run: {error.strerror or error}", where=step[0]) from error
        if done.returncode:
            end = " / ".join((done.stderr or done.stdout).strip().splitlines()[-3:])
            raise InputError(
                f"`{' '.join(step[1:])}` failed: {end}", where=str(place), next_step="run it by hand to see all"
            )
    return python
