"""Answers as tables for a terminal: what the command line prints without --json."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from moescale.units import format_bytes, format_count, format_flops, format_seconds, format_usd

if TYPE_CHECKING:
    from rich.console import Console

    from moescale.fitting import Fit
    from moescale.laws.law import Law, Prediction
    from moescale.planning import Candidate, Plan
    from moescale.serving import Cost
    from moescale.validation import HoldOut


def terminal(*, error: bool = False) -> Console:
    """A rich console on standard output, or on standard error; plain and wide when it is not a terminal."""
    from rich.console import Console

    console = Console(stderr=error, highlight=False, soft_wrap=False)
    if not console.is_terminal:
        console = Console(stderr=error, highlight=False, width=132)
    return console


def _table(console: Console, title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for i, column in enumerate(columns):
        text = i in (0, len(columns) - 1)
        table.add_column(column, justify="left" if text else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _span(limits: Sequence[float] | None, digits: int = 4) -> str:
    return f"{limits[0]:.{digits}g} to {limits[1]:.{digits}g}" if limits else ""


def show_fit(console: Console, found: Fit, intervals: dict[str, tuple[float, float]] | None) -> None:
    """The optimum of a fit: how good it is, its parameters, what to mind."""
    console.print(f"[bold]{found.form.title}[/bold]  {found.form.equation}")
    console.print(
        f"{found.n_runs} runs   RMSLE {found.rmsle:.4g}   mean Huber {found.huber:.4g}   "
        f"{found.starts_at_optimum} of {found.starts} starts at the optimum   {format_seconds(found.seconds)}"
    )
    rows = [
        (
            p.name,
            f"{found.parameters[p.name]:.6g}",
            _span(intervals.get(p.name)) if intervals else "",
            "on a bound" if p.name in found.at_bound else "not identified" if p.name in found.not_identified else "",
            p.meaning,
        )
        for p in found.form.parameters
    ]
    _table(console, "", ("parameter", "value", "90% interval" if intervals else "", "", "meaning"), rows)
    ranges = found.fit_range
    console.print(
        f"fitted on N {format_count(ranges['n_params'][0])} to {format_count(ranges['n_params'][1])}, "
        f"D {format_count(ranges['tokens'][0])} to {format_count(ranges['tokens'][1])}, "
        f"E {ranges['experts'][0]:g} to {ranges['experts'][1]:g}"
    )


def show_laws(console: Console, laws: Sequence[Law]) -> None:
    """The catalogue of coefficient sets."""
    rows = [
        (
            law.name,
            law.form.name,
            f"top-{law.family.top_k}, every {law.family.moe_every}" if law.form.uses_experts else "dense",
            " ".join(f"{k}={v:.4g}" for k, v in law.parameters.items()),
            law.source,
        )
        for law in laws
    ]
    _table(console, "Coefficient sets", ("name", "form", "models", "parameters", "source"), rows)


def show_comparison(console: Console, records: Sequence[HoldOut]) -> None:
    """How each law predicts the runs that it was not fitted on, best first."""
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
    head = ("law", "parameters", "fitted on", "RMSLE", "held out", "RMSLE held out", "bias held out")
    _table(console, "RMS error of ln L", head, rows)


def show_prediction(console: Console, law: Law, predicted: Prediction) -> None:
    """A predicted loss and how far to trust it."""
    text = f"loss {predicted.loss:.4f} nats per token"
    if predicted.interval:
        text += f"  (90% of the law's draws: {predicted.interval[0]:.4f} to {predicted.interval[1]:.4f})"
    console.print(text)
    for name, factor in predicted.extrapolation.items():
        console.print(
            f"extrapolated: {name} at {factor:.3g} times the {'largest' if factor > 1 else 'smallest'} fitted"
        )
    console.print(f"law {law.name}: {law.source}")


def show_cost(console: Console, cost: Cost, gpu: str) -> None:
    """The cost of one model at each GPU count."""
    console.print(
        f"{format_count(cost.n_params_total)} parameters, {format_count(cost.n_params_active)} active; weights "
        f"{format_bytes(cost.weight_bytes)}; KV cache {cost.kv_bytes_per_token / 1024:.1f} KiB a token; "
        f"latency from {cost.latency_source}"
    )
    rows = []
    for c in cost.candidates or ():
        mark = "  <- cheapest" if c.gpus == cost.gpus and c.infeasible is None else ""
        if c.usd_per_mtok is None or c.batch is None or c.throughput_tok_s is None:
            rows.append((str(c.gpus), "-", "-", "-", "-", "-", c.infeasible or ""))
            continue
        rows.append(
            (
                str(c.gpus),
                format_usd(c.usd_per_mtok),
                f"{c.batch:.0f}",
                f"{c.throughput_tok_s:,.0f}",
                format_seconds(c.prefill_s or 0.0),
                format_seconds(c.decode_s or 0.0),
                f"batch limited by {c.limited_by}{mark}",
            )
        )
    _table(
        console,
        f"Serving on {gpu}",
        ("GPUs", "$/Mtok", "batch", "output tok/s", "prefill", "decode", ""),
        [(*row[:-1], row[-1]) for row in rows],
    )


def _candidate_row(c: Candidate, ratios: bool) -> list[str]:
    name = "dense" if c.experts == 1 else f"E = {c.experts:g}"
    if c.n_params is None:
        return [name, *["-"] * (9 if ratios else 6), c.infeasible or ""]
    spread = (c.intervals or {}).get("cost_ratio" if ratios else "loss")
    row = [
        name,
        format_count(c.n_params),
        format_count(c.n_params_active or 0.0),
        format_count(c.n_params_total or 0.0),
        format_count(c.tokens or 0.0),
        f"{c.loss:.4f}",
        format_usd(c.usd_per_mtok) if c.usd_per_mtok is not None else "-",
    ]
    if ratios:
        row += [
            f"{c.size_ratio:.0%}" if c.size_ratio is not None else "-",
            f"{c.active_ratio_to_base:.0%}" if c.active_ratio_to_base is not None else "-",
            f"{c.cost_ratio:.0%}" if c.cost_ratio is not None else "-",
        ]
    note = c.infeasible or (f"{c.gpus} GPU{'s' if c.gpus != 1 else ''}")
    if spread and c.infeasible is None:
        note += f"; {spread[0]:.0%} to {spread[1]:.0%}" if ratios else f"; loss {spread[0]:.3f} to {spread[1]:.3f}"
    return [*row, note]


def show_plan(console: Console, plan: Plan) -> None:
    """The recommendation first, then the tables it stands on."""
    best = plan.recommendation
    console.print(
        f"[bold]Plan for {format_flops(plan.budget_flops)} training FLOPs[/bold]  law {plan.law} ({plan.convention} FLOPs), "
        f"{plan.gpu} at {format_usd(plan.usd_per_gpu_hour)}/h, {plan.prompt_tokens:g} prompt and {plan.output_tokens:g} output "
        f"tokens, latency from {plan.latency_source}"
    )
    console.print()
    console.print(f"[bold]Recommendation[/bold]  {best.why}")
    a = best.architecture
    console.print(
        f"Build it as {a.n_layers} layers, width {a.d_model}, {a.n_heads} heads ({a.n_kv_heads} KV), FFN {a.d_ffn}"
        + (
            f", {a.n_experts} experts in every {'layer' if a.moe_every == 1 else f'{a.moe_every}nd layer' if a.moe_every == 2 else f'{a.moe_every}th layer'}, top-{a.top_k}"
            if a.n_experts > 1
            else ""
        )
        + f": {format_count(a.n_params_total)} parameters without embeddings."
    )
    if plan.second_opinion:
        console.print(f"Second law: {plan.second_opinion.sentence}")
    for caveat in best.caveats:
        console.print(f"  - {caveat}")
    head = ["", "N", "active", "total", "tokens", "loss", "$/Mtok"]
    ratios = ["of own opt.", "active/base", "cost/base"]
    base = "dense model" if plan.base_experts == 1 else f"E = {plan.base_experts:g}"
    console.print()
    _table(
        console, "Loss-optimal", [*head, "GPUs; 90% of draws"], [_candidate_row(c, False) for c in plan.loss_optimal]
    )
    _table(
        console,
        f"Same loss as the loss-optimal {base} ({plan.base_loss:.4f}), cheapest to serve (Algorithm 1)",
        [*head, *ratios, "GPUs; cost/base, 90% of draws"],
        [_candidate_row(c, True) for c in plan.bounded_loss],
    )
    if plan.base_usd_per_mtok is not None:
        _table(
            console,
            f"Same cost as the loss-optimal {base} ({format_usd(plan.base_usd_per_mtok)}), best loss (Algorithm 2)",
            [*head, *ratios, "GPUs"],
            [_candidate_row(c.with_intervals({}), True) for c in plan.bounded_cost],
        )
    step = max(1, len(plan.frontier) // 10)
    _table(
        console,
        f"Frontier of loss against cost ({len(plan.frontier)} points, every {step}th shown; all with --json)"
        if step > 1
        else "Frontier of loss against cost",
        [*head, "GPUs"],
        [_candidate_row(c, False) for c in plan.frontier[::step]],
    )
