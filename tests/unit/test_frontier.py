"""The frontier of loss and cost, and models that have no shape."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from families import PAPER
from moescale.errors import InputError
from moescale.models.rounding import buildable
from moescale.serving.pareto import pareto


@pytest.mark.parametrize(("n_params", "experts"), [(math.nan, 4.0), (-1.0, 4.0), (1e9, 0.0)])
def test_an_impossible_model_has_no_shape(n_params: float, experts: float) -> None:
    with pytest.raises(InputError, match="no shape"):
        buildable(PAPER, n_params, experts)


points = st.lists(
    st.tuples(
        st.sampled_from([1.0, 2.0, 3.0, math.inf, math.nan]) | st.floats(0.1, 10), st.floats(1, 5) | st.just(math.nan)
    ),
    max_size=20,
)


@given(points)
def test_the_frontier_is_what_nothing_beats(pairs: list[tuple[float, float]]) -> None:
    cost, at = np.array([p[0] for p in pairs]), np.array([p[1] for p in pairs])
    front = pareto(cost, at)
    assert np.all(np.diff(cost[front]) > 0)
    assert np.all(np.diff(at[front]) < 0)
    finite = np.flatnonzero(np.isfinite(cost) & np.isfinite(at))
    assert set(front) <= set(finite)
    for i in finite:
        beaten = np.any(
            (cost[finite] <= cost[i]) & (at[finite] <= at[i]) & ((cost[finite] < cost[i]) | (at[finite] < at[i]))
        )
        assert beaten or (cost[i], at[i]) in {(cost[j], at[j]) for j in front}
        assert np.any((cost[front] <= cost[i]) & (at[front] <= at[i]))
