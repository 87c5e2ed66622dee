"""The commands on serving: cost, and models, those that it knows by name."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from moescale.cli.flat import flat
from moescale.cli.options import Json, app, examples
from moescale.cli.output import print_json, warn
from moescale.errors import InputError
from moescale.options.cost import (
    CostServingOptions,
    LaunchOptions,
    LoadOptions,
    ModelOptions,
    asked_by,
    trace_lengths,
)
from moescale.options.missed_limits import missed_by_error


@app.command(
    epilog=examples(
        "moescale cost llama-3.1-8b --gpu h100-sxm --prompt 512 --output 256",
        "moescale cost --config mixtral/config.json --gpu h100-sxm --prompt 512 --output 256",
        "moescale cost --n-params 1.5B --experts 16 --gpu a100-sxm-80gb --max-num-seqs none",
        "moescale cost --config mixtral/config.json --gpu h100-sxm --weights fp8 --gpus 8 --replicas 4 --max-tpot 30ms",
        "moescale cost --config mixtral/config.json --trace requests.csv --scheduling chunked --latency roofline",
        "moescale cost --config mixtral/config.json --gpu h100-sxm --gpus 2 --prompt 512 --output 256 --burst 500",
        "moescale cost llama-3.1-70b --gpu h100-sxm --weights fp8 --launch vllm",
        "moescale cost llama-3.1-8b --gpu h100-sxm --prompt 1024 --output 1024 --concurrency 64",
        "moescale cost llama-3.1-8b --gpu h100-sxm --request-rate 100 --max-ttft 500ms --max-tpot 25ms --percentile 99",
        "moescale cost deepseek-v3 --gpu h200-sxm --weights fp8 --prompt 4000 --output 1000 --prefill-gpus auto",
    )
)
@flat(
    "published config n_params experts gpu max_gpus gpus prompt output max_ttft max_tpot weights",
    "concurrency",
    then="top_k vocab_size replicas expert_parallel trace",
)
def cost(
    described: ModelOptions,
    load: LoadOptions,
    serving: CostServingOptions,
    launch: LaunchOptions,
    json_: Json = False,
) -> None:
    """Serving cost of a model in dollars per million output tokens, and the cheapest GPU count."""
    from moescale.latency.silicon import Silicon
    from moescale.models.quantisation import with_usual_shares
    from moescale.serving.accuracy import Accuracy, accuracy_of, calibrated, uncompared
    from moescale.serving.deployment import Deployment
    from moescale.serving.gpu_counts import Cost, laid_out
    from moescale.serving.gpu_counts import cost as serving_cost
    from moescale.serving.loads import OpenLoop
    from moescale.serving.question import latency_text, question_record, weight_format
    from moescale.views.terminal.serving import show_cost, show_loads, show_warnings
    from moescale.views.terminal.text import terminal

    load.check(serving)
    launch.check()
    model, checkpoint = described.model(serving.kv_heads, warn)
    source_of_traffic = None if serving.trace is None else serving.traffic().source
    priced = serving.has_price(warn)
    formats = serving.weight_formats(checkpoint, remark=warn)
    if len(formats) > 1:
        raise InputError("one format is priced at a time", where="--weights", next_step="ask once for each")
    deployment = serving.deployment(
        weights=formats[0] if formats else None, usd_per_gpu_hour=None if priced else 1.0, remark=warn
    )
    model = with_usual_shares(model, deployment.weights)
    source = serving.open_latency(deployment, model, warn)
    if isinstance(source, Silicon) and (scaled := source.unmeasured(model)):
        what = f"{' and '.join(scaled)} in {weight_format(deployment)} were not measured on {source.gpu.name} with {source.backend}"
        warn(f"{what}: priced with bf16 kernels, scaled by the roofline")
    clients = load.concurrency

    def answered(asked: Deployment) -> Cost:
        with asked_by("--concurrency"):
            return serving_cost(
                model, source, asked, serving.gpus_of_replica(),
                clients=clients, lengths=trace_lengths(serving), more_replicas=serving.replicas is None,
            )  # fmt: skip

    def again(asked: Deployment) -> tuple[Cost, OpenLoop | None, Accuracy | None]:
        one = answered(asked)
        own = laid_out(replace(asked, replicas=float(one.replicas or 1)), one.attention_dp)
        at_rate = load.open_loop(model, source, own, serving, one.gpus_per_replica)
        return one, at_rate, accuracy_of(model, own, source)

    answer, searched = answered(deployment), deployment
    deployment = replace(deployment, replicas=float(answer.replicas or 1))
    apart = serving.apart(model, source, deployment)
    deployment = laid_out(deployment, answer.attention_dp)
    accuracy = accuracy_of(model, deployment, source)
    of_apart = None
    if apart is not None:
        decoding = replace(deployment, attention_dp=float(apart.decode.attention_dp))
        of_apart = accuracy_of(model, decoding, source, apart=True)
    loop = answer.closed_loop
    corrected = calibrated(answer.usd_per_mtok if loop is None else loop.usd_per_mtok, accuracy)
    line = launch.line(described, answer, deployment, checkpoint, source, warn)
    gpus = answer.gpus_per_replica
    opened = load.open_loop(model, source, deployment, serving, gpus)
    run = load.run(model, source, deployment, serving, gpus)
    warnings = serving.slow(deployment, answer, opened, apart)
    missed = missed_by_error(answer, opened, accuracy, searched, again)
    if json_:
        asked = {"question": question_record(model, deployment, source)}
        record = asked | answer.to_dict() | {"weights": serving.weights_record(checkpoint, formats)}
        parts: dict[str, object] = {"open_loop": opened and opened.to_dict()}
        parts |= {"disaggregated": apart and apart.to_dict() | ({"accuracy": of_apart.to_dict()} if of_apart else {})}
        parts |= {"warnings": warnings}
        record |= {name: part for name, part in parts.items() if part}
        record |= {} if run is None else {"burst": run.to_dict()}
        record |= {} if accuracy is None else {"accuracy": accuracy.to_dict()}
        record |= {} if corrected is None else {"calibrated": corrected.to_dict()}
        record |= {} if missed is None else {"limits_missed_by_error": missed.times_s}
        record |= {"limits_kept_by_error": missed.kept.to_dict()} if missed and missed.kept else {}
        record |= {} if line is None else {"launch": line}
        print_json(record if priced else _without_dollars(record))
        return
    show_warnings(terminal(), warnings)
    show_cost(
        terminal(),
        answer,
        deployment,
        source_of_traffic,
        name=None if described.published is None else model.name,
        weights=serving.released_words(checkpoint, published=described.published is not None),
        price=serving.price_terms() if priced else None,
        latency=latency_text(source),
        priced=priced,
        accuracy=accuracy,
        corrected=corrected if serving.calibrated and priced else None,
        kind=uncompared(model, deployment, source),
        opened=opened,
        missed=missed,
    )
    show_loads(
        terminal(), deployment.gpu.name,
        closed=answer.closed_loop, opened=opened, apart=apart, apart_accuracy=of_apart, burst=run, host=serving.host,
        priced=priced,
    )  # fmt: skip
    if line is not None:
        print(f"\n{line}")


@app.command(epilog=examples("moescale models --json"))
@flat()
def models(json_: Json = False) -> None:
    """List the published models that `cost` knows by name."""
    from moescale.models.published import published_shapes
    from moescale.views.terminal.serving import show_models
    from moescale.views.terminal.text import terminal

    known = list(published_shapes().values())
    if json_:
        print_json([shape.to_dict() for shape in known])
    else:
        show_models(terminal(), known)


def _without_dollars(record: object) -> object:
    if isinstance(record, dict):
        parts = cast("dict[str, object]", record)
        return {name: _without_dollars(part) for name, part in parts.items() if not name.startswith("usd")}
    if isinstance(record, list):
        return [_without_dollars(part) for part in cast("list[object]", record)]
    return record
