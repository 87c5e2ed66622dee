"""In which number formats a checkpoint holds its weights: the quantization_config and the dtype of a Hugging Face config.

Every method's config comes down to the same: a format with its bytes a weight (scales included), the modules that it is
for, and those that are left out. The names of the matrices of a model tell how much of each part that is.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, NamedTuple, cast

import numpy as np

from moescale.models.architecture import UNQUANTISED_BYTES, Architecture, Quantised
from moescale.models.config_parts import Layer, shown, type_rows
from moescale.models.operations import State, operations

MOST_PATTERNS = 50_000  # of module names in one list; MiniMax-M3 names each of its experts, 22,400
MOST_REPEATS = 4  # in a regular expression, which could take for ever with more
LISTS = ("ignore", "exclude_modules", "modules_to_not_convert", "ignored_layers", "llm_int8_skip_modules")
# Alone, in models that also see, and of Nemotron-H.
PREFIXES = ("model.", "language_model.model.", "model.language_model.", "backbone.")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointWeights:
    """The number format of a checkpoint's weights, and where the config says so."""

    format: str | None  # bf16, fp8, int4 ..; None: there is a quantization_config that is not understood
    bytes_per_param: float  # of the matrices that are quantised, with their scales
    stated: str  # such as "quantization_config fp8, blocks of 128 x 128"
    kv_cache: str | None = None  # the format of the KV cache that the checkpoint asks for
    remarks: tuple[str, ...] = ()  # what was assumed of the weights


class Format(NamedTuple):
    name: str
    bytes_per_weight: float
    text: str


class Patterns:
    """Names of modules as checkpoints list them: whole names or parts of them, wildcards, `re:` regular expressions."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.plain, self.regexes, wild = set[str](), list[re.Pattern[str]](), list[str]()
        for count, text in enumerate(texts):
            if count >= MOST_PATTERNS:
                raise NotUnderstoodError(f"lists more than {MOST_PATTERNS:,} modules")
            if text.startswith("re:"):
                self.regexes.append(_regex(text[3:]))
            elif "*" in text or "?" in text:
                wild += [fnmatch.translate(text), fnmatch.translate(f"{text}.*")]
            else:
                self.plain.add(text.strip("."))
        self.wild = re.compile("|".join(wild)) if wild else None

    def match(self, names: tuple[str, ...]) -> bool:
        """Whether one of the ways to write a module's name is meant."""
        return any(
            any(regex.match(name) for regex in self.regexes)
            or (self.wild is not None and self.wild.match(name) is not None)
            or not self.plain.isdisjoint(_within(name))
            for name in names
        )


def _within(name: str) -> Iterator[str]:
    """The name, and every run of whole words of it: what lists without wildcards name."""
    words = name.split(".")
    return (".".join(words[start:end]) for start, end in combinations(range(len(words) + 1), 2))


def _regex(text: str) -> re.Pattern[str]:
    if len(re.findall(r"[*+{]", text)) > MOST_REPEATS or re.search(r"\)[*+{]", text):
        raise NotUnderstoodError(f"lists modules by a regular expression of many repeats, {shown(text)}")
    try:
        return re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise NotUnderstoodError(f"lists modules by {shown(text)}, no regular expression") from error


@dataclass(frozen=True, slots=True)
class Scheme:
    """What a config says: formats, each with the modules that it is for (None: all), and the modules left out."""

    groups: tuple[tuple[Format, Patterns | None], ...]
    text: str
    lm_head: bool = False  # whether the output projection is quantised, unless left out


class NotUnderstoodError(Exception):
    """A quantization_config that says something else than the readers here know."""


def _number(config: Mapping[str, Any], key: str, least: int, most: int, default: int | None = None) -> int | None:
    value = config.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise NotUnderstoodError(f"has {key} = {shown(value)}")
    return value


def mapping_of(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise NotUnderstoodError(f"has {what} = {shown(value)}")
    return cast("Mapping[str, Any]", value)


def names_of(config: Mapping[str, Any], key: str) -> list[str]:
    value = config.get(key)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(name, str) for name in cast("list[Any]", value)):
        raise NotUnderstoodError(f"has {key} = {shown(value)}")
    return cast("list[str]", value)


