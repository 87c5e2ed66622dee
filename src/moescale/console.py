"""Answers as tables for a terminal: what the command line prints without --json.

Tables are set in plain text: columns that do not fit the terminal are left out, the least needed first, and nothing is
wrapped inside a table. Reasons and notes go below it, where there is room for a sentence.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from moescale.units import format_bytes, format_count, format_flops, format_seconds, format_usd

if TYPE_CHECKING:
    from rich.console import Console

    from moescale.architecture import FloatArray
    from moescale.buildable import Buildable
    from moescale.burst import Run
    from moescale.fitting import Fit
    from moescale.latency.coverage import Overview
    from moescale.laws.law import Law, Prediction
    from moescale.lifetime_plan import LifetimePlan
    from moescale.planning import Candidate, Plan
    from moescale.serving import Cost, Deployment
    from moescale.serving_sweep import LeftOut, OperatingPoints
    from moescale.validation import HoldOut

PLAIN_WIDTH = 100  # where the output is no terminal: a file, a pipe, a page
LONGEST_LINE = 100  # of prose: longer ones are hard to read, however wide the terminal
FRONTIER_ROWS = 10
SWEEP_ROWS = 16


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table; of the columns with a `rank`, that of the highest goes first where the table is too wide."""

    head: str
    text: bool = False  # left-aligned
    rank: int = 0


def terminal(*, error: bool = False) -> Console:
    """A rich console on standard output, or on standard error; of a fixed width when it is not a terminal."""
    from rich.console import Console

    console = Console(stderr=error, highlight=False, markup=False, emoji=False)
    if console.is_terminal:
        return console
    return Console(stderr=error, highlight=False, markup=False, emoji=False, width=PLAIN_WIDTH)


def _line(console: Console, text: str = "", *, bold: int = 0) -> None:
    """One line as it is, its first `bold` characters bold."""
    from rich.text import Text

    line = Text(_encodable(console, text.rstrip()))
    if bold:
        line.stylize("bold", 0, bold)
    console.print(line, no_wrap=True, overflow="ignore", crop=False)


def _encodable(console: Console, text: str) -> str:
    """The text with plain letters for the signs that the terminal's encoding lacks."""
    try:
        text.encode(console.encoding)
    except (UnicodeError, LookupError):
        return text.replace("µ", "u").encode("ascii", "replace").decode("ascii")
    return text


def _say(console: Console, text: str, *, lead: str = "", indent: int = 0, first: str | None = None) -> None:
    """A paragraph, its lead bold; `first` begins its first line, `indent` blanks the others."""
    opening = " " * indent if first is None else first
    lines = textwrap.wrap(
        f"{lead}  {text}" if lead else text,
        width=max(20, min(console.width, LONGEST_LINE)),
        initial_indent=opening,
        subsequent_indent=" " * indent,
        break_on_hyphens=False,
    )
    for number, line in enumerate(lines):
        _line(console, line, bold=len(lead) + len(opening) if lead and number == 0 else 0)


