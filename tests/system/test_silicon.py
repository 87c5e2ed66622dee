"""Latencies composed from measured kernels: against the package's own engine, against its rows, and where none exists."""

from __future__ import annotations

import json
import logging
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_configs import CONFIGS
from moescale import catalogue
from moescale.errors import InputError
from moescale.hardware.gpus import find_gpu
from moescale.latency.attention import attention_grid
from moescale.latency.card import QUANTISE, SCALE, gemm_grid
from moescale.latency.kernels.moe import formula_s, moe_kernels, moe_rows
from moescale.latency.kernels.tables import default_version, find_system, of_the_fastest
from moescale.latency.latent import module_grid
from moescale.latency.messages import all_reduce_grid
from moescale.latency.roofline import Roofline
from moescale.latency.silicon import Silicon, host_s
from moescale.models.architecture import Architecture, Quantised
from moescale.models.family import architecture, find_family
from moescale.models.hf_config import from_config
from moescale.models.published import shapes
from random_models import perfect
from script_modules import load_script

aiconfigurator_core = pytest.importorskip("aiconfigurator_core", reason="the kernel tables exist for Linux x86-64 only")

MIXTRAL, QWEN3_MOE, LLAMA = (
    CONFIGS[name] | {"head_dim": 128, "architectures": [architecture], "max_position_embeddings": 32768}
    for name, architecture in (
        ("MIXTRAL", "MixtralForCausalLM"), ("QWEN3_MOE", "Qwen3MoeForCausalLM"), ("LLAMA", "LlamaForCausalLM"),
    )
)  # fmt: skip
MODEL = from_config(MIXTRAL)
A100, H100 = find_gpu("a100-sxm-80gb"), find_gpu("h100-sxm")
PASSES = ((1, 128), (4, 1024), (16, 512), (64, 512), (256, 600))  # requests, tokens


def paper_model(n_params: float, experts: float) -> Architecture:
    return architecture(find_family("yun2024"), n_params, experts)


# Against the package's own engine.


def engine(folder: Path, config: dict[str, Any], system: str, gpus: int, backend: str, weights: str) -> Any:
    from aiconfigurator_core.sdk.engine import EngineHandle

    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    return EngineHandle.compile(
        str(folder), system, backend, tp_size=gpus, moe_tp_size=gpus, moe_ep_size=1, gemm_quant_mode=weights,
        moe_quant_mode="fp8_block" if weights == "fp8" else weights, kvcache_quant_mode="bfloat16", fmha_quant_mode="bfloat16",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("config", "gpu", "gpus", "backend", "weights"),
    [
        (MIXTRAL, "a100-sxm-80gb", 8, "vllm", "bfloat16"),
        (MIXTRAL, "h100-sxm", 2, "vllm", "fp8"),
        (LLAMA, "h100-sxm", 1, "vllm", "fp8"),
        (QWEN3_MOE, "a100-sxm-80gb", 4, "vllm", "bfloat16"),
        (QWEN3_MOE, "a100-sxm-80gb", 2, "sglang", "bfloat16"),
        (LLAMA, "a100-sxm-80gb", 4, "vllm", "bfloat16"),
        *(
            pytest.param(config, gpu, gpus, backend, "bfloat16", marks=pytest.mark.fuzz)
            for config, gpu, gpus, backend in (
                (MIXTRAL, "a100-sxm-80gb", 2, "vllm"),
                (MIXTRAL, "h100-sxm", 2, "vllm"),
                (MIXTRAL, "h100-sxm", 2, "trtllm"),
                (MIXTRAL, "l40s", 2, "vllm"),
                (LLAMA, "l40s", 8, "vllm"),
                (QWEN3_MOE, "a100-sxm-80gb", 1, "vllm"),
                (QWEN3_MOE, "h100-sxm", 4, "vllm"),
                (QWEN3_MOE, "h200-sxm", 1, "vllm"),
                (LLAMA, "h100-sxm", 1, "vllm"),
                (LLAMA, "b200-sxm", 4, "vllm"),
            )
        ),
    ],
)
def test_tabulated_models_take_what_the_packages_engine_says(
    config: dict[str, Any], gpu: str, gpus: int, backend: str, weights: str, tmp_path: Path
) -> None:
    card, model = replace(find_gpu(gpu), silicon_link_system=None), from_config(config)
    source = Silicon(card, backend, weight_bytes_per_param=2.0 if weights == "bfloat16" else 1.0, host_s=0.0)
    logging.getLogger("aiconfigurator_core").setLevel(logging.ERROR)
    # the package has these norms in prompts alone, where servers launch them in every pass
    plain = replace(model, qk_norm=False)
    judge = engine(tmp_path / "model", config, str(card.silicon_system), gpus, backend, weights)
    for batch, tokens in PASSES:
        decode_s = judge.predict_decode_latency(batch, tokens, 2) / 1e3  # two output tokens are one decoding step
        assert float(source.decode_s(plain, gpus, batch, tokens + 1)) == pytest.approx(decode_s, rel=0.05)
        if batch * tokens <= 16384:  # no server processes more in one pass
            prefill_s = judge.predict_prefill_latency(batch, tokens) / 1e3
            assert float(source.prefill_s(model, gpus, batch, tokens)) == pytest.approx(prefill_s, rel=0.05)


