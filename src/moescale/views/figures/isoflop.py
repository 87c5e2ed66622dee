"""Exponents without a law: IsoFLOP parabolas, and the power laws of their minima."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from moescale.fitting.isoflop import IsoFlop, Parabola, Trend
from moescale.units import expert_label, format_count, format_flops
from moescale.views.figures.axes import log_ticks, new_figure
from moescale.views.figures.labels import end_labels
from moescale.views.figures.style import ACCENT, FAINT, PAGE_WIDTH, colour_of, house_style, marker_of, readable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def isoflop_figure(found: IsoFlop) -> Figure:
    """The parabolas, and the loss-optimal size and tokens against FLOPs with their power laws.

    Dotted are parabolas whose minimum lies at an end of the sizes and which are not used.
    """
    with house_style():
        figure = new_figure(PAGE_WIDTH, 3.0)
        left, size, tokens = figure.subplots(1, 3, width_ratios=[1.25, 1.0, 1.0])
        _draw_parabolas(figure, left, found.budgets)
        for ax, attribute, label, symbol in (
            (size, "n_params", "loss-optimal size N (parameters)", "N"),
            (tokens, "tokens", "loss-optimal tokens D", "D"),
        ):
            _power_law_panel(ax, found, attribute)
            _trend_labels(ax, found.trends, attribute, symbol)
            ax.set_xlabel("training FLOPs")
            ax.set_ylabel(label)
    return figure


def _draw_parabolas(figure: Figure, ax: Axes, budgets: Sequence[Parabola]) -> None:
    ends: list[tuple[float, float, str, str]] = []
    same = len({p.experts for p in budgets}) == 1
    for p in budgets:
        colour = colour_of(p.experts)
        ax.scatter(p.sizes, p.losses, s=8.0, color=colour, marker=marker_of(p.experts), linewidths=0, zorder=3)
        grid = np.geomspace(float(p.sizes.min()), float(p.sizes.max()), 64)
        ax.plot(grid, p.loss(grid), color=colour, linewidth=0.8, linestyle=":" if p.unusable else "-")
        text = format_flops(p.flops) if same else f"{format_flops(p.flops)}, {expert_label(p.experts)}"
        ends.append((float(grid[-1]), float(p.loss(grid[-1:])[0]), text, colour))
        if p.minimum is not None:
            ax.plot([p.minimum.n_params], [p.minimum.loss], marker="x", color=ACCENT, markersize=4.0, zorder=4)
    log_ticks(ax, "x", format_count, np.concatenate([p.sizes for p in budgets]))
    ax.set_xlabel("size N (parameters)")
    ax.set_ylabel("loss (nats per token)")
    ax.set_title("labels: FLOPs; ×: minimum; dotted: not used", fontsize=7, color=FAINT)
    end_labels(figure, ax, ends, points=6.0, column=True)


def _power_law_panel(ax: Axes, found: IsoFlop, attribute: str) -> None:
    used = [p for p in found.budgets if p.minimum is not None]
    optima = [getattr(p.minimum, attribute) for p in used]
    for p, value in zip(used, optima, strict=True):
        marker, colour = marker_of(p.experts), colour_of(p.experts)
        ax.plot([p.flops], [value], marker=marker, color=colour, linestyle="none", markersize=3.2)
    for trend in found.trends:
        span = np.array(trend.flops_range)
        ax.plot(span, getattr(trend, attribute).at(span), color=colour_of(trend.experts), linewidth=1.0)
    log_ticks(ax, "x", format_flops, np.array([p.flops for p in used]))
    log_ticks(ax, "y", format_count, np.array(optima))


def _trend_labels(ax: Axes, trends: Sequence[Trend], attribute: str, symbol: str) -> None:
    low, high = ax.get_ylim()
    ax.set_ylim(low, high * (high / low) ** (0.1 * len(trends)))
    for row, trend in enumerate(trends):
        law = getattr(trend, attribute)
        error = "" if law.standard_error is None else f" ± {law.standard_error:.2g}"
        ax.annotate(
            f"{expert_label(trend.experts)}: {symbol} ∝ $C^{{{law.exponent:.3f}}}${error}", (0.0, 1.0), xycoords="axes fraction",
            xytext=(4, -4 - 9 * row), textcoords="offset points", parse_math=True, fontsize=6.5, va="top",
            color=readable(colour_of(trend.experts)),
        )  # fmt: skip
