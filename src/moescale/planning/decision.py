"""The decision beside its rivals: quality, balance and economy, and what each law alone would choose and lose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from moescale.models.family import n_active
from moescale.models.rounding import Buildable
from moescale.planning.allocation import Allocation, at_size
from moescale.planning.candidate import Candidate, Row, WholeRecord, part_of
from moescale.planning.draws import Draws, draws_of, oracle_of
from moescale.planning.search import Search
from moescale.scaling_laws import find_law
from moescale.scaling_laws.ensemble import restate
from moescale.typing import FloatArray

NAMED_LAWS = "public-2026"  # whose members a plan shows beside its own law, each by its coefficients


@dataclass(frozen=True, slots=True, kw_only=True)
class LawView(WholeRecord):
    """What one law says: of the recommended model, and which it would choose alone; without the latter where it knows none.

    Regrets are means over the law's draws. `elsewhere` holds, for each law, the probability and the regret under it of what
    this one would choose.
    """

    law: str
    weight: float
    probability: float  # that the recommended model is as good as the base
    regret: float | None = None  # of the recommended model
    experts: float | None = None
    n_params: float | None = None
    n_params_active: float | None = None
    tokens: float | None = None
    cost_ratio: float | None = None
    elsewhere: Mapping[str, Elsewhere] | None = None


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """What another law says of a law's own choice."""

    probability: float
    regret: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """Three models between quality and cost; None where there is no such model."""

    quality: Candidate | None = None  # the lowest loss at the base's serving cost
    balanced: Candidate | None = None  # the knee of the frontier between the two
    cheapest: Candidate | None = None  # at the base's loss


def choices(search: Search, at_loss: Sequence[Row], at_cost: Sequence[Row], frontier: Sequence[Candidate]) -> Choices:
    """The choices among rows that a plan has, and the knee of its frontier between them.

    The knee is the model farthest from the straight line between both, loss against the logarithm of cost.
    """
    quality = min(search.recommendable(at_cost), key=lambda c: (c.loss, c.experts), default=None)
    cheapest = min(search.recommendable(at_loss), key=lambda c: (c.usd_per_mtok, c.experts), default=None)
    if quality is None or cheapest is None:
        return Choices(quality=quality, cheapest=cheapest)
    if quality.loss > cheapest.loss:  # the base's cost buys less than its loss takes
        return Choices(cheapest=cheapest)
    most = search.question.max_active_params or np.inf, search.question.max_total_params or np.inf
    between = [
        c
        for c in frontier
        if cheapest.usd_per_mtok < c.usd_per_mtok < quality.usd_per_mtok
        and quality.loss < c.loss < cheapest.loss
        and c.n_params_active <= most[0]
        and c.n_params_total <= most[1]
    ]
    kept = search.judged(between, search.draws)
    if (confidence := search.confidence) is not None:  # it keeps the promise, too
        kept = [c for c in kept if (c.probability_at_least_base or 0.0) >= confidence]
    if not kept:
        return Choices(quality=quality, cheapest=cheapest)
    ln_usd = np.log([c.usd_per_mtok for c in (cheapest, *kept, quality)])
    loss = np.array([c.loss for c in (cheapest, *kept, quality)])
    below = (loss[0] - loss) / (loss[0] - loss[-1]) - (ln_usd - ln_usd[0]) / (ln_usd[-1] - ln_usd[0])
    return Choices(quality=quality, balanced=kept[int(np.argmax(below[1:-1]))], cheapest=cheapest)


def beside(search: Search) -> Search | None:
    """The search under the named laws, which a law of sources stands beside; None where there are none to ask."""
    law, budget = search.law, search.question.budget
    if not law.form.of_sources or budget.extra:
        return None
    named = restate(find_law(NAMED_LAWS), law.family)
    search = replace(search, law=named)
    draws = each_law(search)
    allowed = named.allows(draws.experts)  # where it is none of the counts, all are compared, as a vote does
    return replace(search, draws=draws, oracle=oracle_of(draws, search.sampled, allowed | ~allowed.any()))


