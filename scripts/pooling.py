"""One form fitted to many sources at once: each source has coefficients of its own, normal around a mean (Laplace EM).

For each source (moescale.fitting.prior), the mode of the posterior under N(mu, Sigma) and its inverse Hessian V follow from ln L. Then

    Sigma = (nu S0 + sum_s w_s ((t_s - mu)(t_s - mu)' + V_s)) / (nu + sum_s w_s)

and mu is the mean of the modes, in two blocks: coordinates of dense models, and of the gain of experts, of which sources without
experts know nothing. Each lab has weight 1. Draws of a source that was not seen are normal with Sigma and the doubt of mu.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from moescale.fitting.prior import DENSE, EFFECTS, GAIN, STEPS, Mode, Prior, Source, cleaned, mode, with_noise
from moescale.scaling_laws.pooled2026 import COUNT, RUNS_X
from moescale.typing import FloatArray

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
FIRM = 3.0  # spreads of MEAN
MULTIPLIER_NOISE = 0.06  # of ln of a size multiplier that a published law states
ITERATIONS = 15


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


def flat_prior(guess: Guess = OF_FITS) -> Prior:
    """What is known before any table."""
    return Prior(MEAN.copy(), guess.covariance[np.ix_(EFFECTS, EFFECTS)], np.zeros(COUNT))


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
