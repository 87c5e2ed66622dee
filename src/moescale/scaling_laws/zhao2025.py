"""The MoE law in five variables of Zhao et al. (arXiv 2509.23678, Tencent).

    L = (e G + f/G + m S^2 + n S) (N^-alpha + k N_a^-alpha + h N_a/N) + a N^-alpha + b D^-beta + c N_a^-alpha + eps

N counts all parameters, N_a those that a token meets (whether embeddings count is not said). Here N is the size, and
`sparsity` is 1 - N_a/N. `activated_experts` G is the number of experts that a token meets in a layer, shared ones
included; `shared_ratio` S is the part of them that is shared. Expert counts enter through N_a/N only: a plan takes a token to meet one FFN's
worth of experts in every layer, E FFNs in all, the FFN two thirds of what it meets: N_a/N = 3 / (1 + 2 E).

The factor in G and S is e (G + G*^2/G + 2 G* t ((S/S* - 1)^2 - 1)) with its optima G* = sqrt(f/e) and S* = -n/(2m), and is
positive for all G and S where t < 1. The search moves ln G*^2, S* and t, and the logarithms of e k and e h.
"""

from __future__ import annotations

import numpy as np

from moescale.scaling_laws import form
from moescale.scaling_laws.form import Inputs, LawForm, LinearPart, Observed, Parameter, Shape, limits, log_coordinates
from moescale.typing import FloatArray, Real

FFN_SHARE = 2 / 3  # of the parameters that a token meets: two matrices 4 d_model wide, or three 8/3 d_model wide
PARAMETERS = (
    Parameter("e", True, "rise of the factor with activated experts"),
    Parameter("f", False, "amplitude of the factor's fall with activated experts"),
    Parameter("m", False, "curvature of the factor in the shared ratio"),
    Parameter("n", False, "slope of the factor in the shared ratio at none"),
    Parameter("k", False, "weight of active size in the bracket"),
    Parameter("h", False, "weight of the active share in the bracket"),
    Parameter("a", True, "amplitude of the term in total size"),
    Parameter("alpha", False, "exponent of both sizes"),
    Parameter("b", True, "amplitude of the data term"),
    Parameter("beta", False, "exponent of the data term"),
    Parameter("c", True, "amplitude of the term in active size"),
    Parameter("eps", True, "irreducible loss"),
)
E, F, M, N, K, H, A, ALPHA, B, BETA, C, EPS = range(len(PARAMETERS))
SQUARE, T, BEST_SHARE = F, M, N  # what these columns hold during a search: ln G*^2, t and S*
AMPLITUDES, SHAPE = (E, K, H, A, C, B, EPS), (SQUARE, T, BEST_SHARE, ALPHA, BETA)
_to_logs, _from_logs = log_coordinates(PARAMETERS)


def encode(public: FloatArray) -> FloatArray:
    """Search coordinates from public units, any leading shape (..., 12)."""
    theta = _to_logs(public)
    e, f, m, n = (np.asarray(public, float)[..., column] for column in (E, F, M, N))
    best = -n / (2.0 * m)
    theta[..., SQUARE] = np.log(f / e)
    theta[..., BEST_SHARE] = np.where(best > 0.0, best, np.nan)
    share = m * best**2 / (2.0 * np.sqrt(e * f))
    theta[..., T] = np.where((share > 0.0) & (share < 1.0), share, np.nan)
    for column in (K, H):
        theta[..., column] = np.log(theta[..., column]) + theta[..., E]
    return theta


def decode(theta: FloatArray) -> FloatArray:
    """Public units from search coordinates, any leading shape (..., 12)."""
    public = _from_logs(theta)
    e, square, best = public[..., E], np.exp(theta[..., SQUARE]), theta[..., BEST_SHARE]
    m = 2.0 * e * np.sqrt(square) * theta[..., T] / best**2
    public[..., F], public[..., M], public[..., N] = e * square, m, -2.0 * m * best
    for column in (K, H):
        public[..., column] = np.exp(theta[..., column] - theta[..., E])
    return public


def sparsity_of(experts: FloatArray, top_k: Real) -> dict[str, FloatArray]:
    """1 - N_a/N where a token meets min(top_k, E) of the E FFNs of every layer; same shape."""
    further = np.minimum(top_k, experts) - 1.0
    active = 1.0 + further * FFN_SHARE
    return {"sparsity": 1.0 - active / (1.0 + (experts - 1.0) * FFN_SHARE)}


def _parts(shape: Shape, x: Inputs) -> tuple[tuple[FloatArray | float, ...], float]:
    square, t, best, alpha, beta = shape
    g, root = x.extra["activated_experts"], np.exp(0.5 * square)
    factor = np.log(g + root**2 / g + 2.0 * root * t * ((x.extra["shared_ratio"] / best - 1.0) ** 2 - 1.0))
    ln_share = np.log1p(-x.extra["sparsity"])
    size, active = -alpha * x.ln_n, -alpha * (x.ln_n + ln_share)
    return (factor + size, factor + active, factor + ln_share, size, active, -beta * x.ln_d, 0.0), 0.0


def bounds(observed: Observed) -> FloatArray:
    """The physical box in search coordinates, (12, 2): eps below the smallest loss, S* a share, t such that the factor is positive."""
    box = {
        SQUARE: (0.0, float(2.0 * np.log(1e3))),
        T: (1e-6, 0.99),
        BEST_SHARE: (0.01, 1.0),
        ALPHA: form.EXPONENT,
        BETA: form.EXPONENT,
        EPS: observed.irreducible,
    }
    return np.array([box.get(column, form.AMPLITUDE) for column in range(len(PARAMETERS))])


REGION = [(float(np.log(4.0)), float(np.log(200.0))), (0.02, 0.8), (0.1, 0.7), *[(0.1, 0.8)] * 2]
FORM = LawForm(
    name="zhao2025",
    title="MoE law in total and active size, activated and shared experts",
    equation="L = (e G + f/G + m S^2 + n S) (N^-alpha + k N_a^-alpha + h N_a/N) + a N^-alpha + b D^-beta + c N_a^-alpha + eps",
    source="Zhao et al. 2025, arXiv 2509.23678",
    parameters=PARAMETERS,
    encode=encode,
    decode=decode,
    bounds=bounds,
    linear=LinearPart(AMPLITUDES, SHAPE, _parts, limits(REGION)),
    uses_experts=False,
    domain="n is negative, all others are positive and n^2 < 8 m sqrt(e f)",
    extra_inputs={"sparsity": None, "activated_experts": None, "shared_ratio": 0.0},
    implied_inputs=sparsity_of,
)
