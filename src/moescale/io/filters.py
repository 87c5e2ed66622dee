"""Row filters such as `tokens / n_params_active >= 2 and n_experts <= 8`, evaluated over columns without running code.

The text is split into tokens of an allow-list; every name, number and string is then replaced by a harmless stand-in
of the same length, and only that masked text reaches Python's parser, which is used for operator precedence alone. The
tree is walked over an allow-list of nodes, each a function of NumPy over float64, so no expression can hang or exhaust
the memory; a missing or undefined value is not known, and the logic of what is not known is Kleene's.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Literal

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
Kind = Literal["number", "text", "boolean"]

_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n]+)
    |(?P<number>(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(?:[eE][+-]?\d+)?\w*)
    |(?P<text>'[^'\n]*'|"[^"\n]*")
    |(?P<quoted>`[^`\n]+`)
    |(?P<name>[^\W\d]\w*)
    |(?P<operator>\*\*|<=|>=|==|!=|[-+*/<>(),{}\[\]])""",
    re.VERBOSE,
)
_KEYWORDS = frozenset({"and", "or", "not", "in"})
_HINTS = {
    "=": "write == to compare",
    "&": "write `and`",
    "|": "write `or`",
    "!": "write `not` or !=",
    "~": "write `not`",
    "^": "write ** for a power",
    "%": "a remainder is not available",
    "\\": "escapes are not available in text",
}
_SAID: dict[Kind, str] = {"number": "a number", "text": "text", "boolean": "true or false"}
_ARITHMETIC: dict[type[ast.operator], Any] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.Div: np.divide,
    ast.Pow: np.power,
}
_COMPARISONS: dict[type[ast.cmpop], Any] = {
    ast.Lt: np.less,
    ast.LtE: np.less_equal,
    ast.Gt: np.greater,
    ast.GtE: np.greater_equal,
    ast.Eq: np.equal,
    ast.NotEq: np.not_equal,
}
_LIST = "a list of values"
_NODE_NAMES: dict[type[ast.expr], str] = {
    **{ast.Call: "a function call", ast.Subscript: "an index", ast.Dict: "a pair of braces", ast.Starred: "a star"},
    **{ast.Tuple: _LIST, ast.List: _LIST, ast.Set: _LIST},
}


@dataclass(frozen=True)
class _Leaf:
    """What a masked name or literal stands for."""

    kind: Kind | Literal["column"]
    value: float | str | bool


@dataclass(frozen=True, eq=False)
class _Rows:
    """Values of one kind, one a row or one for all rows, and which of them are known."""

    kind: Kind
    values: NDArray[Any]
    known: NDArray[np.bool_]


def evaluate(expression: str, columns: Columns) -> NDArray[np.bool_]:
    """The rows for which `expression` holds: one boolean a row of `columns`, which are 1-D and of one length.

    Columns are numbers, booleans, or text (object or str arrays, compared with == and != only). A row for which the
    answer depends on a missing value (NaN, None) or on an undefined number (division by zero, overflow, a root of a
    negative) is False. Raises InputError, with the position, for whatever is not in the language, for unknown columns,
    and for an expression that is not boolean.
    """
    return evaluate_decided(expression, columns)[0]


def evaluate_decided(expression: str, columns: Columns) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """As `evaluate`, with a second array that is False in the rows that missing or undefined values leave undecided.

    The logic is three-valued: an undecided part matters only where the rest does not settle the answer, so
    `x != 0 and 1 / x > 2` is decided for every x.
    """
    return _evaluated(expression, columns, "boolean", False, "add a comparison")


def evaluate_numbers(expression: str, columns: Columns) -> tuple[FloatArray, NDArray[np.bool_]]:
    """The value of an arithmetic `expression` such as `step * batch_tokens`, one float64 a row, and where it is known.

    Unknown, and NaN, are rows in which a value is missing or undefined (division by zero, overflow). Raises InputError
    as `evaluate`, and for an expression that is not a number.
    """
    return _evaluated(expression, columns, "number", np.nan, "remove comparisons")


