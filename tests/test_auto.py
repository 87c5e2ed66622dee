"""`fit --law auto`: which form wins, what the ensemble predicts, and how sure it is."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from command_line import answer_of
from moescale.errors import InputError
from moescale.fitting import auto
from moescale.fitting.holdout import RunArrays
from moescale.fitting.workflow import FitSettings, FittedLaw, fit_runs, predict_runs
from moescale.models.coordinates import model_of
from moescale.models.family import find_family
from moescale.runs.table import RunTable, read_runs, write_runs
from moescale.scaling_laws import find_form, law_text, make_inputs, parse_law
from moescale.typing import FloatArray
from moescale.views.tables import range_text

pytestmark = pytest.mark.system

PUBLIC = Path(__file__).parent / "data" / "public"
CHINCHILLA = find_form("chinchilla")
TRUE = CHINCHILLA.encode(np.array([1.8, 400.0, 400.0, 0.34, 0.28]))


def dense(noise: float, seed: int = 0, *, sizes: int = 6, tokens: int = 7) -> RunTable:
    """Runs of chinchilla's law on a grid, without embeddings."""
    n, d = (g.ravel() for g in np.meshgrid(np.geomspace(5e7, 2e9, sizes), np.geomspace(1e9, 6e10, tokens)))
    return table_of(n, d, noise, seed)


def table_of(n: FloatArray, d: FloatArray, noise: float, seed: int) -> RunTable:
    x = make_inputs(n, d, np.ones_like(n))
    loss = np.exp(CHINCHILLA.log_loss(TRUE, x) + noise * np.random.default_rng(seed).normal(size=n.size))
    return RunTable(n_params=n, tokens=d, experts=np.ones_like(n), loss=loss, columns={"n_params_nonemb": n})


@pytest.fixture(scope="module")
def found() -> FittedLaw:
    return fit_runs(dense(0.002))


def test_the_form_that_holds_the_true_one_wins_and_the_weights_are_shares(found: FittedLaw) -> None:
    assert found.chosen[0].law == found.fit.form.name == "muennighoff2023"
    assert any("no run repeats data" in warning for warning in found.fit.warnings)
    assert sum(c.weight for c in found.chosen) == pytest.approx(1.0)
    scores = [c.score for c in found.chosen if c.score is not None]
    assert scores == sorted(scores)
    # 42 runs tell a standard deviation to 12%, two of these here; the median that is used, to 19%.
    assert found.fit.rmsle * np.sqrt(42 / 37) == pytest.approx(0.002, rel=0.25)
    assert found.fit.mad <= found.law.run_noise
    assert found.law.drift >= auto.LEAST_DRIFT


def test_the_noise_of_a_run_is_found() -> None:
    # One study overstates it by up to 2.2 times, where the form that holds the true one errs in an inner split.
    assert np.median([fit_runs(dense(0.002, seed=seed)).law.run_noise for seed in range(4)]) == pytest.approx(
        0.002, rel=0.25
    )


def test_the_ensemble_extrapolates(found: FittedLaw) -> None:
    beyond = table_of(np.array([4e9, 8e9]), np.array([1.2e11, 2.4e11]), 0.0, 0)
    for predicted, loss in zip(predict_runs(found.law, beyond), beyond.loss, strict=True):
        assert predicted.loss == pytest.approx(loss, rel=0.01)
        assert predicted.interval is not None
        assert predicted.interval[0] < loss < predicted.interval[1]


def test_the_same_runs_give_the_same_digits(found: FittedLaw) -> None:
    again = fit_runs(dense(0.002))
    assert again.chosen == found.chosen
    np.testing.assert_array_equal(again.law.theta, found.law.theta)
    np.testing.assert_array_equal(again.law.draws, found.law.draws)


def test_its_file_reads_back(found: FittedLaw) -> None:
    again = parse_law(law_text(found.law), where="law.toml")
    runs = dense(0.0, sizes=2, tokens=2)
    for a, b in zip(predict_runs(found.law, runs), predict_runs(again, runs), strict=True):
        assert b.loss == pytest.approx(a.loss, rel=1e-9)
        assert b.interval == pytest.approx(a.interval, rel=1e-9)
    assert again.fit_range == found.law.fit_range
    assert (again.run_noise, again.drift) == (found.law.run_noise, found.law.drift)


def test_intervals_cover_new_runs_of_the_law() -> None:
    held, many = 0, 0
    for seed in range(6):  # ten such studies cover 94%, one alone 83 to 100%
        law = fit_runs(dense(0.004, seed=seed)).law
        new = dense(0.004, seed=100 + seed, sizes=7, tokens=6)
        for predicted, loss in zip(predict_runs(law, new), new.loss, strict=True):
            assert predicted.interval is not None
            held += predicted.interval[0] <= loss <= predicted.interval[1]
            many += 1
    assert 0.80 <= held / many <= 0.97


