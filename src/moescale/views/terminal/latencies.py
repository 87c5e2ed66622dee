"""What a latency table covers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moescale.views.tables import coverage_table, interpolation_table, unmeasured_table
from moescale.views.terminal.text import write_line, write_paragraph, write_table

if TYPE_CHECKING:
    from rich.console import Console

    from moescale.latency.coverage import Overview


def show_latencies(console: Console, found: Overview, table: str) -> None:
    """What a latency table covers, and how well it interpolates."""
    dates = " to ".join(dict.fromkeys(found.dates))
    write_paragraph(console, f"{found.rows} rows of {dates}", lead=table)
    for engine in found.engines:
        write_line(console, f"  {engine}")
    write_table(console, coverage_table(found))
    if found.held_out:
        write_table(console, interpolation_table(found))
    else:
        write_line(console)
        write_paragraph(console, "No axis has three points, so that interpolation cannot be checked.")
    if found.not_ok:
        write_table(console, unmeasured_table(found))
    write_line(console)
    write_paragraph(
        console,
        "parameters are in total, with all experts and embeddings; `all to` is the batch up to which every size and length "
        "was measured; spread is the median over rows of what repeats and rounds scattered by.",
    )
