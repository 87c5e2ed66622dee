"""The shape of a decoder-only transformer, dense or MoE, from numbers or a Hugging Face config.json."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from os import PathLike
from pathlib import Path
from string import ascii_letters
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from moescale import catalogue
from moescale.errors import InputError, nearest_names, unknown_name
from moescale.units import parse_quantity

FloatArray = npt.NDArray[np.float64]
Real = float | FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """Shape of one transformer, or of many: every number may be an array (one entry a model) and real-valued.

    Real values let an allocation search move through sizes continuously; a buildable model holds whole numbers.
    Layer norms are counted with `d_model` weights each (RMSNorm).
    """

    n_layers: Real
    d_model: Real
    n_heads: Real
    n_kv_heads: Real
    head_dim: Real
    d_ffn: Real  # width of the FFN in layers without experts
    n_moe_layers: Real = 0.0  # how many of n_layers hold experts instead of one FFN
    n_experts: Real = 1.0  # routed experts in each MoE layer
    top_k: Real = 1.0  # routed experts that one token meets (never more than n_experts)
    d_expert: Real = 0.0  # FFN width of one routed expert
    d_shared_expert: Real = 0.0  # FFN width of all shared experts of a layer together
    ffn_matrices: int = 3  # 3 for a gated FFN (gate, up, down), 2 for a plain one
    vocab_size: Real = 0.0  # 0: embeddings are left out of every count
    tied_embeddings: bool = False
    qk_norm: bool = False  # per-head RMSNorm of queries and keys (Qwen3)
    qkv_bias: bool = False  # biases of the query, key and value projections (Qwen2)
    # The paper's abstraction of N and E: norms and routers count nothing, and n_kv_heads shrinks the cache only.
    matrices_only: bool = False
    name: str = ""
    qk_norm_full_width: bool = False  # with qk_norm: one weight for every channel of all heads (OLMoE), not per head
    attention_output_bias: bool = False  # bias of the output projection of attention
    ffn_bias: bool = False  # biases of the matrices of FFNs and shared experts
    shared_expert_gate: bool = False  # a learned scalar gate in front of the shared experts (Qwen2-MoE)
    # Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1): on where kv_lora_rank is positive. The
    # cache then holds kv_lora_rank + qk_rope_head_dim elements a token and layer; head_dim is that of queries and keys
    # (their part without position and the one with it together), and n_kv_heads equals n_heads.
    kv_lora_rank: Real = 0.0  # width of the compressed keys and values; 0: ordinary attention
    q_lora_rank: Real = 0.0  # width of the compressed queries; 0: queries are not compressed (DeepSeek-V2-Lite)
    qk_rope_head_dim: Real = 0.0  # channels of a head's query that carry the position; all heads share their key
    v_head_dim: Real = 0.0  # width of a head's value; 0: head_dim
    # Local attention: so many of n_layers see, and cache, the last `window_tokens` tokens only.
    n_window_layers: Real = 0.0
    window_tokens: Real = 0.0
    attention_sinks: bool = False  # a learned logit a head (gpt-oss)
    router_bias: bool = False  # a bias an expert in the router (gpt-oss; DeepSeek-V3's correction of the scores)
    expert_bias: bool = False  # biases of the routed experts' matrices only (gpt-oss)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A published model: its architecture and the parameter counts that its authors state."""

    architecture: Architecture
    published_total: float
    published_active: float  # the total for a dense model
    published_digit: float  # value of one unit in the last digit of published_total
    published_active_digit: float
    source: str
    date: str
    not_modelled: float = 0.0  # parameters of published_total outside of the architecture (vision, learned positions)
    active_input_embedding: bool = True  # whether published_active holds the input embedding, which is only looked up
    published_kv_bytes: float | None = None  # of bf16 cache a token, where a publication states it
    published_kv_digit: float = 0.0
    fits_hl: bool = True  # belongs to the dense models that the catalogue's mu of h l = mu N^(2/3) was fitted to


