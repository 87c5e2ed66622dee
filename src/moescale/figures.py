"""Figures of one family: results in, a matplotlib Figure out; the same expert count has the same colour everywhere.

Figures are drawn without pyplot, so nothing global changes and several threads may draw. Text is for print at the drawn size
(8 pt at a page width of 7 inches). matplotlib belongs to the extra `figures` and is imported by the functions that draw.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import numpy.typing as npt

from moescale.architecture import FloatArray
from moescale.candidates import LargestModels, ServingCurves
from moescale.errors import InputError
from moescale.files import check_target, write_atomically
from moescale.fitting import Fit
from moescale.isoflop import Envelope, IsoFlop, Trend
from moescale.latency.measurements import OK, Measurement
from moescale.planning import Plan
from moescale.serving_sweep import OperatingPoints
from moescale.units import format_count, format_flops, format_usd
from moescale.validation import Diagnosis, HoldOut, RunArrays, inputs_of, residuals

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

SUFFIXES = (".svg", ".pdf", ".png")
PAGE_WIDTH = 7.0  # inches: the text width of most papers
PANELS = 8  # of sizes in one figure; more sizes share panels
WALL = 6.0  # times the cost of the last change of the GPU count: where a cost curve runs out of the picture
LABELLED = 30  # curves of latency in one panel; more labels than that cannot be read
LAWS = 4  # with a scatter panel of their own; bars show all

# Points of matplotlib's viridis at E = 1, 2, 4, .. 512 (CC0, https://bids.github.io/colormap): ordered, the same for
# colour-blind readers, and darker for fewer experts in grey print. It stops before the yellow that paper swallows.
SEQUENCE = (
    "#440154", "#433e85", "#31678e", "#23898e", "#22a884", "#48c16e", "#7ad151", "#a2da37", "#bddf26", "#d2e21b",
)  # fmt: skip
MARKERS = "os^Dvp<>hd"  # by powers of two as well: a second cue beside the colour
# Okabe and Ito, https://jfly.uni-koeln.de/color: for things without an order, such as laws.
CATEGORIES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#000000")
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
    place = min(max(math.log2(max(experts, 1.0)), 0.0), len(SEQUENCE) - 1.0)
    low = min(int(place), len(SEQUENCE) - 2)
    share = place - low
    pair = [[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in SEQUENCE[low : low + 2]]
    return "#" + "".join(f"{round((1.0 - share) * a + share * b):02x}" for a, b in zip(*pair, strict=True))


def marker_of(experts: float) -> str:
    """The marker of an expert count in every figure."""
    return MARKERS[min(round(math.log2(max(experts, 1.0))), len(MARKERS) - 1)]


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
    _style()


def save_figure(figure: Figure, path: str | os.PathLike[str]) -> Path:
    """Write a figure as SVG, PDF or PNG by its suffix, whole or not at all; the same figure gives the same bytes."""
    check_plot(path)
    kind = Path(path).suffix.lower()[1:]
    metadata: dict[str, dict[str, Any]] = {
        "svg": {"Date": None, "Creator": "moescale"},
        "pdf": {"CreationDate": None, "ModDate": None, "Creator": "moescale", "Producer": None},
        "png": {"Software": "moescale"},
    }
    stream = io.BytesIO()
    with _style():
        figure.savefig(stream, format=kind, metadata=metadata[kind])
    return write_atomically(path, stream.getvalue())


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
    with _style():
        figure = _figure(PAGE_WIDTH, 1.9 * rows + 2.3)
        top, bottom = _stacked(figure, 1.75 * rows + 0.2, 2.1)
        axes = top.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
        for ax, members in zip(axes, panels, strict=False):
            _panel(ax, found, runs, members, along_size=along_size)
        _key(axes[len(panels) - 1], np.unique(runs.experts), "upper right")
        for ax in axes[len(panels) :]:
            ax.set_axis_off()
        for i, ax in enumerate(axes[: len(panels)]):
            ax.tick_params(labelbottom=i + columns >= len(panels))
        top.supxlabel("size N (parameters)" if along_size else "training tokens D", fontsize=8)
        top.supylabel("loss (nats per token)", fontsize=8)
        figure.suptitle(
            f"{found.form.name} fitted to {found.n_runs} runs: RMSLE {_thousandths(found.rmsle)}×10⁻³",
            x=0.01, ha="left", fontsize=9,
        )  # fmt: skip
        error = 1e3 * residuals(found, runs)
        below = bottom.subplots(1, 3, sharey=True)
        for ax, values, label in (
            (below[0], runs.tokens, "training tokens D"),
            (below[1], runs.n_params, "size N (parameters)"),
            (below[2], runs.experts, "experts E"),
        ):
            _zero_band(ax, 1e3 * found.rmsle)
            _points(ax, values, error, runs.experts, size=9.0)
            _log_counts(ax, "x", values)
            ax.set_xlabel(label)
        _expert_ticks(below[2], runs.experts)
        below[0].set_ylabel("residual ln(L̂/L) (10⁻³)\nband: ± RMSLE")
    return figure


def comparison_figure(records: Sequence[HoldOut]) -> Figure:
    """Laws on runs that they were not fitted to: predicted against measured loss, its residuals, and errors as bars.

    The laws with the lowest held-out error have panels of their own, at most four; the bars show all.
    """
    if not records:
        raise InputError("no comparison to draw", next_step="give at least one law")
    ranked = sorted(records, key=lambda r: r.rmsle_holdout)
    shown = [r for r in ranked if r.held_out is not None and r.residuals_holdout is not None][:LAWS]
    bar_height = 0.9 + 0.42 * len(records)
    with _style():
        figure = _figure(PAGE_WIDTH, bar_height + (3.5 if shown else 0.3))
        if shown:
            top, bottom = _stacked(figure, 3.5, bar_height)
            _scatter_rows(top, shown)
            _error_bars(bottom.subplots(), ranked)
        else:
            _error_bars(figure.subplots(), ranked)
        n_train, n_holdout = ranked[0].n_train, ranked[0].n_holdout
        figure.suptitle(f"Fitted to {n_train} runs, tested on {n_holdout} others", x=0.01, ha="left", fontsize=9)
    return figure


def diagnosis_figure(diagnosis: Diagnosis) -> Figure:
    """Where a fit errs: bias and RMSLE by experts, size and tokens, and residuals against leverage with suspect runs named."""
    labels = {"n_experts": "experts E", "n_params": "size N (parameters)", "tokens": "training tokens D"}
    with _style():
        figure = _figure(PAGE_WIDTH, 4.4)
        axes = figure.subplots(2, 2)
        first, *others = list(labels)
        for ax, variable in zip(axes.ravel(), [first, *others], strict=False):
            groups = [g for g in diagnosis.groups if g.variable == variable]
            place = np.arange(len(groups))
            bias, rmsle = (1e3 * np.array([getattr(g, name) for g in groups]) for name in ("bias", "rmsle"))
            ax.axhline(0.0, color=FAINT, linewidth=0.8)
            for x, b, r, g in zip(place, bias, rmsle, groups, strict=True):
                colour = colour_of(g.low) if variable == "n_experts" else INK
                ax.vlines(x, -r, r, color=colour, linewidth=5.0, alpha=0.25)
                ax.plot([x], [b], marker="o", markersize=4.5, color=colour, linestyle="none")
            ax.set_xticks(place, [_range_label(variable, g.low, g.high, g.n_runs) for g in groups])
            ax.set_xlim(-0.6, len(groups) - 0.4)
            ax.set_xlabel(labels[variable])
            ax.set_ylabel("residual (10⁻³)")
            ax.grid(visible=False, axis="x")
        axes[0, 0].set_title("dots: bias, mean ln(L̂/L); bars: ± RMSLE; n: runs", fontsize=7, color=FAINT)
        ax = axes[1, 1]
        error = 1e3 * diagnosis.residuals
        ax.axhline(0.0, color=FAINT, linewidth=0.8)
        ax.scatter(diagnosis.leverage, error, s=9.0, color=INK, alpha=0.6, linewidths=0)
        suspects = list(diagnosis.suspects)
        if suspects:
            ax.scatter(
                diagnosis.leverage[suspects], error[suspects], s=36.0, facecolors="none", edgecolors=ACCENT,
                linewidths=1.0,
            )  # fmt: skip
            ends = [(float(diagnosis.leverage[i]), float(error[i]), f"run {i + 1}", ACCENT) for i in suspects[:8]]
            _end_labels(figure, ax, ends)
        ax.set_xlabel("leverage (0 to 1)")
        ax.set_ylabel("residual (10⁻³)")
        ax.set_title(
            f"ringed: {len(suspects)} beyond 5 robust standard deviations",
            fontsize=7,
            color=ACCENT if suspects else FAINT,
        )
    return figure


def plan_figure(plan: Plan) -> Figure:
    """Loss against serving cost on one budget: a curve for each expert count, and the recommendation with its reasons in place.

    Solid is the over-trained stretch (smaller than loss-optimal, more tokens), dashed the sizes beyond the loss-optimal
    point; dotted lines are the base's loss and cost.
    """
    with _style():
        figure = _figure(PAGE_WIDTH, 4.2)
        ax = figure.subplots()
        ax.set_xscale("log")
        _limit_plan(ax, plan)
        edge = ax.get_xlim()[1]
        optima = {c.experts: c for c in plan.loss_optimal}
        for curve in plan.curves:
            colour, best = colour_of(curve.experts), optima.get(curve.experts)
            over = curve.n_params <= (math.inf if best is None or best.n_params is None else best.n_params * (1 + 1e-9))
            last = np.flatnonzero(over)[-1] if over.any() else 0
            usd = np.where(curve.usd_per_mtok <= edge, curve.usd_per_mtok, np.nan)  # its name stands beyond
            ax.plot(usd[over], curve.loss[over], color=colour)
            ax.plot(usd[last:], curve.loss[last:], color=colour, linewidth=0.8, linestyle=(0, (3, 2)), alpha=0.8)
        for c in plan.loss_optimal:
            if c.usd_per_mtok is None or c.loss is None:
                continue
            ax.plot(
                [c.usd_per_mtok], [c.loss], marker=marker_of(c.experts), color=colour_of(c.experts), linestyle="none",
                markersize=5.5, markeredgecolor="white", markeredgewidth=0.6, zorder=4,
            )  # fmt: skip
        front = [(c.usd_per_mtok, c.loss) for c in plan.frontier]
        if front:
            x, y = zip(*front, strict=True)
            ax.plot(x, y, color="#bdbdbd", linewidth=4.5, alpha=0.5, zorder=1, solid_capstyle="round")
        _base_bound(ax, plan)
        _recommendation(ax, plan)
        _log_ticks(ax, "x", lambda usd: f"${usd:,g}", most=7)
        ax.set_xlabel("serving cost (US$ per million output tokens)")
        ax.set_ylabel("loss (nats per token)")
        figure.suptitle(
            f"{format_flops(plan.budget_flops)} training FLOPs under {plan.law}, served on {plan.gpu} "
            f"({plan.prompt_tokens:g} prompt, {plan.output_tokens:g} output tokens)",
            x=0.01, ha="left", fontsize=8,
        )  # fmt: skip
        base = "dense model" if plan.base_experts == 1 else f"model with E = {plan.base_experts:g}"
        ax.set_title(
            "markers: loss-optimal sizes, named at the right; solid: over-trained (smaller, more tokens); dashed: larger;\n"
            f"grey: Pareto frontier; dotted: loss {plan.base_loss:.4f}"
            + (f" and cost {format_usd(plan.base_usd_per_mtok)}" if plan.base_usd_per_mtok is not None else "")
            + f" of the loss-optimal {base}, the base",
            fontsize=7, color=FAINT,
        )  # fmt: skip
        _end_labels(figure, ax, _curve_ends(ax, plan))
    return figure


def cost_figure(curves: ServingCurves) -> Figure:
    """Serving cost against model size, a curve for each expert count, and below it the GPU counts of the cheapest deployment.

    Dots stand where that count changes. Walls near the memory of all GPUs run out of the picture at the top.
    """
    known = np.isfinite(curves.usd_per_mtok)
    _check_any(known)
    steps = [curves.usd_per_mtok[j, i] for j, gpus in enumerate(curves.gpus) for i in _steps(gpus)]
    top = WALL * max(steps) if steps else np.inf
    usd = np.where(known & (curves.usd_per_mtok <= top), curves.usd_per_mtok, np.nan)
    with _style():
        figure, ax, strip = _curves_above_strip(curves.experts.size)
        _serving_curves(figure, ax, strip, curves, curves.n_params, usd, name=_top_labels)
        for panel in (ax, strip):
            _log_ticks(panel, "x", format_count, most=9)
        _log_ticks(ax, "y", lambda at: f"${at:,g}", most=8)
        ax.set_ylabel("serving cost\n(US$ per million output tokens)")
        strip.set_xlabel("size N (dense-equivalent parameters)")
    return figure


def largest_figure(found: LargestModels) -> Figure:
    """The largest model within a serving cost, a curve for each expert count, and below it the GPU counts that serve it."""
    _check_any(np.isfinite(found.n_params))
    with _style():
        figure, ax, strip = _curves_above_strip(found.experts.size)
        _serving_curves(figure, ax, strip, found, found.usd_per_mtok, found.n_params, name=_end_labels)
        for panel in (ax, strip):
            _log_ticks(panel, "x", lambda at: f"${at:,g}", most=9)
        _log_ticks(ax, "y", format_count, most=8)
        ax.set_ylabel("largest size N\n(dense-equivalent parameters)")
        strip.set_xlabel("serving cost (US$ per million output tokens)")
    return figure


def isoflop_figure(found: IsoFlop | Envelope) -> Figure:
    """Approach 2 or 1: the parabolas, or the envelope, and the loss-optimal size and tokens against FLOPs with their power laws.

    Dotted are parabolas, or stretches of the envelope, whose minimum lies at an end of the sizes and which are not used.
    """
    with _style():
        figure = _figure(PAGE_WIDTH, 3.0)
        left, size, tokens = figure.subplots(1, 3, width_ratios=[1.25, 1.0, 1.0])
        optima: list[tuple[float, float, float, float]] = []  # experts, FLOPs, N, D
        if isinstance(found, IsoFlop):
            optima = _draw_parabolas(figure, left, found)
        else:
            optima = [(p.experts, p.flops, p.n_params, p.tokens) for p in found.points if p.bracketed]
            _draw_envelope(left, found)
            flops = np.array([p.flops for p in found.points])
            _log_ticks(left, "x", format_flops, values=flops)
            left.set_xlabel("training FLOPs")
            left.set_title("lower envelope; dotted: not used", fontsize=7, color=FAINT)
        left.set_ylabel("loss (nats per token)")
        for ax, column, attribute, label, symbol in (
            (size, 2, "n_params", "loss-optimal size N (parameters)", "N"),
            (tokens, 3, "tokens", "loss-optimal tokens D", "D"),
        ):
            _power_law_panel(ax, optima, found.trends, column, attribute)
            _trend_labels(ax, found.trends, attribute, symbol)
            ax.set_xlabel("training FLOPs")
            ax.set_ylabel(label)
    return figure


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
    with _style():
        figure = _figure(PAGE_WIDTH, 4.0)
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
            _log_ticks(ax, "x", lambda value: f"{value:g}", batches)
            _log_ticks(ax, "y", _thousandths, latencies)
            ax.set_xlabel("batch (requests)")
            ax.set_ylabel(f"{stage} (ms)")
            panels.append((ax, ends))
        first = panels[0][0]
        for count in sorted({row.n_experts for row in measured}):
            first.plot([], [], color=colour_of(count), marker=marker_of(count), label=_experts(count))
        for gpus, style in styles.items() if len(styles) > 1 else ():
            first.plot([], [], color=FAINT, linestyle=style, label=f"{gpus} GPU{'' if gpus == 1 else 's'}")
        title = "parameters, tokens at the curves' ends"
        first.legend(frameon=False, fontsize=7, loc="upper left", title=title, title_fontsize=7, alignment="left")
        for ax, ends in panels:
            if len(ends) <= LABELLED:
                _end_labels(figure, ax, ends, points=6.0)
        return figure


# -- style ---------------------------------------------------------------------------------------------------------------


def _style() -> AbstractContextManager[None]:
    """The style as a context, or the message for an install without matplotlib."""
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise InputError(
            "figures need matplotlib, which is not installed", next_step="pip install 'moescale[figures]'"
        ) from error
    return mpl.rc_context(cast(Any, dict(STYLE)))


def _figure(width: float, height: float) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _stacked(figure: Figure, upper: float, lower: float) -> tuple[SubFigure, SubFigure]:
    return tuple(cast(Any, figure.subfigures(2, 1, height_ratios=[upper, lower])))


def _experts(count: float) -> str:
    return "dense" if count == 1 else f"E = {count:g}"


def _thousandths(value: float) -> str:
    return f"{1e3 * value:.3g}"


def _log_ticks(
    ax: Axes, which: str, text: Callable[[float], str], values: FloatArray | None = None, most: int = 5
) -> None:
    """A logarithmic axis around `values` with at most `most` round ticks, written by `text`."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

    (ax.set_xscale if which == "x" else ax.set_yscale)("log")
    if values is not None and values.size:
        low, high = float(np.nanmin(values)), float(np.nanmax(values))
        pad = max((high / low) ** 0.06, 1.05)
        (ax.set_xlim if which == "x" else ax.set_ylim)(low / pad, high * pad)
    axis = ax.xaxis if which == "x" else ax.yaxis
    low, high = ax.get_xlim() if which == "x" else ax.get_ylim()
    axis.set_major_locator(FixedLocator(_tick_places(low, high, most)))
    axis.set_major_formatter(FuncFormatter(_ignoring_position(text)))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())


