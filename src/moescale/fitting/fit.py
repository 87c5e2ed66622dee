"""Fit a law to runs: scan, polish, report the optimum; and how sure it is: the pairs bootstrap, whose draws carry over to every later answer."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from moescale.errors import InputError
from moescale.fitting import multistart
from moescale.fitting.canonical import RunArrays, inputs_of
from moescale.fitting.search import PATIENCE, Problem, huber, polish, scan
from moescale.io.filters import quoted_name
from moescale.io.records import plain, record
from moescale.io.signals import uninterrupted
from moescale.runs.table import RunTable, rows_text
from moescale.scaling_laws.form import Ends, Inputs, LawForm, further_inputs
from moescale.scaling_laws.law import MOST_DRAWS, NOT_IDENTIFIED, interval
from moescale.scaling_laws.store import FORMS
from moescale.typing import BoolArray, FloatArray, Progress, Real
from moescale.units import plural

SCAN_ROWS = 2000  # more runs than this are screened on a subset and then polished on all
LARGE_ITERATIONS, LARGE_TOLERANCE = 20, 1e-10
NO_REPEATS = "no run repeats data: the value of repeated tokens is unknown; predict for unique tokens only"
CHUNK = 64  # replicates that are refitted at a time: a balance of memory and vectorisation
JITTER = 0.05  # relative spread of a second start, so that a replicate may leave the basin of the first fit
SAME_OPTIMUM = 1e-6  # relative difference of the objective within which two searches found the same optimum
FAR = 8.0  # robust standard deviations: of 10,000 runs with normal errors none lies so far out
FAR_AT_LEAST = 0.02  # of ln L: what a run without a fault may be off by where the others fit very well
MOST_SOURCES, FEWEST_OF_SOURCE = 12, 3
UNLIKE = 0.1  # of ln L between sources: more than misfit of a form leaves, less than bits a byte are off from nats


@dataclass(frozen=True, slots=True)
class Search:
    """How hard to look: points scanned, the best `polished` by `first` iterations, the best `finished` of these until they stop."""

    points: int = 4096
    polished: int = 128
    first: int = 30
    finished: int = 16
    last: int = 2000
    tolerance: float = 1e-13
    patience: int = PATIENCE


THOROUGH = Search()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """An optimum and how it was found; `theta` is in search coordinates."""

    form: LawForm
    theta: FloatArray
    n_runs: int
    rmsle: float  # sqrt(mean((ln L - ln Lhat)^2))
    mad: float  # 1.4826 median(|ln L - ln Lhat|): what broken runs hardly move; of normal errors the same as rmsle
    huber: float  # mean of the Huber terms
    objective: float  # their sum: what was minimised
    starts: int
    starts_at_optimum: int
    at_bound: tuple[str, ...] = ()
    not_identified: tuple[str, ...] = ()
    standard_error: dict[str, float]  # of the search coordinate (the logarithm where the search moves it)
    seconds: float = 0.0
    fit_range: dict[str, Ends] = field(default_factory=dict[str, Ends])
    warnings: tuple[str, ...]

    @classmethod
    def of(cls, form: LawForm, theta: FloatArray, residual: FloatArray, **rest: Any) -> Fit:
        """The record of coefficients (p,), with what their residuals of ln L (n,) say."""
        terms, rmsle = huber(residual), float(np.sqrt(np.mean(residual**2)))
        of_residuals = {"rmsle": rmsle, "mad": robust_spread(residual), "huber": float(terms.mean())}
        return cls(form=form, theta=theta, n_runs=residual.size, **of_residuals, **rest)

    @property
    def parameters(self) -> dict[str, float]:
        """The coefficients in public units."""
        return dict(zip(self.form.names, self.form.decode(self.theta).tolist(), strict=True))

    def to_dict(self, intervals: dict[str, tuple[float, float]] | None = None) -> dict[str, object]:
        """The record of the command line's contract; `intervals` are those of a bootstrap."""
        shown = record(self, without=("form", "theta", "standard_error"))
        return {"law": self.form.name, "parameters": self.parameters, **shown, "intervals": plain(intervals or None)}


