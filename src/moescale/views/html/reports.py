"""A plan as a page to send: the answer, what it stands on, and what could make it wrong."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from markupsafe import Markup

from moescale.errors import InputError, install
from moescale.hardware.gpus import find_gpu
from moescale.hardware.prices import price
from moescale.io.files import decode_utf8, read_bytes
from moescale.models.family import CONVENTIONS
from moescale.planning.plan import Plan
from moescale.planning.plan_file import parse_json, parse_plan
from moescale.scaling_laws import catalogue_names, find_law
from moescale.scaling_laws.ensemble import measured_on
from moescale.units import format_bytes, format_usd
from moescale.views.figures import plan_figure
from moescale.views.html import summary
from moescale.views.html.render import Block, Facts, Section, page, picture
from moescale.views.tables import plan as plan_tables
from moescale.views.tables import range_text, screen
from moescale.views.tables.decision import decision_facts, plan_headline, serving_basis

NO_FIGURE = f"The figure is left out, as matplotlib is not installed: {install('figures')}."


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where the reported answer comes from: its file, how that was made, and the report's program (None: not printed)."""

    name: str | None = None
    sha256: str | None = None
    made_with: Mapping[str, object] = field(default_factory=dict[str, object])
    version: str | None = None  # of the program that makes the report

    def blocks(self) -> list[Block]:
        """How to reproduce the answer."""
        command, version, files = (self.made_with.get(key) for key in ("command", "moescale", "sha256"))
        known = {
            "answer by": f"moescale {version}" if isinstance(version, str) else None,
            "report by": self.version and f"moescale {self.version}",
            "answer file": self.name,
            "its SHA-256": self.sha256,
        }
        if isinstance(files, Mapping):
            known |= {f"SHA-256 of {name}": str(digest) for name, digest in files.items() if digest}
        facts = [(label, text) for label, text in known.items() if text is not None]
        typed = isinstance(command, str) and command
        return [*([Markup("<pre><code>{}</code></pre>").format(command)] if typed else []), facts]


def read_plan(path: str | Path) -> tuple[Plan, Origin]:
    """The plan in a file and where it comes from; InputError for a file that holds none."""
    where, data = str(path), read_bytes(path)
    record = parse_json(decode_utf8(data, where=where), where=where)
    if not isinstance(record, Mapping) or not {"recommendation", "infeasible"} & set(record):
        raise InputError("holds nothing to report", where=where, next_step="give a plan (`plan --json`)")
    made = record.get("made_with")
    made_with = dict(made) if isinstance(made, Mapping) else {}
    origin = Origin(name=Path(path).name, sha256=hashlib.sha256(data).hexdigest(), made_with=made_with)
    return parse_plan(record, where=where), origin


