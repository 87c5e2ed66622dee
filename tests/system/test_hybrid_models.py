"""Times of models of several kinds of layers: linear attention, state spaces, sparse attention, windows with own heads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from model_configs import CONFIGS
from moescale.hardware.gpus import find_gpu
from moescale.latency.kernels.tables import find_system
from moescale.latency.roofline import Roofline
from moescale.latency.silicon import Silicon
from moescale.models.architecture import Architecture
from moescale.models.hf_config import from_config

H100, H200 = find_gpu("h100-sxm"), find_gpu("h200-sxm")
QWEN3_NEXT, DEEPSEEK_V32 = (from_config(CONFIGS[name]) for name in ("QWEN3_NEXT", "DEEPSEEK_V32"))


def test_gates_take_kernels_of_their_own() -> None:
    """In the 12 layers that attend."""
    source, least_s = Silicon(H100, host_s=0.0), find_system("h100_sxm").elementwise_latency_s
    gated, plain = (source.decode_s(m, 4, 4, 1024) for m in (QWEN3_NEXT, replace(QWEN3_NEXT, attention_gate=0.0)))
    assert float(gated - plain) >= 12 * least_s


def test_arrays_of_hybrid_models_are_priced() -> None:
    many = replace(QWEN3_NEXT, n_linear_layers=np.array([36.0, 0.0]))
    seconds = Roofline(H100).decode_s(many, 8.0, 16.0, 1000.0)
    assert seconds.shape == (2,)
    assert np.all(np.isfinite(seconds))
    flash = from_config(CONFIGS["DEEPSEEK_V4_FLASH"])
    assert np.all(np.isfinite(Roofline(H200).decode_s(flash, 8.0, np.array([1.0, 64.0]), 1e5)))


def test_linear_layers_do_not_slow_down_as_the_context_grows() -> None:
    model = QWEN3_NEXT
    full = replace(model, n_linear_layers=0.0)
    roofline = Roofline(H100)

    def growth(shape: Architecture) -> float:
        short, long = (float(roofline.decode_s(shape, 8.0, 64.0, tokens)) for tokens in (1_000.0, 100_000.0))
        return long - short

    assert growth(model) == pytest.approx(growth(full) / 4, rel=1e-9)
    # A state read and written for each request: twice 64 times 75.5 MB on 8 GPUs.
    without = replace(model, linear_state_bytes=0.0)
    moved = 2 * 64 * 36 * 32 * 128 * 128 * 4 / 8
    took = float(roofline.decode_s(model, 8.0, 64.0, 1.0) - roofline.decode_s(without, 8.0, 64.0, 1.0))
    assert 1.0 < took / (moved / H100.memory_bandwidth_bytes_per_s) < 1.5


def test_sparse_attention_reads_what_it_chooses_and_all_keys_of_its_indexer() -> None:
    sparse = DEEPSEEK_V32
    dense = replace(sparse, index_topk=0.0, n_sparse_layers=0.0, n_index_layers=0.0)
    roofline = Roofline(H200, 1.0)
    short, long = (
        float(roofline.decode_s(sparse, 8.0, 64.0, n) / roofline.decode_s(dense, 8.0, 64.0, n)) for n in (1e3, 1e5)
    )
    assert 1.0 < short < 1.1  # the indexer comes on top
    assert long < 0.6


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize(
    ("config", "weight_bytes_each"),
    [
        ("QWEN3_NEXT", 2.0),
        ("NEMOTRON_3_NANO", 2.0),
        ("DEEPSEEK_V32", 1.0),
        ("GLM_5", 1.0),
        ("GEMMA_4_26B", 2.0),
        ("KIMI_LINEAR", 2.0),
    ],
)
def test_measured_kernels_and_the_roofline_agree_within_a_factor(
    engine: str, config: str, weight_bytes_each: float
) -> None:
    pytest.importorskip("aiconfigurator_core", reason="silicon needs aiconfigurator-core")
    model = from_config(CONFIGS[config])
    silicon, roofline = (
        Silicon(H200, engine, weight_bytes_per_param=weight_bytes_each),
        Roofline(H200, weight_bytes_each),
    )
    if engine == "sglang" and config == "KIMI_LINEAR":
        pytest.skip("no latent attention of SGLang was measured")
    for batch in (1.0, 64.0):
        ratio = float(silicon.decode_s(model, 8.0, batch, 4000.0) / roofline.decode_s(model, 8.0, batch, 4000.0))
        assert 0.5 < ratio < 2.5
    # TensorRT-LLM's prompts of sparse attention take three times as long as all pairs would.
    assert 0.4 < float(silicon.prefill_s(model, 8.0, 1.0, 8000.0) / roofline.prefill_s(model, 8.0, 1.0, 8000.0)) < 4.0
