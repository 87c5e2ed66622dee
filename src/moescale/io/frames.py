"""Any table of rows, in a file or a data frame, as named Arrow columns; and those columns as NumPy arrays."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import isnan
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moescale.errors import InputError
from moescale.io.files import decode_utf8, read_bytes, unpacked_limit_bytes

FILE_LIMIT_BYTES = 2 * 2**30
ROW_LIMIT = 20_000_000
"""A row is one measured run or iteration; a compressed file that claims more is broken or hostile."""

COLUMN_LIMIT = 10_000
"""A run has some tens of columns, a tracker's export some hundreds; each costs time and memory of its own."""

HEADER_LIMIT = 2**20
"""Characters at the start of a text table in which its header must end."""

MISSING_TEXTS = (
    *("", "-", "--", "\u2013", "\u2014", "na", "n/a", "n.a.", "#n/a", "#n/a n/a", "#na", "<na>"),
    *("nan", "-nan", "null", "none"),
)
"""Cells of a text file that mean "no value", in lower case: those of pandas.read_csv (na_values), of spreadsheets, dashes."""

FORMATS = "CSV (.csv), TSV (.tsv), Parquet (.parquet), JSON lines (.jsonl)"
FRAME = "frame"

_SUFFIX_FORMATS = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
}
_MAGIC = {b"PK\x03\x04": "a ZIP archive or a spreadsheet", b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "Zstandard"}


_Makers = tuple[Callable[[], Any], Callable[[], list[Any]]]
"""How to get a frame's column as an Arrow array, and as a list where it has no Arrow type."""


@dataclass(frozen=True, eq=False)
class Table:
    """Named columns of equal length as they were found, nothing converted.

    `columns` maps a name to a pyarrow ChunkedArray; cells of a CSV or TSV are strings. `source` is the path, or
    "frame"; `sha256` is of the file's bytes, None for a frame.
    """

    source: str
    columns: Mapping[str, Any]
    n_rows: int
    sha256: str | None = None


def read_table(source: Any) -> Table:
    """The table in a file (CSV, TSV, Parquet or JSON lines; by suffix, else by content) or in a data frame.

    A frame is anything that narwhals accepts (pandas, Polars, PyArrow ..), or a mapping of names to columns; a Table
    stays as it is. Raises InputError for everything that is not a table with distinct column names.
    """
    if isinstance(source, Table):
        return source
    if isinstance(source, str | os.PathLike):
        return _read_file(os.fspath(source))  # pyright: ignore[reportUnknownArgumentType]
    return _read_frame(source)


def as_numbers(column: Any) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """A column as float64, and the mask of the cells that hold something else; NaN where missing or something else."""
    import pyarrow as pa

    pc = _compute()

    column = _plain(column)
    kind = column.type
    if pa.types.is_null(kind):
        return np.full(len(column), np.nan), np.zeros(len(column), dtype=np.bool_)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return _to_float64(pc.cast(column, pa.float64(), safe=False)), np.zeros(len(column), dtype=np.bool_)
    if not pa.types.is_large_string(kind):
        return np.full(len(column), np.nan), _to_bool(pc.is_valid(column))
    trimmed = pc.utf8_trim_whitespace(column)
    try:
        numbers = _to_float64(pc.cast(trimmed, pa.float64()))
    except pa.ArrowInvalid:
        missing = pc.is_in(pc.utf8_lower(trimmed), value_set=pa.array(MISSING_TEXTS, pa.large_string()))
        numeric = pc.match_substring_regex(trimmed, _NUMBER)
        texts = pc.and_(pc.is_valid(column), pc.invert(pc.or_(missing, numeric)))
        numbers = _to_float64(pc.cast(pc.if_else(numeric, trimmed, None), pa.float64()))
        return numbers, _to_bool(pc.fill_null(texts, False))
    return numbers, np.zeros(len(column), dtype=np.bool_)


def as_values(column: Any) -> NDArray[Any]:
    """A column as float64 if every cell is a number or missing, as bool if every cell is true or false, else as text.

    Text is an object array of str, with "" where a cell is missing.
    """
    import pyarrow as pa

    pc = _compute()

    column = _plain(column)
    if pa.types.is_boolean(column.type) and column.null_count == 0:
        return _to_bool(column)
    numbers, texts = as_numbers(column)
    if not texts.any():
        return numbers
    strings = as_texts(column)
    if pa.types.is_large_string(column.type):
        lowered = pc.utf8_lower(pc.utf8_trim_whitespace(column))
        if pc.all(pc.is_in(lowered, value_set=pa.array(["true", "false"], pa.large_string()))).as_py():
            return _to_bool(pc.equal(lowered, "true"))
    return strings


