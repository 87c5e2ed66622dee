"""Pages from templates: jinja2 escapes whatever is not made here."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape

from moescale.views.figures.style import colour_of, marker_of
from moescale.views.html.svg import colours_in, dark_rules, inline_svg

# What may become a link: an arXiv number, a DOI, an address. Anything else stays text.
LINK = re.compile(r"\bhttps?://[^\s<>\"']*[^\s<>\"'.,;:)\]]|\barXiv[: ](\d{4}\.\d{4,5})(v\d+)?\b", re.IGNORECASE)
SHAPES = {"^": "▲", "v": "▼", "<": "◀", ">": "▶", "o": "●", "s": "■", "D": "◆", "p": "⬟", "h": "⬢", "d": "♦"}


def linked(text: object) -> Markup:
    """Text whose addresses and arXiv numbers are links; markup stays itself."""
    if isinstance(text, Markup):
        return text

    def link(found: re.Match[str]) -> str:
        address = f"https://arxiv.org/abs/{found[1]}" if found[1] else found[0]
        return f'<a href="{escape(address)}" rel="noreferrer">{escape(found[0])}</a>'

    parts: list[str] = []
    end = 0
    for found in LINK.finditer(str(text)):
        parts += [escape(str(text)[end : found.start()]), link(found)]
        end = found.end()
    return Markup("".join([*parts, escape(str(text)[end:])]))


def code(text: object) -> Markup:
    """Text in the letters of programs."""
    return Markup("<code>{}</code>").format(text)


def render(name: str, **values: Any) -> str:
    """The template of this name, filled; the same values give the same bytes."""
    return _environment().get_template(name).render(**values)


@cache
def _environment() -> Environment:
    found = Environment(
        loader=FunctionLoader(_template),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters["linked"] = linked
    helpers: Any = {"inline_svg": inline_svg, "colour_of": colour_of, "shape_of": _shape_of, "style": _style}
    found.globals.update(helpers)
    return found


def _file(name: str) -> str:
    return resources.files("moescale.views.html").joinpath(name).read_text(encoding="utf-8")


def _template(name: str) -> str:
    return _file(f"templates/{name}")


def _shape_of(experts: float) -> str:
    return SHAPES.get(marker_of(experts), "●")


def _style(body: str) -> Markup:
    return Markup(_file("page.css").replace("/*DARK*/", dark_rules(colours_in(body))))
