"""A plan: loss against serving cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from moescale.errors import InputError
from moescale.planning.plan import Plan
from moescale.typing import FloatArray
from moescale.units import expert_label, format_count, format_flops, format_usd
from moescale.views.figures.axes import headline, log_ticks, new_figure, optimum, point
from moescale.views.figures.style import ACCENT, FAINT, PAGE_WIDTH, Look, colour_of, house_style, readable
from moescale.views.tables import MARK
from moescale.views.tables.answer import CHEAPER, cheaper

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


LARGER, DOTTED = (0, (3, 2)), (0, (1, 1.6))
NARROW = 3.7  # inches: a telephone's screen
SHORT = 26  # letters of an entry of the key that stands twice in a narrow figure
POINTS = 7.0  # size of a label
PAPER = {"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.8}  # under text on lines
End = tuple[float, float, str, str]  # x, y, text, colour
SAME = 1e-4  # of a size, relative: curves of a file have six digits, and their sizes differ by far more
OVER = 1.02  # times the budget's FLOPs, from which on a life is said to be beyond it
FADED = 0.3  # opacity of the curves on which neither the recommended model nor the baseline lies


def plan_figure(plan: Plan, *, narrow: bool = False) -> Figure:
    """Loss against serving cost on one budget: an arrow from the baseline to the recommendation, over a curve an expert count."""
    with house_style():
        figure = new_figure(NARROW, 4.4) if narrow else new_figure(PAGE_WIDTH, 4.2)
        across, up = plan_limits(plan)
        ax = figure.subplots(subplot_kw={"xscale": "log", "xlim": across, "ylim": up})
        _curves(ax, plan)
        dotted: Look = {"color": FAINT, "linewidth": 1.0, "linestyle": DOTTED, "zorder": 1}
        ax.axhline(plan.built_base.loss, **dotted)
        if plan.built_base.usd_per_mtok is not None:
            ax.axvline(plan.built_base.usd_per_mtok, **dotted)
        _known(ax, plan)
        _recommendation(ax, plan, narrow)
        _saving(ax, plan, narrow)
        log_ticks(ax, "x", lambda usd: f"${usd:,g}", most=4 if narrow else 7)
        ax.set_xlabel("serving cost (US$ per million output tokens)")
        ax.set_ylabel("loss (nats per token)")
        if not narrow:
            served = f"served on {plan.gpu} ({plan.prompt_tokens:g} prompt, {plan.output_tokens:g} output tokens)"
            headline(figure, f"{format_flops(plan.budget_flops)} training FLOPs under {plan.law}, {served}", 8.0)
        _key(ax, plan, narrow)
        if ends := _curve_ends(ax, plan):
            _end_labels(figure, ax, ends)
    return figure


def _curves(ax: Axes, plan: Plan) -> None:
    edge, told = ax.get_xlim()[1], (plan.decision.model.experts, plan.built_base.experts)
    optima = {c.experts: c for c in plan.loss_optimal}
    for curve in plan.curves:
        colour, best = colour_of(curve.experts), optima.get(curve.experts)
        seen = 1.0 if curve.experts in told else FADED
        over = curve.n_params <= (math.inf if best is None else best.n_params * (1.0 + SAME))
        last = np.flatnonzero(over)[-1] if over.any() else 0
        usd = np.where(curve.usd_per_mtok <= edge, curve.usd_per_mtok, np.nan)  # its name stands beyond
        ax.plot(usd[over], curve.loss[over], color=colour, alpha=seen)
        ax.plot(usd[last:], curve.loss[last:], color=colour, linewidth=0.8, linestyle=LARGER, alpha=0.8 * seen)
    for c in plan.loss_optimal:
        if c.usd_per_mtok is not None:
            optimum(ax, c.usd_per_mtok, c.loss, c.experts, 5.5)


def _key(ax: Axes, plan: Plan, narrow: bool) -> None:
    from matplotlib.lines import Line2D

    def entry(label: str, **look: Any) -> Line2D:
        settings: Look = {"color": FAINT, "label": label, **look}
        return Line2D([], [], **settings)

    entries = [entry("recommended", color=ACCENT, marker="*", markersize=9, linestyle="none", markeredgecolor="white")]
    if _spread(plan) is not None:
        entries.append(entry("its loss, 90%", color=ACCENT, linewidth=1.0))
    entries.append(entry("loss-optimal", marker="o", markersize=4.5, linestyle="none"))
    if plan.curves:
        entries += [entry("smaller, more tokens"), entry("larger, fewer tokens", linewidth=0.8, linestyle=LARGER)]
    base = plan.built_base
    cost = "" if base.usd_per_mtok is None else f", {format_usd(base.usd_per_mtok)}"
    entries.append(entry(f"baseline (loss {base.loss:.4f}{cost})", linewidth=1.0, linestyle=DOTTED))
    if plan.known:
        look: Look = {"marker": "o", "markersize": 4.5, "linestyle": "none", "markerfacecolor": "white"}
        entries.append(entry("published, 2x: FLOPs over the budget's", **look))
    if narrow:  # the rest is named in the figure
        entries = [each for each in entries if len(str(each.get_label())) < SHORT]
    look = {"frameon": False, "fontsize": 7, "handlelength": 1.6, "columnspacing": 1.1, "handletextpad": 0.5}
    look |= {"borderaxespad": 0.0, "borderpad": 0.3, "bbox_to_anchor": (0.0, 1.0), "loc": "lower left"}
    ax.legend(handles=entries, ncols=2 if narrow else 4, **look)


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


def _curve_ends(ax: Axes, plan: Plan) -> list[End]:
    (left, right), (low, high) = ax.get_xlim(), ax.get_ylim()
    # A plan of a file that holds no curves has its loss-optimal models alone.
    ends = [] if plan.curves else [(c.experts, c.usd_per_mtok, c.loss) for c in plan.loss_optimal]
    for curve in plan.curves:
        x, y = curve.usd_per_mtok, curve.loss
        seen = np.flatnonzero((x > left) & (x < right) & (y > low) & (y < high))
        if seen.size:
            ends.append((curve.experts, float(x[seen[-1]]), float(y[seen[-1]])))
    return [(x, y, _name(plan, experts), colour_of(experts)) for experts, x, y in ends if x is not None]


def _name(plan: Plan, experts: float) -> str:
    return expert_label(experts) + (" (excluded)" if experts in plan.excluded_experts else "")


def _known(ax: Axes, plan: Plan) -> None:
    for c in plan.known:
        if c.usd_per_mtok is None or c.name == plan.base_name:  # which has an arrow
            continue
        point(ax, c.usd_per_mtok, c.loss, "o", FAINT, 5.0, markerfacecolor="white", zorder=5)
        # Away from the right, where the labels of the curves stand.
        left, right = ax.get_xlim()
        beyond = math.log(c.usd_per_mtok / left) > 0.5 * math.log(right / left)
        look: Look = {
            "xytext": (-4, -4) if beyond else (4, 4),
            "textcoords": "offset points",
            "fontsize": 7,
            "bbox": PAPER,
        }
        look |= {"ha": "right", "va": "top"} if beyond else {}
        name = f"{c.name} {c.training_flops / plan.budget_flops:.2g}x{'' if c.beyond_law is None else MARK}"
        ax.annotate(name, (c.usd_per_mtok, c.loss), color=readable(FAINT), zorder=5, **look)


def _saving(ax: Axes, plan: Plan, narrow: bool) -> None:
    """An arrow from the baseline to the recommended model, both as built, with what is saved."""
    base, model = plan.built_base, plan.decision.model
    if plan.is_baseline or base.usd_per_mtok is None:
        return
    start, end = (base.usd_per_mtok, base.loss), (model.usd_per_mtok, model.loss)
    arrow: Look = {"arrowstyle": "-|>", "color": ACCENT, "linewidth": 1.4, "shrinkA": 2.0, "shrinkB": 7.0}
    ax.annotate("", end, xytext=start, arrowprops=arrow, zorder=5)
    point(ax, *start, "o", ACCENT, 4.5, zorder=5)
    if (ratio := start[0] / end[0]) >= CHEAPER:
        middle = (math.sqrt(start[0] * end[0]), 0.5 * (start[1] + end[1]))
        look: Look = {"xytext": (5, -4) if narrow else (0, 5), "textcoords": "offset points", "fontsize": 8}
        look |= {"ha": "left", "va": "top"} if narrow else {"ha": "right", "va": "bottom"}
        look |= {"fontweight": "bold", "bbox": PAPER, "zorder": 6}
        ax.annotate(f"{cheaper(ratio)}{' to serve' if plan.of_life else ''}", middle, color=readable(ACCENT), **look)


def _spread(plan: Plan) -> tuple[float, float] | None:
    limits = plan.decision.model.intervals or {}
    if (gain := limits.get("loss_gain")) is not None:
        return plan.base_loss - gain[1], plan.base_loss - gain[0]
    return limits.get("loss")


def _recommendation(ax: Axes, plan: Plan, narrow: bool) -> None:
    model = plan.decision.model
    x, y = model.usd_per_mtok, model.loss
    if (spread := _spread(plan)) is not None:
        ax.vlines(x, *spread, color=ACCENT, linewidth=1.0, zorder=5)
    point(ax, x, y, "*", ACCENT, 13, markeredgecolor="white", zorder=6)
    # Below and left of the frontier there is nothing: cheaper and better models do not exist.
    base = None if plan.is_baseline else plan.built_base.usd_per_mtok
    share = f" ({x / base:.0%} of the baseline's)" if base else ""
    beyond = ", beyond this budget" if model.training_flops > OVER * plan.budget_flops else ""
    over = "" if narrow or plan.decision is plan.recommendation else f" for the lifetime{beyond}"
    look: Look = {"fontsize": 6.5 if narrow else 7.5, "color": readable(ACCENT), "va": "bottom", "bbox": PAPER}
    look |= {"xycoords": "axes fraction", "xytext": (6, 6), "textcoords": "offset points", "zorder": 6}
    sizes = f"{format_count(model.n_params_active)} active, {format_count(model.tokens)} tokens"
    text = f"recommended{over}: {expert_label(model.experts)}, {sizes}\nloss {y:.4f}, {format_usd(x)} per Mtok{share}"
    ax.annotate(text, (0.0, 0.0), **look)


def _spread_apart(places: FloatArray, gap: float) -> FloatArray:
    """The places moved as little as possible (least squares) so that neighbours are at least `gap` apart."""
    from scipy.optimize import isotonic_regression

    order, gaps, moved = np.argsort(places, kind="stable"), gap * np.arange(places.size), np.empty(places.size)
    moved[order] = isotonic_regression(places[order] - gaps).x + gaps
    return moved


def _end_labels(figure: Figure, ax: Axes, ends: Sequence[End]) -> None:
    """Label points (x, y, text, colour) at their right, in their colour, apart from each other, inside a widened axis."""
    figure.draw_without_rendering()  # the layout decides how large the axes are
    box, point = ax.get_window_extent(), figure.dpi / 72.0
    at = np.array([math.log(x) for x, *_ in ends])
    a, b = map(math.log, ax.get_xlim())
    room = min(0.5, (max(len(text) for _, _, text, _ in ends) * 0.60 * POINTS + 10.0) * point / box.width)
    b = max(b, a + (float(at.max()) - a) / (1.0 - room))
    ax.set_xlim(right=math.exp(b))
    bottom, top = ax.get_ylim()
    level = (np.array([y for _, y, *_ in ends]) - bottom) / (top - bottom)
    gap = 1.3 * POINTS * point / box.height
    heights = _spread_apart(level, gap)
    heights += max(0.0, 0.5 * gap - heights.min()) - max(0.0, heights.max() + 0.5 * gap - 1.0)
    across = (at - a) / (b - a)
    starts = across + 9.0 * point / box.width
    for i, (x, y, text, colour) in enumerate(ends):
        moved = abs(heights[i] - level[i]) > 0.4 * gap or starts[i] - across[i] > 0.06
        look: Look = {"ha": "left", "va": "center", "annotation_clip": False, "bbox": PAPER, "fontsize": POINTS}
        if moved:
            look["arrowprops"] = {"arrowstyle": "-", "color": colour, "linewidth": 0.4, "shrinkA": 0.0, "shrinkB": 2.0}
            look["arrowprops"] |= {"relpos": (0.0, 0.5)}
        place = (starts[i], heights[i])
        ax.annotate(text, (x, y), xytext=place, textcoords="axes fraction", color=readable(colour), zorder=5, **look)
