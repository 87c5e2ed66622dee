"""The paper's figures in the style of moescale.views.figures: records of `series` in, a matplotlib Figure out.

Crosses are numbers that the paper prints; it publishes no data of its figures.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from moescale.errors import InputError
from moescale.reproduction.claims import claims
from moescale.reproduction.series import Row
from moescale.typing import FloatArray
from moescale.units import expert_label, format_count, format_flops
from moescale.views.figures.axes import expert_key, headline, log_ticks, new_figure, optimum, point
from moescale.views.figures.style import ACCENT, FAINT, INK, PAGE_WIDTH, RULE, Look, colour_of, house_style, marker_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DASHES = ("-", (0, (4, 1.5)), (0, (1, 1.2)), (0, (5, 1.2, 1, 1.2)))  # by rising size, a second cue
DOTTED: Look = {"color": FAINT, "linewidth": 1.0, "linestyle": (0, (1, 1.6))}
NEAR = 1.05  # budgets of a printed number and of a curve are the same within this factor
USD = "cost (US$ per million output tokens)"
NATS = "loss (nats per token)"
ACTIVE = "activated size over the baseline's"


def curves(rows: Sequence[Row], by: str) -> Iterator[tuple[Any, dict[str, FloatArray]]]:
    """The columns of the records of each value of one column, in the order of first appearance."""
    for value in dict.fromkeys(row[by] for row in rows):
        mine = [row for row in rows if row[by] == value]
        yield value, {name: np.array([row.get(name) for row in mine]) for name in mine[0]}


def fitted_figure(rows: Sequence[Row]) -> Figure:
    """Figure 1: loss against experts, a panel for each token count, a line for each size; bands hold 90% of the draws."""
    law, printed = ([row for row in rows if row["kind"] == kind] for kind in ("law", "printed"))
    sizes = dict.fromkeys(row["n_params"] for row in law)
    banded = "loss_low" in law[0]
    with house_style():
        figure = new_figure(PAGE_WIDTH, 2.6)
        panels = list(curves(law, "tokens"))
        axes = figure.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)[0]
        for ax, (tokens, _) in zip(axes, panels, strict=True):
            for (_, c), dashes in zip(
                curves([r for r in law if r["tokens"] == tokens], "n_params"), DASHES, strict=True
            ):
                ax.plot(c["experts"], c["loss"], color=INK, linewidth=1.0, linestyle=dashes)
                if banded:
                    ax.fill_between(c["experts"], c["loss_low"], c["loss_high"], color=FAINT, alpha=0.25, linewidth=0)
            for row in (row for row in printed if row["tokens"] == tokens):
                point(ax, row["experts"], row["loss"], "x", ACCENT, 4.5, markeredgewidth=1.1, zorder=4)
            ax.set_title(f"D = {format_count(tokens)}")
            _doubling_ticks(ax, max(row["experts"] for row in law))
            ax.set_xlabel("experts E")
        axes[0].set_ylabel(NATS)
        key = [
            (format_count(n), {"color": INK, "linewidth": 1.0, "linestyle": dashes})
            for n, dashes in zip(sizes, DASHES, strict=True)
        ]
        _outside_key(figure, key, title="N", handlelength=2.4)
        below = "crosses: surfaces that the paper prints for E = 8 and 16" + "; bands: 90% of the law's draws" * banded
        _headline(figure, "Fitted losses, a line for each dense-equivalent size N", below)
    return figure


def cost_figure(rows: Sequence[Row]) -> Figure:
    """Figure 2: serving cost against size, and the largest size against serving cost."""
    known = np.array([row["usd_per_mtok"] for row in rows])
    _check_served(known)
    top = float(np.nanquantile(known, 0.97))
    with house_style():
        figure = new_figure(PAGE_WIDTH, 2.9)
        left, right = figure.subplots(1, 2)
        for e, c in curves(rows, "experts"):
            n, usd = c["n_params"], np.where(c["usd_per_mtok"] <= top, c["usd_per_mtok"], np.nan)
            left.plot(n, usd, color=colour_of(e))
            right.plot(usd, n, color=colour_of(e))
        _usd_axis(left, "y", known[known <= top])
        _usd_axis(right, "x", known[known <= top])
        for ax, which in ((left, "x"), (right, "y")):
            log_ticks(ax, which, format_count, np.array([row["n_params"] for row in rows]), most=6)
            (ax.set_xlabel if which == "x" else ax.set_ylabel)("size N (dense-equivalent parameters)")
        expert_key(left, dict.fromkeys(row["experts"] for row in rows), "upper left", lines=True)
        _headline(figure, "Serving cost by size, and the size that a cost allows", "steps: one GPU more is needed")
    return figure


def trade_off_figure(rows: Sequence[Row]) -> Figure:
    """Figure 3: loss-optimal models: loss against cost, loss against training FLOPs, cost against training FLOPs."""
    usd, flops = (np.array([row[name] for row in rows]) for name in ("usd_per_mtok", "budget_flops"))
    _check_served(usd)
    with house_style():
        figure = new_figure(PAGE_WIDTH, 2.9)
        left, middle, right = figure.subplots(1, 3)
        for e, c in curves(rows, "experts"):
            for ax, x, y in (
                (left, c["usd_per_mtok"], c["loss"]),
                (middle, c["budget_flops"], c["loss"]),
                (right, c["budget_flops"], c["usd_per_mtok"]),
            ):
                ax.plot(x, y, color=colour_of(e), marker=marker_of(e), markevery=5, markersize=2.8)
        _usd_axis(left, "x", usd, most=4)
        _usd_axis(right, "y", usd)
        for ax in (middle, right):
            log_ticks(ax, "x", format_flops, flops, most=4)
            ax.set_xlabel("training FLOPs")
        for ax in (left, middle):
            ax.set_ylabel(NATS)
        for ax, title in ((left, "quality and cost"), (middle, "quality and training"), (right, "cost and training")):
            ax.set_title(title)
        expert_key(middle, dict.fromkeys(row["experts"] for row in rows), "upper right")
        _headline(figure, "Loss-optimal models")
    return figure


def curves_figure(rows: Sequence[Row]) -> Figure:
    """Figure 4: loss against cost, a panel for each budget; markers are loss-optimal, solid lines over-trained."""
    with house_style():
        figure = new_figure(PAGE_WIDTH, 3.2)
        budgets = list(dict.fromkeys(row["budget_flops"] for row in rows))
        axes = figure.subplots(1, len(budgets), squeeze=False)[0]
        for ax, budget in zip(axes, budgets, strict=True):
            _loss_cost_panel(ax, [row for row in rows if row["budget_flops"] == budget])
            ax.set_title(f"{format_flops(budget)} training FLOPs")
        axes[0].set_ylabel(NATS)
        expert_key(axes[-1], dict.fromkeys(row["experts"] for row in rows), "upper right")
        below = "markers: loss-optimal sizes; solid: smaller, more tokens; dashed: larger"
        _headline(figure, "Models that spend a whole budget", below)
    return figure


def _loss_cost_panel(ax: Axes, rows: Sequence[Row]) -> None:
    best = [row for row in rows if row["share"] == 1.0]
    for e, c in curves(rows, "experts"):
        at, colour = int(np.flatnonzero(c["share"] == 1.0)[0]), colour_of(e)
        ax.plot(c["usd_per_mtok"][: at + 1], c["loss"][: at + 1], color=colour)
        ax.plot(c["usd_per_mtok"][at:], c["loss"][at:], color=colour, linewidth=0.8, linestyle=(0, (3, 2)))
        optimum(ax, c["usd_per_mtok"][at], c["loss"][at], e, 5.0)
    low, high = (bound(row["loss"] for row in best) for bound in (min, max))
    ax.set_ylim(low - 0.12 * (high - low), high + 0.9 * (high - low))
    known = np.array([row["usd_per_mtok"] for row in best if math.isfinite(row["usd_per_mtok"])])
    _check_served(known)
    _usd_axis(ax, "x", np.array([known.min() / 6.0, known.max() * 1.6]))


def bounded_loss_figure(rows: Sequence[Row]) -> Figure:
    """Figure 5: at the loss of a base's optimum: cost over the base's (above) and activated size over the base's (below)."""
    printed = ("cost_ratio_at_base_loss", "active_ratio_at_base_loss")
    with house_style():
        figure, axes = _bounded_panels(rows, ("cost_ratio", "active_ratio"), printed)
        axes[0, 0].set_ylabel("cost over the baseline's")
        for ax in axes[0]:
            ax.set_ylim(bottom=0.0)
        _headline(figure, "Models with the loss of the baseline's optimum", "crosses: printed in the paper")
    return figure


