"""Fits, laws, comparisons of laws and predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from rich.console import Console

from moescale.fitting.auto import Chosen
from moescale.fitting.fit import Fit
from moescale.fitting.isoflop import IsoFlop, Minimum, Parabola, Trend
from moescale.fitting.workflow import HoldOut, score
from moescale.runs.table import RunTable
from moescale.scaling_laws.form import Parameter
from moescale.scaling_laws.law import INPUT_NAMES, Law, Prediction
from moescale.units import expert_label, format_count, format_flops, format_seconds, plural
from moescale.views.tables import Cell, Column, Table, range_text, span_text, table_of
from moescale.views.terminal.text import write_line, write_paragraph, write_table

MOST_BIAS = 1.0  # of the spread around it: a larger bias is explained
PREDICTION_ROWS = 40


def show_fit(
    console: Console,
    found: Fit,
    intervals: dict[str, tuple[float, float]] | None,
    size_column: str = "",
    chosen: Sequence[Chosen] = (),
    errors: Mapping[str, float] | None = None,
    most_x: float | None = None,
) -> None:
    """The optimum of a fit: its error, its parameters, remarks, the most expansion; N is called by the column of the sizes.

    Of an ensemble first the `chosen` forms with their weights and scores.
    """
    if len(chosen) > 1:
        columns = (Column("form"), Column("weight"), Column("held-out RMSLE"))
        rows = tuple((c.law, f"{c.weight:.2f}", "unknown" if c.score is None else f"{c.score:.4f}") for c in chosen)
        write_table(console, Table("Forms of the fitted law (weighted average, by inner hold-outs)", columns, rows))
        write_line(console)
        write_paragraph(console, f"Form with the largest weight: {chosen[0].law}")
    write_paragraph(console, found.form.equation, lead=found.form.title)
    write_paragraph(
        console,
        f"{found.n_runs} runs, RMSLE {found.rmsle:.4g} (robust {found.mad:.4g}), mean Huber {found.huber:.4g}, "
        f"{found.starts_at_optimum} of {found.starts} starts at the optimum",
    )
    write_line(console, f"fitted in {format_seconds(found.seconds)}")
    remarks = {name: "not identified" for name in found.not_identified}
    remarks |= {name: "on a bound" for name in found.at_bound}
    cells: tuple[Cell[Parameter], ...] = (
        (Column("parameter", text=True), lambda p: p.name),
        (Column("value"), lambda p: f"{found.parameters[p.name]:.5g}"),
        (Column("90% interval", rank=1), lambda p: span_text((intervals or {}).get(p.name))),
        (Column("remark", text=True, rank=1), lambda p: remarks.get(p.name, "")),
        (Column("meaning", text=True, rank=2), lambda p: p.meaning),
    )
    write_table(console, table_of("", found.form.parameters, cells))
    write_line(console)
    reach = "" if most_x is None or found.form.of_models else f"; X up to {most_x:.3g}"
    write_paragraph(console, f"Fitted on {range_text(found.fit_range, found.form, size_column)}{reach}.")
    known = dict(errors or {})
    held_out = known.pop("held_out", None)
    if told := [f"{100 * error:.2g}% of {'this law' if name == 'own' else name}" for name, error in known.items()]:
        inner = "" if held_out is None else f"; {100 * held_out:.2g}% of this law on inner hold-outs, with their bias"
        write_paragraph(console, f"Error on these runs around the bias: {', '.join(told)}{inner}.")


def show_isoflop(console: Console, found: IsoFlop, budget: float | None = None) -> None:
    """The loss-optimal model of each budget, the exponents of each expert count with their 90% intervals, and the optimum of `budget`."""
    optima = [(p, p.minimum) for p in found.budgets if p.minimum is not None]
    more = len(optima) - PREDICTION_ROWS
    title = f" (the first {PREDICTION_ROWS}; {more:,} more with --json)" if more > 0 else ""
    of_budgets: tuple[Cell[tuple[Parabola, Minimum]], ...] = (
        (Column("experts"), lambda o: f"{o[0].experts:g}"),
        (Column("FLOPs"), lambda o: format_flops(o[0].flops)),
        (Column("N"), lambda o: format_count(o[1].n_params)),
        (Column("tokens"), lambda o: format_count(o[1].tokens)),
        (Column("tokens per parameter"), lambda o: format_count(o[1].tokens / o[1].n_params)),
        (Column("loss"), lambda o: f"{o[1].loss:.4f}"),
        (Column("runs", rank=1), lambda o: f"{o[0].sizes.size}"),
    )
    write_table(console, table_of(f"Loss-optimal model of each budget{title}", optima[:PREDICTION_ROWS], of_budgets))
    counts = [p.experts for p in found.budgets]
    of_trends: tuple[Cell[Trend], ...] = (
        (Column("experts"), lambda t: f"{t.experts:g}"),
        (Column("a (N ~ C^a)"), lambda t: f"{t.n_params.exponent:.3f}"),
        (Column("90% interval", rank=1), lambda t: span_text(t.n_params.interval, ".3f")),
        (Column("b (D ~ C^b)"), lambda t: f"{t.tokens.exponent:.3f}"),
        (Column("90% interval", rank=1), lambda t: span_text(t.tokens.interval, ".3f")),
        (Column("budgets used"), lambda t: f"{t.n_params.n_points} of {counts.count(t.experts)}"),
        (Column("FLOPs", rank=2), lambda t: " to ".join(format_flops(c) for c in t.flops_range)),
    )
    write_table(console, table_of("Exponents of loss-optimal N and D in FLOPs C", found.trends, of_trends))
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
        by = [name for name in ("granularity", "sparsity", "activated_experts") if name in law.form.extra_inputs]
        by = by if law.form.implied_inputs or by != ["sparsity"] else []  # else of single weights
        models = f"MoE models by {', '.join(by)}" if by and not law.form.uses_experts else models
        write_line(console, f"{law.name}  ({law.form.name}; {models})", bold=len(law.name))
        write_paragraph(console, f"{law.source}.", indent=2)
        parts = [f"{m.weight:.0%} {m.law.name}" for m in law.members]
        parts = parts or [f"{name} {value:.4g}" for name, value in law.parameters.items()]
        write_paragraph(console, ", ".join(parts), indent=2)
        if law.fit_range:
            write_paragraph(console, f"Fitted on {range_text(law.fit_range, law.form)}.", indent=2)
        write_line(console)
    for form in {law.form.name: law.form for law in laws}.values():
        write_paragraph(console, form.equation, lead=form.name, indent=2, first="")


def show_comparison(console: Console, records: Sequence[HoldOut]) -> None:
    """How each law predicts the runs that it was not fitted on, best first."""
    cells: tuple[Cell[HoldOut], ...] = (
        (Column("law", text=True), lambda r: r.law),
        (Column("parameters"), lambda r: f"{r.parameters}"),
        (Column("fitted runs"), lambda r: f"{r.n_train}"),
        (Column("RMSLE"), lambda r: f"{r.rmsle_train * 1e3:.2f}e-3"),
        (Column("held-out runs"), lambda r: f"{r.n_holdout}"),
        (Column("held-out RMSLE"), lambda r: f"{r.rmsle_holdout * 1e3:.2f}e-3"),
        (Column("held-out bias"), lambda r: f"{r.bias_holdout * 1e3:+.2f}e-3"),
    )
    best_first = sorted(records, key=lambda r: r.rmsle_holdout)
    write_table(console, table_of("Error of ln L on fitted and held-out runs", best_first, cells))


def show_predictions(console: Console, law: Law, predicted: Sequence[Prediction], runs: RunTable) -> None:
    """Predicted and measured losses of each run of a table, and their error."""
    more, known = len(runs) - PREDICTION_ROWS, ~np.isnan(runs.loss)
    title = f" (the first {PREDICTION_ROWS}; {more:,} more with --json)" if more > 0 else ""
    error = np.log([one.loss for one in predicted] / runs.loss)
    cells: tuple[Cell[int], ...] = (
        (Column("row"), lambda i: f"{runs.row_numbers[i]}"),
        (Column("N"), lambda i: format_count(float(runs.n_params[i]))),
        (Column("D"), lambda i: format_count(float(runs.tokens[i]))),
        (Column("E"), lambda i: f"{runs.experts[i]:g}"),
        (Column("predicted"), lambda i: f"{predicted[i].loss:.4f}"),
        (Column("90% interval", rank=1), lambda i: span_text(predicted[i].interval, ".4f")),
        (Column("measured", rank=3), lambda i: f"{runs.loss[i]:.4f}" if known[i] else ""),
        (Column("residual", rank=2), lambda i: f"{100 * error[i]:+.2f}%" if known[i] else ""),
    )
    shown = range(min(len(runs), PREDICTION_ROWS))
    write_table(console, table_of(f"Predicted and measured losses{title}", shown, cells))
    write_line(console)
    if (found := score(predicted, runs.loss)) is not None:
        held = "" if found.coverage is None else f", {100 * found.coverage:.0f}% within the 90% interval"
        bias = f"bias {100 * found.bias:+.2f}%, {100 * found.around:.2f}% around the bias"
        errors = f"RMSLE {found.rmsle:.4g}, {bias}{held}"
        if abs(found.bias) > MOST_BIAS * found.around:
            errors += ". A bias that is the same for all runs, as of another tokenizer or text, changes no choice between models; one that grows with size or tokens does"
        write_paragraph(console, f"{plural(found.n_runs, 'measured run')}: {errors}.")
    if beyond := sum(bool(one.extrapolation) for one in predicted):
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
        write_line(console, f"extrapolated: {INPUT_NAMES.get(name, name)} {factor:.3g} times the {end} fitted")
    write_paragraph(console, f"law {law.name}, models in the shape of {law.family.name}: {law.source}")
