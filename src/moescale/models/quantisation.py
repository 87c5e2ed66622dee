"""In which number formats a checkpoint holds its weights: the quantization_config and the dtype of a Hugging Face config.

Every method's config comes down to the same: a format with its bytes a weight (scales included), the modules that it is
for, and those that are left out. The names of the matrices of a model tell how much of each part that is.
"""

from __future__ import annotations

import fnmatch
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, NamedTuple, cast

import numpy as np

from moescale.errors import InputError
from moescale.models.architecture import UNQUANTISED_BYTES, Architecture, Quantised
from moescale.models.config_parts import Layer, Settings, shown, type_rows
from moescale.models.operations import State, operations
from moescale.typing import Real

MOST_PATTERNS = 50_000  # of module names in one list; MiniMax-M3 names each of its experts, 22,400
MOST_IN_GROUP = 10**6  # weights that share a scale
MOST_REPEATS = 4  # in a regular expression, which could take for ever with more
LISTS = ("ignore", "exclude_modules", "modules_to_not_convert", "ignored_layers", "llm_int8_skip_modules")
# Where most classes keep the parts of a layer, and layers: alone, in models that also see, and of Nemotron-H.
PLACES = {"attention": "self_attn", "linear": "linear_attn", "dense_ffn": "mlp", "experts": "mlp.experts.0"}
PLACES["shared_experts"] = "mlp.shared_experts"
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
                raise InputError(f"more than {MOST_PATTERNS:,} modules are listed")
            if text.startswith("re:"):
                self.regexes.append(_regex(text[3:]))
            elif "*" in text or "?" in text:
                wild += [fnmatch.translate(text), fnmatch.translate(f"{text}.*")]
            else:
                self.plain.add(text.strip("."))
        if wild:
            self.regexes.append(re.compile("|".join(wild)))

    def match(self, names: tuple[str, ...]) -> bool:
        """Whether one of the ways to write a module's name is meant; plain texts mean every module that has these words in a row."""
        for name in names:
            words = name.split(".")
            runs = (".".join(words[start:end]) for start, end in combinations(range(len(words) + 1), 2))
            if any(regex.match(name) for regex in self.regexes) or not self.plain.isdisjoint(runs):
                return True
        return False


def _regex(text: str) -> re.Pattern[str]:
    if len(re.findall(r"[*+{]", text)) > MOST_REPEATS or re.search(r"\)[*+{]", text):
        raise InputError(f"modules are listed by a regular expression of many repeats, {shown(text)}")
    try:
        return re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise InputError(f"modules are listed by {shown(text)}, no regular expression") from error


Groups = list[tuple[Format, Patterns | None]]  # each format with the modules that it is for (None: all)


def _integers(bits: int, group: int | None, symmetric: bool) -> Format:
    """Whole numbers with a 16-bit scale a group (none: one an output channel), and a zero point where not symmetric."""
    if not group or group < 0:
        return Format(f"int{bits}", bits / 8, f"{bits}-bit integers")
    scale_bits = 16 + (0 if symmetric else bits)
    return Format(f"int{bits}", (bits + scale_bits / group) / 8, f"{bits}-bit integers in groups of {group}")


MXFP8 = Format("fp8", 1 + 1 / 32, "mxfp8, groups of 32")
MXFP4 = Format("mxfp4", (4 + 8 / 32) / 8, "mxfp4, groups of 32")
NVFP4 = Format("nvfp4", (4 + 8 / 16) / 8, "nvfp4, groups of 16")
MICROSCALED = {(8, 32): MXFP8, (4, 32): MXFP4, (4, 16): NVFP4, (4, 0): NVFP4}  # by bits and group; 0: none is stated


def _floats(bits: int, group: int | None, block: Any = None) -> Format:
    """Floating point: fp8 with a scale of 32 bits a block, written [a, b] or "axb", or microscaled; 4 bits in groups of 16 or 32."""
    if (found := MICROSCALED.get((bits, group or 0))) is not None:
        return found
    if bits != 8:
        raise InputError(f"no format has {bits}-bit floating point in groups of {group}")
    if block is None:
        return Format("fp8", 1, "fp8")
    try:
        a, b = (int(size) for size in (block.split("x") if isinstance(block, str) else block))
    except (TypeError, ValueError, OverflowError):
        a = b = 0
    if not (1 <= a <= 10**6 and 1 <= b <= 10**6):
        raise InputError(f"blocks must be of two sizes, not {shown(block)}")
    return Format("fp8", 1 + 4 / (a * b), f"fp8, blocks of {a} x {b}")


