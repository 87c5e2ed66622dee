"""The cost curve that intervals are read from says what the latency source says, and nothing where that says nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from moescale.hardware.gpus import load_gpu
from moescale.latency.roofline import Roofline
from moescale.models.architecture import Architecture
from moescale.models.family import find_family
from moescale.models.parameters import dense_equivalent_params
from moescale.planning.candidate import Costs
from moescale.planning.sampled_costs import grid_models, sampled_costs
from moescale.serving.deployment import Deployment
from moescale.typing import FloatArray


@dataclass(frozen=True)
class Known:
    """A roofline that answers for some sizes alone, as a table of measured latencies does."""

    source: Roofline
    low: float
    high: float
    name: str = "known"

    def _only(self, model: Architecture, seconds: FloatArray) -> FloatArray:
        n = np.asarray(dense_equivalent_params(model))
        return np.where((n >= self.low) & (n <= self.high), seconds, np.nan)

    def prefill_s(self, model: Architecture, *given: Any, **options: Any) -> FloatArray:
        return self._only(model, self.source.prefill_s(model, *given, **options))

    def decode_s(self, model: Architecture, *given: Any, **options: Any) -> FloatArray:
        return self._only(model, self.source.decode_s(model, *given, **options))

    def mixed_s(self, model: Architecture, *given: Any, **options: Any) -> FloatArray:
        return self._only(model, self.source.mixed_s(model, *given, **options))


@pytest.mark.parametrize(("low", "high"), [(2e6, 1.2e7), (3e8, 6e8), (1e4, 1e13)])
def test_the_curve_follows_a_source_to_its_ends_and_not_beyond(low: float, high: float) -> None:
    gpu = load_gpu("a100-sxm-80gb")
    deployment = Deployment(gpu=gpu, usd_per_gpu_hour=2.0, prompt_tokens=230, output_tokens=203)
    costs = Costs(find_family("yun2024"), Known(Roofline(gpu), low, high), deployment, None)
    experts = np.array([1.0, 8.0])
    grid = grid_models(experts)
    sampled = sampled_costs(costs, experts, grid, costs.usd_per_mtok(grid.n_params, grid.experts))
    ends = (low, high) if high < 1e12 else (1e7, 1e10)
    inside = np.geomspace(1.1 * ends[0], 0.9 * ends[1], 7)
    sizes = np.broadcast_to(inside[:, None], (7, 2))
    wanted = costs.usd_per_mtok(sizes, np.broadcast_to(experts, sizes.shape))
    np.testing.assert_allclose(sampled.usd_per_mtok(sizes), wanted, rtol=0.03)
    outside = np.array([[low * 0.9] * 2, [high * 1.1] * 2])
    assert np.isnan(sampled.usd_per_mtok(outside)).all()
    assert np.isnan(sampled.size_within(wanted.min(axis=0)[:1] * 1e-3)).all()
