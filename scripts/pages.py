"""Pages of docs/ whose prose is written by hand and whose numbers and tables a script computes, each between its marks:

<!-- computed NAME -->what the script gives for NAME<!-- /computed -->, within a line or around lines of their own. Where
several scripts fill one page, each names its marks OWNER.NAME. Long tables are CSV files beside their page.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from moescale.io.files import write_atomically

DOCS = Path(__file__).resolve().parents[1] / "docs"
MARKED = re.compile(
    r"(?P<mark><!-- computed (?P<name>[\w.-]+) -->)(?P<before>\s*)(?P<text>.*?)(?P<after>\s*)(?=<!-- /computed -->)",
    re.DOTALL,
)

Parts = Mapping[str, str | Sequence[str]]  # text, or lines, by name


def filled(page: str, parts: Parts, owner: str = "") -> str:
    """The text of a page of docs/ with these parts in their places; ValueError where page and parts name others.

    With an owner, parts fill the marks OWNER.NAME, and the marks of others keep their text.
    """
    text = (DOCS / page).read_text(encoding="utf-8")
    prefix = f"{owner}." if owner else ""
    named = {found["name"].removeprefix(prefix) for found in MARKED.finditer(text) if found["name"].startswith(prefix)}
    if named != set(parts):
        raise ValueError(f"{page}: marks and computed parts differ: {', '.join(sorted(named ^ set(parts)))}")

    def fill(found: re.Match[str]) -> str:
        if not found["name"].startswith(prefix):
            return found[0]
        part = parts[found["name"].removeprefix(prefix)]
        new = part if isinstance(part, str) else "\n".join(part).strip("\n")
        return f"{found['mark']}{found['before']}{new}{found['after']}"

    return MARKED.sub(fill, text)


def write(page: str, text: str) -> None:
    """Write the text of a page, or of a table beside it, into docs/."""
    write_atomically(DOCS / page, text)


def table(header: Iterable[str], rows: Iterable[Iterable[str]], *, numbers: int = 0) -> list[str]:
    """The lines of a Markdown table; its last `numbers` columns are aligned at the right."""
    names = list(header)
    rules = ["---"] * (len(names) - numbers) + ["---:"] * numbers
    return [f"| {' | '.join(names)} |", f"|{'|'.join(rules)}|", *(f"| {' | '.join(row)} |" for row in rows)]


def csv_text(header: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A table as CSV."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([list(header), *map(list, rows)])
    return out.getvalue()


def write_csv(name: str, header: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """Write a table beside the pages of docs/, at docs/NAME."""
    write(name, csv_text(header, rows))


def read_csv(name: str) -> list[dict[str, str]]:
    """The rows of a table beside the pages of docs/."""
    return list(csv.DictReader((DOCS / name).read_text(encoding="utf-8").splitlines()))
