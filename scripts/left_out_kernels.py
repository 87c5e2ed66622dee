"""How well measured kernels predict what was left out of them: shapes of experts, and the largest sizes of attention."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fit_moe_formulas import fit_formula
from moescale.latency.attention import grid_rows
from moescale.latency.kernels.log_grid import grid_of
from moescale.latency.kernels.moe import Rows, Shape, formula_s, kernels_of, moe_rows
from moescale.latency.kernels.tables import find_system
from moescale.typing import FloatArray


@dataclass(frozen=True, slots=True)
class LeftOut:
    """How well the other shapes predict one that was left out, all its rows on one GPU's whole experts."""

    shape: str
    median_error: float  # median of |predicted / measured - 1|
    formula_error: float  # the same of the formula alone, fitted without the shape
    rows: int


def leave_one_shape_out(system: str, engine: str, version: str, kind: str) -> tuple[LeftOut, ...]:
    """Error of every measured shape when neither the formula nor the likenesses have seen it, in any of its cuts.

    Judged on the rows that no expert parallelism cut: how much falls on the busiest GPU of those was drawn at random once
    for each shape, which no other shape can tell.
    """
    measured_on = find_system(system)
    rows = moe_rows(system, engine, version, kind)
    whole = fit_formula(rows, measured_on, kind)
    found: list[LeftOut] = []
    for i, label in enumerate(rows.labels):
        out = rows.model == i
        judged = _taken(rows, out & (np.asarray(rows.shape.expert_parallel) == 1))
        if not judged.latency_s.size or out.all():
            continue
        rest = _taken(rows, ~out)
        formula = fit_formula(rest, measured_on, kind, whole)
        kernels = kernels_of(rest, formula, measured_on, kind)
        alone = formula_s(formula, judged.shape, measured_on, kind)
        errors = [np.abs(s / judged.latency_s - 1.0) for s in (kernels.seconds(judged.shape), alone)]
        found.append(LeftOut(label, float(np.median(errors[0])), float(np.median(errors[1])), judged.latency_s.size))
    return tuple(found)


def _taken(rows: Rows, which: npt.NDArray[np.bool_]) -> Rows:
    shape = Shape(*(np.asarray(getattr(rows.shape, name))[which] for name in Shape.__slots__))
    return Rows(shape, rows.latency_s[which], rows.model[which], rows.cut[which], rows.labels)


def leave_largest_out(
    system: str, engine: str, version: str, stage: str, cache_type: str, head_dim: float, share: float
) -> FloatArray:
    """log(predicted / measured) of the largest rows, predicted from the others: what filling holes of the grid is worth.

    Left out are, of each pair of head counts, the rows that hold over `share` of the most tokens of all requests that
    were measured with it: holes are what a memory of that share would have left. As in latency/silicon.py, no prediction
    reads the cache faster than the data sheet allows: small ones were measured inside the L2 cache of L40S.
    """
    (kv, group, batch, tokens), seconds, slopes = grid_rows(system, engine, version, stage, cache_type, head_dim, 0.0)
    held, pair = batch * tokens, np.unique(np.stack([kv, group]), axis=1, return_inverse=True)[1].ravel()
    most = np.zeros(pair.max() + 1)
    np.maximum.at(most, pair, held)
    out = held > share * most[pair]
    grid = grid_of((kv[~out], group[~out], batch[~out], tokens[~out]), seconds[~out], slopes)
    cached_bytes = 2.0 * (kv * head_dim * held)[out] * (1.0 if cache_type == "fp8" else 2.0)
    limit_s = cached_bytes / find_system(system).memory_bandwidth_bytes_per_s
    predicted = np.maximum(grid.seconds(kv[out], group[out], batch[out], tokens[out]), limit_s)
    return np.log(predicted / seconds[out])
