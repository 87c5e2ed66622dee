"""Serving curves: the cheapest cost of each size, and the largest size of each cost, are each other's inverse."""

from __future__ import annotations

import numpy as np
import pytest

from families import PAPER
from moescale.hardware.gpus import find_gpu
from moescale.latency.roofline import Roofline
from moescale.models.family import architecture
from moescale.planning.allocation import CLOSE
from moescale.planning.candidate import Costs, largest_models, serving_curves
from moescale.serving.deployment import Deployment
from moescale.serving.steady_state import serve

EXPERTS = np.array([1.0, 8.0, 64.0])
GPU = find_gpu("a100-sxm-40gb")
DEPLOYMENT = Deployment(gpu=GPU, usd_per_gpu_hour=1.45, prompt_tokens=230, output_tokens=203)
COSTS = Costs(PAPER, Roofline(GPU), DEPLOYMENT, None)


def test_curves_hold_the_cheapest_gpu_count_of_every_size() -> None:
    sizes = np.geomspace(1e8, 1e12, 40)
    found = serving_curves(COSTS, EXPERTS, sizes[::-1])
    assert np.array_equal(found.n_params, sizes)
    degrees = np.array([1.0, 2.0, 4.0, 8.0])
    counts = degrees.reshape(-1, 1, 1)
    every = serve(architecture(PAPER, sizes[None, :], EXPERTS[:, None]), counts, Roofline(GPU), DEPLOYMENT).usd_per_mtok
    best = every.min(axis=0)
    np.testing.assert_allclose(found.usd_per_mtok, np.where(np.isfinite(best), best, np.nan), rtol=1e-12)
    assert np.array_equal(found.gpus, np.where(np.isfinite(best), degrees[every.argmin(axis=0)], 0))
    assert np.isnan(found.usd_per_mtok[:, -1]).all()


def test_the_largest_model_costs_what_is_allowed() -> None:
    limits = np.geomspace(0.01, 1.0, 12)
    found = largest_models(COSTS, EXPERTS, limits)
    assert np.all(np.diff(found.n_params, axis=1) > 0)
    back = np.array([serving_curves(COSTS, EXPERTS[[j]], found.n_params[j]).usd_per_mtok[0] for j in range(3)])
    np.testing.assert_allclose(back, np.broadcast_to(limits, back.shape), rtol=10 * CLOSE)


def test_a_cost_below_every_model_has_none() -> None:
    found = largest_models(COSTS, EXPERTS, np.array([1e-9, 0.1]))
    assert np.isnan(found.n_params[:, 0]).all()
    assert np.array_equal(found.gpus[:, 0], np.zeros(3))
    assert np.isfinite(found.n_params[:, 1]).all()


@pytest.mark.parametrize("max_gpus", [1, 3])
def test_curves_know_their_deployment(max_gpus: int) -> None:
    costs = Costs(PAPER, Roofline(GPU), Deployment(
        gpu=GPU, usd_per_gpu_hour=1.0, prompt_tokens=10, output_tokens=20, max_gpus=max_gpus
    ), None)  # fmt: skip
    found = serving_curves(costs, EXPERTS, np.array([1e9]))
    assert found.deployment is costs.deployment
    assert np.nanmax(found.gpus) <= max_gpus
