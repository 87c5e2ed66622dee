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

from families import PAPER
from moescale.accounting import count_parameters, kv_bytes_per_token
from moescale.architecture import (
    Architecture,
    from_config,
    hl_coefficient,
    shapes,
    validate,
)
from moescale.errors import InputError
from moescale.family import architecture, aspect_ratio

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "intermediate_size": 14336,
    "vocab_size": 128256,
}
MIXTRAL: dict[str, Any] = LLAMA | {
    "model_type": "mixtral",
    "vocab_size": 32000,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
QWEN3_MOE: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "head_dim": 128,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "num_hidden_layers": 48,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "vocab_size": 151936,
    "tie_word_embeddings": False,
}
QWEN2_MOE: dict[str, Any] = {
    "model_type": "qwen2_moe",
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "num_hidden_layers": 24,
    "intermediate_size": 5632,
    "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632,
    "num_experts": 60,
    "num_experts_per_tok": 4,
    "vocab_size": 151936,
}
OLMOE: dict[str, Any] = {
    "model_type": "olmoe",
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "num_hidden_layers": 16,
    "intermediate_size": 1024,
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "vocab_size": 50304,
}
QWEN3: dict[str, Any] = {
    "model_type": "qwen3",
    "hidden_size": 1024,
    "head_dim": 128,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "num_hidden_layers": 28,
    "intermediate_size": 3072,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
}
QWEN2: dict[str, Any] = QWEN3 | {
    "model_type": "qwen2",
    "head_dim": None,
    "hidden_size": 3584,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "intermediate_size": 18944,
    "vocab_size": 152064,
    "tie_word_embeddings": False,
}
MISTRAL: dict[str, Any] = LLAMA | {"model_type": "mistral", "vocab_size": 32000}


