"""The command on measured latencies: profile."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from moescale.cli.flat import flat
from moescale.cli.options import Json, app, examples
from moescale.cli.output import print_json, say
from moescale.errors import InputError
from moescale.options.experiments import ProfileOptions


@app.command(
    epilog=examples(
        "moescale profile --show examples/latency.csv",
        "moescale profile profile.toml -o h100.parquet",
        "moescale profile profile.toml --python envs/vllm/bin/python -o h100.csv",
    )
)
@flat()
def profile(how: ProfileOptions, json_: Json = False) -> None:
    """Measure prefill and decode latencies of vLLM on this machine for --latency of `cost` and `plan`."""
    if how.show is not None and how.grid is None and how.output is None:
        _show(how.show, json_)
        return
    if how.show is not None or how.grid is None or how.output is None:
        what = "give GRID and -o TABLE (measure), or --show TABLE"
        raise InputError(what, next_step="see `moescale profile --help`")
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


def _show(table: Path, json_: bool) -> None:
    from moescale.latency.coverage import overview
    from moescale.latency.measurements import read_measurements
    from moescale.views.terminal.runs import show_latencies
    from moescale.views.terminal.text import terminal

    rows = read_measurements(table)
    found = overview(rows, where=str(table))
    if json_:
        print_json(found.to_dict())
    else:
        show_latencies(terminal(), found, str(table))
