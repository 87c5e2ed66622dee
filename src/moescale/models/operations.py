"""A model as a tuple of operations, which is the one place that knows a transformer's parts.

Parameters, FLOPs, bytes and seconds are sums over it. Sizes are those on one GPU, as vLLM splits a model: heads, FFN widths and
the vocabulary over `tensor_parallel` GPUs, key-value heads and the heads of a state until one is left, which more GPUs
replicate; whole experts over `expert_parallel` groups, each expert's width over the GPUs of its group. Every GPU holds routers,
norms, indexers and the compressing projections of latent attention. Everything broadcasts over the fields of an Architecture.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from moescale.models.architecture import Architecture, some
from moescale.typing import FloatArray, Real

Mixing = Literal["attention", "states", "indexer"]
OfFfns = Literal["dense_ffn", "shared_experts", "experts", "router", "expert_projection"]
Part = Mixing | OfFfns | Literal["residual", "lm_head", "norms"]
CONV_BYTES = 2.0  # of the convolution's last tokens, held in bf16 as activations are
# An indexer's key in the cache of vLLM and SGLang: fp8 whatever the rest is held in, with a scale of 32 bits.
INDEX_SCALE_BYTES = 4.0


@dataclass(frozen=True, slots=True)
class Product:
    """Tokens times matrices of `n` outputs and `k` inputs, of which a GPU holds `held` in each of `times` layers."""

    part: Part
    times: Real
    n: Real
    k: Real
    bias: Real = 0.0
    closes: bool = False  # the last product of its block: a kernel of its own wrote its input, not a norm
    expands: bool = False  # latent attention's cache to keys and values, which decoding goes without
    held: Real = 1.0  # routed experts
    met: Real = 1.0  # of them by one token

    @property
    def params(self) -> Real:
        """Parameters of the matrices."""
        return self.times * self.held * (self.n * self.k)

    @property
    def met_params(self) -> Real:
        """Those that one token is multiplied with."""
        return self.times * self.met * (self.n * self.k)

    @property
    def biases(self) -> Real:
        """Parameters beside the matrices."""
        return self.times * self.held * self.bias


@dataclass(frozen=True, slots=True)
class Vectors:
    """Parameters that are no matrix: norms, sinks, convolutions and decays."""

    part: Part
    params: Real


@dataclass(frozen=True, slots=True)
class Attention:
    """The layers whose heads are alike; those with a window, and those that choose their tokens, are among them."""

    layers: Real
    heads: Real
    kv_heads: Real
    head_dim: Real  # of queries and keys
    value_dim: Real
    rank: Real = 0.0  # of the compressed keys and values; 0: ordinary attention
    rope_dim: Real = 0.0
    window_layers: Real = 0.0
    window: Real = 0.0
    sparse_layers: Real = 0.0
    chosen: Real = 0.0  # tokens that a query of a sparse layer chooses
    gate: Real = 0.0  # channels of a head's gate

    @property
    def cached_elements(self) -> Real:
        """Elements of cache that one token leaves in one layer."""
        grouped, rank = self.kv_heads * (self.head_dim + self.value_dim), np.asarray(self.rank)
        return np.where(rank > 0, rank + self.rope_dim, grouped) if some(self.rank) else grouped

    @property
    def decode_channels(self) -> Real:
        """Channels of a head's key and value where tokens are decoded: latent attention does not expand its cache."""
        channels, rank = self.head_dim + self.value_dim, np.asarray(self.rank)
        return np.where(rank > 0, 2.0 * rank + self.rope_dim, channels) if some(self.rank) else channels

    def held(self, context: Real) -> FloatArray:
        """Tokens that the cache holds of a context, summed over layers: a window holds no more than itself."""
        context = np.asarray(context, dtype=np.float64)
        if not some(self.window_layers):
            return self.layers * context
        return self.layers * context - self.window_layers * np.maximum(context - self.window, 0.0)

    def held_bytes(self, context: Real, bytes_per_element: Real) -> FloatArray:
        """Bytes of cache of a request in all layers; of a window no more than that."""
        return self.held(context) * self.cached_elements * bytes_per_element

    def with_chosen_window(self) -> Attention:
        """The same with windows of as many tokens as sparse layers choose; itself where there are none."""
        return replace(self, window_layers=self.sparse_layers, window=self.chosen) if some(self.chosen) else self


