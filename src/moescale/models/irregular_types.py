"""Readers of the configs whose shape a row of catalogue/model_types.toml cannot say, as transformers 5 builds them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from moescale.models.config_parts import (
    FFNS,
    LINEAR,
    SLIDING,
    attention_bias,
    experts_of,
    grouped_attention,
    latent_attention,
    read_row,
    state_bytes,
    type_rows,
    windows_of,
)
from moescale.models.settings import Settings

TOP_K_NAMES = ("num_experts_per_tok", "num_experts_per_token")


def _llama4(settings: Settings) -> dict[str, Any]:
    n_layers = settings.integer("num_hidden_layers")
    settings.seen.update(("moe_layers", "interleave_moe_layer_step"))
    n_moe_layers = len(settings.layer_numbers("moe_layers", n_layers))
    if settings.config.get("moe_layers") is None:
        n_moe_layers = n_layers // settings.integer("interleave_moe_layer_step", default=1)
    experts = experts_of(settings, "intermediate_size", n_moe_layers)
    if experts:
        experts["d_shared_expert"] = experts["d_expert"]
    # The layers that know positions attend within chunks; by default every fourth knows none (the class's default).
    kinds = settings.kinds("layer_types", n_layers, {"chunked_attention": "local", "full_attention": "full"})
    stated = kinds.count("local") if kinds else None
    rope_layers = settings.entries("no_rope_layers", n_layers)
    if rope_layers is not None and not all(isinstance(entry, int) and entry in (0, 1) for entry in rope_layers):
        raise settings.bad("no_rope_layers", "a list of 0 and 1")
    if stated is None and rope_layers is not None:
        stated = sum(rope_layers)
    if stated is None:
        stated = n_layers - n_layers // settings.integer("no_rope_layer_interval", default=4)
    windows = windows_of(settings, stated, "attention_chunk_size", 8192)
    width = {"d_ffn": settings.integer("intermediate_size_mlp")}
    return grouped_attention(settings, head_dim=128) | attention_bias(settings) | experts | width | windows


def _dbrx(settings: Settings) -> dict[str, Any]:
    n_layers, attention, ffn = settings.integer("n_layers"), settings.inner("attn_config"), settings.inner("ffn_config")
    names, met = ("moe_num_experts",), ("moe_top_k",)
    experts = experts_of(ffn, "ffn_hidden_size", n_layers, number_keys=names, top_k=met)
    d_model, n_heads = settings.integer("d_model"), settings.integer("n_heads")
    if d_model % n_heads:
        raise settings.bad("d_model", f"a multiple of n_heads ({n_heads})")
    heads = {"n_kv_heads": attention.integer("kv_n_heads", default=1), "head_dim": d_model // n_heads}
    return heads | experts | {"d_ffn": experts["top_k"] * experts["d_expert"]}


def _hunyuan(settings: Settings) -> dict[str, Any]:
    """One shared expert of an expert's width; counts that configs give a layer each must be one number."""
    n_layers = settings.integer("num_hidden_layers")
    alike = Settings({key: _one_for_all(settings, key) for key in settings.config}, settings.where)
    experts = experts_of(alike, "intermediate_size", n_layers, number_keys=("num_experts",), top_k=("moe_topk",))
    shared = alike.integer("num_shared_expert", default=1, least=0)
    settings.seen.update(("num_experts", "moe_topk", "num_shared_expert", "moe_intermediate_size"))
    if settings.boolean("use_cla", False):
        raise settings.bad("use_cla", "false: caches that layers share have no term here")
    parts = {"d_shared_expert": shared * experts["d_expert"], "d_ffn": experts["top_k"] * experts["d_expert"]}
    attention = grouped_attention(settings, heads_optional=True) | attention_bias(settings)
    return attention | experts | parts | {"qk_norm": settings.boolean("use_qk_norm", True)}


def _one_for_all(settings: Settings, key: str) -> Any:
    value = settings.config[key]
    if not isinstance(value, list) or key not in ("moe_topk", "num_shared_expert", "moe_intermediate_size"):
        return value
    entries = cast("list[Any]", value)
    if not entries or any(entry != entries[0] for entry in entries):
        raise settings.bad(key, "the same number in every layer")
    return entries[0]


