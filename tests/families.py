"""The two families of models that the tests are about, the paper's and that of the public joint_moe_runs, and the dense optimum."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from moescale.fitting.search import HUBER_DELTA
from moescale.models.family import ModelFamily
from moescale.models.published import hl_coefficient, shapes_of_hl
from moescale.scaling_laws import FORMS, Law, LawForm
from moescale.scaling_laws.form import Inputs
from moescale.typing import FloatArray


def aspect_ratio(mu: float, layer_multiple: float) -> float:
    """d_model / n_layers for which h l = mu N^(2/3), where a layer holds `layer_multiple` h^2 parameters."""
    return 1.0 / (mu**3 * layer_multiple**2)


DENSE_MU, _ = hl_coefficient(shapes_of_hl().values())

# arXiv 2404.02852, section 2.1 and appendix B: gated FFN 8/3 wide, top-2, experts in every other layer, no embeddings.
PAPER = ModelFamily(
    name="yun2024", top_k=2, moe_every=2, ffn_ratio=8 / 3, d_model_per_layer=aspect_ratio(DENSE_MU, 12.0),
    convention="paper",
)  # fmt: skip
# arXiv 2502.05172: gated FFN 3 wide, top-1 in every layer, both embedding tables counted.
JOINT = ModelFamily(
    name="ludziejewski2025", top_k=1, moe_every=1, ffn_ratio=3.0, d_model_per_layer=64.0, head_dim=64.0,
    vocab_size=50257.0, embedding_matrices=2,
)  # fmt: skip
# Dense models without embeddings.
DENSE = ModelFamily(name="dense", top_k=1, moe_every=1, ffn_ratio=8 / 3, d_model_per_layer=aspect_ratio(DENSE_MU, 12.0))

# One member of the family of coefficients that reproduce the paper's printed numbers, and printed ones of a dense law.
YUN = {
    "A": 90.97, "alpha": 0.2766, "B": 1.573, "beta": 0.1254, "C": 15732.0, "gamma": 0.4659, "F": 0.3752, "d": 0.00186,
    "E_start": 4.427, "E_max": 173.7,
}  # fmt: skip
HOFFMANN = {"E": 1.69, "A": 406.4, "B": 410.7, "alpha": 0.34, "beta": 0.28}


def law_of(form: str, values: dict[str, float], family: ModelFamily, **changes: Any) -> Law:
    """A made-up law with these coefficients."""
    chosen = FORMS[form]
    theta = chosen.encode(np.array([values[name] for name in chosen.names]))
    law = Law(
        name="made-up", form=chosen, theta=theta, family=family, source="a test", date="2026-01-01", fit_range={},
        draws=np.empty((0, theta.size)),
    )  # fmt: skip
    return replace(law, **changes)


def chinchilla_optimum(theta: FloatArray, budget_flops: float, flops_multiple: float = 1.0) -> tuple[float, float]:
    """Loss-optimal (N, D) of chinchilla where training costs 6 * flops_multiple * N * D FLOPs (equation 4 of Hoffmann et al.)."""
    p = dict(zip(FORMS["chinchilla"].names, FORMS["chinchilla"].decode(theta), strict=True))
    alpha, beta = p["alpha"], p["beta"]
    work = np.log(budget_flops / (6.0 * flops_multiple))
    ln_n = (np.log(alpha * p["A"] / (beta * p["B"])) + work * beta) / (alpha + beta)
    return float(np.exp(ln_n)), float(np.exp(work - ln_n))


def trust_region(
    form: LawForm, x: Inputs, ln_loss: FloatArray, start: FloatArray, box: FloatArray, evaluations: int
) -> float:
    """The lowest summed Huber objective of SciPy's bounded trust-region search from one start, with box (n, 2)."""
    found = least_squares(
        lambda theta: form.log_loss(theta, x) - ln_loss,
        np.clip(start, box[:, 0] + 1e-9, box[:, 1] - 1e-9),  # it has to start inside
        jac=lambda theta: form.jacobian(theta, x),
        bounds=box.T,
        loss="huber",
        f_scale=HUBER_DELTA,
        x_scale="jac",
        max_nfev=evaluations,
        **dict.fromkeys(("ftol", "xtol", "gtol"), 1e-15),
    )
    return float(found.cost)
