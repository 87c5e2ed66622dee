"""Where text comes from: files, globs, folders, a hub's data set, Megatron's tokens; each source is a list of documents.

Tables (Parquet, CSV) and the hub are streamed by `datasets`. JSON lines are not: its reader takes the keys and types of the
first ten megabytes for those of the whole file, refuses rows that have others, and counts rows from the start of a block.
"""

from __future__ import annotations

import fnmatch
import glob
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import numpy as np
from numpy.typing import NDArray

from moescale.errors import InputError, install, nearest_names, unknown_name
from moescale.experiments import megatron
from moescale.io.files import nearest_file_names, unpacked_limit_bytes
from moescale.io.parquet import require_arrow

Document = str | NDArray[np.int64] | None  # text, or its tokens, or what is no text and shall be skipped

HUB, MEGATRON = "hf:", "megatron:"
HUB_OPTIONS = ("split", "config", "revision")
COMPRESSIONS = (".gz", ".zst")
LINES, TABLES = (".jsonl", ".ndjson", ".json"), (".parquet", ".csv", ".tsv")
# What a folder is searched for besides; a file or glob that is named may have any name, and is text.
TEXTS = (".txt", ".text", ".md", ".rst", ".tex", ".py", ".c", ".h", ".cpp", ".rs", ".go", ".java", ".js", ".ts")
MOST_BYTES = 2**30  # of a text file, which is read whole, and of a line


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One file, hub data set or Megatron prefix; `n_bytes` is its size on disk (0 where it is not known)."""

    name: str
    n_bytes: int

    @property
    def is_file(self) -> bool:
        """Whether it is one file of text."""
        return not self.name.startswith((HUB, MEGATRON))

    @property
    def megatron(self) -> megatron.Indexed | None:
        """The tokens, if it holds any."""
        return megatron.open_indexed(self.name.removeprefix(MEGATRON)) if self.name.startswith(MEGATRON) else None


def find_sources(given: Sequence[str | os.PathLike[str]], *, exclude: Sequence[str] = ()) -> tuple[Source, ...]:
    """The sources that files, globs, folders, "hf:NAME?split=..&config=..&revision=.." and "megatron:PREFIX" name.

    Folders and globs (** for any folder) give their files in the order of their paths. `exclude` holds patterns: a file
    is left out when one fits its path or a part of it. Raises InputError for a name or pattern without files.
    """
    found: list[Source] = []
    for name in [os.fspath(each) for each in given]:
        if name.startswith(HUB):
            _hub_arguments(name)
            found.append(Source(name=name, n_bytes=0))
        elif name.startswith(MEGATRON):
            prefix = megatron.open_indexed(name.removeprefix(MEGATRON)).prefix
            found.append(Source(name=MEGATRON + prefix, n_bytes=os.path.getsize(f"{prefix}.bin")))
        else:
            kept = [path for path in _files(name) if not _excluded(path, exclude)]
            if not kept:
                step = "change --exclude, name a file, or quote a glob such as 'web/**/*.jsonl.zst'"
                raise InputError("no file is left to read", where=name or "sources", next_step=step)
            found += [Source(name=path.as_posix(), n_bytes=path.stat().st_size) for path in kept]
    if not found:
        raise InputError("no source is given", next_step="name a file, a folder, a glob or hf:NAME")
    return tuple(found)


def documents(source: Source, *, text_field: str = "text", undecodable: str = "error") -> Iterator[Document]:
    """The documents of a source: texts, or arrays of tokens for Megatron's.

    A text file is one document; a line, row or array element of the other formats is one, its text in `text_field`.
    What is not UTF-8 raises InputError, or is None with undecodable="skip" (but in tables, where it always raises). Also
    raises InputError for malformed content, a missing field and a missing library, each with its place.
    """
    name = source.name
    if (data := source.megatron) is not None:
        yield from megatron.documents(data)
        return
    suffix = "" if name.startswith(HUB) else _plain(Path(name)).suffix.lower()
    if name.startswith(HUB) or suffix in TABLES:
        yield from _rows(name, suffix, text_field)
        return
    found = _lines(name) if suffix in LINES else [(name, _whole(name))]
    for where, content in found:
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            if undecodable == "error":
                line = content.count(b"\n", 0, error.start) + 1
                what = f"is not UTF-8: byte 0x{content[error.start]:02x} at offset {error.start}, line {line}"
                step = "save it as UTF-8, or pass --undecodable skip"
                raise InputError(what, where=where, next_step=step) from error
            yield None
            continue
        if suffix in LINES:
            yield from _texts(text, text_field, where, undecodable)
        else:
            yield text


def file_sha256(source: Source) -> str:
    """Hash of the file in hex (of Megatron's data file); empty for a data set of the hub."""
    if source.name.startswith(HUB):
        return ""
    data = source.megatron
    with open(source.name if data is None else f"{data.prefix}.bin", "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _files(name: str) -> list[Path]:
    if os.path.isfile(name):  # unlike Path.is_file, never an error
        return [Path(name)]
    if os.path.isdir(name):
        every = (Path(where, one) for where, _, names in os.walk(name) for one in names)
        return sorted(path for path in every if _is_known(path, Path(name)))
    try:
        matched = sorted(Path(one) for one in glob.glob(name, recursive=True) if os.path.isfile(one))
    except (OSError, ValueError):  # no path of this system
        matched = []
    if not matched:
        step = f"a data set of the hub is {HUB}{name}" if name.count("/") == 1 and "." not in name else None
        nearest = nearest_file_names(name) if name and "*" not in name else None
        raise InputError("no such file or folder", where=name or "sources", nearest=nearest, next_step=step)
    return matched


def _is_known(path: Path, folder: Path) -> bool:
    """A file of a known kind, but hidden ones and caches."""
    hidden = any(part.startswith(".") or part == "__pycache__" for part in path.relative_to(folder).parts)
    return not hidden and _plain(path).suffix.lower() in (*LINES, *TABLES, *TEXTS) and path.is_file()


def _plain(path: Path) -> Path:
    """The path without the suffix of a compression."""
    return path.with_suffix("") if path.suffix.lower() in COMPRESSIONS else path


def _excluded(path: Path, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(part, pattern) for pattern in patterns for part in (path.as_posix(), *path.parts))


def _opened(name: str) -> Any:
    if Path(name).suffix.lower() not in COMPRESSIONS:
        return open(name, "rb")
    require_arrow(name, "compressed text")
    import pyarrow as pa

    return pa.CompressedInputStream(name, "gzip" if name.lower().endswith(".gz") else "zstd")


def _blocks(name: str) -> Iterator[bytes]:
    try:
        with _opened(name) as stream:
            while block := stream.read(2**20):
                yield block
    except OSError as error:  # pyarrow's own errors of input are OSErrors, without a number
        what, step = (
            f"cannot be read: {error.strerror or error}",
            "check that it is whole and of the kind that its name says",
        )
        raise InputError(what, where=name, next_step=step) from error


def _most_bytes(name: str) -> int:
    """The largest document or line of a file: of a compressed one what so many bytes may unpack to."""
    packed = Path(name).suffix.lower() in COMPRESSIONS
    return min(MOST_BYTES, unpacked_limit_bytes(os.path.getsize(name))) if packed else MOST_BYTES


def _whole(name: str) -> bytes:
    content, most = bytearray(), _most_bytes(name)
    for block in _blocks(name):
        content += block
        if len(content) > most:
            what = f"is larger than {most:,} bytes, and one document or line"
            raise InputError(what, where=name, next_step="split it, or write it as JSON lines")
    return bytes(content)


def _lines(name: str) -> Iterator[tuple[str, bytes]]:
    """The lines of a file with their places; of a .json file the whole where it is one value."""
    if _plain(Path(name)).suffix.lower() == ".json":
        content = _whole(name)
        first = content.lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
        several = first == b"{" and b"\n{" in content.strip()  # JSON lines under another name
        yield from _places(content.split(b"\n"), name) if several else [(name, content)]
        return
    yield from _places(_split(name), name)


def _places(lines: Iterable[bytes], name: str) -> Iterator[tuple[str, bytes]]:
    """The lines that are not blank, with their places."""
    return ((f"{name}, line {number}", line) for number, line in enumerate(lines, 1) if line.strip())


def _split(name: str) -> Iterator[bytes]:
    rest, most = b"", _most_bytes(name)
    for block in _blocks(name):
        head, *lines = block.split(b"\n")
        rest += head
        if len(rest) > most:
            raise InputError(f"a line is larger than {most:,} bytes", where=name, next_step="split it")
        if lines:
            yield rest
            yield from lines[:-1]
            rest = lines[-1]
    yield rest


def _texts(text: str, text_field: str, where: str, undecodable: str) -> Iterator[str | None]:
    """The texts of a JSON value: of an object, or of each element of an array."""
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"is not JSON: {error}", where=where, next_step="write one object a line, or one array"
        ) from error
    several: list[Any] = value if isinstance(value, list) else [value]
    for number, one in enumerate(several, 1):
        at = f"{where}, element {number}" if isinstance(value, list) else where
        found = _field(one, text_field, at)
        try:
            found.encode()
        except UnicodeEncodeError as error:  # what JSON may spell
            if undecodable == "error":
                what = f"holds a lone surrogate at character {error.start}, which is no text"
                raise InputError(what, where=at, next_step="mend it, or pass --undecodable skip") from error
            yield None
        else:
            yield found


def _rows(name: str, suffix: str, text_field: str) -> Iterator[str]:
    """The rows of a table or of a data set of the hub, as `datasets` streams them."""
    try:
        datasets: Any = import_module("datasets")
    except ImportError as error:
        raise InputError("the package datasets is not installed", where=name, next_step=install("train")) from error
    datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False  # it reports to a server what kind of file is read
    if suffix:
        options: dict[str, Any] = {"data_files": glob.escape(os.path.abspath(name)), "split": "train"}
        path = "parquet" if suffix == ".parquet" else "csv"
        if path == "csv":  # a column of numbers or of "NA" is text
            features = {"dtype": str, "keep_default_na": False, "on_bad_lines": "error"}
            options |= {"sep": "\t" if suffix == ".tsv" else ",", **features}
    else:
        path, given = _hub_arguments(name)
        options = {"name": given.pop("config", None), "split": given.pop("split", "train"), **given}
    try:
        stream: Any = datasets.load_dataset(path, streaming=True, **options)
        for number, row in enumerate(stream, 1):
            yield _field(row, text_field, f"{name}, row {number}")
    except InputError:
        raise
    except Exception as error:  # whatever the library, its parsers and its transport raise
        what = f"cannot be read: {(str(error).strip().splitlines() or [type(error).__name__])[0][:300]}"
        step = "check that it is whole" if suffix else "check its name, split and the network"
        raise InputError(what, where=name, next_step=step) from error


def _hub_arguments(name: str) -> tuple[str, dict[str, str]]:
    path, _, query = name.removeprefix(HUB).partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    if not path:
        raise InputError("names no data set", where=name, next_step=f"write {HUB}cerebras/SlimPajama-627B")
    for option in options:
        if option not in HUB_OPTIONS:
            raise unknown_name("option", option, HUB_OPTIONS, where=name)
    return path, options


def _field(value: object, text_field: str, where: str) -> str:
    """The text of an object or row, or a string itself; empty for null."""
    if isinstance(value, Mapping):
        row: Mapping[str, object] = value
        if text_field not in row:
            names = [str(name) for name in row]
            step = f"name one with --text-field; there are: {', '.join(names[:20]) or 'none'}"
            nearest = nearest_names(text_field, names)
            raise InputError(f"has no field {text_field!r}", where=where, nearest=nearest, next_step=step)
        value = "" if row[text_field] is None else row[text_field]
    if not isinstance(value, str):
        raise InputError(f"holds a {type(value).__name__} in {text_field!r}, not text", where=where)
    return value
