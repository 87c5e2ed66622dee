"""One run from its settings to its row in the run table: its folder, what may go on from what is there, and the table."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np

from moescale.errors import InputError, install, unknown_name
from moescale.experiments.corpus import open_corpus
from moescale.experiments.settings import RunSettings, mfu, stated_columns
from moescale.io import frames
from moescale.io.files import check_target, make_folder, write_atomically
from moescale.io.json_text import read_object
from moescale.io.locks import lock_beside, locked

RESULT, SETTINGS, LOCK = "result.json", "settings.json", "lock"
LIBRARIES = ("torch", "transformers", "accelerate")
IDENTITY = ("name", "settings_sha256", "tokens")  # columns that tell whether two rows are one run

Report = Callable[[Mapping[str, Any]], None]
Row = Mapping[str, Any]


def train(settings: RunSettings, *, resume: bool = True, report: Report = lambda event: None) -> dict[str, Any] | None:
    """Train the run, or what is left of it, and return its row of the run table.

    Everything lies in `settings.output`: settings.json, progress.jsonl, checkpoints/ until the run is finished, then model/
    (config.json and safetensors) and result.json, which is written last. A finished run is returned as it is; an unfinished
    one goes on from its last checkpoint, or from its start without `resume`. Of several processes, which torchrun starts, all
    but the first return None. `report` is called with each event of progress.jsonl.

    Raises InputError where the folder holds another run or is in use, and where data, libraries or devices are missing.
    """
    folder = make_folder(settings.output)
    check_libraries(settings.tracking.to)
    group = int(os.environ.get("WORLD_SIZE", "1"))
    if group != settings.parallel.processes:
        raise InputError(
            f"{settings.parallel.processes} processes are set, and this is one of {group}", where="[parallel], processes",
            next_step=f"torchrun --nproc-per-node {settings.parallel.processes} -m moescale train RUN.toml",
        )  # fmt: skip
    if group > 1:
        with suppress(OSError, AttributeError):  # other systems than Linux have no such call
            # Killed when torchrun ends, however that ends (PR_SET_PDEATHSIG of linux/prctl.h is 1).
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    first = os.environ.get("RANK", "0") == "0"  # the process of the group that keeps the books
    busy = InputError("another process trains in this folder", where=str(folder), next_step="wait for it, or end it")
    with locked(folder / LOCK, busy=busy) if first else nullcontext():
        if first and not resume:
            for name in (RESULT, SETTINGS, "progress.jsonl"):
                (folder / name).unlink(missing_ok=True)
            for name in ("checkpoints", "model", ".model.tmp"):
                shutil.rmtree(folder / name, ignore_errors=True)
        corpus = open_corpus(settings.data.corpus)
        identity = {"settings_sha256": settings.sha256, "corpus_sha256": corpus.sha256}
        if first:
            check_same(folder, identity)
        if resume and (finished := read_result(folder)):
            return finished if first else None
        if first:
            write_atomically(folder / SETTINGS, json.dumps({**settings.to_dict(), "identity": identity}, indent=2))
        from moescale.experiments.train import measure

        measured = measure(settings, corpus, resume=resume, report=report)
        if not first:
            return None
        columns, per_s = stated_columns(settings, corpus.vocab_size), measured["tokens_per_s"]
        used = mfu(settings, corpus.vocab_size, measured["device"], per_s)
        row = {
            **columns,
            **measured,
            "seconds": columns["tokens"] / per_s if per_s else 0.0,
            "mfu": "" if used is None else used,
            "processes": group,
            "dtype": settings.training.dtype,
            "corpus_sha256": corpus.sha256,
            "tokenizer_sha256": corpus.tokenizer_sha256,
        }
        write_atomically(folder / RESULT, json.dumps({"rows": [row]}, indent=2, allow_nan=False))
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    return row


def torchrun(run_file: Path, processes: int, more: list[str]) -> None:
    """Become torchrun with so many processes of `moescale train` on this machine."""
    check_libraries()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    os.execv(sys.executable, [*command, "-m", "moescale", "train", str(run_file), *more])


def check_libraries(trackers: tuple[str, ...] = ()) -> None:
    """Raise InputError, with what to install, where a library that trains or tracks is missing from this interpreter."""
    for name, extra in (*((each, "train") for each in LIBRARIES), *((each, "track") for each in trackers)):
        if importlib.util.find_spec(name) is None:
            raise InputError(f"training needs {name}, which is not installed", next_step=install(extra))


def check_same(folder: Path, identity: Mapping[str, str]) -> None:
    """Refuse a folder that holds another run, finished or not; one that was refused before it began is none."""
    progress, path = folder / "progress.jsonl", folder / SETTINGS
    begun = any((folder / name).exists() for name in (RESULT, "checkpoints", "model"))
    if not path.exists() or not (begun or (progress.exists() and progress.stat().st_size > 0)):
        return
    known: Any = None
    with suppress(InputError):
        known = read_object(path).get("identity")
    for key in identity:
        if not isinstance(known, dict) or known.get(key) != identity[key]:
            what = f"holds a run with other {'corpus' if key == 'corpus_sha256' else 'settings'}"
            step = "give another output folder, or start over with --no-resume, which deletes the present run"
            raise InputError(what, where=str(folder), next_step=step)


def read_result(output: str | Path) -> dict[str, Any] | None:
    """The row of a finished run, from the result.json of its folder, or None; InputError where that holds anything else."""
    file = Path(output) / RESULT
    if not file.exists():
        return None
    step = "remove the file: the run goes on from its checkpoint"
    rows: Any = read_object(file, next_step=step).get("rows")
    with suppress(TypeError, AttributeError, ValueError):
        (row,) = rows
        if row.keys() >= set(IDENTITY):
            return row
    raise InputError("is not the result of a run", where=str(file), next_step=step)


# The run table: rows of finished runs, added under a lock, the whole file at once.


def check_run_table(path: str | Path) -> None:
    """Raise the InputError that `add_rows` would meet, before the runs whose rows it shall hold."""
    check_target(path)
    _read(Path(path))


def add_rows(path: str | Path, rows: Sequence[Row]) -> None:
    """Add rows to a table (.csv or .tsv) in place of those of the same run.

    Rows that are there keep their text to the letter. Other processes may do the same at once: each waits for the lock
    beside the table, and replaces the file as a whole. Empty cells stand for None and not-a-number.
    """
    target = Path(path)
    if not rows:
        return
    with locked(lock_beside(target)):
        before = _read(target)
        table = {_identity(row): row for row in before}
        table.update({_identity(row): {name: frames.written(cell) for name, cell in row.items()} for row in rows})
        if before != list(table.values()):
            names = dict.fromkeys(name for row in table.values() for name in row)
            columns = {name: np.array([row.get(name, "") for row in table.values()], dtype=object) for name in names}
            write_atomically(target, frames.delimited(columns, frames.DELIMITERS[target.suffix.lower()]))


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
