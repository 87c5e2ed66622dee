"""From text to a packed corpus: documents of files and data sets, tokenised, split by document, written for training.

JSON lines are read here: the reader of `datasets` takes the keys and types of the first ten megabytes for those of the whole
file. All other tables, and the hub, are streamed by `datasets`.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
import sys
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module, resources
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import numpy as np
from numpy.typing import NDArray

from moescale.errors import InputError, install, nearest_names
from moescale.experiments import corpus as corpora
from moescale.experiments.corpus import CORPUS, SPLITS, Corpus, SplitName, open_corpus
from moescale.io import files
from moescale.io.files import explained, read_bytes, write_atomically
from moescale.io.frames import first_line
from moescale.io.json_text import parse_json
from moescale.io.locks import lock_beside, locked, staged_folder

Report = Callable[[str], None]
HUB = "hf:"
LINES = (".jsonl", ".ndjson")
BUILDERS = {".parquet": "parquet", ".csv": "csv", ".tsv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json"}
COMPRESSED = (".gz", ".zst", ".bz2", ".xz")  # of tables; `datasets` unpacks them
MOST_BYTES = 2**30  # of a text file, which is read whole, and of a line
BATCH_CHARACTERS, BATCH_DOCUMENTS = 2**22, 4096  # tokenised in one call
LONE_SURROGATE = re.compile("[\ud800-\udfff]")  # which JSON may spell, and UTF-8 cannot hold
REPORT_S = 5.0
TOKEN_CODES = {"uint16": 8, "int32": 4}  # of Megatron-LM

BYTES = "bytes"  # the name of the tokenizer whose tokens are bytes
END_OF_TEXT = "<|endoftext|>"
# What published tokenizers call the token between documents, commonest first; any other is named by the user.
EOS_NAMES = (END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[EOS]", "<｜end▁of▁sentence｜>")
TOKENIZER_BYTES = 2**28  # the largest published tokenizers have some tens of megabytes


def pack(
    sources: Sequence[str | Path],
    folder: str | Path,
    *,
    tokenizer: str | Path,
    eos: str | None = None,
    validation: float = 0.01,
    text_field: str = "text",
    max_tokens: int | None = None,
    seed: int = 0,
    report: Report = lambda line: None,
) -> Corpus:
    """Pack files, folders and data sets of the hub ("hf:NAME?split=..") into `folder`, and open the corpus.

    `tokenizer` is a tokenizers JSON file or "bytes", `eos` its token that ends a document. `validation` is the share of
    documents, chosen by a hash of their content and `seed`, that training never sees, copies included; `max_tokens` ends the
    pack at that many training tokens. The folder is whole or absent; a finished one is opened when it was packed from the
    same request. Raises InputError for all that is missing, malformed or empty, with its place.
    """
    if not 0 <= validation < 1:
        raise InputError(f"{validation:g} is not a share from 0 to below 1", where="--validation", nearest="0.01")
    target = Path(os.path.realpath(folder))
    if not os.path.isfile(target / CORPUS):  # a finished corpus may be on a disk that is only read
        files.check_folder(folder)
    names, made = find_sources(sources, target), read_tokenizer(tokenizer, eos=eos)
    request = {
        "sources": [[name, 0 if name.startswith(HUB) else os.path.getsize(name)] for name in names],
        "tokenizer_sha256": hashlib.sha256(made.json).hexdigest(), "eos": eos, "validation": validation, "text_field": text_field,
        "max_tokens": max_tokens, "seed": seed,
    }  # fmt: skip
    if not os.path.isfile(target / CORPUS):
        files.make_folder(target.parent)
        with locked(lock_beside(target)):
            if not os.path.isfile(target / CORPUS):  # as another process may have made it
                if target.exists() and any(target.iterdir()):
                    what, step = "is there already, and is no packed corpus", "choose another folder, or remove it"
                    raise InputError(what, where=os.fspath(folder), next_step=step)
                with staged_folder(target) as staged:
                    _write(staged, names, made, request, report)
    found: Any = corpora.read_description(Path(folder)).get("request") or {}
    if other := next((name for name, value in request.items() if name not in found or found[name] != value), None):
        before, now = (str(each.get(other))[:200] for each in (found, request))
        what = f"holds a corpus that was packed with other {other}: {before}, not {now}"
        step = "choose another folder, or delete this one and pack again"
        raise InputError(what, where=str(Path(folder)), next_step=step)
    return open_corpus(folder)


# Writing.


class SplitWriter:
    """Writes PREFIX.bin document by document, and Megatron-LM's PREFIX.idx in `finish`; 4 bytes of memory a document."""

    def __init__(self, prefix: Path, dtype: str) -> None:
        self.prefix, self.dtype = prefix, dtype
        self.lengths, self.tokens = array("i"), 0
        self.stream = prefix.with_suffix(".bin").open("xb", buffering=2**20)

    def add(self, document: NDArray[np.int64]) -> None:
        """Append the tokens of a document."""
        self.stream.write(document.astype(np.dtype(self.dtype).newbyteorder("<")).tobytes())
        self.lengths.append(len(document))
        self.tokens += len(document)

    def finish(self) -> None:
        """Have tokens and index on the disk; the index has one sequence a document.

        After its head: int32 length of each sequence, int64 offset of each in bytes of the data file, int64 document bounds.
        """
        self.stream.flush()
        os.fsync(self.stream.fileno())
        count, sizes = len(self.lengths), np.array(self.lengths, dtype="<i4")
        offsets = (np.cumsum(sizes, dtype="<i8") - sizes) * np.dtype(self.dtype).itemsize
        head = corpora.INDEX_HEAD.pack(b"MMIDIDX\0\0", 1, TOKEN_CODES[self.dtype], count, count + 1)
        parts = (sizes, offsets, np.arange(count + 1, dtype="<i8"))
        write_atomically(self.prefix.with_suffix(".idx"), head + b"".join(part.tobytes() for part in parts))


