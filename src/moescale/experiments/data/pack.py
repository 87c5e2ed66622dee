"""From documents to a packed corpus: tokenised, split by document, written in shards; goes on after it was killed."""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from moescale.errors import InputError, unknown_name
from moescale.experiments.data import megatron
from moescale.experiments.data.corpus import (
    CORPUS,
    DTYPES,
    FORMAT,
    HEADER,
    SPLITS,
    TOKENIZER,
    UNFINISHED,
    VERSION,
    Corpus,
    Sequences,
    Shard,
    TorchSequences,
    corpus_sha256,
    open_corpus,
    read_description,
    read_shard,
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

__all__ = ["Corpus", "Sequences", "Shard", "TorchSequences", "open_corpus", "pack", "verify"]

Report = Callable[[str], None]
SHARD_TOKENS = 2**26  # at least so many a shard, but the last: what a killed pack may lose, and what it holds in memory
SAMPLE_CHARACTERS = 2**26  # that a tokenizer is trained on
BATCH_CHARACTERS = 2**22  # tokenised in one call
BATCH_DOCUMENTS = 4096
REPORT_S = 5.0
UNDECODABLE = ("error", "skip")


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
    _check(validation, max_tokens, undecodable, shard_tokens)
    tell = report or _silent
    found = find_sources(sources, exclude=exclude)
    where = _folder(folder)
    found = _outside(found, where)
    request: dict[str, Any] = {
        "sources": [[source.name, source.n_bytes] for source in found],
        "tokenizer_sha256": _tokenizer_sha256(tokenizer),
        "vocab_size": vocab_size,
        "eos": eos,
        "validation": validation,
        "text_field": text_field,
        "max_tokens": max_tokens,
        "seed": seed,
        "undecodable": undecodable,
        "shard_tokens": shard_tokens,
    }

    def read(source: Source, skip: int = 0) -> Iterator[Document]:
        return documents(source, text_field=text_field, skip=skip, undecodable=undecodable)

    with _alone(where, tell):
        if (where / CORPUS).is_file():
            _same_request(read_description(where).get("request"), request, where)
            with suppress(OSError):  # of a pack that was killed when it had just finished; or a disk that is only read
                (where / UNFINISHED).unlink(missing_ok=True)
            return open_corpus(where)
        for path in where.glob(".moescale-*.tmp"):  # what a kill left of a file that was being written
            path.unlink()
        state = _unfinished(where, request)
        if state is None:
            _start_over(where)
            made = _tokenizer(found, tokenizer, vocab_size, eos, read, validation, seed, tell)
            if made.json:
                write_atomically(where / TOKENIZER, made.json, follow_links=False)
            packing = _Packing(where, made, request)
        else:
            tell(f"{where}: going on after {state['n_train']:,} training tokens")
            if state["tokenizer_sha256"]:
                made = read_tokenizer(where / TOKENIZER, eos=eos if tokenizer else None)
            else:
                made = _without_tokenizer(found, vocab_size, eos)
            packing = _Packing(where, made, request, state)
        packing.save()
        try:
            _fill(packing, found, read, tell)
            packing.finish()
        except InputError:
            if not packing.shards["train"]:  # nothing that is worth to go on with
                _start_over(where)
            raise
    return open_corpus(where)


class _Packing:
    """A corpus while it is written: full shards on disk, the rest in memory, and the place in the sources."""

    def __init__(
        self, folder: Path, tokenizer: Tokenizer, request: dict[str, Any], state: Mapping[str, Any] | None = None
    ) -> None:
        self.folder, self.tokenizer, self.request = folder, tokenizer, request
        self.dtype = "uint16" if tokenizer.vocab_size <= 2**16 else "uint32"
        self.buffers: dict[str, list[Tokens]] = {split: [] for split in SPLITS}
        self.held: dict[str, int] = {split: 0 for split in SPLITS}  # tokens in the buffers
        parts: Mapping[str, Any] = state["splits"] if state else {}
        self.shards = {split: [Shard(**shard) for shard in parts[split]["shards"]] if state else [] for split in SPLITS}
        self.documents: dict[str, int] = {split: int(parts[split]["documents"]) if state else 0 for split in SPLITS}
        self.written = {split: sum(shard.tokens for shard in self.shards[split]) for split in SPLITS}
        self.sources: list[dict[str, Any]] = list(state["sources"]) if state else []  # those that were read, in order

    def n_tokens(self, split: str) -> int:
        return self.held[split] + self.written[split]

    @property
    def full(self) -> bool:
        most = self.request["max_tokens"]
        return most is not None and self.n_tokens("train") >= most

    def reach(self, source: Source, number: int) -> None:
        """Notes that documents of the source number `number` are being read."""
        if number == len(self.sources):
            self.sources.append(
                {
                    "name": source.name,
                    "bytes": source.n_bytes,
                    "sha256": file_sha256(source),
                    "documents": 0,
                    "skipped": 0,
                }
            )

    def add(self, tokens: Tokens, split: str) -> None:
        if split == "train" and (most := self.request["max_tokens"]) is not None:
            tokens = tokens[: most - self.n_tokens("train")]
        self.buffers[split].append(tokens.astype(self.dtype))
        self.held[split] += len(tokens)
        self.documents[split] += 1

    def write(self) -> None:
        """Write what is held as shards, and the place that they reach."""
        for split in SPLITS:
            if self.held[split]:
                shard = write_shard(
                    self.folder,
                    f"{split}-{len(self.shards[split]):05d}.tokens",
                    np.concatenate(self.buffers[split]),
                    dtype=self.dtype,
                    vocab_size=self.tokenizer.vocab_size,
                    tokenizer_sha256=self.tokenizer.sha256,
                )
                self.shards[split].append(shard)
                self.written[split] += shard.tokens
                self.buffers[split], self.held[split] = [], 0
        self.save()

    def save(self) -> None:
        state = {"request": self.request, "n_train": self.n_tokens("train"), **self.described()}
        write_atomically(self.folder / UNFINISHED, json.dumps(state), follow_links=False)

    def described(self) -> dict[str, Any]:
        return {
            "vocab_size": self.tokenizer.vocab_size,
            "eos_id": self.tokenizer.eos_id,
            "dtype": self.dtype,
            "tokenizer_sha256": self.tokenizer.sha256,
            "splits": {
                split: {
                    "tokens": self.written[split],
                    "documents": self.documents[split],
                    "shards": [asdict(shard) for shard in self.shards[split]],
                }
                for split in SPLITS
            },
            "sources": self.sources,
        }

    def finish(self) -> None:
        """Write the rest and corpus.json; InputError when a split is empty."""
        share, where = self.request["validation"], str(self.folder)
        n_documents = sum(self.documents.values())
        if not n_documents:
            raise InputError(
                "the sources hold no text", where=", ".join(name for name, _ in self.request["sources"][:3]),
                next_step="check them, and --text-field",
            )  # fmt: skip
        for split, needed in (("train", True), ("validation", share > 0)):
            if needed and not self.documents[split]:
                raise InputError(
                    f"none of {n_documents} documents fell into the {split} split with a validation share of {share:g}",
                    where=where,
                    nearest=f"--validation {min(5 / n_documents, 0.5):.2g}",  # misses one time in 150 at most
                    next_step="or --validation 0 for none, or give more documents",
                )
        self.write()
        content = {"format": FORMAT, "version": VERSION, **self.described(), "request": self.request}
        content["sha256"] = corpus_sha256(
            vocab_size=self.tokenizer.vocab_size,
            eos_id=self.tokenizer.eos_id,
            tokenizer_sha256=self.tokenizer.sha256,
            shards=self.shards,
        )
        write_atomically(self.folder / CORPUS, json.dumps(content, indent=1) + "\n", follow_links=False)
        (self.folder / UNFINISHED).unlink(missing_ok=True)


def _fill(
    packing: _Packing,
    sources: Sequence[Source],
    read: Callable[[Source, int], Iterator[Document]],
    tell: Report,
) -> None:
    """Tokenise documents, batch by batch, from where the packing stands until the sources end or it is full."""
    tokenizer, seed, share = packing.tokenizer, packing.request["seed"], packing.request["validation"]
    started = told = time.monotonic()
    before = packing.n_tokens("train")
    for batch in _batches(packing, sources, read):
        if packing.full:
            break
        tokens = iter(tokenizer.encode([document for _, document in batch if isinstance(document, str)]))
        for number, document in batch:
            if packing.full:
                break
            entry = packing.sources[number]
            entry["documents"] += 1
            if isinstance(document, np.ndarray):
                encoded = _checked(document, tokenizer, entry["name"])
                content = encoded.astype("<i8").tobytes()
            else:
                encoded = next(tokens) if document is not None else np.empty(0, np.int64)
                content = (document or "").encode()
            if not encoded.size:
                entry["skipped"] += 1
            else:
                packing.add(np.append(encoded, tokenizer.eos_id), _split(content, seed, share))
        if packing.held["train"] >= packing.request["shard_tokens"]:
            packing.write()
        if time.monotonic() - told > REPORT_S:
            told = time.monotonic()
            done = packing.n_tokens("train")
            tell(
                f"source {len(packing.sources):,} of {len(sources):,}: {done:,} training tokens, "
                f"{(done - before) / (told - started):,.0f} a second"
            )


def _batches(
    packing: _Packing, sources: Sequence[Source], read: Callable[[Source, int], Iterator[Document]]
) -> Iterator[list[tuple[int, Document]]]:
    """Documents with the number of their source, many at a time; a batch may go over several sources."""
    batch: list[tuple[int, Document]] = []
    size = 0
    first = max(len(packing.sources) - 1, 0)
    for number in range(first, len(sources)):
        packing.reach(sources[number], number)
        for document in read(sources[number], packing.sources[number]["documents"]):
            batch.append((number, document))
            size += len(document) if document is not None else 0
            if size >= BATCH_CHARACTERS or len(batch) >= BATCH_DOCUMENTS:
                yield batch
                batch, size = [], 0
    yield batch


def _split(content: bytes, seed: int, share: float) -> str:
    """The split of a document: a hash of its content, so that copies of it go the same way."""
    digest = hashlib.blake2b(content, digest_size=8, salt=hashlib.sha256(str(seed).encode()).digest()[:16]).digest()
    return "validation" if int.from_bytes(digest, "little") < share * 2**64 else "train"


def _checked(tokens: Tokens, tokenizer: Tokenizer, where: str) -> Tokens:
    """Tokens that were made elsewhere, less the one that ends the document; InputError where the vocabulary lacks one."""
    if tokens.size and not 0 <= int(tokens.min()) <= int(tokens.max()) < tokenizer.vocab_size:
        worst = int(tokens.max() if tokens.min() >= 0 else tokens.min())
        raise InputError(
            f"holds token {worst}, and the vocabulary is 0 .. {tokenizer.vocab_size - 1}",
            where=where,
            next_step="give the tokenizer or the --vocab-size that made these tokens",
        )
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
    sources: Sequence[Source],
    tokenizer: str | os.PathLike[str] | None,
    vocab_size: int | None,
    eos: str | None,
    read: Callable[[Source], Iterator[Document]],
    share: float,
    seed: int,
    tell: Report,
) -> Tokenizer:
    if tokenizer is not None and vocab_size is not None:
        raise InputError("a tokenizer has its own vocabulary", where="--vocab-size", next_step="leave it out")
    if tokenizer is not None:
        return read_tokenizer(tokenizer, eos=eos)
    if all(source.kind == "megatron" for source in sources):
        return _without_tokenizer(sources, vocab_size, eos)
    if vocab_size is None:
        raise InputError(
            "no tokenizer is given",
            where="--tokenizer",
            next_step="give a tokenizer.json, `bytes`, or --vocab-size for one that is trained on the text",
        )
    if any(source.kind == "megatron" for source in sources):
        raise InputError(
            "Megatron's tokens come from a tokenizer that exists",
            where="--vocab-size",
            next_step="give it with --tokenizer",
        )
    if eos is not None:
        raise InputError("goes with a tokenizer that exists", where="--eos", next_step="leave it out")
    tell(f"training a tokenizer of {vocab_size} tokens")
    return train_tokenizer(_sample(sources, read, share, seed), vocab_size)