def validate(architecture: Architecture, where: str | None = None) -> Architecture:
    """The same architecture, or InputError where a field would make a count, a division or a memory meaningless.

    Layers, widths and heads must be finite and positive, n_moe_layers at most n_layers, and where a layer holds
    experts: n_experts at least 1, top_k above 0 and at most n_experts, d_expert positive. Local attention needs a window
    of at least a token; latent attention as many key-value heads as heads, and a head wider than its positional part.
    """
    a = architecture

    def need(holds: Any, what: str) -> None:
        if not np.all(holds):
            raise InputError(what, where=where or (a.name or None))

    for key in (field.name for field in fields(Architecture)):
        value = getattr(a, key)
        if not isinstance(value, str | bool):
            number = np.asarray(value, dtype=float)
            need(np.isfinite(number) & (number >= 0), f"{key} must be a finite number of 0 or more")
    for key in ("n_layers", "d_model", "n_heads", "n_kv_heads", "head_dim"):
        need(np.asarray(getattr(a, key)) > 0, f"{key} must be positive")
    need(a.ffn_matrices in (2, 3), "ffn_matrices must be 3 (gated) or 2 (plain)")
    moe_layers, n_layers = np.asarray(a.n_moe_layers, dtype=float), np.asarray(a.n_layers, dtype=float)
    need(moe_layers <= n_layers, "n_moe_layers must not exceed n_layers")
    need((np.asarray(a.d_ffn) > 0) | (moe_layers == n_layers), "d_ffn must be positive in layers without experts")
    dense = moe_layers == 0
    need(dense | (np.asarray(a.n_experts) >= 1), "n_experts must be 1 or more")
    top_k = np.asarray(a.top_k, dtype=float)
    need(dense | ((top_k > 0) & (top_k <= a.n_experts)), "top_k must lie above 0 and not exceed n_experts")
    need(dense | (np.asarray(a.d_expert) > 0), "d_expert must be positive where layers hold experts")
    local = np.asarray(a.n_window_layers, dtype=float)
    need(local <= n_layers, "n_window_layers must not exceed n_layers")
    need(
        (local == 0) | (np.asarray(a.window_tokens) >= 1), "window_tokens must be 1 or more where layers have a window"
    )
    ordinary = np.asarray(a.kv_lora_rank) == 0
    need(ordinary | (np.asarray(a.n_kv_heads) == a.n_heads), "n_kv_heads must equal n_heads with latent attention")
    need(ordinary | (np.asarray(a.qk_rope_head_dim) < a.head_dim), "qk_rope_head_dim must be below head_dim")
    need(~ordinary | (np.asarray(a.q_lora_rank) == 0), "q_lora_rank needs a positive kv_lora_rank")
    return architecture


# Parts: parameters of one layer, of the whole model or on the fullest of the GPUs that tensor parallelism splits it over.


def value_head_dim(architecture: Architecture) -> FloatArray:
    """Channels of one head's value."""
    v = np.asarray(architecture.v_head_dim, dtype=float)
    return np.where(v > 0, v, architecture.head_dim)


def kv_heads_per_gpu(architecture: Architecture, tensor_parallel: Real = 1.0) -> FloatArray:
    """Key-value heads on each of `tensor_parallel` GPUs: split until one is left, which more GPUs then replicate."""
    heads = np.asarray(architecture.n_kv_heads, dtype=float)
    return np.maximum(heads / tensor_parallel, np.minimum(heads, 1.0))


def attention_matrix_params(architecture: Architecture, tensor_parallel: Real = 1.0) -> FloatArray:
    """Parameters of the attention matrices of one layer on each of `tensor_parallel` GPUs.

    Heads are split as `kv_heads_per_gpu` says; the projections that compress queries, keys and values for all heads of
    latent attention are held by every GPU.
    """
    a = architecture
    heads = np.asarray(a.n_heads, dtype=float) / tensor_parallel
    if a.matrices_only:
        return np.asarray(4.0 * a.d_model * heads * a.head_dim)
    qk, value = a.head_dim, value_head_dim(a)
    grouped = a.d_model * (heads * (qk + value) + kv_heads_per_gpu(a, tensor_parallel) * (qk + value))
    latent_width = np.asarray(a.kv_lora_rank, dtype=float)
    if not np.any(latent_width):
        return np.asarray(grouped)
    query_rank = np.asarray(a.q_lora_rank, dtype=float)
    queries = np.where(query_rank > 0, query_rank * (a.d_model + heads * qk), a.d_model * heads * qk)
    compressed = a.d_model * (latent_width + a.qk_rope_head_dim)
    expanded = latent_width * heads * (qk - a.qk_rope_head_dim + value)
    latent = queries + compressed + expanded + heads * value * a.d_model
    return np.where(latent_width > 0, latent, grouped)


