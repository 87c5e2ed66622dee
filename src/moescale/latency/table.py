"""Measured iteration latencies, interpolated linearly on batch, model size and length (the paper's appendix B)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from moescale.errors import InputError, unknown_name
from moescale.latency import LatencySource, Pass, common_shape
from moescale.latency.measurements import MEND, OK, STAGES, number_in, read_cells
from moescale.models.architecture import Architecture
from moescale.models.parameters import count_parameters
from moescale.typing import FloatArray

COLUMNS = ("gpu", "gpus", "n_params_total", "n_experts", "stage", "batch", "tokens", "latency_s")
# Columns that `moescale profile` writes as well, and that matter here where they are present.
WITHOUT_EMBEDDINGS = "n_params_non_embedding"
ONE_KIND = ("engine", "dtype")  # latencies of several are not to be mixed
OPTIONAL = (WITHOUT_EMBEDDINGS, *ONE_KIND, "status")
Kind = tuple[bool, str, int, int]  # whether sizes are without embeddings, stage, gpus, n_experts
MATCH = 1e-9  # relative; a length or batch this close to the end of an axis counts as measured


@dataclass(frozen=True, slots=True, eq=False)
class _Axis:
    """One measured axis: ascending positions, and at each either a further axis or, on the last one, a latency."""

    at: FloatArray
    below: tuple[_Axis, ...]  # empty on the last axis
    latency_s: FloatArray  # empty on the others


@dataclass(frozen=True, slots=True, eq=False)
class LatencyTable(LatencySource):
    """Measured latencies of one kind of GPU.

    The model axis is the total number of parameters (all experts; with the embeddings, or, for a model with
    vocab_size = 0 such as a law's N, without them where the table says how many those are). GPU count and number of
    experts select rows and are never interpolated; a dense model has one expert. Outside the measured range of length,
    size or batch, for passes of both kinds, for experts held whole and groups of attention, the answer is NaN.
    """

    name: str  # `table` with the file it came from
    gpu: str
    axes: Mapping[Kind, _Axis]  # tokens, then parameters, then batch

    def pass_s(self, model: Architecture, a: Pass) -> FloatArray:
        """Seconds of a pass that decodes, or processes prompts; NaN where not measured."""
        if a.batch is None:
            stage, batch, tokens = "prefill", a.prompts, a.prompt_tokens
        else:
            stage, batch, tokens = "decode", a.batch, a.context_tokens
        if batch is None or (a.batch is not None and a.prompts is not None):
            return np.asarray(np.nan)
        shape = common_shape(model, a.gpus, batch, tokens, a.expert_parallel)
        experts = np.where(np.asarray(model.n_moe_layers) > 0, model.n_experts, 1.0)
        size = count_parameters(model).total
        bare, counts, experts, *where = (
            np.broadcast_to(np.asarray(values, dtype=np.float64), shape).ravel()
            for values in (np.asarray(model.vocab_size) == 0, a.gpus, experts, tokens, size, batch)
        )
        latency_s = np.full(counts.size, np.nan)
        for (of_bare, of_stage, of_gpus, of_experts), axis in self.axes.items():
            rows = (bare == of_bare) & (counts == of_gpus) & (experts == of_experts)
            if of_stage == stage and rows.any():
                latency_s[rows] = _interpolate(axis, tuple(values[rows] for values in where))
        # Experts were measured split over all GPUs, none held whole, attention over all of them, and prompts whole.
        plain = (np.asarray(a.prefix_tokens) == 0.0) & (np.asarray(a.query_tokens) == 1.0)
        plain = plain & (np.asarray(a.expert_parallel) == 1.0) & (np.asarray(a.attention_dp) == 1.0)
        return np.where(plain, latency_s.reshape(shape), np.nan)


def read_latency_table(path: str | Path, gpu: str | None = None) -> LatencyTable:
    """The measured latencies in a table (CSV, TSV, Parquet or JSON lines), of its only GPU or of `gpu`.

    Columns: gpu, gpus, n_params_total, n_experts (1: dense), stage (prefill or decode), batch, tokens (prompt length,
    or the context at decode), latency_s; where present also status (rows other than ok are skipped),
    n_params_non_embedding, engine and dtype (one of each in a table); others are ignored. Repeated measurements become
    their median. Raises InputError that names file, row, column and value.
    """
    where = str(path)
    cells = read_cells(path, COLUMNS, f"a latency table has the columns {', '.join(COLUMNS)}")
    n_rows = len(cells["gpu"])
    cells = dict.fromkeys(OPTIONAL, [""] * n_rows) | cells
    rows = [i for i in range(n_rows) if cells["status"][i] in ("", OK)]
    if not rows:
        what = "no row of the table has status ok" if n_rows else "the table has no rows"
        raise InputError(what, where=where, next_step="measure some with `moescale profile`")

    def place(i: int, column: str) -> str:
        return f"{where}, data row {i + 1}, column {column}"

    def number(i: int, column: str, *, whole: bool = False) -> float:
        return number_in(cells[column][i], place(i, column), whole=whole, positive=True)

    for i in rows:
        if not cells["gpu"][i]:
            raise InputError("is empty", where=place(i, "gpu"), next_step=MEND)
        if (stage := cells["stage"][i]) not in STAGES:
            raise InputError(f"{stage!r} must be {' or '.join(STAGES)}", where=place(i, "stage"), next_step=MEND)
    names = sorted({cells["gpu"][i] for i in rows})
    if gpu is None and len(names) > 1:
        raise InputError(f"the table holds several GPUs: {', '.join(names)}", where=where, next_step="choose one")
    chosen = names[0] if gpu is None else gpu
    if chosen not in names:
        raise unknown_name("GPU", chosen, names, where=where)
    for column in ONE_KIND:
        kinds = sorted({cells[column][i] for i in rows if cells["gpu"][i] == chosen})
        if len(kinds) > 1:
            what = f"column {column!r} holds {', '.join(map(repr, kinds))}"
            raise InputError(what, where=where, next_step="keep one table for each")
    measured: dict[Kind, list[tuple[float, ...]]] = {}  # tokens, size, batch, seconds
    for i in rows:
        kind = (cells["stage"][i], int(number(i, "gpus", whole=True)), int(number(i, "n_experts", whole=True)))
        size, batch, tokens, seconds = (number(i, n) for n in ("n_params_total", "batch", "tokens", "latency_s"))
        if cells["gpu"][i] == chosen:
            bare = number(i, WITHOUT_EMBEDDINGS) if cells[WITHOUT_EMBEDDINGS][i] else size
            for is_bare, params in ((False, size), (True, bare)):
                measured.setdefault((is_bare, *kind), []).append((tokens, params, batch, seconds))
    axes = {kind: _axis(np.asarray(found)) for kind, found in measured.items()}
    return LatencyTable(name=f"table {Path(path).name}", gpu=chosen, axes=axes)


def _axis(rows: FloatArray) -> _Axis:
    """The axis of the first column of rows, with the axes of the others below; the last column is the latency."""
    rows = rows[np.argsort(rows[:, 0])]
    at, starts = np.unique(rows[:, 0], return_index=True)
    below = np.split(rows[:, 1:], starts[1:])
    if rows.shape[1] == 2:
        return _Axis(at, (), np.asarray([float(np.median(latencies)) for latencies in below]))
    return _Axis(at, tuple(_axis(part) for part in below), np.empty(0))


def _interpolate(axis: _Axis, where: tuple[FloatArray, ...]) -> FloatArray:
    """Linear interpolation at points `where` (one array an axis, outermost first); NaN outside what was measured."""
    low, high = axis.at[0], axis.at[-1]
    x = where[0]
    inside = (x >= low * (1 - MATCH)) & (x <= high * (1 + MATCH))
    x = np.clip(x, low, high)
    if not axis.below:
        return np.where(inside, np.interp(x, axis.at, axis.latency_s), np.nan)
    latency_s = np.where(inside, 0.0, np.nan)
    for position, below in enumerate(axis.below):
        share = np.interp(x, axis.at, np.arange(axis.at.size) == position)
        # A point with no share in this curve must not meet its NaN.
        points = inside & (share > 0)
        if points.any():
            latency_s[points] += share[points] * _interpolate(below, tuple(values[points] for values in where[1:]))
    return latency_s
