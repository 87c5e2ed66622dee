"""Models of several kinds of layers: linear attention, state spaces, sparse attention, windows with heads of their own."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_configs import CONFIGS
from moescale.errors import InputError
from moescale.hardware.gpus import find_gpu
from moescale.latency import Pass, attention
from moescale.latency.card import Asked, Card
from moescale.latency.kernels.tables import find_system
from moescale.latency.roofline import Roofline
from moescale.latency.silicon import Silicon
from moescale.models.architecture import Architecture, validate
from moescale.models.flops import decode_flops_per_token
from moescale.models.hf_config import from_config, read_config
from moescale.models.kv_cache import kv_bytes_per_request, kv_bytes_per_token
from moescale.models.operations import Operation, Product, operations
from moescale.models.parameters import count_parameters, weight_bytes, weight_bytes_per_gpu
from random_models import real_models

H100, H200 = find_gpu("h100-sxm"), find_gpu("h200-sxm")
QWEN3_NEXT = CONFIGS["QWEN3_NEXT"]
DEEPSEEK_V4_FLASH = CONFIGS["DEEPSEEK_V4_FLASH"]
DEEPSEEK_V4_PRO = CONFIGS["DEEPSEEK_V4_PRO"]
DEEPSEEK_V32 = CONFIGS["DEEPSEEK_V32"]
GLM_5 = CONFIGS["GLM_5"]
MINIMAX_M2 = CONFIGS["MINIMAX_M2"]
NEMOTRON_H_56B = CONFIGS["NEMOTRON_H_56B"]
NEMOTRON_3_NANO = CONFIGS["NEMOTRON_3_NANO"]
JAMBA = CONFIGS["JAMBA"]
GEMMA_4_26B = CONFIGS["GEMMA_4_26B"]
DBRX = CONFIGS["DBRX"]
KIMI_LINEAR = CONFIGS["KIMI_LINEAR"]


def test_a_linear_layer_holds_a_state_and_no_cache() -> None:
    model = from_config(QWEN3_NEXT)
    assert (model.n_layers, model.n_linear_layers) == (48, 36)
    cache = 12 * 2 * 2 * 256 * 2.0  # attention layers, keys and values, heads, channels, bf16
    assert float(kv_bytes_per_token(model)) == cache
    state = 36 * (32 * 128 * 128 * 4 + 3 * (2 * 16 * 128 + 32 * 128) * 2)  # fp32; three tokens of the convolution
    assert float(kv_bytes_per_request(model, 1000.0)) == 1000.0 * cache + state
    # Split over GPUs by heads; two key-value heads are replicated on four GPUs.
    assert float(kv_bytes_per_request(model, 1000.0, tensor_parallel=4.0)) == 1000.0 * cache / 2 + state / 4


def test_blocks_that_mix_tokens_are_layers() -> None:
    model = from_config(NEMOTRON_3_NANO)
    assert (model.n_layers, model.n_linear_layers, model.n_moe_layers) == (29, 23, 23)
    assert model.n_layers_without_ffn == 6
    states = 23 * (64 * 64 * 128 * 4 + 3 * (64 * 64 + 2 * 8 * 128) * 2)
    assert float(kv_bytes_per_request(model, 0.0)) == states
    assert float(kv_bytes_per_token(model)) == 6 * 2 * 2 * 128 * 2
    named = from_config(
        NEMOTRON_3_NANO | {"hybrid_override_pattern": None, "layers_block_type": _named(NEMOTRON_3_NANO)}
    )
    assert named == model


def _named(config: dict[str, Any]) -> list[str]:
    names = {"M": "mamba", "E": "moe", "*": "attention", "-": "mlp"}
    return [names[letter] for letter in config["hybrid_override_pattern"]]


def test_an_indexer_has_a_cache_of_its_own() -> None:
    model = from_config(DEEPSEEK_V32)
    assert float(kv_bytes_per_token(model)) == 61 * ((512 + 64) * 2 + 128 + 4)
    # From GLM-5.2 on three of four layers share the choice of the layer before.
    shared = from_config(GLM_5 | {"index_topk_freq": 4, "index_skip_topk_offset": 3})
    assert shared.n_index_layers == 21
    kinds = ["full"] * 3 + ["shared", "shared", "shared", "full"] * 18 + ["shared"] * 3
    assert from_config(GLM_5 | {"indexer_types": kinds}) == shared


def test_full_attention_of_gemma_4_has_wider_and_fewer_heads() -> None:
    model = from_config(GEMMA_4_26B)
    full, local = 5 * 2 * 2 * 512 * 2, 25 * 2 * 8 * 256 * 2
    assert float(kv_bytes_per_token(model)) == full + local
    assert float(kv_bytes_per_request(model, 10_000.0)) == 10_000 * full + 1024 * local


# Compressed attention. GiB of cache at 2^20 tokens with the indexers' keys in bf16, as the rest: vllm.ai/blog/deepseek-v4 and the
# sum that it explains (24 April 2026).


@pytest.mark.parametrize(("config", "gib"), [(DEEPSEEK_V4_FLASH, 6.72), (DEEPSEEK_V4_PRO, 9.62)])
def test_compressed_attention_has_the_published_cache(config: dict[str, Any], gib: float) -> None:
    model = from_config(config)
    assert kv_bytes_per_request(model, 2.0**20) == kv_bytes_per_request(model, 2.0**20, tensor_parallel=8)
    wider = float(model.n_compressed_layers) * 2**20 / 4 * (2 * 128 - 132)  # keys of 8 bits and a scale
    window = float(model.n_layers) * 128 * 512 * 2
    assert (float(kv_bytes_per_request(model, 2.0**20)) + wider - window) / 2**30 == pytest.approx(gib, abs=0.005)


def test_compressed_attention_takes_27_percent_of_the_flops_of_v32_at_a_million_tokens() -> None:
    """As the technical report says of DeepSeek-V4-Pro (section 1), in arithmetic of equal precision."""
    new, old = (float(decode_flops_per_token(from_config(c), 1e6)) for c in (DEEPSEEK_V4_PRO, DEEPSEEK_V32))
    assert new / old == pytest.approx(0.27, abs=0.01)


def test_the_entries_of_a_compressed_cache_are_fewer_and_no_more_than_the_chosen_ones_are_met() -> None:
    model = from_config(DEEPSEEK_V4_FLASH)
    far, further = (decode_flops_per_token(model, n) for n in (1e5, 1e5 + 128))
    # Heavily compressed layers meet one entry more, indexers 32, and nobody else any.
    assert further - far == pytest.approx(20 * 4 * 64 * 512 + 21 * 2 * 64 * 128 * 32, rel=1e-6)
    assert np.all(np.isfinite(Roofline(H200).decode_s(model, 8.0, np.array([1.0, 64.0]), 1e5)))


def test_routed_experts_in_fp4_beside_fp8_are_read() -> None:
    """DeepSeek-V4-Flash has 0.53 bytes a weight of its experts and one of the rest."""
    blocks = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    checkpoint = read_config(DEEPSEEK_V4_FLASH | {"expert_dtype": "fp4", "quantization_config": blocks})
    model, counted = checkpoint.architecture, count_parameters(checkpoint.architecture)
    assert checkpoint.weights.format == "mxfp4"
    assert model.quantised.experts == 1.0
    held = float(weight_bytes(model, checkpoint.weights.bytes_per_param))
    others = counted.total - counted.experts - counted.embedding
    assert held == pytest.approx(0.53125 * counted.experts + 1.0002 * others + 2 * counted.embedding, rel=1e-3)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (DEEPSEEK_V4_FLASH | {"compress_ratios": [4, 128]}, "compress_ratios"),
        (DEEPSEEK_V4_FLASH | {"compress_ratios": [8] * 44}, "compress_ratios"),
        ({"model_type": "nemotron-nas"}, "block_configs"),
        ({"model_type": "kimi_k3", "text_config": {"model_type": "kimi_linear"}}, "residual attention"),
        (KIMI_LINEAR | {"routed_expert_hidden_size": 512}, "routed_expert_hidden_size"),
        (GEMMA_4_26B | {"num_kv_shared_layers": 4}, "num_kv_shared_layers"),
        (NEMOTRON_3_NANO | {"hybrid_override_pattern": "MEX"}, "hybrid_override_pattern"),
        (NEMOTRON_3_NANO | {"hybrid_override_pattern": "MEEE"}, "hybrid_override_pattern"),
        (QWEN3_NEXT | {"layer_types": ["full_attention"]}, "layer_types"),
        (QWEN3_NEXT | {"linear_num_value_heads": 0}, "linear_num_value_heads"),
        (KIMI_LINEAR | {"linear_attn_config": 3}, "linear_attn_config"),
        (JAMBA | {"attn_layer_period": 0}, "attn_layer_period"),
        (DBRX | {"ffn_config": None}, "moe_num_experts"),
    ],
)
def test_what_has_no_term_is_refused_by_name(config: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        from_config(config)


@pytest.mark.system
@given(real_models(), st.integers(0, 3))
def test_a_split_model_has_the_parts_of_the_whole(model: Architecture, doublings: int) -> None:
    whole = weight_bytes(model)
    # Real published counts of parameters hold in every share.
    assert float(whole) == pytest.approx(2.0 * float(count_parameters(model).total), rel=1e-12)
    ways = 2.0**doublings
    split = weight_bytes_per_gpu(model, tensor_parallel=ways)
    assert float(whole) / ways <= float(split) * (1 + 1e-12)
    assert float(split) <= float(whole) * (1 + 1e-12)


def test_arrays_of_models_are_counted_one_by_one() -> None:
    one = from_config(QWEN3_NEXT)
    widths, linear = np.array([2048.0, 4096.0]), np.array([36.0, 0.0])
    many = replace(one, d_model=widths, n_linear_layers=linear)
    for i in range(2):
        alone = replace(one, d_model=float(widths[i]), n_linear_layers=float(linear[i]))
        assert float(count_parameters(many).total[i]) == float(count_parameters(alone).total)
        assert float(kv_bytes_per_request(many, 500.0)[i]) == float(kv_bytes_per_request(alone, 500.0))
    seconds = Roofline(H100).decode_s(many, 8.0, 16.0, 1000.0)
    assert seconds.shape == (2,)
    assert np.all(np.isfinite(seconds))


# Time.


def test_linear_layers_do_not_slow_down_as_the_context_grows() -> None:
    model = from_config(QWEN3_NEXT)
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


@pytest.mark.parametrize("gpus", [1, 4, 64])
def test_the_two_scalars_of_a_delta_nets_heads_are_a_product_of_their_own(gpus: int) -> None:
    """It stays whole where heads are split no more."""
    products = [op for op in operations(from_config(QWEN3_NEXT), gpus) if isinstance(op, Product)]
    states = [op for op in products if op.part == "states"]
    assert [op.times for op in states] == [36] * 3
    assert states[1].n == 2.0 * max(32 / gpus, 1.0)


@pytest.mark.parametrize("gpu", ["h100-sxm", "a100-sxm-80gb"])
def test_products_of_linear_layers_are_priced_once(gpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where kernels of their states were not measured, and the roofline answers for those."""
    asked: list[Operation] = []
    by_kernels, by_roofline = Card.products_s, Roofline.operation_s

    def products_s(card: Card, products: list[Asked], *others: Any) -> Any:
        asked.extend(op for op, _ in products)
        return by_kernels(card, products, *others)

    def operation_s(source: Roofline, op: Operation, a: Pass) -> Any:
        asked.append(op)
        return by_roofline(source, op, a)

    monkeypatch.setattr(Card, "products_s", products_s)
    monkeypatch.setattr(Roofline, "operation_s", operation_s)
    Silicon(find_gpu(gpu)).decode_s(from_config(QWEN3_NEXT), 1.0, 1.0, 1000.0)
    assert sum(isinstance(op, Product) and op.part == "states" for op in asked) == 3


