"""Small files that unpack to very much. `python -m hostile.bombs parquet|zst|gz` prints them, pickled."""

from __future__ import annotations

import gzip
import io
import pickle
import sys
from collections.abc import Callable, Sequence
from typing import Any


def parquet_bombs() -> tuple[bytes, ...]:
    """Small Parquet files that claim or unpack to very much: rows, columns of one value, one long text again and again."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    def of(table: Any, **options: Any) -> bytes:
        sink = io.BytesIO()
        pq.write_table(table, sink, compression="zstd", store_schema=False, **options)
        return sink.getvalue()

    rows = 4_000_000
    one = pa.repeat(1.0, rows)
    head = {"n_params_dense": one, "n_experts": one, "tokens": one, "loss": one}
    long = pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), 20_000), pa.array(["x" * 20_000]))
    return (
        of(pa.table(head)),
        of(pa.table(head | {f"c{i}": one for i in range(40)})),
        of(pa.table({**{k: one.slice(0, 20_000) for k in head}, "note": long, "text": long})),
        of(pa.table({"text": pa.array(["x" * 2**28])}), use_dictionary=False),
        of(pa.table({"text": pa.repeat("abc", rows)})),
    )


def packed_bombs(kind: str) -> tuple[bytes, ...]:
    """Gigabytes of one letter, of lines, and of a JSON list, as gzip or Zstandard."""
    import pyarrow as pa

    def zstd(pieces: Sequence[tuple[bytes, int]]) -> bytes:
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, "zstd") as stream:
            for piece, times in pieces:
                for _ in range(times):
                    stream.write(piece)
        return sink.getvalue().to_pybytes()

    def gz(pieces: Sequence[tuple[bytes, int]]) -> bytes:
        sink = io.BytesIO()
        with gzip.GzipFile(fileobj=sink, mode="wb", mtime=0) as stream:
            for piece, times in pieces:
                for _ in range(times):
                    stream.write(piece)
        return sink.getvalue()

    pack: Callable[[Sequence[tuple[bytes, int]]], bytes] = zstd if kind == "zst" else gz
    many = 800
    return (
        pack([(b"x" * 2**20, many)]),
        pack([(b'{"text": "', 1), (b"x" * 2**20, many), (b'"}\n', 1)]),
        pack([(b"[", 1), (b"[]," * 2**18, many // 2), (b"[]]", 1)]),
    )


if __name__ == "__main__":
    sys.stdout.buffer.write(pickle.dumps(parquet_bombs() if sys.argv[1] == "parquet" else packed_bombs(sys.argv[1])))
