"""The report of a reproduction as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from moescale.laws.law import Law
from moescale.reproduce.claims import settings
from moescale.reproduce.evaluate import HostTime, Outcome, summary
from moescale.reproduce.tables import host_table, outcome_table, sensitivity_table

FIGURES = {
    "fitted_losses": "Fitted losses for each number of training tokens",
    "cost_by_size": "Serving cost against size",
    "largest_within_cost": "The largest model within a serving cost",
    "trade_off": "Loss, serving cost and training FLOPs of loss-optimal models",
    "loss_cost_curves": "Loss against serving cost on two budgets",
    "bounded_loss": "Cost and activated size at the loss of a base's optimum",
    "bounded_cost": "Loss and activated size at the cost of a base's optimum",
    "hidden_layers": "Width times depth against parameters",
}


def report(law: Law, outcomes: Sequence[Outcome], hosts: Sequence[HostTime], *, figures: str = "") -> str:
    """Tables of claims, their reasons, the sensitivity to serving, and the figures (in the folder `figures`)."""
    inputs = next((o.inputs for o in outcomes if "latency" in o.inputs), {})
    return "\n".join(
        [
            f"# The claims of arXiv 2404.02852 under {law.name}",
            "",
            *counts(outcomes),
            "",
            *outcome_table(outcomes, latency=str(inputs.get("latency", ""))),
            "",
            *legend(outcomes),
            "",
            "## Why",
            "",
            *reasons(outcomes),
            "",
            "## Sensitivity to serving",
            "",
            *sensitivity_section(outcomes),
            "",
            "## The host's time",
            "",
            *host_table(hosts),
            "",
            "## Figures",
            "",
            *figure_section(figures),
        ]
    )


def counts(outcomes: Sequence[Outcome]) -> list[str]:
    """How many claims hold, in a sentence, and what they were computed with."""
    told = summary(outcomes)
    inputs = next((o.inputs for o in outcomes if "latency" in o.inputs), outcomes[0].inputs)
    listed = ", ".join(f"{k} {v}" for k, v in inputs.items() if v is not None)
    return [
        f"{len(outcomes)} claims: {told['hold']} hold, {told['fail']} fail ({told['fail in size only']} of them in size only: their direction holds), {told['inputs']} are inputs of the law and "
        f"confirm nothing, {told['not computable']} cannot be computed.",
        "",
        f"With {listed}.",
    ]


def legend(outcomes: Sequence[Outcome]) -> list[str]:
    """How to read the table, and the argument of each tolerance."""
    used = {p.tolerance.name: p.tolerance for o in outcomes for p in o.claim.parts if p.tolerance is not None}
    return [
        "A claim holds when its direction (order, trend) holds and each of its numbers lies within its tolerance. Numbers in",
        "brackets are shown and not judged. Tolerances, relative to the printed number, were written down before the claims",
        "were evaluated. Two definitions were corrected afterwards, without changing a verdict: the budgets of `ratio.constant`",
        "and the unit of `no.DE`.",
        "",
        *(f"- {t.value:.3g} ({name.replace('_', ' ')}): {t.why}." for name, t in used.items()),
    ]


def reasons(outcomes: Sequence[Outcome]) -> list[str]:
    """Each claim with its verdict in words."""
    lines: list[str] = []
    for o in outcomes:
        c = o.claim
        share = (
            "" if o.direction_share is None else f" The direction holds in {o.direction_share:.0%} of the law's draws."
        )
        note = f" {c.note[0].upper()}{c.note[1:]}." if c.note else ""
        lines.append(f"- `{c.id}` (line {c.line}): {c.statement}. {o.reason[0].upper()}{o.reason[1:]}.{share}{note}")
    return lines


def sensitivity_section(outcomes: Sequence[Outcome]) -> list[str]:
    """The table of settings, and why each was chosen."""
    table = sensitivity_table(outcomes)
    if not table:
        return ["No claim was varied."]
    return [
        "One thing changed at a time. The price of a GPU hour cancels in every claim.",
        "",
        *table,
        "",
        *(f"- {s.name}: {s.why}." for s in settings()),
    ]


def figure_section(folder: str) -> list[str]:
    """Every figure with its caption."""
    prefix = f"{folder}/" if folder else ""
    return [line for name, caption in FIGURES.items() for line in (f"![{caption}]({prefix}{name}.svg)", "")]
