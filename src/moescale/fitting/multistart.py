"""Search from every start of a publication's grid: L-BFGS inside the box, exponentials only for the distinct N, D and E.

The objective is the caller's summed Huber objective of ln Lhat - ln L. For equation 4 it is factorised: A / N^alpha is
computed for each distinct N, and so on, so a run costs sums, products and one logarithm. With numba (extra `fast`) the
search is compiled and uses all cores; without it the same search runs on NumPy, many starts at a time, only slower.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from moescale.errors import InputError
from moescale.scaling_laws import yun2024
from moescale.scaling_laws.effective_experts import derivatives_at
from moescale.scaling_laws.form import Inputs, LawForm, Observed
from moescale.typing import FloatArray

ITERATIONS = 40  # of the L-BFGS, for every start: enough to tell the basins apart, not to converge
MEMORY = 6  # pairs of steps that the L-BFGS remembers
ARMIJO = 1e-4  # share of the promised decrease that a step must keep
SHRINK = 0.4  # of the step after a refusal
RIDGE = 1e-2  # added to the normalised Gauss-Newton matrix, whose inverse is the metric of the search
METRIC_STARTS = 512  # starts over which that matrix is averaged
LARGEST_EXPONENT = 690.0  # without the box a term may leave the range of a double; it is then held at its edge
SLAB = 16_384  # starts between two reports of progress, compiled
NUMPY_NUMBERS = 120_000  # numbers in an array of the NumPy search: starts times runs, so that it stays in the cache
NUMPY_SECONDS = 3e-8  # per start, run and iteration, one core of a 2024 server: a first estimate of the time

Progress = Callable[[str, float], None]
IntArray = np.typing.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Factored:
    """Runs by their distinct values: ln N, ln D and E, and which of them each of the n runs has."""

    ln_n: FloatArray
    ln_d: FloatArray
    experts: FloatArray
    n_of: IntArray
    d_of: IntArray
    e_of: IntArray
    ln_loss: FloatArray


@dataclass(frozen=True, slots=True)
class Searched:
    """Where the searches ended: theta (k, p), objectives (k,), how many starts share each (k,), and all starts there are."""

    theta: FloatArray
    value: FloatArray
    sharing: IntArray
    total: int
    compiled: bool

    @property
    def done(self) -> int:
        """Starts that were searched from; fewer than `total` after an interruption."""
        return int(self.sharing.sum())


def factor(x: Inputs, ln_loss: FloatArray) -> Factored:
    """The distinct sizes, tokens and expert counts of the runs."""
    ln_n, n_of = np.unique(x.ln_n, return_inverse=True)
    ln_d, d_of = np.unique(x.ln_d, return_inverse=True)
    return Factored(ln_n, ln_d, x.experts_distinct, n_of, d_of, x.experts_index.astype(np.intp), ln_loss)


def has_numba() -> bool:
    """Whether numba is installed; does not import it."""
    try:
        return importlib.util.find_spec("numba") is not None
    except ValueError:  # a test put None into sys.modules
        return False


def forecast_s(form: LawForm, n_runs: int, starts: int) -> float:
    """About how many seconds the NumPy search takes, for `starts` distinct starts and `n_runs` runs."""
    return NUMPY_SECONDS * starts * n_runs * ITERATIONS * (1.0 if form.equation4 else 4.0)


def slow_notice(form: LawForm, n_runs: int, starts: int) -> str | None:
    """What to tell before a search that numba would make short; None where it is short already."""
    seconds = forecast_s(form, n_runs, starts)
    if (has_numba() and form.equation4) or seconds < 60.0:
        return None
    advice = ": pip install 'moescale[fast]' takes it to about one" if form.equation4 else ""
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
    form: LawForm,
    axes: tuple[FloatArray, ...],
    x: Inputs,
    ln_loss: FloatArray,
    box: FloatArray,
    delta: float,
    *,
    progress: Progress,
    compiled: bool | None = None,
    iterations: int = ITERATIONS,
) -> Searched:
    """L-BFGS of `iterations` steps from every start of a grid, inside the box; `compiled` None uses numba where it can.

    Starts that the box makes equal are searched from once. KeyboardInterrupt ends the search; what was done until then
    is returned.
    """
    values, counts = distinct_axes(axes, box)
    total = grid_size(values)
    theta, value = np.empty((total, len(axes))), np.empty(total)
    done = 0
    use_numba = bool(form.equation4) and has_numba() if compiled is None else compiled
    sample = starts_at(values, np.unique(np.linspace(0, total - 1, METRIC_STARTS).astype(np.intp)))
    try:
        progress("published grid", 0.0)
        metric = average_metric(form, sample, x)
        search, slab = (
            _compiled_search(form, box, metric, x, ln_loss, delta, iterations)
            if use_numba
            else _numpy_search(form, box, metric, x, ln_loss, delta, iterations)
        )
        while done < total:
            numbers = np.arange(done, min(done + slab, total))
            found, reached = search(starts_at(values, numbers))
            theta[numbers], value[numbers] = found, reached
            done += numbers.size
            progress("published grid", done / total)
    except KeyboardInterrupt:
        if not done:
            raise
    sharing = starts_at(counts, np.arange(done)).prod(axis=1).astype(np.intp)
    return Searched(theta[:done], value[:done], sharing, grid_size(axes), use_numba)


def average_metric(form: LawForm, sample: FloatArray, x: Inputs) -> FloatArray:
    """The inverse of the Gauss-Newton matrix averaged over the starts of a sample, (p, p).

    ln A and alpha, say, trade off along a narrow valley; in this metric the first steps already go along it.
    """
    slope = form.jacobian(sample, x)
    matrix = np.einsum("knp,knq->pq", slope, slope) / (slope.shape[0] * slope.shape[1])
    scale = np.sqrt(np.diag(matrix)) + 1e-12
    return np.linalg.inv(matrix / np.outer(scale, scale) + RIDGE * np.eye(scale.size)) / np.outer(scale, scale)


Search = Callable[[FloatArray], tuple[FloatArray, FloatArray]]  # starts (k, p) -> theta (k, p), objective (k,)


def _compiled_search(
    form: LawForm,
    box: FloatArray,
    metric: FloatArray,
    x: Inputs,
    ln_loss: FloatArray,
    delta: float,
    iterations: int,
) -> tuple[Search, int]:
    from moescale.fitting import multistart_kernel

    runs = factor(x, ln_loss)
    p = len(box)
    # The kernel always has ln N0; it is held at 0 where the law has none.
    missing = multistart_kernel.PARAMETERS - p
    wide_box = np.vstack((box, np.zeros((missing, 2))))
    wide_metric = np.zeros((multistart_kernel.PARAMETERS, multistart_kernel.PARAMETERS))
    wide_metric[:p, :p] = metric

    def search(starts: FloatArray) -> tuple[FloatArray, FloatArray]:
        padded = np.hstack((starts, np.zeros((len(starts), missing))))
        theta, value = multistart_kernel.search(
            padded, wide_box, wide_metric,
            (runs.ln_n, runs.ln_d, runs.experts, runs.n_of, runs.d_of, runs.e_of, runs.ln_loss),
            delta, form.equation4 == "spread", iterations,
        )  # fmt: skip
        return theta[:, :p], value

    return search, SLAB


def _numpy_search(
    form: LawForm,
    box: FloatArray,
    metric: FloatArray,
    x: Inputs,
    ln_loss: FloatArray,
    delta: float,
    iterations: int,
) -> tuple[Search, int]:
    if form.equation4:
        evaluate = _equation4(factor(x, ln_loss), delta, form.equation4)
    else:
        evaluate = _any_form(form, x, ln_loss, delta)

    def search(starts: FloatArray) -> tuple[FloatArray, FloatArray]:
        theta, value = descend(evaluate, np.ascontiguousarray(starts.T), box, metric, iterations)
        return theta.T, value

    return search, max(64, NUMPY_NUMBERS // ln_loss.size)


# In what follows a start is a column: theta (p, k), objective (k,), gradient (p, k).
Evaluate = Callable[[FloatArray], tuple[FloatArray, FloatArray]]


def _any_form(form: LawForm, x: Inputs, ln_loss: FloatArray, delta: float) -> Evaluate:
    def evaluate(theta: FloatArray) -> tuple[FloatArray, FloatArray]:
        rows = np.ascontiguousarray(theta.T)
        residual = form.log_loss(rows, x) - ln_loss
        pull = np.clip(residual, -delta, delta)
        gradient = (pull[:, None, :] @ form.jacobian(rows, x))[:, 0, :]
        return (pull * (residual - 0.5 * pull)).sum(axis=-1), gradient.T

    return evaluate


def _equation4(runs: Factored, delta: float, start: Literal["ratio", "spread"]) -> Evaluate:
    def member(of: IntArray, count: int) -> FloatArray:
        """Sums over the runs that share a value, as a matrix (count, n)."""
        matrix = np.zeros((count, of.size))
        matrix[of, np.arange(of.size)] = 1.0
        return matrix

    sum_n, sum_d, sum_e = (
        member(runs.n_of, runs.ln_n.size),
        member(runs.d_of, runs.ln_d.size),
        member(runs.e_of, runs.experts.size),
    )
    ln_n, ln_d = runs.ln_n[:, None], runs.ln_d[:, None]

    def evaluate(theta: FloatArray) -> tuple[FloatArray, FloatArray]:
        ln_a, alpha, ln_b, beta, ln_c, gamma, ln_f, d, at_start, ln_max, *centre = theta
        e, e_u, e_m, *_ = derivatives_at(at_start, ln_max, runs.experts[:, None], how=start)
        a, b, c = (_finite_exp(z) for z in (ln_a - alpha * ln_n, ln_b - beta * e, ln_c - gamma * ln_d))
        f = np.exp(ln_f)
        lever = ln_n - centre[0] if centre else ln_n + np.zeros_like(d)
        total = a[runs.n_of] + b[runs.e_of]
        total += c[runs.d_of]
        total += f
        residual = np.log(total)
        residual -= runs.ln_loss[:, None]
        residual += (d * lever)[runs.n_of] * e[runs.e_of]
        pull = np.clip(residual, -delta, delta)
        residual -= 0.5 * pull
        value = np.einsum("nk,nk->k", pull, residual)
        ratio = np.divide(pull, total, out=total)
        by_n, by_d, by_e = (sum_n @ ratio) * a, (sum_d @ ratio) * c, (sum_e @ ratio) * b
        lever_pull = sum_e @ (pull * lever[runs.n_of])
        slope = d * lever_pull - beta * by_e
        gradient = np.empty_like(theta)
        gradient[yun2024.A], gradient[yun2024.ALPHA] = by_n.sum(axis=0), -(by_n * ln_n).sum(axis=0)
        gradient[yun2024.B], gradient[yun2024.BETA] = by_e.sum(axis=0), -(by_e * e).sum(axis=0)
        gradient[yun2024.C], gradient[yun2024.GAMMA] = by_d.sum(axis=0), -(by_d * ln_d).sum(axis=0)
        gradient[yun2024.F] = f * ratio.sum(axis=0)
        gradient[yun2024.D] = (lever_pull * e).sum(axis=0)
        gradient[yun2024.START], gradient[yun2024.MAX] = (slope * e_u).sum(axis=0), (slope * e_m).sum(axis=0)
        if centre:
            gradient[yun2024.CENTRE] = -d * ((sum_e @ pull) * e).sum(axis=0)
        return value, gradient

    return evaluate


def descend(
    evaluate: Evaluate, starts: FloatArray, box: FloatArray, metric: FloatArray, iterations: int = ITERATIONS
) -> tuple[FloatArray, FloatArray]:
    """Projected L-BFGS side by side from starts (p, k): where each search ends (p, k), and its objective (k,).

    Every iteration evaluates once: a step that does not lower the objective is refused and the next one is shorter; its
    change of gradient teaches the curvature all the same. Coordinates on a bound that pull outwards are held.
    `moescale.fitting.multistart_kernel` is the same arithmetic, compiled.
    """
    low, high = box[:, :1], box[:, 1:]
    theta = np.clip(starts, low, high)
    value, gradient = evaluate(theta)
    shape = theta.shape
    steps, turns = np.zeros((MEMORY, *shape)), np.zeros((MEMORY, *shape))
    weight, share = np.zeros((MEMORY, shape[1])), np.zeros((MEMORY, shape[1]))
    size, reach = np.zeros(shape[1]), np.ones(shape[1])
    for turn in range(iterations):
        held = ((theta <= low) & (gradient > 0)) | ((theta >= high) & (gradient < 0))
        slope = np.where(held, 0.0, gradient)
        move = slope.copy()
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


def _finite_exp(z: FloatArray) -> FloatArray:
    return np.exp(np.clip(z, -LARGEST_EXPONENT, LARGEST_EXPONENT))


def _dot(a: FloatArray, b: FloatArray) -> FloatArray:
    return np.einsum("pk,pk->k", a, b)
