"""Runs under the spread between sources: the mode of the posterior, its noise, draws of the coefficients, and the fit of a table.

A source is a table of runs or a published law at points of its range. Its coefficients are normal around a mean, with the unit
of its losses profiled out of every group of runs. scripts/pooling.py finds mean and spread from many sources.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from moescale.errors import InputError
from moescale.fitting.canonical import DECIMALS, RunArrays, inputs_of, without_unit
from moescale.fitting.fit import Fit, check_runs, fit_range
from moescale.fitting.search import Problem
from moescale.scaling_laws.form import Inputs, complex_jacobian
from moescale.scaling_laws.law import Law
from moescale.scaling_laws.pooled2026 import COUNT, FORM, ln_multiplier, log_loss
from moescale.typing import BoolArray, FloatArray

DENSE, GAIN = [1, 2, 3, 4, 5, 6, 14, 18], [7, 8, 9, 10, 11, 12, 13]  # columns of theta that differ between sources
EFFECTS = sorted(DENSE + GAIN)
BEYOND, BEYOND_SD = [15, 16, 17], np.array([0.09, 0.01, 0.01])  # docs/evidence/pooled-law.md
EMBEDDINGS, RUNS_END = 18, 19
MOST_RUNS = 60  # that a table counts for: runs of one table share what is wrong with it
LEAST_NOISE = 0.003  # of ln L, between seeds of one run
OUTLIER = 5.0  # robust standard deviations
STEPS, LONGEST_STEP = 40, 1.5
STARTS = 3  # the mean of the prior, and draws from it: 20 of 20 reach one optimum (docs/evidence/pooled-law.md)
MORE_STEPS = 100  # of each: from afar, more than from the last mode
SAME_OPTIMUM = 1e-4  # relative difference of objectives at which steps end; far below what draws differ by
DRAWS = 400
DRIFT = 0.0075  # standard deviation of ln L for each e-fold beyond the runs (docs/evidence/pooled-law.md)
TOLD = 0.5  # of a coefficient's variance between labs: runs that take away less leave it to the prior


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Runs of one table, or points of one published law: losses, or size multipliers where `of_multiplier`."""

    name: str
    lab: str
    x: Inputs
    values: FloatArray  # (n,): ln L, or ln m
    group: np.typing.NDArray[np.intp]  # (n,): runs whose losses have one unit
    of_multiplier: bool = False
    of_law: bool = False  # points of a published law, whose formula fixes what its runs did not test
    noise: float = 0.01  # of a value

    @property
    def has_experts(self) -> bool:
        """Whether any run has experts, without which the gain is not seen."""
        return bool((self.x.experts > 1.0).any())

    def rows(self, keep: np.typing.NDArray[np.bool_]) -> Source:
        """The runs that a mask keeps."""
        at = np.flatnonzero(keep)
        return replace(self, x=self.x.rows(at), values=self.values[at], group=self.group[at])

    def errors(self, theta: FloatArray) -> FloatArray:
        """Prediction minus value, (n,), each group's mean taken out of losses."""
        if self.of_multiplier:
            return ln_multiplier(theta, self.x) - self.values
        return centred(log_loss(theta, self.x) - self.values, self.group)

    def weighted(self, theta: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Errors (n,) and their slopes in EFFECTS (n, e), times the weight."""
        slope = complex_jacobian(ln_multiplier if self.of_multiplier else log_loss, theta, self.x)[:, EFFECTS]
        slope = slope if self.of_multiplier else centred(slope, self.group)
        return self.weight * self.errors(theta), self.weight * slope

    @property
    def weight(self) -> float:
        """The square root of the precision of a value: many runs of one table count as MOST_RUNS."""
        return float(np.sqrt(min(1.0, MOST_RUNS / self.values.size))) / self.noise


def centred(values: FloatArray, group: np.typing.NDArray[np.intp]) -> FloatArray:
    """Values (n,) or (n, p) less the mean of their group."""
    sums = np.zeros((int(group.max()) + 1, *values.shape[1:]), dtype=values.dtype)
    np.add.at(sums, group, values)
    counts = np.bincount(group).reshape(-1, *(1 for _ in values.shape[1:]))
    return values - (sums / np.maximum(counts, 1))[group]


@dataclass(frozen=True, slots=True)
class Prior:
    """Mean (p,) and covariance (e, e) of the coordinates EFFECTS between sources, and how many labs inform each, (p,)."""

    mean: FloatArray
    covariance: FloatArray
    labs: FloatArray

    def draws(self, count: int, seed: int) -> FloatArray:
        """`count` sources that were not seen, (count, p): the spread between sources, the doubt of the mean, and beyond the runs."""
        rng = np.random.default_rng(seed)
        theta = np.tile(self.mean, (count, 1))
        theta[:, EFFECTS] += rng.standard_normal((count, len(EFFECTS))) @ np.linalg.cholesky(self.covariance).T
        root = np.linalg.cholesky(self.covariance) / np.sqrt(np.maximum(self.labs[EFFECTS], 1.0))[:, None]
        theta[:, EFFECTS] += rng.standard_normal((count, len(EFFECTS))) @ root.T
        # No plan asks for models so small that embeddings decide; its spread would ask for none at all.
        theta[:, EMBEDDINGS] = self.mean[EMBEDDINGS]
        theta[:, BEYOND] = BEYOND_SD * rng.standard_normal((count, len(BEYOND)))
        return theta


@dataclass(frozen=True, slots=True)
class Mode:
    """The mode of a source's posterior (p,), its covariance (e, e) in EFFECTS, and the objective there."""

    theta: FloatArray
    covariance: FloatArray
    objective: float


def mode(source: Source, prior: Prior, start: FloatArray | None = None, steps: int = STEPS) -> Mode:
    """The most probable coefficients of a source, by Levenberg-Marquardt steps from the mean or from `start`."""
    precision = np.linalg.inv(prior.covariance)
    theta, damping = (prior.mean if start is None else start).copy(), 1e-2

    def value(at: FloatArray) -> float:
        error, away = source.weight * source.errors(at), at[EFFECTS] - prior.mean[EFFECTS]
        return float(error @ error + away @ precision @ away)

    best = value(theta)
    for _ in range(steps):
        error, slope = source.weighted(theta)
        hessian = slope.T @ slope + precision
        pull = slope.T @ error + precision @ (theta[EFFECTS] - prior.mean[EFFECTS])
        for _ in range(8):
            step = np.linalg.solve(hessian + damping * np.diag(np.diag(hessian)), -pull)
            trial = theta.copy()
            trial[EFFECTS] += np.clip(step, -LONGEST_STEP, LONGEST_STEP)
            reached = value(trial)
            if np.isfinite(reached) and reached < best:
                break
            damping *= 4.0
        else:
            break
        done = best - reached < 1e-7 * (1.0 + best)
        theta, best, damping = trial, reached, max(damping / 6.0, 1e-8)
        if done:
            break
    slope = source.weighted(theta)[1]
    return Mode(theta, np.asarray(np.linalg.inv(slope.T @ slope + precision), np.float64), best)


def cleaned(source: Source, theta: FloatArray) -> Source:
    """The source without runs that its own fit misses by OUTLIER robust standard deviations."""
    if source.of_multiplier:
        return source
    error = source.errors(theta)
    spread = 1.4826 * float(np.median(np.abs(error - np.median(error))))
    return source.rows(np.abs(error - np.median(error)) < OUTLIER * max(spread, 0.002))


def with_noise(source: Source, found: Mode, prior: Prior) -> Source:
    """The source with the noise that its own residuals show, for the parameters that they determine."""
    if source.of_multiplier:
        return source
    n, error = source.values.size, source.errors(found.theta)
    used = len(EFFECTS) - float(np.trace(np.linalg.solve(prior.covariance, found.covariance)))
    spread = float(np.sqrt((error**2).mean() * n / max(n - used - source.group.max() - 1.0, 0.4 * n)))
    return replace(source, noise=max(LEAST_NOISE, spread))


def fit_source(source: Source, prior: Prior, rounds: int = 6) -> tuple[Source, Mode]:
    """A table's own coefficients under a prior: the mode, and the table without outliers and with its noise."""
    found = mode(source, prior)
    for turn in range(1, rounds):
        source = with_noise(cleaned(source, found.theta) if turn == 1 else source, found, prior)
        found = mode(source, prior, found.theta)
    return source, found


def posterior(source: Source, found: Mode, count: int, seed: int) -> FloatArray:
    """Draws of a table's coefficients, (count + 1, p), the mode first, each in the unit of the losses of its group 0."""
    rng = np.random.default_rng(seed)
    theta = np.tile(found.theta, (count + 1, 1))
    theta[1:, EFFECTS] += rng.standard_normal((count, len(EFFECTS))) @ np.linalg.cholesky(found.covariance).T
    theta[1:, BEYOND] = BEYOND_SD * rng.standard_normal((count, len(BEYOND)))
    if source.has_experts:  # else the gain is the prior's, whose runs end where they end
        theta[:, RUNS_END] = np.log(source.x.experts.max())
    unit = source.group == 0
    theta[:, 0] += (source.values - log_loss(theta, source.x))[:, unit].mean(axis=1)
    return theta


@dataclass(frozen=True, slots=True)
class Fitted:
    """The mode as a fit, draws of the posterior (k, p), its covariance (e, e) in EFFECTS, and the noise of a run."""

    fit: Fit
    draws: FloatArray
    covariance: FloatArray
    run_noise: float


def prior_of(law: Law) -> Prior:
    """The prior of fits that a law holds, the doubt of its mean included; InputError for a law without one."""
    held = (law.members[0].law if law.members else law).evidence
    names = ("prior_mean", "prior_covariance")
    mean, covariance = (np.array(cast(list[float], held.get(name, [])), dtype=float) for name in names)
    if mean.shape != (COUNT,) or covariance.shape != (len(EFFECTS), len(EFFECTS)):
        advice = "give pooled2026, or a law that `fit` made with it"
        raise InputError(f"{law.name} says nothing of how coefficients differ between labs", next_step=advice)
    labs = np.array(cast(list[float], held.get("labs", [np.inf] * COUNT)), dtype=float)
    doubt = np.diag(covariance) / np.maximum(labs[EFFECTS], 1.0)
    return Prior(mean, covariance + np.diag(doubt), labs)


def fit_under(prior: Prior, arrays: RunArrays, *, starts: int = STARTS, draws: int = DRAWS, seed: int = 0) -> Fitted:
    """The most probable coefficients of runs in the letters of pooled2026, and draws around them.

    `starts` searches begin at the mean and at draws of the prior. Raises InputError for fewer than three runs.
    """
    began = time.perf_counter()
    x = inputs_of(FORM, arrays)
    check_runs(FORM, arrays)
    Problem.of(FORM, x, np.log(arrays.loss))
    values, unit = without_unit(arrays.loss)
    runs = Source(name="", lab="", x=x, values=values, group=np.zeros(values.size, np.intp))
    source, found = fit_source(runs, prior)
    begin = prior.draws(starts - 1, seed)
    begin[:, BEYOND] = prior.mean[BEYOND]
    others = [mode(source, prior, start, MORE_STEPS) for start in begin]
    reached = np.array([found.objective, *(other.objective for other in others)])
    found = [found, *others][int(reached.argmin())]
    theta = posterior(source, found, draws, seed)
    found_fit = Fit.of(
        FORM, theta[0], log_loss(theta[0], x) - values, objective=float(reached.min()), starts=starts,
        starts_at_optimum=int((reached <= reached.min() * (1.0 + SAME_OPTIMUM)).sum()),
        standard_error=dict(zip(FORM.names, theta[1:].std(axis=0).tolist(), strict=True)),
        fit_range=fit_range(replace(arrays, extra={})), warnings=_remarks(source, found, prior),
    )  # fmt: skip
    theta[:, 0] += unit
    fit = replace(found_fit, theta=theta[0], seconds=time.perf_counter() - began)
    return Fitted(fit=fit, draws=theta[1:], covariance=found.covariance, run_noise=source.noise)


def held_out_under(prior: Prior, arrays: RunArrays, masks: Sequence[BoolArray]) -> float | None:
    """The geometric mean, over the runs of each mask (n,), of the RMSLE that a fit without them has on them; None without masks."""
    scores: list[float] = []
    for mask in masks:
        left, out = arrays.where(~mask), arrays.where(mask)
        found, (_, unit) = fit_under(prior, left, starts=1, draws=1).fit, without_unit(left.loss)
        measured = np.round(np.log(out.loss) - unit, DECIMALS)  # as the fit has them, in any unit of the loss
        missed = log_loss(found.theta, inputs_of(FORM, out)) - unit - measured
        scores.append(float(np.sqrt(np.mean(missed**2))))
    return float(f"{np.exp(np.mean(np.log(scores))):.6g}") if scores else None


def _remarks(source: Source, found: Mode, prior: Prior) -> tuple[str, ...]:
    kept = np.diag(found.covariance) > (1.0 - TOLD) * np.diag(prior.covariance)
    alone, remarks = np.ptp(source.x.experts) == 0.0, list[str]()
    left = [FORM.names[j] for j in np.array(EFFECTS)[kept] if not (alone and j in GAIN)]
    if left:
        remarks.append(f"these runs hardly tell {', '.join(left)}: other labs' runs do")
    if alone:
        remarks.append("all runs have one expansion: what experts gain is known from other labs only")
    return tuple(remarks)
