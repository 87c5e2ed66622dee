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

from dataclasses import replace

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
    ln_sum,
    log_coordinates,
    stacked,
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


def _start(theta: FloatArray) -> FloatArray:
    """ln E_start / ln E_max, (...): 0 of the form without it."""
    return theta[..., START] if theta.shape[-1] > START else np.zeros_like(theta[..., MAX])


def _ln_gain(theta: FloatArray, x: Inputs) -> FloatArray:
    """ln Xhat / E_start at each point, (..., n): nothing for dense models."""
    start, most = _start(theta), theta[..., MAX]
    return effective_experts.ln_effective(start, most, x) - (start * most)[..., None]


def _softplus(z: FloatArray) -> FloatArray:
    """ln(1 + e^z), of complex steps too; faster than logaddexp."""
    positive = z.real > 0.0
    return np.where(positive, z, 0.0) + np.log1p(np.exp(np.where(positive, -z, z)))


def _ripe(t: FloatArray, x: Inputs) -> FloatArray:
    """r / (r + R) at each point."""
    return 1.0 / (1.0 + np.exp(t[..., R] + x.ln_n - x.ln_d))


def _values(theta: FloatArray, x: Inputs) -> tuple[FloatArray, FloatArray]:
    """ln of the terms in size and data over A, each (..., n)."""
    t = theta[..., None, :]
    body = x.ln_n - LN_N_REF + t[..., G] * _ln_gain(theta, x) * _ripe(t, x)
    data = x.ln_d - LN_D_REF - _softplus(t[..., D_0] - x.ln_d)
    return -t[..., ALPHA] * body, t[..., Q] - t[..., BETA] * data


def _ln_norm(theta: FloatArray, size: FloatArray, data: FloatArray) -> FloatArray:
    """ln of the norm of size and data over A."""
    kappa = np.exp(theta[..., KAPPA, None])
    return data + kappa * _softplus((size - data) / kappa)


def log_loss(theta: FloatArray, x: Inputs) -> FloatArray:
    """ln L at each point, shape (..., n)."""
    norm = _ln_norm(theta, *_values(theta, x))
    return np.log(np.exp(theta[..., F, None]) + np.exp(theta[..., A, None] + norm))


def _shares(theta: FloatArray, x: Inputs) -> tuple[FloatArray, ...]:
    """ln of size, data and their norm over A, and the share of F, size and data in L, each (..., n)."""
    size, data = _values(theta, x)
    norm, kappa = _ln_norm(theta, size, data), np.exp(theta[..., KAPPA, None])
    floor, reducible = ln_sum(theta[..., F, None], theta[..., A, None] + norm)[1]
    return size, data, norm, floor, *(reducible * np.exp((each - norm) / kappa) for each in (size, data))


def jacobian(theta: FloatArray, x: Inputs) -> FloatArray:
    """Derivatives of ln L in search coordinates, shape (..., n, p)."""
    t = theta[..., None, :]
    size, data, norm, floor, of_size, of_data = _shares(theta, x)
    start, most = _start(theta), theta[..., MAX]
    e, e_u, e_m = effective_experts.derivatives(start, most, x)
    gain, in_start, in_max = e - (start * most)[..., None], e_u - most[..., None], e_m - start[..., None]
    ripe = _ripe(t, x)
    pull = of_size * t[..., ALPHA] * ripe
    spent = _softplus(t[..., D_0] - x.ln_d)  # ln(1 + D_0 / D)
    columns = {
        F: floor,
        A: of_size + of_data,
        Q: of_data,
        ALPHA: -of_size * (x.ln_n - LN_N_REF + t[..., G] * gain * ripe),
        BETA: -of_data * (x.ln_d - LN_D_REF - spent),
        KAPPA: (of_size + of_data) * norm - of_size * size - of_data * data,
        D_0: -of_data * t[..., BETA] * np.expm1(-spent),
        G: -pull * gain,
        R: pull * t[..., G] * (1.0 - ripe) * gain,
        MAX: -pull * t[..., G] * in_max,
        START: -pull * t[..., G] * in_start,
    }
    return stacked([columns[column] for column in range(theta.shape[-1])], -1)


def slopes(theta: FloatArray, x: Inputs) -> tuple[FloatArray, FloatArray]:
    """Derivatives of ln L with respect to ln N and ln D at each point, each (..., n)."""
    t = theta[..., None, :]
    *_, of_size, of_data = _shares(theta, x)
    ripe = _ripe(t, x)
    turn = t[..., G] * ripe * (1.0 - ripe) * _ln_gain(theta, x)
    spent = -np.expm1(-_softplus(t[..., D_0] - x.ln_d))
    in_n = -of_size * t[..., ALPHA] * (1.0 - turn)
    return in_n, -of_size * t[..., ALPHA] * turn - of_data * t[..., BETA] * (1.0 + spent)


def bounds(observed: Observed) -> FloatArray:
    """The physical box in search coordinates, (10, 2): the loss falls with N, D and X; F lies below the smallest loss."""
    softness, start, ripening = np.log((0.2, 0.8)), np.log((1e4, 1e12)), np.log((1e-3, 1e5))
    size_and_data = [AMPLITUDE, (-12.0, 12.0), EXPONENT, EXPONENT]
    experts = [EXPONENT, ripening, effective_experts.box(observed)[1]]
    floor = np.log(LEAST_FLOOR), observed.irreducible[1]
    return np.array([floor, *size_and_data, softness, start, *experts])


def bounds_late(observed: Observed) -> FloatArray:
    """That of `bounds` with E_start, (11, 2): 1 <= E_start < E_max."""
    return np.vstack((bounds(observed), effective_experts.box(observed)[0]))


def _basis(shape: FloatArray, x: Inputs) -> FloatArray:
    """1 and the norm: what F and A multiply."""
    theta = np.zeros((*shape.shape[:-1], shape.shape[-1] + 2))
    theta[..., SHAPE_LATE[: shape.shape[-1]]] = shape
    norm = np.exp(_ln_norm(theta, *_values(theta, x)))
    return np.stack([np.ones_like(norm), norm], axis=-1)


def _region(observed: Observed) -> FloatArray:
    softness, start, ripening = np.log((0.2, 0.8)), np.log((1e6, 2e9)), np.log((1.0, 3e3))
    experts = [(0.0, 1.2), ripening, effective_experts.region(observed)[1]]
    return np.array([(-2.0, 2.0), (0.05, 0.5), (0.05, 0.5), softness, start, *experts])


SHAPE = (Q, ALPHA, BETA, KAPPA, D_0, G, R, MAX)
SHAPE_LATE = (*SHAPE, START)
_CODERS = {len(PARAMETERS): log_coordinates(PARAMETERS), len(LATE): effective_experts.pair_coordinates(LATE)}


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
    linear=LinearPart(
        (F, A), SHAPE_LATE, _basis, lambda seen: np.vstack((_region(seen), effective_experts.region(seen)[0]))
    ),
    domain="amplitudes are positive and 1 <= E_start < E_max",
)
