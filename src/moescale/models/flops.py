"""FLOPs of training, and the experts that a batch touches."""

from __future__ import annotations

import numpy as np

from moescale.errors import unknown_name
from moescale.models.architecture import Architecture
from moescale.models.operations import Attention, State, operations
from moescale.models.parameters import active_matmul_params, count_parameters
from moescale.typing import FloatArray, Real

# Which parameters training FLOPs are counted on.
TRAINING_COUNTS = {
    "active": "all that a token meets, embedding tables included",
    "non-embedding": "all that a token meets but the embedding tables (the paper's N, Kaplan 2020)",
    "matmul": "those that a token is multiplied with: no norms, no biases, no lookup of the input embedding",
}

STATE_FLOPS = 6.0  # of a linear layer a token and element of its state: read by the key, updated, read by the query


def _array(value: Real) -> FloatArray:
    return np.asarray(value, dtype=np.float64)


def training_flops_per_token(
    architecture: Architecture, *, counted: str = "active", sequence_tokens: Real = 0.0
) -> FloatArray:
    """FLOPs to train on one token: 6 times the parameters that TRAINING_COUNTS[`counted`] names.

    Two operations a parameter forward and four backward. A positive `sequence_tokens` adds causal attention over
    sequences of that length, 6 l (n_heads head_dim) T: half of all pairs (Kaplan et al. 2020, section 2.1); of layers with
    a window of W < T tokens the share of pairs within it, W/T (2 - W/T) of those. Linear layers do not grow with T.
    Sparse attention counts all pairs.
    Raises InputError for an unknown count.
    """
    if counted not in TRAINING_COUNTS:
        raise unknown_name("count of training parameters", counted, TRAINING_COUNTS)
    if counted == "matmul":
        params = active_matmul_params(architecture)
    else:
        counts = count_parameters(architecture)
        params = counts.active if counted == "active" else counts.non_embedding_active
    # Three times a forward pass, which multiplies queries with keys and weights with values: 2 (head_dim + value) a pair.
    sequence = _array(sequence_tokens)
    flops = 6.0 * params
    for op in operations(architecture):
        if isinstance(op, Attention):
            window = np.minimum(op.window, sequence)
            seen = window * (2.0 - window / np.where(sequence > 0, sequence, 1.0))
            tokens = (op.layers - op.window_layers) * sequence + op.window_layers * seen
            flops = flops + 3.0 * tokens * op.heads * (op.head_dim + op.value_dim)
        elif isinstance(op, State):
            flops = flops + 3.0 * STATE_FLOPS * np.where(sequence > 0, op.layers * op.elements, 0.0)
    return flops


def expected_distinct_experts(n_experts: Real, top_k: Real, tokens: Real) -> FloatArray:
    """Experts of a layer that a batch of `tokens` touches on average: E (1 - (1 - K/E)^tokens), uniform routing.

    Accurate for tiny K/E times tokens and for huge batches; K above E counts as E; the arguments broadcast.
    """
    experts, batch = _array(n_experts), _array(tokens)
    share = np.minimum(_array(top_k) / experts, 1.0)
    everywhere = share >= 1.0  # where the logarithm below would be infinite
    log_missed = np.log1p(-np.where(everywhere, 0.0, share))
    touched = np.where(everywhere, np.where(batch > 0, 1.0, 0.0), -np.expm1(batch * log_missed))
    return experts * touched