def bounded_cost_figure(rows: Sequence[Row]) -> Figure:
    """Figure 6: at the cost of a base's optimum: the lowest loss (above) and activated size over the base's (below)."""
    with house_style():
        figure, axes = _bounded_panels(rows, ("loss", "active_ratio"), ("", "active_ratio_at_base_cost"))
        for (above, below), (_, c) in zip(axes.T, curves(rows, "base_experts"), strict=True):
            one = c["experts"] == c["experts"][0]
            above.plot(c["budget_flops"][one], c["base_loss"][one], **DOTTED)
            below.axhline(1.0, zorder=1, **DOTTED)
        axes[0, 0].set_ylabel(NATS)
        crosses = "crosses: printed in the paper, black ones for the least and the most of other expert counts"
        _headline(figure, "Models with the cost of the baseline's optimum", f"dotted: the baseline; {crosses}")
    return figure


def _bounded_panels(rows: Sequence[Row], shown: Sequence[str], printed: Sequence[str]) -> tuple[Figure, Any]:
    """Two panels for each base, with the printed numbers of the quantities, and the key."""
    bases = list(curves(rows, "base_experts"))
    figure = new_figure(PAGE_WIDTH, 4.6)
    axes = figure.subplots(2, len(bases), sharex=True, sharey="row", squeeze=False)
    for column, (base, whole) in zip(axes.T, bases, strict=True):
        column[0].set_title(f"baseline: loss-optimal {expert_label(base)}")
        for ax, name, quantity in zip(column, shown, printed, strict=True):
            for e, c in curves([row for row in rows if row["base_experts"] == base], "experts"):
                look: Look = {"color": colour_of(e), "marker": marker_of(e), "markevery": 6, "markersize": 2.8}
                ax.plot(c["budget_flops"], c[name], **look)
            _printed_numbers(ax, base, whole, quantity)
            log_ticks(ax, "x", format_flops, whole["budget_flops"], most=6)
        column[1].set_xlabel("training FLOPs")
        column[1].set_ylim(bottom=0.0)
    axes[1, 0].set_ylabel(ACTIVE)
    key = [
        (expert_label(e), {"color": colour_of(e), "marker": marker_of(e), "markersize": 3.2})
        for e in dict.fromkeys(row["experts"] for row in rows)
    ]
    _outside_key(figure, [*key, ("paper", {"color": INK, "marker": "x", "linestyle": "none"})], handlelength=1.6)
    return figure, axes


