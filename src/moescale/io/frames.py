"""Any table of rows, in a file or a data frame, as named columns; and those columns as NumPy arrays.

pyarrow, of the extra `parquet`, reads Parquet files, data frames and large text tables; a text table of up to LIGHT_BYTES is
read without it, whether it is installed or not.
"""

from __future__ import annotations

import csv
import hashlib
import importlib.util
import io
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import islice
from math import isfinite, isnan
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from moescale.errors import ColumnError, DamagedFileError, InputError, install
from moescale.io.files import STANDARD_INPUT, decode_utf8, read_bytes, read_standard_input, unpacked_limit_bytes
from moescale.typing import FloatArray

BoolArray = NDArray[np.bool_]

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

LIGHT_BYTES = 2**20
"""A text table up to here is read by Python: pyarrow alone takes longer to load."""

MOST_LIGHT_BYTES = 64 * 2**20
"""Up to here it is where pyarrow is not installed: 16 MiB of the shortest cells take 1 GB and some seconds."""

FORMATS = "CSV (.csv), TSV (.tsv), Parquet (.parquet), JSON lines (.jsonl)"
FRAME = "frame"

_SUFFIXES = {"csv": "csv", "tsv": "tsv tab", "parquet": "parquet pq", "json": "jsonl ndjson json"}
_FORMATS = {f".{suffix}": kind for kind, suffixes in _SUFFIXES.items() for suffix in suffixes.split()}
_MAGIC = {b"PK\x03\x04": "a ZIP archive or a spreadsheet", b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "Zstandard"}
_COMMENTS = re.compile(
    rb'(?:\xef\xbb\xbf)?(?:"?sep=[^\r\n]"?[\r\n]+)?(?:[ \t]*"?#[^\r\n]*(?:[\r\n]+|\Z)|[ \t]*[\r\n]+)*'
)
"""Lines at the top of a text table that begin with #, some of which a spreadsheet quotes, empty ones between them, and before them
the line by which Excel states the delimiter."""

_NUMBER = r"^(?:[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[+-]?(?i:inf|infinity))$"

_PLAIN_NUMBER = re.compile(r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|(?i:inf|infinity))\Z", re.ASCII)


@dataclass(frozen=True, eq=False)
class Table:
    """Named columns of equal length as they were found, nothing converted.

    `columns` maps a name to a NumPy array (numbers, booleans, or objects: texts and None), or to a pyarrow ChunkedArray
    where pyarrow read it; cells of a CSV or TSV are strings. `source` is the path,
    "standard input" or "frame"; `sha256` is of the file's bytes, None for a frame.
    """

    source: str
    columns: Mapping[str, Any]
    n_rows: int
    sha256: str | None = None


def read_table(source: Any) -> Table:
    """The table in a file (CSV, TSV, Parquet or JSON lines; by suffix, else by content), in standard input (`-`), or in a data
    frame.

    A frame is anything that narwhals accepts (pandas, Polars, PyArrow ..), or a mapping of names to columns; a Table
    stays as it is. Raises InputError for everything that is not a table with distinct column names.
    """
    if isinstance(source, Table):
        return source
    if isinstance(source, str | os.PathLike):
        path = os.fspath(cast("str | os.PathLike[str]", source))
        if path == "-":
            return parse_table(read_standard_input(limit_bytes=FILE_LIMIT_BYTES), STANDARD_INPUT)
        return parse_table(read_bytes(path, limit_bytes=FILE_LIMIT_BYTES), path)
    return _named(_read_frame(source), FRAME, None)


def parse_table(data: bytes, path: str) -> Table:
    """The table in the bytes of a file that is, or would be, called `path`; errors as of `read_table`."""
    if not data or data.isspace():
        raise DamagedFileError("the file is empty", where=path, next_step=f"give a table: {FORMATS}")
    kind = _sniff(data, path)
    if kind == "parquet":
        columns = _arrow_columns(read_parquet(data, path), path)
    elif kind == "json":
        columns = _read_json(data, path)
    else:
        columns = _read_delimited(data, path, "," if kind == "csv" else "\t")
    return _named(columns, path, hashlib.sha256(data).hexdigest())


