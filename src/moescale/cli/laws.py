"""Commands on laws and their runs: fit, laws, predict, compare."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from moescale.cli.options import (
    DEFAULT_LAW,
    MOST_PARAMETERS,
    MOST_REPLICATES,
    MOST_SEED,
    MOST_TOKENS,
    Granularity,
    HeldBack,
    Json,
    LawName,
    Plot,
    Sparsity,
    UniqueTokens,
    app,
    at_option,
    check_plot,
    checked_quantity,
    examples,
    file_option,
    given_inputs,
    made_with,
    named_law,
    number_option,
    print_json,
    show_progress,
    text_option,
    warn,
)
from moescale.errors import InputError

if TYPE_CHECKING:
    from moescale.runs.table import RunTable

Runs = Annotated[Path, file_option("RUNS", "Table of runs: CSV, TSV, Parquet or JSON lines.")]
Where = Annotated[str | None, text_option("--where", "Rows to keep, such as 'tokens / n_params_active >= 2'.", "EXPR")]
SizeColumn = Annotated[str | None, text_option("--size-column", "Column that is N; default n_params_dense.", "COL")]
TokensColumn = Annotated[str, text_option("--tokens-column", "Column that is D, the training tokens.", "COL")]
ExpertsColumn = Annotated[str, text_option("--experts-column", "Column that is E, 1 for a dense model.", "COL")]
LossColumn = Annotated[str, text_option("--loss-column", "Column that is the loss.", "COL")]


def read_table(runs: Path, where: str | None, **columns: str | None) -> RunTable:
    """The runs that `where` keeps, in the columns that the options name."""
    from moescale.runs.table import read_runs

    with at_option("--where"):
        return read_runs(runs, where=where, **columns)  # pyright: ignore[reportArgumentType]


@app.command(
    epilog=examples(
        "moescale fit examples/runs.csv -o law.toml",
        'moescale fit runs.csv --size-column n_params_active --where "tokens >= 5e9" --bootstrap 200',
    )
)
def fit(
    context: typer.Context,
    runs: Runs,
    law: Annotated[str, text_option("--law", "Form of the law, such as yun2024 or chinchilla.")] = "yun2024",
    where: Where = None,
    starts: Annotated[
        str, text_option("--starts", "auto, paper (all 810,000; a minute or more), or how many.")
    ] = "auto",
    free: Annotated[
        bool, Option("--free", help="Without the physical box: then the problem is ill-posed; to see that it is.")
    ] = False,
    bootstrap: Annotated[
        int, number_option("--bootstrap", "Replicates for 90% intervals; 0: none.", 0, MOST_REPLICATES, whole=True)
    ] = 0,
    cluster: Annotated[
        str | None,
        text_option("--cluster", "Column of what runs share, such as a trunk: the bootstrap draws it whole.", "COL"),
    ] = None,
    seed: Annotated[int, number_option("--seed", "Seed of the bootstrap.", 0, MOST_SEED, whole=True)] = 0,
    prior: Annotated[
        str | None,
        text_option("--prior", "Law to calibrate to these runs: what few runs cannot tell comes from it.", "LAW"),
    ] = None,
    fix: Annotated[
        str | None, text_option("--fix", "With --prior: parameters that stay at its values, by commas.", "NAMES")
    ] = None,
    size_column: SizeColumn = None,
    tokens_column: TokensColumn = "tokens",
    experts_column: ExpertsColumn = "n_experts",
    loss_column: LossColumn = "loss",
    family: Annotated[
        str | None,
        text_option("--family", "Family of the runs (yun2024, ludziejewski2025, dense); default: by columns."),
    ] = None,
    unique_tokens: UniqueTokens = None,
    granularity: Granularity = None,
    sparsity: Sparsity = None,
    output: Annotated[Path | None, file_option("-o", "Write the law to this TOML file.")] = None,
    plot: Plot = None,
    json_: Json = False,
) -> None:
    """Fit a law to a table of runs."""
    from moescale.fitting.workflow import FitSettings, fit_runs
    from moescale.io.files import check_target
    from moescale.models.family import find_family
    from moescale.scaling_laws import find_form, find_law, save_law

    # All that can be refused is refused before the fit, which may take minutes.
    with at_option("--prior"):
        known = None if prior is None else find_law(prior)
    with at_option("--law"):
        form = find_form(law) if known is None else known.form
    with at_option("--family"):
        named = None if family is None else find_family(family)
    how = FitSettings(
        starts=_starts(starts),
        free=free,
        extra=given_inputs(unique_tokens=unique_tokens, granularity=granularity, sparsity=sparsity),
        family=named,
        prior=known,
        fix=None if fix is None else tuple(name.strip() for name in fix.split(",") if name.strip()),
        bootstrap=bootstrap,
        cluster=cluster,
        seed=seed,
    )
    if output is not None:
        with at_option("-o"):
            check_target(output, [runs, prior])
    check_plot(plot)
    table = read_table(
        runs, where, size_column=size_column, tokens_column=tokens_column, experts_column=experts_column,
        loss_column=loss_column,
    )  # fmt: skip
    with show_progress(not json_) as progress, at_option(str(runs)):
        found = fit_runs(table, form, how, progress=progress)
    held_back = HeldBack()
    if output is not None:
        made = made_with(context)
        how_made = {
            "where": where or "",
            "prior": prior or "",
            "command": made.get("command", ""),
            "versions": f"moescale {made['moescale']}, {found.law.evidence['versions']}",
        }
        with held_back, at_option("-o"):
            save_law(found.named(output.stem, **how_made), output)
    if plot is not None:
        from moescale.views.figures import fit_figure, save_figure

        with held_back:
            save_figure(fit_figure(found.fit, found.runs), plot)
    if json_:
        print_json(found.to_dict())
    else:
        from moescale.views.terminal import show_fit, terminal

        show_fit(terminal(), found.fit, found.intervals)
        if output is not None and not held_back.errors:
            sys.stderr.write(f"wrote {output}\n")
    warn(found.fit.warnings)
    held_back.tell()


def _starts(text: str) -> str | int:
    if text in ("auto", "paper"):
        return text
    try:
        return int(checked_quantity("--starts", text, 1, MOST_REPLICATES, whole=True))
    except InputError as error:
        raise InputError(
            f"{text!r} is not a way to start", where="--starts", next_step=f"auto, paper, or 1 to {MOST_REPLICATES}"
        ) from error


@app.command(epilog=examples("moescale laws --json"))
def laws(json_: Json = False) -> None:
    """List the coefficient sets that plan and predict know."""
    from moescale.scaling_laws import catalogue_names, find_law

    known = [find_law(name) for name in catalogue_names()]
    if json_:
        print_json([law.summary() for law in known])
        return
    from moescale.views.terminal import show_laws, terminal

    show_laws(terminal(), known)


@app.command(
    epilog=examples(
        "moescale predict --n-params 567M --tokens 374B --experts 8",
        "moescale predict --law hoffmann2022 --n-params 7B --tokens 2T --json",
    )
)
def predict(
    n_params: Annotated[
        float,
        number_option(
            "--n-params", "Size N as the law counts it, such as 1.5B.", most=MOST_PARAMETERS, unit="parameters"
        ),
    ],
    tokens: Annotated[
        float, number_option("--tokens", "Training tokens D, such as 300B.", most=MOST_TOKENS, unit="tokens")
    ],
    law: LawName = DEFAULT_LAW,
    experts: Annotated[int, number_option("--experts", "Experts E of a layer; 1 is dense.", whole=True)] = 1,
    unique_tokens: UniqueTokens = None,
    granularity: Granularity = None,
    sparsity: Sparsity = None,
    json_: Json = False,
) -> None:
    """Predict the loss of one model."""
    import numpy as np

    from moescale.scaling_laws import predict as predict_loss

    chosen = named_law(law)
    if not chosen.form.uses_experts and experts != 1:
        warn([f"{chosen.name} has no term in the number of experts: --experts {experts:g} changes nothing"])
    extra = given_inputs(unique_tokens=unique_tokens, granularity=granularity, sparsity=sparsity)
    with np.errstate(over="ignore"):  # told below
        predicted = predict_loss(chosen, n_params, tokens, experts, extra=extra)
    if not math.isfinite(predicted.loss):
        raise InputError(
            f"{chosen.name} gives no finite loss at this size, tokens and experts",
            where="--law",
            next_step="stay nearer to the range that it was fitted on, or take another law",
        )
    from moescale.planning.rationale import unknown_range_notes

    warn([note.rstrip(".") for note in unknown_range_notes(chosen)])
    if json_:
        print_json(predicted.to_dict())
        return
    from moescale.views.terminal import show_prediction, terminal

    show_prediction(terminal(), chosen, predicted)


@app.command(
    epilog=examples(
        'moescale compare runs.csv --law yun2024 --law chinchilla --holdout "tokens >= 12e9"',
        'moescale compare runs.csv --law yun2024 --holdout "n_experts >= 16" --where "tokens >= 1B" --json',
    )
)
def compare(
    context: typer.Context,
    runs: Runs,
    holdout: Annotated[str, text_option("--holdout", "Rows to predict, not fit, such as 'tokens >= 12e9'.", "EXPR")],
    law: Annotated[list[str] | None, text_option("--law", "Form of a law; repeat it to compare several.")] = None,
    where: Annotated[str | None, text_option("--where", "Rows to use at all.", "EXPR")] = None,
    size_column: SizeColumn = None,
    tokens_column: TokensColumn = "tokens",
    experts_column: ExpertsColumn = "n_experts",
    loss_column: LossColumn = "loss",
    unique_tokens: UniqueTokens = None,
    granularity: Granularity = None,
    sparsity: Sparsity = None,
    plot: Plot = None,
    json_: Json = False,
) -> None:
    """Fit laws to some runs and test them on the others."""
    from moescale.fitting.workflow import compare_laws
    from moescale.io.filters import evaluate
    from moescale.scaling_laws import find_form

    check_plot(plot)
    with at_option("--law"):
        forms = [find_form(name) for name in law or ["yun2024"]]
    table = read_table(
        runs, where, size_column=size_column, tokens_column=tokens_column, experts_column=experts_column,
        loss_column=loss_column,
    )  # fmt: skip
    with at_option("--holdout"):
        held_out = evaluate(holdout, table.to_columns())
    given = given_inputs(unique_tokens=unique_tokens, granularity=granularity, sparsity=sparsity)
    with show_progress(not json_) as progress, at_option(str(runs)):
        records = compare_laws(table, forms, held_out, extra=given, progress=progress)
    held_back = HeldBack()
    if plot is not None:
        from moescale.views.figures import comparison_figure, save_figure

        with held_back:
            save_figure(comparison_figure(records), plot)
    if json_:
        made: dict[str, object] = {**made_with(context), "runs": runs.name, "sha256": {runs.name: table.sha256 or ""}}
        made |= {"holdout": holdout} | ({"where": where} if where else {})
        print_json([r.to_dict() | {"held_out": r.runs_to_dict(), "made_with": made} for r in records])
    else:
        from moescale.views.terminal import show_comparison, terminal

        show_comparison(terminal(), records)
    warn(table.warnings)
    held_back.tell()
