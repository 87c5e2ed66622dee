"""A plan as users ask for it: at another limit of TPOT where no model keeps it, in the best of several shapes, beside the default law."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moescale.errors import InfeasibleError, InputError, MoescaleError
from moescale.latency import LatencySource
from moescale.models.rounding import buildable
from moescale.options.fields import Remark, ignore, silent
from moescale.options.law import (
    DEFAULT_LAW,
    EVERY_SHAPE,
    PLANNED_SHAPE,
    SHAPES,
    USUAL_SHAPES,
    LawOptions,
    in_shape,
    runs_of,
    shape_name,
)
from moescale.options.question import BoundOptions
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
from moescale.planning.shapes import ShapeChoice
from moescale.scaling_laws import Law, predict
from moescale.serving.deployment import Deployment
from moescale.serving.disaggregated import apart
from moescale.serving.gpu_counts import cheapest, cost, laid_out
from moescale.training.choice import Launch
from moescale.typing import Progress
from moescale.units import format_seconds

if TYPE_CHECKING:
    from moescale.export.launch import Export

# Our choice: where none has the usual chance, the highest of these steps that a model has is planned with, from the least on.
STEP, LEAST_SURE = 0.05, 0.5
# Our choice: a chance below the usual one that is named where it serves for less than so much of the price, and one between them.
LESS_SURE, BETWEEN, FAR_CHEAPER = 0.6, 0.7, 0.5
MOST_CORRECTIONS, CLOSE = 3, 0.005  # of days or dollars that keep a chance: the model changes with them
# The options that state a limit of `Plan.asked`.
LIMITS = {"max_days": ("days", "max_days"), "max_training_usd": ("budget_usd",), "max_total_usd": ("max_total_usd",)}
SLOWER_S = (0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0)  # TPOTs that are tried where no model keeps a limit


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """A plan that is asked for.

    Where no model keeps the deployment's TPOT, the plan is made at the nearest that one keeps, with a warning, if
    `serving` states none; else it is refused with that TPOT. What `serving` leaves open may be wider where that serves
    another model. `beside_default` adds what the default law would choose; without `explained` what a first screen does
    not show is left out: what published laws say, and the baseline's compute.
    """

    bounds: BoundOptions
    deployment: Deployment
    latency: LatencySource
    details: LawOptions = field(default_factory=LawOptions)
    serving: ServingOptions | None = None  # that the deployment is of
    launch: Launch | None = None  # how the run is trained
    beside_default: bool = False
    explained: bool = True
    base: KnownModel | None = None  # the baseline, where it is not that of the bounds

    @classmethod
    def of(
        cls, bounds: BoundOptions, details: LawOptions, serving: ServingOptions, remark: Remark = ignore, **how: Any
    ) -> PlanRequest:
        """The plan that groups of options ask for, at the usual limit of TPOT where they state none."""
        deployment = serving.deployment(usual_tpot_s=PLANNED_TPOT_S, remark=remark)
        latency = serving.open_latency(deployment, remark=remark)
        return cls(bounds=bounds, details=details, serving=serving, deployment=deployment, latency=latency, **how)

    def question(self, law: Law, bounds: BoundOptions | None = None) -> Question:
        """The question under a law, by default that of the bounds."""
        kv_heads, asked = self.serving and self.serving.kv_heads, bounds or self.bounds
        found = asked.question(law, self.deployment, self.details, kv_heads=kv_heads, launch=self.launch)
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
        stated = {name: getattr(self.bounds, name) for name in LIMITS[limit.name]}
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
        wider = self.serving and self.serving.wider(self.deployment)
        if wider is None or plan.wider_options:
            return plan
        with suppress(MoescaleError):  # a latency table may not speak of fp8
            tpot_s = plan.asked.get("max_tpot_s")
            limit = tpot_s if isinstance(tpot_s, float) else None
            deployment = replace(wider.deployment(), max_gpus=self.deployment.max_gpus, max_tpot_s=limit)
            if deployment.weights != "fp8" or self.deployment.weights is not None:
                return plan
            ((model, _),) = stacked([plan.decision.architecture.architecture()])
            source = wider.open_latency(deployment)
            price = apart if plan.asked.get("disaggregated") else partial(cheapest, every=True)
            (usd,) = price(model, source, deployment).usd_per_mtok.tolist()
            return replace(plan, fp8_usd_per_mtok=usd if math.isfinite(usd) else None)
        return plan

    def _wider(self, law: Law, progress: Progress, missed: str) -> Plan | None:
        """The plan with what serves larger models, of what is not stated, and what is `missed` without; None where the baseline alone answers then, too."""
        if self.serving is None or (wider := self.serving.wider(self.deployment)) is None:
            return None
        with suppress(MoescaleError):  # nor may a latency table speak of fp8
            deployment, own = wider.deployment(usual_tpot_s=PLANNED_TPOT_S), self.deployment
            found = replace(self, deployment=deployment, latency=wider.open_latency(deployment))._plan(law, progress)
            added = [f"--weights {deployment.weights}"] if deployment.weights != own.weights else []
            added += [f"--max-gpus {deployment.max_gpus}"] if deployment.max_gpus != own.max_gpus else []
            options = " ".join(added)
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
            return found
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
                search = self.search(each, self.against_usual(each, question), coarse=True)
                most = max(most, search.most_sure())
        return most

    def shapes(self, law: Law) -> tuple[str, ...]:
        """The shapes that are planned: all where asked, the usual ones where nothing stated speaks against it; none: the law's."""
        if self.details.shape == EVERY_SHAPE:
            return tuple(sorted(SHAPES, key=lambda name: name != PLANNED_SHAPE))
        stated = (self.details.shape, self.serving and self.serving.kv_heads) != (None, None)
        return () if stated else self._usual_shapes(law)

    def _usual_shapes(self, law: Law) -> tuple[str, ...]:
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
        """The plan of the usual chance, or of a lower one that serves for far less with less expected regret."""
        plan = self._plan_of_counts(law, progress)
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
                shape, shape_between = plan.shapes[0].shape, plan.less_sure_between_shape
                found = replace(found, more_sure=usual, more_sure_shape=shape)
                return replace(found, less_sure_between=between, less_sure_between_shape=shape_between)
        return plan

    def _plan_of_counts(self, law: Law, progress: Progress) -> Plan:
        """The plan in the shapes, where expert counts are stated beside the choice among all."""
        if shapes := self.shapes(law):
            return self._plan_of_shapes(shapes, law, progress)
        progress("train and serve models of every size", 0.1)
        question = self.against_usual(law, self.question(law))
        search = self.search(law, question) if self._usual_shapes(law) else None
        plan = self.plan_of_shape(law, question, None if question.is_bought else search)
        if search is not None:
            plan = _beside_less_sure(plan, {shape_name(law.family.name): search})
        return self._beside_all_counts(plan, {"": (law, question.base)})

    def export(self, plan: Plan, format: str, folder: Path) -> Export:
        """Write what a plan decides for, to be trained on --train-gpus, and how to serve it as it was priced."""
        from moescale.export.launch import export_model
        from moescale.export.serving_launch import Server

        best, bounds, deployment = plan.decision, self.bounds, self.deployment
        served = cost(best.architecture.architecture(), self.latency, deployment)
        server = Server(cost=served, deployment=laid_out(deployment, served.attention_dp))
        return export_model(
            best.architecture, best.model.tokens, format, folder,
            gpu=bounds.training_gpu(deployment), mfu=bounds.mfu, gpus=bounds.train_gpus, launch=self.launch or Launch(),
            server=server, planned_flops=best.model.training_flops,
        )  # fmt: skip

    def _beside_default(self, plan: Plan, law: Law) -> Plan:
        """The plan with what the default law would choose, in the shape of the law or in the usual ones where shapes were compared."""
        by_loss = (self.bounds.max_loss, self.bounds.matched()[1]) != (None, None)
        if not self.beside_default or law.name == DEFAULT_LAW or by_loss:
            return plan
        with suppress(MoescaleError):
            own = shape_name(law.family.name)
            asked = replace(self, details=LawOptions(), beside_default=False, explained=False)
            default = LawOptions().find_law()
            if plan.shapes:
                found = asked._plan(default, silent)
            else:
                found = asked.plan_of_shape(in_shape(default, own if own in SHAPES else PLANNED_SHAPE))
            other, shape = found.decision.model, shape_name(str(found.asked["family"]))
            here = law if own == shape else in_shape(law, shape)  # which speaks of that shape's N and E
            loss = predict(here, other.n_params, other.tokens, other.experts, extra=self.details.inputs()).loss
            probability, allowed = None, bool(here.allows(other.experts))
            with suppress(MoescaleError):  # the law may have no baseline in that shape
                search = self.search(here, self.against_usual(here, self.question(here)), coarse=True)
                _, sure = search.judged_shapes([found.decision.architecture], other.experts)
                probability = None if sure is None else float(sure[0])
            keys = {DEFAULT_LAW: DEFAULT_LAW, law.name: "own", f"{law.name} held out": "held_out"}
            known = {name: law.evidence.get(f"error_{key}") for name, key in keys.items()}
            on_runs = {name: error for name, error in known.items() if isinstance(error, float)}
            return replace(
                plan,
                default_law=replace(other, loss=loss, probability_at_least_base=probability),
                default_law_shape=shape,
                default_law_excluded=not allowed,
                default_law_untested_by=None if allowed else runs_of(law),
                default_law_beyond=beyond_runs(found.decision.caveats),
                errors_on_runs=on_runs or None,
            )
        return plan

    def plan_of_shape(self, law: Law, question: Question | None = None, search: Search | None = None) -> Plan:
        """The plan in the law's own shape, at the limit of TPOT or the nearest that is kept; `search` as in `make_plan`."""
        deployment, latency = self.deployment, self.latency
        question = question or self.against_usual(law, self.question(law))
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
            if self.serving is None or self.serving.max_tpot is not None:
                next_step = f"give --max-tpot {nearest}, or take a faster GPU"
                raise InfeasibleError(error.what, nearest=f"--max-tpot {nearest}", next_step=next_step) from error
            slow = f"no model serves within {format_seconds(limit)} per output token: planned with --max-tpot {nearest}"
            return replace(found, warnings=(slow, *found.warnings))

    def _plan_of_shapes(self, shapes: tuple[str, ...], law: Law, progress: Progress) -> Plan:
        """The plan in the best of `shapes`, all against one baseline: that of the default shape, where none is named.

        The best model of each shape is built first; the plan is made in the shape whose model stays the best when planned. Shapes that
        cannot have stated expert counts, or none of whose models stated training GPUs hold, are left out with a warning.
        """
        laws, base = self.in_shapes(law), None
        questions = {name: self.question(laws[name]) for name in shapes}
        searches, choices, bought = dict[str, Search](), dict[str, ShapeChoice](), dict[str, Question]()
        left_out, plans = dict[str, str](), dict[str, Plan]()
        answering = (name for name in shapes if is_served(laws[name], questions[name], self.deployment, self.latency))
        most = None if self.details.shape == EVERY_SHAPE else 2 + len(set(shapes) - set(USUAL_SHAPES))
        served = list(islice(answering, most))
        for i, name in enumerate(served if served != [PLANNED_SHAPE] else ()):  # else there is nothing to compare
            progress(f"models of the shape {name}", i / (len(served) + 1))
            if questions[name].base is None:
                questions[name] = self.against_usual(laws[name], replace(questions[name], base=base))
            base = base or questions[name].base
            try:
                searches[name] = search = self.search(laws[name], questions[name])
                if name == PLANNED_SHAPE and base is None:
                    base = _as_known(search)
            except MoescaleError as error:
                left_out[name] = error.what
                continue
            if (best := compared.choice_in_shape(name, search)) is None:
                left_out[name] = "no model of it answers the question"
            else:
                choices[name], bought[name] = best
        refused: InfeasibleError | None = None
        while choices:
            by_loss = compared.looks_for_loss(next(iter(searches.values())).question)
            alike = compared.at_one_loss(choices.values(), searches)
            ordered = compared.in_order(alike, PLANNED_SHAPE, by_loss=by_loss)
            best = ordered[0].shape
            if best in plans:
                # Stated counts and training GPUs, which a shape may not have or fit.
                stated = (self.bounds.experts, self.bounds.train_gpus) != (None, None)
                notes = [f"shape {name} is left out: {why}" for name, why in left_out.items() if stated]
                beside = tuple(ordered) if len(ordered) > 1 else ()
                plan = replace(plans[best], shapes=beside, warnings=(*notes, *plans[best].warnings))
                plan = _beside_less_sure(plan, searches)
                return self._beside_all_counts(plan, {name: (laws[name], questions[name].base) for name in served})
            progress(f"plan with the shape {best}", len(served) / (len(served) + 1))
            search, asked = searches[best], replace(bought[best], explained=self.explained)
            try:
                if asked.budget != search.question.budget:  # of days or dollars: the plan would correct it likewise
                    search = self.search(laws[best], asked)
                plans[best] = plan = self.plan_of_shape(laws[best], questions[best], search)
            except InfeasibleError as error:
                refused, left_out[best] = error, error.what
                del choices[best]
                continue
            factor = plan.accuracy and plan.accuracy.geometric_mean
            usd = plan.training and plan.training.usd
            choices[best] = ShapeChoice(best, plan.decision.model, usd, price_factor=factor)
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

    def against_usual(self, law: Law, question: Question) -> Question:
        """A question with the baseline of the default shape; as it is where it names one, or of another law."""
        speaks = law.form.of_sources or self.shapes(law)
        if question.base is not None or not speaks or law.family.name == SHAPES[PLANNED_SHAPE]:
            return question
        return replace(question, base=self._planned_base(in_shape(law, PLANNED_SHAPE)))


