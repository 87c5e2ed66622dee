"""A law whose coefficients differ between sources: experts as size, never better than a dense model of the MoE's total size.

    L     = u (f + (1 - f) (tau (1e9/N_eff)^(alpha/kappa) + (1 - tau) (2e10/D_eff)^(beta/kappa))^kappa)
    N_eff = N m + N_0,  m = (Xhat/E_start)^h exp(w_x x)
    h     = sigmoid(a + nu ln(N/1e9) + g ln(G) + s S) / (1 + R N/D)  <= 1
    D_eff = D' / (1 + D_0 / D')
    1/Xhat = 1/(X - 1 + 1/(1/E_start - 1/E_max)) + 1/E_max

N is the active body, N_0 what embeddings add to it, X the expansion, D tokens as in `moescale2026`. G is the granularity, 8 d_model^2 over the parameters of one
routed expert (16 at most), S the share of the FFN weights that a token meets which shared experts hold. D' counts repeated data
as Muennighoff et al. do (arXiv 2305.16264), with R_D epochs. w_x, w_n and w_d are what a source does beyond the runs: x, and the
e-folds of N and D that multiply L by exp(w_n ..) exp(w_d ..), begin at the ends of the runs (RUNS). theta is in the coordinates in
which sources are normal (docs/evidence/pooled-law.md); a draw is a source that was not seen.
"""

from __future__ import annotations

import numpy as np

from moescale.scaling_laws.clark2022 import effective_experts
from moescale.scaling_laws.form import Inputs, LawForm, Parameter
from moescale.scaling_laws.muennighoff2023 import saturated
from moescale.typing import FloatArray

# The boxes: beyond what any source has, and within what keeps exponentials finite.
PARAMETERS = tuple(
    Parameter(name, False, meaning, box=box)
    for name, box, meaning in (
        ("ln_u", (-10.0, 10.0), "ln of the loss of a dense body of 1e9 on 2e10 tokens, nearly"),
        ("logit_f", (-8.0, 8.0), "share of it that no size and no data remove"),
        ("logit_tau", (-8.0, 8.0), "share of the rest that size removes"),
        ("ln_alpha", (-5.0, 1.0), "exponent of size"),
        ("ln_beta", (-5.0, 1.0), "exponent of data"),
        ("ln_kappa", (-4.0, 1.0), "softness of the bottleneck"),
        ("ln_D_0", (-8.0, 8.0), "tokens that the start of training costs, in 1e8"),
        ("a", (-6.0, 6.0), "gain of the expansion at N = 1e9"),
        ("ln_R", (-15.0, 10.0), "tokens a parameter at which the gain is half, in 10"),
        ("nu", (-2.0, 2.0), "change of the gain with ln N"),
        ("ln_E_max", (-6.0, 5.0), "expansion that nothing exceeds, over 300 above E_start"),
        ("ln_E_start", (-6.0, 4.0), "expansion where experts start to help, over 1.5"),
        ("g", (-3.0, 3.0), "change of the gain with ln G"),
        ("s", (-4.0, 4.0), "change of the gain with the share of shared experts"),
        ("ln_R_D", (-5.0, 5.0), "epochs of repetition after which more add little, in 15"),
        ("w_x", (-1.0, 1.0), "ln of the size multiplier for each e-fold of X beyond the runs"),
        ("w_n", (-0.1, 0.1), "ln of the loss for each e-fold of N beyond the runs"),
        ("w_d", (-0.1, 0.1), "ln of the loss for each e-fold of D beyond the runs"),
        ("ln_N_0", (-8.0, 8.0), "body that embeddings are worth, in 1e7"),
        ("ln_X_runs", (0.0, 12.0), "ln of the expansion where the runs end"),
    )
)
COUNT = len(PARAMETERS)
# Largest of the runs that the shipped coefficients rest on: S-Base has X to 256.5 at 130B tokens, Marin's runs 43 at several N
# and D; OLMo's 13B saw 5e12 tokens.
RUNS_X, RUNS_N, RUNS_D = 43.0, 1.3e10, 5e12
MOST_GRANULAR = 16.0  # the most that tian2025's runs have: d_expert = d_model / 6, of 3 matrices
LN_N, LN_D = float(np.log(1e9)), float(np.log(2e10))


