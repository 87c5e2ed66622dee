"""Commands that choose and make runs and measurements: design, import, pack, train, sweep, profile."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import MISSING, asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moescale.bounds import FLOPS, PARAMETERS, SEED, SEQUENCE_TOKENS, SHARE, TOKENS
from moescale.cli.options import JSON, command
from moescale.cli.output import answer, answer_in_lines, held_back, say, show_progress, tell, warn
from moescale.errors import InfeasibleError, InputError, located, unknown_name
from moescale.options.fields import MOST_SECONDS, flag, path, quantity, seconds, text
from moescale.options.law import LawOptions, TableOptions, shape_name
from moescale.options.question import BoundOptions
from moescale.options.serving import ServingOptions
from moescale.units import format_count, format_seconds, plural

if TYPE_CHECKING:
    from moescale.planning.plan import Plan

BUDGETS = 100.0  # a plan's FLOPs over those of its sweep, where none is stated: our own
MOST_STATED = 1000  # runs
limit = partial(quantity, panel="Limits of the sweep")
TABLE_SUFFIXES = (".csv", ".tsv", ".parquet")


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
)
def design(
    *,
    flops: float | None = quantity("Training FLOPs of the whole sweep.", 1e-12, FLOPS.most, name="--budget"),
    runs: Path | None = path("Table of finished runs, as `fit` reads it."),
    next_: int | None = quantity("Number of further runs.", 1, MOST_STATED, whole=True),
    max_runs: int | None = limit("Most runs; default 60.", 1, MOST_STATED, whole=True),
    max_run_flops: float | None = limit("Most FLOPs of one run; default: a quarter of the sweep's.", 1e-12, FLOPS.most),
    max_run_tokens: float | None = limit("Most tokens of one run.", TOKENS),
    min_params: float | None = limit("Least N of one run; default 1M.", 1e3, PARAMETERS.most, unit="parameters"),
    run_noise: float | None = limit("Standard deviation of ln loss between seeds; default 0.003.", SHARE),
    sequence_tokens: int | None = limit("Sequence length in tokens; default 2,048.", SEQUENCE_TOKENS),
    bounds: PlanOptions,
    law: LawOptions,
    serving: ServingOptions,
    sweep_file: Path | None = path("Write SWEEP.toml for `moescale sweep`.", name="-o"),
    details: bool = flag("List every run."),
    json_: bool = JSON,
) -> None:
    """Choose the training runs that reduce the regret of a plan most, and write them as a sweep."""
    from moescale.export.trainers import check_family, write_sweep
    from moescale.io.files import check_target
    from moescale.io.records import record
    from moescale.models.recipe import defaults
    from moescale.options.planned import PlanRequest
    from moescale.planning.gaussian_process import RUN_NOISE
    from moescale.planning.sweep_design import design_sweep, in_law_variables
    from moescale.planning.sweep_runs import LEAST_PARAMS, MOST_RUNS, SweepLimits
    from moescale.views.terminal.runs import show_design

    if flops is None:
        raise InputError("no FLOPs for the sweep", where="--budget", next_step="give --budget FLOPS, such as 1e21")
    if (bounds.budget, bounds.days, bounds.budget_usd, bounds.matched()[0]) == (None, None, None, None):
        warn(f"no plan budget given: using {BUDGETS:g} times the sweep's, {BUDGETS * flops:.3g} FLOPs")
        bounds = replace(bounds, budget=BUDGETS * flops)
    if sweep_file is not None:
        check_target(sweep_file, [runs])
    chosen = law.find_law()
    asked = PlanRequest.of(bounds, law, serving, warn, explained=False)
    with show_progress(not json_) as report:
        plan: Plan | None = None
        if laws := asked.in_shapes(chosen):
            with suppress(InfeasibleError):  # runs may make sure of what no model promises yet
                plan = asked.plan(chosen, lambda step, share: report(step, share / 2.0))
                chosen = laws[shape_name(str(plan.asked["family"]))]
                if plan.more_sure is not None:  # planned with the chance of less regret
                    asked = replace(asked, bounds=replace(asked.bounds, confidence=plan.confidence))
        if sweep_file is not None:
            check_family(chosen.family)
        report("price the models of the plan", 0.5)
        question = asked.question(chosen)
        if (question.max_days, question.max_training_usd) != (None, None):  # what they buy, the plan says
            flops_bought = (plan or asked.plan_of_shape(chosen)).budget_flops
            question = replace(question, budget=replace(question.budget, flops=flops_bought))
        search = asked.search(chosen, asked.against_usual(chosen, question))
        report("choose runs", 0.7)
        known = None
        if runs is not None:
            table = TableOptions().read(runs)
            warn(table.warnings)
            known = in_law_variables(table, search.law.family)
        limits = SweepLimits(
            flops=flops,
            runs=min(next_ or MOST_STATED, max_runs or (MOST_STATED if next_ else MOST_RUNS)),
            few=next_ is not None,
            run_flops=max_run_flops,
            run_tokens=max_run_tokens,
            least_params=min_params or LEAST_PARAMS,
            noise=run_noise or RUN_NOISE,
            sequence_tokens=sequence_tokens or defaults().sequence_tokens,
        )
        found = design_sweep(search, limits, known=known)
    unwritten = list[InputError]()
    if sweep_file is not None:
        with held_back(unwritten):
            write_sweep(found, search.law.family, sweep_file, sequence_tokens)
    shape, shapes = shape_name(chosen.family.name), () if plan is None else plan.shapes
    told = found.to_dict() | {"shape": shape} | ({"shapes": [record(each) for each in shapes]} if shapes else {})
    told |= {} if sweep_file is None else {"sweep": str(sweep_file)}
    how: dict[str, Any] = {"details": details, "written": sweep_file, "served_tokens": bounds.lifetime_tokens}
    answer(json_, told, show_design, found, shape=shape, plan=plan, **how)
    warn(found.notes)
    tell(unwritten)


@command(
    "moescale import trainer examples/trainer",
    "moescale import mlflow http://localhost:5000 -o runs.csv",
    "moescale import wandb wandb -o runs.csv",
    "moescale import csv runs.tsv --set tokens='step * 524288' --set loss=eval/loss -o runs.csv",
)
def import_(
    tracker: str = text("mlflow, wandb, tensorboard, trainer, or csv (any table).", name="TRACKER", default=MISSING),
    source: str = text("Folder (searched recursively), file, or MLflow URI.", name="DIR_OR_URI", default=MISSING),
    output: Path | None = path("Run table to write: .csv, .tsv or .parquet; default: only list the runs.", name="-o"),
    stated: list[str] | None = text("Source of a column; repeatable.", name="--set", metavar="COLUMN=EXPR"),
    unfinished: bool = flag("Keep runs that failed or did not finish."),
    json_: bool = JSON,
) -> None:
    """Write a run table for `fit` from runs in MLflow, W&B, TensorBoard, a Trainer's folder, or any table."""
    from moescale.io.files import check_target
    from moescale.runs.importers import TRACKERS, import_runs, rule_of
    from moescale.runs.table import write_runs

    if tracker not in TRACKERS:
        raise unknown_name("tracker", tracker, TRACKERS, where="TRACKER")
    if output is not None:
        if output.suffix.lower() not in TABLE_SUFFIXES:
            raise unknown_name("suffix to write", output.suffix, TABLE_SUFFIXES, where=str(output))
        check_target(output, [source])
    with located("--set"):
        rules = dict(map(rule_of, stated or ()))
    found = import_runs(tracker, source, mapping=rules, unfinished=unfinished)
    unwritten = list[InputError]()
    if output is not None:
        with held_back(unwritten):
            write_runs(found.columns, output)
    warn(found.warnings)
    record, runs = found.to_dict(), f"{found.n_runs} of {plural(found.n_found, 'run')}"
    record |= {} if output is None else {"table": str(output)}
    left_out = [f"  {run}: {reason}" for run, reason in found.left_out]
    lines = [f"{runs}; write them with -o RUNS.csv" if output is None else f"{output}: {runs}"]
    lines += [*(f"  {rule}" for rule in found.rules), *(["Left out:", *left_out] if left_out else [])]
    answer_in_lines(json_, record, lines)
    tell(unwritten)


