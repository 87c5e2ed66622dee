"""The summed Huber objective of equation 4 and its gradient for many coefficient sets, compiled by numba (extra `fast`).

Importing this module imports numba.
"""

# Explicit loops are what numba compiles best.
# pyright: basic, reportUntypedFunctionDecorator=false, reportIndexIssue=false, reportCallIssue=false

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from moescale.typing import FloatArray

LARGEST_EXPONENT = 690.0  # without the box a term may leave the range of a double; it is then held at its edge


@numba.njit(inline="always")
def _exp(x):
    return math.exp(min(max(x, -LARGEST_EXPONENT), LARGEST_EXPONENT))


@numba.njit
def _effective(u, m, experts, free, out):
    """ln Ehat of each distinct expert count and its derivatives in u and m, the coordinates of E_start and E_max."""
    if free:
        spread = math.exp(u)
        s, s_u, s_m = m - spread, -spread, 1.0
    else:
        s, s_u, s_m = u * m, m, u
    start, ceiling = math.exp(-s), math.exp(-m)
    gap = start - ceiling
    for k in range(experts.size):
        scale = 1.0 / ((experts[k] - 1.0) * gap + 1.0)
        y = gap * scale + ceiling
        y_s, y_m = -scale * scale * start, (scale * scale - 1.0) * ceiling
        out[0, k], out[1, k], out[2, k] = -math.log(y), -y_s / y * s_u, -(y_m + y_s * s_m) / y


def _cached(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiled on first use and kept on disk, or compiled for this process only where no cache folder is writable."""
    try:
        return numba.njit(nogil=True, fastmath={"contract"}, cache=True)(function)
    except RuntimeError:
        return numba.njit(nogil=True, fastmath={"contract"})(function)


@_cached
def _evaluate(theta, ln_n, ln_d, experts, n_of, d_of, e_of, ln_loss, delta, free, value, gradient):
    size, data, routing = np.empty(ln_n.size), np.empty(ln_d.size), np.empty(experts.size)
    by_n, by_d, by_e = np.empty(ln_n.size), np.empty(ln_d.size), np.empty(experts.size)  # pull over the sum of terms
    levers = np.empty(experts.size)  # pull times ln(N / N0)
    effective = np.empty((3, experts.size))
    for column in range(theta.shape[1]):
        ln_a, alpha, ln_b, beta, ln_c, gamma, ln_f, d, u, m = theta[:10, column]
        centre = theta[10, column] if theta.shape[0] > 10 else 0.0
        _effective(u, m, experts, free, effective)
        e, e_u, e_m = effective
        floor = math.exp(ln_f)
        for i in range(ln_n.size):
            size[i], by_n[i] = _exp(ln_a - alpha * ln_n[i]), 0.0
        for j in range(ln_d.size):
            data[j], by_d[j] = _exp(ln_c - gamma * ln_d[j]), 0.0
        for k in range(experts.size):
            routing[k], by_e[k], levers[k] = _exp(ln_b - beta * e[k]), 0.0, 0.0
        total = whole = turned = 0.0
        for r in range(ln_loss.size):
            i, j, k = n_of[r], d_of[r], e_of[r]
            terms = size[i] + routing[k] + data[j] + floor
            lever = ln_n[i] - centre
            residual = math.log(terms) - ln_loss[r] + d * lever * e[k]
            pull = min(max(residual, -delta), delta)
            total += pull * (residual - 0.5 * pull)
            share = pull / terms
            by_n[i] += share
            by_d[j] += share
            by_e[k] += share
            levers[k] += pull * lever
            whole += share
            turned += pull * e[k]
        value[column] = total
        slope = gradient[:, column]
        slope[:] = 0.0
        for i in range(ln_n.size):
            share = by_n[i] * size[i]
            slope[0] += share
            slope[1] -= share * ln_n[i]
        for j in range(ln_d.size):
            share = by_d[j] * data[j]
            slope[4] += share
            slope[5] -= share * ln_d[j]
        for k in range(experts.size):
            share = by_e[k] * routing[k]
            slope[2] += share
            slope[3] -= share * e[k]
            slope[7] += levers[k] * e[k]
            in_effective = d * levers[k] - beta * share
            slope[8] += in_effective * e_u[k]
            slope[9] += in_effective * e_m[k]
        slope[6] = whole * floor
        if theta.shape[0] > 10:
            slope[10] = -d * turned


def evaluate(theta: FloatArray, runs: tuple[Any, ...], delta: float, free: bool) -> tuple[FloatArray, FloatArray]:
    """Objective (k,) and gradient (p, k) at theta (p, k), p being 10 or, with ln N0, 11; threads may call it side by side.

    `runs` are distinct ln N, ln D and E, the three index arrays, and ln L. `free` says how theta holds E_start: False,
    ln E_start / ln E_max; True, ln ln(E_max / E_start).
    """
    value, gradient = np.empty(theta.shape[1]), np.empty(theta.shape)
    _evaluate(theta, *runs, delta, free, value, gradient)
    return value, gradient