@dataclass(frozen=True, slots=True)
class Indexer:
    """What chooses the tokens of sparse attention: its queries meet the keys of all tokens, on every GPU."""

    layers: Real
    heads: Real
    head_dim: Real

    def held_bytes(self, context: Real, bytes_per_element: Real) -> FloatArray:
        """Bytes of cache of a request in all layers, whatever the rest of it is held in."""
        element_bytes = np.where(np.asarray(self.layers) > 0, np.asarray(self.head_dim) + INDEX_SCALE_BYTES, 0.0)
        return context * (self.layers * element_bytes)


@dataclass(frozen=True, slots=True)
class State:
    """Layers that hold a state of constant size: a matrix of key by value channels a head."""

    kind: str  # a name of LINEAR_KINDS
    layers: Real
    keys: FloatArray  # channels of all keys, as many of queries
    values: FloatArray
    heads: FloatArray  # of values
    key_dim: Real
    conv: Real  # tokens that the convolution sees
    element_bytes: Real

    @property
    def elements(self) -> Real:
        """Elements of one layer's state."""
        return self.values * self.key_dim

    @property
    def conv_channels(self) -> Real:
        """Channels of the convolution."""
        return self.values if self.kind == "mamba" else 2.0 * self.keys + self.values

    def held_bytes(self, context: Real, bytes_per_element: Real) -> FloatArray:
        """Bytes that a request holds in all layers, however long it is: the state, and what the convolution sees."""
        seen = np.maximum(np.asarray(self.conv) - 1.0, 0.0) * self.conv_channels
        return self.layers * (self.element_bytes * self.elements + CONV_BYTES * seen)


Operation = Product | Vectors | Attention | Indexer | State


def operations(
    a: Architecture,
    tensor_parallel: Real = 1.0,
    *,
    expert_gpus: Real | None = None,
    expert_parallel: Real | None = None,
) -> tuple[Operation, ...]:
    """What one token meets in all layers, but for the lookup of its embedding, on one of `tensor_parallel` GPUs.

    The routed experts are spread over `expert_gpus` (None: as many), in `expert_parallel` groups that hold whole ones;
    None: one group, whose number of experts may be any real number.
    """
    t = tensor_parallel
    found = [*(_compressed_attention(a, t) if some(a.compressed_tokens) else _attention(a, t)), *_states(a, t)]
    dense = a.n_layers - a.n_moe_layers - a.n_layers_without_ffn
    found += _ffn(a, "dense_ffn", dense, a.d_ffn / t, bias=a.ffn_bias)
    if some(a.n_moe_layers):
        found += _experts(a, t, t if expert_gpus is None else expert_gpus, expert_parallel)
    if some(a.residual_streams):
        m = a.residual_streams
        for times, mixed, biases in ((2.0 * a.n_layers, (2.0 + m) * m, 3.0), (1.0, m, 1.0)):
            found.append(Product("residual", times, mixed, m * a.d_model, mixed + biases))
    found.append(Vectors("norms", (a.norms_per_layer * a.n_layers - a.n_layers_without_ffn + 1.0) * a.d_model))
    if some(a.vocab_size):
        found.append(Product("lm_head", 1.0, a.vocab_size / t, a.d_model))
    return tuple(found)


def _shared(heads: Real, gpus: Real) -> FloatArray:
    """Heads on one of so many GPUs, which replicate the last one."""
    return np.maximum(np.asarray(heads) / gpus, np.minimum(heads, 1.0))


def attention_products(a: Architecture, heads: Real | None = None) -> list[Product]:
    """The products of one layer's attention, indexers left out, with so many query heads (None: all)."""
    one = replace(a, n_layers=1.0, n_heads=a.n_heads if heads is None else heads)
    return [op for op in _attention_of_one_kind(one, 1.0) if isinstance(op, Product)]


def _ffn(
    a: Architecture, part: Part, times: Real, width: Real, *, bias: bool, held: Real = 1.0, met: Real = 1.0
) -> list[Operation]:
    """A (gated) FFN of a width: into it, and back; routed experts may read and write less than the model's width."""
    d, up = a.d_model, (a.ffn_matrices - 1) * width
    if part == "experts" and some(a.d_expert_model):
        d = np.where(np.asarray(a.d_expert_model) > 0, a.d_expert_model, d)
    into = Product(part, times, up, d, up if bias else 0.0, held=held, met=met)
    return [into, Product(part, times, d, width, a.d_model if bias else 0.0, closes=True, held=held, met=met)]


