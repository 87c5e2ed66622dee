"""The law of sparsely-connected models of Frantar et al. (arXiv 2309.08520, equation 1).

    L = (a_S (1 - S)^b_S + c_S) / N^b_N + (a_D / D)^b_D + c

N counts the non-zero parameters (whether embeddings count is not known to us), `sparsity` S is the share of weights that
are zero (default 0: dense), D the training data: tokens of C4 for T5, images of JFT for ViT. The search moves
b_D ln a_D, the logarithm of the data term's amplitude, in place of a_D.
"""

from __future__ import annotations

import numpy as np

from moescale.scaling_laws.form import Parameter, log_coordinates
from moescale.scaling_laws.power_terms import Term, power_law
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
A_D, B_D = 4, 5
_to_logs, _from_logs = log_coordinates(PARAMETERS)


def encode(public: FloatArray) -> FloatArray:
    """Search coordinates from public units, any leading shape (..., 7)."""
    theta = _to_logs(public)
    theta[..., A_D] *= theta[..., B_D]
    return theta


def decode(theta: FloatArray) -> FloatArray:
    """Public units from search coordinates, any leading shape (..., 7)."""
    public = np.array(theta, dtype=float)
    public[..., A_D] /= public[..., B_D]
    return _from_logs(public)


FORM = power_law(
    name="frantar2023",
    title="models with sparse weights",
    equation="L = (a_S (1-S)^b_S + c_S)/N^b_N + (a_D/D)^b_D + c",
    source="Frantar et al. 2023, arXiv 2309.08520, equation 1",
    parameters=PARAMETERS,
    encode=encode,
    decode=decode,
    terms=(
        Term("a_S", {"dense_per_kept": "b_S", "n": "b_N"}),
        Term("c_S", {"n": "b_N"}),
        Term("a_D", {"d": "b_D"}),
        Term("c"),
    ),
    scan={"b_S": (0.1, 2.0), "b_N": (0.05, 1.0), "b_D": (0.05, 1.5)},
    box={"a_D": (-14.0, 60.0), "b_D": (0.05, 3.0)},  # b_D stays above zero, so that a_D is a finite number
    variables=lambda x: {"dense_per_kept": -np.log1p(-x.extra["sparsity"])},
    extra_inputs={"sparsity": 0.0},
)