def _write(folder: Path, names: Sequence[str], made: Tokenizer, request: Mapping[str, Any], report: Report) -> None:
    """Fill a folder with the tokens of both splits, the tokenizer, and corpus.json; InputError when a split is empty."""
    dtype = "uint16" if made.vocab_size <= 2**16 else "int32"
    splits: dict[SplitName, SplitWriter] = {split: SplitWriter(folder / split, dtype) for split in SPLITS}
    try:
        read, skipped = _fill(splits, names, made, request, report)
        share, count = request["validation"], sum(len(writer.lengths) for writer in splits.values())
        if not count:
            raise InputError("hold no text", where="the sources", next_step="check them, and --text-field")
        if empty := next((split for split in (SPLITS if share else SPLITS[:1]) if not splits[split].lengths), None):
            raise InputError(
                f"none of {count} documents fell into the {empty} split with a validation share of {share:g}",
                nearest=f"--validation {min(5 / count, 0.5):.2g}",  # misses one time in 150 at most
                next_step="or --validation 0 for none, or give more documents",
            )
        for writer in splits.values():
            writer.finish()
    finally:
        for writer in splits.values():
            writer.stream.close()
    corpus = Corpus.model_construct(
        folder=folder, vocab_size=made.vocab_size, eos_id=made.eos_id, dtype=dtype,
        tokenizer_sha256=request["tokenizer_sha256"],
        n_train=splits["train"].tokens, n_validation=splits["validation"].tokens,
        n_train_documents=len(splits["train"].lengths), n_validation_documents=len(splits["validation"].lengths),
    )  # fmt: skip
    found = corpus.hashes()
    corpus = corpus.model_copy(update={"split_sha256": found, "sha256": corpus.hash_of(found)})
    content: dict[str, Any] = {"format": corpora.FORMAT, "version": corpora.VERSION}
    content |= corpus.model_dump(mode="json", exclude={"folder"})
    content["sources"] = [{"name": name, "documents": read[name], "skipped": skipped[name]} for name in names]
    write_atomically(folder / corpora.TOKENIZER, made.json)
    write_atomically(folder / CORPUS, json.dumps(content | {"request": request}, indent=1) + "\n")
    if skipped:
        report(f"{skipped.total():,} of {read.total():,} documents left out: empty, or not UTF-8")


