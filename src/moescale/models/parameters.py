"""Parameters and weight bytes of an architecture, whole or on the fullest of the GPUs that it is split over.

Everything broadcasts over the fields of the architecture and the other arguments. What a count includes is always
named: `active` counts both embedding tables once, as Mixtral's published 12.9B does; `non_embedding_*` leave the
tables out, as the paper's N does; matmul parameters are those that a token is multiplied with.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt

from moescale.models.architecture import Architecture, some
from moescale.models.kv_cache import kv_heads_per_gpu, value_head_dim
from moescale.models.mixers import attention_groups, linear_norm_params, linear_products, linear_vector_params
from moescale.models.quantisation import UNQUANTISED_BYTES
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


def _array(value: Real) -> FloatArray:
    return np.asarray(value, dtype=np.float64)


def count_parameters(architecture: Architecture) -> ParameterCount:
    """Parameters of `architecture` by part, as transformers builds the families that from_config reads.

    Routers are d_model x n_experts, with a bias an expert where `router_bias` says so. float64 holds every count exactly
    up to 9e15.
    """
    a = architecture
    layers, moe_layers = _array(a.n_layers), _array(a.n_moe_layers)
    expert = moe_layers * (
        _expert_matrix_params(a, a.d_expert) + (_ffn_biases(a, a.d_expert) if a.expert_bias else 0.0)
    )
    parts = {
        "embedding": _array(a.vocab_size) * _array(a.d_model) * (1.0 if a.tied_embeddings else 2.0),
        "attention": _attention_params(a),
        "dense_ffn": (layers - moe_layers - a.n_layers_without_ffn) * _ffn_params(a, a.d_ffn),
        "shared_experts": moe_layers * np.where(_has_shared(a), _ffn_params(a, a.d_shared_expert), 0.0),
        "router": _router_params(a),
        "norms": _norm_params(a),
    }
    rest = sum(parts.values(), start=np.zeros(()))
    parts |= {"experts": a.n_experts * expert, "active_experts": a.top_k * expert}
    parts |= {"total": rest + parts["experts"], "active": rest + parts["active_experts"]}
    whole = np.broadcast_shapes(*(np.shape(part) for part in parts.values()))
    return ParameterCount(**{name: np.array(np.broadcast_to(part, whole)) for name, part in parts.items()})


def active_matmul_params(architecture: Architecture) -> FloatArray:
    """Parameters that one token is multiplied with: those it meets, without norms and biases, and without the input
    embedding, which is looked up; the output projection counts, tied or not.
    """
    biases = ("qkv_bias", "attention_output_bias", "attention_sinks", "ffn_bias", "router_bias", "expert_bias")
    counted = count_parameters(replace(architecture, **dict.fromkeys(biases, False)))
    return counted.non_embedding_active - counted.norms + _array(architecture.vocab_size) * architecture.d_model


def dense_equivalent_params(architecture: Architecture) -> FloatArray:
    """N: parameters without embeddings, norms and routers of the same model with one FFN where it has experts.

    That FFN is `d_ffn` wide or, where no width is given, as wide as all that one token meets (top_k experts and the
    shared ones).
    """
    a = architecture
    met = _array(a.top_k) * a.d_expert + a.d_shared_expert
    width = np.where(_array(a.d_ffn) > 0, a.d_ffn, met)
    return np.asarray(_attention_params(a) + (a.n_layers - _array(a.n_layers_without_ffn)) * _ffn_params(a, width))


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

    As vLLM splits them: heads, FFN widths, shared experts and the vocabulary over all GPUs; whole experts over
    `expert_parallel` groups (the fullest holds n_experts / expert_parallel, rounded up), each expert's width over the
    GPUs of its group. Every GPU holds routers, norms, biases of sums, the compressing projections of latent attention,
    and a key-value head of its own even where there are fewer of them than GPUs. `matrices_only` shapes are split evenly.
    With `attention_dp` groups, each splits all but the routed experts over its own tensor_parallel / attention_dp GPUs. Of
    `pipeline_parallel` stages, each on so many GPUs, it is the fullest one (stages.fullest_stage), with one embedding
    table: the first stage holds the input's, the last one the output's.
    All arguments broadcast; `bytes_per_param` is as in weight_bytes.
    """
    t, groups, stages = _array(tensor_parallel), _array(attention_dp), _array(pipeline_parallel)
    a = fullest_stage(architecture, stages)
    if a.matrices_only:
        counted = count_parameters(a)
        total, shared = counted.total, counted.total - counted.experts
        even = _array(bytes_per_param) * total / t
        if np.any(groups > 1):
            even = _array(bytes_per_param) * (shared * groups + counted.experts) / t
        return np.broadcast_arrays(even, expert_parallel)[0]
    matrices, rest = _params_per_gpu(a, t / groups, t, _array(expert_parallel), stages)
    return matrices * bytes_per_param + rest * np.maximum(bytes_per_param, UNQUANTISED_BYTES)