def quoted_name(name: str) -> str:
    """The name of a column as an expression has it, in backquotes where it is no plain word."""
    plain = re.fullmatch(r"[^\W\d]\w*", name) and name.lower() not in {*_KEYWORDS, "true", "false"}
    return name if plain else f"`{name}`"


def column_names(expression: str) -> tuple[str, ...]:
    """The columns that `expression` reads, each once, in order of appearance; raises InputError if it is malformed."""
    *_, leaves = _parse(expression)
    return tuple(dict.fromkeys(str(leaf.value) for _, leaf in sorted(leaves.items()) if leaf.kind == "column"))


# Text to tree.


def _parse(expression: str) -> tuple[str, ast.expr, dict[int, _Leaf]]:
    """The expression without blanks around it, its masked tree, and the leaves by position."""
    if len(expression) > MAX_LENGTH:
        what = f"the expression has {len(expression):,} characters, more than {MAX_LENGTH:,}"
        raise InputError(what, next_step="shorten it, or filter in several steps")
    if not expression.strip():
        raise InputError("the expression is empty", next_step=ALLOWED)
    expression = expression.strip()  # a leading blank would be an indentation
    masked, leaves = _mask(expression)
    try:
        tree = ast.parse(masked, mode="eval").body
    except SyntaxError as error:
        # The masked text is ASCII on one line, so the parser's column is the position in the expression.
        position = error.offset - 1 if error.offset else len(expression)
        rest = expression[position:].strip()
        what = f"cannot be read from {rest[:30]!r} on" if rest else "ends too early"
        raise _error(expression, position, what) from error
    except (RecursionError, MemoryError, ValueError) as error:
        raise _error(expression, 0, "the expression is nested too deeply") from error
    return expression, tree, leaves


def _mask(source: str) -> tuple[str, dict[int, _Leaf]]:
    """The expression with every leaf replaced by a stand-in of the same length, and the leaves by position."""
    pieces: list[str] = []
    leaves: dict[int, _Leaf] = {}
    position = depth = 0
    after_leaf = False
    while position < len(source):
        match = _TOKEN.match(source, position)
        if match is None:
            character = source[position]
            what = "a text without its closing quote" if character in "'\"`" else f"unexpected {character!r}"
            raise _error(source, position, what, _HINTS.get(character))
        piece, kind = match.group(), match.lastgroup
        if kind == "space":
            pieces.append(" " * len(piece))  # a line break inside the expression is only a space
        elif kind == "operator" or piece.lower() in _KEYWORDS:
            depth += (piece in "([{") - (piece in ")]}")
            if depth > MAX_DEPTH:
                raise _error(source, position, f"parentheses are nested more than {MAX_DEPTH} deep")
            pieces.append(piece.lower())
            after_leaf = False
        else:
            if after_leaf:  # stand-ins that touch would merge into one
                raise _error(source, position, "two values side by side", "put an operator between them")
            leaves[position] = leaf = _leaf(source, match)
            quote = "'" if leaf.kind == "text" else ""
            stand_in = "_" if leaf.kind == "column" else "x" if quote else "0"
            pieces.append(f"{quote}{stand_in * (len(piece) - 2 * len(quote))}{quote}")
            after_leaf = True
        position = match.end()
    return "".join(pieces), leaves


def _leaf(source: str, match: re.Match[str]) -> _Leaf:
    piece, position = match.group(), match.start()
    if match.lastgroup == "number":
        try:
            return _Leaf("number", parse_quantity(piece))
        except InputError as error:
            raise _error(source, position, error.what, error.next_step) from error
    if match.lastgroup == "text":
        if "\\" in piece:
            raise _error(source, position + piece.index("\\"), "unexpected '\\'", _HINTS["\\"])
        return _Leaf("text", piece[1:-1])
    if match.lastgroup == "quoted":
        if re.search(r"\w", source[position - 1 : position] + source[match.end() : match.end() + 1]):
            raise _error(source, position, "a quoted name touches a word", "put a blank between them")
        return _Leaf("column", piece[1:-1])
    if piece in ("True", "False", "true", "false"):
        return _Leaf("boolean", piece.lower() == "true")
    return _Leaf("column", piece)