def plan_report(plan: Plan, origin: Origin | None = None) -> str:
    """A self-contained HTML page of a plan: what it says in plain sentences, and a technical part; the figure needs matplotlib."""
    notes, no_life = [*plan.decision.caveats, *plan.warnings], plan.lifetime_infeasible
    if no_life is not None and not any(no_life in warning for warning in plan.warnings):
        notes.append(f"No plan for the whole life: {no_life}.")
    most, tpot_s = plan.asked.get("max_gpus"), plan.asked.get("max_tpot_s")
    servers = f"at most {most:g} {plan.gpu}" if isinstance(most, int | float) else plan.gpu
    speed = f", at {1.0 / tpot_s:.3g} tokens a second for each user" if isinstance(tpot_s, float) else ""
    question = (
        f"Which model should {screen.budget_words(plan, flops_too=True)} train, if it is then served on {servers}{speed}, "
        f"with {plan.prompt_tokens:g} tokens in and {plan.output_tokens:g} out a request?"
    )
    life: list[Block] = []
    if plan.lifetime is not None:
        others = [c for c in plan.lifetime.recommendation.caveats if c not in plan.decision.caveats]
        life = [plan_tables.lifetime_table(plan.lifetime), plan_tables.training_sentence(plan.lifetime), others]
    told = Markup("").join(Markup("<p>{}</p>").format(sentence) for sentence in summary.sentences(plan))
    caption = "Loss against serving cost: all models of the budget, a curve an expert count. Lower left is better."
    drawn: Block = NO_FIGURE
    if find_spec("matplotlib") is not None:
        drawn = picture(plan_figure(plan), caption, f"{caption} {plan_headline(plan)}.")
    sections: list[Section] = [
        ("Answer", [Markup('<div class="answer">{}</div>').format(told)]),
        ("What could make it wrong", [summary.doubts(plan)]),
        ("Question", [question]),
        ("Quality and price of the models of the budget", [drawn]),
    ]
    facts = [f for f in screen.facts(plan, _options(origin)) if f[0] != "More"]
    details: list[Block] = [decision_facts(plan), *plan_tables.choice_tables(plan)]
    more: list[Section] = [
        ("Decision", [f"Looked for: {plan.recommendation.rule}.", screen.choices_table(plan), facts]),
        ("Caveats", [notes] if notes else []),
        ("Details", [*details, *([plan_tables.known_table(plan)] if plan.known else [])]),
        ("Evidence", plan_tables.evidence_tables(plan)),
        ("Lifetime cost", life),
        ("Assumptions", [[*_law_facts(plan), *_serving_facts(plan)]]),
        ("Glossary", [plan_tables.GLOSSARY.format(base=plan_tables.base_name(plan))]),
        ("How to reproduce it", (made := origin or Origin()).blocks()),
    ]
    meta = [f"moescale {made.version}"] if made.version else []
    return page(f"Which model to train: {screen.budget_words(plan)}", meta, sections, more)


def _options(origin: Origin | None) -> str | None:
    """The options of the command that made a plan, for the commands that go on from it."""
    words = str((origin or Origin()).made_with.get("command", "")).split("moescale plan ", 1)
    return " ".join(re.sub(r"\s--(?:json|details)\b", "", f" {words[1]}").split()) if len(words) == 2 else None


def _law_facts(plan: Plan) -> Facts:
    meaning = CONVENTIONS.get(plan.convention)
    counted = f"{plan.convention}: activated parameters over N are {meaning}" if meaning else plan.convention
    flops = ("training FLOPs", counted)
    if plan.law not in catalogue_names():
        return [("law", f"{plan.law}, a file of one's own"), flops]
    law = find_law(plan.law)
    families = [", ".join(filter(None, (family.dataset, family.tokenizer))) for family in measured_on(law)]
    pairs = {
        "law": f"{plan.law}: {law.source}",
        "its form": law.form.equation,
        "fitted on": range_text(law.fit_range, law.form),
        "loss is measured on": "; ".join(dict.fromkeys(filter(None, families))),
    }
    return [*((name, text) for name, text in pairs.items() if text), flops]


def _serving_facts(plan: Plan) -> Facts:
    gpu, usd = plan.gpu, f"{format_usd(plan.usd_per_gpu_hour)} a GPU hour, as stated"
    try:
        card, listed = find_gpu(plan.gpu), price(plan.gpu)
    except InputError:  # a file of one's own, or one without a listed price
        pass
    else:
        gpu = f"{card.name}, {format_bytes(card.memory_bytes)} ({card.source})"
        if listed.usd_per_gpu_hour == plan.usd_per_gpu_hour:
            usd = f"{format_usd(plan.usd_per_gpu_hour)} a GPU hour ({listed.terms}; {listed.source}, {listed.date})"
    latency, accuracy = serving_basis(plan)
    settings = [(name.replace("_", " "), _setting(value)) for name, value in plan.asked.items() if value is not None]
    return [
        ("GPU", gpu),
        ("price", usd),
        ("latency", latency),
        ("accuracy", accuracy),
        ("requests", f"{plan.prompt_tokens:g} prompt and {plan.output_tokens:g} output tokens on average"),
        *settings,
    ]


def _setting(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_setting, value))
    if isinstance(value, Mapping):
        return ", ".join(f"{name.replace('_', ' ')} {_setting(each)}" for name, each in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value)
