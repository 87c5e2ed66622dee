"""Bytes of keys and values that requests hold; everything broadcasts over the fields of the architecture."""

from __future__ import annotations

import numpy as np

from moescale.models.architecture import Architecture
from moescale.typing import FloatArray, Real


def value_head_dim(a: Architecture) -> FloatArray:
    """Channels of one head's value."""
    v = np.asarray(a.v_head_dim, dtype=np.float64)
    return np.where(v > 0, v, a.head_dim)


def kv_heads_per_gpu(a: Architecture, tensor_parallel: Real = 1.0) -> FloatArray:
    """Key-value heads on each of `tensor_parallel` GPUs: split until one is left, which more GPUs then replicate."""
    heads = np.asarray(a.n_kv_heads, dtype=np.float64)
    return np.maximum(heads / tensor_parallel, np.minimum(heads, 1.0))


def kv_bytes_per_token(architecture: Architecture, bytes_per_element: Real = 2.0) -> FloatArray:
    """Bytes of keys and values that one further token of context holds in all layers together (2.0: bf16).

    Layers with a window count, as they do until the window is full. Latent attention holds its compressed keys and values
    and one positional key, kv_lora_rank + qk_rope_head_dim elements a layer.
    """
    return np.asarray(architecture.n_layers, np.float64) * _cached_elements(architecture) * bytes_per_element


def kv_bytes_per_request(
    architecture: Architecture, context_tokens: Real, bytes_per_element: Real = 2.0, tensor_parallel: Real = 1.0
) -> FloatArray:
    """Bytes of cache that one request of `context_tokens` tokens holds on each of `tensor_parallel` GPUs.

    Heads are split until one is left on each GPU (more GPUs replicate it); latent attention is replicated on every GPU;
    layers with a window hold no more than the window.
    """
    elements = _cached_elements(architecture, tensor_parallel)
    return tokens_in_layers(architecture, context_tokens) * elements * bytes_per_element


def tokens_in_layers(a: Architecture, context_tokens: Real) -> FloatArray:
    """Tokens that a context of `context_tokens` holds, summed over layers: a window holds no more than itself."""
    context, local = (np.asarray(n, dtype=np.float64) for n in (context_tokens, a.n_window_layers))
    if not np.any(local):
        return a.n_layers * context
    return (a.n_layers - local) * context + local * np.minimum(context, a.window_tokens)


def _cached_elements(a: Architecture, tensor_parallel: Real = 1.0) -> FloatArray:
    """Elements of cache that one token holds in one layer, on each of `tensor_parallel` GPUs."""
    grouped = kv_heads_per_gpu(a, tensor_parallel) * (a.head_dim + value_head_dim(a))
    latent = np.asarray(a.kv_lora_rank, dtype=np.float64)
    return np.where(latent > 0, latent + a.qk_rope_head_dim, grouped) if np.any(latent) else grouped