def _fill(
    splits: Mapping[SplitName, SplitWriter], names: Sequence[str], made: Tokenizer, request: Mapping[str, Any],
    report: Report,
) -> tuple[Counter[str], Counter[str]]:  # fmt: skip
    """Tokenise documents until the sources end or there are tokens enough; how many were read, and left out, by source."""
    read, skipped = Counter[str](), Counter[str]()
    train, most = splits["train"], request["max_tokens"] or sys.maxsize
    salt = hashlib.sha256(str(request["seed"]).encode()).digest()[:16]
    started = reported = time.monotonic()
    for batch in _batches(names, request["text_field"]):
        for (name, text), tokens in zip(batch, made.encode([text for _, text in batch]), strict=True):
            if train.tokens >= most:
                return read, skipped
            read[name] += 1
            if not tokens.size:
                skipped[name] += 1
                continue
            # By a hash of the content, so that copies go the same way.
            drawn = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8, salt=salt).digest(), "little")
            document = np.append(tokens, made.eos_id)
            if drawn < request["validation"] * 2**64:
                splits["validation"].add(document)
            else:
                train.add(document[: most - train.tokens])
        if (now := time.monotonic()) - reported > REPORT_S:
            reported, rate = now, train.tokens / (now - started)
            report(f"{batch[-1][0]}: {train.tokens:,} training tokens, {rate:,.0f} a second")
    return read, skipped


def _batches(names: Sequence[str], text_field: str) -> Iterator[list[tuple[str, str]]]:
    """Documents with the name of their source, many at a time; a batch may go over several sources."""
    batch, size = list[tuple[str, str]](), 0
    for name in names:
        for text in documents(name, text_field):
            batch.append((name, text))
            size += len(text)
            if size >= BATCH_CHARACTERS or len(batch) >= BATCH_DOCUMENTS:
                yield batch
                batch, size = [], 0
    if batch:
        yield batch


# Sources.


def find_sources(given: Sequence[str | Path], output: Path | None = None) -> list[str]:
    """The files and hub data sets that are named, a folder's by path without hidden ones and `output`; InputError for no file."""
    found: list[str] = []
    for name in [os.fspath(each) for each in given]:
        if name.startswith(HUB) or os.path.isfile(name):
            found.append(name)
        elif os.path.isdir(name):
            for path in sorted(each for each in Path(name).rglob("*") if each.is_file()):
                hidden = any(part.startswith((".", "__pycache__")) for part in path.relative_to(name).parts)
                if not hidden and not (output is not None and path.resolve().is_relative_to(output)):
                    found.append(path.as_posix())
        else:
            step = f"a data set of the hub is {HUB}{name}" if name.count("/") == 1 and "." not in name else None
            nearest = files.nearest_file_names(name) if name else None
            raise InputError("no such file or folder", where=name or "sources", nearest=nearest, next_step=step)
    if not found:
        raise InputError("no file is given to read", where="sources", next_step="name a file, a folder or hf:NAME")
    return found


def documents(name: str, text_field: str = "text") -> Iterator[str]:
    """The documents of a source: its rows, lines of JSON or the file, empty where not UTF-8; InputError that names the place."""
    path = Path(name)
    suffix = (path.with_suffix("") if path.suffix.lower() in COMPRESSED else path).suffix.lower()
    if name.startswith(HUB) or (suffix in BUILDERS and path.suffix.lower() not in LINES):
        yield from _rows(name, suffix, text_field)
    elif suffix in LINES:
        with explained(files.read_error, name), path.open("rb") as stream:
            for number, line in enumerate(iter(partial(stream.readline, MOST_BYTES + 1), b""), 1):
                if len(line) > MOST_BYTES:
                    raise InputError(f"a line is larger than {MOST_BYTES:,} bytes", where=name, next_step="split it")
                if line.strip():
                    where, text = f"{name}, line {number}", _decoded(line)
                    row: object = text and parse_json(text, where=where, next_step="write one object a line")
                    field = _field(row, text_field, where)
                    yield "" if LONE_SURROGATE.search(field) else field
    else:
        yield _decoded(read_bytes(path, limit_bytes=MOST_BYTES))


