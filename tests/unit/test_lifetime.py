"""Lives of models: what is found reaches its target, nothing is cheaper, and dollars move as they must."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from examples import daily
from families import JOINT, PAPER
from moescale.errors import InfeasibleError, InputError
from moescale.hardware.gpus import find_gpu
from moescale.latency.roofline import Roofline
from moescale.models.family import ModelFamily, n_active, training_flops
from moescale.planning.allocation import CLOSE, Budget, largest_within_cost, loss_optimal
from moescale.planning.candidate import Costs
from moescale.planning.total_cost import (
    Lifetime,
    LifetimeCost,
    LifetimeFlops,
    best_within_total,
    cheapest_at_loss,
    flops_optimal,
    lowest_loss,
    tokens_at_loss,
)
from moescale.planning.training_price import TrainingPrice
from moescale.scaling_laws import Law, find_law, loss
from moescale.serving.deployment import Deployment
from moescale.typing import FloatArray
from random_models import dense_laws

EXPERTS = np.array([1.0, 4.0, 16.0, 32.0])
USD_PER_FLOP = 1.45 / 3600 / (312e12 * 0.4)
LAW = find_law("yun2024-recovered")
TARGET = 2.1
BUDGET_LOSS = 2.0707  # about that of the loss-optimal 4-expert model of 5.15e21 FLOPs


@cache
def costs() -> Costs:
    gpu = find_gpu("a100-sxm-40gb")
    deployment = Deployment(gpu=gpu, usd_per_gpu_hour=1.45, prompt_tokens=230, output_tokens=203)
    return Costs(LAW.family, Roofline(gpu), deployment, None)


def stepped(n_params: FloatArray, experts: FloatArray) -> FloatArray:
    """A made-up price with jumps, as where another GPU is needed."""
    total = n_params * (1.0 + (experts - 1.0) / 3.0)
    return 2e-11 * n_params * (1.0 + 0.4 * np.ceil(total / 4e9))


def life(served: float, **bounds: float) -> Lifetime:
    return replace(Lifetime(served_tokens=served, usd_per_flop=USD_PER_FLOP), **bounds)


served = st.floats(9.0, 15.0).map(lambda power: 10.0**power)
few = daily(8)


@pytest.mark.system
@given(dense_laws, st.floats(1e7, 1e12), st.floats(1e8, 1e14))
def test_tokens_at_loss_inverts_the_law(law: Law, n_params: float, tokens: float) -> None:
    target = float(loss(law, n_params, tokens, 1.0))
    found = tokens_at_loss(law, np.array([n_params]), np.array([1.0]), target)
    # Where data hardly matter any more, the loss's last bit is worth that much of D.
    share = law.parameters["B"] / tokens ** law.parameters["beta"] / target * law.parameters["beta"]
    assert found[0] == pytest.approx(tokens, rel=1e-14 / share)
    np.testing.assert_allclose(loss(law, n_params, found, 1.0), target, rtol=1e-15 * 4)


def test_tokens_at_loss_of_every_law_of_a_plan_and_none_where_it_is_out_of_reach() -> None:
    n, e = np.geomspace(1e8, 1e11, 7), np.full(7, 8.0)
    for name in ("yun2024-recovered", "yun2024-joint", "moescale2026-joint", "ludziejewski2025", "muennighoff2023"):
        law = find_law(name)
        extra = {"unique_tokens": 5e10} if "unique_tokens" in law.form.extra_inputs else {}
        counts = e if law.form.uses_experts else np.ones(7)
        target = loss(law, n, 3e11, counts, extra=extra)
        found = tokens_at_loss(law, n, counts, target, extra=extra)
        np.testing.assert_allclose(loss(law, n, found, counts, extra=extra), target, rtol=1e-14)
    n = np.array([1e9, 1e9])
    assert np.isnan(tokens_at_loss(LAW, n, np.array([1.0, 32.0]), 1.0)).all()
    reached = tokens_at_loss(LAW, n, np.array([1.0, 32.0]), 2.0707, max_tokens=2e11)
    assert np.isnan(reached[0])
    assert reached[1] < 2e11


@pytest.mark.system
@few
@given(dense_laws, st.floats(20.0, 25.0), served)
def test_the_first_order_condition(law: Law, power: float, inference_tokens: float) -> None:
    a, b = (law.parameters[name] for name in ("alpha", "beta"))
    trade = (a * law.parameters["A"] / (b * law.parameters["B"])) ** (1 / (a + b))
    assume(1e7 < trade * (10.0**power / 6) ** (b / (a + b)) < 1e14)  # the search is from 1e6 to 1e15
    target = float(loss_optimal(law, Budget(10.0**power), 1.0).loss[0])
    found = flops_optimal(law, 1.0, target, inference_tokens)
    n, d, p = float(found.n_params[0]), float(found.tokens[0]), law.parameters
    assume(n > 1e7 and d < 1e18)  # beyond, rounding of the loss blurs D
    in_n = p["alpha"] * p["A"] / n ** p["alpha"]
    in_d = p["beta"] * p["B"] / d ** p["beta"]
    assert in_n / in_d == pytest.approx(1 + inference_tokens / (3 * d), rel=1e-6)
    assert 6 * n * d + 2 * n * inference_tokens == pytest.approx(float(found.total_flops[0]), rel=1e-12)


@pytest.mark.system
@few
@given(st.sampled_from([LAW, replace(LAW, family=replace(LAW.family, convention="exact"))]), st.floats(19.0, 25.0))
def test_without_inference_it_is_the_loss_optimal_model(law: Law, power: float) -> None:
    best = loss_optimal(law, Budget(10.0**power), EXPERTS)
    found = flops_optimal(law, EXPERTS, best.loss, 0.0)
    np.testing.assert_allclose(found.n_params, best.n_params, rtol=1e-5)  # the optimum is flat: loss rounds
    np.testing.assert_allclose(found.training_flops, 10.0**power, rtol=1e-10)


@pytest.mark.parametrize("family", [PAPER, JOINT])
def test_the_fewest_flops_are_fewest(family: ModelFamily) -> None:
    law = replace(LAW, family=family)
    found = flops_optimal(law, EXPERTS, TARGET, 1e12)
    for share in (0.5, 0.9, 0.99, 1.01, 1.1, 2.0):
        n = found.n_params * share
        d = tokens_at_loss(law, n, EXPERTS, TARGET)
        flops = training_flops(family, n, d, EXPERTS) + 2 * n_active(family, n, EXPERTS) * 1e12
        assert np.all(np.isnan(flops) | (flops >= found.total_flops))


@pytest.mark.parametrize("changes", [{"mfu": 0.0}, {"mfu": 1.1}, {"mfu": math.nan}, {"usd_per_gpu_hour": 0.0}])
def test_impossible_prices_are_refused(changes: dict[str, float]) -> None:
    with pytest.raises(InputError):
        TrainingPrice(**{"gpu": find_gpu("h100-sxm"), "usd_per_gpu_hour": 1.0, "mfu": 0.4, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changes", [{"served_tokens": -1.0}, {"usd_per_flop": 0.0}, {"max_tokens": math.inf}, {"max_usd_per_mtok": 0.0}]
)
def test_impossible_lives_are_refused(changes: dict[str, float]) -> None:
    with pytest.raises(InputError, match=next(iter(changes))):
        Lifetime(**{"served_tokens": 1e12, "usd_per_flop": 1e-18, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("tokens", [1e10, 1e11, 1e12, 1e13, 1e14])
def test_nothing_is_cheaper(tokens: float) -> None:
    found = cheapest_at_loss(LAW, EXPERTS, TARGET, life(tokens), stepped)
    n = np.geomspace(1e7, 1e13, 20_000)[:, None] * np.ones(EXPERTS.size)
    d = tokens_at_loss(LAW, n, EXPERTS, TARGET, max_tokens=life(tokens).max_tokens)
    usd = training_flops(LAW.family, n, d, EXPERTS) * USD_PER_FLOP + stepped(n, EXPERTS) * tokens / 1e6
    assert np.all(found.total_usd <= np.nanmin(usd, axis=0) * (1 + 1e-9))
    np.testing.assert_allclose(found.loss, TARGET, rtol=1e-14)
    np.testing.assert_allclose(loss(LAW, found.n_params, found.tokens, EXPERTS), TARGET, rtol=1e-14)
    np.testing.assert_allclose(found.serving_usd, stepped(found.n_params, EXPERTS) * tokens / 1e6, rtol=1e-12)
    np.testing.assert_allclose(
        found.training_usd, training_flops(LAW.family, found.n_params, found.tokens, EXPERTS) * USD_PER_FLOP, rtol=1e-12
    )


JUMP = 1.01  # of dollars where serving prices jump, as planning.total_cost promises


def spent(found: LifetimeCost | LifetimeFlops) -> FloatArray:
    return found.total_flops if isinstance(found, LifetimeFlops) else found.total_usd


def usd_per_mtok(found: LifetimeCost, tokens: float) -> FloatArray:
    return found.serving_usd / tokens * 1e6


@pytest.mark.system
@few
@given(served, st.floats(1.2, 100.0), st.sampled_from(["stepped", "roofline"]))
def test_more_served_tokens_buy_a_model_that_is_cheaper_to_serve(tokens: float, factor: float, kind: str) -> None:
    cost_of = stepped if kind == "stepped" else costs().usd_per_mtok
    one = cheapest_at_loss(LAW, EXPERTS, TARGET, life(tokens), cost_of)
    more = cheapest_at_loss(LAW, EXPERTS, TARGET, life(factor * tokens), cost_of)
    # Each is the best for its own number of tokens, so the exchange can only lose.
    assert np.all(usd_per_mtok(more, factor * tokens) <= usd_per_mtok(one, tokens) * JUMP)
    assert np.all(more.training_flops >= one.training_flops / JUMP)
    assert np.all(more.total_usd >= one.total_usd / JUMP)


@pytest.mark.system
@few
@given(st.floats(2.06, 2.6), st.floats(0.001, 0.3), served)
def test_a_better_model_costs_more(target: float, worse: float, tokens: float) -> None:
    strict = cheapest_at_loss(LAW, EXPERTS, target, life(tokens), stepped)
    lax = cheapest_at_loss(LAW, EXPERTS, target + worse, life(tokens), stepped)
    assert np.all(lax.total_usd <= strict.total_usd * JUMP)


@pytest.mark.system
@few
@given(served, st.sampled_from(["stepped", "roofline"]))
@example(10.0**11.515625, "stepped")  # the best lies on the edge of a jump in price, away from the best of the scan
def test_the_two_questions_agree(tokens: float, kind: str) -> None:
    """Within the dollars that a loss costs at least, the lowest loss is that loss."""
    cost_of = stepped if kind == "stepped" else costs().usd_per_mtok
    cheapest = cheapest_at_loss(LAW, EXPERTS, TARGET, life(tokens), cost_of)
    best = best_within_total(LAW, EXPERTS, cheapest.total_usd, life(tokens), cost_of)
    assert np.all(best.loss <= TARGET * (1 + 1e-7))
    np.testing.assert_allclose(best.loss, TARGET, rtol=5e-4)  # the cheapest may be missed by a jump in price
    assert np.all(best.total_usd <= cheapest.total_usd * (1 + 1e-12))


def test_bounds_hold() -> None:
    free = cheapest_at_loss(LAW, EXPERTS, BUDGET_LOSS, life(1e13), stepped)
    cap = 0.5 * float(np.min(free.tokens))
    capped = cheapest_at_loss(LAW, EXPERTS, BUDGET_LOSS, life(1e13, max_tokens=cap), stepped)
    assert np.all(capped.tokens <= cap * (1 + 1e-9))
    assert np.all(capped.total_usd >= free.total_usd)
    np.testing.assert_allclose(capped.loss, BUDGET_LOSS, rtol=1e-14)
    within = best_within_total(LAW, EXPERTS, free.total_usd, life(1e13, max_tokens=cap), stepped)
    assert np.all(within.tokens <= cap)
    assert np.all(within.loss >= BUDGET_LOSS)

    limit = 0.9 * float(np.min(usd_per_mtok(free, 1e13)))
    priced = cheapest_at_loss(LAW, EXPERTS, BUDGET_LOSS, life(1e13, max_usd_per_mtok=limit), stepped)
    known = np.isfinite(priced.total_usd)
    assert np.all(usd_per_mtok(priced, 1e13)[known] <= limit * (1 + 1e-12))
    assert known.any()


def test_what_no_model_reaches_costs_infinity() -> None:
    found = cheapest_at_loss(LAW, EXPERTS, 1.0, life(1e12), stepped)
    assert np.isinf(found.total_usd).all()
    assert np.isnan(found.n_params).all()
    assert np.all(lowest_loss(LAW, EXPERTS, life(0.0)) > 1.0)
    assert np.isnan(flops_optimal(LAW, EXPERTS, 1.0, 1e12).n_params).all()
    unserved = cheapest_at_loss(LAW, EXPERTS, TARGET, life(1e12), lambda n, e: np.full(n.shape, np.inf))
    assert np.isinf(unserved.total_usd).all()
    poor = best_within_total(LAW, EXPERTS, 1e-9, life(1e12), stepped)
    assert np.isinf(poor.total_usd).all()
    # The lowest loss is the edge of what is reached.
    floor = lowest_loss(LAW, EXPERTS, life(0.0, max_tokens=1e12))
    for target, reached in ((floor + 1e-3, True), (floor - 1e-3, False)):
        found = cheapest_at_loss(LAW, EXPERTS, target, life(1e12, max_tokens=1e12), stepped)
        assert np.all(np.isfinite(found.total_usd) == reached)


@pytest.mark.system
def test_each_draw_has_the_answer_that_it_would_have_alone() -> None:
    draws, targets = LAW.draws[:3], np.array([[2.06], [2.07], [2.08]])
    for ask in (
        lambda law, target, **draws: cheapest_at_loss(law, EXPERTS, target, life(1e12), stepped, **draws),
        lambda law, _, **draws: best_within_total(law, EXPERTS, 5e4, life(1e12), stepped, **draws),
        lambda law, target, **draws: flops_optimal(law, EXPERTS, target, 1e12, **draws),
    ):
        together = ask(LAW, targets, theta=draws)
        for k, theta in enumerate(draws):
            one = ask(replace(LAW, theta=theta), float(targets[k, 0]))
            np.testing.assert_allclose(together.loss[k], one.loss, rtol=1e-9)
            np.testing.assert_allclose(spent(together)[k], spent(one), rtol=1e-9)
            np.testing.assert_allclose(together.n_params[k], one.n_params, rtol=1e-5)


@pytest.mark.parametrize("name", ["clark2022-s-base", "kaplan2020"])
def test_laws_without_a_trade_off_are_refused(name: str) -> None:
    law = find_law(name)
    for ask in (
        lambda: cheapest_at_loss(law, 1.0, 3.0, life(1e12), stepped),
        lambda: best_within_total(law, 1.0, 1e6, life(1e12), stepped),
        lambda: flops_optimal(law, 1.0, 3.0, 1e12),
    ):
        with pytest.raises(InfeasibleError, match="no loss-optimal size"):
            ask()


@few
@given(st.floats(-3.0, 1.0).map(lambda power: 10.0**power))
def test_the_largest_size_within_a_cost(usd: float) -> None:
    n = largest_within_cost(EXPERTS, usd, stepped)
    assert np.all(stepped(n, EXPERTS) <= usd)
    assert np.all(stepped(n * (1 + CLOSE), EXPERTS) > usd)
    assert np.isnan(largest_within_cost(EXPERTS, 1e-9, stepped)).all()  # no size meets it
