"""The shape of a decoder-only transformer, dense or MoE, from numbers or a Hugging Face config.json."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from os import PathLike
from pathlib import Path
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
    ffn_bias: bool = False  # biases of the FFN's matrices
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


def validate(architecture: Architecture, where: str | None = None) -> Architecture:
    """The same architecture, or InputError where a field would make a count, a division or a memory meaningless.

    Layers, widths and heads must be finite and positive, n_moe_layers at most n_layers, and where a layer holds
    experts: n_experts at least 1, top_k above 0 and at most n_experts, d_expert positive.
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
    return architecture


# Parts: parameters of one layer.


def attention_params(architecture: Architecture) -> FloatArray:
    """Parameters of the attention of one layer: four projections, with their biases."""
    a = architecture
    query_width = np.asarray(a.n_heads, dtype=float) * a.head_dim
    if a.matrices_only:
        return np.asarray(4.0 * a.d_model * query_width)
    kv_width = np.asarray(a.n_kv_heads, dtype=float) * a.head_dim
    count = 2 * a.d_model * (query_width + kv_width)
    if a.qkv_bias:
        count = count + query_width + 2 * kv_width
    if a.attention_output_bias:
        count = count + a.d_model
    return np.asarray(count)


def ffn_params(architecture: Architecture, width: Real) -> FloatArray:
    """Parameters of one FFN (or expert) of `width`; broadcasts with the architecture's fields."""
    a = architecture
    count = np.asarray(width, dtype=float) * a.d_model * a.ffn_matrices
    if a.ffn_bias:  # every matrix but the last widens to `width`
        count = count + np.asarray(width, dtype=float) * (a.ffn_matrices - 1) + a.d_model
    return np.asarray(count)


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

    Reads model_type llama, mistral, qwen2, qwen3, mixtral, qwen2_moe, qwen3_moe and olmoe, as transformers 5 builds
    them (absent optional keys take its defaults). Where a model has experts in every layer, d_ffn is the width that
    its intermediate_size gives (olmoe: what the chosen experts of a token have together). Raises InputError for a file
    that cannot be read, another model_type, a missing or impossible value; the message names file and key.
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


class _Settings:
    """Checked access to one config: every answer is in range, every complaint names file and key."""

    def __init__(self, config: Mapping[str, Any], where: str) -> None:
        self.config = config
        self.where = where

    def bad(self, key: str, wanted: str) -> InputError:
        shown = repr(self.config.get(key))
        return InputError(f"{key} must be {wanted}, not {shown[:60]}", where=self.where)

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
    if model_type not in _FAMILIES:
        raise unknown_name("model_type", model_type, _FAMILIES, where=where)
    settings = _Settings(config, where)
    name = config.get("_name_or_path")
    parts = _common(settings, model_type) | _FAMILIES[model_type](settings)
    built = Architecture(**parts, name=name if isinstance(name, str) and name else model_type)
    return validate(built, where)


def _common(settings: _Settings, model_type: str) -> dict[str, Any]:
    d_model = settings.integer("hidden_size")
    n_heads = settings.integer("num_attention_heads")
    # Grouped-query attention is the default of other classes, with numbers that suit one model only.
    optional_kv = model_type in {"llama", "olmoe"} or "num_key_value_heads" in settings.config
    n_kv_heads = settings.integer("num_key_value_heads", default=n_heads if optional_kv else None)
    if n_heads % n_kv_heads:
        raise settings.bad("num_key_value_heads", f"a divisor of num_attention_heads ({n_heads})")
    default_head_dim = 128 if model_type == "qwen3" else d_model // n_heads
    if settings.config.get("head_dim") is None and model_type != "qwen3" and d_model % n_heads:
        raise settings.bad("hidden_size", f"a multiple of num_attention_heads ({n_heads}), unless head_dim is given")
    return {
        "n_layers": settings.integer("num_hidden_layers"),
        "d_model": d_model,
        "n_heads": n_heads,
        "n_kv_heads": n_kv_heads,
        "head_dim": settings.integer("head_dim", default=default_head_dim),
        "vocab_size": settings.integer("vocab_size"),
        # All eight classes default to separate tables; small Qwen models say true in their config.
        "tied_embeddings": settings.boolean("tie_word_embeddings", False),
        "d_ffn": settings.integer("intermediate_size"),
    }


