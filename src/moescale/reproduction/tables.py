"""Outcomes as tables for a terminal and for a page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from moescale.reproduction.evaluate import Outcome, PartOutcome, Score
from moescale.units import format_count
from moescale.views.tables import Cell, Column, table_of
from moescale.views.terminal.text import write_line, write_paragraph, write_table

if TYPE_CHECKING:
    from rich.console import Console

LABEL = 24  # characters of a part's label in the terminal's table
MARKS = {True: "yes", False: "NO", None: "-"}
Row = tuple[Outcome, PartOutcome]


def verdict(outcome: Outcome) -> str:
    """yes, NO, input, same for a fact that is judged elsewhere, or a dash for what cannot be computed."""
    if outcome.claim.cannot is not None:
        return "-"
    if outcome.claim.same_as is not None:
        return "same"
    return "input" if outcome.role == "input" else MARKS[outcome.holds]


def quantity(value: float | None, unit: str) -> str:
    """A number to the digits that matter: sizes as counts, everything else with four digits."""
    if value is None:
        return "-"
    return format_count(value) if unit == "parameters" else f"{value:.4g}"


def printed(outcome: Outcome, part: PartOutcome) -> str:
    """What the paper prints for a part, or the order that it states."""
    return outcome.claim.bound if part.paper is None else quantity(part.paper, outcome.claim.unit)


def show_outcomes(console: Console, outcomes: Sequence[Outcome], found: Score, server: str) -> None:
    """Every claim, a line for each of its numbers, then the verdict and the reasons of what does not hold."""

    def of_claim(text: Callable[[Outcome], str]) -> Callable[[Row], str]:  # on its first line
        return lambda row: text(row[0]) if row[1] is row[0].parts[0] else ""

    def interval(row: Row) -> str:
        sizes = row[0].claim.unit == "parameters"
        ends = (format_count(v) if sizes else f"{v:.{3 if v >= 0.01 else 2}g}" for v in row[1].interval or ())
        return "–".join(ends)

    def label(row: Row) -> str:
        text = row[1].label if row[1].judged else f"({row[1].label})"
        return text if len(text) <= LABEL else f"{text[: LABEL - 2]}.."

    cells: tuple[Cell[Row], ...] = (
        (Column("claim", text=True), of_claim(lambda o: o.claim.id)),
        (Column("", text=True), label),
        (Column("paper"), lambda r: printed(*r)),
        (Column("ours"), lambda r: quantity(r[1].ours, r[0].claim.unit)),
        (Column("90% interval", rank=2), interval),
        (Column("error"), lambda r: "" if r[1].rel_error is None else f"{r[1].rel_error:+.1%}"),
        (Column("trend", text=True, rank=1), of_claim(lambda o: MARKS[o.direction_holds])),
        (Column("holds", text=True), of_claim(verdict)),
    )
    rows = [(o, part) for o in outcomes for part in o.parts]
    write_table(console, table_of("Claims of arXiv 2404.02852", rows, cells))
    write_line(console)
    show_score(console, outcomes, found, server)
    write_line(console)
    for o in outcomes:
        if o.holds is False or (o.holds is None and o.role != "input"):
            write_paragraph(console, f"{o.claim.statement}: {o.reason}.", lead=o.claim.id, indent=2, first="")


def show_score(console: Console, outcomes: Sequence[Outcome], found: Score, server: str) -> None:
    """The verdict in three forms, and what it was computed with."""
    n, rest = found.numbers, found.claims - found.judged - found.inputs - found.unknown
    median = "none" if n.median_error is None else f"{n.median_error:.0%}"
    inputs = next((o.inputs for o in outcomes if "latency" in o.inputs), outcomes[0].inputs)
    basis = [f"{k} {v:g}" if isinstance(v, float) else f"{k} {v}" for k, v in inputs.items() if v is not None]
    texts = {
        "Numbers": f"of {n.printed} printed numbers {n.within_15} within 15% and {n.within_25} within 25%; median error {median}",
        "Claims": (
            f"of {found.claims} claims {found.judged} are judged: {found.held} hold and {found.judged - found.held} fail; "
            f"{found.trends_held} of {found.trends} trends are reproduced. {found.inputs} are inputs of the law, {rest} states a "
            f"fact twice, {found.unknown} cannot be computed"
        ),
    }
    if found.drawn_held:
        held, within = np.array(found.drawn_held), np.array(found.drawn_within)
        texts["Draws"] = (
            f"over the law's {held.size} draws, {held.min()} to {held.max()} claims hold (median {np.median(held):g}), and "
            f"{within.min()} to {within.max()} numbers are within 15% (median {np.median(within):g})"
        )
    texts["Basis"] = f"server {server}, {', '.join(basis)}"
    for lead, text in texts.items():
        write_paragraph(console, text, lead=lead)
