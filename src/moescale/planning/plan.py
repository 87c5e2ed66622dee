"""The decision: from a law, a budget and a deployment to a recommended model, with its reasons and its caveats."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial

import numpy as np

from moescale.errors import InfeasibleError, MoescaleError
from moescale.hardware.precisions import format_of_bytes
from moescale.io.records import record
from moescale.latency import LatencySource
from moescale.models.coordinates import expansion
from moescale.models.family import architecture
from moescale.planning.allocation import Budget
from moescale.planning.as_built import Bounds, Built, as_built, nearest_shape, with_prices
from moescale.planning.candidate import Candidate, CostCurve, Life, Row, Trained, sizes_of, whole, with_intervals
from moescale.planning.choice import choose, loss_goal, rank, too_dear
from moescale.planning.decision import Choices, LawView, choices, law_views
from moescale.planning.intervals import at_loss_limits, loss_limits, optima_limits
from moescale.planning.known import KnownRow, known_rows
from moescale.planning.lifetime_plan import LifeSearch, LifetimePlan, plan_lifetime
from moescale.planning.question import Objective, Question, ladder, only_experts, release_notes
from moescale.planning.rationale import (
    Recommendation,
    TrainingUse,
    caveats,
    compute_ratio,
    no_interval_words,
    open_counts,
    slow,
    training_use,
    training_words,
    undecided,
    why,
)
from moescale.planning.scores import scores_of
from moescale.planning.search import Search
from moescale.scaling_laws.law import Law, loss
from moescale.serving.accuracy import Accuracy, accuracy_of
from moescale.serving.deployment import Deployment, batch_cap, reserved_bytes
from moescale.serving.gpu_counts import laid_out
from moescale.serving.host import NO_OVERHEAD

MOST_PLANS = 5  # that are made to meet days or dollars of training
NEAR = 0.02  # of these
EQUAL = 0.01  # relative difference of two prices that decides nothing
LEAST_SERVED = 1e6  # tokens of a life that is worth its training alone
MOST_RIVALS, CHEAPER = 3, 0.05  # expert counts of another shape that are built; what makes it worth naming
FOR_NOTHING = 0.005  # of loss: what a lower one at an equal price is taken for
OVER = 0.001  # share that they may be exceeded by: 30 days still print as 30
BASE = ("base_experts", "base_loss", "base_usd_per_mtok", "lifetime_infeasible")  # what a record nests
LISTS = (
    "laws",
    "known",
    "shapes",
    "built",
    "excluded_experts",
    "least_training",
)  # that a record lacks where they are empty
LIMITS = (
    "memory_fraction",
    "utilization",
    "weight_bytes_per_param",
    "kv_bytes_per_element",
    "expert_parallel",
    "max_ttft_s",
    "max_tpot_s",
)  # of a deployment that an answer rests on


@dataclass(frozen=True, slots=True)
class ShapeChoice:
    """The model to train of one shape of models, as built, and the dollars of its training where they are known."""

    shape: str
    model: Candidate | Life
    training_usd: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The answer of `plan`: every allocation that matters for one budget, and a recommendation."""

    __pydantic_config__ = {"allow_inf_nan": False, "arbitrary_types_allowed": True}  # noqa: RUF012  # as plan_file reads it

    budget_flops: float
    law: str
    convention: str
    gpu: str
    latency_source: str
    usd_per_gpu_hour: float
    prompt_tokens: float
    output_tokens: float
    base_experts: float
    base_loss: float
    base_usd_per_mtok: float | None = None
    base_name: str = "the loss-optimal model"
    base: Candidate | Trained | None = None  # None in files of before it was there
    base_as_built: Candidate | None = None  # in whole layers and heads; None where `base` is built or cannot be served
    built: tuple[Candidate, ...] = ()  # the model of each expert count that answers, in whole layers and heads
    loss_optimal: tuple[Candidate | Trained, ...]
    bounded_loss: tuple[Row, ...]
    bounded_cost: tuple[Row, ...]
    frontier: tuple[Candidate, ...]
    recommendation: Recommendation[Candidate]
    warnings: tuple[str, ...] = ()
    asked: Mapping[str, object] = field(default_factory=dict[str, object], compare=False)  # bounds and serving limits
    curves: tuple[CostCurve, ...] = field(default=(), repr=False, compare=False)  # what a figure draws
    training: TrainingUse | None = None  # None in files of before it was there
    lifetime: LifetimePlan | None = None  # where the question has a price of training
    lifetime_infeasible: str | None = None  # why it has no answer
    objective: Objective = "serve"
    confidence: float | None = None
    laws: tuple[LawView, ...] = ()  # of an ensemble
    choices: Choices = field(default_factory=Choices)
    known: tuple[KnownRow, ...] = ()  # that the question names
    excluded_experts: tuple[float, ...] = ()  # beyond what the law was fitted to: shown, never recommended
    shapes: tuple[ShapeChoice, ...] = ()  # where several were compared, the best first
    other_shape: ShapeChoice | None = None  # the best model of another shape, where that is better
    least_training: tuple[
        Life, ...
    ] = ()  # that keep the promise as built, the cheapest to train first, where no budget is stated
    repeats_loss: float | None = None  # what repeated tokens add to the loss of the model to train
    repeats_loss_interval: tuple[float, float] | None = None  # that holds 90% of the law's draws
    fresh_usd_per_mtok: float | None = None  # of the model that would be trained if no token were repeated
    default_law: Candidate | None = None  # what the default law would choose, with its loss by the law that was named
    unbounded: Candidate | None = None  # the choice among all expert counts of the law, where it is another one
    accuracy: Accuracy | None = None  # of the prices, where held-out measurements of the recommended kind were compared

    @property
    def built_base(self) -> Candidate | Trained:
        """The baseline that a model as built is compared with: as built itself, else as it is."""
        own = self.base_as_built or self.base
        return own or next(c for c in self.loss_optimal if c.experts == self.base_experts)

    @property
    def voting_laws(self) -> tuple[LawView, ...]:
        """The laws whose draws the decision rests on, where they are several; others are shown beside it."""
        return tuple(view for view in self.laws if view.weight > 0.0)

    @property
    def is_baseline(self) -> bool:
        """Whether the model to train is the baseline itself, as built."""
        model, base = self.decision.model, self.base_as_built
        return base is not None and (model.experts, model.n_params) == (base.experts, base.n_params)

    @property
    def decision(self) -> Recommendation[Candidate] | Recommendation[Life]:
        """What to train: of the whole life where that is the objective, else of the budget."""
        whole_life = self.objective == "lifetime" and self.lifetime is not None
        return self.lifetime.recommendation if whole_life and self.lifetime else self.recommendation

    @property
    def of_life(self) -> bool:
        """Whether the whole life decides, and not the budget alone."""
        return self.decision is not self.recommendation

    def to_dict(self) -> dict[str, object]:
        """The record of the command line's contract."""
        base, usd = whole(self.base_experts), self.base_usd_per_mtok
        told = record(
            self,
            without=(
                *BASE,
                *(name for name in LISTS if not getattr(self, name)),
            ),
        )
        told["bounded_loss"] = {"base_experts": base, "loss": self.base_loss, "plans": told["bounded_loss"]}
        priced = {} if usd is None else {"usd_per_mtok": usd}
        told["bounded_cost"] = {"base_experts": base, **priced, "plans": told["bounded_cost"]}
        if self.excluded_experts:
            told["excluded_experts"] = [whole(e) for e in self.excluded_experts]
        told["decided_by"] = "recommendation" if self.decision is self.recommendation else "lifetime.recommendation"
        told["curves"] = [c.to_dict() for c in self.curves if np.isfinite(c.usd_per_mtok).any()]
        if self.lifetime_infeasible is not None:
            told["lifetime"] = {"infeasible": self.lifetime_infeasible}
        return told


