"""Commands on laws and their runs: fit, laws, predict, compare, isoflop; and on the paper's claims: reproduce."""

from __future__ import annotations

import math
from dataclasses import MISSING, fields, replace
from pathlib import Path

import typer

from moescale.bounds import DRAWS, FLOPS, PARAMETERS, SEED, TOKENS, Bound
from moescale.cli.options import JSON, PLOT, command
from moescale.cli.output import answer, held_back, made_with, say, show_progress, tell, warn
from moescale.errors import InputError, located
from moescale.options.fields import at_option, path, quantity, refuse, text, within
from moescale.options.law import (
    DEFAULT_LAW,
    LAW,
    PAPER_LAW,
    PLANNED_SHAPE,
    ChosenLaw,
    InputOptions,
    TableOptions,
    in_shape,
)
from moescale.options.reproduction import TODAY, ReproductionOptions

RUNS = path("Table of runs: CSV, TSV, Parquet or JSON lines.", name="RUNS", default=MISSING)
STARTS = within(Bound(1, DRAWS.most, whole=True))


@command(
    "moescale fit examples/runs.csv -o law.toml",
    'moescale fit runs.csv --size-column n_params_active --where "tokens >= 5e9" --bootstrap 200',
    top="runs law where bootstrap prior size_column",
)
def fit(
    context: typer.Context,
    table: TableOptions,
    inputs: InputOptions,
    runs: Path = RUNS,
    law: str = text("Form of the law; auto: the best forms by inner hold-outs.", default="auto"),
    starts: str = text("Starting points: auto, paper (810,000), or a number.", default="auto", panel="Fit"),
    bootstrap: int = quantity("Bootstrap replicates for 90% intervals; 0: no intervals.", DRAWS, default=0),
    seed: int = quantity("Seed of the bootstrap.", SEED, default=0, panel="Fit"),
    prior: str | None = text("Law whose prior fills in what runs do not determine, as pooled2026.", metavar="LAW"),
    family: str | None = text("Family of the runs, such as yun2024 or dense; default: by the columns.", panel="Fit"),
    output: Path | None = path("Write the law to this TOML file.", name="-o"),
    plot: Path | None = PLOT,
    json_: bool = JSON,
) -> None:
    """Fit a law to a table of runs."""
    from moescale.fitting.workflow import FitSettings, errors_on, fit_runs
    from moescale.io.files import check_target
    from moescale.models.coordinates import expansion
    from moescale.models.family import find_family
    from moescale.scaling_laws import find_form, find_law, save_law
    from moescale.views.figures import check_plot, fit_figure, save_figure
    from moescale.views.terminal.fits import show_fit

    # All that can be refused is refused before the fit, which may take minutes.
    n_starts = starts if starts in ("auto", "paper") else int(STARTS.parse(starts, "--starts"))
    how = FitSettings(starts=n_starts, extra=inputs.inputs(), bootstrap=bootstrap, seed=seed)
    with located("--prior"):
        how = replace(how, prior=None if prior is None else find_law(prior))
    with located("--law"):
        if law != "auto":
            find_form(law)
    with located("--family"):
        how = replace(how, family=None if family is None else find_family(family))
    if output is not None:
        with at_option("-o"):
            check_target(output, [runs, prior])
    with at_option("--plot"):
        if plot is not None:
            check_plot(plot)
    read = table.read(runs)
    with show_progress(not json_) as progress, at_option(read.source):
        found = fit_runs(read, law, how, progress=progress)
    errors = errors_on(read, {DEFAULT_LAW: find_law(DEFAULT_LAW), "own": found.law}, inputs.inputs())
    errors |= {} if found.held_out_error is None else {"held_out": found.held_out_error}
    unwritten = list[InputError]()
    if output is not None:
        made = made_with(context)
        kept = {name: True for name in ("best_of", "last_point") if getattr(table, name)}
        origin = {"where": table.where or "", "command": made["command"], **kept}
        origin["versions"] = f"moescale {made['moescale']}, {found.law.evidence['versions']}"
        origin |= {f"error_{name}": error for name, error in errors.items()}
        with held_back(unwritten), at_option("-o"):
            save_law(found.named(output.stem, **origin), output)
    if plot is not None:
        with held_back(unwritten):
            save_figure(fit_figure(found.fit, found.runs), plot)
    most_x = found.law.max_experts and float(expansion(found.law.family, found.law.max_experts))
    answer(json_, found.to_dict(), show_fit, found.fit, found.intervals, read.size_column, found.chosen, errors, most_x)
    if output is not None and not json_ and not unwritten:
        say(f"wrote {output}")
    warn(found.fit.warnings)
    tell(unwritten)


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
    law: ChosenLaw,
    table: TableOptions,
    inputs: InputOptions,
    n_params: float | None = quantity("Parameters N, as the law counts them, such as 1.5B.", PARAMETERS),
    tokens: float | None = quantity("Training tokens D, such as 300B.", TOKENS),
    experts: float = quantity("Experts E per layer; 1 is dense.", default=1),
    runs: Path | None = path("Table of runs to predict; losses may be missing."),
    shape: str | None = text("Shape of N and E, as of `plan`; default: mixtral under pooled2026, else the law's."),
    json_: bool = JSON,
) -> None:
    """Predict the loss of one model, or of each model in a table."""
    import numpy as np

    from moescale.fitting.workflow import predict_runs
    from moescale.planning.rationale import unknown_range_notes
    from moescale.planning.search import fitted_up_to
    from moescale.scaling_laws import predict as predict_loss
    from moescale.scaling_laws.ensemble import MODEL_INPUTS
    from moescale.views.terminal.fits import show_prediction, show_predictions

    chosen = law.find_law()
    if runs is not None:
        of_row = {"--n-params": n_params, "--tokens": tokens, "--experts": experts, "--shape": shape}
        for option, stated in of_row.items():
            if stated not in (None, 1):
                what, next_step = "each row of the table states it", "leave out this option or --runs"
                raise InputError(what, where=option, next_step=next_step)
        if table.size_column is None and isinstance(known := chosen.evidence.get("size_column"), str):
            table = replace(table, size_column=known)  # what the law's N is
        read = table.read(runs, needs_loss=False)
        with at_option(read.source):
            each = predict_runs(chosen, read, extra=inputs.inputs())
        answer(json_, [one.to_dict() for one in each], show_predictions, chosen, each, read)
        if not chosen.form.uses_experts and (read.experts != 1).any():
            warn(f"{chosen.name} does not depend on the number of experts, but the runs do")
        warn(note.rstrip(".") for note in unknown_range_notes(chosen))
        warn(read.warnings)
        return
    if n_params is None or tokens is None:
        where = "--n-params" if n_params is None else "--tokens"
        next_step = "give --n-params and --tokens of one model, or --runs with a table of many"
        raise InputError("is missing", where=where, next_step=next_step)
    refuse(table, [field.name for field in fields(table)], "is of a table of models", "give --runs, or leave it out")
    if shape is not None or law.law == DEFAULT_LAW:  # one model has one loss, here and in a plan
        chosen = in_shape(chosen, shape or PLANNED_SHAPE)
    of_active = chosen.evidence.get("size_column") == "n_params_active" and MODEL_INPUTS[0] in chosen.form.extra_inputs
    if of_active and experts > 1:
        warn(f"--n-params is dense-equivalent, as N of a plan, and not active as in the runs of {chosen.name}")
    if not chosen.form.uses_experts and experts != 1:
        warn(f"{chosen.name} does not depend on the number of experts: --experts {experts:g} has no effect")
    with np.errstate(over="ignore"):  # told below
        predicted = predict_loss(chosen, n_params, tokens, experts, extra=inputs.inputs())
    if chosen.form.uses_experts and not chosen.allows(experts):
        warn(f"{chosen.name} {fitted_up_to(chosen)}, and a plan would not recommend {experts:g}")
    if not math.isfinite(predicted.loss):
        what = f"{chosen.name} gives no finite loss at this size, tokens and experts"
        raise InputError(what, where="--law", next_step="stay closer to the fitted range, or use another law")
    warn(note.rstrip(".") for note in unknown_range_notes(chosen))
    answer(json_, predicted.to_dict(), show_prediction, chosen, predicted)


