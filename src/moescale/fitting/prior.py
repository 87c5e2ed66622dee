"""Fit a table of runs under what others' runs say of their coefficients: the mode of the posterior, and draws from it.

Dense runs, or a few runs with experts, do not determine how experts gain, how data saturate, or even two exponents. The spread
between labs does: coefficients are normal around their mean (moescale.fitting.pooled), and the runs move what they speak of.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import cast

import numpy as np

from moescale.errors import InputError
from moescale.fitting.fit import Fit, check_runs, fit_range
from moescale.fitting.objective import Problem
from moescale.fitting.pooled import (
    BEYOND,
    EFFECTS,
    GAIN,
    Mode,
    Prior,
    Source,
    fit_source,
    mode,
    posterior,
)
from moescale.scaling_laws.form import Inputs
from moescale.scaling_laws.law import Law
from moescale.scaling_laws.pooled2026 import COUNT, FORM, log_loss
from moescale.typing import FloatArray

STARTS = 3  # the mean of the prior, and draws from it: 20 of 20 reach one optimum (docs/evidence/pooled-law.md)
STEPS = 100  # of each: from afar, more than from the last mode
SAME_OPTIMUM = 1e-4  # relative difference of objectives at which steps end; far below what draws differ by
DRAWS = 400
DRIFT = 0.0075  # standard deviation of ln L for each e-fold beyond the runs (docs/evidence/pooled-law.md)
TOLD = 0.5  # of a coefficient's variance between labs: runs that take away less leave it to the prior
DECIMALS = 10  # of ln L, as in canonical.without_unit


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


def fit_under(
    prior: Prior,
    x: Inputs,
    ln_loss: FloatArray,
    *,
    starts: int = STARTS,
    draws: int = DRAWS,
    seed: int = 0,
) -> Fitted:
    """The most probable coefficients of runs (n,), and draws of what else they may be.

    `starts` searches begin at the mean and at draws of the prior. Neither the unit of the loss nor, in the order of `canonical`, that of the runs changes a digit. Raises InputError for
    fewer than three runs and for losses in no unit.
    """
    began = time.perf_counter()
    check_runs(FORM, np.exp(x.ln_n), np.exp(x.ln_d), x.experts, {})
    Problem.of(FORM, x, ln_loss)
    unit = float(ln_loss.mean())
    values = np.round(ln_loss - unit, DECIMALS)
    runs = Source(name="", lab="", x=x, values=values, group=np.zeros(values.size, np.intp))
    source, found = fit_source(runs, prior)
    begin = prior.draws(starts - 1, seed)
    begin[:, BEYOND] = prior.mean[BEYOND]
    others = [mode(source, prior, start, STEPS) for start in begin]
    reached = np.array([found.objective, *(other.objective for other in others)])
    found = [found, *others][int(reached.argmin())]
    theta = posterior(source, found, draws, seed)
    at_optimum = int((reached <= reached.min() * (1.0 + SAME_OPTIMUM)).sum())
    error = log_loss(theta[0], x) - values
    theta[:, 0] += unit
    return Fitted(
        fit=Fit.of(
            FORM,
            theta[0],
            error,
            objective=float(reached.min()),
            starts=starts,
            starts_at_optimum=at_optimum,
            at_bound=(),
            not_identified=(),
            standard_error={name: float(v) for name, v in zip(FORM.names, theta[1:].std(axis=0), strict=True)},
            seconds=time.perf_counter() - began,
            fit_range=fit_range({"n_params": np.exp(x.ln_n), "tokens": np.exp(x.ln_d), "experts": x.experts}),
            warnings=_remarks(source, found, prior),
        ),
        draws=theta[1:],
        covariance=found.covariance,
        run_noise=source.noise,
    )


def _remarks(source: Source, found: Mode, prior: Prior) -> tuple[str, ...]:
    kept = np.diag(found.covariance) > (1.0 - TOLD) * np.diag(prior.covariance)
    alone = np.ptp(source.x.experts) == 0.0
    left = [j for j, of_prior in zip(EFFECTS, kept, strict=True) if of_prior and not (alone and j in GAIN)]
    said = [f"these runs hardly tell {', '.join(FORM.names[j] for j in left)}: other labs' runs do"] if left else []
    return (*said, *(["all runs have one expansion: what experts gain is known from other labs only"] if alone else []))
