"""Effective experts of Clark et al. (arXiv 2202.01169, equation 4), which several MoE laws share, and their derivatives.

    1 / Ehat = 1 / (E - shift + 1 / (1 / E_start - 1 / E_max)) + 1 / E_max

With shift = 1, as published, Ehat runs from E_start at E = 1 to E_max. The search moves m = ln E_max and a coordinate u of
E_start: the `ratio` ln E_start / ln E_max, with which 1 <= E_start < E_max is a box, or, without the box, the `spread`
ln ln(E_max / E_start), which admits E_start and E_max below 1.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from moescale.scaling_laws.form import Coordinates, Inputs, Observed, Parameter, log_coordinates
from moescale.typing import FloatArray

PARAMETERS = (
    Parameter("E_start", False, "effective experts of a dense model"),
    Parameter("E_max", True, "effective experts that no expert count exceeds"),
)
DOMAIN = "1 <= E_start < E_max"
Start = Literal["ratio", "spread"]


def pair_coordinates(parameters: tuple[Parameter, ...], how: Start = "ratio") -> tuple[Coordinates, Coordinates]:
    """(encode, decode) as of `log_coordinates`, with u in the place of E_start; NaN outside the domain of u."""
    to_logs, from_logs = log_coordinates(parameters)
    names = [parameter.name for parameter in parameters]
    first, last = names.index("E_start"), names.index("E_max")

    def encode(public: FloatArray) -> FloatArray:
        theta = to_logs(public)
        start, ceiling, ln_max = theta[..., first], np.asarray(public)[..., last], theta[..., last]
        with np.errstate(all="ignore"):
            inside = (start < ceiling) & ((start >= 1.0) | (how != "ratio"))
            u = np.log(start) / ln_max if how == "ratio" else np.log(ln_max - np.log(start))
        theta[..., first] = np.where(inside, u, np.nan)
        return theta

    def decode(theta: FloatArray) -> FloatArray:
        public = from_logs(theta)
        public[..., first] = np.exp(_ln_start(theta[..., first], theta[..., last], how))
        return public

    return encode, decode


def _ln_start(coordinate: FloatArray, ln_max: FloatArray, how: Start) -> FloatArray:
    return coordinate * ln_max if how == "ratio" else ln_max - np.exp(coordinate)


def box(observed: Observed) -> tuple[tuple[float, float], tuple[float, float]]:
    """The box of (u, m): 1 <= E_start < E_max, and E_max in [max(4, E_observed / 2), 1e4]."""
    most = float(np.log(1e4))  # more experts than anyone has trained
    return (0.0, 0.999), (float(np.log(max(4.0, observed.experts_max / 2.0))), most)


def region(observed: Observed) -> tuple[tuple[float, float], tuple[float, float]]:
    """Where a search for (u, m) starts."""
    return (0.0, 0.95), box(observed)[1]


def effective_experts(ln_start: FloatArray, ln_max: FloatArray, experts: FloatArray, shift: float = 1.0) -> FloatArray:
    """Ehat at each expert count; `ln_start` and `ln_max` of shape (...), `experts` (m,), answer (..., m)."""
    start, ceiling = np.exp(-ln_start)[..., None], np.exp(-ln_max)[..., None]
    gap = start - ceiling
    return 1.0 / (gap / ((experts - shift) * gap + 1.0) + ceiling)


def ln_effective(
    coordinate: FloatArray, ln_max: FloatArray, x: Inputs, shift: float = 1.0, how: Start = "ratio"
) -> FloatArray:
    """ln Ehat at each point, (..., n), for search coordinates of shape (...)."""
    ln_start = _ln_start(coordinate, ln_max, how)
    return np.take(np.log(effective_experts(ln_start, ln_max, x.experts_distinct, shift)), x.experts_index, axis=-1)


def derivatives(
    coordinate: FloatArray, ln_max: FloatArray, x: Inputs, shift: float = 1.0, how: Start = "ratio"
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """ln Ehat and its derivatives in the search coordinates u and m, each (..., n)."""
    u, ln_max = coordinate[..., None], ln_max[..., None]
    by_u, by_m = (ln_max, u) if how == "ratio" else (-np.exp(u), 1.0)  # of ln E_start
    start, ceiling = np.exp(-_ln_start(u, ln_max, how)), np.exp(-ln_max)
    gap = start - ceiling
    scale = 1.0 / ((x.experts_distinct - shift) * gap + 1.0)
    y = gap * scale + ceiling  # 1 / Ehat
    in_start, in_max = scale**2 * start / y, (1.0 - scale**2) * ceiling / y
    distinct = (-np.log(y), in_start * by_u, in_max + in_start * by_m)
    e, e_u, e_m = (np.take(value, x.experts_index, axis=-1) for value in distinct)
    return e, e_u, e_m