def as_flags(column: Any) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """A column of true/false, yes/no or 1/0 as bool, False where missing; and the mask of the other cells."""
    import pyarrow as pa

    pc = _compute()

    column = _plain(column)
    if pa.types.is_boolean(column.type):
        return _to_bool(pc.fill_null(column, False)), np.zeros(len(column), dtype=np.bool_)
    numbers, texts = as_numbers(column)
    flags = numbers == 1
    wrong = ~texts & ~np.isnan(numbers) & ~np.isin(numbers, (0.0, 1.0))
    if texts.any():
        lowered = np.char.lower(np.char.strip(as_texts(column)[texts].astype(np.str_)))
        flags[texts] = np.isin(lowered, ("true", "t", "yes", "y"))
        wrong[texts] = ~np.isin(lowered, ("true", "t", "yes", "y", "false", "f", "no", "n"))
    return flags, wrong


def as_texts(column: Any) -> NDArray[np.object_]:
    """A column's cells as str, "" where missing: for text columns, and to quote a cell in a message."""
    import pyarrow as pa

    pc = _compute()

    column = _plain(column)
    try:
        texts = pc.fill_null(pc.cast(column, pa.large_string()), "")
    except pa.ArrowException:  # nested and exotic types
        return np.array(["" if cell is None else str(cell) for cell in column.to_pylist()], dtype=np.object_)
    return np.asarray(texts.to_numpy(zero_copy_only=False), dtype=np.object_)


_NUMBER = r"^(?:[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[+-]?(?i:inf|infinity))$"


def _compute() -> Any:
    """pyarrow's functions, which it makes at import and therefore no type checker sees."""
    import pyarrow.compute

    return pyarrow.compute


def _plain(column: Any) -> Any:
    """One contiguous array, categories decoded, all string types as one."""
    import pyarrow as pa

    pc = _compute()

    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    if isinstance(column, pa.ChunkedArray):  # combine_chunks keeps chunks of more than 2 GiB
        column = column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    kind = column.type
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return _plain(pc.cast(column, kind.value_type))
    if pa.types.is_string(kind) or pa.types.is_string_view(kind):
        return pc.cast(column, pa.large_string())
    return column


def _to_float64(array: Any) -> NDArray[np.float64]:
    pc = _compute()

    return np.array(pc.fill_null(array, float("nan")).to_numpy(zero_copy_only=False), dtype=np.float64)


def _to_bool(array: Any) -> NDArray[np.bool_]:
    return np.array(array.to_numpy(zero_copy_only=False), dtype=np.bool_)


def _read_file(path: str) -> Table:
    return parse_table(read_bytes(path, limit_bytes=FILE_LIMIT_BYTES), path)


def parse_table(data: bytes, path: str) -> Table:
    """The table in the bytes of a file that is, or would be, called `path`; errors as of `read_table`."""
    suffix = Path(path).suffix.lower()
    if not data or data.isspace():
        raise InputError("the file is empty", where=path, next_step=f"give a table: {FORMATS}")
    readers: dict[str, Callable[[bytes, str], Any]] = {
        "csv": lambda data, path: _read_delimited(data, path, ","),
        "tsv": lambda data, path: _read_delimited(data, path, "\t"),
        "parquet": read_parquet,
        "json": _read_json,
    }
    table = readers[_sniff(data, path, _SUFFIX_FORMATS.get(suffix))](data, path)
    digest = hashlib.sha256(data).hexdigest()
    return _named(table, path, digest)


def _sniff(data: bytes, path: str, by_suffix: str | None) -> str:
    """The format: the content's own signature first, then the suffix, then the look of the first line."""
    if data[:4] == b"PAR1":
        return "parquet"
    for magic, name in _MAGIC.items():
        if data.startswith(magic):
            raise InputError(f"is {name}", where=path, next_step=f"unpack it or export it as one of: {FORMATS}")
    if by_suffix is not None:
        return by_suffix
    head = data[:65536].removeprefix(b"\xef\xbb\xbf").lstrip()
    if head[:1] in (b"{", b"["):
        return "json"
    first_line = head.split(b"\n", 1)[0]
    if b"\0" not in head and re.search(rb"[\t,;]", first_line):
        return "csv"
    raise InputError(
        f"unknown kind of table: suffix {Path(path).suffix!r}, and the content looks like none of those supported",
        where=path,
        next_step=f"supported: {FORMATS}",
    )