def make_plan(law: Law, question: Question, deployment: Deployment, latency: LatencySource) -> Plan:
    """The plan of one training budget under a law and a deployment.

    The base is the loss-optimal model with `question.match_experts` experts. Days and dollars of training buy FLOPs at the MFU
    of the model that they are spent on: of a few plans it is the largest that stays within them. Raises InfeasibleError when no
    model meets the bounds or none can be served, InputError for impossible questions.
    """
    answer = _plan_of_budget(law, question, deployment, latency)
    found: list[tuple[float, Plan]] = []
    scale, low, high = (
        1.0,
        0.0,
        math.inf,
    )  # of the MFUs that the budget is bought at: tried, within the limits, beyond them
    for _ in range(MOST_PLANS):
        use = answer.training
        ratio = None if use is None else _of_limits(question, use)
        if ratio is None or use is None or use.mfu is None or use.mfu_from == "stated" or answer.lifetime is not None:
            return answer
        found.append((ratio, answer))
        if -NEAR < ratio - 1.0 < OVER or (ratio < 1.0 and answer.budget_flops == question.max_flops):
            return answer
        low, high = (max(low, scale), high) if ratio <= 1.0 + OVER else (low, min(high, scale))
        scale = scale / ratio if low < scale / ratio < high else math.sqrt(low * high)
        answer = _plan_of_budget(law, question.bought_at(scale), deployment, latency)
    within = [each for each in found if each[0] <= 1.0 + OVER]
    return max(within, key=lambda each: each[0])[1] if within else min(found, key=lambda each: each[0])[1]


