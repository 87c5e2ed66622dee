"""Interpolation on a measured grid: linear in the logarithms, so that power laws between points come out exactly."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moescale.architecture import FloatArray, Real

# How far beyond the largest measured size of an axis a kernel is continued, as saturated: its time then is in proportion.
# Plans ask for models of a million parameters, of which a server could run millions of requests at once.
MOST_BEYOND = 1e4


@dataclass(frozen=True, slots=True, eq=False)
class LogGrid:
    """Times over a rectangular grid of sizes, all as natural logarithms.

    Below an axis the time of its smallest size holds (a kernel never takes less than its launch); above it the time
    rises with `slopes`, the exponent of a saturated kernel, up to MOST_BEYOND times the largest size.
    """

    axes: tuple[FloatArray, ...]  # ascending logarithms of sizes
    log_s: FloatArray  # one dimension an axis
    slopes: tuple[float, ...]

    def seconds(self, *sizes: Real) -> FloatArray:
        """Seconds at `sizes`, one an axis, which broadcast; NaN beyond MOST_BEYOND times an axis."""
        beyond_s: FloatArray = np.asarray(0.0)
        corners: list[tuple[npt.NDArray[np.intp], FloatArray | None]] = [(np.asarray(0, dtype=np.intp), None)]
        stride = self.log_s.size
        for axis, size, slope in zip(self.axes, sizes, self.slopes, strict=True):
            stride //= len(axis)
            at = np.log(np.asarray(size, dtype=np.float64))
            if at.size and np.max(at) > axis[-1]:
                beyond = np.maximum(at - axis[-1], 0.0)
                beyond_s = beyond_s + np.where(beyond <= np.log(MOST_BEYOND), slope * beyond, np.nan)
            if len(axis) == 1:
                continue
            low = np.minimum(np.maximum(np.searchsorted(axis, at, side="right") - 1, 0), len(axis) - 2)
            share = np.minimum(np.maximum((at - axis[low]) / (axis[low + 1] - axis[low]), 0.0), 1.0)
            rest = 1.0 - share
            start = low * stride
            corners = [
                (index + offset, part if weight is None else weight * part)
                for index, weight in corners
                for offset, part in ((start, rest), (start + stride, share))
            ]
        flat = self.log_s.ravel()
        log_s = sum((flat[i] if weight is None else weight * flat[i] for i, weight in corners), start=beyond_s)
        return np.exp(log_s)


def grid_of(sizes: tuple[FloatArray, ...], seconds: FloatArray, slopes: tuple[float, ...]) -> LogGrid:
    """The grid of measured rows: one size array an axis, all (n,); rows of one place are averaged (in logarithms).

    Where the measurements leave a hole, as for sizes that the GPU's memory did not hold, the time is continued from the
    next smaller size along the last axis that has one, with that axis's slope; from the smallest one downwards it holds.
    """
    values = [np.unique(size) for size in sizes]
    index = tuple(np.searchsorted(v, size) for v, size in zip(values, sizes, strict=True))
    total = np.zeros([len(v) for v in values])
    count = np.zeros_like(total)
    np.add.at(total, index, np.log(seconds))
    np.add.at(count, index, 1.0)
    with np.errstate(invalid="ignore"):
        log_s = total / count
    axes = tuple(np.log(v) for v in values)
    for i in reversed(range(len(axes))):
        _continue(log_s, axes[i], i, slopes[i])
    return LogGrid(axes, log_s, slopes)


def _continue(log_s: FloatArray, axis: FloatArray, i: int, slope: float) -> None:
    """Fill NaN along dimension `i`: upwards with the slope, then downwards with the same time."""
    rows = np.moveaxis(log_s, i, 0)
    for j in range(1, len(axis)):
        hole = np.isnan(rows[j])
        rows[j][hole] = rows[j - 1][hole] + slope * (axis[j] - axis[j - 1])
    for j in reversed(range(len(axis) - 1)):
        hole = np.isnan(rows[j])
        rows[j][hole] = rows[j + 1][hole]
