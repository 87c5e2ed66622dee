"""From a table of runs to a law: the family, the further inputs, the fit, its draws, and how the law came to be."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moescale.errors import InputError, unknown_name
from moescale.fitting import bootstrap as resampling
from moescale.fitting.fit import Fit, fit
from moescale.fitting.holdout import HoldOut, RunArrays, hold_out, inputs_of, residuals
from moescale.fitting.objective import HUBER_DELTA, Progress
from moescale.fitting.prior import calibrate
from moescale.fitting.remarks import table_remarks
from moescale.io.files import as_text
from moescale.models.family import ModelFamily, match_family
from moescale.runs.table import RunTable
from moescale.scaling_laws.covariates import check_names, from_columns, further_inputs, known_to, option
from moescale.scaling_laws.form import LawForm
from moescale.scaling_laws.law import Law, Prediction, extrapolation, predict_many
from moescale.scaling_laws.store import find_form
from moescale.typing import FloatArray

OPTIMISER = "scan by variable projection, damped Newton with the exact Hessian, tolerance 1e-13 of the objective"


@dataclass(frozen=True, slots=True, kw_only=True)
class FitSettings:
    """How a law is fitted to a table of runs; settings that contradict each other raise InputError.

    `starts` and `free` are those of `fit`, `extra` further inputs that hold for all runs. `prior` is a law to calibrate
    instead, with the parameters of `fix` at its values. `bootstrap` replicates give intervals and the law its draws;
    whole values of the column `cluster` are drawn.
    """

    starts: str | int = "auto"
    free: bool = False
    extra: Mapping[str, float] = field(default_factory=dict[str, float])
    family: ModelFamily | None = None
    prior: Law | None = None
    fix: tuple[str, ...] | None = None
    bootstrap: int = 0
    cluster: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.bootstrap == 1:
            raise InputError("one replicate makes no interval", where="--bootstrap", nearest="0, or 2 and more")
        if self.prior is None and self.fix is not None:
            raise InputError("there is no law to take them from", where="--fix", next_step="name one with --prior")
        if self.prior is not None and (self.free or self.bootstrap or self.starts != "auto"):
            what = "a calibration starts from the law, inside its box, and has no bootstrap"
            raise InputError(what, where="--prior", next_step="leave out --free, --bootstrap and --starts")


@dataclass(frozen=True, slots=True)
class FittedLaw:
    """A law, the fit that it is, the 90% intervals of its parameters where there was a bootstrap, and the runs."""

    law: Law
    fit: Fit
    intervals: dict[str, tuple[float, float]] | None
    runs: RunArrays

    def to_dict(self) -> dict[str, object]:
        """The record of the command line's contract."""
        return self.fit.to_dict(self.intervals)

    def named(self, name: str, **evidence: object) -> Law:
        """The law under a name, with further evidence of how it came to be."""
        return replace(self.law, name=as_text(name), evidence=_texts(self.law.evidence | evidence))


def fit_runs(
    runs: RunTable,
    form: LawForm | str = "yun2024",
    settings: FitSettings | None = None,
    *,
    progress: Progress | None = None,
) -> FittedLaw:
    """Fit a form, or the form of that name, to a table of runs, or calibrate `settings.prior` to it.

    Raises InputError for a table that cannot hold the fit, and as `find_form` and `further_inputs` do.
    """
    how = settings or FitSettings()
    prior, remarks = how.prior, list[str]()
    form = prior.form if prior else find_form(form) if isinstance(form, str) else form
    family = how.family or (prior.family if prior else None)
    if family is None:
        family, remarks = family_of(runs)
    arrays = run_arrays(form, runs, how.extra)
    clusters, columns = None, runs.to_columns()
    if how.cluster is not None:
        if how.cluster not in columns:
            raise unknown_name("column", how.cluster, columns, where="--cluster")
        clusters = columns[how.cluster]
    x, ln_loss = inputs_of(form, arrays), np.log(runs.loss)
    if prior:
        found = calibrate(prior, x, ln_loss, fix=how.fix)
    else:
        given = (runs.n_params, runs.tokens, runs.experts, runs.loss)
        found = fit(form, *given, extra=arrays.extra, starts=how.starts, free=how.free, progress=progress)
    draws = intervals = None
    if how.bootstrap:
        draws = resampling.bootstrap(found, x, ln_loss, how.bootstrap, how.seed, clusters=clusters, progress=progress)
        intervals = resampling.parameter_intervals(found, draws)
    remarks += table_remarks(form, residuals(found, arrays), runs)
    found = replace(found, warnings=(*runs.warnings, *remarks, *found.warnings))
    source, today = f"fitted to {as_text(os.path.basename(runs.source))}", date.today().isoformat()
    evidence = _evidence(runs, how, family)
    law = fitted_law(found, family, name="fitted", source=source, date=today, draws=draws, evidence=evidence)
    if prior and prior.max_experts is not None:  # the law speaks of more experts than these few runs
        law = replace(law, max_experts=max(prior.max_experts, law.max_experts or 1.0))
    return FittedLaw(law, found, intervals, arrays)


