"""Where text comes from: files, globs, folders, a hub's data set, Megatron's tokens; each source is a list of documents."""

from __future__ import annotations

import fnmatch
import glob
import hashlib
import json
import os
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import numpy as np
from numpy.typing import NDArray

from moescale.errors import InputError, nearest_names, unknown_name
from moescale.experiments.data import megatron
from moescale.io.files import nearest_file_names, unpacked_limit_bytes

Document = str | NDArray[np.int64] | None  # text, or its tokens, or what is no text and shall be skipped

HUB = "hf:"
MEGATRON = "megatron:"
HUB_OPTIONS = ("split", "config", "revision")
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd"}
KINDS = {".jsonl": "lines", ".ndjson": "lines", ".json": "json", ".parquet": "parquet"}
# What a folder is searched for besides; a file or glob that is named may have any name, and is text.
TEXT_SUFFIXES = (".txt", ".text", ".md", ".rst", ".tex", ".py", ".c", ".h", ".cpp", ".rs", ".go", ".java", ".js", ".ts")
SKIPPED_FOLDERS = ("__pycache__",)
MOST_BYTES_AT_ONCE = 2**30  # of a text or .json file, which is read whole; JSON lines and Parquet have no bound
_BLOCK = 2**20
_ROWS = 1024  # of a Parquet file at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One file, hub data set or Megatron prefix; `n_bytes` is its size on disk (0 where it is not known)."""

    name: str
    kind: str  # text, lines, json, parquet, hub or megatron
    n_bytes: int


def find_sources(given: Sequence[str | os.PathLike[str]], *, exclude: Sequence[str] = ()) -> tuple[Source, ...]:
    """The sources that files, globs, folders, "hf:NAME?split=..&config=..&revision=.." and "megatron:PREFIX" name.

    Folders and globs (** for any folder) give their files in the order of their paths. `exclude` holds patterns: a file
    is left out when one fits its path or a part of it. Raises InputError for a name or pattern without files.
    """
    found: list[Source] = []
    for each in given:
        name = os.fspath(each)
        if name.startswith(HUB):
            _hub_arguments(name)
            found.append(Source(name=name, kind="hub", n_bytes=0))
        elif name.startswith(MEGATRON):
            data = megatron.open_indexed(name.removeprefix(MEGATRON))
            size = os.path.getsize(f"{data.prefix}.bin")
            found.append(Source(name=MEGATRON + data.prefix, kind="megatron", n_bytes=size))
        else:
            kept = [path for path in _files(name) if not _excluded(path, exclude)]
            if not kept:
                raise InputError("every file is excluded", where=name, next_step="change --exclude")
            found += [Source(name=path.as_posix(), kind=_kind(path), n_bytes=path.stat().st_size) for path in kept]
    if not found:
        raise InputError("no source is given", next_step="name a file, a folder, a glob or hf:NAME")
    return tuple(found)


def documents(
    source: Source, *, text_field: str = "text", skip: int = 0, undecodable: str = "error"
) -> Iterator[Document]:
    """The documents of a source from number `skip` on: texts, or arrays of tokens for Megatron's.

    A text file is one document; a line, row or array element of the other formats is one, its text in `text_field`.
    What is not UTF-8 raises InputError, or is None with undecodable="skip". Also raises InputError for malformed content
    and for a missing field, each with its place.
    """
    if source.kind == "megatron":
        yield from megatron.documents(megatron.open_indexed(source.name.removeprefix(MEGATRON)), skip)
        return
    for found in _READERS[source.kind](source, text_field, skip):
        if isinstance(found, str):
            yield found
        elif undecodable == "error":
            raise found
        else:
            yield None


def file_sha256(source: Source) -> str:
    """Hash of the file in hex (of Megatron's data file); empty for a data set of the hub."""
    if source.kind == "hub":
        return ""
    path = f"{source.name.removeprefix(MEGATRON)}.bin" if source.kind == "megatron" else source.name
    with _reading(path), Path(path).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _files(name: str) -> list[Path]:
    path = Path(name)
    if os.path.isfile(name):  # unlike Path.is_file, never an error
        return [path]
    if os.path.isdir(name):
        inside = sorted(_inside(path))
        if inside:
            return inside
        raise InputError(
            "the folder holds no file of a known kind",
            where=name,
            next_step=f"known: {' '.join((*KINDS, *TEXT_SUFFIXES))}, also with {' '.join(COMPRESSIONS)}; or give a glob such as {name.rstrip('/')}/*",
        )
    if any(letter in name for letter in "*?["):
        matched = sorted(Path(one) for one in _matched(name) if os.path.isfile(one))
        if matched:
            return matched
        raise InputError("no file matches", where=name, next_step="quote the pattern, and use ** for any folder")
    raise InputError(
        "no such file or folder",
        where=name or "sources",
        nearest=nearest_file_names(name) if name else None,
        next_step=f"a data set of the hub is {HUB}{name}" if name.count("/") == 1 and "." not in name else None,
    )


