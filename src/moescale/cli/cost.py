"""The command on serving: cost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from moescale.cli.options import (
    DEFAULT_GPU,
    MOST_PARAMETERS,
    Capital,
    ExpertParallel,
    GpuName,
    Json,
    KvCache,
    KvHeads,
    LatencyName,
    MaxTpot,
    MaxTtft,
    MemoryFraction,
    Output,
    PowerW,
    Price,
    Prompt,
    Pue,
    Replicas,
    Reserve,
    Scheduling,
    Trace,
    UsdPerKwh,
    Utilization,
    Weights,
    Years,
    app,
    examples,
    file_option,
    latency_source,
    make_deployment,
    named_gpu,
    number_option,
    parse_max_num_seqs,
    print_json,
    stated_price,
    text_option,
    traffic_of,
    warn,
)
from moescale.errors import InputError

if TYPE_CHECKING:
    from moescale.architecture import Architecture


@app.command(
    epilog=examples(
        "moescale cost --config mixtral/config.json --gpu h100-sxm --prompt 512 --output 256",
        "moescale cost --n-params 1.5B --experts 16 --gpu a100-sxm-80gb --max-num-seqs none",
        "moescale cost --config mixtral/config.json --gpu h100-sxm --weights fp8 --gpus 8 --replicas 4 --max-tpot 30ms",
        "moescale cost --config mixtral/config.json --trace requests.csv --scheduling chunked --latency roofline",
    )
)
def cost(
    config: Annotated[Path | None, file_option("--config", "Hugging Face config.json, or its folder.")] = None,
    n_params: Annotated[
        float | None, number_option("--n-params", "Instead of --config: dense-equivalent size N.", 1e5, MOST_PARAMETERS)
    ] = None,
    experts: Annotated[
        int | None, number_option("--experts", "With --n-params: experts E; default 1, dense.", whole=True)
    ] = None,
    top_k: Annotated[
        int | None, number_option("--top-k", "With --n-params: experts a token meets; default 2.", whole=True)
    ] = None,
    gpu: GpuName = DEFAULT_GPU,
    max_gpus: Annotated[
        int, number_option("--max-gpus", "Most GPUs of all replicas together.", 1, 1024, whole=True)
    ] = 8,
    gpus: Annotated[
        int | None, number_option("--gpus", "Exactly so many GPUs, of all replicas together.", 1, 1024, whole=True)
    ] = None,
    replicas: Replicas = 1,
    expert_parallel: ExpertParallel = 1,
    prompt: Prompt = None,
    output: Output = None,
    trace: Trace = None,
    latency: LatencyName = "auto",
    scheduling: Scheduling = "separate",
    usd_per_gpu_hour: Price = None,
    capital_usd_per_gpu: Capital = None,
    years: Years = None,
    power_w: PowerW = None,
    usd_per_kwh: UsdPerKwh = None,
    pue: Pue = None,
    max_num_seqs: Annotated[
        str | None,
        text_option("--max-num-seqs", "Most concurrent requests, or none; default: vLLM's for that GPU.", "INT|none"),
    ] = None,
    max_ttft: MaxTtft = None,
    max_tpot: MaxTpot = None,
    memory_fraction: MemoryFraction = 0.9,
    reserve: Reserve = None,
    utilization: Utilization = 1.0,
    weights: Weights = "bf16",
    kv_cache: KvCache = "bf16",
    kv_heads: KvHeads = None,
    json_: Json = False,
) -> None:
    """Dollars per million output tokens of a served model, and the cheapest GPU count."""
    from moescale.hardware import measured_reserve_bytes
    from moescale.serving import cost as serving_cost

    card = named_gpu(gpu)
    cap = float(card.default_max_num_seqs) if max_num_seqs is None else parse_max_num_seqs(max_num_seqs)
    model = _model(config, n_params, experts, top_k, kv_heads)
    price = stated_price(usd_per_gpu_hour, capital_usd_per_gpu, years, power_w, usd_per_kwh, pue)
    if max_gpus < replicas:
        raise InputError(
            f"{max_gpus} GPUs are too few for {replicas} replicas", where="--max-gpus", nearest=f"{replicas}"
        )
    each = _of_one_replica("--gpus", gpus, replicas)
    traffic = traffic_of(prompt, output, trace)
    deployment = make_deployment(
        card, price, weights=weights, kv_cache=kv_cache,
        prompt=traffic.prompt_tokens, output=traffic.output_tokens, traffic=traffic, max_num_seqs=cap,
        max_gpus=max_gpus // replicas if each is None else each, memory_fraction=memory_fraction,
        utilization=utilization, reserve_bytes=measured_reserve_bytes() if reserve is None else reserve,
        expert_parallel=expert_parallel, replicas=replicas, scheduling=scheduling, max_ttft_s=max_ttft,
        max_tpot_s=max_tpot,
    )  # fmt: skip
    answer = serving_cost(model, latency_source(latency, deployment, model), deployment, each)
    if json_:
        print_json(answer.to_dict())
        return
    from moescale.console import show_cost, terminal

    show_cost(terminal(), answer, deployment, traffic.source if trace is not None else None)


def _of_one_replica(option: str, gpus: int | None, replicas: int) -> int | None:
    if gpus is None:
        return None
    if gpus % replicas:
        raise InputError(
            f"{gpus} GPUs cannot be shared evenly by {replicas} replicas",
            where=option,
            nearest=f"{max(round(gpus / replicas), 1) * replicas}",
        )
    return gpus // replicas


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
        warn([f"--top-k {top_k}: a token meets all {count} experts, there are no more"])
    family = replace(find_family("yun2024"), top_k=top_k or 2)
    return architecture(family, n_params, float(count), kv_heads=kv_heads)
