"""What a latency table covers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moescale.units import format_count
from moescale.views.tables import Column, Table
from moescale.views.terminal.text import write_line, write_paragraph, write_table

if TYPE_CHECKING:
    from rich.console import Console

    from moescale.latency.coverage import Overview


def show_latencies(console: Console, found: Overview, table: str) -> None:
    """What a latency table covers, and how well it interpolates."""
    dates = found.dates[0] if found.dates[0] == found.dates[1] else f"{found.dates[0]} to {found.dates[1]}"
    write_paragraph(console, f"{found.rows} rows of {dates}", lead=table)
    for engine in found.engines:
        write_line(console, f"  {engine}")
    gpus = sorted({c.gpu for c in found.coverage})
    write_table(
        console,
        Table(
            "Measured on " + ", ".join(gpus) + "; outside these ranges there is no answer (nothing is extrapolated)",
            (
                *((Column("GPU", text=True),) if len(gpus) > 1 else ()),
                Column("", text=True),
                Column("GPUs"),
                Column("experts"),
                Column("rows"),
                Column("parameters"),
                Column("tokens"),
                Column("batch"),
                Column("all to", rank=1),
                Column("spread", rank=2),
            ),
            [
                (
                    *((c.gpu,) if len(gpus) > 1 else ()),
                    c.stage,
                    f"{c.gpus}",
                    f"{c.n_experts}",
                    f"{c.rows}",
                    _between(*(format_count(x) for x in c.n_params_total)),
                    _between(*(f"{x}" for x in c.tokens)),
                    _between(*(f"{x}" for x in c.batch)),
                    f"{c.smallest_largest_batch}",
                    f"{c.spread:.1%}",
                )
                for c in found.coverage
            ],
        ),
    )
    if found.held_out:
        names = {"batch": "batch", "n_params_total": "size", "tokens": "tokens"}
        write_table(console, Table("Leave one out: each inner row from its neighbours, linearly along one axis",
            (
                Column("", text=True), Column("along", text=True), Column("rows"), Column("median error"),
                Column("largest"), Column("mean"), Column("worst at", text=True, rank=1),
            ),
            [
                (
                    h.stage, names[h.axis], f"{h.rows}", f"{h.median_abs_error:.1%}", f"{h.max_abs_error:.1%}",
                    f"{h.bias:+.1%}", h.worst,
                )
                for h in found.held_out
            ],))  # fmt: skip
    else:
        write_line(console)
        write_paragraph(console, "No axis has three points, so that interpolation cannot be checked.")
    if found.not_ok:
        write_table(
            console,
            Table(
                "Without a latency",
                (Column("", text=True), Column("rows"), Column("reason", text=True)),
                [(status, f"{count}", reason) for status, reason, count in found.not_ok],
            ),
        )
    write_line(console)
    write_paragraph(
        console,
        "parameters are in total, with all experts and embeddings; `all to` is the batch up to which every size and length "
        "was measured; spread is the median over rows of what repeats and rounds scattered by.",
    )


def _between(low: str, high: str) -> str:
    return low if low == high else f"{low}-{high}"