def _matched(pattern: str) -> list[str]:
    try:
        return glob.glob(pattern, recursive=True)
    except (OSError, ValueError):  # no path of this system
        return []


def _inside(folder: Path) -> Iterator[Path]:
    """The files of a known kind at any depth, but hidden ones and caches."""
    for where, folders, names in os.walk(folder, onerror=_unreadable):
        folders[:] = [one for one in folders if not one.startswith(".") and one not in SKIPPED_FOLDERS]
        for file in (Path(where, one) for one in names if not one.startswith(".")):
            if _plain(file).suffix.lower() in (*KINDS, *TEXT_SUFFIXES) and file.is_file():
                yield file


def _unreadable(error: OSError) -> None:
    raise InputError(f"cannot be read: {error.strerror or error}", where=str(error.filename)) from error


def _plain(path: Path) -> Path:
    """The path without the suffix of a compression."""
    return path.with_suffix("") if path.suffix.lower() in COMPRESSIONS else path


def _kind(path: Path) -> str:
    return KINDS.get(_plain(path).suffix.lower(), "text")


def _excluded(path: Path, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(part, pattern) for pattern in patterns for part in (path.as_posix(), *path.parts))


@contextmanager
def _reading(path: str) -> Generator[None]:
    """Names the file in errors of reading and decompressing it."""
    try:
        yield
    except OSError as error:  # pyarrow's own errors of input are OSErrors, without a number
        raise InputError(
            f"cannot be read: {error.strerror or error}",
            where=path,
            next_step="check that it is whole and of the kind that its name says",
        ) from error


@contextmanager
def _opened(path: str) -> Generator[Any]:
    """The file's bytes as a stream, decompressed."""
    import pyarrow as pa

    with _reading(path), pa.input_stream(path, compression=COMPRESSIONS.get(Path(path).suffix.lower())) as stream:
        yield stream


def _whole(path: str) -> bytes:
    most, size, blocks = _most_bytes(path), 0, list[bytes]()
    with _opened(path) as stream:
        while block := stream.read(_BLOCK):
            blocks.append(block)
            size += len(block)
            if size > most:
                raise _too_large(path, most)
    return b"".join(blocks)


def _most_bytes(path: str) -> int:
    """The largest document or value of a file: of a compressed one what so many bytes may unpack to."""
    if Path(path).suffix.lower() not in COMPRESSIONS:
        return MOST_BYTES_AT_ONCE
    with _reading(path):
        return min(MOST_BYTES_AT_ONCE, unpacked_limit_bytes(os.path.getsize(path)))


def _too_large(where: str, most: int) -> InputError:
    what = f"is larger than {most:,} bytes, and one document or value"
    return InputError(what, where=where, next_step="split it, or write it as JSON lines")


# Readers: a text, or the error that says why there is none.

Found = str | InputError


def _no_text(reason: str, where: str) -> InputError:
    return InputError(reason, where=where, next_step="save it as UTF-8, or pass --undecodable skip")


def _decoded(content: bytes, where: str) -> Found:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        at = error.start
        line = content.count(b"\n", 0, at) + 1
        return _no_text(f"is not UTF-8: byte 0x{content[at]:02x} at offset {at}, line {line}", where)


def _text(source: Source, text_field: str, skip: int) -> Iterator[Found]:
    if skip == 0:
        yield _decoded(_whole(source.name), source.name)


def _lines(source: Source, text_field: str, skip: int) -> Iterator[Found]:
    with _opened(source.name) as stream:
        yield from _of_lines(_split(stream, source.name), source.name, text_field, skip)


def _split(stream: Any, name: str) -> Iterator[bytes]:
    most = _most_bytes(name)
    rest: list[bytes] = []
    while block := stream.read(_BLOCK):
        head, *lines = block.split(b"\n")
        rest.append(head)
        if len(rest) * _BLOCK > most:
            raise _too_large(f"{name}, a line", most)
        if lines:
            yield b"".join(rest)
            yield from lines[:-1]
            rest = [lines[-1]]
    yield b"".join(rest)


def _of_lines(lines: Iterable[bytes], name: str, text_field: str, skip: int) -> Iterator[Found]:
    numbered = ((number, line) for number, line in enumerate(lines, 1) if line.strip())
    for number, line in islice(numbered, skip, None):
        where = f"{name}, line {number}"
        text = _decoded(line, where)
        if isinstance(text, str):
            text = _field(_parsed(text, where, "JSON lines hold one object a line"), text_field, where)
        yield text


def _parsed(text: str, where: str, next_step: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"is not JSON: {error}", where=where, next_step=next_step) from error