def _integers(bits: int, group: int | None, symmetric: bool) -> Format:
    """Whole numbers with a 16-bit scale a group (none: one an output channel), and a zero point where not symmetric."""
    if not group or group < 0:
        return Format(f"int{bits}", bits / 8, f"{bits}-bit integers")
    scale_bits = 16 + (0 if symmetric else bits)
    return Format(f"int{bits}", (bits + scale_bits / group) / 8, f"{bits}-bit integers in groups of {group}")


def floats(bits: int, group: int | None, block: tuple[int, int] | None = None) -> Format:
    """Floating point: fp8 with one scale a block of 32-bit, or microscaled; 4 bits in groups of 16 or 32."""
    if bits == 8 and group == 32:
        return Format("fp8", 1 + 1 / 32, "mxfp8, groups of 32")
    if bits == 8:
        a, b = block or (0, 0)
        return Format("fp8", 1 + (4 / (a * b) if block else 0), f"fp8{f', blocks of {a} x {b}' if block else ''}")
    if bits == 4 and group == 32:
        return Format("mxfp4", (4 + 8 / 32) / 8, "mxfp4, groups of 32")
    if bits == 4 and group in (None, 16):
        return Format("nvfp4", (4 + 8 / 16) / 8, "nvfp4, groups of 16")
    raise NotUnderstoodError(f"has {bits}-bit floating point in groups of {group}")


def _block(value: Any) -> tuple[int, int] | None:
    """Rows and columns of a block, written [a, b] or "axb"."""
    if value is None:
        return None
    try:
        a, b = (int(size) for size in (value.split("x") if isinstance(value, str) else value))
    except (TypeError, ValueError, OverflowError):
        a = b = 0
    if not (1 <= a <= 10**6 and 1 <= b <= 10**6):
        raise NotUnderstoodError(f"has blocks of {shown(value)}")
    return a, b


def _one(found: Format, *, only: Patterns | None = None, lm_head: bool = False) -> Scheme:
    return Scheme(((found, only),), found.text, lm_head)


def _grouped(config: Mapping[str, Any]) -> Scheme:
    """GPTQ and AWQ: zero points are in the file, even where all are the same, unless zero_point is false."""
    bits = _number(config, "bits", 2, 8) or cast("int", _number(config, "w_bit", 2, 8, 4))
    group = _number(config, "group_size", -1, 10**6) or _number(config, "q_group_size", -1, 10**6, 128)
    found = _integers(bits, group, symmetric=config.get("zero_point") is False)
    return _one(found, lm_head=config.get("lm_head") is True)


def _compressed(config: Mapping[str, Any]) -> Scheme:
    groups: list[tuple[Format, Patterns | None]] = []
    for group in mapping_of(config.get("config_groups"), "config_groups").values():
        entry = mapping_of(group, "config_groups")
        if entry.get("weights") is None:  # activations or the cache only
            continue
        weights = mapping_of(entry["weights"], "weights")
        bits, size = _number(weights, "num_bits", 2, 8, 8), _number(weights, "group_size", -1, 10**6)
        assert bits is not None
        if weights.get("type", "int") == "float":
            block = _block(weights.get("block_structure")) if weights.get("strategy") == "block" else None
            found = floats(bits, None if size is None or size < 0 else size, block)
        else:
            found = _integers(bits, size, symmetric=weights.get("symmetric") is not False)
        targets = names_of(entry, "targets") or ["Linear"]
        classes = [name for name in targets if name[:1].isupper() and "." not in name]
        if any(name != "Linear" for name in classes):
            raise NotUnderstoodError(f"is for modules of the class {shown(classes[0])}")
        groups.append((found, None if classes else Patterns(targets)))
    if not groups:
        raise NotUnderstoodError("has no group of weights")
    return Scheme(tuple(groups), " and ".join(dict.fromkeys(found.text for found, _ in groups)), lm_head=True)


