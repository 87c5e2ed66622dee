"""Tokenizers: from a tokenizers JSON file, or plain bytes, which need no library."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moescale.errors import InputError, install, nearest_names
from moescale.io.files import read_bytes

Tokens = NDArray[np.int64]
BYTES = "bytes"  # the name of the tokenizer whose tokens are bytes
END_OF_TEXT = "<|endoftext|>"
N_BYTES = 256
# What published tokenizers call the token between documents, commonest first; any other is named by the user.
EOS_NAMES = (END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[EOS]", "<｜end▁of▁sentence｜>")
LIMIT_BYTES = 256 * 2**20  # the largest published tokenizers have some tens of megabytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokenizer:
    """Text to tokens: `encode` maps texts to int64 arrays, without special tokens.

    `json` is the tokenizers file (empty where there is none, as for tokens made elsewhere); tokens are 0 .. vocab_size - 1,
    and `eos_id` ends a document.
    """

    vocab_size: int
    eos_id: int
    json: bytes = b""
    encode: Callable[[Sequence[str]], list[Tokens]] = field(repr=False)

    @property
    def sha256(self) -> str:
        """Hash of the tokenizers file in hex; empty where there is none."""
        return hashlib.sha256(self.json).hexdigest() if self.json else ""


def read_tokenizer(path: str | os.PathLike[str], *, eos: str | None = None) -> Tokenizer:
    """The tokenizer of a tokenizers JSON file, or byte tokens for the name "bytes" (256 bytes and an end of text).

    `eos` names the token that ends a document; by default the first of the usual names that it has. Raises InputError
    for a file that is missing or no tokenizer, for an `eos` that it lacks, and where the library is not installed.
    """
    name, made = os.fspath(path), byte_tokenizer()
    content = made.json if name == BYTES else read_bytes(path, limit_bytes=LIMIT_BYTES)
    if content == made.json and eos in (None, END_OF_TEXT):
        return made
    if name == BYTES:
        raise InputError(f"has no token {eos!r}", where=f"tokenizer {name}", nearest=END_OF_TEXT)
    return _from_json(content, eos, where=name)


def byte_tokenizer() -> Tokenizer:
    """Token b is byte b of the UTF-8 text, 256 is the end of text; its JSON says so to the tokenizers library."""
    split = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    end: dict[str, Any] = {"id": N_BYTES, "content": END_OF_TEXT}
    end |= dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False) | {"special": True}
    model: dict[str, Any] = {"type": "BPE"}
    model |= dict.fromkeys(("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"))
    model |= dict.fromkeys(("fuse_unk", "byte_fallback", "ignore_merges"), False)
    model |= {"vocab": {symbol: byte for byte, symbol in enumerate(byte_symbols())}, "merges": []}
    # In this order: the hash of a corpus is of these bytes.
    content = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [end], "normalizer": None}
    content |= {"pre_tokenizer": split, "post_processor": None, "decoder": split, "model": model}
    return Tokenizer(
        vocab_size=N_BYTES + 1,
        eos_id=N_BYTES,
        json=json.dumps(content, ensure_ascii=False).encode(),
        encode=lambda texts: [np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int64) for text in texts],
    )


def byte_symbols() -> list[str]:
    """The letter that byte-level tokenizers write for each byte (Radford et al. 2019, GPT-2): printable ones stay."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = iter(range(N_BYTES, 2 * N_BYTES))
    return [chr(byte if byte in printable else next(others)) for byte in range(N_BYTES)]


def _from_json(content: bytes, eos: str | None, *, where: str) -> Tokenizer:
    library = _library()
    try:
        tokenizer = library.Tokenizer.from_str(content.decode())
    except Exception as error:  # the library raises bare Exception for what is no tokenizer
        what, step = f"is not a tokenizers file: {str(error)[:200]}", "give a tokenizer.json of the tokenizers library"
        raise InputError(what, where=where, next_step=step) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True  # a document that spells out an end of text does not end there
    vocabulary: Mapping[str, int] = tokenizer.get_vocab(with_added_tokens=True)
    known = [name for name in ((eos,) if eos is not None else EOS_NAMES) if name in vocabulary]
    if not known:
        nearest = nearest_names(eos, vocabulary) if eos is not None else None
        what = (
            f"has no token {eos!r}"
            if eos is not None
            else "has none of the usual names of a token that ends a document"
        )
        raise InputError(what, where=where, nearest=nearest, next_step="name it with --eos")

    def encode(texts: Sequence[str]) -> list[Tokens]:
        found: list[Any] = tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(one.ids, dtype=np.int64) for one in found]

    size = max(vocabulary.values()) + 1
    return Tokenizer(vocab_size=size, eos_id=vocabulary[known[0]], json=content, encode=encode)


def _library() -> Any:
    try:
        library: Any = import_module("tokenizers")
    except ImportError as error:
        step = f"{install('train')}, or use the tokenizer `bytes`, which needs none"
        raise InputError("the package tokenizers is not installed", next_step=step) from error
    return library
