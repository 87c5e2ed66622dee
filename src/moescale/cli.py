"""The command line: each command calls one public function and prints its answer. Names are fixed; scripts use them."""

from __future__ import annotations

import json
import math
import os
import platform
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from moescale.errors import InfeasibleError, InputError, MoescaleError, unknown_name
from moescale.units import parse_quantity

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from moescale.architecture import Architecture, FloatArray
    from moescale.family import ModelFamily
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
COMMANDS = ("fit", "laws", "predict", "compare", "cost", "plan")

app = typer.Typer(
    name="moescale",
    help="Plan the pre-training of Mixture-of-Experts language models: scaling law, serving cost, the model to train.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _examples(*commands: str) -> str:
    """The end of a command's help: an example a paragraph, as typer keeps no single line breaks."""
    return "\n\n".join(("Examples:", *(f"`{command}`" for command in commands)))


@contextmanager
def _at(option: str) -> Generator[None]:
    """Names the option in errors that name no place, or only a place within its text."""
    try:
        yield
    except InputError as error:
        within = (error.where or "").startswith("expression ")
        if error.where is not None and not within:
            raise
        where = f"{option}, {error.where}" if within else option
        raise InputError(error.what, where=where, nearest=error.nearest, next_step=error.next_step) from error


def _quantity(option: str, text: str | float, least: float, most: float, *, whole: bool = False) -> float:
    """The number that an option states, within its bounds; InputError that names the option otherwise."""
    with _at(option):
        value = parse_quantity(text)
    if not least <= value <= most or (whole and not value.is_integer()):
        kind = "a whole number" if whole else "a number"
        raise InputError(
            f"{text!r} is not {kind} from {least:g} to {most:g}",
            where=option,
            nearest=f"{min(max(round(value) if whole else value, least), most):g}",
        )
    return value


def _number(option: str, help: str, least: float = 1.0, most: float = MOST, *, whole: bool = False) -> Any:
    """An option that takes a quantity within bounds; with `whole` it arrives as an int."""

    def parse(text: str | float) -> float:
        value = _quantity(option, text, least, most, whole=whole)
        return int(value) if whole else value

    return Option(option, parser=parse, metavar="INT" if whole else "NUMBER", help=help)


def _file(option: str, help: str) -> Any:
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


def _text(option: str, help: str, metavar: str = "NAME") -> Any:
    return Option(option, metavar=metavar, help=help)


Json = Annotated[bool, Option("--json", help="Print one JSON value on standard output and nothing else.")]
LawName = Annotated[str, _text("--law", "Coefficient set, or a law file that fit wrote.")]
Prompt = Annotated[float, _number("--prompt", "Mean prompt tokens of a request.", 1, MOST_REQUEST_TOKENS)]
Output = Annotated[float, _number("--output", "Mean output tokens of a request.", 1, MOST_REQUEST_TOKENS)]
GpuName = Annotated[str, _text("--gpu", "GPU of the catalogue, such as h100-sxm.")]
MaxGpus = Annotated[
    int, _number("--max-gpus", "Most GPUs to serve one model on (tensor parallel).", 1, 1024, whole=True)
]
LatencyName = Annotated[
    str,
    _text(
        "--latency",
        "silicon (measured kernels), roofline, a latency table's path, or auto: silicon where it can.",
    ),
]
Price = Annotated[float | None, _number("--usd-per-gpu-hour", "Price of a GPU hour; default: the catalogue's.", LEAST)]
MemoryFraction = Annotated[
    float, _number("--memory-fraction", "Share of GPU memory for weights and KV cache.", LEAST, 1)
]
Utilization = Annotated[float, _number("--utilization", "Share of the plateau throughput that traffic uses.", LEAST, 1)]
Weights = Annotated[str, _text("--weights", "bf16 or fp8.")]
KvHeads = Annotated[
    int | None, _number("--kv-heads", "Cached KV heads a layer; default: one a query head.", whole=True)
]
UniqueTokens = Annotated[
    float | None, _number("--unique-tokens", "Distinct tokens there are, for laws of repeated data.", most=MOST_TOKENS)
]
Granularity = Annotated[
    float | None, _number("--granularity", "d_ff over an expert's width, for laws of fine-grained MoE.", LEAST, 1e6)
]
Sparsity = Annotated[
    float | None, _number("--sparsity", "Unused share of weights or experts, for laws that have it.", 0, 1)
]
Plot = Annotated[Path | None, _file("--plot", "Draw the answer to this SVG, PDF or PNG file.")]
Convention = Annotated[str | None, _text("--convention", "FLOPs counted as paper, exact or dense; default: the law's.")]


def _given(**options: float | None) -> dict[str, float]:
    """The further inputs of a law that the command line names."""
    return {name: value for name, value in options.items() if value is not None}


def _run_inputs(form: LawForm, table: RunTable, given: Mapping[str, float]) -> dict[str, FloatArray]:
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
def _progress(enabled: bool) -> Generator[Progress | None]:
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


def _print_json(value: object) -> None:
    sys.stdout.write(json.dumps(value, indent=2, allow_nan=False) + "\n")


def _warn(messages: Sequence[str]) -> None:
    for message in messages:
        sys.stderr.write(f"warning: {message}\n")


def _deployment(
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


def _latency(name: str, deployment: Deployment, config: Path | None) -> LatencySource:
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
            _warn([f"roofline latency, because measured kernels do not cover this: {error.what}"])
            return roofline
    if name and (Path(name).suffix.lower() in (".csv", ".tsv", ".parquet") or Path(name).exists()):
        from moescale.latency.table import read_latency_table

        return read_latency_table(name, gpu=deployment.gpu.name)
    raise InputError(
        f"unknown latency source {name!r}",
        where="--latency",
        next_step="silicon, roofline, or the path of a CSV or Parquet latency table",
    )


def _matched_family(runs: RunTable, size_column: str) -> tuple[ModelFamily, list[str]]:
    """The family that the table's columns speak for, with remarks."""
    from moescale.family import match_family

    columns = {name: runs.columns.get(name) for name in ("top_k", "n_params_total")}
    numeric = {k: v if v is not None and v.dtype.kind == "f" else None for k, v in columns.items()}
    family, remarks = match_family(
        runs.n_params, runs.experts, top_k=numeric["top_k"], n_params_total=numeric["n_params_total"]
    )
    if size_column == "n_params_total":
        family = replace(family, n_counts="total")
    return family, remarks


@app.command(
    epilog=_examples(
        "moescale fit examples/runs.csv -o law.toml",
        'moescale fit runs.csv --size-column n_params_active --where "tokens >= 5e9" --bootstrap 200',
    )
)
def fit(
    runs: Annotated[Path, _file("RUNS", "Table of runs: CSV, TSV, Parquet or JSON lines.")],
    law: Annotated[str, _text("--law", "Form of the law, such as yun2024 or chinchilla.")] = "yun2024",
    where: Annotated[
        str | None, _text("--where", "Rows to keep, such as 'tokens / n_params_active >= 2'.", "EXPR")
    ] = None,
    starts: Annotated[str, _text("--starts", "auto, paper (all 810,000; a minute or more), or how many.")] = "auto",
    free: Annotated[
        bool, Option("--free", help="Without the physical box: then the problem is ill-posed; to see that it is.")
    ] = False,
    bootstrap: Annotated[
        int, _number("--bootstrap", "Replicates for 90% intervals; 0: none.", 0, MOST_REPLICATES, whole=True)
    ] = 0,
    cluster: Annotated[
        str | None,
        _text("--cluster", "Column of what runs share, such as a trunk: the bootstrap draws it whole.", "COL"),
    ] = None,
    seed: Annotated[int, _number("--seed", "Seed of the bootstrap.", 0, MOST_SEED, whole=True)] = 0,
    prior: Annotated[
        str | None, _text("--prior", "Law to calibrate to these runs: what few runs cannot tell comes from it.", "LAW")
    ] = None,
    fix: Annotated[
        str | None, _text("--fix", "With --prior: parameters that stay at its values, by commas.", "NAMES")
    ] = None,
    size_column: Annotated[str | None, _text("--size-column", "Column that is N; default n_params_dense.")] = None,
    loss_column: Annotated[str, _text("--loss-column", "Column that is the loss.")] = "loss",
    family: Annotated[
        str | None,
        _text("--family", "Family of the runs (yun2024, ludziejewski2025, dense); default: by columns."),
    ] = None,
    unique_tokens: UniqueTokens = None,
    granularity: Granularity = None,
    sparsity: Sparsity = None,
    output: Annotated[Path | None, _file("-o", "Write the law to this TOML file.")] = None,
    plot: Plot = None,
    json_: Json = False,
) -> None:
    """Fit a law to a table of runs."""
    import numpy as np

    from moescale.family import find_family
    from moescale.files import check_target
    from moescale.fitting import fit as fit_law
    from moescale.fitting import fitted_law
    from moescale.laws import find_form, make_inputs, save_law
    from moescale.laws.further_inputs import further_inputs
    from moescale.runs import read_runs

    # All that can be refused is refused before the fit, which may take minutes.
    how = _starts(starts)
    if bootstrap == 1:
        raise InputError("one replicate makes no interval", where="--bootstrap", nearest="0, or 2 and more")
    known = None if prior is None else _prior(prior)
    with _at("--law"):
        form = find_form(law) if known is None else known.form
    if known is None and fix is not None:
        raise InputError("there is no law to take them from", where="--fix", next_step="name one with --prior")
    if known is not None and (free or bootstrap or how != "auto"):
        raise InputError(
            "a calibration starts from the law, inside its box, and has no bootstrap",
            where="--prior",
            next_step="leave out --free, --bootstrap and --starts",
        )
    with _at("--family"):
        named = None if family is None else find_family(family)
    if output is not None:
        with _at("-o"):
            check_target(output)
    _check_plot(plot)
    with _at("--where"):
        table = read_runs(runs, size_column=size_column, loss_column=loss_column, where=where)
    if named is None and known is not None:
        named = known.family
    about, remarks = (named, []) if named else _matched_family(table, table.size_column)
    extra = further_inputs(
        form, _run_inputs(form, table, _given(unique_tokens=unique_tokens, granularity=granularity, sparsity=sparsity))
    )
    clusters = _cluster_column(table, cluster)
    x = make_inputs(table.n_params, table.tokens, table.experts, extra)
    with _progress(not json_) as progress, _at(str(runs)):
        if known is not None:
            from moescale.calibration import calibrate

            names = None if fix is None else [name.strip() for name in fix.split(",") if name.strip()]
            found = calibrate(known, x, np.log(table.loss), fix=names)
        else:
            found = fit_law(
                form, table.n_params, table.tokens, table.experts, table.loss,
                extra=extra, starts=how, free=free, progress=progress,
            )  # fmt: skip
        draws, intervals = None, None
        if bootstrap:
            from moescale.uncertainty import bootstrap as resample
            from moescale.uncertainty import parameter_intervals

            draws = resample(found, x, np.log(table.loss), bootstrap, seed, clusters=clusters, progress=progress)
            intervals = parameter_intervals(found, draws)
    found = replace(found, warnings=(*table.warnings, *remarks, *found.warnings))
    if output is not None:
        from datetime import date

        from moescale import __version__

        evidence: dict[str, object] = {
            "table": runs.name,
            "table_sha256": table.sha256 or "",
            "where": where or "",
            "size_column": table.size_column,
            "loss_column": loss_column,
            "seed": seed,
            "bootstrap": bootstrap,
            "cluster": cluster or "",
            "prior": prior or "",
            "fixed": fix or "",
            "definition_of_n": f"column {table.size_column}; family {about.name}",
            "definition_of_d": "column tokens: training tokens seen",
            "starts_option": starts,
            "box": "none (--free)" if free else "the form's physical box",
            "optimiser": "scan by variable projection, damped Newton with the exact Hessian, tolerance 1e-13 of the objective",
            "versions": f"moescale {__version__}, numpy {np.__version__}, Python {platform.python_version()}",
        }
        saved = fitted_law(
            found, about, name=output.stem, source=f"fitted to {runs.name}", date=date.today().isoformat(),
            draws=draws, evidence=evidence,
        )  # fmt: skip
        if known is not None and known.max_experts is not None:  # the law speaks of more experts than these few runs
            saved = replace(saved, max_experts=max(known.max_experts, saved.max_experts or 1.0))
        save_law(saved, output)
    if plot is not None:
        from moescale.figures import fit_figure, save_figure
        from moescale.validation import RunArrays

        columns = {name: np.broadcast_to(np.asarray(values, dtype=float), len(table)) for name, values in extra.items()}
        drawn = RunArrays(table.n_params, table.tokens, table.experts, table.loss, columns)
        save_figure(fit_figure(found, drawn), plot)
    if json_:
        _print_json(found.to_dict(intervals))
    else:
        from moescale.console import show_fit, terminal

        show_fit(terminal(), found, intervals)
        if output is not None:
            sys.stderr.write(f"wrote {output}\n")
    _warn(found.warnings)


def _check_plot(path: Path | None) -> None:
    """Refuse a figure that could not be written before the work that it would show."""
    if path is not None:
        from moescale.figures import check_plot

        with _at("--plot"):
            check_plot(path)


def _prior(name: str) -> Law:
    from moescale.laws import find_law

    with _at("--prior"):
        return find_law(name)


def _cluster_column(table: RunTable, name: str | None) -> NDArray[Any] | None:
    """The column that --cluster names; InputError with the nearest names where the table has none such."""
    if name is None:
        return None
    columns = table.to_columns()
    if name not in columns:
        raise unknown_name("column", name, columns, where="--cluster")
    return columns[name]


def _starts(text: str) -> str | int:
    if text in ("auto", "paper"):
        return text
    try:
        return int(_quantity("--starts", text, 1, MOST_REPLICATES, whole=True))
    except InputError as error:
        raise InputError(
            f"{text!r} is not a way to start", where="--starts", next_step=f"auto, paper, or 1 to {MOST_REPLICATES}"
        ) from error


@app.command(epilog=_examples("moescale laws --json"))
def laws(json_: Json = False) -> None:
    """List the coefficient sets that plan and predict know."""
    from moescale.laws import catalogue_names, find_law

    known = [find_law(name) for name in catalogue_names()]
    if json_:
        _print_json(
            [
                {
                    "name": law.name,
                    "law": law.form.name,
                    "equation": law.form.equation,
                    "source": law.source,
                    "date": law.date,
                    "parameters": law.parameters,
                    "fit_range": {k: list(v) for k, v in law.fit_range.items()},
                    "family": law.family.name,
                    "top_k": law.family.top_k,
                    "convention": law.family.convention,
                    "draws": len(law.draws),
                    "notes": list(law.notes),
                }
                for law in known
            ]
        )
        return
    from moescale.console import show_laws, terminal

    show_laws(terminal(), known)


@app.command(
    epilog=_examples(
        "moescale predict --n-params 567M --tokens 374B --experts 8",
        "moescale predict --law hoffmann2022 --n-params 7B --tokens 2T --json",
    )
)
def predict(
    n_params: Annotated[
        float, _number("--n-params", "Size N as the law counts it, such as 1.5B.", most=MOST_PARAMETERS)
    ],
    tokens: Annotated[float, _number("--tokens", "Training tokens D, such as 300B.", most=MOST_TOKENS)],
    law: LawName = DEFAULT_LAW,
    experts: Annotated[int, _number("--experts", "Experts E of a layer; 1 is dense.", whole=True)] = 1,
    unique_tokens: UniqueTokens = None,
    granularity: Granularity = None,
    sparsity: Sparsity = None,
    json_: Json = False,
) -> None:
    """Predict the loss of one model."""
    import numpy as np

    from moescale.laws import predict as predict_loss

    chosen = _law(law)
    if not chosen.form.uses_experts and experts != 1:
        _warn([f"{chosen.name} has no term in the number of experts: --experts {experts:g} changes nothing"])
    extra = _given(unique_tokens=unique_tokens, granularity=granularity, sparsity=sparsity)
    with np.errstate(over="ignore"):  # told below
        predicted = predict_loss(chosen, n_params, tokens, experts, extra=extra)
    if not math.isfinite(predicted.loss):
        raise InputError(
            f"{chosen.name} gives no finite loss at this size, tokens and experts",
            where="--law",
            next_step="stay nearer to the range that it was fitted on, or take another law",
        )
    if json_:
        _print_json(predicted.to_dict())
        return
    from moescale.console import show_prediction, terminal

    show_prediction(terminal(), chosen, predicted)


@app.command(
    epilog=_examples(
        'moescale compare runs.csv --law yun2024 --law chinchilla --holdout "tokens >= 12e9"',
        'moescale compare runs.csv --law yun2024 --holdout "n_experts >= 16" --where "tokens >= 1B" --json',
    )
)
def compare(
    runs: Annotated[Path, _file("RUNS", "Table of runs: CSV, TSV, Parquet or JSON lines.")],
    holdout: Annotated[str, _text("--holdout", "Rows to predict, not fit, such as 'tokens >= 12e9'.", "EXPR")],
    law: Annotated[list[str] | None, _text("--law", "Form of a law; repeat it to compare several.")] = None,
    where: Annotated[str | None, _text("--where", "Rows to use at all.", "EXPR")] = None,
    size_column: Annotated[str | None, _text("--size-column", "Column that is N; default n_params_dense.")] = None,
    loss_column: Annotated[str, _text("--loss-column", "Column that is the loss.")] = "loss",
    unique_tokens: UniqueTokens = None,
    granularity: Granularity = None,
    sparsity: Sparsity = None,
    plot: Plot = None,
    json_: Json = False,
) -> None:
    """Fit laws to some runs and test them on the others."""
    from moescale.expressions import evaluate
    from moescale.laws import find_form
    from moescale.laws.further_inputs import check_names, known_to
    from moescale.runs import read_runs
    from moescale.validation import RunArrays, hold_out

    _check_plot(plot)
    with _at("--law"):
        forms = [find_form(name) for name in law or ["yun2024"]]
    with _at("--where"):
        table = read_runs(runs, size_column=size_column, loss_column=loss_column, where=where)
    with _at("--holdout"):
        held_out = evaluate(holdout, table.to_columns())
    given = _given(unique_tokens=unique_tokens, granularity=granularity, sparsity=sparsity)
    check_names(forms, given)
    # The same name may mean another thing to another form, so each takes its own from the table.
    arrays = [
        RunArrays(
            table.n_params, table.tokens, table.experts, table.loss, _run_inputs(form, table, known_to(form, given))
        )
        for form in forms
    ]
    with _progress(not json_) as progress, _at(str(runs)):
        records = [hold_out(form, own, held_out, progress=progress) for form, own in zip(forms, arrays, strict=True)]
    if plot is not None:
        from moescale.figures import comparison_figure, save_figure

        save_figure(comparison_figure(records), plot)
    if json_:
        _print_json([record.to_dict() for record in records])
    else:
        from moescale.console import show_comparison, terminal

        show_comparison(terminal(), records)
    _warn(table.warnings)


def _law(name: str) -> Law:
    from moescale.laws import find_law

    with _at("--law"):
        return find_law(name)


@app.command(
    epilog=_examples(
        "moescale cost --config mixtral/config.json --gpu h100-sxm --prompt 512 --output 256",
        "moescale cost --n-params 1.5B --experts 16 --gpu a100-sxm-80gb --max-num-seqs none",
    )
)
def cost(
    config: Annotated[Path | None, _file("--config", "Hugging Face config.json, or its folder.")] = None,
    n_params: Annotated[
        float | None, _number("--n-params", "Instead of --config: dense-equivalent size N.", 1e5, MOST_PARAMETERS)
    ] = None,
    experts: Annotated[
        int | None, _number("--experts", "With --n-params: experts E; default 1, dense.", whole=True)
    ] = None,
    top_k: Annotated[
        int | None, _number("--top-k", "With --n-params: experts a token meets; default 2.", whole=True)
    ] = None,
    gpu: GpuName = DEFAULT_GPU,
    max_gpus: MaxGpus = 8,
    gpus: Annotated[int | None, _number("--gpus", "Exactly so many GPUs.", 1, 1024, whole=True)] = None,
    prompt: Prompt = DEFAULT_TRAFFIC[0],
    output: Output = DEFAULT_TRAFFIC[1],
    latency: LatencyName = "auto",
    usd_per_gpu_hour: Price = None,
    max_num_seqs: Annotated[
        str | None,
        _text("--max-num-seqs", "Most concurrent requests, or none; default: vLLM's for that GPU.", "INT|none"),
    ] = None,
    memory_fraction: MemoryFraction = 0.9,
    utilization: Utilization = 1.0,
    weights: Weights = "bf16",
    kv_heads: KvHeads = None,
    json_: Json = False,
) -> None:
    """Dollars per million output tokens of a served model, and the cheapest GPU count."""
    from moescale.serving import cost as serving_cost

    card = _gpu(gpu)
    cap = float(card.default_max_num_seqs) if max_num_seqs is None else _max_num_seqs(max_num_seqs)
    model = _model(config, n_params, experts, top_k, kv_heads)
    deployment = _deployment(
        card, usd_per_gpu_hour, weights=weights, prompt=prompt, output=output, max_gpus=max_gpus, max_num_seqs=cap,
        memory_fraction=memory_fraction, utilization=utilization,
    )  # fmt: skip
    answer = serving_cost(model, _latency(latency, deployment, config), deployment, gpus)
    if json_:
        _print_json(answer.to_dict())
        return
    from moescale.console import show_cost, terminal

    show_cost(terminal(), answer, deployment)


def _gpu(name: str) -> Gpu:
    from moescale.hardware import find_gpu

    with _at("--gpu"):
        return find_gpu(name)


def _max_num_seqs(text: str) -> float | None:
    return None if text.strip().lower() == "none" else _quantity("--max-num-seqs", text, 1, MOST, whole=True)


def _model(
    config: Path | None, n_params: float | None, experts: int | None, top_k: int | None, kv_heads: int | None
) -> Architecture:
    from moescale.architecture import from_config
    from moescale.family import architecture, find_family

    if (config is None) == (n_params is None):
        raise InputError(
            "give the model either as --config CONFIG.json or as --n-params N with --experts E",
            next_step="for example --n-params 1.5B --experts 16",
        )
    if config is not None:
        for option, value in (("--experts", experts), ("--top-k", top_k), ("--kv-heads", kv_heads)):
            if value is not None:
                raise InputError(
                    "goes with --n-params; a config states its own", where=option, next_step="leave it out"
                )
        return from_config(config)
    assert n_params is not None
    count = experts or 1
    if top_k is not None and top_k > max(count, 2):
        _warn([f"--top-k {top_k}: a token meets all {count} experts, there are no more"])
    family = replace(find_family("yun2024"), top_k=top_k or 2)
    return architecture(family, n_params, float(count), kv_heads=kv_heads)


@app.command(
    epilog=_examples(
        "moescale plan --budget 5.15e21",
        "moescale plan --budget 1e22 --gpu h100-sxm --match-experts 1 --max-tokens 2T",
    )
)
def plan(
    budget: Annotated[float, _number("--budget", "Training FLOPs, such as 5.15e21.", 0, math.inf)],
    law: LawName = DEFAULT_LAW,
    experts: Annotated[str, _text("--experts", "Expert counts to consider, by commas.", "LIST")] = "1,4,8,16,32,64",
    gpu: GpuName = DEFAULT_GPU,
    max_gpus: MaxGpus = 8,
    prompt: Prompt = DEFAULT_TRAFFIC[0],
    output: Output = DEFAULT_TRAFFIC[1],
    match_experts: Annotated[
        int, _number("--match-experts", "The base: the loss-optimal model with so many experts.", whole=True)
    ] = 4,
    max_loss: Annotated[
        float | None,
        _number("--max-loss", "Cheapest model with at most this loss, instead of the base's.", LEAST_BOUND),
    ] = None,
    max_usd_per_mtok: Annotated[
        float | None,
        _number("--max-usd-per-mtok", "Best model within this cost per million output tokens.", LEAST_BOUND),
    ] = None,
    max_tokens: Annotated[
        float | None, _number("--max-tokens", "Training tokens that exist; no plan uses more.", most=MOST_TOKENS)
    ] = None,
    lifetime_tokens: Annotated[
        float | None,
        _number("--lifetime-tokens", "Output tokens to serve in all: adds the serving bill.", most=MOST_TOKENS),
    ] = None,
    bootstrap: Annotated[
        int | None,
        _number(
            "--bootstrap",
            "The law's draws for intervals; default: all it has; 0: none.",
            0,
            MOST_REPLICATES,
            whole=True,
        ),
    ] = None,
    unique_tokens: UniqueTokens = None,
    granularity: Granularity = None,
    sparsity: Sparsity = None,
    convention: Convention = None,
    top_k: Annotated[
        int | None, _number("--top-k", "Experts a token meets; must be the law's own (default).", whole=True)
    ] = None,
    latency: LatencyName = "auto",
    usd_per_gpu_hour: Price = None,
    max_num_seqs: Annotated[
        str, _text("--max-num-seqs", "Most concurrent requests; none: memory alone limits.", "INT|none")
    ] = "none",
    memory_fraction: MemoryFraction = 0.9,
    utilization: Utilization = 1.0,
    weights: Weights = "bf16",
    kv_heads: KvHeads = None,
    plot: Plot = None,
    json_: Json = False,
) -> None:
    """Which model to train with a budget: experts, size, tokens, and what serving it costs."""
    import numpy as np

    from moescale.allocation import Budget
    from moescale.family import with_convention
    from moescale.laws import find_law
    from moescale.planning import Question, make_plan

    _check_plot(plot)
    chosen = _law(law)
    if top_k is not None and top_k != chosen.family.top_k:
        raise InputError(
            f"{chosen.name} was fitted on top-{chosen.family.top_k} models and says nothing about top-{top_k}",
            where="--top-k",
            next_step=f"leave --top-k out, or fit a law to top-{top_k} runs",
        )
    if convention is not None:
        with _at("--convention"):
            with_convention(chosen.family, convention)
    deployment = _deployment(
        _gpu(gpu), usd_per_gpu_hour, weights=weights, prompt=prompt, output=output, max_gpus=max_gpus,
        max_num_seqs=_max_num_seqs(max_num_seqs), memory_fraction=memory_fraction, utilization=utilization,
    )  # fmt: skip
    counts = _expert_counts(experts)
    ceiling = chosen.max_experts
    if ceiling is not None and min(*counts, match_experts) > ceiling:
        raise InputError(
            f"{chosen.name} was fitted up to {ceiling:g} experts and may recommend no more",
            where="--experts",
            nearest=f"{ceiling:g}",
            next_step="add a count that the law may recommend",
        )
    question = Question(
        budget=Budget(
            budget, max_tokens, _given(unique_tokens=unique_tokens, granularity=granularity, sparsity=sparsity)
        ),
        experts=counts,
        match_experts=float(match_experts),
        max_loss=max_loss,
        max_usd_per_mtok=max_usd_per_mtok,
        lifetime_tokens=lifetime_tokens,
        kv_heads=kv_heads,
        draws=bootstrap,
        convention=convention,
    )
    source = _latency(latency, deployment, None)
    # A law from a file may be so steep that its loss overflows: no size is optimal there, which the plan says.
    with _at("--budget"), np.errstate(over="ignore"):
        answer = make_plan(chosen, question, deployment, source, second_law=find_law(SECOND_LAW))
    if plot is not None:
        from moescale.figures import plan_figure, save_figure

        save_figure(plan_figure(answer), plot)
    if json_:
        _print_json(answer.to_dict())
    else:
        from moescale.console import show_plan, terminal

        show_plan(terminal(), answer)
    _warn(answer.warnings)


def _expert_counts(text: str) -> tuple[float, ...]:
    parts = [part for part in text.split(",") if part.strip()]
    if not 1 <= len(parts) <= MOST_COUNTS:
        what = f"{len(parts)} expert counts" if parts else f"{text!r} is not a list of expert counts"
        raise InputError(what, where="--experts", nearest=f"1 to {MOST_COUNTS} counts", next_step="such as 1,4,8,16")
    return tuple(_quantity("--experts", part.strip(), 1, MOST, whole=True) for part in parts)


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context, version: Annotated[bool, Option("--version", help="Print the version and stop.")] = False
) -> None:
    if version:
        from moescale import __version__

        print(__version__)
    elif context.invoked_subcommand is None:
        print(context.get_help(), end="")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; one message and an exit code for every error (0 done, 1 no answer, 2 bad input)."""
    asked = list(sys.argv[1:] if arguments is None else arguments)
    with suppress(AttributeError):  # a stream that someone has put in its place
        sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]  # a law's source may hold any letter
    try:
        code = app(args=asked, prog_name="moescale", standalone_mode=False)
        sys.stdout.flush()
    except InfeasibleError as error:
        if "--json" in asked:
            _print_json({"infeasible": str(error)})
        _fail(str(error), error.exit_code)
    except MoescaleError as error:
        _fail(str(error), error.exit_code)
    except typer.TyperException as error:  # unknown commands and options, missing ones, too many arguments
        command = next((f" {name}" for name in asked[:1] if name in COMMANDS), "")
        _fail(f"{error.format_message().rstrip('.')}; `moescale{command} --help` lists what there is", 2)
    except SystemExit as stop:
        # The reader of our output has closed it (`| head`), which typer turns into an exit: nothing is wrong.
        if not isinstance(stop.__context__, BrokenPipeError):
            raise
        _drop_output()
    except BrokenPipeError:
        _drop_output()
    except OSError as error:
        _drop_output()
        _fail(f"standard output cannot be written: {error.strerror or error}", 2)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    else:
        if code:
            sys.exit(code)


def _drop_output() -> None:
    """Send what is still to be written nowhere, so that the interpreter does not complain when it ends."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str, code: int) -> None:
    sys.stderr.write(f"moescale: {message}\n")
    sys.exit(code)
