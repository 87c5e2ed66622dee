"""Sardana and Frankle (arXiv 2401.00448): their published examples of models that take the fewest FLOPs over their life.

The coefficients are those of their appendix A, the reference models are loss-optimal for training, and inference counts
2 N FLOPs a token.
"""

from __future__ import annotations

import numpy as np
import pytest

from moescale.planning.allocation import Budget, loss_optimal
from moescale.planning.total_cost import Lifetime, cheapest_at_loss, flops_optimal
from moescale.scaling_laws import find_law, loss

LAW = find_law("hoffmann2022-devries")


def chinchilla_optimal(n_params: float) -> tuple[float, float]:
    """Tokens with which a size is loss-optimal for training, and the loss there: the two slopes of ln L are equal."""
    p = LAW.parameters
    tokens = (p["beta"] * p["B"] / (p["alpha"] * p["A"])) ** (1 / p["beta"]) * n_params ** (p["alpha"] / p["beta"])
    assert loss_optimal(LAW, Budget(6 * n_params * tokens), 1.0).n_params[0] == pytest.approx(n_params, rel=1e-7)
    return tokens, float(loss(LAW, n_params, tokens, 1.0))


@pytest.mark.parametrize(
    ("quality", "inference_tokens", "n_billions", "n_digit", "data_ratio", "fewer_flops"),
    [  # the digits that they print
        (30e9, 1e13, 13.6, 0.05, 2.84, 0.28),
        (7e9, 1e11, 6.0, 0.05, 1.18, None),
        (13e9, 2e12, 7.0, 0.05, None, 0.17),
    ],
)
def test_published_examples(
    quality: float,
    inference_tokens: float,
    n_billions: float,
    n_digit: float,
    data_ratio: float | None,
    fewer_flops: float | None,
) -> None:
    tokens, target = chinchilla_optimal(quality)
    found = flops_optimal(LAW, 1.0, target, inference_tokens)
    assert found.loss[0] == pytest.approx(target, rel=1e-12)
    assert found.n_params[0] / 1e9 == pytest.approx(n_billions, abs=n_digit)
    if data_ratio is not None:
        assert found.tokens[0] / tokens == pytest.approx(data_ratio, abs=0.005)
    if fewer_flops is not None:
        of_reference = 6 * quality * tokens + 2 * quality * inference_tokens
        assert 1 - found.total_flops[0] / of_reference == pytest.approx(fewer_flops, abs=0.005)


@pytest.mark.parametrize(("quality", "inference_tokens"), [(30e9, 1e13), (7e9, 1e11), (13e9, 2e12)])
def test_dollars_reduce_to_flops_at_one_price_and_a_constant_mfu(quality: float, inference_tokens: float) -> None:
    usd_per_flop = 1e-18
    target = chinchilla_optimal(quality)[1]
    by_flops = flops_optimal(LAW, 1.0, target, inference_tokens)
    life = Lifetime(served_tokens=inference_tokens, usd_per_flop=usd_per_flop)
    by_dollars = cheapest_at_loss(LAW, 1.0, target, life, lambda n_params, _: 2.0 * n_params * usd_per_flop * 1e6)
    np.testing.assert_allclose(by_dollars.n_params, by_flops.n_params, rtol=1e-6)
    np.testing.assert_allclose(by_dollars.total_usd, by_flops.total_flops * usd_per_flop, rtol=1e-12)
