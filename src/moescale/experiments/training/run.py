"""One run from its settings to its rows in the run table: data, processes, restarts, and what is written where."""

from __future__ import annotations

import datetime
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from moescale.errors import InputError, MoescaleError, UnwrittenError, install
from moescale.experiments.data.pack import Corpus, open_corpus, pack
from moescale.experiments.run_table import read_result
from moescale.experiments.training.flops import mfu
from moescale.experiments.training.folder import SETTINGS, stated, stated_columns
from moescale.experiments.training.settings import RunSettings, parameters
from moescale.experiments.training.tracking import start
from moescale.io.files import make_folder, opened_to_append, write_atomically
from moescale.io.locks import locked
from moescale.io.signals import uninterrupted

Report = Callable[[Mapping[str, Any]], None]
RESULT, LOG, LOCK = "result.json", "log.txt", "lock"
LIBRARIES = ("torch", "transformers")
CHECKPOINT_BYTES_PER_PARAM = 12  # weight and both moments of AdamW, in float32 (checkpoint.py)
DTYPE_BYTES = {"float32": 4, "bfloat16": 2}


def train(settings: RunSettings, *, resume: bool = True, report: Report | None = None) -> list[dict[str, Any]]:
    """Train the run, or what is left of it, and return its rows of the run table: one, with wsd one for each length.

    Everything lies in `settings.output`: settings.json, progress.jsonl, log.txt, checkpoints/ until the run is finished,
    then model/ (config.json and safetensors) and result.json, which is written last. A finished run is returned as it is;
    an unfinished one goes on from its last checkpoint, or from its start without `resume`. One process trains in this one,
    several are started through torchrun on this machine, unless this one already is one of torchrun's group of so many
    (for several machines), where all but the first return no rows. `report` is called with each event of progress.jsonl.

    Raises InputError where the folder holds another run or is in use, where data, libraries or devices are missing, and
    where a process fails.
    """
    folder = Path(settings.output)
    make_folder(folder)
    check_libraries()
    group = int(os.environ.get("WORLD_SIZE", "1")) == settings.parallel.processes  # of a torchrun around this process
    if group and os.environ.get("RANK", "0") != "0":
        if not (resume and read_result(folder)):
            _in_this_process(settings, _silent, resume, _corpus(settings))
        return []  # the first process of the group keeps the books
    busy = InputError("another process trains in this folder", where=str(folder), next_step="wait for it, or end it")
    with locked(folder / LOCK, busy=busy):
        if not resume:
            _clear(folder)
        corpus = _corpus(settings)
        identity = {"settings_sha256": settings.sha256, "corpus_sha256": corpus.sha256}
        _check_same(folder, identity)
        finished = read_result(folder)
        if finished is not None:
            return finished
        _check_room(settings, corpus.vocab_size, folder)
        write_atomically(
            folder / SETTINGS, json.dumps({**settings.to_dict(), "identity": identity}, indent=2), follow_links=False
        )
        say = report or _silent
        if settings.parallel.processes == 1 or group:
            measured = _in_this_process(settings, say, resume, corpus)
        else:
            measured = _through_torchrun(settings, folder, say, resume)
        rows = [_row(settings, corpus, identity, measured, part) for part in measured["rows"]]
        tracker = start(settings.tracking, settings.name, rows[-1], folder)
        tracker.finish(rows[-1])
        tracker.close()
        write_atomically(folder / RESULT, json.dumps({"rows": rows}, indent=2, allow_nan=False), follow_links=False)
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    return rows