def each_law(search: Search) -> Draws:
    """The draws of each law of an ensemble by its coefficients, which asks for the loss that the question states."""
    law, question = search.law, search.question
    stated = None if question.base is None else question.base.inputs(law.form)
    alone = draws_of(law, question.budget, search.best.experts, search.base_model, base_inputs=stated, alone=True)
    return alone if question.max_loss is None else alone.asking_for(question.max_loss)


def law_views(search: Search, model: Candidate, shape: Buildable) -> tuple[LawView, ...]:
    """What each law of an ensemble says, or each named law beside a law of sources, without a vote.

    The recommended model is judged as the `shape` that is built.
    """
    votes = len(search.law.members) > 1
    if not votes and (named := beside(search)) is not None:
        search = named
    members = search.law.members
    if len(members) < 2:
        return ()
    draws = search.draws_at(search.question.max_loss) if votes else search.draws
    own, own_usd = _own_choices(search, each_law(search) if votes else draws)
    served = np.flatnonzero(np.isfinite(own_usd))
    choices_ = part_of(own, served)
    losses = search.losses_as_built(model, shape)[:, None]
    losses = np.concatenate((losses, draws.losses(choices_.n_params, choices_.experts)), axis=1)
    usd, unit = np.array([model.usd_per_mtok, *own_usd[served]]), search.base.usd_per_mtok
    lost = draws.by_law @ search.oracle.regrets(draws, losses, usd, unit or 1.0)  # (laws, 1 + served)
    sure = np.minimum(draws.by_law @ draws.meets(losses), 1.0)
    active = n_active(search.law.family, own.n_params, own.experts)
    views: list[LawView] = []
    for i, member in enumerate(members):
        choice: dict[str, Any] = {}
        if i in served:
            at = 1 + served.tolist().index(i)
            said = zip(members, sure[:, at].tolist(), lost[:, at].tolist(), strict=True)
            figures = {
                "experts": own.experts,
                "n_params": own.n_params,
                "n_params_active": active,
                "tokens": own.tokens,
            }
            choice = {name: float(values[i]) for name, values in figures.items()}
            choice["cost_ratio"] = None if unit is None else float(own_usd[i]) / unit
            choice["elsewhere"] = {one.law.name: Elsewhere(p, None if unit is None else r) for one, p, r in said}
        weight, regret = member.weight if votes else 0.0, None if unit is None else float(lost[i, 0])
        views.append(
            LawView(law=member.law.name, weight=weight, probability=float(sure[i, 0]), regret=regret, **choice)
        )
    return tuple(views)


def _own_choices(search: Search, alone: Draws) -> tuple[Allocation, FloatArray]:
    """The question answered by each law alone, by its coefficients, which are those of the draws `alone`, and the dollars, (laws,); infinite where it knows no model."""
    question, law = search.question, search.law
    by_loss = question.by_loss
    if question.budget_goal == "quality":
        limit = question.max_usd_per_mtok or search.base.usd_per_mtok or np.inf
        most = np.fmin(alone.best.n_params, search.sampled.size_within(np.full(len(alone.theta), limit)))
    else:
        most = alone.best.n_params if by_loss else alone.smallest.n_params
    sizes = np.minimum(most, search.largest) if by_loss else np.where(most > search.largest, np.nan, most)
    found = at_size(law, question.budget, sizes, search.best.experts, theta=alone.theta)
    usd = search.sampled.usd_per_mtok(sizes)
    ranked = np.where(np.isfinite(usd) & law.allows(search.best.experts), found.loss if by_loss else usd, np.inf)
    at = ranked.argmin(axis=1)
    rows = np.arange(len(at))
    known = np.isfinite(ranked[rows, at])
    return part_of(found, (rows, at)), np.where(known, usd[rows, at], np.inf)
