"""Iteration latency composed from measured kernels, for every shape: NVIDIA's tables (latency/kernels/tables.py).

A pass is the sum of its kernels, each interpolated between measured sizes: the matrix products of attention, of the FFN
in layers without experts, of shared experts, routers and LM head; attention itself; the experts of MoE layers; norms,
activations and the lookup of embeddings; two all-reduces a layer. Layers with and without experts are counted as the
model has them. With attention data parallelism all but the experts is what the busiest group of GPUs computes, and exchanges
of tokens stand before and after the experts instead. Where the host takes longer to schedule and sample than the kernels
run, it sets the pace.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import ClassVar

import numpy as np

from moescale import catalogue
from moescale.errors import InputError, UnknownNameError, nearest_names, unknown_name
from moescale.hardware.gpus import Gpu
from moescale.latency import FUSED, Pass, PassSource, check_moe_execution
from moescale.latency.attention import ROOFLINE, attention_s, is_latent, sparse_module, state_s
from moescale.latency.card import Asked, Card
from moescale.latency.experts import experts_s
from moescale.latency.kernels.formats import BF16, LATENT, format_of
from moescale.latency.kernels.latent import nearest_latent
from moescale.latency.kernels.tables import System, check_present, default_version, engines, find_system, versions
from moescale.latency.messages import messages_s, norm_messages_s
from moescale.latency.roofline import ACTIVATION_BYTES
from moescale.models.architecture import Architecture, some
from moescale.models.operations import Attention, Indexer, Product, State, operations
from moescale.models.parameters import share_taken
from moescale.typing import FloatArray, Real

ENGINE = "vllm"
# How unevenly tokens fall on experts: a power law with this exponent is what aiconfigurator-core takes for MoE models.
LOAD = "power_law_1.2"


@cache
def host_s() -> float:
    """Seconds that the host needs for one pass of a server (catalogue/roofline.toml, host.per_iteration_overhead_s)."""
    return float(catalogue.read("roofline.toml")["host"]["per_iteration_overhead_s"]["value"])


@dataclass(frozen=True)
class Silicon(PassSource):
    """Measured kernels of `backend` at `version` (None: the package's current one) on `gpu`, tensor-parallel.

    Weights take the measured kernels of their format where there are any (kernels/formats.py), and each part of a model
    as many of them as `quantised` says that it holds in that format, the rest in bf16. Whatever was not measured is a
    measured kernel times the ratio of its rooflines, and never faster than the data sheet allows: formats without kernels,
    other head dimensions, a card with less bandwidth or arithmetic than the measured part, such as the 40 GB A100. Beyond
    a table's largest size a kernel is taken as saturated, up to 10,000 times that size; further on, and for latent
    attention where its kernels were not measured, the answer is NaN. What leaves a server takes the network's time as well.
    Tokens fall on experts as unevenly as `load` says. `moe_execution` all-experts takes measured
    dense products for each whole expert that a GPU holds, whatever `expert_parallel` says; NaN beyond a GPU an expert.

    Raises InputError when the package, or a table for the GPU, engine or version, is missing.
    """

    takes_none: ClassVar[bool] = True

    gpu: Gpu
    backend: str = ENGINE
    version: str | None = None
    weight_bytes_per_param: float = 2.0
    kv_bytes_per_element: float = 2.0
    load: str = LOAD
    host_s: float | None = None  # seconds a pass takes on the host at least; None: host_s(), 0: kernels alone
    moe_execution: str = FUSED  # a name of MOE_EXECUTION
    weights: str | None = None  # name of the number format of the weights; None: the one with such bytes

    def __post_init__(self) -> None:
        check_moe_execution(self.moe_execution)
        system = self._system.name
        if self.backend not in engines(system):
            raise unknown_name("engine", self.backend, engines(system), otherwise=f"those were measured on {system}")
        check_present(system, *self.tables[1:])
        if self.version is None:
            return
        known = versions(system, self.backend)
        if self.version not in known:
            what = f"unknown version {self.version!r} of {self.backend} on {system}"
            raise UnknownNameError(
                what, nearest=nearest_names(self.version, known) or known[-1], next_step=f"known: {', '.join(known)}"
            )

    @property
    def name(self) -> str:
        """`silicon`."""
        return "silicon"

    def without_host(self) -> Silicon:
        """The same without the host's time."""
        return replace(self, host_s=0.0)

    @cached_property
    def _system(self) -> System:
        if self.gpu.silicon_system is None:
            raise InputError(f"there are no measured kernels for {self.gpu.name}", where="silicon", next_step=ROOFLINE)
        return find_system(self.gpu.silicon_system)

    @cached_property
    def tables(self) -> tuple[str, str, str]:
        """System, engine and version of the tables."""
        name = self._system.name
        return name, self.backend, self.version or default_version(name, self.backend)

    @cached_property
    def _card(self) -> Card:
        return Card(
            gpu=self.gpu,
            tables=self.tables,
            weight_bytes=self.weight_bytes_per_param,
            kv_bytes=self.kv_bytes_per_element,
            format=format_of(self.weights, self.weight_bytes_per_param),
            weights=self.weights,
            load=self.load,
            moe_execution=self.moe_execution,
        )

    @cached_property
    def _per_tensor_card(self) -> Card:
        return replace(self._card, per_tensor=True)

    def _card_of(self, model: Architecture) -> Card:
        return self._per_tensor_card if model.quantised.scale_per_tensor else self._card

    def unmeasured(self, model: Architecture) -> list[str]:
        """The parts of a model whose matrices are priced as scaled bf16 kernels: nobody measured those of their format."""
        card = self._card_of(model)
        if card.format == "bf16":
            return []
        products = (op for op in operations(model) if isinstance(op, Product) and some(op.times))
        held = {op.part for op in products if share_taken(model.quantised, op.part) > 0.0}
        latent, pair = is_latent(model) and "attention" in held, None
        if latent:
            wanted = (*LATENT.get(card.format, ()), BF16)
            pair = nearest_latent(*self.tables, "generation", wanted, card.cache_type)
        dense = held & {"dense_ffn", "shared_experts", "lm_head", *(() if is_latent(model) else ("attention",))}
        parts = {
            "latent attention": pair is not None and pair[0] == BF16,
            "matrix products": dense and card.product_kind(with_experts=some(model.n_moe_layers)) == BF16,
            "experts": "experts" in held and card.expert_kind == BF16,
        }
        return [name for name, scaled in parts.items() if scaled]

    def pass_s(self, model: Architecture, a: Pass) -> FloatArray:
        """Seconds of a pass: its operations, moved activations and messages, or the host's."""
        whole, a, card = a, a.busiest_rank, self._card_of(model)
        gpus, sparse = np.asarray(a.gpus, dtype=np.float64), np.asarray(model.n_moe_layers) > 0
        latent, module = is_latent(model), sparse_module(card, model)
        asked: dict[bool, list[Asked]] = {False: [], True: []}  # whether of the LM head, which meets fewer tokens
        total_s: Real = 0.0
        for op in operations(model, gpus):
            if isinstance(op, Attention):
                total_s = total_s + attention_s(card, op, model, module, a)
            elif isinstance(op, State):
                total_s = total_s + state_s(card, op, a)
            elif isinstance(op, Indexer) or (isinstance(op, Product) and op.part == "indexer"):
                if module is None:  # else it is part of the measured one
                    total_s = total_s + card.analytic.operation_s(op, a)
            elif isinstance(op, Product) and op.part != "experts" and some(op.times):
                if not (latent and op.part == "attention"):  # whose kernels hold their own
                    asked[op.part == "lm_head"].append((op, card.share(model, op.part)))
                if op.closes and op.part in ("dense_ffn", "shared_experts"):
                    width = np.maximum(op.k, 1.0)
                    moved_s = card.elementwise_s(a.tokens * (model.ffn_matrices * width * ACTIVATION_BYTES))
                    total_s = total_s + op.times * moved_s
        for of_head, tokens in ((False, a.tokens), (True, a.requests)):
            total_s = total_s + card.products_s(asked[of_head], tokens, sparse)
        if np.any(sparse):
            total_s = total_s + experts_s(card, model, whole)
        total_s = total_s + self._moved_s(model, a.tokens) + messages_s(card, model, whole, a)
        if model.qk_norm_full_width:
            total_s = total_s + norm_messages_s(card, model, gpus, a.tokens)
        return np.maximum(total_s, host_s() if self.host_s is None else self.host_s)

    def _moved_s(self, model: Architecture, tokens: Real) -> FloatArray:
        """Norms with their residual additions, two a layer (two reads and two writes each), and the embeddings."""
        row = np.asarray(model.d_model, dtype=np.float64) * ACTIVATION_BYTES
        norms = model.norms_per_layer * np.asarray(model.n_layers, dtype=np.float64) - model.n_layers_without_ffn
        return norms * self._card.elementwise_s(4.0 * tokens * row) + self._card.elementwise_s(tokens * row)
