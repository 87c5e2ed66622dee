"""Laws that the page knows: the catalogue, and those of this session, which were uploaded or fitted to an upload.

Uploads live in memory and end with the program. A law's name is `upload:` and the start of the hash of its text, so that
the same file has the same name, and a link finds it again.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from moescale.errors import InputError
from moescale.laws import catalogue_names, find_law
from moescale.laws.law import Law
from moescale.laws.store import parse_law

PREFIX = "upload:"
MOST_LAWS = 32  # kept at a time; the oldest goes first


@dataclass(frozen=True, slots=True)
class Uploaded:
    """A law of this session: its TOML text and, where it was fitted here, the fit's record and the runs behind it."""

    name: str
    law: Law
    text: str
    evidence: dict[str, Any] = field(default_factory=dict[str, Any])


class Laws:
    """The catalogue and this session's laws; may be used from several threads."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Uploaded] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, text: str, *, where: str, evidence: dict[str, Any] | None = None) -> Uploaded:
        """Keep a law given as TOML; InputError as of `parse_law`."""
        law = parse_law(text, where=where)
        found = Uploaded(PREFIX + hashlib.sha256(text.encode()).hexdigest()[:16], law, text, evidence or {})
        with self._lock:
            old = self._kept.pop(found.name, None)
            self._kept[found.name] = found if evidence or old is None else old
            while len(self._kept) > MOST_LAWS:
                self._kept.popitem(last=False)
        return found

    def uploaded(self, name: str) -> Uploaded:
        """A law of this session; InputError where it has none of this name."""
        with self._lock:
            found = self._kept.get(name)
        if found is None:
            raise InputError(
                "the law of this link was uploaded to another session, which has ended",
                where="law",
                next_step="upload its law file or run table again, or choose a law of the catalogue",
            )
        return found

    def every(self) -> list[Uploaded]:
        """This session's laws, the oldest first."""
        with self._lock:
            return list(self._kept.values())

    def find(self, name: str) -> Law:
        """A law by name. Names are looked up and never opened as files."""
        if name.startswith(PREFIX):
            return self.uploaded(name).law
        if name.lower() not in catalogue_names():
            from moescale.errors import unknown_name

            raise unknown_name("law", name, catalogue_names(), where="law")
        return find_law(name)
