"""Effective experts of Clark et al. (arXiv 2202.01169, equation 4), which several MoE laws share.

    1 / Ehat = 1 / (E - shift + 1 / (1 / E_start - 1 / E_max)) + 1 / E_max

With shift = 1, as published, Ehat runs from E_start at E = 1 to E_max. The search moves m = ln E_max and u = ln E_start / ln E_max,
with which 1 <= E_start < E_max is a box.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from moescale.scaling_laws.form import Coordinates, Inputs, Observed, Parameter, log_coordinates
from moescale.typing import FloatArray

PARAMETERS = (
    Parameter("E_start", False, "effective experts of a dense model"),
    Parameter("E_max", True, "effective experts that no expert count exceeds"),
)
DOMAIN = "1 <= E_start < E_max"


def pair_coordinates(parameters: tuple[Parameter, ...]) -> tuple[Coordinates, Coordinates]:
    """(encode, decode) as of `log_coordinates`, with u in the place of E_start; NaN outside the domain of u."""
    to_logs, from_logs = log_coordinates(parameters)
    names = [parameter.name for parameter in parameters]
    first, last = names.index("E_start"), names.index("E_max")

    def encode(public: FloatArray) -> FloatArray:
        theta = to_logs(public)
        start, ceiling = theta[..., first], np.asarray(public)[..., last]
        with np.errstate(all="ignore"):
            u = np.log(start) / theta[..., last]
        theta[..., first] = np.where((start >= 1.0) & (start < ceiling), u, np.nan)
        return theta

    def decode(theta: FloatArray) -> FloatArray:
        public = from_logs(theta)
        public[..., first] = np.exp(theta[..., first] * theta[..., last])
        return public

    return encode, decode


def box(observed: Observed) -> tuple[tuple[float, float], tuple[float, float]]:
    """The box of (u, m): 1 <= E_start < E_max, and E_max in [max(4, E_observed / 2), 1e4]."""
    most = float(np.log(1e4))  # more experts than anyone has trained
    return (0.0, 0.999), (float(np.log(max(4.0, observed.experts_max / 2.0))), most)


def region(observed: Observed) -> tuple[tuple[float, float], tuple[float, float]]:
    """Where a search for (u, m) starts."""
    return (0.0, 0.95), box(observed)[1]


def effective_experts(ln_start: FloatArray, ln_max: FloatArray, experts: FloatArray, shift: float = 1.0) -> FloatArray:
    """Ehat at each expert count; all arguments broadcast."""
    start, ceiling = np.exp(-ln_start), np.exp(-ln_max)
    gap = start - ceiling
    return 1.0 / (gap / ((experts - shift) * gap + 1.0) + ceiling)


def ln_effective(u: Any, ln_max: Any, x: Inputs, shift: float = 1.0) -> FloatArray:
    """ln Ehat at each point, (..., n), for search coordinates of shape (..., 1)."""
    of_distinct = np.log(effective_experts(u * ln_max, ln_max, x.experts_distinct, shift))
    return np.take(of_distinct, x.experts_index, axis=-1)
