"""A plan's own questions put to other laws: each in its own units, served alike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from moescale.errors import InfeasibleError
from moescale.planning.candidate import Candidate
from moescale.planning.lifetime_plan import LifetimePlan, plan_lifetime
from moescale.planning.question import Question
from moescale.planning.search import Search, choose
from moescale.planning.second_laws import Answer, Asked, SecondOpinion, budget_of_loss, loss_of_base, opinions
from moescale.scaling_laws.covariates import known_to
from moescale.scaling_laws.law import Law
from moescale.units import expert_model, format_count, format_flops, format_usd


def budget_opinions(search: Search, model: Candidate, others: Sequence[Law]) -> tuple[SecondOpinion, ...]:
    """What other laws answer to the question of the budget, to which a search recommends a model."""
    question, same_loss = search.question, _carried_budget(search)
    base = f"its own loss-optimal {expert_model(question.match_experts)}"
    if question.cost_limit is not None:
        words, share_of = (
            f"lowest loss at {format_usd(question.cost_limit)} a million tokens or less",
            f"that of {base}",
        )
    else:
        words = f"cheapest to serve at {_goal(question, same_loss)}"
        share_of = "that model's cost" if question.max_loss is None else f"the cost of {base}"

    def answer(found: Search, model: Candidate) -> Answer:
        usd, base = model.usd_per_mtok, found.base
        return Answer(law=found.law, model=model, usd=usd, base_usd=base.usd_per_mtok, base_loss=base.loss)

    def other_answer(other: Law) -> Answer:
        found = _search_of(other, search, same_loss)
        return answer(found, choose(found, found.answering())[0])

    by_loss = question.cost_limit is not None
    asked = Asked(question=words, share_of=share_of, unit="a million tokens", by_loss=by_loss)
    return opinions(other_answer, answer(search, model), others, asked)


def life_opinions(search: Search, life: LifetimePlan, others: Sequence[Law]) -> tuple[SecondOpinion, ...]:
    """What other laws answer to the question of the model's whole life, whose plan by a search's own law is `life`."""
    question, same_loss = search.question, _carried_budget(search)
    base, served = (
        expert_model(question.match_experts),
        f"training and {format_count(life.lifetime_tokens)} served tokens",
    )
    if question.total_limit is not None:
        words = f"lowest loss for {served} within {format_usd(question.total_limit)}"
        share_of = f"that of its own loss-optimal {base} of {format_flops(question.budget.flops)} FLOPs"
    else:
        words = f"fewest dollars for {served} at {_goal(question, same_loss)}"
        share_of = f"the dollars of its own {base} that takes the least training"

    def answer(found: Search, life: LifetimePlan) -> Answer:
        model, least = life.recommendation.model, life.least_training
        usd = None if least is None else least.total_usd
        return Answer(law=found.law, model=model, usd=model.total_usd, base_usd=usd, base_loss=found.base.loss)

    def other_answer(other: Law) -> Answer:
        found = _search_of(other, search, same_loss)
        return answer(found, plan_lifetime(found))

    asked = Asked(question=words, share_of=share_of, unit="in all", by_loss=question.total_limit is not None)
    return opinions(other_answer, answer(search, life), others, asked)


def _carried_budget(search: Search) -> float | None:
    """The budget whose loss-optimal base has the loss that the question bounds: with it another law is asked in its units."""
    question = search.question
    if question.max_loss is None:
        return None
    return budget_of_loss(search.law, question.budget, question.match_experts, question.max_loss)


def _goal(question: Question, same_loss: float | None) -> str:
    """The loss of the question as every law can be asked for it."""
    base = f"its own loss-optimal {expert_model(question.match_experts)}"
    if question.max_loss is None:
        return f"the loss of {base}"
    return f"the loss of {base} of {format_flops(same_loss or math.nan)} FLOPs, which is --max-loss in its units"


def _search_of(law: Law, search: Search, same_loss: float | None) -> Search:
    """The same search under another law: with its own further inputs, and a loss in its own units."""
    question = search.question
    budget = replace(question.budget, extra=known_to(law.form, question.budget.extra))
    asked = replace(question, budget=budget, convention=None)
    found = Search.of(law, asked, search.costs.deployment, search.costs.latency)
    if question.max_loss is None:
        return found
    if same_loss is None:
        raise InfeasibleError("--max-loss has no counterpart in the units of another law")
    own = loss_of_base(found.law, budget, found.question.match_experts, same_loss)
    return replace(found, question=replace(found.question, max_loss=own))
