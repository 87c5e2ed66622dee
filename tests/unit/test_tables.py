"""Ugly tables: what a fit says of them, with a remedy that works; and tables that a law predicts row by row."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from command_line import RUNS, answer_of, run
from moescale.fitting.canonical import family_of
from moescale.fitting.fit import far_off
from moescale.fitting.workflow import fit_runs, predict_runs, score
from moescale.runs.table import read_runs, write_runs
from moescale.scaling_laws import Law, find_law, loss, predict
from moescale.scaling_laws.law import predict_many
from moescale.typing import FloatArray
from reference_data import PUBLIC

CHINCHILLA = find_law("besiroglu2024")


def _columns(n: int = 60, noise: float = 0.004) -> dict[str, Any]:
    """Dense runs of a published law with some noise, by the names of a file."""
    rng = np.random.default_rng(5)
    size, tokens = 10 ** rng.uniform(7.5, 9.5, n), 10 ** rng.uniform(9, 11, n)
    measured = loss(CHINCHILLA, size, tokens, 1.0) * np.exp(noise * rng.normal(size=n))
    names = np.array([f"r{i}" for i in range(n)], dtype=object)
    return {"run_id": names, "n_params_dense": size, "n_experts": np.ones(n), "tokens": tokens, "loss": measured}


def _warnings(columns: dict[str, Any], form: str = "chinchilla") -> tuple[str, ...]:
    return fit_runs(read_runs(columns), form).fit.warnings


@pytest.mark.system
@pytest.mark.parametrize("name", ["gadre_c4", "olmo_ladder"])
def test_public_tables_with_header_lines_are_fitted_from_the_command_line(name: str) -> None:
    found = answer_of("fit", PUBLIC / f"{name}.csv", "--law", "chinchilla")
    assert found["rmsle"] < 0.04
    assert 0 < found["mad"] < found["rmsle"]
    assert not [text for text in found["warnings"] if "family" in text]


def test_dense_tables_are_of_the_dense_family() -> None:
    family, remarks = family_of(read_runs(_columns()))
    assert (family.name, remarks) == ("dense", [])
    columns = _columns()
    columns["n_experts"][3] = 8.0
    family, remarks = family_of(read_runs(columns))
    assert family.name == "yun2024"
    assert "top-2" in remarks[0]


@pytest.mark.fuzz
@pytest.mark.system
def test_a_plan_with_the_law_of_a_dense_table_has_one_expert_unless_a_prior_knows_others(tmp_path: Path) -> None:
    path = write_runs(_columns(), tmp_path / "dense.csv")
    found = run("fit", path, "-o", tmp_path / "prior.toml")
    assert "all runs have one expansion: what experts gain is known from other labs only" in found.err
    fast = ("--latency", "roofline", "--shape", "mixtral", "--experts", "1,8", "--bootstrap", 0)
    asked = ("plan", "--budget", "1e21", *fast, "--law")
    told = answer_of(*asked, tmp_path / "prior.toml")
    assert {row["experts"] for row in told["loss_optimal"]} > {1}
    for form in ("chinchilla", "yun2024"):
        law = tmp_path / f"{form}.toml"
        assert run("fit", path, "--law", form, "-o", law).code == 0
        told = answer_of(*asked, law)
        assert form == "yun2024" or {row["experts"] for row in told["loss_optimal"]} == {1}
        assert told["recommendation"]["experts"] == 1


def test_a_diverged_run_is_named_and_left_out_where_it_is_marked() -> None:
    columns = _columns()
    columns["loss"][[4, 16]] *= [1.5, 1.1]
    found = fit_runs(read_runs(columns), "chinchilla").fit
    (note,) = [text for text in found.warnings if "usual error" in text]
    assert re.match(
        r"2 runs lie \d+ to \d+ times the usual error from the fit \(data rows 5, 17\): did they diverge", note
    )
    assert note.endswith("mark them true in a column diverged")
    assert found.mad < 0.006 < found.rmsle
    marked = columns | {"diverged": np.isin(np.arange(60), [4, 16])}
    assert not [text for text in _warnings(marked) if "usual error" in text]


@pytest.mark.parametrize(("n", "most"), [(10, 0.02), (30, 0.001), (100, 0.0), (400, 0.0)])
def test_normal_errors_have_hardly_a_run_far_off(n: int, most: float) -> None:
    # The median of ten errors may be small by chance, so that a few such tables have one.
    tables = [0.01 * np.random.default_rng([n, seed]).normal(size=n) for seed in range(1000)]
    assert np.mean([far_off(errors)[0].any() for errors in tables]) <= most


@given(st.integers(0, 2**32 - 1), st.integers(10, 400))
def test_a_run_that_is_far_off_is_found(seed: int, n: int) -> None:
    errors = 0.01 * np.random.default_rng(seed).normal(size=n)
    errors[0] = 1.0
    far, times = far_off(errors)
    assert far[0]
    assert times[0] > 20


@pytest.mark.system
def test_repeated_data_without_a_term_and_sources_in_another_unit_of_loss_are_named() -> None:
    columns = _columns() | {"unique_tokens": _columns()["tokens"]}
    assert not [text for text in _warnings(columns) if "unique_tokens" in text]
    columns["unique_tokens"] = columns["unique_tokens"] * np.where(np.arange(60) < 7, 0.25, 1.0)
    (note,) = [text for text in _warnings(columns) if "unique_tokens" in text]
    assert note == (
        "column 'unique_tokens' is not used by chinchilla: 7 runs that repeat data count as fresh; fit --law muennighoff2023 "
        "or pooled2026"
    )
    assert not [text for text in _warnings(columns, "muennighoff2023") if "not used" in text]
    columns = _columns()
    columns["dataset"] = np.array(["c4", "pile"] * 30, dtype=object)
    assert _warnings(columns) == _warnings(_columns())
    columns["loss"][1::2] *= 0.4
    (note,) = [text for text in _warnings(columns) if "unit of loss" in text]
    assert "dataset == 'pile' lie 6" in note
    assert note.endswith("--where \"dataset == 'c4'\"")


def _noisy(**changes: Any) -> Law:
    law = find_law("yun2024-joint")
    assert len(law.draws)
    return replace(law, **changes)


points = st.tuples(st.floats(1e7, 1e11), st.floats(1e9, 1e13), st.floats(1.0, 256.0))
noises = st.floats(0.0, 0.05)


@given(st.lists(points, min_size=1, max_size=5), noises, noises)
def test_a_table_is_predicted_as_each_of_its_runs(
    rows: list[tuple[float, float, float]], noise: float, drift: float
) -> None:
    law = _noisy(run_noise=noise, drift=drift)
    values, low, high = predict_many(law, *np.array(rows).T)
    for i, row in enumerate(rows):
        one = predict(law, *row)
        np.testing.assert_allclose((one.loss, *one.interval), (values[i], low[i], high[i]), rtol=1e-12)


def test_noise_and_drift_have_the_stated_size_and_with_draws_that_of_a_simulation() -> None:
    law = replace(CHINCHILLA, fit_range={"n_params": (1e8, 1e9), "tokens": (1e9, 1e10), "experts": (1.0, 1.0)})
    assert predict(law, 5e8, 5e9).interval is None
    z = NormalDist().inv_cdf(0.95)
    for noise, drift, point, spread in (
        (0.01, 0.0, (5e8, 5e9, 1.0), 0.01),
        (0.0, 0.02, (5e8, 5e9, 1.0), 0.0),
        (0.0, 0.02, (1e9 * np.e, 1e9 / np.e**2, 1.0), 0.06),
        (0.03, 0.01, (1e9, 1e10, np.e**4), 0.05),
    ):
        found = predict(replace(law, run_noise=noise, drift=drift), *point)
        expected = found.loss * np.exp([-z * spread, z * spread])
        np.testing.assert_allclose(found.interval, expected, rtol=1e-9)
    law, point = _noisy(run_noise=0.004), (1e9, 2e10, 8.0)
    found = predict(law, *point)
    rng = np.random.default_rng(0)
    drawn = loss(law, *point, theta=law.draws)[rng.integers(len(law.draws), size=200_000)]
    low, high = np.quantile(drawn * np.exp(0.004 * rng.normal(size=drawn.size)), [0.05, 0.95])
    np.testing.assert_allclose(found.interval, (low, high), rtol=3e-4)


def test_a_score_is_of_the_runs_that_were_measured() -> None:
    law, runs = replace(CHINCHILLA, run_noise=0.004), read_runs(_columns())
    every = score(predict_runs(law, runs), runs.loss)
    assert every.n_runs == 60
    assert every.rmsle == pytest.approx(0.004, rel=0.3)
    assert abs(every.bias) < 0.002
    assert every.coverage == pytest.approx(0.9, abs=0.1)
    half: FloatArray = np.where(np.arange(60) < 30, runs.loss, np.nan)
    known = score(predict_runs(law, runs), half)
    assert known.n_runs == 30
    assert score(predict_runs(law, runs), np.full(60, np.nan)) is None
    none = score(predict_runs(CHINCHILLA, runs), runs.loss)
    assert none.coverage is None


def test_the_command_line_predicts_a_table_row_by_row(tmp_path: Path, saved_law: Path) -> None:
    told = answer_of("predict", "--law", saved_law, "--runs", RUNS, "--where", "n_experts == 1 and tokens >= 1e10")
    table = read_runs(RUNS, where="n_experts == 1 and tokens >= 1e10")
    assert len(told) == len(table)
    for i, row in enumerate(told):
        one = answer_of(*("predict", "--law", saved_law, "--n-params", table.n_params[i], "--tokens", table.tokens[i]))
        assert row["loss"] == pytest.approx(one["loss"], rel=1e-12)
        assert row["interval"] == pytest.approx(one["interval"], rel=1e-12)
    bare = answer_of("predict", "--law", "hoffmann2022", "--runs", RUNS, "--where", "n_experts == 1")
    assert {row["interval"] for row in bare} == {None}
    columns = table.to_columns()
    del columns["loss"]
    unknown = write_runs(columns, tmp_path / "unknown.csv")
    assert answer_of("predict", "--law", saved_law, "--runs", unknown) == told
    shown = run("predict", "--law", saved_law, "--runs", unknown).out
    assert "RMSLE" not in shown
    shown = run("predict", "--law", saved_law, "--runs", RUNS, "--where", "n_experts == 1").out
    assert re.search(
        r"measured runs?: RMSLE 0\.\d+, bias [+-]\d.*%, \d.*% around the bias, \d+% within the 90% interval",
        " ".join(shown.split()),
    )


def test_a_table_is_predicted_by_the_size_that_the_law_was_fitted_to(tmp_path: Path) -> None:
    columns = _columns() | {"n_params_active": 3 * _columns()["n_params_dense"]}
    path = write_runs(columns, tmp_path / "two.csv")
    law = tmp_path / "law.toml"
    assert run("fit", path, "--law", "chinchilla", "--size-column", "n_params_active", "-o", law).code == 0
    told = answer_of("predict", "--law", law, "--runs", path)
    errors = np.log([row["loss"] for row in told]) - np.log(columns["loss"])
    assert np.sqrt(np.mean(errors**2)) < 0.006


@pytest.mark.system
def test_a_law_of_the_best_runs_leaves_the_others_out(tmp_path: Path) -> None:
    columns = _columns()
    twice = {name: np.concatenate((values, values)) for name, values in columns.items()}
    twice["run_id"] = np.arange(120.0)
    twice["loss"][60:] *= 1.3
    path, law = write_runs(twice, tmp_path / "runs.csv"), tmp_path / "law.toml"
    assert answer_of("fit", path, "--law", "chinchilla")["rmsle"] > 0.1
    found = answer_of("fit", path, "--law", "chinchilla", "--best-of", "-o", law)
    assert found["rmsle"] < 0.006
    assert found["n_runs"] == 60
    assert found["warnings"][0].startswith("kept 60 of 120 runs")
    scores = answer_of(*("compare", path, "--law", "chinchilla", "--holdout", "tokens > 5e10", "--best-of"))
    assert scores[0]["n_train"] + scores[0]["n_holdout"] == 60
    assert scores[0]["rmsle_holdout"] < 0.01


def test_a_law_of_further_inputs_takes_them_from_the_table() -> None:
    law = find_law("muennighoff2023")
    columns = _columns() | {"unique_tokens": _columns()["tokens"] / 4}
    repeated, fresh = (predict_runs(law, read_runs(c)) for c in (columns, _columns()))
    assert all(a.loss > b.loss for a, b in zip(repeated, fresh, strict=True))
