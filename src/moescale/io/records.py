"""Answers as JSON-ready values: one rule for every dataclass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from os import PathLike, fspath
from typing import Any, cast

import numpy as np


def record(answer: Any, *, without: tuple[str, ...] = ()) -> dict[str, Any]:
    """The fields of a dataclass as JSON-ready values: those that are None, and those of `without`, are absent.

    Dataclasses within are records, too; arrays and tuples become lists, paths texts, NumPy's numbers Python's.
    """
    values = ((field.name, getattr(answer, field.name)) for field in fields(answer) if field.name not in without)
    return {name: plain(value) for name, value in values if value is not None}


class Record:
    """Derived dataclasses are records in JSON."""

    __slots__ = ()

    def to_dict(self) -> dict[str, object]:
        """The record as JSON-ready values; keys that do not apply are absent."""
        return record(self)


def plain(value: Any) -> Any:
    """A value as JSON has it; a value with a `to_dict` of its own says what it is."""
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if is_dataclass(value) and not isinstance(value, type):
        return record(value)
    if isinstance(value, np.ndarray | np.generic):
        return cast("Any", value).tolist()
    if isinstance(value, Mapping):
        return {key: plain(part) for key, part in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, tuple | list | frozenset | set):
        return [plain(part) for part in cast("tuple[Any, ...]", value)]
    return fspath(cast("PathLike[str]", value)) if isinstance(value, PathLike) else value
