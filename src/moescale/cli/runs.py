"""Commands that make runs and measurements: import, pack, train, sweep, profile."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass
from pathlib import Path
from typing import Any

from moescale.bounds import TOKENS
from moescale.cli.options import TABLE_SUFFIXES, Json, command
from moescale.cli.output import HeldBack, answer, print_json, say, warn
from moescale.errors import InputError, unknown_name
from moescale.options.fields import MOST_SECONDS, MOST_SEED, Group, flag, path, quantity, seconds, text
from moescale.options.runs import ImportOptions
from moescale.units import format_count, format_seconds, plural


@command(
    "moescale import trainer examples/trainer",
    "moescale import mlflow http://localhost:5000 -o runs.csv",
    "moescale import wandb wandb -o runs.csv",
    "moescale import csv runs.tsv --set tokens='step * 524288' --set loss=eval/loss -o runs.csv",
    name="import",
)
def import_(wanted: ImportOptions, json_: Json = False) -> None:
    """Write a run table for `fit` from runs in MLflow, W&B, TensorBoard, a Trainer's folder, or any table."""
    from moescale.io.files import check_target
    from moescale.runs.importers import TRACKERS, import_runs
    from moescale.runs.table import write_runs

    tracker, source, output = wanted.tracker, wanted.source, wanted.output
    if tracker not in TRACKERS:
        raise unknown_name("tracker", tracker, TRACKERS, where="TRACKER")
    if output is not None:
        if output.suffix.lower() not in TABLE_SUFFIXES:
            raise unknown_name("suffix to write", output.suffix, TABLE_SUFFIXES, where=str(output))
        check_target(output, [source])
    found = import_runs(tracker, source, mapping=wanted.rules(), unfinished=wanted.unfinished)
    held_back = HeldBack()
    if output is not None:
        with held_back.writing():
            write_runs(found.columns, output)
    warn(found.warnings)
    if json_:
        print_json(found.to_dict() | ({} if output is None else {"table": str(output)}))
    else:
        runs = f"{found.n_runs} of {plural(found.n_found, 'run')}"
        print(f"{output}: {runs}" if output is not None else f"{runs}; write them with -o RUNS.csv")
        left_out = [f"  {run}: {reason}" for run, reason in found.left_out]
        lines = [*(f"  {rule}" for rule in found.rules), *(["Left out:", *left_out] if left_out else [])]
        print("\n".join(lines), end="\n" * bool(lines))
    held_back.tell()


@dataclass(frozen=True, kw_only=True)
class PackOptions(Group):
    """What a corpus is made of and where it goes, or a corpus to show."""

    sources: list[str] | None = text(
        "Text files, folders or hf:NAME; rows of jsonl, json, csv or parquet are documents.", name="SOURCE.."
    )
    output: Path | None = path("Folder of the corpus; an interrupted pack starts over.", name="-o")
    tokenizer: str | None = text("A tokenizer.json, or bytes (one token per byte).", metavar="PATH")
    eos: str | None = text("End-of-document token, if the tokenizer has none with a usual name.", metavar="TOKEN")
    validation: float = quantity("Share of documents held out for validation.", 0, 1, default=0.01)
    text_field: str = text("Field or column of the text.", default="text")
    max_tokens: int | None = quantity("Stop after this many training tokens.", 1, TOKENS.most, whole=True)
    seed: int = quantity("Seed of the choice of validation documents.", 0, MOST_SEED, default=0, whole=True)
    show: Path | None = path("Describe a corpus and verify its hashes.")


