"""Tables of a TOML file as pydantic models whose errors name file, table and key, the nearest value and the next step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from moescale.errors import BoundError, InputError, unknown_name
from moescale.units import parse_count


class Table(BaseModel):
    """A table of a TOML file: immutable, and no key that it does not name."""

    model_config = ConfigDict(frozen=True, extra="forbid")


M = TypeVar("M", bound=BaseModel)


def within(least: float = -math.inf, most: float = math.inf, *, whole: bool = False) -> BeforeValidator:
    """A number from `least` to `most`, which may be written with a unit, such as "7B"."""

    def check(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise InputError(f"{value!r} is not a number")
        number = parse_count(value)
        if whole and not number.is_integer():
            raise BoundError(
                f"{value!r} is not a whole number", nearest=f"{number:.0f}" if math.isfinite(number) else None
            )
        if not least <= number <= most:
            bounds = f"from {least:g} to {most:g}" if math.isfinite(most) else f"at least {least:g}"
            raise BoundError(f"{value!r} is not {bounds}", nearest=f"{least if not number > least else most:g}")
        return int(number) if whole else number

    return BeforeValidator(check)


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise InputError(f"{value!r} is not a text")
    return value


def _listed(value: object) -> object:
    if isinstance(value, list | tuple) and not value:
        raise InputError("is empty", next_step="give it at least one entry")
    return cast("object", value if isinstance(value, list | tuple) else [value])


Text = Annotated[str, BeforeValidator(_text)]
Listed = BeforeValidator(_listed)
"""One value may stand for a list; an empty list is refused."""


def checked(model: type[M], document: Mapping[str, Any], *, where: str) -> M:
    """The model of a table; the first error becomes an InputError that names its place."""
    try:
        return model.model_validate(document)
    except ValidationError as error:
        found = error.errors()
        first = next((each for each in found if each["type"] == "extra_forbidden"), found[0])
        raise _explained(model, first["loc"], first["type"], first, where) from error


def _explained(model: type[BaseModel], loc: Sequence[int | str], kind: str, error: Any, where: str) -> InputError:
    table, key = where, ""
    inner: Any = model
    for at, part in enumerate(loc):
        field = inner.model_fields.get(part) if isinstance(part, str) and inner is not None else None
        inner = _table_of(field.annotation) if field is not None else inner
        last = at == len(loc) - 1
        if isinstance(part, int):
            table = f"{table} {part + 1}" if table.endswith("]]") else table
        elif field is not None and inner is not None and not (last and kind == "missing"):
            repeated = at + 1 < len(loc) and isinstance(loc[at + 1], int)
            table = f"{table}, [[{part}]]" if repeated else f"{table}, [{part}]"
        else:
            key = key or str(part)
    place = f"{table}, {key}" if key else table
    raised = error.get("ctx", {}).get("error")
    if isinstance(raised, InputError):
        return raised.at(place)
    if kind == "extra_forbidden":
        owner = model
        for part in loc[:-1]:
            field = owner.model_fields.get(part) if isinstance(part, str) else None
            owner = (_table_of(field.annotation) if field is not None else None) or owner
        return unknown_name("key", key, list(owner.model_fields), where=table)
    if kind == "missing":
        return InputError(f"{key} is missing", where=table, next_step=f"add {key} = ..")
    if kind == "literal_error":
        names = [name for name in str(error["ctx"]["expected"]).replace(" or ", ", ").replace("'", "").split(", ")]
        return unknown_name(key, str(error["input"]), names, where=table)
    if kind in ("model_type", "model_attributes_type", "dict_type", "tuple_type"):
        return InputError("is not a table", where=place, next_step="write it as [name] with keys below")
    if kind.startswith("bool"):
        return InputError(f"{error['input']!r} is neither true nor false", where=place)
    return InputError(f"{str(error['input'])[:60]!r}: {error['msg']}", where=place)


def _table_of(annotation: Any) -> type[BaseModel] | None:
    """The model within an annotation such as `tuple[Model, ...] | None`, if any."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in getattr(annotation, "__args__", ()) if (found := _table_of(part))), None)
