"""The command on sweeps to come: design."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import typer

from moescale.bounds import FLOPS, PARAMETERS, SHARE, TOKENS
from moescale.cli.options import Json, command
from moescale.cli.output import HeldBack, answer, show_progress, warn
from moescale.errors import InputError
from moescale.options.fields import SEQUENCE_TOKENS, Group, path, quantity
from moescale.options.law import LawOptions, shape_name
from moescale.options.planned import PlanRequest
from moescale.options.question import BoundOptions
from moescale.options.runs import TableOptions
from moescale.options.serving import PLANNED_TPOT_S, ServingOptions

BUDGETS = 100.0  # a plan's FLOPs over those of its sweep, where none is stated: our own
MOST_STATED = 1000  # runs


@dataclass(frozen=True, kw_only=True)
class DesignOptions(Group):
    """What a sweep may take, and what is known before it."""

    HEADING = "Limits of the sweep"

    flops: float | None = quantity(
        "Training FLOPs of the whole sweep, such as 1e21.", 1e-12, FLOPS.most, name="--budget"
    )
    runs: Path | None = path("Table of finished runs, as `fit` reads it.")
    next_: int | None = quantity("Number of further runs.", 1, MOST_STATED, whole=True)
    max_runs: int | None = quantity("Most runs; default 60.", 1, MOST_STATED, whole=True)
    max_run_flops: float | None = quantity(
        "Most FLOPs of one run; default: a quarter of the sweep's.", 1e-12, FLOPS.most
    )
    max_run_tokens: float | None = quantity("Most tokens of one run.", TOKENS)
    min_params: float | None = quantity("Least N of one run; default 1M.", 1e3, PARAMETERS.most, unit="parameters")
    run_noise: float | None = quantity("Standard deviation of ln loss between seeds; default 0.003.", SHARE)
    sequence_tokens: int | None = quantity("Sequence length in tokens; default 2,048.", SEQUENCE_TOKENS)
    sweep_file: Path | None = path("Write SWEEP.toml for `moescale sweep`.", name="-o")


@dataclass(frozen=True, kw_only=True)
class PlanOptions(BoundOptions):
    """The question of a plan beside the sweep's own budget."""

    budget: float | None = quantity(
        "Training FLOPs of the planned model; default: 100 times the sweep's.", 0, float("inf"), name="--plan-budget"
    )


@command(
    "moescale design --budget 1e21 --plan-budget 1e24 --gpu h100-sxm",
    "moescale design --budget 1e21 --plan-budget 1e24 --gpu h100-sxm --runs runs.csv --next 5",
    "moescale design --budget 1e21 --plan-budget 1e24 --gpu h100-sxm -o sweep.toml",
    top="flops runs next_ sweep_file",
    then="max_runs max_run_flops max_run_tokens min_params run_noise sequence_tokens",
)
def design(
    wanted: DesignOptions,
    bounds: PlanOptions,
    law: LawOptions,
    serving: ServingOptions,
    details: bool = typer.Option(False, "--details", help="List every run."),
    json_: Json = False,
) -> None:
    """Choose the training runs that reduce the regret of a plan most, and write them as a sweep."""
    from moescale.export.trainers import check_family, unbuilt, write_sweep
    from moescale.io.files import check_target
    from moescale.models.recipe import defaults
    from moescale.planning.gaussian_process import RUN_NOISE
    from moescale.planning.sweep_design import LEAST_PARAMS, MOST_RUNS, SweepLimits, design_sweep, in_letters
    from moescale.views.terminal.runs import show_design

    flops = wanted.flops
    if flops is None:
        raise InputError("no FLOPs for the sweep", where="--budget", next_step="give --budget FLOPS, such as 1e21")
    if (bounds.budget, bounds.days, bounds.budget_usd, bounds.matched()[0]) == (None, None, None, None):
        warn(f"no plan budget given: using {BUDGETS:g} times the sweep's, {BUDGETS * flops:.3g} FLOPs")
        bounds = replace(bounds, budget=BUDGETS * flops)
    if wanted.sweep_file is not None:
        check_target(wanted.sweep_file, [wanted.runs])
    chosen = law.find_law()
    if wanted.sweep_file is not None:
        check_family(chosen.family)
    deployment = serving.deployment(usual_tpot_s=PLANNED_TPOT_S, remark=warn)
    question = bounds.question(chosen, deployment, law, kv_heads=serving.kv_heads, unpriced=True)
    with show_progress(not json_) as report:
        report("price the models of the plan", 0.1)
        source, kv_heads = serving.open_latency(deployment, remark=warn), serving.kv_heads
        asked = PlanRequest(
            bounds=bounds, deployment=deployment, latency=source, details=law, kv_heads=kv_heads, unpriced=True
        )
        if (question.max_days, question.max_training_usd) != (None, None):  # what they buy, the plan says
            flops_bought = asked.plan_of_shape(chosen).budget_flops
            question = replace(question, budget=replace(question.budget, flops=flops_bought))
        base = asked.usual_base(chosen, question)
        search = asked.search(chosen, question if base is None else replace(question, base=base))
        report("choose runs", 0.6)
        known = None
        if wanted.runs is not None:
            table = TableOptions().read_from(wanted.runs)
            warn(table.warnings)
            known = in_letters(table, search.law.family)
        limits = SweepLimits(
            flops=flops,
            runs=min(wanted.next_ or MOST_STATED, wanted.max_runs or (MOST_STATED if wanted.next_ else MOST_RUNS)),
            few=wanted.next_ is not None,
            run_flops=wanted.max_run_flops,
            run_tokens=wanted.max_run_tokens,
            least_params=wanted.min_params or LEAST_PARAMS,
            noise=wanted.run_noise or RUN_NOISE,
            sequence_tokens=wanted.sequence_tokens or defaults().sequence_tokens,
        )
        found = design_sweep(search, limits, known=known)
    held_back = HeldBack()
    if wanted.sweep_file is not None:
        with held_back.writing():
            write_sweep(found, search.law.family, wanted.sweep_file, wanted.sequence_tokens)
    record = found.to_dict() | ({} if wanted.sweep_file is None else {"sweep": str(wanted.sweep_file)})
    answer(
        json_, record, show_design, found,
        shape=shape_name(search.law.family.name), details=details, written=wanted.sweep_file,
        unbuilt=unbuilt(search.law.family),
    )  # fmt: skip
    warn(found.notes)
    held_back.tell()
