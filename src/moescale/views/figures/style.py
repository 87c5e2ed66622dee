"""What figures share: one style, one colour and one marker for each expert count, axes with round ticks, and figures into files."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from moescale.errors import InputError, install
from moescale.io.files import check_target, write_atomically
from moescale.typing import FloatArray
from moescale.units import expert_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Look = dict[str, Any]  # keywords of matplotlib

PAGE_WIDTH = 7.0  # inches: the text width of most papers
# Points of matplotlib's viridis at E = 1, 2, 4, .. 512 (CC0, https://bids.github.io/colormap): ordered, the same for
# colour-blind readers, and darker for fewer experts in grey print. It stops before the yellow that paper swallows.
SEQUENCE = tuple(
    ["#440154", "#433e85", "#31678e", "#23898e", "#22a884", "#48c16e", "#7ad151", "#a2da37", "#bddf26", "#d2e21b"]
)
MARKERS = "os^Dvp<>hd"  # by powers of two as well: a second cue beside the colour
# Okabe and Ito, https://jfly.uni-koeln.de/color: for things without an order, such as laws.
CATEGORIES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#000000")
SUFFIXES = (".svg", ".pdf", ".png")
ACCENT = "#D55E00"  # the recommendation, suspects: what the eye shall find first
INK, FAINT, RULE = "#222222", "#767676", "#d9d9d9"
STYLE: Mapping[str, object] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same figure on every machine
    "font.size": 8.0,
    "axes.titlesize": 8.0,
    "axes.titlelocation": "left",
    "axes.labelsize": 8.0,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "grid.color": RULE,
    "grid.linewidth": 0.4,
    "text.color": INK,
    "text.parse_math": False,  # a law may be called a$b$
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 7.0,
    "ytick.labelsize": 7.0,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.2,
    "figure.dpi": 100.0,
    "figure.facecolor": "white",
    "savefig.dpi": 200.0,
    "svg.fonttype": "path",
    "svg.hashsalt": "moescale",
    "pdf.fonttype": 42,
}


def colour_of(experts: float) -> str:
    """The colour of an expert count in every figure, as #rrggbb: one step of the sequence for each doubling."""
    doublings, channels = math.log2(max(experts, 1.0)), np.array([list(_parts(colour)) for colour in SEQUENCE]).T
    return _hexadecimal(float(np.interp(doublings, np.arange(len(SEQUENCE)), each)) for each in channels)


def colour_on_dark(experts: float) -> str:
    """The same colour mixed with white as far as a dark page needs, so that the darkest of the sequence can be seen."""
    light = _light(parts := _parts(colour_of(experts)))
    share = max(0.0, 0.5 - light) / (1.0 - light)  # at least half as light as white
    return _hexadecimal(p + share * (255 - p) for p in parts)


def marker_of(experts: float) -> str:
    """The marker of an expert count in every figure."""
    return MARKERS[min(round(math.log2(max(experts, 1.0))), len(MARKERS) - 1)]


def _parts(colour: str) -> bytes:
    return bytes.fromhex(colour[1:])


def _hexadecimal(parts: Iterable[float]) -> str:
    return f"#{bytes(map(round, parts)).hex()}"


def _light(parts: bytes) -> float:
    """Luma of a colour, 0 to 1 (ITU-R BT.601)."""
    return sum(weight * part for weight, part in zip((0.299, 0.587, 0.114), parts, strict=True)) / 255.0


def readable(colour: str) -> str:
    """The colour dark enough for text on white."""
    light = _light(parts := _parts(colour))
    share = min(1.0, 0.48 / light) if light > 0 else 1.0
    return _hexadecimal(share * p for p in parts)


def house_style() -> AbstractContextManager[None]:
    """The style as a context, or the message for an install without matplotlib."""
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise InputError("figures need matplotlib, which is not installed", next_step=install("figures")) from error
    return mpl.rc_context(cast(Any, dict(STYLE)))


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


def key(figure: Figure, entries: Mapping[str, Look], loc: str = "outside right center", **look: Any) -> None:
    """What is drawn how, by name, beside the axes of a figure."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], label=label, **line) for label, line in entries.items()]
    cast(Any, figure).legend(handles=handles, loc=loc, frameon=False, fontsize=7, **look)


def expert_looks(counts: Iterable[float]) -> dict[str, Look]:
    """Expert counts in their colours and markers, as entries of a key."""
    return {expert_label(e): {"color": colour_of(e), "marker": marker_of(e)} for e in map(float, counts)}


def check_plot(path: str | os.PathLike[str]) -> None:
    """Refuse, before any work is done, a figure that could not be written: its suffix, or matplotlib missing."""
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError(
            f"{suffix!r} is not a kind of figure" if suffix else "the figure's name has no suffix",
            where=os.fspath(path),
            nearest=f"{Path(path).stem or 'figure'}.svg",
            next_step=f"end the name in {', '.join(SUFFIXES)}",
        )
    check_target(path)
    house_style()


def save_figure(figure: Figure, path: str | os.PathLike[str]) -> Path:
    """Write a figure as SVG, PDF or PNG by its suffix, whole or not at all; the same figure gives the same bytes."""
    check_plot(path)
    return write_atomically(path, figure_bytes(figure, Path(path).suffix.lower()[1:]))


def figure_bytes(figure: Figure, kind: str) -> bytes:
    """A figure as svg, pdf or png; the same figure gives the same bytes."""
    metadata: dict[str, dict[str, Any]] = {
        "svg": {"Date": None, "Creator": "moescale"},
        "pdf": {"CreationDate": None, "ModDate": None, "Creator": "moescale", "Producer": None},
        "png": {"Software": "moescale"},
    }
    stream = io.BytesIO()
    with house_style():
        figure.savefig(stream, format=kind, metadata=metadata[kind])
    return stream.getvalue()
