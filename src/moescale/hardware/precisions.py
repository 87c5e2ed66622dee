"""The bytes of number formats, read from the catalogue."""

from __future__ import annotations

from dataclasses import dataclass

from moescale import catalogue
from moescale.errors import unknown_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """A number format of weights or of the KV cache."""

    name: str
    bytes_per_element: float  # with its share of the scales
    source: str
    date: str


def precisions(kind: str) -> dict[str, Precision]:
    """Every number format of `kind` (`weights` or `kv_cache`) by name."""
    return {
        name: Precision(name=name, bytes_per_element=float(entry["bytes"]), source=entry["source"], date=entry["date"])
        for name, entry in catalogue.read("precisions.toml")[kind].items()
    }


def find_precision(kind: str, name: str) -> Precision:
    """The format called `name` of `weights` or `kv_cache`; raises InputError that names the nearest ones."""
    known = precisions(kind)
    if (wanted := name.strip().lower()) not in known:
        raise unknown_name("weight type" if kind == "weights" else "cache type", name, known)
    return known[wanted]
