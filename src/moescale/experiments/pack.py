"""From documents to a packed corpus: tokenised, split by document, written in Megatron's indexed format."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from moescale.errors import InputError, unknown_name
from moescale.experiments import megatron
from moescale.experiments.corpus import (
    CORPUS,
    FORMAT,
    SPLITS,
    TOKENIZER,
    UNFINISHED,
    VERSION,
    Corpus,
    SplitName,
    open_corpus,
    read_description,
)
from moescale.experiments.sources import Document, Source, documents, file_sha256, find_sources
from moescale.experiments.tokens import BYTES, LIMIT_BYTES, Tokenizer, byte_tokenizer, read_tokenizer
from moescale.io.files import make_folder, read_bytes, write_atomically
from moescale.io.locks import locked
from moescale.io.records import record

Report = Callable[[str], None]
Splits = Mapping[SplitName, megatron.IndexedWriter]
BATCH_CHARACTERS, BATCH_DOCUMENTS = 2**22, 4096  # tokenised in one call
REPORT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a pack is to hold: a finished corpus is opened for the same request only."""

    sources: list[list[Any]]  # name and size of each
    tokenizer_sha256: str  # empty where none is needed
    vocab_size: int | None
    eos: str | None
    validation: float
    text_field: str
    max_tokens: int | None
    seed: int
    undecodable: str

    def read(self, source: Source) -> Iterator[Document]:
        """The documents of a source."""
        return documents(source, text_field=self.text_field, undecodable=self.undecodable)

    def split(self, content: bytes) -> SplitName:
        """The split of a document: a hash of its content, so that copies of it go the same way."""
        salt = hashlib.sha256(str(self.seed).encode()).digest()[:16]
        digest = hashlib.blake2b(content, digest_size=8, salt=salt).digest()
        return "validation" if int.from_bytes(digest, "little") < self.validation * 2**64 else "train"


def pack(
    sources: Sequence[str | os.PathLike[str]],
    folder: str | os.PathLike[str],
    *,
    tokenizer: str | os.PathLike[str] | None = None,
    vocab_size: int | None = None,
    validation: float = 0.01,
    text_field: str = "text",
    max_tokens: int | None = None,
    seed: int = 0,
    report: Report | None = None,
    exclude: Sequence[str] = (),
    eos: str | None = None,
    undecodable: str = "error",
) -> Corpus:
    """Pack `sources` (as `find_sources` takes them) into `folder`, and open the corpus.

    `tokenizer` is a tokenizers JSON file or "bytes". Megatron's tokens need none: then `vocab_size` bounds them, and `eos`, the
    name of the token that ends a document, is its number. `validation` is the share of documents, chosen by a hash of their
    content and `seed`, that training never sees, copies included; `max_tokens` ends the pack at that many training tokens.

    A finished folder is opened when it was packed from the same request, and refused otherwise; what a killed pack left
    is packed anew, to the same corpus. One process packs a folder at a time, others wait.
    Raises InputError for all that is missing, malformed or empty, with its place.
    """
    if not 0 <= validation < 1:
        raise InputError(f"{validation:g} is not a share from 0 to below 1", where="--validation", nearest="0.01")
    if max_tokens is not None and max_tokens < 1:
        raise InputError(f"{max_tokens} is not a whole number from 1", where="--max-tokens", nearest="1")
    if undecodable not in ("error", "skip"):
        raise unknown_name("choice", undecodable, ("error", "skip"), where="--undecodable")
    given = find_sources(sources, exclude=exclude)
    where = Path(folder) if os.path.isfile(Path(folder) / CORPUS) else make_folder(folder)  # the first may be read-only
    within = where.resolve()
    found = [each for each in given if not each.is_file or not Path(each.name).resolve().is_relative_to(within)]
    if not found:
        step = "choose another folder for the corpus"
        raise InputError("is the only source itself", where=str(folder), next_step=step)
    request = Request(
        sources=[[source.name, source.n_bytes] for source in found], tokenizer_sha256=_tokenizer_sha256(tokenizer),
        vocab_size=vocab_size, eos=eos, validation=validation, text_field=text_field, max_tokens=max_tokens, seed=seed,
        undecodable=undecodable,
    )  # fmt: skip
    if (where / CORPUS).is_file():  # whole, and perhaps on a disk that is only read
        return _same(where, request)
    with locked(where / ".lock"):
        if (where / CORPUS).is_file():  # another process has made it
            return _same(where, request)
        _begin(where)
        try:
            made = _tokenizer(found, tokenizer, request)
            if made.json:
                write_atomically(where / TOKENIZER, made.json, follow_links=False)
            _write(where, found, made, request, report)
        except BaseException:
            for path in (where / CORPUS, *_files(where), where / UNFINISHED):
                path.unlink(missing_ok=True)
            raise
        (where / UNFINISHED).unlink()
    return open_corpus(where)


