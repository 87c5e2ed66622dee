"""Tokenizers of the tokenizers library, the hub's streaming, and torch's loader on a packed corpus."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from moescale.errors import InputError
from moescale.experiments.pack import pack
from moescale.experiments.tokens import Tokenizer, byte_tokenizer, read_tokenizer

pytestmark = pytest.mark.engine
TEXTS = [f"def f{number}(x):\n    return x + {number}  # größer ∑ <|endoftext|>\n" for number in range(400)]


@pytest.fixture(autouse=True)
def _library() -> None:
    pytest.importorskip("tokenizers", reason="needs the extra train")


@pytest.fixture
def trained(tmp_path: Path) -> Tokenizer:
    """A byte-level BPE of 400 tokens, as the library trains it."""
    from tokenizers import ByteLevelBPETokenizer

    library = ByteLevelBPETokenizer(add_prefix_space=False)
    library.train_from_iterator(TEXTS, 400, special_tokens=["<|endoftext|>"], show_progress=False)
    library.save(str(tmp_path / "trained.json"))
    return read_tokenizer(tmp_path / "trained.json")


def test_tokens_give_back_the_text_and_never_an_end_within_it(trained: Tokenizer) -> None:
    import tokenizers

    made = trained
    tokens = made.encode(TEXTS)
    library = tokenizers.Tokenizer.from_str(made.json.decode())
    assert [library.decode(one.tolist(), skip_special_tokens=False) for one in tokens] == TEXTS
    assert all(made.eos_id not in one for one in tokens)
    assert sum(map(len, tokens)) < sum(len(text.encode()) for text in TEXTS) / 2


def test_byte_tokens_are_what_the_library_makes_of_their_file(tmp_path: Path) -> None:
    import tokenizers

    made = byte_tokenizer()
    library = tokenizers.Tokenizer.from_str(made.json.decode())
    library.encode_special_tokens = True
    for text in (*TEXTS[:20], bytes(range(128)).decode(), "", " \n\t\r\n "):
        tokens = made.encode([text])[0].tolist()
        assert library.encode(text).ids == tokens
        assert library.decode(tokens) == text
    assert library.token_to_id("<|endoftext|>") == made.eos_id
    (tmp_path / "t.json").write_bytes(made.json)
    assert read_tokenizer(tmp_path / "t.json").sha256 == made.sha256


def test_a_tokenizers_file_is_read_with_its_end_of_text(tmp_path: Path, trained: Tokenizer) -> None:
    path = tmp_path / "tokenizer.json"
    content = json.loads(trained.json)
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
    with pytest.raises(InputError, match="cannot be read: Bad split"):
        pack([f"hf:{data.parent}?split=test"], tmp_path / "c", tokenizer="bytes")
