"""Tracked runs as rows of a run table, by rules that a mapping file states or that are guessed and said to be."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moescale.errors import InputError, UnknownNameError, nearest_names
from moescale.io.filters import column_names, evaluate_decided, evaluate_numbers, quoted_name
from moescale.runs.importers import values
from moescale.runs.importers.guesses import (
    CONVERTED,
    LOSS_COLUMN,
    OTHER_UNITS,
    guess,
    in_other_units,
    unit_of,
    unusable,
)
from moescale.runs.importers.rules import DERIVED, Rule
from moescale.runs.importers.tracked_run import FINISHED, STEP, Scalar, TrackedRun
from moescale.runs.table import DIVERGED_COLUMNS, EXPERTS_COLUMN, SIZE_COLUMNS, TOKENS_COLUMN

Row = dict[str, Scalar]

SOURCE_COLUMN = "imported_from"
_REQUIRED = (EXPERTS_COLUMN, TOKENS_COLUMN, LOSS_COLUMN)
_FIRST = ("name", *SIZE_COLUMNS, EXPERTS_COLUMN, "top_k", TOKENS_COLUMN, LOSS_COLUMN)
_RESERVED = (*_REQUIRED, *SIZE_COLUMNS, SOURCE_COLUMN)
_MOST_STATED = 8  # names that one message lists
_LONGEST_NAME = 60  # characters of it that a message shows
_DOTTED = re.compile(r"`[^`\n]*`|(?<![\w.])[^\W\d]\w*(?:\.\w+)+")  # config.n_layer: a point is no operator
_MISSING = {
    EXPERTS_COLUMN: "no name states them, though some mention experts",
    TOKENS_COLUMN: "neither a token count nor tokens per step is known "
    "(--set tokens='step * 524288', with your tokens per step)",
}


class _LeftOutError(Exception):
    """A run makes no row, for the reason stated; `lacking` are the columns that it lacks."""

    def __init__(self, reason: str, lacking: Iterable[str] = ()) -> None:
        super().__init__(reason)
        self.lacking = tuple(lacking)


@dataclass(frozen=True, eq=False)
class Imported:
    """The rows of a run table as columns, and how they came about.

    `rules` states for each column how many runs took it from where; `left_out` holds (run, reason).
    """

    columns: Mapping[str, NDArray[Any]]
    n_found: int
    rules: tuple[str, ...]
    left_out: tuple[tuple[str, str], ...]
    warnings: tuple[str, ...]

    @property
    def n_runs(self) -> int:
        """Rows of the table."""
        return len(next(iter(self.columns.values()))) if self.columns else 0

    def to_dict(self) -> dict[str, Any]:
        """What the command prints as JSON."""
        left_out = [{"run": run, "reason": reason} for run, reason in self.left_out]
        stated = {"n_found": self.n_found, "n_runs": self.n_runs, "columns": list(self.columns)}
        return stated | {"rules": list(self.rules), "left_out": left_out, "warnings": list(self.warnings)}


def rows_of(
    runs: Sequence[TrackedRun],
    mapping: Mapping[str, Rule] | None = None,
    *,
    unfinished: bool = False,
    where: str | None = None,
    source: str = "tracker",
    warnings: Iterable[str] = (),
) -> Imported:
    """The rows that `moescale.runs.table.read_runs` takes, one a run, with every other scalar as a further column.

    What the mapping leaves open is guessed. Runs that did not end (unless `unfinished`), and runs that lack a size,
    n_experts, tokens or a loss, are left out with the reason; a loss that ended as NaN or infinity is kept, marked
    as diverged. `where` filters the rows. Raises InputError where no run is left, and for names that no run has.
    """
    given = _resolved(mapping or {}, runs, source)
    if LOSS_COLUMN not in given and (found := in_other_units(runs)) is not None:
        raise _no_nats(found, source)
    rules = {column: [rule] for column, rule in given.items()}
    unclear: dict[str, tuple[str, ...]] = {}
    for column in (LOSS_COLUMN, *SIZE_COLUMNS, EXPERTS_COLUMN, "top_k", TOKENS_COLUMN):
        if column not in rules and not (column in SIZE_COLUMNS and any(size in given for size in SIZE_COLUMNS)):
            guessed = guess(runs, column)
            rules[column] = guessed.rules
            if guessed.unclear:
                unclear[column] = guessed.unclear
    used: Counter[tuple[str, str]] = Counter()
    rows: list[Row] = []
    left_out: list[tuple[str, str]] = []
    lacking: dict[str, None] = {}
    for run in runs:
        try:
            row, taken = _row(run, rules, unclear, unfinished)
        except _LeftOutError as reason:
            left_out.append((f"{run.name} ({run.where})", str(reason)))
            lacking |= dict.fromkeys(reason.lacking)
        else:
            rows.append(row)
            used.update((column, str(rule)) for column, rule in taken.items())
    notes = [
        *warnings,
        *(
            f"{column} is left out: {_differing(names)}; --set {column}=EXPR chooses"
            for column, names in unclear.items()
            if not any(column in row for row in rows)
        ),
    ]
    rows = _one_size(rows, left_out, notes)
    if not rows:
        what = f"none of {len(runs)} runs gives a row: {_reasons(left_out)}" if runs else "there is no run in it"
        raise InputError(what, where=source, next_step=_advice(runs, lacking))
    if where is not None:
        rows = _filtered(rows, where, source, left_out, notes)
    columns = MappingProxyType(_columns(rows))
    return Imported(columns, len(runs), _statements(used, given), tuple(left_out), tuple(notes))


def _reasons(left_out: Sequence[tuple[str, str]]) -> str:
    """The reasons of most runs, each with the first of them."""
    counted = Counter(reason for _, reason in left_out).most_common()
    first = dict(reversed([(reason, run) for run, reason in left_out]))
    told = [f"{first[reason]}{f' and {n - 1} more' if n > 1 else ''}: {reason}" for reason, n in counted[:3]]
    return "; ".join([*told, *([f"and {len(counted) - 3} reasons more"] if len(counted) > 3 else [])])


def _advice(runs: Sequence[TrackedRun], lacking: Iterable[str]) -> str:
    """What states all that runs lack, and the names that it may be an expression of."""
    names = _listed(dict.fromkeys(name for run in runs for name in (*run.params, *run.metrics)))
    stated = " ".join(f"--set {column}=EXPR" for column in sorted(lacking, key=_place) or ["COLUMN"])
    return f"state what is missing, {stated} or --mapping MAP.toml; names: {names}"


def _differing(names: Sequence[str]) -> str:
    return f"{' and '.join(map(repr, names[:_MOST_STATED]))} may be meant, and their values differ"


def _no_nats(name: str, where: str) -> InputError:
    unit = unit_of(name) or ""
    advice = "add a column of its natural logarithm, and name that"
    if unit in CONVERTED:
        advice = f"--set 'loss={quoted_name(name)} * {CONVERTED[unit]}'"
    if unit == "bits_per_byte":
        advice += ", BYTES a token of your tokenizer (about 4 of English)"
    what = f"{name!r} is {OTHER_UNITS[unit]}, and a loss of a run table in nats per token"
    return InputError(what, where=where, next_step=advice)


def _filtered(rows: list[Row], where: str, source: str, left_out: list[tuple[str, str]], notes: list[str]) -> list[Row]:
    holds, decided = evaluate_decided(where, _columns(rows))
    if not holds.any():
        what = f"the filter {where!r} keeps none of {len(rows)} runs"
        raise InputError(what, where=source, next_step="loosen the filter")
    dropped = (row for row, keep in zip(rows, holds, strict=True) if not keep)
    left_out += [(_label(row), "excluded by --where") for row in dropped]
    if not decided.all():
        notes.append(f"{int((~decided).sum())} of the runs lack a value that the filter needs")
    return [row for row, keep in zip(rows, holds, strict=True) if keep]


def _label(row: Row) -> str:
    return f"{row['name']} ({row[SOURCE_COLUMN]})"


def _statements(used: Mapping[tuple[str, str], int], given: Mapping[str, Rule]) -> tuple[str, ...]:
    """What came from where, the columns of one origin in one line."""
    lines: dict[str, list[str]] = {}
    for (column, rule), count in sorted(used.items(), key=lambda item: _place(item[0][0])):
        stated = column in given or rule in (repr(column), DERIVED["shape"])
        guessed = "" if stated else " (guessed)"
        lines.setdefault(f"from {rule}{guessed}: {count} run{'s' * (count > 1)}", []).append(column)
    return tuple(f"{', '.join(columns)} {origin}" for origin, columns in lines.items())


def _resolved(mapping: Mapping[str, Rule], runs: Sequence[TrackedRun], source: str) -> dict[str, Rule]:
    """The mapping with texts that are names told from expressions; InputError for names that no run has."""
    params = dict.fromkeys(name for run in runs for name in run.params)
    metrics = dict.fromkeys(name for run in runs for name in run.metrics)
    known = params | metrics | {STEP: None}
    found: dict[str, Rule] = {}
    for column, rule in mapping.items():
        names: Sequence[str] = [rule.name] if rule.name is not None else []
        made, plain = rule, (rule.expression or "").strip("`")
        if plain in known and plain not in ("", STEP):
            made = Rule(name=plain)
        elif rule.expression is not None:
            made = Rule(expression=_DOTTED.sub(lambda found: f"`{found[0].strip('`')}`", rule.expression))
            with _mapping_of(column):
                names = column_names(made.expression or "")
                evaluate_numbers(made.expression or "", dict.fromkeys(names or [STEP], np.ones(1)))
        within = {"param": params, "metric": metrics}.get(rule.of or "", known)
        for name in names:
            if name not in within:
                what, where = f"no run has a {rule.of or 'param or metric'} {name!r}", f"mapping of {column}"
                advice = f"{source} has: {_listed(within)}; quote names with other signs as `a/b`"
                raise UnknownNameError(what, where=where, nearest=nearest_names(name, within), next_step=advice)
        if column == LOSS_COLUMN and made.name is not None and unit_of(made.name):
            raise _no_nats(made.name, f"mapping of {column}")
        found[column] = made
    return found


@contextmanager
def _mapping_of(column: str) -> Generator[None]:
    """Names the column in what is wrong with its expression."""
    try:
        yield
    except InputError as error:
        where = f"mapping of {column}, {error.where}"
        raise InputError(error.what, where=where, nearest=error.nearest, next_step=error.next_step) from error


def _place(column: str) -> int:
    return _FIRST.index(column) if column in _FIRST else len(_FIRST)


def _listed(names: Iterable[str]) -> str:
    all_names = [name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 2]}.." for name in names]
    more = f" and {len(all_names) - _MOST_STATED} more" if len(all_names) > _MOST_STATED else ""
    return (", ".join(all_names[:_MOST_STATED]) or "nothing") + more


def _row(
    run: TrackedRun, rules: Mapping[str, Sequence[Rule]], unclear: Mapping[str, Sequence[str]], unfinished: bool
) -> tuple[Row, dict[str, Rule]]:
    """The row of a run and the rule that each column came from; raises _LeftOutError with the reason why there is none."""
    if run.state not in ("", FINISHED) and not unfinished:
        raise _LeftOutError(f"not finished: {run.state} (--unfinished keeps such runs)")
    loss, step = _loss(run, rules[LOSS_COLUMN])
    diverged = run.params.get("diverged") is True
    row, taken = _cells(run, rules, step)
    lacking = _lacking(row, rules)
    if loss is None and not diverged:
        wanted = rules[LOSS_COLUMN][0] if rules[LOSS_COLUMN] else "a validation or training loss"
        lacking[LOSS_COLUMN] = f"{wanted} is not there"
    for column in lacking:
        stated = (_unusable(run, each, rules[each]) for each in _columns_of(column) if each in rules)
        found = next(filter(None, stated), None)
        if found is not None:
            lacking[column] = found + "; dense models have 1" * (column == EXPERTS_COLUMN)
    lacking |= {column: _differing(unclear[column]) for column in lacking if column in unclear}
    size = next((size for size in SIZE_COLUMNS if size in unclear), SIZE_COLUMNS[0])
    if "size" in lacking and size in unclear:
        lacking["size"] = _differing(unclear[size])
    if lacking:
        reasons = "; ".join(f"no {column}: {reason}" for column, reason in lacking.items())
        raise _LeftOutError(reasons, [size if column == "size" else column for column in lacking])
    experts = row[EXPERTS_COLUMN]
    if not isinstance(experts, float) or experts < 1:  # an expansion need not be whole
        raise _LeftOutError(f"n_experts is {experts!r}, not a number of 1 or more")
    row[LOSS_COLUMN] = math.nan if loss is None else loss
    if not _positive(row[LOSS_COLUMN]):
        if loss is not None and math.isfinite(loss) and not diverged:
            raise _LeftOutError(f"the loss is {loss:g}; a cross-entropy loss is positive")
        row["diverged"] = True
    for name, value in values.values(run, math.nan).items():
        if (name == STEP and STEP not in run.params) or row.get(name) == value:
            continue
        # What a reader would take for its own, and is not, keeps its value under another name.
        taken_name = name in row or name in _RESERVED or (name in DIVERGED_COLUMNS and not isinstance(value, bool))
        row[f"logged_{name}" if taken_name else name] = value
    if not isinstance(row.get("name"), str):
        row["name"] = run.name
    row[SOURCE_COLUMN] = run.where
    return row, taken


def _cells(run: TrackedRun, rules: Mapping[str, Sequence[Rule]], step: float) -> tuple[Row, dict[str, Rule]]:
    """What the rules give but for the loss, each column by the first rule that gives anything usable."""
    row: Row = {}
    taken: dict[str, Rule] = dict(zip((LOSS_COLUMN,), rules[LOSS_COLUMN], strict=False))
    for column, choices in rules.items():
        for rule in choices if column != LOSS_COLUMN else ():
            value = values.evaluated(run, rule, step, column)
            if value is not None and (_positive(value) or column not in (*_REQUIRED, *SIZE_COLUMNS)):
                row[column], taken[column] = value, rule
                break
    return row, taken


def _columns_of(column: str) -> Sequence[str]:
    return SIZE_COLUMNS if column == "size" else (column,)


def _unusable(run: TrackedRun, column: str, rules: Sequence[Rule]) -> str | None:
    """What stands where a column would be taken from, in place of a positive number; None where nothing does."""
    found = unusable(run, column)
    stated = [rule.name or rule.expression or "" for rule in rules if rule.derived is None]
    if found is None or (stated and not any(found[0] in text for text in stated)):
        return None
    shown = repr(found[1][:_LONGEST_NAME]) if isinstance(found[1], str) else _cell(found[1])
    return f"{found[0]!r} is {shown}, not a positive number"


def _lacking(row: Row, rules: Mapping[str, Sequence[Rule]]) -> dict[str, str]:
    """Why a row lacks what it needs beside the loss, by column."""
    lacking: dict[str, str] = {}
    if not any(size in row for size in SIZE_COLUMNS):
        lacking["size"] = "neither parameters nor a configuration is there"
    for column, reason in _MISSING.items():
        if column not in row:
            mapped = [rule for rule in rules[column] if rule.derived is None]
            alone = len(rules[column]) == len(mapped) == 1
            lacking[column] = f"{mapped[0]} gives no positive number" if alone else reason
    return lacking


def _loss(run: TrackedRun, rules: Sequence[Rule]) -> tuple[float | None, float]:
    """The loss and the step it belongs to (the last step where it has none)."""
    step = values.last_step(run)
    if not rules:
        return None, step
    rule = rules[0]
    curve = run.metrics.get(rule.name or "") if rule.of != "param" else None
    if curve is not None and len(curve.values) and not (rule.of is None and rule.name in run.params):
        at, value = values.point(curve, rule.at)
        return value, step if math.isnan(at) else at
    value = values.evaluated(run, rule, step, LOSS_COLUMN)
    return (float(value) if isinstance(value, float) else None), step


def _positive(value: Scalar) -> bool:
    return isinstance(value, float) and 0 < value < math.inf


def _one_size(rows: list[Row], left_out: list[tuple[str, str]], notes: list[str]) -> list[Row]:
    """The rows that have the size which most of them have, without the sizes that only some of those have."""

    def has(row: Row, size: str) -> bool:
        return size in row or row[EXPERTS_COLUMN] == 1.0  # of a dense model all sizes are one

    chosen = max(SIZE_COLUMNS, key=lambda size: sum(has(row, size) for row in rows))
    kept = [row for row in rows if has(row, chosen)]
    left_out += [(_label(row), f"no {chosen}, the size column of most runs") for row in rows if not has(row, chosen)]
    for size in SIZE_COLUMNS:
        stated, everywhere = sum(size in row for row in kept), all(has(row, size) for row in kept)
        if not everywhere and stated:
            notes.append(f"column {size} is left out: only {stated} of {len(kept)} runs have it")
        for row in kept:
            if not everywhere:
                row.pop(size, None)
            elif size not in row:
                row[size] = next(row[other] for other in SIZE_COLUMNS if other in row)
    return kept


def _columns(rows: Sequence[Row]) -> dict[str, NDArray[Any]]:
    """Cells by column: int64 or float64 where all are numbers (NaN: none), bool, or text with "" for none."""
    names = dict.fromkeys(name for name in _FIRST if any(name in row for row in rows))
    names |= dict.fromkeys(sorted({name for row in rows for name in row} - {*names, SOURCE_COLUMN}))
    found: dict[str, NDArray[Any]] = {}
    for name in (*names, SOURCE_COLUMN):
        cells = [row.get(name) for row in rows]
        present = [cell for cell in cells if cell is not None]
        if name in DIVERGED_COLUMNS or (len(present) == len(cells) and all(isinstance(c, bool) for c in cells)):
            found[name] = np.array([bool(cell) for cell in cells])
        elif all(isinstance(cell, float) for cell in present):
            numbers = np.array([math.nan if cell is None else float(cell) for cell in cells])
            whole = np.all(np.isfinite(numbers)) and np.all(np.abs(numbers) < 2**53) and np.all(numbers % 1 == 0)
            found[name] = numbers.astype(np.int64) if whole else numbers
        else:
            found[name] = np.array(["" if cell is None else _cell(cell) for cell in cells], dtype=object)
    return found


def _cell(value: Scalar) -> str:
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    return str(value).lower() if isinstance(value, bool) else str(value)
