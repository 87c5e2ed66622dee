"""Drive a sweep: start what is not finished, keep every row as soon as it is known, start again what died.

Runs on torchtitan or Megatron-LM are started by the launch that `export` writes, and their logs read into rows.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import tomli_w

from moescale.errors import InputError
from moescale.experiments.jobs import BUSY, LOST, Jobs
from moescale.experiments.run import RESULT, add_rows, check_libraries, check_run_table, read_result
from moescale.experiments.settings import stated_columns
from moescale.experiments.sweep_file import PlannedRun, Sweep
from moescale.export.launch import export_model
from moescale.hardware.gpus import find_gpu
from moescale.io.files import make_folder, read_text, write_atomically
from moescale.io.signals import sigterm_interrupts, uninterrupted
from moescale.models.recipe import defaults
from moescale.runs.importers.tracked_run import number
from moescale.training.choice import Launch

Row = dict[str, Any]

POLL_S = 0.5
LINE_EVERY_S = 30.0
TAIL_LINES, TAIL_BYTES = 15, 65_536
LAST_LOSSES = 20  # logged training losses whose mean is the training loss of a run
LOG_LIMIT_BYTES = 2**28
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
NUMBER = r"([-+.\deEnaif]+)"
# torchtitan 0.3, components/metrics.py, MetricsProcessor.log and log_validation; Megatron-LM, training/training.py,
# training_log, and evaluate_and_print_results.
LOGGED = {  # steps with a training loss, and with a validation loss
    "torchtitan": (rf"(?<!validate )step:\s*(\d+)\s+loss:\s*{NUMBER}", rf"validate step:\s*(\d+)\s+loss:\s*{NUMBER}"),
    "megatron": (
        rf"iteration\s+(\d+)/\s*\d+ \|.*?lm loss:\s*{NUMBER}",
        rf"validation loss at iteration (\d+).*?lm loss value:\s*{NUMBER}",
    ),
}
SAME = (
    "peak_lr",
    "steps",
    "batch_tokens",
    "sequence_tokens",
    "min_lr_ratio",
    "weight_decay",
    "beta1",
    "beta2",
    "grad_clip",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A run that ended without a result, as often as it was tried."""

    name: str
    attempts: int
    exit_code: int
    log: str
    log_end: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """What driving a sweep came to."""

    table: str
    runs: int
    finished: int  # while this drove
    found: int  # finished before
    left: int  # neither finished nor failed: stopped by the limit of time
    failed: tuple[Failure, ...]
    diverged: tuple[str, ...]  # names; in the table, marked
    seconds: float


def dry_run(sweep: Sweep, jobs: int | None = None) -> dict[str, Any]:
    """What a sweep would do and take, from what is there, as JSON-ready values; starts nothing."""
    results, outlooks = _finished(sweep), list[dict[str, Any]]()
    for run in sweep.runs:
        state = "interrupted" if (run.output / "progress.jsonl").exists() else "new"
        outlooks.append(run.to_dict() | {"state": "finished" if run.name in results else state})
    return {
        "table": str(sweep.table), "folder": str(sweep.folder), "engine": sweep.engine, "runs": outlooks,
        "jobs": _jobs(sweep, len(sweep.runs), jobs), "training_flops": sum(run.training_flops for run in sweep.runs),
    }  # fmt: skip


