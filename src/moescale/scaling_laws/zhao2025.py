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

from moescale.scaling_laws.form import AMPLITUDE, Columns, Inputs, LawForm, Parameter, Shape, below_losses
from moescale.typing import FloatArray, Real

FFN_SHARE = 2 / 3  # of the parameters that a token meets: two matrices 4 d_model wide, or three 8/3 d_model wide


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
    return (factor + size, factor + active, factor + ln_share, size, -beta * x.ln_d, active, 0.0), 0.0


# What moves in the place of f, m and n is ln G*^2, t and S*.
def _best_share(given: Columns) -> FloatArray:
    best = -given["n"] / (2.0 * given["m"])
    return np.where(best > 0.0, best, np.nan)


def _t(given: Columns) -> FloatArray:
    share = given["m"] * _best_share(given) ** 2 / (2.0 * np.sqrt(given["e"] * given["f"]))
    return np.where((share > 0.0) & (share < 1.0), share, np.nan)


def _m(moved: Columns) -> FloatArray:
    return 2.0 * np.exp(moved["e"]) * np.sqrt(np.exp(moved["f"])) * moved["m"] / moved["n"] ** 2


def _weight(name: str, meaning: str) -> Parameter:
    """An amplitude that is stated over e."""
    return Parameter(
        name, False, meaning, box=AMPLITUDE,
        to_search=lambda given: np.log(given[name]) + np.log(given["e"]),
        to_public=lambda moved: np.exp(moved[name] - moved["e"]),
    )  # fmt: skip


FORM = LawForm(
    name="zhao2025",
    title="MoE law in total and active size, activated and shared experts",
    equation="L = (e G + f/G + m S^2 + n S) (N^-alpha + k N_a^-alpha + h N_a/N) + a N^-alpha + b D^-beta + c N_a^-alpha + eps",
    source="Zhao et al. 2025, arXiv 2509.23678",
    parameters=(
        Parameter("e", True, "rise of the factor with activated experts"),
        Parameter(
            "f", False, "amplitude of the factor's fall with activated experts",
            scan=(float(np.log(4.0)), float(np.log(200.0))), box=(0.0, float(2.0 * np.log(1e3))),
            to_search=lambda given: np.log(given["f"] / given["e"]),
            to_public=lambda moved: np.exp(moved["e"]) * np.exp(moved["f"]),
        ),
        Parameter("m", False, "curvature of the factor in the shared ratio", (0.02, 0.8), (1e-6, 0.99), _t, _m),
        Parameter(
            "n", False, "slope of the factor in the shared ratio at none", (0.1, 0.7), (0.01, 1.0),
            _best_share, lambda moved: -2.0 * _m(moved) * moved["n"],
        ),
        _weight("k", "weight of active size in the bracket"),
        _weight("h", "weight of the active share in the bracket"),
        Parameter("a", True, "amplitude of the term in total size"),
        Parameter("alpha", False, "exponent of both sizes", scan=(0.1, 0.8)),
        Parameter("b", True, "amplitude of the data term"),
        Parameter("beta", False, "exponent of the data term", scan=(0.1, 0.8)),
        Parameter("c", True, "amplitude of the term in active size"),
        Parameter("eps", True, "irreducible loss", box=below_losses),
    ),
    parts=_parts,
    uses_experts=False,
    domain="n is negative, all others are positive and n^2 < 8 m sqrt(e f)",
    extra_inputs={"sparsity": None, "activated_experts": None, "shared_ratio": 0.0},
    implied_inputs=sparsity_of,
)  # fmt: skip
