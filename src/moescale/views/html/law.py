"""A law as a page: its form and coefficients, the runs it was fitted to, where it errs, and how far it may be trusted."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from moescale.errors import InputError
from moescale.fitting.fit import Fit, huber
from moescale.fitting.holdout import Diagnosis, RunArrays, diagnose, inputs_of
from moescale.scaling_laws import Law, predict
from moescale.scaling_laws.law import interval
from moescale.units import format_count
from moescale.views.figures import diagnosis_figure, fit_figure
from moescale.views.html.markup import Html, bullets, facts, html_table, joined, linked, tag
from moescale.views.html.page import Origin, Section, meta_line, page, reproduction
from moescale.views.html.svg import illustration
from moescale.views.tables import Column, Table, count_name, parameter_table, range_text, span_text

SHOWN_SUSPECTS = 10
MOST_ERROR = 100.0  # of ln L
VARIABLES = {"n_experts": "experts E", "n_params": "size N", "tokens": "tokens D"}


def law_report(
    law: Law, origin: Origin | None = None, *, runs: RunArrays | None = None, title: str | None = None
) -> str:
    """A self-contained HTML page of a law; `runs`, those it was fitted to, add data, residuals and doubtful runs.

    Needs matplotlib where there are runs, else InputError.
    """
    origin = origin or Origin()
    found = None if runs is None else _fit_of(law, runs)
    sections = [
        Section("Question", tag("p", _question(law))),
        Section("Answer", _answer(law, found)),
        Section("Evidence", _evidence(law, found, runs)),
        Section("Assumptions", _assumptions(law)),
        Section("Caveats", bullets([linked(text) for text in _caveats(law, found)])),
        reproduction(origin, steps=_steps(law)),
    ]
    about = (law.form.name, *([f"{found.n_runs} runs"] if found is not None else []))
    return page(title or f"Scaling law {law.name}", meta_line(origin, *about), sections)


def _question(law: Law) -> str:
    table = law.evidence.get("table")
    where = f"the runs of {table}" if isinstance(table, str) and table else "models of one family"
    variables = "size N, training tokens D and experts E" if law.form.uses_experts else "size N and training tokens D"
    return f"How does the loss of {where} depend on {variables}, and how surely?"


def _answer(law: Law, found: Fit | None) -> Html:
    known = law.evidence
    rmsle = found.rmsle if found is not None else known.get("rmsle")
    n_runs = found.n_runs if found is not None else known.get("n_runs")
    tiles: list[tuple[object, object]] = []
    if isinstance(n_runs, int | float):
        tiles.append(("runs", f"{n_runs:g}"))
    if isinstance(rmsle, int | float):
        tiles.append(("RMSLE, root mean square of ln(predicted/measured)", f"{100 * rmsle:.3g}%"))
    starts, best = known.get("starts"), known.get("starts_at_optimum")
    if isinstance(starts, int | float) and isinstance(best, int | float):
        tiles.append(("starts that met at the optimum", f"{best:g} of {starts:g}"))
    if len(law.draws):
        tiles.append(("draws for intervals", f"{len(law.draws)}"))
    return joined(
        tag("div", tag("p", law.form.equation, class_="lead"), class_="answer"),
        facts(tiles, "tiles") if tiles else "",
        html_table(parameter_table(law.form, law.parameters, _intervals(law)), title="Coefficients"),
    )


def _intervals(law: Law) -> dict[str, tuple[float, float]] | None:
    if len(law.draws) < 2:
        return None
    low, high = interval(law.form.decode(law.draws))
    return {name: (float(a), float(b)) for name, a, b in zip(law.form.names, low, high, strict=True)}


def _evidence(law: Law, found: Fit | None, runs: RunArrays | None) -> Html:
    predictions = _predictions(law)
    parts: list[object] = []
    if found is not None and runs is not None:
        diagnosis = diagnose(found, runs)
        parts += [
            illustration(
                fit_figure(found, runs),
                "fit",
                f"{found.n_runs} runs and the law: loss against training tokens for each size and expert count, and the "
                f"residuals, whose root mean square is {100 * found.rmsle:.3g}%.",
                "Points are runs, lines the law. Residuals that drift with D, N or E show where the form fails.",
            ),
            illustration(
                diagnosis_figure(diagnosis),
                "diagnosis",
                f"Bias and RMSLE by experts, size and tokens, and residuals against leverage; {len(diagnosis.suspects)} "
                "suspect runs.",
                "Where the law errs. A run of high leverage decides coefficients alone.",
            ),
            html_table(_group_table(diagnosis)),
            _suspects(diagnosis, runs),
        ]
    if predictions is not None:
        parts.append(html_table(predictions))
    return joined(*parts)


def _group_table(diagnosis: Diagnosis) -> Table:
    def ends(variable: str, low: float, high: float) -> str:
        a, b = (f"{x:g}" if variable == "n_experts" else format_count(x) for x in (low, high))
        return a if a == b else f"{a} to {b}"

    return Table(
        "Errors of ln L by group",
        (Column("", text=True), Column("range"), Column("runs"), Column("bias"), Column("RMSLE")),
        [
            (
                VARIABLES.get(g.variable, g.variable),
                ends(g.variable, g.low, g.high),
                str(g.n_runs),
                f"{100 * g.bias:+.3f}%",
                f"{100 * g.rmsle:.3f}%",
            )
            for g in diagnosis.groups
        ],
    )


def _suspects(diagnosis: Diagnosis, runs: RunArrays) -> Html:
    shown = diagnosis.suspects[:SHOWN_SUSPECTS]
    if not shown:
        return tag("p", "No run lies beyond 5 robust standard deviations.")
    more = len(diagnosis.suspects) - len(shown)
    return html_table(
        Table(
            "Runs beyond 5 robust standard deviations" + (f" (the worst {len(shown)}; {more} more)" if more else ""),
            (Column("run", text=True), Column("N"), Column("D"), Column("E"), Column("loss"), Column("residual")),
            [
                (
                    f"{i + 1}",
                    format_count(float(runs.n_params[i])),
                    format_count(float(runs.tokens[i])),
                    f"{runs.experts[i]:g}",
                    f"{runs.loss[i]:.4f}",
                    f"{100 * diagnosis.residuals[i]:+.2f}%",
                )
                for i in shown
            ],
        )
    )


def _predictions(law: Law) -> Table | None:
    """Losses at the ends and the middle of the fitted sizes and tokens; None for laws of further variables."""
    if not {"n_params", "tokens"} <= set(law.fit_range):
        return None
    sizes, tokens = (_ends_and_middle(law.fit_range[name]) for name in ("n_params", "tokens"))
    counts = sorted(set(law.fit_range.get("experts", (1.0, 1.0)))) if law.form.uses_experts else [1.0]
    rows: list[tuple[str, ...]] = []
    try:
        for n in sizes:
            for d in tokens:
                predicted = [predict(law, n, d, e) for e in counts]
                losses = [
                    f"{p.loss:.4f}" + (f" ({span_text(p.interval, '.4f')})" if p.interval else "") for p in predicted
                ]
                rows.append((format_count(n), format_count(d), *losses))
    except InputError:
        return None
    heads = [count_name(e) if law.form.uses_experts else "loss" for e in counts]
    with_interval = " with the interval of 90% of its draws" if len(law.draws) else ""
    return Table(
        f"Losses that the law predicts{with_interval}",
        (Column("N", text=True), Column("D"), *(Column(head) for head in heads)),
        rows,
    )


def _ends_and_middle(limits: tuple[float, float]) -> Sequence[float]:
    low, high = limits
    return sorted({low, math.sqrt(low * high), high})


def _assumptions(law: Law) -> Html:
    family, known = law.family, law.evidence
    spacing = "every layer" if family.moe_every == 1 else f"one layer of {family.moe_every}"
    pairs: list[tuple[object, object]] = [
        ("source", linked(law.source)),
        ("date", law.date),
        ("fitted on", range_text(law.fit_range) or "unknown"),
        ("family", f"{family.name}: top-{family.top_k}, experts in {spacing}; N counts {family.n_counts} parameters"),
    ]
    if law.max_experts is not None:
        pairs.append(("recommends up to", f"{law.max_experts:g} experts"))
    names = {
        "table": "runs", "where": "rows kept", "definition_of_n": "N is", "definition_of_d": "D is",
        "loss_column": "loss column", "objective": "objective", "box": "bounds", "optimiser": "optimiser",
        "bootstrap": "bootstrap replicates", "seed": "seed", "cluster": "drawn together", "prior": "calibrated from",
        "fixed": "kept from the prior",
    }  # fmt: skip
    pairs += [(label, str(known[key])) for key, label in names.items() if known.get(key) not in (None, "")]
    return facts(pairs)


def _caveats(law: Law, found: Fit | None) -> list[str]:
    notes = list(law.notes)
    if not len(law.draws):
        notes.append("The law carries no draws: nothing here says how sure its coefficients are.")
    if law.fit_range:
        notes.append(f"Beyond {range_text(law.fit_range)} every prediction is an extrapolation.")
    told = law.evidence.get("rmsle")
    if found is not None and isinstance(told, float) and not math.isclose(told, found.rmsle, rel_tol=1e-6):
        notes.append(
            f"On the runs drawn here the law's RMSLE is {found.rmsle:.4g}, in its file {told:.4g}: these are not the runs that "
            "it was fitted to, or not all of them."
        )
    return notes


def _steps(law: Law) -> list[str]:
    command, table = law.evidence.get("command"), law.evidence.get("table")
    if isinstance(command, str) and command:
        return [command]
    return [f"moescale fit {table} --law {law.form.name} -o {law.name}.toml"] if table else []


def _fit_of(law: Law, runs: RunArrays) -> Fit:
    """The law on some runs, in the form that figures and diagnostics take; nothing is fitted."""
    with np.errstate(all="ignore"):  # told below
        error = law.form.log_loss(law.theta, inputs_of(law.form, runs)) - np.log(runs.loss)
    if not (np.abs(error) < MOST_ERROR).all():
        raise InputError(
            f"{law.name} gives no sensible loss on these runs",
            where="--runs",
            next_step="give the runs it was fitted to",
        )
    terms = huber(error)
    return Fit(
        form=law.form,
        theta=law.theta,
        parameters=law.parameters,
        n_runs=int(runs.loss.size),
        rmsle=float(np.sqrt(np.mean(error**2))),
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
