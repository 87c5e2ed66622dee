"""The command on the decision: plan."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from moescale.cli.flat import flat
from moescale.cli.options import Json, Plot, app, check_plot, examples
from moescale.cli.output import HeldBack, made_with, print_json, warn
from moescale.errors import UnwrittenError
from moescale.options.export import ExportOptions
from moescale.options.fields import at_option
from moescale.options.law import LawOptions
from moescale.options.question import BoundOptions
from moescale.options.serving import ServingOptions

if TYPE_CHECKING:
    from moescale.planning.plan import Plan

MOST_PLANS = 5  # that are made for days or dollars
NEAR = 0.02  # of them
OVER = 0.003  # share that a stated budget may be exceeded by: 10 days still print as 10


@app.command(
    epilog=examples(
        "moescale plan --budget 5.15e21",
        "moescale plan --budget 1e22 --gpu h100-sxm --match-experts 1 --max-tokens 2T",
        "moescale plan --budget 5.15e21 --lifetime-tokens 1T --train-gpu h100-sxm --mfu 0.35",
        "moescale plan --budget 5.15e21 --export megatron -o launch --train-gpu h100-sxm --train-gpus 64",
    ),
)
@flat(
    *(
        "budget",
        "train_gpus",
        "days",
        "budget_usd",
        "match",
        "objective",
        "law",
        "shape",
        "gpu",
        "max_gpus",
        "prompt",
        "output",
        "max_tpot",
        "lifetime_tokens",
    ),
)
def plan(
    context: typer.Context,
    bounds: BoundOptions,
    law: LawOptions,
    serving: ServingOptions,
    export: ExportOptions,
    details: Annotated[bool, Option("--details", help="Show all tables and caveats.")] = False,
    plot: Plot = None,
    frontier_plot: Annotated[
        bool, Option("--frontier-plot", help="Draw the curves as text, also outside a terminal.")
    ] = False,
    json_: Json = False,
) -> None:
    """Choose the model to train with a budget, by its loss and serving cost."""
    import numpy as np

    from moescale.planning.plan import make_plan, timed_as_exported
    from moescale.views.terminal import show_export, show_plan, terminal

    check_plot(plot)
    export.check()
    chosen = law.find_law()
    deployment = serving.deployment(remark=warn)
    question = bounds.question(chosen, deployment, law, kv_heads=serving.kv_heads, unpriced=export.export is not None)
    source = serving.open_latency(deployment, remark=warn)
    # A law from a file may be so steep that its loss overflows: no size is optimal there, which the plan says.
    with at_option("--budget"), np.errstate(over="ignore"):
        answer = make_plan(chosen, question, deployment, source)
        asked = partial(
            bounds.question, chosen, deployment, law, kv_heads=serving.kv_heads, unpriced=question.training is None
        )
        answer = _within(bounds, answer, lambda mfu: make_plan(chosen, asked(buys_at=mfu), deployment, source))
    held_back = HeldBack(UnwrittenError)
    if plot is not None:
        from moescale.views.figures import plan_figure

        held_back.draw(plot, plan_figure, answer)
    exported = None
    with held_back, at_option("--export"):
        gpu = bounds.training_gpu(deployment)
        exported = export.write(answer, gpu, bounds.train_gpus, bounds.mfu, deployment, source)
    if exported is not None and bounds.mfu is None:
        answer = timed_as_exported(answer, exported.choice.days, exported.choice.split.gpus)
    if json_:
        named = [Path(text) for text in (law.law, serving.gpu, serving.latency, serving.trace) if text is not None]
        record = answer.to_dict() | {"made_with": made_with(context, [path for path in named if path.is_file()])}
        print_json(record if exported is None else record | {"export": exported.to_dict()})
    else:
        show_plan(terminal(), answer, details=details, chart=frontier_plot or None)
        if exported is not None:
            show_export(terminal(), exported)
    warn(answer.warnings)
    held_back.tell()


def _within(bounds: BoundOptions, answer: Plan, at_mfu: Callable[[float], Plan]) -> Plan:
    """The plan whose model takes the days or dollars that were stated: what they buy depends on the model that they are spent on.

    Shapes jump with the budget, and the MFU with them: of a few plans the largest that stays within what was stated.
    """
    found: list[tuple[float, Plan]] = []
    bought: float | None = None  # the MFU that the budget was bought at
    for _ in range(MOST_PLANS):
        use, ratio = answer.training, bounds.taken_over_asked(answer.training)
        if ratio is None or use is None or use.mfu is None or answer.lifetime is not None:
            return answer
        found.append((ratio, answer))
        if -NEAR < ratio - 1.0 < OVER or (ratio < 1.0 and answer.budget_flops == bounds.budget):
            return answer
        bought = use.mfu if bought is None else math.sqrt(bought * use.mfu)
        answer = at_mfu(bought)
    within = [each for each in found if each[0] <= 1.0 + OVER]
    return max(within, key=lambda each: each[0])[1] if within else min(found, key=lambda each: each[0])[1]