def attention_vector_params(architecture: Architecture, tensor_parallel: Real = 1.0) -> FloatArray:
    """Biases and attention sinks of one layer on each of `tensor_parallel` GPUs.

    They go where their matrix goes; the bias of the output, which is a sum over GPUs, is held by every one.
    """
    a = architecture
    heads = np.asarray(a.n_heads, dtype=float) / tensor_parallel
    count = np.zeros(())
    if a.qkv_bias:
        qk, value = a.head_dim, value_head_dim(a)
        grouped = heads * qk + kv_heads_per_gpu(a, tensor_parallel) * (qk + value)
        # Of latent attention only the compressing projections have a bias.
        compressed = np.asarray(a.q_lora_rank, dtype=float) + a.kv_lora_rank + a.qk_rope_head_dim
        count = count + np.where(np.asarray(a.kv_lora_rank) > 0, compressed, grouped)
    if a.attention_output_bias:
        count = count + a.d_model
    if a.attention_sinks:
        count = count + heads
    return count


def attention_params(architecture: Architecture) -> FloatArray:
    """Parameters of the attention of one layer: its projections, with their biases, and sinks."""
    if architecture.matrices_only:
        return attention_matrix_params(architecture)
    return attention_matrix_params(architecture) + attention_vector_params(architecture)


def ffn_matrix_params(architecture: Architecture, width: Real) -> FloatArray:
    """Parameters of the matrices of one FFN (or expert) of `width`; broadcasts with the architecture's fields."""
    a = architecture
    return np.asarray(np.asarray(width, dtype=float) * a.d_model * a.ffn_matrices)


def ffn_vector_params(architecture: Architecture, width: Real) -> FloatArray:
    """Biases of one FFN (or expert) of `width`, where it has any: every matrix but the last widens to `width`."""
    a = architecture
    return np.asarray(np.asarray(width, dtype=float) * (a.ffn_matrices - 1) + a.d_model)


def ffn_params(architecture: Architecture, width: Real) -> FloatArray:
    """Parameters of one FFN (no routed expert) of `width`; broadcasts with the architecture's fields."""
    count = ffn_matrix_params(architecture, width)
    return count + ffn_vector_params(architecture, width) if architecture.ffn_bias else count


def expert_params(architecture: Architecture) -> FloatArray:
    """Parameters of one routed expert, `d_expert` wide."""
    a = architecture
    count = ffn_matrix_params(a, a.d_expert)
    return count + ffn_vector_params(a, a.d_expert) if a.expert_bias else count


def dense_equivalent_params(architecture: Architecture) -> FloatArray:
    """N: parameters without embeddings, norms and routers of the same model with one FFN where it has experts.

    That FFN is `d_ffn` wide or, where no width is given, as wide as all that one token meets (top_k experts and the
    shared ones).
    """
    a = architecture
    met = np.asarray(a.top_k, dtype=float) * a.d_expert + a.d_shared_expert
    width = np.where(np.asarray(a.d_ffn) > 0, a.d_ffn, met)
    return np.asarray(a.n_layers * (attention_params(a) + ffn_params(a, width)))


