"""The model of least training dollars whose chance of a target score is MIN_CHANCE, and the highest chance of any model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import partial

import numpy as np

from moescale.errors import InfeasibleError
from moescale.planning.allocation import SIZES, Allocation, at_size, largest_within_cost, loss_optimal
from moescale.planning.as_built import rounded
from moescale.planning.candidate import Candidate, trained_models
from moescale.planning.question import Question
from moescale.planning.recommend import with_scores
from moescale.planning.scores import MOST_FLOPS, chances, has_scores, stated_score
from moescale.planning.search import ANY_USD, Search
from moescale.planning.training_price import TrainingPrice
from moescale.typing import FloatArray

MIN_CHANCE = 0.8  # that the model has the target score
LEAST_FLOPS_SHARE = 1e-3  # the fewest FLOPs that are tried, over the baseline's
GRID_POINTS, BISECTIONS = 25, 12  # numbers of FLOPs on the grid, and bisections between two of them
CLOSE = 1e-3  # of the largest sizes that are served, relative
SHARES = np.geomspace(0.2, 1.6, 19)  # sizes of each budget, over the loss-optimal one
MOST_BUILT, FLOPS_GROWTH, MOST_GROWTH_STEPS = (
    3,
    1.02,
    12,
)  # expert counts that are built; rounding can lower the score: FLOPs then grow by 2% a step


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetSpend:
    """The model of least training dollars, as built, that has the target score with a `chance`, and the highest chance of any.

    No model: none has it within the budget, or MOST_FLOPS where none is stated, within the bounds and as far as models are served.
    """

    chance: float
    highest_chance: float
    model: Candidate | None = None


def target_spend(search: Search) -> TargetSpend | None:
    """The spend of a question with a target score; None for others, without a price of training, and for a law without scores."""
    question = search.question
    if question.target is None or question.training is None or not has_scores(search.law):
        return None
    with suppress(InfeasibleError):  # so few or so many FLOPs may have no optimum
        return _spend(search, question.training)
    return None


def _spend(search: Search, price: TrainingPrice) -> TargetSpend:
    question, experts = search.question, search.best.experts
    near = search.sampled.size_within(np.array([ANY_USD]))[0]
    most_n = np.minimum(search.largest, SIZES[-1])
    sizes = largest_within_cost(experts, ANY_USD, search.costs.usd_per_mtok, largest=most_n, near=near, close=CLOSE)
    most = np.broadcast_to(MOST_FLOPS if question.budget_of else question.budget.flops_at(experts), experts.shape)
    tried = np.geomspace(
        np.minimum(LEAST_FLOPS_SHARE * search.base.training_flops, LEAST_FLOPS_SHARE * most), most, GRID_POINTS
    )
    sure = np.array([_likeliest(search, flops, sizes)[1] for flops in tried])
    first = (sure >= MIN_CHANCE).argmax(axis=0)
    low, high = (tried[np.maximum(first + side, 0), np.arange(experts.size)] for side in (-1, 0))
    for _ in range(BISECTIONS):
        middle = np.sqrt(low * high)
        enough = _likeliest(search, middle, sizes)[1] >= MIN_CHANCE
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    usd = np.where((sure >= MIN_CHANCE).any(axis=0), high * price.usd_per_flop_at(experts), np.inf)
    near_best = [int(i) for i in np.argsort(usd)[:MOST_BUILT] if np.isfinite(usd[i])]
    models = [model for i in near_best for model in _built(search, price, i, high, most, sizes)]
    cheapest = min(models, key=lambda model: model.training_usd or 0.0, default=None)
    return TargetSpend(chance=MIN_CHANCE, highest_chance=float(sure.max()), model=cheapest)


def _trained_with(question: Question, experts: FloatArray, flops: FloatArray) -> Question:
    by_experts = tuple(zip(experts.tolist(), flops.tolist(), strict=True))
    return replace(question, budget=replace(question.budget, flops=float(flops.max()), by_experts=by_experts))


def _likeliest(search: Search, flops: FloatArray, sizes: FloatArray) -> tuple[Allocation, FloatArray]:
    """Of each expert count the size with the highest chance of the target score with so many FLOPs (m,), up to the largest that is served; and the chance."""
    law, question, experts = search.law, search.question, search.best.experts
    budget = _trained_with(question, experts, flops).budget
    n = np.minimum(loss_optimal(law, budget, experts).n_params * SHARES[:, None], sizes)
    found = at_size(law, budget, n.ravel(), np.tile(experts, SHARES.size))
    sure = chances(law, question.target or "", found, budget.extra).reshape(n.shape)
    sure = np.where(law.allows(experts) & np.isfinite(sure), sure, 0.0)
    best = np.argmax(sure, axis=0), np.arange(experts.size)
    columns = (getattr(found, field.name).reshape(n.shape)[best] for field in fields(found))
    return Allocation(*columns), sure[best]


def _built(
    search: Search, price: TrainingPrice, i: int, flops: FloatArray, most: FloatArray, sizes: FloatArray
) -> Iterator[Candidate]:
    """The model of one expert count in whole layers and heads, with as many FLOPs as the score then takes, and its training dollars."""
    law, costs = search.law, search.costs
    task, wanted = stated_score(search.question.target or "")
    gpus = search.question.n_train_gpus
    for step in range(MOST_GROWTH_STEPS):
        spent = np.minimum(flops * FLOPS_GROWTH**step, most)
        question = _trained_with(search.question, search.best.experts, spent)
        priced = partial(replace(search, question=question).built, base=search.base)
        row = trained_models(_likeliest(search, spent, sizes)[0], costs)[i]
        built = rounded(law, costs, row, priced, at_most=True) if isinstance(row, Candidate) else None
        (model,) = with_scores(search, [built.model]) if built is not None else (None,)
        if built is None or model is None or model.scores is None:
            return
        if model.scores[task].at_least(wanted) >= MIN_CHANCE:
            with suppress(InfeasibleError):  # the stated GPUs do not hold it
                bill = price.bill(built.shape.architecture(), model.training_flops, model.tokens, gpus)
                yield replace(model, training_usd=bill.usd)
            return
