"""The commands on serving: cost, and models, those that it knows by name."""

from __future__ import annotations

from dataclasses import replace

from moescale.cli.options import Json, command
from moescale.cli.output import answer, warn
from moescale.options.cost import CostServingOptions, LoadOptions, ModelOptions, asked_by
from moescale.options.priced import Priced, Server, missed_by_error


@command(
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
    top="published config n_params experts gpu max_gpus gpus prompt output max_ttft max_tpot weights concurrency launch",
    then="top_k vocab_size replicas expert_parallel trace",
)
def cost(described: ModelOptions, load: LoadOptions, serving: CostServingOptions, json_: Json = False) -> None:
    """Serving cost of a model in dollars per million output tokens, and the cheapest GPU count."""
    from moescale.latency.silicon import Silicon
    from moescale.models.quantisation import with_usual_shares
    from moescale.serving.accuracy import accuracy_of
    from moescale.serving.deployment import Deployment
    from moescale.serving.gpu_counts import cost as serving_cost
    from moescale.serving.gpu_counts import laid_out
    from moescale.serving.question import weight_format
    from moescale.views.terminal.serving import show_cost

    load.check(serving)
    model, checkpoint = described.model(serving.kv_heads, warn)
    has_price = serving.has_price(warn)
    weights = serving.weight_format(checkpoint, warn)
    deployment = serving.deployment(weights=weights, usd_per_gpu_hour=None if has_price else 1.0, remark=warn)
    model = with_usual_shares(model, deployment.weights)
    source = serving.open_latency(deployment, model, warn)
    if isinstance(source, Silicon) and (scaled := source.unmeasured(model)):
        what = f"{' and '.join(scaled)} in {weight_format(deployment)} were not measured on {source.gpu.name} with {source.backend}"
        warn(f"{what}: priced with bf16 kernels, scaled by the roofline")

    def served(asked: Deployment) -> Server:
        with asked_by("--concurrency"):
            found = serving_cost(
                model, source, asked, serving.gpus_of_replica(),
                clients=load.concurrency, lengths=serving.lengths(), percentile=load.percentile,
                more_replicas=serving.replicas is None,
            )  # fmt: skip
        own = laid_out(replace(asked, replicas=float(found.replicas or 1)), found.attention_dp)
        opened = load.open_loop(model, source, own, serving, found.gpus_per_replica)
        return Server(cost=found, deployment=own, opened=opened, accuracy=accuracy_of(model, own, source))

    server = served(deployment)
    apart_accuracy, replicas = None, float(server.cost.replicas or 1)
    if (apart := serving.apart(model, source, replace(deployment, replicas=replicas))) is not None:
        decoding = replace(server.deployment, attention_dp=float(apart.decode.attention_dp))
        apart_accuracy = accuracy_of(model, decoding, source, apart=True)
    found = Priced(
        model=model,
        published=described.published is not None,
        checkpoint=checkpoint,
        weights=weights,
        source=source,
        serving=serving,
        has_price=has_price,
        server=server,
        launch=serving.launch_line(described, server.cost, server.deployment, checkpoint, source, warn),
        apart=apart,
        apart_accuracy=apart_accuracy,
        burst=load.simulated(model, source, server.deployment, serving, server.cost.gpus_per_replica),
        missed=missed_by_error(server, deployment, served),
    )
    answer(json_, found.to_dict(), show_cost, found)


@command("moescale models --json")
def models(json_: Json = False) -> None:
    """List the published models that `cost` knows by name."""
    from moescale.models.published import published_shapes
    from moescale.views.terminal.serving import show_models

    known = list(published_shapes().values())
    answer(json_, [shape.to_dict() for shape in known], show_models, known)