# A quant_algo of NVIDIA's Model Optimizer, by the pattern that it matches, in this order; the group is the config's.
ALGORITHMS: dict[str, Callable[[int | None], Format]] = {
    ".*NVFP4": lambda group: floats(4, group),
    ".*MXFP4": lambda _: floats(4, 32),
    "MXFP8$": lambda _: floats(8, 32),
    "FP8_PB_(WO|REAL_QUANT)$": lambda _: floats(8, None, (128, 128)),
    "FP8": lambda _: floats(8, None),
    "W4A16|W4A8|INT4": lambda group: _integers(4, group or 128, symmetric=True),
    "W8A16|W8A8|INT8": lambda _: _integers(8, None, symmetric=True),
}


def _algorithm(name: Any, group: int | None) -> Format:
    for pattern, form in ALGORITHMS.items():
        if isinstance(name, str) and re.match(pattern, name.upper()):
            return form(group)
    raise NotUnderstoodError(f"has quant_algo = {shown(name)}")


def _modelopt(config: Mapping[str, Any]) -> Scheme:
    group = _number(config, "group_size", 1, 10**6)
    if config.get("quant_algo") != "MIXED_PRECISION":
        return _one(_algorithm(config.get("quant_algo"), group), lm_head=True)
    listed: dict[Format, list[str]] = {}
    for name, entry in mapping_of(config.get("quantized_layers"), "quantized_layers").items():
        stated = mapping_of(entry, "quantized_layers")
        found = _algorithm(stated.get("quant_algo"), _number(stated, "group_size", 1, 10**6))
        listed.setdefault(found, []).append(str(name))
    if not listed:
        raise NotUnderstoodError("names no quantized_layers")
    groups = tuple((found, Patterns(names)) for found, names in listed.items())
    return Scheme(groups, " and ".join(found.text for found in listed), lm_head=True)


METHODS: dict[str, Callable[[Mapping[str, Any]], Scheme]] = {
    "fp8": lambda config: _one(floats(8, None, _block(config.get("weight_block_size")))),
    "fbgemm_fp8": lambda _: _one(floats(8, None)),
    "compressed-tensors": _compressed,
    "modelopt": _modelopt,
    "modelopt_fp4": _modelopt,
    # transformers and vLLM quantise the routed experts only, whatever the list of exceptions says (gpt-oss).
    "mxfp4": lambda _: _one(floats(4, 32), only=Patterns(["experts"])),
    **dict.fromkeys(("gptq", "gptq_marlin", "awq", "awq_marlin"), _grouped),
}


def _linear_matrices(a: Architecture) -> dict[str, float]:
    state = next(op for op in operations(a) if isinstance(op, State))
    k, v, heads = float(state.keys), float(state.values), float(state.heads)
    d, rank = float(a.d_model), float(a.linear_rank)
    if a.linear_kind == "gated-delta":
        # Qwen3-Next has them in two, Qwen3.5 in four; lists name what the checkpoint has.
        sizes = {"in_proj_qkv": d * (2 * k + v), "in_proj_z": d * v, "in_proj_b": d * heads, "in_proj_a": d * heads}
    elif a.linear_kind == "kda":
        sizes = {"q_proj": d * k, "k_proj": d * k, "v_proj": d * v, "b_proj": d * heads}
        sizes |= {"f_a_proj": d * rank, "f_b_proj": rank * k, "g_a_proj": d * rank, "g_b_proj": rank * v}
        return sizes | {"o_proj": v * d}
    elif a.linear_kind == "mamba2":
        sizes = {"in_proj": d * (2 * k + 2 * v + heads)}
    else:
        sizes = {"in_proj": 2 * d * v, "x_proj": v * (rank + 2 * float(a.linear_key_dim)), "dt_proj": rank * v}
    return sizes | {"out_proj": v * d}


