"""The rows of a plan's first screen: the choices as built with published models beside them, under the question that was asked."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from enum import IntEnum

from moescale.options.law import DEFAULT_LAW, PLANNED_SHAPE, SHAPES, shape_name
from moescale.planning.candidate import Candidate, Trained
from moescale.planning.plan import Plan
from moescale.planning.total_cost import break_even_tokens
from moescale.planning.training_use import TrainingUse
from moescale.units import format_count, format_flops, format_seconds, format_usd, plural
from moescale.views.tables import MARK, Cell, Column, Table, beyond_notes, gpus_text, or_dash, table_of

ALIKE = 0.06  # relative difference in size of two rows of one expert count that are shown as one, trained about as long
NEAR = 0.05  # relative difference in dollars below which the cheapest model is no other choice
MOST_ROWS, MOST_KNOWN = 9, 3
LEAST_SPEND, LOWER_LOSS = "  least spend", "  lower loss"
RECOMMENDED = "recommended"
MOST_REPAID = 1e15  # output tokens: what is repaid by more is as good as never repaid
SPENDS_LESS = 0.98  # of the recommended model's training dollars, at most: what is a least spend by volume
CHEAPER = 0.9  # of the recommended model's training dollars, at most: a least spend that is shown
BINDS = 0.99  # of the most tokens: what trains longer is bounded by them
UNLIKE = 1.25  # largest over smallest size that several laws choose alone, or FLOPs over a budget: more is said; or tokens: two models


class Place(IntEnum):
    """Where a row stands on the screen; several of one place are one choice said twice where they are as good as equal."""

    BEST_DENSE = 0
    BASELINE = 1
    FEWER_EXPERTS = 2
    RECOMMENDED = 3
    MORE_EXPERTS = 4
    CHANCE = 5
    CHEAPER = 6
    LESS_SPENT = 7
    LOWER_LOSS = 8
    KNOWN = 9


RIVALS = (Place.FEWER_EXPERTS, Place.MORE_EXPERTS)
SAID_ONCE = (*RIVALS, Place.CHEAPER, Place.LESS_SPENT, Place.LOWER_LOSS)


def asked_number(plan: Plan, name: str) -> float | None:
    """A number of the question; None where it states none."""
    value = plan.asked.get(name)
    return value if isinstance(value, float) else None


def of_fixed_dollars(plan: Plan) -> bool:
    """Whether the lowest loss of lives of the same dollars decides."""
    return plan.of_life and "max_total_usd" in plan.asked and "max_loss" not in plan.asked


def budget_words(plan: Plan) -> str:
    """The budget as it was stated."""
    days, gpus, usd, most = (asked_number(plan, n) for n in ("max_days", "train_gpus", "max_training_usd", "max_flops"))
    parts = [f"{plural(days, 'day')} on {plural(gpus, 'GPU')}"] if days is not None and gpus is not None else []
    parts += [] if usd is None else [f"{format_usd(usd)}{' of training' if plan.of_life else ''}"]
    parts += [f"at most {format_flops(most)} FLOPs"] if parts and most is not None else []
    return " and ".join(parts) or f"{format_flops(plan.budget_flops)} FLOPs"


def question_line(plan: Plan) -> str:
    """What was asked: budget, GPU and format, latency limits, request."""
    asked, budget = plan.asked, budget_words(plan)

    def stated(name: str, words: str, text: Callable[[float], str] = format_count, *, shown: bool = True) -> list[str]:
        value = asked_number(plan, name)
        return [words.format(text(value))] if shown and value is not None else []

    if "match" in asked and "budget_of" in asked:
        budget = str(asked["budget_of"]) if "target" in asked else f"the quality of {asked['budget_of']}"
    bound = plan.decision.model.tokens > BINDS * (asked_number(plan, "max_tokens") or math.inf)
    of_training = plan.training is not None and plan.training.precision is not None
    served_in = f" {asked['weights']}" if isinstance(asked.get("weights"), str) else ""
    parts = [
        *stated("lifetime_tokens", "{} served tokens", shown=plan.of_life),
        *(stated("max_total_usd", "{} in all", format_usd, shown=plan.of_life) or [budget]),
        *stated("max_active_params", "<= {} active"),
        *stated("max_total_params", "<= {} total without embeddings"),
        *stated("unique_tokens", "{} unique tokens"),
        *(["lowest loss"] if plan.objective == "loss" else []),
        *stated("max_loss", "loss <= {}", "{:g}".format, shown=plan.of_life),
        *stated("max_tokens", "<= {} tokens", shown=bound and "max_epochs" not in asked),
        f"{plan.gpu}{' serving in' if served_in and of_training else ''}{served_in}",
        *(stated("max_tpot_s", "TPOT <= {}", _tpot_words) or ["no limit of TPOT"]),
        *stated("max_ttft_s", "TTFT <= {}", format_seconds),
        *(["disaggregated"] if asked.get("disaggregated") else []),
        *stated("utilization", "servers used {}", "{:.0%}".format, shown=asked.get("utilization") != 1.0),
        f"{plan.prompt_tokens:g} in / {plan.output_tokens:g} out",
    ]
    own = [] if plan.law == DEFAULT_LAW else [f"--law {plan.law}"]
    own += ["sizes as the paper counts them (--convention exact)"] if plan.convention == "paper" else []
    # Of the default law without dense models one shape is planned, which nothing else names.
    usual = asked.get("family") == SHAPES[PLANNED_SHAPE] and (plan.law != DEFAULT_LAW or 1.0 in considered(plan))
    own += [] if plan.shapes or usual else [f"shape {shape_name(str(asked.get('family')))}"]
    return "; ".join((f"For {', '.join(parts)}", *own))


def _tpot_words(tpot_s: float) -> str:
    return f"{format_seconds(tpot_s)} ({1.0 / tpot_s:.3g} tok/s a user)"


def best_dense(plan: Plan) -> Trained | None:
    """The dense model of the lowest loss for the budget; None where it was not asked about, is too large, or the baseline.

    Nor in a shape that is not the default law's: the best dense model of the default one serves for less.
    """
    if plan.law == DEFAULT_LAW and plan.asked.get("family") != SHAPES[PLANNED_SHAPE]:
        return None
    most = min(asked_number(plan, name) or math.inf for name in ("max_active_params", "max_total_params"))
    dense = (c for c in plan.loss_optimal if c.experts == 1.0 != plan.base_experts)
    return next((c for c in dense if c.n_params <= most), None)


def choices(plan: Plan, most: int) -> list[tuple[str, Trained]]:
    """So many rows by name, the first named where there is no room for all, in the order of a screen."""
    kept: list[tuple[Place, str, Trained]] = []
    for place, name, row in _named(plan):
        others = [c for at, _, c in kept if at != Place.KNOWN] if place in SAID_ONCE else []
        if row is not None and not any(_same(row, c) for c in others):
            kept.append((place, name, row))
    by_place = sorted(kept[:most], key=lambda each: (each[0], each[2].experts if each[0] in RIVALS else 0.0))
    return [(name, row) for _, name, row in by_place]


def _named(plan: Plan) -> list[tuple[Place, str, Trained | None]]:
    """All rows, the most wanted first; None where there is no such model."""
    chosen, rivals, undecided = plan.decision.model, plan.decision.rivals, plan.decision.undecided
    knee, better, cheapest = plan.choices.balanced, plan.choices.quality, plan.choices.cheapest
    at_knee = knee is not None and not plan.of_life and _same(knee, chosen)
    unspent = plan.training is not None and plan.training.left_over
    by_price = not plan.of_life and plan.objective not in ("loss", "quality")
    lower = [(Place.LOWER_LOSS, LOWER_LOSS, better)] if by_price and better and better.loss < chosen.loss else []
    least = plan.least_training[0] if plan.least_training else None
    if least is not None and (least.training_usd or 0.0) >= CHEAPER * (chosen.training_usd or math.inf):
        least = None
    chances = [(Place.CHANCE, chance_label(plan, c), c) for c in at_other_chances(plan)]
    between = [each for each in chances if each[2] is plan.less_sure_between]
    also = [(RIVALS[c.experts >= chosen.experts], "  also open" if undecided else "  next best", c) for c in rivals]
    others, asked_for = [c for c in plan.known if c.name != plan.base_name], n_against(plan)
    in_format = [f"{c.name} in {c.trained_in}" if c.trained_in else c.name for c in others]
    known = [(Place.KNOWN, f"  {name}{_more_flops(plan, c)}", c) for name, c in zip(in_format, others, strict=True)]
    named: list[tuple[Place, str, Trained | None]] = [
        (Place.RECOMMENDED, "> recommended, knee" if at_knee else "> recommended", chosen),
        *([] if plan.is_baseline else [(Place.BASELINE, *_baseline(plan))]),
        *known[:asked_for],
        *(each for each in chances if each not in between),
        *(lower if unspent else []),  # what the rest buys
        (Place.LESS_SPENT, LEAST_SPEND, least),
        (Place.LESS_SPENT, f"  for {format_count(plan.for_volume_tokens or 0.0)} served", plan.for_volume),
        *between,
        *([] if unspent else lower),
        *also[:1],
        *(also[1:][-1:] if undecided else []),
        *known[asked_for:MOST_KNOWN],
    ]
    built = {c.experts for _, _, c in (*named, *also) if c is not None and c not in plan.known and c is not better}
    rest = [c for c in _rows(plan) if c.experts not in built]
    more = min((c for c in rest if c.experts > chosen.experts), key=lambda c: c.experts, default=None)
    fewer = max((c for c in rest if c.experts < chosen.experts), key=lambda c: c.experts, default=None)
    if cheapest is not None and (
        cheapest.usd_per_mtok >= (1.0 - NEAR) * chosen.usd_per_mtok or cheapest.experts in built
    ):
        cheapest = None
    if by_price:
        named += [(Place.LESS_SPENT, "  knee", None if at_knee else knee), (Place.CHEAPER, "  cheapest", cheapest)]
    else:
        named.append((Place.LOWER_LOSS, "  more experts", more))
    named += [(Place.BEST_DENSE, "  best dense", best_dense(plan)), *also[1:], *known[MOST_KNOWN:]]
    return [*named, (Place.FEWER_EXPERTS, "  fewer experts", fewer)]


def _baseline(plan: Plan) -> tuple[str, Trained]:
    base = next((c for c in plan.known if c.name == plan.base_name), plan.built_base)
    label = f"  {plan.base_name} (baseline)"
    if plan.base_name.startswith("the "):
        of = f" ({plan.base_name.rpartition(' of ')[2]})" if " of " in plan.base_name else ""
        label = f"  {'dense ' if plan.base_experts == 1 else ''}baseline{of}"
    bought = not plan.base_released and {"max_training_usd", "max_days"} & plan.asked.keys()
    label += " in bf16" if bought and plan.training and plan.training.precision else ""
    label += "" if plan.of_life else _more_flops(plan, base)
    row = with_life(plan, base)
    return label, row if plan.base_n_experts is None else replace(row, experts=plan.base_n_experts)


def at_other_chances(plan: Plan) -> list[Candidate]:
    """What other chances of the baseline's loss would serve, the likeliest last."""
    found = [c for c in (plan.less_sure, plan.less_sure_between, plan.more_sure) if c is not None]
    return sorted(found, key=lambda c: c.probability_at_least_base or 0.0)


