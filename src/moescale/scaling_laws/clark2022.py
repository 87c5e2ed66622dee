"""The unified law of routed language models of Clark et al. (arXiv 2202.01169), and the effective experts that several MoE laws share.

    log10 L = a log10 N + b log10 Ehat + c log10 N log10 Ehat + d                   (equation 1, in decimal logarithms)
    1 / Ehat = 1 / (E - shift + 1 / (1 / E_start - 1 / E_max)) + 1 / E_max          (equation 4, where shift = 1)

N is the dense-equivalent size without embeddings (what one token meets at k = 1), E the experts of every second layer, L
in nats per token. There is no D: the published coefficients hold at 130B tokens of MassiveText only. E_start and E_max are
plain expert counts (the authors' notebook stores their binary logarithms). The search moves d ln 10 in place of d.

With shift = 1 Ehat runs from E_start at E = 1 to E_max. The search moves m = ln E_max and u = ln E_start / ln E_max, with
which 1 <= E_start < E_max is a box.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from moescale.scaling_laws.form import Columns, Ends, Inputs, LawForm, Observed, Parameter, Shape
from moescale.typing import FloatArray

LN10 = float(np.log(10.0))
DOMAIN = "1 <= E_start < E_max"


def _start_to_search(given: Columns) -> FloatArray:
    start, ceiling = given["E_start"], given["E_max"]
    return np.where((start >= 1.0) & (start < ceiling), np.log(start) / np.log(ceiling), np.nan)


def _ceiling_ends(observed: Observed) -> Ends:
    """E_max in [max(4, E_observed / 2), 1e4]: more experts than anyone has trained."""
    return float(np.log(max(4.0, observed.experts_max / 2.0))), float(np.log(1e4))


E_START = Parameter(
    "E_start", False, "effective experts of a dense model", scan=(0.0, 0.95), box=(0.0, 0.999),
    to_search=_start_to_search, to_public=lambda moved: np.exp(moved["E_start"] * moved["E_max"]),
)  # fmt: skip
E_MAX = Parameter(
    "E_max", True, "effective experts that no expert count exceeds", scan=_ceiling_ends, box=_ceiling_ends,
    to_search=lambda given: np.where(given["E_max"] > 1.0, np.log(given["E_max"]), np.nan),
    to_public=lambda moved: np.exp(moved["E_max"]),
)  # fmt: skip


def effective_experts(ln_start: FloatArray, ln_max: FloatArray, experts: FloatArray, shift: float = 1.0) -> FloatArray:
    """Ehat at each expert count; all arguments broadcast."""
    start, ceiling = np.exp(-ln_start), np.exp(-ln_max)
    gap = start - ceiling
    return 1.0 / (gap / ((experts - shift) * gap + 1.0) + ceiling)


def ln_effective(u: Any, ln_max: Any, x: Inputs, shift: float = 1.0) -> FloatArray:
    """ln Ehat at each point, (..., n), for search coordinates of shape (..., 1)."""
    return np.log(effective_experts(u * ln_max, ln_max, x.experts, shift))


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
