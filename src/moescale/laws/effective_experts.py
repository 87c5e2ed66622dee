"""Effective experts of Clark et al. (arXiv 2202.01169, equation 4), which several MoE laws share, and their derivatives.

    1 / Ehat = 1 / (E - shift + 1 / (1 / E_start - 1 / E_max)) + 1 / E_max

With shift = 1, as published, Ehat runs from E_start at E = 1 to E_max. The search moves m = ln E_max and the ratio
u = ln E_start / ln E_max, so that 1 <= E_start < E_max is a box.
"""

from __future__ import annotations

import numpy as np

from moescale.architecture import FloatArray
from moescale.laws.form import Inputs, Observed, Parameter

PARAMETERS = (
    Parameter("E_start", False, "effective experts of a dense model"),
    Parameter("E_max", True, "effective experts that no expert count exceeds"),
)
DOMAIN = "1 <= E_start < E_max"
LARGEST = 1e4  # of E_max: more experts than anyone has trained


def encode_pair(start: FloatArray, ceiling: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Search coordinates (u, m) of E_start and E_max, of any shape; u is NaN unless 1 <= E_start < E_max."""
    ln_max = np.log(ceiling)
    return np.where((start >= 1.0) & (start < ceiling), np.log(start) / ln_max, np.nan), ln_max


def decode_pair(ratio: FloatArray, ln_max: FloatArray) -> tuple[FloatArray, FloatArray]:
    """E_start and E_max from search coordinates (u, m), of any shape."""
    return np.exp(ratio * ln_max), np.exp(ln_max)


def bounds_of_pair(observed: Observed) -> tuple[tuple[float, float], tuple[float, float]]:
    """The box of (u, m): 1 <= E_start < E_max, and E_max in [max(4, E_observed / 2), 1e4]."""
    return (0.0, 0.999), (float(np.log(max(4.0, observed.experts_max / 2.0))), float(np.log(LARGEST)))


def region_of_pair(observed: Observed) -> tuple[tuple[float, float], tuple[float, float]]:
    """Where a search for (u, m) starts."""
    return (0.0, 0.95), bounds_of_pair(observed)[1]


def effective_experts(ln_start: FloatArray, ln_max: FloatArray, experts: FloatArray, shift: float = 1.0) -> FloatArray:
    """Ehat at each expert count; `ln_start` and `ln_max` of shape (...), `experts` (m,), answer (..., m)."""
    start, ceiling = np.exp(-ln_start)[..., None], np.exp(-ln_max)[..., None]
    gap = start - ceiling
    return 1.0 / (gap / ((experts - shift) * gap + 1.0) + ceiling)


def ln_effective(ratio: FloatArray, ln_max: FloatArray, x: Inputs, shift: float = 1.0) -> FloatArray:
    """ln Ehat at each point, (..., n), for search coordinates of shape (...)."""
    return np.log(effective_experts(ratio * ln_max, ln_max, x.experts_distinct, shift))[..., x.experts_index]


def ln_effective_derivatives(
    ratio: FloatArray, ln_max: FloatArray, x: Inputs, shift: float = 1.0
) -> tuple[FloatArray, ...]:
    """ln Ehat and its derivatives in the search coordinates (u, m): e, e_u, e_m, e_uu, e_um, e_mm, each (..., n).

    First the derivatives in (s, m) with s = ln E_start = u m, then the chain rule.
    """
    ratio, ln_max = ratio[..., None], ln_max[..., None]
    start, ceiling = np.exp(-ratio * ln_max), np.exp(-ln_max)
    others = x.experts_distinct - shift
    gap = start - ceiling
    scale = 1.0 / (others * gap + 1.0)
    y = gap * scale + ceiling  # 1 / Ehat
    y_q, y_qq = scale**2, -2.0 * others * scale**3  # in the gap q
    y_s, y_m = -y_q * start, (y_q - 1.0) * ceiling
    y_ss = y_qq * start**2 + y_q * start
    y_mm = y_qq * ceiling**2 + (1.0 - y_q) * ceiling
    y_sm = -y_qq * start * ceiling
    s, m = y_s / y, y_m / y
    e_s, e_m, e_ss, e_sm, e_mm = -s, -m, s * s - y_ss / y, s * m - y_sm / y, m * m - y_mm / y
    derivatives = (
        -np.log(y),
        ln_max * e_s,
        e_m + ratio * e_s,
        ln_max**2 * e_ss,
        e_s + ln_max * (ratio * e_ss + e_sm),
        e_mm + 2.0 * ratio * e_sm + ratio**2 * e_ss,
    )
    return tuple(value[..., x.experts_index] for value in derivatives)