def _of_limits(question: Question, use: TrainingUse) -> float | None:
    """The days and dollars that a training takes over those that are stated, the larger share; None without either."""
    pairs = (use.days, question.max_days), (use.usd, question.max_training_usd)
    shares = [taken / limit for taken, limit in pairs if taken is not None and limit is not None]
    return max(shares, default=None)


def beside_shape(
    plan: Plan, shape: str, law: Law, question: Question, deployment: Deployment, latency: LatencySource
) -> Plan:
    """The plan with the best model of another shape, that of `law`, where it is better; `question` has the plan's baseline.

    Its expert count is the cheapest at the goal, as built, and not of least regret. What days and dollars buy is corrected once.
    """
    with suppress(MoescaleError):
        found = _other_shape(law, question, deployment, latency)
        over = _of_limits(question, found.use) if found is not None else None
        if over is not None and over > 1.0 + OVER:
            found = _other_shape(law, question.bought_at(1.0 / over), deployment, latency)
        if found is None:
            return plan
        other, own = found.advice.model, plan.decision.model
        better = (
            other.loss < own.loss - FOR_NOTHING
            if question.budget_goal != "serve"
            else other.usd_per_mtok < (1.0 - CHEAPER) * own.usd_per_mtok
        )
        if better:
            return replace(plan, other_shape=ShapeChoice(shape, other, found.use.usd))
    return plan


def _other_shape(law: Law, question: Question, deployment: Deployment, latency: LatencySource) -> _Advice | None:
    search = Search.of(law, question, deployment, latency, coarse=True)
    served = [c for c in search.answering() if isinstance(c, Candidate) and search.law.allows(c.experts)]
    to_loss = question.budget_goal == "serve"
    near = sorted(served, key=lambda c: c.usd_per_mtok if to_loss else c.loss)[:MOST_RIVALS]
    return _recommendation(search, near, promised=to_loss) if near else None


def best_of_shapes(plans: Mapping[str, Plan]) -> Plan:
    """Of the plans of one question for several shapes that of the best model, with all models beside it.

    Best is what the question looks for: dollars of a life, the loss, or dollars per token.
    """

    def key(plan: Plan) -> float:
        model = plan.decision.model
        if plan.objective in ("quality", "loss") or (plan.of_life and "max_total_usd" in plan.asked):
            return model.loss
        return model.total_usd if isinstance(model, Life) else model.usd_per_mtok

    ordered = sorted(plans.items(), key=lambda item: key(item[1]))
    usd = [None if plan.training is None else plan.training.usd for _, plan in ordered]
    shapes = [ShapeChoice(name, plan.decision.model, spent) for (name, plan), spent in zip(ordered, usd, strict=True)]
    return replace(ordered[0][1], shapes=tuple(shapes))


