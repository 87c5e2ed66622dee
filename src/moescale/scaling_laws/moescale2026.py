"""moescale's own law, of models rather than of letters: body size, expansion, tokens.

    L     = F + ((A (1e9 / N_eff)^alpha)^(1/kappa) + (B (1e10 / D_eff)^beta)^(1/kappa))^kappa
    N_eff = N Xhat^(g r / (r + R)), r = D / N        experts are worth size, once there are tokens enough to train them
    D_eff = D / (1 + D_0 / D)                        D_0: tokens spent on the start of training, a cost paid once
    1 / Xhat = 1 / (X - 1 + 1 / (1 - 1 / E_max)) + 1 / E_max        (Clark et al. 2022, with E_start = 1)

N is the ACTIVE BODY (parameters that a token meets, without embedding tables), X the EXPANSION (FFN weights of all experts over
those that one token meets; 1 is dense), D training tokens. 1e9 and 1e10 are units, not parameters: A is what a body of 1e9
loses by its size, B what 1e10 tokens lose by being few, F what no model of the family avoids.

`moescale2026-late` has Clark et al.'s other saturation too: E_start >= 1, how many experts start to help, with Xhat / E_start
in place of Xhat, so that X = 1 stays dense. E_start = 1 gives the plain form.

Chosen by hold-outs across public tables, docs/evidence/own-law.md. The search moves ln(B / A) in place of ln B.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from moescale.scaling_laws import effective_experts
from moescale.scaling_laws.form import (
    AMPLITUDE,
    EXPONENT,
    Inputs,
    LawForm,
    LinearPart,
    Observed,
    Parameter,
    add_bends,
    ln_sum,
    log_coordinates,
)
from moescale.typing import FloatArray

LN_N_REF, LN_D_REF = float(np.log(1e9)), float(np.log(1e10))

PARAMETERS = (
    Parameter("F", True, "irreducible loss"),
    Parameter("A", True, "loss that a body of 1e9 parameters adds with endless data"),
    Parameter("B", True, "loss that 1e10 effective tokens add at endless size"),
    Parameter("alpha", False, "exponent of size"),
    Parameter("beta", False, "exponent of data"),
    Parameter("kappa", True, "softness of the bottleneck: 1 adds size and data, near 0 the worse one rules"),
    Parameter("D_0", True, "tokens that the start of training costs"),
    Parameter("g", False, "exponent of the expansion in the effective size, with many tokens per parameter"),
    Parameter("R", True, "tokens per parameter at which the expansion has half of that exponent"),
    effective_experts.PARAMETERS[1],
)
F, A, B, ALPHA, BETA, KAPPA, D_0, G, R, MAX = range(len(PARAMETERS))
Q = B  # its column holds ln(B / A) during a search
LATE = (*PARAMETERS, effective_experts.PARAMETERS[0])
START = len(PARAMETERS)
LEAST_FLOOR = 1e-3  # nats per token: as good as none


@dataclass(frozen=True, slots=True)
class Terms:
    """What ln L is made of at each point: values, derivatives by column of theta, second ones by pairs of columns.

    `size` and `data` are ln of the two terms over A.
    """

    size: FloatArray
    data: FloatArray
    size_rows: dict[int, FloatArray]
    data_rows: dict[int, FloatArray]
    size_bends: dict[tuple[int, int], FloatArray]
    data_bends: dict[tuple[int, int], FloatArray]
    size_slopes: tuple[FloatArray, FloatArray]  # in ln N and ln D
    data_slope: FloatArray


def _is_late(theta: FloatArray) -> bool:
    return theta.shape[-1] == len(LATE)


def _start(theta: FloatArray) -> FloatArray:
    """ln E_start / ln E_max, (...): 0 of the forms without it."""
    return theta[..., START] if _is_late(theta) else np.zeros_like(theta[..., MAX])


def _ln_gain(theta: FloatArray, x: Inputs) -> FloatArray:
    """ln Xhat / E_start at each point, (..., n): nothing for dense models."""
    start, most = _start(theta), theta[..., MAX]
    return effective_experts.ln_effective(start, most, x) - (start * most)[..., None]


def _gain(theta: FloatArray, x: Inputs) -> tuple[FloatArray, ...]:
    """`_ln_gain` and its derivatives in E_start's coordinate u and m = ln E_max: e, e_u, e_m, e_uu, e_um, e_mm."""
    start, most = _start(theta), theta[..., MAX]
    e, e_u, e_m, e_uu, e_um, e_mm = effective_experts.derivatives(start, most, x)
    start, most = start[..., None], most[..., None]
    return e - start * most, e_u - most, e_m - start, e_uu, e_um - 1.0, e_mm


