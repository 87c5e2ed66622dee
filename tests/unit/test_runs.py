"""Run tables: every format and frame gives the same table, and what is left out of it is said."""

from __future__ import annotations

import hashlib
import json
import pickle
import re
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moescale.errors import InputError
from moescale.runs.table import RunTable, read_runs
from run_tables import CSV, HEADER, ROWS, json_lines, parquet, three_runs, write


def _check_is_the_example(runs: RunTable) -> None:
    assert runs.n_params.tolist() == [1e8, 2e8, 4e8]
    assert runs.experts.tolist() == [1, 8, 4]
    assert runs.tokens.tolist() == [2e9, 4e9, 5e21]
    assert runs.loss.tolist() == [3.1, 2.9, 2.5]
    assert runs.row_numbers.tolist() == [1, 2, 3]
    assert list(runs.columns) == ["run_id", "split"]
    assert runs.columns["split"].tolist() == ["train", "train", "test"]
    assert runs.warnings == ()
    for name in ("n_params", "tokens", "experts", "loss"):
        assert getattr(runs, name).dtype == np.float64


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("runs.csv", CSV),
        ("runs.CSV", CSV.replace("\n", "\r\n")),
        ("runs.csv", "\ufeff" + CSV),
        ("runs.csv", CSV.replace(",", " , ").replace(" , split", ",split").replace(" , t", ",t")),
        ("runs.csv", CSV.replace(",", ";")),
        ("runs.csv", '# source: here, "there\n\n  # licence: MIT\n' + CSV),
        ("runs.csv", "\ufeff" + '"# a, quoted by a spreadsheet",,,,,\r\n' + CSV.replace("\n", "\r\n")),
        ("runs", "# no comma\n" + CSV),
        ("runs.tsv", "# no tab\n" + CSV.replace(",", "\t")),
        ("runs.csv", CSV.rstrip("\n")),
        ("runs.csv", HEADER + "\n" + ROWS.replace("2.9", '"2.9"')),
        ("runs.tsv", CSV.replace(",", "\t")),
        ("runs.txt", CSV),
        ("runs", CSV.replace(",", "\t")),
        ("runs.jsonl", json_lines(three_runs())),
        ("runs.json", json.dumps([json.loads(line) for line in json_lines(three_runs()).splitlines()])),
        ("runs.dat", json_lines(three_runs())),
        ("runs.parquet", parquet(pa.table(three_runs()))),
        ("runs.dat", parquet(pa.table(three_runs()))),
        ("runs.csv", parquet(pa.table(three_runs()))),
    ],
)
def test_every_format_gives_the_same_table(tmp_path: Path, name: str, content: str | bytes) -> None:
    path = write(tmp_path, content, name)
    runs = read_runs(path)
    _check_is_the_example(runs)
    assert runs.source == str(path)
    assert runs.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    "frame",
    [
        three_runs(),
        pd.DataFrame(three_runs()),
        pd.DataFrame(three_runs()).astype(object),
        pd.DataFrame(three_runs()).convert_dtypes(),
        pd.DataFrame(three_runs()).astype({"split": "category", "n_experts": "int8"}),
        pl.DataFrame(three_runs()),
        pl.DataFrame(three_runs()).lazy(),
        pl.DataFrame(three_runs()).with_columns(
            pl.col("split").cast(pl.Categorical), pl.col("n_experts").cast(pl.Decimal(20, 0))
        ),
        pa.table(three_runs()),
    ],
    ids=lambda frame: type(frame).__module__.split(".")[0],
)
def test_every_frame_gives_the_same_table(frame: object) -> None:
    runs = read_runs(frame)
    _check_is_the_example(runs)
    assert (runs.source, runs.sha256) == ("frame", None)


def test_integers_beyond_64_bits_become_floats_at_once(tmp_path: Path) -> None:
    columns = {**three_runs(), "tokens": [10**19, 10**25, 2**62]}
    frame = pd.DataFrame({name: pd.Series(values, dtype=object) for name, values in columns.items()})
    for source in (write(tmp_path, json_lines(columns), "r.jsonl"), frame):
        runs = read_runs(source)
        assert runs.tokens.tolist() == [1e19, 1e25, 2.0**62]
        assert np.all(np.isfinite(6 * runs.n_params * runs.tokens))


