"""A plan: loss against serving cost."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from moescale.errors import InputError
from moescale.planning.plan import Plan
from moescale.units import expert_label, format_count, format_flops, format_usd
from moescale.views.figures import style
from moescale.views.figures.style import Look
from moescale.views.tables import MARK
from moescale.views.tables.answer import CHEAPER, cheaper

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


DOTTED = (0, (1, 1.6))
PAPER = {"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.8}  # under text on lines
SAME = 1e-4  # of a size, relative: curves of a file have six digits, and their sizes differ by far more
OVER = 1.02  # times the budget's FLOPs, from which on a life is said to be beyond it
FADED = 0.3  # opacity of the curves on which neither the recommended model nor the baseline lies


def plan_figure(plan: Plan) -> Figure:
    """Loss against serving cost on one budget: an arrow from the baseline to the recommendation, over a curve an expert count."""
    with style.house_style():
        figure = style.new_figure(style.PAGE_WIDTH, 4.2)
        across, up = plan_limits(plan)
        ax = figure.subplots(subplot_kw={"xscale": "log", "xlim": across, "ylim": up})
        _curves(ax, plan)
        dotted: Look = {"color": style.FAINT, "linewidth": 1.0, "linestyle": DOTTED, "zorder": 1}
        ax.axhline(plan.built_base.loss, **dotted)
        if plan.built_base.usd_per_mtok is not None:
            ax.axvline(plan.built_base.usd_per_mtok, **dotted)
        _known(ax, plan)
        _recommendation(ax, plan)
        _saving(ax, plan)
        style.log_ticks(ax, "x", lambda usd: f"${usd:,g}", most=7)
        ax.set_xlabel("serving cost (US$ per million output tokens)")
        ax.set_ylabel("loss (nats per token)")
        served = f"served on {plan.gpu} ({plan.prompt_tokens:g} prompt, {plan.output_tokens:g} output tokens)"
        style.headline(figure, f"{format_flops(plan.budget_flops)} training FLOPs under {plan.law}, {served}", 8.0)
        _keys(figure, plan)
    return figure


def _curves(ax: Axes, plan: Plan) -> None:
    edge, told = ax.get_xlim()[1], (plan.decision.model.experts, plan.built_base.experts)
    optima = {c.experts: c for c in plan.loss_optimal}
    for curve in plan.curves:
        best = optima.get(curve.experts)
        shown = curve.usd_per_mtok <= edge
        shown &= curve.n_params <= (math.inf if best is None else best.n_params * (1.0 + SAME))
        look: Look = {"color": style.colour_of(curve.experts), "alpha": 1.0 if curve.experts in told else FADED}
        ax.plot(curve.usd_per_mtok[shown], curve.loss[shown], **look)
    for c in plan.loss_optimal:
        if c.usd_per_mtok is not None:
            style.optimum(ax, c.usd_per_mtok, c.loss, c.experts, 5.5)
            name = f"{expert_label(c.experts)}{' (excluded)' * (c.experts in plan.excluded_experts)}"
            _written(
                ax, name, (c.usd_per_mtok, c.loss), (5, 3, "left", "bottom"), style.colour_of(c.experts), fontsize=7
            )


def _keys(figure: Figure, plan: Plan) -> None:
    """What is drawn how, below the axes."""
    point: Look = {"color": style.FAINT, "marker": "o", "markersize": 4.5, "linestyle": "none"}
    line: Look = {"color": style.FAINT, "linewidth": 1.2}
    base, star = plan.built_base, {"markersize": 9, "markeredgecolor": "white"}
    cost = "" if base.usd_per_mtok is None else f", {format_usd(base.usd_per_mtok)}"
    entries: dict[str, tuple[bool, Look]] = {
        "recommended": (True, point | star | {"color": style.ACCENT, "marker": "*"}),
        "its loss, 90%": (_spread(plan) is not None, {"color": style.ACCENT, "linewidth": 1.0}),
        "loss-optimal": (True, point),
        "smaller, more tokens": (bool(plan.curves), line),
        f"baseline (loss {base.loss:.4f}{cost})": (True, line | {"linewidth": 1.0, "linestyle": DOTTED}),
        "published, 2x: FLOPs over the budget's": (bool(plan.known), point | {"markerfacecolor": "white"}),
    }
    style.key(figure, {name: look for name, (drawn, look) in entries.items() if drawn}, "outside lower left", ncols=4)


def plan_limits(plan: Plan) -> tuple[tuple[float, float], tuple[float, float]]:
    """Costs and losses between which lies what the plan speaks of, with some room; over-trained curves run out at the top."""
    rows = [*plan.loss_optimal, *plan.bounded_loss, *plan.bounded_cost, plan.decision.model, *plan.known]
    served = [(c.usd_per_mtok, c.loss) for c in rows if c.usd_per_mtok is not None]
    if not served:
        raise InputError("no model of this plan is served", next_step="nothing to draw")
    cost, loss = (np.array(column) for column in zip(*served, strict=True))
    left, right = float(cost.min()) / 1.3, float(cost.max()) * 1.9
    shown = [float(y) for c in plan.curves for x, y in zip(c.usd_per_mtok, c.loss, strict=True) if x <= right]
    low, high = min([*shown, float(loss.min())]), float(loss.max())
    room = max(high - low, 0.02)
    return (left, right), (low - 0.28 * room, high + 0.35 * room)


def _known(ax: Axes, plan: Plan) -> None:
    left, right = ax.get_xlim()
    for c in plan.known:
        if c.usd_per_mtok is None or c.name == plan.base_name:  # which has an arrow
            continue
        style.point(ax, c.usd_per_mtok, c.loss, "o", style.FAINT, 5.0, markerfacecolor="white", zorder=5)
        beyond = c.usd_per_mtok > math.sqrt(left * right)  # its name stands at the left, inside the axes
        place = (-4, -4, "right", "top") if beyond else (4, 4, "left", "bottom")
        name = f"{c.name} {c.training_flops / plan.budget_flops:.2g}x{'' if c.beyond_law is None else MARK}"
        _written(ax, name, (c.usd_per_mtok, c.loss), place, style.FAINT, fontsize=7)


def _written(
    ax: Axes, text: str, at: tuple[float, float], place: tuple[float, float, str, str], colour: str, **look: Any
) -> None:
    """A text beside a point, so many points of print away, on paper that hides the curves."""
    x, y, ha, va = place
    more: Look = {"xytext": (x, y), "textcoords": "offset points", "ha": ha, "va": va, "bbox": PAPER, "zorder": 5}
    ax.annotate(text, at, color=style.readable(colour), **more, **look)


def _saving(ax: Axes, plan: Plan) -> None:
    """An arrow from the baseline to the recommended model, both as built, with what is saved."""
    base, model = plan.built_base, plan.decision.model
    if plan.is_baseline or base.usd_per_mtok is None:
        return
    start, end = (base.usd_per_mtok, base.loss), (model.usd_per_mtok, model.loss)
    arrow: Look = {"arrowstyle": "-|>", "color": style.ACCENT, "linewidth": 1.4, "shrinkA": 2.0, "shrinkB": 7.0}
    ax.annotate("", end, xytext=start, arrowprops=arrow, zorder=5)
    style.point(ax, *start, "o", style.ACCENT, 4.5, zorder=5)
    if (ratio := start[0] / end[0]) >= CHEAPER:
        middle = (math.sqrt(start[0] * end[0]), 0.5 * (start[1] + end[1]))
        text = f"{cheaper(ratio)}{' to serve' if plan.of_life else ''}"
        _written(ax, text, middle, (5, -3, "left", "top"), style.ACCENT, fontsize=8, fontweight="bold")


def _spread(plan: Plan) -> tuple[float, float] | None:
    limits = plan.decision.model.intervals or {}
    if (gain := limits.get("loss_gain")) is not None:
        return plan.base_loss - gain[1], plan.base_loss - gain[0]
    return limits.get("loss")


def _recommendation(ax: Axes, plan: Plan) -> None:
    model = plan.decision.model
    x, y = model.usd_per_mtok, model.loss
    if (spread := _spread(plan)) is not None:
        ax.vlines(x, *spread, color=style.ACCENT, linewidth=1.0, zorder=5)
    style.point(ax, x, y, "*", style.ACCENT, 13, markeredgecolor="white", zorder=6)
    # Below and left of the frontier there is nothing: cheaper and better models do not exist.
    base = None if plan.is_baseline else plan.built_base.usd_per_mtok
    share = f" ({x / base:.0%} of the baseline's)" if base else ""
    beyond = ", beyond this budget" if model.training_flops > OVER * plan.budget_flops else ""
    over = "" if plan.decision is plan.recommendation else f" for the lifetime{beyond}"
    sizes = f"{format_count(model.n_params_active)} active, {format_count(model.tokens)} tokens"
    text = f"recommended{over}: {expert_label(model.experts)}, {sizes}\nloss {y:.4f}, {format_usd(x)} per Mtok{share}"
    _written(ax, text, (0.0, 0.0), (6, 6, "left", "bottom"), style.ACCENT, fontsize=7.5, xycoords="axes fraction")