@dataclass(slots=True, kw_only=True)
class SourceRead:
    """What corpus.json says of a source."""

    name: str
    bytes: int
    sha256: str  # of the file, empty for a data set of the hub
    documents: int = 0
    skipped: int = 0


def _write(folder: Path, sources: Sequence[Source], made: Tokenizer, request: Request, report: Report | None) -> None:
    """Write the tokens of both splits, and corpus.json; InputError when a split is empty."""
    dtype = "uint16" if made.vocab_size <= 2**16 else "int32"
    with ExitStack() as stack:
        splits: Splits = {split: megatron.IndexedWriter(folder / split, dtype) for split in SPLITS}
        for writer in splits.values():
            stack.callback(writer.close)
        read = _fill(splits, sources, made, request, report)
        _check_filled(splits, request, folder)
        for writer in splits.values():
            writer.finish()
    corpus = Corpus(
        folder=folder, vocab_size=made.vocab_size, eos_id=made.eos_id, dtype=dtype, tokenizer_sha256=made.sha256, sha256="",
        n_train=splits["train"].tokens, n_validation=splits["validation"].tokens,
        n_train_documents=len(splits["train"].lengths), n_validation_documents=len(splits["validation"].lengths),
        split_sha256={},
    )  # fmt: skip
    split_sha256, whole = corpus.hashes()
    corpus = replace(corpus, split_sha256=split_sha256, sha256=whole)
    content = {"format": FORMAT, "version": VERSION, **record(corpus, without=("folder",))}
    content |= {"sources": [record(each) for each in read], "request": _plain(request)}
    write_atomically(folder / CORPUS, json.dumps(content, indent=1) + "\n", follow_links=False)


def _fill(
    splits: Splits, sources: Sequence[Source], made: Tokenizer, request: Request, report: Report | None
) -> list[SourceRead]:
    """Tokenise documents, batch by batch, until the sources end or there are tokens enough; returns what was read."""
    read: list[SourceRead] = []
    train, most = splits["train"], request.max_tokens or sys.maxsize
    started = reported = time.monotonic()
    for batch in _batches(sources, request, read):
        tokens = iter(made.encode([document for _, document in batch if isinstance(document, str)]))
        for source, document in batch:
            if train.tokens >= most:
                return read
            source.documents += 1
            if isinstance(document, np.ndarray):
                encoded = document[:-1] if document.size and document[-1] == made.eos_id else document
                content = encoded.astype("<i8").tobytes()
                if encoded.size and not 0 <= int(encoded.min()) <= int(encoded.max()) < made.vocab_size:
                    what = f"holds token {int(encoded.max())}, and the vocabulary is 0 .. {made.vocab_size - 1}"
                    step = "give the tokenizer or the --vocab-size that made these tokens"
                    raise InputError(what, where=source.name, next_step=step)
            else:
                encoded = next(tokens) if document is not None else np.empty(0, np.int64)
                content = (document or "").encode()
            if not encoded.size:
                source.skipped += 1
                continue
            split, whole = request.split(content), np.append(encoded, made.eos_id)
            splits[split].add(whole[: most - train.tokens] if split == "train" else whole)
        now = time.monotonic()
        if report is not None and now - reported > REPORT_S:
            reported, rate = now, train.tokens / (now - started)
            report(f"source {len(read):,} of {len(sources):,}: {train.tokens:,} training tokens, {rate:,.0f} a second")
    return read


def _batches(
    sources: Sequence[Source], request: Request, read: list[SourceRead]
) -> Iterator[list[tuple[SourceRead, Document]]]:
    """Documents with the entry of their source, many at a time; a batch may go over several sources."""
    batch: list[tuple[SourceRead, Document]] = []
    size = 0
    for source in sources:
        read.append(SourceRead(name=source.name, bytes=source.n_bytes, sha256=file_sha256(source)))
        for document in request.read(source):
            batch.append((read[-1], document))
            size += len(document) if document is not None else 0
            if size >= BATCH_CHARACTERS or len(batch) >= BATCH_DOCUMENTS:
                yield batch
                batch, size = [], 0
    yield batch


