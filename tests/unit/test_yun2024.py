"""Equation 4 in all its coordinates: derivatives, nesting of the laws, units of N."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from moescale.scaling_laws import LawForm, effective_experts, find_form, make_inputs, yun2024
from moescale.scaling_laws.form import Inputs

PUBLIC = np.array([30.0, 0.2, 2.5, 0.4, 80.0, 0.24, 0.5, 0.006, 3.0, 200.0, 2e9])


def _inputs() -> Inputs:
    n, d, e = np.meshgrid([1e8, 4e8, 2e9], [2e9, 2e10], [1.0, 4.0, 16.0, 64.0], indexing="ij")
    return make_inputs(n.ravel(), d.ravel(), e.ravel())


def _theta(form: LawForm, public: np.ndarray = PUBLIC) -> np.ndarray:
    return form.encode(public[: len(form.parameters)])


def test_centred_at_one_parameter_is_the_published_law() -> None:
    public = PUBLIC.copy()
    public[yun2024.CENTRE] = 1.0
    x = _inputs()
    centred = yun2024.CENTRED.log_loss(yun2024.CENTRED.encode(public), x)
    np.testing.assert_array_equal(centred, yun2024.FORM.log_loss(_theta(yun2024.FORM), x))


@given(unit=st.floats(1e-9, 1e9))
def test_only_the_centred_interaction_is_free_of_the_unit_of_size(unit: float) -> None:
    """Counting N in other units changes A and N0 of the centred law; no A and d make up for it in the published one."""
    form, x = yun2024.CENTRED, _inputs()
    other = Inputs(x.ln_n - np.log(unit), x.ln_d, x.experts, x.experts_distinct, x.experts_index)
    public = PUBLIC.copy()
    public[yun2024.A] /= unit ** public[yun2024.ALPHA]
    public[yun2024.CENTRE] /= unit
    np.testing.assert_allclose(form.log_loss(form.encode(public), other), form.log_loss(_theta(form), x), rtol=1e-11)
    published = yun2024.FORM.log_loss(yun2024.FORM.encode(public[:10]), other)
    change = published - yun2024.FORM.log_loss(_theta(yun2024.FORM), x)
    ln_e = np.log(effective_experts.effective_experts(np.log(PUBLIC[8]), np.log(PUBLIC[9]), x.experts))
    np.testing.assert_allclose(change, -PUBLIC[yun2024.D] * np.log(unit) * ln_e, atol=1e-9)


def test_the_centred_law_is_found_by_name() -> None:
    assert find_form("yun2024-centred").names == (*find_form("yun2024").names, "N0")