def _tick_places(low: float, high: float, most: int) -> list[float]:
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


def _ignoring_position(text: Callable[[float], str]) -> Callable[[float, int | None], str]:
    def write(value: float, _: int | None = None) -> str:
        return text(value)

    return write


def _log_counts(ax: Axes, which: str, values: FloatArray) -> None:
    _log_ticks(ax, which, format_count, values)


def _expert_ticks(ax: Axes, experts: FloatArray) -> None:
    from matplotlib.ticker import FixedLocator

    distinct = np.unique(experts)
    ax.xaxis.set_major_locator(FixedLocator(distinct.tolist()))


def _points(ax: Axes, x: FloatArray, y: FloatArray, experts: FloatArray, *, size: float = 12.0) -> None:
    for e in np.unique(experts):
        mine = experts == e
        ax.scatter(
            x[mine], y[mine], s=size, color=colour_of(float(e)), marker=marker_of(float(e)), linewidths=0, alpha=0.85,
            zorder=3,
        )  # fmt: skip


def _key(
    ax: Axes, counts: Iterable[float], corner: Literal["upper left", "upper right"], *, lines: bool = False
) -> None:
    """Expert counts in their colours, in a corner that the curves leave free."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D(
            [], [], color=colour_of(float(e)), label=_experts(float(e)), linestyle="-" if lines else "none",
            marker="" if lines else marker_of(float(e)),
        )
        for e in counts
    ]  # fmt: skip
    ax.legend(
        handles=handles, loc=corner, frameon=False, fontsize=7, handletextpad=0.4 if lines else 0.0, handlelength=1.0,
        labelspacing=0.2, borderpad=0.1, borderaxespad=0.2, ncols=1 if len(handles) <= 6 else 2, columnspacing=0.6,
    )  # fmt: skip


def _zero_band(ax: Axes, half_width: float) -> None:
    ax.axhspan(-half_width, half_width, color=RULE, alpha=0.5, linewidth=0)
    ax.axhline(0.0, color=FAINT, linewidth=0.8)


def _spread_apart(places: Sequence[float], gap: float) -> list[float]:
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


def _end_labels(
    figure: Figure,
    ax: Axes,
    ends: Sequence[tuple[float, float, str, str]],
    *,
    points: float = 7.0,
    column: bool = False,
) -> None:
    """Label points (x, y, text, colour) at their right, in their colour, apart from each other, inside a widened axis.

    With `column` the labels stand below each other, right of all points.
    """
    if not ends:
        return
    figure.draw_without_rendering()  # the layout decides how large the axes are
    box = ax.get_window_extent()
    point = figure.dpi / 72.0
    low, high = ax.get_xlim()
    logarithmic = ax.get_xscale() == "log"
    at = np.array([math.log(x) if logarithmic else x for x, *_ in ends])
    a, b = (math.log(low), math.log(high)) if logarithmic else (low, high)
    room = min(0.5, (max(len(text) for _, _, text, _ in ends) * 0.60 * points + 10.0) * point / box.width)
    b = max(b, a + (float(at.max()) - a) / (1.0 - room))
    ax.set_xlim(low, math.exp(b) if logarithmic else b)
    heights_of = np.log if ax.get_yscale() == "log" else np.asarray
    bottom, top = heights_of(np.array(ax.get_ylim()))
    level = (heights_of(np.array([y for _, y, *_ in ends])) - bottom) / (top - bottom)
    gap = 1.3 * points * point / box.height
    heights = np.array(_spread_apart(level.tolist(), gap))
    heights += max(0.0, 0.5 * gap - heights.min()) - max(0.0, heights.max() + 0.5 * gap - 1.0)
    across = (at - a) / (b - a)
    starts = (np.full(at.shape, across.max()) if column else across) + 9.0 * point / box.width
    for i, (x, y, text, colour) in enumerate(ends):
        moved = abs(heights[i] - level[i]) > 0.4 * gap or starts[i] - across[i] > 0.06
        line = {
            "arrowstyle": "-",
            "color": colour,
            "linewidth": 0.4,
            "shrinkA": 0.0,
            "shrinkB": 2.0,
            "relpos": (0.0, 0.5),
        }
        ax.annotate(
            text, (x, y), xytext=(starts[i], heights[i]), textcoords="axes fraction", color=_readable(colour),
            fontsize=points, ha="left", va="center", annotation_clip=False, zorder=5, bbox=_paper(),
            arrowprops=line if moved else None,
        )  # fmt: skip


def _paper() -> dict[str, object]:
    """The ground of a text that may lie on lines."""
    return {"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.8}


def _readable(colour: str) -> str:
    """The colour dark enough for text on white."""
    parts = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    light = (0.299 * parts[0] + 0.587 * parts[1] + 0.114 * parts[2]) / 255.0
    share = min(1.0, 0.48 / light) if light > 0 else 1.0
    return "#" + "".join(f"{round(share * p):02x}" for p in parts)


# -- fit -----------------------------------------------------------------------------------------------------------------


def _groups(values: FloatArray) -> list[FloatArray]:
    """The distinct values in at most PANELS groups of about equal numbers of runs, in rising order."""
    distinct, counts = np.unique(values, return_counts=True)
    if distinct.size <= PANELS:
        return [distinct[i : i + 1] for i in range(distinct.size)]
    middle = (np.cumsum(counts) - 0.5 * counts) / counts.sum()
    which = np.minimum((middle * PANELS).astype(int), PANELS - 1)
    return [distinct[which == i] for i in range(PANELS) if np.any(which == i)]


def _predicted(found: Fit, runs: RunArrays, n_params: FloatArray, tokens: FloatArray, experts: float) -> FloatArray:
    """The law on a line; further variables of the law stand at their medians over the runs."""
    n, d = np.broadcast_arrays(np.asarray(n_params, dtype=float), np.asarray(tokens, dtype=float))
    extra = {name: np.full(n.shape, np.median(values)) for name, values in runs.extra.items()}
    line = RunArrays(n, d, np.full(n.shape, experts), np.ones(n.shape), extra)
    return np.exp(found.form.log_loss(found.theta, inputs_of(found.form, line)))


def _panel(ax: Axes, found: Fit, runs: RunArrays, members: FloatArray, *, along_size: bool) -> None:
    """Runs of some sizes against tokens, or of one token count against sizes, with the law where the panel has runs."""
    symbol, fixed, moving = ("D", runs.tokens, runs.n_params) if along_size else ("N", runs.n_params, runs.tokens)
    here = np.isin(fixed, members)
    grid = np.geomspace(float(moving[here].min()), float(moving[here].max()), 64)
    for e in np.unique(runs.experts[here]):
        own = np.unique(fixed[here & (runs.experts == e)])
        for value in own if own.size <= 3 else np.exp(np.log(own).mean(keepdims=True)):
            n, d = (grid, value) if along_size else (value, grid)
            ax.plot(grid, _predicted(found, runs, n, d, float(e)), color=colour_of(float(e)), linewidth=0.8)
    _points(ax, moving[here], runs.loss[here], runs.experts[here])
    _log_counts(ax, "x", moving)
    low, high = format_count(float(members[0])), format_count(float(members[-1]))
    ax.set_title(f"{symbol} = {low}" if low == high else f"{symbol} = {low} to {high}")


# -- comparison ----------------------------------------------------------------------------------------------------------


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
        _points(above, measured, measured * np.exp(error), record.held_out.experts)
        above.set_title(record.law)
        _zero_band(below, 1e3 * record.rmsle_holdout)
        _points(below, measured, 1e3 * error, record.held_out.experts)
        below.set_xlabel("measured loss (nats per token)" if len(shown) < 3 else "measured loss")
    axes[0, 0].set_ylabel("predicted loss\n(nats per token)")
    axes[1, 0].set_ylabel("ln(L̂/L) (10⁻³)\nband: ± RMSLE")
    _key(axes[0, 0], counts, "upper left")


def _error_bars(ax: Axes, ranked: Sequence[HoldOut]) -> None:
    place = np.arange(len(ranked), dtype=float)
    inside, outside = (1e3 * np.array([getattr(r, n) for r in ranked]) for n in ("rmsle_train", "rmsle_holdout"))
    ax.barh(place - 0.19, outside, 0.36, color=CATEGORIES[0])
    ax.barh(place + 0.19, inside, 0.36, color=CATEGORIES[5])
    for y, value, kind in [
        *((p - 0.19, v, "held out") for p, v in zip(place, outside, strict=True)),
        *((p + 0.19, v, "in sample") for p, v in zip(place, inside, strict=True)),
    ]:
        ax.annotate(
            f"{value:.3g}  {kind}", (value, y), xytext=(3, 0), textcoords="offset points", va="center", fontsize=7
        )
    ax.set_yticks(place, [f"{r.law} ({r.parameters} parameters)" for r in ranked])
    ax.invert_yaxis()
    ax.grid(visible=False, axis="y")
    ax.set_xlim(0.0, 1.18 * max(float(inside.max()), float(outside.max()), 1e-9))
    ax.set_xlabel("RMSLE, root mean square of ln(L̂/L) (10⁻³)")


def _range_label(variable: str, low: float, high: float, n_runs: int) -> str:
    a, b = (f"{v:g}" if variable == "n_experts" else format_count(v) for v in (low, high))
    return f"{a if a == b else f'{a}–{b}'}\nn = {n_runs}"


# -- plan ----------------------------------------------------------------------------------------------------------------


def _limit_plan(ax: Axes, plan: Plan) -> None:
    """Axes that hold what the plan speaks of, with some room; over-trained curves run out of the picture at the top."""
    rows = [*plan.loss_optimal, *plan.bounded_loss, *plan.bounded_cost, plan.recommendation.model]
    served = [(c.usd_per_mtok, c.loss) for c in rows if c.usd_per_mtok is not None and c.loss is not None]
    cost, loss = (np.array(column) for column in zip(*served, strict=True))
    ax.set_xlim(float(cost.min()) / 1.3, float(cost.max()) * 1.9)
    shown = [
        float(y) for c in plan.curves for x, y in zip(c.usd_per_mtok, c.loss, strict=True) if x <= ax.get_xlim()[1]
    ]
    low, high = min([*shown, float(loss.min())]), float(loss.max())
    room = max(high - low, 0.02)
    ax.set_ylim(low - 0.2 * room, high + 0.35 * room)


def _curve_ends(ax: Axes, plan: Plan) -> list[tuple[float, float, str, str]]:
    """Where each expert count's curve is named: at its last point in the picture, with its loss-optimal size."""
    ends: list[tuple[float, float, str, str]] = []
    own = {c.experts: c.n_params for c in plan.loss_optimal}
    (left, right), (low, high) = ax.get_xlim(), ax.get_ylim()
    for curve in plan.curves:
        x, y = curve.usd_per_mtok, curve.loss
        seen = np.flatnonzero((x > left) & (x < right) & (y > low) & (y < high))
        if seen.size:
            size = own.get(curve.experts)
            text = _experts(curve.experts) + (f": {format_count(size)}" if size is not None else "")
            ends.append((float(x[seen[-1]]), float(y[seen[-1]]), text, colour_of(curve.experts)))
    return ends


