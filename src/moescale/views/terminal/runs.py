"""The runs of a sweep before it starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from moescale.units import format_flops, format_seconds, plural
from moescale.views.tables import planned_runs_table
from moescale.views.terminal.text import write_line, write_paragraph, write_table

if TYPE_CHECKING:
    from rich.console import Console


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
