"""The command on models side by side: compare-models."""

from __future__ import annotations

from moescale.cli.flat import flat
from moescale.cli.options import Json, app, examples
from moescale.cli.output import print_json, warn
from moescale.options.fields import at_option
from moescale.options.known import ComparedModels
from moescale.options.law import LawOptions
from moescale.options.question import TrainingOptions
from moescale.options.serving import ServingOptions


@app.command(
    epilog=examples(
        "moescale compare-models llama-3.1-8b qwen3-30b-a3b --gpu h100-sxm --lifetime-tokens 5T",
        "moescale compare-models deepseek-v3 mixtral/config.json:15T --gpu h200-sxm --weights fp8",
        "moescale compare-models plan.json:recommendation plan.json:quality deepseek-v3 --gpu h200-sxm",
    )
)
@flat("models", "law", "gpu", "max_gpus", "prompt", "output", "trace", "lifetime_tokens", "train_gpu")
def compare_models(
    models: ComparedModels, law: LawOptions, serving: ServingOptions, training: TrainingOptions, json_: Json = False
) -> None:
    """Compare models: training, predicted loss, serving cost, and break-even lifetime."""
    from moescale.planning.compare_models import compare_models as compared
    from moescale.planning.question import release_notes
    from moescale.views.terminal.compared import show_compared_models
    from moescale.views.terminal.text import terminal

    chosen = law.find_law()
    deployment = serving.deployment(remark=warn)
    known = models.known(warn)
    price = training.training_price(deployment)
    source = serving.open_latency(deployment, remark=warn)
    with at_option("MODEL.."):
        rows = compared(
            known,
            chosen,
            deployment,
            source,
            training=price,
            train_gpus=training.train_gpus,
            lifetime_tokens=training.lifetime_tokens,
            extra=law.inputs(),
        )
    warn(release_notes(known, deployment))
    if json_:
        print_json([row.to_dict() for row in rows])
    else:
        show_compared_models(terminal(), rows, chosen, deployment, price, training.lifetime_tokens, source.name)
