"""A plan's decision in words, and its tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from moescale.models.parameters import parts_of
from moescale.models.rounding import Buildable
from moescale.planning.candidate import Life, Regret, Trained, Unreachable
from moescale.planning.decision import LawView
from moescale.planning.known import KnownRow
from moescale.planning.lifetime_plan import LifetimePlan
from moescale.planning.plan import Plan
from moescale.units import expert_label, format_count, format_flops, format_usd
from moescale.views.tables import (
    MARK,
    Cell,
    Column,
    Table,
    accuracy_text,
    beyond_notes,
    ends_text,
    gpus_text,
    latency_name,
    or_dash,
    percentage,
    reason_lines,
    span_text,
    table_of,
    usd_range,
)
from moescale.views.tables.choices import asked_number, of_fixed_dollars, sizes_text, with_life
from moescale.views.tables.screen import scores_text

FRONTIER_ROWS = 10
P_LOSS, RELATIVE_COST = "P(loss <= baseline)", "cost vs baseline"

GLOSSARY = (
    "N: dense-equivalent parameters. N vs optimum: N relative to the loss-optimal N at the same E. active, total: "
    "parameters {counted}. baseline: the {base}. P(loss <= baseline): the probability of matching the "
    "baseline's loss. $/Mtok: dollars per million output tokens. regret: the expected "
    "extra cost, as a share of the baseline's cost, if another law is the true one."
)

COUNTED = (
    "without embeddings",
    "with one embedding table, as the law counts them",
    "with both embedding tables, as the law counts them",
)

Model = TypeVar("Model", bound="Trained")


def counted_words(shape: Buildable) -> str:
    """Which embedding tables the sizes of a shape count, as its law does."""
    parts = parts_of(shape.architecture())
    tables = shape.n_params_total - float(parts.non_embedding_total - parts.norms - parts.router)
    return COUNTED[min(max(round(tables / (shape.vocab_size * shape.d_model)), 0), 2)]


def glossary(plan: Plan) -> str:
    """What the letters of the tables mean."""
    return GLOSSARY.format(base=base_name(plan), counted=counted_words(plan.decision.architecture))


def plan_headline(plan: Plan) -> str:
    """The decision in one line."""
    model = plan.decision.model
    kind, sizes = "a dense model", format_count(model.n_params_active)
    if model.experts != 1:
        kind, sizes = f"{model.experts:g} experts", f"{sizes} active of {format_count(model.n_params_total)}"
    doubt, other = "", plan.default_law
    if plan.decision.undecided:
        doubt = f" ({ends_text(sorted(c.experts for c in plan.decision.rivals), '{:g}'.format)} still open)"
    elif other is not None and other.experts != model.experts:
        doubt = f" ({other.experts:g} by other labs' runs)"
    few = asked_number(plan, "max_epochs") if plan.more_epochs is not None else None
    bounded = "" if few is None else f" ({few:g} epochs)"
    parameters = "" if doubt else " parameters"  # a line has room for one of them
    return f"Train {kind}{doubt}: {sizes}{parameters}, {format_count(model.tokens)} tokens{bounded}"


def decision_facts(plan: Plan) -> list[tuple[str, str]]:
    """What the first screen does not say of the decision: FLOPs, MFU, loss against the baseline, regret, shape, baseline."""
    model, use = plan.decision.model, plan.training
    facts = [("training", _training_text(plan))]
    if use is not None and use.mfu_words:
        facts.append(("MFU", use.mfu_words))
    if use is not None and use.fp8_usd is not None and use.usd is not None:
        share = f"{use.fp8_usd / use.usd:.0%} of bf16"
        price = f"the same run with fp8 products costs {format_usd(use.fp8_usd)}"
        loss = "the loss is taken to be the same: DeepSeek-V3 saw less than 0.25% between them (arXiv 2412.19437, section 3.3)"
        facts.append(("fp8", f"{price}, {share} (--train-precision fp8), and exports train in bf16; {loss}"))
    if use is not None and not use.spent and use.budget_of is None:
        unused = f"{1.0 - use.budget_share:.0%} of the budget"
        if use.unused_because:
            unused += f": {use.unused_because}"
        if plan.choices.quality is not None and plan.decision is plan.recommendation:
            unused += f". At the baseline's serving cost the loss is {plan.choices.quality.loss:.4f} (quality, below)"
        facts.append(("unused", unused))
    facts.append(("loss", _loss_text(plan)))
    if (times := plan.decision.compute_ratio) is not None and not plan.is_baseline:
        like = "dense models" if plan.base_experts == 1 else f"{plan.base_experts:.0f}-expert models"
        times = float(f"{times:.2g}")
        facts.append(("compute", f"loss-optimal {like} need {times:g} times the baseline's FLOPs for this loss"))
    if model.regret is not None and plan.objective not in ("loss", "quality"):
        facts.append(("regret", _regret_text(plan, model.regret)))
    if model.scores and not scores_text(plan):
        facts.append(("scores", "none: this model lies too far beyond the ladder of small models (--json has them)"))
    facts.append(("build", build_sentence(plan.decision.architecture)))
    base = with_life(plan, plan.built_base)
    usd = f"{format_usd(base.usd_per_mtok)}/Mtok" if base.usd_per_mtok else f"cannot be served on {plan.gpu}"
    return [*facts, ("baseline", f"{plan.base_name}: {sizes_text(base)}, {usd}")]


def _training_text(plan: Plan) -> str:
    use, text = plan.training, f"{format_flops(plan.decision.model.training_flops)} FLOPs"
    if use is None:
        return text
    budget = "the budget" if use.budget_of is None else f"those of {use.budget_of}"
    if use.budget_share >= 2:
        text += f" ({use.budget_share:.1f} times {budget})"
    elif not 0.99 <= use.budget_share <= 1.01 and not of_fixed_dollars(plan):
        text += f" ({use.budget_share:.0%} of {budget})"
    return text


def _loss_text(plan: Plan) -> str:
    model = plan.decision.model
    if plan.is_baseline:
        return f"{model.loss:.4f}; this model is the baseline"
    gains, limits = ((model.intervals or {}).get(name) for name in ("loss_gain", "loss"))
    base_loss = with_life(plan, plan.built_base).loss
    gap, text = base_loss - model.loss, f"{model.loss:.4f}; baseline {base_loss:.4f}"
    text += f" ({abs(gap):.4f} {'lower' if gap >= 0 else 'higher'}" if abs(gap) >= 5e-5 else " (equal"
    if gains:  # the units of the laws' losses differ, their differences hardly
        low, high = gains if gap > -5e-5 else (-gains[1], -gains[0])
        text += f", 90% interval {span_text((low, high), '.3f')}"
    elif limits and (plan.lifetime is None or plan.lifetime.target_loss is None):
        text += f"; 90% interval of the loss {span_text(limits, '.3f')}"
    return f"{text})"


def _regret_text(plan: Plan, regret: Regret) -> str:
    several = bool(plan.voting_laws)
    what = "if another law is true" if several else f"over the draws of {plan.law}"
    worst = "at worst" if several else "in one draw of 20"
    text = f"{regret.expected:.0%} of the baseline's cost expected {what}, {regret.worst:.0%} {worst}"
    if plan.base_usd_per_mtok is None or plan.of_life:
        return text
    first, last = (format_usd(share * plan.base_usd_per_mtok) for share in (regret.expected, regret.worst))
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
    total = f"{format_count(a.n_params_total)} parameters {counted_words(a)}"
    return f"{text}; {total}. All figures are for this shape"


def serving_basis(plan: Plan) -> tuple[str, str]:
    """Where the latencies come from, and how far predictions of this kind lay from measurements."""
    source = latency_name(plan.latency_source)
    models = f"{'dense' if plan.decision.model.experts == 1 else 'MoE'} models in this format"
    kind = models if plan.latency_source == "silicon" else f"{models} with latency from {source}"
    return source, accuracy_text(plan.accuracy, plan.gpu, kind)


def base_name(plan: Plan) -> str:
    """The baseline of a plan: the loss-optimal dense model or E = 4, or the model that --match names."""
    if plan.asked.get("match") is not None:
        return plan.base_name.removeprefix("the ")
    return f"loss-optimal {'dense model' if plan.base_experts == 1 else expert_label(plan.base_experts)}"


def laws_table(plan: Plan) -> Table:
    """What each law says of the decision, and the model that it would choose."""

    cells: tuple[Cell[LawView], ...] = (
        (Column("law", text=True), lambda v: v.law),
        *([(Column("weight", rank=2), lambda v: f"{v.weight:.0%}")] if plan.voting_laws else []),
        (Column(P_LOSS), lambda v: f"{v.probability:.0%}"),
        (Column("regret"), lambda v: percentage(v.regret if v.experts is not None else None)),
        (Column("choice: E"), lambda v: "none" if v.experts is None else f"{v.experts:g}"),
        (Column("active", rank=1), lambda v: or_dash(v.n_params_active, format_count)),
        (Column("tokens", rank=1), lambda v: or_dash(v.tokens, format_count)),
        (Column("its cost vs baseline"), lambda v: percentage(v.cost_ratio)),
    )
    model = "the recommended model of the budget" if plan.of_life else "this model"
    law = "law" if plan.voting_laws else "named law"
    return table_of(f"What each {law} says of {model}, and which model it would choose", plan.laws, cells)


def regrets_table(plan: Plan) -> Table:
    """Regret and probability of the decision, and of each law's choice, under every law."""

    def under(law: LawView, regret: float | None, probability: float) -> str:  # undefined where the law has no choice
        return "-" if regret is None or law.experts is None else f"{regret:.0%} ({probability:.0%})"

    rows = [["this plan", *(under(view, view.regret, view.probability) for view in plan.laws)]]
    for view in plan.laws:
        found = [(law, (view.elsewhere or {}).get(law.law)) for law in plan.laws]
        cells = ("-" if one is None else under(law, one.regret, one.probability) for law, one in found)
        rows.insert(-1, [view.law, *cells])
    columns = (Column("choice of", text=True), *(Column(view.law, rank=1) for view in plan.laws))
    return Table(f"Regret under each law, with {P_LOSS} in brackets", columns, rows)


