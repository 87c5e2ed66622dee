"""Bytes of keys and values that requests hold; everything broadcasts over the fields of the architecture."""

from __future__ import annotations

import numpy as np

from moescale.models.architecture import Architecture
from moescale.models.operations import Attention, Indexer, State, operations
from moescale.typing import FloatArray, Real


def kv_bytes_per_token(architecture: Architecture, bytes_per_element: Real = 2.0) -> FloatArray:
    """Bytes of keys and values that one further token of context holds in all layers together (2.0: bf16).

    Layers with a window count, as they do until the window is full; linear layers do not. Latent attention holds its
    compressed keys and values and one positional key, kv_lora_rank + qk_rope_head_dim elements a layer; sparse attention
    its indexers' keys as well.
    """
    total = np.zeros(())
    for op in operations(architecture):
        if isinstance(op, Attention):
            total = total + op.layers * op.cached_elements * bytes_per_element
        elif isinstance(op, Indexer):
            total = total + op.cached_bytes
    return total


def kv_bytes_per_request(
    architecture: Architecture, context_tokens: Real, bytes_per_element: Real = 2.0, tensor_parallel: Real = 1.0
) -> FloatArray:
    """Bytes of cache that one request of `context_tokens` tokens holds on each of `tensor_parallel` GPUs.

    Heads are split until one is left on each GPU (more GPUs replicate it); latent attention and indexers' keys are
    replicated on every GPU; layers with a window hold no more than the window, linear layers their state of constant size.
    """
    total, context = np.zeros(()), np.asarray(context_tokens, dtype=np.float64)
    for op in operations(architecture, tensor_parallel):
        if isinstance(op, Attention):
            total = total + op.held(context) * op.cached_elements * bytes_per_element
        elif isinstance(op, Indexer):
            total = total + context * op.cached_bytes
        elif isinstance(op, State):
            total = total + op.cached_bytes
    return total
