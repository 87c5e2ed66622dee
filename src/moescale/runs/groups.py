"""Rows of a table that belong together: settings that were tried on one model, and points of one run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moescale.typing import FloatArray

Rows = NDArray[np.intp]

RUN_COLUMNS = ("run_id", "run", "run_name", "name")
"""Columns that may name the run that a row is a point of, in the order of preference."""

MODEL_COLUMNS = ("unique_tokens", "granularity", "sparsity", "expansion", "top_k", "expert_width", "shared_width")
"""Columns that make two runs of one size, tokens and experts differ by more than their settings."""

DATA_COLUMNS = ("dataset", "data", "train", "corpus", "source", "tokenizer")
"""The same of columns of text: losses on two kinds of data do not compare."""


@dataclass(frozen=True, slots=True)
class Groups:
    """Rows in the order of their groups, and where in it each group starts."""

    order: Rows
    starts: Rows

    @property
    def sizes(self) -> Rows:
        """Rows of each group."""
        return np.diff(np.append(self.starts, self.order.size))

    def first(self) -> Rows:
        """The first row of each group, sorted."""
        return np.sort(self.order[self.starts])


def grouped(keys: Sequence[NDArray[Any]], then: FloatArray) -> Groups:
    """Rows that are equal in all `keys`, each (n,) and comparable; within a group by `then`, smallest first."""
    order = np.lexsort((then, *keys[::-1]))
    begins = np.ones(order.size, dtype=np.bool_)
    begins[1:] = False
    for key in keys:
        ordered = key[order]
        begins[1:] |= ordered[1:] != ordered[:-1]
    return Groups(order, np.flatnonzero(begins))


def of_one_model(
    n_params: FloatArray, tokens: FloatArray, experts: FloatArray, columns: Mapping[str, NDArray[Any]], then: FloatArray
) -> Groups:
    """Runs of one size, tokens and experts, and of one value in each of `MODEL_COLUMNS` and `DATA_COLUMNS`.

    Sorted by `then` within a group.
    """
    others = [columns[name] for name in MODEL_COLUMNS if name in columns and columns[name].dtype.kind == "f"]
    texts = [_numbered(columns[name]) for name in DATA_COLUMNS if name in columns and columns[name].dtype.kind == "O"]
    return grouped((n_params, tokens, experts, *others, *texts), then)


def of_one_run(
    n_params: FloatArray, tokens: FloatArray, experts: FloatArray, columns: Mapping[str, NDArray[Any]]
) -> tuple[str, Groups] | None:
    """The points of each run, longest first, and the column that names runs; None where no column does.

    A column names runs where each of its values belongs to one size and one expert count.
    """
    for name in (column for column in RUN_COLUMNS if column in columns):
        by_run = grouped((_numbered(columns[name]),), -tokens)
        of_run = np.repeat(by_run.order[by_run.starts], by_run.sizes)  # the first row of each row's run
        if all((values[by_run.order] == values[of_run]).all() for values in (n_params, experts)):
            return name, by_run
    return None


def _numbered(column: NDArray[Any]) -> Rows:
    """The cells of a column as numbers that are equal where the cells are; a missing number is equal to no other."""
    number: dict[Any, int] = {}
    return np.array([number.setdefault(value, len(number)) for value in column.tolist()], dtype=np.intp)
