"""Pages: the one to play with, and one to send, as users state them."""

from __future__ import annotations

from dataclasses import MISSING, dataclass
from pathlib import Path

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
