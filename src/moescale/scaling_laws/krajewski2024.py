"""The law of fine-grained MoE of Krajewski et al. (arXiv 2402.07871, equation 9).

    L = c + (g / G^gamma + a) / N^alpha + b / D^beta

N counts ALL parameters of all experts without embeddings, N = d_model^2 (8 E + 4) n_layers at E = 64 (some notes say active:
that is wrong). The expansion rate is E = 64 in every run, so E is not an input. `granularity` G = d_ff / d_expert with
d_ff = 4 d_model: a layer has G E experts, of which a token meets G (default 1: ordinary experts). Nats per token of C4.
"""

from __future__ import annotations

import numpy as np

from moescale.scaling_laws.coordinates import AMPLITUDE, EXPONENT, log_coordinates
from moescale.scaling_laws.form import Inputs, LawForm, Observed, Parameter
from moescale.scaling_laws.power_terms import PowerTerms, Term
from moescale.typing import FloatArray

PARAMETERS = (
    Parameter("a", True, "amplitude of the size term that granularity leaves"),
    Parameter("alpha", False, "exponent of the size term"),
    Parameter("b", True, "amplitude of the data term"),
    Parameter("beta", False, "exponent of the data term"),
    Parameter("g", True, "amplitude of the size term that granularity reduces"),
    Parameter("gamma", False, "exponent of granularity"),
    Parameter("c", True, "irreducible loss"),
)
A, ALPHA, B, BETA, G, GAMMA, C = range(len(PARAMETERS))
encode, decode = log_coordinates(PARAMETERS)


def _variables(x: Inputs) -> dict[str, FloatArray]:
    return {"n": x.ln_n, "d": x.ln_d, "granularity": np.log(x.extra["granularity"])}


TERMS = PowerTerms(
    (Term(C), Term(G, {"granularity": GAMMA, "n": ALPHA}), Term(A, {"n": ALPHA}), Term(B, {"d": BETA})),
    len(PARAMETERS),
    _variables,
)


def bounds(observed: Observed) -> FloatArray:
    """The physical box in search coordinates, (7, 2): c below the smallest loss, exponents in [0, 3]."""
    irreducible = (AMPLITUDE[0], float(np.log(observed.loss_min)))
    return np.array([AMPLITUDE, EXPONENT, AMPLITUDE, EXPONENT, AMPLITUDE, EXPONENT, irreducible])


FORM = LawForm(
    name="krajewski2024",
    title="fine-grained MoE",
    equation="L = c + (g/G^gamma + a)/N^alpha + b/D^beta",
    source="Krajewski et al. 2024, arXiv 2402.07871, equation 9",
    parameters=PARAMETERS,
    encode=encode,
    decode=decode,
    log_loss=TERMS.log_loss,
    jacobian=TERMS.jacobian,
    curvature=TERMS.curvature,
    slopes=TERMS.slopes,
    bounds=bounds,
    linear=TERMS.linear({ALPHA: (0.05, 1.0), BETA: (0.05, 1.0), GAMMA: (0.1, 2.0)}),
    uses_experts=False,
    extra_inputs={"granularity": 1.0},
)
