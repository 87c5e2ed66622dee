"""Equation 4 of Yun et al. with a centred interaction: d ln(N/N0) ln Ehat in place of d ln N ln Ehat.

    ln L = ln(A / N^alpha + B / Ehat^beta + C / D^gamma + F) + d ln(N/N0) ln Ehat

As published, the interaction vanishes at N = 1 parameter, so d must bend the gain of the experts at every size in order to
change it with size, and counting N in other units gives another law. N0, the size at which the interaction vanishes, frees
it from the unit; with N0 = 1 the law is yun2024. Everything else is that module's.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from moescale.scaling_laws import yun2024
from moescale.scaling_laws.effective_experts import Start
from moescale.scaling_laws.form import LinearPart, Observed, Parameter
from moescale.typing import FloatArray

CENTRE = yun2024.CENTRE
# ln N0: any positive size will do, since the runs' own N0 may lie far outside their sizes where d is small.
N0_LIMITS = (-60.0, 80.0)
N0_REGION = np.log((1e-5, 1e4))  # of N0 over the runs' mean size that the search scans
D_REGION = (-0.2, 0.2)  # of d: ten times the published law's, since ln(N/N0) is some ten times smaller than ln N
SHAPE = (*yun2024.SHAPE, CENTRE)


def bounds(observed: Observed) -> FloatArray:
    """The physical box in search coordinates, (11, 2): that of yun2024, and any positive N0."""
    return np.vstack((yun2024.bounds(observed), N0_LIMITS))


def free_bounds(observed: Observed) -> FloatArray:
    """Limits that only keep the arithmetic finite, (11, 2)."""
    return np.vstack((yun2024.free_bounds(observed), N0_LIMITS))


def _centred_region(region: FloatArray, observed: Observed) -> FloatArray:
    wide = np.vstack((region, np.log(observed.n_params_mid) + N0_REGION))
    wide[yun2024.S_D] = D_REGION
    return wide


def region(observed: Observed) -> FloatArray:
    """Where the shape parameters are looked for, (7, 2)."""
    return _centred_region(yun2024.region(observed), observed)


def free_region(observed: Observed) -> FloatArray:
    """Where they are looked for without the box, (7, 2)."""
    return _centred_region(yun2024.free_region(observed), observed)


def published_grid(observed: Observed, start: Start = "ratio") -> tuple[FloatArray, ...]:
    """The starts of yun2024, with N0 the mean size of the runs (ours: the paper has no N0)."""
    return (*yun2024.published_grid(observed, start), np.array([np.log(observed.n_params_mid)]))


_ABOUT = {
    "name": "yun2024-centred",
    "title": "MoE law in N, D and E, interaction centred at N0",
    "equation": "ln L = ln(A/N^alpha + B/Ehat^beta + C/D^gamma + F) + d ln(N/N0) ln Ehat",
    "source": "Yun et al. 2024, arXiv 2404.02852, equation 4; N0 is ours",
    "parameters": (*yun2024.PARAMETERS, Parameter("N0", True, "size at which the interaction vanishes")),
}
_BOXED = replace(
    yun2024.FORM,
    **_ABOUT,
    bounds=bounds,
    linear=LinearPart(yun2024.AMPLITUDES, SHAPE, yun2024.basis, yun2024.offset, region),
    published_grid=published_grid,
)
FREE = replace(
    yun2024.FREE,
    **_ABOUT,
    bounds=free_bounds,
    linear=LinearPart(
        yun2024.AMPLITUDES,
        SHAPE,
        partial(yun2024.basis, start="spread"),
        partial(yun2024.offset, start="spread"),
        free_region,
    ),
    published_grid=partial(published_grid, start="spread"),
)
FORM = replace(_BOXED, free=FREE)
