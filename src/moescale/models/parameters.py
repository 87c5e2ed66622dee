"""Parameters, FLOPs, and bytes of weights and cache: sums over the operations of a model, or of its part on the fullest GPU.

Everything broadcasts over the fields of the architecture and the other arguments.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from moescale.models.architecture import NUMERIC_FIELDS, UNQUANTISED_BYTES, Architecture, Quantised, shape_of
from moescale.models.operations import Attention, Indexer, Product, State, Vectors, operations
from moescale.typing import FloatArray, Real


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterCount:
    """Numbers of parameters of a whole model; each entry has the common shape of the architecture's fields."""

    total: FloatArray  # everything, embedding tables included
    active: FloatArray  # but the routed experts that a token is not sent to; as Mixtral's published 12.9B is counted
    embedding: FloatArray  # input and output tables (one table where they are tied)
    attention: FloatArray  # with its biases and sinks, and what linear layers have instead of it
    dense_ffn: FloatArray  # FFNs of layers without experts
    experts: FloatArray  # all routed experts
    active_experts: FloatArray  # the top_k of them that one token meets
    shared_experts: FloatArray
    router: FloatArray  # routers with biases, the gate of shared experts, and experts' common projections (Nemotron 3)
    norms: FloatArray  # of layers, of queries and keys, and of latent attention's compressed queries and keys

    @property
    def non_embedding_total(self) -> FloatArray:
        """Everything but the embedding tables, as the paper's N is counted."""
        return self.total - self.embedding

    @property
    def non_embedding_active(self) -> FloatArray:
        """What one token meets but the embedding tables."""
        return self.active - self.embedding


STATE_FLOPS = 6.0  # of a linear layer a token and element of its state: read by the key, updated, read by the query
# Which number of a ParameterCount, and which field of Quantised, a part of the operations belongs to; the others by their name.
_COUNTED = {"states": "attention", "indexer": "attention", "expert_projection": "router", "residual": "router"}
OF_EVERY_TOKEN = ("attention", "dense_ffn", "shared_experts", "router", "norms")
NAMES = (*OF_EVERY_TOKEN, "experts", "active_experts", "lm_head")


def _with_parameters(a: Architecture) -> Iterator[Product | Vectors]:
    """The operations whose parameters count: of the paper's abstraction no routers and norms, and keys of all heads."""
    for op in operations(replace(a, n_kv_heads=a.n_heads) if a.matrices_only else a):
        if isinstance(op, Product | Vectors) and not (a.matrices_only and op.part in ("router", "norms")):
            yield op


def count_parameters(architecture: Architecture) -> ParameterCount:
    """Parameters of `architecture` by part, as transformers builds it; float64 holds every count exactly up to 9e15."""
    parts: dict[str, Real] = dict.fromkeys(NAMES, np.zeros(()))
    for op in _with_parameters(architecture):
        name = _COUNTED.get(op.part, op.part)
        parts[name] = parts[name] + (op.params + op.biases if isinstance(op, Product) else op.params)
        if isinstance(op, Product) and op.part == "experts":
            parts["active_experts"] = parts["active_experts"] + op.met_params + op.times * op.met * op.bias
    parts["embedding"] = parts.pop("lm_head") * (1.0 if architecture.tied_embeddings else 2.0)
    rest = parts["embedding"] + sum(parts[name] for name in OF_EVERY_TOKEN)
    parts |= {"total": rest + parts["experts"], "active": rest + parts["active_experts"]}
    whole = shape_of(architecture)
    return ParameterCount(**{name: np.array(np.broadcast_to(part, whole)) for name, part in parts.items()})


parts_of = lru_cache(maxsize=64)(count_parameters)  # of numbers alone: a search asks thousands of times about a model


def active_matmul_params(architecture: Architecture) -> FloatArray:
    """Parameters that one token is multiplied with: those it meets, without norms, biases and the input embedding.

    The output projection counts, tied or not, and so do a convolution and the gate of shared experts.
    """
    total = np.zeros(shape_of(architecture))
    for op in _with_parameters(architecture):
        if isinstance(op, Product):
            total = total + op.met_params
        elif op.part in ("states", "router"):
            total = total + op.params
    return total


def dense_equivalent_params(architecture: Architecture) -> FloatArray:
    """N: parameters without embeddings, norms and routers with one FFN in place of experts, of d_ffn or of what one token meets."""
    a = architecture
    width = np.where(np.asarray(a.d_ffn) > 0, a.d_ffn, np.asarray(a.top_k) * a.d_expert + a.d_shared_expert)
    counted = count_parameters(replace(a, n_moe_layers=0.0, d_ffn=width))
    return counted.attention + counted.dense_ffn


def training_flops_per_token(
    architecture: Architecture, params: Real | None = None, *, sequence_tokens: Real = 0.0
) -> FloatArray:
    """FLOPs to train on one token: 6 times `params` (None: those that a token is multiplied with, active_matmul_params).

    A positive `sequence_tokens` adds causal attention over sequences of that length T, 6 l (n_heads head_dim) T (Kaplan
    et al. 2020, section 2.1), with a window of W < T tokens W/T (2 - W/T) of it. Sparse attention counts all pairs.
    """
    sequence = np.asarray(sequence_tokens, dtype=np.float64)
    flops = 6.0 * np.asarray(active_matmul_params(architecture) if params is None else params)
    for op in operations(architecture):
        if isinstance(op, Attention):
            window = np.minimum(op.window, sequence)
            seen = window * (2.0 - window / np.where(sequence > 0, sequence, 1.0))
            tokens = (op.layers - op.window_layers) * sequence + op.window_layers * seen
            # Three times a forward pass, which multiplies queries with keys and weights with values.
            flops = flops + 3.0 * tokens * op.heads * (op.head_dim + op.value_dim)
        elif isinstance(op, State):
            flops = flops + 3.0 * STATE_FLOPS * np.where(sequence > 0, op.layers * op.elements, 0.0)
    return flops