def _ernie4_5_moe(settings: Settings) -> dict[str, Any]:
    n_layers = settings.integer("num_hidden_layers")
    first = settings.integer("moe_layer_start_index", default=1, least=0)
    last = settings.integer("moe_layer_end_index", default=-1, least=-1)
    last = n_layers - 1 if last == -1 else min(last, n_layers - 1)
    step = settings.integer("moe_layer_interval", default=1)
    n_moe_layers = sum(first <= layer <= last and (layer + 1) % step == 0 for layer in range(n_layers))
    names, met = ("moe_num_experts", "num_experts"), ("moe_k", "num_experts_per_tok")
    experts = experts_of(settings, "moe_intermediate_size", n_moe_layers, number_keys=names, top_k=met)
    shared = settings.integer("moe_num_shared_experts", default=2, least=0)
    bias = settings.boolean("use_bias", False)
    parts = {"tied_embeddings": settings.boolean("tie_word_embeddings", True), "router_bias": True}
    parts |= {"qkv_bias": bias, "attention_output_bias": bias, "ffn_bias": bias}
    if experts:
        parts["d_shared_expert"] = shared * experts["d_expert"]
    return grouped_attention(settings, heads_optional=True) | experts | parts


def _glm_moe_dsa(settings: Settings) -> dict[str, Any]:
    """GLM-5; from 5.2 on three of four layers take the choice of the layer before, without an indexer of their own."""
    n_layers = settings.integer("num_hidden_layers")
    kinds = settings.kinds("indexer_types", n_layers, {"full": "full", "shared": "shared"})
    every = settings.integer("index_topk_freq", default=1)
    offset = settings.integer("index_skip_topk_offset", default=2, least=0)
    n_full = sum(max(layer - offset + 1, 0) % every == 0 for layer in range(n_layers))
    return read_row(settings, type_rows()["glm_moe_dsa"]) | {"n_index_layers": kinds.count("full") if kinds else n_full}


def _deepseek_v4(settings: Settings) -> dict[str, Any]:
    """Windows in all layers, and a compressed cache in most; the tables that send tokens to experts in the first are left out."""
    n_layers = settings.integer("num_hidden_layers")
    ratios = settings.config.get("compress_ratios")
    # Further entries are of the layers that predict further tokens.
    settings.seen.add("compress_ratios")
    if not isinstance(ratios, list) or len(cast("list[Any]", ratios)) < n_layers:
        raise settings.bad("compress_ratios", f"a list with an entry for each of {n_layers} layers")
    listed = cast("list[Any]", ratios)[:n_layers]
    if not all(ratio in (0, 4, 128) for ratio in listed):
        raise settings.bad("compress_ratios", "a list of 0, 4 and 128")
    n_compressed = listed.count(4)
    own = {"n_compressed_layers": n_compressed, "n_heavy_layers": listed.count(128)}
    own |= {"n_sparse_layers": n_compressed, "n_index_layers": n_compressed}
    experts = experts_of(settings, "moe_intermediate_size", n_layers, number_keys=("n_routed_experts",))
    shared = {"d_shared_expert": settings.integer("n_shared_experts", default=1, least=0) * experts["d_expert"]}
    return read_row(settings, type_rows()["deepseek_v4"]) | own | experts | shared


def _minimax_m3(settings: Settings) -> dict[str, Any]:
    """Ordinary attention to blocks of keys that an indexer chooses, but in the first layers."""
    n_layers = settings.integer("num_hidden_layers")
    sparse = settings.inner("sparse_attention_config")
    types = {"minimax_m3_sparse": "sparse", "full_attention": "full"}
    kinds = settings.kinds("layer_types", n_layers, types)
    kinds = kinds or sparse.kinds("sparse_attention_freq", n_layers, {"0": "full", "1": "sparse"})
    n_sparse = kinds.count("sparse") if kinds else 0
    ffns = settings.kinds("mlp_layer_types", n_layers, FFNS) or settings.kinds("moe_layer_freq", n_layers, FFNS)
    width_key = "moe_intermediate_size" if "moe_intermediate_size" in settings.config else "intermediate_size"
    experts = experts_of(settings, width_key, ffns.count("experts") if ffns else n_layers)
    settings.seen.update(("n_shared_experts", "first_k_dense_replace"))
    shared = settings.integer("shared_intermediate_size", default=3072, least=0)
    parts: dict[str, Any] = {"qk_norm": True, "router_bias": True, "d_shared_expert": shared}
    parts |= {"d_ffn": settings.integer("dense_intermediate_size", default=12288)}
    if n_sparse:
        blocks = settings.integer("index_topk_blocks", default=sparse.integer("sparse_topk_blocks", default=16))
        size = settings.integer("index_block_size", default=sparse.integer("sparse_block_size", default=128))
        heads = sparse.integer("sparse_num_index_heads", default=4)
        dim = sparse.integer("sparse_index_dim", default=128)
        parts |= {
            "index_topk": blocks * size,
            "index_n_heads": settings.integer("index_n_heads", default=heads),
            "index_head_dim": settings.integer("index_head_dim", default=dim),
            "n_sparse_layers": n_sparse,
            "n_index_layers": n_sparse,
        }
    return grouped_attention(settings, head_dim=128) | experts | parts