def test_size_column_is_the_first_there_and_said(tmp_path: Path) -> None:
    text = CSV.replace("n_params_dense", "n_params_active")
    runs = read_runs(write(tmp_path, text))
    assert runs.size_column == "n_params_active"
    assert "'n_params_active'" in runs.warnings[0]
    both = "n_params_total,n_params_dense,n_experts,tokens,loss\n9e8,1e8,1,2e9,3.1\n"
    assert read_runs(write(tmp_path, both)).n_params.tolist() == [1e8]
    chosen = read_runs(write(tmp_path, both), size_column="n_params_total")
    assert (chosen.n_params.tolist(), chosen.warnings) == ([9e8], ())
    assert chosen.columns["n_params_dense"].tolist() == [1e8]


def test_other_columns_keep_their_kind_and_may_hold_anything(tmp_path: Path) -> None:
    text = "n_params_dense,n_experts,tokens,loss,lr,ok,note\n1e8,1,2e9,3,1e-3,true,\n1e8,2,2e9,3,NA,FALSE,x\n"
    runs = read_runs(write(tmp_path, text))
    assert runs.columns["lr"].dtype == np.float64
    assert np.isnan(runs.columns["lr"][1])
    assert runs.columns["ok"].tolist() == [True, False]
    assert runs.columns["note"].tolist() == ["", "x"]
    assert runs.where("ok").columns["lr"].tolist() == [1e-3]
    text = 'n_params_dense,n_experts,tokens,loss,note,\n1e8,1,1e9,3,"two\nlines, ""quoted""",\n1e8,2,1e9,3,6" rule,\n'
    runs = read_runs(write(tmp_path, text))
    assert runs.columns["note"].tolist() == ['two\nlines, "quoted"', '6" rule']
    assert np.isnan(runs.columns["column_6"]).all()
    path = write(tmp_path, parquet(pa.table({**three_runs(), "extra": [[1], [2, 3], None]})), "r.parquet")
    assert read_runs(path).columns["extra"].tolist() == ["[1]", "[2, 3]", ""]


def test_a_filter_keeps_row_numbers_and_is_one_boolean_a_run(tmp_path: Path) -> None:
    path = write(tmp_path, CSV)
    early, late = read_runs(path, where="n_experts > 1 and split == 'train'"), read_runs(path).where("n_experts > 1")
    assert early.row_numbers.tolist() == [2]
    assert late.row_numbers.tolist() == [2, 3]
    assert late.where("split == 'test'").row_numbers.tolist() == [3]
    assert late.select(late.loss < 2.6).columns["run_id"].tolist() == ["c"]
    for mask in ([True], [0, 1, 2], True):
        with pytest.raises(InputError, match="one boolean a run"):
            read_runs(path).select(mask)


def test_tables_are_read_only_alias_no_arrays_and_can_be_sent_to_another_process(tmp_path: Path) -> None:
    runs = read_runs(write(tmp_path, CSV))
    with pytest.raises(ValueError, match="read-only"):
        runs.loss[0] = 1
    with pytest.raises(ValueError, match="read-only"):
        runs.columns["split"][0] = "x"
    runs = runs.where("n_experts > 1")
    copy = pickle.loads(pickle.dumps(runs))
    assert (copy.source, copy.sha256, copy.row_numbers.tolist()) == (runs.source, runs.sha256, [2, 3])
    assert copy.columns["split"].tolist() == runs.columns["split"].tolist()
    sizes = np.array([1e8, 2e8])
    runs = RunTable(n_params=sizes, tokens=np.array([1, 2]), experts=np.ones(2), loss=np.ones(2))  # type: ignore[arg-type]
    sizes[0] = 7
    assert runs.n_params.tolist() == [1e8, 2e8]
    assert runs.row_numbers.tolist() == [1, 2]
    with pytest.raises(InputError, match="shape"):
        RunTable(n_params=sizes, tokens=np.ones(3), experts=np.ones(2), loss=np.ones(2))


MISSING = ("#N/A", "#n/a", "NA", "N/A", "nan", "NaN", "-nan", "null", "None", "-", "--", "\u2013", "<NA>", "")


