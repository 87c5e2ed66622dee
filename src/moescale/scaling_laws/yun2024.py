"""The MoE law of Yun et al. (arXiv 2404.02852, equation 4), with effective experts after Clark et al. (2202.01169).

    ln L = ln(A / N^alpha + B / Ehat^beta + C / D^gamma + F) + d ln N ln Ehat
    1 / Ehat = 1 / (E - 1 + 1 / (1 / E_start - 1 / E_max)) + 1 / E_max

N is the dense-equivalent size, D the training tokens, E the experts of a layer; Ehat runs from E_start at E = 1 to E_max.
The search moves ln E_max and the ratio ln E_start / ln E_max, so that 1 <= E_start < E_max is a box.

As published, the interaction vanishes at N = 1 parameter, so d must bend the gain of the experts at every size in order to
change it with size, and counting N in other units gives another law. `CENTRED` has d ln(N/N0) ln Ehat: N0, the size at
which the interaction vanishes, frees it from the unit; with N0 = 1 the law is yun2024.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from moescale.scaling_laws import effective_experts, form
from moescale.scaling_laws.form import (
    Inputs,
    LawForm,
    LinearPart,
    Observed,
    Parameter,
    ln_sum,
    stacked,
)
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
N0 = Parameter("N0", True, "size at which the interaction vanishes")
A, ALPHA, B, BETA, C, GAMMA, F, D, START, MAX = range(len(PARAMETERS))
CENTRE = len(PARAMETERS)  # ln N0, where theta has it
AMPLITUDES = (A, B, C, F)
SHAPE = (ALPHA, BETA, GAMMA, D, START, MAX)
S_ALPHA, S_BETA, S_GAMMA, S_D, S_START, S_MAX, S_CENTRE = range(len(SHAPE) + 1)  # columns of the shape parameters


def _lever(theta: FloatArray, x: Inputs, column: int = CENTRE) -> FloatArray:
    """What multiplies d ln Ehat: ln N, or ln(N / N0) where theta has N0, shape (..., n)."""
    return x.ln_n - theta[..., column, None] if theta.shape[-1] > column else x.ln_n


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
    ln_e = effective_experts.ln_effective(theta[..., START], theta[..., MAX], x)
    return _terms(theta, x, ln_e)[0] + theta[..., None, D] * _lever(theta, x) * ln_e


def jacobian(theta: FloatArray, x: Inputs) -> FloatArray:
    """Derivatives of ln L in search coordinates, shape (..., n, 10 or 11)."""
    e, e_s, e_m = effective_experts.derivatives(theta[..., START], theta[..., MAX], x)
    _, (a, b, c, f) = _terms(theta, x, e)
    d, lever = theta[..., None, D], _lever(theta, x)
    slope = d * lever - theta[..., None, BETA] * b  # of ln L in ln Ehat
    columns = [a, -a * x.ln_n, b, -b * e, c, -c * x.ln_d, f, lever * e, slope * e_s, slope * e_m]
    if theta.shape[-1] > CENTRE:
        columns.append(-d * e)
    return stacked(columns, -1)


def slopes(theta: FloatArray, x: Inputs) -> tuple[FloatArray, FloatArray]:
    """Derivatives of ln L with respect to ln N and ln D at each point, each (..., n)."""
    ln_e = effective_experts.ln_effective(theta[..., START], theta[..., MAX], x)
    _, (a, _, c, _) = _terms(theta, x, ln_e)
    return theta[..., None, D] * ln_e - theta[..., None, ALPHA] * a, -theta[..., None, GAMMA] * c


def _basis(shape: FloatArray, x: Inputs) -> FloatArray:
    """What the amplitudes A, B, C and F multiply, (..., n, 4)."""
    s, ln_e = shape[..., None, :], effective_experts.ln_effective(shape[..., S_START], shape[..., S_MAX], x)
    columns = (
        np.exp(-s[..., S_ALPHA] * x.ln_n),
        np.exp(-s[..., S_BETA] * ln_e),
        np.exp(-s[..., S_GAMMA] * x.ln_d),
        np.ones_like(ln_e),
    )
    return stacked(columns, -1)


def _offset(shape: FloatArray, x: Inputs) -> FloatArray:
    """The interaction, (..., n)."""
    ln_e = effective_experts.ln_effective(shape[..., S_START], shape[..., S_MAX], x)
    return shape[..., None, S_D] * _lever(shape, x, S_CENTRE) * ln_e


def _grid(observed: Observed, centred: bool) -> tuple[FloatArray, ...]:
    """The starts of the paper's appendix, one axis a parameter: 810,000 in all.

    The paper names none for E_start and E_max: 2 and twice the largest observed E (ours).
    """
    exponent, amplitude, f = np.arange(0.0, 2.01, 0.5), np.arange(0.0, 25.1, 5.0), np.arange(-1.0, 1.01, 0.5)
    e_max = np.log(np.clip(2.0 * observed.experts_max, 4.0, 1e4))
    ends = (np.array([np.log(2.0) / e_max]), np.array([e_max]))
    middle = (np.array([np.log(observed.n_params_mid)]),) if centred else ()  # ours
    return (*(amplitude, exponent) * 3, f, amplitude, *ends, *middle)


def bounds(observed: Observed) -> FloatArray:
    """The physical box in search coordinates, (10, 2): d in [-1, 1], and the interaction may raise F above a loss."""
    (least, most), terms = observed.irreducible, (form.AMPLITUDE, form.EXPONENT) * 3
    return np.array([*terms, (least, most + 1.0), (-1.0, 1.0), *effective_experts.box(observed)])


def region(observed: Observed) -> FloatArray:
    """Where a search of the shape parameters looks, (6, 2)."""
    return np.array([(0.05, 1.0), (0.05, 2.0), (0.05, 1.0), (-0.02, 0.02), *effective_experts.region(observed)])


# Of the centred form. ln N0: any positive size will do, since the runs' own N0 may lie far outside their sizes where d is
# small; of N0 over the runs' mean size, that the search scans; and of d, ten times the published law's, since ln(N/N0) is
# some ten times smaller than ln N.
N0_LIMITS, N0_REGION, D_REGION = (-60.0, 80.0), np.log((1e-5, 1e4)), (-0.2, 0.2)


def _form(*, centred: bool) -> LawForm:
    parameters = (*PARAMETERS, N0) if centred else PARAMETERS
    encode, decode = effective_experts.pair_coordinates(parameters)

    def box(observed: Observed) -> FloatArray:
        return np.vstack((bounds(observed), N0_LIMITS)) if centred else bounds(observed)

    def searched(observed: Observed) -> FloatArray:
        published = region(observed)
        if not centred:
            return published
        published[S_D] = D_REGION
        return np.vstack((published, np.log(observed.n_params_mid) + N0_REGION))

    return LawForm(
        name="yun2024-centred" if centred else "yun2024",
        title="MoE law in N, D and E" + ", interaction centred at N0" * centred,
        equation=f"ln L = ln(A/N^alpha + B/Ehat^beta + C/D^gamma + F) + d {'ln(N/N0)' if centred else 'ln N'} ln Ehat",
        source="Yun et al. 2024, arXiv 2404.02852, equation 4" + "; N0 is ours" * centred,
        parameters=parameters,
        encode=encode,
        decode=decode,
        log_loss=log_loss,
        jacobian=jacobian,
        slopes=slopes,
        bounds=box,
        linear=LinearPart(AMPLITUDES, (*SHAPE, CENTRE) if centred else SHAPE, _basis, searched, _offset),
        uses_experts=True,
        domain=f"amplitudes are positive and {effective_experts.DOMAIN}",
        published_grid=partial(_grid, centred=centred),
        is_equation4=True,
    )


FORM, CENTRED = _form(centred=False), _form(centred=True)