def chance_label(plan: Plan, model: Candidate) -> str:
    """The row of a model with another chance, by the option that asks for it, or by its shape where that is not the plan's."""
    chance, own = model.probability_at_least_base or 0.0, plan.shapes[0].shape if plan.shapes else None
    shapes = (
        (plan.less_sure, plan.less_sure_shape),
        (plan.less_sure_between, plan.less_sure_between_shape),
        (plan.more_sure, plan.more_sure_shape),
    )
    other = next((shape for each, shape in shapes if each is model and own and shape not in (None, "", own)), None)
    return f"  {chance:.0%}: {other or f'--confidence {chance:g}'}"


def n_against(plan: Plan) -> int:
    """How many published models are shown before other choices: those that --against names."""
    known = sum(c.name != plan.base_name for c in plan.known)
    return min(known, MOST_KNOWN) if known > 1 or "against" in plan.asked else 0


def _more_flops(plan: Plan, model: Trained) -> str:
    """The training FLOPs of a row over those of the recommended model, where they are others and no dollars say so."""
    if model.training_usd is not None:
        return ""
    times = model.training_flops / plan.decision.model.training_flops
    return f", {times:.2g}x FLOPs" if max(times, 1.0 / times) > UNLIKE else ""


def with_life(plan: Plan, base: Trained) -> Trained:
    """A published baseline with the dollars of its life, where lives decide."""
    own = plan.lifetime.least_training if plan.of_life and plan.lifetime else None
    if own is not None and of_fixed_dollars(plan):
        return own
    return base if own is None or "match" not in plan.asked else replace(base, total_usd=own.total_usd)


