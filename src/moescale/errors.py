"""The one exception family: every error says what, where, the nearest valid choice and the next step."""

from __future__ import annotations

import difflib
import re
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from pydantic import ValidationError


MOST_SHOWN = 2000  # characters of each part of a message, which may quote a file
MOST_COMPARED = 1000  # names, and characters of one, that the nearest is sought among: each takes some microseconds
# Control characters, marks that turn the direction of writing, and lone surrogates: a quoted cell shall not steer a terminal.
_UNPRINTED = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class MoescaleError(Exception):
    """Base of every error that this package raises on purpose; its message escapes control characters, and cuts parts at MOST_SHOWN."""

    exit_code = 2  # of the command line

    def __init__(
        self, what: str, *, where: str | None = None, nearest: str | None = None, next_step: str | None = None
    ) -> None:
        self.what = what
        self.where = where
        self.nearest = nearest
        self.next_step = next_step
        parts = [f"{_printable(where)}: {_printable(what)}" if where else _printable(what)]
        if nearest:
            parts.append(f"nearest: {_printable(nearest)}")
        if next_step:
            parts.append(_printable(next_step))
        super().__init__("; ".join(parts))

    def to_dict(self) -> dict[str, str | bool | None]:
        """The message and its parts, as JSON has them."""
        parts = {"what": self.what, "where": self.where, "nearest": self.nearest, "next_step": self.next_step}
        return {"message": str(self), **parts, "infeasible": self.exit_code == 1}

    def at(self, where: str) -> Self:
        """The same error with a place, where it names none yet."""
        return self if self.where is not None else self.within(where)

    def within(self, where: str) -> Self:
        """The same error with its place as a part of another."""
        place = where if self.where is None else f"{where}, {self.where}"
        return type(self)(self.what, where=place, nearest=self.nearest, next_step=self.next_step)


@contextmanager
def located(where: str) -> Generator[None]:
    """Names the place in errors that name none."""
    try:
        yield
    except MoescaleError as error:
        if error.where is not None:
            raise
        raise error.at(where) from error


def _printable(text: str) -> str:
    shown = text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}.."
    return _UNPRINTED.sub(lambda found: ascii(found.group())[1:-1], shown)


class InputError(MoescaleError, ValueError):
    """The input is malformed, unknown or impossible (exit code 2)."""


class UnknownNameError(InputError):
    """A name is not one of those that are known; the message lists the nearest and all of them."""


class ColumnError(InputError):
    """A column of a table is missing, stated twice, or holds what it cannot hold."""


class DamagedFileError(InputError):
    """A file is not what it should be: torn, of another kind, or with a part out of place."""


class BoundError(InputError):
    """A number is out of its bounds; the message states them."""


class UnwrittenError(InputError):
    """A file or folder cannot be written (exit code 2); what was there before is unchanged, or lies where the message says."""


class InfeasibleError(MoescaleError):
    """The question is well posed but has no answer, such as a bound that no model meets (exit code 1)."""

    exit_code = 1


def nearest_names(name: str, choices: Iterable[str], count: int = 3) -> str | None:
    """The `count` valid names closest to `name`, those that begin with it ahead, joined by commas; None when nothing is close."""
    if len(name) > MOST_COMPARED:
        return None
    lowered = {choice.lower(): choice for choice in islice(choices, MOST_COMPARED) if len(choice) <= MOST_COMPARED}
    given = name.strip().lower()
    begun = sorted((key for key in lowered if given and key.startswith(given)), key=len)
    close = difflib.get_close_matches(given, list(lowered), n=count, cutoff=0.6)
    return ", ".join(lowered[key] for key in list(dict.fromkeys([*begun, *close]))[:count]) or None


def unknown_name(
    kind: str, name: str, choices: Iterable[str], *, where: str | None = None, otherwise: str = ""
) -> UnknownNameError:
    """The error for a name that is not one of `choices`: names the closest ones, lists all, and says what else may be given."""
    known = list(choices)
    return UnknownNameError(
        f"unknown {kind} {name!r}",
        where=where,
        nearest=nearest_names(name, known),
        next_step=f"known: {', '.join(known)}{f'; {otherwise}' if otherwise else ''}",
    )


def damaged(kind: str, error: ValidationError, *, where: str, next_step: str) -> DamagedFileError:
    """The error for a file of this kind whose first fault pydantic names."""
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    return DamagedFileError(f"damaged {kind} at {place}: {first['msg']}", where=where, next_step=next_step)


def install(extra: str = "") -> str:
    """The command that installs the package, or one of its extras: from a clone, until the name is on an index."""
    what = f"'.[{extra}]'" if extra else "."
    return f"pip install {what} in a clone of moescale"