def drive(
    sweep: Sweep,
    *,
    jobs: int | None = None,
    retries: int = 1,
    resume: bool = True,
    seconds: float | None = None,
    say: Callable[[str], None] = lambda line: None,
    command: Callable[[Path], list[str]] | None = None,
    poll_s: float = POLL_S,
) -> Swept:
    """Train every run that has no result, `jobs` at once, and add its row to the table when it has ended.

    A run whose command ended without a result is started again, `retries` times, and goes on from its checkpoint; one that
    another driver has is waited for. After `seconds`, and by Ctrl-C and SIGTERM, all that run are stopped, to go on at the
    next call. Without `resume` a run that was interrupted starts anew. `command` makes another command of a run's RUN.toml.
    Raises InputError where a folder holds another run, table or place cannot be used, or the libraries that train are missing.
    """
    start = time.monotonic()
    make_folder(sweep.table.parent)
    check_run_table(sweep.table)
    make_folder(sweep.folder)
    results = _finished(sweep)
    found, failed = len(results), dict[str, Failure]()
    add_rows(sweep.table, list(results.values()))
    waiting = deque(run for run in sweep.runs if run.name not in results)
    attempts = Counter[str]()  # that have ended

    def collect(run: PlannedRun, *, ended: bool = False) -> bool:
        row = _result_of(run)
        if row is None and ended and sweep.engine != "moescale" and (row := read_log(run, sweep.engine)):
            make_folder(run.output)
            write_atomically(run.output / RESULT, json.dumps({"rows": [row]}, indent=2))
        if row is None:
            return False
        results[run.name] = row
        add_rows(sweep.table, [row])
        outcome = f"loss {row['loss']:.4f}" if isinstance(row.get("loss"), float) else "no loss"
        if row.get("diverged") is True:
            outcome = f"diverged ({row.get('diverged_why') or 'no reason given'})"
        say(f"{row['name']}: {outcome}")
        return True

    def ended(run: PlannedRun, code: int) -> None:
        if collect(run, ended=code in (0, BUSY)):
            return
        attempts[run.name] += code != BUSY
        how = "was lost" if code == LOST else f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        # Whatever the code: `train` returns that of bad input too where one of its processes was killed.
        if attempts[run.name] <= retries:
            say(f"{run.name}: {how}; starting it again from its checkpoint" if code != BUSY else f"{run.name}: is free")
            waiting.appendleft(run)
            return
        log, count = run.beside("log"), attempts[run.name]
        failed[run.name] = Failure(name=run.name, attempts=count, exit_code=code, log=str(log), log_end=_tail(log))
        say(f"{run.name}: {how} and failed; see {log}")

    if waiting:
        if command is None and sweep.engine == "moescale":
            check_libraries()  # else each run would find out for itself, and be started again
        for run in waiting:
            write_atomically(run.beside("toml"), tomli_w.dumps(run.settings.to_dict()))
        most = _jobs(sweep, len(waiting), jobs)
        place = Jobs(sweep.execution.on, sweep.execution.slurm, (sweep.folder / ".submitit").absolute(), most)
        active: list[tuple[PlannedRun, Any]] = []
        told, said_at = (-1, -1), 0.0
        with sigterm_interrupts():
            try:
                while waiting or active:
                    for run, job in list(active):
                        if (code := place.poll(job)) is not None:
                            active.remove((run, job))
                            ended(run, code)
                    while waiting and len(active) < most:
                        run = waiting.popleft()
                        if collect(run):  # another driver may have finished it
                            continue
                        file, log = (run.beside(suffix).absolute() for suffix in ("toml", "log"))
                        if command is not None:
                            line = command(file)
                        elif sweep.engine != "moescale":
                            line = write_launch(run, sweep)
                        else:
                            line = train_command(file, resume=resume or attempts[run.name] > 0)
                        with uninterrupted():  # a run that is started and not known would be left behind
                            active.append((run, place.start(line, log, run.lock.absolute())))
                    if (now := (len(results), len(failed))) != told or time.monotonic() - said_at > LINE_EVERY_S:
                        told, said_at = now, time.monotonic()
                        of_failed = f", {len(failed)} failed" if failed else ""
                        say(f"{len(results)}/{len(sweep.runs)} runs done, {len(active)} running{of_failed}")
                    if seconds is not None and time.monotonic() >= start + seconds:
                        break
                    if active:
                        time.sleep(poll_s)
            finally:
                place.end([job for _, job in active])
                for run, _ in active:  # what was just finishing is kept
                    collect(run)
    return Swept(
        table=str(sweep.table), runs=len(sweep.runs), finished=len(results) - found, found=found,
        left=len(sweep.runs) - len(results) - len(failed), failed=tuple(failed.values()),
        diverged=tuple(row["name"] for row in results.values() if row.get("diverged") is True),
        seconds=time.monotonic() - start,
    )  # fmt: skip


def train_command(run_file: Path, *, resume: bool = True) -> list[str]:
    """The command that trains one run here."""
    command = [sys.executable, "-m", "moescale", "train", str(run_file), "--json"]
    return command if resume else [*command, "--no-resume"]


