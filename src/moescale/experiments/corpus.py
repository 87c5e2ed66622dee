"""A packed corpus on disk, and reading it in training's order.

A folder with train.bin and validation.bin, the tokens; train.idx and validation.idx, which tell Megatron-LM where each document
lies; tokenizer.json; and corpus.json, which describes them. Reading needs the tokens and the description alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from moescale.errors import InputError, damaged
from moescale.io.files import nearest_file_names, read_bytes
from moescale.io.json_text import read_object

FORMAT, VERSION = "moescale corpus", 2
CORPUS, TOKENIZER = "corpus.json", "tokenizer.json"
PACK_AGAIN = "copy it again, or delete the folder and pack again"
SplitName = Literal["train", "validation"]
SPLITS: tuple[SplitName, ...] = ("train", "validation")
# What the hash of a split begins with: the header of version 0.1's files, so that the order of training stays the same.
HASHED = struct.Struct("<8sIIQQ32s")
# The head of Megatron-LM's index (megatron/core/datasets/indexed_dataset.py, commit 00caa53), little-endian: magic, version 1,
# code of the token type, count of sequences, count of document bounds.
INDEX_HEAD = struct.Struct("<9sQBQQ")
# Four make a pseudo-random permutation (Luby and Rackoff 1988, SIAM J. Comput. 17:373); short words need more.
ROUNDS = 8

Count = Annotated[int, Field(strict=True, ge=0)]
Token = Annotated[int, Field(strict=True, ge=0, le=2**31)]  # Megatron's widest type of tokens that fit is int32
Hash = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Corpus(BaseModel):
    """Tokens of documents, each ended by `eos_id`, in two splits that share no document."""

    model_config = ConfigDict(frozen=True)

    folder: Path
    vocab_size: Token
    eos_id: Token
    dtype: Literal["uint16", "int32"]
    tokenizer_sha256: Hash
    sha256: Hash  # of the tokens of both splits and the tokenizer, not of names or places of files
    n_train: Count  # tokens
    n_validation: Count
    n_train_documents: Count
    n_validation_documents: Count
    split_sha256: dict[SplitName, Hash]  # of the tokens of each split

    def header(self) -> dict[str, Any]:
        """What describes the corpus, ready for JSON."""
        return self.model_dump(mode="json", exclude={"split_sha256"})

    def size(self, split: SplitName) -> tuple[int, int]:
        """Tokens and documents of a split."""
        return getattr(self, f"n_{split}"), getattr(self, f"n_{split}_documents")

    def hashes(self) -> dict[SplitName, str]:
        """The hash of each split, of the files' content as it is."""
        found: dict[SplitName, str] = {}
        tokenizer, itemsize = bytes.fromhex(self.tokenizer_sha256), np.dtype(self.dtype).itemsize
        for split in SPLITS:
            head = HASHED.pack(b"MOETOKNS", 1, itemsize, self.size(split)[0], self.vocab_size, tokenizer)
            with (self.folder / f"{split}.bin").open("rb") as stream:
                found[split] = hashlib.file_digest(stream, lambda head=head: hashlib.sha256(head)).hexdigest()
        return found

    def hash_of(self, splits: Mapping[SplitName, str]) -> str:
        """The hash that stands for all tokens of the corpus and what they mean, from those of its splits."""
        listed = [[splits[split]] if self.size(split)[0] else [] for split in SPLITS]
        stated = [self.vocab_size, self.eos_id, self.tokenizer_sha256, listed]
        return hashlib.sha256(json.dumps(stated).encode()).hexdigest()

    def sequences(self, split: SplitName, length: int, seed: int, epoch: int = 0) -> Sequences:
        """The disjoint windows of `length` tokens of a split, ordered by seed, epoch and corpus; InputError where there is none."""
        tokens, _ = self.size(split)
        count = tokens // length
        if not count:
            what = f"the {split} split has {tokens:,} tokens, fewer than one sequence of {length:,}"
            step = "pack more text, a larger --validation share, or train on shorter sequences"
            raise InputError(what, where=str(self.folder), nearest=str(tokens) if tokens else None, next_step=step)
        kept = np.memmap(self.folder / f"{split}.bin", np.dtype(self.dtype).newbyteorder("<"), "r")[: count * length]
        return Sequences(windows=kept.reshape(count, length), key=f"{self.sha256}:{split}:{seed}:{epoch}")

    def epochs(self, tokens: int, length: int, max_epochs: float = 1) -> float:
        """How often training on `tokens` in windows of `length` sees the training split; InputError above `max_epochs`."""
        there = self.n_train // length * length
        epochs = tokens / there if there else float("inf")
        if epochs > max_epochs:
            raise InputError(
                f"{tokens:,} tokens are {epochs:.4g} epochs of the {there:,} training tokens in sequences of {length:,}, "
                f"more than max_epochs = {max_epochs:g}", where=str(self.folder),
                nearest=f"{int(max_epochs * there):,} tokens", next_step="pack more text, or allow more in max_epochs",
            )  # fmt: skip
        return epochs


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequences:
    """Windows of a split in training's order, int64 arrays that share no token; reading may start anywhere."""

    windows: NDArray[Any]  # (windows, length), memory-mapped, as they lie in the file
    key: str

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, position: int) -> NDArray[np.int64]:
        if not 0 <= position < len(self):
            raise IndexError(f"position {position} of {len(self)} sequences")
        return self.windows[permuted(position, len(self), self.key)].astype(np.int64)


