"""The search of the life that costs least to train and to serve, or has the lowest loss within total dollars, also in whole shapes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from moescale.errors import InfeasibleError
from moescale.models.architecture import Architecture
from moescale.models.family import tokens_within
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
from moescale.planning.candidate import KNOWN_SIZE, Costs, Life, Unreachable, lives, sizes_of
from moescale.planning.draws import Draws
from moescale.planning.least_training import least_of, least_training
from moescale.planning.question import own_inputs
from moescale.planning.recommend import loss_goal
from moescale.planning.search import Search, size_bounds
from moescale.planning.total_cost import (
    Lifetime,
    LifetimeCost,
    best_within_total,
    cheapest_at_loss,
    life_costs,
    lowest_loss,
    tokens_at_loss,
)
from moescale.planning.training_price import TrainingBill, TrainingPrice, timed_on
from moescale.scaling_laws.law import Law
from moescale.typing import BoolArray, FloatArray, Real
from moescale.units import format_count, format_usd, plural

MOST_CORRECTIONS = 5  # of the loss that promises the goal, and of the tokens that dollars buy
CORRECTED = 1e-4  # of ln L, and of tokens
# Sizes at which a promise is looked at, over those that reach the loss by the law itself.
SHARES = np.geomspace(0.125, 8.0, 13)
# Sizes that are built, over the best before rounding, as dollars and losses are flat there; of how many shapes training is billed, and
# serving priced on all servers.
LIFE_SIZES, MOST_BILLED, MOST_TRIED = (0.8, 1.25), 16, 5
# A factor of tokens within which the least of a shape are looked for; and halvings of it, of all shapes and then of the best.
FAR, HALVINGS = 3.0, 8
MOST_BUILT, NEAR_USD, NEAR_LOSS = 4, 0.25, 0.008  # lives that are built, and how far from the best before rounding
EDGE_USD = 2.0  # the same, as a factor, of a life next to the largest size that is served: our choice, one was built at 0.55 of its dollars

GoalAt = Callable[[FloatArray], FloatArray]  # the losses that sizes (..., m) have to have
LnLosses = Callable[[FloatArray, FloatArray], FloatArray]  # of shapes by coefficients and their tokens (s,), (.., s)


@dataclass(frozen=True, slots=True)
class LifeSearch:
    """A plan's search with the dollars of a life as the objective, or with total dollars as a bound on the lowest loss."""

    search: Search
    price: TrainingPrice
    life: Lifetime
    target: float  # the loss that is to be reached, where dollars are not given instead
    draws: Draws  # which ask for that loss

    @classmethod
    def of(cls, search: Search) -> LifeSearch:
        """The search for the life that the question asks about; within total dollars at the MFU of about the lives that are found."""
        question, life, price = search.question, search.question.life, search.question.training
        assert life is not None
        assert price is not None
        asked = cls(search, price, life, question.max_loss or search.base.loss, search.draws_at(question.max_loss))
        if not asked.by_loss or price.mfu_by_experts is None:
            return asked
        gpus, vocab_size = question.n_train_gpus, question.vocab_size
        price = timed_on(price, search.law, asked.best(math.nan, sampled=True), gpus=gpus, vocab_size=vocab_size)
        return replace(asked, life=replace(life, usd_per_flop_at=price.usd_per_flop_at))

    @property
    def by_loss(self) -> bool:
        """Whether the lowest loss within total dollars is looked for, and not the fewest dollars at a loss."""
        return self.search.question.total_limit is not None

    @property
    def served(self) -> str:
        """The tokens of a life in words."""
        return f"{format_count(self.life.served_tokens)} served tokens"

    def rank(self, model: Life) -> float:
        """What the recommended life has the least of: loss within total dollars, else dollars."""
        return model.loss if self.by_loss else model.total_usd

    def best(
        self, goals: Real, *, sampled: bool = False, theta: FloatArray | None = None, goal_at: GoalAt | None = None
    ) -> LifetimeCost:
        """The best life of each expert count, (m,) or under draws `theta` (k, p) (k, m): as `cheapest_at_loss`, or within total dollars."""
        search, law, experts = self.search, self.search.law, self.search.best.experts

        def cost_of(n_params: FloatArray, counts: FloatArray) -> FloatArray:
            usd = search.sampled.usd_per_mtok(n_params) if sampled else search.costs.usd_per_mtok(n_params, counts)
            return np.where(np.isfinite(usd) & (n_params <= search.largest), usd, np.inf)

        if (total := search.question.total_limit) is not None:
            return best_within_total(law, experts, total, self.life, cost_of, theta=theta)
        return cheapest_at_loss(law, experts, goals, self.life, cost_of, theta=theta, loss_at=goal_at)

    def rows(self) -> list[Life | Unreachable]:
        """The best life of each expert count with its probability, or why there is none."""
        search, confidence = self.search, self.search.confidence
        goals = np.full(search.best.experts.size, self.target)
        if self.by_loss:
            return lives(self.best(goals), search.costs, self._reasons(goals))
        goal_at: GoalAt | None = None
        found = self.best(goals, sampled=True)  # as dollars are flat around their least
        if confidence is not None:
            goals = self._promised(confidence, found.n_params, goals)
            sizes = found.n_params * SHARES[:, None]
            known, ln_sizes = self._promised(confidence, sizes, np.broadcast_to(goals, sizes.shape)), np.log(sizes)

            def between(n_params: FloatArray) -> FloatArray:
                columns = zip(np.moveaxis(np.log(n_params), -1, 0), ln_sizes.T, known.T, strict=True)
                return np.stack([np.interp(*column) for column in columns], axis=-1)

            goals, goal_at = np.maximum(goals, np.nan_to_num(known).max(axis=0)), between
            found = self.best(goals, sampled=True, goal_at=goal_at)
        if np.any(search.sampled.next_to_largest(found.n_params)):  # which samples miss by a step
            found = self.best(goals, goal_at=goal_at)
        tokens, n = found.tokens, np.where(np.isfinite(found.n_params), found.n_params, KNOWN_SIZE)
        if confidence is not None and goal_at is not None:
            promised = self._promised(confidence, found.n_params, goal_at(found.n_params))
            goals = np.where(np.isnan(promised), goals, promised)  # NaN where there is no model
            tokens = self._tokens(found.n_params, goals)
        priced = life_costs(search.law, self.life, search.costs.usd_per_mtok, n, tokens, found.experts)
        return self.judged(lives(priced, search.costs, self._reasons(goals)))

    def _tokens(self, n_params: FloatArray, goals: FloatArray) -> FloatArray:
        """The tokens with which models of sizes (..., m) reach losses by the law, NaN where none do."""
        law, experts, life = self.search.law, self.search.best.experts, self.life
        return tokens_at_loss(law, n_params, experts, goals, max_tokens=life.max_tokens, extra=life.extra)

    def _promised(self, confidence: float, n_params: FloatArray, goals: FloatArray) -> FloatArray:
        """The losses of the law with which models of sizes (..., m) meet the goal with such a probability over the draws; `goals` are where to begin.

        The margin hardly depends on the loss, but on the size: more tokens of a smaller model are surer.
        """
        draws, counts = self.draws, np.broadcast_to(self.search.best.experts, n_params.shape).ravel()
        for _ in range(MOST_CORRECTIONS):
            tokens = self._tokens(n_params, goals).ravel()
            over = self.ln_losses(draws.theta, n_params.ravel(), tokens, counts, None) - np.log(draws.goal)[:, None]
            short = draws.quantile(over, confidence)
            goals = goals * np.exp(-np.nan_to_num(short)).reshape(n_params.shape)
            if not np.any(np.abs(short) > CORRECTED):  # NaN where there is no model
                break
        return goals * (1.0 - CORRECTED)

    def ln_losses(
        self,
        theta: FloatArray,
        n_params: FloatArray,
        tokens: FloatArray,
        experts: FloatArray,
        shape: Architecture | None,
    ) -> FloatArray:
        """ln L of models (j,), or of some in built shapes as one, under coefficients, (..., j); NaN where there is none."""
        law, extra = self.search.law, self.life.extra
        extra = extra if shape is None else {**own_inputs(law.form, shape), **extra}
        with np.errstate(invalid="ignore"):
            return law.form.log_loss(theta, inputs_at(law, extra, n_params, np.log(tokens), experts))

    def judged(self, rows: Sequence[Life | Unreachable], shape: Architecture | None = None) -> list[Life | Unreachable]:
        """The rows, or one of a built shape, with how probable it is that they meet the loss that is the goal."""
        draws, known = self.draws, [c for c in rows if isinstance(c, Life)]
        if len(draws.theta) == 1 or self.by_loss or not known:
            return list(rows)
        figures = np.array([(c.n_params, c.tokens, c.experts) for c in known])
        sure = iter(draws.probability(np.exp(self.ln_losses(draws.theta, *figures.T, shape=shape))).tolist())
        return [replace(c, probability_at_least_base=next(sure)) if isinstance(c, Life) else c for c in rows]

    def choose(self, rows: Sequence[Life | Unreachable]) -> tuple[Life, str]:
        """The recommended life and the rule that chose it; InfeasibleError where there is none."""
        search, question, total = self.search, self.search.question, self.search.question.total_limit
        allowed = [c for c in rows if search.law.allows(c.experts)]
        known = [c for c in allowed if isinstance(c, Life)]
        if known:
            best = min(known, key=lambda c: (self.rank(c), c.experts))
            if total is None:
                return best, f"lowest cost of training and {self.served} at {loss_goal(question)}"
            return best, f"lowest loss for training and {self.served} within {format_usd(total)}"
        if total is None:
            raise InfeasibleError(
                f"no size and no number of tokens reaches {loss_goal(question)}",
                nearest=f"with {plural(allowed[-1].experts, 'expert')}, {allowed[-1].infeasible}",
                next_step="relax --max-loss, allow more --max-tokens or GPUs, or consider more experts",
            )
        served = search.sampled.served & search.law.allows(search.best.experts)
        least = float(np.exp(search.sampled.ln_usd.min(where=served, initial=np.inf))) * self.life.served_tokens / 1e6
        raise InfeasibleError(
            f"{format_usd(total)} do not cover {self.served} with any model: {allowed[0].infeasible}",
            where="--max-total-usd",
            nearest=f"more than the {format_usd(least)} that serving alone costs" if least < math.inf else None,
            next_step="raise --max-total-usd, serve fewer --lifetime-tokens, or take a cheaper GPU",
        )

    def _reasons(self, goals: FloatArray) -> list[str]:
        """Why each expert count has no life: the dollars, the law's floor, or no GPU count that serves what reaches the loss."""
        life, experts, total = self.life, self.search.best.experts, self.search.question.total_limit
        usd = life.max_usd_per_mtok
        at = "" if usd is None else f" at {format_usd(usd)} per million output tokens or less"
        at += f" within {bounds}" if (bounds := size_bounds(self.search.question)) else ""
        if total is not None:
            served = self.served.replace(" served", "")
            return [f"no size serves {served}{at} for less than {format_usd(total)}"] * experts.size
        data = "" if life.max_tokens is None else f" with {format_count(life.max_tokens)} tokens"
        floor = lowest_loss(self.search.law, experts, life)
        return [
            f"its lowest loss is {least:.4f}{data}, above {goal:.4f}"
            if least > goal
            else f"no size that reaches a loss of {goal:.4f} can be served{at}"
            for least, goal in zip(floor.tolist(), goals.tolist(), strict=True)
        ]

    def near(self, rows: Sequence[Life | Unreachable], chosen: Life) -> list[Life]:
        """The chosen life, and the next best ones of other expert counts that rounding may put before it.

        Next to the largest size that is served, rounding saves more: a wider body with fewer parameters in all takes half the tokens.
        """
        search, best = self.search, self.rank(chosen)
        others = [c for c in rows if isinstance(c, Life) and search.law.allows(c.experts) and c is not chosen]
        others.sort(key=self.rank)
        most = best * (1.0 + (NEAR_LOSS if self.by_loss else NEAR_USD))
        near = [c for c in others if self.rank(c) <= most][: MOST_BUILT - 1]
        at_edge = dict(zip(search.question.experts, search.sampled.next_to_largest(sizes_of(rows)), strict=True))
        largest = [c for c in others if at_edge[c.experts] and c not in near and self.rank(c) <= EDGE_USD * best]
        return [chosen, *near, *([] if self.by_loss else largest[:1])]

    def every_built(self, rows: Sequence[Life | Unreachable]) -> tuple[list[Built[Life]], list[str]]:
        """The best life and those near it, as built, the best first and one of an expert count, and which the stated training GPUs do not hold; InfeasibleError without any."""
        built: list[Built[Life]] = []
        refused: dict[float, InfeasibleError] = {}
        for row in self.near(rows, self.choose(rows)[0]):
            try:
                built.append(self.built(row))
            except InfeasibleError as error:
                refused[row.experts] = error
        if not built:
            raise next(iter(refused.values()))
        if not self.by_loss:
            built += self._of_least_training(rows)
        best: dict[float, Built[Life]] = {}  # of each expert count
        for each in sorted(built, key=lambda each: (bool(each.notes), self.rank(each.model))):
            best.setdefault(each.model.experts, each)
        left_out = [f"Left out: {plural(e, 'expert')}, as {error.what}." for e, error in refused.items()]
        return list(best.values()), left_out

    def _of_least_training(self, rows: Sequence[Life | Unreachable]) -> Iterator[Built[Life]]:
        """The lives of the models of least training dollars that keep the promise, which serve few tokens for the least."""
        of_counts = {row.experts: row for row in rows if isinstance(row, Life)}
        law, costs, most_usd = self.search.law, self.search.costs, self.search.question.max_usd_per_mtok
        for model in least_training(self.search):
            row, shape = of_counts.get(model.experts), model.architecture
            if row is None or shape is None or (most_usd and model.usd_per_mtok > most_usd):
                continue
            built = in_shape(law, costs, replace(row, tokens=model.tokens), shape, self._priced_as_built)
            if built is not None and (built.model.probability_at_least_base or 1.0) >= (self.search.confidence or 0.0):
                yield self._finished(row, built)

    def built(self, row: Life) -> Built[Life]:
        """A life as built, which keeps the loss that it was chosen by, or the dollars."""
        search, question, confidence = self.search, self.search.question, self.search.confidence
        max_loss = self.target if confidence is None else row.loss
        max_loss, sure = (None, None) if self.by_loss else (max_loss, confidence)
        dollars = question.max_usd_per_mtok, question.total_limit
        sizes = question.max_active_params, question.max_total_params
        bounds = Bounds(max_loss, *dollars, *sizes, min_probability=sure)
        built = self._best_shape(row, bounds)
        built = built or as_built(search.law, search.costs, row, self._priced_as_built, bounds)
        return self._finished(row, built)

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
        architectures = [shape.architecture() for shape in shapes]

        def losses_of(at: list[int]) -> LnLosses:
            ((alike, _),) = stacked([architectures[i] for i in at])
            return lambda theta, tokens: self.ln_losses(theta, n[at], tokens, counts[at], alike)

        ln_losses = losses_of([*range(len(shapes))])
        low = high = np.full(n.shape, row.tokens)
        if limit is None:
            low, high = self._least_tokens(ln_losses, low / FAR, high * FAR)
            tokens = np.where(high <= most, high, np.nan)
        else:
            left = limit - usd * (life.served_tokens / 1e6)
            flops = np.where(left > 0.0, left, np.nan) / life.flop_price(counts)
            tokens = np.minimum(tokens_within(law.family, flops, n, counts), most)
        each = life_costs(law, life, lambda _n, _e: usd, n, tokens, counts)
        about_usd = each.training_usd * depth_factor(shapes) + each.serving_usd
        best = least_of(about_usd if limit is None else ln_losses(law.theta, tokens), MOST_BILLED)
        if not best:
            return None
        runs = zip(best, each.training_flops[best].tolist(), tokens[best].tolist(), strict=True)
        training_usd = np.array([search.question.training_usd(architectures[i], *run) for i, *run in runs])
        if limit is None:
            value = training_usd + each.serving_usd[best]
            _, tokens[best] = self._least_tokens(losses_of(best), low[best], high[best])
        else:
            bought = tokens[best] * (limit - each.serving_usd[best]) / training_usd
            tokens[best] = np.where(np.isfinite(training_usd), np.minimum(bought, most), np.nan)
            value = losses_of(best)(law.theta, tokens[best])
        best = [best[i] for i in least_of(value, MOST_TRIED)]
        remember_prices(costs, (shapes[i] for i in best))
        found: list[Built[Life]] = []
        for i in best:
            built = in_shape(law, costs, replace(row, tokens=float(tokens[i])), shapes[i], self._priced_as_built)
            found += [built] if built is not None and met(bounds, built.model) else []
        return min(found, key=lambda built: built.model.loss if self.by_loss else self._billed_usd(built), default=None)

    def _least_tokens(self, ln_losses: LnLosses, low: FloatArray, high: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Bounds on the least tokens that keep the promise, or the target by the law itself, between two others (s,); NaN where the upper one does not."""
        search, draws = self.search, self.draws

        def keeps(tokens: FloatArray) -> BoolArray:
            if search.confidence is None or len(draws.theta) == 1:
                return np.exp(ln_losses(search.law.theta, tokens)) <= self.target
            return draws.probability(np.exp(ln_losses(draws.theta, tokens))) >= search.confidence

        known = keeps(high)
        for _ in range(HALVINGS):
            middle = np.sqrt(low * high)
            enough = keeps(middle)
            low, high = np.where(enough, low, middle), np.where(enough, middle, high)
        return low, np.where(known, high, np.nan)

    def _billed_usd(self, built: Built[Life]) -> float:
        """Total dollars of a life as built, by the bill of its training; infinite where the stated GPUs do not hold it."""
        model, shape = built.model, built.shape.architecture()
        return model.serving_usd + self.search.question.training_usd(shape, model.training_flops, model.tokens)

    def priced(self, law: Law, costs: Costs, n_params: float, tokens: float, experts: float) -> Life | None:
        """The life of one model of known size and tokens under a law and family; None where it cannot be served."""
        n, d, e = (np.array([value]) for value in (n_params, tokens, experts))
        life = replace(self.life, extra=self.search.budget_of(costs.shape).extra)
        (row,) = lives(life_costs(law, life, costs.usd_per_mtok, n, d, e), costs, [""])
        return row if isinstance(row, Life) else None

    def _priced_as_built(self, law: Law, costs: Costs, model: Life) -> Life | None:
        """The life of a built model: by its own bill where dollars are stated, and with the tokens that they leave to pay for."""
        question, shape = self.search.question, costs.shape
        found = self.priced(law, costs, model.n_params, model.tokens, model.experts)
        if found is None or shape is None:
            return None
        found = found if question.max_total_usd is None else self._billed(found, shape)
        if question.total_limit is not None:
            return self._spending(law, costs, found, shape, question.total_limit)
        return next(c for c in self.judged([found], shape) if isinstance(c, Life))

    def _spending(self, law: Law, costs: Costs, model: Life, shape: Architecture, limit: float) -> Life:
        """A built model with the most tokens that it can be trained on within the dollars; as it is where serving alone takes them."""
        within, left, most = None, limit - model.serving_usd, self.life.max_tokens or math.inf
        for _ in range(MOST_CORRECTIONS if left > 0.0 else 0):  # as the MFU depends on the tokens
            if model.total_usd <= limit and (within is None or model.tokens > within.tokens):
                within = model
            tokens = min(model.tokens * left / model.training_usd * (1.0 - CORRECTED), most)
            if within is not None and tokens <= model.tokens * (1.0 + CORRECTED):
                break
            found = self.priced(law, costs, model.n_params, tokens, model.experts)
            model = model if found is None else self._billed(found, shape)
        return within or model

    def bill(self, model: Life, shape: Architecture) -> TrainingBill:
        """What training a built model costs, as where no life is asked about."""
        return self.price.bill(shape, model.training_flops, model.tokens, self.search.question.n_train_gpus)

    def _billed(self, model: Life, shape: Architecture) -> Life:
        """A life with the dollars of that bill."""
        usd = self.bill(model, shape).usd
        return replace(model, training_usd=usd, total_usd=usd + model.serving_usd)

    def _finished(self, row: Life, built: Built[Life]) -> Built[Life]:
        """A built life by its own bill, with the intervals of the real-valued one."""
        model = replace(built.model, intervals=carried(row, built.model))
        return replace(built, model=self._billed(model, built.shape.architecture()))
