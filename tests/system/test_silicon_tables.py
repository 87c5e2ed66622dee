"""Tables and grids of measured kernels: what can be asked, what is refused, and how they continue beyond what was measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from model_configs import CONFIGS
from moescale.errors import InputError
from moescale.hardware.gpus import find_gpu
from moescale.latency.kernels.log_grid import MOST_BEYOND, grid_of
from moescale.latency.kernels.tables import default_version, engines, systems, version_key
from moescale.latency.silicon import Silicon
from moescale.models.hf_config import from_config
from moescale.models.published import shapes
from script_modules import load_script

aiconfigurator_core = pytest.importorskip("aiconfigurator_core", reason="the kernel tables exist for Linux x86-64 only")

MODEL, A100, H100 = from_config(CONFIGS["MIXTRAL"]), find_gpu("a100-sxm-80gb"), find_gpu("h100-sxm")


def test_every_system_of_the_package_can_be_asked() -> None:
    assert {"a100_sxm", "h100_sxm", "h200_sxm", "b200_sxm", "l40s"} <= set(systems())
    gpu = find_gpu("h100-sxm")
    for system in ("h200_sxm", "b200_sxm", "l40s"):
        for backend in engines(system):
            source = Silicon(replace(gpu, silicon_system=system), backend)
            assert np.isfinite(source.decode_s(MODEL, 2, 8, 640)), (system, backend)


def test_versions_sort_by_their_numbers() -> None:
    names = ["1.3.0rc20", "0.24.0", "0.9.2", "1.3.0rc9", "0.5.6.post2", "0.5.6", "1.3.0"]
    assert sorted(names, key=version_key) == [
        "0.5.6", "0.5.6.post2", "0.9.2", "0.24.0", "1.3.0rc9", "1.3.0rc20", "1.3.0",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gpu": find_gpu("mi300x")}, "no measured kernels for mi300x.*roofline"),
        ({"gpu": H100, "backend": "vlm"}, "vllm"),
        ({"gpu": replace(H100, silicon_system="z100")}, "z100"),
    ],
)
def test_what_was_not_measured_is_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Silicon(**options)


def test_a_grid_is_exact_on_power_laws_and_continues_them() -> None:
    x, y = (values.ravel() for values in np.meshgrid([1.0, 3.0, 10.0, 100.0], [2.0, 8.0, 16.0]))
    grid = grid_of((x, y), 0.3 * x**0.7 * y, (1.0, 1.0))
    assert grid.seconds(5.0, 4.0) == pytest.approx(0.3 * 5**0.7 * 4)
    assert grid.seconds(0.1, 2.0) == pytest.approx(0.6)  # below the first size its time holds
    assert grid.seconds(200.0, 32.0) == pytest.approx(0.3 * 100**0.7 * 2 * 32)
    assert np.isnan(grid.seconds(101.0 * MOST_BEYOND, 2.0))
    assert grid.seconds(np.ones((3, 1)), np.full(4, 2.0)).shape == (3, 4)


def test_holes_of_a_grid_continue_from_the_axis_that_gives_the_least_and_are_interpolated() -> None:
    x, y = np.array([1.0, 2.0, 1.0]), np.array([1.0, 1.0, 10.0])
    grid = grid_of((x, y), np.array([1.0, 1.5, 7.0]), (0.5, 1.0))
    assert grid.seconds(2.0, 10.0) == pytest.approx(7.0 * 2**0.5)  # 10 x 1.5 along y
    repeated = grid_of((np.array([1.0, 1.0]),), np.array([1.0, 4.0]), (1.0,))
    assert repeated.seconds(1.0) == pytest.approx(2.0)  # repeats are averaged in logarithms
    x, y = np.array([1.0, 2.0, 4.0, 1.0, 4.0]), np.array([1.0, 1.0, 1.0, 8.0, 8.0])
    grid = grid_of((x, y), np.array([3.0, 4.0, 5.0, 20.0, 21.0]), (1.0, 1.0))
    assert grid.seconds(2.0, 8.0) == pytest.approx((20.0 * 21.0) ** 0.5)  # not 4 x 8


# Median and 90% quantile of |log(predicted / measured)| of rows that a quarter of the memory would not have held. Filled
# along tokens first, as before version 0.2, they were 0.14 and 0.41, 0.30 and 0.90, 0.19 and 0.55, 0.06 and 0.27.
@pytest.mark.parametrize(
    ("system", "stage", "median", "most"),
    [
        ("h100_sxm", "generation", 0.094, 0.262), ("h100_sxm", "context", 0.037, 0.110),
        ("a100_sxm", "generation", 0.132, 0.347), ("l40s", "generation", 0.040, 0.274),
    ],
)  # fmt: skip
def test_left_out_attention_is_predicted_as_stated(system: str, stage: str, median: float, most: float) -> None:
    version = default_version(system, "vllm")
    left_out = load_script("scripts/left_out_kernels.py").leave_largest_out
    off = np.abs(left_out(system, "vllm", version, stage, "bfloat16", 128.0, 0.25))
    assert [np.median(off), np.quantile(off, 0.9)] == pytest.approx([median, most], abs=0.005)


def test_more_memory_makes_no_model_slower() -> None:
    # Rows that 80 GB did not hold were taken from launches: gpt-oss-20b was slower on an H200 from 700 requests on.
    model, batch = shapes()["gpt-oss-20b"], 2.0 ** np.arange(12)
    for backend in ("vllm", "sglang", "trtllm"):
        small, large = (
            Silicon(find_gpu(name), backend, weight_bytes_per_param=0.53, host_s=0.0)
            for name in ("h100-sxm", "h200-sxm")
        )
        for tokens in (1500.0, 9000.0):
            assert np.all(large.decode_s(model, 1, batch, tokens) < small.decode_s(model, 1, batch, tokens))
