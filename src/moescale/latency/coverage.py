"""What a latency table covers, and how well interpolation in it predicts rows that are left out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

import numpy as np

from moescale.errors import InputError
from moescale.latency.measurements import OK, Measurement

AXES = ("batch", "n_params_total", "tokens")  # the axes that latency.table interpolates on, linearly in each


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """The rows of one stage, GPU count and expert count; interpolation answers between these ends and nowhere else."""

    gpu: str
    stage: str
    gpus: int
    n_experts: int
    rows: int
    n_params_total: tuple[float, float]
    tokens: tuple[int, int]
    batch: tuple[int, int]
    smallest_largest_batch: int  # up to here every size and length has rows; beyond, some answers are missing
    spread: float  # median of the rows' spreads


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """Error of linear interpolation along one axis, predicting each inner row from its two neighbours on that axis."""

    stage: str
    axis: str
    rows: int
    median_abs_error: float  # relative to the measured latency
    max_abs_error: float
    bias: float  # mean signed error; above zero where latency is convex
    worst: str  # the row with the largest error, in words


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """A latency table at a glance."""

    rows: int
    engines: tuple[str, ...]
    dates: tuple[str, str]
    coverage: tuple[Coverage, ...]
    held_out: tuple[HeldOut, ...]
    not_ok: tuple[tuple[str, str, int], ...]  # status, reason, rows

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values."""
        return asdict(self)


def overview(rows: Sequence[Measurement], where: str | None = None) -> Overview:
    """Coverage, failures and leave-one-out errors of a table; raises InputError if it has no rows."""
    if not rows:
        raise InputError("the table has no rows", where=where, next_step="measure some with `moescale profile`")
    measured = [row for row in rows if row.status == OK]
    failures = sorted((row.status, row.reason) for row in rows if row.status != OK)
    dates = sorted(row.date for row in rows)
    of_stage = ([row for row in measured if row.stage == stage] for stage in ("prefill", "decode"))
    held_out = [leave_one_out(stage, axis) for stage in of_stage for axis in AXES]
    return Overview(
        rows=len(rows),
        engines=tuple(sorted({f"{r.engine} {r.engine_version}, {r.dtype}, {r.device}" for r in measured})),
        dates=(dates[0], dates[-1]),
        coverage=tuple(_coverage(group) for group in _grouped(measured, _table_key)),
        held_out=tuple(found for found in held_out if found is not None),
        not_ok=tuple((status, reason, len(list(group))) for (status, reason), group in groupby(failures)),
    )


def leave_one_out(rows: Iterable[Measurement], axis: str) -> HeldOut | None:
    """Errors of predicting every inner row of one axis from its neighbours; None where no curve has three points.

    Rows at the end of a curve are not predicted: without them the table would answer NaN there, not a guess. `rows` are
    of one stage and measured.
    """

    def curve_key(row: Measurement) -> tuple[Any, ...]:
        return (*_table_key(row), *(getattr(row, name) for name in AXES if name != axis))

    errors: list[tuple[float, Measurement]] = []
    for curve in _grouped(list(rows), curve_key):
        ordered = sorted(curve, key=lambda row: getattr(row, axis))
        x = np.array([getattr(row, axis) for row in ordered], dtype=np.float64)
        y = np.array([row.latency_s for row in ordered], dtype=np.float64)
        for i in range(1, len(ordered) - 1):
            if x[i - 1] < x[i] < x[i + 1]:
                share = (x[i] - x[i - 1]) / (x[i + 1] - x[i - 1])
                predicted = (1 - share) * y[i - 1] + share * y[i + 1]
                errors.append((float(predicted / y[i] - 1), ordered[i]))
    if not errors:
        return None
    signed = np.array([error for error, _ in errors])
    _, worst = max(errors, key=lambda pair: abs(pair[0]))
    return HeldOut(
        stage=worst.stage,
        axis=axis,
        rows=len(errors),
        median_abs_error=float(np.median(np.abs(signed))),
        max_abs_error=float(np.max(np.abs(signed))),
        bias=float(np.mean(signed)),
        worst=f"{worst.model}, batch {worst.batch}, {worst.tokens} tokens",
    )


def _coverage(rows: Sequence[Measurement]) -> Coverage:
    curves = _grouped(rows, lambda row: (row.n_params_total, row.tokens))
    sizes, tokens, batches = ([getattr(row, name) for row in rows] for name in ("n_params_total", "tokens", "batch"))
    return Coverage(
        **{name: getattr(rows[0], name) for name in ("gpu", "stage", "gpus", "n_experts")},
        rows=len(rows),
        n_params_total=(min(sizes), max(sizes)),
        tokens=(min(tokens), max(tokens)),
        batch=(min(batches), max(batches)),
        smallest_largest_batch=min(max(row.batch for row in curve) for curve in curves),
        spread=float(np.median([row.spread or 0.0 for row in rows])),
    )


def _table_key(row: Measurement) -> tuple[Any, ...]:
    """What latency.table selects by, and never interpolates on."""
    return (row.gpu, row.stage != "prefill", row.gpus, row.n_experts)


def _grouped(rows: Sequence[Measurement], key: Callable[[Measurement], Any]) -> list[list[Measurement]]:
    return [list(group) for _, group in groupby(sorted(rows, key=key), key=key)]
