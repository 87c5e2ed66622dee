"""What one tracked run gives for a column, by a rule."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moescale.io.filters import column_names, evaluate_numbers
from moescale.runs.importers.model_shape import shape_columns, tokens_of_flos
from moescale.runs.importers.rules import Rule, mean_length
from moescale.runs.importers.tracked_run import STEP, STEPS, Scalar, Series, TrackedRun, bare


def point(curve: Series, at: str) -> tuple[float, float]:
    """The step and the value that `at` asks of a curve (at least one point)."""
    if at == "min" and not np.isnan(curve.values).all():
        index = int(np.nanargmin(curve.values))
        return float(curve.steps[index]), float(curve.values[index])
    value = float(np.mean(curve.values[-mean_length(at) :])) if mean_length(at) else float(curve.values[-1])
    return float(curve.steps[-1]), value


def _named(run: TrackedRun, rule: Rule, step: float) -> Scalar | None:
    name = rule.name or ""
    if name in run.params and rule.of != "metric":
        return run.params[name]
    if name in run.metrics and rule.of != "param":
        return run.metrics[name].until(step) if rule.at == "last" else point(run.metrics[name], rule.at)[1]
    return None


def values(run: TrackedRun, step: float) -> dict[str, Scalar]:
    """Everything that an expression may name: params, metrics at `step`, and the step itself."""
    logged = {name: curve.until(step) for name, curve in run.metrics.items()}
    found: dict[str, Scalar] = {name: value for name, value in logged.items() if value is not None}
    return found | dict(run.params) | ({} if math.isnan(step) else {STEP: step})


def last_step(run: TrackedRun) -> float:
    steps = [float(np.nanmax(c.steps)) for c in run.metrics.values() if not np.isnan(c.steps).all()]
    if steps:
        return max(steps)
    stated = {bare(name): value for name, value in run.params.items()}
    return next((step for name in STEPS if isinstance(step := stated.get(name), float)), math.nan)


def evaluated(run: TrackedRun, rule: Rule, step: float, column: str) -> Scalar | None:
    """What the rule gives for a column of the run; None where it gives nothing."""
    if rule.constant is not None:
        return rule.constant
    if rule.derived == "shape":
        return shape_columns(run).get(column)
    if rule.name is not None:
        return _named(run, rule, step)
    if rule.derived == "dense":
        names = (*run.params, *run.metrics)
        return None if any("expert" in n.lower() or "moe" in n.lower() for n in names) else 1.0
    if rule.derived == "flos":
        return tokens_of_flos(run)
    if rule.expression is None:
        return None
    known = values(run, step)
    columns: dict[str, NDArray[Any]] = {}
    for name in column_names(rule.expression):
        value = known.get(name)
        if not isinstance(value, float):
            return None
        columns[name] = np.array([value])
    values_of, decided = evaluate_numbers(rule.expression, columns or {STEP: np.zeros(1)})
    return float(values_of[0]) if decided[0] else None
