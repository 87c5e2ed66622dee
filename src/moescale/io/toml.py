"""TOML files as pydantic models, whose errors name file, table and key, the nearest value and the next step."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from itertools import zip_longest
from typing import Annotated, Any, TypeVar, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from moescale.errors import BoundError, DamagedFileError, InputError, unknown_name
from moescale.io.files import read_text
from moescale.units import parse_count

LIMIT_BYTES = 2**20  # settings are kilobytes, and Python's parser takes a second for a megabyte
_LONG = re.compile(r"\b0[xob]\w{400}")


def read_toml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The tables of a TOML file of settings; raises InputError as `files.read_text` and for what is no TOML."""
    return parse_toml(read_text(path, limit_bytes=LIMIT_BYTES), where=os.fspath(path))


def parse_toml(
    text: str, *, where: str, kind: str = "valid TOML", next_step: str = "correct it there"
) -> dict[str, Any]:
    """The tables of a TOML text of some kind; raises InputError for what is none or beyond the parser's limits."""
    if _LONG.search(text):  # longer than Python turns into decimal digits, as a message would
        what = f"is not {kind}: it holds a number of hundreds of digits"
        raise DamagedFileError(what, where=where, next_step=next_step)
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise DamagedFileError(f"is not {kind}: {reason}", where=where, next_step=next_step) from error


class Table(BaseModel):
    """A table of a TOML file: immutable, and no key that it does not name."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def fill(self, **values: Any) -> None:
        """Set fields while the table is made."""
        for key, value in values.items():
            object.__setattr__(self, key, value)


M = TypeVar("M", bound=BaseModel)


def _quantity(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise InputError(f"{value!r} is not a number")
    return parse_count(value)


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise InputError(f"{value!r} is not a text")
    return value


def _listed(value: object) -> object:
    if isinstance(value, list | tuple) and not value:
        raise InputError("is empty", next_step="give it at least one entry")
    return cast("object", value if isinstance(value, list | tuple) else [value])


Quantity = BeforeValidator(_quantity)
"""A number that may be written with a unit, such as "7B"; its bounds stand beside it."""
Listed = BeforeValidator(_listed)  # one value may stand for a list; an empty list is refused
Text = Annotated[str, BeforeValidator(_text)]
Whole = Annotated[int, Quantity, Field(ge=1, le=10**12)]
Tokens = Annotated[int, Quantity, Field(ge=1, le=10**18)]
Size = Annotated[float, Quantity, Field(ge=1e3, le=1e15)]
Experts = Annotated[int, Quantity, Field(ge=1, le=65_536)]
Width = Annotated[int, Quantity, Field(ge=1, le=10**7)]
Seed = Annotated[int, Quantity, Field(ge=0, le=2**31 - 1)]
Rate = Annotated[float, Quantity, Field(ge=0, le=10)]
Share = Annotated[float, Quantity, Field(ge=0, le=1)]


def checked(model: type[M], document: Mapping[str, Any], *, where: str) -> M:
    """The model of a table; the first error becomes an InputError that names its place."""
    try:
        return model.model_validate(document)
    except ValidationError as error:
        found = error.errors()
        raise _explained(model, next((e for e in found if e["type"] == "extra_forbidden"), found[0]), where) from error


def as_mapping(value: object, where: str) -> Mapping[str, Any]:
    """A value as a table; raises InputError for any other."""
    if not isinstance(value, Mapping):
        raise InputError("is not a table", where=where, next_step="write it as [name] with keys below")
    return cast("Mapping[str, Any]", value)


def _explained(model: type[BaseModel], error: Any, where: str) -> InputError:
    loc, kind, value = list(error["loc"]), error["type"], error["input"]
    key = ""
    of_a_key = kind in ("missing", "extra_forbidden")
    names_a_table = not of_a_key and (isinstance(value, dict) or kind in ("model_type", "dict_type"))
    if not names_a_table:
        while loc and isinstance(loc[-1], int):  # an entry of a list of plain values
            loc.pop()
        key = str(loc.pop()) if loc else ""
    owner = model
    for part, following in zip_longest(loc, loc[1:]):
        if isinstance(part, str):
            owner = _table_of(owner.model_fields[part].annotation) or owner
            where = f"{where}, [[{part}]]" if isinstance(following, int) else f"{where}, [{part}]"
        else:
            where = f"{where} {part + 1}"
    place = f"{where}, {key}" if key else where
    context = error.get("ctx", {})
    if isinstance(context.get("error"), InputError):
        return context["error"].at(place)
    if kind == "extra_forbidden":
        return unknown_name("key", key, list(owner.model_fields), where=where)
    if kind == "missing":
        return InputError(f"{key} is missing", where=where, next_step=f"add {key} = ..")
    if kind == "literal_error":
        names = str(context["expected"]).replace(" or ", ", ").replace("'", "").split(", ")
        return unknown_name(key, str(value), names, where=where)
    if kind in ("model_type", "dict_type", "tuple_type"):
        return InputError("is not a table", where=place, next_step="write it as [name] with keys below")
    if kind == "int_from_float":
        return BoundError(f"{value!r} is not a whole number", where=place, nearest=f"{parse_count(error['input']):.0f}")
    if kind in ("greater_than_equal", "less_than_equal"):
        bound = context.get("ge", context.get("le"))
        side = "at least" if "ge" in context else "at most"
        return BoundError(f"{value!r} is not {side} {bound:g}", where=place, nearest=f"{bound:g}")
    if kind == "too_long":
        most = context["max_length"]
        return BoundError(f"has more than {most} entries", where=place, nearest=f"{most}")
    return InputError(
        f"{str(value)[:60]!r}: {error['msg']}", where=place, next_step="docs/formats.md says what it takes"
    )


def _table_of(annotation: Any) -> type[BaseModel] | None:
    """The model within an annotation such as `tuple[Model, ...] | None`, if any."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in getattr(annotation, "__args__", ()) if (found := _table_of(part))), None)
