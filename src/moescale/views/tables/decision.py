"""A plan's decision in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moescale.units import format_count, format_flops, format_usd
from moescale.views.tables import accuracy_text, latency_name, span_text
from moescale.views.tables.screen import scores_text

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
    """What the first screen does not say of the decision: FLOPs, MFU, loss against the baseline, regret, shape, baseline."""
    model, use = plan.decision.model, plan.training
    facts = [("training", _training_text(plan))]
    if use is not None and use.mfu_words:
        facts.append(("MFU", use.mfu_words))
    if unused := _unused_text(plan):
        facts.append(("unused", unused))
    facts.append(("loss", _loss_text(plan)))
    if (times := plan.decision.compute_ratio) is not None and not plan.is_baseline:
        like = "dense models" if plan.base_experts == 1 else f"{plan.base_experts:.0f}-expert models"
        facts.append(("compute", f"loss-optimal {like} need {times:.2g} times the baseline's FLOPs for this loss"))
    if model.regret is not None:
        facts.append(("regret", _regret_text(plan, model.regret)))
    if model.scores and not scores_text(plan):
        facts.append(("scores", "none: this model lies too far beyond the ladder of small models (--json has them)"))
    facts.append(("build", build_sentence(plan.decision.architecture)))
    base = plan.built_base
    usd = f"{format_usd(base.usd_per_mtok)}/Mtok" if base.usd_per_mtok else f"cannot be served on {plan.gpu}"
    sizes = f"{format_count(base.n_params_active)} active, {format_count(base.tokens)} tokens"
    return [*facts, ("baseline", f"{plan.base_name}: {sizes}, {usd}")]


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
    return text


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