def repaid_by(model: Trained, other: Trained) -> float | None:
    """The output tokens by which a model's lower price has repaid what its training costs more than another's; None where it has nothing to repay, or never does."""
    return break_even_tokens(model.training_usd, other.training_usd, model.usd_per_mtok, other.usd_per_mtok)


def _dearer_to_serve(plan: Plan) -> Iterator[tuple[str, Trained]]:
    """The models whose training a lower price may repay: the baseline, whose training is paid where it is released, and the least spend."""
    base, spent = plan.built_base, plan.decision.model.training_usd or math.inf
    if base.loss <= (asked_number(plan, "max_loss") or math.inf):  # else it is no answer
        released = (f"{plan.base_name} as released", replace(base, training_usd=0.0))
        yield released if plan.base_released else ("baseline", base)
    for row in plan.least_training[:1]:
        if (row.training_usd or spent) < SPENDS_LESS * spent:
            yield LEAST_SPEND, row


def by_volume(plan: Plan, rows: int) -> str:
    """Which of the baseline, the least spend, the model for a volume and the recommended one costs the least to train and serve, by served tokens; with the training dollars of those that so many rows leave out."""
    if plan.of_life:
        return ""
    model, shown = plan.decision.model, {name for name, _ in choices(plan, rows)}
    others = list(_dearer_to_serve(plan))
    if plan.for_volume is not None and plan.for_volume_tokens is not None:
        volume, row = format_count(plan.for_volume_tokens), plan.for_volume
        hidden = f"  for {volume} served" not in shown
        others.append((f"that for {volume}{f' ({format_usd(row.training_usd)})' * hidden}", row))
    billed = [(name, each) for name, each in others if each.training_usd is not None and each.usd_per_mtok]
    if model.training_usd is None or not billed:
        return ""
    left = sorted([*billed, (RECOMMENDED, model)], key=lambda each: (each[1].training_usd or 0.0, each[1].usd_per_mtok))
    said, (name, cheapest) = list[str](), left[0]
    while name != RECOMMENDED:
        later = [(tokens, each) for each in left if (tokens := repaid_by(each[1], cheapest)) is not None]
        tokens, (after, following) = min(later, key=lambda each: each[0], default=(math.inf, (RECOMMENDED, model)))
        usd = f" ({format_usd(cheapest.training_usd or 0.0)})" if name == LEAST_SPEND and name not in shown else ""
        if tokens > MOST_REPAID:
            return ", ".join([*said, f"then {name.strip()}{usd}"]) if said else f"{name.strip()}{usd} at any volume"
        said.append(f"{name.strip()}{usd} to {format_count(tokens)}{'' if said else ' served'}")
        name, cheapest = after, following
    return ", ".join([*said, f"then {RECOMMENDED}"]) if said else f"{RECOMMENDED} at any volume"


