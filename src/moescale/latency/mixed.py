"""What the latency sources have in common for models of several kinds of layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any, TypeVar, cast

import numpy as np

from moescale.models.architecture import Architecture, some
from moescale.models.mixers import attention_groups, linear_products, linear_widths
from moescale.models.parameters import index_matrix_params
from moescale.typing import FloatArray, Real

F = TypeVar("F", bound=Callable[..., FloatArray])


def over_attention_groups(method: F) -> F:
    """A method that prices the attention of a model of one kind of heads, summed over a model's kinds.

    Sparse attention is asked for as layers with a window of as many tokens as it chooses.
    """

    @wraps(method)
    def summed(*arguments: Any, **named: Any) -> FloatArray:
        at = next(i for i, value in enumerate(arguments) if isinstance(value, Architecture))
        model = cast("Architecture", arguments[at])
        groups = attention_groups(model)
        if groups[0] is model and not some(model.index_topk):
            return method(*arguments, **named)
        total_s: Real = 0.0
        for group in groups:
            asked = chosen_as_window(group) if some(group.index_topk) else group
            total_s = total_s + method(*arguments[:at], asked, *arguments[at + 1 :], **named)
        return cast("FloatArray", total_s)

    return cast("F", summed)


def chosen_as_window(a: Architecture) -> Architecture:
    """The same with windows of index_topk tokens in the layers that choose so many."""
    return replace(a, n_window_layers=a.n_sparse_layers, window_tokens=a.index_topk)


def has_mixers(a: Architecture) -> bool:
    """Whether there is more to the layers than attention: states, indexers, projections that experts share."""
    return some(a.n_linear_layers) or some(a.n_index_layers) or some(a.d_expert_model)


def mixer_products(a: Architecture, tensor_parallel: Real) -> list[tuple[Real, Real, Real]]:
    """Times, outputs and inputs of the matrix products of linear layers and of the projections that experts share.

    A gated delta net's two scalars a head are a product of their own, as the engines run it. Those of indexers come as one
    matrix of as many parameters.
    """
    found: list[tuple[Real, Real, Real]] = []
    found += [(a.n_linear_layers, n, k) for k, n in linear_products(a, tensor_parallel)]
    if some(a.n_linear_layers) and a.linear_kind == "gated-delta":
        scalars, (times, n, k) = 2.0 * linear_widths(a, tensor_parallel)[2], found[0]
        found[:1] = [(times, n - scalars, k), (times, scalars, k)]
    if some(a.d_expert_model):
        found += [(a.n_moe_layers, a.d_expert_model, a.d_model), (a.n_moe_layers, a.d_model, a.d_expert_model)]
    return found


def index_product(a: Architecture) -> tuple[Real, Real, Real]:
    """Times, outputs and inputs of a product that stands for an indexer's."""
    return a.n_index_layers, index_matrix_params(a) / np.asarray(a.d_model, np.float64), a.d_model


def expert_width(a: Architecture) -> Real:
    """What routed experts read and write."""
    if not some(a.d_expert_model):
        return a.d_model
    return np.where(np.asarray(a.d_expert_model) > 0, a.d_expert_model, a.d_model)


def index_cost(a: Architecture, decoded: Real, context: Real, prompts: Real, prompt_tokens: Real) -> tuple[Any, Any]:
    """Bytes that all indexers read of their caches in one pass, and FLOPs of their products with all keys, in 8 bits.

    Every GPU of a server does the same, as it holds all heads of the indexers.
    """
    layers, dim = np.asarray(a.n_index_layers, dtype=np.float64), np.asarray(a.index_head_dim, dtype=np.float64)
    pairs = np.asarray(decoded, np.float64) * context + 0.5 * np.asarray(prompts) * np.square(np.asarray(prompt_tokens))
    return layers * dim * np.asarray(decoded) * context, 2.0 * layers * a.index_n_heads * dim * pairs
