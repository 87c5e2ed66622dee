"""Megatron's indexed format: read from files that a writer of the test's own makes from the description."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moescale.errors import InputError
from moescale.experiments.megatron import common_end, documents, open_indexed
from moescale.experiments.pack import pack

Documents = list[list[list[int]]]  # documents of sequences of tokens
TYPES = {"<u1": 1, "<i2": 3, "<i4": 4, "<i8": 5, "<u2": 8}
EOS = 7


def write_indexed(prefix: Path, content: Documents, dtype: str, code: int, modes: bool = False) -> None:
    """PREFIX.bin and PREFIX.idx, field by field as the format's readme lists them."""
    sequences = [sequence for document in content for sequence in document]
    size = np.dtype(dtype).itemsize
    prefix.with_name(prefix.name + ".bin").write_bytes(b"".join(np.array(s, dtype).tobytes() for s in sequences))
    bounds, offset = [0], 0
    for document in content:
        bounds.append(bounds[-1] + len(document))
    index = b"MMIDIDX\x00\x00" + struct.pack("<Q", 1) + struct.pack("<B", code)
    index += struct.pack("<Q", len(sequences)) + struct.pack("<Q", len(bounds))
    index += b"".join(struct.pack("<i", len(sequence)) for sequence in sequences)
    for sequence in sequences:
        index += struct.pack("<q", offset)
        offset += len(sequence) * size
    index += b"".join(struct.pack("<q", bound) for bound in bounds)
    index += b"\x00" * len(sequences) if modes else b""
    prefix.with_name(prefix.name + ".idx").write_bytes(index)


TOKENS = st.lists(st.integers(0, 127), max_size=9)
CONTENT = st.lists(st.lists(TOKENS, max_size=3), max_size=9)


@pytest.mark.system
@settings(max_examples=60)
@given(content=CONTENT, dtype=st.sampled_from(list(TYPES)), modes=st.booleans())
def test_documents_are_read_as_written(
    tmp_path_factory: pytest.TempPathFactory, content: Documents, dtype: str, modes: bool
) -> None:
    prefix = tmp_path_factory.mktemp("m") / "a.b_text_document"
    write_indexed(prefix, content, dtype, TYPES[dtype], modes)
    wanted = [[token for sequence in document for token in sequence] for document in content if document]
    for name in (str(prefix), f"{prefix}.bin", f"{prefix}.idx"):
        data = open_indexed(name)
        assert [found.tolist() for found in documents(data)] == wanted
    ends = {document[-1] for document in wanted if document}
    assert common_end(data) == (ends.pop() if len(ends) == 1 else None)


