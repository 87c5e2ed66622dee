"""The command that makes a page to send: report."""

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import date as calendar_date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from moescale.cli.options import app, at_option, examples, file_option, run_inputs, text_option, warn
from moescale.errors import InputError

if TYPE_CHECKING:
    from moescale.fitting.holdout import RunArrays
    from moescale.scaling_laws import Law


@app.command(
    epilog=examples(
        "moescale report plan.json -o plan.html",
        "moescale report law.toml --runs runs.csv -o law.html --title 'Our runs'",
        "moescale report comparison.json -o comparison.html --date 2026-11-21",
    )
)
def report(
    answer: Annotated[
        Path, file_option("ANSWER", "A plan (plan --json), a law (fit -o) or a comparison (compare --json).")
    ],
    output: Annotated[Path, file_option("-o", "Write the page to this HTML file.")],
    runs: Annotated[
        Path | None, file_option("--runs", "Of a law: the table it was fitted to, for data, residuals, doubtful runs.")
    ] = None,
    title: Annotated[str | None, text_option("--title", "Title of the page; default: what it answers.", "TEXT")] = None,
    date: Annotated[
        str | None, text_option("--date", "Date to print, such as 2026-11-21; default: none.", "DATE")
    ] = None,
) -> None:
    """Make one HTML file of an answer: figures inside, readable offline, on paper, in light and dark."""
    from moescale import __version__
    from moescale.io.files import as_text, check_target, write_atomically
    from moescale.planning.plan import Plan
    from moescale.scaling_laws import Law
    from moescale.views.html import comparison_report, law_report, plan_report, read_answer

    with at_option("-o"):
        check_target(output, [answer, runs])
    if date is not None:
        _check_date(date)
    found, origin = read_answer(answer)
    origin = replace(origin, date=date, version=__version__)
    if runs is not None and not isinstance(found, Law):
        raise InputError("only the report of a law draws runs", where="--runs", next_step="leave --runs out")
    if isinstance(found, Plan):
        text = plan_report(found, origin, title=title)
    elif isinstance(found, Law):
        drawn = None if runs is None else _runs_of(found, runs)
        text = law_report(found, origin, runs=drawn, title=title)
    else:
        text = comparison_report(found, origin, title=title)
    with at_option("-o"):
        write_atomically(output, as_text(text))
    sys.stderr.write(f"wrote {output}\n")


def _check_date(text: str) -> None:
    try:
        calendar_date.fromisoformat(text)
    except ValueError:
        raise InputError(f"{text!r} is not a date", where="--date", next_step="such as 2026-11-21") from None


def _runs_of(law: Law, path: Path) -> RunArrays:
    """The runs of a table, by the columns and the rows that the law was fitted to."""
    from moescale.fitting.holdout import RunArrays
    from moescale.runs.table import read_runs
    from moescale.scaling_laws.covariates import known_to

    columns = ("size_column", "tokens_column", "experts_column", "loss_column")
    known = {name: str(law.evidence.get(name) or "") for name in (*columns, "where", "table_sha256")}
    with at_option("--runs"):
        table = read_runs(path, where=known["where"] or None, **{name: known[name] for name in columns if known[name]})
    if known["table_sha256"] and table.sha256 != known["table_sha256"]:
        warn(f"{path} is not the table that {law.name} was fitted to: its SHA-256 is another")
    extra = run_inputs(law.form, table, known_to(law.form, {}))
    return RunArrays(table.n_params, table.tokens, table.experts, table.loss, extra)
