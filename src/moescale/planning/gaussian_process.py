"""What a law's draws expect of runs that are not trained yet, and what a plan that has seen them would lose.

The draws of a law, or of the laws of an ensemble, are samples of the surface ln L over models and tokens. Taken as a Gaussian
process they say how a run's loss tells of the losses that a plan compares, and a sweep becomes arithmetic: after runs S the
posterior mean and covariance of those losses follow from the covariance of the draws, without a fit.

Two terms are added to that covariance: a constant, because a lab's tokenizer and data move every loss by a factor that no
law knows, and a smooth function, because no law is right everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from moescale.planning.allocation import at_size, inputs_at
from moescale.planning.search import Search
from moescale.typing import FloatArray

# Chosen on ten development laws (docs/evidence/decisions.md): the least regret of those that keep the plan's promise there.
DRIFT = 0.005  # of ln L an e-fold: how fast the smooth error of a law changes
REACH = 4.6  # e-folds (two decades) over which it does
UNIT = 1.0  # standard deviation of the ln of a lab's unknown factor: wide
RUN_NOISE = 0.003  # of ln L between seeds; the public runs of arXiv 2502.05172 show 2e-3 to 4e-3
SIZES = 24  # of each expert count, between which a plan chooses
TRUTHS = 2048  # surfaces that a sweep is tried on
ALIKE = 1e-3  # of a cost: counts that differ by less, as where the host is all that costs, are cheapest together
SEED = 0  # of all noise
DRAWN = 200  # of the surfaces, and of what is believed under each, that the certainty of a count is over


@dataclass(frozen=True, slots=True)
class Runs:
    """Runs in the size convention of the plan's family, (n,) each."""

    n_params: FloatArray
    tokens: FloatArray
    experts: FloatArray

    def __len__(self) -> int:
        return self.n_params.size

    def at(self, chosen: NDArray[np.intp]) -> Runs:
        """Some of them."""
        return Runs(self.n_params[chosen], self.tokens[chosen], self.experts[chosen])


def joined(several: Iterable[Runs]) -> Runs:
    """All runs, one after another."""
    columns = zip(*((r.n_params, r.tokens, r.experts) for r in several), strict=True)
    return Runs(*(np.concatenate(column) for column in columns))


@dataclass(frozen=True, slots=True)
class Decision:
    """The models between which a plan chooses, all trained with its budget, (a,) each; the first is the base."""

    models: Runs
    cost: FloatArray  # dollars a token over the base's; infinite where a model cannot be served
    curves: tuple[slice, ...]  # the models of each expert count, by size
    confidence: float


@dataclass(frozen=True, slots=True)
class CountDoubt:
    """How sure the cheapest expert count is, and the price of being wrong.

    The safest count is the one that costs least on average; the likeliest may cost far more where it is wrong.
    """

    certainty: float  # mean probability that the likeliest count is the cheapest at the base's loss, or as cheap
    experts: float  # of the safest count
    dearer: float  # share by which the safest count serves dearer than the cheapest of each draw, mean
    dearer_tenth: float  # the same, which one draw in ten exceeds


