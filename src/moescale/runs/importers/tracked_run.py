"""Runs as any experiment tracker holds them: params, curves, and whether they ended; and what their readers share."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from moescale.errors import DamagedFileError, InputError, install
from moescale.io.files import nearest_file_names
from moescale.io.filters import column_names, evaluate_numbers
from moescale.io.frames import first_line
from moescale.models.architecture import Architecture
from moescale.models.hf_config import from_config
from moescale.models.parameters import count_parameters
from moescale.typing import FloatArray

FINISHED = "finished"
STEP = "step"  # in an expression: the step at which the loss was taken

# The names under which libraries log the optimiser's step; W&B's own _step counts calls of log.
STEPS = ("train/global_step", "trainer/global_step", "global_step", "step", "iteration", "iter", "_step")
_KIND = re.compile(r"(?:config|summary|params|metrics|hparams)[./]")  # how exports of trackers begin a name
MOST_FILES = 100_000  # that a folder is searched for

Scalar = float | bool | str
Points = dict[str, list[tuple[float, float]]]  # (step, value) of each metric as logged; NaN where no step is known
Wanted = Callable[[str], bool]  # whether a metric's whole curve may be asked for; where it costs nothing it is given


def bare(name: str) -> str:
    """A name without the part of a tracker that it is from."""
    found = _KIND.match(name)
    return name[found.end() :] if found else name


class Series(NamedTuple):
    """A metric over steps: both float64 of one length; steps ascend, NaN (no step known) last."""

    steps: FloatArray
    values: FloatArray

    def until(self, step: float) -> float | None:
        """The last value at or before `step` (NaN: the last of all); None where there is none."""
        index = int(np.searchsorted(self.steps, step, side="right"))  # NaN is beyond all numbers
        if index == 0 and math.isnan(self.steps[-1]):  # logged without steps
            index = len(self.steps)
        return float(self.values[index - 1]) if index else None


@dataclass(eq=False)
class TrackedRun:
    """One run of a tracker, which its reader fills.

    `where` tells a reader which run is meant, `state` is FINISHED, "" where the tracker does not say, or what it says
    instead, and `config` the Hugging Face configuration of the model, where known.
    """

    name: str
    where: str
    params: dict[str, Scalar] = field(default_factory=dict[str, Scalar])
    points: Points = field(default_factory=dict[str, list[tuple[float, float]]])
    state: str = ""
    config: Mapping[str, Any] | None = None

    @cached_property
    def metrics(self) -> Mapping[str, Series]:
        """The curve of each metric, of a step the last value (as after a restart); to be asked when all is read."""
        curves: dict[str, Series] = {}
        for name, logged in ((name, logged) for name, logged in self.points.items() if logged):
            placed = dict(point for point in logged if not math.isnan(point[0]))
            unplaced = (point for point in logged if math.isnan(point[0]))
            curves[name] = Series(*np.array([*sorted(placed.items()), *unplaced], dtype=np.float64).T)
        return curves

    def value(self, name: str, step: float) -> Scalar | None:
        """What an expression has under a name: a param, a metric's value at `step` (NaN: its last), or the step itself."""
        if name == STEP and not math.isnan(step):
            return step
        if name in self.params:
            return self.params[name]
        return self.metrics[name].until(step) if name in self.metrics else None

    def last_step(self) -> float:
        """The last step of any metric, else what the params state; NaN where it is not known."""
        stated = {bare(name): value for name, value in self.params.items()}
        otherwise = next((step for name in STEPS if isinstance(step := stated.get(name), float)), math.nan)
        return max(
            (float(s) for points in self.points.values() for s, _ in points if not math.isnan(s)), default=otherwise
        )

    @cached_property
    def architecture(self) -> Architecture | None:
        """The shape that a configuration beside the run, or among its params, states; None where there is none readable."""
        stated = [name.removesuffix("model_type") for name in self.params if re.search(r"(^|[./])model_type$", name)]
        of_params = [{k.removeprefix(p): v for k, v in self.params.items() if k.startswith(p)} for p in stated]
        for config in ([] if self.config is None else [self.config]) + of_params:
            with suppress(InputError):
                return from_config(config)
        return None

    @cached_property
    def sizes(self) -> Mapping[str, float]:
        """Sizes without embeddings, experts and top-k by the configuration; the dense size is that of one FFN in every layer."""
        a = self.architecture
        if a is None:
            return {}
        moe, counted = float(np.max(a.n_moe_layers)) > 0, count_parameters(a)
        width = a.d_ffn if float(np.max(a.d_ffn)) > 0 else a.top_k * a.d_expert + a.d_shared_expert
        dense = count_parameters(replace(a, n_moe_layers=0.0, d_ffn=width))
        return {
            "n_params_dense": float(dense.non_embedding_total),
            "n_params_active": float(counted.non_embedding_active),
            "n_params_total": float(counted.non_embedding_total),
            "n_experts": float(a.n_experts) if moe else 1.0,
            "top_k": float(a.top_k) if moe else 1.0,
        }

    @property
    def tokens_of_flos(self) -> float | None:
        """Tokens by Trainer's own count of FLOPs, 6 tokens (parameters - input embedding): modeling_utils' floating_point_ops."""
        flos, a = self.params.get("total_flos", self.value("train/total_flos", math.nan)), self.architecture
        if a is None or not isinstance(flos, float) or not flos > 0:
            return None
        tokens = flos / (6.0 * (float(count_parameters(a).total) - float(a.vocab_size) * float(a.d_model)))
        return float(round(tokens)) if math.isfinite(tokens) else None


_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(nan|inf|infinity)", re.IGNORECASE)
_MISSING = ("", "none", "null", "n/a")
LONGEST_TEXT = 1000  # of a cell; longer texts are documents, not settings


