"""The run table: rows of finished runs, added under a lock, the whole file at once."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import numpy as np

from moescale.errors import InputError, unknown_name
from moescale.io import frames
from moescale.io.files import check_target, read_text, write_atomically
from moescale.io.locks import lock_beside, locked

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
        table.update({_identity(row): {name: frames.written(cell) for name, cell in row.items()} for row in rows})
        if before != list(table.values()):
            names = dict.fromkeys(name for row in table.values() for name in row)
            columns = {name: np.array([row.get(name, "") for row in table.values()], dtype=object) for name in names}
            write_atomically(target, frames.delimited(columns, frames.DELIMITERS[target.suffix.lower()]))
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


def _identity(row: Row) -> tuple[str, ...]:
    return tuple(frames.written(row.get(name)) for name in IDENTITY)


def _read(path: Path) -> list[dict[str, str]]:
    """The rows of a table, none where there is no file or an empty one; cells keep their digits."""
    if path.suffix.lower() not in frames.DELIMITERS:
        raise unknown_name("suffix of a run table", path.suffix, frames.DELIMITERS, where=str(path))
    if not path.exists() or not path.stat().st_size:
        return []
    columns = frames.read_table(path).columns
    if missing := [name for name in IDENTITY if name not in columns]:
        what = f"has no column {', '.join(missing)}, and so is no table of runs made here"
        raise InputError(what, where=str(path), next_step="name another file")
    return [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
