"""Does a law hold where it was not fitted? Hold-out comparison, and residuals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from moescale.errors import InputError
from moescale.fitting.canonical import RunArrays, inputs_of
from moescale.fitting.fit import Fit, fit_arrays
from moescale.fitting.prior import fit_under, prior_of
from moescale.io.records import Record
from moescale.scaling_laws import pooled2026
from moescale.scaling_laws.form import LawForm
from moescale.scaling_laws.law import Prediction
from moescale.scaling_laws.store import find_law
from moescale.typing import BoolArray, FloatArray, Progress


@dataclass(frozen=True, slots=True)
class HoldOut(Record):
    """How a form that was fitted on some runs predicts the others; errors are of ln L, the bias ln(predicted / measured)."""

    law: str
    n_train: int
    n_holdout: int
    rmsle_train: float
    rmsle_holdout: float
    bias_holdout: float
    parameters: int


def residuals(found: Fit, runs: RunArrays) -> FloatArray:
    """ln(predicted / measured) of each run, (n,)."""
    x = inputs_of(found.form, runs)
    return found.form.log_loss(found.theta, x) - np.log(runs.loss)


def hold_out(form: LawForm, runs: RunArrays, held_out: BoolArray, *, progress: Progress | None = None) -> HoldOut:
    """Fit a form to the runs that `held_out` (n,) does not mark, and predict those that it marks, of both some."""
    train, test = runs.where(~held_out), runs.where(held_out)
    if train.loss.size == 0 or test.loss.size == 0:
        what = f"the hold-out expression marks {test.loss.size} of {runs.loss.size} runs"
        advice = "choose an expression that holds for some runs and not for others"
        raise InputError(what, where="--holdout", next_step=advice)
    if form == pooled2026.FORM:
        found = fit_under(prior_of(find_law(form.name)), train).fit
    else:
        found = fit_arrays(form, train, progress=progress)
    error = residuals(found, test)
    errors = (found.rmsle, _root_mean_square(error), float(error.mean()))
    return HoldOut(form.name, train.loss.size, test.loss.size, *errors, len(form.parameters))


@dataclass(frozen=True, slots=True)
class Score:
    """Errors of ln L of predictions, as in `HoldOut`, and the share of the runs within their 90% intervals, if they have any."""

    n_runs: int
    rmsle: float
    bias: float
    coverage: float | None

    @property
    def around(self) -> float:
        """The root mean square error around the bias: laws measure losses in units of their own."""
        return math.sqrt(max(self.rmsle**2 - self.bias**2, 0.0))


def score(predicted: Sequence[Prediction], loss: FloatArray) -> Score | None:
    """The score of one prediction a run against the losses (n,), of those that are not NaN; None where all are."""
    pairs = [(p, measured) for p, measured in zip(predicted, loss.tolist(), strict=True) if not np.isnan(measured)]
    if not pairs:
        return None
    error = np.log([p.loss / measured for p, measured in pairs])
    held = [p.interval[0] <= measured <= p.interval[1] for p, measured in pairs if p.interval is not None]
    return Score(len(pairs), _root_mean_square(error), float(error.mean()), float(np.mean(held)) if held else None)


def _root_mean_square(error: FloatArray) -> float:
    return float(np.sqrt(np.mean(error**2)))
