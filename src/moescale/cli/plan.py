"""The commands on the decision: plan, compare-models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

from moescale.cli.flat import flat
from moescale.cli.options import Json, Plot, app, check_plot, examples
from moescale.cli.output import HeldBack, made_with, print_json, show_progress, typed, warn
from moescale.errors import UnwrittenError
from moescale.options.export import ExportOptions
from moescale.options.fields import at_option
from moescale.options.known import ComparedModels
from moescale.options.law import EVERY_SHAPE, PLANNED_SHAPE, LawOptions
from moescale.options.planned import plan_of, plan_of_shapes, shapes_to_compare
from moescale.options.question import BoundOptions
from moescale.options.serving import PLANNED_TPOT_S, ServingOptions
from moescale.options.training import TrainingOptions

PRESENTED = {
    "--details": 0,
    "--plot": 1,
    "--export": 1,
    "-o": 1,
}  # options that say how an answer is shown: their values


@app.command(
    epilog=examples(
        "moescale plan --budget 5.15e21",
        "moescale plan --budget 1e22 --gpu h100-sxm --match-experts 1 --max-tokens 2T",
        "moescale plan --budget 5.15e21 --lifetime-tokens 1T --train-gpu h100-sxm --mfu 0.35",
        "moescale plan --budget 5.15e21 --export megatron -o launch --train-gpu h100-sxm --train-gpus 64",
    )
)
@flat(
    "budget train_gpus days budget_usd match objective law shape gpu max_gpus prompt output max_tpot", "lifetime_tokens"
)
def plan(
    context: typer.Context,
    bounds: BoundOptions,
    law: LawOptions,
    serving: ServingOptions,
    export: ExportOptions,
    details: Annotated[bool, Option("--details", help="Show all tables and caveats.")] = False,
    plot: Plot = None,
    json_: Json = False,
) -> None:
    """Choose the model to train with a budget, by its loss and serving cost."""
    import numpy as np

    from moescale.views.terminal.plan import show_export, show_plan
    from moescale.views.terminal.text import terminal

    check_plot(plot)
    export.check()
    every = law.shape == EVERY_SHAPE
    chosen = (replace(law, shape=PLANNED_SHAPE) if every else law).find_law()
    deployment = serving.deployment(usual_tpot_s=PLANNED_TPOT_S, remark=warn)
    source = serving.open_latency(deployment, remark=warn)
    slow = every or bounds.lifetime_tokens is not None
    # A law from a file may be so steep that its loss overflows: no size is optimal there, which the plan says.
    with at_option("--budget"), np.errstate(over="ignore"), show_progress(slow and not json_) as progress:
        how: dict[str, Any] = {
            "details": law,
            "kv_heads": serving.kv_heads,
            "unpriced": export.export is not None,
            "launch": export.launch(),
            "slower": serving.max_tpot is None,
            "beside_default": True,
            "explained": details or json_ or plot is not None,
        }
        if shapes := shapes_to_compare(bounds, chosen, law, serving.kv_heads):
            answer = plan_of_shapes(shapes, bounds, chosen, deployment, source, progress=progress, **how)
        else:
            if progress is not None:
                progress("train and serve models of every size", 0.1)
            answer = plan_of(bounds, chosen, deployment, source, **how)
    held_back = HeldBack(UnwrittenError)
    if plot is not None:
        from moescale.views.figures import plan_figure

        held_back.draw(plot, plan_figure, answer)
    exported = None
    with held_back, at_option("--export"):
        gpu = bounds.training_gpu(deployment)
        exported = export.write(answer, gpu, bounds.train_gpus, bounds.mfu, deployment, source)
    if json_:
        named = [Path(text) for text in (law.law, serving.gpu, serving.latency, serving.trace) if text is not None]
        record = answer.to_dict() | {"made_with": made_with(context, [path for path in named if path.is_file()])}
        print_json(record if exported is None else record | {"export": exported.to_dict()})
    else:
        show_plan(terminal(), answer, details=details, options=typed(context, PRESENTED))
        if exported is not None:
            show_export(terminal(), exported)
    warn(answer.warnings)
    held_back.tell()


@app.command(
    epilog=examples(
        "moescale compare-models llama-3.1-8b qwen3-30b-a3b --gpu h100-sxm --lifetime-tokens 5T",
        "moescale compare-models deepseek-v3 mixtral/config.json:15T --gpu h200-sxm --weights fp8",
        "moescale compare-models plan.json:recommendation plan.json:quality deepseek-v3 --gpu h200-sxm",
    )
)
@flat("models law gpu max_gpus prompt output trace lifetime_tokens train_gpu")
def compare_models(
    models: ComparedModels, law: LawOptions, serving: ServingOptions, training: TrainingOptions, json_: Json = False
) -> None:
    """Compare models: training, predicted loss, serving cost, and break-even lifetime."""
    from moescale.planning.compare_models import compare_models as compared
    from moescale.planning.question import release_notes
    from moescale.views.terminal.plan import show_compared_models
    from moescale.views.terminal.text import terminal

    chosen = law.find_law()
    deployment = serving.deployment(usual_tpot_s=PLANNED_TPOT_S, remark=warn)
    known = models.known(warn)
    if training.train_precision is not None:
        known = tuple(replace(model, trained_in=None) for model in known)
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
