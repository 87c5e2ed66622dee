"""The command that trains a grid of runs: sweep."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from moescale.cli.options import (
    MOST_SECONDS,
    Json,
    app,
    examples,
    file_option,
    number_option,
    print_json,
    seconds_option,
)
from moescale.units import format_seconds

if TYPE_CHECKING:
    from moescale.experiments.sweeps.driver import Say, Swept, Watch


@app.command(
    epilog=examples(
        "moescale sweep examples/sweep.toml --dry-run",
        "moescale sweep sweep.toml --jobs 2",
        "moescale sweep sweep.toml --max-time 9m --json",
    )
)
def sweep(
    file: Annotated[Path, file_option("SWEEP", "What to train: SWEEP.toml, a RUN.toml with a [grid].")],
    dry: Annotated[
        bool, Option("--dry-run", help="List the runs with parameters, tokens, FLOPs and time; start nothing.")
    ] = False,
    resume: Annotated[
        bool, Option("--resume/--no-resume", help="Interrupted runs go on from their last checkpoint, or start anew.")
    ] = True,
    jobs: Annotated[
        int | None, number_option("--jobs", "Runs at once; default: the file's, or 1 (on a cluster all).", whole=True)
    ] = None,
    retries: Annotated[
        int, number_option("--retries", "How often a run whose process died is started again.", 0, 1000, whole=True)
    ] = 1,
    max_time: Annotated[
        float | None, seconds_option("--max-time", "Stop after this time, such as 9m; the next call goes on.")
    ] = None,
    json_: Json = False,
) -> int:
    """Train a grid of models, here or on a cluster, into a run table that `fit` reads."""
    from moescale.experiments.sweeps.driver import Drive, dry_run
    from moescale.experiments.sweeps.sweep import read_sweep

    wanted = read_sweep(file)
    if dry:
        from dataclasses import replace

        from moescale.views.terminal import show_planned_runs, terminal

        if jobs is not None:
            wanted = replace(wanted, execution=replace(wanted.execution, jobs=jobs))
        plan = dry_run(wanted).to_dict()
        if json_:
            print_json(plan)
        else:
            show_planned_runs(terminal(), plan)
        return 0
    with _progress() as (watch, say):
        limit = max_time if max_time is None or max_time < MOST_SECONDS else None
        driving = Drive(wanted, jobs=jobs, retries=retries, resume=resume, say=say, watch=watch, seconds=limit)
        done = driving.run()
    if json_:
        print_json(done.to_dict())
    else:
        _tell(done)
    return _end(done)


@contextmanager
def _progress() -> Generator[tuple[Watch, Say]]:
    """Bars on standard error where that is a terminal, else lines."""
    from moescale.experiments.sweeps.progress import watch_lines, watch_live

    if sys.stderr.isatty():
        from moescale.views.terminal import terminal

        with watch_live(terminal(error=True)) as callbacks:
            yield callbacks
    else:

        def say(line: str) -> None:
            print(line, file=sys.stderr, flush=True)

        with watch_lines(say) as watch:
            yield watch, say


def _tell(done: Swept) -> None:
    print(
        f"{done.table}: {done.finished + done.found} of {done.runs} runs; {done.finished} finished in "
        f"{format_seconds(done.seconds)}, {done.found} there before"
    )
    if done.diverged:
        print(f"{len(done.diverged)} diverged and are marked so, for fit to leave out: {', '.join(done.diverged)}")
    if done.trunks:
        trunks = "a trunk" if done.trunks == 1 else f"{done.trunks} trunks"
        print(f"Rows share {trunks}: moescale fit {done.table} --cluster trunk")
    if done.left:
        print(f"{done.left} still to train: the same command goes on")


def _end(done: Swept) -> int:
    """The exit code; the one message where runs failed."""
    if not done.failed:
        return 0
    first = done.failed[0]
    names = ", ".join(failure.name for failure in done.failed)
    print(
        f"moescale: {len(done.failed)} of {done.runs} runs failed: {names}; {first.log} ends in:\n{first.log_end}",
        file=sys.stderr,
    )
    return 1
