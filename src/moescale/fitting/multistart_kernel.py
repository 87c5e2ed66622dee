"""The compiled search of the paper's grid: projected L-BFGS on equation 4, many starts side by side (extra `fast`).

Importing this module imports numba. The arithmetic is that of `moescale.fitting.multistart`; a vector here is a block of LANES starts, so
that every inner loop runs over neighbours in memory and compiles to vector instructions.
"""

# Explicit loops are what numba compiles best.
# pyright: basic, reportUntypedFunctionDecorator=false, reportIndexIssue=false, reportCallIssue=false

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from moescale.typing import FloatArray

LANES = 64  # starts that advance together: whole vectors, and enough of them to pay for each loop's entry
PARAMETERS = 11  # of equation 4, and ln N0
MEMORY = 6  # pairs of steps that the L-BFGS remembers

# The thread pool of numba's workqueue layer may not be entered twice.
_pool = threading.Lock()


@intrinsic
def _bits(_context, x):
    """The 64 bits of a double as an integer."""

    def build(_context, builder, _signature, arguments):
        return builder.bitcast(arguments[0], ir.IntType(64))

    return types.int64(types.float64), build


@intrinsic
def _double(_context, bits):
    """The double that these 64 bits are."""

    def build(_context, builder, _signature, arguments):
        return builder.bitcast(arguments[0], ir.DoubleType())

    return types.float64(types.int64), build


@numba.njit(inline="always", fastmath={"contract"})
def _exp(x):
    """e^x without a branch or a call, to 2 units in the last place; x is held within +-690, as in `moescale.fitting.multistart`."""
    x = min(max(x, -690.0), 690.0)
    k = math.floor(x * 1.4426950408889634 + 0.5)
    r = (x - k * 0.693147180369123816490) - k * 1.90821492927058770002e-10
    p = 1.0 / 479001600.0
    p = p * r + 1.0 / 39916800.0
    p = p * r + 1.0 / 3628800.0
    p = p * r + 1.0 / 362880.0
    p = p * r + 1.0 / 40320.0
    p = p * r + 1.0 / 5040.0
    p = p * r + 1.0 / 720.0
    p = p * r + 1.0 / 120.0
    p = p * r + 1.0 / 24.0
    p = p * r + 1.0 / 6.0
    p = p * r + 0.5
    p = p * r + 1.0
    p = p * r + 1.0
    return p * _double((np.int64(k) + np.int64(1023)) << np.int64(52))


@numba.njit(inline="always", fastmath={"contract"})
def _ln(x):
    """ln x of a positive normal double without a branch or a call, to 2 units in the last place.

    x = 2^k m with m in [sqrt(1/2), sqrt(2)); ln m = 2 artanh(s), s = (m - 1) / (m + 1), by its Taylor series.
    """
    bits = _bits(x)
    # 0x3FE6A09E667F3BCD are the bits of sqrt(1/2).
    k = (bits - np.int64(0x3FE6A09E667F3BCD)) >> np.int64(52)
    m = _double(bits - (k << np.int64(52)))
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    p = 1.0 / 21.0
    p = p * z + 1.0 / 19.0
    p = p * z + 1.0 / 17.0
    p = p * z + 1.0 / 15.0
    p = p * z + 1.0 / 13.0
    p = p * z + 1.0 / 11.0
    p = p * z + 1.0 / 9.0
    p = p * z + 1.0 / 7.0
    p = p * z + 1.0 / 5.0
    p = p * z + 1.0 / 3.0
    return 2.0 * s + 2.0 * s * (z * p) + float(k) * 0.6931471805599453


