"""moescale's own MoE law: size and data as bottlenecks of each other, experts that pay off with tokens per parameter.

    L = ((L_N (N_ref / N_b)^alpha)^(1/kappa) + (L_D (D_ref / D_eff)^alpha)^(1/kappa))^kappa / Ehat^g
    N   = N_b + omega N_b^(1/3)          N_b: size without the embedding tables, which grow as width, not as width cubed
    D_eff = D / (1 + D_0 / D)            D_0: tokens spent on the start of training, a cost paid once
    g   = eta r / (r + R), r = D / N     experts gain nothing without tokens, Ehat^-eta with many
    1 / Ehat = 1 / (E - 1 + 1 / (1 - 1 / E_max)) + 1 / E_max       (Clark et al. 2022, with E_start = 1)

N counts active parameters with both embedding tables, D training tokens, E the experts of every layer; E = 1 is dense and
has Ehat = 1. One exponent serves size and data: tokens per parameter then stay the same along the loss-optimal path of
dense models, but for embeddings and D_0. N_ref and D_ref are units, not parameters: L_N is the loss of N_ref body parameters with endless data, L_D
that of an endless model after D_ref tokens. Chosen by cross-validation, see docs/moescale2026.md.
"""

from __future__ import annotations

import numpy as np

from moescale.scaling_laws import effective_experts
from moescale.scaling_laws.form import EXPONENT, Inputs, LawForm, Observed, Parameter, ln_sum, log_coordinates
from moescale.typing import FloatArray

LN_N_REF, LN_D_REF = float(np.log(5e8)), float(np.log(1e10))
# Models of arXiv 2502.05172: two tables of 50257 tokens, 13 width^2 parameters a block, and width / 64 blocks.
VOCAB_SIZE, BLOCK_PARAMS, WIDTH_PER_BLOCK = 50257, 13, 64
OMEGA = 2 * VOCAB_SIZE * (WIDTH_PER_BLOCK / BLOCK_PARAMS) ** (1 / 3)

PARAMETERS = (
    Parameter("L_N", True, "loss of 5e8 parameters without embeddings and endless data"),
    Parameter("alpha", False, "exponent of size and of data"),
    Parameter("L_D", True, "loss of an endless model after 1e10 effective tokens"),
    Parameter("kappa", True, "softness of the bottleneck: 1 adds size and data, near 0 the worse one rules"),
    Parameter("D_0", True, "tokens that the start of training costs"),
    Parameter("eta", False, "exponent of effective experts with many tokens per parameter"),
    Parameter("R", True, "tokens per parameter at which experts give half of that exponent"),
    effective_experts.PARAMETERS[1],
)
L_N, ALPHA, L_D, KAPPA, D_0, ETA, R, MAX = range(len(PARAMETERS))
encode_all, decode = log_coordinates(PARAMETERS)


def encode(public: FloatArray) -> FloatArray:
    """Search coordinates from public units, any leading shape (..., 8); NaN unless E_max > 1."""
    theta = encode_all(public)
    theta[..., MAX] = np.where(theta[..., MAX] > 0.0, theta[..., MAX], np.nan)
    return theta


def ln_body(ln_n: FloatArray) -> tuple[FloatArray, FloatArray]:
    """ln N_b, the size without embeddings, and d ln N_b / d ln N: the real root of N_b + omega N_b^(1/3) = N."""
    z = np.arcsinh(np.exp(ln_n + np.log(1.5) + 0.5 * np.log(3.0) - 1.5 * np.log(OMEGA)))
    root = 2.0 * np.sqrt(OMEGA / 3.0) * np.sinh(z / 3.0)
    return 3.0 * np.log(root), 3.0 * (root**2 + OMEGA) / (3.0 * root**2 + OMEGA)


def _dense(theta: FloatArray, x: Inputs) -> tuple[FloatArray, ...]:
    """Of the loss at E = 1: its logarithm, ln of the two limits, their shares, ln(N_b / N_ref), ln(D_eff / D_ref), D_0's share."""
    t = theta[..., None, :]
    body = ln_body(x.ln_n)[0] - LN_N_REF
    start = np.logaddexp(0.0, t[..., D_0] - x.ln_d)  # ln(1 + D_0 / D)
    data = x.ln_d - LN_D_REF - start
    limit_n = t[..., L_N] - t[..., ALPHA] * body
    limit_d = t[..., L_D] - t[..., ALPHA] * data
    kappa = np.exp(t[..., KAPPA])
    total, (size_share, data_share) = ln_sum(limit_n / kappa, limit_d / kappa)
    return kappa * total, limit_n, limit_d, size_share, data_share, body, data, -np.expm1(-start)


