"""Fit a law to runs: scan by variable projection, polish by Newton on the summed Huber objective, report the optimum.

The objective is the paper's: sum over runs of Huber_delta(ln Lhat - ln L), delta = 1e-3. It is summed, never averaged:
an average would shrink the gradient and stop the search early.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from moescale.errors import InputError
from moescale.fitting import multistart
from moescale.models.family import ModelFamily, match_family
from moescale.runs.table import RunTable
from moescale.scaling_laws.covariates import further_inputs
from moescale.scaling_laws.form import Inputs, LawForm, LinearPart, Observed, make_inputs
from moescale.scaling_laws.law import Law
from moescale.typing import FloatArray, Real

HUBER_DELTA = 1e-3  # Yun et al. 2024, appendix C; Hoffmann et al. 2022
SCAN_POINTS = 4096
POLISHED_STARTS = 128
FINISHED_STARTS = 16  # the best of them after the first iterations, carried on until they stop
SCAN_ROWS = 2000  # more runs than this are screened on a subset and then polished on all
POLISHED_ENDS = 400  # of the searches from a published grid
FINISHED_FACTOR = 2.0  # of them, those whose objective is within this factor of the best are carried to the end
LARGE_STARTS, LARGE_ITERATIONS = 1, 20
SAME_OPTIMUM = 1e-6  # relative difference of the objective within which two searches found the same optimum

Progress = Callable[[str, float], None]  # what is being done, and the share of it that is done


@dataclass(frozen=True, slots=True)
class Fit:
    """An optimum and how it was found. `theta` is in search coordinates, `parameters` in public units."""

    form: LawForm
    theta: FloatArray
    parameters: dict[str, float]
    n_runs: int
    rmsle: float  # sqrt(mean((ln L - ln Lhat)^2))
    huber: float  # mean of the Huber terms
    objective: float  # their sum: what was minimised
    starts: int
    starts_at_optimum: int
    at_bound: tuple[str, ...]
    not_identified: tuple[str, ...]
    standard_error: dict[str, float]  # of the search coordinate (the logarithm where the search moves it)
    seconds: float
    fit_range: dict[str, tuple[float, float]]
    warnings: tuple[str, ...]

    def to_dict(self, intervals: dict[str, tuple[float, float]] | None = None) -> dict[str, object]:
        """The record of the command line's contract; `intervals` are those of a bootstrap."""
        return {
            "law": self.form.name,
            "n_runs": self.n_runs,
            "parameters": self.parameters,
            "intervals": {k: list(v) for k, v in intervals.items()} if intervals else None,
            "rmsle": self.rmsle,
            "huber": self.huber,
            "objective": self.objective,
            "starts": self.starts,
            "starts_at_optimum": self.starts_at_optimum,
            "seconds": self.seconds,
            "fit_range": {k: list(v) for k, v in self.fit_range.items()},
            "at_bound": list(self.at_bound),
            "not_identified": list(self.not_identified),
            "warnings": list(self.warnings),
        }


def huber(residual: FloatArray, delta: float = HUBER_DELTA) -> FloatArray:
    """Huber terms: r^2 / 2 within delta, delta (|r| - delta / 2) beyond."""
    size = np.abs(residual)
    small = np.minimum(size, delta)
    return small * (size - 0.5 * small)


def objective(form: LawForm, theta: FloatArray, x: Inputs, ln_loss: FloatArray) -> FloatArray:
    """Summed Huber objective at each theta, shape (...)."""
    return huber(form.log_loss(theta, x) - ln_loss).sum(axis=-1)


@dataclass(frozen=True, slots=True)
class Penalty:
    """A quadratic that a prior adds to the objective: (theta - centre)' precision (theta - centre) / 2."""

    centre: FloatArray  # (p,)
    precision: FloatArray  # (p, p), in units of the objective

    def value(self, theta: FloatArray) -> FloatArray:
        """The penalty at each theta, (...)."""
        off = theta - self.centre
        return 0.5 * np.einsum("...i,ij,...j->...", off, self.precision, off)


