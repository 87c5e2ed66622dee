"""What an option is: what a field of a dataclass holds, read by the command line and by the page."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from moescale.bounds import COUNT, SHARE, Bound
from moescale.errors import BoundError, InputError, located
from moescale.units import parse_count, parse_quantity

MOST = COUNT.most
MOST_SECONDS = 1e6
LEAST = SHARE.least  # of shares and prices, which must be above zero
PLAUSIBLE = 1e4  # parameters, tokens or bytes: who states fewer means thousands, millions or billions of them
LONGEST_WAIT_S = 5.0  # for a token: who states more without a unit means milliseconds
SECONDS = {"ms": 1e-3, "s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0}

Remark = Callable[[str], None]


def ignore(remark: str) -> None:
    """Where remarks go that nobody wants."""


def silent(step: str, share: float) -> None:
    """Where progress goes that nobody watches."""


@dataclass(frozen=True)
class Described:
    """An option that is taken as it is written: its help, its heading there, and a name other than the field's."""

    help: str = ""
    _: KW_ONLY
    panel: str = ""  # empty: that of the group
    name: str | None = None
    metavar: str = ""  # none: a switch

    def parse(self, text: Any, place: str, remark: Remark = ignore) -> Any:
        """The value that a text states; InputError at `place`, and a remark where the text is unlikely to be meant."""
        return text


@dataclass(frozen=True)
class FilePath(Described):
    """The path of a file or folder."""

    def parse(self, text: Any, place: str, remark: Remark = ignore) -> Path:
        if not str(text):
            raise InputError("the path is empty", where=place, next_step="give the path of a file")
        return Path(text)


@dataclass(frozen=True)
class Quantity(Bound, Described):
    """A number within bounds, such as 5e21, 7B or, of bytes, 80GiB; a whole one arrives as an int.

    With `unit`, a value too small to be meant as a plain count of it is remarked on: 300 tokens, where 300B were meant.
    """

    def parse(self, text: Any, place: str, remark: Remark = ignore) -> float:
        parse = parse_quantity if self.unit == "bytes" else parse_count
        with located(place):
            value = _negative(text, parse) or parse(text)
        if not self.least <= value <= self.most or (self.whole and not value.is_integer()):
            raise self._refusal(text, value, place)
        if self.unit and 0 < value < PLAUSIBLE:
            suffix = "GiB" if self.unit == "bytes" else "B"
            remark(f"{place} {value:g} means {value:g} {self.unit}; if that is short for more, write {value:g}{suffix}")
        return int(value) if self.whole else value

    def _refusal(self, text: Any, value: float, place: str) -> InputError:
        nearest = min(max(round(value) if self.whole else value, self.least), self.most)
        next_step = None
        if self.most == 1 and 5 <= value <= 100:  # below it may be a factor
            nearest, next_step = value / 100, f"it is a share: {value:g}% is {value / 100:g}"
        elif self.unit == "FLOPs":
            next_step = "give training FLOPs in total, not per second or per token"
        elif 0 < value < self.least and self.least >= PLAUSIBLE:
            next_step = f"write billions as {value:g}B, millions as {value:g}M"
        kind = "a whole number" if self.whole else "a number"
        what = f"{text!r} is not {kind} from {self.least:g} to {self.most:g}"
        return InputError(what, where=place, nearest=f"{nearest:g}", next_step=next_step)


def _negative(text: Any, parse: Callable[[Any], float]) -> float | None:
    signed = str(text).strip()
    if signed.startswith("-"):
        with suppress(InputError):
            return -parse(signed[1:])
    return None


