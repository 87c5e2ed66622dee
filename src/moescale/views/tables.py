"""Answers as tables of text, the same ones for a terminal, a report and a notebook."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from moescale.units import format_count, format_flops, format_seconds, format_usd

if TYPE_CHECKING:
    from moescale.fitting.fit import Fit
    from moescale.fitting.holdout import HoldOut
    from moescale.models.rounding import Buildable
    from moescale.planning.candidate import Candidate
    from moescale.planning.lifetime_plan import LifetimePlan
    from moescale.planning.plan import Plan
    from moescale.scaling_laws.form import LawForm
    from moescale.serving.gpu_counts import Cost

FRONTIER_ROWS = 10


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


NAME = Column("", text=True)
SIZES = (Column("N"), Column("active", rank=2), Column("total"), Column("tokens"))
SERVING = (Column("$/Mtok"), Column("GPUs"))
RATIOS = (Column("N/own", rank=1), Column("active/base", rank=3), Column("cost/base", rank=1))
GLOSSARY = (
    "N is the dense-equivalent size, N/own its share of that expert count's own loss-optimal N; active and total are "
    "parameters without embeddings; /base is over the loss-optimal {base}; $/Mtok is dollars per million output tokens."
)


def count_name(experts: float) -> str:
    """dense, or E = 8."""
    return "dense" if experts == 1 else f"E = {experts:g}"


def base_name(plan: Plan) -> str:
    """What ratios of a plan are over: dense model, or E = 4."""
    return "dense model" if plan.base_experts == 1 else count_name(plan.base_experts)


def span_text(limits: Sequence[float] | None, form: str = ".4g") -> str:
    """An interval as `low to high`, or nothing."""
    return f"{limits[0]:{form}} to {limits[1]:{form}}" if limits else ""


def range_text(fit_range: Mapping[str, tuple[float, float]]) -> str:
    """The ranges of a fit: N 80M to 700M, D 2B to 20B, E 1 to 32."""
    from moescale.scaling_laws.law import INPUT_NAMES

    return ", ".join(
        f"{INPUT_NAMES.get(name, name)} {number(low)} to {number(high)}"
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
    return Table(
        "",
        (
            Column("parameter", text=True),
            Column("value"),
            Column("90% interval", rank=1),
            Column("remark", text=True, rank=1),
            Column("meaning", text=True, rank=2),
        ),
        tuple(
            (
                p.name,
                f"{parameters[p.name]:.6g}",
                span_text((intervals or {}).get(p.name)),
                (remarks or {}).get(p.name, ""),
                p.meaning,
            )
            for p in form.parameters
        ),
    )


def fit_remarks(found: Fit) -> dict[str, str]:
    """What to mind of single parameters of a fit."""
    remarks = {name: "not identified" for name in found.not_identified}
    return remarks | {name: "on a bound" for name in found.at_bound}


def comparison_table(records: Sequence[HoldOut]) -> Table:
    """How each law predicts the runs that it was not fitted on, best first."""
    heads = ("parameters", "fitted on", "RMSLE", "held out", "RMSLE held out", "bias held out")
    return Table(
        "Error of ln L",
        (Column("law", text=True), *(Column(head) for head in heads)),
        tuple(
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
        ),
    )


def cost_table(cost: Cost, *, priced: bool = True) -> Table:
    """Each GPU count that was looked at; without dollars where there is no price."""
    limits = {"max_ttft": "latency: first token", "max_tpot": "latency: per token"}
    others = {"optimum": "lowest cost", "front_end": "API servers"}
    looked_at = cost.candidates or (cost,)
    return Table(
        "",
        (
            Column("GPUs"),
            *((Column("$/Mtok"),) if priced else ()),
            Column("batch"),
            Column("output tok/s"),
            Column("first token"),
            Column("per token"),
            Column("batch limited by", text=True),
            Column("", text=True),
        ),
        tuple(
            (
                str(c.gpus),
                *((format_usd(c.usd_per_mtok),) if priced else ()),
                f"{c.batch:.0f}",
                f"{c.throughput_tok_s:,.0f}",
                format_seconds(c.ttft_s or 0.0),
                format_seconds(c.tpot_s or 0.0),
                limits.get(c.latency_limit or "", others.get(c.limited_by or "", c.limited_by or "")),
                "<- cheapest" if c.gpus == cost.gpus else "",
            )
            for c in looked_at
            if c.usd_per_mtok is not None and c.batch is not None and c.throughput_tok_s is not None
        ),
        notes=reason_lines(
            (f"{c.gpus} GPU{'s' if c.gpus != 1 else ''}", c.infeasible) for c in looked_at if c.infeasible
        ),
    )


def plan_headline(plan: Plan) -> str:
    """The recommendation in one line."""
    model = plan.recommendation.model
    experts = "a dense model" if model.experts == 1 else f"{model.experts:g} experts"
    text = f"train {experts} at N = {format_count(model.n_params or 0.0)} on {format_count(model.tokens or 0.0)} tokens"
    return (
        text
        if plan.training is None or plan.training.spent
        else f"{text}, with {plan.training.budget_share:.0%} of the budget"
    )


def build_sentence(a: Buildable) -> str:
    """The shape to build, in whole layers and heads."""
    text = f"{a.n_layers} layers, width {a.d_model}, {a.n_heads} heads ({a.n_kv_heads} KV), FFN {a.d_ffn}"
    if a.n_experts > 1:
        where = {1: "every layer", 2: "every other layer"}.get(a.moe_every, f"one layer in {a.moe_every}")
        text += f", {a.n_experts} experts in {where}, top-{a.top_k}"
    return f"Build it as {text}: {format_count(a.n_params_total)} parameters without embeddings; the figures above are of this shape."


def loss_optimal_table(plan: Plan) -> Table:
    """The loss-optimal model of each expert count."""
    return _models(
        "Loss-optimal",
        (NAME, *SIZES, Column("loss"), *SERVING, Column("loss in 90% of draws", rank=1)),
        plan.loss_optimal,
        lambda c: (*_sizes(c), f"{c.loss:.4f}", *_serving(c), span_text((c.intervals or {}).get("loss"), ".3f")),
    )


def bounded_loss_table(plan: Plan) -> Table:
    """The cheapest model of each expert count at the base's loss."""
    priced = plan.base_usd_per_mtok is not None  # else no cost has a share of the base's
    return _models(
        f"Same loss as the loss-optimal {base_name(plan)} ({plan.base_loss:.4f}), cheapest to serve (Algorithm 1)",
        (NAME, *SIZES, *SERVING, *RATIOS, Column(f"{'' if priced else '$/Mtok '}in 90% of draws", rank=1)),
        plan.bounded_loss,
        lambda c: (
            *_sizes(c),
            *_serving(c),
            *_ratios(c),
            span_text((c.intervals or {}).get("cost_ratio"), ".0%")
            if priced
            else _dollars((c.intervals or {}).get("usd_per_mtok")),
        ),
    )


