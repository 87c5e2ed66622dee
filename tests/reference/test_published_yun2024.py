"""What Yun et al. (arXiv 2404.02852) print about their law, and how near the law recovered from it comes.

All of it went into the recovery (docs/evidence/recovery.md), so it is no confirmation; their claims beyond it are judged in
docs/evidence/reproduction.md, by `moescale reproduce`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from moescale import catalogue
from moescale.planning.allocation import Budget, loss_optimal, smallest_at_loss
from moescale.scaling_laws import find_law, loss

LAW = find_law("yun2024-recovered")


@cache
def printed() -> dict[str, Any]:
    return catalogue.read("published_yun2024.toml")


def test_sizes_of_table_1() -> None:
    sweep = printed()["sweep"]
    h, depth, ffn = (np.array(sweep[key], dtype=float) for key in ("d_model", "n_layers", "d_ffn"))
    counted = depth * (4 * h * h + 3 * h * ffn)
    assert counted.tolist() == sweep["n_params"] == [81_395_712, 184_647_680, 289_406_976, 679_477_248]


@pytest.mark.parametrize(("experts", "rms_percent", "largest_percent"), [(8, 0.150, 0.308), (16, 0.191, 0.340)])
def test_surfaces_of_the_commented_table(experts: int, rms_percent: float, largest_percent: float) -> None:
    (s,) = (row for row in printed()["surface"] if row["experts"] == experts)
    n, d = np.meshgrid(np.array(printed()["sweep"]["n_params"], float), np.array(printed()["sweep"]["tokens"], float))
    theirs = s["F"] + s["A"] / n ** s["alpha"] + s["B"] / d ** s["beta"]
    errors = 100 * np.abs(np.log(loss(LAW, n, d, float(experts)) / theirs))
    assert np.sqrt(np.mean(errors**2)) == pytest.approx(rms_percent, abs=5.1e-4)
    assert np.max(errors) == pytest.approx(largest_percent, abs=5.1e-4)


@pytest.mark.parametrize(
    ("experts", "flops", "billions", "ours"),
    [(1, 2.12e21, 3.36, 3.277), (1, 5.96e21, 6.14, 6.129), (8, 2.12e21, 2.260, 2.256), (8, 5.95e21, 4.095, 4.182)],
)
def test_loss_optimal_sizes(experts: int, flops: float, billions: float, ours: float) -> None:
    found = loss_optimal(LAW, Budget(flops), float(experts)).n_params[0] / 1e9
    assert found == pytest.approx(ours, abs=5.1e-4)
    assert found == pytest.approx(billions, rel=0.026)


@pytest.mark.parametrize(("flops", "billions", "ours"), [(2.12e21, 0.567, 0.574), (5.95e21, 0.862, 0.849)])
def test_overtrained_sizes_of_eight_experts_at_the_dense_optimums_loss(
    flops: float, billions: float, ours: float
) -> None:
    dense = loss_optimal(LAW, Budget(flops), 1.0).loss[0]
    found = smallest_at_loss(LAW, Budget(flops), 8.0, dense).n_params.ravel()[0] / 1e9
    assert found == pytest.approx(ours, abs=5.1e-4)
    assert found == pytest.approx(billions, rel=0.016)


def test_the_rows_above_are_all_that_is_printed() -> None:
    assert [(row["experts"], row["budget_flops"], row["n_params"]) for row in printed()["optimum"]] == [
        (1, 2.12e21, 3.36e9), (1, 5.96e21, 6.14e9), (8, 2.12e21, 2.260e9), (8, 5.95e21, 4.095e9),
    ]  # fmt: skip
    assert [(row["budget_flops"], row["n_params"]) for row in printed()["overtrained"]] == [
        (2.12e21, 567e6), (5.95e21, 862e6),
    ]  # fmt: skip
