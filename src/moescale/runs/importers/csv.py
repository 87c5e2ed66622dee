"""Any table with one row a run, its columns of any name: CSV, TSV, Parquet, JSON lines; W&B's and MLflow's exports among them."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from moescale.errors import InputError
from moescale.io import frames
from moescale.io.json_text import parse_json
from moescale.runs.importers.guesses import LOSS_COLUMN, may_be
from moescale.runs.importers.tracked_run import FINISHED, TrackedRun, Wanted, existing, scalars
from moescale.units import parse_count

NAMES = ("name", "run_name", "tags.mlflow.runname", "run", "run_id", "id", "model", "model_name")  # in lower case
STATE_NAMES = ("State", "state", "status")
STATES = {FINISHED, "running", "crashed", "failed", "killed", "preempted", "preempting", "scheduled", "pending", ""}
LONGEST_MAPPING = 100_000  # characters of a cell that holds settings as a mapping
_UNNAMED = re.compile(r"\b(?:nan|inf)\b")  # which Python prints in a mapping, and does not read
_GAP = re.compile(r"(?<=\d)[\s_'\u2019](?=\d{3}(?:\D|$))")  # between groups of three digits
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d*)?")
_DECIMAL_COMMA = re.compile(r"[+-]?(?:\d{1,3}(?:\.\d{3})+|\d+),\d+(?:[eE][+-]?\d+)?")


def read_wandb(source: str, wanted: Wanted) -> tuple[list[TrackedRun], list[str]]:
    """The runs of the CSV export of W&B's run table, and warnings; InputError for anything else."""
    if existing(source).suffix.lower() not in (".csv", ".tsv"):
        step = "upload offline runs (`wandb sync`), and export the table of runs as CSV"
        raise InputError("there is no CSV export of W&B's run table", where=source, next_step=step)
    return read_csv(source, wanted)


def read_csv(source: str, wanted: Wanted) -> tuple[list[TrackedRun], list[str]]:
    """The rows of a table as runs, and warnings; InputError for what is no table, and for W&B's export of a chart.

    A cell may be a number with a unit (7B), a percentage (a share), or have its digits in groups.
    """
    del wanted
    if Path(source).is_dir():
        raise InputError("is a folder", where=source, next_step=f"give one table: {frames.FORMATS}")
    table = frames.read_table(source)
    if any(name.endswith(("__MIN", "__MAX")) for name in table.columns):
        what = "is an export of a chart of W&B"
        raise InputError(what, where=source, next_step="export the table of runs: one row a run")
    warnings: list[str] = []
    columns = _columns(table, warnings)
    states = {name: {str(cell).strip().lower() for cell in columns[name]} for name in STATE_NAMES if name in columns}
    state = next((name for name, found in states.items() if found <= STATES), None)
    naming = sorted((name for name in columns if name.lower() in NAMES), key=lambda name: NAMES.index(name.lower()))
    runs: list[TrackedRun] = []
    for row in range(table.n_rows):
        params = scalars({name: _unfolded(cells[row]) for name, cells in columns.items()}, depth=5)
        ended = FINISHED if state is None else str(params.pop(state, FINISHED)).lower()
        named = (str(params[name]) for name in naming if isinstance(params.get(name), str))
        called = next(named, f"row {row + 1}")
        params.pop("Name", None)
        runs.append(TrackedRun(called, f"{source}, data row {row + 1}", params, state=ended))
    return runs, warnings


def _columns(table: frames.Table, warnings: list[str]) -> dict[str, list[Any]]:
    """The cells by column: floats, truths, or texts; None where there is none, NaN where a loss is."""
    found: dict[str, list[Any]] = {}
    texts_of: dict[str, list[str]] = {}
    with_commas: list[str] = []
    for name, column in table.columns.items():
        values = frames.as_values(column)
        found[name] = values.tolist()
        if values.dtype.kind == "f":  # "NaN" is what a loss ended as, and elsewhere none
            ended = ("nan", "-nan") if may_be(name, LOSS_COLUMN) else ()
            told = zip(found[name], frames.as_texts(column).tolist(), strict=True)
            found[name] = [None if math.isnan(v) and text.strip().lower() not in ended else v for v, text in told]
        elif values.dtype == np.object_ and name.lower() not in NAMES:
            texts = [_GAP.sub("", text.strip()) for text in found[name]]
            commas = [text.rstrip("% ") for text in texts if "," in text]
            if all(_THOUSANDS.fullmatch(text) or _DECIMAL_COMMA.fullmatch(text) for text in commas):
                texts_of[name] = texts
                with_commas += commas
    decimal = any(not _THOUSANDS.fullmatch(text) for text in with_commas)
    kind, marks = ("decimal marks", {".": "", ",": "."}) if decimal else ("thousands separators", {",": ""})
    for name, texts in texts_of.items():
        at = next((i for i, text in enumerate(texts) if "," in text), None)
        numbers = _numbers(texts if at is None else [text.translate(str.maketrans(marks)) for text in texts])
        if numbers is not None:
            found[name] = numbers
            if at is not None:
                told = f"commas in column {name!r} are taken as {kind}"
                warnings.append(f"{told}: {texts[at]} is {numbers[at]:.10g}")
    return found


def _numbers(texts: list[str]) -> list[float | None] | None:
    """What every cell that is not empty states as a number, percentages as shares; None where one states none."""

    def number(text: str) -> float:
        return parse_count(text.removesuffix("%").rstrip()) / (100.0 if text.endswith("%") else 1.0)

    with suppress(InputError):
        return [None if text.lower() in frames.MISSING_TEXTS else number(text) for text in texts]
    return None


def _unfolded(cell: Any) -> Any:
    """The mapping that a cell holds as text, as W&B's own recipe for an export writes it; else the cell."""
    if isinstance(cell, str) and cell[:1] == "{" and len(cell) <= LONGEST_MAPPING:
        with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            mapping = ast.literal_eval(_UNNAMED.sub("None", cell)) if "'" in cell else parse_json(cell, where="")
            return mapping if isinstance(mapping, Mapping) else cell
    return cell
