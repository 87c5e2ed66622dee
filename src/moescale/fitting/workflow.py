"""From a table of runs to a law: the family, the further inputs, the fit, its draws, and how the law came to be."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any

import numpy as np

from moescale.errors import InputError, MoescaleError, located
from moescale.fitting import auto, canonical
from moescale.fitting.auto import Chosen
from moescale.fitting.canonical import RunArrays, inputs_of, run_arrays
from moescale.fitting.fit import Fit, bootstrap, fit_arrays, fit_range, parameter_intervals, residuals, table_remarks
from moescale.fitting.prior import DRAWS as PRIOR_DRAWS
from moescale.fitting.prior import DRIFT, STARTS, fit_under, held_out_under, prior_of
from moescale.fitting.search import HUBER_DELTA
from moescale.io.files import as_text
from moescale.io.records import Record, record
from moescale.models.family import ModelFamily, with_convention
from moescale.runs.table import RunTable
from moescale.scaling_laws import pooled2026
from moescale.scaling_laws.ensemble import DRAWS, MODEL_INPUTS, combine
from moescale.scaling_laws.form import LawForm, check_names, known_to
from moescale.scaling_laws.law import OF_ACTIVE, Law, Member, Prediction, extrapolation, predict_many
from moescale.scaling_laws.store import find_form, find_law
from moescale.typing import BoolArray, FloatArray, Progress

# Runs that a hold-out leaves a fit under a prior at least, and hold-outs: large N, D, E; each takes as long as the fit.
FEWEST_UNDER_PRIOR, MOST_UNDER_PRIOR = 4, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class FitSettings:
    """How a law is fitted to a table of runs.

    `starts` is that of `fit`, `extra` further inputs that hold for all runs, `prior` a law that holds a prior of fits
    (default: pooled2026). `bootstrap` replicates give intervals and the law its draws; a fit under a prior has draws
    without them.
    """

    starts: str | int = "auto"
    extra: Mapping[str, float] = field(default_factory=dict[str, float])
    family: ModelFamily | None = None
    prior: Law | None = None
    bootstrap: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.bootstrap == 1:
            raise InputError("one replicate makes no interval", where="--bootstrap", nearest="0, or 2 and more")


@dataclass(frozen=True, slots=True)
class FittedLaw:
    """A law, the fit that it is, the 90% intervals of its parameters after a bootstrap, and the runs in its letters.

    Of an ensemble, `fit`, `intervals` and `runs` are those of the winner, and `chosen` are all candidates.
    """

    law: Law
    fit: Fit
    intervals: dict[str, tuple[float, float]] | None
    runs: RunArrays
    chosen: tuple[Chosen, ...] = ()

    @property
    def held_out_error(self) -> float | None:
        """The mean error of the forms on inner hold-outs, by their weights; None where none was held out."""
        scored = [each.weight * each.score for each in self.chosen if each.score is not None]
        return sum(scored) if scored else None

    def to_dict(self) -> dict[str, object]:
        """The record of the command line's contract."""
        chosen = [record(each) for each in self.chosen if each.weight > 0.0]
        return self.fit.to_dict(self.intervals) | ({"chosen": chosen} if chosen else {})

    def named(self, name: str, **evidence: object) -> Law:
        """The law under a name, with further evidence of how it came to be."""
        return replace(self.law, name=as_text(name), evidence=_texts(self.law.evidence | evidence))


def fit_runs(
    runs: RunTable,
    form: LawForm | str = auto.NAME,
    settings: FitSettings | None = None,
    *,
    progress: Progress | None = None,
) -> FittedLaw:
    """Fit a form, or the form of that name, to a table of runs, whose order changes nothing.

    "auto" gives `pooled2026` under its prior (as `settings.prior` asks for) where the runs have one expansion or are
    few, else an ensemble of forms that it scores by inner hold-outs (docs/evidence/pooled-law.md, own-law.md).
    """
    how = settings or FitSettings()
    rows = canonical.order(runs)
    found = _fit_ordered(runs.at(rows), form, how, progress or (lambda step, share: None))
    return replace(found, runs=found.runs.where(np.argsort(rows)))


