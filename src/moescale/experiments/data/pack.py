"""From documents to a packed corpus: tokenised, split by document, written in shards; goes on after it was killed."""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from moescale.errors import InputError, unknown_name
from moescale.experiments.data import megatron
from moescale.experiments.data.corpus import (
    CORPUS,
    DESCRIPTION,
    FORMAT,
    HEADER,
    SPLITS,
    TOKENIZER,
    UNFINISHED,
    VERSION,
    Corpus,
    Description,
    SourceRead,
    Split,
    SplitName,
    open_corpus,
    read_description,
    verify,
    write_shard,
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
from moescale.io.files import make_folder, read_bytes, read_text, write_atomically
from moescale.io.locks import locked
from moescale.io.records import record

__all__ = ["Corpus", "open_corpus", "pack", "verify"]

Report = Callable[[str], None]
SHARD_TOKENS = 2**26  # at least so many a shard, but the last: what a killed pack may lose, and what it holds in memory
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
    shard_tokens: int

    def __post_init__(self) -> None:
        share = self.validation
        if not (math.isfinite(share) and 0 <= share < 1):
            raise InputError(f"{share:g} is not a share from 0 to below 1", where="--validation", nearest="0.01")
        for name, value in (("--max-tokens", self.max_tokens), ("shard_tokens", self.shard_tokens)):
            if value is not None and value < 1:
                raise InputError(f"{value} is not a whole number from 1", where=name, nearest="1")
        if self.undecodable not in UNDECODABLE:
            raise unknown_name("choice", self.undecodable, UNDECODABLE, where="--undecodable")

    def to_dict(self) -> dict[str, Any]:
        """As corpus.json keeps it, None included."""
        return {name: getattr(self, name) for name in self.__slots__}

    def read(self, source: Source, skip: int = 0) -> Iterator[Document]:
        """The documents of a source from number `skip` on."""
        return documents(source, text_field=self.text_field, skip=skip, undecodable=self.undecodable)

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
    shard_tokens: int = SHARD_TOKENS,
) -> Corpus:
    """Pack `sources` (as `find_sources` takes them) into `folder`, and open the corpus.

    `tokenizer` is a tokenizers JSON file or "bytes"; without it a byte-level BPE of `vocab_size` tokens is trained on a
    sample of the training documents. Megatron's tokens need neither: then `vocab_size` bounds them, and `eos`, the
    name of the token that ends a document, is its number. `validation` is the share of documents, chosen by a hash of their content
    and `seed`, that training never sees, copies included; `max_tokens` ends the pack at that many training tokens.
    What is not UTF-8 is an error, or left out with undecodable="skip".

    A finished folder is opened when it was packed from the same request, and refused otherwise. A killed pack goes on at its
    last shard and ends with the same corpus; with another request it starts over. One process packs a folder at a time, others wait.
    Raises InputError for all that is missing, malformed or empty, with its place.
    """
    tell = report or _silent
    found = find_sources(sources, exclude=exclude)
    where = _folder(folder)
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
        shard_tokens=shard_tokens,
    )
    with _alone(where, tell):
        if (where / CORPUS).is_file():
            _check_same(read_description(where).get("request"), request.to_dict(), where)
            with suppress(OSError):  # of a pack that was killed when it had just finished; or a disk that is only read
                (where / UNFINISHED).unlink(missing_ok=True)
            return open_corpus(where)
        for path in where.glob(".moescale-*.tmp"):  # what a kill left of a file that was being written
            path.unlink()
        packing = _resumed(where, found, tokenizer, request, tell) or _started(where, found, tokenizer, request, tell)
        packing.save()
        try:
            packing.fill(found, tell)
            packing.finish()
        except InputError:
            if not packing.about.splits["train"].shards:  # nothing that is worth to go on with
                _start_over(where)
            raise
    return open_corpus(where)


def _started(
    folder: Path, sources: Sequence[Source], tokenizer: str | os.PathLike[str] | None, request: Request, tell: Report
) -> _Packing:
    """A pack from its start."""
    _start_over(folder)
    made = _tokenizer(sources, tokenizer, request, tell)
    if made.json:
        write_atomically(folder / TOKENIZER, made.json, follow_links=False)
    about = Description(
        vocab_size=made.vocab_size,
        eos_id=made.eos_id,
        dtype="uint16" if made.vocab_size <= 2**16 else "uint32",
        tokenizer_sha256=made.sha256,
        splits={"train": Split(), "validation": Split()},
        sources=[],
    )
    return _Packing(folder, made, request, about)


