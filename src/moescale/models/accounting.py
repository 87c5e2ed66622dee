"""Parameters, FLOPs and cache bytes of an architecture, and of the paper's (N, E) abstraction: pure functions.

Everything broadcasts over the fields of the architecture and the other arguments. What a count includes is always
named: `active` counts both embedding tables once, as Mixtral's published 12.9B does; `non_embedding_*` leave the
tables out, as the paper's N does; matmul parameters are those that a token is multiplied with.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from moescale.errors import unknown_name
from moescale.models.architecture import Architecture
from moescale.models.parts import (
    attention_matrix_params,
    attention_params,
    attention_vector_params,
    expert_params,
    ffn_matrix_params,
    ffn_params,
    ffn_vector_params,
    kv_heads_per_gpu,
    value_head_dim,
)
from moescale.models.quantisation import UNQUANTISED_BYTES
from moescale.typing import FloatArray, Real

# The paper's family (arXiv 2404.02852, section 2.1 and appendix B): gated FFN of 8/3 the model's width, hence 2/3 of a
# dense model's parameters, and experts in every other layer, hence half of those.
PAPER_FFN_SHARE = 2 / 3  # a: FFN over all parameters of a layer
PAPER_EXPERT_SHARE = 1 / 3  # c: parameters that each further expert adds, over N

# How many parameters one token of a model with E experts meets, as a multiple of the dense N.
CONVENTIONS = {
    "paper": "K a + 1 - a with a = 2/3 (paper's section 2.1 and figures): 5/3 for top-2, as if every layer had experts",
    "exact": "1 + (K - 1) c with c the share of N that experts replicate (1/3 in the paper's family): 4/3 for top-2",
    "dense": "1: experts are given free compute",
}

# Which parameters training FLOPs are counted on.
TRAINING_COUNTS = {
    "active": "all that a token meets, embedding tables included",
    "non-embedding": "all that a token meets but the embedding tables (the paper's N, Kaplan 2020)",
    "matmul": "those that a token is multiplied with: no norms, no biases, no lookup of the input embedding",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterCount:
    """Numbers of parameters of a whole model; each entry has the common shape of the architecture's fields."""

    total: FloatArray  # everything, embedding tables included
    active: FloatArray  # what one token meets: all but the routed experts it is not sent to
    embedding: FloatArray  # input and output tables (one table where they are tied)
    attention: FloatArray  # with its biases and sinks
    dense_ffn: FloatArray  # FFNs of layers without experts
    experts: FloatArray  # all routed experts
    active_experts: FloatArray  # the top_k of them that one token meets
    shared_experts: FloatArray
    router: FloatArray  # routers with their biases, and the gate of shared experts where there is one
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
    layers, moe_layers, width = _array(a.n_layers), _array(a.n_moe_layers), _array(a.d_model)
    vocab = _array(a.vocab_size)
    embedding = vocab * width * (1.0 if a.tied_embeddings else 2.0)
    attention = layers * attention_params(a)
    dense_ffn = (layers - moe_layers) * ffn_params(a, a.d_ffn)
    expert = moe_layers * expert_params(a)
    experts, active_experts = a.n_experts * expert, a.top_k * expert
    has_shared = _array(a.d_shared_expert) > 0
    shared = moe_layers * np.where(has_shared, ffn_params(a, a.d_shared_expert), 0.0)
    router, norms = _router_params(a), _norm_params(a)
    rest = embedding + attention + dense_ffn + shared + router + norms
    parts = {
        "total": rest + experts,
        "active": rest + active_experts,
        "embedding": embedding,
        "attention": attention,
        "dense_ffn": dense_ffn,
        "experts": experts,
        "active_experts": active_experts,
        "shared_experts": shared,
        "router": router,
        "norms": norms,
    }
    whole = np.broadcast_shapes(*(np.shape(part) for part in parts.values()))
    return ParameterCount(**{name: np.array(np.broadcast_to(part, whole)) for name, part in parts.items()})


def _router_params(a: Architecture) -> FloatArray:
    if a.matrices_only:
        return np.zeros(())
    gates = np.where(_array(a.d_shared_expert) > 0, 1.0, 0.0) if a.shared_expert_gate else 0.0
    biases = _array(a.n_experts) if a.router_bias else 0.0
    return _array(a.n_moe_layers) * (a.d_model * (_array(a.n_experts) + gates) + biases)