@pytest.mark.system
def test_gates_take_kernels_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gates of attention's output in the 12 layers that attend, and a norm with a gate after each of the 36 linear ones."""
    model, least_s = from_config(QWEN3_NEXT), find_system("h100_sxm").elementwise_latency_s
    source = Silicon(H100, "sglang", host_s=0.0)

    def seconds(shape: Architecture) -> float:
        return float(source.decode_s(shape, 4.0, 4.0, 1024.0))

    assert seconds(model) - seconds(replace(model, attention_gate=0.0)) >= 12 * least_s
    whole = seconds(model)
    monkeypatch.setattr(attention, "GATED_NORMS", ())
    assert whole - seconds(model) == pytest.approx(36 * least_s, rel=0.01)  # 4 tokens move 24 KB on each GPU


def test_sparse_attention_reads_what_it_chooses_and_all_keys_of_its_indexer() -> None:
    sparse = from_config(DEEPSEEK_V32)
    dense = replace(sparse, index_topk=0.0, n_sparse_layers=0.0, n_index_layers=0.0)
    roofline = Roofline(H200, 1.0)
    short, long = (
        float(roofline.decode_s(sparse, 8.0, 64.0, n) / roofline.decode_s(dense, 8.0, 64.0, n)) for n in (1e3, 1e5)
    )
    assert 1.0 < short < 1.1  # the indexer comes on top
    assert long < 0.6


