"""The decision over a model's whole life: which size, tokens and experts cost least to train and to serve."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from moescale.errors import InfeasibleError
from moescale.planning.as_built import Bounds, as_built
from moescale.planning.candidate import Candidate, Costs, lifetime_candidates
from moescale.planning.intervals import SampledCosts, lifetime_spread, share_of_lowest_loss
from moescale.planning.rationale import Recommendation, lifetime_caveats, lifetime_why, named
from moescale.planning.second_laws import SecondOpinion
from moescale.planning.total_cost import (
    NEAR_EQUAL,
    Lifetime,
    LifetimeCost,
    TrainingPrice,
    best_within_total,
    cheapest_at_loss,
    flops_optimal,
    life_costs,
    lowest_loss,
)
from moescale.scaling_laws.law import Law
from moescale.typing import FloatArray
from moescale.units import format_count, format_usd

TOLD = 5e-4  # of a life's dollars: a size that costs this much more than the cheapest is named


@dataclass(frozen=True, slots=True, kw_only=True)
class LifetimeQuestion:
    """What a lifetime plan is asked: tokens to serve, the price of training, and the bounds.

    Without `max_total_usd` the cheapest life at `max_loss` (None: the loss of a plan's base) is looked for; with it the
    lowest loss within so many dollars, or with both the cheapest life at the loss if it stays within them.
    """

    served_tokens: float
    training: TrainingPrice
    max_total_usd: float | None = None
    max_loss: float | None = None
    max_usd_per_mtok: float | None = None
    max_tokens: float | None = None
    extra: Mapping[str, float] = field(default_factory=dict[str, float])

    @property
    def life(self) -> Lifetime:
        """The conditions as the searches take them."""
        return Lifetime(
            served_tokens=self.served_tokens,
            usd_per_flop=self.training.usd_per_flop,
            max_tokens=self.max_tokens,
            max_usd_per_mtok=self.max_usd_per_mtok,
            extra=self.extra,
        )

    @property
    def tolerance(self) -> float:
        """The share of the dollars within which the smoother choice over expert counts is taken; none below a limit."""
        return NEAR_EQUAL if self.max_total_usd is None else 0.0

    @property
    def within_dollars(self) -> bool:
        """Whether the lowest loss within dollars is asked for, instead of the fewest dollars at a loss."""
        return self.max_total_usd is not None and self.max_loss is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """The base of a plan: its expert count and loss, and its loss under each of the law's draws, (k,)."""

    experts: float
    loss: float
    losses: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class LifetimePlan:
    """The answer: the best life of each expert count, and a recommendation.

    `least_training` is the base's model that reaches the same loss with the least training, which a plan without serving
    would choose; None where dollars are given instead of a loss.
    """

    lifetime_tokens: float
    training: TrainingPrice
    target_loss: float | None
    max_total_usd: float | None
    plans: tuple[Candidate, ...]
    least_training: Candidate | None
    recommendation: Recommendation
    second_opinions: tuple[SecondOpinion, ...] = ()

    @property
    def training_gpu_hours(self) -> float:
        """GPU hours of training the recommended model."""
        return self.training.gpu_hours(self.recommendation.model.training_flops or 0.0)

    def to_dict(self) -> dict[str, object]:
        """JSON-ready values; keys that do not apply are absent."""
        model = self.recommendation.model
        record: dict[str, object] = {
            "lifetime_tokens": self.lifetime_tokens,
            "train_gpu": self.training.gpu.name,
            "mfu": self.training.mfu,
            "train_usd_per_gpu_hour": self.training.usd_per_gpu_hour,
            "target_loss": self.target_loss,
            "max_total_usd": self.max_total_usd,
            "training_flops": model.training_flops,
            "training_gpu_hours": self.training_gpu_hours,
            "training_usd": model.training_usd,
            "serving_usd": model.serving_usd,
            "total_usd": model.total_usd,
            "plans": [c.to_dict() for c in self.plans],
            "least_training": self.least_training.to_dict() if self.least_training else None,
            "recommendation": self.recommendation.to_dict(),
            "second_opinions": [opinion.to_dict() for opinion in self.second_opinions] or None,
        }
        return {key: value for key, value in record.items() if value is not None}


def plan_lifetime(
    law: Law,
    question: LifetimeQuestion,
    costs: Costs,
    experts: FloatArray,
    base: Base,
    *,
    draws: FloatArray,
    sampled: SampledCosts | None = None,
) -> LifetimePlan:
    """The best life among expert counts (m,); `draws` (k, p) of the law give intervals, priced by `sampled`.

    Raises InfeasibleError where no expert count that the law may speak of meets the bounds or can be served, and says why.
    """
    life, target = question.life, question.max_loss or base.loss
    if question.within_dollars:
        found = best_within_total(law, experts, question.max_total_usd or 0.0, life, costs.usd_per_mtok)
        reasons = [_too_dear(question)] * experts.size
    else:
        found = cheapest_at_loss(law, experts, target, life, costs.usd_per_mtok, tolerance=question.tolerance)
        reasons = _out_of_reach(law, question, experts, target)
    rows = lifetime_candidates(found, costs, reasons)
    allowed = experts <= (law.max_experts or math.inf)
    shares: FloatArray | None = None
    if len(draws) and sampled is not None:
        drawn = _under_draws(law, question, life, experts, base, draws, sampled)
        limits, shares = lifetime_spread(drawn, allowed.astype(float))
        if question.within_dollars:
            shares = share_of_lowest_loss(drawn, allowed.astype(float))
        rows = [c.with_intervals(x) for c, x in zip(rows, limits, strict=True)]
    chosen, rule = _choose(law, question, rows, target, base)

    def record(law: Law, costs: Costs, model: Candidate) -> Candidate:
        size, tokens = np.array([model.n_params or 0.0]), np.array([model.tokens or 0.0])
        priced = life_costs(law, life, costs.usd_per_mtok, size, tokens, np.array([model.experts]))
        return lifetime_candidates(priced, costs, [""])[0]

    built = as_built(law, costs, chosen, record, _bounds_of(question, target))
    model = built.model
    if built.notes and not question.within_dollars and question.max_total_usd is not None:
        raise _beyond_total(question, f"a loss of at most {target:g}", model.total_usd or 0.0)
    least = None if question.within_dollars else _least_training(law, life, costs, base.experts, target)
    return LifetimePlan(
        lifetime_tokens=question.served_tokens,
        training=question.training,
        target_loss=None if question.within_dollars else target,
        max_total_usd=question.max_total_usd,
        plans=tuple(rows),
        least_training=least,
        recommendation=Recommendation(
            model=model,
            rule=rule,
            why=lifetime_why(
                model,
                rule,
                question.training.gpu_hours(model.training_flops or 0.0),
                question.training.gpu.name,
                least,
                None if shares is None else float(shares[rows.index(chosen)]),
                at_loss=not question.within_dollars,
            ),
            caveats=(
                *built.notes,
                *lifetime_caveats(
                    law,
                    model,
                    rows,
                    question.training.mfu,
                    question.extra,
                    at_loss=not question.within_dollars,
                    loss_bound=question.max_loss is not None,
                    memory_limited=costs.deployment.max_num_seqs is None,
                    dearer={
                        float(e): float(share)
                        for e, share in zip(experts, found.above_fewest, strict=True)
                        if share >= TOLD
                    },
                ),
            ),
            architecture=built.shape,
        ),
    )


def _bounds_of(question: LifetimeQuestion, target: float) -> Bounds:
    loss = None if question.within_dollars else target
    return Bounds(loss, question.max_usd_per_mtok, question.max_total_usd)


def _under_draws(
    law: Law,
    question: LifetimeQuestion,
    life: Lifetime,
    experts: FloatArray,
    base: Base,
    draws: FloatArray,
    sampled: SampledCosts,
) -> LifetimeCost:
    """The same question under each of the law's draws, (k, m); a base's loss moves with the draw, a given one does not."""

    def cost_of(n_params: FloatArray, _: FloatArray) -> FloatArray:
        usd = sampled.usd_per_mtok(n_params)
        return np.where(np.isnan(usd), np.inf, usd)

    if question.within_dollars:
        return best_within_total(law, experts, question.max_total_usd or 0.0, life, cost_of, theta=draws)
    target = base.losses[:, None] if question.max_loss is None else np.full((len(draws), 1), question.max_loss)
    return cheapest_at_loss(law, experts, target, life, cost_of, theta=draws, tolerance=question.tolerance)


def _least_training(law: Law, life: Lifetime, costs: Costs, experts: float, loss: float) -> Candidate | None:
    """The model of one expert count that reaches a loss with the least training; None where there is none to serve."""
    e = np.array([experts])
    least = flops_optimal(law, e, loss, 0.0, max_tokens=life.max_tokens, extra=life.extra)
    if not np.isfinite(least.n_params[0]):
        return None
    priced = life_costs(law, life, costs.usd_per_mtok, least.n_params, least.tokens, e)
    record = lifetime_candidates(priced, costs, [""])[0]
    return record if record.infeasible is None else None


def _too_dear(question: LifetimeQuestion) -> str:
    limit = question.max_usd_per_mtok
    at = "" if limit is None else f" at {format_usd(limit)} a million or less"
    return (
        f"no size serves {format_count(question.served_tokens)} tokens{at} for less than "
        f"{format_usd(question.max_total_usd or 0.0)}"
    )


def _out_of_reach(law: Law, question: LifetimeQuestion, experts: FloatArray, loss: float) -> list[str]:
    """Why each expert count has no model at the loss: the law's floor, or no GPU count that serves what reaches it."""
    floor = lowest_loss(law, experts, max_tokens=question.max_tokens, extra=question.extra)
    data = "" if question.max_tokens is None else f" with {format_count(question.max_tokens)} tokens"
    limit = question.max_usd_per_mtok
    at = "" if limit is None else f" at {format_usd(limit)} a million tokens or less"
    return [
        f"its loss never falls below {least:.4f}{data}, so never to {loss:.4f}"
        if least > loss
        else f"no size that reaches a loss of {loss:.4f} can be served{at}"
        for least in floor.tolist()
    ]


def _choose(
    law: Law, question: LifetimeQuestion, rows: list[Candidate], target: float, base: Base
) -> tuple[Candidate, str]:
    """The recommended life and the rule that chose it; InfeasibleError where there is none."""
    allowed = [c for c in rows if c.experts <= (law.max_experts or math.inf)]
    known = [c for c in allowed if c.total_usd is not None]
    limit = question.max_total_usd
    tokens = f"{format_count(question.served_tokens)} served tokens"
    if question.within_dollars:
        if not known:
            raise InfeasibleError(
                f"{format_usd(limit or 0.0)} do not pay for {tokens} of any model: {allowed[0].infeasible}",
                where="--max-total-usd",
                next_step="raise --max-total-usd, serve fewer --lifetime-tokens, or take a cheaper GPU",
            )
        best = min(known, key=lambda c: (c.loss or math.inf, c.experts))
        return best, f"lowest loss for training and {tokens} within {format_usd(limit or 0.0)}"
    goal = (
        f"a loss of at most {target:g}" if question.max_loss else f"the loss of the loss-optimal {named(base.experts)}"
    )
    if not known:
        counts = np.array([c.experts for c in allowed])
        floor = lowest_loss(law, counts, max_tokens=question.max_tokens, extra=question.extra)
        nearest = f"{law.name} falls to {floor.min():.4f} at best, with {counts[floor.argmin()]:g} experts"
        told = dict.fromkeys(c.infeasible for c in allowed if floor.min() <= target)
        raise InfeasibleError(
            f"no size and no number of tokens reaches {goal}" if not told else f"no model reaches {goal} over its life",
            nearest=nearest if not told else "; ".join(reason for reason in told if reason),
            next_step="relax --max-loss, allow more --max-tokens or GPUs, or consider more experts",
        )
    best = min(known, key=lambda c: (c.total_usd or math.inf, c.experts))
    if limit is not None and (best.total_usd or 0.0) > limit:
        raise _beyond_total(question, goal, best.total_usd or 0.0)
    return best, f"fewest dollars for training and {tokens} at {goal}"


def _beyond_total(question: LifetimeQuestion, goal: str, total_usd: float) -> InfeasibleError:
    return InfeasibleError(
        f"training to {goal} and {format_count(question.served_tokens)} served tokens cost {format_usd(total_usd)} at "
        f"least, more than {format_usd(question.max_total_usd or 0.0)}",
        where="--max-total-usd",
        nearest=format_usd(total_usd),
        next_step="raise --max-total-usd, or relax --max-loss",
    )
