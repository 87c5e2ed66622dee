"""The shape of a decoder-only transformer, dense or MoE, as numbers."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from moescale.typing import Real

LINEAR_KINDS = ("gated-delta", "kda", "mamba2", "mamba")
"""Layers with a state of constant size: gated delta rule (arXiv 2412.06464), Kimi delta attention (arXiv 2510.26692),
Mamba-2 (arXiv 2405.21060) and Mamba (arXiv 2312.00752)."""

# Quantised checkpoints keep tables, norms, routers and biases in bf16: DeepSeek-V3's fp8 (README_WEIGHTS.md of its
# repository), int4 by compressed-tensors and GPTQ, and gpt-oss's mxfp4, which leaves attention in bf16 as well.
UNQUANTISED_BYTES = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantised:
    """Shares of the matrices of each part that a quantised checkpoint holds in its format, of several its smallest; the others keep 16 bits."""

    attention: float = 1.0
    dense_ffn: float = 1.0
    shared_experts: float = 1.0
    experts: float = 1.0
    embedding: float = 0.0  # the input table; tied tables count here
    lm_head: float = 0.0
    scale_per_tensor: bool = False  # fp8 with a scale a tensor or channel, as Model Optimizer has it; else a block


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """Shape of one transformer, or of many: every number may be an array (one entry a model) and real-valued."""

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
    # The paper's abstraction of N and E: norms and routers count nothing, and n_kv_heads shrinks the cache only.
    matrices_only: bool = False
    name: str = ""
    qk_norm_full_width: bool = False  # with qk_norm: one weight for every channel of all heads (OLMoE), not per head
    attention_output_bias: bool = False  # bias of the output projection of attention
    ffn_bias: bool = False  # biases of the matrices of FFNs and shared experts
    shared_expert_gate: bool = False  # a learned scalar gate in front of the shared experts (Qwen2-MoE)
    # Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1): on where kv_lora_rank is positive. The
    # cache then holds kv_lora_rank + qk_rope_head_dim elements a token and layer; head_dim is that of queries and keys
    # (their part without position and the one with it together), and n_kv_heads equals n_heads.
    kv_lora_rank: Real = 0.0  # width of the compressed keys and values; 0: ordinary attention
    q_lora_rank: Real = 0.0  # width of the compressed queries; 0: queries are not compressed (DeepSeek-V2-Lite)
    qk_rope_head_dim: Real = 0.0  # channels of a head's query that carry the position; all heads share their key
    v_head_dim: Real = 0.0  # width of a head's value; 0: head_dim
    # Local attention: so many of n_layers see, and cache, the last `window_tokens` tokens only.
    n_window_layers: Real = 0.0
    window_tokens: Real = 0.0
    attention_sinks: bool = False  # a learned logit a head (gpt-oss)
    router_bias: bool = False  # a bias an expert in the router (gpt-oss; DeepSeek-V3's correction of the scores)
    expert_bias: bool = False  # biases of the routed experts' matrices only (gpt-oss)
    norms_per_layer: Real = 2.0  # of d_model weights each: before attention and FFN; Gemma has them behind as well
    # Attention or state only (Nemotron-H); FFNs without attention join the layer before.
    n_layers_without_ffn: Real = 0.0
    d_expert_model: Real = 0.0  # width that two projections give routed experts to read and write; 0: d_model
    attention_gate: Real = 0.0  # gates a head's output has, from the layer's input: head_dim (Qwen3-Next), 1 (Step-3.7)
    # Layers with windows may have heads of their own, 0: as the others; then only they have attention_sinks (MiMo-V2),
    # and the others' values may be their keys (Gemma 4).
    window_n_heads: Real = 0.0
    window_n_kv_heads: Real = 0.0
    window_head_dim: Real = 0.0
    full_keys_are_values: bool = False
    # Sparse attention (DeepSeek-V3.2, arXiv 2512.02556, section 2.1): every token attends to the index_topk tokens that an
    # indexer with a cache of its own chooses from all; layers without an indexer take the choice of one before.
    # MiniMax-M3 does so with ordinary attention.
    index_topk: Real = 0.0  # 0: attention to all tokens
    n_sparse_layers: Real = 0.0  # layers that attend so
    index_n_heads: Real = 0.0
    index_head_dim: Real = 0.0
    n_index_layers: Real = 0.0  # layers with an indexer
    # Compressed attention (DeepSeek-V4's technical report, section 2.3): besides a window, whose one key of a token is its value as
    # well, layers attend to entries that each stand for so many tokens: the index_topk of them that an indexer chooses, which
    # overlap, or all of them where they stand for many.
    n_compressed_layers: Real = 0.0
    compressed_tokens: Real = 0.0  # an entry; 0: no such attention
    n_heavy_layers: Real = 0.0
    heavy_tokens: Real = 0.0
    output_groups: Real = 0.0  # of heads, each brought to output_rank before the projection of all
    output_rank: Real = 0.0
    residual_streams: Real = 0.0  # hyper-connections (arXiv 2409.19606): copies of the residual, which each block mixes
    # Linear attention and state spaces: so many of n_layers hold a state of constant size in place of a cache.
    n_linear_layers: Real = 0.0
    linear_kind: str = ""  # a name of LINEAR_KINDS
    linear_n_key_heads: Real = 0.0  # groups of Mamba-2
    linear_n_value_heads: Real = 0.0  # heads of Mamba-2, channels of Mamba
    linear_key_dim: Real = 0.0  # of one head; the state's size of a state space
    linear_value_dim: Real = 0.0  # of one head
    linear_conv: Real = 0.0  # tokens that the short convolution sees
    linear_rank: Real = 0.0  # width of the narrow projection of decay and gate (KDA) or of the time step (Mamba)
    linear_state_bytes: Real = 4.0  # of one element of the state: fp32, as engines hold it unless told otherwise
    quantised: Quantised = Quantised()  # which matrices have the bytes of quantised weights, if fewer than 2


NUMERIC_FIELDS = tuple(field.name for field in fields(Architecture) if field.type == "Real")
"""The fields that may be arrays."""


def shape_of(architecture: Architecture) -> tuple[int, ...]:
    """The shape that all fields of an architecture broadcast to."""
    numbers = (getattr(architecture, name) for name in NUMERIC_FIELDS)
    return np.broadcast_shapes(*{np.shape(number) for number in numbers if not isinstance(number, float)})


def some(field: Real) -> bool:
    """Whether a numeric field is positive for any of the models; asked often, mostly of one number."""
    return field > 0 if isinstance(field, int | float) else bool((field > 0).any())
