"""Outcomes as a table for a terminal, and as Markdown for a page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from moescale.reproduction.claims import Setting
from moescale.reproduction.evaluate import Elsewhere, HostTime, Outcome, PartOutcome, summary
from moescale.units import format_count, format_seconds
from moescale.views.tables import Column, Table
from moescale.views.terminal import write_line, write_paragraph, write_table

if TYPE_CHECKING:
    from rich.console import Console

LABEL = 24  # characters of a part's label in the terminal's table


def verdict(holds: bool | None, role: str, cannot: str | None = None) -> str:
    """yes, NO, input, or a dash for what cannot be computed."""
    if cannot is not None:
        return "-"
    if role == "input":
        return "input"
    return {True: "yes", False: "NO", None: "-"}[holds]


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
    c = outcome.claim
    return f"< {c.below:g}" if c.below is not None else f"> {c.above:g}"


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


def show_outcomes(console: Console, outcomes: Sequence[Outcome]) -> None:
    """Every claim, a line for each of its numbers, then the reasons of failures and of what cannot be computed."""
    columns = (
        Column("claim", text=True), Column("", text=True), Column("paper"), Column("ours"),
        Column("90% of draws", rank=2), Column("error"), Column("roofline", rank=3), Column("dir.", text=True, rank=1),
        Column("holds", text=True),
    )  # fmt: skip
    rows: list[tuple[str, ...]] = []
    for o in outcomes:
        beside = o.other_latencies[0].ours if o.other_latencies else ()
        for i, part in enumerate(o.parts):
            first = i == 0
            label = part.label if part.judged else f"({part.label})"
            rows.append(
                (
                    o.claim.id if first else "",
                    label if len(label) <= LABEL else f"{label[: LABEL - 2]}..",
                    printed(o, part),
                    quantity(part.ours, o.claim.unit),
                    _span(o, part),
                    _error(o, part),
                    quantity(beside[i], o.claim.unit) if beside else "",
                    _mark(o.direction_holds) if first else "",
                    verdict(o.holds, o.role, o.claim.cannot) if first else "",
                )
            )
    write_table(console, Table("Claims of arXiv 2404.02852", columns, rows))
    write_line(console)
    told = summary(outcomes)
    write_paragraph(
        console,
        f"{told['hold']} hold, {told['fail']} fail ({told['fail in size only']} of them in size only: their direction "
        f"holds), {told['inputs']} are inputs of the law and confirm nothing, {told['not computable']} cannot be computed.",
        lead=f"{len(outcomes)} claims",
    )
    inputs = next((o.inputs for o in outcomes if "latency" in o.inputs), outcomes[0].inputs)
    write_paragraph(console, ", ".join(f"{k} {v}" for k, v in inputs.items() if v is not None), lead="With")
    write_line(console)
    for o in outcomes:
        if o.holds is False or (o.holds is None and o.role != "input") or o.claim.cannot:
            write_paragraph(console, f"{o.claim.statement}: {o.reason}.", lead=o.claim.id, indent=2, first="")


def outcome_table(outcomes: Sequence[Outcome], *, latency: str) -> list[str]:
    """Rows of a Markdown table, one a number."""
    beside = any(o.other_latencies for o in outcomes)
    other = next((o.other_latencies[0].latency for o in outcomes if o.other_latencies), "")
    head = ["claim", "number", "paper", f"ours ({latency})", "90% of draws", "error", "tolerance"]
    head += [other] if beside else []
    head += ["direction", "holds"]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for o in outcomes:
        for i, part in enumerate(o.parts):
            first = i == 0
            ours = quantity(part.ours, o.claim.unit)
            cells = [
                f"`{o.claim.id}`" if first else "",
                part.label if part.judged else f"({part.label})",
                printed(o, part),
                ours,
                _span(o, part),
                _error(o, part),
                f"{part.tolerance:.3g}" if part.tolerance is not None else "",
            ]
            if beside:
                cells.append(quantity(o.other_latencies[0].ours[i], o.claim.unit) if o.other_latencies else "")
            cells += [_mark(o.direction_holds), verdict(o.holds, o.role, o.claim.cannot)] if first else ["", ""]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def sensitivity_table(outcomes: Sequence[Outcome], settings: Sequence[Setting]) -> list[str]:
    """Rows of a Markdown table: each number that involves cost under each of the settings of serving."""
    involved = [o for o in outcomes if o.sensitivity]
    if not involved:
        return []
    lines = _head(["claim", "number", "paper", "base"], settings)
    for o in involved:
        for i, part in enumerate(o.parts):
            if not _involves_cost(o, i):
                continue
            cells = [f"`{o.claim.id}`", part.label, printed(o, part), quantity(part.ours, o.claim.unit)]
            cells += [quantity(under(o, s).ours[i], o.claim.unit) for s in settings]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def verdict_table(outcomes: Sequence[Outcome], settings: Sequence[Setting]) -> list[str]:
    """Rows of a Markdown table: whether direction and size of each prediction that involves cost hold under each setting."""
    judged = [o for o in outcomes if o.sensitivity and o.holds is not None]
    if not judged:
        return []
    lines = _head(["claim", "base"], settings)
    for o in judged:
        worlds = [o, *(under(o, s) for s in settings)]
        cells = [_which(w.direction_holds, w.magnitude_holds) for w in worlds]
        lines.append(f"| `{o.claim.id}` | {' | '.join(cells)} |")
    held = [sum(o.holds is True for o in judged), *(sum(under(o, s).holds is True for o in judged) for s in settings)]
    return [*lines, f"| claims that hold | {' | '.join(str(n) for n in held)} |"]


def _head(columns: Sequence[str], settings: Sequence[Setting]) -> list[str]:
    names = [*columns, *(s.name for s in settings)]
    return [f"| {' | '.join(names)} |", f"|{'---|' * len(names)}"]


def _which(direction: bool | None, magnitude: bool | None) -> str:
    """What holds of a claim: yes, direction (alone), size (alone) or NO; a dash where there is no number."""
    told = {"direction": direction, "size": magnitude}
    known = {name: holds for name, holds in told.items() if holds is not None}
    if not known:
        return "-"
    return "yes" if all(known.values()) else next((name for name, holds in known.items() if holds), "NO")


def under(outcome: Outcome, setting: Setting) -> Elsewhere:
    """The claim under one setting of the sensitivity analysis."""
    return next(w for w in outcome.sensitivity if w.name == setting.name)


def _involves_cost(outcome: Outcome, index: int) -> bool:
    from moescale.reproduction.quantities import NEEDS_COSTS

    return outcome.claim.parts[index].quantity in NEEDS_COSTS


def host_table(found: Sequence[HostTime]) -> list[str]:
    """Rows of a Markdown table: the host's time that would reproduce each printed cost ratio."""
    lines = [
        "| claim | number | batch limited by | paper | kernels alone | time a sequence | or time a pass |",
        "|---|---|---|---|---|---|---|",
    ]
    for h in found:
        limit = "memory" if h.max_num_seqs is None else f"{h.max_num_seqs:g} sequences"
        times = ["none" if t is None else format_seconds(t) for t in (h.per_sequence_s, h.per_pass_s)]
        alone = "-" if h.kernels_alone is None else f"{h.kernels_alone:.3f}"
        lines.append(f"| `{h.claim}` | {h.label} | {limit} | {h.paper:.3f} | {alone} | {times[0]} | {times[1]} |")
    return lines
