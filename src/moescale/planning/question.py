"""What a plan is asked, checked, and fitted to what a law can speak of."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from moescale import bounds
from moescale.errors import InfeasibleError, InputError
from moescale.latency import LatencySource, in_format
from moescale.models.architecture import Architecture
from moescale.models.coordinates import expert_shape_of, in_family, of_architecture
from moescale.models.family import ModelFamily, with_convention
from moescale.models.parameters import parts_of
from moescale.models.quantisation import CheckpointWeights
from moescale.planning.allocation import Budget
from moescale.planning.candidate import Trained
from moescale.planning.total_cost import Lifetime
from moescale.planning.training_price import TrainingPrice
from moescale.scaling_laws.form import LawForm
from moescale.scaling_laws.law import Law
from moescale.serving.deployment import Deployment
from moescale.training.step_time import Precision
from moescale.typing import FloatArray
from moescale.units import expert_model

# Of the tokens that days and dollars buy a model, as its GPU count may depend on them; and when they are met: digits that are printed.
MOST_CORRECTIONS, CLOSE = 5, 2e-5
NEAR = 0.03  # of FLOPs: at so many others models of about the same size answer
CONFIDENCE = 0.8  # of an ensemble's promise, where none is stated
MOST_PUBLISHED = 512.0  # experts of a layer: qwen3-next-80b-a3b, nemotron-3 (catalogue/shapes.toml)

Objective = Literal["serve", "quality", "lifetime", "loss"]
"""Cheapest to serve at the base's loss; lowest loss at a serving cost; fewest dollars over a life; lowest loss outright."""


def inputs_of(form: LawForm, model: Architecture, stated: Mapping[str, float] | None = None) -> dict[str, float]:
    """What a law's form takes of a model beyond N, D and E: its own body, expansion and experts, unless other ones are `stated`."""
    return {name: float(value) for name, value in own_inputs(form, model).items()} | dict(stated or {})