def check_runs(form: LawForm, runs: RunArrays) -> list[str]:
    """Refuse tables that cannot hold a fit, and warn about variables that do not vary."""
    n_runs, many = runs.loss.size, len(form.parameters)
    if n_runs < 3:
        what = f"{plural(n_runs, 'run')} {'is' if n_runs == 1 else 'are'} too few to fit {form.name} with its {many} parameters"
        raise InputError(what, next_step=f"give at least 3 runs, and more than {many} for a fit that can be checked")
    notes: list[str] = []
    if n_runs <= many:
        notes.append(f"{n_runs} runs for {many} parameters: the fit follows the noise; do not extrapolate")
    # What further inputs say of the experts (a sparsity) may vary with their number, and an expansion of 1 gives no
    # gain: a dense table leaves nothing to tell from the constant.
    for label, values, is_used, may_vary, may_be_one in (
        ("size", runs.n_params, True, False, False),
        ("tokens", runs.tokens, form.uses_tokens, False, False),
        ("n_experts", runs.experts, form.uses_experts, form.implied_inputs, form.of_models),
    ):
        varies = np.ptp(values) > 0.0
        if not is_used and varies and not may_vary:
            notes.append(f"{form.name} has no term in {label}, but the runs vary it; filter with --where")
        if is_used and not varies and not (may_be_one and values[0] == 1.0):
            notes.append(f"all runs have the same {label} ({values[0]:g}): its terms are not identified")
    for label, values in runs.extra.items():
        distinct = np.unique(values)
        if label == "unique_tokens" and np.isinf(distinct).all():
            notes.append(NO_REPEATS)
        elif distinct.size == 1:
            notes.append(f"all runs have the same {label} ({distinct[0]:g}): its dependence cannot be fitted")
    return notes


def fit(
    form: LawForm,
    n_params: FloatArray,
    tokens: FloatArray,
    experts: FloatArray,
    loss: FloatArray,
    *,
    extra: Mapping[str, Real] | None = None,
    starts: str | int = "auto",
    progress: Progress | None = None,
) -> Fit:
    """Fit `form` to runs given as arrays of one length, in any order; InputError for tables that cannot hold a fit.

    `extra` holds the form's further inputs by name, arrays of that length or numbers that hold for all runs. `starts`
    is "auto" (those of THOROUGH), an integer (how many scanned points to polish) or "paper" (every start of the
    publication's grid, of which `starts_at_optimum` counts those whose end was among the best 400).
    """
    n, d, e, y = (np.asarray(values, dtype=float) for values in (n_params, tokens, experts, loss))
    if len({values.shape for values in (n, d, e, y)}) > 1 or y.ndim != 1:
        what = f"sizes, tokens, experts and losses are arrays of {n.shape}, {d.shape}, {e.shape} and {y.shape}"
        raise InputError(what, where="runs", next_step="give one number a run of each")
    further = {name: np.asarray(values, dtype=float) for name, values in further_inputs(form, extra).items()}
    columns = {name: np.broadcast_to(values, y.shape) for name, values in further.items()}
    return fit_arrays(form, RunArrays(n, d, e, y, columns), starts=starts, progress=progress)


def fit_arrays(
    form: LawForm,
    runs: RunArrays,
    *,
    starts: str | int = "auto",
    search: Search = THOROUGH,
    progress: Progress | None = None,
) -> Fit:
    """`fit` of runs in the form's letters, their further inputs filled in."""
    began = time.perf_counter()
    notes = check_runs(form, runs)
    runs = runs.where(runs.order())
    problem = Problem.of(form, inputs_of(form, runs), np.log(runs.loss))
    report: Progress = progress or (lambda step, share: None)
    few = problem.thinned(SCAN_ROWS)
    if starts == "paper":
        candidates, reached, tried = multistart.polish_grid(few, report)
    else:
        if starts != "auto":
            search = replace(search, points=max(search.points, 4 * int(starts)), polished=int(starts))
        candidates, reached = _polish_scan(few, search, report)
        tried = len(candidates)
    if few is not problem:
        report("polish on all runs", 0.0)
        # The subset's optimum is a step or two away from that of all runs; many rows pay for few iterations only.
        best = candidates[[np.argmin(reached)]]
        candidates, reached = polish(problem, best, max_iterations=LARGE_ITERATIONS, tolerance=LARGE_TOLERANCE)
    found, seconds = describe(problem, candidates, reached, notes), time.perf_counter() - began
    return replace(found, starts=tried, seconds=seconds, fit_range=fit_range(runs))


def fit_range(runs: RunArrays) -> dict[str, Ends]:
    """The smallest and largest value of each input, but of those that hold an infinite one."""
    columns = {"n_params": runs.n_params, "tokens": runs.tokens, "experts": runs.experts, **runs.extra}
    return {name: (float(v.min()), float(v.max())) for name, v in columns.items() if np.isfinite(v).all()}


def _polish_scan(problem: Problem, search: Search, report: Progress) -> tuple[FloatArray, FloatArray]:
    """The polished points of a scan, theta (k, p), and their objectives (k,)."""
    report("scan", 0.0)
    scanned, values = scan(problem, search.points)
    report("polish", 0.5)
    chosen = scanned[np.argsort(values, kind="stable")[: search.polished]]
    candidates, reached = polish(problem, chosen, max_iterations=search.first)
    # Flat directions (E_max, F) take many steps; only searches that can still win are carried to the end.
    leading = np.argsort(reached, kind="stable")[: search.finished]
    candidates[leading], reached[leading] = polish(
        problem, candidates[leading], max_iterations=search.last, tolerance=search.tolerance, patience=search.patience
    )
    return candidates, reached


