"""The published starts of Yun et al.: L-BFGS inside the box from every start of the grid, as many as there are cores at a time.

The objective of equation 4 is factorised: A / N^alpha is computed for each distinct N, and so on, so that a run costs sums,
products and one logarithm; with the form's own derivatives a search takes some twenty times as long.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from moescale.errors import InputError
from moescale.fitting.search import HUBER_DELTA, Problem, polish
from moescale.scaling_laws import yun2024
from moescale.scaling_laws.clark2022 import ln_effective
from moescale.scaling_laws.form import STEP, LawForm, Observed, make_inputs
from moescale.scaling_laws.yun2024 import ALPHA, BETA, CENTRE, GAMMA, MAX, START, A, B, C, D, F
from moescale.typing import FloatArray, Progress

ITERATIONS = 40  # of the L-BFGS, for every start: enough to tell the basins apart, not to converge
MEMORY = 6  # pairs of steps that the L-BFGS remembers
ARMIJO = 1e-4  # share of the promised decrease that a step must keep
SHRINK = 0.4  # of the step after a refusal
RIDGE = 1e-2  # added to the normalised Gauss-Newton matrix, whose inverse is the metric of the search
METRIC_STARTS = 512  # starts over which that matrix is averaged
NUMBERS = 120_000  # numbers in an array of the search: starts times runs, so that it stays in the cache
POLISHED_ENDS, FIRST_ITERATIONS = 400, 30  # of the searches, the best distinct ones, and steps that all of these take
FINISHED_FACTOR = 2.0  # of them, those whose objective is within this factor of the best are carried to the end

IntArray = np.typing.NDArray[np.intp]
# A start is a column: theta (p, k), objective (k,), gradient (p, k).
Evaluate = Callable[[FloatArray], tuple[FloatArray, FloatArray]]


def published_axes(form: LawForm, observed: Observed) -> tuple[FloatArray, ...]:
    """The starts of the paper's appendix, one axis a parameter: 810,000 in all. InputError for other forms.

    Ours are those of E_start and E_max (2 and twice the largest observed E) and of N0 (the runs' mean size).
    """
    if form not in (yun2024.FORM, yun2024.CENTRED):
        raise InputError(f"{form.name} has no published grid of starts", next_step="use --starts auto")
    exponent, amplitude, f = np.arange(0.0, 2.01, 0.5), np.arange(0.0, 25.1, 5.0), np.arange(-1.0, 1.01, 0.5)
    e_max = np.log(np.clip(2.0 * observed.experts_max, 4.0, 1e4))
    ends = (np.array([np.log(2.0) / e_max]), np.array([e_max]), np.log([observed.n_params_mid]))
    return (*(amplitude, exponent) * 3, f, amplitude, *ends)[: len(form.parameters)]


def starts_at(axes: Sequence[FloatArray], numbers: IntArray) -> FloatArray:
    """The starts of these numbers, (k, p); the last axis runs fastest."""
    index = np.unravel_index(numbers, [axis.size for axis in axes])
    return np.stack([axis[i] for axis, i in zip(axes, index, strict=True)], axis=1)


def search_grid(
    problem: Problem, axes: Sequence[FloatArray], *, progress: Progress
) -> tuple[FloatArray, FloatArray, IntArray]:
    """Where L-BFGS of ITERATIONS steps ends from the starts of a grid: theta (k, p), objectives and sharing starts (k,).

    Starts that the box makes equal are searched from once: 270,000 differ of yun2024's 810,000.
    """
    pairs = [
        np.unique(np.clip(axis, *limits), return_counts=True) for axis, limits in zip(axes, problem.box, strict=True)
    ]
    values, counts = zip(*pairs, strict=True)
    total, slab = int(np.prod([axis.size for axis in values])), max(64, NUMBERS // problem.ln_loss.size)
    at = factorised(problem)
    # The inverse of the Gauss-Newton matrix, averaged over a sample of the starts: ln A and alpha, say, trade off along
    # a narrow valley; in this metric the first steps already go along it.
    sample = starts_at(values, np.unique(np.linspace(0, total - 1, METRIC_STARTS).astype(np.intp)))
    slope = problem.form.jacobian(sample, problem.x)
    matrix = np.einsum("knp,knq->pq", slope, slope) / (slope.shape[0] * slope.shape[1])
    scale = np.sqrt(np.diag(matrix)) + 1e-12
    metric = np.linalg.inv(matrix / np.outer(scale, scale) + RIDGE * np.eye(scale.size)) / np.outer(scale, scale)

    def search(first: int) -> tuple[FloatArray, FloatArray]:
        starts = starts_at(values, np.arange(first, min(first + slab, total)))
        return descend(at, np.ascontiguousarray(starts.T), problem.box, metric)

    ends: list[tuple[FloatArray, FloatArray]] = []
    threads = ThreadPoolExecutor(os.cpu_count())
    try:
        for found in threads.map(search, range(0, total, slab)):
            progress("published grid", len(ends) * slab / total)
            ends.append(found)
    finally:
        threads.shutdown(cancel_futures=True)
    theta, value = (np.concatenate(parts, axis=-1) for parts in zip(*ends, strict=True))
    return theta.T, value, starts_at(counts, np.arange(total)).prod(axis=1)


def polish_grid(problem: Problem, progress: Progress) -> tuple[FloatArray, FloatArray, int]:
    """The best ends of the published grid's searches, polished, as often as starts share them: theta (k, p), (k,).

    The third answer is how many starts there are.
    """
    theta, value, sharing = search_grid(problem, published_axes(problem.form, problem.observed), progress=progress)
    _, distinct, number = np.unique(value, return_index=True, return_inverse=True)  # sorted by the objective
    shared = np.bincount(number, sharing).astype(np.intp)[:POLISHED_ENDS]
    progress("polish", 0.0)
    ends, reached = polish(problem, theta[distinct[:POLISHED_ENDS]], max_iterations=FIRST_ITERATIONS)
    leading = np.flatnonzero(reached <= FINISHED_FACTOR * reached.min())
    ends[leading], reached[leading] = polish(problem, ends[leading])
    return np.repeat(ends, shared, axis=0), np.repeat(reached, shared), int(sharing.sum())


def factorised(problem: Problem) -> Evaluate:
    """Objective (k,) and gradient (p, k) of equation 4 at theta (p, k), p being 10 or, with ln N0, 11."""
    x, ln_loss = problem.x, problem.ln_loss[:, None]
    ln_n, n_of = np.unique(x.ln_n, return_inverse=True)
    ln_d, d_of = np.unique(x.ln_d, return_inverse=True)
    experts, e_of = np.unique(x.experts, return_inverse=True)
    distinct, of_count = make_inputs(1.0, 1.0, experts), (x.experts == experts[:, None]).astype(float)  # (counts, n)
    by_size = np.stack((np.ones_like(x.ln_n), -x.ln_n))
    by_data = np.stack((np.ones_like(x.ln_d), -x.ln_d))

    def at(theta: FloatArray) -> tuple[FloatArray, FloatArray]:
        ln_a, alpha, ln_b, beta, ln_c, gamma, ln_f, d, u, m = theta[:10]
        centre = theta[10] if len(theta) > 10 else np.zeros_like(d)
        e = ln_effective(u[:, None], m[:, None], distinct).T  # (counts, k)
        e_u = ln_effective(u[:, None] + 1j * STEP, m[:, None], distinct).T.imag / STEP
        e_m = ln_effective(u[:, None], m[:, None] + 1j * STEP, distinct).T.imag / STEP
        size = np.exp(ln_a - alpha * ln_n[:, None])[n_of]
        data = np.exp(ln_c - gamma * ln_d[:, None])[d_of]
        routing, floor = np.exp(ln_b - beta * e), np.exp(ln_f)
        terms = size + data
        terms += (routing + floor)[e_of]
        bent = d * e
        residual = np.log(terms)
        residual -= ln_loss
        residual += bent[e_of] * x.ln_n[:, None]
        residual -= (bent * centre)[e_of]
        pull = np.clip(residual, -HUBER_DELTA, HUBER_DELTA)
        residual -= 0.5 * pull
        value = np.einsum("nk,nk->k", pull, residual)
        share = np.divide(pull, terms, out=terms)
        of_routing, pulls = routing * (of_count @ share), of_count @ pull
        levers = (of_count * x.ln_n) @ pull - centre * pulls
        in_effective = d * levers - beta * of_routing
        gradient = np.empty_like(theta)
        gradient[[B, BETA]] = of_routing.sum(axis=0), -(of_routing * e).sum(axis=0)
        gradient[F] = floor * share.sum(axis=0)
        gradient[[A, ALPHA]] = by_size @ np.multiply(share, size, out=size)
        gradient[[C, GAMMA]] = by_data @ np.multiply(share, data, out=data)
        gradient[D] = (levers * e).sum(axis=0)
        gradient[[START, MAX]] = (in_effective * e_u).sum(axis=0), (in_effective * e_m).sum(axis=0)
        if len(theta) > CENTRE:
            gradient[CENTRE] = -d * (pulls * e).sum(axis=0)
        return value, gradient

    return at


def descend(
    evaluate: Evaluate, starts: FloatArray, box: FloatArray, metric: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Projected L-BFGS side by side from starts (p, k): where each search ends (p, k), and its objective (k,).

    A step that does not lower the objective is refused and the next one is shorter; its change of gradient teaches the
    curvature all the same. Coordinates on a bound that pull outwards are held.
    """
    low, high = box[:, :1], box[:, 1:]
    theta: FloatArray = np.clip(starts, low, high)
    value, gradient = evaluate(theta)
    shape = theta.shape
    steps, turns = np.zeros((MEMORY, *shape)), np.zeros((MEMORY, *shape))
    weight, share = np.zeros((MEMORY, shape[1])), np.zeros((MEMORY, shape[1]))
    size: FloatArray = np.zeros(shape[1])
    reach: FloatArray = np.ones(shape[1])
    for turn in range(ITERATIONS):
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