def _grouped(settings: Settings) -> Groups:
    """GPTQ and AWQ: zero points are in the file, even where all are the same, unless zero_point is false."""
    bits = settings.integer("bits", "w_bit", default=4, least=2, most=8)
    group = settings.integer("group_size", "q_group_size", default=128, least=-1, most=MOST_IN_GROUP)
    return [(_integers(bits, group, symmetric=settings.get("zero_point") is False), None)]


def _compressed(settings: Settings) -> Groups:
    groups: Groups = []
    for group in settings.entries("config_groups").values():
        if group.get("weights") is None:  # activations or the cache only
            continue
        weights = group.inner("weights")
        bits = weights.integer("num_bits", default=8, least=2, most=8)
        size = max(weights.integer("group_size", default=0, least=-1, most=MOST_IN_GROUP), 0)
        if weights.get("type") == "float":
            block = weights.get("block_structure") if weights.get("strategy") == "block" else None
            found = _floats(bits, size or None, block)
        else:
            found = _integers(bits, size, symmetric=weights.get("symmetric") is not False)
        targets = group.texts("targets") or ["Linear"]
        classes = [name for name in targets if name[:1].isupper() and "." not in name]
        if any(name != "Linear" for name in classes):
            raise InputError(f"modules of the class {shown(classes[0])} are quantised")
        groups.append((found, None if classes else Patterns(targets)))
    return groups


# A quant_algo of NVIDIA's Model Optimizer, by the pattern that it matches, in this order; the group is the config's.
ALGORITHMS: dict[str, Callable[[int | None], Format]] = {
    ".*NVFP4": lambda group: _floats(4, group),
    ".*MXFP4": lambda _: MXFP4,
    "MXFP8$": lambda _: MXFP8,
    "FP8_PB_(WO|REAL_QUANT)$": lambda _: _floats(8, None, (128, 128)),
    "FP8": lambda _: _floats(8, None),
    "W4A16|W4A8|INT4": lambda group: _integers(4, group or 128, symmetric=True),
    "W8A16|W8A8|INT8": lambda _: _integers(8, None, symmetric=True),
}


def _algorithm(settings: Settings) -> Format:
    name, group = settings.get("quant_algo"), settings.integer("group_size", default=0, most=MOST_IN_GROUP)
    for pattern, form in ALGORITHMS.items():
        if isinstance(name, str) and re.match(pattern, name.upper()):
            return form(group or None)
    raise settings.bad("quant_algo", "an algorithm of Model Optimizer")


def _modelopt(settings: Settings) -> Groups:
    if settings.get("quant_algo") != "MIXED_PRECISION":
        return [(_algorithm(settings), None)]
    listed: dict[Format, list[str]] = {}
    for name, entry in settings.entries("quantized_layers").items():
        listed.setdefault(_algorithm(entry), []).append(name)
    return [(found, Patterns(names)) for found, names in listed.items()]


METHODS: dict[str, Callable[[Settings], Groups]] = {
    "fp8": lambda settings: [(_floats(8, None, settings.get("weight_block_size")), None)],
    "fbgemm_fp8": lambda _: [(_floats(8, None), None)],
    "compressed-tensors": _compressed,
    "modelopt": _modelopt,
    "modelopt_fp4": _modelopt,
    # transformers and vLLM quantise the routed experts only, whatever the list of exceptions says (gpt-oss).
    "mxfp4": lambda _: [(MXFP4, Patterns(["experts"]))],
    **dict.fromkeys(("gptq", "gptq_marlin", "awq", "awq_marlin"), _grouped),
}


def _linear_matrices(a: Architecture) -> Mapping[str, Real]:
    state = next(op for op in operations(a) if isinstance(op, State))
    k, v, heads, d, rank = state.keys, state.values, state.heads, a.d_model, a.linear_rank
    kda = {"q_proj": d * k, "k_proj": d * k, "v_proj": d * v, "b_proj": d * heads, "o_proj": v * d}
    return {
        # Qwen3-Next has them in two, Qwen3.5 in four; lists name what the checkpoint has.
        "gated-delta": {
            **{"in_proj_qkv": d * (2 * k + v), "in_proj_z": d * v, "in_proj_b": d * heads, "in_proj_a": d * heads},
            "out_proj": v * d,
        },
        "kda": kda | {"f_a_proj": d * rank, "f_b_proj": rank * k, "g_a_proj": d * rank, "g_b_proj": rank * v},
        "mamba2": {"in_proj": d * (2 * k + 2 * v + heads), "out_proj": v * d},
        "mamba": {
            **{"in_proj": 2 * d * v, "x_proj": v * (rank + 2 * a.linear_key_dim), "dt_proj": rank * v},
            "out_proj": v * d,
        },
    }[a.linear_kind]


