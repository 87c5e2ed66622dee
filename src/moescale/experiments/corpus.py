"""A packed corpus on disk, and reading it in training's order.

A folder with train.bin and validation.bin, the tokens; train.idx and validation.idx, which tell Megatron-LM where each document
lies; tokenizer.json; and corpus.json, which describes them. Reading needs the tokens and the description alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter, ValidationError

from moescale.errors import InputError
from moescale.io.files import nearest_file_names, read_text
from moescale.io.records import record

FORMAT, VERSION = "moescale corpus", 2
CORPUS, TOKENIZER = "corpus.json", "tokenizer.json"
SplitName = Literal["train", "validation"]
SPLITS: tuple[SplitName, ...] = ("train", "validation")
# What the hash of a split begins with: the header of version 0.1's files, so that the order of training stays the same.
HASHED = struct.Struct("<8sIIQQ32s")
# The head of Megatron-LM's index (megatron/core/datasets/indexed_dataset.py, commit 00caa53), little-endian: magic, version 1,
# code of the token type, count of sequences, count of document bounds.
INDEX_HEAD = struct.Struct("<9sQBQQ")
TOKEN_CODES = {"uint16": 8, "int32": 4}
ROUNDS = (
    8  # four make a pseudo-random permutation (Luby and Rackoff 1988, SIAM J. Comput. 17:373); short words need more
)

Count = Annotated[int, Field(strict=True, ge=0)]
Token = Annotated[int, Field(strict=True, ge=0, le=2**31)]  # Megatron's widest type of tokens that fit is int32
Hash = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """Tokens of documents, each ended by `eos_id`, in two splits that share no document.

    `sha256` stands for the tokens of both splits and the tokenizer, not for names or places of files.
    """

    folder: Path
    vocab_size: Token
    eos_id: Token
    dtype: Literal["uint16", "int32"]
    tokenizer_sha256: Hash
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

    def hashes(self) -> dict[SplitName, str]:
        """The hash of each split, of the files' content as it is."""
        found: dict[SplitName, str] = {}
        tokenizer, itemsize = bytes.fromhex(self.tokenizer_sha256), np.dtype(self.dtype).itemsize
        for split in SPLITS:
            head = HASHED.pack(b"MOETOKNS", 1, itemsize, self.size(split)[0], self.vocab_size, tokenizer)
            with self.file(split).open("rb") as stream:
                found[split] = hashlib.file_digest(stream, lambda head=head: hashlib.sha256(head)).hexdigest()
        return found

    def hash_of(self, splits: Mapping[SplitName, str]) -> str:
        """The hash that stands for all tokens of the corpus and what they mean, from those of its splits."""
        listed = [[splits[split]] if self.size(split)[0] else [] for split in SPLITS]
        stated = [self.vocab_size, self.eos_id, self.tokenizer_sha256, listed]
        return hashlib.sha256(json.dumps(stated).encode()).hexdigest()

    def sequences(self, split: SplitName, length: int, seed: int, epoch: int = 0) -> Sequences:
        """The disjoint windows of `length` tokens of a split, in an order that seed, epoch and the corpus choose.

        Raises InputError where the split has fewer tokens than one window.
        """
        tokens, _ = self.size(split)
        count = tokens // length
        if not count:
            raise InputError(
                f"the {split} split has {tokens:,} tokens, fewer than one sequence of {length:,}",
                where=str(self.folder),
                nearest=str(tokens) if tokens else None,
                next_step="pack more text, a larger --validation share, or train on shorter sequences",
            )
        kept = np.memmap(self.file(split), dtype=np.dtype(self.dtype).newbyteorder("<"), mode="r")[: count * length]
        return Sequences(windows=kept.reshape(count, length), key=f"{self.sha256}:{split}:{seed}:{epoch}")

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
    """Windows of a split in training's order: position i is the i-th that is seen, an int64 array.

    No two positions share a token, and the order does not depend on how many are read, or where reading starts.
    """

    windows: NDArray[Any]  # (windows, length), memory-mapped, as they lie in the file
    key: str

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, position: int) -> NDArray[np.int64]:
        if not 0 <= position < len(self):
            raise IndexError(f"position {position} of {len(self)} sequences")
        return self.windows[permuted(position, len(self), self.key)].astype(np.int64)


