"""The paper's figures in the style of moescale.views.figures: results in, a matplotlib Figure out.

Crosses are numbers that the paper prints; it publishes no data of its figures.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from moescale.errors import InputError
from moescale.reproduction.claims import claims
from moescale.reproduction.series import Bounded, BudgetCurves, FittedLosses, HiddenLayers, TradeOff
from moescale.typing import FloatArray
from moescale.units import expert_label, format_count, format_flops
from moescale.views.figures.axes import expert_key, headline, log_ticks, new_figure, optimum, point
from moescale.views.figures.style import ACCENT, FAINT, INK, PAGE_WIDTH, Look, colour_of, house_style, marker_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DASHES = ("-", (0, (4, 1.5)), (0, (1, 1.2)), (0, (5, 1.2, 1, 1.2)))  # by rising size, a second cue
NEAR = 1.05  # budgets of a printed number and of a curve are the same within this factor


def fitted_figure(found: FittedLosses) -> Figure:
    """Loss against experts, a panel for each token count, a line for each size; bands hold 90% of the law's draws."""
    with house_style():
        figure = new_figure(PAGE_WIDTH, 2.6)
        axes = figure.subplots(1, found.tokens.size, sharex=True, sharey=True, squeeze=False)[0]
        for t, ax in enumerate(axes):
            for s in range(found.n_params.size):
                ax.plot(found.experts, found.loss[t, s], color=INK, linewidth=1.0, linestyle=DASHES[s % len(DASHES)])
                if found.low is not None and found.high is not None:
                    band = found.low[t, s], found.high[t, s]
                    ax.fill_between(found.experts, *band, color=FAINT, alpha=0.25, linewidth=0)
            for tokens, _, e, value in found.points:
                if tokens == found.tokens[t]:
                    point(ax, e, value, "x", ACCENT, 4.5, markeredgewidth=1.1, zorder=4)
            ax.set_title(f"D = {format_count(float(found.tokens[t]))}")
            _doubling_ticks(ax, found.experts)
            ax.set_xlabel("experts E")
        axes[0].set_ylabel("loss (nats per token)")
        key = [
            (format_count(n), {"color": INK, "linewidth": 1.0, "linestyle": DASHES[s % len(DASHES)]})
            for s, n in enumerate(found.n_params.tolist())
        ]
        _outside_key(figure, key, title="N", handlelength=2.4)
        crosses = ["crosses: surfaces that the paper prints for E = 8 and 16"] * bool(found.points)
        band = ["bands: 90% of the law's draws"] * (found.low is not None)
        _headline(figure, f"Losses of {found.law}, a line for each dense-equivalent size N", "; ".join(crosses + band))
    return figure


def trade_off_figure(found: TradeOff) -> Figure:
    """Loss-optimal models over budgets: loss against cost, loss against training FLOPs, cost against training FLOPs."""
    if not np.isfinite(found.usd_per_mtok).any():
        raise InputError("none of these models can be served", next_step="take more GPUs, or smaller budgets")
    with house_style():
        figure = new_figure(PAGE_WIDTH, 2.9)
        left, middle, right = figure.subplots(1, 3)
        for i, e in enumerate(found.experts.tolist()):
            for ax, x, y in (
                (left, found.usd_per_mtok[i], found.loss[i]),
                (middle, found.budgets_flops, found.loss[i]),
                (right, found.budgets_flops, found.usd_per_mtok[i]),
            ):
                ax.plot(x, y, color=colour_of(e), marker=marker_of(e), markevery=5, markersize=2.8)
        log_ticks(left, "x", _usd, found.usd_per_mtok, most=4)
        for ax in (middle, right):
            log_ticks(ax, "x", format_flops, found.budgets_flops, most=4)
            ax.set_xlabel("training FLOPs")
        log_ticks(right, "y", _usd, found.usd_per_mtok, most=6)
        left.set_xlabel("cost (US$ per million output tokens)")
        for ax in (left, middle):
            ax.set_ylabel("loss (nats per token)")
        right.set_ylabel("cost (US$ per million output tokens)")
        for ax, title in ((left, "quality and cost"), (middle, "quality and training"), (right, "cost and training")):
            ax.set_title(title)
        expert_key(middle, found.experts, "upper right")
        _headline(figure, f"Loss-optimal models under {found.law}")
    return figure


