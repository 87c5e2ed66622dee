"""Commands on laws and their runs: fit, laws, predict, compare, isoflop."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from moescale.cli.options import JSON, PLOT, command
from moescale.cli.output import HeldBack, answer, check_plot, made_with, say, show_progress, warn
from moescale.errors import InputError, located
from moescale.options.fields import at_option, path, refuse
from moescale.options.law import DEFAULT_LAW, PLANNED_SHAPE, ChosenLaw, InputOptions, PointOptions, in_shape
from moescale.options.runs import COLUMNS, FitOptions, HoldOutOptions, IsoflopOptions, PredictedOptions, RunOptions

if TYPE_CHECKING:
    from moescale.scaling_laws import Law


@command(
    "moescale fit examples/runs.csv -o law.toml",
    'moescale fit runs.csv --size-column n_params_active --where "tokens >= 5e9" --bootstrap 200',
    top="runs law where bootstrap prior size_column",
    then=" ".join(COLUMNS),
)
def fit(
    context: typer.Context,
    wanted: FitOptions,
    runs: RunOptions,
    inputs: InputOptions,
    output: Path | None = path("Write the law to this TOML file.", name="-o"),
    plot: Path | None = PLOT,
    json_: bool = JSON,
) -> None:
    """Fit a law to a table of runs."""
    from moescale.fitting.workflow import errors_on, fit_runs
    from moescale.io.files import check_target
    from moescale.scaling_laws import find_law, save_law
    from moescale.views.figures import fit_figure
    from moescale.views.terminal.fits import show_fit

    # All that can be refused is refused before the fit, which may take minutes.
    how = wanted.settings(inputs.inputs())
    if output is not None:
        with at_option("-o"):
            check_target(output, [runs.runs, wanted.prior])
    check_plot(plot)
    table = runs.read()
    with show_progress(not json_) as progress, at_option(table.source):
        found = fit_runs(table, wanted.law, how, progress=progress)
    errors = errors_on(table, {DEFAULT_LAW: find_law(DEFAULT_LAW), "own": found.law}, inputs.inputs())
    errors |= {} if found.held_out_error is None else {"held_out": found.held_out_error}
    held_back = HeldBack()
    if output is not None:
        made = made_with(context)
        origin = {"where": runs.where or "", "command": made.get("command", ""), **runs.choices()}
        origin["versions"] = f"moescale {made['moescale']}, {found.law.evidence['versions']}"
        origin |= {f"error_{name}": error for name, error in errors.items()}
        with held_back.writing(), at_option("-o"):
            save_law(found.named(output.stem, **origin), output)
    held_back.draw(plot, fit_figure, found.fit, found.runs)
    answer(json_, found.to_dict(), show_fit, found.fit, found.intervals, table.size_column, found.chosen, errors)
    if output is not None and not json_ and not held_back.errors:
        say(f"wrote {output}")
    warn(found.fit.warnings)
    held_back.tell()


@command("moescale laws --json")
def laws(json_: bool = JSON) -> None:
    """List the laws of the catalogue with their coefficients."""
    from moescale.scaling_laws import catalogue_names, find_law
    from moescale.views.terminal.fits import show_laws

    known = [find_law(name) for name in catalogue_names()]
    answer(json_, [law.summary() for law in known], show_laws, known)


@command(
    "moescale predict --n-params 567M --tokens 374B --experts 8",
    "moescale predict --law hoffmann2022 --n-params 7B --tokens 2T --json",
    'moescale predict --law law.toml --runs runs.csv --where "tokens >= 12e9"',
    top="n_params tokens runs law experts",
)
def predict(
    law: ChosenLaw, model: PointOptions, table: PredictedOptions, inputs: InputOptions, json_: bool = JSON
) -> None:
    """Predict the loss of one model, or of each model in a table."""
    import numpy as np

    from moescale.planning.rationale import unknown_range_notes
    from moescale.scaling_laws import predict as predict_loss
    from moescale.views.terminal.fits import show_prediction

    chosen = law.find_law()
    if table.runs is not None:
        _predict_table(chosen, model, table, table.runs, inputs, json_=json_)
        return
    n_params, tokens, experts = model.point()
    if law.law == DEFAULT_LAW:  # one model has one loss, here and in a plan
        chosen = in_shape(chosen, PLANNED_SHAPE)
    if not chosen.form.uses_experts and experts != 1:
        warn(f"{chosen.name} does not depend on the number of experts: --experts {experts:g} has no effect")
    with np.errstate(over="ignore"):  # told below
        predicted = predict_loss(chosen, n_params, tokens, experts, extra=inputs.inputs())
    if not math.isfinite(predicted.loss):
        raise InputError(
            f"{chosen.name} gives no finite loss at this size, tokens and experts",
            where="--law",
            next_step="stay closer to the fitted range, or use another law",
        )
    warn(note.rstrip(".") for note in unknown_range_notes(chosen))
    answer(json_, predicted.to_dict(), show_prediction, chosen, predicted)


def _predict_table(
    law: Law, model: PointOptions, table: PredictedOptions, path: Path, inputs: InputOptions, *, json_: bool
) -> None:
    from moescale.fitting.workflow import predict_runs
    from moescale.planning.rationale import unknown_range_notes
    from moescale.views.terminal.fits import show_predictions

    refuse(model, ("n_params", "tokens"), "each row of the table states it", "leave out this option or --runs")
    if table.size_column is None and isinstance(known := law.evidence.get("size_column"), str):
        table = replace(table, size_column=known)  # what the law's N is
    runs = table.read_from(path, needs_loss=False)
    with at_option(runs.source):
        predicted = predict_runs(law, runs, extra=inputs.inputs())
    answer(json_, [one.to_dict() for one in predicted], show_predictions, law, predicted, runs)
    if not law.form.uses_experts and (runs.experts != 1).any():
        warn(f"{law.name} does not depend on the number of experts, but the runs do")
    warn(note.rstrip(".") for note in unknown_range_notes(law))
    warn(runs.warnings)


@command(
    'moescale compare runs.csv --law yun2024 --law chinchilla --holdout "tokens >= 12e9"',
    'moescale compare runs.csv --law yun2024 --holdout "n_experts >= 16" --where "tokens >= 1B" --json',
    top="runs holdout law where size_column",
)
def compare(context: typer.Context, runs: HoldOutOptions, inputs: InputOptions, json_: bool = JSON) -> None:
    """Fit laws to part of the runs and test them on the held-out runs."""
    from moescale.fitting.remarks import unused_columns
    from moescale.fitting.workflow import compare_laws
    from moescale.io.filters import evaluate
    from moescale.scaling_laws import find_form
    from moescale.views.terminal.fits import show_comparison

    with located("--law"):
        forms = [find_form(name) for name in runs.law or ["yun2024"]]
    table = runs.read()
    with at_option("--holdout"):
        held_out = evaluate(runs.holdout, table.to_columns())[0]
    with show_progress(not json_) as progress, at_option(table.source):
        records = compare_laws(table, forms, held_out, extra=inputs.inputs(), progress=progress)
    name = Path(table.source).name
    made: dict[str, object] = {**made_with(context), "runs": name, "sha256": {name: table.sha256 or ""}}
    made |= {"holdout": runs.holdout} | ({"where": runs.where} if runs.where else {})
    answer(json_, [r.to_dict() | {"made_with": made} for r in records], show_comparison, records)
    warn(dict.fromkeys((*table.warnings, *(remark for form in forms for remark in unused_columns(form, table)))))


@command("moescale isoflop runs.csv", "moescale isoflop runs.csv --budget 1e24", top="runs where tolerance budget")
def isoflop(runs: IsoflopOptions, json_: bool = JSON) -> None:
    """Fit the exponents of loss-optimal N and D in FLOPs to runs at equal FLOPs."""
    from moescale.fitting.isoflop import isoflop as fit_parabolas
    from moescale.views.terminal.fits import show_isoflop

    table = runs.read()
    with at_option(table.source):
        found = fit_parabolas(table, tolerance=runs.tolerance)
    asked = {} if runs.budget is None else {"optima": [trend.optimum(runs.budget) for trend in found.trends]}
    answer(json_, found.to_dict() | asked, show_isoflop, found, runs.budget)
    warn([*table.warnings, *found.warnings])
