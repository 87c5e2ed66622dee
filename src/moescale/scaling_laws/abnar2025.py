"""The law of parameters against FLOPs of Abnar et al. (arXiv 2501.12370, equation 6).

    L = a / N^alpha + b / D^beta + c / (1 - S)^lam + d / ((1 - S)^delta N^gamma) + e

N counts ALL parameters of the whole network, all experts included, embeddings not excluded; `sparsity` S is the share of
inactive experts (E - K) / E, not a ratio of parameters, and must be given. Nats per token of RedPajama. A negative lam (as
published) makes the third term fall with sparsity, so the law trades it against the fourth.
"""

from __future__ import annotations

import numpy as np

from moescale.scaling_laws.coordinates import AMPLITUDE, EXPONENT, log_coordinates
from moescale.scaling_laws.form import Inputs, LawForm, Observed, Parameter
from moescale.scaling_laws.power_terms import PowerTerms, Term
from moescale.typing import FloatArray, Real

PARAMETERS = (
    Parameter("a", True, "amplitude of the size term"),
    Parameter("alpha", False, "exponent of the size term"),
    Parameter("b", True, "amplitude of the data term"),
    Parameter("beta", False, "exponent of the data term"),
    Parameter("c", True, "amplitude of the sparsity term"),
    Parameter("lam", False, "exponent of the share of active experts in the sparsity term"),
    Parameter("d", True, "amplitude of the interaction term"),
    Parameter("delta", False, "exponent of the share of active experts in the interaction term"),
    Parameter("gamma", False, "exponent of size in the interaction term"),
    Parameter("e", True, "irreducible loss"),
)
A, ALPHA, B, BETA, C, LAM, D, DELTA, GAMMA, E = range(len(PARAMETERS))
encode, decode = log_coordinates(PARAMETERS)


def _variables(x: Inputs) -> dict[str, FloatArray]:
    return {"n": x.ln_n, "d": x.ln_d, "active_share": np.log1p(-x.extra["sparsity"])}


TERMS = PowerTerms(
    (
        Term(A, {"n": ALPHA}),
        Term(B, {"d": BETA}),
        Term(C, {"active_share": LAM}),
        Term(D, {"active_share": DELTA, "n": GAMMA}),
        Term(E),
    ),
    len(PARAMETERS),
    _variables,
)


def bounds(observed: Observed) -> FloatArray:
    """The physical box in search coordinates, (10, 2): e below the smallest loss; the exponents of 1 - S may be negative."""
    irreducible, either = (AMPLITUDE[0], float(np.log(observed.loss_min))), (-EXPONENT[1], EXPONENT[1])
    return np.array(
        [AMPLITUDE, EXPONENT, AMPLITUDE, EXPONENT, AMPLITUDE, either, AMPLITUDE, either, EXPONENT, irreducible]
    )


def sparsity_of(experts: FloatArray, top_k: Real) -> dict[str, FloatArray]:
    """S of models that activate min(top_k, E) of E experts; same shape."""
    return {"sparsity": 1.0 - np.minimum(top_k, experts) / experts}


FORM = LawForm(
    name="abnar2025",
    title="MoE law in total size and sparsity",
    equation="L = a/N^alpha + b/D^beta + c/(1-S)^lam + d/((1-S)^delta N^gamma) + e",
    source="Abnar et al. 2025, arXiv 2501.12370, equation 6",
    parameters=PARAMETERS,
    encode=encode,
    decode=decode,
    log_loss=TERMS.log_loss,
    jacobian=TERMS.jacobian,
    curvature=TERMS.curvature,
    slopes=TERMS.slopes,
    bounds=bounds,
    linear=TERMS.linear(
        {ALPHA: (0.1, 1.0), BETA: (0.1, 1.0), LAM: (-0.5, 0.5), DELTA: (-0.5, 0.5), GAMMA: (0.02, 0.6)}
    ),
    uses_experts=False,
    extra_inputs={"sparsity": None},
    implied_inputs=sparsity_of,
)
