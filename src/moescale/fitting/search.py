"""What a fit minimises, the sum over runs of Huber_delta(ln Lhat - ln L) (Yun et al.), and how it descends.

A scan looks at many points, by variable projection where the form is linear in some parameters. From the best damped
Gauss-Newton searches go side by side, inside the box: a Huber term is a square whose weight falls with the residual.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from moescale.errors import InputError
from moescale.scaling_laws.form import Inputs, LawForm, Observed
from moescale.typing import FloatArray

HUBER_DELTA = 1e-3  # Yun et al. 2024, appendix C; Hoffmann et al. 2022

# Losses in any unit that is used lie well inside; far outside, the boxes of the forms, in nats, are empty.
LOSSES = (1e-2, 1e6)


def huber(residual: FloatArray, delta: float = HUBER_DELTA) -> FloatArray:
    """Huber terms: r^2 / 2 within delta, delta (|r| - delta / 2) beyond."""
    size = np.abs(residual)
    small = np.minimum(size, delta)
    return small * (size - 0.5 * small)


@dataclass(frozen=True, slots=True)
class Problem:
    """A form to fit to n runs, and the box (p, 2) that theta stays in."""

    form: LawForm
    x: Inputs
    ln_loss: FloatArray  # (n,)
    observed: Observed
    box: FloatArray

    @classmethod
    def of(cls, form: LawForm, x: Inputs, ln_loss: FloatArray) -> Problem:
        """The problem in the form's own box for these runs; InputError for losses that no box holds."""
        low, high = float(np.exp(ln_loss.min())), float(np.exp(ln_loss.max()))
        if not LOSSES[0] <= low <= high <= LOSSES[1]:
            what = f"losses from {low:g} to {high:g} are in no unit that {form.name} can be fitted in"
            advice = "state them in nats per token, or leave rows out with --where"
            raise InputError(what, nearest=f"losses from {LOSSES[0]:g} to {LOSSES[1]:g}", next_step=advice)
        observed = Observed(float(x.experts.max()), low, float(np.exp(x.ln_n.mean())))
        return cls(form, x, ln_loss, observed, form.bounds(observed))

    def thinned(self, most: int) -> Problem:
        """At most so many of the runs, spread evenly over their rows, in the same box."""
        if self.ln_loss.size <= most:
            return self
        rows = np.unique(np.linspace(0, self.ln_loss.size - 1, most).astype(np.intp))
        return replace(self, x=self.x.rows(rows), ln_loss=self.ln_loss[rows])

    def residual(self, theta: FloatArray) -> FloatArray:
        """ln Lhat - ln L of each run, (..., n)."""
        return self.form.log_loss(theta, self.x) - self.ln_loss

    def value(self, theta: FloatArray) -> FloatArray:
        """The objective at each theta, (...)."""
        return huber(self.residual(theta)).sum(axis=-1)

    def clipped(self, theta: FloatArray) -> FloatArray:
        """Each theta moved into the box."""
        return np.clip(theta, self.box[:, 0], self.box[:, 1])


CHUNK_NUMBERS = 2_000_000  # points times runs that are looked at together: 16 MB an array


def scan(problem: Problem, count: int) -> tuple[FloatArray, FloatArray]:
    """Theta (count, p) of points in the box and the objective of each before it was clipped, (count,).

    Where the form is linear in some parameters only the others are scanned (variable projection).
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
    theta[:, form.shape] = points
    for rows in _chunks(problem, len(points)):
        # Relative residuals: (sum_k a_k phi_k) / L - 1 is close to the residual of the logarithm.
        columns = form.basis(points[rows], problem.x) * np.exp(-problem.ln_loss)[:, None]
        norm = np.sqrt((columns**2).mean(axis=-2)) + 1e-300
        scaled = columns / norm[:, None, :]
        gram = np.swapaxes(scaled, 1, 2) @ scaled
        amplitudes = _nonnegative_least_squares(gram, scaled.sum(axis=1)) / norm
        theta[rows, form.amplitudes] = np.log(np.maximum(amplitudes, 1e-30))
        theta[rows] = problem.clipped(theta[rows])
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
    """Non-negative x (m, k) that minimise x' gram x - 2 target' x, by trying every support: at most 127."""
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

    `weights`, (k, n), multiply the terms (a bootstrap's counts). A search ends when steps improve the objective by less
    than `tolerance` relative, `patience` times in a row.
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
    reduced = np.where(free[:, :, None] & free[:, None, :], squares, 0.0)
    reduced += damping[:, None, None] * np.eye(free.shape[1])
    pull = np.where(free, gradient + (squares @ given[..., None])[..., 0], 0.0)
    return np.where(free, -np.linalg.solve(reduced, pull[..., None])[..., 0], given)
