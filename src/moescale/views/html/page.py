"""One page that needs nothing else: its style and its figures are inside, and it holds no script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from moescale.views.html.render import code, render


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where the reported answer comes from: its file, how that was made, and the report's own date and program (None: not printed)."""

    name: str | None = None
    sha256: str | None = None
    made_with: Mapping[str, object] = field(default_factory=dict[str, object])
    date: str | None = None
    version: str | None = None  # of the program that makes the report


def page(name: str, title: str, origin: Origin, *about: str, steps: Sequence[str], **values: Any) -> str:
    """The page of a template; `about` stands under its title, and `steps` stand in for a command that is not known."""
    made = origin.made_with
    command, version, files = (made.get(key) for key in ("command", "moescale", "sha256"))
    known = {
        "answer by": f"moescale {version}" if isinstance(version, str) else None,
        "report by": origin.version and f"moescale {origin.version}",
        "answer file": origin.name,
        "its SHA-256": origin.sha256 and code(origin.sha256),
    }
    if isinstance(files, Mapping):
        known |= {f"SHA-256 of {name}": code(digest) for name, digest in files.items() if digest}
    return render(
        name,
        title=title,
        meta=[*filter(None, (origin.date, origin.version and f"moescale {origin.version}")), *about],
        commands=[command] if isinstance(command, str) and command else steps,
        origins=[(label, text) for label, text in known.items() if text is not None],
        **values,
    )
