"""The law of sparsely-connected models of Frantar et al. (arXiv 2309.08520, equation 1).

    L = (a_S (1 - S)^b_S + c_S) / N^b_N + (a_D / D)^b_D + c

N counts the non-zero parameters (whether embeddings count is not known to us), `sparsity` S is the share of weights that
are zero (default 0: dense), D the training data: tokens of C4 for T5, images of JFT for ViT. The search moves
b_D ln a_D, the logarithm of the data term's amplitude, in place of a_D.
"""

from __future__ import annotations

import numpy as np

from moescale.scaling_laws.coordinates import AMPLITUDE, EXPONENT
from moescale.scaling_laws.form import Inputs, LawForm, Observed, Parameter
from moescale.scaling_laws.power_terms import PowerTerms, Term
from moescale.typing import FloatArray

PARAMETERS = (
    Parameter("a_S", True, "amplitude of the size term that sparsity reduces"),
    Parameter("b_S", False, "exponent of the share of weights that is kept"),
    Parameter("c_S", True, "amplitude of the size term that sparsity leaves"),
    Parameter("b_N", False, "exponent of the size term"),
    Parameter("a_D", True, "data at which the data term is 1"),
    Parameter("b_D", False, "exponent of the data term"),
    Parameter("c", True, "irreducible loss"),
)
A_S, B_S, C_S, B_N, A_D, B_D, C = range(len(PARAMETERS))
LOGS = [A_S, C_S, A_D, C]


def encode(public: FloatArray) -> FloatArray:
    """Search coordinates from public units, any leading shape (..., 7)."""
    theta = np.array(public, dtype=float)
    theta[..., LOGS] = np.log(theta[..., LOGS])
    theta[..., A_D] *= theta[..., B_D]
    return theta


def decode(theta: FloatArray) -> FloatArray:
    """Public units from search coordinates, any leading shape (..., 7)."""
    public = np.array(theta, dtype=float)
    public[..., A_D] /= public[..., B_D]
    public[..., LOGS] = np.exp(public[..., LOGS])
    return public


def _variables(x: Inputs) -> dict[str, FloatArray]:
    return {"n": x.ln_n, "d": x.ln_d, "dense_per_kept": -np.log1p(-x.extra["sparsity"])}


TERMS = PowerTerms(
    (Term(A_S, {"dense_per_kept": B_S, "n": B_N}), Term(C_S, {"n": B_N}), Term(A_D, {"d": B_D}), Term(C)),
    len(PARAMETERS),
    _variables,
)


def bounds(observed: Observed) -> FloatArray:
    """The physical box in search coordinates, (7, 2): c below the smallest loss, exponents up to 3.

    b_D stays above 0.05, so that a_D is a finite number.
    """
    irreducible = (AMPLITUDE[0], float(np.log(observed.loss_min)))
    return np.array([AMPLITUDE, EXPONENT, AMPLITUDE, EXPONENT, (-14.0, 60.0), (0.05, 3.0), irreducible])


FORM = LawForm(
    name="frantar2023",
    title="models with sparse weights",
    equation="L = (a_S (1-S)^b_S + c_S)/N^b_N + (a_D/D)^b_D + c",
    source="Frantar et al. 2023, arXiv 2309.08520, equation 1",
    parameters=PARAMETERS,
    encode=encode,
    decode=decode,
    log_loss=TERMS.log_loss,
    jacobian=TERMS.jacobian,
    curvature=TERMS.curvature,
    slopes=TERMS.slopes,
    bounds=bounds,
    linear=TERMS.linear({B_S: (0.1, 2.0), B_N: (0.05, 1.0), B_D: (0.05, 1.5)}),
    uses_experts=False,
    extra_inputs={"sparsity": 0.0},
)
