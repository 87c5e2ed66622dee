"""The models of least training dollars that keep a plan's promise, or that have a target score with a chance of MIN_CHANCE, as built."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import cast

import numpy as np

from moescale.errors import InfeasibleError
from moescale.models.rounding import Buildable
from moescale.planning.allocation import SIZES, Allocation, Budget, at_size, largest_within_cost, loss_optimal
from moescale.planning.as_built import SLACK, depth_factor, in_shape, near_shapes, remember_prices, stacked
from moescale.planning.candidate import Candidate, trained_models
from moescale.planning.question import Question, own_inputs
from moescale.planning.recommend import CHEAPER, with_scores
from moescale.planning.scores import MOST_FLOPS, chances, has_scores, stated_score
from moescale.planning.search import ANY_USD, Search
from moescale.planning.training_price import TrainingPrice
from moescale.typing import FloatArray

MIN_CHANCE = 0.8  # that the model has the target score
LEAST_FLOPS_SHARE = 1e-3  # the fewest FLOPs that are tried, over the baseline's
GRID_POINTS, BISECTIONS = 7, 10  # numbers of FLOPs on the grid, and bisections between two of them
CLOSE = 1e-3  # of the largest sizes that are served, relative
SHARES = np.geomspace(0.2, 1.6, 10)  # sizes of each budget, over the loss-optimal one
OPTIMA = 4  # numbers of FLOPs whose loss-optimal sizes are searched; those between follow in logarithms
MOST_BUILT = 2  # expert counts that are built
# Sizes of the shapes that are looked at, over the likeliest, and how many of an expert count; FLOPs with which they are tried, over its;
# of how many training is billed, and of how many serving is priced.
SIZES_NEAR, MOST_NEAR, FLOPS_NEAR = (0.8, 1.25), 64, np.geomspace(0.8, 1.25, 24)
MOST_BILLED, MOST_PRICED = 12, 3
FLOPS_GROWTH, MOST_GROWTH_STEPS = 1.01, 20  # rounding can lower the chance: FLOPs then grow in small steps

ChanceOf = Callable[[Allocation, Budget], FloatArray]  # with which models (j,) of a budget are what is asked for, (j,)


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
        found = _Spend(search, search.question.training, chance_of, MIN_CHANCE, has_score, of_score=True)
        highest, models = found.cheapest()
        return TargetSpend(
            chance=MIN_CHANCE, highest_chance=highest, model=next(iter(with_scores(search, models)), None)
        )
    return None


def least_training(search: Search) -> tuple[Candidate, ...]:
    """The models that keep the loss of a plan with its confidence for the least training dollars, the cheapest first.

    None without a price of training, and where no loss is to be reached.
    """
    if (spend := _to_promise(search)) is None:
        return ()
    with suppress(InfeasibleError):
        _, models = spend.cheapest()
        return tuple(with_scores(search, models))
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
    _, flops, _ = spend.least(
        np.fmin(np.fmin(within, search.sampled.size_within(np.array([ANY_USD]))[0]), search.largest)
    )
    flops = np.where(np.isfinite(flops), np.minimum(flops * FLOPS_GROWTH, budget.flops), budget.flops)
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

    return _Spend(search, question.training, chance_of, confidence or 1.0, keeps)


@dataclass(frozen=True, slots=True)
class _Spend:
    """The search for the fewest training dollars with which a model has what is asked for with a chance."""

    search: Search
    price: TrainingPrice
    chance_of: ChanceOf
    chance: float
    kept: Callable[[Candidate], bool]  # by a model as built
    of_score: bool = (
        False  # whether a score is asked for, whose highest chance may need the largest size that is served
    )

    def cheapest(self) -> tuple[float, list[Candidate]]:
        """The highest chance of any model, and the models of the cheapest expert counts as built, with training dollars, cheapest first."""
        search, experts = self.search, self.search.best.experts
        near = search.sampled.size_within(np.array([ANY_USD]))[0]
        most_n = np.minimum(search.largest, SIZES[-1])
        price = search.costs.usd_per_mtok
        largest = np.fmin(near, most_n)
        if self.of_score:
            largest = largest_within_cost(experts, ANY_USD, price, largest=most_n, near=near, close=CLOSE)
        highest, flops, sizes = self.least(largest)
        usd = flops * self.price.usd_per_flop_at(experts)
        near_best = [int(i) for i in np.argsort(usd)[:MOST_BUILT] if np.isfinite(usd[i])]
        models = sorted(
            self._built(near_best, np.minimum(flops, self.most), sizes), key=lambda model: model.training_usd or 0.0
        )
        best = {model.experts: model for model in reversed(models)}  # of each expert count
        return highest, [model for model in models if best[model.experts] is model]

    @property
    def most(self) -> FloatArray:
        """The most FLOPs of each expert count, (m,)."""
        question, experts = self.search.question, self.search.best.experts
        return np.broadcast_to(MOST_FLOPS if question.budget_of else question.budget.flops_at(experts), experts.shape)

    def least(self, largest: FloatArray) -> tuple[float, FloatArray, _Sizes]:
        """The highest chance of any model up to the `largest` sizes (m,), the fewest FLOPs with the wanted one, infinite where there are none, and the sizes."""
        search, most = self.search, self.most
        tried = np.geomspace(
            np.minimum(LEAST_FLOPS_SHARE * search.base.training_flops, LEAST_FLOPS_SHARE * most), most, GRID_POINTS
        )
        some = np.linspace(0, GRID_POINTS - 1, OPTIMA).round().astype(int)
        optima = [self._optimal(flops) for flops in tried[some]]
        sizes = _Sizes(np.log(tried[some]), np.log(optima), largest)
        sure = np.array([self._likeliest(flops, sizes)[1] for flops in tried])
        first = (sure >= self.chance).argmax(axis=0)
        low, high = (tried[np.maximum(first + side, 0), np.arange(most.size)] for side in (-1, 0))
        for _ in range(BISECTIONS):
            middle = np.sqrt(low * high)
            enough = self._likeliest(middle, sizes)[1] >= self.chance
            low, high = np.where(enough, low, middle), np.where(enough, middle, high)
        return float(sure.max()), np.where((sure >= self.chance).any(axis=0), high, np.inf), sizes

    def _optimal(self, flops: FloatArray) -> FloatArray:
        experts = self.search.best.experts
        return loss_optimal(
            self.search.law, _trained_with(self.search.question, experts, flops).budget, experts
        ).n_params

    def _likeliest(self, flops: FloatArray, sizes: _Sizes) -> tuple[Allocation, FloatArray]:
        """Of each expert count the size with the highest chance with so many FLOPs (m,), up to the largest that is served; and the chance."""
        law, experts = self.search.law, self.search.best.experts
        budget = _trained_with(self.search.question, experts, flops).budget
        n = np.minimum(sizes.optimal(flops) * SHARES[:, None], sizes.largest)
        found = at_size(law, budget, n.ravel(), np.tile(experts, SHARES.size))
        sure = self.chance_of(found, budget).reshape(n.shape)
        sure = np.where(law.allows(experts) & np.isfinite(sure), sure, 0.0)
        best = np.argmax(sure, axis=0), np.arange(experts.size)
        columns = (getattr(found, field.name).reshape(n.shape)[best] for field in fields(found))
        return Allocation(*columns), sure[best]

    def _built(self, counts: Sequence[int], flops: FloatArray, sizes: _Sizes) -> Iterator[Candidate]:
        """Models of some expert counts in whole layers and heads, with as many FLOPs as they then take, and their training dollars."""
        search, law, costs = self.search, self.search.law, self.search.costs
        if not counts:
            return
        models, _ = self._likeliest(flops, sizes)
        some = Allocation(*(getattr(models, f.name)[[*counts]] for f in fields(models)))
        rows = [row for row in trained_models(some, costs) if isinstance(row, Candidate)]  # all in one question
        bounds = np.stack((flops, self.most, sizes.largest)).T.tolist()
        of_count = dict(zip(search.best.experts.tolist(), bounds, strict=True))
        near = [self._near(row, *of_count[row.experts]) for row in rows]
        remember_prices(costs, (shape for those in near for shape, _ in those))
        for row, those in zip(rows, near, strict=True):
            for shape, least in those:
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
        law, budget = self.search.law, self.search.question.budget
        every = near_shapes(law, self.search.costs, row, SIZES_NEAR)
        shapes = [shape for shape in every if shape.n_params <= largest * (1.0 + SLACK)]
        shapes = shapes[:: math.ceil(len(shapes) / MOST_NEAR) or 1]
        if not shapes:
            return []
        n, e = np.array([shape.n_params for shape in shapes]), np.full(len(shapes), row.experts)
        ((alike, _),) = stacked([shape.architecture() for shape in shapes])
        # An array of each; a score is that of the family's model of the size, as the screen states it.
        own = {} if self.of_score else cast("dict[str, float]", own_inputs(law.form, alike))
        spent = np.full(n.shape, np.nan)
        for each in np.minimum(flops * FLOPS_NEAR, most).tolist():
            of_budget = replace(budget, flops=each, by_experts=(), extra={**own, **budget.extra})
            enough = np.isnan(spent) & (self.chance_of(at_size(law, of_budget, n, e), of_budget) >= self.chance)
            spent[enough] = each
        likely = np.argsort(spent * depth_factor(shapes), kind="stable")[:MOST_BILLED]  # NaN last
        models = at_size(law, replace(budget, by_experts=()), n, e)
        found: list[tuple[float, int]] = []
        for i in likely[np.isfinite(spent[likely])].tolist():
            tokens = float(models.tokens[i] * spent[i] / budget.flops)
            usd = self.search.question.training_usd(shapes[i].architecture(), float(spent[i]), tokens)
            found.append((usd, i))
        return [(shapes[i], float(spent[i])) for usd, i in sorted(found)[:MOST_PRICED] if math.isfinite(usd)]


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Loss-optimal sizes of m expert counts at some numbers of FLOPs, in logarithms (f, m), and the largest that are served (m,)."""

    ln_flops: FloatArray
    ln_optimal: FloatArray
    largest: FloatArray

    def optimal(self, flops: FloatArray) -> FloatArray:
        """About the loss-optimal sizes with so many FLOPs, (m,)."""
        columns = zip(np.log(flops), self.ln_flops.T, self.ln_optimal.T, strict=True)
        return np.exp([np.interp(at, known, n) for at, known, n in columns])


def _trained_with(question: Question, experts: FloatArray, flops: FloatArray) -> Question:
    by_experts = tuple(zip(experts.tolist(), flops.tolist(), strict=True))
    budget = replace(question.budget, flops=float(flops.max()), by_experts=by_experts)
    return replace(question, budget=budget, max_days=None, max_training_usd=None)  # which would buy more
