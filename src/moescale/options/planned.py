"""The plan of a question as users state it: at another limit of TPOT where none keeps it, in other shapes, by the default law."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from moescale.errors import InfeasibleError, MoescaleError
from moescale.options.law import DEFAULT_LAW, PLANNED_SHAPE, SHAPES, LawOptions, in_shape
from moescale.options.question import BoundOptions
from moescale.units import format_seconds

if TYPE_CHECKING:
    from moescale.latency import LatencySource
    from moescale.planning.candidate import Candidate
    from moescale.planning.plan import Plan
    from moescale.planning.question import KnownModel
    from moescale.scaling_laws import Law
    from moescale.serving.deployment import Deployment
    from moescale.training.choice import Launch

SLOWER_S = (0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0)  # TPOTs that are tried where no model keeps a limit
OTHER_SHAPE = "deepseek"  # that a plan names where it is better than the default


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
    base: KnownModel | None = None,
    beside_default: bool = False,
    explained: bool = True,
) -> Plan:
    """The plan of the `question`, whose baseline is `base` where that is stated.

    Where no model keeps the deployment's TPOT, the plan is made at the nearest that one keeps, with a warning, if it
    may be `slower`; else it is refused with that TPOT. `beside_default` adds what the default law would choose; without
    `explained` what a first screen does not show is left out: what published laws say, and the baseline's compute.
    """
    from moescale.planning.plan import make_plan

    if beside_default and law.name != DEFAULT_LAW and (bounds.max_loss, bounds.matched()[1]) == (None, None):
        how: dict[str, Any] = {"kv_heads": kv_heads, "unpriced": unpriced, "launch": launch, "slower": slower}
        found = plan_of(bounds, law, deployment, latency, details, base=base, explained=explained, **how)
        other = None
        with suppress(MoescaleError):
            named = next((name for name, family in SHAPES.items() if family == law.family.name), PLANNED_SHAPE)
            default = in_shape(LawOptions().find_law(), named)
            other = plan_of(bounds, default, deployment, latency, explained=False, **how).decision.model
            other = replace(other, loss=_loss_by(law, other, details))
        return replace(found, default_law=other)
    question = bounds.question(law, deployment, details, kv_heads=kv_heads, unpriced=unpriced, launch=launch)
    question = replace(question, explained=explained)
    if base is None and law.form.of_sources and law.family.name != SHAPES[PLANNED_SHAPE]:
        base = _usual_base(
            bounds, law, deployment, latency, details, kv_heads=kv_heads, unpriced=unpriced, launch=launch
        )
    question = question if base is None else replace(question, base=base, against=(base, *question.against))
    try:
        return make_plan(law, question, deployment, latency)
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


def beside_shape(
    bounds: BoundOptions, plan: Plan, law: Law, deployment: Deployment, latency: LatencySource, **how: Any
) -> Plan:
    """The plan with the best model of OTHER_SHAPE beside it, where that is better and nothing stated speaks against it; `how` as in `plan_of`."""
    from moescale.planning.plan import with_other_shape

    details: LawOptions = how["details"]
    stated = (details.shape, bounds.experts, bounds.disaggregated or None, how.get("kv_heads"))
    if not law.form.of_sources or stated != (None,) * len(stated):
        return plan
    other, asked = in_shape(law, OTHER_SHAPE), _asked(how)
    base = _usual_base(bounds, law, deployment, latency, details, **asked)
    question = replace(bounds.question(other, deployment, details, **asked), explained=False)
    question = question if base is None else replace(question, base=base)
    return with_other_shape(plan, OTHER_SHAPE, other, question, deployment, latency)


def plan_of_shapes(
    bounds: BoundOptions,
    law: Law,
    deployment: Deployment,
    latency: LatencySource,
    *,
    progress: Callable[[str, float], None] | None = None,
    **how: Any,
) -> Plan:
    """The plan of the best shape, all against one baseline: that of the default shape, where none is named. `how` as in `plan`."""
    from moescale.planning.plan import best_of_shapes

    found: dict[str, Plan] = {}
    base = _usual_base(bounds, law, deployment, latency, how.get("details"), **_asked(how))
    refused = list[InfeasibleError]()
    for i, name in enumerate(sorted(SHAPES, key=lambda name: name != PLANNED_SHAPE)):
        if progress is not None:
            progress(f"plan with the shape {name}", i / len(SHAPES))
        own = None if name == PLANNED_SHAPE else base
        try:
            found[name] = plan_of(bounds, in_shape(law, name), deployment, latency, base=own, **how)
        except InfeasibleError as error:
            refused.append(error)
    if not found:
        raise refused[0]
    return best_of_shapes(found)


def _asked(how: dict[str, Any]) -> dict[str, Any]:
    """What of the keywords of `plan_of` its question takes, too."""
    return {name: how[name] for name in ("kv_heads", "unpriced", "launch") if name in how}


def _usual_base(
    bounds: BoundOptions,
    law: Law,
    deployment: Deployment,
    latency: LatencySource,
    details: LawOptions | None,
    **asked: Any,
) -> KnownModel | None:
    """The baseline in the default shape as built, which models of all shapes are set against; None where one is named, or it is not served.

    `asked` goes to the `question`.
    """
    from moescale.planning.question import KnownModel
    from moescale.planning.search import Search

    if bounds.matched(law)[0] is not None:
        return None
    usual = in_shape(law, PLANNED_SHAPE)
    question = bounds.question(usual, deployment, details, **asked)
    question = replace(question, experts=(question.match_experts,), against=(), explained=False)
    with suppress(InfeasibleError):
        built = Search.of(usual, question, deployment, latency, coarse=True).base_as_built(at_most=False)
        if built is not None:
            model, name = built.shape.architecture(), f"{question.base_name} of {PLANNED_SHAPE}"
            return KnownModel(name=name, architecture=model, tokens=built.model.tokens, planned=True)
    return None