def _softplus(z: FloatArray) -> FloatArray:
    """ln(1 + e^z), of complex steps too; faster than logaddexp."""
    positive = z.real > 0.0
    return np.where(positive, z, 0.0) + np.log1p(np.exp(np.where(positive, -z, z)))


def _values(theta: FloatArray, x: Inputs) -> tuple[FloatArray, FloatArray]:
    """`size` and `data` of `Terms` alone, for searches that look at many theta."""
    t = theta[..., None, :]
    gain = t[..., G] * _ln_gain(theta, x)
    body = x.ln_n - LN_N_REF + gain / (1.0 + np.exp(t[..., R] + x.ln_n - x.ln_d))
    data = x.ln_d - LN_D_REF - _softplus(t[..., D_0] - x.ln_d)
    return -t[..., ALPHA] * body, t[..., Q] - t[..., BETA] * data


def _terms(theta: FloatArray, x: Inputs) -> Terms:
    t = theta[..., None, :]
    alpha, beta, g, zero = t[..., ALPHA], t[..., BETA], t[..., G], np.zeros_like(x.ln_n)
    e, e_u, e_m, e_uu, e_um, e_mm = _gain(theta, x)
    ripe = 1.0 / (1.0 + np.exp(t[..., R] + x.ln_n - x.ln_d))  # r / (r + R)
    turn = ripe * (1.0 - ripe)  # its derivative in ln r
    bend = turn * (1.0 - 2.0 * ripe)
    body = x.ln_n - LN_N_REF + g * ripe * e
    start = _softplus(t[..., D_0] - x.ln_d)  # ln(1 + D_0 / D)
    spent = -np.expm1(-start)
    left = spent * (1.0 - spent)
    data = x.ln_d - LN_D_REF - start
    pull = alpha * g
    size_rows = {
        ALPHA: -body,
        G: -alpha * ripe * e,
        R: pull * turn * e,
        MAX: -pull * ripe * e_m,
    }
    size_bends = {
        (ALPHA, G): -ripe * e,
        (ALPHA, R): g * turn * e,
        (ALPHA, MAX): -g * ripe * e_m,
        (G, R): alpha * turn * e,
        (G, MAX): -alpha * ripe * e_m,
        (R, R): -pull * bend * e,
        (R, MAX): pull * turn * e_m,
        (MAX, MAX): -pull * ripe * e_mm,
    }
    if _is_late(theta):
        size_rows[START] = -pull * ripe * e_u
        size_bends |= {
            (ALPHA, START): -g * ripe * e_u,
            (G, START): -alpha * ripe * e_u,
            (R, START): pull * turn * e_u,
            (MAX, START): -pull * ripe * e_um,
            (START, START): -pull * ripe * e_uu,
        }
    data_rows = {Q: zero + 1.0, BETA: -data, D_0: beta * spent}
    data_bends = {(BETA, D_0): spent, (D_0, D_0): beta * left}
    return Terms(
        size=-alpha * body,
        data=t[..., Q] - beta * data,
        size_rows=size_rows,
        data_rows=data_rows,
        size_bends=size_bends,
        data_bends=data_bends,
        size_slopes=(-alpha * (1.0 - g * turn * e), -alpha * g * turn * e),
        data_slope=-beta * (1.0 + spent),
    )


def _ln_norm(theta: FloatArray, size: FloatArray, data: FloatArray) -> FloatArray:
    """ln of the norm of size and data over A."""
    kappa = np.exp(theta[..., KAPPA, None])
    return data + kappa * _softplus((size - data) / kappa)


def _norm(theta: FloatArray, terms: Terms) -> tuple[FloatArray, FloatArray, FloatArray]:
    """ln of the norm of size and data over A, and their shares in it."""
    norm, kappa = _ln_norm(theta, terms.size, terms.data), np.exp(theta[..., KAPPA, None])
    return norm, np.exp((terms.size - norm) / kappa), np.exp((terms.data - norm) / kappa)


