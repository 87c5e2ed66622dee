"""Equation 4 of Yun et al. with a centred interaction: d ln(N/N0) ln Ehat in place of d ln N ln Ehat.

    ln L = ln(A / N^alpha + B / Ehat^beta + C / D^gamma + F) + d ln(N/N0) ln Ehat

As published, the interaction vanishes at N = 1 parameter, so d must bend the gain of the experts at every size in order to
change it with size, and counting N in other units gives another law. N0, the size at which the interaction vanishes, frees
it from the unit; with N0 = 1 the law is yun2024. Everything else is that module's.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from moescale.scaling_laws import yun2024
from moescale.scaling_laws.effective_experts import pair_coordinates
from moescale.scaling_laws.form import LawForm, Observed, Parameter
from moescale.typing import FloatArray

PARAMETERS = (*yun2024.PARAMETERS, Parameter("N0", True, "size at which the interaction vanishes"))
# ln N0: any positive size will do, since the runs' own N0 may lie far outside their sizes where d is small.
N0_LIMITS = (-60.0, 80.0)
N0_REGION = np.log((1e-5, 1e4))  # of N0 over the runs' mean size that the search scans
D_REGION = (-0.2, 0.2)  # of d: ten times the published law's, since ln(N/N0) is some ten times smaller than ln N


def centred(form: LawForm) -> LawForm:
    """A form of yun2024 with N0 as a further parameter, whose starts are the mean size of the runs (ours)."""
    part, grid = form.linear, form.published_grid
    assert part is not None
    assert grid is not None
    encode, decode = pair_coordinates(PARAMETERS, form.equation4 or "ratio")

    def bounds(observed: Observed) -> FloatArray:
        return np.vstack((form.bounds(observed), N0_LIMITS))

    def region(observed: Observed) -> FloatArray:
        wide = np.vstack((part.region(observed), np.log(observed.n_params_mid) + N0_REGION))
        wide[yun2024.S_D] = D_REGION
        return wide

    def published_grid(observed: Observed) -> tuple[FloatArray, ...]:
        return (*grid(observed), np.array([np.log(observed.n_params_mid)]))

    return replace(
        form,
        name="yun2024-centred",
        title="MoE law in N, D and E, interaction centred at N0",
        equation="ln L = ln(A/N^alpha + B/Ehat^beta + C/D^gamma + F) + d ln(N/N0) ln Ehat",
        source="Yun et al. 2024, arXiv 2404.02852, equation 4; N0 is ours",
        parameters=PARAMETERS,
        encode=encode,
        decode=decode,
        bounds=bounds,
        linear=replace(part, shape=(*part.shape, yun2024.CENTRE), region=region),
        published_grid=published_grid,
        free=None if form.free is None else centred(form.free),
    )


FORM = centred(yun2024.FORM)
