"""What experiments will run and have measured: the runs of a sweep, the rows of a latency table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from moescale.units import format_flops, format_seconds, plural
from moescale.views.tables import coverage_table, interpolation_table, planned_runs_table, unmeasured_table
from moescale.views.terminal.text import write_line, write_paragraph, write_table

if TYPE_CHECKING:
    from rich.console import Console

    from moescale.latency.coverage import Overview


def show_planned_runs(console: Console, plan: Mapping[str, Any]) -> None:
    """The runs of a sweep (the JSON of `sweep --dry-run`), and what all of them would take."""
    runs: list[dict[str, Any]] = plan["runs"]
    write_table(console, planned_runs_table(runs))
    write_line(console)
    done = sum(run["state"] == "finished" for run in runs)
    write_paragraph(
        console,
        f"{plural(len(runs), 'run')}, {done} finished, {format_flops(plan['training_flops'])} FLOPs in all, "
        f"{plan['jobs']} at once; sizes without embeddings.",
    )
    if "seconds" in plan:
        write_paragraph(console, f"About {format_seconds(plan['seconds'])} to go, by {plan['rate_from']}.")
    else:
        write_paragraph(console, f"No estimate of time, as it would stand on {plan['rate_from']}.")
    write_paragraph(console, f"The rows go to {plan['table']}.")


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
