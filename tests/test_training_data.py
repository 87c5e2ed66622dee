"""Packing text and reading it in training's order: nothing lost, nothing twice, the same after a kill."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import os
import pickle
import signal
import struct
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moescale.errors import InputError
from moescale.experiments.corpus import Corpus, open_corpus, permuted, verify
from moescale.experiments.pack import pack
from moescale.experiments.sources import find_sources
from moescale.experiments.tokens import byte_tokenizer

ROOT = Path(__file__).parents[1]
EOS = 256
# Surrogates are no text; everything else is, line breaks and a spelt-out end of text included.
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | st.just("a<|endoftext|>b")


def write_lines(path: Path, texts: Iterable[str], field: str = "text") -> Path:
    path.write_text("".join(json.dumps({field: text}) + "\n" for text in texts), encoding="utf-8")
    return path


def stream(corpus: Corpus, split: str) -> np.ndarray:
    """All tokens of a split, in the order of the file."""
    return np.fromfile(corpus.folder / f"{split}.bin", dtype=np.dtype(corpus.dtype).newbyteorder("<")).astype(np.int64)


def texts_of(tokens: np.ndarray) -> list[str]:
    """The documents of a stream of byte tokens."""
    ends = np.flatnonzero(tokens == EOS)
    parts = np.split(tokens, ends + 1)
    assert parts[-1].size == 0, "the stream ends with an end of text"
    return [bytes(part[:-1].astype(np.uint8)).decode() for part in parts[:-1]]


def some_texts(count: int) -> list[str]:
    return [f"document {number} " + "x" * (number * 37 % 91) for number in range(count)]


# The order.


@given(n=st.integers(1, 3000), key=st.text(max_size=5))
def test_the_order_is_a_permutation(n: int, key: str) -> None:
    assert np.array_equal(np.sort(permuted(np.arange(n), n, key)), np.arange(n))


@pytest.mark.system
@given(n=st.integers(1, 2**62), key=st.text(max_size=5), data=st.data())
def test_any_position_is_computed_alone(n: int, key: str, data: st.DataObject) -> None:
    at = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=20, unique=True))
    found = permuted(at, n, key)
    assert ((found >= 0) & (found < n)).all()
    assert len(set(found.tolist())) == len(at)
    assert [int(permuted(one, n, key)) for one in at] == found.tolist()


@pytest.mark.system
def test_the_order_looks_random() -> None:
    n, keys = 50, 4000
    first = np.array([permuted([0, 1, 49], n, f"{key}") for key in range(keys)])
    for column in first.T:  # every image is as likely: chi-square of 49 degrees of freedom, 0.999 quantile 85.4
        counts = np.bincount(column, minlength=n)
        assert ((counts - keys / n) ** 2 / (keys / n)).sum() < 85.4
    order = permuted(np.arange(100_000), 100_000, "a")
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.02  # six standard errors


@given(n=st.integers(1, 10**12), key=st.text(max_size=5), data=st.data())
def test_the_order_is_what_whole_numbers_give(n: int, key: str, data: st.DataObject) -> None:
    """The published recipe in Python's own integers: an order must never change with a library."""

    def mixed(word: int) -> int:
        word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        word = (word ^ (word >> 27)) * 0x94D049BB133111EB % 2**64
        return word ^ (word >> 31)

    digest = hashlib.sha512(key.encode()).digest()
    keys = [int.from_bytes(digest[at : at + 8], "little") for at in range(0, 64, 8)]
    high = (n - 1).bit_length() // 2
    low = (n - 1).bit_length() - high
    position = word = data.draw(st.integers(0, n - 1))
    while True:
        left, right = divmod(word, 2**low)
        for number, one in enumerate(keys):
            if number % 2:
                right ^= mixed(left ^ one) % 2**low
            else:
                left ^= mixed(right ^ one) % 2**high
        word = left * 2**low + right
        if word < n:
            break
    assert int(permuted(position, n, key)) == word


# Packing.