def permuted(position: int, n: int, key: str) -> int:
    """The image of `position` under a permutation of 0 .. n - 1 that `key` chooses, without memory that grows with n.

    A Feistel network on just enough bits, walked along its cycle until it is below n.
    """
    keys = struct.unpack(f"<{ROUNDS}Q", hashlib.sha512(key.encode()).digest())
    bits = (n - 1).bit_length()
    high, low = bits // 2, bits - bits // 2
    word = position
    while True:
        left, right = divmod(word, 1 << low)
        for first, second in zip(keys[::2], keys[1::2], strict=True):
            left ^= _mixed(right ^ first) % (1 << high)
            right ^= _mixed(left ^ second) % (1 << low)
        word = (left << low) | right
        if word < n:  # a cycle through a point below n comes back below n, on average within two steps
            return word


def _mixed(word: int) -> int:
    """The finaliser of splitmix64: Steele, Lea and Flood 2014, OOPSLA, "Fast splittable pseudorandom number generators"."""
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB % 2**64
    return word ^ (word >> 31)


def open_corpus(folder: str | Path) -> Corpus:
    """The corpus of a folder that `pack` wrote, seen by sizes, not tokens; InputError where it is none or was changed since."""
    folder = Path(folder)
    try:
        corpus = Corpus.model_validate({**read_description(folder), "folder": folder})
    except ValidationError as error:
        raise damaged("corpus", error, where=str(folder / CORPUS), next_step=PACK_AGAIN) from error
    if corpus.split_sha256.keys() != set(SPLITS) or corpus.hash_of(corpus.split_sha256) != corpus.sha256:
        raise _changed(folder / CORPUS, "its parts do not give its hash")
    if hashlib.sha256(read_bytes(folder / TOKENIZER, limit_bytes=2**28)).hexdigest() != corpus.tokenizer_sha256:
        raise _changed(folder / TOKENIZER, f"its SHA-256 was {corpus.tokenizer_sha256}")
    for split in SPLITS:
        tokens, documents = corpus.size(split)
        index_size = INDEX_HEAD.size + 12 * documents + 8 * (documents + 1)
        for suffix, needed in (("bin", tokens * np.dtype(corpus.dtype).itemsize), ("idx", index_size)):
            path = folder / f"{split}.{suffix}"
            found = path.stat().st_size if path.is_file() else None
            if found != needed:
                raise _changed(path, "it is missing" if found is None else f"{found:,} bytes in place of {needed:,}")
    return corpus


def verify(corpus: Corpus) -> None:
    """Read every token and compare the hashes; InputError names the first file that differs."""
    for split, found in corpus.hashes().items():
        if found != corpus.split_sha256[split]:
            raise _changed(corpus.folder / f"{split}.bin", "different SHA-256")


def read_description(folder: Path) -> dict[str, Any]:
    """The content of corpus.json; InputError where there is none, and for another format or version."""
    path = folder / CORPUS
    if not os.path.isfile(path):  # unlike Path.is_file, never an error
        nearest = None if os.path.isdir(folder) else nearest_file_names(folder)
        what = f"is no packed corpus (it has no {CORPUS})"
        raise InputError(what, where=str(folder), nearest=nearest, next_step="make one with `moescale pack`")
    content = read_object(path, limit_bytes=2**31, next_step=PACK_AGAIN)
    if (content.get("format"), content.get("version")) != (FORMAT, VERSION):
        what = f"does not describe a packed corpus of version {VERSION}"
        raise InputError(what, where=str(path), next_step=PACK_AGAIN)
    return content


def _changed(path: Path, reason: str) -> InputError:
    return InputError(f"has been changed since it was packed ({reason})", where=str(path), next_step=PACK_AGAIN)
