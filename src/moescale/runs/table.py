"""Tables of training runs: one row a run, with its size, tokens, experts and final loss; read, validated, filtered."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from moescale.errors import ColumnError, InputError, nearest_names, unknown_name
from moescale.io import frames
from moescale.io.files import as_text, write_atomically
from moescale.io.filters import column_names, evaluate, quoted_name
from moescale.runs import expansion as model_columns
from moescale.typing import BoolArray, FloatArray

SIZE_COLUMNS = ("n_params_dense", "n_params_active", "n_params_total")  # in the order of preference
EXPERTS_COLUMN, TOKENS_COLUMN = "n_experts", "tokens"
ARRAYS = ("n_params", "tokens", "experts", "loss", "row_numbers")  # of a RunTable, beside its columns
DIVERGED_COLUMNS = ("diverged", "flagged")  # columns that mark runs which are not to be used
RUN_COLUMNS = ("run_id", "run", "run_name", "name")  # may name the run that a row is a point of; the first comes first
# Numbers and texts that make two runs of one size, tokens and experts differ by more than their settings.
MODEL_COLUMNS = ("unique_tokens", "granularity", "sparsity", "expansion", "top_k", "expert_width", "shared_width")
DATA_COLUMNS = ("dataset", "data", "train", "corpus", "source", "tokenizer")

SMALLEST_PLAUSIBLE = 1e5  # parameters, or tokens: whole sweeps of less are numbers in millions or billions
LOWEST_PLAUSIBLE_LOSS = 1.3  # nats a token, of the worst run of a table; bits a byte lie below
HIGHEST_PLAUSIBLE_LOSS = 12.5  # ln of a vocabulary of 2^18: a guess is no worse; perplexities lie above

UNDECIDED = "a missing value or a division by zero leaves the filter undecided"
Rows = NDArray[np.int64]
Groups = NDArray[np.intp]  # (n,): the first of the rows that belong together with each row
Cells = tuple[NDArray[Any], BoolArray]  # values of a column, (n,), and which are no numbers though they should be


@dataclass(frozen=True, eq=False)
class RunTable:
    """Training runs as read-only columns of one length, float64.

    `n_params` is the size in the sense of `size_column`, `tokens` the training tokens, `experts` the experts of a layer
    (1 for dense) or an expansion, `loss` in nats per token (NaN where it is not known). `row_numbers` are the 1-based
    data rows of `source`, kept through filters; `columns` are all others (float64, bool, or object arrays of str).
    """

    n_params: FloatArray
    tokens: FloatArray
    experts: FloatArray
    loss: FloatArray
    size_column: str = SIZE_COLUMNS[0]
    loss_column: str = "loss"
    tokens_column: str = TOKENS_COLUMN
    experts_column: str = EXPERTS_COLUMN
    source: str = frames.FRAME
    row_numbers: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict[str, NDArray[Any]])
    warnings: tuple[str, ...] = ()
    sha256: str | None = None

    def __post_init__(self) -> None:
        n_rows, rows = np.size(self.loss), self.row_numbers
        columns = {name: np.asarray(values).view() for name, values in self.columns.items()}
        arrays: dict[str, NDArray[Any]] = {name: np.array(getattr(self, name), dtype=np.float64) for name in ARRAYS[:4]}
        arrays["row_numbers"] = rows.view() if rows.size else np.arange(1, n_rows + 1)
        for name, values in (*arrays.items(), *columns.items()):
            if values.shape != (n_rows,):
                what = f"column {name!r} has shape {values.shape} where {(n_rows,)} is needed"
                raise ColumnError(what, where=self.source, next_step="give 1-D columns of one length")
            values.flags.writeable = False
        for name, values in {**arrays, "columns": columns}.items():
            object.__setattr__(self, name, values)

    def __len__(self) -> int:
        return len(self.loss)

    @property
    def active_body(self) -> FloatArray | None:
        """Parameters without embeddings that one token meets, (n,); None where the columns do not tell."""
        return model_columns.active_body(self.n_params, self.experts, self.size_column, self.columns)

    @property
    def expansion(self) -> FloatArray:
        """X, FFN weights of all experts over those that one token meets, (n,); see `moescale.runs.expansion`."""
        return model_columns.expansion(self.experts, self.columns)

    def to_columns(self) -> dict[str, NDArray[Any]]:
        """All columns under the names they have in a file: what a filter sees and `write_runs` writes."""
        return {
            **self.columns,
            self.size_column: self.n_params,
            self.experts_column: self.experts,
            self.tokens_column: self.tokens,
            self.loss_column: self.loss,
        }

    def where(self, expression: str) -> RunTable:
        """The runs for which `expression` holds (see `moescale.io.filters`); raises InputError when none does."""
        holds, decided = evaluate(expression, self.to_columns())
        _require_rows(holds, len(self), expression, self.source)
        selected = self.select(holds)
        return replace(selected, warnings=(*selected.warnings, *_left_out(self.row_numbers[~decided], UNDECIDED)))

    def select(self, mask: ArrayLike) -> RunTable:
        """The runs where the boolean `mask` (one a run) is true; raises InputError for any other mask."""
        chosen = np.asarray(mask)
        if chosen.dtype != np.bool_ or chosen.shape != (len(self),):
            what = f"the mask has shape {chosen.shape} and type {chosen.dtype}"
            raise InputError(what, next_step=f"give one boolean a run, shape {(len(self),)}")
        kept, old = self.at(np.flatnonzero(chosen)), self.notes()
        return replace(kept, warnings=(*(each for each in self.warnings if each not in old), *kept.notes()))

    def at(self, positions: Groups) -> RunTable:
        """The runs at these positions, in their order."""
        arrays = {name: getattr(self, name)[positions] for name in ARRAYS}
        return replace(self, **arrays, columns={name: values[positions] for name, values in self.columns.items()})

    def best_of(self) -> RunTable:
        """The run of the lowest loss of each size, tokens and experts, and of one value of each further input."""
        rows = _least_of_each(self._of_one_model(), self.loss)
        return self._only(rows, "runs", "the lowest loss of each size, tokens and experts")

    def last_points(self) -> RunTable:
        """The row of most tokens of each run, by a column that names runs; InputError where there is none."""
        if (found := self._of_one_run()) is None:
            what = f"no column names the run of each row: none of {', '.join(RUN_COLUMNS)} has one size and E a value"
            raise ColumnError(what, where=self.source, next_step="add a column run_id, or choose rows with --where")
        name, groups = found
        return self._only(_least_of_each(groups, -self.tokens), "rows", f"the last point of each run (column {name!r})")

    def notes(self) -> tuple[str, ...]:
        """What is said of rows that are points of one run, and of runs of one size, tokens and experts, which are all kept."""
        notes: list[str] = []
        if (found := self._of_one_run()) is not None:
            name, groups = found
            several = np.unique(groups[self.tokens != self.tokens[groups]])
            if several.size:
                of_runs = f"{_count(several.size, 'run')} (column {name!r})"
                what = f"{np.isin(groups, several).sum():,} rows are points of {of_runs}"
                why = "losses before the decay of the learning rate are too high"
                notes.append(f"{what}: {why}; --last-point keeps the last point of each run")
        repeats = np.delete(self.row_numbers, _least_of_each(self._of_one_model(), self.row_numbers))
        if repeats.size:
            what = f"{_count(repeats.size, 'repeat')} of another run's size, tokens and experts; all are kept"
            notes.append(f"{what}, and --best-of keeps the lowest loss of each ({rows_text(np.sort(repeats))})")
        return tuple(notes)

    def _of_one_model(self) -> Groups:
        kinds = {"f": MODEL_COLUMNS, "O": DATA_COLUMNS}
        others = [values for name, values in self.columns.items() if name in kinds.get(values.dtype.kind, ())]
        return _grouped(zip(*(v.tolist() for v in (self.n_params, self.tokens, self.experts, *others)), strict=True))

    def _of_one_run(self) -> tuple[str, Groups] | None:
        """The points of each run, and the column that names runs: each of its values belongs to one size and one expert count."""
        for name in (column for column in RUN_COLUMNS if column in self.columns):
            groups = _grouped(self.columns[name].tolist())
            if all((values == values[groups]).all() for values in (self.n_params, self.experts)):
                return name, groups
        return None

    def _only(self, rows: Groups, noun: str, what: str) -> RunTable:
        kept = self.select(np.isin(np.arange(len(self)), rows))
        note = f"kept {len(kept):,} of {len(self):,} {noun}: {what}"
        return replace(kept, warnings=(*kept.warnings, note)) if len(kept) < len(self) else kept


def read_runs(
    source: Any,
    *,
    size_column: str | None = None,
    loss_column: str = "loss",
    tokens_column: str = TOKENS_COLUMN,
    experts_column: str = EXPERTS_COLUMN,
    where: str | None = None,
    last_point: bool = False,
    best_of: bool = False,
    needs_loss: bool = True,
) -> RunTable:
    """The training runs in a file (CSV, TSV, Parquet, JSON lines) or data frame, validated and filtered.

    The size is `size_column`, by default the first of `SIZE_COLUMNS` that is there. Runs marked true in a `diverged` or
    `flagged` column are left out. Only the rows that `where` keeps and the columns that are used are validated. Of
    these `last_point` keeps the last of each run, and then `best_of` the best of each size, tokens and experts. Unless
    the table `needs_loss`, losses may be missing. Raises InputError with file, row, column, value and next step.
    """
    table = frames.read_table(source)
    warnings: list[str] = []
    named = {"experts": experts_column, "tokens": tokens_column, "loss": loss_column}
    if not needs_loss and loss_column not in table.columns:
        del named["loss"]
    roles = _roles(table, size_column, named, warnings)
    if table.n_rows == 0:
        raise InputError("has column names but no rows", where=table.source, next_step="add one row a run")
    good = np.zeros(table.n_rows, np.bool_)
    cells: dict[str, Cells] = {
        name: frames.as_numbers(column) if name in roles else (frames.as_values(column), good)
        for name, column in table.columns.items()
    }
    rows = _kept_rows(table, where, cells, warnings)
    _validate(table, cells, rows, roles, needs_loss)
    values = {role: cells[name][0][rows - 1] for name, role in roles.items()}
    values.setdefault("loss", np.full(len(rows), np.nan))
    columns = {name: found[rows - 1] for name, (found, _) in cells.items() if name not in roles}
    runs = RunTable(
        n_params=values["size"], tokens=values["tokens"], experts=values["experts"], loss=values["loss"],
        size_column=next(iter(roles)), loss_column=loss_column, tokens_column=tokens_column, experts_column=experts_column,
        source=table.source, row_numbers=rows, columns=columns, sha256=table.sha256,
    )  # fmt: skip
    warnings += [*_unit_warnings(runs), *_model_warnings(runs)]
    if last_point:
        runs = runs.last_points()
    if best_of:
        runs = runs.best_of()
    return replace(runs, warnings=tuple(dict.fromkeys((*warnings, *runs.warnings, *runs.notes()))))


def write_runs(runs: RunTable | Mapping[str, ArrayLike], path: str | os.PathLike[str]) -> Path:
    """Write runs, or named columns, as CSV, TSV or Parquet (by suffix), whole or not at all; missing is empty."""
    name = os.fspath(path)
    columns = runs.to_columns() if isinstance(runs, RunTable) else {key: np.asarray(v) for key, v in runs.items()}
    shapes = {values.shape for values in columns.values()}
    if len(shapes) != 1 or len(next(iter(shapes))) != 1:
        what = f"columns to write differ in shape: {sorted(shapes)}"
        raise ColumnError(what, where=name, next_step="give 1-D columns of one length")
    suffix, known = Path(name).suffix.lower(), (*frames.DELIMITERS, ".parquet")
    if suffix not in known:
        raise unknown_name("suffix to write", suffix, known, where=name)
    try:
        data = _parquet(columns, name) if suffix == ".parquet" else frames.delimited(columns, frames.DELIMITERS[suffix])
    except (ValueError, TypeError, NotImplementedError) as error:  # Arrow's are all of these
        raise ColumnError(f"a column cannot be written: {error}", where=name) from error
    return write_atomically(name, data)


def _parquet(columns: Mapping[str, NDArray[Any]], where: str) -> bytes:
    frames.require_arrow(where)
    import pyarrow as pa
    import pyarrow.parquet as pq

    def writable(column: NDArray[Any]) -> Any:  # the name of a run may be that of a folder in another encoding
        return [as_text(v) if isinstance(v, str) else v for v in column] if column.dtype.kind in "OU" else column

    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({key: pa.array(writable(v), from_pandas=True) for key, v in columns.items()}), sink)
    return sink.getvalue().to_pybytes()


_ADVICE = {
    "size": "name it with --size-column (size_column=)",
    "experts": "name it with --experts-column (experts_column=), or add a column n_experts, 1 for dense models",
    "tokens": "name it with --tokens-column (tokens_column=), or add the tokens that each run was trained on",
    "loss": "name it with --loss-column (loss_column=)",
}


def _roles(table: frames.Table, size: str | None, named: Mapping[str, str], warnings: list[str]) -> dict[str, str]:
    """What each column that is used states, the size first; raises ColumnError where one is missing, or states two things."""
    if size is not None and size not in table.columns:
        raise unknown_name("size column", size, table.columns, where=table.source)
    if size is None:
        size = next((name for name in SIZE_COLUMNS if name in table.columns), None)
        if size is None:
            raise _no_column(table, SIZE_COLUMNS[0], f"no size column: none of {', '.join(SIZE_COLUMNS)}", "size")
        if size != SIZE_COLUMNS[0]:
            warnings.append(f"no column {SIZE_COLUMNS[0]!r}: the size of a model is taken from {size!r}")
    roles = {size: "size"}
    for role, name in named.items():
        if name not in table.columns:
            raise _no_column(table, name, f"no column {name!r}", role)
        if name in roles:
            what = f"{roles[name]} and {role} must be two columns, and both are {name!r}"
            raise ColumnError(what, where=table.source)
        roles[name] = role
    return roles


def _no_column(table: frames.Table, name: str, what: str, role: str) -> ColumnError:
    names, path, advice = list(table.columns), Path(table.source), _ADVICE[role]
    if table.source != frames.FRAME:
        command = f"moescale import csv {shlex.quote(str(path))} -o {shlex.quote(f'{path.stem}-runs.csv')}"
        advice = f"`{command}` makes a table of them, or {advice}"
    listed = ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
    nearest = nearest_names(name, names)
    return ColumnError(what, where=table.source, nearest=nearest, next_step=f"{advice}; columns: {listed}")


def _kept_rows(table: frames.Table, where: str | None, cells: Mapping[str, Cells], warnings: list[str]) -> Rows:
    """The data rows that did not diverge and for which `where` holds."""
    rows = np.arange(1, table.n_rows + 1, dtype=np.int64)
    kept = np.ones(table.n_rows, dtype=np.bool_)
    for name in (column for column in DIVERGED_COLUMNS if column in table.columns):
        flags, wrong = frames.as_flags(table.columns[name])
        if wrong.any():
            advice = "write true or false (or 1 or 0)"
            raise _fault(table, name, int(rows[wrong][0]), "is neither true nor false", advice)
        warnings += _left_out(rows[flags], f"column {name!r} is true")
        kept &= ~flags
    if not kept.any():
        raise InputError("every run is marked as diverged", where=table.source, next_step="give runs that finished")
    if where is None:
        return rows[kept]
    holds, decided = evaluate(where, {name: values for name, (values, _) in cells.items()})
    undecided = kept & ~decided
    # A missing value may drop a row; a text where a number belongs is a mistake in the table, not a reason to skip it.
    for name in column_names(where):
        if (broken := undecided & cells[name][1]).any():
            raise _bad_cell(table, name, rows[broken], "is not a number, and the filter needs it")
    warnings += _left_out(rows[undecided], UNDECIDED)
    _require_rows(kept & holds, int(kept.sum()), where, table.source)
    return rows[kept & holds]


def _left_out(rows: Rows, why: str) -> list[str]:
    return [f"{_count(len(rows), 'run')} left out: {why} ({rows_text(rows)})"] if len(rows) else []


def _require_rows(kept: BoolArray, n_before: int, expression: str, source: str) -> None:
    if not kept.any():
        what = f"the filter {expression!r} keeps none of {n_before:,} runs"
        raise InputError(what, where=source, next_step="loosen the filter")


def _validate(
    table: frames.Table, cells: Mapping[str, Cells], rows: Rows, roles: Mapping[str, str], needs_loss: bool
) -> None:
    """Raise for the first row that a fit cannot use, for the first fault in it; `roles` says what each column is."""
    faults: list[tuple[int, str, str, Rows]] = []
    for name, role in roles.items():
        array, is_text, experts = cells[name][0][rows - 1], cells[name][1][rows - 1], role == "experts"
        checks = (
            ("is not a number", is_text),
            ("is missing", np.isnan(array) & ~is_text & (needs_loss or role != "loss")),
            ("is not finite", np.isinf(array)),
            ("is less than 1; dense models have 1", array < 1) if experts else ("is not positive", array <= 0),
        )
        faults += [(int(np.argmax(mask)), name, what, rows[mask]) for what, mask in checks if mask.any()]
    if faults:
        _, name, what, bad = min(faults, key=lambda fault: fault[0])
        raise _bad_cell(table, name, bad, what, "1 <=" if roles[name] == "experts" else "0 <")


def _bad_cell(table: frames.Table, name: str, rows: Rows, what: str, least: str = "0 <") -> ColumnError:
    """The error for the first of the data rows `rows`, which have one fault; what it advises leaves all of them out."""
    more = f" (and {len(rows) - 1:,} more such rows: {rows_text(rows[1:])})" if len(rows) > 1 else ""
    advice = f"correct it, or leave such rows out by --where '{least} {quoted_name(name)} < 1e300' (where=)"
    if what.startswith("is not a number"):  # and no filter on this column can be decided
        advice = "write plain numbers such as 7e9 or 2.31 (`moescale import csv` reads decimal commas)"
        advice += ", or leave such rows out by a filter on another column"
    return _fault(table, name, int(rows[0]), f"{what}{more}", advice)


def _fault(table: frames.Table, name: str, row: int, what: str, advice: str) -> ColumnError:
    text = frames.written(table.columns[name][row - 1 : row].tolist()[0]).strip()
    cell = repr(text if len(text) <= 60 else f"{text[:57]}...") if text else "an empty cell"
    return ColumnError(f"{cell} {what}", where=f"{table.source}, data row {row}, column {name!r}", next_step=advice)


def rows_text(rows: Rows) -> str:
    """The first of some rows: data rows 1, 2, 3, 4, 5 .."""
    shown = ", ".join(str(row) for row in rows[:5].tolist())
    return f"data row{'s' if len(rows) > 1 else ''} {shown}{' ..' if len(rows) > 5 else ''}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' if number != 1 else ''}"


def _unit_warnings(runs: RunTable) -> list[str]:
    """Warnings of columns of which no value is plausible in the unit that a run table has: the rows stay as they are."""
    plain = "if the unit is millions or billions, write plain numbers (7e9)"
    found = [
        f"column {name!r} reaches {values.max():g} at most: {plain}; otherwise every answer of the law is in that unit"
        for name, values in ((runs.size_column, runs.n_params), (runs.tokens_column, runs.tokens))
        if values.max() < SMALLEST_PLAUSIBLE
    ]
    highest = float(runs.loss.max(where=~np.isnan(runs.loss), initial=-np.inf))
    reaches = f"column {runs.loss_column!r} reaches {highest:g}"
    if 0.0 < highest < LOWEST_PLAUSIBLE_LOSS:
        advice = "if it is bits per byte, multiply by ln 2 and the bytes per token; the law assumes nats per token"
        found.append(f"{reaches} at most: {advice}")
    if highest > HIGHEST_PLAUSIBLE_LOSS:
        found.append(f"{reaches}: if it is perplexity, take its natural logarithm; the law assumes nats per token")
    return found


def _model_warnings(runs: RunTable) -> list[str]:
    """Warnings of columns that would describe models, were it not for some of their cells."""
    found: list[str] = []
    for name, least in model_columns.LEAST.items():
        values = runs.columns.get(name)
        if values is None or values.dtype.kind != "f":  # one of another kind is not the one that is meant
            continue
        wrong = runs.row_numbers[model_columns.unusable(values, name, runs.experts)]
        if wrong.size:
            what = (
                f"{_count(wrong.size, 'cell')} of it {'is' if wrong.size == 1 else 'are'} not a number from {least:g}"
            )
            found.append(f"column {name!r} is not used: {what} ({rows_text(wrong)})")
    return found


def _least_of_each(groups: Groups, values: NDArray[Any]) -> Groups:
    """The row of the smallest value of each group, sorted; the first of several, NaN last."""
    order = np.lexsort((values, groups))
    return np.sort(order[np.unique(groups[order], return_index=True)[1]])


def _grouped(keys: Iterable[Any]) -> Groups:
    """The group of each row, by its key, (n,); a missing number (NaN) is equal to no other."""
    first: dict[Any, int] = {}
    return np.array([first.setdefault(key, row) for row, key in enumerate(keys)], dtype=np.intp)
