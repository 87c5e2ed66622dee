"""The decision of a plan over several laws: what it promises, with what probability, and what it may lose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from moescale.errors import InfeasibleError
from moescale.hardware.gpus import find_gpu
from moescale.latency.roofline import Roofline
from moescale.models.family import find_family
from moescale.planning.allocation import Budget, inputs_at
from moescale.planning.candidate import Candidate, Row
from moescale.planning.plan import Plan, Question, make_plan
from moescale.planning.search import Search
from moescale.planning.total_cost import TrainingPrice
from moescale.scaling_laws import find_law
from moescale.scaling_laws.ensemble import restate
from moescale.scaling_laws.law import Law
from moescale.serving.deployment import Deployment
from moescale.typing import FloatArray
from moescale.views.tables import choices_table

pytestmark = pytest.mark.system

GPU = find_gpu("h100-sxm")
SERVED = Deployment(gpu=GPU, usd_per_gpu_hour=3.9, prompt_tokens=230.0, output_tokens=203.0, max_num_seqs=256.0)
MAIN = Question(budget=Budget(2.2e22))
EVERY = find_law("public-2026")
LIFE = {"lifetime_tokens": 5e12, "training": TrainingPrice(gpu=GPU, usd_per_gpu_hour=3.9, mfu=0.4)}


@cache
def asked(law: str = "public-2026", confidence: float | None = None, **bounds: Any) -> Plan:
    question = replace(MAIN, confidence=confidence, **bounds)
    return make_plan(find_law(law), question, SERVED, Roofline(GPU))


def served(rows: Sequence[Row]) -> list[Candidate]:
    return [c for c in rows if isinstance(c, Candidate)]


def losses(law: Law, n: float, tokens: float, experts: float) -> FloatArray:
    """Under each draw, (k,), as the law itself says."""
    x = inputs_at(law, {}, np.array([n]), np.log([tokens]), np.array([experts]))
    return np.exp(law.form.log_loss(law.draws, x))[:, 0]


def base_losses(plan: Plan) -> FloatArray:
    (base,) = (c for c in plan.loss_optimal if c.experts == plan.base_experts)
    return losses(EVERY, base.n_params, base.tokens, base.experts)


@pytest.mark.parametrize("confidence", [0.5, 0.8, 0.95])
def test_a_size_is_the_smallest_that_keeps_the_promise(confidence: float) -> None:
    plan = asked(confidence=confidence)
    for c in served(plan.bounded_loss):
        share = np.mean(losses(EVERY, c.n_params, c.tokens, c.experts) <= base_losses(plan) * (1 + 1e-9))
        assert c.probability_at_least_base == pytest.approx(share, abs=1e-12)
        assert share >= confidence - 1e-12
        smaller, more = c.n_params * 0.999, c.tokens / 0.999
        assert np.mean(losses(EVERY, smaller, more, c.experts) <= base_losses(plan)) < confidence + 1e-12
    model = plan.recommendation.model
    assert model.probability_at_least_base is not None
    assert model.probability_at_least_base >= confidence
    assert plan.confidence == confidence


def test_more_confidence_takes_larger_models() -> None:
    sizes = [[c.n_params for c in served(asked(confidence=p).bounded_loss)] for p in (0.5, 0.8, 0.95)]
    assert np.all(np.diff(np.array(sizes), axis=0) >= 0)


def test_one_law_alone_promises_by_its_own_curve() -> None:
    plan = asked("yun2024-recovered")
    assert plan.confidence is None
    assert plan.laws == ()
    for c in served(plan.bounded_loss):
        assert c.loss == pytest.approx(plan.base_loss, rel=1e-9)
    assert plan.recommendation.model.usd_per_mtok == pytest.approx(
        min(c.usd_per_mtok for c in served(plan.bounded_loss) if c.experts <= 32), rel=0.05
    )


def test_one_law_in_another_shape_still_promises_by_its_own_curve() -> None:
    law = restate(find_law("yun2024-joint"), find_family("mixtral"))
    plan = make_plan(law, replace(MAIN, draws=0), SERVED, Roofline(GPU))
    assert plan.confidence is None
    for c in served(plan.bounded_loss):
        assert c.loss == pytest.approx(plan.base_loss, rel=1e-9)


def test_the_decision_has_the_least_expected_regret() -> None:
    plan = asked()
    regrets = {c.experts: c.regret.expected for c in served(plan.bounded_loss) if c.regret and c.experts <= 32}
    assert min(regrets, key=lambda e: regrets[e]) == plan.recommendation.model.experts
    assert all(r >= 0.0 for r in regrets.values())
    model = plan.recommendation.model
    assert model.regret is not None
    assert model.regret.expected <= model.regret.worst


def test_a_law_that_is_right_loses_nothing_by_its_own_choice_and_the_plan_least_over_all() -> None:
    plan, model = asked(), asked().recommendation.model
    assert len(plan.laws) == 4
    assert model.regret is not None
    assert sum(view.weight for view in plan.laws) == pytest.approx(1.0)
    for view in plan.laws:
        assert view.elsewhere is not None
        own = view.elsewhere[view.law].regret
        assert own is not None
        assert own < 0.05  # its draws spread around its coefficients
        expected = sum(at.weight * (view.elsewhere[at.law].regret or 0.0) for at in plan.laws)
        sure = sum(at.weight * view.elsewhere[at.law].probability for at in plan.laws)
        # Whole layers and heads cost a little.
        assert sure < 0.8 or model.regret.expected < expected + 0.01
    # Weighted by law, the laws' regrets and probabilities are the decision's.
    assert sum(view.weight * (view.regret or 0.0) for view in plan.laws) == pytest.approx(model.regret.expected)
    assert sum(view.weight * view.probability for view in plan.laws) == pytest.approx(model.probability_at_least_base)


def test_regret_of_an_oracle_is_zero_and_of_dearer_models_what_they_cost_more() -> None:
    search = Search.of(find_law("yun2024-joint"), MAIN, SERVED, Roofline(GPU))
    panel, base = search.panel, search.base.usd_per_mtok
    assert base is not None
    goal = search.oracle.usd_at_goal(panel)
    k = int(np.argmin(goal))
    at = np.nanargmin(
        np.where(search.oracle.sampled.usd_per_mtok(panel.smallest.n_params) <= goal[:, None], 0.0, np.inf)[k]
    )
    loss = panel.losses(panel.smallest.n_params[k, [at]], panel.experts[[at]])
    for factor in (1.0, 1.5):
        usd = np.array([goal[k] * factor])
        expected = (factor - 1.0) * goal[k] / base
        assert search.oracle.regrets(panel, loss, usd, base)[k, 0] == pytest.approx(expected, abs=0.003)


def test_choices_run_from_quality_to_economy() -> None:
    plan = asked()
    best, knee, cheap = plan.choices.quality, plan.choices.balanced, plan.choices.cheapest
    assert best is not None
    assert knee is not None
    assert cheap is not None
    assert best.loss < knee.loss < cheap.loss
    assert best.usd_per_mtok > knee.usd_per_mtok > cheap.usd_per_mtok
    assert knee.probability_at_least_base is not None
    assert knee.probability_at_least_base >= 0.8
    marked = [row[0] for row in choices_table(plan).rows if row[0].startswith(">")]
    assert marked == ["> cheapest"]


@pytest.mark.parametrize(
    ("bounds", "what"),
    [
        ({"max_total_params": 20e9}, "n_params_total"),
        ({"max_active_params": 3e9}, "n_params_active"),
        ({"max_total_params": 15e9, "objective": "quality"}, "n_params_total"),
        ({"max_active_params": 2e9, "objective": "loss"}, "n_params_active"),
    ],
)
def test_bounds_on_parameters_hold(bounds: dict[str, Any], what: str) -> None:
    limit = next(value for name, value in bounds.items() if name.startswith("max"))
    plan = asked(**bounds)
    assert getattr(plan.recommendation.model, what) <= limit * 1.02  # as built, in whole layers and heads
    if "objective" not in bounds:
        assert all(getattr(c, what) <= limit * (1 + 1e-9) for c in served(plan.bounded_loss))


def test_a_bound_that_binds_says_which_and_by_how_much() -> None:
    with pytest.raises(InfeasibleError, match=r"--max-total-params 5B"):
        asked(max_total_params=5e9)
    with pytest.raises(InfeasibleError, match=r"probability of 90%; nearest: the highest probability is \d+%, with 32 experts"):
        asked(confidence=0.9, max_loss=2.02)


def test_objectives() -> None:
    by = {name: asked(objective=name).recommendation.model for name in ("serve", "quality", "loss")}
    assert by["loss"].loss <= by["quality"].loss <= by["serve"].loss
    assert by["serve"].usd_per_mtok <= by["quality"].usd_per_mtok <= by["loss"].usd_per_mtok
    base = asked().base_usd_per_mtok
    assert base is not None
    assert by["quality"].usd_per_mtok <= base * (1 + 1e-9)


def test_a_life_keeps_the_promise_too() -> None:
    plan = asked(**LIFE)
    assert plan.objective == "lifetime"
    assert plan.lifetime is not None
    assert plan.decision is plan.lifetime.recommendation
    for row in (*served(plan.lifetime.plans), plan.decision.model):
        share = np.mean(losses(EVERY, row.n_params, row.tokens, row.experts) <= base_losses(plan) * (1 + 1e-9))
        assert row.probability_at_least_base == pytest.approx(share, abs=0.02)  # as built, its family differs a little
        assert share >= 0.8 - 0.02
    assert plan.decision.model.regret is not None
    assert 0.0 <= plan.decision.model.regret.expected <= plan.decision.model.regret.worst


def test_the_decision_is_the_same_without_intervals() -> None:
    plan, full = asked(draws=0), asked()
    assert plan.recommendation.model.intervals is None
    assert full.recommendation.model.intervals
    assert replace(plan.recommendation.model, intervals=None) == replace(full.recommendation.model, intervals=None)
    some = asked(draws=40)
    assert [view.law for view in some.laws] == [view.law for view in plan.laws]
    assert some.recommendation.model.experts == full.recommendation.model.experts


def test_an_ensemble_without_draws_asks_its_laws_by_their_coefficients() -> None:
    law = replace(EVERY, draws=EVERY.draws[:0])
    plan = make_plan(law, MAIN, SERVED, Roofline(GPU))
    assert plan.recommendation.model.probability_at_least_base in (1.0, pytest.approx(0.75))
    assert len(plan.laws) == 4