@command(
    'moescale compare runs.csv --law yun2024 --law chinchilla --holdout "tokens >= 12e9"',
    'moescale compare runs.csv --law yun2024 --holdout "n_experts >= 16" --where "tokens >= 1B" --json',
    top="runs holdout law where size_column",
)
def compare(
    context: typer.Context,
    table: TableOptions,
    inputs: InputOptions,
    runs: Path = RUNS,
    holdout: str = text("Rows to hold out, such as 'tokens >= 12e9'.", default=MISSING, metavar="EXPR"),
    law: list[str] | None = text("Form of a law; repeat to compare several; default: yun2024."),
    json_: bool = JSON,
) -> None:
    """Fit laws to part of the runs and test them on the held-out runs."""
    from moescale.fitting.fit import unused_columns
    from moescale.fitting.workflow import compare_laws
    from moescale.io.filters import evaluate
    from moescale.scaling_laws import find_form
    from moescale.views.terminal.fits import show_comparison

    with located("--law"):
        forms = [find_form(name) for name in law or ["yun2024"]]
    read = table.read(runs)
    with at_option("--holdout"):
        held_out = evaluate(holdout, read.to_columns())[0]
    with show_progress(not json_) as progress, at_option(read.source):
        records = compare_laws(read, forms, held_out, extra=inputs.inputs(), progress=progress)
    name = Path(read.source).name
    made = {**made_with(context), "runs": name, "sha256": {name: read.sha256 or ""}, "holdout": holdout}
    made |= {"where": table.where} if table.where else {}
    answer(json_, [r.to_dict() | {"made_with": made} for r in records], show_comparison, records)
    warn(dict.fromkeys((*read.warnings, *(remark for form in forms for remark in unused_columns(form, read)))))


