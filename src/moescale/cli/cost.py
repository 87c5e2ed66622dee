"""The command on serving: cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

from typer import Option

from moescale.cli.options import (
    DEFAULT_GPU,
    LEAST,
    MOST,
    MOST_PARAMETERS,
    Capital,
    ExpertParallel,
    HeldBack,
    HostName,
    Json,
    KvHeads,
    LatencyName,
    MaxTpot,
    MaxTtft,
    MemoryFraction,
    Output,
    Panelled,
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
    Years,
    app,
    at_option,
    check_plot,
    checked_quantity,
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
from moescale.errors import InputError, MoescaleError

if TYPE_CHECKING:
    from moescale.hardware.gpus import Gpu
    from moescale.hardware.precisions import Precision
    from moescale.latency import LatencySource
    from moescale.models.architecture import Architecture
    from moescale.models.quantisation import CheckpointWeights
    from moescale.serving.deployment import Deployment
    from moescale.serving.operating_points import LeftOut, Platform
    from moescale.serving.simulator import Run

LEAST_MEASURED_BYTES = 0.75  # a weight, scales included: formats of fewer have no measured kernels here


@app.command(
    cls=Panelled,
    epilog=examples(
        "moescale cost --config mixtral/config.json --gpu h100-sxm --prompt 512 --output 256",
        "moescale cost --n-params 1.5B --experts 16 --gpu a100-sxm-80gb --max-num-seqs none",
        "moescale cost --config mixtral/config.json --gpu h100-sxm --weights fp8 --gpus 8 --replicas 4 --max-tpot 30ms",
        "moescale cost --config mixtral/config.json --trace requests.csv --scheduling chunked --latency roofline",
        "moescale cost --config mixtral/config.json --gpu h100-sxm --gpus 2 --prompt 512 --output 256 --burst 500",
        "moescale cost --n-params 1.5B --experts 16 --gpu a100-sxm-80gb,h100-sxm --sweep",
        "moescale cost --config mixtral/config.json --gpu h100-sxm --sweep --sweep-weights bf16,fp8 --plot sweep.svg",
    ),
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
    gpu: Annotated[
        str, text_option("--gpu", "GPU of the catalogue, such as h100-sxm; with --sweep several, with commas between.")
    ] = DEFAULT_GPU,
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
    host: HostName = None,
    burst: Annotated[
        int | None,
        number_option(
            "--burst", "Simulate so many requests as well, pass by pass, with the host in line.", 1, 100_000, whole=True
        ),
    ] = None,
    request_rate: Annotated[
        float | None,
        number_option(
            "--request-rate", "With --burst: requests a second (Poisson); default: all at once.", LEAST, MOST
        ),
    ] = None,
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
    weights: Annotated[
        str | None,
        text_option("--weights", "bf16, fp8, int4, nvfp4 or mxfp4; default: what the config states, else bf16."),
    ] = None,
    kv_cache: Annotated[
        str | None, text_option("--kv-cache", "Number format of the KV cache: bf16 (default), fp8 or int4.")
    ] = None,
    kv_heads: KvHeads = None,
    vocab_size: Annotated[
        int | None,
        number_option(
            "--vocab-size",
            "With --n-params: rows of the embedding tables, as `plan` counts them; default: none.",
            2,
            whole=True,
        ),
    ] = None,
    sweep: Annotated[
        bool, Option("--sweep", help="All batches, GPU counts and number formats: dollars against time per token.")
    ] = False,
    sweep_batch: Annotated[
        str | None,
        text_option(
            "--sweep-batch",
            "With --sweep: caps of the batch, such as 1,8,64; default: 1, 2, 3, 4, 6, 8 .. to what fits.",
            "LIST",
        ),
    ] = None,
    sweep_weights: Annotated[
        str | None,
        text_option(
            "--sweep-weights",
            "With --sweep: such as bf16,fp8; default: bf16,fp8,int4, or what the config states.",
            "LIST",
        ),
    ] = None,
    sweep_kv_cache: Annotated[
        str | None, text_option("--sweep-kv-cache", "With --sweep: such as bf16,fp8, the default.", "LIST")
    ] = None,
    sweep_expert_parallel: Annotated[
        str | None,
        text_option(
            "--sweep-expert-parallel", "With --sweep: degrees, such as 1,2,4; default: --expert-parallel.", "LIST"
        ),
    ] = None,
    plot: Annotated[
        Path | None, file_option("--plot", "With --sweep: draw the points to this SVG, PDF or PNG file.")
    ] = None,
    output_table: Annotated[
        Path | None, file_option("--output-table", "With --sweep: write all points to this CSV, TSV or Parquet file.")
    ] = None,
    json_: Json = False,
) -> None:
    """Dollars per million output tokens of a served model, and the cheapest GPU count."""
    from moescale.hardware.gpus import measured_reserve_bytes
    from moescale.serving.gpu_counts import cost as serving_cost

    asked = {
        "--sweep-batch": sweep_batch, "--sweep-weights": sweep_weights, "--sweep-kv-cache": sweep_kv_cache,
        "--sweep-expert-parallel": sweep_expert_parallel, "--plot": plot, "--output-table": output_table,
    }  # fmt: skip
    if request_rate is not None and burst is None:
        raise InputError("goes with --burst", where="--request-rate", next_step="add --burst 500, or leave it out")
    if burst is not None and (sweep or replicas > 1 or trace is not None):
        raise InputError(
            "is of one model on one replica, with requests of one length", where="--burst",
            next_step="leave out --sweep and --replicas (each replica serves its share of the requests), and --trace "
            "(moescale.simulate takes a length for each request)",
        )  # fmt: skip
    if not sweep:
        _refuse_without_sweep(asked, gpu)
    else:
        check_plot(plot)
        check_table(output_table, [latency, trace])
    cards = [named_gpu(name) for name in (listed("--gpu", gpu) if sweep else [gpu])]
    card = cards[0]
    # A sweep looks at every batch that fits: a server's own cap binds only where it is stated.
    own_cap = None if sweep else float(card.default_max_num_seqs)
    cap = own_cap if max_num_seqs is None else parse_max_num_seqs(max_num_seqs)
    model, stated = _model(config, n_params, experts, top_k, kv_heads, vocab_size)
    price = stated_price(usd_per_gpu_hour, capital_usd_per_gpu, years, power_w, usd_per_kwh, pue)
    priced = sweep or price is not None or _has_price(card)
    if max_gpus < replicas:
        raise InputError(
            f"{max_gpus} GPUs are too few for {replicas} replicas", where="--max-gpus", nearest=f"{replicas}"
        )
    each = _of_one_replica("--gpus", gpus, replicas)
    traffic = traffic_of(prompt, output, trace)
    given = _one_of("weights", sweep_weights, weights) if sweep else weights
    formats = _weight_formats(stated, given, "--sweep-weights" if sweep_weights else "--weights", kv_cache)
    deployment = make_deployment(
        card, _template_price(cards, price) if sweep else price if priced else 1.0,
        weights=formats[0] if formats else "bf16",
        kv_cache="bf16" if kv_cache is None else kv_cache,
        prompt=traffic.prompt_tokens, output=traffic.output_tokens, traffic=traffic, max_num_seqs=cap,
        max_gpus=max_gpus // replicas if each is None else each, memory_fraction=memory_fraction,
        utilization=utilization, reserve_bytes=measured_reserve_bytes() if reserve is None else reserve,
        expert_parallel=expert_parallel, replicas=replicas, scheduling=scheduling, max_ttft_s=max_ttft,
        max_tpot_s=max_tpot, host=host,
    )  # fmt: skip
    if sweep:
        _sweep(
            model, cards, price, latency, deployment, traffic.source if trace is not None else None, each,
            batches=sweep_batch, weights=formats,
            kv_cache=_one_of("kv-cache", sweep_kv_cache, kv_cache),
            ways=_one_of("expert-parallel", sweep_expert_parallel, str(expert_parallel) if expert_parallel > 1 else None),
            plot=plot, output_table=output_table, json_=json_,
        )  # fmt: skip
        return
    source = latency_source(latency, deployment, model)
    if source.name.startswith("silicon") and float(deployment.weight_bytes_per_param) < LEAST_MEASURED_BYTES:
        warn(
            [
                "4-bit products and experts are not read from the measured kernels yet: bf16 kernels scaled by the roofline"
            ]
        )
    answer = serving_cost(model, source, deployment, each)
    run = None
    if burst is not None:
        run = _burst(model, source, deployment, answer.tensor_parallel or 1, burst, request_rate, host)
    if json_:
        held = {"weights": _weights_record(stated, formats, weights)}
        record = answer.to_dict() | held | ({} if run is None else {"burst": run.to_dict()})
        print_json(record if priced else _without_dollars(record))
        return
    from moescale.views.terminal import show_burst, show_cost, terminal

    own = formats[0].name if stated is not None and formats else None
    source_name = traffic.source if trace is not None else None
    show_cost(terminal(), answer, deployment, source_name, weights=own, priced=priced)
    if run is not None:
        show_burst(terminal(), run, host or "in-line", priced=priced)


def _has_price(card: Gpu) -> bool:
    """Whether an hour of the GPU has a price; a warning where it has none: everything but the dollars is answered."""
    from moescale.hardware.prices import usd_per_gpu_hour

    try:
        usd_per_gpu_hour(card)
    except InputError as error:
        warn([f"no dollars, because {error.what}; pass --usd-per-gpu-hour with what you pay"])
        return False
    return True


def _without_dollars(record: object) -> object:
    """The record without its dollars, also within its parts."""
    if isinstance(record, dict):
        parts = cast("dict[str, object]", record)
        return {name: _without_dollars(part) for name, part in parts.items() if not name.startswith("usd")}
    if isinstance(record, list):
        return [_without_dollars(part) for part in cast("list[object]", record)]
    return record


def _burst(
    model: Architecture, source: LatencySource, deployment: Deployment, gpus: int, n: int, rate: float | None,
    host: str | None,
) -> Run:  # fmt: skip
    """The same deployment under `n` requests, on one replica; the host in line unless --host says otherwise."""
    import math

    from moescale.latency import kernels_alone
    from moescale.serving.host import find_host
    from moescale.serving.simulator import Arrivals, simulate

    arrivals = Arrivals(n_requests=n, requests_per_s=math.inf if rate is None else rate)
    return simulate(
        model, kernels_alone(source), deployment, gpus, arrivals, overhead=find_host(host or "in-line"),
        prompt_tokens=float(round(float(deployment.prompt_tokens))),
        output_tokens=float(round(float(deployment.output_tokens))),
    )  # fmt: skip


def _refuse_without_sweep(asked: Mapping[str, object], gpu: str) -> None:
    for option, value in asked.items():
        if value is not None:
            raise InputError("goes with --sweep", where=option, next_step="add --sweep, or leave it out")
    if "," in gpu:
        raise InputError("several GPUs go with --sweep", where="--gpu", next_step="add --sweep, or name one")


def _one_of(name: str, several: str | None, one: str | None) -> str | None:
    """What a list option of the sweep states, or the one value of the option that `cost` has anyway."""
    if several is not None and one is not None:
        raise InputError(f"states what --{name} states, too", where=f"--sweep-{name}", next_step="give one of them")
    return one if several is None else several


def _template_price(cards: Sequence[Gpu], price: float | None) -> float:
    """The price in the deployment that the platforms of a sweep are made from, which put their own in its place."""
    if price is not None and len(cards) > 1:
        raise InputError(
            "states one price, but --gpu names several GPUs",
            where="--usd-per-gpu-hour",
            next_step="sweep one GPU at a time, or leave it out for the catalogue's prices",
        )
    return 1.0 if price is None else price


def _sweep(
    model: Architecture,
    cards: Sequence[Gpu],
    price: float | None,
    latency: str,
    deployment: Deployment,
    traffic: str | None,
    gpus: int | None,
    *,
    batches: str | None,
    weights: Sequence[Precision],
    kv_cache: str | None,
    ways: str | None,
    plot: Path | None,
    output_table: Path | None,
    json_: bool,
) -> None:
    """All operating points of `model`: printed, drawn and written."""
    from moescale.hardware.prices import price as catalogue_price
    from moescale.serving.operating_points import find_platforms, operating_points

    caps = None if batches is None else listed_counts("--sweep-batch", batches, MOST_BATCH)
    degrees = [1] if ways is None else listed_counts("--sweep-expert-parallel", ways, MOST)
    named = measured_on_one(latency)
    usual = ("bf16", "bf16") if named else (SWEPT_WEIGHTS, SERVER_CACHES)
    found = {
        "weights": weights or _found("weights", listed("--sweep-weights", usual[0]), "--sweep-weights"),
        "kv_cache": _found(
            "kv_cache", listed("--sweep-kv-cache", usual[1] if kv_cache is None else kv_cache), "--sweep-kv-cache"
        ),
    }
    for kind, formats in found.items():
        if named and len(formats) > 1:
            raise InputError(
                "a latency table was measured with one number format",
                where=f"--sweep-{kind.replace('_', '-')}",
                next_step="name that one, or take silicon or the roofline",
            )

    def price_of(card: Gpu) -> Callable[[], float]:
        return lambda: catalogue_price(card.name).usd_per_gpu_hour if price is None else price

    def platforms(source: str) -> tuple[tuple[Platform, ...], tuple[LeftOut, ...]]:
        return find_platforms(
            [(card, price_of(card)) for card in cards],
            found["weights"],
            found["kv_cache"],
            lambda d: latency_source(source, d, model),
            deployment,
        )

    # One source for all points: those of two would not compare.
    try:
        kinds, left_out = platforms("silicon" if latency == "auto" else latency)
    except MoescaleError as error:
        if latency != "auto":
            raise
        kinds, left_out = platforms("roofline")
        warn([f"roofline latency, because {error.what}"])
    points = operating_points(
        model,
        kinds,
        deployment,
        gpus=None if gpus is None else [gpus],
        batch_caps=caps,
        expert_parallel=degrees,
        left_out=left_out,
    )
    held_back = HeldBack()
    if output_table is not None:
        from moescale.runs.table import write_runs

        with held_back:
            write_runs(points.columns(), output_table)
    if plot is not None:
        from moescale.views.figures import save_figure, sweep_figure

        with held_back:
            save_figure(sweep_figure(points), plot)
    if json_:
        print_json(points.to_dict())
    else:
        from moescale.views.terminal import show_sweep, terminal

        show_sweep(terminal(), points, traffic)
    held_back.tell()


MOST_BATCH = 1e9
SWEPT_WEIGHTS = "bf16,fp8,int4"
SERVER_CACHES = "bf16,fp8"  # what vLLM's --kv-cache-dtype knows (docs.vllm.ai, quantized KV cache)


def listed(option: str, text: str) -> list[str]:
    """The names in a list with commas, each once."""
    names = [part.strip() for part in text.split(",")]
    if not all(names):
        raise InputError(f"{text!r} is not a list with commas", where=option, next_step="such as a,b,c, without gaps")
    return list(dict.fromkeys(name.lower() for name in names))


def listed_counts(option: str, text: str, most: float) -> list[int]:
    """The whole numbers in a list with commas, each once."""
    return [
        int(value)
        for value in dict.fromkeys(checked_quantity(option, part, 1, most, whole=True) for part in listed(option, text))
    ]


def measured_on_one(latency: str) -> bool:
    """Whether --latency is the path of a table, which knows one pair of number formats."""
    return latency not in ("auto", "roofline") and latency.partition(":")[0] != "silicon"


TABLE_SUFFIXES = (".csv", ".tsv", ".parquet")


def check_table(path: Path | None, inputs: Sequence[str | Path | None]) -> None:
    """Refuse a table that could not be written before the work that it would hold."""
    if path is None:
        return
    from moescale.io.files import check_target

    with at_option("--output-table"):
        if path.suffix.lower() not in TABLE_SUFFIXES:
            raise InputError(
                f"{path.suffix!r} is not a kind of table" if path.suffix else "the table's name has no suffix",
                where=f"--output-table {path}",
                nearest=f"{path.stem}.csv",
                next_step=f"end the name in {', '.join(TABLE_SUFFIXES)}",
            )
        check_target(path, inputs)


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


def _found(kind: str, names: Sequence[str], option: str) -> list[Precision]:
    from moescale.hardware.precisions import find_precision

    with at_option(option):
        return [find_precision(kind, name) for name in names]


def _weight_formats(
    stated: CheckpointWeights | None, asked: str | None, option: str, kv_cache: str | None
) -> list[Precision]:
    """The formats to price: those that are asked for, else the checkpoint's; none where neither says any.

    A format that is asked for by the checkpoint's name has the checkpoint's bytes, and another one is warned of.
    """
    from moescale.hardware.precisions import Precision

    several = option == "--sweep-weights"
    formats = [] if asked is None else _found("weights", listed(option, asked) if several else [asked], option)
    if stated is None:
        return formats
    if stated.kv_cache is not None and kv_cache is None:
        warn(
            [
                f"the checkpoint asks for an {stated.kv_cache} KV cache, which is an option here: --kv-cache {stated.kv_cache}"
            ]
        )
    if not formats:
        if stated.format is None:
            raise InputError(
                f"quantization_config {stated.stated}",
                where="--config",
                next_step="state the nearest format of the weights, such as --weights fp8",
            )
        warn(stated.remarks)
    elif stated.format is None:
        warn([f"quantization_config {stated.stated}; priced with {option} {asked}"])
    if stated.format is None or stated.bytes_per_param >= 2.0:
        return formats
    own = Precision(name=stated.format, bytes_per_element=stated.bytes_per_param, source=stated.stated, date="")
    other = [found.name for found in formats if found.name != own.name]
    if other:
        warn(
            [
                f"the checkpoint's weights are {own.name} ({own.source}); priced with {option} {', '.join(other)} instead, "
                "for the matrices that it quantises"
            ]
        )
    return [own if found.name == own.name else found for found in formats] or [own]


def _weights_record(
    stated: CheckpointWeights | None, formats: Sequence[Precision], asked: str | None
) -> dict[str, object]:
    """The format that was priced, and who says so."""
    name, held = (formats[0].name, formats[0].bytes_per_element) if formats else ("bf16", 2.0)
    record: dict[str, object] = {"format": name, "bytes_per_param": held}
    if asked is not None:
        record["source"] = "--weights"
    else:
        record["source"] = "default" if stated is None else stated.stated
    if stated is not None and asked is not None:
        record["checkpoint"] = stated.format or "not understood"
    return record


def _model(
    config: Path | None,
    n_params: float | None,
    experts: int | None,
    top_k: int | None,
    kv_heads: int | None,
    vocab_size: int | None,
) -> tuple[Architecture, CheckpointWeights | None]:
    """The model, and where a config states it, the format of its weights."""
    from moescale.models.family import architecture, find_family
    from moescale.models.hf_config import read_config
    from moescale.models.parameters import count_parameters
    from moescale.units import format_count

    if (config is None) == (n_params is None):
        raise InputError(
            "give the model either as --config CONFIG.json or as --n-params N with --experts E",
            next_step="for example --n-params 1.5B --experts 16",
        )
    if config is not None:
        stated = {"--experts": experts, "--top-k": top_k, "--kv-heads": kv_heads, "--vocab-size": vocab_size}
        for option, value in stated.items():
            if value is not None:
                raise InputError(
                    "goes with --n-params; a config states its own", where=option, next_step="leave it out"
                )
        checkpoint = read_config(config)
        warn(checkpoint.remarks)
        return checkpoint.architecture, checkpoint.weights
    assert n_params is not None
    count = experts or 1
    if top_k is not None and top_k > max(count, 2):
        warn([f"--top-k {top_k}: a token meets all {count} experts, there are no more"])
    family = replace(find_family("yun2024"), top_k=top_k or 2, kv_heads=kv_heads)
    model = architecture(family, n_params, float(count), vocab_size=vocab_size)
    if count == 1:
        return model, None
    # N leaves the experts' copies out: who states all parameters of a model as N gets many times the model meant.
    total = float(count_parameters(model).total)
    name = f"N = {format_count(n_params)} with {count} experts ({format_count(total)} parameters in all)"
    return replace(model, name=name), None