def expected_distinct_experts(n_experts: Real, top_k: Real, tokens: Real) -> FloatArray:
    """Experts of a layer that a batch of `tokens` touches on average: E (1 - (1 - K/E)^tokens), uniform routing; all broadcast."""
    experts, k, batch = (np.asarray(value, dtype=np.float64) for value in (n_experts, top_k, tokens))
    share = np.minimum(k / experts, 1.0)
    everywhere = share >= 1.0  # where the logarithm below would be infinite
    log_missed = np.log1p(-np.where(everywhere, 0.0, share))
    touched = np.where(everywhere, np.where(batch > 0, 1.0, 0.0), -np.expm1(batch * log_missed))
    return experts * touched


def layers_share(architecture: Architecture, pipeline_parallel: Real) -> FloatArray:
    """Share of the layers in the fullest stage: whole layers, as even as they go."""
    layers, stages = (np.asarray(n, dtype=np.float64) for n in (architecture.n_layers, pipeline_parallel))
    return np.where(stages > 1, np.ceil(layers / stages * (1.0 - 1e-12)) / layers, 1.0)


def fullest_stage(architecture: Architecture, pipeline_parallel: Real) -> Architecture:
    """The model as the fullest of so many stages holds it: as many layers with experts as it can, its even share of the others."""
    if not np.any(np.asarray(pipeline_parallel) > 1):
        return architecture
    share = layers_share(architecture, pipeline_parallel)
    of_kinds = [name for name in NUMERIC_FIELDS if name.endswith("_layers")]
    counts: dict[str, Real] = {name: share * getattr(architecture, name) for name in of_kinds}
    return replace(architecture, **counts | {"n_moe_layers": np.minimum(architecture.n_moe_layers, counts["n_layers"])})


def weight_bytes_per_gpu(
    architecture: Architecture,
    bytes_per_param: Real = 2.0,
    tensor_parallel: Real = 1.0,
    expert_parallel: Real = 1.0,
    *,
    attention_dp: Real = 1.0,
    pipeline_parallel: Real = 1.0,
) -> FloatArray:
    """Bytes of weights on the fullest of `tensor_parallel` GPUs, split as models/operations.py says; arguments broadcast.

    Each of `attention_dp` groups splits all but the routed experts over its own GPUs. Of `pipeline_parallel` stages, each on so
    many GPUs, it is the `fullest_stage`, with one embedding table. Below two bytes, `bytes_per_param` holds for the matrices
    that `architecture.quantised` names alone. Shapes of `matrices_only` are split evenly, and hold all in these bytes.
    """
    t, groups, stages = (np.asarray(n, np.float64) for n in (tensor_parallel, attention_dp, pipeline_parallel))
    a = fullest_stage(architecture, stages)
    if a.matrices_only:
        counted = count_parameters(a)
        even = np.asarray(bytes_per_param) * ((counted.total - counted.experts) * groups + counted.experts) / t
        return np.broadcast_arrays(even, expert_parallel)[0]
    table = np.ceil(a.vocab_size / (t / groups)) * a.d_model
    output = 0.0 if a.tied_embeddings else table * (stages <= 1)
    matrices = a.quantised.embedding * table + a.quantised.lm_head * output
    rest = table + output - matrices
    for op in operations(a, t / groups, expert_gpus=t, expert_parallel=np.asarray(expert_parallel, np.float64)):
        if isinstance(op, Vectors):
            rest = rest + op.params
        elif isinstance(op, Product) and op.part != "lm_head":
            taken = share_taken(a.quantised, op.part) * op.params
            matrices, rest = matrices + taken, rest + op.params - taken + op.biases
    return matrices * bytes_per_param + rest * np.maximum(bytes_per_param, UNQUANTISED_BYTES)


def share_taken(quantised: Quantised, part: str) -> float:
    """The share of a part's matrices that a quantised checkpoint holds in its format; routers are left in 16 bits."""
    return getattr(quantised, _COUNTED.get(part, part), 0.0)


def kv_bytes_per_token(architecture: Architecture, bytes_per_element: Real = 2.0) -> FloatArray:
    """Bytes of keys and values that one further token of context holds in all layers (2.0: bf16), until windows are full."""
    growing = (op for op in operations(architecture) if isinstance(op, Attention | Indexer))
    return sum((op.held_bytes(1.0, bytes_per_element) for op in growing), start=np.zeros(()))


def kv_bytes_per_request(
    architecture: Architecture, context_tokens: Real, bytes_per_element: Real = 2.0, tensor_parallel: Real = 1.0
) -> FloatArray:
    """Bytes of cache that one request of `context_tokens` tokens holds on each of `tensor_parallel` GPUs."""
    context = np.asarray(context_tokens, dtype=np.float64)
    caches = (op for op in operations(architecture, tensor_parallel) if isinstance(op, Attention | Indexer | State))
    return sum((op.held_bytes(context, bytes_per_element) for op in caches), start=np.zeros(()))
