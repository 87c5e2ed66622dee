"""Row filters such as `tokens / n_params_active >= 2 and n_experts <= 8`, evaluated over columns without running code.

The text is split into tokens of an allow-list; every name, number and string is then replaced by a harmless stand-in
of the same length, and only that masked text reaches Python's parser, which is used for operator precedence alone. The
tree is walked over an allow-list of nodes in float64, so no expression can hang or exhaust the memory.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from moescale.errors import InputError, nearest_names
from moescale.units import parse_quantity

MAX_LENGTH = 1000
MAX_DEPTH = 60
ALLOWED = (
    "allowed: column names (`name with spaces` in backquotes), numbers such as 2, 1e9 or 20B, 'text', "
    "+ - * / **, < <= == != >= >, in {1, 2}, and, or, not, parentheses"
)

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

Kind = Literal["number", "text", "boolean"]


@dataclass(frozen=True)
class _Leaf:
    """What a masked name or literal stands for."""

    kind: Kind | Literal["column"]
    value: float | str | bool


@dataclass(frozen=True)
class _Parsed:
    source: str
    tree: ast.expr
    leaves: Mapping[int, _Leaf]


@dataclass(frozen=True)
class _Value:
    """One value a row (or a scalar for all rows); `known` is False where it is missing or undefined."""

    kind: Kind
    array: NDArray[Any]
    known: NDArray[np.bool_]


def evaluate(expression: str, columns: Mapping[str, NDArray[Any]]) -> NDArray[np.bool_]:
    """The rows for which `expression` holds: one boolean a row of `columns`, which are 1-D and of one length.

    Columns are numbers, booleans, or text (object or str arrays, compared with == and != only). A row for which the
    answer depends on a missing value (NaN, None) or on an undefined number (division by zero, overflow, a root of a
    negative) is False. Raises InputError, with the position, for whatever is not in the language, for unknown columns,
    and for an expression that is not boolean.
    """
    holds, decided = evaluate_decided(expression, columns)
    return holds & decided


def evaluate_decided(
    expression: str, columns: Mapping[str, NDArray[Any]]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """As `evaluate`, with a second array that is False in the rows that missing or undefined values leave undecided.

    The logic is three-valued: an undecided part matters only where the rest does not settle the answer, so
    `x != 0 and 1 / x > 2` is decided for every x.
    """
    parsed = _parse(expression)
    lengths = {len(column) for column in columns.values()}
    if len(lengths) > 1:
        raise InputError(f"columns differ in length: {sorted(lengths)}", next_step="give one value a row in each")
    n_rows = lengths.pop() if lengths else 0
    with np.errstate(all="ignore"):
        result = _walk(parsed.tree, parsed, columns, MAX_DEPTH)
    if result.kind != "boolean":
        raise _error(
            parsed.source, 0, f"the expression is {_article(result.kind)}, not true or false", "add a comparison"
        )
    holds: NDArray[np.bool_] = np.broadcast_to(result.array, n_rows).astype(np.bool_)
    decided: NDArray[np.bool_] = np.broadcast_to(result.known, n_rows).astype(np.bool_)
    return holds & decided, decided


def evaluate_numbers(
    expression: str, columns: Mapping[str, NDArray[Any]]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The value of an arithmetic `expression` such as `step * batch_tokens`, one float64 a row, and where it is known.

    Unknown are rows in which a value is missing or undefined (division by zero, overflow). Raises InputError as
    `evaluate`, and for an expression that is not a number.
    """
    parsed = _parse(expression)
    n_rows = max((len(column) for column in columns.values()), default=0)
    with np.errstate(all="ignore"):
        result = _walk(parsed.tree, parsed, columns, MAX_DEPTH)
    if result.kind != "number":
        raise _error(parsed.source, 0, f"the expression is {_article(result.kind)}, not a number", "remove comparisons")
    return (
        np.broadcast_to(result.array, n_rows).astype(np.float64),
        np.broadcast_to(result.known, n_rows).astype(np.bool_),
    )