def residuals(found: Fit, runs: RunArrays) -> FloatArray:
    """ln(predicted / measured) of each run, (n,)."""
    x = inputs_of(found.form, runs)
    return found.form.log_loss(found.theta, x) - np.log(runs.loss)


def describe(problem: Problem, candidates: FloatArray, reached: FloatArray, notes: list[str]) -> Fit:
    """The Fit record of the best of the ends (k, p): errors, bounds that it touches, parameters that are not identified."""
    form, best = problem.form, int(np.argmin(reached))
    theta = candidates[best]
    residual = problem.residual(theta)
    touching = (theta <= problem.box[:, 0] + 1e-9) | (theta >= problem.box[:, 1] - 1e-9)
    error = _standard_errors(form, theta, problem.x, residual, touching)
    # A parameter counts as identified when a 90% interval fixes it within a factor of 10 each way (logarithms), or
    # tells an exponent from zero.
    limit = np.where([p.log for p in form.parameters], np.log(10.0), np.abs(theta)) / 1.645
    flags = (touching, touching | (error > limit))
    at_bound, not_identified = (tuple(n for n, hit in zip(form.names, each, strict=True) if hit) for each in flags)
    if at_bound:
        notes = [*notes, f"on a bound of the physical box: {', '.join(at_bound)}"]
    if not_identified:
        told = ", ".join(not_identified)
        notes = [*notes, f"{NOT_IDENTIFIED} by these runs: {told} (predictions near the runs remain valid)"]
    return Fit.of(
        form, theta, residual, objective=float(reached[best]), starts=len(candidates),
        starts_at_optimum=int((reached <= reached[best] * (1.0 + SAME_OPTIMUM)).sum()),
        at_bound=at_bound, not_identified=not_identified,
        standard_error=dict(zip(form.names, error.tolist(), strict=True)),
        warnings=tuple(notes),
    )  # fmt: skip


def robust_spread(residual: FloatArray) -> float:
    """1.4826 times the median absolute residual: the standard deviation of normal errors, whatever a few runs do."""
    return 1.4826 * float(np.median(np.abs(residual)))


def _standard_errors(form: LawForm, theta: FloatArray, x: Inputs, residual: FloatArray, fixed: BoolArray) -> FloatArray:
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
    noise = robust_spread(residual)
    variance = 0.5 * np.pi * noise**2 * residual.size / spread
    # An eigenvalue at rounding level is a direction without information.
    inverse = np.where(values > 1e-13, 1.0 / np.maximum(values, 1e-300), np.inf)
    with np.errstate(invalid="ignore"):
        share = np.nansum(np.where(vectors**2 > 1e-12, vectors**2 * inverse, 0.0), axis=1)
    # Runs without noise (variance 0) still say nothing along a direction without information.
    error[~fixed] = np.where(np.isinf(share), np.inf, np.sqrt(variance * np.where(np.isinf(share), 0.0, share)) / norm)
    return error


def far_off(residuals: FloatArray) -> tuple[BoolArray, FloatArray]:
    """Which residuals of ln L lie far outside the others, (n,), and how many robust standard deviations out all lie."""
    away = np.abs(residuals - np.median(residuals))
    usual = robust_spread(away)
    return (away > FAR * usual) & (away > FAR_AT_LEAST), away / max(usual, 1e-12)


def far_off_remarks(residuals: FloatArray, runs: RunTable) -> list[str]:
    """A remark on the runs that the fit misses by far, with the way to leave them out."""
    far, times = far_off(residuals)
    if not (count := int(far.sum())):
        return []
    ends = dict.fromkeys(f"{x:.0f}" if x < 1e6 else f"{x:.1g}" for x in (times[far].min(), times[far].max()))
    lie, them = ("run lies", "it") if count == 1 else ("runs lie", "them")
    rows = rows_text(np.sort(runs.row_numbers[far]))
    what = f"{count:,} {lie} {' to '.join(ends)} times the usual error from the fit ({rows})"
    return [f"{what}: did they diverge, or does the form not cover them? mark {them} true in a column diverged"]