SIZES: tuple[Cell[Trained], ...] = (
    (Column("N"), lambda c: format_count(c.n_params)),
    (Column("active", rank=2), lambda c: format_count(c.n_params_active)),
    (Column("total"), lambda c: format_count(c.n_params_total)),
    (Column("tokens"), lambda c: format_count(c.tokens)),
)

LOSS: Cell[Trained] = (Column("loss"), lambda c: f"{c.loss:.4f}")

SERVING: tuple[Cell[Trained], ...] = (
    (Column("$/Mtok"), lambda c: or_dash(c.usd_per_mtok, format_usd)),
    (Column("GPUs"), lambda c: gpus_text(c.gpus, c.attention_dp, c.prefill_gpus)),
)

OWN_SHARE: Cell[Trained] = (Column("N vs optimum", rank=1), lambda c: percentage(c.size_ratio))

RATIOS: tuple[Cell[Trained], ...] = (
    OWN_SHARE,
    (Column("active vs baseline", rank=3), lambda c: percentage(c.active_ratio_to_base)),
    (Column(RELATIVE_COST, rank=1), lambda c: percentage(c.cost_ratio)),
)


def loss_optimal_table(plan: Plan) -> Table:
    """The loss-optimal model of each expert count that was asked about, and the baseline where it is of another."""
    cells, rows = (*SIZES, LOSS, *SERVING, _drawn("loss", "loss", ".3f")), plan.loss_optimal
    if "match" not in plan.asked and plan.base is not None and plan.base_experts not in {c.experts for c in rows}:
        rows = (*rows, replace(plan.base, infeasible=None))
    table = _models("Loss-optimal model of each expert count", rows, cells)
    if len(rows) == len(plan.loss_optimal):
        return table
    name, *last = table.rows[-1]
    return replace(table, rows=(*table.rows[:-1], (f"{name} (baseline)", *last)))


