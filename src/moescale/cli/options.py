"""What the commands share: the application, its options, and how an answer or a message is printed."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option
from typer.core import TyperCommand, TyperOption

from moescale.errors import InputError, unknown_name
from moescale.units import parse_count, parse_quantity

if TYPE_CHECKING:
    from moescale.fitting.fit import Progress
    from moescale.hardware.gpus import Gpu
    from moescale.hardware.precisions import Precision
    from moescale.latency import LatencySource
    from moescale.models.architecture import Architecture
    from moescale.runs.table import RunTable
    from moescale.scaling_laws import Law, LawForm
    from moescale.serving.deployment import Deployment
    from moescale.serving.traffic import Traffic
    from moescale.typing import FloatArray

DEFAULT_LAW = "yun2024-recovered"
DEFAULT_GPU = "a100-sxm-40gb"  # the paper's
DEFAULT_TRAFFIC = (230.0, 203.0)  # ShareGPT, as vLLM's serving benchmark samples it (catalogue/traffic.toml)

MOST = 1e6  # experts, heads, dollars an hour: far beyond what exists, and products stay far from overflow
MOST_PARAMETERS = 1e18
MOST_TOKENS = 1e24  # of training, or served in a lifetime
MOST_REQUEST_TOKENS = 1e9
MOST_BYTES = 1e15  # reserved on a GPU
MOST_SECONDS = 1e6
MOST_USD = 1e9  # for one GPU
MOST_TOTAL_USD = 1e15  # of training and serving: more than the world produces in a year
MOST_LOSS = 1e3  # nats a token: a model that guesses among a million tokens has 14
MOST_USD_PER_MTOK = 1e6  # a dollar a token
LEAST = 1e-6  # of shares and prices, which must be above zero
PLAUSIBLE = 1e4  # parameters, tokens or bytes: who states fewer means thousands, millions or billions of them
LONGEST_WAIT_S = 10.0  # for a token: who states more without a unit means milliseconds
LEAST_BOUND = 1e-12  # of a loss or a cost that is asked for: below every answer, so that the answer says so
MOST_REPLICATES = 100_000
MOST_SEED = 2**53 - 1  # beyond, a float skips whole numbers
MOST_COUNTS = 256  # expert counts of one plan

INTERRUPTED = 130  # what shells report for Ctrl-C

# The headings of long helps, and the options below each; those of a first question stand above all of them.
PANELS: dict[str, tuple[str, ...]] = {
    "Bounds": ("--max-loss", "--max-usd-per-mtok", "--max-tokens"),
    "Training days and dollars; the whole life of a model": (
        "--lifetime-tokens",
        "--max-total-usd",
        "--train-gpu",
        "--mfu",
        "--train-usd-per-gpu-hour",
    ),
    "Details of the law": ("--unique-tokens", "--granularity", "--sparsity", "--convention", "--bootstrap"),
    "Server": (
        "--latency",
        "--scheduling",
        "--host",
        "--replicas",
        "--expert-parallel",
        "--max-num-seqs",
        "--max-ttft",
        "--max-tpot",
        "--memory-fraction",
        "--reserve",
        "--utilization",
        "--weights",
        "--kv-cache",
        "--kv-heads",
    ),
    "Price": (
        "--usd-per-gpu-hour",
        "--capital-usd-per-gpu",
        "--years",
        "--power-w",
        "--usd-per-kwh",
        "--pue",
    ),
    "Files to train from": ("--export", "-o", "--train-gpus", "--peak-lr"),
    "Simulated burst": ("--burst", "--request-rate"),
    "All operating points": (
        "--sweep",
        "--sweep-batch",
        "--sweep-weights",
        "--sweep-kv-cache",
        "--sweep-expert-parallel",
        "--output-table",
    ),
}

app = typer.Typer(
    name="moescale",
    help="Plan the pre-training of Mixture-of-Experts language models: scaling law, serving cost, the model to train.",
    epilog="First steps: `moescale plan --budget 5.15e21`, then `moescale plan --help`.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def examples(*commands: str) -> str:
    """The end of a command's help: an example a paragraph, as typer keeps no single line breaks."""
    return "\n\n".join(("Examples:", *(f"`{command}`" for command in commands)))


