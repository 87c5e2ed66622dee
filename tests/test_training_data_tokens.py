"""Tokenizers of the tokenizers library, the hub's streaming, and torch's loader on a packed corpus."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from moescale.errors import InputError
from moescale.experiments.pack import pack
from moescale.experiments.tokens import byte_tokenizer, read_tokenizer, train_tokenizer

pytestmark = pytest.mark.engine
TEXTS = [f"def f{number}(x):\n    return x + {number}  # größer ∑ <|endoftext|>\n" for number in range(400)]


@pytest.fixture(autouse=True)
def _library() -> None:
    pytest.importorskip("tokenizers", reason="needs the extra train")


def test_a_trained_tokenizer_is_the_same_every_time() -> None:
    one, two = train_tokenizer(TEXTS, 300), train_tokenizer(iter(TEXTS), 300)
    assert one.json == two.json
    assert (one.vocab_size, one.eos_id) == (300, 0)
    assert train_tokenizer(TEXTS[:3], 5000).vocab_size < 5000  # a small text has no more pairs
    with pytest.raises(InputError, match="nearest: 257"):
        train_tokenizer(TEXTS, 256)


def test_tokens_give_back_the_text_and_never_an_end_within_it() -> None:
    from tokenizers import Tokenizer

    made = train_tokenizer(TEXTS, 400)
    tokens = made.encode(TEXTS)
    library = Tokenizer.from_str(made.json.decode())
    assert [library.decode(one.tolist(), skip_special_tokens=False) for one in tokens] == TEXTS
    assert all(made.eos_id not in one for one in tokens)
    assert sum(map(len, tokens)) < sum(len(text.encode()) for text in TEXTS) / 2


def test_byte_tokens_are_what_the_library_makes_of_their_file(tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    made = byte_tokenizer()
    library = Tokenizer.from_str(made.json.decode())
    library.encode_special_tokens = True
    for text in (*TEXTS[:20], bytes(range(128)).decode(), "", " \n\t\r\n "):
        tokens = made.encode([text])[0].tolist()
        assert library.encode(text).ids == tokens
        assert library.decode(tokens) == text
    assert library.token_to_id("<|endoftext|>") == made.eos_id
    (tmp_path / "t.json").write_bytes(made.json)
    assert read_tokenizer(tmp_path / "t.json").sha256 == made.sha256


def test_a_tokenizers_file_is_read_with_its_end_of_text(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    content = json.loads(train_tokenizer(TEXTS, 300).json)
    content["added_tokens"][0]["content"] = "<stop>"
    content["model"]["vocab"] = {
        "<stop>" if token == "<|endoftext|>" else token: number for token, number in content["model"]["vocab"].items()
    }
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match="none of the usual names"):
        read_tokenizer(path)
    with pytest.raises(InputError, match="nearest: <stop>"):
        read_tokenizer(path, eos="<stp>")
    assert read_tokenizer(path, eos="<stop>").eos_id == 0
    path.write_text("{}")
    with pytest.raises(InputError, match="is not a tokenizers file"):
        read_tokenizer(path)


def test_a_pack_trains_its_tokenizer_to_the_same_corpus(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number, text in enumerate(TEXTS):
        (tmp_path / "in" / f"{number:03d}.py").write_text(text, encoding="utf-8")
    one, two = (pack([tmp_path / "in"], tmp_path / name, vocab_size=300, validation=0.1) for name in "ab")
    assert one.sha256 == two.sha256
    assert one.tokenizer_sha256 == read_tokenizer(tmp_path / "a" / "tokenizer.json").sha256
    assert (one.vocab_size, one.dtype) == (300, "uint16")


@pytest.mark.filterwarnings("default")
def test_the_hubs_streaming_is_read_from_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    pytest.importorskip("datasets", reason="needs the extra train")
    from moescale.experiments.sources import documents, find_sources

    data = tmp_path / "set" / "train.jsonl"
    data.parent.mkdir()
    data.write_text("".join(json.dumps({"text": text, "meta": 1}) + "\n" for text in TEXTS[:50]))
    (source,) = find_sources([f"hf:{data.parent}?split=train"])
    assert list(documents(source)) == TEXTS[:50]
    with pytest.raises(InputError, match=r"row 1: has no field 'content'.*there are: text, meta"):
        list(documents(source, text_field="content"))
    hub = pack([source.name], tmp_path / "a", tokenizer="bytes", validation=0)
    assert hub.sha256 == pack([data], tmp_path / "b", tokenizer="bytes", validation=0).sha256
    with pytest.raises(InputError, match="cannot be streamed"):
        pack([f"hf:{data.parent}?split=test"], tmp_path / "c", tokenizer="bytes")