@pytest.mark.system
@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize(
    ("config", "weight_bytes_each"),
    [
        (QWEN3_NEXT, 2.0),
        (NEMOTRON_3_NANO, 2.0),
        (DEEPSEEK_V32, 1.0),
        (GLM_5, 1.0),
        (GEMMA_4_26B, 2.0),
        (KIMI_LINEAR, 2.0),
    ],
    ids=["qwen3-next", "nemotron-3-nano", "deepseek-v3.2", "glm-5", "gemma-4-26b", "kimi-linear"],
)
def test_measured_kernels_and_the_roofline_agree_within_a_factor(
    engine: str, config: dict[str, Any], weight_bytes_each: float
) -> None:
    pytest.importorskip("aiconfigurator_core", reason="silicon needs aiconfigurator-core")
    model = from_config(config)
    silicon, roofline = (
        Silicon(H200, engine, weight_bytes_per_param=weight_bytes_each),
        Roofline(H200, weight_bytes_each),
    )
    if engine == "sglang" and config is KIMI_LINEAR:
        pytest.skip("no latent attention of SGLang was measured")
    for batch in (1.0, 64.0):
        ratio = float(silicon.decode_s(model, 8.0, batch, 4000.0) / roofline.decode_s(model, 8.0, batch, 4000.0))
        assert 0.5 < ratio < 2.5
    # TensorRT-LLM's prompts of sparse attention take three times as long as all pairs would.
    assert 0.4 < float(silicon.prefill_s(model, 8.0, 1.0, 8000.0) / roofline.prefill_s(model, 8.0, 1.0, 8000.0)) < 4.0