def polish(
    form: LawForm,
    starts: FloatArray,
    x: Inputs,
    ln_loss: FloatArray,
    box: FloatArray,
    *,
    weights: FloatArray | None = None,
    penalty: Penalty | None = None,
    delta: float = HUBER_DELTA,
    max_iterations: int = 2000,
    tolerance: float = 1e-13,
) -> tuple[FloatArray, FloatArray]:
    """Minimise the summed Huber objective inside a box from each of k starts by damped Newton with the exact Hessian.

    `starts` is (k, p), `weights` (k, n) or (n,) multiplies the terms (a bootstrap's counts). Returns the optima (k, p)
    and their objectives (k,). A search ends when a step improves the objective by less than `tolerance` relative.
    """
    low, high = box[:, 0], box[:, 1]
    theta = np.clip(np.atleast_2d(starts).astype(float), low, high)
    count, p = theta.shape
    w = np.ones((count, ln_loss.size)) if weights is None else np.broadcast_to(weights, (count, ln_loss.size))

    def value(at: FloatArray, weight: FloatArray) -> FloatArray:
        terms = (weight * huber(form.log_loss(at, x) - ln_loss, delta)).sum(axis=-1)
        return terms if penalty is None else terms + penalty.value(at)

    best = value(theta, w)
    damping = np.full(count, 1e-3)
    active = np.arange(count)
    stalled = np.zeros(count, dtype=int)
    identity = np.eye(p)
    for _ in range(max_iterations):
        if active.size == 0:
            break
        at, weight = theta[active], w[active]
        residual = form.log_loss(at, x) - ln_loss
        slope = form.jacobian(at, x)
        pull = weight * np.clip(residual, -delta, delta)
        gradient = (pull[:, None, :] @ slope)[:, 0, :]
        inside = weight * (np.abs(residual) < delta)
        hessian = np.swapaxes(slope * inside[..., None], 1, 2) @ slope + _curvature(form, at, x, pull)
        if penalty is not None:
            gradient = gradient + (at - penalty.centre) @ penalty.precision
            hessian = hessian + penalty.precision

        held = ((at <= low) & (gradient > 0)) | ((at >= high) & (gradient < 0))
        # Coordinates differ in scale by orders of magnitude; the Gauss-Newton diagonal makes damping mean the same in all.
        norm = np.sqrt(np.einsum("kn,knp->kp", weight, slope**2)) + 1e-12
        if penalty is not None:
            norm = np.sqrt(norm**2 + np.diag(penalty.precision))
        scaled = hessian / (norm[:, :, None] * norm[:, None, :])
        move = _damped_step(scaled, gradient / norm, held, np.zeros_like(at), damping[active], identity) / norm
        beyond = (at + move < low) | (at + move > high)
        if beyond.any():
            # A step cut off at the box would change direction: put the blocked coordinates on their bounds, solve again.
            rows = np.flatnonzero(beyond.any(axis=1))
            blocked = beyond[rows]
            to_bound = np.where(blocked, np.clip(at[rows] + move[rows], low, high) - at[rows], 0.0) * norm[rows]
            again = _damped_step(
                scaled[rows], (gradient / norm)[rows], held[rows] | blocked, to_bound, damping[active[rows]], identity
            )
            move[rows] = again / norm[rows]
        trial = np.clip(at + move, low, high)
        reached = value(trial, weight)
        gain = best[active] - reached
        better = gain > 0
        theta[active[better]] = trial[better]
        small = gain < tolerance * np.abs(best[active])
        best[active[better]] = reached[better]
        damping[active] = np.where(better, damping[active] / 8.0, damping[active] * 6.0)
        np.clip(damping, 1e-12, 1e8, out=damping)
        stalled[active] = np.where(better & ~small, 0, stalled[active] + 1)
        active = active[stalled[active] < 12]
    return theta, best


def _damped_step(
    hessian: FloatArray,
    gradient: FloatArray,
    fixed: npt.NDArray[np.bool_],
    given: FloatArray,
    damping: FloatArray,
    identity: FloatArray,
) -> FloatArray:
    """Newton step of k searches, (k, p), whose `fixed` coordinates move by `given`, the others by the damped solution."""
    free = ~fixed
    reduced = np.where(free[:, :, None] & free[:, None, :], hessian, identity)
    pull = np.where(free, gradient + (hessian @ given[..., None])[..., 0], 0.0)
    values, vectors = np.linalg.eigh(reduced)
    along = (np.swapaxes(vectors, 1, 2) @ pull[..., None])[..., 0]
    # |eigenvalue|: a direction of negative curvature is descended, not climbed.
    step = -along / (np.maximum(np.abs(values), 1e-14) + damping[:, None])
    return np.where(free, (vectors @ step[..., None])[..., 0], given)


