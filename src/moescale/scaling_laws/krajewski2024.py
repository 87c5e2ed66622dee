"""The law of fine-grained MoE of Krajewski et al. (arXiv 2402.07871, equation 9).

    L = c + (g / G^gamma + a) / N^alpha + b / D^beta

N counts ALL parameters of all experts without embeddings, N = d_model^2 (8 E + 4) n_layers at E = 64 (some notes say active:
that is wrong). The expansion rate is E = 64 in every run, so E is not an input. `granularity` G = d_ff / d_expert with
d_ff = 4 d_model: a layer has G E experts, of which a token meets G (default 1: ordinary experts). Nats per token of C4.
"""

from __future__ import annotations

import numpy as np

from moescale.scaling_laws.form import Parameter
from moescale.scaling_laws.power_terms import Term, power_law

FORM = power_law(
    name="krajewski2024",
    title="fine-grained MoE",
    equation="L = c + (g/G^gamma + a)/N^alpha + b/D^beta",
    source="Krajewski et al. 2024, arXiv 2402.07871, equation 9",
    parameters=(
        Parameter("a", True, "amplitude of the size term that granularity leaves"),
        Parameter("alpha", False, "exponent of the size term"),
        Parameter("b", True, "amplitude of the data term"),
        Parameter("beta", False, "exponent of the data term"),
        Parameter("g", True, "amplitude of the size term that granularity reduces"),
        Parameter("gamma", False, "exponent of granularity"),
        Parameter("c", True, "irreducible loss"),
    ),
    terms=(
        Term("c"),
        Term("g", {"granularity": "gamma", "n": "alpha"}),
        Term("a", {"n": "alpha"}),
        Term("b", {"d": "beta"}),
    ),
    scan={"alpha": (0.05, 1.0), "beta": (0.05, 1.0), "gamma": (0.1, 2.0)},
    variables=lambda x: {"granularity": np.log(x.extra["granularity"])},
    extra_inputs={"granularity": 1.0},
)
