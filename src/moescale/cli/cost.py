"""The command on serving: cost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from moescale.cli.options import (
    DEFAULT_GPU,
    DEFAULT_TRAFFIC,
    MOST_PARAMETERS,
    GpuName,
    Json,
    KvHeads,
    LatencyName,
    MaxGpus,
    MemoryFraction,
    Output,
    Price,
    Prompt,
    Utilization,
    Weights,
    app,
    examples,
    file_option,
    latency_source,
    make_deployment,
    named_gpu,
    number_option,
    parse_max_num_seqs,
    print_json,
    text_option,
    warn,
)
from moescale.errors import InputError

if TYPE_CHECKING:
    from moescale.architecture import Architecture


@app.command(
    epilog=examples(
        "moescale cost --config mixtral/config.json --gpu h100-sxm --prompt 512 --output 256",
        "moescale cost --n-params 1.5B --experts 16 --gpu a100-sxm-80gb --max-num-seqs none",
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
    max_gpus: MaxGpus = 8,
    gpus: Annotated[int | None, number_option("--gpus", "Exactly so many GPUs.", 1, 1024, whole=True)] = None,
    prompt: Prompt = DEFAULT_TRAFFIC[0],
    output: Output = DEFAULT_TRAFFIC[1],
    latency: LatencyName = "auto",
    usd_per_gpu_hour: Price = None,
    max_num_seqs: Annotated[
        str | None,
        text_option("--max-num-seqs", "Most concurrent requests, or none; default: vLLM's for that GPU.", "INT|none"),
    ] = None,
    memory_fraction: MemoryFraction = 0.9,
    utilization: Utilization = 1.0,
    weights: Weights = "bf16",
    kv_heads: KvHeads = None,
    json_: Json = False,
) -> None:
    """Dollars per million output tokens of a served model, and the cheapest GPU count."""
    from moescale.serving import cost as serving_cost

    card = named_gpu(gpu)
    cap = float(card.default_max_num_seqs) if max_num_seqs is None else parse_max_num_seqs(max_num_seqs)
    model = _model(config, n_params, experts, top_k, kv_heads)
    deployment = make_deployment(
        card, usd_per_gpu_hour, weights=weights, prompt=prompt, output=output, max_gpus=max_gpus, max_num_seqs=cap,
        memory_fraction=memory_fraction, utilization=utilization,
    )  # fmt: skip
    answer = serving_cost(model, latency_source(latency, deployment, config), deployment, gpus)
    if json_:
        print_json(answer.to_dict())
        return
    from moescale.console import show_cost, terminal

    show_cost(terminal(), answer, deployment)


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
