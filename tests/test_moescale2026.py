"""moescale2026: its limits, what it promises about N, D and E, and what it reaches on the public joint runs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import least_squares

from moescale.fitting.fit import fit
from moescale.fitting.holdout import RunArrays, hold_out
from moescale.fitting.objective import HUBER_DELTA
from moescale.planning.allocation import SIZES, Budget, loss_on_budget, loss_optimal
from moescale.runs.table import RunTable, read_runs
from moescale.scaling_laws import find_form, find_law, loss, make_inputs, moescale2026, predict
from moescale.scaling_laws.form import Observed
from reference_data import JOINT_MOE_RUNS

FORM = moescale2026.FORM
LAW = find_law("moescale2026-joint")
P = LAW.parameters

sizes = st.floats(1e7, 1e12)
ratios = st.floats(0.01, 1e5)  # tokens per parameter
counts = st.floats(1.0, 32.0)


@pytest.fixture(scope="module")
def runs() -> RunTable:
    return read_runs(JOINT_MOE_RUNS, size_column="n_params_active", where="tokens / n_params_active >= 2")


def arrays(runs: RunTable) -> RunArrays:
    return RunArrays(runs.n_params, runs.tokens, runs.experts, runs.loss, {})


def as_written(n: float, d: float, e: float) -> float:
    """The formula without logarithms; N_b by the root of its cubic."""
    omega = 2 * 50257 * (64 / 13) ** (1 / 3)
    root = next(r.real for r in np.roots([1, 0, omega, -n]) if abs(r.imag) < 1e-6 * abs(r))
    tokens = d / (1 + P["D_0"] / d)
    size = P["L_N"] * (5e8 / root**3) ** P["alpha"]
    data = P["L_D"] * (1e10 / tokens) ** P["alpha"]
    dense = (size ** (1 / P["kappa"]) + data ** (1 / P["kappa"])) ** P["kappa"]
    reach = 1 / (1 / (e - 1 + 1 / (1 - 1 / P["E_max"])) + 1 / P["E_max"])
    return dense / reach ** (P["eta"] * d / (d + P["R"] * n))


@pytest.mark.parametrize("n", [1e8, 3e9])
@pytest.mark.parametrize("d", [1e9, 1e12])
@pytest.mark.parametrize("e", [1.0, 2.0, 32.0])
def test_the_formula_as_it_is_written(n: float, d: float, e: float) -> None:
    assert float(loss(LAW, n, d, e)) == pytest.approx(as_written(n, d, e), rel=1e-10)


def test_size_without_embeddings_is_that_of_the_smallest_and_the_largest_model_of_the_runs() -> None:
    # d_model 512 with 8 blocks and 2304 with 36: 13 width^2 a block, and two tables.
    for width, blocks in ((512, 8), (2304, 36)):
        body = 13 * width**2 * blocks
        found, _ = moescale2026.ln_body(np.array([np.log(body + 2 * width * 50257)]))
        assert float(np.exp(found[0])) == pytest.approx(body, rel=1e-10)


@given(sizes)
def test_the_slope_of_the_body_is_a_difference(n: float) -> None:
    ln, step = np.log(n), 1e-5
    values, slope = moescale2026.ln_body(np.array([ln - step, ln, ln + step]))
    assert float(slope[1]) == pytest.approx((values[2] - values[0]) / (2 * step), rel=1e-6)


@given(sizes, ratios)
def test_a_dense_model_does_not_feel_the_parameters_of_experts(n: float, ratio: float) -> None:
    other = LAW.theta.copy()
    other[[moescale2026.ETA, moescale2026.R, moescale2026.MAX]] = 0.3, 1.0, 2.0
    assert float(loss(LAW, n, n * ratio, 1.0, theta=other)) == pytest.approx(float(loss(LAW, n, n * ratio, 1.0)))


@given(sizes, counts)
def test_endless_data_and_endless_size(n: float, e: float) -> None:
    body = float(np.exp(moescale2026.ln_body(np.array([np.log(n)]))[0][0]))
    reach = 1 / (1 / (e - 1 + 1 / (1 - 1 / P["E_max"])) + 1 / P["E_max"])
    limit = P["L_N"] * (5e8 / body) ** P["alpha"] * reach ** -P["eta"]
    assert float(loss(LAW, n, 1e60, e)) == pytest.approx(limit, rel=1e-6)
    # An endless model trained on the same tokens: data alone, and experts that never ripen.
    tokens = n / (1 + P["D_0"] / n)
    assert float(loss(LAW, 1e60, n, e)) == pytest.approx(P["L_D"] * (1e10 / tokens) ** P["alpha"], rel=1e-6)


@given(sizes, ratios, counts, st.floats(1.001, 10.0))
def test_more_size_more_tokens_and_more_experts_never_hurt(n: float, ratio: float, e: float, factor: float) -> None:
    d = n * ratio
    here = float(loss(LAW, n, d, e))
    assert float(loss(LAW, n * factor, d, e)) < here
    assert float(loss(LAW, n, d * factor, e)) < here
    assert float(loss(LAW, n, d, e * factor)) <= here * (1 + 1e-14)


@given(st.integers(0, 200), sizes, ratios)
def test_experts_help_and_saturate_at_any_point_of_the_box(seed: int, n: float, ratio: float) -> None:
    low, high = FORM.bounds(Observed(experts_max=32.0, loss_min=2.2)).T
    theta = low + (high - low) * np.random.default_rng(seed).uniform(size=low.size)
    e = np.array([*np.geomspace(1.0, 1e6, 25), 1e14, 1e20])
    ln = FORM.log_loss(theta, make_inputs(n, n * ratio, e))
    scale = 1e-12 * (1.0 + np.abs(ln).max())
    assert np.all(np.diff(ln) <= scale)
    assert abs(ln[-1] - ln[-2]) <= 1e-8 + scale


def test_expert_gains_grow_with_tokens_per_parameter_to_half_at_r() -> None:
    ratio = np.array([0.1, 2.0, P["R"], 1e3, 1e9])
    gain = np.log(loss(LAW, 1e9, 1e9 * ratio, 1.0) / loss(LAW, 1e9, 1e9 * ratio, 16.0))
    assert np.all(np.diff(gain) > 0)
    assert float(gain[2] / gain[4]) == pytest.approx(0.5, rel=1e-6)


@pytest.mark.parametrize("flops", [1e19, 1e21, 5.15e21, 1e24])
@pytest.mark.parametrize("experts", [1.0, 8.0, 32.0])
def test_one_optimum_on_a_budget(flops: float, experts: float) -> None:
    budget = Budget(flops)
    best = loss_optimal(LAW, budget, experts)
    at = float(np.ravel(best.n_params)[0])
    losses = np.ravel(loss_on_budget(LAW, budget, SIZES, np.full(SIZES.size, experts)))
    assert np.all(np.diff(losses[at > SIZES]) < 0)
    assert np.all(np.diff(losses[at < SIZES]) > 0)
    assert float(np.ravel(best.loss)[0]) <= losses.min()


def test_the_shipped_law_carries_its_draws() -> None:
    assert LAW.draws.shape == (100, 8)
    inside = predict(LAW, 3.2e8, 8e9, 8.0)
    assert inside.interval is not None
    low, high = inside.interval
    assert float(low) < float(inside.loss) < float(high)
    assert LAW.max_experts == 32.0


def search(runs: RunTable, starts: int) -> float:
    """The lowest summed Huber objective of trust-region least squares from random starts."""
    inputs, y = make_inputs(runs.n_params, runs.tokens, runs.experts), np.log(runs.loss)
    observed = Observed(experts_max=float(runs.experts.max()), loss_min=float(runs.loss.min()))
    (low, high), region = FORM.bounds(observed).T, FORM.region(observed) if FORM.region else FORM.bounds(observed)
    draws = np.random.default_rng(3).uniform(*region.T, size=(starts, len(region)))
    found = [
        least_squares(
            lambda p: FORM.log_loss(p, inputs) - y,
            np.clip(start, low + 1e-9, high - 1e-9),
            jac=lambda p: FORM.jacobian(p, inputs),
            bounds=(low, high),
            loss="huber",
            f_scale=HUBER_DELTA,
            x_scale="jac",
            max_nfev=300,
        )
        for start in draws
    ]
    return min(float(one.cost) for one in found)


@pytest.mark.system
def test_the_fit_is_the_optimum_of_an_independent_search(runs: RunTable) -> None:
    found = fit(find_form("moescale2026"), runs.n_params, runs.tokens, runs.experts, runs.loss)
    other = search(runs, 12)
    assert found.objective <= other * (1 + 1e-7)
    assert found.objective == pytest.approx(other, rel=1e-4)
    assert found.starts_at_optimum >= 12
    assert found.at_bound == ("E_max",)
    np.testing.assert_allclose(list(found.parameters.values()), list(LAW.parameters.values()), rtol=1e-4)


@pytest.mark.system
def test_errors_in_and_out_of_sample_are_those_that_were_measured(runs: RunTable) -> None:
    found = fit(FORM, runs.n_params, runs.tokens, runs.experts, runs.loss)
    assert found.rmsle <= 2.093e-3 * 1.01
    table = arrays(runs)
    for held_out, measured in (
        (table.tokens >= 12e9, 3.694e-3),
        (table.experts >= 16, 3.368e-3),
        (table.n_params >= 6e8, 2.524e-3),
    ):
        assert hold_out(FORM, table, held_out).rmsle_holdout <= measured * 1.01
