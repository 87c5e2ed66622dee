"""The command that trains a grid of runs: sweep."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from moescale.cli.flat import flat
from moescale.cli.options import Json, app, examples
from moescale.cli.output import print_json, say
from moescale.options.experiments import GridOptions, limit_s
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
@flat()
def sweep(wanted: GridOptions, json_: Json = False) -> int:
    """Train a grid of models, here or on a cluster, and write a run table for `fit`."""
    from moescale.experiments.sweeps.driver import Drive, dry_run
    from moescale.experiments.sweeps.sweep import read_sweep
    from moescale.views.terminal import show_planned_runs, terminal

    grid, jobs = read_sweep(wanted.file), wanted.jobs
    if wanted.dry_run:
        if jobs is not None:
            grid = replace(grid, execution=replace(grid.execution, jobs=jobs))
        plan = dry_run(grid).to_dict()
        if json_:
            print_json(plan)
        else:
            show_planned_runs(terminal(), plan)
        return 0
    retries, resume, limit = wanted.retries, wanted.resume, limit_s(wanted.max_time)
    with _progress() as (watch, tell):
        driving = Drive(grid, jobs=jobs, retries=retries, resume=resume, say=tell, watch=watch, seconds=limit)
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
    from moescale.views.terminal import terminal

    if sys.stderr.isatty():
        with watch_live(terminal(error=True)) as callbacks:
            yield callbacks
    else:
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
    say(f"moescale: {len(done.failed)} of {done.runs} runs failed: {names}; {first.log} ends in:\n{first.log_end}")
    return 1
