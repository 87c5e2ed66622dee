"""The decision over a model's whole life: which size, tokens and experts cost least to train and to serve."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from moescale.errors import InfeasibleError
from moescale.io.records import Record
from moescale.planning.as_built import Built
from moescale.planning.candidate import Life, Unreachable
from moescale.planning.intervals import lifetime_limits, with_intervals
from moescale.planning.known import training_usd
from moescale.planning.life_search import LifeSearch
from moescale.planning.rationale import (
    Recommendation,
    caveats,
    lifetime_why,
    open_counts,
    over_fitted,
    undecided,
)
from moescale.planning.recommend import loss_goal
from moescale.planning.search import Search, largest_size
from moescale.planning.total_cost import LifetimeCost, flops_optimal, tokens_at_loss
from moescale.typing import FloatArray
from moescale.units import format_count, format_usd

MOST_DRAWS = 100  # that intervals of lives are over: a life under a draw takes a search
ROUNDED_UP = 1.005  # of dollars of three digits


@dataclass(frozen=True, slots=True, kw_only=True)
class LifetimePlan(Record):
    """The answer: the best life of each expert count, and a recommendation."""

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
    least_training: Life | None = None  # of the base at the same loss; of stated dollars its best life within them
    recommendation: Recommendation[Life]


def plan_lifetime(search: Search) -> LifetimePlan:
    """The best life among the expert counts of a plan, with intervals where the law has draws; InfeasibleError says why there is none."""
    lives, question = LifeSearch.of(search), search.question
    rows, drawn, within = lives.rows(), _under_draws(lives), lives.by_loss
    rows = rows if drawn is None else with_intervals(rows, lifetime_limits(drawn))
    rule = lives.choose(rows)[1]
    # Rounding moves the dollars of a life by more than the best of several expert counts differ.
    every, left_out = lives.every_built(rows)
    built, model = every[0], every[0].model
    base, most, goal = None, question.max_total_usd, loss_goal(question)
    if not within:
        if most is not None and model.total_usd > most:
            raise InfeasibleError(
                f"training to {goal} and {lives.served} cost about {format_usd(model.total_usd)}, more than {format_usd(most)}",
                where="--max-total-usd",
                nearest=format_usd(model.total_usd * ROUNDED_UP),
                next_step="raise --max-total-usd, or relax --max-loss",
            )
        base = _least_training(lives)
    elif of_base := [row for row in rows if isinstance(row, Life) and row.experts == question.match_experts]:
        with suppress(InfeasibleError):  # the stated GPUs do not hold it
            base_built = lives.built(of_base[0])
            base, sure = base_built.model, drawn and _at_most_as_lossy(lives, built, base_built)
            model = replace(model, probability_at_least_base=sure)
    # Of dollars in all, the baseline is what these buy, and not what they would train alone.
    compared = replace(search, base=base) if within and base else search
    others = [each.model for each in every[1:] if not each.notes]
    rivals = [] if drawn is None else open_counts(search, _best_counts(lives, drawn), model, others)
    bill = lives.bill(model, built.shape.architecture())
    hours = 24.0 * bill.gpu_days
    return LifetimePlan(
        lifetime_tokens=lives.life.served_tokens,
        train_gpu=lives.price.gpu.name,
        mfu=bill.mfu,
        train_usd_per_gpu_hour=lives.price.usd_per_gpu_hour,
        target_loss=None if within else lives.target,
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
            why=lifetime_why(model, rule, f"{format_count(hours)} hours of {lives.price.gpu.name}"),
            caveats=caveats(compared, model, [*built.notes, *left_out]),
            architecture=built.shape,
            undecided=undecided(search, model, rivals),
            rivals=tuple(rivals or others),
            over_fitted=over_fitted(search, model),
        ),
    )


def _under_draws(lives: LifeSearch) -> LifetimeCost | None:
    """The best life of each expert count under some of the draws, evenly through all, (k, m); None without draws."""
    if not len(lives.search.law.draws) or lives.search.question.draws == 0:
        return None
    count = len(lives.draws.theta)
    some = np.unique(np.linspace(0, count - 1, min(count, MOST_DRAWS)).round().astype(int))
    return lives.best(lives.draws.goal[some, None], sampled=True, theta=lives.draws.theta[some])


def _best_counts(lives: LifeSearch, found: LifetimeCost) -> FloatArray:
    """Share of the draws under which each expert count, of those allowed, has the best life, (m,)."""
    value = found.loss if lives.by_loss else found.total_usd
    value = np.where(np.isfinite(value) & lives.search.law.allows(lives.search.best.experts), value, np.inf)
    known = np.isfinite(value).any(axis=1)
    return np.bincount(value.argmin(axis=1)[known], minlength=value.shape[1]) / max(int(known.sum()), 1)


def _at_most_as_lossy(lives: LifeSearch, *built: Built[Life]) -> float:
    """The share of the draws under which a built life has at most the loss of another."""
    losses = (
        lives.ln_losses(lives.search.law.draws, *np.array([[m.n_params], [m.tokens], [m.experts]]), shape=shape)
        for m, shape in ((each.model, each.shape.architecture()) for each in built)
    )
    return float(np.mean(np.less_equal(*losses)))


def _least_training(lives: LifeSearch) -> Life | None:
    """The base's model that reaches the loss with the least training; None where there is none to serve."""
    search, question, life = lives.search, lives.search.question, lives.life
    law, base, experts = search.law, search.base, question.match_experts
    if (known := question.base) is not None:  # it is trained as it was
        found = lives.priced(law, search.costs, base.n_params, base.tokens, base.experts)
        if found is None:
            return None
        training = training_usd(question, known) or found.training_usd  # where stated GPUs do not hold it
        own, served = base.usd_per_mtok, life.served_tokens
        serving = found.serving_usd if own is None else own * served / 1e6
        total = training + serving
        return replace(found, loss=base.loss, training_usd=training, serving_usd=serving, total_usd=total)
    least = flops_optimal(law, experts, lives.target, 0.0, max_tokens=life.max_tokens, extra=life.extra)
    n, tokens, most = least.n_params, least.tokens, largest_size(law, question, experts)
    if question.bounds_base and n[0] > most:  # a smaller one takes more tokens
        n = np.array([most])
        tokens = tokens_at_loss(law, n, least.experts, lives.target, max_tokens=life.max_tokens, extra=life.extra)
    if not math.isfinite(n[0]) or not math.isfinite(tokens[0]):
        return None
    return lives.priced(law, search.costs, float(n[0]), float(tokens[0]), experts)
