"""Answers as tables of text, the same ones for a terminal, a report and a notebook: one function a table."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from moescale.errors import InputError
from moescale.units import expert_label, format_count, format_flops, format_seconds, format_usd, plural

if TYPE_CHECKING:
    from moescale.fitting.fit import Fit
    from moescale.fitting.holdout import Diagnosis, HoldOut, RunArrays
    from moescale.fitting.isoflop import IsoFlop
    from moescale.latency.coverage import Coverage, Overview
    from moescale.models.rounding import Buildable
    from moescale.planning.candidate import Candidate, Life, Regret, Trained, Unreachable
    from moescale.planning.compare_models import ComparedModel
    from moescale.planning.decision import LawView
    from moescale.planning.known import KnownRow
    from moescale.planning.lifetime_plan import LifetimePlan
    from moescale.planning.plan import Plan
    from moescale.planning.sweep_design import DesignedRun
    from moescale.runs.table import RunTable
    from moescale.scaling_laws.form import LawForm
    from moescale.scaling_laws.law import Law, Prediction
    from moescale.serving.accuracy import Accuracy
    from moescale.serving.closed_loop import Loop
    from moescale.serving.gpu_counts import Cost
    from moescale.serving.operating_points import LeftOut, OperatingPoints, Platform
    from moescale.typing import FloatArray

FRONTIER_ROWS = 10
SWEEP_ROWS = 16
SUSPECT_ROWS = 10
BREAK_EVENS = 3
PREDICTION_ROWS = 40
P_LOSS, RELATIVE_COST = "P(loss <= baseline)", "cost vs baseline"
MARK = "*"  # of a loss where the law may not speak
ALIKE = 0.06  # of ln N: a model as built, and the real-valued one that it was built from
VARIABLES = {"n_experts": "experts E", "n_params": "size N", "tokens": "tokens D"}
GLOSSARY = (
    "N: dense-equivalent parameters. N vs optimum: N relative to the loss-optimal N at the same E. active, total: "
    "parameters without embeddings. baseline: the {base}. P(loss <= baseline): the probability of matching the "
    "baseline's loss. $/Mtok: dollars per million output tokens. regret: the expected "
    "extra cost, as a share of the baseline's cost, if another law is the true one."
)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table; of the columns with a `rank`, that of the highest goes first where the table is too wide."""

    head: str
    text: bool = False  # left-aligned
    rank: int = 0


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text under a title; `experts` is the expert count of each row where rows are models, `notes` what is missing."""

    title: str
    columns: tuple[Column, ...]
    rows: Sequence[Sequence[str]]
    experts: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()

    def filled(self) -> tuple[int, ...]:
        """Places of the columns that must be shown: those without a rank, and of the others those that say something."""
        return tuple(
            i for i, column in enumerate(self.columns) if not column.rank or any(row[i].strip("-") for row in self.rows)
        )


Item = TypeVar("Item")
Cell = tuple[Column, Callable[[Item], str]]  # a column, and what it says of an item
Model = TypeVar("Model", bound="Trained")


def table_of(title: str, items: Iterable[Item], cells: Sequence[Cell[Item]], **more: Any) -> Table:
    """A table with a row an item; `more` is what else a Table has."""
    rows = tuple(tuple(text(item) for _, text in cells) for item in items)
    return Table(title, tuple(column for column, _ in cells), rows, **more)


def base_name(plan: Plan) -> str:
    """The baseline of a plan: the loss-optimal dense model or E = 4, or the model that --match names."""
    if plan.asked.get("match") is not None:
        return plan.base_name
    return f"loss-optimal {'dense model' if plan.base_experts == 1 else expert_label(plan.base_experts)}"


def latency_name(source: str) -> str:
    """A latency source in words: measured kernels, the roofline, or a table's name."""
    return {"silicon": "measured kernels (silicon)", "roofline": "the roofline"}.get(source, source)


def span_text(limits: Sequence[float] | None, form: str = ".4g") -> str:
    """An interval as `low to high`, or nothing."""
    return f"{limits[0]:{form}} to {limits[1]:{form}}" if limits else ""


SIZE_NAMES = {"n_params_dense": "dense-equivalent N", "n_params_active": "active N", "n_params_total": "total N"}


def range_text(fit_range: Mapping[str, tuple[float, float]], form: LawForm | None = None, size_column: str = "") -> str:
    """The ranges of a fit: N 80M to 700M, D 2B to 20B, E 1 to 32; of a form of models, active body and X.

    With the column of the sizes, which N it is.
    """
    from moescale.scaling_laws.law import INPUT_NAMES

    names = INPUT_NAMES | {"n_params": SIZE_NAMES.get(size_column, "N")}
    if form is not None and form.of_models:
        names |= {"n_params": "active body", "experts": "X"}
    return ", ".join(
        f"{names.get(name, name)} {number(low)} to {number(high)}"
        for name, (low, high) in fit_range.items()
        for number in (format_flops if name == "training_flops" else format_count,)
    )