def layer_matrices(a: Architecture, model_type: str, layer: Layer) -> Iterator[tuple[str, str, float]]:
    """Part (a field of Quantised), name and parameters of the matrices of one layer."""
    d, heads, kv_heads, qk = (float(n) for n in (a.d_model, a.n_heads, a.n_kv_heads, a.head_dim))
    rank, query_rank, rope = (float(n) for n in (a.kv_lora_rank, a.q_lora_rank, a.qk_rope_head_dim))
    value = float(a.v_head_dim) or qk
    # Where transformers keeps the parts of this model type, if not in the usual places.
    places = type_rows().get(model_type, {}).get("names", {})
    linear, attention = places.get("linear", "linear_attn"), places.get("attention", "self_attn")
    if layer.mixer == "linear":
        for name, params in _linear_matrices(a).items():
            yield "attention", f"{linear}.{name}", params
    elif layer.mixer:
        sizes = {"q_proj": d * heads * (qk + float(a.attention_gate)), "k_proj": d * kv_heads * qk}
        sizes |= {"v_proj": d * kv_heads * value}
        if rank:
            sizes = {"q_a_proj": d * query_rank, "q_b_proj": query_rank * heads * qk}
            sizes = sizes if query_rank else {"q_proj": d * heads * qk}
            sizes |= {"kv_a_proj_with_mqa": d * (rank + rope), "kv_b_proj": rank * heads * (qk - rope + value)}
        if float(a.index_topk):
            queries, keys = float(a.index_n_heads * a.index_head_dim), d * float(a.index_head_dim)
            names = ("indexer.wq_b", "indexer.wk") if rank else ("index_q_proj", "index_k_proj")
            sizes |= {names[0]: queries * (query_rank or d), names[1]: keys}
        for name, params in (sizes | {"o_proj": heads * value * d}).items():
            yield "attention", f"{attention}.{name}", params
    if not layer.ffn:
        return
    dense, experts = places.get("ffn", "mlp"), places.get("experts", "mlp.experts.0")
    ffns = [("dense_ffn", dense)] if layer.ffn == "dense" else [("experts", experts)]
    if layer.ffn == "experts" and float(a.d_shared_expert):
        ffns.append(("shared_experts", places.get("shared", "mlp.shared_experts")))
    for part, place in ffns:
        letters = places.get("w_named") and part == "experts"
        names = ("w1", "w3", "w2") if letters else ("gate_proj", "up_proj", "down_proj")
        for name in names[3 - a.ffn_matrices :]:
            yield part, f"{place}.{name}", 1.0  # all have one size


def _shares(
    a: Architecture, scheme: Scheme, ignored: Patterns, model_type: str, layers: list[Layer]
) -> tuple[Quantised, float]:
    """How much of each part is quantised, and the bytes a weight of the smallest format in use."""
    bytes_of: dict[str, list[tuple[float, float]]] = {}  # by part: bytes a weight, parameters

    def bytes_in(names: tuple[str, ...]) -> float:
        if ignored.match(names):
            return UNQUANTISED_BYTES
        fitting = (found for found, targets in scheme.groups if targets is None or targets.match(names))
        return next((found.bytes_per_weight for found in fitting), UNQUANTISED_BYTES)

    for number, layer in enumerate(layers):
        for part, name, params in layer_matrices(a, model_type, layer):
            names = tuple(f"{prefix}layers.{number}.{name}" for prefix in PREFIXES)
            bytes_of.setdefault(part, []).append((bytes_in(names), params))
    if scheme.lm_head and not a.tied_embeddings:
        bytes_of["lm_head"] = [(bytes_in(("lm_head", "language_model.lm_head")), 1.0)]
    least = min(held for entries in bytes_of.values() for held, _ in entries)
    if least >= UNQUANTISED_BYTES:
        return Quantised(), UNQUANTISED_BYTES

    def share(entries: list[tuple[float, float]]) -> float:
        total = sum(params for _, params in entries)
        saved = sum((UNQUANTISED_BYTES - held) * params for held, params in entries)
        return min(saved / (UNQUANTISED_BYTES - least) / total, 1.0)

    shares = {part: share(entries) for part, entries in bytes_of.items()}
    per_tensor = any(f.name == "fp8" and f.bytes_per_weight == least == 1.0 for f, _ in scheme.groups)
    return Quantised(**shares, scale_per_tensor=per_tensor), least


