"""Tables as sources of text, which `datasets` streams: Parquet, CSV and TSV."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from moescale.errors import InputError
from moescale.experiments import sources
from moescale.experiments.pack import pack
from moescale.experiments.sources import documents, find_sources

pytestmark = pytest.mark.engine
TEXTS = ["one", "two\nlines", "größer ∑", "NA", "12", "  ", 'a "quoted", word', *(f"document {i}" for i in range(3000))]


@pytest.fixture(autouse=True)
def _library() -> None:
    pytest.importorskip("datasets", reason="needs the extra train")


def read(path: Path, **options: str) -> list[object]:
    return [document for source in find_sources([path]) for document in documents(source, **options)]


def write_csv(path: Path, separator: str) -> Path:
    with path.open("w", encoding="utf-8", newline="") as stream:
        rows = csv.writer(stream, delimiter=separator)
        rows.writerows([["id", "text"], *enumerate(TEXTS)])
    return path


def test_tables_give_the_texts_of_their_rows(tmp_path: Path) -> None:
    table = pa.table({"id": range(len(TEXTS)), "text": TEXTS})
    pq.write_table(table, tmp_path / "a[1]*?.parquet", row_group_size=700)  # no pattern, a name
    assert read(tmp_path / "a[1]*?.parquet") == TEXTS
    assert read(write_csv(tmp_path / "b.csv", ",")) == TEXTS
    assert read(write_csv(tmp_path / "c.tsv", "\t")) == TEXTS
    (tmp_path / "d.csv.gz").write_bytes(gzip.compress((tmp_path / "b.csv").read_bytes()))
    (tmp_path / "e.csv.zst").write_bytes(pa.compress((tmp_path / "b.csv").read_bytes(), codec="zstd", asbytes=True))
    assert read(tmp_path / "d.csv.gz") == read(tmp_path / "e.csv.zst") == TEXTS


def test_what_is_no_table_of_text_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"content": ["a"], "id": [1]}), tmp_path / "a.parquet")
    (tmp_path / "b.parquet").write_bytes(b"PAR1")
    (tmp_path / "c.csv").write_text("id,content\n1,a\n2,b\n")
    (tmp_path / "d.csv").write_bytes("text\na\ngr\xfcn\n".encode("latin-1"))
    (tmp_path / "e.csv").write_text("text\na\na,b,c\n")
    (tmp_path / "f.csv.gz").write_bytes(b"no gzip")
    for name, field, words in (
        ("a.parquet", "contents", "nearest: content"),
        ("a.parquet", "id", "row 1: holds a int in 'id'"),
        ("b.parquet", "text", "is not Parquet that can be read"),
        ("c.csv", "contents", "has no field 'contents'; nearest: content"),
        ("d.csv", "text", "can't decode byte 0xfc"),
        ("e.csv", "text", "Expected 1 fields in line 3, saw 3"),
        ("f.csv.gz", "text", "cannot be read"),
    ):
        with pytest.raises(InputError) as caught:
            read(tmp_path / name, text_field=field)
        assert words in str(caught.value), caught.value
        assert str(caught.value).startswith(str(tmp_path / name))


def test_a_small_table_that_unpacks_to_very_much_is_refused(tmp_path: Path) -> None:
    text = "x" * 100 * 2**20
    pq.write_table(pa.table({"text": [text]}), tmp_path / "a.parquet", compression="zstd")
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(f"text\n{text}\n".encode(), 9))
    for name in ("a.parquet", "b.csv.gz"):
        with pytest.raises(InputError, match="unpacks to"):
            pack([tmp_path / name], tmp_path / "out", tokenizer="bytes")


def test_without_the_library_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(sources, "import_module", missing)
    with pytest.raises(InputError, match=r"b.csv: the package datasets is not installed; pip install '\.\[train\]'"):
        read(write_csv(tmp_path / "b.csv", ","))


def test_a_parquet_file_with_two_columns_of_the_text_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table([["a"], ["b"]], names=["text", "text"]), tmp_path / "a.parquet")
    with pytest.raises(InputError, match="two columns are named 'text'"):
        pack([tmp_path / "a.parquet"], tmp_path / "out", tokenizer="bytes")


def test_one_long_text_a_thousand_times_over_is_read_a_few_at_a_time(tmp_path: Path) -> None:
    text = "x" * 200_000
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 40, pa.int32()), pa.array([text]))
    pq.write_table(pa.table({"text": column}), tmp_path / "a.parquet", store_schema=False)
    (source,) = find_sources([tmp_path / "a.parquet"])
    assert [document == text for document in documents(source)] == [True] * 40


def test_a_parquet_file_whose_columns_have_no_text_as_names_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["a"], "zqzq": [1]}), path, store_schema=False)
    path.write_bytes(path.read_bytes().replace(b"zqzq", b"\xff\xfe\xff\xfe"))
    with pytest.raises(InputError, match="is not Parquet that can be read") as caught:
        pack([path], tmp_path / "out", tokenizer="bytes")
    assert caught.value.where == str(path)
