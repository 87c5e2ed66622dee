"""Allocations of a training budget: closed forms, minima, and the two bounded searches of the paper."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from examples import daily
from families import DENSE, HOFFMANN, JOINT, PAPER, YUN, chinchilla_optimum, law_of
from moescale.errors import InfeasibleError, InputError
from moescale.models.family import n_active, n_total, tokens_within, training_flops
from moescale.planning.allocation import (
    SIZES,
    Allocation,
    Budget,
    at_size,
    best_within_cost,
    loss_on_budget,
    loss_optimal,
    smallest_at_loss,
)
from moescale.scaling_laws import Law
from moescale.scaling_laws import loss as law_loss
from moescale.serving.pareto import pareto
from moescale.typing import FloatArray
from random_models import dense_laws

EXPERTS = np.array([1.0, 4.0, 8.0, 16.0, 32.0])
BUDGET = Budget(5.15e21)
PAPER_LAW = law_of("yun2024", YUN, PAPER)
DENSE_LAW = law_of("chinchilla", HOFFMANN, DENSE)


@st.composite
def moe_laws(draw: st.DrawFn) -> Law:
    """Laws near the paper's, under every convention."""
    near = {
        name: value * draw(st.floats(0.8, 1.25) if name in ("A", "B", "C", "F") else st.floats(0.95, 1.05))
        for name, value in YUN.items()
    }
    family = draw(
        st.sampled_from([PAPER, JOINT, replace(PAPER, convention="exact"), replace(PAPER, convention="dense")])
    )
    return law_of("yun2024", near, family)


few = daily(8)
budgets = st.floats(19.0, 24.0).map(lambda exponent: Budget(10.0**exponent))


def row(allocation: Allocation, k: int) -> Allocation:
    names = ("experts", "n_params", "tokens", "loss")
    return Allocation(*(getattr(allocation, name)[k] for name in names))


def assert_same(one: Allocation, other: Allocation, rtol: float = 1e-9) -> None:
    for name in ("experts", "n_params", "tokens", "loss"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=rtol)


@pytest.mark.system
@given(dense_laws, budgets)
def test_the_dense_optimum_is_the_closed_form(law: Law, budget: Budget) -> None:
    n, d = chinchilla_optimum(law.theta, budget.flops)
    assume(1.2e6 < n < 8e14)  # the sizes that are searched
    found = loss_optimal(law, budget, 1.0)
    assert found.n_params[0] == pytest.approx(n, rel=1e-8)
    assert found.tokens[0] == pytest.approx(d, rel=1e-8)
    assert 6 * found.n_params[0] * found.tokens[0] == pytest.approx(budget.flops, rel=1e-12)


@pytest.mark.parametrize("convention", ["paper", "exact", "dense"])
@pytest.mark.parametrize("flops", [1e19, 5.15e21, 1e25])
def test_the_closed_form_holds_for_every_multiple_of_6nd(convention: str, flops: float) -> None:
    law = replace(DENSE_LAW, family=replace(PAPER, convention=convention))
    found = loss_optimal(law, Budget(flops), EXPERTS)
    multiples = {"paper": 5 / 3, "exact": 4 / 3, "dense": 1.0}
    for i, experts in enumerate(EXPERTS):
        multiple = multiples[convention] if experts > 1 else 1.0
        n, d = chinchilla_optimum(law.theta, flops, multiple)
        assert found.n_params[i] == pytest.approx(n, rel=1e-8)
        assert found.tokens[i] == pytest.approx(d, rel=1e-8)
    spent = training_flops(law.family, found.n_params, found.tokens, EXPERTS)
    np.testing.assert_allclose(spent, flops, rtol=1e-12)