def _json(source: Source, text_field: str, skip: int) -> Iterator[Found]:
    name = source.name
    content = _whole(name)
    text = _decoded(content, name)
    if not isinstance(text, str):
        yield text
        return
    try:
        value = _parsed(text, name, "write one JSON array, or JSON lines")
    except InputError as error:
        if "Extra data" not in error.what:
            raise
        yield from _of_lines(content.split(b"\n"), name, text_field, skip)  # JSON lines under another name
        return
    values: list[Any] = value if isinstance(value, list) else [value]
    for number, one in enumerate(values[skip:], skip + 1):
        yield _field(one, text_field, f"{name}, element {number}")


def _parquet(source: Source, text_field: str, skip: int) -> Iterator[Found]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    name = source.name
    try:
        with pq.ParquetFile(name) as file:
            schema = file.schema_arrow
            if text_field not in schema.names:
                raise _no_field(text_field, schema.names, name)
            if schema.names.count(text_field) > 1:
                what = f"two columns are named {text_field!r}"
                raise InputError(what, where=name, next_step="rename or remove one of them")
            kind = schema.field(text_field).type
            if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)):
                raise InputError(f"holds {kind} in {text_field!r}, not text", where=name)
            number = 0
            for batch in file.iter_batches(batch_size=_rows_at_a_time(file.metadata, name), columns=[text_field]):
                column = batch.column(0).slice(min(max(skip - number, 0), len(batch)))
                number += len(batch)
                first = number - len(column) + 1
                for row, value in enumerate(column.cast(pa.large_binary()).to_pylist(), first):
                    yield "" if value is None else _decoded(value, f"{name}, row {row}")
    except (pa.ArrowException, OSError, MemoryError, UnicodeDecodeError) as error:  # the last: a name of a column
        raise InputError(
            f"is not Parquet that can be read: {_first_line(error)}",
            where=name,
            next_step="check that it is whole, or write it again",
        ) from error


def _rows_at_a_time(metadata: Any, name: str) -> int:
    """Rows of a Parquet file that fit in memory even where each is the longest text that its row group may hold."""
    largest = max((metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups)), default=0)
    most = unpacked_limit_bytes(os.path.getsize(name))
    if largest > most:
        raise InputError(
            f"unpacks to {largest:,} bytes at a time, more than {most:,} of a file of this size",
            where=name,
            next_step="write it again with fewer rows in a row group",
        )
    return max(1, min(_ROWS, most // max(largest, 1)))


def _hub_arguments(name: str) -> tuple[str, dict[str, str]]:
    path, _, query = name.removeprefix(HUB).partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    if not path:
        raise InputError("names no data set", where=name, next_step=f"write {HUB}cerebras/SlimPajama-627B")
    for option in options:
        if option not in HUB_OPTIONS:
            raise unknown_name("option", option, HUB_OPTIONS, where=name)
    return path, options


def _hub(source: Source, text_field: str, skip: int) -> Iterator[Found]:
    name = source.name
    path, options = _hub_arguments(name)
    try:
        datasets: Any = import_module("datasets")
    except ImportError as error:
        what = "the package datasets is not installed"
        raise InputError(what, where=name, next_step="pip install 'moescale[train]'") from error
    try:
        split = options.pop("split", "train")
        stream: Any = datasets.load_dataset(path, options.pop("config", None), split=split, streaming=True, **options)
        for number, row in enumerate(stream.skip(skip) if skip else stream, skip + 1):
            yield _field(row, text_field, f"{name}, row {number}")
    except InputError:
        raise
    except Exception as error:  # whatever the library, its parsers and its transport raise
        raise InputError(
            f"cannot be streamed: {_first_line(error)}",
            where=name,
            next_step="check its name, split and the network; a pack goes on where it was",
        ) from error


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0][:300] or type(error).__name__


def _field(value: object, text_field: str, where: str) -> Found:
    if isinstance(value, Mapping):
        row: Mapping[str, object] = value
        if text_field not in row:
            raise _no_field(text_field, list(row), where)
        value = "" if row[text_field] is None else row[text_field]
        if not isinstance(value, str):
            raise InputError(f"holds a {type(value).__name__} in {text_field!r}, not text", where=where)
    if not isinstance(value, str):
        raise InputError(f"is a {type(value).__name__}, not an object with text in {text_field!r}", where=where)
    try:
        value.encode()
    except UnicodeEncodeError as error:  # what JSON may spell
        return _no_text(f"holds a lone surrogate at character {error.start}, which is no text", where)
    return value


def _no_field(text_field: str, names: Sequence[str], where: str) -> InputError:
    shown = ", ".join(map(str, names[:20])) or "none"
    return InputError(
        f"has no field {text_field!r}",
        where=where,
        nearest=nearest_names(text_field, [str(name) for name in names]),
        next_step=f"name one with --text-field; there are: {shown}",
    )


_READERS = {"text": _text, "lines": _lines, "json": _json, "parquet": _parquet, "hub": _hub}
