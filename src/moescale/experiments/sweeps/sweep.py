"""What a sweep trains: SWEEP.toml expanded into runs, each a RUN.toml with its parameters, tokens and FLOPs."""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, cast

from moescale import catalogue
from moescale.bounds import Bound
from moescale.errors import InputError, unknown_name
from moescale.experiments.training.settings import SHAPE, Count, RunSettings, Share, estimate, settings_of
from moescale.io.records import record
from moescale.io.schema import Quantity, QuantityCount, as_mapping, read_toml, settings, text_at

PLACES = ("local", "slurm", "ray")
PAPER = "paper"
MOST_RUNS = 10_000
LONGEST_NAME = 200  # of a run, with its suffix
UNSIZED_TOKENS = 10**9  # stands for D while N is asked for, where D is a multiple of N
# What a sweep states in [grid] or [[runs]], or for all runs at once.
OF_ONE_RUN = {"model": ("n_params", "experts", "d_model", "n_layers"), "training": ("tokens",)}
RECIPE = ("batch_tokens", "peak_lr", "warmup")  # of [[runs]]; those of [training] are for the runs that state none
# In the name of a run that another of the same size, experts and tokens differs from.
LETTERS = dict(zip((*SHAPE, *RECIPE), ("d", "l", "h", "kv", "hd", "f", "b", "lr", "w"), strict=True))

