"""Search from every start of a publication's grid by L-BFGS inside the box, as many as there are cores at a time.

With numba (extra `fast`) the objective of equation 4 is compiled and factorised: A / N^alpha is computed for each distinct
N, and so on, so that a run costs sums, products and one logarithm. Without it the same search runs on NumPy, only slower.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np

from moescale.errors import InputError, install
from moescale.fitting.objective import HUBER_DELTA, Problem, Progress
from moescale.scaling_laws.form import LawForm, Observed
from moescale.typing import FloatArray

ITERATIONS = 40  # of the L-BFGS, for every start: enough to tell the basins apart, not to converge
MEMORY = 6  # pairs of steps that the L-BFGS remembers
ARMIJO = 1e-4  # share of the promised decrease that a step must keep
SHRINK = 0.4  # of the step after a refusal
RIDGE = 1e-2  # added to the normalised Gauss-Newton matrix, whose inverse is the metric of the search
METRIC_STARTS = 512  # starts over which that matrix is averaged
SLAB = 4096  # starts of one search side by side, compiled
NUMPY_NUMBERS = 120_000  # numbers in an array of the NumPy search: starts times runs, so that it stays in the cache
NUMPY_SECONDS = 2.9e-7  # per start, run and iteration, measured on one core of a busy server: a first estimate

IntArray = np.typing.NDArray[np.intp]
# A start is a column: theta (p, k), objective (k,), gradient (p, k).
Evaluate = Callable[[FloatArray], tuple[FloatArray, FloatArray]]


@dataclass(frozen=True, slots=True)
class Searched:
    """Where the searches ended: theta (k, p), objectives (k,), how many starts share each (k,), and all starts there are."""

    theta: FloatArray
    value: FloatArray
    sharing: IntArray
    total: int

    @property
    def done(self) -> int:
        """Starts that were searched from; fewer than `total` after an interruption."""
        return int(self.sharing.sum())


def has_numba() -> bool:
    """Whether numba is installed; does not import it."""
    try:
        return importlib.util.find_spec("numba") is not None
    except ValueError:  # a test put None into sys.modules
        return False


def forecast_s(n_runs: int, starts: int) -> float:
    """About how many seconds the NumPy search takes on one core, for `starts` distinct starts and `n_runs` runs."""
    return NUMPY_SECONDS * starts * n_runs * ITERATIONS


def slow_notice(form: LawForm, n_runs: int, starts: int) -> str | None:
    """What to tell before a search that numba would make short; None where it is short already."""
    seconds = forecast_s(n_runs, starts)
    if (has_numba() and form.equation4) or seconds < 60.0:
        return None
    advice = f": {install('fast')} reduces it to about one" if form.equation4 else ""
    return f"the search of the published grid takes about {seconds / 60.0:.0f} minutes without numba{advice}"


def grid_size(axes: Sequence[FloatArray]) -> int:
    """How many starts a grid has."""
    return int(np.prod([axis.size for axis in axes]))


def starts_at(axes: Sequence[FloatArray], numbers: IntArray) -> FloatArray:
    """The starts of these numbers, (k, p); the last axis runs fastest."""
    index = np.unravel_index(numbers, [axis.size for axis in axes])
    return np.stack([axis[i] for axis, i in zip(axes, index, strict=True)], axis=1)


def distinct_axes(axes: tuple[FloatArray, ...], box: FloatArray) -> tuple[list[FloatArray], list[FloatArray]]:
    """The values of each axis once they are moved into the box, and how many of the axis share each.

    The paper's d of 5 to 25 all stand for d = 1 in the box of yun2024: 270,000 starts differ of its 810,000.
    """
    pairs = [
        np.unique(np.clip(axis, low, high), return_counts=True) for axis, (low, high) in zip(axes, box, strict=True)
    ]
    return [values for values, _ in pairs], [counts.astype(float) for _, counts in pairs]


def published_axes(form: LawForm, observed: Observed) -> tuple[FloatArray, ...]:
    """The axes of the form's published grid; InputError where it has none."""
    if form.published_grid is None:
        raise InputError(f"{form.name} has no published grid of starts", next_step="use --starts auto")
    return form.published_grid(observed)


