"""The model that is recommended among those that answer, in whole layers and heads, what to change where none does, and the choices beside it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np

from moescale.errors import InfeasibleError
from moescale.models.coordinates import expansion
from moescale.planning.as_built import EQUAL, Bounds, Built, Priced, as_built, best_near
from moescale.planning.candidate import Candidate, Row, Trained
from moescale.planning.decision import Choices
from moescale.planning.question import Question, only_experts
from moescale.planning.rationale import Recommendation, caveats, compute_ratio, open_counts, over_fitted, undecided, why
from moescale.planning.scores import scores_of
from moescale.planning.search import Search, either, size_bounds
from moescale.planning.training_use import TrainingUse, training_use
from moescale.scaling_laws.law import interval
from moescale.units import format_usd, plural

Model = TypeVar("Model", bound=Candidate)
MOST_COUNTS = 2  # whose models of a price are built
MORE = 1.05  # of a price, our choice: shapes near a size often cost a few percent less than the size
CHEAPER = 0.05  # of a price: what a lower loss is worth whose training costs no more, and what makes another shape worth training
SAME_REGRET = 0.01  # of the baseline's price: what decides nothing between two expert counts, our choice
FOR_NOTHING = 0.005  # of loss: what a lower one at an equal price is taken for
# Share of dollars that a shape near a size saves, which is known when it is built: one in 60 of 1,193 built models saved more.
SAVED_AS_BUILT = 0.15
ALIKE = 6  # digits of dollars, and of a share of them, that are a difference


@dataclass(frozen=True, slots=True)
class Advice:
    """A recommendation, what it was chosen from, and the search that judges models as built."""

    advice: Recommendation[Candidate]
    base: Candidate | None  # the baseline as built, rounded in the same direction, where there is one
    use: TrainingUse  # what training the model takes
    built: tuple[Candidate, ...]  # the models that it was chosen from
    search: Search  # which judges models as built


def recommend(search: Search, rows: Sequence[Row], *, in_full: bool = True) -> Advice:
    """The model that is chosen among the rows, as built: it meets the bounds that it was chosen by.

    Unless `in_full`, the interval of its gain of loss and training dollars of others are left out.
    """
    question = search.question
    chosen, rule = choose(search, rows)
    to_loss = question.budget_goal == "serve"
    base_built = search.base_as_built(at_most=not to_loss)
    base = base_built.model if base_built else search.base
    real_base, search = search.base, search.judging_built(base_built)
    limit = None if question.budget_goal == "loss" else question.max_usd_per_mtok
    if question.budget_goal == "quality" and limit is None:
        limit = base.usd_per_mtok  # as built, as the model is

    def is_base(row: Candidate) -> bool:  # the baseline itself, which is built as it is compared with
        return to_loss and row.experts == base.experts and math.isclose(row.n_params, real_base.n_params)

    def bounds_of(row: Candidate) -> Bounds:
        loss = None
        if to_loss:  # as built at least as good as the one that was chosen, which is on the bound
            loss = row.loss if search.confidence is not None else question.max_loss or real_base.loss
            loss = max(loss, base.loss) if is_base(row) else loss
        sizes = question.max_active_params, question.max_total_params
        return Bounds(loss, limit, None, *sizes, min_probability=search.confidence if to_loss else None)

    law, costs, priced = search.law, search.costs, partial(search.built, base=base)
    wanted = [chosen, *(c for c in search.recommendable(rows) if c is not chosen)]
    apart = [row for row in wanted if not is_base(row)]
    found = best_near(law, costs, apart, [bounds_of(row) for row in apart], priced, search.judged_shapes)
    near = dict(zip((row.experts for row in apart), found, strict=True))
    good: list[Candidate] = []
    missed: Built[Candidate] | None = None  # the chosen model where it misses its bound
    refused: list[InfeasibleError] = []
    for row in wanted:  # rounding moves prices by more than neighbours differ
        bounds = bounds_of(row)
        built = near.get(row.experts) or as_built(law, costs, row, priced, bounds)
        if not built.notes:
            good.append(built.model)
        elif bounds.max_loss is not None and limit is not None:
            refused.append(too_dear(question, built.model, f"a loss of at most {bounds.max_loss:g}", " as built"))
        elif row is chosen:
            missed = built
    if not good and missed is None:
        raise refused[0]
    good.sort(key=lambda c: rank(search, c))
    every = [*good, *([missed.model] if missed else [])]
    model = every[0]
    if to_loss and good:  # whatever it regrets, none that another one beats in price and in loss
        model = _cheaper_to_train(question, model, good)
        model = next((c for c in good if _beats(question, c, model)), model)
        model = _of_lower_loss(question, model, good)
        model = _for_the_price(search, model, good, bounds_of(chosen), priced)
    shape = model.architecture
    assert shape is not None
    use = training_use(question, model, shape)
    model = replace(model, training_usd=use.usd)
    if in_full and len(law.draws) and question.draws != 0:  # the baseline's loss less the model's
        low, high = interval(search.draws.goal - search.losses_as_built(model, shape))
        model = replace(model, intervals={**(model.intervals or {}), "loss_gain": (float(low), float(high))})
    best = {model.experts: model}  # of each expert count
    for c in every:
        if c.experts not in best:
            best[c.experts] = billed(question, c) if in_full else c
    models = sorted(best.values(), key=lambda c: c.experts)
    drawn = to_loss and len(search.draws.theta) > 1
    shares = search.cheapest_counts(model.experts, EQUAL) if drawn else None
    rivals = [] if shares is None else open_counts(search, shares, model, models)
    advice = Recommendation(
        model=model,
        rule=rule,
        why=why(search, model, rule, base),
        caveats=caveats(replace(search, base=base), model, missed.notes if missed and not good else ()),
        architecture=shape,
        expansion=float(expansion(search.law.family, model.experts)),
        undecided=undecided(search, model, rivals),
        likeliest=None if shares is None else float(shares.max()),
        compute_ratio=compute_ratio(search, model) if question.explained else None,
        rivals=tuple(rivals),
        over_fitted=over_fitted(search, model),
    )
    base_row = base_built and (billed(question.of_base, base_built.model) if in_full else base_built.model)
    return Advice(advice, base_row, use, tuple(models), search)


def _of_lower_loss(question: Question, model: Candidate, good: Sequence[Candidate]) -> Candidate:
    """The model of the lowest loss for a price as good as equal; or CHEAPER above it where its training costs no more, or of any lower loss CHEAPER less."""

    def worth(c: Candidate) -> bool:
        lower, price = c.loss < model.loss - FOR_NOTHING, c.usd_per_mtok / model.usd_per_mtok
        if c.loss >= model.loss or price > 1.0 + CHEAPER:
            return False
        if lower and price <= 1.0 + EQUAL:
            return True
        most = billed(question, model).training_usd or 0.0
        return _spent(question, c) <= (most if lower else (1.0 - CHEAPER) * most)

    return min((c for c in good if worth(c)), key=lambda c: c.loss, default=model)


def _for_the_price(
    search: Search, model: Candidate, good: list[Candidate], bounds: Bounds, priced: Priced[Candidate]
) -> Candidate:
    """The lowest loss for as good as the model's price, where that is lower and its training hardly costs more: small models cost what the host takes, whatever their size.

    Of its expert count alone where another count is cheaper, which does not decide.
    """
    question, limit = search.question, model.usd_per_mtok * (1.0 + EQUAL)
    others = limit <= (1.0 + EQUAL) ** 2 * min(c.usd_per_mtok for c in good)
    limit = min(limit, bounds.max_usd_per_mtok or math.inf)
    rows = search.below(model.loss, limit * MORE, others | (search.best.experts == model.experts), MOST_COUNTS)
    within = [replace(bounds, max_loss=None, max_usd_per_mtok=limit)] * len(rows)
    found = best_near(search.law, search.costs, rows, within, priced, search.judged_shapes)
    lower = [each.model for each in found if each is not None and each.model.loss < model.loss - FOR_NOTHING]
    lower = [c for c in lower if _spent(question, c) <= (1.0 + CHEAPER) * _spent(question, model)]
    return min(lower, key=lambda c: c.loss, default=model)


def _cheaper_to_train(question: Question, model: Candidate, good: Sequence[Candidate]) -> Candidate:
    """Of models whose regret and price decide nothing the cheapest to train, where that saves CHEAPER: counts may change with the budget, dollars rise with it."""
    if model.regret is None:
        return model
    price, regret = (1.0 + CHEAPER) * model.usd_per_mtok, model.regret.expected + SAME_REGRET
    alike = (c for c in good if c.usd_per_mtok <= price and c.regret and c.regret.expected <= regret)
    best = min(alike, key=lambda c: _spent(question, c), default=model)
    return best if _spent(question, best) < (1.0 - CHEAPER) * _spent(question, model) else model


def _beats(question: Question, one: Candidate, other: Candidate) -> bool:
    """Whether a model serves for less and has a lower loss; for hardly less, and it hardly costs more to train."""
    ours, its = one.usd_per_mtok, other.usd_per_mtok
    if not (ours < its and one.loss < other.loss):
        return False
    return ours < (1.0 - CHEAPER) * its or _spent(question, one) <= (1.0 + CHEAPER) * _spent(question, other)


def _spent(question: Question, model: Candidate) -> float:
    return billed(question, model).training_usd or math.inf


def billed(question: Question, model: Candidate) -> Candidate:
    """A built model with the dollars of its training where these are known, and of its life where one is asked about."""
    served, shape = question.lifetime_tokens, model.architecture
    assert shape is not None
    training = question.training_usd(shape.architecture(), model.training_flops, model.tokens)
    if not math.isfinite(training):
        return model
    serving = None if served is None else model.usd_per_mtok * served / 1e6
    total = None if serving is None else training + serving
    return replace(model, training_usd=training, serving_usd=serving, total_usd=total)


def built_choices(search: Search, rows: Choices, built: Sequence[Candidate], base: Trained) -> Choices:
    """The choices as built, each within what chose it; the cheapest among the models `built` where these keep the loss."""
    law, costs, priced, question = search.law, search.costs, partial(search.built, base=base), search.question
    to_loss, within = question.budget_goal == "serve", Bounds(None, question.max_usd_per_mtok or base.usd_per_mtok)
    named = {"quality": rows.quality, "balanced": rows.balanced, "cheapest": None if to_loss else rows.cheapest}
    wanted = {name: row for name, row in named.items() if row is not None}
    bounds = [within if name == "quality" else Bounds(row.loss) for name, row in wanted.items()]
    near = best_near(law, costs, [*wanted.values()], bounds, priced, search.judged_shapes)
    made: dict[str, Candidate] = {}
    for (name, row), limits, found in zip(wanted.items(), bounds, near, strict=True):
        made[name] = billed(question, (found or as_built(law, costs, row, priced, limits)).model)
    if to_loss and rows.cheapest is not None:
        made["cheapest"] = min(built, key=lambda c: (c.usd_per_mtok, c.experts))
    return Choices(**dict(zip(made, with_scores(search, [*made.values()]), strict=True)))


def scored(search: Search, advice: Recommendation[Model]) -> Recommendation[Model]:
    """The recommendation with the benchmark scores of its model, where the law tells them."""
    (model,) = with_scores(search, [advice.model])
    return replace(advice, model=model)


def with_scores(search: Search, models: Sequence[Model]) -> list[Model]:
    """The models with their benchmark scores, where the law tells them."""
    n, d, e = ([getattr(model, name) for model in models] for name in ("n_params", "tokens", "experts"))
    found = scores_of(search.law, n, d, e, search.question.budget.extra) if models else []
    return [replace(model, scores=scores) for model, scores in zip(models, found, strict=True)]


def rank(search: Search, model: Candidate) -> tuple[float, float, float]:
    """What the recommended model has the least of: expected regret at a loss, or dollars without draws; else its loss."""
    if search.question.by_loss:
        return model.loss, model.experts, 0.0
    if search.confidence is None or search.base.usd_per_mtok is None or len(search.draws.theta) == 1:
        return _even(model.usd_per_mtok), model.experts, 0.0
    return round(model.regret.expected, ALIKE) if model.regret else math.inf, _even(model.usd_per_mtok), model.experts


def _even(usd_per_mtok: float) -> float:
    """Dollars to ALIKE digits, so that of models of one price the one of fewest experts is chosen, and not the last digit."""
    return float(f"{usd_per_mtok:.{ALIKE}g}")


def choose(search: Search, rows: Sequence[Row]) -> tuple[Candidate, str]:
    """The recommended model among the rows that answer the question, and the rule that chose it.

    At a loss it is the model of least expected regret, or without draws the cheapest. Raises InfeasibleError when no model
    that the law may speak of meets the bounds and can be served.
    """
    question, served, limit = search.question, search.recommendable(rows), math.inf
    allowed = [c for c in rows if search.law.allows(c.experts)]
    if question.by_loss:
        most = question.max_usd_per_mtok or search.base.usd_per_mtok if question.budget_goal == "quality" else None
        within = f" at {format_usd(most)} per million output tokens or less" if most else ""
        rule = f"lowest loss{within}"
        if not served:
            raise InfeasibleError(
                f"no model of this budget serves{within}{_reasons(allowed)}",
                next_step="raise --max-usd-per-mtok, or take another GPU",
            )
    else:
        goal = loss_goal(question)
        rule = f"cheapest to serve at {goal}"
        if not served:
            raise _none_reaches(search, allowed, goal)
        limit = (question.max_usd_per_mtok or math.inf) / (1.0 - SAVED_AS_BUILT)  # as built it must be within
        cheapest = min(served, key=lambda c: (_even(c.usd_per_mtok), c.experts))
        if cheapest.usd_per_mtok > limit:
            raise too_dear(question, cheapest, goal)
        if search.confidence is not None and cheapest.regret is not None:
            rule += f" with a probability of {search.confidence:.0%}"
    return min((c for c in served if c.usd_per_mtok <= limit), key=lambda c: rank(search, c)), rule


def loss_goal(question: Question) -> str:
    """The loss that is to be reached, in words."""
    if question.max_loss is None:
        return f"the loss of {question.base_name}"
    return f"a loss of at most {question.max_loss:g}"


def too_dear(question: Question, model: Candidate, goal: str, remark: str = "") -> InfeasibleError:
    """The error for a model that reaches its goal at a higher serving cost than the question allows."""
    return InfeasibleError(
        f"the cheapest model that reaches {goal} costs {format_usd(model.usd_per_mtok)} per million output tokens{remark}, "
        f"more than {format_usd(question.max_usd_per_mtok or math.inf)}",
        next_step="raise --max-usd-per-mtok, or relax --max-loss",
    )


def _none_reaches(search: Search, allowed: Sequence[Row], goal: str) -> InfeasibleError:
    budget = f"no model of {search.question.budget.flops:.3g} FLOPs"
    if unserved := [c for c in allowed if c.n_params is not None]:
        other_budget = "raise" if search.question.base and not search.question.base.planned else "lower"
        step = f"allow more GPUs, take a faster GPU or one with more memory, relax the limits, or {other_budget} the budget"
        return InfeasibleError(f"{budget} that reaches {goal} can be served{_reasons(unserved)}", next_step=step)
    question, nearest, bounds = search.question, list[str](), size_bounds(search.question)
    law, further = search.law, list[str]()
    if only_experts(law) is None:
        further = [f"{e:g}" for e in law.family.ladder if e > max(question.experts) and law.allows(e)]
    steps = [f"allow {either(further)} experts"] if further else []
    goal += f" ({search.base.loss:.4f})" if question.max_loss is None else ""
    sure = np.zeros(1)
    if search.confidence is not None:
        goal += f" with a probability of {search.confidence:.0%}"
        sure = search.draws_at(question.max_loss).most_sure(search.largest, law.allows(search.best.experts))
        surest = plural(question.experts[int(np.nanargmax(sure))], "expert")
        nearest.append(f"the highest probability is {np.nanmax(sure):.0%}, with {surest}")
    best = min(search.recommendable(search.outright()), key=lambda c: (c.loss, c.experts), default=None)
    if best is not None:
        of, counts = f"within {bounds}" if bounds else "of this budget", plural(best.experts, "expert")
        nearest.append(f"the lowest loss {of} is {best.loss:.4f}, with {counts} before rounding to whole layers")
        if question.goal == "serve" and question.max_loss is None:
            steps.append("give --objective loss to take the model of the lowest loss")
    if question.max_loss is not None or question.base is not None:  # else the baseline gains as much
        steps.append("raise --budget")
    steps.append("relax --max-loss" if question.max_loss is not None else "choose another baseline (--match)")
    if (epochs := question.budget.max_epochs) is not None:
        steps.append(f"allow more than {epochs:g} epochs (--max-tokens)")
    if np.nanmax(sure) > 0.0:
        steps.append("lower --confidence")
    steps += ["relax the bounds"] if bounds else []
    return InfeasibleError(
        f"{budget} with at most {plural(max(c.experts for c in allowed), 'expert')} reaches {goal}"
        f"{f' within {bounds}' if bounds else ''}",
        nearest="; ".join(nearest) or None,
        next_step=either(steps),
    )


def _reasons(rows: Sequence[Row]) -> str:
    """Why rows have no served model, each reason with its expert counts."""
    counts: dict[str, list[str]] = {}
    for c in rows:
        if c.infeasible:
            counts.setdefault(c.infeasible, []).append(f"{c.experts:g}")
    alone = len(rows) == 1
    listed = [reason if alone else f"E = {', '.join(each)}: {reason}" for reason, each in counts.items()]
    return f" ({'; '.join(listed)})" if listed else ""