def hl_coefficient(architectures: Iterable[Architecture]) -> tuple[float, FloatArray]:
    """mu of h l = mu N^(2/3) over real shapes, and each shape's relative error (fitted over actual, minus one).

    Least squares on the logarithms with the exponent fixed (paper's appendix B and figure 9); h is d_model, l is
    n_layers, N the dense-equivalent parameters. Raises InputError when there is no shape.
    """
    shapes_given = list(architectures)
    if not shapes_given:
        raise InputError("no architecture to fit h l = mu N^(2/3) to", next_step="pass at least one, or shapes()")
    width_depth = np.array([float(a.d_model * a.n_layers) for a in shapes_given])
    n_params = np.array([float(dense_equivalent_params(a)) for a in shapes_given])
    log_mu = np.mean(np.log(width_depth) - 2 / 3 * np.log(n_params))
    mu = float(np.exp(log_mu))
    return mu, mu * n_params ** (2 / 3) / width_depth - 1


# Hugging Face configurations.

_LARGEST = 10**9  # no width, depth, vocabulary or number of experts comes near; beyond it products lose digits
_LARGEST_FILE = 16 * 2**20  # bytes; a config.json has a few thousand, weights by mistake have billions


def from_config(config: Mapping[str, Any] | str | PathLike[str]) -> Architecture:
    """The architecture that a Hugging Face config states: a mapping, a config.json, or the folder that holds one.

    Reads model_type llama, mistral, qwen2, qwen3, mixtral, qwen2_moe, qwen3_moe, olmoe, gpt_oss, deepseek_v2, deepseek_v3,
    kimi_k2 and llama4_text as transformers 5 builds them (absent optional keys take its defaults), and of a model that
    also sees or hears (llama4 ..) the text model, under text_config. Where a model has experts in every layer, d_ffn is
    the width that its intermediate_size gives (olmoe, gpt_oss: what the chosen experts of a token have together).

    Layers for the prediction of further tokens (num_nextn_predict_layers of DeepSeek-V3) are left out, as the published
    671B leaves them out and servers do unless told otherwise; quantization_config is ignored, the precision of weights
    is an argument of its own; attention in chunks (llama4) counts as a window of a chunk, which it is at the chunk's end.

    Raises InputError for a file that cannot be read, another model_type, a missing or impossible value; the message
    names file and key.
    """
    if isinstance(config, Mapping):
        return _architecture(config, "config")
    path = Path(config)
    return _architecture(*_load(path))


def _load(path: Path) -> tuple[Mapping[str, Any], str]:
    try:
        if path.is_dir():
            path = path / "config.json"
        if not path.exists():
            raise InputError(
                "no such file", where=str(path), next_step="give a config.json, or the folder that holds one"
            )
        with path.open("rb") as file:
            content = file.read(_LARGEST_FILE + 1)
        if len(content) > _LARGEST_FILE:
            raise InputError("too large for a config.json", where=str(path), next_step="give the model's config.json")
        parsed = json.loads(content.decode("utf-8-sig"))
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror or error})", where=str(path)) from error
    except UnicodeDecodeError as error:
        raise InputError("not a text file", where=str(path), next_step="give the model's config.json") from error
    except (ValueError, RecursionError) as error:  # malformed JSON, a NUL in the path, numbers or nesting beyond limits
        raise InputError(f"not JSON ({error})", where=repr(str(path))) from error
    if not isinstance(parsed, dict):
        raise InputError(f"holds a JSON {type(parsed).__name__}, not an object of settings", where=str(path))
    return cast("dict[str, Any]", parsed), str(path)


def _shown(value: Any) -> str:
    """The start of what `value` looks like."""
    try:
        return repr(value)[:60]
    except ValueError:  # Python refuses to print whole numbers of more than a few thousand digits
        return "a number of thousands of digits"


