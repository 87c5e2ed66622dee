"""A known law calibrated to a few runs of another dataset."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from moescale.errors import InputError
from moescale.fitting.fit import fit
from moescale.fitting.prior import calibrate
from moescale.scaling_laws import find_law, make_inputs
from moescale.typing import FloatArray

pytestmark = pytest.mark.system

LAW = find_law("yun2024-joint")
A, C, F = (LAW.form.names.index(name) for name in "ACF")


def other_dataset(count: int, seed: int, scale: float = 1.07) -> tuple[FloatArray, ...]:
    """Runs whose losses are `scale` times the law's, as with another tokenizer, with 0.3% noise: N, D, E, ln L."""
    rng = np.random.default_rng(seed)
    n, d = 10 ** rng.uniform(8, 9.2, count), 10 ** rng.uniform(9.3, 10.5, count)
    e = rng.choice([1.0, 4.0, 8.0], count)
    clean = LAW.form.log_loss(LAW.theta, make_inputs(n, d, e)) + np.log(scale)
    return n, d, e, clean + 0.003 * rng.normal(size=count)


def test_twelve_runs_and_a_law_predict_better_than_twelve_runs() -> None:
    far = make_inputs(*np.meshgrid([2e9, 8e9], [4e10, 2e11], [1.0, 8.0, 32.0]))
    truth = LAW.form.log_loss(LAW.theta, far) + np.log(1.07)
    with_law, without = [], []
    for seed in range(3):
        n, d, e, ln_loss = other_dataset(12, seed)
        for found, errors in (
            (calibrate(LAW, make_inputs(n, d, e), ln_loss), with_law),
            (fit(LAW.form, n, d, e, np.exp(ln_loss), starts=16), without),
        ):
            errors.append(np.abs(found.form.log_loss(found.theta, far) - truth).max())
    assert np.mean(with_law) < 0.5 * np.mean(without)


def test_fixed_parameters_stay_and_others_move() -> None:
    n, d, e, ln_loss = other_dataset(20, 9)
    found = calibrate(LAW, make_inputs(n, d, e), ln_loss, fix=["alpha", "gamma", "d"])
    for name in ("alpha", "gamma", "d"):
        assert found.parameters[name] == pytest.approx(LAW.parameters[name], rel=1e-14)
    assert found.parameters["A"] != pytest.approx(LAW.parameters["A"], rel=1e-3)
    assert "calibrated from yun2024-joint; kept alpha, gamma, d; held beta" in found.warnings[0]
    assert not {"alpha", "gamma", "d"} & {*found.at_bound, *found.not_identified}


def test_a_law_without_draws_keeps_all_its_shape() -> None:
    n, d, e, ln_loss = other_dataset(6, 3)
    bare = replace(LAW, draws=np.empty((0, LAW.theta.size)))
    found = calibrate(bare, make_inputs(n, d, e), ln_loss)
    for name in ("alpha", "beta", "gamma", "d", "E_start", "E_max"):
        assert found.parameters[name] == pytest.approx(LAW.parameters[name], rel=1e-9)
    assert found.rmsle < 0.006


def test_many_runs_outweigh_the_law() -> None:
    """With a hundred times the runs the exponents go where the runs are, not where the law is."""
    other = LAW.theta.copy()
    alpha = LAW.form.names.index("alpha")
    other[alpha] += 4.0 * float(LAW.draws[:, alpha].std())
    rng = np.random.default_rng(1)
    offs = []
    for count in (10, 1000):
        n, d, e = (
            10 ** rng.uniform(7.5, 9.5, count),
            10 ** rng.uniform(9, 11, count),
            rng.choice([1.0, 8.0, 32.0], count),
        )
        x = make_inputs(n, d, e)
        ln_loss = LAW.form.log_loss(other, x) + 0.003 * rng.normal(size=count)
        offs.append(abs(calibrate(LAW, x, ln_loss).parameters["alpha"] - other[alpha]))
    assert offs[1] < 0.5 * offs[0]


def test_mistakes_are_named() -> None:
    n, d, e, ln_loss = other_dataset(12, 0)
    with pytest.raises(InputError, match=r"--fix: yun2024 has no parameter 'alfa'; nearest: alpha"):
        calibrate(LAW, make_inputs(n, d, e), ln_loss, fix=["alfa"])
    with pytest.raises(InputError, match=r"3 runs cannot set the 4 free parameters.*at least 4"):
        calibrate(LAW, make_inputs(n[:3], d[:3], e[:3]), ln_loss[:3])