@pytest.mark.parametrize(
    ("config", "total_billions", "active_billions"),
    [
        (LLAMA, 8.030, 8.030),
        (MISTRAL, 7.242, 7.242),
        (MIXTRAL, 46.703, 12.880),
        (QWEN3, 0.596, 0.596),
        (QWEN2, 7.616, 7.616),
        (QWEN3_MOE, 30.532, 3.353),
        (QWEN2_MOE, 14.316, 2.689),
        (OLMOE, 6.919, 1.282),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else None,
)
def test_published_configs(config: dict[str, Any], total_billions: float, active_billions: float) -> None:
    counted = count_parameters(from_config(config))
    assert float(counted.total) / 1e9 == pytest.approx(total_billions, abs=5.1e-4)
    assert float(counted.active) / 1e9 == pytest.approx(active_billions, abs=5.1e-4)


def test_a_file_and_the_folder_that_holds_it_read_alike(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("\ufeff" + json.dumps(MIXTRAL), encoding="utf-8")
    assert from_config(tmp_path) == from_config(str(tmp_path / "config.json")) == from_config(MIXTRAL)


def test_which_layers_hold_experts() -> None:
    assert from_config(QWEN3_MOE).n_moe_layers == 48
    every_other = from_config(QWEN3_MOE | {"decoder_sparse_step": 2})
    assert every_other.n_moe_layers == 24
    assert every_other.d_ffn == 6144
    # Numbers count from 0 in mlp_only_layers: with step 2 layers 1, 3, 5 .. hold experts, so only 5 is taken away.
    assert from_config(QWEN3_MOE | {"decoder_sparse_step": 2, "mlp_only_layers": [0, 5, 5]}).n_moe_layers == 23
    assert from_config(QWEN3_MOE | {"decoder_sparse_step": 100}).n_moe_layers == 0
    dense = from_config(QWEN3_MOE | {"num_experts": 0})
    assert (dense.n_moe_layers, dense.n_experts, dense.top_k) == (0, 1, 1)


def test_absent_and_null_keys_take_what_transformers_takes() -> None:
    without = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}
    assert from_config(without).n_kv_heads == 32
    assert from_config(MISTRAL | {"num_key_value_heads": None}).n_kv_heads == 32
    assert from_config(LLAMA).head_dim == 128
    assert from_config(LLAMA | {"head_dim": 64}).head_dim == 64
    assert from_config(QWEN3 | {"head_dim": None}).head_dim == 128
    assert not from_config(LLAMA).tied_embeddings
    assert from_config(LLAMA | {"hidden_size": 4096.0}) == from_config(LLAMA)
    assert from_config(MIXTRAL | {"num_experts": 8}) == from_config(MIXTRAL)


MISSING = object()


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
        (LLAMA | {"hidden_size": 0}, "hidden_size must be"),
        (LLAMA | {"hidden_size": -4096}, "hidden_size must be"),
        (LLAMA | {"hidden_size": 4096.5}, "hidden_size must be"),
        (LLAMA | {"hidden_size": math.nan}, "hidden_size must be"),
        (LLAMA | {"hidden_size": math.inf}, "hidden_size must be"),
        (LLAMA | {"hidden_size": 10**400}, "hidden_size must be"),
        (LLAMA | {"hidden_size": [4096]}, "hidden_size must be"),
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
        (b"\x80\x02\xff\xfe\x00", "not a text file"),
        (b'{"model_type": "llama", "hidden_size": NaN}', "hidden_size must be"),
    ],
)
def test_files_that_are_no_config(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        from_config(path)
    assert "config.json" in str(caught.value)


def test_paths_that_hold_no_config(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"config.json: no such file"):
        from_config(tmp_path)
    with pytest.raises(InputError, match="no such file"):
        from_config(tmp_path / "absent.json")
    with pytest.raises(InputError):
        from_config("a\0b")
    weights = tmp_path / "model.safetensors"
    with weights.open("wb") as file:
        file.truncate(17 * 2**20)
    with pytest.raises(InputError, match="too large"):
        from_config(weights)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(
    st.sampled_from([LLAMA, MIXTRAL, QWEN3_MOE, QWEN2_MOE, OLMOE, QWEN3]),
    st.data(),
)
def test_any_damage_gives_a_usable_architecture_or_an_input_error(config: dict[str, Any], data: st.DataObject) -> None:
    keys = data.draw(st.lists(st.sampled_from(sorted(config)), min_size=1, max_size=3, unique=True))
    damaged = config | {key: data.draw(json_values | st.integers(-2, 20)) for key in keys}
    try:
        model = from_config(damaged)
    except InputError:
        return
    counted = count_parameters(model)
    assert 0 < counted.active <= counted.total < math.inf
    assert kv_bytes_per_token(model) > 0


def test_hl_follows_the_two_thirds_power() -> None:
    # A family that obeys the rule exactly is fitted exactly.
    obedient = replace(PAPER, d_model_per_layer=aspect_ratio(0.05, PAPER.layer_multiple))
    mu, errors = hl_coefficient([architecture(obedient, n, 1.0) for n in (1e8, 1e9, 7e10)])
    assert mu == pytest.approx(0.05, rel=1e-12)
    np.testing.assert_allclose(errors, 0, atol=1e-12)
    # Real models, 125M to 480B (the paper's figure 9): dense ones scatter by 8% on average, 20% at most.
    dense = [shape for shape in shapes().values() if shape.n_moe_layers == 0]
    mu, errors = hl_coefficient(dense)
    assert errors.shape == (len(dense),)
    assert mu == pytest.approx(0.0397, abs=5e-5)
    assert np.abs(errors).mean() < 0.08
    assert np.abs(errors).max() < 0.20
    assert np.log1p(errors).mean() == pytest.approx(0, abs=1e-12)
    with pytest.raises(InputError):
        hl_coefficient([])


@pytest.mark.parametrize(
    "change",
    [
        {"n_layers": 0},
        {"d_model": math.nan},
        {"head_dim": -1},
        {"n_moe_layers": 5, "n_experts": 4, "d_expert": 8},
        {"n_moe_layers": 2, "n_experts": 4, "top_k": 5, "d_expert": 8},
        {"n_moe_layers": 2, "n_experts": 4},
        {"d_ffn": 0},
        {"n_heads": np.array([1.0, 0.0])},
        {"ffn_matrices": 4},
    ],
)
def test_validate_refuses_what_would_break_a_count(change: dict[str, Any]) -> None:
    fine: dict[str, Any] = {"n_layers": 4, "d_model": 8, "n_heads": 1, "n_kv_heads": 1, "head_dim": 8, "d_ffn": 16}
    assert validate(Architecture(**fine)) == Architecture(**fine)
    with pytest.raises(InputError):
        validate(Architecture(**(fine | change)))


# transformers is the judge of what a config means. Every shape is small; nothing is allocated on the meta device.

SMALL: dict[str, Any] = {
    "hidden_size": 96,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "num_hidden_layers": 5,
    "intermediate_size": 160,
    "vocab_size": 300,
}
SMALL_MOE: dict[str, Any] = SMALL | {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 40}


@pytest.mark.engine
@pytest.mark.parametrize(
    "config",
    [
        LLAMA,
        MIXTRAL,
        QWEN3,
        QWEN3_MOE,
        QWEN2_MOE,
        OLMOE,
        QWEN2,
        MISTRAL,
        QWEN3_MOE | {"decoder_sparse_step": 2},
        {"model_type": "llama"} | SMALL,
        {"model_type": "llama", "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True} | SMALL,
        {"model_type": "llama", "head_dim": 32} | SMALL,
        {"model_type": "mistral"} | SMALL,
        {"model_type": "qwen2"} | SMALL,
        {"model_type": "qwen3"} | SMALL,
        {"model_type": "qwen3", "attention_bias": True, "head_dim": 16} | SMALL,
        {"model_type": "mixtral", "num_local_experts": 3, "num_experts_per_tok": 2} | SMALL,
        {"model_type": "olmoe", "attention_bias": True} | SMALL_MOE,
        {"model_type": "qwen2_moe", "shared_expert_intermediate_size": 56} | SMALL_MOE,
        {"model_type": "qwen2_moe", "shared_expert_intermediate_size": 56, "qkv_bias": False, "mlp_only_layers": [2]}
        | SMALL_MOE,
        {"model_type": "qwen3_moe"} | SMALL_MOE,
        {"model_type": "qwen3_moe", "decoder_sparse_step": 2, "mlp_only_layers": [1]} | SMALL_MOE,
        {"model_type": "qwen3_moe", "decoder_sparse_step": 2}
        | SMALL_MOE
        | {"num_experts": 1, "num_experts_per_tok": 1},
        {"model_type": "qwen3_moe"} | SMALL_MOE | {"num_experts": 0},
    ],
    ids=lambda config: f"{config['model_type']}-{config['hidden_size']}",
)
def test_counts_equal_those_of_transformers_exactly(config: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    settings = {key: value for key, value in config.items() if key != "model_type" and value is not None}
    built = transformers.AutoConfig.for_model(config["model_type"], **settings)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(built)
    counted = count_parameters(from_config(config))
    # parameters() lists a tied table once.
    assert int(counted.total) == sum(parameter.numel() for parameter in model.parameters())
    routed = sum(p.numel() for name, p in model.named_parameters() if ".experts." in name)
    assert int(counted.experts) == routed
    # The config that transformers itself writes reads back to the same shape.
    written = from_config(json.loads(built.to_json_string(use_diff=False)))
    assert count_parameters(written).to_dict() == counted.to_dict()