def reason_lines(reasons: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Names with their reasons, a line for each reason."""
    told: dict[str, list[str]] = {}
    for name, reason in reasons:
        told.setdefault(reason, []).append(name)
    return tuple(f"{', '.join(names)}: {reason}" for reason, names in told.items())


def parameter_table(
    form: LawForm,
    parameters: Mapping[str, float],
    intervals: Mapping[str, tuple[float, float]] | None = None,
    remarks: Mapping[str, str] | None = None,
) -> Table:
    """The coefficients of a law with their 90% intervals."""
    limits, told = intervals or {}, remarks or {}
    return table_of(
        "",
        form.parameters,
        (
            (Column("parameter", text=True), lambda p: p.name),
            (Column("value"), lambda p: f"{parameters[p.name]:.6g}"),
            (Column("90% interval", rank=1), lambda p: span_text(limits.get(p.name))),
            (Column("remark", text=True, rank=1), lambda p: told.get(p.name, "")),
            (Column("meaning", text=True, rank=2), lambda p: p.meaning),
        ),
    )


def member_table(law: Law) -> Table:
    """The laws of an ensemble."""
    return table_of(
        "",
        law.members,
        (
            (Column("law", text=True), lambda m: m.law.name),
            (Column("weight"), lambda m: f"{m.weight:.0%}"),
            (Column("form", text=True, rank=2), lambda m: m.law.form.name),
            (Column("fitted on", text=True, rank=1), lambda m: range_text(m.law.fit_range, m.law.form)),
            (Column("source", text=True, rank=1), lambda m: m.law.source),
        ),
    )


def law_table(law: Law, intervals: Mapping[str, tuple[float, float]] | None = None) -> Table:
    """The coefficients of a law, or the laws of an ensemble."""
    return member_table(law) if law.members else parameter_table(law.form, law.parameters, intervals)


def fit_remarks(found: Fit) -> dict[str, str]:
    """Remarks on single parameters of a fit."""
    remarks = {name: "not identified" for name in found.not_identified}
    return remarks | {name: "on a bound" for name in found.at_bound}


def comparison_table(records: Sequence[HoldOut]) -> Table:
    """How each law predicts the runs that it was not fitted on, best first."""
    return table_of(
        "Error of ln L on fitted and held-out runs",
        sorted(records, key=lambda r: r.rmsle_holdout),
        (
            (Column("law", text=True), lambda r: r.law),
            (Column("parameters"), lambda r: f"{r.parameters}"),
            (Column("fitted runs"), lambda r: f"{r.n_train}"),
            (Column("RMSLE"), lambda r: f"{r.rmsle_train * 1e3:.2f}e-3"),
            (Column("held-out runs"), lambda r: f"{r.n_holdout}"),
            (Column("held-out RMSLE"), lambda r: f"{r.rmsle_holdout * 1e3:.2f}e-3"),
            (Column("held-out bias"), lambda r: f"{r.bias_holdout * 1e3:+.2f}e-3"),
        ),
    )


def group_table(diagnosis: Diagnosis) -> Table:
    """Where a law errs: by experts, size and tokens."""

    def ends(variable: str, low: float, high: float) -> str:
        a, b = (f"{x:g}" if variable == "n_experts" else format_count(x) for x in (low, high))
        return a if a == b else f"{a} to {b}"

    return table_of(
        "Errors of ln L by group",
        diagnosis.groups,
        (
            (Column("", text=True), lambda g: VARIABLES.get(g.variable, g.variable)),
            (Column("range"), lambda g: ends(g.variable, g.low, g.high)),
            (Column("runs"), lambda g: f"{g.n_runs}"),
            (Column("bias"), lambda g: f"{100 * g.bias:+.3f}%"),
            (Column("RMSLE"), lambda g: f"{100 * g.rmsle:.3f}%"),
        ),
    )


def suspect_table(diagnosis: Diagnosis, runs: RunArrays) -> Table:
    """The runs that a law misses by most."""
    shown = diagnosis.suspects[:SUSPECT_ROWS]
    more = len(diagnosis.suspects) - len(shown)
    return table_of(
        "Runs beyond 5 robust standard deviations"
        + (f" (the worst {len(shown)} of {len(shown) + more})" if more else ""),
        shown,
        (
            (Column("run", text=True), lambda i: f"{i + 1}"),
            (Column("N"), lambda i: format_count(float(runs.n_params[i]))),
            (Column("D"), lambda i: format_count(float(runs.tokens[i]))),
            (Column("E"), lambda i: f"{runs.experts[i]:g}"),
            (Column("loss"), lambda i: f"{runs.loss[i]:.4f}"),
            (Column("residual"), lambda i: f"{100 * diagnosis.residuals[i]:+.2f}%"),
        ),
    )


def prediction_table(law: Law) -> Table | None:
    """Losses at the ends and the middle of the fitted sizes and tokens; None for laws of further variables."""
    from moescale.scaling_laws.law import predict

    if not {"n_params", "tokens"} <= set(law.fit_range):
        return None
    ranges = (law.fit_range[name] for name in ("n_params", "tokens"))
    sizes, tokens = (sorted({low, math.sqrt(low * high), high}) for low, high in ranges)
    counts = sorted(set(law.fit_range.get("experts", (1.0, 1.0)))) if law.form.uses_experts else [1.0]

    def loss_text(n: float, d: float, e: float) -> str:
        found = predict(law, n, d, e)
        return f"{found.loss:.4f}" + (f" ({span_text(found.interval, '.4f')})" if found.interval else "")

    try:
        rows = [
            (format_count(n), format_count(d), *(loss_text(n, d, e) for e in counts)) for n in sizes for d in tokens
        ]
    except InputError:
        return None
    losses = [Column(expert_label(e) if law.form.uses_experts else "loss") for e in counts]
    with_interval = ", with 90% intervals" if len(law.draws) else ""
    title = f"Predicted losses{with_interval}"
    return Table(title, (Column("N", text=True), Column("D"), *losses), rows)


def optima_table(found: IsoFlop) -> Table:
    """The loss-optimal model of each budget whose sizes enclose one, of the first of them."""
    optima = [(p, p.minimum) for p in found.budgets if p.minimum is not None]
    more = len(optima) - PREDICTION_ROWS
    return table_of(
        "Loss-optimal model of each budget"
        + (f" (the first {PREDICTION_ROWS}; {more:,} more with --json)" if more > 0 else ""),
        optima[:PREDICTION_ROWS],
        (
            (Column("experts"), lambda o: f"{o[0].experts:g}"),
            (Column("FLOPs"), lambda o: format_flops(o[0].flops)),
            (Column("N"), lambda o: format_count(o[1].n_params)),
            (Column("tokens"), lambda o: format_count(o[1].tokens)),
            (Column("tokens per parameter"), lambda o: format_count(o[1].tokens / o[1].n_params)),
            (Column("loss"), lambda o: f"{o[1].loss:.4f}"),
            (Column("runs", rank=1), lambda o: f"{o[0].sizes.size}"),
        ),
    )


def run_prediction_table(predicted: Sequence[Prediction], runs: RunTable) -> Table:
    """Predicted and measured losses of the first runs of a table."""
    shown = range(min(len(runs), PREDICTION_ROWS))
    more = len(runs) - len(shown)
    known = ~np.isnan(runs.loss)

    def residual(i: int) -> str:
        return f"{100 * math.log(predicted[i].loss / runs.loss[i]):+.2f}%" if known[i] else ""

    return table_of(
        "Predicted and measured losses" + (f" (the first {len(shown)}; {more:,} more with --json)" if more else ""),
        shown,
        (
            (Column("row"), lambda i: f"{runs.row_numbers[i]}"),
            (Column("N"), lambda i: format_count(float(runs.n_params[i]))),
            (Column("D"), lambda i: format_count(float(runs.tokens[i]))),
            (Column("E"), lambda i: f"{runs.experts[i]:g}"),
            (Column("predicted"), lambda i: f"{predicted[i].loss:.4f}"),
            (Column("90% interval", rank=1), lambda i: span_text(predicted[i].interval, ".4f")),
            (Column("measured", rank=3), lambda i: f"{runs.loss[i]:.4f}" if known[i] else ""),
            (Column("residual", rank=2), residual),
        ),
    )


def accuracy_text(accuracy: Accuracy | None, gpu: str, kind: str) -> str:
    """How far predictions of this kind lay from measurements; `kind` is what has no measurements."""
    if accuracy is None:
        return f"unknown (no held-out measurements of {kind})"
    a = accuracy
    named = (("TPOT", a.tpot), ("TTFT", a.ttft))
    times = "".join(f", {words} {band.geometric_mean:.2f}" for words, band in named if band is not None)
    elsewhere = "" if gpu in a.gpus else f", none on {gpu}"
    return (
        f"predicted / measured throughput {a.geometric_mean:.2f} (spread {a.spread:.2f}x){times}; "
        f"{a.n} published points: {a.kind}{elsewhere}"
    )


def cost_table(cost: Cost, *, priced: bool = True) -> Table:
    """Each GPU count that was looked at; without dollars where there is no price."""
    limits = {"max_ttft": "TTFT limit", "max_tpot": "TPOT limit"}
    others = {"optimum": "lowest cost", "front_end": "API servers", "max_num_batched_tokens": "tokens per pass"}
    looked_at = cost.candidates or (cost,)
    if cost.closed_loop is not None:
        return _loop_table(cost, looked_at, priced=priced)
    cells: list[Cell[Cost]] = [
        (Column("GPUs"), lambda c: f"{c.gpus}"),
        (Column("$/Mtok"), lambda c: format_usd(c.usd_per_mtok or 0.0)),
        (Column("batch"), lambda c: f"{c.batch:.0f}"),
        (Column("output tok/s"), lambda c: f"{c.throughput_tok_s:,.0f}"),
        (Column("TTFT"), lambda c: format_seconds(c.ttft_s or 0.0)),
        (Column("TPOT"), lambda c: format_seconds(c.tpot_s or 0.0)),
        (
            Column("batch limited by", text=True),
            lambda c: limits.get(c.latency_limit or "", others.get(c.limited_by or "", c.limited_by or "")),
        ),
        (Column("", text=True), lambda c: "<- cheapest" if c.gpus == cost.gpus else ""),
    ]
    return table_of(
        "",
        [c for c in looked_at if c.usd_per_mtok is not None and c.batch is not None and c.throughput_tok_s is not None],
        [cell for cell in cells if priced or cell[0].head != "$/Mtok"],
        notes=reason_lines((plural(c.gpus, "GPU"), c.infeasible) for c in looked_at if c.infeasible),
    )


def _loop_table(cost: Cost, looked_at: Sequence[Cost], *, priced: bool) -> Table:
    """The closed loop on each GPU count."""

    def loop(c: Cost) -> Loop:
        assert c.closed_loop is not None
        return c.closed_loop

    def last(c: Cost) -> str:
        if c.gpus == cost.gpus:
            return "<- cheapest" if loop(c).meets_limits else "<- cheapest, breaks a limit"
        return "" if loop(c).meets_limits else "breaks a limit"

    cells: list[Cell[Cost]] = [
        (Column("GPUs"), lambda c: f"{c.gpus}"),
        (Column("$/Mtok"), lambda c: format_usd(loop(c).usd_per_mtok)),
        (Column("batch"), lambda c: f"{loop(c).batch:.0f}"),
        (Column("output tok/s"), lambda c: f"{loop(c).output_tok_s:,.0f}"),
        (Column("TTFT"), lambda c: format_seconds(loop(c).ttft_s)),
        (Column("TPOT"), lambda c: format_seconds(loop(c).tpot_s)),
        (Column("request time", rank=2), lambda c: format_seconds(loop(c).e2e_s)),
        (Column("", text=True), last),
    ]
    return table_of(
        "",
        [c for c in looked_at if c.closed_loop is not None],
        [cell for cell in cells if priced or cell[0].head != "$/Mtok"],
        notes=reason_lines((plural(c.gpus, "GPU"), c.infeasible) for c in looked_at if c.infeasible),
    )


def pareto_table(points: OperatingPoints) -> Table:
    """The ways to serve a model that no other beats in cost and time."""
    p, front = points, points.pareto
    on: list[Platform] = [p.platforms[int(i)] for i in p.platform]
    shown = _evenly_spread(np.log(p.tpot_s[front]), SWEEP_ROWS)
    part = f" ({len(shown)} of {len(front)}; all with --json)" if len(shown) < len(front) else ""
    cells: list[Cell[int]] = [
        (Column("GPUs"), lambda i: f"{p.gpus[i]:.0f}"),
        (Column("EP"), lambda i: f"{p.expert_parallel[i]:.0f}"),
        (Column("weights", text=True), lambda i: on[i].weights.name),
        (Column("cache", text=True), lambda i: on[i].kv_cache.name),
        (Column("batch"), lambda i: f"{p.batch[i]:.0f}"),
        (Column("TPOT"), lambda i: format_seconds(float(p.tpot_s[i]))),
        (Column("tok/s/user"), lambda i: rate_text(float(p.tok_s_per_user[i]))),
        (Column("$/Mtok"), lambda i: format_usd(float(p.usd_per_mtok[i]))),
        (Column("output tok/s", rank=2), lambda i: f"{p.throughput_tok_s[i]:,.0f}"),
        (Column("TTFT", rank=3), lambda i: format_seconds(float(p.ttft_s[i]))),
    ]
    if not np.any(p.expert_parallel > 1):
        del cells[1]
    if len({k.gpu.name for k in p.platforms}) > 1:
        cells.insert(0, (Column("GPU", text=True), lambda i: on[i].gpu.name))
    title = f"Pareto set of {len(p):,} operating points{part}"
    return table_of(title, [int(front[j]) for j in shown], cells)


def platform_table(points: OperatingPoints) -> Table:
    """What each GPU and number format can do alone: its cheapest point and its fastest."""
    p = points
    fronts = [(kind, p.frontier(p.platform == k).tolist()) for k, kind in enumerate(p.platforms)]
    ends = [(kind, front[-1], front[0]) for kind, front in fronts if front]
    cells: list[Cell[tuple[Platform, int, int]]] = [
        (Column("weights", text=True), lambda x: x[0].weights.name),
        (Column("cache", text=True), lambda x: x[0].kv_cache.name),
        (Column("$/Mtok"), lambda x: format_usd(float(p.usd_per_mtok[x[1]]))),
        (Column("GPUs"), lambda x: f"{p.gpus[x[1]]:.0f}"),
        (Column("batch"), lambda x: f"{p.batch[x[1]]:.0f}"),
        (Column("tok/s/user"), lambda x: rate_text(float(p.tok_s_per_user[x[1]]))),
        (Column("fastest", rank=1), lambda x: rate_text(float(p.tok_s_per_user[x[2]]))),
        (Column("GPUs", rank=1), lambda x: f"{p.gpus[x[2]]:.0f}"),
        (Column("$/Mtok", rank=1), lambda x: format_usd(float(p.usd_per_mtok[x[2]]))),
    ]
    if len({k.gpu.name for k in p.platforms}) > 1:
        cells.insert(0, (Column("GPU", text=True), lambda x: x[0].gpu.name))
    return table_of("Cheapest and fastest point of each format", ends, cells)


def left_out_lines(points: OperatingPoints) -> tuple[str, ...]:
    """What has no answer; of several GPU counts with one cause, the reason of the largest."""
    groups: dict[tuple[str, str], list[LeftOut]] = {}
    for entry in sorted(points.left_out, key=lambda e: e.gpu is not None):  # what holds for all first
        formats = f" {entry.weights}/{entry.kv_cache}" if entry.weights and entry.kv_cache else ""
        who = [f"{entry.gpu}{formats}"] if entry.gpu else []
        if entry.expert_parallel is not None:
            who.append(f"expert-parallel {entry.expert_parallel}")
        if entry.max_num_seqs is not None:
            who.append("larger batches")
        groups.setdefault((", ".join(who), entry.cause or entry.reason), []).append(entry)
    told: list[tuple[str, str]] = []
    for (who, _), entries in groups.items():
        counts = list(dict.fromkeys(entry.gpus for entry in entries if entry.gpus is not None))
        on = f"{_few(counts)} GPU{'' if counts == [1] else 's'}" if counts else ""
        told.append((" on ".join(filter(None, (who, on))), entries[-1].reason))
    return reason_lines(told)


def rate_text(value: float) -> str:
    """Tokens a second of one user."""
    return f"{value:,.0f}" if value >= 9.95 else f"{value:.2g}"


def _evenly_spread(values: FloatArray, most: int) -> list[int]:
    """Places of at most `most` ascending values that are spread evenly between the first and the last."""
    if values.size <= most:
        return list(range(values.size))
    wanted = np.linspace(values[0], values[-1], most)
    return sorted({int(np.argmin(np.abs(values - value))) for value in wanted} | {0, values.size - 1})


def _few(counts: Sequence[int]) -> str:
    """Ascending whole numbers in words: 1 to 6, or 3, 5 and 7."""
    if len(counts) > 2 and counts[-1] - counts[0] == len(counts) - 1:
        return f"{counts[0]} to {counts[-1]}"
    return " and ".join(filter(None, (", ".join(map(str, counts[:-1])), str(counts[-1]))))


def coverage_table(found: Overview) -> Table:
    """What a latency table covers, by stage, GPU count and expert count."""
    gpus = sorted({c.gpu for c in found.coverage})
    cells: list[Cell[Coverage]] = [
        (Column("", text=True), lambda c: c.stage),
        (Column("GPUs"), lambda c: f"{c.gpus}"),
        (Column("experts"), lambda c: f"{c.n_experts}"),
        (Column("rows"), lambda c: f"{c.rows}"),
        (Column("parameters"), lambda c: _between(*(format_count(x) for x in c.n_params_total))),
        (Column("tokens"), lambda c: _between(*(f"{x}" for x in c.tokens))),
        (Column("batch"), lambda c: _between(*(f"{x}" for x in c.batch))),
        (Column("full batch", rank=1), lambda c: f"{c.smallest_largest_batch}"),
        (Column("spread", rank=2), lambda c: f"{c.spread:.1%}"),
    ]
    if len(gpus) > 1:
        cells.insert(0, (Column("GPU", text=True), lambda c: c.gpu))
    title = f"Coverage on {', '.join(gpus)}; no extrapolation beyond these ranges"
    return table_of(title, found.coverage, cells)


def interpolation_table(found: Overview) -> Table:
    """How well a latency table predicts each of its inner rows."""
    return table_of(
        "Leave-one-out error of linear interpolation along each axis",
        found.held_out,
        (
            (Column("", text=True), lambda h: h.stage),
            (Column("along", text=True), lambda h: "size" if h.axis == "n_params_total" else h.axis),
            (Column("rows"), lambda h: f"{h.rows}"),
            (Column("median error"), lambda h: f"{h.median_abs_error:.1%}"),
            (Column("largest error"), lambda h: f"{h.max_abs_error:.1%}"),
            (Column("mean error"), lambda h: f"{h.bias:+.1%}"),
            (Column("worst at", text=True, rank=1), lambda h: h.worst),
        ),
    )


def unmeasured_table(found: Overview) -> Table:
    """The rows of a latency table that hold no latency."""
    columns = (Column("", text=True), Column("rows"), Column("reason", text=True))
    return Table(
        "Rows without a latency", columns, [(stage, f"{rows}", reason) for stage, reason, rows in found.not_ok]
    )


def _between(low: str, high: str) -> str:
    return low if low == high else f"{low}-{high}"


def planned_runs_table(runs: Iterable[dict[str, Any]]) -> Table:
    """The runs of a sweep before it starts, from the JSON of `sweep --dry-run`."""
    return table_of(
        "",
        runs,
        (
            (Column("run", text=True), lambda r: r["name"]),
            (Column("N"), lambda r: format_count(r["n_params_dense"])),
            (Column("active", rank=3), lambda r: format_count(r["n_params_active"])),
            (Column("total", rank=2), lambda r: format_count(r["n_params_total"])),
            (Column("E", rank=5), lambda r: f"{r['n_experts']}"),
            (Column("tokens"), lambda r: " ".join(format_count(tokens) for tokens in r["tokens"])),
            (Column("FLOPs", rank=1), lambda r: format_flops(r["training_flops"])),
            (Column("time", rank=1), lambda r: format_seconds(r["seconds"]) if "seconds" in r else "-"),
            (
                Column("state", text=True, rank=4),
                lambda r: r["state"] + (f" at {r['share']:.0%}" if 0 < r["share"] < 1 else ""),
            ),
        ),
    )


def regret_table(rows: Iterable[tuple[str, int, float, float]]) -> Table:
    """The plan's expected regret after sweeps: name, runs, FLOPs, regret."""
    return table_of(
        "",
        rows,
        (
            (Column("sweep", text=True), lambda r: r[0]),
            (Column("runs"), lambda r: f"{r[1]}" if r[1] else "-"),
            (Column("FLOPs"), lambda r: format_flops(r[2]) if r[2] else "-"),
            (Column("expected regret"), lambda r: f"{r[3]:.1%}"),
        ),
    )


def designed_runs_table(runs: Iterable[DesignedRun]) -> Table:
    """Every run of a designed sweep, in the order in which they were chosen."""
    return table_of(
        "Runs, by reduction of regret per FLOP",
        runs,
        (
            (Column("N"), lambda r: format_count(r.n_params)),
            (Column("E"), lambda r: f"{r.experts}"),
            (Column("tokens"), lambda r: format_count(r.tokens)),
            (Column("tokens/N"), lambda r: f"{r.tokens / r.n_params:.3g}"),
            (Column("FLOPs"), lambda r: format_flops(r.flops)),
            (Column("batch", rank=1), lambda r: format_count(r.batch_tokens)),
            (Column("peak lr", rank=1), lambda r: f"{r.peak_lr:.2e}"),
            (Column("doubt left"), lambda r: f"{r.doubt_left:.1%}"),
        ),
    )


def designed_counts_table(runs: Iterable[DesignedRun]) -> Table:
    """The runs of a designed sweep by expert count."""
    every = list(runs)
    total = sum(run.flops for run in every)

    def span(values: list[float]) -> str:
        low, high = format_count(min(values)), format_count(max(values))
        return low if low == high else f"{low} to {high}"

    groups = [(e, [run for run in every if run.experts == e]) for e in sorted({run.experts for run in every})]
    return table_of(
        "By expert count",
        groups,
        (
            (Column("E"), lambda g: f"{g[0]}"),
            (Column("runs"), lambda g: f"{len(g[1])}"),
            (Column("N"), lambda g: span([run.n_params for run in g[1]])),
            (Column("tokens"), lambda g: span([run.tokens for run in g[1]])),
            (Column("share of FLOPs"), lambda g: f"{sum(run.flops for run in g[1]) / total:.0%}"),
        ),
    )


def plan_headline(plan: Plan) -> str:
    """The decision in one line."""
    model = plan.decision.model
    if model.experts == 1:
        text = f"Train a dense model: {format_count(model.n_params_active)} parameters"
    else:
        sizes = f"{format_count(model.n_params_active)} active of {format_count(model.n_params_total)} parameters"
        text = f"Train {model.experts:g} experts: {sizes}"
    return f"{text}, {format_count(model.tokens)} tokens"


def decision_facts(plan: Plan) -> list[tuple[str, str]]:
    """The decision fact by fact: training, serving, loss, probability, regret, shape, and the baseline."""
    model = plan.decision.model
    facts = [("training", _training_text(plan))]
    if plan.training is not None and plan.training.mfu_words:
        if plan.training.mfu_from == "assumed":  # beside the dollars that rest on it
            facts = [("training", f"{_training_text(plan)} (MFU {plan.training.mfu_words})")]
        else:
            facts.append(("MFU", plan.training.mfu_words))
    if unused := _unused_text(plan):
        facts.append(("unused", unused))
    facts.append(("serving", _serving_text(plan)))
    if model.tpot_s is not None and model.ttft_s is not None:
        facts.append(("latency", f"TPOT {format_seconds(model.tpot_s)}, TTFT {format_seconds(model.ttft_s)}"))
    if plan.lifetime is not None and model.total_usd is not None:
        served = format_count(plan.lifetime.lifetime_tokens)
        facts.append(("lifetime", f"{format_usd(model.total_usd)} to train the model and serve {served} tokens"))
    facts.append(("loss", _loss_text(plan)))
    if model.probability_at_least_base is not None and (not plan.is_baseline or "max_loss" in plan.asked):
        facts.append((_probability_name(plan), _probability_text(plan)))
    if plan.decision.undecided:
        facts.append(("experts", plan.decision.undecided))
    if model.regret is not None:
        facts.append(("regret", _regret_text(plan, model.regret)))
    facts.append(("build", build_sentence(plan.decision.architecture)))
    base = plan.built_base
    usd = f"{format_usd(base.usd_per_mtok)}/Mtok" if base.usd_per_mtok else f"cannot be served on {plan.gpu}"
    sizes = f"{format_count(base.n_params_active)} active, {format_count(base.tokens)} tokens"
    facts.append(("baseline", f"{plan.base_name}: {sizes}, {usd}"))
    return facts


def _training_text(plan: Plan) -> str:
    use = plan.training
    if use is None:
        return f"{format_flops(plan.decision.model.training_flops)} FLOPs"
    text = f"{format_flops(use.flops_used)} FLOPs"
    budget = "the budget" if use.budget_of is None else f"those of {use.budget_of}"
    if use.budget_share >= 2:
        text += f" ({use.budget_share:.1f} times {budget})"
    elif not 0.99 <= use.budget_share <= 1.01:
        text += f" ({use.budget_share:.0%} of {budget})"
    if use.gpu_days is None or use.usd is None:
        return text
    gpus = f"{format_count(use.gpu_days)} GPU days on {use.train_gpu}"
    if use.days is not None:
        gpus = f"{use.days:.3g} days on {use.gpu_days / use.days:.0f} x {use.train_gpu}"
    return f"{text}, {gpus}, {format_usd(use.usd)}"


def _unused_text(plan: Plan) -> str:
    """Why some of the budget is left over, and what it would buy; empty where it is spent."""
    use = plan.training
    if use is None or use.spent or use.budget_of is not None:
        return ""
    text = f"{1.0 - use.budget_share:.0%} of the budget"
    if use.unused_because:
        text += f": {use.unused_because}"
    if plan.choices.quality is not None and plan.decision is plan.recommendation:
        text += f". The whole budget buys a loss of {plan.choices.quality.loss:.4f} (quality, below)"
    return text


def _serving_text(plan: Plan) -> str:
    model, base_usd = plan.decision.model, plan.built_base.usd_per_mtok
    text = f"{format_usd(model.usd_per_mtok)} per million output tokens on {model.gpus} x {plan.gpu}"
    if base_usd:
        text += f", {model.usd_per_mtok / base_usd:.0%} of the baseline's cost"
    return text


def _loss_text(plan: Plan) -> str:
    model = plan.decision.model
    if plan.is_baseline:
        return f"{model.loss:.4f}; this model is the baseline"
    gains, limits = ((model.intervals or {}).get(name) for name in ("loss_gain", "loss"))
    gap, text = plan.base_loss - model.loss, f"{model.loss:.4f}; baseline {plan.base_loss:.4f}"
    text += f" ({abs(gap):.4f} {'lower' if gap >= 0 else 'higher'}" if abs(gap) >= 5e-5 else " (equal"
    if gains:  # the units of the laws' losses differ, their differences hardly
        low, high = gains if gap > -5e-5 else (-gains[1], -gains[0])
        text += f", 90% interval {span_text((low, high), '.3f')}"
    elif limits and (plan.lifetime is None or plan.lifetime.target_loss is None):
        text += f"; 90% interval of the loss {span_text(limits, '.3f')}"
    return f"{text})"


def _probability_name(plan: Plan) -> str:
    return P_LOSS if plan.asked.get("max_loss") is None else f"P(loss <= {plan.asked['max_loss']})"


def _probability_text(plan: Plan) -> str:
    sure = _percentage(plan.decision.model.probability_at_least_base)
    voting, probability = plan.voting_laws, plan.decision.model.probability_at_least_base
    if not voting:
        return f"{sure} under {plan.law}"
    laws = len(voting)
    text = f"{sure} over {laws} laws"
    if probability is not None and probability > laws / (laws + 1) + 0.005:
        text += f" (trust at most {laws / (laws + 1):.0%})"
    if plan.decision is plan.recommendation:
        least = min(plan.laws, key=lambda view: view.probability)
        each = f", {least.probability:.0%} under the most sceptical ({least.law})"
        text += each if least.probability < 0.995 else " and under each of them"
    return text


def _regret_text(plan: Plan, regret: Regret) -> str:
    """Shares of the baseline's cost, and the dollars that they come to."""
    shares = (regret.expected, regret.worst)
    several = bool(plan.voting_laws)
    what = "if another law is true" if several else f"over the draws of {plan.law}"
    worst = "at worst" if several else "in one draw of 20"
    text = f"{shares[0]:.0%} of the baseline's cost expected {what}, {shares[1]:.0%} {worst}"
    if plan.base_usd_per_mtok is None:
        return text
    first, last = (format_usd(share * plan.base_usd_per_mtok) for share in shares)
    return f"{text} ({first} and {last}/Mtok)"


def build_sentence(a: Buildable) -> str:
    """The shape to build, in whole layers and heads."""
    keys = f"latent, rank {a.kv_lora_rank}" if a.kv_lora_rank else f"{a.n_kv_heads} KV"
    text = f"{a.n_layers} layers, width {a.d_model}, {a.n_heads} heads ({keys})"
    # Where experts are narrower no layer of a MoE model in every layer has the dense FFN, which its N counts.
    text += f", FFN {a.d_ffn}" if a.n_experts == 1 or a.moe_every > 1 or not a.d_expert else ""
    if a.n_experts > 1:
        where = {1: "every layer", 2: "every other layer"}.get(a.moe_every, f"one layer in {a.moe_every}")
        narrow = f" of width {a.d_expert}" if a.d_expert else ""
        text += f", {a.n_experts} experts{narrow} in {where}, top-{a.top_k}"
        text += f", shared experts {a.d_shared_expert} wide" if a.d_shared_expert else ""
    total = f"{format_count(a.n_params_total)} parameters without embeddings"
    return f"{text}; {total}. All figures are for this shape"


def choices_table(plan: Plan) -> Table:
    """Quality, balance and economy; the decision is marked where it is one of them."""
    chosen = plan.decision.model
    named = [(name, getattr(plan.choices, name)) for name in ("quality", "balanced", "cheapest")]
    rows = [(name, model) for name, model in named if model is not None]
    experts = tuple(model.experts for _, model in rows)

    def away(model: Candidate) -> float:
        return abs(math.log(model.n_params / chosen.n_params)) if model.experts == chosen.experts else math.inf

    nearest = min((away(model) for _, model in rows), default=math.inf)

    def mark(name: str, model: Candidate) -> str:
        return f"{'>' if away(model) == nearest < ALIKE else ' '} {name}"

    def ranked(column: Column) -> Column:
        return replace(column, rank={"total": 3, "GPUs": 2}.get(column.head, 0))

    cells: list[Cell[tuple[str, Candidate]]] = [
        (Column("", text=True), lambda r: mark(*r)),
        (Column("E"), lambda r: f"{r[1].experts:g}"),
        *((ranked(column), lambda r, text=text: text(r[1])) for column, text in (*SIZES[1:], LOSS, *SERVING)),
        (Column(RELATIVE_COST), lambda r: _percentage(r[1].cost_ratio)),
        (Column(P_LOSS, rank=1), lambda r: _percentage(r[1].probability_at_least_base)),
        (Column("regret", rank=1), lambda r: "-" if r[1].regret is None else f"{r[1].regret.expected:.0%}"),
    ]
    return table_of("Three choices, before rounding to whole layers and heads", rows, cells, experts=experts)


def laws_table(plan: Plan) -> Table:
    """What each law says of the decision, and the model that it would choose."""

    cells: tuple[Cell[LawView], ...] = (
        (Column("law", text=True), lambda v: v.law),
        *([(Column("weight", rank=2), lambda v: f"{v.weight:.0%}")] if plan.voting_laws else []),
        (Column(P_LOSS), lambda v: f"{v.probability:.0%}"),
        (Column("regret"), lambda v: "-" if v.regret is None else f"{v.regret:.0%}"),
        (Column("choice: E"), lambda v: "none" if v.experts is None else f"{v.experts:g}"),
        (Column("active", rank=1), lambda v: "-" if v.n_params_active is None else format_count(v.n_params_active)),
        (Column("tokens", rank=1), lambda v: "-" if v.tokens is None else format_count(v.tokens)),
        (Column("its cost vs baseline"), lambda v: _percentage(v.cost_ratio)),
    )
    model = "this model" if plan.decision is plan.recommendation else "the recommended model of the budget"
    law = "law" if plan.voting_laws else "named law"
    return table_of(f"What each {law} says of {model}, and which model it would choose", plan.laws, cells)


def regrets_table(plan: Plan) -> Table:
    """Regret and probability of the decision, and of each law's choice, under every law."""
    names = [view.law for view in plan.laws]

    def under(name: str) -> Callable[[LawView], str]:
        def text(view: LawView) -> str:
            found = (view.elsewhere or {}).get(name)
            return "-" if found is None or found.regret is None else f"{found.regret:.0%} ({found.probability:.0%})"

        return text

    cells: list[Cell[LawView]] = [(Column("choice of", text=True), lambda v: v.law)]
    cells += [(Column(name, rank=1), under(name)) for name in names]
    table = table_of(f"Regret under each law, with {P_LOSS} in brackets", plan.laws, cells)
    ours = ["this plan", *("-" if v.regret is None else f"{v.regret:.0%} ({v.probability:.0%})" for v in plan.laws)]
    return replace(table, rows=(*table.rows, ours))


SIZES: tuple[Cell[Trained], ...] = (
    (Column("N"), lambda c: format_count(c.n_params)),
    (Column("active", rank=2), lambda c: format_count(c.n_params_active)),
    (Column("total"), lambda c: format_count(c.n_params_total)),
    (Column("tokens"), lambda c: format_count(c.tokens)),
)
LOSS: Cell[Trained] = (Column("loss"), lambda c: f"{c.loss:.4f}")
SERVING: tuple[Cell[Trained], ...] = (
    (Column("$/Mtok"), lambda c: "-" if c.usd_per_mtok is None else format_usd(c.usd_per_mtok)),
    (Column("GPUs"), lambda c: "-" if c.gpus is None else f"{c.gpus}"),
)
OWN_SHARE: Cell[Trained] = (Column("N vs optimum", rank=1), lambda c: _percentage(c.size_ratio))
RATIOS: tuple[Cell[Trained], ...] = (
    OWN_SHARE,
    (Column("active vs baseline", rank=3), lambda c: _percentage(c.active_ratio_to_base)),
    (Column(RELATIVE_COST, rank=1), lambda c: _percentage(c.cost_ratio)),
)


def loss_optimal_table(plan: Plan) -> Table:
    """The loss-optimal model of each expert count that was asked about, and the baseline where it is of another."""
    cells, rows = (*SIZES, LOSS, *SERVING, _drawn("loss", "loss", ".3f")), plan.loss_optimal
    table = _models("Loss-optimal model of each expert count", rows, cells)
    base = plan.base if plan.base_experts not in {c.experts for c in rows} and "match" not in plan.asked else None
    if base is None:
        return table
    own = _models("", (base,), cells)
    named = tuple((f"{name} (baseline)", *row) for name, *row in own.rows)
    return replace(table, rows=(*table.rows, *named), experts=(*table.experts, *own.experts))


def bounded_loss_table(plan: Plan) -> Table:
    """The cheapest model of each expert count at the baseline's loss."""
    goal = f"the loss of the {base_name(plan)} ({plan.base_loss:.4f})"
    if plan.confidence is not None:
        goal = f"{P_LOSS} of {plan.confidence:.0%}"
    title = f"Cheapest model of each expert count at {goal} (Algorithm 1)"
    drawn = _drawn("", "cost_ratio", ".0%")
    if plan.base_usd_per_mtok is None:  # then no cost has a ratio to the baseline's
        drawn = _drawn("$/Mtok", "usd_per_mtok")
    regret: Cell[Trained] = (
        Column("regret", rank=1),
        lambda c: "-" if c.regret is None else f"{c.regret.expected:.0%}",
    )
    return _models(title, plan.bounded_loss, (*SIZES, LOSS, *SERVING, *RATIOS, regret, drawn))


def bounded_cost_table(plan: Plan) -> Table | None:
    """The best model of each expert count at the baseline's cost; None where the baseline cannot be served."""
    if plan.base_usd_per_mtok is None:
        return None
    usd = format_usd(plan.base_usd_per_mtok)
    title = f"Lowest loss of each expert count at the cost of the {base_name(plan)} ({usd}) (Algorithm 2)"
    return _models(title, plan.bounded_cost, (*SIZES, LOSS, *SERVING, *RATIOS))


def lifetime_table(plan: LifetimePlan) -> Table:
    """The best life of each expert count in dollars."""
    cells: list[Cell[Life]] = [
        SIZES[0],
        SIZES[3],
        LOSS,
        (Column("FLOPs", rank=2), lambda c: format_flops(c.training_flops)),
        (Column("training $"), lambda c: format_usd(c.training_usd)),
        (Column("serving $"), lambda c: format_usd(c.serving_usd)),
        (Column("total $"), lambda c: format_usd(c.total_usd)),
        *SERVING,
    ]
    if plan.target_loss is not None:
        goal = f"loss {plan.target_loss:.4f} at the lowest cost"
        cells = [*(cell for cell in cells if cell is not LOSS), _drawn("total $", "total_usd")]
    else:
        goal = f"lowest loss within {format_usd(plan.max_total_usd or 0.0)}"
        cells.append(_drawn("loss", "loss", ".3f"))
    title = f"Training and serving {format_count(plan.lifetime_tokens)} tokens: {goal}"
    return _models(title, plan.plans, cells)


def training_sentence(plan: LifetimePlan) -> str:
    """The price and MFU of a training GPU."""
    usd = format_usd(plan.train_usd_per_gpu_hour)
    return f"Training on {plan.train_gpu} at {usd} per GPU hour, MFU {plan.mfu:g}."


def frontier_table(plan: Plan) -> Table:
    """Some points of the frontier of loss against cost, from the cheapest to the best."""
    count = len(plan.frontier)
    shown = sorted({round(i * (count - 1) / (FRONTIER_ROWS - 1)) for i in range(FRONTIER_ROWS)}) if count else []
    part = f" ({len(shown)} of {count} points; all with --json)" if len(shown) < count else ""
    rows = [plan.frontier[i] for i in shown]
    return _models(f"Frontier of loss against cost{part}", rows, (*SIZES, LOSS, *SERVING, OWN_SHARE))


def known_table(plan: Plan) -> Table:
    """The known models that a plan was asked about, against its frontier."""
    cells: tuple[Cell[KnownRow], ...] = (
        (Column("", text=True), lambda c: c.name),
        (Column("active"), lambda c: format_count(c.n_params_active)),
        *SIZES[2:],
        (Column("FLOPs", rank=1), lambda c: format_flops(c.training_flops)),
        (Column("loss"), lambda c: f"{c.loss:.4f}{MARK if c.beyond_law else ''}"),
        *SERVING,
        (Column("loss vs frontier"), lambda c: _more(c.loss_ratio_to_frontier)),
        (Column("cost vs frontier"), lambda c: _percentage(c.cost_ratio_to_frontier)),
    )
    unserved = reason_lines((c.name, c.infeasible) for c in plan.known if c.infeasible)
    return table_of("Published models under this law", plan.known, cells, notes=(*beyond_notes(plan.known), *unserved))


def compared_table(models: Sequence[ComparedModel]) -> Table:
    """Models side by side, a column each; the last go first where there is no room."""
    facts: tuple[Cell[ComparedModel], ...] = (
        (Column("active parameters"), lambda c: format_count(c.n_params_active)),
        (Column("total parameters"), lambda c: format_count(c.n_params_total)),
        (Column("expansion X"), lambda c: f"{c.expansion:.3g}"),
        (Column("training tokens"), lambda c: format_count(c.tokens)),
        (Column("training FLOPs"), lambda c: format_flops(c.training_flops)),
        (Column("GPU days"), lambda c: _known(c.gpu_days, format_count)),
        (Column("training $"), lambda c: _known(c.training_usd, format_usd)),
        (
            Column("  MFU"),
            lambda c: _known(c.mfu, "{:.2f}".format) + (f" {c.mfu_from}" if c.mfu_from == "assumed" else ""),
        ),
        (Column("loss"), lambda c: f"{c.loss:.4f}{MARK if c.beyond_law else ''}"),
        (Column("  90% interval"), lambda c: span_text(c.loss_interval, ".3f")),
        (Column("  vs the first model"), lambda c: _known(c.loss_change, "{:+.1%}".format)),
        (Column("    90% interval"), lambda c: span_text(c.loss_change_interval, "+.1%")),
        (Column("  P(loss <= the first)"), lambda c: _known(c.probability_better, "{:.0%}".format)),
        (Column("$/Mtok"), lambda c: _known(c.usd_per_mtok, format_usd)),
        (Column("GPUs"), lambda c: _known(c.gpus, "{}".format)),
        (Column("batch"), lambda c: _known(c.batch, "{:.0f}".format)),
        (Column("TPOT"), lambda c: _known(c.tpot_s, format_seconds)),
        (Column("total $"), lambda c: _known(c.total_usd, format_usd)),
    )
    rows = [[fact.head, *(text(model) for model in models)] for fact, text in facts]
    columns = [Column(c.name, rank=i if i > 1 else 0) for i, c in enumerate(models)]
    unserved = reason_lines((c.name, c.infeasible) for c in models if c.infeasible)
    assumed = [f"{c.name}: MFU {c.mfu:g} assumed, as no split holds it" for c in models if c.mfu_from == "assumed"]
    return Table(
        "",
        (Column("", text=True), *columns),
        [row for row in rows if any(text.strip("-") for text in row[1:])],
        notes=(*beyond_notes(models), *assumed, *unserved),
    )


def break_even_lines(models: Sequence[ComparedModel]) -> tuple[str, ...]:
    """Served tokens after which models that cost more to train break even, the soonest first."""
    told = sorted((tokens, c.name, other) for c in models for other, tokens in (c.break_even_tokens or {}).items())
    more = len(told) - BREAK_EVENS
    return (
        *(
            f"{name} costs more to train and less to serve than {other}: it breaks even after {format_count(tokens)} "
            "output tokens."
            for tokens, name, other in told[:BREAK_EVENS]
        ),
        *([f"{more} more pairs with --json."] if more > 0 else []),
    )


def _known(value: float | None, text: Callable[[float], str]) -> str:
    return "-" if value is None else text(value)


def beyond_notes(models: Iterable[KnownRow | ComparedModel]) -> tuple[str, ...]:
    """Of which models a law may not speak, and why, a line for each reason."""
    return tuple(f"{MARK} {line}" for line in reason_lines((c.name, c.beyond_law) for c in models if c.beyond_law))


def _more(ratio: float | None) -> str:
    """By what share a loss is higher than another."""
    return "-" if ratio is None else f"{ratio - 1.0:+.1%}"


def _models(title: str, models: Sequence[Model | Unreachable], cells: Sequence[Cell[Model]]) -> Table:
    known = [c for c in models if c.n_params is not None]
    name: Cell[Model] = (Column("", text=True), lambda c: expert_label(c.experts))
    notes = reason_lines((expert_label(c.experts), c.infeasible) for c in models if c.infeasible)
    return table_of(title, known, (name, *cells), experts=tuple(c.experts for c in known), notes=notes)


def _drawn(what: str, figure: str, form: str | None = None) -> Cell[Trained]:
    """The column of a figure's interval, in dollars without a `form`."""

    def text(model: Trained) -> str:
        limits = (model.intervals or {}).get(figure)
        return " to ".join(format_usd(end) if form is None else f"{end:{form}}" for end in limits or ())

    return Column(f"{what}, 90% interval".lstrip(", "), rank=1), text


def _percentage(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.0%}"
