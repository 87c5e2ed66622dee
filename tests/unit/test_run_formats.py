"""Run tables are written and come back, and formats that would take much memory or end the process are refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st

from examples import daily
from moescale.errors import InputError
from moescale.io import frames
from moescale.io.frames import COLUMN_LIMIT, as_numbers, as_values, number_text, parse_table
from moescale.runs.table import RunTable, read_runs, write_runs
from reference_data import ROOT
from run_tables import CSV, json_lines, parquet, three_runs

_positive = st.floats(min_value=1e-300, max_value=1e300)
_word = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=8).map(lambda text: f"x{text}x")
_row = st.tuples(_positive, _positive, st.integers(1, 4096), _positive, _word, st.floats(allow_infinity=False))


def _as_json_lines(path: Path, runs: RunTable) -> None:
    columns = {
        name: pd.Series(values).astype(object).where(pd.notna(values), None).tolist()
        for name, values in runs.to_columns().items()
    }
    path.with_suffix(".jsonl").write_text(json_lines(columns))


_WRITERS: dict[str, Callable[[Path, RunTable], object]] = {
    ".csv": lambda path, runs: write_runs(runs, path.with_suffix(".csv")),
    ".tsv": lambda path, runs: write_runs(runs, path.with_suffix(".tsv")),
    ".parquet": lambda path, runs: write_runs(runs, path.with_suffix(".parquet")),
    ".jsonl": _as_json_lines,
}


@pytest.mark.system
@daily(12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(_row, min_size=1, max_size=8), st.sampled_from(list(_WRITERS)))
def test_tables_survive_every_format_to_the_last_bit(tmp_path: Path, rows: list[Any], suffix: str) -> None:
    sizes, tokens, experts, losses, words, extras = (list(values) for values in zip(*rows, strict=True))
    before = RunTable(
        n_params=np.array(sizes),
        tokens=np.array(tokens),
        experts=np.array(experts, dtype=np.float64),
        loss=np.array(losses),
        columns={"word": np.array(words, dtype=object), 'extra, "quoted"': np.array(extras)},
    )
    _WRITERS[suffix](tmp_path / "runs.any", before)
    after = read_runs(tmp_path / f"runs{suffix}")
    for name, values in before.to_columns().items():
        np.testing.assert_array_equal(after.to_columns()[name], values, strict=True)


def test_writing_refuses_what_it_cannot_keep(tmp_path: Path) -> None:
    for columns, name, words in [
        ({"a": [1]}, "runs.xlsx", ("unknown suffix to write '.xlsx'", ".csv")),
        ({}, "runs.csv", ("differ in shape",)),
        ({"a": [1], "b": [1, 2]}, "runs.csv", ("differ in shape",)),
        ({"a": 1.0}, "runs.csv", ("differ in shape",)),
        ({"a": ["\ud800"]}, "runs.csv", ("cannot be written",)),
        ({"a": [1]}, "nowhere/runs.csv", ("does not exist",)),
    ]:
        with pytest.raises(InputError) as caught:
            write_runs(columns, tmp_path / name)
        assert all(word in str(caught.value) for word in words), str(caught.value)
    assert os.listdir(tmp_path) == []


def _repeated(rows: int, **others: Any) -> bytes:
    """A run table in Parquet of one row again and again, which takes a few kilobytes."""
    one = pa.repeat(1.0, rows)
    return parquet(pa.table({"n_params_dense": one, "n_experts": one, "tokens": one, "loss": one, **others}))


@pytest.mark.system
def test_a_parquet_file_that_unpacks_to_very_much_is_refused(tmp_path: Path) -> None:
    note = pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), 20_000), pa.array(["x" * 20_000]))
    for content in (
        _repeated(1_000_000, **{f"c{i}": pa.repeat(1.0, 1_000_000) for i in range(12)}),
        _repeated(20_000, note=note),
    ):
        path = tmp_path / "runs.parquet"
        path.write_bytes(content)
        with pytest.raises(InputError, match="unpacks to") as caught:
            read_runs(path)
        assert str(path) in str(caught.value)
    path.write_bytes(_repeated(1_000_000))
    assert len(read_runs(path)) == 1_000_000


@pytest.mark.system
@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_very_many_columns_are_refused_before_they_are_read(tmp_path: Path, suffix: str) -> None:
    names = [f"c{i}" for i in range(COLUMN_LIMIT + 1)]
    path = tmp_path / f"runs{suffix}"
    if suffix == ".parquet":
        pq.write_table(pa.table([pa.array([1])] * len(names), names=names), path)
    else:
        table = ",".join(names) + "\n" + ",".join(["1"] * len(names))
        path.write_text(json.dumps(dict.fromkeys(names, 1)) if suffix == ".jsonl" else table)
    with pytest.raises(InputError, match="10,001 columns"):
        read_runs(path)
    with pytest.raises(InputError, match="10,001 columns"):
        read_runs({name: [1] for name in names})


@pytest.mark.system
def test_a_damaged_statistic_of_a_parquet_file_does_not_end_the_process(tmp_path: Path) -> None:
    # pyarrow 26 aborts where the metadata of a single column is asked for; found by a cut footer.
    good = parquet(pa.table(three_runs()))
    code = "import sys; from moescale.runs.table import read_runs; from moescale.errors import InputError\n"
    code += "for path in sys.argv[1:]:\n    try:\n        read_runs(path)\n    except InputError:\n        pass\n"
    paths = []
    for at in range(len(good) - 600, len(good) - 8):
        paths.append(tmp_path / f"{at}.parquet")
        paths[-1].write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
    done = subprocess.run([sys.executable, "-c", code, *map(str, paths)], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


@given(st.floats(allow_nan=False))
@example(1e9)
@example(-0.0)
def test_a_number_is_written_so_that_it_comes_back(value: float) -> None:
    assert float(number_text(value)) == value
    assert number_text(1e9) == "1000000000"


def test_text_tables_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "TEXT_LIMIT_BYTES", len(CSV))
    assert parse_table(CSV.encode(), "runs.csv").n_rows == 3
    with pytest.raises(InputError, match=r"runs\.csv: is a text table of more than .* as Parquet"):
        parse_table(CSV.encode() + b"\n", "runs.csv")


@pytest.mark.parametrize(
    ("cell", "number"),
    [
        (" 2 ", 2.0), (".5", 0.5), ("1e400", np.inf), ("-inf", -np.inf), ("N/A", np.nan), ("1_000", None),
        ("0x10", None), ("1,5", None),
    ],
)  # fmt: skip
def test_a_cell_is_a_number_or_missing_or_text(cell: str, number: float | None) -> None:
    column = parse_table(f'a,b\n"{cell}",x\n2.5,y\n'.encode(), "runs.csv").columns["a"]
    values, texts = as_numbers(column)
    np.testing.assert_equal(values, [np.nan if number is None else number, 2.5])
    assert texts.tolist() == [number is None, False]
    assert as_values(column).dtype == (object if number is None else float)


@pytest.mark.system
def test_runs_are_read_written_and_fitted_without_pyarrow(tmp_path: Path) -> None:
    """Only Parquet asks for the extra."""
    lines = (ROOT / "examples" / "runs.csv").read_text(encoding="utf-8").splitlines()
    (tmp_path / "runs.csv").write_text("\n".join(lines[:81]) + "\n", encoding="utf-8")
    code = """
import sys
sys.modules.update(dict.fromkeys(["pyarrow", "pandas", "aiconfigurator_core", "narwhals"]))
from moescale.errors import InputError
from moescale.runs.table import read_runs, write_runs
runs = read_runs("runs.csv", where="n_experts >= 1")
write_runs(runs, "copy.csv")
again = read_runs("copy.csv")
assert (again.loss == runs.loss).all() and (again.n_params == runs.n_params).all() and len(runs) == 80
for use in (lambda: write_runs(runs, "copy.parquet"), lambda: read_runs("there.parquet")):
    try:
        use()
    except InputError as error:
        print(error)
from moescale.cli import main
main(["fit", "copy.csv", "--law", "chinchilla", "--starts", "2"])
"""
    (tmp_path / "there.parquet").write_bytes(b"PAR1 and more")
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("pip install '.[parquet]'") == 2
    assert "80 runs" in done.stdout + done.stderr