def scalar(value: Any) -> Scalar | None:
    """A logged value as number, truth or text, with texts of numbers and truths as what they state; else None."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return number(value)
    if not isinstance(value, str) or len(value) > LONGEST_TEXT:
        return None
    text = value.strip()
    if text.lower() in _MISSING:
        return None
    if text in ("True", "true", "False", "false"):
        return text.lower() == "true"
    return float(text) if len(text) < 100 and _NUMBER.fullmatch(text) else _printable(value)


def number(value: Any) -> float:
    """A number of any size as float64; NaN for what is none."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _printable(text: str) -> str:
    """The text without what no table can hold: lone surrogates and NUL."""
    return text.encode("utf-8", "replace").decode("utf-8").replace("\0", "")


def scalars(values: Mapping[Any, Any], prefix: str = "", depth: int = 4) -> dict[str, Scalar]:
    """The scalars of a nested mapping under names joined by dots; lists and deeper nesting are left out."""
    found: dict[str, Scalar] = {}
    for key, value in values.items():
        name = f"{prefix}{_printable(str(key))}"
        if isinstance(value, Mapping):
            if depth:
                found.update(scalars(value, f"{name}.", depth - 1))  # pyright: ignore[reportUnknownArgumentType]
        elif (plain := scalar(value)) is not None:
            found[name] = plain
    return found


def existing(source: str) -> Path:
    """The path of a file or folder; InputError where there is none."""
    if not os.path.exists(source):
        nearest = nearest_file_names(source)
        raise InputError("no such file or folder", where=source, nearest=nearest, next_step="check the path")
    return Path(source)


def files_of(source: str, is_one: Callable[[Path], object], kind: str, advice: str) -> list[Path]:
    """The files of a tracker: the source itself, or those in the folder and below it (not by links), sorted."""
    place = existing(source)
    if not place.is_dir():
        return [place]
    inside = (Path(folder, name) for folder, _, names in os.walk(place) for name in names)
    files = list(islice(inside, MOST_FILES + 1))
    if len(files) > MOST_FILES:
        raise InputError(f"holds more than {MOST_FILES:,} files", where=source, next_step="give a part")
    found = sorted(file for file in files if is_one(file) and file.is_file())  # a pipe would be waited for
    if not found:
        raise InputError(f"there is no {kind} in it", where=source, next_step=advice)
    return found


@contextmanager
def damage_noted(file: Path, source: Path, warnings: list[str]) -> Generator[None]:
    """A file that cannot be read becomes a warning, unless it is the source itself."""
    try:
        yield
    except InputError as error:
        if file == source:
            raise
        warnings.append(str(error))


def library(module: str, package: str, where: str) -> Any:
    """A module of a tracker's own package; raises InputError with what to install where it is not there."""
    try:
        return import_module(module)
    except ImportError as error:
        raise InputError(f"needs {package}, which is not installed", where=where, next_step=install("track")) from error


@contextmanager
def read_by(program: str, where: str) -> Generator[None]:
    """Whatever a tracker's library raises, as one error that names what it read."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        what, advice = f"cannot be read by {program}: {first_line(error)}", "check the place, and that it is whole"
        raise DamagedFileError(what, where=where, next_step=advice) from error


def run_name(folder: Path, source: Path) -> str:
    """What a run in `folder` is called among those below `source`: the path between them, less what trackers add."""
    relative = os.path.relpath(folder, source if source.is_dir() else source.parent)
    parts = [part for part in Path(relative).parts if part not in (".", "tracking", "tensorboard", "logs", "runs")]
    return _printable("/".join(parts) or Path(os.path.abspath(folder)).name or "run")


class Origin(NamedTuple):
    """Where a column may come from: what is said of it, and its cells, one a run, None where there is none."""

    text: str
    cells: Sequence[Scalar | None]


class Logged:
    """The runs of a source, the names that any of them has, and the step at which the loss of each was taken."""

    def __init__(self, runs: Sequence[TrackedRun]) -> None:
        self.runs = runs
        self.names = dict.fromkeys(name for run in runs for name in (*run.params, *run.metrics))
        self.steps = [run.last_step() for run in runs]

    def named(self, name: str) -> Origin:
        """What the runs have under a name; a param stands before a metric."""
        return Origin(repr(name), [run.value(name, step) for run, step in zip(self.runs, self.steps, strict=True)])

    def loss(self, name: str, mean_of: int = 1) -> Origin:
        """The mean of the last `mean_of` values of a loss's curves, whose last steps are those of the loss from here on."""
        curves = [None if name in run.params else run.metrics.get(name) for run in self.runs]
        for i, curve in enumerate(curves):
            if curve is not None and not math.isnan(curve.steps[-1]):
                self.steps[i] = float(curve.steps[-1])
        cells = [
            run.params.get(name) if curve is None else float(np.mean(curve.values[-mean_of:]))
            for run, curve in zip(self.runs, curves, strict=True)
        ]
        return Origin(repr(name) + (f" (mean of last {mean_of})" if mean_of > 1 else ""), cells)

    def computed(self, expression: str) -> Origin:
        """The numbers of an expression over names; raises InputError for what is none."""
        names = column_names(expression) or (STEP,)
        columns = {name: np.array([_float_or_nan(cell) for cell in self.named(name).cells]) for name in names}
        values, known = evaluate_numbers(expression, columns)
        return Origin(f"'{expression}'", [v if k else None for v, k in zip(values.tolist(), known, strict=True)])


def _float_or_nan(cell: Scalar | None) -> float:
    return cell if isinstance(cell, float) else math.nan
