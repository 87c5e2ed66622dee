"""Seconds of routed experts, by measured kernels; of those that get their tokens over DeepEP by kernels of their own."""

from __future__ import annotations

import numpy as np

from moescale.latency import ALL_EXPERTS, ALL_EXPERTS_GROUPED, Pass, local_experts
from moescale.latency.card import Card, by_share
from moescale.latency.kernels.formats import BF16
from moescale.latency.kernels.log_grid import LogGrid
from moescale.latency.kernels.moe import Shape, moe_kernels
from moescale.latency.kernels.tables import find_grid
from moescale.latency.messages import MEASURED_TOP_K, MEASURED_WIDTH, sends_alone
from moescale.latency.roofline import ACTIVATION_BYTES
from moescale.models.architecture import Architecture
from moescale.models.operations import Product
from moescale.models.parameters import expected_distinct_experts
from moescale.typing import FloatArray, Real

# Over several servers experts are balanced: who serves so holds the busiest ones twice (DeepSeek's EPLB, which SGLang, vLLM
# and TensorRT-LLM have). Chosen with both published points of LMSYS's 12 servers (May 2025, H100, DeepSeek-V3) in sight:
# predicted over measured throughput is 0.88 of decoding (256 requests a GPU) and 0.88 of prompts (8 a GPU), and was 0.34 and
# 0.18 with one server's kernels under power_law_1.2. That they overlap messages with computing is left out.
BALANCED = "uniform"
EXPERTS_VERSION = "0.5.10"  # of the measured kernels behind DeepEP
MEASURED_EXPERTS, MEASURED_PARAMS = 256.0, 3.0 * MEASURED_WIDTH * 2048.0  # of a layer, and of each: DeepSeek-V3's


def spread_experts(system: str, *, prompts: bool) -> LogGrid | None:
    """Seconds of DeepSeek-V3's experts in fp8 behind DeepEP over (GPUs that share them, tokens of all GPUs); each has whole ones."""
    stem = f"wideep_{'context' if prompts else 'generation'}_moe_perf"
    place, chosen = (
        (system, "moe", "sglang", EXPERTS_VERSION, stem),
        {"distribution": BALANCED, "moe_dtype": "fp8_block"},
    )
    return find_grid(place, ("moe_ep_size", "num_tokens"), (0.0, 1.0), **chosen)


def spread_s(grid: LogGrid, gpus: Real, tokens: Real, top_k: Real, experts: Real, weights: Real) -> FloatArray:
    """Seconds of one layer's experts with `weights` parameters each, as the grid's shape with as many experts and pairs on each GPU."""
    like = MEASURED_EXPERTS / np.ceil(np.asarray(experts, dtype=np.float64) / gpus)
    pairs = np.asarray(tokens, dtype=np.float64) * top_k / gpus
    least = np.exp(grid.axes[0][0])  # GPUs: fewer hold more experts than were measured on one
    seconds = grid.seconds(like, np.maximum(pairs * like / MEASURED_TOP_K, 1.0))
    return seconds * np.maximum(least / like, 1.0) * (weights / MEASURED_PARAMS)


def experts_s(card: Card, model: Architecture, work: Pass) -> FloatArray:
    """Seconds of the routed experts of all layers, of the tokens of all groups of attention."""
    gpus = np.asarray(work.gpus, dtype=np.float64)
    if card.moe_execution == ALL_EXPERTS:
        seconds = _looped_s(card, model, gpus, work.tokens)
    else:
        seconds = _grouped_s(card, model, gpus, work)
    to_experts = sends_alone(card, work)
    if not np.any(to_experts):
        return seconds
    grid = spread_experts(card.system.name, prompts=work.prompts is not None)
    if grid is None:
        return seconds
    weights = float(model.ffn_matrices) * np.asarray(model.d_model, dtype=np.float64) * model.d_expert
    layer_s = spread_s(grid, gpus, work.tokens, model.top_k, model.n_experts, weights)
    pairs = np.asarray(work.tokens, dtype=np.float64) * model.top_k / gpus
    moved = ACTIVATION_BYTES * pairs * (2.0 * model.d_model + model.ffn_matrices * model.d_expert)
    local = np.ceil(np.asarray(model.n_experts, dtype=np.float64) / gpus)
    read, flops = weights * np.minimum(local, pairs), 2.0 * pairs * weights
    layer_s = card.rescaled(layer_s, read, moved, flops, "fp8_block", card.weight_bytes_per_param)
    return np.where(to_experts, model.n_moe_layers * layer_s, seconds)


def _grouped_s(card: Card, model: Architecture, gpus: FloatArray, work: Pass) -> FloatArray:
    """Seconds of the routed experts of all layers; none of models without."""
    tokens, top_k = work.tokens, model.n_experts if card.moe_execution == ALL_EXPERTS_GROUPED else model.top_k
    layers, experts = (np.asarray(n, dtype=np.float64) for n in (model.n_moe_layers, model.n_experts))
    ep = np.minimum(work.expert_parallel, experts)
    local, width = np.ceil(experts / ep), np.maximum(model.d_expert * ep / gpus, 1.0)
    sizes = (np.maximum(tokens, 1.0), _model_width(model), width, local, np.maximum(top_k, 1.0), ep)
    shape = Shape(*sizes, float(model.ffn_matrices))
    pairs, weights = tokens * np.asarray(top_k) / ep, shape.matrices * shape.d_model * shape.width
    chosen = np.minimum(local, shape.top_k)
    read, flops = expected_distinct_experts(local, chosen, pairs / chosen) * weights, 2.0 * pairs * weights
    moved = ACTIVATION_BYTES * pairs * (2.0 * shape.d_model + shape.matrices * shape.width)

    def layer_s(kind: str, wanted: float) -> FloatArray:
        kernels = moe_kernels(*card.tables, kind)
        seconds = card.rescaled(kernels.seconds(shape), read, moved, flops, kind, wanted)
        # Measured shapes keep their time below the data sheet's limit: uneven routing reads fewer experts than that assumes.
        limit_s = card.limit_s(read, flops, kind, wanted)
        return np.maximum(seconds, np.where(kernels.is_measured(shape.d_model, shape.width), 0.0, limit_s))

    in_format = (card.expert_kind(model), card.weight_bytes_per_param)
    return np.where(layers > 0, layers * by_share(card.share(model, "experts"), layer_s, in_format, (BF16, 2.0)), 0.0)


def _looped_s(card: Card, model: Architecture, gpus: FloatArray, tokens: Real) -> FloatArray:
    """Seconds of the routed experts of all layers where each GPU runs its whole experts one after another, as vLLM's loop launched them."""
    layers, d = np.asarray(model.n_moe_layers, dtype=np.float64), _model_width(model)
    width, gates = np.maximum(model.d_expert, 1.0), model.ffn_matrices - 2
    each_of = (Product("experts", 1.0 + gates, width, d), Product("experts", 1.0, d, width, closes=True))
    share = card.share(model, "experts")
    products_s = card.products_s([(op, share) for op in each_of], tokens, model)
    moved_bytes = ACTIVATION_BYTES * np.asarray(tokens) * ((2.0 + 3.0 * gates) * width + 5.0 * d)
    small_s = card.elementwise_s(moved_bytes) + (5.0 + gates) * card.system.elementwise_latency_s
    each = np.where(layers > 0, local_experts(model, gpus), 0.0)
    return layers * each * (products_s + small_s)


def _model_width(model: Architecture) -> Real:
    return np.where(np.asarray(model.d_expert_model) > 0, model.d_expert_model, model.d_model)