def own_inputs(form: LawForm, model: Architecture) -> dict[str, FloatArray]:
    """The same of models whose numbers may be arrays, without any that are stated."""
    (body, ratio), (grain, shared) = of_architecture(model), expert_shape_of(model)
    own = {"active_body": body, "expansion": ratio, "granularity": grain, "shared_ffn": shared}
    open_ = {name for name, usual in form.extra_inputs.items() if usual == math.inf}  # else those of a family
    return {name: value for name, value in own.items() if name in open_}


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownModel:
    """A model that exists or is thought of: its shape and its training tokens."""

    name: str
    architecture: Architecture
    tokens: float
    weights: CheckpointWeights | None = None  # as they were released or its config says; None: it is not known
    trained_in: Precision | None = None  # of its products, where that is published
    trained_in_source: str = ""
    planned: bool = False  # whether it is a plan's own, whose sizes leave out norms and routers
    released: bool = False  # whether it is trained already, with these tokens

    def in_convention_of(self, family: ModelFamily) -> tuple[float, float]:
        """N and E of the family's model with the same active body and expansion."""
        n, e = in_family(family, *of_architecture(self.architecture))
        return float(n), float(e)

    def inputs(self, form: LawForm) -> dict[str, float]:
        """What a law's form takes of the model beyond N, D and E: its own body, expansion and experts, not those of a family."""
        return inputs_of(form, self.architecture)

    def priced_as_trained(self, price: TrainingPrice) -> TrainingPrice:
        """The price of training in the precision that is published of the model."""
        precision = self.trained_in or price.launch.precision
        return replace(price, launch=replace(price.launch, precision=precision))

    @property
    def sizes(self) -> tuple[float, float]:
        """Active and total parameters without embeddings, as built or, of a planned model, as its plan counts them."""
        counted = parts_of(self.architecture)
        left_out = counted.norms + counted.router if self.planned else 0.0
        return float(counted.non_embedding_active - left_out), float(counted.non_embedding_total - left_out)

    @property
    def training_flops(self) -> float:
        """6 FLOPs for each active parameter of `sizes`, and each token."""
        return 6.0 * self.sizes[0] * self.tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a plan is asked: the budget and its bounds, and the models that may be chosen; impossible ones raise InputError.

    A loss is reached where it is reached with probability `confidence` over the law's draws; where that is None, as the law
    itself predicts, but for ensembles, which have no curve of their own to promise by. With `lifetime_tokens` and `training` also the best life is looked for: the cheapest at `max_loss` (None: the loss of the
    base), with `max_total_usd` alone the lowest loss within so many dollars, with both the cheapest if it stays within them.
    """

    budget: Budget
    experts: Annotated[tuple[float, ...], bounds.COUNT] = (1.0, 4.0, 8.0, 16.0, 32.0, 64.0)  # that may be chosen
    match_experts: Annotated[float, bounds.COUNT] = 1.0  # the base: the loss-optimal model of so many, only compared
    base: KnownModel | None = None  # the base instead of that
    base_flops: Annotated[float | None, bounds.FLOPS] = None  # that the base is trained with; None: those of the budget
    budget_of: str | None = None  # no budget is stated: whose training FLOPs it is, such as those of `base`
    target: str | None = None  # task and score that the base stands for, such as hellaswag=0.75
    against: tuple[KnownModel, ...] = ()  # shown beside the plan
    against_stated: bool = False  # else they are the published ones nearest to its FLOPs
    explained: bool = (
        True  # whether what no first screen shows is asked: the models at the baseline's cost, and its compute
    )
    max_loss: Annotated[float | None, bounds.LOSS] = None
    max_usd_per_mtok: Annotated[float | None, bounds.USD_PER_MTOK] = None
    lifetime_tokens: Annotated[float | None, bounds.TOKENS] = None
    training: TrainingPrice | None = None  # for training days and dollars; with lifetime_tokens also the cheapest life
    train_gpus: Annotated[float | None, bounds.COUNT] = None  # for the days that training takes
    max_days: Annotated[float | None, bounds.DAYS] = None  # of training, which fix the budget, as do the next two
    max_training_usd: Annotated[float | None, bounds.TOTAL_USD] = None
    max_flops: Annotated[float | None, bounds.FLOPS] = None  # beside days or dollars; None: these alone are the budget
    max_total_usd: Annotated[float | None, bounds.TOTAL_USD] = None  # of training and serving
    kv_heads: float | None = None  # key-value heads of a layer; None: the family's own, one a query head for most
    vocab_size: int | None = None  # rows of the tables that are served; None: those that N counts, or the recipe's
    disaggregated: bool = False  # whether models are served with prefill and decode on GPUs of their own
    draws: Annotated[int | None, bounds.DRAWS] = None  # of the law, for intervals; None: all, 0: no intervals
    convention: str | None = None
    objective: Objective | None = None  # None: what the bounds say
    confidence: Annotated[float | None, bounds.SHARE] = None
    max_active_params: Annotated[float | None, bounds.PARAMETERS] = None  # without embeddings, as are the next
    max_total_params: Annotated[float | None, bounds.PARAMETERS] = None

    def __post_init__(self) -> None:
        bounds.check_bounds(self, where="question")
        if self.max_total_usd is not None and (self.lifetime_tokens is None or self.training is None):
            raise InputError(
                "total dollars cover training and serving a number of tokens",
                where="--max-total-usd",
                next_step="give --lifetime-tokens as well",
            )

    def bought_at(self, scale: float) -> Question:
        """With the FLOPs that the days and dollars buy, at so many times the MFU of each expert count, as the budget."""
        if self.training is None:
            return self
        price = self.training.scaled(scale)
        limits = (self.max_days, self.train_gpus, self.max_training_usd, self.max_flops)
        budget = replace(self.budget, flops=price.flops_bought(*limits), by_experts=price.flops_by_experts(*limits))
        return replace(self, budget=budget, training=price)

    @property
    def is_bought(self) -> bool:
        """Whether days or dollars are the budget, at the MFU of each model by the parts of its step."""
        stated = (self.max_days, self.max_training_usd) != (None, None)
        return stated and self.training is not None and self.training.timed

    def affordable(self, model: Architecture, flops: float, tokens: float) -> float:
        """How many times these FLOPs and tokens the stated days and dollars buy a built model; 1 where it cannot be timed."""
        price, gpus, times, within = self.training, self.n_train_gpus, 1.0, 0.0
        if price is None or not self.is_bought:
            return times
        for _ in range(MOST_CORRECTIONS):
            try:
                bill = price.bill(model, times * flops, times * tokens, gpus)
            except InfeasibleError:
                return 1.0
            days = bill.gpu_days / gpus if gpus else 0.0
            share = max(days / (self.max_days or math.inf), bill.usd / (self.max_training_usd or math.inf))
            within = max(within, times) if share <= 1.0 + CLOSE else within
            times = min(times / share, (self.max_flops or math.inf) / flops)
            if abs(share - 1.0) < CLOSE:
                return times
        # The bill has steps, where another number of GPUs is taken: the most that was seen to be within, as corrections go on for ever.
        return within or times

    def rebought(self, model: Trained) -> Question | None:
        """The question with the FLOPs that days and dollars buy at the MFU of a model that was built; None where it has about these."""
        budget = self.budget
        bounded = budget.max_tokens is not None and model.tokens >= (1.0 - NEAR) * budget.max_tokens
        near = abs(model.training_flops / float(budget.flops_at(model.experts)) - 1.0) <= NEAR
        if not self.is_bought or bounded or near:
            return None
        bought = replace(self, max_flops=None).bought_at(1.0).budget.flops_at(model.experts)
        return self.bought_at(model.training_flops / float(bought))

    def training_usd(self, model: Architecture, flops: float, tokens: float) -> float:
        """Dollars of training a built model; infinite where the stated GPUs do not hold it, NaN without a price."""
        if self.training is None:
            return math.nan
        try:
            return self.training.bill(model, flops, tokens, self.n_train_gpus).usd
        except InfeasibleError:
            return math.inf

    @property
    def base_name(self) -> str:
        """What models are compared with, in words."""
        within = " within the bounds" if self.bounds_base else ""
        return self.base.name if self.base else f"the loss-optimal {expert_model(self.match_experts)}{within}"

    @property
    def bounds_base(self) -> bool:
        """Whether bounds on parameters hold for the base, too: not where it is stated, or is the model of a stated loss."""
        bounded = (self.max_active_params, self.max_total_params) != (None, None)
        return bounded and self.base is None and (self.budget_of is None or self.max_total_usd is not None)

    @property
    def base_budget(self) -> Budget:
        """What the base is trained with: days and dollars buy it other FLOPs than the models that it is compared with."""
        return replace(self.budget, flops=self.base_flops, by_experts=()) if self.base_flops else self.budget

    @property
    def of_base(self) -> Question:
        """As the base is trained: with its own budget, and where days or dollars buy it in bf16, whatever the others are trained in."""
        own, price = replace(self, budget=self.base_budget), self.training
        if price is None or not self.is_bought:
            return own
        return replace(own, training=replace(price, launch=replace(price.launch, precision="bf16")))

    @property
    def goal(self) -> Objective:
        """What is looked for: as stated, else a life where one is priced, quality where only a cost is bounded."""
        usual = "quality" if self.cost_limit is not None else "serve"
        return self.objective or ("lifetime" if self.life is not None else usual)

    @property
    def of_life(self) -> bool:
        """Whether the whole life decides, and not the budget alone."""
        return self.goal == "lifetime" and self.life is not None

    @property
    def n_train_gpus(self) -> int | None:
        """The number of training GPUs, where it is stated."""
        return None if self.train_gpus is None else int(self.train_gpus)

    @property
    def budget_goal(self) -> Objective:
        """What is looked for within the budget, also where a life is decided for."""
        usual = "serve" if self.cost_limit is None else "quality"
        return usual if self.goal == "lifetime" else self.goal

    @property
    def by_loss(self) -> bool:
        """Whether the lowest loss is looked for within the budget, and not the fewest dollars."""
        return self.budget_goal in ("quality", "loss")

    @property
    def cost_limit(self) -> float | None:
        """The serving cost within which the lowest loss is asked for; None where a loss is to be reached instead."""
        return self.max_usd_per_mtok if self.max_loss is None else None

    @property
    def total_limit(self) -> float | None:
        """The dollars of a whole life within which the lowest loss is asked for; None where a loss is to be reached instead."""
        return self.max_total_usd if self.max_loss is None else None

    @property
    def life(self) -> Lifetime | None:
        """The conditions of a model's life as the searches take them; None where its life is not asked about."""
        if self.lifetime_tokens is None or self.training is None:
            return None
        return Lifetime(
            served_tokens=self.lifetime_tokens,
            usd_per_flop=self.training.usd_per_flop,
            usd_per_flop_at=None if self.training.mfu_by_experts is None else self.training.usd_per_flop_at,
            max_tokens=self.budget.max_tokens,
            max_usd_per_mtok=self.max_usd_per_mtok,
            extra=self.budget.extra,
        )