@pytest.mark.system
@given(moe_laws(), budgets, st.floats(1.5, 100.0))
def test_the_optimum_is_a_minimum_spends_the_budget_and_more_is_better(law: Law, budget: Budget, times: float) -> None:
    best = loss_optimal(law, budget, EXPERTS)
    assert np.all(loss_optimal(law, Budget(budget.flops * times), EXPERTS).loss < best.loss)
    for factor in (0.5, 0.99, 1.01, 2.0):
        assert np.all(loss_on_budget(law, budget, factor * best.n_params, EXPERTS) > best.loss)
    for factor in (1 - 1e-6, 1 + 1e-6):
        assert np.all(loss_on_budget(law, budget, factor * best.n_params, EXPERTS) >= best.loss * (1 - 1e-15))
    spent = training_flops(law.family, best.n_params, best.tokens, EXPERTS)
    np.testing.assert_allclose(spent, budget.flops, rtol=1e-12)
    np.testing.assert_allclose(law_loss(law, best.n_params, best.tokens, EXPERTS), best.loss, rtol=1e-14)
    np.testing.assert_array_equal(best.experts, EXPERTS)


@pytest.mark.system
@few
@given(moe_laws(), budgets, st.floats(0.02, 0.9))
def test_a_cap_on_tokens_is_kept_and_changes_nothing_where_it_is_loose(law: Law, budget: Budget, share: float) -> None:
    free = loss_optimal(law, budget, EXPERTS)
    capped_budget = Budget(budget.flops, max_tokens=share * float(free.tokens.min()))
    capped = loss_optimal(law, capped_budget, EXPERTS)
    assert np.all(capped.tokens <= capped_budget.max_tokens)
    assert np.all(capped.loss > free.loss)
    assert np.all(training_flops(law.family, capped.n_params, capped.tokens, EXPERTS) <= budget.flops * (1 + 1e-12))
    for factor in (0.9, 1.1):
        assert np.all(loss_on_budget(law, capped_budget, factor * capped.n_params, EXPERTS) >= capped.loss)
    loose = Budget(budget.flops, max_tokens=1.01 * float(free.tokens.max()))
    assert_same(loss_optimal(law, loose, EXPERTS), free)


@pytest.mark.system
@few
@given(moe_laws(), budgets, st.floats(0.0, 0.2))
def test_the_smallest_model_reaches_the_loss_exactly(law: Law, budget: Budget, slack: float) -> None:
    best = loss_optimal(law, budget, EXPERTS)
    target = float(best.loss.max()) * (1 + slack)
    small = smallest_at_loss(law, budget, EXPERTS, target)
    reached = np.isfinite(small.n_params)
    assert reached.all()
    assert np.all(small.n_params <= best.n_params)
    # Either the loss is met to the last digits, or the smallest size of the search already does better.
    least = small.n_params <= SIZES[0] * (1 + 1e-9)
    np.testing.assert_allclose(small.loss[~least], target, rtol=1e-9)
    assert np.all(small.loss[least] <= target * (1 + 1e-9))
    worse = loss_on_budget(law, budget, small.n_params * (1 - 1e-3), EXPERTS)
    assert np.all(worse[~least] > target)
    tokens = tokens_within(law.family, budget.flops, small.n_params, EXPERTS)
    np.testing.assert_allclose(small.tokens, tokens, rtol=1e-12)
    assert_same(smallest_at_loss(law, budget, EXPERTS, target, optimal=best), small, rtol=1e-15)


