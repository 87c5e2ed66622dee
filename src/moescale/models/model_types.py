"""What the config of each model type says of a shape, as transformers 5 builds it: a reader a type."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, cast

from moescale.models.config_parts import (
    attention_bias,
    experts_of,
    grouped_attention,
    latent_attention,
    qwen_windows,
    shared_and_routed,
    sparse_layers,
    windows_of,
)
from moescale.models.hybrid_types import HYBRID_TYPES
from moescale.models.settings import Settings, shown


def _llama(settings: Settings) -> dict[str, Any]:
    ffn_bias = {"ffn_bias": settings.boolean("mlp_bias", False)}
    return grouped_attention(settings, heads_optional=True) | attention_bias(settings) | ffn_bias


def _mistral(settings: Settings) -> dict[str, Any]:
    # The class's default is the window of Mistral-7B-v0.1; later models say null.
    n_layers = settings.integer("num_hidden_layers")
    return grouped_attention(settings) | windows_of(settings, n_layers, "sliding_window", 4096)


def _qwen2(settings: Settings) -> dict[str, Any]:
    windows = qwen_windows(settings, lambda layers, first: layers[first:])
    return grouped_attention(settings) | {"qkv_bias": True} | windows


def _qwen3(settings: Settings) -> dict[str, Any]:
    windows = qwen_windows(settings, lambda layers, first: layers[first:])
    return grouped_attention(settings, head_dim=128) | attention_bias(settings) | {"qk_norm": True} | windows


def _mixtral(settings: Settings) -> dict[str, Any]:
    n_layers = settings.integer("num_hidden_layers")
    windows = windows_of(settings, n_layers, "sliding_window", None)
    return grouped_attention(settings) | experts_of(settings, "intermediate_size", n_layers) | windows


def _qwen2_moe(settings: Settings) -> dict[str, Any]:
    parts = grouped_attention(settings) | {"qkv_bias": settings.boolean("qkv_bias", True)}
    experts = experts_of(settings, "moe_intermediate_size", sparse_layers(settings), least=0)
    settings.seen.add("shared_expert_intermediate_size")
    if experts:
        shared = settings.integer("shared_expert_intermediate_size", least=0)
        experts |= {"d_shared_expert": shared, "shared_expert_gate": True}
    return parts | experts | qwen_windows(settings, lambda layers, end: layers[:end:2])


def _qwen3_moe(settings: Settings) -> dict[str, Any]:
    experts = experts_of(settings, "moe_intermediate_size", sparse_layers(settings), least=0)
    # Unlike its dense sibling this class gives every layer the window.
    windows = qwen_windows(settings, lambda layers, _: layers, typed=False)
    return grouped_attention(settings) | attention_bias(settings) | {"qk_norm": True} | experts | windows


def _olmoe(settings: Settings) -> dict[str, Any]:
    experts = experts_of(settings, "intermediate_size", settings.integer("num_hidden_layers"))
    norms = {"qk_norm": True, "qk_norm_full_width": True}
    width = {"d_ffn": experts["top_k"] * experts["d_expert"]}
    return grouped_attention(settings, heads_optional=True) | attention_bias(settings) | norms | experts | width


def _gpt_oss(settings: Settings) -> dict[str, Any]:
    n_layers = settings.integer("num_hidden_layers")
    experts = experts_of(settings, "intermediate_size", n_layers)
    settings.seen.add("experts_per_token")  # a second name of num_experts_per_tok
    width = {"d_ffn": experts["top_k"] * experts["d_expert"]}
    flags = {"attention_sinks": True, "router_bias": True, "expert_bias": True}
    stated = settings.layer_types(n_layers, "sliding_attention")
    # By default layers 0, 2, 4 .. have a window, of 128 tokens; heads are 64 wide (both defaults of the class).
    windows = windows_of(settings, (n_layers + 1) // 2 if stated is None else stated, "sliding_window", 128)
    attention = grouped_attention(settings, head_dim=64) | attention_bias(settings, default=True)
    return attention | flags | experts | width | windows


def _deepseek_v2(settings: Settings) -> dict[str, Any]:
    experts = shared_and_routed(settings, settings.integer("first_k_dense_replace", default=0, least=0))
    return latent_attention(settings) | experts | {"ffn_bias": settings.boolean("mlp_bias", False)}


def _deepseek_v3(settings: Settings) -> dict[str, Any]:
    # The bias that corrects the router's scores is in the checkpoint, though transformers keeps it as a buffer.
    experts = shared_and_routed(settings, settings.integer("first_k_dense_replace", least=0))
    return latent_attention(settings) | experts | {"router_bias": True}


def _glm4_moe(settings: Settings) -> dict[str, Any]:
    """Grouped queries, and experts as DeepSeek-V3 has them; the output projection has no bias in any case."""
    bias = {"qkv_bias": settings.boolean("attention_bias", False)}
    norms = {"qk_norm": settings.boolean("use_qk_norm", False)}
    first_expert_layer = settings.integer("first_k_dense_replace", default=1, least=0)
    experts = shared_and_routed(settings, first_expert_layer)
    return grouped_attention(settings) | bias | norms | experts | {"router_bias": True}


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
    stated = settings.layer_types(n_layers, "chunked_attention")
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


def _minimax_m2(settings: Settings) -> dict[str, Any]:
    n_layers = settings.integer("num_hidden_layers")
    experts = experts_of(settings, "intermediate_size", n_layers)
    settings.seen.update(("shared_intermediate_size", "mtp_transformer_layers"))
    width = {"d_ffn": experts["top_k"] * experts["d_expert"]}
    flags = {"qk_norm": True, "qk_norm_full_width": True, "router_bias": True}
    return grouped_attention(settings, head_dim=128) | experts | width | flags


def _mimo(settings: Settings) -> dict[str, Any]:
    # Xiaomi's class is Qwen2's.
    return _qwen2(settings) | {"qkv_bias": settings.boolean("attention_bias", True)}


def _dbrx(settings: Settings) -> dict[str, Any]:
    n_layers, attention, ffn = settings.integer("n_layers"), settings.inner("attn_config"), settings.inner("ffn_config")
    names, met = ("moe_num_experts",), ("moe_top_k",)
    experts = experts_of(ffn, "ffn_hidden_size", n_layers, number_keys=names, top_k=met)
    d_model, n_heads = settings.integer("d_model"), settings.integer("n_heads")
    if d_model % n_heads:
        raise settings.bad("d_model", f"a multiple of n_heads ({n_heads})")
    heads = {"n_kv_heads": attention.integer("kv_n_heads", default=1), "head_dim": d_model // n_heads}
    return heads | experts | {"d_ffn": experts["top_k"] * experts["d_expert"]}


def _phimoe(settings: Settings) -> dict[str, Any]:
    """The norms have biases; that of the last norm and of the LM head are left out (36,160 of 42 billion)."""
    n_layers = settings.integer("num_hidden_layers")
    experts = experts_of(settings, "intermediate_size", n_layers)
    windows = windows_of(settings, n_layers, "sliding_window", None)
    parts = {"norms_per_layer": 4, "d_ffn": experts["top_k"] * experts["d_expert"]}
    return grouped_attention(settings) | attention_bias(settings) | experts | parts | windows


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


def _granitemoe(settings: Settings) -> dict[str, Any]:
    experts = experts_of(settings, "intermediate_size", settings.integer("num_hidden_layers"))
    width = {"d_ffn": experts["top_k"] * experts["d_expert"]}
    width["d_shared_expert"] = settings.integer("shared_intermediate_size", default=0, least=0)
    return grouped_attention(settings, heads_optional=True) | attention_bias(settings) | experts | width


def _olmo2(settings: Settings) -> dict[str, Any]:
    norms = {"qk_norm": True, "qk_norm_full_width": True}
    return grouped_attention(settings, heads_optional=True) | attention_bias(settings) | norms


def _olmo3(settings: Settings) -> dict[str, Any]:
    n_layers = settings.integer("num_hidden_layers")
    stated = settings.layer_types(n_layers, "sliding_attention")
    local = n_layers - n_layers // 4 if stated is None else stated
    return _olmo2(settings) | windows_of(settings, local, "sliding_window", 4096)


MODEL_TYPES: dict[str, Callable[[Settings], dict[str, Any]]] = {
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "mixtral": _mixtral,
    "qwen2_moe": _qwen2_moe,
    "qwen3_moe": _qwen3_moe,
    "olmoe": _olmoe,
    "gpt_oss": _gpt_oss,
    "deepseek_v2": _deepseek_v2,
    "deepseek_v3": _deepseek_v3,
    "kimi_k2": _deepseek_v3,
    "glm4_moe": _glm4_moe,
    "llama4_text": _llama4,
    "qwen3_vl_text": _qwen3,
    "qwen3_vl_moe_text": _qwen3_moe,
    "minimax_m2": _minimax_m2,
    "mimo": _mimo,
    "dbrx": _dbrx,
    "phimoe": _phimoe,
    "hunyuan_v1_moe": _hunyuan,
    "ernie4_5_moe": _ernie4_5_moe,
    "granitemoe": _granitemoe,
    "granitemoeshared": _granitemoe,
    "olmo2": _olmo2,
    "olmo3": _olmo3,
    **HYBRID_TYPES,
}


# Keys of experts, sparse, latent and linear attention, and state spaces: what would make another model of a known type.
_OTHER_MODEL = re.compile(
    r"expert|(^|_)moe(_|$)|^index_|^(kv|q)_lora_rank$|^qk_(nope|rope)_head_dim$|^decoder_sparse_step$|^mlp_only_layers$"
    r"|^first_k_dense_replace$|^(linear|mamba|ssm)_"
)
# Training of routers, and how they score: no shape follows from them.
_NO_SHAPE = re.compile(
    r"router|aux_loss|z_loss|jitter|score|scoring|norm_topk|capacity|dropout|init|bias|_ep_|_tp_|seed"
)
# Names of classes other than the model type's own.
_CLASSES = {
    "kimi_k2": ("DeepseekV3", "KimiK2"),
    "llama4_text": ("Llama4",),
    "minimax_m2": ("MiniMaxM2",),
    "minimax_m3": ("MiniMaxM3",),
    "minimax_m3_vl_text": ("MiniMaxM3", "MiniMaxM3Sparse"),
    "mimo": ("MiMo",),
    "mimo_v2_flash": ("MiMoV2Flash",),
    "step3p7": ("Step3p7", "Step3p7Flash"),
    "granitemoe": ("GraniteMoe",),
    "granitemoeshared": ("GraniteMoeShared",),
    "granitemoehybrid": ("GraniteMoeHybrid",),
    "hunyuan_v1_moe": ("HunYuanMoEV1",),
    "ernie4_5_moe": ("Ernie4_5_Moe",),
    "olmo2": ("Olmo2",),
    "phimoe": ("PhiMoE", "Phimoe"),
}
# No dense layers: the config need not state the width of an FFN, or states that of all layers elsewhere.
NO_FFN_WIDTH = ("qwen3_5_moe_text", "dbrx", "nemotron_h", "gemma4_text")
# Types whose terms are missing, and which.
NO_TERM = {
    "deepseek_v4": "compressed attention (compress_ratios) and hyper-connections (hc_mult)",
    "deepseek_ref": "compressed attention (compress_ratios) and hyper-connections (hc_mult)",
    "nemotron-nas": "layers that differ in attention and FFN width (block_configs)",
    "gemma3n_text": "embeddings a layer, caches that layers share and alternating updates",
    "kimi_k3": "latent experts, residual attention and gates beside Kimi delta attention",
}


def remarks(settings: Settings, model_type: str) -> tuple[str, ...]:
    """What a config says that the reader of its model_type, which has run, did not ask for."""
    found: list[str] = []
    unseen = ((str(key), value) for key, value in settings.config.items() if key not in settings.seen)
    named = ((key, value) for key, value in unseen if _OTHER_MODEL.search(key) and not _NO_SHAPE.search(key))
    unread = [key for key, value in named if _says_something(key, value)]
    if unread:
        sparse = " every token attends to its whole context, and" if any(k.startswith("index_") for k in unread) else ""
        found.append(
            f"{settings.where}: {', '.join(sorted(unread)[:8])}{' ..' if len(unread) > 8 else ''} "
            f"{'is' if len(unread) == 1 else 'are'} no part of model_type {model_type}, and left out:{sparse} the model is "
            f"priced as transformers builds {model_type}; if it is another model, its model_type is wrong"
        )
    names = settings.config.get("architectures")
    stated = cast("list[Any]", names)[0] if isinstance(names, list) and names else None
    prefixes = _CLASSES.get(model_type, ("".join(part.capitalize() for part in model_type.split("_")),))
    if isinstance(stated, str) and not re.match(rf"({'|'.join(prefixes)})(For|Model|Text|$)", stated):
        found.append(
            f"{settings.where}: architectures says {shown(stated)}, which is not model_type {model_type}; the model is "
            f"priced as {model_type}"
        )
    return tuple(found)


def _says_something(key: str, value: Any) -> bool:
    """Whether a value is more than the way to write "none" or "one"; switches and names say nothing of a shape."""
    if isinstance(value, list):
        return bool(cast("list[Any]", value))
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return value > (0 if "shared" in key else 1)