def _printed_numbers(ax: Axes, base: float, shown: Mapping[str, FloatArray], quantity: str) -> None:
    """The paper's own numbers for these curves, as crosses in the colour of their expert count."""
    lowest, highest = shown["budget_flops"].min() / NEAR, shown["budget_flops"].max() * NEAR
    for part in (part for claim in claims() for part in claim.parts):
        if part.quantity != quantity or part.base_experts != base or part.paper is None:
            continue
        several = bool(part.other_experts)  # then it is the least or the most of them
        if (several or part.experts in shown["experts"]) and lowest <= part.budget_flops <= highest:
            colour = INK if several else colour_of(part.experts)
            point(ax, part.budget_flops, part.paper, "x", colour, 5.5, markeredgewidth=1.4, zorder=5)


def hidden_layers_figure(rows: Sequence[Row]) -> Figure:
    """Figure 8: width times depth of real models against N^(2/3), with the fitted line."""
    n, hl, fitted = (np.array([row[name] for row in rows]) for name in ("n_params", "hidden_times_layers", "fitted"))
    x = n ** (2.0 / 3.0)
    mu = float(np.mean(fitted / x))
    with house_style():
        figure = new_figure(0.6 * PAGE_WIDTH, 2.9)
        ax = figure.subplots()
        line = np.geomspace(x.min() / 1.3, x.max() * 1.3, 16)
        ax.plot(line, mu * line, color=FAINT, linewidth=1.0)
        ax.plot(x, hl, marker="o", markersize=3.6, color=ACCENT, linestyle="none")
        log_ticks(ax, "x", format_count, line, most=6)
        log_ticks(ax, "y", format_count, hl, most=6)
        ax.set_xlabel("$N^{2/3}$ (N: parameters without embeddings)", parse_math=True)
        ax.set_ylabel("width times depth, h l")
        off = f"mean error {np.abs(fitted / hl - 1.0).mean():.1%}"
        ax.set_title(f"{len(rows)} published dense models; line: h l = {mu:.4f} N^(2/3), {off}", fontsize=7)
    return figure


