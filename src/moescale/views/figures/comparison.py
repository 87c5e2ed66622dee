"""Laws on runs that they were not fitted to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from moescale.errors import InputError
from moescale.fitting.holdout import HoldOut
from moescale.views.figures.axes import expert_key, headline, new_figure, scatter_runs, stacked, zero_band
from moescale.views.figures.style import CATEGORIES, FAINT, PAGE_WIDTH, Look, house_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

LAWS = 4  # with a scatter panel of their own; bars show all


def comparison_figure(records: Sequence[HoldOut]) -> Figure:
    """Laws on runs that they were not fitted to: predicted against measured loss, its residuals, and errors as bars.

    The laws with the lowest held-out error have panels of their own, at most four; the bars show all.
    """
    if not records:
        raise InputError("no comparison to draw", next_step="give at least one law")
    ranked = sorted(records, key=lambda r: r.rmsle_holdout)
    shown = [r for r in ranked if r.held_out is not None and r.residuals_holdout is not None][:LAWS]
    bar_height = 0.9 + 0.42 * len(records)
    with house_style():
        figure = new_figure(PAGE_WIDTH, bar_height + (3.5 if shown else 0.3))
        if shown:
            top, bottom = stacked(figure, 3.5, bar_height)
            _scatter_rows(top, shown)
            _error_bars(bottom.subplots(), ranked)
        else:
            _error_bars(figure.subplots(), ranked)
        n_train, n_holdout = ranked[0].n_train, ranked[0].n_holdout
        headline(figure, f"Fitted to {n_train} runs, tested on {n_holdout} others")
    return figure


def _scatter_rows(part: SubFigure, shown: Sequence[HoldOut]) -> None:
    axes = part.subplots(2, len(shown), sharex=True, sharey="row", squeeze=False, height_ratios=[1.6, 1.0])
    counts = np.unique(np.concatenate([r.held_out.experts for r in shown if r.held_out is not None]))
    for column, record in enumerate(shown):
        assert record.held_out is not None
        assert record.residuals_holdout is not None
        above, below = axes[0, column], axes[1, column]
        measured, error = record.held_out.loss, record.residuals_holdout
        ends = (float(measured.min()), float(measured.max()))
        above.plot(ends, ends, color=FAINT, linewidth=0.8)
        scatter_runs(above, measured, measured * np.exp(error), record.held_out.experts)
        above.set_title(record.law)
        zero_band(below, 1e3 * record.rmsle_holdout)
        scatter_runs(below, measured, 1e3 * error, record.held_out.experts)
        below.set_xlabel("measured loss (nats per token)" if len(shown) < 3 else "measured loss")
    axes[0, 0].set_ylabel("predicted loss\n(nats per token)")
    axes[1, 0].set_ylabel("ln(L̂/L) (10⁻³)\nband: ± RMSLE")
    expert_key(axes[0, 0], counts, "upper left")


def _error_bars(ax: Axes, ranked: Sequence[HoldOut]) -> None:
    place = np.arange(len(ranked), dtype=float)
    inside, outside = (1e3 * np.array([getattr(r, n) for r in ranked]) for n in ("rmsle_train", "rmsle_holdout"))
    ax.barh(place - 0.19, outside, 0.36, color=CATEGORIES[0])
    ax.barh(place + 0.19, inside, 0.36, color=CATEGORIES[5])
    for values, offset, kind in ((outside, -0.19, "held out"), (inside, 0.19, "in sample")):
        for y, value in zip(place + offset, values, strict=True):
            where: Look = {"xytext": (3, 0), "textcoords": "offset points", "va": "center"}
            ax.annotate(f"{value:.3g}  {kind}", (value, y), fontsize=7, **where)
    ax.set_yticks(place, [f"{r.law} ({r.parameters} parameters)" for r in ranked])
    ax.invert_yaxis()
    ax.grid(visible=False, axis="y")
    ax.set_xlim(0.0, 1.18 * max(float(inside.max()), float(outside.max()), 1e-9))
    ax.set_xlabel("RMSLE, root mean square of ln(L̂/L) (10⁻³)")
