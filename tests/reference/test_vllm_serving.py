"""Predicted throughput of Mixtral-8x7B against real vLLM servers (172 measured runs, vLLM 0.19).

Stated accuracy: 512 prompt and 256 output tokens, 90% of the memory, at most 256 requests at a time, measured kernels:
the plateau within a factor of 1.5 of the highest measured throughput on 2 x H100 (1.14) and 2 x A100 (1.15; the
measured A100 is the PCIe card, the kernels are of the SXM one). Predictions are plateaus and lie above: the servers
ran bursts of about 500 requests. At the H100 default of max_num_seqs = 1024 memory limits the batch to 730, which such
a burst never reaches: 1.99. Nothing in the package was adjusted to these runs.
"""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest

from moescale.architecture import from_config
from moescale.hardware import find_gpu
from moescale.latency.roofline import Roofline
from moescale.latency.silicon import Silicon
from moescale.serving import Deployment, cost

MIXTRAL = {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 32000,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
MODEL = from_config(MIXTRAL)
STATED_FACTOR = 1.5


@pytest.fixture(scope="module")
def measured_tok_s() -> dict[tuple[str, int], float]:
    """Highest measured output tokens a second of vLLM in 16 bits by (hardware, GPUs)."""
    shared = os.environ.get("MOESCALE_SHARED")
    if not shared:
        pytest.skip("MOESCALE_SHARED is unset: the measured servers are not at hand")
    best: dict[tuple[str, int], float] = {}
    with (Path(shared) / "data" / "vllm_serving" / "master_results.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if "Mixtral-8x7B" in row["model"] and row["engine"] == "vllm" and row["precision"] == "float16":
                key = (row["hardware"], int(row["gpus"]))
                best[key] = max(best.get(key, 0.0), float(row["tps_output"]))
    return best


def predicted_tok_s(latency: Roofline | Silicon, gpus: int, max_num_seqs: int) -> float:
    deployment = Deployment(
        gpu=latency.gpu,
        usd_per_gpu_hour=1.0,
        prompt_tokens=512,
        output_tokens=256,
        max_num_seqs=max_num_seqs,
        memory_fraction=0.9,
    )
    throughput = cost(MODEL, latency, deployment, gpus=gpus).throughput_tok_s
    assert throughput is not None
    return throughput


def kernels(gpu: str) -> Silicon:
    pytest.importorskip("aiconfigurator_core", reason="the kernel tables exist for Linux x86-64 only")
    return Silicon(MIXTRAL, find_gpu(gpu))


@pytest.mark.parametrize(("hardware", "gpu"), [("H100", "h100-sxm"), ("A100_80GB_PCIe", "a100-sxm-80gb")])
def test_measured_kernels_predict_two_gpus(
    hardware: str, gpu: str, measured_tok_s: dict[tuple[str, int], float]
) -> None:
    ratio = predicted_tok_s(kernels(gpu), 2, 256) / measured_tok_s[hardware, 2]
    assert 1 / STATED_FACTOR <= ratio <= STATED_FACTOR


@pytest.mark.parametrize(
    ("hardware", "gpu", "gpus", "max_num_seqs", "stated_ratio"),
    [
        ("H100", "h100-sxm", 2, 256, 1.14),
        ("H100", "h100-sxm", 2, 1024, 1.99),
        ("A100_80GB_PCIe", "a100-sxm-80gb", 2, 256, 1.15),
        ("A100_80GB_PCIe", "a100-sxm-80gb", 4, 256, 1.43),  # NVLink kernels against a PCIe server
    ],
)
def test_the_stated_ratios_of_measured_kernels_hold(
    hardware: str,
    gpu: str,
    gpus: int,
    max_num_seqs: int,
    stated_ratio: float,
    measured_tok_s: dict[tuple[str, int], float],
) -> None:
    ratio = predicted_tok_s(kernels(gpu), gpus, max_num_seqs) / measured_tok_s[hardware, gpus]
    assert ratio == pytest.approx(stated_ratio, abs=0.006)


@pytest.mark.parametrize(
    ("hardware", "gpu", "gpus", "stated_ratio"),
    [
        ("H100", "h100-sxm", 2, 1.19),
        ("A100_80GB_PCIe", "a100-pcie-80gb", 2, 0.96),
        ("A100_80GB_PCIe", "a100-pcie-80gb", 4, 1.05),
        ("A100_80GB_PCIe", "a100-sxm-80gb", 4, 1.57),  # what NVLink would give on the same server
    ],
)
def test_the_stated_ratios_of_the_roofline_hold(
    hardware: str, gpu: str, gpus: int, stated_ratio: float, measured_tok_s: dict[tuple[str, int], float]
) -> None:
    ratio = predicted_tok_s(Roofline(find_gpu(gpu)), gpus, 256) / measured_tok_s[hardware, gpus]
    assert ratio == pytest.approx(stated_ratio, abs=0.006)


def test_two_a100_beat_four_per_dollar_as_measured(measured_tok_s: dict[tuple[str, int], float]) -> None:
    latency = Roofline(find_gpu("a100-pcie-80gb"))
    assert measured_tok_s["A100_80GB_PCIe", 4] < 2 * measured_tok_s["A100_80GB_PCIe", 2]
    assert predicted_tok_s(latency, 4, 256) < 2 * predicted_tok_s(latency, 2, 256)
