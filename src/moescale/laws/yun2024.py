"""The MoE law of Yun et al. (arXiv 2404.02852, equation 4), with effective experts after Clark et al. (2202.01169).

    ln L = ln(A / N^alpha + B / Ehat^beta + C / D^gamma + F) + d ln N ln Ehat
    1 / Ehat = 1 / (E - 1 + 1 / (1 / E_start - 1 / E_max)) + 1 / E_max

N is the dense-equivalent size, D the training tokens, E the experts of a layer; Ehat runs from E_start at E = 1 to E_max.
"""

from __future__ import annotations

import numpy as np

from moescale.architecture import FloatArray
from moescale.laws import effective_experts
from moescale.laws.effective_experts import (
    bounds_of_pair,
    decode_pair,
    encode_pair,
    ln_effective,
    ln_effective_derivatives,
    region_of_pair,
)
from moescale.laws.form import Inputs, LawForm, LinearPart, Observed, Parameter, ln_sum

PARAMETERS = (
    Parameter("A", True, "amplitude of the size term"),
    Parameter("alpha", False, "exponent of the size term"),
    Parameter("B", True, "amplitude of the routing term"),
    Parameter("beta", False, "exponent of the routing term"),
    Parameter("C", True, "amplitude of the data term"),
    Parameter("gamma", False, "exponent of the data term"),
    Parameter("F", True, "irreducible loss before the interaction"),
    Parameter("d", False, "interaction of size and experts"),
    *effective_experts.PARAMETERS,
)
A, ALPHA, B, BETA, C, GAMMA, F, D, START, MAX = range(len(PARAMETERS))


def encode(public: FloatArray) -> FloatArray:
    """Search coordinates from public units, any leading shape (..., 10); NaN unless 1 <= E_start < E_max."""
    theta = np.array(public, dtype=float)
    logs = [A, B, C, F]
    theta[..., logs] = np.log(theta[..., logs])
    theta[..., START], theta[..., MAX] = encode_pair(theta[..., START], theta[..., MAX])
    return theta


def decode(theta: FloatArray) -> FloatArray:
    """Public units from search coordinates, any leading shape (..., 10)."""
    public = np.array(theta, dtype=float)
    logs = [A, B, C, F]
    public[..., logs] = np.exp(theta[..., logs])
    public[..., START], public[..., MAX] = decode_pair(theta[..., START], theta[..., MAX])
    return public


def _ln_effective(theta: FloatArray, x: Inputs) -> FloatArray:
    return ln_effective(theta[..., START], theta[..., MAX], x)


def _terms(theta: FloatArray, x: Inputs, ln_e: FloatArray) -> tuple[FloatArray, FloatArray]:
    """ln of the sum of the four terms, and the share of each in it, shapes (..., n) and (4, ..., n)."""
    t = theta[..., None, :]
    return ln_sum(
        t[..., A] - t[..., ALPHA] * x.ln_n,
        t[..., B] - t[..., BETA] * ln_e,
        t[..., C] - t[..., GAMMA] * x.ln_d,
        t[..., F],
    )


def log_loss(theta: FloatArray, x: Inputs) -> FloatArray:
    """ln L at each point, shape (..., n)."""
    ln_e = _ln_effective(theta, x)
    return _terms(theta, x, ln_e)[0] + theta[..., None, D] * x.ln_n * ln_e


def _effective_derivatives(theta: FloatArray, x: Inputs) -> tuple[FloatArray, ...]:
    return ln_effective_derivatives(theta[..., START], theta[..., MAX], x)


def jacobian(theta: FloatArray, x: Inputs) -> FloatArray:
    """Derivatives of ln L in search coordinates, shape (..., n, 10)."""
    e, e_s, e_m, *_ = _effective_derivatives(theta, x)
    _, (a, b, c, f) = _terms(theta, x, e)
    slope = theta[..., None, D] * x.ln_n - theta[..., None, BETA] * b  # of ln L in ln Ehat
    columns = (a, -a * x.ln_n, b, -b * e, c, -c * x.ln_d, f, x.ln_n * e, slope * e_s, slope * e_m)
    return np.stack(np.broadcast_arrays(*columns), axis=-1)


