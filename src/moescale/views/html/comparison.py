"""Laws compared on runs that they were not fitted to, as a page."""

from __future__ import annotations

from collections.abc import Sequence

from moescale.errors import InputError
from moescale.fitting.holdout import HoldOut
from moescale.views.figures import comparison_figure
from moescale.views.html.page import Origin, page
from moescale.views.html.render import code
from moescale.views.tables.fit import comparison_table

CLOSE = 1.1  # times the lowest error: no reason to prefer one of them
FAR = 2.0  # held out over in sample: the law bends where it was not fitted


def comparison_report(records: Sequence[HoldOut], origin: Origin | None = None, *, title: str | None = None) -> str:
    """A self-contained HTML page of a comparison; needs matplotlib, else InputError."""
    if not records:
        raise InputError("no comparison to report", next_step="give at least one law")
    origin = origin or Origin()
    ranked = sorted(records, key=lambda r: r.rmsle_holdout)
    best = ranked[0]
    made = origin.made_with
    runs, marked, kept = (made.get(name) for name in ("runs", "holdout", "where"))
    assumptions: list[tuple[object, object]] = [
        ("errors", "of ln L, predicted over measured; RMSLE is their root mean square, bias their mean"),
        ("fit", "every law is fitted anew to the runs that are not held out, by the same objective and search"),
    ]
    if isinstance(marked, str):
        assumptions.append(("held out", code(marked)))
    if isinstance(kept, str):
        assumptions.append(("rows used at all", code(kept)))
    close = [r.law for r in ranked[1:] if r.rmsle_holdout <= CLOSE * best.rmsle_holdout]
    far = [
        f"{r.law} errs {r.rmsle_holdout / max(best.rmsle_holdout, 1e-12):.2g} times as much."
        for r in ranked[1:]
        if r.law not in close
    ]
    others = [f"As good within {CLOSE - 1:.0%}: {', '.join(close)}."] if close else []
    errors = "; ".join(
        f"{r.law} {100 * r.rmsle_holdout:.3g}% held out and {100 * r.rmsle_train:.3g}% in sample" for r in ranked
    )
    return page(
        "comparison.html",
        title or "Which law predicts best?",
        origin,
        f"{best.n_train} runs fitted",
        f"{best.n_holdout} held out",
        steps=(),
        ranked=ranked,
        split=f" where {marked} holds" if isinstance(marked, str) else "",
        runs=runs if isinstance(runs, str) else None,
        answer=f"{best.law} predicts the held-out runs within {100 * best.rmsle_holdout:.2g}% (RMSLE), with a bias of "
        f"{100 * best.bias_holdout:+.2g}%.",
        others=others + ([" ".join(far)] if far else []),
        errors=f"Errors of {len(ranked)} laws as RMSLE: {errors}.",
        caveats=_caveats(ranked),
        assumptions=assumptions,
        comparison_figure=comparison_figure,
        comparison_table=comparison_table,
    )


def _caveats(ranked: Sequence[HoldOut]) -> list[str]:
    best = ranked[0]
    notes: list[str] = []
    bent = [r.law for r in ranked if r.rmsle_holdout > FAR * r.rmsle_train]
    if bent:
        notes.append(f"More than {FAR:g} times as wrong held out as in sample: {', '.join(bent)}.")
    drifting = [r.law for r in ranked if abs(r.bias_holdout) > 0.7 * r.rmsle_holdout]
    if drifting:
        notes.append(f"Most of the error is one-sided, which grows further out: {', '.join(drifting)}.")
    if best.n_holdout < 10:
        notes.append(f"{best.n_holdout} held-out runs are few: another choice may rank the laws otherwise.")
    notes.append(
        "One hold-out tells of one direction: a law that extrapolates in tokens need not do so in experts or size."
    )
    return notes
