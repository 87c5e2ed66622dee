"""The answer of a plan for a reader who knows none of its words: the benefit, and the few figures that a decision stands on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from moescale.options.law import DEFAULT_LAW
from moescale.planning.plan import Plan
from moescale.units import format_count, format_seconds, format_usd
from moescale.views.tables import percentage, usd_range
from moescale.views.tables.choices import of_fixed_dollars, repaid_by, training_gpus, with_life
from moescale.views.tables.screen import OF_SOURCES, shown_chance
from moescale.views.tables.spending import SURE, late_tpot_s, likely_price

CHEAPER = 1.05  # the baseline's dollars over the model's from which a plan is called cheaper
LESS_LOSS = 5e-4  # a difference of losses that is called one
CERTAIN = 0.995  # a chance that is not said beside the benefit


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure by name: the number, the number as text, and what belongs to it; decisions stand on the `key` ones."""

    name: str
    value: float
    text: str
    notes: tuple[str, ...] = ()
    key: bool = False


def cheaper(ratio: float) -> str:
    """How much cheaper what costs 1 is than what costs `ratio`: a multiple of two and more, else a share."""
    return f"{ratio:.2g}x cheaper" if ratio >= 2.0 else f"{1.0 - 1.0 / ratio:.0%} cheaper"


def benefit(plan: Plan) -> str:
    """What the model to train gains over the baseline, of its whole life where that decides; empty where it is the baseline."""
    model, base = plan.decision.model, with_life(plan, plan.built_base)
    ours, its = (model.total_usd, base.total_usd) if plan.of_life else (model.usd_per_mtok, base.usd_per_mtok)
    if plan.is_baseline or not ours or not its:
        return ""
    fixed, goal, sure = of_fixed_dollars(plan), plan.asked.get("max_loss"), model.probability_at_least_base
    if its / ours >= CHEAPER and not fixed:
        what = "to train and serve" if plan.of_life else "to serve"
        which = "at the same loss or lower" if goal is None else f"at a loss of at most {goal}"
        chance = f" ({percentage(sure)} likely)" if sure is not None and sure < CERTAIN else ""
        return f"{cheaper(its / ours)} {what} {which}{chance}"
    whose = "dollars of training and serving" if plan.of_life else "serving cost"
    price = f"for the same {whose}" if fixed else f"at {ours / its:.0%} of the baseline's {whose}"
    gap = base.loss - model.loss
    return f"{gap:.3f} lower loss {price}" if gap >= LESS_LOSS else ""


def figures(plan: Plan) -> list[Figure]:
    """The figures of a decision; of a life its total dollars, what it saves and its chance are the key ones."""
    model = plan.decision.model
    found = [
        Figure("experts", model.experts, f"{model.experts:g}"),
        Figure("active parameters", model.n_params_active, format_count(model.n_params_active)),
        Figure("total parameters", model.n_params_total, format_count(model.n_params_total)),
        Figure("training tokens", model.tokens, format_count(model.tokens)),
        *_life(plan),
        _serving(plan),
        *_training(plan),
        *_chance(plan),
        Figure("loss", model.loss, f"{model.loss:.4f}"),
    ]
    if model.regret is not None:
        found.append(Figure("expected regret", model.regret.expected, f"{model.regret.expected:.0%}"))
    return found


def _life(plan: Plan) -> Iterator[Figure]:
    model, base = plan.decision.model, with_life(plan, plan.built_base)
    if not plan.of_life or model.total_usd is None or plan.lifetime is None:
        return
    total = model.total_usd
    parts = f"{format_usd(model.training_usd or 0.0)} to train, {format_usd(model.serving_usd or 0.0)} to serve"
    notes = [f"{parts} {format_count(plan.lifetime.lifetime_tokens)} tokens"]
    if limits := (model.intervals or {}).get("total_usd"):
        notes.append(f"{usd_range(limits)} for 90% of the law's draws")
    yield Figure("life", total, format_usd(total), tuple(notes), key=True)
    if of_fixed_dollars(plan) and not plan.is_baseline:
        gap, note = base.loss - model.loss, f"below the baseline's {base.loss:.4f} for the same dollars"
        yield Figure("lower loss", gap, f"{gap:.4f}", (note,), key=True)
    elif base.total_usd is not None and not plan.is_baseline:
        note = f"of the baseline's {format_usd(base.total_usd)}: {total / base.total_usd:.0%} of it is spent"
        yield Figure("saving", base.total_usd - total, format_usd(base.total_usd - total), (note,), key=True)


def _serving(plan: Plan) -> Figure:
    usd, base, (likely, own) = plan.decision.model.usd_per_mtok, plan.built_base.usd_per_mtok, likely_price(plan)
    notes = [f"{usd / base:.0%} of the baseline's {format_usd(base)}"] if base and not plan.is_baseline else []
    range_ = "" if likely is None else f"{usd_range(likely.interval)} for nine of ten servers of"
    if likely is None:
        notes.append("range unknown: no measured server of this kind to compare with")
    elif own:
        notes.append(f"likely {format_usd(likely.usd_per_mtok)}; {range_} this kind")
    else:
        notes.append(f"{range_} other kinds; none of this kind was measured")
    if (late := late_tpot_s(plan)) is not None:
        notes.append(f"likely slower than asked: {format_seconds(late)} a token")
    return Figure("serve", usd, f"{format_usd(usd)}/Mtok", tuple(notes), key=not plan.of_life)


def _training(plan: Plan) -> Iterator[Figure]:
    use, base = plan.training, with_life(plan, plan.built_base)
    if use is None or use.usd is None or use.gpu_days is None:
        return
    gpus = training_gpus(use)
    mfu = f", at {use.mfu:.0%} of their peak speed" if use.mfu else ""
    notes = [f"{use.gpu_days / gpus:.3g} days on {gpus:,.0f} {use.train_gpu}{mfu}"]
    if use.error is not None:
        most = format_usd(use.usd * use.error.times(SURE))
        notes.append(f"{most} at most with {SURE:.0%}, by {use.error.runs} published runs")
        if use.error.real_routing:
            notes.append(f"unevenly used experts add up to {use.error.real_routing - 1.0:.0%}")
    if not plan.of_life and (tokens := repaid_by(plan.decision.model, base)) is not None:
        more = format_usd(use.usd - (base.training_usd or 0.0))
        notes.append(f"{more} more than the baseline, repaid by {format_count(tokens)} output tokens")
    yield Figure("train", use.usd, format_usd(use.usd), tuple(notes), key=not plan.of_life)


def _chance(plan: Plan) -> Iterator[Figure]:
    if (chances := shown_chance(plan)) is None:
        return
    (shown, sure), laws, limit = chances, len(plan.voting_laws), plan.asked.get("max_loss")
    goal = "the baseline's loss" if limit is None else f"a loss of {limit}"
    drawn = f"in {OF_SOURCES}" if plan.law == DEFAULT_LAW else f"by the draws of {plan.law}"
    notes = [f"that it reaches {goal}, {f'by {laws} laws' if laws else drawn}"]
    if plan.usual_confidence:
        notes.append(f"{percentage(plan.usual_confidence)} is out of reach of a served model")
    if sure > shown:
        notes.append(f"the most that so few laws can show ({percentage(sure)} of their draws)")
    if gains := (plan.decision.model.intervals or {}).get("loss_gain"):
        worst, best = (f"{abs(end):.3f} {'lower' if end >= 0.0 else 'higher'}" for end in gains)
        notes.append(f"loss {worst} to {best} than the baseline's in 90% of them")
    yield Figure("chance", shown, percentage(shown), tuple(notes), key=True)
