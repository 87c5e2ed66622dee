"""The decision over a model's whole life: which size, tokens and experts cost least to train and to serve."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from moescale.errors import InfeasibleError, InputError
from moescale.io.records import record
from moescale.planning.allocation import inputs_at
from moescale.planning.as_built import Bounds, as_built
from moescale.planning.candidate import Costs, Life, Regret, Unreachable, lives, with_intervals
from moescale.planning.choice import loss_goal
from moescale.planning.decision import each_law
from moescale.planning.draws import UNLIKELY
from moescale.planning.intervals import lifetime_limits
from moescale.planning.rationale import Recommendation, lifetime_caveats, lifetime_why, slow
from moescale.planning.search import Search
from moescale.planning.total_cost import (
    Lifetime,
    LifetimeCost,
    best_within_total,
    cheapest_at_loss,
    flops_optimal,
    life_costs,
    lowest_loss,
)
from moescale.planning.training_price import TrainingPrice
from moescale.scaling_laws.law import Law
from moescale.typing import FloatArray
from moescale.units import format_count, format_usd

MOST_CORRECTIONS = 5  # of the loss that promises the goal
CORRECTED = 1e-4  # of ln L
MOST_DRAWS = 100  # that intervals of lives are over: a life under a draw takes a search
REGRET_DRAWS = 40  # that the regret of a life is over: two searches a draw


@dataclass(frozen=True, slots=True, kw_only=True)
class LifetimePlan:
    """The answer: the best life of each expert count, and a recommendation.

    `least_training` is the base's model that reaches the same loss with the least training, which a plan without serving
    would choose; None where dollars are given instead of a loss.
    """

    lifetime_tokens: float
    train_gpu: str
    mfu: float
    train_usd_per_gpu_hour: float
    target_loss: float | None = None
    max_total_usd: float | None = None
    training_flops: float  # of the recommended model, as the next four
    training_gpu_hours: float
    training_usd: float
    serving_usd: float
    total_usd: float
    plans: tuple[Life | Unreachable, ...]
    least_training: Life | None = None
    recommendation: Recommendation[Life]

    def to_dict(self) -> dict[str, object]:
        """JSON-ready values; keys that do not apply are absent."""
        return record(self)


@dataclass(frozen=True, slots=True)
class LifeSearch:
    """A plan's search over the lives of its models, at a loss or within total dollars."""

    search: Search
    life: Lifetime
    training: TrainingPrice
    target: float  # the loss that is to be reached, where dollars are not given instead

    @property
    def goal(self) -> str:
        """What a life is to reach, in words."""
        return loss_goal(self.search.question)

    @property
    def served(self) -> str:
        """The tokens of a life in words."""
        return f"{format_count(self.life.served_tokens)} served tokens"

    def best(self) -> tuple[LifetimeCost, list[str]]:
        """The best life of each expert count, and why there is none where there is none."""
        law, question, cost_of = self.search.law, self.search.question, self.search.costs.usd_per_mtok
        experts = self.search.best.experts
        if (total := question.total_limit) is not None:
            limit = question.max_usd_per_mtok
            at = "" if limit is None else f" at {format_usd(limit)} per million output tokens or less"
            tokens = format_count(self.life.served_tokens)
            reason = f"no size serves {tokens} tokens{at} for less than {format_usd(total)}"
            return best_within_total(law, experts, total, self.life, cost_of), [reason] * experts.size
        goals = np.full(experts.size, self.target)
        if (confidence := self.search.confidence) is not None:
            goals = self._promising(confidence, goals)
        found = cheapest_at_loss(law, experts, goals, self.life, cost_of)
        return found, self._out_of_reach(experts, goals)

    def _promising(self, confidence: float, goals: FloatArray) -> FloatArray:
        """The losses (m,) of the law with which the goal is met with a probability of `confidence` over its draws.

        The margin hardly depends on the loss, so that a few corrections find it.
        """
        law, experts = self.search.law, self.search.best.experts
        for _ in range(MOST_CORRECTIONS):
            found = cheapest_at_loss(law, experts, goals, self.life, self._sampled)
            short = self._shortfall(found, confidence)
            goals = goals * np.exp(np.where(np.isnan(short), 0.0, -short))
            if not np.any(np.abs(short) > CORRECTED):  # NaN where there is no model
                break
        return goals * (1.0 - CORRECTED)

    def _shortfall(self, found: LifetimeCost, confidence: float) -> FloatArray:
        """By how much, in ln L, models (m,) miss the goal of the draw that is better satisfied than so many others."""
        draws = self.search.draws_at(self.search.question.max_loss)
        over = self._losses(found.n_params, found.tokens, found.experts) - np.log(draws.goal)[:, None]
        order = np.argsort(over, axis=0)
        enough = np.cumsum(draws.weights[order], axis=0) >= confidence - 1e-9
        return np.take_along_axis(np.take_along_axis(over, order, 0), enough.argmax(axis=0)[None], 0)[0]

    def _losses(self, n_params: FloatArray, tokens: FloatArray, experts: FloatArray) -> FloatArray:
        """ln L of models (j,) under each draw, (k, j); NaN where there is none."""
        known = np.isfinite(n_params)
        n, d = np.where(known, n_params, 1e9), np.where(known, tokens, 1e9)
        x = inputs_at(self.search.law, self.life.extra, n, np.log(d), experts)
        return np.where(known, self.search.law.form.log_loss(self.search.draws.theta, x), np.nan)

    def probabilities(self, rows: Sequence[Life | Unreachable]) -> list[Life | Unreachable]:
        """The rows with how probable it is that they meet the loss that is the goal."""
        draws = self.search.draws_at(self.search.question.max_loss)
        if len(draws.theta) == 1 or self.search.question.total_limit is not None:  # dollars are the goal, not a loss
            return list(rows)
        figures = [(c.n_params, c.tokens, c.experts) if isinstance(c, Life) else (np.nan, np.nan, 1.0) for c in rows]
        losses = np.exp(self._losses(*np.array(figures).T))
        sure = draws.probability(losses)
        return [
            replace(c, probability_at_least_base=float(p)) if isinstance(c, Life) else c
            for c, p in zip(rows, sure, strict=True)
        ]

    def _sampled(self, n_params: FloatArray, _: FloatArray) -> FloatArray:
        usd = self.search.sampled.usd_per_mtok(n_params)
        return np.where(np.isnan(usd), np.inf, usd)

    def under_draws(self) -> LifetimeCost:
        """The best lives (k, m) under each of the law's draws."""
        law, question, experts = self.search.law, self.search.question, self.search.best.experts
        theta, goal = self._some_draws(MOST_DRAWS)
        if question.total_limit is not None:
            return best_within_total(law, experts, question.total_limit, self.life, self._sampled, theta=theta)
        return cheapest_at_loss(law, experts, goal[:, None], self.life, self._sampled, theta=theta)

    def _some_draws(self, most: int) -> tuple[FloatArray, FloatArray]:
        """Coefficients of at most so many draws (k, p), evenly through all, and their goals (k,)."""
        draws = self.search.draws_at(self.search.question.max_loss)
        count = len(draws.theta)
        some = np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int))
        return draws.theta[some], draws.goal[some]

    def regret(self, model: Life, base: Life | None) -> Regret | None:
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
        x = inputs_at(
            law, self.life.extra, np.array([model.n_params]), np.log([model.tokens]), np.array([model.experts])
        )
        losses = np.exp(law.form.log_loss(theta, x))
        goals, experts = np.concatenate((losses, goal[:, None])), search.best.experts
        found = cheapest_at_loss(law, experts, goals, self.life, self._sampled, theta=np.concatenate((theta, theta)))
        least = np.where(law.allows(experts), found.total_usd, np.inf).min(axis=1)
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
                raise InfeasibleError(
                    f"{format_usd(total)} do not cover {self.served} with any model: {allowed[0].infeasible}",
                    where="--max-total-usd",
                    next_step="raise --max-total-usd, serve fewer --lifetime-tokens, or take a cheaper GPU",
                )
            best = min(known, key=lambda c: (c.loss, c.experts))
            return best, f"lowest loss for training and {self.served} within {format_usd(total)}"
        if not known:
            raise self._none_reaches(allowed)
        best = min(known, key=lambda c: (c.total_usd, c.experts))
        if question.max_total_usd is not None and best.total_usd > question.max_total_usd:
            raise self.exceeds_total(self.goal, best.total_usd)
        return best, f"lowest cost of training and {self.served} at {self.goal}"

    def priced(self, law: Law, costs: Costs, sizes: FloatArray, tokens: FloatArray, experts: float) -> Life | None:
        """The life of one model of known size and tokens, each (1,); None where it cannot be served."""
        found = life_costs(law, self.life, costs.usd_per_mtok, sizes, tokens, np.array([experts]))
        (row,) = lives(found, costs, [""])
        return row if isinstance(row, Life) else None

    def built(self, law: Law, costs: Costs, model: Life) -> Life | None:
        """The life of the same size and tokens under another law and family, None where it cannot be served."""
        return self.priced(law, costs, np.array([model.n_params]), np.array([model.tokens]), model.experts)

    def least_training(self) -> Life | None:
        """The base's model that reaches the loss with the least training; None where there is none to serve."""
        law, experts = self.search.law, self.search.question.match_experts
        if self.search.question.base is not None:  # it is trained as it was
            base = self.search.base
            return self.priced(law, self.search.costs, np.array([base.n_params]), np.array([base.tokens]), base.experts)
        least = flops_optimal(law, experts, self.target, 0.0, max_tokens=self.life.max_tokens, extra=self.life.extra)
        if not np.isfinite(least.n_params[0]):
            return None
        return self.priced(law, self.search.costs, least.n_params, least.tokens, experts)

    def exceeds_total(self, goal: str, total_usd: float) -> InfeasibleError:
        """The error for a life that reaches its goal for more dollars than the question allows."""
        return InfeasibleError(
            f"training to {goal} and {self.served} cost {format_usd(total_usd)} at least, "
            f"more than {format_usd(self.search.question.max_total_usd or math.inf)}",
            where="--max-total-usd",
            nearest=format_usd(total_usd),
            next_step="raise --max-total-usd, or relax --max-loss",
        )

    def _lowest_loss(self, experts: FloatArray) -> FloatArray:
        return lowest_loss(self.search.law, experts, max_tokens=self.life.max_tokens, extra=self.life.extra)

    def _out_of_reach(self, experts: FloatArray, goals: FloatArray) -> list[str]:
        """Why each expert count has no model at the loss: the law's floor, or no GPU count that serves what reaches it."""
        data = "" if self.life.max_tokens is None else f" with {format_count(self.life.max_tokens)} tokens"
        limit = self.life.max_usd_per_mtok
        at = "" if limit is None else f" at {format_usd(limit)} per million output tokens or less"
        return [
            f"its lowest loss is {least:.4f}{data}, above {goal:.4f}"
            if least > goal
            else f"no size that reaches a loss of {goal:.4f} can be served{at}"
            for least, goal in zip(self._lowest_loss(experts).tolist(), goals.tolist(), strict=True)
        ]

    def _none_reaches(self, allowed: Sequence[Life | Unreachable]) -> InfeasibleError:
        counts = np.array([c.experts for c in allowed])
        floor = self._lowest_loss(counts)
        next_step = "relax --max-loss, allow more --max-tokens or GPUs, or consider more experts"
        if floor.min() <= self.target:
            reasons = "; ".join(dict.fromkeys(c.infeasible for c in allowed if c.infeasible))
            return InfeasibleError(
                f"no model reaches {self.goal} in a lifetime plan", nearest=reasons, next_step=next_step
            )
        lowest = f"{self.search.law.name} reaches at best {floor.min():.4f}, with {counts[floor.argmin()]:g} experts"
        return InfeasibleError(
            f"no size and no number of tokens reaches {self.goal}", nearest=lowest, next_step=next_step
        )


