"""GPUs, prices and traffic of the catalogue: published figures, and errors that help."""

from __future__ import annotations

import importlib.util
from importlib import resources

import numpy as np
import pytest

from moescale import catalogue
from moescale.errors import InputError
from moescale.hardware.gpus import find_gpu, gpus, measured_reserve_bytes
from moescale.hardware.precisions import precisions
from moescale.hardware.prices import owned_defaults, owned_usd_per_gpu_hour, price, prices

GIB = 2.0**30
A100 = ("a100-sxm-40gb", "a100-pcie-40gb", "a100-sxm-80gb", "a100-pcie-80gb")
NAMED = (*A100, "h100-sxm", "h100-pcie", "h200-sxm", "b200-sxm", "b300-sxm", "gb200", "gb300")
NAMED = (*NAMED, "rtx-pro-6000", "l40s", "l4", "b60", "mi300x")


@pytest.mark.parametrize("name", sorted({*NAMED, *gpus()}))
def test_every_promised_gpu_is_there_with_source_and_plausible_figures(name: str) -> None:
    gpu = find_gpu(name)
    assert gpu.name == name
    assert 16 * GIB <= gpu.memory_bytes <= 300 * GIB
    assert 1e11 < gpu.memory_bandwidth_bytes_per_s < 1e13
    assert 9e13 < gpu.bf16_flops_per_s < 5e15
    assert gpu.fp8_flops_per_s is None or 1.9 < gpu.fp8_flops_per_s / gpu.bf16_flops_per_s < 2.1
    assert 3e10 < gpu.interconnect_bytes_per_s < 1e12
    assert gpu.source
    assert gpu.date
    large = gpu.memory_bytes >= 70 * GIB and "a100" not in name
    assert gpu.default_max_num_seqs == (1024 if large else 256)  # vLLM's rule


def test_data_sheet_figures_of_the_papers_gpu() -> None:
    gpu = find_gpu("a100-sxm-40gb")
    assert gpu.memory_bytes == 40 * GIB
    assert gpu.memory_bandwidth_bytes_per_s == 1555e9
    assert gpu.bf16_flops_per_s == 312e12
    assert gpu.fp8_flops_per_s is None
    assert gpu.interconnect_bytes_per_s == 300e9
    assert gpu.silicon_system == "a100_sxm"  # measured on the 80 GB card; the latency source scales to this one


def test_silicon_systems_are_names_that_the_tables_have() -> None:
    if importlib.util.find_spec("aiconfigurator_core") is None:
        pytest.skip("aiconfigurator-core is not installed")
    systems = resources.files("aiconfigurator_core") / "systems" / "data"
    for gpu in gpus().values():
        for system, family in ((gpu.silicon_system, "gemm"), (gpu.silicon_link_system, "comm")):
            if system is not None:
                assert (systems / system / family).is_dir(), gpu.name


def test_a_gpu_is_found_in_either_case_and_an_unknown_one_names_its_neighbours() -> None:
    assert find_gpu(" H100_SXM ") is find_gpu("h100-sxm")
    assert find_gpu("h200").name == "h200-sxm"  # no other name goes on from there
    with pytest.raises(InputError, match="nearest: h100-sxm, h100-pcie"):
        find_gpu("h100")
    with pytest.raises(InputError, match="a100-sxm-40gb") as caught:
        find_gpu("a100-40gb")
    assert caught.value.nearest is not None
    with pytest.raises(InputError, match="unknown GPU ''"):
        find_gpu("")
    assert find_gpu("h100-sxm") in gpus().values()


def test_prices_are_positive_sourced_and_of_known_gpus_and_a_missing_one_says_what_to_pass() -> None:
    for entry in prices():
        assert entry.gpu in gpus()
        assert entry.usd_per_gpu_hour > 0
        assert entry.source
        assert entry.date
    assert price("a100-sxm-80gb").usd_per_gpu_hour == 1.95
    assert price("a100-sxm-40gb").usd_per_gpu_hour == price("a100-pcie-40gb").usd_per_gpu_hour == 1.45
    assert "stand-in" in price("a100-sxm-40gb").source
    with pytest.raises(InputError, match="--usd-per-gpu-hour"):
        price("gb200")
    with pytest.raises(InputError, match="unknown GPU"):
        price("h900")


def test_owned_hardware_costs_its_capital_over_its_hours_and_its_electricity() -> None:
    hours = 4 * 365.25 * 24
    assert owned_usd_per_gpu_hour(35_064, years=4, power_w=0, usd_per_kwh=0.1, pue=1) == 35_064 / hours == 1.0
    # 1 kW at 10 cents, and half as much again for cooling.
    dear = owned_usd_per_gpu_hour(35_064, years=4, power_w=1000, usd_per_kwh=0.1, pue=1.5)
    assert dear == pytest.approx(1.15, rel=1e-12)
    usual = owned_defaults()
    assert (usual["years"], usual["pue"]) == (5, 1.56)
    # An eighth of a DGX H100: 10.2 kW, and about 300,000 dollars in 2023.
    ours = owned_usd_per_gpu_hour(300e3 / 8, power_w=10_200 / 8, **usual)
    recorded = next(each for each in prices() if (each.gpu, each.terms) == ("h100-sxm", "owned"))
    assert 0.5 < ours / recorded.usd_per_gpu_hour < 1.5
    for wrong in ({"capital_usd": -1.0}, {"years": 0.0}, {"pue": 0.5}):
        with pytest.raises(InputError, match="are no price"):
            owned_usd_per_gpu_hour(**{"capital_usd": 3e4, "years": 5.0} | wrong)


def test_the_reserve_is_the_median_of_the_text_logs() -> None:
    logs = catalogue.read("reserve.toml")["log"]
    written = [entry for entry in logs if not entry["vision"]]
    text = [e.get("both_gib", e.get("non_torch_gib", 0) + e.get("activation_gib", 0)) for e in written]
    assert len(logs) >= 8
    assert all(entry["source"] and entry["date"] for entry in logs)
    assert measured_reserve_bytes() / 2**30 == pytest.approx(float(np.median(text)), abs=0.01)


def test_number_formats_have_sources_and_fewer_bits_fewer_bytes() -> None:
    for kind in ("weights", "kv_cache"):
        sizes = [precisions(kind)[name].bytes_per_element for name in ("bf16", "fp8", "int4")]
        assert sizes == sorted(sizes, reverse=True)
        for entry in precisions(kind).values():
            assert entry.source
            assert entry.date
            bits = {"bf16": 16, "fp8": 8, "int4": 4, "nvfp4": 4, "mxfp4": 4}[entry.name]
            # An 8-bit scale for 16 numbers of 4 bits adds an eighth, the most there is.
            assert bits / 8 <= entry.bytes_per_element <= 1.125 * bits / 8