def test_a_loss_or_a_cost_out_of_reach_has_no_model() -> None:
    best = loss_optimal(PAPER_LAW, BUDGET, EXPERTS)
    target = float(np.sort(best.loss)[2])
    small = smallest_at_loss(PAPER_LAW, BUDGET, EXPERTS, target)
    np.testing.assert_array_equal(np.isfinite(small.n_params), best.loss <= target)
    assert np.isnan(small.n_params).sum() == 2
    np.testing.assert_array_equal(np.isnan(small.loss), np.isnan(small.n_params))
    np.testing.assert_array_equal(np.isnan(small.tokens), np.isnan(small.n_params))
    assert np.isnan(smallest_at_loss(PAPER_LAW, BUDGET, EXPERTS, 0.1).n_params).all()
    none = best_within_cost(PAPER_LAW, BUDGET, EXPERTS, 1.0, lambda n, e: np.full(np.shape(n), np.inf))
    assert np.isnan(none.n_params).all()
    assert np.isnan(none.loss).all()
    free = best_within_cost(PAPER_LAW, BUDGET, EXPERTS, 1.0, lambda n, e: np.zeros(np.shape(n)))
    assert_same(free, best)
    # One target for each expert count: its own optimum is the only model that reaches its own loss.
    own = smallest_at_loss(PAPER_LAW, BUDGET, EXPERTS, best.loss)
    np.testing.assert_allclose(own.n_params, best.n_params, rtol=1e-6)


@pytest.mark.system
@few
@given(moe_laws(), budgets, st.lists(st.floats(1e-6, 0.2), min_size=2, max_size=6, unique=True))
def test_a_looser_target_needs_a_smaller_model(law: Law, budget: Budget, slacks: list[float]) -> None:
    floor = loss_optimal(law, budget, EXPERTS).loss
    targets = np.sort(np.array(slacks))
    sizes = np.array([smallest_at_loss(law, budget, EXPERTS, floor * (1 + slack)).n_params for slack in targets])
    assert np.all(np.diff(sizes, axis=0) <= 0)


def steps(n_params: FloatArray, experts: FloatArray) -> FloatArray:
    """A cost that rises with size, with a jump of a fifth at every doubling, as at a change of the GPU count."""
    total = np.asarray(n_total(PAPER, n_params, experts))
    return 1e-10 * total * 1.2 ** np.floor(np.log2(total / 1e8))


@pytest.mark.system
@few
@given(moe_laws(), budgets, st.floats(-2.0, 2.0))
def test_the_best_model_within_a_cost(law: Law, budget: Budget, exponent: float) -> None:
    best = loss_optimal(law, budget, EXPERTS)
    limit = float(np.median(steps(best.n_params, EXPERTS))) * 10.0**exponent
    found = best_within_cost(law, budget, EXPERTS, limit, steps)
    known = np.isfinite(found.n_params)
    smallest = steps(np.full(EXPERTS.shape, np.exp(np.log(SIZES[0]))), EXPERTS)
    np.testing.assert_array_equal(known, smallest <= limit)
    sizes, counts = found.n_params[known], EXPERTS[known]
    assert np.all(steps(sizes, counts) <= limit)
    assert np.all(sizes <= best.n_params[known])
    at_optimum = sizes == best.n_params[known]
    assert np.all(at_optimum | (steps(sizes * 1.001, counts) > limit))
    assert np.all(found.loss[known] >= best.loss[known] * (1 - 1e-15))
    assert_same(best_within_cost(law, budget, EXPERTS, limit, steps, optimal=best), found, rtol=1e-15)


@pytest.mark.system
@few
@given(moe_laws(), budgets, st.lists(st.floats(-1.0, 1.0), min_size=2, max_size=5, unique=True))
def test_more_money_is_never_worse(law: Law, budget: Budget, exponents: list[float]) -> None:
    typical = float(np.median(steps(loss_optimal(law, budget, EXPERTS).n_params, EXPERTS)))
    limits = typical * 10.0 ** np.sort(np.array(exponents))
    losses = np.array([best_within_cost(law, budget, EXPERTS, float(limit), steps).loss for limit in limits])
    assert np.all(np.diff(np.where(np.isnan(losses), np.inf, losses)[::-1], axis=0) >= -1e-12)


