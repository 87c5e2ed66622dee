"""Packing text and reading it in training's order: nothing lost, nothing twice, whole or absent after a kill."""

from __future__ import annotations

import contextlib
import gzip
import json
import struct
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from command_line import run
from examples import daily
from moescale.errors import InputError
from moescale.experiments import pack as packing
from moescale.experiments.corpus import Corpus, open_corpus, permuted, verify
from moescale.experiments.pack import byte_tokenizer, documents, pack, read_tokenizer

EOS = 256
# Surrogates are no text; everything else is, line breaks and a spelt-out end of text included.
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | st.just("a<|endoftext|>b")
# What version 0.1 gave: the order of a training must never change.
TEN = [0, 1, 6, 2, 4, 7, 8, 9, 5, 3]
BILLIONS = [361405040241, 730337614015, 790863889149]


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


@given(n=st.integers(1, 3000), key=st.text(max_size=5))
def test_the_order_is_a_permutation(n: int, key: str) -> None:
    assert sorted(permuted(position, n, key) for position in range(n)) == list(range(n))


def test_the_order_never_changes() -> None:
    assert [permuted(position, 10, "a") for position in range(10)] == TEN
    assert [permuted(position, 10**12, "b:train:0:0") for position in (0, 1, 10**12 - 1)] == BILLIONS


@pytest.mark.system
@given(texts=st.lists(TEXT, max_size=30), share=st.sampled_from([0.0, 0.3]), seed=st.integers(0, 9))
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
@daily(15)
@given(count=st.integers(1, 40), length=st.integers(1, 60), seed=st.integers(0, 9), data=st.data())
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
    read = [sequences[position] for position in range(n)]
    assert {each.dtype for each in read} == {np.dtype(np.int64)}
    windows = tokens[: n * length].reshape(n, length)
    assert Counter(map(tuple, read)) == Counter(map(tuple, windows))  # disjoint, and none is left out
    start = data.draw(st.integers(0, n - 1))
    again = open_corpus(folder / "out").sequences("train", length, seed)
    assert all(np.array_equal(again[position], read[position]) for position in range(start, n))
    for beyond in (n, -1):
        with pytest.raises(IndexError):
            sequences[beyond]


