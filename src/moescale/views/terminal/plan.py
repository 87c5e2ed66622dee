"""A plan: the recommendation first, then the tables that it stands on; and what it was exported to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moescale.units import format_flops, format_usd
from moescale.views import tables
from moescale.views.terminal.chart import show_chart
from moescale.views.terminal.text import write_line, write_paragraph, write_table

if TYPE_CHECKING:
    from rich.console import Console

    from moescale.export.launch import Export
    from moescale.planning.lifetime_plan import LifetimePlan
    from moescale.planning.plan import Plan


def show_plan(console: Console, plan: Plan, *, chart: bool | None = None) -> None:
    """The recommendation first, then the tables it stands on; `chart` draws the curves (None: on a terminal)."""
    headline = f"Recommendation: {tables.plan_headline(plan)}"
    write_line(console, headline, bold=len(headline))
    for lead, text in tables.plan_paragraphs(plan):
        write_paragraph(console, text, lead=lead)
    write_line(console)
    _listed(console, plan.recommendation.caveats)
    write_line(console)
    write_paragraph(
        console,
        f"{format_flops(plan.budget_flops)} training FLOPs; law {plan.law} ({plan.convention} FLOPs); {plan.gpu} at "
        f"{format_usd(plan.usd_per_gpu_hour)} an hour; {plan.prompt_tokens:g} prompt and {plan.output_tokens:g} output "
        f"tokens a request; latency from {plan.latency_source}.",
        lead="Basis",
    )
    write_table(console, tables.loss_optimal_table(plan))
    write_table(console, tables.bounded_loss_table(plan))
    if (table := tables.bounded_cost_table(plan)) is not None:
        write_table(console, table)
    if plan.lifetime is not None:
        _lifetime(console, plan.lifetime)
    if chart or (chart is None and console.is_terminal):
        show_chart(console, plan)
    write_table(console, tables.frontier_table(plan))
    write_line(console)
    write_paragraph(console, tables.GLOSSARY.format(base=tables.base_name(plan)))


def _lifetime(console: Console, plan: LifetimePlan) -> None:
    write_table(console, tables.lifetime_table(plan))
    write_paragraph(
        console, f"{tables.training_sentence(plan)} {tables.build_sentence(plan.recommendation.architecture)}"
    )
    _listed(console, plan.recommendation.caveats)


def _listed(console: Console, lines: tuple[str, ...]) -> None:
    for line in lines:
        write_paragraph(console, line, indent=4, first="  - ")


def show_export(console: Console, export: Export) -> None:
    """What an export wrote, how the run is split, and the arithmetic of its memory."""
    from moescale.export.launch import split_in_words

    choice = export.choice
    write_line(console)
    write_line(console, f"Exported to {export.folder}: {', '.join(export.files)}", bold=len("Exported"))
    write_paragraph(console, f"{split_in_words(choice)} ({choice.why}).")
    write_paragraph(
        console,
        f"{export.recipe.steps:,} steps of {export.recipe.batch_tokens:,} tokens, peak learning rate {export.recipe.peak_lr:.4g}; "
        f"{choice.days:.3g} days at {choice.mfu:.0%} of peak.",
    )
    _listed(console, (*choice.memory.arithmetic, *export.notes))