def _read_delimited(data: bytes, path: str, delimiter: str) -> Any:
    """A CSV or TSV with every column as text, so that a bad number can be quoted where it stands."""
    import pyarrow as pa
    import pyarrow.csv as pa_csv

    head = decode_utf8(data, where=path)[:HEADER_LIMIT].lstrip("\r\n")
    first_line = head.split("\n", 1)[0]
    if delimiter not in first_line:  # semicolons and tabs under a .csv name are common
        delimiter = next((other for other in ",\t;" if other in first_line), delimiter)
    try:
        rows = csv.reader(io.StringIO(head, newline=""), delimiter=delimiter)
        header = next(row for row in rows if row)
    except (csv.Error, StopIteration) as error:
        raise InputError(f"the first line is no row of column names ({error})", where=path) from error
    _refuse_many_columns(len(header), path)
    if header[0].startswith("#"):
        raise InputError(
            f"the first line is a comment, not column names: {header[0][:60]!r}", where=path, next_step="remove it"
        )
    # Spreadsheets leave columns without a name.
    names = [name.strip() or f"column_{number}" for number, name in enumerate(header, start=1)]
    _refuse_duplicates(names, path)
    if data.count(b'"') % 2:
        _refuse_open_quote(data.decode("utf-8-sig"), delimiter, path)
    bad_rows: list[Any] = []

    def note(row: Any) -> str:
        bad_rows.append(row)
        return "error"

    def parse(*, parallel: bool) -> Any:
        return pa_csv.read_csv(
            pa.BufferReader(data),
            # Blocks hold whole rows: a lone thread takes the file as one, however long its rows.
            read_options=pa_csv.ReadOptions(
                use_threads=parallel, block_size=2**24 if parallel else min(len(data) + 1, 2**31 - 1)
            ),
            parse_options=pa_csv.ParseOptions(
                delimiter=delimiter, newlines_in_values=b'"' in data, invalid_row_handler=note
            ),
            convert_options=pa_csv.ConvertOptions(
                column_types=dict.fromkeys(header, pa.large_string()), strings_can_be_null=False
            ),
        )

    try:
        try:
            table = parse(parallel=True)
        except pa.ArrowInvalid:
            bad_rows.clear()
            table = parse(parallel=False)
    except Exception as error:  # whatever the parser makes of a malformed file, the caller learns the file and the row
        if bad_rows:
            row = bad_rows[0]
            number = f", data row {row.number - 1}" if row.number else ""
            raise InputError(
                f"a row of {row.actual_columns} cells where the header has {row.expected_columns}: {row.text[:60]!r}",
                where=f"{path}{number}",
                next_step="give every row one cell a column; quote cells that hold the delimiter",
            ) from error
        raise InputError(
            f"cannot be read as CSV: {_first_line(error)}", where=path, next_step="export it again as CSV in UTF-8"
        ) from error
    return table.rename_columns(names)


def _refuse_open_quote(text: str, delimiter: str, path: str) -> None:
    """Raise for a quote that is never closed: the rows after it would become part of one cell."""
    row = -1
    try:
        for cells in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True):
            row += bool(cells)
    except csv.Error as error:
        raise InputError(
            f"the quotes do not pair up: {error}",
            where=f"{path}, data row {row + 1}",
            next_step='close each quoted cell with ", and write a quote inside it as ""',
        ) from error


