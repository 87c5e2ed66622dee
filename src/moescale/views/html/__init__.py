"""A plan as a page to send: the answer in plain sentences, what it stands on, and what could make it wrong.

jinja2 escapes whatever is not made here, and nothing is loaded from elsewhere.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from moescale.errors import InputError, install
from moescale.hardware.gpus import find_gpu
from moescale.hardware.prices import price
from moescale.io.files import decode_utf8, read_bytes
from moescale.io.json_text import parse_json
from moescale.models.family import CONVENTIONS
from moescale.planning.plan import Plan
from moescale.planning.plan_file import AGAIN, parse_plan
from moescale.planning.rationale import DECIDES, EXTRAPOLATED
from moescale.scaling_laws import catalogue_names, find_law
from moescale.scaling_laws.ensemble import measured_on
from moescale.serving.accuracy import calibrated
from moescale.units import format_bytes, format_count, format_flops, format_usd
from moescale.views.figures import plan_figure
from moescale.views.figures.style import colour_of, colour_on_dark, figure_bytes
from moescale.views.tables import Table, answer, choices, range_text, screen, spending, usd_range
from moescale.views.tables import plan as plan_tables

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BUDGET_BASE = "the loss-optimal "  # how the name of a baseline that is no known model begins
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
    made_with = dict(made) if isinstance(made, Mapping) else {}
    origin = Origin(name=Path(path).name, sha256=hashlib.sha256(data).hexdigest(), made_with=made_with)
    return parse_plan(record, where=where), origin


def plan_report(plan: Plan, origin: Origin | None = None) -> str:
    """A self-contained HTML page of a plan: what it says in plain sentences, and a technical part; the figure needs matplotlib."""
    made, notes, no_life = origin or Origin(), [*plan.decision.caveats, *plan.warnings], plan.lifetime_infeasible
    if no_life is not None and not any(no_life in warning for warning in plan.warnings):
        notes.append(f"No plan for the whole life: {no_life}.")
    life: list[Block] = []
    if plan.lifetime is not None:
        others = [c for c in plan.lifetime.recommendation.caveats if c not in plan.decision.caveats]
        life = [plan_tables.lifetime_table(plan.lifetime), plan_tables.training_sentence(plan.lifetime), others]
    sections: list[Section] = [
        ("Answer", _sentences(plan)),
        ("Models compared", [_chosen(choices.choices_table(plan))]),
        ("What could make it wrong", [_doubts(plan)]),
    ]
    facts = [f for f in screen.facts(plan, made.options()) if f[0] != "More"]
    known = [plan_tables.known_table(plan)] if plan.known else []
    more: list[Section] = [
        ("Decision", [f"{choices.question_line(plan)}.", f"Looked for: {plan.decision.rule}.", facts]),
        ("Caveats", [notes] if notes else []),
        ("Details", [plan_tables.decision_facts(plan), *plan_tables.choice_tables(plan), *known]),
        ("Evidence", plan_tables.evidence_tables(plan)),
        ("Lifetime cost", life),
        ("Assumptions", [[*_law_facts(plan), *_serving_facts(plan)]]),
        ("Glossary", [plan_tables.glossary(plan)]),
        ("How to reproduce it", made.blocks()),
    ]
    told, sizes = answer.benefit(plan), plan_tables.plan_headline(plan)
    drawn = find_spec("matplotlib") is not None
    return ENVIRONMENT.get_template("templates/page.html").render(
        title=f"{told}: {sizes.removeprefix('Train ').replace(': ', ', ')}" if told else sizes,
        meta=[f"Which model to train: {choices.budget_words(plan)}", *([f"moescale {made.version}"] if made.version else [])],
        figures=[figure for figure in answer.figures(plan) if figure.key],
        image=_image(plan_figure(plan)) if drawn else None,
        sizes=sizes, marked=CHOSEN, sections=sections, more=more,
        colour_of=colour_of, colour_on_dark=colour_on_dark,
    )  # fmt: skip


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


def _image(figure: Figure) -> str:
    """A figure as the address of an image."""
    return f"data:image/svg+xml;base64,{base64.b64encode(figure_bytes(figure, 'svg')).decode()}"


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
    with suppress(InputError):  # a file of one's own, or one without a listed price
        card, listed = find_gpu(plan.gpu), price(plan.gpu)
        gpu = f"{card.name}, {format_bytes(card.memory_bytes)} ({card.source})"
        if listed.usd_per_gpu_hour == plan.usd_per_gpu_hour:
            usd = f"{format_usd(plan.usd_per_gpu_hour)} a GPU hour ({listed.terms}; {listed.source}, {listed.date})"
    latency, accuracy = plan_tables.serving_basis(plan)
    requests = f"{plan.prompt_tokens:g} prompt and {plan.output_tokens:g} output tokens on average"
    settings = [(name.replace("_", " "), _setting(value)) for name, value in plan.asked.items() if value is not None]
    facts = [("GPU", gpu), ("price", usd), ("latency", latency), ("accuracy", accuracy), ("requests", requests)]
    return [*facts, *settings]


def _setting(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_setting, value))
    if isinstance(value, Mapping):
        return ", ".join(f"{name.replace('_', ' ')} {_setting(each)}" for name, each in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value)


def _sentences(plan: Plan) -> list[str]:
    """What is trained and what that takes, what serving costs, and the chance that the quality falls short."""
    model, use, own, base = plan.decision.model, plan.training, plan.built_base, plan.base_name
    if base.startswith(BUDGET_BASE):
        base = f"the best {base.removeprefix(BUDGET_BASE).partition(' of ')[0]} of this budget"
    kind = f" ({model.experts:g} experts, {format_count(model.n_params_active)} used for a token)"
    text = f"train a model of {format_count(model.n_params_total)} parameters{'' if model.experts == 1 else kind}"
    takes = f"{format_flops(model.training_flops)} FLOPs"
    if use is not None and use.usd is not None and use.gpu_days is not None:
        days, gpus = use.gpu_days / choices.training_gpus(use), choices.training_gpus(use)
        takes = f"{format_usd(use.usd)} and {f'{days:,.0f}' if days >= 10 else f'{days:.2g}'} days on {gpus:,.0f} {use.train_gpu} GPUs"
    told = [f"We spend {takes} to {text} on {format_count(model.tokens)} tokens."]
    ours, its = model.usd_per_mtok, own.usd_per_mtok
    text = f"Serving it costs {format_usd(ours)} per million output tokens"
    if (corrected := calibrated(ours, plan.accuracy)) is not None:
        text += f" ({format_usd(corrected.usd_per_mtok)} if corrected by the known error of such prices)"
    if plan.of_life and plan.lifetime is not None and model.total_usd is not None:
        ours, its = model.total_usd, choices.with_life(plan, own).total_usd
        served = format_count(plan.lifetime.lifetime_tokens)
        text += f"; its training and {served} served tokens cost {format_usd(ours)}"
    told.append(f"{text}, {ours / its:.0%} of what {base} costs." if its and not plan.is_baseline else f"{text}.")
    if not plan.of_life and (volumes := choices.by_volume(plan, choices.MOST_ROWS)):
        told.append(f"Which model of the table below costs the least to train and serve: {volumes}.")
    if (chances := screen.shown_chance(plan)) is not None:
        laws, limit = len(plan.voting_laws), plan.asked.get("max_loss")
        missed = max(1.0 - round(chances[1], 2), 1.0 / (laws + 1) if laws else 0.01)  # few laws agree by chance
        goal = f"the quality of {base}" if limit is None else f"the quality that was asked for (a loss of {limit})"
        told.append(f"The chance that it falls short of {goal} is {missed:.0%}.")
    return told


def _doubts(plan: Plan) -> list[str]:
    """What is open, and what could make the answer wrong."""
    best, error, told = plan.decision, plan.training and plan.training.error, list[str]()
    if best.undecided and best.rivals:
        counts = sorted(c.experts for c in (best.model, *best.rivals))
        narrower = f" Small training runs, for {screen.SWEEP_SHARE:.0%} of the budget, narrow it down."
        runs = narrower if (best.likeliest or 0.0) < DECIDES else ""
        told.append(
            f"Open: labs differ so much that any number from {counts[0]:g} to {counts[-1]:g} experts may be best for ours; the table "
            f"has their figures.{runs}"
        )
    named = () if plan.voting_laws or plan.of_life else plan.laws
    if doubting := [view.law for view in named if view.probability < 0.5]:
        some = f"{len(doubting)} of {len(named)} published laws"
        told.append(f"Quality: {some} expect it to fall short of the baseline's ({', '.join(doubting)}).")
    if error is not None:
        uneven = f"; uneven use of experts may add {error.real_routing - 1.0:.0%}" if error.real_routing else ""
        runs = f"with {spending.SURE:.0%}, by {error.runs} published runs{uneven}"
        told.append(f"Training days and dollars: up to {error.times(spending.SURE):.2f} times the prediction {runs}.")
    likely, own = spending.likely_price(plan)
    if likely is None:
        told.append("Serving price: its error is unknown, as no servers of this kind were compared.")
    else:
        kind = "this kind" if own else "other kinds (none of this kind was compared)"
        cost = f"cost {usd_range(likely.interval)} per million output tokens"
        told.append(f"Serving price: nine of ten servers of {kind} {cost}.")
    if (tpot_s := spending.late_tpot_s(plan)) is not None:
        told.append(f"Speed: by the known error of such servers a user gets {1.0 / tpot_s:.3g} tokens a second.")
    told += [f"Quality: {note}" for note in best.caveats if note.startswith(EXTRAPOLATED)]
    return [*told, *(note for note in best.caveats if note.startswith(screen.TOO_SLOW)), *plan.warnings]