# Experts.


@pytest.mark.parametrize(
    ("system", "engine", "kind", "most"),
    [
        ("a100_sxm", "vllm", "bfloat16", 0.03), ("h100_sxm", "vllm", "bfloat16", 0.03),
        ("b200_sxm", "trtllm", "nvfp4", 0.04), ("b200_sxm", "vllm", "nvfp4", 0.04),
        ("b200_sxm", "vllm", "w4a8_mxfp4_mxfp8", 0.04), ("h200_sxm", "vllm", "w4a16_mxfp4", 0.04),
        ("h200_sxm", "vllm", "int4_wo", 0.04),
    ],
)  # fmt: skip
def test_measured_experts_are_answered_from_their_own_rows(system: str, engine: str, kind: str, most: float) -> None:
    table = (system, engine, default_version(system, engine), kind)
    rows = moe_rows(*table)
    off = np.abs(np.log(moe_kernels(*table).seconds(rows.shape) / rows.latency_s))
    assert np.median(off) < 0.003
    assert np.quantile(off, 0.95) < most


@pytest.mark.parametrize("gpu", ["h100-sxm", "h200-sxm"])
def test_sglang_serves_gpt_oss_on_hopper_with_the_kernels_of_vllms_table(gpu: str) -> None:
    """Without expert parallelism; with it the experts' weights are unpacked to 16 bits, and take longer than half of all."""
    sglang, vllm = (Silicon(find_gpu(gpu), name, 0.53125, weights="mxfp4") for name in ("sglang", "vllm"))
    split, spread = (sglang.decode_s(GPT_OSS, 2, 64, 1024, expert_parallel=ways) for ways in (1, 2))
    np.testing.assert_allclose(split, vllm.decode_s(GPT_OSS, 2, 64, 1024), rtol=0.05)
    assert spread > 1.5 * split


def test_of_alternative_kernels_the_fastest_counts_and_repeats_are_averaged() -> None:
    keys, sources = np.array([[2.0], [1.0], [1.0], [1.0], [2.0]]), np.array([0.0, 0.0, 0.0, 1.0, 1.0])
    places, seconds = of_the_fastest(keys, sources, np.array([5.0, 1.0, 4.0, 3.0, 7.0]))
    assert places.ravel().tolist() == [1.0, 2.0]
    np.testing.assert_allclose(seconds, [2.0, 5.0], rtol=1e-12)  # sqrt(1 x 4) < 3


@pytest.mark.fuzz  # 20 seconds each; every day the shipped formulas and what attention is predicted as
@pytest.mark.parametrize(
    ("system", "least", "median", "most"), [("a100_sxm", 0.031, 0.078, 0.117), ("h100_sxm", 0.024, 0.082, 0.141)]
)
def test_left_out_shapes_are_predicted_as_stated(system: str, least: float, median: float, most: float) -> None:
    table = (system, "vllm", default_version(system, "vllm"), "bfloat16")
    found = load_script("scripts/left_out_kernels.py").leave_one_shape_out(*table)
    errors = [shape.median_error for shape in found]
    assert [min(errors), float(np.median(errors)), max(errors)] == pytest.approx([least, median, most], abs=0.005)


# Whole models.


def test_layers_with_and_without_experts_are_counted_as_the_model_has_them() -> None:
    source = Silicon(H100, host_s=0.0)
    all_moe, none = replace(MODEL, n_moe_layers=32), replace(MODEL, n_moe_layers=0)
    half = replace(MODEL, n_moe_layers=16)
    for ask in (source.decode_s, source.prefill_s):
        between = (ask(all_moe, 2, 8, 500) + ask(none, 2, 8, 500)) / 2
        assert float(ask(half, 2, 8, 500)) == pytest.approx(float(between), rel=1e-9)


