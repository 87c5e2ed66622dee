"""Answers as tables for a terminal: what the command line prints without --json."""

from __future__ import annotations

from moescale.views.terminal.compared import show_compared_models as show_compared_models
from moescale.views.terminal.fits import show_chosen as show_chosen
from moescale.views.terminal.fits import show_comparison as show_comparison
from moescale.views.terminal.fits import show_fit as show_fit
from moescale.views.terminal.fits import show_isoflop as show_isoflop
from moescale.views.terminal.fits import show_laws as show_laws
from moescale.views.terminal.fits import show_prediction as show_prediction
from moescale.views.terminal.fits import show_predictions as show_predictions
from moescale.views.terminal.plan import show_export as show_export
from moescale.views.terminal.plan import show_plan as show_plan
from moescale.views.terminal.runs import show_design as show_design
from moescale.views.terminal.runs import show_latencies as show_latencies
from moescale.views.terminal.runs import show_planned_runs as show_planned_runs
from moescale.views.terminal.serving import show_apart as show_apart
from moescale.views.terminal.serving import show_burst as show_burst
from moescale.views.terminal.serving import show_cost as show_cost
from moescale.views.terminal.serving import show_load as show_load
from moescale.views.terminal.serving import show_models as show_models
from moescale.views.terminal.serving import show_sweep as show_sweep
from moescale.views.terminal.serving import show_warnings as show_warnings
from moescale.views.terminal.text import terminal as terminal
