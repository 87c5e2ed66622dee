"""Times of layers that hold a state in place of a cache: gated delta nets and Kimi delta attention, as they were measured.

A head's state of key by value channels is a problem of its own, for each request. So a state space's state, and states of
other widths, are priced as so many measured heads as have their bytes; Mamba's own kernels were not measured but for their
convolution.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from moescale.latency.kernels.log_grid import LogGrid, grid_of
from moescale.latency.kernels.tables import find_table, read_columns
from moescale.models.operations import State
from moescale.typing import FloatArray, Real

COLUMNS = ("num_k_heads", "num_v_heads", "batch_size", "seq_len", "latency")
MEASURED_HEAD = 128.0 * 128.0  # key by value channels of one head of the measured kernels
MEASURED_STATE_BYTES = 4.0  # the tables' decoding moves fp32 states: twice 64 KiB a head at up to 85% of the bandwidth
CONVOLUTION = "causal_conv1d"
# Folder and file of a kind.
TABLES = {"gated-delta": ("linear_attention", "gdn_perf"), "kda": ("kda", "kda_perf")}


@dataclass(frozen=True, slots=True)
class LinearKernels:
    """Measured kernels of one stage: the convolution, and alternatives for the rest, of which the fastest counts."""

    convolution: LogGrid  # value heads, value heads a key head, requests, and in stage context tokens
    rules: tuple[LogGrid, ...]
    fewest_heads: float  # measured; fewer are as many with fewer requests

    def seconds(self, state: State, batch: Real, tokens: Real | None) -> FloatArray:
        """Seconds of one linear layer: a token (None) or a prompt of each of `batch` requests."""
        heads = state.elements / MEASURED_HEAD
        if tokens is None:
            heads = heads * (np.asarray(state.element_bytes) / MEASURED_STATE_BYTES)
        few = np.minimum(heads / self.fewest_heads, 1.0)
        sizes = [
            np.maximum(heads, self.fewest_heads),
            np.maximum(state.values / state.keys, 1.0),
            np.maximum(batch * few, 1.0),
        ]
        sizes += [] if tokens is None else [tokens]
        rule_s = self.rules[0].seconds(*sizes)
        for other in self.rules[1:]:
            rule_s = np.minimum(rule_s, other.seconds(*sizes))
        return self.convolution.seconds(*sizes) + rule_s


@cache
def linear_kernels(system: str, engine: str, version: str, kind: str, stage: str) -> LinearKernels | None:
    """Measured kernels of a kind of linear layer, or of the kind that stands in; None where there are none."""
    for name in (kind, "gated-delta"):
        if name not in TABLES:
            continue
        family, stem = TABLES[name]
        table = find_table(system, family, engine, version, stem)
        if table is None:
            continue
        grids: dict[str, LogGrid] = {}
        fewest = np.inf
        for source in table.text_values("kernel_source"):
            rows = read_columns(table, COLUMNS, kernel_source=source, phase=stage)
            if not rows["latency"].size:
                continue
            heads = rows["num_v_heads"]
            sizes = [heads, heads / rows["num_k_heads"], rows["batch_size"]]
            sizes += [rows["seq_len"]] if stage == "context" else []
            grids[source] = grid_of(tuple(sizes), rows["latency"], (1.0, 0.0, 1.0, 1.0)[: len(sizes)])
            fewest = min(fewest, float(heads.min()))
        convolution = [grid for source, grid in grids.items() if source.startswith(CONVOLUTION)]
        rules = [grid for source, grid in grids.items() if not source.startswith(CONVOLUTION)]
        if convolution and rules:
            return LinearKernels(convolution[0], tuple(rules), fewest)
    return None