class _Settings:
    """Checked access to one config: every answer is in range, every complaint names file and key."""

    def __init__(self, config: Mapping[str, Any], where: str) -> None:
        self.config = config
        self.where = where

    def bad(self, key: str, wanted: str) -> InputError:
        return InputError(f"{key} must be {wanted}, not {_shown(self.config.get(key))}", where=self.where)

    def integer(self, *keys: str, default: int | None = None, least: int = 1) -> int:
        """The whole number under the first of `keys`; all of those present must agree. Null counts as absent."""
        present = [key for key in keys if self.config.get(key) is not None]
        if not present:
            if default is not None:
                return default
            raise InputError(
                f"{' or '.join(keys)} is missing",
                where=self.where,
                nearest=nearest_names(keys[0], [str(key) for key in self.config]),
                next_step="add it: without it the model's shape is unknown",
            )
        values = {key: self._integer(key, least) for key in present}
        if len(set(values.values())) > 1:
            raise InputError(
                f"{' and '.join(present)} disagree ({', '.join(map(str, values.values()))})", where=self.where
            )
        return values[present[0]]

    def _integer(self, key: str, least: int) -> int:
        value = self.config[key]
        wanted = f"a whole number from {least} to {_LARGEST}"
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.bad(key, wanted)
        # Comparisons first: they hold for NaN, infinities and integers of any length; int() does not.
        if not least <= value <= _LARGEST or (isinstance(value, float) and not value.is_integer()):
            raise self.bad(key, wanted)
        return int(value)

    def boolean(self, key: str, default: bool) -> bool:
        value = self.config.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.bad(key, "true or false")
        return value

    def rank(self, key: str) -> int:
        """The whole number under `key`, which must be there; null, the way to write "not at all", is 0."""
        if key in self.config and self.config[key] is None:
            return 0
        return self.integer(key, least=0)

    def entries(self, key: str, n_layers: int) -> list[Any] | None:
        """The list under `key` with one entry a layer; None where it is absent, null or empty."""
        value = self.config.get(key)
        if value is None or (isinstance(value, list) and not value):
            return None
        if not isinstance(value, list | tuple) or len(cast("list[Any]", value)) != n_layers:
            raise self.bad(key, f"a list with one entry for each of {n_layers} layers")
        return list(cast("list[Any]", value))

    def layer_types(self, n_layers: int, local: str) -> int | None:
        """How many of `n_layers` entries of layer_types say `local`, the others full_attention; None where absent."""
        types = self.entries("layer_types", n_layers)
        if types is None:
            return None
        known = (local, "full_attention")
        # A comparison, not a look-up: entries may be anything that JSON holds.
        if not all(any(entry == name for name in known) for entry in types):
            raise self.bad("layer_types", f"a list of {' and '.join(known)}")
        return types.count(local)

    def layer_numbers(self, key: str, n_layers: int) -> set[int]:
        value = self.config.get(key)
        if value is None:
            return set()
        entries: list[Any] = list(cast("list[Any]", value)) if isinstance(value, list | tuple) else [None]
        if not all(
            isinstance(entry, int) and not isinstance(entry, bool) and 0 <= entry < n_layers for entry in entries
        ):
            raise self.bad(key, f"a list of layer numbers from 0 to {n_layers - 1}")
        return set(entries)


def _architecture(config: Mapping[str, Any], where: str) -> Architecture:
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise InputError(
            "model_type is missing" if model_type is None else "model_type must be a text",
            where=where,
            next_step=f"supported: {', '.join(_FAMILIES)}",
        )
    text = config.get("text_config")
    if model_type not in _FAMILIES and isinstance(text, Mapping):
        return _text_model(model_type, cast("Mapping[str, Any]", text), where)
    if model_type not in _FAMILIES:
        raise unknown_name("model_type", model_type[:60], _FAMILIES, where=where)
    settings = _Settings(config, where)
    name = config.get("_name_or_path")
    parts = _common(settings) | _FAMILIES[model_type](settings)
    built = Architecture(**parts, name=name if isinstance(name, str) and name else model_type)
    return validate(built, where)


# transformers writes a nested config without the keys that have the defaults of its Llama4TextConfig.
_NESTED_LLAMA4: dict[str, Any] = {
    "model_type": "llama4_text",
    "vocab_size": 202048,
    "hidden_size": 5120,
    "intermediate_size": 8192,
    "intermediate_size_mlp": 16384,
    "num_hidden_layers": 48,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "num_experts_per_tok": 1,
    "num_local_experts": 16,
}


