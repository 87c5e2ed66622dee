"""A law whose coefficients differ between sources: experts as size, never better than a dense model of the MoE's total size.

    L     = u (f + (1 - f) (tau (1e9/N_eff)^(alpha/kappa) + (1 - tau) (2e10/D_eff)^(beta/kappa))^kappa)
    N_eff = N m,  m = (Xhat/E_start)^h exp(w_x x)
    h     = sigmoid(a + nu ln(N/1e9) + g ln(G) + s S) / (1 + R N/D)  <= 1
    D_eff = D' / (1 + D_0 / D')
    1/Xhat = 1/(X - 1 + 1/(1/E_start - 1/E_max)) + 1/E_max

N is the active body, X the expansion, D tokens as in `moescale2026`. G is the granularity, 8 d_model^2 over the parameters of one
routed expert (16 at most), S the share of the FFN weights that a token meets which shared experts hold. D' counts repeated data
as Muennighoff et al. do (arXiv 2305.16264), with R_D epochs. w_x, w_n and w_d are what a source does beyond the runs: x, and the
e-folds of N and D that multiply L by exp(w_n ..) exp(w_d ..), begin at the ends of the runs (RUNS). theta is in the coordinates in
which sources are normal (docs/evidence/pooled-law.md); a draw is a source that was not seen.
"""

from __future__ import annotations

import numpy as np

from moescale.scaling_laws.form import Inputs, LawForm, Observed, Parameter, limits
from moescale.typing import FloatArray

PARAMETERS = tuple(
    Parameter(name, False, meaning)
    for name, meaning in {
        "ln_u": "ln of the loss of a dense body of 1e9 on 2e10 tokens, nearly",
        "logit_f": "share of it that no size and no data remove",
        "logit_tau": "share of the rest that size removes",
        "ln_alpha": "exponent of size",
        "ln_beta": "exponent of data",
        "ln_kappa": "softness of the bottleneck",
        "ln_D_0": "tokens that the start of training costs, in 1e8",
        "a": "gain of the expansion at N = 1e9",
        "ln_R": "tokens a parameter at which the gain is half, in 10",
        "nu": "change of the gain with ln N",
        "ln_E_max": "expansion that nothing exceeds, over 300 above E_start",
        "ln_E_start": "expansion where experts start to help, over 1.5",
        "g": "change of the gain with ln G",
        "s": "change of the gain with the share of shared experts",
        "ln_R_D": "epochs of repetition after which more add little, in 15",
        "w_x": "ln of the size multiplier for each e-fold of X beyond the runs",
        "w_n": "ln of the loss for each e-fold of N beyond the runs",
        "w_d": "ln of the loss for each e-fold of D beyond the runs",
    }.items()
)
COUNT = len(PARAMETERS)
# Largest of the runs that the shipped coefficients rest on: S-Base has X to 256.5 at 130B tokens, Marin's runs 43 at several N
# and D; OLMo's 13B saw 5e12 tokens.
RUNS_X, RUNS_N, RUNS_D = 43.0, 1.3e10, 5e12
MOST_GRANULAR = 16.0  # the most that tian2025's runs have: d_expert = d_model / 6, of 3 matrices
LN_N, LN_D = float(np.log(1e9)), float(np.log(2e10))


def _sigmoid(z: FloatArray) -> FloatArray:
    return 1.0 / (1.0 + np.exp(-z))


def ln_multiplier(theta: FloatArray, x: Inputs) -> FloatArray:
    """ln of the dense body that an MoE's body is worth, over it, (..., n): 0 where X = 1."""
    t = theta[..., None, :]
    start = 1.0 + 0.5 * np.exp(t[..., 11])
    most = start + 300.0 * np.exp(t[..., 10])
    saturated = 1.0 / (x.experts - 1.0 + 1.0 / (1.0 / start - 1.0 / most)) + 1.0 / most
    grain = np.log(np.clip(x.extra["granularity"], 1.0 / MOST_GRANULAR, MOST_GRANULAR))
    logit = t[..., 7] + t[..., 9] * (x.ln_n - LN_N) + t[..., 12] * grain + t[..., 13] * x.extra["shared_ffn"]
    h = _sigmoid(logit) / (1.0 + 10.0 * np.exp(t[..., 8] + x.ln_n - x.ln_d))
    return -h * np.log(saturated * start) + t[..., 15] * np.maximum(np.log(x.experts / RUNS_X), 0.0)


def log_loss(theta: FloatArray, x: Inputs) -> FloatArray:
    """ln L at each point, shape (..., n)."""
    u, lf, lt, la, lb, lk, l0 = np.moveaxis(theta[..., None, :7], -1, 0)
    t = theta[..., None, :]
    size = x.ln_n - LN_N + ln_multiplier(theta, x)
    unique, ln_d = x.extra["unique_tokens"], x.ln_d
    if np.isfinite(unique).any():
        epochs, more = 15.0 * np.exp(t[..., 14]), np.exp(ln_d - np.log(unique)) - 1.0
        repeated = np.log(unique) + np.log(1.0 + epochs * (1.0 - np.exp(-more / epochs)))
        ln_d = np.where(np.isfinite(unique) & (np.real(more) > 0.0), repeated, ln_d)
    data = ln_d - LN_D - np.log(1.0 + 1e8 * np.exp(l0 - ln_d))
    k, tau, f = np.exp(lk), _sigmoid(lt), _sigmoid(lf)
    rest = tau * np.exp(-np.exp(la) * size / k) + (1.0 - tau) * np.exp(-np.exp(lb) * data / k)
    beyond = t[..., 16] * _above(x.ln_n - np.log(RUNS_N)) + t[..., 17] * _above(x.ln_d - np.log(RUNS_D))
    return u + np.log(f + (1.0 - f) * rest**k) + beyond


def _above(z: FloatArray) -> FloatArray:
    """z where it is positive, else 0; of complex steps too."""
    return np.where(np.real(z) > 0.0, z, 0.0)


def bounds(observed: Observed) -> FloatArray:
    """The box, (p, 2): far beyond what any source has, so that exponentials stay finite."""
    return limits([(-20.0, 20.0)] * COUNT)(observed)


FORM = LawForm(
    name="pooled2026",
    title="law with random effects over sources",
    equation="L = u (f + (1-f) (tau (1e9/N_eff)^(alpha/kappa) + (1-tau) (2e10/D_eff)^(beta/kappa))^kappa); "
    "N_eff = N (Xhat/E_start)^h, h = sigmoid(a + nu ln(N/1e9) + g ln G + s S)/(1 + R N/D) <= 1, D_eff = D/(1 + D_0/D)",
    source="moescale (docs/evidence/pooled-law.md)",
    parameters=PARAMETERS,
    log_loss=log_loss,
    bounds=bounds,
    region=bounds,
    uses_experts=True,
    of_models=True,
    extra_inputs={"granularity": 1.0, "shared_ffn": 0.0, "unique_tokens": float("inf")},
)
