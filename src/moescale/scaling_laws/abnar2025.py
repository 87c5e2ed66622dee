"""The law of parameters against FLOPs of Abnar et al. (arXiv 2501.12370, equation 6).

    L = a / N^alpha + b / D^beta + c / (1 - S)^lam + d / ((1 - S)^delta N^gamma) + e

N counts ALL parameters of the whole network, all experts included, embeddings not excluded; `sparsity` S is the share of
inactive experts (E - K) / E, not a ratio of parameters, and must be given. Nats per token of RedPajama. A negative lam (as
published) makes the third term fall with sparsity, so the law trades it against the fourth.
"""

from __future__ import annotations

import numpy as np

from moescale.scaling_laws.form import EXPONENT, Parameter
from moescale.scaling_laws.power_terms import Term, power_law
from moescale.typing import FloatArray, Real

EITHER_SIGN = (-EXPONENT[1], EXPONENT[1])


def sparsity_of(experts: FloatArray, top_k: Real) -> dict[str, FloatArray]:
    """S of models that activate min(top_k, E) of E experts; same shape."""
    return {"sparsity": 1.0 - np.minimum(top_k, experts) / experts}


FORM = power_law(
    name="abnar2025",
    title="MoE law in total size and sparsity",
    equation="L = a/N^alpha + b/D^beta + c/(1-S)^lam + d/((1-S)^delta N^gamma) + e",
    source="Abnar et al. 2025, arXiv 2501.12370, equation 6",
    parameters=(
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
    ),
    terms=(
        Term("a", {"n": "alpha"}),
        Term("b", {"d": "beta"}),
        Term("c", {"active_share": "lam"}),
        Term("d", {"active_share": "delta", "n": "gamma"}),
        Term("e"),
    ),
    scan={"alpha": (0.1, 1.0), "beta": (0.1, 1.0), "lam": (-0.5, 0.5), "delta": (-0.5, 0.5), "gamma": (0.02, 0.6)},
    box={"lam": EITHER_SIGN, "delta": EITHER_SIGN},
    variables=lambda x: {"active_share": np.log1p(-x.extra["sparsity"])},
    extra_inputs={"sparsity": None},
    implied_inputs=sparsity_of,
)