def plan_lifetime(search: Search) -> LifetimePlan:
    """The best life among the expert counts of a plan, with intervals where the law has draws.

    Raises InfeasibleError where no expert count that the law may speak of meets the bounds or can be served, and says why.
    """
    question, training, life = search.question, search.question.training, search.question.life
    if training is None or life is None:
        raise InputError("a lifetime plan needs tokens to serve and a price of training", where="question")
    within, target = question.total_limit is not None, question.max_loss or search.base.loss
    wanted = LifeSearch(search, life, training, target)
    found, reasons = wanted.best()
    rows = wanted.probabilities(lives(found, search.costs, reasons))
    if len(search.law.draws) and question.draws != 0:
        rows = with_intervals(rows, lifetime_limits(wanted.under_draws()))
    chosen, rule = wanted.choose(rows)
    target = target if search.confidence is None else chosen.loss
    bounds = Bounds(None if within else target, question.max_usd_per_mtok, question.max_total_usd)
    built = as_built(search.law, search.costs, chosen, wanted.built, bounds)
    if built.notes and not within and question.max_total_usd is not None:
        raise wanted.exceeds_total(f"a loss of at most {target:g}", built.model.total_usd)
    base = None if within else wanted.least_training()
    (model,) = (c for c in wanted.probabilities([built.model]) if isinstance(c, Life))
    model = replace(model, regret=wanted.regret(model, base))
    hours = training.gpu_hours(model.training_flops, model.experts)
    return LifetimePlan(
        lifetime_tokens=life.served_tokens,
        train_gpu=training.gpu.name,
        mfu=float(training.mfu_at(model.experts)),
        train_usd_per_gpu_hour=training.usd_per_gpu_hour,
        target_loss=None if within else wanted.target,
        max_total_usd=question.max_total_usd,
        training_flops=model.training_flops,
        training_gpu_hours=hours,
        training_usd=model.training_usd,
        serving_usd=model.serving_usd,
        total_usd=model.total_usd,
        plans=tuple(rows),
        least_training=base,
        recommendation=Recommendation(
            model=model,
            rule=rule,
            why=lifetime_why(search, model, rule, f"{format_count(hours)} hours of {training.gpu.name}", base),
            caveats=(*slow(search, model), *built.notes, *lifetime_caveats(search, model, rows)),
            architecture=built.shape,
        ),
    )