@numba.njit(fastmath={"contract"})
def _effective(theta, experts, free, e, e_u, e_m):
    """ln Ehat of each distinct expert count and its derivatives in the two coordinates of E_start and E_max."""
    for lane in range(LANES):
        u, m = theta[8, lane], theta[9, lane]
        if free:
            spread = math.exp(u)
            s, s_u, s_m = m - spread, -spread, 1.0
        else:
            s, s_u, s_m = u * m, m, u
        start, ceiling = math.exp(-s), math.exp(-m)
        gap = start - ceiling
        for i in range(experts.size):
            scale = 1.0 / ((experts[i] - 1.0) * gap + 1.0)
            y = gap * scale + ceiling
            y_s, y_m = -scale * scale * start, (scale * scale - 1.0) * ceiling
            e[i, lane] = -math.log(y)
            e_u[i, lane] = -y_s / y * s_u
            e_m[i, lane] = -(y_m + y_s * s_m) / y


@numba.njit(fastmath={"contract"})
def _powers(ln_amplitude, exponent, ln, out):
    """exp(ln_amplitude - exponent ln) for each distinct value, and the same for all lanes."""
    for i in range(ln.size):
        z = ln[i]
        for lane in range(LANES):
            out[i, lane] = _exp(ln_amplitude[lane] - exponent[lane] * z)


@numba.njit(fastmath={"contract"})
def _evaluate(theta, ln_n, ln_d, experts, n_of, d_of, e_of, ln_loss, delta, free, w, value, gradient):
    """Summed Huber objective (LANES,) and its gradient (PARAMETERS, LANES) at theta (PARAMETERS, LANES)."""
    n_part, d_part, e_part, n_pull, d_pull, e_pull, e_lever, e, e_u, e_m, row = w
    _effective(theta, experts, free, e, e_u, e_m)
    _powers(theta[0], theta[1], ln_n, n_part)
    _powers(theta[4], theta[5], ln_d, d_part)
    floor, residual, pull, ratio = row[0], row[1], row[2], row[3]
    for lane in range(LANES):
        floor[lane] = _exp(theta[6, lane])
    for i in range(experts.size):
        for lane in range(LANES):
            e_part[i, lane] = _exp(theta[2, lane] - theta[3, lane] * e[i, lane])
    n_pull[:] = 0.0
    d_pull[:] = 0.0
    e_pull[:] = 0.0
    e_lever[:] = 0.0
    value[:] = 0.0
    gradient[:] = 0.0
    for r in range(ln_loss.size):
        i, j, k = n_of[r], d_of[r], e_of[r]
        z, target = ln_n[i], ln_loss[r]
        a, b, c, e_k = n_part[i], e_part[k], d_part[j], e[k]
        for lane in range(LANES):
            ratio[lane] = a[lane] + b[lane] + c[lane] + floor[lane]
        for lane in range(LANES):
            residual[lane] = _ln(ratio[lane]) - target + theta[7, lane] * (z - theta[10, lane]) * e_k[lane]
        for lane in range(LANES):
            x = min(max(residual[lane], -delta), delta)
            pull[lane] = x
            ratio[lane] = x / ratio[lane]
        for lane in range(LANES):
            value[lane] += pull[lane] * (residual[lane] - 0.5 * pull[lane])
        for lane in range(LANES):
            n_pull[i, lane] += ratio[lane]
        for lane in range(LANES):
            d_pull[j, lane] += ratio[lane]
        for lane in range(LANES):
            e_pull[k, lane] += ratio[lane]
        for lane in range(LANES):
            e_lever[k, lane] += pull[lane] * (z - theta[10, lane])
        for lane in range(LANES):
            gradient[6, lane] += ratio[lane] * floor[lane]
        for lane in range(LANES):
            gradient[10, lane] -= pull[lane] * e_k[lane]
    for i in range(ln_n.size):
        for lane in range(LANES):
            share = n_pull[i, lane] * n_part[i, lane]
            gradient[0, lane] += share
            gradient[1, lane] -= share * ln_n[i]
    for j in range(ln_d.size):
        for lane in range(LANES):
            share = d_pull[j, lane] * d_part[j, lane]
            gradient[4, lane] += share
            gradient[5, lane] -= share * ln_d[j]
    for k in range(experts.size):
        for lane in range(LANES):
            share = e_pull[k, lane] * e_part[k, lane]
            gradient[2, lane] += share
            gradient[3, lane] -= share * e[k, lane]
            gradient[7, lane] += e_lever[k, lane] * e[k, lane]
            slope = theta[7, lane] * e_lever[k, lane] - theta[3, lane] * share
            gradient[8, lane] += slope * e_u[k, lane]
            gradient[9, lane] += slope * e_m[k, lane]
    for lane in range(LANES):
        gradient[10, lane] *= theta[7, lane]


