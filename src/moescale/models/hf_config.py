"""A shape, and the format of the weights, from a Hugging Face config.json."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, cast

from moescale.errors import InputError, unknown_name
from moescale.io.json_text import read_object
from moescale.models.architecture import Architecture
from moescale.models.config_parts import Settings, read_type, shown, type_rows, type_table
from moescale.models.quantisation import CheckpointWeights, read_weights

_LARGEST_FILE = 16 * 2**20  # bytes; a config.json has a few thousand, weights by mistake have billions

# Keys of experts, sparse, latent and linear attention, and state spaces: what would make another model of a known type.
_OTHER_MODEL = re.compile(
    r"expert|(^|_)moe(_|$)|^index_|^(kv|q)_lora_rank$|^qk_(nope|rope)_head_dim$|^decoder_sparse_step$|^mlp_only_layers$"
    r"|^first_k_dense_replace$|^(linear|mamba|ssm)_"
)
# Training of routers, and how they score: no shape follows from them.
_NO_SHAPE = re.compile(
    r"router|aux_loss|z_loss|jitter|score|scoring|norm_topk|capacity|dropout|init|bias|_ep_|_tp_|seed"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What a config says: the shape, the format of the weights, and what was assumed of the shape."""

    architecture: Architecture
    weights: CheckpointWeights
    remarks: tuple[str, ...] = ()
    max_position_embeddings: int | None = None  # tokens of a request that the model was made for; None: not stated


def from_config(config: Mapping[str, Any] | str | PathLike[str]) -> Architecture:
    """The architecture that a Hugging Face config states: a mapping, a config.json, or the folder that holds one.

    Reads the model types of catalogue/model_types.toml as transformers 5 builds them, and of a model that also sees or
    hears the text model. Layers for the prediction of further tokens are left out; attention in chunks (llama4) counts
    as a window. Raises InputError that names file and key; fields of another architecture are warned of (UserWarning).
    """
    checkpoint = read_config(config)
    for remark in checkpoint.remarks:
        warnings.warn(remark, stacklevel=2)
    return checkpoint.architecture


def read_config(config: Mapping[str, Any] | str | PathLike[str]) -> Checkpoint:
    """The architecture as from_config reads it, with the format of the weights, and remarks in place of warnings."""
    if isinstance(config, Mapping):
        return _checkpoint(config, "config", None)
    settings, file = _load(Path(config))
    beside = file.with_name(f"{file.name.removesuffix('config.json')}hf_quant_config.json")
    asked = settings.get("quantization_config") is None and file.name.endswith("config.json") and beside.exists()
    return _checkpoint(settings, str(file), _load(beside)[0] if asked else None)


def _load(path: Path) -> tuple[Mapping[str, Any], Path]:
    file = path / "config.json" if path.is_dir() else path
    return read_object(file, limit_bytes=_LARGEST_FILE, next_step="give the model's config.json"), file


def _checkpoint(config: Mapping[str, Any], where: str, quantisation: Any) -> Checkpoint:
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        what = "model_type is missing" if model_type is None else "model_type must be a text"
        raise InputError(what, where=where, next_step=f"supported: {', '.join(type_rows())}")
    text = config.get("text_config")
    # compressed-tensors called it compression_config before 2025.
    own = (config.get(key) for key in ("quantization_config", "compression_config"))
    quantisation = next((stated for stated in own if stated is not None), quantisation)
    if model_type in type_table()["no_term"]:
        what = f"model_type {model_type}: no term for {type_table()['no_term'][model_type]}"
        raise InputError(what, where=where, next_step="give --n-params and --experts, or a near relative's config")
    if model_type not in type_rows() and isinstance(text, Mapping):
        inside, text = f"{where}, text_config", dict(cast("Mapping[str, Any]", text))
        # Configs of models that also see say once for the whole whether tables are tied; some leave the type to the class.
        tied, named = config.get("tie_word_embeddings"), type_table()["text_type"].get(model_type)
        stated = {"tie_word_embeddings": tied, "model_type": named} | type_table()["nested"].get(model_type, {})
        text = {key: value for key, value in stated.items() if value is not None} | text
        if text.get("model_type") in list(type_rows()):  # a list compares: the value may be anything that JSON holds
            return _checkpoint(text, inside, quantisation)
        what = f"unknown model_type {shown(text.get('model_type'))} of the text model of {shown(model_type)}"
        raise InputError(what, where=inside, next_step=f"known: {', '.join(type_rows())}")
    if model_type not in type_rows():
        other = "a near relative's config with this model's numbers, or --n-params and --experts"
        raise unknown_name("model_type", model_type[:60], type_rows(), where=where, otherwise=other)
    settings = Settings(config, where)
    name = config.get("_name_or_path")
    parts, layers = read_type(settings, model_type)
    built = Architecture(**parts, name=name if isinstance(name, str) and name else model_type)
    if built.d_ffn == 0 and built.n_moe_layers + built.n_layers_without_ffn < built.n_layers:
        raise InputError("d_ffn must be positive in layers without experts", where=where)
    if built.index_topk > 0 and built.n_index_layers == 0:
        raise InputError("index_topk needs layers with an indexer", where=where)
    weights, quantised = read_weights(config, quantisation, built, layers, where)
    built = replace(built, quantised=quantised)
    positions = config.get("max_position_embeddings")
    positions = positions if isinstance(positions, int) and positions > 0 else None
    remarks = _remarks(settings, model_type)
    return Checkpoint(architecture=built, weights=weights, remarks=remarks, max_position_embeddings=positions)


def _remarks(settings: Settings, model_type: str) -> tuple[str, ...]:
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
    prefixes = type_rows()[model_type].get("classes", ["".join(part.capitalize() for part in model_type.split("_"))])
    if isinstance(stated, str) and not re.match(rf"({'|'.join(prefixes)})(For|Model|Text|$)", stated):
        what = f"architectures says {shown(stated)}, which is not model_type {model_type}"
        found.append(f"{settings.where}: {what}; the model is priced as {model_type}")
    return tuple(found)


def _says_something(key: str, value: Any) -> bool:
    """Whether a value is more than the way to write "none" or "one"; switches and names say nothing of a shape."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value > (0 if "shared" in key else 1)
    return isinstance(value, list) and bool(cast("list[Any]", value))
