"""Seconds of what GPUs send each other, by measured collectives."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from moescale.latency import Pass, network
from moescale.latency.card import Card
from moescale.latency.kernels.exchange import (
    GPUS_PER_NODE,
    MEASURED_TOP_K,
    MEASURED_WIDTH,
    collective_grid,
    deepep_grid,
    nvlink_grid,
    within_server_s,
)
from moescale.latency.roofline import ACTIVATION_BYTES
from moescale.models.architecture import Architecture
from moescale.typing import FloatArray, Real

# The format, by its name in the table of NVLink, in which tokens go to experts: that of the experts' products.
DISPATCHED = {"nvfp4": "nvfp4", "fp8": "fp8", "fp8_block": "fp8"}


def messages_s(card: Card, model: Architecture, whole: Pass, rank: Pass) -> FloatArray:
    """Two all-reduces a layer and one of the embeddings; none on one GPU.

    With attention data parallelism they are within a group, and an exchange among all GPUs stands for the second one of
    a layer with experts.
    """
    gpus = np.asarray(rank.gpus, dtype=np.float64)
    times = 2.0 * np.asarray(model.n_layers, dtype=np.float64) - model.n_layers_without_ffn + 1.0
    if whole is rank:
        return _all_reduces_s(card, model, gpus, rank.tokens, times)
    spread = np.asarray(whole.attention_dp, dtype=np.float64) > 1.0
    seconds = _all_reduces_s(card, model, gpus, rank.tokens, times - np.where(spread, model.n_moe_layers, 0.0))
    return seconds + np.where(spread, model.n_moe_layers * _exchange_s(card, model, whole, rank), 0.0)


def _all_reduces_s(card: Card, model: Architecture, gpus: FloatArray, tokens: Real, times: Real) -> FloatArray:
    if not np.any(gpus > 1):
        return np.zeros(np.shape(gpus))
    grid, slower = card.links
    # A link of half the rate takes as long for a message as the measured one for twice of it.
    elements = np.maximum(tokens, 1.0) * np.asarray(model.d_model, dtype=np.float64)
    seconds = within_server_s(grid, network.in_server(card.gpu, gpus), slower * elements)
    if np.any(gpus > card.gpu.gpus_per_server):
        seconds = seconds + network.all_reduce_s(card.gpu, gpus, ACTIVATION_BYTES * elements)
    return np.where(gpus > 1, times * seconds, 0.0)


def _exchange_s(card: Card, model: Architecture, whole: Pass, rank: Pass) -> FloatArray:
    """Seconds that tokens take to the experts of one layer, and their sums back, among all GPUs."""
    gpus, tokens = np.asarray(whole.gpus, dtype=np.float64), np.maximum(whole.tokens, 1.0)
    d_model = np.asarray(model.d_model, dtype=np.float64)
    elements, each = tokens * d_model, network.in_server(card.gpu, gpus)
    _, slower = card.links
    system = card.gpu.silicon_link_system or card.system.name
    gather, scatter = (collective_grid(system, name) for name in ("all_gather", "reduce_scatter"))
    if gather is None or scatter is None:  # an all-reduce is both
        inside_s = within_server_s(card.links[0], each, slower * elements)
    else:
        inside_s = within_server_s(gather, each, slower * elements) + within_server_s(scatter, each, slower * elements)
    far, alone = gpus > card.gpu.gpus_per_server, sends_alone(card, whole)
    if not np.any(far | alone):
        return inside_s
    # To its experts each token is sent alone, from the GPU that holds it: fp8 there and bf16 back.
    own = np.maximum(np.asarray(rank.tokens, dtype=np.float64) / rank.gpus, 1.0)
    like = own * (d_model * model.top_k / (MEASURED_WIDTH * MEASURED_TOP_K))
    deepep = deepep_grid(card.system.name, low_latency=whole.prompts is None)
    dispatched = DISPATCHED.get(card.expert_kind(model), "bfloat16")
    if card.gpu.gpus_per_server > GPUS_PER_NODE and (nvlink := nvlink_grid(dispatched)) is not None:
        inside_s = np.where(alone, nvlink.seconds(gpus, like), inside_s)
    if not np.any(far):
        return inside_s
    if deepep is not None:
        sent_s = deepep.seconds(network.servers(card.gpu, gpus), like)
    else:
        sent_bytes = own * model.top_k * d_model * (1.0 + ACTIVATION_BYTES)
        in_one_s = within_server_s(card.links[0], each, slower * elements / network.servers(card.gpu, gpus))
        sent_s = in_one_s + network.exchange_s(card.gpu, gpus, sent_bytes) + network.HOP_S
    # An expert that is split itself needs every token of all its GPUs.
    all_s = inside_s + network.all_reduce_s(card.gpu, gpus, ACTIVATION_BYTES * elements)
    return np.where(far, np.where(alone, sent_s, all_s), inside_s)


def norm_messages_s(card: Card, model: Architecture, gpus: FloatArray, tokens: Real) -> FloatArray:
    """Norms over all heads, which tensor-parallel GPUs share: an all-reduce of two sums of squares a token and layer."""
    if not np.any(gpus > 1):
        return np.zeros(np.shape(gpus))
    grid, _ = card.links
    seconds = grid.seconds(np.maximum(gpus, 2.0), 2.0 * np.maximum(tokens, 1.0))
    return np.where(gpus > 1, model.n_layers * seconds, 0.0)


def sends_alone(card: Card, a: Pass) -> npt.NDArray[np.bool_]:
    """Where groups of attention send each token to its experts alone: over several servers, or more than eight GPUs of one,
    to whole experts.
    """
    gpus = np.asarray(a.gpus, dtype=np.float64)
    several = (gpus > min(card.gpu.gpus_per_server, GPUS_PER_NODE)) & (np.asarray(a.attention_dp) > 1)
    return several & (np.asarray(a.expert_parallel, dtype=np.float64) >= gpus)
