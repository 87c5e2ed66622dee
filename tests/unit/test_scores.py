"""Benchmark scores: what the ladder says, where it says nothing, and the model that a target asks for."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from moescale.errors import InfeasibleError, InputError
from moescale.models.coordinates import in_family
from moescale.models.published import published_shapes
from moescale.planning.scores import (
    AVERAGE,
    dense_model_for,
    dense_of_equal_loss,
    measured_scores,
    nearest_score,
    score,
    tasks,
)
from moescale.scaling_laws import find_law, loss
from reference_data import PUBLIC


def _trained() -> list[dict[str, str]]:
    with (PUBLIC / "olmo_ladder_scores.csv").open(encoding="utf-8") as file:
        return [row for row in csv.DictReader(x for x in file if not x.startswith("#")) if row["final"] == "1"]


def _judges() -> list[dict[str, str]]:
    return [row for row in _trained() if row["size"] in ("7B", "13B")]


def test_intervals_hold_on_models_twenty_times_beyond_the_fit_and_on_those_below_guesses() -> None:
    held, errors = [], []
    for row in _judges():
        for task in tasks():
            parts = [task] if task != AVERAGE else [t for t in tasks() if t != AVERAGE]
            measured = np.mean([float(row[f"{t}_acc"]) for t in parts])
            found = score(task, float(row["n_params_nonemb"]), float(row["tokens"]))
            held.append(found.interval[0] <= measured <= found.interval[1])
            errors.append(abs(found.estimate - measured))
    assert np.mean(held) >= 0.9
    assert np.median(errors) < 0.05
    worst = min(float(row["arc_challenge_acc"]) for row in _trained())
    assert score("arc_challenge", 1e13, 1e15).interval[0] == pytest.approx(worst)
    assert worst < 1 / 4
    assert score(AVERAGE, 1e9, 1e11).interval[0] > score(AVERAGE, 1e13, 1e15).interval[0] > 0.3


def test_a_score_stands_beside_that_of_a_released_model() -> None:
    last = max((row for row in _judges() if row["size"] == "13B"), key=lambda row: float(row["tokens"]))
    assert nearest_score(measured_scores("mmlu"), 0.9) == ("OLMo 2 13B", float(last["mmlu_acc"]))
    assert nearest_score(measured_scores("mmlu"), 0.3)[0] == "OLMo 2 7B"
    every = [float(last[f"{task}_acc"]) for task in tasks() if task != AVERAGE]
    assert nearest_score(measured_scores(AVERAGE), 1.0)[1] == pytest.approx(np.mean(every), rel=1e-12)
    names = {model.lower().replace(" ", "-") for model in measured_scores("mmlu")}
    assert names == {"olmo-2-7b", "olmo-2-13b"} <= published_shapes().keys()


@pytest.mark.parametrize("task", tasks())
def test_a_score_rises_with_size_and_tokens(task: str) -> None:
    small, large, longer = (score(task, *model).estimate for model in ((1e9, 1e11), (4e9, 1e11), (1e9, 1e12)))
    assert small < large
    assert small < longer


@pytest.mark.parametrize("task", ["mmlu", "hellaswag", AVERAGE])
def test_the_model_of_a_target_has_its_score_and_no_other_of_its_flops_more(task: str) -> None:
    target = score(task, 3e9, 3e11).estimate
    n, d = dense_model_for(task, target)
    assert score(task, n, d).estimate == pytest.approx(target, abs=1e-6)
    assert n * d < 3e9 * 3e11
    for factor in (0.8, 1.25):
        assert score(task, n * factor, d / factor).estimate < target


def test_the_dense_model_of_equal_loss_has_that_loss() -> None:
    law = find_law("pooled2026")
    sizes, experts = np.array([1e9, 1e9]), np.array([16.0, 1.0])
    bodies = dense_of_equal_loss(law, sizes, np.full(2, 1e11), experts, {})
    assert bodies[0] > bodies[1]
    for body, e in zip(bodies, experts, strict=True):
        n, _ = in_family(law.family, body, 1.0)
        assert float(loss(law, n, 1e11, 1.0)) == pytest.approx(float(loss(law, 1e9, 1e11, e)), rel=1e-9)


def test_what_loss_does_not_decide_is_refused() -> None:
    with pytest.raises(InputError, match=r"loss does not decide gsm8k: .*2508\.18672"):
        score("gsm8k", 1e9, 1e11)
    with pytest.raises(InputError, match="helaswag"):
        score("helaswag", 1e9, 1e11)
    with pytest.raises(
        InfeasibleError, match=r"mmlu of 0\.25 to 0\.56, not 0\.95; scores are those of ranked continuations"
    ):
        dense_model_for("mmlu", 0.95)


@pytest.mark.parametrize(("task", "least"), [("mmlu", 1 / 4), ("csqa", 1 / 5), ("socialiqa", 1 / 3), ("piqa", 1 / 2)])
def test_no_interval_reaches_below_what_guesses_score_and_no_chance_changes(task: str, least: float) -> None:
    found = score(task, 1e13, 1e15)
    assert found.interval == (pytest.approx(least), 1.0)
    assert found.at_least(found.estimate + found.within) == pytest.approx(0.05, abs=1e-4)
    assert found.at_least(found.estimate - found.within) == pytest.approx(0.95, abs=1e-4)