def _text_model(model_type: str, text: Mapping[str, Any], where: str) -> Architecture:
    """The text model of a model that has more inputs than text."""
    inside = f"{where}, text_config"
    if model_type == "llama4":
        text = _NESTED_LLAMA4 | dict(text)
    if text.get("model_type") not in list(_FAMILIES):  # a list compares: the value may be anything that JSON holds
        raise InputError(
            f"unknown model_type {_shown(text.get('model_type'))} of the text model of {_shown(model_type)}",
            where=inside,
            next_step=f"known: {', '.join(_FAMILIES)}",
        )
    return _architecture(text, inside)


def _common(settings: _Settings) -> dict[str, Any]:
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
    settings: _Settings, *, heads_optional: bool = False, head_dim: int | None = None
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


def _latent_attention(settings: _Settings) -> dict[str, Any]:
    """Multi-head latent attention; every head has a key and a value of its own, whatever num_key_value_heads says."""
    rope = settings.integer("qk_rope_head_dim")
    bias = settings.boolean("attention_bias", False)
    return {
        "n_kv_heads": settings.integer("num_attention_heads"),
        "head_dim": settings.integer("qk_nope_head_dim") + rope,
        "kv_lora_rank": settings.integer("kv_lora_rank"),
        "q_lora_rank": settings.rank("q_lora_rank"),
        "qk_rope_head_dim": rope,
        "v_head_dim": settings.integer("v_head_dim"),
        "qkv_bias": bias,
        "attention_output_bias": bias,
    }


def _windows(n_window_layers: int, window_tokens: int | None) -> dict[str, Any]:
    if not n_window_layers or window_tokens is None:
        return {}
    return {"n_window_layers": n_window_layers, "window_tokens": window_tokens}


def _window_tokens(settings: _Settings, key: str, default: int | None) -> int | None:
    """The window under `key`; null says that there is none, an absent key takes the class's default."""
    if default is None and settings.config.get(key) is None:
        return None
    if key in settings.config and settings.config[key] is None:
        return None
    return settings.integer(key, default=default)


def _qwen_windows(settings: _Settings, n_window_layers: Callable[[int, int], int], *, typed: bool) -> dict[str, Any]:
    """Sliding windows of a Qwen model, off unless use_sliding_window says so; 4096 and 28 are its classes' defaults.

    `n_window_layers`(layers, max_window_layers) counts the layers with a window where layer_types does not.
    """
    if not settings.boolean("use_sliding_window", False):
        return {}
    n_layers = settings.integer("num_hidden_layers")
    stated = settings.layer_types(n_layers, "sliding_attention") if typed else None
    counted = n_window_layers(n_layers, settings.integer("max_window_layers", default=28, least=0))
    return _windows(counted if stated is None else stated, _window_tokens(settings, "sliding_window", 4096))


def _attention_bias(settings: _Settings, default: bool = False) -> dict[str, Any]:
    bias = settings.boolean("attention_bias", default)
    return {"qkv_bias": bias, "attention_output_bias": bias}


def _experts(
    settings: _Settings,
    width_key: str,
    n_moe_layers: int,
    *,
    least: int = 1,
    number_keys: tuple[str, ...] = ("num_experts", "num_local_experts"),
) -> dict[str, Any]:
    n_experts = settings.integer(*number_keys, least=least)
    if n_experts == 0 or n_moe_layers == 0:
        return {}
    top_k = settings.integer("num_experts_per_tok")
    if top_k > n_experts:
        raise settings.bad("num_experts_per_tok", f"at most the number of experts ({n_experts})")
    return {
        "n_moe_layers": n_moe_layers,
        "n_experts": n_experts,
        "top_k": top_k,
        "d_expert": settings.integer(width_key),
    }


def _sparse_layers(settings: _Settings) -> int:
    """How many layers hold experts: those whose number, from 1, is a multiple of decoder_sparse_step."""
    n_layers = settings.integer("num_hidden_layers")
    step = settings.integer("decoder_sparse_step", default=1)
    dense = settings.layer_numbers("mlp_only_layers", n_layers)
    return n_layers // step - sum(1 for layer in dense if (layer + 1) % step == 0)


