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

from moescale import catalogue
from moescale.errors import InputError
from moescale.experiments.checked import Listed, Table, Text, checked, within
from moescale.experiments.pack import BYTES
from moescale.experiments.settings import (
    SHAPE,
    Count,
    Experts,
    Rate,
    RunSettings,
    Seed,
    Share,
    Tokens,
    estimate,
    settings_of,
)
from moescale.io.records import record
from moescale.io.schema import as_mapping, read_toml

PAPER = "paper"
MOST_RUNS = 10_000
LONGEST_NAME = 200  # of a run, with its suffix
UNSIZED_TOKENS = 10**9  # stands for D while N is counted, where D is a multiple of N
# What a sweep states in [grid] or [[runs]], or for all runs at once.
OF_ONE_RUN = {"model": ("n_params", "experts", "d_model", "n_layers"), "training": ("tokens",)}
RECIPE = ("batch_tokens", "peak_lr", "warmup")  # of [[runs]]; those of [training] are for the runs that state none
# In the name of a run that another of the same size, experts and tokens differs from.
LETTERS = dict(zip((*SHAPE, *RECIPE), ("d", "l", "h", "kv", "hd", "f", "b", "lr", "w"), strict=True))

Width = Annotated[int, within(1, 10**7, whole=True)]
NParams = Annotated[float, within(1, 1e15)]


class Shape(Table):
    """An entry of [grid] `shapes`; what is None is as in RUN.toml."""

    d_model: Width
    n_layers: Width
    n_heads: Width | None = None
    n_kv_heads: Width | None = None
    head_dim: Width | None = None
    d_ffn: Width | None = None

    @model_validator(mode="before")
    @classmethod
    def pair(cls, entry: Any) -> Any:
        """[d_model, n_layers] is a shape, too."""
        if isinstance(entry, list) and len(cast("list[Any]", entry)) == 2:
            return dict(zip(("d_model", "n_layers"), cast("list[Any]", entry), strict=True))
        return entry


class Grid(Table):
    """The table [grid]: every combination of these is a run."""

    n_params: Annotated[tuple[NParams, ...], Listed] | None = None
    shapes: Annotated[tuple[Shape, ...], Listed] | None = None
    experts: Annotated[tuple[Experts, ...], Listed] = (1,)
    tokens: Annotated[tuple[Tokens, ...], Listed] | None = None
    tokens_per_param: Annotated[tuple[Annotated[float, within(1e-3, 1e9)], ...], Listed] | None = None
    seeds: Annotated[tuple[Seed, ...], Listed] | None = None  # None: the sweep's

    @model_validator(mode="before")
    @classmethod
    def paper(cls, table: Any) -> Any:
        """The paper's numbers where the grid names them."""
        if isinstance(table, dict):
            values = {
                "tokens": lambda: catalogue.read("published_yun2024.toml")["sweep"]["tokens"],
                "shapes": paper_shapes,
            }
            return {key: values[key]() if key in values and v == PAPER else v for key, v in cast("Any", table).items()}
        return table

    @model_validator(mode="after")
    def complete(self) -> Self:
        """One way of stating sizes, one of stating tokens."""
        for left, right in (("n_params", "shapes"), ("tokens", "tokens_per_param")):
            if (getattr(self, left) is None) == (getattr(self, right) is None):
                raise InputError(f"needs {left} or {right}, and not both")
        return self

    def sizes(self) -> list[tuple[str, dict[str, int]]]:
        """The label of each size, and what it states in [model]."""
        if self.shapes is None:
            return [(label(round(size)), {"n_params": round(size)}) for size in self.n_params or ()]
        stated = [shape.model_dump(exclude_none=True) for shape in self.shapes]
        labels = [f"{shape.d_model}x{shape.n_layers}" for shape in self.shapes]
        # Of shapes of one width and depth the rest of what they state tells which is which.
        return [
            ("x".join(map(str, shape.values())) if labels.count(name) > 1 else name, shape)
            for name, shape in zip(labels, stated, strict=True)
        ]

    def lengths(self) -> list[tuple[str, float]]:
        """The label and the tokens, or tokens per parameter, of each run of one size."""
        per = self.tokens_per_param or ()
        return [(label(count), count) for count in self.tokens or ()] + [(f"{ratio:g}per", ratio) for ratio in per]


class StatedRun(Table):
    """An entry of [[runs]]: one run; what is None is as in RUN.toml."""

    n_params: NParams | None = None
    d_model: Width | None = None
    n_layers: Width | None = None
    n_heads: Width | None = None
    n_kv_heads: Width | None = None
    head_dim: Width | None = None
    d_ffn: Width | None = None
    experts: Experts = 1
    tokens: Tokens
    batch_tokens: Count | None = None
    peak_lr: Rate | None = None
    warmup: Share | None = None
    seed: Seed | None = None  # None: the sweep's

    @model_validator(mode="after")
    def complete(self) -> Self:
        """One way of stating the size."""
        if (self.d_model is None) != (self.n_layers is None) or (self.n_params is None) == (self.d_model is None):
            raise InputError("needs n_params, or d_model and n_layers, and not both")
        return self

    def stated(self, keys: tuple[str, ...]) -> dict[str, Any]:
        """What it states of some keys."""
        return {key: value for key in keys if (value := getattr(self, key)) is not None}


