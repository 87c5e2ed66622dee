"""Where to start: a look at many points of the parameters, by variable projection where the form is linear in some."""

from __future__ import annotations

import numpy as np

from moescale.fitting.objective import Problem, huber
from moescale.typing import FloatArray

CHUNK_NUMBERS = 2_000_000  # points times runs that are looked at together: 16 MB an array


def scan(problem: Problem, count: int) -> tuple[FloatArray, FloatArray]:
    """Look at `count` points: theta (count, p), clipped to the box, and the objective of each before its shape was, (count,).

    Where the form is linear in some parameters this is variable projection: only the others are scanned.
    """
    form = problem.form
    low, high = form.region(problem.observed).T
    points = low + _lattice(count, low.size) * (high - low)
    if form.parts:
        return project(problem, points)
    theta = problem.clipped(points)
    return theta, np.concatenate([problem.value(theta[part]) for part in _chunks(problem, count)])


def project(problem: Problem, points: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The best amplitudes at given shape parameters (k, s): theta (k, p) in the box, and the objective (k,)."""
    form = problem.form
    theta, values = np.empty((len(points), len(form.parameters))), np.empty(len(points))
    for rows in _chunks(problem, len(points)):
        some = points[rows]
        # Relative residuals: (sum_k a_k phi_k) / L - 1 is close to the residual of the logarithm.
        columns = form.basis(some, problem.x) * np.exp(-problem.ln_loss)[:, None]
        norm = np.sqrt((columns**2).mean(axis=-2)) + 1e-300
        scaled = columns / norm[:, None, :]
        gram = np.swapaxes(scaled, 1, 2) @ scaled
        amplitudes = _nonnegative_least_squares(gram, scaled.sum(axis=1)) / norm
        block = np.empty((len(some), theta.shape[1]))
        block[:, form.shape] = some
        block[:, form.amplitudes] = np.log(np.maximum(amplitudes, 1e-30))
        theta[rows] = problem.clipped(block)
        predicted = columns @ np.exp(theta[rows][:, form.amplitudes])[..., None]  # over the measured loss
        values[rows] = huber(np.log(predicted[..., 0])).sum(axis=-1)
    return theta, values


def _chunks(problem: Problem, count: int) -> list[slice]:
    size = max(1, CHUNK_NUMBERS // max(1, problem.ln_loss.size))
    return [slice(first, first + size) for first in range(0, count, size)]


def _lattice(count: int, dimensions: int) -> FloatArray:
    """A deterministic low-discrepancy set in the unit cube, (count, dimensions): Kronecker's, with Roberts' constants."""
    root = 2.0
    for _ in range(64):
        root = (1.0 + root) ** (1.0 / (dimensions + 1))
    steps = root ** -np.arange(1, dimensions + 1)
    return (0.5 + np.arange(1, count + 1)[:, None] * steps) % 1.0


def _nonnegative_least_squares(gram: FloatArray, target: FloatArray) -> FloatArray:
    """Non-negative x that minimises x' gram x - 2 target' x for each of m small problems, by trying every support.

    gram (m, k, k), target (m, k), answer (m, k). k is at most 5, so there are at most 31 supports.
    """
    m, k = target.shape
    best, lowest = np.zeros((m, k)), np.zeros(m)
    ridge = 1e-12 * np.einsum("mkk->mk", gram).max(axis=1)
    for support in range(1, 2**k):
        columns = np.array([j for j in range(k) if support >> j & 1])
        sub = gram[:, columns[:, None], columns] + ridge[:, None, None] * np.eye(columns.size)
        solution = np.linalg.solve(sub, target[:, columns][..., None])[..., 0]
        value = -(solution * target[:, columns]).sum(axis=1)
        chosen = (solution >= 0).all(axis=1) & (value < lowest)
        lowest[chosen] = value[chosen]
        best[chosen] = 0.0
        best[np.ix_(chosen, columns)] = solution[chosen]
    return best
