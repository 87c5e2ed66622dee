"""How tracked runs become rows of a run table: by a mapping file, and by guesses that say what they guessed."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from moescale import catalogue
from moescale.accounting import count_parameters
from moescale.architecture import Architecture, from_config
from moescale.errors import InputError, nearest_names, unknown_name
from moescale.expressions import column_names, evaluate_decided, evaluate_numbers
from moescale.files import read_text
from moescale.importers.tracked_run import FINISHED, Scalar, Series, TrackedRun, number
from moescale.runs import DIVERGED_COLUMNS, EXPERTS_COLUMN, SIZE_COLUMNS, TOKENS_COLUMN

LOSS_COLUMN = "loss"
SOURCE_COLUMN = "imported_from"
STEP = "step"
"""In an expression: the step at which the loss was taken."""

AT = "last, min, or mean of last N"
_MEAN = re.compile(r"mean of last (\d{1,9})")
_REQUIRED = (EXPERTS_COLUMN, TOKENS_COLUMN, LOSS_COLUMN)
_FIRST = ("name", *SIZE_COLUMNS, EXPERTS_COLUMN, "top_k", TOKENS_COLUMN, LOSS_COLUMN)
_RESERVED = (*_REQUIRED, *SIZE_COLUMNS, SOURCE_COLUMN)
_MOST_STATED = 8  # names that one message lists


_MISSING = {
    EXPERTS_COLUMN: "no name states them, though some speak of experts",
    TOKENS_COLUMN: "neither a count of tokens nor tokens a step is there "
    '(mapping: tokens = "step * 524288", with your own tokens a step)',
}


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
            return _DERIVED[self.derived]
        if self.name is not None:
            return f"{self.name!r}" + (f" ({self.at})" if self.at != "last" else "")
        return f"'{self.expression}'" if self.expression is not None else f"{self.constant!r}"


_DERIVED = {
    "shape": "the model's configuration (without embeddings)",
    "dense": "1, no name speaks of experts",
    "flos": "total_flos / (6 times the parameters that Trainer counts)",
}


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
        return {
            "n_found": self.n_found,
            "n_runs": self.n_runs,
            "columns": list(self.columns),
            "rules": list(self.rules),
            "left_out": [{"run": run, "reason": reason} for run, reason in self.left_out],
            "warnings": list(self.warnings),
        }


def read_mapping(path: str | Path) -> dict[str, Rule]:
    """The rules of a mapping file, by column.

    A value is a name or an expression over names, a number, or a table: {metric = NAME, at = AT}, {param = NAME} or
    {value = CONSTANT}. Raises InputError for anything else.
    """
    where = str(path)
    try:
        table = tomllib.loads(read_text(path))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"is not TOML: {error}", where=where) from error
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
    if not isinstance(at, str) or (at not in ("last", "min") and not _mean_length(at)):
        raise InputError(f"at must be {AT}", where=where, next_step='write, for example, at = "mean of last 100"')
    if kind == "param" and "at" in table:
        raise InputError("at goes with metric", where=where, next_step="leave it out")
    return Rule(name=value, of=kind, at=at)


def _mean_length(at: str) -> int:
    matched = _MEAN.fullmatch(at)
    return int(matched[1]) if matched else 0


# Values of one run.


def _point(curve: Series, at: str) -> tuple[float, float]:
    """The step and the value that `at` asks of a curve (at least one point)."""
    if at == "min" and not np.isnan(curve.values).all():
        index = int(np.nanargmin(curve.values))
        return float(curve.steps[index]), float(curve.values[index])
    value = float(np.mean(curve.values[-_mean_length(at) :])) if _mean_length(at) else float(curve.values[-1])
    return float(curve.steps[-1]), value


def _named(run: TrackedRun, rule: Rule, step: float) -> Scalar | None:
    name = rule.name or ""
    if name in run.params and rule.of != "metric":
        return run.params[name]
    if name in run.metrics and rule.of != "param":
        return run.metrics[name].until(step) if rule.at == "last" else _point(run.metrics[name], rule.at)[1]
    return None


def _values(run: TrackedRun, step: float) -> dict[str, Scalar]:
    """Everything that an expression may name: params, metrics at `step`, and the step itself."""
    found: dict[str, Scalar] = {}
    for name, curve in run.metrics.items():
        value = curve.until(step)
        if value is not None:
            found[name] = value
    found.update(run.params)
    if not math.isnan(step):
        found[STEP] = step
    return found


def _last_step(run: TrackedRun) -> float:
    steps = [float(np.nanmax(c.steps)) for c in run.metrics.values() if not np.isnan(c.steps).all()]
    if steps:
        return max(steps)
    stated = run.params.get("global_step")
    return stated if isinstance(stated, float) else math.nan


def _evaluated(run: TrackedRun, rule: Rule, step: float) -> Scalar | None:
    """What the rule gives for the run; None where it gives nothing."""
    if rule.constant is not None:
        return rule.constant
    if rule.name is not None:
        return _named(run, rule, step)
    if rule.derived == "dense":
        names = (*run.params, *run.metrics)
        return None if any("expert" in n.lower() or "moe" in n.lower() for n in names) else 1.0
    if rule.derived == "flos":
        return _tokens_of_flos(run)
    if rule.expression is None:
        return None
    values = _values(run, step)
    columns: dict[str, NDArray[Any]] = {}
    for name in column_names(rule.expression):
        value = values.get(name)
        if not isinstance(value, float):
            return None
        columns[name] = np.array([value])
    values_of, known = evaluate_numbers(rule.expression, columns or {STEP: np.zeros(1)})
    return float(values_of[0]) if known[0] else None


# The shape of a model, where its configuration was logged.


def _architecture(run: TrackedRun) -> Architecture | None:
    """The shape that a configuration beside the run, or among its params, states; None where there is none readable."""
    candidates: list[Mapping[str, Any]] = [run.config] if run.config is not None else []
    for name in run.params:
        if name == "model_type" or name.endswith((".model_type", "/model_type")):
            prefix = name.removesuffix("model_type")
            candidates.append({k.removeprefix(prefix): v for k, v in run.params.items() if k.startswith(prefix)})
    for config in candidates:
        try:
            return from_config(config)
        except InputError:
            continue
    return None


def _shape_columns(a: Architecture) -> dict[str, float]:
    """Sizes without embeddings, experts and top-k; the dense size is that of one FFN in every layer."""
    moe = float(np.max(a.n_moe_layers)) > 0
    counted = count_parameters(a)
    dense = a
    if moe:
        width = a.d_ffn if float(np.max(a.d_ffn)) > 0 else a.top_k * a.d_expert + a.d_shared_expert
        dense = replace(
            a, n_moe_layers=0.0, n_experts=1.0, top_k=1.0, d_expert=0.0, d_shared_expert=0.0, d_ffn=width,
            shared_expert_gate=False, router_bias=False, expert_bias=False,
        )  # fmt: skip
    return {
        "n_params_dense": float(count_parameters(dense).non_embedding_total),
        "n_params_active": float(counted.non_embedding_active),
        "n_params_total": float(counted.non_embedding_total),
        EXPERTS_COLUMN: float(a.n_experts) if moe else 1.0,
        "top_k": float(a.top_k) if moe else 1.0,
    }


def _tokens_of_flos(run: TrackedRun) -> float | None:
    """Tokens by Trainer's own count of FLOPs, 6 tokens (parameters - input embedding): modeling_utils' floating_point_ops."""
    flos = run.params.get("total_flos")
    if flos is None and "train/total_flos" in run.metrics:
        flos = run.metrics["train/total_flos"].until(math.nan)
    a = _architecture(run)
    if a is None or not isinstance(flos, float) or not flos > 0:
        return None
    counted = float(count_parameters(a).total) - float(a.vocab_size) * float(a.d_model)
    return float(round(flos / (6.0 * counted)))


# Guesses.


@cache
def _catalogue() -> Mapping[str, Any]:
    return MappingProxyType(catalogue.read("tracked_names.toml"))


def _plain(name: str) -> str:
    return re.sub(r"[/.\-\s:]+", "_", name.lower())


def _usable(run: TrackedRun, name: str) -> bool:
    value = run.params.get(name)
    if value is None:
        return name in run.metrics and len(run.metrics[name].values) > 0
    return isinstance(value, float) and value > 0


def _guess_name(runs: Sequence[TrackedRun], column: str) -> Rule | None:
    """The name of the catalogue that most runs have, of the first tier that any has."""
    plain = {name: _plain(name) for run in runs for name in (*run.params, *run.metrics)}
    for tier in _catalogue()[column]:
        patterns: list[str] = [*tier.get("names", ()), *tier.get("endings", ())]
        endings = tuple(f"_{ending}" for ending in tier.get("endings", ()))
        best: tuple[int, int, str] | None = None
        for name, text in plain.items():
            ended = next((e[1:] for e in endings if text.endswith(e)), None)
            pattern = text if text in patterns else ended
            if pattern is None:
                continue
            count = sum(_usable(run, name) for run in runs)
            rank = (-count, patterns.index(pattern), name)
            if count and (best is None or rank < best):
                best = rank
        if best is not None:
            return Rule(name=best[2], at=tier.get("at", "last"))
    return None


def _is_own(run: TrackedRun) -> bool:
    """Whether the params are a row of a run table, as moescale's own trainer leaves it."""
    return {*_REQUIRED, "n_params_dense"} <= set(run.params)


