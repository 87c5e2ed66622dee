"""Efficiency leverage: of the published formula, and as a law implies it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moescale.errors import InfeasibleError
from moescale.planning.allocation import Budget, loss_optimal
from moescale.scaling_laws import find_law
from script_modules import load_script

leverage = load_script("scripts/equal_loss.py").leverage
formula = load_script("scripts/leverage.py")
efficiency_leverage, tian2025 = formula.efficiency_leverage, formula.tian2025

ratios, grains, flops = st.floats(0.008, 0.5), st.floats(2.0, 16.0), st.floats(3e18, 1e24)


@given(ratios, grains, flops, st.floats(1.1, 4.0))
def test_sparser_and_larger_models_gain_more(ratio: float, grain: float, c: float, more: float) -> None:
    value = efficiency_leverage(ratio, grain, c)
    assert efficiency_leverage(ratio / more, grain, c) > value > 1.0
    assert efficiency_leverage(ratio, grain, c * more) > value


def test_leverage_is_a_power_of_the_saturated_ratio() -> None:
    law = tian2025()
    exponents = [
        np.log(efficiency_leverage(a, 2.0, 1e20)) / np.log(a + 1.0 / (1.0 / law["A_start"] - 1.0 / law["A_max"]))
        for a in (0.01, 0.1, 0.5)
    ]
    np.testing.assert_allclose(exponents, law["a"] + 20.0 * law["d"] + law["gamma"] + law["beta"], rtol=1e-12)
    assert efficiency_leverage(np.array([0.1, 0.2])[:, None], [2.0, 4.0, 8.0], 1e20).shape == (2, 3)


def test_where_the_formula_was_fitted() -> None:
    is_within_runs = load_script("scripts/modern_experts.py").is_within_runs
    assert is_within_runs(1 / 32, [1.0, 2.0, 16.0, 17.0], 1e20).tolist() == [False, True, True, False]
    assert is_within_runs(1 / 32, 4.0, [1e18, 3e18, 3e20, 1e21]).tolist() == [False, True, True, False]
    assert not is_within_runs(0.008, 11.0, 3e20)  # a leverage above 6, which was held out


def test_reference_and_model_have_one_loss() -> None:
    law = find_law("ludziejewski2025")
    found = leverage(law, Budget(1e20), [1.0, 8.0])
    assert found.ratio[0] == pytest.approx(1.0, rel=1e-5)
    assert found.ratio[1] > 1.5
    np.testing.assert_allclose(found.references.loss, found.models.loss, rtol=1e-6)
    again = loss_optimal(law, Budget(1e20 * found.ratio[1]), 1.0)
    assert again.loss[0] == pytest.approx(found.models.loss[1], rel=1e-6)


@pytest.mark.system
def test_leverages_chain() -> None:
    law = find_law("moescale2026-joint")
    over_8 = leverage(law, Budget(1e20), 32.0, reference_experts=8.0).ratio[0]
    over_dense = leverage(law, Budget(1e20 * over_8), 8.0).ratio[0]
    assert leverage(law, Budget(1e20), 32.0).ratio[0] == pytest.approx(over_8 * over_dense, rel=1e-4)
    assert leverage(law, Budget(1e20 * over_8), 8.0, reference_experts=32.0).ratio[0] == pytest.approx(
        1 / over_8, rel=1e-4
    )


def test_a_law_may_have_its_dense_models_in_another() -> None:
    fine, dense = find_law("krajewski2024"), find_law("krajewski2024-dense")
    gains = [
        leverage(fine, Budget(1e20, extra={"granularity": g}), 64.0, reference=dense).ratio[0] for g in (1.0, 4.0, 16.0)
    ]
    assert 1.0 < gains[0] < gains[1] < gains[2]
    # A loss that no reference reaches has no leverage: its dense models have a floor above it.
    alone = Budget(1e22, extra={"activated_experts": 1.0})
    assert np.isnan(leverage(find_law("zhao2025"), alone, 16.0).ratio[0])
    with pytest.raises(InfeasibleError, match="no loss-optimal size"):
        leverage(find_law("clark2022-hash"), Budget(1e20), 8.0)
