"""A plan as users ask for it: at another limit of TPOT where no model keeps it, in the best of several shapes, beside the default law."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice

from moescale.errors import InfeasibleError, InputError, MoescaleError
from moescale.latency import LatencySource
from moescale.models.recipe import most_trained_tokens
from moescale.models.rounding import buildable
from moescale.options.fields import silent
from moescale.options.law import (
    DEFAULT_LAW,
    EVERY_SHAPE,
    PLANNED_SHAPE,
    SHAPES,
    USUAL_SHAPES,
    LawOptions,
    in_shape,
    shape_name,
)
from moescale.options.question import BoundOptions
from moescale.options.runs import runs_of
from moescale.options.serving import PLANNED_TPOT_S, ServingOptions
from moescale.planning import shapes as compared
from moescale.planning.as_built import stacked
from moescale.planning.beside import is_served
from moescale.planning.candidate import Candidate
from moescale.planning.least_training import frugal
from moescale.planning.limits import StatedLimit, stated_limits
from moescale.planning.plan import Plan, make_plan
from moescale.planning.question import CONFIDENCE, KnownModel, Question
from moescale.planning.rationale import beyond_runs
from moescale.planning.search import Search
from moescale.scaling_laws import Law, predict
from moescale.serving.deployment import Deployment
from moescale.serving.disaggregated import apart
from moescale.serving.gpu_counts import cheapest
from moescale.training.choice import Launch
from moescale.typing import Progress
from moescale.units import format_seconds

# Our choice: where none has the usual chance, the highest of these steps that a model has is planned with, from the least on.
STEP, LEAST_SURE = 0.05, 0.5
# Our choice: a chance below the usual one that is named where it serves for less than so much of the price, and one between them.
LESS_SURE, BETWEEN, FAR_CHEAPER = 0.6, 0.7, 0.5
# Where few epochs cost more: about as many as the repeats after which further ones have lost most of their value (R_D* of 15.4, arXiv 2305.16264).
MANY_EPOCHS = 16.0
MOST_CORRECTIONS, CLOSE = 3, 0.005  # of days or dollars that keep a chance: the model changes with them
LIMITS = {"max_training_usd": "budget_usd"}  # options of other names than in `Plan.asked`
SLOWER_S = (0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0)  # TPOTs that are tried where no model keeps a limit


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """A plan that is asked for.

    Where no model keeps the deployment's TPOT, the plan is made at the nearest that one keeps, with a warning, if it
    may be `slower`; else it is refused with that TPOT. `beside_default` adds what the default law would choose; without
    `explained` what a first screen does not show is left out: what published laws say, and the baseline's compute.
    """

    bounds: BoundOptions
    deployment: Deployment
    latency: LatencySource
    details: LawOptions = field(default_factory=LawOptions)
    kv_heads: int | None = None
    unpriced: bool = False  # training may be on a GPU without a price
    launch: Launch | None = None  # how the run is trained
    slower: bool = False
    beside_default: bool = False
    explained: bool = True
    epochs: float | None = None  # of unique tokens at most, where those of the bounds are not stated
    wider: ServingOptions | None = None  # with what serves larger models, of what is not stated
    base: KnownModel | None = None  # the baseline, where it is not that of the bounds

    def question(self, law: Law, bounds: BoundOptions | None = None) -> Question:
        """The question under a law, by default that of the bounds."""
        found = (bounds or self.bounds).question(
            law, self.deployment, self.details, kv_heads=self.kv_heads, unpriced=self.unpriced, launch=self.launch
        )
        budget = found.budget
        if budget.max_epochs is not None and self.epochs is not None:
            unique = budget.extra["unique_tokens"]
            tokens = min(self.epochs * unique, most_trained_tokens())
            found = replace(found, budget=replace(budget, max_tokens=tokens, max_epochs=tokens / unique))
        return replace(found, explained=self.explained, base=found.base or self.base)

    def search(self, law: Law, question: Question, *, coarse: bool = False) -> Search:
        """The models that answer a question."""
        return frugal(Search.of(law, question, self.deployment, self.latency, coarse=coarse))

    def plan(self, law: Law, progress: Progress = silent) -> Plan:
        """The plan under a law; with a `within_chance` that of so many fewer days or dollars, against the baseline of all of them."""
        chance, found = self.bounds.within_chance, self._answer(law, progress)
        if chance is None:
            return found
        asked, stated = self, found.asked
        for _ in range(MOST_CORRECTIONS):
            if not (limits := stated_limits(found)):
                what = "no days or dollars of training are stated whose error is known"
                next_step = "give --days, --budget-usd or --max-total-usd, without --mfu"
                raise InputError(what, where="--within-chance", next_step=next_step)
            if (limit := limits[0]).chance >= chance - CLOSE:
                break
            asked = asked._for_less(limit, limit.most / limit.taken(chance), law)
            found = asked._answer(law, progress)
            found = replace(found, asked={**found.asked, limit.name: stated[limit.name]})
        return found

    def _for_less(self, limit: StatedLimit, share: float, law: Law) -> PlanRequest:
        """The same for a share of the days or dollars of a limit, and with the baseline that was set against them."""
        usual = in_shape(law, PLANNED_SHAPE) if self.shapes(law) else law
        base = self.base
        if base is None and limit.name != "max_total_usd" and self.question(usual).base is None:
            base = self._planned_base(usual)
        names = ("days", "max_days") if limit.name == "max_days" else (LIMITS.get(limit.name, limit.name),)
        stated = {name: getattr(self.bounds, name) for name in names}
        less = {name: share * value for name, value in stated.items() if value is not None}
        return replace(self, bounds=replace(self.bounds, **less), base=base)

    def _planned_base(self, law: Law) -> KnownModel | None:
        """The baseline of a law's shape that the bounds ask for, as a known model; None where nothing serves it."""
        question = self.question(law)
        question = replace(question, experts=(question.match_experts,), against=(), explained=False)
        with suppress(InfeasibleError):
            return _as_known(self.search(law, question, coarse=True))
        return None

    def _answer(self, law: Law, progress: Progress) -> Plan:
        """The plan of the bounds; where only the baseline itself keeps the usual confidence, or nothing, with what serves larger models, else with the highest that another model has."""
        try:
            found = self._plan(law, progress)
        except InfeasibleError as error:
            to_cost = self.bounds.objective == "quality" and self.bounds.max_usd_per_mtok is None
            instead = None if to_cost else self._less_sure(law, progress)
            instead = instead or self._wider(law, progress, error.what)
            if instead is None:
                raise
            return self._beside_default(instead, law)
        found = (self._less_sure(law, progress) if found.is_baseline else None) or found
        found = self._cheaper_life(found, law, progress)
        return self._beside_default(self._beside_fp8(found), law)

    def _cheaper_life(self, plan: Plan, law: Law, progress: Progress) -> Plan:
        """The plan of a life with what serves larger models, where the life is else that of as few experts as the baseline's, and costs more."""
        model, total = plan.decision.model, plan.decision.model.total_usd
        if not plan.of_life or model.experts != plan.base_experts or self.bounds.max_total_usd is not None:
            return plan
        missed = f"other models do not keep the loss on {self.deployment.max_gpus} GPUs in {self.deployment.weights or 'bf16'}"
        wider = self._wider(law, progress, missed)
        less = wider is not None and total is not None and (wider.decision.model.total_usd or math.inf) < total
        return wider if wider is not None and less else plan

    def _beside_fp8(self, plan: Plan) -> Plan:
        """The plan with the price of its model with fp8 weights, where their format is not stated and the GPU has that."""
        if self.wider is None or plan.wider_options:
            return plan
        with suppress(MoescaleError):  # a latency table may not speak of fp8
            tpot_s = plan.asked.get("max_tpot_s")
            limit = tpot_s if isinstance(tpot_s, float) else None
            deployment = replace(self.wider.deployment(), max_gpus=self.deployment.max_gpus, max_tpot_s=limit)
            if deployment.weights != "fp8" or self.deployment.weights is not None:
                return plan
            ((model, _),) = stacked([plan.decision.architecture.architecture()])
            source = self.wider.open_latency(deployment)
            price = apart if plan.asked.get("disaggregated") else partial(cheapest, every=True)
            (usd,) = price(model, source, deployment).usd_per_mtok.tolist()
            return replace(plan, fp8_usd_per_mtok=usd if math.isfinite(usd) else None)
        return plan

    def _wider(self, law: Law, progress: Progress, missed: str) -> Plan | None:
        """The plan with what serves larger models, of what is not stated, and what is `missed` without; None where the baseline alone answers then, too."""
        if self.wider is None:
            return None
        with suppress(MoescaleError):  # nor may a latency table speak of fp8
            deployment = self.wider.deployment(usual_tpot_s=PLANNED_TPOT_S)
            wider = replace(self, deployment=deployment, latency=self.wider.open_latency(deployment))
            found = wider._plan(law, progress)
            options = " ".join(_stated_wider(found, self.deployment))
            notes = (f"{missed}: planned with {options}", *found.warnings)
            return None if found.is_baseline else replace(found, warnings=notes, wider_options=options)
        return None

    def _less_sure(self, law: Law, progress: Progress) -> Plan | None:
        """The plan with the highest chance that a served model has, in steps; None where one is stated, has the usual one, or none has LEAST_SURE."""
        sure = 0.0 if self.bounds.confidence else self._most_sure(law)
        if not LEAST_SURE <= sure < CONFIDENCE:
            return None
        server = f"{self.deployment.max_gpus} GPUs in {self.deployment.weights or 'bf16'}"
        missed = f"{CONFIDENCE:.0%} is out of reach of a model that {server} serve"
        if (found := self._wider(law, progress, missed)) is not None:
            sure = found.confidence or CONFIDENCE
            note = f"{found.warnings[0]}, and with {sure:.0%}, which has less expected regret there"
            return found if sure >= CONFIDENCE else replace(found, warnings=(note, *found.warnings[1:]))
        with suppress(InfeasibleError):
            confidence = round(math.floor(sure / STEP) * STEP, 2)
            found = replace(self, bounds=replace(self.bounds, confidence=confidence))._plan(law, progress)
            note = f"{CONFIDENCE:.0%} is out of reach of a served model: planned with --confidence {confidence:g}"
            note += "; more GPUs or fewer bytes a weight (--max-gpus, --weights) may serve one that keeps it"
            return replace(found, usual_confidence=CONFIDENCE, warnings=(note, *found.warnings))
        return None

    def _most_sure(self, law: Law) -> float:
        """The highest probability of the loss that a served model has in the shapes that are planned; 0 without draws."""
        most = 0.0
        for each in self.in_shapes(law).values() or [law]:
            question = self.question(each)
            if not each.promises_by_draws or question.budget_goal != "serve" or question.of_life:
                return 0.0
            with suppress(MoescaleError):
                base = self.usual_base(each, question)
                most = max(
                    most, self.search(each, replace(question, base=base or question.base), coarse=True).most_sure()
                )
        return most

    def shapes(self, law: Law) -> tuple[str, ...]:
        """The shapes that are planned: all where asked, the usual ones where nothing stated speaks against it; none: the law's."""
        if self.details.shape == EVERY_SHAPE:
            return tuple(sorted(SHAPES, key=lambda name: name != PLANNED_SHAPE))
        if self.details.shape is not None or self.kv_heads is not None:
            return ()
        if law.form.of_sources:
            return USUAL_SHAPES
        # The shape of one's own runs may be one that nobody serves: whole queries, experts in every other layer.
        known = law.is_fitted and law.form.uses_experts and None not in law.form.extra_inputs.values()
        return tuple(dict.fromkeys((PLANNED_SHAPE, shape_name(law.family.name), *USUAL_SHAPES))) if known else ()

    def in_shapes(self, law: Law) -> dict[str, Law]:
        """The law of each shape that is planned, by the shape's name."""
        own = shape_name(law.family.name)
        return {name: law if name == own else in_shape(law, name) for name in self.shapes(law)}

    def _plan(self, law: Law, progress: Progress) -> Plan:
        """The plan under a law: in all shapes where asked, in the usual ones where nothing stated speaks against it, else in the law's."""
        asked, found = self, self._plan_of_counts(law, progress)
        if _more_epochs_pay(found):
            asked = replace(self, epochs=MANY_EPOCHS)
            found = asked._plan_of_counts(law, progress)
        return asked._of_least_regret(found, law, progress)

    def _of_least_regret(self, plan: Plan, law: Law, progress: Progress) -> Plan:
        """The plan with a lower chance whose model serves for far less and has less expected regret; as it is without one."""
        usual, others = plan.decision.model, (plan.less_sure, plan.less_sure_between)
        known = [(c.regret.expected, c) for c in (usual, *others) if c is not None and c.regret is not None]
        _, best = min(known, key=lambda each: each[0], default=(0.0, usual))
        # In one stated shape the chance stays, so that dollars rise with the budget.
        if self.bounds.confidence is not None or best is usual or usual.regret is None or not plan.shapes:
            return plan
        with suppress(InfeasibleError):
            bounds = replace(self.bounds, confidence=best.probability_at_least_base)
            found = replace(self, bounds=bounds)._plan_of_counts(law, progress)
            regret = found.decision.model.regret
            if regret is not None and regret.expected < usual.regret.expected:
                usual = replace(usual, probability_at_least_base=CONFIDENCE)
                between = None if best is plan.less_sure_between else plan.less_sure_between
                shapes = {
                    "more_sure_shape": plan.shapes[0].shape,
                    "less_sure_between_shape": plan.less_sure_between_shape,
                }
                return replace(found, more_sure=usual, less_sure_between=between, **shapes)
        return plan

    def _plan_of_counts(self, law: Law, progress: Progress) -> Plan:
        """The plan in the shapes, where expert counts are stated beside the choice among all."""
        if shapes := self.shapes(law):
            return self._plan_of_shapes(shapes, law, progress)
        progress("train and serve models of every size", 0.1)
        question = self.question(law)
        if (base := self.usual_base(law, question)) is not None:
            question = replace(question, base=base)
        if not self._any_shape().shapes(law):
            return self._beside_all_counts(self.plan_of_shape(law, question), {"": (law, question.base)})
        search = self.search(law, question)
        plan = self.plan_of_shape(law, question, None if question.is_bought else search)
        plan = _beside_less_sure(plan, {shape_name(law.family.name): search})
        return self._beside_all_counts(plan, {"": (law, question.base)})

    def _any_shape(self) -> PlanRequest:
        """The same, of whatever shape is the best."""
        return replace(self, details=replace(self.details, shape=None), kv_heads=None)

    def plan_of_shape(self, law: Law, question: Question | None = None, search: Search | None = None) -> Plan:
        """The plan in the law's own shape; `search` as in `make_plan`."""
        if question is None:
            question = self.question(law)
        if (base := self.usual_base(law, question)) is not None:
            question = replace(question, base=base)
        return self._within_tpot(law, question, search)

    def _beside_default(self, plan: Plan, law: Law) -> Plan:
        """The plan with what the default law would choose, in the shape of the law or in the usual ones where shapes were compared."""
        by_loss = (self.bounds.max_loss, self.bounds.matched()[1]) != (None, None)
        if not self.beside_default or law.name == DEFAULT_LAW or by_loss:
            return plan
        with suppress(MoescaleError):
            own = next((name for name, family in SHAPES.items() if family == law.family.name), PLANNED_SHAPE)
            asked = replace(self, details=LawOptions(), beside_default=False, explained=False)
            default = LawOptions().find_law()
            found = asked._plan(default, silent) if plan.shapes else asked.plan_of_shape(in_shape(default, own))
            other, shape = found.decision.model, found.shapes[0].shape if found.shapes else own
            own_law = (
                law if shape_name(law.family.name) == shape else in_shape(law, shape)
            )  # as N and E of the other model's shape
            here = predict(own_law, other.n_params, other.tokens, other.experts, extra=self.details.inputs()).loss
            probability = None
            with suppress(MoescaleError):  # the law may have no baseline in that shape
                question = self.question(own_law)
                question = replace(question, base=self.usual_base(own_law, question) or question.base)
                search = self.search(own_law, question, coarse=True)
                _, sure = search.judged_shapes([found.decision.architecture], other.experts)
                probability = None if sure is None else float(sure[0])
            keys = {DEFAULT_LAW: DEFAULT_LAW, law.name: "own", f"{law.name} held out": "held_out"}
            known = {name: law.evidence.get(f"error_{key}") for name, key in keys.items()}
            on_runs = {name: error for name, error in known.items() if isinstance(error, float)}
            return replace(
                plan,
                default_law=replace(other, loss=here, probability_at_least_base=probability),
                default_law_shape=shape,
                default_law_excluded=not bool(own_law.allows(other.experts)),
                default_law_untested_by=None if own_law.allows(other.experts) else runs_of(law),
                default_law_beyond=beyond_runs(found.decision.caveats),
                errors_on_runs=on_runs or None,
            )
        return plan

    def _within_tpot(self, law: Law, question: Question, search: Search | None) -> Plan:
        """At the deployment's limit of TPOT, or at the nearest that a model keeps."""
        deployment, latency = self.deployment, self.latency
        try:
            return make_plan(law, question, deployment, latency, search=search)
        except InfeasibleError as error:
            if deployment.max_tpot_s is None or error.where == "--max-total-usd":
                raise
            limit, slowest = float(deployment.max_tpot_s), replace(deployment, max_tpot_s=None)
            try:
                found, nearest = make_plan(law, question, slowest, latency), "none"
            except InfeasibleError:
                raise error from None  # which no other limit of TPOT answers
            for tpot_s in (s for s in SLOWER_S if s > limit):
                with suppress(InfeasibleError):
                    found = make_plan(law, question, replace(deployment, max_tpot_s=tpot_s), latency)
                    nearest = format_seconds(tpot_s).replace(" ", "")
                    break
            if not self.slower:
                next_step = f"give --max-tpot {nearest}, or take a faster GPU"
                raise InfeasibleError(error.what, nearest=f"--max-tpot {nearest}", next_step=next_step) from error
            slow = f"no model serves within {format_seconds(limit)} per output token: planned with --max-tpot {nearest}"
            return replace(found, warnings=(slow, *found.warnings))

    def _plan_of_shapes(self, shapes: tuple[str, ...], law: Law, progress: Progress) -> Plan:
        """The plan in the best of `shapes`, all against one baseline: that of the default shape, where none is named.

        The best model of each shape is built first; the plan is made in the shape whose model stays the best when planned. Shapes that
        cannot have stated expert counts, or none of whose models stated training GPUs hold, are left out with a warning.
        """
        bounds, base = self.bounds, None
        laws = self.in_shapes(law)
        questions = {name: self.question(laws[name]) for name in shapes}
        searches: dict[str, Search] = {}
        left_out: dict[str, str] = {}
        usual = questions[PLANNED_SHAPE]
        answering = (name for name in shapes if is_served(laws[name], questions[name], self.deployment, self.latency))
        most = None if self.details.shape == EVERY_SHAPE else 2 + len(set(shapes) - set(USUAL_SHAPES))
        served = list(islice(answering, most))
        for i, name in enumerate(served if served != [PLANNED_SHAPE] else ()):  # else there is nothing to compare
            progress(f"models of the shape {name}", i / (len(served) + 1))
            base = base or self.usual_base(laws[name], questions[name])
            if base is not None:
                questions[name] = replace(questions[name], base=base)
            try:
                searches[name] = self.search(laws[name], questions[name])
                if name == PLANNED_SHAPE and usual.base is None:
                    base = _as_known(searches[name])
            except MoescaleError as error:
                left_out[name] = error.what
        choices = {name: compared.choice_in_shape(name, search) for name, search in searches.items()}
        found = {name: best[0] for name, best in choices.items() if best is not None}
        bought = {name: best[1] for name, best in choices.items() if best is not None}
        left_out |= {name: "no model of it answers the question" for name in choices.keys() - found.keys()}
        plans: dict[str, Plan] = {}
        refused: InfeasibleError | None = None
        while found:
            by_loss = compared.looks_for_loss(next(iter(searches.values())).question)
            ordered = compared.in_order(compared.at_one_loss(found.values(), searches), PLANNED_SHAPE, by_loss=by_loss)
            best = ordered[0].shape
            if best in plans:
                stated = (bounds.experts, bounds.train_gpus) != (None, None)  # what a shape may not have, or not fit
                notes = [f"shape {name} is left out: {why}" for name, why in left_out.items() if stated]
                beside = tuple(ordered) if len(ordered) > 1 else ()
                plan = replace(plans[best], shapes=beside, warnings=(*notes, *plans[best].warnings))
                plan = _beside_less_sure(plan, searches)
                return self._beside_all_counts(plan, {name: (laws[name], questions[name].base) for name in served})
            progress(f"plan with the shape {best}", len(served) / (len(served) + 1))
            try:
                search = searches[best]
                if (
                    bought[best].budget != search.question.budget
                ):  # of days or dollars: the plan would correct it likewise
                    search = self.search(laws[best], replace(bought[best], explained=search.question.explained))
                plans[best] = plan = self.plan_of_shape(laws[best], questions[best], search)
            except InfeasibleError as error:
                refused, left_out[best] = error, error.what
                del found[best]
                continue
            factor = plan.accuracy and plan.accuracy.geometric_mean
            usd = plan.training and plan.training.usd
            found[best] = compared.ShapeChoice(best, plan.decision.model, usd, price_factor=factor)
        if refused is not None:
            raise refused
        # What is nearest is said of the shape whose models come closest.
        nearest = min(searches, key=lambda name: compared.lowest_budget_loss(searches[name]), default=PLANNED_SHAPE)
        return self.plan_of_shape(laws[nearest], questions[nearest], searches.get(nearest))

    def _beside_all_counts(self, plan: Plan, shapes: Mapping[str, tuple[Law, KnownModel | None]]) -> Plan:
        """The plan with the choice among all expert counts, where it is better than stated ones allow; shapes by their laws and baselines."""
        bounds = self.bounds
        if bounds.experts is None or (plan.of_life and bounds.max_total_usd is not None):
            return plan
        every: dict[str, Search] = {}
        for name, (law, base) in shapes.items():
            question = self.question(law, replace(bounds, experts=None))
            with suppress(MoescaleError):
                every[name] = self.search(law, replace(question, base=base))
        other = compared.better_choice(plan.decision.model, every, PLANNED_SHAPE)
        return plan if other is None else replace(plan, unbounded=other.model, unbounded_shape=other.shape or None)

    def usual_base(self, law: Law, question: Question) -> KnownModel | None:
        """The baseline of the default shape for a question in another one; None where that names one, or is of another law."""
        speaks = law.form.of_sources or self.shapes(law)
        if question.base is not None or not speaks or law.family.name == SHAPES[PLANNED_SHAPE]:
            return None
        return self._planned_base(in_shape(law, PLANNED_SHAPE))


