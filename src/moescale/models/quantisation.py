"""In which number formats a checkpoint holds its weights: the quantization_config and the dtype of a Hugging Face config.

Every method's config comes down to the same: a format with its bytes a weight (scales included), the modules that it is
for, and those that are left out. The names of the matrices of a model tell how much of each part that is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from moescale.models.architecture import UNQUANTISED_BYTES, Architecture, Quantised
from moescale.models.checkpoint_matrices import PREFIXES, layer_matrices
from moescale.models.config_parts import Layer
from moescale.models.quantisation_methods import (
    METHODS,
    NotUnderstoodError,
    Patterns,
    Scheme,
    floats,
    mapping_of,
    method_of,
    names_of,
)
from moescale.models.settings import shown

LISTS = ("ignore", "exclude_modules", "modules_to_not_convert", "ignored_layers", "llm_int8_skip_modules")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointWeights:
    """The number format of a checkpoint's weights, and where the config says so."""

    format: str | None  # bf16, fp8, int4 ..; None: there is a quantization_config that is not understood
    bytes_per_param: float  # of the matrices that are quantised, with their scales
    stated: str  # such as "quantization_config fp8, blocks of 128 x 128"
    kv_cache: str | None = None  # the format of the KV cache that the checkpoint asks for
    remarks: tuple[str, ...] = ()  # what was assumed of the weights


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
        method = method_of(settings)
        if method not in METHODS:
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
    text = f"quantization_config {method}: {scheme.text}"
    return CheckpointWeights(
        format="bf16" if found is None else found.name,
        bytes_per_param=held,
        stated=text if found is not None else f"{text}, but for no matrix of the model",
        kv_cache=_cache_format(settings),
        remarks=_unquantised(config, where).remarks,
    ), quantised


def with_usual_shares(a: Architecture, weights: str | None) -> Architecture:
    """The architecture as published checkpoints of a format of weights hold it, where no config says what they hold.

    nvfp4 with latent attention: NVIDIA's checkpoints of DeepSeek-R1 and Kimi-K2.5 leave all of attention in bf16
    (`exclude_modules` and `ignore` of their configs).
    """
    unstated, latent = a.quantised == Quantised(), bool(np.all(np.asarray(a.kv_lora_rank) > 0))
    return replace(a, quantised=Quantised(attention=0.0)) if weights == "nvfp4" and latent and unstated else a


def _cache_format(config: Mapping[str, Any]) -> str | None:
    for stated in (config.get("kv_cache_scheme"), config.get("kv_cache_quant_algo")):
        of_8_bits = isinstance(stated, Mapping) and cast("Mapping[str, Any]", stated).get("num_bits") == 8
        if of_8_bits or (isinstance(stated, str) and stated.upper() == "FP8"):
            return "fp8"
    return None


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
