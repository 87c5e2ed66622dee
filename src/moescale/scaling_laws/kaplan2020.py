"""The dense law of Kaplan et al. (arXiv 2001.08361, equation 1.5).

    L = ((N_c / N)^(alpha_N / alpha_D) + D_c / D)^alpha_D

N counts parameters without embeddings, D the tokens of the training set (WebText2), L in nats per token at early
stopping: a run may have passed over D several times, so a FLOP budget does not tie N to D. No standard errors are
published. Only the joint fit (table 2 of the paper) belongs here; the univariate L(N) and L(D) have other coefficients.
"""

from __future__ import annotations

import numpy as np

from moescale.scaling_laws.form import Inputs, LawForm, Parameter, ln_sum
from moescale.typing import FloatArray


def _ln_loss(theta: FloatArray, x: Inputs) -> FloatArray:
    alpha_n, alpha_d, n_c, d_c = np.moveaxis(theta[..., None, :], -1, 0)
    return alpha_d * ln_sum(alpha_n / alpha_d * (n_c - x.ln_n), d_c - x.ln_d)[0]


LARGE = (float(np.log(1e8)), float(np.log(1e18)))
FORM = LawForm(
    name="kaplan2020",
    title="dense law of Kaplan et al.",
    equation="L = ((N_c/N)^(alpha_N/alpha_D) + D_c/D)^alpha_D",
    source="Kaplan et al. 2020, arXiv 2001.08361, equation 1.5",
    parameters=(
        Parameter("alpha_N", False, "exponent of the loss in N where data abound", (0.02, 0.5), (1e-3, 3.0)),
        Parameter("alpha_D", False, "exponent of the loss in D where size abounds", (0.02, 0.5), (1e-3, 3.0)),
        Parameter("N_c", True, "size at which the loss would be 1 with endless data", LARGE, (0.0, 300.0)),
        Parameter("D_c", True, "tokens at which the loss would be 1 with an endless model", LARGE, (0.0, 300.0)),
    ),
    ln_loss=_ln_loss,
    uses_experts=False,
    domain="N_c and D_c are positive",
    no_allocation="its D is the size of the training set at early stopping, which a FLOP budget does not fix",
)
