"""Where rising functions of arrays change sign."""

from __future__ import annotations

from collections.abc import Callable
from types import EllipsisType

import numpy as np
from numpy.typing import NDArray

from moescale.typing import FloatArray

MOST_STEPS = 200  # halves the whole range of sizes to RESOLUTION in 50
RESOLUTION = 4e-14  # of a size, relative: just above the rounding of what is solved
TINY = 1e-300  # stands for a value of zero or NaN
EVEN = np.linspace(0.0, 1.0, 7)  # of a range: where a function is asked at once
AROUND = np.array((-0.03, -1e-3, -1e-5, 1e-5, 1e-3, 0.03))  # the secant's zero


def bracket(
    rising: Callable[[FloatArray], FloatArray],
    low: FloatArray,
    high: FloatArray,
    *,
    close: float = RESOLUTION,
) -> tuple[FloatArray, FloatArray]:
    """The last negative and the first positive place, `close` to each other, of a function that rises from `low` to `high`.

    Elementwise; NaN counts as negative, and a function of one sign leads to that end. Chandrupatla's method (1997, doi
    10.1016/S0965-9978(96)00051-8), as in `scipy.optimize.elementwise.find_root`, which has no rows.
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
    at_low, at_high = rising(low, ...), rising(high, ...)
    # x[0] is the newest place, x[1] the one beyond the change of sign, x[2] the one that was dropped last; f their values.
    x = np.stack((low, high, high))
    f = np.stack((np.where(at_low < 0.0, at_low, -1.0), *(np.where(at_high > 0.0, at_high, 1.0),) * 2))
    share = np.full(low.shape, 0.5)
    for _ in range(MOST_STEPS):
        # One that is found stays, so that its digits do not depend on the others.
        searched = np.abs(x[1] - x[0]) > close
        if not np.any(searched):
            break
        at = np.where(searched, x[0] + share * (x[1] - x[0]), x[0])
        rows = np.flatnonzero(searched.any(axis=tuple(range(1, at.ndim)))) if by_row else ...
        value = np.zeros(at.shape)
        value[rows] = rising(at[rows], rows)
        value = np.where(value > 0.0, value, np.where(value < 0.0, value, -TINY))
        same = (value > 0.0) == (f[0] > 0.0)
        x, f = (
            np.where(searched, (new, np.where(same, y[1], y[0]), np.where(same, y[0], y[1])), y)
            for new, y in ((at, x), (value, f))
        )
        share = _next_share(x, f, 0.5 * close)
    negative = f[0] < 0.0
    return np.where(negative, x[0], x[1]), np.where(negative, x[1], x[0])


def _next_share(x: FloatArray, f: FloatArray, least: float) -> FloatArray:
    """Where between x[0] and x[1] to look next: inverse quadratic interpolation where three values bend little, else the middle."""
    with np.errstate(all="ignore"):
        place, level = (x[0] - x[1]) / (x[2] - x[1]), (f[0] - f[1]) / (f[2] - f[1])
        straight = (level**2 < place) & ((1.0 - level) ** 2 < 1.0 - place)
        share = f[0] / (f[1] - f[0]) * f[2] / (f[1] - f[2])
        share = share + (x[2] - x[0]) / (x[1] - x[0]) * f[0] / (f[2] - f[0]) * f[1] / (f[2] - f[1])
        nearest = np.minimum(least / np.abs(x[1] - x[0]), 0.5)  # or the far end would stay where it is
        return np.clip(np.where(straight & np.isfinite(share), share, 0.5), nearest, 1.0 - nearest)


def last_within(
    rising: Callable[[FloatArray, NDArray[np.bool_]], FloatArray], low: FloatArray, high: FloatArray, *, close: float
) -> tuple[FloatArray, FloatArray]:
    """The last places (n,), from `low` to `high`, before a function first is positive, `close` to that; `low` where it always is.

    Of the c values (c, k, j) at places the first is meant; all of those found are the second answer, (c, n). For
    functions that take hardly longer at many places than at one: five or six steps where `bracket` takes a dozen.
    """
    at = low + (high - low) * EVEN[:, None]
    ends, values = _around_zero(at, rising(at, np.ones(low.shape, np.bool_)))
    while np.any(searched := ends[1] - ends[0] > close):
        (low, high), known = ends[:, searched], values[..., searched]
        at_low, at_high = known[0]
        secant = np.where(np.isfinite(at_low + at_high), at_low / np.where(at_low < 0.0, at_low - at_high, 1.0), 0.5)
        near = np.clip(secant + AROUND[:, None], 0.0, 1.0)
        shares = np.sort(np.concatenate((near, np.broadcast_to(EVEN[1:-1, None], (EVEN.size - 2, low.size)))), axis=0)
        at = low + (high - low) * shares
        value = np.concatenate((known[:, :1], rising(at, searched), known[:, 1:]), axis=1)
        ends[:, searched], values[..., searched] = _around_zero(np.concatenate((low[None], at, high[None])), value)
    return ends[0], values[:, 0]


def _around_zero(at: FloatArray, value: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Of places (k, j), the last before the first positive value and that one, (2, j), and their values; one place twice without both."""
    beyond = value[0] > 0.0
    first = np.where(beyond.any(axis=0), beyond.argmax(axis=0), len(at) - 1)
    last = np.where(beyond[first, np.arange(first.size)], np.maximum(first - 1, 0), first)
    pair = np.stack((last, first))
    return np.take_along_axis(at, pair, axis=0), np.take_along_axis(value, pair[None], axis=1)