def test_a_slower_card_of_the_same_cores_is_slower_by_no_more_than_its_bandwidth() -> None:
    fast, slow = Silicon(A100, host_s=0.0), Silicon(find_gpu("a100-sxm-40gb"), host_s=0.0)
    decode = slow.decode_s(MODEL, 8, np.array([1, 16, 128]), 500) / fast.decode_s(MODEL, 8, np.array([1, 16, 128]), 500)
    assert np.all((decode > 1.1) & (decode <= 2039 / 1555 + 1e-9))
    # Arithmetic decides long prompts, and is the same on both.
    assert float(slow.prefill_s(MODEL, 8, 8, 2048) / fast.prefill_s(MODEL, 8, 8, 2048)) < 1.05


def test_cards_on_pcie_reduce_more_slowly() -> None:
    nvlink, pcie = Silicon(A100, host_s=0.0), Silicon(find_gpu("a100-pcie-80gb"), host_s=0.0)
    # The L40S server of the tables keeps 6% of its links at 8 GPUs, that of the RTX PRO 6000 37%.
    l40s = find_gpu("l40s")
    usual, collapsed = (Silicon(gpu, host_s=0.0) for gpu in (l40s, replace(l40s, silicon_link_system=None)))
    assert float(usual.prefill_s(MODEL, 8, 1, 2048)) < 0.4 * float(collapsed.prefill_s(MODEL, 8, 1, 2048))
    one = pcie.prefill_s(MODEL, 1, 1, 2048) / nvlink.prefill_s(MODEL, 1, 1, 2048)
    four = pcie.prefill_s(MODEL, 4, 1, 2048) / nvlink.prefill_s(MODEL, 4, 1, 2048)
    assert float(one) < 1.06 < float(four)


def test_fewer_bits_read_faster() -> None:
    wide, fp8, int4 = (Silicon(H100, weight_bytes_per_param=b, host_s=0.0) for b in (2.0, 1.0, 0.5))
    seconds = [float(source.decode_s(MODEL, 2, 16, 640)) for source in (wide, fp8, int4)]
    assert seconds == sorted(seconds, reverse=True)
    narrow_cache = Silicon(H100, kv_bytes_per_element=1.0, host_s=0.0)
    assert float(narrow_cache.decode_s(MODEL, 2, 64, 8192)) < float(wide.decode_s(MODEL, 2, 64, 8192))
    # No fp8 arithmetic: weights are read faster, and multiplied as before.
    wide, weight_only = Silicon(A100, host_s=0.0), Silicon(A100, weight_bytes_per_param=1.0, host_s=0.0)
    assert float(weight_only.decode_s(MODEL, 2, 16, 640)) < 0.7 * float(wide.decode_s(MODEL, 2, 16, 640))
    ratio = float(weight_only.prefill_s(MODEL, 2, 8, 1024) / wide.prefill_s(MODEL, 2, 8, 1024))
    assert ratio == pytest.approx(1.0, abs=0.05)


B200 = find_gpu("b200-sxm")
GPT_OSS, DEEPSEEK = shapes()["gpt-oss-120b"], shapes()["deepseek-v3"]
BATCHES = np.array([1.0, 16.0, 128.0])


def test_a_named_format_is_read_from_its_own_kernels() -> None:
    model = shapes()["llama-3.1-70b"]
    for backend in ("vllm", "trtllm", "sglang"):
        named, scaled = (Silicon(B200, backend, 0.5625, host_s=0.0, weights=name) for name in ("nvfp4", None))
        fp8 = Silicon(B200, backend, 1.0, host_s=0.0, weights="fp8")
        assert not named.unmeasured(model)
        # Products in fp4 against weights that are read as such and multiplied in bf16.
        assert float(named.prefill_s(model, 1, 8, 2048)) < 0.75 * float(scaled.prefill_s(model, 1, 8, 2048))
        assert float(named.prefill_s(model, 1, 8, 2048)) < float(fp8.prefill_s(model, 1, 8, 2048))
        assert np.all(fp8.decode_s(model, 1, BATCHES, 2048) > named.decode_s(model, 1, BATCHES, 2048))
    assert Silicon(H100, weights="bf16").decode_s(MODEL, 2, 16, 640) == Silicon(H100).decode_s(MODEL, 2, 16, 640)
    one, other = (Silicon(H100, "vllm", 1.0, weights=name) for name in ("fp8", None))
    assert one.decode_s(MODEL, 2, 16, 640) == other.decode_s(MODEL, 2, 16, 640)
    source, blocks = Silicon(find_gpu("h200-sxm"), weight_bytes_per_param=1.0), shapes()["qwen3-235b-a22b"]
    per_tensor = replace(blocks, quantised=replace(blocks.quantised, scale_per_tensor=True))
    assert source.decode_s(per_tensor, 8, 64, 2048) != source.decode_s(blocks, 8, 64, 2048)