def _plan_of_budget(law: Law, question: Question, deployment: Deployment, latency: LatencySource) -> Plan:
    search = Search.of(law, question, deployment, latency)
    draws = search.draws if len(search.law.draws) and question.draws != 0 else None
    base, sampled = search.base, search.sampled
    best = with_intervals(search.optima, draws and optima_limits(draws, sampled))
    at_loss = search.at_loss()
    at_loss = with_intervals(at_loss, draws and at_loss_limits(draws, sampled, base.usd_per_mtok, sizes_of(at_loss)))
    at_cost: list[Row] = []
    if base.usd_per_mtok is not None and question.explained:
        at_cost = search.within_cost(base.usd_per_mtok)
        at_cost = with_intervals(at_cost, draws and loss_limits(draws, sizes_of(at_cost)))
    lifetime, no_life = _lifetime(search)
    named = [*([] if question.base is None else [question.base]), *question.against]
    notes = [*search.notes, *_notes(search, no_life), *release_notes(named, deployment)]
    rows = (
        at_loss if search.question.max_loss is None and search.question.budget_goal == "serve" else search.answering()
    )
    goal = search.question.goal
    if lifetime is not None and not _reached(search, rows):  # a life may train longer than the budget
        instead = _reached(search, at_loss)
        notes.append(
            f"no model of {question.budget.flops:.3g} FLOPs reaches {loss_goal(search.question)}: except for its lifetime "
            f"part, this plan {f'uses the loss of {search.question.base_name}' if instead else 'is of the lowest loss'}"
        )
        relaxed = replace(search.question, max_loss=None, max_usd_per_mtok=None)
        search = replace(search, question=relaxed if instead else replace(relaxed, objective="loss"))
        rows = at_loss if instead else search.outright()
    frontier = search.frontier([*best, *at_loss, *at_cost, *rows])
    least_training = () if lifetime is not None and goal == "lifetime" else _least_training(search)
    promised = search.question.budget_goal == "serve"  # that the model reaches a loss with some probability
    if floor := _at_floor(search, rows, frontier):
        notes.append(
            f"a model of a lower loss serves for the price (within {EQUAL:.0%}) of the cheapest that reaches "
            f"{loss_goal(search.question)}: this plan takes the lower loss"
        )
        search, rows = floor
    found = _recommendation(search, rows, promised=promised)
    frontier = search.frontier([*frontier, *rows, found.advice.model])
    near_cost = [] if base.usd_per_mtok is None else search.near_cost(base.usd_per_mtok)
    chosen = choices(search, at_loss, near_cost, frontier)
    chosen = _built_choices(found.search, chosen, found.built, found.base or search.base)
    advice, chosen = _scored(search, found.advice, chosen)
    of_life = lifetime is not None and goal == "lifetime"
    life = lifetime.recommendation if lifetime and of_life else None
    repeats = _repeats_loss(search, advice.model if life is None else life.model)
    return Plan(
        budget_flops=float(question.budget.flops_at(advice.model.experts)),
        law=law.name,
        convention=search.law.family.convention,
        gpu=deployment.gpu.name,
        latency_source=latency.name,
        usd_per_gpu_hour=float(deployment.usd_per_gpu_hour),
        prompt_tokens=float(deployment.prompt_tokens),
        output_tokens=float(deployment.output_tokens),
        base_experts=base.experts,
        base_loss=base.loss,
        base_usd_per_mtok=base.usd_per_mtok,
        base_name=search.question.base_name,
        base=base,
        base_as_built=found.base,
        built=found.built,
        loss_optimal=tuple(best),
        bounded_loss=tuple(at_loss),
        bounded_cost=tuple(at_cost),
        frontier=tuple(frontier),
        recommendation=advice,
        warnings=tuple(notes),
        asked=_bounds(search.question, search.law.family.name, deployment),
        curves=search.curves(),
        training=found.use if life is None else training_use(search.question, life.model, life.architecture),
        lifetime=lifetime,
        lifetime_infeasible=no_life,
        objective=goal,
        confidence=search.confidence,
        laws=found.views,
        choices=chosen,
        known=known_rows(search, frontier),
        excluded_experts=tuple(float(e) for e in question.experts if not search.law.allows(e)),
        least_training=least_training,
        repeats_loss=repeats and repeats[0],
        repeats_loss_interval=repeats and repeats[1],
        fresh_usd_per_mtok=None if repeats is None or of_life else _fresh_usd(search),
        unbounded=None if of_life else _unbounded(search, advice.model),
        accuracy=accuracy_of(
            architecture(search.law.family, advice.model.n_params, advice.model.experts),
            laid_out(deployment, advice.model.attention_dp),
            latency,
            apart=question.disaggregated,
        ),
    )