Size = Annotated[QuantityCount, Bound(1, 10**7)]
Seed = Annotated[QuantityCount, Bound(0, 2**31 - 1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """An entry of [grid] `shapes`; what is None is as in RUN.toml."""

    d_model: Size
    n_layers: Size
    n_heads: Size | None = None
    n_kv_heads: Size | None = None
    head_dim: Size | None = None
    d_ffn: Size | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The table [grid]: every combination of these is a run."""

    n_params: tuple[Annotated[Quantity, Bound(1, 1e15)], ...] | None = None
    shapes: tuple[Shape, ...] | None = None
    experts: tuple[Annotated[QuantityCount, Bound(1, 65_536)], ...] = (1,)
    tokens: tuple[Annotated[QuantityCount, Bound(1, 10**18)], ...] | None = None
    tokens_per_param: tuple[Annotated[Quantity, Bound(1e-3, 1e9)], ...] | None = None
    seeds: tuple[Seed, ...] | None = None  # None: the sweep's own

    def __post_init__(self) -> None:
        for each in fields(self):
            if getattr(self, each.name) == ():
                raise InputError(f"{each.name} is empty", next_step="give it at least one entry")
        for left, right in (("n_params", "shapes"), ("tokens", "tokens_per_param")):
            if (getattr(self, left) is None) == (getattr(self, right) is None):
                raise InputError(f"needs {left} or {right}, and not both")
        lengths = self.tokens or self.tokens_per_param or ()
        for value in lengths:
            if lengths.count(value) > 1:
                raise InputError(f"{value:,} stands there twice", next_step="leave one out")

    def sizes(self) -> list[tuple[str, dict[str, int]]]:
        """The label of each size, and what it states in [model]."""
        if self.shapes is None:
            return [(_label(round(size)), {"n_params": round(size)}) for size in self.n_params or ()]
        stated = [record(shape) for shape in self.shapes]
        labels = [f"{shape.d_model}x{shape.n_layers}" for shape in self.shapes]
        # Shapes of one width and depth are told apart by the rest of what they state.
        return [
            ("x".join(map(str, shape.values())) if labels.count(label) > 1 else label, shape)
            for label, shape in zip(labels, stated, strict=True)
        ]

    def lengths(self, *, branches: bool) -> list[tuple[str, tuple[float, ...]]]:
        """The label and the tokens, or tokens per parameter, of each run of one size; with branches all are of one run."""
        values = self.tokens or self.tokens_per_param or ()
        if branches:
            return [("wsd", tuple(sorted(values)))]
        return [(f"{value:g}per" if self.tokens is None else _label(int(value)), (value,)) for value in values]


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedRun:
    """An entry of [[runs]]: one run; what is None is as in RUN.toml."""

    n_params: Annotated[Quantity, Bound(1, 1e15)] | None = None
    d_model: Size | None = None
    n_layers: Size | None = None
    n_heads: Size | None = None
    n_kv_heads: Size | None = None
    head_dim: Size | None = None
    d_ffn: Size | None = None
    experts: Annotated[QuantityCount, Bound(1, 65_536)] = 1
    tokens: Annotated[QuantityCount, Bound(1, 10**18)]
    batch_tokens: Count | None = None
    peak_lr: Annotated[Quantity, Bound(0, 10)] | None = None
    warmup: Share | None = None
    seed: Seed | None = None  # None: the sweep's own

    def __post_init__(self) -> None:
        if (self.d_model is None) != (self.n_layers is None) or (self.n_params is None) == (self.d_model is None):
            raise InputError("needs n_params, or d_model and n_layers, and not both")

    def stated(self, keys: tuple[str, ...]) -> dict[str, Any]:
        """What it states of some keys."""
        return {key: value for key in keys if (value := getattr(self, key)) is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """The table [execute]: where the runs are executed."""

    on: str = "local"
    jobs: Annotated[QuantityCount, Bound(1, MOST_RUNS)] | None = None  # at once; None: 1 here, all on a cluster
    flops_per_s: Annotated[Quantity, Bound(1)] | None = None  # of one run, for the estimate of time
    slurm: Mapping[str, Any] = field(default_factory=dict[str, Any])
    ray: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        if self.on not in PLACES:
            raise unknown_name("place", self.on, PLACES)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepFile:
    """What a SWEEP.toml states besides what all runs share."""

    name: str = ""  # begins that of every run
    seed: Seed = 0
    table: str = "runs.csv"
    folder: str = "sweep"
    grid: Grid | None = None
    runs: tuple[StatedRun, ...] = ()
    execute: Execution = field(default_factory=Execution)

    def __post_init__(self) -> None:
        if (self.grid is None) == (not self.runs):
            what = "holds [grid] and [[runs]]" if self.runs else "holds no [grid] and no [[runs]]"
            raise InputError(what, next_step="state the runs one way: every combination of a grid, or one by one")
        if self.name and not re.fullmatch(r"[A-Za-z0-9][\w.+-]{0,63}", self.name):
            raise InputError(
                f"name {self.name!r} is no name of a file", next_step="take at most 64 letters, digits, - and _"
            )
        for key in ("table", "folder"):
            _check_path(key, getattr(self, key))


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

    @property
    def n_experts(self) -> int:
        """Experts of a MoE layer, 1 for a dense model."""
        return self.settings.model.experts

    @property
    def tokens(self) -> tuple[int, ...]:
        """D; several where one trunk has a branch for each."""
        return self.settings.training.tokens

    @property
    def run_file(self) -> Path:
        """Its RUN.toml, beside its folder."""
        return self.output.with_name(f"{self.name}.toml")

    @property
    def log(self) -> Path:
        """What its command prints."""
        return self.output.with_name(f"{self.name}.log")

    @property
    def lock(self) -> Path:
        """The lock that its command holds."""
        return self.output.with_name(f".{self.name}.lock")

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values."""
        training = self.settings.training
        own = {"n_experts": self.n_experts, "tokens": list(self.tokens), "seed": self.settings.seed}
        recipe = {key: getattr(training, key) for key in RECIPE}
        return record(self, without=("settings",)) | own | recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """A sweep: its runs, those of the fewest FLOPs first, and where they go."""

    source: str
    table: Path
    folder: Path
    runs: tuple[PlannedRun, ...]
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
    own = tuple(each.name for each in fields(SweepFile))
    shared = {key: value for key, value in document.items() if key not in own}
    _check_unstated(shared, OF_ONE_RUN, where)
    mine = {key: document[key] for key in own if key in document}
    if "grid" in mine:
        at = f"{where}, [grid]"
        mine["grid"] = _without_paper(as_mapping(mine["grid"], at), at)
    stated = settings(SweepFile, mine, where=where)
    shared["data"] = _absolute(_table(shared, "data", where), where)
    folder = Path(stated.folder)
    if stated.grid is None:
        place, several = f"{where}, [[runs]]", "give the others other seeds, such as seed = 1"
        entries = _listed(stated, shared, place)
    else:
        place, several = f"{where}, [grid]", "runs that differ by chance alone are had with seeds = [0, 1]"
        entries = _combined(stated, stated.grid, shared, place)

    runs: dict[str, PlannedRun] = {}
    computed: dict[object, str] = {}
    per_param = stated.grid is not None and stated.grid.tokens is None
    for entry in entries:
        run = _planned(stated, entry, shared, per_param=per_param, where=where)
        if stated.grid is None and run.name in runs:
            told_apart = replace(entry, parts=(*entry.parts, *_differences(run, runs[run.name])))
            run = _planned(stated, told_apart, shared, per_param=per_param, where=where)
        # Two sizes may round to one shape, and two ways of writing a number to one run.
        what_it_computes = (run.settings.model, run.settings.training, run.settings.seed)
        same = computed.get(what_it_computes) or (run.name if run.name in runs else None)
        if same is not None:
            what = f"two entries of {'the grid' if stated.grid else '[[runs]]'} are the same run: {same} and {run.name}"
            raise InputError(what, where=place, next_step=f"leave one out; {several}")
        computed[what_it_computes] = run.name
        runs[run.name] = run
    # The cheapest first: what is wrong shows in minutes, and measured rates come early.
    ordered = tuple(sorted(runs.values(), key=lambda run: run.training_flops))
    return Sweep(source=where, table=Path(stated.table), folder=folder, runs=ordered, execution=stated.execute)


def paper_shapes() -> list[dict[str, int]]:
    """The four shapes of the paper's sweep, as its parameter counts have them."""
    published = catalogue.read("published_yun2024.toml")["sweep"]
    head = int(published["head_dim"])
    names = ("d_model", "n_layers", "n_heads", "n_kv_heads", "head_dim", "d_ffn")
    return [
        dict(zip(names, (d, layers, d // head, d // head, head, ffn), strict=True))
        for d, layers, ffn in zip(published["d_model"], published["n_layers"], published["d_ffn"], strict=True)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """One run before it is built: the parts of its name, and what it states beyond what all share."""

    parts: tuple[str, ...]
    seed: int
    model: Mapping[str, Any]
    tokens: tuple[float, ...]  # or tokens per parameter
    recipe: Mapping[str, Any] = field(default_factory=dict[str, Any])


def _combined(stated: SweepFile, grid: Grid, shared: Mapping[str, Any], place: str) -> list[_Entry]:
    """Every combination of a grid."""
    branches = as_mapping(shared.get("training", {}), place).get("schedule") == "wsd"
    sizes, lengths, seeds = grid.sizes(), grid.lengths(branches=branches), grid.seeds or (stated.seed,)
    count = len(sizes) * len(grid.experts) * len(seeds) * len(lengths)
    _check_count("the grid has", count, place)
    return [
        _Entry(
            parts=(f"e{e}", size[0], length[0], "" if seed == stated.seed else f"s{seed}"),
            seed=seed,
            model={**size[1], "experts": e},
            tokens=length[1],
        )
        for size, e, seed, length in itertools.product(sizes, grid.experts, seeds, lengths)
    ]


def _listed(stated: SweepFile, shared: Mapping[str, Any], place: str) -> list[_Entry]:
    """The runs of a list."""
    _check_count("there are", len(stated.runs), place)
    shapes = tuple(key for key in SHAPE if any(run.stated((key,)) for run in stated.runs))
    _check_unstated(shared, {"model": shapes}, place.removesuffix(", [[runs]]"))
    entries: list[_Entry] = []
    for run in stated.runs:
        size, seed = run.stated(SHAPE), stated.seed if run.seed is None else run.seed
        label = f"{run.d_model}x{run.n_layers}"
        if run.n_params is not None:
            size["n_params"] = round(run.n_params)
            label = _label(size["n_params"])
        parts = (f"e{run.experts}", label, _label(run.tokens), "" if seed == stated.seed else f"s{seed}")
        model = {**size, "experts": run.experts}
        entries.append(_Entry(parts=parts, seed=seed, model=model, tokens=(run.tokens,), recipe=run.stated(RECIPE)))
    return entries


def _differences(run: PlannedRun, other: PlannedRun) -> list[str]:
    """What tells a run from another of its name, for a name of its own."""
    found: list[str] = []
    for key, letters in LETTERS.items():
        mine, theirs = (
            getattr(each.settings.training if key in RECIPE else each.settings.model, key) for each in (run, other)
        )
        if mine != theirs:
            found.append(f"{letters}{_label(mine) if isinstance(mine, int) else format(mine, '.6g')}")
    return found


def _planned(stated: SweepFile, entry: _Entry, shared: Mapping[str, Any], *, per_param: bool, where: str) -> PlannedRun:
    """One run; where its D is a multiple of N, N is that of the shape that is built."""
    folder, name = Path(stated.folder), "-".join(part for part in (stated.name, *entry.parts) if part)
    training = {**_table(shared, "training", where), **entry.recipe, "tokens": list(entry.tokens)}
    table: dict[str, Any] = {
        **shared,
        "name": name,
        "seed": entry.seed,
        # As a job of a cluster may start anywhere, and so are the paths of the data.
        "output": str((folder / name).absolute()),
        "model": {**_table(shared, "model", where), **entry.model},
    }
    where = f"{where}, run {name}"
    if per_param:
        unsized = settings_of({**table, "training": {**training, "tokens": UNSIZED_TOKENS}}, where=where)
        n_params = estimate(unsized)["n_params_dense"]
        training["tokens"] = [max(1, round(ratio * n_params)) for ratio in entry.tokens]
    made = settings_of({**table, "training": training}, where=where)
    found = estimate(made)
    sizes = {key: found[key] for key in ("n_params_dense", "n_params_active", "n_params_total", "training_flops")}
    return PlannedRun(name=made.name, output=folder / made.name, settings=made, **sizes)


def _check_count(words: str, count: int, where: str) -> None:
    if count > MOST_RUNS:
        raise InputError(f"{words} {count:,} runs; at most {MOST_RUNS:,} are taken", where=where)


def _check_unstated(shared: Mapping[str, Any], of_one_run: Mapping[str, tuple[str, ...]], where: str) -> None:
    """What one run states is not stated for all runs as well."""
    if "output" in shared:
        what = "output is of one run; `folder` is where a sweep puts all of them"
        raise InputError(what, where=where, next_step="leave it out")
    for table, keys in of_one_run.items():
        for key in keys:
            if key in _table(shared, table, where):
                what = f"{key} is of one run, and a sweep states it in [grid] or [[runs]]"
                raise InputError(what, where=f"{where}, [{table}]", next_step="leave it out")


def _without_paper(grid: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The grid with the paper's numbers where it names them, and each shape as a table."""
    stated = dict(grid)
    if stated.get("tokens") == PAPER:
        stated["tokens"] = catalogue.read("published_yun2024.toml")["sweep"]["tokens"]
    if stated.get("shapes") == PAPER:
        stated["shapes"] = paper_shapes()
    elif isinstance(stated.get("shapes"), list):
        stated["shapes"] = [_as_table(entry, where) for entry in stated["shapes"]]
    return stated


def _as_table(entry: object, where: str) -> Mapping[str, Any]:
    if isinstance(entry, Mapping):
        return cast("Mapping[str, Any]", entry)
    if isinstance(entry, list) and len(cast("list[Any]", entry)) == 2:
        return dict(zip(("d_model", "n_layers"), cast("list[Any]", entry), strict=True))
    raise InputError(
        f"{entry!r} is no shape",
        where=f"{where}, shapes",
        next_step='write [d_model, n_layers] such as [768, 12], a table of RUN.toml\'s keys, or shapes = "paper"',
    )


def _absolute(data: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The [data] table with paths that hold wherever a run is executed."""
    out = dict(data)
    for key in ("corpus", "tokenizer"):
        if key in out:
            out[key] = str(Path(text_at(out[key], f"{where}, [data], {key}")).absolute())
    if "sources" in out:
        given = out["sources"] if isinstance(out["sources"], list) else [out["sources"]]
        named = [text_at(source, f"{where}, [data], sources") for source in given]
        out["sources"] = [name if ":" in name else str(Path(name).absolute()) for name in named]
    return out


def _check_path(key: str, text: str) -> None:
    try:
        os.lstat(Path(text, "x" * LONGEST_NAME))  # files of such names are made there
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        pass  # as good as any; what is wrong with it is said where it is written
    except OSError as error:
        what = f"{key} = {text[:60]!r} cannot be a path: {error.strerror}"
        raise InputError(what, next_step="give a shorter or plainer one") from error


def _label(value: int) -> str:
    """A whole number for a name, to the last digit: 85m, 2.5b."""
    for unit, letter in ((10**12, "t"), (10**9, "b"), (10**6, "m"), (10**3, "k")):
        if value >= unit:
            whole, rest = divmod(value, unit)
            digits = f"{rest:0{round(math.log10(unit))}d}".rstrip("0")
            return f"{whole}.{digits}{letter}" if digits else f"{whole}{letter}"
    return str(value)


def _table(document: Mapping[str, Any], key: str, where: str) -> Mapping[str, Any]:
    return as_mapping(document.get(key, {}), f"{where}, [{key}]")
