"""The page reference/laws.md of the site: every law form and every coefficient set, from the code and the catalogue.

scripts/site_hooks.py builds it into the site. `python scripts/document_laws.py` writes what docs/evidence/own-law.md says of the
project's own coefficients and of many experts, and the tables beside that page.
"""

from __future__ import annotations

import importlib
import importlib.util
import re

import numpy as np

import modern_experts
from moescale.models.family import ModelFamily
from moescale.scaling_laws import FORMS, Law, LawForm, catalogue_names, find_law
from moescale.scaling_laws.ensemble import measured_on
from moescale.scaling_laws.form import FURTHER_INPUTS
from moescale.units import format_count
from pages import csv_text, filled, table, write


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


def anchor(form: LawForm) -> str:
    """The anchor of a form's section, as the site makes it of the heading."""
    return re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", f"{form.name}: {form.title}").strip().lower())


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


INTRODUCTION = """# Laws

Which laws does moescale know, and what do they rest on? A **form** is a formula that `fit` and `compare` take with `--law`; a
**coefficient set** is what `plan` and `predict` take. Losses of different sets have different units (tokenizer, dataset), and N
counts different parameters: never mix coefficients of one set with conventions of another. How well the forms predict held-out
runs, and what laws of many small experts agree on: [own law](../evidence/own-law.md).
"""


def pages() -> dict[str, str]:
    """The generated page by file name."""
    known = [find_law(name) for name in catalogue_names()]
    forms = (
        [
            f"[{form.name}](#{anchor(form)})",
            f"`{form.equation}`",
            inputs(form),
            "10" if "log10" in form.equation else "e",
            "no" if form.no_allocation else "yes",
        ]
        for form in FORMS.values()
    )
    sets = (
        [
            f"[{law.name}](#{law.name})",
            law.form.name,
            counted(law.family),
            data(law),
            fitted_range(law),
            "no" if law.form.no_allocation else "yes",
        ]
        for law in known
    )
    further = ([f"`{name}`", entry.meaning, entry.range_text] for name, entry in FURTHER_INPUTS.items())
    lines = [
        INTRODUCTION,
        "## Overview",
        "",
        *table(("form", "formula", "inputs", "log base", "plans"), forms),
        "",
        *table(("coefficient set", "form", "N counts", "data", "fitted on", "plans"), sets),
        "",
        "## Further inputs",
        "",
        "Columns of a table of runs, options of `predict`, `plan`, `fit` and `compare`.",
        "",
        *table(("input", "meaning", "range"), further),
        "",
        "## Forms",
        "",
        *(line for form in FORMS.values() for line in form_section(form)),
        "## Coefficient sets",
        "",
        *(line for law in known for line in set_section(law)),
    ]
    return {"laws.md": "\n".join(lines).rstrip() + "\n"}


COEFFICIENTS = ("symbol", "meaning", "moescale2026_joint", "p5", "p95")


def coefficients() -> list[list[str]]:
    """Rows of COEFFICIENTS: the project's form on the joint runs, with the range of 90% of the law's draws."""
    law = find_law("moescale2026-joint")
    low, high = np.percentile(law.form.decode(law.draws), [5, 95], axis=0)
    values = law.parameters
    return [
        [p.name, p.meaning, f"{values[p.name]:.3g}", f"{a:.3g}", f"{b:.3g}"]
        for p, a, b in zip(law.form.parameters, low, high, strict=True)
    ]


def evidence() -> dict[str, str]:
    """The texts of own-law.md and of the tables beside it, by path below docs/."""
    parts, tables = modern_experts.computed()
    texts = {f"evidence/{name}": text for name, text in tables.items()}
    texts["evidence/own-law-coefficients.csv"] = csv_text(COEFFICIENTS, coefficients())
    texts["evidence/own-law.md"] = filled("evidence/own-law.md", parts, "experts")
    return texts


if __name__ == "__main__":
    for path, text in evidence().items():
        write(path, text)