def _scored(
    search: Search, advice: Recommendation[Candidate], rivals: Choices
) -> tuple[Recommendation[Candidate], Choices]:
    """The recommendation and its rivals with their benchmark scores, where the law tells them."""
    named = {f.name: model for f in fields(rivals) if (model := getattr(rivals, f.name)) is not None}
    models: list[Candidate] = [advice.model, *named.values()]
    n, d, e = ([getattr(model, name) for model in models] for name in ("n_params", "tokens", "experts"))
    found = scores_of(search.law, n, d, e, search.question.budget.extra)
    own, *others = (replace(model, scores=scores) for model, scores in zip(models, found, strict=True))
    return replace(advice, model=own), replace(rivals, **dict(zip(named, others, strict=True)))


def _reached(search: Search, rows: Sequence[Row]) -> bool:
    """Whether a row that the law may recommend is a model."""
    return any(c.n_params is not None and search.law.allows(c.experts) for c in rows)


def _at_floor(search: Search, rows: Sequence[Row], frontier: Sequence[Candidate]) -> tuple[Search, list[Row]] | None:
    """The search for the lowest loss, and its models, at the least dollars that reach a goal, where hardly more buy a lower loss.

    Small models cost what the host and the limit of requests let them, whatever their loss. The models keep the promise.
    """
    served = [c for c in rows if isinstance(c, Candidate) and search.law.allows(c.experts)]
    if search.question.budget_goal != "serve" or not served:
        return None
    limit = min(min(c.usd_per_mtok for c in served) * (1.0 + EQUAL), search.question.max_usd_per_mtok or math.inf)
    most = min((c.loss for c in served if c.usd_per_mtok <= limit), default=-math.inf) - FOR_NOTHING
    if not any(c.usd_per_mtok <= limit and c.loss < most for c in frontier):
        return None
    search = replace(search, question=replace(search.question, objective="quality", max_usd_per_mtok=limit))
    better = search.judged(search.answering(), search.draws_at(search.question.max_loss))
    sure = search.confidence or 0.0
    kept = [
        c
        for c in better
        if isinstance(c, Candidate) and (c.probability_at_least_base is None or c.probability_at_least_base >= sure)
    ]
    return (search, [*kept]) if any(c.loss < most for c in kept) else None


def _least_training(search: Search) -> tuple[Life, ...]:
    """The models of least training dollars at the base's loss, where no budget is stated: of a life that serves nothing."""
    question = search.question
    if question.budget_of is None or question.base is None or question.training is None:
        return ()
    question = replace(question, lifetime_tokens=LEAST_SERVED)
    assert question.life is not None
    wanted = LifeSearch(replace(search, question=question), question.life, question.max_loss or search.base.loss)
    with suppress(InfeasibleError):
        rows = wanted.rows(intervals=False)
        built = [wanted.built(row) for row in wanted.near(rows, wanted.choose(rows)[0])]
        return tuple(sorted((each.model for each in built if not each.notes), key=lambda life: life.training_usd))
    return ()


def _repeats_loss(search: Search, model: Candidate) -> tuple[float, tuple[float, float] | None] | None:
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


def _fresh_usd(search: Search) -> float | None:
    """Dollars a million tokens of the model that the question would choose if no token were repeated, as built."""
    question = replace(search.question, budget=replace(search.question.budget, extra=_fresh(search.question.budget)))
    with suppress(InfeasibleError):
        fresh = Search.of(search.law, question, search.costs.deployment, search.costs.latency, coarse=True)
        return _recommendation(
            fresh, fresh.answering(), promised=question.budget_goal == "serve"
        ).advice.model.usd_per_mtok
    return None


def _unbounded(search: Search, model: Candidate) -> Candidate | None:
    """What would be chosen among the expert counts that the question leaves out, as built; None where it is no better."""
    question, law = search.question, search.law
    rest = tuple(e for e in ladder(law) if e not in question.experts and law.allows(e))
    if not rest or only_experts(law) is not None or question.budget_goal == "loss":
        return None
    with suppress(InfeasibleError):
        other = Search.of(
            law, replace(question, experts=rest, against=()), search.costs.deployment, search.costs.latency
        )
        found, _ = choose(other, other.answering())
        quality = question.budget_goal == "quality"
        bounds = Bounds(None, found.usd_per_mtok) if quality else Bounds(found.loss)
        found = as_built(other.law, other.costs, found, partial(other.built, base=other.base), bounds).model
        by = "loss" if quality else "usd_per_mtok"
        return found if getattr(found, by) < getattr(model, by) else None
    return None


