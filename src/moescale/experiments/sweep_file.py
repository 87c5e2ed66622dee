"""What a sweep trains: SWEEP.toml expanded into runs, each a RUN.toml with its parameters, tokens and FLOPs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self, cast

from pydantic import Field, model_validator

from moescale.errors import InputError, located, unknown_name
from moescale.experiments.settings import SHAPE, RunSettings, estimate, settings_of
from moescale.io.records import record
from moescale.io.toml import Quantity, Seed, Table, Text, as_mapping, checked, read_toml
from moescale.units import format_count, parse_count

MOST_RUNS = 10_000
RECIPE = ("batch_tokens", "peak_lr", "warmup")  # of [[runs]]; those of [training] are for the runs that state none
# Where in its RUN.toml a key of [[runs]] stands.
KEYS = {"model": ("n_params", "experts", *SHAPE), "training": ("tokens", "tokens_per_param", *RECIPE), "": ("seed",)}

Entry = Mapping[str, Any]  # what one run states beyond what all share, by these keys


class Execution(Table):
    """The table [execute]: where the runs are executed."""

    on: Literal["local", "slurm"] = "local"
    jobs: Annotated[int, Quantity, Field(ge=1, le=MOST_RUNS)] | None = None  # at once; None: 1 here, all on a cluster
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
    grid: dict[str, Any] | None = None
    runs: tuple[dict[str, Any], ...] = ()
    execute: Execution = Execution()

    @model_validator(mode="after")
    def complete(self) -> Self:
        """Runs are stated one way; an engine that is launched needs GPUs."""
        if (self.grid is None) == (not self.runs):
            what = "holds [grid] and [[runs]]" if self.runs else "holds no [grid] and no [[runs]]"
            raise InputError(what, next_step="state the runs one way: every combination of a grid, or one by one")
        if len(self.runs) > MOST_RUNS:
            raise InputError(f"there are {len(self.runs):,} [[runs]]; at most {MOST_RUNS:,} are taken")
        if self.engine != "moescale" and (self.execute.gpu is None or self.execute.gpus is None):
            what = f"engine {self.engine} is launched on GPUs: gpu or gpus is missing in [execute]"
            raise InputError(what, next_step='add gpu = "h100-sxm" and gpus = 8')
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
    table = "[[runs]]" if stated.grid is None else "[grid]"
    entries = list(stated.runs) if stated.grid is None else _combinations(stated.grid, f"{where}, [grid]")
    shared: dict[str, Any] = {key: value for key, value in document.items() if key not in keys}
    shared |= {"name": "run", "seed": stated.seed}
    if "output" in shared:
        raise InputError("output belongs to one run; a sweep uses `folder`", where=where, next_step="leave it out")
    varied = {"n_params", "experts", "tokens", "d_model", "n_layers"}.union(*entries).difference(RECIPE)
    for name in ("model", "data", "training"):
        shared[name] = as_mapping(shared.get(name, {}), f"{where}, [{name}]")
        if both := [key for key in shared[name] if key in varied]:
            what = f"{both[0]} belongs to one run; state it in [grid] or [[runs]]"
            raise InputError(what, where=f"{where}, [{name}]", next_step="leave it out")
    if isinstance(corpus := shared["data"].get("corpus"), str) and corpus.strip():  # a job of a cluster starts anywhere
        shared["data"] = {**shared["data"], "corpus": str(Path(corpus).absolute())}
    known = [key for each in KEYS.values() for key in each]
    runs: dict[str, PlannedRun] = {}
    computed: dict[str, int] = {}
    for number, entry in enumerate(entries, 1):
        place = f"{where}, {table}{'' if stated.grid is not None else f' {number}'}"
        if key := next((key for key in entry if key not in known), None):
            raise unknown_name("key", key, [*known, *("shapes", "seeds") * (stated.grid is not None)], where=place)
        made = _settings(entry, shared, place)
        name = _name(entry, made, stated)
        # Two sizes may round to one shape, and two ways of writing a number to one run.
        if (same := computed.setdefault(made.sha256, number)) != number:
            what = f"entries {same} and {number} of {table} are the same run, {name}"
            step = "leave one out; for repeats give other seeds: seeds = [0, 1]"
            raise InputError(what, where=place, next_step=step)
        if name in runs:
            name = next(other for n in itertools.count(2) if (other := f"{name}-{n}") not in runs)
        output, found = Path(stated.folder, name), estimate(made)
        sizes = {key: found[key] for key in ("n_params_dense", "n_params_active", "n_params_total", "training_flops")}
        made = made.model_copy(update={"name": name, "output": str(output.absolute())})
        runs[name] = PlannedRun(name=name, output=output, settings=made, **sizes)
    # The cheapest first: what is wrong shows in minutes, and measured rates come early.
    ordered = tuple(sorted(runs.values(), key=lambda run: run.training_flops))
    table_file, folder = Path(stated.table), Path(stated.folder)
    return Sweep(table=table_file, folder=folder, runs=ordered, engine=stated.engine, execution=stated.execute)


def _combinations(grid: Mapping[str, Any], where: str) -> list[Entry]:
    """Every combination of the values of a grid's keys; `shapes` are [d_model, n_layers] or tables of [model], `seeds` seeds."""
    axes: list[list[Entry]] = []
    for key, stated in grid.items():
        values = cast("list[Any]", stated if isinstance(stated, list) else [stated])
        if not values:
            raise InputError("is empty", where=f"{where}, {key}", next_step="give it at least one entry")
        if key == "shapes":
            pairs = [dict(zip(SHAPE, each, strict=False)) if isinstance(each, list) else each for each in values]
            axes.append([as_mapping(each, key) for each in pairs])
        else:
            axes.append([{"seed" if key == "seeds" else key: value} for value in values])
    if (count := math.prod(map(len, axes))) > MOST_RUNS:
        raise InputError(f"has {count:,} runs; at most {MOST_RUNS:,} are taken", where=where)
    return [{k: v for part in parts for k, v in part.items()} for parts in itertools.product(*axes)]


def _settings(entry: Entry, shared: Mapping[str, Any], where: str) -> RunSettings:
    """One run, still without its name; where its D is a multiple of N, N is that of the shape that is built."""
    table = dict(shared)
    for name, keys in KEYS.items():
        found = {key: entry[key] for key in keys if key in entry}
        table |= {name: {**shared.get(name, {}), **found}} if name else found
    ratio = table["training"].pop("tokens_per_param", None)
    if ratio is not None:
        if "tokens" in entry:
            raise InputError("tokens does not go with tokens_per_param", where=where, next_step="state one of the two")
        table["training"]["tokens"] = 10**9
        dense = estimate(settings_of(table, where=where))["n_params_dense"]
        with located(f"{where}, tokens_per_param"):
            table["training"]["tokens"] = max(1, round(parse_count(ratio) * dense))
    return settings_of(table, where=where)


def _name(entry: Entry, made: RunSettings, sweep: SweepFile) -> str:
    size = f"{made.model.d_model}x{made.model.n_layers}"
    if "n_params" in entry:
        size = format_count(parse_count(entry["n_params"])).lower()
    length = format_count(made.training.tokens).lower()
    if "tokens_per_param" in entry:
        length = f"{parse_count(entry['tokens_per_param']):g}per"
    seed = "" if made.seed == sweep.seed else f"s{made.seed}"
    return "-".join(filter(None, (sweep.name, f"e{made.model.experts}", size, length, seed)))