class Panelled(TyperCommand):
    """A command of many options, which its help shows under the headings of `PANELS`."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        for parameter in self.params:
            if isinstance(parameter, TyperOption):
                name = parameter.opts[0]
                parameter.rich_help_panel = next((panel for panel, names in PANELS.items() if name in names), None)


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


def checked_quantity(
    option: str, text: str | float, least: float, most: float, *, whole: bool = False, unit: str = ""
) -> float:
    """The number that an option states, within its bounds; InputError that names the option otherwise.

    Units of bytes are taken where `unit` is bytes.
    """
    with at_option(option):
        value = parse_quantity(text) if unit == "bytes" else parse_count(text)
    if not least <= value <= most or (whole and not value.is_integer()):
        kind = "a whole number" if whole else "a number"
        percent = most == 1 and 5 <= value <= 100  # below it may be a factor
        raise InputError(
            f"{text!r} is not {kind} from {least:g} to {most:g}",
            where=option,
            nearest=f"{value / 100 if percent else min(max(round(value) if whole else value, least), most):g}",
            next_step=f"it is a share: {value:g}% is {value / 100:g}"
            if percent
            else f"write billions as {value:g}B, millions as {value:g}M"
            if 0 < value < least and least >= PLAUSIBLE
            else None,
        )
    return value


def number_option(
    option: str, help: str, least: float = 1.0, most: float = MOST, *, whole: bool = False, unit: str = ""
) -> Any:
    """An option that takes a quantity within bounds; with `whole` it arrives as an int.

    With `unit`, a value too small to be meant as a plain count of it is warned of: 300 tokens, where 300B were meant.
    """

    def parse(text: str | float) -> float:
        value = checked_quantity(option, text, least, most, whole=whole, unit=unit)
        if unit and 0 < value < PLAUSIBLE:
            suffix = "GiB" if unit == "bytes" else "B"
            warn([f"{option} {value:g} means {value:g} {unit}; if that is short for more, write {value:g}{suffix}"])
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
LawName = Annotated[
    str, text_option("--law", "Coefficient set (`moescale laws` lists them), or a law file that fit wrote.")
]
Prompt = Annotated[
    float | None,
    number_option(
        "--prompt", f"Mean prompt tokens of a request; default {DEFAULT_TRAFFIC[0]:g}.", 1, MOST_REQUEST_TOKENS
    ),
]
Output = Annotated[
    float | None,
    number_option(
        "--output", f"Mean output tokens of a request; default {DEFAULT_TRAFFIC[1]:g}.", 1, MOST_REQUEST_TOKENS
    ),
]
GpuName = Annotated[
    str, text_option("--gpu", "GPU of the catalogue, such as h100-sxm, or the path of your own GPU's TOML file.")
]
MaxGpus = Annotated[
    int, number_option("--max-gpus", "Most GPUs to serve one model on (tensor parallel).", 1, 1024, whole=True)
]
LatencyName = Annotated[
    str,
    text_option(
        "--latency",
        "silicon (measured kernels of vLLM), silicon:ENGINE[@VERSION], roofline, a latency table's path, or auto: "
        "silicon where it can.",
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
Weights = Annotated[str, text_option("--weights", "bf16, fp8, int4, nvfp4 or mxfp4.")]
KvCache = Annotated[str, text_option("--kv-cache", "Number format of the KV cache: bf16, fp8 or int4.")]
Reserve = Annotated[
    float | None,
    number_option(
        "--reserve",
        "Bytes of each GPU for activations and the runtime, such as 2GiB; default: the median of vLLM's logs, 1.5GiB.",
        0,
        MOST_BYTES,
        unit="bytes",
    ),
]
ExpertParallel = Annotated[
    int,
    number_option(
        "--expert-parallel", "So many GPUs of a replica split whole experts; 1: each expert is split.", whole=True
    ),
]
Replicas = Annotated[
    int, number_option("--replicas", "Copies of the model, which share the GPUs evenly.", 1, MOST, whole=True)
]
Scheduling = Annotated[
    str,
    text_option(
        "--scheduling", "separate (prompts and outputs in passes of their own) or chunked (one pass for both)."
    ),
]
HostName = Annotated[
    str | None,
    text_option(
        "--host",
        "CPU side of the server: none (default: 1.4 ms a pass at least), in-line or asynchronous (vLLM's published times, "
        "docs/servings.md).",
    ),
]
Trace = Annotated[
    Path | None,
    file_option(
        "--trace", "Requests instead of --prompt and --output: ShareGPT JSON, or CSV or JSON lines with token counts."
    ),
]


def seconds_option(option: str, help: str, longest_s: float = MOST_SECONDS) -> Any:
    """An option that takes a time: 0.2, 0.2s, 200ms, 9m or 2h; `longest_s` without a unit or more is warned of."""
    units = {"ms": 1e-3, "s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0}

    def parse(text: str | float) -> float:
        given = str(text).strip().lower()
        unit = next((unit for unit in units if given.endswith(unit)), "")
        number, factor = given.removesuffix(unit), units.get(unit, 1.0)
        try:
            value = parse_count(number) * factor
        except InputError:
            value = 0.0  # below every time that is taken
        if not LEAST <= value <= MOST_SECONDS:
            raise InputError(
                f"{text!r} is not a time from {LEAST:g} to {MOST_SECONDS:g} seconds",
                where=option,
                next_step="write it as 0.2, 0.2s, 200ms, 9m or 2h",
            )
        if not unit and value >= longest_s:
            warn([f"{option} {value:g} means {value:g} seconds; write {value:g}ms for milliseconds"])
        return value

    return Option(option, parser=parse, metavar="SECONDS", help=help)


MaxTtft = Annotated[
    float | None,
    seconds_option("--max-ttft", "Longest time to first token, such as 500ms; shrinks the batch.", LONGEST_WAIT_S),
]
MaxTpot = Annotated[
    float | None,
    seconds_option("--max-tpot", "Longest time per output token, such as 50ms; shrinks the batch.", LONGEST_WAIT_S),
]
Capital = Annotated[
    float | None,
    number_option(
        "--capital-usd-per-gpu", "Owned hardware: price of a GPU with its share of the server.", LEAST, MOST_USD
    ),
]
Years = Annotated[
    float | None, number_option("--years", "Owned hardware: years until it is written off; default 5.", 0.01, 100)
]
PowerW = Annotated[
    float | None, number_option("--power-w", "Owned hardware: watts of a GPU with its share of the server.", 0, MOST)
]
UsdPerKwh = Annotated[
    float | None, number_option("--usd-per-kwh", "Owned hardware: price of electricity; default 0.08.", 0, MOST)
]
Pue = Annotated[
    float | None, number_option("--pue", "Owned hardware: power of the site over its servers'; default 1.56.", 1, 100)
]
KvHeads = Annotated[
    int | None, number_option("--kv-heads", "Cached KV heads a layer; default: one a query head.", whole=True)
]
UniqueTokens = Annotated[
    float | None,
    number_option(
        "--unique-tokens", "Distinct tokens there are, for laws of repeated data.", most=MOST_TOKENS, unit="tokens"
    ),
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

    from moescale.scaling_laws.covariates import from_columns, option

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

    from moescale.views.terminal import terminal

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Bar(*columns, console=terminal(error=True), transient=True) as bar:
        task = bar.add_task("starting", total=1.0)

        def report(step: str, share: float) -> None:
            bar.update(task, description=step, completed=share)

        yield report


class HeldBack:
    """The errors of files that could not be written, told once the answer is printed.

    A command writes its files inside this context, before it prints, and calls `tell` at its end: the answer of minutes of
    work is not lost to a full disk, nor a file to a reader that closes our output early. Errors of other kinds pass.
    """

    def __init__(self, kind: type[InputError] = InputError) -> None:
        self.kind = kind
        self.errors: list[InputError] = []

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if isinstance(error, self.kind):
            self.errors.append(error)
        return isinstance(error, self.kind)

    def tell(self) -> None:
        """Raise the first error, after a warning for each of the others."""
        if self.errors:
            sys.stdout.flush()
            warn([str(error) for error in self.errors[1:]])
            raise self.errors[0]


@dataclass(frozen=True, slots=True)
class CommandLine:
    """The arguments as they were typed."""

    arguments: tuple[str, ...]


def made_with(context: typer.Context, files: Sequence[Path] = ()) -> dict[str, object]:
    """How an answer came to be: version, command line, and the SHA-256 of the files that it read."""
    from hashlib import sha256

    from moescale import __version__
    from moescale.io.files import read_bytes

    asked = context.obj
    record: dict[str, object] = {"moescale": __version__}
    if isinstance(asked, CommandLine):
        record["command"] = shlex.join(("moescale", *asked.arguments))
    if files:
        record["sha256"] = {path.name: sha256(read_bytes(path)).hexdigest() for path in files}
    return record


def print_json(value: object) -> None:
    sys.stdout.write(json.dumps(value, indent=2, allow_nan=False) + "\n")


def warn(messages: Sequence[str]) -> None:
    for message in messages:
        sys.stderr.write(f"warning: {message}\n")


def make_deployment(
    gpu: Gpu, price: float | None, *, weights: str | Precision, prompt: float, output: float, max_gpus: int,
    max_num_seqs: float | None, memory_fraction: float, utilization: float, kv_cache: str = "bf16",
    reserve_bytes: float = 0.0, expert_parallel: int = 1, replicas: int = 1, scheduling: str = "separate",
    max_ttft_s: float | None = None, max_tpot_s: float | None = None, traffic: Traffic | None = None,
    host: str | None = None,
) -> Deployment:  # fmt: skip
    """The deployment that the options state; `max_gpus` is of one replica, and `traffic` stands before both lengths."""
    from moescale.hardware.precisions import find_precision
    from moescale.hardware.prices import usd_per_gpu_hour
    from moescale.serving.deployment import SCHEDULING, Deployment, with_traffic
    from moescale.serving.host import find_host

    with at_option("--weights"):
        weight_format = find_precision("weights", weights) if isinstance(weights, str) else weights
    with at_option("--kv-cache"):
        cache_format = find_precision("kv_cache", kv_cache)
    if scheduling not in SCHEDULING:
        raise unknown_name("scheduling", scheduling, SCHEDULING, where="--scheduling")
    with at_option("--host"):
        around = find_host(host or "none")
    deployment = Deployment(
        gpu=gpu,
        usd_per_gpu_hour=usd_per_gpu_hour(gpu) if price is None else price,
        prompt_tokens=prompt,
        output_tokens=output,
        max_gpus=max_gpus,
        max_num_seqs=max_num_seqs,
        memory_fraction=memory_fraction,
        utilization=utilization,
        weight_bytes_per_param=weight_format.bytes_per_element,
        kv_bytes_per_element=cache_format.bytes_per_element,
        reserve_bytes=reserve_bytes,
        expert_parallel=float(expert_parallel),
        replicas=float(replicas),
        scheduling=scheduling,
        host=around,
        max_ttft_s=max_ttft_s,
        max_tpot_s=max_tpot_s,
    )
    return deployment if traffic is None else with_traffic(deployment, traffic)


def traffic_of(prompt: float | None, output: float | None, trace: Path | None) -> Traffic:
    """The lengths that --prompt, --output and --trace state; without any of them, ShareGPT's means."""
    from moescale.serving.traffic import Traffic, read_trace

    if trace is None:
        return Traffic(prompt or DEFAULT_TRAFFIC[0], output or DEFAULT_TRAFFIC[1])
    for option, value in (("--prompt", prompt), ("--output", output)):
        if value is not None:
            raise InputError("goes without --trace, which states the lengths", where=option, next_step="leave it out")
    traffic = read_trace(trace)
    if traffic.approximate:
        warn([f"{trace}: text counted at 4 characters a token; a tokenizer's counts may differ by a third"])
    return traffic


