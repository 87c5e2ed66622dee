"""A plan and a law as pages to send: the answer, what it stands on, and what could make it wrong."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from moescale.errors import InputError
from moescale.fitting.fit import Fit, huber, robust_spread
from moescale.fitting.holdout import RunArrays, diagnose, inputs_of
from moescale.hardware.gpus import find_gpu
from moescale.hardware.prices import price
from moescale.models.family import CONVENTIONS
from moescale.planning.plan import Plan
from moescale.scaling_laws import Law, catalogue_names, find_law
from moescale.scaling_laws.ensemble import measured_on
from moescale.scaling_laws.law import interval
from moescale.units import expert_label, format_bytes, format_flops, format_usd
from moescale.views.blocks import Answer, Block, Bullets, Commands, Facts, Picture, Section, Text
from moescale.views.figures import fit_figure, plan_figure
from moescale.views.html.render import page
from moescale.views.tables import plan as plan_tables
from moescale.views.tables import range_text, screen
from moescale.views.tables.decision import decision_facts, plan_headline, serving_basis
from moescale.views.tables.fit import group_table, law_table, prediction_table, suspect_table
from moescale.views.tables.models import known_table


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where the reported answer comes from: its file, how that was made, and the report's own date and program (None: not printed)."""

    name: str | None = None
    sha256: str | None = None
    made_with: Mapping[str, object] = field(default_factory=dict[str, object])
    date: str | None = None
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
        return [*([Commands([command])] if isinstance(command, str) and command else []), Facts(facts)]

    def page(self, title: str, about: Sequence[str], sections: Sequence[Section]) -> str:
        """The page of an answer; `about` stands under its title."""
        meta = [*filter(None, (self.date, self.version and f"moescale {self.version}")), *about]
        return page(title, meta, [*sections, ("How to reproduce it", self.blocks())])


def plan_report(plan: Plan, origin: Origin | None = None, *, title: str | None = None) -> str:
    """A self-contained HTML page of a plan; needs matplotlib, else InputError."""
    notes, no_life = [*plan.decision.caveats, *plan.warnings], plan.lifetime_infeasible
    if no_life is not None and not any(no_life in warning for warning in plan.warnings):
        notes.append(f"No plan for the whole life: {no_life}.")
    most = plan.asked.get("max_gpus")
    servers = f"at most {most:g} {plan.gpu}" if isinstance(most, int | float) else plan.gpu
    question = (
        f"Which model should {format_flops(plan.budget_flops)} training FLOPs buy, if it is then served on {servers}? "
        f"Looked for: {plan.recommendation.rule}."
    )
    life: list[Block] = []
    if plan.lifetime is not None:
        others = [c for c in plan.lifetime.recommendation.caveats if c not in plan.decision.caveats]
        life = [
            plan_tables.lifetime_table(plan.lifetime),
            Text(plan_tables.training_sentence(plan.lifetime)),
            Bullets(others),
        ]
    answer = [Answer(f"{plan_headline(plan)}."), screen.choices_table(plan), Facts(screen.facts(plan))]
    details = [Facts(decision_facts(plan)), *plan_tables.choice_tables(plan)]
    sections: list[Section] = [
        ("Question", [Text(question)]),
        ("Answer", [*answer, plan_picture(plan)]),
        ("Details", [*details, *([known_table(plan)] if plan.known else [])]),
        ("Caveats", [Bullets(notes)] if notes else []),
        ("Evidence", [*plan_tables.evidence_tables(plan)]),
        ("Lifetime cost", life),
        ("Assumptions", [Facts([*_law_facts(plan), *_serving_facts(plan)])]),
        ("Glossary", [Text(plan_tables.GLOSSARY.format(base=plan_tables.base_name(plan)))]),
    ]
    about = (f"law {plan.law}", plan.gpu, expert_label(plan.decision.model.experts))
    title = title or f"Which model to train with {format_flops(plan.budget_flops)} FLOPs"
    return (origin or Origin()).page(title, about, sections)


def plan_picture(plan: Plan) -> Picture:
    """The figure of a plan."""
    caption = (
        "Loss against serving cost: every model of the budget, a curve for each expert count. Lower left is better."
    )
    return Picture(plan_figure(plan), caption, f"{caption} {plan_headline(plan)}.")


def _law_facts(plan: Plan) -> list[tuple[str, str]]:
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


def _serving_facts(plan: Plan) -> list[tuple[str, str]]:
    """GPU, price, latency, requests and every setting that was stated."""
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
    return f"{value:g}" if isinstance(value, float) else str(value)


