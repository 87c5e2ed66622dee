"""A law as a page: its form and coefficients, the runs it was fitted to, where it errs, and how far it may be trusted."""

from __future__ import annotations

import math

import numpy as np

from moescale.errors import InputError
from moescale.fitting.fit import Fit, huber, robust_spread
from moescale.fitting.holdout import RunArrays, diagnose, inputs_of
from moescale.scaling_laws import Law
from moescale.scaling_laws.law import interval
from moescale.views.figures import fit_figure
from moescale.views.html.page import Origin, page
from moescale.views.tables import fit as fit_tables
from moescale.views.tables import range_text
from moescale.views.tables.fit import law_table, prediction_table

EVIDENCE = {  # what a law's file may say of its fit, and how a page calls it
    "table": "runs",
    "where": "rows kept",
    "definition_of_n": "N is",
    "definition_of_d": "D is",
    "loss_column": "loss column",
    "objective": "objective",
    "box": "bounds",
    "optimiser": "optimiser",
    "bootstrap": "bootstrap replicates",
    "seed": "seed",
    "cluster": "drawn together",
    "prior": "under the prior of",
}


def law_report(
    law: Law, origin: Origin | None = None, *, runs: RunArrays | None = None, title: str | None = None
) -> str:
    """A self-contained HTML page of a law; `runs`, those it was fitted to, add data, residuals and doubtful runs.

    Needs matplotlib where there are runs, else InputError.
    """
    found = None if runs is None else _fit_of(law, runs)
    return page(
        "law.html",
        title or f"Scaling law {law.name}",
        origin or Origin(),
        law.form.name,
        *([f"{found.n_runs} runs"] if found is not None else []),
        steps=_steps(law),
        law=law,
        question=_question(law),
        tiles=_tiles(law, found),
        coefficients=law_table(law, _intervals(law)),
        caveats=_caveats(law, found),
        found=found,
        runs=runs,
        diagnosis=None if found is None or runs is None else diagnose(found, runs),
        predictions=prediction_table(law),
        assumptions=_assumptions(law),
        tables=fit_tables,
        fit_figure=fit_figure,
    )


def _question(law: Law) -> str:
    table = law.evidence.get("table")
    where = f"the runs of {table}" if isinstance(table, str) and table else "models of one family"
    variables = "size N, training tokens D and experts E" if law.form.uses_experts else "size N and training tokens D"
    return f"How does the loss of {where} depend on {variables}, and how surely?"


def _tiles(law: Law, found: Fit | None) -> list[tuple[str, str]]:
    known = law.evidence
    rmsle = found.rmsle if found is not None else known.get("rmsle")
    n_runs = found.n_runs if found is not None else known.get("n_runs")
    tiles: list[tuple[str, str]] = []
    if isinstance(n_runs, int | float):
        tiles.append(("runs", f"{n_runs:g}"))
    if isinstance(rmsle, int | float):
        tiles.append(("RMSLE, root mean square of ln(predicted/measured)", f"{100 * rmsle:.3g}%"))
    starts, best = known.get("starts"), known.get("starts_at_optimum")
    if isinstance(starts, int | float) and isinstance(best, int | float):
        tiles.append(("starts that met at the optimum", f"{best:g} of {starts:g}"))
    if len(law.draws):
        tiles.append(("draws for intervals", f"{len(law.draws)}"))
    return tiles


def _intervals(law: Law) -> dict[str, tuple[float, float]] | None:
    if len(law.draws) < 2 or law.members:
        return None
    low, high = interval(law.form.decode(law.draws))
    return {name: (float(a), float(b)) for name, a, b in zip(law.form.names, low, high, strict=True)}


def _assumptions(law: Law) -> list[tuple[str, str]]:
    family, known = law.family, law.evidence
    spacing = "every layer" if family.moe_every == 1 else f"one layer of {family.moe_every}"
    pairs: list[tuple[str, str]] = [
        ("source", law.source),
        ("date", law.date),
        ("fitted on", range_text(law.fit_range, law.form) or "unknown"),
        ("family", f"{family.name}: top-{family.top_k}, experts in {spacing}; N counts {family.n_counts} parameters"),
    ]
    if law.max_experts is not None:
        pairs.append(("recommends up to", f"{law.max_experts:g} experts"))
    return pairs + [(label, str(known[key])) for key, label in EVIDENCE.items() if known.get(key) not in (None, "")]


def _caveats(law: Law, found: Fit | None) -> list[str]:
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


def _steps(law: Law) -> list[str]:
    command, table = law.evidence.get("command"), law.evidence.get("table")
    if isinstance(command, str) and command:
        return [command]
    return [f"moescale fit {table} --law {law.form.name} -o {law.name}.toml"] if table else []


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
