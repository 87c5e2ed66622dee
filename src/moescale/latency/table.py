"""Measured iteration latencies: a table on disk, one row a measured (or failed) stage of one configuration, and its source.

The source interpolates linearly on batch, model size and length (the paper's appendix B); docs/serving.md says what
columns mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from moescale.errors import InputError, nearest_names, unknown_name
from moescale.io.files import check_target
from moescale.io.frames import as_texts, read_table, refuse_beyond
from moescale.latency import LatencySource, Pass, common_shape
from moescale.models.architecture import Architecture
from moescale.models.parameters import count_parameters
from moescale.runs.table import write_runs
from moescale.typing import FloatArray

OK, OUT_OF_MEMORY, FAILED = "ok", "out of memory", "failed"
LEAST_S, MOST_S = 1e-12, 1e9  # far beyond any pass
STATUSES = (OK, OUT_OF_MEMORY, FAILED)
SUFFIXES = (".csv", ".tsv", ".parquet")
STAGES = ("prefill", "decode")
MOST_ROWS = 500_000  # a grid has at most 100,000 points
MEND = "mend that row, or leave it out"
NEEDED = ("gpu", "gpus", "n_params_total", "n_experts", "stage", "batch", "tokens", "latency_s")
# Others that matter where they are present.
WITHOUT_EMBEDDINGS = "n_params_non_embedding"
ONE_KIND = ("engine", "dtype")  # latencies of several are not to be mixed
PRESENT = (WITHOUT_EMBEDDINGS, *ONE_KIND, "status")
Kind = tuple[bool, str, int, int]  # whether sizes are without embeddings, stage, gpus, n_experts
Axis = tuple[FloatArray, Any]  # ascending positions, and at each a further axis, or on the last one a latency
MATCH = 1e-9  # relative; a length or batch this close to the end of an axis counts as measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One row. `latency_s` and `spread` are None unless the status is ok."""

    gpu: str  # the name that `cost --gpu` finds it under
    gpus: int  # tensor parallel
    n_params_total: float  # all experts and both embedding tables
    n_experts: int  # 1: dense
    stage: str  # prefill or decode
    batch: int
    tokens: int  # of each prompt, or held by each request while one more is decoded
    latency_s: float | None  # median of the rounds' medians
    status: str = OK
    reason: str = ""  # why there is no latency
    repeats: int = 0  # of all rounds
    rounds_s: tuple[float, ...] = ()  # the median of each round; one value a visit of the grid, each in a fresh engine
    spread: float | None = None  # over latency_s: range of the rounds, or the widest interquartile range in one
    engine: str
    engine_version: str
    dtype: str
    device: str  # what the engine calls it
    date: str  # ISO 8601, UTC
    model: str
    n_params: float  # dense-equivalent, without embeddings
    n_params_non_embedding: float  # n_params_total without the embedding tables
    n_layers: int
    d_model: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    d_ffn: int
    n_moe_layers: int
    top_k: int
    d_expert: int
    vocab_size: int


COLUMNS = tuple(field.name for field in fields(Measurement))
SHAPE = COLUMNS[COLUMNS.index("n_layers") :]
KEY = ("gpu", "gpus", "stage", "batch", "tokens", "engine", "dtype", "n_experts", *SHAPE)
Key = tuple[object, ...]
# What identifies a measurement: asked for again, it need not be made again.
key_of: Callable[[Measurement], Key] = attrgetter(*KEY)

_WHOLE = frozenset(field.name for field in fields(Measurement) if field.type == "int")
_REAL = frozenset(field.name for field in fields(Measurement) if str(field.type).startswith("float"))
_OPTIONAL = ("latency_s", "spread")


def read_measurements(path: str | Path) -> tuple[Measurement, ...]:
    """All rows of a table that `moescale profile` wrote, failures included; InputError names file, row, column and value."""
    cells = read_cells(path, COLUMNS, "only a table that `moescale profile` wrote can be shown or extended")
    for column in cells:
        if column not in COLUMNS:
            what = f"column {column!r} is not one of a latency table"
            raise InputError(what, where=str(path), next_step="take it out: extending the table would lose it")
    rows = zip(*(cells[column] for column in COLUMNS), strict=True)
    return tuple(_parse(row, f"{path}, data row {number}") for number, row in enumerate(rows, start=1))


def read_cells(path: str | Path, needed: Sequence[str], next_step: str) -> dict[str, list[str]]:
    """The texts in the columns of a table of latencies; raises InputError with the nearest where a needed one is missing."""
    table = read_table(path)
    refuse_beyond("rows", table.n_rows, MOST_ROWS, str(path), "keep one GPU and engine a table")
    for column in needed:
        if column not in table.columns:
            what, nearest = f"column {column!r} is missing", nearest_names(column, list(table.columns))
            raise InputError(what, where=str(path), nearest=nearest, next_step=next_step)
    return {name: [text.strip() for text in as_texts(column)] for name, column in table.columns.items()}


