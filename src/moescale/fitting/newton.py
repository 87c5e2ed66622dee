"""Damped Newton searches for the minimum of the objective inside a box, many side by side."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from moescale.fitting.objective import HUBER_DELTA, Problem, huber
from moescale.typing import FloatArray

# A step is tried at these lengths side by side: along the flat valleys of the Huber objective, whose pieces have each their own
# Hessian, a Newton step is as often too short as too long. Halves the steps; the values cost little beside the derivatives.
LENGTHS = np.array([1.0, 0.5, 2.0])
PATIENCE = 12  # steps without a gain after which a search ends, where no other number is given


def polish(
    problem: Problem,
    starts: FloatArray,
    *,
    weights: FloatArray | None = None,
    max_iterations: int = 2000,
    tolerance: float = 1e-13,
    patience: int = PATIENCE,
) -> tuple[FloatArray, FloatArray]:
    """Minimise the summed Huber objective from each of k starts (k, p): the optima (k, p) and their objectives (k,).

    `weights`, (k, n) or (n,), multiplies the terms (a bootstrap's counts). A search ends when a step improves the
    objective by less than `tolerance` relative, `patience` times in a row.
    """
    theta = problem.clipped(np.atleast_2d(starts).astype(float))
    count = len(theta)
    w = np.broadcast_to(1.0 if weights is None else weights, (count, problem.ln_loss.size))

    residual = problem.residual(theta)  # kept beside theta: half of the evaluations of the law
    best, damping = (w * huber(residual)).sum(axis=-1), np.full(count, 1e-3)
    active, stalled = np.arange(count), np.zeros(count, dtype=int)
    for _ in range(max_iterations):
        if active.size == 0:
            break
        at, weight = theta[active], w[active]
        step = _step(problem, at, residual[active], weight, damping[active])
        trials = problem.clipped(at + LENGTHS[:, None, None] * step)
        missed = problem.residual(trials)
        values = (weight * huber(missed)).sum(axis=-1)
        chosen, every = values.argmin(axis=0), np.arange(active.size)
        trial, misses, reached = trials[chosen, every], missed[chosen, every], values[chosen, every]
        gain = best[active] - reached
        better = gain > 0
        theta[active[better]], residual[active[better]] = trial[better], misses[better]
        small = gain < tolerance * np.abs(best[active])
        best[active[better]] = reached[better]
        # By 10: in `patience` failures from the least damping to a step down the gradient, which must succeed.
        damping[active] = np.where(better, damping[active] / 8.0, damping[active] * 10.0)
        np.clip(damping, 1e-12, 1e8, out=damping)
        stalled[active] = np.where(better & ~small, 0, stalled[active] + 1)
        active = active[stalled[active] < patience]
    return theta, best


def _step(
    problem: Problem,
    at: FloatArray,
    residual: FloatArray,
    weight: FloatArray,
    damping: FloatArray,
) -> FloatArray:
    """The Newton step of k searches, (k, p); coordinates on a bound that would leave the box stay there."""
    low, high = problem.box.T
    gradient, hessian, norm = _derivatives(problem, at, residual, weight)
    held = ((at <= low) & (gradient > 0)) | ((at >= high) & (gradient < 0))
    scaled, pull = hessian / (norm[:, :, None] * norm[:, None, :]), gradient / norm
    move = _damped_step(scaled, pull, held, np.zeros_like(at), damping) / norm
    beyond = (at + move < low) | (at + move > high)
    if beyond.any():
        # A step cut off at the box would change direction: put the blocked coordinates on their bounds, solve again.
        rows = np.flatnonzero(beyond.any(axis=1))
        to_bound = np.where(beyond, problem.clipped(at + move) - at, 0.0) * norm
        again = _damped_step(scaled[rows], pull[rows], (held | beyond)[rows], to_bound[rows], damping[rows])
        move[rows] = again / norm[rows]
    return move


def _derivatives(
    problem: Problem, at: FloatArray, residual: FloatArray, weight: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Gradient (k, p), Hessian (k, p, p) and scale (k, p) of the coordinates.

    Coordinates differ in scale by orders of magnitude; the Gauss-Newton diagonal makes damping mean the same in all.
    """
    slope = problem.form.jacobian(at, problem.x)
    pull = weight * np.clip(residual, -HUBER_DELTA, HUBER_DELTA)
    inside = weight * (np.abs(residual) < HUBER_DELTA)
    gradient = (pull[:, None, :] @ slope)[:, 0, :]
    hessian = np.swapaxes(slope * inside[..., None], 1, 2) @ slope + _curvature(problem, at, pull)
    norm = np.sqrt(np.einsum("kn,knp->kp", weight, slope**2)) + 1e-12
    return gradient, hessian, norm


def _damped_step(
    hessian: FloatArray, gradient: FloatArray, fixed: npt.NDArray[np.bool_], given: FloatArray, damping: FloatArray
) -> FloatArray:
    """Newton step of k searches, (k, p), whose `fixed` coordinates move by `given`, the others by the damped solution."""
    free = ~fixed
    reduced = np.where(free[:, :, None] & free[:, None, :], hessian, np.eye(free.shape[1]))
    pull = np.where(free, gradient + (hessian @ given[..., None])[..., 0], 0.0)
    values, vectors = np.linalg.eigh(reduced)
    along = (np.swapaxes(vectors, 1, 2) @ pull[..., None])[..., 0]
    # |eigenvalue|: a direction of negative curvature is descended, not climbed.
    step = -along / (np.maximum(np.abs(values), 1e-14) + damping[:, None])
    return np.where(free, (vectors @ step[..., None])[..., 0], given)


def _curvature(problem: Problem, theta: FloatArray, weights: FloatArray) -> FloatArray:
    """The form's own weighted second derivatives, or central differences of its first, (k, p, p)."""
    form, x = problem.form, problem.x
    if form.curvature is not None:
        return form.curvature(theta, x, weights)
    out = np.empty((*theta.shape, theta.shape[-1]))
    for j, step in enumerate(1e-5 * np.eye(theta.shape[-1])):
        change = form.jacobian(theta + step, x) - form.jacobian(theta - step, x)
        out[..., j, :] = (weights[..., None, :] @ change)[..., 0, :] / 2e-5
    return 0.5 * (out + np.swapaxes(out, -1, -2))