@pytest.mark.parametrize(
    ("model", "gpu", "backend", "weights", "held"),
    [
        (GPT_OSS, "h200-sxm", "vllm", "mxfp4", 0.53125), (GPT_OSS, "b200-sxm", "trtllm", "mxfp4", 0.53125),
        (MODEL, "h100-sxm", "vllm", "fp8", 1.0), (DEEPSEEK, "b200-sxm", "trtllm", "nvfp4", 0.5625),
        (DEEPSEEK, "h200-sxm", "sglang", "fp8", 1.0),
    ],
)  # fmt: skip
def test_every_part_has_the_time_of_its_own_format(
    model: Architecture, gpu: str, backend: str, weights: str, held: float
) -> None:
    """Every part's time is linear in the share that is quantised, and 0 of it is bf16 to all digits."""
    source = Silicon(find_gpu(gpu), backend, held, host_s=0.0, weights=weights)
    wide = Silicon(find_gpu(gpu), backend, host_s=0.0)
    none = Quantised(**{part.name: 0.0 for part in fields(Quantised)})

    def seconds(quantised: Quantised) -> Any:
        held_so = replace(model, quantised=quantised)
        return np.stack([source.decode_s(held_so, 8, BATCHES, 2048.0), source.prefill_s(held_so, 8, BATCHES, 512.0)])

    plain = seconds(none)
    np.testing.assert_array_equal(plain[0], wide.decode_s(model, 8, BATCHES, 2048.0))
    np.testing.assert_array_equal(plain[1], wide.prefill_s(model, 8, BATCHES, 512.0))
    for part in ("attention", "dense_ffn", "shared_experts", "experts", "lm_head"):
        whole, third = (seconds(replace(none, **{part: share})) for share in (1.0, 1.0 / 3.0))
        np.testing.assert_allclose(third, (whole + 2.0 * plain) / 3.0, rtol=1e-9)


def test_published_gpt_oss_keeps_attention_in_bf16_and_parts_without_kernels_are_named() -> None:
    source = Silicon(find_gpu("h200-sxm"), "vllm", 0.53125, host_s=0.0, weights="mxfp4")
    assert GPT_OSS.quantised == shapes()["gpt-oss-20b"].quantised == Quantised(attention=0.0)
    narrow = replace(GPT_OSS, quantised=Quantised())
    assert np.all(source.decode_s(narrow, 1, BATCHES, 1024) < source.decode_s(GPT_OSS, 1, BATCHES, 1024))
    assert source.unmeasured(GPT_OSS) == []
    assert source.unmeasured(narrow) == ["matrix products"]

    def named(gpu: str, backend: str, weights: str, model: Architecture) -> list[str]:
        return Silicon(find_gpu(gpu), backend, 0.55, weights=weights).unmeasured(model)

    assert named("h100-sxm", "vllm", "int4", shapes()["llama-3.1-8b"]) == ["matrix products"]
    assert named("h200-sxm", "vllm", "int4", DEEPSEEK) == ["latent attention", "matrix products"]
    assert named("h100-sxm", "vllm", "nvfp4", MODEL) == ["matrix products", "experts"]
    assert named("b200-sxm", "trtllm", "nvfp4", DEEPSEEK) == []
    assert Silicon(H100).unmeasured(DEEPSEEK) == []


def test_stored_scales_save_the_kernels_that_look_for_them() -> None:
    table = ("b200_sxm", "trtllm", default_version("b200_sxm", "trtllm"), "fp8")
    m = np.array([1.0, 64.0, 1024.0])
    dynamic, static, fused = (
        gemm_grid(*table, without).seconds(m, 2048.0, 8192.0) for without in ((), (SCALE,), (SCALE, QUANTISE))
    )
    # The rows of the two kernels at these sizes: 8.21, 10.65 and 12.04 us, and 2.14, 2.14 and 6.91 us.
    np.testing.assert_allclose((dynamic - static) * 1e6, [8.21, 10.65, 12.04], rtol=0.01)
    np.testing.assert_allclose((static - fused) * 1e6, [2.14, 2.14, 6.91], rtol=0.01)