def _attention_matrices(a: Architecture) -> dict[str, Real]:
    d, heads, qk, rank, query_rank = a.d_model, a.n_heads, a.head_dim, a.kv_lora_rank, a.q_lora_rank
    value = a.v_head_dim or qk
    if rank:
        queries = {"q_a_proj": d * query_rank, "q_b_proj": query_rank * heads * qk}
        sizes = queries if query_rank else {"q_proj": d * heads * qk}
        sizes["kv_a_proj_with_mqa"] = d * (rank + a.qk_rope_head_dim)
        sizes["kv_b_proj"] = rank * heads * (qk - a.qk_rope_head_dim + value)
    else:
        sizes = {"q_proj": d * heads * (qk + a.attention_gate), "k_proj": d * a.n_kv_heads * qk}
        sizes["v_proj"] = d * a.n_kv_heads * value
    if a.index_topk:
        of_queries, of_key = ("indexer.wq_b", "indexer.wk") if rank else ("index_q_proj", "index_k_proj")
        sizes[of_queries] = a.index_n_heads * a.index_head_dim * (query_rank or d)
        sizes[of_key] = d * a.index_head_dim
    return sizes | {"o_proj": heads * value * d}


MIXERS: dict[str, Callable[[Architecture], Mapping[str, Real]]] = {
    "attention": _attention_matrices,
    "linear": _linear_matrices,
}


def _matrices(
    a: Architecture, places: Mapping[str, Any], layers: list[Layer], *, lm_head: bool
) -> Iterator[tuple[str, float, tuple[str, ...]]]:
    """Part (a field of Quantised), parameters and ways to write the name of every matrix; those of an FFN have one size."""
    mixers = {kind: of(a) for kind, of in MIXERS.items() if any(layer.mixer == kind for layer in layers)}
    for number, layer in enumerate(layers):
        found = [("attention", float(size), layer.mixer, name) for name, size in mixers.get(layer.mixer, {}).items()]
        shared = ["shared_experts"] if layer.ffn == "experts" and a.d_shared_expert else []
        for part in [layer.ffn, *shared] if layer.ffn else []:
            by_letter = part == "experts" and places.get("w_named")
            names = ("w1", "w3", "w2") if by_letter else ("gate_proj", "up_proj", "down_proj")
            found += [(part, 1.0, part, name) for name in names[3 - a.ffn_matrices :]]
        for part, params, place, name in found:
            yield part, params, tuple(f"{prefix}layers.{number}.{places[place]}.{name}" for prefix in PREFIXES)
    if lm_head and not a.tied_embeddings:
        yield "lm_head", 1.0, ("lm_head", "language_model.lm_head")


def _shares(
    matrices: Iterable[tuple[str, float, tuple[str, ...]]], groups: Groups, left_out: Patterns
) -> tuple[Quantised, float]:
    """How much of each part is quantised, and the least bytes a weight."""
    saved, params_of = defaultdict[str, float](float), defaultdict[str, float](float)
    least = UNQUANTISED_BYTES
    for part, params, names in matrices:
        held = UNQUANTISED_BYTES
        if not left_out.match(names):
            fitting = (found for found, targets in groups if targets is None or targets.match(names))
            held = next((found.bytes_per_weight for found in fitting), held)
        least = min(least, held)
        saved[part] += (UNQUANTISED_BYTES - held) * params
        params_of[part] += params
    if least == UNQUANTISED_BYTES:
        return Quantised(), UNQUANTISED_BYTES
    most = UNQUANTISED_BYTES - least
    return replace(Quantised(), **{part: min(saved[part] / most / params_of[part], 1.0) for part in saved}), least


def read_weights(
    config: Mapping[str, Any], quantisation: Any, a: Architecture, layers: list[Layer], where: str
) -> tuple[CheckpointWeights, Quantised]:
    """What `quantisation`, a quantization_config or null, and the dtype of `config` say of the weights; what is not understood is no error."""
    unquantised = _unquantised(config, where)
    if quantisation is None:
        return unquantised, Quantised()
    try:
        settings = Settings({"quantization_config": quantisation}, where).inner("quantization_config")
        if "quantization" in settings.config:  # the layout of hf_quant_config.json
            settings = settings.inner("quantization")
        return _read_quantised(config, settings, a, layers, unquantised.remarks)
    except InputError as error:
        stated = f"is not understood: {error.what}"
        return CheckpointWeights(format=None, bytes_per_param=UNQUANTISED_BYTES, stated=stated), Quantised()