def _rows(plan: Plan) -> list[Trained]:
    """The model of each expert count that answers, as built: of the whole life those near the best, which are its rivals."""
    return [*plan.decision.rivals] if plan.of_life else [*plan.built]


def _same(one: Trained, other: Trained) -> bool:
    longer = max(one.tokens / other.tokens, other.tokens / one.tokens) > UNLIKE
    return one.experts == other.experts and abs(one.n_params / other.n_params - 1.0) < ALIKE and not longer


def choices_table(plan: Plan, most: int = MOST_ROWS) -> Table:
    """The choices and published models as rows, `most` at most, all as built.

    Beside epochs of stated unique tokens, and beside days on stated GPUs, there is no room for the TPOT.
    """
    rows, unique, days = choices(plan, most), asked_number(plan, "unique_tokens"), days_per_usd(plan)

    def experts(model: Trained) -> str:
        count = getattr(model, "n_experts", None) or model.experts
        return f"{count:g}" if count == round(count) else "-"  # a published baseline, as the family counts it

    further: dict[Cell[tuple[str, Trained]], bool] = {
        (Column("TTFT", rank=4), lambda r: or_dash(r[1].ttft_s, format_seconds)): "max_ttft_s" in plan.asked,
        (Column("TPOT", rank=5), lambda r: or_dash(r[1].tpot_s, format_seconds)): unique is None and days is None,
        (Column("epochs", rank=3), lambda r: "-" if r[1] in plan.known else f"{r[1].tokens / (unique or 1):.3g}"): bool(
            unique
        ),
        (
            Column("days", rank=3),
            lambda r: f"{r[1].training_usd * (days or 0):.3g}" if r[1].training_usd else "-",
        ): bool(days),
    }
    cells: list[Cell[tuple[str, Trained]]] = [
        (Column(goal_text(plan), text=True), lambda r: r[0]),
        (Column("E"), lambda r: experts(r[1])),
        (Column("active"), lambda r: format_count(r[1].n_params_active)),
        (Column("total"), lambda r: format_count(r[1].n_params_total)),
        (Column("tokens"), lambda r: format_count(r[1].tokens)),
        (Column("loss"), lambda r: f"{r[1].loss:.4f}{MARK if getattr(r[1], 'beyond_law', None) else ''}"),
        (Column("$/Mtok"), lambda r: or_dash(r[1].usd_per_mtok, format_usd)),
        (Column("GPUs"), lambda r: gpus_text(r[1].gpus, r[1].attention_dp, r[1].prefill_gpus)),
        *(cell for cell, applies in further.items() if applies),
        (Column("train $", rank=2), lambda r: or_dash(r[1].training_usd or None, format_usd)),
        *([(Column("life $", rank=1), lambda r: or_dash(r[1].total_usd, format_usd))] if plan.of_life else []),
    ]
    counts = tuple(model.experts for _, model in rows)
    return table_of(question_line(plan), rows, cells, experts=counts, notes=beyond_notes(plan.known))