def curves_figure(found: Sequence[BudgetCurves]) -> Figure:
    """Loss against cost for each expert count, a panel for each budget; markers are loss-optimal, solid over-trained."""
    if not found:
        raise InputError("no budget to draw", next_step="give at least one")
    with house_style():
        figure = new_figure(PAGE_WIDTH, 3.2)
        axes = figure.subplots(1, len(found), squeeze=False)[0]
        for ax, one in zip(axes, found, strict=True):
            _loss_cost_panel(ax, one)
        axes[0].set_ylabel("loss (nats per token)")
        expert_key(axes[-1], [c.experts for c in found[-1].curves], "upper right")
        _headline(
            figure,
            f"Models that spend a whole budget under {found[0].law}",
            "markers: loss-optimal sizes; solid: smaller, more tokens; dashed: larger",
        )
    return figure


def _loss_cost_panel(ax: Axes, found: BudgetCurves) -> None:
    best_usd = [c.usd_per_mtok[i] for c, i in zip(found.curves, found.optimal, strict=True)]
    best_loss = [c.loss[i] for c, i in zip(found.curves, found.optimal, strict=True)]
    for c, best in zip(found.curves, found.optimal, strict=True):
        colour = colour_of(c.experts)
        ax.plot(c.usd_per_mtok[: best + 1], c.loss[: best + 1], color=colour)
        ax.plot(c.usd_per_mtok[best:], c.loss[best:], color=colour, linewidth=0.8, linestyle=(0, (3, 2)))
        optimum(ax, c.usd_per_mtok[best], c.loss[best], c.experts, 5.0)
    room = max(best_loss) - min(best_loss)
    ax.set_ylim(min(best_loss) - 0.12 * room, max(best_loss) + 0.9 * room)
    known = np.array([usd for usd in best_usd if np.isfinite(usd)])
    if known.size:
        log_ticks(ax, "x", _usd, np.array([known.min() / 6.0, known.max() * 1.6]), most=6)
    ax.set_title(f"{format_flops(found.budget_flops)} training FLOPs")
    ax.set_xlabel("cost (US$ per million output tokens)")


def bounded_loss_figure(found: Sequence[Bounded]) -> Figure:
    """At the loss of a base's optimum over budgets: cost over the base's (above) and activated size over the base's (below)."""
    with house_style():
        figure, axes = _bounded_panels(found)
        for column, one in enumerate(found):
            for row, values in enumerate((one.cost_ratio, one.active_ratio)):
                _bounded_lines(axes[row, column], one, values)
                axes[row, column].set_ylim(bottom=0.0)
            _printed_numbers(axes[0, column], one, {"cost_ratio_at_base_loss"})
            _printed_numbers(axes[1, column], one, {"active_ratio_at_base_loss"})
        axes[0, 0].set_ylabel("cost over the baseline's")
        _bounded_headline(figure, found, "the loss", "crosses: printed in the paper")
    return figure


def bounded_cost_figure(found: Sequence[Bounded]) -> Figure:
    """At the cost of a base's optimum over budgets: the lowest loss (above) and activated size over the base's (below)."""
    ratios = {f"{which}active_ratio_at_base_cost" for which in ("", "least_", "most_")}
    dotted: Look = {"color": FAINT, "linewidth": 1.0, "linestyle": (0, (1, 1.6))}
    with house_style():
        figure, axes = _bounded_panels(found)
        for (above, below), one in zip(axes.T, found, strict=True):
            _bounded_lines(above, one, one.loss)
            above.plot(one.budgets_flops, one.base_loss, **dotted)
            _bounded_lines(below, one, one.active_ratio)
            _printed_numbers(below, one, ratios)
            below.set_ylim(bottom=0.0)
            below.axhline(1.0, zorder=1, **dotted)
        axes[0, 0].set_ylabel("loss (nats per token)")
        crosses = "crosses: printed in the paper, black ones for the least and the most of other expert counts"
        _bounded_headline(figure, found, "the cost", f"dotted: the baseline; {crosses}")
    return figure


