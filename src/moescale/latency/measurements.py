"""The latency table on disk: one row a measured (or failed) stage of one configuration, written so that no row is lost.

`latency.table` reads the same files and needs only a few of these columns; docs/profiling.md says what each one means.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from moescale.errors import InputError, nearest_names
from moescale.io.files import check_target, decode_utf8, read_bytes, write_atomically
from moescale.io.frames import read_parquet

OK, OUT_OF_MEMORY, FAILED = "ok", "out of memory", "failed"
LEAST_S, MOST_S = 1e-12, 1e9  # far beyond any pass
STATUSES = (OK, OUT_OF_MEMORY, FAILED)
SUFFIXES = (".csv", ".tsv", ".parquet")
TABLE_LIMIT_BYTES = 256 * 2**20  # a row has a few hundred bytes
MOST_ROWS = 500_000  # which is as much; a grid has at most 100,000 points


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
KEY = (
    "gpu", "gpus", "stage", "batch", "tokens", "engine", "dtype", "n_experts", "n_layers", "d_model", "n_heads",
    "n_kv_heads", "head_dim", "d_ffn", "n_moe_layers", "top_k", "d_expert", "vocab_size",
)  # fmt: skip
Key = tuple[object, ...]

_WHOLE = frozenset(field.name for field in fields(Measurement) if field.type == "int")
_REAL = frozenset(field.name for field in fields(Measurement) if str(field.type).startswith("float"))
_OPTIONAL = ("latency_s", "spread")


def key_of(row: Measurement) -> Key:
    """What identifies a measurement: asked for again, it need not be made again."""
    return tuple(getattr(row, name) for name in KEY)


def read_measurements(path: str | Path) -> tuple[Measurement, ...]:
    """All rows of a CSV, TSV or Parquet table that `moescale profile` wrote, failures included, in their order.

    Raises InputError that names file, row, column and value; a table with other columns than COLUMNS is refused.
    """
    file = Path(path)
    _check_suffix(file)
    data = read_bytes(file, limit_bytes=TABLE_LIMIT_BYTES)
    return tuple(_parse(record, f"{file}, row {number}") for number, record in enumerate(_records(file, data), start=1))


def write_measurements(path: str | Path, rows: Iterable[Measurement]) -> None:
    """Write a table whole or not at all; of rows with one key the last is kept, at the place of the first."""
    file = Path(path)
    _check_suffix(file)
    kept: dict[Key, Measurement] = {}
    for row in rows:
        kept[key_of(row)] = row
    write_atomically(file, _encoded(file, list(kept.values())))


def check_table(path: str | Path) -> None:
    """Raise the InputError that writing this table would meet, before anything is measured."""
    _check_suffix(Path(path))
    check_target(path)


def _check_suffix(file: Path) -> None:
    if file.suffix.lower() not in SUFFIXES:
        raise InputError(
            f"{file.suffix!r} is not a kind of table" if file.suffix else "the table's name has no suffix",
            where=str(file),
            nearest=f"{file.stem or 'table'}.csv",
            next_step=f"end the name in {', '.join(SUFFIXES)}",
        )


def _records(file: Path, data: bytes) -> Sequence[Mapping[str, object]]:
    if file.suffix.lower() == ".parquet":
        table = read_parquet(data, str(file), most_rows=MOST_ROWS)
        _check_columns(file, table.column_names)
        return table.to_pylist()
    text = decode_utf8(data, where=str(file))
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=_delimiter(file))
    try:
        _check_columns(file, list(reader.fieldnames or ()))
        return list(reader)
    except csv.Error as error:
        where = f"{file}, line {reader.line_num}"
        raise InputError(f"cannot be read: {error}", where=where, next_step="mend that line") from error


def _delimiter(file: Path) -> str:
    return "\t" if file.suffix.lower() == ".tsv" else ","


def _check_columns(file: Path, present: Sequence[str]) -> None:
    for column in COLUMNS:
        if column not in present:
            raise InputError(
                f"column {column!r} is missing",
                where=str(file),
                nearest=nearest_names(column, present),
                next_step="only a table that `moescale profile` wrote can be shown or extended",
            )
    for column in present:
        if column not in COLUMNS or present.count(column) > 1:
            raise InputError(
                f"column {column!r} is " + ("there twice" if column in COLUMNS else "not one of a latency table"),
                where=str(file),
                next_step="take it out: extending the table would lose it",
            )


def _parse(record: Mapping[str, object], where: str) -> Measurement:
    values: dict[str, Any] = {}
    for column in COLUMNS:
        given = record.get(column)
        text = "" if given is None else str(given).strip()
        place = f"{where}, column {column}"
        if column in _OPTIONAL and text in ("", "nan"):
            values[column] = None
        elif column == "rounds_s":
            values[column] = tuple(_number(part, place, whole=False) for part in text.split())
        elif column in _WHOLE or column in _REAL:
            values[column] = _number(text, place, whole=column in _WHOLE)
        else:
            values[column] = text
    row = Measurement(**values)
    if row.status not in STATUSES:
        raise InputError(f"{row.status!r} is not {', '.join(STATUSES)}", where=f"{where}, column status")
    if row.stage not in ("prefill", "decode"):
        raise InputError(f"{row.stage!r} is neither prefill nor decode", where=f"{where}, column stage")
    if row.status == OK and not (row.latency_s is not None and LEAST_S <= row.latency_s <= MOST_S):
        raise InputError(
            f"a row with status ok needs a positive latency, from {LEAST_S:g} to {MOST_S:g} s",
            where=f"{where}, column latency_s",
        )
    return row


def _number(text: str, where: str, *, whole: bool) -> float:
    try:
        value = float(text)
    except ValueError:
        raise InputError(f"{text!r} is not a number", where=where) from None
    if not 0 <= value < float("inf"):
        raise InputError(f"{text!r} must be finite and not negative", where=where)
    if whole and not value.is_integer():
        raise InputError(f"{text!r} must be a whole number", where=where)
    return int(value) if whole else value


def _encoded(file: Path, rows: Sequence[Measurement]) -> bytes:
    if file.suffix.lower() == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        kinds = {
            name: pa.int64() if name in _WHOLE else pa.float64() if name in _REAL else pa.string() for name in COLUMNS
        }
        records = [_cells(row) for row in rows]
        table = pa.table({name: pa.array([record[name] for record in records], kinds[name]) for name in COLUMNS})
        sink = io.BytesIO()
        pq.write_table(table, sink)
        return sink.getvalue()
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, COLUMNS, delimiter=_delimiter(file), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: "" if v is None else v for name, v in _cells(row).items()} for row in rows)
    return text.getvalue().encode()


def _cells(row: Measurement) -> dict[str, Any]:
    """The row as a table holds it: rounds as numbers with spaces between."""
    return {**asdict(row), "rounds_s": " ".join(repr(value) for value in row.rounds_s)}
