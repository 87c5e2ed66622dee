"""Iteration latency composed from measured kernels, for every shape: NVIDIA's tables (latency/kernels/tables.py).

A pass is the sum of its kernels, each interpolated between measured sizes. With attention data parallelism all but the
experts is what the busiest group of GPUs computes, and exchanges of tokens stand before and after the experts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import numpy as np

from moescale import catalogue
from moescale.errors import unknown_name
from moescale.latency import LatencySource, Pass, check_moe_execution
from moescale.latency.attention import attention_s
from moescale.latency.card import Asked, Card
from moescale.latency.experts import experts_s
from moescale.latency.kernels.formats import BF16, LATENT
from moescale.latency.kernels.tables import check_present, engines
from moescale.latency.latent import is_latent, nearest_module, sparse_module
from moescale.latency.linear import state_s
from moescale.latency.messages import messages_s
from moescale.latency.roofline import ACTIVATION_BYTES
from moescale.models.architecture import Architecture, some
from moescale.models.operations import Attention, Indexer, Product, State, operations
from moescale.models.parameters import share_taken
from moescale.typing import FloatArray, Real


@cache
def host_s() -> float:
    """Seconds that the host needs for one pass of a server (catalogue/roofline.toml, host.per_iteration_overhead_s)."""
    return float(catalogue.read("roofline.toml")["host"]["per_iteration_overhead_s"]["value"])


@dataclass(frozen=True)
class Silicon(Card, LatencySource):
    """Measured kernels of `backend`, at its current version, on `gpu`, tensor-parallel.

    Each part of a model takes as many kernels of the weights' format as `quantised` says that it holds in it, the rest
    bf16. Whatever was not measured is a measured kernel times the ratio of its rooflines, and never faster than the
    data sheet allows. Beyond a table's largest size a kernel is taken as saturated; further on, and for latent
    attention where its kernels were not measured, the answer is NaN. Raises InputError when the package, or a table for
    the GPU or engine, is missing.
    """

    name = "silicon"
    takes_none: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_moe_execution(self.moe_execution)
        system = self.system.name
        if self.backend not in engines(system):
            raise unknown_name("engine", self.backend, engines(system), otherwise=f"those were measured on {system}")
        check_present(system, self.backend)

    def unmeasured(self, model: Architecture) -> list[str]:
        """The parts of a model whose matrices are priced as scaled bf16 kernels: nobody measured those of their format."""
        if self.format == "bf16":
            return []
        products = (op for op in operations(model) if isinstance(op, Product) and some(op.times))
        held = {op.part for op in products if share_taken(model.quantised, op.part) > 0.0}
        latent = is_latent(model)
        module = (
            nearest_module(self, "generation", LATENT.get(self.format, ())) if latent and "attention" in held else None
        )
        dense = held & {"dense_ffn", "shared_experts", "lm_head", "" if latent else "attention"}
        parts = {
            "latent attention": module is not None and module[1] == BF16,
            "matrix products": dense and self.product_kind(model, with_experts=some(model.n_moe_layers)) == BF16,
            "experts": "experts" in held and self.expert_kind(model) == BF16,
        }
        return [name for name, scaled in parts.items() if scaled]

    def pass_s(self, model: Architecture, a: Pass) -> FloatArray:
        """Seconds of a pass: its operations, moved activations and messages, or the host's."""
        whole, a = a, a.busiest_rank
        gpus = np.asarray(a.gpus, dtype=np.float64)
        latent, module = is_latent(model), sparse_module(self, model)
        asked: dict[bool, list[Asked]] = {False: [], True: []}  # whether of the LM head, which meets fewer tokens
        total_s: Real = 0.0
        for op in operations(model, gpus):
            if isinstance(op, Attention):
                total_s = total_s + attention_s(self, op, model, module, a)
            elif isinstance(op, State):
                total_s = total_s + state_s(self, op, a)
            elif isinstance(op, Indexer) or (isinstance(op, Product) and op.part == "indexer"):
                if module is None:  # else it is part of the measured one
                    total_s = total_s + self.analytic.operation_s(op, a)
            elif isinstance(op, Product) and op.part != "experts" and some(op.times):
                if not (latent and op.part == "attention"):  # whose kernels hold their own
                    asked[op.part == "lm_head"].append((op, self.share(model, op.part)))
                if op.closes and op.part in ("dense_ffn", "shared_experts"):
                    moved = a.tokens * (model.ffn_matrices * np.maximum(op.k, 1.0) * ACTIVATION_BYTES)
                    total_s = total_s + op.times * self.elementwise_s(moved)
        for of_head, tokens in ((False, a.tokens), (True, a.requests)):
            total_s = total_s + self.products_s(asked[of_head], tokens, model)
        if some(model.n_moe_layers):
            total_s = total_s + experts_s(self, model, whole)
        # Norms with their residual additions (two reads and two writes each), and the embeddings.
        row = np.asarray(model.d_model, dtype=np.float64) * ACTIVATION_BYTES
        norms = model.norms_per_layer * np.asarray(model.n_layers, dtype=np.float64) - model.n_layers_without_ffn
        moved_s = norms * self.elementwise_s(4.0 * a.tokens * row) + self.elementwise_s(a.tokens * row)
        total_s = total_s + moved_s + messages_s(self, model, whole, a)
        return np.maximum(total_s, host_s() if self.host_s is None else self.host_s)