def _sigmoid(z: FloatArray) -> FloatArray:
    return 1.0 / (1.0 + np.exp(-z))


def _named(theta: FloatArray) -> dict[str, FloatArray]:
    """The coefficients by name, (..., 1) each."""
    return {parameter.name: theta[..., j, None] for j, parameter in enumerate(PARAMETERS)}


def ln_multiplier(theta: FloatArray, x: Inputs) -> FloatArray:
    """ln of the dense body that an MoE's body is worth, over it, (..., n): 0 where X = 1."""
    t = _named(theta)
    start = 1.0 + 0.5 * np.exp(t["ln_E_start"])
    most = start + 300.0 * np.exp(t["ln_E_max"])
    ln_x = np.log(effective_experts(np.log(start), np.log(most), x.experts) / start)
    beyond = t["w_x"] * _above(np.log(x.experts) - t["ln_X_runs"])
    grain = np.log(np.clip(x.extra["granularity"], 1.0 / MOST_GRANULAR, MOST_GRANULAR))
    h = _sigmoid(t["a"] + t["nu"] * (x.ln_n - LN_N) + t["g"] * grain + t["s"] * x.extra["shared_ffn"])
    late = 10.0 * np.exp(t["ln_R"]) * np.exp(x.ln_n - x.ln_d)  # draws often share N and D
    return h * ln_x / (1.0 + late) + beyond


def log_loss(theta: FloatArray, x: Inputs) -> FloatArray:
    """ln L at each point, shape (..., n)."""
    t = _named(theta)
    ln_d, unique = x.ln_d, x.extra["unique_tokens"]
    if np.isfinite(unique).any():  # repeated tokens are worth fewer
        ln_d = saturated(ln_d, np.log(unique), np.log(15.0) + t["ln_R_D"])
    ln_body = x.ln_n + ln_multiplier(theta, x)
    k, tau, f = np.exp(t["ln_kappa"]), _sigmoid(t["logit_tau"]), _sigmoid(t["logit_f"])
    more = np.log1p(1e7 * np.exp(t["ln_N_0"] - ln_body))
    size = tau * np.exp(-np.exp(t["ln_alpha"]) / k * (ln_body + more - LN_N))
    lost = np.log1p(1e8 * np.exp(t["ln_D_0"]) * np.exp(-ln_d))
    data = (1.0 - tau) * np.exp(-np.exp(t["ln_beta"]) / k * (ln_d - LN_D - lost))
    beyond = t["w_n"] * _above(x.ln_n - np.log(RUNS_N)) + t["w_d"] * _above(x.ln_d - np.log(RUNS_D))
    return t["ln_u"] + np.log(f + (1.0 - f) * (size + data) ** k) + beyond


def _above(z: FloatArray) -> FloatArray:
    """z where it is positive, else 0; of complex steps too."""
    return np.where(np.real(z) > 0.0, z, 0.0)


FORM = LawForm(
    name="pooled2026",
    title="law with random effects over sources",
    equation="L = u (f + (1-f) (tau (1e9/N_eff)^(alpha/kappa) + (1-tau) (2e10/D_eff)^(beta/kappa))^kappa); "
    "N_eff = N (Xhat/E_start)^h + N_0, h = sigmoid(a + nu ln(N/1e9) + g ln G + s S)/(1 + R N/D) <= 1, D_eff = D/(1 + D_0/D)",
    source="moescale (docs/evidence/pooled-law.md)",
    parameters=PARAMETERS,
    ln_loss=log_loss,
    uses_experts=True,
    of_models=True,
    of_sources=True,
    extra_inputs={"granularity": 1.0, "shared_ffn": 0.0, "unique_tokens": float("inf")},
)
