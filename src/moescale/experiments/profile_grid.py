"""What `profile` measures: models, batches, lengths and GPU counts, from PROFILE.toml or from options."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from moescale.errors import InputError
from moescale.experiments.tables import Experts, Listed, Quantity, Table, Text, Width, checked
from moescale.export.huggingface import config_of
from moescale.io.files import read_text
from moescale.io.schema import read_toml
from moescale.models.architecture import Architecture
from moescale.models.family import find_family
from moescale.models.hf_config import from_config
from moescale.models.parameters import count_parameters, dense_equivalent_params
from moescale.models.rounding import buildable

Point = tuple[str, int, int]  # stage, batch, tokens
# Llama's, which the paper's models take (arXiv 2404.02852, appendix A); embeddings hardly cost time
VOCABULARY = 32_000
MOST_POINTS, MOST_MODELS = 100_000, 200

Lengths = Annotated[tuple[Width, ...], Listed]


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model to measure: the Hugging Face config that vLLM builds it from, and its shape."""

    name: str
    config: Mapping[str, Any]
    architecture: Architecture

    def columns(self) -> dict[str, Any]:
        """What every row of the table says about the model."""
        a, count = self.architecture, count_parameters(self.architecture)
        dense = float(a.n_moe_layers) == 0
        names = ("n_layers", "d_model", "n_heads", "n_kv_heads", "head_dim", "d_ffn", "n_moe_layers", "vocab_size")
        of_experts = (1, 1, 0) if dense else (int(float(each)) for each in (a.n_experts, a.top_k, a.d_expert))
        sizes = (count.total, count.non_embedding_total, dense_equivalent_params(a))
        return {
            "model": self.name,
            **dict(zip(("n_params_total", "n_params_non_embedding", "n_params"), map(float, sizes), strict=True)),
            **{name: int(float(getattr(a, name))) for name in names},
            **dict(zip(("n_experts", "top_k", "d_expert"), of_experts, strict=True)),
        }


class ModelsTable(Table):
    """An entry of [[models]]: sizes and expert counts of a family, or one config.json (a file or its folder)."""

    n_params: Annotated[tuple[Annotated[float, Quantity, Field(ge=1e5, le=1e15)], ...], Listed] = ()
    experts: Annotated[tuple[Experts, ...], Listed] = (1,)
    kv_heads: Width | None = None
    vocab_size: Width = VOCABULARY
    family: Text = "yun2024"
    config: Text | None = None
    name: str = ""

    @model_validator(mode="after")
    def complete(self) -> Self:
        """One way of stating the model."""
        if self.config is None and not self.n_params:
            raise InputError("has neither n_params nor config", next_step="add one of them")
        if self.config is not None and (more := self.model_fields_set - {"name", "config"}):
            raise InputError(f"{', '.join(sorted(more))} does not go with config, which states the shape")
        if len(self.n_params) * len(self.experts) > MOST_MODELS:
            raise InputError(f"states {len(self.n_params) * len(self.experts):,} models", nearest=str(MOST_MODELS))
        return self

    def models(self, folder: Path, splits: int) -> Iterator[Model]:
        """The models; heads of those by size split over every divisor of `splits`."""
        if self.config is not None:
            file = folder / self.config
            shape = from_config(file)  # raises InputError that names the file
            config = json.loads(read_text(file / "config.json" if file.is_dir() else file))
            named = self.name or (shape.name if "_name_or_path" in config else file.stem)
            yield Model(name=named, config=config, architecture=shape)
        for size in self.n_params:
            for experts in self.experts:
                model = model_of_size(
                    size, experts, gpus=splits, kv_heads=self.kv_heads, vocab_size=self.vocab_size, family=self.family
                )
                yield replace(model, name=f"{self.name} {model.name}".strip())


class Grid(Table):
    """What a PROFILE.toml states: every combination is measured, at both stages.

    `prompt_tokens` are measured at prefill, `context_tokens` at decode: without them, the prompt lengths.
    """

    gpu: Text  # the name that rows are filed under
    engine: Literal["vllm"] = "vllm"
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    batch: Lengths = (1, 2, 4, 8, 16, 32, 64)
    prompt_tokens: Lengths = (128, 512)
    context_tokens: Lengths | None = None
    gpus: Annotated[tuple[Annotated[int, Quantity, Field(ge=1, le=1024)], ...], Listed] = (1,)
    models: Annotated[tuple[ModelsTable, ...], Listed]

    def points(self) -> list[Point]:
        """(stage, batch, tokens) of one model on one GPU count, the cheapest first."""
        stages = (("prefill", self.prompt_tokens), ("decode", self.context_tokens or self.prompt_tokens))
        found = {(stage, b, t) for stage, lengths in stages for t in lengths for b in self.batch}
        return sorted(found, key=lambda point: (point[1] * point[2], point))


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """A grid with its models: (model, GPU count, table columns) of each start of vLLM."""

    grid: Grid
    places: tuple[tuple[Model, int, Mapping[str, Any]], ...]

    @property
    def size(self) -> int:
        """How many rows the whole grid has."""
        return len(self.places) * len(self.grid.points())


def read_grid(path: str | Path) -> Places:
    """The grid that a PROFILE.toml states; docs/serving.md lists its keys. Raises InputError that names file and key."""
    return grid_of(read_toml(path), where=str(path), folder=Path(path).parent)


def grid_of(document: Mapping[str, Any], *, where: str, folder: Path) -> Places:
    """The grid of a mapping; paths of configs are relative to `folder`. Errors as of read_grid."""
    grid = checked(Grid, document, where=where)
    models = [model for table in grid.models for model in table.models(folder, math.lcm(*grid.gpus))]
    for model in models:
        if bad := next((count for count in grid.gpus if int(float(model.architecture.n_heads)) % count), None):
            raise InputError(
                f"the heads of {model.name} do not split over {bad} GPUs", where=where, next_step="leave it out"
            )
    shared = {"gpu": grid.gpu.strip(), "engine": grid.engine, "dtype": grid.dtype}
    places = tuple((model, gpus, {**shared, "gpus": gpus, **model.columns()}) for model in models for gpus in grid.gpus)
    found = Places(grid=grid, places=places)
    if found.size > MOST_POINTS or len(models) > MOST_MODELS:
        what = f"the grid has {found.size:,} points of {len(models)} models"
        raise InputError(what, where=where, nearest=f"{MOST_POINTS:,} points of {MOST_MODELS} models")
    return found


def model_of_size(
    n_params: float, experts: int, *, gpus: int = 1, kv_heads: int | None = None, vocab_size: int = VOCABULARY,
    family: str = "yun2024",
) -> Model:  # fmt: skip
    """The buildable model nearest to `n_params` (dense-equivalent, without embeddings) with so many experts."""
    found = find_family(family)
    found = found if kv_heads is None else replace(found, kv_heads=kv_heads)
    shape = buildable(found, float(n_params), float(experts), gpus=gpus, vocab_size=vocab_size, must_split=True)
    config = config_of(shape, vocab_size)
    return Model(name=f"{shape.n_params / 1e6:.4g}M E={experts}", config=config, architecture=from_config(config))
