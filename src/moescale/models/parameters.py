"""Parameters and weight bytes of an architecture, whole or on the fullest of the GPUs that it is split over.

Everything broadcasts over the fields of the architecture and the other arguments. What a count includes is always
named: `active` counts both embedding tables once, as Mixtral's published 12.9B does; `non_embedding_*` leave the
tables out, as the paper's N does; matmul parameters are those that a token is multiplied with.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from moescale.models.architecture import UNQUANTISED_BYTES, Architecture, Quantised, shape_of
from moescale.models.operations import Product, Vectors, operations
from moescale.models.stages import fullest_stage
from moescale.typing import FloatArray, Real


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterCount:
    """Numbers of parameters of a whole model; each entry has the common shape of the architecture's fields."""

    total: FloatArray  # everything, embedding tables included
    active: FloatArray  # what one token meets: all but the routed experts it is not sent to
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
        """Everything but the embedding tables."""
        return self.total - self.embedding

    @property
    def non_embedding_active(self) -> FloatArray:
        """What one token meets but the embedding tables."""
        return self.active - self.embedding

    def to_dict(self) -> dict[str, float | list[float]]:
        """Plain numbers (lists where the architecture holds arrays) by name."""
        names = [field.name for field in fields(self)] + ["non_embedding_total", "non_embedding_active"]
        return {name: np.asarray(getattr(self, name)).tolist() for name in names}


# Which number of a ParameterCount, and which field of Quantised, a part of the operations belongs to; the others by their name.
_COUNTED = {"states": "attention", "indexer": "attention", "expert_projection": "router", "residual": "router"}
_TAKEN = {"states": "attention", "indexer": "attention"}


def count_parameters(architecture: Architecture) -> ParameterCount:
    """Parameters of `architecture` by part, as transformers builds the families that from_config reads.

    Routers are d_model x n_experts, with a bias an expert where `router_bias` says so. float64 holds every count exactly
    up to 9e15.
    """
    a = architecture
    a = replace(a, n_kv_heads=a.n_heads) if a.matrices_only else a
    names = ("attention", "dense_ffn", "shared_experts", "router", "norms", "experts", "active_experts", "lm_head")
    parts: dict[str, Real] = dict.fromkeys(names, np.zeros(()))
    for op in operations(a):
        if isinstance(op, Product | Vectors):
            name = _COUNTED.get(op.part, op.part)
            params = op.params + op.biases if isinstance(op, Product) else op.params
            parts[name] = parts[name] + params
        if isinstance(op, Product) and op.part == "experts":
            parts["active_experts"] = parts["active_experts"] + op.met_params + op.times * op.met * op.bias
    if a.matrices_only:
        parts |= {"router": np.zeros(()), "norms": np.zeros(())}
    parts["embedding"] = parts.pop("lm_head") * (1.0 if a.tied_embeddings else 2.0)
    of_all = ("embedding", *names[:5])
    rest = sum((parts[name] for name in of_all), start=np.zeros(()))
    parts |= {"total": rest + parts["experts"], "active": rest + parts["active_experts"]}
    whole = shape_of(a)
    return ParameterCount(**{name: np.array(np.broadcast_to(part, whole)) for name, part in parts.items()})


def active_matmul_params(architecture: Architecture) -> FloatArray:
    """Parameters that one token is multiplied with: those it meets, without norms and biases, and without the input
    embedding, which is looked up; the output projection counts, tied or not.
    """
    a, total = architecture, np.zeros(shape_of(architecture))
    for op in operations(replace(a, n_kv_heads=a.n_heads) if a.matrices_only else a):
        if isinstance(op, Product) and not (a.matrices_only and op.part == "router"):
            total = total + op.met_params
        elif isinstance(op, Vectors) and op.part in ("states", "router"):  # a convolution and a gate multiply, too
            total = total + op.params
    return total


def dense_equivalent_params(architecture: Architecture) -> FloatArray:
    """N: parameters without embeddings, norms and routers of the same model with one FFN where it has experts.

    That FFN is `d_ffn` wide or, where no width is given, as wide as all that one token meets (top_k experts and the
    shared ones).
    """
    a = architecture
    width = np.where(np.asarray(a.d_ffn) > 0, a.d_ffn, np.asarray(a.top_k) * a.d_expert + a.d_shared_expert)
    counted = count_parameters(replace(a, n_moe_layers=0.0, d_ffn=width))
    return counted.attention + counted.dense_ffn


def weight_bytes(architecture: Architecture, bytes_per_param: Real = 2.0) -> FloatArray:
    """Bytes of all weights, `bytes_per_param` a parameter.

    Below two bytes that holds for the matrices of attention, FFNs and experts, or those that `architecture.quantised`
    names; the rest stays at UNQUANTISED_BYTES, as in published checkpoints. Where the architecture is nothing but matrices
    (`matrices_only`), it holds for everything.
    """
    return weight_bytes_per_gpu(architecture, bytes_per_param)


def weight_bytes_per_gpu(
    architecture: Architecture,
    bytes_per_param: Real = 2.0,
    tensor_parallel: Real = 1.0,
    expert_parallel: Real = 1.0,
    *,
    attention_dp: Real = 1.0,
    pipeline_parallel: Real = 1.0,
) -> FloatArray:
    """Bytes of weights on the fullest of `tensor_parallel` GPUs, whose experts are split over `expert_parallel` of them.

    Split as models/operations.py says; the fullest GPU holds n_experts / expert_parallel experts, rounded up.
    `matrices_only` shapes are split evenly. With `attention_dp` groups, each splits all but the routed experts over its own
    tensor_parallel / attention_dp GPUs. Of `pipeline_parallel` stages, each on so many GPUs, it is the fullest one
    (stages.fullest_stage), with one embedding table: the first stage holds the input's, the last one the output's.
    All arguments broadcast; `bytes_per_param` is as in weight_bytes.
    """
    t, groups, stages = (np.asarray(n, np.float64) for n in (tensor_parallel, attention_dp, pipeline_parallel))
    a = fullest_stage(architecture, stages)
    if a.matrices_only:
        counted = count_parameters(a)
        even = np.asarray(bytes_per_param) * ((counted.total - counted.experts) * groups + counted.experts) / t
        return np.broadcast_arrays(even, expert_parallel)[0]
    table = np.ceil(a.vocab_size / (t / groups)) * a.d_model
    tables: tuple[tuple[float, Real], ...] = ((a.quantised.embedding, table),)
    if not a.tied_embeddings:
        tables = (*tables, (a.quantised.lm_head, table * (stages <= 1)))
    matrices = sum((share * params for share, params in tables), start=np.zeros(()))
    rest = sum(((1.0 - share) * params for share, params in tables), start=np.zeros(()))
    for op in operations(a, t / groups, expert_gpus=t, expert_parallel=np.asarray(expert_parallel, np.float64)):
        if isinstance(op, Vectors):
            rest = rest + op.params
        elif isinstance(op, Product) and op.part != "lm_head":
            share = share_taken(a.quantised, op.part)
            matrices, rest = matrices + share * op.params, rest + (1.0 - share) * op.params + op.biases
    return matrices * bytes_per_param + rest * np.maximum(bytes_per_param, UNQUANTISED_BYTES)


def share_taken(quantised: Quantised, part: str) -> float:
    """The share of a part's matrices that a quantised checkpoint holds in its format; routers are left in 16 bits."""
    return getattr(quantised, _TAKEN.get(part, part), 0.0)
