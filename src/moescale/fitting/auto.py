"""Which forms to trust on a table of runs, and how far: inner hold-outs in the direction of the extrapolation.

The rule with its reasons is in docs/evidence/own-law.md, "How auto chooses"; it was stated before it was scored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moescale.fitting.fit import Fit, fit_range, robust_spread
from moescale.fitting.holdout import RunArrays, inputs_of, residuals
from moescale.fitting.newton import polish
from moescale.fitting.objective import Problem, Progress
from moescale.fitting.scan import scan
from moescale.scaling_laws.form import LawForm
from moescale.scaling_laws.law import efolds_beyond
from moescale.typing import FloatArray

BoolArray = NDArray[np.bool_]

NAME = "auto"
# Runs of several E, where E of three routers was extrapolated best; abnar2025 counts all experts and needs the sparsity.
WITH_EXPERTS, BY_SPARSITY = ("moescale2026-late", "yun2024-centred", "ludziejewski2025"), "abnar2025"

FEWEST_RUNS = (
    22  # twice the parameters of its forms; of fewer, the pooled prior makes more (docs/evidence/pooled-law.md)
)
QUANTILE = 0.75  # what lies strictly above it is held out, as in the splits that laws are judged by
FEWEST_HELD_OUT = 3
VARIES = 1.1  # the largest value over the smallest of a variable that can be extrapolated in
POWER = 4.0  # weights ~ score^-4, by hold-outs over sources (docs/evidence/own-law.md)
LEAST_WEIGHT, LEAST_FORMS = 0.05, 2
BROKEN = 10.0  # robust standard deviations
LEAST_DRIFT = 0.02  # an e-fold; inner hold-outs look no further than two or three times beyond the runs (docs/evidence/own-law.md)
FEWEST_WITHIN = 4  # held-out runs inside the range of those left in that tell the noise
LOWEST_SCORE = 1e-9  # of runs without noise
REPLICATES, FEWEST_REPLICATES = 128, 32  # of all forms together and of each, where no --bootstrap says how many

# An inner fit: a scan of so many points, its best polished, the best of these carried on. Rows are thinned beyond.
INNER_POINTS, INNER_POLISHED, INNER_FINISHED, INNER_ROWS = 1024, 16, 3, 600
INNER_ITERATIONS, INNER_LAST, INNER_TOLERANCE, INNER_PATIENCE = 15, 200, 1e-9, 5


@dataclass(frozen=True, slots=True)
class Chosen:
    """A form's share of the ensemble and its score, the held-out RMSLE; None where no inner hold-out was possible."""

    law: str
    weight: float
    score: float | None


@dataclass(frozen=True, slots=True)
class Choice:
    """What the inner hold-outs say of the candidates, in their order: scores and weights (0: dropped), noise and drift."""

    scores: tuple[float, ...]  # empty without inner hold-outs
    weights: tuple[float, ...]
    splits: tuple[str, ...]
    run_noise: float
    drift: float


def choose(
    fits: Sequence[Fit], arrays: Sequence[RunArrays], table: RunArrays, eligible: BoolArray, progress: Progress
) -> Choice:
    """Score candidates by inner hold-outs, and weigh those that are `eligible`, (forms,), of which there is one or more.

    `fits` are those to all runs, `arrays` the runs in each candidate's letters, `table` in the table's own.
    """
    errors = np.array([residuals(found, runs) for found, runs in zip(fits, arrays, strict=True)])  # (forms, n)
    sound = ~_broken(errors)
    parameters = np.array([acting_parameters(f.form, runs) for f, runs in zip(fits, arrays, strict=True)])
    splits = {name: mask for name, mask in inner_splits(table, int(parameters.max())).items() if (mask & sound).any()}
    if not splits:
        weights = eligible / eligible.sum()
        noise = _noise(weights @ errors, float(weights @ parameters))
        return Choice((), tuple(weights.tolist()), (), noise, LEAST_DRIFT)
    missed: list[FloatArray] = []  # of each split, (forms, held out)
    beyond: list[FloatArray] = []  # e-folds, (held out,)
    for i, (name, mask) in enumerate(splits.items()):
        progress(f"hold out large {name}", i / len(splits))
        counted = mask & sound
        missed.append(
            np.array([_predicted(f.form, runs, ~mask, counted) for f, runs in zip(fits, arrays, strict=True)])
        )
        left, out = table.where(~mask), table.where(counted)
        ranges = fit_range({"n_params": left.n_params, "tokens": left.tokens, "experts": left.experts})
        beyond.append(efolds_beyond(ranges, out.n_params, out.tokens, out.experts))
    rmsle = np.array([np.sqrt((error**2).mean(axis=1)) for error in missed])  # (splits, forms)
    scores = np.exp(np.log(np.maximum(rmsle, LOWEST_SCORE)).mean(axis=0))
    weights = np.zeros(len(fits))
    weights[eligible] = weigh(scores[eligible])
    error, out = np.concatenate([weights @ each for each in missed]), np.concatenate(beyond)
    noise = _noise(weights @ errors, float(weights @ parameters))
    drift = _drift(error, out, noise)
    if (out == 0.0).sum() >= FEWEST_WITHIN:
        noise = max(noise, _noise(error[out == 0.0], 0.0))
    return Choice(tuple(scores.tolist()), tuple(weights.tolist()), tuple(splits), noise, drift)


