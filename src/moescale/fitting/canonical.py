"""Runs as a fit sees them: in an order that their numbers alone decide, and with losses in a unit of their own.

A sum of the same terms in another order differs in its last digit, and searches along flat valleys enlarge that. So the rows
of a file, the names of runs and the unit of the loss must be gone before a fit begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moescale.runs.expansion import LEAST
from moescale.runs.table import SIZE_COLUMNS, RunTable
from moescale.scaling_laws.covariates import FURTHER_INPUTS
from moescale.scaling_laws.form import LawForm
from moescale.typing import FloatArray

Rows = NDArray[np.intp]

READ = tuple(sorted({*SIZE_COLUMNS, *LEAST, *FURTHER_INPUTS}))  # what a fit may read beside N, D, E and the loss
DECIMALS = 10  # of ln L: six more than losses are measured to, six fewer than a product keeps


def by_numbers(
    n_params: FloatArray, tokens: FloatArray, experts: FloatArray, loss: FloatArray, further: Sequence[NDArray[Any]]
) -> Rows:
    """The order of rows, (n,), that columns (n,) alone decide."""
    return np.lexsort((*reversed(further), loss, n_params, experts, tokens))


def order(runs: RunTable) -> Rows:
    """The rows by tokens, experts, size, loss and the further columns that a fit reads, (n,)."""
    further = [runs.columns[name] for name in READ if name in runs.columns and runs.columns[name].dtype.kind == "f"]
    return by_numbers(runs.n_params, runs.tokens, runs.experts, runs.loss, further)


def reordered(runs: RunTable, rows: Rows) -> RunTable:
    """The table with its rows in another order."""
    arrays = {name: getattr(runs, name)[rows] for name in ("n_params", "tokens", "experts", "loss", "row_numbers")}
    return replace(runs, **arrays, columns={name: values[rows] for name, values in runs.columns.items()})


def without_unit(runs: RunTable) -> tuple[RunTable, float]:
    """The table with losses over their geometric mean, whose logarithm comes second.

    Rounded, so that the digits are the same in any unit.
    """
    ln_loss = np.log(runs.loss)
    unit = float(ln_loss.mean())
    return replace(runs, loss=np.exp(np.round(ln_loss - unit, DECIMALS))), unit


def in_unit(form: LawForm, theta: FloatArray, unit: float) -> FloatArray:
    """Coefficients (..., p) of a form that is linear in its amplitudes, with the loss multiplied by e^unit."""
    moved = np.array(theta)
    moved[..., form.amplitudes] += unit
    return moved
