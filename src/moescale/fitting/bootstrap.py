"""How sure a fit is: the pairs bootstrap, whose draws carry over to every later answer."""

from __future__ import annotations

from typing import Any

import numpy as np

from moescale.errors import InputError
from moescale.fitting.fit import Fit
from moescale.fitting.newton import polish
from moescale.fitting.objective import Problem, Progress
from moescale.io.signals import uninterrupted
from moescale.scaling_laws.form import Inputs
from moescale.scaling_laws.law import MOST_DRAWS, interval
from moescale.typing import FloatArray

CHUNK = 64  # replicates that are refitted at a time: a balance of memory and vectorisation
USUAL: dict[str, Any] = {"max_iterations": 60}
QUICK: dict[str, Any] = {"max_iterations": 40, "tolerance": 1e-6, "patience": 4}
JITTER = 0.05  # relative spread of a second start, so that a replicate may leave the basin of the first fit


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
    """Refit `replicates` resamples of the runs (with replacement), each from the optimum and from a point near it.

    `quick` refits from the optimum only, and to fewer digits: intervals of predictions come out within some 5% of theirs in
    a quarter of the time.

    Returns their coefficients in search coordinates, (replicates, p). Same seed, same digits. Runs are taken as independent;
    where they are not, as those that branch off one trunk, the intervals come out too narrow.
    """
    if not 2 <= replicates <= MOST_DRAWS:
        what, advice = f"{replicates} bootstrap replicates", "for example --bootstrap 200"
        raise InputError(what, nearest=f"2 to {MOST_DRAWS}", next_step=advice)
    count = ln_loss.size
    with (
        uninterrupted()
    ):  # numpy.random is imported here, and its compiled parts lose an exception that a signal raises
        rng = np.random.default_rng(seed)
    problem = Problem.of(fit.form, x, ln_loss)
    found = np.empty((replicates, fit.theta.size))
    for first in range(0, replicates, CHUNK):
        size = min(CHUNK, replicates - first)
        if progress:
            progress("bootstrap", first / replicates)
        drawn = rng.multinomial(count, np.full(count, 1.0 / count), size=size).astype(float)
        starts = [np.repeat(fit.theta[None], size, axis=0)]
        if not quick:
            starts.append(fit.theta * (1.0 + JITTER * rng.normal(size=(size, fit.theta.size))))
        weights = np.concatenate([drawn] * len(starts))
        theta, value = polish(problem, np.concatenate(starts), weights=weights, **(QUICK if quick else USUAL))
        better = value.reshape(-1, size).argmin(axis=0)
        found[first : first + size] = theta.reshape(-1, size, fit.theta.size)[better, np.arange(size)]
    # Resampled fits vary less than new studies would, by (n - p) / n in the variance: the usual small-sample correction.
    spare = max(count - fit.theta.size, 1)
    wider = fit.theta + (found - fit.theta) * np.sqrt(count / spare if spare > fit.theta.size else 1.0)
    return problem.clipped(wider)


def parameter_intervals(fit: Fit, draws: FloatArray) -> dict[str, tuple[float, float]]:
    """The quantiles of the draws that hold 90% of them, by public parameter name."""
    low, high = interval(fit.form.decode(draws))
    return {name: (float(a), float(b)) for name, a, b in zip(fit.form.names, low, high, strict=True)}
