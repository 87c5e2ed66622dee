"""The decision: from a law, a budget and a deployment to a recommended model, with its reasons and its caveats."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

import numpy as np

from moescale.errors import InfeasibleError, InputError
from moescale.latency import LatencySource
from moescale.models.family import with_convention
from moescale.models.rounding import vocabulary
from moescale.planning.allocation import Allocation, Budget, at_size, best_within_cost, loss_optimal, smallest_at_loss
from moescale.planning.as_built import Bounds, Built, as_built
from moescale.planning.candidate import Candidate, CostCurve, Costs, candidates, plain, with_ratios
from moescale.planning.intervals import Spread, sample_costs, spread_of
from moescale.planning.lifetime_plan import Base, LifetimePlan, LifetimeQuestion, plan_lifetime
from moescale.planning.rationale import (
    SPENT,
    Recommendation,
    TrainingUse,
    caveats,
    named,
    no_interval_words,
    training_words,
    why,
)
from moescale.planning.second_laws import Answer, SecondOpinion, budget_of_loss, compared, loss_of_base, unanswered
from moescale.planning.total_cost import TrainingPrice
from moescale.scaling_laws.covariates import known_to
from moescale.scaling_laws.law import Law
from moescale.serving.deployment import Deployment
from moescale.serving.host import NO_OVERHEAD
from moescale.serving.pareto import pareto
from moescale.typing import FloatArray
from moescale.units import format_count, format_flops, format_usd

FRONTIER_SIZES = 48  # over-trained sizes of each expert count that the frontier is drawn from
CURVE_LARGEST = 2.0  # of the loss-optimal size: how far a drawn curve goes on beyond it
SMALLEST_SHARE = 0.03  # of the loss-optimal size: smaller ones cost almost no less and lose much


SECOND_LAWS = (
    "yun2024-joint",
    "moescale2026-joint",
)  # asked beside the chosen one: its equation, and another, on public runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The answer of `plan`: every allocation that matters for one budget, and a recommendation."""

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
    base_usd_per_mtok: float | None
    loss_optimal: tuple[Candidate, ...]
    bounded_loss: tuple[Candidate, ...]
    bounded_cost: tuple[Candidate, ...]
    frontier: tuple[Candidate, ...]
    recommendation: Recommendation
    training: TrainingUse | None = None  # None in files of before it was there
    second_opinions: tuple[SecondOpinion, ...] = ()
    lifetime: LifetimePlan | None = None  # where the question has a price of training
    lifetime_infeasible: str | None = None  # why it has no answer
    warnings: tuple[str, ...] = field(default=())
    curves: tuple[CostCurve, ...] = field(default=(), repr=False, compare=False)  # what a figure draws
    asked: Mapping[str, object] = field(default_factory=dict[str, object], compare=False)  # bounds and serving limits

    def to_dict(self) -> dict[str, object]:
        """The record of the command line's contract."""
        bounded_cost: dict[str, object] = {"base_experts": plain(self.base_experts)}
        if self.base_usd_per_mtok is not None:
            bounded_cost["usd_per_mtok"] = self.base_usd_per_mtok
        bounded_cost["plans"] = [c.to_dict() for c in self.bounded_cost]
        record: dict[str, object] = {
            "budget_flops": self.budget_flops,
            "law": self.law,
            "convention": self.convention,
            "gpu": self.gpu,
            "latency_source": self.latency_source,
            "usd_per_gpu_hour": self.usd_per_gpu_hour,
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
            "loss_optimal": [c.to_dict() for c in self.loss_optimal],
            "bounded_loss": {
                "base_experts": plain(self.base_experts),
                "loss": self.base_loss,
                "plans": [c.to_dict() for c in self.bounded_loss],
            },
            "bounded_cost": bounded_cost,
            "frontier": [c.to_dict() for c in self.frontier],
            "recommendation": self.recommendation.to_dict(),
            "warnings": list(self.warnings),
            "asked": dict(self.asked),
            "curves": [c.to_dict() for c in self.curves if np.isfinite(c.usd_per_mtok).any()],
        }
        if self.training is not None:
            record["training"] = self.training.to_dict()
        if self.lifetime is not None:
            record["lifetime"] = self.lifetime.to_dict()
        elif self.lifetime_infeasible is not None:
            record["lifetime"] = {"infeasible": self.lifetime_infeasible}
        if self.second_opinions:
            record["second_opinions"] = [opinion.to_dict() for opinion in self.second_opinions]
        return record


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a plan is asked: the budget and its bounds, and the models that may be chosen."""

    budget: Budget
    experts: tuple[float, ...] = (1.0, 4.0, 8.0, 16.0, 32.0, 64.0)
    match_experts: float = 4.0  # the base: the loss-optimal model of so many experts
    max_loss: float | None = None
    max_usd_per_mtok: float | None = None
    lifetime_tokens: float | None = None
    training: TrainingPrice | None = None  # for training days and dollars; with lifetime_tokens also the cheapest life
    max_total_usd: float | None = None  # of training and serving
    kv_heads: float | None = None  # key-value heads of a layer; None: the family's own, one a query head for most
    vocab_size: int | None = None  # rows of the tables that are served; None: those that N counts, or the recipe's
    draws: int | None = None  # how many of the law's draws intervals use; None: all, 0: no intervals
    convention: str | None = None


def prepare(law: Law, question: Question) -> tuple[Law, Question, list[str]]:
    """The law under the question's convention and the question that it can answer, with notes on what was left out.

    Raises InputError for impossible questions.
    """
    question, notes = _check(question, law)
    if question.convention is not None and question.convention != law.family.convention:
        law = replace(law, family=with_convention(law.family, question.convention))
        notes.append(f"{law.name} was obtained with another counting of training FLOPs than `{question.convention}`")
    if question.kv_heads is not None:
        law = replace(law, family=replace(law.family, kv_heads=question.kv_heads))
    return law, question, notes


def costs_of(law: Law, question: Question, deployment: Deployment, latency: LatencySource) -> Costs:
    """Serving costs of the models of a prepared law, with the tables of the vocabulary that they are built with."""
    return Costs(law.family, latency, deployment, vocab_size=vocabulary(law.family, question.vocab_size))


def _check(question: Question, law: Law) -> tuple[Question, list[str]]:
    """Refuse impossible questions; drop what the law cannot speak of, with a note."""
    notes: list[str] = []
    experts = sorted(set(question.experts) | {question.match_experts})
    for e in experts:
        if not (math.isfinite(e) and e >= 1 and float(e).is_integer()):
            raise InputError(
                f"{e!r} is not a number of experts", where="--experts", next_step="whole numbers from 1 up"
            )
    for name, value in (
        ("--max-loss", question.max_loss),
        ("--max-usd-per-mtok", question.max_usd_per_mtok),
        ("--lifetime-tokens", question.lifetime_tokens),
        ("--max-total-usd", question.max_total_usd),
    ):
        if value is not None and not (math.isfinite(value) and value > 0):
            raise InputError(f"{value!r} is not a positive number", where=name)
    if question.max_total_usd is not None and (question.lifetime_tokens is None or question.training is None):
        raise InputError(
            "total dollars are those of training and of serving a number of tokens",
            where="--max-total-usd",
            next_step="give --lifetime-tokens as well",
        )
    base = question.match_experts
    if not (law.form.uses_experts or law.form.implied_inputs):
        least, most = law.fit_range.get("experts", (1.0, 1.0))
        only = least if least == most else 1.0
        if experts != [only]:
            notes.append(f"{law.name} knows {named(only)}s only: other expert counts are left out of this plan")
        experts, base = [only], only
    return replace(question, experts=tuple(experts), match_experts=base), notes


def _choose(question: Question, law: Law, rows: list[Candidate], optima: list[Candidate]) -> tuple[Candidate, str]:
    """The recommended model among the rows that answer the question, and the rule that chose it.

    Raises InfeasibleError when no model that the law may speak of meets the bounds and can be served.
    """
    allowed = [c for c in rows if c.experts <= (law.max_experts or math.inf)]
    if not allowed:
        raise InfeasibleError(
            f"{law.name} speaks of at most {law.max_experts:g} experts, fewer than any that was asked for",
            next_step=f"add smaller counts to --experts, such as {law.max_experts:g}, and to --match-experts",
        )
    served = [c for c in allowed if c.usd_per_mtok is not None]
    limit = question.max_usd_per_mtok
    if question.max_loss is None and limit is not None:
        if not served:
            raise InfeasibleError(
                f"no model of this budget serves at {format_usd(limit)} a million tokens or less{_reasons(allowed)}",
                next_step="raise --max-usd-per-mtok, or take another GPU",
            )
        best = min(served, key=lambda c: (c.loss or math.inf, c.experts))
        return best, f"lowest loss at {format_usd(limit)} a million tokens or less"

    goal = (
        f"the loss of the loss-optimal {named(question.match_experts)}"
        if question.max_loss is None
        else f"a loss of at most {question.max_loss:g}"
    )
    lowest = min(c.loss or math.inf for c in optima if c.experts <= (law.max_experts or math.inf))
    if all(c.n_params is None for c in allowed):
        raise InfeasibleError(
            f"no model of {question.budget.flops:.3g} FLOPs with at most {max(c.experts for c in allowed):g} experts reaches "
            f"{goal}",
            nearest=f"the lowest loss of this budget is {lowest:.4f}",
            next_step="raise --budget, relax --max-loss, or consider more experts",
        )
    if not served:
        raise InfeasibleError(
            f"no model of {question.budget.flops:.3g} FLOPs that reaches {goal} can be served{_reasons(allowed)}",
            next_step="allow more GPUs, take a GPU with more memory, or lower the budget",
        )
    best = min(served, key=lambda c: (c.usd_per_mtok or math.inf, c.experts))
    if limit is not None and (best.usd_per_mtok or math.inf) > limit:
        raise InfeasibleError(
            f"the cheapest model that reaches {goal} costs {format_usd(best.usd_per_mtok or 0.0)} a million tokens, "
            f"more than {format_usd(limit)}",
            next_step="raise --max-usd-per-mtok, or relax --max-loss",
        )
    return best, f"cheapest to serve at {goal}"


def _reasons(rows: list[Candidate]) -> str:
    listed = sorted({c.infeasible for c in rows if c.infeasible})
    return f" ({'; '.join(listed)})" if listed else ""


def make_plan(
    law: Law,
    question: Question,
    deployment: Deployment,
    latency: LatencySource,
    *,
    second_laws: Sequence[Law] = (),
) -> Plan:
    """The plan of one training budget under a law and a deployment.

    The base is the loss-optimal model with `question.match_experts` experts. `second_laws` answer the same question, each
    with a sentence that says whether it agrees; a bound on loss is carried to them by the budget at which the base has it.
    Raises InfeasibleError when no model meets the bounds or none can be served, InputError for impossible questions.
    """
    law, question, notes = prepare(law, question)
    budget, e = question.budget, np.array(question.experts)
    base_at = question.experts.index(question.match_experts)
    costs = costs_of(law, question, deployment, latency)

    def rows(allocation: Allocation) -> list[Candidate]:
        return candidates(allocation, costs, lifetime_tokens=question.lifetime_tokens)

    best = loss_optimal(law, budget, e)
    optima = rows(best)
    base, base_loss = optima[base_at], float(best.loss[base_at])
    bounded_loss = _at_loss(law, question, costs, best, optima, base_loss)
    bounded_cost = (
        [] if base.usd_per_mtok is None else _within_cost(law, question, costs, best, optima, base.usd_per_mtok)
    )
    if base.usd_per_mtok is None:
        notes.append(f"the loss-optimal {named(base.experts)} cannot be served: {base.infeasible}")

    draws = law.draws if question.draws is None else law.draws[: question.draws]
    if question.draws is not None and question.draws > len(law.draws):
        notes.append(f"{law.name} carries {len(law.draws)} draws, not {question.draws}; all of them are used")
    if not len(law.draws) and question.draws != 0:
        notes.append(no_interval_words(law))
    spread: Spread | None = None
    sampled = sample_costs(costs, e) if len(draws) else None
    if sampled is not None:
        allowed = (e <= (law.max_experts or math.inf)).astype(float)
        spread = spread_of(law, budget, costs, e, base_at, draws, allowed, sampled=sampled)
        optima = [c.with_intervals(x) for c, x in zip(optima, spread.loss_optimal, strict=True)]
        bounded_loss = [c.with_intervals(x) for c, x in zip(bounded_loss, spread.bounded_loss, strict=True)]
        if bounded_cost:
            bounded_cost = [c.with_intervals(x) for c, x in zip(bounded_cost, spread.bounded_cost, strict=True)]

    whole, lifetime = question, None
    no_life: str | None = None
    if question.lifetime_tokens is not None and question.training is not None:
        of_base = Base(experts=base.experts, loss=base_loss, losses=_base_losses(law, budget, base.experts, draws))
        asked = _lifetime_question(question, question.lifetime_tokens, question.training)
        try:
            lifetime = plan_lifetime(law, asked, costs, e, of_base, draws=draws, sampled=sampled)
        except InfeasibleError as error:
            if question.max_loss is not None or question.max_total_usd is not None:
                raise
            no_life = str(error)  # the budget's plan has an answer of its own
            notes.append(f"no plan for the whole life: {no_life}")
    bounded = question.max_loss is not None or question.max_usd_per_mtok is not None
    answering = _answering(law, question, costs, best, optima) if bounded else bounded_loss
    if question.max_loss is not None and lifetime is not None and not any(_recommendable(law, c) for c in answering):
        notes.append(
            f"no model of {budget.flops:.3g} FLOPs reaches a loss of {question.max_loss:g}: but for its lifetime part "
            f"this plan is about the loss of the loss-optimal {named(base.experts)}"
        )
        question, answering = replace(question, max_loss=None, max_usd_per_mtok=None), bounded_loss
    model, rule = _choose(question, law, answering, optima)
    built = _built(law, question, costs, model, optima, base, base_loss)
    model = built.model
    own = optima[question.experts.index(model.experts)]
    reasons = why(model, rule, base, bounded_cost, law, own)
    if spread is not None and answering is bounded_loss:
        share = float(spread.cheapest_share[question.experts.index(model.experts)])
        reasons += f" {model.experts:g} experts are the cheapest in {share:.0%} of the law's draws."
    training = _training_use(question, model)
    reasons += f" {training_words(training, budget.flops)}"
    plan = Plan(
        budget_flops=budget.flops,
        law=law.name,
        convention=law.family.convention,
        gpu=deployment.gpu.name,
        latency_source=latency.name,
        usd_per_gpu_hour=float(deployment.usd_per_gpu_hour),
        prompt_tokens=float(deployment.prompt_tokens),
        output_tokens=float(deployment.output_tokens),
        base_experts=question.match_experts,
        base_loss=base_loss,
        base_usd_per_mtok=base.usd_per_mtok,
        loss_optimal=tuple(optima),
        bounded_loss=tuple(bounded_loss),
        bounded_cost=tuple(bounded_cost),
        frontier=tuple(_frontier(law, budget, best, rows, [*optima, *bounded_loss, *bounded_cost, *answering, model])),
        recommendation=Recommendation(
            model=model,
            rule=rule,
            why=reasons,
            caveats=(
                *built.notes,
                *caveats(
                    law,
                    budget,
                    model,
                    answering,
                    own,
                    loss_bound=question.max_loss is not None,
                    cost_bound=question.max_loss is None and question.max_usd_per_mtok is not None,
                    memory_limited=deployment.max_num_seqs is None,
                ),
            ),
            architecture=built.shape,
        ),
        training=training,
        lifetime=lifetime,
        lifetime_infeasible=no_life,
        warnings=tuple(notes),
        curves=_curves(law, budget, best, costs),
        asked=_asked(question, deployment),
    )
    others = [other for other in second_laws if other.name != law.name]
    if lifetime is not None:
        opinions = _lifetime_opinions(plan, lifetime, law, others, whole, deployment, latency)
        plan = replace(plan, lifetime=replace(lifetime, second_opinions=opinions))
    return replace(plan, second_opinions=_second_opinions(plan, law, others, question, deployment, latency))


def _built(
    law: Law,
    question: Question,
    costs: Costs,
    model: Candidate,
    optima: list[Candidate],
    base: Candidate,
    base_loss: float,
) -> Built:
    """The recommended model as built: it spends the budget at its own size, and meets the bounds that it was chosen by."""

    def record(law: Law, costs: Costs, model: Candidate) -> Candidate:
        size, experts = np.array([model.n_params or 0.0]), np.array([model.experts])
        found = candidates(
            at_size(law, question.budget, size, experts), costs, lifetime_tokens=question.lifetime_tokens
        )
        return with_ratios(found, optima, base)[0]

    by_cost = question.max_loss is None and question.max_usd_per_mtok is not None
    loss = base_loss if question.max_loss is None else question.max_loss
    bounds = Bounds(None if by_cost else loss, question.max_usd_per_mtok)
    built = as_built(law, costs, model, record, bounds)
    if built.notes and not by_cost and question.max_usd_per_mtok is not None:
        raise InfeasibleError(
            f"the cheapest model that reaches a loss of at most {loss:g} costs "
            f"{format_usd(built.model.usd_per_mtok or 0.0)} a million tokens as built, more than "
            f"{format_usd(question.max_usd_per_mtok)}",
            next_step="raise --max-usd-per-mtok, or relax --max-loss",
        )
    return built


def _training_use(question: Question, model: Candidate) -> TrainingUse:
    """What training a model of the plan takes, and why some of the budget is left over."""
    flops, tokens, budget = model.training_flops or 0.0, model.tokens or 0.0, question.budget
    share, because = flops / budget.flops, None
    if share < SPENT and budget.max_tokens is not None and tokens > SPENT * budget.max_tokens:
        because = f"--max-tokens ends training at {format_count(budget.max_tokens)} tokens, and "
        if question.max_loss is None and question.max_usd_per_mtok is not None:
            because += f"a larger model costs more than {format_usd(question.max_usd_per_mtok)} a million tokens"
        else:
            because += "a model of this size reaches the loss with them"
    use = TrainingUse(
        flops_used=flops,
        tokens_per_active_param=tokens / (model.n_params_active or math.inf),
        budget_share=share,
        unused_because=because,
    )
    price = question.training
    if price is None:
        return use
    days, usd = price.gpu_hours(flops) / 24.0, price.usd_per_flop * flops
    return replace(use, train_gpu=price.gpu.name, mfu=price.mfu, gpu_days=days, usd=usd)


def _lifetime_question(question: Question, served_tokens: float, training: TrainingPrice) -> LifetimeQuestion:
    return LifetimeQuestion(
        served_tokens=served_tokens,
        training=training,
        max_total_usd=question.max_total_usd,
        max_loss=question.max_loss,
        max_usd_per_mtok=question.max_usd_per_mtok,
        max_tokens=question.budget.max_tokens,
        extra=question.budget.extra,
    )


def _base_losses(law: Law, budget: Budget, experts: float, draws: FloatArray) -> FloatArray:
    """The base's loss under each of the law's draws, (k,)."""
    return loss_optimal(law, budget, experts, theta=draws).loss[:, 0] if len(draws) else np.empty(0)


def _recommendable(law: Law, model: Candidate) -> bool:
    return model.n_params is not None and model.experts <= (law.max_experts or math.inf)


def _answering(
    law: Law, question: Question, costs: Costs, best: Allocation, optima: list[Candidate]
) -> list[Candidate]:
    """The models among which the question chooses: at its loss, within its cost, or at the base's loss."""
    if question.max_loss is None and question.max_usd_per_mtok is not None:
        return _within_cost(law, question, costs, best, optima, question.max_usd_per_mtok)
    base = optima[question.experts.index(question.match_experts)]
    return _at_loss(law, question, costs, best, optima, question.max_loss or base.loss or math.nan)


