"""The models of least training dollars that keep a plan's promise, or that have a target score with a chance of MIN_CHANCE, as built."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import cast

import numpy as np

from moescale.errors import InfeasibleError
from moescale.models.rounding import Buildable
from moescale.planning.allocation import SIZES, Allocation, Budget, at_size, loss_optimal
from moescale.planning.as_built import SLACK, depth_factor, in_shape, near_shapes, remember_prices, stacked
from moescale.planning.candidate import Candidate, trained_models
from moescale.planning.question import Question, own_inputs
from moescale.planning.recommend import CHEAPER, with_scores
from moescale.planning.scores import MOST_FLOPS, chances, has_scores, stated_score
from moescale.planning.search import ANY_USD, Search
from moescale.typing import FloatArray

MIN_CHANCE = 0.8  # that the model has the target score
LEAST_FLOPS_SHARE = 1e-3  # the fewest FLOPs that are tried, over the baseline's
GRID_POINTS, BISECTIONS = 7, 10  # numbers of FLOPs on the grid, and bisections between two of them
SHARES = np.geomspace(0.2, 1.6, 10)  # sizes of each budget, over the loss-optimal one
MOST_BUILT = 2  # expert counts that are built
# Sizes of the shapes that are looked at, over the likeliest, and how many of an expert count; FLOPs with which they are tried, over its;
# of how many training is billed, and of how many serving is priced.
SIZES_NEAR, MOST_NEAR, FLOPS_NEAR = (0.8, 1.25), 64, np.geomspace(0.8, 1.25, 24)
MOST_BILLED, MOST_PRICED = 12, 3
FLOPS_GROWTH, MOST_GROWTH_STEPS = 1.01, 20  # rounding can lower the chance: FLOPs then grow in small steps

ChanceOf = Callable[[Allocation, Budget], FloatArray]  # with which models (j,) of a budget are what is asked for, (j,)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetSpend:
    """The model of least training dollars, as built, that has the target score with a `chance`, and the highest chance of any."""

    chance: float
    highest_chance: float
    # None: none has it within the budget (else MOST_FLOPS) and the bounds, as far as models are served.
    model: Candidate | None = None


def target_spend(search: Search) -> TargetSpend | None:
    """The spend of a question with a target score; None for others, without a price of training, and for a law without scores."""
    target, law = search.question.target, search.law
    if target is None or search.question.training is None or not has_scores(law):
        return None
    task, wanted = stated_score(target)

    def chance_of(models: Allocation, budget: Budget) -> FloatArray:
        return chances(law, target, models, budget.extra)

    def has_score(model: Candidate) -> bool:
        (scored,) = with_scores(search, [model])
        return scored.scores is not None and scored.scores[task].at_least(wanted) >= MIN_CHANCE

    with suppress(InfeasibleError):  # so few or so many FLOPs may have no optimum
        highest, models = _Spend(search, chance_of, MIN_CHANCE, has_score, of_score=True).cheapest()
        model = next(iter(with_scores(search, models)), None)
        return TargetSpend(chance=MIN_CHANCE, highest_chance=highest, model=model)
    return None


def least_training(search: Search) -> tuple[Candidate, ...]:
    """The models that keep the loss of a plan with its confidence for the least training dollars, the cheapest first; none where nothing is promised."""
    with suppress(InfeasibleError):
        spend = _to_promise(search)
        return () if spend is None else tuple(with_scores(search, spend.cheapest()[1]))
    return ()


def frugal(search: Search) -> Search:
    """Where no budget is stated, the search with the fewest FLOPs of each expert count that keep the promise for CHEAPER above its least price; else itself.

    Prices have a floor, which any training reaches: without it a model is trained as long as its baseline, for nothing.
    """
    question = search.question
    spend = None if question.budget_of is None or question.base is None or question.of_life else _to_promise(search)
    if spend is None:
        return search
    rows, budget, experts = search.at_loss(question.max_loss), question.budget, search.best.experts
    usd = np.array([c.usd_per_mtok if isinstance(c, Candidate) else np.nan for c in rows])
    within = search.sampled.size_within(usd * (1.0 + CHEAPER)).diagonal()
    served = search.sampled.size_within(np.array([ANY_USD]))[0]
    _, flops, _ = spend.least(np.fmin(np.fmin(within, served), search.largest))
    flops = np.minimum(flops * FLOPS_GROWTH, budget.flops)
    by_experts = tuple(zip(experts.tolist(), flops.tolist(), strict=True))
    of_least = replace(question, budget=replace(budget, by_experts=by_experts))
    return Search.of(search.law, of_least, search.costs.deployment, search.costs.latency)


def _to_promise(search: Search) -> _Spend | None:
    """The spend that keeps the loss of a plan with its confidence; None without a price of training, and where no loss is to be reached."""
    question, confidence = search.question, search.confidence
    if question.training is None or question.budget_goal != "serve":
        return None
    draws, goal = search.draws_at(question.max_loss), question.max_loss or search.base.loss

    def chance_of(models: Allocation, budget: Budget) -> FloatArray:
        if confidence is None:
            return (models.loss <= goal).astype(float)
        return draws.probability(replace(draws, budget=budget).losses(models.n_params, models.experts))

    def keeps(model: Candidate) -> bool:
        if confidence is None or model.probability_at_least_base is None:
            return model.loss <= goal * (1.0 + SLACK)
        return model.probability_at_least_base >= confidence

    return _Spend(search, chance_of, confidence or 1.0, keeps)


@dataclass(frozen=True, slots=True)
class _Spend:
    """The search for the fewest training dollars with which a model has what is asked for with a chance."""

    search: Search
    chance_of: ChanceOf
    chance: float
    kept: Callable[[Candidate], bool]  # by a model as built
    of_score: bool = False  # whether a score is asked for

    @property
    def most(self) -> FloatArray:
        """The most FLOPs of each expert count, (m,)."""
        question, experts = self.search.question, self.search.best.experts
        return np.broadcast_to(MOST_FLOPS if question.budget_of else question.budget.flops_at(experts), experts.shape)

    def cheapest(self) -> tuple[float, list[Candidate]]:
        """The highest chance of any model, and the models of the cheapest expert counts as built, with training dollars, cheapest first."""
        search, experts, price = self.search, self.search.best.experts, self.search.question.training
        assert price is not None
        served = search.sampled.size_within(np.array([ANY_USD]))[0]
        largest = np.fmin(served, np.minimum(search.largest, SIZES[-1]))
        highest, flops, models = self.least(largest)
        usd = flops * price.usd_per_flop_at(experts)
        counts = least_of(usd, MOST_BUILT)
        best: dict[float, Candidate] = {}  # of each expert count
        if counts:
            some = Allocation(*(getattr(models, field.name)[counts] for field in fields(models)))
            built = self._built(some, np.stack((flops, self.most, largest), axis=1)[counts])
            for model in sorted(built, key=lambda model: model.training_usd or 0.0):
                best.setdefault(model.experts, model)
        return highest, list(best.values())

    def least(self, largest: FloatArray) -> tuple[float, FloatArray, Allocation]:
        """The highest chance of any model up to the `largest` sizes (m,), the fewest FLOPs with the wanted one, infinite where there are none, and the likeliest models of these."""
        law, experts, most = self.search.law, self.search.best.experts, self.most
        tried = np.geomspace(LEAST_FLOPS_SHARE * np.minimum(self.search.base.training_flops, most), most, GRID_POINTS)
        budgets = [_trained_with(self.search.question, experts, flops).budget for flops in tried[::2]]
        # Loss-optimal sizes, between which those of other FLOPs follow in logarithms.
        known = np.log(tried[::2]), np.log([loss_optimal(law, budget, experts).n_params for budget in budgets])

        def likeliest(flops: FloatArray) -> tuple[Allocation, FloatArray]:
            """Of each expert count the size with the highest chance with so many FLOPs (m,), and the chance."""
            columns = zip(np.log(flops), *(values.T for values in known), strict=True)
            n = np.minimum(np.exp([np.interp(*column) for column in columns]) * SHARES[:, None], largest)
            budget = _trained_with(self.search.question, experts, flops).budget
            found = at_size(law, budget, n.ravel(), np.tile(experts, SHARES.size))
            sure = self.chance_of(found, budget).reshape(n.shape)
            sure = np.where(law.allows(experts) & np.isfinite(sure), sure, 0.0)
            best = np.argmax(sure, axis=0), np.arange(experts.size)
            return Allocation(*(getattr(found, f.name).reshape(n.shape)[best] for f in fields(found))), sure[best]

        sure = np.array([likeliest(flops)[1] for flops in tried])
        first = (sure >= self.chance).argmax(axis=0)
        low, high = (tried[np.maximum(first + side, 0), np.arange(most.size)] for side in (-1, 0))
        for _ in range(BISECTIONS):
            middle = np.sqrt(low * high)
            enough = likeliest(middle)[1] >= self.chance
            low, high = np.where(enough, low, middle), np.where(enough, middle, high)
        flops = np.where((sure >= self.chance).any(axis=0), high, np.inf)
        return float(sure.max()), flops, likeliest(np.minimum(flops, most))[0]

    def _built(self, models: Allocation, bounds: FloatArray) -> Iterator[Candidate]:
        """Models (j,) in whole layers and heads, with as many FLOPs as they then take, and their training dollars; `bounds` (j, 3) are those of `_near`."""
        search, law, costs = self.search, self.search.law, self.search.costs
        of_count = dict(zip(models.experts.tolist(), bounds.tolist(), strict=True))
        rows = [row for row in trained_models(models, costs) if isinstance(row, Candidate)]  # all in one question
        near = [self._near(row, *of_count[row.experts]) for row in rows]
        remember_prices(costs, (shape for those in near for shape, _ in those))
        for row, shape, least in ((row, *each) for row, those in zip(rows, near, strict=True) for each in those):
            for step in range(MOST_GROWTH_STEPS):
                spent = min(least * FLOPS_GROWTH**step, of_count[row.experts][1])
                question = _trained_with(search.question, np.array([row.experts]), np.array([spent]))
                priced = partial(replace(search, question=question).built, base=search.base)
                built = in_shape(law, costs, row, shape, priced)
                if built is None:
                    break
                if self.kept(model := built.model):
                    usd = question.training_usd(shape.architecture(), model.training_flops, model.tokens)
                    if math.isfinite(usd):
                        yield replace(model, training_usd=usd)
                    break

    def _near(self, row: Candidate, flops: float, most: float, largest: float) -> list[tuple[Buildable, float]]:
        """The shapes near a model that should have what is asked for with the fewest training dollars, as MFUs differ by a tenth, and the FLOPs."""
        law, question, budget = self.search.law, self.search.question, self.search.question.budget
        every = near_shapes(law, self.search.costs, row, SIZES_NEAR)
        shapes = [shape for shape in every if shape.n_params <= largest * (1.0 + SLACK)]
        shapes = shapes[:: math.ceil(len(shapes) / MOST_NEAR) or 1]
        if not shapes:
            return []
        n, e = np.array([shape.n_params for shape in shapes]), np.full(len(shapes), row.experts)
        ((alike, _),) = stacked([shape.architecture() for shape in shapes])
        # An array of each; a score is that of the family's model of the size, as the screen states it.
        own = {} if self.of_score else cast("dict[str, float]", own_inputs(law.form, alike))
        spent = np.full(n.shape, np.inf)
        for each in np.minimum(flops * FLOPS_NEAR, most)[::-1].tolist():
            of_budget = replace(budget, flops=each, by_experts=(), extra={**own, **budget.extra})
            spent[self.chance_of(at_size(law, of_budget, n, e), of_budget) >= self.chance] = each
        likely = least_of(spent * depth_factor(shapes), MOST_BILLED)
        tokens = at_size(law, replace(budget, by_experts=()), n, e).tokens * spent / budget.flops
        runs = [(shapes[i].architecture(), float(spent[i]), float(tokens[i])) for i in likely]
        usd = np.array([question.training_usd(*run) for run in runs])
        return [(shapes[likely[i]], float(spent[likely[i]])) for i in least_of(usd, MOST_PRICED)]


def least_of(values: FloatArray, most: int) -> list[int]:
    """Where the least of some values are, so many at most; none that is not finite."""
    order = np.argsort(np.where(np.isfinite(values), values, np.inf), kind="stable")[:most]
    return order[np.isfinite(values[order])].tolist()


def _trained_with(question: Question, experts: FloatArray, flops: FloatArray) -> Question:
    by_experts = tuple(zip(experts.tolist(), flops.tolist(), strict=True))
    budget = replace(question.budget, flops=float(flops.max()), by_experts=by_experts)
    return replace(question, budget=budget, max_days=None, max_training_usd=None)  # which would buy more