def _params_per_gpu(
    a: Architecture, t: FloatArray, expert_gpus: FloatArray, groups: FloatArray, stages: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Parameters of matrices that quantisation takes, and all others, on the fullest GPU.

    t GPUs split everything but the experts, `expert_gpus` those in `groups` of whole ones; one of several pipeline stages
    holds one table.
    """
    layers, moe_layers, taken = _array(a.n_layers), _array(a.n_moe_layers), a.quantised
    experts = moe_layers * np.ceil(_array(a.n_experts) / groups)  # on one GPU, each split over t / groups of them
    split = expert_gpus / groups
    table = np.ceil(_array(a.vocab_size) / t) * a.d_model
    parts = (
        (taken.attention, mixer_matrix_params(a, t)),
        (taken.dense_ffn, _ffn_matrix_params(a, (layers - moe_layers - a.n_layers_without_ffn) * a.d_ffn) / t),
        (taken.shared_experts, _ffn_matrix_params(a, moe_layers * a.d_shared_expert) / t),
        (taken.experts, experts * _expert_matrix_params(a, a.d_expert) / split),
        (taken.embedding, table),
        (taken.lm_head, table * np.where(stages > 1, 0.0, 0.0 if a.tied_embeddings else 1.0)),
    )
    matrices, rest = np.zeros(()), _mixer_vector_params(a, t) + _router_params(a) + _norm_params(a)
    for share, params in parts:
        matrices, rest = matrices + share * params, rest + (1.0 - share) * params
    if a.ffn_bias:
        shared = moe_layers * np.where(_has_shared(a), 1.0, 0.0) * _ffn_biases(a, _array(a.d_shared_expert) / t)
        rest = rest + (layers - moe_layers - a.n_layers_without_ffn) * _ffn_biases(a, _array(a.d_ffn) / t) + shared
    if a.expert_bias:
        rest = rest + experts * _ffn_biases(a, _array(a.d_expert) / split)
    return matrices, rest


def mixer_matrix_params(a: Architecture, tensor_parallel: Real = 1.0) -> FloatArray:
    """Parameters of the matrices of attention, indexers and linear layers of all layers on each of so many GPUs."""
    total = np.zeros(())
    for group in attention_groups(a):
        total = total + group.n_layers * attention_matrix_params(group, tensor_parallel)
    if some(a.n_index_layers):
        total = total + a.n_index_layers * index_matrix_params(a)
    if not some(a.n_linear_layers):
        return total
    linear = sum((_array(k) * n for k, n in linear_products(a, tensor_parallel)), np.zeros(()))
    return total + a.n_linear_layers * linear


def index_matrix_params(a: Architecture) -> FloatArray:
    """Parameters of the indexer of one layer of sparse attention, which every GPU holds: queries, one key, weights.

    Beside latent attention its queries come from the compressed ones, and its heads are weighted; else neither.
    """
    rank = _array(a.q_lora_rank)
    queries = np.where(rank > 0, rank, a.d_model) * a.index_n_heads * a.index_head_dim
    return queries + a.d_model * (_array(a.index_head_dim) + np.where(rank > 0, a.index_n_heads, 0.0))


def _mixer_vector_params(a: Architecture, tensor_parallel: Real = 1.0) -> FloatArray:
    total = np.zeros(())
    if some(a.n_linear_layers):
        total = a.n_linear_layers * linear_vector_params(a, tensor_parallel)
    for group in attention_groups(a):
        total = total + group.n_layers * _attention_vector_params(group, tensor_parallel)
    return total


def attention_matrix_params(a: Architecture, tensor_parallel: Real = 1.0) -> FloatArray:
    """Parameters of the attention matrices of one layer on each of `tensor_parallel` GPUs.

    Heads are split as `kv_heads_per_gpu` says; the projections that compress queries, keys and values for all heads of
    latent attention are held by every GPU.
    """
    heads = _array(a.n_heads) / tensor_parallel
    if a.matrices_only:
        return np.asarray(4.0 * a.d_model * heads * a.head_dim)
    qk, value = a.head_dim, value_head_dim(a)
    grouped = a.d_model * (heads * (qk + value) + kv_heads_per_gpu(a, tensor_parallel) * (qk + value))
    if some(a.attention_gate):
        grouped = grouped + a.d_model * heads * a.attention_gate
    if a.full_keys_are_values:
        grouped = grouped - a.d_model * kv_heads_per_gpu(a, tensor_parallel) * value
    rank, query_rank = _array(a.kv_lora_rank), _array(a.q_lora_rank)
    if not np.any(rank):
        return np.asarray(grouped)
    queries = np.where(query_rank > 0, query_rank * (a.d_model + heads * qk), a.d_model * heads * qk)
    compressed = a.d_model * (rank + a.qk_rope_head_dim)
    expanded = rank * heads * (qk - a.qk_rope_head_dim + value)
    return np.where(rank > 0, queries + compressed + expanded + heads * value * a.d_model, grouped)


def _attention_vector_params(a: Architecture, tensor_parallel: Real = 1.0) -> FloatArray:
    """Biases and attention sinks of one layer on each of `tensor_parallel` GPUs.

    They go where their matrix goes; the bias of the output, which is a sum over GPUs, is held by every one.
    """
    heads, count = _array(a.n_heads) / tensor_parallel, np.zeros(())
    if a.qkv_bias:
        grouped = heads * a.head_dim + kv_heads_per_gpu(a, tensor_parallel) * (a.head_dim + value_head_dim(a))
        # Of latent attention only the compressing projections have a bias.
        compressed = _array(a.q_lora_rank) + a.kv_lora_rank + a.qk_rope_head_dim
        count = count + np.where(_array(a.kv_lora_rank) > 0, compressed, grouped)
    if a.attention_output_bias:
        count = count + a.d_model
    return count + heads if a.attention_sinks else count


def _attention_params(a: Architecture) -> FloatArray:
    matrices = mixer_matrix_params(a)
    return matrices if a.matrices_only else matrices + _mixer_vector_params(a)


def _expert_matrix_params(a: Architecture, width: Real) -> FloatArray:
    if not some(a.d_expert_model):
        return _ffn_matrix_params(a, width)
    d_model = np.where(_array(a.d_expert_model) > 0, a.d_expert_model, a.d_model)
    return np.asarray(_array(width) * d_model * a.ffn_matrices)


def expert_projection_params(a: Architecture) -> FloatArray:
    """Parameters of the two projections of one layer that its routed experts read from and write to, if it has any."""
    return 2.0 * _array(a.d_expert_model) * a.d_model


def _ffn_matrix_params(a: Architecture, width: Real) -> FloatArray:
    return np.asarray(_array(width) * a.d_model * a.ffn_matrices)


def _ffn_biases(a: Architecture, width: Real) -> FloatArray:
    """Every matrix but the last widens to `width`."""
    return np.asarray(_array(width) * (a.ffn_matrices - 1) + a.d_model)


def _ffn_params(a: Architecture, width: Real) -> FloatArray:
    return _ffn_matrix_params(a, width) + (_ffn_biases(a, width) if a.ffn_bias else 0.0)


def _has_shared(a: Architecture) -> npt.NDArray[np.bool_]:
    return _array(a.d_shared_expert) > 0


def _router_params(a: Architecture) -> FloatArray:
    if a.matrices_only:
        return np.zeros(())
    gates = np.where(_has_shared(a), 1.0, 0.0) if a.shared_expert_gate else 0.0
    biases = _array(a.n_experts) if a.router_bias else 0.0
    each = a.d_model * (_array(a.n_experts) + gates) + biases + expert_projection_params(a)
    return _array(a.n_moe_layers) * each


def _norm_params(a: Architecture) -> FloatArray:
    if a.matrices_only:
        return np.zeros(())
    norms = (a.norms_per_layer * _array(a.n_layers) - a.n_layers_without_ffn + 1.0) * a.d_model
    for group in attention_groups(a):
        layers = _array(group.n_layers)
        if a.qk_norm and a.qk_norm_full_width:
            norms = norms + layers * (_array(group.n_heads) + group.n_kv_heads) * group.head_dim
        elif a.qk_norm:
            norms = norms + 2.0 * layers * group.head_dim
        norms = norms + layers * (_array(a.q_lora_rank) + a.kv_lora_rank)
    # Weights and biases of the norm of an indexer's key (DeepSeek-V3.2), or weights of its queries' and keys' (MiniMax-M3).
    if not some(a.n_index_layers) and not some(a.n_linear_layers):
        return norms
    return norms + 2.0 * _array(a.n_index_layers) * a.index_head_dim + a.n_linear_layers * linear_norm_params(a)