@command(
    "moescale pack LICENSE --tokenizer bytes --validation 0 -o corpus",
    "moescale pack docs src --tokenizer tokenizer.json -o corpus",
    "moescale pack hf:cerebras/SlimPajama-627B --tokenizer tokenizer.json --max-tokens 20B -o corpus",
    "moescale pack --show corpus",
)
def pack(
    sources: list[str] | None = text("Texts, folders, hf:NAME, or rows of jsonl, csv or parquet.", name="SOURCE.."),
    output: Path | None = path("Folder of the corpus; an interrupted pack starts over.", name="-o"),
    tokenizer: str | None = text("A tokenizer.json, or bytes (one token per byte).", metavar="PATH"),
    eos: str | None = text("End-of-document token, if the tokenizer has none with a usual name.", metavar="TOKEN"),
    validation: float = quantity("Share of documents held out for validation.", 0, 1, default=0.01),
    text_field: str = text("Field or column of the text.", default="text"),
    max_tokens: int | None = quantity("Stop after this many training tokens.", 1, TOKENS.most, whole=True),
    seed: int = quantity("Seed of the choice of validation documents.", SEED, default=0),
    show: Path | None = path("Describe a corpus and verify its hashes."),
    json_: bool = JSON,
) -> None:
    """Tokenise text into a corpus for `train` and `sweep`."""
    from moescale.experiments.corpus import open_corpus, verify
    from moescale.experiments.pack import pack as run_pack

    if show is not None:
        if sources or output is not None:
            raise InputError("goes without sources and -o", where="--show", next_step="leave them out")
        corpus = open_corpus(show)
        verify(corpus)
    elif output is None or tokenizer is None:
        what = "give -o FOLDER and --tokenizer (a tokenizer.json, or bytes), or --show FOLDER"
        raise InputError(what, next_step="see `moescale pack --help`")
    else:
        corpus = run_pack(
            sources or (), output, tokenizer=tokenizer, eos=eos, seed=seed, report=say,
            validation=validation, text_field=text_field, max_tokens=max_tokens,
        )  # fmt: skip
    kinds = (
        ("training", corpus.n_train, corpus.n_train_documents),
        ("validation", corpus.n_validation, corpus.n_validation_documents),
    )
    counts = [f"{n:,} {kind} tokens of {texts:,} document{'s' * (texts != 1)}" for kind, n, texts in kinds]
    vocabulary = f"vocabulary {corpus.vocab_size:,} ({corpus.dtype}), end of text {corpus.eos_id}"
    lines = (f"{corpus.folder}: {', '.join(counts)}", vocabulary, f"sha256 {corpus.sha256}")
    answer_in_lines(json_, corpus.header(), lines)


