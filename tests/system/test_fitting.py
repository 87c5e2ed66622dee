"""Fits: the optimum is an optimum, synthetic truth comes back, and bad tables are refused or warned about."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from command_line import RUNS
from families import trust_region
from moescale.errors import InputError
from moescale.fitting.fit import Fit, describe, fit
from moescale.fitting.search import HUBER_DELTA, Problem, huber, polish
from moescale.fitting.workflow import FitSettings, fit_runs
from moescale.runs.table import RunTable, read_runs
from moescale.scaling_laws import FORMS, find_law, make_inputs
from moescale.scaling_laws.form import Inputs
from moescale.typing import FloatArray

YUN, CHINCHILLA = FORMS["yun2024"], FORMS["chinchilla"]
TRUTHS = {
    "yun2024": (90.97, 0.2766, 1.573, 0.1254, 15732.0, 0.4659, 0.3752, 0.00186, 4.427, 173.7),
    "yun2024-centred": (90.97, 0.2766, 1.573, 0.1254, 15732.0, 0.4659, 0.3752, 0.00186, 4.427, 173.7, 3e8),
    "chinchilla": (1.69, 406.4, 410.7, 0.34, 0.28),
}
for _law in (
    "kaplan2020", "clark2022-s-base", "muennighoff2023", "frantar2023-t5", "krajewski2024", "ludziejewski2025",
    "abnar2025", "zhao2025",
):  # fmt: skip
    TRUTHS[_law.partition("-")[0]] = tuple(find_law(_law).parameters.values())
# A floor, which the runs of the joint law do not show, and repeats, which they do not have.
TRUTHS["moescale2026"] = (1.2, 1.3, 1.2, 0.2, 0.25, 0.4, 5e8, 0.5, 20.0, 100.0)
TRUTHS["moescale2026-late"] = (*TRUTHS["moescale2026"], 1.5)
NOISE = 0.003
STARTS = 16  # as many of the 128 as are carried to the end

Columns = tuple[FloatArray, FloatArray, FloatArray, FloatArray]

# pooled2026 is fitted under its prior, and yun2024-centred takes as long as all others.
every_form = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.fuzz if name == "yun2024-centred" else ()) for name in TRUTHS]
)
# Every form at night; each day one of each way to search, with and without a linear part, further inputs and a late start.
FEW = ("chinchilla", "kaplan2020", "krajewski2024", "moescale2026-late", "yun2024")
some_forms = pytest.mark.parametrize(
    "name", [name if name in FEW else pytest.param(name, marks=pytest.mark.fuzz) for name in TRUTHS]
)


def truth(name: str) -> FloatArray:
    return FORMS[name].encode(np.array(TRUTHS[name]))


def objective(name: str, theta: FloatArray, x: Inputs, ln_loss: FloatArray) -> FloatArray:
    """The summed Huber objective at each theta."""
    return huber(FORMS[name].log_loss(theta, x) - ln_loss).sum(axis=-1)


def extra_of(name: str, d: FloatArray) -> dict[str, FloatArray]:
    """The form's further inputs at each run: one, two and ten epochs, several granularities and sparsities."""
    rng = np.random.default_rng(11)
    known = {
        "unique_tokens": d * rng.choice([np.inf, 0.5, 0.1], d.size),
        "granularity": rng.choice([1.0, 2.0, 4.0, 8.0], d.size),
        "sparsity": rng.choice([0.0, 0.5, 0.75, 0.875], d.size),
        "activated_experts": rng.choice([1.0, 4.0, 8.0, 16.0], d.size),
        "shared_ratio": rng.choice([0.0, 0.25, 0.5, 0.75], d.size),
    }
    return {variable: known[variable] for variable in FORMS[name].extra_inputs}


def inputs_of(name: str, n: FloatArray, d: FloatArray, e: FloatArray) -> Inputs:
    return make_inputs(n, d, e, extra_of(name, d))


def runs_of(name: str, noise: float = 0.0, seed: int = 0) -> Columns:
    """The paper's grid, four sizes by five token counts by five expert counts (one for a dense law), and its losses."""
    counts = [1.0, 4.0, 8.0, 16.0, 32.0] if FORMS[name].uses_experts else [1.0]
    n, d, e = np.meshgrid([1e8, 2e8, 3.6e8, 7.3e8], [2.5e9, 5e9, 1e10, 1.5e10, 2e10], counts, indexing="ij")
    n, d, e = n.ravel(), d.ravel(), e.ravel()
    ln_loss = FORMS[name].log_loss(truth(name), inputs_of(name, n, d, e))
    return n, d, e, np.exp(ln_loss + noise * np.random.default_rng(seed).normal(size=n.size))