def _llama(settings: _Settings) -> dict[str, Any]:
    ffn_bias = {"ffn_bias": settings.boolean("mlp_bias", False)}
    return _grouped_attention(settings, heads_optional=True) | _attention_bias(settings) | ffn_bias


def _mistral(settings: _Settings) -> dict[str, Any]:
    # The class's default is the window of Mistral-7B-v0.1; later models say null.
    window = _window_tokens(settings, "sliding_window", 4096)
    return _grouped_attention(settings) | _windows(settings.integer("num_hidden_layers"), window)


def _qwen2(settings: _Settings) -> dict[str, Any]:
    windows = _qwen_windows(settings, _layers_from, typed=True)
    return _grouped_attention(settings) | {"qkv_bias": True} | windows


def _qwen3(settings: _Settings) -> dict[str, Any]:
    windows = _qwen_windows(settings, _layers_from, typed=True)
    return _grouped_attention(settings, head_dim=128) | _attention_bias(settings) | {"qk_norm": True} | windows


def _layers_from(n_layers: int, first: int) -> int:
    """Layers number `first` and later."""
    return max(n_layers - first, 0)


def _every_other_before(n_layers: int, end: int) -> int:
    """Layers 0, 2, 4 .. below `end`."""
    return (min(n_layers, end) + 1) // 2


def _mixtral(settings: _Settings) -> dict[str, Any]:
    n_layers = settings.integer("num_hidden_layers")
    windows = _windows(n_layers, _window_tokens(settings, "sliding_window", None))
    return _grouped_attention(settings) | _experts(settings, "intermediate_size", n_layers) | windows


def _qwen2_moe(settings: _Settings) -> dict[str, Any]:
    parts = _grouped_attention(settings) | {"qkv_bias": settings.boolean("qkv_bias", True)}
    experts = _experts(settings, "moe_intermediate_size", _sparse_layers(settings), least=0)
    if experts:
        experts["d_shared_expert"] = settings.integer("shared_expert_intermediate_size", least=0)
        experts["shared_expert_gate"] = True
    return parts | experts | _qwen_windows(settings, _every_other_before, typed=True)


def _qwen3_moe(settings: _Settings) -> dict[str, Any]:
    experts = _experts(settings, "moe_intermediate_size", _sparse_layers(settings), least=0)
    # Unlike its dense sibling this class gives every layer the window.
    windows = _qwen_windows(settings, lambda n_layers, _: n_layers, typed=False)
    return _grouped_attention(settings) | _attention_bias(settings) | {"qk_norm": True} | experts | windows


def _olmoe(settings: _Settings) -> dict[str, Any]:
    experts = _experts(settings, "intermediate_size", settings.integer("num_hidden_layers"))
    norms = {"qk_norm": True, "qk_norm_full_width": True}
    width = {"d_ffn": experts["top_k"] * experts["d_expert"]}
    return _grouped_attention(settings, heads_optional=True) | _attention_bias(settings) | norms | experts | width


def _gpt_oss(settings: _Settings) -> dict[str, Any]:
    n_layers = settings.integer("num_hidden_layers")
    experts = _experts(settings, "intermediate_size", n_layers)
    width = {"d_ffn": experts["top_k"] * experts["d_expert"]}
    flags = {"attention_sinks": True, "router_bias": True, "expert_bias": True}
    stated = settings.layer_types(n_layers, "sliding_attention")
    # By default layers 0, 2, 4 .. have a window, of 128 tokens; heads are 64 wide (both defaults of the class).
    windows = _windows(
        (n_layers + 1) // 2 if stated is None else stated, _window_tokens(settings, "sliding_window", 128)
    )
    attention = _grouped_attention(settings, head_dim=64) | _attention_bias(settings, default=True)
    return attention | flags | experts | width | windows