def number_in(text: str, where: str, *, whole: bool = False, positive: bool = False) -> float:
    """The finite number that a cell holds, of 0 or more, or above; InputError where it holds something else."""
    try:
        value = float(text)
    except ValueError:
        raise InputError(f"{text!r} is not a number", where=where, next_step=MEND) from None
    if not (0 <= value < float("inf")) or (positive and value == 0):
        kind = "positive" if positive else "not negative"
        raise InputError(f"{text!r} must be {kind} and finite", where=where, next_step=MEND)
    if whole and not value.is_integer():
        raise InputError(f"{text!r} must be a whole number", where=where, next_step=MEND)
    return int(value) if whole else value


def write_measurements(path: str | Path, rows: Iterable[Measurement]) -> None:
    """Write a table whole or not at all; of rows with one key the last is kept, at the place of the first."""
    kept = {key_of(row): row for row in rows}.values()
    cells: dict[str, list[Any]] = {name: [getattr(row, name) for row in kept] for name in COLUMNS}
    cells["rounds_s"] = [" ".join(map(repr, rounds)) for rounds in cells["rounds_s"]]
    kinds = dict.fromkeys(_WHOLE, np.int64) | dict.fromkeys(_REAL, np.float64)
    write_runs({name: np.asarray(values, kinds.get(name, np.object_)) for name, values in cells.items()}, path)


def check_table(path: str | Path) -> None:
    """Raise the InputError that writing this table would meet, before anything is measured."""
    file = Path(path)
    if file.suffix.lower() not in SUFFIXES:
        what = f"{file.suffix!r} is not a kind of table" if file.suffix else "the table's name has no suffix"
        nearest, next_step = f"{file.stem or 'table'}.csv", f"end the name in {', '.join(SUFFIXES)}"
        raise InputError(what, where=str(file), nearest=nearest, next_step=next_step)
    check_target(path)


def _parse(row: Sequence[str], where: str) -> Measurement:
    values: dict[str, Any] = {}
    for column, text in zip(COLUMNS, row, strict=True):
        place = f"{where}, column {column}"
        if column in _OPTIONAL and text in ("", "nan"):
            values[column] = None
        elif column == "rounds_s":
            values[column] = tuple(number_in(part, place) for part in text.split())
        elif column in _WHOLE or column in _REAL:
            values[column] = number_in(text, place, whole=column in _WHOLE)
        else:
            values[column] = text
    found = Measurement(**values)
    if found.status not in STATUSES:
        raise InputError(f"{found.status!r} is not {', '.join(STATUSES)}", where=f"{where}, column status")
    if found.stage not in STAGES:
        raise InputError(f"{found.stage!r} is neither prefill nor decode", where=f"{where}, column stage")
    if found.status == OK and not (found.latency_s is not None and LEAST_S <= found.latency_s <= MOST_S):
        what = f"a row with status ok needs a positive latency, from {LEAST_S:g} to {MOST_S:g} s"
        raise InputError(what, where=f"{where}, column latency_s")
    return found


@dataclass(frozen=True, slots=True, eq=False)
class LatencyTable(LatencySource):
    """Measured latencies of one kind of GPU.

    The model axis is the number of all parameters; for a model with vocab_size = 0, such as a law's N, without
    embeddings where the table says so. GPU count and number of experts select rows. Outside the measured range, for
    passes of both kinds, for experts held whole and groups of attention, the answer is NaN.
    """

    name: str  # `table` with the file it came from
    gpu: str
    axes: Mapping[Kind, Axis]  # tokens, then parameters, then batch

    def pass_s(self, model: Architecture, a: Pass) -> FloatArray:
        """Seconds of a pass that decodes, or processes prompts; NaN where not measured."""
        if (a.batch is None) == (a.prompts is None):
            return np.asarray(np.nan)
        stage, batch, tokens = "decode", a.batch, a.context_tokens
        if batch is None:
            stage, batch, tokens = "prefill", np.asarray(a.prompts), a.prompt_tokens
        shape = common_shape(model, a.gpus, batch, tokens, a.expert_parallel)
        experts = np.where(np.asarray(model.n_moe_layers) > 0, model.n_experts, 1.0)
        size = count_parameters(model).total
        bare, counts, experts, *where = (
            np.broadcast_to(np.asarray(values, dtype=np.float64), shape).ravel()
            for values in (np.asarray(model.vocab_size) == 0, a.gpus, experts, tokens, size, batch)
        )
        latency_s = np.full(counts.size, np.nan)
        for (of_bare, of_stage, of_gpus, of_experts), axis in self.axes.items():
            rows = (bare == of_bare) & (counts == of_gpus) & (experts == of_experts)
            if of_stage == stage and rows.any():
                latency_s[rows] = _interpolate(axis, tuple(values[rows] for values in where))
        # Experts were measured split over all GPUs, none held whole, attention over all of them, and prompts whole.
        plain = (np.asarray(a.prefix_tokens) == 0.0) & (np.asarray(a.query_tokens) == 1.0)
        plain = plain & (np.asarray(a.expert_parallel) == 1.0) & (np.asarray(a.attention_dp) == 1.0)
        return np.where(plain, latency_s.reshape(shape), np.nan)


