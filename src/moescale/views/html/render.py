"""Blocks as HTML: jinja2 escapes whatever is not made here, and nothing is loaded from elsewhere."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape

from moescale.views.blocks import Block, Section
from moescale.views.figures.saving import figure_bytes
from moescale.views.figures.style import colour_of, colour_on_dark

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# What may become a link: an arXiv number, a DOI, an address. Anything else stays text.
LINK = re.compile(r"\bhttps?://[^\s<>\"']*[^\s<>\"'.,;:)\]]|\barXiv[: ](\d{4}\.\d{4,5})(v\d+)?\b", re.IGNORECASE)


def page(title: str, meta: Sequence[str], sections: Sequence[Section]) -> str:
    """A page that needs nothing else; `meta` stands under its title, and sections without blocks are left out."""
    style = Markup(_file("page.css"))
    return _environment().get_template("page.html").render(title=title, meta=meta, sections=sections, style=style)


def cell(blocks: Sequence[Block]) -> str:
    """Blocks as the output of a notebook's cell."""
    return _environment().get_template("notebook.html").render(blocks_shown=blocks)


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


def _address(figure: Figure) -> str:
    """A figure as the address of an image that holds it."""
    return f"data:image/svg+xml;base64,{base64.b64encode(figure_bytes(figure, 'svg')).decode()}"


def _kind(block: Block) -> str:
    return type(block).__name__


@cache
def _environment() -> Environment:
    found = Environment(
        loader=FunctionLoader(_template),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    helpers: dict[str, Any] = {"linked": linked, "address": _address, "kind": _kind}
    found.filters.update(helpers)
    colours: Any = {"colour_of": colour_of, "colour_on_dark": colour_on_dark}
    found.globals.update(colours)
    return found


def _file(name: str) -> str:
    return resources.files("moescale.views.html").joinpath(name).read_text(encoding="utf-8")


def _template(name: str) -> str:
    return _file(f"templates/{name}")