def _beside_less_sure(plan: Plan, searches: Mapping[str, Search]) -> Plan:
    """The plan with the model that serves for far less at a lower chance, by the searches in each shape; as it is without one."""
    if plan.confidence != CONFIDENCE or plan.objective != "serve" or plan.of_life or plan.usual_confidence:
        return plan
    found = _at_chance(searches, LESS_SURE, FAR_CHEAPER * plan.decision.model.usd_per_mtok)
    if found is None:
        return plan
    between = _at_chance(searches, BETWEEN, plan.decision.model.usd_per_mtok)
    shape, model = between or (None, None)
    return replace(
        plan,
        less_sure=found[1],
        less_sure_shape=found[0],
        less_sure_between=model,
        less_sure_between_shape=shape,
    )


def _at_chance(searches: Mapping[str, Search], chance: float, usd_per_mtok: float) -> tuple[str, Candidate] | None:
    """The shape and the cheapest model with a chance of the loss, as built; None where none costs less than so many dollars."""
    asked = {
        name: replace(search, question=replace(search.question, confidence=chance)) for name, search in searches.items()
    }
    found: dict[str, Candidate] = {}
    for name, search in asked.items():
        rows = search.at_loss(search.question.max_loss)
        served = [c for c in rows if isinstance(c, Candidate) and search.law.allows(c.experts)]
        found |= {name: min(served, key=_price)} if served else {}
    name = min(found, key=lambda shape: _price(found[shape]), default="")
    if not name or _price(found[name]) >= usd_per_mtok:
        return None
    built = compared.choice_in_shape(name, asked[name])
    if built is None:
        return name, replace(found[name], probability_at_least_base=chance)
    best, _ = built
    return name, replace(best.model, probability_at_least_base=chance, training_usd=best.training_usd)