def bounded_loss_table(plan: Plan) -> Table:
    """The cheapest model of each expert count at the baseline's loss."""
    goal = f"the loss of the {base_name(plan)} ({plan.base_loss:.4f})"
    if plan.confidence is not None:
        goal = f"{P_LOSS} of {plan.confidence:.0%}"
    title = f"Cheapest model of each expert count at {goal} (Algorithm 1)"
    priced = plan.base_usd_per_mtok is not None  # else no cost has a ratio to the baseline's
    drawn = _drawn("cost vs baseline", "cost_ratio", ".0%") if priced else _drawn("$/Mtok", "usd_per_mtok")
    regret: Cell[Trained] = (Column("regret", rank=1), lambda c: percentage(c.regret and c.regret.expected))
    return _models(title, plan.bounded_loss, (*SIZES, LOSS, *SERVING, *RATIOS, regret, drawn))


def _bounded_cost_table(plan: Plan, usd: float) -> Table:
    """The best model of each expert count at the baseline's cost."""
    cost = f"the cost of the {base_name(plan)} ({format_usd(usd)})"
    title = f"Lowest loss of each expert count at {cost} (Algorithm 2)"
    return _models(title, plan.bounded_cost, (*SIZES, LOSS, *SERVING, *RATIOS))


def choice_tables(plan: Plan) -> list[Table]:
    """What a decision was chosen from, beside the table of its first screen: the lives, or what each law says."""
    if plan.lifetime is not None and plan.of_life:
        return [lifetime_table(plan.lifetime)]
    return [laws_table(plan)] if plan.laws else []


