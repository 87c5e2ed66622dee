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
from moescale.scaling_laws.form import (
    AMPLITUDE,
    Inputs,
    LawForm,
    LinearPart,
    Observed,
    Parameter,
    ln_sum,
    stacked,
)
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


def _terms(theta: FloatArray, x: Inputs, e: FloatArray) -> tuple[FloatArray, FloatArray]:
    """ln L and the share of the size term, the data term and c in L, shapes (..., n) and (3, ..., n)."""
    t = theta[..., None, :]
    return ln_sum(
        t[..., A] + t[..., DELTA] * e + (t[..., ALPHA] + t[..., GAMMA] * e) * x.ln_n,
        t[..., B] + t[..., OMEGA] * e + (t[..., BETA] + t[..., ZETA] * e) * x.ln_d,
        t[..., C],
    )


def _ln_effective(theta: FloatArray, x: Inputs) -> FloatArray:
    return effective_experts.ln_effective(theta[..., START], theta[..., MAX], x, SHIFT)


def log_loss(theta: FloatArray, x: Inputs) -> FloatArray:
    """ln L at each point, shape (..., n)."""
    return _terms(theta, x, _ln_effective(theta, x))[0]


def jacobian(theta: FloatArray, x: Inputs) -> FloatArray:
    """Derivatives of ln L in search coordinates, shape (..., n, 11)."""
    e, e_u, e_m = effective_experts.derivatives(theta[..., START], theta[..., MAX], x, SHIFT)
    _, (s, d, c) = _terms(theta, x, e)
    t = theta[..., None, :]
    slope = s * (t[..., DELTA] + t[..., GAMMA] * x.ln_n) + d * (t[..., OMEGA] + t[..., ZETA] * x.ln_d)  # in ln Ehat
    size, data = ((share, share * ln, share * e, share * ln * e) for share, ln in ((s, x.ln_n), (d, x.ln_d)))
    return stacked((*size, *data, c, slope * e_u, slope * e_m), -1)


def slopes(theta: FloatArray, x: Inputs) -> tuple[FloatArray, FloatArray]:
    """Derivatives of ln L with respect to ln N and ln D at each point, each (..., n)."""
    e = _ln_effective(theta, x)
    _, (s, d, _) = _terms(theta, x, e)
    t = theta[..., None, :]
    return (t[..., ALPHA] + t[..., GAMMA] * e) * s, (t[..., BETA] + t[..., ZETA] * e) * d


def bounds(observed: Observed) -> FloatArray:
    """The physical box in search coordinates, (11, 2): c below the smallest loss, exponents of N and D not positive."""
    falling, either, change = (-3.0, 0.0), (-3.0, 3.0), (-0.5, 0.5)
    size_or_data = [AMPLITUDE, falling, either, change]
    return np.array([*size_or_data, *size_or_data, observed.irreducible, *effective_experts.box(observed)])


def _basis(shape: FloatArray, x: Inputs) -> FloatArray:
    alpha, delta, gamma, beta, omega, zeta = (shape[..., column, None] for column in range(6))
    e = effective_experts.ln_effective(shape[..., 6], shape[..., 7], x, SHIFT)
    size = np.exp(delta * e + (alpha + gamma * e) * x.ln_n)
    data = np.exp(omega * e + (beta + zeta * e) * x.ln_d)
    return np.stack((size, data, np.ones_like(size)), axis=-1)


def _region(observed: Observed) -> FloatArray:
    exponent, amplitude, change = (-0.6, -0.05), (-1.0, 1.0), (-0.04, 0.04)
    return np.array([exponent, amplitude, change, exponent, amplitude, change, *effective_experts.region(observed)])


FORM = LawForm(
    name="ludziejewski2025",
    title="joint MoE law in active N, D and E",
    equation="L = a Ehat^delta N^(alpha + gamma ln Ehat) + b Ehat^omega D^(beta + zeta ln Ehat) + c",
    source="Ludziejewski et al. 2025, arXiv 2502.05172, equation 6",
    parameters=PARAMETERS,
    encode=encode,
    decode=decode,
    log_loss=log_loss,
    jacobian=jacobian,
    slopes=slopes,
    bounds=bounds,
    linear=LinearPart((A, B, C), (ALPHA, DELTA, GAMMA, BETA, OMEGA, ZETA, START, MAX), _basis, _region),
    uses_experts=True,
    domain=f"amplitudes are positive and {effective_experts.DOMAIN}",
)
