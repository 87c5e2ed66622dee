"""Parts that the configs of many model types state alike: heads, windows, experts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from moescale.models.settings import Settings


def common(settings: Settings, *, ffn_optional: bool = False, layers_optional: bool = False) -> dict[str, Any]:
    """What nearly every config states in the same words.

    The width of the FFN may be absent where all layers hold experts, the number of layers where a list names each.
    """
    return {
        "d_model": settings.integer("hidden_size"),
        "n_layers": settings.integer("num_hidden_layers", default=0 if layers_optional else None),
        "n_heads": settings.integer("num_attention_heads"),
        "vocab_size": settings.integer("vocab_size"),
        # All classes default to separate tables; small Qwen models say true in their config.
        "tied_embeddings": settings.boolean("tie_word_embeddings", False),
        "d_ffn": settings.integer("intermediate_size", default=0 if ffn_optional else None),
    }


def grouped_attention(
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


def latent_attention(settings: Settings) -> dict[str, Any]:
    """Multi-head latent attention; every head has a key and a value of its own, whatever num_key_value_heads says."""
    rope = settings.integer("qk_rope_head_dim")
    return attention_bias(settings) | {
        "n_kv_heads": settings.integer("num_attention_heads"),
        "head_dim": settings.integer("qk_nope_head_dim") + rope,
        "kv_lora_rank": settings.integer("kv_lora_rank"),
        "q_lora_rank": settings.rank("q_lora_rank"),
        "qk_rope_head_dim": rope,
        "v_head_dim": settings.integer("v_head_dim"),
    }


def windows_of(settings: Settings, n_window_layers: int, key: str, default: int | None) -> dict[str, Any]:
    """Layers with a window under `key`; null says that there is none, an absent key takes the class's default."""
    stated = settings.config.get(key)
    if stated is None and (default is None or key in settings.config):
        return {}
    window = settings.integer(key, default=default)
    return {"n_window_layers": n_window_layers, "window_tokens": window} if n_window_layers else {}


def qwen_windows(settings: Settings, layers: Callable[[range, int], range], *, typed: bool = True) -> dict[str, Any]:
    """Sliding windows of a Qwen model, off unless use_sliding_window says so; 4096 and 28 are its classes' defaults.

    `layers`(all layers, max_window_layers) are those with a window where layer_types does not say.
    """
    if not settings.boolean("use_sliding_window", False):
        return {}
    n_layers = settings.integer("num_hidden_layers")
    stated = settings.layer_types(n_layers, "sliding_attention") if typed else None
    chosen = layers(range(n_layers), settings.integer("max_window_layers", default=28, least=0))
    return windows_of(settings, len(chosen) if stated is None else stated, "sliding_window", 4096)


def attention_bias(settings: Settings, default: bool = False) -> dict[str, Any]:
    bias = settings.boolean("attention_bias", default)
    return {"qkv_bias": bias, "attention_output_bias": bias}


def experts_of(
    settings: Settings,
    width_key: str,
    n_moe_layers: int,
    *,
    least: int = 1,
    number_keys: tuple[str, ...] = ("num_experts", "num_local_experts"),
    top_k: tuple[str, ...] = ("num_experts_per_tok",),
) -> dict[str, Any]:
    n_experts = settings.integer(*number_keys, least=least)
    settings.seen.update((*top_k, width_key))
    if n_experts == 0 or n_moe_layers == 0:
        return {}
    met = settings.integer(*top_k)
    if met > n_experts:
        raise settings.bad(top_k[0], f"at most the number of experts ({n_experts})")
    width = settings.integer(width_key)
    return {"n_moe_layers": n_moe_layers, "n_experts": n_experts, "top_k": met, "d_expert": width}


def sparse_layers(settings: Settings) -> int:
    """How many layers hold experts: those whose number, from 1, is a multiple of decoder_sparse_step."""
    n_layers = settings.integer("num_hidden_layers")
    step = settings.integer("decoder_sparse_step", default=1)
    dense = settings.layer_numbers("mlp_only_layers", n_layers)
    return n_layers // step - sum(1 for layer in dense if (layer + 1) % step == 0)


def shared_and_routed(settings: Settings, first_expert_layer: int) -> dict[str, Any]:
    """A dense FFN in the first layers, and shared beside routed experts in every moe_layer_freq-th later.

    transformers takes moe_layer_freq for 1, which all published models state; the authors' own code and vLLM heed it.
    """
    n_layers = settings.integer("num_hidden_layers")
    step = settings.integer("moe_layer_freq", default=1)
    # Layers whose number, from 0, is a multiple of the step, from the first expert layer on.
    n_moe_layers = max(-(-n_layers // step) - -(-first_expert_layer // step), 0)
    experts = experts_of(settings, "moe_intermediate_size", n_moe_layers, number_keys=("n_routed_experts",))
    settings.seen.add("n_shared_experts")
    if experts:
        experts["d_shared_expert"] = settings.rank("n_shared_experts") * experts["d_expert"]
    return experts
