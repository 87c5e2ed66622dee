"""A packed corpus on disk, and reading it in training's order.

A folder with train.bin and train.idx, validation.bin and validation.idx in Megatron's indexed format, the tokenizer.json
that made the tokens, and corpus.json, which is written last: a folder without it is no corpus.
"""

from __future__ import annotations

import hashlib
import json
import operator
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field, TypeAdapter, ValidationError

from moescale.errors import InputError, unknown_name
from moescale.experiments.megatron import index_head, index_size, open_indexed
from moescale.io.files import nearest_file_names, read_text
from moescale.io.records import record

FORMAT = "moescale corpus"
VERSION = 2
CORPUS = "corpus.json"
UNFINISHED = "unfinished.json"
TOKENIZER = "tokenizer.json"
SplitName = Literal["train", "validation"]
SPLITS: tuple[SplitName, ...] = ("train", "validation")
# What the hash of a split begins with: the header of version 0.1's files, so that the order of training stays the same.
HASHED = struct.Struct("<8sIIQQ32s")

Count = Annotated[int, Field(strict=True, ge=0)]
Token = Annotated[int, Field(strict=True, ge=0, le=2**31)]  # Megatron's widest type of tokens that fit is int32
Hash = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """Tokens of documents, each ended by `eos_id`, in two splits that share no document.

    `sha256` stands for the tokens of both splits and the tokenizer, not for names or places of files;
    `tokenizer_sha256` is empty for tokens that came without a tokenizer.
    """

    folder: Path
    vocab_size: Token
    eos_id: Token
    dtype: Literal["uint16", "int32"]
    tokenizer_sha256: Hash | Literal[""]
    sha256: Hash
    n_train: Count  # tokens
    n_validation: Count
    n_train_documents: Count
    n_validation_documents: Count
    split_sha256: dict[SplitName, Hash]  # of the tokens of each split

    def header(self) -> dict[str, Any]:
        """What describes the corpus, ready for JSON."""
        return record(self, without=("split_sha256",))

    def file(self, split: SplitName) -> Path:
        """The file that holds the tokens of a split."""
        return self.folder / f"{split}.bin"

    def size(self, split: SplitName) -> tuple[int, int]:
        """Tokens and documents of a split."""
        if split == "train":
            return self.n_train, self.n_train_documents
        return self.n_validation, self.n_validation_documents

    def hashes(self) -> tuple[dict[SplitName, str], str]:
        """The hash of each split, of the files' content as it is, and the one that stands for the corpus."""
        found: dict[SplitName, str] = {}
        tokenizer, itemsize = bytes.fromhex(self.tokenizer_sha256), np.dtype(self.dtype).itemsize
        for split in SPLITS:
            head = HASHED.pack(b"MOETOKNS", 1, itemsize, self.size(split)[0], self.vocab_size, tokenizer)
            with self.file(split).open("rb") as stream:
                found[split] = hashlib.file_digest(stream, lambda head=head: hashlib.sha256(head)).hexdigest()
        return found, self.hash_of(found)

    def hash_of(self, splits: Mapping[SplitName, str]) -> str:
        """The hash that stands for all tokens of the corpus and what they mean, from those of its splits."""
        listed = [[splits[split]] if self.size(split)[0] else [] for split in SPLITS]
        stated = [self.vocab_size, self.eos_id, self.tokenizer_sha256, listed]
        return hashlib.sha256(json.dumps(stated).encode()).hexdigest()

    def sequences(self, split: str, length: int, seed: int, epoch: int = 0) -> Sequences:
        """The disjoint windows of `length` tokens of a split, in an order that seed, epoch and the corpus choose.

        Raises InputError for another split, and where the split has fewer tokens than one window.
        """
        if split not in SPLITS:
            raise unknown_name("split", split, SPLITS)
        if length < 1:
            raise InputError(f"a sequence needs at least one token, not {length}", where="length", nearest="1")
        tokens, _ = self.size(split)
        if tokens < length:
            raise InputError(
                f"the {split} split has {tokens:,} tokens, fewer than one sequence of {length:,}",
                where=str(self.folder),
                nearest=str(tokens) if tokens else None,
                next_step="pack more text, a larger --validation share, or train on shorter sequences",
            )
        key = f"{self.sha256}:{split}:{seed}:{epoch}"
        return Sequences(file=str(self.file(split)), tokens=tokens, dtype=self.dtype, length=length, key=key)

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

    file: str
    tokens: int
    dtype: str
    length: int
    key: str

    def __len__(self) -> int:
        return self.tokens // self.length

    def __getitem__(self, position: int) -> NDArray[np.int64]:
        return self.batch([operator.index(position)])[0]

    def windows(self, positions: ArrayLike) -> NDArray[np.int64]:
        """Which window of the split stands at each position: window w is tokens w * length and on."""
        return permuted(positions, len(self), self.key)

    def batch(self, positions: ArrayLike) -> NDArray[np.int64]:
        """The sequences at an array of positions, (len(positions), length); IndexError beyond the last."""
        at = np.asarray(positions, dtype=np.int64).reshape(-1)
        if at.size and not 0 <= at.min() <= at.max() < len(self):
            raise IndexError(f"positions from {at.min()} to {at.max()} of {len(self)} sequences")
        tokens = _mapped(self.file, self.dtype, self.key)[: len(self) * self.length]
        return tokens.reshape(len(self), self.length)[self.windows(at)].astype(np.int64)


