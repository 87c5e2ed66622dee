"""What users send: mean prompt and output lengths, as numbers or a named measurement of the catalogue."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

from moescale import catalogue
from moescale.errors import InputError, unknown_name


@dataclass(frozen=True, slots=True)
class Traffic:
    """Mean lengths of a request; raises InputError unless they are finite, prompts not negative, outputs positive."""

    prompt_tokens: float
    output_tokens: float
    source: str = "given by the user"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.prompt_tokens) and self.prompt_tokens >= 0):
            raise InputError(f"prompt_tokens must be finite and not negative, not {self.prompt_tokens!r}")
        if not (math.isfinite(self.output_tokens) and self.output_tokens > 0):
            raise InputError(f"output_tokens must be finite and positive, not {self.output_tokens!r}")


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
