"""A plan as a page to send: the figures of the answer, what it stands on, and what could make it wrong.

jinja2 escapes whatever is not made here, and nothing is loaded from elsewhere.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from moescale.errors import InputError, install
from moescale.io.files import decode_utf8, read_bytes
from moescale.io.json_text import parse_json
from moescale.planning.plan import Plan
from moescale.planning.plan_file import AGAIN, parse_plan
from moescale.planning.rationale import EXTRAPOLATED
from moescale.views.figures import plan_figure
from moescale.views.figures.style import colour_of, colour_on_dark, figure_bytes
from moescale.views.tables import Table, answer, choices, screen
from moescale.views.tables import plan as plan_tables

CHOSEN = "recommended"  # how the name of the chosen row begins
NO_FIGURE = f"The figure is left out, as matplotlib is not installed: {install('figures')}."

Facts = Sequence[tuple[str, str]]  # names with their values
# A paragraph, what is markup already, facts, the lines of a list, or a table.
Block = str | Markup | Facts | Sequence[str] | Table
Section = tuple[str, Sequence[Block]]  # under its heading

ENVIRONMENT = Environment(
    loader=PackageLoader("moescale.views", "html"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


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
        typed = isinstance(command, str) and command
        code = [Markup("<pre><code>{}</code></pre>").format(command)] if typed else []
        return [*code, [(label, text) for label, text in known.items() if text is not None]]

    def options(self) -> str | None:
        """The options of the command that made a plan, for the commands that go on from it."""
        _, found, words = str(self.made_with.get("command", "")).partition("moescale plan ")
        return " ".join(re.sub(r"\s--(?:json|details)\b", "", f" {words}").split()) if found else None


def read_plan(path: str | Path) -> tuple[Plan, Origin]:
    """The plan in a file and where it comes from; InputError for a file that holds none."""
    where, data = str(path), read_bytes(path)
    record = parse_json(decode_utf8(data, where=where), where=where, next_step=AGAIN, finite=True)
    if not isinstance(record, Mapping) or not {"recommendation", "infeasible"} & set(record):
        raise InputError("holds nothing to report", where=where, next_step="give a plan (`plan --json`)")
    made = record.get("made_with")
    made_with = made if isinstance(made, Mapping) else {}
    origin = Origin(name=Path(path).name, sha256=hashlib.sha256(data).hexdigest(), made_with=made_with)
    return parse_plan(record, where=where), origin


def plan_report(plan: Plan, origin: Origin | None = None) -> str:
    """A self-contained HTML page of a plan: its figures, and a technical part; the figure needs matplotlib."""
    made, caveats, life = origin or Origin(), plan.decision.caveats, list[Block]()
    if plan.lifetime is not None:
        others = [c for c in plan.lifetime.recommendation.caveats if c not in caveats]
        life = [plan_tables.lifetime_table(plan.lifetime), plan_tables.training_sentence(plan.lifetime), others]
    figures, facts = answer.figures(plan), screen.facts(plan, made.options())[:-1]  # but More
    doubts = [f"Open: {text}." for name, text in facts if name == "Open"]
    doubts += [note for note in caveats if note.startswith((EXTRAPOLATED, screen.TOO_SLOW))]
    sections: list[Section] = [
        ("Answer", [[_told(figure) for figure in figures if not figure.key]]),
        ("Models compared", [_chosen(choices.choices_table(plan))]),
        ("What could make it wrong", [[*doubts, *plan.warnings]]),
    ]
    more: list[Section] = [
        ("Decision", [f"{choices.question_line(plan)}.", f"Looked for: {plan.decision.rule}.", facts]),
        ("Caveats", [[*caveats, *plan.warnings]]),
        ("Details", [plan_tables.decision_facts(plan), *plan_tables.choice_tables(plan)]),
        ("Evidence", plan_tables.evidence_tables(plan)),
        ("Lifetime cost", life),
        ("Assumptions", [f"{plan_tables.basis(plan)}."]),
        ("Glossary", [plan_tables.glossary(plan)]),
        ("How to reproduce it", made.blocks()),
    ]
    told, sizes, image = answer.benefit(plan), plan_tables.plan_headline(plan), None
    if find_spec("matplotlib") is not None:
        svg = base64.b64encode(figure_bytes(plan_figure(plan), "svg")).decode()
        image = f"data:image/svg+xml;base64,{svg}"
    return ENVIRONMENT.get_template("templates/page.html").render(
        title=f"{told}: {sizes.removeprefix('Train ').replace(': ', ', ')}" if told else sizes,
        meta=[f"Which model to train: {choices.budget_words(plan)}", *([f"moescale {made.version}"] if made.version else [])],
        figures=[figure for figure in figures if figure.key],
        image=image, sizes=sizes, marked=CHOSEN, sections=sections, more=more,
        colour_of=colour_of, colour_on_dark=colour_on_dark,
    )  # fmt: skip


def _told(figure: answer.Figure) -> tuple[str, str]:
    """A figure with all that belongs to it, in words that need no glossary."""
    return figure.name, "; ".join((figure.text.replace("/Mtok", " a million tokens"), *figure.notes))


def _plain(name: str) -> str:
    """The name of a row without its mark, and without the option that asks for it."""
    name = re.sub(r"(\d+%): .*", r"chance of \1", name.removeprefix(">").strip())
    return name.replace("knee", "balance of loss and price")


def _chosen(table: Table) -> Table:
    """The choices in words that need no glossary, the recommended row marked by its name."""
    heads = {"E": "experts", "$/Mtok": "$ a million", "life $": "$ of its life"}
    heads |= {"TTFT": "first token", "TPOT": "a token"}
    columns = tuple(replace(column, head=heads.get(column.head, column.head)) for column in table.columns)
    rows = tuple((_plain(name), *row) for name, *row in table.rows)
    note = "$ a million: of serving a million output tokens. a token: time until the next one. GPUs: of one server."
    return replace(table, title="", columns=columns, rows=rows, notes=(*table.notes, note))