def _beside_less_sure(plan: Plan, searches: Mapping[str, Search]) -> Plan:
    """The plan with the model that serves for far less at a lower chance, by the searches in each shape; as it is without one."""
    if plan.confidence != CONFIDENCE or plan.objective != "serve" or plan.of_life or plan.usual_confidence:
        return plan
    found = _at_chance(searches, LESS_SURE, FAR_CHEAPER * plan.decision.model.usd_per_mtok)
    if found is None:
        return plan
    between = _at_chance(searches, BETWEEN, plan.decision.model.usd_per_mtok)
    (shape, model), (shape_between, model_between) = found, between or (None, None)
    named = {"less_sure_between": model_between, "less_sure_between_shape": shape_between}
    return replace(plan, less_sure=model, less_sure_shape=shape, **named)


def _at_chance(searches: Mapping[str, Search], chance: float, usd_per_mtok: float) -> tuple[str, Candidate] | None:
    """The shape and the cheapest model with a chance of the loss, as built; None where none costs less than so many dollars."""
    asked, price = dict[str, Search](), attrgetter("usd_per_mtok")
    found: dict[str, Candidate] = {}
    for name, each in searches.items():
        asked[name] = search = replace(each, question=replace(each.question, confidence=chance))
        rows = search.at_loss(search.question.max_loss)
        served = [c for c in rows if isinstance(c, Candidate) and search.law.allows(c.experts)]
        found |= {name: min(served, key=price)} if served else {}
    name = min(found, key=lambda shape: found[shape].usd_per_mtok, default="")
    if not name or found[name].usd_per_mtok >= usd_per_mtok:
        return None
    if (built := compared.choice_in_shape(name, asked[name])) is None:
        return name, replace(found[name], probability_at_least_base=chance)
    best, _ = built
    return name, replace(best.model, probability_at_least_base=chance, training_usd=best.training_usd)


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