_LETTERS = {"M": "linear", "*": "full", "-": "dense", "E": "experts"}
_BLOCKS = {
    "mamba": "linear",
    "linear_attention": "linear",
    "attention": "full",
    "full_attention": "full",
    "mlp": "dense",
    "moe": "experts",
}


def nemotron_blocks(settings: Settings) -> list[str]:
    """The kind of each block, which is one of a state space, attention, an FFN, experts."""
    settings.seen.update(("hybrid_override_pattern", "layers_block_type"))
    pattern = settings.config.get("hybrid_override_pattern")
    if pattern is not None:
        if not (isinstance(pattern, str) and pattern and set(pattern) <= set(_LETTERS)):
            raise settings.bad("hybrid_override_pattern", f"a text of {' '.join(_LETTERS)}")
        return [_LETTERS[letter] for letter in pattern]
    listed = settings.config.get("layers_block_type")
    n_blocks = settings.integer(
        "num_hidden_layers", default=len(cast("list[Any]", listed)) if isinstance(listed, list) else None
    )
    kinds = settings.kinds("layers_block_type", n_blocks, _BLOCKS) or settings.kinds("layer_types", n_blocks, _BLOCKS)
    if kinds is None:
        raise settings.bad("hybrid_override_pattern", "a text that names every layer")
    return kinds


def _nemotron_h(settings: Settings) -> dict[str, Any]:
    """Blocks of one kind each: those that mix tokens count as layers, and FFNs go with the layer before."""
    blocks = nemotron_blocks(settings)
    n_linear, n_full = blocks.count("linear"), blocks.count("full")
    n_dense, n_moe = blocks.count("dense"), blocks.count("experts")
    n_layers = n_linear + n_full
    if n_dense + n_moe > n_layers:
        raise settings.bad(
            "hybrid_override_pattern", "one with as many blocks of state and attention as of FFNs at least"
        )
    parts: dict[str, Any] = {
        "n_layers": n_layers,
        "n_layers_without_ffn": n_layers - n_dense - n_moe,
        "ffn_matrices": 2,
    }
    if n_moe:
        parts |= experts_of(settings, "moe_intermediate_size", n_moe, number_keys=("n_routed_experts",))
        settings.seen.update(("n_shared_experts", "moe_shared_expert_intermediate_size"))
        parts["d_shared_expert"] = settings.integer("moe_shared_expert_intermediate_size", default=7688, least=0)
        parts["router_bias"] = True
        if settings.config.get("moe_latent_size") is not None:
            parts["d_expert_model"] = settings.integer("moe_latent_size")
    head_dim = settings.integer("head_dim", "attention_head_dim", default=128)
    heads = grouped_attention(settings, head_dim=128) | {"head_dim": head_dim}
    settings.seen.update(("mamba_hidden_act", "mamba_proj_bias"))
    return (
        heads
        | attention_bias(settings)
        | {"ffn_bias": settings.boolean("mlp_bias", False)}
        | parts
        | {
            "n_linear_layers": n_linear,
            "linear_kind": "mamba2",
            "linear_n_key_heads": settings.integer("n_groups", default=8),
            "linear_n_value_heads": settings.integer("mamba_num_heads", default=128),
            "linear_key_dim": settings.integer("ssm_state_size", default=128),
            "linear_value_dim": settings.integer("mamba_head_dim", default=64),
            "linear_conv": settings.integer("conv_kernel", default=4),
            **state_bytes(settings, "mamba_ssm_cache_dtype", 4.0),
        }
    )


