"""A fit on the runs it was fitted to."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from moescale.fitting.canonical import RunArrays, inputs_of
from moescale.fitting.fit import Fit, residuals
from moescale.typing import FloatArray
from moescale.units import format_count
from moescale.views.figures import style
from moescale.views.figures.style import Look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANELS = 8  # of sizes in one figure; more sizes share panels


def fit_figure(found: Fit, runs: RunArrays) -> Figure:
    """A fit on its runs: loss against tokens, one panel a size (or group of sizes), and the residuals below.

    Points are runs, lines the law, colours expert counts. A panel of several sizes draws each size's line where those of
    one expert count are at most three, and else the line of their geometric mean. Runs of one token count are drawn
    against size instead.
    """
    along_size = np.unique(runs.tokens).size == 1 and np.unique(runs.n_params).size > 1
    panels = _groups(runs.tokens if along_size else runs.n_params)
    columns = min(4, len(panels))
    rows = math.ceil(len(panels) / columns)
    from matplotlib.ticker import FixedLocator

    with style.house_style():
        figure = style.new_figure(style.PAGE_WIDTH, 1.9 * rows + 2.3)
        top, bottom = cast(Any, figure.subfigures)(2, 1, height_ratios=[1.75 * rows + 0.2, 2.1])
        axes = top.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
        for ax, members in zip(axes, panels, strict=False):
            _panel(ax, found, runs, members, along_size=along_size)
        style.key(figure, style.expert_looks(np.unique(runs.experts)))
        for ax in axes[len(panels) :]:
            ax.set_axis_off()
        for i, ax in enumerate(axes[: len(panels)]):
            ax.tick_params(labelbottom=i + columns >= len(panels))
        top.supxlabel("size N (parameters)" if along_size else "training tokens D", fontsize=8)
        top.supylabel("loss (nats per token)", fontsize=8)
        fitted = f"{found.form.name} fitted to {found.n_runs} runs"
        style.headline(figure, f"{fitted}: RMSLE {1e3 * found.rmsle:.3g}×10⁻³")
        error = 1e3 * residuals(found, runs)
        below = bottom.subplots(1, 3, sharey=True)
        for ax, values, label in (
            (below[0], runs.tokens, "training tokens D"),
            (below[1], runs.n_params, "size N (parameters)"),
            (below[2], runs.experts, "experts E"),
        ):
            ax.axhspan(-1e3 * found.rmsle, 1e3 * found.rmsle, color=style.RULE, alpha=0.5, linewidth=0)
            ax.axhline(0.0, color=style.FAINT, linewidth=0.8)
            _scatter(ax, values, error, runs.experts, size=9.0)
            style.log_ticks(ax, "x", format_count, values)
            ax.set_xlabel(label)
        below[2].xaxis.set_major_locator(FixedLocator(np.unique(runs.experts).tolist()))
        below[0].set_ylabel("residual ln(L̂/L) (10⁻³)\nband: ± RMSLE")
    return figure


def _groups(values: FloatArray) -> list[FloatArray]:
    """The distinct values in at most PANELS groups of about equal numbers of runs, in rising order."""
    distinct, counts = np.unique(values, return_counts=True)
    if distinct.size <= PANELS:
        return [distinct[i : i + 1] for i in range(distinct.size)]
    middle = (np.cumsum(counts) - 0.5 * counts) / counts.sum()
    which = np.minimum((middle * PANELS).astype(int), PANELS - 1)
    return [distinct[which == i] for i in range(PANELS) if np.any(which == i)]


def _predicted(found: Fit, runs: RunArrays, n_params: FloatArray, tokens: FloatArray, experts: float) -> FloatArray:
    n, d = np.broadcast_arrays(np.asarray(n_params, dtype=float), np.asarray(tokens, dtype=float))
    extra = {name: np.full(n.shape, np.median(values)) for name, values in runs.extra.items()}
    line = RunArrays(n, d, np.full(n.shape, experts), np.ones(n.shape), extra)
    return np.exp(found.form.log_loss(found.theta, inputs_of(found.form, line)))


def _panel(ax: Axes, found: Fit, runs: RunArrays, members: FloatArray, *, along_size: bool) -> None:
    symbol, fixed, moving = ("D", runs.tokens, runs.n_params) if along_size else ("N", runs.n_params, runs.tokens)
    here = np.isin(fixed, members)
    grid = np.geomspace(float(moving[here].min()), float(moving[here].max()), 64)
    for e in np.unique(runs.experts[here]):
        own = np.unique(fixed[here & (runs.experts == e)])
        for value in own if own.size <= 3 else np.exp(np.log(own).mean(keepdims=True)):
            n, d = (grid, value) if along_size else (value, grid)
            ax.plot(grid, _predicted(found, runs, n, d, float(e)), color=style.colour_of(float(e)), linewidth=0.8)
    _scatter(ax, moving[here], runs.loss[here], runs.experts[here])
    style.log_ticks(ax, "x", format_count, moving)
    low, high = format_count(float(members[0])), format_count(float(members[-1]))
    ax.set_title(f"{symbol} = {low}" if low == high else f"{symbol} = {low} to {high}")


def _scatter(ax: Axes, x: FloatArray, y: FloatArray, experts: FloatArray, *, size: float = 12.0) -> None:
    for e in np.unique(experts).tolist():
        mine = experts == e
        look: Look = {
            "color": style.colour_of(e),
            "marker": style.marker_of(e),
            "linewidths": 0,
            "alpha": 0.85,
            "zorder": 3,
        }
        ax.scatter(x[mine], y[mine], s=size, **look)
