"""The run table: rows of finished runs, added under a lock, the whole file at once."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from moescale.errors import InputError, unknown_name
from moescale.io.files import check_target, read_bytes, read_text, write_atomically
from moescale.io.locks import lock_beside, locked

DELIMITERS = {".csv": ",", ".tsv": "\t"}
IDENTITY = ("name", "settings_sha256", "tokens")
"""Columns that tell whether two rows are one run (and of a trunk with branches, one branch)."""

Row = Mapping[str, Any]


def check_run_table(path: str | Path) -> None:
    """Raise the InputError that `add_rows` would meet, before the runs whose rows it shall hold."""
    _delimiter(path)
    check_target(path)
    if Path(path).exists():
        _read(Path(path))


def add_rows(path: str | Path, rows: Sequence[Row]) -> int:
    """Add rows to a table (.csv or .tsv) in place of those of the same run; returns how many are new to it.

    Rows that are there keep their text to the letter. Other processes may do the same at once: each waits for the lock
    beside the table, and replaces the file as a whole. Empty cells stand for None and not-a-number.
    """
    target = Path(path)
    delimiter = _delimiter(target)
    if not rows:
        return 0
    with locked(lock_beside(target)):
        before = _read(target) if target.exists() else []
        table = {_identity(row): row for row in before}
        known = len(table)
        table.update({_identity(row): row for row in ({k: cell_text(v) for k, v in r.items()} for r in rows)})
        columns = dict.fromkeys(name for row in table.values() for name in row)
        stream = io.StringIO()
        writer = csv.DictWriter(stream, list(columns), restval="", delimiter=delimiter, lineterminator="\n")
        writer.writeheader()
        writer.writerows(table.values())
        text = stream.getvalue()
        if not target.exists() or text != read_text(target):
            write_atomically(target, text)
        return len(table) - known


def read_result(output: str | Path) -> list[dict[str, Any]] | None:
    """The rows of a finished run, from the result.json of its folder; None where there is none.

    Raises InputError where the file holds anything else.
    """
    file = Path(output) / "result.json"
    if not file.exists():
        return None
    text = read_text(file)
    try:
        found: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _no_result(file) from error
    rows: object = cast("dict[str, object]", found).get("rows") if isinstance(found, dict) else None
    if not isinstance(rows, list) or not rows:
        raise _no_result(file)
    for row in cast("list[object]", rows):
        if not isinstance(row, dict) or not all(name in row for name in IDENTITY):
            raise _no_result(file)
    return cast("list[dict[str, Any]]", rows)


def cell_text(value: object) -> str:
    """A value as the text of a cell; floats to the last bit."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, float) else str(value)


def _no_result(file: Path) -> InputError:
    return InputError(
        "is not the result of a run", where=str(file), next_step="remove the file: the run goes on from its checkpoint"
    )


def _identity(row: Row) -> tuple[str, ...]:
    return tuple(cell_text(row.get(name)) for name in IDENTITY)


def _delimiter(path: str | Path) -> str:
    suffix = Path(path).suffix.lower()
    if suffix not in DELIMITERS:
        raise unknown_name("suffix of a run table", suffix, DELIMITERS, where=str(path))
    return DELIMITERS[suffix]


def _read(path: Path) -> list[dict[str, str]]:
    # Not pyarrow: rows that are there must keep their digits.
    text = read_text(path)
    if not read_bytes(path).strip():
        return []
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=_delimiter(path), strict=True)
    try:
        rows = list(reader)
    except csv.Error as error:
        where = f"{path}, line {reader.line_num}"
        raise InputError(f"is not a table: {error}", where=where, next_step="mend that line") from error
    names = list(reader.fieldnames or ())
    missing = [name for name in IDENTITY if name not in names]
    if missing:
        raise InputError(
            f"has no column {', '.join(missing)}, and so is no table of runs made here",
            where=str(path),
            next_step="name another file",
        )
    for number, row in enumerate(rows, start=1):
        if None in row or None in row.values():
            raise InputError(
                "has more or fewer cells than there are columns",
                where=f"{path}, data row {number}",
                next_step="mend that row, or name another table",
            )
    return rows
