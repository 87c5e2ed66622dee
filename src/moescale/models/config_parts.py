"""Parts that the configs of many model types state alike, and what a row of catalogue/model_types.toml makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, cast

from moescale import catalogue
from moescale.models.settings import Settings

SLIDING = {"sliding_attention": "local", "full_attention": "full", "1": "local", "0": "full"}
LINEAR = {"linear_attention": "linear", "mamba": "linear", "full_attention": "full", "attention": "full"}
FFNS = {"dense": "dense", "sparse": "experts", "0": "dense", "1": "experts"}
FP32 = ("float32", "torch.float32")


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


def _windows(settings: Settings, row: Mapping[str, Any]) -> dict[str, Any]:
    """As a row's `windows` says. Qwen's classes have none unless use_sliding_window says so; 28 is their default."""
    rule, n_layers = row["layers"], settings.integer("num_hidden_layers")
    if rule.startswith("qwen") and not settings.boolean("use_sliding_window", False):
        return {}
    kinds = settings.kinds("layer_types", n_layers, SLIDING) if row.get("listed", True) else None
    chosen = n_layers
    if rule.startswith("qwen"):
        first = min(settings.integer("max_window_layers", default=28, least=0), n_layers)
        chosen = {"qwen-after": n_layers - first, "qwen-alternate": -(-first // 2), "qwen-all": n_layers}[rule]
    elif rule == "every":
        key = row.get("every_key")
        chosen = n_layers - n_layers // (settings.integer(key, default=row["every"]) if key else row["every"])
    elif rule != "all":
        chosen = {"half": -(-n_layers // 2), "none": 0}[rule]
    return windows_of(settings, kinds.count("local") if kinds else chosen, row["key"], row.get("default"))


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


def _experts(settings: Settings, row: Mapping[str, Any]) -> dict[str, Any]:
    n_layers = settings.integer("num_hidden_layers")
    n_moe_layers = sparse_layers(settings) if row["layers"] == "sparse_step" else n_layers
    if row["layers"] == "first":
        # transformers takes moe_layer_freq for 1, which all published models state; the authors' own code and vLLM heed it.
        ffns = settings.kinds("mlp_layer_types", n_layers, FFNS) if row.get("listed") else None
        dense = settings.integer("first_k_dense_replace", default=row.get("first"), least=0)
        step, first = settings.integer("moe_layer_freq", default=1), n_layers - ffns.count("experts") if ffns else dense
        # Layers whose number, from 0, is a multiple of the step, from the first expert layer on.
        n_moe_layers = max(-(-n_layers // step) - -(-first // step), 0)
    keys = tuple(row.get("number", ("num_experts", "num_local_experts")))
    experts = experts_of(settings, row["width"], n_moe_layers, least=row.get("least", 1), number_keys=keys)
    settings.seen.update(row[key] for key in ("gate", "shared_number") if key in row)
    if not experts:
        return {}
    if "gate" in row:
        experts |= {"d_shared_expert": settings.integer(row["gate"], least=0), "shared_expert_gate": True}
    if "shared_number" in row:
        experts["d_shared_expert"] = settings.rank(row["shared_number"]) * experts["d_expert"]
    if row.get("chosen_width"):
        experts["d_ffn"] = experts["top_k"] * experts["d_expert"]
    return experts


def _linear(settings: Settings, row: Mapping[str, Any]) -> dict[str, Any]:
    n_layers = settings.integer("num_hidden_layers")
    kinds = settings.kinds("layer_types", n_layers, LINEAR)
    step = settings.integer("full_attention_interval", default=row["every"])
    n_linear = kinds.count("linear") if kinds else n_layers - n_layers // step
    return {"n_linear_layers": n_linear, "linear_kind": row["kind"]} | state_bytes(settings, row["state_bytes"], 4.0)


def state_bytes(settings: Settings, key: str, default: float) -> dict[str, Any]:
    """Bytes of an element of the state: as the config asks, or the class's default."""
    stated = settings.config.get(key)
    settings.seen.add(key)
    return {"linear_state_bytes": default if stated is None else 4.0 if stated in FP32 else 2.0}


def _field(settings: Settings, source: Any) -> Any:
    """A field's number or switch: `source` itself, or what stands under its key."""
    if not isinstance(source, Mapping):
        return source
    at = cast("Mapping[str, Any]", source)
    if isinstance(at.get("default"), bool):
        return settings.boolean(at["key"], at["default"])
    return settings.integer(at["key"], default=at.get("default"), least=at.get("least", 1))


def read_row(settings: Settings, row: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of an Architecture that a config of the row's model type states; see the head of catalogue/model_types.toml."""
    if row.get("latent"):
        parts = latent_attention(settings)
    else:
        optional, head_dim = row.get("kv_heads_optional", False), row.get("head_dim")
        parts = grouped_attention(settings, heads_optional=optional, head_dim=head_dim)
        parts |= attention_bias(settings, row["attention_bias"]) if "attention_bias" in row else {}
    settings.seen.update(row.get("known", ()))
    for name, reader in (("experts", _experts), ("windows", _windows), ("linear", _linear)):
        parts |= reader(settings, row[name]) if name in row else {}
    if "indexer" in row:
        n_layers = settings.integer("num_hidden_layers")
        parts |= {
            "index_topk": settings.integer("index_topk", default=2048),
            "index_n_heads": settings.integer("index_n_heads", default=row["indexer"]),
            "index_head_dim": settings.integer("index_head_dim", default=128),
            "n_sparse_layers": n_layers,
            "n_index_layers": n_layers,
        }
    return parts | {name: _field(settings, source) for name, source in row.get("fields", {}).items()}


def _merged(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """A row with what another adds; tables within are merged, too."""
    both = {key: _merged(base[key], own[key]) for key in base.keys() & own.keys() if isinstance(own[key], Mapping)}
    return {**base, **own, **both}


@cache
def type_table() -> dict[str, Any]:
    """The content of catalogue/model_types.toml."""
    return catalogue.read("model_types.toml")


@cache
def type_rows() -> dict[str, dict[str, Any]]:
    """Its rows by model type, each with what it takes from the one that it is `like`."""
    rows: dict[str, dict[str, Any]] = {}
    for name, row in type_table()["type"].items():
        base = {} if "like" not in row else {k: v for k, v in rows[row["like"]].items() if k != "classes"}
        rows[name] = _merged(base, row)
    return rows