def _check_filled(splits: Splits, request: Request, folder: Path) -> None:
    """Raise InputError where a split that is wanted has no documents."""
    count = sum(len(writer.lengths) for writer in splits.values())
    if not count:
        names = ", ".join(name for name, _ in request.sources[:3])
        raise InputError("the sources hold no text", where=names, next_step="check them, and --text-field")
    for split in SPLITS if request.validation else SPLITS[:1]:
        if not splits[split].lengths:
            raise InputError(
                f"none of {count} documents fell into the {split} split with a validation share of {request.validation:g}",
                where=str(folder),
                nearest=f"--validation {min(5 / count, 0.5):.2g}",  # misses one time in 150 at most
                next_step="or --validation 0 for none, or give more documents",
            )


def _tokenizer_sha256(tokenizer: str | os.PathLike[str] | None) -> str:
    """The hash of the given tokenizer; empty when none is needed."""
    if tokenizer is None:
        return ""
    if os.fspath(tokenizer) == BYTES:
        return byte_tokenizer().sha256
    return hashlib.sha256(read_bytes(tokenizer, limit_bytes=LIMIT_BYTES)).hexdigest()


def _tokenizer(sources: Sequence[Source], tokenizer: str | os.PathLike[str] | None, request: Request) -> Tokenizer:
    vocab_size, tokens = request.vocab_size, [each for source in sources if (each := source.megatron) is not None]
    if tokenizer is not None:
        if vocab_size is not None:
            raise InputError("the tokenizer sets the vocabulary", where="--vocab-size", next_step="leave it out")
        return read_tokenizer(tokenizer, eos=request.eos)
    if len(tokens) == len(sources):
        return _without_tokenizer(tokens, request)
    step = "give a tokenizer.json (the library tokenizers trains one), or `bytes`"
    raise InputError("no tokenizer is given", where="--tokenizer", next_step=step)


def _without_tokenizer(data: Sequence[megatron.Indexed], request: Request) -> Tokenizer:
    """What is known of tokens that came without a tokenizer: their range, and the one that ends every document."""
    ends = {megatron.common_end(each) for each in data if len(each.starts)}
    eos_id = ends.pop() if len(ends) == 1 else None
    if request.eos is not None:
        eos_id = int(request.eos) if request.eos.isascii() and request.eos.isdigit() else None
    if eos_id is None:
        what = "no token is known to end a document: not all end with one, or --eos is not a number"
        raise InputError(what, where="--eos", next_step="give the token's number, or the tokenizer with --tokenizer")
    greatest = max(eos_id, *(int(each.tokens().max(initial=0)) for each in data))
    size = request.vocab_size if request.vocab_size is not None else greatest + 1
    if greatest >= size or size > 2**31:
        what = f"holds token {greatest}, and the vocabulary is 0 .. {min(size, 2**31) - 1}"
        raise InputError(what, where="--vocab-size", nearest=str(greatest + 1))
    return Tokenizer(vocab_size=size, eos_id=eos_id, encode=lambda texts: [])


def _plain(request: Request) -> dict[str, Any]:
    """As corpus.json keeps it, None included."""
    return {field.name: getattr(request, field.name) for field in fields(request)}


def _same(folder: Path, request: Request) -> Corpus:
    """The finished corpus of a folder; InputError unless it was packed from the same request."""
    there: Any = read_description(folder).get("request")
    stated: Mapping[str, Any] = there if isinstance(there, dict) else {}
    for name, value in _plain(request).items():
        if stated.get(name) != value:
            before, difference = stated.get(name), f"{str(stated.get(name))[:80]}, not {str(value)[:80]}"
            if isinstance(before, list) and isinstance(value, list):
                changed = {str(each[0]) for each in [*before, *value] if each not in before or each not in value}
                difference = ", ".join(sorted(changed)[:3])
            what = f"holds a corpus that was packed with other {name}: {difference}"
            step = "choose another folder, or delete this one and pack again"
            raise InputError(what, where=str(folder), next_step=step)
    with suppress(OSError):  # of a pack that was killed when it had just finished
        (folder / UNFINISHED).unlink(missing_ok=True)
    return open_corpus(folder)


def _files(folder: Path) -> list[Path]:
    return [folder / f"{split}{suffix}" for split in SPLITS for suffix in (".bin", ".idx")]


def _begin(folder: Path) -> None:
    """Mark the folder as one where a pack is under way, after deleting what a killed one left.

    Raises InputError where files of such names are there that are not of a pack.
    """
    if not (folder / UNFINISHED).is_file():
        there = next((path for path in _files(folder) if os.path.lexists(path)), None)
        if there is not None:
            step = "choose another folder, or remove it"
            raise InputError("is in the way, and belongs to no unfinished pack", where=str(there), next_step=step)
    write_atomically(folder / UNFINISHED, "{}", follow_links=False)
    for path in (*_files(folder), *folder.glob(".moescale-*.tmp")):
        path.unlink(missing_ok=True)
