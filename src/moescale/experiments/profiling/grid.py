"""What to measure: models, batches, lengths and GPU counts, from PROFILE.toml or from numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from moescale.errors import InputError, unknown_name
from moescale.export.huggingface import config_of
from moescale.io.files import read_text
from moescale.io.schema import quantity_at, read_toml, text_at
from moescale.models.architecture import Architecture
from moescale.models.family import find_family
from moescale.models.hf_config import from_config
from moescale.models.parameters import count_parameters, dense_equivalent_params
from moescale.models.rounding import buildable

ENGINES = ("torch", "vllm")
DTYPES = ("bfloat16", "float16", "float32")
MODEL_KEYS = ("n_params", "experts", "kv_heads", "vocab_size", "family", "config", "name")
VOCABULARY = (
    32_000  # Llama's, which the paper's models take (arXiv 2404.02852, appendix A); embeddings hardly cost time
)
MOST_BATCH, MOST_TOKENS, MOST_GPUS, MOST_POINTS = 65_536, 10**7, 1024, 100_000
MOST_MODELS = 200  # each starts an engine


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model to measure: the Hugging Face config that engines build it from, and its shape."""

    name: str
    config: Mapping[str, Any]
    architecture: Architecture

    @property
    def n_experts(self) -> int:
        """Routed experts of a MoE layer; 1 for a dense model, whatever its config says."""
        return int(float(self.architecture.n_experts)) if float(self.architecture.n_moe_layers) > 0 else 1

    def columns(self) -> dict[str, Any]:
        """What every row of the table says about the model."""
        a, count = self.architecture, count_parameters(self.architecture)
        dense = float(a.n_moe_layers) == 0
        names = ("n_layers", "d_model", "n_heads", "n_kv_heads", "head_dim", "d_ffn", "n_moe_layers", "vocab_size")
        return {
            "model": self.name,
            "n_params_total": float(count.total),
            "n_params_non_embedding": float(count.non_embedding_total),
            "n_params": float(dense_equivalent_params(a)),
            "n_experts": self.n_experts,
            **{name: int(float(getattr(a, name))) for name in names},
            "top_k": 1 if dense else int(float(a.top_k)),
            "d_expert": 0 if dense else int(float(a.d_expert)),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Every combination of these is measured, at both stages: `prompt_tokens` at prefill, `context_tokens` at decode."""

    gpu: str  # the name that rows are filed under
    engine: str
    models: tuple[Model, ...]
    batches: tuple[int, ...]
    prompt_tokens: tuple[int, ...]
    context_tokens: tuple[int, ...]
    gpus: tuple[int, ...] = (1,)
    dtype: str = "bfloat16"

    def points(self) -> list[tuple[str, int, int]]:
        """(stage, batch, tokens) of one model on one GPU count, the cheapest first."""
        stages = (("prefill", self.prompt_tokens), ("decode", self.context_tokens))
        found = [(stage, b, t) for stage, lengths in stages for t in lengths for b in self.batches]
        return sorted(found, key=lambda point: (point[1] * point[2], point))

    @property
    def size(self) -> int:
        """How many rows the whole grid has."""
        return len(self.models) * len(self.gpus) * len(self.points())


def make_grid(
    *,
    gpu: str,
    models: Sequence[Model],
    batches: Sequence[int],
    prompt_tokens: Sequence[int],
    context_tokens: Sequence[int] = (),
    gpus: Sequence[int] = (1,),
    engine: str = "torch",
    dtype: str = "bfloat16",
    where: str | None = None,
) -> Grid:
    """A checked grid; without `context_tokens` decoding is measured at the prompt lengths. Raises InputError."""
    if not gpu.strip():
        raise InputError("gpu is empty", where=where, next_step="name the GPU as `cost --gpu` will, such as h100-sxm")
    for kind, value, known in (("engine", engine, ENGINES), ("dtype", dtype, DTYPES)):
        if value not in known:
            raise unknown_name(kind, value, known, where=where)
    for name, values in (("batch", batches), ("prompt_tokens", prompt_tokens), ("gpus", gpus), ("models", models)):
        if not values:
            raise InputError(f"{name} is empty", where=where, next_step=f"give {name} at least one entry")
    if engine == "torch" and set(gpus) != {1}:
        raise InputError("engine torch measures one GPU", where=where, next_step="take engine vllm, or gpus = [1]")
    grid = Grid(
        gpu=gpu.strip(),
        engine=engine,
        models=tuple(models),
        batches=_distinct(batches),
        prompt_tokens=_distinct(prompt_tokens),
        context_tokens=_distinct(context_tokens or prompt_tokens),
        gpus=_distinct(gpus),
        dtype=dtype,
    )
    if grid.size > MOST_POINTS:
        raise InputError(f"the grid has {grid.size:,} points; at most {MOST_POINTS:,} are taken", where=where)
    for model in grid.models:
        _check_splits(model, grid.gpus, where)
    return grid


def read_grid(path: str | Path) -> Grid:
    """The grid that a PROFILE.toml states; docs/profiling.md lists its keys. Raises InputError that names file and key."""
    file = Path(path)
    where = str(file)
    document = read_toml(file)
    readers: dict[str, tuple[str, Callable[[Any, str], Any]]] = {
        "gpu": ("gpu", text_at),
        "engine": ("engine", text_at),
        "dtype": ("dtype", text_at),
        "batch": ("batches", lambda value, at: whole_numbers(value, at, MOST_BATCH)),
        "prompt_tokens": ("prompt_tokens", lambda value, at: whole_numbers(value, at, MOST_TOKENS)),
        "context_tokens": ("context_tokens", lambda value, at: whole_numbers(value, at, MOST_TOKENS)),
        "gpus": ("gpus", lambda value, at: whole_numbers(value, at, MOST_GPUS)),
        "models": ("models", lambda value, at: _models(value, at, file.parent, splits)),
    }
    for key in document:
        if key not in readers:
            raise unknown_name("key", key, readers, where=where)
    for key in ("gpu", "batch", "prompt_tokens", "models"):
        if key not in document:
            raise InputError(f"{key} is missing", where=where, next_step=f"a grid has the keys {', '.join(readers)}")
    # Heads of models by size shall split over every GPU count.
    splits = math.lcm(*whole_numbers(document.get("gpus", 1), f"{where}, gpus", MOST_GPUS))
    stated = {readers[key][0]: readers[key][1](value, f"{where}, {key}") for key, value in document.items()}
    return make_grid(**stated, where=where)


def whole_numbers(value: object, where: str, most: int) -> tuple[int, ...]:
    """One or several whole numbers from 1 to `most`, such as 8, "2K" or [1, 8, 64]; InputError otherwise."""
    found: list[int] = []
    for entry in _listed(value):
        number = quantity_at(entry, where)
        if not (1 <= number <= most and number.is_integer()):
            raise InputError(f"{entry!r} is not a whole number from 1 to {most:,}", where=where)
        found.append(int(number))
    if not found:
        raise InputError("is empty", where=where, next_step="give at least one whole number")
    return tuple(found)


def model_of_size(
    n_params: float,
    experts: int,
    *,
    gpus: int = 1,
    kv_heads: int | None = None,
    vocab_size: int = VOCABULARY,
    family: str = "yun2024",
    where: str | None = None,
) -> Model:
    """The buildable model nearest to `n_params` (dense-equivalent, without embeddings) with so many experts."""
    try:
        shape = buildable(
            replace(find_family(family), kv_heads=kv_heads),
            float(n_params),
            float(experts),
            gpus=gpus,
            vocab_size=vocab_size,
            must_split=True,
        )
    except InputError as error:
        raise InputError(error.what, where=where, nearest=error.nearest, next_step="give a larger n_params") from error
    config = config_of(shape, vocab_size)
    return Model(name=f"{shape.n_params / 1e6:.4g}M E={experts}", config=config, architecture=from_config(config))


def model_of_config(config: Mapping[str, Any], *, name: str = "", where: str | None = None) -> Model:
    """The model that a Hugging Face config states."""
    try:
        shape = from_config(config)
    except InputError as error:
        raise InputError(error.what, where=where, nearest=error.nearest, next_step=error.next_step) from error
    return Model(name=name or shape.name, config=dict(config), architecture=shape)


def _models(value: object, where: str, folder: Path, splits: int) -> tuple[Model, ...]:
    found: list[Model] = []
    for number, entry in enumerate(_listed(value), start=1):
        at = f"{where}, entry {number}"
        if not isinstance(entry, Mapping):
            raise InputError("is not a table", where=at, next_step="write each as [[models]]")
        stated = cast("Mapping[str, Any]", entry)
        for key in stated:
            if key not in MODEL_KEYS:
                raise unknown_name("key", key, MODEL_KEYS, where=at)
        found.extend(_sized(stated, at, splits) if "config" not in stated else (_configured(stated, at, folder),))
        _check_count(len(found), where)
    return tuple(found)


def _sized(entry: Mapping[str, Any], where: str, splits: int) -> list[Model]:
    if "n_params" not in entry:
        raise InputError("has neither n_params nor config", where=where, next_step="add one of them")
    sizes = [quantity_at(size, f"{where}, n_params") for size in _listed(entry["n_params"])]
    counts = whole_numbers(entry.get("experts", 1), f"{where}, experts", 65_536)
    options: dict[str, Any] = {}
    for key in ("kv_heads", "vocab_size"):
        if key in entry:
            (options[key],) = whole_numbers(entry[key], f"{where}, {key}", 10**7)[:1]
    if "family" in entry:
        options["family"] = text_at(entry["family"], f"{where}, family")
    for size in sizes:
        if not 1e5 <= size <= 1e15:
            raise InputError(f"{size:g} is not a size from 1e5 to 1e15", where=f"{where}, n_params")
    _check_count(len(sizes) * len(counts), where)
    models = [model_of_size(size, count, gpus=splits, where=where, **options) for size in sizes for count in counts]
    return [replace(m, name=f"{entry['name']} {m.name}") for m in models] if "name" in entry else models


def _check_count(models: int, where: str) -> None:
    if models > MOST_MODELS:
        raise InputError(f"states {models:,} models", where=where, next_step=f"give at most {MOST_MODELS}")


def _configured(entry: Mapping[str, Any], where: str, folder: Path) -> Model:
    for key in entry:
        if key not in ("config", "name"):
            raise InputError(f"{key} does not go with config, which states the shape", where=where)
    name = text_at(entry["name"], f"{where}, name") if "name" in entry else ""
    given = entry["config"]
    if isinstance(given, Mapping):
        return model_of_config(cast("Mapping[str, Any]", given), name=name, where=f"{where}, config")
    return read_model(folder / text_at(given, f"{where}, config"), name=name)


def read_model(path: str | Path, *, name: str = "") -> Model:
    """The model of a config.json, or of the folder that holds one."""
    file = Path(path)
    shape = from_config(file)  # with its own clear errors
    config = json.loads(read_text(file / "config.json" if file.is_dir() else file))
    return Model(
        name=name or (shape.name if "_name_or_path" in config else file.stem), config=config, architecture=shape
    )


def _check_splits(model: Model, gpus: Sequence[int], where: str | None) -> None:
    heads = int(float(model.architecture.n_heads))
    for count in gpus:
        if heads % count:
            raise InputError(
                f"the {heads} heads of {model.name} do not split over {count} GPUs",
                where=where,
                next_step="choose a size, or a GPU count, where they do",
            )


def _distinct(values: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(set(values)))


def _listed(value: object) -> list[Any]:
    return list(cast("list[Any]", value)) if isinstance(value, list | tuple) else [value]