def _named(columns: Mapping[str, Any], source: str, sha256: str | None) -> Table:
    n_rows = len(next(iter(columns.values()))) if columns else 0
    _refuse_beyond("rows", n_rows, ROW_LIMIT, source, "give one row a run")
    return Table(source, MappingProxyType(dict(columns)), n_rows, sha256)


def _arrow_columns(table: Any, source: str) -> dict[str, Any]:
    _refuse_duplicates(table.column_names, source)
    return dict(zip(table.column_names, table.columns, strict=True))


def arrow() -> tuple[Any, Any]:
    """pyarrow and its functions, loaded on first use; these it makes at import, so that no type checker sees them."""
    import pyarrow
    import pyarrow.compute

    return pyarrow, pyarrow.compute


def has_arrow() -> bool:
    """Whether pyarrow is installed; it is not loaded."""
    return importlib.util.find_spec("pyarrow") is not None


def require_arrow(where: str, what: str = "Parquet") -> None:
    """Raise InputError for a table that is read or written by pyarrow alone, where that is not installed."""
    if not has_arrow():
        instead = f"{install('parquet')}, or use CSV"
        raise InputError(f"{what} needs the extra `parquet`, which is not installed", where=where, next_step=instead)


# Columns as arrays.


def as_numbers(column: Any) -> tuple[FloatArray, BoolArray]:
    """A column as float64, and the mask of the cells that hold something else; NaN where missing or something else."""
    if isinstance(column, np.ndarray):
        return _light_numbers(cast("NDArray[Any]", column))
    pa, pc = arrow()
    column = _plain(column)
    kind, none, types = column.type, np.zeros(len(column), dtype=np.bool_), pa.types
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind) or types.is_null(kind):
        return _to_float64(pc.cast(column, pa.float64(), safe=False)), none
    if not types.is_large_string(kind):
        return np.full(len(column), np.nan), _to_bool(pc.is_valid(column))
    trimmed = pc.utf8_trim_whitespace(column)
    try:
        return _to_float64(pc.cast(trimmed, pa.float64())), none
    except pa.ArrowInvalid:
        missing = pc.is_in(pc.utf8_lower(trimmed), value_set=pa.array(MISSING_TEXTS, pa.large_string()))
        numeric = pc.match_substring_regex(trimmed, _NUMBER)
        texts = pc.and_(pc.is_valid(column), pc.invert(pc.or_(missing, numeric)))
        numbers = _to_float64(pc.cast(pc.if_else(numeric, trimmed, None), pa.float64()))
        return numbers, _to_bool(pc.fill_null(texts, False))


def as_values(column: Any) -> NDArray[Any]:
    """A column as float64 if every cell is a number or missing, as bool if every cell is true or false, else as text.

    Text is an object array of str, with "" where a cell is missing.
    """
    if isinstance(column, np.ndarray):
        return _light_values(cast("NDArray[Any]", column))
    pa, pc = arrow()
    column = _plain(column)
    if pa.types.is_boolean(column.type) and column.null_count == 0:
        return _to_bool(column)
    numbers, texts = as_numbers(column)
    if not texts.any():
        return numbers
    if pa.types.is_large_string(column.type):
        lowered = pc.utf8_lower(pc.utf8_trim_whitespace(column))
        if pc.all(pc.is_in(lowered, value_set=pa.array(["true", "false"], pa.large_string()))).as_py():
            return _to_bool(pc.equal(lowered, "true"))
    return as_texts(column)


def as_flags(column: Any) -> tuple[BoolArray, BoolArray]:
    """A column of true/false, yes/no or 1/0 as bool, False where missing; and the mask of the other cells."""
    if isinstance(column, np.ndarray):
        array = cast("NDArray[Any]", column)
        if array.dtype.kind == "b":
            return array.copy(), np.zeros(len(array), dtype=np.bool_)
    else:
        pa, pc = arrow()
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
    if isinstance(column, np.ndarray):
        return _light_texts(cast("NDArray[Any]", column))
    pa, pc = arrow()
    column = _plain(column)
    try:
        texts = pc.fill_null(pc.cast(column, pa.large_string()), "").to_numpy(zero_copy_only=False)
    except pa.ArrowException:  # nested and exotic types
        texts = ["" if cell is None else str(cell) for cell in column.to_pylist()]
    return np.array(texts, dtype=np.object_)


