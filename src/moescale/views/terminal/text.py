"""Lines, paragraphs and tables in plain text.

Columns that do not fit the terminal are left out, the least needed first, and nothing is wrapped inside a table.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from moescale.views.tables import Table

if TYPE_CHECKING:
    from rich.console import Console

PLAIN_WIDTH = 100  # where the output is no terminal: a file, a pipe, a page
LONGEST_LINE = 100  # of prose: longer ones are hard to read, however wide the terminal


def terminal(*, error: bool = False) -> Console:
    """A rich console on standard output, or on standard error; of a fixed width when it is not a terminal."""
    from rich.console import Console

    console = Console(stderr=error, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    return console


def write_line(console: Console, text: str = "", *, bold: int = 0) -> None:
    """One line as it is, its first `bold` characters bold."""
    from rich.text import Text

    line = Text(encodable(console, text.rstrip()))
    if bold:
        line.stylize("bold", 0, bold)
    console.print(line, no_wrap=True, overflow="ignore", crop=False)


def encodable(console: Console, text: str) -> str:
    """The text with plain letters for the signs that the terminal's encoding lacks."""
    try:
        text.encode(console.encoding)
    except (UnicodeError, LookupError):
        return text.replace("µ", "u").encode("ascii", "replace").decode("ascii")
    return text


def write_paragraph(console: Console, text: str, *, lead: str = "", indent: int = 0, first: str | None = None) -> None:
    """A paragraph, its lead bold; `first` begins its first line, `indent` blanks the others."""
    opening = " " * indent if first is None else first
    lines = textwrap.wrap(
        f"{lead}  {text}" if lead else text,
        width=max(20, min(console.width, LONGEST_LINE)),
        initial_indent=opening,
        subsequent_indent=" " * indent,
        break_on_hyphens=False,
    )
    for number, line in enumerate(lines):
        write_line(console, line, bold=len(lead) + len(opening) if lead and number == 0 else 0)


def write_table(console: Console, table: Table) -> None:
    """A table with its title and notes; empty columns, and those for which there is no room, are left out."""
    columns = table.columns
    kept = list(table.filled())
    widths = [max(len(columns[i].head), *(len(row[i]) for row in table.rows), 0) for i in range(len(columns))]
    left_out: list[str] = []
    while sum(widths[i] + 2 for i in kept) - 2 > console.width:
        ranked = [i for i in kept if columns[i].rank]
        if not ranked:
            break
        least = max(ranked, key=lambda i: columns[i].rank)
        kept.remove(least)
        left_out.append(columns[least].head)

    def row_text(row: Sequence[str]) -> str:
        return "  ".join(row[i].ljust(widths[i]) if columns[i].text else row[i].rjust(widths[i]) for i in kept)

    write_line(console)
    if table.title:
        write_line(console, table.title, bold=len(table.title))
    head = row_text([column.head for column in columns])
    write_line(console, head, bold=len(head))
    rule = "─" if encodable(console, "─") == "─" else "-"
    write_line(console, rule * min(console.width, sum(widths[i] + 2 for i in kept) - 2))
    for row in table.rows:
        write_line(console, row_text(row))
    if left_out:
        write_paragraph(console, f"No room for {', '.join(left_out)}: widen the terminal, or use --json.")
    for note in table.notes:
        write_paragraph(console, note, indent=2, first="")