def _deepseek(settings: _Settings, first_expert_layer: int) -> dict[str, Any]:
    """Latent attention, a dense FFN in the first layers, and shared beside routed experts in every moe_layer_freq-th later.

    transformers takes moe_layer_freq for 1, which all published models state; the authors' own code and vLLM heed it.
    """
    n_layers = settings.integer("num_hidden_layers")
    step = settings.integer("moe_layer_freq", default=1)
    # Layers whose number, from 0, is a multiple of the step, from the first expert layer on.
    n_moe_layers = max(-(-n_layers // step) - -(-first_expert_layer // step), 0)
    experts = _experts(settings, "moe_intermediate_size", n_moe_layers, number_keys=("n_routed_experts",))
    if experts:
        experts["d_shared_expert"] = settings.rank("n_shared_experts") * experts["d_expert"]
    return _latent_attention(settings) | experts


def _deepseek_v2(settings: _Settings) -> dict[str, Any]:
    parts = _deepseek(settings, settings.integer("first_k_dense_replace", default=0, least=0))
    return parts | {"ffn_bias": settings.boolean("mlp_bias", False)}


def _deepseek_v3(settings: _Settings) -> dict[str, Any]:
    # The bias that corrects the router's scores is in the checkpoint, though transformers keeps it as a buffer.
    return _deepseek(settings, settings.integer("first_k_dense_replace", least=0)) | {"router_bias": True}


def _llama4(settings: _Settings) -> dict[str, Any]:
    n_layers = settings.integer("num_hidden_layers")
    if settings.config.get("moe_layers") is None:
        n_moe_layers = n_layers // settings.integer("interleave_moe_layer_step", default=1)
    else:
        n_moe_layers = len(settings.layer_numbers("moe_layers", n_layers))
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
    windows = _windows(stated, _window_tokens(settings, "attention_chunk_size", 8192))
    width = {"d_ffn": settings.integer("intermediate_size_mlp")}
    return _grouped_attention(settings, head_dim=128) | _attention_bias(settings) | experts | width | windows


_FAMILIES: dict[str, Callable[[_Settings], dict[str, Any]]] = {
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
    "llama4_text": _llama4,
}


# Published shapes.


def _last_digit(text: str) -> float:
    """Value of one unit in the last digit of a published figure such as 46.7B or 70.272KB."""
    number = text.rstrip(ascii_letters)
    decimals = len(number.partition(".")[2])
    return parse_quantity(f"1{text[len(number) :]}") * 10.0**-decimals


_SHAPE_KEYS = frozenset(field.name for field in fields(Architecture))


@cache
def _read_shapes() -> tuple[tuple[str, Shape], ...]:
    read: list[tuple[str, Shape]] = []
    for name, entry in catalogue.read("shapes.toml")["shape"].items():
        total: str = entry["published_total"]
        active: str = entry.get("published_active", total)
        kv: str | None = entry.get("published_kv_bytes")
        shape = Shape(
            architecture=Architecture(**{key: entry[key] for key in _SHAPE_KEYS & set(entry)}, name=name),
            published_total=parse_quantity(total),
            published_active=parse_quantity(active),
            published_digit=_last_digit(total),
            published_active_digit=_last_digit(active),
            source=entry["source"],
            date=entry["date"],
            not_modelled=float(entry.get("not_modelled", 0)),
            active_input_embedding=entry.get("active_input_embedding", True),
            published_kv_bytes=None if kv is None else parse_quantity(kv),
            published_kv_digit=0.0 if kv is None else _last_digit(kv),
            fits_hl=entry.get("fits_hl", not entry.get("n_moe_layers", 0)),
        )
        read.append((name, shape))
    return tuple(read)


def published_shapes() -> dict[str, Shape]:
    """Every published model of the catalogue with its stated counts and source."""
    return dict(_read_shapes())


def shapes() -> dict[str, Architecture]:
    """The architectures of the published models of the catalogue by name."""
    return {name: shape.architecture for name, shape in _read_shapes()}


def shapes_of_hl() -> dict[str, Architecture]:
    """The dense published models whose depth and width the catalogue's h l = mu N^(2/3) was fitted to."""
    return {name: shape.architecture for name, shape in _read_shapes() if shape.fits_hl}