def cell_text(column: Any, row: int) -> str:
    """The text of one cell, of a row from 0 on."""
    return str(as_texts(column[row : row + 1])[0]).strip()


def _light_numbers(column: NDArray[Any]) -> tuple[FloatArray, BoolArray]:
    if column.dtype.kind in "iuf":
        return column.astype(np.float64), np.zeros(len(column), dtype=np.bool_)
    if column.dtype.kind == "b":
        return np.full(len(column), np.nan), np.ones(len(column), dtype=np.bool_)
    cells = column.tolist()
    known = {cell: _number(cell) for cell in set(cells)}
    numbers = np.array([known[cell] for cell in cells], dtype=np.float64)  # None as NaN
    if not (odd := {cell for cell, number in known.items() if number is None and not _is_missing(cell)}):
        return numbers, np.zeros(len(cells), dtype=np.bool_)
    return numbers, np.array([cell in odd for cell in cells], dtype=np.bool_)


def _number(cell: str | None) -> float | None:
    trimmed = "" if cell is None else cell.strip()
    return float(trimmed) if _PLAIN_NUMBER.match(trimmed) else None


def _is_missing(cell: str | None) -> bool:
    return cell is None or cell.strip().lower() in MISSING_TEXTS


def _light_values(column: NDArray[Any]) -> NDArray[Any]:
    if column.dtype.kind == "b":
        return column.copy()
    numbers, texts = _light_numbers(column)
    if not texts.any():
        return numbers
    lowered = [None if cell is None else cell.strip().lower() for cell in column.tolist()]
    if set(lowered) <= {"true", "false"}:
        return np.array([cell == "true" for cell in lowered], dtype=np.bool_)
    return as_texts(column)


def _light_texts(column: NDArray[Any]) -> NDArray[np.object_]:
    cells = column.tolist()
    if column.dtype.kind == "b":
        cells = ["true" if cell else "false" for cell in cells]
    elif column.dtype.kind == "f":
        cells = ["" if isnan(cell) else number_text(cell) for cell in cells]
    return _objects(["" if cell is None else str(cell) for cell in cells])


def number_text(value: float) -> str:
    """The shortest text that gives a float64 back, as pyarrow writes it: 1000000000, 1.2345e+10, 0.00001, 1e-7."""
    if not isfinite(value):
        return str(value)
    sign, digits, exponent = Decimal(str(value)).normalize().as_tuple()
    text, minus = "".join(map(str, digits)), "-" if sign else ""
    assert isinstance(exponent, int)
    if value == 0.0:
        return f"{minus}0"
    point = len(text) + exponent  # of the decimal point, from the first digit on
    if point > 10 or point < -5:
        fraction = f".{text[1:]}" if len(text) > 1 else ""
        return f"{minus}{text[0]}{fraction}e{point - 1:+d}".replace("e-0", "e-")
    if exponent >= 0:
        return f"{minus}{text}{'0' * exponent}"
    return f"{minus}{text[:point]}.{text[point:]}" if point > 0 else f"{minus}0.{'0' * -point}{text}"


def _objects(cells: Sequence[Any]) -> NDArray[np.object_]:
    array = np.empty(len(cells), dtype=np.object_)
    array[:] = cells
    return array


def _plain(column: Any) -> Any:
    """One contiguous array, categories decoded, all string types as one."""
    pa, pc = arrow()
    if isinstance(column, pa.ChunkedArray):
        # Of chunks that are more than 2 GiB together, combine_chunks makes several.
        column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks)
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    kind = column.type
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return _plain(pc.cast(column, kind.value_type))
    if pa.types.is_string(kind) or pa.types.is_string_view(kind):
        return pc.cast(column, pa.large_string())
    return column