def stated_price(
    usd_per_gpu_hour: float | None,
    capital: float | None,
    years: float | None,
    power_w: float | None,
    usd_per_kwh: float | None,
    pue: float | None,
) -> float | None:
    """Dollars of a GPU hour, as stated or of owned hardware; None for the catalogue's price."""
    from moescale.hardware.prices import owned_defaults, owned_usd_per_gpu_hour

    options = {"--years": years, "--power-w": power_w, "--usd-per-kwh": usd_per_kwh, "--pue": pue}
    if capital is None:
        for option, value in options.items():
            if value is not None:
                raise InputError("goes with --capital-usd-per-gpu", where=option, next_step="add it, or leave this out")
        return usd_per_gpu_hour
    if usd_per_gpu_hour is not None:
        raise InputError(
            "states a price, and so does --capital-usd-per-gpu", where="--usd-per-gpu-hour", next_step="give one"
        )
    if power_w is None:
        raise InputError(
            "is missing beside --capital-usd-per-gpu",
            where="--power-w",
            next_step="watts of one GPU with its share of the server, such as 1275 (an eighth of a DGX H100's 10.2 kW)",
        )
    usual = owned_defaults()
    price = owned_usd_per_gpu_hour(
        capital,
        years=usual.years if years is None else years,
        power_w=power_w,
        usd_per_kwh=usual.usd_per_kwh if usd_per_kwh is None else usd_per_kwh,
        pue=usual.pue if pue is None else pue,
    )
    return float(price)