def _shares(theta: FloatArray, terms: Terms, norm: FloatArray) -> tuple[FloatArray, FloatArray]:
    """ln L, and the shares of F and of the reducible part in L, (2, ..., n)."""
    return ln_sum(theta[..., F, None], theta[..., A, None] + norm)


def log_loss(theta: FloatArray, x: Inputs) -> FloatArray:
    """ln L at each point, shape (..., n)."""
    norm = _ln_norm(theta, *_values(theta, x))
    return np.log(np.exp(theta[..., F, None]) + np.exp(theta[..., A, None] + norm))


def _rows(shape: tuple[int, ...], columns: dict[int, FloatArray]) -> FloatArray:
    """Derivatives by column, (..., p, n), of an array of `shape` (..., p, n)."""
    out = np.zeros(shape, dtype=np.result_type(*columns.values()))  # of complex steps too
    for column, values in columns.items():
        out[..., column, :] = values
    return out


def _slopes_in_theta(theta: FloatArray, terms: Terms) -> tuple[FloatArray, list[FloatArray], FloatArray, FloatArray]:
    """Shares in L, the derivatives of ln of each term of L, those of ln(size / data) / kappa, and the shares in the norm."""
    norm, by_size, by_data = _norm(theta, terms)
    shares = _shares(theta, terms, norm)[1]
    shape = (*theta.shape[:-1], theta.shape[-1], norm.shape[-1])
    size, data = _rows(shape, terms.size_rows), _rows(shape, terms.data_rows)
    apart = (size - data) / np.exp(theta[..., KAPPA, None, None])
    apart[..., KAPPA, :] = (terms.data - terms.size) / np.exp(theta[..., KAPPA, None])
    reducible = by_size[..., None, :] * size + by_data[..., None, :] * data
    reducible[..., A, :] = 1.0
    reducible[..., KAPPA, :] = norm - by_size * terms.size - by_data * terms.data
    floor = _rows(shape, {F: np.ones_like(norm)})
    return shares, [floor, reducible], apart, np.stack((by_size, by_data))


def jacobian(theta: FloatArray, x: Inputs) -> FloatArray:
    """Derivatives of ln L in search coordinates, shape (..., n, p)."""
    shares, rows, _, _ = _slopes_in_theta(theta, _terms(theta, x))
    return np.swapaxes(sum(share[..., None, :] * row for share, row in zip(shares, rows, strict=True)), -1, -2)


def curvature(theta: FloatArray, x: Inputs, w: FloatArray) -> FloatArray:
    """Weighted sum over points of the second derivatives of ln L, shape (..., p, p), for weights (..., n)."""
    terms = _terms(theta, x)
    shares, rows, apart, (by_size, by_data) = _slopes_in_theta(theta, terms)
    mean = sum(share[..., None, :] * row for share, row in zip(shares, rows, strict=True))
    # As a variance: a difference of mean squares would lose the small terms.
    h = sum(_squares(row - mean, w * share) for share, row in zip(shares, rows, strict=True))
    pull = w * shares[1]
    h += _squares(apart, pull * np.exp(theta[..., KAPPA, None]) * by_size * by_data)
    h[..., KAPPA, KAPPA] += (pull * rows[1][..., KAPPA, :]).sum(axis=-1)
    bends = [(*pair, pull * by_size * value) for pair, value in terms.size_bends.items()]
    bends += [(*pair, pull * by_data * value) for pair, value in terms.data_bends.items()]
    return add_bends(h, bends)


def _squares(rows: FloatArray, weights: FloatArray) -> FloatArray:
    return (rows * weights[..., None, :]) @ np.swapaxes(rows, -1, -2)


def slopes(theta: FloatArray, x: Inputs) -> tuple[FloatArray, FloatArray]:
    """Derivatives of ln L with respect to ln N and ln D at each point, each (..., n)."""
    terms = _terms(theta, x)
    norm, by_size, by_data = _norm(theta, terms)
    _, reducible = _shares(theta, terms, norm)[1]
    in_n = reducible * by_size * terms.size_slopes[0]
    in_d = reducible * (by_size * terms.size_slopes[1] + by_data * terms.data_slope)
    return in_n, in_d


