"""The run table: rows of finished runs, added under a lock, the whole file at once."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from moescale.errors import InputError, unknown_name
from moescale.io.files import check_target, read_text, write_atomically
from moescale.io.locks import lock_beside, locked

DELIMITERS = {".csv": ",", ".tsv": "\t"}
IDENTITY = ("name", "settings_sha256", "tokens")
"""Columns that tell whether two rows are one run."""

Row = Mapping[str, Any]


def check_run_table(path: str | Path) -> None:
    """Raise the InputError that `add_rows` would meet, before the runs whose rows it shall hold."""
    check_target(path)
    _read(Path(path))


def add_rows(path: str | Path, rows: Sequence[Row]) -> int:
    """Add rows to a table (.csv or .tsv) in place of those of the same run; returns how many are new to it.

    Rows that are there keep their text to the letter. Other processes may do the same at once: each waits for the lock
    beside the table, and replaces the file as a whole. Empty cells stand for None and not-a-number.
    """
    target = Path(path)
    if not rows:
        return 0
    with locked(lock_beside(target)):
        before = _read(target)
        table = {_identity(row): row for row in before}
        known = len(table)
        table.update({_identity(row): {k: cell_text(v) for k, v in row.items()} for row in rows})
        if before != list(table.values()):
            columns = dict.fromkeys(name for row in table.values() for name in row)
            stream = io.StringIO()
            delimiter = DELIMITERS[target.suffix.lower()]
            writer = csv.DictWriter(stream, list(columns), restval="", delimiter=delimiter, lineterminator="\n")
            writer.writeheader()
            writer.writerows(table.values())
            write_atomically(target, stream.getvalue())
        return len(table) - known


def read_result(output: str | Path) -> list[dict[str, Any]] | None:
    """The rows of a finished run, from the result.json of its folder; None where there is none.

    Raises InputError where the file holds anything else.
    """
    file = Path(output) / "result.json"
    if not file.exists():
        return None
    text = read_text(file)
    with suppress(ValueError, RecursionError, LookupError, TypeError, AttributeError):
        rows = cast("list[dict[str, Any]]", json.loads(text)["rows"])
        if rows and all(row.keys() >= set(IDENTITY) for row in rows):
            return rows
    step = "remove the file: the run goes on from its checkpoint"
    raise InputError("is not the result of a run", where=str(file), next_step=step)


def cell_text(value: object) -> str:
    """A value as the text of a cell; floats to the last bit."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, float) else str(value)


def _identity(row: Row) -> tuple[str, ...]:
    return tuple(cell_text(row.get(name)) for name in IDENTITY)


def _read(path: Path) -> list[dict[str, str]]:
    """The rows of a table, none where there is no file; as csv has them, as rows that are there keep their digits."""
    if path.suffix.lower() not in DELIMITERS:
        raise unknown_name("suffix of a run table", path.suffix, DELIMITERS, where=str(path))
    text = read_text(path) if path.exists() else ""
    if not text.strip():
        return []
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=DELIMITERS[path.suffix.lower()], strict=True)
    step = "mend it, or name another file"
    try:
        rows = list(reader)
    except csv.Error as error:
        raise InputError(f"is not a table: {error}", where=f"{path}, line {reader.line_num}", next_step=step) from error
    if missing := [name for name in IDENTITY if name not in (reader.fieldnames or ())]:
        what = f"has no column {', '.join(missing)}, and so is no table of runs made here"
        raise InputError(what, where=str(path), next_step=step)
    if (torn := next((i for i, row in enumerate(rows, 1) if None in row or None in row.values()), None)) is not None:
        what = "has more or fewer cells than there are columns"
        raise InputError(what, where=f"{path}, data row {torn}", next_step=step)
    return rows