def test_the_order_depends_on_seed_epoch_and_corpus(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", some_texts(200))
    other = write_lines(tmp_path / "b.jsonl", some_texts(201))
    one, two = (pack([path], tmp_path / path.stem, tokenizer="bytes", validation=0) for path in (source, other))
    moved = tmp_path / "moved"
    (tmp_path / "a").rename(moved)
    corpus = open_corpus(moved)
    same = one.model_copy(update={"folder": moved})
    assert corpus.sequences("train", 16, seed=1).key == same.sequences("train", 16, seed=1).key
    drawn = [corpus.sequences("train", 16, seed=seed, epoch=epoch) for seed, epoch in ((1, 0), (2, 0), (1, 1))]
    keys = [found.key for found in (*drawn, two.sequences("train", 16, seed=1))]
    assert len({tuple(permuted(position, 100, key) for position in range(100)) for key in keys}) == 4


def test_max_tokens_are_exact_and_epochs_beyond_the_allowed_refused(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", some_texts(50))
    for most in (1, 500, 501):
        corpus = pack([source], tmp_path / str(most), tokenizer="bytes", validation=0, max_tokens=most)
        assert corpus.n_train == most
    every = pack([source], tmp_path / "all", tokenizer="bytes", validation=0, max_tokens=10**9)
    assert np.array_equal(stream(corpus, "train"), stream(every, "train")[:501])
    usable = every.n_train // 100 * 100
    assert every.epochs(usable, 100) == 1
    assert every.epochs(2 * usable, 100, max_epochs=2) == 2
    with pytest.raises(InputError, match=r"more than max_epochs = 1; nearest|more than max_epochs = 1;"):
        every.epochs(usable + 1, 100)


def test_every_format_gives_the_same_corpus(tmp_path: Path) -> None:
    texts = [*some_texts(60), "two\nlines", "größer ∑", "  "]
    plain = write_lines(tmp_path / "a.jsonl", texts)
    (tmp_path / "b.ndjson").write_bytes(b"\xef\xbb\xbf" + plain.read_bytes().replace(b"\n", b"\r\n\n"))
    (tmp_path / "folder" / "deep").mkdir(parents=True)
    for number, text in enumerate(texts):
        place = tmp_path / "folder" / ("deep" if number < 20 else "zz.txt") / f"{number:03d}.txt"
        place.parent.mkdir(exist_ok=True)
        place.write_text(text, encoding="utf-8", newline="")
    (tmp_path / "folder" / ".hidden.txt").write_text("not this")
    (tmp_path / "folder" / "image.png").write_bytes(b"\xff\xd8")
    found = {
        name: pack([tmp_path / name], tmp_path / f"out-{name}", tokenizer="bytes", validation=0.1)
        for name in ("a.jsonl", "b.ndjson", "folder")
    }
    assert len({corpus.sha256 for corpus in found.values()}) == 1, found
    assert texts_of(stream(found["folder"], "train"))[-1] == texts[-1]


def test_what_is_not_utf8_is_left_out_and_counted(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.py").write_bytes("# gr\xfcn\n".encode("latin-1"))
    (tmp_path / "in" / "b.jsonl").write_bytes(b'{"text": "\xfc"}\n{"text": "\\ud800"}\n{"text": null}\n{"text": "b"}')
    (tmp_path / "in" / "c.py").write_bytes(b"# green\n")
    said: list[str] = []
    corpus = pack([tmp_path / "in"], tmp_path / "out", tokenizer="bytes", validation=0, report=said.append)
    assert texts_of(stream(corpus, "train")) == ["b", "# green\n"]
    sources = json.loads((corpus.folder / "corpus.json").read_text())["sources"]
    assert [(source["documents"], source["skipped"]) for source in sources] == [(1, 1), (4, 3), (1, 0)]
    assert said == ["4 of 6 documents left out: empty, or not UTF-8"]


def test_megatron_reads_what_is_packed(tmp_path: Path) -> None:
    """The index, field by field as the format's readme lists them."""
    corpus = pack([write_lines(tmp_path / "a.jsonl", ["ab", "c"])], tmp_path / "out", tokenizer="bytes", validation=0)
    tokens = [97, 98, EOS, 99, EOS]
    assert (corpus.folder / "train.bin").read_bytes() == np.array(tokens, "<u2").tobytes()
    index = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 8, 2, 3)
    index += struct.pack("<2i", 3, 2) + struct.pack("<2q", 0, 6) + struct.pack("<3q", 0, 1, 2)
    assert (corpus.folder / "train.idx").read_bytes() == index


# Beside others; of a pack that is killed: test_faults.py.


def test_a_pack_that_fails_leaves_nothing_and_takes_nothing_of_others(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n{"text": 3}\n')
    assert "line 2: holds a int" in refused([tmp_path / "a.jsonl"], tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"a.jsonl"}
    (tmp_path / "refused").mkdir()
    (tmp_path / "refused" / "train.bin").write_text("of somebody else")
    assert "is there already, and is no packed corpus" in refused([write_lines(tmp_path / "b.jsonl", ["b"])], tmp_path)
    assert (tmp_path / "refused" / "train.bin").read_text() == "of somebody else"
    (tmp_path / "empty").mkdir()
    assert pack([tmp_path / "b.jsonl"], tmp_path / "empty", tokenizer="bytes", validation=0).n_train == 2


def test_packs_of_one_folder_wait_for_each_other(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", some_texts(300))
    found: list[Corpus] = []

    def packs() -> None:
        found.append(pack([source], tmp_path / "out", tokenizer="bytes", validation=0.1))

    threads = [threading.Thread(target=packs) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert all(corpus == found[0] for corpus in found)


def refused(sources: Sequence[str | Path], tmp_path: Path, **options: object) -> str:
    arguments: dict[str, object] = {"tokenizer": "bytes", "validation": 0, **options}
    with pytest.raises(InputError) as caught:
        pack(sources, tmp_path / "refused", **arguments)  # type: ignore[arg-type]
    assert not (tmp_path / "refused" / "corpus.json").exists()
    return str(caught.value)


def test_what_is_missing_or_malformed_is_named_with_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = write_lines(tmp_path / "web.jsonl", ["a"], field="texts")
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.txt").write_text("one document")
    assert "web.jsonl, line 1: has no field 'text'; nearest: texts" in refused([path], tmp_path)
    assert pack([path], tmp_path / "ok", tokenizer="bytes", validation=0, text_field="texts").n_train == 2
    for source, options, words in (
        ("webs.jsonl", {}, "nearest: web.jsonl"),
        ("*.parquet", {}, "no such file or folder"),
        ("cerebras/SlimPajama-627B", {}, "hf:cerebras/SlimPajama-627B"),
        ("empty", {}, "no file is given"),
        ("a.txt", {"tokenizer": "t.json"}, "no such file"),
        ("a.txt", {"validation": float("nan")}, "not a share"),
        ("a.txt", {"validation": 0.01}, "none of 1 documents fell into the validation split"),
    ):
        assert words in refused([source], tmp_path, **options)
    for content, words in (
        ('{"text": "a"}\n\n{"text": \n', "line 3: is not JSON"),
        ('{"text": 3}', "line 1: holds a int"),
        ("[1]", "line 1: holds a list"),
        ('{"text": ""}\n{"text": null}\n', "hold no text"),
    ):
        path.write_text(content)
        assert words in refused([path], tmp_path)


def test_a_finished_corpus_is_of_one_request(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", some_texts(20))

    def again(sources: Sequence[Path] = (source,), **options: object) -> str:
        arguments: dict[str, object] = {"tokenizer": "bytes", "validation": 0, **options}
        with pytest.raises(InputError) as caught:
            pack(sources, tmp_path / "out", **arguments)  # type: ignore[arg-type]
        return str(caught.value)

    whole = pack([tmp_path], tmp_path / "whole", tokenizer="bytes", validation=0)
    assert pack([tmp_path], tmp_path / "whole", tokenizer="bytes", validation=0) == whole  # no source of itself
    corpus = pack([source], tmp_path / "out", tokenizer="bytes", validation=0)
    assert "with other seed: 0, not 1" in again(seed=1)
    more = write_lines(tmp_path / "b.jsonl", ["b"])
    assert "with other sources: [[" in again([source, more])
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


def test_a_changed_corpus_does_not_open(packed: Corpus) -> None:
    tokens = packed.folder / "train.bin"
    bits = tokens.read_bytes()
    tokens.write_bytes(bytes([bits[0] ^ 1]) + bits[1:])
    open_corpus(packed.folder)  # reads no tokens
    with pytest.raises(InputError, match="different SHA-256"):
        verify(packed)
    tokens.write_bytes(bits)
    for name in ("train.bin", "train.idx", "tokenizer.json", "corpus.json"):
        path = packed.folder / name
        content = path.read_bytes()
        for changed in (b"", content[:10], content[:-2]):
            path.write_bytes(changed)
            assert refused_corpus(packed).startswith(f"{path}: ")
        path.unlink()
        assert refused_corpus(packed).startswith(str(packed.folder))
        path.write_bytes(content)
    assert open_corpus(packed.folder) == packed


@pytest.mark.parametrize(
    ("change", "words"),
    [({"eos_id": 3}, "do not give its hash"), ({"version": 1}, "a packed corpus of version 2"), ({"split_sha256": {}}, ""),
     ({"format": "other"}, "does not describe"), ({"dtype": "O"}, "damaged corpus at dtype"), ({"dtype": []}, ""),
     ({"vocab_size": "257"}, ""), ({"eos_id": 10**400}, ""), ({"eos_id": True}, ""), ({"n_train": -1}, ""),
     ({"n_train": 1.0}, ""), ({"tokenizer_sha256": "zz"}, ""), ({"split_sha256": None}, "")],
    ids=lambda given: str(given)[:30],
)  # fmt: skip
def test_a_description_that_no_pack_writes_is_refused_though_its_hash_fits(
    packed: Corpus, change: dict[str, Any], words: str
) -> None:
    path = packed.folder / "corpus.json"
    content = json.loads(path.read_text()) | change
    with contextlib.suppress(ValueError, LookupError, TypeError, AttributeError):
        parts = {name: content[name] for name in ("vocab_size", "tokenizer_sha256", "n_train")}
        content["sha256"] = packed.model_copy(update=parts).hash_of(content["split_sha256"])
    path.write_text(json.dumps(content))
    told = refused_corpus(packed)
    assert (words in told, str(path) in told) == (True, True)


def test_byte_tokens_are_those_of_the_usual_byte_alphabet() -> None:
    content = json.loads(byte_tokenizer().json)
    vocabulary = content["model"]["vocab"]
    assert sorted(vocabulary.values()) == list(range(256))
    assert (vocabulary["A"], vocabulary["Ġ"], vocabulary["Ċ"], vocabulary["Ń"]) == (65, 32, 10, 173)  # as GPT-2's
    assert [tokens.tolist() for tokens in byte_tokenizer().encode(["é", ""])] == [[195, 169], []]


def test_the_command_packs_and_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    asked = ("pack", write_lines(Path("a.jsonl"), some_texts(40)), "--tokenizer", "bytes", "--validation", 0.2)
    found = json.loads(run(*asked, "-o", "out", "--json").out)
    assert found == open_corpus(Path("out")).header()
    assert found.keys() >= {"vocab_size", "eos_id", "n_train", "n_validation", "sha256", "tokenizer_sha256"}
    assert f"{found['n_train']:,} training tokens" in run(*asked, "-o", "out").out
    assert found["sha256"] in run("pack", "--show", "out").out
    for wrong in ((), ("--show", "out", "-o", "x"), ("--show", tmp_path), ("-o", "x")):
        refused = run("pack", *wrong)
        assert (refused.code, refused.err.startswith("moescale: ")) == (2, True)


# Tokenizers of the library, and tables as `datasets` streams them.

TEXTS = [f"def f{number}(x):\n    return x + {number}  # größer ∑ <|endoftext|>\n" for number in range(400)]


@pytest.mark.engine
def test_tokens_give_back_the_text_and_never_an_end_within_it(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="needs the extra train")
    path = tmp_path / "trained.json"
    trainer = tokenizers.ByteLevelBPETokenizer(add_prefix_space=False)
    trainer.train_from_iterator(TEXTS, 400, special_tokens=["<|endoftext|>"], show_progress=False)
    trainer.save(str(path))
    made = read_tokenizer(path)
    tokens = made.encode(TEXTS)
    library = tokenizers.Tokenizer.from_str(made.json.decode())
    assert [library.decode(one.tolist(), skip_special_tokens=False) for one in tokens] == TEXTS
    assert all(made.eos_id not in one for one in tokens)
    assert sum(map(len, tokens)) < sum(len(text.encode()) for text in TEXTS) / 2
    with pytest.raises(InputError, match=r"has no token '<\|endoftxt\|>'; nearest: <\|endoftext\|>"):
        read_tokenizer(path, eos="<|endoftxt|>")
    path.write_text(path.read_text().replace("<|endoftext|>", "<stop>"))
    with pytest.raises(InputError, match="none of the usual names"):
        read_tokenizer(path)
    assert read_tokenizer(path, eos="<stop>").eos_id == 0
    path.write_text("{}")
    with pytest.raises(InputError, match="is not a tokenizers file"):
        read_tokenizer(path)
    # Byte tokens are what the library makes of their file.
    made = byte_tokenizer()
    library = tokenizers.Tokenizer.from_str(made.json.decode())
    library.encode_special_tokens = True
    for text in (*TEXTS[:20], bytes(range(128)).decode(), "", " \n\t\r\n "):
        tokens = made.encode([text])[0].tolist()
        assert (library.encode(text).ids, library.decode(tokens)) == (tokens, text)


def test_without_the_library_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(packing, "import_module", missing)
    (tmp_path / "b.csv").write_text("text\na\n")
    assert "b.csv: the package datasets is not installed; pip install '.[train]'" in refused(
        [tmp_path / "b.csv"], tmp_path
    )
    assert "the package tokenizers is not installed" in refused([tmp_path], tmp_path, tokenizer=tmp_path / "b.csv")


@pytest.mark.engine
@pytest.mark.filterwarnings("default")
def test_tables_give_the_texts_of_their_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    pytest.importorskip("datasets", reason="needs the extra train")
    csv, pa = pytest.importorskip("csv"), pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    texts = ["one", "two\nlines", "größer ∑", "NA", "12", "  ", 'a "quoted", word', *some_texts(3000)]
    # no pattern, a name
    pq.write_table(pa.table({"id": range(len(texts)), "text": texts}), tmp_path / "a[1]*?.parquet")
    for name, separator in (("b.csv", ","), ("c.tsv", "\t")):
        with (tmp_path / name).open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, delimiter=separator).writerows([["id", "text"], *enumerate(texts)])
    (tmp_path / "d.csv.gz").write_bytes(gzip.compress((tmp_path / "b.csv").read_bytes()))
    lines = write_lines(tmp_path / "lines.jsonl", texts)
    (tmp_path / "e.jsonl.gz").write_bytes(gzip.compress(lines.read_bytes()))
    (tmp_path / "f.json").write_text(json.dumps([{"text": text} for text in texts]))
    for name in ("a[1]*?.parquet", "b.csv", "c.tsv", "d.csv.gz", "e.jsonl.gz", "f.json"):
        assert list(documents(str(tmp_path / name))) == texts, name
    hub = tmp_path / "set"
    hub.mkdir()
    lines.rename(hub / "train.jsonl")
    assert list(documents(f"hf:{hub}?split=train")) == texts
    (tmp_path / "g.parquet").write_bytes(b"PAR1")
    (tmp_path / "h.csv").write_bytes("text\na\ngr\xfcn\n".encode("latin-1"))
    (tmp_path / "i.csv.gz").write_bytes(b"no gzip")
    for name, field, words in (
        (str(tmp_path / "b.csv"), "texts", "row 1: has no field 'texts'; nearest: text"),
        (str(tmp_path / "a[1]*?.parquet"), "id", "row 1: holds a int in 'id'"),
        (str(tmp_path / "g.parquet"), "text", "cannot be read: "),
        (str(tmp_path / "h.csv"), "text", "can't decode byte 0xfc"),
        (str(tmp_path / "i.csv.gz"), "text", "cannot be read: "),
        (f"hf:{hub}?split=test", "text", "cannot be read: "),
    ):
        with pytest.raises(InputError) as caught:
            list(documents(name, field))
        assert words in str(caught.value)
        assert str(caught.value).startswith(name)