# Tree to rows.


def _evaluated(
    expression: str, columns: Columns, wanted: Kind, missing: float, advice: str
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """The value of each row, `missing` where it is not known, and where it is."""
    source, tree, leaves = _parse(expression)
    lengths = {len(column) for column in columns.values()} or {0}
    if len(lengths) > 1:
        what = f"columns differ in length: {sorted(lengths)}"
        raise ColumnError(what, next_step="give one value a row in each")
    value = _Evaluation(source, leaves, columns).of(tree, MAX_DEPTH)
    if value.kind != wanted:
        what = f"the expression is {_SAID[value.kind]}, not {_SAID[wanted]}"
        raise _error(source, 0, what, advice)
    shape = np.broadcast_shapes(value.values.shape, (lengths.pop(),))
    known = np.broadcast_to(value.known, shape).copy()
    return np.where(known, value.values, missing).astype(value.values.dtype), known


@dataclass(frozen=True)
class _Evaluation:
    """An expression over columns; every value is one a row, or one for all rows."""

    source: str
    leaves: Mapping[int, _Leaf]
    columns: Columns

    def of(self, node: ast.expr, depth: int) -> _Rows:
        if depth == 0:
            raise self.error(node, f"the expression is nested more than {MAX_DEPTH} deep")

        def part(child: ast.expr, kind: Kind) -> _Rows:
            value = self.of(child, depth - 1)
            if value.kind != kind:
                raise self.mismatch(value, child, f"{_SAID[kind]} is needed here")
            return value

        match node:
            case ast.Name() | ast.Constant():
                return self.leaf(node)
            case ast.BoolOp(op=operator, values=children):
                return reduce(
                    _and if isinstance(operator, ast.And) else _or, [part(child, "boolean") for child in children]
                )
            case ast.UnaryOp(op=ast.Not(), operand=child):
                return _not(part(child, "boolean"))
            case ast.UnaryOp(op=operator, operand=child):
                number = part(child, "number")
                return replace(number, values=-number.values) if isinstance(operator, ast.USub) else number
            case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _ARITHMETIC:
                return _arithmetic(_ARITHMETIC[type(operator)], part(left, "number"), part(right, "number"))
            case ast.Compare():
                return self.chain(node, depth)
            case _:
                raise self.error(node, f"{_NODE_NAMES.get(type(node), 'this')} is not available here")

    def chain(self, node: ast.Compare, depth: int) -> _Rows:
        """A comparison, chained as in Python: `a < b <= c` is `a < b and b <= c`."""
        links: list[_Rows] = []
        left, left_node = self.of(node.left, depth - 1), node.left
        for operator, right_node in zip(node.ops, node.comparators, strict=True):
            if isinstance(operator, ast.In | ast.NotIn):
                if right_node is not node.comparators[-1]:
                    raise self.error(right_node, "a comparison cannot follow a list of values")
                values = [(self.of(element, depth - 1), element) for element in self.elements(right_node)]
                found = reduce(_or, [self.compare(ast.Eq(), left, value, at) for value, at in values])
                links.append(_not(found) if isinstance(operator, ast.NotIn) else found)
                break
            right = self.of(right_node, depth - 1)
            for value, side in ((left, left_node), (right, right_node)):
                if not isinstance(operator, ast.Eq | ast.NotEq) and value.kind != "number":
                    raise self.mismatch(value, side, "only numbers are ordered: compare it with == or !=")
            links.append(self.compare(operator, left, right, right_node))
            left, left_node = right, right_node
        return reduce(_and, links)

    def compare(self, operator: ast.cmpop, left: _Rows, right: _Rows, right_node: ast.expr) -> _Rows:
        if (left.kind == "text") != (right.kind == "text"):
            what = f"{_SAID[left.kind]} is compared with {_SAID[right.kind]}"
            advice = "compare text columns with a quoted text such as 'train', numbers with numbers"
            raise self.error(right_node, what, advice)
        holds = _COMPARISONS[type(operator)](left.values, right.values)  # true is 1
        return _Rows("boolean", np.asarray(holds, dtype=np.bool_), left.known & right.known)

    def elements(self, node: ast.expr) -> Sequence[ast.expr]:
        elements = node.elts if isinstance(node, ast.Set | ast.Tuple | ast.List) else [node]
        if not elements or isinstance(node, ast.Dict):
            raise self.error(node, "the list of values is empty", "write, for example, in {1, 2}")
        for element in elements:
            if not isinstance(element.operand if isinstance(element, ast.UnaryOp) else element, ast.Constant):
                raise self.error(element, "a list holds numbers or texts only")
        return elements

    def leaf(self, node: ast.expr) -> _Rows:
        leaf = self.leaves[node.col_offset]
        if leaf.kind == "text":
            return _texts([leaf.value], ())
        if leaf.kind != "column":
            return _Rows(leaf.kind, np.asarray(leaf.value), np.asarray(True))
        name = str(leaf.value)
        if name not in self.columns:
            known = list(self.columns)
            listed = f"columns: {', '.join(known)}" if known else None
            raise self.error(node, f"unknown column {name!r}", listed, nearest=nearest_names(name, known))
        column = np.asarray(self.columns[name])
        if column.dtype.kind == "b":
            return _Rows("boolean", column, np.ones(len(column), dtype=np.bool_))
        if column.dtype.kind in "iuf":
            numbers = column.astype(np.float64)
            return _Rows("number", numbers, ~np.isnan(numbers))
        return _texts(column.tolist(), column.shape)

    def mismatch(self, value: _Rows, node: ast.expr, needed: str) -> InputError:
        leaf = self.leaves.get(node.col_offset) if isinstance(node, ast.Name | ast.Constant) else None
        if leaf is None or leaf.kind != "column":
            return self.error(node, f"this is {_SAID[value.kind]}; {needed}")
        sample = _text_sample(value) if value.kind == "text" else ""
        return self.error(node, f"column {leaf.value!r} is {_SAID[value.kind]}{sample}; {needed}")

    def error(self, node: ast.expr, what: str, next_step: str | None = None, **nearest: str | None) -> InputError:
        return _error(self.source, node.col_offset, what, next_step, **nearest)


def _and(left: _Rows, right: _Rows) -> _Rows:
    settled = (left.known & ~left.values) | (right.known & ~right.values)
    return _Rows("boolean", left.values & right.values & ~settled, (left.known & right.known) | settled)


def _or(left: _Rows, right: _Rows) -> _Rows:
    settled = (left.known & left.values) | (right.known & right.values)
    return _Rows("boolean", left.values | right.values | settled, (left.known & right.known) | settled)


def _not(rows: _Rows) -> _Rows:
    return replace(rows, values=~rows.values)


def _arithmetic(operation: Any, left: _Rows, right: _Rows) -> _Rows:
    with np.errstate(all="ignore"):
        values = np.asarray(operation(left.values, right.values), dtype=np.float64)
    # An infinity that was in the data is a value; one that arithmetic produced from finite numbers is undefined.
    infinite = np.isinf(values) & (np.isinf(left.values) | np.isinf(right.values))
    return _Rows("number", values, left.known & right.known & (np.isfinite(values) | infinite))


def _texts(cells: Sequence[Any], shape: tuple[int, ...]) -> _Rows:
    texts = [None if cell is None else str(cell).encode("utf-8", "backslashreplace").decode() for cell in cells]
    values = np.empty(len(texts), dtype=np.object_)
    values[:] = texts
    return _Rows("text", values.reshape(shape), np.array([text is not None for text in texts]).reshape(shape))


def _text_sample(column: _Rows) -> str:
    """One text of a column that should hold numbers, for the error message."""
    for cell in column.values.ravel()[:100_000]:
        try:
            float(cell)
        except (TypeError, ValueError):
            return f" (for example {str(cell)[:40]!r})"
    return ""


def _error(
    source: str, position: int, what: str, next_step: str | None = None, *, nearest: str | None = None
) -> InputError:
    shown = source if len(source) <= 80 else f"{source[:77]}..."
    where = f"expression {shown!r}, position {position + 1}"
    return InputError(what, where=where, nearest=nearest, next_step=next_step or ALLOWED)