@pytest.mark.parametrize("max_tokens", [None, 1e11])
def test_a_batch_of_coefficients_equals_one_at_a_time(max_tokens: float | None) -> None:
    budget = replace(BUDGET, max_tokens=max_tokens)
    theta = PAPER_LAW.theta * (1 + 0.01 * np.random.default_rng(0).normal(size=(5, PAPER_LAW.theta.size)))
    best = loss_optimal(PAPER_LAW, budget, EXPERTS, theta=theta)
    base = best.loss[:, 1:2]
    small = smallest_at_loss(PAPER_LAW, budget, EXPERTS, base, theta=theta)
    dear = best_within_cost(PAPER_LAW, budget, EXPERTS, 0.8, steps, theta=theta)
    fixed = at_size(PAPER_LAW, budget, np.full((5, 5), 1e9), EXPERTS, theta=theta)
    assert best.loss.shape == small.loss.shape == dear.loss.shape == fixed.loss.shape == (5, 5)
    for k in range(5):
        law = replace(PAPER_LAW, theta=theta[k])
        assert_same(row(best, k), loss_optimal(law, budget, EXPERTS))
        assert_same(row(small, k), smallest_at_loss(law, budget, EXPERTS, base[k]), rtol=1e-6)
        assert_same(row(dear, k), best_within_cost(law, budget, EXPERTS, 0.8, steps))
        assert_same(row(fixed, k), at_size(law, budget, np.full(5, 1e9), EXPERTS))


def test_a_law_without_a_trade_off_has_no_optimum() -> None:
    careless = law_of("chinchilla", HOFFMANN | {"A": 1e-3}, DENSE)
    with pytest.raises(InfeasibleError, match=r"made-up has no loss-optimal size between 1e\+04 and 1e\+15"):
        loss_optimal(careless, Budget(1e19), 1.0)


def test_sizes_that_are_missing_stay_missing() -> None:
    found = at_size(PAPER_LAW, BUDGET, np.array([1e9, np.nan]), np.array([4.0, 8.0]))
    np.testing.assert_array_equal(np.isnan(found.loss), [False, True])
    np.testing.assert_array_equal(np.isnan(found.tokens), [False, True])
    tokens = 5.15e21 / (6 * float(n_active(PAPER, 1e9, 4.0)))
    assert found.tokens[0] == pytest.approx(tokens, rel=1e-14)
    assert found.loss[0] == pytest.approx(float(law_loss(PAPER_LAW, 1e9, tokens, 4.0)), rel=1e-14)


@pytest.mark.parametrize(
    ("flops", "max_tokens", "message"),
    [
        *(
            (flops, None, "--budget: flops must be at least 1e.12 and at most 1e.32, not")
            for flops in (-1e21, 5e9, 1e40, math.inf)
        ),
        *((1e21, tokens, "max_tokens must be at least 1 and at most") for tokens in (0.0, math.nan)),
    ],
)
def test_impossible_budgets_are_refused(flops: float, max_tokens: float | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        loss_optimal(PAPER_LAW, Budget(flops, max_tokens), EXPERTS)


points = st.lists(
    st.tuples(
        st.sampled_from([1.0, 2.0, 3.0, math.inf, math.nan]) | st.floats(0.1, 10), st.floats(1, 5) | st.just(math.nan)
    ),
    max_size=20,
)


@given(points)
def test_the_frontier_is_what_nothing_beats(pairs: list[tuple[float, float]]) -> None:
    cost, at = np.array([p[0] for p in pairs]), np.array([p[1] for p in pairs])
    front = pareto(cost, at)
    assert np.all(np.diff(cost[front]) > 0)
    assert np.all(np.diff(at[front]) < 0)
    finite = np.flatnonzero(np.isfinite(cost) & np.isfinite(at))
    assert set(front) <= set(finite)
    for i in finite:
        beaten = np.any(
            (cost[finite] <= cost[i]) & (at[finite] <= at[i]) & ((cost[finite] < cost[i]) | (at[finite] < at[i]))
        )
        assert beaten or (cost[i], at[i]) in {(cost[j], at[j]) for j in front}
        assert np.any((cost[front] <= cost[i]) & (at[front] <= at[i]))
