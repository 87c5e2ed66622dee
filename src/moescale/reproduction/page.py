"""The report of a reproduction as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from moescale.reproduction.claims import Setting, settings
from moescale.reproduction.evaluate import HostTime, Outcome
from moescale.reproduction.tables import (
    conditions,
    host_table,
    outcome_table,
    sensitivity_table,
    verdict_table,
    verdicts,
)
from moescale.scaling_laws.law import Law

FIGURES = {
    "fitted_losses": "Fitted losses for each number of training tokens",
    "cost_by_size": "Serving cost against size",
    "largest_within_cost": "The largest model within a serving cost",
    "trade_off": "Loss, serving cost and training FLOPs of loss-optimal models",
    "loss_cost_curves": "Loss against serving cost on two budgets",
    "bounded_loss": "Cost and activated size at the loss of a baseline's optimum",
    "bounded_cost": "Loss and activated size at the cost of a baseline's optimum",
    "hidden_layers": "Width times depth against parameters",
}


def report(law: Law, outcomes: Sequence[Outcome], hosts: Sequence[HostTime]) -> str:
    """Tables of claims, their reasons, the sensitivity to serving, and the figures."""
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
            *(line for name, caption in FIGURES.items() for line in (f"![{caption}]({name}.svg)", "")),
        ]
    )


def counts(outcomes: Sequence[Outcome]) -> list[str]:
    """How many claims hold, in a sentence, and what they were computed with."""
    return [f"{len(outcomes)} claims: {verdicts(outcomes)}", "", f"With {conditions(outcomes)}."]


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
        held = o.direction_share
        share = "" if held is None else f" The direction holds in {held:.0%} of the law's draws."
        note = f" {c.note[0].upper()}{c.note[1:]}." if c.note else ""
        lines.append(f"- `{c.id}` (line {c.line}): {c.statement}. {o.reason[0].upper()}{o.reason[1:]}.{share}{note}")
    return lines


def sensitivity_section(outcomes: Sequence[Outcome]) -> list[str]:
    """The tables of settings, what holds under each, and why each was chosen."""
    varied = {w.setting for o in outcomes for w in o.sensitivity}
    serving = [s for s in settings() if s.name in varied and s.moe_execution is None]
    experts = [s for s in settings() if s.name in varied and s.moe_execution is not None]
    if not varied:
        return ["No claim was varied."]
    lines = [
        "The price of a GPU hour cancels in every claim. The last table of each part says what holds: yes (direction and size),",
        "only the direction, only the size, or neither (NO).",
        "",
        "### Settings of the server",
        "",
        *_settings(outcomes, serving),
    ]
    if not experts:
        return lines
    return [
        *lines,
        "",
        "### Every expert on every token",
        "",
        "From December 2023 to version 0.2.7 (January 2024) vLLM gave each GPU whole experts and sent every token of the batch",
        "through every one of them; the outputs of experts that a token had not chosen were masked (pull request 2090). Kernels",
        "that compute a token's own experts alone came with pull requests 2453 and 2542 in 0.3.0. The paper is of 3 April 2024 and",
        "does not name its version. Memory and the batch are unchanged; weights read and arithmetic grow. *All experts* prices each",
        "expert by the dense products that the loop ran. More GPUs than experts are refused, as that version did; where the GPUs do",
        "not divide the experts, the fullest one sets the pace, and memory is counted as if they did. Dense models are unchanged.",
        "",
        "The effect of this suspect on the claims was known from a trial before these settings were written down. The tolerances are",
        "older than the trial and were not touched; nothing in the settings was fitted to a claim. `moescale reproduce",
        "--moe-execution all-experts` evaluates all claims so.",
        "",
        *_settings(outcomes, experts),
    ]


def _settings(outcomes: Sequence[Outcome], chosen: Sequence[Setting]) -> list[str]:
    return [
        *sensitivity_table(outcomes, chosen),
        "",
        *verdict_table(outcomes, chosen),
        "",
        *(f"- {s.name}: {s.why}." for s in chosen),
    ]
