"""Filters such as `tokens / n_params_active >= 2 and n_experts <= 8`, evaluated over columns without running code.

Python's tree is walked over an allow-list of nodes, each a NumPy operation. A missing or undefined number is NaN; the
truth of a row is 1, 0 or 0.5 (not known), so that `and` is a minimum, `or` a maximum (Kleene's logic).
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Mapping
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moescale.errors import InputError, nearest_names
from moescale.typing import FloatArray
from moescale.units import parse_quantity

MAX_LENGTH = 1000
MAX_DEPTH = 60
UNKNOWN = 0.5
ALLOWED = (
    "allowed: column names (`name with spaces` in backquotes), numbers such as 2, 1e9 or 20B, 'text', "
    "+ - * / **, < <= == != >= >, in {1, 2}, and, or, not, parentheses"
)

Columns = Mapping[str, NDArray[Any]]
Value = tuple[str, NDArray[Any]]
"""A kind of `_NAMED` and its values, one a row or one for all rows: floats, or objects (str, None) of a text."""

_TOKEN = re.compile(
    r"""(?P<text>'[^'\n\\]*'|"[^"\n\\]*")|`(?P<quoted>[^`\n]+)`|(?P<number>(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(?:[eE][+-]?\d+)?\w*)
    |(?P<word>[^\W\d]\w*)|(?P<sign>\*\*|<=|>=|==|!=|[-+*/<>(),{}\[\]]|\s+)|(?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
_KEYWORDS = ("and", "or", "not", "in")
_EARLY = re.compile(r"(?:[-+*/<>=,(\[{]|\b(?:and|or|not|in))\s*$", re.IGNORECASE)
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


def evaluate(expression: str, columns: Columns) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """The rows for which `expression` holds, one boolean a row of `columns`, and which are decided.

    Columns, 1-D and of one length, are numbers, booleans, or text (object or str arrays, compared with == and != only).
    A row whose answer depends on a missing value (NaN, None) or an undefined number (division by zero, overflow) is
    False in both.
    """
    truth = _evaluated(expression, columns, "boolean")
    return truth == 1.0, truth != UNKNOWN


def evaluate_numbers(expression: str, columns: Columns) -> tuple[FloatArray, NDArray[np.bool_]]:
    """The value of an arithmetic `expression`, as `step * batch_tokens`, one float64 a row, and where it is known."""
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

    def python(found: re.Match[str]) -> str:
        kind, piece = found.lastgroup, found.group()
        word = piece.lower() if kind == "word" else ""
        if kind == "other":
            what = "a text without its closing quote" if piece in "'\"`" else f"unexpected {piece!r}"
            hint = {"=": "write == to compare", "&": "write `and`", "|": "write `or`"}.get(piece)
            raise _error(expression, f"{what} at position {found.start() + 1}", hint)
        if kind == "sign" or word in _KEYWORDS:
            return word or piece
        if kind == "number":
            try:
                return f" {parse_quantity(piece)!r} "
            except InputError as error:
                raise _error(expression, error.what, error.next_step) from error
        if kind == "text":
            return f" {piece[1:-1]!r} "
        if word in ("true", "false"):
            return f" {word.capitalize()} "
        stand_in = f"_{len(names)}_"
        names[stand_in] = found["quoted"] or piece
        return f" {stand_in} "

    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(_TOKEN.sub(python, expression).replace("\n", " ").strip(), mode="eval").body
    except SyntaxError as error:
        raise _error(expression, "ends too early" if _EARLY.search(expression) else "cannot be read") from error
    except (RecursionError, MemoryError) as error:
        raise _error(expression, "the expression is nested too deeply") from error
    nodes: list[ast.AST] = [tree]
    for _ in range(MAX_DEPTH + 1):
        nodes = [child for node in nodes for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
    if nodes:
        raise _error(expression, f"the expression is nested more than {MAX_DEPTH} deep")
    return tree, names


def _evaluated(expression: str, columns: Columns, wanted: str) -> FloatArray:
    """The number or truth of each row as a float."""
    tree, names = _parsed(expression)
    n_rows = len(next(iter(columns.values()), ()))

    def shown(node: ast.expr) -> str:
        """A part of the expression as its writer knows it."""
        text = re.sub(r"_\d+_", lambda found: names.get(found[0], found[0]), ast.unparse(node))
        return f"column {text!r}" if isinstance(node, ast.Name) else repr(text[:60])

    def part(node: ast.expr, kind: str) -> NDArray[Any]:
        found, values = of(node)
        if found != kind:
            what = f"{_NAMED[kind]} is needed" if kind == "boolean" else "only numbers are ordered and computed with"
            raise _error(expression, f"{shown(node)} is {_NAMED[found]}{_sample(found, values)}; {what}")
        return values

    def link(left: ast.expr, operator: ast.cmpop, right: ast.expr) -> FloatArray:
        if isinstance(operator, ast.In | ast.NotIn):
            listed = right.elts if isinstance(right, ast.Set | ast.Tuple | ast.List) else [right]
            plain = (item.operand if isinstance(item, ast.UnaryOp) else item for item in listed)
            if not listed or not all(isinstance(item, ast.Constant) for item in plain):
                what = "after `in` comes a list of numbers or texts"
                raise _error(expression, what, "write, for example, in {1, 2}")
            found = reduce(np.maximum, [link(left, ast.Eq(), item) for item in listed])
            return 1.0 - found if isinstance(operator, ast.NotIn) else found
        if not isinstance(operator, ast.Eq | ast.NotEq):
            return _compared(operator, part(left, "number"), part(right, "number"))
        (one, values), (other, others) = of(left), of(right)
        if (one == "text") != (other == "text"):
            what = f"{shown(left)} is {_NAMED[one]}, and compared with {_NAMED[other]}"
            step = "compare text with a quoted text such as 'train', numbers with numbers"
            raise _error(expression, what, step)
        sides = ((one, values), (other, others))
        return _compared(operator, *(np.where(v == UNKNOWN, np.nan, v) if k == "boolean" else v for k, v in sides))

    def of(node: ast.expr) -> Value:
        match node:
            case ast.Name():
                return _column(expression, names[node.id], columns)
            case ast.Constant(value=bool() | float() as value):
                return "boolean" if isinstance(value, bool) else "number", np.asarray(float(value))
            case ast.Constant(value=str() as value):
                return "text", np.array([value], dtype=np.object_)
            case ast.BoolOp(op=operator, values=children):
                both = np.minimum if isinstance(operator, ast.And) else np.maximum
                return "boolean", reduce(both, [part(child, "boolean") for child in children])
            case ast.UnaryOp(op=ast.Not(), operand=child):
                return "boolean", 1.0 - part(child, "boolean")
            case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=child):
                return "number", part(child, "number") * (-1.0 if isinstance(sign, ast.USub) else 1.0)
            case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _ARITHMETIC:
                sides = part(left, "number"), part(right, "number")
                return "number", _computed(_ARITHMETIC[type(operator)], *sides)
            case ast.Compare(left=left, ops=operators, comparators=others):
                sides = [left, *others]
                links = zip(sides, operators, sides[1:], strict=False)  # a < b <= c is a < b and b <= c
                return "boolean", reduce(np.minimum, [link(*each) for each in links])
            case _:
                raise _error(expression, f"{shown(node)} is not available here")

    kind, values = of(tree)
    if kind != wanted:
        what = f"the expression is {_NAMED[kind]}, not {_NAMED[wanted]}"
        raise _error(expression, what, "add or remove a comparison")
    return np.broadcast_to(values, np.broadcast_shapes(values.shape, (n_rows,))).astype(np.float64)


def _column(expression: str, name: str, columns: Columns) -> Value:
    if name not in columns:
        nearest = nearest_names(name, columns)
        raise _error(expression, f"unknown column {name!r}", f"columns: {', '.join(columns)}", nearest)
    values = np.asarray(columns[name])
    if values.dtype.kind in "biuf":
        return "boolean" if values.dtype.kind == "b" else "number", values.astype(np.float64)
    return "text", np.array([None if value is None else str(value) for value in values.tolist()], dtype=np.object_)


def _compared(operator: ast.cmpop, left: NDArray[Any], right: NDArray[Any]) -> FloatArray:
    none: Any = None
    missing = [np.equal(side, none) if side.dtype.kind == "O" else np.isnan(side) for side in (left, right)]
    return np.where(missing[0] | missing[1], UNKNOWN, _COMPARISONS[type(operator)](left, right).astype(np.float64))


def _computed(operation: Any, left: FloatArray, right: FloatArray) -> FloatArray:
    with np.errstate(all="ignore"):
        values = np.asarray(operation(left, right), dtype=np.float64)
    # An infinity that was in the data is a value; one that arithmetic produced from finite numbers is undefined.
    return np.where(np.isinf(values) & ~np.isinf(left) & ~np.isinf(right), np.nan, values)


def _sample(kind: str, values: NDArray[Any]) -> str:
    texts = (cell for cell in values[:100_000] if isinstance(cell, str)) if kind == "text" else iter(())
    odd = next((cell for cell in texts if not re.fullmatch(r"[+-]?[\d.]+([eE][+-]?\d+)?", cell)), None)
    return "" if odd is None else f" (for example {odd[:40]!r})"


def _error(expression: str, what: str, next_step: str | None = None, nearest: str | None = None) -> InputError:
    shown = expression if len(expression) <= 80 else f"{expression[:77]}..."
    return InputError(what, where=f"expression {shown!r}", nearest=nearest, next_step=next_step or ALLOWED)
