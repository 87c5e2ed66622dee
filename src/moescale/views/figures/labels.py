"""Names at the ends of curves, apart from each other, instead of a legend."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from moescale.views.figures.style import Look, readable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


POINTS = 7.0  # size of a label
End = tuple[float, float, str, str]  # x, y, text, colour


def spread_apart(places: Sequence[float], gap: float) -> list[float]:
    """The places moved as little as possible (least squares) so that neighbours are at least `gap` apart."""
    order = np.argsort(places, kind="stable")
    blocks: list[tuple[float, int]] = []  # mean of (place - rank * gap), and how many share it
    for rank, index in enumerate(order):
        mean, count = places[int(index)] - rank * gap, 1
        while blocks and blocks[-1][0] > mean:
            before, size = blocks.pop()
            mean, count = (mean * count + before * size) / (count + size), count + size
        blocks.append((mean, count))
    flat = [mean for mean, count in blocks for _ in range(count)]
    moved = [0.0] * len(places)
    for rank, index in enumerate(order):
        moved[int(index)] = flat[rank] + rank * gap
    return moved


def end_labels(figure: Figure, ax: Axes, ends: Sequence[End]) -> None:
    """Label points (x, y, text, colour) at their right, in their colour, apart from each other, inside a widened axis."""
    if not ends:
        return
    figure.draw_without_rendering()  # the layout decides how large the axes are
    box = ax.get_window_extent()
    point = figure.dpi / 72.0
    low, high = ax.get_xlim()
    logarithmic = ax.get_xscale() == "log"
    at = np.array([math.log(x) if logarithmic else x for x, *_ in ends])
    a, b = (math.log(low), math.log(high)) if logarithmic else (low, high)
    room = min(0.5, (max(len(text) for _, _, text, _ in ends) * 0.60 * POINTS + 10.0) * point / box.width)
    b = max(b, a + (float(at.max()) - a) / (1.0 - room))
    ax.set_xlim(low, math.exp(b) if logarithmic else b)
    heights_of = np.log if ax.get_yscale() == "log" else np.asarray
    bottom, top = heights_of(np.array(ax.get_ylim()))
    level = (heights_of(np.array([y for _, y, *_ in ends])) - bottom) / (top - bottom)
    gap = 1.3 * POINTS * point / box.height
    heights = np.array(spread_apart(level.tolist(), gap))
    heights += max(0.0, 0.5 * gap - heights.min()) - max(0.0, heights.max() + 0.5 * gap - 1.0)
    across = (at - a) / (b - a)
    starts = across + 9.0 * point / box.width
    for i, (x, y, text, colour) in enumerate(ends):
        moved = abs(heights[i] - level[i]) > 0.4 * gap or starts[i] - across[i] > 0.06
        look: Look = {"ha": "left", "va": "center", "annotation_clip": False, "bbox": paper()}
        look["arrowprops"] = _line(colour, 2.0, (0.0, 0.5)) if moved else None
        _label(ax, (x, y), text, (starts[i], heights[i]), colour, fontsize=POINTS, **look)


def _line(colour: str, shrink: float, start: tuple[float, float]) -> dict[str, object]:
    return {"arrowstyle": "-", "color": colour, "linewidth": 0.4, "shrinkA": 0.0, "shrinkB": shrink, "relpos": start}


def _label(ax: Axes, at: tuple[float, float], text: str, place: tuple[float, float], colour: str, **look: Any) -> None:
    ax.annotate(text, at, xytext=place, textcoords="axes fraction", color=readable(colour), zorder=5, **look)


def paper() -> dict[str, object]:
    """The ground of a text that may lie on lines."""
    return {"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.8}
