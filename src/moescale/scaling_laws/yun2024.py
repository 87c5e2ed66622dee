"""The MoE law of Yun et al. (arXiv 2404.02852, equation 4), with effective experts after Clark et al. (2202.01169).

    ln L = ln(A / N^alpha + B / Ehat^beta + C / D^gamma + F) + d ln N ln Ehat
    1 / Ehat = 1 / (E - 1 + 1 / (1 / E_start - 1 / E_max)) + 1 / E_max

N is the dense-equivalent size, D the training tokens, E the experts of a layer; Ehat runs from E_start at E = 1 to E_max.
As published, the interaction vanishes at N = 1 parameter, and counting N in other units gives another law. `CENTRED`
has d ln(N/N0) ln Ehat: N0, the size at which the interaction vanishes, frees it from the unit.
"""

from __future__ import annotations

import numpy as np

from moescale.scaling_laws.clark2022 import DOMAIN, E_MAX, E_START, ln_effective
from moescale.scaling_laws.form import AMPLITUDE, Inputs, LawForm, Parameter, Shape
from moescale.typing import FloatArray

A, ALPHA, B, BETA, C, GAMMA, F, D, START, MAX, CENTRE = range(11)  # columns of theta; CENTRE: ln N0, where theta has it


def _parts(shape: Shape, x: Inputs) -> tuple[tuple[FloatArray | float, ...], FloatArray]:
    """The terms, and d ln N ln Ehat, or d ln(N / N0) ln Ehat where the shape has N0."""
    alpha, beta, gamma, d, u, m, *ln_n0 = shape
    ln_e = ln_effective(u, m, x)
    terms = (-alpha * x.ln_n, -beta * ln_e, -gamma * x.ln_d, 0.0)
    return terms, d * (x.ln_n - ln_n0[0] if ln_n0 else x.ln_n) * ln_e


def _form(*, centred: bool) -> LawForm:
    # d of the centred form is looked for up to ten times the published law's, since ln(N/N0) is some ten times smaller than ln
    # N. Any positive N0 will do, since the runs' own may lie far outside their sizes where d is small; the search scans it over
    # the runs' mean size.
    interaction = 0.2 if centred else 0.02
    n0 = Parameter(
        "N0", True, "size at which the interaction vanishes", box=(-60.0, 80.0),
        scan=lambda observed: tuple(np.log(observed.n_params_mid) + np.log((1e-5, 1e4))),
    )  # fmt: skip
    return LawForm(
        name="yun2024-centred" if centred else "yun2024",
        title="MoE law in N, D and E" + ", interaction centred at N0" * centred,
        equation=f"ln L = ln(A/N^alpha + B/Ehat^beta + C/D^gamma + F) + d {'ln(N/N0)' if centred else 'ln N'} ln Ehat",
        source="Yun et al. 2024, arXiv 2404.02852, equation 4" + "; N0 is ours" * centred,
        parameters=(
            Parameter("A", True, "amplitude of the size term"),
            Parameter("alpha", False, "exponent of the size term", scan=(0.05, 1.0)),
            Parameter("B", True, "amplitude of the routing term"),
            Parameter("beta", False, "exponent of the routing term", scan=(0.05, 2.0)),
            Parameter("C", True, "amplitude of the data term"),
            Parameter("gamma", False, "exponent of the data term", scan=(0.05, 1.0)),
            # The interaction may raise it above a loss.
            Parameter(
                "F", True, "irreducible loss before the interaction",
                box=lambda observed: (AMPLITUDE[0], float(np.log(observed.loss_min)) + 1.0),
            ),
            Parameter("d", False, "interaction of size and experts", (-interaction, interaction), (-1.0, 1.0)),
            E_START,
            E_MAX,
            *[n0] * centred,
        ),
        parts=_parts,
        uses_experts=True,
        domain=f"amplitudes are positive and {DOMAIN}",
    )  # fmt: skip


FORM, CENTRED = _form(centred=False), _form(centred=True)
