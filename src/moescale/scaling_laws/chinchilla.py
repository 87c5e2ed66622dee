"""The dense law of Hoffmann et al. (arXiv 2203.15556, approach 3): L = E + A / N^alpha + B / D^beta."""

from __future__ import annotations

import numpy as np

from moescale.scaling_laws.form import Inputs, LawForm, LinearPart, Observed, Parameter, ln_sum
from moescale.typing import FloatArray

PARAMETERS = (
    Parameter("E", True, "irreducible loss"),
    Parameter("A", True, "amplitude of the size term"),
    Parameter("B", True, "amplitude of the data term"),
    Parameter("alpha", False, "exponent of the size term"),
    Parameter("beta", False, "exponent of the data term"),
)
E, A, B, ALPHA, BETA = range(len(PARAMETERS))


def encode(public: FloatArray) -> FloatArray:
    """Search coordinates from public units, any leading shape (..., 5)."""
    theta = np.array(public, dtype=float)
    theta[..., :ALPHA] = np.log(theta[..., :ALPHA])
    return theta


def decode(theta: FloatArray) -> FloatArray:
    """Public units from search coordinates, any leading shape (..., 5)."""
    public = np.array(theta, dtype=float)
    public[..., :ALPHA] = np.exp(theta[..., :ALPHA])
    return public


def _terms(theta: FloatArray, x: Inputs) -> tuple[FloatArray, FloatArray]:
    """ln L and the share of each term in L (E, A, B), shapes (..., n) and (3, ..., n)."""
    t = theta[..., None, :]
    return ln_sum(t[..., E], t[..., A] - t[..., ALPHA] * x.ln_n, t[..., B] - t[..., BETA] * x.ln_d)


def log_loss(theta: FloatArray, x: Inputs) -> FloatArray:
    """ln L at each point, shape (..., n)."""
    return _terms(theta, x)[0]


def _mean_slope(theta: FloatArray, x: Inputs) -> tuple[FloatArray, FloatArray]:
    _, (e, a, b) = _terms(theta, x)
    return np.stack((e, a, b, -a * x.ln_n, -b * x.ln_d), axis=-2), np.stack((e, a, b))


def jacobian(theta: FloatArray, x: Inputs) -> FloatArray:
    """Derivatives of ln L in search coordinates, shape (..., n, 5)."""
    return np.swapaxes(_mean_slope(theta, x)[0], -1, -2)


def curvature(theta: FloatArray, x: Inputs, w: FloatArray) -> FloatArray:
    """Weighted sum over points of the second derivatives of ln L, shape (..., 5, 5), for weights (..., n)."""
    mean, (e, a, b) = _mean_slope(theta, x)
    h = -(mean * w[..., None, :]) @ np.swapaxes(mean, -1, -2)
    h[..., E, E] += (w * e).sum(axis=-1)
    for amplitude, exponent, share, ln in ((A, ALPHA, a, x.ln_n), (B, BETA, b, x.ln_d)):
        h[..., amplitude, amplitude] += (w * share).sum(axis=-1)
        cross = (w * share * ln).sum(axis=-1)
        h[..., amplitude, exponent] -= cross
        h[..., exponent, amplitude] -= cross
        h[..., exponent, exponent] += (w * share * ln**2).sum(axis=-1)
    return h


def slopes(theta: FloatArray, x: Inputs) -> tuple[FloatArray, FloatArray]:
    """Derivatives of ln L with respect to ln N and ln D at each point, each (..., n)."""
    _, (_, a, b) = _terms(theta, x)
    return -theta[..., None, ALPHA] * a, -theta[..., None, BETA] * b


def bounds(observed: Observed) -> FloatArray:
    """The physical box in search coordinates, (5, 2): E below the smallest loss, exponents in [0, 3]."""
    amplitude, exponent = (np.log(1e-6), 60.0), (0.0, 3.0)
    return np.array([(np.log(1e-6), np.log(observed.loss_min)), amplitude, amplitude, exponent, exponent])


def _basis(shape: FloatArray, x: Inputs) -> FloatArray:
    n, d = np.exp(-shape[..., 0, None] * x.ln_n), np.exp(-shape[..., 1, None] * x.ln_d)
    return np.stack(np.broadcast_arrays(np.ones_like(n), n, d), axis=-1)


def _offset(shape: FloatArray, x: Inputs) -> FloatArray:
    return np.zeros((*shape.shape[:-1], x.ln_n.size))


def loss_optimal(theta: FloatArray, budget_flops: float, flops_multiple: float) -> tuple[float, float]:
    """Loss-optimal (N, D) where training costs 6 * flops_multiple * N * D FLOPs (equation 4 of Hoffmann et al.)."""
    a, b, alpha, beta = theta[A], theta[B], theta[ALPHA], theta[BETA]
    work = np.log(budget_flops / (6.0 * flops_multiple))
    ln_g = (np.log(alpha) + a - np.log(beta) - b) / (alpha + beta)
    ln_n = ln_g + work * beta / (alpha + beta)
    return float(np.exp(ln_n)), float(np.exp(work - ln_n))


FORM = LawForm(
    name="chinchilla",
    title="dense law in N and D",
    equation="L = E + A/N^alpha + B/D^beta",
    source="Hoffmann et al. 2022, arXiv 2203.15556, section 3.3",
    parameters=PARAMETERS,
    encode=encode,
    decode=decode,
    log_loss=log_loss,
    jacobian=jacobian,
    curvature=curvature,
    slopes=slopes,
    bounds=bounds,
    linear=LinearPart((E, A, B), (ALPHA, BETA), _basis, _offset, lambda _: np.array([(0.05, 1.5), (0.05, 1.5)])),
    uses_experts=False,
    loss_optimal=loss_optimal,
)
