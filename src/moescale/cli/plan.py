"""The commands on the decision: plan, compare-models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

from moescale.cli.options import Json, Plot, check_plot, command
from moescale.cli.output import HeldBack, answer, made_with, show_progress, typed, warn
from moescale.errors import UnwrittenError
from moescale.options.export import ExportOptions
from moescale.options.fields import at_option
from moescale.options.known import ComparedModels
from moescale.options.law import EVERY_SHAPE, PLANNED_SHAPE, LawOptions
from moescale.options.planned import PlanRequest
from moescale.options.question import BoundOptions
from moescale.options.serving import PLANNED_TPOT_S, ServingOptions
from moescale.options.training import TrainingOptions

PRESENTED = {"--details": 0, "--plot": 1, "--export": 1, "-o": 1}  # options of how an answer is shown: their values


@command(
    "moescale plan --budget 5.15e21",
    "moescale plan --budget 1e22 --gpu h100-sxm --match-experts 1 --max-tokens 2T",
    "moescale plan --budget 5.15e21 --lifetime-tokens 1T --train-gpu h100-sxm --mfu 0.35",
    "moescale plan --budget 5.15e21 --export megatron -o launch --train-gpu h100-sxm --train-gpus 64",
    top="budget train_gpus days budget_usd match objective law shape gpu max_gpus prompt output max_tpot lifetime_tokens",
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

    from moescale.views.terminal.plan import show_plan

    check_plot(plot)
    export.check()
    every = law.shape == EVERY_SHAPE
    chosen = (replace(law, shape=PLANNED_SHAPE) if every else law).find_law()
    deployment = serving.deployment(usual_tpot_s=PLANNED_TPOT_S, remark=warn)
    source = serving.open_latency(deployment, remark=warn)
    slow = every or bounds.lifetime_tokens is not None
    asked = PlanRequest(
        bounds=bounds,
        deployment=deployment,
        latency=source,
        details=law,
        kv_heads=serving.kv_heads,
        unpriced=export.export is not None,
        launch=export.launch(),
        slower=serving.max_tpot is None,
        beside_default=True,
        explained=details or json_ or plot is not None,
    )
    # A law from a file may be so steep that its loss overflows: no size is optimal there, which the plan says.
    with at_option("--budget"), np.errstate(over="ignore"), show_progress(slow and not json_) as progress:
        found = asked.plan(chosen, progress)
    held_back = HeldBack(UnwrittenError)
    if plot is not None:
        from moescale.views.figures import plan_figure

        held_back.draw(plot, plan_figure, found)
    exported = None
    with held_back.writing(), at_option("--export"):
        gpu = bounds.training_gpu(deployment)
        exported = export.write(found, gpu, bounds.train_gpus, bounds.mfu, deployment, source)
    record = {}
    if json_:
        named = [Path(text) for text in (law.law, serving.gpu, serving.latency, serving.trace) if text is not None]
        record = found.to_dict() | {"made_with": made_with(context, [path for path in named if path.is_file()])}
        record |= {} if exported is None else {"export": exported.to_dict()}
    answer(json_, record, show_plan, found, exported, details=details, options=typed(context, PRESENTED))
    warn(found.warnings)
    held_back.tell()


@command(
    "moescale compare-models llama-3.1-8b qwen3-30b-a3b --gpu h100-sxm --lifetime-tokens 5T",
    "moescale compare-models deepseek-v3 mixtral/config.json:15T --gpu h200-sxm --weights fp8",
    "moescale compare-models plan.json:recommendation plan.json:quality deepseek-v3 --gpu h200-sxm",
    top="models law gpu max_gpus prompt output trace lifetime_tokens train_gpu",
)
def compare_models(
    models: ComparedModels, law: LawOptions, serving: ServingOptions, training: TrainingOptions, json_: Json = False
) -> None:
    """Compare models: training, predicted loss, serving cost, and break-even lifetime."""
    from moescale.planning.compare_models import compare_models as compared
    from moescale.planning.question import release_notes
    from moescale.views.terminal.plan import show_compared_models

    chosen = law.find_law()
    deployment = serving.deployment(usual_tpot_s=PLANNED_TPOT_S, remark=warn)
    known = models.known(warn)
    if training.train_precision is not None:
        known = tuple(replace(model, trained_in=None) for model in known)
    price = training.training_price(deployment)
    source = serving.open_latency(deployment, remark=warn)
    life = training.lifetime_tokens
    how: dict[str, Any] = {"training": price, "train_gpus": training.train_gpus, "lifetime_tokens": life}
    with at_option("MODEL.."):
        rows = compared(known, chosen, deployment, source, extra=law.inputs(), **how)
    warn(release_notes(known, deployment))
    record = [row.to_dict() for row in rows]
    answer(json_, record, show_compared_models, rows, chosen, deployment, price, life, source.name)
