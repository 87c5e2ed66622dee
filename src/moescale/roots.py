"""Where rising functions of arrays change sign."""

from __future__ import annotations

from collections.abc import Callable
from types import EllipsisType

import numpy as np
from numpy.typing import NDArray

from moescale.typing import FloatArray

MOST_STEPS = 70  # halves the whole range of sizes to RESOLUTION, with SPARE_STEPS to spare
RESOLUTION = 4e-14  # of a size, relative: just above the rounding of what is solved
TRUNCATION = 0.2  # kappa_1 of the ITP method, over the span; kappa_2 is 2: its authors' choice
SPARE_STEPS = 8  # its n_0: the curves bend much, and a secant that falls short on one side at first needs the slack
TINY = 1e-300  # stands for a value of zero or NaN


def bracket(
    rising: Callable[[FloatArray], FloatArray], low: FloatArray, high: FloatArray, *, close: float = RESOLUTION
) -> tuple[FloatArray, FloatArray]:
    """The last negative and the first positive place, `close` to each other, of a function that rises from `low` to `high`.

    Elementwise; NaN counts as negative, and a function of one sign leads to that end. The ITP method (Oliveira and
    Takahashi 2020, doi 10.1145/3423597): as safe as halving, whose steps it exceeds by SPARE_STEPS at most, and as fast as
    the secant where the function is smooth.
    """
    return bracket_rows(lambda at, _: rising(at), low, high, close=close)


def bracket_rows(
    rising: Callable[[FloatArray, NDArray[np.intp] | EllipsisType], FloatArray],
    low: FloatArray,
    high: FloatArray,
    *,
    close: float = RESOLUTION,
    by_row: bool = False,
) -> tuple[FloatArray, FloatArray]:
    """`bracket` of a function of places and of the rows, numbers along the first axis, that they are of.

    `by_row`: it is asked only of rows with a place that is still searched, of all others never again.
    """
    low, high = np.broadcast_arrays(np.asarray(low, float), np.asarray(high, float))
    span = np.maximum(high - low, close)
    reserve = np.exp2(np.ceil(np.log2(span / close))) * (0.5 * close * 2.0**SPARE_STEPS)
    at_low, at_high = rising(low, ...), rising(high, ...)
    at_low, at_high = np.where(at_low < 0.0, at_low, -1.0), np.where(at_high > 0.0, at_high, 1.0)
    for _ in range(MOST_STEPS):
        width = high - low
        searched = width > close  # one that is found stays, so that its digits do not depend on the others
        if not np.any(searched):
            break
        middle = 0.5 * (low + high)
        with np.errstate(invalid="ignore", over="ignore"):
            secant = (at_high * low - at_low * high) / (at_high - at_low)
        away = middle - np.where(np.isfinite(secant), secant, middle)
        # Never by less than half of what ends the search, or the far end would stay where it is.
        nudge = np.maximum(TRUNCATION * width * width / span, 0.5 * close)
        away = np.sign(away) * np.maximum(np.abs(away) - nudge, 0.0)
        allowed = np.maximum(reserve - 0.5 * width, 0.0)
        at = middle - np.clip(away, -allowed, allowed)
        at = np.where(searched, at, low)  # where a caller that remembers its last answer has nothing to do
        rows = np.flatnonzero(searched.any(axis=tuple(range(1, at.ndim)))) if by_row else ...
        value = np.zeros(at.shape)
        value[rows] = rising(at[rows], rows)
        above, below = searched & (value > 0.0), searched & ~(value > 0.0)
        high, at_high = np.where(above, at, high), np.where(above, value, at_high)
        low, at_low = np.where(below, at, low), np.where(below, np.where(value < 0.0, value, -TINY), at_low)
        reserve = 0.5 * reserve
    return low, high
