"""The commands that show an answer as a page: report, web."""

from __future__ import annotations

import importlib.util
import secrets
from dataclasses import MISSING, dataclass, replace
from pathlib import Path

from moescale.cli.options import command
from moescale.cli.output import say, warn
from moescale.errors import InputError, install, located
from moescale.options.fields import Group, flag, path, quantity


@dataclass(frozen=True, kw_only=True)
class PageOptions(Group):
    """The page that `web` serves."""

    port: int = quantity("Port to listen on; 0: any free one.", 0, 65535, default=8501, whole=True)
    open_: bool = flag("Open the page in a browser.", name="--open/--no-open", default=True)
    law: Path | None = path("Law file that `fit -o` wrote, as the default law.")


@dataclass(frozen=True, kw_only=True)
class ReportOptions(Group):
    """A plan, and the page that is made of it."""

    answer: Path = path("A plan (plan --json).", name="ANSWER", default=MISSING)
    output: Path = path("Write the report to this HTML file.", name="-o", default=MISSING)


@command("moescale report plan.json -o plan.html")
def report(wanted: ReportOptions) -> None:
    """Write a plan as one HTML file: a plain page, then its tables and figure."""
    from moescale import __version__
    from moescale.io.files import as_text, check_target, write_atomically
    from moescale.views.html import NO_FIGURE, plan_report, read_plan

    with located("-o"):
        check_target(wanted.output, [wanted.answer])
    found, origin = read_plan(wanted.answer)
    text = plan_report(found, replace(origin, version=__version__))
    if importlib.util.find_spec("matplotlib") is None:
        warn(NO_FIGURE)
    with located("-o"):
        write_atomically(wanted.output, as_text(text))
    say(f"wrote {wanted.output}")


@command("moescale web", "moescale web --port 8600 --no-open --law law.toml")
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
