"""The joint MoE law of Ludziejewski et al. (arXiv 2502.05172, equation 6).

    L = a Ehat^delta N^(alpha + gamma ln Ehat) + b Ehat^omega D^(beta + zeta ln Ehat) + c
    1 / Ehat = 1 / (E - 0.99 + 1 / (1 / E_start - 1 / E_max)) + 1 / E_max

N counts active parameters with both embedding tables, E the experts of every layer (top-1, granularity 1; E = 1 is dense),
nats per token of FineWeb-Edu. The paper prints a shift of 1 in place of 0.99; its code and its table 4 use 0.99 (with 1 the
first entry of that table would be 30.40, not 30.36). Signs are those of the paper: exponents of N and D are negative.
"""

from __future__ import annotations

from moescale.scaling_laws.clark2022 import DOMAIN, E_MAX, E_START, ln_effective
from moescale.scaling_laws.form import Inputs, LawForm, Parameter, Shape, below_losses
from moescale.typing import FloatArray

SHIFT = 0.99


def _parts(shape: Shape, x: Inputs) -> tuple[tuple[FloatArray | float, ...], float]:
    alpha, delta, gamma, beta, omega, zeta, u, m = shape
    e = ln_effective(u, m, x, SHIFT)
    return (delta * e + (alpha + gamma * e) * x.ln_n, omega * e + (beta + zeta * e) * x.ln_d, 0.0), 0.0


# Where a search begins, and the box.
EXPONENT = (-0.6, -0.05), (-3.0, 0.0)
OF_EXPERTS = (-1.0, 1.0), (-3.0, 3.0)
CHANGE = (-0.04, 0.04), (-0.5, 0.5)
FORM = LawForm(
    name="ludziejewski2025",
    title="joint MoE law in active N, D and E",
    equation="L = a Ehat^delta N^(alpha + gamma ln Ehat) + b Ehat^omega D^(beta + zeta ln Ehat) + c",
    source="Ludziejewski et al. 2025, arXiv 2502.05172, equation 6",
    parameters=(
        Parameter("a", True, "amplitude of the size term"),
        Parameter("alpha", False, "exponent of N", *EXPONENT),
        Parameter("delta", False, "exponent of effective experts in the size term", *OF_EXPERTS),
        Parameter("gamma", False, "change of the exponent of N with ln Ehat", *CHANGE),
        Parameter("b", True, "amplitude of the data term"),
        Parameter("beta", False, "exponent of D", *EXPONENT),
        Parameter("omega", False, "exponent of effective experts in the data term", *OF_EXPERTS),
        Parameter("zeta", False, "change of the exponent of D with ln Ehat", *CHANGE),
        Parameter("c", True, "irreducible loss", box=below_losses),
        E_START,
        E_MAX,
    ),
    parts=_parts,
    uses_experts=True,
    domain=f"amplitudes are positive and {DOMAIN}",
)