def permuted(position: int, n: int, key: str) -> int:
    """The image of `position` under a permutation of 0 .. n - 1 that `key` chooses.

    A Feistel network on just enough bits, walked along its cycle until it is below n: no memory that grows with n, and no
    library that may change its own permutations.
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
    """The corpus of a folder that `pack` wrote; reads sizes and headers, no tokens.

    Raises InputError where there is none, and for files that are missing, cut off or others than those that were packed.
    """
    folder = Path(folder)
    content = read_description(folder)
    try:
        corpus = TypeAdapter(Corpus).validate_python({**content, "folder": folder})
    except ValidationError as error:
        first = error.errors()[0]
        raise _changed(folder / CORPUS, f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    if corpus.split_sha256.keys() != set(SPLITS) or corpus.hash_of(corpus.split_sha256) != corpus.sha256:
        raise _changed(folder / CORPUS, "its parts do not give its hash")
    tokenizer = _content(folder / TOKENIZER)
    if hashlib.sha256(tokenizer).hexdigest() != corpus.tokenizer_sha256:
        raise _changed(folder / TOKENIZER, f"its SHA-256 was {corpus.tokenizer_sha256}")
    for split in SPLITS:
        tokens, documents = corpus.size(split)
        data, index, head = corpus.file(split), folder / f"{split}.idx", index_head(corpus.dtype, documents)
        if _content(index, len(head)) != head:
            raise _changed(index, "its header is not that of this corpus")
        sizes = {data: tokens * np.dtype(corpus.dtype).itemsize, index: index_size(documents)}
        for path, needed in sizes.items():
            _content(path, 0)
            if (found := path.stat().st_size) != needed:
                raise _changed(path, f"it has {found:,} bytes in place of {needed:,}")
    return corpus


def verify(corpus: Corpus) -> None:
    """Read every token and compare the hashes; InputError names the first file that differs."""
    for split, found in corpus.hashes().items():
        if found != corpus.split_sha256[split]:
            raise _changed(corpus.file(split), "different SHA-256")


def read_description(folder: Path) -> dict[str, Any]:
    """The content of corpus.json; InputError where there is none, and for another format or version."""
    path = folder / CORPUS
    if not os.path.isfile(path):  # unlike Path.is_file, never an error
        raise InputError(
            f"is no packed corpus (it has no {CORPUS})",
            where=str(folder),
            nearest=None if os.path.isdir(folder) else nearest_file_names(folder),
            next_step="make one with `moescale pack`",
        )
    text = read_text(path, limit_bytes=2**31)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _changed(path, f"it is not JSON: {error}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise InputError("describes no packed corpus", where=str(path), next_step="make one with `moescale pack`")
    if content.get("version") != VERSION:
        what = f"has version {content.get('version')} of the format, and this program reads {VERSION}"
        raise InputError(what, where=str(path), next_step="delete the folder and pack again")
    return content


def write_index(path: Path, dtype: str, lengths: Sequence[int]) -> None:
    """Write Megatron-LM's index of documents of `lengths` tokens each, one sequence a document.

    After the head: int32 length of each sequence, int64 offset of each in bytes of the data file, int64 document bounds.
    """
    sizes = np.array(lengths, dtype="<i4")
    offsets = np.zeros(len(sizes) + 1, dtype="<i8")
    np.cumsum(sizes, out=offsets[1:])
    parts = (sizes, offsets[:-1] * np.dtype(dtype).itemsize, np.arange(len(sizes) + 1, dtype="<i8"))
    path.write_bytes(index_head(dtype, len(sizes)) + b"".join(part.tobytes() for part in parts))


def index_head(dtype: str, documents: int) -> bytes:
    """What such an index begins with."""
    return INDEX_HEAD.pack(b"MMIDIDX\0\0", 1, TOKEN_CODES[dtype], documents, documents + 1)


def index_size(documents: int) -> int:
    """Bytes of such an index."""
    return INDEX_HEAD.size + 12 * documents + 8 * (documents + 1)


def _content(path: Path, most: int = -1) -> bytes:
    """The first bytes of a file of the corpus."""
    try:
        with path.open("rb") as stream:
            return stream.read(most)
    except OSError as error:
        raise _changed(path, f"it cannot be read: {error.strerror or error}") from error


def _changed(path: Path, reason: str) -> InputError:
    return InputError(
        f"has been changed since it was packed ({reason})",
        where=str(path),
        next_step="copy it again, or delete the folder and pack again",
    )