@pytest.mark.system
@settings(max_examples=40)
@given(
    texts=st.lists(TEXT, max_size=30),
    share=st.sampled_from([0.0, 0.3]),
    seed=st.integers(0, 9),
)
def test_a_corpus_holds_every_document_once(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], share: float, seed: int
) -> None:
    folder = tmp_path_factory.mktemp("c")
    source = write_lines(folder / "a.jsonl", texts)
    kept = [text for text in texts if text]

    def run() -> Corpus:
        return pack([source], folder / "out", tokenizer="bytes", validation=share, seed=seed)

    try:
        corpus = run()
    except InputError as error:  # a split is empty, and says so
        assert not kept or "fell into" in str(error)  # noqa: PT017
        return
    splits = {split: texts_of(stream(corpus, split)) for split in ("train", "validation")}
    assert Counter(splits["train"]) + Counter(splits["validation"]) == Counter(kept)
    assert not set(splits["train"]) & set(splits["validation"])
    assert [text for text in kept if text in set(splits["train"])] == splits["train"]
    assert (corpus.n_train, corpus.n_validation) == tuple(len(stream(corpus, split)) for split in splits)
    assert (corpus.n_train_documents, corpus.n_validation_documents) == tuple(map(len, splits.values()))
    verify(corpus)
    assert run() == corpus == open_corpus(folder / "out")


