"""Sections of an answer as an HTML page: jinja2 escapes whatever is not made here, and nothing is loaded from elsewhere."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape

from moescale.views.figures.style import colour_of, colour_on_dark, figure_bytes
from moescale.views.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Facts = Sequence[tuple[str, str]]  # names with their values
# A paragraph, what is markup already, facts, the lines of a list, or a table.
Block = str | Markup | Facts | Sequence[str] | Table
Section = tuple[str, Sequence[Block]]  # under its heading

# What may become a link: an arXiv number, a DOI, an address. Anything else stays text.
LINK = re.compile(r"\bhttps?://[^\s<>\"']*[^\s<>\"'.,;:)\]]|\barXiv[: ](\d{4}\.\d{4,5})(v\d+)?\b", re.IGNORECASE)


def page(title: str, meta: Sequence[str], sections: Sequence[Section], more: Sequence[Section] = ()) -> str:
    """A page that needs nothing else; `meta` stands under its title, sections without blocks are left out, and `more` is closed."""
    style = Markup(_file("page.css"))
    return (
        _environment()
        .get_template("page.html")
        .render(title=title, meta=meta, sections=sections, more=more, style=style)
    )


def picture(figure: Figure, caption: str, description: str) -> Markup:
    """A figure with what it shows: the caption to everyone, the description in words to those who do not see it."""
    address = f"data:image/svg+xml;base64,{base64.b64encode(figure_bytes(figure, 'svg')).decode()}"
    return Markup('<figure><img src="{}" alt="{}"><figcaption>{}</figcaption></figure>').format(
        address, description, caption
    )


def linked(text: str) -> Markup:
    """Text whose addresses and arXiv numbers are links."""
    parts: list[str] = []
    end = 0
    for found in LINK.finditer(text):
        address = f"https://arxiv.org/abs/{found[1]}" if found[1] else found[0]
        link = f'<a href="{escape(address)}" rel="noreferrer">{escape(found[0])}</a>'
        parts += [escape(text[end : found.start()]), link]
        end = found.end()
    return Markup("".join([*parts, escape(text[end:])]))


@cache
def _environment() -> Environment:
    found = Environment(
        loader=FunctionLoader(lambda name: _file(f"templates/{name}")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters["linked"] = linked
    colours: Any = {"colour_of": colour_of, "colour_on_dark": colour_on_dark}
    found.globals.update(colours)
    return found


def _file(name: str) -> str:
    return resources.files("moescale.views.html").joinpath(name).read_text(encoding="utf-8")
