"""What a plan shows beside its recommendation: the best of another shape, prefill and decode apart, slower, fresh tokens, without bounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from moescale.errors import InfeasibleError
from moescale.latency import LatencySource, kernels_alone
from moescale.latency.engines import find_host
from moescale.models.recipe import most_trained_tokens
from moescale.models.rounding import Buildable, family_of
from moescale.planning.allocation import Budget
from moescale.planning.as_built import Built, stacked
from moescale.planning.candidate import Candidate, Costs, Life
from moescale.planning.life_search import LifeSearch
from moescale.planning.question import Question
from moescale.planning.recommend import Advice, recommend
from moescale.planning.search import Search, costs_of, size_bounds
from moescale.planning.total_cost import break_even_tokens
from moescale.planning.training_price import by_parts
from moescale.scaling_laws.law import Law, loss
from moescale.serving.deployment import Deployment
from moescale.serving.disaggregated import Disaggregated, apart, disaggregated
from moescale.serving.gpu_counts import cost, cost_at_rate
from moescale.serving.loads import OpenLoop

TRIED = (1e8, 1e9, 1e10)  # sizes of which a GPU serves one, if it serves a shape at all
MOST_BOUGHT, ROUNDING = 3, 1e-6  # models that days and dollars are corrected for; of a probability
MOST_LIVES = 2  # expert counts whose lives are built
MOST_RIVALS = 3  # expert counts of another shape that are built
SLOWER, FASTER = 2.0, 0.9  # times the limit of TPOT, at which a model that it binds is priced too, our choice
PRICE_STEP = 1.5  # times the price, from which on that at FASTER is said, and what would be chosen there
# Of requests, in per cent, that a stated TTFT is kept for, and full servers whose requests arrive: whole servers are then a step of 6%.
PERCENTILE, SERVERS = 99.0, 16
APART = 0.9  # of the price, at most: a price with prefill and decode apart that is said, our choice
BINDS = 0.95  # of a limit, from which on it holds a batch: passes have steps


def is_served(law: Law, question: Question, deployment: Deployment, latency: LatencySource) -> bool:
    """Whether models of the law's shape are served at all: not where the GPU's kernels for it were not measured."""
    at_any_speed = replace(deployment, max_tpot_s=None, max_ttft_s=None)
    sizes, counts = (each.ravel() for each in np.meshgrid(TRIED, question.experts))  # groups of attention have experts
    return bool(np.isfinite(costs_of(law, question, at_any_speed, latency).usd_per_mtok(sizes, counts)).any())


def best_of(search: Search, most: int | None = MOST_RIVALS) -> Advice | None:
    """The best model of a search, as built: the cheapest at the goal, or of the lowest loss, of `most` expert counts; None where there is none."""
    at_goal = search.question.budget_goal == "serve"
    served = [c for c in search.answering() if isinstance(c, Candidate) and search.law.allows(c.experts)]
    near = sorted(served, key=lambda c: c.usd_per_mtok if at_goal else c.loss)[:most]
    return recommend(search, near, in_full=False) if near else None


def _best_for(search: Search, question: Question, most: int | None = MOST_RIVALS) -> tuple[Advice, Search] | None:
    """What another question would choose by the law and the servers of a search, and its search; None where nothing answers."""
    with suppress(InfeasibleError):
        other = Search.of(search.law, question, search.costs.deployment, search.costs.latency, coarse=True)
        best = best_of(other, most)
        return best and (best, other)
    return None


def settled(search: Search, *, coarse: bool = False) -> tuple[Advice, Search] | None:
    """The best model of a search whose days or dollars buy it about the FLOPs that it was chosen with, and that search; None where there is none.

    Days and dollars buy each built model the FLOPs of its own MFU, and the sizes that are looked at those of the model that was chosen
    before. Where two models follow each other for ever, it is the better one.
    """
    found: list[tuple[Advice, Search]] = []
    while (best := best_of(search)) is not None:
        found.append((best, search))
        if (again := search.question.rebought(best.advice.model)) is None:
            return found[-1]
        if len(found) == MOST_BOUGHT:
            break
        try:
            search = Search.of(search.law, again, search.costs.deployment, search.costs.latency, coarse=coarse)
        except InfeasibleError:
            break
    return min(found, key=lambda each: _order(*each), default=None)


def _order(best: Advice, search: Search) -> tuple[bool, float]:
    """Whether a model misses its promise, and what is looked for the least of: its price, or its loss."""
    model, sure = best.advice.model, best.advice.model.probability_at_least_base
    missed = search.confidence is not None and sure is not None and sure < search.confidence - ROUNDING
    return missed, model.usd_per_mtok if search.question.goal == "serve" else model.loss


def best_life(search: Search) -> Built[Life] | None:
    """The best life of the question that the stated training GPUs hold, as built; None where there is none."""
    with suppress(InfeasibleError):
        lives, built = LifeSearch.of(search), list[Built[Life]]()
        rows = lives.rows()
        for row in lives.near(rows, lives.choose(rows)[0]):  # rounding moves dollars by more than the best two differ
            with suppress(InfeasibleError):
                built.append(lives.built(row))
            if len(built) == MOST_LIVES:
                break
        return min(built, key=lambda each: (bool(each.notes), lives.rank(each.model)), default=None)
    return None


def apart_usd(search: Search, shape: Buildable) -> float | None:
    """Dollars per million tokens of a built model with prefill and decode on GPUs of their own; None where none serves it so."""
    costs = search.costs
    if search.question.disaggregated:
        return None
    ((alike, _),) = stacked([shape.architecture()])
    (usd,) = apart(alike, costs.latency, costs.deployment).usd_per_mtok.tolist()
    return usd if math.isfinite(usd) else None


def at_percentile(
    search: Search, model: Candidate, shape: Buildable, apart_usd: float | None
) -> tuple[OpenLoop | None, Disaggregated | None]:
    """The servers of a built model that keep a limit of TTFT for PERCENTILE of requests which arrive as `cost --request-rate` has them, on the same GPUs and with prefill and decode apart; None without such a limit, and where none do.

    Apart where the plan is, or where its full servers cost less than APART of the model's price.
    """
    costs, deployment = search.costs, search.costs.deployment
    if deployment.max_ttft_s is None:
        return None, None
    together, d = not search.question.disaggregated, replace(deployment, host=find_host("in-line"))
    usd_per_s = float(d.usd_per_gpu_hour) * SERVERS * (model.gpus + (model.prefill_gpus or 0)) / 3600.0
    rate = float(f"{usd_per_s / model.usd_per_mtok * 1e6 / float(d.output_tokens):.2g}")
    architecture, source, on_same, split = shape.architecture(), kernels_alone(costs.latency), None, None
    with suppress(InfeasibleError):
        looked_at = cost(architecture, costs.latency, deployment)
        _, on_same = cost_at_rate(looked_at, architecture, source, d, rate, percentile=PERCENTILE)
    with suppress(InfeasibleError):
        if not together or (apart_usd or math.inf) < APART * model.usd_per_mtok:
            found = disaggregated(architecture, source, d, requests_per_s=rate, percentile=PERCENTILE)
            split = found if found.keeps_rate else None
    return on_same, split


def for_volume(search: Search, model: Candidate, least: Sequence[Candidate]) -> tuple[float, Life] | None:
    """A volume between what the model of `least` training and the recommended one are for, and the best life of so many served tokens, as built; None where none lies between them.

    The volume is the power of ten that is nearest to where the two cost the same in all.
    """
    if not least or search.question.lifetime_tokens is not None:
        return None
    cheap = least[0]
    tokens = break_even_tokens(model.training_usd, cheap.training_usd, model.usd_per_mtok, cheap.usd_per_mtok)
    if tokens is None:
        return None
    tokens = 10.0 ** round(math.log10(tokens))
    question, price = replace(search.question, lifetime_tokens=tokens), search.question.training
    if price is not None:  # a life is chosen with the MFU of each expert count
        experts, gpus = (*question.experts, search.base.experts), question.n_train_gpus
        budget = replace(question.budget, by_experts=())
        price = by_parts(price, search.law, budget, experts, gpus=gpus, vocab_size=question.vocab_size)
    found = best_life(replace(search, question=replace(question, training=price)))
    if found is None or not (cheap.training_usd or 0.0) < found.model.training_usd < (model.training_usd or 0.0):
        return None
    return tokens, found.model


def _at_tpot(costs: Costs, times: float) -> Costs:
    """The costs at so many times the limit of TPOT."""
    limit = times * (costs.deployment.max_tpot_s or math.inf)
    return replace(costs, deployment=replace(costs.deployment, max_tpot_s=limit))


def usd_at_tpot(search: Search, model: Candidate, shape: Buildable, times: float) -> float | None:
    """Dollars per million tokens of a built model at so many times the limit of TPOT; None where that limit does not bind, and where nothing serves it so."""
    limit = search.costs.deployment.max_tpot_s
    if limit is None or model.tpot_s is None or model.tpot_s < BINDS * limit:
        return None
    ((alike, _),) = stacked([shape.architecture()])
    (usd,) = _at_tpot(search.costs, times).cheapest(alike, every=True).usd_per_mtok.tolist()
    return usd if math.isfinite(usd) else None


def choice_at_tpot(search: Search, times: float) -> Candidate | None:
    """What the question would choose at so many times the limit of TPOT, as built; None where nothing answers."""
    other = replace(search, costs=_at_tpot(search.costs, times))
    found = _best_for(other, replace(search.question, explained=False))
    return found and found[0].advice.model


def repeats_loss(search: Search, model: Candidate) -> tuple[float, tuple[float, float] | None] | None:
    """What repeated tokens add to the loss of a model, and 90% of the draws; None where none are repeated."""
    budget, law = search.question.budget, search.law
    if model.tokens <= budget.extra.get("unique_tokens", math.inf):
        return None
    theta = np.concatenate((law.theta[None], law.draws))
    n, d, e = model.n_params, model.tokens, model.experts
    with_, without = (loss(law, n, d, e, extra=extra, theta=theta) for extra in (budget.extra, _fresh(budget)))
    more = (with_ - without).tolist()
    low, high = np.quantile(more[1:], (0.05, 0.95)).tolist() if len(more) > 1 else (math.nan, math.nan)
    return more[0], (low, high) if low < high else None


def _fresh(budget: Budget) -> dict[str, float]:
    """The further inputs of a law, without a bound on unique tokens."""
    return {name: value for name, value in budget.extra.items() if name != "unique_tokens"}


def fresh_usd(search: Search) -> float | None:
    """Dollars a million tokens of the model that the question would choose if no token were repeated, as built."""
    budget = replace(_of_any_epochs(search.question.budget), extra=_fresh(search.question.budget))
    fresh = _best_for(search, replace(search.question, budget=budget), most=None)
    return fresh and fresh[0].advice.model.usd_per_mtok


def more_epochs(search: Search) -> Candidate | None:
    """The model that the question would choose without `max_epochs`, as built, with its training dollars; None where that has no more."""
    budget = search.question.budget
    if budget.max_epochs is None:
        return None
    more = _best_for(search, replace(search.question, budget=_of_any_epochs(budget)), most=None)
    if more is None or more[0].advice.model.tokens <= (budget.max_tokens or 0.0):
        return None
    return replace(more[0].advice.model, training_usd=more[0].use.usd)


def _of_any_epochs(budget: Budget) -> Budget:
    """The budget with the tokens that it has where nothing bounds the epochs."""
    return budget if budget.max_epochs is None else replace(budget, max_tokens=most_trained_tokens(), max_epochs=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class WithoutBounds:
    """The model that would be chosen without bounds on parameters, as built, and the chance that the decided one reaches the loss of that plan's baseline."""

    model: Candidate
    chance: float | None = None


def without_bounds(search: Search, model: Candidate, shape: Buildable) -> WithoutBounds | None:
    """What bounds on parameters leave out; None without any, and where nothing else would be chosen."""
    question, law = search.question, search.law
    if not size_bounds(question):
        return None
    stated = question.base if question.base is None or not question.base.planned else None
    free = replace(question, max_active_params=None, max_total_params=None, base=stated, explained=False, against=())
    if (found := _best_for(search, free)) is None or found[0].advice.architecture == shape:
        return None
    best, other = found
    draws, n, e = other.draws, np.array([model.n_params]), np.array([model.experts])
    of_shape = replace(draws, budget=other.budget_of(shape.architecture(), model))
    losses = of_shape.losses(n, e, replace(law, family=family_of(shape, law.family)))
    sure = float(draws.probability(losses)[0]) if len(draws.theta) > 1 else None
    return WithoutBounds(model=best.advice.model, chance=sure)
