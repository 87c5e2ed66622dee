"""moescale2026: its limits, what it promises about N, D and X, and what it reaches on public runs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from families import trust_region
from moescale.errors import DamagedFileError
from moescale.fitting.canonical import RunArrays
from moescale.fitting.fit import fit
from moescale.fitting.workflow import hold_out
from moescale.runs.table import RunTable, read_runs
from moescale.scaling_laws import find_law, law_text, make_inputs, moescale2026, predict
from moescale.scaling_laws.form import Observed
from moescale.scaling_laws.store import parse_law
from reference_data import JOINT_MOE_RUNS

FORM, LATE = moescale2026.FORM, moescale2026.FORM_LATE
LAW = find_law("moescale2026-joint")
P = LAW.parameters | {"F": 1.2}  # the fit has no floor; the formula has
THETA = FORM.encode(np.array([P[name] for name in FORM.names]))

sizes = st.floats(1e7, 1e12)
ratios = st.floats(0.01, 1e5)  # tokens per parameter
expansions = st.floats(1.0, 1024.0)


@pytest.fixture(scope="module")
def runs() -> RunTable:
    where = "tokens / n_params_active >= 2"
    return read_runs(JOINT_MOE_RUNS, size_column="n_params_active_nonemb", where=where)


def at(n: float, d: float, x: float) -> float:
    return float(np.exp(FORM.log_loss(THETA, make_inputs(n, d, x)))[0])


@pytest.mark.parametrize("n", [1e8, 3e9])
@pytest.mark.parametrize("d", [1e9, 1e12])
@pytest.mark.parametrize("x", [1.0, 4.375, 32.0])
def test_the_formula_as_it_is_written(n: float, d: float, x: float) -> None:
    """Without logarithms."""
    reach = 1 / (1 / (x - 1 + 1 / (1 - 1 / P["E_max"])) + 1 / P["E_max"])
    size = P["A"] * (1e9 / (n * reach ** (P["g"] * d / (d + P["R"] * n)))) ** P["alpha"]
    data = P["B"] * (1e10 / (d / (1 + P["D_0"] / d))) ** P["beta"]
    loss = P["F"] + (size ** (1 / P["kappa"]) + data ** (1 / P["kappa"])) ** P["kappa"]
    assert at(n, d, x) == pytest.approx(loss, rel=1e-10)


@given(sizes, ratios)
def test_a_dense_model_does_not_feel_the_parameters_of_experts(n: float, ratio: float) -> None:
    other = THETA.copy()
    other[[FORM.names.index(name) for name in ("g", "R", "E_max")]] = 0.9, 1.0, 2.0
    x = make_inputs(n, n * ratio, 1.0)
    assert FORM.log_loss(other, x) == pytest.approx(FORM.log_loss(THETA, x), rel=1e-12)


@given(sizes, expansions)
def test_endless_data_and_endless_size(n: float, x: float) -> None:
    reach = 1 / (1 / (x - 1 + 1 / (1 - 1 / P["E_max"])) + 1 / P["E_max"])
    limit = P["F"] + P["A"] * (1e9 / (n * reach ** P["g"])) ** P["alpha"]
    assert at(n, 1e60, x) == pytest.approx(limit, rel=1e-6)
    # An endless model trained on n tokens: data alone, and experts that never ripen.
    tokens = n / (1 + P["D_0"] / n)
    assert at(1e60, n, x) == pytest.approx(P["F"] + P["B"] * (1e10 / tokens) ** P["beta"], rel=1e-6)


@given(sizes, ratios, expansions, st.floats(1.001, 10.0))
def test_more_size_more_tokens_and_more_experts_never_hurt(n: float, ratio: float, x: float, factor: float) -> None:
    d, here = n * ratio, at(n, n * ratio, x)
    assert at(n * factor, d, x) <= here * (1 + 1e-14)
    assert at(n, d * factor, x) <= here * (1 + 1e-14)
    assert at(n, d, x * factor) <= here * (1 + 1e-14)


@given(st.integers(0, 200), sizes, ratios)
def test_experts_help_and_saturate_at_any_point_of_the_box(seed: int, n: float, ratio: float) -> None:
    low, high = FORM.bounds(Observed(experts_max=32.0, loss_min=2.2)).T
    theta = low + (high - low) * np.random.default_rng(seed).uniform(size=low.size)
    ln = FORM.log_loss(theta, make_inputs(n, n * ratio, np.array([*np.geomspace(1.0, 1e6, 25), 1e14, 1e20])))
    scale = 1e-12 * (1.0 + np.abs(ln).max())
    assert np.all(np.diff(ln) <= scale)
    assert abs(ln[-1] - ln[-2]) <= 1e-8 + scale


def test_experts_are_worth_half_their_size_at_r_tokens_a_parameter() -> None:
    def dense_size(n: float, d: float, x: float) -> float:
        """The dense size of the same loss, by bisection in ln N."""
        low, high = math.log(n), math.log(n) + 20
        for _ in range(200):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if at(math.exp(middle), d, 1.0) > at(n, d, x) else (low, middle)
        return low - math.log(n)

    reach = 1 / (1 / (16.0 - 1 + 1 / (1 - 1 / P["E_max"])) + 1 / P["E_max"])
    assert dense_size(1e8, 1e8 * P["R"], 16.0) == pytest.approx(0.5 * P["g"] * math.log(reach), rel=1e-6)


@given(sizes, ratios, st.floats(1.0, 500.0))
def test_late_experts_leave_dense_models_alone_and_help_less_at_first(n: float, ratio: float, start: float) -> None:
    late = LATE.encode(np.array([*FORM.decode(THETA), start]))
    sooner = LATE.encode(np.array([*FORM.decode(THETA), 1.0]))
    x = make_inputs(n, n * ratio, np.array([1.0, 2.0, 8.0, 64.0]))
    losses, plain = LATE.log_loss(late, x), LATE.log_loss(sooner, x)
    assert losses[0] == pytest.approx(plain[0], rel=1e-12)
    assert np.all(losses >= plain - 1e-12)
    assert np.all(np.diff(losses) <= 1e-12)


def test_the_shipped_law_speaks_of_bodies_and_carries_its_draws() -> None:
    assert FORM.of_models
    assert (LAW.family.embedding_matrices, LAW.family.vocab_size) == (0, 0)
    assert LAW.draws.shape == (60, 10)
    inside = predict(LAW, 3.2e8, 8e9, 8.0)
    assert inside.interval[0] < inside.loss < inside.interval[1]
    assert LAW.max_experts == 32.0


def test_a_law_file_of_the_old_form_is_refused() -> None:
    old = law_text(LAW).replace("\nA = ", "\nL_N = ").replace("\ng = ", "\neta = ")
    with pytest.raises(
        DamagedFileError, match=r"are not those of moescale2026.*expected F, A, B.*fit the form .* again"
    ):
        parse_law(old, where="old.toml")


@pytest.mark.system
def test_the_fit_is_the_optimum_of_an_independent_search(runs: RunTable) -> None:
    found = fit(FORM, runs.n_params, runs.tokens, runs.experts, runs.loss)
    # The lowest objective of trust-region least squares from random starts.
    inputs, y = make_inputs(runs.n_params, runs.tokens, runs.experts), np.log(runs.loss)
    observed = Observed(experts_max=float(runs.experts.max()), loss_min=float(runs.loss.min()))
    bounds = FORM.bounds(observed)
    box = bounds.copy()
    box[:2] = np.log((1e-3, 2.0)), np.log((0.5, 4.0))
    box[FORM.shape] = FORM.region(observed)
    starts = np.clip(np.random.default_rng(3).uniform(*box.T, size=(3, len(box))), *bounds.T)
    other = min(trust_region(FORM, inputs, y, start, bounds, 500) for start in starts)
    assert found.objective <= other * (1 + 1e-7)
    assert found.objective == pytest.approx(other, rel=1e-3)
    assert found.at_bound == ("F",)
    np.testing.assert_allclose(list(found.parameters.values()), list(LAW.parameters.values()), rtol=1e-3)


@pytest.mark.system
@pytest.mark.parametrize(
    ("held_out", "measured"),
    [
        ("n_experts > 8", 4.85e-3),
        pytest.param("tokens >= 12e9", 4.17e-3, marks=pytest.mark.fuzz),
        pytest.param("n_params_active >= 6e8", 4.03e-3, marks=pytest.mark.fuzz),
    ],
)
def test_errors_out_of_sample_are_those_that_were_measured(runs: RunTable, held_out: str, measured: float) -> None:
    table = RunArrays(runs.n_params, runs.tokens, runs.experts, runs.loss, {})
    rows = np.isin(runs.row_numbers, runs.where(held_out).row_numbers)
    assert hold_out(FORM, table, rows).rmsle_holdout <= measured * 1.02
