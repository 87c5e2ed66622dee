"""Any table of rows, in a file or a data frame, as named columns of NumPy arrays.

Text is read by Python's csv and json, which name the row at fault; Parquet by pyarrow (extra `parquet`), frames by narwhals.
"""

from __future__ import annotations

import csv
import hashlib
import importlib.util
import io
import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import isnan, nan
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from moescale.errors import ColumnError, DamagedFileError, InputError, install
from moescale.io.files import as_text, decode_utf8, read_bytes
from moescale.io.json_text import parse_json
from moescale.typing import BoolArray, FloatArray

FILE_LIMIT_BYTES = 2 * 2**30
TEXT_LIMIT_BYTES = 64 * 2**20  # of a text table: 16 MiB of the shortest cells take 1 GB and some seconds
ROW_LIMIT = 20_000_000  # a compressed file that claims more is broken or hostile
COLUMN_LIMIT = 10_000  # a run has some tens, a tracker's export some hundreds; each costs time and memory of its own
CELL_BYTES = 32  # of a text in memory beyond its characters
BATCH_ROWS = 1000  # that are unpacked before their size is looked at
UNPACKED_BASE_BYTES, UNPACKED_RATIO = 2**26, 50  # a Parquet file may unpack to the base and this multiple of its size

# Cells of a text file that mean "no value", in lower case: those of pandas.read_csv (na_values), spreadsheets, dashes.
MISSING_TEXTS = (
    *("", "-", "--", "\u2013", "\u2014", "na", "n/a", "n.a.", "#n/a", "#n/a n/a", "#na", "<na>"),
    *("nan", "-nan", "null", "none"),
)
FORMATS = "CSV (.csv), TSV (.tsv), Parquet (.parquet), JSON lines (.jsonl)"
FRAME = "frame"
DELIMITERS = {".csv": ",", ".tsv": "\t"}

# What a suffix says of a file: parquet, json, or the delimiter of a text table.
_KINDS = {
    **{**DELIMITERS, ".tab": "\t", ".parquet": "parquet", ".pq": "parquet"},
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), "json"),
}
# Lines at the top of a text table that begin with #, some of which a spreadsheet quotes, empty ones between them, and
# before them the line by which Excel states the delimiter.
_COMMENTS = re.compile(r'\ufeff?(?:"?sep=[^\r\n]"?[\r\n]+)?(?:[ \t]*"?#[^\r\n]*(?:[\r\n]+|\Z)|[ \t]*[\r\n]+)*')
_WORD = re.compile(r"[\w.+-]+")
_NUMBER = re.compile(r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|(?i:inf|infinity))\Z", re.ASCII)


@dataclass(frozen=True, eq=False)
class Table:
    """Named columns of equal length as they were found: numbers, booleans, or objects (texts and None; all of a CSV).

    `source` is the path or "frame"; `sha256` is of the file's bytes.
    """

    source: str
    columns: Mapping[str, NDArray[Any]]
    n_rows: int
    sha256: str | None = None


def read_table(source: Any) -> Table:
    """The table in a file (CSV, TSV, Parquet or JSON lines; by suffix, else by content), or in a data frame.

    A frame is anything that narwhals accepts (pandas, Polars, PyArrow ..), or a mapping of names to columns.
    """
    if isinstance(source, Table):
        return source
    if isinstance(source, str | os.PathLike):
        path = os.fspath(cast("str | os.PathLike[str]", source))
        return parse_table(read_bytes(path, limit_bytes=FILE_LIMIT_BYTES), path)
    return _table(_of_mapping(source) if isinstance(source, Mapping) else _of_frame(source, FRAME), FRAME)


def parse_table(data: bytes, path: str) -> Table:
    """The table in the bytes of a file that is, or would be, called `path`; errors as of `read_table`."""
    if not data or data.isspace():
        raise DamagedFileError("the file is empty", where=path, next_step=f"give a table: {FORMATS}")
    kind = _kind(data, path)
    if kind == "parquet":
        columns = _of_frame(_read_parquet(data, path), path)
    elif len(data) > TEXT_LIMIT_BYTES:
        what = f"is a text table of more than {TEXT_LIMIT_BYTES // 2**20} MiB"
        raise InputError(what, where=path, next_step="give fewer rows, or write it as Parquet")
    else:
        text = decode_utf8(data, where=path)
        columns = _of_json(text, path) if kind == "json" else _of_text(text, path, kind)
    return _table(columns, path, hashlib.sha256(data).hexdigest())


