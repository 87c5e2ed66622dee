"""The command on which runs to train before a plan: design."""

from __future__ import annotations

import importlib
import shlex
from dataclasses import fields
from typing import Any, TypeVar

import typer

from moescale.cli.flat import flat
from moescale.cli.options import Json, app, examples
from moescale.cli.output import HeldBack, print_json, show_progress, warn
from moescale.errors import InputError
from moescale.options.design import DesignOptions, PlanOptions
from moescale.options.fields import Group
from moescale.options.law import LawOptions
from moescale.options.serving import ServingOptions

G = TypeVar("G", bound=Group)


@app.command(
    epilog=examples(
        'moescale design --budget 1e21 --for "--budget 1e24 --gpu h100-sxm"',
        'moescale design --budget 1e21 --for "--budget 1e24 --gpu h100-sxm" --runs runs.csv --next 5',
        "moescale design --budget 1e21 --plan-budget 1e24 --gpu h100-sxm -o sweep.toml",
    ),
)
@flat(
    "flops",
    "for_",
    "runs",
    "next_",
    "sweep_file",
    then=("max_runs", "max_run_flops", "max_run_tokens", "min_params", "run_noise", "sequence_tokens"),
)
def design(
    context: typer.Context,
    wanted: DesignOptions,
    bounds: PlanOptions,
    law: LawOptions,
    serving: ServingOptions,
    details: bool = typer.Option(False, "--details", help="List every run."),
    json_: Json = False,
) -> None:
    """Choose the training runs that reduce the regret of a plan most, and write them as a sweep."""
    from moescale.export.sweep_file import write_sweep
    from moescale.io.files import check_target
    from moescale.planning.search import Search
    from moescale.views.terminal.runs import show_design
    from moescale.views.terminal.text import terminal

    flops = wanted.sweep_flops()
    if wanted.for_ is not None:
        bounds, law, serving = _planned(context, wanted.for_)
    bounds = bounds.after(flops, warn)
    if wanted.sweep_file is not None:
        check_target(wanted.sweep_file, [wanted.runs])
    chosen = law.find_law()
    deployment = serving.deployment(remark=warn)
    question = bounds.question(chosen, deployment, law, kv_heads=serving.kv_heads, unpriced=True)
    with show_progress(not json_) as report:
        if report is not None:
            report("price the models of the plan", 0.1)
        search = Search.of(chosen, question, deployment, serving.open_latency(deployment, remark=warn))
        if report is not None:
            report("choose runs", 0.6)
        found = wanted.design(search, warn)
    held_back = HeldBack()
    if wanted.sweep_file is not None:
        with held_back:
            write_sweep(found, search.law.family, wanted.sweep_file, wanted.sequence_tokens)
    if json_:
        print_json(found.to_dict() | ({} if wanted.sweep_file is None else {"sweep": str(wanted.sweep_file)}))
    else:
        show_design(terminal(), found, details=details, written=wanted.sweep_file)
    warn(found.notes)
    held_back.tell()


def _planned(context: typer.Context, text: str) -> tuple[PlanOptions, LawOptions, ServingOptions]:
    """The groups that the options of `plan` in a text state; InputError for one that `design` states as well."""
    own = {f.name for f in fields(DesignOptions)} | {"details", "json_"}
    for option in context.command.params:
        given = context.get_parameter_source(option.name)
        if option.name not in own and given and given.name == "COMMANDLINE":
            raise InputError("is an option of the plan", where=option.opts[0], next_step="put it into --for")
    importlib.import_module("moescale.cli.plan")  # puts `plan` into the application
    command = typer.main.get_group(app).commands["plan"]
    try:
        stated = command.make_context("plan", shlex.split(text)).params
    except ValueError as error:  # a quotation without an end
        raise InputError(
            f"{text!r} cannot be split: {error}", where="--for", next_step="close the quotation"
        ) from error
    except typer.TyperException as error:
        if error.__cause__ is not None:  # the parser of an option, which says what is wrong
            raise
        next_step = "`moescale plan --help` lists its options"
        raise InputError(error.format_message().rstrip("."), where="--for", next_step=next_step) from error
    return _group(PlanOptions, stated), _group(LawOptions, stated), _group(ServingOptions, stated)


def _group(kind: type[G], stated: dict[str, Any]) -> G:
    return kind(**{f.name: stated[f.name] for f in fields(kind) if f.name in stated})