def _experts(a: Architecture, t: Real, expert_gpus: Real, groups: Real | None) -> Iterator[Operation]:
    layers, d = a.n_moe_layers, a.d_model
    if some(a.d_shared_expert):
        times = np.where(np.asarray(a.d_shared_expert) > 0, layers, 0.0)
        yield from _ffn(a, "shared_experts", times, a.d_shared_expert / t, bias=a.ffn_bias)
        if a.shared_expert_gate:
            yield Vectors("router", times * d)
    held = a.n_experts if groups is None else np.ceil(a.n_experts / groups)
    width = a.d_expert * (1.0 if groups is None else groups)
    yield from _ffn(a, "experts", layers, width / expert_gpus, bias=a.expert_bias, held=held, met=a.top_k)
    yield Product("router", layers, a.n_experts, d, a.n_experts if a.router_bias else 0.0)
    if some(a.d_expert_model):
        yield Product("expert_projection", layers, a.d_expert_model, d)
        yield Product("expert_projection", layers, d, a.d_expert_model)


def _kinds_of_attention(a: Architecture) -> tuple[Architecture, ...]:
    """The layers that attend, in shapes whose layers have the same heads: two where layers with windows have others."""
    rest = replace(a, n_layers=a.n_layers - a.n_linear_layers) if some(a.n_linear_layers) else a
    own = {name: getattr(a, f"window_{name}") for name in ("n_heads", "n_kv_heads", "head_dim")}
    if not any(some(number) for number in own.values()):
        return (rest,)
    full_layers = rest.n_layers - a.n_window_layers
    full = replace(rest, n_layers=full_layers, n_window_layers=0.0 * a.n_window_layers, attention_sinks=False)
    own = {name: np.where(np.asarray(n) > 0, n, getattr(a, name)) for name, n in own.items()}
    return full, replace(rest, n_layers=a.n_window_layers, full_keys_are_values=False, **own)


def _attention(a: Architecture, t: Real) -> Iterator[Operation]:
    for g in _kinds_of_attention(a):
        yield from _attention_of_one_kind(g, t)
    if some(a.n_index_layers):
        yield Indexer(a.n_index_layers, a.index_n_heads, a.index_head_dim)
        yield from index_products(a)
        # Weights and biases of the norm of its key (DeepSeek-V3.2), or weights of its queries' and keys' (MiniMax-M3).
        yield Vectors("norms", 2.0 * a.n_index_layers * a.index_head_dim)


def index_products(a: Architecture) -> list[Product]:
    """The products of all indexers: queries, which latent attention has from compressed ones and weights; and one key."""
    layers, dim, latent = a.n_index_layers, a.index_head_dim, np.asarray(a.q_lora_rank) > 0
    return [
        Product("indexer", layers, a.index_n_heads * dim, np.where(latent, a.q_lora_rank, a.d_model)),
        Product("indexer", layers, dim + np.where(latent, a.index_n_heads, 0.0), a.d_model),
    ]


def _attention_of_one_kind(a: Architecture, t: Real) -> Iterator[Operation]:
    layers, d, qk = a.n_layers, a.d_model, a.head_dim
    heads, kv_heads = a.n_heads / t, _shared(a.n_kv_heads, t)
    value = np.where(np.asarray(a.v_head_dim) > 0, a.v_head_dim, qk) if some(a.v_head_dim) else qk
    rank, query_rank, rope = a.kv_lora_rank, a.q_lora_rank, a.qk_rope_head_dim
    windows = (a.n_window_layers, a.window_tokens, a.n_sparse_layers, a.index_topk, a.attention_gate)
    yield Attention(layers, heads, kv_heads, qk, value, rank, rope, *windows)
    latent = np.asarray(rank) > 0
    if not latent.all():
        outputs = heads * (qk + a.attention_gate) + kv_heads * (qk if a.full_keys_are_values else qk + value)
        bias = heads * qk + kv_heads * (qk + value) if a.qkv_bias else 0.0
        yield Product("attention", np.where(latent, 0.0, layers) if latent.any() else layers, outputs, d, bias)
    if latent.any():
        times, compressed = np.where(latent, layers, 0.0), np.asarray(query_rank) > 0
        queries = heads * qk
        # Only the compressing projections have a bias.
        bias = query_rank + rank + rope if a.qkv_bias else 0.0
        yield Product("attention", times, np.where(compressed, query_rank, queries) + rank + rope, d, bias)
        yield Product("attention", times * compressed, queries, query_rank)
        yield Product("attention", times, heads * (qk - rope + value), rank, expands=True)
        yield Vectors("norms", layers * (query_rank + np.asarray(rank)))
    # The bias of a sum over GPUs is held by every one.
    yield Product("attention", layers, d, heads * value, d if a.attention_output_bias else 0.0, closes=True)
    if a.attention_sinks:
        yield Vectors("attention", layers * heads)
    if a.qk_norm:
        each = a.n_heads + a.n_kv_heads if a.qk_norm_full_width else 2.0
        yield Vectors("norms", layers * each * qk)


