"""The unified law of routed language models of Clark et al. (arXiv 2202.01169, equation 1), in decimal logarithms.

    log10 L = a log10 N + b log10 Ehat + c log10 N log10 Ehat + d
    1 / Ehat = 1 / (E - 1 + 1 / (1 / E_start - 1 / E_max)) + 1 / E_max

N is the dense-equivalent size without embeddings (what one token meets at k = 1), E the experts of every second layer, L
in nats per token. There is no D: the published coefficients hold at 130B tokens of MassiveText only. E_start and E_max are
plain expert counts (the authors' notebook stores their binary logarithms). The search moves d ln 10 in place of d.
"""

from __future__ import annotations

import numpy as np

from moescale.scaling_laws import effective_experts
from moescale.scaling_laws.form import Inputs, LawForm, LinearPart, Observed, Parameter, Shape
from moescale.typing import FloatArray

PARAMETERS = (
    Parameter("a", False, "exponent of the loss in N"),
    Parameter("b", False, "exponent of the loss in effective experts"),
    Parameter("c", False, "interaction of size and experts, decimal logarithms"),
    Parameter("d", False, "log10 of the loss at N = Ehat = 1"),
    *effective_experts.PARAMETERS,
)
A, B, C, D, START, MAX = range(len(PARAMETERS))
LN10 = float(np.log(10.0))
_to_search, _from_search = effective_experts.pair_coordinates(PARAMETERS)
_SCALE = np.array([1.0, 1.0, 1.0, LN10, 1.0, 1.0])


def _parts(shape: Shape, x: Inputs) -> tuple[list[FloatArray], FloatArray]:
    a, b, c, u, m = shape
    ln_e = effective_experts.ln_effective(u, m, x)
    return [np.zeros(x.ln_n.shape)], a * x.ln_n + (b + c * x.ln_n / LN10) * ln_e


def bounds(observed: Observed) -> FloatArray:
    """The physical box in search coordinates, (6, 2): the loss falls with N, and with Ehat at small N."""
    return np.array([(-3.0, 0.0), (-3.0, 0.0), (-1.0, 1.0), (-60.0, 60.0), *effective_experts.box(observed)])


def _region(observed: Observed) -> FloatArray:
    return np.array([(-0.3, 0.0), (-0.4, 0.0), (0.0, 0.03), *effective_experts.region(observed)])


FORM = LawForm(
    name="clark2022",
    title="routed models at a fixed number of tokens",
    equation="log10 L = a log10 N + b log10 Ehat + c log10 N log10 Ehat + d",
    source="Clark et al. 2022, arXiv 2202.01169, equation 1",
    parameters=PARAMETERS,
    encode=lambda public: _to_search(public) * _SCALE,
    decode=lambda theta: _from_search(theta) / _SCALE,
    bounds=bounds,
    linear=LinearPart((D,), (A, B, C, START, MAX), _parts, _region),
    uses_experts=True,
    domain=effective_experts.DOMAIN,
    uses_tokens=False,
    no_allocation="it has no term in the training tokens (all of its runs have the same number of them)",
)
