"""Tracked runs as rows of a run table: each column from where `--set` states it, else from what is guessed and said to be."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moescale.errors import InputError, UnknownNameError, nearest_names
from moescale.io import frames
from moescale.io.filters import column_names
from moescale.runs.importers import guesses
from moescale.runs.importers.guesses import LOSS_COLUMN
from moescale.runs.importers.tracked_run import FINISHED, STEP, Logged, Origin, Scalar, TrackedRun, scalar
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
    SIZE_COLUMNS[0]: "neither parameters nor a configuration is there",
    EXPERTS_COLUMN: "no name states them, though some mention experts",
    TOKENS_COLUMN: "neither a token count nor tokens per step is known "
    "(--set tokens='step * 524288', with your tokens per step)",
    LOSS_COLUMN: "a validation or training loss is not there",
}


class _LeftOutError(Exception):
    """A run makes no row: the reason, and the columns that it lacks."""


@dataclass(frozen=True, eq=False)
class Imported:
    """The rows of a run table as columns, how many runs took each from where (`rules`), who is left out, and why."""

    columns: Mapping[str, NDArray[Any]]
    n_found: int
    rules: tuple[str, ...]
    left_out: tuple[tuple[str, str], ...]
    warnings: tuple[str, ...]

    @property
    def n_runs(self) -> int:
        """Rows of the table."""
        return len(self.columns[SOURCE_COLUMN])

    def to_dict(self) -> dict[str, Any]:
        """What the command prints as JSON."""
        left_out = [{"run": run, "reason": reason} for run, reason in self.left_out]
        stated = {"n_found": self.n_found, "n_runs": self.n_runs, "columns": list(self.columns)}
        return stated | {"rules": list(self.rules), "left_out": left_out, "warnings": list(self.warnings)}


def rows_of(
    runs: Sequence[TrackedRun],
    mapping: Mapping[str, str] | None = None,
    *,
    unfinished: bool = False,
    source: str = "tracker",
    warnings: Iterable[str] = (),
) -> Imported:
    """The rows that `moescale.runs.table.read_runs` takes, one a run, with every other scalar as a further column.

    What the mapping leaves open is guessed. Runs that did not end (unless `unfinished`) or lack a column are left out
    with the reason; a loss that ended as NaN or infinity is kept, marked as diverged. InputError where no run is left.
    """
    stated, logged = mapping or {}, Logged(runs)
    origins: dict[str, list[Origin]] = {}
    unclear: dict[str, str] = {}
    for column in dict.fromkeys((LOSS_COLUMN, *stated, *SIZE_COLUMNS, EXPERTS_COLUMN, "top_k", TOKENS_COLUMN)):
        if column in stated:
            origins[column] = [_stated(logged, column, stated[column], source)]
        elif not (column in SIZE_COLUMNS and any(size in stated for size in SIZE_COLUMNS)):
            origins[column], meant = guesses.guess(logged, column)
            if column == LOSS_COLUMN and not (origins[column] or meant):
                guesses.refuse_other_unit(logged.names, source)
            if meant:
                names = " and ".join(map(repr, meant[:_MOST_STATED]))
                unclear[column] = f"{names} may be meant, and their values differ"
    rows: list[Row] = []
    used: Counter[tuple[str, str]] = Counter()
    left_out: list[tuple[str, str]] = []
    lacking: dict[str, None] = {}
    for number, run in enumerate(runs):
        try:
            row, taken = _row(run, number, origins, unclear, unfinished)
        except _LeftOutError as error:
            reason, *lacked = error.args
            left_out.append((f"{run.name} ({run.where})", reason))
            lacking |= dict.fromkeys(lacked)
        else:
            rows.append(row)
            used.update(taken)
    absent = [column for column in unclear if not any(column in row for row in rows)]
    notes = [*warnings, *(f"{column} is left out: {unclear[column]}; --set {column}=EXPR chooses" for column in absent)]
    rows = _one_size(rows, left_out, notes)
    if not rows:
        what = f"none of {len(runs)} runs gives a row: {_reasons(left_out)}" if runs else "there is no run in it"
        columns = " ".join(f"--set {column}=EXPR" for column in sorted(lacking, key=_place) or ["COLUMN"])
        step = f"state what is missing, {columns}; names: {_listed(logged.names)}"
        raise InputError(what, where=source, next_step=step)
    return Imported(_columns(rows), len(runs), _statements(used, stated), tuple(left_out), tuple(notes))


def _reasons(left_out: Sequence[tuple[str, str]]) -> str:
    counted = Counter(reason for _, reason in left_out).most_common()
    first = {reason: run for run, reason in reversed(left_out)}
    told = [f"{first[reason]}{f' and {n - 1} more' if n > 1 else ''}: {reason}" for reason, n in counted[:3]]
    return "; ".join([*told, *([f"and {len(counted) - 3} reasons more"] if len(counted) > 3 else [])])


def _statements(used: Mapping[tuple[str, str], int], stated: Collection[str]) -> tuple[str, ...]:
    lines: dict[str, list[str]] = {}
    for (column, origin), count in sorted(used.items(), key=lambda item: _place(item[0][0])):
        guessed = "" if column in stated or origin in (repr(column), guesses.SHAPE) else " (guessed)"
        lines.setdefault(f"from {origin}{guessed}: {count} run{'s' * (count > 1)}", []).append(column)
    return tuple(f"{', '.join(columns)} {origin}" for origin, columns in lines.items())


def rule_of(stated: str) -> tuple[str, str]:
    """The column and the rule of a text COLUMN=EXPR, without blanks around them; raises InputError for any other."""
    column, _, rule = (part.strip() for part in stated.partition("="))
    if not (column and rule):
        what = f"{stated!r} is not COLUMN=EXPR"
        raise InputError(what, next_step="write, for example, --set tokens='step * 524288'")
    return column, rule


def _stated(logged: Logged, column: str, rule: str, source: str) -> Origin:
    """The origin that a rule states: a name, a 'text', a number, or an expression; InputError for names that no run has."""
    where, name, constant = f"--set {column}", rule.strip("`"), scalar(rule)
    if rule[0] in "\"'" and rule[-1] == rule[0] and len(rule) > 2:
        constant = rule[1:-1]
    elif name in logged.names:
        if column != LOSS_COLUMN:
            return logged.named(name)
        guesses.refuse_other_unit([name], where)
        return logged.loss(name)
    elif not isinstance(constant, bool | float):
        expression = _DOTTED.sub(lambda found: f"`{found[0].strip('`')}`", rule)
        try:
            unknown = next((name for name in column_names(expression) if name not in (*logged.names, STEP)), None)
            if unknown is None:
                return logged.computed(expression)
        except InputError as error:
            raise error.within(where) from error
        advice = f"{source} has: {_listed(logged.names)}; quote names with other signs as `a/b`"
        what, nearest = f"no run has a param or metric {unknown!r}", nearest_names(unknown, logged.names)
        raise UnknownNameError(what, where=where, nearest=nearest, next_step=advice)
    return Origin(repr(constant), [constant] * len(logged.runs))


def _place(column: str) -> int:
    return _FIRST.index(column) if column in _FIRST else len(_FIRST)


def _listed(names: Iterable[str]) -> str:
    all_names = [name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 2]}.." for name in names]
    more = f" and {len(all_names) - _MOST_STATED} more" if len(all_names) > _MOST_STATED else ""
    return (", ".join(all_names[:_MOST_STATED]) or "nothing") + more


def _row(
    run: TrackedRun, number: int, origins: Mapping[str, Sequence[Origin]], unclear: Mapping[str, str], unfinished: bool
) -> tuple[Row, list[tuple[str, str]]]:
    """The row of a run, and each column with what it came from; raises _LeftOutError with the reason why there is none."""
    if run.state not in ("", FINISHED) and not unfinished:
        raise _LeftOutError(f"not finished: {run.state} (--unfinished keeps such runs)")
    row: Row = {}
    taken: list[tuple[str, str]] = []
    diverged = run.params.get("diverged") is True
    for column, origin in ((column, origin) for column, tried in origins.items() for origin in tried):
        value = origin.cells[number]
        usable = isinstance(value, float) if column == LOSS_COLUMN else _positive(value) or column not in _RESERVED
        if column not in row and usable and value is not None:
            row[column] = value
            taken.append((column, origin.text))
    sizes = any(size in row for size in SIZE_COLUMNS)
    lacking = [column for column in _REQUIRED if column not in row and not (column == LOSS_COLUMN and diverged)]
    lacking = [*([] if sizes else [next((s for s in SIZE_COLUMNS if s in unclear), SIZE_COLUMNS[0])]), *lacking]
    if lacking:
        reasons = "; ".join(_why_lacking(run, column, origins.get(column, ()), unclear) for column in lacking)
        raise _LeftOutError(reasons, *lacking)
    experts, loss = row[EXPERTS_COLUMN], row.setdefault(LOSS_COLUMN, math.nan)
    if not isinstance(experts, float) or experts < 1:  # an expansion need not be whole
        raise _LeftOutError(f"n_experts is {experts!r}, not a number of 1 or more")
    if not _positive(loss):
        if isinstance(loss, float) and math.isfinite(loss) and not diverged:
            raise _LeftOutError(f"the loss is {loss:g}; a cross-entropy loss is positive")
        row["diverged"] = True
    others = {name: float(curve.values[-1]) for name, curve in run.metrics.items() if name != STEP} | run.params
    for name, value in others.items():
        if row.get(name) == value:
            continue
        # What a reader would take for its own, and is not, keeps its value under another name.
        taken_name = name in row or name in _RESERVED or (name in DIVERGED_COLUMNS and not isinstance(value, bool))
        row[f"logged_{name}" if taken_name else name] = value
    if not isinstance(row.get("name"), str):
        row["name"] = run.name
    row[SOURCE_COLUMN] = run.where
    return row, taken


def _why_lacking(run: TrackedRun, column: str, origins: Sequence[Origin], unclear: Mapping[str, str]) -> str:
    """Why a run has no cell for a column that it needs: what stands in its place, or what is not there."""
    columns = SIZE_COLUMNS if column in SIZE_COLUMNS else (column,)
    wrong = next(filter(None, (guesses.stated_wrongly(run, each) for each in columns)), None)
    noun, reason = "size" if column in SIZE_COLUMNS else column, unclear.get(column, _MISSING.get(column, ""))
    if column not in unclear and len(origins) == 1 and (text := origins[0].text) not in guesses.DERIVED:
        reason = f"{text} is not there" if column == LOSS_COLUMN else f"{text} gives no positive number"
    if wrong is not None and column not in unclear:
        shown = repr(wrong[1][:_LONGEST_NAME]) if isinstance(wrong[1], str) else frames.written(wrong[1])
        reason = f"{wrong[0]!r} is {shown}, not a positive number" + "; dense models have 1" * (noun == EXPERTS_COLUMN)
    return f"no {noun}: {reason}"


def _positive(value: Scalar | None) -> bool:
    return isinstance(value, float) and 0 < value < math.inf


def _one_size(rows: list[Row], left_out: list[tuple[str, str]], notes: list[str]) -> list[Row]:
    """The rows that have the size which most of them have, without the sizes that only some of those have."""

    def has(row: Row, size: str) -> bool:
        return size in row or row[EXPERTS_COLUMN] == 1.0  # of a dense model all sizes are one

    chosen = max(SIZE_COLUMNS, key=lambda size: sum(has(row, size) for row in rows))
    kept = [row for row in rows if has(row, chosen)]
    why = f"no {chosen}, the size column of most runs"
    left_out += [(f"{row['name']} ({row[SOURCE_COLUMN]})", why) for row in rows if not has(row, chosen)]
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
    every = {name for row in rows for name in row}
    names = [*(name for name in _FIRST if name in every), *sorted(every - {*_FIRST, SOURCE_COLUMN}), SOURCE_COLUMN]
    cells = {name: [row.get(name) for row in rows] for name in names}
    return {
        name: np.array([bool(v) for v in values]) if name in DIVERGED_COLUMNS else frames.mixed_array(values)
        for name, values in cells.items()
    }
