"""The commands on a decision and its price: plan, compare-models, cost, models, web, report."""

from __future__ import annotations

import importlib.util
import secrets
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from moescale.bounds import SEQUENCE_TOKENS, SHARE
from moescale.cli.options import JSON, PLOT, command
from moescale.cli.output import answer, held_back, made_with, say, show_progress, tell, typed, warn
from moescale.errors import InputError, UnwrittenError, install, located
from moescale.options.cost import CostServingOptions, LoadOptions, ModelOptions
from moescale.options.fields import Group, at_option, flag, path, quantity, refuse, text
from moescale.options.law import EVERY_SHAPE, PLANNED_SHAPE, LawOptions
from moescale.options.question import BoundOptions, TrainingOptions
from moescale.options.serving import PLANNED_TPOT_S, ServingOptions

if TYPE_CHECKING:
    from moescale.training.choice import Launch

OF_RUN = ("peak_lr", "batch_tokens", "sequence_tokens", "schedule")  # of a launch by the option's own name


@dataclass(frozen=True, kw_only=True)
class ExportOptions(Group):
    """The format and folder of an export, and how the run that it starts trains."""

    HEADING = "Export for training"

    export: str | None = text("Write files to train the model: hf, torchtitan or megatron.", metavar="FORMAT")
    export_folder: Path | None = path("With --export: folder to write.", name="-o")
    recipe: str | None = text("With --export: recipe (deepseek, paper or step-law); default: deepseek.")
    schedule: str | None = text("With --export: cosine or wsd (constant, then decay); default: cosine.")
    batch_tokens: float | None = quantity("With --export: tokens per step; default: the recipe's.", 1, 1e12)
    sequence_tokens: int | None = quantity("With --export: sequence length; default: the recipe's.", SEQUENCE_TOKENS)
    peak_lr: float | None = quantity("With --export: peak learning rate; default: the recipe's.", SHARE)

    def launch(self) -> Launch | None:
        """How the run that is written is launched; None without a format. InputError for what does not go together."""
        if self.export is None:
            others = [field.name for field in fields(self) if field.name != "export"]
            refuse(self, others, "goes with --export only", "add --export hf|torchtitan|megatron")
            return None
        if self.export_folder is None:
            raise InputError("needs a folder", where="--export", next_step="add -o FOLDER")
        from moescale.export.launch import check_export
        from moescale.export.trainers import FORMATS
        from moescale.models.recipe import SCHEDULES, check_schedule, find_rule
        from moescale.training.choice import Launch

        check_export(self.export, self.export_folder)
        find_rule(self.recipe, where="--recipe")
        check_schedule(self.schedule or SCHEDULES[0], where="--schedule")
        same: dict[str, Any] = {name: getattr(self, name) for name in OF_RUN}
        return Launch(trainer=FORMATS[self.export], rule=self.recipe, **same)


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
    details: bool = flag("Show all tables and caveats."),
    plot: Path | None = PLOT,
    json_: bool = JSON,
) -> None:
    """Choose the model to train with a budget, by its loss and serving cost."""
    import numpy as np

    from moescale.options.planned import PlanRequest
    from moescale.views.figures import check_plot, plan_figure, save_figure
    from moescale.views.terminal.plan import show_plan

    with at_option("--plot"):
        if plot is not None:
            check_plot(plot)
    launch = export.launch()
    every = law.shape == EVERY_SHAPE
    chosen = (replace(law, shape=PLANNED_SHAPE) if every else law).find_law()
    slow, explained = every or bounds.lifetime_tokens is not None, details or json_ or plot is not None
    how: dict[str, Any] = {"launch": launch, "explained": explained, "beside_default": True}
    asked = PlanRequest.of(bounds, law, serving, warn, **how)
    # A law from a file may be so steep that its loss overflows: no size is optimal there, which the plan says.
    with at_option("--budget"), np.errstate(over="ignore"), show_progress(slow and not json_) as progress:
        found = asked.plan(chosen, progress)
    exported, unwritten = None, list[InputError]()
    if plot is not None:
        with held_back(unwritten, UnwrittenError):
            save_figure(plan_figure(found), plot)
    with held_back(unwritten, UnwrittenError), at_option("--export"):
        if export.export is not None and export.export_folder is not None:
            exported = asked.export(found, export.export, export.export_folder)
    record = {}
    if json_:
        read = (law.law, serving.gpu, serving.latency, serving.trace)
        record = found.to_dict() | {"made_with": made_with(context, read)}
        record |= {} if exported is None else {"export": exported.to_dict()}
    options = " ".join((typed(context), found.wider_options or "")).strip()
    answer(json_, record, show_plan, found, exported, details=details, options=options)
    warn(found.warnings)
    tell(unwritten)


