"""Effective experts of Clark et al. (arXiv 2202.01169, equation 4), which several MoE laws share.

    1 / Ehat = 1 / (E - shift + 1 / (1 / E_start - 1 / E_max)) + 1 / E_max

With shift = 1, as published, Ehat runs from E_start at E = 1 to E_max. The search moves m = ln E_max and u = ln E_start / ln E_max,
with which 1 <= E_start < E_max is a box.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from moescale.scaling_laws.form import Columns, Ends, Inputs, Observed, Parameter
from moescale.typing import FloatArray

DOMAIN = "1 <= E_start < E_max"


def _start_to_search(given: Columns) -> FloatArray:
    start, ceiling = given["E_start"], given["E_max"]
    return np.where((start >= 1.0) & (start < ceiling), np.log(start) / np.log(ceiling), np.nan)


def _ceiling_ends(observed: Observed) -> Ends:
    """E_max in [max(4, E_observed / 2), 1e4]: more experts than anyone has trained."""
    return float(np.log(max(4.0, observed.experts_max / 2.0))), float(np.log(1e4))


E_START = Parameter(
    "E_start", False, "effective experts of a dense model", scan=(0.0, 0.95), box=(0.0, 0.999),
    to_search=_start_to_search, to_public=lambda moved: np.exp(moved["E_start"] * moved["E_max"]),
)  # fmt: skip
E_MAX = Parameter(
    "E_max", True, "effective experts that no expert count exceeds", scan=_ceiling_ends, box=_ceiling_ends,
    to_search=lambda given: np.where(given["E_max"] > 1.0, np.log(given["E_max"]), np.nan),
    to_public=lambda moved: np.exp(moved["E_max"]),
)  # fmt: skip


def effective_experts(ln_start: FloatArray, ln_max: FloatArray, experts: FloatArray, shift: float = 1.0) -> FloatArray:
    """Ehat at each expert count; all arguments broadcast."""
    start, ceiling = np.exp(-ln_start), np.exp(-ln_max)
    gap = start - ceiling
    return 1.0 / (gap / ((experts - shift) * gap + 1.0) + ceiling)


def ln_effective(u: Any, ln_max: Any, x: Inputs, shift: float = 1.0) -> FloatArray:
    """ln Ehat at each point, (..., n), for search coordinates of shape (..., 1)."""
    of_distinct = np.log(effective_experts(u * ln_max, ln_max, x.experts_distinct, shift))
    return np.take(of_distinct, x.experts_index, axis=-1)
