"""Fits under the pooled prior: dense tables, few runs, what the runs tell, what the prior tells, and how sure both are."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from moescale.errors import InputError
from moescale.fitting.canonical import RunArrays
from moescale.fitting.prior import BEYOND, DRAWS, DRIFT, EFFECTS, GAIN, STARTS, Prior, fit_under, prior_of
from moescale.fitting.workflow import FitSettings, FittedLaw, compare_laws, fit_runs, predict_runs
from moescale.models.family import find_family
from moescale.runs.table import RunTable, read_runs
from moescale.scaling_laws import find_form, find_law, law_text, make_inputs
from moescale.scaling_laws.pooled2026 import FORM, log_loss
from moescale.scaling_laws.store import parse_law
from moescale.typing import FloatArray
from reference_data import PUBLIC

PRIOR = prior_of(find_law("pooled2026"))
SHAPE = {"granularity": 1.0, "shared_ffn": 0.0, "unique_tokens": np.inf}
CHINCHILLA = find_form("chinchilla")


def lab(seed: int) -> FloatArray:
    """The coefficients of a lab that nobody has seen, with losses in a unit of its own."""
    theta = PRIOR.draws(1, seed)[0]
    theta[BEYOND], theta[0] = 0.0, 1.0
    return theta


def study(
    seed: int, count: int, noise: float, experts: tuple[float, ...] = (1.0,), theta: FloatArray | None = None
) -> RunTable:
    """Runs of that lab, without embeddings."""
    rng = np.random.default_rng(seed)
    n = 10 ** rng.uniform(7.7, 9.0, count)
    d, x = n * 10 ** rng.uniform(1.0, 2.2, count), rng.choice(experts, count)
    ln_loss = log_loss(lab(seed) if theta is None else theta, make_inputs(n, d, x, SHAPE))
    return RunTable(n, d, x, np.exp(ln_loss + noise * rng.normal(size=count)), columns={"n_params_nonemb": n})


@cache
def found() -> FittedLaw:
    return fit_runs(study(1, 42, 0.006))


@pytest.mark.fuzz
def test_twelve_runs_under_the_prior_predict_better_than_alone() -> None:
    errors: dict[str, list[float]] = {"auto": [], "chinchilla": []}
    for seed in range(4):
        few, n = study(seed, 12, 0.003), np.geomspace(2e9, 8e9, 4)
        far = RunTable(n, 40 * n, np.ones(4), np.ones(4), columns={"n_params_nonemb": n})
        truth = log_loss(lab(seed), make_inputs(n, 40 * n, 1.0, SHAPE))
        for form, into in errors.items():
            law = fit_runs(few, form, FitSettings(starts="auto" if form == "auto" else 16)).law
            predicted = np.log([p.loss for p in predict_runs(law, far)])
            into.append(float(np.sqrt(np.mean((predicted - truth) ** 2))))
    assert np.mean(errors["auto"]) < 0.5 * np.mean(errors["chinchilla"])


@pytest.mark.fuzz
def test_intervals_hold_as_much_of_a_labs_new_runs_as_they_say() -> None:
    held = []
    for seed in range(12):
        law, theta = fit_runs(study(seed, 16, 0.005)).law, lab(seed)
        new = study(1000 + seed, 40, 0.005, theta=theta)
        for predicted, loss in zip(predict_runs(law, new), new.loss, strict=True):
            held.append(predicted.interval[0] <= loss <= predicted.interval[1])
    assert 0.84 <= np.mean(held) <= 0.96  # 480 runs of 12 labs, which share what a fit misses


def test_the_record_says_what_was_chosen_and_how_sure_it_is() -> None:
    fitted = found()
    record = fitted.to_dict()
    (chosen,) = record["chosen"]
    assert (chosen["law"], chosen["weight"]) == ("pooled2026", 1.0)
    assert chosen["score"] == fitted.held_out_error == pytest.approx(0.006, rel=1.0)  # the noise of the runs
    assert (record["law"], record["n_runs"], record["starts"]) == ("pooled2026", 42, STARTS)
    assert record["starts_at_optimum"] == STARTS
    assert all(low <= fitted.fit.parameters[name] <= high for name, (low, high) in fitted.intervals.items())
    assert fitted.law.run_noise == pytest.approx(0.006, rel=0.3)
    assert (fitted.law.drift, len(fitted.law.draws)) == (DRIFT, DRAWS)
    assert (fitted.law.members[0].law.draws[:, BEYOND].std(axis=0) > 0.0).all()
    assert fitted.law.max_experts == find_law("pooled2026").members[0].law.max_experts


def test_the_law_without_its_draws_is_the_mode_and_reads_back() -> None:
    law, runs = found().law, study(1, 42, 0.006)
    again = parse_law(law_text(law), where="law.toml")
    for a, b in zip(predict_runs(law, runs), predict_runs(again, runs), strict=True):
        assert b.loss == pytest.approx(a.loss, rel=1e-9)
        assert b.interval == pytest.approx(a.interval, rel=1e-9)
    error = np.log([p.loss for p in predict_runs(law, runs)]) - np.log(runs.loss)
    assert np.sqrt(np.mean(error**2)) == pytest.approx(found().fit.rmsle, rel=1e-6)  # measured losses are rounded
    assert (again.run_noise, again.drift, again.fit_range) == (law.run_noise, law.drift, law.fit_range)


def test_every_draw_meets_the_runs() -> None:
    runs = study(1, 42, 0.006)
    x = make_inputs(runs.n_params, runs.tokens, 1.0, SHAPE)
    misses = (log_loss(found().law.members[0].law.draws, x) - np.log(runs.loss)).mean(axis=1)
    np.testing.assert_allclose(misses, 0.0, atol=1e-9)  # each in the unit of the table


def test_dense_runs_leave_what_experts_gain_to_other_labs_and_runs_with_experts_do_not() -> None:
    gain = [EFFECTS.index(j) for j in GAIN]
    prior = np.diag(PRIOR.covariance)[gain]
    for experts, left in (((1.0,), True), ((1.0, 4.0, 16.0, 64.0), False)):
        runs = study(3, 40, 0.003, experts)
        extra = {name: np.full(len(runs), value) for name, value in SHAPE.items()}
        fitted = fit_under(PRIOR, RunArrays(runs.n_params, runs.tokens, runs.experts, runs.loss, extra))
        assert np.allclose(np.diag(fitted.covariance)[gain], prior, rtol=1e-9) == left
        assert any("all runs have one expansion" in w for w in fitted.fit.warnings) == left


def test_searches_from_anywhere_end_at_one_optimum() -> None:
    runs = study(5, 20, 0.004, (1.0, 8.0, 32.0))
    fitted = fit_runs(runs, settings=FitSettings(starts=12)).fit
    assert fitted.starts_at_optimum == fitted.starts == 12


def test_far_off_runs_move_a_prediction_little() -> None:
    runs = study(2, 100, 0.003)
    clean, n = fit_runs(runs).law, np.array([5e8])
    point = RunTable(n, 2e10 * np.ones(1), np.ones(1), np.ones(1), columns={"n_params_nonemb": n})
    for count in (1, 10):
        loss = runs.loss * np.where(np.arange(100) < count, 1.3, 1.0)
        broken = fit_runs(replace(runs, loss=loss))
        one, other = (predict_runs(law, point)[0].loss for law in (clean, broken.law))
        assert other == pytest.approx(one, rel=2e-3)
        assert any("times the usual error from the fit" in w for w in broken.fit.warnings)


def test_a_fitted_law_is_the_prior_of_the_next_table_of_its_lab() -> None:
    first, second = found().law, study(77, 6, 0.006, theta=lab(1))
    saved = parse_law(law_text(first), where="law.toml")
    own, others = (fit_runs(second, settings=FitSettings(prior=prior)).law for prior in (saved, None))
    at = FORM.names.index("ln_alpha")
    spreads = [law.members[0].law.draws[:, at].std() for law in (own, others)]
    assert spreads[0] < 0.8 * spreads[1]
    assert own.evidence["prior"] == "fitted"


@pytest.mark.fuzz
def test_tables_of_several_expansions_are_left_to_the_ensemble_unless_the_prior_is_named() -> None:
    runs = study(6, 64, 0.003, (1.0, 8.0))
    assert [c.law for c in fit_runs(runs.select(np.arange(64) < 21)).chosen] == ["pooled2026"]
    assert "pooled2026" not in {c.law for c in fit_runs(runs).chosen}
    for form, prior in (("pooled2026", None), ("auto", find_law("pooled2026"))):
        assert [c.law for c in fit_runs(runs, form, FitSettings(prior=prior)).chosen] == ["pooled2026"]


def test_a_comparison_fits_it_under_its_prior() -> None:
    runs = study(7, 40, 0.003)
    ours, theirs = compare_laws(runs, [FORM, CHINCHILLA], runs.n_params * runs.tokens > 1e19)
    assert ours.rmsle_holdout < theirs.rmsle_holdout


def test_the_size_of_a_body_counts_where_it_is_stated() -> None:
    runs = read_runs(PUBLIC / "gemstones_cool.csv", where="tokens / n_params_dense >= 2")
    law = fit_runs(runs).law
    other = replace(runs, columns={**runs.columns, "n_params_nonemb": 2.0 * runs.columns["n_params_nonemb"]})
    stated, doubled = ([p.loss for p in predict_runs(law, table)][:5] for table in (runs, other))
    assert all(a > b for a, b in zip(stated, doubled, strict=True))


def test_the_shape_of_experts_counts_where_it_is_stated() -> None:
    runs = study(8, 20, 0.003, (1.0, 16.0))
    law = fit_runs(runs).law
    d = np.full(20, 2048.0)
    columns = {**runs.columns, "d_model": d, "expansion": runs.experts}
    widths = (8.0 / 3.0 * d, 8.0 / 3.0 / 8.0 * d)
    coarse, fine = (predict_runs(law, replace(runs, columns=columns | {"expert_width": w})) for w in widths)
    for i, e in enumerate(runs.experts):
        assert fine[i].loss < coarse[i].loss if e > 1.0 else fine[i].loss == coarse[i].loss


def test_what_cannot_be_fitted_is_refused() -> None:
    runs = study(1, 12, 0.003)
    law = find_law("pooled2026")
    with pytest.raises(InputError, match="only pooled2026 is fitted under a prior"):
        fit_runs(runs, "chinchilla", FitSettings(prior=law))
    with pytest.raises(InputError, match=r"--prior: yun2024-joint says nothing of how .*; give pooled2026"):
        fit_runs(runs, settings=FitSettings(prior=find_law("yun2024-joint")))
    with pytest.raises(InputError, match="--starts: pooled2026 is fitted under its prior; name another form"):
        fit_runs(runs, settings=FitSettings(starts="paper"))
    whole = replace(runs, experts=np.where(np.arange(12) % 2, 8.0, 1.0), size_column="n_params_total", columns={})
    with pytest.raises(InputError, match="the sizes count all experts"):
        fit_runs(whole, "pooled2026", FitSettings(family=replace(find_family("yun2024"), n_counts="total")))
    with pytest.raises(InputError, match="too few"):
        fit_runs(runs.select(np.arange(12) < 2))
    assert isinstance(PRIOR, Prior)
