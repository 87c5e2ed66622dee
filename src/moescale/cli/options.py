"""What the commands share: the application, its options, and how an answer or a message is printed."""

from __future__ import annotations

import json
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from moescale.errors import InputError, MoescaleError, unknown_name
from moescale.units import parse_quantity

if TYPE_CHECKING:
    from moescale.architecture import FloatArray
    from moescale.fitting import Progress
    from moescale.hardware import Gpu
    from moescale.latency import LatencySource
    from moescale.laws import Law, LawForm
    from moescale.runs import RunTable
    from moescale.serving import Deployment

DEFAULT_LAW = "yun2024-recovered"
SECOND_LAW = "yun2024-joint"  # says in one line whether independent runs agree
DEFAULT_GPU = "a100-sxm-40gb"  # the paper's
DEFAULT_TRAFFIC = (230.0, 203.0)  # ShareGPT, as vLLM's serving benchmark samples it (catalogue/traffic.toml)

MOST = 1e6  # experts, heads, dollars an hour: far beyond what exists, and products stay far from overflow
MOST_PARAMETERS = 1e18
MOST_TOKENS = 1e24  # of training, or served in a lifetime
MOST_REQUEST_TOKENS = 1e9
LEAST = 1e-6  # of shares and prices, which must be above zero
LEAST_BOUND = 1e-12  # of a loss or a cost that is asked for: below every answer, so that the answer says so
MOST_REPLICATES = 100_000
MOST_SEED = 2**53 - 1  # beyond, a float skips whole numbers
MOST_COUNTS = 256  # expert counts of one plan

INTERRUPTED = 130  # what shells report for Ctrl-C

