"""The data-constrained law of Muennighoff et al. (arXiv 2305.16264): repeated data and excess parameters saturate.

    L = E + A / N'^alpha + B / D'^beta
    D' = U + U R_D (1 - exp(-(D/U - 1) / R_D))          U = min(unique_tokens, D)
    N' = V + V R_N (1 - exp(-(N/V - 1) / R_N))          V = min(N, G (U G)^(beta/alpha))
    G  = (alpha A / (beta B))^(1 / (alpha + beta))

V is the loss-optimal size of one epoch over U, so with R_D and R_N endless this is the law of Hoffmann et al. N counts all
parameters (apparently with token and position embeddings), D the tokens seen, all epochs together. `unique_tokens` is
the distinct data that there is; its default, infinity, means one epoch whatever D. As published, alpha = beta was imposed.
The search moves ln G in place of ln B: then A is the one amplitude besides E, and V does not depend on it.
"""

from __future__ import annotations

import numpy as np

from moescale.scaling_laws import form
from moescale.scaling_laws.form import (
    Inputs,
    LawForm,
    LinearPart,
    Observed,
    Parameter,
    limits,
    ln_sum,
    log_coordinates,
    stacked,
)
from moescale.typing import FloatArray

PARAMETERS = (
    Parameter("E", True, "irreducible loss"),
    Parameter("A", True, "amplitude of the size term"),
    Parameter("B", True, "amplitude of the data term"),
    Parameter("alpha", False, "exponent of the size term"),
    Parameter("beta", False, "exponent of the data term"),
    Parameter("R_D", True, "epochs of repetition after which more add little"),
    Parameter("R_N", True, "excess sizes after which more parameters add little"),
)
E, A, B, ALPHA, BETA, R_D, R_N = range(len(PARAMETERS))
G = B  # its column holds ln G during a search
_to_logs, _from_logs = log_coordinates(PARAMETERS)


def encode(public: FloatArray) -> FloatArray:
    """Search coordinates from public units, any leading shape (..., 7)."""
    theta = _to_logs(public)
    alpha, beta = theta[..., ALPHA], theta[..., BETA]
    theta[..., G] = (np.log(alpha / beta) + theta[..., A] - theta[..., B]) / (alpha + beta)
    return theta


def decode(theta: FloatArray) -> FloatArray:
    """Public units from search coordinates, any leading shape (..., 7)."""
    public = _from_logs(theta)
    alpha, beta = theta[..., ALPHA], theta[..., BETA]
    public[..., B] = np.exp(np.log(alpha / beta) + theta[..., A] - (alpha + beta) * theta[..., G])
    return public


def saturated(ln_x: FloatArray, ln_unit: FloatArray, ln_r: FloatArray) -> tuple[FloatArray, ...]:
    """ln of u + u R (1 - exp(-(x/u - 1) / R)), or ln x where x <= u, and its derivatives.

    Those in ln x, ln u and ln R, and the second in ln R.
    """
    over = np.clip(ln_x - ln_unit, 0.0, 300.0)  # beyond e^300 times the unit nothing changes, and e^x stays finite
    r, excess = np.exp(ln_r), np.expm1(over)
    decay = np.exp(-excess / r)
    whole = 1.0 + r * -np.expm1(-excess / r)
    in_x = (excess + 1.0) * decay / whole
    by_r = r * -np.expm1(-excess / r) - excess * decay
    in_r = by_r / whole
    in_rr = (by_r - excess**2 / r * decay) / whole - in_r**2
    within = over <= 0.0
    value = np.where(within, ln_x, ln_unit + np.log(whole))
    return value, in_x, np.where(within, 0.0, 1.0 - in_x), in_r, in_rr


def _effective(shape: tuple[FloatArray, ...], x: Inputs) -> tuple[tuple[FloatArray, ...], tuple[FloatArray, ...]]:
    """Effective ln N' and ln D' with their derivatives, for ln G, alpha, beta, ln R_D and ln R_N of shape (..., 1)."""
    ln_g, alpha, beta, ln_rd, ln_rn = shape
    ln_u = ln_unique(x)
    size = saturated(x.ln_n, ln_g + beta / alpha * (ln_u + ln_g), ln_rn)
    return size, saturated(x.ln_d, ln_u, ln_rd)


