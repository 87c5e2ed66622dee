"""The latency table on disk: one row a measured (or failed) stage of one configuration, written so that no row is lost.

`latency.table` reads the same files and needs only a few of these columns; docs/serving.md says what each one means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from moescale.errors import InputError, nearest_names
from moescale.io.files import check_target
from moescale.io.frames import as_texts, read_table, refuse_beyond
from moescale.runs.table import write_runs

OK, OUT_OF_MEMORY, FAILED = "ok", "out of memory", "failed"
LEAST_S, MOST_S = 1e-12, 1e9  # far beyond any pass
STATUSES = (OK, OUT_OF_MEMORY, FAILED)
SUFFIXES = (".csv", ".tsv", ".parquet")
STAGES = ("prefill", "decode")
MOST_ROWS = 500_000  # a grid has at most 100,000 points
MEND = "mend that row, or leave it out"


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
    """All rows of a table that `moescale profile` wrote, failures included, in their order.

    Raises InputError that names file, row, column and value; a table with other columns than COLUMNS is refused.
    """
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
