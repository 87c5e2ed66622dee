"""Columns as the bytes of a file: CSV or TSV, and Parquet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from moescale.errors import ColumnError
from moescale.io import frames
from moescale.io.files import as_text
from moescale.io.parquet import require_arrow


def parquet(columns: Mapping[str, NDArray[Any]], path: str) -> bytes:
    require_arrow(path)
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    try:
        pq.write_table(pa.table({key: pa.array(_writable(v), from_pandas=True) for key, v in columns.items()}), sink)
    except pa.ArrowException as error:
        raise ColumnError(f"a column cannot be written: {error}", where=path) from error
    return sink.getvalue().to_pybytes()


def delimited(columns: Mapping[str, NDArray[Any]], delimiter: str) -> bytes:
    """Rows of text: numbers in their shortest form, names and texts in quotes."""

    def quoted(text: str) -> str:
        return '"' + text.replace('"', '""') + '"'

    def written(column: NDArray[Any]) -> list[str]:
        texts = frames.as_texts(column).tolist()
        return [quoted(as_text(text)) for text in texts] if column.dtype.kind in "OU" else texts

    rows = [map(quoted, columns), *zip(*map(written, columns.values()), strict=True)]
    return "".join(f"{delimiter.join(row)}\n" for row in rows).encode("utf-8")


def _writable(column: NDArray[Any]) -> Any:
    """Texts of a column as text that can be written: the name of a run may be that of a folder in another encoding."""
    return [as_text(v) if isinstance(v, str) else v for v in column] if column.dtype.kind in "OU" else column
