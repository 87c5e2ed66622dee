"""One model as N and E of several families: active parameters without embeddings, and how far its experts expand it.

Laws count different things. What families share is the body, the parameters without embedding tables that one token
meets, and the expansion X, the FFN weights of all experts over those that one token meets, over all layers; 1 for a
dense model.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from moescale.models.architecture import Architecture
from moescale.models.family import ModelFamily, dense_params, expert_ffns, expert_share, width, width_elasticity
from moescale.models.parameters import count_parameters
from moescale.typing import FloatArray, Real

DENSE = 1.0 + 1e-9  # expansions up to here are 1 but for rounding


def expansion(family: ModelFamily, experts: Real) -> FloatArray:
    """X of models with E experts in the family's MoE layers; same shape."""
    return _expansion(family, *expert_ffns(family, experts))


def _expansion(family: ModelFamily, held: FloatArray, met: FloatArray) -> FloatArray:
    without = family.moe_every - 1.0  # FFNs of the other layers, for one MoE layer
    return (held + without) / (met + without)


def experts_at(family: ModelFamily, expansion: Real) -> FloatArray:
    """E (real-valued) of the family's models with this X; 1 where X is 1. Same shape."""
    x, without = np.asarray(expansion, float), family.moe_every - 1.0
    held = x * (_met(family) + without) - without
    return np.where(x <= DENSE, 1.0, held / family.expert_width - family.shared_experts)


def _met(family: ModelFamily) -> float:
    """FFNs that a token meets in a layer of top_k or more experts, in units of a dense layer's."""
    return family.expert_width * (family.top_k + family.shared_experts)


def of_architecture(architecture: Architecture) -> tuple[FloatArray, FloatArray]:
    """Active parameters without embedding tables, norms and routers included, and X, of any shape. Fields broadcast."""
    counted = count_parameters(architecture)
    others = counted.dense_ffn + counted.shared_experts
    return counted.non_embedding_active, (counted.experts + others) / (counted.active_experts + others)


def expert_shape_of(architecture: Architecture) -> tuple[FloatArray, FloatArray]:
    """Granularity, 8 d_model^2 over the parameters of a routed expert (1: dense), and the share of shared experts in what a token meets."""
    a, width = architecture, np.asarray(architecture.d_expert, dtype=np.float64)
    routed = (np.asarray(a.n_moe_layers) > 0) & (width > 0)
    width = np.where(routed, width, 1.0)
    grain = np.where(routed, 8.0 * a.d_model / (a.ffn_matrices * width), 1.0)
    return grain, np.where(routed, a.d_shared_expert / (a.top_k * width + a.d_shared_expert), 0.0)


def same_variables(a: ModelFamily, b: ModelFamily) -> bool:
    """Whether N and E mean the same in two families, whatever their names, data, convention of FLOPs and plans' counts."""
    about = {"name": "", "tokenizer": "", "dataset": "", "source": "", "convention": "exact"}
    about |= {"ladder": (), "base_experts": 1.0}
    return replace(a, **about) == replace(b, **about)


def model_of(family: ModelFamily, n_params: Real, experts: Real) -> tuple[FloatArray, FloatArray]:
    """Active parameters without embeddings, and X, of models that the family calls N (dense-equivalent) and E. Arguments broadcast."""
    n, e = _alike(n_params, experts)
    held, met = expert_ffns(family, e)
    body = n * (1.0 + (met - 1.0) * expert_share(family, n))
    if tables := family.embedding_matrices * family.vocab_size:
        body = body - tables * width(family, n)
    return body, _expansion(family, held, met)


def body_elasticity(family: ModelFamily, n_params: Real, experts: Real) -> FloatArray:
    """d ln body / d ln N of `model_of`. Arguments broadcast."""
    n, e = _alike(n_params, experts)
    if family.has_one_shape_factor:
        return np.ones(n.shape)
    met, d = expert_ffns(family, e)[1], width(family, n)
    more, tables = (met - 1.0) * expert_share(family, n) * n, family.embedding_matrices * family.vocab_size * d
    # The body is N and terms in the width: its cube, and the tables.
    return (n + (3.0 * more - tables) * width_elasticity(family, n)) / (n + more - tables)


def _alike(a: Real, b: Real) -> tuple[FloatArray, FloatArray]:
    """Both of one shape; NumPy takes as long as a formula where they are already."""
    one, other = np.asarray(a, float), np.asarray(b, float)
    if one.shape != other.shape:
        one, other = np.broadcast_arrays(one, other)
    return one, other


def in_family(family: ModelFamily, active_body: Real, expansion: Real) -> tuple[FloatArray, FloatArray]:
    """N (dense-equivalent) and E (real-valued) of the family's models with this active body and X; the inverse of `model_of`, dense at X = 1."""
    body, x = _alike(active_body, expansion)
    e = experts_at(family, x)
    if family.has_one_shape_factor:
        return body / (1.0 + np.where(e > 1.0, _met(family) - 1.0, 0.0) * expert_share(family, body)), e
    sparse, (of_dense, of_sparse) = e > 1.0, _bodies(family)
    d = width(of_sparse if sparse.any() else of_dense, body)
    if sparse.any() and not sparse.all():
        d = np.where(sparse, d, width(of_dense, body))
    return dense_params(family, d), e


@lru_cache(maxsize=64)
def _bodies(family: ModelFamily) -> tuple[ModelFamily, ModelFamily]:
    """Families whose N is the active body of this one's dense models, and of those with experts."""
    dense = replace(family, embedding_matrices=0)
    return dense, replace(dense, ffn_ratio=family.ffn_ratio * (1.0 + (_met(family) - 1.0) / family.moe_every))