@settings(max_examples=60)
@given(data=st.data())
def test_files_that_are_cut_off_are_refused(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    prefix = tmp_path_factory.mktemp("m") / "a"
    write_indexed(prefix, [[[1, 2, EOS]], [[3], [4, EOS]]], "<u2", 8)
    path = Path(f"{prefix}{data.draw(st.sampled_from(['.bin', '.idx']))}")
    content = path.read_bytes()
    path.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    with pytest.raises(InputError, match=r"cut off|not a Megatron index"):
        open_indexed(str(prefix))


@settings(max_examples=100)
@given(at=st.integers(0, 97), value=st.integers(0, 255))
def test_a_damaged_index_is_read_or_refused_never_a_crash(
    tmp_path_factory: pytest.TempPathFactory, at: int, value: int
) -> None:
    prefix = tmp_path_factory.mktemp("m") / "a"
    write_indexed(prefix, [[[1, 2, EOS]], [[3], [4, EOS]]], "<u2", 8)
    path = Path(f"{prefix}.idx")
    content = bytearray(path.read_bytes())
    content[at % len(content)] = value
    path.write_bytes(content)
    try:
        found = open_indexed(str(prefix))
    except InputError:
        return
    assert all(len(tokens) <= 6 for tokens in documents(found))


def test_a_pack_of_megatron_tokens_keeps_them(tmp_path: Path) -> None:
    content = [[[number, number + 1, EOS]] for number in range(8, 100)]
    write_indexed(tmp_path / "a", content, "<u2", 8)
    source = f"megatron:{tmp_path / 'a'}"
    corpus = pack([source], tmp_path / "out", validation=0)
    assert (corpus.vocab_size, corpus.eos_id, corpus.tokenizer_sha256) == (101, EOS, "")
    found = np.sort(corpus.sequences("train", 3, 0).batch(np.arange(92)), axis=0)
    assert found.tolist() == [document[0] for document in content]
    assert pack([source], tmp_path / "out", validation=0) == corpus
    stated = pack([source], tmp_path / "sized", validation=0.3, vocab_size=128)
    assert stated.vocab_size == 128
    assert stated.n_train + stated.n_validation == 3 * 92
    with_bytes = pack([source], tmp_path / "bytes", validation=0, tokenizer="bytes")
    assert (with_bytes.eos_id, with_bytes.n_train) == (256, 4 * 92)  # documents end as the tokenizer says


def test_large_vocabularies_take_four_bytes(tmp_path: Path) -> None:
    write_indexed(tmp_path / "a", [[[70_000, 2, 1]], [[5, 1]]], "<i4", 4)
    corpus = pack([f"megatron:{tmp_path / 'a'}"], tmp_path / "out", validation=0)
    assert (corpus.dtype, corpus.vocab_size, corpus.eos_id) == ("int32", 70_001, 1)
    assert corpus.sequences("train", 5, 0)[0].tolist() == [70_000, 2, 1, 5, 1]


def test_tokens_without_an_end_need_one(tmp_path: Path) -> None:
    write_indexed(tmp_path / "a", [[[1, 2]], [[3, 4]]], "<i4", 4)
    source = f"megatron:{tmp_path / 'a'}"
    with pytest.raises(InputError, match=r"--eos: no token is known to end a document"):
        pack([source], tmp_path / "out", validation=0)
    with pytest.raises(InputError, match="--eos is not a number"):
        pack([source], tmp_path / "out", validation=0, eos="</s>")
    with pytest.raises(InputError, match=r"holds token 4, and the vocabulary is 0 .. 3"):
        pack([source], tmp_path / "out", validation=0, eos="2", vocab_size=4)
    corpus = pack([source], tmp_path / "out", validation=0, eos="2", vocab_size=9)
    assert corpus.sequences("train", 5, 0)[0].tolist() == [1, 2, 3, 4, 2]


def test_what_the_format_cannot_say_is_refused(tmp_path: Path) -> None:
    write_indexed(tmp_path / "a", [[[2**31, EOS]]], "<i8", 5)
    with pytest.raises(InputError, match="holds token 2147483648"):
        pack([f"megatron:{tmp_path / 'a'}"], tmp_path / "out", validation=0)
    write_indexed(tmp_path / "b", [[[1, EOS]], [[2, EOS]]], "<u2", 8)
    index = bytearray((tmp_path / "b.idx").read_bytes())
    index[42:58] = struct.pack("<qq", 4, 0)  # the second before the first
    (tmp_path / "b.idx").write_bytes(index)
    with pytest.raises(InputError, match="do not follow each other"):
        open_indexed(str(tmp_path / "b"))


def test_a_corpus_is_what_the_readers_of_the_format_expect(tmp_path: Path) -> None:
    content = [[[number, number + 1, EOS]] for number in range(8, 100)]
    write_indexed(tmp_path / "a", content, "<u2", 8)
    corpus = pack([f"megatron:{tmp_path / 'a'}"], tmp_path / "out", validation=0)
    for suffix in (".bin", ".idx"):
        assert (corpus.folder / f"train{suffix}").read_bytes() == (tmp_path / f"a{suffix}").read_bytes()


def test_negative_tokens_and_floats_are_refused(tmp_path: Path) -> None:
    write_indexed(tmp_path / "a", [[[-1, EOS]]], "<i4", 4)
    with pytest.raises(InputError, match="holds token -1"):
        pack([f"megatron:{tmp_path / 'a'}"], tmp_path / "out", validation=0)
    write_indexed(tmp_path / "b", [[[1, EOS]]], "<f4", 7)
    with pytest.raises(InputError, match="numbers of type 7"):
        open_indexed(str(tmp_path / "b"))
    with pytest.raises(InputError, match="no such file"):
        open_indexed(str(tmp_path / "c"))


@pytest.mark.engine
def test_files_of_megatron_core_are_read(tmp_path: Path) -> None:
    indexed = pytest.importorskip("megatron.core.datasets.indexed_dataset", reason="megatron-core is not installed")
    torch = pytest.importorskip("torch")
    content = [[[1, 2, EOS]], [[3], [4, 5, EOS]]]
    builder = indexed.IndexedDatasetBuilder(str(tmp_path / "a.bin"), dtype=np.uint16)
    for document in content:
        for sequence in document:
            builder.add_item(torch.tensor(sequence))
        builder.end_document()
    builder.finalize(str(tmp_path / "a.idx"))
    found = [tokens.tolist() for tokens in documents(open_indexed(str(tmp_path / "a")))]
    assert found == [[1, 2, EOS], [3, 4, 5, EOS]]
    # And the test's own writer writes what megatron-core reads.
    write_indexed(tmp_path / "b", content, "<u2", 8)
    assert (tmp_path / "b.idx").read_bytes() == (tmp_path / "a.idx").read_bytes()
    assert (tmp_path / "b.bin").read_bytes() == (tmp_path / "a.bin").read_bytes()