def _table(columns: Mapping[str, NDArray[Any]], source: str, sha256: str | None = None) -> Table:
    lengths = {len(column) for column in columns.values()} or {0}
    if len(lengths) > 1:
        what = f"columns differ in length: {sorted(lengths)}"
        raise ColumnError(what, where=source, next_step="give one value a row")
    refuse_beyond("rows", n_rows := lengths.pop(), ROW_LIMIT, source, "give one row a run")
    return Table(source, columns, n_rows, sha256)


def as_numbers(column: NDArray[Any]) -> tuple[FloatArray, BoolArray]:
    """A column as float64, and the mask of the cells that hold something else; NaN where missing or something else."""
    if column.dtype.kind != "O":
        odd = np.full(len(column), column.dtype.kind == "b")
        return np.where(odd, np.nan, column.astype(np.float64)), odd
    read = {cell: _number(cell) for cell in set(column.tolist())}
    numbers = [read[cell] for cell in column.tolist()]
    return np.array(numbers, dtype=np.float64), np.array([number is None for number in numbers], dtype=np.bool_)


def _number(cell: str | None) -> float | None:
    """The number that a cell states, NaN where it is missing; None for something else."""
    text = (cell or "").strip()
    if text.lower() in MISSING_TEXTS:
        return nan
    return float(text) if _NUMBER.match(text) else None


def as_values(column: NDArray[Any]) -> NDArray[Any]:
    """A column as float64 if every cell is a number or missing, as bool if all are truths, else text ("": missing)."""
    if column.dtype.kind == "b":
        return column
    numbers, texts = as_numbers(column)
    if not texts.any():
        return numbers
    lowered = [None if cell is None else cell.strip().lower() for cell in column.tolist()]
    return np.array([cell == "true" for cell in lowered]) if set(lowered) <= {"true", "false"} else as_texts(column)


def as_flags(column: NDArray[Any]) -> tuple[BoolArray, BoolArray]:
    """A column of true/false, yes/no or 1/0 as bool, False where missing; and the mask of the other cells."""
    words = np.array([text.strip().lower() for text in as_texts(column)], dtype=np.object_)
    numbers, _ = as_numbers(column)
    flags = np.isin(words, ("true", "t", "yes", "y")) | (numbers == 1)
    return flags, ~(flags | (numbers == 0) | np.isin(words, ("false", "f", "no", "n", *MISSING_TEXTS)))


def as_texts(column: NDArray[Any]) -> NDArray[np.object_]:
    """A column's cells as str, "" where missing: for text columns, and to quote a cell in a message."""
    return np.array([written(cell) for cell in column.tolist()], dtype=np.object_)


def delimited(columns: Mapping[str, NDArray[Any]], delimiter: str) -> str:
    """Columns as lines of text, their names first: numbers in their shortest form, texts of more than a word in quotes."""

    def quoted(text: str) -> str:
        return text if _WORD.fullmatch(text) else '"' + text.replace('"', '""') + '"'

    cells = [
        [quoted(as_text(text)) if column.dtype.kind in "OU" else text for text in as_texts(column).tolist()]
        for column in columns.values()
    ]
    rows = [map(quoted, columns), *zip(*cells, strict=True)]
    return "".join(f"{delimiter.join(row)}\n" for row in rows)


def number_text(value: float) -> str:
    """The shortest text that gives a float64 back, whole numbers without a point: 1000000000, 2.5, 1e-07."""
    return repr(float(value)).removesuffix(".0")


def written(cell: object) -> str:
    """A cell as text; floats to the last bit, "" for a missing value."""
    if cell is None or (isinstance(cell, float) and isnan(cell)):
        return ""
    return str(cell).lower() if isinstance(cell, bool) else number_text(cell) if isinstance(cell, float) else str(cell)


def mixed_array(cells: list[Any]) -> NDArray[Any]:
    """Cells of any type: float64 if all are numbers, bool if truths, else text, in which numbers stay readable."""
    values = [*map(_scalar, cells)]
    kinds = set(map(type, values)) - {type(None)}
    if kinds == {bool} and None not in values:
        return np.array(values)
    with suppress(OverflowError):  # an integer beyond float64
        if kinds <= {int, float}:
            return np.array([np.nan if value is None else float(value) for value in values], dtype=np.float64)
    return np.array([None if value is None else _cell_text(value) for value in values], dtype=np.object_)


def _scalar(cell: Any) -> Any:
    value = cell.item() if isinstance(cell, np.generic) else cell
    missing = type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and isnan(value))
    return None if missing else value