def _compressed_attention(a: Architecture, t: Real) -> Iterator[Operation]:
    """Attention to a window and to entries of a cache that each stand for several tokens: so many fewer layers to all tokens."""
    layers, heads, d, dim = a.n_layers, a.n_heads / t, a.d_model, a.head_dim
    chosen, heavy = a.n_compressed_layers / a.compressed_tokens, a.n_heavy_layers / a.heavy_tokens
    one_key = (heads, 1.0, dim, dim, dim, 0.0)  # as latent attention decodes: a key of all heads is their value
    yield Attention(layers, *one_key, layers, a.window_tokens)
    yield Attention(chosen, *one_key, sparse_layers=chosen, chosen=a.index_topk * a.compressed_tokens)
    yield Attention(heavy, *one_key)
    yield Indexer(chosen, a.index_n_heads, a.index_head_dim)
    yield Product("attention", layers, a.q_lora_rank + dim, d)
    yield Product("attention", layers, heads * dim, a.q_lora_rank)
    # In groups, which divide inputs and have outputs of their own.
    yield Product("attention", layers, a.output_rank, heads * dim)
    yield Product("attention", layers, d, a.output_groups * a.output_rank / t, closes=True)
    # Entries and the weights of their tokens; those that overlap have both for the entry before as well.
    yield Product("attention", a.n_compressed_layers, 4.0 * dim, d)
    yield Product("attention", a.n_heavy_layers, 2.0 * dim, d)
    yield Product("indexer", a.n_compressed_layers, a.index_n_heads * a.index_head_dim, a.q_lora_rank)
    yield Product("indexer", a.n_compressed_layers, 4.0 * a.index_head_dim + a.index_n_heads, d)
    positions = 2.0 * a.n_compressed_layers * a.compressed_tokens * (dim + a.index_head_dim)
    yield Vectors("attention", layers * heads + positions + a.n_heavy_layers * a.heavy_tokens * dim)
    compressed = (a.n_compressed_layers + a.n_heavy_layers) * dim + a.n_compressed_layers * a.index_head_dim
    yield Vectors("norms", layers * (a.q_lora_rank + dim) + compressed)


def _states(a: Architecture, t: Real) -> Iterator[Operation]:
    """Linear layers as transformers builds them."""
    if not some(a.n_linear_layers):
        return
    kind, layers, d, rank, key_dim = a.linear_kind, a.n_linear_layers, a.d_model, a.linear_rank, a.linear_key_dim
    key_heads, heads = (_shared(n, t) for n in (a.linear_n_key_heads, a.linear_n_value_heads))
    k, v = key_heads * key_dim, heads * a.linear_value_dim
    state = State(kind, layers, k, v, heads, key_dim, a.linear_conv, a.linear_state_bytes)
    yield state
    channels = state.conv_channels
    # Outputs and inputs of the products before the last: queries, keys, values, gates, and scalars a head (KDA: a decay a channel, and
    # its gate through a narrow projection); weights of convolution, decay, time step, skip; and of norms.
    whole_value = np.asarray(a.linear_value_dim, dtype=np.float64)
    of_kind: dict[str, tuple[tuple[tuple[Real, Real], ...], Real, Real]] = {
        "gated-delta": (((2.0 * k + 2.0 * v, d), (2.0 * heads, d)), 2.0 * heads, whole_value),
        "kda": (((2.0 * k + v + heads + 2.0 * rank, d), (k, rank), (v, rank)), heads + k, whole_value),
        "mamba2": (((2.0 * (k + v) + heads, d),), channels + 3.0 * heads, whole_value * a.linear_n_value_heads),
        "mamba": (((2.0 * v, d), (rank + 2.0 * key_dim, v), (v, rank)), v * (3.0 + key_dim), rank + 2.0 * key_dim),
    }
    products, vectors, norms = of_kind[kind]
    for n, inputs in (*products, (d, v)):
        yield Product("states", layers, n, inputs)
    yield Vectors("states", layers * (a.linear_conv * channels + vectors))
    yield Vectors("norms", layers * norms)