def as_released(model: KnownModel, deployment: Deployment, latency: LatencySource) -> tuple[Deployment, LatencySource]:
    """The deployment and its latencies with the model's weights as they were released, unless it states their format."""
    held = model.weights
    if deployment.weights is not None or held is None or held.format is None or held.bytes_per_param >= 2.0:
        return deployment, latency
    own = replace(deployment, weights=held.format, weight_bytes_per_param=held.bytes_per_param)
    return own, in_format(latency, held.format, held.bytes_per_param)


def release_notes(models: Iterable[KnownModel], deployment: Deployment) -> list[str]:
    """Which known models are priced in another format than the deployment's."""
    formats = {m.name: m.weights.format for m in models if m.weights is not None and m.weights.bytes_per_param < 2.0}
    listed = ", ".join(f"{name} in {held}" for name, held in formats.items())
    stated = deployment.weights is not None or not formats
    return [] if stated else [f"weights priced as released: {listed}; --weights sets one format for all models"]


def only_experts(law: Law) -> float | None:
    """The one expert count that a law knows; None for laws of several."""
    # A form with experts that dense runs alone were fitted to has learnt nothing of experts.
    if (law.form.uses_experts or law.form.implied_inputs) and law.max_experts != 1.0:
        return None
    least, most = law.fit_range.get("experts", (1.0, 1.0))
    return least if least == most else 1.0