def _row(
    settings: RunSettings,
    corpus: Corpus,
    identity: Mapping[str, str],
    measured: Mapping[str, Any],
    part: Mapping[str, Any],
) -> dict[str, Any]:
    """One row of the run table."""
    per_s = float(part["tokens_per_s"])
    stated = stated_columns(settings, corpus.vocab_size, part["branch"])
    used = mfu(settings, corpus.vocab_size, str(measured["device"]), per_s)
    return {
        **stated,
        **{key: part[key] for key in ("loss", "train_loss", "epochs")},
        "seconds": stated["tokens"] / per_s if per_s else 0.0,
        "tokens_per_s": per_s,
        "mfu": "" if used is None else used,
        "processes": settings.parallel.processes,
        "device": measured["device"],
        "dtype": settings.training.dtype,
        **{key: part[key] for key in ("diverged", "diverged_why")},
        **{key: part[key] for key in ("dead_experts", "token_drop", "imbalance", "router_entropy")},
        "corpus_sha256": identity["corpus_sha256"],
        "tokenizer_sha256": corpus.tokenizer_sha256,
        "settings_sha256": identity["settings_sha256"],
        "torch": measured["torch"],
        "transformers": measured["transformers"],
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


# Before.


def check_libraries() -> None:
    """Raise InputError, with what to install, where a library that trains is missing from this interpreter."""
    for name in LIBRARIES:
        if importlib.util.find_spec(name) is None:
            raise InputError(f"training needs {name}, which is not installed", next_step=install("train"))


def _corpus(settings: RunSettings) -> Corpus:
    """The packed corpus, made from the sources where there is none yet."""
    data = settings.data
    if data.sources:  # pack finds a finished corpus of the same sources
        given: dict[str, Any] = {
            "tokenizer": data.tokenizer,
            "vocab_size": data.vocab_size,
            "text_field": data.text_field,
        }
        return pack(list(data.sources), data.corpus, **given)
    return open_corpus(data.corpus)


def _check_same(folder: Path, identity: Mapping[str, str]) -> None:
    """Refuse a folder that holds another run, finished or not."""
    path = folder / SETTINGS
    if not path.exists() or not _has_begun(folder):  # settings that were refused, and then corrected
        return
    try:
        known = stated(path).get("identity")
    except InputError:
        known = None
    known = known if isinstance(known, dict) else {}
    for key, what in (("settings_sha256", "settings"), ("corpus_sha256", "corpus")):
        if known.get(key) != identity[key]:
            raise InputError(
                f"holds a run with other {what}", where=str(folder),
                next_step="give another output folder, or start over with --no-resume, which deletes the present run",
            )  # fmt: skip


def _has_begun(folder: Path) -> bool:
    progress = folder / "progress.jsonl"
    kept = any((folder / name).exists() for name in (RESULT, "checkpoints", "model"))
    return kept or (progress.exists() and progress.stat().st_size > 0)


def _check_room(settings: RunSettings, vocab_size: int, folder: Path) -> None:
    """Refuse a disk that cannot hold a checkpoint and the model, before the hours that end there."""
    n_params = float(parameters(settings.model, vocab_size).total)
    needed = n_params * (CHECKPOINT_BYTES_PER_PARAM + DTYPE_BYTES[settings.training.dtype])
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise UnwrittenError(
            f"has {free / 2**20:,.1f} MiB free, and a checkpoint and the model take {needed / 2**20:,.1f} MiB",
            where=str(folder), next_step="free some space, or give an output folder on another disk",
        )  # fmt: skip


def _clear(folder: Path) -> None:
    for name in (RESULT, SETTINGS, "progress.jsonl", LOG):
        (folder / name).unlink(missing_ok=True)
    for name in ("checkpoints", "model", ".model.tmp"):
        shutil.rmtree(folder / name, ignore_errors=True)


# During.


def _in_this_process(settings: RunSettings, say: Report, resume: bool, corpus: Corpus) -> dict[str, Any]:
    from moescale.experiments.training.worker import work

    return work(settings, resume=resume, report=say, corpus=corpus)


def _through_torchrun(settings: RunSettings, folder: Path, say: Report, resume: bool) -> dict[str, Any]:
    command = [
        sys.executable, "-m", "moescale.experiments.training.launch", "--nnodes=1", f"--nproc-per-node={settings.parallel.processes}",
        "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "-m", "moescale.experiments.training.worker", str(folder),
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": str(settings.parallel.threads)}
    measured: dict[str, Any] | None = None
    failure: MoescaleError | None = None
    with opened_to_append(folder / LOG, follow_links=False) as log:
        process: subprocess.Popen[str] | None = None
        try:
            with uninterrupted():
                process = subprocess.Popen(
                    [*command, *([] if resume else ["--no-resume"])], stdout=subprocess.PIPE, stderr=log, text=True,
                    encoding="utf-8", env=environment, start_new_session=True,
                )  # fmt: skip
            assert process.stdout is not None
            for line in process.stdout:
                event = _event(line, log)
                if event.get("event") == "done":
                    measured = event["measured"]
                elif event.get("event") == "error":
                    failure = InputError(
                        event["what"], where=event["where"], nearest=event["nearest"], next_step=event["next_step"]
                    )
                elif event:
                    say(event)
            code = process.wait()
        finally:
            if process is not None:
                _end(process)
    if failure is not None:
        raise failure
    if measured is None:
        raise InputError(f"the processes ended with code {code}: {_last_line(folder / LOG)}", where=str(folder / LOG))
    return measured


def _event(line: str, log: IO[bytes]) -> dict[str, Any]:
    """The event that a line states; anything else that a library prints goes to the log."""
    with suppress(ValueError):
        event = json.loads(line)
        if isinstance(event, dict) and "event" in event:
            return event
    log.write(line.encode())
    return {}


def _end(process: subprocess.Popen[str]) -> None:
    """End torchrun and its workers, first kindly."""
    if process.poll() is None:
        with suppress(OSError):
            process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            with suppress(OSError):
                if hasattr(os, "killpg"):
                    os.killpg(process.pid, signal.SIGKILL)
                else:
                    process.kill()
            process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _last_line(path: Path) -> str:
    """The last line of a log that names an error, or the last one at all."""
    with path.open("rb") as stream:
        stream.seek(max(0, path.stat().st_size - 65_536))
        lines = [line.strip() for line in stream.read().decode("utf-8", "replace").splitlines() if line.strip()]
    named = [line for line in lines if "Error" in line and "elastic" not in line and "ChildFailed" not in line]
    return (named or lines or ["nothing in the log"])[-1][:300]


def _silent(_: Mapping[str, Any]) -> None:
    pass
