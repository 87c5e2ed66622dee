"""Write into docs/laws.md every law form and every coefficient set, from the code and the catalogue.

python scripts/document_laws.py
"""

from __future__ import annotations

import importlib
import importlib.util

import numpy as np

import modern_experts
from moescale.models.family import ModelFamily
from moescale.scaling_laws import FORMS, FURTHER_INPUTS, Law, LawForm, catalogue_names, find_law
from moescale.scaling_laws.ensemble import measured_on
from moescale.units import format_count
from pages import filled, table, write


def inputs(form: LawForm) -> str:
    """The variables of a form, further ones with their defaults."""
    named = ["N"] + ["D"] * form.uses_tokens + ["E"] * form.uses_experts
    for name, default in form.extra_inputs.items():
        if default is None:
            implied = form.implied_inputs(np.ones(1), 1) if form.implied_inputs else {}
            said = "from E and top-k in a plan, else required" if name in implied else "required"
        else:
            said = "default: one epoch" if default == float("inf") else f"default {default:g}"
        named.append(f"`{name}` ({said})")
    return ", ".join(named)


def counted(family: ModelFamily) -> str:
    """What N counts, in words."""
    size = "all experts" if family.n_counts == "total" else "the model without further experts"
    tables = family.embedding_matrices if family.vocab_size else 0
    with_tables = {0: "no embeddings", 1: "one embedding table", 2: "both embedding tables"}[tables]
    return f"{size}, {with_tables}"


def fitted_range(law: Law) -> str:
    """The range of the runs, as far as it is known."""
    symbols = {"n_params": "N", "tokens": "D", "experts": "E"}
    parts: list[str] = []
    for name, (low, high) in law.fit_range.items():
        ends = [f"{v:g}" if v < 1000 else format_count(v) for v in (low, high)]
        parts.append(f"{symbols.get(name, name)} {ends[0] if low == high else ' to '.join(ends)}")
    return "; ".join(parts) or "not known"


def data(law: Law) -> str:
    """The data whose losses a law predicts."""
    named = (family.dataset for family in measured_on(law))
    return " and ".join(dict.fromkeys(filter(None, named))) or "not stated"


def told(form: LawForm) -> str:
    """What a form's module says of it; of a form that shares another's module, its equation."""
    module = f"moescale.scaling_laws.{form.name.replace('-', '_')}"
    found = importlib.import_module(module).__doc__ if importlib.util.find_spec(module) else None
    return (found or form.equation).strip()


def form_section(form: LawForm) -> list[str]:
    """A form: what its module says of it, inputs, parameters, whether it plans."""
    return [
        f"### {form.name}: {form.title}",
        "",
        told(form),
        "",
        f"- Source: {form.source}",
        f"- Inputs: {inputs(form)}",
        f"- Logarithms: {'base 10' if 'log10' in form.equation else 'natural'}; L in nats per token",
        "- Parameters: " + "; ".join(f"`{p.name}` {p.meaning}" for p in form.parameters) + f". Domain: {form.domain}.",
        f"- Plans: {'no: ' + form.no_allocation if form.no_allocation else 'yes'}",
        "",
    ]


def set_section(law: Law) -> list[str]:
    """A coefficient set: source, values, conventions, notes."""
    family = law.family
    routed = f"top-{family.top_k}, experts in every {f'{family.moe_every}th ' if family.moe_every > 1 else ''}layer"
    return [
        f"### {law.name}",
        "",
        f"- Form: {law.form.name}. Source: {law.source} ({law.date})",
        "- Coefficients: " + ", ".join(f"{name} {value:.7g}" for name, value in law.parameters.items())
        if not law.members
        else "- Laws: " + ", ".join(f"{m.weight:.0%} [{m.law.name}](#{m.law.name})" for m in law.members),
        f"- N counts {counted(family)}. Family: {routed}. Data: {data(law)}"
        + (f", tokenizer {family.tokenizer}" if family.tokenizer and not law.members else ""),
        f"- Fitted on: {fitted_range(law)}",
        *(f"- {note}" for note in law.notes),
        "",
    ]


def page() -> str:
    """The page's text."""
    known = [find_law(name) for name in catalogue_names()]
    forms = (
        [
            f"[{form.name}](#{form.name}-{form.title.lower().replace(' ', '-').replace(',', '').replace('.', '')})",
            f"`{form.equation}`",
            inputs(form),
            "10" if "log10" in form.equation else "e",
            "no" if form.no_allocation else "yes",
        ]
        for form in FORMS.values()
    )
    sets = (
        [
            law.name,
            law.form.name,
            counted(law.family),
            data(law),
            fitted_range(law),
            "no" if law.form.no_allocation else "yes",
        ]
        for law in known
    )
    further = ([f"`{name}`", entry.meaning, entry.range_text] for name, entry in FURTHER_INPUTS.items())
    parts = {
        "forms": table(("form", "formula", "inputs", "log base", "plans"), forms),
        "sets": table(("coefficient set", "form", "N counts", "data", "fitted on", "plans"), sets),
        "inputs": table(("input", "meaning", "range"), further),
        "form-sections": [line for form in FORMS.values() for line in form_section(form)],
        "set-sections": [line for law in known for line in set_section(law)],
    } | modern_experts.parts()
    return filled("laws.md", parts)


if __name__ == "__main__":
    write("laws.md", page())
