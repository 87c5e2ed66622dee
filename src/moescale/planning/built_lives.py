"""Lives in whole shapes: the best of all near a size, with the tokens that keep its promise or that its dollars buy."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from moescale.errors import InfeasibleError
from moescale.models.architecture import Architecture
from moescale.models.family import tokens_within
from moescale.models.rounding import Buildable
from moescale.planning.allocation import inputs_at
from moescale.planning.as_built import (
    Bounds,
    Built,
    as_built,
    carried,
    depth_factor,
    in_shape,
    met,
    near_shapes,
    remember_prices,
    stacked,
    usd_nearby,
)
from moescale.planning.candidate import Costs, Life, Unreachable, sizes_of
from moescale.planning.least_training import least_training
from moescale.planning.life_search import CORRECTED, MOST_CORRECTIONS, LifeSearch
from moescale.planning.question import own_inputs
from moescale.planning.search import Search
from moescale.planning.total_cost import Lifetime, life_costs
from moescale.planning.training_price import TrainingBill
from moescale.scaling_laws.form import Inputs
from moescale.scaling_laws.law import Law
from moescale.typing import BoolArray, FloatArray
from moescale.units import plural

# Sizes that are built, over the best before rounding, as dollars and losses are flat there; of how many shapes training is billed, and
# serving priced on all servers.
LIFE_SIZES, MOST_BILLED, MOST_TRIED = (0.8, 1.25), 16, 5
# A factor of tokens within which the least of a shape are looked for; and halvings of it, of all shapes and then of the best.
FAR, HALVINGS = 3.0, 8
MOST_BUILT, NEAR_USD, NEAR_LOSS = 4, 0.25, 0.008  # lives that are built, and how far from the best before rounding
EDGE_USD = 2.0  # the same, as a factor, of a life next to the largest size that is served: our choice, one was built at 0.55 of its dollars


def _least_of(values: FloatArray, most: int) -> list[int]:
    """Where the least of some values are, so many at most; none that is not finite."""
    values = np.where(np.isfinite(values), values, np.inf)
    return [int(i) for i in np.argsort(values, kind="stable")[:most] if np.isfinite(values[i])]


@dataclass(frozen=True, slots=True)
class BuiltLives:
    """The lives of a search as built."""

    wanted: LifeSearch

    @property
    def search(self) -> Search:
        """The plan's search."""
        return self.wanted.search

    @property
    def life(self) -> Lifetime:
        """The conditions of the lives."""
        return self.wanted.life

    def near(self, rows: Sequence[Life | Unreachable], chosen: Life) -> list[Life]:
        """The chosen life, and the next best ones of other expert counts that rounding may put before it.

        Next to the largest size that is served, rounding saves more: a wider body with fewer parameters in all takes half the tokens.
        """
        allowed = (c for c in rows if isinstance(c, Life) and self.search.law.allows(c.experts))
        by_loss, best = self.search.question.total_limit is not None, self.wanted.rank(chosen)
        most = best * (1.0 + (NEAR_LOSS if by_loss else NEAR_USD))
        others = sorted((c for c in allowed if c is not chosen), key=self.wanted.rank)
        near = [c for c in others if self.wanted.rank(c) <= most][: MOST_BUILT - 1]
        at_edge = dict(
            zip(self.search.question.experts, self.search.sampled.next_to_largest(sizes_of(rows)), strict=True)
        )
        largest = [c for c in others if at_edge[c.experts] and c not in near and self.wanted.rank(c) <= EDGE_USD * best]
        return [chosen, *near, *([] if by_loss else largest[:1])]

    def every_built(self, rows: Sequence[Life | Unreachable]) -> tuple[list[Built[Life]], list[str]]:
        """The best life and those near it, as built, the best first and one of an expert count, and which of them the stated training GPUs do not hold.

        Raises InfeasibleError where there is no life, or these hold none.
        """
        built: list[Built[Life]] = []
        refused: dict[float, InfeasibleError] = {}
        for row in self.near(rows, self.wanted.choose(rows)[0]):
            try:
                built.append(self.built(row))
            except InfeasibleError as error:
                refused[row.experts] = error
        if not built:
            raise next(iter(refused.values()))
        if self.search.question.total_limit is None:
            built += self._of_least_training(rows)
        best: dict[float, Built[Life]] = {}  # of each expert count
        for each in sorted(built, key=lambda each: (bool(each.notes), self.wanted.rank(each.model))):
            best.setdefault(each.model.experts, each)
        return list(best.values()), [
            f"Left out: {plural(e, 'expert')}, as {error.what}." for e, error in refused.items()
        ]

    def _of_least_training(self, rows: Sequence[Life | Unreachable]) -> Iterator[Built[Life]]:
        """The lives of the models of least training dollars that keep the promise, which serve few tokens for the least."""
        of_counts = {row.experts: row for row in rows if isinstance(row, Life)}
        law, costs, most_usd = self.search.law, self.search.costs, self.search.question.max_usd_per_mtok
        for model in least_training(self.search):
            if (row := of_counts.get(model.experts)) is None or (most_usd and model.usd_per_mtok > most_usd):
                continue
            if (shape := model.architecture) is None:
                continue
            built = in_shape(law, costs, replace(row, tokens=model.tokens), shape, self._priced_as_built)
            if built is not None and (built.model.probability_at_least_base or 1.0) >= (self._promise or 0.0):
                whole = replace(built.model, intervals=carried(row, built.model))
                yield replace(built, model=self._billed(whole, built.shape.architecture()))

    def built(self, row: Life) -> Built[Life]:
        """A life as built, which keeps the loss that it was chosen by, or the dollars."""
        question = self.search.question
        target = self.wanted.target if self.search.confidence is None else row.loss
        target = target if question.total_limit is None else None
        law, costs = self.search.law, self.search.costs
        sizes = question.max_active_params, question.max_total_params
        bounds = Bounds(target, question.max_usd_per_mtok, question.total_limit, *sizes, min_probability=self._promise)
        built = self._best_shape(row, bounds) or as_built(law, costs, row, self._priced_as_built, bounds)
        model = replace(built.model, intervals=carried(row, built.model))
        return replace(built, model=self._billed(model, built.shape.architecture()))

    def _best_shape(self, row: Life, bounds: Bounds) -> Built[Life] | None:
        """The best life of the shapes near the size of `row`, each with the least tokens that keep the promise, or those that the dollars buy; None where none meet the bounds.

        The price of serving has steps, by which one shape costs a tenth more than the next; the MFU of training has, too.
        """
        search, law, costs, life = self.search, self.search.law, self.search.costs, self.life
        limit, most = search.question.total_limit, life.max_tokens or math.inf
        near = near_shapes(law, costs, row, LIFE_SIZES)
        shapes = [shape for shape, allowed in zip(near, search.allowed(near).tolist(), strict=True) if allowed]
        if not shapes:
            return None
        (usd,) = usd_nearby(costs, [row], [shapes])
        n, counts = np.array([shape.n_params for shape in shapes]), np.full(usd.shape, row.experts)
        low = high = np.full(n.shape, row.tokens)
        if limit is None:
            low, high = self._least_tokens(shapes, row.experts, low / FAR, high * FAR)
            tokens = np.where(high <= most, high, np.nan)
        else:
            left = limit - usd * (life.served_tokens / 1e6)
            flops = np.where(left > 0.0, left, np.nan) / life.flop_price(counts)
            tokens = np.minimum(tokens_within(law.family, flops, n, counts), most)
        each = life_costs(law, life, lambda _n, _e: usd, n, tokens, counts)
        about_usd = each.training_usd * depth_factor(shapes) + each.serving_usd
        best = _least_of(about_usd if limit is None else self._losses(shapes, row.experts, tokens), MOST_BILLED)
        if not best:
            return None
        near, runs = [shapes[i] for i in best], np.stack((each.training_flops[best], tokens[best])).T.tolist()
        bills = (search.question.training_usd(s.architecture(), *run) for s, run in zip(near, runs, strict=True))
        training_usd = np.array(list(bills))
        if limit is None:
            value = training_usd + each.serving_usd[best]
            _, tokens[best] = self._least_tokens(near, row.experts, low[best], high[best])
        else:
            bought = tokens[best] * (limit - each.serving_usd[best]) / training_usd
            tokens[best] = np.where(np.isfinite(training_usd), np.minimum(bought, most), np.nan)
            value = self._losses(near, row.experts, tokens[best])
        best = [best[i] for i in _least_of(value, MOST_TRIED)]
        remember_prices(costs, (shapes[i] for i in best))
        found: list[Built[Life]] = []
        for i in best:
            built = in_shape(law, costs, replace(row, tokens=float(tokens[i])), shapes[i], self._priced_as_built)
            if built is not None and met(bounds, built.model):
                found.append(replace(built, model=replace(built.model, intervals=carried(row, built.model))))
        by_loss = limit is not None
        return min(found, key=lambda built: built.model.loss if by_loss else self._billed_usd(built), default=None)

    def _least_tokens(
        self, shapes: Sequence[Buildable], experts: float, low: FloatArray, high: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Bounds on the least tokens of each shape that keep the promise, or the target by the law itself without draws, between two others (s,); NaN where the upper one does not."""
        search, form, inputs = self.search, self.search.law.form, self._inputs_of(shapes, experts)
        draws = search.draws_at(search.question.max_loss)

        def keeps(tokens: FloatArray) -> BoolArray:
            if search.confidence is None or len(draws.theta) == 1:
                return np.exp(form.log_loss(search.law.theta, inputs(tokens))) <= self.wanted.target
            return draws.probability(np.exp(form.log_loss(draws.theta, inputs(tokens)))) >= search.confidence

        known = keeps(high)
        for _ in range(HALVINGS):
            middle = np.sqrt(low * high)
            enough = keeps(middle)
            low, high = np.where(enough, low, middle), np.where(enough, middle, high)
        return low, np.where(known, high, np.nan)

    def _losses(self, shapes: Sequence[Buildable], experts: float, tokens: FloatArray) -> FloatArray:
        """Losses of shapes by the law itself (s,); NaN where tokens are."""
        with np.errstate(invalid="ignore"):
            return np.exp(
                self.search.law.form.log_loss(self.search.law.theta, self._inputs_of(shapes, experts)(tokens))
            )

    def _inputs_of(self, shapes: Sequence[Buildable], experts: float) -> Callable[[FloatArray], Inputs]:
        """The law's inputs of built shapes of an expert count, by their tokens (s,)."""
        ((alike, _),) = stacked([shape.architecture() for shape in shapes])
        extra = {**own_inputs(self.search.law.form, alike), **self.life.extra}
        n, counts = np.array([shape.n_params for shape in shapes]), np.full(len(shapes), experts)
        return lambda tokens: inputs_at(self.search.law, extra, n, np.log(tokens), counts)

    def _billed_usd(self, built: Built[Life]) -> float:
        """Total dollars of a life as built, by the bill of its training; infinite where the stated GPUs do not hold it."""
        model, shape = built.model, built.shape.architecture()
        return model.serving_usd + self.search.question.training_usd(shape, model.training_flops, model.tokens)

    def _priced_as_built(self, law: Law, costs: Costs, model: Life) -> Life | None:
        """The life of a built model: by its own bill where dollars are stated, and with the tokens that they leave to pay for."""
        question, shape = self.search.question, costs.shape
        found = self.wanted.priced(law, costs, model.n_params, model.tokens, model.experts)
        if found is None or shape is None:
            return None
        if question.total_limit is not None:
            return self._spending(law, costs, self._billed(found, shape), shape, question.total_limit)
        found = found if question.max_total_usd is None else self._billed(found, shape)
        return next(c for c in self.wanted.judged([found], shape) if isinstance(c, Life))

    def _spending(self, law: Law, costs: Costs, model: Life, shape: Architecture, limit: float) -> Life:
        """A built model with the most tokens that it can be trained on within the dollars; as it is where serving alone takes them."""
        within, left, most = None, limit - model.serving_usd, self.life.max_tokens or math.inf
        for _ in range(MOST_CORRECTIONS if left > 0.0 else 0):  # as the MFU depends on the tokens
            if model.total_usd <= limit and (within is None or model.tokens > within.tokens):
                within = model
            tokens = min(model.tokens * left / model.training_usd * (1.0 - CORRECTED), most)
            if within is not None and tokens <= model.tokens * (1.0 + CORRECTED):
                break
            found = self.wanted.priced(law, costs, model.n_params, tokens, model.experts)
            model = model if found is None else self._billed(found, shape)
        return within or model

    @property
    def _promise(self) -> float | None:
        """The probability of the loss that a life keeps; None where dollars are given instead."""
        return None if self.search.question.total_limit is not None else self.search.confidence

    def bill(self, model: Life, shape: Architecture) -> TrainingBill:
        """What training a built model costs, as where no life is asked about."""
        price = self.search.question.training
        assert price is not None
        return price.bill(shape, model.training_flops, model.tokens, self.search.question.n_train_gpus)

    def _billed(self, model: Life, shape: Architecture) -> Life:
        """A life with the dollars of that bill."""
        usd = self.bill(model, shape).usd
        return replace(model, training_usd=usd, total_usd=usd + model.serving_usd)
