"""Which forms to trust on a table of runs, and how far: inner hold-outs in the direction of the extrapolation, and what no MoE can do.

The rule with its reasons is in docs/evidence/own-law.md, "How auto chooses"; it was stated before it was scored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from moescale.fitting.canonical import RunArrays, inputs_of
from moescale.fitting.fit import Fit, Search, fit_range, residuals, robust_spread
from moescale.fitting.search import Problem, polish, scan
from moescale.models.coordinates import in_family, model_of
from moescale.models.family import ModelFamily, n_total
from moescale.scaling_laws.form import LawForm, make_inputs
from moescale.scaling_laws.law import efolds_beyond
from moescale.typing import BoolArray, FloatArray, Progress

NAME = "auto"
# Runs of several E, where E of three routers was extrapolated best; abnar2025 counts all experts and needs the sparsity.
WITH_EXPERTS, BY_SPARSITY = ("moescale2026-late", "yun2024-centred", "ludziejewski2025"), "abnar2025"

FEWEST_RUNS = 22  # twice the parameters of its forms; of fewer, the prior makes more (docs/evidence/pooled-law.md)
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

# What no MoE can do.
EXPERTS = 2.0 ** np.arange(1, 11)  # up to 1,024 in a layer; published models have up to 512
BEYOND = 0.1  # of ln L: fits miss runs by 0.01, and 512 experts gain 0.12 in the runs of Clark et al. (2202.01169)
# Of the lowest loss measured. The floor of text is most of it: 1.69 of 2.0 nats and more in Hoffmann et al. (2203.15556).
LOWEST = 0.5

# Of each form to all runs, and to those that an inner hold-out leaves in, of which rows are thinned beyond so many.
SEARCH = Search(1024, 32, 20, 4, 600, 1e-7)
INNER, INNER_ROWS = Search(1024, 16, 15, 3, 200, 1e-9, 5), 600


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
    # Runs that every candidate misses by far even when fitted to them are not held out.
    scale = np.array([[robust_spread(error)] for error in errors])
    sound = ~((np.abs(errors) > BROKEN * scale).all(axis=0) & (scale > 0.0).all())
    parameters = np.array([acting_parameters(f.form, runs) for f, runs in zip(fits, arrays, strict=True)])
    splits = {name: mask for name, mask in inner_splits(table, int(parameters.max())).items() if (mask & sound).any()}
    if not splits:
        weights = eligible / eligible.sum()
        noise = _noise(weights @ errors, float(weights @ parameters))
        return Choice((), tuple(weights.tolist()), (), noise, LEAST_DRIFT)
    masks, every = list(splits.values()), list[FloatArray]()  # of each form, (splits, n)
    for i, (found, runs) in enumerate(zip(fits, arrays, strict=True)):
        progress(f"hold-outs of {found.form.name}", i / len(fits))
        every.append(_predicted(found.form, runs, masks))
    missed = [np.array([each[i, mask & sound] for each in every]) for i, mask in enumerate(masks)]  # (forms, held out)
    beyond: list[FloatArray] = []  # e-folds, (held out,)
    for mask in masks:
        left, out = table.where(~mask), table.where(mask & sound)
        beyond.append(efolds_beyond(fit_range(left), out.n_params, out.tokens, out.experts))
    rmsle = np.array([np.sqrt((error**2).mean(axis=1)) for error in missed])  # (splits, forms)
    scores = np.exp(np.log(np.maximum(rmsle, LOWEST_SCORE)).mean(axis=0))
    weights = np.zeros(len(fits))
    weights[eligible] = weigh(scores[eligible])
    error, out = np.concatenate([weights @ each for each in missed]), np.concatenate(beyond)
    noise = _noise(weights @ errors, float(weights @ parameters))
    drift = LEAST_DRIFT
    if (far := out > 0.0).any():  # the standard deviation of ln L that an e-fold beyond the runs adds
        excess = float((error[far] ** 2 - noise**2).sum() / (out[far] ** 2).sum())
        drift = max(float(np.sqrt(max(excess, 0.0))), LEAST_DRIFT)
    if (out == 0.0).sum() >= FEWEST_WITHIN:
        noise = max(noise, _noise(error[out == 0.0], 0.0))
    return Choice(tuple(scores.tolist()), tuple(weights.tolist()), tuple(splits), noise, drift)


def acting_parameters(form: LawForm, runs: RunArrays) -> int:
    """How many parameters of a form act on these runs at all: those of the experts do not count where all runs are dense."""
    problem = Problem.of(form, x := inputs_of(form, runs), np.log(runs.loss))
    theta = np.zeros(len(form.parameters))
    theta[form.shape] = form.region(problem.observed) @ (0.45, 0.55)
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


def _predicted(form: LawForm, runs: RunArrays, masks: Sequence[BoolArray]) -> FloatArray:
    """ln(predicted / measured) of all runs under the form as fitted without those of each mask, (masks, n).

    The fits start from scans of their own runs and are searched side by side, on all runs with weight 0 where held out.
    """
    x, ln_loss = inputs_of(form, runs), np.log(runs.loss)
    rows = np.unique(np.linspace(0, ln_loss.size - 1, INNER_ROWS).astype(np.intp))
    kept = [rows[~mask[rows]] for mask in masks]
    problems = [Problem.of(form, x.rows(left), ln_loss[left]) for left in kept]
    boxes = np.array([problem.box for problem in problems])
    box = np.stack((boxes[..., 0].min(axis=0), boxes[..., 1].max(axis=0)), axis=-1)
    whole = replace(problems[0], x=x.rows(rows), ln_loss=ln_loss[rows], box=box)
    weights = np.array([~mask[rows] for mask in masks], dtype=float)

    scanned = [scan(problem, INNER.points) for problem in problems]
    starts = np.array([points[np.argsort(v, kind="stable")[: INNER.polished]] for points, v in scanned])
    for iterations, carried in ((INNER.first, INNER.finished), (INNER.last, 1)):
        count = starts.shape[1]
        theta, reached = polish(
            whole, np.concatenate(starts), weights=np.repeat(weights, count, axis=0), max_iterations=iterations,
            tolerance=INNER.tolerance, patience=INNER.patience,
        )  # fmt: skip
        leading = np.argsort(reached.reshape(-1, count), axis=1, kind="stable")[:, :carried, None]
        starts = np.take_along_axis(theta.reshape(len(masks), count, -1), leading, axis=1)
    return form.log_loss(starts[:, 0], x) - ln_loss


def _noise(error: FloatArray, parameters: float) -> float:
    n = error.size
    return robust_spread(error) * float(np.sqrt(n / max(n - parameters, 1.0)))


def fault(found: Fit, family: ModelFamily, runs: RunArrays) -> str | None:
    """What is impossible in a fit's predictions for the family's models of 2 to 1,024 experts; None where nothing is.

    A model with experts is no worse than the dense one of its active size and no better than that of its total size, at
    equal tokens, and no loss is below half of the lowest measured. Asked where sizes and tokens end, of forms without
    further inputs.
    """
    form = found.form
    if np.ptp(runs.experts) == 0.0 or form.extra_inputs or family.n_counts == "total":
        return None
    ends = ([values.min(), values.max()] for values in (runs.n_params, runs.tokens))
    n, d, e = (grid.ravel() for grid in np.meshgrid(*ends, EXPERTS))
    body, x = model_of(family, n, e)

    def ln_loss(body: FloatArray, x: FloatArray) -> FloatArray:
        size, count = (body, x) if form.of_models else in_family(family, body, x)
        with np.errstate(over="ignore"):
            return form.log_loss(found.theta, make_inputs(size, d, count))

    dense = np.ones_like(x)
    sparse, active = ln_loss(body, x), ln_loss(body, dense)
    total = ln_loss(model_of(family, n_total(family, n, e), dense)[0], dense)
    faults = {
        "worse than a dense model of its active size": sparse > active + BEYOND,
        "better than a dense model of its total size": sparse < total - BEYOND,
        "below half of the lowest loss measured": sparse < np.log(LOWEST * runs.loss.min()),
    }
    first = {what: e[where].min() for what, where in faults.items() if where.any()}
    if not first:
        return None
    what = min(first, key=lambda name: first[name])
    return f"predicts a model of {first[what]:g} experts {what}"
