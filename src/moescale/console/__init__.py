"""Answers as tables for a terminal: what the command line prints without --json.

Tables are set in plain text. Reasons and notes go below them, where there is room for a sentence.
"""

from __future__ import annotations

from moescale.console.export import show_export
from moescale.console.fits import show_comparison, show_fit, show_laws, show_prediction
from moescale.console.latencies import show_latencies
from moescale.console.plan import show_plan
from moescale.console.runs import show_planned_runs
from moescale.console.serving import show_burst, show_cost, show_sweep
from moescale.console.text import terminal, write_line, write_paragraph, write_table

__all__ = [
    "show_burst", "show_comparison", "show_cost", "show_export", "show_fit", "show_latencies", "show_laws",
    "show_plan", "show_planned_runs", "show_prediction", "show_sweep", "terminal", "write_line", "write_paragraph", "write_table",
]  # fmt: skip
