"""One form fitted to many sources at once: each source has coefficients of its own, normal around a mean (Laplace EM).

A source is a table of runs or a published law at points of its range. For each, the mode of the posterior under N(mu, Sigma) and
its inverse Hessian V follow from ln L, with the unit of its losses profiled out of every group of runs. Then

    Sigma = (nu S0 + sum_s w_s ((t_s - mu)(t_s - mu)' + V_s)) / (nu + sum_s w_s)

and mu is the mean of the modes, in two blocks: coordinates of dense models, and of the gain of experts, of which sources without
experts know nothing. Each lab has weight 1. Draws of a source that was not seen are normal with Sigma and the doubt of mu.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from moescale.scaling_laws.form import Inputs, complex_jacobian
from moescale.scaling_laws.pooled2026 import COUNT, RUNS_X, ln_multiplier, log_loss
from moescale.typing import FloatArray

DENSE, GAIN = [1, 2, 3, 4, 5, 6, 14, 18], [7, 8, 9, 10, 11, 12, 13]  # columns of theta that differ between sources
EFFECTS = sorted(DENSE + GAIN)
BEYOND, BEYOND_SD = [15, 16, 17], np.array([0.09, 0.01, 0.01])  # docs/evidence/pooled-law.md
# A first guess of the mean between sources: exponents of published laws, and ignorance.
# fmt: off
MEAN = np.array([
    0.0, 1.0, 0.0, np.log(0.35), np.log(0.35), np.log(0.5), 0.0,
    0.0, 0.3, 0.0, 0.0, -1.0, 0.2, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, np.log(RUNS_X),
])
SPREAD = np.array([
    1.0, 0.6, 0.6, 0.25, 0.25, 0.35, 0.8, 0.4, 0.8, 0.1, 0.8, 0.8, 0.1, 0.3, 0.3, 1.0, 1.0, 1.0, 1.0, 1.0,
])
# fmt: on
SIZES = [2, 3, 4]  # tau, alpha and beta, which say where the optimal size lies
# They from ln(alpha beta)/2, r = ln(beta/alpha) and q = ln of the optimal size at 1.2e20 FLOPs, at MEAN.
OF_OPTIMUM = np.array([[0.0, 1.0, 1.4], [1.0, -0.5, 0.0], [1.0, 0.5, 0.0]])
EMBEDDINGS, RUNS_END = 18, 19
FIRM = 3.0  # spreads of MEAN
MOST_RUNS = 60  # that a table counts for: runs of one table share what is wrong with it
LEAST_NOISE = 0.003  # of ln L, between seeds of one run
MULTIPLIER_NOISE = 0.06  # of ln of a size multiplier that a published law states
OUTLIER = 5.0  # robust standard deviations
ITERATIONS, STEPS, LONGEST_STEP = 15, 40, 1.5


@dataclass(frozen=True, slots=True)
class Guess:
    """The spread between sources before any table, as a multiple of SPREAD, and how many labs it is worth.

    `optimum`: standard deviations of r and q, in place of those of tau, alpha and beta apart (OF_OPTIMUM).
    """

    scale: float
    labs: float
    optimum: tuple[float, float] | None = None

    @property
    def covariance(self) -> FloatArray:
        """(p, p)."""
        found = np.diag((self.scale * SPREAD) ** 2)
        if self.optimum is not None:
            spread = np.array([self.scale * SPREAD[3], *self.optimum])
            found[np.ix_(SIZES, SIZES)] = OF_OPTIMUM * spread**2 @ OF_OPTIMUM.T
        return found


# By leaving labs out: the first errs least on tables of their own, the second on decisions (docs/evidence/pooled-law.md).
OF_FITS, OF_DECISIONS = Guess(1.0, 4.0), Guess(0.7, 4.0, (0.1, 0.35))


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
    most: int = MOST_RUNS  # values that it counts for

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

    @property
    def weight(self) -> float:
        """The square root of the precision of a value: many runs of one table count as `most`."""
        return float(np.sqrt(min(1.0, self.most / self.values.size))) / self.noise


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


def flat_prior(guess: Guess = OF_FITS) -> Prior:
    """What is known before any table."""
    return Prior(MEAN.copy(), guess.covariance[np.ix_(EFFECTS, EFFECTS)], np.zeros(COUNT))


def mode(source: Source, prior: Prior, start: FloatArray | None = None, steps: int = STEPS) -> Mode:
    """The most probable coefficients of a source, by Levenberg-Marquardt steps from the mean or from `start`."""
    precision = np.linalg.inv(prior.covariance)
    theta, damping = (prior.mean if start is None else start).copy(), 1e-2

    def value(at: FloatArray) -> float:
        error, away = source.weight * source.errors(at), at[EFFECTS] - prior.mean[EFFECTS]
        return float(error @ error + away @ precision @ away)

    best = value(theta)
    for _ in range(steps):
        slope, error = _slope(source, theta), source.weight * source.errors(theta)
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
    slope = _slope(source, theta)
    return Mode(theta, np.asarray(np.linalg.inv(slope.T @ slope + precision), np.float64), best)


def _slope(source: Source, theta: FloatArray) -> FloatArray:
    """Derivatives of the weighted errors in EFFECTS, (n, e)."""
    function = ln_multiplier if source.of_multiplier else log_loss
    slope = complex_jacobian(function, theta, source.x)[:, EFFECTS]
    return source.weight * (slope if source.of_multiplier else centred(slope, source.group))


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


@dataclass(frozen=True, slots=True)
class Pooled:
    """The prior that sources imply, and the mode of each under it, with the noise that was found."""

    prior: Prior
    sources: tuple[Source, ...]
    modes: tuple[Mode, ...]


def pool(sources: Sequence[Source], iterations: int = ITERATIONS, guess: Guess = OF_FITS) -> Pooled:
    """Fit the spread between sources and every source's own coefficients."""
    prior, known = flat_prior(guess), list(sources)
    modes: list[Mode] = []
    weights = {tuple(DENSE): _weights(known, gain=False), tuple(GAIN): _weights(known, gain=True)}
    for iteration in range(iterations):
        starts = (
            [_start(m.theta, s, prior) for m, s in zip(modes, known, strict=True)] if modes else [None] * len(known)
        )
        modes = [mode(s, prior, t, STEPS if iteration < 2 else 12) for s, t in zip(known, starts, strict=True)]
        if iteration == 1:
            known = [cleaned(s, m.theta) for s, m in zip(known, modes, strict=True)]
        known = [with_noise(s, m, prior) for s, m in zip(known, modes, strict=True)]
        prior = _updated(prior, modes, weights, guess)
    return Pooled(prior, tuple(known), tuple(modes))


