"""The runs of a sweep before it starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from moescale.units import format_count, format_flops, format_seconds
from moescale.views.tables import Column, Table
from moescale.views.terminal.text import write_line, write_paragraph, write_table

if TYPE_CHECKING:
    from rich.console import Console


def show_planned_runs(console: Console, plan: Mapping[str, Any]) -> None:
    """The runs of a sweep (the JSON of `sweep --dry-run`), and what all of them would take."""
    runs: list[dict[str, Any]] = plan["runs"]
    write_table(
        console,
        Table(
            "",
            (
                Column("run", text=True),
                Column("N"),
                Column("active", rank=3),
                Column("total", rank=2),
                Column("E", rank=5),
                Column("tokens"),
                Column("FLOPs", rank=1),
                Column("time", rank=1),
                Column("state", text=True, rank=4),
            ),
            [
                (
                    run["name"],
                    *(format_count(run[f"n_params_{kind}"]) for kind in ("dense", "active", "total")),
                    str(run["n_experts"]),
                    " ".join(format_count(tokens) for tokens in run["tokens"]),
                    format_flops(run["training_flops"]),
                    format_seconds(run["seconds"]) if "seconds" in run else "-",
                    run["state"] + (f" at {run['share']:.0%}" if 0 < run["share"] < 1 else ""),
                )
                for run in runs
            ],
        ),
    )
    write_line(console)
    done = sum(run["state"] == "finished" for run in runs)
    write_paragraph(
        console,
        f"{len(runs)} run{'' if len(runs) == 1 else 's'}, {done} finished, {format_flops(plan['training_flops'])} FLOPs in all, "
        f"{plan['jobs']} at once; sizes without embeddings.",
    )
    if "seconds" in plan:
        write_paragraph(console, f"About {format_seconds(plan['seconds'])} to go, by {plan['rate_from']}.")
    else:
        write_paragraph(console, f"No estimate of time, as it would stand on {plan['rate_from']}.")
    write_paragraph(console, f"The rows go to {plan['table']}.")
