"""Faults of run tables are named where they stand: cells, files, frames, questions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from moescale.errors import InputError
from moescale.runs.table import read_runs
from run_tables import CSV, HEADER, ROWS, json_lines, parquet, three_runs, write


def _bad_csv_cases() -> list[tuple[str, tuple[str, ...]]]:
    def cell(old: str, new: str) -> str:
        return CSV.replace(old, new)

    return [
        (cell("4000000000", ""), ("data row 2, column 'tokens'", "an empty cell is missing")),
        (cell("4000000000", "NaN"), ("data row 2, column 'tokens'", "'NaN' is missing")),
        (cell("4000000000", "4 billion"), ("data row 2, column 'tokens'", "'4 billion' is not a number", "7e9")),
        (cell("4000000000", '"4,000"'), ("'4,000' is not a number",)),
        (cell("4000000000", "-5"), ("data row 2, column 'tokens'", "'-5' is not positive")),
        (cell("4000000000", "inf"), ("'inf' is not finite",)),
        (cell("2e8", "true"), ("data row 2, column 'n_params_dense'", "'true' is not a number")),
        (cell("b,2e8,8", "b,2e8,0.5"), ("column 'n_experts'", "'0.5' is less than 1")),
        (cell("b,2e8,8", "b,2e8,0"), ("column 'n_experts'", "dense models have 1")),
        (cell("2.9", "0"), ("column 'loss'", "is not positive")),
        (CSV + "d,1,1,x,1,t\ne,1,1,y,1,t\n", ("data row 4", "and 1 more such rows")),
        (cell("n_experts", "num_experts"), ("no column 'n_experts'", "nearest: num_experts", "1 for dense")),
        (cell("tokens", "token"), ("no column 'tokens'", "nearest: token", "columns: run_id")),
        (cell("loss", "final_loss"), ("no column 'loss'", "final_loss", "--loss-column")),
        (cell("n_params_dense", "n_param"), ("no size column", "nearest: n_param", "--size-column")),
        (cell("split", "loss"), ("two columns are named 'loss'",)),
        (cell("split", " loss "), ("two columns are named 'loss'",)),
        (CSV + "d,1e8\n", ("data row 4", "2 cells", "header has 6")),
        (CSV + "d,1e8,1,1e9,3,train,more\n", ("data row 4", "7 cells")),
        (HEADER, ("no rows",)),
        ("", ("empty",)),
        ("\n \n", ("empty",)),
        (cell("split", "diverged"), ("data row 1, column 'diverged'", "'train' is neither true nor false")),
        (CSV.replace("split", "diverged").replace("train", "1").replace("test", "1"), ("marked as diverged",)),
        (ROWS, ("no size column",)),
        ("# runs of March\n", ("begin with # and nothing else", "column names")),
        ("# runs of March\n# 3,4\n" + CSV.replace("2.9", "x"), ("data row 2, column 'loss'", "'x' is not a number")),
        ("# runs\n" + CSV + "d,1\n", ("data row 4", "a row of 2 cells")),
        (CSV.replace("b,", '"b,'), ("data row 2", "quotes do not pair up")),
    ]


def refused(path: Path, words: tuple[str, ...]) -> None:
    """The file is, with its path first and every word of what is wrong."""
    with pytest.raises(InputError) as caught:
        read_runs(path)
    assert str(caught.value).startswith(str(path))
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize(("text", "words"), _bad_csv_cases())
def test_a_fault_is_named_where_it_stands(tmp_path: Path, text: str, words: tuple[str, ...]) -> None:
    refused(write(tmp_path, text), words)


def of_tokens(*tokens: Any) -> str:
    return json_lines(three_runs() | {"tokens": list(tokens)})


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("r.csv", CSV.replace("train", "tr\u00e4in").encode("latin-1"), ("not UTF-8", "line 2")),
        ("r.csv", CSV.encode("utf-16"), ("not UTF-8", "UTF-16")),
        ("r.csv.gz", b"\x1f\x8b\x08\x00", ("suffix '.gz'", "supported: CSV")),
        ("r.xlsx", b"PK\x03\x04rest", ("suffix '.xlsx'", "CSV (.csv)")),
        ("r.weights", b"\x00\x01\x02", ("suffix '.weights'", "supported: CSV")),
        ("r.parquet", b"PAR1 but no more", ("not a readable Parquet",)),
        ("r.parquet", CSV, ("not a readable Parquet",)),
        ("r.parquet", parquet(pa.table(three_runs()))[:-30], ("not a readable Parquet",)),
        (
            "r.parquet",
            parquet(pa.table(three_runs() | {"tokens": [[1], [2], [3]]})),
            ("data row 1", "'[1]' is not a num"),
        ),
        ("r.parquet", parquet(pa.table(three_runs()).slice(0, 0)), ("no rows",)),
        ("r.jsonl", '{"runs": [{"tokens": 1}]}\n', ("no size column", "columns: runs")),
        ("r.jsonl", of_tokens(1, "x", 2), ("data row 2, column 'tokens'", "'x' is not")),
        ("r.jsonl", of_tokens(1, {"n": 2}, 2), ("data row 2, column 'tokens'", "is not a n")),
        ("r.jsonl", of_tokens(1, True, 2), ("data row 2, column 'tokens'", "'true' is not")),
        ("r.jsonl", of_tokens(1, None, 2), ("data row 2, column 'tokens'", "is missing")),
        ("r.jsonl", json_lines(three_runs()) + '{"tokens": \n', ("line 4", "is not JSON")),
        ("r.jsonl", json_lines(three_runs()) + "5\n", ("data row 4", "must be an object, not 5")),
        ("r.jsonl", '{"tokens": 1, "tokens": 2}\n', ("two columns are named 'tokens'",)),
        ("r.jsonl", "null", ("data row 1", "must be an object, not null")),
        ("r.jsonl", "{\n" + json_lines(three_runs())[1:], ("line 1", "one JSON object a line")),
        ("r.json", "[1, 2]", ("data row 1", "must be an object")),
        ("r.json", "[" * 100_000, ("is not JSON: it is nested too deeply",)),
        ("r.json", "[]", ("no size column",)),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, name: str, content: str | bytes, words: tuple[str, ...]) -> None:
    refused(write(tmp_path, content, name), words)


def test_a_missing_file_names_the_nearest(tmp_path: Path) -> None:
    write(tmp_path, CSV, "runs_2024.csv")
    with pytest.raises(InputError, match=r"no such file; nearest: runs_2024\.csv"):
        read_runs(tmp_path / "runs_2023.csv")
    with pytest.raises(InputError, match="is a folder"):
        read_runs(tmp_path)


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (pd.DataFrame({**three_runs(), "tokens": [1, "x", 2]}), ("frame, data row 2, column 'tokens'", "'x' is not")),
        (pd.DataFrame({**three_runs(), "tokens": [1, None, 2]}), ("frame, data row 2, column 'tokens'", "is missing")),
        (pd.DataFrame({**three_runs(), "tokens": pd.array([1, None, 2], "Int64")}), ("data row 2", "is missing")),
        (pd.DataFrame({**three_runs(), "tokens": pd.to_datetime(["2024"] * 3)}), ("data row 1", "is not a number")),
        (pd.DataFrame([[1, 2]], columns=["loss", "loss"]), ("unique column names", "'loss' 2 times")),
        (pd.DataFrame([[1, 2]]), ("no size column",)),
        (pd.DataFrame(), ("no size column",)),
        (pl.DataFrame({**three_runs(), "loss": [1.0, float("inf"), 2]}), ("data row 2, column 'loss'", "not finite")),
        (pa.table([[1.0], [2.0]], names=["loss", "loss"]), ("unique column names", "'loss' 2 times")),
        ({**three_runs(), "loss": [1.0]}, ("differ in length",)),
        ({**three_runs(), "loss": [[1.0, 2.0]] * 3}, ("2 dimensions",)),
        ({**three_runs(), "loss": [[1.0], [2.0, 3.0], 4.0]}, ("plain list",)),
        (5, ("cannot read a table from int", "pandas")),
        (None, ("cannot read a table from NoneType",)),
        ([1, 2], ("cannot read a table from list",)),
        (pd.Series([1.0]), ("cannot read a table from Series",)),
    ],
)
def test_a_broken_frame_is_named(frame: object, words: tuple[str, ...]) -> None:
    with pytest.raises(InputError) as caught:
        read_runs(frame)
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"where": "tokens > 1e30"}, ("keeps none of 3 runs", "loosen")),
        ({"where": "token > 1"}, ("unknown column 'token'", "nearest: tokens")),
        ({"where": "split > 1"}, ("column 'split' is text (for example 'train')",)),
        ({"where": "tokens"}, ("not true or false",)),
        ({"size_column": "n_params"}, ("unknown size column 'n_params'", "nearest: n_params_dense")),
        ({"size_column": "tokens"}, ("size and tokens must be two columns, and both are 'tokens'",)),
        ({"tokens_column": "n_experts"}, ("experts and tokens must be two columns",)),
        ({"tokens_column": "token"}, ("no column 'token'", "nearest: tokens", "--tokens-column")),
        ({"experts_column": "experts"}, ("no column 'experts'", "nearest: n_experts", "--experts-column")),
        ({"loss_column": "los"}, ("no column 'los'", "nearest: loss")),
    ],
)
def test_a_wrong_question_is_named(tmp_path: Path, options: dict[str, str], words: tuple[str, ...]) -> None:
    with pytest.raises(InputError) as caught:
        read_runs(write(tmp_path, CSV), **options)
    assert all(word in str(caught.value) for word in words), str(caught.value)
