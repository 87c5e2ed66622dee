"""Exponents without a law: IsoFLOP parabolas or an envelope, and their power laws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from moescale.fitting.isoflop import Envelope, IsoFlop, Trend
from moescale.units import expert_label, format_flops
from moescale.views.figures.axes import expert_key, log_counts, log_ticks, new_figure
from moescale.views.figures.labels import end_labels
from moescale.views.figures.style import ACCENT, FAINT, PAGE_WIDTH, colour_of, house_style, marker_of, readable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def isoflop_figure(found: IsoFlop | Envelope) -> Figure:
    """Approach 2 or 1: the parabolas, or the envelope, and the loss-optimal size and tokens against FLOPs with their power laws.

    Dotted are parabolas, or stretches of the envelope, whose minimum lies at an end of the sizes and which are not used.
    """
    with house_style():
        figure = new_figure(PAGE_WIDTH, 3.0)
        left, size, tokens = figure.subplots(1, 3, width_ratios=[1.25, 1.0, 1.0])
        optima: list[tuple[float, float, float, float]] = []  # experts, FLOPs, N, D
        if isinstance(found, IsoFlop):
            optima = _draw_parabolas(figure, left, found)
        else:
            optima = [(p.experts, p.flops, p.n_params, p.tokens) for p in found.points if p.bracketed]
            _draw_envelope(left, found)
            flops = np.array([p.flops for p in found.points])
            log_ticks(left, "x", format_flops, values=flops)
            left.set_xlabel("training FLOPs")
            left.set_title("lower envelope; dotted: not used", fontsize=7, color=FAINT)
        left.set_ylabel("loss (nats per token)")
        for ax, column, attribute, label, symbol in (
            (size, 2, "n_params", "loss-optimal size N (parameters)", "N"),
            (tokens, 3, "tokens", "loss-optimal tokens D", "D"),
        ):
            _power_law_panel(ax, optima, found.trends, column, attribute)
            _trend_labels(ax, found.trends, attribute, symbol)
            ax.set_xlabel("training FLOPs")
            ax.set_ylabel(label)
    return figure


def _draw_parabolas(figure: Figure, ax: Axes, found: IsoFlop) -> list[tuple[float, float, float, float]]:
    ends: list[tuple[float, float, str, str]] = []
    same = len({p.experts for p in found.parabolas}) == 1
    optima: list[tuple[float, float, float, float]] = []
    for p in found.parabolas:
        colour = colour_of(p.experts)
        ax.scatter(p.sizes, p.losses, s=8.0, color=colour, marker=marker_of(p.experts), linewidths=0, zorder=3)
        grid = np.geomspace(float(p.sizes.min()), float(p.sizes.max()), 64)
        if np.isfinite(p.coefficients).all():
            ax.plot(grid, p.loss(grid), color=colour, linewidth=0.8, linestyle="-" if p.unusable is None else ":")
            text = format_flops(p.flops) if same else f"{format_flops(p.flops)}, {expert_label(p.experts)}"
            ends.append((float(grid[-1]), float(p.loss(grid[-1:])[0]), text, colour))
        if p.unusable is None:
            optima.append((p.experts, p.flops, p.n_params_optimal, p.tokens_optimal))
            ax.plot([p.n_params_optimal], [p.loss_optimal], marker="x", color=ACCENT, markersize=4.0, zorder=4)
    log_counts(ax, "x", np.concatenate([p.sizes for p in found.parabolas]))
    ax.set_xlabel("size N (parameters)")
    ax.set_title("labels: FLOPs; ×: minimum; dotted: not used", fontsize=7, color=FAINT)
    end_labels(figure, ax, ends, points=6.0, column=True)
    return optima


def _draw_envelope(ax: Axes, found: Envelope) -> None:
    for e in sorted({p.experts for p in found.points}):
        mine = [p for p in found.points if p.experts == e]
        flops, loss = np.array([p.flops for p in mine]), np.array([p.loss for p in mine])
        used = np.array([p.bracketed for p in mine])
        ax.plot(flops, loss, color=colour_of(e), linewidth=0.8, linestyle=(0, (1, 1.5)))
        ax.plot(flops, np.where(used, loss, np.nan), color=colour_of(e), linewidth=1.4)
    expert_key(ax, np.unique([p.experts for p in found.points]), "upper right", lines=True)


def _power_law_panel(
    ax: Axes, optima: Sequence[tuple[float, float, float, float]], trends: Sequence[Trend], column: int, attribute: str
) -> None:
    size = 3.2 if len(optima) <= 60 else 1.2  # an envelope has many points
    for row in optima:
        ax.plot(
            [row[1]],
            [row[column]],
            marker=marker_of(row[0]),
            color=colour_of(row[0]),
            linestyle="none",
            markersize=size,
        )
    for trend in trends:
        span = np.array(trend.flops_range)
        ax.plot(span, getattr(trend, attribute).at(span), color=colour_of(trend.experts), linewidth=1.0)
    if optima:
        values = np.array(optima)
        log_ticks(ax, "x", format_flops, values[:, 1])
        log_counts(ax, "y", values[:, column])


def _trend_labels(ax: Axes, trends: Sequence[Trend], attribute: str, symbol: str) -> None:
    """The exponents with their standard errors, listed in the corner that a rising line leaves free."""
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
