"""Where the cells of a column come from, and the text COLUMN=EXPR that states it."""

from __future__ import annotations

from dataclasses import dataclass

from moescale.errors import InputError
from moescale.runs.importers.tracked_run import Scalar, scalar

DERIVED = {
    "shape": "the model's configuration (without embeddings)",
    "dense": "1, as no name mentions experts",
    "flos": "total_flos / (6 times the parameters that Trainer counts)",
}


@dataclass(frozen=True)
class Rule:
    """Where the cells of one column come from: one of a name, an expression over names, a constant, or a derivation.

    A param stands before a metric of its name. Of a loss's curve the mean of the last `mean_of` values is taken.
    """

    name: str | None = None
    expression: str | None = None
    constant: Scalar | None = None
    derived: str | None = None
    mean_of: int = 1

    def __str__(self) -> str:
        if self.derived is not None:
            return DERIVED[self.derived]
        if self.name is not None:
            return f"{self.name!r}" + (f" (mean of last {self.mean_of})" if self.mean_of > 1 else "")
        return f"'{self.expression}'" if self.expression is not None else f"{self.constant!r}"


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
