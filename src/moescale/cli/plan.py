"""The command on the decision: plan."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from moescale.cli.export import ExportFolder, ExportFormat, PeakLr, TrainGpus, VocabSize, check_options, export_plan
from moescale.cli.options import (
    DEFAULT_GPU,
    DEFAULT_LAW,
    LEAST,
    LEAST_BOUND,
    MOST,
    MOST_COUNTS,
    MOST_LOSS,
    MOST_REPLICATES,
    MOST_TOKENS,
    MOST_TOTAL_USD,
    MOST_USD_PER_MTOK,
    Capital,
    Convention,
    ExpertParallel,
    GpuName,
    Granularity,
    HeldBack,
    HostName,
    Json,
    KvCache,
    KvHeads,
    LatencyName,
    LawName,
    MaxGpus,
    MaxTpot,
    MaxTtft,
    MemoryFraction,
    Output,
    Panelled,
    Plot,
    PowerW,
    Price,
    Prompt,
    Pue,
    Reserve,
    Scheduling,
    Sparsity,
    Trace,
    UniqueTokens,
    UsdPerKwh,
    Utilization,
    Weights,
    Years,
    app,
    at_option,
    check_plot,
    checked_quantity,
    examples,
    given_inputs,
    latency_source,
    made_with,
    make_deployment,
    named_gpu,
    named_law,
    number_option,
    parse_max_num_seqs,
    print_json,
    stated_price,
    text_option,
    traffic_of,
    warn,
)
from moescale.errors import InputError, UnwrittenError

if TYPE_CHECKING:
    from moescale.hardware.gpus import Gpu
    from moescale.planning.total_cost import TrainingPrice
    from moescale.serving.deployment import Deployment


@app.command(
    cls=Panelled,
    epilog=examples(
        "moescale plan --budget 5.15e21",
        "moescale plan --budget 1e22 --gpu h100-sxm --match-experts 1 --max-tokens 2T",
        "moescale plan --budget 5.15e21 --lifetime-tokens 1T --train-gpu h100-sxm --mfu 0.35",
        "moescale plan --budget 5.15e21 --export megatron -o launch --train-gpu h100-sxm --train-gpus 64",
    ),
)
def plan(
    context: typer.Context,
    budget: Annotated[float, number_option("--budget", "Training FLOPs in all, such as 5.15e21.", 0, math.inf)],
    law: LawName = DEFAULT_LAW,
    experts: Annotated[
        str, text_option("--experts", "Expert counts to consider, by commas.", "LIST")
    ] = "1,4,8,16,32,64",
    gpu: GpuName = DEFAULT_GPU,
    max_gpus: MaxGpus = 8,
    prompt: Prompt = None,
    output: Output = None,
    trace: Trace = None,
    match_experts: Annotated[
        int,
        number_option(
            "--match-experts",
            "The base, whose loss or cost the others have to meet: the loss-optimal model with so many experts.",
            whole=True,
        ),
    ] = 4,
    max_loss: Annotated[
        float | None,
        number_option(
            "--max-loss", "Cheapest model with at most this loss, instead of the base's.", LEAST_BOUND, MOST_LOSS
        ),
    ] = None,
    max_usd_per_mtok: Annotated[
        float | None,
        number_option(
            "--max-usd-per-mtok",
            "Best model within this cost per million output tokens.",
            LEAST_BOUND,
            MOST_USD_PER_MTOK,
        ),
    ] = None,
    max_tokens: Annotated[
        float | None,
        number_option(
            "--max-tokens", "Training tokens that exist; no plan uses more.", most=MOST_TOKENS, unit="tokens"
        ),
    ] = None,
    lifetime_tokens: Annotated[
        float | None,
        number_option(
            "--lifetime-tokens",
            "Output tokens to serve in all: adds the serving bill, and the model that costs least to train and serve.",
            most=MOST_TOKENS,
            unit="tokens",
        ),
    ] = None,
    max_total_usd: Annotated[
        float | None,
        number_option(
            "--max-total-usd",
            "With --lifetime-tokens: lowest loss for so many dollars of training and serving.",
            LEAST_BOUND,
            MOST_TOTAL_USD,
        ),
    ] = None,
    train_gpu: Annotated[
        str | None, text_option("--train-gpu", "GPU to train on: adds training days and dollars; default: --gpu.")
    ] = None,
    mfu: Annotated[
        float | None,
        number_option(
            "--mfu",
            "Share of the training GPU's peak that training reaches; default: 0.4.",
            LEAST,
            1,
        ),
    ] = None,
    train_usd_per_gpu_hour: Annotated[
        float | None,
        number_option(
            "--train-usd-per-gpu-hour",
            "Price of a GPU hour of training; default: as serving, or the catalogue's of --train-gpu.",
            LEAST,
        ),
    ] = None,
    bootstrap: Annotated[
        int | None,
        number_option(
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
        int | None, number_option("--top-k", "Experts a token meets; must be the law's own (default).", whole=True)
    ] = None,
    latency: LatencyName = "auto",
    scheduling: Scheduling = "separate",
    host: HostName = None,
    expert_parallel: ExpertParallel = 1,
    usd_per_gpu_hour: Price = None,
    capital_usd_per_gpu: Capital = None,
    years: Years = None,
    power_w: PowerW = None,
    usd_per_kwh: UsdPerKwh = None,
    pue: Pue = None,
    max_num_seqs: Annotated[
        str, text_option("--max-num-seqs", "Most concurrent requests; none: memory alone limits.", "INT|none")
    ] = "none",
    max_ttft: MaxTtft = None,
    max_tpot: MaxTpot = None,
    memory_fraction: MemoryFraction = 0.9,
    reserve: Reserve = None,
    utilization: Utilization = 1.0,
    weights: Weights = "bf16",
    kv_cache: KvCache = "bf16",
    kv_heads: KvHeads = None,
    export: ExportFormat = None,
    export_folder: ExportFolder = None,
    train_gpus: TrainGpus = None,
    vocab_size: VocabSize = None,
    peak_lr: PeakLr = None,
    plot: Plot = None,
    frontier_plot: Annotated[
        bool, Option("--frontier-plot", help="Draw the curves in letters also where the output is no terminal.")
    ] = False,
    json_: Json = False,
) -> None:
    """Which model to train with a budget: experts, size, tokens, and what serving it costs."""
    import numpy as np

    from moescale.hardware.gpus import measured_reserve_bytes
    from moescale.models.family import with_convention
    from moescale.planning.allocation import Budget
    from moescale.planning.plan import SECOND_LAWS, Question, make_plan
    from moescale.scaling_laws import find_law

    check_plot(plot)
    check_options(export, export_folder, {"--train-gpus": train_gpus, "--peak-lr": peak_lr})
    chosen = named_law(law)
    if top_k is not None and top_k != chosen.family.top_k:
        raise InputError(
            f"{chosen.name} was fitted on top-{chosen.family.top_k} models and says nothing about top-{top_k}",
            where="--top-k",
            next_step=f"leave --top-k out, or fit a law to top-{top_k} runs",
        )
    if convention is not None:
        with at_option("--convention"):
            with_convention(chosen.family, convention)
    traffic = traffic_of(prompt, output, trace)
    price = stated_price(usd_per_gpu_hour, capital_usd_per_gpu, years, power_w, usd_per_kwh, pue)
    deployment = make_deployment(
        named_gpu(gpu), price, weights=weights, kv_cache=kv_cache, prompt=traffic.prompt_tokens,
        output=traffic.output_tokens, traffic=traffic, max_gpus=max_gpus,
        max_num_seqs=parse_max_num_seqs(max_num_seqs), memory_fraction=memory_fraction, utilization=utilization,
        reserve_bytes=measured_reserve_bytes() if reserve is None else reserve, expert_parallel=expert_parallel, scheduling=scheduling, max_ttft_s=max_ttft,
        max_tpot_s=max_tpot, host=host,
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
            budget, max_tokens, given_inputs(unique_tokens=unique_tokens, granularity=granularity, sparsity=sparsity)
        ),
        experts=counts,
        match_experts=float(match_experts),
        max_loss=max_loss,
        max_usd_per_mtok=max_usd_per_mtok,
        lifetime_tokens=lifetime_tokens,
        training=_training_price(deployment, lifetime_tokens, train_gpu, mfu, train_usd_per_gpu_hour, export),
        max_total_usd=max_total_usd,
        kv_heads=kv_heads,
        vocab_size=vocab_size,
        draws=bootstrap,
        convention=convention,
    )
    source = latency_source(latency, deployment)
    # A law from a file may be so steep that its loss overflows: no size is optimal there, which the plan says.
    with at_option("--budget"), np.errstate(over="ignore"):
        second = [find_law(name) for name in SECOND_LAWS]
        answer = make_plan(chosen, question, deployment, source, second_laws=second)
    held_back = HeldBack(UnwrittenError)
    if plot is not None:
        from moescale.views.figures import plan_figure, save_figure

        with held_back:
            save_figure(plan_figure(answer), plot)
    exported = None
    if export is not None and export_folder is not None:
        with held_back:
            exported = export_plan(
                answer, export, export_folder, gpu=_training_gpu(deployment, train_gpu), mfu=mfu,
                gpus=train_gpus, peak_lr=peak_lr,
            )  # fmt: skip
    if json_:
        files = [
            path
            for path in (*(Path(text) for text in (law, gpu, latency)), trace)
            if path is not None and path.is_file()
        ]
        record = {**answer.to_dict(), "made_with": made_with(context, files)}
        print_json(record if exported is None else record | {"export": exported.to_dict()})
    else:
        from moescale.views.terminal import show_export, show_plan, terminal

        show_plan(terminal(), answer, chart=frontier_plot or None)
        if exported is not None:
            show_export(terminal(), exported)
    warn(answer.warnings)
    held_back.tell()


def _training_price(
    deployment: Deployment,
    lifetime_tokens: float | None,
    train_gpu: str | None,
    mfu: float | None,
    usd_per_gpu_hour: float | None,
    export: str | None,
) -> TrainingPrice | None:
    """The price of training, where a training GPU or a lifetime is stated: by default of the GPU that serves, at its price.

    Without a lifetime an exported run may train on a GPU that has no price: then there is none.
    """
    from moescale.hardware import prices
    from moescale.planning.total_cost import TrainingPrice, default_mfu

    if lifetime_tokens is None and train_gpu is None and mfu is None and usd_per_gpu_hour is None:
        return None
    gpu = _training_gpu(deployment, train_gpu)
    if usd_per_gpu_hour is None:
        same = gpu.name == deployment.gpu.name
        try:
            with at_option("--train-gpu"):
                own = float(deployment.usd_per_gpu_hour)
                usd_per_gpu_hour = own if same else prices.usd_per_gpu_hour(gpu)
        except InputError as error:
            if lifetime_tokens is None and export is not None:
                return None
            raise InputError(
                error.what,
                where=error.where,
                nearest=error.nearest,
                next_step="give --train-usd-per-gpu-hour as well",
            ) from error
    return TrainingPrice(gpu=gpu, usd_per_gpu_hour=usd_per_gpu_hour, mfu=default_mfu() if mfu is None else mfu)


def _training_gpu(deployment: Deployment, train_gpu: str | None) -> Gpu:
    from moescale.hardware.gpus import load_gpu

    if train_gpu is None:
        return deployment.gpu
    with at_option("--train-gpu"):
        return load_gpu(train_gpu)


def _expert_counts(text: str) -> tuple[float, ...]:
    parts = [part for part in text.split(",") if part.strip()]
    if not 1 <= len(parts) <= MOST_COUNTS:
        what = f"{len(parts)} expert counts" if parts else f"{text!r} is not a list of expert counts"
        raise InputError(what, where="--experts", nearest=f"1 to {MOST_COUNTS} counts", next_step="such as 1,4,8,16")
    return tuple(checked_quantity("--experts", part.strip(), 1, MOST, whole=True) for part in parts)
