"""A plan's decision in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moescale.units import format_count, format_flops, format_seconds, format_usd
from moescale.views.tables import accuracy_text, latency_name, percentage, span_text

if TYPE_CHECKING:
    from moescale.models.rounding import Buildable
    from moescale.planning.candidate import Regret
    from moescale.planning.plan import Plan

P_LOSS, RELATIVE_COST = "P(loss <= baseline)", "cost vs baseline"


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
    if (times := plan.decision.compute_ratio) is not None and not plan.is_baseline:
        like = "dense models" if plan.base_experts == 1 else f"{plan.base_experts:.0f}-expert models"
        facts.append(("compute", f"loss-optimal {like} need {times:.2g} times the baseline's FLOPs for this loss"))
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
    use = plan.training
    if use is None or use.spent or use.budget_of is not None:
        return ""
    text = f"{1.0 - use.budget_share:.0%} of the budget"
    if use.unused_because:
        text += f": {use.unused_because}"
    if plan.choices.quality is not None and plan.decision is plan.recommendation:
        text += f". At the baseline's serving cost the loss is {plan.choices.quality.loss:.4f} (quality, below)"
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
    sure = percentage(plan.decision.model.probability_at_least_base)
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


def serving_basis(plan: Plan) -> tuple[str, str]:
    """Where the latencies come from, and how far predictions of this kind lay from measurements."""
    source = latency_name(plan.latency_source)
    models = f"{'dense' if plan.decision.model.experts == 1 else 'MoE'} models in this format"
    kind = models if plan.latency_source == "silicon" else f"{models} with latency from {source}"
    return source, accuracy_text(plan.accuracy, plan.gpu, kind)