def curvature(theta: FloatArray, x: Inputs, w: FloatArray) -> FloatArray:
    """Weighted sum over points of the second derivatives of ln L, shape (..., 10, 10), for weights (..., n)."""
    e, e_s, e_m, e_ss, e_sm, e_mm = _effective_derivatives(theta, x)
    _, (a, b, c, f) = _terms(theta, x, e)
    beta, d = theta[..., None, BETA], theta[..., None, D]
    zero, one = np.zeros_like(a), np.ones_like(a)
    h = np.zeros((*theta.shape, theta.shape[-1]))

    def add(columns: list[int], rows: list[FloatArray], weight: FloatArray) -> None:
        """Add sum_i weight_i v_i v_i^T on the given columns, v built from `rows`."""
        v = np.stack(np.broadcast_arrays(*rows), axis=-2)
        block = (v * weight[..., None, :]) @ np.swapaxes(v, -1, -2)
        h[..., np.array(columns)[:, None], np.array(columns)] += block

    # Second derivatives of a log-sum-exp: sum of share * z' z'^T, minus the outer product of the mean z'.
    add([A, ALPHA], [one, -x.ln_n + zero], w * a)
    add([B, BETA, START, MAX], [one, -e, -beta * e_s, -beta * e_m], w * b)
    add([C, GAMMA], [one, -x.ln_d + zero], w * c)
    h[..., F, F] += (w * f).sum(axis=-1)
    mean = [a, -a * x.ln_n, b, -b * e, c, -c * x.ln_d, f, -beta * b * e_s, -beta * b * e_m]
    add([A, ALPHA, B, BETA, C, GAMMA, F, START, MAX], mean, -w)

    slope = w * (d * x.ln_n - beta * b)
    for i, j, value in (
        (START, START, slope * e_ss),
        (START, MAX, slope * e_sm),
        (MAX, MAX, slope * e_mm),
        (BETA, START, -w * b * e_s),
        (BETA, MAX, -w * b * e_m),
        (D, START, w * x.ln_n * e_s),
        (D, MAX, w * x.ln_n * e_m),
    ):
        total = value.sum(axis=-1)
        h[..., i, j] += total
        if i != j:
            h[..., j, i] += total
    return h


def slopes(theta: FloatArray, x: Inputs) -> tuple[FloatArray, FloatArray]:
    """Derivatives of ln L with respect to ln N and ln D at each point, each (..., n)."""
    ln_e = _ln_effective(theta, x)
    _, (a, _, c, _) = _terms(theta, x, ln_e)
    return theta[..., None, D] * ln_e - theta[..., None, ALPHA] * a, -theta[..., None, GAMMA] * c


def bounds(observed: Observed) -> FloatArray:
    """The physical box in search coordinates, (10, 2).

    Amplitudes are positive (1e-6 is as good as absent at any size), F stays below the smallest loss, exponents lie in
    [0, 3], 1 <= E_start < E_max, and E_max in [max(4, E_observed / 2), 1e4].
    """
    amplitude, exponent = (np.log(1e-6), 60.0), (0.0, 3.0)
    return np.array(
        [
            amplitude,
            exponent,
            amplitude,
            exponent,
            amplitude,
            exponent,
            (np.log(1e-6), np.log(observed.loss_min) + 1.0),  # the interaction may raise F above a loss
            (-1.0, 1.0),
            *bounds_of_pair(observed),
        ]
    )


SHAPE = (ALPHA, BETA, GAMMA, D, START, MAX)


def _basis(shape: FloatArray, x: Inputs) -> FloatArray:
    ln_e = ln_effective(shape[..., 4], shape[..., 5], x)
    s = shape[..., None, :]
    columns = (np.exp(-s[..., 0] * x.ln_n), np.exp(-s[..., 1] * ln_e), np.exp(-s[..., 2] * x.ln_d), np.ones_like(ln_e))
    return np.stack(np.broadcast_arrays(*columns), axis=-1)


def _offset(shape: FloatArray, x: Inputs) -> FloatArray:
    return shape[..., None, 3] * x.ln_n * ln_effective(shape[..., 4], shape[..., 5], x)


def _region(observed: Observed) -> FloatArray:
    return np.array([(0.05, 1.0), (0.05, 2.0), (0.05, 1.0), (-0.02, 0.02), *region_of_pair(observed)])


def published_grid(observed: Observed) -> tuple[FloatArray, ...]:
    """The starts of the paper's appendix, one axis a parameter: 810,000 in all.

    The paper names none for E_start and E_max: 2 and twice the largest observed E (ours).
    """
    exponent, amplitude = np.arange(0.0, 2.01, 0.5), np.arange(0.0, 25.1, 5.0)
    f = np.arange(-1.0, 1.01, 0.5)
    e_max = np.log(np.clip(2.0 * observed.experts_max, 4.0, 1e4))
    return (
        amplitude, exponent, amplitude, exponent, amplitude, exponent, f, amplitude,
        np.array([np.log(2.0) / e_max]), np.array([e_max]),
    )  # fmt: skip


FORM = LawForm(
    name="yun2024",
    title="MoE law in N, D and E",
    equation="ln L = ln(A/N^alpha + B/Ehat^beta + C/D^gamma + F) + d ln N ln Ehat",
    source="Yun et al. 2024, arXiv 2404.02852, equation 4",
    parameters=PARAMETERS,
    encode=encode,
    decode=decode,
    log_loss=log_loss,
    jacobian=jacobian,
    curvature=curvature,
    slopes=slopes,
    bounds=bounds,
    linear=LinearPart((A, B, C, F), SHAPE, _basis, _offset, _region),
    uses_experts=True,
    domain=f"amplitudes are positive and {effective_experts.DOMAIN}",
    published_grid=published_grid,
)
