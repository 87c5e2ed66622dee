"""What is said of the rows of a run table: units that cannot be, cells that cannot be used, rows that belong together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moescale.io.frames import BoolArray
from moescale.runs import expansion as model_columns
from moescale.runs.groups import of_one_model, of_one_run
from moescale.typing import FloatArray

Rows = NDArray[np.int64]
Model = tuple[FloatArray, FloatArray, FloatArray, Mapping[str, NDArray[Any]]]
"""Size, tokens, experts (n,) and the other columns of runs."""

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
    if (found := of_one_run(*model)) is not None:
        name, groups = found
        ordered = model[1][groups.order]
        several = np.maximum.reduceat(ordered, groups.starts) > np.minimum.reduceat(ordered, groups.starts)
        if several.any():
            notes.append(
                f"{int(groups.sizes[several].sum()):,} rows are points of {count(several, 'run')} (column {name!r}): losses "
                "before the decay of the learning rate are too high; --last-point keeps the last point of each run"
            )
    groups = of_one_model(*model, row_numbers.astype(float))
    repeats = np.ones(len(row_numbers), dtype=np.bool_)
    repeats[groups.starts] = False
    if repeats.any():
        notes.append(
            f"{count(repeats, 'repeat')} of another run's size, tokens and experts; all are kept, and --best-of keeps the lowest "
            f"loss of each ({rows_text(np.sort(row_numbers[groups.order[repeats]]))})"
        )
    return tuple(notes)