def _finished(sweep: Sweep) -> dict[str, Row]:
    """The rows of the runs that are finished, by name."""
    return {run.name: row for run in sweep.runs if (row := _result_of(run)) is not None}


def _result_of(run: PlannedRun) -> Row | None:
    """The row of a finished run, or None; InputError where its folder holds another run."""
    row = read_result(run.output)
    if row is not None and row["settings_sha256"] != run.settings.sha256:
        step = "give the sweep another name or folder, or remove that one"
        raise InputError("holds a finished run of other settings", where=str(run.output), next_step=step)
    return row


def _tail(file: Path) -> str:
    with suppress(OSError), file.open("rb") as stream:
        stream.seek(max(0, stream.seek(0, 2) - TAIL_BYTES))
        return "\n".join(stream.read().decode("utf-8", "replace").splitlines()[-TAIL_LINES:])
    return ""


def _jobs(sweep: Sweep, runs: int, stated: int | None) -> int:
    return max(1, min(stated or sweep.execution.jobs or (1 if sweep.execution.on == "local" else runs), runs))


# Other engines.


def write_launch(run: PlannedRun, sweep: Sweep) -> list[str]:
    """Write the launch of a run beside its folder; its command. InputError where it would train otherwise than is stated."""
    t, folder, engine, execution = run.settings.training, run.beside("launch"), sweep.engine, sweep.execution
    launch = Launch(**{key: getattr(t, key) for key in ("peak_lr", "batch_tokens", "sequence_tokens", "schedule")})
    recipe = export_model(
        run.settings.model.buildable(), float(t.trained_tokens), engine, folder, gpu=find_gpu(str(execution.gpu)),
        gpus=execution.gpus, launch=launch,
    ).recipe  # fmt: skip
    pairs = {key: (getattr(t, key), getattr(recipe, key)) for key in SAME}
    pairs["warmup"] = (round(t.warmup * t.steps), recipe.warmup_steps)
    for key, (stated, launched) in pairs.items():
        if not math.isclose(stated, launched, rel_tol=1e-9, abs_tol=1.0 if key == "warmup" else 0.0):
            what = f"{key} is {stated}, and the launch for {engine} has {launched}"
            raise InputError(what, where=f"run {run.name}", next_step='take that, or engine = "moescale"')
    corpus, output = run.settings.data.corpus, str(run.output.absolute())
    usual = {"TOKENIZER": corpus, "DATA": f"{corpus}/train", "CORPUS": corpus}
    stated = [f"{name}={os.environ.get(name, value)}" for name, value in usual.items()]
    return ["env", f"OUTPUT={output}", *stated, "bash", str((folder / "run.sh").absolute())]


def read_log(run: PlannedRun, engine: str) -> Row | None:
    """The row of a launched run from its log; None where the log does not reach the end of the run.

    `loss` is the validation loss where the log has one of the last step, else the mean of the last logged training losses
    (nats per token): `loss_of` says which.
    """
    log = run.beside("log")
    if not log.exists():
        return None
    text = COLOURS.sub("", read_text(log, limit_bytes=LOG_LIMIT_BYTES))
    steps, validated = (
        [(int(step), number(loss)) for step, loss in re.findall(logged, text)] for logged in LOGGED[engine]
    )
    validations = dict(validated)
    last = run.settings.training.steps
    # A trainer logs every so many steps: the end is the last step that it would log.
    every = max((b - a for (a, _), (b, _) in pairwise(steps)), default=1)
    if not steps or steps[-1][0] <= last - max(every, 1):
        return None
    train_loss = fmean(loss for _, loss in steps[-LAST_LOSSES:])
    loss = validations.get(last, train_loss)
    diverged = not math.isfinite(loss)
    found = {
        "loss": None if diverged else loss,
        "loss_of": "validation" if last in validations else "train",
        "train_loss": train_loss if math.isfinite(train_loss) else None,
        "diverged": diverged,
        "diverged_why": "the loss is not finite" if diverged else "",
        "engine": engine,
    }
    return stated_columns(run.settings, defaults().vocab_size) | found
