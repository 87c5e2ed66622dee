"""The decision: from a law, a budget and a deployment to a recommended model, with its reasons and its caveats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

import numpy as np

from moescale.errors import InfeasibleError
from moescale.io.records import record
from moescale.latency import LatencySource
from moescale.planning.as_built import Bounds, as_built
from moescale.planning.candidate import Candidate, CostCurve, Row, Trained, whole, with_intervals
from moescale.planning.intervals import Spread, spread_of
from moescale.planning.lifetime_plan import LifetimePlan, plan_lifetime
from moescale.planning.opinions import budget_opinions, life_opinions
from moescale.planning.question import Question
from moescale.planning.rationale import (
    Recommendation,
    TrainingUse,
    caveats,
    no_interval_words,
    training_use,
    training_words,
    why,
)
from moescale.planning.search import Search, choose, too_dear
from moescale.planning.second_laws import SecondOpinion, in_letters_of
from moescale.scaling_laws.law import Law
from moescale.serving.deployment import Deployment
from moescale.serving.host import NO_OVERHEAD
from moescale.typing import FloatArray
from moescale.units import expert_model

BASE = ("base_experts", "base_loss", "base_usd_per_mtok", "lifetime_infeasible")  # what a record nests
LIMITS = (
    "max_num_seqs",
    "memory_fraction",
    "utilization",
    "weight_bytes_per_param",
    "kv_bytes_per_element",
    "reserve_bytes",
    "expert_parallel",
    "max_ttft_s",
    "max_tpot_s",
)  # of a deployment that an answer rests on


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
    second_opinions: tuple[SecondOpinion, ...] = ()

    def to_dict(self) -> dict[str, object]:
        """The record of the command line's contract."""
        base, usd = whole(self.base_experts), self.base_usd_per_mtok
        told = record(self, without=(*BASE, *(() if self.second_opinions else ("second_opinions",))))
        told["bounded_loss"] = {"base_experts": base, "loss": self.base_loss, "plans": told["bounded_loss"]}
        priced = {} if usd is None else {"usd_per_mtok": usd}
        told["bounded_cost"] = {"base_experts": base, **priced, "plans": told["bounded_cost"]}
        told["curves"] = [c.to_dict() for c in self.curves if np.isfinite(c.usd_per_mtok).any()]
        if self.lifetime_infeasible is not None:
            told["lifetime"] = {"infeasible": self.lifetime_infeasible}
        return told


def make_plan(
    law: Law, question: Question, deployment: Deployment, latency: LatencySource, *, second_laws: Sequence[Law] = ()
) -> Plan:
    """The plan of one training budget under a law and a deployment.

    The base is the loss-optimal model with `question.match_experts` experts. `second_laws` answer the same question in
    the letters of `law`, each with a sentence that says whether it agrees; a bound on loss is carried to them by the budget at which the base has it.
    Raises InfeasibleError when no model meets the bounds or none can be served, InputError for impossible questions.
    """
    asked = search = Search.of(law, question, deployment, latency)
    spread = spread_of(search)
    usd, base_loss = search.base.usd_per_mtok, search.base.loss
    best = with_intervals(search.optima, spread and spread.loss_optimal)
    at_loss = with_intervals(search.at_loss(base_loss), spread and spread.bounded_loss)
    at_cost = [] if usd is None else with_intervals(search.within_cost(usd), spread and spread.bounded_cost)
    lifetime, no_life = _lifetime(search, spread)
    notes = [*search.notes, *_notes(search, no_life)]
    rows = search.answering() if search.question.bounded else at_loss
    reached = any(c.n_params is not None and search.law.allows(c.experts) for c in rows)
    if lifetime is not None and search.question.max_loss is not None and not reached:
        notes.append(
            f"no model of {question.budget.flops:.3g} FLOPs reaches a loss of {question.max_loss:g}: but for its lifetime "
            f"part this plan is about the loss of the loss-optimal {expert_model(search.question.match_experts)}"
        )
        search = replace(search, question=replace(search.question, max_loss=None, max_usd_per_mtok=None))
        rows = at_loss
    share = spread.cheapest_share if spread is not None and rows is at_loss else None
    advice = _recommendation(search, rows, at_cost, share)
    others = in_letters_of(asked.law, [other for other in second_laws if other.name != law.name])
    if lifetime is not None:
        lifetime = replace(lifetime, second_opinions=life_opinions(asked, lifetime, others))
    return Plan(
        budget_flops=question.budget.flops,
        law=law.name,
        convention=search.law.family.convention,
        gpu=deployment.gpu.name,
        latency_source=latency.name,
        usd_per_gpu_hour=float(deployment.usd_per_gpu_hour),
        prompt_tokens=float(deployment.prompt_tokens),
        output_tokens=float(deployment.output_tokens),
        base_experts=search.base.experts,
        base_loss=base_loss,
        base_usd_per_mtok=usd,
        loss_optimal=tuple(best),
        bounded_loss=tuple(at_loss),
        bounded_cost=tuple(at_cost),
        frontier=tuple(search.frontier([*best, *at_loss, *at_cost, *rows, advice.model])),
        recommendation=advice,
        warnings=tuple(notes),
        asked=_asked(search.question, deployment),
        curves=search.curves(),
        training=training_use(search.question, advice.model),
        lifetime=lifetime,
        lifetime_infeasible=no_life,
        second_opinions=budget_opinions(search, advice.model, others),
    )


