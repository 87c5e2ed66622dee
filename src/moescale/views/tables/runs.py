"""Runs and measurements as tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from moescale.units import format_count, format_flops, format_seconds
from moescale.views.tables import Cell, Column, Table, table_of

if TYPE_CHECKING:
    from moescale.latency.coverage import Coverage, Overview
    from moescale.planning.sweep_design import DesignedRun


def coverage_table(found: Overview) -> Table:
    """What a latency table covers, by stage, GPU count and expert count."""
    gpus = sorted({c.gpu for c in found.coverage})
    cells: list[Cell[Coverage]] = [
        (Column("", text=True), lambda c: c.stage),
        (Column("GPUs"), lambda c: f"{c.gpus}"),
        (Column("experts"), lambda c: f"{c.n_experts}"),
        (Column("rows"), lambda c: f"{c.rows}"),
        (Column("parameters"), lambda c: _between(*(format_count(x) for x in c.n_params_total))),
        (Column("tokens"), lambda c: _between(*(f"{x}" for x in c.tokens))),
        (Column("batch"), lambda c: _between(*(f"{x}" for x in c.batch))),
        (Column("full batch", rank=1), lambda c: f"{c.smallest_largest_batch}"),
        (Column("spread", rank=2), lambda c: f"{c.spread:.1%}"),
    ]
    if len(gpus) > 1:
        cells.insert(0, (Column("GPU", text=True), lambda c: c.gpu))
    title = f"Coverage on {', '.join(gpus)}; no extrapolation beyond these ranges"
    return table_of(title, found.coverage, cells)


def interpolation_table(found: Overview) -> Table:
    """How well a latency table predicts each of its inner rows."""
    return table_of(
        "Leave-one-out error of linear interpolation along each axis",
        found.held_out,
        (
            (Column("", text=True), lambda h: h.stage),
            (Column("along", text=True), lambda h: "size" if h.axis == "n_params_total" else h.axis),
            (Column("rows"), lambda h: f"{h.rows}"),
            (Column("median error"), lambda h: f"{h.median_abs_error:.1%}"),
            (Column("largest error"), lambda h: f"{h.max_abs_error:.1%}"),
            (Column("mean error"), lambda h: f"{h.bias:+.1%}"),
            (Column("worst at", text=True, rank=1), lambda h: h.worst),
        ),
    )


def unmeasured_table(found: Overview) -> Table:
    """The rows of a latency table that hold no latency."""
    columns = (Column("", text=True), Column("rows"), Column("reason", text=True))
    return Table(
        "Rows without a latency", columns, [(stage, f"{rows}", reason) for stage, reason, rows in found.not_ok]
    )


def _between(low: str, high: str) -> str:
    return low if low == high else f"{low}-{high}"


def planned_runs_table(runs: Iterable[dict[str, Any]]) -> Table:
    """The runs of a sweep before it starts, from the JSON of `sweep --dry-run`."""
    return table_of(
        "",
        runs,
        (
            (Column("run", text=True), lambda r: r["name"]),
            (Column("N"), lambda r: format_count(r["n_params_dense"])),
            (Column("active", rank=3), lambda r: format_count(r["n_params_active"])),
            (Column("total", rank=2), lambda r: format_count(r["n_params_total"])),
            (Column("E", rank=5), lambda r: f"{r['n_experts']}"),
            (Column("tokens"), lambda r: " ".join(format_count(tokens) for tokens in r["tokens"])),
            (Column("FLOPs", rank=1), lambda r: format_flops(r["training_flops"])),
            (Column("time", rank=1), lambda r: format_seconds(r["seconds"]) if "seconds" in r else "-"),
            (
                Column("state", text=True, rank=4),
                lambda r: r["state"] + (f" at {r['share']:.0%}" if 0 < r["share"] < 1 else ""),
            ),
        ),
    )


def regret_table(rows: Iterable[tuple[str, int, float, float]]) -> Table:
    """The plan's expected regret after sweeps: name, runs, FLOPs, regret."""
    return table_of(
        "",
        rows,
        (
            (Column("sweep", text=True), lambda r: r[0]),
            (Column("runs"), lambda r: f"{r[1]}" if r[1] else "-"),
            (Column("FLOPs"), lambda r: format_flops(r[2]) if r[2] else "-"),
            (Column("expected regret"), lambda r: f"{r[3]:.1%}"),
        ),
    )


def designed_runs_table(runs: Iterable[DesignedRun]) -> Table:
    """Every run of a designed sweep, in the order in which they were chosen."""
    return table_of(
        "Runs, by reduction of regret per FLOP",
        runs,
        (
            (Column("N"), lambda r: format_count(r.n_params)),
            (Column("E"), lambda r: f"{r.experts}"),
            (Column("tokens"), lambda r: format_count(r.tokens)),
            (Column("tokens/N"), lambda r: f"{r.tokens / r.n_params:.3g}"),
            (Column("FLOPs"), lambda r: format_flops(r.flops)),
            (Column("batch", rank=1), lambda r: format_count(r.batch_tokens)),
            (Column("peak lr", rank=1), lambda r: f"{r.peak_lr:.2e}"),
            (Column("doubt left"), lambda r: f"{r.doubt_left:.1%}"),
        ),
    )


def designed_counts_table(runs: Iterable[DesignedRun]) -> Table:
    """The runs of a designed sweep by expert count."""
    every = list(runs)
    total = sum(run.flops for run in every)

    def span(values: list[float]) -> str:
        low, high = format_count(min(values)), format_count(max(values))
        return low if low == high else f"{low} to {high}"

    groups = [(e, [run for run in every if run.experts == e]) for e in sorted({run.experts for run in every})]
    return table_of(
        "By expert count",
        groups,
        (
            (Column("E"), lambda g: f"{g[0]}"),
            (Column("runs"), lambda g: f"{len(g[1])}"),
            (Column("N"), lambda g: span([run.n_params for run in g[1]])),
            (Column("tokens"), lambda g: span([run.tokens for run in g[1]])),
            (Column("share of FLOPs"), lambda g: f"{sum(run.flops for run in g[1]) / total:.0%}"),
        ),
    )
