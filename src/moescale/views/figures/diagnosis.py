"""Where a fit errs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from moescale.fitting.holdout import Diagnosis, Group
from moescale.units import format_count
from moescale.views.figures.axes import new_figure, note, point
from moescale.views.figures.labels import end_labels
from moescale.views.figures.style import ACCENT, FAINT, INK, PAGE_WIDTH, Look, colour_of, house_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

VARIABLES = {"n_experts": "experts E", "n_params": "size N (parameters)", "tokens": "training tokens D"}


def diagnosis_figure(diagnosis: Diagnosis) -> Figure:
    """Where a fit errs: bias and RMSLE by experts, size and tokens, and residuals against leverage with suspect runs named."""
    with house_style():
        figure = new_figure(PAGE_WIDTH, 4.4)
        axes = figure.subplots(2, 2)
        for ax, (variable, label) in zip(axes.ravel()[:3], VARIABLES.items(), strict=True):
            _grouped(ax, variable, [g for g in diagnosis.groups if g.variable == variable])
            ax.set_xlabel(label)
        for ax in axes.ravel():
            ax.set_ylabel("residual (10⁻³)")
        note(axes[0, 0], "dots: bias, mean ln(L̂/L); bars: ± RMSLE; n: runs")
        _against_leverage(figure, axes[1, 1], diagnosis)
    return figure


def _grouped(ax: Axes, variable: str, groups: Sequence[Group]) -> None:
    place = range(len(groups))
    ax.axhline(0.0, color=FAINT, linewidth=0.8)
    for x, g in zip(place, groups, strict=True):
        colour = colour_of(g.low) if variable == "n_experts" else INK
        ax.vlines(x, -1e3 * g.rmsle, 1e3 * g.rmsle, color=colour, linewidth=5.0, alpha=0.25)
        point(ax, x, 1e3 * g.bias, "o", colour, 4.5)
    ax.set_xticks(place, [_range_label(variable, g.low, g.high, g.n_runs) for g in groups])
    ax.set_xlim(-0.6, len(groups) - 0.4)
    ax.grid(visible=False, axis="x")


def _against_leverage(figure: Figure, ax: Axes, diagnosis: Diagnosis) -> None:
    leverage, error, suspects = diagnosis.leverage, 1e3 * diagnosis.residuals, list(diagnosis.suspects)
    ax.axhline(0.0, color=FAINT, linewidth=0.8)
    ax.scatter(leverage, error, s=9.0, color=INK, alpha=0.6, linewidths=0)
    if suspects:
        ring: Look = {"facecolors": "none", "edgecolors": ACCENT, "linewidths": 1.0}
        ax.scatter(leverage[suspects], error[suspects], s=36.0, **ring)
        ends = [(float(leverage[i]), float(error[i]), f"run {i + 1}", ACCENT) for i in suspects[:8]]
        end_labels(figure, ax, ends)
    ax.set_xlabel("leverage (0 to 1)")
    note(ax, f"ringed: {len(suspects)} beyond 5 robust standard deviations", ACCENT if suspects else FAINT)


def _range_label(variable: str, low: float, high: float, n_runs: int) -> str:
    a, b = (f"{v:g}" if variable == "n_experts" else format_count(v) for v in (low, high))
    return f"{a if a == b else f'{a}–{b}'}\nn = {n_runs}"