def _base_bound(ax: Axes, plan: Plan) -> None:
    dots = (0, (1, 1.6))
    ax.axhline(plan.base_loss, color=FAINT, linewidth=1.0, linestyle=dots, zorder=1)
    if plan.base_usd_per_mtok is not None:
        ax.axvline(plan.base_usd_per_mtok, color=FAINT, linewidth=1.0, linestyle=dots, zorder=1)


def _recommendation(ax: Axes, plan: Plan) -> None:
    from matplotlib.text import OffsetFrom

    model = plan.recommendation.model
    if model.usd_per_mtok is None or model.loss is None:
        return
    x, y = model.usd_per_mtok, model.loss
    spread = model.intervals or {}
    if "usd_per_mtok" in spread:
        ax.hlines(y, *spread["usd_per_mtok"], color=ACCENT, linewidth=1.0, zorder=5)
    if "loss" in spread:
        ax.vlines(x, *spread["loss"], color=ACCENT, linewidth=1.0, zorder=5)
    ax.plot([x], [y], marker="*", markersize=13, color=ACCENT, markeredgecolor="white", linestyle="none", zorder=6)
    # Below and left of the frontier there is nothing: cheaper and better models do not exist.
    share = "" if model.cost_ratio is None else f" ({model.cost_ratio:.0%} of the base's)"
    ax.annotate(
        f"train this: {_experts(model.experts)}, N = {format_count(model.n_params or 0.0)}\n"
        f"{format_count(model.tokens or 0.0)} tokens, loss {y:.4f}\n{format_usd(x)} per Mtok{share}",
        (x, y), xytext=(6, 6), textcoords=OffsetFrom(ax, (0.0, 0.0), "points"), fontsize=7.5, color=_readable(ACCENT),
        va="bottom", zorder=6, bbox=_paper(), arrowprops={"arrowstyle": "-", "color": ACCENT, "linewidth": 0.7, "shrinkB": 5.0},
    )  # fmt: skip


