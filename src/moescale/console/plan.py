"""A plan: the recommendation first, then the tables that it stands on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from moescale.console.text import Column, span_text, write_line, write_paragraph, write_reasons, write_table
from moescale.units import format_count, format_flops, format_usd

if TYPE_CHECKING:
    from rich.console import Console

    from moescale.buildable import Buildable
    from moescale.lifetime_plan import LifetimePlan
    from moescale.planning import Candidate, Plan

FRONTIER_ROWS = 10
NAME = Column("", text=True)
SIZES = (Column("N"), Column("active", rank=2), Column("total"), Column("tokens"))
SERVING = (Column("$/Mtok"), Column("GPUs"))
RATIOS = (Column("N/own", rank=1), Column("active/base", rank=3), Column("cost/base", rank=1))


def show_plan(console: Console, plan: Plan) -> None:
    """The recommendation first, then the tables it stands on."""
    best, model = plan.recommendation, plan.recommendation.model
    experts = "a dense model" if model.experts == 1 else f"{model.experts:g} experts"
    headline = (
        f"Recommendation: train {experts} at N = {format_count(model.n_params or 0.0)} "
        f"on {format_count(model.tokens or 0.0)} tokens"
    )
    write_line(console, headline, bold=len(headline))
    write_paragraph(console, best.why)
    write_paragraph(console, _build(best.architecture))
    if plan.second_opinion:
        write_paragraph(console, f"Second law: {plan.second_opinion.sentence}")
    if plan.lifetime is not None:
        write_paragraph(console, plan.lifetime.recommendation.why, lead="Over its life")
    elif model.lifetime_usd is not None:
        write_paragraph(console, f"Serving the lifetime tokens costs {format_usd(model.lifetime_usd)}.")
    write_line(console)
    for caveat in best.caveats:
        write_paragraph(console, caveat, indent=4, first="  - ")
    write_line(console)
    write_paragraph(
        console,
        f"{format_flops(plan.budget_flops)} training FLOPs; law {plan.law} ({plan.convention} FLOPs); {plan.gpu} at "
        f"{format_usd(plan.usd_per_gpu_hour)} an hour; {plan.prompt_tokens:g} prompt and {plan.output_tokens:g} output "
        f"tokens a request; latency from {plan.latency_source}.",
        lead="Basis",
    )
    base = "dense model" if plan.base_experts == 1 else f"E = {plan.base_experts:g}"
    write_table(
        console,
        "Loss-optimal",
        (NAME, *SIZES, Column("loss"), *SERVING, Column("loss in 90% of draws", rank=1)),
        [
            (_name(c), *_sizes(c), f"{c.loss:.4f}", *_serving(c), span_text((c.intervals or {}).get("loss"), ".3f"))
            for c in _known(plan.loss_optimal)
        ],
    )
    _no_answers(console, plan.loss_optimal)
    write_table(
        console,
        f"Same loss as the loss-optimal {base} ({plan.base_loss:.4f}), cheapest to serve (Algorithm 1)",
        (NAME, *SIZES, *SERVING, *RATIOS, Column("in 90% of draws", rank=1)),
        [
            (_name(c), *_sizes(c), *_serving(c), *_ratios(c), span_text((c.intervals or {}).get("cost_ratio"), ".0%"))
            for c in _known(plan.bounded_loss)
        ],
    )
    _no_answers(console, plan.bounded_loss)
    if plan.base_usd_per_mtok is not None:
        write_table(
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
    write_table(
        console,
        "Frontier of loss against cost"
        + (f" ({len(shown)} of {count} points; all with --json)" if len(shown) < count else ""),
        (NAME, *SIZES, Column("loss"), *SERVING, Column("N/own", rank=1)),
        [
            (_name(c), *_sizes(c), f"{c.loss:.4f}", *_serving(c), *_percentages(c.size_ratio))
            for c in (plan.frontier[i] for i in shown)
        ],
    )
    write_line(console)
    write_paragraph(
        console,
        "N is the dense-equivalent size, N/own its share of that expert count's own loss-optimal N; active and total are "
        f"parameters without embeddings; /base is over the loss-optimal {base}; $/Mtok is dollars per million output tokens.",
    )


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
    write_reasons(console, [(_name(c), c.infeasible) for c in rows if c.infeasible])


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
    write_table(
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
                else span_text((c.intervals or {}).get("loss"), ".3f"),
            )
            for c in _known(plan.plans)
        ],
    )
    _no_answers(console, plan.plans)
    t = plan.training
    write_paragraph(
        console,
        f"Training on {t.gpu.name} at {format_usd(t.usd_per_gpu_hour)} an hour and an MFU of {t.mfu:g}. "
        f"{_build(plan.recommendation.architecture)}",
    )
    for caveat in plan.recommendation.caveats:
        write_paragraph(console, caveat, indent=4, first="  - ")


def _dollars(limits: Sequence[float] | None) -> str:
    return f"{format_usd(limits[0])} to {format_usd(limits[1])}" if limits else ""