def test_too_few_runs_are_said_to_be_too_few() -> None:
    small = fit_runs(dense(0.001, sizes=3, tokens=2))
    assert any("too few runs for inner hold-outs" in warning for warning in small.fit.warnings)
    assert all(c.score is None for c in small.chosen)
    assert small.law.drift == auto.LEAST_DRIFT


def test_equal_weights_are_said_of_several_forms_only() -> None:
    halves = table_of(np.full(12, 1e9), np.repeat([1e9, 6e10], 6), 0.001, 0)  # half the runs are too few to fit to
    for runs, forms, words in ((dense(0.001, sizes=3, tokens=2), 1, "only "), (halves, 2, "the forms have equal ")):
        found = fit_runs(runs)
        assert len(found.chosen) == forms
        assert any(f"too few runs for inner hold-outs: {words}" in warning for warning in found.fit.warnings)


def test_a_table_of_active_sizes_is_not_expanded_again() -> None:
    family = find_family("yun2024")
    n, e = (g.ravel() for g in np.meshgrid(np.geomspace(2e7, 6e8, 5), [1.0, 4.0, 8.0, 16.0, 32.0]))
    n, e = np.tile(n, 2), np.tile(e, 2)
    d = n * np.repeat([20.0, 80.0], 25) * np.tile([1.0, 3.0, 2.0, 5.0, 4.0], 10)
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


def test_the_size_of_a_body_counts_where_it_is_stated() -> None:
    runs = read_runs(PUBLIC / "gemstones_cool.csv", where="tokens / n_params_dense >= 2")
    law = fit_runs(runs).law
    other = replace(runs, columns={**runs.columns, "n_params_nonemb": 2.0 * runs.columns["n_params_nonemb"]})
    stated, doubled = ([p.loss for p in predict_runs(law, table)][:5] for table in (runs, other))
    assert all(a > b for a, b in zip(stated, doubled, strict=True))


def test_experts_have_forms_of_their_own() -> None:
    runs = read_runs(PUBLIC / "joint_moe_runs.csv", where="tokens / n_params_active >= 2")
    fitted = fit_runs(runs)
    assert fitted.fit.rmsle < 0.005
    assert {c.law for c in fitted.chosen} == set(auto.WITH_EXPERTS)
    assert fitted.law.family.name == "ludziejewski2025"


def test_runs_of_one_expert_count_say_that_they_know_no_other() -> None:
    runs = dense(0.002)
    routed = replace(runs, experts=np.full_like(runs.experts, 8.0))
    said = "all runs have 8 experts"
    assert any(said in warning for warning in fit_runs(routed).fit.warnings)
    assert any(said in warning for warning in fit_runs(routed, "chinchilla").fit.warnings)
    assert not any(said in warning for warning in fit_runs(runs).fit.warnings)


def test_a_variable_that_does_not_vary_gives_no_direction() -> None:
    n, e = (g.ravel() for g in np.meshgrid([1e8, 2e8, 4e8, 8e8], [1.0, 2.0, 4.0, 8.0]))
    runs = RunArrays(n, np.where(n > 5e8, 1.01e11, 1e11), e, np.full(16, 3.0), {})
    splits = auto.inner_splits(runs, 5)
    assert set(splits) == {"N", "E", "N E"}
    assert (n * e)[splits["N E"]].min() > (n * e)[~splits["N E"]].max()


def test_what_is_held_out_is_large() -> None:
    n, d = (g.ravel() for g in np.meshgrid([1e8, 2e8, 4e8, 8e8], [1e9, 2e9, 4e9, 8e9]))
    runs = RunArrays(n, d, np.ones(16), np.full(16, 3.0), {})
    splits = auto.inner_splits(runs, 5)
    assert set(splits) == {"N", "D", "N D", "D/N"}
    assert (n[splits["N"]] == 8e8).all()
    assert not auto.inner_splits(runs, 13)


def test_weights_fall_with_the_score_and_small_ones_are_dropped() -> None:
    weights = auto.weigh(np.array([1.0, 2.0, 30.0]))
    assert weights[0] > weights[1] > 0.0 == weights[2]
    assert auto.weigh(np.array([1.0, 100.0]))[1] == pytest.approx(0.05, rel=0.06)  # two forms always stay


def test_auto_takes_no_paper_grid() -> None:
    with pytest.raises(InputError, match="--starts"):
        fit_runs(dense(0.0), settings=FitSettings(starts="paper"))


def test_the_record_of_the_command_line(tmp_path: Path) -> None:
    runs, law = tmp_path / "runs.csv", tmp_path / "law.toml"
    write_runs(dense(0.002), runs)
    record = answer_of("fit", runs, "-o", law)
    assert sum(c["weight"] for c in record["chosen"]) == pytest.approx(1.0)
    assert record["law"] == record["chosen"][0]["law"]
    predicted = answer_of("predict", "--law", law, "--n-params", "4e9", "--tokens", "1e11")
    assert predicted["interval"][0] < predicted["loss"] < predicted["interval"][1]
