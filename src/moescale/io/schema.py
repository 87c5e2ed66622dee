"""TOML files as checked dataclasses; every complaint names file, table and key, the nearest and the next step."""

from __future__ import annotations

import math
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from moescale.bounds import Bound
from moescale.errors import BoundError, DamagedFileError, InputError, located, unknown_name
from moescale.io.files import read_text
from moescale.units import parse_count

_LONG = re.compile(r"\b0[xob]\w{400}")
T = TypeVar("T")
SETTINGS_LIMIT_BYTES = 2**20  # settings are kilobytes, and Python's parser takes a second for a megabyte


def read_toml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The tables of a TOML file of settings, at most SETTINGS_LIMIT_BYTES; raises InputError that names the file, as of
    `files.read_text` and for what is no TOML."""
    return parse_toml(read_text(path, limit_bytes=SETTINGS_LIMIT_BYTES), where=os.fspath(path))


def parse_toml(
    text: str, *, where: str, kind: str = "valid TOML", next_step: str = "correct it there"
) -> dict[str, Any]:
    """The tables of a TOML text of some kind; raises InputError for what is none, and for nesting and numbers beyond the
    parser's limits."""
    if _LONG.search(text):  # longer than Python turns into decimal digits, as a message would
        what = f"is not {kind}: it holds a number of hundreds of digits"
        raise DamagedFileError(what, where=where, next_step=next_step)
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise DamagedFileError(f"is not {kind}: {reason}", where=where, next_step=next_step) from error


QUANTITY = object()  # marks a number that may be written with a unit, such as "7B"
Quantity = Annotated[float, QUANTITY]  # with bounds: Annotated[Quantity, Bound(1, 1e15)]


def settings(kind: type[T], document: Mapping[str, Any], *, where: str) -> T:
    """The frozen dataclass that a table of a TOML file states, each key checked by its field's annotation.

    Understood are bool, int, float, str (not blank), Literal, tuple[X, ...] (one value may stand for a list; not empty
    where the field has no default), nested dataclasses as [tables], mappings, `X | None`, and Annotated with Bound and
    QUANTITY. Raises UnknownNameError, BoundError and InputError that name file, table and key; `__post_init__` may
    raise more, which gain the place.
    """
    hints = get_type_hints(kind, include_extras=True)
    stated = [each for each in fields(cast("Any", kind)) if each.init]
    names = [each.name for each in stated]
    for key in document:
        if key not in names:
            raise unknown_name("key", key, names, where=where)
    values: dict[str, Any] = {}
    for each in stated:
        needed = each.default is MISSING and each.default_factory is MISSING
        if each.name in document:
            values[each.name] = _value(each.name, hints[each.name], document[each.name], where, needed=needed)
        elif needed:
            raise InputError(f"{each.name} is missing", where=where, next_step=f"add {each.name} = ..")
    with located(where):
        return kind(**values)


def _value(key: str, hint: Any, value: Any, where: str, *, needed: bool = False, marks: tuple[Any, ...] = ()) -> Any:
    """A value as its annotation has it; `marks` are those of the annotations around this one."""
    origin, parts, at = get_origin(hint), get_args(hint), f"{where}, {key}"
    if origin is Annotated:
        return _value(key, parts[0], value, where, needed=needed, marks=(*marks, *parts[1:]))
    if origin in (Union, UnionType):
        (inner,) = (part for part in parts if part is not NoneType)
        return None if value is None else _value(key, inner, value, where, needed=needed, marks=marks)
    if origin is tuple:
        entries = cast("list[Any]", value) if isinstance(value, list | tuple) else [value]
        if needed and not entries:
            raise InputError("is empty", where=at, next_step="give it at least one entry")
        if is_dataclass(parts[0]):
            places = [f"{where}, [[{key}]] {count}" for count in range(1, len(entries) + 1)]
            kind = cast("type[Any]", parts[0])
            return tuple(settings(kind, as_mapping(e, at), where=at) for e, at in zip(entries, places, strict=True))
        return tuple(_value(key, parts[0], entry, where, marks=marks) for entry in entries)
    if origin is Literal:
        if _text(value, at) not in parts:
            raise unknown_name(key, value, parts, where=where)
        return value
    if is_dataclass(hint):
        at = f"{where}, [{key}]"
        return settings(cast("type[Any]", hint), as_mapping(value, at), where=at)
    if hint in (int, float):
        return _number(value, at, whole=hint is int, marks=marks)
    if hint is str:
        return _text(value, at)
    if hint is bool and not isinstance(value, bool):
        raise InputError(f"{value!r} is neither true nor false", where=at)
    return as_mapping(value, at) if origin in (Mapping, dict) else value


def _number(value: Any, at: str, *, whole: bool, marks: tuple[Any, ...]) -> float:
    if isinstance(value, str | int | float) and QUANTITY in marks and not isinstance(value, bool):
        with located(at):
            number = parse_count(value)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        number = float(value) if abs(value) < 2**1000 else math.inf
    else:
        raise InputError(f"{value!r} is not a number", where=at)
    finite = math.isfinite(number)
    if whole and not number.is_integer():
        raise BoundError(f"{value!r} is not a whole number", where=at, nearest=f"{number:.0f}" if finite else None)
    for bound in (mark for mark in marks if isinstance(mark, Bound)):
        if bound.bad(number) is not None:
            closed = math.isfinite(bound.least + bound.most) and not bound.above
            kind = "a whole number " if bound.whole else ""
            what = f"{kind}from {bound.least:g} to {bound.most:g}" if closed else bound.words
            nearest = f"{min(max(number, bound.least), bound.most):g}" if closed and finite else None
            raise BoundError(f"{value!r} is not {what}", where=at, nearest=nearest)
    return int(number) if whole else number


def _text(value: Any, at: str) -> str:
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise InputError(f"{value!r} is not a text", where=at)
    return value


def as_mapping(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InputError("is not a table", where=where, next_step="write it as [name] with keys below")
    return cast("Mapping[str, Any]", value)