class Execution(Table):
    """The table [execute]: where the runs are executed."""

    on: Literal["local", "slurm"] = "local"
    jobs: Annotated[int, within(1, MOST_RUNS, whole=True)] | None = None  # at once; None: 1 here, all on a cluster
    flops_per_s: Annotated[float, within(1)] | None = None  # of one run, for the estimate of time
    slurm: dict[str, Any] = Field(default_factory=dict[str, Any])  # options of sbatch, by submitit's names
    gpu: Text | None = None  # of torchtitan and Megatron-LM: what a launch is written for
    gpus: Annotated[int, within(1, 100_000, whole=True)] | None = None


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
        """Runs are stated one way; an engine that is launched needs GPUs."""
        if (self.grid is None) == (not self.runs):
            what = "holds [grid] and [[runs]]" if self.runs else "holds no [grid] and no [[runs]]"
            raise InputError(what, next_step="state the runs one way: every combination of a grid, or one by one")
        if self.engine != "moescale" and (self.execute.gpu is None or self.execute.gpus is None):
            what = f"engine {self.engine} is launched on GPUs: gpu or gpus is missing in [execute]"
            raise InputError(what, next_step='add gpu = "h100-sxm" and gpus = 8')
        for key in ("table", "folder"):
            _check_path(key, getattr(self, key))
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
    shared = {key: value for key, value in document.items() if key not in keys}
    _check_unstated(shared, OF_ONE_RUN, where)
    stated = checked(SweepFile, {key: document[key] for key in keys if key in document}, where=where)
    shared["data"] = _absolute(as_mapping(shared.get("data", {}), f"{where}, [data]"))
    place = f"{where}, [grid]" if stated.grid else f"{where}, [[runs]]"
    entries = _combined(stated, stated.grid, place) if stated.grid else _listed(stated, shared, where)
    if len(entries) > MOST_RUNS:
        raise InputError(f"there are {len(entries):,} runs; at most {MOST_RUNS:,} are taken", where=place)
    runs: dict[str, PlannedRun] = {}
    computed: dict[str, str] = {}
    for entry in entries:
        run = _planned(stated, entry, shared, where)
        if stated.grid is None and run.name in runs:
            parts = (*entry.parts, *_differences(run, runs[run.name]))
            run = _planned(stated, _Entry(parts, entry.seed, entry.model, entry.tokens, entry.recipe), shared, where)
        # Two sizes may round to one shape, and two ways of writing a number to one run.
        computes = run.settings.model_copy(update={"name": ""}).sha256
        same = computed.get(computes) or (run.name if run.name in runs else None)
        if same is not None:
            what = f"two entries of {'the grid' if stated.grid else '[[runs]]'} are the same run: {same} and {run.name}"
            raise InputError(what, where=place, next_step="leave one out; for repeats give other seeds: seeds = [0, 1]")
        computed[computes], runs[run.name] = run.name, run
    # The cheapest first: what is wrong shows in minutes, and measured rates come early.
    ordered = tuple(sorted(runs.values(), key=lambda run: run.training_flops))
    return Sweep(
        source=where, table=Path(stated.table), folder=Path(stated.folder), runs=ordered, engine=stated.engine,
        execution=stated.execute,
    )  # fmt: skip


