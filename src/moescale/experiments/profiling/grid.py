"""What to measure: models, batches, lengths and GPU counts, from PROFILE.toml or from options."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from moescale.bounds import Bound
from moescale.errors import InputError, located, unknown_name
from moescale.export.huggingface import config_of
from moescale.io.files import read_text
from moescale.io.schema import Quantity, QuantityCount, quantity_at, read_toml, settings, text_at
from moescale.models.architecture import Architecture
from moescale.models.family import find_family
from moescale.models.hf_config import from_config
from moescale.models.parameters import count_parameters, dense_equivalent_params
from moescale.models.rounding import buildable
from moescale.units import parse_count

ENGINES = ("torch", "vllm")
DTYPES = ("bfloat16", "float16", "float32")
# Llama's, which the paper's models take (arXiv 2404.02852, appendix A); embeddings hardly cost time
VOCABULARY = 32_000
MOST_BATCH, MOST_TOKENS, MOST_GPUS, MOST_EXPERTS, MOST_POINTS = 65_536, 10**7, 1024, 65_536, 100_000
MOST_MODELS = 200  # each starts an engine
SIZE = Bound(1e5, 1e15)  # of n_params
ALSO_WITH_FILE = ("gpu", "engine")  # options that a grid file may be given with

Lengths = tuple[Annotated[QuantityCount, Bound(1, MOST_TOKENS)], ...]
Whole = Annotated[QuantityCount, Bound(1, 10**7)]


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
    """Every combination of these is measured, at both stages; checks itself and sorts its numbers. Raises InputError.

    `prompt_tokens` are measured at prefill, `context_tokens` at decode: without them, the prompt lengths.
    """

    gpu: str  # the name that rows are filed under
    models: Sequence[Model]
    batches: Sequence[int]
    prompt_tokens: Sequence[int]
    context_tokens: Sequence[int] | None = None
    gpus: Sequence[int] = (1,)
    engine: str = "torch"
    dtype: str = "bfloat16"

    def __post_init__(self) -> None:
        if not self.gpu.strip():
            raise InputError("gpu is empty", next_step="name the GPU as `cost --gpu` will, such as h100-sxm")
        for name, key in (("batches", "batch"), ("prompt_tokens",) * 2, ("gpus",) * 2, ("models",) * 2):
            if not getattr(self, name):
                raise InputError(f"{key} is empty", next_step=f"give {key} at least one entry")
        if self.engine == "torch" and set(self.gpus) != {1}:
            raise InputError("engine torch measures one GPU", next_step="take engine vllm, or gpus = [1]")
        lengths = self.prompt_tokens if self.context_tokens is None else self.context_tokens
        numbers = {
            "batches": self.batches,
            "prompt_tokens": self.prompt_tokens,
            "context_tokens": lengths,
            "gpus": self.gpus,
        }
        for name, values in numbers.items():
            object.__setattr__(self, name, tuple(sorted(set(values))))
        object.__setattr__(self, "gpu", self.gpu.strip())
        if self.size > MOST_POINTS:
            raise InputError(f"the grid has {self.size:,} points; at most {MOST_POINTS:,} are taken")
        for model in self.models:
            heads = int(float(model.architecture.n_heads))
            for count in self.gpus:
                if heads % count:
                    raise InputError(
                        f"the {heads} heads of {model.name} do not split over {count} GPUs",
                        next_step="choose a size, or a GPU count, where they do",
                    )

    def points(self) -> list[tuple[str, int, int]]:
        """(stage, batch, tokens) of one model on one GPU count, the cheapest first."""
        stages = (("prefill", self.prompt_tokens), ("decode", self.context_tokens or ()))
        found = [(stage, b, t) for stage, lengths in stages for t in lengths for b in self.batches]
        return sorted(found, key=lambda point: (point[1] * point[2], point))

    @property
    def size(self) -> int:
        """How many rows the whole grid has."""
        return len(self.models) * len(self.gpus) * len(self.points())


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelsTable:
    """An entry of [[models]]: sizes and expert counts of a family, or one config (a file, or a table)."""

    n_params: tuple[Annotated[Quantity, SIZE], ...] = ()
    experts: tuple[Annotated[QuantityCount, Bound(1, MOST_EXPERTS)], ...] | None = None
    kv_heads: Whole | None = None
    vocab_size: Whole | None = None
    family: str | None = None
    config: Any = None
    name: str = ""

    def __post_init__(self) -> None:
        if not self.n_params and self.config is None:
            raise InputError("has neither n_params nor config", next_step="add one of them")
        if self.config is not None:
            for key in ("n_params", "experts", "kv_heads", "vocab_size", "family"):
                if getattr(self, key):
                    raise InputError(f"{key} does not go with config, which states the shape")
        elif self.experts == ():
            raise InputError("experts: is empty", next_step="give at least one whole number")

    def models(self, folder: Path, splits: int, where: str) -> list[Model]:
        """The models; heads of those by size split over every divisor of `splits`."""
        if isinstance(self.config, Mapping):
            return [model_of_config(cast("Mapping[str, Any]", self.config), name=self.name, where=f"{where}, config")]
        if self.config is not None:
            return [read_model(folder / text_at(self.config, f"{where}, config"), name=self.name)]
        given = {"kv_heads": self.kv_heads, "vocab_size": self.vocab_size, "family": self.family}
        options: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
        made = [
            model_of_size(size, count, gpus=splits, where=where, **options)
            for size in self.n_params
            for count in self.experts or (1,)
        ]
        return [replace(model, name=f"{self.name} {model.name}".strip()) for model in made]

    @property
    def count(self) -> int:
        """How many models it states."""
        return max(1, len(self.n_params) * len(self.experts or (1,)))


@dataclass(frozen=True, slots=True, kw_only=True)
class GridFile:
    """What a PROFILE.toml states."""

    gpu: str
    engine: Literal["torch", "vllm"] = "torch"
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    batch: tuple[Annotated[QuantityCount, Bound(1, MOST_BATCH)], ...]
    prompt_tokens: Lengths
    context_tokens: Lengths | None = None
    gpus: tuple[Annotated[QuantityCount, Bound(1, MOST_GPUS)], ...] = (1,)
    models: tuple[ModelsTable, ...]

    def __post_init__(self) -> None:
        count = sum(table.count for table in self.models)
        if count > MOST_MODELS:
            raise InputError(f"states {count:,} models", next_step=f"give at most {MOST_MODELS}")


def read_grid(path: str | Path) -> Grid:
    """The grid that a PROFILE.toml states; docs/serving.md lists its keys. Raises InputError that names file and key."""
    file = Path(path)
    stated = settings(GridFile, read_toml(file), where=str(file))
    splits = math.lcm(*stated.gpus)
    with located(str(file)):
        return Grid(
            gpu=stated.gpu,
            engine=stated.engine,
            dtype=stated.dtype,
            batches=stated.batch,
            prompt_tokens=stated.prompt_tokens,
            context_tokens=stated.context_tokens,
            gpus=stated.gpus,
            models=[
                model
                for number, table in enumerate(stated.models, start=1)
                for model in table.models(file.parent, splits, f"{file}, models, entry {number}")
            ],
        )


def grid_of_options(path: Path | None, stated: Mapping[str, Any]) -> Grid:
    """The grid of a file, with another gpu or engine where one is stated, or that of the options of `profile` alone.

    Raises InputError that names the option.
    """
    for name, known in (("engine", ENGINES), ("dtype", DTYPES)):
        if stated.get(name, known[0]) not in known:
            raise unknown_name(name, stated[name], known, where=_option(name))
    if path is not None:
        for name in stated:
            if name not in ALSO_WITH_FILE:
                raise InputError(
                    "goes without a grid file, which states it", where=_option(name), next_step="leave it out"
                )
        grid = read_grid(path)
        with located("--engine"):
            return replace(grid, **stated)
    if "gpu" not in stated:
        raise InputError(
            "is missing", where="--gpu", next_step="name the GPU as `cost --gpu` will, or give a grid file"
        )

    def numbers(name: str, default: str, most: int) -> tuple[int, ...]:
        return tuple(_whole_number(text, _option(name), most) for text in str(stated.get(name, default)).split(","))

    counts = numbers("gpus", "1", MOST_GPUS)
    return Grid(
        gpu=stated["gpu"],
        models=_models_of_options(stated, numbers("experts", "1", MOST_EXPERTS), math.lcm(*counts)),
        batches=numbers("batch", "1,2,4,8,16,32,64", MOST_BATCH),
        prompt_tokens=numbers("prompt", "128,512", MOST_TOKENS),
        context_tokens=numbers("context", "", MOST_TOKENS) if "context" in stated else None,
        gpus=counts,
        engine=stated.get("engine", "torch"),
        dtype=stated.get("dtype", "bfloat16"),
    )


def _models_of_options(stated: Mapping[str, Any], experts: tuple[int, ...], gpus: int) -> list[Model]:
    if ("config" in stated) == ("n_params" in stated):
        raise InputError("give a model: --config or --n-params (and not both)", next_step="or give a grid file")
    if "config" in stated:
        for name in ("experts", "kv_heads"):
            if name in stated:
                raise InputError("goes with --n-params only", where=_option(name))
        return [read_model(stated["config"])]
    with located("--n-params"):
        sizes = [parse_count(text) for text in str(stated["n_params"]).split(",")]
        for size in sizes:
            if SIZE.bad(size) is not None:
                raise InputError(f"{size:g} is not a size from 1e5 to 1e15")
        table = ModelsTable(n_params=tuple(sizes), experts=experts, kv_heads=stated.get("kv_heads"))
        return table.models(Path(), gpus, "--n-params")


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _whole_number(text: str, where: str, most: int) -> int:
    number = quantity_at(text, where)
    if not (1 <= number <= most and number.is_integer()):
        raise InputError(f"{text!r} is not a whole number from 1 to {most:,}", where=where)
    return int(number)


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
    found = find_family(family)
    if kv_heads is not None:
        found = replace(found, kv_heads=kv_heads)
    try:
        shape = buildable(found, float(n_params), float(experts), gpus=gpus, vocab_size=vocab_size, must_split=True)
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


def read_model(path: str | Path, *, name: str = "") -> Model:
    """The model of a config.json, or of the folder that holds one."""
    file = Path(path)
    shape = from_config(file)  # with its own clear errors
    config = json.loads(read_text(file / "config.json" if file.is_dir() else file))
    named = name or (shape.name if "_name_or_path" in config else file.stem)
    return Model(name=named, config=config, architecture=shape)