def _to_float64(array: Any) -> FloatArray:
    _, pc = arrow()
    return np.array(pc.fill_null(array, float("nan")).to_numpy(zero_copy_only=False), dtype=np.float64)


def _to_bool(array: Any) -> BoolArray:
    return np.array(array.to_numpy(zero_copy_only=False), dtype=np.bool_)


# Files.


def _sniff(data: bytes, path: str) -> str:
    """The format: the content's own signature first, then the suffix, then the look of the first line."""
    if data[:4] == b"PAR1":
        return "parquet"
    for magic, name in _MAGIC.items():
        if data.startswith(magic):
            raise DamagedFileError(f"is {name}", where=path, next_step=f"unpack it or export it as one of: {FORMATS}")
    suffix = Path(path).suffix
    if suffix.lower() in _FORMATS:
        return _FORMATS[suffix.lower()]
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):  # Excel's "Unicode text"
        decode_utf8(data, where=path)
    head = _without_comments(data[:65536]).removeprefix(b"\xef\xbb\xbf").lstrip()
    if head[:1] in (b"{", b"["):
        return "json"
    if b"\0" not in head and re.search(rb"[\t,;]", head.split(b"\n", 1)[0]):
        return "csv"
    what = f"unknown kind of table: suffix {suffix!r}, and the content looks like none of those supported"
    raise DamagedFileError(what, where=path, next_step=f"supported: {FORMATS}")


def _read_delimited(data: bytes, path: str, delimiter: str) -> dict[str, Any]:
    """A CSV or TSV with every column as text, so that a bad number can be quoted where it stands.

    Lines at the top that begin with # are read past, and data rows counted from the line of column names.
    """
    text = decode_utf8(data, where=path)
    if len(table_only := _without_comments(data)) < len(data):
        data = table_only
        text = data.decode("utf-8-sig")
    if not text or text.isspace():
        advice = "write the column names after them, in a line without #"
        raise DamagedFileError("has lines that begin with # and nothing else", where=path, next_step=advice)
    delimiter, header = _header(text[:HEADER_LIMIT].lstrip("\r\n"), path, delimiter)
    # Spreadsheets leave columns without a name.
    names = [name.strip() or f"column_{number}" for number, name in enumerate(header, start=1)]
    _refuse_duplicates(names, path)
    if len(names) > 2 and sum(map(bool, map(str.strip, header))) == 1:
        what, advice = (
            f"the first of its lines names one of {len(names)} columns",
            "begin titles above the names with #",
        )
        raise DamagedFileError(what, where=path, next_step=f"{advice}, or remove them")
    if data.count(b'"') % 2:
        _refuse_open_quote(data.decode("utf-8-sig"), delimiter, path)
    if len(data) <= LIGHT_BYTES or (len(data) <= MOST_LIGHT_BYTES and not has_arrow()):
        cells = _parse_light(text, delimiter, len(header), path)
        return dict(zip(names, cells, strict=True))
    require_arrow(path, f"a text table beyond {MOST_LIGHT_BYTES // 2**20} MiB")
    table = _parse_by_arrow(data, delimiter, header, path)
    return dict(zip(names, table.columns, strict=True))


def _parse_light(text: str, delimiter: str, n_columns: int, path: str) -> list[NDArray[np.object_]]:
    """The cells of each column, of the rows after the first that is not empty."""
    columns: list[list[str]] = [[] for _ in range(n_columns)]
    reader = filter(None, csv.reader(io.StringIO(text, newline=""), delimiter=delimiter))
    try:
        next(reader, None)
        while rows := list(islice(reader, 10_000)):
            if wrong := {len(cells) for cells in rows} - {n_columns}:
                at = next(i for i, cells in enumerate(rows) if len(cells) in wrong)
                where = f"{path}, data row {len(columns[0]) + at + 1}"
                raise _wrong_width(len(rows[at]), n_columns, delimiter.join(rows[at]), where)
            for column, cells in zip(columns, zip(*rows, strict=True), strict=True):
                column.extend(cells)
    except csv.Error as error:
        raise _not_csv(error, path) from error
    return [_objects(column) for column in columns]


