"""What a page is made of, beside tables: an answer is sections of blocks, and one template shows any of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from moescale.views.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph after its lead, which stands out."""

    text: str
    lead: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer in one line."""

    text: str


@dataclass(frozen=True, slots=True)
class Bullets:
    """Lines of a list."""

    lines: Sequence[str]


@dataclass(frozen=True, slots=True)
class Facts:
    """Names with their values."""

    pairs: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Commands:
    """What to type."""

    lines: Sequence[str]


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure, and what it shows: to everyone, and in words to those who do not see it."""

    figure: Figure
    caption: str
    description: str


Block = Text | Answer | Bullets | Facts | Commands | Picture | Table
Section = tuple[str, Sequence[Block]]  # under its heading