@command(
    "moescale pack LICENSE --tokenizer bytes --validation 0 -o corpus",
    "moescale pack docs src --tokenizer tokenizer.json -o corpus",
    "moescale pack hf:cerebras/SlimPajama-627B --tokenizer tokenizer.json --max-tokens 20B -o corpus",
    "moescale pack --show corpus",
)
def pack(wanted: PackOptions, json_: Json = False) -> None:
    """Tokenise text into a corpus for `train` and `sweep`."""
    from moescale.experiments.corpus import open_corpus, verify
    from moescale.experiments.pack import pack as run_pack

    if wanted.show is not None:
        if wanted.sources or wanted.output is not None:
            raise InputError("goes without sources and -o", where="--show", next_step="leave them out")
        corpus = open_corpus(wanted.show)
        verify(corpus)
    elif wanted.output is None or wanted.tokenizer is None:
        what = "give -o FOLDER and --tokenizer (a tokenizer.json, or bytes), or --show FOLDER"
        raise InputError(what, next_step="see `moescale pack --help`")
    else:
        corpus = run_pack(
            wanted.sources or (), wanted.output, tokenizer=wanted.tokenizer, eos=wanted.eos, seed=wanted.seed, report=say,
            validation=wanted.validation, text_field=wanted.text_field, max_tokens=wanted.max_tokens,
        )  # fmt: skip
    if json_:
        print_json(corpus.header())
        return
    training, validation = (
        f"{tokens:,} {kind} tokens of {documents:,} document{'s' * (documents != 1)}"
        for kind, tokens, documents in (
            ("training", corpus.n_train, corpus.n_train_documents),
            ("validation", corpus.n_validation, corpus.n_validation_documents),
        )
    )
    print(f"{corpus.folder}: {training}, {validation}")
    print(f"vocabulary {corpus.vocab_size:,} ({corpus.dtype}), end of text {corpus.eos_id}")
    print(f"sha256 {corpus.sha256}")


@dataclass(frozen=True, kw_only=True)
class TrainOptions(Group):
    """One model to train."""

    run: Path = path("RUN.toml with the settings of the run.", name="RUN", default=MISSING)
    output: Path | None = path("Run table to write or extend: .csv or .tsv.", name="-o")
    resume: bool = flag("Resume from the last checkpoint, or start over.", name="--resume/--no-resume", default=True)
    dry_run: bool = flag("Print all settings, sizes and FLOPs without training.")


@command(
    "moescale train examples/run.toml --dry-run",
    "moescale train run.toml -o runs.csv",
    "moescale train run.toml --no-resume",
)
def train(wanted: TrainOptions, json_: Json = False) -> None:
    """Train one model and write its row of a run table for `fit`."""
    from moescale.experiments.run import add_rows, check_run_table, torchrun
    from moescale.experiments.run import train as run_train
    from moescale.experiments.settings import estimate, read_settings
    from moescale.views.terminal.runs import show_settings, show_trained

    settings, output = read_settings(wanted.run), wanted.output
    if wanted.dry_run:
        expected = estimate(settings)
        record = {"settings": settings.to_dict(), "settings_sha256": settings.sha256, "estimate": expected}
        answer(json_, record, show_settings, settings.to_dict(), expected)
        return
    if output is not None:
        check_run_table(output)
    if settings.parallel.processes > 1 and "WORLD_SIZE" not in os.environ:
        more = ["--json"] * json_ + ["--no-resume"] * (not wanted.resume)
        torchrun(wanted.run, settings.parallel.processes, [*more, *(["-o", str(output)] if output is not None else [])])
    row = run_train(settings, resume=wanted.resume, report=_print_event)
    if row is None:  # another process of torchrun's group prints it
        return
    held_back = HeldBack()
    if output is not None:
        with held_back.writing():
            add_rows(output, [row])
    held = settings.output + "/result.json" if output is None or held_back.errors else str(output)
    answer(json_, {"rows": [row]}, show_trained, [row], settings.output, held)
    held_back.tell()


def _print_event(event: Mapping[str, Any]) -> None:
    at = f"step {event.get('step', 0)}"
    if event["event"] == "step":
        steps = event["steps"]
        left = (steps - event["step"]) * event["seconds"] / event["step"] if event["step"] else math.nan
        say(
            f"{at}/{steps}: loss {event['loss']:.4f}, lr {event['lr']:.3g}, {format_count(event['tokens_per_s'])} tokens/s, "
            f"{format_seconds(left)} left"
        )
        return
    checkpoint = f" {event['checkpoint']}" if event.get("checkpoint") else ""
    loss = "" if event.get("validation_loss") is None else f" loss {event['validation_loss']:.4f}"
    say(f"{at}: {event['event']}{checkpoint}{loss}")