def goal_text(plan: Plan) -> str:
    """What the recommended model is the best at."""
    if plan.of_life:
        return "Lowest loss for dollars" if of_fixed_dollars(plan) else "Least dollars of a life"
    if plan.objective in ("loss", "quality"):
        return "Lowest loss" if plan.objective == "loss" else "Lowest loss at a price"
    most = asked_number(plan, "max_loss")
    return f"Cheapest at {'baseline loss' if most is None else f'loss <= {most:g}'}"


def days_per_usd(plan: Plan) -> float | None:
    """Days of training for a dollar on the GPUs that are stated; None where none are, or days are stated, too."""
    use, gpus = plan.training, asked_number(plan, "train_gpus")
    if use is None or not use.usd or not use.gpu_days or gpus is None or "max_days" in plan.asked:
        return None
    return use.gpu_days / use.usd / gpus


def training_gpus(use: TrainingUse) -> float:
    """The GPUs that training runs on: the stated ones, else those that its MFU is of."""
    return use.gpu_days / use.days if use.days and use.gpu_days is not None else float(use.train_gpus or 1)


def sizes_text(model: Trained) -> str:
    """A model's active parameters and its tokens."""
    return f"{format_count(model.n_params_active)} active, {format_count(model.tokens)} tokens"


def considered(plan: Plan) -> tuple[float, ...]:
    """The expert counts that were asked about, and that the law may recommend."""
    counts = plan.asked.get("experts")
    stated = [e for e in counts if isinstance(e, int | float)] if isinstance(counts, list | tuple) else []
    return tuple(float(e) for e in stated if e not in plan.excluded_experts)