# What the kernel package ships, and transformers.


@pytest.mark.system
def test_the_kernel_packages_configs_are_read_or_refused_by_name() -> None:
    package = pytest.importorskip("aiconfigurator_core", reason="the configs are aiconfigurator-core's")
    refused: Counter[str] = Counter()
    read = 0
    for path in sorted((Path(package.__file__).parent / "model_configs").glob("*_config.json")):
        if path.name.endswith("_hf_quant_config.json"):
            continue
        try:
            validate(read_config(path).architecture)
            read += 1
        except InputError as error:
            refused[json.loads(path.read_text(encoding="utf-8"))["model_type"]] += "no term for" in str(error)
    assert all(refused.values())
    assert set(refused) <= {"kimi_k3", "nemotron-nas"}
    assert read >= 81


SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 512,
}


WIDTH = {"moe_intermediate_size": 48}
WIDTHS = {"moe_intermediate_size": 48, "shared_expert_intermediate_size": 32}
GRANITE: dict[str, Any] = {
    "model_type": "granitemoehybrid",
    "layer_types": ["linear_attention", "full_attention"] * 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "mamba_n_heads": 8,
    **SMALL,
}


@pytest.mark.engine
@pytest.mark.parametrize(
    "config",
    [
        QWEN3_NEXT,
        QWEN3_NEXT | {"mlp_only_layers": [1], "decoder_sparse_step": 2},
        {"model_type": "qwen3_5_text", "tie_word_embeddings": True} | SMALL,
        {"model_type": "qwen3_5_moe_text", "num_experts": 4, "num_experts_per_tok": 2} | SMALL | WIDTHS,
        DEEPSEEK_V32,
        GLM_5,
        GLM_5 | {"index_topk_freq": 4, "index_skip_topk_offset": 3},
        MINIMAX_M2,
        {"model_type": "minimax_m3_vl_text", "num_local_experts": 4, "num_experts_per_tok": 2} | SMALL,
        NEMOTRON_H_56B,
        NEMOTRON_3_NANO,
        NEMOTRON_3_NANO | {"moe_latent_size": 512},
        JAMBA,
        KIMI_LINEAR,
        GEMMA_4_26B,
        {"model_type": "gemma2"} | SMALL,
        {"model_type": "gemma3_text"} | SMALL,
        {"model_type": "mimo_v2_flash", "n_routed_experts": 4, "num_experts_per_tok": 2} | SMALL | WIDTH,
        {"model_type": "hunyuan_v1_moe", "num_experts": 4, "moe_topk": 2} | SMALL,
        {"model_type": "ernie4_5_moe", "moe_num_experts": 4, "moe_k": 2} | SMALL | WIDTH,
        {"model_type": "granitemoe", "num_local_experts": 4, "num_experts_per_tok": 2} | SMALL,
        GRANITE,
        {"model_type": "olmo2"} | SMALL,
        {"model_type": "olmo3"} | SMALL,
    ],
    ids=lambda config: f"{config['model_type']}-{config['hidden_size']}",
)
def test_counts_equal_those_of_transformers_exactly(config: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    settings = {key: value for key, value in config.items() if key != "model_type"}
    settings = {key: value for key, value in settings.items() if value is not None or key == "q_lora_rank"}
    built = transformers.AutoConfig.for_model(config["model_type"], **settings)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(built)
    weights = dict(model.named_parameters())
    weights |= {name: buffer for name, buffer in model.named_buffers() if name.endswith("e_score_correction_bias")}
    counted = count_parameters(from_config(config))
    assert int(counted.total) == sum(weight.numel() for weight in weights.values())
    assert int(counted.experts) == sum(weight.numel() for name, weight in weights.items() if ".experts." in name)