def _guess(runs: Sequence[TrackedRun], column: str) -> list[Rule]:
    """The rules to try in turn for a column that the mapping leaves open."""
    named = _guess_name(runs, column) if column in _catalogue() else None
    if column == LOSS_COLUMN:
        if any(map(_is_own, runs)):
            return [Rule(name=LOSS_COLUMN, of="param")]
        if named is not None and any(named.name in run.metrics for run in runs):
            named = replace(named, of="metric")
        return [named] if named else []  # one for all: a training loss is not comparable with one of validation
    shaped = [Rule(derived="shape")] if column in (*SIZE_COLUMNS, EXPERTS_COLUMN, "top_k") else []
    own = [Rule(name=column, of="param")] if any(column in run.params for run in runs) else []
    rules = [*own, *shaped, *([named] if named and named.name != column else [])]
    if column == TOKENS_COLUMN:
        rules = [named] if named else []
        parts = [_guess_name(runs, part) for part in ("batch_tokens", "batch_sequences", "sequence_tokens")]
        if parts[0] is not None:
            rules.append(Rule(expression=f"{STEP} * {_quoted(parts[0])}"))
        elif parts[1] is not None and parts[2] is not None:
            rules.append(Rule(expression=f"{STEP} * {_quoted(parts[1])} * {_quoted(parts[2])}"))
        rules.append(Rule(derived="flos"))
    if column == EXPERTS_COLUMN:
        rules.append(Rule(derived="dense"))
    return rules


