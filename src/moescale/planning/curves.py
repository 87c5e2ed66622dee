"""The curves of a plan's chart, loss against cost, priced in one call of the latency source; their band, and optima of other budgets."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from moescale.latency import LatencySource
from moescale.models.family import n_active, n_total
from moescale.planning.allocation import Allocation, at_size, inputs_at, loss_optimal
from moescale.planning.candidate import Trained, trained_models
from moescale.planning.draws import some_draws
from moescale.planning.question import Question, prepare
from moescale.planning.search import FRONTIER_SIZES, base_optimum, costs_of, curve_models, known_model
from moescale.scaling_laws.law import Law, interval
from moescale.serving.deployment import Deployment
from moescale.serving.steady_state import Serving
from moescale.typing import FloatArray


@dataclass(frozen=True, slots=True)
class Draft(Allocation):
    """Curves of m expert counts (m,) over s rising sizes on one budget; arrays (m, s), NaN or infinity where nothing serves."""

    n_params_active: FloatArray
    n_params_total: FloatArray
    serving: Serving
    base: Trained
    optimum: int  # the column of the loss-optimal sizes
    notes: tuple[str, ...]


def draft_plan(
    law: Law, question: Question, deployment: Deployment, latency: LatencySource, *, sizes: int = FRONTIER_SIZES
) -> Draft:
    """The curves of a plan, as `Plan.curves`: loss and serving figures of every expert count at so many sizes up to its loss-optimal one, and beyond."""
    law, question, notes = prepare(law, question)
    experts, costs = np.array(question.experts), costs_of(law, question, deployment, latency)
    best = loss_optimal(law, question.budget, experts)
    every, shape = curve_models(law, question, best, sizes)
    if question.base is None:
        (base,) = trained_models(base_optimum(law, question, best), costs)
    else:
        base = known_model(law, question.base, costs)
    return Draft(
        experts=experts,
        n_params=every.n_params.reshape(shape),
        tokens=every.tokens.reshape(shape),
        loss=every.loss.reshape(shape),
        n_params_active=n_active(law.family, every.n_params, every.experts).reshape(shape),
        n_params_total=n_total(law.family, every.n_params, every.experts).reshape(shape),
        serving=costs.serving(every.n_params, every.experts),
        base=base,
        optimum=sizes - 1,
        notes=tuple(notes),
    )


def loss_band(law: Law, question: Question) -> tuple[FloatArray, FloatArray] | None:
    """The interval of 90% of the law's draws around a draft's losses, two arrays (m, s); None for a law without draws.

    Each draw's curve is scaled so that its loss of the base equals the law's, as laws of an ensemble measure loss in units of their own.
    """
    law, question, _ = prepare(law, question)
    if not len(law.draws) or question.draws == 0:
        return None
    draws, _ = some_draws(law, question.draws or len(law.draws))
    best = loss_optimal(law, question.budget, np.array(question.experts))
    every, shape = curve_models(law, question, best)
    if (known := question.base) is None:
        own, further = base_optimum(law, question, best), question.budget.extra
        n, tokens, e = own.n_params, own.tokens, own.experts
    else:
        n, e = (np.array([value]) for value in known.in_convention_of(law.family))
        tokens, further = np.array([known.tokens]), known.inputs(law.form)
    base = inputs_at(law, further, n, np.log(tokens), e)
    unit = np.exp(law.form.log_loss(law.theta, base) - law.form.log_loss(draws, base))  # (k, 1)
    low, high = interval(at_size(law, question.budget, every.n_params, every.experts, theta=draws).loss * unit)
    return low.reshape(shape), high.reshape(shape)


def scaling(law: Law, question: Question, budget_flops: FloatArray) -> Allocation:
    """The loss-optimal models of m expert counts (m,) at other budgets (b,), all else as in the question; arrays (b, m)."""
    law, question, _ = prepare(law, question)
    e = np.array(question.experts)
    found = [loss_optimal(law, replace(question.budget, flops=flops), e) for flops in budget_flops.tolist()]
    n, tokens, loss = (np.array([getattr(one, name) for one in found]) for name in ("n_params", "tokens", "loss"))
    return Allocation(e, n, tokens, loss)