def predicted(found: Fit, n: FloatArray, d: FloatArray, e: FloatArray) -> FloatArray:
    return found.form.log_loss(found.theta, inputs_of(found.form.name, n, d, e))


def problem_of(name: str, n: FloatArray, d: FloatArray, e: FloatArray, loss: FloatArray) -> Problem:
    return Problem.of(FORMS[name], inputs_of(name, n, d, e), np.log(loss))


@pytest.fixture(scope="module")
def noisy() -> Columns:
    return runs_of("yun2024", NOISE)


@pytest.fixture(scope="module")
def noisy_fit(noisy: Columns) -> Fit:
    return fit(YUN, *noisy, starts=STARTS)


@given(st.floats(-1.0, 1.0))
def test_huber_is_a_square_within_delta_and_straight_beyond(residual: float) -> None:
    value, size = float(huber(np.array(residual))), abs(residual)
    expected = size**2 / 2 if size <= HUBER_DELTA else HUBER_DELTA * (size - HUBER_DELTA / 2)
    assert value == pytest.approx(expected, rel=1e-12, abs=1e-300)
    assert float(huber(np.array(residual), delta=10.0)) == pytest.approx(residual**2 / 2, rel=1e-12, abs=1e-300)


@some_forms
def test_polish_stays_in_the_box_and_never_ends_above_its_start(name: str) -> None:
    n, d, e, loss = runs_of(name, NOISE)
    problem = problem_of(name, n, d, e, loss)
    x, ln_loss, box = problem.x, problem.ln_loss, problem.box
    rng = np.random.default_rng(5)
    anywhere = box[:, 0] + (box[:, 1] - box[:, 0]) * rng.uniform(size=(20, len(box)))
    near = np.clip(truth(name) * (1 + 0.2 * rng.normal(size=(10, len(box)))), *box.T)
    corners = np.where(rng.uniform(size=(5, len(box))) < 0.5, *box.T)
    outside = box[:, 1] + rng.uniform(size=(3, len(box)))
    starts = np.concatenate((anywhere, near, corners, outside))
    before = starts.copy()
    theta, value = polish(problem, starts, max_iterations=100)
    np.testing.assert_array_equal(starts, before)
    assert np.all(theta >= box[:, 0])
    assert np.all(theta <= box[:, 1])
    start_values = objective(name, np.clip(starts, *box.T), x, ln_loss)
    assert np.all(value <= start_values)
    np.testing.assert_allclose(value, objective(name, theta, x, ln_loss), rtol=1e-12)
    again, last = polish(problem, theta, max_iterations=20)
    assert np.all(last <= value)
    np.testing.assert_allclose(objective(name, again, x, ln_loss), last, rtol=1e-12)


@some_forms
def test_polish_is_at_least_as_good_as_a_bounded_trust_region_search(name: str) -> None:
    n, d, e, loss = runs_of(name, NOISE, seed=6)
    form, problem = FORMS[name], problem_of(name, n, d, e, loss)
    x, ln_loss, box = problem.x, problem.ln_loss, problem.box
    rng = np.random.default_rng(7)
    start = np.clip(truth(name) * (1 + 0.05 * rng.normal(size=len(box))), *box.T)
    _, (ours,) = polish(problem, start[None], max_iterations=4000)
    assert ours <= trust_region(form, x, ln_loss, start, box, 2000) * (1 + 1e-6)


def test_integer_weights_are_repeated_rows(noisy: Columns) -> None:
    counts = np.random.default_rng(8).integers(0, 4, noisy[0].size)
    start, problem = truth("yun2024")[None], problem_of("yun2024", *noisy)
    weighted, value = polish(problem, start, weights=counts.astype(float))
    again = problem_of("yun2024", *(np.repeat(v, counts) for v in noisy))
    repeated, other = polish(replace(again, box=problem.box), start)
    assert value[0] == pytest.approx(other[0], rel=1e-9)
    x = problem.x
    np.testing.assert_allclose(YUN.log_loss(weighted, x), YUN.log_loss(repeated, x), atol=1e-6)


@every_form
def test_runs_without_noise_give_the_law_back(name: str) -> None:
    columns = runs_of(name)
    found = fit(FORMS[name], *columns, extra=extra_of(name, columns[1]), starts=STARTS)
    assert found.rmsle < 1e-6
    np.testing.assert_allclose(predicted(found, *columns[:3]), np.log(columns[3]), atol=1e-6)
    assert found.n_runs == columns[0].size
    assert found.objective == pytest.approx(found.huber * found.n_runs)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.fuzz) for seed in (1, 2))])