def compare_laws(
    runs: RunTable,
    forms: Sequence[LawForm],
    held_out: NDArray[np.bool_],
    *,
    extra: Mapping[str, float] | None = None,
    progress: Progress | None = None,
) -> list[HoldOut]:
    """Fit each form to the runs that `held_out` (n,) does not mark, and predict those that it marks.

    `extra` are further inputs that hold for all runs; each form takes those that it has. Raises InputError for one that
    none has, and where the mask leaves nothing on one side.
    """
    given = dict(extra or {})
    check_names(forms, given)
    # The same name may mean another thing to another form, so each takes its own from the table.
    arrays = [run_arrays(form, runs, known_to(form, given)) for form in forms]
    return [hold_out(form, own, held_out, progress=progress) for form, own in zip(forms, arrays, strict=True)]


def predict_runs(law: Law, runs: RunTable, *, extra: Mapping[str, float] | None = None) -> list[Prediction]:
    """What a law predicts of each run of a table, whose losses may be missing, with the 90% interval of a run.

    `extra` are further inputs that hold for all runs. Raises InputError where a further input is missing and where the law
    gives no finite loss.
    """
    arrays = run_arrays(law.form, runs, dict(extra or {}))
    where = (arrays.n_params, arrays.tokens, arrays.experts)
    with np.errstate(over="ignore"):  # told below
        losses, low, high = predict_many(law, *where, extra=arrays.extra)
    if not np.isfinite(losses).all():
        row = int(runs.row_numbers[np.argmin(np.isfinite(losses))])
        what = f"{law.name} gives no finite loss at this size, tokens and experts"
        advice = "stay nearer to the range that it was fitted on, or take another law"
        raise InputError(what, where=f"{runs.source}, data row {row}", next_step=advice)
    found: list[Prediction] = []
    for i, value in enumerate(losses):
        bounds = None if np.isnan(low[i]) else (float(low[i]), float(high[i]))
        further = {name: values[i] for name, values in arrays.extra.items()}
        n_params, tokens, experts = (float(values[i]) for values in where)
        beyond = extrapolation(law, n_params, tokens, experts, further)
        found.append(Prediction(float(value), bounds, beyond))
    return found


def run_arrays(form: LawForm, runs: RunTable, given: Mapping[str, float]) -> RunArrays:
    """What a form takes of a table: its further inputs are columns, or else the given values for all runs."""
    found: dict[str, Any] = from_columns(form, runs.columns, runs.experts, source=runs.source)
    for name, value in given.items():
        if name in runs.columns:
            what = f"the table has a column {name!r} of its own"
            raise InputError(what, where=option(name), next_step="leave the option out")
        found[name] = value
    further = further_inputs(form, found)
    extra = {name: np.broadcast_to(np.asarray(v, dtype=float), len(runs)) for name, v in further.items()}
    return RunArrays(runs.n_params, runs.tokens, runs.experts, runs.loss, extra)


def family_of(runs: RunTable) -> tuple[ModelFamily, list[str]]:
    """The family that the columns of a table speak for, with remarks."""
    stated = {name: runs.columns.get(name) for name in ("top_k", "n_params_total")}
    numeric = {name: c if c is not None and c.dtype.kind == "f" else None for name, c in stated.items()}
    family, remarks = match_family(runs.n_params, runs.experts, **numeric)
    if runs.size_column == "n_params_total":
        family = replace(family, n_counts="total")
    return family, remarks


def fitted_law(
    found: Fit,
    family: ModelFamily,
    *,
    name: str,
    source: str,
    date: str,
    draws: FloatArray | None = None,
    evidence: dict[str, object] | None = None,
) -> Law:
    """The law that a fit found, with the family of models that the runs belong to and a bootstrap's draws (k, p)."""
    facts = {fact: getattr(found, fact) for fact in ("n_runs", "rmsle", "huber", "starts", "starts_at_optimum")}
    return Law(
        name=name,
        form=found.form,
        theta=found.theta,
        family=family,
        source=source,
        date=date,
        fit_range=found.fit_range,
        draws=np.empty((0, found.theta.size)) if draws is None else draws,
        notes=found.warnings,
        max_experts=found.fit_range["experts"][1] if found.form.uses_experts else None,
        evidence=facts | {"objective": f"sum of Huber terms, delta {HUBER_DELTA:g}, of ln L"} | (evidence or {}),
    )


def _evidence(runs: RunTable, how: FitSettings, family: ModelFamily) -> dict[str, object]:
    return _texts(
        {
            "table": os.path.basename(runs.source),
            "table_sha256": runs.sha256 or "",
            "size_column": runs.size_column,
            "tokens_column": runs.tokens_column,
            "experts_column": runs.experts_column,
            "loss_column": runs.loss_column,
            "seed": how.seed,
            "bootstrap": how.bootstrap,
            "cluster": how.cluster or "",
            "prior": how.prior.name if how.prior else "",
            "fixed": ", ".join(how.fix or ()),
            "definition_of_n": f"column {runs.size_column}; family {family.name}",
            "definition_of_d": f"column {runs.tokens_column}: training tokens seen",
            "starts_option": str(how.starts),
            "box": "none (--free)" if how.free else "the form's physical box",
            "optimiser": OPTIMISER,
            "versions": f"numpy {np.__version__}, Python {platform.python_version()}",
        }
    )


def _texts(evidence: Mapping[str, object]) -> dict[str, object]:
    """The evidence as text that can be written."""
    return {key: as_text(value) if isinstance(value, str) else value for key, value in evidence.items()}