def _not_csv(error: Exception, path: str) -> DamagedFileError:
    what, advice = f"cannot be read as CSV: {_first_line(error)}", "export it again as CSV in UTF-8"
    return DamagedFileError(what, where=path, next_step=advice)


def _wrong_width(actual: int, expected: int, row: str, where: str) -> DamagedFileError:
    what = f"a row of {actual} cells where the header has {expected}: {row[:60]!r}"
    advice = "give every row one cell a column; quote cells that hold the delimiter"
    return DamagedFileError(what, where=where, next_step=advice)


def _parse_by_arrow(data: bytes, delimiter: str, header: list[str], path: str) -> Any:
    pa, _ = arrow()
    bad_rows: list[Any] = []
    try:
        try:
            return _parse_delimited(data, delimiter, header, bad_rows, parallel=True)
        except pa.ArrowInvalid:
            bad_rows.clear()
            return _parse_delimited(data, delimiter, header, bad_rows, parallel=False)
    except Exception as error:  # whatever the parser makes of a malformed file, the caller learns the file and the row
        if not bad_rows:
            raise _not_csv(error, path) from error
        row = bad_rows[0]
        where = f"{path}, data row {row.number - 1}" if row.number else path
        raise _wrong_width(row.actual_columns, row.expected_columns, row.text, where) from error


def _without_comments(data: bytes) -> bytes:
    """The bytes after the lines of `_COMMENTS` at their start; as they are where there are none."""
    found = _COMMENTS.match(data)
    return data[found.end() :] if found and (b"#" in found.group() or b"sep=" in found.group()) else data


def _header(head: str, path: str, delimiter: str) -> tuple[str, list[str]]:
    """The delimiter, which may be another than the suffix says, and the cells of the first row that is not empty."""
    first_line = head.split("\n", 1)[0]
    # Semicolons and tabs under a .csv name are common, and so are commas within a name.
    delimiter = max((delimiter, *",\t;"), key=re.sub(r'"[^"\n]*"', "", first_line).count)
    try:
        header = next(row for row in csv.reader(io.StringIO(head, newline=""), delimiter=delimiter) if row)
    except (csv.Error, StopIteration) as error:
        raise DamagedFileError(f"the first line is no row of column names ({error})", where=path) from error
    _refuse_many_columns(len(header), path)
    return delimiter, header


def _parse_delimited(data: bytes, delimiter: str, header: list[str], bad_rows: list[Any], *, parallel: bool) -> Any:
    import pyarrow as pa
    import pyarrow.csv as pa_csv

    def note(row: Any) -> str:
        bad_rows.append(row)
        return "error"

    # Blocks hold whole rows: a lone thread takes the file as one, however long its rows.
    block = 2**24 if parallel else min(len(data) + 1, 2**31 - 1)
    texts = dict.fromkeys(header, pa.large_string())
    return pa_csv.read_csv(
        pa.BufferReader(data),
        pa_csv.ReadOptions(use_threads=parallel, block_size=block),
        pa_csv.ParseOptions(delimiter=delimiter, newlines_in_values=b'"' in data, invalid_row_handler=note),
        pa_csv.ConvertOptions(column_types=texts, strings_can_be_null=False),
    )


def _refuse_open_quote(text: str, delimiter: str, path: str) -> None:
    """Raise for a quote that is never closed: the rows after it would become part of one cell."""
    row = -1
    try:
        for cells in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True):
            row += bool(cells)
    except csv.Error as error:
        advice = 'close each quoted cell with ", and write a quote inside it as ""'
        what, where = f"the quotes do not pair up: {error}", f"{path}, data row {row + 1}"
        raise DamagedFileError(what, where=where, next_step=advice) from error