def _fit_ordered(runs: RunTable, form: LawForm | str, how: FitSettings, report: Progress) -> FittedLaw:
    family, remarks = (how.family, list[str]()) if how.family else canonical.family_of(runs)
    family = with_convention(family, "exact")  # the paper's count is of its own figures
    chosen_by_auto = form == auto.NAME
    form = find_form(form) if isinstance(form, str) and not chosen_by_auto else form
    under_prior = form == pooled2026.FORM or (chosen_by_auto and (how.prior or _left_to_prior(runs, family)))
    if how.starts == "paper" and (under_prior or chosen_by_auto):
        by_auto = f"{auto.NAME} compares forms in their physical boxes by the default search"
        what = f"{pooled2026.FORM.name} is fitted under its prior" if under_prior else by_auto
        raise InputError(what, where="--starts", next_step="name another form with --law")
    if under_prior:
        return _fit_under_prior(runs, how, family, remarks)
    if how.prior is not None:
        what = f"only {pooled2026.FORM.name} is fitted under a prior"
        raise InputError(what, where="--prior", next_step="leave out --prior or --law")
    if isinstance(form, str):
        return _fit_auto(runs, how, family, remarks, report)
    arrays, notes = run_arrays(form, runs, how.extra, family)
    found = fit_arrays(form, arrays, starts=how.starts, progress=report)
    draws = None
    if how.bootstrap:
        sample = inputs_of(form, arrays), np.log(arrays.loss)
        draws = bootstrap(found, *sample, how.bootstrap, how.seed, progress=report)
    remarks += table_remarks(form, residuals(found, arrays), runs)
    counted = canonical.law_family(form, family)
    of_active = canonical.has_active_column(runs) and counted.n_counts == "dense" and np.any(runs.experts > 1.0)
    if of_active and not form.of_models:
        notes.append(
            f"{form.name} is fitted to {OF_ACTIVE}, and a plan would read its N as dense-equivalent: "
            "give --size-column n_params_dense, or fit without --law"
        )
    found = replace(found, warnings=(*runs.warnings, *remarks, *notes, *found.warnings))
    law = fitted_law(found, counted, draws=draws, **_about(runs, how))
    return FittedLaw(law, found, None if draws is None else parameter_intervals(found, draws), arrays)


def _left_to_prior(runs: RunTable, family: ModelFamily) -> bool:
    """Whether auto fits a table under the prior: runs of one expansion, or too few for its forms."""
    varied = (runs.experts, np.round(runs.expansion, 9) if canonical.states_active_body(runs) else runs.experts)
    few = len(runs) < auto.FEWEST_RUNS or max(np.unique(values).size for values in varied) == 1
    return few and family.n_counts == "dense"


def _fit_under_prior(runs: RunTable, how: FitSettings, family: ModelFamily, remarks: list[str]) -> FittedLaw:
    form = pooled2026.FORM
    if family.n_counts == "total":
        what = "the sizes count all experts, and the prior speaks of what a token meets"
        advice = "give n_params_dense or n_params_active, or another --law"
        raise InputError(what, where="--size-column", next_step=advice)
    law = how.prior or find_law(form.name)
    with located("--prior"):
        prior = prior_of(law)
    family = canonical.with_vocabulary_of(family, runs)
    arrays, notes = run_arrays(form, runs, how.extra, family)
    starts = STARTS if how.starts == "auto" else int(how.starts)
    result = fit_under(prior, arrays, starts=starts, draws=max(how.bootstrap, PRIOR_DRAWS), seed=how.seed)
    remarks += table_remarks(form, residuals(result.fit, arrays), runs)
    notes = (*runs.warnings, *remarks, *notes, *result.fit.warnings)
    found = replace(result.fit, warnings=notes)
    about = _about(runs, replace(how, prior=law))
    evidence = about.pop("evidence")
    held = {"prior_mean": found.theta.tolist(), "prior_covariance": result.covariance.tolist()}
    of_member: dict[str, Any] = about | {"name": form.name, "evidence": evidence | held}
    member = fitted_law(found, canonical.law_family(form, family), draws=result.draws, **of_member)
    member = replace(member, max_experts=max(law.members[0].law.max_experts or 1.0, found.fit_range["experts"][1]))
    evidence |= {"law": form.name, "n_runs": found.n_runs}
    fitted = combine(
        [Member(member, 1.0)], family=family, fit_range=fit_range(canonical.sizes_in_family(runs, family)), notes=notes,
        run_noise=result.run_noise, drift=DRIFT, draws=len(result.draws), evidence=evidence, **about,
    )  # fmt: skip
    intervals = parameter_intervals(found, result.draws)
    masks = auto.inner_splits(canonical.sizes_in_family(runs, family), FEWEST_UNDER_PRIOR).values()
    held_out = held_out_under(prior, arrays, list(masks)[:MOST_UNDER_PRIOR])
    return FittedLaw(fitted, found, intervals, arrays, (Chosen(form.name, 1.0, held_out),))


