"""One run from its settings to its row in the run table: its folder, its data, and what may go on from what is there."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from moescale.errors import InputError, install
from moescale.experiments.corpus import Corpus, open_corpus
from moescale.experiments.run_table import read_result
from moescale.experiments.settings import RunSettings, mfu, stated_columns
from moescale.io.files import make_folder, read_text, write_atomically
from moescale.io.locks import locked

Report = Callable[[Mapping[str, Any]], None]
RESULT, SETTINGS, LOCK = "result.json", "settings.json", "lock"
LIBRARIES = ("torch", "transformers", "accelerate")


def train(settings: RunSettings, *, resume: bool = True, report: Report | None = None) -> list[dict[str, Any]]:
    """Train the run, or what is left of it, and return its row of the run table, in a list.

    Everything lies in `settings.output`: settings.json, progress.jsonl, checkpoints/ until the run is finished, then model/
    (config.json and safetensors) and result.json, which is written last. A finished run is returned as it is; an unfinished
    one goes on from its last checkpoint, or from its start without `resume`. Of several processes, which torchrun starts, all
    but the first return no rows. `report` is called with each event of progress.jsonl.

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
        _end_with_parent()
    if os.environ.get("RANK", "0") != "0":
        if not (resume and read_result(folder)):
            _measure(settings, open_corpus(settings.data.corpus), resume, None)
        return []  # the first process of the group keeps the books
    busy = InputError("another process trains in this folder", where=str(folder), next_step="wait for it, or end it")
    with locked(folder / LOCK, busy=busy):
        if not resume:
            for name in (RESULT, SETTINGS, "progress.jsonl"):
                (folder / name).unlink(missing_ok=True)
            for name in ("checkpoints", "model", ".model.tmp"):
                shutil.rmtree(folder / name, ignore_errors=True)
        corpus = open_corpus(settings.data.corpus)
        identity = {"settings_sha256": settings.sha256, "corpus_sha256": corpus.sha256}
        check_same(folder, identity)
        finished = read_result(folder)
        if finished is not None:
            return finished
        stated = json.dumps({**settings.to_dict(), "identity": identity}, indent=2)
        write_atomically(folder / SETTINGS, stated)
        row = _row(settings, corpus, _measure(settings, corpus, resume, report))
        write_atomically(folder / RESULT, json.dumps({"rows": [row]}, indent=2, allow_nan=False))
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    return [row]


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


def _measure(settings: RunSettings, corpus: Corpus, resume: bool, report: Report | None) -> dict[str, Any]:
    from moescale.experiments.train import measure

    return measure(settings, corpus, resume=resume, report=report)


def _row(settings: RunSettings, corpus: Corpus, measured: Mapping[str, Any]) -> dict[str, Any]:
    stated, per_s = stated_columns(settings, corpus.vocab_size), float(measured["tokens_per_s"])
    used = mfu(settings, corpus.vocab_size, str(measured["device"]), per_s)
    return {
        **stated,
        **measured,
        "seconds": stated["tokens"] / per_s if per_s else 0.0,
        "mfu": "" if used is None else used,
        "processes": settings.parallel.processes,
        "dtype": settings.training.dtype,
        "corpus_sha256": corpus.sha256,
        "tokenizer_sha256": corpus.tokenizer_sha256,
    }


def check_same(folder: Path, identity: Mapping[str, str]) -> None:
    """Refuse a folder that holds another run, finished or not; one that was refused before it began is none."""
    progress, path = folder / "progress.jsonl", folder / SETTINGS
    begun = any((folder / name).exists() for name in (RESULT, "checkpoints", "model"))
    if not path.exists() or not (begun or (progress.exists() and progress.stat().st_size > 0)):
        return
    known: Any = None
    with suppress(InputError, ValueError, RecursionError, AttributeError):
        known = json.loads(read_text(path)).get("identity")
    known = known if isinstance(known, dict) else {}
    for key, what in (("settings_sha256", "settings"), ("corpus_sha256", "corpus")):
        if known.get(key) != identity[key]:
            raise InputError(
                f"holds a run with other {what}", where=str(folder),
                next_step="give another output folder, or start over with --no-resume, which deletes the present run",
            )  # fmt: skip


def _end_with_parent() -> None:
    """Ask Linux to kill this process when torchrun ends, however that ends (PR_SET_PDEATHSIG of linux/prctl.h is 1)."""
    with suppress(OSError, AttributeError):  # other systems have no such call
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
