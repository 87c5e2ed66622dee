"""What users send: mean prompt and output lengths, as numbers or a named measurement of the catalogue."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from moescale import catalogue
from moescale.errors import unknown_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Mean lengths of a request."""

    prompt_tokens: float
    output_tokens: float
    source: str = "given by the user"


@cache
def _read() -> tuple[tuple[str, Traffic], ...]:
    entries = catalogue.read("traffic.toml")["traffic"]
    return tuple(
        (
            name,
            Traffic(
                prompt_tokens=float(entry["prompt_tokens"]),
                output_tokens=float(entry["output_tokens"]),
                source=f"{entry['source']} ({entry['date']})",
            ),
        )
        for name, entry in entries.items()
    )


def traffics() -> dict[str, Traffic]:
    """Every named traffic of the catalogue."""
    return dict(_read())


def find_traffic(name: str) -> Traffic:
    """The traffic called `name`, in either case; raises InputError that names the nearest ones."""
    known = traffics()
    found = known.get(name.strip().lower())
    if found is None:
        raise unknown_name("traffic", name, known)
    return found
