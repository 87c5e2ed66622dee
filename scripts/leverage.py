"""The efficiency leverage of MoE models after Tian et al. (Ling team, arXiv 2507.17702, equations 10 and 13).

    EL = Ahat^(a + d log10 C + gamma (log2 G)^2 + beta log2 G)
    1 / Ahat = 1 / (A + 1 / (1 / A_start - 1 / A_max)) + 1 / A_max

EL is the training FLOPs of the dense model of equal loss over those of the MoE, C those of the MoE. A is the share of a
layer's experts that a token meets, shared ones counted in both; G = 2 d_model / d_expert, half of Krajewski's granularity. The paper prints no base of
its logarithms: 10 for C with 2 for G is the choice that gives its own results (EL above 7 at A = 3.1%, G = 12, C = 1e22;
best G 8 to 12). Its text counts C from a forward pass, the convention that it follows counts three times that: a factor
of 3 in C moves EL by 7% at A = 1/8 and by 12% at A = 1/32.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from moescale import catalogue
from moescale.errors import InputError
from moescale.typing import FloatArray, Real


@cache
def tian2025() -> dict[str, Any]:
    """The published coefficients, and by variable the `range` of the runs that they were fitted on."""
    return catalogue.read("leverage.toml")["tian2025"]


def efficiency_leverage(activation_ratio: Real, granularity: Real, flops: Real) -> FloatArray:
    """Dense training FLOPs of equal loss over the MoE's `flops`; arguments broadcast.

    Raises InputError unless 0 < activation_ratio <= 1 and the others are positive and finite.
    """
    ratio, grain, c = (np.asarray(values, float) for values in (activation_ratio, granularity, flops))
    for name, values, most in (("activation_ratio", ratio, 1.0), ("granularity", grain, np.inf), ("flops", c, np.inf)):
        wrong = ~((values > 0) & (values <= most) & np.isfinite(values))
        if wrong.any():
            above = "" if np.isinf(most) else f" and at most {most:g}"
            raise InputError(f"{name} is {values[wrong].flat[0]:g}", next_step=f"give a number above 0{above}")
    law = tian2025()
    a_start, a_max, log_g = law["A_start"], law["A_max"], np.log2(grain)
    saturated = 1.0 / (1.0 / (ratio + 1.0 / (1.0 / a_start - 1.0 / a_max)) + 1.0 / a_max)
    return saturated ** (law["a"] + law["d"] * np.log10(c) + law["gamma"] * log_g**2 + law["beta"] * log_g)
