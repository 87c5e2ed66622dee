"""Outcomes as tables for a terminal and for a page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from moescale.reproduction.evaluate import Outcome, PartOutcome
from moescale.reproduction.score import Score
from moescale.units import format_count
from moescale.views.tables import Column, Table
from moescale.views.terminal.text import write_line, write_paragraph, write_table

if TYPE_CHECKING:
    from rich.console import Console

LABEL = 24  # characters of a part's label in the terminal's table
MARKS = {True: "yes", False: "NO", None: "-"}


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


def span(outcome: Outcome, part: PartOutcome) -> str:
    """90% of the law's draws."""
    if part.interval is None:
        return ""
    if outcome.claim.unit == "parameters":
        low, high = (format_count(v) for v in part.interval)
    else:
        low, high = (f"{v:.3g}" if v >= 0.01 else f"{v:.2g}" for v in part.interval)
    return f"{low}–{high}"


def show_outcomes(console: Console, outcomes: Sequence[Outcome], found: Score, server: str) -> None:
    """Every claim, a line for each of its numbers, then the verdict and the reasons of what does not hold."""
    heads = ("claim", "", "paper", "ours", "90% interval", "error", "trend", "holds")
    ranks = {"90% interval": 2, "trend": 1}
    columns = tuple(Column(h, text=h in ("claim", "", "trend", "holds"), rank=ranks.get(h, 0)) for h in heads)
    rows: list[tuple[str, ...]] = []
    for o in outcomes:
        for i, part in enumerate(o.parts):
            label = part.label if part.judged else f"({part.label})"
            error = "" if part.rel_error is None else f"{part.rel_error:+.1%}"
            numbers = (printed(o, part), quantity(part.ours, o.claim.unit), span(o, part), error)
            first = (o.claim.id, MARKS[o.direction_holds], verdict(o)) if i == 0 else ("", "", "")
            short = label if len(label) <= LABEL else f"{label[: LABEL - 2]}.."
            rows.append((first[0], short, *numbers, *first[1:]))
    write_table(console, Table("Claims of arXiv 2404.02852", columns, rows))
    write_line(console)
    show_score(console, outcomes, found, server)
    write_line(console)
    for o in outcomes:
        if o.holds is False or (o.holds is None and o.role != "input"):
            write_paragraph(console, f"{o.claim.statement}: {o.reason}.", lead=o.claim.id, indent=2, first="")


def show_score(console: Console, outcomes: Sequence[Outcome], found: Score, server: str) -> None:
    """The verdict in three forms, and what it was computed with."""
    for lead, text in (
        ("Numbers", numbers_words(found)),
        ("Claims", claims_words(found)),
        ("Draws", draws_words(found)),
        ("Basis", f"server {server}, {conditions(outcomes)}"),
    ):
        if text:
            write_paragraph(console, text, lead=lead)


def numbers_words(found: Score) -> str:
    """The printed numbers that come out, in a sentence."""
    median = "none" if found.median_error is None else f"{found.median_error:.0%}"
    return (
        f"of {found.printed} printed numbers {found.within_15} within 15% and {found.within_25} within 25%; "
        f"median error {median}"
    )


def claims_words(found: Score) -> str:
    """The claims that hold, in a sentence."""
    rest = found.claims - found.judged - found.inputs - found.unknown
    return (
        f"of {found.claims} claims {found.judged} are judged: {found.held} hold and {found.judged - found.held} fail; "
        f"{found.trends_held} of {found.trends} trends are reproduced. {found.inputs} are inputs of the law, {rest} states a fact "
        f"twice, {found.unknown} cannot be computed"
    )


def draws_words(found: Score) -> str:
    """How many claims hold over the law's draws, in a sentence."""
    if not found.drawn_held:
        return ""
    held, within = np.array(found.drawn_held), np.array(found.drawn_within)
    return (
        f"over the law's {held.size} draws, {held.min()} to {held.max()} claims hold (median {np.median(held):g}), and "
        f"{within.min()} to {within.max()} numbers are within 15% (median {np.median(within):g})"
    )


def conditions(outcomes: Sequence[Outcome]) -> str:
    """What the claims were computed with."""
    inputs = next((o.inputs for o in outcomes if "latency" in o.inputs), outcomes[0].inputs)
    return ", ".join(f"{k} {v:g}" if isinstance(v, float) else f"{k} {v}" for k, v in inputs.items() if v is not None)