@command(
    "moescale train examples/run.toml --dry-run",
    "moescale train run.toml -o runs.csv",
    "moescale train run.toml --no-resume",
)
def train(
    run: Path = path("RUN.toml with the settings of the run.", name="RUN", default=MISSING),
    output: Path | None = path("Run table to write or extend: .csv or .tsv.", name="-o"),
    resume: bool = flag("Resume from the last checkpoint, or start over.", name="--resume/--no-resume", default=True),
    dry_run: bool = flag("Print all settings, sizes and FLOPs without training."),
    json_: bool = JSON,
) -> None:
    """Train one model and write its row of a run table for `fit`."""
    from moescale.experiments.run import add_rows, check_run_table, torchrun
    from moescale.experiments.run import train as run_train
    from moescale.experiments.settings import estimate, read_settings
    from moescale.views.terminal.runs import show_settings, show_trained

    settings = read_settings(run)
    if dry_run:
        expected = estimate(settings)
        record = {"settings": settings.to_dict(), "settings_sha256": settings.sha256, "estimate": expected}
        answer(json_, record, show_settings, settings.to_dict(), expected)
        return
    if output is not None:
        check_run_table(output)
    if settings.parallel.processes > 1 and "WORLD_SIZE" not in os.environ:
        more = ["--json"] * json_ + ["--no-resume"] * (not resume)
        torchrun(run, settings.parallel.processes, [*more, *(["-o", str(output)] if output is not None else [])])
    row = run_train(settings, resume=resume, report=_print_event)
    if row is None:  # another process of torchrun's group prints it
        return
    unwritten = list[InputError]()
    if output is not None:
        with held_back(unwritten):
            add_rows(output, [row])
    held = settings.output + "/result.json" if output is None or unwritten else str(output)
    answer(json_, {"rows": [row]}, show_trained, [row], settings.output, held)
    tell(unwritten)