def _within_cost(
    law: Law, question: Question, costs: Costs, best: Allocation, optima: list[Candidate], limit: float
) -> list[Candidate]:
    """Algorithm 2 at every expert count: the lowest loss within a serving cost."""
    found = best_within_cost(law, question.budget, best.experts, limit, costs.usd_per_mtok, optimal=best)
    missed = f"every size costs more than {format_usd(limit)}"
    records = candidates(found, costs, lifetime_tokens=question.lifetime_tokens, unreachable=missed)
    return with_ratios(records, optima, optima[question.experts.index(question.match_experts)])


def _at_loss(
    law: Law, question: Question, costs: Costs, best: Allocation, optima: list[Candidate], limit: float
) -> list[Candidate]:
    """Algorithm 1 at every expert count: the smallest, hence cheapest, models that reach a loss."""
    found = smallest_at_loss(law, question.budget, best.experts, limit, optimal=best)
    missed = f"no size reaches a loss of {limit:.5g}"
    records = candidates(found, costs, lifetime_tokens=question.lifetime_tokens, unreachable=missed)
    return with_ratios(records, optima, optima[question.experts.index(question.match_experts)])


def _frontier(
    law: Law,
    budget: Budget,
    best: Allocation,
    rows: Callable[[Allocation], list[Candidate]],
    known: list[Candidate],
) -> list[Candidate]:
    """The Pareto frontier over all expert counts that the law may speak of and all over-trained sizes."""
    chosen = best.experts <= (law.max_experts or math.inf)
    e = np.repeat(best.experts[chosen], FRONTIER_SIZES)
    shares = np.geomspace(SMALLEST_SHARE, 1.0, FRONTIER_SIZES)
    sizes = (best.n_params[chosen][:, None] * shares).ravel()
    ceiling = law.max_experts or math.inf
    every = rows(at_size(law, budget, sizes, e)) + [c for c in known if c.experts <= ceiling]
    cost = np.array([math.inf if c.usd_per_mtok is None else c.usd_per_mtok for c in every])
    loss = np.array([math.inf if c.loss is None else c.loss for c in every])
    own = {float(x): float(n) for x, n in zip(best.experts, best.n_params, strict=True)}
    front = (every[i] for i in pareto(cost, loss))
    return [c.alone(size_ratio=(c.n_params or 0.0) / own[c.experts]) for c in front]


