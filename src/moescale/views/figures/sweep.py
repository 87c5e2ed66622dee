"""Operating points of one model: dollars per token against time per token."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from moescale.serving.operating_points import OperatingPoints
from moescale.typing import FloatArray
from moescale.views.figures.axes import headline, log_ticks, new_figure, note, tick_places
from moescale.views.figures.axes import point as mark
from moescale.views.figures.labels import End, end_labels, paper
from moescale.views.figures.style import CATEGORIES, DASHES, PAGE_WIDTH, Look, house_style, readable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_DOTS = 5000  # of one colour that an SVG or PDF holds as shapes; more are an image in it


def sweep_figure(points: OperatingPoints) -> Figure:
    """Dollars per token against time per output token: every operating point, and a Pareto line for each kind of GPU.

    With one kind of GPU a line stands for a number format of weights and cache. Dots on a line carry their GPU count; the
    grey band is the Pareto set of all points.
    """
    lines = [(name, points.frontier(mask), mask) for name, mask in _sweep_groups(points)]
    x, y = 1e3 * points.tpot_s, points.usd_per_mtok
    with house_style():
        figure = new_figure(PAGE_WIDTH, 4.6)
        ax = figure.subplots()
        _limit_sweep(ax, x, y, np.concatenate([own for _, own, _ in lines]))
        ax.plot(x[points.pareto], y[points.pareto], color="#bdbdbd", linewidth=5.0, alpha=0.5, zorder=1)
        ends: list[End] = []
        for place, (name, own, mask) in enumerate(lines):
            colour, dash = CATEGORIES[place % len(CATEGORIES)], DASHES[place // len(CATEGORIES) % len(DASHES)]
            look: Look = {"linewidths": 0, "zorder": 2, "rasterized": bool(mask.sum() > MOST_DOTS)}
            ax.scatter(x[mask], y[mask], s=4.0, color=colour, alpha=0.18, **look)
            ax.plot(x[own], y[own], color=colour, linestyle=dash, zorder=4)
            ends.append((float(x[own[-1]]), float(y[own[-1]]), name, colour))
        end_labels(figure, ax, ends)
        log_ticks(ax, "x", lambda ms: f"{ms:,g}", most=9)
        log_ticks(ax, "y", lambda usd: f"${usd:,g}", most=8)
        _per_user_axis(ax)
        _gpu_counts(figure, ax, points, [(own, colour) for (_, own, _), (*_, colour) in zip(lines, ends, strict=True)])
        ax.set_xlabel("time per output token (ms)")
        ax.set_ylabel("serving cost (US$ per million output tokens)")
        _explanation(figure, ax, points)
    return figure


def _explanation(figure: Figure, ax: Axes, points: OperatingPoints) -> None:
    cards = dict.fromkeys(points.platforms[i].gpu.name for i in np.unique(points.platform).tolist())
    model, d = f"{points.model.name} on " if points.model.name else "", points.deployment
    requests = f"({d.prompt_tokens:.4g} prompt, {d.output_tokens:.4g} output tokens)"
    headline(figure, f"{model}{', '.join(cards)} {requests}")
    band = "(grey band: nothing at all)"
    lines = f"lines: nothing of that colour is cheaper and faster {band}; numbers: GPUs at the dots;"
    note(ax, f"{lines}\nfaint: all {len(points):,} points{'' if len(cards) > 1 else '; names: weights / cache'}")


def _limit_sweep(ax: Axes, x: FloatArray, y: FloatArray, on_lines: npt.NDArray[np.intp]) -> None:
    for values, scale, limit in ((x[on_lines], ax.set_xscale, ax.set_xlim), (y[on_lines], ax.set_yscale, ax.set_ylim)):
        low, high = float(values.min()), float(values.max())
        pad = max((high / low) ** 0.06, 1.08)
        scale("log")
        limit(low / pad, high * pad)


def _sweep_groups(points: OperatingPoints) -> list[tuple[str, npt.NDArray[np.bool_]]]:
    several = len({points.platforms[i].gpu.name for i in np.unique(points.platform).tolist()}) > 1
    masks: dict[str, npt.NDArray[np.bool_]] = {}
    for index, p in enumerate(points.platforms):
        name = p.gpu.name if several else f"{p.weights.name} / {p.kv_cache.name}"
        mine = points.platform == index
        if mine.any():
            masks[name] = masks[name] | mine if name in masks else mine
    return list(masks.items())


def _per_user_axis(ax: Axes) -> None:
    from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

    def inverse(values: npt.ArrayLike) -> npt.ArrayLike:
        return 1e3 / np.maximum(np.asarray(values, dtype=np.float64), 1e-300)

    low, high = ax.get_xlim()
    top = ax.secondary_xaxis("top", functions=(inverse, inverse))
    top.xaxis.set_major_locator(FixedLocator(tick_places(1e3 / high, 1e3 / low, 9)))
    top.xaxis.set_minor_locator(NullLocator())
    top.xaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    top.set_xlabel("tokens a second for each user")
    top.spines["top"].set_visible(True)


def _gpu_counts(
    figure: Figure, ax: Axes, points: OperatingPoints, lines: Sequence[tuple[npt.NDArray[np.intp], str]]
) -> None:
    from matplotlib.text import Text

    figure.draw_without_rendering()
    point, size = figure.dpi / 72.0, 6.5
    names = [Text.get_window_extent(text).padded(point) for text in ax.texts]  # an annotation's without its arrow
    taken: list[tuple[float, float]] = []
    for own, colour in lines:
        gpus = points.gpus[own]
        for i in [0, *(np.flatnonzero(gpus[1:] != gpus[:-1]) + 1).tolist()]:
            x, y, text = 1e3 * float(points.tpot_s[own[i]]), float(points.usd_per_mtok[own[i]]), f"{gpus[i]:.0f}"
            at_x, at_y = ax.transData.transform(np.array([x, y])).tolist()
            left, below = at_x - (2.5 + 0.65 * size * len(text)) * point, at_y - (2.5 + size) * point
            covers = any(left < b.x1 and b.x0 < at_x and below < b.y1 and b.y0 < at_y for b in names)
            if covers or any(math.hypot(at_x - a, at_y - b) < 15.0 * point for a, b in taken):
                continue
            taken.append((at_x, at_y))
            mark(ax, x, y, "o", colour, 3.0, zorder=5)
            where: Look = {"xytext": (-2.5, -2.5), "textcoords": "offset points", "ha": "right", "va": "top"}
            ax.annotate(text, (x, y), fontsize=size, color=readable(colour), zorder=6, bbox=paper(), **where)