def _price(model: Candidate) -> float:
    return model.usd_per_mtok


def _more_epochs_pay(plan: Plan) -> bool:
    """Whether the model of more epochs serves for less and repays its training before it has served as many tokens as it was trained on."""
    more, use, model = plan.more_epochs, plan.training, plan.decision.model
    if plan.objective != "serve" or more is None or more.training_usd is None or use is None or use.usd is None:
        return False
    after = compared.repaid_after(
        compared.ShapeChoice("", more, more.training_usd), compared.ShapeChoice("", model, use.usd)
    )
    return more.usd_per_mtok < model.usd_per_mtok and after is not None and after <= more.tokens


def _stated_wider(plan: Plan, deployment: Deployment) -> list[str]:
    """The options of a plan's server that a deployment is without."""
    most, weights = plan.asked.get("max_gpus"), plan.asked.get("weights")
    told = [f"--weights {weights}"] if isinstance(weights, str) and weights != (deployment.weights or "bf16") else []
    return [*told, *([f"--max-gpus {most}"] if most != deployment.max_gpus else [])]


def _as_known(search: Search) -> KnownModel:
    """The baseline of a search in the default shape, as built, whether it is served or not."""
    base, name = search.base, f"{search.question.base_name} of {PLANNED_SHAPE}"
    if built := search.base_as_built(at_most=False):
        shape, tokens = built.shape, built.model.tokens
    else:
        shape = buildable(search.law.family, base.n_params, base.experts, vocab_size=search.costs.vocab_size)
        tokens = base.tokens
    trained_in = "bf16" if search.question.is_bought else None  # whatever the others are trained in
    return KnownModel(name=name, architecture=shape.architecture(), tokens=tokens, planned=True, trained_in=trained_in)
