"""Outcomes as a table for a terminal, and as Markdown for a page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from moescale.reproduction.claims import Setting
from moescale.reproduction.evaluate import Elsewhere, HostTime, Outcome, PartOutcome, summary
from moescale.reproduction.quantities import NEEDS_COSTS
from moescale.units import format_count, format_seconds
from moescale.views.tables import Column, Table
from moescale.views.terminal.text import write_line, write_paragraph, write_table

if TYPE_CHECKING:
    from rich.console import Console

LABEL = 24  # characters of a part's label in the terminal's table


def verdict(holds: bool | None, role: str, cannot: str | None = None) -> str:
    """yes, NO, input, or a dash for what cannot be computed."""
    if cannot is not None:
        return "-"
    return "input" if role == "input" else _mark(holds)


def _mark(holds: bool | None) -> str:
    return {True: "yes", False: "NO", None: "-"}[holds]


def quantity(value: float | None, unit: str) -> str:
    """A number to the digits that matter: sizes as counts, everything else with four digits."""
    if value is None:
        return "-"
    return format_count(value) if unit == "parameters" else f"{value:.4g}"


def printed(outcome: Outcome, part: PartOutcome) -> str:
    """What the paper prints for a part, or the order that it states."""
    if part.paper is not None:
        return quantity(part.paper, outcome.claim.unit)
    return outcome.claim.bound


def _span(outcome: Outcome, part: PartOutcome) -> str:
    if part.interval is None:
        return ""
    if outcome.claim.unit == "parameters":
        low, high = (format_count(v) for v in part.interval)
    else:
        low, high = (f"{v:.3g}" if v >= 0.01 else f"{v:.2g}" for v in part.interval)
    return f"{low}–{high}"


def _error(outcome: Outcome, part: PartOutcome) -> str:
    if part.rel_error is None:
        return ""
    return f"{part.rel_error:.2%}" if outcome.claim.kind == "surface" else f"{part.rel_error:+.1%}"


def _cells(outcome: Outcome, index: int) -> dict[str, str]:
    """What a table of claims shows of one number; the claim and its verdict beside the first alone."""
    part, unit, first = outcome.parts[index], outcome.claim.unit, index == 0
    beside = outcome.other_latencies[0].ours[index] if outcome.other_latencies else None
    return {
        "claim": outcome.claim.id if first else "",
        "label": part.label if part.judged else f"({part.label})",
        "paper": printed(outcome, part),
        "ours": quantity(part.ours, unit),
        "span": _span(outcome, part),
        "error": _error(outcome, part),
        "tolerance": "" if part.tolerance is None else f"{part.tolerance:.3g}",
        "beside": quantity(beside, unit) if outcome.other_latencies else "",
        "direction": _mark(outcome.direction_holds) if first else "",
        "holds": verdict(outcome.holds, outcome.role, outcome.claim.cannot) if first else "",
    }


def show_outcomes(console: Console, outcomes: Sequence[Outcome]) -> None:
    """Every claim, a line for each of its numbers, then the reasons of failures and of what cannot be computed."""
    columns = {
        "claim": Column("claim", text=True),
        "label": Column("", text=True),
        "paper": Column("paper"),
        "ours": Column("ours"),
        "span": Column("90% interval", rank=2),
        "error": Column("error"),
        "beside": Column("roofline", rank=3),
        "direction": Column("dir.", text=True, rank=1),
        "holds": Column("holds", text=True),
    }
    rows: list[tuple[str, ...]] = []
    for o in outcomes:
        for i in range(len(o.parts)):
            cells = _cells(o, i)
            if len(cells["label"]) > LABEL:
                cells["label"] = f"{cells['label'][: LABEL - 2]}.."
            rows.append(tuple(cells[name] for name in columns))
    write_table(console, Table("Claims of arXiv 2404.02852", tuple(columns.values()), rows))
    write_line(console)
    write_paragraph(console, verdicts(outcomes), lead=f"{len(outcomes)} claims")
    write_paragraph(console, conditions(outcomes), lead="Basis")
    write_line(console)
    for o in outcomes:
        if o.holds is False or (o.holds is None and o.role != "input") or o.claim.cannot:
            write_paragraph(console, f"{o.claim.statement}: {o.reason}.", lead=o.claim.id, indent=2, first="")


def verdicts(outcomes: Sequence[Outcome]) -> str:
    """How many claims hold, in a sentence."""
    told = summary(outcomes)
    return (
        f"{told['hold']} hold, {told['fail']} fail ({told['fail in size only']} of them in size only: the trend is "
        f"reproduced), {told['inputs']} are inputs of the law and therefore not tests, {told['not computable']} cannot be computed."
    )


def conditions(outcomes: Sequence[Outcome]) -> str:
    """What the claims were computed with."""
    inputs = next((o.inputs for o in outcomes if "latency" in o.inputs), outcomes[0].inputs)
    return ", ".join(f"{k} {v}" for k, v in inputs.items() if v is not None)


def outcome_table(outcomes: Sequence[Outcome], *, latency: str) -> list[str]:
    """Rows of a Markdown table, one a number."""
    other = next((o.other_latencies[0].latency for o in outcomes if o.other_latencies), None)
    columns = {"claim": "claim", "label": "number", "paper": "paper", "ours": f"ours ({latency})"}
    columns |= {
        "span": "90% interval",
        "error": "error",
        "tolerance": "tolerance",
        **({} if other is None else {"beside": other}),
    }
    columns |= {"direction": "direction", "holds": "holds"}
    rows: list[list[str]] = []
    for o in outcomes:
        for i in range(len(o.parts)):
            cells = _cells(o, i)
            cells["claim"] = cells["claim"] and f"`{cells['claim']}`"
            rows.append([cells[name] for name in columns])
    return markdown_table(columns.values(), rows)


def markdown_table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """The lines of a Markdown table."""
    names = list(head)
    return [f"| {' | '.join(names)} |", f"|{'---|' * len(names)}", *(f"| {' | '.join(row)} |" for row in rows)]


def sensitivity_table(outcomes: Sequence[Outcome], settings: Sequence[Setting]) -> list[str]:
    """Rows of a Markdown table: each number that involves cost under each of the settings of serving."""
    rows = [
        [
            f"`{o.claim.id}`",
            part.label,
            printed(o, part),
            *(quantity(value, o.claim.unit) for value in (part.ours, *(under(o, s).ours[i] for s in settings))),
        ]
        for o in outcomes
        for i, part in enumerate(o.parts)
        if o.sensitivity and o.claim.parts[i].quantity in NEEDS_COSTS
    ]
    return markdown_table(["claim", "number", "paper", "base", *(s.name for s in settings)], rows) if rows else []


def verdict_table(outcomes: Sequence[Outcome], settings: Sequence[Setting]) -> list[str]:
    """Rows of a Markdown table: whether direction and size of each prediction that involves cost hold under each setting."""
    judged = [o for o in outcomes if o.sensitivity and o.holds is not None]
    if not judged:
        return []
    worlds = [[o, *(under(o, s) for s in settings)] for o in judged]
    rows = [
        [f"`{o.claim.id}`", *(_which(w.direction_holds, w.magnitude_holds) for w in own)]
        for o, own in zip(judged, worlds, strict=True)
    ]
    held = [str(sum(w.holds is True for w in column)) for column in zip(*worlds, strict=True)]
    return markdown_table(["claim", "base", *(s.name for s in settings)], [*rows, ["claims that hold", *held]])


def _which(direction: bool | None, magnitude: bool | None) -> str:
    """What holds of a claim: yes, direction (alone), size (alone) or NO; a dash where there is no number."""
    told = {"direction": direction, "size": magnitude}
    known = {name: holds for name, holds in told.items() if holds is not None}
    if not known:
        return "-"
    return "yes" if all(known.values()) else next((name for name, holds in known.items() if holds), "NO")


def under(outcome: Outcome, setting: Setting) -> Elsewhere:
    """The claim under one setting of the sensitivity analysis."""
    return next(w for w in outcome.sensitivity if w.setting == setting.name)


def host_table(found: Sequence[HostTime]) -> list[str]:
    """Rows of a Markdown table: the host's time that would reproduce each printed cost ratio."""
    head = ("claim", "number", "batch limited by", "paper", "kernels alone", "time per sequence", "or time per pass")
    rows: list[list[str]] = []
    for h in found:
        limit = "memory" if h.max_num_seqs is None else f"{h.max_num_seqs:g} sequences"
        times = ["none" if t is None else format_seconds(t) for t in (h.per_sequence_s, h.per_pass_s)]
        alone = "-" if h.kernels_alone is None else f"{h.kernels_alone:.3f}"
        rows.append([f"`{h.claim}`", h.label, limit, f"{h.paper:.3f}", alone, *times])
    return markdown_table(head, rows)