@dataclass(frozen=True, slots=True)
class GaussianProcess:
    """A Gaussian process over ln loss of runs (r,) and ln loss of a decision's models over the base's (a,), p = r + a."""

    mean: FloatArray  # (p,)
    covariance: FloatArray  # (p, p)
    samples: FloatArray  # (TRUTHS, p): surfaces, of which one may be true
    runs: int  # r
    noise: float  # standard deviation of ln L of a run

    @property
    def variance(self) -> FloatArray:
        """Of each model's ln loss over the base's, (a,)."""
        return np.maximum(np.diag(self.covariance)[self.runs :], 0.0)

    def gain(self, seen: NDArray[np.intp]) -> FloatArray:
        """What the losses of runs add to the mean, (p, s)."""
        noisy = self.covariance[np.ix_(seen, seen)] + self.noise**2 * np.eye(seen.size)
        return np.asarray(np.linalg.solve(noisy, self.covariance[seen]).T, dtype=np.float64)

    def given(self, seen: NDArray[np.intp], ln_loss: FloatArray) -> GaussianProcess:
        """The process after runs whose ln losses (s,) are known; samples are moved by what they miss (Matheron's rule)."""
        gain = self.gain(seen)
        noise = self.noise * np.random.default_rng(SEED).standard_normal((len(self.samples), seen.size))
        return replace(
            self,
            mean=self.mean + gain @ (ln_loss - self.mean[seen]),
            covariance=self.covariance - gain @ self.covariance[seen],
            samples=self.samples + (ln_loss - self.samples[:, seen] - noise) @ gain.T,
        )

    def after(self, run: int) -> GaussianProcess:
        """The process with the covariance after one further run, whatever its loss; mean and samples stay."""
        column = self.covariance[:, run]
        return replace(self, covariance=self.covariance - np.outer(column, column) / (column[run] + self.noise**2))

    def regret(self, decision: Decision, seen: NDArray[np.intp], table: FloatArray) -> tuple[float, float]:
        """What the plan that has seen runs loses on average where one of the samples is true, as a share of the base's cost.

        And its standard error. `table` has the `regrets` of the samples.
        """
        estimate, covariance = self._estimates(seen)
        doubt = np.sqrt(np.maximum(np.diag(covariance)[self.runs :], 0.0))
        lost = table[np.arange(len(table)), chosen(decision, estimate[:, self.runs :], doubt)]
        return float(lost.mean()), float(lost.std() / math.sqrt(lost.size))

    def count_doubt(self, decision: Decision, seen: NDArray[np.intp], before: CountDoubt | None = None) -> CountDoubt:
        """What is believed of the expert counts after runs, on average over what these may show.

        Where it is known `before` them, the mean price of being wrong is that, less what the runs take off: of the same draws, as
        a few dear ones make up most of it.
        """
        truth = self.samples[None, :, self.runs :]  # (t, s, a)
        if seen.size:
            estimate, covariance = self._estimates(seen)
            drawn = _drawn(covariance[self.runs :, self.runs :], DRAWN, np.random.default_rng(SEED))
            truth = estimate[:DRAWN, None, self.runs :] + drawn
        least = [np.ones(truth.shape[:2]), *(least_cost(decision.cost[c], truth[..., c]) for c in decision.curves)]
        met = np.minimum(least, 1.0)  # the base meets itself, and stands in where a count does not
        dearer = met / met.min(axis=0) - 1.0  # (counts, t, s)
        shares, means = ((np.asarray(least) < np.inf) & (dearer <= ALIKE)).mean(axis=2), dearer.mean(axis=2)
        safest = means.argmin(axis=0)
        experts = decision.models.experts[[0, *(c.start for c in decision.curves)]]
        lowest = means.min(axis=0).mean()
        if before is not None:
            lowest += before.dearer - means[np.flatnonzero(experts == before.experts)[-1]].mean()
        return CountDoubt(
            certainty=float(shares.max(axis=0).mean()),
            experts=float(experts[np.bincount(safest).argmax()]),
            dearer=max(float(lowest), 0.0),
            dearer_tenth=float(np.quantile(dearer[safest, np.arange(len(safest))], 0.9)),
        )

    def _estimates(self, seen: NDArray[np.intp]) -> tuple[FloatArray, FloatArray]:
        """What is believed after runs where each of the samples is true: means (t, p) and their covariance (p, p)."""
        if not seen.size:
            return np.broadcast_to(self.mean, self.samples.shape), self.covariance
        # The same noise of a run in every sweep, so that sweeps differ by their runs alone.
        noise = self.noise * np.random.default_rng(SEED).standard_normal((len(self.samples), self.runs))[:, seen]
        gain = self.gain(seen)
        estimate = self.mean + (self.samples[:, seen] + noise - self.mean[seen]) @ gain.T
        return estimate, self.covariance - gain @ self.covariance[seen]


def decision_of(search: Search) -> Decision:
    """The models of every expert count that the law may recommend, around the sizes that its draws ask for, and the base."""
    draws, base, allowed = search.draws, search.base_model, np.flatnonzero(search.law.allows(search.best.experts))
    own = float(base.n_params[0])
    sizes, experts, curves, at = [base.n_params], [base.experts], list[slice](), 1
    for j in allowed:
        wanted = draws.smallest.n_params[:, j]
        wanted = wanted[np.isfinite(wanted)] if np.isfinite(wanted).any() else np.array([0.3 * own, 0.5 * own])
        sizes.append(np.geomspace(0.5 * wanted.min(), 2.0 * wanted.max(), SIZES))
        experts.append(np.full(SIZES, search.best.experts[j]))
        curves.append(slice(at, at + SIZES))
        at += SIZES
    n, e = np.concatenate(sizes), np.concatenate(experts)
    tokens = at_size(search.law, search.question.budget, n, e).tokens
    tokens[0] = base.tokens[0]
    unit = search.base.usd_per_mtok or math.nan
    usd = np.concatenate(([unit], search.costs.usd_per_mtok(n[1:], e[1:])))
    confidence = search.confidence or 0.5
    return Decision(Runs(n, tokens, e), np.where(np.isfinite(usd), usd / unit, np.inf), tuple(curves), confidence)


