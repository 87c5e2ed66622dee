"""HTML from text: whatever is not made here is escaped."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

from moescale.views.figures.style import colour_of, marker_of
from moescale.views.tables import Table


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


VOID = ("meta", "br", "hr")
# What may become a link: an arXiv number, a DOI, an address. Anything else stays text.
LINK = re.compile(r"\bhttps?://[^\s<>\"']*[^\s<>\"'.,;:)\]]|\barXiv[: ](\d{4}\.\d{4,5})(v\d+)?\b", re.IGNORECASE)
NUMBERED = {"^": "▲", "v": "▼", "<": "◀", ">": "▶", "o": "●", "s": "■", "D": "◆", "p": "⬟", "h": "⬢", "d": "♦"}


def escaped(value: object) -> Html:
    """Any text as HTML; HTML stays itself."""
    return value if isinstance(value, Html) else Html(html.escape(str(value), quote=True))


def joined(*parts: object) -> Html:
    """Parts one after another, each escaped if it is not HTML."""
    return Html("".join(escaped(part) for part in parts))


def tag(name: str, /, *parts: object, **attributes: object) -> Html:
    """An element; `class_` is its class, underscores in names are dashes, None leaves an attribute out."""
    listed = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escaped(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Html(f"<{name}{listed}>") if name in VOID else Html(f"<{name}{listed}>{joined(*parts)}</{name}>")


def linked(text: str) -> Html:
    """Text whose addresses and arXiv numbers are links."""
    parts: list[object] = []
    end = 0
    for found in LINK.finditer(text):
        address = f"https://arxiv.org/abs/{found[1]}" if found[1] else found[0]
        parts += [text[end : found.start()], tag("a", found[0], href=address, rel="noreferrer")]
        end = found.end()
    return joined(*parts, text[end:])


def bullets(lines: Sequence[object]) -> Html:
    """A list."""
    return tag("ul", *(tag("li", line) for line in lines))


def facts(pairs: Sequence[tuple[object, object]], kind: str = "facts") -> Html:
    """Names with their values."""
    return tag("dl", *(tag("div", tag("dt", name), tag("dd", value)) for name, value in pairs), class_=kind)


def html_table(table: Table, *, title: str | None = None, emphasised: float | None = None) -> Html:
    """A table with its caption and notes; rows of models carry the colour and marker that figures give their expert count.

    `emphasised` is the expert count whose row stands out.
    """
    kept = table.filled()
    caption = table.title if title is None else title
    head = tag("tr", *(_head(table, i) for i in kept))
    body: list[Html] = []
    for place, row in enumerate(table.rows):
        count = table.experts[place] if table.experts else None
        cells: list[Html] = []
        for i in kept:
            first = i == kept[0]
            mark = _mark(count) if first and count is not None else ""
            attributes = {"scope": "row"} if first else {}
            kind = "text" if table.columns[i].text else None
            cells.append(tag("th" if first else "td", mark, row[i], class_=kind, **attributes))
        chosen = emphasised is not None and count == emphasised
        body.append(tag("tr", *cells, class_="chosen" if chosen else None))
    named = tag("caption", caption) if caption else ""
    element = tag("table", named, tag("thead", head), tag("tbody", *body))
    scrolls = tag("div", element, class_="wide", role="region", tabindex="0", aria_label=caption or "table")
    return joined(scrolls, *(tag("p", note, class_="note") for note in table.notes))


def _head(table: Table, i: int) -> Html:
    column = table.columns[i]
    kind = "text" if column.text else None
    if column.head:
        return tag("th", column.head, scope="col", class_=kind)
    return tag("th", tag("span", "model", class_="unseen"), scope="col", class_=kind) if table.experts else tag("td")


def _mark(experts: float) -> Html:
    colour = colour_of(experts)
    shape = NUMBERED.get(marker_of(experts), "●")
    return tag("span", shape, class_="mark", style=f"color: var(--c{colour[1:]}, {colour})", aria_hidden="true")