def evidence_tables(plan: Plan) -> list[Table]:
    """All further tables: regrets, both algorithms, loss-optimal models, frontier; none of dollars for training and serving, which no one budget stands for."""
    if of_fixed_dollars(plan):
        return []
    regrets = [regrets_table(plan)] if plan.laws and not plan.of_life else []
    costs = [] if plan.base_usd_per_mtok is None else [_bounded_cost_table(plan, plan.base_usd_per_mtok)]
    return [*regrets, bounded_loss_table(plan), *costs, loss_optimal_table(plan), frontier_table(plan)]


def known_table(plan: Plan) -> Table:
    """The known models that a plan was asked about, against its frontier."""
    cells: tuple[Cell[KnownRow], ...] = (
        (Column("", text=True), lambda c: c.name),
        (Column("active"), lambda c: format_count(c.n_params_active)),
        *SIZES[2:],
        (Column("FLOPs", rank=1), lambda c: format_flops(c.training_flops)),
        (Column("loss"), lambda c: f"{c.loss:.4f}{MARK if c.beyond_law else ''}"),
        *SERVING,
        (Column("loss vs frontier"), lambda c: or_dash(c.loss_ratio_to_frontier, lambda ratio: f"{ratio - 1.0:+.1%}")),
        (Column("cost vs frontier"), lambda c: percentage(c.cost_ratio_to_frontier)),
    )
    unserved = reason_lines((c.name, c.infeasible) for c in plan.known if c.infeasible)
    return table_of("Published models under this law", plan.known, cells, notes=(*beyond_notes(plan.known), *unserved))


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
    if plan.target_loss is None:
        goal = f"lowest loss within {format_usd(plan.max_total_usd or 0.0)}"
        cells.append(_drawn("loss", "loss", ".3f"))
    else:
        goal = f"loss {plan.target_loss:.4f} at the lowest cost"
        cells = [*(cell for cell in cells if cell is not LOSS), _drawn("total $", "total_usd")]
    of_draws = (
        " (intervals: of the best life under each draw)"
        if any(c.intervals for c in plan.plans if isinstance(c, Life))
        else ""
    )
    title = f"Training and serving {format_count(plan.lifetime_tokens)} tokens: {goal}{of_draws}"
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


def _models(title: str, models: Sequence[Model | Unreachable], cells: Sequence[Cell[Model]]) -> Table:
    known = [c for c in models if c.n_params is not None]
    name: Cell[Model] = (Column("", text=True), lambda c: expert_label(c.experts))
    notes = reason_lines((expert_label(c.experts), c.infeasible) for c in models if c.infeasible)
    return table_of(title, known, (name, *cells), experts=tuple(c.experts for c in known), notes=notes)


def _drawn(what: str, figure: str, form: str | None = None) -> Cell[Trained]:
    def text(model: Trained) -> str:
        limits = (model.intervals or {}).get(figure)
        return usd_range(limits or ()) if form is None else span_text(limits, form)

    return Column(f"{what}, 90% interval", rank=1), text