@dataclass(frozen=True, kw_only=True)
class GridOptions(Group):
    """A grid of models to train."""

    file: Path = path("SWEEP.toml: a RUN.toml with [grid] or [[runs]].", name="SWEEP", default=MISSING)
    dry_run: bool = flag("List the runs with parameters, tokens, FLOPs and time, without training.")
    resume: bool = flag(
        "Resume interrupted runs from their last checkpoint, or start over.", name="--resume/--no-resume", default=True
    )
    jobs: int | None = quantity("Runs in parallel; default: the file's, or 1 (on a cluster: all).", whole=True)
    retries: int = quantity("Restarts of a run whose process died.", 0, 1000, default=1, whole=True)
    max_time: float | None = seconds(
        "Stop after this time, such as 9m; run the same command again to continue.", MOST_SECONDS
    )


@command(
    "moescale sweep examples/sweep.toml --dry-run",
    "moescale sweep sweep.toml --jobs 2",
    "moescale sweep sweep.toml --max-time 9m --json",
)
def sweep(wanted: GridOptions, json_: Json = False) -> int:
    """Train a grid of models, here or on a cluster, and write a run table for `fit`."""
    from moescale.experiments.sweep import drive, dry_run
    from moescale.experiments.sweep_file import read_sweep
    from moescale.io.records import record
    from moescale.views.terminal.runs import show_planned_runs

    grid = read_sweep(wanted.file)
    if wanted.dry_run:
        plan = dry_run(grid, wanted.jobs)
        answer(json_, plan, show_planned_runs, plan)
        return 0
    done = drive(grid, jobs=wanted.jobs, retries=wanted.retries, resume=wanted.resume, say=say, seconds=wanted.max_time)
    if json_:
        print_json(record(done))
    else:
        print(
            f"{done.table}: {done.finished + done.found} of {done.runs} runs; {done.finished} finished in "
            f"{format_seconds(done.seconds)}, {done.found} already there"
        )
        if done.diverged:
            print(f"{len(done.diverged)} diverged; fit leaves them out: {', '.join(done.diverged)}")
        if done.left:
            print(f"{done.left} left to train: run the same command again")
    if not done.failed:
        return 0
    first, names = done.failed[0], ", ".join(failure.name for failure in done.failed)
    say(f"moescale: {len(done.failed)} of {done.runs} runs failed: {names}; {first.log} ends in:\n{first.log_end}")
    return 1


@dataclass(frozen=True, kw_only=True)
class ProfileOptions(Group):
    """How latencies are measured, and their table."""

    grid: Path = path("PROFILE.toml with the grid.", name="GRID", default=MISSING)
    output: Path = path("Latency table to write or extend: .parquet, .csv or .tsv.", name="-o", default=MISSING)
    python: Path | None = path("Python interpreter of vLLM's environment; default: this one.")
    repeats: int = quantity("Repeats per start of vLLM.", 1, 10_000, default=10, whole=True)
    rounds: int = quantity("Passes over the grid, each with fresh engines.", 1, 100, default=3, whole=True)
    log: Path | None = path("Log file of vLLM.")


@command(
    "moescale profile profile.toml -o h100.parquet",
    "moescale profile profile.toml --python envs/vllm/bin/python -o h100.csv",
)
def profile(how: ProfileOptions, json_: Json = False) -> None:
    """Measure prefill and decode latencies of vLLM on this machine for --latency of `cost` and `plan`."""
    from moescale.experiments import profile as profiling

    command = profiling.VLLM if how.python is None else (str(how.python), *profiling.VLLM[1:])
    done = profiling.profile(
        *profiling.read_grid(how.grid), how.output, vllm=command, repeats=how.repeats, rounds=how.rounds,
        log=how.log, report=say,
    )  # fmt: skip
    if json_:
        print_json(asdict(done))
        return
    print(f"{how.output}: {done.points} points, {done.measured} of them measured now")
    for status, count in done.not_ok.items():
        print(f"{count} without a latency: {status}")
