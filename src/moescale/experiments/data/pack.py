"""From documents to a packed corpus: tokenised, split by document, written in Megatron's indexed format."""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from moescale.errors import InputError, unknown_name
from moescale.experiments.data import megatron
from moescale.experiments.data.corpus import (
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
    verify,
)
from moescale.experiments.data.sources import MEGATRON, Document, Source, documents, file_sha256, find_sources
from moescale.experiments.data.tokens import (
    BYTES,
    TOKENIZER_LIMIT_BYTES,
    Tokenizer,
    Tokens,
    byte_tokenizer,
    read_tokenizer,
    train_tokenizer,
)
from moescale.io.files import make_folder, read_bytes, write_atomically
from moescale.io.locks import locked
from moescale.io.records import record

__all__ = ["Corpus", "open_corpus", "pack", "verify"]

Report = Callable[[str], None]
Splits = Mapping[SplitName, megatron.IndexedWriter]
SAMPLE_CHARACTERS = 2**26  # that a tokenizer is trained on
BATCH_CHARACTERS = 2**22  # tokenised in one call
BATCH_DOCUMENTS = 4096
REPORT_S = 5.0
UNDECODABLE = ("error", "skip")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a pack is asked for: a finished corpus is opened for the same request only."""

    sources: list[list[Any]]  # name and size of each
    tokenizer_sha256: str  # empty where one is trained, or none is needed
    vocab_size: int | None
    eos: str | None
    validation: float
    text_field: str
    max_tokens: int | None
    seed: int
    undecodable: str

    def __post_init__(self) -> None:
        share = self.validation
        if not (math.isfinite(share) and 0 <= share < 1):
            raise InputError(f"{share:g} is not a share from 0 to below 1", where="--validation", nearest="0.01")
        if self.max_tokens is not None and self.max_tokens < 1:
            what = f"{self.max_tokens} is not a whole number from 1"
            raise InputError(what, where="--max-tokens", nearest="1")
        if self.undecodable not in UNDECODABLE:
            raise unknown_name("choice", self.undecodable, UNDECODABLE, where="--undecodable")

    def to_dict(self) -> dict[str, Any]:
        """As corpus.json keeps it, None included."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

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

    `tokenizer` is a tokenizers JSON file or "bytes"; without it a byte-level BPE of `vocab_size` tokens is trained on a
    sample of the training documents. Megatron's tokens need neither: then `vocab_size` bounds them, and `eos`, the
    name of the token that ends a document, is its number. `validation` is the share of documents, chosen by a hash of their content
    and `seed`, that training never sees, copies included; `max_tokens` ends the pack at that many training tokens.
    What is not UTF-8 is an error, or left out with undecodable="skip".

    A finished folder is opened when it was packed from the same request, and refused otherwise; what a killed pack left
    is packed anew, to the same corpus. One process packs a folder at a time, others wait.
    Raises InputError for all that is missing, malformed or empty, with its place.
    """
    tell: Report = report or (lambda line: None)
    found = find_sources(sources, exclude=exclude)
    where = Path(folder) if os.path.isfile(Path(folder) / CORPUS) else make_folder(folder)  # the first may be read-only
    found = _outside(found, where)
    request = Request(
        sources=[[source.name, source.n_bytes] for source in found],
        tokenizer_sha256=_tokenizer_sha256(tokenizer),
        vocab_size=vocab_size,
        eos=eos,
        validation=validation,
        text_field=text_field,
        max_tokens=max_tokens,
        seed=seed,
        undecodable=undecodable,
    )
    with _alone(where, tell):
        if (where / CORPUS).is_file():
            _check_same(read_description(where).get("request"), request.to_dict(), where)
            with suppress(OSError):  # of a pack that was killed when it had just finished; or a disk that is only read
                (where / UNFINISHED).unlink(missing_ok=True)
            return open_corpus(where)
        _begin(where)
        try:
            made = _tokenizer(found, tokenizer, request, tell)
            if made.json:
                write_atomically(where / TOKENIZER, made.json, follow_links=False)
            _write(where, found, made, request, tell)
        except BaseException:
            _delete_unfinished(where)
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


def _write(folder: Path, sources: Sequence[Source], made: Tokenizer, request: Request, tell: Report) -> None:
    """Write the tokens of both splits, and corpus.json; InputError when a split is empty."""
    if made.vocab_size > 2**31:
        what = f"a vocabulary of {made.vocab_size:,} does not fit in Megatron's 32-bit tokens"
        raise InputError(what, where="--vocab-size", nearest=str(2**31))
    dtype = "uint16" if made.vocab_size <= 2**16 else "int32"
    with ExitStack() as stack:
        splits: Splits = {split: megatron.IndexedWriter(folder / split, dtype) for split in SPLITS}
        for writer in splits.values():
            stack.callback(writer.close)
        read = _fill(splits, sources, made, request, tell)
        _check_filled(splits, request, folder)
        for writer in splits.values():
            writer.finish()
    corpus = Corpus(
        folder=folder,
        vocab_size=made.vocab_size,
        eos_id=made.eos_id,
        dtype=dtype,
        tokenizer_sha256=made.sha256,
        sha256="",
        n_train=splits["train"].tokens,
        n_validation=splits["validation"].tokens,
        n_train_documents=len(splits["train"].lengths),
        n_validation_documents=len(splits["validation"].lengths),
        split_sha256={},
    )
    split_sha256, whole = corpus.hashes()
    corpus = replace(corpus, split_sha256=split_sha256, sha256=whole)
    content = {"format": FORMAT, "version": VERSION, **record(corpus, without=("folder",))}
    content |= {"sources": [record(each) for each in read], "request": request.to_dict()}
    write_atomically(folder / CORPUS, json.dumps(content, indent=1) + "\n", follow_links=False)


def _fill(
    splits: Splits, sources: Sequence[Source], made: Tokenizer, request: Request, tell: Report
) -> list[SourceRead]:
    """Tokenise documents, batch by batch, until the sources end or there are tokens enough; returns what was read."""
    read: list[SourceRead] = []
    train, most = splits["train"], request.max_tokens or sys.maxsize
    started = told = time.monotonic()
    for batch in _batches(sources, request, read):
        tokens = iter(made.encode([document for _, document in batch if isinstance(document, str)]))
        for source, document in batch:
            if train.tokens >= most:
                return read
            source.documents += 1
            if isinstance(document, np.ndarray):
                encoded = _checked(document, made, source.name)
                content = encoded.astype("<i8").tobytes()
            else:
                encoded = next(tokens) if document is not None else np.empty(0, np.int64)
                content = (document or "").encode()
            if not encoded.size:
                source.skipped += 1
                continue
            split = request.split(content)
            whole = np.append(encoded, made.eos_id)
            splits[split].add(whole[: most - train.tokens] if split == "train" else whole)
        if time.monotonic() - told > REPORT_S:
            told = time.monotonic()
            rate = train.tokens / (told - started)
            tell(f"source {len(read):,} of {len(sources):,}: {train.tokens:,} training tokens, {rate:,.0f} a second")
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


def _checked(tokens: Tokens, tokenizer: Tokenizer, where: str) -> Tokens:
    """Tokens that were made elsewhere, less the one that ends the document; InputError where the vocabulary lacks one."""
    if tokens.size and not 0 <= int(tokens.min()) <= int(tokens.max()) < tokenizer.vocab_size:
        worst = int(tokens.max() if tokens.min() >= 0 else tokens.min())
        what = f"holds token {worst}, and the vocabulary is 0 .. {tokenizer.vocab_size - 1}"
        step = "give the tokenizer or the --vocab-size that made these tokens"
        raise InputError(what, where=where, next_step=step)
    return tokens[:-1] if tokens.size and tokens[-1] == tokenizer.eos_id else tokens


# Tokenizers.


def _tokenizer_sha256(tokenizer: str | os.PathLike[str] | None) -> str:
    """The hash of the tokenizer that is asked for; empty when one is to be trained, or none is needed."""
    if tokenizer is None:
        return ""
    if os.fspath(tokenizer) == BYTES:
        return byte_tokenizer().sha256
    return hashlib.sha256(read_bytes(tokenizer, limit_bytes=TOKENIZER_LIMIT_BYTES)).hexdigest()


def _tokenizer(
    sources: Sequence[Source], tokenizer: str | os.PathLike[str] | None, request: Request, tell: Report
) -> Tokenizer:
    vocab_size, eos = request.vocab_size, request.eos
    if tokenizer is not None and vocab_size is not None:
        raise InputError("the tokenizer sets the vocabulary", where="--vocab-size", next_step="leave it out")
    if tokenizer is not None:
        return read_tokenizer(tokenizer, eos=eos)
    if all(source.kind == "megatron" for source in sources):
        return _without_tokenizer(sources, request)
    if vocab_size is None:
        raise InputError(
            "no tokenizer is given",
            where="--tokenizer",
            next_step="give a tokenizer.json, `bytes`, or --vocab-size for one that is trained on the text",
        )
    if any(source.kind == "megatron" for source in sources):
        what = "Megatron's tokens come from a tokenizer that exists"
        raise InputError(what, where="--vocab-size", next_step="give it with --tokenizer")
    if eos is not None:
        raise InputError("goes with a tokenizer that exists", where="--eos", next_step="leave it out")
    tell(f"training a tokenizer of {vocab_size} tokens")
    return train_tokenizer(_sample(sources, request), vocab_size)


def _sample(sources: Sequence[Source], request: Request) -> Iterator[str]:
    """Training documents from the head of every source, to each its part of the sample by its size on disk."""
    known = sum(source.n_bytes for source in sources)
    usual = known / len(sources) or 1.0
    sizes = [source.n_bytes or usual for source in sources]
    for source, size in zip(sources, sizes, strict=True):
        left = SAMPLE_CHARACTERS * size / sum(sizes)
        for document in request.read(source):
            if left <= 0:
                break
            if isinstance(document, str) and request.split(document.encode()) == "train":
                left -= len(document)
                yield document


def _without_tokenizer(sources: Sequence[Source], request: Request) -> Tokenizer:
    """What is known of tokens that came without a tokenizer: their range, and the one that ends every document."""
    data = [megatron.open_indexed(source.name.removeprefix(MEGATRON)) for source in sources]
    eos, vocab_size = request.eos, request.vocab_size
    if eos is not None:
        if not (eos.isascii() and eos.isdigit()):
            raise InputError(f"{eos!r} is not the number of a token", where="--eos", next_step="or give --tokenizer")
        eos_id = int(eos)
    else:
        ends = {megatron.common_end(each) for each in data if len(each.starts)}
        eos_id = ends.pop() if len(ends) == 1 else None
        if eos_id is None:
            raise InputError(
                "its documents do not all end with one token, so that none is known to end a document",
                where=sources[0].name,
                next_step="give its number with --eos, or the tokenizer with --tokenizer",
            )
    greatest = max(eos_id, *(megatron.token_range(each)[1] for each in data))
    size = vocab_size if vocab_size is not None else greatest + 1
    if greatest >= size:
        what = f"holds token {greatest}, and the vocabulary is 0 .. {size - 1}"
        raise InputError(what, where="--vocab-size", nearest=str(greatest + 1))
    return Tokenizer(vocab_size=size, eos_id=eos_id, encode=_no_text)


def _no_text(texts: Sequence[str]) -> list[Tokens]:
    assert not texts  # every source holds tokens
    return []


# The folder.


def _outside(sources: Sequence[Source], folder: Path) -> tuple[Source, ...]:
    """The sources less the files of the corpus itself, where it lies within a folder of sources."""
    within = folder.resolve()
    kept = tuple(
        source
        for source in sources
        if source.kind in ("hub", "megatron") or not Path(source.name).resolve().is_relative_to(within)
    )
    if not kept:
        what = "is the only source itself"
        raise InputError(what, where=str(folder), next_step="choose another folder for the corpus")
    return kept


def _check_same(there: object, asked: Mapping[str, Any], folder: Path) -> None:
    """Raise InputError unless a finished corpus was packed from the same request."""
    stated: Mapping[str, Any] = there if isinstance(there, dict) else {}
    other = next((name for name, value in asked.items() if stated.get(name) != value), None)
    if other is None:
        return
    before, now = stated.get(other), asked[other]
    what = f"with {other} = {before}, not {now}"
    if other == "sources":
        some = sorted({str(name) for name, _ in set(map(tuple, before or [])) ^ set(map(tuple, now))})
        what = f"from other sources ({', '.join(some[:3])}{', ..' * (len(some) > 3)})"
    elif other == "tokenizer_sha256":
        what = f"with another tokenizer (SHA-256 {before or 'of a trained one'}, now {now or 'a trained one'})"
    step = "choose another folder, or delete this one and pack again"
    raise InputError(f"holds a corpus that was packed {what}", where=str(folder), next_step=step)


def _files(folder: Path) -> list[Path]:
    return [folder / f"{split}{suffix}" for split in SPLITS for suffix in (".bin", ".idx")]


def _begin(folder: Path) -> None:
    """Mark the folder as one where a pack is under way, after deleting what a killed one left.

    Raises InputError where files of such names are there that are not of a pack.
    """
    if not (folder / UNFINISHED).is_file():
        there = next((path for path in _files(folder) if os.path.lexists(path)), None)
        if there is not None:
            what = "is in the way, and belongs to no unfinished pack"
            raise InputError(what, where=str(there), next_step="choose another folder, or remove it")
    write_atomically(folder / UNFINISHED, "{}", follow_links=False)
    for path in (*_files(folder), *folder.glob(".moescale-*.tmp")):
        path.unlink(missing_ok=True)


def _delete_unfinished(folder: Path) -> None:
    """Delete what a pack that failed has written."""
    for path in (folder / CORPUS, *_files(folder), folder / UNFINISHED):
        path.unlink(missing_ok=True)


@contextmanager
def _alone(folder: Path, tell: Report) -> Generator[None]:
    """Holds the folder against other packs, as long as this process lives."""
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(folder / ".lock", tell=tell))
        except InputError:
            if not (folder / CORPUS).is_file():
                raise
            # A finished corpus on a disk that is only read.
        yield
