"""Lines, paragraphs and tables in plain text.

Columns that do not fit the terminal are left out, the least needed first; of a table, only heads are wrapped.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import IO

from rich.console import Console
from rich.text import Text

from moescale.views.tables import Table

PLAIN_WIDTH = 100  # where the output is no terminal: a file, a pipe, a page
LONGEST_LINE = 100  # of prose: longer ones are hard to read, however wide the terminal


def terminal(*, error: bool = False, file: IO[str] | None = None) -> Console:
    """A rich console on standard output, standard error or a stream; of a fixed width when it is not a terminal."""
    console = Console(stderr=error, file=file, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    return console


def write_line(console: Console, text: str = "", *, bold: int = 0) -> None:
    """One line as it is, its first `bold` characters bold."""
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


def paragraph_lines(console: Console, text: str, *, indent: int = 0, first: str | None = None) -> list[str]:
    """The lines of a paragraph; `first` begins its first line, `indent` blanks the others."""
    return textwrap.wrap(
        text,
        width=max(20, min(console.width, LONGEST_LINE)),
        initial_indent=" " * indent if first is None else first,
        subsequent_indent=" " * indent,
        break_on_hyphens=False,
    )


def write_paragraph(console: Console, text: str, *, lead: str = "", indent: int = 0, first: str | None = None) -> None:
    """A paragraph, its lead bold; `first` begins its first line, `indent` blanks the others."""
    opening = " " * indent if first is None else first
    lines = paragraph_lines(console, f"{lead}  {text}" if lead else text, indent=indent, first=first)
    for number, line in enumerate(lines):
        write_line(console, line, bold=len(lead) + len(opening) if lead and number == 0 else 0)


def write_table(console: Console, table: Table, *, ruled: bool = True) -> None:
    """A table with its title and notes, set apart by a blank line and a rule where it is `ruled`; empty columns, and those for which there is no room, are left out.

    A table that is too wide has its heads on two lines before a column goes.
    """
    columns, kept, left_out = table.columns, list(table.filled()), list[str]()
    cells = [max((len(row[i]) for row in table.rows), default=0) for i in range(len(columns))]
    on_one = [[column.head] for column in columns]
    on_two = [_two_lines(column.head, least) for column, least in zip(columns, cells, strict=True)]

    def widths(heads: Sequence[Sequence[str]]) -> dict[int, int]:
        return {i: max(cells[i], *map(len, heads[i])) for i in kept}

    def too_wide(heads: Sequence[Sequence[str]]) -> bool:
        return sum(widths(heads).values()) + 2 * (len(kept) - 1) > console.width

    while too_wide(on_two) and (ranked := [i for i in kept if columns[i].rank]):
        least = max(ranked, key=lambda i: columns[i].rank)
        kept.remove(least)
        left_out.append(columns[least].head)
    heads = on_two if too_wide(on_one) else on_one
    width = widths(heads)

    def row_text(row: Sequence[str]) -> str:
        return "  ".join(row[i].ljust(width[i]) if columns[i].text else row[i].rjust(width[i]) for i in kept)

    if ruled:
        write_line(console)
    if table.title:
        write_paragraph(console, "", lead=table.title)
    tall = max(len(heads[i]) for i in kept)
    for line in range(tall):  # aligned at the bottom
        head = row_text([([""] * (tall - len(lines)) + lines)[line] for lines in heads])
        write_line(console, head, bold=len(head))
    if ruled:
        rule = "─" if encodable(console, "─") == "─" else "-"
        write_line(console, rule * min(console.width, sum(width.values()) + 2 * (len(kept) - 1)))
    for row in table.rows:
        write_line(console, row_text(row))
    if left_out and ruled:  # a first screen has no room to say so
        listed = ", ".join(left_out)
        write_paragraph(console, f"Columns left out for width: {listed}. Widen the terminal, or use --json.")
    for note in table.notes:
        write_paragraph(console, note, indent=2, first="")


def _two_lines(head: str, least: int) -> list[str]:
    """A head on two lines at most, as narrow as it can be, but for `least`; a row of a file breaks behind its colon."""
    words = head.replace(":", ": ")
    widths = range(max(least, *map(len, words.split()), 1), len(head) + 1)
    return next((lines for lines in (textwrap.wrap(words, n) for n in widths) if len(lines) <= 2), [head])