def acting_parameters(form: LawForm, runs: RunArrays) -> int:
    """How many parameters of a form act on these runs at all: those of the experts do not count where all runs are dense."""
    x = inputs_of(form, runs)
    box = (form.linear.region if form.linear else form.region or form.bounds)(
        Problem.of(form, x, np.log(runs.loss)).observed
    )
    theta = np.zeros(len(form.parameters))
    theta[list(form.linear.shape) if form.linear else slice(None)] = box @ (0.45, 0.55)
    return int((np.abs(form.jacobian(theta, x)) > 1e-12).any(axis=0).sum())


def inner_splits(runs: RunArrays, fewest_left: int) -> dict[str, BoolArray]:
    """Masks (n,) of the runs held out, by what is large in them; each leaves more than `fewest_left` and differs."""
    given = {"N": np.log(runs.n_params), "D": np.log(runs.tokens), "E": np.log(runs.experts)}
    varied = {name: values for name, values in given.items() if np.ptp(values) > np.log(VARIES)}
    directions = dict(varied)
    if "N" in varied and "D" in varied:
        directions |= {"N D": varied["N"] + varied["D"], "D/N": varied["D"] - varied["N"]}
    if "N" in varied and "E" in varied:
        directions["N E"] = varied["N"] + varied["E"]
    found: dict[str, BoolArray] = {}
    for name, values in directions.items():
        distinct = np.unique(values)
        mask = values > min(float(np.quantile(values, QUANTILE)), float(distinct[-2]))
        enough = mask.sum() >= FEWEST_HELD_OUT and (~mask).sum() > fewest_left
        if enough and not any((mask == other).all() for other in found.values()):
            found[name] = mask
    return found


def weigh(scores: FloatArray) -> FloatArray:
    """Shares of forms by their scores, (k,): proportional to score^-4, below 5% dropped, the second best never below."""
    raw = (scores / scores.min()) ** -POWER
    rank = np.argsort(np.argsort(scores, kind="stable"), kind="stable")
    share = raw / raw.sum()
    kept = np.where(rank < LEAST_FORMS, np.maximum(share, LEAST_WEIGHT), np.where(share >= LEAST_WEIGHT, share, 0.0))
    return kept / kept.sum()


def _predicted(form: LawForm, runs: RunArrays, fitted: BoolArray, held_out: BoolArray) -> FloatArray:
    """ln(predicted / measured) of the held-out runs under the form as fitted to others, from no knowledge of them."""
    inside, outside = runs.where(fitted), runs.where(held_out)
    problem = Problem.of(form, inputs_of(form, inside), np.log(inside.loss)).thinned(INNER_ROWS)
    points, values = scan(problem, INNER_POINTS)
    starts = points[np.argsort(values, kind="stable")[:INNER_POLISHED]]
    theta, reached = polish(problem, starts, max_iterations=INNER_ITERATIONS)
    leading = np.argsort(reached, kind="stable")[:INNER_FINISHED]
    theta, reached = polish(
        problem, theta[leading], max_iterations=INNER_LAST, tolerance=INNER_TOLERANCE, patience=INNER_PATIENCE
    )
    return form.log_loss(theta[np.argmin(reached)], inputs_of(form, outside)) - np.log(outside.loss)


def _broken(errors: FloatArray) -> BoolArray:
    """Runs that every candidate misses by far even when fitted to them, (n,), of residuals (forms, n)."""
    scale = np.array([[robust_spread(error)] for error in errors])
    return np.asarray((np.abs(errors) > BROKEN * scale).all(axis=0) & (scale > 0.0).all())


def _noise(error: FloatArray, parameters: float) -> float:
    """Robust standard deviation of residuals (n,) of a fit with so many parameters."""
    n = error.size
    return robust_spread(error) * float(np.sqrt(n / max(n - parameters, 1.0)))


def _drift(error: FloatArray, beyond: FloatArray, noise: float) -> float:
    """Standard deviation of ln L that an e-fold beyond the runs adds, by held-out errors and e-folds, (n,) each."""
    out = beyond > 0.0
    if not out.any():
        return LEAST_DRIFT
    excess = float((error[out] ** 2 - noise**2).sum() / (beyond[out] ** 2).sum())
    return max(float(np.sqrt(max(excess, 0.0))), LEAST_DRIFT)