def read_parquet(data: bytes, path: str, *, most_rows: int = ROW_LIMIT) -> Any:
    """The Arrow table in the bytes of a Parquet file, texts as dictionaries of their distinct values.

    Raises InputError for a damaged file, more than `most_rows` rows, and for a file that unpacks to more than
    `unpacked_limit_bytes`: a column of one value takes nothing on disk.
    """
    require_arrow(path)
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
        what, advice = f"is not a readable Parquet file: {_first_line(error)}", "write it again, or export it as CSV"
        raise DamagedFileError(what, where=path, next_step=advice) from error
    _refuse_many_columns(n_columns, path)
    _refuse_beyond("rows", n_rows, most_rows, path, "give one row a run")
    what = f"unpacks to {n_bytes:,} bytes, more than {most_bytes:,} of a file of this size"
    raise InputError(what, where=path, next_step="leave out the columns that repeat one value, or give fewer rows")


def _claimed_bytes(file: Any) -> int:
    """Bytes in memory of what a Parquet file says it holds: its pages unpacked, or each cell in its width.

    By row groups: what pyarrow 26 knows of a damaged group's single columns ends the process.
    """
    pa, _ = arrow()
    kinds = [field.type for field in file.schema_arrow]
    width = sum(kind.bit_width / 8 if pa.types.is_primitive(kind) else 8 for kind in kinds)
    groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
    return int(sum(max(group.total_byte_size, group.num_rows * width) for group in groups))


def _is_text(kind: Any) -> bool:
    pa, _ = arrow()
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_binary(kind)


def _decoded_bytes(column: Any) -> int:
    """Bytes of a column of dictionaries of texts with each cell written out; of any other column as it is."""
    pa, pc = arrow()
    if not pa.types.is_dictionary(column.type) or not _is_text(column.type.value_type):
        return column.nbytes
    lengths = (pc.sum(pc.take(pc.binary_length(chunk.dictionary), chunk.indices)).as_py() for chunk in column.chunks)
    return sum(length or 0 for length in lengths) + 8 * len(column)


def _read_json(data: bytes, path: str) -> dict[str, Any]:
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
        records: Any = decoder.decode(text) if text.lstrip().startswith("[") else _decode_lines(decoder, text, path)
    except InputError:
        raise
    except (ValueError, RecursionError, MemoryError) as error:
        what = f"is not JSON lines: {_first_line(error)}"
        raise DamagedFileError(what, where=path, next_step="write one JSON object a line") from error
    for row, record in enumerate(records, start=1):
        if not isinstance(record, dict):
            what, where = f"a row must be an object, not {json.dumps(record)[:60]}", f"{path}, data row {row}"
            raise InputError(what, where=where, next_step='write rows as {"n_experts": 8, "tokens": 1e9, ..}')
    names = list(dict.fromkeys(name for record in records for name in record))
    _refuse_many_columns(len(names), path)
    return {name: _mixed_array([record.get(name) for record in records]) for name in names}


def _decode_lines(decoder: json.JSONDecoder, text: str, path: str) -> list[Any]:
    """The values of all lines that are not blank: at one go, and line by line to find the one at fault."""
    lines = {number: line for number, line in enumerate(text.split("\n"), start=1) if line and not line.isspace()}
    try:
        values = decoder.decode(f"[{','.join(lines.values())}]")
        if len(values) == len(lines):
            return values
    except InputError:
        raise
    except (ValueError, RecursionError):
        pass  # the loop below meets the same fault, and knows its line
    values = []
    for number, line in lines.items():
        try:
            values.append(decoder.decode(line))
        except json.JSONDecodeError as error:
            what = f"is not JSON: {error.msg} at column {error.colno}: {line[:60]!r}"
            where = f"{path}, line {number}"
            raise DamagedFileError(what, where=where, next_step="write one JSON object a line") from error
    return values


def _mixed_array(values: list[Any]) -> NDArray[Any]:
    """Cells of any Python type: float64 if all are numbers, else text, in which numbers stay readable as numbers."""
    kinds = set(map(type, values)) - {type(None)}
    try:
        if kinds <= {int, float}:
            return np.array([np.nan if value is None else float(value) for value in values], dtype=np.float64)
    except OverflowError:  # an integer beyond float64
        pass
    return _objects([None if value is None else _cell_text(value) for value in values])


