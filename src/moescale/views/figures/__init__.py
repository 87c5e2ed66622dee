"""Figures of one family: results in, a matplotlib Figure out; the same expert count has the same colour everywhere.

Figures are drawn without pyplot, so nothing global changes and several threads may draw. Text is for print at the drawn size
(8 pt at a page width of 7 inches). matplotlib belongs to the extra `figures` and is imported by the functions that draw.
"""

from __future__ import annotations

from moescale.views.figures.fit import fit_figure as fit_figure
from moescale.views.figures.plan import plan_figure as plan_figure
from moescale.views.figures.style import SUFFIXES as SUFFIXES
from moescale.views.figures.style import check_plot as check_plot
from moescale.views.figures.style import save_figure as save_figure
