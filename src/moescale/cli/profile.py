"""The command on measured latencies: profile."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from moescale.cli.flat import flat
from moescale.cli.options import Json, app, examples
from moescale.cli.output import print_json, say
from moescale.errors import InputError
from moescale.options.experiments import MeasuredGridOptions, ProfileOptions, limit_s


@app.command(
    epilog=examples(
        "moescale profile --show examples/latency.csv",
        "moescale profile profile.toml -o h100.parquet",
        "moescale profile --config mixtral/config.json --gpu h100-sxm --batch 1,8,64 --prompt 512 -o h100.csv",
    )
)
@flat("grid", "output", "config", "gpu", "show", "against")
def profile(wanted: MeasuredGridOptions, how: ProfileOptions, json_: Json = False) -> None:
    """Measure prefill and decode latencies of vLLM on this machine for --latency of `cost` and `plan`."""
    if (how.show is None) == (how.output is None):
        what = "give one of -o TABLE (measure) and --show TABLE"
        raise InputError(what, next_step="see `moescale profile --help`")
    if how.show is not None:
        for place, value in (("GRID", how.grid), *((f"--{name}", v) for name, v in wanted.stated().items())):
            if value is not None:
                raise InputError("goes without --show", where=place, next_step="leave it out")
        _show(how.show, how.against, json_)
        return
    if how.against is not None:
        raise InputError("goes with --show only", where="--against", next_step="leave it out")
    _measure(wanted, how, Path(str(how.output)), json_)


def _measure(wanted: MeasuredGridOptions, how: ProfileOptions, table: Path, json_: bool) -> None:
    from moescale.experiments import profile as profiling
    from moescale.experiments.profile_grid import grid_of, read_grid

    stated = wanted.stated()
    if how.grid is not None:
        if stated:
            raise InputError(
                "goes without a grid file, which states it", where=f"--{next(iter(stated))}", next_step="leave it out"
            )
        grid = read_grid(how.grid)
    else:
        keys = {"batch": "batch", "prompt": "prompt_tokens", "context": "context_tokens", "gpus": "gpus"}
        document: dict[str, Any] = {key: stated[key] for key in ("gpu", "dtype") if key in stated}
        document |= {key: str(stated[name]).split(",") for name, key in keys.items() if name in stated}
        model = {key: str(stated[key]).split(",") for key in ("n_params", "experts") if key in stated}
        model |= {key: str(stated[key]) for key in ("config", "kv_heads") if key in stated}
        try:
            grid = grid_of({**document, "models": [model]}, where="the options", folder=Path())
        except InputError as error:
            key = str(error.where).rpartition(", ")[2].removesuffix("_tokens").replace("_", "-")
            where = f"--{key}" if key.replace("-", "_") in stated else error.where
            raise InputError(error.what, where=where, nearest=error.nearest, next_step=error.next_step) from error
    done = profiling.profile(
        grid, table, vllm=None if how.python is None else (str(how.python), "-m", "vllm.entrypoints.cli.main"),
        repeats=how.repeats, rounds=how.rounds, retry=how.retry, seconds=limit_s(how.max_time), log=how.log, report=say,
    )  # fmt: skip
    if json_:
        print_json(asdict(done))
        return
    times = f"{done.measured} measured in {done.seconds:.0f} s, {done.found} already there"
    print(f"{done.table}: {done.points} points; {times}")
    for status, count in done.not_ok.items():
        print(f"{count} without a latency: {status}")
    if done.missing:
        print(f"{done.missing} left to measure: run the same command again")


def _show(table: Path, against: Path | None, json_: bool) -> None:
    from moescale.latency.coverage import agreement, overview
    from moescale.latency.measurements import read_measurements
    from moescale.views.terminal.runs import show_latencies
    from moescale.views.terminal.text import terminal

    rows = read_measurements(table)
    found = overview(rows, where=str(table))
    agreed = None if against is None else agreement(rows, read_measurements(against))
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