def read_weights(
    config: Mapping[str, Any], quantisation: Any, a: Architecture, layers: list[Layer], where: str
) -> tuple[CheckpointWeights, Quantised]:
    """What `quantisation`, a quantization_config or null, and the dtype of `config` say of the weights of `a`.

    Never an error: a quantization_config that is not understood has the format None, and says why.
    """
    if quantisation is None:
        return _unquantised(config, where), Quantised()
    try:
        settings = mapping_of(quantisation, "quantization_config")
        if "quantization" in settings:  # the layout of hf_quant_config.json
            settings = mapping_of(settings["quantization"], "quantization")
        method = settings.get("quant_method")
        if method is None:  # older files of Model Optimizer and compressed-tensors
            method = (
                "modelopt"
                if "quant_algo" in settings
                else "compressed-tensors"
                if "config_groups" in settings
                else None
            )
        if not isinstance(method, str):
            raise NotUnderstoodError(f"has quant_method = {shown(method)}")
        if (method := method.lower()) not in METHODS:
            raise NotUnderstoodError(f"has quant_method {shown(method)}; known: {', '.join(METHODS)}")
        scheme = METHODS[method](settings)
        if config.get("expert_dtype") == "fp4":  # DeepSeek-V4's routed experts beside fp8
            experts = floats(4, 16 if settings.get("moe_quant_algo") == "NVFP4" else 32)
            groups = ((experts, Patterns(["experts"])), *scheme.groups)
            scheme = replace(scheme, groups=groups, text=f"{scheme.text}, experts {experts.text}")
        listed = [name for key in LISTS for name in names_of(settings, key)]
        dynamic = settings.get("dynamic")  # GPTQModel's exceptions: "-:" and a regular expression
        if isinstance(dynamic, Mapping):
            keys = [str(key) for key in cast("Mapping[Any, Any]", dynamic)]
            listed += [f"re:{key[2:]}" for key in keys if key.startswith("-:")]
        model_type = str(config.get("model_type"))
        quantised, held = _shares(a, scheme, Patterns(listed), model_type, layers)
    except NotUnderstoodError as error:
        return CheckpointWeights(format=None, bytes_per_param=UNQUANTISED_BYTES, stated=str(error)), Quantised()
    found = next((f for f, _ in scheme.groups if f.bytes_per_weight == held), None)
    caches = [settings.get(key) for key in ("kv_cache_scheme", "kv_cache_quant_algo")]
    in_fp8 = any(
        cache.get("num_bits") == 8 if isinstance(cache, Mapping) else str(cache).upper() == "FP8" for cache in caches
    )
    text = f"quantization_config {method}: {scheme.text}"
    return CheckpointWeights(
        format="bf16" if found is None else found.name,
        bytes_per_param=held,
        stated=text if found is not None else f"{text}, but for no matrix of the model",
        kv_cache="fp8" if in_fp8 else None,
        remarks=_unquantised(config, where).remarks,
    ), quantised


def with_usual_shares(a: Architecture, weights: str | None) -> Architecture:
    """The architecture as published checkpoints of a format of weights hold it, where no config says what they hold.

    nvfp4 with latent attention: NVIDIA's checkpoints of DeepSeek-R1 and Kimi-K2.5 leave all of attention in bf16
    (`exclude_modules` and `ignore` of their configs).
    """
    unstated, latent = a.quantised == Quantised(), bool(np.all(np.asarray(a.kv_lora_rank) > 0))
    return replace(a, quantised=Quantised(attention=0.0)) if weights == "nvfp4" and latent and unstated else a


def _unquantised(config: Mapping[str, Any], where: str) -> CheckpointWeights:
    """The dtype of the weights that are not quantised: 16 bits, as servers hold them."""
    key = "dtype" if config.get("dtype") is not None else "torch_dtype"
    stated, remarks = config.get(key), ()
    name = stated.removeprefix("torch.") if isinstance(stated, str) else None
    text = f"{key} {name}" if name in ("bfloat16", "float16") else f"{key} {shown(stated)}"
    if stated is not None and name not in ("bfloat16", "float16", "half"):
        # "auto" of vLLM's --dtype takes 16 bits for 32-bit checkpoints (docs.vllm.ai, engine arguments, 2024).
        priced = "weights that are not quantised are priced in 16 bits, as servers hold them"
        remarks = (f"{where}: {key} is {shown(stated)}; {priced}",)
    text = "no dtype is stated: 16 bits" if stated is None else text
    return CheckpointWeights(format="bf16", bytes_per_param=UNQUANTISED_BYTES, stated=text, remarks=remarks)