def test_decoding_latent_modules_hold_no_launches_of_the_host() -> None:
    def first_s(system: str, backend: str) -> float:
        version = default_version(system, backend)
        grid = module_grid(system, backend, version, "generation", ("", "bfloat16", "bfloat16"))
        return float(grid.seconds(16, 1, 128))

    for system in ("h100_sxm", "h200_sxm", "b200_sxm", "b300_sxm"):
        assert 0.8 < first_s(system, "vllm") / first_s(system, "trtllm") < 1.5


@pytest.mark.parametrize("gpu", ["h200-sxm", "b200-sxm"])
def test_latent_attention_is_put_together_where_its_modules_were_not_measured(gpu: str) -> None:
    parts, modules = (Silicon(find_gpu(gpu), backend, 1.0, host_s=0.0) for backend in ("sglang", "trtllm"))
    alone = replace(DEEPSEEK, n_moe_layers=0.0)
    for ask, tokens in ((Silicon.decode_s, 2048.0), (Silicon.prefill_s, 1024.0)):
        ratio = ask(parts, alone, 8, BATCHES, tokens) / ask(modules, alone, 8, BATCHES, tokens)
        assert np.all((ratio > 0.6) & (ratio < 1.7))


def test_a_mixed_pass_reads_weights_once() -> None:
    source = Silicon(H100)
    decode, prefill = source.decode_s(MODEL, 2, 64, 640), source.prefill_s(MODEL, 2, 2, 512)
    mixed = source.mixed_s(MODEL, 2, 64, 640, 2, 512)
    assert max(float(decode), float(prefill)) <= float(mixed) < float(decode + prefill)
    assert float(source.mixed_s(MODEL, 2, 64, 640, 0.001, 512)) == pytest.approx(float(decode), rel=0.05)


def test_local_attention_meets_its_window_only_and_a_measured_one_its_own_rows() -> None:
    source = Silicon(H100, host_s=0.0)
    local = replace(MODEL, n_window_layers=32, window_tokens=1024)  # measured with other head dimensions only
    assert float(source.decode_s(local, 2, 64, 32768)) == pytest.approx(float(source.decode_s(MODEL, 2, 64, 1024)))
    for ask in (source.decode_s, source.prefill_s):
        assert float(ask(local, 2, 4, 800)) == pytest.approx(float(ask(MODEL, 2, 4, 800)))
    prompts = 2.0 ** np.arange(11, 18)
    assert np.all(source.prefill_s(local, 2, 1, prompts) < source.prefill_s(MODEL, 2, 1, prompts))
    source, model = Silicon(find_gpu("h200-sxm"), host_s=0.0), shapes()["gpt-oss-20b"]
    full = replace(model, n_window_layers=0.0)
    table = attention_grid("h200_sxm", "vllm", "0.24.0", "generation", "bfloat16", 64.0, 128.0)
    rows = attention_grid("h200_sxm", "vllm", "0.24.0", "generation", "bfloat16", 64.0)
    batch = np.array([1.0, 64.0, 512.0])
    saved = 12 * (rows.seconds(8.0, 8.0, batch, 4096.0) - table.seconds(8.0, 8.0, batch, 4096.0))
    found = source.decode_s(full, 1, batch, 4096.0) - source.decode_s(model, 1, batch, 4096.0)
    np.testing.assert_allclose(found, saved, rtol=1e-6)
    # Priced as prompts of 128 tokens, launch by launch, the windows were dearer than the whole.
    prompts = np.array([500.0, 1000.0, 2000.0, 16384.0])
    assert np.all(source.prefill_s(model, 1, 1, prompts) < source.prefill_s(full, 1, 1, prompts))


