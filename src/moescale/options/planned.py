"""The plan of a question as users state it: at another limit of TPOT where none keeps it, in other shapes, by the default law."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from moescale.errors import InfeasibleError, MoescaleError
from moescale.options.law import DEFAULT_LAW, EVERY_SHAPE, PLANNED_SHAPE, SHAPES, USUAL_SHAPES, LawOptions, in_shape
from moescale.options.question import BoundOptions
from moescale.units import format_seconds

if TYPE_CHECKING:
    from moescale.latency import LatencySource
    from moescale.planning.candidate import Candidate
    from moescale.planning.plan import Plan
    from moescale.planning.question import KnownModel, Question
    from moescale.planning.search import Search
    from moescale.scaling_laws import Law
    from moescale.serving.deployment import Deployment
    from moescale.training.choice import Launch

SLOWER_S = (0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0)  # TPOTs that are tried where no model keeps a limit


def plan_of(
    bounds: BoundOptions,
    law: Law,
    deployment: Deployment,
    latency: LatencySource,
    details: LawOptions | None = None,
    *,
    kv_heads: int | None = None,
    unpriced: bool = False,
    launch: Launch | None = None,
    slower: bool = False,
    beside_default: bool = False,
    explained: bool = True,
    question: Question | None = None,
    search: Search | None = None,
) -> Plan:
    """The plan of the `question`, by default that of the bounds; `search` as in `make_plan`.

    Where no model keeps the deployment's TPOT, the plan is made at the nearest that one keeps, with a warning, if it
    may be `slower`; else it is refused with that TPOT. `beside_default` adds what the default law would choose; without
    `explained` what a first screen does not show is left out: what published laws say, and the baseline's compute.
    """
    from moescale.planning.plan import make_plan

    if beside_default and law.name != DEFAULT_LAW and (bounds.max_loss, bounds.matched()[1]) == (None, None):
        how: dict[str, Any] = {"kv_heads": kv_heads, "unpriced": unpriced, "launch": launch, "slower": slower}
        own: dict[str, Any] = {"explained": explained, "question": question, "search": search}
        found = plan_of(bounds, law, deployment, latency, details, **own, **how)
        other = None
        with suppress(MoescaleError):
            named = next((name for name, family in SHAPES.items() if family == law.family.name), PLANNED_SHAPE)
            default = in_shape(LawOptions().find_law(), named)
            other = plan_of(bounds, default, deployment, latency, explained=False, **how).decision.model
            other = replace(other, loss=_loss_by(law, other, details))
        return replace(found, default_law=other)
    asked: dict[str, Any] = {"kv_heads": kv_heads, "unpriced": unpriced, "launch": launch}
    if question is None:
        question = bounds.question(law, deployment, details, **asked)
    question = replace(question, explained=explained)
    base = usual_base(bounds, law, question, deployment, latency, details, **asked)
    question = question if base is None else replace(question, base=base)
    try:
        return make_plan(law, question, deployment, latency, search=search)
    except InfeasibleError as error:
        if deployment.max_tpot_s is None:
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
        if not slower:
            next_step = f"give --max-tpot {nearest}, or take a faster GPU"
            raise InfeasibleError(error.what, nearest=f"--max-tpot {nearest}", next_step=next_step) from error
        slow = f"no model serves within {format_seconds(limit)} per output token: planned with --max-tpot {nearest}"
        return replace(found, warnings=(slow, *found.warnings))


def _loss_by(law: Law, model: Candidate, details: LawOptions | None) -> float:
    """The loss of a model of another law's plan by a law."""
    from moescale.scaling_laws import predict

    return predict(law, model.n_params, model.tokens, model.experts, extra=(details or LawOptions()).inputs()).loss


def shapes_to_compare(bounds: BoundOptions, law: Law, details: LawOptions, kv_heads: int | None) -> tuple[str, ...]:
    """The shapes that a plan compares: all where asked, the usual ones where nothing stated speaks against it, else none."""
    if details.shape == EVERY_SHAPE:
        return tuple(sorted(SHAPES, key=lambda name: name != PLANNED_SHAPE))
    stated = (details.shape, bounds.disaggregated or None, kv_heads)
    return USUAL_SHAPES if law.form.of_sources and stated == (None,) * len(stated) else ()


