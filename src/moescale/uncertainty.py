"""How sure a fit is: the pairs bootstrap, whose draws carry over to every later answer."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from moescale.architecture import FloatArray
from moescale.errors import InputError
from moescale.fitting import Fit, polish
from moescale.laws.form import Inputs, Observed

CHUNK = 64  # replicates that are refitted at a time: a balance of memory and vectorisation
JITTER = 0.05  # relative spread of a second start, so that a replicate may leave the basin of the first fit


def bootstrap(
    fit: Fit,
    x: Inputs,
    ln_loss: FloatArray,
    replicates: int,
    seed: int,
    *,
    progress: Callable[[str, float], None] | None = None,
) -> FloatArray:
    """Refit `replicates` resamples of the runs (with replacement), each from the optimum and from a point near it.

    Returns their coefficients in search coordinates, (replicates, p). Same seed, same digits. Pairs are resampled, so
    runs are taken as independent; runs that branch off one trunk are not, and make these intervals too narrow.
    """
    if not 2 <= replicates <= 100_000:
        raise InputError(
            f"{replicates} bootstrap replicates", nearest="2 to 100000", next_step="for example --bootstrap 200"
        )
    rng = np.random.default_rng(seed)
    n = ln_loss.size
    box = fit.form.bounds(Observed(experts_max=float(x.experts.max()), loss_min=float(np.exp(ln_loss.min()))))
    found = np.empty((replicates, fit.theta.size))
    for first in range(0, replicates, CHUNK):
        count = min(CHUNK, replicates - first)
        if progress:
            progress("bootstrap", first / replicates)
        weights = rng.multinomial(n, np.full(n, 1.0 / n), size=count).astype(float)
        near = fit.theta * (1.0 + JITTER * rng.normal(size=(count, fit.theta.size)))
        starts = np.concatenate((np.repeat(fit.theta[None], count, axis=0), near))
        theta, value = polish(
            fit.form, starts, x, ln_loss, box, weights=np.concatenate((weights, weights)), max_iterations=60
        )
        second = value[count:] < value[:count]
        found[first : first + count] = np.where(second[:, None], theta[count:], theta[:count])
    return found


def parameter_intervals(fit: Fit, draws: FloatArray, level: float = 0.9) -> dict[str, tuple[float, float]]:
    """The quantiles of the draws that hold `level` of them, by public parameter name."""
    tail = 50.0 * (1.0 - level)
    low, high = np.percentile(fit.form.decode(draws), [tail, 100.0 - tail], axis=0)
    return {name: (float(a), float(b)) for name, a, b in zip(fit.form.names, low, high, strict=True)}
