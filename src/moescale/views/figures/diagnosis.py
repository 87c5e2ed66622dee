"""Where a fit errs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from moescale.fitting.holdout import Diagnosis
from moescale.units import format_count
from moescale.views.figures.axes import new_figure
from moescale.views.figures.labels import end_labels
from moescale.views.figures.style import ACCENT, FAINT, INK, PAGE_WIDTH, colour_of, house_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def diagnosis_figure(diagnosis: Diagnosis) -> Figure:
    """Where a fit errs: bias and RMSLE by experts, size and tokens, and residuals against leverage with suspect runs named."""
    labels = {"n_experts": "experts E", "n_params": "size N (parameters)", "tokens": "training tokens D"}
    with house_style():
        figure = new_figure(PAGE_WIDTH, 4.4)
        axes = figure.subplots(2, 2)
        first, *others = list(labels)
        for ax, variable in zip(axes.ravel(), [first, *others], strict=False):
            groups = [g for g in diagnosis.groups if g.variable == variable]
            place = np.arange(len(groups))
            bias, rmsle = (1e3 * np.array([getattr(g, name) for g in groups]) for name in ("bias", "rmsle"))
            ax.axhline(0.0, color=FAINT, linewidth=0.8)
            for x, b, r, g in zip(place, bias, rmsle, groups, strict=True):
                colour = colour_of(g.low) if variable == "n_experts" else INK
                ax.vlines(x, -r, r, color=colour, linewidth=5.0, alpha=0.25)
                ax.plot([x], [b], marker="o", markersize=4.5, color=colour, linestyle="none")
            ax.set_xticks(place, [_range_label(variable, g.low, g.high, g.n_runs) for g in groups])
            ax.set_xlim(-0.6, len(groups) - 0.4)
            ax.set_xlabel(labels[variable])
            ax.set_ylabel("residual (10⁻³)")
            ax.grid(visible=False, axis="x")
        axes[0, 0].set_title("dots: bias, mean ln(L̂/L); bars: ± RMSLE; n: runs", fontsize=7, color=FAINT)
        ax = axes[1, 1]
        error = 1e3 * diagnosis.residuals
        ax.axhline(0.0, color=FAINT, linewidth=0.8)
        ax.scatter(diagnosis.leverage, error, s=9.0, color=INK, alpha=0.6, linewidths=0)
        suspects = list(diagnosis.suspects)
        if suspects:
            ax.scatter(
                diagnosis.leverage[suspects], error[suspects], s=36.0, facecolors="none", edgecolors=ACCENT,
                linewidths=1.0,
            )  # fmt: skip
            ends = [(float(diagnosis.leverage[i]), float(error[i]), f"run {i + 1}", ACCENT) for i in suspects[:8]]
            end_labels(figure, ax, ends)
        ax.set_xlabel("leverage (0 to 1)")
        ax.set_ylabel("residual (10⁻³)")
        ax.set_title(
            f"ringed: {len(suspects)} beyond 5 robust standard deviations",
            fontsize=7,
            color=ACCENT if suspects else FAINT,
        )
    return figure


def _range_label(variable: str, low: float, high: float, n_runs: int) -> str:
    a, b = (f"{v:g}" if variable == "n_experts" else format_count(v) for v in (low, high))
    return f"{a if a == b else f'{a}–{b}'}\nn = {n_runs}"
