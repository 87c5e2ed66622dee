"""Bytes of keys and values that requests hold; everything broadcasts over the fields of the architecture."""

from __future__ import annotations

import numpy as np

from moescale.models.architecture import Architecture, some
from moescale.models.mixers import attention_groups, state_bytes_per_request
from moescale.typing import FloatArray, Real


def value_head_dim(a: Architecture) -> FloatArray:
    """Channels of one head's value."""
    v = np.asarray(a.v_head_dim, dtype=np.float64)
    return np.where(v > 0, v, a.head_dim)


def kv_heads_per_gpu(a: Architecture, tensor_parallel: Real = 1.0) -> FloatArray:
    """Key-value heads on each of `tensor_parallel` GPUs: split until one is left, which more GPUs then replicate."""
    heads = np.asarray(a.n_kv_heads, dtype=np.float64)
    return np.maximum(heads / tensor_parallel, np.minimum(heads, 1.0))


# An indexer's key in the cache of vLLM and SGLang: fp8 whatever the rest is held in, with a scale of 32 bits.
INDEX_SCALE_BYTES = 4.0


def kv_bytes_per_token(architecture: Architecture, bytes_per_element: Real = 2.0) -> FloatArray:
    """Bytes of keys and values that one further token of context holds in all layers together (2.0: bf16).

    Layers with a window count, as they do until the window is full; linear layers do not. Latent attention holds its
    compressed keys and values and one positional key, kv_lora_rank + qk_rope_head_dim elements a layer; sparse attention
    its indexers' keys as well.
    """
    total: Real = 0.0
    for group in attention_groups(architecture):
        total = total + np.asarray(group.n_layers, np.float64) * _cached_elements(group) * bytes_per_element
    return total + _index_bytes_per_token(architecture)


def kv_bytes_per_request(
    architecture: Architecture, context_tokens: Real, bytes_per_element: Real = 2.0, tensor_parallel: Real = 1.0
) -> FloatArray:
    """Bytes of cache that one request of `context_tokens` tokens holds on each of `tensor_parallel` GPUs.

    Heads are split until one is left on each GPU (more GPUs replicate it); latent attention and indexers' keys are
    replicated on every GPU; layers with a window hold no more than the window, linear layers their state of constant size.
    """
    total: Real = 0.0
    for group in attention_groups(architecture):
        elements = _cached_elements(group, tensor_parallel)
        total = total + tokens_in_layers(group, context_tokens) * elements * bytes_per_element
    if some(architecture.n_index_layers):
        total = total + np.asarray(context_tokens, np.float64) * _index_bytes_per_token(architecture)
    if some(architecture.n_linear_layers):
        total = total + state_bytes_per_request(architecture, tensor_parallel)
    return np.asarray(total)


def _index_bytes_per_token(a: Architecture) -> FloatArray:
    if not some(a.n_index_layers):
        return np.zeros(())
    layers = np.asarray(a.n_index_layers, dtype=np.float64)
    return layers * np.where(layers > 0, np.asarray(a.index_head_dim) + INDEX_SCALE_BYTES, 0.0)


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
