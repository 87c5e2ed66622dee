"""The MoE law of Yun et al. (arXiv 2404.02852, equation 4), with effective experts after Clark et al. (2202.01169).

    ln L = ln(A / N^alpha + B / Ehat^beta + C / D^gamma + F) + d ln N ln Ehat
    1 / Ehat = 1 / (E - 1 + 1 / (1 / E_start - 1 / E_max)) + 1 / E_max

N is the dense-equivalent size, D the training tokens, E the experts of a layer; Ehat runs from E_start at E = 1 to E_max.
The search moves ln E_max and the ratio ln E_start / ln E_max, so that 1 <= E_start < E_max is a box.

As published, the interaction vanishes at N = 1 parameter, so d must bend the gain of the experts at every size in order to
change it with size, and counting N in other units gives another law. `CENTRED` has d ln(N/N0) ln Ehat: N0, the size at
which the interaction vanishes, frees it from the unit; with N0 = 1 the law is yun2024.
"""

from __future__ import annotations

import numpy as np

from moescale.scaling_laws import effective_experts, form
from moescale.scaling_laws.form import Inputs, LawForm, LinearPart, Observed, Parameter, Shape
from moescale.typing import FloatArray

PARAMETERS = (
    Parameter("A", True, "amplitude of the size term"),
    Parameter("alpha", False, "exponent of the size term"),
    Parameter("B", True, "amplitude of the routing term"),
    Parameter("beta", False, "exponent of the routing term"),
    Parameter("C", True, "amplitude of the data term"),
    Parameter("gamma", False, "exponent of the data term"),
    Parameter("F", True, "irreducible loss before the interaction"),
    Parameter("d", False, "interaction of size and experts"),
    *effective_experts.PARAMETERS,
)
N0 = Parameter("N0", True, "size at which the interaction vanishes")
A, ALPHA, B, BETA, C, GAMMA, F, D, START, MAX = range(len(PARAMETERS))
CENTRE = len(PARAMETERS)  # ln N0, where theta has it
AMPLITUDES, SHAPE = (A, B, C, F), (ALPHA, BETA, GAMMA, D, START, MAX)


def _parts(shape: Shape, x: Inputs) -> tuple[tuple[FloatArray | float, ...], FloatArray]:
    """The terms, and d ln N ln Ehat, or d ln(N / N0) ln Ehat where the shape has N0."""
    alpha, beta, gamma, d, u, m, *ln_n0 = shape
    ln_e = effective_experts.ln_effective(u, m, x)
    terms = (-alpha * x.ln_n, -beta * ln_e, -gamma * x.ln_d, 0.0)
    return terms, d * (x.ln_n - ln_n0[0] if ln_n0 else x.ln_n) * ln_e


def bounds(observed: Observed) -> FloatArray:
    """The physical box in search coordinates, (10, 2): d in [-1, 1], and the interaction may raise F above a loss."""
    (least, most), terms = observed.irreducible, (form.AMPLITUDE, form.EXPONENT) * 3
    return np.array([*terms, (least, most + 1.0), (-1.0, 1.0), *effective_experts.box(observed)])


def region(observed: Observed) -> FloatArray:
    """Where a search of the shape parameters looks, (6, 2)."""
    return np.array([(0.05, 1.0), (0.05, 2.0), (0.05, 1.0), (-0.02, 0.02), *effective_experts.region(observed)])


# Of the centred form. ln N0: any positive size will do, since the runs' own N0 may lie far outside their sizes where d is
# small; of N0 over the runs' mean size, that the search scans; and of d, ten times the published law's, since ln(N/N0) is
# some ten times smaller than ln N.
N0_LIMITS, N0_REGION, D_REGION = (-60.0, 80.0), np.log((1e-5, 1e4)), (-0.2, 0.2)


def _form(*, centred: bool) -> LawForm:
    parameters = (*PARAMETERS, N0) if centred else PARAMETERS
    encode, decode = effective_experts.pair_coordinates(parameters)

    def box(observed: Observed) -> FloatArray:
        return np.vstack((bounds(observed), N0_LIMITS)) if centred else bounds(observed)

    def searched(observed: Observed) -> FloatArray:
        published = region(observed)
        if not centred:
            return published
        published[SHAPE.index(D)] = D_REGION
        return np.vstack((published, np.log(observed.n_params_mid) + N0_REGION))

    return LawForm(
        name="yun2024-centred" if centred else "yun2024",
        title="MoE law in N, D and E" + ", interaction centred at N0" * centred,
        equation=f"ln L = ln(A/N^alpha + B/Ehat^beta + C/D^gamma + F) + d {'ln(N/N0)' if centred else 'ln N'} ln Ehat",
        source="Yun et al. 2024, arXiv 2404.02852, equation 4" + "; N0 is ours" * centred,
        parameters=parameters,
        encode=encode,
        decode=decode,
        bounds=box,
        linear=LinearPart(AMPLITUDES, (*SHAPE, CENTRE) if centred else SHAPE, _parts, searched),
        uses_experts=True,
        domain=f"amplitudes are positive and {effective_experts.DOMAIN}",
    )


FORM, CENTRED = _form(centred=False), _form(centred=True)
