"""One page that needs nothing else: its style and its figures are inside, and it holds no script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources

from moescale.views.html.markup import Html, facts, joined, tag
from moescale.views.html.svg import colours_in, dark_rules


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where the reported answer comes from: its file, how that was made, and the report's own date and program (None: not printed)."""

    name: str | None = None
    sha256: str | None = None
    made_with: Mapping[str, object] = field(default_factory=dict[str, object])
    date: str | None = None
    version: str | None = None  # of the program that makes the report


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page under a heading."""

    heading: str
    content: Html

    @property
    def anchor(self) -> str:
        """Its identifier in the page."""
        return "-".join(self.heading.lower().split())


def page(title: str, meta: Sequence[str], sections: Sequence[Section]) -> str:
    """The page as text; the same arguments give the same bytes."""
    shown = [
        tag("section", tag("h2", s.heading, id=s.anchor), s.content, aria_labelledby=s.anchor)
        for s in sections
        if s.content
    ]
    header = tag("header", tag("h1", title), tag("p", " · ".join(meta), class_="meta"))
    body = joined(header, tag("main", *shown))
    css = resources.files("moescale.views.html").joinpath("page.css").read_text(encoding="utf-8")
    css = css.replace("/*DARK*/", dark_rules(colours_in(body)))
    # Whatever a name in the data may hold, a browser loads and runs nothing.
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    head = "\n".join(
        [
            tag("meta", charset="utf-8"),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("meta", http_equiv="Content-Security-Policy", content=policy),
            tag("title", title),
            f"<style>\n{css}</style>",
        ]
    )
    spaced = body.replace("</section>", "</section>\n").replace("</tr>", "</tr>\n")
    return f'<!doctype html>\n<html lang="en">\n<head>\n{head}\n</head>\n<body>\n{spaced}\n</body>\n</html>\n'


def meta_line(origin: Origin, *parts: str) -> list[str]:
    """What stands under the title: the date where one is given, the program, and further parts."""
    return [*filter(None, (origin.date, origin.version and f"moescale {origin.version}")), *parts]


def reproduction(origin: Origin, *, steps: Sequence[str] = ()) -> Section:
    """The command line, version and input hashes that give the same answer again; `steps` stand in for a lost command."""
    made = origin.made_with
    command = made.get("command")
    shown = [command] if isinstance(command, str) and command else list(steps)
    pairs: list[tuple[object, object]] = []
    if isinstance(version := made.get("moescale"), str):
        pairs.append(("answer by", f"moescale {version}"))
    if origin.version is not None:
        pairs.append(("report by", f"moescale {origin.version}"))
    if origin.name is not None:
        pairs.append(("answer file", origin.name))
    if origin.sha256 is not None:
        pairs.append(("its SHA-256", tag("code", origin.sha256)))
    if isinstance(files := made.get("sha256"), Mapping):
        pairs += [(f"SHA-256 of {name}", tag("code", digest)) for name, digest in files.items() if digest]
    commands = tag("pre", tag("code", "\n".join(shown))) if shown else ""
    return Section("How to reproduce it", joined(commands, facts(pairs)))