def bounds(observed: Observed) -> FloatArray:
    """The physical box in search coordinates, (10, 2): the loss falls with N, D and X; F lies below the smallest loss."""
    softness, start, ripening = np.log((0.2, 0.8)), np.log((1e4, 1e12)), np.log((1e-3, 1e5))
    size_and_data = [AMPLITUDE, (-12.0, 12.0), EXPONENT, EXPONENT]
    experts = [EXPONENT, ripening, effective_experts.box(observed)[1]]
    floor = np.log(LEAST_FLOOR), observed.irreducible[1]
    return np.array([floor, *size_and_data, softness, start, *experts])


def bounds_late(observed: Observed) -> FloatArray:
    """That of `bounds` with E_start, (11, 2): 1 <= E_start < E_max."""
    return np.array([*bounds(observed), effective_experts.box(observed)[0]])


def _basis(shape: FloatArray, x: Inputs) -> FloatArray:
    """1 and the norm: what F and A multiply."""
    columns = next(each for each in (SHAPE, SHAPE_LATE) if len(each) == shape.shape[-1])
    theta = np.zeros((*shape.shape[:-1], max(columns) + 1))
    theta[..., columns] = shape
    norm = np.exp(_ln_norm(theta, *_values(theta, x)))
    return np.stack([np.ones_like(norm), norm], axis=-1)


def _region(observed: Observed) -> FloatArray:
    softness, start, ripening = np.log((0.2, 0.8)), np.log((1e6, 2e9)), np.log((1.0, 3e3))
    experts = [(0.0, 1.2), ripening, effective_experts.region(observed)[1]]
    return np.array([(-2.0, 2.0), (0.05, 0.5), (0.05, 0.5), softness, start, *experts])


def _region_late(observed: Observed) -> FloatArray:
    return np.array([*_region(observed), effective_experts.region(observed)[0]])


SHAPE = (Q, ALPHA, BETA, KAPPA, D_0, G, R, MAX)
SHAPE_LATE = (*SHAPE, START)


_CODERS = {
    len(PARAMETERS): log_coordinates(PARAMETERS),
    len(LATE): effective_experts.pair_coordinates(LATE),
}


def encode(public: FloatArray) -> FloatArray:
    """Search coordinates from public units, any leading shape (..., p); NaN unless E_max > 1 and 1 <= E_start < E_max."""
    theta = _CODERS[np.asarray(public).shape[-1]][0](public)
    theta[..., Q] -= theta[..., A]
    theta[..., MAX] = np.where(theta[..., MAX] > 0.0, theta[..., MAX], np.nan)
    return theta


def decode(theta: FloatArray) -> FloatArray:
    """Public units from search coordinates, any leading shape (..., p)."""
    logs = np.array(theta, dtype=float)
    logs[..., Q] += logs[..., A]
    return _CODERS[logs.shape[-1]][1](logs)


FORM = LawForm(
    name="moescale2026",
    title="MoE law of models: size and data as bottlenecks above a floor, experts as size",
    equation="L = F + ((A (1e9/N_eff)^alpha)^(1/kappa) + (B (1e10/D_eff)^beta)^(1/kappa))^kappa; "
    "N_eff = N Xhat^(g D/(D + R N)), D_eff = D/(1 + D_0/D); N the active body, X the expansion",
    source="moescale, chosen by hold-outs across public tables (docs/evidence/own-law.md)",
    parameters=PARAMETERS,
    encode=encode,
    decode=decode,
    log_loss=log_loss,
    jacobian=jacobian,
    curvature=curvature,
    slopes=slopes,
    bounds=bounds,
    linear=LinearPart((F, A), SHAPE, _basis, _region),
    uses_experts=True,
    of_models=True,
    domain="amplitudes are positive and E_max > 1",
)
FORM_LATE = replace(
    FORM,
    name="moescale2026-late",
    title="the same with experts that start to help late",
    equation=FORM.equation.replace("Xhat^", "(Xhat/E_start)^"),
    parameters=LATE,
    bounds=bounds_late,
    linear=LinearPart((F, A), SHAPE_LATE, _basis, _region_late),
    domain="amplitudes are positive and 1 <= E_start < E_max",
)
