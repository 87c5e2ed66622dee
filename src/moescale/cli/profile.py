"""The command on measured latencies: profile."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from moescale.cli.flat import flat
from moescale.cli.options import Json, Plot, app, check_plot, examples
from moescale.cli.output import HeldBack, print_json, say
from moescale.errors import InputError, unknown_name
from moescale.options.experiments import MeasuredGridOptions, ProfileOptions, limit_s

if TYPE_CHECKING:
    from moescale.experiments.profiling.run import Profiled


@app.command(
    epilog=examples(
        "moescale profile --show examples/latency.csv",
        "moescale profile profile.toml -o h100.parquet",
        "moescale profile --config mixtral/config.json --gpu h100-sxm --batch 1,8,64 --prompt 512 -o h100.csv",
        "moescale profile --setup vllm envs/vllm",
    )
)
@flat("grid", "output", "config", "gpu", "show", "against", "setup")
def profile(wanted: MeasuredGridOptions, how: ProfileOptions, plot: Plot = None, json_: Json = False) -> None:
    """Measure prefill and decode latencies on this machine for --latency of `cost` and `plan`."""
    _check_one_job(how, next(iter(wanted.stated()), None), plot)
    if how.setup is not None:
        _set_up(how.setup, how.grid, json_)
    elif how.show is not None:
        _show(how.show, how.against, plot, json_)
    elif how.output is not None:
        _measure(wanted, how, how.output, json_)


def _check_one_job(how: ProfileOptions, measured: str | None, plot: Path | None) -> None:
    """One thing is to be done, and only what goes with it is stated: `measured` is an option of the grid, if any is."""
    if sum(job is not None for job in (how.show, how.setup, how.output)) != 1:
        raise InputError(
            "give one of -o TABLE (measure), --show TABLE and --setup vllm",
            next_step="`moescale profile --help` lists what there is",
        )
    for place, value in (("--plot", plot), ("--against", how.against)):
        if how.show is None and value is not None:
            raise InputError("goes with --show only", where=place, next_step="leave it out")
    if how.output is None and measured is not None:
        option = f"--{measured.replace('_', '-')}"
        raise InputError("says what to measure, which needs -o TABLE", where=option, next_step="leave it out")
    if how.show is not None and how.grid is not None:
        raise InputError("goes without --show", where="GRID", next_step="leave it out")


def _measure(wanted: MeasuredGridOptions, how: ProfileOptions, table: Path, json_: bool) -> None:
    from moescale.experiments.profiling import run
    from moescale.experiments.profiling.grid import grid_of_options

    grid = grid_of_options(how.grid, wanted.stated())
    if how.device not in (None, "cpu", "cuda"):
        raise unknown_name("device", how.device, ("cpu", "cuda"), where="--device")
    done = run.profile(
        grid,
        table,
        engine=run.Engine(python=how.python or _default_python(grid.engine), device=how.device, log=how.log),
        repeats=run.Repeats(
            tolerance=how.tolerance, most=how.max_repeats, least=min(5, how.max_repeats), rounds=how.rounds
        ),
        retry=how.retry,
        seconds=limit_s(how.max_time),
        report=say,
    )
    if json_:
        print_json(done.to_dict())
    else:
        _tell(done)


def _tell(done: Profiled) -> None:
    print(
        f"{done.table}: {done.points} points; {done.measured} measured in {done.seconds:.0f} s, {done.found} there before"
    )
    for status, count in done.not_ok.items():
        print(f"{count} of them without a latency: {status}")
    if done.missing:
        print(f"{done.missing} still to measure, or to measure again in a further round: the same command goes on")


def _default_python(engine: str) -> Path | None:
    """The environment that --setup made, where there is one."""
    from moescale.experiments.profiling.setup import default_folder, python_of

    python = python_of(default_folder(engine))
    return python if engine == "vllm" and python.exists() else None


def _set_up(engine: str, folder: Path | None, json_: bool) -> None:
    from moescale.experiments.profiling.setup import set_up

    python = set_up(engine, folder, report=say)
    if json_:
        print_json({"engine": engine, "python": str(python)})
    else:
        print(f"moescale profile GRID.toml --engine {engine} --python {python} -o TABLE.parquet")


def _show(table: Path, against: Path | None, plot: Path | None, json_: bool) -> None:
    from moescale.latency.coverage import agreement, overview
    from moescale.latency.measurements import read_measurements
    from moescale.views.figures import latency_figure
    from moescale.views.terminal import show_latencies, terminal

    check_plot(plot)
    rows = read_measurements(table)
    found = overview(rows, where=str(table))
    agreed = None if against is None else agreement(rows, read_measurements(against))
    held_back = HeldBack()
    held_back.draw(plot, latency_figure, rows)
    if json_:
        print_json(found.to_dict() | ({} if agreed is None else {"against": agreed.to_dict()}))
    else:
        show_latencies(terminal(), found, str(table))
    if agreed is not None and not json_:
        print(
            f"\nOf {agreed.points} points that {against} has as well, {agreed.agree} agree within the wider of the two spreads; "
            f"the median difference is {agreed.median_abs_difference:.1%}, the largest {agreed.max_abs_difference:.1%}.\n"
            f"Furthest beyond its spread, or nearest to it: {agreed.worst}."
        )
    held_back.tell()