def _cell_text(value: Any) -> str:
    try:
        text = json.dumps(value, default=str) if isinstance(value, dict | list) else written(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits, a list that holds itself
        text = f"<{type(value).__name__}>"
    return as_text(text).encode("utf-8", "replace").decode("utf-8")  # a lone surrogate is no text


_Columns = dict[str, NDArray[Any]]


def _kind(data: bytes, path: str) -> str:
    """One of _KINDS: by the content's own signature first, then the suffix, then the look of the first line."""
    if data[:4] == b"PAR1":
        return "parquet"
    suffix = Path(path).suffix
    if suffix.lower() in _KINDS:
        return _KINDS[suffix.lower()]
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):  # Excel's "Unicode text"
        decode_utf8(data, where=path)
    head = _without_comments(data[:65536].decode("utf-8", "replace")).lstrip("\ufeff \t\r\n")
    if head[:1] in ("{", "["):
        return "json"
    if "\0" not in head and re.search(r"[\t,;]", head.split("\n", 1)[0]):
        return ","
    what = f"unknown kind of table: suffix {suffix!r}, and the content looks like none of those supported"
    raise DamagedFileError(what, where=path, next_step=f"supported: {FORMATS}")


def _without_comments(text: str) -> str:
    found = _COMMENTS.match(text)
    return text[found.end() :] if found and ("#" in found.group() or "sep=" in found.group()) else text


def _of_text(text: str, path: str, delimiter: str) -> _Columns:
    """A CSV or TSV with every cell as text, so that a bad number can be quoted where it stands."""
    text = _without_comments(text)
    if not text or text.isspace():
        advice = "write the column names after them, in a line without #"
        raise DamagedFileError("has lines that begin with # and nothing else", where=path, next_step=advice)
    # Semicolons and tabs under a .csv name are common, and so are commas within a name.
    first = re.sub(r'"[^"\n]*"', "", text.lstrip("\r\n").split("\n", 1)[0])
    delimiter = max((delimiter, *",\t;"), key=first.count)
    # After a quote that is never closed, rows would become part of one cell: then each quote must be in its place.
    strict = text.count('"') % 2 == 1
    reader = filter(None, csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=strict))
    row = 0
    try:
        header = [name.strip() for name in next(reader, [])]
        # Spreadsheets leave columns without a name.
        names = [name or f"column_{number}" for number, name in enumerate(header, start=1)]
        _check_names(names, path)
        columns: dict[str, list[str]] = {name: [] for name in names}
        if len(header) > 2 and sum(map(bool, header)) == 1:
            what = f"the first of its lines names one of {len(header)} columns"
            raise DamagedFileError(what, where=path, next_step="begin titles above the names with #, or remove them")
        for row, cells in enumerate(reader, start=1):
            if len(cells) != len(header):
                what = f"a row of {len(cells)} cells where the header has {len(header)}: {delimiter.join(cells)[:60]!r}"
                advice = "give every row one cell a column; quote cells that hold the delimiter"
                raise DamagedFileError(what, where=f"{path}, data row {row}", next_step=advice)
            for column, cell in zip(columns.values(), cells, strict=True):
                column.append(cell)
    except csv.Error as error:
        what, advice = f"cannot be read as CSV: {first_line(error)}", "export it again as CSV in UTF-8"
        if strict:
            what = f"the quotes do not pair up: {error}"
            advice = 'close each quoted cell with ", and write a quote inside it as ""'
        raise DamagedFileError(what, where=f"{path}, data row {row + 1}", next_step=advice) from error
    return {name: np.array(cells, dtype=np.object_) for name, cells in columns.items()}


def _of_json(text: str, path: str) -> _Columns:
    def distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        _check_names([name for name, _ in pairs], path)
        return dict(pairs)

    def decoded(part: str, where: str) -> Any:
        return parse_json(part, where=where, next_step="write one JSON object a line", pairs=distinct)

    if text.lstrip().startswith("["):
        rows: list[Any] = decoded(text, path)
    else:
        lines = ((n, line) for n, line in enumerate(text.split("\n"), start=1) if line and not line.isspace())
        rows = [decoded(line, f"{path}, line {number}") for number, line in lines]
    for row, record in enumerate(rows, start=1):
        if not isinstance(record, dict):
            what, where = f"a row must be an object, not {json.dumps(record)[:60]}", f"{path}, data row {row}"
            raise InputError(what, where=where, next_step='write rows as {"n_experts": 8, "tokens": 1e9, ..}')
    names = list(dict.fromkeys(name for record in rows for name in record))
    _check_names(names, path)
    return {name: mixed_array([record.get(name) for record in rows]) for name in names}