def _quoted(rule: Rule) -> str:
    """The name of a rule as an expression has it."""
    name = rule.name or ""
    return name if name.isidentifier() else f"`{name}`"


# Rows.


def rows_of(
    runs: Sequence[TrackedRun],
    mapping: Mapping[str, Rule] | None = None,
    *,
    unfinished: bool = False,
    where: str | None = None,
    source: str = "tracker",
    warnings: Iterable[str] = (),
) -> Imported:
    """The rows that `moescale.runs.read_runs` takes, one a run, with every other scalar as a further column.

    What the mapping leaves open is guessed. Runs that did not end (unless `unfinished`), and runs that lack a size,
    n_experts, tokens or a loss, are left out with the reason; a loss that ended as NaN or infinity is kept, marked
    as diverged. `where` filters the rows. Raises InputError where no run is left, and for names that no run has.
    """
    given = _resolved(mapping or {}, runs, source)
    rules = {column: [rule] for column, rule in given.items()}
    for column in (LOSS_COLUMN, *SIZE_COLUMNS, EXPERTS_COLUMN, "top_k", TOKENS_COLUMN):
        if column not in rules and not (column in SIZE_COLUMNS and any(size in given for size in SIZE_COLUMNS)):
            rules[column] = _guess(runs, column)
    used: dict[tuple[str, str], int] = {}
    rows: list[dict[str, Scalar]] = []
    left_out: list[tuple[str, str]] = []
    for run in runs:
        made = _row(run, rules, unfinished)
        if isinstance(made, str):
            left_out.append((f"{run.name} ({run.where})", made))
            continue
        row, taken = made
        for column, rule in taken.items():
            key = (column, str(rule))
            used[key] = used.get(key, 0) + 1
        rows.append(row)
    notes = list(warnings)
    rows = _one_size(rows, left_out, notes)
    if not rows:
        reasons = "; ".join(f"{run}: {reason}" for run, reason in left_out[:3])
        more = f"; and {len(left_out) - 3} more" if len(left_out) > 3 else ""
        raise InputError(
            f"none of {len(runs)} runs makes a row: {reasons}{more}" if runs else "there is no run in it",
            where=source,
            next_step="name what is missing in a mapping file (--mapping MAP.toml)",
        )
    columns = _columns(rows)
    if where is not None:
        holds, decided = evaluate_decided(where, columns)
        if not holds.any():
            raise InputError(f"the filter {where!r} keeps none of {len(rows)} runs", next_step="loosen the filter")
        names = [f"{row.get('name')} ({row[SOURCE_COLUMN]})" for row in rows]
        left_out += [
            (name, "the filter --where leaves it out") for name, keep in zip(names, holds, strict=True) if not keep
        ]
        if (~decided).any():
            notes.append(f"{int((~decided).sum())} of the runs lack a value that the filter needs")
        columns = _columns([row for row, keep in zip(rows, holds, strict=True) if keep])
    return Imported(MappingProxyType(columns), len(runs), _statements(used, given), tuple(left_out), tuple(notes))