def _print_event(event: Mapping[str, Any]) -> None:
    step, loss = event.get("step", 0), event.get("validation_loss")
    if event["event"] == "step":
        left = (event["steps"] - step) * event["seconds"] / step if step else math.nan
        rate = f"lr {event['lr']:.3g}, {format_count(event['tokens_per_s'])} tokens/s"
        say(f"step {step}/{event['steps']}: loss {event['loss']:.4f}, {rate}, {format_seconds(left)} left")
        return
    told = (event["event"], event.get("checkpoint"), None if loss is None else f"loss {loss:.4f}")
    say(f"step {step}: {' '.join(filter(None, told))}")


@command(
    "moescale sweep examples/sweep.toml --dry-run",
    "moescale sweep sweep.toml --jobs 2",
    "moescale sweep sweep.toml --max-time 9m --json",
)
def sweep(
    file: Path = path("SWEEP.toml: a RUN.toml with [grid] or [[runs]].", name="SWEEP", default=MISSING),
    dry_run: bool = flag("List the runs with parameters, tokens and FLOPs, without training."),
    resume: bool = flag("Resume interrupted runs, or start over.", name="--resume/--no-resume", default=True),
    jobs: int | None = quantity("Runs in parallel; default: the file's, or 1 (on a cluster: all).", whole=True),
    retries: int = quantity("Restarts of a run whose process died.", 0, 1000, default=1, whole=True),
    max_time: float | None = seconds("Stop after a time, such as 9m; the same command continues.", MOST_SECONDS),
    json_: bool = JSON,
) -> int:
    """Train a grid of models, here or on a cluster, and write a run table for `fit`."""
    from moescale.experiments.sweep import drive
    from moescale.experiments.sweep import dry_run as planned_runs
    from moescale.experiments.sweep_file import read_sweep
    from moescale.io.records import record
    from moescale.views.terminal.runs import show_planned_runs

    grid = read_sweep(file)
    if dry_run:
        plan = planned_runs(grid, jobs)
        answer(json_, plan, show_planned_runs, plan)
        return 0
    done = drive(grid, jobs=jobs, retries=retries, resume=resume, say=say, seconds=max_time)
    of_all = f"{done.table}: {done.finished + done.found} of {done.runs} runs"
    lines = [f"{of_all}; {done.finished} finished in {format_seconds(done.seconds)}, {done.found} already there"]
    if done.diverged:
        lines.append(f"{len(done.diverged)} diverged; fit leaves them out: {', '.join(done.diverged)}")
    if done.left:
        lines.append(f"{done.left} left to train: run the same command again")
    answer_in_lines(json_, record(done), lines)
    if not done.failed:
        return 0
    first, names = done.failed[0], ", ".join(failure.name for failure in done.failed)
    say(f"moescale: {len(done.failed)} of {done.runs} runs failed: {names}; {first.log} ends in:\n{first.log_end}")
    return 1


@command(
    "moescale profile profile.toml -o h100.parquet",
    "moescale profile profile.toml --python envs/vllm/bin/python -o h100.csv",
)
def profile(
    grid: Path = path("PROFILE.toml with the grid.", name="GRID", default=MISSING),
    output: Path = path("Latency table to write or extend: .parquet, .csv or .tsv.", name="-o", default=MISSING),
    python: Path | None = path("Python interpreter of vLLM's environment; default: this one."),
    repeats: int = quantity("Repeats per start of vLLM.", 1, 10_000, default=10, whole=True),
    rounds: int = quantity("Passes over the grid, each with fresh engines.", 1, 100, default=3, whole=True),
    log: Path | None = path("Log file of vLLM."),
    json_: bool = JSON,
) -> None:
    """Measure prefill and decode latencies of vLLM on this machine for --latency of `cost` and `plan`."""
    from moescale.experiments import profile as profiling

    command = profiling.VLLM if python is None else (str(python), *profiling.VLLM[1:])
    how: dict[str, Any] = {"vllm": command, "repeats": repeats, "rounds": rounds, "log": log}
    done = profiling.profile(*profiling.read_grid(grid), output, report=say, **how)
    without = (f"{count} without a latency: {status}" for status, count in done.not_ok.items())
    lines = (f"{output}: {done.points} points, {done.measured} of them measured now", *without)
    answer_in_lines(json_, asdict(done), lines)
