"""The one exception family: every error says what, where, the nearest valid choice and the next step."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError


class MoescaleError(Exception):
    """Base of every error that this package raises on purpose; `exit_code` is what the command line returns."""

    exit_code = 2

    def __init__(
        self, what: str, *, where: str | None = None, nearest: str | None = None, next_step: str | None = None
    ) -> None:
        self.what = what
        self.where = where
        self.nearest = nearest
        self.next_step = next_step
        parts = [f"{where}: {what}" if where else what]
        if nearest:
            parts.append(f"nearest: {nearest}")
        if next_step:
            parts.append(next_step)
        super().__init__("; ".join(parts))


class InputError(MoescaleError):
    """The input is malformed, unknown or impossible (exit code 2)."""


class UnwrittenError(InputError):
    """A file or folder cannot be written (exit code 2); what was there before is unchanged."""


class InfeasibleError(MoescaleError):
    """The question is well posed but has no answer, such as a bound that no model meets (exit code 1)."""

    exit_code = 1


def nearest_names(name: str, choices: Iterable[str], count: int = 3) -> str | None:
    """The `count` valid names closest to `name`, joined by commas, or None when nothing is close."""
    lowered = {choice.lower(): choice for choice in choices}
    close = difflib.get_close_matches(name.lower(), list(lowered), n=count, cutoff=0.4)
    return ", ".join(lowered[key] for key in close) or None


def unknown_name(kind: str, name: str, choices: Iterable[str], *, where: str | None = None) -> InputError:
    """The error for a name that is not one of `choices`: names the closest ones, or lists all."""
    known = list(choices)
    return InputError(
        f"unknown {kind} {name!r}",
        where=where,
        nearest=nearest_names(name, known),
        next_step=f"known: {', '.join(known)}",
    )


def damaged(kind: str, error: ValidationError, *, where: str, next_step: str) -> InputError:
    """The error for a file of this kind whose first fault pydantic names."""
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    return InputError(f"damaged {kind} at {place}: {first['msg']}", where=where, next_step=next_step)