def process_of(search: Search, decision: Decision, runs: Runs, *, noise: float = RUN_NOISE) -> GaussianProcess:
    """What the draws of a search's law expect of runs, and of a decision's models."""
    law, theta, weights = search.law, search.draws.theta, search.draws.weights
    every, r = joined((runs, decision.models)), len(runs)
    x = inputs_at(law, search.question.budget.extra, every.n_params, np.log(every.tokens), every.experts)
    drawn = np.array(law.form.log_loss(theta, x))
    drawn[:, r:] -= drawn[:, [r]]
    mean = weights @ drawn
    apart = np.sqrt(weights)[:, None] * (drawn - mean)
    # The smooth error of a law, at runs and at models less at the base.
    places = np.log([every.n_params, every.tokens, every.experts])
    squares = ((places[:, :, None] - places[:, None, :]) ** 2).sum(axis=0)
    smooth = (DRIFT * REACH) ** 2 * np.exp(-0.5 * squares / REACH**2)
    smooth[r:] -= smooth[[r]]
    smooth[:, r:] -= smooth[:, [r]]
    covariance = apart.T @ apart + smooth
    covariance[:r, :r] += UNIT**2
    rng = np.random.default_rng(SEED)
    samples = drawn[rng.choice(len(drawn), size=TRUTHS, p=weights)] + _drawn(smooth, TRUTHS, rng)
    samples[:, :r] += UNIT * rng.standard_normal((TRUTHS, 1))
    return GaussianProcess(mean, covariance, samples, r, noise)


def _drawn(covariance: FloatArray, count: int, rng: np.random.Generator) -> FloatArray:
    """Normal variates of mean 0, (count, p)."""
    values, vectors = np.linalg.eigh(covariance)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    return np.asarray(rng.standard_normal((count, values.size)) @ root.T, dtype=np.float64)


def chosen(decision: Decision, estimate: FloatArray, doubt: FloatArray) -> NDArray[np.intp]:
    """The cheapest model that is as good as the base with the plan's confidence, by estimates (t, a) and their errors (a,)."""
    surely = estimate + NormalDist().inv_cdf(min(decision.confidence, 1.0 - 1e-9)) * doubt <= 1e-12
    return np.where(surely, decision.cost, np.inf).argmin(axis=1)  # the base, which is number 0, meets itself


def least_cost(cost: FloatArray, truth: FloatArray) -> FloatArray:
    """The least cost of models by size (s,) that are as good as the base by ln losses (.., s), (..,); infinite without one.

    Between the first size that is good enough and the one below it: steps of size are as large as what counts differ by.
    """
    good = (truth <= 0.0) & np.isfinite(cost)
    first = good.argmax(axis=-1)
    below = np.maximum(first - 1, 0)
    low, high = (np.take_along_axis(truth, at[..., None], axis=-1)[..., 0] for at in (below, first))
    between = (low > 0.0) & (high <= 0.0) & np.isfinite(cost[below])
    ln = np.log(np.where(np.isfinite(cost), cost, 1.0))
    share = np.where(between, low, 0.0) / np.where(between, low - high, 1.0)
    crossing = np.where(between, np.exp(ln[below] + share * (ln[first] - ln[below])), np.inf)
    return np.minimum(crossing, np.where(good, cost, np.inf).min(axis=-1))


def regrets(decision: Decision, truth: FloatArray) -> FloatArray:
    """Regret (t, a) of each model under true ln losses over the base's (t, a), as `draws` defines it."""
    least = np.full((len(truth), truth.shape[1] + 1), np.inf)
    for t, losses in enumerate(truth):
        asked = np.append(losses, 0.0)
        for curve in decision.curves:
            served = np.isfinite(decision.cost[curve])
            # A larger model is never taken for a worse one: on a budget it may be, and is then of no use.
            falling = np.minimum.accumulate(losses[curve][served])
            if falling.size:
                cost = np.interp(asked, falling[::-1], np.log(decision.cost[curve][served][::-1]), left=np.inf)
                least[t] = np.minimum(least[t], np.exp(cost))
        least[t, :-1] = np.minimum(least[t, :-1], decision.cost)
    goal = np.minimum(least[:, -1:], 1.0)
    worth = least[:, :-1]
    with np.errstate(invalid="ignore"):
        return np.where(np.isfinite(worth), decision.cost - worth + np.abs(worth - goal), np.inf)
