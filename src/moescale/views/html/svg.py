"""Figures inside a page: SVG without identifiers of its own, whose colours follow the page to a dark ground."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

from moescale.views.figures.saving import figure_bytes
from moescale.views.figures.style import on_dark

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOUR = re.compile(r"#([0-9a-fA-F]{6})\b")
STYLED = re.compile(r'(?<=style=")[^"]*(?=")')
NAMED = re.compile(r'(\bid="|xlink:href="#|url\(#)([^")]+)')


def inline_svg(figure: Figure, name: str, description: str) -> Markup:
    """A figure as an element of a page; `name` keeps its identifiers apart from other figures', `description` is its text."""
    text = figure_bytes(figure, "svg").decode("utf-8")
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    head, _, body = text.partition(">")
    box = re.search(r'viewBox="[^"]+"', head)
    width = re.search(r'width="([\d.]+)pt"', head)
    body = NAMED.sub(lambda found: f"{found[1]}{name}-{found[2]}", body)
    body = STYLED.sub(lambda found: COLOUR.sub(lambda c: f"var(--c{c[1].lower()}, {c[0].lower()})", found[0]), body)
    body = re.sub(r"\n\s*", "\n", body)
    opening = (
        f'<svg {box[0] if box else ""} style="max-width: {width[1] if width else "504"}pt" role="img" '
        f'aria-labelledby="{name}-text"><title id="{name}-text">{escape(description)}</title>'
    )
    return Markup(opening + body.strip())


def colours_in(text: str) -> list[str]:
    """The colours, as rrggbb, that a page takes from its variables."""
    return sorted(set(re.findall(r"var\(--c([0-9a-f]{6}),", text)))


def dark_rules(colours: Iterable[str]) -> str:
    """The variables of a dark page."""
    return " ".join(f"--c{colour}: {on_dark(f'#{colour}')};" for colour in colours)