def _table(console: Console, title: str, columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> None:
    """A table with its title; empty columns, and those for which there is no room, are left out."""
    cells = [list(row) for row in rows]
    kept = [i for i, column in enumerate(columns) if not column.rank or any(row[i] not in ("", "-") for row in cells)]
    widths = [max(len(columns[i].head), *(len(row[i]) for row in cells), 0) for i in range(len(columns))]
    left_out: list[str] = []
    while sum(widths[i] + 2 for i in kept) - 2 > console.width:
        ranked = [i for i in kept if columns[i].rank]
        if not ranked:
            break
        least = max(ranked, key=lambda i: columns[i].rank)
        kept.remove(least)
        left_out.append(columns[least].head)

    def row_text(row: Sequence[str]) -> str:
        return "  ".join(row[i].ljust(widths[i]) if columns[i].text else row[i].rjust(widths[i]) for i in kept)

    _line(console)
    if title:
        _line(console, title, bold=len(title))
    head = row_text([column.head for column in columns])
    _line(console, head, bold=len(head))
    rule = "─" if _encodable(console, "─") == "─" else "-"
    _line(console, rule * min(console.width, sum(widths[i] + 2 for i in kept) - 2))
    for row in cells:
        _line(console, row_text(row))
    if left_out:
        _say(console, f"No room for {', '.join(left_out)}: widen the terminal, or use --json.")


def _span(limits: Sequence[float] | None, form: str = ".4g") -> str:
    return f"{limits[0]:{form}} to {limits[1]:{form}}" if limits else ""


def show_fit(console: Console, found: Fit, intervals: dict[str, tuple[float, float]] | None) -> None:
    """The optimum of a fit: how good it is, its parameters, what to mind."""
    _say(console, found.form.equation, lead=found.form.title)
    _say(
        console,
        f"{found.n_runs} runs, RMSLE {found.rmsle:.4g}, mean Huber {found.huber:.4g}, "
        f"{found.starts_at_optimum} of {found.starts} starts at the optimum",
    )
    _line(console, f"fitted in {format_seconds(found.seconds)}")
    remarks = {name: "on a bound" for name in found.at_bound}
    remarks |= {name: "not identified" for name in found.not_identified if name not in remarks}
    _table(
        console,
        "",
        (
            Column("parameter", text=True),
            Column("value"),
            Column("90% interval", rank=1),
            Column("remark", text=True, rank=1),
            Column("meaning", text=True, rank=2),
        ),
        [
            (
                p.name,
                f"{found.parameters[p.name]:.6g}",
                _span(intervals.get(p.name)) if intervals else "",
                remarks.get(p.name, ""),
                p.meaning,
            )
            for p in found.form.parameters
        ],
    )
    _line(console)
    _say(console, f"Fitted on {_ranges(found.fit_range)}.")


def _ranges(fit_range: dict[str, tuple[float, float]]) -> str:
    letters = {"n_params": "N", "tokens": "D", "experts": "E"}
    return ", ".join(
        f"{letters.get(name, name)} {format_count(low)} to {format_count(high)}"
        for name, (low, high) in fit_range.items()
    )


def show_laws(console: Console, laws: Sequence[Law]) -> None:
    """The catalogue of coefficient sets, a paragraph each."""
    for law in laws:
        family = law.family
        spacing = "every layer" if family.moe_every == 1 else f"every {family.moe_every} layers"
        models = f"top-{family.top_k}, experts {spacing}" if law.form.uses_experts else "dense models"
        _line(console, f"{law.name}  ({law.form.name}; {models})", bold=len(law.name))
        _say(console, f"{law.source}.", indent=2)
        _say(console, ", ".join(f"{k} {v:.4g}" for k, v in law.parameters.items()), indent=2)
        if law.fit_range:
            _say(console, f"Fitted on {_ranges(law.fit_range)}.", indent=2)
        _line(console)
    for form in {law.form.name: law.form for law in laws}.values():
        _say(console, form.equation, lead=form.name, indent=2, first="")


def show_comparison(console: Console, records: Sequence[HoldOut]) -> None:
    """How each law predicts the runs that it was not fitted on, best first."""
    heads = ("parameters", "fitted on", "RMSLE", "held out", "RMSLE held out", "bias held out")
    rows = [
        (
            r.law,
            str(r.parameters),
            str(r.n_train),
            f"{r.rmsle_train * 1e3:.2f}e-3",
            str(r.n_holdout),
            f"{r.rmsle_holdout * 1e3:.2f}e-3",
            f"{r.bias_holdout * 1e3:+.2f}e-3",
        )
        for r in sorted(records, key=lambda r: r.rmsle_holdout)
    ]
    _table(console, "Error of ln L", (Column("law", text=True), *(Column(head) for head in heads)), rows)


def show_prediction(console: Console, law: Law, predicted: Prediction) -> None:
    """A predicted loss and how far to trust it."""
    text = f"loss {predicted.loss:.4f} nats per token"
    if predicted.interval:
        text += f"  (90% of the law's draws: {predicted.interval[0]:.4f} to {predicted.interval[1]:.4f})"
    _line(console, text, bold=len(f"loss {predicted.loss:.4f}"))
    for name, factor in predicted.extrapolation.items():
        end = "largest" if factor > 1 else "smallest"
        _line(console, f"extrapolated: {name} at {factor:.3g} times the {end} fitted")
    _say(console, f"law {law.name}: {law.source}")


def show_burst(console: Console, run: Run, host: str) -> None:
    """A simulated run in three lines; the times are medians and what 99% of the requests stay within."""
    record = run.to_dict()

    def spread(name: str) -> str:
        cuts = record.get(name)
        if not isinstance(cuts, dict):
            return "none"
        return f"{format_seconds(cuts['p50'])} (99% within {format_seconds(cuts['p99'])})"

    _say(
        console,
        f"Simulated: {len(run.arrival_s)} requests in {format_seconds(run.makespan_s)}, {run.output_tok_s:,.0f} output tokens "
        f"a second, {format_usd(run.usd_per_mtok)} per million; at most {run.peak_running} at a time; host: {host}.",
    )
    _say(console, f"First token after {spread('ttft_s')}, then {spread('tpot_s')} a token.")
    if run.n_preemptions:
        _say(console, f"The cache was full {run.n_preemptions} times, and requests were computed again.")


def show_cost(console: Console, cost: Cost, deployment: Deployment, traffic: str | None = None) -> None:
    """The cost of one model: the cheapest GPU count first, then each that was looked at; `traffic` names a trace."""
    name = deployment.gpu.name
    if cost.usd_per_mtok is not None:
        text = f"{format_usd(cost.usd_per_mtok)} per million output tokens on {cost.gpus} x {name}"
        copies = cost.replicas or 1
        shape = f" ({copies} replicas of {cost.tensor_parallel})" if copies > 1 else ""
        _line(console, text + shape, bold=len(text))
    reserve = f"; reserve {format_bytes(cost.reserve_bytes)} a GPU" if cost.reserve_bytes else ""
    _say(
        console,
        f"{format_count(cost.n_params_total)} parameters, {format_count(cost.n_params_active)} active; weights "
        f"{format_bytes(cost.weight_bytes)}; KV cache {cost.kv_bytes_per_token / 1024:.1f} KiB a token{reserve}",
    )
    _say(
        console,
        f"{_traffic(deployment)}{f', {traffic}' if traffic else ''}; "
        f"{format_usd(float(deployment.usd_per_gpu_hour))} a GPU hour; "
        f"utilization {deployment.utilization:g}; latency from {cost.latency_source}",
    )
    looked_at = cost.candidates or ()
    _table(
        console,
        "",
        (
            Column("GPUs"),
            Column("$/Mtok"),
            Column("batch"),
            Column("output tok/s"),
            Column("first token"),
            Column("per token"),
            Column("batch limited by", text=True),
            Column("", text=True),
        ),
        [
            (
                str(c.gpus),
                format_usd(c.usd_per_mtok),
                f"{c.batch:.0f}",
                f"{c.throughput_tok_s:,.0f}",
                format_seconds(c.ttft_s or 0.0),
                format_seconds(c.tpot_s or 0.0),
                _limit(c, deployment),
                "<- cheapest" if c.gpus == cost.gpus else "",
            )
            for c in looked_at
            if c.usd_per_mtok is not None and c.batch is not None and c.throughput_tok_s is not None
        ],
    )
    _reasons(console, [(f"{c.gpus} GPU{'s' if c.gpus != 1 else ''}", c.infeasible) for c in looked_at if c.infeasible])


def _limit(cost: Cost, deployment: Deployment) -> str:
    """What limits the batch; of two limits of latency, the one that binds."""
    kinds = {"max_ttft": ("first token", deployment.max_ttft_s), "max_tpot": ("per token", deployment.max_tpot_s)}
    kind, most = kinds.get(cost.latency_limit or "", ("", None))
    return f"latency: {kind}" if most is not None else cost.limited_by or ""


def show_sweep(console: Console, points: OperatingPoints, traffic: str | None = None) -> None:
    """The Pareto set of a sweep, what each GPU and number format can do alone, and what has no answer."""
    from moescale.accounting import count_parameters

    p, front, d = points, points.pareto.tolist(), points.deployment
    usd, per_s, each_s = p.usd_per_mtok.tolist(), p.tok_s_per_user.tolist(), p.tpot_s.tolist()
    cheap, fast = front[-1], front[0]
    lead = f"{format_usd(usd[cheap])} to {format_usd(usd[fast])} per million output tokens"
    if cheap == fast:
        lead = f"{format_usd(usd[cheap])} per million output tokens"
    rates = " to ".join(_rate(per_s[i]) for i in dict.fromkeys((cheap, fast)))
    _line(console, f"{lead} at {rates} tok/s for each user", bold=len(lead))
    parameters = count_parameters(p.model)
    _say(
        console,
        f"{format_count(float(parameters.total))} parameters, {format_count(float(parameters.active))} active; "
        f"{_traffic(d)}{f', {traffic}' if traffic else ''}; utilization {d.utilization:g}; latency from "
        f"{', '.join(dict.fromkeys(k.latency.name for k in p.platforms))}",
    )
    prices = {k.gpu.name: k.usd_per_gpu_hour for k in p.platforms}
    _say(console, f"GPU hours: {', '.join(f'{name} {format_usd(usd)}' for name, usd in prices.items())}")
    kinds = [p.platforms[i] for i in p.platform.tolist()]
    several = len(prices) > 1
    shown = _spread(np.log(p.tpot_s[front]), SWEEP_ROWS)
    part = f" ({len(shown)} of {len(front)}; all with --json)" if len(shown) < len(front) else ""
    split = bool(np.any(p.expert_parallel > 1))
    _table(
        console,
        f"Pareto set: no other of {len(p):,} points is cheaper and faster{part}",
        (
            *((Column("GPU", text=True),) if several else ()),
            Column("GPUs"),
            *((Column("EP"),) if split else ()),
            Column("weights", text=True),
            Column("cache", text=True),
            Column("batch"),
            Column("per token"),
            Column("tok/s/user"),
            Column("$/Mtok"),
            Column("all tok/s", rank=2),
            Column("first token", rank=3),
        ),
        [
            (
                *((kinds[i].gpu.name,) if several else ()),
                f"{p.gpus[i]:.0f}",
                *((f"{p.expert_parallel[i]:.0f}",) if split else ()),
                kinds[i].weights.name,
                kinds[i].kv_cache.name,
                f"{p.batch[i]:.0f}",
                format_seconds(each_s[i]),
                _rate(per_s[i]),
                format_usd(usd[i]),
                f"{p.throughput_tok_s[i]:,.0f}",
                format_seconds(float(p.ttft_s[i])),
            )
            for i in (front[j] for j in shown)
        ],
    )
    alone = [p.frontier(p.platform == k).tolist() for k in range(len(p.platforms))]
    _table(
        console,
        "Each alone: its cheapest point, and after it its fastest (tok/s/user)",
        (
            *((Column("GPU", text=True),) if several else ()),
            Column("weights", text=True),
            Column("cache", text=True),
            Column("$/Mtok"),
            Column("GPUs"),
            Column("batch"),
            Column("tok/s/user"),
            Column("fastest", rank=1),
            Column("GPUs", rank=1),
            Column("$/Mtok", rank=1),
        ),
        [
            (
                *((kind.gpu.name,) if several else ()),
                kind.weights.name,
                kind.kv_cache.name,
                format_usd(usd[own[-1]]),
                f"{p.gpus[own[-1]]:.0f}",
                f"{p.batch[own[-1]]:.0f}",
                _rate(per_s[own[-1]]),
                _rate(per_s[own[0]]),
                f"{p.gpus[own[0]]:.0f}",
                format_usd(usd[own[0]]),
            )
            for kind, own in zip(p.platforms, alone, strict=True)
            if own
        ],
    )
    formats = {(k.weights.name, k.kv_cache.name) for k in p.platforms}
    if len(formats) > 1:
        _line(console)
        caveat = "Number formats are compared by cost and time; what fewer bits do to quality is not in these figures."
        if any(k.latency.name == "silicon" for k in p.platforms):
            caveat += (
                " Where a format's kernels were not measured (int4: nowhere), they are bf16 ones scaled by rooflines."
            )
        _say(console, caveat)
    _left_out(console, points)


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 9.95 else f"{value:.2g}"


def _spread(values: FloatArray, most: int) -> list[int]:
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


def _left_out(console: Console, points: OperatingPoints) -> None:
    """What has no answer; of several GPU counts with one fate, the reason of the largest."""
    groups: dict[str, list[LeftOut]] = {}
    for entry in sorted(points.left_out, key=lambda e: e.gpu is not None):  # what holds for all first
        formats = f" {entry.weights}/{entry.kv_cache}" if entry.weights and entry.kv_cache else ""
        who = [f"{entry.gpu}{formats}"] if entry.gpu else []
        if entry.expert_parallel is not None:
            who.append(f"expert-parallel {entry.expert_parallel}")
        if entry.max_num_seqs is not None:
            who.append("larger batches")
        groups.setdefault(", ".join(who), []).append(entry)
    if not groups:
        return
    _line(console)
    _line(console, "Left out", bold=8)
    told: list[tuple[str, str]] = []
    for who, entries in groups.items():
        counts = list(dict.fromkeys(entry.gpus for entry in entries if entry.gpus is not None))
        on = f"{_few(counts)} GPU{'' if counts == [1] else 's'}" if counts else ""
        told.append((" on ".join(filter(None, (who, on))), entries[-1].reason))
    _reasons(console, told)


def _traffic(deployment: Deployment) -> str:
    return f"{deployment.prompt_tokens:.4g} prompt and {deployment.output_tokens:.4g} output tokens a request"


def _reasons(console: Console, reasons: Iterable[tuple[str, str]]) -> None:
    """Why rows are not in the table above, one line each; reasons in common are told once."""
    told: dict[str, list[str]] = {}
    for name, reason in reasons:
        told.setdefault(reason, []).append(name)
    for reason, names in told.items():
        _say(console, f"{', '.join(names)}: {reason}", indent=2, first="")


NAME = Column("", text=True)
SIZES = (Column("N"), Column("active", rank=2), Column("total"), Column("tokens"))
SERVING = (Column("$/Mtok"), Column("GPUs"))
RATIOS = (Column("N/own", rank=1), Column("active/base", rank=3), Column("cost/base", rank=1))


def _name(c: Candidate) -> str:
    return "dense" if c.experts == 1 else f"E = {c.experts:g}"


def _sizes(c: Candidate) -> tuple[str, ...]:
    return tuple(format_count(x or 0.0) for x in (c.n_params, c.n_params_active, c.n_params_total, c.tokens))


def _serving(c: Candidate) -> tuple[str, str]:
    return (format_usd(c.usd_per_mtok), f"{c.gpus}") if c.usd_per_mtok is not None else ("-", "-")


def _percentages(*ratios: float | None) -> tuple[str, ...]:
    return tuple("-" if ratio is None else f"{ratio:.0%}" for ratio in ratios)


def _ratios(c: Candidate) -> tuple[str, ...]:
    return _percentages(c.size_ratio, c.active_ratio_to_base, c.cost_ratio)


def _no_answers(console: Console, rows: Sequence[Candidate]) -> None:
    _reasons(console, [(_name(c), c.infeasible) for c in rows if c.infeasible])


def _known(rows: Sequence[Candidate]) -> list[Candidate]:
    return [c for c in rows if c.n_params is not None]


def _build(a: Buildable) -> str:
    text = f"{a.n_layers} layers, width {a.d_model}, {a.n_heads} heads ({a.n_kv_heads} KV), FFN {a.d_ffn}"
    if a.n_experts > 1:
        where = {1: "every layer", 2: "every other layer"}.get(a.moe_every, f"one layer in {a.moe_every}")
        text += f", {a.n_experts} experts in {where}, top-{a.top_k}"
    return f"Build it as {text}: {format_count(a.n_params_total)} parameters without embeddings."


def _lifetime(console: Console, plan: LifetimePlan) -> None:
    """The best life of each expert count in dollars."""
    goal = (
        f"loss {plan.target_loss:.4f} for the fewest dollars"
        if plan.target_loss is not None
        else f"lowest loss within {format_usd(plan.max_total_usd or 0.0)}"
    )
    _table(
        console,
        f"Over {format_count(plan.lifetime_tokens)} served tokens: {goal} of training and serving",
        (
            NAME,
            Column("N"),
            Column("tokens"),
            *(() if plan.target_loss is not None else (Column("loss"),)),
            Column("FLOPs", rank=2),
            Column("$ to train"),
            Column("$ to serve"),
            Column("$ in all"),
            *SERVING,
            Column("in 90% of draws", rank=1),
        ),
        [
            (
                _name(c),
                format_count(c.n_params or 0.0),
                format_count(c.tokens or 0.0),
                *(() if plan.target_loss is not None else (f"{c.loss:.4f}",)),
                format_flops(c.training_flops or 0.0),
                *(format_usd(usd or 0.0) for usd in (c.training_usd, c.serving_usd, c.total_usd)),
                *_serving(c),
                _dollars((c.intervals or {}).get("total_usd"))
                if plan.target_loss is not None
                else _span((c.intervals or {}).get("loss"), ".3f"),
            )
            for c in _known(plan.plans)
        ],
    )
    _no_answers(console, plan.plans)
    t = plan.training
    _say(
        console,
        f"Training on {t.gpu.name} at {format_usd(t.usd_per_gpu_hour)} an hour and an MFU of {t.mfu:g}. "
        f"{_build(plan.recommendation.architecture)}",
    )
    for caveat in plan.recommendation.caveats:
        _say(console, caveat, indent=4, first="  - ")


def _dollars(limits: Sequence[float] | None) -> str:
    return f"{format_usd(limits[0])} to {format_usd(limits[1])}" if limits else ""


def show_plan(console: Console, plan: Plan) -> None:
    """The recommendation first, then the tables it stands on."""
    best, model = plan.recommendation, plan.recommendation.model
    experts = "a dense model" if model.experts == 1 else f"{model.experts:g} experts"
    headline = (
        f"Recommendation: train {experts} at N = {format_count(model.n_params or 0.0)} "
        f"on {format_count(model.tokens or 0.0)} tokens"
    )
    _line(console, headline, bold=len(headline))
    _say(console, best.why)
    _say(console, _build(best.architecture))
    if plan.second_opinion:
        _say(console, f"Second law: {plan.second_opinion.sentence}")
    if plan.lifetime is not None:
        _say(console, plan.lifetime.recommendation.why, lead="Over its life")
    elif model.lifetime_usd is not None:
        _say(console, f"Serving the lifetime tokens costs {format_usd(model.lifetime_usd)}.")
    _line(console)
    for caveat in best.caveats:
        _say(console, caveat, indent=4, first="  - ")
    _line(console)
    _say(
        console,
        f"{format_flops(plan.budget_flops)} training FLOPs; law {plan.law} ({plan.convention} FLOPs); {plan.gpu} at "
        f"{format_usd(plan.usd_per_gpu_hour)} an hour; {plan.prompt_tokens:g} prompt and {plan.output_tokens:g} output "
        f"tokens a request; latency from {plan.latency_source}.",
        lead="Basis",
    )
    base = "dense model" if plan.base_experts == 1 else f"E = {plan.base_experts:g}"
    _table(
        console,
        "Loss-optimal",
        (NAME, *SIZES, Column("loss"), *SERVING, Column("loss in 90% of draws", rank=1)),
        [
            (_name(c), *_sizes(c), f"{c.loss:.4f}", *_serving(c), _span((c.intervals or {}).get("loss"), ".3f"))
            for c in _known(plan.loss_optimal)
        ],
    )
    _no_answers(console, plan.loss_optimal)
    _table(
        console,
        f"Same loss as the loss-optimal {base} ({plan.base_loss:.4f}), cheapest to serve (Algorithm 1)",
        (NAME, *SIZES, *SERVING, *RATIOS, Column("in 90% of draws", rank=1)),
        [
            (_name(c), *_sizes(c), *_serving(c), *_ratios(c), _span((c.intervals or {}).get("cost_ratio"), ".0%"))
            for c in _known(plan.bounded_loss)
        ],
    )
    _no_answers(console, plan.bounded_loss)
    if plan.base_usd_per_mtok is not None:
        _table(
            console,
            f"Same cost as the loss-optimal {base} ({format_usd(plan.base_usd_per_mtok)}), best loss (Algorithm 2)",
            (NAME, *SIZES, Column("loss"), *SERVING, *RATIOS),
            [(_name(c), *_sizes(c), f"{c.loss:.4f}", *_serving(c), *_ratios(c)) for c in _known(plan.bounded_cost)],
        )
        _no_answers(console, plan.bounded_cost)
    if plan.lifetime is not None:
        _lifetime(console, plan.lifetime)
    count = len(plan.frontier)
    shown = sorted({round(i * (count - 1) / (FRONTIER_ROWS - 1)) for i in range(FRONTIER_ROWS)}) if count else []
    _table(
        console,
        "Frontier of loss against cost"
        + (f" ({len(shown)} of {count} points; all with --json)" if len(shown) < count else ""),
        (NAME, *SIZES, Column("loss"), *SERVING, Column("N/own", rank=1)),
        [
            (_name(c), *_sizes(c), f"{c.loss:.4f}", *_serving(c), *_percentages(c.size_ratio))
            for c in (plan.frontier[i] for i in shown)
        ],
    )
    _line(console)
    _say(
        console,
        "N is the dense-equivalent size, N/own its share of that expert count's own loss-optimal N; active and total are "
        f"parameters without embeddings; /base is over the loss-optimal {base}; $/Mtok is dollars per million output tokens.",
    )


def show_latencies(console: Console, found: Overview, table: str) -> None:
    """What a latency table covers, and how well it interpolates."""
    dates = found.dates[0] if found.dates[0] == found.dates[1] else f"{found.dates[0]} to {found.dates[1]}"
    _say(console, f"{found.rows} rows of {dates}", lead=table)
    for engine in found.engines:
        _line(console, f"  {engine}")
    gpus = sorted({c.gpu for c in found.coverage})
    _table(
        console,
        "Measured on " + ", ".join(gpus) + "; outside these ranges there is no answer (nothing is extrapolated)",
        (
            *((Column("GPU", text=True),) if len(gpus) > 1 else ()),
            Column("", text=True),
            Column("GPUs"),
            Column("experts"),
            Column("rows"),
            Column("parameters"),
            Column("tokens"),
            Column("batch"),
            Column("all to", rank=1),
            Column("spread", rank=2),
        ),
        [
            (
                *((c.gpu,) if len(gpus) > 1 else ()),
                c.stage,
                f"{c.gpus}",
                f"{c.n_experts}",
                f"{c.rows}",
                _between(*(format_count(x) for x in c.n_params_total)),
                _between(*(f"{x}" for x in c.tokens)),
                _between(*(f"{x}" for x in c.batch)),
                f"{c.smallest_largest_batch}",
                f"{c.spread:.1%}",
            )
            for c in found.coverage
        ],
    )
    if found.held_out:
        names = {"batch": "batch", "n_params_total": "size", "tokens": "tokens"}
        _table(
            console,
            "Leave one out: each inner row from its neighbours, linearly along one axis",
            (
                Column("", text=True), Column("along", text=True), Column("rows"), Column("median error"),
                Column("largest"), Column("mean"), Column("worst at", text=True, rank=1),
            ),
            [
                (
                    h.stage, names[h.axis], f"{h.rows}", f"{h.median_abs_error:.1%}", f"{h.max_abs_error:.1%}",
                    f"{h.bias:+.1%}", h.worst,
                )
                for h in found.held_out
            ],
        )  # fmt: skip
    else:
        _line(console)
        _say(console, "No axis has three points, so that interpolation cannot be checked.")
    if found.not_ok:
        _table(
            console,
            "Without a latency",
            (Column("", text=True), Column("rows"), Column("reason", text=True)),
            [(status, f"{count}", reason) for status, reason, count in found.not_ok],
        )
    _line(console)
    _say(
        console,
        "parameters are in total, with all experts and embeddings; `all to` is the batch up to which every size and length "
        "was measured; spread is the median interquartile range over the median of repeats.",
    )


def _between(low: str, high: str) -> str:
    return low if low == high else f"{low}-{high}"


def show_planned_runs(console: Console, plan: Mapping[str, Any]) -> None:
    """The runs of a sweep (the JSON of `sweep --dry-run`), and what all of them would take."""
    runs: list[dict[str, Any]] = plan["runs"]
    _table(
        console,
        "",
        (
            Column("run", text=True),
            Column("N"),
            Column("active", rank=3),
            Column("total", rank=2),
            Column("E", rank=5),
            Column("tokens"),
            Column("FLOPs", rank=1),
            Column("time", rank=1),
            Column("state", text=True, rank=4),
        ),
        [
            (
                run["name"],
                *(format_count(run[f"n_params_{kind}"]) for kind in ("dense", "active", "total")),
                str(run["n_experts"]),
                " ".join(format_count(tokens) for tokens in run["tokens"]),
                format_flops(run["training_flops"]),
                format_seconds(run["seconds"]) if "seconds" in run else "-",
                run["state"] + (f" at {run['share']:.0%}" if 0 < run["share"] < 1 else ""),
            )
            for run in runs
        ],
    )
    _line(console)
    done = sum(run["state"] == "finished" for run in runs)
    _say(
        console,
        f"{len(runs)} run{'' if len(runs) == 1 else 's'}, {done} finished, {format_flops(plan['training_flops'])} FLOPs in all, "
        f"{plan['jobs']} at once; sizes without embeddings.",
    )
    if "seconds" in plan:
        _say(console, f"About {format_seconds(plan['seconds'])} to go, by {plan['rate_from']}.")
    else:
        _say(console, f"No estimate of time, as it would stand on {plan['rate_from']}.")
    _say(console, f"The rows go to {plan['table']}.")
