"""The shape of a decoder-only transformer, dense or MoE, from numbers or a Hugging Face config.json."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
Real = float | FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """Shape of one transformer, or of many: every number may be an array (one entry a model) and real-valued.

    Real values let an allocation search move through sizes continuously; a buildable model holds whole numbers.
    Layer norms are counted with `d_model` weights each (RMSNorm).
    """

    n_layers: Real
    d_model: Real
    n_heads: Real
    n_kv_heads: Real
    head_dim: Real
    d_ffn: Real  # width of the FFN in layers without experts
    n_moe_layers: Real = 0.0  # how many of n_layers hold experts instead of one FFN
    n_experts: Real = 1.0  # routed experts in each MoE layer
    top_k: Real = 1.0  # routed experts that one token meets (never more than n_experts)
    d_expert: Real = 0.0  # FFN width of one routed expert
    d_shared_expert: Real = 0.0  # FFN width of all shared experts of a layer together
    ffn_matrices: int = 3  # 3 for a gated FFN (gate, up, down), 2 for a plain one
    vocab_size: Real = 0.0  # 0: embeddings are left out of every count
    tied_embeddings: bool = False
    qk_norm: bool = False  # per-head RMSNorm of queries and keys (Qwen3)
    qkv_bias: bool = False  # biases of the query, key and value projections (Qwen2)
    name: str = ""
