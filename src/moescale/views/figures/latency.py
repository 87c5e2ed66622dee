"""Measured latencies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from moescale.errors import InputError
from moescale.latency.measurements import OK, Measurement
from moescale.units import format_count
from moescale.views.figures.axes import experts_label, log_ticks, new_figure, thousandths
from moescale.views.figures.labels import end_labels
from moescale.views.figures.style import FAINT, PAGE_WIDTH, colour_of, house_style, marker_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LABELLED = 30  # curves of latency in one panel; more labels than that cannot be read


def latency_figure(rows: Sequence[Measurement]) -> Figure:
    """Measured latency against batch, a panel a stage: a curve for each model, GPU count and length, its rows as points.

    Raises InputError if no row has a latency.
    """
    measured = [row for row in rows if row.status == OK]
    if not measured:
        raise InputError("no row has a latency to draw", next_step="measure some with `moescale profile`")
    stages = [stage for stage in ("prefill", "decode") if any(row.stage == stage for row in measured)]
    gpu_counts = sorted({row.gpus for row in measured})
    styles = {gpus: ("-", "--", ":", "-.")[i % 4] for i, gpus in enumerate(gpu_counts)}
    batches = np.array([row.batch for row in measured], dtype=np.float64)
    with house_style():
        figure = new_figure(PAGE_WIDTH, 4.0)
        panels: list[tuple[Axes, list[tuple[float, float, str, str]]]] = []
        for place, stage in enumerate(stages, start=1):
            ax = figure.add_subplot(1, len(stages), place)
            curves: dict[tuple[Any, ...], list[tuple[int, float]]] = {}
            for row in measured:
                if row.stage == stage and row.latency_s is not None:
                    key = (row.n_experts, row.gpus, row.n_params_total, row.tokens, row.gpu)
                    curves.setdefault(key, []).append((row.batch, row.latency_s))
            ends: list[tuple[float, float, str, str]] = []
            for (experts, gpus, n_params, tokens, _), points in sorted(curves.items()):
                x, y = (np.array(values) for values in zip(*sorted(points), strict=True))
                colour = colour_of(experts)
                ax.plot(x, y, color=colour, marker=marker_of(experts), linestyle=styles[gpus])
                ends.append((float(x[-1]), float(y[-1]), f"{format_count(n_params)}, {tokens}", colour))
            latencies = np.array([end for points in curves.values() for _, end in points])
            log_ticks(ax, "x", lambda value: f"{value:g}", batches)
            log_ticks(ax, "y", thousandths, latencies)
            ax.set_xlabel("batch (requests)")
            ax.set_ylabel(f"{stage} (ms)")
            panels.append((ax, ends))
        first = panels[0][0]
        for count in sorted({row.n_experts for row in measured}):
            first.plot([], [], color=colour_of(count), marker=marker_of(count), label=experts_label(count))
        for gpus, style in styles.items() if len(styles) > 1 else ():
            first.plot([], [], color=FAINT, linestyle=style, label=f"{gpus} GPU{'' if gpus == 1 else 's'}")
        title = "parameters, tokens at the curves' ends"
        first.legend(frameon=False, fontsize=7, loc="upper left", title=title, title_fontsize=7, alignment="left")
        for ax, ends in panels:
            if len(ends) <= LABELLED:
                end_labels(figure, ax, ends, points=6.0)
        return figure
