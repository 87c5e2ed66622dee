"""A packed corpus on disk: shards of tokens behind a small header, described by corpus.json; reading it in training's order.

A shard is a 64-byte header, little-endian (8 bytes b"MOETOKNS", uint32 version, uint32 bytes a token, uint64 count of tokens,
uint64 vocabulary size, 32 bytes SHA-256 of the tokenizer file, zeros for none), then the tokens. corpus.json is written last,
so that a folder without it is no corpus.
"""

from __future__ import annotations

import hashlib
import json
import operator
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field, TypeAdapter, ValidationError

from moescale.errors import InputError, unknown_name
from moescale.experiments.data.shuffle import permuted
from moescale.io.files import nearest_file_names, read_text, write_atomically
from moescale.io.records import record

MAGIC = b"MOETOKNS"
HEADER = struct.Struct("<8sIIQQ32s")
VERSION = 1
FORMAT = "moescale corpus"
CORPUS = "corpus.json"
UNFINISHED = "unfinished.json"
TOKENIZER = "tokenizer.json"
SplitName = Literal["train", "validation"]
SPLITS: tuple[SplitName, ...] = ("train", "validation")
OPEN_SHARDS = 256  # memory maps held at a time: far below what an operating system allows a process

Count = Annotated[int, Field(strict=True, ge=0)]
Token = Annotated[int, Field(strict=True, ge=0, lt=2**32)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One file of tokens of a corpus."""

    file: Annotated[str, Field(pattern=r"^[\w-]+\.tokens$")]
    tokens: Count
    sha256: str  # of the whole file


@dataclass(slots=True, kw_only=True)
class Split:
    """What a description says of a split."""

    tokens: Count = 0
    documents: Count = 0
    shards: list[Shard] = field(default_factory=list[Shard])


@dataclass(slots=True, kw_only=True)
class SourceRead:
    """What a description says of a source that was read, or is being read."""

    name: str
    bytes: Count
    sha256: str
    documents: Count = 0
    skipped: Count = 0


@dataclass(slots=True, kw_only=True)
class Description:
    """What corpus.json says of a corpus, and unfinished.json of one that is being packed."""

    vocab_size: Token
    eos_id: Token
    dtype: Literal["uint16", "uint32"]
    tokenizer_sha256: Annotated[str, Field(pattern="^([0-9a-f]{64})?$")]
    splits: Annotated[dict[SplitName, Split], Field(min_length=2)]
    sources: list[SourceRead]

    def sha256(self) -> str:
        """The hash that stands for all tokens of the corpus and what they mean."""
        shards = {split: self.splits[split].shards for split in self.splits}
        return corpus_sha256(
            vocab_size=self.vocab_size, eos_id=self.eos_id, tokenizer_sha256=self.tokenizer_sha256, shards=shards
        )


DESCRIPTION = TypeAdapter(Description)


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """Tokens of documents, each ended by `eos_id`, in two splits that share no document.

    `sha256` stands for the tokens of both splits and the tokenizer, not for names or places of files;
    `tokenizer_sha256` is empty for tokens that came without a tokenizer.
    """

    folder: Path
    vocab_size: int
    eos_id: int
    dtype: str  # uint16 or uint32
    tokenizer_sha256: str
    sha256: str
    n_train: int  # tokens
    n_validation: int
    n_train_documents: int
    n_validation_documents: int
    shards: Mapping[str, tuple[Shard, ...]]

    def header(self) -> dict[str, Any]:
        """What describes the corpus, ready for JSON."""
        return record(self, without=("shards",))

    def sequences(self, split: str, length: int, seed: int, epoch: int = 0) -> Sequences:
        """The disjoint windows of `length` tokens of a split, in an order that seed, epoch and the corpus choose.

        Raises InputError for another split, and where the split has fewer tokens than one window.
        """
        if split not in SPLITS:
            raise unknown_name("split", split, SPLITS)
        if length < 1:
            raise InputError(f"a sequence of {length} tokens is none", where="length", nearest="1")
        tokens = self.n_train if split == "train" else self.n_validation
        if tokens < length:
            raise InputError(
                f"the {split} split has {tokens:,} tokens, fewer than one sequence of {length:,}",
                where=str(self.folder),
                nearest=str(tokens) if tokens else None,
                next_step="pack more text, a larger --validation share, or train on shorter sequences",
            )
        shards = self.shards[split]
        return Sequences(
            files=tuple(str(self.folder / shard.file) for shard in shards),
            ends=tuple(int(end) for end in np.cumsum([shard.tokens for shard in shards])),
            dtype=self.dtype,
            length=length,
            key=f"{self.sha256}:{split}:{seed}:{epoch}",
        )

    def epochs(self, tokens: int, length: int, max_epochs: float = 1) -> float:
        """How often training on `tokens` in windows of `length` sees the training split; at most 1 sees none twice.

        Raises InputError when that is more than `max_epochs`.
        """
        there = self.n_train // length * length
        epochs = tokens / there if there else float("inf")
        if epochs > max_epochs:
            raise InputError(
                f"{tokens:,} tokens are {epochs:.4g} epochs of the {there:,} training tokens in sequences of {length:,}, "
                f"more than max_epochs = {max_epochs:g}",
                where=str(self.folder),
                nearest=f"{int(max_epochs * there):,} tokens",
                next_step="pack more text, or allow more in max_epochs",
            )
        return epochs


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequences:
    """Windows of a split in training's order: a sequence of int64 arrays of `length` tokens; position i is the i-th seen.

    No two positions share a token, and the order does not depend on how many are read, or where reading starts.
    """

    files: tuple[str, ...]
    ends: tuple[int, ...]  # tokens of the split up to the end of each file
    dtype: str
    length: int
    key: str

    def __len__(self) -> int:
        return self.ends[-1] // self.length

    def __getitem__(self, position: int) -> NDArray[np.int64]:
        at = operator.index(position)
        if not 0 <= at < len(self):
            raise IndexError(f"position {at} of {len(self)} sequences")
        return self._window(int(self.windows(at)))

    def __iter__(self) -> Iterator[NDArray[np.int64]]:
        return (self[position] for position in range(len(self)))

    def windows(self, positions: ArrayLike) -> NDArray[np.int64]:
        """Which window of the split stands at each position: window w is tokens w * length and on."""
        return permuted(positions, len(self), self.key)

    def batch(self, positions: ArrayLike) -> NDArray[np.int64]:
        """The sequences at an array of positions, (len(positions), length); IndexError beyond the last."""
        at = np.asarray(positions, dtype=np.int64).reshape(-1)
        if at.size and not 0 <= at.min() <= at.max() < len(self):
            raise IndexError(f"positions from {at.min()} to {at.max()} of {len(self)} sequences")
        found = np.empty((at.size, self.length), dtype=np.int64)
        for row, window in enumerate(self.windows(at).tolist()):
            found[row] = self._window(window)
        return found

    def _window(self, window: int) -> NDArray[np.int64]:
        start = window * self.length
        stop = start + self.length
        found = np.empty(self.length, dtype=np.int64)
        file = int(np.searchsorted(self.ends, start, side="right"))
        at = start
        while at < stop:
            first = self.ends[file - 1] if file else 0
            upto = min(stop, self.ends[file])
            found[at - start : upto - start] = _mapped(self.files[file], self.dtype, self.key)[
                at - first : upto - first
            ]
            at, file = upto, file + 1
        return found


def open_corpus(folder: str | Path) -> Corpus:
    """The corpus of a folder that `pack` wrote; reads headers, no tokens.

    Raises InputError where there is none or an unfinished one, and for a shard or tokenizer that is missing, cut off
    or another than the one that was packed.
    """
    folder = Path(folder)
    path = folder / CORPUS
    if not os.path.isfile(path):  # unlike Path.is_file, never an error
        unfinished = os.path.isfile(folder / UNFINISHED)
        raise InputError(
            "holds an unfinished pack" if unfinished else "is no packed corpus (it has no corpus.json)",
            where=str(folder),
            nearest=None if os.path.isdir(folder) else nearest_file_names(folder),
            next_step="run `moescale pack` again: it goes on" if unfinished else "make one with `moescale pack`",
        )
    corpus = _parsed(read_description(folder), folder)
    tokenizer = folder / TOKENIZER
    if corpus.tokenizer_sha256:
        found = hashlib.sha256(tokenizer.read_bytes()).hexdigest() if tokenizer.is_file() else None
        if found != corpus.tokenizer_sha256:
            raise InputError(
                "is not the tokenizer that the corpus was packed with" if found else "is missing",
                where=str(tokenizer),
                next_step=f"put back the file whose SHA-256 is {corpus.tokenizer_sha256}, or pack again",
            )
    for shards in corpus.shards.values():
        for shard in shards:
            check_shard(corpus, shard)
    return corpus


def verify(corpus: Corpus) -> None:
    """Read every shard and compare its hash; InputError names the first that differs."""
    for shards in corpus.shards.values():
        for shard in shards:
            with (corpus.folder / shard.file).open("rb") as stream:
                found = hashlib.file_digest(stream, "sha256").hexdigest()
            if found != shard.sha256:
                raise InputError(
                    "its content is not what was packed (its SHA-256 differs)",
                    where=str(corpus.folder / shard.file),
                    next_step="copy it again, or delete the folder and pack again",
                )


def write_shard(folder: Path, file: str, tokens: NDArray[Any], about: Description) -> Shard:
    """Write tokens as one shard, whole or not at all; raises InputError as `write_atomically`."""
    kind = np.dtype(about.dtype).newbyteorder("<")
    content = _head(about, len(tokens)) + tokens.astype(kind).tobytes()
    write_atomically(folder / file, content, follow_links=False)
    return Shard(file=file, tokens=len(tokens), sha256=hashlib.sha256(content).hexdigest())


def _head(about: Description | Corpus, tokens: int) -> bytes:
    hashed = bytes.fromhex(about.tokenizer_sha256)  # zeros follow
    return HEADER.pack(MAGIC, VERSION, np.dtype(about.dtype).itemsize, tokens, about.vocab_size, hashed)


def check_shard(corpus: Corpus, shard: Shard) -> None:
    """Raise InputError unless the header and the size of a shard are those that the corpus states."""
    path = corpus.folder / shard.file
    itemsize = np.dtype(corpus.dtype).itemsize
    needed = HEADER.size + shard.tokens * itemsize
    try:
        with path.open("rb") as stream:
            head = stream.read(HEADER.size)
            size = stream.seek(0, 2)
    except OSError as error:
        raise InputError(
            f"cannot be read: {error.strerror or error}",
            where=str(path),
            next_step="copy the folder whole, or pack again",
        ) from error
    if size != needed:
        raise InputError(
            f"has {size:,} bytes where {shard.tokens:,} tokens take {needed:,}",
            where=str(path),
            next_step="it is cut off or damaged: copy it again, or delete the folder and pack again",
        )
    if head != _head(corpus, shard.tokens):
        raise InputError(
            "its header is not that of this corpus",
            where=str(path),
            next_step="it belongs to another: copy the right one",
        )


def read_description(folder: Path) -> dict[str, Any]:
    """The content of corpus.json; InputError when it is not one."""
    path = folder / CORPUS
    text = read_text(path, limit_bytes=2**31)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"is not JSON: {error}", where=str(path), next_step="delete the folder and pack again"
        ) from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise InputError("describes no packed corpus", where=str(path), next_step="make one with `moescale pack`")
    if content.get("version") != VERSION:
        raise InputError(
            f"has version {content.get('version')} of the format, and this program reads {VERSION}",
            where=str(path),
            next_step="pack again",
        )
    return content


def corpus_sha256(*, vocab_size: int, eos_id: int, tokenizer_sha256: str, shards: Mapping[str, Sequence[Shard]]) -> str:
    """The hash that stands for all tokens of a corpus and what they mean."""
    stated = [vocab_size, eos_id, tokenizer_sha256, [[shard.sha256 for shard in shards[split]] for split in SPLITS]]
    return hashlib.sha256(json.dumps(stated).encode()).hexdigest()


def _parsed(content: Mapping[str, Any], folder: Path) -> Corpus:
    try:
        found = DESCRIPTION.validate_python(content)
    except ValidationError as error:
        first = error.errors()[0]
        raise _changed(folder, f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    if content.get("sha256") != found.sha256():
        raise _changed(folder, "its parts do not give its hash")
    train, validation = (found.splits[split] for split in SPLITS)
    return Corpus(
        folder=folder,
        vocab_size=found.vocab_size,
        eos_id=found.eos_id,
        dtype=found.dtype,
        tokenizer_sha256=found.tokenizer_sha256,
        sha256=found.sha256(),
        n_train=sum(shard.tokens for shard in train.shards),
        n_validation=sum(shard.tokens for shard in validation.shards),
        n_train_documents=train.documents,
        n_validation_documents=validation.documents,
        shards={split: tuple(found.splits[split].shards) for split in SPLITS},
    )


def _changed(folder: Path, reason: str) -> InputError:
    return InputError(
        f"has been changed since it was written ({reason})",
        where=str(folder / CORPUS),
        next_step="put the file back, or delete the folder and pack again",
    )


@lru_cache(maxsize=OPEN_SHARDS)
def _mapped(file: str, dtype: str, key: str) -> NDArray[Any]:
    """The tokens of a shard, memory-mapped; the key, which holds the corpus' hash, tells apart what once had this name."""
    return np.memmap(file, dtype=np.dtype(dtype).newbyteorder("<"), mode="r", offset=HEADER.size)
