"""Fits, laws, comparisons of laws and predictions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from moescale.scaling_laws.law import INPUT_NAMES
from moescale.units import expert_label, format_count, format_flops, format_seconds, plural
from moescale.views.tables import Column, Table, range_text, span_text
from moescale.views.tables.fit import comparison_table, fit_remarks, optima_table, parameter_table, run_prediction_table
from moescale.views.terminal.text import write_line, write_paragraph, write_table

if TYPE_CHECKING:
    from rich.console import Console

    from moescale.fitting.auto import Chosen
    from moescale.fitting.fit import Fit
    from moescale.fitting.holdout import HoldOut
    from moescale.fitting.isoflop import IsoFlop
    from moescale.runs.table import RunTable
    from moescale.scaling_laws.law import Law, Prediction


def show_fit(
    console: Console, found: Fit, intervals: dict[str, tuple[float, float]] | None, size_column: str = ""
) -> None:
    """The optimum of a fit: its error, its parameters, remarks; N is called by the column of the sizes."""
    write_paragraph(console, found.form.equation, lead=found.form.title)
    write_paragraph(
        console,
        f"{found.n_runs} runs, RMSLE {found.rmsle:.4g} (robust {found.mad:.4g}), mean Huber {found.huber:.4g}, "
        f"{found.starts_at_optimum} of {found.starts} starts at the optimum",
    )
    write_line(console, f"fitted in {format_seconds(found.seconds)}")
    write_table(console, parameter_table(found.form, found.parameters, intervals, fit_remarks(found)))
    write_line(console)
    write_paragraph(console, f"Fitted on {range_text(found.fit_range, found.form, size_column)}.")


def show_chosen(console: Console, chosen: Sequence[Chosen]) -> None:
    """The forms of an ensemble with their weights and scores; nothing for a single form."""
    if len(chosen) < 2:
        return
    columns = (Column("form"), Column("weight"), Column("held-out RMSLE"))
    rows = tuple((c.law, f"{c.weight:.2f}", "unknown" if c.score is None else f"{c.score:.4f}") for c in chosen)
    write_table(console, Table("Forms of the fitted law (weighted average, by inner hold-outs)", columns, rows))
    write_line(console)
    write_paragraph(console, f"Form with the largest weight: {chosen[0].law}")


def show_isoflop(console: Console, found: IsoFlop, budget: float | None = None) -> None:
    """The loss-optimal model of each budget, the exponents of each expert count with their 90% intervals, and the optimum of `budget`."""
    write_table(console, optima_table(found))
    columns = (
        Column("experts"),
        Column("a (N ~ C^a)"),
        Column("90% interval", rank=1),
        Column("b (D ~ C^b)"),
        Column("90% interval", rank=1),
        Column("budgets used"),
        Column("FLOPs", rank=2),
    )
    rows = tuple(
        (
            f"{t.experts:g}",
            f"{t.n_params.exponent:.3f}",
            span_text(t.n_params.interval, ".3f"),
            f"{t.tokens.exponent:.3f}",
            span_text(t.tokens.interval, ".3f"),
            f"{t.n_params.n_points} of {sum(p.experts == t.experts for p in found.budgets)}",
            " to ".join(format_flops(c) for c in t.flops_range),
        )
        for t in found.trends
    )
    write_table(console, Table("Exponents of loss-optimal N and D in FLOPs C", columns, rows))
    for best in [] if budget is None else [trend.optimum(budget) for trend in found.trends]:
        beyond = f"; {best['extrapolation']:.3g} times beyond the runs" if best["extrapolation"] > 1.0 else ""
        sizes = f"N = {format_count(best['n_params'])}, D = {format_count(best['tokens'])}"
        write_paragraph(
            console, f"{sizes}{beyond}.", lead=f"{expert_label(best['experts'])} at {format_flops(budget or 0.0)} FLOPs"
        )


def show_laws(console: Console, laws: Sequence[Law]) -> None:
    """The catalogue of coefficient sets, a paragraph each."""
    for law in laws:
        family = law.family
        spacing = "every layer" if family.moe_every == 1 else f"every {family.moe_every} layers"
        models = f"top-{family.top_k}, experts {spacing}" if law.form.uses_experts else "dense models"
        write_line(console, f"{law.name}  ({law.form.name}; {models})", bold=len(law.name))
        write_paragraph(console, f"{law.source}.", indent=2)
        if law.members:
            write_paragraph(console, ", ".join(f"{m.weight:.0%} {m.law.name}" for m in law.members), indent=2)
        else:
            write_paragraph(console, ", ".join(f"{k} {v:.4g}" for k, v in law.parameters.items()), indent=2)
        if law.fit_range:
            write_paragraph(console, f"Fitted on {range_text(law.fit_range, law.form)}.", indent=2)
        write_line(console)
    for form in {law.form.name: law.form for law in laws}.values():
        write_paragraph(console, form.equation, lead=form.name, indent=2, first="")


def show_comparison(console: Console, records: Sequence[HoldOut]) -> None:
    """How each law predicts the runs that it was not fitted on, best first."""
    write_table(console, comparison_table(records))


def show_predictions(console: Console, law: Law, predicted: Sequence[Prediction], runs: RunTable) -> None:
    """Predicted and measured losses of each run of a table, and their error."""
    from moescale.fitting.holdout import score

    write_table(console, run_prediction_table(predicted, runs))
    write_line(console)
    if (found := score(predicted, runs.loss)) is not None:
        held = "" if found.coverage is None else f", {100 * found.coverage:.0f}% within the 90% interval"
        errors = f"RMSLE {found.rmsle:.4g}, bias {100 * found.bias:+.2f}%{held}"
        write_paragraph(console, f"{plural(found.n_runs, 'measured run')}: {errors}.")
    beyond = sum(bool(one.extrapolation) for one in predicted)
    if beyond:
        write_paragraph(console, f"{beyond} of {plural(len(predicted), 'run')} outside the fitted range of the law.")
    write_paragraph(console, f"law {law.name}: {law.source}")


def show_prediction(console: Console, law: Law, predicted: Prediction) -> None:
    """A predicted loss and how far to trust it."""
    text = f"loss {predicted.loss:.4f} nats per token"
    if predicted.interval:
        of = "for a new run" if law.run_noise or law.drift else "over the law's draws"
        text += f"  (90% interval {of}: {predicted.interval[0]:.4f} to {predicted.interval[1]:.4f})"
    write_line(console, text, bold=len(f"loss {predicted.loss:.4f}"))
    for name, factor in predicted.extrapolation.items():
        end = "largest" if factor > 1 else "smallest"
        label = INPUT_NAMES.get(name, name)
        write_line(console, f"extrapolated: {label} {factor:.3g} times the {end} fitted")
    write_paragraph(console, f"law {law.name}: {law.source}")
