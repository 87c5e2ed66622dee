"""An export: what was written, how the run is split, and the arithmetic of its memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moescale.views.terminal.text import write_line, write_paragraph

if TYPE_CHECKING:
    from rich.console import Console

    from moescale.export.launch import Export


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
    for line in (*choice.memory.arithmetic, *export.notes):
        write_paragraph(console, line, indent=4, first="  - ")
