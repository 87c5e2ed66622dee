"""Where the cells of a column come from, and the mapping file that states it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from moescale.errors import InputError, unknown_name
from moescale.io.schema import read_toml
from moescale.runs.importers.tracked_run import Scalar, number

AT = "last, min, or mean of last N"
_MEAN = re.compile(r"mean of last (\d{1,9})")


@dataclass(frozen=True)
class Rule:
    """Where the cells of one column come from: one of a name, an expression over names, a constant, or a derivation.

    `of` is "param" or "metric" where only that is meant; otherwise a param stands before a metric of its name. `at` says
    which value of a metric's curve is taken: see AT.
    """

    name: str | None = None
    expression: str | None = None
    constant: Scalar | None = None
    derived: str | None = None
    of: str | None = None
    at: str = "last"

    def __str__(self) -> str:
        if self.derived is not None:
            return DERIVED[self.derived]
        if self.name is not None:
            return f"{self.name!r}" + (f" ({self.at})" if self.at != "last" else "")
        return f"'{self.expression}'" if self.expression is not None else f"{self.constant!r}"


DERIVED = {
    "shape": "the model's configuration (without embeddings)",
    "dense": "1, no name speaks of experts",
    "flos": "total_flos / (6 times the parameters that Trainer counts)",
}


def read_mapping(path: str | Path) -> dict[str, Rule]:
    """The rules of a mapping file, by column.

    A value is a name or an expression over names, a number, or a table: {metric = NAME, at = AT}, {param = NAME} or
    {value = CONSTANT}. Raises InputError for anything else.
    """
    where = str(path)
    table = read_toml(path)
    if not table:
        raise InputError("states no column", where=where, next_step='write, for example, tokens = "step * 524288"')
    return {column: _rule(given, f"{where}, {column}") for column, given in table.items()}


def _rule(given: Any, where: str) -> Rule:
    if isinstance(given, bool | int | float):
        return Rule(constant=given if isinstance(given, bool) else number(given))
    if isinstance(given, str) and given.strip():
        return Rule(expression=given.strip())
    if not isinstance(given, dict):
        raise InputError(
            "must be a name, an expression, a number or a table",
            where=where,
            next_step='such as {metric = "eval/loss", at = "min"}',
        )
    table = cast("dict[str, Any]", given)
    for key in table:
        if key not in ("metric", "at", "param", "value"):
            raise unknown_name("key", key, ("metric", "at", "param", "value"), where=where)
    kinds = [key for key in ("metric", "param", "value") if key in table]
    if len(kinds) != 1:
        raise InputError("needs one of metric, param and value", where=where)
    kind, value = kinds[0], table[kinds[0]]
    if kind == "value":
        if not isinstance(value, bool | int | float | str):
            raise InputError("value must be a number, a truth or a text", where=where)
        return Rule(constant=value if isinstance(value, bool | str) else number(value))
    at = table.get("at", "last")
    if not isinstance(value, str) or not value:
        raise InputError(f"{kind} must be a name", where=where)
    if not isinstance(at, str) or (at not in ("last", "min") and not mean_length(at)):
        raise InputError(f"at must be {AT}", where=where, next_step='write, for example, at = "mean of last 100"')
    if kind == "param" and "at" in table:
        raise InputError("at goes with metric", where=where, next_step="leave it out")
    return Rule(name=value, of=kind, at=at)


def mean_length(at: str) -> int:
    matched = _MEAN.fullmatch(at)
    return int(matched[1]) if matched else 0