def quoted_name(name: str) -> str:
    """The name of a column as an expression has it, in backquotes where it is no plain word."""
    plain = re.fullmatch(r"[^\W\d]\w*", name) and name.lower() not in {*_KEYWORDS, "true", "false"}
    return name if plain else f"`{name}`"


def column_names(expression: str) -> tuple[str, ...]:
    """The columns that `expression` reads, each once, in order of appearance; raises InputError if it is malformed."""
    parsed = _parse(expression)
    names = (str(leaf.value) for _, leaf in sorted(parsed.leaves.items()) if leaf.kind == "column")
    return tuple(dict.fromkeys(names))


def _parse(expression: str) -> _Parsed:
    if len(expression) > MAX_LENGTH:
        raise InputError(
            f"the expression has {len(expression):,} characters, more than {MAX_LENGTH:,}",
            next_step="shorten it, or filter in several steps",
        )
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
    return _Parsed(expression, tree, leaves)


def _mask(expression: str) -> tuple[str, dict[int, _Leaf]]:
    """The expression with every leaf replaced by a stand-in of the same length, and the leaves by position."""
    pieces: list[str] = []
    leaves: dict[int, _Leaf] = {}
    position = 0
    depth = 0
    last_was_operand = False
    while position < len(expression):
        match = _TOKEN.match(expression, position)
        if match is None:
            character = expression[position]
            what = "a text without its closing quote" if character in "'\"`" else f"unexpected {character!r}"
            raise _error(expression, position, what, _HINTS.get(character))
        piece = match.group()
        kind = match.lastgroup or ""
        operand = kind in ("number", "text", "quoted") or (kind == "name" and piece.lower() not in _KEYWORDS)
        if operand and last_was_operand:
            # Stand-ins that touch would merge into one.
            raise _error(expression, position, "two values side by side", "put an operator between them")
        if kind == "number":
            leaves[position] = _Leaf("number", _number(expression, position, piece))
            piece = "0" * len(piece)
        elif kind == "text":
            if "\\" in piece:
                raise _error(expression, position + piece.index("\\"), "unexpected '\\'", _HINTS["\\"])
            leaves[position] = _Leaf("text", piece[1:-1])
            piece = f"'{'x' * (len(piece) - 2)}'"
        elif kind == "quoted":
            if re.match(r"\w", expression[match.end() :]) or re.search(r"\w$", expression[:position]):
                raise _error(expression, position, "a quoted name touches a word", "put a blank between them")
            leaves[position] = _Leaf("column", piece[1:-1])
            piece = "_" * len(piece)
        elif kind == "name":
            if piece.lower() in _KEYWORDS:
                piece = piece.lower()
            elif piece in ("True", "False", "true", "false"):
                leaves[position] = _Leaf("boolean", piece.lower() == "true")
                piece = "0" * len(piece)
            else:
                leaves[position] = _Leaf("column", piece)
                piece = "_" * len(piece)
        elif kind == "space":
            piece = " " * len(piece)  # a line break inside the expression is only a space
        elif kind == "operator":
            depth += (piece in "([{") - (piece in ")]}")
            if depth > MAX_DEPTH:
                raise _error(expression, position, f"parentheses are nested more than {MAX_DEPTH} deep")
        if kind != "space":
            last_was_operand = operand
        pieces.append(piece)
        position = match.end()
    return "".join(pieces), leaves


def _number(expression: str, position: int, text: str) -> float:
    try:
        return parse_quantity(text)
    except InputError as error:
        raise _error(expression, position, error.what, error.next_step) from error


