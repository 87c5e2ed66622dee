"""The model that is recommended among those that answer, in whole layers and heads, and the choices beside it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import chain
from typing import TypeVar

from moescale.errors import InfeasibleError
from moescale.models.coordinates import expansion
from moescale.planning.as_built import (
    Bounds,
    Built,
    as_built,
    remember_prices,
)
from moescale.planning.candidate import Candidate, Costs, Row, Trained
from moescale.planning.choice import choose, rank, too_dear
from moescale.planning.decision import Choices, LawView, law_views
from moescale.planning.near_shapes import EQUAL, best_shape, promising
from moescale.planning.question import Question
from moescale.planning.rationale import (
    Recommendation,
    caveats,
    compute_ratio,
    open_counts,
    over_fitted,
    slow,
    undecided,
    why,
)
from moescale.planning.scores import scores_of
from moescale.planning.search import Search
from moescale.planning.training_use import TrainingUse, training_use
from moescale.scaling_laws.law import Law

Model = TypeVar("Model", bound=Candidate)
TO_BUILD = 1e-4  # of a size, relative: whole layers and heads move it by more
MOST_COUNTS = 2  # whose models of a price are built
MORE = 1.05  # of a price, our choice: shapes near a size often cost a few percent less than the size
CHEAPER = 0.05  # of a price: what a lower loss is worth whose training costs no more, and what makes another shape worth training
SAME_REGRET = 0.01  # of the baseline's price: what decides nothing between two expert counts, our choice
FOR_NOTHING = 0.005  # of loss: what a lower one at an equal price is taken for


@dataclass(frozen=True, slots=True)
class Advice:
    """A recommendation, what it was chosen from, and the search that judges models as built."""

    advice: Recommendation[Candidate]
    views: tuple[LawView, ...]  # what each law says
    base: Candidate | None  # the baseline as built, rounded in the same direction, where there is one
    use: TrainingUse  # what training the model takes
    built: tuple[Candidate, ...]  # the models that it was chosen from
    search: Search  # which judges models as built


def recommend(search: Search, rows: Sequence[Row], *, at_goal: bool, in_full: bool = True) -> Advice:
    """The model that is chosen among the rows, as built: it meets the bounds that it was chosen by.

    `at_goal`: with the search's confidence. Unless `in_full`, what each law says of it and training dollars of others are left out.
    """
    question = search.question
    chosen, rule = choose(search, rows)
    to_loss = question.budget_goal == "serve"
    others = [c for c in rows if isinstance(c, Candidate) and c is not chosen and search.law.allows(c.experts)]
    limit = None if question.budget_goal == "loss" else question.max_usd_per_mtok
    base_built = search.base_as_built(at_most=not to_loss)
    base = base_built.model if base_built else search.base
    real_base, search = search.base, search.judging_built(base_built)
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
        return Bounds(loss, limit, None, *sizes, min_probability=search.confidence if at_goal else None)

    law, costs, priced = search.law, search.costs, partial(search.built, base=base)
    apart = [row for row in (chosen, *others) if not is_base(row)]
    bounds = [bounds_of(row) for row in apart]
    near = dict(
        zip((row.experts for row in apart), promising(law, costs, apart, bounds, search.judged_shapes), strict=True)
    )
    remember_prices(costs, chain(*near.values()))

    def build(row: Candidate) -> Built[Candidate]:
        bounds = bounds_of(row)
        built = best_shape(law, costs, row, near.get(row.experts, ()), priced, bounds)
        built = built or as_built(law, costs, row, priced, bounds)
        if built.notes and bounds.max_loss is not None and limit is not None:
            raise too_dear(question, built.model, f"a loss of at most {bounds.max_loss:g}", " as built")
        return built

    every: list[Built[Candidate]] = []
    refused: list[InfeasibleError] = []
    for row in (chosen, *others):  # rounding moves prices by more than neighbours differ
        try:
            every += [rival] if not (rival := build(row)).notes or row is chosen else []
        except InfeasibleError as error:
            refused.append(error)
    if not every:
        raise refused[0]
    built = min(every, key=lambda each: (bool(each.notes), rank(search, each.model)))
    if to_loss:  # whatever it regrets, none that another one beats in price and in loss
        built = _cheaper_to_train(question, built, every)
        beats = [each for each in every if not each.notes and _beats(question, each, built)]
        built = min(beats, key=lambda each: rank(search, each.model), default=built)
        built = _of_lower_loss(question, built, every)
        if not built.notes:
            built = _for_the_price(search, built, every, bounds_of(chosen), priced) or built
            every.append(built)
    model = built.model
    views = law_views(search, model, built.shape) if in_full else ()
    use = training_use(question, model, built.shape)
    model = replace(model, training_usd=use.usd)
    if in_full and (gains := search.loss_gains(model, built.shape)) is not None:
        model = replace(model, intervals={**(model.intervals or {}), "loss_gain": gains})
    best = {model.experts: model}  # of each expert count
    for each in sorted(every, key=lambda each: (bool(each.notes), rank(search, each.model))):
        if each.model.experts not in best:
            best[each.model.experts] = billed(question, each) if in_full else each.model
    models = sorted(best.values(), key=lambda c: c.experts)
    unbuilt = [row for row in rows if row.experts not in best]
    drawn = to_loss and len(search.draws.theta) > 1
    shares = search.cheapest_counts(model.experts, EQUAL) if drawn else None
    rivals = [] if shares is None else open_counts(search, shares, model, models)
    advice = Recommendation(
        model=model,
        rule=rule,
        why=why(search, model, rule, base),
        caveats=(
            *slow(search, model),
            *built.notes,
            *caveats(replace(search, base=base), model, [*best.values(), *unbuilt], views),
        ),
        architecture=built.shape,
        expansion=float(expansion(search.law.family, model.experts)),
        undecided=undecided(search, model, rivals),
        likeliest=None if shares is None else float(shares.max()),
        compute_ratio=compute_ratio(search, model) if question.explained else None,
        rivals=tuple(rivals),
        over_fitted=over_fitted(search, model),
    )
    base_row = base_built and billed(question.of_base, base_built) if in_full else base_built and base_built.model
    return Advice(advice, views, base_row, use, tuple(models), search)


def _of_lower_loss(question: Question, built: Built[Candidate], every: Sequence[Built[Candidate]]) -> Built[Candidate]:
    """The model of the lowest loss for a price as good as equal; or CHEAPER above it where its training costs no more, or of any lower loss CHEAPER less."""
    price, loss = built.model.usd_per_mtok, built.model.loss
    better = [each for each in every if not each.notes and each.model.loss < loss]
    alike = [each for each in better if each.model.usd_per_mtok <= price * (1.0 + EQUAL)]
    alike = [each for each in alike if each.model.loss < loss - FOR_NOTHING]
    near = [each for each in better if each not in alike and each.model.usd_per_mtok <= price * (1.0 + CHEAPER)]
    if near and (spent := billed(question, built).training_usd) is not None:
        for each in near:
            most = spent if each.model.loss < loss - FOR_NOTHING else spent * (1.0 - CHEAPER)
            alike += [each] if (billed(question, each).training_usd or math.inf) <= most else []
    return min(alike, key=lambda each: each.model.loss, default=built)


def _for_the_price(
    search: Search,
    built: Built[Candidate],
    every: Sequence[Built[Candidate]],
    bounds: Bounds,
    priced: Callable[[Law, Costs, Candidate], Candidate | None],
) -> Built[Candidate] | None:
    """The lowest loss for as good as the built model's price, where that is lower and its training hardly costs more: small models cost what the host takes, whatever their size.

    Of its expert count alone where another count is cheaper, which does not decide.
    """
    law, costs, model = search.law, search.costs, built.model
    limit, most = model.usd_per_mtok * (1.0 + EQUAL), model.loss - FOR_NOTHING
    others = limit <= (1.0 + EQUAL) ** 2 * min(each.model.usd_per_mtok for each in every if not each.notes)
    limit = min(limit, bounds.max_usd_per_mtok or math.inf)
    rows = search.below(model.loss, limit * MORE, others | (search.best.experts == model.experts), MOST_COUNTS)
    within = replace(bounds, max_loss=None, max_usd_per_mtok=limit)
    near = promising(law, costs, rows, [within] * len(rows), search.judged_shapes)
    remember_prices(costs, chain(*near))
    found = [best_shape(law, costs, row, shapes, priced, within) for row, shapes in zip(rows, near, strict=True)]
    lower = [each for each in found if each is not None and each.model.loss < most]
    lower = [
        each for each in lower if _spent(search.question, each) <= (1.0 + CHEAPER) * _spent(search.question, built)
    ]
    return min(lower, key=lambda each: each.model.loss, default=None)


def _cheaper_to_train(
    question: Question, built: Built[Candidate], every: Sequence[Built[Candidate]]
) -> Built[Candidate]:
    """Of models whose regret and price decide nothing the cheapest to train, where that saves CHEAPER: counts may change with the budget, dollars rise with it."""
    regret, price = built.model.regret, built.model.usd_per_mtok
    if regret is None:
        return built
    alike = [each for each in every if not each.notes and each.model.usd_per_mtok <= (1.0 + CHEAPER) * price]
    alike = [c for c in alike if c.model.regret and c.model.regret.expected <= regret.expected + SAME_REGRET]
    best = min(alike, key=lambda each: _spent(question, each), default=built)
    return best if _spent(question, best) < (1.0 - CHEAPER) * _spent(question, built) else built


def _spent(question: Question, built: Built[Candidate]) -> float:
    return billed(question, built).training_usd or math.inf


def _beats(question: Question, one: Built[Candidate], other: Built[Candidate]) -> bool:
    """Whether a model serves for less and has a lower loss; for hardly less, and it hardly costs more to train."""
    ours, its = one.model.usd_per_mtok, other.model.usd_per_mtok
    if not (ours < its and one.model.loss < other.model.loss):
        return False
    return ours < (1.0 - CHEAPER) * its or _spent(question, one) <= (1.0 + CHEAPER) * _spent(question, other)


def billed(question: Question, built: Built[Candidate]) -> Candidate:
    """A built model with the dollars of its training where these are known, and of its life where one is asked about."""
    served, model = question.lifetime_tokens, built.model
    training = question.training_usd(built.shape.architecture(), model.training_flops, model.tokens)
    if not math.isfinite(training):
        return model
    serving = None if served is None else model.usd_per_mtok * served / 1e6
    total = None if serving is None else training + serving
    return replace(model, training_usd=training, serving_usd=serving, total_usd=total)


def built_choices(search: Search, rows: Choices, built: Sequence[Candidate], base: Trained) -> Choices:
    """The choices as built, each within what chose it; the cheapest among the models `built` where these keep the loss."""
    to_loss = search.question.budget_goal == "serve"
    bounds: dict[str, Bounds] = {"quality": Bounds(None, search.question.max_usd_per_mtok or base.usd_per_mtok)}
    for name in ("balanced",) if to_loss else ("balanced", "cheapest"):
        row = getattr(rows, name)
        bounds[name] = Bounds(row and row.loss)
    found = {name: row for name in bounds if (row := getattr(rows, name)) is not None}
    law, costs, price = search.law, search.costs, partial(search.built, base=base)
    near = promising(law, costs, [*found.values()], [bounds[name] for name in found], search.judged_shapes)
    remember_prices(costs, chain(*near))
    made: dict[str, Candidate] = {}
    for (name, row), shapes in zip(found.items(), near, strict=True):
        best = best_shape(law, costs, row, shapes, price, bounds[name]) or as_built(
            law, costs, row, price, bounds[name]
        )
        made[name] = billed(search.question, best)
    if to_loss and rows.cheapest is not None:
        made["cheapest"] = min(built, key=lambda c: (c.usd_per_mtok, c.experts))
    return Choices(**made)


def scored(
    search: Search, advice: Recommendation[Candidate], rivals: Choices
) -> tuple[Recommendation[Candidate], Choices]:
    """The recommendation and its rivals with their benchmark scores, where the law tells them."""
    named = {f.name: model for f in fields(rivals) if (model := getattr(rivals, f.name)) is not None}
    models: list[Candidate] = [advice.model, *named.values()]
    own, *others = with_scores(search, models)
    return replace(advice, model=own), replace(rivals, **dict(zip(named, others, strict=True)))


def with_scores(search: Search, models: Sequence[Model]) -> list[Model]:
    """The models with their benchmark scores, where the law tells them."""
    n, d, e = ([getattr(model, name) for model in models] for name in ("n_params", "tokens", "experts"))
    found = scores_of(search.law, n, d, e, search.question.budget.extra) if models else []
    return [replace(model, scores=scores) for model, scores in zip(models, found, strict=True)]


def any_served(search: Search, rows: Sequence[Row]) -> bool:
    """Whether a row that the law may recommend is a model that can be served."""
    return any(isinstance(c, Candidate) and search.law.allows(c.experts) for c in rows)
