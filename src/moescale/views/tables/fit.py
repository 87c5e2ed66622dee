"""Laws and fits as tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from moescale.units import format_count, format_flops
from moescale.views.tables import Column, Table, span_text, table_of

if TYPE_CHECKING:
    from moescale.fitting.fit import Fit
    from moescale.fitting.holdout import HoldOut
    from moescale.fitting.isoflop import IsoFlop
    from moescale.runs.table import RunTable
    from moescale.scaling_laws.form import LawForm
    from moescale.scaling_laws.law import Prediction

PREDICTION_ROWS = 40


def parameter_table(
    form: LawForm,
    parameters: Mapping[str, float],
    intervals: Mapping[str, tuple[float, float]] | None = None,
    remarks: Mapping[str, str] | None = None,
) -> Table:
    """The coefficients of a law with their 90% intervals."""
    limits, told = intervals or {}, remarks or {}
    return table_of(
        "",
        form.parameters,
        (
            (Column("parameter", text=True), lambda p: p.name),
            (Column("value"), lambda p: f"{parameters[p.name]:.6g}"),
            (Column("90% interval", rank=1), lambda p: span_text(limits.get(p.name))),
            (Column("remark", text=True, rank=1), lambda p: told.get(p.name, "")),
            (Column("meaning", text=True, rank=2), lambda p: p.meaning),
        ),
    )


def fit_remarks(found: Fit) -> dict[str, str]:
    """Remarks on single parameters of a fit."""
    remarks = {name: "not identified" for name in found.not_identified}
    return remarks | {name: "on a bound" for name in found.at_bound}


def comparison_table(records: Sequence[HoldOut]) -> Table:
    """How each law predicts the runs that it was not fitted on, best first."""
    return table_of(
        "Error of ln L on fitted and held-out runs",
        sorted(records, key=lambda r: r.rmsle_holdout),
        (
            (Column("law", text=True), lambda r: r.law),
            (Column("parameters"), lambda r: f"{r.parameters}"),
            (Column("fitted runs"), lambda r: f"{r.n_train}"),
            (Column("RMSLE"), lambda r: f"{r.rmsle_train * 1e3:.2f}e-3"),
            (Column("held-out runs"), lambda r: f"{r.n_holdout}"),
            (Column("held-out RMSLE"), lambda r: f"{r.rmsle_holdout * 1e3:.2f}e-3"),
            (Column("held-out bias"), lambda r: f"{r.bias_holdout * 1e3:+.2f}e-3"),
        ),
    )


def optima_table(found: IsoFlop) -> Table:
    """The loss-optimal model of each budget whose sizes enclose one, of the first of them."""
    optima = [(p, p.minimum) for p in found.budgets if p.minimum is not None]
    more = len(optima) - PREDICTION_ROWS
    return table_of(
        "Loss-optimal model of each budget"
        + (f" (the first {PREDICTION_ROWS}; {more:,} more with --json)" if more > 0 else ""),
        optima[:PREDICTION_ROWS],
        (
            (Column("experts"), lambda o: f"{o[0].experts:g}"),
            (Column("FLOPs"), lambda o: format_flops(o[0].flops)),
            (Column("N"), lambda o: format_count(o[1].n_params)),
            (Column("tokens"), lambda o: format_count(o[1].tokens)),
            (Column("tokens per parameter"), lambda o: format_count(o[1].tokens / o[1].n_params)),
            (Column("loss"), lambda o: f"{o[1].loss:.4f}"),
            (Column("runs", rank=1), lambda o: f"{o[0].sizes.size}"),
        ),
    )


def run_prediction_table(predicted: Sequence[Prediction], runs: RunTable) -> Table:
    """Predicted and measured losses of the first runs of a table."""
    shown = range(min(len(runs), PREDICTION_ROWS))
    more = len(runs) - len(shown)
    known = ~np.isnan(runs.loss)

    def residual(i: int) -> str:
        return f"{100 * math.log(predicted[i].loss / runs.loss[i]):+.2f}%" if known[i] else ""

    return table_of(
        "Predicted and measured losses" + (f" (the first {len(shown)}; {more:,} more with --json)" if more else ""),
        shown,
        (
            (Column("row"), lambda i: f"{runs.row_numbers[i]}"),
            (Column("N"), lambda i: format_count(float(runs.n_params[i]))),
            (Column("D"), lambda i: format_count(float(runs.tokens[i]))),
            (Column("E"), lambda i: f"{runs.experts[i]:g}"),
            (Column("predicted"), lambda i: f"{predicted[i].loss:.4f}"),
            (Column("90% interval", rank=1), lambda i: span_text(predicted[i].interval, ".4f")),
            (Column("measured", rank=3), lambda i: f"{runs.loss[i]:.4f}" if known[i] else ""),
            (Column("residual", rank=2), residual),
        ),
    )
