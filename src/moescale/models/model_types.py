"""What the config of each model type says of a shape, as transformers 5 builds it: a reader a type."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, cast

from moescale.models.settings import Settings, shown


def common(settings: Settings) -> dict[str, Any]:
    return {
        "d_model": settings.integer("hidden_size"),
        "n_layers": settings.integer("num_hidden_layers"),
        "n_heads": settings.integer("num_attention_heads"),
        "vocab_size": settings.integer("vocab_size"),
        # All classes default to separate tables; small Qwen models say true in their config.
        "tied_embeddings": settings.boolean("tie_word_embeddings", False),
        "d_ffn": settings.integer("intermediate_size"),
    }


def _grouped_attention(
    settings: Settings, *, heads_optional: bool = False, head_dim: int | None = None
) -> dict[str, Any]:
    """Key-value heads and head width; `head_dim` is the class's default, None for d_model / n_heads."""
    d_model, n_heads = settings.integer("hidden_size"), settings.integer("num_attention_heads")
    # Grouped-query attention is the default of most classes, with numbers that suit one model only.
    optional = heads_optional or "num_key_value_heads" in settings.config
    n_kv_heads = settings.integer("num_key_value_heads", default=n_heads if optional else None)
    if n_heads % n_kv_heads:
        raise settings.bad("num_key_value_heads", f"a divisor of num_attention_heads ({n_heads})")
    if settings.config.get("head_dim") is None and head_dim is None and d_model % n_heads:
        raise settings.bad("hidden_size", f"a multiple of num_attention_heads ({n_heads}), unless head_dim is given")
    return {"n_kv_heads": n_kv_heads, "head_dim": settings.integer("head_dim", default=head_dim or d_model // n_heads)}


def _latent_attention(settings: Settings) -> dict[str, Any]:
    """Multi-head latent attention; every head has a key and a value of its own, whatever num_key_value_heads says."""
    rope = settings.integer("qk_rope_head_dim")
    return _attention_bias(settings) | {
        "n_kv_heads": settings.integer("num_attention_heads"),
        "head_dim": settings.integer("qk_nope_head_dim") + rope,
        "kv_lora_rank": settings.integer("kv_lora_rank"),
        "q_lora_rank": settings.rank("q_lora_rank"),
        "qk_rope_head_dim": rope,
        "v_head_dim": settings.integer("v_head_dim"),
    }


def _windows(settings: Settings, n_window_layers: int, key: str, default: int | None) -> dict[str, Any]:
    """Layers with a window under `key`; null says that there is none, an absent key takes the class's default."""
    stated = settings.config.get(key)
    if stated is None and (default is None or key in settings.config):
        return {}
    window = settings.integer(key, default=default)
    return {"n_window_layers": n_window_layers, "window_tokens": window} if n_window_layers else {}


def _qwen_windows(settings: Settings, layers: Callable[[range, int], range], *, typed: bool = True) -> dict[str, Any]:
    """Sliding windows of a Qwen model, off unless use_sliding_window says so; 4096 and 28 are its classes' defaults.

    `layers`(all layers, max_window_layers) are those with a window where layer_types does not say.
    """
    if not settings.boolean("use_sliding_window", False):
        return {}
    n_layers = settings.integer("num_hidden_layers")
    stated = settings.layer_types(n_layers, "sliding_attention") if typed else None
    chosen = layers(range(n_layers), settings.integer("max_window_layers", default=28, least=0))
    return _windows(settings, len(chosen) if stated is None else stated, "sliding_window", 4096)


def _attention_bias(settings: Settings, default: bool = False) -> dict[str, Any]:
    bias = settings.boolean("attention_bias", default)
    return {"qkv_bias": bias, "attention_output_bias": bias}


def _experts(
    settings: Settings,
    width_key: str,
    n_moe_layers: int,
    *,
    least: int = 1,
    number_keys: tuple[str, ...] = ("num_experts", "num_local_experts"),
) -> dict[str, Any]:
    n_experts = settings.integer(*number_keys, least=least)
    settings.seen.update(("num_experts_per_tok", width_key))
    if n_experts == 0 or n_moe_layers == 0:
        return {}
    top_k = settings.integer("num_experts_per_tok")
    if top_k > n_experts:
        raise settings.bad("num_experts_per_tok", f"at most the number of experts ({n_experts})")
    width = settings.integer(width_key)
    return {"n_moe_layers": n_moe_layers, "n_experts": n_experts, "top_k": top_k, "d_expert": width}


def _sparse_layers(settings: Settings) -> int:
    """How many layers hold experts: those whose number, from 1, is a multiple of decoder_sparse_step."""
    n_layers = settings.integer("num_hidden_layers")
    step = settings.integer("decoder_sparse_step", default=1)
    dense = settings.layer_numbers("mlp_only_layers", n_layers)
    return n_layers // step - sum(1 for layer in dense if (layer + 1) % step == 0)


def _llama(settings: Settings) -> dict[str, Any]:
    ffn_bias = {"ffn_bias": settings.boolean("mlp_bias", False)}
    return _grouped_attention(settings, heads_optional=True) | _attention_bias(settings) | ffn_bias


def _mistral(settings: Settings) -> dict[str, Any]:
    # The class's default is the window of Mistral-7B-v0.1; later models say null.
    n_layers = settings.integer("num_hidden_layers")
    return _grouped_attention(settings) | _windows(settings, n_layers, "sliding_window", 4096)


def _qwen2(settings: Settings) -> dict[str, Any]:
    windows = _qwen_windows(settings, lambda layers, first: layers[first:])
    return _grouped_attention(settings) | {"qkv_bias": True} | windows


def _qwen3(settings: Settings) -> dict[str, Any]:
    windows = _qwen_windows(settings, lambda layers, first: layers[first:])
    return _grouped_attention(settings, head_dim=128) | _attention_bias(settings) | {"qk_norm": True} | windows


def _mixtral(settings: Settings) -> dict[str, Any]:
    n_layers = settings.integer("num_hidden_layers")
    windows = _windows(settings, n_layers, "sliding_window", None)
    return _grouped_attention(settings) | _experts(settings, "intermediate_size", n_layers) | windows


def _qwen2_moe(settings: Settings) -> dict[str, Any]:
    parts = _grouped_attention(settings) | {"qkv_bias": settings.boolean("qkv_bias", True)}
    experts = _experts(settings, "moe_intermediate_size", _sparse_layers(settings), least=0)
    settings.seen.add("shared_expert_intermediate_size")
    if experts:
        shared = settings.integer("shared_expert_intermediate_size", least=0)
        experts |= {"d_shared_expert": shared, "shared_expert_gate": True}
    return parts | experts | _qwen_windows(settings, lambda layers, end: layers[:end:2])


def _qwen3_moe(settings: Settings) -> dict[str, Any]:
    experts = _experts(settings, "moe_intermediate_size", _sparse_layers(settings), least=0)
    # Unlike its dense sibling this class gives every layer the window.
    windows = _qwen_windows(settings, lambda layers, _: layers, typed=False)
    return _grouped_attention(settings) | _attention_bias(settings) | {"qk_norm": True} | experts | windows


def _olmoe(settings: Settings) -> dict[str, Any]:
    experts = _experts(settings, "intermediate_size", settings.integer("num_hidden_layers"))
    norms = {"qk_norm": True, "qk_norm_full_width": True}
    width = {"d_ffn": experts["top_k"] * experts["d_expert"]}
    return _grouped_attention(settings, heads_optional=True) | _attention_bias(settings) | norms | experts | width


def _gpt_oss(settings: Settings) -> dict[str, Any]:
    n_layers = settings.integer("num_hidden_layers")
    experts = _experts(settings, "intermediate_size", n_layers)
    settings.seen.add("experts_per_token")  # a second name of num_experts_per_tok
    width = {"d_ffn": experts["top_k"] * experts["d_expert"]}
    flags = {"attention_sinks": True, "router_bias": True, "expert_bias": True}
    stated = settings.layer_types(n_layers, "sliding_attention")
    # By default layers 0, 2, 4 .. have a window, of 128 tokens; heads are 64 wide (both defaults of the class).
    windows = _windows(settings, (n_layers + 1) // 2 if stated is None else stated, "sliding_window", 128)
    attention = _grouped_attention(settings, head_dim=64) | _attention_bias(settings, default=True)
    return attention | flags | experts | width | windows


def _shared_and_routed(settings: Settings, first_expert_layer: int) -> dict[str, Any]:
    """A dense FFN in the first layers, and shared beside routed experts in every moe_layer_freq-th later.

    transformers takes moe_layer_freq for 1, which all published models state; the authors' own code and vLLM heed it.
    """
    n_layers = settings.integer("num_hidden_layers")
    step = settings.integer("moe_layer_freq", default=1)
    # Layers whose number, from 0, is a multiple of the step, from the first expert layer on.
    n_moe_layers = max(-(-n_layers // step) - -(-first_expert_layer // step), 0)
    experts = _experts(settings, "moe_intermediate_size", n_moe_layers, number_keys=("n_routed_experts",))
    settings.seen.add("n_shared_experts")
    if experts:
        experts["d_shared_expert"] = settings.rank("n_shared_experts") * experts["d_expert"]
    return experts


def _deepseek_v2(settings: Settings) -> dict[str, Any]:
    experts = _shared_and_routed(settings, settings.integer("first_k_dense_replace", default=0, least=0))
    return _latent_attention(settings) | experts | {"ffn_bias": settings.boolean("mlp_bias", False)}


def _deepseek_v3(settings: Settings) -> dict[str, Any]:
    # The bias that corrects the router's scores is in the checkpoint, though transformers keeps it as a buffer.
    experts = _shared_and_routed(settings, settings.integer("first_k_dense_replace", least=0))
    return _latent_attention(settings) | experts | {"router_bias": True}


def _glm4_moe(settings: Settings) -> dict[str, Any]:
    """Grouped queries, and experts as DeepSeek-V3 has them; the output projection has no bias in any case."""
    bias = {"qkv_bias": settings.boolean("attention_bias", False)}
    norms = {"qk_norm": settings.boolean("use_qk_norm", False)}
    first_expert_layer = settings.integer("first_k_dense_replace", default=1, least=0)
    experts = _shared_and_routed(settings, first_expert_layer)
    return _grouped_attention(settings) | bias | norms | experts | {"router_bias": True}


def _llama4(settings: Settings) -> dict[str, Any]:
    n_layers = settings.integer("num_hidden_layers")
    settings.seen.update(("moe_layers", "interleave_moe_layer_step"))
    n_moe_layers = len(settings.layer_numbers("moe_layers", n_layers))
    if settings.config.get("moe_layers") is None:
        n_moe_layers = n_layers // settings.integer("interleave_moe_layer_step", default=1)
    experts = _experts(settings, "intermediate_size", n_moe_layers)
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
    windows = _windows(settings, stated, "attention_chunk_size", 8192)
    width = {"d_ffn": settings.integer("intermediate_size_mlp")}
    return _grouped_attention(settings, head_dim=128) | _attention_bias(settings) | experts | width | windows


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
_CLASSES = {"kimi_k2": ("DeepseekV3", "KimiK2"), "llama4_text": ("Llama4",)}


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