def _statements(used: Mapping[tuple[str, str], int], given: Mapping[str, Rule]) -> tuple[str, ...]:
    """What came from where, the columns of one origin in one line."""
    lines: dict[str, list[str]] = {}
    for (column, rule), count in sorted(used.items(), key=lambda item: _place(item[0][0])):
        stated = column in given or rule in (repr(column), _DERIVED["shape"])
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
        made = rule
        if rule.expression is not None:
            if rule.expression.strip("`") in known and rule.expression.strip("`") != STEP:
                made = Rule(name=rule.expression.strip("`"))
            else:
                names = column_names(rule.expression)
        within = {"param": params, "metric": metrics}.get(rule.of or "", known)
        for name in names:
            if name not in within:
                raise InputError(
                    f"no run has a {rule.of or 'param or metric'} {name!r}",
                    where=f"mapping of {column}",
                    nearest=nearest_names(name, within),
                    next_step=f"{source} has: {_listed(within)}; quote names with other signs as `a/b`",
                )
        found[column] = made
    return found


def _place(column: str) -> int:
    return _FIRST.index(column) if column in _FIRST else len(_FIRST)


def _listed(names: Iterable[str]) -> str:
    all_names = list(names)
    more = f" and {len(all_names) - _MOST_STATED} more" if len(all_names) > _MOST_STATED else ""
    return (", ".join(all_names[:_MOST_STATED]) or "nothing") + more