def _curvature(form: LawForm, theta: FloatArray, x: Inputs, weights: FloatArray) -> FloatArray:
    """The form's own weighted second derivatives, or central differences of its first, (k, p, p)."""
    if form.curvature is not None:
        return form.curvature(theta, x, weights)
    p = theta.shape[-1]
    out = np.empty((*theta.shape, p))
    for j in range(p):
        step = np.zeros(p)
        step[j] = 1e-5
        wider, narrower = form.jacobian(theta + step, x), form.jacobian(theta - step, x)
        out[..., j, :] = (weights[..., None, :] @ (wider - narrower))[..., 0, :] / 2e-5
    return 0.5 * (out + np.swapaxes(out, -1, -2))


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
    best = np.zeros((m, k))
    lowest = np.zeros(m)
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


def scan(
    form: LawForm, x: Inputs, ln_loss: FloatArray, box: FloatArray, observed: Observed, count: int
) -> tuple[FloatArray, FloatArray]:
    """Look at `count` points of the parameters: theta (count, p), clipped to the box, and the objective of each (count,).

    Where the form is linear in some parameters this is variable projection: only the others are scanned.
    """
    if form.linear is not None:
        return _scan_projected(form, form.linear, x, ln_loss, box, form.linear.region(observed), count)
    region = box if form.region is None else form.region(observed)
    theta = np.clip(region[:, 0] + _lattice(count, len(region)) * np.diff(region)[:, 0], box[:, 0], box[:, 1])
    chunk = max(1, 2_000_000 // max(1, ln_loss.size))
    values = [objective(form, theta[i : i + chunk], x, ln_loss) for i in range(0, count, chunk)]
    return theta, np.concatenate(values)


def _scan_projected(
    form: LawForm, part: LinearPart, x: Inputs, ln_loss: FloatArray, box: FloatArray, region: FloatArray, count: int
) -> tuple[FloatArray, FloatArray]:
    points = region[:, 0] + _lattice(count, len(part.shape)) * (region[:, 1] - region[:, 0])
    return project(form, part, points, x, ln_loss, box)


def project(
    form: LawForm, part: LinearPart, points: FloatArray, x: Inputs, ln_loss: FloatArray, box: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """The best amplitudes at given shape parameters (k, s): theta (k, p) in the box, and the objective of each (k,)."""
    count = len(points)
    theta = np.empty((count, len(form.parameters)))
    values = np.empty(count)
    chunk = max(1, 2_000_000 // max(1, ln_loss.size))
    for first in range(0, count, chunk):
        some = points[first : first + chunk]
        # Relative residuals: (sum_k a_k phi_k) / (L exp(-offset)) - 1 is close to the residual of the logarithm.
        columns = part.basis(some, x) * np.exp(part.offset(some, x) - ln_loss)[..., None]
        norm = np.sqrt((columns**2).mean(axis=-2)) + 1e-300
        columns = columns / norm[:, None, :]
        gram = np.swapaxes(columns, 1, 2) @ columns
        amplitudes = _nonnegative_least_squares(gram, columns.sum(axis=1)) / norm
        block = np.empty((len(some), theta.shape[1]))
        block[:, part.shape] = some
        block[:, part.amplitudes] = np.log(np.maximum(amplitudes, 1e-30))
        block = np.clip(block, box[:, 0], box[:, 1])
        theta[first : first + chunk] = block
        values[first : first + chunk] = objective(form, block, x, ln_loss)
    return theta, values


def _spread_rows(count: int, wanted: int) -> np.typing.NDArray[np.intp]:
    """`wanted` row numbers spread evenly over `count` rows."""
    return np.unique(np.linspace(0, count - 1, wanted).astype(np.intp))


def check_runs(
    form: LawForm,
    n_params: FloatArray,
    tokens: FloatArray,
    experts: FloatArray,
    extra: Mapping[str, Real] | None = None,
) -> list[str]:
    """Refuse tables that cannot hold a fit, and warn about variables that do not vary."""
    if n_params.size < 3:
        raise InputError(
            f"{n_params.size} runs are too few to fit {form.name} with its {len(form.parameters)} parameters",
            next_step=f"give at least 3 runs, and more than {len(form.parameters)} for a fit that can be checked",
        )
    notes: list[str] = []
    if n_params.size <= len(form.parameters):
        notes.append(
            f"{n_params.size} runs for {len(form.parameters)} parameters: the fit passes through the noise; "
            f"predictions away from the runs mean little"
        )
    absent = [label for label, used in (("n_experts", form.uses_experts), ("tokens", form.uses_tokens)) if not used]
    for label, values in (("size", n_params), ("tokens", tokens), ("n_experts", experts)):
        if label in absent:
            # What further inputs say of the experts (a sparsity) may vary with their number.
            if np.unique(values).size > 1 and not (label == "n_experts" and form.implied_inputs):
                notes.append(f"{form.name} has no term in {label}, but the runs vary it; filter with --where")
        elif np.unique(values).size == 1:
            notes.append(f"all runs have the same {label} ({values[0]:g}): its terms cannot be told from the constant")
    for label, values in (extra or {}).items():
        distinct = np.unique(np.asarray(values, dtype=float))
        if distinct.size == 1:
            notes.append(f"all runs have the same {label} ({distinct[0]:g}): what depends on it cannot be fitted")
    return notes


def observed_of(x: Inputs, ln_loss: FloatArray) -> Observed:
    """What the bounds of a law may depend on, of these runs."""
    return Observed(float(x.experts.max()), float(np.exp(ln_loss.min())), float(np.exp(x.ln_n.mean())))


def fit(
    form: LawForm,
    n_params: FloatArray,
    tokens: FloatArray,
    experts: FloatArray,
    loss: FloatArray,
    *,
    extra: Mapping[str, Real] | None = None,
    starts: str | int = "auto",
    free: bool = False,
    progress: Progress | None = None,
) -> Fit:
    """Fit `form` to runs given as float64 arrays of one length, inside the form's physical box, or `free` of it.

    `extra` holds the form's further inputs by name, arrays of that length or numbers that hold for all runs.
    `starts` is "auto" (scan, polish the best 128), an integer (how many scanned points to polish) or "paper" (every
    start of the publication's grid; Ctrl-C ends it early and keeps the best, with a warning). `free` replaces the box
    by limits that only keep the arithmetic finite: the optimum may then be unphysical. Raises InputError for tables
    that cannot hold a fit.

    `starts_at_optimum` counts the searches that were carried to the end and came within 1e-6 of the best objective. With
    "paper" the best 400 distinct ends are carried on, each counted as often as starts share it (the box makes many of
    the 810,000 starts equal), so that the count is a lower bound.
    """
    began = time.perf_counter()
    n_params, tokens, experts, loss = (np.asarray(v, dtype=float) for v in (n_params, tokens, experts, loss))
    further = further_inputs(form, extra)
    notes = check_runs(form, n_params, tokens, experts, further)
    x, ln_loss = make_inputs(n_params, tokens, experts, further), np.log(loss)
    observed = observed_of(x, ln_loss)
    if free:
        form = form.free or widened(form)
    box = form.bounds(observed)
    report = progress or _no_progress

    small = ln_loss.size <= SCAN_ROWS
    rows = np.arange(ln_loss.size) if small else _spread_rows(ln_loss.size, SCAN_ROWS)
    x_few, ln_few = (x, ln_loss) if small else (x.rows(rows), ln_loss[rows])

    if starts == "paper":
        axes = multistart.published_axes(form, observed)
        if notice := multistart.slow_notice(
            form, ln_few.size, multistart.grid_size(multistart.distinct_axes(axes, box)[0])
        ):
            report(notice, 0.0)
            notes.append(notice)
        candidates, reached, searched = polish_grid(form, axes, x_few, ln_few, box, progress=report)
        if searched.done < searched.total:
            notes.append(
                f"interrupted: {searched.done:,} of {searched.total:,} starts were searched from; this is the best of them"
            )
        tried = searched.done
    else:
        wanted = POLISHED_STARTS if starts == "auto" else int(starts)
        report("scan", 0.0)
        scanned, values = scan(form, x_few, ln_few, box, observed, max(SCAN_POINTS, 4 * wanted))
        chosen = scanned[np.argsort(values, kind="stable")[:wanted]]
        report("polish", 0.5)
        candidates, reached = polish(form, chosen, x_few, ln_few, box, max_iterations=60)
        # Flat directions (E_max, F) take many steps; only searches that can still win are carried to the end.
        leading = np.argsort(reached, kind="stable")[:FINISHED_STARTS]
        candidates[leading], reached[leading] = polish(form, candidates[leading], x_few, ln_few, box)
        tried = len(candidates)
    if not small:
        report("polish on all runs", 0.0)
        # The subset's optimum is a step or two away from that of all runs; many rows pay for few iterations only.
        order = np.argsort(reached, kind="stable")[:LARGE_STARTS]
        candidates, reached = polish(
            form, candidates[order], x, ln_loss, box, max_iterations=LARGE_ITERATIONS, tolerance=1e-10
        )
    best = int(np.argmin(reached))
    theta = candidates[best]
    at_optimum = int((reached <= reached[best] * (1.0 + SAME_OPTIMUM)).sum())
    ranges = {
        name: (float(values.min()), float(values.max()))
        for name, values in {"n_params": n_params, "tokens": tokens, "experts": experts, **x.extra}.items()
        if np.isfinite(values).all()
    }
    return describe(
        form, theta, x, ln_loss, box,
        fit_range=ranges, starts=tried, starts_at_optimum=at_optimum, notes=notes, seconds=time.perf_counter() - began,
    )  # fmt: skip


def _no_progress(step: str, share: float) -> None:
    """Report to nobody."""


def polish_grid(
    form: LawForm, axes: tuple[FloatArray, ...], x: Inputs, ln_loss: FloatArray, box: FloatArray, *, progress: Progress
) -> tuple[FloatArray, FloatArray, multistart.Searched]:
    """Search from every start of a grid, polish the best distinct ends, carry those that can still win to the end.

    Returns the polished theta (k, p), their objectives (k,), and the searches. An end that several starts share is
    repeated as often.
    """
    searched = multistart.search_grid(form, axes, x, ln_loss, box, HUBER_DELTA, progress=progress)
    _, distinct, number = np.unique(searched.value, return_index=True, return_inverse=True)  # sorted by the objective
    sharing = np.bincount(number, searched.sharing).astype(np.intp)[:POLISHED_ENDS]
    chosen = distinct[:POLISHED_ENDS]
    progress("polish", 0.0)
    candidates, reached = polish(form, searched.theta[chosen], x, ln_loss, box, max_iterations=60)
    progress("polish", 0.2)
    leading = np.flatnonzero(reached <= FINISHED_FACTOR * reached.min())
    candidates[leading], reached[leading] = polish(form, candidates[leading], x, ln_loss, box)
    return np.repeat(candidates, sharing, axis=0), np.repeat(reached, sharing), searched


def widened(form: LawForm) -> LawForm:
    """The form without its physical box, where it has no further coordinates for that."""
    limits = np.array([(-70.0, 300.0) if parameter.log else (-10.0, 10.0) for parameter in form.parameters])

    def bounds(_: Observed) -> FloatArray:
        return limits

    return replace(form, bounds=bounds)


def describe(
    form: LawForm,
    theta: FloatArray,
    x: Inputs,
    ln_loss: FloatArray,
    box: FloatArray,
    *,
    fit_range: dict[str, tuple[float, float]],
    starts: int,
    starts_at_optimum: int,
    notes: list[str],
    seconds: float,
) -> Fit:
    """The Fit record of an optimum: errors, bounds that it touches, parameters that the runs do not identify."""
    residual = form.log_loss(theta, x) - ln_loss
    rmsle = float(np.sqrt(np.mean(residual**2)))
    terms = huber(residual)
    touching = (theta <= box[:, 0] + 1e-9) | (theta >= box[:, 1] - 1e-9)
    at_bound = tuple(name for name, hit in zip(form.names, touching, strict=True) if hit)
    error = _standard_errors(form, theta, x, residual, touching)
    # A parameter counts as identified when a 90% interval fixes it within a factor of 10 each way (logarithms), or
    # tells an exponent from zero.
    limit = np.array(
        [np.log(10.0) / 1.645 if p.log else abs(t) / 1.645 for p, t in zip(form.parameters, theta, strict=True)]
    )
    loose = touching | (error > limit)
    not_identified = tuple(name for name, is_loose in zip(form.names, loose, strict=True) if is_loose)
    notes = list(notes)
    if at_bound:
        notes.append(f"on a bound of the physical box: {', '.join(at_bound)}")
    if not_identified:
        notes.append(f"not identified by these runs: {', '.join(not_identified)} (predictions near the runs still are)")
    public = form.decode(theta)
    return Fit(
        form=form,
        theta=theta,
        parameters={name: float(value) for name, value in zip(form.names, public, strict=True)},
        n_runs=int(ln_loss.size),
        rmsle=rmsle,
        huber=float(terms.mean()),
        objective=float(terms.sum()),
        starts=starts,
        starts_at_optimum=starts_at_optimum,
        at_bound=at_bound,
        not_identified=not_identified,
        standard_error={name: float(value) for name, value in zip(form.names, error, strict=True)},
        seconds=seconds,
        fit_range=fit_range,
        warnings=tuple(notes),
    )


def _standard_errors(
    form: LawForm, theta: FloatArray, x: Inputs, residual: FloatArray, fixed: np.typing.NDArray[np.bool_]
) -> FloatArray:
    """Gauss-Newton standard errors of the search coordinates, (p,); infinite where the runs say nothing."""
    error = np.full(theta.size, np.inf)
    slope = form.jacobian(theta, x)[:, ~fixed]
    spread = residual.size - slope.shape[1]
    if spread < 1:  # nothing is left over to judge the noise by
        return error
    norm = np.sqrt((slope**2).sum(axis=0)) + 1e-300
    values, vectors = np.linalg.eigh((slope / norm).T @ (slope / norm))
    # With delta well below the noise the fit is close to a median regression, whose variance is pi/2 times that of least
    # squares under normal errors; the noise is judged by the median residual, so that a few broken runs do not count.
    noise = 1.4826 * float(np.median(np.abs(residual)))
    variance = 0.5 * np.pi * noise**2 * residual.size / spread
    # An eigenvalue at rounding level is a direction without information.
    inverse = np.where(values > 1e-13, 1.0 / np.maximum(values, 1e-300), np.inf)
    with np.errstate(invalid="ignore"):
        share = np.nansum(np.where(vectors**2 > 1e-12, vectors**2 * inverse, 0.0), axis=1)
    # Runs without noise (variance 0) still say nothing along a direction without information.
    error[~fixed] = np.where(np.isinf(share), np.inf, np.sqrt(variance * np.where(np.isinf(share), 0.0, share)) / norm)
    return error


def family_of(runs: RunTable) -> tuple[ModelFamily, list[str]]:
    """The family that the columns of a table speak for, with remarks."""
    columns = {name: runs.columns.get(name) for name in ("top_k", "n_params_total")}
    numeric = {k: v if v is not None and v.dtype.kind == "f" else None for k, v in columns.items()}
    family, remarks = match_family(
        runs.n_params, runs.experts, top_k=numeric["top_k"], n_params_total=numeric["n_params_total"]
    )
    if runs.size_column == "n_params_total":
        family = replace(family, n_counts="total")
    return family, remarks


def fitted_law(
    found: Fit,
    family: ModelFamily,
    *,
    name: str,
    source: str,
    date: str,
    draws: FloatArray | None = None,
    evidence: dict[str, object] | None = None,
) -> Law:
    """The law that a fit found, with the family of models that the runs belong to and a bootstrap's draws (k, p)."""
    facts: dict[str, object] = {
        "n_runs": found.n_runs,
        "rmsle": found.rmsle,
        "huber": found.huber,
        "starts": found.starts,
        "starts_at_optimum": found.starts_at_optimum,
        "objective": f"sum of Huber terms, delta {HUBER_DELTA:g}, of ln L",
    }
    return Law(
        name=name,
        form=found.form,
        theta=found.theta,
        family=family,
        source=source,
        date=date,
        fit_range=found.fit_range,
        draws=np.empty((0, found.theta.size)) if draws is None else draws,
        notes=found.warnings,
        max_experts=found.fit_range["experts"][1] if found.form.uses_experts else None,
        evidence=facts | (evidence or {}),
    )
