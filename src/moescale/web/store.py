"""The laws of this session, which were uploaded; they live in memory and end with the program.

A law's name is `upload:` and the start of the hash of its text, so that the same file has the same name, and a link finds
it again. The server loads this module, and no NumPy with it.
"""

from __future__ import annotations

from collections.abc import Iterable
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


class Laws:
    """The uploaded laws, and by `find` those of the catalogue too."""

    def __init__(self, kept: Iterable[Uploaded] = ()) -> None:
        self._kept = {one.name: one for one in kept}

    def keep(self, law: Uploaded) -> None:
        """Keep a law, as the newest."""
        self._kept.pop(law.name, None)
        self._kept[law.name] = law
        for old in [*self._kept][:-MOST_LAWS]:
            del self._kept[old]

    def every(self) -> list[Uploaded]:
        """This session's laws, the oldest first."""
        return list(self._kept.values())

    def uploaded(self, name: str) -> Uploaded:
        """A law of this session; InputError where it has none of this name."""
        if name not in self._kept:
            raise InputError(
                "the law of this link was uploaded to another session, which has ended",
                where="law",
                next_step="upload its law file again, or choose a law of the catalogue",
            )
        return self._kept[name]

    def find(self, name: str) -> Law:
        """A law by name. Names are looked up and never opened as files."""
        from moescale.scaling_laws import catalogue_names, find_law

        if name.startswith(PREFIX):
            return _parsed(self.uploaded(name).text)
        if name.lower() not in catalogue_names():
            raise unknown_name("law", name, catalogue_names(), where="law")
        return find_law(name)


@lru_cache(maxsize=4)
def _parsed(text: str) -> Law:
    from moescale.scaling_laws.store import parse_law

    return parse_law(text, where="the uploaded law")