# -- serving -------------------------------------------------------------------------------------------------------------


def _check_any(known: npt.NDArray[np.bool_]) -> None:
    if not known.any():
        raise InputError("none of these models can be served", next_step="take more GPUs, or smaller sizes")


def _curves_above_strip(rows: int) -> tuple[Figure, Axes, Axes]:
    below = 0.35 + 0.17 * rows
    figure = _figure(PAGE_WIDTH, 3.4 + below)
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
    name: Callable[[Figure, Axes, Sequence[tuple[float, float, str, str]]], None],
) -> None:
    """The curves (m, s) over x (s,) with dots at changes of the GPU count, named at their ends by `name`; the strip below."""
    ax.set_xscale("log")
    ax.set_yscale("log")
    shown = np.isfinite(values)
    columns = np.flatnonzero(shown.any(axis=0))
    ax.set_xlim(float(x[columns[0]]), float(x[columns[-1]]))
    ax.set_ylim(float(np.nanmin(values)) / 1.15, float(np.nanmax(values)) * 1.15)
    ends: list[tuple[float, float, str, str]] = []
    for e, y, gpus in zip(found.experts.tolist(), values, found.gpus, strict=True):
        colour, known = colour_of(e), np.flatnonzero(np.isfinite(y))
        ax.plot(x, y, color=colour)
        steps = [i for i in _steps(gpus) if np.isfinite(y[i])]
        ax.plot(x[steps], y[steps], marker="o", markersize=2.6, color=colour, linestyle="none", zorder=4)
        if known.size:
            ends.append((float(x[known[-1]]), float(y[known[-1]]), _experts(e), colour))
    figure.suptitle(
        f"Served on up to {found.max_gpus} {found.gpu} ({found.prompt_tokens:g} prompt, {found.output_tokens:g} output "
        "tokens)", x=0.01, ha="left", fontsize=9,
    )  # fmt: skip
    ax.set_title("dots: another number of GPUs is cheapest from there on; below: that number", fontsize=7, color=FAINT)
    _gpu_strip(strip, found.experts, x, np.where(shown, found.gpus, 0.0))
    name(figure, ax, ends)
    _number_strip(figure, strip, x, np.where(shown, found.gpus, 0.0))