@command(
    "moescale compare-models llama-3.1-8b qwen3-30b-a3b --gpu h100-sxm --lifetime-tokens 5T",
    "moescale compare-models deepseek-v3 mixtral/config.json:15T --gpu h200-sxm --weights fp8",
    "moescale compare-models plan.json:recommendation plan.json:lower-loss deepseek-v3 --gpu h200-sxm",
    top="models law gpu max_gpus prompt output trace lifetime_tokens train_gpu",
)
def compare_models(
    law: LawOptions,
    serving: ServingOptions,
    training: TrainingOptions,
    models: list[str] | None = text("Names, config.json:15T (its tokens), or rows as plan.json:knee.", name="MODEL.."),
    json_: bool = JSON,
) -> None:
    """Compare models: training, predicted loss, serving cost, and break-even lifetime."""
    from moescale.options.known import stated_model
    from moescale.planning.compare_models import compare_models as compared
    from moescale.planning.question import release_notes
    from moescale.views.terminal.plan import show_compared_models

    chosen = law.find_law()
    deployment = serving.deployment(usual_tpot_s=PLANNED_TPOT_S, remark=warn)
    known = [stated_model(stated, "MODEL..", warn) for stated in models or ()]
    if training.train_precision is not None:
        known = [replace(model, trained_in=None) for model in known]
    price = training.training_price(deployment)
    source = serving.open_latency(deployment, remark=warn)
    life = training.lifetime_tokens
    how: dict[str, Any] = {"training": price, "train_gpus": training.train_gpus, "extra": law.inputs()}
    with at_option("MODEL.."):
        rows = compared(known, chosen, deployment, source, lifetime_tokens=life, **how)
    warn(release_notes(known, deployment))
    record = [row.to_dict() for row in rows]
    answer(json_, record, show_compared_models, rows, chosen, deployment, price, life, source.name)


@command(
    "moescale cost llama-3.1-8b --gpu h100-sxm --prompt 512 --output 256",
    "moescale cost --config mixtral/config.json --gpu h100-sxm --prompt 512 --output 256",
    "moescale cost --config mixtral/config.json --gpu h100-sxm --weights fp8 --gpus 8 --replicas 4 --max-tpot 30ms",
    "moescale cost --config mixtral/config.json --trace requests.csv --scheduling chunked --latency roofline",
    "moescale cost llama-3.1-70b --gpu h100-sxm --weights fp8 --launch vllm",
    "moescale cost llama-3.1-8b --gpu h100-sxm --request-rate 100 --max-ttft 500ms --max-tpot 25ms --percentile 99",
    "moescale cost deepseek-v3 --gpu h200-sxm --weights fp8 --prompt 4000 --output 1000 --prefill-gpus auto",
    top="published config n_params experts gpu max_gpus gpus prompt output max_ttft max_tpot weights concurrency launch",
)
def cost(described: ModelOptions, load: LoadOptions, serving: CostServingOptions, json_: bool = JSON) -> None:
    """Serving cost of a model in dollars per million output tokens, and the cheapest GPU count."""
    from moescale.options.priced import price
    from moescale.views.terminal.serving import show_cost

    with show_progress(load.concurrency is not None and not json_) as progress:
        found = price(described, load, serving, warn, progress)
    answer(json_, found.to_dict(), show_cost, found)


@command("moescale models --json")
def models(json_: bool = JSON) -> None:
    """List the published models that `cost` knows by name."""
    from moescale.models.published import published_shapes
    from moescale.views.terminal.serving import show_models

    known = list(published_shapes().values())
    answer(json_, [shape.to_dict() for shape in known], show_models, known)


@command("moescale web", "moescale web --port 8600 --no-open --law law.toml")
def web(
    port: int = quantity("Port to listen on; 0: any free one.", 0, 65535, default=8501, whole=True),
    open_: bool = flag("Open the page in a browser.", name="--open/--no-open", default=True),
    law: Path | None = path("Law file that `fit -o` wrote, as the default law."),
) -> None:
    """Serve the interactive page on this machine: inputs, curves, uploads."""
    if missing := [name for name in ("fastapi", "uvicorn") if importlib.util.find_spec(name) is None]:
        raise InputError(f"the page needs {' and '.join(missing)}", next_step=install("web"))
    from moescale.io.files import read_text
    from moescale.web.app import ADDRESS, create_app, listen, serve

    with located("--law"):
        text_of_law = None if law is None else read_text(law)
    with listen(port) as bound:
        bound_port, token = int(bound.getsockname()[1]), secrets.token_urlsafe(16)
        address = f"http://{ADDRESS}:{bound_port}/?token={token}"
        page = create_app(bound_port, token, law_text=text_of_law, law_name=str(law))
        say(f"moescale: {address} (Ctrl-C ends it)")
        serve(page, bound, open_url=address if open_ else None)


@command("moescale report plan.json -o plan.html")
def report(
    source: Path = path("A plan (plan --json).", name="ANSWER", default=MISSING),
    output: Path = path("Write the report to this HTML file.", name="-o", default=MISSING),
) -> None:
    """Write a plan as one HTML file: a plain page, then its tables and figure."""
    from moescale import __version__
    from moescale.io.files import as_text, check_target, write_atomically
    from moescale.views.html import NO_FIGURE, plan_report, read_plan

    with located("-o"):
        check_target(output, [source])
    found, origin = read_plan(source)
    page = plan_report(found, replace(origin, version=__version__))
    if importlib.util.find_spec("matplotlib") is None:
        warn(NO_FIGURE)
    with located("-o"):
        write_atomically(output, as_text(page))
    say(f"wrote {output}")