@dataclass(frozen=True)
class Seconds(Described):
    """A time: 0.2, 0.2s, 200ms, 9m or 2h, or `none` for infinity; more than `longest_s` without a unit is remarked on."""

    longest_s: float = MOST_SECONDS

    def parse(self, text: Any, place: str, remark: Remark = ignore) -> float:
        given = str(text).strip().lower()
        if given == "none":
            return math.inf
        unit = next((unit for unit in SECONDS if given.endswith(unit)), "")
        try:
            value = parse_count(given.removesuffix(unit)) * SECONDS.get(unit, 1.0)
        except InputError:
            value = 0.0  # below every time that is taken
        if not LEAST <= value <= MOST_SECONDS:
            what = f"{text!r} is not a time from {LEAST:g} to {MOST_SECONDS:g} seconds"
            raise InputError(what, where=place, next_step="write it as 0.2, 0.2s, 200ms, 9m or 2h")
        if not unit and value > self.longest_s:
            remark(f"{place} {value:g} means {value:g} s; write {value:g}ms if milliseconds are meant")
        return value


@dataclass(frozen=True, kw_only=True)
class Group:
    """Options that belong together: a frozen dataclass, each field of which one of the functions below makes."""

    HEADING: ClassVar[str] = ""  # of its options in the help

    def __post_init__(self) -> None:
        for name, kind in described(type(self)).items():
            value = getattr(self, name)
            if isinstance(kind, Quantity) and value is not None and (bad := kind.bad(value)) is not None:
                raise BoundError(f"must be {kind.words}, not {bad:g}", where=name)


def quantity(
    help: str, least: float | Bound = 1.0, most: float = MOST, *, default: Any = None, whole: bool = False, **kind: Any
) -> Any:
    """A field that is a number within a named range or two ends; `default=MISSING` where it must be stated."""
    bound = least if isinstance(least, Bound) else Bound(least, most, whole=whole, unit=kind.pop("unit", ""))
    return _field(within(bound, help, **kind), default)


def within(bound: Bound, help: str = "", **kind: Any) -> Quantity:
    """A number within a named range."""
    metavar = "INT" if bound.whole else "NUMBER"
    return Quantity(help, bound.least, bound.most, whole=bound.whole, unit=bound.unit, metavar=metavar, **kind)


def text(help: str, *, default: Any = None, metavar: str = "NAME", **kind: Any) -> Any:
    """A field that is a name, a list or an expression."""
    return _field(Described(help, metavar=metavar, **kind), default)


def path(help: str, *, default: Any = None, name: str | None = None) -> Any:
    """A field that is the path of a file or folder."""
    return _field(FilePath(help, name=name, metavar="PATH"), default)


def seconds(help: str, longest_s: float = LONGEST_WAIT_S) -> Any:
    """A field that is a time; by default one to wait for a token."""
    return _field(Seconds(help, longest_s=longest_s, metavar="SECONDS"), None)


def flag(help: str, *, default: bool = False, name: str | None = None, panel: str = "") -> Any:
    """A field that is a switch."""
    return _field(Described(help, name=name, panel=panel), default)


def _field(kind: Described, default: Any) -> Any:
    return field(default=default, metadata={"option": kind})


@cache
def described(group: type[Group]) -> dict[str, Described]:
    """The options of a group by field."""
    kinds = {field.name: field.metadata["option"] for field in fields(group)}
    return {n: kind if kind.panel else replace(kind, panel=group.HEADING) for n, kind in kinds.items()}


def option_name(field: str, kind: Described) -> str:
    """What the command line calls an option."""
    return kind.name or f"--{field.rstrip('_').replace('_', '-')}"


def refuse(options: Group, names: Iterable[str], what: str, next_step: str = "leave it out") -> None:
    """InputError for the first of these options that is stated: that has another value than its default."""
    usual = {field.name: field.default for field in fields(options)}
    for name in names:
        if getattr(options, name) != usual[name]:
            where = option_name(name, described(type(options))[name])
            raise InputError(what, where=where, next_step=next_step)


def listed(option: str, text: str) -> list[str]:
    """The names in a list with commas, each once."""
    names = [part.strip() for part in text.split(",")]
    if not all(names):
        raise InputError(f"{text!r} is not a list with commas", where=option, next_step="such as a,b,c, without gaps")
    return list(dict.fromkeys(name.lower() for name in names))


@contextmanager
def at_option(option: str) -> Generator[None]:
    """Names the option in bad input that names no place, or only a place within its text."""
    try:
        yield
    except InputError as error:
        if error.where is not None and not error.where.startswith("expression "):
            raise
        raise error.within(option) from error