def _top_labels(figure: Figure, ax: Axes, ends: Sequence[tuple[float, float, str, str]]) -> None:
    """Label points (x, y, text, colour) of steep curves in a row above them, apart from each other; logarithmic axes."""
    (left, right), (bottom, top) = ax.get_xlim(), ax.get_ylim()
    ax.set_xlim(left, right * (right / left) ** 0.06)
    ax.set_ylim(bottom, top * (top / bottom) ** 0.09)
    figure.draw_without_rendering()
    ends = sorted(ends, key=lambda end: (end[0], -end[1]))  # of curves cut off at one size the upper is named left
    box, points = ax.get_window_extent(), 7.0
    width = (max(len(text) for _, _, text, _ in ends) * 0.60 * points + 4.0) * figure.dpi / 72.0 / box.width
    across = ax.transAxes.inverted().transform(ax.transData.transform([(x, y) for x, y, *_ in ends]))[:, 0]
    places = np.array(_spread_apart(across.tolist(), width))
    places -= max(0.0, float(places.max()) + 0.5 * width - 1.0)
    for place, (x, y, text, colour) in zip(places, ends, strict=True):
        ax.annotate(
            text, (x, y), xytext=(place, 0.955), textcoords="axes fraction", color=_readable(colour), fontsize=points,
            ha="center", va="bottom", zorder=5,
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.4, "shrinkA": 0.0, "shrinkB": 1.0, "relpos": (0.5, 0.0)},
        )  # fmt: skip


