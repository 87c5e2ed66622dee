"""Shapes from Hugging Face configs and from sizes; hostile configs end in one helpful message."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from families import PAPER, aspect_ratio
from model_configs import CONFIGS, ROWS
from moescale import catalogue
from moescale.errors import InputError, UnknownNameError
from moescale.io.records import record
from moescale.models.family import architecture
from moescale.models.hf_config import from_config
from moescale.models.parameters import count_parameters, kv_bytes_per_request
from moescale.models.published import find_shape, hl_coefficient, published_shapes, shapes
from moescale.models.recipe import most_trained_tokens

DENSE_NAMES = ("LLAMA", "MISTRAL", "QWEN2", "QWEN3")
MOE_NAMES = ("MIXTRAL", "QWEN3_MOE", "QWEN2_MOE", "OLMOE", "GPT_OSS", "DEEPSEEK_V2", "DEEPSEEK_V2_LITE", "DEEPSEEK_V3")
LLAMA, MISTRAL, QWEN2, QWEN3 = (CONFIGS[name] for name in DENSE_NAMES)
MIXTRAL, QWEN3_MOE, QWEN2_MOE, OLMOE, GPT_OSS, DEEPSEEK_V2, DEEPSEEK_V2_LITE, DEEPSEEK_V3 = (
    CONFIGS[name] for name in MOE_NAMES
)
SCOUT_TEXT, SCOUT, MAVERICK, GLM_4_5, GLM_5 = (
    CONFIGS[name] for name in ("SCOUT_TEXT", "SCOUT", "MAVERICK", "GLM_4_5", "GLM_5")
)
QWEN3_NEXT, NEMOTRON_3_NANO, JAMBA, GEMMA_4_26B, DBRX, KIMI_LINEAR, DEEPSEEK_V4_FLASH = (
    CONFIGS[name]
    for name in ("QWEN3_NEXT", "NEMOTRON_3_NANO", "JAMBA", "GEMMA_4_26B", "DBRX", "KIMI_LINEAR", "DEEPSEEK_V4_FLASH")
)
KIMI = DEEPSEEK_V3 | {"model_type": "kimi_k2"}
EVERY_FAMILY = [LLAMA, MISTRAL, MIXTRAL, QWEN2, QWEN3, QWEN3_MOE, QWEN2_MOE, OLMOE, GPT_OSS]
EVERY_FAMILY += [DEEPSEEK_V2, DEEPSEEK_V2_LITE, DEEPSEEK_V3, GLM_4_5, SCOUT_TEXT]


@pytest.mark.parametrize(
    "row", [row for row in ROWS.values() if "total" in row], ids=lambda row: row["config"]["model_type"]
)
def test_published_counts(row: dict[str, Any]) -> None:
    """To the last digit that is published; total parameters are all, active ones hold 0, 1 or 2 embedding tables."""
    counted = count_parameters(from_config(row["config"]))
    active = float(counted.active - counted.embedding * (2 - row["tables"]) / 2)
    for number, stated in ((float(counted.total), row["total"]), (active, row["active"])):
        unit = {"B": 1e9, "T": 1e12}[stated[-1]]
        digits = len(stated[:-1].partition(".")[2])
        assert round(number / unit, digits) == float(stated[:-1])


@pytest.mark.parametrize("name", ROWS)
def test_counts_of_every_config(name: str) -> None:
    """All parameters, those of a token, of attention, and the bytes of 10,000 tokens of cache, as the table states them.

    Where a row says transformers, an engine test holds the parameters to that library's.
    """
    model = from_config(CONFIGS[name])
    counted = count_parameters(model)
    numbers = (counted.total, counted.active, counted.attention, kv_bytes_per_request(model, 10_000.0))
    assert [int(number) for number in numbers] == ROWS[name]["counted"]


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (LLAMA, "llama-3.1-8b"), (MISTRAL, "mistral-7b"), (MIXTRAL, "mixtral-8x7b"), (QWEN2, "qwen2.5-7b"),
        (QWEN3, "qwen3-0.6b"), (QWEN3_MOE, "qwen3-30b-a3b"), (QWEN2_MOE, "qwen1.5-moe-a2.7b"), (OLMOE, "olmoe-1b-7b"),
        (GPT_OSS, "gpt-oss-20b"), (DEEPSEEK_V2, "deepseek-v2"), (DEEPSEEK_V2_LITE, "deepseek-v2-lite"),
        (DEEPSEEK_V3, "deepseek-v3"), (KIMI, "deepseek-v3"),
        (SCOUT_TEXT, "llama-4-scout"), (SCOUT, "llama-4-scout"), (MAVERICK, "llama-4-maverick"),
    ],
)  # fmt: skip
def test_a_config_gives_the_shape_of_the_catalogue(config: dict[str, Any], name: str) -> None:
    # The catalogue's counts and cache bytes are held to published figures in reference/test_published_shapes.py.
    known = shapes()[name]  # whose quantised parts are those of published checkpoints, which these configs leave open
    assert replace(from_config(config), name="", quantised=known.quantised) == replace(known, name="")


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("meta-llama/Llama-3.1-8B", "llama-3.1-8b"), ("meta-llama/Meta-Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("deepseek-ai/DeepSeek-V3", "deepseek-v3"), ("unsloth/DeepSeek-V3-Base", "deepseek-v3"),
        ("mistralai/Mixtral-8x7B-v0.1", "mixtral-8x7b"), ("allenai/OLMo-2-0325-32B", "olmo-2-32b"),
        ("moonshotai/Kimi-K2-Instruct", "kimi-k2"), (" Qwen3-30B-A3B ", "qwen3-30b-a3b"),
    ],
)  # fmt: skip
def test_a_published_model_is_found_by_its_names(asked: str, name: str) -> None:
    assert find_shape(asked).architecture.name == name


@given(st.sampled_from(sorted(published_shapes())), st.data())
def test_every_name_of_a_published_model_is_its_own(name: str, data: st.DataObject) -> None:
    shape = published_shapes()[name]
    alias = data.draw(st.sampled_from([name, f"someone/{name}", *shape.hf]))
    assert find_shape(data.draw(st.sampled_from([alias, alias.lower(), alias.upper()]))) == shape


@pytest.mark.parametrize("asked", ["lama-3.1-8b", "meta-llama/Llama-3.2-8B", "llama-3.1-8b/config.json", "", "/"])
def test_an_unknown_model_is_refused_with_the_nearest(asked: str) -> None:
    with pytest.raises(UnknownNameError, match=r"unknown published model .*--config") as refused:
        find_shape(asked)
    assert (refused.value.nearest or "llama-3.1-8b").startswith("llama-3.1-8b")


def test_tokens_are_the_publications_or_none() -> None:
    known = published_shapes()
    stated = {"llama-65b": 1.4e12, "llama-3.1-405b": 15.6e12, "qwen3-235b-a22b": 36e12, "olmo-2-13b": 5e12}
    stated |= {"deepseek-v3": 14.8e12, "kimi-k2": 15.5e12, "llama-4-scout": 40e12, "gemma-2-27b": 13e12}
    assert {name: known[name].tokens for name in stated} == stated
    assert {known[name].tokens for name in ("gpt-oss-120b", "mixtral-8x7b", "qwen1.5-moe-a2.7b")} == {None}
    for name, shape in known.items():
        assert (shape.tokens is None) == (shape.tokens_source == ""), name
        # Pre-training of released models: above 20 tokens an active parameter, and of more than a trillion.
        assert shape.tokens is None or shape.tokens > max(1e12 - 1, 20 * shape.published_active), name
    largest = catalogue.read("training.toml")["text"]["largest_trained"]["model"]
    assert (
        most_trained_tokens() == max(s.tokens or 0.0 for s in published_shapes().values()) == find_shape(largest).tokens
    )


SLIDING, FULL = "sliding_attention", "full_attention"


@pytest.mark.parametrize(
    ("config", "layers", "tokens"),
    [
        (MISTRAL, 32, 4096),
        (MISTRAL | {"sliding_window": None}, 0, 0),
        ({key: value for key, value in MISTRAL.items() if key != "sliding_window"}, 32, 4096),
        (MIXTRAL, 0, 0),
        (MIXTRAL | {"sliding_window": 4096}, 32, 4096),
        (QWEN2 | {"sliding_window": 131072, "max_window_layers": 28}, 0, 0),
        (QWEN2 | {"use_sliding_window": True, "sliding_window": 1024, "max_window_layers": 20}, 8, 1024),
        (QWEN2 | {"use_sliding_window": True, "max_window_layers": 30}, 0, 0),
        (QWEN2 | {"use_sliding_window": True, "layer_types": [SLIDING] * 5 + [FULL] * 23}, 5, 4096),
        (QWEN2 | {"use_sliding_window": False, "layer_types": [SLIDING] * 28}, 0, 0),
        (QWEN3 | {"use_sliding_window": True, "max_window_layers": 0, "sliding_window": 64}, 28, 64),
        (QWEN3_MOE | {"use_sliding_window": True, "max_window_layers": 48}, 48, 4096),
        (QWEN2_MOE | {"use_sliding_window": True, "max_window_layers": 21}, 11, 4096),
        (GPT_OSS, 12, 128),
        (GPT_OSS | {"num_hidden_layers": 25, "layer_types": None}, 13, 128),
        (GPT_OSS | {"sliding_window": None}, 0, 0),
        (GPT_OSS | {"layer_types": [FULL] * 24}, 0, 0),
        (SCOUT, 36, 8192),
        (SCOUT_TEXT | {"no_rope_layer_interval": 3}, 32, 8192),
        (SCOUT_TEXT | {"no_rope_layers": [1] * 40 + [0] * 8}, 40, 8192),
        (SCOUT_TEXT | {"no_rope_layers": [], "attention_chunk_size": 4096}, 36, 4096),
        (SCOUT_TEXT | {"layer_types": ["chunked_attention"] * 2 + [FULL] * 46}, 2, 8192),
        (SCOUT_TEXT | {"attention_chunk_size": None}, 0, 0),
    ],
)
def test_which_layers_have_a_window(config: dict[str, Any], layers: int, tokens: int) -> None:
    model = from_config(config)
    assert (model.n_window_layers, model.window_tokens) == (layers, tokens)


BLOCKS = [{"M": "mamba", "E": "moe", "*": "attention"}[a] for a in NEMOTRON_3_NANO["hybrid_override_pattern"]]
INDEXERS = ["full"] * 3 + ["shared", "shared", "shared", "full"] * 18 + ["shared"] * 3


def without(config: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name != key}


@pytest.mark.parametrize(
    ("config", "n_moe_layers"),
    [
        *((DEEPSEEK_V3 | {"first_k_dense_replace": first}, max(61 - first, 0)) for first in (0, 61, 99)),
        (DEEPSEEK_V3 | {"moe_layer_freq": 2}, 29),  # layers 4, 6 .. 60
        (DEEPSEEK_V3 | {"moe_layer_freq": 2, "first_k_dense_replace": 4}, 29),
        (DEEPSEEK_V3 | {"moe_layer_freq": 61}, 0),
        (DEEPSEEK_V3 | {"moe_layer_freq": 61, "first_k_dense_replace": 0}, 1),
        (without(GLM_4_5, "first_k_dense_replace"), 91),
        (MAVERICK, 24),
        (SCOUT_TEXT | {"moe_layers": [1, 3, 5]}, 3),
        (SCOUT_TEXT | {"moe_layers": []}, 0),
        (QWEN3_MOE, 48),
        (QWEN3_MOE | {"decoder_sparse_step": 2}, 24),
        # Numbers count from 0 in mlp_only_layers: with step 2 layers 1, 3, 5 .. hold experts, so only 5 is taken away.
        (QWEN3_MOE | {"decoder_sparse_step": 2, "mlp_only_layers": [0, 5, 5]}, 23),
        (QWEN3_MOE | {"decoder_sparse_step": 100}, 0),
        (QWEN3_MOE | {"num_experts": 0}, 0),
    ],
)
def test_which_layers_hold_experts(config: dict[str, Any], n_moe_layers: int) -> None:
    model = from_config(config)
    assert model.n_moe_layers == n_moe_layers
    assert n_moe_layers or (model.n_experts, model.top_k) == (1, 1)


@pytest.mark.parametrize(
    ("config", "field", "value"),
    [
        (DEEPSEEK_V3 | {"n_shared_experts": None}, "d_shared_expert", 0),
        (DEEPSEEK_V3 | {"q_lora_rank": 0}, "q_lora_rank", 0),
        (without(LLAMA, "num_key_value_heads"), "n_kv_heads", 32),
        (MISTRAL | {"num_key_value_heads": None}, "n_kv_heads", 32),
        (LLAMA, "head_dim", 128),
        (LLAMA | {"head_dim": 64}, "head_dim", 64),
        (QWEN3 | {"head_dim": None}, "head_dim", 128),
        (QWEN3_MOE, "d_ffn", 6144),
        (LLAMA, "tied_embeddings", False),
        (GLM_4_5, "attention_output_bias", False),
        (NEMOTRON_3_NANO, "n_layers", 29),  # blocks that mix tokens
        (NEMOTRON_3_NANO, "n_layers_without_ffn", 6),
        (GLM_5 | {"index_topk_freq": 4, "index_skip_topk_offset": 3}, "n_index_layers", 21),
        (GLM_5 | {"indexer_types": INDEXERS}, "n_index_layers", 21),
    ],
)
def test_fields_by_hand(config: dict[str, Any], field: str, value: object) -> None:
    assert getattr(from_config(config), field) == value


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (LLAMA | {"hidden_size": 4096.0}, LLAMA),
        (MIXTRAL | {"num_experts": 8}, MIXTRAL),
        # Layers that predict further tokens are no part of the model that is served.
        (DEEPSEEK_V3 | {"num_nextn_predict_layers": 3}, DEEPSEEK_V3),
        (NEMOTRON_3_NANO | {"hybrid_override_pattern": None, "layers_block_type": BLOCKS}, NEMOTRON_3_NANO),
        # A model that sees is its text model, of which transformers leaves out what the class has by default.
        ({"model_type": "kimi_k25", "vision_config": {"hidden_size": 1152}, "text_config": KIMI}, KIMI),
        ({"model_type": "llama4", "text_config": {"num_hidden_layers": 8}}, SCOUT_TEXT | {"num_hidden_layers": 8}),
    ],
)
def test_what_is_said_twice_or_otherwise_is_one_model(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert from_config(one) == from_config(other)


def test_glm_4_5_as_published() -> None:
    # arXiv 2508.06471, table 1: 355B and 32B, without tables, with the layer that predicts a second token: a layer with
    # experts, and a projection of two states to one.
    model = from_config(GLM_4_5)
    assert (model.n_moe_layers, model.d_shared_expert, model.qkv_bias) == (89, 1536, True)
    further = count_parameters(from_config(GLM_4_5 | {"num_hidden_layers": 93}))
    assert float(further.non_embedding_total) + 2 * 5120**2 == pytest.approx(355e9, abs=0.5e9)
    assert float(count_parameters(model).non_embedding_active) == pytest.approx(32e9, abs=0.5e9)


MISSING = object()
NO_WIDTH = [0, -4096, 4096.5, math.nan, math.inf, 10**400, 10**5000, [4096]]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (LLAMA | {"model_type": "gpt2"}, "unknown model_type 'gpt2'.*known: llama, .*mixtral"),
        (LLAMA | {"model_type": "qwen4_moe"}, "nearest: qwen3_moe"),
        (LLAMA | {"model_type": None}, "model_type is missing.*llama"),
        (LLAMA | {"model_type": ["llama"]}, "model_type must be a text"),
        ({}, "model_type is missing"),
        ({"model_type": "llama", "hiden_size": 4096}, "hidden_size is missing.*nearest: hiden_size"),
        (MISTRAL | {"num_key_value_heads": MISSING}, "num_key_value_heads is missing"),
        (MIXTRAL | {"num_local_experts": MISSING}, "num_experts or num_local_experts is missing"),
        (MIXTRAL | {"num_experts": 16}, "disagree"),
        (LLAMA | {"hidden_size": "4096"}, "hidden_size must be a whole number.*'4096'"),
        (LLAMA | {"hidden_size": True}, "hidden_size must be a whole number.*True"),
        *((LLAMA | {"hidden_size": value}, "hidden_size must be") for value in NO_WIDTH),
        (LLAMA | {"num_hidden_layers": 0}, "num_hidden_layers must be"),
        (LLAMA | {"vocab_size": 0}, "vocab_size must be"),
        (LLAMA | {"num_key_value_heads": 7}, "divisor of num_attention_heads"),
        (LLAMA | {"num_key_value_heads": 64}, "divisor of num_attention_heads"),
        (LLAMA | {"hidden_size": 4097}, "multiple of num_attention_heads"),
        (LLAMA | {"tie_word_embeddings": "yes"}, "true or false"),
        (MIXTRAL | {"num_experts_per_tok": 9}, "at most the number of experts"),
        (MIXTRAL | {"num_experts_per_tok": 0}, "num_experts_per_tok must be"),
        (MIXTRAL | {"num_local_experts": 0}, "num_local_experts must be"),
        (QWEN3_MOE | {"decoder_sparse_step": 0}, "decoder_sparse_step must be"),
        (QWEN3_MOE | {"mlp_only_layers": [48]}, "mlp_only_layers must be"),
        (QWEN3_MOE | {"mlp_only_layers": "0"}, "mlp_only_layers must be"),
        (QWEN3_MOE | {"mlp_only_layers": [True]}, "mlp_only_layers must be"),
        (QWEN3_MOE | {"moe_intermediate_size": MISSING}, "moe_intermediate_size is missing"),
        (MISTRAL | {"sliding_window": 0}, "sliding_window must be"),
        (GPT_OSS | {"layer_types": ["sliding_attention"]}, "layer_types must be a list with one entry for each of 24"),
        (GPT_OSS | {"layer_types": ["linear_attention"] * 24}, "layer_types must be a list of sliding_attention and"),
        (GPT_OSS | {"layer_types": [{}] * 24}, "layer_types must be"),
        (GPT_OSS | {"layer_types": "full_attention"}, "layer_types must be"),
        (DEEPSEEK_V3 | {"q_lora_rank": MISSING}, "q_lora_rank is missing"),
        (DEEPSEEK_V3 | {"q_lora_rank": -1}, "q_lora_rank must be"),
        (DEEPSEEK_V3 | {"kv_lora_rank": None}, "kv_lora_rank is missing"),
        (DEEPSEEK_V3 | {"first_k_dense_replace": MISSING}, "first_k_dense_replace is missing"),
        (DEEPSEEK_V3 | {"moe_layer_freq": 0}, "moe_layer_freq must be"),
        (DEEPSEEK_V3 | {"n_routed_experts": 4}, "at most the number of experts"),
        (SCOUT_TEXT | {"no_rope_layers": [2] * 48}, "no_rope_layers must be a list of 0 and 1"),
        (SCOUT_TEXT | {"moe_layers": [48]}, "moe_layers must be"),
        (SCOUT_TEXT | {"intermediate_size_mlp": MISSING}, "intermediate_size_mlp is missing"),
        ({"model_type": "llama4"}, "unknown model_type 'llama4'.*llama4_text"),
        ({"model_type": "llama4", "text_config": {"hidden_size": -1}}, "config, text_config: hidden_size must be"),
        ({"model_type": "llava", "text_config": {"model_type": "gpt2"}}, "unknown model_type 'gpt2' of the text model"),
        ({"model_type": "llava", "text_config": {"model_type": []}}, "unknown model_type"),
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
def test_impossible_configs_are_refused_with_the_key(config: dict[str, Any], message: str) -> None:
    given_config = {key: value for key, value in config.items() if value is not MISSING}
    with pytest.raises(InputError, match=message):
        from_config(given_config)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[1, 2]", "JSON list"),
        (b'"llama"', "JSON str"),
        (b"null", "JSON NoneType"),
        (b"{not json", "not JSON"),
        (b"", "not JSON"),
        (b"[" * 200_000, "not JSON"),
        (b'{"hidden_size": ' + b"9" * 5000 + b"}", "not JSON"),
        (b"\x80\x02\xff\xfe\x00", "not UTF-8 text"),
        (b'{"model_type": "llama", "hidden_size": NaN}', "hidden_size must be"),
    ],
)
def test_files_that_are_no_config(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        from_config(path)
    assert "config.json" in str(caught.value)


def test_a_folder_reads_as_the_config_in_it_and_paths_without_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"config.json: no such file"):
        from_config(tmp_path)
    weights = tmp_path / "model.safetensors"
    with weights.open("wb") as file:
        file.truncate(17 * 2**20)
    with pytest.raises(InputError, match="larger than"):
        from_config(weights)
    (tmp_path / "config.json").write_text("\ufeff" + json.dumps(MIXTRAL), encoding="utf-8")
    assert from_config(tmp_path) == from_config(str(tmp_path / "config.json")) == from_config(MIXTRAL)


def test_hl_follows_the_two_thirds_power() -> None:
    # A family that obeys the rule exactly is fitted exactly.
    obedient = replace(PAPER, d_model_per_layer=aspect_ratio(0.05, PAPER.layer_multiple))
    mu, errors = hl_coefficient([architecture(obedient, n, 1.0) for n in (1e8, 1e9, 7e10)])
    assert mu == pytest.approx(0.05, rel=1e-12)
    np.testing.assert_allclose(errors, 0, atol=1e-12)
    with pytest.raises(InputError):
        hl_coefficient([])


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (GEMMA_4_26B | {"intermediate_size": None, "enable_moe_block": False}, "d_ffn must be positive"),
        (DEEPSEEK_V4_FLASH | {"compress_ratios": [128] * 44}, "index_topk needs layers with an indexer"),
    ],
)
def test_a_config_that_would_break_a_count_is_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        from_config(config)


# transformers is the judge of what a config means; nothing is allocated on the meta device.


@pytest.mark.engine
@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.get("transformers")])
def test_counts_equal_those_of_transformers_exactly(name: str) -> None:
    config = CONFIGS[name]
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    dropped = {"model_type", "quantization_config"}
    settings = {key: value for key, value in config.items() if key not in dropped}
    # Null where a class takes the key away (q_lora_rank) is passed on; elsewhere it is what an absent key is.
    settings = {key: value for key, value in settings.items() if value is not None or key == "q_lora_rank"}
    built = transformers.AutoConfig.for_model(config["model_type"], **settings)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(built)
    counted = count_parameters(from_config(config))
    # parameters() lists a tied table once.
    weights = dict(model.named_parameters())
    # DeepSeek-V3's checkpoint holds it as a weight, transformers as a buffer.
    weights |= {name: buffer for name, buffer in model.named_buffers() if name.endswith("e_score_correction_bias")}
    assert int(counted.total) == sum(weight.numel() for weight in weights.values())
    routed = sum(weight.numel() for name, weight in weights.items() if ".experts." in name)
    assert int(counted.experts) == routed
    if config["model_type"] not in {known["model_type"] for known in EVERY_FAMILY}:
        return
    attention = sum(weight.numel() for name, weight in weights.items() if "attn." in name and "norm" not in name)
    assert int(counted.attention) == attention
    # The config that transformers itself writes reads back to the same shape.
    written = from_config(json.loads(built.to_json_string(use_diff=False)))
    assert record(count_parameters(written)) == record(counted)


@pytest.mark.engine
@pytest.mark.parametrize(
    "config",
    [
        MISTRAL,
        MIXTRAL,
        QWEN2 | {"use_sliding_window": True, "max_window_layers": 20},
        QWEN3 | {"use_sliding_window": True, "max_window_layers": 3},
        QWEN2_MOE | {"use_sliding_window": True, "max_window_layers": 21},
        GPT_OSS,
        GPT_OSS | {"num_hidden_layers": 25, "layer_types": None},
        SCOUT_TEXT,
        SCOUT_TEXT | {"no_rope_layer_interval": 3},
        SCOUT_TEXT | {"no_rope_layers": [1] * 40 + [0] * 8},
    ],
    ids=lambda config: config["model_type"],
)
def test_windows_are_those_of_transformers(config: dict[str, Any]) -> None:
    transformers = pytest.importorskip("transformers")
    dropped = {"model_type", "quantization_config"}
    settings = {key: value for key, value in config.items() if key not in dropped and value is not None}
    built = transformers.AutoConfig.for_model(config["model_type"], **settings)
    types = getattr(built, "layer_types", None)
    window = getattr(built, "attention_chunk_size", None) or built.sliding_window
    # The classes without layer_types give every layer the window that they have.
    local = [FULL if window is None else SLIDING] * built.num_hidden_layers if types is None else types
    model = from_config(config)
    assert model.n_window_layers == sum(kind != FULL for kind in local)
    assert model.window_tokens == (window if model.n_window_layers else 0)


@pytest.mark.engine
def test_a_nested_config_that_transformers_wrote_reads_back() -> None:
    transformers = pytest.importorskip("transformers")
    text = {key: value for key, value in SCOUT_TEXT.items() if key != "model_type"} | {"num_local_experts": 4}
    built = transformers.Llama4Config(text_config=text)
    for whole in (True, False):
        written = json.loads(built.to_json_string(use_diff=not whole))
        assert from_config(written) == from_config(SCOUT_TEXT | {"num_local_experts": 4})


@pytest.mark.engine
def test_what_llama4_holds_beside_its_text_model() -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    # The vision_config of the published models; everything else in it is the class's default.
    vision = {"hidden_size": 1408, "image_size": 336, "vision_output_dim": 4096}
    built = transformers.Llama4Config(text_config={"num_hidden_layers": 1}, vision_config=vision)
    with torch.device("meta"):
        model = transformers.Llama4ForConditionalGeneration(built)
    beside = sum(weight.numel() for name, weight in model.named_parameters() if not name.startswith("language_model."))
    assert {published_shapes()[f"llama-4-{name}"].row["not_modelled"] for name in ("scout", "maverick")} == {beside}
