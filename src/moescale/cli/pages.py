"""The commands that show an answer as a page: report, web."""

from __future__ import annotations

import importlib.util
import secrets
from dataclasses import replace
from datetime import date as calendar_date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moescale.cli.flat import flat
from moescale.cli.options import app, examples
from moescale.cli.output import say, warn
from moescale.errors import InputError, install, located
from moescale.options.fields import at_option
from moescale.options.pages import PageOptions, ReportOptions
from moescale.options.runs import CHOICES, COLUMNS

if TYPE_CHECKING:
    from moescale.fitting.holdout import RunArrays
    from moescale.scaling_laws import Law


@app.command(
    epilog=examples(
        "moescale report plan.json -o plan.html",
        "moescale report law.toml --runs runs.csv -o law.html --title 'Our runs' --date 2026-11-21",
    )
)
@flat()
def report(wanted: ReportOptions) -> None:
    """Write an answer as one self-contained HTML file with its figures."""
    from moescale import __version__
    from moescale.io.files import as_text, check_target, write_atomically
    from moescale.planning.plan import Plan
    from moescale.scaling_laws import Law
    from moescale.views.html import law_report, plan_report, read_answer

    output, runs, title = wanted.output, wanted.runs, wanted.title
    with located("-o"):
        check_target(output, [wanted.answer, runs])
    if wanted.date is not None:
        _check_date(wanted.date)
    found, origin = read_answer(wanted.answer)
    origin = replace(origin, date=wanted.date, version=__version__)
    if runs is not None and not isinstance(found, Law):
        raise InputError("applies to the report of a law only", where="--runs", next_step="leave --runs out")
    if isinstance(found, Plan):
        text = plan_report(found, origin, title=title)
    else:
        drawn = None if runs is None else _runs_of(found, runs)
        text = law_report(found, origin, runs=drawn, title=title)
    with located("-o"):
        write_atomically(output, as_text(text))
    say(f"wrote {output}")


def _check_date(text: str) -> None:
    try:
        calendar_date.fromisoformat(text)
    except ValueError:
        raise InputError(f"{text!r} is not a date", where="--date", next_step="such as 2026-11-21") from None


def _runs_of(law: Law, path: Path) -> RunArrays:
    from moescale.fitting.workflow import run_arrays
    from moescale.runs.table import read_runs

    known = {name: str(law.evidence.get(name) or "") for name in (*COLUMNS, "where", "table_sha256")}
    with at_option("--runs"):
        chosen: dict[str, Any] = {name: known[name] for name in COLUMNS if known[name]}
        chosen |= {n: v for n in CHOICES if isinstance(v := law.evidence.get(n), int) and v > 0}
        table = read_runs(path, where=known["where"] or None, **chosen)
    if known["table_sha256"] and table.sha256 != known["table_sha256"]:
        warn(f"{path} is not the table that {law.name} was fitted to (different SHA-256)")
    return run_arrays(law.form, table, {})


@app.command(epilog=examples("moescale web", "moescale web --port 8600 --no-open --law law.toml"))
@flat()
def web(wanted: PageOptions) -> None:
    """Serve the interactive page on this machine: inputs, curves, uploads."""
    missing = [name for name in ("fastapi", "uvicorn") if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(f"the page needs {' and '.join(missing)}", next_step=install("web"))
    from moescale.io.files import read_text
    from moescale.web.app import ADDRESS, create_app, listen, serve

    with located("--law"):
        law = None if wanted.law is None else read_text(wanted.law)
    with listen(wanted.port) as bound:
        port = int(bound.getsockname()[1])
        token = secrets.token_urlsafe(16)
        address = f"http://{ADDRESS}:{port}/?token={token}"
        page = create_app(port, token, law_text=law, law_name=str(wanted.law))
        say(f"moescale: {address} (Ctrl-C ends it)")
        serve(page, bound, open_url=address if wanted.open_ else None)