def _sample(
    sources: Sequence[Source], read: Callable[[Source], Iterator[Document]], share: float, seed: int
) -> Iterator[str]:
    """Training documents from the head of every source, to each its part of the sample by its size on disk."""
    known = sum(source.n_bytes for source in sources)
    usual = known / len(sources) or 1.0
    sizes = [source.n_bytes or usual for source in sources]
    for source, size in zip(sources, sizes, strict=True):
        left = SAMPLE_CHARACTERS * size / sum(sizes)
        for document in read(source):
            if left <= 0:
                break
            if isinstance(document, str) and _split(document.encode(), seed, share) == "train":
                left -= len(document)
                yield document


def _without_tokenizer(sources: Sequence[Source], vocab_size: int | None, eos: str | None) -> Tokenizer:
    """What is known of tokens that came without a tokenizer: their range, and the one that ends every document."""
    data = [megatron.open_indexed(source.name.removeprefix(MEGATRON)) for source in sources]
    if eos is not None:
        if not (eos.isascii() and eos.isdigit()):
            raise InputError(f"{eos!r} is not the number of a token", where="--eos", next_step="or give --tokenizer")
        eos_id = int(eos)
    else:
        ends = {end for each in data if len(each.starts) for end in [megatron.common_end(each)]}
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
        raise InputError(
            f"holds token {greatest}, and the vocabulary is 0 .. {size - 1}",
            where="--vocab-size",
            nearest=str(greatest + 1),
        )
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
        raise InputError(
            "is the only source itself", where=str(folder), next_step="choose another folder for the corpus"
        )
    return kept


