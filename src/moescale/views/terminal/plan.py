"""A plan: the recommendation first, then its tables; and what it was exported to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moescale.units import format_flops, format_usd
from moescale.views.tables import plan as tables
from moescale.views.tables import screen
from moescale.views.tables.decision import decision_facts, plan_headline, serving_basis
from moescale.views.terminal.text import paragraph_lines, write_line, write_paragraph, write_table

if TYPE_CHECKING:
    from rich.console import Console

    from moescale.export.launch import Export
    from moescale.planning.plan import Plan


def show_plan(console: Console, plan: Plan, *, details: bool = False, options: str | None = None) -> None:
    """The decision on one screen; `details` adds its facts, all caveats and all tables. `options` are what was typed."""
    headline = plan_headline(plan)
    write_line(console, headline, bold=len(headline))
    facts = [line for fact in screen.facts(plan, options) for line in _wrapped(console, *fact)]
    table = screen.choices_table(plan)
    title = paragraph_lines(console, table.title)
    room = screen.MOST_LINES - 2 - len(title) - len(table.notes) - sum(1 + (len(x) - 1) // console.width for x in facts)
    rows = screen.MOST_ROWS if details else max(2, room)  # the rest of a screen, or as many as the page has
    write_table(console, screen.choices_table(plan, rows), ruled=False)
    for line in facts:
        write_line(console, line)
    if details:
        _details(console, plan)


def _wrapped(console: Console, name: str, text: str) -> list[str]:
    first = f"{name:11}  "
    if name == "Next":  # whole, so that it can be copied
        return [first + text]
    return paragraph_lines(console, text, indent=13, first=first)


def _details(console: Console, plan: Plan) -> None:
    write_line(console)
    for name, text in decision_facts(plan):
        write_paragraph(console, text, indent=12, first=f"  {name:8}  ")
    for table in (*tables.choice_tables(plan), *([tables.known_table(plan)] if plan.known else [])):
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
    write_paragraph(console, tables.GLOSSARY.format(base=tables.base_name(plan)))
    write_line(console)
    source, accuracy = serving_basis(plan)
    write_paragraph(
        console,
        f"{format_flops(plan.budget_flops)} training FLOPs ({plan.convention} convention); law {plan.law}; {plan.gpu} at "
        f"{format_usd(plan.usd_per_gpu_hour)} per GPU hour; {plan.prompt_tokens:g} prompt and {plan.output_tokens:g} output "
        f"tokens per request; latency from {source}. Accuracy of serving cost: {accuracy}.",
        lead="Basis",
    )


def _listed(console: Console, lines: tuple[str, ...]) -> None:
    for line in lines:
        write_paragraph(console, line, indent=4, first="  - ")


def show_export(console: Console, export: Export) -> None:
    """Files of an export, the parallelism of the run, and the arithmetic of its memory."""
    from moescale.export.launch import split_in_words

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
    _listed(console, (*recipe.arithmetic, *choice.memory.arithmetic, *export.notes))
