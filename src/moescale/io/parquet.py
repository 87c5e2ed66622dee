"""Parquet files as Arrow tables, which pyarrow reads (extra `parquet`), within limits of what they unpack to."""

from __future__ import annotations

import importlib.util
from typing import Any

from moescale.errors import DamagedFileError, InputError, install
from moescale.io.files import unpacked_limit_bytes

ROW_LIMIT = 20_000_000
"""A row is one measured run or iteration; a compressed file that claims more is broken or hostile."""

COLUMN_LIMIT = 10_000
"""A run has some tens of columns, a tracker's export some hundreds; each costs time and memory of its own."""


CELL_BYTES = 32  # of a text in memory beyond its characters


def require_arrow(where: str, what: str = "Parquet") -> None:
    """Raise InputError for a table that is read or written by pyarrow alone, where that is not installed."""
    if importlib.util.find_spec("pyarrow") is None:
        instead = f"{install('parquet')}, or use CSV"
        raise InputError(f"{what} needs the extra `parquet`, which is not installed", where=where, next_step=instead)


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
        what, advice = f"is not a readable Parquet file: {first_line(error)}", "write it again, or export it as CSV"
        raise DamagedFileError(what, where=path, next_step=advice) from error
    refuse_beyond("columns", n_columns, COLUMN_LIMIT, path, "keep those of the runs alone")
    refuse_beyond("rows", n_rows, most_rows, path, "give one row a run")
    what = f"unpacks to {n_bytes:,} bytes, more than {most_bytes:,} of a file of this size"
    raise InputError(what, where=path, next_step="leave out the columns that repeat one value, or give fewer rows")


def _claimed_bytes(file: Any) -> int:
    """Bytes in memory of what a Parquet file says it holds: its pages unpacked, or each cell in its width.

    By row groups: what pyarrow 26 knows of a damaged group's single columns ends the process.
    """
    import pyarrow as pa

    kinds = [field.type for field in file.schema_arrow]
    width = sum(kind.bit_width / 8 if pa.types.is_primitive(kind) else CELL_BYTES for kind in kinds)
    groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
    return int(sum(max(group.total_byte_size, group.num_rows * width) for group in groups))


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_binary(kind)


def _decoded_bytes(column: Any) -> int:
    import pyarrow as pa
    import pyarrow.compute

    if not pa.types.is_dictionary(column.type) or not _is_text(column.type.value_type):
        return column.nbytes
    pc: Any = pyarrow.compute  # these functions it makes at import, so that no type checker sees them
    lengths = (pc.sum(pc.take(pc.binary_length(chunk.dictionary), chunk.indices)).as_py() for chunk in column.chunks)
    return sum(length or 0 for length in lengths) + CELL_BYTES * len(column)


def refuse_beyond(noun: str, count: int, most: int, where: str, advice: str) -> None:
    if count > most:
        raise InputError(f"has {count:,} {noun}, more than {most:,}", where=where, next_step=advice)


def first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
