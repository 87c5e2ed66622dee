"""Tokens in Megatron-LM's indexed format: PREFIX.bin holds the tokens of all sequences, PREFIX.idx says where each lies.

The index, little-endian: 9 bytes b"MMIDIDX\\0\\0", uint64 version 1, uint8 code of the token type, uint64 count of sequences,
uint64 count of document bounds, int32 length of each sequence in tokens, int64 offset of each in bytes of the data file,
int64 bounds: document d is sequences bounds[d] .. bounds[d + 1] - 1. One int8 mode a sequence may follow; it is not read.
Source: NVIDIA/Megatron-LM, megatron/core/datasets/indexed_dataset.py, commit 00caa53, and datasets/readme.md beside it.
"""

from __future__ import annotations

import os
import struct
from array import array
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moescale.errors import InputError
from moescale.io.files import nearest_file_names, open_plain, write_atomically, write_error

MAGIC = b"MMIDIDX\0\0"
HEADER = struct.Struct("<9sQBQQ")
VERSION = 1
TOKEN_TYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}  # 6 and 7 are floats: no tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexed:
    """One data set: `starts` and `ends` are the bounds of its documents in tokens of the data file."""

    prefix: str
    dtype: np.dtype[Any]
    n_tokens: int
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]

    def tokens(self) -> NDArray[Any]:
        """The data file, memory-mapped, as one array of `n_tokens` tokens."""
        if self.n_tokens == 0:
            return np.empty(0, self.dtype)
        return np.memmap(f"{self.prefix}.bin", dtype=self.dtype, mode="r", shape=(self.n_tokens,))


def open_indexed(prefix: str) -> Indexed:
    """The index of PREFIX.bin and PREFIX.idx; the name of either file will do.

    Raises InputError for missing files, another format, and an index that contradicts itself or its data file.
    """
    prefix = prefix.removesuffix(".bin").removesuffix(".idx")
    index, data = Path(f"{prefix}.idx"), Path(f"{prefix}.bin")
    for path in (index, data):
        if not os.path.isfile(path):
            step = "give the common part of the names of a .bin and an .idx file"
            raise InputError("no such file", where=str(path), nearest=nearest_file_names(path), next_step=step)
    try:
        content, n_bytes = index.read_bytes(), data.stat().st_size
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", where=str(index)) from error
    if len(content) < HEADER.size or not content.startswith(MAGIC):
        what, step = "is not a Megatron index", "give the prefix of what Megatron-LM's preprocess_data.py wrote"
        raise InputError(what, where=str(index), next_step=step)
    _, version, code, n_sequences, n_bounds = HEADER.unpack_from(content)
    if version != VERSION or code not in TOKEN_TYPES:
        what = f"has version {version} of the index format and numbers of type {code}"
        step = f"known: version {VERSION}, types {', '.join(map(str, TOKEN_TYPES))}"
        raise InputError(what, where=str(index), next_step=step)
    needed = HEADER.size + 12 * n_sequences + 8 * n_bounds
    if len(content) not in (needed, needed + n_sequences):
        raise _damaged(index, f"has {len(content):,} bytes where its header asks for {needed:,}")
    dtype, place = np.dtype(TOKEN_TYPES[code]), HEADER.size
    found: list[NDArray[np.int64]] = []
    for count, kind in ((n_sequences, "<i4"), (n_sequences, "<i8"), (n_bounds, "<i8")):
        found.append(np.frombuffer(content, kind, count, place).astype(np.int64))
        place += count * np.dtype(kind).itemsize
    lengths, offsets, bounds = found
    if (lengths < 0).any() or (np.diff(bounds) < 0).any() or (bounds < 0).any() or (bounds > n_sequences).any():
        raise _damaged(index, "holds impossible lengths or document bounds")
    places = np.concatenate([[0], np.cumsum(lengths)])  # of the sequences, in tokens
    if (offsets != places[:-1] * dtype.itemsize).any():
        raise _damaged(index, "says that its sequences do not follow each other in the data file")
    if (reach := int(places[-1]) * dtype.itemsize) > n_bytes:
        raise _damaged(data, f"has {n_bytes:,} bytes, and its index reaches to {reach:,}")
    starts, ends = places[bounds[:-1]], places[bounds[1:]]
    kept = bounds[1:] > bounds[:-1]  # a document without sequences has no tokens
    return Indexed(prefix=prefix, dtype=dtype, n_tokens=n_bytes // dtype.itemsize, starts=starts[kept], ends=ends[kept])


def _damaged(path: Path, what: str) -> InputError:
    return InputError(what, where=str(path), next_step="it is cut off or damaged: copy or write it again")


class IndexedWriter:
    """Writes PREFIX.bin document by document, a sequence each, and PREFIX.idx in `finish`; 4 bytes of memory a document.

    Raises UnwrittenError where the files are there already, or cannot be written.
    """

    def __init__(self, prefix: Path, dtype: str) -> None:
        self.prefix, self.dtype = prefix, np.dtype(dtype).newbyteorder("<")
        self.lengths, self.tokens, self.file = array("i"), 0, f"{prefix}.bin"
        try:
            descriptor = open_plain(self.file, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        except OSError as error:
            raise write_error(self.file, error) from error
        self.stream = os.fdopen(descriptor, "wb", buffering=2**20)

    def add(self, document: NDArray[np.int64]) -> None:
        """Append the tokens of a document, at most 2^31 - 1."""
        if len(document) >= 2**31:
            what = f"a document of {len(document):,} tokens is longer than the format can say"
            raise InputError(what, where=self.file, next_step="split it")
        try:
            self.stream.write(document.astype(self.dtype).tobytes())
        except OSError as error:
            raise write_error(self.file, error) from error
        self.lengths.append(len(document))
        self.tokens += len(document)

    def close(self) -> None:
        """Close the data file as it is."""
        with suppress(OSError):  # of what the disk had no room for, which has been raised
            self.stream.close()

    def finish(self) -> None:
        """Have the tokens on the disk, and write the index."""
        try:
            self.stream.flush()
            os.fsync(self.stream.fileno())
        except OSError as error:
            raise write_error(self.file, error) from error
        self.stream.close()
        lengths = np.array(self.lengths, dtype="<i4")
        offsets = np.zeros(len(lengths) + 1, dtype="<i8")
        np.cumsum(lengths, out=offsets[1:])
        parts = (lengths, offsets[:-1] * self.dtype.itemsize, np.arange(len(lengths) + 1, dtype="<i8"))
        content = b"".join([index_head(self.dtype, len(lengths)), *(part.tobytes() for part in parts)])
        write_atomically(f"{self.prefix}.idx", content, follow_links=False)


def index_head(dtype: np.dtype[Any], documents: int) -> bytes:
    """What an index begins with that states as many documents of a sequence each."""
    (code,) = (code for code, kind in TOKEN_TYPES.items() if np.dtype(kind) == dtype.newbyteorder("<"))
    return HEADER.pack(MAGIC, VERSION, code, documents, documents + 1)


def index_size(documents: int) -> int:
    """Bytes of such an index."""
    return HEADER.size + 12 * documents + 8 * (documents + 1)


def documents(data: Indexed) -> Iterator[NDArray[np.int64]]:
    """The documents, each as its tokens."""
    tokens = data.tokens()
    for start, end in zip(data.starts.tolist(), data.ends.tolist(), strict=True):
        yield tokens[start:end].astype(np.int64)


def common_end(data: Indexed) -> int | None:
    """The token that every document ends with, or None."""
    full = data.ends > data.starts
    last = np.unique(data.tokens()[data.ends[full] - 1])
    return int(last[0]) if len(last) == 1 else None
