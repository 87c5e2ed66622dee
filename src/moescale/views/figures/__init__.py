"""Figures of one family: results in, a matplotlib Figure out; the same expert count has the same colour everywhere.

Figures are drawn without pyplot, so nothing global changes and several threads may draw. Text is for print at the drawn size
(8 pt at a page width of 7 inches). matplotlib belongs to the extra `figures` and is imported by the functions that draw.
"""

from __future__ import annotations

from moescale.views.figures.comparison import comparison_figure
from moescale.views.figures.diagnosis import diagnosis_figure
from moescale.views.figures.fit import fit_figure
from moescale.views.figures.isoflop import isoflop_figure
from moescale.views.figures.latency import latency_figure
from moescale.views.figures.plan import plan_figure
from moescale.views.figures.saving import SUFFIXES, check_plot, save_figure
from moescale.views.figures.serving import cost_figure, largest_figure
from moescale.views.figures.style import (
    ACCENT,
    CATEGORIES,
    DASHES,
    FAINT,
    INK,
    MARKERS,
    PAGE_WIDTH,
    RULE,
    SEQUENCE,
    STYLE,
    colour_of,
    colour_on_dark,
    marker_of,
)
from moescale.views.figures.sweep import sweep_figure

__all__ = [
    "ACCENT", "CATEGORIES", "DASHES", "FAINT", "INK", "MARKERS", "PAGE_WIDTH", "RULE", "SEQUENCE", "STYLE", "SUFFIXES",
    "check_plot", "colour_of", "colour_on_dark", "comparison_figure", "cost_figure", "diagnosis_figure", "fit_figure", "isoflop_figure",
    "largest_figure", "latency_figure", "marker_of", "plan_figure", "save_figure", "sweep_figure",
]  # fmt: skip