def _weights(sources: Sequence[Source], *, gain: bool) -> FloatArray:
    """1 over the number of a lab's sources that know of the block, else 0, (sources,)."""
    knows = [s.has_experts if gain else not (s.of_multiplier or s.of_law) for s in sources]
    counts = {
        lab: sum(k for s, k in zip(sources, knows, strict=True) if s.lab == lab) for lab in {s.lab for s in sources}
    }
    return np.array([1.0 / counts[s.lab] if k else 0.0 for s, k in zip(sources, knows, strict=True)])


def _start(theta: FloatArray, source: Source, prior: Prior) -> FloatArray:
    """Where to start again: the last mode, and the mean of what the source does not know."""
    start = theta.copy()
    for block, knows in ((GAIN, source.has_experts), (DENSE, not source.of_multiplier)):
        if not knows:
            start[block] = prior.mean[block]
    return start


def _updated(prior: Prior, modes: Sequence[Mode], weights: dict[tuple[int, ...], FloatArray], guess: Guess) -> Prior:
    thetas, variances = np.array([m.theta for m in modes]), np.array([m.covariance for m in modes])
    guessed = guess.covariance
    mean, covariance, labs = prior.mean.copy(), np.zeros_like(prior.covariance), np.zeros(COUNT)
    for block, w in weights.items():
        columns = list(block)
        at = [EFFECTS.index(j) for j in columns]
        spread = np.diag(prior.covariance)[at]
        firm = 1.0 / (FIRM**2 * np.diag(guessed)[columns])
        mean[columns] = (w @ thetas[:, columns] / spread + MEAN[columns] * firm) / (w.sum() / spread + firm)
        away = thetas[:, columns] - mean[columns]
        scatter = np.einsum("s,si,sj->ij", w, away, away) + np.einsum("s,sij->ij", w, variances[:, at][:, :, at])
        covariance[np.ix_(at, at)] = (guess.labs * guessed[np.ix_(columns, columns)] + scatter) / (guess.labs + w.sum())
        known = 1.0 - np.array([np.diag(v)[at] for v in variances]) / np.diag(covariance)[at]
        labs[columns] = w @ np.maximum(known, 0.0)
    return Prior(mean, covariance, labs)


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