def _steps(gpus: FloatArray) -> list[int]:
    """Where the GPU count is another than at the place before, both being served."""
    change = np.flatnonzero((gpus[1:] != gpus[:-1]) & (gpus[1:] > 0) & (gpus[:-1] > 0)) + 1
    return [int(i) for i in change]


def _stretches(gpus: FloatArray) -> list[tuple[int, int, int]]:
    """First place, place after the last (or the last of all) and GPU count of each stretch that is served."""
    edges = [0, *(np.flatnonzero(gpus[1:] != gpus[:-1]) + 1).tolist(), gpus.size - 1]
    return [(a, b, int(gpus[a])) for a, b in pairwise(edges) if gpus[a] > 0 and b > a]


def _gpu_strip(ax: Axes, experts: FloatArray, x: FloatArray, gpus: FloatArray) -> None:
    """A bar for each expert count, cut where the GPU count changes."""
    for row, (e, counts) in enumerate(zip(experts.tolist(), gpus, strict=True)):
        for a, b, _ in _stretches(counts):
            ax.barh(
                row,
                x[b] - x[a],
                left=x[a],
                height=0.82,
                color=colour_of(e),
                alpha=0.3,
                edgecolor="white",
                linewidth=1.2,
            )
    ax.set_yticks(range(experts.size), [_experts(e) for e in experts.tolist()])
    ax.set_ylim(experts.size - 0.4, -0.6)
    ax.set_ylabel("GPUs")
    ax.grid(visible=False, axis="y")


