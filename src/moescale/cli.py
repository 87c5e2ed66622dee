"""The command line: each command calls one public function and prints its answer. Names are fixed; scripts use them."""

from __future__ import annotations

import json
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from moescale.errors import InfeasibleError, InputError, MoescaleError
from moescale.units import parse_quantity

if TYPE_CHECKING:
    from moescale.architecture import Architecture, FloatArray
    from moescale.family import ModelFamily
    from moescale.fitting import Progress
    from moescale.hardware import Gpu
    from moescale.latency import LatencySource
    from moescale.laws import LawForm
    from moescale.runs import RunTable
    from moescale.serving import Deployment

DEFAULT_LAW = "yun2024-recovered"
SECOND_LAW = "yun2024-joint"  # says in one line whether independent runs agree
DEFAULT_GPU = "a100-sxm-40gb"  # the paper's
DEFAULT_TRAFFIC = (230.0, 203.0)  # ShareGPT, as vLLM's serving benchmark samples it (catalogue/traffic.toml)

app = typer.Typer(
    name="moescale",
    help="Plan the pre-training of Mixture-of-Experts language models: scaling law, serving cost, the model to train.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _quantity(text: str | float) -> float:
    try:
        return parse_quantity(text)
    except InputError as error:
        raise typer.BadParameter(str(error)) from None


def _count_or_none(text: str) -> float | None:
    return None if text.strip().lower() == "none" else _quantity(text)


def _quantity_option(*names: str, help: str) -> Any:
    return Option(*names, parser=_quantity, metavar="NUMBER", help=help)


Json = Annotated[bool, Option("--json", help="Print one JSON value on standard output and nothing else.")]
Prompt = Annotated[float, _quantity_option("--prompt", help="Mean prompt tokens of a request.")]
Output = Annotated[float, _quantity_option("--output", help="Mean output tokens of a request.")]
GpuName = Annotated[str, Option("--gpu", help="GPU of the catalogue, such as a100-sxm-40gb or h100-sxm.")]
MaxGpus = Annotated[int, Option("--max-gpus", min=1, help="Most GPUs to serve one model on (tensor parallel).")]
LatencyName = Annotated[
    str, Option("--latency", help="silicon (measured kernels), roofline, or the path of a latency table.")
]
Price = Annotated[
    float | None, _quantity_option("--usd-per-gpu-hour", help="Price of a GPU hour; default: the catalogue's.")
]
MemoryFraction = Annotated[
    float, Option("--memory-fraction", help="Share of GPU memory for weights and KV cache, above 0, at most 1.")
]
Utilization = Annotated[float, Option("--utilization", help="Share of the plateau throughput that traffic uses.")]
Weights = Annotated[str, Option("--weights", help="bf16 or fp8.")]
KvHeads = Annotated[
    float | None, _quantity_option("--kv-heads", help="Cached KV heads a layer; default: one a query head.")
]
Convention = Annotated[
    str | None, Option("--convention", help="Counting of training FLOPs: paper, exact or dense; default: the law's.")
]
UniqueTokens = Annotated[
    float | None, _quantity_option("--unique-tokens", help="Distinct tokens there are; laws of repeated data need it.")
]
Granularity = Annotated[
    float | None, _quantity_option("--granularity", help="d_ff over an expert's width, for laws of fine-grained MoE.")
]
Sparsity = Annotated[
    float | None, _quantity_option("--sparsity", help="Unused share of weights or experts, for laws that have it.")
]


def _given(**options: float | None) -> dict[str, float]:
    """The further inputs of a law that the command line names."""
    return {name: value for name, value in options.items() if value is not None}


def _run_inputs(forms: Sequence[LawForm], table: RunTable, given: dict[str, float]) -> dict[str, FloatArray]:
    """The forms' further inputs at each run: a column of the table, or else the option's value for all of them."""
    import numpy as np

    from moescale.laws.further_inputs import from_columns, option

    found = from_columns(forms, table.columns, table.experts, source=table.source)
    for name, value in given.items():
        if name in table.columns:
            raise InputError(
                f"the table has a column {name!r} of its own", where=option(name), next_step="leave it out"
            )
        if not any(name in form.extra_inputs for form in forms):
            raise InputError(f"{', '.join(form.name for form in forms)} has no input {name!r}", where=option(name))
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
        raise InputError(f"unknown weight type {weights!r}", where="--weights", next_step="bf16 or fp8")
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
    if Path(name).suffix.lower() in (".csv", ".tsv", ".parquet") or Path(name).exists():
        from moescale.latency.table import read_latency_table

        return read_latency_table(name, gpu=deployment.gpu.name)
    raise InputError(
        f"unknown latency source {name!r}",
        where="--latency",
        next_step="silicon, roofline, or the path of a CSV or Parquet latency table",
    )


def _family(runs: RunTable, named: str | None, size_column: str) -> ModelFamily:
    """The family that --family names, or the one that the table's columns speak for."""
    from moescale.family import find_family, match_family

    if named is not None:
        return find_family(named)
    columns = {name: runs.columns.get(name) for name in ("top_k", "n_params_total")}
    numeric = {k: v if v is not None and v.dtype.kind == "f" else None for k, v in columns.items()}
    family, remarks = match_family(
        runs.n_params, runs.experts, top_k=numeric["top_k"], n_params_total=numeric["n_params_total"]
    )
    if size_column == "n_params_total":
        family = replace(family, n_counts="total")
    _warn(remarks)
    return family


@app.command()
def fit(
    runs: Annotated[Path, Argument(help="Table of runs: CSV, TSV, Parquet or JSON lines.")],
    law: Annotated[str, Option("--law", help="Form of the law, such as yun2024 or chinchilla.")] = "yun2024",
    where: Annotated[
        str | None, Option("--where", help="Rows to keep, such as 'tokens / n_params_active >= 2'.")
    ] = None,
    starts: Annotated[str, Option("--starts", help="auto, paper (all 810,000 starts; hours), or how many.")] = "auto",
    bootstrap: Annotated[int, Option("--bootstrap", min=0, help="Replicates for 90% intervals; 0: none.")] = 0,
    seed: Annotated[int, Option("--seed", min=0, help="Seed of the bootstrap.")] = 0,
    size_column: Annotated[
        str | None, Option("--size-column", help="Column that is N; default n_params_dense.")
    ] = None,
    loss_column: Annotated[str, Option("--loss-column", help="Column that is the loss.")] = "loss",
    family: Annotated[
        str | None,
        Option("--family", help="Family of the runs (yun2024, ludziejewski2025, dense); default: by columns."),
    ] = None,
    unique_tokens: UniqueTokens = None,
    granularity: Granularity = None,
    sparsity: Sparsity = None,
    output: Annotated[Path | None, Option("-o", help="Write the law to this TOML file.")] = None,
    json_: Json = False,
) -> None:
    """Fit a law to a table of runs.

    Example: `moescale fit examples/runs.csv -o law.toml`

    Example: `moescale fit runs.csv --size-column n_params_active --where "tokens / n_params_active >= 2" --bootstrap 200`
    """
    import numpy as np

    from moescale.fitting import fit as fit_law
    from moescale.fitting import fitted_law
    from moescale.laws import find_form, make_inputs, save_law
    from moescale.laws.further_inputs import further_inputs
    from moescale.runs import read_runs

    form = find_form(law)
    table = read_runs(runs, size_column=size_column, loss_column=loss_column, where=where)
    _warn(table.warnings)
    about = _family(table, family, table.size_column)
    given = _given(unique_tokens=unique_tokens, granularity=granularity, sparsity=sparsity)
    extra = further_inputs(form, _run_inputs([form], table, given), where=table.source)
    with _progress(not json_) as progress:
        found = fit_law(
            form, table.n_params, table.tokens, table.experts, table.loss, extra=extra, starts=_starts(starts),
            progress=progress,
        )  # fmt: skip
        draws, intervals = None, None
        if bootstrap:
            from moescale.uncertainty import bootstrap as resample
            from moescale.uncertainty import parameter_intervals

            x = make_inputs(table.n_params, table.tokens, table.experts, extra)
            draws = resample(found, x, np.log(table.loss), bootstrap, seed, progress=progress)
            intervals = parameter_intervals(found, draws)
    found = replace(found, warnings=(*table.warnings, *found.warnings))
    if output is not None:
        from datetime import date

        from moescale import __version__

        name = output.stem
        evidence: dict[str, object] = {
            "table": runs.name,
            "table_sha256": table.sha256 or "",
            "where": where or "",
            "size_column": table.size_column,
            "loss_column": loss_column,
            "seed": seed,
            "bootstrap": bootstrap,
            "moescale": __version__,
        }
        save_law(
            fitted_law(
                found, about, name=name, source=f"fitted to {runs.name}", date=date.today().isoformat(), draws=draws,
                evidence=evidence,
            ),
            output,
        )  # fmt: skip
    if json_:
        _print_json(found.to_dict(intervals))
    else:
        from moescale.console import show_fit, terminal

        show_fit(terminal(), found, intervals)
        if output is not None:
            sys.stderr.write(f"wrote {output}\n")
    _warn([w for w in found.warnings if w not in table.warnings])


def _starts(text: str) -> str | int:
    if text in ("auto", "paper"):
        return text
    try:
        count = int(text)
    except ValueError:
        count = 0
    if not 1 <= count <= 100_000:
        raise InputError(f"{text!r} is not a way to start", where="--starts", next_step="auto, paper, or 1 to 100000")
    return count


@app.command()
def laws(json_: Json = False) -> None:
    """List the coefficient sets that `plan` and `predict` know.

    Example: `moescale laws --json`
    """
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


@app.command()
def predict(
    n_params: Annotated[float, _quantity_option("--n-params", help="Size N as the law counts it, such as 1.5B.")],
    tokens: Annotated[float, _quantity_option("--tokens", help="Training tokens D, such as 300B.")],
    law: Annotated[str, Option("--law", help="Coefficient set, or a law file that fit wrote.")] = DEFAULT_LAW,
    experts: Annotated[float, _quantity_option("--experts", help="Experts E of a layer; 1 is dense.")] = 1.0,
    unique_tokens: UniqueTokens = None,
    granularity: Granularity = None,
    sparsity: Sparsity = None,
    json_: Json = False,
) -> None:
    """Predict the loss of one model.

    Example: `moescale predict --n-params 567M --tokens 374B --experts 8`
    """
    from moescale.laws import find_law
    from moescale.laws import predict as predict_loss

    chosen = find_law(law)
    for name, value, least in (("--n-params", n_params, 1.0), ("--tokens", tokens, 1.0), ("--experts", experts, 1.0)):
        if value < least:
            raise InputError(f"{value:g} is too small", where=name, next_step=f"at least {least:g}")
    if not chosen.form.uses_experts and experts != 1:
        _warn([f"{chosen.name} has no term in the number of experts: --experts {experts:g} changes nothing"])
    extra = _given(unique_tokens=unique_tokens, granularity=granularity, sparsity=sparsity)
    predicted = predict_loss(chosen, n_params, tokens, experts, extra=extra)
    if json_:
        _print_json(predicted.to_dict())
        return
    from moescale.console import show_prediction, terminal

    show_prediction(terminal(), chosen, predicted)


@app.command()
def compare(
    runs: Annotated[Path, Argument(help="Table of runs: CSV, TSV, Parquet or JSON lines.")],
    holdout: Annotated[str, Option("--holdout", help="Rows to predict instead of fitting, such as 'tokens >= 12e9'.")],
    law: Annotated[list[str] | None, Option("--law", help="Form of a law; repeat to compare.")] = None,
    where: Annotated[str | None, Option("--where", help="Rows to use at all.")] = None,
    size_column: Annotated[
        str | None, Option("--size-column", help="Column that is N; default n_params_dense.")
    ] = None,
    loss_column: Annotated[str, Option("--loss-column", help="Column that is the loss.")] = "loss",
    unique_tokens: UniqueTokens = None,
    granularity: Granularity = None,
    sparsity: Sparsity = None,
    json_: Json = False,
) -> None:
    """Fit laws on some runs and test them on the others: in-sample and held-out error.

    Example: `moescale compare runs.csv --law yun2024 --law chinchilla --holdout "tokens >= 12e9"`
    """
    from moescale.expressions import evaluate
    from moescale.laws import find_form
    from moescale.runs import read_runs
    from moescale.validation import RunArrays, hold_out

    forms = [find_form(name) for name in law or ["yun2024"]]
    table = read_runs(runs, size_column=size_column, loss_column=loss_column, where=where)
    _warn(table.warnings)
    held_out = evaluate(holdout, table.to_columns())
    given = _given(unique_tokens=unique_tokens, granularity=granularity, sparsity=sparsity)
    extra = _run_inputs(forms, table, given)
    arrays = RunArrays(table.n_params, table.tokens, table.experts, table.loss, extra)
    with _progress(not json_) as progress:
        records = [hold_out(form, arrays, held_out, progress=progress) for form in forms]
    if json_:
        _print_json([record.to_dict() for record in records])
        return
    from moescale.console import show_comparison, terminal

    show_comparison(terminal(), records)


@app.command()
def cost(
    config: Annotated[Path | None, Option("--config", help="Hugging Face config.json, or its folder.")] = None,
    n_params: Annotated[
        float | None, _quantity_option("--n-params", help="Instead of --config: dense-equivalent size N.")
    ] = None,
    experts: Annotated[float, _quantity_option("--experts", help="With --n-params: experts E; 1 is dense.")] = 1.0,
    top_k: Annotated[int, Option("--top-k", min=1, help="With --n-params: experts a token meets.")] = 2,
    gpu: GpuName = DEFAULT_GPU,
    max_gpus: MaxGpus = 8,
    gpus: Annotated[int | None, Option("--gpus", min=1, help="Exactly so many GPUs.")] = None,
    prompt: Prompt = DEFAULT_TRAFFIC[0],
    output: Output = DEFAULT_TRAFFIC[1],
    latency: LatencyName = "auto",
    usd_per_gpu_hour: Price = None,
    max_num_seqs: Annotated[
        str | None, Option("--max-num-seqs", help="Most concurrent requests, or none; default: vLLM's for that GPU.")
    ] = None,
    memory_fraction: MemoryFraction = 0.9,
    utilization: Utilization = 1.0,
    weights: Weights = "bf16",
    kv_heads: KvHeads = None,
    json_: Json = False,
) -> None:
    """Dollars per million output tokens of a served model, and the cheapest GPU count.

    Example: `moescale cost --config mixtral/config.json --gpu h100-sxm --prompt 512 --output 256`

    Example: `moescale cost --n-params 1.5B --experts 16 --gpu a100-sxm-80gb --max-num-seqs none`
    """
    from moescale.hardware import find_gpu
    from moescale.serving import cost as serving_cost

    card = find_gpu(gpu)
    model = _model(config, n_params, experts, top_k, kv_heads)
    cap = float(card.default_max_num_seqs) if max_num_seqs is None else _count_or_none(max_num_seqs)
    deployment = _deployment(
        card, usd_per_gpu_hour, weights=weights, prompt=prompt, output=output, max_gpus=max_gpus, max_num_seqs=cap,
        memory_fraction=memory_fraction, utilization=utilization,
    )  # fmt: skip
    answer = serving_cost(model, _latency(latency, deployment, config), deployment, gpus)
    if json_:
        _print_json(answer.to_dict())
        return
    from moescale.console import show_cost, terminal

    show_cost(terminal(), answer, card.name)


def _model(
    config: Path | None, n_params: float | None, experts: float, top_k: int, kv_heads: float | None
) -> Architecture:
    from moescale.architecture import from_config
    from moescale.family import architecture, find_family

    if (config is None) == (n_params is None):
        raise InputError(
            "give the model either as --config CONFIG.json or as --n-params N with --experts E",
            next_step="for example --n-params 1.5B --experts 16",
        )
    if config is not None:
        return from_config(config)
    assert n_params is not None
    if n_params < 1e5 or experts < 1 or experts != int(experts):
        raise InputError(
            f"no model has {n_params:g} parameters and {experts:g} experts",
            next_step="--n-params from 100K up, --experts a whole number from 1 up",
        )
    family = replace(find_family("yun2024"), top_k=top_k)
    return architecture(family, float(n_params), float(experts), kv_heads=kv_heads)


@app.command()
def plan(
    budget: Annotated[float, _quantity_option("--budget", help="Training FLOPs, such as 5.15e21.")],
    law: Annotated[str, Option("--law", help="Coefficient set, or a law file that fit wrote.")] = DEFAULT_LAW,
    experts: Annotated[str, Option("--experts", help="Expert counts to consider, by commas.")] = "1,4,8,16,32,64",
    gpu: GpuName = DEFAULT_GPU,
    max_gpus: MaxGpus = 8,
    prompt: Prompt = DEFAULT_TRAFFIC[0],
    output: Output = DEFAULT_TRAFFIC[1],
    match_experts: Annotated[
        float, _quantity_option("--match-experts", help="The base: the loss-optimal model with so many experts.")
    ] = 4.0,
    max_loss: Annotated[
        float | None,
        _quantity_option("--max-loss", help="Cheapest model with at most this loss, instead of the base's."),
    ] = None,
    max_usd_per_mtok: Annotated[
        float | None,
        _quantity_option("--max-usd-per-mtok", help="Best model within this cost per million output tokens."),
    ] = None,
    max_tokens: Annotated[
        float | None, _quantity_option("--max-tokens", help="Training tokens that exist; no plan uses more.")
    ] = None,
    lifetime_tokens: Annotated[
        float | None,
        _quantity_option("--lifetime-tokens", help="Output tokens to serve in all: adds the serving bill."),
    ] = None,
    bootstrap: Annotated[
        int | None,
        Option("--bootstrap", min=0, help="Draws of the law for intervals; default: all it carries; 0: none."),
    ] = None,
    unique_tokens: UniqueTokens = None,
    granularity: Granularity = None,
    sparsity: Sparsity = None,
    convention: Convention = None,
    top_k: Annotated[
        int | None, Option("--top-k", min=1, help="Experts a token meets; must be the law's own (default).")
    ] = None,
    latency: LatencyName = "auto",
    usd_per_gpu_hour: Price = None,
    max_num_seqs: Annotated[
        str, Option("--max-num-seqs", help="Most concurrent requests, or none: memory alone limits (the paper's).")
    ] = "none",
    memory_fraction: MemoryFraction = 0.9,
    utilization: Utilization = 1.0,
    weights: Weights = "bf16",
    kv_heads: KvHeads = None,
    json_: Json = False,
) -> None:
    """Which model to train with a budget: experts, size, tokens, and what serving it costs.

    Example: `moescale plan --budget 5.15e21`

    Example: `moescale plan --budget 1e22 --gpu h100-sxm --match-experts 1 --max-tokens 2T --lifetime-tokens 1T`
    """
    from moescale.allocation import Budget
    from moescale.hardware import find_gpu
    from moescale.laws import find_law
    from moescale.planning import Question, make_plan

    chosen = find_law(law)
    if top_k is not None and top_k != chosen.family.top_k:
        raise InputError(
            f"{chosen.name} was fitted on top-{chosen.family.top_k} models and says nothing about top-{top_k}",
            where="--top-k",
            next_step=f"leave --top-k out, or fit a law to top-{top_k} runs",
        )
    deployment = _deployment(
        find_gpu(gpu), usd_per_gpu_hour, weights=weights, prompt=prompt, output=output, max_gpus=max_gpus,
        max_num_seqs=_count_or_none(max_num_seqs), memory_fraction=memory_fraction, utilization=utilization,
    )  # fmt: skip
    question = Question(
        budget=Budget(
            budget, max_tokens, _given(unique_tokens=unique_tokens, granularity=granularity, sparsity=sparsity)
        ),
        experts=_expert_counts(experts),
        match_experts=match_experts,
        max_loss=max_loss,
        max_usd_per_mtok=max_usd_per_mtok,
        lifetime_tokens=lifetime_tokens,
        kv_heads=kv_heads,
        draws=bootstrap,
        convention=convention,
    )
    answer = make_plan(
        chosen, question, deployment, _latency(latency, deployment, None), second_law=find_law(SECOND_LAW)
    )
    if json_:
        _print_json(answer.to_dict())
    else:
        from moescale.console import show_plan, terminal

        show_plan(terminal(), answer)
    _warn(answer.warnings)


def _expert_counts(text: str) -> tuple[float, ...]:
    counts = tuple(_quantity(part) for part in text.split(",") if part.strip())
    if not counts or len(counts) > 256:
        raise InputError(f"{text!r} is not a list of expert counts", where="--experts", next_step="such as 1,4,8,16")
    return counts


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, Option("--version", help="Print the version and stop.")] = False) -> None:
    if version:
        from moescale import __version__

        print(__version__)
        raise typer.Exit


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; one message and an exit code for every error of the input (0 done, 1 no answer, 2 bad input)."""
    asked = list(sys.argv[1:] if arguments is None else arguments)
    try:
        app(args=asked, prog_name="moescale", standalone_mode=True)
    except InfeasibleError as error:
        if "--json" in asked:
            _print_json({"infeasible": str(error)})
        _fail(str(error), error.exit_code)
    except MoescaleError as error:
        _fail(str(error), error.exit_code)
    except BrokenPipeError:
        # The reader of our output has closed it (`| head`): nothing is wrong.
        sys.stderr.close()
        sys.exit(0)


def _fail(message: str, code: int) -> None:
    sys.stderr.write(f"moescale: {message}\n")
    sys.exit(code)