def latency_source(name: str, deployment: Deployment, model: Architecture | None = None) -> LatencySource:
    """The latency source that --latency names; `auto` is silicon where it has an answer, else the roofline.

    `model` is what will be asked for, where that is known: `auto` takes the roofline for one that silicon has no kernels
    for, and says so. Where the deployment states a host, the source leaves its own one out.
    """
    from moescale.latency import kernels_alone
    from moescale.latency.open import open_latency
    from moescale.serving.host import NO_OVERHEAD

    with at_option("--latency"):
        source = open_latency(
            name,
            deployment.gpu,
            weight_bytes_per_param=float(deployment.weight_bytes_per_param),
            kv_bytes_per_element=float(deployment.kv_bytes_per_element),
            model=model,
            remark=lambda reason: warn([reason]),
        )
    return source if deployment.host == NO_OVERHEAD else kernels_alone(source)


def check_plot(path: Path | None) -> None:
    """Refuse a figure that could not be written before the work that it would show."""
    if path is not None:
        from moescale.views.figures import check_plot

        with at_option("--plot"):
            check_plot(path)


def named_law(name: str) -> Law:
    from moescale.scaling_laws import find_law

    with at_option("--law"):
        return find_law(name)


def named_gpu(name: str) -> Gpu:
    from moescale.hardware.gpus import load_gpu

    with at_option("--gpu"):
        return load_gpu(name)


def parse_max_num_seqs(text: str) -> float | None:
    return None if text.strip().lower() == "none" else checked_quantity("--max-num-seqs", text, 1, MOST, whole=True)