def plan_of_shapes(
    shapes: tuple[str, ...],
    bounds: BoundOptions,
    law: Law,
    deployment: Deployment,
    latency: LatencySource,
    details: LawOptions,
    *,
    progress: Callable[[str, float], None] | None = None,
    **how: Any,
) -> Plan:
    """The plan in the best of `shapes`, all against one baseline: that of the default shape, where none is named. `how` as in `plan_of`.

    The best model of each shape is built first; the plan is made in the shape whose model stays the best when planned. Shapes that
    cannot have stated expert counts, or none of whose models stated training GPUs hold, are left out with a warning.
    """
    from moescale.planning.beside import is_served
    from moescale.planning.search import Search
    from moescale.planning.shapes import (
        ShapeChoice,
        at_one_loss,
        better_choice,
        choice_in_shape,
        in_order,
        looks_for_loss,
    )

    asked: dict[str, Any] = {name: how[name] for name in ("kv_heads", "unpriced", "launch") if name in how}
    laws = {name: in_shape(law, name) for name in shapes}
    questions: dict[str, Question] = {}
    searches: dict[str, Search] = {}
    left_out: dict[str, str] = {}
    for name in shapes:
        own = bounds.question(laws[name], deployment, details, **asked)
        questions[name] = replace(own, explained=how.get("explained", True))
    usual, base = questions[PLANNED_SHAPE], None
    answering = (name for name in shapes if is_served(laws[name], questions[name], deployment, latency))
    served = list(islice(answering, 2 if shapes == USUAL_SHAPES else None))
    for i, name in enumerate(served if served != [PLANNED_SHAPE] else ()):  # else there is nothing to compare
        if progress is not None:
            progress(f"models of the shape {name}", i / (len(served) + 1))
        base = base or usual_base(bounds, laws[name], questions[name], deployment, latency, details, **asked)
        if base is not None:
            questions[name] = replace(questions[name], base=base)
        try:
            searches[name] = Search.of(laws[name], questions[name], deployment, latency)
            if name == PLANNED_SHAPE and usual.base is None:
                base = _as_known(searches[name])
        except MoescaleError as error:
            left_out[name] = error.what
    choices = {name: choice_in_shape(name, search) for name, search in searches.items()}
    found = {name: choice for name, choice in choices.items() if choice is not None}
    left_out |= {name: "no model of it answers the question" for name in choices.keys() - found.keys()}
    plans: dict[str, Plan] = {}
    refused: InfeasibleError | None = None
    while found:
        by_loss = looks_for_loss(next(iter(searches.values())).question)
        ordered = in_order(at_one_loss(found.values(), searches), PLANNED_SHAPE, by_loss=by_loss)
        best = ordered[0].shape
        if best in plans:
            stated = (bounds.experts, bounds.train_gpus) != (None, None)  # what a shape may not have, or not fit
            notes = [f"shape {name} is left out: {why}" for name, why in left_out.items() if stated]
            compared = tuple(ordered) if len(ordered) > 1 else ()
            plan = replace(plans[best], shapes=compared, warnings=(*notes, *plans[best].warnings))
            if bounds.experts is None or plan.of_life:
                return plan
            free = replace(bounds, experts=None)
            every: dict[str, Search] = {}
            for name in served:
                question = free.question(laws[name], deployment, details, **asked)
                with suppress(MoescaleError):
                    question = replace(question, base=questions[name].base)
                    every[name] = Search.of(laws[name], question, deployment, latency)
            other = better_choice(plan.decision.model, every, PLANNED_SHAPE)
            return replace(plan, unbounded=other and other.model, unbounded_shape=other and other.shape)
        if progress is not None:
            progress(f"plan with the shape {best}", len(served) / (len(served) + 1))
        known: dict[str, Any] = {"question": questions[best], "search": searches[best]}
        try:
            plans[best] = plan = plan_of(bounds, laws[best], deployment, latency, details, **known, **how)
        except InfeasibleError as error:
            refused, left_out[best] = error, error.what
            del found[best]
            continue
        found[best] = ShapeChoice(best, plan.decision.model, plan.training and plan.training.usd)
    if refused is not None:
        raise refused
    return plan_of(bounds, laws[PLANNED_SHAPE], deployment, latency, details, question=usual, **how)


def usual_base(
    bounds: BoundOptions,
    law: Law,
    question: Question,
    deployment: Deployment,
    latency: LatencySource,
    details: LawOptions | None,
    **asked: Any,
) -> KnownModel | None:
    """The baseline of the default shape for a question in another one; None where that names one, or is of another law. `asked` as in `question`."""
    if question.base is not None or not law.form.of_sources or law.family.name == SHAPES[PLANNED_SHAPE]:
        return None
    from moescale.planning.search import Search

    usual = in_shape(law, PLANNED_SHAPE)
    question = bounds.question(usual, deployment, details, **asked)
    question = replace(question, experts=(question.match_experts,), against=(), explained=False)
    with suppress(InfeasibleError):
        return _as_known(Search.of(usual, question, deployment, latency, coarse=True))
    return None


def _as_known(search: Search) -> KnownModel | None:
    """The baseline of a search in the default shape, as built, which models of all shapes are set against; None where it is not served."""
    from moescale.planning.question import KnownModel

    if (built := search.base_as_built(at_most=False)) is None:
        return None
    model, name = built.shape.architecture(), f"{search.question.base_name} of {PLANNED_SHAPE}"
    return KnownModel(name=name, architecture=model, tokens=built.model.tokens, planned=True)