def _number_strip(figure: Figure, ax: Axes, x: FloatArray, gpus: FloatArray) -> None:
    """The GPU count in each stretch of the strip that has room for it."""
    figure.draw_without_rendering()
    for row, counts in enumerate(gpus):
        for a, b, count in _stretches(counts):
            left, right = (float(ax.transData.transform((x[i], row))[0]) for i in (a, b))
            if (right - left) * 72.0 / figure.dpi >= 4.5 * len(str(count)) + 2.0:
                middle = math.sqrt(float(x[a] * x[b]))
                ax.text(middle, row, str(count), ha="center", va="center", fontsize=6.0)


# -- isoflop -------------------------------------------------------------------------------------------------------------


def _draw_parabolas(figure: Figure, ax: Axes, found: IsoFlop) -> list[tuple[float, float, float, float]]:
    ends: list[tuple[float, float, str, str]] = []
    same = len({p.experts for p in found.parabolas}) == 1
    optima: list[tuple[float, float, float, float]] = []
    for p in found.parabolas:
        colour = colour_of(p.experts)
        ax.scatter(p.sizes, p.losses, s=8.0, color=colour, marker=marker_of(p.experts), linewidths=0, zorder=3)
        grid = np.geomspace(float(p.sizes.min()), float(p.sizes.max()), 64)
        if np.isfinite(p.coefficients).all():
            ax.plot(grid, p.loss(grid), color=colour, linewidth=0.8, linestyle="-" if p.unusable is None else ":")
            text = format_flops(p.flops) if same else f"{format_flops(p.flops)}, {_experts(p.experts)}"
            ends.append((float(grid[-1]), float(p.loss(grid[-1:])[0]), text, colour))
        if p.unusable is None:
            optima.append((p.experts, p.flops, p.n_params_optimal, p.tokens_optimal))
            ax.plot([p.n_params_optimal], [p.loss_optimal], marker="x", color=ACCENT, markersize=4.0, zorder=4)
    _log_counts(ax, "x", np.concatenate([p.sizes for p in found.parabolas]))
    ax.set_xlabel("size N (parameters)")
    ax.set_title("labels: FLOPs; ×: minimum; dotted: not used", fontsize=7, color=FAINT)
    _end_labels(figure, ax, ends, points=6.0, column=True)
    return optima


def _draw_envelope(ax: Axes, found: Envelope) -> None:
    for e in sorted({p.experts for p in found.points}):
        mine = [p for p in found.points if p.experts == e]
        flops, loss = np.array([p.flops for p in mine]), np.array([p.loss for p in mine])
        used = np.array([p.bracketed for p in mine])
        ax.plot(flops, loss, color=colour_of(e), linewidth=0.8, linestyle=(0, (1, 1.5)))
        ax.plot(flops, np.where(used, loss, np.nan), color=colour_of(e), linewidth=1.4)
    _key(ax, np.unique([p.experts for p in found.points]), "upper right", lines=True)


def _power_law_panel(
    ax: Axes, optima: Sequence[tuple[float, float, float, float]], trends: Sequence[Trend], column: int, attribute: str
) -> None:
    size = 3.2 if len(optima) <= 60 else 1.2  # an envelope has many points
    for row in optima:
        ax.plot(
            [row[1]],
            [row[column]],
            marker=marker_of(row[0]),
            color=colour_of(row[0]),
            linestyle="none",
            markersize=size,
        )
    for trend in trends:
        span = np.array(trend.flops_range)
        ax.plot(span, getattr(trend, attribute).at(span), color=colour_of(trend.experts), linewidth=1.0)
    if optima:
        values = np.array(optima)
        _log_ticks(ax, "x", format_flops, values[:, 1])
        _log_counts(ax, "y", values[:, column])


def _trend_labels(ax: Axes, trends: Sequence[Trend], attribute: str, symbol: str) -> None:
    """The exponents with their standard errors, listed in the corner that a rising line leaves free."""
    low, high = ax.get_ylim()
    ax.set_ylim(low, high * (high / low) ** (0.1 * len(trends)))
    for row, trend in enumerate(trends):
        law = getattr(trend, attribute)
        error = "" if law.standard_error is None else f" ± {law.standard_error:.2g}"
        ax.annotate(
            f"{_experts(trend.experts)}: {symbol} ∝ $C^{{{law.exponent:.3f}}}${error}", (0.0, 1.0), xycoords="axes fraction",
            xytext=(4, -4 - 9 * row), textcoords="offset points", parse_math=True, fontsize=6.5, va="top",
            color=_readable(colour_of(trend.experts)),
        )  # fmt: skip