def _norm_params(a: Architecture) -> FloatArray:
    if a.matrices_only:
        return np.zeros(())
    layers = _array(a.n_layers)
    norms = (2.0 * layers + 1.0) * a.d_model
    if a.qk_norm and a.qk_norm_full_width:
        norms = norms + layers * (_array(a.n_heads) + a.n_kv_heads) * a.head_dim
    elif a.qk_norm:
        norms = norms + 2.0 * layers * a.head_dim
    return norms + layers * (_array(a.q_lora_rank) + a.kv_lora_rank)


def active_matmul_params(architecture: Architecture) -> FloatArray:
    """Parameters that one token is multiplied with: those it meets, without norms and biases, and without the input
    embedding, which is looked up; the output projection counts, tied or not.
    """
    a = architecture
    bare = _without_biases(a)
    counted = count_parameters(bare)
    output = _array(a.vocab_size) * a.d_model
    return counted.non_embedding_active - counted.norms + output


def _without_biases(a: Architecture) -> Architecture:
    return replace(
        a,
        qkv_bias=False,
        attention_output_bias=False,
        attention_sinks=False,
        ffn_bias=False,
        router_bias=False,
        expert_bias=False,
    )


def _cached_elements(a: Architecture, tensor_parallel: Real = 1.0) -> FloatArray:
    """Elements of cache that one token holds in one layer, on each of `tensor_parallel` GPUs."""
    grouped = kv_heads_per_gpu(a, tensor_parallel) * (a.head_dim + value_head_dim(a))
    latent = _array(a.kv_lora_rank)
    if not np.any(latent):
        return grouped
    return np.where(latent > 0, latent + a.qk_rope_head_dim, grouped)


def _layers_times_tokens(a: Architecture, context_tokens: Real) -> FloatArray:
    """Tokens that a context of `context_tokens` holds, summed over layers: a window holds no more than itself."""
    context = _array(context_tokens)
    local = _array(a.n_window_layers)
    if not np.any(local):
        return a.n_layers * context
    return (a.n_layers - local) * context + local * np.minimum(context, a.window_tokens)


def kv_bytes_per_token(architecture: Architecture, bytes_per_element: Real = 2.0) -> FloatArray:
    """Bytes of keys and values that one further token of context holds in all layers together (2.0: bf16).

    Layers with a window count, as they do until the window is full. Latent attention holds its compressed keys and values
    and one positional key, kv_lora_rank + qk_rope_head_dim elements a layer.
    """
    return _array(architecture.n_layers) * _cached_elements(architecture) * bytes_per_element


def kv_bytes_per_request(
    architecture: Architecture, context_tokens: Real, bytes_per_element: Real = 2.0, tensor_parallel: Real = 1.0
) -> FloatArray:
    """Bytes of cache that one request of `context_tokens` tokens holds on each of `tensor_parallel` GPUs.

    Heads are split until one is left on each GPU (more GPUs replicate it); latent attention is replicated on every GPU;
    layers with a window hold no more than the window.
    """
    a = architecture
    return _layers_times_tokens(a, context_tokens) * _cached_elements(a, tensor_parallel) * bytes_per_element


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
) -> FloatArray:
    """Bytes of weights on the fullest of `tensor_parallel` GPUs, whose experts are split over `expert_parallel` of them.

    As vLLM splits them: heads, FFN widths, shared experts and the vocabulary over all GPUs; whole experts over
    `expert_parallel` groups (the fullest holds n_experts / expert_parallel, rounded up), each expert's width over the
    GPUs of its group. Every GPU holds routers, norms, biases of sums, the compressing projections of latent attention,
    and a key-value head of its own even where there are fewer of them than GPUs. `matrices_only` shapes are split evenly.
    All arguments broadcast; `bytes_per_param` is as in weight_bytes.
    """
    a, t = architecture, _array(tensor_parallel)
    if a.matrices_only:
        even = _array(bytes_per_param) * count_parameters(a).total / t
        return np.broadcast_arrays(even, expert_parallel)[0]
    matrices, rest = _params_per_gpu(a, t, _array(expert_parallel))
    return matrices * bytes_per_param + rest * np.maximum(bytes_per_param, UNQUANTISED_BYTES)