def _bounded_panels(found: Sequence[Bounded]) -> tuple[Figure, Any]:
    """Two panels for each base, and the key."""
    if not found:
        raise InputError("no baseline to draw", next_step="give at least one")
    figure = new_figure(PAGE_WIDTH, 4.6)
    axes = figure.subplots(2, len(found), sharex=True, sharey="row", squeeze=False)
    for (above, below), one in zip(axes.T, found, strict=True):
        above.set_title(f"baseline: loss-optimal {expert_label(one.base_experts)}")
        below.set_xlabel("training FLOPs")
    axes[1, 0].set_ylabel("activated size over the baseline's")
    return figure, axes


def _bounded_lines(ax: Axes, found: Bounded, values: FloatArray) -> None:
    for e, line in zip(found.experts.tolist(), values, strict=True):
        ax.plot(found.budgets_flops, line, color=colour_of(e), marker=marker_of(e), markevery=6, markersize=2.8)


def _bounded_headline(figure: Figure, found: Sequence[Bounded], bound: str, below: str) -> None:
    for ax, one in zip(figure.axes[len(found) :], found, strict=True):
        log_ticks(ax, "x", format_flops, one.budgets_flops, most=6)
    widest = max(found, key=lambda b: b.experts.size)
    key = [
        (expert_label(e), {"color": colour_of(e), "marker": marker_of(e), "markersize": 3.2}) for e in widest.experts
    ]
    paper = ("paper", {"color": INK, "marker": "x", "linestyle": "none"})
    _outside_key(figure, [*key, paper], handlelength=1.6)
    _headline(figure, f"Models with {bound} of the baseline's optimum under {found[0].law}", below)


def _headline(figure: Figure, text: str, below: str = "") -> None:
    """The figure's title, and how to read it in a second line."""
    headline(figure, f"{text}\n{below}" if below else text, 8.0)


def _outside_key(figure: Figure, entries: Sequence[tuple[str, Mapping[str, Any]]], **look: Any) -> None:
    """Names with the look of their lines, right of all panels."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], label=label, **line) for label, line in entries]
    figure.legend(handles=handles, loc="outside right center", frameon=False, fontsize=7, **look)


def _printed_numbers(ax: Axes, found: Bounded, quantities: set[str]) -> None:
    """The paper's own numbers for these curves, as crosses in the colour of their expert count."""
    lowest, highest = float(found.budgets_flops[0]) / NEAR, float(found.budgets_flops[-1]) * NEAR
    for part in (part for claim in claims() for part in claim.parts):
        if part.quantity not in quantities or part.base_experts != found.base_experts or part.paper is None:
            continue
        several = bool(part.other_experts)  # then it is the least or the most of them
        if (several or part.experts in found.experts) and lowest <= part.budget_flops <= highest:
            colour = INK if several else colour_of(part.experts)
            point(ax, part.budget_flops, part.paper, "x", colour, 5.5, markeredgewidth=1.4, zorder=5)


def hidden_layers_figure(found: HiddenLayers) -> Figure:
    """Width times depth of real models against N^(2/3), with the fitted line."""
    with house_style():
        figure = new_figure(0.6 * PAGE_WIDTH, 2.9)
        ax = figure.subplots()
        x = found.n_params ** (2.0 / 3.0)
        line = np.geomspace(x.min() / 1.3, x.max() * 1.3, 16)
        ax.plot(line, found.mu * line, color=FAINT, linewidth=1.0)
        ax.plot(x, found.hidden_times_layers, marker="o", markersize=3.6, color=ACCENT, linestyle="none")
        log_ticks(ax, "x", format_count, line, most=6)
        log_ticks(ax, "y", format_count, found.hidden_times_layers, most=6)
        ax.set_xlabel("$N^{2/3}$ (N: parameters without embeddings)", parse_math=True)
        ax.set_ylabel("width times depth, h l")
        error = found.mu * x / found.hidden_times_layers - 1.0
        ax.set_title(
            f"{len(found.names)} published dense models; line: h l = {found.mu:.4f} N^(2/3), "
            f"mean error {np.abs(error).mean():.1%}",
            fontsize=7,
        )
    return figure


def _doubling_ticks(ax: Axes, experts: FloatArray) -> None:
    from matplotlib.ticker import NullFormatter, NullLocator

    ax.set_xscale("log", base=2)
    top = math.floor(math.log2(float(experts.max())) + 1e-9)
    places = [2.0**power for power in range(top + 1)]
    ax.set_xticks(places, [f"{place:g}" for place in places])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_minor_formatter(NullFormatter())


def _usd(value: float) -> str:
    return f"${value:,g}"