def _row(
    run: TrackedRun, rules: Mapping[str, Sequence[Rule]], unfinished: bool
) -> tuple[dict[str, Scalar], dict[str, Rule]] | str:
    """The row of a run and the rule that each column came from, or why there is none."""
    if run.state not in ("", FINISHED) and not unfinished:
        return f"not finished: {run.state} (--unfinished keeps such runs)"
    loss, step = _loss(run, rules[LOSS_COLUMN])
    diverged = run.params.get("diverged") is True
    if loss is None and diverged:
        loss = math.nan
    if loss is None:
        wanted = rules[LOSS_COLUMN][0] if rules[LOSS_COLUMN] else "a validation or training loss"
        return f"no loss: {wanted} is not there; metrics: {_listed(run.metrics)}"
    row: dict[str, Scalar] = {}
    taken: dict[str, Rule] = dict(zip((LOSS_COLUMN,), rules[LOSS_COLUMN], strict=False))
    shape: dict[str, float] | None = None
    for column, choices in rules.items():
        for rule in choices if column != LOSS_COLUMN else ():
            if rule.derived == "shape":
                a = _architecture(run) if shape is None else None
                shape = shape if shape is not None else (_shape_columns(a) if a is not None else {})
                value: Scalar | None = shape.get(column)
            else:
                value = _evaluated(run, rule, step)
            if value is None or (column in (*_REQUIRED, *SIZE_COLUMNS) and not _positive(value)):
                continue
            row[column], taken[column] = value, rule
            break
    for column, reason in _MISSING.items():
        if column not in row:
            choices = rules[column]
            mapped = len(choices) == 1 and choices[0].derived is None
            return f"no {column}: {choices[0]} gives no positive number" if mapped else f"no {column}: {reason}"
    experts = row[EXPERTS_COLUMN]
    if not isinstance(experts, float) or not experts.is_integer():
        return f"n_experts is {experts!r}, not a whole number of 1 or more"
    if not any(size in row for size in SIZE_COLUMNS):
        return f"no size: neither parameters nor a configuration is there; params: {_listed(run.params)}"
    row[LOSS_COLUMN] = loss
    if not _positive(loss):
        if math.isfinite(loss) and not diverged:
            return f"the loss is {loss:g}; a cross-entropy loss is positive"
        row["diverged"] = True
    for name, value in _values(run, math.nan).items():
        if name == STEP or row.get(name) == value:
            continue
        # What a reader would take for its own, and is not, keeps its value under another name.
        taken_name = name in row or name in _RESERVED or (name in DIVERGED_COLUMNS and not isinstance(value, bool))
        row[f"logged_{name}" if taken_name else name] = value
    if not isinstance(row.get("name"), str):
        row["name"] = run.name
    row[SOURCE_COLUMN] = run.where
    return row, taken


def _loss(run: TrackedRun, rules: Sequence[Rule]) -> tuple[float | None, float]:
    """The loss and the step it belongs to (the last step where it has none)."""
    step = _last_step(run)
    if not rules:
        return None, step
    rule = rules[0]
    curve = run.metrics.get(rule.name or "") if rule.of != "param" else None
    if curve is not None and len(curve.values) and not (rule.of is None and rule.name in run.params):
        at, value = _point(curve, rule.at)
        return value, step if math.isnan(at) else at
    value = _evaluated(run, rule, step)
    return (float(value) if isinstance(value, float) else None), step


def _positive(value: Scalar) -> bool:
    return isinstance(value, float) and 0 < value < math.inf


def _one_size(
    rows: list[dict[str, Scalar]], left_out: list[tuple[str, str]], notes: list[str]
) -> list[dict[str, Scalar]]:
    """The rows that have the size which most of them have, without the sizes that only some of those have."""
    if not rows:
        return rows

    def sizes(row: Mapping[str, Scalar]) -> set[str]:
        stated = {size for size in SIZE_COLUMNS if size in row}
        return set(SIZE_COLUMNS) if row[EXPERTS_COLUMN] == 1.0 else stated  # of a dense model they are one

    chosen = max(SIZE_COLUMNS, key=lambda size: sum(size in sizes(row) for row in rows))
    kept = [row for row in rows if chosen in sizes(row)]
    left_out += [
        (f"{row['name']} ({row[SOURCE_COLUMN]})", f"no {chosen}, the size that most runs have")
        for row in rows
        if chosen not in sizes(row)
    ]
    for size in SIZE_COLUMNS:
        stated = sum(size in row for row in kept)
        everywhere = all(size in sizes(row) for row in kept)
        if not everywhere and stated:
            notes.append(f"column {size} is left out: only {stated} of {len(kept)} runs have it")
        for row in kept:
            if not everywhere:
                row.pop(size, None)
            elif size not in row:
                row[size] = next(row[other] for other in SIZE_COLUMNS if other in row)
    return kept


def _columns(rows: Sequence[Mapping[str, Scalar]]) -> dict[str, NDArray[Any]]:
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
