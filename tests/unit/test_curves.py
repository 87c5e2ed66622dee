"""A draft holds the plan's own numbers, for the points of its curves; the curve of intervals follows the latency source."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moescale.hardware.gpus import find_gpu, load_gpu
from moescale.latency import LatencySource, Pass
from moescale.latency.roofline import Roofline
from moescale.models.architecture import Architecture
from moescale.models.family import find_family
from moescale.models.parameters import dense_equivalent_params
from moescale.planning.allocation import Budget
from moescale.planning.candidate import Costs
from moescale.planning.curves import draft_plan, loss_band, scaling
from moescale.planning.plan import Question, make_plan
from moescale.planning.sampled_costs import sampled_costs
from moescale.planning.training_price import TrainingPrice
from moescale.scaling_laws import find_law
from moescale.serving.deployment import Deployment
from moescale.typing import FloatArray

LAW = find_law("yun2024-recovered")
GPU = find_gpu("a100-sxm-40gb")
DEPLOYMENT = Deployment(gpu=GPU, usd_per_gpu_hour=1.45, prompt_tokens=230.0, output_tokens=203.0)


@pytest.mark.parametrize("flops", [1e19, 5.15e21, 1e25])
def test_curves_are_those_of_the_plan(flops: float) -> None:
    question = Question(budget=Budget(flops), experts=(1.0, 8.0, 32.0), match_experts=4.0)
    found = draft_plan(LAW, question, DEPLOYMENT, Roofline(GPU))
    plan = make_plan(LAW, replace(question, draws=0), DEPLOYMENT, Roofline(GPU))
    usd = found.serving.usd_per_mtok.reshape(found.loss.shape)
    for i, curve in enumerate(plan.curves):
        assert found.experts[i] == curve.experts
        np.testing.assert_array_equal(found.n_params[i], curve.n_params)
        np.testing.assert_array_equal(found.loss[i], curve.loss)
        np.testing.assert_array_equal(np.where(np.isfinite(usd[i]), usd[i], np.nan), curve.usd_per_mtok)
    assert found.n_params[:, found.optimum].tolist() == [c.n_params for c in plan.loss_optimal]
    # The baseline has 4 experts, and no curve: it only compares.
    assert found.base.experts == plan.base_experts == 4.0
    assert (found.base.loss, found.base.usd_per_mtok) == (plan.base_loss, plan.base_usd_per_mtok)


def test_the_band_is_that_of_the_plans_intervals() -> None:
    question = Question(budget=Budget(5.15e21), match_experts=4.0)
    band = loss_band(LAW, question)
    low, high = band
    found = draft_plan(LAW, question, DEPLOYMENT, Roofline(GPU))
    assert low.shape == high.shape == found.loss.shape
    assert np.all(low <= high)
    # All draws agree on the base, and the recovered law lies among its own draws.
    base = list(found.experts).index(4.0), found.optimum
    np.testing.assert_allclose([low[base], high[base]], found.base.loss, rtol=1e-12)
    assert np.mean((low <= found.loss) & (found.loss <= high)) > 0.9
    assert loss_band(LAW, Question(budget=Budget(5.15e21), draws=0)) is None


def test_scaling_is_the_loss_optimal_model_of_each_budget() -> None:
    budgets = np.array([1e20, 5.15e21, 1e24])
    found = scaling(LAW, Question(budget=Budget(1e18)), budgets)
    plan = make_plan(LAW, Question(budget=Budget(5.15e21), draws=0), DEPLOYMENT, Roofline(GPU))
    assert found.n_params[1].tolist() == [c.n_params for c in plan.loss_optimal]
    assert np.all(np.diff(found.n_params, axis=0) > 0)
    assert np.all(np.diff(found.loss, axis=0) < 0)


@given(hours=st.floats(1.0, 1e9), mfu=st.floats(0.01, 1.0))
def test_gpu_hours_buy_the_flops_that_take_so_many_hours(hours: float, mfu: float) -> None:
    price = TrainingPrice(gpu=GPU, usd_per_gpu_hour=1.0, mfu=mfu)
    assert math.isclose(price.usd_per_flop * price.flops_bought(hours / 24.0, 1.0, None, None), hours, rel_tol=1e-12)


@dataclass(frozen=True)
class Known(LatencySource):
    """A roofline that answers for some sizes alone, as a table of measured latencies does."""

    source: Roofline
    low: float
    high: float
    name: str = "known"

    def pass_s(self, model: Architecture, a: Pass) -> FloatArray:
        n = np.asarray(dense_equivalent_params(model))
        return np.where((n >= self.low) & (n <= self.high), self.source.pass_s(model, a), np.nan)


@pytest.mark.parametrize(("low", "high"), [(2e6, 1.2e7), (3e8, 6e8), (1e4, 1e13)])
def test_the_curve_follows_a_source_to_its_ends_and_not_beyond(low: float, high: float) -> None:
    gpu = load_gpu("a100-sxm-80gb")
    deployment = Deployment(gpu=gpu, usd_per_gpu_hour=2.0, prompt_tokens=230, output_tokens=203)
    costs = Costs(find_family("yun2024"), Known(Roofline(gpu), low, high), deployment, None)
    experts = np.array([1.0, 8.0])
    sampled = sampled_costs(costs, experts)
    ends = (low, high) if high < 1e12 else (1e7, 1e10)
    inside = np.geomspace(1.1 * ends[0], 0.9 * ends[1], 7)
    sizes = np.broadcast_to(inside[:, None], (7, 2))
    wanted = costs.usd_per_mtok(sizes, np.broadcast_to(experts, sizes.shape))
    np.testing.assert_allclose(sampled.usd_per_mtok(sizes), wanted, rtol=0.03)
    outside = np.array([[low * 0.9] * 2, [high * 1.1] * 2])
    assert np.isnan(sampled.usd_per_mtok(outside)).all()
    assert np.isnan(sampled.size_within(wanted.min(axis=0)[:1] * 1e-3)).all()
