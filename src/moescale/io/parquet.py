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
BATCH_ROWS = 1000  # that are unpacked before their size is looked at


def require_arrow(where: str, what: str = "Parquet") -> None:
    """Raise InputError for a table that is read or written by pyarrow alone, where that is not installed."""
    if importlib.util.find_spec("pyarrow") is None:
        instead = f"{install('parquet')}, or use CSV"
        raise InputError(f"{what} needs the extra `parquet`, which is not installed", where=where, next_step=instead)


def read_parquet(data: bytes, path: str, *, most_rows: int = ROW_LIMIT) -> Any:
    """The Arrow table in the bytes of a Parquet file.

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
        # What its pages are said to unpack to: one page alone may be larger than all memory.
        n_bytes = sum(file.metadata.row_group(i).total_byte_size for i in range(file.metadata.num_row_groups))
        if n_rows <= most_rows and n_bytes <= most_bytes and n_columns <= COLUMN_LIMIT:
            texts = sum(not pa.types.is_primitive(field.type) for field in file.schema_arrow)
            batches, n_bytes, names = list[Any](), 0, file.schema_arrow.names
            for batch in file.iter_batches(BATCH_ROWS):
                batch.validate(full=True)
                plain = [c.dictionary_decode() if pa.types.is_dictionary(c.type) else c for c in batch.columns]
                n_bytes += sum(column.nbytes for column in plain) + CELL_BYTES * texts * batch.num_rows
                if n_bytes > most_bytes:
                    break
                batches.append(pa.RecordBatch.from_arrays(plain, names=names))
            else:
                return pa.Table.from_batches(batches) if batches else file.read()
    except Exception as error:  # a damaged file surfaces as many kinds of error
        what, advice = f"is not a readable Parquet file: {first_line(error)}", "write it again, or export it as CSV"
        raise DamagedFileError(what, where=path, next_step=advice) from error
    refuse_beyond("columns", n_columns, COLUMN_LIMIT, path, "keep those of the runs alone")
    refuse_beyond("rows", n_rows, most_rows, path, "give one row a run")
    what = f"unpacks to more than {most_bytes:,} bytes, the most of a file of this size"
    raise InputError(what, where=path, next_step="leave out the columns that repeat one value, or give fewer rows")


def refuse_beyond(noun: str, count: int, most: int, where: str, advice: str) -> None:
    if count > most:
        raise InputError(f"has {count:,} {noun}, more than {most:,}", where=where, next_step=advice)


def first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