def bounded_cost_table(plan: Plan) -> Table | None:
    """The best model of each expert count at the base's cost; None where the base cannot be served."""
    if plan.base_usd_per_mtok is None:
        return None
    usd = format_usd(plan.base_usd_per_mtok)
    return _models(
        f"Same cost as the loss-optimal {base_name(plan)} ({usd}), best loss (Algorithm 2)",
        (NAME, *SIZES, Column("loss"), *SERVING, *RATIOS),
        plan.bounded_cost,
        lambda c: (*_sizes(c), f"{c.loss:.4f}", *_serving(c), *_ratios(c)),
    )


def lifetime_table(plan: LifetimePlan) -> Table:
    """The best life of each expert count in dollars."""
    at_loss = plan.target_loss is not None
    goal = (
        f"loss {plan.target_loss:.4f} for the fewest dollars"
        if at_loss
        else f"lowest loss within {format_usd(plan.max_total_usd or 0.0)}"
    )
    return _models(
        f"Over {format_count(plan.lifetime_tokens)} served tokens: {goal} of training and serving",
        (
            NAME,
            Column("N"),
            Column("tokens"),
            *(() if at_loss else (Column("loss"),)),
            Column("FLOPs", rank=2),
            Column("$ to train"),
            Column("$ to serve"),
            Column("$ in all"),
            *SERVING,
            Column(f"{'$' if at_loss else 'loss'} in 90% of draws", rank=1),
        ),
        plan.plans,
        lambda c: (
            format_count(c.n_params or 0.0),
            format_count(c.tokens or 0.0),
            *(() if at_loss else (f"{c.loss:.4f}",)),
            format_flops(c.training_flops or 0.0),
            *(format_usd(usd or 0.0) for usd in (c.training_usd, c.serving_usd, c.total_usd)),
            *_serving(c),
            _dollars((c.intervals or {}).get("total_usd"))
            if at_loss
            else span_text((c.intervals or {}).get("loss"), ".3f"),
        ),
    )


def training_sentence(plan: LifetimePlan) -> str:
    """What a training GPU hour costs and achieves."""
    t = plan.training
    return f"Training on {t.gpu.name} at {format_usd(t.usd_per_gpu_hour)} an hour and an MFU of {t.mfu:g}."


def frontier_table(plan: Plan) -> Table:
    """Some points of the frontier of loss against cost, from the cheapest to the best."""
    count = len(plan.frontier)
    shown = sorted({round(i * (count - 1) / (FRONTIER_ROWS - 1)) for i in range(FRONTIER_ROWS)}) if count else []
    part = f" ({len(shown)} of {count} points; all with --json)" if len(shown) < count else ""
    return _models(
        f"Frontier of loss against cost{part}",
        (NAME, *SIZES, Column("loss"), *SERVING, Column("N/own", rank=1)),
        [plan.frontier[i] for i in shown],
        lambda c: (*_sizes(c), f"{c.loss:.4f}", *_serving(c), *_percentages(c.size_ratio)),
    )


def _models(
    title: str, columns: tuple[Column, ...], models: Sequence[Candidate], cells: Callable[[Candidate], tuple[str, ...]]
) -> Table:
    known = [c for c in models if c.n_params is not None]
    return Table(
        title,
        columns,
        tuple((count_name(c.experts), *cells(c)) for c in known),
        tuple(c.experts for c in known),
        reason_lines((count_name(c.experts), c.infeasible) for c in models if c.infeasible),
    )


def _sizes(c: Candidate) -> tuple[str, ...]:
    return tuple(format_count(x or 0.0) for x in (c.n_params, c.n_params_active, c.n_params_total, c.tokens))


def _serving(c: Candidate) -> tuple[str, str]:
    return (format_usd(c.usd_per_mtok), f"{c.gpus}") if c.usd_per_mtok is not None else ("-", "-")


def _percentages(*ratios: float | None) -> tuple[str, ...]:
    return tuple("-" if ratio is None else f"{ratio:.0%}" for ratio in ratios)


def _ratios(c: Candidate) -> tuple[str, ...]:
    return _percentages(c.size_ratio, c.active_ratio_to_base, c.cost_ratio)


def _dollars(limits: Sequence[float] | None) -> str:
    return f"{format_usd(limits[0])} to {format_usd(limits[1])}" if limits else ""
