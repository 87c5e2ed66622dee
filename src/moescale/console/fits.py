"""Fits, laws, comparisons of laws and predictions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from moescale.console.text import Column, span_text, write_line, write_paragraph, write_table
from moescale.units import format_count, format_seconds

if TYPE_CHECKING:
    from rich.console import Console

    from moescale.fitting import Fit
    from moescale.laws.law import Law, Prediction
    from moescale.validation import HoldOut


def show_fit(console: Console, found: Fit, intervals: dict[str, tuple[float, float]] | None) -> None:
    """The optimum of a fit: how good it is, its parameters, what to mind."""
    write_paragraph(console, found.form.equation, lead=found.form.title)
    write_paragraph(
        console,
        f"{found.n_runs} runs, RMSLE {found.rmsle:.4g}, mean Huber {found.huber:.4g}, "
        f"{found.starts_at_optimum} of {found.starts} starts at the optimum",
    )
    write_line(console, f"fitted in {format_seconds(found.seconds)}")
    remarks = {name: "on a bound" for name in found.at_bound}
    remarks |= {name: "not identified" for name in found.not_identified if name not in remarks}
    write_table(
        console,
        "",
        (
            Column("parameter", text=True),
            Column("value"),
            Column("90% interval", rank=1),
            Column("remark", text=True, rank=1),
            Column("meaning", text=True, rank=2),
        ),
        [
            (
                p.name,
                f"{found.parameters[p.name]:.6g}",
                span_text(intervals.get(p.name)) if intervals else "",
                remarks.get(p.name, ""),
                p.meaning,
            )
            for p in found.form.parameters
        ],
    )
    write_line(console)
    write_paragraph(console, f"Fitted on {_ranges(found.fit_range)}.")


def _ranges(fit_range: dict[str, tuple[float, float]]) -> str:
    letters = {"n_params": "N", "tokens": "D", "experts": "E"}
    return ", ".join(
        f"{letters.get(name, name)} {format_count(low)} to {format_count(high)}"
        for name, (low, high) in fit_range.items()
    )


def show_laws(console: Console, laws: Sequence[Law]) -> None:
    """The catalogue of coefficient sets, a paragraph each."""
    for law in laws:
        family = law.family
        spacing = "every layer" if family.moe_every == 1 else f"every {family.moe_every} layers"
        models = f"top-{family.top_k}, experts {spacing}" if law.form.uses_experts else "dense models"
        write_line(console, f"{law.name}  ({law.form.name}; {models})", bold=len(law.name))
        write_paragraph(console, f"{law.source}.", indent=2)
        write_paragraph(console, ", ".join(f"{k} {v:.4g}" for k, v in law.parameters.items()), indent=2)
        if law.fit_range:
            write_paragraph(console, f"Fitted on {_ranges(law.fit_range)}.", indent=2)
        write_line(console)
    for form in {law.form.name: law.form for law in laws}.values():
        write_paragraph(console, form.equation, lead=form.name, indent=2, first="")


def show_comparison(console: Console, records: Sequence[HoldOut]) -> None:
    """How each law predicts the runs that it was not fitted on, best first."""
    heads = ("parameters", "fitted on", "RMSLE", "held out", "RMSLE held out", "bias held out")
    rows = [
        (
            r.law,
            str(r.parameters),
            str(r.n_train),
            f"{r.rmsle_train * 1e3:.2f}e-3",
            str(r.n_holdout),
            f"{r.rmsle_holdout * 1e3:.2f}e-3",
            f"{r.bias_holdout * 1e3:+.2f}e-3",
        )
        for r in sorted(records, key=lambda r: r.rmsle_holdout)
    ]
    write_table(console, "Error of ln L", (Column("law", text=True), *(Column(head) for head in heads)), rows)


def show_prediction(console: Console, law: Law, predicted: Prediction) -> None:
    """A predicted loss and how far to trust it."""
    text = f"loss {predicted.loss:.4f} nats per token"
    if predicted.interval:
        text += f"  (90% of the law's draws: {predicted.interval[0]:.4f} to {predicted.interval[1]:.4f})"
    write_line(console, text, bold=len(f"loss {predicted.loss:.4f}"))
    for name, factor in predicted.extrapolation.items():
        end = "largest" if factor > 1 else "smallest"
        write_line(console, f"extrapolated: {name} at {factor:.3g} times the {end} fitted")
    write_paragraph(console, f"law {law.name}: {law.source}")