def test_there_is_an_answer_where_latent_attention_was_measured_and_kernels_can_be_continued_to() -> None:
    model = replace(
        MODEL, d_model=7168, n_heads=128, n_kv_heads=128, head_dim=192, kv_lora_rank=512, q_lora_rank=1536,
        qk_rope_head_dim=64, v_head_dim=128, n_experts=256, top_k=8, d_expert=2048, d_shared_expert=2048, d_ffn=18432,
    )  # fmt: skip
    seconds = Silicon(H100).decode_s(model, 8, np.array([1.0, 64.0, 256.0]), 2000)
    assert np.all(np.isfinite(seconds))
    assert np.all(np.diff(seconds) > 0)
    assert np.all(np.isnan(Silicon(A100).decode_s(model, 8, np.array([1.0, 64.0]), 2000)))
    mixed = replace(model, kv_lora_rank=np.array([0.0, 512.0]))
    with pytest.raises(InputError, match="mixes latent"):
        Silicon(H100).decode_s(mixed, 8, 1, 100)
    source = Silicon(A100)
    assert np.isnan(source.decode_s(MODEL, 2, 1e9, 640))
    assert np.isfinite(source.decode_s(MODEL, 2, 10_000, 640))


def test_the_host_sets_the_pace_of_small_models() -> None:
    tiny = paper_model(5e7, 1.0)
    assert float(Silicon(H100).decode_s(tiny, 1, 1, 100)) == host_s()
    assert float(Silicon(H100, host_s=0.0).decode_s(tiny, 1, 1, 100)) < host_s()
    assert float(Silicon(H100, host_s=0.5).decode_s(MODEL, 2, 8, 640)) == 0.5


@pytest.mark.parametrize("backend", ["vllm", "sglang", "trtllm"])
def test_a_narrow_cache_makes_no_prompt_much_dearer(backend: str) -> None:
    # SGLang's only prompts with an fp8 cache have heads of 512 channels, eight times as slow as those of 128.
    model = shapes()["llama-3.1-8b"]
    wide, narrow = (Silicon(H100, backend, kv_bytes_per_element=b, host_s=0.0) for b in (2.0, 1.0))
    assert float(narrow.prefill_s(model, 1, 1, 28000)) < 1.05 * float(wide.prefill_s(model, 1, 1, 28000))
    assert float(narrow.decode_s(model, 1, 8, 28000)) < float(wide.decode_s(model, 1, 8, 28000))


@pytest.mark.parametrize(("system", "version"), [("a100_sxm", "0.14.0"), ("h100_sxm", "0.24.0")])
def test_shipped_formulas_are_what_a_fit_gives(system: str, version: str) -> None:
    table = (system, "vllm", version, "bfloat16")
    shipped, rows, measured_on = moe_kernels(*table).formula, moe_rows(*table), find_system(system)
    fit_formula = load_script("scripts/fit_moe_formulas.py").fit_formula
    two = [
        formula_s(formula, rows.shape, measured_on, "bfloat16")
        for formula in (shipped, fit_formula(rows, measured_on, "bfloat16"))
    ]
    np.testing.assert_allclose(two[0], two[1], rtol=1e-3)


def test_the_loop_over_experts_is_as_far_from_a_measured_server_at_every_batch() -> None:
    m = catalogue.read("claims.toml")["loop_measurement"]
    source = Silicon(find_gpu(m["gpu"]), moe_execution="all-experts")
    model, batch, context = (
        from_config(MIXTRAL), np.array(m["batch"], float), m["prompt_tokens"] + m["output_tokens"] / 2,
    )  # fmt: skip
    predicted_s = source.prefill_s(model, m["gpus"], batch, m["prompt_tokens"])
    predicted_s = predicted_s + (m["output_tokens"] - 1) * source.decode_s(model, m["gpus"], batch, context)
    share = predicted_s / np.array(m["all_experts_s"])
    assert np.all(share < 1.0)  # kernels alone cannot be slower than a server
    assert share.max() / share.min() < 1.25


