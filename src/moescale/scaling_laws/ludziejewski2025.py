"""The joint MoE law of Ludziejewski et al. (arXiv 2502.05172, equation 6).

    L = a Ehat^delta N^(alpha + gamma ln Ehat) + b Ehat^omega D^(beta + zeta ln Ehat) + c
    1 / Ehat = 1 / (E - 0.99 + 1 / (1 / E_start - 1 / E_max)) + 1 / E_max

N counts active parameters with both embedding tables, E the experts of every layer (top-1, granularity 1; E = 1 is dense),
nats per token of FineWeb-Edu. The paper prints a shift of 1 in place of 0.99; its code and its table 4 use 0.99 (with 1 the
first entry of that table would be 30.40, not 30.36). Signs are those of the paper: exponents of N and D are negative.
"""

from __future__ import annotations

import numpy as np

from moescale.scaling_laws import effective_experts
from moescale.scaling_laws.form import AMPLITUDE, Inputs, LawForm, LinearPart, Observed, Parameter, Shape
from moescale.typing import FloatArray

SHIFT = 0.99
PARAMETERS = (
    Parameter("a", True, "amplitude of the size term"),
    Parameter("alpha", False, "exponent of N"),
    Parameter("delta", False, "exponent of effective experts in the size term"),
    Parameter("gamma", False, "change of the exponent of N with ln Ehat"),
    Parameter("b", True, "amplitude of the data term"),
    Parameter("beta", False, "exponent of D"),
    Parameter("omega", False, "exponent of effective experts in the data term"),
    Parameter("zeta", False, "change of the exponent of D with ln Ehat"),
    Parameter("c", True, "irreducible loss"),
    *effective_experts.PARAMETERS,
)
A, ALPHA, DELTA, GAMMA, B, BETA, OMEGA, ZETA, C, START, MAX = range(len(PARAMETERS))
encode, decode = effective_experts.pair_coordinates(PARAMETERS)


def _parts(shape: Shape, x: Inputs) -> tuple[tuple[FloatArray | float, ...], float]:
    alpha, delta, gamma, beta, omega, zeta, u, m = shape
    e = effective_experts.ln_effective(u, m, x, SHIFT)
    return (delta * e + (alpha + gamma * e) * x.ln_n, omega * e + (beta + zeta * e) * x.ln_d, 0.0), 0.0


def bounds(observed: Observed) -> FloatArray:
    """The physical box in search coordinates, (11, 2): c below the smallest loss, exponents of N and D not positive."""
    size_or_data = [AMPLITUDE, (-3.0, 0.0), (-3.0, 3.0), (-0.5, 0.5)]
    return np.array([*size_or_data, *size_or_data, observed.irreducible, *effective_experts.box(observed)])


def _region(observed: Observed) -> FloatArray:
    size_or_data = [(-0.6, -0.05), (-1.0, 1.0), (-0.04, 0.04)]
    return np.array([*size_or_data, *size_or_data, *effective_experts.region(observed)])


FORM = LawForm(
    name="ludziejewski2025",
    title="joint MoE law in active N, D and E",
    equation="L = a Ehat^delta N^(alpha + gamma ln Ehat) + b Ehat^omega D^(beta + zeta ln Ehat) + c",
    source="Ludziejewski et al. 2025, arXiv 2502.05172, equation 6",
    parameters=PARAMETERS,
    encode=encode,
    decode=decode,
    bounds=bounds,
    linear=LinearPart((A, B, C), (ALPHA, DELTA, GAMMA, BETA, OMEGA, ZETA, START, MAX), _parts, _region),
    uses_experts=True,
    domain=f"amplitudes are positive and {effective_experts.DOMAIN}",
)
