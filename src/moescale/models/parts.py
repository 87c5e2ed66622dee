"""Parameters of one layer's parts: of the whole model, or on the fullest of the GPUs that tensor parallelism splits it over."""

from __future__ import annotations

import numpy as np

from moescale.models.architecture import Architecture
from moescale.typing import FloatArray, Real


def value_head_dim(architecture: Architecture) -> FloatArray:
    """Channels of one head's value."""
    v = np.asarray(architecture.v_head_dim, dtype=float)
    return np.where(v > 0, v, architecture.head_dim)


def kv_heads_per_gpu(architecture: Architecture, tensor_parallel: Real = 1.0) -> FloatArray:
    """Key-value heads on each of `tensor_parallel` GPUs: split until one is left, which more GPUs then replicate."""
    heads = np.asarray(architecture.n_kv_heads, dtype=float)
    return np.maximum(heads / tensor_parallel, np.minimum(heads, 1.0))


def attention_matrix_params(architecture: Architecture, tensor_parallel: Real = 1.0) -> FloatArray:
    """Parameters of the attention matrices of one layer on each of `tensor_parallel` GPUs.

    Heads are split as `kv_heads_per_gpu` says; the projections that compress queries, keys and values for all heads of
    latent attention are held by every GPU.
    """
    a = architecture
    heads = np.asarray(a.n_heads, dtype=float) / tensor_parallel
    if a.matrices_only:
        return np.asarray(4.0 * a.d_model * heads * a.head_dim)
    qk, value = a.head_dim, value_head_dim(a)
    grouped = a.d_model * (heads * (qk + value) + kv_heads_per_gpu(a, tensor_parallel) * (qk + value))
    latent_width = np.asarray(a.kv_lora_rank, dtype=float)
    if not np.any(latent_width):
        return np.asarray(grouped)
    query_rank = np.asarray(a.q_lora_rank, dtype=float)
    queries = np.where(query_rank > 0, query_rank * (a.d_model + heads * qk), a.d_model * heads * qk)
    compressed = a.d_model * (latent_width + a.qk_rope_head_dim)
    expanded = latent_width * heads * (qk - a.qk_rope_head_dim + value)
    latent = queries + compressed + expanded + heads * value * a.d_model
    return np.where(latent_width > 0, latent, grouped)


def attention_vector_params(architecture: Architecture, tensor_parallel: Real = 1.0) -> FloatArray:
    """Biases and attention sinks of one layer on each of `tensor_parallel` GPUs.

    They go where their matrix goes; the bias of the output, which is a sum over GPUs, is held by every one.
    """
    a = architecture
    heads = np.asarray(a.n_heads, dtype=float) / tensor_parallel
    count = np.zeros(())
    if a.qkv_bias:
        qk, value = a.head_dim, value_head_dim(a)
        grouped = heads * qk + kv_heads_per_gpu(a, tensor_parallel) * (qk + value)
        # Of latent attention only the compressing projections have a bias.
        compressed = np.asarray(a.q_lora_rank, dtype=float) + a.kv_lora_rank + a.qk_rope_head_dim
        count = count + np.where(np.asarray(a.kv_lora_rank) > 0, compressed, grouped)
    if a.attention_output_bias:
        count = count + a.d_model
    if a.attention_sinks:
        count = count + heads
    return count


def attention_params(architecture: Architecture) -> FloatArray:
    """Parameters of the attention of one layer: its projections, with their biases, and sinks."""
    if architecture.matrices_only:
        return attention_matrix_params(architecture)
    return attention_matrix_params(architecture) + attention_vector_params(architecture)


def ffn_matrix_params(architecture: Architecture, width: Real) -> FloatArray:
    """Parameters of the matrices of one FFN (or expert) of `width`; broadcasts with the architecture's fields."""
    a = architecture
    return np.asarray(np.asarray(width, dtype=float) * a.d_model * a.ffn_matrices)


def ffn_vector_params(architecture: Architecture, width: Real) -> FloatArray:
    """Biases of one FFN (or expert) of `width`, where it has any: every matrix but the last widens to `width`."""
    a = architecture
    return np.asarray(np.asarray(width, dtype=float) * (a.ffn_matrices - 1) + a.d_model)


def ffn_params(architecture: Architecture, width: Real) -> FloatArray:
    """Parameters of one FFN (no routed expert) of `width`; broadcasts with the architecture's fields."""
    count = ffn_matrix_params(architecture, width)
    return count + ffn_vector_params(architecture, width) if architecture.ffn_bias else count


def expert_params(architecture: Architecture) -> FloatArray:
    """Parameters of one routed expert, `d_expert` wide."""
    a = architecture
    count = ffn_matrix_params(a, a.d_expert)
    return count + ffn_vector_params(a, a.d_expert) if a.expert_bias else count


def dense_equivalent_params(architecture: Architecture) -> FloatArray:
    """N: parameters without embeddings, norms and routers of the same model with one FFN where it has experts.

    That FFN is `d_ffn` wide or, where no width is given, as wide as all that one token meets (top_k experts and the
    shared ones).
    """
    a = architecture
    met = np.asarray(a.top_k, dtype=float) * a.d_expert + a.d_shared_expert
    width = np.where(np.asarray(a.d_ffn) > 0, a.d_ffn, met)
    return np.asarray(a.n_layers * (attention_params(a) + ffn_params(a, width)))
