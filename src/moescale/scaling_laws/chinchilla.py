"""The dense law of Hoffmann et al. (arXiv 2203.15556, approach 3): L = E + A / N^alpha + B / D^beta."""

from __future__ import annotations

from moescale.scaling_laws.form import Parameter
from moescale.scaling_laws.power_terms import Term, power_law

FORM = power_law(
    name="chinchilla",
    title="dense law in N and D",
    equation="L = E + A/N^alpha + B/D^beta",
    source="Hoffmann et al. 2022, arXiv 2203.15556, section 3.3",
    parameters=(
        Parameter("E", True, "irreducible loss"),
        Parameter("A", True, "amplitude of the size term"),
        Parameter("B", True, "amplitude of the data term"),
        Parameter("alpha", False, "exponent of the size term"),
        Parameter("beta", False, "exponent of the data term"),
    ),
    terms=(Term("E"), Term("A", {"n": "alpha"}), Term("B", {"d": "beta"})),
    scan={"alpha": (0.05, 1.5), "beta": (0.05, 1.5)},
)