def ln_unique(x: Inputs) -> FloatArray:
    """ln of the tokens of distinct data among those seen, (n,)."""
    return np.minimum(np.log(x.extra["unique_tokens"]), x.ln_d)


def _columns(theta: FloatArray) -> tuple[FloatArray, ...]:
    return tuple(theta[..., column, None] for column in (G, ALPHA, BETA, R_D, R_N))


def _terms(
    theta: FloatArray, x: Inputs
) -> tuple[FloatArray, FloatArray, tuple[FloatArray, ...], tuple[FloatArray, ...]]:
    """ln L, the share of each term in it, and the effective size and data."""
    ln_g, alpha, beta, *_ = shape = _columns(theta)
    size, data = _effective(shape, x)
    ln_a = theta[..., A, None]
    ln_b = np.log(alpha / beta) + ln_a - (alpha + beta) * ln_g
    total, shares = ln_sum(theta[..., E, None], ln_a - alpha * size[0], ln_b - beta * data[0])
    return total, shares, size, data


def log_loss(theta: FloatArray, x: Inputs) -> FloatArray:
    """ln L at each point, shape (..., n)."""
    return _terms(theta, x)[0]


def jacobian(theta: FloatArray, x: Inputs) -> FloatArray:
    """Derivatives of ln L in search coordinates, shape (..., n, 7)."""
    ln_g, alpha, beta, *_ = _columns(theta)
    _, (e, a, b), (ln_n, _, n_v, n_r, _), (ln_d, _, _, d_r, _) = _terms(theta, x)
    base = ln_unique(x) + ln_g
    columns = (
        e,
        a + b,
        -a * alpha * n_v * (1.0 + beta / alpha) - b * (alpha + beta),
        -a * (ln_n - n_v * beta / alpha * base) + b * (1.0 / alpha - ln_g),
        -a * n_v * base - b * (1.0 / beta + ln_g + ln_d),
        -b * beta * d_r,
        -a * alpha * n_r,
    )
    return stacked(columns, -1)


def slopes(theta: FloatArray, x: Inputs) -> tuple[FloatArray, FloatArray]:
    """Derivatives of ln L with respect to ln N and ln D at each point, each (..., n).

    Where nothing is repeated a further token is fresh: it enlarges the unique data, and the size that suits them.
    """
    _, alpha, beta, *_ = _columns(theta)
    _, (_, a, b), (_, n_x, n_v, *_), (_, d_x, *_) = _terms(theta, x)
    fresh = np.log(x.extra["unique_tokens"]) >= x.ln_d
    return -alpha * a * n_x, -beta * b * d_x - np.where(fresh, a * beta * n_v, 0.0)


def bounds(observed: Observed) -> FloatArray:
    """The physical box in search coordinates, (7, 2): E below the smallest loss, R_D and R_N in [0.01, 1e4]."""
    scale, saturation = (0.01, 3.0), (float(np.log(0.01)), float(np.log(1e4)))
    return np.array([observed.irreducible, form.AMPLITUDE, (-60.0, 60.0), scale, scale, saturation, saturation])


def _basis(shape: FloatArray, x: Inputs) -> FloatArray:
    ln_g, alpha, beta, *_ = columns = tuple(shape[..., column, None] for column in range(5))
    size, data = _effective(columns, x)
    data_term = alpha / beta * np.exp(-(alpha + beta) * ln_g - beta * data[0])
    varying = np.exp(-alpha * size[0]) + data_term
    return np.stack((np.ones_like(varying), varying), axis=-1)


REGION = [(-5.0, 3.0), *[(0.1, 0.8)] * 2, *[(0.0, np.log(100.0))] * 2]
FORM = LawForm(
    name="muennighoff2023",
    title="dense law for repeated data",
    equation="L = E + A/N'^alpha + B/D'^beta, N' and D' saturating with excess parameters and repetition",
    source="Muennighoff et al. 2023, arXiv 2305.16264",
    parameters=PARAMETERS,
    encode=encode,
    decode=decode,
    log_loss=log_loss,
    jacobian=jacobian,
    slopes=slopes,
    bounds=bounds,
    linear=LinearPart((E, A), (G, ALPHA, BETA, R_D, R_N), _basis, limits(REGION)),
    uses_experts=False,
    domain="amplitudes and exponents are positive",
    extra_inputs={"unique_tokens": float("inf")},
)
