"""The decision: from a law, a budget and a deployment to a recommended model, with its reasons and its caveats."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace

import numpy as np

from moescale.errors import InfeasibleError
from moescale.hardware.precisions import format_of_bytes
from moescale.io.records import record
from moescale.latency import LatencySource
from moescale.latency.engines import NO_OVERHEAD
from moescale.planning import beside
from moescale.planning.candidate import Candidate, CostCurve, Life, Row, Trained, sizes_of, whole
from moescale.planning.decision import Choices, LawView, choices, law_views
from moescale.planning.intervals import at_loss_limits, loss_limits, optima_limits, with_intervals
from moescale.planning.known import KnownRow, known_rows, training_usd
from moescale.planning.least_training import TargetSpend, frugal, least_training, target_spend
from moescale.planning.lifetime_plan import LifetimePlan, plan_lifetime
from moescale.planning.question import Objective, Question, release_notes
from moescale.planning.rationale import Recommendation
from moescale.planning.recommend import built_choices, loss_goal, recommend, scored
from moescale.planning.search import Search
from moescale.planning.shapes import ShapeChoice
from moescale.planning.training_use import TrainingUse, beside_precision, training_use
from moescale.scaling_laws.law import NOT_IDENTIFIED, OF_ACTIVE, Law
from moescale.serving.accuracy import Accuracy, accuracy_of
from moescale.serving.deployment import Deployment
from moescale.serving.disaggregated import Disaggregated
from moescale.serving.gpu_counts import laid_out
from moescale.serving.loads import OpenLoop

BASE = ("base_experts", "base_loss", "base_usd_per_mtok", "lifetime_infeasible")  # what a record nests
LISTS = ("laws", "known", "shapes", "built", "excluded_experts", "least_training")  # that it lacks where they are empty
# What an answer rests on, in the order of a report: of a question, its budget and its deployment.
ASKED = (
    *("experts", "match_experts", "family", "match", "target", "against", "budget_of", "max_loss", "max_usd_per_mtok"),
    *("max_tokens", "max_epochs", "max_active_params", "max_total_params", "unique_tokens", "lifetime_tokens"),
    *("max_total_usd", "max_days", "train_gpus", "max_training_usd", "max_flops", "kv_heads", "disaggregated"),
    *("max_gpus", "scheduling", "host", "weights", "max_num_seqs", "reserve_bytes"),
)
LIMITS = (
    *("memory_fraction", "utilization", "weight_bytes_per_param", "kv_bytes_per_element", "expert_parallel"),
    *("max_ttft_s", "max_tpot_s"),
)


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
    base_n_experts: float | None = None  # routed experts of a layer of a stated baseline; the law may count others
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
    less_sure: Candidate | None = None  # before it is built: what a lower chance would serve for far less
    less_sure_shape: str | None = None
    less_sure_between: Candidate | None = None  # at a chance between that and the usual one
    less_sure_between_shape: str | None = None
    more_sure_shape: str | None = None  # of the next
    more_sure: Candidate | None = None  # of the usual chance, where a lower `confidence` has less regret for far less
    usual_confidence: float | None = None  # that no served model keeps, which `confidence` stands for
    least_training: tuple[Candidate, ...] = ()  # that keep the loss as surely as built, the cheapest to train first
    target_spend: TargetSpend | None = None  # where a target score is stated
    repeats_loss: float | None = None  # what repeated tokens add to the loss of the model to train
    repeats_loss_interval: tuple[float, float] | None = None  # that holds 90% of the law's draws
    fresh_usd_per_mtok: float | None = None  # of the model that would be trained if no token were repeated
    default_law: Candidate | None = None  # what the default law would choose, with its loss by the law that was named
    default_law_shape: str | None = None  # the shape of that model, where shapes were compared
    default_law_excluded: bool | None = None  # whether it has more experts than the law that was named may speak of
    default_law_untested_by: str | None = None  # the table of the own runs, of which none has so many experts
    default_law_beyond: str | None = None  # how far it lies beyond the default law's runs, in words; empty inside
    errors_on_runs: Mapping[str, float] | None = None  # of ln L around the bias on a fitted law's runs, by law
    more_epochs: Candidate | None = None  # what would be chosen without `max_epochs`, where that has more
    unbounded: Candidate | None = None  # the choice among all expert counts, where it is better than the stated ones
    unbounded_shape: str | None = None  # the shape that it is of, where several were compared
    without_bounds: beside.WithoutBounds | None = None  # what bounds on parameters leave out
    accuracy: Accuracy | None = None  # of the prices, where held-out measurements of the recommended kind were compared
    base_released: bool | None = None  # True: the baseline is a published model, whose training is paid
    apart_usd_per_mtok: float | None = None  # of the model to train with prefill and decode apart
    open_loop: OpenLoop | None = None  # that keeps a limit of TTFT for 99% of requests, as means do at full load
    open_loop_apart: Disaggregated | None = None  # the same with both apart, where the plan is or that costs less
    for_volume: Life | None = None  # the best life of a volume between the least spend's and the recommended model's
    for_volume_tokens: float | None = None  # that volume
    slower_usd_per_mtok: float | None = None  # of the model to train at twice the limit of TPOT, where that binds
    faster_usd_per_mtok: float | None = None  # the same at nine tenths of it
    faster_choice: Candidate | None = None  # what would be chosen at that limit, where the price has a step before it
    fp8_usd_per_mtok: float | None = None  # of the model to train with fp8 weights, where their format is not stated
    wider_options: str | None = None  # of the server that is planned with, as the usual one serves no such model

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
    def of_labs(self) -> bool:
        """Whether the draws of the law are of several labs, beside which published laws are shown."""
        return bool(self.laws) and not self.voting_laws

    @property
    def is_baseline(self) -> bool:
        """Whether the model to train is the baseline itself, as built."""
        model, base = self.decision.model, self.base_as_built
        return base is not None and (model.experts, model.n_params) == (base.experts, base.n_params)

    @property
    def decision(self) -> Recommendation[Candidate] | Recommendation[Life]:
        """What to train: of the whole life where that is the objective, else of the budget."""
        life = self.lifetime if self.objective == "lifetime" else None
        return life.recommendation if life else self.recommendation

    @property
    def of_life(self) -> bool:
        """Whether the whole life decides, and not the budget alone."""
        return self.decision is not self.recommendation

    def to_dict(self) -> dict[str, object]:
        """The record of the command line's contract."""
        base, usd = whole(self.base_experts), self.base_usd_per_mtok
        told = record(self, without=(*BASE, *(name for name in LISTS if not getattr(self, name))))
        told["bounded_loss"] = {"base_experts": base, "loss": self.base_loss, "plans": told["bounded_loss"]}
        priced = {} if usd is None else {"usd_per_mtok": usd}
        told["bounded_cost"] = {"base_experts": base, **priced, "plans": told["bounded_cost"]}
        if self.excluded_experts:
            told["excluded_experts"] = [whole(e) for e in self.excluded_experts]
        told["decided_by"] = "lifetime.recommendation" if self.of_life else "recommendation"
        told["curves"] = [c.to_dict() for c in self.curves if np.isfinite(c.usd_per_mtok).any()]
        if self.lifetime_infeasible is not None:
            told["lifetime"] = {"infeasible": self.lifetime_infeasible}
        return told


