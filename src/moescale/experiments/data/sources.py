"""Where text comes from: files, globs, folders, a hub's data set, Megatron's tokens; each source is a list of documents.

Tables (Parquet, CSV) and the hub are streamed by `datasets`. JSON lines are not: its reader takes the keys and types of the
first ten megabytes for those of the whole file, refuses rows that have others, and counts rows from the start of a block.
"""

from __future__ import annotations

import csv
import fnmatch
import glob
import hashlib
import json
import os
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import numpy as np
from numpy.typing import NDArray

from moescale.errors import InputError, install, nearest_names, unknown_name
from moescale.experiments.data import megatron
from moescale.io.files import nearest_file_names, unpacked_limit_bytes
from moescale.io.parquet import require_arrow

Document = str | NDArray[np.int64] | None  # text, or its tokens, or what is no text and shall be skipped
Found = str | InputError  # a text, or why there is none

HUB = "hf:"
MEGATRON = "megatron:"
HUB_OPTIONS = ("split", "config", "revision")
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd"}
KINDS = {".jsonl": "lines", ".ndjson": "lines", ".json": "json", ".parquet": "parquet", ".csv": "csv", ".tsv": "tsv"}
# What a folder is searched for besides; a file or glob that is named may have any name, and is text.
TEXT_SUFFIXES = (".txt", ".text", ".md", ".rst", ".tex", ".py", ".c", ".h", ".cpp", ".rs", ".go", ".java", ".js", ".ts")
SKIPPED_FOLDERS = ("__pycache__",)
MOST_BYTES_AT_ONCE = 2**30  # of a text or .json file, which is read whole, and of a line
_BLOCK = 2**20
_ROWS = 1024  # of a table at a time


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


def documents(source: Source, *, text_field: str = "text", undecodable: str = "error") -> Iterator[Document]:
    """The documents of a source: texts, or arrays of tokens for Megatron's.

    A text file is one document; a line, row or array element of the other formats is one, its text in `text_field`.
    What is not UTF-8 raises InputError, or is None with undecodable="skip" (but in tables, where it always raises). Also
    raises InputError for malformed content, a missing field and a missing library, each with its place.
    """
    if source.kind == "megatron":
        yield from megatron.documents(megatron.open_indexed(source.name.removeprefix(MEGATRON)))
        return
    for found in _READERS.get(source.kind, _table)(source, text_field):
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
    compression = COMPRESSIONS.get(Path(path).suffix.lower())
    if compression is None:
        with _reading(path), open(path, "rb") as plain:
            yield plain
        return
    require_arrow(path, "compressed text")
    import pyarrow as pa

    with _reading(path), pa.input_stream(path, compression=compression) as stream:
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


# Readers.


def _no_text(reason: str, where: str) -> InputError:
    return InputError(reason, where=where, next_step="save it as UTF-8, or pass --undecodable skip")


def _decoded(content: bytes, where: str) -> Found:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        at = error.start
        line = content.count(b"\n", 0, at) + 1
        return _no_text(f"is not UTF-8: byte 0x{content[at]:02x} at offset {at}, line {line}", where)


def _text(source: Source, text_field: str) -> Iterator[Found]:
    yield _decoded(_whole(source.name), source.name)


def _lines(source: Source, text_field: str) -> Iterator[Found]:
    with _opened(source.name) as stream:
        yield from _of_lines(_split(stream, source.name), source.name, text_field)


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


def _of_lines(lines: Iterable[bytes], name: str, text_field: str) -> Iterator[Found]:
    for number, line in enumerate(lines, 1):
        if line.strip():
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


def _json(source: Source, text_field: str) -> Iterator[Found]:
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
        yield from _of_lines(content.split(b"\n"), name, text_field)  # JSON lines under another name
        return
    values: list[Any] = value if isinstance(value, list) else [value]
    for number, one in enumerate(values, 1):
        yield _field(one, text_field, f"{name}, element {number}")


def _table(source: Source, text_field: str) -> Iterator[Found]:
    """The rows of a table or of a data set of the hub, as `datasets` streams them."""
    name = source.name
    try:
        datasets: Any = import_module("datasets")
    except ImportError as error:
        what = "the package datasets is not installed"
        raise InputError(what, where=name, next_step=install("train")) from error
    datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False  # it reports to a server what kind of file is read
    try:
        path, options = _arguments(source, text_field, datasets)
        stream: Any = datasets.load_dataset(path, streaming=True, **options)
        for number, row in enumerate(stream, 1):
            yield _field(row, text_field, f"{name}, row {number}")
    except InputError:
        raise
    except Exception as error:  # whatever the library, its parsers and its transport raise
        hub = source.kind == "hub"
        raise InputError(
            f"{'cannot be streamed' if hub else 'cannot be read'}: {_first_line(error)}",
            where=name,
            next_step="check its name, split and the network" if hub else "check that it is whole, or write it again",
        ) from error


def _arguments(source: Source, text_field: str, datasets: Any) -> tuple[str, dict[str, Any]]:
    """What `load_dataset` is given for a source; InputError where a table lacks the field or would exhaust memory."""
    name = source.name
    if source.kind == "hub":
        path, given = _hub_arguments(name)
        return path, {"name": given.pop("config", None), "split": given.pop("split", "train"), **given}
    options = {"data_files": glob.escape(os.path.abspath(name)), "split": "train"}
    if source.kind == "parquet":
        return "parquet", {**options, "columns": [text_field], "batch_size": _parquet_rows(name, text_field)}
    separator = {"csv": ",", "tsv": "\t"}[source.kind]
    _check_csv(source, separator, text_field)
    features = datasets.Features({text_field: datasets.Value("string")})
    return "csv", {**options, "sep": separator, "features": features, "chunksize": _ROWS, "keep_default_na": False}


def _check_csv(source: Source, separator: str, text_field: str) -> None:
    name = source.name
    with _opened(name) as stream:
        first = stream.read(_BLOCK)
        names = next(csv.reader(first.decode("utf-8-sig", "replace").splitlines(), delimiter=separator), [])
        if text_field not in names:
            raise _no_field(text_field, names, name)
        if Path(name).suffix.lower() in COMPRESSIONS:  # a row may be as long as the file
            most = unpacked_limit_bytes(source.n_bytes)
            size = len(first)
            while size <= most and (block := stream.read(_BLOCK)):
                size += len(block)
            if size > most:
                raise InputError(f"unpacks to more than {most:,} bytes", where=name, next_step="unpack it first")


def _parquet_rows(name: str, text_field: str) -> int:
    """Rows of a Parquet file that fit in memory even where each is the longest text that its row group may hold."""
    require_arrow(name)
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(name) as file:
            metadata, schema = file.metadata, file.schema_arrow
            names = schema.names
            groups = [metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups)]
    except (pa.ArrowException, OSError, MemoryError, UnicodeDecodeError) as error:  # the last: a name of a column
        what = f"is not Parquet that can be read: {_first_line(error)}"
        raise InputError(what, where=name, next_step="check that it is whole, or write it again") from error
    if text_field not in names:
        raise _no_field(text_field, names, name)
    if names.count(text_field) > 1:
        what = f"two columns are named {text_field!r}"
        raise InputError(what, where=name, next_step="rename or remove one of them")
    largest, most = max(groups, default=0), unpacked_limit_bytes(os.path.getsize(name))
    if largest > most:
        what = f"unpacks to {largest:,} bytes at a time, more than {most:,} of a file of this size"
        raise InputError(what, where=name, next_step="write it again with fewer rows in a row group")
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


_READERS = {"text": _text, "lines": _lines, "json": _json}