def _fit_auto(runs: RunTable, how: FitSettings, family: ModelFamily, remarks: list[str], report: Progress) -> FittedLaw:
    family, measured = canonical.with_vocabulary_of(family, runs), runs.loss
    ln_loss, unit = canonical.without_unit(measured)
    runs = replace(runs, loss=np.exp(ln_loss))
    candidates = _candidates(runs, how, family)
    arrays = [own for _, own, _ in candidates]
    fits: list[Fit] = []
    for i, (form, own, _) in enumerate(candidates):
        report(f"fit {form.name}", i / len(candidates))
        fits.append(fit_arrays(form, own, starts=how.starts, search=auto.SEARCH))
    table = RunArrays(runs.n_params, runs.tokens, runs.experts, runs.loss, {})
    in_family = canonical.sizes_in_family(runs, family)
    faults = [auto.fault(found, family, in_family) for found in fits]
    sound = np.array([fault is None for fault in faults])
    choice = auto.choose(fits, arrays, table, sound if sound.any() else ~sound, report)
    about = _about(runs, how)
    members: list[Member] = []
    for i in np.flatnonzero(choice.weights):
        found, weight = fits[i], choice.weights[i]
        report(f"bootstrap of {found.form.name}", sum(choice.weights[:i]))
        wanted = max(auto.FEWEST_REPLICATES, round(weight * (how.bootstrap or auto.REPLICATES)))
        sample = inputs_of(found.form, arrays[i]), np.log(arrays[i].loss)
        draws = canonical.in_unit(found.form, bootstrap(found, *sample, wanted, how.seed, quick=True), unit)
        found = replace(found, theta=canonical.in_unit(found.form, found.theta, unit))  # errors, of ln L, stay
        of_member: dict[str, Any] = about | {"name": found.form.name, "draws": draws}
        members.append(Member(fitted_law(found, canonical.law_family(found.form, family), **of_member), weight))
    winner = int(np.argmax(choice.weights))
    best, best_runs = fits[winner], replace(arrays[winner], loss=measured)
    best = replace(best, theta=canonical.in_unit(best.form, best.theta, unit))
    then = "is left out of the ensemble" if sound.any() else "stays in the ensemble, since no form extrapolates better"
    remarks += table_remarks(best.form, residuals(best, best_runs), runs)
    remarks += [f"{found.form.name} {then}: it {fault}" for found, fault in zip(fits, faults, strict=True) if fault]
    notes = [*runs.warnings, *remarks, *candidates[winner][2]]
    if not choice.splits:
        alone = f"only {best.form.name}, the form with the fewest parameters, is fitted"
        shared = "the forms have equal weights, and their ranking is unknown"
        notes.append(f"too few runs for inner hold-outs: {shared if len(members) > 1 else alone}")
    warnings = tuple(dict.fromkeys((*notes, *best.warnings)))
    best = replace(best, warnings=warnings, seconds=sum(found.seconds for found in fits))
    leading = max(members, key=lambda member: member.weight).law
    intervals = parameter_intervals(best, leading.draws) if how.bootstrap else None
    scores = choice.scores or (None,) * len(fits)
    rows = [Chosen(f.form.name, w, s) for f, w, s in zip(fits, choice.weights, scores, strict=True)]
    chosen = tuple(sorted(rows, key=lambda each: (-each.weight, each.score or 0.0)))
    about["evidence"] |= {"law": auto.NAME}
    about |= {"notes": warnings, "run_noise": choice.run_noise, "drift": choice.drift}
    if family.n_counts == "total":  # no other law can be asked in these letters
        return FittedLaw(replace(leading, **about), best, intervals, best_runs, chosen)
    ranges = {key: ends for member in members for key, ends in member.law.fit_range.items()}
    ranges |= fit_range(in_family)
    law = combine(members, family=family, fit_range=ranges, draws=max(how.bootstrap, DRAWS), **about)
    return FittedLaw(law, best, intervals, best_runs, chosen)


def _candidates(runs: RunTable, how: FitSettings, family: ModelFamily) -> list[tuple[LawForm, RunArrays, list[str]]]:
    """The forms that auto compares on so many runs, fewest parameters first, with the runs in their letters; notes."""
    forms, given = [find_form(name) for name in auto.WITH_EXPERTS], dict(how.extra)
    if canonical.states_active_body(runs):
        forms = [replace(form, of_models=True) for form in forms]
    if runs.size_column == "n_params_total" and "sparsity" in runs.columns:
        forms.append(find_form(auto.BY_SPARSITY))
    check_names(forms, given)
    letters = [(form, *run_arrays(form, runs, known_to(form, given), family)) for form in forms]
    counts = [auto.acting_parameters(form, own) for form, own, _ in letters]
    ranked = sorted(zip(counts, letters, strict=True), key=lambda each: each[0])
    return [each for count, each in ranked if 2 * count <= len(runs)] or [ranked[0][1]]


