"""The search of the life that costs least to train and to serve, or has the lowest loss within total dollars."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from moescale.errors import InfeasibleError, InputError
from moescale.models.architecture import Architecture
from moescale.planning.allocation import inputs_at
from moescale.planning.as_built import Built
from moescale.planning.candidate import KNOWN_SIZE, Costs, Life, Regret, Unreachable, lives
from moescale.planning.decision import each_law
from moescale.planning.draws import UNLIKELY, Draws
from moescale.planning.known import training_usd
from moescale.planning.question import inputs_of
from moescale.planning.recommend import loss_goal
from moescale.planning.search import Search, largest_size, size_bounds
from moescale.planning.total_cost import (
    Lifetime,
    LifetimeCost,
    best_within_total,
    cheapest_at_loss,
    flops_optimal,
    life_costs,
    lowest_loss,
    tokens_at_loss,
)
from moescale.planning.training_price import rate_of
from moescale.scaling_laws.law import Law
from moescale.typing import FloatArray, Real
from moescale.units import format_count, format_usd, plural

MOST_CORRECTIONS = 5  # of the loss that promises the goal, and of the tokens that dollars buy
CORRECTED = 1e-4  # of ln L, and of tokens
ROUNDED_UP = 1.005  # of dollars of three digits
MOST_DRAWS = 100  # that intervals of lives are over: a life under a draw takes a search
# Sizes at which a promise is looked at, over those that reach the loss by the law itself.
SHARES = np.geomspace(0.125, 8.0, 13)
REGRET_DRAWS = 40  # that the regret of a life is over: two searches a draw
GoalAt = Callable[[FloatArray], FloatArray]  # the loss that sizes (..., m) have to have


def _interpolated(n_params: FloatArray, goals: FloatArray) -> GoalAt:
    """The losses of other sizes (..., m) between those of sizes (s, m), rising, in logarithms; beyond them those of the ends."""

    def goal_at(n: FloatArray) -> FloatArray:
        columns = [
            np.interp(np.log(n[..., j]), np.log(own), values)
            for j, (own, values) in enumerate(zip(n_params.T, goals.T, strict=True))
        ]
        return np.stack(columns, axis=-1)

    return goal_at


@dataclass(frozen=True, slots=True)
class LifeSearch:
    """A plan's search with the dollars of a life as the objective, or with total dollars as a bound on the lowest loss."""

    search: Search
    life: Lifetime
    target: float  # the loss that is to be reached, where dollars are not given instead

    @classmethod
    def of(cls, search: Search) -> LifeSearch:
        """The search for the life that the question asks about; within total dollars at the MFU of about the lives that are found.

        The question's own price is at that of models that spend the same dollars on training alone.
        """
        question, price = search.question, search.question.training
        if question.life is None or price is None:
            raise InputError("a lifetime plan needs tokens to serve and a price of training", where="question")
        asked = cls(search, question.life, question.max_loss or search.base.loss)
        if question.total_limit is None or price.rate is None:
            return asked
        found = asked.best(math.nan, sampled=True)
        models = zip(found.experts.tolist(), found.n_params.tolist(), found.tokens.tolist(), strict=True)
        gpus, vocab_size, launch = question.n_train_gpus, question.vocab_size, price.launch
        rate = rate_of(search.law, models, price.gpu, gpus=gpus, vocab_size=vocab_size, launch=launch)
        life = replace(question, training=replace(price, rate=rate or price.rate)).life
        return asked if life is None else replace(asked, life=life)

    @property
    def served(self) -> str:
        """The tokens of a life in words."""
        return f"{format_count(self.life.served_tokens)} served tokens"

    def best(
        self, goals: Real, *, sampled: bool = False, theta: FloatArray | None = None, goal_at: GoalAt | None = None
    ) -> LifetimeCost:
        """The best life of each expert count, (m,) or under draws `theta` (k, p) (k, m): at a loss, or within total dollars."""
        question, experts = self.search.question, self.search.best.experts
        price, largest = self._sampled if sampled else self.search.costs.usd_per_mtok, self.search.largest

        def cost_of(n_params: FloatArray, counts: FloatArray) -> FloatArray:
            return np.where(n_params <= largest, price(n_params, counts), np.inf)

        if question.total_limit is not None:
            return best_within_total(self.search.law, experts, question.total_limit, self.life, cost_of, theta=theta)
        return cheapest_at_loss(self.search.law, experts, goals, self.life, cost_of, theta=theta, loss_at=goal_at)

    def rows(self) -> list[Life | Unreachable]:
        """The best life of each expert count with its probability, or why there is none."""
        found, goals = self._best_priced()
        return self.judged(lives(found, self.search.costs, self._reasons(goals)))

    def under_draws(self) -> LifetimeCost | None:
        """The best life of each expert count under some of the draws (k, m); None without draws."""
        if not len(self.search.law.draws) or self.search.question.draws == 0:
            return None
        theta, goal = self._some_draws(MOST_DRAWS)
        return self.best(goal[:, None], sampled=True, theta=theta)

    def best_counts(self, found: LifetimeCost) -> FloatArray:
        """Share of the draws under which each expert count, of those allowed, has the best life, (m,)."""
        value = found.loss if self.search.question.total_limit is not None else found.total_usd
        value = np.where(np.isfinite(value) & self.search.law.allows(self.search.best.experts), value, np.inf)
        known = np.isfinite(value).any(axis=1)
        return np.bincount(value.argmin(axis=1)[known], minlength=value.shape[1]) / max(int(known.sum()), 1)

    def at_most_as_lossy(self, one: Built[Life], other: Built[Life]) -> float | None:
        """The share of the draws under which a built life has at most the loss of another; None without draws."""
        if not len(theta := self.search.law.draws) or self.search.question.draws == 0:
            return None
        losses = (
            self._ln_losses(theta, *np.array([[m.n_params], [m.tokens], [m.experts]]), shape=each.shape.architecture())
            for each in (one, other)
            for m in (each.model,)
        )
        return float(np.mean(np.less_equal(*losses)))

    def _best_priced(self) -> tuple[LifetimeCost, FloatArray]:
        """The best lives (m,), priced exactly, and the losses that they have to have by the law.

        At a loss they are found by the sampled costs, as dollars are flat around their least; next to the largest sizes that are
        served, which samples miss by a step, and within total dollars they are searched exactly.
        """
        goals, confidence = np.full(self.search.best.experts.size, self.target), self.search.confidence
        if self.search.question.total_limit is not None:
            return self.best(goals), goals
        found, goal_at = self.best(goals, sampled=True), None
        draws = None if confidence is None else self.search.draws_at(self.search.question.max_loss)
        if confidence is not None and draws is not None:
            goals = self._promised(draws, confidence, found.n_params, goals)
            near = found.n_params * SHARES[:, None]
            goal_at = _interpolated(near, self._promised(draws, confidence, near, np.broadcast_to(goals, near.shape)))
            goals = np.maximum(goals, np.nanmax(goal_at(near), axis=0, initial=0.0, where=np.isfinite(near)))
            found = self.best(goals, sampled=True, goal_at=goal_at)
        if np.any(self.search.sampled.next_to_largest(found.n_params)):
            found = self.best(goals, goal_at=goal_at)
        tokens, n = found.tokens, np.where(np.isfinite(found.n_params), found.n_params, KNOWN_SIZE)
        if confidence is not None and draws is not None and goal_at is not None:
            promised = self._promised(draws, confidence, found.n_params, goal_at(found.n_params))
            goals = np.where(np.isnan(promised), goals, promised)  # NaN where there is no model
            tokens = self._tokens(found.n_params, goals)
        cost_of = self.search.costs.usd_per_mtok
        return life_costs(self.search.law, self.life, cost_of, n, tokens, found.experts), goals

    def _tokens(self, n_params: FloatArray, goals: FloatArray) -> FloatArray:
        """The tokens with which models of sizes (..., m) reach losses by the law, NaN where none do."""
        experts, known = self.search.best.experts, np.isfinite(n_params)
        n, most, extra = np.where(known, n_params, KNOWN_SIZE), self.life.max_tokens, self.life.extra
        return np.where(known, tokens_at_loss(self.search.law, n, experts, goals, max_tokens=most, extra=extra), np.nan)

    def _promised(self, draws: Draws, confidence: float, n_params: FloatArray, goals: FloatArray) -> FloatArray:
        """The losses of the law with which models of sizes (..., m) meet the goal with a probability of `confidence` over the draws.

        `goals` are where to begin. The margin hardly depends on the loss, so that a few corrections find it; it does on the size: more
        tokens of a smaller model are surer.
        """
        experts = self.search.best.experts
        for _ in range(MOST_CORRECTIONS):
            tokens, counts = self._tokens(n_params, goals).ravel(), np.broadcast_to(experts, n_params.shape).ravel()
            over = self._ln_losses(draws.theta, n_params.ravel(), tokens, counts) - np.log(draws.goal)[:, None]
            short = draws.quantile(over, confidence)
            goals = goals * np.exp(np.where(np.isnan(short), 0.0, -short)).reshape(n_params.shape)
            if not np.any(np.abs(short) > CORRECTED):  # NaN where there is no model
                break
        return goals * (1.0 - CORRECTED)

    def extra(self, shape: Architecture | None) -> dict[str, float]:
        """The further inputs of the law: those of a life, and of a built model its own."""
        return dict(self.life.extra) if shape is None else inputs_of(self.search.law.form, shape, self.life.extra)

    def _ln_losses(
        self,
        theta: FloatArray,
        n_params: FloatArray,
        tokens: FloatArray,
        experts: FloatArray,
        shape: Architecture | None = None,
    ) -> FloatArray:
        """ln L of models (j,), or of one of a built shape, under each draw, (k, j); NaN where there is none."""
        known = np.isfinite(n_params) & np.isfinite(tokens)
        n, d = np.where(known, n_params, 1e9), np.where(known, tokens, 1e9)
        x = inputs_at(self.search.law, self.extra(shape), n, np.log(d), experts)
        return np.where(known, self.search.law.form.log_loss(theta, x), np.nan)

    def judged(self, rows: Sequence[Life | Unreachable], shape: Architecture | None = None) -> list[Life | Unreachable]:
        """The rows, or one of a built shape, with how probable it is that they meet the loss that is the goal."""
        draws = self.search.draws_at(self.search.question.max_loss)
        known = [c for c in rows if isinstance(c, Life)]
        if len(draws.theta) == 1 or self.search.question.total_limit is not None or not known:
            return list(rows)
        figures = np.array([(c.n_params, c.tokens, c.experts) for c in known])
        sure = iter(draws.probability(np.exp(self._ln_losses(draws.theta, *figures.T, shape=shape))).tolist())
        return [replace(c, probability_at_least_base=next(sure)) if isinstance(c, Life) else c for c in rows]

    def _sampled(self, n_params: FloatArray, _: FloatArray) -> FloatArray:
        usd = self.search.sampled.usd_per_mtok(n_params)
        return np.where(np.isnan(usd), np.inf, usd)

    def _some_draws(self, most: int) -> tuple[FloatArray, FloatArray]:
        """Coefficients of at most so many draws (k, p), evenly through all, and their goals (k,)."""
        draws = self.search.draws_at(self.search.question.max_loss)
        count = len(draws.theta)
        some = np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int))
        return draws.theta[some], draws.goal[some]

    def regret(self, model: Life, base: Life | None, shape: Architecture) -> Regret | None:
        """What a life loses under each law's coefficients, as a share of the base's dollars, as in `draws`; of one law, under its draws."""
        search, law = self.search, self.search.law
        if not law.members or base is None:
            return None
        if several := len(law.members) > 1:
            alone = each_law(search)
            theta, goal, weights = alone.theta, alone.goal, alone.weights
        else:
            theta, goal = self._some_draws(REGRET_DRAWS)
            weights = np.full(len(theta), 1.0 / len(theta))
        own = np.array([[model.n_params], [model.tokens], [model.experts]])
        losses = np.exp(self._ln_losses(theta, *own, shape=shape))
        goals, allowed = np.concatenate((losses, goal[:, None])), law.allows(search.best.experts)
        found = self.best(goals, sampled=True, theta=np.concatenate((theta, theta)))
        least = np.where(allowed, found.total_usd, np.inf).min(axis=1)
        worth, needed = np.minimum(least[: len(losses)], model.total_usd), least[len(losses) :]
        missing = np.where(np.isfinite(needed), np.abs(worth - needed), 0.0)
        lost = (model.total_usd - worth + missing) / base.total_usd
        worst = lost.max() if several else np.quantile(lost, UNLIKELY, method="higher")
        return Regret(expected=float(weights @ lost), worst=float(worst))

    def choose(self, rows: Sequence[Life | Unreachable]) -> tuple[Life, str]:
        """The recommended life and the rule that chose it; InfeasibleError where there is none."""
        question = self.search.question
        allowed = [c for c in rows if self.search.law.allows(c.experts)]
        known = [c for c in allowed if isinstance(c, Life)]
        if (total := question.total_limit) is not None:
            if not known:
                priced = self.search.sampled
                served = priced.served & self.search.law.allows(self.search.best.experts)
                least = float(np.exp(priced.ln_usd.min(where=served, initial=np.inf))) * self.life.served_tokens / 1e6
                raise InfeasibleError(
                    f"{format_usd(total)} do not cover {self.served} with any model: {allowed[0].infeasible}",
                    where="--max-total-usd",
                    nearest=f"more than the {format_usd(least)} that serving alone costs" if least < math.inf else None,
                    next_step="raise --max-total-usd, serve fewer --lifetime-tokens, or take a cheaper GPU",
                )
            best = min(known, key=lambda c: (c.loss, c.experts))
            return best, f"lowest loss for training and {self.served} within {format_usd(total)}"
        if not known:
            raise InfeasibleError(
                f"no size and no number of tokens reaches {loss_goal(question)}",
                nearest=f"with {plural(allowed[-1].experts, 'expert')}, {allowed[-1].infeasible}",
                next_step="relax --max-loss, allow more --max-tokens or GPUs, or consider more experts",
            )
        best = min(known, key=lambda c: (c.total_usd, c.experts))
        return best, f"lowest cost of training and {self.served} at {loss_goal(question)}"

    def rank(self, model: Life) -> float:
        """What the recommended life has the least of: loss within total dollars, else dollars."""
        return model.loss if self.search.question.total_limit is not None else model.total_usd

    def priced(self, law: Law, costs: Costs, n_params: float, tokens: float, experts: float) -> Life | None:
        """The life of one model of known size and tokens under a law and family; None where it cannot be served."""
        n, d, e = (np.array([value]) for value in (n_params, tokens, experts))
        life = replace(self.life, extra=self.extra(costs.shape))
        (row,) = lives(life_costs(law, life, costs.usd_per_mtok, n, d, e), costs, [""])
        return row if isinstance(row, Life) else None

    def least_training(self) -> Life | None:
        """The base's model that reaches the loss with the least training; None where there is none to serve."""
        law, base, experts = self.search.law, self.search.base, self.search.question.match_experts
        if (known := self.search.question.base) is not None:  # it is trained as it was
            found = self.priced(law, self.search.costs, base.n_params, base.tokens, base.experts)
            if found is None:
                return None
            training = (
                training_usd(self.search.question, known) or found.training_usd
            )  # where stated GPUs do not hold it
            serving = (
                found.serving_usd if base.usd_per_mtok is None else base.usd_per_mtok * self.life.served_tokens / 1e6
            )
            total = training + serving
            return replace(found, loss=base.loss, training_usd=training, serving_usd=serving, total_usd=total)
        least = flops_optimal(law, experts, self.target, 0.0, max_tokens=self.life.max_tokens, extra=self.life.extra)
        n, tokens = least.n_params, least.tokens
        most = largest_size(law, self.search.question, experts)
        if self.search.question.bounds_base and n[0] > most:  # a smaller one takes more tokens
            n, life = np.array([most]), self.life
            tokens = tokens_at_loss(law, n, least.experts, self.target, max_tokens=life.max_tokens, extra=life.extra)
        known = math.isfinite(n[0]) and math.isfinite(tokens[0])
        return self.priced(law, self.search.costs, float(n[0]), float(tokens[0]), experts) if known else None

    def check_total(self, model: Life) -> None:
        """InfeasibleError for a life as built, the cheapest at its loss, that takes more dollars than the question allows."""
        most, goal = self.search.question.max_total_usd, loss_goal(self.search.question)
        if most is not None and model.total_usd > most:
            raise InfeasibleError(
                f"training to {goal} and {self.served} cost about {format_usd(model.total_usd)}, more than {format_usd(most)}",
                where="--max-total-usd",
                nearest=format_usd(model.total_usd * ROUNDED_UP),
                next_step="raise --max-total-usd, or relax --max-loss",
            )

    def _reasons(self, goals: FloatArray) -> list[str]:
        """Why each expert count has no life: the dollars, the law's floor, or no GPU count that serves what reaches the loss."""
        life, experts, total = self.life, self.search.best.experts, self.search.question.total_limit
        limit = life.max_usd_per_mtok
        at = "" if limit is None else f" at {format_usd(limit)} per million output tokens or less"
        at += f" within {bounds}" if (bounds := size_bounds(self.search.question)) else ""
        if total is not None:
            served = self.served.replace(" served", "")
            return [f"no size serves {served}{at} for less than {format_usd(total)}"] * experts.size
        data = "" if life.max_tokens is None else f" with {format_count(life.max_tokens)} tokens"
        floor = lowest_loss(self.search.law, experts, max_tokens=life.max_tokens, extra=life.extra)
        return [
            f"its lowest loss is {least:.4f}{data}, above {goal:.4f}"
            if least > goal
            else f"no size that reaches a loss of {goal:.4f} can be served{at}"
            for least, goal in zip(floor.tolist(), goals.tolist(), strict=True)
        ]