@pytest.mark.parametrize("cell", MISSING)
@pytest.mark.parametrize("column", ["loss", "tokens", "n_experts", "n_params_dense"])
def test_cells_without_a_value_are_missing_however_they_are_written(tmp_path: Path, cell: str, column: str) -> None:
    row = {"n_params_dense": "1e8", "n_experts": "2", "tokens": "5e9", "loss": "3"} | {column: cell}
    line = f"x,{row['n_params_dense']},{row['n_experts']},{row['tokens']},{row['loss']},train\n"
    path = write(tmp_path, CSV + line + line)
    with pytest.raises(
        InputError, match=rf"data row 4, column '{column}'.* is missing \(and 1 more such rows: data row 5\)"
    ):
        read_runs(path)
    runs = read_runs(path, where=f"{column} > 0")
    assert runs.row_numbers.tolist() == [1, 2, 3]
    assert "2 runs left out" in runs.warnings[0]
    assert "data rows 4, 5" in runs.warnings[0]
    lines = f"n_params_dense,n_experts,tokens,loss,lr\n1e8,1,2e9,3,1e-3\n1e8,2,2e9,3,{cell}\n"
    np.testing.assert_equal(read_runs(write(tmp_path, lines)).columns["lr"], [1e-3, np.nan])  # a column of numbers


BAD = ("#N/A", "", "nan", "0", "-3", "inf", "-inf", "1e400")


@pytest.mark.parametrize(
    ("column", "cell"),
    [*((name, cell) for name in ("val/loss", "tokens", "n_experts") for cell in BAD), ("n_experts", "0.5")],
)
def test_the_filter_that_an_error_advises_works(tmp_path: Path, column: str, cell: str) -> None:
    row = {"tokens": "5e9", "n_experts": "2", "val/loss": "3"} | {column: cell}
    text = CSV.replace("loss", "val/loss") + f"x,1e8,{row['n_experts']},{row['tokens']},{row['val/loss']},train\n"
    path = write(tmp_path, text)
    with pytest.raises(InputError) as caught:
        read_runs(path, loss_column="val/loss")
    advised = re.search(r"""--where (['"])(.+)\1 \(where=\)""", str(caught.value))
    assert advised is not None, str(caught.value)
    assert read_runs(path, loss_column="val/loss", where=advised[2]).row_numbers.tolist() == [1, 2, 3]


def test_text_in_a_number_is_left_out_by_another_column_as_advised(tmp_path: Path) -> None:
    path = write(tmp_path, CSV + "d,1e8,2,many,3,train\n")
    with pytest.raises(InputError, match="leave such rows out by a filter on another column"):
        read_runs(path)
    assert len(read_runs(path, where="run_id != 'd'")) == 3


@pytest.mark.parametrize("flags", ["true,false,", "1,0,0", "Yes,no,NA", "T,F,f"])
@pytest.mark.parametrize("name", ["diverged", "flagged"])
def test_diverged_runs_are_left_out_with_a_warning(tmp_path: Path, flags: str, name: str) -> None:
    lines = CSV.replace("3.1", "nan").splitlines()
    text = "\n".join(f"{line},{flag}" for line, flag in zip(lines, [name, *flags.split(",")], strict=True))
    runs = read_runs(write(tmp_path, text))
    assert runs.row_numbers.tolist() == [2, 3]
    assert name in runs.warnings[0]
    assert "data row 1" in runs.warnings[0]


@pytest.mark.parametrize(
    ("header", "row", "words"),
    [
        ("n_params_dense,n_experts,tokens,loss", "679,8,20e9,2.3", ("'n_params_dense'", "679", "millions or billions")),
        ("n_params_dense,n_experts,tokens,loss", "1e8,8,20,2.3", ("'tokens'", "20 at most", "millions or billions")),
        ("n_params_dense,n_experts,tokens,loss", "1e8,8,20e9,0.8", ("'loss'", "bits per byte", "nats per token")),
        ("n_params_dense,n_experts,tokens,loss", "1e8,8,20e9,16.2", ("'loss'", "perplexity", "natural logarithm")),
    ],
)
def test_columns_in_another_unit_are_warned_of_and_kept(
    tmp_path: Path, header: str, row: str, words: tuple[str, ...]
) -> None:
    runs = read_runs(write(tmp_path, f"{header}\n{row}\n"))
    assert len(runs) == 1
    assert len(runs.warnings) == 1
    assert all(word in runs.warnings[0] for word in words)