def make_plan(
    law: Law, question: Question, deployment: Deployment, latency: LatencySource, *, search: Search | None = None
) -> Plan:
    """The plan of one training budget under a law and a deployment; `search` is one of the question whose days or dollars are settled.

    The base is the loss-optimal model with `question.match_experts` experts. Raises InfeasibleError when no
    model meets the bounds or none can be served, InputError for impossible questions.
    """
    if search is None:
        search = frugal(Search.of(law, question, deployment, latency))
        bought = beside.settled(search) if search.question.is_bought and search.question.life is None else None
        search = search if bought is None else bought[1]
    question, deployment, latency = search.question, search.costs.deployment, search.costs.latency
    draws = search.draws if len(search.law.draws) and question.draws != 0 else None
    base, sampled = search.base, search.sampled
    best = with_intervals(search.optima, draws and optima_limits(draws, sampled))
    at_loss = search.at_loss()
    at_loss = with_intervals(at_loss, draws and at_loss_limits(draws, sampled, base.usd_per_mtok, sizes_of(at_loss)))
    at_cost: list[Row] = []
    if base.usd_per_mtok is not None and question.explained:
        at_cost = search.within_cost(base.usd_per_mtok)
        at_cost = with_intervals(at_cost, draws and loss_limits(draws, sizes_of(at_cost)))
    lifetime, no_life = None, None
    if question.life is not None:
        try:
            lifetime = plan_lifetime(search)
        except InfeasibleError as error:  # else the plan of the budget has an answer of its own
            if (question.max_loss, question.max_total_usd) != (None, None):
                raise
            no_life = str(error)
    notes = _notes(search, no_life)
    rows = at_loss if question.max_loss is None and question.budget_goal == "serve" else search.answering()
    if lifetime is not None and not search.recommendable(rows):  # a life may train longer than the budget
        instead = search.recommendable(at_loss)
        sure = "" if search.confidence is None else f" with a probability of {search.confidence:.0%}"
        of = f"uses the loss of {question.base_name}" if instead else "is of the lowest loss"
        notes.append(
            f"no served model of {question.budget.flops:.3g} FLOPs reaches {loss_goal(question)}{sure}: except for its lifetime "
            f"part, this plan {of}"
        )
        objective = question.objective if instead else "loss"
        relaxed = replace(question, max_loss=None, max_usd_per_mtok=None, objective=objective)
        search = replace(search, question=relaxed)
        rows = at_loss if instead else search.outright()
    of_life = lifetime is not None and question.goal == "lifetime"
    cheapest_trained = () if of_life else least_training(search)
    found = recommend(search, rows)
    frontier, curves = search.frontier([*best, *at_loss, *at_cost, *rows, found.advice.model])
    near_cost = [] if base.usd_per_mtok is None else search.near_cost(base.usd_per_mtok)
    chosen = choices(search, at_loss, near_cost, frontier)
    chosen = built_choices(found.search, chosen, found.built, found.base or search.base)
    advice = scored(search, found.advice)
    if lifetime is not None:
        lifetime = replace(lifetime, recommendation=scored(search, lifetime.recommendation))
    decided = lifetime.recommendation if lifetime is not None and of_life else advice
    model, shape = decided.model, decided.architecture
    use = training_use(question, model, shape) if of_life else found.use
    repeats = beside.repeats_loss(search, model)
    volume = None if of_life else beside.for_volume(search, model, cheapest_trained)
    split_usd = None if of_life else beside.apart_usd(search, shape)
    loaded = beside.at_percentile(search, model, shape, split_usd)
    faster_usd = None if of_life else beside.usd_at_tpot(search, model, shape, beside.FASTER)
    at_step = faster_usd is not None and faster_usd > beside.PRICE_STEP * model.usd_per_mtok
    bought = question.is_bought and not question.of_life
    return Plan(
        # Of days or dollars what they buy the model, whose training takes a share of them.
        budget_flops=advice.model.training_flops / found.use.budget_share
        if bought
        else float(question.budget.flops_at(advice.model.experts)),
        law=search.law.name,
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
        base=base if question.base is None else replace(base, training_usd=training_usd(question, question.base)),
        base_n_experts=None if question.base is None else float(question.base.architecture.n_experts),
        base_as_built=found.base,
        built=found.built,
        loss_optimal=tuple(best),
        bounded_loss=tuple(at_loss),
        bounded_cost=tuple(at_cost),
        frontier=tuple(frontier),
        recommendation=advice,
        warnings=tuple(notes),
        # A life keeps the loss that was asked for, also where the budget's part is relaxed.
        asked=_bounds(question if of_life else search.question, search.law.family.name, deployment),
        curves=curves,
        training=beside_precision(search, use, model, shape),
        lifetime=lifetime,
        lifetime_infeasible=no_life,
        objective=question.goal,
        confidence=search.confidence,
        laws=law_views(found.search, advice.model, advice.architecture),
        choices=chosen,
        known=known_rows(search, frontier),
        excluded_experts=tuple(float(e) for e in question.experts if not search.law.allows(e)),
        least_training=cheapest_trained,
        target_spend=None if of_life else target_spend(search),
        repeats_loss=repeats and repeats[0],
        repeats_loss_interval=repeats and repeats[1],
        fresh_usd_per_mtok=None if repeats is None or of_life else beside.fresh_usd(search),
        more_epochs=None if repeats is None or of_life else beside.more_epochs(search),
        without_bounds=None if of_life else beside.without_bounds(search, advice.model, advice.architecture),
        base_released=(question.base is not None and question.base.released) or None,
        apart_usd_per_mtok=split_usd,
        open_loop=loaded[0],
        open_loop_apart=loaded[1],
        for_volume=volume and volume[1],
        for_volume_tokens=volume and volume[0],
        slower_usd_per_mtok=None if of_life else beside.usd_at_tpot(search, model, shape, beside.SLOWER),
        faster_usd_per_mtok=faster_usd,
        faster_choice=beside.choice_at_tpot(search, beside.FASTER) if at_step else None,
        accuracy=accuracy_of(
            shape.architecture(), laid_out(deployment, model.attention_dp), latency, apart=question.disaggregated
        ),
    )


