"""Filters such as `tokens / n_params_active >= 2 and n_experts <= 8`, evaluated over columns without running code.

Python's parser gives the tree, which is walked over an allow-list of nodes, each a NumPy operation on float64. A missing or
undefined value is NaN; the truth of a row is 1, 0 or NaN (not known), by Kleene's logic.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moescale.errors import ColumnError, InputError, nearest_names
from moescale.typing import FloatArray
from moescale.units import parse_quantity

MAX_LENGTH = 1000
MAX_DEPTH = 60
ALLOWED = (
    "allowed: column names (`name with spaces` in backquotes), numbers such as 2, 1e9 or 20B, 'text', "
    "+ - * / **, < <= == != >= >, in {1, 2}, and, or, not, parentheses"
)

Columns = Mapping[str, NDArray[Any]]
Value = tuple[str, NDArray[Any]]
"""A kind of `_NAMED` and its values, one a row or one for all rows: floats, or objects (str, None) of a text."""

_TOKEN = re.compile(
    r"""(?P<text>'[^'\n\\]*'|"[^"\n\\]*")|`(?P<quoted>[^`\n]+)`|(?P<number>(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(?:[eE][+-]?\d+)?\w*)
    |(?P<word>[^\W\d]\w*)|(?P<sign>\*\*|<=|>=|==|!=|[-+*/<>(),{}\[\]]|\s+)""",
    re.VERBOSE,
)
_KEYWORDS = ("and", "or", "not", "in")
_HINTS = {"=": "write == to compare", "&": "write `and`", "|": "write `or`", "!": "write `not` or !=", "^": "write **"}
_NAMED = {"number": "a number", "text": "text", "boolean": "true or false"}
_ARITHMETIC: dict[type[ast.operator], Any] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.Div: np.divide,
    ast.Pow: np.power,
}
_COMPARISONS: dict[type[ast.cmpop], Any] = {
    **{ast.Lt: np.less, ast.LtE: np.less_equal, ast.Gt: np.greater, ast.GtE: np.greater_equal},
    **{ast.Eq: np.equal, ast.NotEq: np.not_equal},
}


def evaluate(expression: str, columns: Columns) -> NDArray[np.bool_]:
    """The rows for which `expression` holds: one boolean a row of `columns`, which are 1-D and of one length.

    Columns are numbers, booleans, or text (object or str arrays, compared with == and != only). A row whose answer depends
    on a missing value (NaN, None) or an undefined number (division by zero, overflow) is False. Raises InputError for what
    is not in the language, for unknown columns, and for an expression that is not boolean.
    """
    return evaluate_decided(expression, columns)[0]


def evaluate_decided(expression: str, columns: Columns) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """As `evaluate`, with a second array that is False in the rows that missing or undefined values leave undecided.

    `x != 0 and 1 / x > 2` is decided for every x: an undecided part matters only where the rest does not settle it.
    """
    values = _evaluated(expression, columns, "boolean")
    return values == 1.0, ~np.isnan(values)


def evaluate_numbers(expression: str, columns: Columns) -> tuple[FloatArray, NDArray[np.bool_]]:
    """The value of an arithmetic `expression` such as `step * batch_tokens`, one float64 a row, and where it is known.

    Raises InputError as `evaluate`, and for an expression that is not a number.
    """
    values = _evaluated(expression, columns, "number")
    return values, ~np.isnan(values)


def quoted_name(name: str) -> str:
    """The name of a column as an expression has it, in backquotes where it is no plain word."""
    plain = re.fullmatch(r"[^\W\d]\w*", name) and name.lower() not in (*_KEYWORDS, "true", "false")
    return name if plain else f"`{name}`"


def column_names(expression: str) -> tuple[str, ...]:
    """The columns that `expression` reads, each once, in order of appearance; raises InputError if it is malformed."""
    tree, names = _parsed(expression)
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return tuple(dict.fromkeys(name for stand_in, name in names.items() if stand_in in used))


def _parsed(expression: str) -> tuple[ast.expr, dict[str, str]]:
    """The tree, in which columns have stand-ins and numbers no units, and the columns by stand-in."""
    if len(expression) > MAX_LENGTH:
        what = f"the expression has {len(expression):,} characters, more than {MAX_LENGTH:,}"
        raise InputError(what, next_step="shorten it, or filter in several steps")
    if not expression.strip():
        raise InputError("the expression is empty", next_step=ALLOWED)
    names: dict[str, str] = {}
    python = "".join(_python(expression, names)).strip()
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(python, mode="eval").body
    except SyntaxError as error:
        place = python[(error.offset or 1) - 1 :].strip() or python
        shown = re.sub(r"\s*_\d+_", lambda found: f" {names.get(found[0].strip(), found[0])}", place).strip()[:30]
        early = python[-1:] in "+-*/<>=,([{" or python.rpartition(" ")[2] in _KEYWORDS
        raise _error(expression, "ends too early" if early else f"cannot be read from {shown!r} on") from error
    except (RecursionError, MemoryError, ValueError) as error:
        raise _error(expression, "the expression is nested too deeply") from error
    return tree, names


def _python(expression: str, names: dict[str, str]) -> Iterator[str]:
    """The tokens as Python has them; raises InputError for any other. `names` gains the columns by their stand-ins."""
    position, before = 0, ""
    while position < len(expression):
        found = _TOKEN.match(expression, position)
        if found is None:
            sign = expression[position]
            what = "a text without its closing quote" if sign in "'\"`" else f"unexpected {sign!r}"
            raise _error(expression, f"{what} at position {position + 1}", _HINTS.get(sign))
        kind, piece, position = str(found.lastgroup), found.group(), found.end()
        if kind == "sign" or (kind == "word" and piece.lower() in _KEYWORDS):
            yield " " if piece.isspace() else piece.lower()
            before = before * piece.isspace()
            continue
        if before:
            raise _error(expression, f"two values side by side: {before} {piece}", "put an operator between them")
        before = piece
        if kind == "number":
            try:
                yield repr(parse_quantity(piece))
            except InputError as error:
                raise _error(expression, error.what, error.next_step) from error
        elif kind == "text":
            yield repr(_text(piece[1:-1]))
        elif kind == "word" and piece in ("True", "False", "true", "false"):
            yield piece.capitalize()
        else:
            stand_in = f"_{len(names)}_"
            names[stand_in] = found["quoted"] or piece
            yield f" {stand_in} "


def _evaluated(expression: str, columns: Columns, wanted: str) -> FloatArray:
    """The value of each row as a float; NaN where it is not known."""
    tree, names = _parsed(expression)
    lengths = {len(column) for column in columns.values()} or {0}
    if len(lengths) > 1:
        what = f"columns differ in length: {sorted(lengths)}"
        raise ColumnError(what, next_step="give one value a row in each")
    kind, values = _Walk(expression, names, columns).of(tree, MAX_DEPTH)
    if kind != wanted:
        raise _error(
            expression, f"the expression is {_NAMED[kind]}, not {_NAMED[wanted]}", "add or remove a comparison"
        )
    return np.broadcast_to(values, np.broadcast_shapes(values.shape, (lengths.pop(),))).astype(np.float64)


class _Walk:
    """An expression, with the columns that its names stand for."""

    def __init__(self, expression: str, names: Mapping[str, str], columns: Columns) -> None:
        self.expression, self.names, self.columns = expression, names, columns

    def of(self, node: ast.expr, depth: int) -> Value:
        if depth == 0:
            raise self.error(f"the expression is nested more than {MAX_DEPTH} deep")

        def part(child: ast.expr, kind: str) -> NDArray[Any]:
            found, values = self.of(child, depth - 1)
            if found != kind:
                what = (
                    f"{_NAMED[kind]} is needed" if kind == "boolean" else "only numbers are ordered and computed with"
                )
                raise self.error(f"{self.shown(child)} is {_NAMED[found]}{_sample(found, values)}; {what}")
            return values

        match node:
            case ast.Name():
                return self.column(self.names[node.id])
            case ast.Constant(value=bool() as value):
                return "boolean", np.asarray(float(value))
            case ast.Constant(value=str() as value):
                return "text", np.array([value], dtype=np.object_)
            case ast.Constant(value=float() as value):
                return "number", np.asarray(value)
            case ast.BoolOp(op=operator, values=children):
                both = _and if isinstance(operator, ast.And) else _or
                return "boolean", reduce(both, [part(child, "boolean") for child in children])
            case ast.UnaryOp(op=ast.Not(), operand=child):
                return "boolean", 1.0 - part(child, "boolean")
            case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=child):
                return "number", part(child, "number") * (-1.0 if isinstance(sign, ast.USub) else 1.0)
            case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _ARITHMETIC:
                return "number", _computed(_ARITHMETIC[type(operator)], part(left, "number"), part(right, "number"))
            case ast.Compare(left=left, ops=operators, comparators=others):
                sides = [left, *others]
                links = zip(sides, operators, sides[1:], strict=False)  # a < b <= c is a < b and b <= c
                return "boolean", reduce(_and, [self.link(*link, depth, part) for link in links])
            case _:
                raise self.error(f"{self.shown(node)} is not available here")

    def link(
        self, left: ast.expr, operator: ast.cmpop, right: ast.expr, depth: int, part: Callable[..., Any]
    ) -> FloatArray:
        if isinstance(operator, ast.In | ast.NotIn):
            listed = right.elts if isinstance(right, ast.Set | ast.Tuple | ast.List) else [right]
            plain = (item.operand if isinstance(item, ast.UnaryOp) else item for item in listed)
            if not listed or not all(isinstance(item, ast.Constant) for item in plain):
                raise self.error("after `in` comes a list of numbers or texts", "write, for example, in {1, 2}")
            found = reduce(_or, [self.link(left, ast.Eq(), item, depth, part) for item in listed])
            return 1.0 - found if isinstance(operator, ast.NotIn) else found
        if not isinstance(operator, ast.Eq | ast.NotEq):
            return _compared(operator, part(left, "number"), part(right, "number"))
        (one, values), (other, others) = self.of(left, depth - 1), self.of(right, depth - 1)
        if (one == "text") != (other == "text"):
            what = f"{self.shown(left)} is {_NAMED[one]}, and compared with {_NAMED[other]}"
            raise self.error(what, "compare text with a quoted text such as 'train', numbers with numbers")
        return _compared(operator, values, others)

    def column(self, name: str) -> Value:
        if name not in self.columns:
            known = list(self.columns)
            nearest = nearest_names(name, known)
            raise self.error(f"unknown column {name!r}", f"columns: {', '.join(known)}", nearest)
        values = np.asarray(self.columns[name])
        if values.dtype.kind in "biuf":
            return "boolean" if values.dtype.kind == "b" else "number", values.astype(np.float64)
        texts = np.empty(len(values), dtype=np.object_)
        texts[:] = [None if value is None else _text(str(value)) for value in values.tolist()]
        return "text", texts

    def shown(self, node: ast.expr) -> str:
        """A part of the expression as its writer knows it."""
        if isinstance(node, ast.Name):
            return f"column {self.names[node.id]!r}"
        try:
            text = ast.unparse(node)
        except (RecursionError, ValueError):
            return "a part of it"
        return repr(re.sub(r"_\d+_", lambda found: self.names.get(found[0], found[0]), text)[:60])

    def error(self, what: str, next_step: str | None = None, nearest: str | None = None) -> InputError:
        return _error(self.expression, what, next_step, nearest)


def _text(given: str) -> str:
    return given.encode("utf-8", "backslashreplace").decode()


def _and(left: FloatArray, right: FloatArray) -> FloatArray:
    return np.where((left == 0.0) | (right == 0.0), 0.0, left * right)


def _or(left: FloatArray, right: FloatArray) -> FloatArray:
    return 1.0 - _and(1.0 - left, 1.0 - right)


def _compared(operator: ast.cmpop, left: NDArray[Any], right: NDArray[Any]) -> FloatArray:
    none: Any = None
    missing = [np.equal(side, none) if side.dtype.kind == "O" else np.isnan(side) for side in (left, right)]
    return np.where(missing[0] | missing[1], np.nan, _COMPARISONS[type(operator)](left, right).astype(np.float64))


def _computed(operation: Any, left: FloatArray, right: FloatArray) -> FloatArray:
    with np.errstate(all="ignore"):
        values = np.asarray(operation(left, right), dtype=np.float64)
    # An infinity that was in the data is a value; one that arithmetic produced from finite numbers is undefined.
    return np.where(np.isinf(values) & ~np.isinf(left) & ~np.isinf(right), np.nan, values)


def _sample(kind: str, values: NDArray[Any]) -> str:
    """One text of a column that should hold numbers, for the error message."""
    texts = (cell for cell in values[:100_000] if isinstance(cell, str)) if kind == "text" else iter(())
    odd = next((cell for cell in texts if not re.fullmatch(r"[+-]?[\d.]+([eE][+-]?\d+)?", cell)), None)
    return "" if odd is None else f" (for example {odd[:40]!r})"


def _error(expression: str, what: str, next_step: str | None = None, nearest: str | None = None) -> InputError:
    shown = expression if len(expression) <= 80 else f"{expression[:77]}..."
    return InputError(what, where=f"expression {shown!r}", nearest=nearest, next_step=next_step or ALLOWED)