def ladder(law: Law) -> tuple[float, ...]:
    """The expert counts that a plan compares by default: those of the family, and doublings as far as a law of sources speaks.

    No more than a published model has: beyond, nobody has shown that routers and trainers keep up.
    """
    counts = list(law.family.ladder)
    while law.form.of_sources and law.allows(2.0 * counts[-1]) and 2.0 * counts[-1] <= MOST_PUBLISHED:
        counts.append(2.0 * counts[-1])
    return tuple(counts)


def prepare(law: Law, question: Question) -> tuple[Law, Question, list[str]]:
    """The law under the question's convention and the question that it can answer, with notes on what was left out.

    The base's expert count joins no candidates. Raises InfeasibleError where the law knows none of those that are asked about.
    """
    notes: list[str] = []
    base = question.match_experts if question.base is None else min(question.experts)
    experts = sorted(set(question.experts))
    if (only := only_experts(law)) is not None:
        what = f"{law.name} knows {expert_model(only)}s only"
        if only not in experts:
            next_step = "add this count, or name another --law"
            raise InfeasibleError(what, where="--experts", nearest=f"{only:g}", next_step=next_step)
        if {*experts, base} != {only}:
            notes.append(f"{what}: other expert counts are left out")
        experts, base = [only], only
    if question.convention is not None and question.convention != law.family.convention:
        law = replace(law, family=with_convention(law.family, question.convention))
        notes.append(f"{law.name} was fitted with another count of training FLOPs than `{question.convention}`")
    if question.kv_heads is not None:
        law = replace(law, family=replace(law.family, kv_heads=question.kv_heads))
    return law, replace(question, experts=tuple(experts), match_experts=base), notes