app = typer.Typer(
    name="moescale",
    help="Plan the pre-training of Mixture-of-Experts language models: scaling law, serving cost, the model to train.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def examples(*commands: str) -> str:
    """The end of a command's help: an example a paragraph, as typer keeps no single line breaks."""
    return "\n\n".join(("Examples:", *(f"`{command}`" for command in commands)))


@contextmanager
def at_option(option: str) -> Generator[None]:
    """Names the option in errors that name no place, or only a place within its text."""
    try:
        yield
    except InputError as error:
        within = (error.where or "").startswith("expression ")
        if error.where is not None and not within:
            raise
        where = f"{option}, {error.where}" if within else option
        raise InputError(error.what, where=where, nearest=error.nearest, next_step=error.next_step) from error


def checked_quantity(option: str, text: str | float, least: float, most: float, *, whole: bool = False) -> float:
    """The number that an option states, within its bounds; InputError that names the option otherwise."""
    with at_option(option):
        value = parse_quantity(text)
    if not least <= value <= most or (whole and not value.is_integer()):
        kind = "a whole number" if whole else "a number"
        raise InputError(
            f"{text!r} is not {kind} from {least:g} to {most:g}",
            where=option,
            nearest=f"{min(max(round(value) if whole else value, least), most):g}",
        )
    return value


def number_option(option: str, help: str, least: float = 1.0, most: float = MOST, *, whole: bool = False) -> Any:
    """An option that takes a quantity within bounds; with `whole` it arrives as an int."""

    def parse(text: str | float) -> float:
        value = checked_quantity(option, text, least, most, whole=whole)
        return int(value) if whole else value

    return Option(option, parser=parse, metavar="INT" if whole else "NUMBER", help=help)


def file_option(option: str, help: str) -> Any:
    """An option, or the argument RUNS, that takes the path of a file."""

    def parse(text: str | Path) -> Path:
        if not str(text):
            raise InputError("the path is empty", where=option, next_step="give the path of a file")
        return Path(text)

    return (
        Argument(parser=parse, metavar=option, help=help)
        if option.isupper()
        else Option(option, parser=parse, metavar="PATH", help=help)
    )


def text_option(option: str, help: str, metavar: str = "NAME") -> Any:
    return Option(option, metavar=metavar, help=help)


Json = Annotated[bool, Option("--json", help="Print one JSON value on standard output and nothing else.")]
LawName = Annotated[str, text_option("--law", "Coefficient set, or a law file that fit wrote.")]
Prompt = Annotated[float, number_option("--prompt", "Mean prompt tokens of a request.", 1, MOST_REQUEST_TOKENS)]
Output = Annotated[float, number_option("--output", "Mean output tokens of a request.", 1, MOST_REQUEST_TOKENS)]
GpuName = Annotated[str, text_option("--gpu", "GPU of the catalogue, such as h100-sxm.")]
MaxGpus = Annotated[
    int, number_option("--max-gpus", "Most GPUs to serve one model on (tensor parallel).", 1, 1024, whole=True)
]
LatencyName = Annotated[
    str,
    text_option(
        "--latency",
        "silicon (measured kernels), roofline, a latency table's path, or auto: silicon where it can.",
    ),
]
Price = Annotated[
    float | None, number_option("--usd-per-gpu-hour", "Price of a GPU hour; default: the catalogue's.", LEAST)
]
MemoryFraction = Annotated[
    float, number_option("--memory-fraction", "Share of GPU memory for weights and KV cache.", LEAST, 1)
]
Utilization = Annotated[
    float, number_option("--utilization", "Share of the plateau throughput that traffic uses.", LEAST, 1)
]
Weights = Annotated[str, text_option("--weights", "bf16 or fp8.")]
KvHeads = Annotated[
    int | None, number_option("--kv-heads", "Cached KV heads a layer; default: one a query head.", whole=True)
]
UniqueTokens = Annotated[
    float | None,
    number_option("--unique-tokens", "Distinct tokens there are, for laws of repeated data.", most=MOST_TOKENS),
]
Granularity = Annotated[
    float | None,
    number_option("--granularity", "d_ff over an expert's width, for laws of fine-grained MoE.", LEAST, 1e6),
]
Sparsity = Annotated[
    float | None, number_option("--sparsity", "Unused share of weights or experts, for laws that have it.", 0, 1)
]
Plot = Annotated[Path | None, file_option("--plot", "Draw the answer to this SVG, PDF or PNG file.")]
Convention = Annotated[
    str | None, text_option("--convention", "FLOPs counted as paper, exact or dense; default: the law's.")
]


def given_inputs(**options: float | None) -> dict[str, float]:
    """The further inputs of a law that the command line names."""
    return {name: value for name, value in options.items() if value is not None}


def run_inputs(form: LawForm, table: RunTable, given: Mapping[str, float]) -> dict[str, FloatArray]:
    """The form's further inputs at each run: a column of the table, or else the option's value for all of them."""
    import numpy as np

    from moescale.laws.further_inputs import from_columns, option

    found = from_columns(form, table.columns, table.experts, source=table.source)
    for name, value in given.items():
        if name in table.columns:
            raise InputError(
                f"the table has a column {name!r} of its own", where=option(name), next_step="leave the option out"
            )
        found[name] = np.full(len(table), value)
    return found


@contextmanager
def show_progress(enabled: bool) -> Generator[Progress | None]:
    """A callback that shows what is being done on standard error, where that is a terminal."""
    if not (enabled and sys.stderr.isatty()):
        yield None
        return
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    from moescale.console import terminal

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Bar(*columns, console=terminal(error=True), transient=True) as bar:
        task = bar.add_task("starting", total=1.0)

        def report(step: str, share: float) -> None:
            bar.update(task, description=step, completed=share)

        yield report


def print_json(value: object) -> None:
    sys.stdout.write(json.dumps(value, indent=2, allow_nan=False) + "\n")


def warn(messages: Sequence[str]) -> None:
    for message in messages:
        sys.stderr.write(f"warning: {message}\n")


def make_deployment(
    gpu: Gpu, price: float | None, *, weights: str, prompt: float, output: float, max_gpus: int,
    max_num_seqs: float | None, memory_fraction: float, utilization: float,
) -> Deployment:  # fmt: skip
    from moescale import hardware
    from moescale.serving import Deployment

    sizes = {"bf16": 2.0, "fp8": 1.0}
    if weights not in sizes:
        raise unknown_name("weight type", weights, sizes, where="--weights")
    return Deployment(
        gpu=gpu,
        usd_per_gpu_hour=hardware.price(gpu.name).usd_per_gpu_hour if price is None else price,
        prompt_tokens=prompt,
        output_tokens=output,
        max_gpus=max_gpus,
        max_num_seqs=max_num_seqs,
        memory_fraction=memory_fraction,
        utilization=utilization,
        weight_bytes_per_param=sizes[weights],
    )


def latency_source(name: str, deployment: Deployment, config: Path | None) -> LatencySource:
    """The latency source that --latency names; `auto` is silicon where it knows the model, else the roofline."""
    from moescale.latency.roofline import Roofline

    roofline = Roofline(deployment.gpu, deployment.weight_bytes_per_param, deployment.kv_bytes_per_element)
    if name == "roofline" or (name == "auto" and config is None):
        return roofline
    if name in ("silicon", "auto"):
        from moescale.latency.silicon import Silicon

        if config is None:
            raise InputError(
                "measured kernels are read for the shapes that they tabulate, which takes a config.json",
                where="--latency silicon",
                next_step="use --latency roofline, or `moescale cost --config CONFIG.json --latency silicon`",
            )
        try:
            return Silicon(config, deployment.gpu, weight_bytes_per_param=deployment.weight_bytes_per_param)
        except MoescaleError as error:
            if name == "silicon":
                raise
            warn([f"roofline latency, because measured kernels do not cover this: {error.what}"])
            return roofline
    if name and (Path(name).suffix.lower() in (".csv", ".tsv", ".parquet") or Path(name).exists()):
        from moescale.latency.table import read_latency_table

        return read_latency_table(name, gpu=deployment.gpu.name)
    raise InputError(
        f"unknown latency source {name!r}",
        where="--latency",
        next_step="silicon, roofline, or the path of a CSV or Parquet latency table",
    )


def check_plot(path: Path | None) -> None:
    """Refuse a figure that could not be written before the work that it would show."""
    if path is not None:
        from moescale.figures import check_plot

        with at_option("--plot"):
            check_plot(path)


def named_law(name: str) -> Law:
    from moescale.laws import find_law

    with at_option("--law"):
        return find_law(name)


def named_gpu(name: str) -> Gpu:
    from moescale.hardware import find_gpu

    with at_option("--gpu"):
        return find_gpu(name)


def parse_max_num_seqs(text: str) -> float | None:
    return None if text.strip().lower() == "none" else checked_quantity("--max-num-seqs", text, 1, MOST, whole=True)
