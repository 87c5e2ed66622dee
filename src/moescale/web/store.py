"""The laws of this session, which were uploaded; they live in memory and end with the program.

A law's name is `upload:` and the start of the hash of its text, so that the same file has the same name, and a link finds
it again. The server loads this module, and no NumPy with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from moescale.errors import InputError, unknown_name

if TYPE_CHECKING:
    from moescale.scaling_laws.law import Law

PREFIX = "upload:"
MOST_LAWS = 32  # kept at a time; the oldest goes first
LAW_LIMIT_BYTES = 4 * 2**20  # of an uploaded law: ten thousand draws; read in about a second


@dataclass(frozen=True, slots=True)
class Uploaded:
    """A law of this session: its TOML text, and how the controls show it."""

    name: str
    law_name: str
    text: str
    entry: dict[str, Any]


def keep(laws: dict[str, Uploaded], law: Uploaded) -> None:
    """Keep a law, as the newest of MOST_LAWS."""
    laws.pop(law.name, None)
    laws[law.name] = law
    for old in [*laws][:-MOST_LAWS]:
        del laws[old]


def text_of(laws: Mapping[str, Uploaded], name: str) -> str:
    """The text of a law of this session; InputError where it has none of this name."""
    if name not in laws:
        what = "the law of this link was uploaded to another session, which has ended"
        raise InputError(what, where="law", next_step="upload its law file again, or choose a law of the catalogue")
    return laws[name].text


def find(laws: Mapping[str, Uploaded], name: str) -> Law:
    """A law of this session or of the catalogue. Names are looked up and never opened as files."""
    from moescale.scaling_laws import catalogue_names, find_law

    if name.startswith(PREFIX):
        return _parsed(text_of(laws, name))
    if name.lower() not in catalogue_names():
        raise unknown_name("law", name, catalogue_names(), where="law")
    return find_law(name)


@lru_cache(maxsize=4)
def _parsed(text: str) -> Law:
    from moescale.scaling_laws.store import parse_law

    return parse_law(text, where="the uploaded law")