# -- sweep ---------------------------------------------------------------------------------------------------------------

MOST_DOTS = 5000  # of one colour that an SVG or PDF holds as shapes; more are an image in it
DASHES = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (4, 1, 1, 1)))  # a second cue beside the colour, where colours run out


def sweep_figure(points: OperatingPoints) -> Figure:
    """Dollars per token against time per output token: every operating point, and a Pareto line for each kind of GPU.

    With one kind of GPU a line stands for a number format of weights and cache. Dots on a line carry their GPU count; the
    grey band is the Pareto set of all points.
    """
    lines = [(name, points.frontier(mask), mask) for name, mask in _sweep_groups(points)]
    x, y = 1e3 * points.tpot_s, points.usd_per_mtok
    with _style():
        figure = _figure(PAGE_WIDTH, 4.6)
        ax = figure.subplots()
        _limit_sweep(ax, x, y, np.concatenate([own for _, own, _ in lines]))
        ax.plot(x[points.pareto], y[points.pareto], color="#bdbdbd", linewidth=5.0, alpha=0.5, zorder=1)
        ends: list[tuple[float, float, str, str]] = []
        for place, (name, own, mask) in enumerate(lines):
            colour, dash = CATEGORIES[place % len(CATEGORIES)], DASHES[place // len(CATEGORIES) % len(DASHES)]
            ax.scatter(
                x[mask],
                y[mask],
                s=4.0,
                color=colour,
                alpha=0.18,
                linewidths=0,
                zorder=2,
                rasterized=bool(mask.sum() > MOST_DOTS),
            )
            ax.plot(x[own], y[own], color=colour, linestyle=dash, zorder=4)
            ends.append((float(x[own[-1]]), float(y[own[-1]]), name, colour))
        _end_labels(figure, ax, ends)
        _log_ticks(ax, "x", lambda ms: f"{ms:,g}", most=9)
        _log_ticks(ax, "y", lambda usd: f"${usd:,g}", most=8)
        _per_user_axis(ax)
        _gpu_counts(figure, ax, points, [(own, colour) for (_, own, _), (*_, colour) in zip(lines, ends, strict=True)])
        ax.set_xlabel("time per output token (ms)")
        ax.set_ylabel("serving cost (US$ per million output tokens)")
        cards = dict.fromkeys(points.platforms[i].gpu.name for i in np.unique(points.platform).tolist())
        model, d = f"{points.model.name} on " if points.model.name else "", points.deployment
        named = "" if len(cards) > 1 else "; names: weights / cache"
        figure.suptitle(
            f"{model}{', '.join(cards)} ({d.prompt_tokens:.4g} prompt, {d.output_tokens:.4g} output tokens)",
            x=0.01, ha="left", fontsize=9,
        )  # fmt: skip
        ax.set_title(
            "lines: nothing of that colour is cheaper and faster (grey band: nothing at all); numbers: GPUs at the dots;\n"
            f"faint: all {len(points):,} points{named}", fontsize=7, color=FAINT,
        )  # fmt: skip
    return figure


def _limit_sweep(ax: Axes, x: FloatArray, y: FloatArray, on_lines: npt.NDArray[np.intp]) -> None:
    """Logarithmic axes that end a little beyond the lines: what lies further out is far from every decision."""
    for values, scale, limit in (
        (x[on_lines], ax.set_xscale, ax.set_xlim),
        (y[on_lines], ax.set_yscale, ax.set_ylim),
    ):
        low, high = float(values.min()), float(values.max())
        pad = max((high / low) ** 0.06, 1.08)
        scale("log")
        limit(low / pad, high * pad)


def _sweep_groups(points: OperatingPoints) -> list[tuple[str, npt.NDArray[np.bool_]]]:
    """Masks of the points by kind of GPU or, where there is one only, by number formats; those with points."""
    several = len({points.platforms[i].gpu.name for i in np.unique(points.platform).tolist()}) > 1
    masks: dict[str, npt.NDArray[np.bool_]] = {}
    for index, p in enumerate(points.platforms):
        name = p.gpu.name if several else f"{p.weights.name} / {p.kv_cache.name}"
        mine = points.platform == index
        if mine.any():
            masks[name] = masks[name] | mine if name in masks else mine
    return list(masks.items())


def _per_user_axis(ax: Axes) -> None:
    """The same times as tokens a second, along the top."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    def inverse(values: npt.ArrayLike) -> npt.ArrayLike:
        return 1e3 / np.maximum(np.asarray(values, dtype=np.float64), 1e-300)

    low, high = ax.get_xlim()
    top = ax.secondary_xaxis("top", functions=(inverse, inverse))
    top.xaxis.set_major_locator(FixedLocator(_tick_places(1e3 / high, 1e3 / low, 9)))
    top.xaxis.set_minor_locator(NullLocator())
    top.xaxis.set_major_formatter(FuncFormatter(_ignoring_position(lambda rate: f"{rate:,g}")))
    top.set_xlabel("tokens a second for each user")
    top.spines["top"].set_visible(True)


def _gpu_counts(
    figure: Figure, ax: Axes, points: OperatingPoints, lines: Sequence[tuple[npt.NDArray[np.intp], str]]
) -> None:
    """GPU counts at the dots of each line (its points, its colour): where another count is best, and there is room."""
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
            ax.plot([x], [y], marker="o", markersize=3.0, color=colour, linestyle="none", zorder=5)
            ax.annotate(
                text, (x, y), xytext=(-2.5, -2.5), textcoords="offset points", ha="right", va="top", fontsize=size,
                color=_readable(colour), zorder=6,
            )  # fmt: skip
