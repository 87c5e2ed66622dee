"""Damped Gauss-Newton searches for the minimum of the objective inside a box, many side by side.

A Huber term is a square whose weight falls with the residual: each step solves the least squares of the weights where it
stands. Second derivatives of the law are not needed; with them the searches reach the same optima no sooner.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from moescale.fitting.objective import HUBER_DELTA, Problem, huber
from moescale.typing import FloatArray

# A step is tried at these lengths side by side: along the flat valleys of the Huber objective, whose pieces have each their
# own least squares, a step is as often too short as too long. The values cost little beside the derivatives.
LENGTHS = np.array([1.0, 0.5, 2.0, 4.0])
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

    # Kept beside theta: most evaluations of the law, and after a step that gains nothing its derivatives.
    residual, slope = problem.residual(theta), problem.form.jacobian(theta, problem.x)
    best, damping = (w * huber(residual)).sum(axis=-1), np.full(count, 1e-3)
    active, stalled = np.arange(count), np.zeros(count, dtype=int)
    for _ in range(max_iterations):
        if active.size == 0:
            break
        at, weight = theta[active], w[active]
        step = _step(problem, at, slope[active], residual[active], weight, damping[active])
        trials = problem.clipped(at + LENGTHS[:, None, None] * step)
        missed = problem.residual(trials)
        values = (weight * huber(missed)).sum(axis=-1)
        chosen, every = values.argmin(axis=0), np.arange(active.size)
        trial, misses, reached = trials[chosen, every], missed[chosen, every], values[chosen, every]
        gain = best[active] - reached
        better = gain > 0
        small, moved = gain < tolerance * np.abs(best[active]), active[better]
        theta[moved], residual[moved], best[moved] = trial[better], misses[better], reached[better]
        if moved.size:
            slope[moved] = problem.form.jacobian(theta[moved], problem.x)
        # By 10: in `patience` failures from the least damping to a step down the gradient, which must succeed.
        damping[active] = np.where(better, damping[active] / 8.0, damping[active] * 10.0)
        np.clip(damping, 1e-12, 1e8, out=damping)
        stalled[active] = np.where(better & ~small, 0, stalled[active] + 1)
        active = active[stalled[active] < patience]
    return theta, best


def _step(
    problem: Problem, at: FloatArray, slope: FloatArray, residual: FloatArray, weight: FloatArray, damping: FloatArray
) -> FloatArray:
    """The step of k searches, (k, p), by their derivatives (k, n, p); coordinates on a bound that would leave the box stay there."""
    low, high = problem.box.T
    # Coordinates differ in scale by orders of magnitude; scaled alike, damping means the same in all.
    norm = np.sqrt(np.einsum("kn,knp->kp", weight, slope**2)) + 1e-12
    slope = slope / norm[:, None, :]
    pulls = weight * np.minimum(1.0, HUBER_DELTA / np.maximum(np.abs(residual), 1e-300))
    pulled = np.swapaxes(slope * pulls[..., None], 1, 2)
    gradient, squares = (pulled @ residual[..., None])[..., 0], pulled @ slope
    held = ((at <= low) & (gradient > 0)) | ((at >= high) & (gradient < 0))
    move = _damped_step(squares, gradient, held, np.zeros_like(at), damping) / norm
    beyond = (at + move < low) | (at + move > high)
    if beyond.any():
        # A step cut off at the box would change direction: put the blocked coordinates on their bounds, solve again.
        rows = np.flatnonzero(beyond.any(axis=1))
        to_bound = np.where(beyond, problem.clipped(at + move) - at, 0.0) * norm
        again = _damped_step(squares[rows], gradient[rows], (held | beyond)[rows], to_bound[rows], damping[rows])
        move[rows] = again / norm[rows]
    return move


def _damped_step(
    squares: FloatArray, gradient: FloatArray, fixed: npt.NDArray[np.bool_], given: FloatArray, damping: FloatArray
) -> FloatArray:
    """The step of k searches, (k, p), whose `fixed` coordinates move by `given`, the others by the damped solution."""
    free = ~fixed
    reduced = np.where(free[:, :, None] & free[:, None, :], squares, 0.0) + damping[:, None, None] * np.eye(
        free.shape[1]
    )
    pull = np.where(free, gradient + (squares @ given[..., None])[..., 0], 0.0)
    return np.where(free, -np.linalg.solve(reduced, pull[..., None])[..., 0], given)