def _lifetime(search: Search) -> tuple[LifetimePlan | None, str | None]:
    """The plan of a model's whole life, or why there is none where the plan of the budget has an answer of its own."""
    if search.question.life is None:
        return None, None
    try:
        return plan_lifetime(search), None
    except InfeasibleError as error:
        if search.question.max_loss is not None or search.question.max_total_usd is not None:
            raise
        return None, str(error)


def _notes(search: Search, no_life: str | None) -> list[str]:
    """What a reader must know of the answers as a whole."""
    law, base, draws = search.law, search.base, search.question.draws
    notes: list[str] = []
    if base.usd_per_mtok is None:
        notes.append(f"{search.question.base_name} cannot be served: {base.infeasible}")
    if draws is not None and draws > len(law.draws):
        notes.append(f"{law.name} has {len(law.draws)} draws, not {draws}; all are used")
    if not len(law.draws) and draws != 0:
        notes.append(no_interval_words(law))
    if no_life is not None:
        notes.append(f"no lifetime plan: {no_life}")
    return notes


@dataclass(frozen=True, slots=True)
class _Advice:
    advice: Recommendation[Candidate]
    views: tuple[LawView, ...]  # what each law says
    base: Candidate | None  # the baseline as built, rounded in the same direction, where there is one
    use: TrainingUse  # what training the model takes
    built: tuple[Candidate, ...]  # the models that it was chosen from
    search: Search  # which judges models as built


def _recommendation(search: Search, rows: Sequence[Row], *, promised: bool) -> _Advice:
    """The model that is chosen among the rows, as built: it meets the bounds that it was chosen by.

    `promised`: with the search's confidence.
    """
    question = search.question
    chosen, rule = choose(search, rows)
    to_loss = question.budget_goal == "serve"
    others = [c for c in rows if isinstance(c, Candidate) and c is not chosen and search.law.allows(c.experts)]
    search = search.knowing_built([chosen, *others], at_most=not to_loss)
    limit = None if question.budget_goal == "loss" else question.max_usd_per_mtok
    base_built = search.base_as_built(at_most=not to_loss)
    base = base_built.model if base_built else search.base
    real_base, search = search.base, search.judging_built(base_built)
    if question.budget_goal == "quality" and limit is None:
        limit = base.usd_per_mtok  # as built, as the model is

    def build(row: Candidate) -> Built[Candidate]:
        loss = None
        if to_loss:  # as built at least as good as the one that was chosen, which is on the bound
            loss = row.loss if search.confidence is not None else question.max_loss or real_base.loss
            if row.experts == base.experts and math.isclose(row.n_params, real_base.n_params):
                loss = max(loss, base.loss)  # the baseline itself is built as the baseline is
        sizes = question.max_active_params, question.max_total_params
        bounds = Bounds(loss, limit, None, *sizes, min_probability=search.confidence if promised else None)
        built = as_built(search.law, search.costs, row, partial(search.built, base=base), bounds)
        if built.notes and loss is not None and limit is not None:
            raise too_dear(question, built.model, f"a loss of at most {loss:g}", " as built")
        return built

    every = [build(chosen)]
    for row in others:  # rounding moves prices by more than neighbours differ
        with suppress(InfeasibleError):
            every += [rival] if not (rival := build(row)).notes else []
    built = min(every, key=lambda each: (bool(each.notes), rank(search, each.model)))
    if to_loss:  # of a price as good as equal the lower loss
        dearest, most = built.model.usd_per_mtok * (1.0 + EQUAL), built.model.loss - FOR_NOTHING
        alike = [each for each in every if not each.notes and each.model.usd_per_mtok <= dearest]
        built = min((each for each in alike if each.model.loss < most), key=lambda each: each.model.loss, default=built)
    model = built.model
    views = law_views(search, model, built.shape)
    use = training_use(question, model, built.shape)
    models = sorted((each.model for each in every), key=lambda c: c.experts)
    rivals = open_counts(search, model, models)
    advice = Recommendation(
        model=model,
        rule=rule,
        why=f"{why(search, model, rule, base)} {training_words(use, question.budget.flops)}",
        caveats=(*slow(search, model), *built.notes, *caveats(search, model, rows, views)),
        architecture=built.shape,
        expansion=float(expansion(search.law.family, model.experts)),
        undecided=undecided(search, model, rivals),
        compute_ratio=compute_ratio(search, model) if question.explained else None,
        rivals=tuple(rivals),
    )
    base_row = base_built and _with_life(question, base_built)
    return _Advice(advice, views, base_row, use, tuple(models), search)


