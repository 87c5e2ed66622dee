"""Measured latencies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from moescale.errors import InputError
from moescale.latency.measurements import OK, Measurement
from moescale.units import expert_label, format_count, plural
from moescale.views.figures.axes import log_ticks, new_figure, thousandths
from moescale.views.figures.labels import End, end_labels
from moescale.views.figures.style import FAINT, PAGE_WIDTH, Look, colour_of, house_style, marker_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LABELLED = 30  # curves of latency in one panel; more labels than that cannot be read


def latency_figure(rows: Sequence[Measurement]) -> Figure:
    """Measured latency against batch, a panel a stage: a curve for each model, GPU count and length, its rows as points.

    Raises InputError if no row has a latency.
    """
    measured = [row for row in rows if row.status == OK and row.latency_s is not None]
    if not measured:
        raise InputError("no row has a latency to draw", next_step="measure some with `moescale profile`")
    stages = [stage for stage in ("prefill", "decode") if any(row.stage == stage for row in measured)]
    gpu_counts = sorted({row.gpus for row in measured})
    styles = {gpus: ("-", "--", ":", "-.")[i % 4] for i, gpus in enumerate(gpu_counts)}
    batches = np.array([row.batch for row in measured], dtype=np.float64)
    with house_style():
        figure = new_figure(PAGE_WIDTH, 4.0)
        panels: list[tuple[Axes, list[End]]] = []
        for place, stage in enumerate(stages, start=1):
            ax = figure.add_subplot(1, len(stages), place)
            panels.append((ax, _stage_curves(ax, [row for row in measured if row.stage == stage], styles)))
            log_ticks(ax, "x", lambda value: f"{value:g}", batches)
            ax.set_xlabel("batch (requests)")
            ax.set_ylabel(f"{stage} (ms)")
        _key(panels[0][0], sorted({row.n_experts for row in measured}), styles)
        for ax, ends in panels:
            if len(ends) <= LABELLED:
                end_labels(figure, ax, ends, points=6.0)
        return figure


def _stage_curves(ax: Axes, rows: Sequence[Measurement], styles: Mapping[int, str]) -> list[End]:
    curves: dict[tuple[Any, ...], list[tuple[int, float]]] = {}
    for row in rows:
        key = (row.n_experts, row.gpus, row.n_params_total, row.tokens, row.gpu)
        curves.setdefault(key, []).append((row.batch, row.latency_s or 0.0))
    ends: list[End] = []
    for (experts, gpus, n_params, tokens, _), points in sorted(curves.items()):
        x, y = (np.array(values) for values in zip(*sorted(points), strict=True))
        ax.plot(x, y, color=colour_of(experts), marker=marker_of(experts), linestyle=styles[gpus])
        ends.append((float(x[-1]), float(y[-1]), f"{format_count(n_params)}, {tokens}", colour_of(experts)))
    log_ticks(ax, "y", thousandths, np.array([seconds for points in curves.values() for _, seconds in points]))
    return ends


def _key(ax: Axes, experts: Sequence[float], styles: Mapping[int, str]) -> None:
    for count in experts:
        ax.plot([], [], color=colour_of(count), marker=marker_of(count), label=expert_label(count))
    for gpus, style in styles.items() if len(styles) > 1 else ():
        ax.plot([], [], color=FAINT, linestyle=style, label=plural(gpus, "GPU"))
    look: Look = {"fontsize": 7, "title_fontsize": 7, "alignment": "left", "frameon": False}
    ax.legend(loc="upper left", title="parameters, tokens at the curves' ends", **look)
