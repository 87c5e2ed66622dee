"""`fit --law auto`: which form wins, what the ensemble predicts, and how sure it is."""

from dataclasses import replace

import numpy as np
import pytest

from moescale.errors import InputError
from moescale.fitting import auto
from moescale.fitting.canonical import RunArrays
from moescale.fitting.workflow import FitSettings, fit_runs
from moescale.models.coordinates import model_of
from moescale.models.family import find_family
from moescale.runs.table import RunTable, read_runs
from moescale.scaling_laws import find_form, make_inputs
from moescale.views.tables import range_text
from reference_data import PUBLIC

CHINCHILLA = find_form("chinchilla")
TRUE = CHINCHILLA.encode(np.array([1.8, 400.0, 400.0, 0.34, 0.28]))


def counted_whole(experts: int, count: int) -> RunTable:
    """Runs whose size counts all experts, which no prior speaks of."""
    n, d = (g.ravel() for g in np.meshgrid(np.geomspace(5e7, 2e9, count), [1e9, 6e10]))
    ln_loss = CHINCHILLA.log_loss(TRUE, make_inputs(n, d, np.ones_like(n)))
    loss = np.exp(ln_loss + 0.001 * np.random.default_rng(0).normal(size=n.size))
    e = np.where(np.arange(n.size) % 2 == 0, 1.0, float(experts))
    return RunTable(n_params=n, tokens=d, experts=e, loss=loss, size_column="n_params_total")


def test_too_few_runs_are_said_to_be_too_few_and_equal_weights_of_several_forms_only() -> None:
    small = fit_runs(counted_whole(8, 5))
    assert any("too few runs for inner hold-outs: only " in warning for warning in small.fit.warnings)
    assert all(c.score is None for c in small.chosen)
    assert small.law.drift == auto.LEAST_DRIFT
    one = replace(counted_whole(8, 11), n_params=np.full(22, 1e9))  # half the runs are too few to fit to
    found = fit_runs(one)
    assert len(found.chosen) > 1
    assert any("too few runs for inner hold-outs: the forms have equal " in w for w in found.fit.warnings)


@pytest.mark.fuzz
def test_a_table_of_active_sizes_is_not_expanded_again() -> None:
    family = find_family("yun2024")
    n, e = (g.ravel() for g in np.meshgrid(np.geomspace(2e7, 6e8, 5), [1.0, 4.0, 8.0, 16.0, 32.0]))
    n, e = np.tile(n, 3), np.tile(e, 3)
    d = n * np.repeat([20.0, 80.0, 40.0], 25) * np.tile([1.0, 3.0, 2.0, 5.0, 4.0], 15)
    body, x = model_of(family, n, e)
    loss = 1.7 + 320.0 * (body * x**0.25) ** -0.34 + 250.0 * d**-0.28
    columns = {"top_k": np.where(e > 1.0, 2.0, 1.0), "moe_every": np.full(n.size, 2.0)}
    table = RunTable(n_params=n, tokens=d, experts=e, loss=loss, columns=columns)
    active = replace(table, n_params=body, size_column="n_params_active")
    alone, other = (fit_runs(runs, "moescale2026-late") for runs in (table, active))
    # A form in the table's own letters is fitted as it stands, and says what a plan would make of it.
    assert [
        any("read its N as dense-equivalent" in w for w in fit_runs(runs, "yun2024").fit.warnings)
        for runs in (table, active)
    ] == [False, True]
    np.testing.assert_allclose(other.law.theta, alone.law.theta, rtol=1e-9)
    assert other.fit.fit_range["n_params"] == pytest.approx((body.min(), body.max()))
    ensemble = fit_runs(active)
    assert {m.law.fit_range["n_params"] for m in ensemble.law.members} == {(body.min(), body.max())}
    # A plan's letters are the family's: dense-equivalent N and E.
    assert ensemble.law.fit_range["n_params"] == pytest.approx((n.min(), n.max()))
    assert ensemble.law.max_experts == pytest.approx(32.0)
    said = range_text(ensemble.fit.fit_range, ensemble.fit.form, "n_params_active")
    assert said.startswith("active body 20M to 800M, ")
    assert said.endswith("X 1 to 11")
    assert range_text({"n_params": (1e8, 7e8)}, None, "n_params_dense") == "dense-equivalent N 100M to 700M"


@pytest.mark.fuzz
def test_experts_have_forms_of_their_own() -> None:
    runs = read_runs(PUBLIC / "joint_moe_runs.csv", where="tokens / n_params_active >= 2")
    fitted = fit_runs(runs.select(np.arange(len(runs)) % 3 == 0))
    assert fitted.fit.rmsle < 0.005
    assert {c.law for c in fitted.chosen} == set(auto.WITH_EXPERTS)
    assert fitted.law.family.name == "ludziejewski2025"


def test_what_is_held_out_is_large_and_a_variable_that_does_not_vary_gives_no_direction() -> None:
    n, d = (g.ravel() for g in np.meshgrid([1e8, 2e8, 4e8, 8e8], [1e9, 2e9, 4e9, 8e9]))
    runs = RunArrays(n, d, np.ones(16), np.full(16, 3.0), {})
    splits = auto.inner_splits(runs, 5)
    assert set(splits) == {"N", "D", "N D", "D/N"}
    assert (n[splits["N"]] == 8e8).all()
    assert not auto.inner_splits(runs, 13)
    n, e = (g.ravel() for g in np.meshgrid([1e8, 2e8, 4e8, 8e8], [1.0, 2.0, 4.0, 8.0]))
    runs = RunArrays(n, np.where(n > 5e8, 1.01e11, 1e11), e, np.full(16, 3.0), {})
    splits = auto.inner_splits(runs, 5)
    assert set(splits) == {"N", "E", "N E"}
    assert (n * e)[splits["N E"]].min() > (n * e)[~splits["N E"]].max()


def test_weights_fall_with_the_score_and_small_ones_are_dropped() -> None:
    weights = auto.weigh(np.array([1.0, 2.0, 30.0]))
    assert weights[0] > weights[1] > 0.0 == weights[2]
    assert auto.weigh(np.array([1.0, 100.0]))[1] == pytest.approx(0.05, rel=0.06)  # two forms always stay


def test_auto_takes_no_paper_grid() -> None:
    with pytest.raises(InputError, match="--starts"):
        fit_runs(read_runs(PUBLIC / "joint_moe_runs.csv"), settings=FitSettings(starts="paper"))