def test_noisy_runs_predict_ten_times_their_compute_within_two_percent(seed: int) -> None:
    found = fit(YUN, *runs_of("yun2024", NOISE, seed=seed), starts=STARTS)
    assert found.rmsle < 1.2 * NOISE
    # Ten times the largest training FLOPs of the grid, spread over sizes, for dense and MoE models.
    sizes, experts = np.meshgrid(np.geomspace(7.3e8, 7.3e9, 7), [1.0, 4.0, 8.0, 16.0, 32.0], indexing="ij")
    sizes, experts = sizes.ravel(), experts.ravel()
    tokens = 10.0 * 7.3e8 * 2e10 / sizes
    true = YUN.log_loss(truth("yun2024"), make_inputs(sizes, tokens, experts))
    assert np.abs(predicted(found, sizes, tokens, experts) - true).max() < 0.02


def test_counting_tokens_in_thousands_changes_the_data_amplitude_only(noisy: Columns, noisy_fit: Fit) -> None:
    n, d, e, loss = noisy
    found = fit(YUN, n, d / 1e3, e, loss, starts=STARTS)
    assert found.objective == pytest.approx(noisy_fit.objective, rel=1e-9)
    np.testing.assert_allclose(predicted(found, n, d / 1e3, e), predicted(noisy_fit, n, d, e), atol=1e-8)
    moved = {**noisy_fit.parameters, "C": noisy_fit.parameters["C"] * 1e3 ** -noisy_fit.parameters["gamma"]}
    assert found.parameters == pytest.approx(moved, rel=1e-6)


def test_the_report_of_a_fit(noisy: Columns, noisy_fit: Fit) -> None:
    n, d, e, loss = noisy
    residual = predicted(noisy_fit, n, d, e) - np.log(loss)
    assert noisy_fit.rmsle == pytest.approx(np.sqrt(np.mean(residual**2)), rel=1e-12)
    assert noisy_fit.huber == pytest.approx(huber(residual).mean(), rel=1e-12)
    assert noisy_fit.fit_range == {
        "n_params": pytest.approx((1e8, 7.3e8)), "tokens": pytest.approx((2.5e9, 2e10)), "experts": (1.0, 32.0),
    }  # fmt: skip
    assert 1 <= noisy_fit.starts_at_optimum <= noisy_fit.starts
    assert set(noisy_fit.standard_error) == set(YUN.names)
    np.testing.assert_allclose(list(noisy_fit.parameters.values()), YUN.decode(noisy_fit.theta))


def test_one_verb_takes_a_table_to_a_law() -> None:
    table = read_runs(RUNS, where="n_experts == 1")
    found = fit_runs(table, "chinchilla", FitSettings(bootstrap=4, seed=1))
    alone = fit(CHINCHILLA, table.n_params, table.tokens, table.experts, table.loss)
    np.testing.assert_array_equal(found.law.theta, alone.theta)
    assert found.fit.warnings == (*table.warnings, *found.fit.warnings[len(table.warnings) :])
    assert found.law.draws.shape == (4, 5)
    assert found.to_dict()["intervals"] == {name: list(limits) for name, limits in found.intervals.items()}
    saved = found.named("mine", where="n_experts == 1")
    assert (saved.name, saved.evidence["table"], saved.evidence["where"]) == ("mine", "runs.csv", "n_experts == 1")
    assert saved.evidence["table_sha256"] == table.sha256
    with pytest.raises(InputError, match="--prior: mine says nothing of how coefficients differ"):
        fit_runs(table, settings=FitSettings(prior=saved))


def test_bounds_and_unidentified_parameters_are_reported() -> None:
    # A truth without saturation (E_max far beyond every E) and with no irreducible loss.
    values = dict(zip(YUN.names, TRUTHS["yun2024"], strict=True)) | {"E_start": 1.0, "E_max": 9999.0, "F": 1e-5}
    n, d, e, _ = runs_of("yun2024")
    loss = np.exp(YUN.log_loss(YUN.encode(np.array([values[name] for name in YUN.names])), make_inputs(n, d, e)))
    found = fit(YUN, n, d, e, loss * np.exp(1e-4 * np.random.default_rng(1).normal(size=n.size)))
    box = problem_of("yun2024", n, d, e, loss).box
    touching = {
        name for name, value, (low, high) in zip(YUN.names, found.theta, box, strict=True) if value in (low, high)
    }
    assert touching
    assert set(found.at_bound) == touching
    assert touching <= set(found.not_identified)
    assert any(f"on a bound of the physical box: {', '.join(found.at_bound)}" == note for note in found.warnings)