def _check(validation: float, max_tokens: int | None, undecodable: str, shard_tokens: int) -> None:
    if not (math.isfinite(validation) and 0 <= validation < 1):
        raise InputError(f"{validation:g} is not a share from 0 to below 1", where="--validation", nearest="0.01")
    for name, value in (("--max-tokens", max_tokens), ("shard_tokens", shard_tokens)):
        if value is not None and value < 1:
            raise InputError(f"{value} is not a whole number from 1", where=name, nearest="1")
    if undecodable not in UNDECODABLE:
        raise unknown_name("choice", undecodable, UNDECODABLE, where="--undecodable")


def _same_request(there: object, asked: Mapping[str, Any], folder: Path) -> None:
    """Raise InputError unless a finished corpus was packed from the same request."""
    stated: Mapping[str, Any] = there if isinstance(there, dict) else {}
    other = next((name for name, value in asked.items() if stated.get(name) != value), None)
    if other is None:
        return
    if other == "sources":
        names = [dict(map(tuple, one)) for one in (stated.get(other) or [], asked[other])]
        differing = sorted(
            name for name in names[0].keys() | names[1].keys() if names[0].get(name) != names[1].get(name)
        )
        what = "from other sources" + (
            f" ({', '.join(differing[:3])}{', ..' * (len(differing) > 3)})" if differing else ""
        )
    elif other == "tokenizer_sha256":
        what = f"with another tokenizer (SHA-256 {stated.get(other) or 'of a trained one'}, now {asked[other] or 'a trained one'})"
    else:
        what = f"with {other} = {stated.get(other)}, not {asked[other]}"
    raise InputError(
        f"holds a corpus that was packed {what}",
        where=str(folder),
        next_step="choose another folder, or delete this one and pack again",
    )


def _unfinished(folder: Path, request: Mapping[str, Any]) -> Any:
    """What a killed pack of the same request left, if it can go on from there."""
    try:
        state = json.loads(read_text(folder / UNFINISHED, limit_bytes=2**31))
        itemsize = np.dtype(state["dtype"]).itemsize if state["dtype"] in DTYPES else 0
        shards = [read_shard(shard) for split in SPLITS for shard in state["splits"][split]["shards"]]
        whole = all((folder / shard.file).stat().st_size == HEADER.size + shard.tokens * itemsize for shard in shards)
        counts = [state["n_train"], *(state["splits"][split]["documents"] for split in SPLITS)]
        counts += [source[name] for source in state["sources"] for name in ("documents", "skipped")]
        whole = whole and itemsize > 0 and all(type(count) is int and count >= 0 for count in counts)
        tokenizer = state["tokenizer_sha256"]
        known = not tokenizer or tokenizer == hashlib.sha256((folder / TOKENIZER).read_bytes()).hexdigest()
        same = state["request"] == dict(request)
    except (InputError, OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    return state if whole and known and same else None


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