def source_remarks(residuals: FloatArray, runs: RunTable) -> list[str]:
    """A remark on each text column that parts the runs into sources whose losses lie apart: other data, or units."""
    found: list[str] = []
    for name, column in runs.columns.items():
        if column.dtype.kind not in "OU":
            continue
        values, number, counts = np.unique(column.astype(np.str_), return_inverse=True, return_counts=True)
        if not 2 <= len(values) <= MOST_SOURCES or counts.min() < FEWEST_OF_SOURCE:
            continue
        parts = [residuals[number == i] for i in range(len(values))]
        middles = np.array([np.median(part) for part in parts])
        within = float(np.median(np.abs(residuals - middles[number])))
        low, high = int(np.argmax(middles)), int(np.argmin(middles))  # the law promises too much of the lowest losses
        if middles[low] - middles[high] <= max(UNLIKE, 4.0 * within):
            continue
        below = 100.0 * (1.0 - np.exp(middles[high] - middles[low]))
        less, more = (f"{quoted_name(name)} == '{values[i]}'" for i in (low, high))
        what = f"runs with {less} lie {below:.2g}% below those with {more} at equal size and tokens"
        found.append(f'{what}: different data or unit of loss? Fit one at a time with --where "{more}"')
    return found


def unused_columns(form: LawForm, runs: RunTable) -> list[str]:
    """Remarks on columns that tell runs apart and that the form has no input for."""
    found: list[str] = []
    for name in ("unique_tokens", "granularity"):
        column = runs.columns.get(name)
        if name in form.extra_inputs or column is None or column.dtype.kind != "f" or np.isnan(column).any():
            continue
        what = f"column {name!r} varies and is not used by {form.name}"
        matters = name == "granularity" and np.unique(column[runs.experts > 1.0]).size > 1
        if name == "unique_tokens":
            matters = count = int((column < runs.tokens * (1.0 - 1e-9)).sum())
            repeat = "runs that repeat" if count > 1 else "run that repeats"
            what = f"column {name!r} is not used by {form.name}: {count:,} {repeat} data count as fresh"
        if matters:
            takers = " or ".join(other.name for other in FORMS.values() if name in other.extra_inputs)
            found.append(f"{what}; fit --law {takers}")
    return found


def table_remarks(form: LawForm, residuals: FloatArray, runs: RunTable) -> Sequence[str]:
    """All remarks of a fit of the form on its table, with the residuals ln(predicted / measured) of the runs."""
    return (*unused_columns(form, runs), *source_remarks(residuals, runs), *far_off_remarks(residuals, runs))


def bootstrap(
    fit: Fit,
    x: Inputs,
    ln_loss: FloatArray,
    replicates: int,
    seed: int,
    *,
    progress: Progress | None = None,
    quick: bool = False,
) -> FloatArray:
    """Coefficients (replicates, p) of refits to resamples of the runs, each from the optimum and from a point near it.

    `quick` refits from the optimum only, and to fewer digits: intervals of predictions come out within some 5% of
    theirs in a quarter of the time. Where runs are not independent, as those that branch off one trunk, intervals are
    too narrow.
    """
    if not 2 <= replicates <= MOST_DRAWS:
        what, advice = f"{replicates} bootstrap replicates", "for example --bootstrap 200"
        raise InputError(what, nearest=f"2 to {MOST_DRAWS}", next_step=advice)
    count, p = ln_loss.size, fit.theta.size
    # numpy.random is imported here, and its compiled parts lose an exception that a signal raises.
    with uninterrupted():
        rng = np.random.default_rng(seed)
    problem = Problem.of(fit.form, x, ln_loss)
    effort: dict[str, Any] = {"max_iterations": 60}
    if quick:
        effort = {"max_iterations": 40, "tolerance": 1e-6, "patience": 4}
    found: list[FloatArray] = []
    for first in range(0, replicates, CHUNK):
        size = min(CHUNK, replicates - first)
        if progress:
            progress("bootstrap", first / replicates)
        drawn = rng.multinomial(count, np.full(count, 1.0 / count), size=size).astype(float)
        starts = [np.repeat(fit.theta[None], size, axis=0)]
        if not quick:
            starts.append(fit.theta * (1.0 + JITTER * rng.normal(size=(size, p))))
        weights = np.concatenate([drawn] * len(starts))
        theta, value = polish(problem, np.concatenate(starts), weights=weights, **effort)
        found.append(theta.reshape(-1, size, p)[value.reshape(-1, size).argmin(axis=0), np.arange(size)])
    # Resampled fits vary less than new studies would, by (n - p) / n in the variance: the usual small-sample correction.
    spare = max(count - p, 1)
    wider = fit.theta + (np.concatenate(found) - fit.theta) * np.sqrt(count / spare if spare > p else 1.0)
    return problem.clipped(wider)


def parameter_intervals(fit: Fit, draws: FloatArray) -> dict[str, tuple[float, float]]:
    """The quantiles of the draws that hold 90% of them, by public parameter name."""
    low, high = (ends.tolist() for ends in interval(fit.form.decode(draws)))
    return dict(zip(fit.form.names, zip(low, high, strict=True), strict=True))