def _walk(node: ast.expr, parsed: _Parsed, columns: Mapping[str, NDArray[Any]], depth: int) -> _Value:
    if depth == 0:
        raise _error(parsed.source, node.col_offset, f"the expression is nested more than {MAX_DEPTH} deep")

    def walk(child: ast.expr) -> _Value:
        return _walk(child, parsed, columns, depth - 1)

    if isinstance(node, ast.Name | ast.Constant):
        return _leaf_value(parsed.leaves[node.col_offset], node.col_offset, parsed, columns)
    if isinstance(node, ast.BoolOp):
        values = [_expect(walk(child), "boolean", child, parsed) for child in node.values]
        return _all_of(values) if isinstance(node.op, ast.And) else _any_of(values)
    if isinstance(node, ast.UnaryOp):
        value = walk(node.operand)
        if isinstance(node.op, ast.Not):
            _expect(value, "boolean", node.operand, parsed)
            return _Value("boolean", ~value.array, value.known)
        _expect(value, "number", node.operand, parsed)
        return _Value("number", -value.array if isinstance(node.op, ast.USub) else value.array, value.known)
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        left = _expect(walk(node.left), "number", node.left, parsed)
        right = _expect(walk(node.right), "number", node.right, parsed)
        return _arithmetic(_ARITHMETIC[type(node.op)], left, right)
    if isinstance(node, ast.Compare):
        return _chain(node, parsed, walk)
    raise _error(parsed.source, node.col_offset, f"{_NODE_NAMES.get(type(node), 'this')} is not available here")


def _chain(node: ast.Compare, parsed: _Parsed, walk: Callable[[ast.expr], _Value]) -> _Value:
    """A comparison, chained as in Python: `a < b <= c` is `a < b and b <= c`."""
    links: list[_Value] = []
    left, left_node = walk(node.left), node.left
    for position, (operator, right_node) in enumerate(zip(node.ops, node.comparators, strict=True)):
        if isinstance(operator, ast.In | ast.NotIn):
            if position + 1 < len(node.ops):
                raise _error(parsed.source, right_node.col_offset, "a comparison cannot follow a list of values")
            found = _any_of([_compare(ast.Eq(), left, walk(e), e, parsed) for e in _elements(right_node, parsed)])
            links.append(
                _Value("boolean", ~found.array if isinstance(operator, ast.NotIn) else found.array, found.known)
            )
            break
        right = walk(right_node)
        _expect_comparable(operator, left, left_node, right, right_node, parsed)
        links.append(_compare(operator, left, right, right_node, parsed))
        left, left_node = right, right_node
    return _all_of(links)


def _elements(node: ast.expr, parsed: _Parsed) -> Sequence[ast.expr]:
    elements = node.elts if isinstance(node, ast.Set | ast.Tuple | ast.List) else [node]
    if not elements or isinstance(node, ast.Dict):
        raise _error(parsed.source, node.col_offset, "the list of values is empty", "write, for example, in {1, 2}")
    for element in elements:
        inner = element.operand if isinstance(element, ast.UnaryOp) else element
        if not isinstance(inner, ast.Constant):
            raise _error(parsed.source, element.col_offset, "a list holds numbers or texts only")
    return elements


def _leaf_value(leaf: _Leaf, position: int, parsed: _Parsed, columns: Mapping[str, NDArray[Any]]) -> _Value:
    if leaf.kind != "column":
        return _Value(leaf.kind, np.asarray(leaf.value), np.asarray(True))
    name = str(leaf.value)
    if name not in columns:
        known = list(columns)
        raise _error(
            parsed.source,
            position,
            f"unknown column {name!r}",
            f"columns: {', '.join(known)}" if known else None,
            nearest=nearest_names(name, known),
        )
    column = np.asarray(columns[name])
    if column.dtype.kind == "b":
        return _Value("boolean", column, np.asarray(True))
    if column.dtype.kind in "iuf":
        numbers = column.astype(np.float64)
        return _Value("number", numbers, ~np.isnan(numbers))
    if column.dtype.kind != "O":
        return _Value("text", column.astype(np.str_), np.asarray(True))
    return _Value("text", column, np.asarray(column != np.asarray(None), dtype=np.bool_))


def _arithmetic(operation: np.ufunc, left: _Value, right: _Value) -> _Value:
    array = operation(left.array, right.array)
    # An infinity that was in the data is a value; one that arithmetic produced from finite numbers is undefined.
    finite_operands = np.isfinite(left.array) & np.isfinite(right.array)
    defined = np.isfinite(array) | ~(finite_operands | np.isnan(array))
    return _Value("number", array, left.known & right.known & defined)