@dataclass(frozen=True, slots=True)
class HoldOut(Record):
    """How a form fitted on some runs predicts the others; errors are of ln L, the bias ln(predicted / measured)."""

    law: str
    n_train: int
    n_holdout: int
    rmsle_train: float
    rmsle_holdout: float
    bias_holdout: float
    parameters: int


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


def compare_laws(
    runs: RunTable,
    forms: Sequence[LawForm],
    held_out: BoolArray,
    *,
    extra: Mapping[str, float] | None = None,
    progress: Progress | None = None,
) -> list[HoldOut]:
    """Fit each form to the runs that `held_out` (n,) does not mark, and predict those that it marks.

    `extra` are further inputs that hold for all runs; each form takes those that it has.
    """
    given = dict(extra or {})
    check_names(forms, given)
    # The same name may mean another thing to another form, so each takes its own from the table.
    rows = canonical.order(runs)
    runs, held_out = runs.at(rows), held_out[rows]
    arrays = [run_arrays(form, runs, known_to(form, given))[0] for form in forms]
    return [hold_out(form, own, held_out, progress=progress) for form, own in zip(forms, arrays, strict=True)]


def predict_runs(law: Law, runs: RunTable, *, extra: Mapping[str, float] | None = None) -> list[Prediction]:
    """What a law predicts of each run of a table, whose losses may be missing, with the 90% interval of a run.

    `extra` are further inputs that hold for all runs. InputError where the law gives no finite loss.
    """
    arrays, _ = run_arrays(law.form, runs, dict(extra or {}))
    if MODEL_INPUTS[0] in law.form.extra_inputs:  # whose range is of its family's N and E
        arrays = replace(canonical.sizes_in_family(runs, law.family), extra=arrays.extra)
    where = (arrays.n_params, arrays.tokens, arrays.experts)
    with np.errstate(over="ignore"):  # said below
        ends = predict_many(law, *where, extra=arrays.extra)
    if not np.isfinite(ends[0]).all():
        row = int(runs.row_numbers[np.argmin(np.isfinite(ends[0]))])
        what = f"{law.name} gives no finite loss at this size, tokens and experts"
        advice = "stay closer to the fitted range, or use another law"
        raise InputError(what, where=f"{runs.source}, data row {row}", next_step=advice)
    further = [dict(zip(arrays.extra, row, strict=True)) for row in zip(*arrays.extra.values(), strict=True)]
    models = zip(*(values.tolist() for values in (*where, *ends)), further or [{}] * len(runs), strict=True)
    return [
        Prediction(value, None if np.isnan(low) else (low, high), extrapolation(law, n, d, e, other))
        for n, d, e, value, low, high, other in models
    ]


@dataclass(frozen=True, slots=True)
class Score:
    """Errors of ln L of predictions, as in `HoldOut`, and the share of runs within 90% intervals, if there are any."""

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


def errors_on(runs: RunTable, laws: Mapping[str, Law], extra: Mapping[str, float]) -> dict[str, float]:
    """The error of ln L around the bias of each law on a table of runs, by name; without laws that cannot be asked."""
    found: dict[str, float] = {}
    for name, law in laws.items():
        with suppress(MoescaleError):
            scored = score(predict_runs(law, runs, extra=extra), runs.loss)
            found |= {} if scored is None else {name: scored.around}
    return found


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
        name=name, form=found.form, theta=found.theta, family=family, source=source, date=date, fit_range=found.fit_range,
        draws=np.empty((0, found.theta.size)) if draws is None else draws, notes=found.warnings,
        max_experts=found.fit_range["experts"][1] if found.form.uses_experts else None,
        evidence=facts | {"objective": f"sum of Huber terms, delta {HUBER_DELTA:g}, of ln L"} | (evidence or {}),
    )  # fmt: skip


def _about(runs: RunTable, how: FitSettings) -> dict[str, Any]:
    evidence = {
        "table": os.path.basename(runs.source),
        "table_sha256": runs.sha256 or "",
        **{f"{name}_column": getattr(runs, f"{name}_column") for name in ("size", "tokens", "experts", "loss")},
        "seed": how.seed,
        "bootstrap": how.bootstrap,
        "prior": how.prior.name if how.prior else "",
        "starts_option": str(how.starts),
        "versions": f"numpy {np.__version__}, Python {platform.python_version()}",
    }
    source = f"fitted to {as_text(os.path.basename(runs.source))}"
    return {"name": "fitted", "source": source, "date": date.today().isoformat(), "evidence": _texts(evidence)}


def _texts(evidence: Mapping[str, object]) -> dict[str, object]:
    """The evidence as text that can be written."""
    return {key: as_text(value) if isinstance(value, str) else value for key, value in evidence.items()}