def _notes(search: Search, no_life: str | None) -> list[str]:
    """What a reader must know of the answers as a whole."""
    law, question, base, draws = search.law, search.question, search.base, search.question.draws
    notes = [*search.notes]
    if law.is_fitted:
        notes += [f"{law.name}: {n}" for n in law.notes if n.startswith(NOT_IDENTIFIED) or OF_ACTIVE in n]
    if base.usd_per_mtok is None:
        notes.append(f"{question.base_name} cannot be served: {base.infeasible}")
    if draws is not None and draws > len(law.draws):
        notes.append(f"{law.name} has {len(law.draws)} draws, not {draws}; all are used")
    if not len(law.draws) and draws != 0:
        how = "; for intervals, fit it with --bootstrap" if law.is_fitted else ""
        notes.append(f"{law.name} carries no draws, so this plan has no intervals{how}")
    if no_life is not None:
        notes.append(f"no lifetime plan: {no_life}")
    named = [*([] if question.base is None else [question.base]), *question.against]
    return [*notes, *release_notes(named, search.costs.deployment)]


def _bounds(question: Question, family: str, deployment: Deployment) -> dict[str, object]:
    """The bounds and the serving limits that the answer rests on; those that do not apply are absent."""
    d, base, budget = deployment, question.base, question.budget
    days_or_usd = (question.max_days, question.max_training_usd) != (None, None)
    own: dict[str, object] = {
        "experts": [whole(e) for e in question.experts],
        "match_experts": whole(question.match_experts) if base is None else None,
        "family": family,
        "match": None if base is None else base.name,
        "against": [model.name for model in question.against] if question.against_stated else None,
        "unique_tokens": budget.extra.get("unique_tokens"),
        "max_flops": question.max_flops if days_or_usd and question.budget_of is None else None,
        "disaggregated": question.disaggregated or None,
        "max_gpus": d.max_gpus,
        "scheduling": d.scheduling,
        "host": None if d.host == NO_OVERHEAD else asdict(d.host),
        "max_num_seqs": float(np.asarray(d.batch_cap)),
        "reserve_bytes": float(np.asarray(d.reserved_bytes)),
    }
    if np.size(d.weight_bytes_per_param) == 1:
        own["weights"] = d.weights or format_of_bytes("weights", float(np.asarray(d.weight_bytes_per_param)))
    found = {name: getattr(question, name, getattr(budget, name, None)) for name in ASKED} | own
    found |= {name: None if getattr(d, name) is None else float(getattr(d, name)) for name in LIMITS}
    # Experts over all GPUs of a replica are the rule with --attention-dp, and no number; no batch cap is infinite.
    return {name: value for name, value in found.items() if value is not None and value != math.inf}