def _expect_comparable(
    operator: ast.cmpop, left: _Value, left_node: ast.expr, right: _Value, right_node: ast.expr, parsed: _Parsed
) -> None:
    if not isinstance(operator, ast.Eq | ast.NotEq):
        for value, node in ((left, left_node), (right, right_node)):
            if value.kind != "number":
                raise _mismatch(value, node, parsed, "only numbers are ordered: compare it with == or !=")


def _compare(operator: ast.cmpop, left: _Value, right: _Value, right_node: ast.expr, parsed: _Parsed) -> _Value:
    if (left.kind == "text") != (right.kind == "text"):
        raise _error(
            parsed.source,
            right_node.col_offset,
            f"{_article(left.kind)} is compared with {_article(right.kind)}",
            "compare text columns with a quoted text such as 'train', numbers with numbers",
        )
    array = _COMPARISONS[type(operator)](left.array, right.array)
    return _Value("boolean", np.asarray(array, dtype=np.bool_), left.known & right.known)


def _all_of(values: Sequence[_Value]) -> _Value:
    """Kleene's `and`: false as soon as one part is known to be false."""
    negated = _any_of([_Value("boolean", ~value.array, value.known) for value in values])
    return _Value("boolean", ~negated.array, negated.known)


def _any_of(values: Sequence[_Value]) -> _Value:
    """Kleene's `or`: true as soon as one part is known to be true, known otherwise only if every part is."""
    first, *others = values
    true = first.array & first.known
    known = first.known
    for value in others:
        true = true | (value.array & value.known)
        known = known & value.known
    return _Value("boolean", np.asarray(true), np.asarray(known | true))


def _expect(value: _Value, kind: Kind, node: ast.expr, parsed: _Parsed) -> _Value:
    if value.kind != kind:
        raise _mismatch(value, node, parsed, f"{_article(kind)} is needed here")
    return value


def _mismatch(value: _Value, node: ast.expr, parsed: _Parsed, needed: str) -> InputError:
    leaf = parsed.leaves.get(node.col_offset) if isinstance(node, ast.Name | ast.Constant) else None
    named = f"column {leaf.value!r}" if leaf is not None and leaf.kind == "column" else "this"
    sample = _text_sample(value) if leaf is not None and leaf.kind == "column" else ""
    return _error(parsed.source, node.col_offset, f"{named} is {_article(value.kind)}{sample}; {needed}")


def _text_sample(value: _Value) -> str:
    """One text of a column that should hold numbers, for the error message."""
    if value.kind != "text":
        return ""
    for cell in value.array[:100_000].tolist() if value.array.ndim else []:
        try:
            float(cell)
        except (TypeError, ValueError):
            return f" (for example {str(cell)[:40]!r})"
    return ""


def _article(kind: Kind) -> str:
    return {"number": "a number", "text": "text", "boolean": "true or false"}[kind]


def _error(
    source: str, position: int, what: str, next_step: str | None = None, *, nearest: str | None = None
) -> InputError:
    shown = source if len(source) <= 80 else f"{source[:77]}..."
    return InputError(
        what, where=f"expression {shown!r}, position {position + 1}", nearest=nearest, next_step=next_step or ALLOWED
    )


_ARITHMETIC: dict[type[ast.operator], np.ufunc] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.Div: np.divide,
    ast.Pow: np.power,
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Lt: np.less,
    ast.LtE: np.less_equal,
    ast.Gt: np.greater,
    ast.GtE: np.greater_equal,
    ast.Eq: np.equal,
    ast.NotEq: np.not_equal,
}
_NODE_NAMES: dict[type[ast.expr], str] = {
    ast.Call: "a function call",
    ast.Subscript: "an index",
    ast.Tuple: "a list of values",
    ast.List: "a list of values",
    ast.Set: "a list of values",
    ast.Dict: "a pair of braces",
    ast.Starred: "a star",
}