def _resumed(
    folder: Path, sources: Sequence[Source], tokenizer: str | os.PathLike[str] | None, request: Request, tell: Report
) -> _Packing | None:
    """The pack of the same request that was killed here, where it can go on."""
    about = _unfinished(folder, request.to_dict())
    if about is None:
        return None
    tell(f"{folder}: going on after {about.splits['train'].tokens:,} training tokens")
    if about.tokenizer_sha256:
        return _Packing(
            folder, read_tokenizer(folder / TOKENIZER, eos=request.eos if tokenizer else None), request, about
        )
    return _Packing(folder, _without_tokenizer(sources, request), request, about)


class _Packing:
    """A corpus while it is written: full shards on disk, the rest in memory, and the place in the sources."""

    def __init__(self, folder: Path, tokenizer: Tokenizer, request: Request, about: Description) -> None:
        self.folder, self.tokenizer, self.request, self.about = folder, tokenizer, request, about
        self.buffers: dict[SplitName, list[Tokens]] = {split: [] for split in SPLITS}
        self.held = dict.fromkeys(SPLITS, 0)  # tokens in the buffers

    @property
    def n_train(self) -> int:
        return self.held["train"] + self.about.splits["train"].tokens

    @property
    def full(self) -> bool:
        return self.request.max_tokens is not None and self.n_train >= self.request.max_tokens

    def fill(self, sources: Sequence[Source], tell: Report) -> None:
        """Tokenise documents, batch by batch, from where the packing stands until the sources end or it is full."""
        started = told = time.monotonic()
        before = self.n_train
        for batch in self._batches(sources):
            tokens = iter(self.tokenizer.encode([document for _, document in batch if isinstance(document, str)]))
            for entry, document in batch:
                if self.full:
                    return
                self._take(entry, document, tokens)
            if self.held["train"] >= self.request.shard_tokens:
                self.write()
            if time.monotonic() - told > REPORT_S:
                told = time.monotonic()
                tell(
                    f"source {len(self.about.sources):,} of {len(sources):,}: {self.n_train:,} training tokens, "
                    f"{(self.n_train - before) / (told - started):,.0f} a second"
                )

    def _batches(self, sources: Sequence[Source]) -> Iterator[list[tuple[SourceRead, Document]]]:
        """Documents with the entry of their source, many at a time; a batch may go over several sources."""
        batch: list[tuple[SourceRead, Document]] = []
        size = 0
        read = self.about.sources
        for number in range(max(len(read) - 1, 0), len(sources)):
            source = sources[number]
            if number == len(read):
                read.append(SourceRead(name=source.name, bytes=source.n_bytes, sha256=file_sha256(source)))
            for document in self.request.read(source, read[number].documents):
                batch.append((read[number], document))
                size += len(document) if document is not None else 0
                if size >= BATCH_CHARACTERS or len(batch) >= BATCH_DOCUMENTS:
                    yield batch
                    if self.full:
                        return
                    batch, size = [], 0
        yield batch

    def _take(self, entry: SourceRead, document: Document, tokens: Iterator[Tokens]) -> None:
        """Add a document, of which `tokens` gives the next tokens where it is a text."""
        entry.documents += 1
        if isinstance(document, np.ndarray):
            encoded = _checked(document, self.tokenizer, entry.name)
            content = encoded.astype("<i8").tobytes()
        else:
            encoded = next(tokens) if document is not None else np.empty(0, np.int64)
            content = (document or "").encode()
        if not encoded.size:
            entry.skipped += 1
            return
        split = self.request.split(content)
        whole = np.append(encoded, self.tokenizer.eos_id)
        if split == "train" and self.request.max_tokens is not None:
            whole = whole[: self.request.max_tokens - self.n_train]
        self.buffers[split].append(whole.astype(self.about.dtype))
        self.held[split] += len(whole)
        self.about.splits[split].documents += 1

    def write(self) -> None:
        """Write what is held as shards, and the place that they reach."""
        for split in SPLITS:
            if self.held[split]:
                there = self.about.splits[split]
                name = f"{split}-{len(there.shards):05d}.tokens"
                shard = write_shard(self.folder, name, np.concatenate(self.buffers[split]), self.about)
                there.shards.append(shard)
                there.tokens += shard.tokens
                self.buffers[split], self.held[split] = [], 0
        self.save()

    def save(self) -> None:
        state = {"request": self.request.to_dict(), "n_train": self.n_train, **record(self.about)}
        write_atomically(self.folder / UNFINISHED, json.dumps(state), follow_links=False)

    def finish(self) -> None:
        """Write the rest and corpus.json; InputError when a split is empty."""
        request = self.request
        count = sum(split.documents for split in self.about.splits.values())
        if not count:
            names = ", ".join(name for name, _ in request.sources[:3])
            raise InputError("the sources hold no text", where=names, next_step="check them, and --text-field")
        needed: dict[SplitName, bool] = {"train": True, "validation": request.validation > 0}
        for split in SPLITS:
            if needed[split] and not self.about.splits[split].documents:
                raise InputError(
                    f"none of {count} documents fell into the {split} split with a validation share of {request.validation:g}",
                    where=str(self.folder),
                    nearest=f"--validation {min(5 / count, 0.5):.2g}",  # misses one time in 150 at most
                    next_step="or --validation 0 for none, or give more documents",
                )
        self.write()
        content = {"format": FORMAT, "version": VERSION, **record(self.about), "request": request.to_dict()}
        content["sha256"] = self.about.sha256()
        write_atomically(self.folder / CORPUS, json.dumps(content, indent=1) + "\n", follow_links=False)
        (self.folder / UNFINISHED).unlink(missing_ok=True)


