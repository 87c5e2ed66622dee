"""The unified law of routed language models of Clark et al. (arXiv 2202.01169, equation 1), in decimal logarithms.

    log10 L = a log10 N + b log10 Ehat + c log10 N log10 Ehat + d
    1 / Ehat = 1 / (E - 1 + 1 / (1 / E_start - 1 / E_max)) + 1 / E_max

N is the dense-equivalent size without embeddings (what one token meets at k = 1), E the experts of every second layer, L
in nats per token. There is no D: the published coefficients hold at 130B tokens of MassiveText only. E_start and E_max are
plain expert counts (the authors' notebook stores their binary logarithms). The search moves d ln 10 in place of d.
"""

from __future__ import annotations

import numpy as np

from moescale.scaling_laws.effective_experts import DOMAIN, E_MAX, E_START, ln_effective
from moescale.scaling_laws.form import Inputs, LawForm, Parameter, Shape
from moescale.typing import FloatArray

LN10 = float(np.log(10.0))


def _parts(shape: Shape, x: Inputs) -> tuple[list[FloatArray], FloatArray]:
    a, b, c, u, m = shape
    return [np.zeros(x.ln_n.shape)], a * x.ln_n + (b + c * x.ln_n / LN10) * ln_effective(u, m, x)


FORM = LawForm(
    name="clark2022",
    title="routed models at a fixed number of tokens",
    equation="log10 L = a log10 N + b log10 Ehat + c log10 N log10 Ehat + d",
    source="Clark et al. 2022, arXiv 2202.01169, equation 1",
    parameters=(
        Parameter("a", False, "exponent of the loss in N", scan=(-0.3, 0.0), box=(-3.0, 0.0)),
        Parameter("b", False, "exponent of the loss in effective experts", scan=(-0.4, 0.0), box=(-3.0, 0.0)),
        Parameter("c", False, "interaction of size and experts, decimal logarithms", scan=(0.0, 0.03), box=(-1.0, 1.0)),
        Parameter(
            "d", False, "log10 of the loss at N = Ehat = 1", box=(-60.0, 60.0),
            to_search=lambda given: given["d"] * LN10, to_public=lambda moved: moved["d"] / LN10,
        ),
        E_START,
        E_MAX,
    ),
    parts=_parts,
    uses_experts=True,
    domain=DOMAIN,
    uses_tokens=False,
    no_allocation="it has no term in the training tokens (all of its runs have the same number of them)",
)  # fmt: skip