@pytest.mark.system
@settings(max_examples=25)
@given(
    count=st.integers(1, 40),
    length=st.integers(1, 60),
    seed=st.integers(0, 9),
    data=st.data(),
)
def test_an_epoch_has_no_token_twice_and_goes_on_anywhere(
    tmp_path_factory: pytest.TempPathFactory, count: int, length: int, seed: int, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("c")
    source = write_lines(folder / "a.jsonl", some_texts(count))
    corpus = pack([source], folder / "out", tokenizer="bytes", validation=0)
    if corpus.n_train < length:
        with pytest.raises(InputError, match="fewer than one sequence"):
            corpus.sequences("train", length, seed)
        return
    tokens = stream(corpus, "train")
    sequences = corpus.sequences("train", length, seed)
    n = len(sequences)
    assert n == len(tokens) // length
    windows = sequences.windows(np.arange(n))
    assert sorted(windows.tolist()) == list(range(n))  # disjoint, and none is left out
    read = sequences.batch(np.arange(n))
    assert read.dtype == np.int64
    assert np.array_equal(read, tokens[: n * length].reshape(n, length)[windows])
    start = data.draw(st.integers(0, n - 1))
    again = pickle.loads(pickle.dumps(open_corpus(folder / "out").sequences("train", length, seed)))
    assert all(np.array_equal(again[position], read[position]) for position in range(start, n))
    with pytest.raises(IndexError):
        sequences[n]


def test_the_order_depends_on_seed_epoch_and_corpus(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", some_texts(200))
    other = write_lines(tmp_path / "b.jsonl", some_texts(201))
    one, two = (pack([path], tmp_path / path.stem, tokenizer="bytes", validation=0) for path in (source, other))
    moved = tmp_path / "moved"
    (tmp_path / "a").rename(moved)
    every = np.arange(100)
    base = open_corpus(moved).sequences("train", 16, seed=1).windows(every)
    assert np.array_equal(base, one.sequences("train", 16, seed=1).windows(every))  # not on the folder
    for other_order in (
        one.sequences("train", 16, seed=2),
        one.sequences("train", 16, seed=1, epoch=1),
        two.sequences("train", 16, seed=1),
    ):
        assert not np.array_equal(base, other_order.windows(every))


def test_opening_reads_no_tokens(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", some_texts(50))
    corpus = pack([source], tmp_path / "out", tokenizer="bytes", validation=0)
    path = corpus.folder / "train.bin"
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    open_corpus(tmp_path / "out")
    with pytest.raises(InputError, match="different SHA-256"):
        verify(corpus)


@pytest.mark.system
def test_the_validation_share_is_met(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", map(str, range(20_000)))
    for seed in (0, 1):
        corpus = pack([source], tmp_path / str(seed), tokenizer="bytes", validation=0.01, seed=seed)
        assert abs(corpus.n_validation_documents - 200) < 60  # four standard deviations


def test_max_tokens_are_exact(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", some_texts(50))
    for most in (1, 500, 501):
        corpus = pack([source], tmp_path / str(most), tokenizer="bytes", validation=0, max_tokens=most)
        assert corpus.n_train == most
    every = pack([source], tmp_path / "all", tokenizer="bytes", validation=0, max_tokens=10**9)
    assert np.array_equal(stream(corpus, "train"), stream(every, "train")[:501])


def test_epochs_beyond_the_allowed_are_refused(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", some_texts(50))
    corpus = pack([source], tmp_path / "out", tokenizer="bytes", validation=0)
    usable = corpus.n_train // 100 * 100
    assert corpus.epochs(usable, 100) == 1
    assert corpus.epochs(2 * usable, 100, max_epochs=2) == 2
    with pytest.raises(InputError, match=r"more than max_epochs = 1; nearest|more than max_epochs = 1;"):
        corpus.epochs(usable + 1, 100)


# Formats.


def test_every_format_gives_the_same_corpus(tmp_path: Path) -> None:
    texts = [*some_texts(60), "two\nlines", "größer ∑", "  "]
    plain = write_lines(tmp_path / "a.jsonl", texts)
    content = plain.read_bytes()
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(content))
    half = len(content) // 2  # two frames, as appended files have
    frames = b"".join(pa.compress(part, codec="zstd", asbytes=True) for part in (content[:half], content[half:]))
    (tmp_path / "c.jsonl.zst").write_bytes(frames)
    (tmp_path / "d.json").write_text(json.dumps([{"text": text, "id": 1} for text in texts]))
    (tmp_path / "e.json").write_bytes(content)
    (tmp_path / "folder" / "deep").mkdir(parents=True)
    for number, text in enumerate(texts):
        place = tmp_path / "folder" / ("deep" if number < 20 else "zz.txt") / f"{number:03d}.txt"
        place.parent.mkdir(exist_ok=True)
        place.write_text(text, encoding="utf-8", newline="")
    (tmp_path / "folder" / ".hidden.txt").write_text("not this")
    (tmp_path / "folder" / "image.png").write_bytes(b"\xff\xd8")
    names = ["a.jsonl", "b.jsonl.gz", "c.jsonl.zst", "d.json", "e.json", "folder", "folder/**/*.txt"]
    found = {
        name: pack([tmp_path / name], tmp_path / f"out{number}", tokenizer="bytes", validation=0.1)
        for number, name in enumerate(names)
    }
    assert len({corpus.sha256 for corpus in found.values()}) == 1, found
    assert texts_of(stream(found["folder"], "train"))[-1] == texts[-1]


def test_patterns_leave_files_out(tmp_path: Path) -> None:
    for name in ("a.py", "site-packages/b.py", "test/c.py", "d_test.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    found = find_sources([tmp_path], exclude=["site-packages", "*_test.py"])
    assert [Path(source.name).name for source in found] == ["a.py", "c.py"]
    with pytest.raises(InputError, match="no file is left"):
        find_sources([tmp_path], exclude=["*.py"])


def test_the_corpus_is_no_source_of_itself(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    corpus = pack([tmp_path], tmp_path / "out", tokenizer="bytes", validation=0)
    assert pack([tmp_path], tmp_path / "out", tokenizer="bytes", validation=0) == corpus


# After a kill.

KILLED = """
import os, signal, sys
from moescale.experiments import pack as data
left = int(sys.argv[3])
class Writer(data.megatron.IndexedWriter):
    def add(self, document):
        global left
        left -= 1
        if left == 0:
            self.stream.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        super().add(document)
    def finish(self):
        super().finish()
        if left > 0 and "validation" in self.file:  # all but corpus.json is written
            os.kill(os.getpid(), signal.SIGKILL)
data.megatron.IndexedWriter = Writer
data.pack([sys.argv[1]], sys.argv[2], tokenizer="bytes", validation=0.1, seed=3)
"""


def killed(source: Path, folder: Path, document: int) -> int:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    arguments = [sys.executable, "-c", KILLED, str(source), str(folder), str(document)]
    return subprocess.run(arguments, env=environment, check=False, timeout=60).returncode


@pytest.mark.system
@pytest.mark.skipif(os.name == "nt", reason="there is no SIGKILL")
@pytest.mark.parametrize("document", [1, 100, 10**6])
def test_what_a_killed_pack_left_is_packed_anew(tmp_path: Path, document: int) -> None:
    source = write_lines(tmp_path / "a.jsonl", some_texts(300))
    folder = tmp_path / "out"
    assert killed(source, folder, document) == -signal.SIGKILL
    (folder / ".moescale-0.tmp").write_bytes(b"half")
    with pytest.raises(InputError, match="unfinished pack"):
        open_corpus(folder)
    corpus = pack([source], folder, tokenizer="bytes", validation=0.1, seed=3)
    whole = pack([source], tmp_path / "whole", tokenizer="bytes", validation=0.1, seed=3)
    assert corpus.sha256 == whole.sha256
    verify(corpus)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        path.name: path.read_bytes() for path in whole.folder.iterdir()
    }


def test_a_pack_that_fails_leaves_nothing_and_takes_nothing_of_others(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n{"text": 3}\n')
    assert "line 2: holds a int" in refused([tmp_path / "a.jsonl"], tmp_path)
    assert {path.name for path in (tmp_path / "refused").iterdir()} <= {".lock", "tokenizer.json"}
    (tmp_path / "refused" / "train.bin").write_text("of somebody else")
    assert "train.bin: is in the way" in refused([write_lines(tmp_path / "b.jsonl", ["b"])], tmp_path)
    assert (tmp_path / "refused" / "train.bin").read_text() == "of somebody else"


def test_packs_of_one_folder_wait_for_each_other(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", some_texts(300))
    found: list[Corpus] = []
    threads = [
        threading.Thread(
            target=lambda: found.append(pack([source], tmp_path / "out", tokenizer="bytes", validation=0.1))
        )
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert all(corpus == found[0] for corpus in found)


# Refusals.


def refused(sources: Sequence[str | Path], tmp_path: Path, **options: object) -> str:
    arguments: dict[str, object] = {"tokenizer": "bytes", "validation": 0, **options}
    with pytest.raises(InputError) as caught:
        pack(sources, tmp_path / "refused", **arguments)  # type: ignore[arg-type]
    assert not (tmp_path / "refused" / "corpus.json").exists()
    return str(caught.value)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    write_lines(tmp_path / "web.jsonl", ["a"])
    assert "nearest: web.jsonl" in refused([tmp_path / "webs.jsonl"], tmp_path)
    assert "no such file or folder" in refused([tmp_path / "*.parquet"], tmp_path)
    assert "no source is given" in refused([], tmp_path)
    assert "hf:cerebras/SlimPajama-627B" in refused(["cerebras/SlimPajama-627B"], tmp_path)
    assert "nearest: split" in refused(["hf:cerebras/SlimPajama-627B?splits=train"], tmp_path)
    (tmp_path / "empty").mkdir()
    assert "no file is left" in refused([tmp_path / "empty"], tmp_path)
    assert "no tokenizer is given" in refused([tmp_path / "web.jsonl"], tmp_path, tokenizer=None)
    assert "no such file" in refused([tmp_path / "web.jsonl"], tmp_path, tokenizer=tmp_path / "t.json")
    assert "leave it out" in refused([tmp_path / "web.jsonl"], tmp_path, vocab_size=300)
    assert "nearest: skip" in refused([tmp_path / "web.jsonl"], tmp_path, undecodable="skp")
    assert "not a share" in refused([tmp_path / "web.jsonl"], tmp_path, validation=float("nan"))


@pytest.mark.system
@pytest.mark.parametrize(
    "name", ["", "\0", "\0*", "x" * 5000, "[" * 3000, "hf:", "hf:?split=a", "megatron:", "megatron:\0", "."]
)
def test_names_that_are_none_are_refused(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    refused([name], tmp_path)
    (tmp_path / "a.txt").write_text("a")
    if name not in ("", "."):
        refused(["a.txt"], tmp_path, tokenizer=name)
    if name in ("\0", "\0*", "x" * 5000, "[" * 3000):
        with pytest.raises(InputError, match="cannot be made a folder"):
            pack(["a.txt"], name, tokenizer="bytes", validation=0)
        with pytest.raises(InputError, match="is no packed corpus"):
            open_corpus(name)


def test_a_folder_must_be_one(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("a")
    with pytest.raises(InputError, match="cannot be made a folder"):
        pack([file], file, tokenizer="bytes", validation=0)
    with pytest.raises(InputError, match="is the only source itself"):
        pack([file], tmp_path, tokenizer="bytes", validation=0)


def test_missing_fields_and_bad_content_have_a_place(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    write_lines(path, ["a"], field="texts")
    told = refused([path], tmp_path)
    assert "a.jsonl, line 1: has no field 'text'; nearest: texts" in told
    assert pack([path], tmp_path / "ok", tokenizer="bytes", validation=0, text_field="texts").n_train == 2
    for content, words in (
        ('{"text": "a"}\n\n{"text": \n', "line 3: is not JSON"),
        ('{"text": 3}', "line 1: holds a int"),
        ("[1]", "line 1, element 1: holds a int"),
        ('{"text": "a"}\n{"text": "\\ud800"}', "line 2: holds a lone surrogate"),
    ):
        path.write_text(content)
        assert words in refused([path], tmp_path)
    (tmp_path / "b.jsonl.gz").write_bytes(b"not gzip")
    assert "b.jsonl.gz: cannot be read" in refused([tmp_path / "b.jsonl.gz"], tmp_path)
    whole = gzip.compress(b'{"text": "a"}\n' * 100)
    (tmp_path / "b.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    assert "b.jsonl.gz: cannot be read" in refused([tmp_path / "b.jsonl.gz"], tmp_path)
    (tmp_path / "c.txt.zst").write_bytes(b"not zstandard")
    assert "c.txt.zst: cannot be read" in refused([tmp_path / "c.txt.zst"], tmp_path)
    path.write_text('{"text": ""}\n{"text": null}\n')
    assert "hold no text" in refused([path], tmp_path)


def test_what_is_not_utf8_is_refused_or_left_out(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.py").write_bytes("# gr\xfcn\n".encode("latin-1"))
    (tmp_path / "in" / "b.py").write_bytes(b"# green\n")
    told = refused([tmp_path / "in"], tmp_path)
    assert "a.py: is not UTF-8: byte 0xfc at offset 4, line 1" in told
    assert "--undecodable skip" in told
    corpus = pack([tmp_path / "in"], tmp_path / "ok", tokenizer="bytes", validation=0, undecodable="skip")
    assert texts_of(stream(corpus, "train")) == ["# green\n"]
    sources = json.loads((corpus.folder / "corpus.json").read_text())["sources"]
    assert [source["skipped"] for source in sources] == [1, 0]


def test_a_split_without_documents_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one document")
    told = refused([tmp_path / "a.txt"], tmp_path, validation=0.01)
    assert "none of 1 documents fell into the validation split" in told
    assert "--validation 0 for none" in told


def test_a_finished_corpus_is_of_one_request(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", some_texts(20))
    other = tmp_path / "tokenizer.json"
    other.write_text("{}")

    def again(sources: Sequence[Path] = (source,), **options: object) -> str:
        arguments: dict[str, object] = {"tokenizer": "bytes", "validation": 0, **options}
        with pytest.raises(InputError) as caught:
            pack(sources, tmp_path / "out", **arguments)  # type: ignore[arg-type]
        return str(caught.value)

    corpus = pack([source], tmp_path / "out", tokenizer="bytes", validation=0)
    assert "with other tokenizer_sha256" in again(tokenizer=other)
    assert "with other seed: 0, not 1" in again(seed=1)
    more = write_lines(tmp_path / "b.jsonl", ["b"])
    assert f"with other sources: {more.as_posix()}" in again([source, more])
    write_lines(source, some_texts(21))
    assert "with other sources" in again()
    assert open_corpus(tmp_path / "out") == corpus


@pytest.fixture
def packed(tmp_path: Path) -> Corpus:
    source = write_lines(tmp_path / "a.jsonl", some_texts(40))
    return pack([source], tmp_path / "out", tokenizer="bytes", validation=0.2)


def refused_corpus(corpus: Corpus) -> str:
    with pytest.raises(InputError) as caught:
        open_corpus(corpus.folder)
    return str(caught.value)


@pytest.mark.parametrize("name", ["train.bin", "train.idx"])
@pytest.mark.parametrize("size", [0, 10, -1])
def test_a_file_that_is_cut_off_does_not_open(packed: Corpus, name: str, size: int) -> None:
    path = packed.folder / name
    content = path.read_bytes()
    path.write_bytes(content[:size])
    assert f"{path}: has {len(content[:size]):,} bytes where" in refused_corpus(packed)


def test_a_changed_corpus_does_not_open(packed: Corpus) -> None:
    tokenizer = packed.folder / "tokenizer.json"
    kept = tokenizer.read_bytes()
    tokenizer.write_bytes(kept + b" ")
    assert "tokenizer.json: is not the tokenizer that the corpus was packed with" in refused_corpus(packed)
    tokenizer.unlink()
    assert "tokenizer.json: is missing" in refused_corpus(packed)
    tokenizer.write_bytes(kept)
    index = packed.folder / "train.idx"
    content = index.read_bytes()
    index.write_bytes(b"NOTTOKNS" + content[8:])
    assert "its header is not that of this corpus" in refused_corpus(packed)
    index.unlink()
    assert "cannot be read: No such file" in refused_corpus(packed)
    index.write_bytes(content)
    assert open_corpus(packed.folder) == packed
    description = packed.folder / "corpus.json"
    content = json.loads(description.read_text())
    for key, value, words in (
        ("eos_id", 3, "do not give its hash"),
        ("version", 1, "version 1 of the format, and this program reads 2; delete the folder and pack again"),
        ("split_sha256", {}, "has been changed"),
        ("dtype", "text", "has been changed"),
        ("format", "other", "describes no packed corpus"),
    ):
        description.write_text(json.dumps({**content, key: value}))
        assert words in refused_corpus(packed)
    description.write_text("{")
    assert "is not JSON" in refused_corpus(packed)


def test_splits_and_lengths_are_checked(packed: Corpus) -> None:
    with pytest.raises(InputError, match="nearest: validation"):
        packed.sequences("valid", 16, 0)
    with pytest.raises(InputError, match="needs at least one token"):
        packed.sequences("train", 0, 0)
    with pytest.raises(IndexError):
        packed.sequences("train", 16, 0).batch([0, 10**6])
    with pytest.raises(IndexError):
        packed.sequences("train", 16, 0)[-1]


def test_byte_tokens_are_those_of_the_usual_byte_alphabet() -> None:
    content = json.loads(byte_tokenizer().json)
    vocabulary = content["model"]["vocab"]
    assert sorted(vocabulary.values()) == list(range(256))
    assert (vocabulary["A"], vocabulary["Ġ"], vocabulary["Ċ"], vocabulary["Ń"]) == (65, 32, 10, 173)  # as GPT-2's
    assert [tokens.tolist() for tokens in byte_tokenizer().encode(["é", ""])] == [[195, 169], []]


# The command.


def test_the_command_packs_and_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from moescale.cli import main

    source = write_lines(tmp_path / "a.jsonl", some_texts(40))
    out = tmp_path / "out"
    arguments = ["pack", str(source), "--tokenizer", "bytes", "--validation", "0.2", "-o", str(out)]
    main([*arguments, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found == open_corpus(out).header()
    assert found.keys() >= {"vocab_size", "eos_id", "n_train", "n_validation", "sha256", "tokenizer_sha256"}
    main(arguments)
    assert f"{found['n_train']:,} training tokens" in capsys.readouterr().out
    main(["pack", "--show", str(out)])
    assert found["sha256"] in capsys.readouterr().out
    for wrong in (
        ["pack"],
        ["pack", "--show", str(out), "-o", "x"],
        ["pack", "--show", str(tmp_path)],
        ["pack", "-o", "x"],
    ):
        with contextlib.chdir(tmp_path), pytest.raises(SystemExit) as stop:
            main(wrong)
        assert stop.value.code == 2
        assert capsys.readouterr().err.startswith("moescale: ")


@pytest.mark.system
@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "O"},
        {"dtype": "float64"},
        {"dtype": []},
        {"vocab_size": "257"},
        {"eos_id": 10**400},
        {"eos_id": -1},
        {"eos_id": True},
        {"tokenizer_sha256": "zz"},
        {"tokenizer_sha256": []},
        {"tokenizer_sha256": None},
        {"split_sha256": None},
        {"n_train": -1},
        {"n_train": 1.0},
        {"n_train_documents": float("inf")},
    ],
    ids=str,
)
def test_a_description_that_no_pack_writes_is_refused_though_its_hash_fits(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    corpus = pack(
        [write_lines(tmp_path / "a.jsonl", some_texts(50))], tmp_path / "out", tokenizer="bytes", validation=0.2
    )
    path = corpus.folder / "corpus.json"
    content = json.loads(path.read_text())
    content |= change
    with contextlib.suppress(ValueError, TypeError, AttributeError, struct.error):
        parts = {name: content[name] for name in ("vocab_size", "eos_id", "tokenizer_sha256", "n_train")}
        content["sha256"] = replace(corpus, **parts).hash_of(content["split_sha256"])
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match="has been changed since") as caught:
        open_corpus(corpus.folder)
    assert str(path) in str(caught.value)


@pytest.mark.system
@pytest.mark.parametrize("name", ["a.txt.gz", "a.jsonl.gz", "a.json.gz", "a.jsonl.zst"])
def test_a_small_file_that_unpacks_to_very_much_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    text = b"x" * 100 * 2**20
    if name.endswith(".zst"):
        path.write_bytes(pa.compress(text, codec="zstd", asbytes=True))
    else:
        path.write_bytes(gzip.compress(text, 9))
    with pytest.raises(InputError, match=r"larger than|unpacks to") as caught:
        pack([path], tmp_path / "out", tokenizer="bytes")
    assert str(path) in str(caught.value)
