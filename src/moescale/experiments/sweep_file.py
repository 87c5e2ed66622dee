"""What a sweep trains: SWEEP.toml expanded into runs, each a RUN.toml with its parameters, tokens and FLOPs."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self, cast

from pydantic import Field, model_validator

from moescale.errors import InputError
from moescale.experiments.settings import SHAPE, RunSettings, estimate, settings_of
from moescale.experiments.tables import (
    Experts,
    Listed,
    Quantity,
    Rate,
    Seed,
    Share,
    Size,
    Table,
    Text,
    Tokens,
    Whole,
    Width,
    checked,
)
from moescale.io.records import record
from moescale.io.schema import as_mapping, read_toml

MOST_RUNS = 10_000
LONGEST_NAME = 200  # of a run, with its suffix
# What a sweep states in [grid] or [[runs]], and not for all runs at once.
OF_ONE_RUN = {"model": ("n_params", "experts", "d_model", "n_layers"), "training": ("tokens",)}
RECIPE = ("batch_tokens", "peak_lr", "warmup")  # of [[runs]]; those of [training] are for the runs that state none

Ratio = Annotated[float, Quantity, Field(ge=1e-3, le=1e9)]


class Shape(Table):
    """An entry of [grid] `shapes`; what is None is as in RUN.toml."""

    d_model: Width | None = None
    n_layers: Width | None = None
    n_heads: Width | None = None
    n_kv_heads: Width | None = None
    head_dim: Width | None = None
    d_ffn: Width | None = None

    @model_validator(mode="before")
    @classmethod
    def pair(cls, entry: Any) -> Any:
        """[d_model, n_layers] is a shape, too."""
        if isinstance(entry, list) and len(cast("list[Any]", entry)) == 2:
            return dict(zip(SHAPE[:2], cast("list[Any]", entry), strict=True))
        return entry


class StatedRun(Shape):
    """An entry of [[runs]], or one combination of a [grid]; what is None is as in RUN.toml."""

    n_params: Size | None = None
    experts: Experts = 1
    tokens: Tokens | None = None
    tokens_per_param: Ratio | None = None
    batch_tokens: Whole | None = None
    peak_lr: Rate | None = None
    warmup: Share | None = None
    seed: Seed | None = None  # None: the sweep's

    @model_validator(mode="after")
    def complete(self) -> Self:
        """One way of stating the size, one of stating the tokens."""
        if (self.d_model is None) != (self.n_layers is None) or (self.n_params is None) == (self.d_model is None):
            raise InputError("needs n_params, or d_model and n_layers, and not both")
        if (self.tokens is None) == (self.tokens_per_param is None):
            raise InputError("needs tokens or tokens_per_param, and not both")
        return self

    def name(self, sweep: SweepFile) -> str:
        """What it is called, unless another run is called so."""
        size = f"{self.d_model}x{self.n_layers}" if self.n_params is None else label(round(self.n_params))
        length = f"{self.tokens_per_param:g}per" if self.tokens is None else label(self.tokens)
        seed = "" if self.seed in (None, sweep.seed) else f"s{self.seed}"
        return "-".join(part for part in (sweep.name, f"e{self.experts}", size, length, seed) if part)


class Grid(Table):
    """The table [grid]: every combination of these is a run."""

    n_params: Annotated[tuple[Size, ...], Listed] | None = None
    shapes: Annotated[tuple[Shape, ...], Listed] | None = None
    experts: Annotated[tuple[Experts, ...], Listed] = (1,)
    tokens: Annotated[tuple[Tokens, ...], Listed] | None = None
    tokens_per_param: Annotated[tuple[Ratio, ...], Listed] | None = None
    seeds: Annotated[tuple[Seed, ...], Listed] | None = None  # None: the sweep's

    @model_validator(mode="after")
    def complete(self) -> Self:
        """One way of stating sizes, one of stating tokens, and not too many runs."""
        for left, right in (("n_params", "shapes"), ("tokens", "tokens_per_param")):
            if (getattr(self, left) is None) == (getattr(self, right) is None):
                raise InputError(f"needs {left} or {right}, and not both")
        if any(shape.d_model is None or shape.n_layers is None for shape in self.shapes or ()):
            raise InputError("shapes: each needs d_model and n_layers")
        if (count := math.prod(map(len, self.axes()))) > MOST_RUNS:
            raise InputError(f"the grid has {count:,} runs; at most {MOST_RUNS:,} are taken")
        return self

    def axes(self) -> tuple[list[dict[str, Any]], ...]:
        """What a run states of each axis, one entry a value."""
        sizes = [{"n_params": size} for size in self.n_params or ()]
        sizes += [shape.model_dump(exclude_none=True) for shape in self.shapes or ()]
        lengths = [{"tokens": count} for count in self.tokens or ()]
        lengths += [{"tokens_per_param": ratio} for ratio in self.tokens_per_param or ()]
        return sizes, [{"experts": e} for e in self.experts], [{"seed": s} for s in self.seeds or (None,)], lengths

    def runs(self) -> tuple[StatedRun, ...]:
        """Every combination."""
        combined = itertools.product(*self.axes())
        return tuple(StatedRun(**{k: v for part in parts for k, v in part.items()}) for parts in combined)


class Execution(Table):
    """The table [execute]: where the runs are executed."""

    on: Literal["local", "slurm"] = "local"
    jobs: Annotated[int, Quantity, Field(ge=1, le=MOST_RUNS)] | None = None  # at once; None: 1 here, all on a cluster
    flops_per_s: Annotated[float, Quantity, Field(ge=1)] | None = None  # of one run, for the estimate of time
    slurm: dict[str, Any] = Field(default_factory=dict[str, Any])  # options of sbatch, by submitit's names
    gpu: Text | None = None  # of torchtitan and Megatron-LM: what a launch is written for
    gpus: Annotated[int, Quantity, Field(ge=1, le=100_000)] | None = None


class SweepFile(Table):
    """What a SWEEP.toml states besides what all runs share."""

    name: str = Field(default="", pattern=r"^([A-Za-z0-9][\w.+-]{0,63})?$")  # begins that of every run
    seed: Seed = 0
    table: Text = "runs.csv"
    folder: Text = "sweep"
    engine: Literal["moescale", "torchtitan", "megatron"] = "moescale"
    grid: Grid | None = None
    runs: tuple[StatedRun, ...] = ()
    execute: Execution = Execution()

    @model_validator(mode="after")
    def complete(self) -> Self:
        """Runs are stated one way; an engine that is launched needs GPUs; files can bear the names."""
        if (self.grid is None) == (not self.runs):
            what = "holds [grid] and [[runs]]" if self.runs else "holds no [grid] and no [[runs]]"
            raise InputError(what, next_step="state the runs one way: every combination of a grid, or one by one")
        if len(self.runs) > MOST_RUNS:
            raise InputError(f"there are {len(self.runs):,} [[runs]]; at most {MOST_RUNS:,} are taken")
        if self.engine != "moescale" and (self.execute.gpu is None or self.execute.gpus is None):
            what = f"engine {self.engine} is launched on GPUs: gpu or gpus is missing in [execute]"
            raise InputError(what, next_step='add gpu = "h100-sxm" and gpus = 8')
        for key in ("table", "folder"):
            try:
                os.stat(Path(getattr(self, key), "x" * LONGEST_NAME))
            except (FileNotFoundError, NotADirectoryError, PermissionError):
                pass  # as good as any; what is wrong with it is reported where it is written
            except OSError as error:
                what = f"{key} = {getattr(self, key)[:60]!r} cannot be a path: {error.strerror}"
                raise InputError(what, next_step="give a shorter or simpler one") from error
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    """One run of a sweep; sizes are without embeddings, exact counts of the shape that is built."""

    name: str
    output: Path
    settings: RunSettings
    n_params_dense: float
    n_params_active: float
    n_params_total: float
    training_flops: float

    def beside(self, suffix: str) -> Path:
        """A file or folder beside its folder: NAME.toml, NAME.log, NAME.launch."""
        return self.output.with_name(f"{self.name}.{suffix}")

    @property
    def lock(self) -> Path:
        """The lock that its job holds."""
        return self.output.with_name(f".{self.name}.lock")

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values."""
        training, model = self.settings.training, self.settings.model
        more = {"n_experts": model.experts, "tokens": [training.tokens], "seed": self.settings.seed}
        return record(self, without=("settings",)) | more | {key: getattr(training, key) for key in RECIPE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """A sweep: its runs, those of the fewest FLOPs first, and where they go."""

    source: str
    table: Path
    folder: Path
    runs: tuple[PlannedRun, ...]
    engine: str
    execution: Execution


def read_sweep(path: str | Path) -> Sweep:
    """The sweep that a SWEEP.toml states; docs/sweep.md lists its keys.

    Paths in it are relative to the current directory, as those of a RUN.toml. Raises InputError that names file and key,
    also where two entries of the grid or the list are the same run.
    """
    document = read_toml(path)
    if not {"grid", "runs"} & document.keys():
        what = "holds no [grid] and no [[runs]]: that is one run"
        raise InputError(what, where=str(path), next_step=f"`moescale train {path}`, or add one of them")
    return expand(document, where=str(path))


def expand(document: Mapping[str, Any], *, where: str = "sweep") -> Sweep:
    """The sweep that a mapping states. Errors as read_sweep."""
    keys = SweepFile.model_fields
    stated = checked(SweepFile, {key: document[key] for key in keys if key in document}, where=where)
    shared = {key: value for key, value in document.items() if key not in keys}
    for name in ("model", "data", "training"):
        shared[name] = as_mapping(shared.get(name, {}), f"{where}, [{name}]")
    if "output" in shared:
        raise InputError("output belongs to one run; a sweep uses `folder`", where=where, next_step="leave it out")
    of_one_run = {**OF_ONE_RUN, "model": (*OF_ONE_RUN["model"], *_varied(stated))}
    for name, varied in of_one_run.items():
        if key := next((key for key in varied if key in shared[name]), None):
            what = f"{key} belongs to one run; state it in [grid] or [[runs]]"
            raise InputError(what, where=f"{where}, [{name}]", next_step="leave it out")
    if isinstance(corpus := shared["data"].get("corpus"), str) and corpus.strip():
        shared["data"] = {
            **shared["data"],
            "corpus": str(Path(corpus).absolute()),
        }  # a job of a cluster starts anywhere
    runs: dict[str, PlannedRun] = {}
    computed: dict[str, str] = {}
    for entry in stated.grid.runs() if stated.grid else stated.runs:
        name = entry.name(stated)
        others = (f"{name}-{number}" for number in itertools.count(2))
        run = _planned(
            name if name not in runs else next(o for o in others if o not in runs), entry, stated, shared, where
        )
        # Two sizes may round to one shape, and two ways of writing a number to one run.
        computes = run.settings.model_copy(update={"name": ""}).sha256
        if computes in computed:
            table = "[grid]" if stated.grid else "[[runs]]"
            what = f"two entries of {table} are the same run: {computed[computes]} and {name}"
            step = "leave one out; for repeats give other seeds: seeds = [0, 1]"
            raise InputError(what, where=f"{where}, {table}", next_step=step)
        computed[computes], runs[run.name] = run.name, run
    # The cheapest first: what is wrong shows in minutes, and measured rates come early.
    ordered = tuple(sorted(runs.values(), key=lambda run: run.training_flops))
    return Sweep(
        source=where, table=Path(stated.table), folder=Path(stated.folder), runs=ordered, engine=stated.engine,
        execution=stated.execute,
    )  # fmt: skip


def _varied(stated: SweepFile) -> list[str]:
    """The keys of a shape that runs of the list state."""
    return [key for key in SHAPE if any(getattr(run, key) is not None for run in stated.runs)]


def _planned(name: str, entry: StatedRun, stated: SweepFile, shared: Mapping[str, Any], where: str) -> PlannedRun:
    """One run; where its D is a multiple of N, N is that of the shape that is built."""
    output, at = Path(stated.folder, name), f"{where}, run {name}"
    given = entry.model_dump(exclude_none=True)
    model = {**shared["model"], **{key: given[key] for key in (*SHAPE, "n_params", "experts") if key in given}}
    training = {**shared["training"], **{key: given[key] for key in (*RECIPE, "tokens") if key in given}}
    table = {
        **shared, "name": name, "seed": stated.seed if entry.seed is None else entry.seed, "model": model,
        "output": str(output.absolute()),  # as a job of a cluster may start anywhere
    }  # fmt: skip
    if entry.tokens_per_param is not None:
        unsized = settings_of({**table, "training": {**training, "tokens": 10**9}}, where=at)
        training["tokens"] = max(1, round(entry.tokens_per_param * estimate(unsized)["n_params_dense"]))
    made = settings_of({**table, "training": training}, where=at)
    found = estimate(made)
    sizes = {key: found[key] for key in ("n_params_dense", "n_params_active", "n_params_total", "training_flops")}
    return PlannedRun(name=name, output=output, settings=made, **sizes)


def label(value: int) -> str:
    """A whole number for a name, to the last digit: 85m, 2.5b."""
    for unit, letter in ((10**12, "t"), (10**9, "b"), (10**6, "m"), (10**3, "k")):
        if value >= unit:
            whole, rest = divmod(value, unit)
            digits = f"{rest:0{round(math.log10(unit))}d}".rstrip("0")
            return f"{whole}.{digits}{letter}" if digits else f"{whole}{letter}"
    return str(value)
