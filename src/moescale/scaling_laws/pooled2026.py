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

from dataclasses import replace

import numpy as np

from moescale.scaling_laws.form import STEP, Inputs, LawForm, Parameter
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


def _gain(theta: FloatArray, x: Inputs) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """ln m, and what its slopes follow from: h ln(Xhat/E_start), the logistic's rest, the share of R N/D; (..., n) each."""
    t = theta[..., None, :]
    start = 1.0 + 0.5 * np.exp(t[..., 11])
    most = start + 300.0 * np.exp(t[..., 10])
    # Of each expansion once: there are few.
    each = x.experts_distinct
    ln_x = -np.log((1.0 / (each - 1.0 + 1.0 / (1.0 / start - 1.0 / most)) + 1.0 / most) * start)
    beyond = t[..., 15] * _above(np.log(each) - t[..., 19])
    at = x.experts_index
    grain = np.log(np.clip(x.extra["granularity"], 1.0 / MOST_GRANULAR, MOST_GRANULAR))
    logit = t[..., 7] + t[..., 9] * (x.ln_n - LN_N) + t[..., 12] * grain + t[..., 13] * x.extra["shared_ffn"]
    rest, odds = np.exp(-logit), 10.0 * np.exp(t[..., 8] + x.ln_n - x.ln_d)
    pull = ln_x[..., at] / ((1.0 + rest) * (1.0 + odds))
    return pull + beyond[..., at], pull, rest / (1.0 + rest), odds / (1.0 + odds)


def ln_multiplier(theta: FloatArray, x: Inputs) -> FloatArray:
    """ln of the dense body that an MoE's body is worth, over it, (..., n): 0 where X = 1."""
    return _gain(theta, x)[0]


def _effective_tokens(theta: FloatArray, x: Inputs) -> FloatArray:
    """ln of the tokens that repeated data are worth, (..., n)."""
    unique = x.extra["unique_tokens"]
    if not np.isfinite(unique).any():
        return x.ln_d
    return saturated(x.ln_d, np.log(unique), np.log(15.0) + theta[..., None, 14])


def log_loss(theta: FloatArray, x: Inputs) -> FloatArray:
    """ln L at each point, shape (..., n)."""
    return _values(theta, x, _gain(theta, x)[0], _effective_tokens(theta, x))[0]


def _values(
    theta: FloatArray, x: Inputs, gain: FloatArray, ln_d: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """ln L, minus its slopes in ln N_eff and in ln D_eff, and the share of D_eff in D; (..., n) each."""
    t = theta[..., None, :]
    k, tau, f = np.exp(t[..., 5]), _sigmoid(t[..., 2]), _sigmoid(t[..., 1])
    alpha, beta = np.exp(t[..., 3]), np.exp(t[..., 4])
    spent = 1.0 + 1e8 * np.exp(t[..., 6] - ln_d)
    size = tau * np.exp(-alpha / k * (x.ln_n - LN_N + gain + np.log1p(_embeddings(t, x, gain))))
    data = (1.0 - tau) * np.exp(-beta / k * (ln_d - LN_D - np.log(spent)))
    rest = (1.0 - f) * (size + data) ** k
    per = rest / ((f + rest) * (size + data))
    beyond = t[..., 16] * _above(x.ln_n - np.log(RUNS_N)) + t[..., 17] * _above(x.ln_d - np.log(RUNS_D))
    return t[..., 0] + np.log(f + rest) + beyond, alpha * per * size, beta * per * data, (2.0 * spent - 1.0) / spent


def _embeddings(t: FloatArray, x: Inputs, gain: FloatArray) -> FloatArray:
    """What embeddings are worth over what the body is worth, (..., n)."""
    return 1e7 * np.exp(t[..., 18] - x.ln_n - gain)


def slopes(theta: FloatArray, x: Inputs) -> tuple[FloatArray, FloatArray]:
    """Derivatives of ln L with respect to ln N and ln D at each point, each (..., n); unique tokens stay as they are."""
    t = theta[..., None, :]
    gain, pull, left, crowded = _gain(theta, x)
    ln_d, stepped = (_effective_tokens(theta, at) for at in (x, replace(x, ln_d=x.ln_d + 1j * STEP)))
    _, by_size, by_data, started = _values(theta, x, gain, ln_d)
    by_size = by_size / (1.0 + _embeddings(t, x, gain))  # in ln N m
    in_n = -by_size * (1.0 + pull * (left * t[..., 9] - crowded)) + t[..., 16] * (x.ln_n > np.log(RUNS_N))
    in_d = -by_size * pull * crowded - by_data * started * stepped.imag / STEP + t[..., 17] * (x.ln_d > np.log(RUNS_D))
    return in_n, in_d


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
    ln_slopes=slopes,
    uses_experts=True,
    of_models=True,
    of_sources=True,
    extra_inputs={"granularity": 1.0, "shared_ffn": 0.0, "unique_tokens": float("inf")},
)