@numba.njit(fastmath={"contract"})
def _times(metric, vector, out):
    """metric @ vector, lane by lane."""
    out[:] = 0.0
    for i in range(vector.shape[0]):
        for j in range(vector.shape[0]):
            m = metric[i, j]
            for lane in range(LANES):
                out[i, lane] += m * vector[j, lane]


@numba.njit(fastmath={"contract"})
def _dot(a, b, out):
    out[:] = 0.0
    for i in range(a.shape[0]):
        for lane in range(LANES):
            out[lane] += a[i, lane] * b[i, lane]


@numba.njit(fastmath={"contract"})
def _descend(theta, value, low, high, metric, ln_n, ln_d, experts, n_of, d_of, e_of, ln_loss, delta, free, iterations):
    p = theta.shape[0]
    work = (
        np.empty((ln_n.size, LANES)), np.empty((ln_d.size, LANES)), np.empty((experts.size, LANES)),
        np.empty((ln_n.size, LANES)), np.empty((ln_d.size, LANES)), np.empty((experts.size, LANES)),
        np.empty((experts.size, LANES)), np.empty((experts.size, LANES)), np.empty((experts.size, LANES)),
        np.empty((experts.size, LANES)), np.empty((4, LANES)),
    )  # fmt: skip
    gradient, trial, slope, move = (
        np.empty((p, LANES)), np.empty((p, LANES)), np.empty((p, LANES)), np.empty((p, LANES)),
    )  # fmt: skip
    image = np.empty((p, LANES))
    reached, reach = np.empty(LANES), np.ones(LANES)
    steps, turns = np.zeros((MEMORY, p, LANES)), np.zeros((MEMORY, p, LANES))
    weight, share = np.zeros((MEMORY, LANES)), np.zeros((MEMORY, LANES))
    size, a, b = np.zeros(LANES), np.empty(LANES), np.empty(LANES)
    _evaluate(theta, ln_n, ln_d, experts, n_of, d_of, e_of, ln_loss, delta, free, work, value, gradient)
    for turn in range(iterations):
        for i in range(p):
            for lane in range(LANES):
                g, x = gradient[i, lane], theta[i, lane]
                outward = (x <= low[i] and g > 0.0) or (x >= high[i] and g < 0.0)
                slope[i, lane] = 0.0 if outward else g
                move[i, lane] = slope[i, lane]
        for age in range(MEMORY):
            h = (turn - 1 - age) % MEMORY
            _dot(steps[h], move, share[h])
            for lane in range(LANES):
                share[h, lane] *= weight[h, lane]
            for i in range(p):
                for lane in range(LANES):
                    move[i, lane] -= share[h, lane] * turns[h, i, lane]
        _times(metric, move, image)
        for i in range(p):
            for lane in range(LANES):
                move[i, lane] = size[lane] * image[i, lane]
        for back in range(MEMORY):
            h = (turn + back) % MEMORY
            _dot(turns[h], move, a)
            for lane in range(LANES):
                a[lane] = share[h, lane] - weight[h, lane] * a[lane]
            for i in range(p):
                for lane in range(LANES):
                    move[i, lane] += a[lane] * steps[h, i, lane]
        # Steepest descent in the metric, of unit length, where there is no history yet or it points uphill.
        _dot(slope, move, a)
        _times(metric, slope, image)
        _dot(slope, image, b)
        for i in range(p):
            for lane in range(LANES):
                plain = size[lane] == 0.0 or not a[lane] > 1e-12 * b[lane] * size[lane]
                m = image[i, lane] / math.sqrt(b[lane] + 1e-300) if plain else move[i, lane]
                if slope[i, lane] == 0.0:
                    m = 0.0
                x = theta[i, lane] - reach[lane] * m
                trial[i, lane] = min(max(x, low[i]), high[i])
        _evaluate(trial, ln_n, ln_d, experts, n_of, d_of, e_of, ln_loss, delta, free, work, reached, image)
        # A rejected trial teaches its curvature as well.
        h = turn % MEMORY
        for i in range(p):
            for lane in range(LANES):
                steps[h, i, lane] = trial[i, lane] - theta[i, lane]
                turns[h, i, lane] = image[i, lane] - gradient[i, lane]
        _dot(steps[h], gradient, a)  # promised change, negative
        for lane in range(LANES):
            better = reached[lane] <= value[lane] + 1e-4 * min(a[lane], 0.0) and reached[lane] < value[lane]
            b[lane] = 1.0 if better else 0.0
            if better:
                value[lane] = reached[lane]
                reach[lane] = 1.0
            else:
                reach[lane] *= 0.4
        for i in range(p):
            for lane in range(LANES):
                if b[lane] > 0.0:
                    theta[i, lane] = trial[i, lane]
                    gradient[i, lane] = image[i, lane]
        _times(metric, turns[h], image)
        _dot(turns[h], image, a)
        _dot(steps[h], turns[h], b)
        for lane in range(LANES):
            good = b[lane] > 1e-14 * a[lane] and a[lane] > 0.0
            weight[h, lane] = 1.0 / b[lane] if good else 0.0
            if good:
                size[lane] = b[lane] / a[lane]


