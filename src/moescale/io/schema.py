"""Checked access to a table of a TOML file: quantities, whole numbers, texts; every complaint names file, table and key."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from moescale.errors import InputError, unknown_name
from moescale.io.files import read_text
from moescale.units import parse_count

_LONG = re.compile(r"\b0[xob]\w{400}")
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
        raise InputError(f"is not {kind}: it holds a number of hundreds of digits", where=where, next_step=next_step)
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise InputError(f"is not {kind}: {reason}", where=where, next_step=next_step) from error


def quantity_at(value: object, where: str) -> float:
    """The number that a value of a TOML file states, with or without a unit; raises InputError that names its place."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise InputError(f"{value!r} is not a number", where=where)
    try:
        return parse_count(value)
    except InputError as error:
        raise InputError(error.what, where=where, nearest=error.nearest, next_step=error.next_step) from error


def text_at(value: object, where: str) -> str:
    """The text that a value of a TOML file is; raises InputError that names its place."""
    if not isinstance(value, str):
        raise InputError(f"{value!r} is not text", where=where)
    return value


class Table:
    """Checked access to one table: each key is asked for once, and `finish` refuses those that nobody asked for."""

    def __init__(self, values: Mapping[str, Any], where: str, others: Sequence[str] = ()) -> None:
        self.values, self.where, self.asked = values, where, list(others)

    def has(self, key: str) -> bool:
        if key not in self.asked:
            self.asked.append(key)
        return key in self.values

    def finish(self) -> None:
        for key in self.values:
            if key not in self.asked:
                raise unknown_name("key", key, self.asked, where=self.where)

    def _get(self, key: str, default: Any, read: Callable[[Any], Any]) -> Any:
        if self.has(key):
            return read(self.values[key])
        if default is None:
            raise InputError(f"{key} is missing", where=self.where, next_step=f"add {key} = ..")
        return default

    def _quantity(self, key: str, value: Any, least: float, most: float) -> float:
        at = f"{self.where}, {key}"
        number = quantity_at(value, at)
        if not least <= number <= most:
            nearest = f"{min(max(number, least), most):g}"
            raise InputError(f"{value!r} is not from {least:g} to {most:g}", where=at, nearest=nearest)
        return number

    def number(self, key: str, default: float | None = None, *, least: float, most: float) -> float:
        return self._get(key, default, lambda value: self._quantity(key, value, least, most))

    def _whole(self, key: str, value: Any, least: int, most: int) -> int:
        number = self._quantity(key, value, least, most)
        if not number.is_integer():
            raise InputError(f"{value!r} is not a whole number", where=f"{self.where}, {key}", nearest=f"{number:.0f}")
        return int(number)

    def whole(self, key: str, default: int | None = None, *, least: int = 1, most: int) -> int:
        return self._get(key, default, lambda value: self._whole(key, value, least, most))

    def wholes(self, key: str, *, most: int) -> list[int]:
        def read(value: Any) -> list[int]:
            entries = cast("list[Any]", value) if isinstance(value, list | tuple) else [value]
            if not entries:
                raise InputError("is empty", where=f"{self.where}, {key}", next_step="give at least one whole number")
            return [self._whole(key, entry, 1, most) for entry in entries]

        return self._get(key, None, read)

    def text(self, key: str, default: str | None = None) -> str:
        def read(value: Any) -> str:
            if not isinstance(value, str) or not value.strip() or "\0" in value:
                raise InputError(f"{value!r} is not a text", where=f"{self.where}, {key}")
            return value

        return self._get(key, default, read)

    def texts(self, key: str) -> tuple[str, ...]:
        def read(value: Any) -> tuple[str, ...]:
            entries = cast("list[Any]", value) if isinstance(value, list | tuple) else [value]
            for entry in entries:
                if not isinstance(entry, str) or not entry.strip():
                    raise InputError(f"{entry!r} is not a text", where=f"{self.where}, {key}")
            return tuple(entries)

        return self._get(key, (), read)

    def flag(self, key: str) -> bool | None:
        if not self.has(key):
            return None
        value = self.values[key]
        if not isinstance(value, bool):
            raise InputError(f"{value!r} is neither true nor false", where=f"{self.where}, {key}")
        return value

    def choice(self, key: str, known: Sequence[str], default: str) -> str:
        value = self.text(key, default) if self.has(key) or default else default
        if value and value not in known:
            raise unknown_name(key, value, known, where=self.where)
        return value


def as_mapping(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InputError("is not a table", where=where, next_step="write it as [name] with keys below")
    return cast("Mapping[str, Any]", value)
