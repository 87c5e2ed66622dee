"""What the figures share: pages, logarithmic axes with round ticks, the key of expert counts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from moescale.typing import FloatArray
from moescale.units import expert_label
from moescale.views.figures.style import Look, colour_of, marker_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def new_figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def headline(figure: Figure, text: str, size: float = 9.0) -> None:
    figure.suptitle(text, x=0.01, ha="left", fontsize=size)


def point(ax: Axes, x: float, y: float, marker: str, colour: str, size: float, **look: Any) -> None:
    ax.plot([x], [y], marker=marker, color=colour, markersize=size, linestyle="none", **look)


def optimum(ax: Axes, x: float, y: float, experts: float, size: float) -> None:
    """A loss-optimal model on the curve of its expert count."""
    look: Look = {"markeredgecolor": "white", "markeredgewidth": 0.6, "zorder": 4}
    point(ax, x, y, marker_of(experts), colour_of(experts), size, **look)


def log_ticks(
    ax: Axes, which: str, text: Callable[[float], str], values: FloatArray | None = None, most: int = 5
) -> None:
    """A logarithmic axis around `values` with at most `most` round ticks, written by `text`."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

    def write(value: float, _: int | None = None) -> str:
        return text(value)

    (ax.set_xscale if which == "x" else ax.set_yscale)("log")
    if values is not None and values.size:
        low, high = float(np.nanmin(values)), float(np.nanmax(values))
        pad = max((high / low) ** 0.06, 1.05)
        (ax.set_xlim if which == "x" else ax.set_ylim)(low / pad, high * pad)
    axis = ax.xaxis if which == "x" else ax.yaxis
    low, high = ax.get_xlim() if which == "x" else ax.get_ylim()
    axis.set_major_locator(FixedLocator(tick_places(low, high, most)))
    axis.set_major_formatter(FuncFormatter(write))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())


def tick_places(low: float, high: float, most: int) -> list[float]:
    """Round numbers between two positive ones, as many as fit under `most`: 1, 2, 5 a decade where they do."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    sets = [
        (1.0, 1.1, 1.2, 1.3, 1.4, 1.6, 1.8, 2.0, 2.2, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 5.5, 6.0, 7.0, 8.0, 9.0),
        (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0),
        (1.0, 1.5, 2.0, 3.0, 5.0, 7.0),
        (1.0, 2.0, 5.0),
        (1.0, 3.0),
        (1.0,),
    ]
    for steps in sets:
        places = [m * 10.0**p for p in range(first, last + 1) for m in steps if low <= m * 10.0**p <= high]
        if len(places) <= most:
            return places
    return [10.0**p for p in range(first, last + 1, max(1, math.ceil((last - first) / most))) if low <= 10.0**p <= high]


def expert_key(
    ax: Axes, counts: Iterable[float], corner: Literal["upper left", "upper right"], *, lines: bool = False
) -> None:
    """Expert counts in their colours, in a corner that the curves leave free."""
    from matplotlib.lines import Line2D

    handles: list[Line2D] = []
    for e in map(float, counts):
        style: Look = {"linestyle": "-"} if lines else {"linestyle": "none", "marker": marker_of(e)}
        handles.append(Line2D([], [], color=colour_of(e), label=expert_label(e), **style))
    look: Look = {"frameon": False, "fontsize": 7, "handlelength": 1.0, "labelspacing": 0.2, "columnspacing": 0.6}
    look |= {"borderpad": 0.1, "borderaxespad": 0.2, "handletextpad": 0.4 if lines else 0.0}
    ax.legend(handles=handles, loc=corner, ncols=1 if len(handles) <= 6 else 2, **look)