def read_latency_table(path: str | Path, gpu: str | None = None) -> LatencyTable:
    """The measured latencies in a table (CSV, TSV, Parquet or JSON lines), of its only GPU or of `gpu`.

    Columns: NEEDED, and where present those of PRESENT (rows with a status other than ok are skipped); others are
    ignored. Repeated measurements become their median. Raises InputError that names file, row, column and value.
    """
    where = str(path)
    cells = read_cells(path, NEEDED, f"a latency table has the columns {', '.join(NEEDED)}")
    n_rows = len(cells["gpu"])
    cells = dict.fromkeys(PRESENT, [""] * n_rows) | cells
    rows = [i for i in range(n_rows) if cells["status"][i] in ("", OK)]
    if not rows:
        what = "no row of the table has status ok" if n_rows else "the table has no rows"
        raise InputError(what, where=where, next_step="measure some with `moescale profile`")

    def place(i: int, column: str) -> str:
        return f"{where}, data row {i + 1}, column {column}"

    def number(i: int, column: str, *, whole: bool = False) -> float:
        return number_in(cells[column][i], place(i, column), whole=whole, positive=True)

    for i in rows:
        if not cells["gpu"][i]:
            raise InputError("is empty", where=place(i, "gpu"), next_step=MEND)
        if (stage := cells["stage"][i]) not in STAGES:
            raise InputError(f"{stage!r} must be {' or '.join(STAGES)}", where=place(i, "stage"), next_step=MEND)
    names = sorted({cells["gpu"][i] for i in rows})
    if gpu is None and len(names) > 1:
        raise InputError(f"the table holds several GPUs: {', '.join(names)}", where=where, next_step="choose one")
    chosen = names[0] if gpu is None else gpu
    if chosen not in names:
        raise unknown_name("GPU", chosen, names, where=where)
    for column in ONE_KIND:
        kinds = sorted({cells[column][i] for i in rows if cells["gpu"][i] == chosen})
        if len(kinds) > 1:
            what = f"column {column!r} holds {', '.join(map(repr, kinds))}"
            raise InputError(what, where=where, next_step="keep one table for each")
    measured: dict[Kind, list[tuple[float, ...]]] = {}  # tokens, size, batch, seconds
    for i in rows:
        kind = (cells["stage"][i], int(number(i, "gpus", whole=True)), int(number(i, "n_experts", whole=True)))
        size, batch, tokens, seconds = (number(i, n) for n in ("n_params_total", "batch", "tokens", "latency_s"))
        if cells["gpu"][i] == chosen:
            bare = number(i, WITHOUT_EMBEDDINGS) if cells[WITHOUT_EMBEDDINGS][i] else size
            for is_bare, params in ((False, size), (True, bare)):
                measured.setdefault((is_bare, *kind), []).append((tokens, params, batch, seconds))
    axes = {kind: _axis(np.asarray(found)) for kind, found in measured.items()}
    return LatencyTable(name=f"table {Path(path).name}", gpu=chosen, axes=axes)


def _axis(rows: FloatArray) -> Axis:
    """The axis of the first column of rows, with the axes of the others below; the last column is the latency."""
    rows = rows[np.argsort(rows[:, 0])]
    at, starts = np.unique(rows[:, 0], return_index=True)
    below = np.split(rows[:, 1:], starts[1:])
    if rows.shape[1] == 2:
        return at, np.asarray([float(np.median(latencies)) for latencies in below])
    return at, [_axis(part) for part in below]


def _interpolate(axis: Axis, where: tuple[FloatArray, ...]) -> FloatArray:
    """Linear interpolation at points `where` (one array an axis, outermost first); NaN outside what was measured."""
    (at, below), x = axis, where[0]
    inside = (x >= at[0] * (1 - MATCH)) & (x <= at[-1] * (1 + MATCH))
    x = np.clip(x, at[0], at[-1])
    if len(where) == 1:
        return np.where(inside, np.interp(x, at, below), np.nan)
    latency_s = np.where(inside, 0.0, np.nan)
    for position, further in enumerate(below):
        share = np.interp(x, at, np.arange(at.size) == position)
        # A point with no share in this curve must not meet its NaN.
        points = inside & (share > 0)
        if points.any():
            latency_s[points] += share[points] * _interpolate(further, tuple(values[points] for values in where[1:]))
    return latency_s
