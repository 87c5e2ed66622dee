"""A plan: the recommendation first, then its tables; what it was exported to; and known models side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console

from moescale.planning.compare_models import ComparedModel
from moescale.planning.plan import Plan
from moescale.planning.training_price import TrainingPrice
from moescale.scaling_laws.law import Law
from moescale.serving.deployment import Deployment
from moescale.units import format_count, format_flops, format_seconds, format_usd
from moescale.views.tables import (
    MARK,
    Cell,
    Column,
    Table,
    beyond_notes,
    choices,
    gpus_text,
    latency_name,
    or_dash,
    reason_lines,
    screen,
    span_text,
    usd_range,
)
from moescale.views.tables import plan as tables
from moescale.views.terminal.text import paragraph_lines, write_line, write_paragraph, write_table

if TYPE_CHECKING:
    from moescale.export.launch import Export

FACTS_WIDTH, MODEL_WIDTH = 24, 19  # columns of a terminal that the facts of compared models and each model mostly take


def show_plan(
    console: Console, plan: Plan, export: Export | None = None, *, details: bool = False, options: str | None = None
) -> None:
    """The decision on one screen, and what it was exported to; `details` adds its facts, all caveats and all tables.

    `options` are what was typed.
    """
    headline, use = tables.plan_headline(plan), plan.training
    per_param = "" if use is None else f", {format_count(use.tokens_per_active_param)} per active parameter"
    fits = len(headline + per_param) <= console.width
    write_line(console, headline + per_param * fits, bold=len(headline))
    rows, without = (choices.MOST_ROWS, list[str]()) if details else _fitted(console, plan, options)
    write_table(console, choices.choices_table(plan, rows), ruled=False)
    for line in _facts(console, plan, options, rows, without):
        write_line(console, line)
    if details:
        _details(console, plan)
    if export is not None:
        _exported(console, export)


def _fitted(console: Console, plan: Plan, options: str | None) -> tuple[int, list[str]]:
    """How many rows a screen has room for, and the lines that go so that those fit which are asked for."""
    table, without = choices.choices_table(plan), list[str]()
    with console.capture() as drawn:
        write_table(console, table, ruled=False)
    around = 1 + len(drawn.get().splitlines()) - len(table.rows)  # its title, heads and notes, and the headline

    def height(rows: int) -> int:
        lines = _facts(console, plan, options, rows, without)
        return around + rows + sum(1 + (len(line) - 1) // console.width for line in lines)

    for name, least in screen.spare(plan, options):
        if screen.MOST_LINES - height(choices.MOST_ROWS) + choices.MOST_ROWS < least:
            without.append(name)
    heights = {rows: height(rows) for rows in range(2, choices.MOST_ROWS + 1)}  # a row less may be said in a line
    return min(heights, key=lambda rows: (max(heights[rows], screen.MOST_LINES), -rows)), without


def _facts(console: Console, plan: Plan, options: str | None, rows: int, without: Sequence[str]) -> list[str]:
    """The lines below a table of so many rows."""
    lines: list[str] = []
    for name, text in screen.facts(plan, options, rows, without):
        first = f"{name:11}  "  # the command whole, so that it can be copied
        lines += [first + text] if name == "Next" else paragraph_lines(console, text, indent=13, first=first)
    return lines


def _details(console: Console, plan: Plan) -> None:
    write_line(console)
    for name, text in tables.decision_facts(plan):
        write_paragraph(console, text, indent=12, first=f"  {name:8}  ")
    for table in tables.choice_tables(plan):
        write_table(console, table)
    if plan.decision.caveats:
        write_line(console)
        write_line(console, "Caveats", bold=len("Caveats"))
    _listed(console, plan.decision.caveats)
    for table in tables.evidence_tables(plan):
        write_table(console, table)
    if plan.lifetime is not None:
        write_line(console)
        write_paragraph(console, tables.training_sentence(plan.lifetime))
    write_line(console)
    write_paragraph(console, tables.glossary(plan))
    write_line(console)
    write_paragraph(console, f"{tables.basis(plan)}.", lead="Basis")


def _listed(console: Console, lines: Sequence[str]) -> None:
    for line in lines:
        write_paragraph(console, line, indent=4, first="  - ")


def _exported(console: Console, export: Export) -> None:
    """Files of an export, the parallelism of the run, and the arithmetic of its recipe."""
    from moescale.export.launch import split_in_words  # what plans alone do without

    choice = export.choice
    write_line(console)
    write_line(console, f"Exported to {export.folder}: {', '.join(export.files)}", bold=len("Exported"))
    write_paragraph(console, f"{split_in_words(choice)} ({choice.why}).")
    recipe = export.recipe
    write_paragraph(
        console,
        f"{recipe.steps:,} steps of {recipe.batch_tokens:,} tokens, peak learning rate {recipe.peak_lr:.4g}, {recipe.decay_words}; "
        f"{choice.days:.3g} days at {choice.mfu:.0%} of peak, attention included.",
    )
    write_paragraph(console, f"{choice.time_in_words[0].upper()}{choice.time_in_words[1:]}.")
    _listed(console, (*recipe.arithmetic, *export.notes))


def show_compared_models(
    console: Console,
    models: Sequence[ComparedModel],
    law: Law,
    deployment: Deployment,
    training: TrainingPrice | None,
    lifetime_tokens: float | None,
    latency: str,
) -> None:
    """The table, break-even lifetimes, and the basis."""
    beside = max((console.width - FACTS_WIDTH) // MODEL_WIDTH, 1)
    for at in range(0, len(models), beside):
        write_table(console, _compared_table(models[at : at + beside]))
    if lines := [*_break_even_lines(models), *_repaid_lines(models)]:
        write_line(console)
        _listed(console, lines)
    trained = ""
    if training is not None:
        usd = format_usd(training.usd_per_gpu_hour)
        trained = f"; training on {training.gpu.name} at {usd} per GPU hour, MFU {'predicted' if training.timed else f'{training.mfu:g}'}"
    tpot_s = deployment.max_tpot_s
    limit = "" if tpot_s is None else f", TPOT <= {format_seconds(float(tpot_s))}"
    life = "" if lifetime_tokens is None else f"; lifetime {format_count(lifetime_tokens)} output tokens"
    write_line(console)
    write_paragraph(
        console,
        f"parameters without embeddings; loss by {law.name}{', intervals over its draws' if len(law.draws) else ''}{trained}; serving on "
        f"{deployment.gpu.name} at {format_usd(float(deployment.usd_per_gpu_hour))} per GPU hour, {deployment.prompt_tokens:g} prompt and "
        f"{deployment.output_tokens:g} output tokens per request{limit}, latency from {latency_name(latency)}{life}.",
        lead="Basis",
    )


def _compared_table(models: Sequence[ComparedModel]) -> Table:
    """Models side by side, a column each."""
    facts: tuple[Cell[ComparedModel], ...] = (
        (Column("active parameters"), lambda c: format_count(c.n_params_active)),
        (Column("total parameters"), lambda c: format_count(c.n_params_total)),
        (Column("expansion X"), lambda c: f"{c.expansion:.3g}"),
        (Column("training tokens"), lambda c: format_count(c.tokens)),
        (Column("training FLOPs"), lambda c: format_flops(c.training_flops)),
        (Column("GPU days"), lambda c: or_dash(c.gpu_days, format_count)),
        (Column("training $"), lambda c: or_dash(c.training_usd, format_usd)),
        (
            Column("  by known error"),
            lambda c: or_dash(c.training_usd_interval, lambda ends: format_usd(math.sqrt(math.prod(ends)))),
        ),
        (Column("    nine of ten"), lambda c: or_dash(c.training_usd_interval, usd_range)),
        (Column("  MFU"), lambda c: or_dash(c.mfu, "{:.2f}".format) + " assumed" * (c.mfu_from == "assumed")),
        (Column("  precision"), lambda c: c.train_precision or "-"),
        (Column("loss"), lambda c: f"{c.loss:.4f}{MARK if c.beyond_law else ''}"),
        (Column("  90% interval"), lambda c: span_text(c.loss_interval, ".3f")),
        (Column("  vs the first model"), lambda c: or_dash(c.loss_change, "{:+.1%}".format)),
        (Column("    90% interval"), lambda c: span_text(c.loss_change_interval, "+.1%")),
        (Column("  P(loss <= the first)"), lambda c: or_dash(c.probability_better, "{:.0%}".format)),
        (Column("$/Mtok"), lambda c: or_dash(c.usd_per_mtok, format_usd)),
        (Column("  by known error"), lambda c: or_dash(c.calibrated and c.calibrated.usd_per_mtok, format_usd)),
        (Column("    nine of ten"), lambda c: "-" if c.calibrated is None else usd_range(c.calibrated.interval)),
        (Column("GPUs"), lambda c: gpus_text(c.gpus, c.attention_dp)),
        (Column("batch"), lambda c: or_dash(c.batch, "{:.0f}".format)),
        (Column("TPOT"), lambda c: or_dash(c.tpot_s, format_seconds)),
        (Column("total $"), lambda c: or_dash(c.total_usd, format_usd)),
        (Column("  as released"), lambda c: or_dash(c.total_usd_as_released, format_usd)),
    )
    rows = [[fact.head, *(text(model) for model in models)] for fact, text in facts]
    columns = [Column(c.name, rank=i if i > 1 else 0) for i, c in enumerate(models)]
    notes = list(beyond_notes(models))
    notes += [f"{c.name}: MFU {c.mfu:g} assumed, as no split holds it" for c in models if c.mfu_from == "assumed"]
    stated = ((c, c.train_precision_source) for c in models)
    if published := ", ".join(f"{c.name} in {c.train_precision} ({source})" for c, source in stated if source):
        notes.append(f"Training priced as trained: {published}; others in bf16; --train-precision states one for all")
    if unserved := reason_lines((c.name, c.infeasible) for c in models if c.infeasible):
        notes += [*unserved, "--max-gpus allows more GPUs, --latency roofline has an answer for every batch"]
    said = [row for row in rows if any(text.strip("-") for text in row[1:])]
    return Table("", (Column("", text=True), *columns), said, notes=tuple(notes))


def _break_even_lines(models: Sequence[ComparedModel]) -> list[str]:
    """The first model against each other one: after which served tokens the one that costs more to train has paid off."""
    pairs = (pair for other in models[1:] for pair in ((models[0], other), (other, models[0])))
    found = ((one.name, two.name, (one.break_even_tokens or {}).get(two.name)) for one, two in pairs)
    return [
        f"{one} costs more to train and less to serve than {two}: it breaks even after {format_count(tokens)} output tokens."
        for one, two, tokens in found
        if tokens
    ]


def _repaid_lines(models: Sequence[ComparedModel]) -> list[str]:
    """After which served tokens each model that is to be trained has repaid all of its training against released ones."""
    lines: list[str] = []
    for own in (model for model in models if not model.released and model.training_usd is not None):
        repaid = own.repaid_tokens_as_released or {}
        others = [c.name for c in models if c.released and None not in (own.usd_per_mtok, c.usd_per_mtok)]
        when = {name: f"after {format_count(tokens)} output tokens" for name, tokens in repaid.items()}
        texts = [f"{name} {when.get(name, 'never (no dearer to serve)')}" for name in others]
        if texts:
            lines.append(f"{own.name} repays all of its training against a released model: {'; '.join(texts)}.")
    return lines
