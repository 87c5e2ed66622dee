"""A plan as a page: what was asked, the answer, the curves and tables it stands on, and what could make it wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

from moescale.errors import InputError
from moescale.hardware.gpus import find_gpu
from moescale.hardware.prices import price
from moescale.models.flops import CONVENTIONS
from moescale.planning.plan import Plan
from moescale.scaling_laws import catalogue_names, find_law
from moescale.scaling_laws.ensemble import measured_on
from moescale.units import expert_label, format_bytes, format_count, format_flops, format_seconds, format_usd
from moescale.views.figures import plan_figure
from moescale.views.html.page import Origin, page
from moescale.views.tables import decision, models, range_text, screen
from moescale.views.tables import plan as plan_tables

LATENCY = {
    "silicon": "measured kernels of NVIDIA's aiconfigurator-core, composed into passes of the model",
    "roofline": "an analytic roofline, calibrated on measured kernels",
}


def plan_report(plan: Plan, origin: Origin | None = None, *, title: str | None = None) -> str:
    """A self-contained HTML page of a plan; needs matplotlib, else InputError."""
    notes, no_life = [*plan.decision.caveats, *plan.warnings], plan.lifetime_infeasible
    if no_life is not None and not any(no_life in warning for warning in plan.warnings):
        notes.append(f"No plan for the whole life: {no_life}.")
    most = plan.asked.get("max_gpus")
    servers = f"at most {most:g} {plan.gpu}" if isinstance(most, int | float) else plan.gpu
    question = (
        f"Which model should {format_flops(plan.budget_flops)} training FLOPs buy, if it is then served on {servers} at "
        f"{format_usd(plan.usd_per_gpu_hour)} a GPU hour, with {plan.prompt_tokens:g} prompt and {plan.output_tokens:g} "
        f"output tokens a request? Looked for: {plan.recommendation.rule}."
    )
    return page(
        "plan.html",
        title or f"Which model to train with {format_flops(plan.budget_flops)} FLOPs",
        origin or Origin(),
        f"law {plan.law}",
        plan.gpu,
        expert_label(plan.decision.model.experts),
        steps=_steps(plan),
        plan=plan,
        question=question,
        tiles=_tiles(plan),
        caveats=notes,
        figure_text=figure_text(plan),
        assumptions=_assumptions(plan),
        decision=decision,
        models=models,
        screen=screen,
        tables=plan_tables,
        plan_figure=plan_figure,
    )


def _tiles(plan: Plan) -> list[tuple[str, str]]:
    model = plan.decision.model
    share = "" if model.cost_ratio is None else f", {model.cost_ratio:.0%} of the baseline's"
    tiles = [
        ("active parameters", format_count(model.n_params_active)),
        ("total parameters", format_count(model.n_params_total)),
        ("training tokens", format_count(model.tokens)),
        ("loss, nats per token", f"{model.loss:.4f}"),
        (f"per million output tokens{share}", format_usd(model.usd_per_mtok)),
    ]
    if plan.training is not None and plan.training.usd is not None:
        tiles.append(("to train", format_usd(plan.training.usd)))
    return tiles


def figure_text(plan: Plan) -> str:
    """What the figure of a plan shows, for those who do not see it."""
    model = plan.recommendation.model
    optima = [
        f"{expert_label(c.experts)} loss {c.loss:.4f} at {format_usd(c.usd_per_mtok)}"
        for c in plan.loss_optimal
        if c.usd_per_mtok is not None
    ]
    return (
        "Loss in nats per token against serving cost in dollars per million output tokens, a curve for each expert count. "
        f"Loss-optimal: {'; '.join(optima)}. Recommended: {expert_label(model.experts)} with loss {model.loss:.4f} "
        f"at {format_usd(model.usd_per_mtok)}."
    )


def _assumptions(plan: Plan) -> list[tuple[str, str]]:
    source, meaning = plan.latency_source, LATENCY.get(plan.latency_source)
    requests = f"{plan.prompt_tokens:g} prompt and {plan.output_tokens:g} output tokens on average"
    shared = (("latency", f"{source}: {meaning}" if meaning else source), ("requests", requests))
    return [*_law_facts(plan), *_gpu_facts(plan), *shared, *_limits(plan.asked)]


def _law_facts(plan: Plan) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    if plan.law not in catalogue_names():
        pairs.append(("law", f"{plan.law}, a file of one's own"))
    else:
        law = find_law(plan.law)
        pairs += [("law", f"{plan.law}: {law.source}"), ("its form", law.form.equation)]
        if law.fit_range:
            pairs.append(("fitted on", range_text(law.fit_range, law.form)))
        families = [", ".join(filter(None, (family.dataset, family.tokenizer))) for family in measured_on(law)]
        if about := "; ".join(dict.fromkeys(filter(None, families))):
            pairs.append(("loss is measured on", about))
    meaning = CONVENTIONS.get(plan.convention)
    counted = f"{plan.convention}: activated parameters over N are {meaning}" if meaning else plan.convention
    pairs.append(("training FLOPs", counted))
    return pairs


def _gpu_facts(plan: Plan) -> list[tuple[str, str]]:
    dollars = f"{format_usd(plan.usd_per_gpu_hour)} a GPU hour"
    try:
        gpu = find_gpu(plan.gpu)
    except InputError:
        return [("GPU", f"{plan.gpu}, a file of one's own"), ("price", dollars)]
    try:
        listed = price(gpu.name)
    except InputError:
        listed = None
    same = listed is not None and listed.usd_per_gpu_hour == plan.usd_per_gpu_hour
    terms = (
        f"{dollars} ({listed.terms}; {listed.source}, {listed.date})" if listed and same else f"{dollars}, as stated"
    )
    return [("GPU", f"{gpu.name}, {format_bytes(gpu.memory_bytes)} ({gpu.source})"), ("price", terms)]


def _limits(asked: Mapping[str, object]) -> list[tuple[str, str]]:
    words: dict[str, tuple[str, Callable[[float], str]]] = {
        "max_loss": ("loss at most", lambda x: f"{x:g}"),
        "max_usd_per_mtok": ("cost at most", lambda x: f"{format_usd(x)} per million output tokens"),
        "max_tokens": ("training tokens at most", format_count),
        "lifetime_tokens": ("tokens to serve", format_count),
        "max_total_usd": ("dollars in all at most", format_usd),
        "max_gpus": ("GPUs at most", lambda x: f"{x:g}"),
        "max_num_seqs": ("concurrent requests at most", lambda x: f"{x:g} a replica"),
        "max_ttft_s": ("first token within", format_seconds),
        "max_tpot_s": ("each token within", format_seconds),
        "memory_fraction": ("GPU memory used", lambda x: f"{x:.0%}"),
        "reserve_bytes": ("reserve for activations", lambda x: f"{format_bytes(x)} a GPU" if x else "none"),
        "utilization": ("utilization", lambda x: f"{x:.0%} of the throughput that a full server reaches"),
        "weight_bytes_per_param": ("weights", lambda x: f"{x:g} bytes a parameter"),
        "kv_bytes_per_element": ("KV cache", lambda x: f"{x:g} bytes an element"),
    }
    pairs: list[tuple[str, str]] = []
    for name, (label, text) in words.items():
        value = asked.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            pairs.append((label, text(float(value))))
    if asked and "max_num_seqs" not in asked:
        pairs.append(("concurrent requests", "as many as memory holds"))
    experts = asked.get("experts")
    if isinstance(experts, list) and experts:
        pairs.append(("expert counts considered", ", ".join(str(e) for e in cast("list[object]", experts))))
    if "host" in asked:
        pairs.append(("host", "the CPU side of a server is added to every pass"))
    return pairs


def _steps(plan: Plan) -> list[str]:
    a = plan.asked
    options = {
        "--budget": f"{plan.budget_flops:g}",
        "--law": plan.law,
        "--gpu": plan.gpu,
        "--usd-per-gpu-hour": f"{plan.usd_per_gpu_hour:g}",
        "--prompt": f"{plan.prompt_tokens:g}",
        "--output": f"{plan.output_tokens:g}",
        "--match-experts": f"{plan.base_experts:g}",
    }
    if isinstance(counts := a.get("experts"), list):
        options["--experts"] = ",".join(str(e) for e in cast("list[object]", counts))
    for name in ("max_gpus", "max_loss", "max_usd_per_mtok", "max_tokens", "lifetime_tokens", "max_total_usd"):
        if isinstance(value := a.get(name), int | float):
            options[f"--{name.replace('_', '-')}"] = f"{value:g}"
    return [" ".join(["moescale plan", *(f"{name} {value}" for name, value in options.items())])]