def paper_shapes() -> list[dict[str, int]]:
    """The four shapes of the paper's sweep, as its parameter counts have them."""
    published = catalogue.read("published_yun2024.toml")["sweep"]
    head = int(published["head_dim"])
    return [
        dict(zip(SHAPE, (d, layers, d // head, d // head, head, ffn), strict=True))
        for d, layers, ffn in zip(published["d_model"], published["n_layers"], published["d_ffn"], strict=True)
    ]


@dataclass(frozen=True, slots=True)
class _Entry:
    """One run before it is built: the parts of its name, and what it states beyond what all share."""

    parts: tuple[str, ...]
    seed: int
    model: Mapping[str, Any]
    tokens: float  # or tokens per parameter
    recipe: Mapping[str, Any]


def _combined(stated: SweepFile, grid: Grid, place: str) -> list[_Entry]:
    """Every combination of a grid."""
    axes = (grid.sizes(), grid.experts, grid.seeds or (stated.seed,), grid.lengths())
    if math.prod(map(len, axes)) > MOST_RUNS:
        raise InputError(
            f"the grid has {math.prod(map(len, axes)):,} runs; at most {MOST_RUNS:,} are taken", where=place
        )
    return [
        _Entry((f"e{e}", size, length, _seeded(stated, seed)), seed, {**shape, "experts": e}, tokens, {})
        for (size, shape), e, seed, (length, tokens) in itertools.product(*axes)
    ]


def _listed(stated: SweepFile, shared: Mapping[str, Any], where: str) -> list[_Entry]:
    """The runs of a list."""
    shapes = tuple(key for key in SHAPE if any(run.stated((key,)) for run in stated.runs))
    _check_unstated(shared, {"model": shapes}, where)
    entries: list[_Entry] = []
    for run in stated.runs:
        seed, size = stated.seed if run.seed is None else run.seed, f"{run.d_model}x{run.n_layers}"
        model = {**run.stated(SHAPE), "experts": run.experts}
        if run.n_params is not None:
            size, model = label(round(run.n_params)), {**model, "n_params": round(run.n_params)}
        parts = (f"e{run.experts}", size, label(run.tokens), _seeded(stated, seed))
        entries.append(_Entry(parts, seed, model, run.tokens, run.stated(RECIPE)))
    return entries


def _seeded(stated: SweepFile, seed: int) -> str:
    return "" if seed == stated.seed else f"s{seed}"


def _differences(run: PlannedRun, other: PlannedRun) -> list[str]:
    """What tells a run from another of its name, for a name of its own."""
    found: list[str] = []
    for key, letters in LETTERS.items():
        mine, theirs = (
            getattr(each.settings.training if key in RECIPE else each.settings.model, key) for each in (run, other)
        )
        if mine != theirs:
            found.append(f"{letters}{label(mine) if isinstance(mine, int) else format(mine, '.6g')}")
    return found


def _planned(stated: SweepFile, entry: _Entry, shared: Mapping[str, Any], where: str) -> PlannedRun:
    """One run; where its D is a multiple of N, N is that of the shape that is built."""
    folder, name = Path(stated.folder), "-".join(part for part in (stated.name, *entry.parts) if part)
    at = f"{where}, run {name}"
    tables = {key: as_mapping(shared.get(key, {}), f"{where}, [{key}]") for key in ("training", "model")}
    training = {**tables["training"], **entry.recipe, "tokens": entry.tokens}
    table: dict[str, Any] = {
        **shared, "name": name, "seed": entry.seed, "model": {**tables["model"], **entry.model},
        "output": str((folder / name).absolute()),  # as a job of a cluster may start anywhere
    }  # fmt: skip
    if stated.grid is not None and stated.grid.tokens is None:
        unsized = settings_of({**table, "training": {**training, "tokens": UNSIZED_TOKENS}}, where=at)
        training["tokens"] = max(1, round(entry.tokens * estimate(unsized)["n_params_dense"]))
    made = settings_of({**table, "training": training}, where=at)
    found = estimate(made)
    sizes = {key: found[key] for key in ("n_params_dense", "n_params_active", "n_params_total", "training_flops")}
    return PlannedRun(name=name, output=folder / name, settings=made, **sizes)


def _check_unstated(shared: Mapping[str, Any], of_one_run: Mapping[str, tuple[str, ...]], where: str) -> None:
    """What one run states is not stated for all runs as well."""
    if "output" in shared:
        what = "output belongs to one run; a sweep uses `folder`"
        raise InputError(what, where=where, next_step="leave it out")
    for table, keys in of_one_run.items():
        for key in keys:
            if key in as_mapping(shared.get(table, {}), f"{where}, [{table}]"):
                what = f"{key} belongs to one run; state it in [grid] or [[runs]]"
                raise InputError(what, where=f"{where}, [{table}]", next_step="leave it out")


def _absolute(data: Mapping[str, Any]) -> dict[str, Any]:
    """The [data] table with paths that hold wherever a run is executed; a data set of the hub stays its name."""

    def place(value: Any) -> Any:
        if isinstance(value, list):
            return [place(each) for each in cast("list[Any]", value)]
        return str(Path(value).absolute()) if isinstance(value, str) and value.strip() and ":" not in value else value

    kept = {"tokenizer": BYTES} if data.get("tokenizer") == BYTES else {}  # a name, not a file
    return {k: place(value) if k in ("corpus", "tokenizer", "sources") else value for k, value in data.items()} | kept


def _check_path(key: str, text: str) -> None:
    try:
        os.lstat(Path(text, "x" * LONGEST_NAME))  # files of such names are made there
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        pass  # as good as any; what is wrong with it is reported where it is written
    except OSError as error:
        what = f"{key} = {text[:60]!r} cannot be a path: {error.strerror}"
        raise InputError(what, next_step="give a shorter or simpler one") from error


def label(value: int) -> str:
    """A whole number for a name, to the last digit: 85m, 2.5b."""
    for unit, letter in ((10**12, "t"), (10**9, "b"), (10**6, "m"), (10**3, "k")):
        if value >= unit:
            whole, rest = divmod(value, unit)
            digits = f"{rest:0{round(math.log10(unit))}d}".rstrip("0")
            return f"{whole}.{digits}{letter}" if digits else f"{whole}{letter}"
    return str(value)
