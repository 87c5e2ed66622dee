"""Serving cost against model size, and the largest model within a cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from moescale.errors import InputError
from moescale.planning.candidate import LargestModels, ServingCurves
from moescale.typing import FloatArray
from moescale.units import expert_label, format_count
from moescale.views.figures.axes import headline, log_ticks, new_figure, note
from moescale.views.figures.labels import End, end_labels, top_labels
from moescale.views.figures.style import PAGE_WIDTH, Look, colour_of, house_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WALL = 6.0  # times the cost of the last change of the GPU count: where a cost curve runs out of the picture


def cost_figure(curves: ServingCurves) -> Figure:
    """Serving cost against model size, a curve for each expert count, and below it the GPU counts of the cheapest deployment.

    Dots stand where that count changes. Walls near the memory of all GPUs run out of the picture at the top.
    """
    known = np.isfinite(curves.usd_per_mtok)
    _check_any(known)
    steps = [curves.usd_per_mtok[j, i] for j, gpus in enumerate(curves.gpus) for i in _steps(gpus)]
    top = WALL * max(steps) if steps else np.inf
    usd = np.where(known & (curves.usd_per_mtok <= top), curves.usd_per_mtok, np.nan)
    with house_style():
        figure, ax, strip = _curves_above_strip(curves.experts.size)
        _serving_curves(figure, ax, strip, curves, curves.n_params, usd, name=top_labels)
        for panel in (ax, strip):
            log_ticks(panel, "x", format_count, most=9)
        log_ticks(ax, "y", lambda at: f"${at:,g}", most=8)
        ax.set_ylabel("serving cost\n(US$ per million output tokens)")
        strip.set_xlabel("size N (dense-equivalent parameters)")
    return figure


def largest_figure(found: LargestModels) -> Figure:
    """The largest model within a serving cost, a curve for each expert count, and below it the GPU counts that serve it."""
    _check_any(np.isfinite(found.n_params))
    with house_style():
        figure, ax, strip = _curves_above_strip(found.experts.size)
        _serving_curves(figure, ax, strip, found, found.usd_per_mtok, found.n_params, name=end_labels)
        for panel in (ax, strip):
            log_ticks(panel, "x", lambda at: f"${at:,g}", most=9)
        log_ticks(ax, "y", format_count, most=8)
        ax.set_ylabel("largest size N\n(dense-equivalent parameters)")
        strip.set_xlabel("serving cost (US$ per million output tokens)")
    return figure


def _check_any(known: npt.NDArray[np.bool_]) -> None:
    if not known.any():
        raise InputError("none of these models can be served", next_step="take more GPUs, or smaller sizes")


def _curves_above_strip(rows: int) -> tuple[Figure, Axes, Axes]:
    below = 0.35 + 0.17 * rows
    figure = new_figure(PAGE_WIDTH, 3.4 + below)
    ax, strip = figure.subplots(2, 1, sharex=True, height_ratios=[3.0, below])
    return figure, ax, strip


def _serving_curves(
    figure: Figure,
    ax: Axes,
    strip: Axes,
    found: ServingCurves | LargestModels,
    x: FloatArray,
    values: FloatArray,
    *,
    name: Callable[[Figure, Axes, Sequence[End]], None],
) -> None:
    """The curves (m, s) over x (s,) with dots at changes of the GPU count, named at their ends by `name`; the strip below."""
    ax.set_xscale("log")
    ax.set_yscale("log")
    shown = np.isfinite(values)
    columns = np.flatnonzero(shown.any(axis=0))
    ax.set_xlim(float(x[columns[0]]), float(x[columns[-1]]))
    ax.set_ylim(float(np.nanmin(values)) / 1.15, float(np.nanmax(values)) * 1.15)
    ends: list[End] = []
    for e, y, gpus in zip(found.experts.tolist(), values, found.gpus, strict=True):
        colour, known = colour_of(e), np.flatnonzero(np.isfinite(y))
        ax.plot(x, y, color=colour)
        steps = [i for i in _steps(gpus) if np.isfinite(y[i])]
        ax.plot(x[steps], y[steps], marker="o", markersize=2.6, color=colour, linestyle="none", zorder=4)
        if known.size:
            ends.append((float(x[known[-1]]), float(y[known[-1]]), expert_label(e), colour))
    d = found.deployment
    requests = f"({d.prompt_tokens:g} prompt, {d.output_tokens:g} output tokens)"
    headline(figure, f"Served on up to {d.max_gpus} {d.gpu.name} {requests}")
    note(ax, "dots: another number of GPUs is cheapest from there on; below: that number")
    _gpu_strip(strip, found.experts, x, np.where(shown, found.gpus, 0.0))
    name(figure, ax, ends)
    _number_strip(figure, strip, x, np.where(shown, found.gpus, 0.0))


def _steps(gpus: FloatArray) -> list[int]:
    change = np.flatnonzero((gpus[1:] != gpus[:-1]) & (gpus[1:] > 0) & (gpus[:-1] > 0)) + 1
    return [int(i) for i in change]


def _stretches(gpus: FloatArray) -> list[tuple[int, int, int]]:
    """First place, place after the last (or the last of all) and GPU count of each stretch that is served."""
    edges = [0, *(np.flatnonzero(gpus[1:] != gpus[:-1]) + 1).tolist(), gpus.size - 1]
    return [(a, b, int(gpus[a])) for a, b in pairwise(edges) if gpus[a] > 0 and b > a]


def _gpu_strip(ax: Axes, experts: FloatArray, x: FloatArray, gpus: FloatArray) -> None:
    for row, (e, counts) in enumerate(zip(experts.tolist(), gpus, strict=True)):
        for a, b, _ in _stretches(counts):
            look: Look = {"color": colour_of(e), "alpha": 0.3, "edgecolor": "white", "linewidth": 1.2}
            ax.barh(row, x[b] - x[a], left=x[a], height=0.82, **look)
    ax.set_yticks(range(experts.size), [expert_label(e) for e in experts.tolist()])
    ax.set_ylim(experts.size - 0.4, -0.6)
    ax.set_ylabel("GPUs")
    ax.grid(visible=False, axis="y")


def _number_strip(figure: Figure, ax: Axes, x: FloatArray, gpus: FloatArray) -> None:
    figure.draw_without_rendering()
    for row, counts in enumerate(gpus):
        for a, b, count in _stretches(counts):
            left, right = (float(ax.transData.transform((x[i], row))[0]) for i in (a, b))
            if (right - left) * 72.0 / figure.dpi >= 4.5 * len(str(count)) + 2.0:
                middle = math.sqrt(float(x[a] * x[b]))
                ax.text(middle, row, str(count), ha="center", va="center", fontsize=6.0)
