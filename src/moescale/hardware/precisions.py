"""The bytes of number formats, read from the catalogue."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from moescale import catalogue
from moescale.errors import unknown_name

SAME_BYTES = 0.02  # a format is told by its bytes, as far as they differ by less


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """A number format of weights or of the KV cache."""

    name: str
    bytes_per_element: float  # with its share of the scales
    source: str
    date: str


@cache
def precisions(kind: str) -> dict[str, Precision]:
    """Every number format of `kind` (`weights` or `kv_cache`) by name."""
    return {
        name: Precision(name=name, bytes_per_element=float(entry["bytes"]), source=entry["source"], date=entry["date"])
        for name, entry in catalogue.read("precisions.toml")[kind].items()
    }


def format_of_bytes(kind: str, bytes_per_element: float) -> str | None:
    """The first format of `kind` that takes so many bytes, within SAME_BYTES; None where there is none."""
    off = {name: abs(p.bytes_per_element / bytes_per_element - 1.0) for name, p in precisions(kind).items()}
    return next((name for name in off if off[name] < SAME_BYTES), None)


def find_precision(kind: str, name: str) -> Precision:
    """The format called `name` of `weights` or `kv_cache`; raises InputError that names the nearest ones."""
    known = precisions(kind)
    if (wanted := name.strip().lower()) not in known:
        raise unknown_name("weight type" if kind == "weights" else "cache type", name, known)
    return known[wanted]