def _params_per_gpu(a: Architecture, t: FloatArray, groups: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Parameters of matrices that quantisation takes, and all others, on the fullest of t GPUs."""
    layers, moe_layers, taken = _array(a.n_layers), _array(a.n_moe_layers), a.quantised
    experts = moe_layers * np.ceil(_array(a.n_experts) / groups)  # on one GPU, each split over t / groups of them
    split = t / groups
    table = np.ceil(_array(a.vocab_size) / t) * a.d_model
    parts = (
        (taken.attention, layers * attention_matrix_params(a, t)),
        (taken.dense_ffn, ffn_matrix_params(a, (layers - moe_layers) * a.d_ffn) / t),
        (taken.shared_experts, ffn_matrix_params(a, moe_layers * a.d_shared_expert) / t),
        (taken.experts, experts * ffn_matrix_params(a, a.d_expert) / split),
        (taken.embedding, table),
        (taken.lm_head, table * (0.0 if a.tied_embeddings else 1.0)),
    )
    matrices, rest = np.zeros(()), layers * attention_vector_params(a, t) + _router_params(a) + _norm_params(a)
    for share, params in parts:
        matrices, rest = matrices + share * params, rest + (1.0 - share) * params
    if a.ffn_bias:
        has_shared = np.where(_array(a.d_shared_expert) > 0, 1.0, 0.0)
        shared = moe_layers * has_shared * ffn_vector_params(a, _array(a.d_shared_expert) / t)
        rest = rest + (layers - moe_layers) * ffn_vector_params(a, _array(a.d_ffn) / t) + shared
    if a.expert_bias:
        rest = rest + experts * ffn_vector_params(a, _array(a.d_expert) / split)
    return matrices, rest


def training_flops_per_token(
    architecture: Architecture, *, counted: str = "active", sequence_tokens: Real = 0.0
) -> FloatArray:
    """FLOPs to train on one token: 6 times the parameters that TRAINING_COUNTS[`counted`] names.

    Two operations a parameter forward and four backward. A positive `sequence_tokens` adds causal attention over
    sequences of that length, 6 l (n_heads head_dim) T: half of all pairs (Kaplan et al. 2020, section 2.1); of layers with
    a window of W < T tokens the share of pairs within it, W/T (2 - W/T) of those.
    Raises InputError for an unknown count.
    """
    a = architecture
    if counted not in TRAINING_COUNTS:
        raise unknown_name("count of training parameters", counted, TRAINING_COUNTS)
    if counted == "matmul":
        params = active_matmul_params(a)
    else:
        counts = count_parameters(a)
        params = counts.active if counted == "active" else counts.non_embedding_active
    # Three times a forward pass, which multiplies queries with keys and weights with values: 2 (head_dim + value) a pair.
    sequence, local = _array(sequence_tokens), _array(a.n_window_layers)
    window = np.minimum(a.window_tokens, sequence)
    seen = window * (2.0 - window / np.where(sequence > 0, sequence, 1.0))
    tokens = (a.n_layers - local) * sequence + local * seen
    attention = 3.0 * tokens * a.n_heads * (a.head_dim + value_head_dim(a))
    return 6.0 * params + attention


def decode_flops_per_token(architecture: Architecture, context_tokens: Real) -> FloatArray:
    """FLOPs to produce one token after `context_tokens` others: 2 a matmul parameter it meets, and attention.

    Attention multiplies queries with all keys and weights with all values: 4 l (n_heads head_dim) context, in layers with a
    window no more than the window. Latent attention does so without expanding its cache, as servers run it: queries and
    outputs move to the compressed width instead (arXiv 2405.04434, section 2.1.2), where a head's key has kv_lora_rank +
    qk_rope_head_dim channels and its value kv_lora_rank.
    """
    a = architecture
    latent = _array(a.kv_lora_rank)
    width = np.where(latent > 0, 2.0 * latent + a.qk_rope_head_dim, a.head_dim + value_head_dim(a))
    attention = 2.0 * a.n_heads * width * _layers_times_tokens(a, context_tokens)
    return 2.0 * active_matmul_params(a) + attention


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


def total_params(n_params_dense: Real, n_experts: Real, expert_share: Real = PAPER_EXPERT_SHARE) -> FloatArray:
    """Total parameters (1 + (E - 1) c) N of a dense N with E experts, c = `expert_share` of N replicated by each."""
    return (1.0 + (_array(n_experts) - 1.0) * expert_share) * n_params_dense


def active_multiple(
    n_experts: Real,
    top_k: Real,
    convention: str,
    *,
    expert_share: Real = PAPER_EXPERT_SHARE,
    ffn_share: Real = PAPER_FFN_SHARE,
) -> FloatArray:
    """Parameters that one token meets over the dense N, under a named convention of CONVENTIONS; 1 for a dense model.

    K = min(top_k, n_experts). `expert_share` is c of total_params, `ffn_share` is a, the share of N in FFNs (c times how
    many layers apart the MoE layers are). Raises InputError for an unknown convention.
    """
    further = np.minimum(_array(top_k), _array(n_experts)) - 1.0
    shares = {"paper": ffn_share, "exact": expert_share, "dense": 0.0}
    if convention not in shares:
        raise unknown_name("convention", convention, CONVENTIONS)
    return 1.0 + further * _array(shares[convention])