@command("moescale isoflop runs.csv", "moescale isoflop runs.csv --budget 1e24", top="runs where tolerance budget")
def isoflop(
    table: TableOptions,
    runs: Path = RUNS,
    tolerance: float = quantity("Relative difference of FLOPs (6 N D) within one budget.", 0, 0.99, default=0.05),
    budget: float | None = quantity("FLOPs to state the optimum of, by the trends.", FLOPS),
    json_: bool = JSON,
) -> None:
    """Fit the exponents of loss-optimal N and D in FLOPs to runs at equal FLOPs."""
    import numpy as np

    from moescale.fitting.isoflop import isoflop as fit_parabolas
    from moescale.views.terminal.fits import show_isoflop

    read = table.read(runs)
    active = read.columns.get("n_params_active")
    if table.size_column is None and active is not None and not np.allclose(active, read.n_params, rtol=0.01):
        warn("FLOPs are 6 N D of dense-equivalent N; --size-column n_params_active counts what a token meets")
    with at_option(read.source):
        found = fit_parabolas(read, tolerance=tolerance)
    asked = {} if budget is None else {"optima": [trend.optimum(budget) for trend in found.trends]}
    answer(json_, found.to_dict() | asked, show_isoflop, found, budget)
    warn([*read.warnings, *found.warnings])


@command(
    "moescale reproduce --summary",
    "moescale reproduce --server today --summary --json",
    "moescale reproduce --max-num-seqs 256 --memory-fraction 0.8",
    "moescale reproduce --figure 4",
    top="server summary figure folder law convention moe_execution prompt output max_num_seqs",
)
def reproduce(wanted: ReproductionOptions, law: str = text(LAW, default=PAPER_LAW), json_: bool = JSON) -> None:
    """Recompute every claim of the paper: its value, ours with an interval, and whether it holds."""
    from moescale.models.family import with_convention
    from moescale.reproduction.evaluate import reproduce as evaluate
    from moescale.reproduction.evaluate import score
    from moescale.reproduction.figures import FIGURES, VERDICT, check_figure, check_folder, drawn, publish
    from moescale.reproduction.tables import show_outcomes, show_score
    from moescale.reproduction.world import of_the_papers_models, world_of

    chosen, folder = ChosenLaw(law=law).find_law(), wanted.folder
    if wanted.convention is not None:
        with at_option("--convention"):
            chosen = replace(chosen, family=with_convention(chosen.family, wanted.convention))
    if wanted.figure is not None:
        with at_option("--figure"):
            check_figure(wanted.figure)
        folder = folder or Path(".")
    if folder is not None:
        with located("-o"):
            check_folder(folder)
    costs = wanted.costs(remark=warn)
    unwritten = list[InputError]()
    one_paper_figure = wanted.figure is not None and wanted.figure != VERDICT
    with at_option("--law"):
        outcomes = () if one_paper_figure else evaluate(chosen, costs)
        if folder is not None:
            names = (*FIGURES, VERDICT) if wanted.figure is None else (wanted.figure,)
            # Today's server beside this one in the figure of the verdict.
            outcomes_today = evaluate(chosen, ReproductionOptions(server=TODAY).costs()) if VERDICT in names else ()
            world = world_of(of_the_papers_models(chosen), costs)
            with held_back(unwritten), at_option("-o"):
                shown = None if wanted.figure is not None else outcomes
                written = publish(folder, drawn(names, world, outcomes, outcomes_today), shown)
                if wanted.figure is not None:
                    print("\n".join(str(path) for path in written))
    if wanted.figure is None:
        found = score(outcomes)
        record = {"server": wanted.server, **found.to_dict()} if wanted.summary else [o.to_dict() for o in outcomes]
        answer(json_, record, show_score if wanted.summary else show_outcomes, outcomes, found, wanted.server)
    tell(unwritten)