def _ripeness(theta: FloatArray, x: Inputs) -> FloatArray:
    """r / (r + R): how much of the experts' gain the tokens per parameter bring out, (..., n)."""
    t = theta[..., None, :]
    return np.exp(-np.logaddexp(0.0, t[..., R] + x.ln_n - x.ln_d))


def _ln_effective(theta: FloatArray, x: Inputs) -> FloatArray:
    return effective_experts.ln_effective(np.zeros_like(theta[..., MAX]), theta[..., MAX], x)


def log_loss(theta: FloatArray, x: Inputs) -> FloatArray:
    """ln L at each point, shape (..., n)."""
    gain = theta[..., None, ETA] * _ripeness(theta, x) * _ln_effective(theta, x)
    return _dense(theta, x)[0] - gain


def jacobian(theta: FloatArray, x: Inputs) -> FloatArray:
    """Derivatives of ln L in search coordinates, shape (..., n, 8)."""
    total, limit_n, limit_d, size, data, body, tokens, spent = _dense(theta, x)
    e, _, e_m, *_ = effective_experts.derivatives(np.zeros_like(theta[..., MAX]), theta[..., MAX], x)
    ripe, eta, alpha = _ripeness(theta, x), theta[..., None, ETA], theta[..., None, ALPHA]
    columns = (
        size,
        -size * body - data * tokens,
        data,
        total - size * limit_n - data * limit_d,
        data * alpha * spent,
        -ripe * e,
        eta * ripe * (1.0 - ripe) * e,
        -eta * ripe * e_m,
    )
    return np.stack(np.broadcast_arrays(*columns), axis=-1)


def slopes(theta: FloatArray, x: Inputs) -> tuple[FloatArray, FloatArray]:
    """Derivatives of ln L with respect to ln N and ln D at each point, each (..., n)."""
    *_, size, data, _, _, spent = _dense(theta, x)
    ripe = _ripeness(theta, x)
    ripening = theta[..., None, ETA] * ripe * (1.0 - ripe) * _ln_effective(theta, x)
    in_n = ripening - theta[..., None, ALPHA] * size * ln_body(x.ln_n)[1]
    return in_n, -theta[..., None, ALPHA] * data * (1.0 + spent) - ripening


def bounds(observed: Observed) -> FloatArray:
    """The physical box in search coordinates, (8, 2): exponents not negative, kappa at most 1, E_max as in other laws."""
    limit, softness, start = np.log((1e-3, 1e3)), (np.log(0.02), 0.0), np.log((1e4, 1e12))
    e_max = effective_experts.box(observed)[1]
    return np.array([limit, EXPONENT, limit, softness, start, (0.0, 1.0), np.log((1e-3, 1e4)), e_max])


def region(observed: Observed) -> FloatArray:
    """Where a search starts, (8, 2): both limits near the smallest loss seen."""
    near, softness, start = np.log(observed.loss_min) + np.array((-0.5, 0.5)), (np.log(0.1), 0.0), np.log((1e7, 2e9))
    e_max = effective_experts.region(observed)[1]
    return np.array([near, (0.02, 0.4), near, softness, start, (0.0, 0.2), np.log((1.0, 200.0)), e_max])


FORM = LawForm(
    name="moescale2026",
    title="MoE law of size and data as bottlenecks, with experts that ripen",
    equation="L = ((L_N (5e8/N_b)^alpha)^(1/kappa) + (L_D (1e10/D_eff)^alpha)^(1/kappa))^kappa Ehat^(-eta D/(D + R N)); "
    "D_eff = D/(1 + D_0/D); N = N_b + omega N_b^(1/3)",
    source="moescale, chosen by cross-validation on the runs of arXiv 2502.05172 (docs/moescale2026.md)",
    parameters=PARAMETERS,
    encode=encode,
    decode=decode,
    log_loss=log_loss,
    jacobian=jacobian,
    slopes=slopes,
    bounds=bounds,
    region=region,
    uses_experts=True,
    domain="amplitudes are positive and E_max > 1",
)