def verdict_figure(rows: Sequence[Row]) -> Figure:
    """Each printed number: ours over it, with 90% of the law's draws, and beside it ours on the other server."""
    with house_style():
        figure = new_figure(PAGE_WIDTH, 0.9 + 0.165 * len(rows))
        ax = figure.subplots()
        for share, alpha in ((0.25, 0.35), (0.15, 0.6)):
            ax.axvspan(1.0 - share, 1.0 + share, color=RULE, alpha=alpha, linewidth=0)
        ax.axvline(1.0, color=FAINT, linewidth=0.8)
        for place, row in enumerate(rows):
            paper = row["paper"]
            ax.plot([row["low"] / paper, row["high"] / paper], [place, place], color=INK, linewidth=1.0)
            point(ax, row["ours"] / paper, place, "o", INK, 4.0, zorder=4)
            if row["beside"] is not None:
                point(ax, row["beside"] / paper, place, "o", ACCENT, 4.0, markerfacecolor="none", zorder=3)
        ax.set_yticks(range(len(rows)), [f"{row['number']}: {row['paper']:g}" for row in rows])
        ax.set_ylim(len(rows) - 0.4, -0.6)
        values = [
            row[name] / row["paper"] for row in rows for name in ("low", "high", "beside") if row[name] is not None
        ]
        log_ticks(ax, "x", lambda at: f"{at:g}", np.array(values), most=8)
        ax.set_xlabel("ours / printed")
        below = "filled: this server, lines 90% of the law's draws; open: fused experts and today's lengths"
        _headline(figure, "The paper's printed numbers, computed again; shaded: within 15% and 25%", below)
    return figure


def _check_served(usd: FloatArray) -> None:
    if not np.isfinite(usd).any():
        raise InputError("none of these models can be served", next_step="take more GPUs, or smaller budgets")


def _usd_axis(ax: Axes, which: str, usd: FloatArray, most: int = 6) -> None:
    log_ticks(ax, which, lambda value: f"${value:,g}", usd, most=most)
    (ax.set_xlabel if which == "x" else ax.set_ylabel)(USD)


def _headline(figure: Figure, text: str, below: str = "") -> None:
    """The figure's title, and how to read it in a second line."""
    headline(figure, f"{text}\n{below}" if below else text, 8.0)


def _outside_key(figure: Figure, entries: Sequence[tuple[str, Mapping[str, Any]]], **look: Any) -> None:
    """Names with the look of their lines, right of all panels."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], label=label, **line) for label, line in entries]
    figure.legend(handles=handles, loc="outside right center", frameon=False, fontsize=7, **look)


def _doubling_ticks(ax: Axes, most: float) -> None:
    from matplotlib.ticker import NullFormatter, NullLocator

    ax.set_xscale("log", base=2)
    places = [2.0**power for power in range(math.floor(math.log2(most) + 1e-9) + 1)]
    ax.set_xticks(places, [f"{place:g}" for place in places])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_minor_formatter(NullFormatter())
