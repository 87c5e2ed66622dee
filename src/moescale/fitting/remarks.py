"""What a fit has to say of the table that it was made from: far-off runs, unlike sources, columns that it does not use."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from moescale.fitting.fit import robust_spread
from moescale.io.filters import quoted_name
from moescale.runs.table import RunTable, rows_text
from moescale.scaling_laws.form import LawForm
from moescale.scaling_laws.store import FORMS
from moescale.typing import FloatArray

FAR = 8.0  # robust standard deviations: of 10,000 runs with normal errors none lies so far out
FAR_AT_LEAST = 0.02  # of ln L: what a run without a fault may be off by where the others fit very well

MOST_SOURCES, FEWEST_OF_SOURCE = 12, 3
UNLIKE = 0.1  # of ln L between sources: more than misfit of a form leaves, less than bits a byte are off from nats


def far_off(residuals: FloatArray) -> tuple[NDArray[np.bool_], FloatArray]:
    """Which residuals of ln L lie far outside the others, (n,), and how many robust standard deviations out all lie."""
    away = np.abs(residuals - np.median(residuals))
    usual = robust_spread(away)
    return (away > FAR * usual) & (away > FAR_AT_LEAST), away / max(usual, 1e-12)


def far_off_remarks(residuals: FloatArray, runs: RunTable) -> list[str]:
    """A remark on the runs that the fit misses by far, with the way to leave them out."""
    far, times = far_off(residuals)
    if not (count := int(far.sum())):
        return []
    ends = dict.fromkeys(f"{x:.0f}" if x < 1e6 else f"{x:.1g}" for x in (times[far].min(), times[far].max()))
    lie, them = ("run lies", "it") if count == 1 else ("runs lie", "them")
    rows = rows_text(np.sort(runs.row_numbers[far]))
    what = f"{count:,} {lie} {' to '.join(ends)} times the usual error from the fit ({rows})"
    return [f"{what}: did they diverge, or does the form not cover them? mark {them} true in a column diverged"]


def source_remarks(residuals: FloatArray, runs: RunTable) -> list[str]:
    """A remark on each text column that parts the runs into sources whose losses lie apart: other data, or another unit."""
    found: list[str] = []
    for name, column in runs.columns.items():
        if column.dtype.kind not in "OU":
            continue
        values, number, counts = np.unique(column.astype(np.str_), return_inverse=True, return_counts=True)
        if not 2 <= len(values) <= MOST_SOURCES or counts.min() < FEWEST_OF_SOURCE:
            continue
        parts = [residuals[number == i] for i in range(len(values))]
        middles = np.array([np.median(part) for part in parts])
        within = float(np.median(np.abs(residuals - middles[number])))
        low, high = int(np.argmax(middles)), int(np.argmin(middles))  # the law promises too much of the lowest losses
        if middles[low] - middles[high] <= max(UNLIKE, 4.0 * within):
            continue
        below = 100.0 * (1.0 - np.exp(middles[high] - middles[low]))
        less, more = (f"{quoted_name(name)} == '{values[i]}'" for i in (low, high))
        what = f"runs with {less} lie {below:.2g}% below those with {more} at equal size and tokens"
        found.append(f'{what}: different data or unit of loss? Fit one at a time with --where "{more}"')
    return found


def unused_columns(form: LawForm, runs: RunTable) -> list[str]:
    """Remarks on columns that tell runs apart and that the form has no input for."""
    found: list[str] = []
    for name in ("unique_tokens", "granularity"):
        column = runs.columns.get(name)
        if name in form.extra_inputs or column is None or column.dtype.kind != "f" or np.isnan(column).any():
            continue
        what = f"column {name!r} varies and is not used by {form.name}"
        matters = name == "granularity" and np.unique(column[runs.experts > 1.0]).size > 1
        if name == "unique_tokens":
            matters = count = int((column < runs.tokens * (1.0 - 1e-9)).sum())
            repeat = "runs that repeat" if count > 1 else "run that repeats"
            what = f"column {name!r} is not used by {form.name}: {count:,} {repeat} data count as fresh"
        if matters:
            takers = " or ".join(other.name for other in FORMS.values() if name in other.extra_inputs)
            found.append(f"{what}; fit --law {takers}")
    return found


def table_remarks(form: LawForm, residuals: FloatArray, runs: RunTable) -> Sequence[str]:
    """All remarks of a fit of the form on its table, with the residuals ln(predicted / measured) of the runs."""
    return (*unused_columns(form, runs), *source_remarks(residuals, runs), *far_off_remarks(residuals, runs))
