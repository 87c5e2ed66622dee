"""Runs as tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from moescale.units import format_count, format_flops, format_seconds
from moescale.views.tables import Column, Table, table_of

if TYPE_CHECKING:
    from moescale.planning.sweep_design import DesignedRun


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