@given(
    n_params=st.floats(2e5, 1e13), tokens=st.floats(1e6, 1e14), worst=st.floats(1.4, 11.0), better=st.floats(0.1, 1.0)
)
def test_a_table_in_plain_units_is_not_warned_of(n_params: float, tokens: float, worst: float, better: float) -> None:
    columns = {"n_params_dense": [n_params, 1e5], "n_experts": [1, 4], "tokens": [tokens, 1e5]}
    assert read_runs(columns | {"loss": [worst, worst * better]}).warnings == ()


def test_repeats_are_kept_with_a_warning_that_follows_the_filter(tmp_path: Path) -> None:
    runs = read_runs(write(tmp_path, CSV + "d,1e8,1,2e9,3.2,train\n"))
    assert len(runs) == 4
    assert "1 repeat of" in runs.warnings[0]
    assert "data row 4" in runs.warnings[0]
    assert runs.where("run_id != 'd'").warnings == ()
    assert len(runs.where("n_experts == 1").warnings) == 1


SWEEP = (
    "name,n_params_dense,n_experts,tokens,unique_tokens,loss\n"
    "a,1e8,1,2e9,2e9,3.30\nb,1e8,1,2e9,2e9,3.00\nc,1e8,1,2e9,1e9,3.40\nd,1e8,1,4e9,4e9,2.80\ne,1e8,4,4e9,4e9,2.71\nf,1e8,4,4e9,4e9,2.70\n"
)


def test_a_sweep_of_settings_is_counted_and_the_best_of_each_is_kept(tmp_path: Path) -> None:
    path = write(tmp_path, SWEEP)
    (note,) = read_runs(path).warnings
    assert note.startswith("2 repeats of another run's size, tokens and experts; all are kept")
    assert note.endswith("(data rows 2, 6)")
    assert "--best-of" in note
    best = read_runs(path, best_of=True)
    assert best.columns["name"].tolist() == ["b", "c", "d", "f"]  # c sees other data
    assert best.row_numbers.tolist() == [2, 3, 4, 6]
    assert best.warnings == ("kept 4 of 6 runs: the lowest loss of each size, tokens and experts",)
    assert best.best_of().warnings == best.warnings
    assert read_runs(path, best_of=True, where="loss > 3").columns["name"].tolist() == ["a", "c"]


POINTS = (
    "run_id,n_params_dense,n_experts,tokens,loss\n"
    "7,1e8,1,1e9,3.5\n7,1e8,1,3e9,3.1\n7,1e8,1,2e9,3.3\n8,2e8,1,1e9,3.3\n8,2e8,1,2e9,3.0\n9,2e8,4,2e9,2.9\n"
)


def test_points_of_one_run_are_counted_and_the_last_is_kept(tmp_path: Path) -> None:
    path = write(tmp_path, POINTS)
    (note,) = read_runs(path).warnings
    assert note.startswith("5 rows are points of 2 runs (column 'run_id')")
    assert "--last-point" in note
    last = read_runs(path, last_point=True)
    assert last.row_numbers.tolist() == [2, 5, 6]
    assert last.warnings == ("kept 3 of 6 rows: the last point of each run (column 'run_id')",)
    assert read_runs(path, last_point=True, where="tokens < 3e9").row_numbers.tolist() == [3, 5, 6]


@pytest.mark.parametrize("column", ["run_id,", "trunk,"])
def test_a_column_that_is_not_of_one_model_names_no_runs(tmp_path: Path, column: str) -> None:
    path = write(tmp_path, POINTS.replace("run_id,", column).replace("8,2e8", "7,2e8"))
    assert read_runs(path).warnings == ()
    with pytest.raises(InputError, match="no column names the run of each row") as caught:
        read_runs(path, last_point=True)
    assert "add a column run_id" in str(caught.value)


def test_losses_may_be_missing_where_they_are_to_be_predicted(tmp_path: Path) -> None:
    path = write(tmp_path, CSV.replace("2.9", ""))
    with pytest.raises(InputError, match="an empty cell is missing"):
        read_runs(path)
    np.testing.assert_array_equal(read_runs(path, needs_loss=False).loss, [3.1, np.nan, 2.5])
    without = write(tmp_path, CSV.replace(",loss", ",other"), "without.csv")
    with pytest.raises(InputError, match="no column 'loss'"):
        read_runs(without)
    assert np.isnan(read_runs(without, needs_loss=False).loss).all()
    with pytest.raises(InputError, match="is not a number"):
        read_runs(write(tmp_path, CSV.replace("2.9", "x")), needs_loss=False)
