"""Seconds of layers that hold a state in place of a cache, by measured kernels of gated delta nets and Kimi delta attention.

Each head's state is a problem of its own, for each request: states of other widths are priced as so many measured heads
as have their bytes.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from moescale.latency import Pass
from moescale.latency.card import Card
from moescale.latency.kernels.formats import BF16
from moescale.latency.kernels.log_grid import LogGrid, grid_of
from moescale.latency.kernels.tables import find_table, read_columns
from moescale.latency.roofline import ACTIVATION_BYTES
from moescale.models.operations import State
from moescale.typing import FloatArray, Real

COLUMNS = ("num_k_heads", "num_v_heads", "batch_size", "seq_len", "latency")
MEASURED_HEAD = 128.0 * 128.0  # key by value channels of one head of the measured kernels
MEASURED_STATE_BYTES = 4.0  # the tables' decoding moves fp32 states: twice 64 KiB a head at up to 85% of the bandwidth
CONVOLUTION = "causal_conv1d"
# Folder and file of a kind.
TABLES = {"gated-delta": ("linear_attention", "gdn_perf"), "kda": ("kda", "kda_perf")}
# Linear layers whose output meets a norm and a gate in a kernel of its own, which the tables do not hold.
GATED_NORMS = ("gated-delta", "kda", "mamba2")


Kernels = tuple[LogGrid, list[LogGrid], float]


@cache
def linear_kernels(system: str, engine: str, version: str, kind: str, stage: str) -> Kernels | None:
    """The convolution, alternatives for the rest, of which the fastest counts, and the fewest measured heads of a kind of linear layer.

    Grids are over value heads, value heads a key head, requests, and in stage context tokens.
    """
    for family, stem in (TABLES[name] for name in (kind, "gated-delta") if name in TABLES):
        table = find_table(system, family, engine, version, stem)
        convolution: list[LogGrid] = []
        rules: list[LogGrid] = []
        fewest = np.inf
        if table is None:
            continue
        for source in table.text_values("kernel_source"):
            rows = read_columns(table, COLUMNS, kernel_source=source, phase=stage)
            heads = rows["num_v_heads"]
            if heads.size:
                sizes = [heads, heads / rows["num_k_heads"], rows["batch_size"]]
                sizes += [rows["seq_len"]] if stage == "context" else []
                grid = grid_of(tuple(sizes), rows["latency"], (1.0, 0.0, 1.0, 1.0)[: len(sizes)])
                (convolution if source.startswith(CONVOLUTION) else rules).append(grid)
                fewest = min(fewest, float(heads.min()))
        if convolution and rules:
            return convolution[0], rules, fewest
    return None


def _layer_s(kernels: Kernels, state: State, batch: Real, tokens: Real | None) -> FloatArray:
    """Seconds of one linear layer: a token (None) or a prompt of each of `batch` requests."""
    convolution, rules, fewest = kernels
    heads = state.elements / MEASURED_HEAD
    if tokens is None:
        heads = heads * (np.asarray(state.element_bytes) / MEASURED_STATE_BYTES)
    requests = np.maximum(batch * np.minimum(heads / fewest, 1.0), 1.0)  # fewer heads are as many with fewer requests
    sizes = [np.maximum(heads, fewest), np.maximum(state.values / state.keys, 1.0), requests]
    sizes += [] if tokens is None else [tokens]
    return convolution.seconds(*sizes) + np.minimum.reduce([grid.seconds(*sizes) for grid in rules])


def state_s(card: Card, op: State, a: Pass) -> Real:
    """Seconds of layers with a state, by measured kernels of this engine, or where there are none by the roofline."""
    seconds: Real = 0.0
    for stage, batch, tokens in (("generation", a.decoded, None), ("context", a.prompts, a.prompt_tokens)):
        if (kernels := linear_kernels(*card.tables, op.kind, stage)) is None:
            return card.analytic.operation_s(op, a)
        if batch is not None and np.any(np.asarray(batch) > 0):
            each_s = _layer_s(kernels, op, np.maximum(batch, 1.0), tokens)
            seconds = seconds + op.layers / card.ratios(BF16)[0] * each_s * np.minimum(batch, 1.0)
    if op.kind in GATED_NORMS:
        seconds = seconds + op.layers * card.elementwise_s(a.tokens * (3.0 * ACTIVATION_BYTES * op.values))
    return seconds