def _cell_text(value: Any) -> str:
    try:
        text = json.dumps(value, default=str) if isinstance(value, bool | dict | list) else str(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits, a list that holds itself
        text = f"<{type(value).__name__}>"
    return text.encode("utf-8", "replace").decode("utf-8")  # a lone surrogate is no text


# Data frames.


def _read_frame(frame: Any) -> dict[str, Any]:
    given = list(_mapping_columns(frame) if isinstance(frame, Mapping) else _frame_columns(frame))
    _refuse_many_columns(len(given), FRAME)
    _refuse_duplicates([name for name, *_ in given], FRAME)
    columns: dict[str, Any] = {}
    for name, to_array, to_list in given:
        if "\0" in name:  # polars 1 panics, which is no Exception
            raise ColumnError(f"a column is named {name!r}", where=FRAME, next_step="rename it without a NUL character")
        try:
            columns[name] = to_array()
        except Exception:  # a column of mixed Python objects has no Arrow type
            columns[name] = _mixed_array([_scalar(cell) for cell in to_list()])
    if len(lengths := {len(column) for column in columns.values()}) > 1:
        what = f"columns differ in length: {sorted(lengths)}"
        raise ColumnError(what, where=FRAME, next_step="give one value a row in each")
    return columns


_Column = tuple[str, Callable[[], Any], Callable[[], list[Any]]]
"""A column's name, and how to get it as an array, or as a list where it has no type of array."""


def _mapping_columns(frame: Mapping[Any, Any]) -> Iterator[_Column]:
    for name, values in frame.items():
        try:
            array = np.asarray(values)
            fault = f"has {array.ndim} dimensions" if array.ndim != 1 else None
        except ValueError:  # a nested list of unequal parts
            array, fault = np.empty(0), "is not a plain list of values"
        if fault is not None:
            raise ColumnError(f"column {name!r} {fault}", where=FRAME, next_step="give 1-D columns")
        yield str(name), lambda array=array: _typed(array), array.tolist


def _typed(array: NDArray[Any]) -> NDArray[Any]:
    if array.dtype.kind not in "biuf":
        raise TypeError("not of numbers")
    return array


def _frame_columns(frame: Any) -> Iterator[_Column]:
    import narwhals as nw

    # Frames that may repeat a name (PyArrow, pandas); a lazy one would compute its schema.
    names: Any = getattr(frame, "column_names", None)
    names = getattr(frame, "columns", None) if names is None and not hasattr(frame, "collect") else names
    _refuse_duplicates([] if names is None or callable(names) else [str(name) for name in names], FRAME)
    try:
        wrapped: Any = nw.from_native(frame)
        eager: Any = wrapped.collect() if isinstance(wrapped, nw.LazyFrame) else wrapped
        columns = [eager.get_column(name) for name in eager.columns]
    except Exception as error:  # each frame library has its own errors
        advice = f"give a path ({FORMATS}) or a pandas, Polars or PyArrow frame with text column names"
        what = f"cannot read a table from {type(frame).__name__}: {_first_line(error)}"
        raise InputError(what, next_step=advice) from error
    for column in columns:
        yield str(column.name), lambda column=column: _plain(column.to_arrow()), column.to_list


def _scalar(cell: Any) -> Any:
    """A cell of an object column as a plain Python value; a missing one as None."""
    if isinstance(cell, np.generic):
        cell = cell.item()
    missing = cell is None or type(cell).__name__ in ("NAType", "NaTType") or (isinstance(cell, float) and isnan(cell))
    return None if missing else cell


# Refusals.


def _refuse_beyond(noun: str, count: int, most: int, where: str, advice: str) -> None:
    if count > most:
        raise InputError(f"has {count:,} {noun}, more than {most:,}", where=where, next_step=advice)


def _refuse_many_columns(count: int, where: str) -> None:
    _refuse_beyond("columns", count, COLUMN_LIMIT, where, "keep those of the runs alone")


def _refuse_duplicates(names: list[str], where: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ColumnError(f"two columns are named {name!r}", where=where, next_step="rename or remove one of them")
        seen.add(name)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