def _granite_hybrid(settings: Settings) -> dict[str, Any]:
    n_layers, d_model = settings.integer("num_hidden_layers"), settings.integer("hidden_size")
    kinds = settings.kinds("layer_types", n_layers, LINEAR) or settings.kinds("layers_block_type", n_layers, LINEAR)
    n_linear = kinds.count("linear") if kinds else n_layers
    heads = settings.integer("mamba_n_heads", default=128)
    inner = settings.integer("mamba_expand", default=2) * d_model
    settings.seen.update(("mamba_d_head", "mamba_proj_bias", "mamba_conv_bias", "mamba_chunk_size"))
    if inner % heads:
        raise settings.bad("mamba_n_heads", f"a divisor of mamba_expand times hidden_size ({inner})")
    shared = settings.integer("shared_intermediate_size", default=1024, least=0)
    experts = experts_of(settings, "intermediate_size", n_layers, least=0, number_keys=("num_local_experts",))
    width = {"d_shared_expert": shared, "d_ffn": shared} if experts else {"d_ffn": shared}
    parts: dict[str, Any] = {"n_linear_layers": n_linear, "linear_kind": "mamba2"} if n_linear else {}
    if n_linear:
        parts |= {
            "linear_n_key_heads": settings.integer("mamba_n_groups", default=1),
            "linear_n_value_heads": heads,
            "linear_key_dim": settings.integer("mamba_d_state", default=256),
            "linear_value_dim": inner // heads,
            "linear_conv": settings.integer("mamba_d_conv", default=4),
            "linear_state_bytes": 2.0,  # vLLM holds the state in the model's dtype unless told otherwise
        }
    return grouped_attention(settings, heads_optional=True) | attention_bias(settings) | experts | width | parts