def read_parquet(data: bytes, path: str, *, most_rows: int = ROW_LIMIT) -> Any:
    """The Arrow table in the bytes of a Parquet file, texts as dictionaries of their distinct values.

    Raises InputError for a damaged file, more than `most_rows` rows, and for a file that unpacks to more than
    `unpacked_limit_bytes`: a column of one value takes nothing on disk.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    most_bytes = unpacked_limit_bytes(len(data))
    try:
        file = pq.ParquetFile(pa.BufferReader(data))
        n_rows, n_columns = int(file.metadata.num_rows), int(file.metadata.num_columns)
        n_bytes = _claimed_bytes(file) if n_columns <= COLUMN_LIMIT else 0
        if n_rows <= most_rows and n_bytes <= most_bytes and n_columns <= COLUMN_LIMIT:
            texts = [field.name for field in file.schema_arrow if _is_text(field.type)]
            table = pq.ParquetFile(pa.BufferReader(data), read_dictionary=texts).read()
            table.validate(full=True)
            n_bytes = max(n_bytes, sum(map(_decoded_bytes, table.columns)))
            if n_bytes <= most_bytes:
                return table
    except Exception as error:  # a damaged file surfaces as many kinds of error
        raise InputError(
            f"is not a readable Parquet file: {_first_line(error)}",
            where=path,
            next_step="write it again, or export it as CSV",
        ) from error
    _refuse_many_columns(n_columns, path)
    if n_rows > most_rows:
        raise _too_many_rows(n_rows, path, most_rows)
    raise InputError(
        f"unpacks to {n_bytes:,} bytes, more than {most_bytes:,} of a file of this size",
        where=path,
        next_step="leave out the columns that repeat one value, or give fewer rows",
    )


def _claimed_bytes(file: Any) -> int:
    """Bytes in memory of what a Parquet file says it holds: its pages unpacked, or each cell in its width.

    By row groups: what pyarrow 26 knows of a damaged group's single columns ends the process.
    """
    import pyarrow as pa

    kinds = [field.type for field in file.schema_arrow]
    width = sum(kind.bit_width / 8 if pa.types.is_primitive(kind) else 8 for kind in kinds)
    groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
    return int(sum(max(group.total_byte_size, group.num_rows * width) for group in groups))


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_binary(kind)


def _decoded_bytes(column: Any) -> int:
    """Bytes of a column of dictionaries of texts with each cell written out; of any other column as it is."""
    import pyarrow as pa

    pc = _compute()

    if not pa.types.is_dictionary(column.type) or not _is_text(column.type.value_type):
        return column.nbytes
    lengths = (pc.sum(pc.take(pc.binary_length(chunk.dictionary), chunk.indices)).as_py() for chunk in column.chunks)
    return sum(length or 0 for length in lengths) + 8 * len(column)


def _read_json(data: bytes, path: str) -> Any:
    """JSON lines, or one JSON array of objects.

    Parsed by Python: pyarrow 26's reader ends the process with a segmentation fault on a row that is `null`, turns text
    into dates, and cannot say which value broke a column's type.
    """
    text = decode_utf8(data, where=path)

    def distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        record = dict(pairs)
        if len(record) < len(pairs):
            _refuse_duplicates([name for name, _ in pairs], path)
        return record

    decoder = json.JSONDecoder(object_pairs_hook=distinct)
    try:
        is_array = text.lstrip().startswith("[")
        records: Any = decoder.decode(text) if is_array else _decode_lines(decoder, text, path)
    except InputError:
        raise
    except (ValueError, RecursionError, MemoryError) as error:
        raise InputError(
            f"is not JSON lines: {_first_line(error)}", where=path, next_step="write one JSON object a line"
        ) from error
    for row, record in enumerate(records, start=1):
        if not isinstance(record, dict):
            raise InputError(
                f"a row must be an object, not {json.dumps(record)[:60]}",
                where=f"{path}, data row {row}",
                next_step='write rows as {"n_experts": 8, "tokens": 1e9, ..}',
            )
    return _records_to_table(records, path)


def _decode_lines(decoder: json.JSONDecoder, text: str, path: str) -> list[Any]:
    """The values of all lines that are not blank: at one go, and line by line to find the one at fault."""
    lines = [line for line in text.split("\n") if line and not line.isspace()]
    try:
        values = decoder.decode(f"[{','.join(lines)}]")
        if len(values) == len(lines):
            return values
    except (ValueError, RecursionError):
        pass  # the loop below meets the same fault, and knows its line
    return [
        _decode_line(decoder, line, f"{path}, line {number}")
        for number, line in enumerate(text.split("\n"), start=1)
        if line and not line.isspace()
    ]


def _decode_line(decoder: json.JSONDecoder, line: str, where: str) -> Any:
    try:
        return decoder.decode(line)
    except json.JSONDecodeError as error:
        raise InputError(
            f"is not JSON: {error.msg} at column {error.colno}: {line[:60]!r}",
            where=where,
            next_step="write one JSON object a line",
        ) from error


def _records_to_table(records: list[dict[str, Any]], path: str) -> Any:
    import pyarrow as pa

    names = list(dict.fromkeys(name for record in records for name in record))
    _refuse_many_columns(len(names), path)
    return pa.table({name: _mixed_array([record.get(name) for record in records]) for name in names})


def _mixed_array(values: list[Any]) -> Any:
    """Cells of any Python type: float64 if all are numbers, else text, in which numbers stay readable as numbers."""
    import pyarrow as pa

    kinds = set(map(type, values)) - {type(None)}
    try:
        if kinds <= {int, float}:
            return pa.array([None if value is None else float(value) for value in values], pa.float64())
        if kinds == {str}:
            return pa.array(values, pa.large_string())
    except (OverflowError, UnicodeError):  # an integer beyond float64, a lone surrogate: handled cell by cell
        pass
    return pa.array([None if value is None else _cell_text(value) for value in values], pa.large_string())


def _cell_text(value: Any) -> str:
    try:
        text = json.dumps(value, default=str) if isinstance(value, bool | dict | list) else str(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits, a list that holds itself
        text = f"<{type(value).__name__}>"
    return text.encode("utf-8", "replace").decode("utf-8")  # a lone surrogate is no text


def _read_frame(frame: Any) -> Table:
    import pyarrow as pa

    frame_columns = _mapping_columns(frame) if isinstance(frame, Mapping) else _narwhals_columns(frame)
    _refuse_many_columns(len(frame_columns), FRAME)
    columns: dict[str, Any] = {}
    for name, (to_arrow, to_list) in frame_columns.items():
        if "\0" in name:  # polars 1 panics, which is no Exception
            raise InputError(f"a column is named {name!r}", where=FRAME, next_step="rename it without a NUL character")
        try:
            columns[name] = pa.chunked_array([_plain(to_arrow())])
        except Exception:  # a column of mixed Python objects has no Arrow type
            columns[name] = pa.chunked_array([_mixed_array([_scalar(cell) for cell in to_list()])])
    lengths = {len(column) for column in columns.values()}
    if len(lengths) > 1:
        raise InputError(
            f"columns differ in length: {sorted(lengths)}", where=FRAME, next_step="give one value a row in each"
        )
    return _named(pa.table(columns), FRAME, None)


def _mapping_columns(frame: Mapping[Any, Any]) -> dict[str, _Makers]:
    import pyarrow as pa

    columns: dict[str, _Makers] = {}
    for name, values in frame.items():
        try:
            array = np.asarray(values)
        except ValueError as error:  # a nested list of unequal parts
            raise InputError(
                f"column {name!r} is not a plain list of values", where=FRAME, next_step="give 1-D columns"
            ) from error
        if array.ndim != 1:
            raise InputError(f"column {name!r} has {array.ndim} dimensions", where=FRAME, next_step="give 1-D columns")
        columns[str(name)] = (partial(pa.array, array, from_pandas=True), array.tolist)
    return columns


def _narwhals_columns(frame: Any) -> dict[str, _Makers]:
    import narwhals as nw

    _refuse_duplicates(_frame_names(frame), FRAME)
    try:
        wrapped: Any = nw.from_native(frame)
        eager: Any = wrapped.collect() if isinstance(wrapped, nw.LazyFrame) else wrapped
        return {str(name): (eager.get_column(name).to_arrow, eager.get_column(name).to_list) for name in eager.columns}
    except Exception as error:  # each frame library has its own errors
        raise InputError(
            f"cannot read a table from {type(frame).__name__}: {_first_line(error)}",
            next_step=f"give a path ({FORMATS}) or a pandas, Polars or PyArrow frame with text column names",
        ) from error


def _frame_names(frame: Any) -> list[str]:
    """The column names of a frame that may repeat them (PyArrow, pandas); none for others, whose names are distinct."""
    names: Any = getattr(frame, "column_names", None)
    if names is None and not hasattr(frame, "collect"):  # a lazy frame would compute its schema
        names = getattr(frame, "columns", None)
    return [] if names is None or callable(names) else [str(name) for name in names]


def _scalar(cell: Any) -> Any:
    """A cell of an object column as a plain Python value; a missing one as None."""
    if isinstance(cell, np.generic):
        cell = cell.item()
    missing = cell is None or type(cell).__name__ in ("NAType", "NaTType") or (isinstance(cell, float) and isnan(cell))
    return None if missing else cell


def _named(table: Any, source: str, sha256: str | None) -> Table:
    _refuse_duplicates(table.column_names, source)
    if table.num_rows > ROW_LIMIT:
        raise _too_many_rows(table.num_rows, source)
    columns = {name: table.column(index) for index, name in enumerate(table.column_names)}
    return Table(source, MappingProxyType(columns), table.num_rows, sha256)


def _too_many_rows(n_rows: int, where: str, most: int = ROW_LIMIT) -> InputError:
    return InputError(f"has {n_rows:,} rows, more than {most:,}", where=where, next_step="give one row a run")


def _refuse_many_columns(count: int, where: str) -> None:
    if count > COLUMN_LIMIT:
        raise InputError(
            f"has {count:,} columns, more than {COLUMN_LIMIT:,}", where=where, next_step="keep those of the runs alone"
        )


def _refuse_duplicates(names: list[str], where: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InputError(f"two columns are named {name!r}", where=where, next_step="rename or remove one of them")
        seen.add(name)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