@pytest.mark.parametrize(("side", "columns"), [(0, (0, 3)), (1, (2, 4)), (0, ()), (1, (1,))])
def test_exactly_the_parameters_on_a_bound_are_named(side: int, columns: tuple[int, ...]) -> None:
    n, d, e, loss = runs_of("chinchilla", NOISE)
    problem, theta = problem_of("chinchilla", n, d, e, loss), truth("chinchilla")
    theta[0] = problem.box[0, 1] - 1e-3  # near a bound is not on it
    theta[list(columns)] = problem.box[list(columns), side]
    found = describe(problem, theta[None], np.zeros(1), ["a note"])
    assert found.at_bound == tuple(CHINCHILLA.names[j] for j in columns)
    assert set(found.at_bound) <= set(found.not_identified)
    assert found.warnings[0] == "a note"
    assert all(np.isinf(found.standard_error[name]) for name in found.at_bound)


@pytest.mark.parametrize(
    ("column", "label", "unknown"),
    [
        (0, "size", {"A", "alpha"}), (1, "tokens", {"C", "gamma"}),
        (2, "n_experts (1)", {"beta", "E_start", "E_max"}),
    ],
)  # fmt: skip
def test_one_size_token_or_expert_count_says_that_its_terms_are_unknown(
    column: int, label: str, unknown: set[str]
) -> None:
    columns = runs_of("yun2024", NOISE)
    rows = columns[column] == columns[column][0]
    found = fit(YUN, *(values[rows] for values in columns), starts=8)
    assert any(f"all runs have the same {label}" in note for note in found.warnings)
    assert unknown <= set(found.not_identified)
    assert found.rmsle < 1.2 * NOISE


@pytest.mark.parametrize("name", TRUTHS)
@pytest.mark.parametrize("count", [0, 1, 2])
def test_too_few_runs_are_refused(name: str, count: int) -> None:
    columns = [values[:count] for values in runs_of(name)]
    with pytest.raises(InputError, match=f"{count} runs? (is|are) too few to fit {name} with its"):
        fit(FORMS[name], *columns, extra=extra_of(name, columns[1]))


def test_few_runs_and_ignored_experts_are_warned_of_and_unknown_grids_refused() -> None:
    found = fit(YUN, *(values[[0, 30, 50, 70, 99]] for values in runs_of("yun2024", NOISE)), starts=8)
    assert found.n_runs == 5
    assert found.not_identified == YUN.names
    assert any("5 runs for 10 parameters: the fit follows the noise" in note for note in found.warnings)
    assert np.isfinite(found.theta).all()
    found = fit(CHINCHILLA, *runs_of("yun2024", NOISE), starts=8)
    assert any("chinchilla has no term in n_experts, but the runs vary it" in note for note in found.warnings)
    with pytest.raises(InputError, match="chinchilla has no published grid of starts; use --starts auto"):
        fit(CHINCHILLA, *runs_of("chinchilla"), starts="paper")


def test_outliers_pull_little() -> None:
    n, d, e, loss = runs_of("yun2024", NOISE, seed=2)
    clean = fit(YUN, n, d, e, loss, starts=8)
    spoilt = loss.copy()
    spoilt[[3, 41, 77]] *= 2.0
    found = fit(YUN, n, d, e, spoilt, starts=8)
    others = np.delete(np.arange(n.size), [3, 41, 77])
    shift = predicted(found, n, d, e) - predicted(clean, n, d, e)
    assert np.abs(shift[others]).max() < 0.01


def test_large_tables_are_fitted_on_all_their_rows() -> None:
    n, d, e, loss = (np.tile(values, 105) for values in runs_of("chinchilla"))
    loss = loss * np.exp(NOISE * np.random.default_rng(3).normal(size=loss.size))
    assert n.size == 2100
    found = fit(CHINCHILLA, n, d, e, loss, starts=2)
    assert found.n_runs == 2100
    _, polished = polish(problem_of("chinchilla", n, d, e, loss), found.theta)
    assert found.objective == pytest.approx(polished[0], rel=1e-9)


PAPERS_GRID = "n_params_active >= 1e8 and n_params_active <= 7.3e8 and tokens >= 2.4e9 and tokens <= 2.1e10"


@pytest.mark.parametrize(
    ("runs", "count", "rmsle", "huber"),
    [("tokens / n_params_active >= 2", 234, 4.40e-3, 2.70e-6), (PAPERS_GRID, 93, 3.2e-3, np.inf)],
    ids=["trained-enough", "papers-grid"],
)
def test_joint_runs_are_fitted(joint_runs: RunTable, runs: str, count: int, rmsle: float, huber: float) -> None:
    chosen = joint_runs.where(runs)
    found = fit(YUN, chosen.n_params, chosen.tokens, chosen.experts, chosen.loss)
    assert found.n_runs == count
    assert found.rmsle <= rmsle
    assert found.huber <= huber
