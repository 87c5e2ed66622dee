"""Answers as tables for a terminal: what the command line prints without --json.

Tables are set in plain text. Reasons and notes go below them, where there is room for a sentence.
"""

from __future__ import annotations

from moescale.views.terminal.export import show_export
from moescale.views.terminal.fits import show_comparison, show_fit, show_isoflop, show_laws, show_prediction
from moescale.views.terminal.latencies import show_latencies
from moescale.views.terminal.plan import show_plan
from moescale.views.terminal.runs import show_planned_runs
from moescale.views.terminal.serving import show_burst, show_cost, show_sweep
from moescale.views.terminal.text import terminal, write_line, write_paragraph, write_table

__all__ = [
    "show_burst",
    "show_comparison",
    "show_cost",
    "show_export",
    "show_fit",
    "show_isoflop",
    "show_latencies",
    "show_laws",
    "show_plan",
    "show_planned_runs",
    "show_prediction",
    "show_sweep",
    "terminal",
    "write_line",
    "write_paragraph",
    "write_table",
]