def _decoded(content: bytes) -> str:
    """The text of a document, or of a line, which may begin with a byte order mark; empty where it is no UTF-8."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return ""


def _rows(name: str, suffix: str, text_field: str) -> Iterator[str]:
    """The rows of a table or of a data set of the hub, as `datasets` streams them."""
    try:
        datasets: Any = import_module("datasets")
    except ImportError as error:
        raise InputError("the package datasets is not installed", where=name, next_step=install("train")) from error
    datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False  # it reports to a server what kind of file is read
    if name.startswith(HUB):
        builder, _, query = name.removeprefix(HUB).partition("?")
        options: dict[str, Any] = {"split": "train", **dict(parse_qsl(query))}
        options["name"] = options.pop("config", None)
    else:
        builder = BUILDERS[suffix]
        options = {"data_files": glob.escape(os.path.abspath(name)), "split": "train"}
        if builder == "csv":  # a column of numbers or of "NA" is text
            options |= {"sep": "\t" if suffix == ".tsv" else ","}
            options |= {"converters": {text_field: str}, "keep_default_na": False}
    try:
        for number, row in enumerate(datasets.load_dataset(builder, streaming=True, **options), 1):
            yield _field(row, text_field, f"{name}, row {number}")
    except InputError:
        raise
    except Exception as error:  # whatever the library, its parsers and its transport raise
        what, step = f"cannot be read: {first_line(error)}", "check that it is whole; of the hub its name and split"
        raise InputError(what, where=name, next_step=step) from error


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


# Tokenizers.


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokenizer:
    """Text to tokens 0 .. vocab_size - 1, without special tokens; `eos_id` ends a document, `json` is the tokenizers file."""

    vocab_size: int
    eos_id: int
    json: bytes
    encode: Callable[[Sequence[str]], list[NDArray[np.int64]]]


def read_tokenizer(path: str | Path, *, eos: str | None = None) -> Tokenizer:
    """The tokenizer of a tokenizers JSON file, or byte tokens for the name "bytes" (256 bytes and an end of text).

    `eos` names the token that ends a document; by default the first of the usual names that it has. Raises InputError
    for a file that is missing or no tokenizer, for an `eos` that it lacks, and where the library is not installed.
    """
    where = os.fspath(path)
    if where == BYTES and eos in (None, END_OF_TEXT):
        return byte_tokenizer()
    content = byte_tokenizer().json if where == BYTES else read_bytes(path, limit_bytes=TOKENIZER_BYTES)
    try:
        library: Any = import_module("tokenizers")
    except ImportError as error:
        step = f"{install('train')}, or use the tokenizer `bytes`, which needs none"
        raise InputError("the package tokenizers is not installed", next_step=step) from error
    try:
        tokenizer: Any = library.Tokenizer.from_str(content.decode())
    except Exception as error:  # the library raises bare Exception for what is no tokenizer
        what, step = f"is not a tokenizers file: {str(error)[:200]}", "give a tokenizer.json of the tokenizers library"
        raise InputError(what, where=where, next_step=step) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True  # a document that spells out an end of text does not end there
    vocabulary: Mapping[str, int] = tokenizer.get_vocab(with_added_tokens=True)
    end = next((name for name in ((eos,) if eos is not None else EOS_NAMES) if name in vocabulary), None)
    if end is None:
        what = "has none of the usual names of a token that ends a document" if eos is None else f"has no token {eos!r}"
        nearest = None if eos is None else nearest_names(eos, vocabulary)
        raise InputError(what, where=where, nearest=nearest, next_step="name it with --eos")

    def encode(texts: Sequence[str]) -> list[NDArray[np.int64]]:
        found = tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(one.ids, dtype=np.int64) for one in found]

    size = max(vocabulary.values()) + 1
    return Tokenizer(vocab_size=size, eos_id=vocabulary[end], json=content, encode=encode)


def byte_tokenizer() -> Tokenizer:
    """Token b is byte b of the UTF-8 text, 256 is the end of text; its JSON says so to the tokenizers library."""
    # Each byte as the letter that byte-level tokenizers write for it (Radford et al. 2019, GPT-2).
    return Tokenizer(
        vocab_size=257,
        eos_id=256,
        json=(resources.files("moescale.catalogue") / "bytes.tokenizer").read_bytes(),
        encode=lambda texts: [np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int64) for text in texts],
    )
