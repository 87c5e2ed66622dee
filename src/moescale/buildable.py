"""From a real-valued size to a shape with whole layers and heads."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import numpy as np

from moescale.candidates import Candidate
from moescale.errors import InputError
from moescale.family import ModelFamily, architecture


@dataclass(frozen=True, slots=True, kw_only=True)
class Buildable:
    """Whole-number shape nearest to a recommended size: what a configuration file would hold."""

    n_layers: int
    d_model: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    d_ffn: int
    n_experts: int
    top_k: int
    moe_every: int
    n_params: float  # dense-equivalent, counted as the law counts it
    n_params_total: float

    def to_dict(self) -> dict[str, object]:
        """JSON-ready values."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


def buildable(family: ModelFamily, model: Candidate, *, gpus: int = 1, kv_heads: float | None = None) -> Buildable:
    """The whole-number shape nearest to a model's N whose heads split over `gpus` GPUs (tensor parallel) and `kv_heads`.

    Depth is a multiple of the MoE spacing, width a multiple of the head dimension, FFN width a multiple of 64.
    """
    if model.n_params is None:
        raise InputError("an infeasible model has no shape")
    wanted = architecture(family, model.n_params, model.experts, kv_heads=kv_heads)
    hd = int(family.head_dim)
    heads, layers = float(wanted.n_heads), float(wanted.n_layers)
    cache_heads = math.inf if kv_heads is None else int(kv_heads)
    widest = int(heads * 1.5) + 2 * math.lcm(gpus, 1 if kv_heads is None else int(kv_heads))
    depths = np.arange(family.moe_every, int(layers * 2) + 2 * family.moe_every, family.moe_every)
    # Off by size counts most; within a percent of it the family's aspect ratio decides.
    unlike = 0.02 * np.abs(np.log(depths / layers))
    best: tuple[float, int, int] | None = None
    for n_heads in range(gpus, widest + 1, gpus):
        if n_heads % min(n_heads, cache_heads):  # grouped queries share a key-value head evenly
            continue
        per_layer, embedding = _sizes(family, n_heads * hd)
        off = np.abs(np.log((depths * per_layer + embedding) / model.n_params)) + unlike
        at = int(np.argmin(off))
        if best is None or off[at] < best[0]:
            best = float(off[at]), n_heads, int(depths[at])
    if best is None:
        raise InputError(f"no whole-number shape near {model.n_params:.3g} parameters", next_step="raise the budget")
    _, n_heads, n_layers = best
    d = n_heads * hd
    per_layer, embedding = _sizes(family, d)
    d_ffn = _d_ffn(family, d)
    n = float(n_layers * per_layer + embedding)
    expert = n_layers / family.moe_every * family.ffn_matrices * d * d_ffn
    return Buildable(
        n_layers=n_layers,
        d_model=d,
        n_heads=n_heads,
        n_kv_heads=int(min(n_heads, cache_heads)),
        head_dim=hd,
        d_ffn=d_ffn,
        n_experts=int(model.experts),
        top_k=int(min(family.top_k, model.experts)),
        moe_every=family.moe_every,
        n_params=n,
        n_params_total=float(n + (model.experts - 1) * expert),
    )


def _d_ffn(family: ModelFamily, d_model: int) -> int:
    return 64 * max(1, round(family.ffn_ratio * d_model / 64))


def _sizes(family: ModelFamily, d_model: int) -> tuple[float, float]:
    """Parameters of a dense layer, and of the embeddings, at a width."""
    per_layer = 4.0 * d_model * d_model + family.ffn_matrices * d_model * _d_ffn(family, d_model)
    return per_layer, family.embedding_matrices * family.vocab_size * d_model
