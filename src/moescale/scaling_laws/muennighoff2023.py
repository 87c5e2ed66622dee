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

from moescale.scaling_laws.form import Columns, Inputs, LawForm, Parameter, Shape, below_losses, ln_add
from moescale.typing import FloatArray


def saturated(ln_x: FloatArray, ln_unit: FloatArray, ln_r: FloatArray) -> FloatArray:
    """ln of u + u R (1 - exp(-(x/u - 1) / R)), or ln x where x <= u."""
    over = ln_x - ln_unit
    excess = np.expm1(np.where(over.real < 300.0, over, 300.0))  # beyond nothing changes, and e^x stays finite
    r = np.exp(ln_r)
    worth = ln_unit + np.log(1.0 - r * np.expm1(-np.where(over.real > 0.0, excess, 0.0) / r))
    return np.where(over.real > 0.0, worth, ln_x)


def _parts(shape: Shape, x: Inputs) -> tuple[tuple[float, FloatArray], float]:
    """0 for E, and ln of the sum of both terms over A.

    Where nothing is repeated a further token is fresh: it enlarges the unique data, and the size that suits them.
    """
    ln_g, alpha, beta, ln_rd, ln_rn = shape
    ln_u = np.log(x.extra["unique_tokens"])
    ln_u = np.where(ln_u >= x.ln_d.real, x.ln_d, ln_u)
    size = -alpha * saturated(x.ln_n, ln_g + beta / alpha * (ln_u + ln_g), ln_rn)
    data = np.log(alpha / beta) - (alpha + beta) * ln_g - beta * saturated(x.ln_d, ln_u, ln_rd)
    return (0.0, ln_add(size, data)), 0.0


def _ln_g(given: Columns) -> FloatArray:
    alpha, beta = given["alpha"], given["beta"]
    return (np.log(alpha / beta) + np.log(given["A"]) - np.log(given["B"])) / (alpha + beta)


def _b(moved: Columns) -> FloatArray:
    alpha, beta = moved["alpha"], moved["beta"]
    return np.exp(np.log(alpha / beta) + moved["A"] - (alpha + beta) * moved["B"])


EXPONENT = (0.1, 0.8), (0.01, 3.0)  # where a search begins, and the box
SATURATION = (0.0, float(np.log(100.0))), (float(np.log(0.01)), float(np.log(1e4)))
FORM = LawForm(
    name="muennighoff2023",
    title="dense law for repeated data",
    equation="L = E + A/N'^alpha + B/D'^beta, N' and D' saturating with excess parameters and repetition",
    source="Muennighoff et al. 2023, arXiv 2305.16264",
    parameters=(
        Parameter("E", True, "irreducible loss", box=below_losses),
        Parameter("A", True, "amplitude of the size term"),
        Parameter("B", True, "amplitude of the data term", (-5.0, 3.0), (-60.0, 60.0), _ln_g, _b),
        Parameter("alpha", False, "exponent of the size term", *EXPONENT),
        Parameter("beta", False, "exponent of the data term", *EXPONENT),
        Parameter("R_D", True, "epochs of repetition after which more add little", *SATURATION),
        Parameter("R_N", True, "excess sizes after which more parameters add little", *SATURATION),
    ),
    parts=_parts,
    uses_experts=False,
    domain="amplitudes and exponents are positive",
    extra_inputs={"unique_tokens": float("inf")},
)
