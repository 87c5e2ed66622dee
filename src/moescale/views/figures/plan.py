"""A plan: loss against serving cost."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from moescale.errors import InputError
from moescale.planning.plan import Plan
from moescale.units import expert_label, format_count, format_flops, format_usd
from moescale.views.figures.axes import headline, log_ticks, new_figure, note, optimum, point
from moescale.views.figures.labels import End, end_labels, paper
from moescale.views.figures.style import ACCENT, FAINT, PAGE_WIDTH, Look, colour_of, house_style, readable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def plan_figure(plan: Plan) -> Figure:
    """Loss against serving cost on one budget: a curve for each expert count, and the recommendation with its reasons in place.

    Solid is the over-trained stretch (smaller than loss-optimal, more tokens), dashed the sizes beyond the loss-optimal
    point; dotted lines are the base's loss and cost.
    """
    with house_style():
        figure = new_figure(PAGE_WIDTH, 4.2)
        ax = figure.subplots()
        ax.set_xscale("log")
        across, up = plan_limits(plan)
        ax.set_xlim(*across)
        ax.set_ylim(*up)
        _curves(ax, plan)
        _base_bound(ax, plan)
        _recommendation(ax, plan)
        _known(ax, plan)
        log_ticks(ax, "x", lambda usd: f"${usd:,g}", most=7)
        ax.set_xlabel("serving cost (US$ per million output tokens)")
        ax.set_ylabel("loss (nats per token)")
        served = f"served on {plan.gpu} ({plan.prompt_tokens:g} prompt, {plan.output_tokens:g} output tokens)"
        headline(figure, f"{format_flops(plan.budget_flops)} training FLOPs under {plan.law}, {served}", 8.0)
        _explanation(ax, plan)
        end_labels(figure, ax, _curve_ends(ax, plan))
    return figure


def _curves(ax: Axes, plan: Plan) -> None:
    edge = ax.get_xlim()[1]
    optima = {c.experts: c for c in plan.loss_optimal}
    for curve in plan.curves:
        colour, best = colour_of(curve.experts), optima.get(curve.experts)
        over = curve.n_params <= (math.inf if best is None else best.n_params * (1 + 1e-9))
        last = np.flatnonzero(over)[-1] if over.any() else 0
        usd = np.where(curve.usd_per_mtok <= edge, curve.usd_per_mtok, np.nan)  # its name stands beyond
        ax.plot(usd[over], curve.loss[over], color=colour)
        ax.plot(usd[last:], curve.loss[last:], color=colour, linewidth=0.8, linestyle=(0, (3, 2)), alpha=0.8)
    for c in plan.loss_optimal:
        if c.usd_per_mtok is not None:
            optimum(ax, c.usd_per_mtok, c.loss, c.experts, 5.5)
    if plan.frontier:
        x, y = zip(*((c.usd_per_mtok, c.loss) for c in plan.frontier), strict=True)
        ax.plot(x, y, color="#bdbdbd", linewidth=4.5, alpha=0.5, zorder=1, solid_capstyle="round")


def _explanation(ax: Axes, plan: Plan) -> None:
    solid = "solid: over-trained (smaller, more tokens); dashed: larger;\n" if plan.curves else "\n"
    first = f"markers: loss-optimal sizes, named at the right;{' ' if plan.curves else ''}{solid}"
    cost = "" if plan.base_usd_per_mtok is None else f" and cost {format_usd(plan.base_usd_per_mtok)}"
    base = "dense model" if plan.base_experts == 1 else f"model with E = {plan.base_experts:g}"
    dotted = f"dotted: loss {plan.base_loss:.4f}{cost} of the loss-optimal {base}, the base"
    circles = "\ncircles: known models, hollow where the law may not speak of them" if plan.known else ""
    note(ax, f"{first}grey: Pareto frontier; {dotted}{circles}")


def plan_limits(plan: Plan) -> tuple[tuple[float, float], tuple[float, float]]:
    """Costs and losses between which lies what the plan speaks of, with some room; over-trained curves run out at the top."""
    rows = [*plan.loss_optimal, *plan.bounded_loss, *plan.bounded_cost, plan.recommendation.model, *plan.known]
    served = [(c.usd_per_mtok, c.loss) for c in rows if c.usd_per_mtok is not None]
    if not served:
        raise InputError("no model of this plan is served", next_step="nothing to draw")
    cost, loss = (np.array(column) for column in zip(*served, strict=True))
    left, right = float(cost.min()) / 1.3, float(cost.max()) * 1.9
    shown = [float(y) for c in plan.curves for x, y in zip(c.usd_per_mtok, c.loss, strict=True) if x <= right]
    low, high = min([*shown, float(loss.min())]), float(loss.max())
    room = max(high - low, 0.02)
    return (left, right), (low - 0.2 * room, high + 0.35 * room)


def _curve_ends(ax: Axes, plan: Plan) -> list[End]:
    """Where each expert count's curve is named: at its last point in the picture, with its loss-optimal size."""
    ends: list[End] = []
    own = {c.experts: c.n_params for c in plan.loss_optimal}
    (left, right), (low, high) = ax.get_xlim(), ax.get_ylim()
    for curve in plan.curves:
        x, y = curve.usd_per_mtok, curve.loss
        seen = np.flatnonzero((x > left) & (x < right) & (y > low) & (y < high))
        if seen.size:
            size = own.get(curve.experts)
            text = expert_label(curve.experts) + (f": {format_count(size)}" if size is not None else "")
            ends.append((float(x[seen[-1]]), float(y[seen[-1]]), text, colour_of(curve.experts)))
    if plan.curves:
        return ends
    return [  # a plan of a file that holds no curves
        (c.usd_per_mtok, c.loss, f"{expert_label(c.experts)}: {format_count(c.n_params)}", colour_of(c.experts))
        for c in plan.loss_optimal
        if c.usd_per_mtok is not None
    ]