def _cached(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiled on first use and kept on disk, or compiled for this process only where no cache folder is writable."""
    try:
        return numba.njit(parallel=True, fastmath={"contract"}, cache=True)(function)
    except RuntimeError:
        return numba.njit(parallel=True, fastmath={"contract"})(function)


@_cached
def _search(starts, low, high, metric, ln_n, ln_d, experts, n_of, d_of, e_of, ln_loss, delta, free, iterations):
    count, p = starts.shape
    theta_out = np.empty((count, p))
    value_out = np.empty(count)
    blocks = (count + LANES - 1) // LANES
    for block in numba.prange(blocks):
        first = block * LANES
        theta = np.empty((p, LANES))
        for lane in range(LANES):
            source = min(first + lane, count - 1)  # the last block is filled up with copies
            for i in range(p):
                theta[i, lane] = min(max(starts[source, i], low[i]), high[i])
        value = np.empty(LANES)
        _descend(
            theta, value, low, high, metric, ln_n, ln_d, experts, n_of, d_of, e_of, ln_loss, delta, free, iterations
        )
        for lane in range(min(LANES, count - first)):
            value_out[first + lane] = value[lane]
            for i in range(p):
                theta_out[first + lane, i] = theta[i, lane]
    return theta_out, value_out


def search(
    starts: FloatArray,
    box: FloatArray,
    metric: FloatArray,
    runs: tuple[Any, ...],
    delta: float,
    free: bool,
    iterations: int,
) -> tuple[FloatArray, FloatArray]:
    """`moescale.fitting.multistart.descend` from starts (k, 11) on all cores: theta (k, 11) and objectives (k,).

    `runs` are distinct ln N, ln D and E, the three index arrays, and ln L. `free` says how theta holds E_start: False,
    ln E_start / ln E_max; True, ln ln(E_max / E_start).
    """
    low, high = (np.ascontiguousarray(side) for side in box.T)
    with _pool:
        return _search(np.ascontiguousarray(starts), low, high, metric, *runs, delta, free, iterations)