def _built_choices(search: Search, rows: Choices, built: Sequence[Candidate], base: Trained) -> Choices:
    """The choices as built, each within what chose it; the cheapest among the models `built` where these keep the loss."""
    to_loss = search.question.budget_goal == "serve"
    bounds: dict[str, Bounds] = {"quality": Bounds(None, search.question.max_usd_per_mtok or base.usd_per_mtok)}
    for name in ("balanced",) if to_loss else ("balanced", "cheapest"):
        row = getattr(rows, name)
        bounds[name] = Bounds(row and row.loss)
    found = {name: row for name in bounds if (row := getattr(rows, name)) is not None}
    shapes = [
        nearest_shape(search.law, search.costs, row, at_most=bounds[name].max_loss is None)
        for name, row in found.items()
    ]
    costs, price = with_prices(search.costs, shapes), partial(search.built, base=base)
    made = {name: as_built(search.law, costs, row, price, bounds[name]).model for name, row in found.items()}
    if to_loss and rows.cheapest is not None:
        made["cheapest"] = min(built, key=lambda c: (c.usd_per_mtok, c.experts))
    return Choices(**made)


def _with_life(question: Question, built: Built[Candidate]) -> Candidate:
    """A built model with the dollars of its life, where lives are asked about and its training can be priced."""
    price, served, model = question.training, question.lifetime_tokens, built.model
    if price is None or served is None:
        return model
    gpus = None if question.train_gpus is None else int(question.train_gpus)
    with suppress(InfeasibleError):  # the stated GPUs do not hold it
        training = price.bill(built.shape.architecture(), model.training_flops, model.tokens, gpus).usd
        serving = model.usd_per_mtok * served / 1e6
        return replace(model, training_usd=training, serving_usd=serving, total_usd=training + serving)
    return model


def _bounds(question: Question, family: str, deployment: Deployment) -> dict[str, object]:
    """The bounds and the serving limits that the answer rests on; those that do not apply are absent."""
    d = deployment
    limits: dict[str, object] = {
        "experts": [whole(e) for e in question.experts],
        "match_experts": whole(question.match_experts) if question.base is None else None,
        "family": family,
        "match": None if question.base is None else question.base.name,
        "target": question.target,
        "budget_of": question.budget_of,
        "max_loss": question.max_loss,
        "max_usd_per_mtok": question.max_usd_per_mtok,
        "max_tokens": question.budget.max_tokens,
        "max_active_params": question.max_active_params,
        "max_total_params": question.max_total_params,
        "unique_tokens": question.budget.extra.get("unique_tokens"),
        "lifetime_tokens": question.lifetime_tokens,
        "max_total_usd": question.max_total_usd,
        "max_days": question.max_days,
        "train_gpus": question.train_gpus,
        "max_training_usd": question.max_training_usd,
        "kv_heads": question.kv_heads,
        "disaggregated": question.disaggregated or None,
        "max_gpus": d.max_gpus,
        "scheduling": d.scheduling,
        "host": None if d.host == NO_OVERHEAD else asdict(d.host),
    }
    if np.size(d.weight_bytes_per_param) == 1:
        limits["weights"] = d.weights or format_of_bytes("weights", float(np.asarray(d.weight_bytes_per_param)))
    cap = float(np.asarray(batch_cap(d)))
    limits |= {"max_num_seqs": cap if cap < math.inf else None, "reserve_bytes": float(np.asarray(reserved_bytes(d)))}
    limits |= {name: None if getattr(d, name) is None else float(getattr(d, name)) for name in LIMITS}
    return {name: value for name, value in limits.items() if value is not None}
