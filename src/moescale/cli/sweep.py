"""The command that trains a grid of runs: sweep."""

from __future__ import annotations

from moescale.cli.flat import flat
from moescale.cli.options import Json, app, examples
from moescale.cli.output import print_json, say
from moescale.options.experiments import GridOptions, limit_s
from moescale.units import format_seconds


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
    from moescale.experiments.sweep import drive, dry_run
    from moescale.experiments.sweep_file import read_sweep
    from moescale.views.terminal.runs import show_planned_runs
    from moescale.views.terminal.text import terminal

    grid = read_sweep(wanted.file)
    if wanted.dry_run:
        plan = dry_run(grid, wanted.jobs)
        if json_:
            print_json(plan)
        else:
            show_planned_runs(terminal(), plan)
        return 0
    limit = limit_s(wanted.max_time)
    done = drive(grid, jobs=wanted.jobs, retries=wanted.retries, resume=wanted.resume, say=say, seconds=limit)
    if json_:
        print_json(done.to_dict())
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
