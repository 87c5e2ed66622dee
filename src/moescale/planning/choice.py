"""Which model is recommended among those that answer a question, and what to change where none does."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from moescale.errors import InfeasibleError
from moescale.planning.candidate import Candidate, Row
from moescale.planning.question import Question, only_experts
from moescale.planning.search import Search, either, size_bounds
from moescale.units import format_usd, plural

# Share of dollars that a shape near a size saves, which is known when it is built: one in 60 of 1,193 built models saved more.
SAVED_AS_BUILT = 0.15
# What to do where this is among the reasons why nothing is served; the last of several.
STEPS = {
    "attention groups": "state --attention-dp 1, 2, 4 or 8, which divide the GPU counts that are tried, or leave it out",
    "latency limit": "relax --max-tpot or --max-ttft, or take a faster GPU",
}
ALIKE = 6  # digits of dollars, and of a share of them, that are a difference


def rank(search: Search, model: Candidate) -> tuple[float, float, float]:
    """What the recommended model has the least of: expected regret at a loss, or dollars without draws; else its loss."""
    if search.question.by_loss:
        return model.loss, model.experts, 0.0
    if search.confidence is None or search.base.usd_per_mtok is None or len(search.draws.theta) == 1:
        return _even(model.usd_per_mtok), model.experts, 0.0
    return round(model.regret.expected, ALIKE) if model.regret else math.inf, _even(model.usd_per_mtok), model.experts


def _even(usd_per_mtok: float) -> float:
    """Dollars to ALIKE digits, so that of models of one price the one of fewest experts is chosen, and not the last digit."""
    return float(f"{usd_per_mtok:.{ALIKE}g}")


def choose(search: Search, rows: Sequence[Row]) -> tuple[Candidate, str]:
    """The recommended model among the rows that answer the question, and the rule that chose it.

    At a loss it is the model of least expected regret, or without draws the cheapest. Raises InfeasibleError when no model
    that the law may speak of meets the bounds and can be served.
    """
    question, served = search.question, search.recommendable(rows)
    allowed = [c for c in rows if search.law.allows(c.experts)]
    if question.by_loss:
        limit = question.max_usd_per_mtok or search.base.usd_per_mtok if question.budget_goal == "quality" else None
        within = f" at {format_usd(limit)} per million output tokens or less" if limit else ""
        if not served:
            raise InfeasibleError(
                f"no model of this budget serves{within}{_reasons(allowed)}",
                next_step="raise --max-usd-per-mtok, or take another GPU",
            )
        return min(served, key=lambda c: (c.loss, c.experts)), f"lowest loss{within}"
    goal = loss_goal(question)
    if not served:
        raise _none_reaches(search, allowed, goal)
    limit = (question.max_usd_per_mtok or math.inf) / (1.0 - SAVED_AS_BUILT)  # as built it must be within
    cheapest = min(served, key=lambda c: (_even(c.usd_per_mtok), c.experts))
    if cheapest.usd_per_mtok > limit:
        raise too_dear(question, cheapest, goal)
    if search.confidence is None or cheapest.regret is None:
        return cheapest, f"cheapest to serve at {goal}"
    best = min((c for c in served if c.usd_per_mtok <= limit), key=lambda c: rank(search, c))
    return best, f"cheapest to serve at {goal} with a probability of {search.confidence:.0%}"


def loss_goal(question: Question) -> str:
    """The loss that is to be reached, in words."""
    if question.max_loss is None:
        return f"the loss of {question.base_name}"
    return f"a loss of at most {question.max_loss:g}"


def too_dear(question: Question, model: Candidate, goal: str, remark: str = "") -> InfeasibleError:
    """The error for a model that reaches its goal at a higher serving cost than the question allows."""
    return InfeasibleError(
        f"the cheapest model that reaches {goal} costs {format_usd(model.usd_per_mtok)} per million output tokens{remark}, "
        f"more than {format_usd(question.max_usd_per_mtok or math.inf)}",
        next_step="raise --max-usd-per-mtok, or relax --max-loss",
    )


def _none_reaches(search: Search, allowed: Sequence[Row], goal: str) -> InfeasibleError:
    budget = f"no model of {search.question.budget.flops:.3g} FLOPs"
    if unserved := [c for c in allowed if c.n_params is not None]:
        reasons = _reasons(unserved)
        other_budget = "raise" if search.question.base and not search.question.base.planned else "lower"
        step = f"allow more GPUs, take a GPU with more memory, or {other_budget} the budget"
        for named, instead in STEPS.items():
            step = instead if named in reasons else step
        return InfeasibleError(f"{budget} that reaches {goal} can be served{reasons}", next_step=step)
    question, nearest, bounds = search.question, list[str](), size_bounds(search.question)
    law, further = search.law, list[str]()
    if only_experts(law) is None:
        further = [f"{e:g}" for e in law.family.ladder if e not in question.experts and law.allows(e)]
    steps = [f"allow {either(further)} experts"] if further else []
    goal += f" ({search.base.loss:.4f})" if question.max_loss is None else ""
    sure = np.zeros(1)
    if search.confidence is not None:
        goal += f" with a probability of {search.confidence:.0%}"
        sure = search.draws_at(question.max_loss).most_sure(search.largest, law.allows(search.best.experts))
        surest = plural(question.experts[int(np.nanargmax(sure))], "expert")
        nearest.append(f"the highest probability is {np.nanmax(sure):.0%}, with {surest}")
    best = min(search.recommendable(search.outright()), key=lambda c: (c.loss, c.experts), default=None)
    if best is not None:
        of, counts = f"within {bounds}" if bounds else "of this budget", plural(best.experts, "expert")
        nearest.append(f"the lowest loss {of} is {best.loss:.4f}, with {counts} before rounding to whole layers")
        if question.goal == "serve" and question.max_loss is None:
            steps.append("give --objective loss to take the model of the lowest loss")
    if question.max_loss is not None or question.base is not None:  # else the baseline gains as much
        steps.append("raise --budget")
    steps.append("relax --max-loss" if question.max_loss is not None else "choose another baseline (--match)")
    if (epochs := question.budget.max_epochs) is not None:
        steps.append(f"allow more than {epochs:g} epochs (--max-tokens)")
    if np.nanmax(sure) > 0.0:
        steps.append("lower --confidence")
    steps += ["relax the bounds"] if bounds else []
    return InfeasibleError(
        f"{budget} with at most {plural(max(c.experts for c in allowed), 'expert')} reaches {goal}"
        f"{f' within {bounds}' if bounds else ''}",
        nearest="; ".join(nearest) or None,
        next_step=either(steps),
    )


def _reasons(rows: Sequence[Row]) -> str:
    """Why rows have no served model, each reason with its expert counts."""
    counts: dict[str, list[str]] = {}
    for c in rows:
        if c.infeasible:
            counts.setdefault(c.infeasible, []).append(f"{c.experts:g}")
    alone = len(rows) == 1
    listed = [reason if alone else f"E = {', '.join(each)}: {reason}" for reason, each in counts.items()]
    return f" ({'; '.join(listed)})" if listed else ""
