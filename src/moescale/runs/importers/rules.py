"""Where the cells of a column come from, and the mapping file that states it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from moescale.errors import InputError
from moescale.io.schema import read_toml, settings
from moescale.runs.importers.tracked_run import Scalar, number, scalar

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
    "dense": "1, as no name mentions experts",
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


def rule_of(stated: str) -> tuple[str, Rule]:
    """The column and the rule of a text COLUMN=EXPR: a name, an expression over names, a number, or a 'text' in quotes.

    Raises InputError for any other.
    """
    column, equals, given = (part.strip() for part in stated.partition("="))
    if not (column and equals and given):
        what = f"{stated!r} is not COLUMN=EXPR"
        raise InputError(what, next_step="write, for example, --set tokens='step * 524288'")
    if given[0] in "\"'" and given[-1] == given[0] and len(given) > 2:
        return column, Rule(constant=given[1:-1])
    number = scalar(given)
    return column, Rule(constant=number) if isinstance(number, bool | float) else Rule(expression=given)


@dataclass(frozen=True, slots=True)
class _Stated:
    """The table of a column: one of the three, and which value of a metric's curve."""

    metric: str | None = None
    at: str | None = None
    param: str | None = None
    value: Any = None

    def __post_init__(self) -> None:
        if [self.metric, self.param, self.value].count(None) != 2:
            raise InputError("needs one of metric, param and value")
        if self.value is not None and not isinstance(self.value, bool | int | float | str):
            raise InputError("value must be a number, a truth or a text")
        if self.at is not None and self.at not in ("last", "min") and not mean_length(self.at):
            raise InputError(f"at must be {AT}", next_step='write, for example, at = "mean of last 100"')
        if self.at is not None and self.metric is None:
            raise InputError("at goes with metric", next_step="leave it out")


def _rule(given: Any, where: str) -> Rule:
    if isinstance(given, bool | int | float):
        return Rule(constant=_constant(given))
    if isinstance(given, str) and given.strip():
        return Rule(expression=given.strip())
    if not isinstance(given, dict):
        what = "must be a name, an expression, a number or a table"
        raise InputError(what, where=where, next_step='such as {metric = "eval/loss", at = "min"}')
    stated = settings(_Stated, cast("dict[str, Any]", given), where=where)
    if stated.value is not None:
        return Rule(constant=_constant(stated.value))
    name, of = (stated.metric, "metric") if stated.metric is not None else (stated.param, "param")
    return Rule(name=name, of=of, at=stated.at or "last")


def _constant(value: Any) -> Scalar:
    return value if isinstance(value, bool | str) else number(value)


def mean_length(at: str) -> int:
    matched = _MEAN.fullmatch(at)
    return int(matched[1]) if matched else 0
