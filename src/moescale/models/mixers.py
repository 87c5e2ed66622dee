"""What mixes the tokens of a layer: the kinds of attention of one model apart, and layers with a state of constant size."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from moescale.models.architecture import Architecture, some
from moescale.typing import FloatArray, Real

CONV_BYTES = 2.0  # of the convolution's last tokens, held in bf16 as activations are


def attention_groups(a: Architecture) -> tuple[Architecture, ...]:
    """The layers that attend, in shapes whose layers all have the same heads; their FFNs are no part of the answer.

    One shape for most models, the very same where all layers attend; two where layers with windows have other heads.
    """
    apart = some(a.window_n_heads) or some(a.window_n_kv_heads) or some(a.window_head_dim)
    if not apart and not some(a.n_linear_layers):
        return (a,)
    linear, local = np.asarray(a.n_linear_layers), np.asarray(a.n_window_layers)
    rest = replace(a, n_layers=a.n_layers - linear, n_linear_layers=0.0)
    if not apart:
        return (rest,)
    own = {name: _or(getattr(a, f"window_{name}"), getattr(a, name)) for name in ("n_heads", "n_kv_heads", "head_dim")}
    same: dict[str, Real] = {"window_n_heads": 0.0, "window_n_kv_heads": 0.0, "window_head_dim": 0.0}
    full = replace(rest, n_layers=rest.n_layers - local, n_window_layers=0.0 * local, attention_sinks=False, **same)
    return full, replace(rest, n_layers=local, full_keys_are_values=False, **(same | own))


def _or(stated: Real, otherwise: Real) -> Real:
    return np.where(np.asarray(stated) > 0, stated, otherwise) if np.ndim(stated) else (stated or otherwise)


def linear_widths(a: Architecture, tensor_parallel: Real = 1.0) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Channels of all keys (as many of queries), of all values, and heads of values, on each of so many GPUs.

    Heads are split until one is left, as in attention.
    """
    keys, values = (np.asarray(n, dtype=np.float64) for n in (a.linear_n_key_heads, a.linear_n_value_heads))
    keys = np.maximum(keys / tensor_parallel, np.minimum(keys, 1.0))
    values = np.maximum(values / tensor_parallel, np.minimum(values, 1.0))
    return keys * a.linear_key_dim, values * a.linear_value_dim, values


def linear_products(a: Architecture, tensor_parallel: Real = 1.0) -> tuple[tuple[Real, Real], ...]:
    """Inputs and outputs of the matrix products of one linear layer on each of `tensor_parallel` GPUs.

    As transformers builds them: a gated delta net projects queries, keys, values, gates and two scalars a head; Mamba-2
    without the gate's second scalar, its values, gates, B, C and time step; KDA its decay, a channel each, and its gate
    through a narrow projection; Mamba the time step, B and C from the values.
    """
    if not some(a.n_linear_layers):
        return ()
    d, rank, (k, v, heads) = a.d_model, a.linear_rank, linear_widths(a, tensor_parallel)
    if a.linear_kind == "gated-delta":
        return (d, 2.0 * k + 2.0 * v + 2.0 * heads), (v, d)
    if a.linear_kind == "mamba2":
        return (d, 2.0 * k + 2.0 * v + heads), (v, d)
    if a.linear_kind == "kda":
        return (d, 2.0 * k + v + heads + 2.0 * rank), (rank, k), (rank, v), (v, d)
    return (d, 2.0 * v), (v, rank + 2.0 * a.linear_key_dim), (rank, v), (v, d)


def linear_vector_params(a: Architecture, tensor_parallel: Real = 1.0) -> FloatArray:
    """Parameters of one linear layer beside its matrices: convolution, decay, time step and skip."""
    if not some(a.n_linear_layers):
        return np.zeros(())
    k, v, heads = linear_widths(a, tensor_parallel)
    conv = a.linear_conv * _conv_channels(a, tensor_parallel)
    if a.linear_kind == "gated-delta":
        return np.asarray(conv + 2.0 * heads)
    if a.linear_kind == "kda":
        return np.asarray(conv + heads + k)
    if a.linear_kind == "mamba2":
        return np.asarray(conv + _conv_channels(a, tensor_parallel) + 3.0 * heads)
    return np.asarray(conv + v + v * np.asarray(a.linear_key_dim) + 2.0 * v)


def linear_norm_params(a: Architecture) -> FloatArray:
    """Weights of the norms within one linear layer: of a head's values, of all values, or of time step, B and C (Jamba)."""
    if a.linear_kind == "mamba":
        return np.asarray(a.linear_rank, dtype=np.float64) + 2.0 * np.asarray(a.linear_key_dim)
    per_head = np.asarray(a.linear_value_dim, dtype=np.float64)
    return per_head * a.linear_n_value_heads if a.linear_kind == "mamba2" else per_head


def _conv_channels(a: Architecture, tensor_parallel: Real = 1.0) -> FloatArray:
    k, v, _ = linear_widths(a, tensor_parallel)
    return v if a.linear_kind == "mamba" else 2.0 * k + v


def linear_params(a: Architecture) -> FloatArray:
    """Parameters of the matrices of one linear layer."""
    return np.asarray(sum((np.asarray(n) * k for k, n in linear_products(a)), np.zeros(())))


def state_elements(a: Architecture, tensor_parallel: Real = 1.0) -> FloatArray:
    """Elements of state that a request holds in one linear layer: a matrix of key by value channels a head."""
    _, v, _ = linear_widths(a, tensor_parallel)
    return np.asarray(v * a.linear_key_dim)


def state_bytes_per_request(a: Architecture, tensor_parallel: Real = 1.0) -> FloatArray:
    """Bytes of state that a request holds in all linear layers, however long it is, on each of `tensor_parallel` GPUs.

    With the last tokens that the convolution sees, in 16 bits.
    """
    if not some(a.n_linear_layers):
        return np.zeros(())
    layers = np.asarray(a.n_linear_layers, dtype=np.float64)
    seen = np.maximum(np.asarray(a.linear_conv) - 1.0, 0.0) * _conv_channels(a, tensor_parallel)
    return layers * (a.linear_state_bytes * state_elements(a, tensor_parallel) + CONV_BYTES * seen)
