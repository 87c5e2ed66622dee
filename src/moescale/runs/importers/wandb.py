"""Runs of Weights & Biases: the CSV export of its run table. Offline runs are first uploaded by its own `wandb sync`."""

from __future__ import annotations

from pathlib import Path

from moescale.errors import InputError
from moescale.io.files import nearest_file_names
from moescale.runs.importers.csv import read_csv
from moescale.runs.importers.tracked_run import TrackedRun, Wanted


def read_wandb(source: str, wanted: Wanted) -> tuple[list[TrackedRun], list[str]]:
    """The runs of an export, and warnings; InputError for anything else."""
    path = Path(source)
    if not path.exists():
        raise InputError("no such file or folder", where=source, nearest=nearest_file_names(path))
    if path.suffix.lower() not in (".csv", ".tsv"):
        step = "upload offline runs (`wandb sync`), and export the table of runs as CSV"
        raise InputError("there is no CSV export of W&B's run table", where=source, next_step=step)
    return read_csv(source, wanted)
