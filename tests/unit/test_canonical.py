"""A fit sees numbers alone: the order and the names of the runs, and of auto the unit of the loss, change no answer."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from command_line import RUNS
from examples import daily
from moescale.errors import InputError
from moescale.fitting import auto
from moescale.fitting.canonical import RunArrays, in_unit, order
from moescale.fitting.fit import fit
from moescale.fitting.workflow import FitSettings, FittedLaw, fit_runs, predict_runs
from moescale.models.family import find_family
from moescale.runs.table import RunTable, read_runs
from moescale.scaling_laws import find_form, find_law, make_inputs
from reference_data import PUBLIC

CHINCHILLA = find_form("chinchilla")


def dense(repeated: int = 0) -> RunTable:
    """16 dense runs of a published law with some noise, of which so many are there twice."""
    n, d = (g.ravel() for g in np.meshgrid(np.geomspace(5e7, 2e9, 4), np.geomspace(1e9, 6e10, 4)))
    noise = np.random.default_rng(3).normal(0.0, 0.003, n.size)
    loss = np.exp(CHINCHILLA.log_loss(find_law("besiroglu2024").theta, make_inputs(n, d, np.ones_like(n))) + noise)
    rows = np.r_[np.arange(16), np.arange(repeated)]
    columns = {"seed": np.arange(rows.size) * 1.0, "run": np.array([f"r{i}" for i in range(rows.size)], dtype=object)}
    return RunTable(n[rows], d[rows], np.ones(rows.size), loss[rows], columns=columns)


def shuffled(runs: RunTable, rows: NDArray[np.intp]) -> RunTable:
    """Another order of rows and other names."""
    other = runs.at(rows)
    names = {"seed": np.arange(rows.size)[::-1] * 7.0, "run": np.array([f"x{i}" for i in rows], dtype=object)}
    return replace(other, columns={**other.columns, **names}, row_numbers=np.arange(1, rows.size + 1))


@cache
def alone() -> FittedLaw:
    return fit_runs(dense(), CHINCHILLA, FitSettings(starts=4, bootstrap=2))


@pytest.mark.system
@daily(2)
@given(st.permutations(range(16)))
def test_a_form_is_fitted_alike_in_any_order(rows: list[int]) -> None:
    found = fit_runs(shuffled(dense(), np.array(rows)), CHINCHILLA, FitSettings(starts=4, bootstrap=2))
    np.testing.assert_array_equal(found.law.theta, alone().law.theta)
    np.testing.assert_array_equal(found.law.draws, alone().law.draws)
    assert (found.intervals, found.fit.rmsle) == (alone().intervals, alone().fit.rmsle)
    np.testing.assert_array_equal(found.runs.loss, dense().loss[rows])  # in the order of the table
    columns = (getattr(dense(), name)[rows] for name in ("n_params", "tokens", "experts", "loss"))
    np.testing.assert_array_equal(fit(CHINCHILLA, *columns, starts=4).theta, alone().law.theta)


@given(st.permutations(range(20)))
def test_rows_are_ordered_by_what_a_fit_reads(rows: list[int]) -> None:
    runs = dense(repeated=4)
    unique = np.where(np.arange(20) >= 16, runs.tokens / 2.0, runs.tokens)  # the repeats differ in this alone
    runs = replace(runs, columns={**runs.columns, "unique_tokens": unique})
    other = shuffled(runs, np.array(rows))
    one, two = (table.at(order(table)) for table in (runs, other))
    for name in ("n_params", "tokens", "experts", "loss"):
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))
    np.testing.assert_array_equal(one.columns["unique_tokens"], two.columns["unique_tokens"])


def _answers(found: FittedLaw, runs: RunTable) -> list[object]:
    predicted = [(each.loss, each.interval) for each in predict_runs(found.law, runs)]
    return [found.chosen, found.fit.parameters, found.law.run_noise, found.law.drift, predicted]


LAWS = (
    "yun2024-recovered", "muennighoff2023", "clark2022-s-base", "moescale2026-joint", "ludziejewski2025",
    "abnar2025",
)  # fmt: skip


@given(st.sampled_from(LAWS), st.floats(-5.0, 5.0))
def test_a_unit_multiplies_the_loss(name: str, unit: float) -> None:
    law = find_law(name)
    x = make_inputs(1e9, 2e10, 1.0, dict.fromkeys(law.form.extra_inputs, 0.5))
    moved = law.form.log_loss(in_unit(law.form, law.theta, unit), x)
    np.testing.assert_allclose(moved, law.form.log_loss(law.theta, x) + unit, atol=1e-12)


@pytest.mark.parametrize("factor", [1e-300, 1e-4, 1e8])
@pytest.mark.parametrize("law", ["ludziejewski2025", "kaplan2020"])
def test_losses_in_no_unit_are_refused(law: str, factor: float) -> None:
    with pytest.raises(InputError, match=r"in no unit .*nearest: losses from 0\.01 to"):
        fit_runs(replace(dense(), loss=factor * dense().loss), law)


@cache
def fitted(name: str) -> tuple[RunTable, FittedLaw]:
    """A dense table, or few runs with experts, fitted under the pooled prior; or more of them, fitted by the ensemble."""
    runs = dense() if name == "dense" else read_runs(RUNS)
    runs = runs if name == "dense" else runs.select(np.arange(len(runs)) % {"few": 11, "ensemble": 3}[name] == 0)
    return runs, fit_runs(runs)


@pytest.mark.fuzz
@pytest.mark.system
@pytest.mark.parametrize("name", ["dense", "few", "ensemble"])
@daily(1)
@given(data=st.data())
def test_auto_is_alike_in_any_order_and_unit_of_the_loss(name: str, data: st.DataObject) -> None:
    runs, one = fitted(name)
    assert ([each.law for each in one.chosen] == ["pooled2026"]) == (name != "ensemble")
    rows = np.array(data.draw(st.permutations(range(len(runs)))))
    other = fit_runs(shuffled(runs, rows))
    assert _answers(other, runs) == _answers(one, runs)
    np.testing.assert_array_equal(other.law.draws, one.law.draws)
    np.testing.assert_array_equal(other.runs.loss, runs.loss[rows])
    unit = data.draw(st.sampled_from([1.0 / np.log(2.0), 0.3, 4.0]))
    scaled = fit_runs(replace(runs, loss=unit * runs.loss))
    assert scaled.chosen == one.chosen
    assert (scaled.law.run_noise, scaled.fit.starts_at_optimum) == (one.law.run_noise, one.fit.starts_at_optimum)
    np.testing.assert_allclose(scaled.runs.loss, unit * runs.loss, rtol=1e-15)
    for a, b in zip(predict_runs(one.law, runs), predict_runs(scaled.law, runs), strict=True):
        assert b.loss == pytest.approx(unit * a.loss, rel=1e-12)
        assert b.interval == pytest.approx((unit * a.interval[0], unit * a.interval[1]), rel=1e-12)


@pytest.mark.fuzz
def test_few_routed_experts_extrapolate_to_many() -> None:
    few, many = (read_runs(PUBLIC / "routing_S-Base.csv", where=f"n_experts {which} 8") for which in ("<=", ">"))
    found = fit_runs(few)
    assert {each.law for each in found.chosen if each.weight == 0.0} == {"ludziejewski2025"}
    said = "ludziejewski2025 is left out of the ensemble: it predicts a model of 16 experts worse than a dense model"
    assert any(warning.startswith(said) for warning in found.fit.warnings)
    predicted = predict_runs(found.law, many)
    error = np.log([p.loss / loss for p, loss in zip(predicted, many.loss, strict=True)])
    assert np.abs(error).max() < 0.1  # 3.2 with the form that is left out
    spread = [np.log(p.interval[1] / p.interval[0]) for p in predicted if p.interval is not None]
    assert len(spread) == len(many)
    assert max(spread) < 1.0


def _fault(changes: dict[str, float], lowest: float = 2.0) -> str | None:
    law = find_law("yun2024-recovered")
    theta = law.form.encode(np.array([(law.parameters | changes)[name] for name in law.form.names]))
    found = replace(alone().fit, form=law.form, theta=theta)
    sizes, tokens, experts = np.array([1e8, 7e8]), np.array([2e9, 2e10]), np.array([1.0, 32.0])
    return auto.fault(found, find_family("yun2024"), RunArrays(sizes, tokens, experts, np.full(2, lowest), {}))


def test_what_no_experts_can_do_is_found() -> None:
    assert _fault({}) is None
    assert "worse than a dense model of its active size" in str(_fault({"d": 0.01}))
    assert "better than a dense model of its total size" in str(_fault({"d": -0.02}))
    assert "below half of the lowest loss measured" in str(_fault({}, lowest=9.0))
