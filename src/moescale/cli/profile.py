"""The command on measured latencies: profile."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from moescale.cli.options import (
    LEAST,
    MOST_SECONDS,
    HeldBack,
    Json,
    Plot,
    app,
    check_plot,
    examples,
    file_option,
    number_option,
    print_json,
    seconds_option,
    text_option,
)
from moescale.errors import InputError, unknown_name

if TYPE_CHECKING:
    from moescale.experiments.profiling.run import Profiled

GRID_OPTIONS = (
    "gpu", "config", "n_params", "experts", "kv_heads", "batch", "prompt", "context", "gpus", "engine", "dtype",
)  # fmt: skip


def _list_option(option: str, help: str) -> Any:
    return text_option(option, help, "LIST")


@app.command(
    epilog=examples(
        "moescale profile --show examples/latency.csv",
        "moescale profile profile.toml -o h100.parquet",
        "moescale profile --config mixtral/config.json --gpu h100-sxm --batch 1,8,64 --prompt 512 -o h100.csv",
        "moescale profile --setup vllm envs/vllm",
    )
)
def profile(
    grid: Annotated[
        Path | None, file_option("GRID", "What to measure: PROFILE.toml; with --setup the folder to make.")
    ] = None,
    output: Annotated[
        Path | None, file_option("-o", "Latency table to write or extend: .parquet, .csv or .tsv.")
    ] = None,
    gpu: Annotated[
        str | None, text_option("--gpu", "Name that rows are filed under, as `cost --gpu` will ask for it.")
    ] = None,
    config: Annotated[Path | None, file_option("--config", "Model: Hugging Face config.json, or its folder.")] = None,
    n_params: Annotated[
        str | None, _list_option("--n-params", "Models instead: dense-equivalent sizes N, such as 85M,450M.")
    ] = None,
    experts: Annotated[str | None, _list_option("--experts", "With --n-params: experts E, such as 1,4,8.")] = None,
    kv_heads: Annotated[
        int | None, number_option("--kv-heads", "With --n-params: KV heads; default: one a query head.", whole=True)
    ] = None,
    batch: Annotated[str | None, _list_option("--batch", "Batches; default 1,2,4,8,16,32,64.")] = None,
    prompt: Annotated[str | None, _list_option("--prompt", "Prompt lengths in tokens; default 128,512.")] = None,
    context: Annotated[
        str | None, _list_option("--context", "Tokens held at decode; default: the prompt lengths.")
    ] = None,
    gpus: Annotated[str | None, _list_option("--gpus", "GPU counts (tensor parallel); default 1.")] = None,
    engine: Annotated[str | None, text_option("--engine", "torch (default) or vllm.")] = None,
    dtype: Annotated[str | None, text_option("--dtype", "bfloat16 (default), float16 or float32.")] = None,
    python: Annotated[
        Path | None, file_option("--python", "Interpreter of the environment that has the engine; default: this one.")
    ] = None,
    device: Annotated[str | None, text_option("--device", "cpu or cuda; default: cuda where there is one.")] = None,
    tolerance: Annotated[
        float, number_option("--tolerance", "Relative half-width of the median at which repeats stop.", LEAST, 1)
    ] = 0.02,
    max_repeats: Annotated[int, number_option("--max-repeats", "Most repeats of a point.", 1, 10_000, whole=True)] = 50,
    rounds: Annotated[
        int, number_option("--rounds", "How often to visit the grid, each time with fresh engines.", 1, 100, whole=True)
    ] = 3,
    max_time: Annotated[
        float | None, seconds_option("--max-time", "Stop after this time; the next call goes on.")
    ] = None,
    retry: Annotated[bool, Option("--retry", help="Measure rows again that say failed.")] = False,
    log: Annotated[Path | None, file_option("--log", "File for what the engine itself prints.")] = None,
    show: Annotated[
        Path | None, file_option("--show", "Instead: what a latency table covers, and how well it interpolates.")
    ] = None,
    against: Annotated[
        Path | None, file_option("--against", "With --show: how far another table of the same points agrees.")
    ] = None,
    setup: Annotated[
        str | None, text_option("--setup", "Instead: make the environment of an engine (vllm) in the folder GRID.")
    ] = None,
    plot: Plot = None,
    json_: Json = False,
) -> None:
    """Measure prefill and decode latencies on this machine, for `cost --latency` and `plan --latency`."""
    stated = {name: value for name, value in locals().items() if name in GRID_OPTIONS and value is not None}
    _check_one_job(grid, stated, output=output, show=show, setup=setup, against=against, plot=plot)
    if setup is not None:
        _set_up(setup, grid, json_)
    elif show is not None:
        _show(show, against, plot, json_)
    elif output is not None:
        from moescale.experiments.profiling import run
        from moescale.experiments.profiling.grid import grid_of_options

        wanted = grid_of_options(grid, stated)
        if device not in (None, "cpu", "cuda"):
            raise unknown_name("device", device, ("cpu", "cuda"), where="--device")
        engine_of = run.Engine(python=python or _default_python(wanted.engine), device=device, log=log)
        done = run.profile(
            wanted,
            output,
            engine=engine_of,
            repeats=run.Repeats(tolerance=tolerance, most=max_repeats, least=min(5, max_repeats), rounds=rounds),
            retry=retry,
            seconds=max_time if max_time is None or max_time < MOST_SECONDS else None,
            report=_say,
        )
        if json_:
            print_json(done.to_dict())
        else:
            _tell(done)


def _check_one_job(grid: Path | None, stated: Mapping[str, Any], **jobs: object) -> None:
    """One thing is to be done, and only what goes with it is stated."""
    if sum(jobs[name] is not None for name in ("show", "setup", "output")) != 1:
        raise InputError(
            "give one of -o TABLE (measure), --show TABLE and --setup vllm",
            next_step="`moescale profile --help` lists what there is",
        )
    for name in ("plot", "against"):
        if jobs["show"] is None and jobs[name] is not None:
            raise InputError("goes with --show only", where=f"--{name}", next_step="leave it out")
    if jobs["output"] is None and stated:
        option = "--" + next(iter(stated)).replace("_", "-")
        raise InputError("says what to measure, which needs -o TABLE", where=option, next_step="leave it out")
    if jobs["show"] is not None and grid is not None:
        raise InputError("goes without --show", where="GRID", next_step="leave it out")


def _tell(done: Profiled) -> None:
    print(
        f"{done.table}: {done.points} points; {done.measured} measured in {done.seconds:.0f} s, {done.found} there before"
    )
    for status, count in done.not_ok.items():
        print(f"{count} of them without a latency: {status}")
    if done.missing:
        print(f"{done.missing} still to measure, or to measure again in a further round: the same command goes on")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _default_python(engine: str) -> Path | None:
    """The environment that --setup made, where there is one."""
    from moescale.experiments.profiling.setup import default_folder, python_of

    python = python_of(default_folder(engine))
    return python if engine == "vllm" and python.exists() else None


def _set_up(engine: str, folder: Path | None, json_: bool) -> None:
    from moescale.experiments.profiling.setup import set_up

    python = set_up(engine, folder, report=_say)
    if json_:
        print_json({"engine": engine, "python": str(python)})
    else:
        print(f"moescale profile GRID.toml --engine {engine} --python {python} -o TABLE.parquet")


def _show(table: Path, against: Path | None, plot: Path | None, json_: bool) -> None:
    from moescale.latency.coverage import agreement, overview
    from moescale.latency.measurements import read_measurements
    from moescale.views.terminal import show_latencies, terminal

    if plot is not None:
        check_plot(plot)
    rows = read_measurements(table)
    found = overview(rows, where=str(table))
    agreed = None if against is None else agreement(rows, read_measurements(against))
    held_back = HeldBack()
    if plot is not None:
        from moescale.views.figures import latency_figure, save_figure

        with held_back:
            save_figure(latency_figure(rows), plot)
    if json_:
        print_json({**found.to_dict(), **({} if agreed is None else {"against": agreed.to_dict()})})
        held_back.tell()
        return
    show_latencies(terminal(), found, str(table))
    if agreed is not None:
        print(
            f"\nOf {agreed.points} points that {against} has as well, {agreed.agree} agree within the wider of the two spreads; "
            f"the median difference is {agreed.median_abs_difference:.1%}, the largest {agreed.max_abs_difference:.1%}.\n"
            f"Furthest beyond its spread, or nearest to it: {agreed.worst}."
        )
    held_back.tell()
