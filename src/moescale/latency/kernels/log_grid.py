"""Interpolation on a measured grid: linear in the logarithms, so that power laws between points come out exactly."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from moescale.typing import FloatArray, Real

# How far beyond the largest measured size of an axis a kernel is continued, as saturated: its time then is in proportion.
# Plans ask for models of a million parameters, of which a server could run millions of requests at once.
MOST_BEYOND = 1e4
# A row that takes so many times as long as the next larger size along every axis is an accident of its measurement: of
# B200's 35,742 fp8 products in vLLM's tables 1.8% took up to seven times as long as all their neighbours. Steps of a
# kernel from tile to tile go along one axis, and stay.
ACCIDENT = 1.5


@dataclass(frozen=True, slots=True, eq=False)
class LogGrid:
    """Times over a rectangular grid of sizes, all as natural logarithms.

    Below an axis the time of its smallest size holds; above it time rises with `slopes`, the exponents of a saturated
    kernel, up to MOST_BEYOND.
    """

    axes: tuple[FloatArray, ...]  # ascending logarithms of sizes
    log_s: FloatArray  # one dimension an axis
    slopes: tuple[float, ...]

    def seconds(self, *sizes: Real) -> FloatArray:
        """Seconds at `sizes`, one an axis, which broadcast; NaN beyond MOST_BEYOND times an axis."""
        log_s: Real = 0.0
        # In the flat table: the corner below in every axis, what leads from there to each corner, and the way on each axis.
        place, stride, corners = np.intp(0), self.log_s.size, [0]
        shares: list[FloatArray] = []
        for axis, size, slope in zip(self.axes, sizes, self.slopes, strict=True):
            stride //= len(axis)
            at = np.log(np.asarray(size, dtype=np.float64))
            if at.size and at.max() > axis[-1]:
                beyond = np.maximum(at - axis[-1], 0.0)
                log_s = log_s + np.where(beyond <= np.log(MOST_BEYOND), slope * beyond, np.nan)
            if len(axis) == 1:
                continue
            low = axis[1:-1].searchsorted(at, side="right")
            shares.append(np.minimum(np.maximum((at - axis[low]) / (axis[1:] - axis[:-1])[low], 0.0), 1.0))
            corners = [on + step for on in corners for step in (0, stride)]
            place = place + low * stride
        flat = self.log_s.ravel()
        values = [np.asarray(flat[on:].take(place)) for on in corners]
        for share in reversed(shares):  # low + share * (high - low), in place
            for low, high in zip(values[::2], values[1::2], strict=True):
                np.add(low, np.multiply(share, np.subtract(high, low, out=high), out=high), out=high)
            values = values[1::2]
        return np.exp(log_s + values[0])


def grid_of(sizes: tuple[FloatArray, ...], seconds: FloatArray, slopes: tuple[float, ...]) -> LogGrid:
    """The grid of measured rows: one size array an axis, all (n,); rows of equal sizes are averaged, accidents left out.

    Holes are filled in two steps: between measured sizes along an axis, the last one first; elsewhere from the nearest
    smaller known size with that axis's slope, or the nearest larger one with its time, of several axes the least, along
    the last two axes first.
    """
    values, index = zip(*(np.unique(size, return_inverse=True) for size in sizes), strict=True)
    total = np.zeros([len(v) for v in values])
    count = np.zeros_like(total)
    np.add.at(total, index, np.log(seconds))
    np.add.at(count, index, 1.0)
    with np.errstate(invalid="ignore"):
        log_s = total / count
    axes = tuple(np.log(v) for v in values)
    # The last ones of an axis, and rows without a next one, are no accidents.
    rises = [np.diff(log_s, axis=i, append=np.nan) for i, size in enumerate(log_s.shape) if size > 1]
    if rises:
        log_s[np.max(rises, axis=0) < -np.log(ACCIDENT)] = np.nan
    every = tuple(range(len(axes)))
    for i in reversed(every):
        curves = np.moveaxis(log_s, i, -1)
        known = ~np.isnan(curves)
        for at in np.argwhere(known.any(axis=-1) & ~known.all(axis=-1)):
            curve, there = curves[tuple(at)], known[tuple(at)]
            curve[:] = np.interp(axes[i], axes[i][there], curve[there], left=np.nan, right=np.nan)
    for along in (every[-2:], every):
        _continue(log_s, axes, slopes, along)
    return LogGrid(axes, log_s, slopes)


def _continue(
    log_s: FloatArray, axes: tuple[FloatArray, ...], slopes: tuple[float, ...], along: tuple[int, ...]
) -> None:
    """Fill NaN, in place, from values that are known along some dimensions; upwards with slopes, then downwards."""
    for upwards in (True, False):
        while np.isnan(log_s).any():
            least = np.full_like(log_s, np.inf)
            for i in along:
                rise = (upwards * slopes[i] * axes[i]).reshape([-1 if j == i else 1 for j in range(len(axes))])
                least = np.fmin(least, _carried(log_s - rise, i, upwards=upwards) + rise)
            filled = np.isnan(log_s) & np.isfinite(least)
            if not filled.any():
                break
            log_s[filled] = least[filled]


def _carried(values: FloatArray, i: int, *, upwards: bool) -> FloatArray:
    """Every value, or the last one before it along dimension `i` that is known; NaN where there is none."""
    step = 1 if upwards else -1
    rows = np.moveaxis(values, i, 0)[::step]
    place = np.arange(len(rows)).reshape(-1, *[1] * (rows.ndim - 1))
    last = np.maximum.accumulate(np.where(np.isnan(rows), 0, place), axis=0)
    return np.moveaxis(np.take_along_axis(rows, last, axis=0)[::step], 0, i)
