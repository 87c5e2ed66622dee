"""The MoE law of Yun et al. (arXiv 2404.02852, equation 4), with effective experts after Clark et al. (2202.01169).

    ln L = ln(A / N^alpha + B / Ehat^beta + C / D^gamma + F) + d ln N ln Ehat
    1 / Ehat = 1 / (E - 1 + 1 / (1 / E_start - 1 / E_max)) + 1 / E_max

N is the dense-equivalent size, D the training tokens, E the experts of a layer; Ehat runs from E_start at E = 1 to E_max.
The search moves ln E_max and the ratio ln E_start / ln E_max, so that 1 <= E_start < E_max is a box. Without the box
(`FREE`) it moves ln E_max and ln ln(E_max / E_start), which admit E_start and E_max below 1.

`yun2024_centred` adds N0, the size at which the interaction vanishes: d ln(N/N0) ln Ehat. The functions here serve both:
a theta of eleven coordinates is centred.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from moescale.scaling_laws import effective_experts
from moescale.scaling_laws.effective_experts import (
    Start,
    bounds_of_pair,
    decode_pair,
    encode_pair,
    ln_effective,
    ln_effective_derivatives,
    region_of_pair,
)
from moescale.scaling_laws.form import Inputs, LawForm, LinearPart, Observed, Parameter, ln_sum
from moescale.typing import FloatArray

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
CENTRE = len(PARAMETERS)  # ln N0, where theta has it


def encode(public: FloatArray, start: Start = "ratio") -> FloatArray:
    """Search coordinates from public units, any leading shape (..., 10 or 11); NaN unless 1 <= E_start < E_max."""
    theta = np.array(public, dtype=float)
    logs = [A, B, C, F, *range(CENTRE, theta.shape[-1])]
    theta[..., logs] = np.log(theta[..., logs])
    theta[..., START], theta[..., MAX] = encode_pair(theta[..., START], theta[..., MAX], start)
    return theta


def decode(theta: FloatArray, start: Start = "ratio") -> FloatArray:
    """Public units from search coordinates, any leading shape (..., 10 or 11)."""
    public = np.array(theta, dtype=float)
    logs = [A, B, C, F, *range(CENTRE, public.shape[-1])]
    public[..., logs] = np.exp(public[..., logs])
    public[..., START], public[..., MAX] = decode_pair(theta[..., START], theta[..., MAX], start)
    return public


def _lever(theta: FloatArray, x: Inputs) -> FloatArray:
    """What multiplies d ln Ehat: ln N, or ln(N / N0) where theta has N0, shape (..., n)."""
    return x.ln_n - theta[..., CENTRE, None] if theta.shape[-1] > CENTRE else x.ln_n


def _terms(theta: FloatArray, x: Inputs, ln_e: FloatArray) -> tuple[FloatArray, FloatArray]:
    """ln of the sum of the four terms, and the share of each in it, shapes (..., n) and (4, ..., n)."""
    t = theta[..., None, :]
    return ln_sum(
        t[..., A] - t[..., ALPHA] * x.ln_n,
        t[..., B] - t[..., BETA] * ln_e,
        t[..., C] - t[..., GAMMA] * x.ln_d,
        t[..., F],
    )


def log_loss(theta: FloatArray, x: Inputs, start: Start = "ratio") -> FloatArray:
    """ln L at each point, shape (..., n)."""
    ln_e = ln_effective(theta[..., START], theta[..., MAX], x, how=start)
    return _terms(theta, x, ln_e)[0] + theta[..., None, D] * _lever(theta, x) * ln_e


def _effective_derivatives(theta: FloatArray, x: Inputs, start: Start) -> tuple[FloatArray, ...]:
    return ln_effective_derivatives(theta[..., START], theta[..., MAX], x, how=start)


def jacobian(theta: FloatArray, x: Inputs, start: Start = "ratio") -> FloatArray:
    """Derivatives of ln L in search coordinates, shape (..., n, 10 or 11)."""
    e, e_s, e_m, *_ = _effective_derivatives(theta, x, start)
    _, (a, b, c, f) = _terms(theta, x, e)
    d, lever = theta[..., None, D], _lever(theta, x)
    slope = d * lever - theta[..., None, BETA] * b  # of ln L in ln Ehat
    columns = [a, -a * x.ln_n, b, -b * e, c, -c * x.ln_d, f, lever * e, slope * e_s, slope * e_m]
    if theta.shape[-1] > CENTRE:
        columns.append(-d * e)
    return np.stack(np.broadcast_arrays(*columns), axis=-1)


def curvature(theta: FloatArray, x: Inputs, w: FloatArray, start: Start = "ratio") -> FloatArray:
    """Weighted sum over points of the second derivatives of ln L, shape (..., p, p), for weights (..., n)."""
    e, e_s, e_m, e_ss, e_sm, e_mm = _effective_derivatives(theta, x, start)
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

    lever = _lever(theta, x)
    slope = w * (d * lever - beta * b)
    pairs = [
        (START, START, slope * e_ss),
        (START, MAX, slope * e_sm),
        (MAX, MAX, slope * e_mm),
        (BETA, START, -w * b * e_s),
        (BETA, MAX, -w * b * e_m),
        (D, START, w * lever * e_s),
        (D, MAX, w * lever * e_m),
    ]
    if theta.shape[-1] > CENTRE:
        pairs += [(D, CENTRE, -w * e), (START, CENTRE, -w * d * e_s), (MAX, CENTRE, -w * d * e_m)]
    for i, j, value in pairs:
        total = value.sum(axis=-1)
        h[..., i, j] += total
        if i != j:
            h[..., j, i] += total
    return h


def slopes(theta: FloatArray, x: Inputs, start: Start = "ratio") -> tuple[FloatArray, FloatArray]:
    """Derivatives of ln L with respect to ln N and ln D at each point, each (..., n)."""
    ln_e = ln_effective(theta[..., START], theta[..., MAX], x, how=start)
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


AMPLITUDES = (A, B, C, F)
SHAPE = (ALPHA, BETA, GAMMA, D, START, MAX)


# Columns of the shape parameters: those of SHAPE, and ln N0 where the law has it.
S_ALPHA, S_BETA, S_GAMMA, S_D, S_START, S_MAX, S_CENTRE = range(len(SHAPE) + 1)


def basis(shape: FloatArray, x: Inputs, start: Start = "ratio") -> FloatArray:
    """What the amplitudes A, B, C and F multiply, (..., n, 4), for shape parameters (..., 6 or 7)."""
    ln_e = ln_effective(shape[..., S_START], shape[..., S_MAX], x, how=start)
    s = shape[..., None, :]
    columns = (
        np.exp(-s[..., S_ALPHA] * x.ln_n),
        np.exp(-s[..., S_BETA] * ln_e),
        np.exp(-s[..., S_GAMMA] * x.ln_d),
        np.ones_like(ln_e),
    )
    return np.stack(np.broadcast_arrays(*columns), axis=-1)


def offset(shape: FloatArray, x: Inputs, start: Start = "ratio") -> FloatArray:
    """The interaction, (..., n), for shape parameters (..., 6 or 7)."""
    lever = x.ln_n - shape[..., S_CENTRE, None] if shape.shape[-1] > S_CENTRE else x.ln_n
    return shape[..., None, S_D] * lever * ln_effective(shape[..., S_START], shape[..., S_MAX], x, how=start)


def region(observed: Observed) -> FloatArray:
    """Where a search of the shape parameters looks, (6, 2)."""
    return np.array([(0.05, 1.0), (0.05, 2.0), (0.05, 1.0), (-0.02, 0.02), *region_of_pair(observed)])


def published_grid(observed: Observed, start: Start = "ratio") -> tuple[FloatArray, ...]:
    """The starts of the paper's appendix, one axis a parameter: 810,000 in all.

    The paper names none for E_start and E_max: 2 and twice the largest observed E (ours).
    """
    exponent, amplitude = np.arange(0.0, 2.01, 0.5), np.arange(0.0, 25.1, 5.0)
    f = np.arange(-1.0, 1.01, 0.5)
    e_max = np.log(np.clip(2.0 * observed.experts_max, 4.0, 1e4))
    ln_two = np.log(2.0)
    e_start = ln_two / e_max if start == "ratio" else np.log(e_max - ln_two)
    return (
        amplitude, exponent, amplitude, exponent, amplitude, exponent, f, amplitude,
        np.array([e_start]), np.array([e_max]),
    )  # fmt: skip


def free_bounds(_: Observed) -> FloatArray:
    """Limits that only keep the arithmetic finite, (10, 2), in the coordinates of `FREE`."""
    amplitude, exponent = (-70.0, 300.0), (-3.0, 10.0)
    return np.array(
        [amplitude, exponent, amplitude, exponent, amplitude, exponent, (-70.0, 20.0), (-2.0, 2.0), (-12.0, 3.5), (-20.0, 20.0)]
    )  # fmt: skip


def free_region(_: Observed) -> FloatArray:
    """Where a search without the box looks: E_max from e^-10 to e^10, E_start from nearly that down to e^-12 of it."""
    return np.array([(0.05, 1.0), (-1.0, 2.0), (0.05, 1.0), (-0.1, 0.1), (-6.0, 2.5), (-10.0, 10.0)])


_BOXED = LawForm(
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
    linear=LinearPart(AMPLITUDES, SHAPE, basis, offset, region),
    uses_experts=True,
    domain=f"amplitudes are positive and {effective_experts.DOMAIN}",
    published_grid=published_grid,
    equation4="ratio",
)

_HOW: dict[str, Start] = {"start": "spread"}
FREE = replace(
    _BOXED,
    encode=partial(encode, **_HOW),
    decode=partial(decode, **_HOW),
    log_loss=partial(log_loss, **_HOW),
    jacobian=partial(jacobian, **_HOW),
    curvature=partial(curvature, **_HOW),
    slopes=partial(slopes, **_HOW),
    bounds=free_bounds,
    linear=LinearPart(AMPLITUDES, SHAPE, partial(basis, **_HOW), partial(offset, **_HOW), free_region),
    domain="amplitudes are positive and E_start < E_max",
    published_grid=partial(published_grid, **_HOW),
    equation4="spread",
)
FORM = replace(_BOXED, free=FREE)