def _base_bound(ax: Axes, plan: Plan) -> None:
    dotted: Look = {"color": FAINT, "linewidth": 1.0, "linestyle": (0, (1, 1.6)), "zorder": 1}
    ax.axhline(plan.base_loss, **dotted)
    if plan.base_usd_per_mtok is not None:
        ax.axvline(plan.base_usd_per_mtok, **dotted)


def _known(ax: Axes, plan: Plan) -> None:
    """Dots with their names; hollow where the law may not speak of the model."""
    for c in plan.known:
        if c.usd_per_mtok is None:
            continue
        inside = FAINT if c.beyond_law is None else "white"
        point(ax, c.usd_per_mtok, c.loss, "o", FAINT, 5.0, markerfacecolor=inside, zorder=5)
        look: Look = {"xytext": (3, -9), "textcoords": "offset points", "fontsize": 7, "bbox": paper()}
        ax.annotate(c.name, (c.usd_per_mtok, c.loss), color=readable(FAINT), zorder=5, **look)


def _recommendation(ax: Axes, plan: Plan) -> None:
    from matplotlib.text import OffsetFrom

    model = plan.recommendation.model
    x, y = model.usd_per_mtok, model.loss
    spread = model.intervals or {}
    if "usd_per_mtok" in spread:
        ax.hlines(y, *spread["usd_per_mtok"], color=ACCENT, linewidth=1.0, zorder=5)
    if "loss" in spread:
        ax.vlines(x, *spread["loss"], color=ACCENT, linewidth=1.0, zorder=5)
    point(ax, x, y, "*", ACCENT, 13, markeredgecolor="white", zorder=6)
    # Below and left of the frontier there is nothing: cheaper and better models do not exist.
    share = "" if model.cost_ratio is None else f" ({model.cost_ratio:.0%} of the base's)"
    look: Look = {"fontsize": 7.5, "color": readable(ACCENT), "va": "bottom", "zorder": 6, "bbox": paper()}
    look["arrowprops"] = {"arrowstyle": "-", "color": ACCENT, "linewidth": 0.7, "shrinkB": 5.0}
    ax.annotate(
        f"train this: {expert_label(model.experts)}, N = {format_count(model.n_params)}\n"
        f"{format_count(model.tokens)} tokens, loss {y:.4f}\n{format_usd(x)} per Mtok{share}",
        (x, y),
        xytext=(6, 6),
        textcoords=OffsetFrom(ax, (0.0, 0.0), "points"),
        **look,
    )