@pytest.mark.parametrize("moe_execution", ["fused", "all-experts"])
@pytest.mark.parametrize("gpu", ["a100-sxm-40gb", "h100-sxm", "b200-sxm", "l40s", "l4", "h100-pcie"])
@pytest.mark.parametrize("weight_bytes", [2.0, 1.0])
def test_no_pass_is_faster_than_the_data_sheet_allows(gpu: str, weight_bytes: float, moe_execution: str) -> None:
    card, rng, n = find_gpu(gpu), np.random.default_rng(0), 4000
    model = paper_model(np.exp(rng.uniform(np.log(5e7), np.log(5e10), n)), 2.0 ** rng.integers(0, 7, n))
    gpus, batch = 2.0 ** rng.integers(0, 4, n), np.exp(rng.uniform(0, np.log(4096), n))
    tokens = np.exp(rng.uniform(np.log(32), np.log(8192), n))
    source = Silicon(card, weight_bytes_per_param=weight_bytes, host_s=0.0, moe_execution=moe_execution)
    limit = Roofline(card, weight_bytes, 2.0, perfect(), moe_execution)
    if moe_execution != "fused":  # a GPU an expert at most
        gpus = np.minimum(gpus, model.n_experts)
    assert np.all(source.decode_s(model, gpus, batch, tokens) >= limit.decode_s(model, gpus, batch, tokens))
    prompts = np.maximum(1.0, np.minimum(batch, 32768 / tokens))
    assert np.all(source.prefill_s(model, gpus, prompts, tokens) >= limit.prefill_s(model, gpus, prompts, tokens))


def test_norms_of_queries_and_keys_take_launches_unless_the_engine_fuses_them() -> None:
    qwen = shapes()["qwen3-32b"]
    plain = replace(qwen, qk_norm=False)
    for backend, launches in (("vllm", 8.8), ("trtllm", 0.0)):
        source = Silicon(H100, backend, host_s=0.0)
        each_s = find_system("h100_sxm").elementwise_latency_s
        for found, without in (
            (source.decode_s(qwen, 2, 8, 512), source.decode_s(plain, 2, 8, 512)),
            (source.prefill_s(qwen, 2, 1, 512), source.prefill_s(plain, 2, 1, 512)),
            (source.mixed_s(qwen, 2, 8, 512, 1, 512), source.mixed_s(plain, 2, 8, 512, 1, 512)),
        ):
            assert found - without == pytest.approx(64 * launches * each_s, rel=1e-9)
    # Those over all heads are summed between tensor-parallel GPUs.
    source, olmoe = Silicon(H100, host_s=0.0), shapes()["olmoe-1b-7b"]
    per_head = replace(olmoe, qk_norm_full_width=False)
    gpus = np.array([1.0, 2.0, 8.0])
    added = source.decode_s(olmoe, gpus, 16, 1024) - source.decode_s(per_head, gpus, 16, 1024)
    messages = all_reduce_grid("h100_sxm", "vllm", "0.24.0").seconds(gpus[1:], 32.0)  # two numbers a token
    assert added[0] == 0.0
    np.testing.assert_allclose(added[1:], 16 * messages, rtol=1e-9)


# Models of several kinds of layers: linear attention, state spaces, sparse attention, windows with own heads.

H200 = find_gpu("h200-sxm")
QWEN3_NEXT, DEEPSEEK_V32 = (from_config(CONFIGS[name]) for name in ("QWEN3_NEXT", "DEEPSEEK_V32"))


def test_gates_take_kernels_of_their_own() -> None:
    """In the 12 layers that attend."""
    source, least_s = Silicon(H100, host_s=0.0), find_system("h100_sxm").elementwise_latency_s
    gated, plain = (source.decode_s(m, 4, 4, 1024) for m in (QWEN3_NEXT, replace(QWEN3_NEXT, attention_gate=0.0)))
    assert float(gated - plain) >= 12 * least_s


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
        ("QWEN3_NEXT", 2.0), ("NEMOTRON_3_NANO", 2.0), ("DEEPSEEK_V32", 1.0), ("GLM_5", 1.0), ("GEMMA_4_26B", 2.0),
        ("KIMI_LINEAR", 2.0),
    ],
)  # fmt: skip
def test_measured_kernels_and_the_roofline_agree_within_a_factor(
    engine: str, config: str, weight_bytes_each: float
) -> None:
    model = from_config(CONFIGS[config])
    silicon = Silicon(H200, engine, weight_bytes_per_param=weight_bytes_each)
    roofline = Roofline(H200, weight_bytes_each)
    if engine == "sglang" and config == "KIMI_LINEAR":
        pytest.skip("no latent attention of SGLang was measured")
    for batch in (1.0, 64.0):
        ratio = float(silicon.decode_s(model, 8.0, batch, 4000.0) / roofline.decode_s(model, 8.0, batch, 4000.0))
        assert 0.5 < ratio < 2.5
    # TensorRT-LLM's prompts of sparse attention take three times as long as all pairs would.
    assert 0.4 < float(silicon.prefill_s(model, 8.0, 1.0, 8000.0) / roofline.prefill_s(model, 8.0, 1.0, 8000.0)) < 4.0