def open_corpus(folder: str | Path) -> Corpus:
    """The corpus of a folder that `pack` wrote; reads sizes and headers, no tokens.

    Raises InputError where there is none or an unfinished one, and for tokens or a tokenizer that are missing, cut off
    or others than those that were packed.
    """
    folder = Path(folder)
    if not os.path.isfile(folder / CORPUS):  # unlike Path.is_file, never an error
        unfinished = os.path.isfile(folder / UNFINISHED)
        raise InputError(
            "holds an unfinished pack" if unfinished else "is no packed corpus (it has no corpus.json)",
            where=str(folder),
            nearest=None if os.path.isdir(folder) else nearest_file_names(folder),
            next_step="run `moescale pack` again" if unfinished else "make one with `moescale pack`",
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
    for split in SPLITS:
        _check_files(corpus, split)
    return corpus


def verify(corpus: Corpus) -> None:
    """Read every token and compare the hashes; InputError names the first file that differs."""
    found, _ = corpus.hashes()
    for split in SPLITS:
        if found[split] != corpus.split_sha256[split]:
            what = "its content has changed since it was packed (different SHA-256)"
            step = "copy it again, or delete the folder and pack again"
            raise InputError(what, where=str(corpus.file(split)), next_step=step)
        open_indexed(str(corpus.file(split)))


def _check_files(corpus: Corpus, split: SplitName) -> None:
    """Raise InputError unless the sizes of a split's files and the head of its index are those that the corpus states."""
    tokens, documents = corpus.size(split)
    dtype, data = np.dtype(corpus.dtype), corpus.file(split)
    index, head = data.with_suffix(".idx"), index_head(np.dtype(corpus.dtype), documents)
    for path, needed, begins in ((data, tokens * dtype.itemsize, b""), (index, index_size(documents), head)):
        try:
            with path.open("rb") as stream:
                found, size = stream.read(len(begins)), stream.seek(0, 2)
        except OSError as error:
            what = f"cannot be read: {error.strerror or error}"
            raise InputError(what, where=str(path), next_step="copy the folder whole, or pack again") from error
        if size != needed or found != begins:
            what = f"has {size:,} bytes where {tokens:,} tokens of {documents:,} documents take {needed:,}"
            what = what if size != needed else "its header is not that of this corpus"
            raise InputError(what, where=str(path), next_step="copy it again, or delete the folder and pack again")


def read_description(folder: Path) -> dict[str, Any]:
    """The content of corpus.json; InputError when it is not one."""
    path = folder / CORPUS
    text = read_text(path, limit_bytes=2**31)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        what = f"is not JSON: {error}"
        raise InputError(what, where=str(path), next_step="delete the folder and pack again") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise InputError("describes no packed corpus", where=str(path), next_step="make one with `moescale pack`")
    if content.get("version") != VERSION:
        what = f"has version {content.get('version')} of the format, and this program reads {VERSION}"
        raise InputError(what, where=str(path), next_step="delete the folder and pack again")
    return content


def _parsed(content: Mapping[str, Any], folder: Path) -> Corpus:
    try:
        corpus = TypeAdapter(Corpus).validate_python({**content, "folder": folder})
    except ValidationError as error:
        first = error.errors()[0]
        raise _changed(folder, f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    if corpus.split_sha256.keys() != set(SPLITS) or corpus.hash_of(corpus.split_sha256) != corpus.sha256:
        raise _changed(folder, "its parts do not give its hash")
    return corpus


def _changed(folder: Path, reason: str) -> InputError:
    return InputError(
        f"has been changed since it was written ({reason})",
        where=str(folder / CORPUS),
        next_step="put the file back, or delete the folder and pack again",
    )


@lru_cache(maxsize=8)
def _mapped(file: str, dtype: str, key: str) -> NDArray[Any]:
    """The tokens of a split, memory-mapped; the key, which holds the corpus' hash, tells apart what once had this name."""
    return np.memmap(file, dtype=np.dtype(dtype).newbyteorder("<"), mode="r")


# The order of training: a seeded permutation that is computed, not stored.

ROUNDS = (
    8  # four make a pseudo-random permutation (Luby and Rackoff 1988, SIAM J. Comput. 17:373); short words need more
)
# Finaliser of splitmix64: Steele, Lea and Flood 2014, OOPSLA, "Fast splittable pseudorandom number generators".
_SHIFTS = (30, 27, 31)
_FACTORS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


def permuted(positions: ArrayLike, n: int, key: str) -> NDArray[np.int64]:
    """The images of `positions`, integers from 0 to n - 1, under a permutation of 0 .. n - 1 that `key` chooses.

    A Feistel network on just enough bits, walked along its cycle until it is below n; it takes no memory that grows with
    n, and does not change between versions of NumPy as its own permutations may.
    """
    bits = (int(n) - 1).bit_length()
    keys = np.frombuffer(hashlib.sha512(key.encode()).digest(), dtype="<u8")[:ROUNDS].astype(np.uint64)
    found = np.array(positions, dtype=np.uint64)
    flat = found.reshape(-1)
    outside = np.arange(flat.size)
    while outside.size:  # a cycle through a point below n comes back below n, on average within two steps
        walked = _network(flat[outside], bits, keys)
        flat[outside] = walked
        outside = outside[walked >= n]
    return flat.reshape(found.shape).astype(np.int64)


def _network(words: NDArray[np.uint64], bits: int, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    low = np.uint64(bits - bits // 2)
    masks = (np.uint64((1 << bits // 2) - 1), np.uint64((1 << int(low)) - 1))
    left, right = words >> low, words & masks[1]
    for first, second in zip(keys[::2], keys[1::2], strict=True):
        left = left ^ (_mixed(right ^ first) & masks[0])
        right = right ^ (_mixed(left ^ second) & masks[1])
    return (left << low) | right


def _mixed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    first, second, last = (np.uint64(shift) for shift in _SHIFTS)
    words = (words ^ (words >> first)) * _FACTORS[0]
    words = (words ^ (words >> second)) * _FACTORS[1]
    return words ^ (words >> last)