def search_grid(
    problem: Problem,
    axes: tuple[FloatArray, ...],
    *,
    progress: Progress,
    compiled: bool | None = None,
    iterations: int = ITERATIONS,
) -> Searched:
    """L-BFGS of `iterations` steps from every start of a grid, inside the box; `compiled` None uses numba where it can.

    Starts that the box makes equal are searched from once. KeyboardInterrupt ends the search; what was done until then
    is returned.
    """
    values, counts = distinct_axes(axes, problem.box)
    total = grid_size(values)
    use_numba = bool(problem.form.equation4) and has_numba() if compiled is None else compiled
    slab = SLAB if use_numba else max(64, NUMPY_NUMBERS // problem.ln_loss.size)
    ends: list[tuple[FloatArray, FloatArray]] = []
    threads = ThreadPoolExecutor(os.cpu_count())
    try:
        progress("published grid", 0.0)
        sample = starts_at(values, np.unique(np.linspace(0, total - 1, METRIC_STARTS).astype(np.intp)))
        at, metric = _evaluator(problem, use_numba), average_metric(problem, sample)

        def search(first: int) -> tuple[FloatArray, FloatArray]:
            starts = starts_at(values, np.arange(first, min(first + slab, total)))
            return descend(at, np.ascontiguousarray(starts.T), problem.box, metric, iterations)

        for found in threads.map(search, range(0, total, slab)):
            ends.append(found)
            progress("published grid", min(len(ends) * slab, total) / total)
    except KeyboardInterrupt:
        if not ends:
            raise
    finally:
        threads.shutdown(cancel_futures=True)
    theta, value = (np.concatenate(parts, axis=-1) for parts in zip(*ends, strict=True))
    sharing = starts_at(counts, np.arange(value.size)).prod(axis=1).astype(np.intp)
    return Searched(theta.T, value, sharing, grid_size(axes))


def average_metric(problem: Problem, sample: FloatArray) -> FloatArray:
    """The inverse of the Gauss-Newton matrix averaged over the starts of a sample, (p, p).

    ln A and alpha, say, trade off along a narrow valley; in this metric the first steps already go along it.
    """
    slope = problem.form.jacobian(sample, problem.x)
    matrix = np.einsum("knp,knq->pq", slope, slope) / (slope.shape[0] * slope.shape[1])
    scale = np.sqrt(np.diag(matrix)) + 1e-12
    return np.linalg.inv(matrix / np.outer(scale, scale) + RIDGE * np.eye(scale.size)) / np.outer(scale, scale)


def _evaluator(problem: Problem, compiled: bool) -> Evaluate:
    if not compiled:
        return partial(evaluate, problem)
    from moescale.fitting import multistart_kernel

    x = problem.x
    ln_n, n_of = np.unique(x.ln_n, return_inverse=True)
    ln_d, d_of = np.unique(x.ln_d, return_inverse=True)
    runs = (ln_n, ln_d, x.experts_distinct, n_of, d_of, x.experts_index.astype(np.intp), problem.ln_loss)
    return partial(multistart_kernel.evaluate, runs=runs, delta=HUBER_DELTA, free=problem.form.equation4 == "spread")


def evaluate(problem: Problem, theta: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Objective (k,) and gradient (p, k) of any form at theta (p, k)."""
    rows = np.ascontiguousarray(theta.T)
    residual = problem.residual(rows)
    pull = np.clip(residual, -HUBER_DELTA, HUBER_DELTA)
    gradient = (pull[:, None, :] @ problem.form.jacobian(rows, problem.x))[:, 0, :]
    return (pull * (residual - 0.5 * pull)).sum(axis=-1), gradient.T


def descend(
    evaluate: Evaluate, starts: FloatArray, box: FloatArray, metric: FloatArray, iterations: int = ITERATIONS
) -> tuple[FloatArray, FloatArray]:
    """Projected L-BFGS side by side from starts (p, k): where each search ends (p, k), and its objective (k,).

    Every iteration evaluates once: a step that does not lower the objective is refused and the next one is shorter; its
    change of gradient teaches the curvature all the same. Coordinates on a bound that pull outwards are held.
    """
    low, high = box[:, :1], box[:, 1:]
    theta: FloatArray = np.clip(starts, low, high)
    value: FloatArray
    gradient: FloatArray
    value, gradient = evaluate(theta)
    shape = theta.shape
    steps, turns = np.zeros((MEMORY, *shape)), np.zeros((MEMORY, *shape))
    weight, share = np.zeros((MEMORY, shape[1])), np.zeros((MEMORY, shape[1]))
    size: FloatArray = np.zeros(shape[1])
    reach: FloatArray = np.ones(shape[1])
    for turn in range(iterations):
        held = ((theta <= low) & (gradient > 0)) | ((theta >= high) & (gradient < 0))
        slope: FloatArray = np.where(held, 0.0, gradient)
        move: FloatArray = slope.copy()
        for age in range(MEMORY):
            h = (turn - 1 - age) % MEMORY
            share[h] = weight[h] * _dot(steps[h], move)
            move -= share[h] * turns[h]
        move = size * (metric @ move)
        for age in range(MEMORY):
            h = (turn + age) % MEMORY
            move += (share[h] - weight[h] * _dot(turns[h], move)) * steps[h]
        # Steepest descent in the metric, of unit length, where there is no history yet or it points uphill.
        plain = metric @ slope
        steepness = _dot(slope, plain)
        lost = (size == 0) | ~(_dot(slope, move) > 1e-12 * steepness * size)
        move = np.where(lost, plain / np.sqrt(steepness + 1e-300), move)
        trial = np.clip(theta - reach * np.where(slope == 0.0, 0.0, move), low, high)
        reached, bend = evaluate(trial)
        h = turn % MEMORY
        steps[h], turns[h] = trial - theta, bend - gradient
        promised = np.minimum(_dot(steps[h], gradient), 0.0)
        better = (reached <= value + ARMIJO * promised) & (reached < value)
        reach = np.where(better, 1.0, SHRINK * reach)
        value = np.where(better, reached, value)
        theta = np.where(better, trial, theta)
        gradient = np.where(better, bend, gradient)
        along, across = _dot(steps[h], turns[h]), _dot(turns[h], metric @ turns[h])
        good = (along > 1e-14 * across) & (across > 0)
        weight[h] = np.where(good, 1.0 / np.where(good, along, 1.0), 0.0)
        size = np.where(good, along / np.where(good, across, 1.0), size)
    return theta, value


def _dot(a: FloatArray, b: FloatArray) -> FloatArray:
    return np.einsum("pk,pk->k", a, b)
