"""The command on measured latencies: profile."""

from __future__ import annotations

import math
import sys
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
    at_option,
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
    from moescale.experiments.profiling.grid import Grid, Model

GRID_OPTIONS = (
    "gpu",
    "config",
    "n_params",
    "experts",
    "kv_heads",
    "batch",
    "prompt",
    "context",
    "gpus",
    "engine",
    "dtype",
)


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
    if sum(value is not None for value in (show, setup, output)) != 1:
        raise InputError(
            "give one of -o TABLE (measure), --show TABLE and --setup vllm",
            next_step="`moescale profile --help` lists what there is",
        )
    if show is None and plot is not None:
        raise InputError("goes with --show only", where="--plot", next_step="leave it out")
    if show is None and against is not None:
        raise InputError("goes with --show only", where="--against", next_step="leave it out")
    if output is None and stated:
        option = "--" + next(iter(stated)).replace("_", "-")
        raise InputError("says what to measure, which needs -o TABLE", where=option, next_step="leave it out")
    if setup is not None:
        _set_up(setup, grid, json_)
    elif show is not None:
        if grid is not None:
            raise InputError("goes without --show", where="GRID", next_step="leave it out")
        _show(show, against, plot, json_)
    elif output is not None:
        wanted = _grid(grid, stated)
        from moescale.experiments.profiling.run import Repeats
        from moescale.experiments.profiling.run import profile as run_profile

        if device not in (None, "cpu", "cuda"):
            raise unknown_name("device", device, ("cpu", "cuda"), where="--device")
        done = run_profile(
            wanted,
            output,
            python=python or _default_python(wanted.engine),
            device=device,
            repeats=Repeats(tolerance=tolerance, most=max_repeats, least=min(5, max_repeats), rounds=rounds),
            retry=retry,
            seconds=max_time if max_time is None or max_time < MOST_SECONDS else None,
            report=lambda line: print(line, file=sys.stderr, flush=True),
            log=log,
        )
        if json_:
            print_json(done.to_dict())
            return
        print(
            f"{done.table}: {done.points} points; {done.measured} measured in {done.seconds:.0f} s, {done.found} there before"
        )
        for status, count in done.not_ok.items():
            print(f"{count} of them without a latency: {status}")
        if done.missing:
            print(f"{done.missing} still to measure, or to measure again in a further round: the same command goes on")


def _grid(path: Path | None, stated: dict[str, Any]) -> Grid:
    """The grid of the file, or of the options."""
    from dataclasses import replace

    from moescale.experiments.profiling.grid import (
        MOST_BATCH,
        MOST_GPUS,
        MOST_TOKENS,
        make_grid,
        read_grid,
        whole_numbers,
    )

    if path is not None:
        for name in stated:
            if name not in ("gpu", "engine"):
                option = "--" + name.replace("_", "-")
                raise InputError("goes without a grid file, which states it", where=option, next_step="leave it out")
        grid = read_grid(path)
        if "engine" in stated:  # through make_grid, which checks it
            grid = make_grid(
                gpu=grid.gpu, models=grid.models, batches=grid.batches, prompt_tokens=grid.prompt_tokens,
                context_tokens=grid.context_tokens, gpus=grid.gpus, engine=stated["engine"], dtype=grid.dtype,
                where="--engine",
            )  # fmt: skip
        return replace(grid, gpu=stated["gpu"]) if "gpu" in stated else grid
    if "gpu" not in stated:
        raise InputError(
            "is missing", where="--gpu", next_step="name the GPU as `cost --gpu` will, or give a grid file"
        )

    def numbers(name: str, default: str, most: int) -> tuple[int, ...]:
        return whole_numbers(str(stated.get(name, default)).split(","), f"--{name}", most)

    counts = numbers("gpus", "1", MOST_GPUS)
    return make_grid(
        gpu=stated["gpu"],
        models=_models(stated, numbers("experts", "1", 65_536), math.lcm(*counts)),
        batches=numbers("batch", "1,2,4,8,16,32,64", MOST_BATCH),
        prompt_tokens=numbers("prompt", "128,512", MOST_TOKENS),
        context_tokens=numbers("context", "", MOST_TOKENS) if "context" in stated else (),
        gpus=counts,
        engine=stated.get("engine", "torch"),
        dtype=stated.get("dtype", "bfloat16"),
    )


def _models(stated: dict[str, Any], experts: tuple[int, ...], gpus: int) -> list[Model]:
    from moescale.experiments.profiling.grid import model_of_size, read_model
    from moescale.units import parse_count

    if ("config" in stated) == ("n_params" in stated):
        raise InputError("give a model: --config or --n-params (and not both)", next_step="or give a grid file")
    if "config" in stated:
        for name in ("experts", "kv_heads"):
            if name in stated:
                raise InputError("goes with --n-params only", where=f"--{name.replace('_', '-')}")
        return [read_model(stated["config"])]
    with at_option("--n-params"):
        sizes = [parse_count(text) for text in str(stated["n_params"]).split(",")]
        for size in sizes:
            if not 1e5 <= size <= 1e15:
                raise InputError(f"{size:g} is not a size from 1e5 to 1e15")
        return [
            model_of_size(size, count, gpus=gpus, kv_heads=stated.get("kv_heads"))
            for size in sizes
            for count in experts
        ]


def _default_python(engine: str) -> Path | None:
    """The environment that --setup made, where there is one."""
    from moescale.experiments.profiling.setup import default_folder, python_of

    python = python_of(default_folder(engine))
    return python if engine == "vllm" and python.exists() else None


def _set_up(engine: str, folder: Path | None, json_: bool) -> None:
    from moescale.experiments.profiling.setup import set_up

    python = set_up(engine, folder, report=lambda line: print(line, file=sys.stderr, flush=True))
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