def curve_shares() -> FloatArray:
    """The sizes of a drawn curve over the loss-optimal one, rising; entry FRONTIER_SIZES - 1 is 1, the optimum itself."""
    under = np.geomspace(1.0, CURVE_LARGEST, FRONTIER_SIZES // 4)[1:]
    return np.concatenate((np.geomspace(SMALLEST_SHARE, 1.0, FRONTIER_SIZES), under))


def _curves(law: Law, budget: Budget, best: Allocation, costs: Costs) -> tuple[CostCurve, ...]:
    """Loss and cost of each expert count from over-trained to under-trained sizes."""
    shares = curve_shares()
    sizes = (best.n_params[:, None] * shares).ravel()
    every = at_size(law, budget, sizes, np.repeat(best.experts, shares.size))
    served = costs.serving(every.n_params, every.experts)
    known = np.isfinite(served.usd_per_mtok)
    shape = (best.experts.size, shares.size)
    usd, count = np.where(known, served.usd_per_mtok, np.nan), np.where(known, served.gpus, 0.0)
    n, d, loss, cost, gpus = (
        values.reshape(shape) for values in (every.n_params, every.tokens, every.loss, usd, count)
    )
    return tuple(CostCurve(float(e), n[i], d[i], loss[i], cost[i], gpus[i]) for i, e in enumerate(best.experts))


def _asked(question: Question, deployment: Deployment) -> dict[str, object]:
    """The bounds and the serving limits that the answer rests on; those that do not apply are absent."""
    d = deployment
    limits: dict[str, object] = {
        "experts": [plain(e) for e in question.experts],
        "match_experts": plain(question.match_experts),
        "max_loss": question.max_loss,
        "max_usd_per_mtok": question.max_usd_per_mtok,
        "max_tokens": question.budget.max_tokens,
        "lifetime_tokens": question.lifetime_tokens,
        "max_total_usd": question.max_total_usd,
        "kv_heads": question.kv_heads,
        "max_gpus": d.max_gpus,
        "scheduling": d.scheduling,
        "host": None if d.host == NO_OVERHEAD else asdict(d.host),
    }
    numbers = (
        "max_num_seqs", "memory_fraction", "utilization", "weight_bytes_per_param", "kv_bytes_per_element",
        "reserve_bytes", "expert_parallel", "max_ttft_s", "max_tpot_s",
    )  # fmt: skip
    limits |= {name: None if getattr(d, name) is None else float(getattr(d, name)) for name in numbers}
    return {name: value for name, value in limits.items() if value is not None}


def _second_opinions(
    plan: Plan, law: Law, others: Sequence[Law], question: Question, deployment: Deployment, latency: LatencySource
) -> tuple[SecondOpinion, ...]:
    """What other laws answer to the plan's own question."""
    by_loss = question.max_loss is None and question.max_usd_per_mtok is not None
    same_loss = _carried_budget(law, question)
    model, base = plan.recommendation.model, named(plan.base_experts)
    words, share_of = f"cheapest to serve at {_goal(question, same_loss)}", f"the cost of its own loss-optimal {base}"
    if question.max_loss is None:
        share_of = "that model's cost"
    if by_loss:
        words = f"lowest loss at {format_usd(question.max_usd_per_mtok or 0.0)} a million tokens or less"
        share_of = f"that of its own loss-optimal {base}"
    ours = Answer(
        law=law, model=model, usd=model.usd_per_mtok, base_usd=plan.base_usd_per_mtok, base_loss=plan.base_loss
    )

    def answer(other: Law) -> Answer:
        other, asked = _asked_of(other, question, same_loss)
        costs = costs_of(other, asked, deployment, latency)
        best = loss_optimal(other, asked.budget, np.array(asked.experts))
        optima = candidates(best, costs)
        found, _ = _choose(asked, other, _answering(other, asked, costs, best, optima), optima)
        own = optima[asked.experts.index(asked.match_experts)]
        return Answer(
            law=other, model=found, usd=found.usd_per_mtok, base_usd=own.usd_per_mtok, base_loss=own.loss or math.nan
        )

    return _opinions(answer, ours, others, words, share_of, "a million tokens", by_loss=by_loss)


def _lifetime_opinions(
    plan: Plan, life: LifetimePlan, law: Law, others: Sequence[Law], question: Question, deployment: Deployment,
    latency: LatencySource,
) -> tuple[SecondOpinion, ...]:  # fmt: skip
    """What other laws answer to the question of the model's whole life."""
    by_loss, same_loss = life.target_loss is None, _carried_budget(law, question)
    training, served, base = question.training, question.lifetime_tokens, named(plan.base_experts)
    if training is None or served is None:
        return ()
    words = f"fewest dollars for training and {format_count(served)} served tokens at {_goal(question, same_loss)}"
    share_of = f"the dollars of its own {base} that takes the least training"
    if by_loss:
        words = f"lowest loss for training and {format_count(served)} served tokens within {format_usd(life.max_total_usd or 0.0)}"
        share_of = f"that of its own loss-optimal {base} of {format_flops(plan.budget_flops)} FLOPs"
    model, least = life.recommendation.model, life.least_training
    ours = Answer(
        law=law, model=model, usd=model.total_usd, base_usd=least and least.total_usd, base_loss=plan.base_loss
    )

    def answer(other: Law) -> Answer:
        other, asked = _asked_of(other, question, same_loss)
        costs = costs_of(other, asked, deployment, latency)
        loss = loss_of_base(other, asked.budget, asked.match_experts, asked.budget.flops)
        own = Base(experts=asked.match_experts, loss=loss, losses=np.empty(0))
        asked_life, none = _lifetime_question(asked, served, training), np.empty((0, other.theta.size))
        found = plan_lifetime(other, asked_life, costs, np.array(asked.experts), own, draws=none)
        best, cheap = found.recommendation.model, found.least_training
        return Answer(law=other, model=best, usd=best.total_usd, base_usd=cheap and cheap.total_usd, base_loss=loss)

    return _opinions(answer, ours, others, words, share_of, "in all", by_loss=by_loss)


def _opinions(
    answer: Callable[[Law], Answer],
    ours: Answer,
    others: Sequence[Law],
    words: str,
    share_of: str,
    unit: str,
    *,
    by_loss: bool,
) -> tuple[SecondOpinion, ...]:
    """Each other law's answer beside ours, or why it has none; a law of dense models alone compares with none."""
    opinions: list[SecondOpinion] = []
    for other in others if ours.law.form.uses_experts else ():
        try:
            opinions.append(compared(answer(other), ours, words, share_of, unit, by_loss=by_loss))
        except InfeasibleError as error:
            opinions.append(unanswered(other, words, error.what))
    return tuple(opinions)


def _carried_budget(law: Law, question: Question) -> float | None:
    """The budget whose loss-optimal base has the loss that the question bounds: with it another law is asked in its units."""
    if question.max_loss is None:
        return None
    return budget_of_loss(law, question.budget, question.match_experts, question.max_loss)


def _goal(question: Question, same_loss: float | None) -> str:
    """The loss of the question as every law can be asked for it."""
    base = f"its own loss-optimal {named(question.match_experts)}"
    if question.max_loss is None:
        return f"the loss of {base}"
    return f"the loss of {base} of {format_flops(same_loss or math.nan)} FLOPs, which is --max-loss in its units"


def _asked_of(law: Law, question: Question, same_loss: float | None) -> tuple[Law, Question]:
    """The law and the question as it can be asked of it: its own further inputs, and a loss in its own units."""
    budget = replace(question.budget, extra=known_to(law.form, question.budget.extra))
    law, asked, _ = prepare(law, replace(question, budget=budget, convention=None))
    if question.max_loss is None:
        return law, asked
    if same_loss is None:
        raise InfeasibleError("--max-loss has no counterpart in the units of another law")
    return law, replace(asked, max_loss=loss_of_base(law, budget, asked.match_experts, same_loss))
