"""Run tables from what people already have: runs in MLflow, W&B, TensorBoard and Trainer's folders, and tables of any columns."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from moescale.errors import unknown_name
from moescale.runs.importers.guesses import plain
from moescale.runs.importers.rows import Imported, rows_of, rule_of

TRACKERS = ("mlflow", "wandb", "tensorboard", "trainer", "csv")
"""What `import_runs` reads: each by `read_NAME(source, wanted)` of the module of its name (W&B's: csv)."""

__all__ = ["TRACKERS", "Imported", "import_runs", "rule_of"]


def import_runs(
    tracker: str, source: str | Path, *, mapping: Mapping[str, str] | None = None, unfinished: bool = False
) -> Imported:
    """The rows of a run table from the runs that a tracker holds in a folder, in a file, or under a URI.

    `mapping` says where columns come from, as `--set COLUMN=EXPR`: a name, an expression over names, a number, or a
    'text'; what it leaves open is guessed. Raises InputError for a source that holds no run, and where no run makes a
    row.
    """
    if tracker not in TRACKERS:
        raise unknown_name("tracker", tracker, TRACKERS)
    named = " ".join((mapping or {}).values())

    def wanted(metric: str) -> bool:
        words = plain(metric)
        return "loss" in words or "token" in words or metric in named

    reader: Any = import_module(f"{__name__}.{'csv' if tracker == 'wandb' else tracker}")
    runs, warnings = getattr(reader, f"read_{tracker}")(str(source), wanted)
    return rows_of(runs, mapping, unfinished=unfinished, source=str(source), warnings=warnings)
