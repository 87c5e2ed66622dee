"""What is said of the rows of a run table: units that cannot be, cells that cannot be used, rows that belong together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moescale.runs import expansion as model_columns
from moescale.typing import BoolArray, FloatArray

Rows = NDArray[np.int64]
Model = tuple[FloatArray, FloatArray, FloatArray, Mapping[str, NDArray[Any]]]
"""Size, tokens, experts (n,) and the other columns of runs."""

Groups = NDArray[np.intp]  # (n,): rows of one number, counted from 0, belong together
RUN_COLUMNS = ("run_id", "run", "run_name", "name")
"""Columns that may name the run that a row is a point of, in the order of preference."""

MODEL_COLUMNS = ("unique_tokens", "granularity", "sparsity", "expansion", "top_k", "expert_width", "shared_width")
"""Columns that make two runs of one size, tokens and experts differ by more than their settings."""

DATA_COLUMNS = ("dataset", "data", "train", "corpus", "source", "tokenizer")
"""The same of columns of text: losses on two kinds of data do not compare."""

SMALLEST_PLAUSIBLE = 1e5  # parameters, or tokens: whole sweeps of less are numbers in millions or billions
LOWEST_PLAUSIBLE_LOSS = 1.3  # nats a token, of the worst run of a table; bits a byte lie below
HIGHEST_PLAUSIBLE_LOSS = 12.5  # ln of a vocabulary of 2^18: a guess is no worse; perplexities lie above


def count(mask: BoolArray, noun: str) -> str:
    number = int(mask.sum())
    return f"{number:,} {noun}{'s' if number != 1 else ''}"


def rows_text(rows: Rows) -> str:
    shown = ", ".join(str(row) for row in rows[:5].tolist())
    return f"data row{'s' if len(rows) > 1 else ''} {shown}{' ..' if len(rows) > 5 else ''}"


def unit_warnings(counts: Mapping[str, FloatArray], loss: FloatArray, loss_column: str) -> list[str]:
    """Notes on columns of which no value is plausible in the unit that a run table has: the rows stay as they are."""
    found = [
        f"column {name!r} reaches {values.max():g} at most: if the unit is millions or billions, write plain numbers (7e9); "
        "otherwise every answer of the law is in that unit"
        for name, values in counts.items()
        if values.max() < SMALLEST_PLAUSIBLE
    ]
    highest = float(loss.max(where=~np.isnan(loss), initial=-np.inf))
    if 0.0 < highest < LOWEST_PLAUSIBLE_LOSS:
        found.append(
            f"column {loss_column!r} reaches {highest:g} at most: if it is bits per byte, multiply by ln 2 and the bytes "
            "per token; the law assumes nats per token"
        )
    if highest > HIGHEST_PLAUSIBLE_LOSS:
        found.append(
            f"column {loss_column!r} reaches {highest:g}: if it is perplexity, take its natural logarithm; "
            "the law assumes nats per token"
        )
    return found


def model_warnings(columns: Mapping[str, NDArray[Any]], experts: FloatArray, rows: Rows) -> list[str]:
    """Notes on columns that would describe models, were it not for some of their cells."""
    found: list[str] = []
    for name in (name for name in model_columns.LEAST if name in columns):
        wrong = model_columns.unusable(columns[name], name, experts)
        # A column of another kind is not the one that is meant.
        if wrong.any() and columns[name].dtype.kind == "f":
            what = f"{count(wrong, 'cell')} of it {'is' if wrong.sum() == 1 else 'are'} not a number from"
            found.append(
                f"column {name!r} is not used: {what} {model_columns.LEAST[name]:g} ({rows_text(rows[wrong])})"
            )
    return found


def group_notes(model: Model, row_numbers: Rows) -> tuple[str, ...]:
    """Notes on rows that are points of one run, and on runs of one size, tokens and experts, which are all kept."""
    notes: list[str] = []
    tokens = model[1]
    if (found := of_one_run(model)) is not None:
        name, groups = found
        differs = tokens != tokens[_representatives(groups)]
        if differs.any():
            several = np.bincount(groups[differs]) > 0
            notes.append(
                f"{int(np.isin(groups, np.flatnonzero(several)).sum()):,} rows are points of {count(several, 'run')} "
                f"(column {name!r}): losses before the decay of the learning rate are too high; --last-point keeps the last "
                "point of each run"
            )
    repeats = np.ones(len(row_numbers), dtype=np.bool_)
    repeats[least_of_each(of_one_model(model), row_numbers)] = False
    if repeats.any():
        notes.append(
            f"{count(repeats, 'repeat')} of another run's size, tokens and experts; all are kept, and --best-of keeps the lowest "
            f"loss of each ({rows_text(np.sort(row_numbers[repeats]))})"
        )
    return tuple(notes)


# Rows that belong together.


def of_one_model(model: Model) -> Groups:
    """Runs of one size, tokens and experts, and of one value in each of `MODEL_COLUMNS` and `DATA_COLUMNS`."""
    n_params, tokens, experts, columns = model
    kinds = dict.fromkeys(MODEL_COLUMNS, "f") | dict.fromkeys(DATA_COLUMNS, "O")
    others = [columns[name] for name, kind in kinds.items() if name in columns and columns[name].dtype.kind == kind]
    return _numbered(zip(*(values.tolist() for values in (n_params, tokens, experts, *others)), strict=True))


def of_one_run(model: Model) -> tuple[str, Groups] | None:
    """The points of each run, and the column that names runs; None where no column does.

    A column names runs where each of its values belongs to one size and one expert count.
    """
    n_params, _, experts, columns = model
    for name in (column for column in RUN_COLUMNS if column in columns):
        groups = _numbered(columns[name].tolist())
        if all((values == values[_representatives(groups)]).all() for values in (n_params, experts)):
            return name, groups
    return None


def least_of_each(groups: Groups, values: NDArray[Any]) -> NDArray[np.intp]:
    """The row of the smallest value of each group, sorted; the first of several, NaN last."""
    order = np.lexsort((values, groups))
    return np.sort(order[np.unique(groups[order], return_index=True)[1]])


def _numbered(keys: Iterable[Any]) -> Groups:
    """A number for each key, the same where keys are equal; a missing number (NaN) is equal to no other."""
    number: dict[Any, int] = {}
    return np.array([number.setdefault(key, len(number)) for key in keys], dtype=np.intp)


def _representatives(groups: Groups) -> NDArray[np.intp]:
    """A row of the group of each row, (n,)."""
    return np.unique(groups, return_index=True)[1][groups]