def _lifetime(search: Search, spread: Spread | None) -> tuple[LifetimePlan | None, str | None]:
    """The plan of a model's whole life, or why there is none where the plan of the budget has an answer of its own."""
    if search.question.life is None:
        return None, None
    try:
        return plan_lifetime(search, spread), None
    except InfeasibleError as error:
        if search.question.max_loss is not None or search.question.max_total_usd is not None:
            raise
        return None, str(error)


def _notes(search: Search, no_life: str | None) -> list[str]:
    """What a reader must know of the answers as a whole."""
    law, base, draws = search.law, search.base, search.question.draws
    notes: list[str] = []
    if base.usd_per_mtok is None:
        notes.append(f"the loss-optimal {expert_model(base.experts)} cannot be served: {base.infeasible}")
    if draws is not None and draws > len(law.draws):
        notes.append(f"{law.name} carries {len(law.draws)} draws, not {draws}; all of them are used")
    if not len(law.draws) and draws != 0:
        notes.append(no_interval_words(law))
    if no_life is not None:
        notes.append(f"no plan for the whole life: {no_life}")
    return notes


def _recommendation(
    search: Search, rows: Sequence[Row], bounded_cost: Sequence[Row], share_of_draws: FloatArray | None
) -> Recommendation[Candidate]:
    """The model that is chosen among the rows, as built: it meets the bounds that it was chosen by.

    `share_of_draws` says for each expert count in which share of the law's draws it is the cheapest.
    """
    question = search.question
    chosen, rule = choose(search, rows)
    loss = None if question.cost_limit is not None else question.max_loss or search.base.loss
    built = as_built(search.law, search.costs, chosen, search.built, Bounds(loss, question.max_usd_per_mtok))
    if built.notes and loss is not None and question.max_usd_per_mtok is not None:
        raise too_dear(question, built.model, f"a loss of at most {loss:g}", " as built")
    model = built.model
    reasons = [why(search, model, rule, bounded_cost)]
    if share_of_draws is not None:
        share = share_of_draws[question.experts.index(model.experts)]
        reasons.append(f"{model.experts:g} experts are the cheapest in {share:.0%} of the law's draws.")
    reasons.append(training_words(training_use(question, model), question.budget.flops))
    return Recommendation(
        model=model,
        rule=rule,
        why=" ".join(reasons),
        caveats=(*built.notes, *caveats(search, model, rows)),
        architecture=built.shape,
    )


def _asked(question: Question, deployment: Deployment) -> dict[str, object]:
    """The bounds and the serving limits that the answer rests on; those that do not apply are absent."""
    d = deployment
    limits: dict[str, object] = {
        "experts": [whole(e) for e in question.experts],
        "match_experts": whole(question.match_experts),
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
    limits |= {name: None if getattr(d, name) is None else float(getattr(d, name)) for name in LIMITS}
    return {name: value for name, value in limits.items() if value is not None}