def _checked(tokens: Tokens, tokenizer: Tokenizer, where: str) -> Tokens:
    """Tokens that were made elsewhere, less the one that ends the document; InputError where the vocabulary lacks one."""
    if tokens.size and not 0 <= int(tokens.min()) <= int(tokens.max()) < tokenizer.vocab_size:
        worst = int(tokens.max() if tokens.min() >= 0 else tokens.min())
        raise _beyond_vocabulary(
            worst, tokenizer.vocab_size, where, "give the tokenizer or the --vocab-size that made these tokens"
        )
    return tokens[:-1] if tokens.size and tokens[-1] == tokenizer.eos_id else tokens


def _beyond_vocabulary(
    token: int, size: int, where: str, next_step: str | None = None, nearest: str | None = None
) -> InputError:
    what = f"holds token {token}, and the vocabulary is 0 .. {size - 1}"
    return InputError(what, where=where, nearest=nearest, next_step=next_step)


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
        raise InputError("a tokenizer has its own vocabulary", where="--vocab-size", next_step="leave it out")
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
        raise _beyond_vocabulary(greatest, size, "--vocab-size", nearest=str(greatest + 1))
    return Tokenizer(vocab_size=size, eos_id=eos_id, encode=_no_text)


def _no_text(texts: Sequence[str]) -> list[Tokens]:
    assert not texts  # every source holds tokens
    return []


# The folder.


def _silent(line: str) -> None:
    """Reports nothing."""


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
        names = [dict(map(tuple, one)) for one in (before or [], now)]
        differing = sorted(name for name in names[0] | names[1] if names[0].get(name) != names[1].get(name))
        some = ", ".join(differing[:3]) + ", .." * (len(differing) > 3)
        what = "from other sources" + (f" ({some})" if differing else "")
    elif other == "tokenizer_sha256":
        what = f"with another tokenizer (SHA-256 {before or 'of a trained one'}, now {now or 'a trained one'})"
    raise InputError(
        f"holds a corpus that was packed {what}",
        where=str(folder),
        next_step="choose another folder, or delete this one and pack again",
    )


def _unfinished(folder: Path, request: Mapping[str, Any]) -> Description | None:
    """What a killed pack of the same request left, if it can go on from there."""
    try:
        state = json.loads(read_text(folder / UNFINISHED, limit_bytes=2**31))
        if state["request"] != dict(request) or type(state["n_train"]) is not int:
            return None
        about = DESCRIPTION.validate_python(state)
        itemsize = np.dtype(about.dtype).itemsize
        shards = [shard for split in SPLITS for shard in about.splits[split].shards]
        whole = all((folder / shard.file).stat().st_size == HEADER.size + shard.tokens * itemsize for shard in shards)
        tokenizer = (folder / TOKENIZER).read_bytes() if about.tokenizer_sha256 else b""
    except (InputError, OSError, ValidationError, ValueError, LookupError, TypeError, RecursionError):
        return None
    for split in about.splits.values():
        split.tokens = sum(shard.tokens for shard in split.shards)
    known = not tokenizer or about.tokenizer_sha256 == hashlib.sha256(tokenizer).hexdigest()
    return about if whole and known else None


def _start_over(folder: Path) -> None:
    """Delete what an unfinished pack left."""
    for split in SPLITS:
        for path in folder.glob(f"{split}-[0-9]*.tokens"):
            path.unlink()
    (folder / UNFINISHED).unlink(missing_ok=True)


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


def _folder(folder: str | os.PathLike[str]) -> Path:
    """The folder, made; one with a finished corpus need not be writable."""
    if os.path.isfile(Path(folder) / CORPUS):  # unlike Path.is_file, never an error
        return Path(folder)
    return make_folder(folder)
