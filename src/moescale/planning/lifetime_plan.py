"""The decision over a model's whole life: which size, tokens and experts cost least to train and to serve."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

from moescale.errors import InfeasibleError
from moescale.io.records import Record
from moescale.planning.built_lives import BuiltLives
from moescale.planning.candidate import Life, Unreachable
from moescale.planning.intervals import lifetime_limits, with_intervals
from moescale.planning.life_search import LifeSearch
from moescale.planning.rationale import (
    Recommendation,
    caveats,
    lifetime_why,
    open_counts,
    over_fitted,
    undecided,
)
from moescale.planning.search import Search
from moescale.units import format_count


@dataclass(frozen=True, slots=True, kw_only=True)
class LifetimePlan(Record):
    """The answer: the best life of each expert count, and a recommendation.

    `least_training` is the base's model that reaches the same loss with the least training, which a plan without serving
    would choose; where dollars are given instead of a loss, the base's best life within them.
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


def plan_lifetime(search: Search) -> LifetimePlan:
    """The best life among the expert counts of a plan, with intervals where the law has draws.

    Raises InfeasibleError where no expert count that the law may speak of meets the bounds or can be served, and says why.
    """
    wanted, question, training = LifeSearch.of(search), search.question, search.question.training
    assert training is not None
    within = question.total_limit is not None
    lives, rows, drawn = BuiltLives(wanted), wanted.rows(), wanted.under_draws()
    rows = rows if drawn is None else with_intervals(rows, lifetime_limits(drawn))
    rule = wanted.choose(rows)[1]
    # Rounding moves the dollars of a life by more than the best of several expert counts differ.
    every, left_out = lives.every_built(rows)
    built = min(every, key=lambda each: (bool(each.notes), wanted.rank(each.model)))
    if not within:
        wanted.check_total(built.model)
    own = (row for row in rows if isinstance(row, Life) and row.experts == question.match_experts)
    base, model = None if within else wanted.least_training(), built.model
    if within:
        with suppress(InfeasibleError):  # the stated GPUs do not hold it
            if (base_built := next((lives.built(row) for row in own), None)) is not None:
                base = base_built.model
                model = replace(model, probability_at_least_base=wanted.at_most_as_lossy(built, base_built))
    model = replace(model, regret=wanted.regret(model, base, built.shape.architecture()))
    # Of dollars in all, the baseline is what these buy, and not what they would train alone.
    compared = replace(search, base=base) if within and base else search
    others = [each.model for each in every if each is not built and not each.notes]
    rivals = [] if drawn is None else open_counts(search, wanted.best_counts(drawn), model, others)
    bill = lives.bill(built.model, built.shape.architecture())
    hours = 24.0 * bill.gpu_days
    return LifetimePlan(
        lifetime_tokens=wanted.life.served_tokens,
        train_gpu=training.gpu.name,
        mfu=bill.mfu,
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
            why=lifetime_why(model, rule, f"{format_count(hours)} hours of {training.gpu.name}"),
            caveats=caveats(compared, model, [*built.notes, *left_out]),
            architecture=built.shape,
            undecided=undecided(search, model, rivals),
            rivals=tuple(rivals or others),
            over_fitted=over_fitted(search, model),
        ),
    )
