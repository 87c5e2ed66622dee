"""What is said of the rows of a run table: units that cannot be, cells that cannot be used, rows that belong together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moescale.io.frames import BoolArray
from moescale.runs import expansion as model_columns
from moescale.typing import FloatArray

Rows = NDArray[np.int64]
Model = tuple[FloatArray, FloatArray, FloatArray, Mapping[str, NDArray[Any]]]
"""Size, tokens, experts (n,) and the other columns of runs."""

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
    found: list[str] = []
    for name, values in counts.items():
        if values.max() < SMALLEST_PLAUSIBLE:
            found.append(
                f"column {name!r} reaches {values.max():g} at most: if the unit is millions or billions, write plain "
                "numbers (7e9); otherwise every answer of the law is in that unit"
            )
    loss = loss[~np.isnan(loss)]
    if loss.size and loss.max() < LOWEST_PLAUSIBLE_LOSS:
        found.append(
            f"column {loss_column!r} reaches {loss.max():g} at most: if it is bits per byte, multiply by ln 2 and the bytes "
            "per token; the law assumes nats per token"
        )
    if loss.size and loss.max() > HIGHEST_PLAUSIBLE_LOSS:
        found.append(
            f"column {loss_column!r} reaches {loss.max():g}: if it is perplexity, take its natural logarithm; "
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
    if (found := of_one_run(model)) is not None:
        name, groups = found
        ordered = model[1][groups.order]
        several = np.maximum.reduceat(ordered, groups.starts) > np.minimum.reduceat(ordered, groups.starts)
        if several.any():
            notes.append(
                f"{int(groups.sizes[several].sum()):,} rows are points of {count(several, 'run')} (column {name!r}): losses "
                "before the decay of the learning rate are too high; --last-point keeps the last point of each run"
            )
    groups = of_one_model(model, row_numbers.astype(float))
    repeats = np.ones(len(row_numbers), dtype=np.bool_)
    repeats[groups.starts] = False
    if repeats.any():
        notes.append(
            f"{count(repeats, 'repeat')} of another run's size, tokens and experts; all are kept, and --best-of keeps the lowest "
            f"loss of each ({rows_text(np.sort(row_numbers[groups.order[repeats]]))})"
        )
    return tuple(notes)


# Rows that belong together.


@dataclass(frozen=True, slots=True)
class Groups:
    """Rows in the order of their groups, and where in it each group starts."""

    order: NDArray[np.intp]
    starts: NDArray[np.intp]

    @property
    def sizes(self) -> NDArray[np.intp]:
        """Rows of each group."""
        return np.diff(np.append(self.starts, self.order.size))

    def first(self) -> NDArray[np.intp]:
        """The first row of each group, sorted."""
        return np.sort(self.order[self.starts])


def grouped(keys: Sequence[NDArray[Any]], then: FloatArray) -> Groups:
    """Rows that are equal in all `keys`, each (n,) and comparable; within a group by `then`, smallest first."""
    order = np.lexsort((then, *keys[::-1]))
    differs = np.any([key[order][1:] != key[order][:-1] for key in keys], axis=0)
    return Groups(order, np.flatnonzero(np.concatenate(([True], differs))[: order.size]))


def of_one_model(model: Model, then: FloatArray) -> Groups:
    """Runs of one size, tokens and experts, and of one value in each of `MODEL_COLUMNS` and `DATA_COLUMNS`.

    Sorted by `then` within a group.
    """
    n_params, tokens, experts, columns = model
    others = [columns[name] for name in MODEL_COLUMNS if name in columns and columns[name].dtype.kind == "f"]
    texts = [_numbered(columns[name]) for name in DATA_COLUMNS if name in columns and columns[name].dtype.kind == "O"]
    return grouped((n_params, tokens, experts, *others, *texts), then)


def of_one_run(model: Model) -> tuple[str, Groups] | None:
    """The points of each run, longest first, and the column that names runs; None where no column does.

    A column names runs where each of its values belongs to one size and one expert count.
    """
    n_params, tokens, experts, columns = model
    for name in (column for column in RUN_COLUMNS if column in columns):
        by_run = grouped((_numbered(columns[name]),), -tokens)
        of_run = np.repeat(by_run.order[by_run.starts], by_run.sizes)  # the first row of each row's run
        if all((values[by_run.order] == values[of_run]).all() for values in (n_params, experts)):
            return name, by_run
    return None


def _numbered(column: NDArray[Any]) -> NDArray[np.intp]:
    """The cells of a column as numbers that are equal where the cells are; a missing number is equal to no other."""
    number: dict[Any, int] = {}
    return np.array([number.setdefault(value, len(number)) for value in column.tolist()], dtype=np.intp)