def _attention_bias(settings: _Settings) -> dict[str, Any]:
    bias = settings.boolean("attention_bias", False)
    return {"qkv_bias": bias, "attention_output_bias": bias}


def _experts(settings: _Settings, width_key: str, n_moe_layers: int, least: int = 1) -> dict[str, Any]:
    n_experts = settings.integer("num_experts", "num_local_experts", least=least)
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
    return _attention_bias(settings) | {"ffn_bias": settings.boolean("mlp_bias", False)}


def _mistral(_: _Settings) -> dict[str, Any]:
    return {}


def _qwen2(_: _Settings) -> dict[str, Any]:
    return {"qkv_bias": True}


def _qwen3(settings: _Settings) -> dict[str, Any]:
    return _attention_bias(settings) | {"qk_norm": True}


def _mixtral(settings: _Settings) -> dict[str, Any]:
    return _experts(settings, "intermediate_size", settings.integer("num_hidden_layers"))


def _qwen2_moe(settings: _Settings) -> dict[str, Any]:
    parts = {"qkv_bias": settings.boolean("qkv_bias", True)}
    experts = _experts(settings, "moe_intermediate_size", _sparse_layers(settings), least=0)
    if experts:
        experts["d_shared_expert"] = settings.integer("shared_expert_intermediate_size", least=0)
        experts["shared_expert_gate"] = True
    return parts | experts


def _qwen3_moe(settings: _Settings) -> dict[str, Any]:
    return _qwen3(settings) | _experts(settings, "moe_intermediate_size", _sparse_layers(settings), least=0)


def _olmoe(settings: _Settings) -> dict[str, Any]:
    experts = _experts(settings, "intermediate_size", settings.integer("num_hidden_layers"))
    norms = {"qk_norm": True, "qk_norm_full_width": True}
    return _attention_bias(settings) | norms | experts | {"d_ffn": experts["top_k"] * experts["d_expert"]}


_FAMILIES: dict[str, Callable[[_Settings], dict[str, Any]]] = {
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "mixtral": _mixtral,
    "qwen2_moe": _qwen2_moe,
    "qwen3_moe": _qwen3_moe,
    "olmoe": _olmoe,
}


# Published shapes.


def _last_digit(text: str) -> float:
    """Value of one unit in the last digit of a published count such as 46.7B."""
    decimals = len(text[:-1].partition(".")[2])
    return parse_quantity(f"1{text[-1]}") * 10.0**-decimals


_SHAPE_KEYS = frozenset(field.name for field in fields(Architecture))


@cache
def _read_shapes() -> tuple[tuple[str, Shape], ...]:
    read: list[tuple[str, Shape]] = []
    for name, entry in catalogue.read("shapes.toml")["shape"].items():
        total: str = entry["published_total"]
        active: str = entry.get("published_active", total)
        shape = Shape(
            architecture=Architecture(**{key: entry[key] for key in _SHAPE_KEYS & set(entry)}, name=name),
            published_total=parse_quantity(total),
            published_active=parse_quantity(active),
            published_digit=_last_digit(total),
            published_active_digit=_last_digit(active),
            source=entry["source"],
            date=entry["date"],
        )
        read.append((name, shape))
    return tuple(read)


def published_shapes() -> dict[str, Shape]:
    """Every published model of the catalogue with its stated counts and source."""
    return dict(_read_shapes())


def shapes() -> dict[str, Architecture]:
    """The architectures of the published models of the catalogue by name."""
    return {name: shape.architecture for name, shape in _read_shapes()}
