"""moescale's own law, of models rather than of a family's N and E: body size, expansion, tokens.

    L     = F + ((A (1e9 / N_eff)^alpha)^(1/kappa) + (B (1e10 / D_eff)^beta)^(1/kappa))^kappa
    N_eff = N Xhat^(g r / (r + R)), r = D / N        experts are worth size, once there are tokens enough to train them
    D_eff = D / (1 + D_0 / D)                        D_0: tokens spent on the start of training, a cost paid once
    1 / Xhat = 1 / (X - 1 + 1 / (1 - 1 / E_max)) + 1 / E_max        (Clark et al. 2022, with E_start = 1)

N is the ACTIVE BODY (parameters that a token meets, without embedding tables), X the EXPANSION (FFN weights of all experts over
those that one token meets; 1 is dense), D training tokens. 1e9 and 1e10 are units, not parameters: A is what a body of 1e9
loses by its size, B what 1e10 tokens lose by being few, F what no model of the family avoids.

`moescale2026-late` has Clark et al.'s other saturation too: E_start >= 1, how many experts start to help, with Xhat / E_start
in place of Xhat, so that X = 1 stays dense. E_start = 1 gives the plain form.

Chosen by hold-outs across public tables, docs/evidence/own-law.md. The search moves ln(B / A) in place of ln B.
"""

from __future__ import annotations

import numpy as np

from moescale.scaling_laws.clark2022 import DOMAIN, E_MAX, E_START, ln_effective
from moescale.scaling_laws.form import EXPONENT, Ends, Inputs, LawForm, Parameter, Shape, ln_add
from moescale.typing import FloatArray

LN_N_REF, LN_D_REF = float(np.log(1e9)), float(np.log(1e10))
LEAST_FLOOR = 1e-3  # nats per token: as good as none


def _parts(shape: Shape, x: Inputs) -> tuple[tuple[float, FloatArray], float]:
    """0 for F, and ln of the norm of size and data over A; the shape ends in ln E_start / ln E_max where the form has it."""
    q, alpha, beta, ln_kappa, ln_d0, g, ln_r, ln_max, *start = shape
    u = start[0] if start else 0.0
    gain = ln_effective(u, ln_max, x) - u * ln_max
    ripe = 1.0 / (1.0 + np.exp(ln_r + x.ln_n - x.ln_d))  # r / (r + R)
    size = -alpha * (x.ln_n - LN_N_REF + g * gain * ripe)
    data = q - beta * (x.ln_d - LN_D_REF - ln_add(0.0, ln_d0 - x.ln_d))
    kappa = np.exp(ln_kappa)
    return (0.0, kappa * ln_add(size / kappa, data / kappa)), 0.0


def _ln(low: float, high: float) -> Ends:
    return float(np.log(low)), float(np.log(high))


SOFTNESS = _ln(0.2, 0.8)
PARAMETERS = (
    Parameter("F", True, "irreducible loss", box=lambda observed: _ln(LEAST_FLOOR, observed.loss_min)),
    Parameter("A", True, "loss that a body of 1e9 parameters adds with endless data"),
    Parameter(
        "B", True, "loss that 1e10 effective tokens add at endless size", scan=(-2.0, 2.0), box=(-12.0, 12.0),
        to_search=lambda given: np.log(given["B"]) - np.log(given["A"]),
        to_public=lambda moved: np.exp(moved["B"] + moved["A"]),
    ),
    Parameter("alpha", False, "exponent of size", scan=(0.05, 0.5)),
    Parameter("beta", False, "exponent of data", scan=(0.05, 0.5)),
    Parameter("kappa", True, "softness of the bottleneck: 1 adds size and data, near 0 the worse one rules", SOFTNESS, SOFTNESS),
    Parameter("D_0", True, "tokens that the start of training costs", scan=_ln(1e6, 2e9), box=_ln(1e4, 1e12)),
    Parameter("g", False, "exponent of the expansion in the effective size, with many tokens per parameter", (0.0, 1.2), EXPONENT),
    Parameter("R", True, "tokens per parameter at which the expansion has half of that exponent", _ln(1.0, 3e3), _ln(1e-3, 1e5)),
    E_MAX,
)  # fmt: skip


def _form(*, late: bool) -> LawForm:
    gain = "(Xhat/E_start)" if late else "Xhat"
    plain = "MoE law of models: size and data as bottlenecks above a floor, experts as size"
    return LawForm(
        name="moescale2026-late" if late else "moescale2026",
        title="the same with experts that start to help late" if late else plain,
        equation="L = F + ((A (1e9/N_eff)^alpha)^(1/kappa) + (B (1e10/D_eff)^beta)^(1/kappa))^kappa; "
        f"N_eff = N {gain}^(g D/(D + R N)), D_eff = D/(1 + D_0/D); N the active body, X the expansion",
        source="moescale, chosen by hold-outs across public tables (docs/evidence/own-law.md)",
        parameters=(*PARAMETERS, E_START) if late else PARAMETERS,
        parts=_parts,
        uses_experts=True,
        of_models=True,
        domain="amplitudes are positive and " + (DOMAIN if late else "E_max > 1"),
    )


FORM, FORM_LATE = _form(late=False), _form(late=True)
