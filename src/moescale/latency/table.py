"""Measured iteration latencies, interpolated linearly on batch, model size and length (the paper's appendix B)."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from moescale.errors import InputError, nearest_names, unknown_name
from moescale.io.files import decode_utf8, read_bytes
from moescale.io.frames import read_parquet
from moescale.latency import common_shape
from moescale.latency.measurements import MOST_ROWS, TABLE_LIMIT_BYTES
from moescale.models.accounting import count_parameters
from moescale.models.architecture import Architecture
from moescale.typing import FloatArray, Real

STAGES = ("prefill", "decode")
WHOLE = ("gpus", "n_experts")
POSITIVE = ("n_params_total", "batch", "tokens", "latency_s")
COLUMNS = ("gpu", "gpus", "n_params_total", "n_experts", "stage", "batch", "tokens", "latency_s")
# Columns that `moescale profile` writes as well, and that matter here where they are present.
WITHOUT_EMBEDDINGS = "n_params_non_embedding"
ONE_KIND = ("engine", "dtype")  # latencies of several are not to be mixed
OPTIONAL = (WITHOUT_EMBEDDINGS, *ONE_KIND, "status")
# (stage, gpus, n_experts) -> tokens -> size -> batch -> latencies
_Measured = dict[tuple[str, int, int], dict[float, dict[float, dict[float, list[float]]]]]
MATCH = 1e-9  # relative; a length or batch this close to the end of an axis counts as measured


@dataclass(frozen=True, slots=True, eq=False)
class _Axis:
    """One measured axis: ascending positions, and at each either a further axis or, on the last one, a latency."""

    at: FloatArray
    below: tuple[_Axis, ...]  # empty on the last axis
    latency_s: FloatArray  # empty on the others


@dataclass(frozen=True, slots=True, eq=False)
class LatencyTable:
    """Measured latencies of one kind of GPU.

    The model axis is the total number of parameters (all experts; with the embeddings, or, for a model with
    vocab_size = 0 such as a law's N, without them where the table says how many those are). GPU count and number of experts select rows and are never interpolated;
    a dense model has one expert. Outside the measured range of length, size or batch the answer is NaN.
    """

    source: str
    gpu: str
    axes: Mapping[tuple[str, int, int], _Axis]  # (stage, gpus, n_experts) -> tokens -> n_params_total -> batch
    axes_without_embeddings: Mapping[tuple[str, int, int], _Axis]  # the same over parameters without embeddings

    @property
    def name(self) -> str:
        """`table` with the file it came from."""
        return f"table {self.source}"

    def prefill_s(
        self, model: Architecture, gpus: Real, batch: Real, prompt_tokens: Real, *, expert_parallel: Real = 1.0
    ) -> FloatArray:
        """Seconds to process `batch` prompts of `prompt_tokens` tokens each; NaN where not measured."""
        return self._look_up("prefill", model, gpus, batch, prompt_tokens, expert_parallel)

    def decode_s(
        self, model: Architecture, gpus: Real, batch: Real, context_tokens: Real, *, expert_parallel: Real = 1.0
    ) -> FloatArray:
        """Seconds for one token of each of `batch` requests with `context_tokens` tokens; NaN where not measured."""
        return self._look_up("decode", model, gpus, batch, context_tokens, expert_parallel)

    def mixed_s(
        self,
        model: Architecture,
        gpus: Real,
        batch: Real,
        context_tokens: Real,
        prompts: Real,
        prompt_tokens: Real,
        *,
        expert_parallel: Real = 1.0,
    ) -> FloatArray:
        """NaN: the table holds separate passes only."""
        shape = common_shape(model, gpus, batch, context_tokens, prompts, prompt_tokens, expert_parallel)
        return np.full(shape, np.nan)

    def _look_up(
        self, stage: str, model: Architecture, gpus: Real, batch: Real, tokens: Real, expert_parallel: Real
    ) -> FloatArray:
        shape = common_shape(model, gpus, batch, tokens, expert_parallel)
        experts = np.where(np.asarray(model.n_moe_layers) > 0, model.n_experts, 1.0)
        size = count_parameters(model).total
        bare, counts, experts, *where = (
            np.broadcast_to(np.asarray(values, dtype=np.float64), shape).ravel()
            for values in (np.asarray(model.vocab_size) == 0, gpus, experts, tokens, size, batch)
        )
        latency_s = np.full(counts.size, np.nan)
        for axes, of_kind in ((self.axes, bare == 0), (self.axes_without_embeddings, bare == 1)):
            for (of_stage, of_gpus, of_experts), axis in axes.items():
                rows = of_kind & (counts == of_gpus) & (experts == of_experts)
                if of_stage == stage and rows.any():
                    latency_s[rows] = _interpolate(axis, tuple(values[rows] for values in where))
        # Experts were measured split over all GPUs, none held whole.
        return np.where(np.asarray(expert_parallel) == 1.0, latency_s.reshape(shape), np.nan)


def read_latency_table(path: str | Path, gpu: str | None = None) -> LatencyTable:
    """The measured latencies in a CSV, TSV or Parquet file, of its only GPU or of `gpu`.

    Columns: gpu, gpus, n_params_total, n_experts (1: dense), stage (prefill or decode), batch, tokens (prompt length,
    or the context at decode), latency_s; where present also status (rows other than ok are skipped),
    n_params_non_embedding, engine and dtype (one of each in a table); others are ignored. Repeated measurements become
    their median. Raises InputError that names file, row, column and value.
    """
    file = Path(path)
    measured: _Measured = {}
    without_embeddings: _Measured = {}
    present = [_Row(file, number, record) for number, record in _records(file)]
    rows = [row for row in present if row.optional("status") in ("", "ok")]
    if not rows:
        what = "no row of the table has status ok" if present else "the table has no rows"
        raise InputError(what, where=str(file), next_step="measure some with `moescale profile`")
    names = sorted({row.text("gpu") for row in rows})
    if gpu is None and len(names) > 1:
        raise InputError(f"the table holds several GPUs: {', '.join(names)}", where=str(file), next_step="choose one")
    chosen = names[0] if gpu is None else gpu
    if chosen not in names:
        raise unknown_name("GPU", chosen, names, where=str(file))
    for column in ONE_KIND:
        kinds = sorted({row.optional(column) for row in rows if row.text("gpu") == chosen})
        if len(kinds) > 1:
            raise InputError(
                f"column {column!r} holds {', '.join(map(repr, kinds))}",
                where=str(file),
                next_step="keep a table of its own for each",
            )
    for row in rows:
        stage = row.text("stage")
        if stage not in STAGES:
            raise row.error("stage", f"must be {' or '.join(STAGES)}")
        gpus, experts = (int(row.whole(name)) for name in WHOLE)
        size, batch, tokens, latency_s = (row.positive(name) for name in POSITIVE)
        if row.text("gpu") == chosen:
            bare = row.positive(WITHOUT_EMBEDDINGS) if row.optional(WITHOUT_EMBEDDINGS) else size
            for of, counted in ((measured, size), (without_embeddings, bare)):
                sizes = of.setdefault((stage, gpus, experts), {}).setdefault(tokens, {})
                sizes.setdefault(counted, {}).setdefault(batch, []).append(latency_s)
    return LatencyTable(
        source=file.name, gpu=chosen, axes=_axes(measured), axes_without_embeddings=_axes(without_embeddings)
    )


def _axes(measured: _Measured) -> dict[tuple[str, int, int], _Axis]:
    return {
        key: _axis(
            {
                tokens: _axis({size: _last_axis(batches) for size, batches in sizes.items()})
                for tokens, sizes in by_tokens.items()
            }
        )
        for key, by_tokens in measured.items()
    }


def _axis(below: Mapping[float, _Axis]) -> _Axis:
    at = sorted(below)
    return _Axis(np.asarray(at), tuple(below[position] for position in at), np.empty(0))


def _last_axis(batches: Mapping[float, list[float]]) -> _Axis:
    at = sorted(batches)
    return _Axis(np.asarray(at), (), np.asarray([float(np.median(batches[position])) for position in at]))


def _interpolate(axis: _Axis, where: tuple[FloatArray, ...]) -> FloatArray:
    """Linear interpolation at points `where` (one array an axis, outermost first); NaN outside what was measured."""
    low, high = axis.at[0], axis.at[-1]
    x = where[0]
    inside = (x >= low * (1 - MATCH)) & (x <= high * (1 + MATCH))
    x = np.clip(x, low, high)
    if not axis.below:
        return np.where(inside, np.interp(x, axis.at, axis.latency_s), np.nan)
    left = np.clip(np.searchsorted(axis.at, x, side="right") - 1, 0, max(axis.at.size - 2, 0))
    right = np.minimum(left + 1, axis.at.size - 1)
    width = axis.at[right] - axis.at[left]
    weight = np.divide(x - axis.at[left], width, out=np.zeros_like(x), where=width > 0)
    latency_s = np.where(inside, 0.0, np.nan)
    for position, below in enumerate(axis.below):
        share = np.where(left == position, 1 - weight, 0.0) + np.where((right == position) & (width > 0), weight, 0.0)
        # A point with no share in this curve must not meet its NaN.
        points = inside & (share > 0)
        if points.any():
            latency_s[points] += share[points] * _interpolate(below, tuple(values[points] for values in where[1:]))
    return latency_s


@dataclass(frozen=True, slots=True)
class _Row:
    """One row of a file, with errors that say where it is."""

    file: Path
    number: int
    record: Mapping[str, object]

    def error(self, column: str, rule: str) -> InputError:
        where = f"{self.file}, row {self.number}, column {column}"
        return InputError(f"{self.record[column]!r} {rule}", where=where, next_step="mend that row, or leave it out")

    def text(self, column: str) -> str:
        value = str(self.record[column] or "").strip()
        if not value:
            raise self.error(column, "is empty")
        return value

    def optional(self, column: str) -> str:
        value = self.record.get(column)
        return "" if value is None else str(value).strip()

    def positive(self, column: str) -> float:
        try:
            value = float(str(self.record[column]))
        except ValueError:
            raise self.error(column, "is not a number") from None
        if not 0 < value < float("inf"):
            raise self.error(column, "must be positive and finite")
        return value

    def whole(self, column: str) -> float:
        value = self.positive(column)
        if value != int(value):
            raise self.error(column, "must be a whole number")
        return value


def _records(file: Path) -> Iterator[tuple[int, Mapping[str, object]]]:
    """Row numbers (lines of a text file, counted rows of a Parquet file) and the rows as mappings."""
    suffix = file.suffix.lower()
    if suffix not in (".csv", ".tsv", ".parquet"):
        raise InputError(
            f"cannot read {suffix or 'a file without suffix'}", where=str(file), next_step="give .csv, .tsv or .parquet"
        )
    data = read_bytes(file, limit_bytes=TABLE_LIMIT_BYTES)
    if suffix == ".parquet":
        table = read_parquet(data, str(file), most_rows=MOST_ROWS)
        _check_columns(file, table.column_names)
        wanted = [*COLUMNS, *(name for name in OPTIONAL if table.column_names.count(name) == 1)]
        yield from enumerate(table.select(wanted).to_pylist(), start=1)
        return
    lines = io.StringIO(decode_utf8(data, where=str(file)), newline="")
    reader = csv.DictReader(lines, delimiter="\t" if suffix == ".tsv" else ",")
    try:
        _check_columns(file, list(reader.fieldnames or ()))
        for record in reader:
            yield reader.line_num, record
    except csv.Error as error:
        where = f"{file}, line {reader.line_num}"
        raise InputError(f"cannot be read: {error}", where=where, next_step="mend that line") from error


def _check_columns(file: Path, present: list[str]) -> None:
    for column in COLUMNS:
        if column not in present:
            raise InputError(
                f"column {column!r} is missing",
                where=str(file),
                nearest=nearest_names(column, present),
                next_step=f"a latency table has the columns {', '.join(COLUMNS)}",
            )
        if present.count(column) > 1:
            raise InputError(f"column {column!r} appears {present.count(column)} times", where=str(file))