def _jamba(settings: Settings) -> dict[str, Any]:
    n_layers, d_model = settings.integer("num_hidden_layers"), settings.integer("hidden_size")

    def of(what: str, period: int, offset: int) -> int:
        step = settings.integer(f"{what}_layer_period", default=period)
        first = settings.integer(f"{what}_layer_offset", default=offset, least=0)
        return sum(layer % step == first for layer in range(n_layers))

    n_full, n_moe = of("attn", 8, 4), of("expert", 2, 1)
    experts = experts_of(settings, "intermediate_size", n_moe, number_keys=("num_experts",))
    experts = experts if experts.get("n_experts", 1) > 1 else {}
    settings.seen.update(("mamba_conv_bias", "mamba_proj_bias"))
    rank = settings.config.get("mamba_dt_rank")
    settings.seen.add("mamba_dt_rank")
    automatic = rank is None or rank == "auto"
    return (
        grouped_attention(settings, heads_optional=True)
        | experts
        | {
            "n_linear_layers": n_layers - n_full,
            "linear_kind": "mamba",
            "linear_n_key_heads": 1,
            "linear_n_value_heads": settings.integer("mamba_expand", default=2) * d_model,
            "linear_key_dim": settings.integer("mamba_d_state", default=16),
            "linear_value_dim": 1,
            "linear_conv": settings.integer("mamba_d_conv", default=4),
            "linear_rank": -(-d_model // 16) if automatic else settings.integer("mamba_dt_rank"),
            "linear_state_bytes": 2.0,  # vLLM holds the state in the model's dtype unless told otherwise
        }
    )


def _kimi_linear(settings: Settings) -> dict[str, Any]:
    """Kimi delta attention beside latent attention."""
    for key in ("routed_expert_hidden_size", "attn_res_block_size", "mla_use_output_gate"):
        if settings.config.get(key):
            raise settings.bad(key, "absent: Kimi K3's residual attention and gates have no published shape here")
    n_layers, linear = settings.integer("num_hidden_layers"), settings.inner("linear_attn_config")
    kinds = settings.kinds("layer_types", n_layers, LINEAR)
    n_linear = kinds.count("linear") if kinds else len(linear.layer_numbers("kda_layers", n_layers + 1))
    if not kinds and not n_linear:
        n_linear = n_layers - sum(layer > 0 and layer % 4 == 0 for layer in range(n_layers))
    ffns = settings.kinds("mlp_layer_types", n_layers, FFNS)
    dense = settings.integer("first_k_dense_replace", default=1, least=0)
    first = n_layers - ffns.count("experts") if ffns else dense
    names = ("num_local_experts", "num_experts", "n_routed_experts")
    experts = experts_of(settings, "moe_intermediate_size", n_layers - first, number_keys=names, top_k=TOP_K_NAMES)
    if experts:
        number = settings.integer("n_shared_experts", "num_shared_experts", default=1, least=0)
        experts["d_shared_expert"] = number * experts["d_expert"]
    heads = settings.integer("linear_num_heads", default=linear.integer("num_heads", default=32))
    dim = settings.integer("linear_head_dim", default=linear.integer("head_dim", default=128))
    kernel = linear.integer("short_conv_kernel_size", default=4)
    return (
        latent_attention(settings)
        | experts
        | {
            "router_bias": True,
            "n_linear_layers": n_linear,
            "linear_kind": "kda",
            "linear_n_key_heads": heads,
            "linear_n_value_heads": heads,
            "linear_key_dim": dim,
            "linear_value_dim": dim,
            "linear_conv": settings.integer("linear_conv_kernel_dim", default=kernel),
            "linear_rank": dim,
        }
    )


def _gemma4(settings: Settings) -> dict[str, Any]:
    """Full attention has fewer and wider heads, whose values are their keys; experts stand beside the dense FFN."""
    for key in ("hidden_size_per_layer_input", "num_kv_shared_layers"):
        if settings.integer(key, default=256 if key.startswith("hidden") else 0, least=0):
            raise settings.bad(key, "0: embeddings a layer and shared caches (Gemma 4 E2B, E4B) have no term here")
    parts = read_row(settings, type_rows()["gemma4_text"])
    local = {"window_head_dim": parts["head_dim"], "window_n_kv_heads": parts["n_kv_heads"]}
    if parts.get("n_window_layers"):
        cached = settings.integer("num_global_key_value_heads", default=parts["n_kv_heads"])
        full = {"head_dim": settings.integer("global_head_dim", default=512), "n_kv_heads": cached}
        parts |= local | full | {"full_keys_are_values": settings.boolean("attention_k_eq_v", False)}
    if not settings.boolean("enable_moe_block", False):
        return parts
    names = ("top_k_experts", "num_experts_per_tok")
    experts = experts_of(settings, "moe_intermediate_size", settings.integer("num_hidden_layers"), top_k=names)
    experts |= {"d_shared_expert": settings.integer("intermediate_size"), "router_bias": True}
    # Three more norms, and the router's scale of as many weights.
    return parts | experts | {"norms_per_layer": 8}


def _mimo_v2_flash(settings: Settings) -> dict[str, Any]:
    n_layers = settings.integer("num_hidden_layers")
    kinds = settings.kinds("layer_types", n_layers, SLIDING) or settings.kinds(
        "hybrid_layer_pattern", n_layers, SLIDING
    )
    n_local = kinds.count("local") if kinds else n_layers - 1 - n_layers // 6
    ffns = settings.kinds("mlp_layer_types", n_layers, FFNS) or settings.kinds("moe_layer_freq", n_layers, FFNS)
    n_moe = ffns.count("experts") if ffns else n_layers - 1
    experts = experts_of(settings, "moe_intermediate_size", n_moe, number_keys=("n_routed_experts",))
    heads = grouped_attention(settings, head_dim=192)
    value = settings.integer("v_head_dim", default=128)
    cached = settings.integer("swa_num_key_value_heads", default=2 * heads["n_kv_heads"])
    own = {"window_n_kv_heads": cached, "attention_sinks": True, "v_head_dim": value, "router_bias": True}
    settings.seen.update(("swa_num_attention_heads", "swa_head_dim", "swa_v_head_dim", "n_shared_experts"))
    windows = windows_of(settings, n_local, "sliding_window", 129)
    bias = {"qkv_bias": settings.boolean("attention_bias", False)}
    return heads | bias | experts | own | windows


def _step3p7(settings: Settings) -> dict[str, Any]:
    other = settings.inner("attention_other_setting").integer("num_attention_heads", default=0, least=0)
    heads = settings.integer("num_sliding_attention_heads", default=other, least=0)
    return read_row(settings, type_rows()["step3p7"]) | {"window_n_heads": heads}


IRREGULAR_TYPES: dict[str, Callable[[Settings], dict[str, Any]]] = {
    "llama4_text": _llama4,
    "dbrx": _dbrx,
    "hunyuan_v1_moe": _hunyuan,
    "ernie4_5_moe": _ernie4_5_moe,
    "glm_moe_dsa": _glm_moe_dsa,
    "deepseek_v4": _deepseek_v4,
    "deepseek_ref": _deepseek_v4,
    "minimax_m3": _minimax_m3,
    "minimax_m3_vl_text": _minimax_m3,
    "nemotron_h": _nemotron_h,
    "granitemoehybrid": _granite_hybrid,
    "jamba": _jamba,
    "kimi_linear": _kimi_linear,
    "gemma4_text": _gemma4,
    "mimo_v2_flash": _mimo_v2_flash,
    "step3p7": _step3p7,
    "step3p7_text": _step3p7,
}
