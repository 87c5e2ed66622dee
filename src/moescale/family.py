"""The family of models that a law was fitted on: what its N counts, how N and E become parameters, FLOPs and a shape.

A law's N means nothing without this. The paper's family (Yun et al. 2024) is top-2 with experts in every other layer; the
runs of Ludziejewski et al. 2025 are top-1 with experts in every layer. Using one's accounting with the other's law wipes
out the gain of the experts, so a plan takes all of it from the law.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from moescale.architecture import Architecture, FloatArray, Real
from moescale.errors import unknown_name

Convention = Literal["paper", "exact", "dense"]

# How training FLOPs of a top-k model count, as 6 * (activated parameters) * D.
CONVENTIONS: dict[str, str] = {
    "paper": "(K a + 1 - a) N with a the FFN share, as if every layer held experts: 5/3 N for top-2 (section 2.1, figures)",
    "exact": "parameters that one token meets: 4/3 N for top-2 in every other layer (appendix B)",
    "dense": "N: experts cost no training compute (6 N D)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFamily:
    """Models that differ in size and expert count only; widths and depth grow together (d_model / n_layers fixed)."""

    name: str
    top_k: int
    moe_every: int  # experts replace the FFN of one in so many layers
    ffn_ratio: float  # d_ffn / d_model
    d_model_per_layer: float  # d_model / n_layers
    ffn_matrices: int = 3  # gated
    head_dim: float = 128.0
    vocab_size: float = 0.0  # rows of the embedding; 0 where N leaves embeddings out
    embedding_matrices: int = 0  # how many of them N counts (input, output)
    convention: Convention = "exact"
    tokenizer: str = ""
    dataset: str = ""

    @property
    def layer_multiple(self) -> float:
        """Parameters of a dense layer in units of d_model^2: four attention matrices and the FFN."""
        return 4.0 + self.ffn_matrices * self.ffn_ratio


def with_convention(family: ModelFamily, name: str) -> ModelFamily:
    """The family with another named convention for training FLOPs; InputError if the name is unknown."""
    if name not in CONVENTIONS:
        raise unknown_name("convention", name, CONVENTIONS)
    return replace(family, convention=name)  # type: ignore[arg-type]


def width(family: ModelFamily, n_params: Real) -> FloatArray:
    """d_model (real-valued) of the dense model with `n_params` parameters, same shape."""
    n = np.asarray(n_params, dtype=float)
    cubic = family.layer_multiple / family.d_model_per_layer  # N = cubic d^3 + linear d
    linear = family.embedding_matrices * family.vocab_size
    if linear == 0.0:
        return np.cbrt(n / cubic)
    # One real root of a depressed cubic (d^3 + p d = q with p, q > 0), in the form that does not cancel.
    p, q = linear / cubic, n / cubic
    return 2.0 * np.sqrt(p / 3.0) * np.sinh(np.arcsinh(1.5 * q / p * np.sqrt(3.0 / p)) / 3.0)


def expert_params(family: ModelFamily, n_params: Real) -> FloatArray:
    """Parameters of one expert in each MoE layer, over all MoE layers: what every further expert adds, same shape."""
    d = width(family, n_params)
    return family.ffn_matrices * family.ffn_ratio * d**3 / family.d_model_per_layer / family.moe_every


def n_total(family: ModelFamily, n_params: Real, experts: Real) -> FloatArray:
    """Parameters that must be held in memory; (1 + (E - 1)/3) N in the paper's family. Arguments broadcast."""
    return np.asarray(n_params, float) + (np.asarray(experts, float) - 1.0) * expert_params(family, n_params)


def n_active(family: ModelFamily, n_params: Real, experts: Real) -> FloatArray:
    """Parameters that one token activates under the family's convention. Arguments broadcast; K = min(top_k, E)."""
    n = np.asarray(n_params, float)
    further = np.minimum(family.top_k, np.asarray(experts, float)) - 1.0
    layers = {"paper": float(family.moe_every), "exact": 1.0, "dense": 0.0}[family.convention]
    return n + further * layers * expert_params(family, n)


def training_flops(family: ModelFamily, n_params: Real, tokens: Real, experts: Real) -> FloatArray:
    """Training FLOPs, 6 * n_active * D. Arguments broadcast."""
    return 6.0 * n_active(family, n_params, experts) * np.asarray(tokens, float)


def flops_multiple(family: ModelFamily, n_params: Real, experts: Real) -> FloatArray:
    """Training FLOPs a token as a multiple of 6 N. Arguments broadcast."""
    return n_active(family, n_params, experts) / np.asarray(n_params, float)


def tokens_within(family: ModelFamily, budget_flops: Real, n_params: Real, experts: Real) -> FloatArray:
    """Tokens that a training budget pays for at this size and expert count. Arguments broadcast."""
    return np.asarray(budget_flops, float) / (6.0 * n_active(family, n_params, experts))


def architecture(
    family: ModelFamily, n_params: Real, experts: Real, *, kv_heads: float | None = None, top_k: int | None = None
) -> Architecture:
    """The real-valued shape of each model; `n_params` and `experts` broadcast. `kv_heads` None: one a query head."""
    n, e = np.broadcast_arrays(np.asarray(n_params, float), np.asarray(experts, float))
    d = width(family, n)
    layers, heads = d / family.d_model_per_layer, d / family.head_dim
    k = float(family.top_k if top_k is None else top_k)
    return Architecture(
        n_layers=layers,
        d_model=d,
        n_heads=heads,
        n_kv_heads=heads if kv_heads is None else np.minimum(heads, kv_heads),
        head_dim=family.head_dim,
        d_ffn=family.ffn_ratio * d,
        n_moe_layers=np.where(e > 1.0, layers / family.moe_every, 0.0),
        n_experts=e,
        top_k=np.minimum(k, e),
        d_expert=family.ffn_ratio * d,
        ffn_matrices=family.ffn_matrices,
        vocab_size=family.vocab_size,
        tied_embeddings=family.embedding_matrices < 2,
        name=family.name,
    )