def law_report(
    law: Law, origin: Origin | None = None, *, runs: RunArrays | None = None, title: str | None = None
) -> str:
    """A self-contained HTML page of a law; `runs`, those it was fitted to, add data, residuals and doubtful runs.

    Needs matplotlib where there are runs, else InputError.
    """
    found = None if runs is None else _fit_of(law, runs)
    variables = "size N, training tokens D and experts E" if law.form.uses_experts else "size N and training tokens D"
    table = law.evidence.get("table")
    of = f"the runs of {table}" if isinstance(table, str) and table else "models of one family"
    predictions = prediction_table(law)
    evidence: list[Block] = [*_residuals(found, runs)] if found is not None and runs is not None else []
    coefficients = replace(law_table(law, _intervals(law)), title="Laws" if law.members else "Coefficients")
    family = law.family
    spacing = "every layer" if family.moe_every == 1 else f"one layer of {family.moe_every}"
    facts = {
        "source": law.source,
        "date": law.date,
        "fitted on": range_text(law.fit_range, law.form),
        "family": f"{family.name}: top-{family.top_k}, experts in {spacing}; N counts {family.n_counts} parameters",
        "recommends up to": "" if law.max_experts is None else f"{law.max_experts:g} experts",
        "draws for intervals": str(len(law.draws)),
    }
    facts |= {name.replace("_", " "): _setting(value) for name, value in law.evidence.items() if name != "command"}
    caveats = _law_caveats(law, found)
    sections: list[Section] = [
        ("Question", [Text(f"How does the loss of {of} depend on {variables}, and how surely?")]),
        ("Answer", [Answer(law.form.equation), coefficients]),
        ("Caveats", [Bullets(caveats)] if caveats else []),
        ("Evidence", evidence + ([predictions] if predictions else [])),
        ("Assumptions", [Facts([(name, text) for name, text in facts.items() if text])]),
    ]
    about = [law.form.name, *([f"{found.n_runs} runs"] if found is not None else [])]
    return (origin or Origin()).page(title or f"Scaling law {law.name}", about, sections)


def _residuals(found: Fit, runs: RunArrays) -> list[Block]:
    diagnosis = diagnose(found, runs)
    caption = "Points are runs, lines the law. Residuals that drift with D, N or E show where the form fails."
    told = f"{found.n_runs} runs and the law; RMSLE {100 * found.rmsle:.3g}%. {caption}"
    suspects = suspect_table(diagnosis, runs) if diagnosis.suspects else None
    last = suspects or Text("No run lies beyond 5 robust standard deviations.")
    return [Picture(fit_figure(found, runs), caption, told), group_table(diagnosis), last]


def _intervals(law: Law) -> dict[str, tuple[float, float]] | None:
    if len(law.draws) < 2 or law.members:
        return None
    low, high = interval(law.form.decode(law.draws))
    return {name: (float(a), float(b)) for name, a, b in zip(law.form.names, low, high, strict=True)}


def _law_caveats(law: Law, found: Fit | None) -> list[str]:
    notes = list(law.notes)
    if not len(law.draws):
        notes.append("The law carries no draws: nothing here says how sure its coefficients are.")
    if law.fit_range:
        notes.append(f"Beyond {range_text(law.fit_range, law.form)} every prediction is an extrapolation.")
    told = law.evidence.get("rmsle")
    if found is not None and isinstance(told, float) and not math.isclose(told, found.rmsle, rel_tol=1e-6):
        notes.append(
            f"On the runs drawn here the law's RMSLE is {found.rmsle:.4g}, in its file {told:.4g}: these are not the runs that "
            "it was fitted to, or not all of them."
        )
    return notes


def _fit_of(law: Law, runs: RunArrays) -> Fit:
    with np.errstate(all="ignore"):  # told below
        error = law.form.log_loss(law.theta, inputs_of(law.form, runs)) - np.log(runs.loss)
    if not (np.abs(error) < 100.0).all():
        what, next_step = f"{law.name} gives no sensible loss on these runs", "give the runs it was fitted to"
        raise InputError(what, where="--runs", next_step=next_step)
    terms = huber(error)
    return Fit(
        form=law.form,
        theta=law.theta,
        parameters=law.parameters,
        n_runs=int(runs.loss.size),
        rmsle=float(np.sqrt(np.mean(error**2))),
        mad=robust_spread(error),
        huber=float(terms.mean()),
        objective=float(terms.sum()),
        starts=0,
        starts_at_optimum=0,
        at_bound=(),
        not_identified=(),
        standard_error={},
        seconds=0.0,
        fit_range=law.fit_range,
        warnings=(),
    )
