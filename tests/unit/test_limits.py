"""Dollars of a life with the errors of training and of serving."""

from __future__ import annotations

import math

import numpy as np
import pytest

from moescale.planning.limits import StatedLimit
from moescale.serving.accuracy import Accuracy, accuracy_of_any
from moescale.training.step_time import StepError

TRAINING = StepError(kind="moe", geometric_mean=1.05, spread=1.3, within_25=0.5, runs=20)
SERVING = Accuracy(kind="MoE fp8", n=10, geometric_mean=1.1, spread=1.25, sets=3, gpus=("h100-sxm",))


def test_a_life_stays_within_dollars_as_often_as_drawn_errors_do() -> None:
    life = StatedLimit("max_total_usd", 20e6, 14e6, TRAINING, 6e6, SERVING)
    rng = np.random.default_rng(0)
    drawn = [
        math.log(e.geometric_mean) + math.log(e.spread) * rng.standard_normal(400_000) for e in (TRAINING, SERVING)
    ]
    usd = 14e6 * np.exp(drawn[0]) + 6e6 * np.exp(drawn[1])
    for limit in (15e6, 20e6, 30e6):
        assert life.kept(limit) == pytest.approx(np.mean(usd <= limit), abs=0.005)
    for chance in (0.5, 0.9):
        assert life.kept(life.taken(chance)) == pytest.approx(chance, abs=1e-6)
        assert life.taken(chance) == pytest.approx(np.quantile(usd, chance), rel=0.005)
    assert (life.kept(1.0), life.kept(20e6)) == (0.0, life.chance)


def test_all_kinds_together_spread_more_than_their_mean_kind() -> None:
    every = accuracy_of_any()
    assert every.sets > 3
    assert every.n > 1000
    assert 0.9 < every.geometric_mean < 1.2
    assert every.spread > 1.2
