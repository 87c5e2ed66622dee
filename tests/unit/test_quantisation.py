"""The format of a checkpoint's weights, from its config to the bytes in memory and the answer of `cost`."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_architecture import DEEPSEEK_V3, EVERY_FAMILY, GPT_OSS, LLAMA, MAVERICK, MIXTRAL, QWEN3_MOE, SCOUT

from command_line import answer_of, run
from model_configs import CONFIGS
from moescale.errors import InputError
from moescale.models.architecture import Architecture, Quantised
from moescale.models.hf_config import from_config, read_config
from moescale.models.parameters import count_parameters, weight_bytes_per_gpu
from moescale.models.published import shapes
from moescale.models.quantisation import with_usual_shares

FP8: dict[str, Any] = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
KEPT = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
MXFP4: dict[str, Any] = {"quant_method": "mxfp4", "modules_to_not_convert": KEPT}
NVFP4: dict[str, Any] = {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}
GPT_OSS_120B = GPT_OSS | {"num_hidden_layers": 36, "num_local_experts": 128, "layer_types": None}


def of_linear(bits: int, kind: str, strategy: str, **more: Any) -> dict[str, Any]:
    """A group of compressed-tensors for all linear layers."""
    return {"targets": ["Linear"], "weights": {"num_bits": bits, "type": kind, "strategy": strategy, **more}}


INT4_GROUP, FP8_GROUP = of_linear(4, "int", "group", group_size=32, symmetric=True), of_linear(8, "float", "channel")
NVFP4_GROUP = of_linear(4, "float", "tensor_group", group_size=16)


def compressed(*groups: dict[str, Any], **more: Any) -> dict[str, Any]:
    numbered = {f"group_{number}": group for number, group in enumerate(groups)}
    return {"quant_method": "compressed-tensors", "config_groups": numbered} | more


def quantised(config: dict[str, Any], how: Any) -> dict[str, Any]:
    return config | {"quantization_config": how}


def bytes_of(config: dict[str, Any]) -> float:
    found = read_config(config)
    return float(weight_bytes_per_gpu(found.architecture, found.weights.bytes_per_param))


def whole(model: Architecture) -> dict[str, float]:
    """Parameters of the parts that may be quantised, biases aside."""
    bare = replace(model, attention_sinks=False, expert_bias=False, qkv_bias=False, attention_output_bias=False)
    counted = count_parameters(bare)
    return {"attention": float(counted.attention), "experts": float(counted.experts), "all": float(counted.total)}


@pytest.mark.parametrize(
    ("config", "published", "off"),
    [
        # gpt-oss model card (arXiv 2508.10925, August 2025), table 1: half of the last digit; the larger in tests/reference.
        (quantised(GPT_OSS, MXFP4), 12.8 * 2**30, 0.05 / 12.8),
        # vLLM's log of Qwen3-30B-A3B-Instruct-2507-FP8 on one GPU (18 March 2026): "Model loading took 29.0435 GiB".
        (quantised(QWEN3_MOE, FP8), 29.0435 * 2**30, 1e-3),
        # vLLM's documentation of fp8 (10 June 2024), Meta-Llama-3-8B-Instruct-FP8: 8.4596 "GB", which are GiB.
        (quantised(LLAMA, {"quant_method": "fp8", "ignored_layers": ["lm_head"]}), 8.4596 * 2**30, 1e-3),
    ],
    ids=["gpt-oss-20b", "Qwen3-30B-A3B-FP8", "Llama-3-8B-FP8"],
)
def test_published_sizes(config: dict[str, Any], published: float, off: float) -> None:
    assert bytes_of(config) == pytest.approx(published, rel=off)


def test_the_files_of_deepseek_v3() -> None:
    # The safetensors of deepseek-ai/DeepSeek-V3 (December 2024) have 688,586,727,753 bytes: besides the 671B a further
    # layer, both tables once more, and a bf16 matrix from twice the width to the width (README_WEIGHTS.md).
    found = read_config(quantised(DEEPSEEK_V3, FP8))
    with_mtp = replace(found.architecture, n_layers=62, n_moe_layers=59, vocab_size=2 * 129280)
    size = float(weight_bytes_per_gpu(with_mtp, found.weights.bytes_per_param)) + 2 * 2 * 7168 * 7168
    assert size == pytest.approx(688_586_727_753, rel=1e-4)


@pytest.mark.parametrize(
    ("how", "name", "held"),
    [
        (FP8, "fp8", 1 + 4 / 128**2),
        ({"quant_method": "fp8", "activation_scheme": "static"}, "fp8", 1.0),
        ({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, "fp8", 1.0),
        (compressed(FP8_GROUP, ignore=["lm_head"]), "fp8", 1.0),
        (compressed(INT4_GROUP, ignore=["lm_head"]), "int4", (4 + 16 / 32) / 8),
        (compressed(NVFP4_GROUP, ignore=["lm_head"]), "nvfp4", 0.5625),
        (compressed(FP8_GROUP | {"weights": {"num_bits": 8, "type": "int"}}, ignore=["lm_head"]), "int8", 1.0),
        (NVFP4 | {"ignore": ["lm_head"]}, "nvfp4", 0.5625),
        ({"producer": {"name": "modelopt"}, "quant_algo": "FP8", "ignore": ["lm_head"]}, "fp8", 1.0),
        ({"quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}, "fp8", 1.0),
        ({"quantization": {"quant_algo": "W4A16_AWQ", "group_size": 128}}, "int4", (4 + 16 / 128) / 8),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True}, "int4", (4 + 20 / 128) / 8),
        ({"quant_method": "gptq", "bits": 4, "group_size": 100}, "int4", (4 + 20 / 100) / 8),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, "int8", 1.0),
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}, "int4", (4 + 20 / 128) / 8),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 64, "zero_point": False}, "int4", (4 + 16 / 64) / 8),
    ],
)
def test_formats(how: dict[str, Any], name: str, held: float) -> None:
    found = read_config(quantised(LLAMA, how))
    assert (found.weights.format, found.weights.bytes_per_param) == (name, pytest.approx(held, rel=1e-12))


def test_routed_experts_in_fp4_beside_fp8_are_read() -> None:
    """DeepSeek-V4-Flash has 0.53 bytes a weight of its experts and one of the rest."""
    blocks = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    checkpoint = read_config(CONFIGS["DEEPSEEK_V4_FLASH"] | {"expert_dtype": "fp4", "quantization_config": blocks})
    model, counted = checkpoint.architecture, count_parameters(checkpoint.architecture)
    assert checkpoint.weights.format == "mxfp4"
    assert model.quantised.experts == 1.0
    held = float(weight_bytes_per_gpu(model, checkpoint.weights.bytes_per_param))
    others = counted.total - counted.experts - counted.embedding
    assert held == pytest.approx(0.53125 * counted.experts + 1.0002 * others + 2 * counted.embedding, rel=1e-3)


ALL_LAYERS = [f"model.layers.{i}.self_attn.{name}_proj" for i in range(32) for name in "qkvo"]


@pytest.mark.parametrize(
    "listed",
    [
        ["lm_head", "self_attn"],
        ["lm_head", "model.layers.*.self_attn"],
        ["lm_head", "*self_attn*"],
        ["lm_head", "re:.*self_attn.*"],
        ["lm_head", *ALL_LAYERS],
        ["lm_head", *(f"model.layers.{i}.self_attn*" for i in range(32))],
        ["lm_head", *(f"language_model.model.layers.{i}.self_attn" for i in range(32))],
        ["lm_head", "re:.*[qkvo]_proj$"],
    ],
)
def test_what_is_left_out_stays_in_16_bits_however_it_is_written(listed: list[str]) -> None:
    in_blocks = FP8 | {"modules_to_not_convert": listed}
    for how, whole_scale in ((compressed(FP8_GROUP, ignore=listed), True), (in_blocks, False)):
        found = read_config(quantised(MIXTRAL, how))
        assert found.architecture.quantised == Quantised(attention=0.0, scale_per_tensor=whole_scale)
        params, held = whole(found.architecture), found.weights.bytes_per_param
        expected = held * params["experts"] + 2 * (params["all"] - params["experts"])
        assert weight_bytes_per_gpu(found.architecture, held) == pytest.approx(expected, rel=1e-12)


def test_a_list_may_name_some_layers_and_some_matrices() -> None:
    # fbgemm_fp8 of Llama-3.1-405B lists attention of every layer, and the FFNs of the first and the last.
    listed = [f"model.layers.{i}.mlp.{name}_proj" for i in (0, 31) for name in ("gate", "up", "down")] + ALL_LAYERS
    how = {"quant_method": "fbgemm_fp8", "modules_to_not_convert": listed}
    assert read_config(quantised(LLAMA, how)).architecture.quantised == Quantised(
        attention=0.0, dense_ffn=30 / 32, scale_per_tensor=True
    )
    # Layer 1 is not layer 10, a gate is not a gate_proj, and a norm no matrix.
    how = FP8 | {"modules_to_not_convert": ["model.layers.1", "mlp.gate", "gate", "model.layers.2.input_layernorm"]}
    found = read_config(quantised(QWEN3_MOE, how)).architecture.quantised
    assert (found.attention, found.experts) == (pytest.approx(47 / 48), pytest.approx(47 / 48))
    # NVIDIA's DeepSeek-V3.1-NVFP4: of attention the output projection alone; its further layer is none of the model.
    listed = [f"model.layers.{i}.self_attn.{n}" for i in range(61) for n in ("q_a_proj", "q_b_proj", "kv_b_proj")]
    listed += [f"model.layers.{i}.self_attn.kv_a_proj_with_mqa" for i in range(61)] + ["lm_head", "model.layers.61*"]
    found = read_config(quantised(DEEPSEEK_V3, NVFP4 | {"exclude_modules": listed})).architecture
    output = 128 * 128 * 7168
    rest = 7168 * 1536 + 1536 * 128 * 192 + 7168 * 576 + 512 * 128 * 256
    assert found.quantised.attention == pytest.approx(output / (output + rest), rel=1e-12)
    assert replace(found.quantised, attention=1.0) == Quantised()


def test_dense_layers_and_layers_with_experts_are_told_apart() -> None:
    first = FP8 | {"modules_to_not_convert": ["model.layers.0", "model.layers.1"]}
    found = read_config(quantised(DEEPSEEK_V3, first)).architecture.quantised  # the first three of 61 are dense
    assert (found.dense_ffn, found.experts, found.shared_experts) == (pytest.approx(1 / 3), 1.0, 1.0)
    assert found.attention == pytest.approx(59 / 61)
    text = quantised(MAVERICK["text_config"], FP8 | {"modules_to_not_convert": ["feed_forward.shared_expert"]})
    assert read_config(MAVERICK | {"text_config": text}).architecture.quantised == Quantised(shared_experts=0.0)
    every_other = FP8 | {"modules_to_not_convert": [f"layers.{i}.mlp" for i in range(1, 48, 2)]}
    sparse = quantised(QWEN3_MOE | {"decoder_sparse_step": 2}, every_other)
    assert read_config(sparse).architecture.quantised == Quantised(experts=0.0)
    # Jamba's layers 1, 3, 5 .. hold experts, and all but 4, 12, 20, 28 a state.
    jamba = read_config(quantised(CONFIGS["JAMBA"], FP8 | {"modules_to_not_convert": ["layers.1", "layers.4"]}))
    found = jamba.architecture.quantised
    assert (found.dense_ffn, found.experts) == (pytest.approx(15 / 16), pytest.approx(15 / 16))


def test_the_output_projection_is_quantised_where_a_config_takes_it() -> None:
    for how, share in (
        (compressed(INT4_GROUP), 1.0),
        (compressed(INT4_GROUP, ignore=["lm_head"]), 0.0),
        ({"quant_method": "gptq", "bits": 4, "lm_head": True}, 1.0),
        ({"quant_method": "gptq", "bits": 4, "lm_head": False}, 0.0),
        (FP8, 0.0),
    ):
        found = read_config(quantised(LLAMA, how))
        assert found.architecture.quantised == Quantised(lm_head=share)
        tables = 2 * 128256 * 4096
        saved = 2 * float(count_parameters(found.architecture).total) - bytes_of(quantised(LLAMA, how))
        matrices = whole(found.architecture)["all"] - tables - 65 * 4096 + share * tables / 2
        assert saved == pytest.approx((2 - found.weights.bytes_per_param) * matrices, rel=1e-12)


def test_two_formats_have_the_bytes_of_both() -> None:
    attention = {"targets": ["re:.*self_attn.*"]} | {"weights": FP8_GROUP["weights"]}
    mixed = compressed(attention, NVFP4_GROUP, ignore=["lm_head"])
    layers = {f"model.layers.{i}": 0 for i in range(32)}
    listed = {f"{layer}.self_attn": {"quant_algo": "FP8"} for layer in layers} | {
        f"{layer}.block_sparse_moe.experts": {"quant_algo": "NVFP4", "group_size": 16} for layer in layers
    }
    modelopt = {"quant_algo": "MIXED_PRECISION", "quantized_layers": listed}
    for how in (mixed, modelopt):
        config = quantised(MIXTRAL, how)
        found = read_config(config)
        assert found.weights.format == "nvfp4"
        params = whole(found.architecture)
        rest = params["all"] - params["experts"] - params["attention"]
        expected = 0.5625 * params["experts"] + params["attention"] + 2 * rest
        assert bytes_of(config) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    "how",
    [
        *("fp8", ["fp8"], {}, {"quant_method": "aqlm"}, {"quant_method": None}, {"quant_method": ["fp8"]}),
        *(FP8 | {"weight_block_size": size} for size in ([0, 128], "128")),
        *(FP8 | {"modules_to_not_convert": names} for names in ("lm_head", [1])),
        *(FP8 | {"ignore": [f"re:{regex}"]} for regex in ("(a+)+$", ".*.*.*.*.*x", "[")),
        {"quant_method": "gptq", "bits": 99},
        *(compressed(), compressed(FP8_GROUP | {"targets": ["Conv2d"]})),
        compressed({"targets": ["Linear"], "weights": {"num_bits": 4, "type": "float", "group_size": 48}}),
        *({"quant_algo": "MIXED_PRECISION", "quantized_layers": {}}, {"quant_algo": "W2A2"}),
    ],
)
def test_what_is_not_understood_is_said_not_guessed(how: Any) -> None:
    weights = read_config(quantised(MIXTRAL, how)).weights
    assert (weights.format, weights.bytes_per_param) == (None, 2.0)


def test_nvfp4_leaves_latent_attention_in_bf16_unless_a_config_says_more() -> None:
    plain = shapes()["deepseek-v3"]
    found = with_usual_shares(plain, "nvfp4")
    assert found.quantised == Quantised(attention=0.0)
    stated = replace(plain, quantised=Quantised(attention=0.5))
    assert with_usual_shares(stated, "nvfp4") is stated
    assert with_usual_shares(plain, "fp8") is plain
    dense = shapes()["llama-3.1-8b"]
    assert with_usual_shares(dense, "nvfp4") is dense


def shares() -> st.SearchStrategy[Quantised]:
    share = st.floats(0.0, 1.0)
    return st.builds(Quantised, **{field.name: share for field in fields(Quantised)})


@pytest.mark.system
@given(st.sampled_from(sorted(shapes())), shares(), st.sampled_from([0.5, 1.0, 2.0]), st.sampled_from([1, 2, 8]))
def test_bytes_lie_between_nothing_quantised_and_all_of_it(name: str, taken: Quantised, held: float, gpus: int) -> None:
    def bytes_with(quantised: Quantised) -> float:
        model = replace(shapes()[name], quantised=quantised)
        return float(weight_bytes_per_gpu(model, held, gpus))

    zero = Quantised(**{field.name: 0.0 for field in fields(Quantised)})
    one = Quantised(**{field.name: 1.0 for field in fields(Quantised)})
    assert bytes_with(one) * (1 - 1e-12) <= bytes_with(taken) <= bytes_with(zero) * (1 + 1e-12)
    assert bytes_with(zero) == pytest.approx(float(weight_bytes_per_gpu(shapes()[name], 2.0, gpus)), rel=1e-12)


def test_the_dtype_of_what_is_not_quantised() -> None:
    for config, text in (
        (LLAMA, "no dtype"),
        (LLAMA | {"torch_dtype": "bfloat16"}, "torch_dtype bfloat16"),
        (LLAMA | {"dtype": "torch.float16"}, "dtype float16"),
    ):
        weights = read_config(config).weights
        assert (weights.format, weights.bytes_per_param, weights.remarks) == ("bf16", 2.0, ())
        assert text in weights.stated
    for config in (LLAMA | {"torch_dtype": "float32"}, quantised(LLAMA | {"dtype": "float32"}, FP8)):
        (remark,) = read_config(config).weights.remarks
        assert "float32" in remark
        assert "16 bits" in remark
    (remark,) = read_config(LLAMA | {"torch_dtype": ["float8"]}).weights.remarks
    assert "['float8']" in remark


def written(folder: Path, config: dict[str, Any], name: str = "config.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(config), encoding="utf-8")
    return path


def test_cost_prices_the_checkpoint_in_its_own_format(tmp_path: Path) -> None:
    path = written(tmp_path, quantised(GPT_OSS_120B, MXFP4))
    ask = ("cost", "--config", path, "--gpu", "h100-sxm", "--latency", "roofline")
    own = answer_of(*ask)
    assert own["weights"]["format"] == "mxfp4"
    assert own["weights"]["bytes_per_param"] == 0.53125
    assert "quantization_config mxfp4" in own["weights"]["source"]
    assert own["weight_bytes"] / 2**30 == pytest.approx(60.8, abs=0.05)
    wide = run(*ask, "--weights", "bf16", "--json")
    (warning,) = wide.err.splitlines()
    assert "mxfp4" in warning
    assert "--weights bf16" in warning
    answer = json.loads(wide.out)
    assert answer["weights"] == {"format": "bf16", "bytes_per_param": 2.0, "source": "--weights", "checkpoint": "mxfp4"}
    assert answer["weight_bytes"] / 2**30 == pytest.approx(217.6, abs=0.1)
    assert own["usd_per_mtok"] < answer["usd_per_mtok"]
    named = run(*ask, "--weights", "mxfp4", "--json")
    assert named.err == ""
    assert json.loads(named.out)["usd_per_mtok"] == own["usd_per_mtok"]
    assert "weights 60.8 GiB in mxfp4" in run(*ask).out


@pytest.mark.system
def test_fp8_weights_of_a_checkpoint_take_fp8_kernels(tmp_path: Path) -> None:
    pytest.importorskip("aiconfigurator_core", reason="silicon needs aiconfigurator-core")
    by_checkpoint = written(tmp_path, quantised(QWEN3_MOE, FP8))
    bare = written(tmp_path, QWEN3_MOE, "bare.json")
    ask = ("--gpu", "h100-sxm", "--gpus", 1, "--latency", "silicon")
    own = answer_of("cost", "--config", by_checkpoint, *ask)
    asked = answer_of("cost", "--config", bare, *ask, "--weights", "fp8")
    assert own["decode_s"] == pytest.approx(asked["decode_s"], rel=1e-3)
    # A checkpoint without a quantization_config is quantised on loading, which is no contradiction.
    assert run("cost", "--config", bare, *ask, "--weights", "fp8").err == ""


def test_a_file_beside_the_config_or_its_text_model_states_the_format(tmp_path: Path) -> None:
    stated = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    path = written(tmp_path, LLAMA)
    assert read_config(path).weights.format == "bf16"
    written(tmp_path, stated, "hf_quant_config.json")
    assert read_config(path).weights.format == read_config(tmp_path).weights.format == "fp8"
    written(tmp_path, stated, "llama_hf_quant_config.json")
    assert read_config(written(tmp_path, LLAMA, "llama_config.json")).weights.format == "fp8"
    # The config's own word counts.
    assert read_config(written(tmp_path, quantised(LLAMA, NVFP4))).weights.format == "nvfp4"
    (tmp_path / "hf_quant_config.json").write_text("{", encoding="utf-8")
    with pytest.raises(InputError, match=r"hf_quant_config\.json"):
        read_config(written(tmp_path, LLAMA))
    for config in (quantised(SCOUT, FP8), SCOUT | {"text_config": quantised(SCOUT["text_config"], FP8)}):
        assert read_config(config).weights.format == "fp8"


@pytest.mark.parametrize(
    ("config", "said", "silenced_by"),
    [
        (quantised(LLAMA, NVFP4 | {"kv_cache_scheme": {"num_bits": 8}}), "--kv-cache fp8", ("--kv-cache", "fp8")),
        (LLAMA | {"torch_dtype": "float32"}, "float32", ("--weights", "bf16")),
        (LLAMA | {"kv_lora_rank": 512}, "kv_lora_rank", ()),
        (quantised(LLAMA, {"quant_method": "aqlm"}), "quantization_config", ()),
    ],
)
def test_cost_says_what_it_assumes(
    config: dict[str, Any], said: str, silenced_by: tuple[str, ...], tmp_path: Path
) -> None:
    ask = ("cost", "--config", written(tmp_path, config), "--gpu", "h200-sxm", "--gpus", 1, "--latency", "roofline")
    found = run(*ask)
    assert said in found.err
    if silenced_by:
        assert run(*ask, *silenced_by).err == ""
    if "aqlm" in str(config):
        assert found.code == 2
        assert "--weights fp8" in found.err
        assert "priced with --weights fp8" in run(*ask, "--weights", "fp8").err


@pytest.mark.parametrize(
    ("config", "names"),
    [
        (LLAMA | {"num_local_experts": 8, "num_experts_per_tok": 2}, ["num_local_experts", "num_experts_per_tok"]),
        (DEEPSEEK_V3 | {"index_topk": 2048, "index_n_heads": 64}, ["index_topk", "whole context"]),
        (DEEPSEEK_V3 | {"architectures": ["DeepseekV32ForCausalLM"]}, ["DeepseekV32ForCausalLM"]),
        (QWEN3_MOE | {"shared_expert_intermediate_size": 768}, ["shared_expert_intermediate_size"]),
        (MIXTRAL | {"n_shared_experts": 1}, ["n_shared_experts"]),
        (LLAMA | {"kv_lora_rank": 512}, ["kv_lora_rank"]),
        (LLAMA | {"architectures": ["MixtralForCausalLM"]}, ["MixtralForCausalLM"]),
    ],
)
def test_fields_of_another_architecture_are_remarked(config: dict[str, Any], names: list[str]) -> None:
    (remark,) = read_config(config).remarks
    for name in names:
        assert name in remark
    with pytest.warns(UserWarning, match=names[0]):
        from_config(config)


@pytest.mark.parametrize(
    "config",
    [
        *EVERY_FAMILY,
        QWEN3_MOE | {"num_experts": 0},
        QWEN3_MOE | {"shared_expert_intermediate_size": 0, "norm_topk_prob": True, "router_aux_loss_coef": 0.001},
        DEEPSEEK_V3 | {"topk_group": 4, "n_group": 8, "topk_method": "noaux_tc", "routed_scaling_factor": 2.5},
        DEEPSEEK_V3 | {"model_type": "kimi_k2", "architectures": ["DeepseekV3ForCausalLM"]},
        GPT_OSS | {"experts_per_token": 4, "architectures": ["GptOssForCausalLM"]},
        LLAMA | {"num_experts": 1, "num_local_experts": None, "architectures": ["LlamaForCausalLM"]},
        SCOUT,
        MAVERICK,
    ],
)
def test_a_config_of_its_own_kind_is_read_without_remark(config: dict[str, Any]) -> None:
    assert read_config(config).remarks == ()


@pytest.mark.system
def test_the_configs_that_the_kernel_package_ships() -> None:
    package = pytest.importorskip("aiconfigurator_core", reason="the configs are aiconfigurator-core's")
    formats: Counter[str | None] = Counter()
    for path in sorted((Path(package.__file__).parent / "model_configs").glob("*_config.json")):
        if path.name.endswith("_hf_quant_config.json"):
            continue
        if json.loads(path.read_text(encoding="utf-8"))["model_type"] in ("kimi_k3", "nemotron-nas"):
            with pytest.raises(InputError, match="no term for"):
                read_config(path)
            continue
        found = read_config(path)
        assert found.remarks == ()
        name = path.name.lower()
        expected = next((f for f in ("nvfp4", "fp8") if f in name), None)
        if expected is not None:
            assert found.weights.format == expected
        formats[found.weights.format] += 1
    assert None not in formats
    assert formats.total() >= 81
    assert formats["mxfp4"] == 4  # gpt-oss and DeepSeek-V4
    assert formats["int4"] == 1  # Kimi K2.5
    assert formats["nvfp4"] >= 5
    assert formats["fp8"] >= 8
