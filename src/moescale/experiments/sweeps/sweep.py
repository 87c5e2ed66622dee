"""What a sweep trains: SWEEP.toml expanded into runs, each a RUN.toml with its parameters, tokens and FLOPs."""

from __future__ import annotations

import itertools
import math
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from moescale import catalogue
from moescale.errors import InputError, unknown_name
from moescale.experiments.training.settings import RunSettings, estimate, settings_of
from moescale.io.schema import quantity_at, read_toml, text_at

OWN_KEYS = ("table", "folder", "grid", "execute")
GRID_KEYS = ("n_params", "shapes", "experts", "tokens", "tokens_per_param", "seeds")
EXECUTE_KEYS = ("on", "jobs", "flops_per_s", "slurm", "ray")
PLACES = ("local", "slurm", "ray")
SHAPE_KEYS = ("d_model", "n_layers", "n_heads", "n_kv_heads", "head_dim", "d_ffn")
PAPER = "paper"
MOST_RUNS = 10_000
MOST_EXPERTS = 65_536
MOST_SEED = 2**31 - 1
LONGEST_NAME = 200  # of a run, with its suffix
MOST_TOKENS = 10**18
UNSIZED_TOKENS = 10**9  # stands for D while N is asked for, where D is a multiple of N


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """Where the runs are executed."""

    on: str = "local"
    jobs: int | None = None  # at once; None: 1 here, all on a cluster
    flops_per_s: float | None = None  # of one run, for the estimate of time
    slurm: Mapping[str, Any] = field(default_factory=dict[str, Any])
    ray: Mapping[str, Any] = field(default_factory=dict[str, Any])


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
        names = ("name", "n_params_dense", "n_params_active", "n_params_total", "n_experts")
        return {
            **{name: getattr(self, name) for name in names},
            "tokens": list(self.tokens),
            "training_flops": self.training_flops,
            "seed": self.settings.seed,
            "output": str(self.output),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """A sweep: its runs, those of the fewest FLOPs first, and where they go."""

    source: str
    table: Path
    folder: Path
    runs: tuple[PlannedRun, ...]
    execution: Execution


def read_sweep(path: str | Path) -> Sweep:
    """The sweep that a SWEEP.toml states; docs/sweeps.md lists its keys.

    Paths in it are relative to the current directory, as those of a RUN.toml. Raises InputError that names file and key,
    also where two entries of the grid are the same run.
    """
    document = read_toml(path)
    if "grid" not in document:
        raise InputError(
            "holds no [grid]: that is one run", where=str(path), next_step=f"`moescale train {path}`, or add a [grid]"
        )
    return expand(document, where=str(path))


def expand(document: Mapping[str, Any], *, where: str = "sweep") -> Sweep:
    """The sweep that a mapping states. Errors as read_sweep."""
    shared = {key: value for key, value in document.items() if key not in OWN_KEYS}
    grid = _table(document, "grid", where)
    for key in grid:
        if key not in GRID_KEYS:
            raise unknown_name("key", key, GRID_KEYS, where=f"{where}, grid")
    _check_unstated(shared, grid, where)
    prefix = _prefix(shared.pop("name", ""), f"{where}, name")
    model, training = _table(shared, "model", where), _table(shared, "training", where)
    shared["data"] = _absolute(_table(shared, "data", where), where)
    folder = _path(document.get("folder", "sweep"), f"{where}, folder")
    table = _path(document.get("table", "runs.csv"), f"{where}, table")

    sizes = _sizes(grid, f"{where}, grid")
    experts = _whole(grid.get("experts", 1), f"{where}, grid, experts", MOST_EXPERTS)
    (base_seed,) = _whole(shared.get("seed", 0), f"{where}, seed", MOST_SEED, least=0)[:1]
    seeds = _whole(grid.get("seeds", base_seed), f"{where}, grid, seeds", MOST_SEED, least=0)
    branches = training.get("schedule") == "wsd"
    lengths = _lengths(grid, f"{where}, grid", branches=branches)
    count = len(sizes) * len(experts) * len(seeds) * len(lengths)
    if count > MOST_RUNS:
        raise InputError(f"the grid has {count:,} runs; at most {MOST_RUNS:,} are taken", where=f"{where}, grid")

    runs: list[PlannedRun] = []
    names: dict[object, str] = {}
    for size, e, seed, length in itertools.product(sizes, experts, seeds, lengths):
        parts = (prefix, f"e{e}", size.label, length.label, "" if seed == base_seed else f"s{seed}")
        name = "-".join(part for part in parts if part)
        stated: dict[str, Any] = {
            **shared,
            "name": name,
            "seed": seed,
            # As a job of a cluster may start anywhere, and so are the paths of the data.
            "output": str((folder / name).absolute()),
            "model": {**model, **size.model, "experts": e},
        }
        run = _planned(stated, training, length, folder, branches=branches, where=f"{where}, run {name}")
        # Two sizes may round to one shape, and two ways of writing a number to one run.
        for key in (name, (run.settings.model, run.settings.training.tokens, seed)):
            if key in names:
                raise InputError(
                    f"two entries of the grid are the same run: {names[key]} and {name}",
                    where=f"{where}, grid",
                    next_step="leave one out; runs that differ by chance alone are had with seeds = [0, 1]",
                )
            names[key] = name
        runs.append(run)
    return Sweep(
        source=where,
        table=table,
        folder=folder,
        # The cheapest first: what is wrong shows in minutes, and measured rates come early.
        runs=tuple(sorted(runs, key=lambda run: run.training_flops)),
        execution=_execution(_table(document, "execute", where), f"{where}, execute"),
    )


def paper_shapes() -> list[dict[str, int]]:
    """The four shapes of the paper's sweep, as its parameter counts have them."""
    published = catalogue.read("published_yun2024.toml")["sweep"]
    head = int(published["head_dim"])
    return [
        {
            "d_model": d,
            "n_layers": layers,
            "n_heads": d // head,
            "n_kv_heads": d // head,
            "head_dim": head,
            "d_ffn": ffn,
        }
        for d, layers, ffn in zip(published["d_model"], published["n_layers"], published["d_ffn"], strict=True)
    ]


@dataclass(frozen=True, slots=True)
class _Size:
    label: str
    model: dict[str, int]


@dataclass(frozen=True, slots=True)
class _Length:
    label: str
    tokens: tuple[int, ...] = ()
    per_param: tuple[float, ...] = ()


def _planned(
    stated: Mapping[str, Any], training: Mapping[str, Any], length: _Length, folder: Path, *, branches: bool, where: str
) -> PlannedRun:
    """One run; where its D is a multiple of N, N is that of the shape that is built."""

    def settings(tokens: Sequence[int]) -> RunSettings:
        given = {**training, "tokens": list(tokens) if branches else tokens[0]}
        return settings_of({**stated, "training": given}, where=where)

    tokens = length.tokens
    if length.per_param:
        n_params = estimate(settings([UNSIZED_TOKENS]))["n_params_dense"]
        tokens = tuple(max(1, round(ratio * n_params)) for ratio in length.per_param)
    made = settings(tokens)
    found = estimate(made)
    return PlannedRun(
        name=made.name,
        output=folder / made.name,
        settings=made,
        **{key: found[key] for key in ("n_params_dense", "n_params_active", "n_params_total", "training_flops")},
    )


def _check_unstated(shared: Mapping[str, Any], grid: Mapping[str, Any], where: str) -> None:
    """What the grid varies is not stated for all runs as well."""
    taken = {
        "model": ("n_params", "experts", "d_model", "n_layers"),
        "training": ("tokens",),
        "": ("output",),
    }
    for table, keys in taken.items():
        stated = _table(shared, table, where) if table else shared
        for key in keys:
            if key in stated:
                raise InputError(
                    f"{key} is of one run, and a sweep states it in [grid]"
                    if key != "output"
                    else "output is of one run; `folder` is where a sweep puts all of them",
                    where=f"{where}, {table}" if table else where,
                    next_step="leave it out",
                )
    for left, right in (("n_params", "shapes"), ("tokens", "tokens_per_param")):
        if (left in grid) == (right in grid):
            raise InputError(f"needs {left} or {right}, and not both", where=f"{where}, grid")


def _sizes(grid: Mapping[str, Any], where: str) -> list[_Size]:
    if "n_params" in grid:
        at = f"{where}, n_params"
        sizes = [quantity_at(value, at) for value in _listed(grid["n_params"], at)]
        for size in sizes:
            if not 1 <= size <= 1e15:
                raise InputError(f"{size:g} is not a size from 1 to 1e15", where=at)
        return [_Size(_label(round(size)), {"n_params": round(size)}) for size in sizes]
    at = f"{where}, shapes"
    if grid["shapes"] == PAPER:
        shapes = paper_shapes()
    else:
        shapes = [_shape(entry, f"{at}, entry {i}") for i, entry in enumerate(_listed(grid["shapes"], at), start=1)]
    labels = [f"{shape['d_model']}x{shape['n_layers']}" for shape in shapes]
    repeated = {label for label in labels if labels.count(label) > 1}
    # Shapes of one width and depth are told apart by the rest of what they state.
    return [
        _Size("x".join(str(value) for value in shape.values()) if label in repeated else label, shape)
        for label, shape in zip(labels, shapes, strict=True)
    ]


def _shape(entry: object, where: str) -> dict[str, int]:
    if isinstance(entry, Mapping):
        stated = cast("Mapping[str, Any]", entry)
        for key in stated:
            if key not in SHAPE_KEYS:
                raise unknown_name("key", key, SHAPE_KEYS, where=where)
    elif isinstance(entry, list) and len(cast("list[Any]", entry)) == 2:
        stated = dict(zip(SHAPE_KEYS, cast("list[Any]", entry), strict=False))
    else:
        raise InputError(
            f"{entry!r} is no shape",
            where=where,
            next_step='write [d_model, n_layers] such as [768, 12], a table of RUN.toml\'s keys, or shapes = "paper"',
        )
    for key in ("d_model", "n_layers"):
        if key not in stated:
            raise InputError(f"{key} is missing", where=where)
    return {key: _whole(stated[key], f"{where}, {key}", 10**7)[0] for key in SHAPE_KEYS if key in stated}


def _lengths(grid: Mapping[str, Any], where: str, *, branches: bool) -> list[_Length]:
    """The tokens of each run of one size; with branches all of them are of one run."""
    if "tokens" in grid:
        at = f"{where}, tokens"
        given = (
            catalogue.read("published_yun2024.toml")["sweep"]["tokens"] if grid["tokens"] == PAPER else grid["tokens"]
        )
        tokens = _whole(given, at, MOST_TOKENS)
        _check_distinct(tokens, at)
        if branches:
            return [_Length("wsd", tokens=tuple(sorted(tokens)))]
        return [_Length(_label(value), tokens=(value,)) for value in tokens]
    at = f"{where}, tokens_per_param"
    ratios = [quantity_at(value, at) for value in _listed(grid["tokens_per_param"], at)]
    for ratio in ratios:
        if not 1e-3 <= ratio <= 1e9:
            raise InputError(f"{ratio:g} is not a number from 0.001 to 1e9", where=at)
    _check_distinct(ratios, at)
    if branches:
        return [_Length("wsd", per_param=tuple(sorted(ratios)))]
    return [_Length(f"{ratio:g}per", per_param=(ratio,)) for ratio in ratios]


def _check_distinct(values: Sequence[float], where: str) -> None:
    repeated = [value for value, count in Counter(values).items() if count > 1]
    if repeated:
        raise InputError(f"{repeated[0]:,} stands there twice", where=where, next_step="leave one out")


def _execution(stated: Mapping[str, Any], where: str) -> Execution:
    for key in stated:
        if key not in EXECUTE_KEYS:
            raise unknown_name("key", key, EXECUTE_KEYS, where=where)
    on = text_at(stated.get("on", "local"), f"{where}, on")
    if on not in PLACES:
        raise unknown_name("place", on, PLACES, where=f"{where}, on")
    rate = quantity_at(stated["flops_per_s"], f"{where}, flops_per_s") if "flops_per_s" in stated else None
    if rate is not None and rate < 1:
        raise InputError("is below 1 FLOP/s", where=f"{where}, flops_per_s")
    return Execution(
        on=on,
        jobs=_whole(stated["jobs"], f"{where}, jobs", MOST_RUNS)[0] if "jobs" in stated else None,
        flops_per_s=rate,
        slurm=_table(stated, "slurm", where),
        ray=_table(stated, "ray", where),
    )


def _absolute(data: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The [data] table with paths that hold wherever a run is executed."""
    out = dict(data)
    for key in ("corpus", "tokenizer"):
        if key in out:
            out[key] = str(Path(text_at(out[key], f"{where}, data, {key}")).absolute())
    if "sources" in out:
        at = f"{where}, data, sources"
        named = [text_at(source, at) for source in _listed(out["sources"], at)]
        out["sources"] = [name if ":" in name else str(Path(name).absolute()) for name in named]
    return out


def _path(value: object, where: str) -> Path:
    text = text_at(value, where)
    try:
        if not text:
            raise ValueError("it is empty")
        os.lstat(Path(text, "x" * LONGEST_NAME))  # files of such names are made there
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        pass  # as good as any; what is wrong with it is said where it is written
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(
            f"{text[:60]!r} cannot be a path: {reason}", where=where, next_step="give a shorter or plainer one"
        ) from error
    return Path(text)


def _prefix(value: object, where: str) -> str:
    text = text_at(value, where)
    if text and not re.fullmatch(r"[A-Za-z0-9][\w.+-]{0,63}", text):
        raise InputError(
            f"{text!r} is no name of a file", where=where, next_step="take at most 64 letters, digits, - and _"
        )
    return text


def _label(value: int) -> str:
    """A whole number for a name, to the last digit: 85m, 2.5b."""
    for unit, letter in ((10**12, "t"), (10**9, "b"), (10**6, "m"), (10**3, "k")):
        if value >= unit:
            whole, rest = divmod(value, unit)
            digits = f"{rest:0{round(math.log10(unit))}d}".rstrip("0")
            return f"{whole}.{digits}{letter}" if digits else f"{whole}{letter}"
    return str(value)


def _table(document: Mapping[str, Any], key: str, where: str) -> Mapping[str, Any]:
    found = document.get(key, {})
    if not isinstance(found, Mapping):
        raise InputError("is not a table", where=f"{where}, {key}", next_step=f"write it as [{key}]")
    return cast("Mapping[str, Any]", found)


def _listed(value: object, where: str) -> list[Any]:
    entries = cast("list[Any]", value) if isinstance(value, list | tuple) else [value]
    if not entries:
        raise InputError("is empty", where=where, next_step="give it at least one entry")
    return list(entries)


def _whole(value: object, where: str, most: int, *, least: int = 1) -> list[int]:
    found: list[int] = []
    for entry in _listed(value, where):
        number = quantity_at(entry, where)
        if not (least <= number <= most and number.is_integer()):
            raise InputError(f"{entry!r} is not a whole number from {least} to {most:,}", where=where)
        found.append(int(number))
    return found
