"""A GPU by numbers, in its own file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command_line import LOWEST, run
from moescale.errors import InputError
from moescale.hardware.gpus import Gpu, find_gpu, load_gpu, read_gpu
from moescale.hardware.prices import usd_per_gpu_hour
from reference_data import ROOT

TPU = ROOT / "examples" / "gpus" / "tpu-v5e.toml"
NEEDED: dict[str, object] = {
    "name": "mine", "memory_gib": 96, "bandwidth_gb_per_s": 3e3, "bf16_tflops": 500.0, "link_gb_per_s": 100,
}  # fmt: skip


def write(folder: Path, **changes: object) -> Path:
    """A GPU file; a change to None leaves the field out."""
    entry = {key: value for key, value in {**NEEDED, **changes}.items() if value is not None}
    path = folder / "gpu.toml"
    path.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in entry.items()), encoding="utf-8")
    return path


def test_a_file_of_numbers_is_a_gpu(tmp_path: Path) -> None:
    gpu = read_gpu(write(tmp_path))
    assert gpu == Gpu(
        name="mine", memory_bytes=96 * 2.0**30, memory_bandwidth_bytes_per_s=3e12, bf16_flops_per_s=5e14,
        fp8_flops_per_s=None, interconnect_bytes_per_s=1e11, default_max_num_seqs=1024, silicon_system=None,
        source=str(tmp_path / "gpu.toml"), date="",
    )  # fmt: skip
    assert read_gpu(write(tmp_path, memory_gib=69.9)).default_max_num_seqs == 256
    full = read_gpu(
        write(tmp_path, fp8_tflops=1e3, max_num_seqs=7, usd_per_gpu_hour=2, silicon_system="h100_sxm", source="sheet")
    )
    assert (full.fp8_flops_per_s, full.default_max_num_seqs, full.usd_per_gpu_hour) == (1e15, 7, 2.0)
    assert (full.silicon_system, full.source) == ("h100_sxm", "sheet")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"memory_gib": None}, "memory_gib is missing; add memory_gib"),
        ({"memory_gb": 80}, "unknown key 'memory_gb'; nearest: memory_gib"),
        ({"memory_gib": 1e-4}, "memory_gib: 0.0001 is not at least 0.001"),
        ({"bf16_tflops": True}, "bf16_tflops: True is not a number"),
        ({"bandwidth_gb_per_s": 1e99}, "bandwidth_gb_per_s: 1e\\+99 is not at most"),
        ({"max_num_seqs": 1.5}, "max_num_seqs: 1.5 is not a whole number"),
        ({"usd_per_gpu_hour": 0}, "usd_per_gpu_hour: 0 is not at least"),
        ({"name": "a\n"}, "name: 'a\\\\n' is not a text"),
        ({"silicon_system": "h100"}, "unknown silicon_system 'h100'; nearest: h100_sxm"),
    ],
)
def test_a_bad_field_is_named_with_its_file(changes: dict[str, object], words: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=words) as caught:
        read_gpu(write(tmp_path, **changes))
    assert str(caught.value.where).startswith(str(tmp_path / "gpu.toml"))


def test_a_price_is_the_files_or_the_catalogues_or_asked_for(tmp_path: Path) -> None:
    assert usd_per_gpu_hour(read_gpu(write(tmp_path, usd_per_gpu_hour=1.5))) == 1.5
    assert usd_per_gpu_hour(find_gpu("h100-sxm")) == usd_per_gpu_hour(read_gpu(write(tmp_path, name="h100-sxm"))) == 3.9
    with pytest.raises(InputError, match="no price is stated for mine; pass --usd-per-gpu-hour"):
        usd_per_gpu_hour(read_gpu(write(tmp_path)))


def test_a_path_is_read_and_a_name_is_looked_up() -> None:
    assert load_gpu(str(TPU)).name == "tpu-v5e"
    assert load_gpu("H100_SXM") is find_gpu("h100-sxm")
    with pytest.raises(InputError, match=r"no such file; nearest: tpu-v5e\.toml"):
        load_gpu(str(TPU.with_name("tpu.toml")))
    with pytest.raises(InputError, match="unknown GPU 'tpu-v5e'"):
        load_gpu("tpu-v5e")


MODEL = ("--n-params", "1.5B", "--experts", 16, "--max-gpus", 2, "--json")


@pytest.mark.system
def test_cost_and_plan_serve_on_a_gpu_by_numbers() -> None:
    done = run("cost", *MODEL, "--gpu", TPU)
    answer = json.loads(done.out)
    assert (done.code, answer["latency_source"], answer["gpus"]) == (0, "roofline", 2)
    why, rests_on = done.err.splitlines()
    assert why == "warning: roofline latency, because there are no measured kernels for tpu-v5e"
    assert rests_on.endswith("no measurement of tpu-v5e was compared")
    # Twice the price, twice the cost.
    dear = json.loads(run("cost", *MODEL, "--gpu", TPU, "--usd-per-gpu-hour", 2.4).out)
    assert dear["usd_per_mtok"] == pytest.approx(2 * answer["usd_per_mtok"], rel=1e-12)
    refused = run("cost", *MODEL, "--gpu", TPU, "--latency", "silicon")
    assert (refused.code, refused.out) == (2, "")
    assert "no measured kernels for tpu-v5e" in refused.err
    planned = run(*LOWEST, "--gpu", TPU, "--json")
    assert planned.code == 0
    assert json.loads(planned.out)["gpu"] == "tpu-v5e"