def require_arrow(where: str) -> None:
    """Raise InputError where pyarrow, which reads and writes Parquet, is not installed."""
    if importlib.util.find_spec("pyarrow") is None:
        instead = f"{install('parquet')}, or use CSV"
        raise InputError("Parquet needs the extra `parquet`, which is not installed", where=where, next_step=instead)


def _read_parquet(data: bytes, path: str) -> Any:
    """The Arrow table in a Parquet file, unless it unpacks to more than its size allows: one value repeated takes no disk."""
    require_arrow(path)
    import pyarrow as pa
    import pyarrow.parquet as pq

    most_bytes = UNPACKED_BASE_BYTES + UNPACKED_RATIO * len(data)
    try:
        file = pq.ParquetFile(pa.BufferReader(data))
        refuse_beyond("columns", int(file.metadata.num_columns), COLUMN_LIMIT, path, "keep those of the runs alone")
        refuse_beyond("rows", int(file.metadata.num_rows), ROW_LIMIT, path, "give one row a run")
        # What its pages are said to unpack to: one page alone may be larger than all memory.
        stated = sum(file.metadata.row_group(i).total_byte_size for i in range(file.metadata.num_row_groups))
        texts = sum(not pa.types.is_primitive(field.type) for field in file.schema_arrow)
        batches, n_bytes = list[Any](), 0
        for batch in file.iter_batches(BATCH_ROWS) if stated <= most_bytes else ():
            batch.validate(full=True)
            plain = [c.dictionary_decode() if pa.types.is_dictionary(c.type) else c for c in batch.columns]
            n_bytes += sum(column.nbytes for column in plain) + CELL_BYTES * texts * batch.num_rows
            if n_bytes > most_bytes:
                break
            batches.append(pa.RecordBatch.from_arrays(plain, names=file.schema_arrow.names))
        if max(stated, n_bytes) <= most_bytes:
            return pa.Table.from_batches(batches) if batches else file.read()
    except InputError:
        raise
    except Exception as error:  # a damaged file surfaces as many kinds of error
        what, advice = f"is not a readable Parquet file: {first_line(error)}", "write it again, or export it as CSV"
        raise DamagedFileError(what, where=path, next_step=advice) from error
    what = f"unpacks to more than {most_bytes:,} bytes, the most of a file of this size"
    raise InputError(what, where=path, next_step="leave out the columns that repeat one value, or give fewer rows")


def _of_mapping(frame: Mapping[Any, Any]) -> _Columns:
    columns, advice = _Columns(), "give 1-D columns"
    for name, values in frame.items():
        try:
            array = np.asarray(values)
        except ValueError as error:  # a nested list of unequal parts
            what = f"column {name!r} is not a plain list of values"
            raise ColumnError(what, where=FRAME, next_step=advice) from error
        if array.ndim != 1:
            raise ColumnError(f"column {name!r} has {array.ndim} dimensions", where=FRAME, next_step=advice)
        columns[str(name)] = array if array.dtype.kind in "biuf" else mixed_array(array.tolist())
    _check_names([*columns], FRAME)
    return columns


def _of_frame(frame: Any, source: str) -> _Columns:
    import narwhals as nw

    try:
        eager: Any = nw.from_native(frame).lazy().collect()
        columns = {str(name): _of_column(eager.get_column(name)) for name in eager.columns}
    except Exception as error:  # each frame library has its own errors
        advice = f"give a path ({FORMATS}) or a pandas, Polars or PyArrow frame with text column names"
        what = f"cannot read a table from {type(frame).__name__}: {' '.join(str(error).split())[:200]}"
        raise InputError(what, next_step=advice) from error
    _check_names([*columns], source)
    return columns


def _of_column(column: Any) -> NDArray[Any]:
    """A column of narwhals: numbers at one go where none is missing, all else cell by cell."""
    array = np.asarray(column.to_numpy() if column.dtype.is_float() or column.dtype.is_integer() else [""])
    return array if array.dtype.kind in "iuf" else mixed_array(column.to_list())


def refuse_beyond(noun: str, count: int, most: int, where: str, advice: str) -> None:
    if count > most:
        raise InputError(f"has {count:,} {noun}, more than {most:,}", where=where, next_step=advice)


def first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__


def _check_names(names: Sequence[str], where: str) -> None:
    refuse_beyond("columns", len(names), COLUMN_LIMIT, where, "keep those of the runs alone")
    if len(set(names)) < len(names):
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise ColumnError(f"two columns are named {twice!r}", where=where, next_step="rename or remove one of them")