def _read_quantised(
    config: Mapping[str, Any], settings: Settings, a: Architecture, layers: list[Layer], remarks: tuple[str, ...]
) -> tuple[CheckpointWeights, Quantised]:
    method = settings.get("quant_method")
    if method is None:  # older files of Model Optimizer and compressed-tensors
        older = {"quant_algo": "modelopt", "config_groups": "compressed-tensors"}
        method = next((name for key, name in older.items() if key in settings.config), None)
    if not isinstance(method, str) or (method := method.lower()) not in METHODS:
        raise settings.bad("quant_method", f"one of {', '.join(METHODS)}")
    groups = METHODS[method](settings)
    if not groups:
        raise InputError("no weights are quantised")
    text = f"quantization_config {method}: {' and '.join(dict.fromkeys(found.text for found, _ in groups))}"
    if config.get("expert_dtype") == "fp4":  # DeepSeek-V4's routed experts beside fp8
        experts = NVFP4 if settings.get("moe_quant_algo") == "NVFP4" else MXFP4
        groups, text = [(experts, Patterns(["experts"])), *groups], f"{text}, experts {experts.text}"
    listed = [name for key in LISTS for name in settings.texts(key)]
    if isinstance(dynamic := settings.get("dynamic"), Mapping):  # GPTQModel's exceptions: "-:" and a regular expression
        listed += [f"re:{key[2:]}" for key in map(str, cast("Mapping[Any, Any]", dynamic)) if key.startswith("-:")]
    lm_head = METHODS[method] in (_compressed, _modelopt) or settings.get("lm_head") is True
    places = PLACES | type_rows().get(str(config.get("model_type")), {}).get("names", {})
    quantised, held = _shares(_matrices(a, places, layers, lm_head=lm_head), groups, Patterns(listed))
    found = next((each for each, _ in groups if each.bytes_per_weight == held), None)
    caches = [settings.get(key) for key in ("kv_cache_scheme", "kv_cache_quant_algo")]
    in_fp8 = any(
        cache.get("num_bits") == 8 if isinstance(cache, Mapping) else str(cache).upper() == "FP8" for cache in caches
    )
    weights = CheckpointWeights(
        format="bf16" if found is None else found.name,
        bytes_per_param=held,
        stated=text if found is not None else f"{text}, but for no matrix of the model",
        kv_cache="fp8" if in_fp8 else None,
        remarks=remarks,
    )
    return weights, replace(quantised, scale_per_tensor=found is not None and found.name == "fp8" and held == 1.0)


def with_usual_shares(a: Architecture, weights: str | None) -> Architecture:
    """The architecture with attention in bf16 for nvfp4 weights and latent attention, where no config says what they hold.

    NVIDIA's checkpoints of DeepSeek-R1 and Kimi-K2.5 leave it so (`exclude_modules` and `ignore` of their configs).
    """
    unstated, latent = a.quantised == Quantised(), bool(np.all(np.asarray(a.kv_lora_rank) > 0))
    return replace(a, quantised=Quantised(attention=0.0)) if weights == "nvfp4" and latent and unstated else a


def _unquantised(config: Mapping[str, Any], where: str) -> CheckpointWeights:
    """The dtype of the weights that are not quantised: 16 bits, as servers hold them."""
    key = "dtype" if config.get("dtype") is not None else "torch_dtype"
    stated, remarks = config.get(key), ()
    name = stated.removeprefix("torch.") if isinstance(stated, str) else None
    if stated is None:
        text = "no dtype is stated: 16 bits"
    elif name in ("bfloat16", "float16"):
        text = f"{key} {name}"
    else:
        text = f"{key} {shown(stated)}"
        # "auto" of vLLM's --dtype takes 16 bits for 32-bit checkpoints (docs.vllm.ai, engine arguments, 2024).
        priced = "weights that are not quantised are priced in 16 bits, as servers hold them"
        remarks = () if name == "half" else (f"{where}: {key} is {shown(stated)}; {priced}",)
    return CheckpointWeights(format="bf16", bytes_per_param=UNQUANTISED_BYTES, stated=text, remarks=remarks)
