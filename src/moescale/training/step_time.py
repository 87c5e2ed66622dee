"""The time of one optimiser step of a training run, from its parts, and with it the share of the GPU's peak that a run uses.

Legend: t tensor, p pipeline, e expert, c context, d data parallel, t p c d GPUs in all; M tokens of a micro-batch on a GPU before
t divides its work, m micro-batches a step, v stages a GPU. docs/launch.md says what is counted and what is not; the backward pass of
attention multiplies five times where the forward one does twice (FlashAttention, arXiv 2205.14135), the pipeline's bubble is
(p - 1) / (v m) (arXiv 2104.04473, section 2.2). Constants: catalogue/training.toml.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import lru_cache
from statistics import NormalDist
from typing import Any, Literal

import numpy as np

from moescale import catalogue
from moescale.hardware.gpus import Gpu
from moescale.io.records import record
from moescale.latency import network
from moescale.models.architecture import Architecture
from moescale.models.parameters import active_matmul_params, parts_of, training_flops_per_token
from moescale.training.parallelism import Split, Trainer, first_and_last_stage, layer_elements_per_token, tables_of
from moescale.typing import Real

Precision = Literal["bf16", "fp8"]
ELEMENT = 2.0  # bytes of an activation
TILE = 128.0  # rows of a tile of a grouped product (CUTLASS and Triton's usual one)
GRADIENT_BYTES = 4.0  # reduced in fp32, as both trainers have it by default (catalogue/export.toml)
ADAM_BYTES = 30.0  # a parameter: fp32 gradient read, fp32 weight and two moments read and written, bf16 weight written
NAMES = {
    "compute": "products and activations",
    "attention": "attention",
    "recompute": "recomputed layers",
    "tensor_parallel": "tensor parallel",
    "context_parallel": "context parallel",
    "expert_exchange": "exchange of experts",
    "data_parallel": "data parallel",
    "pipeline_bubble": "pipeline bubble",
    "optimizer": "optimiser",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Seconds of one optimiser step by part, one after another: what other work hides is not in them; of one split, or many."""

    compute_s: Real  # matrix products and what is done to activations
    attention_s: Real
    recompute_s: Real  # layers that run again, with their messages
    tensor_parallel_s: Real
    context_parallel_s: Real
    expert_exchange_s: Real  # dispatch and combine
    data_parallel_s: Real  # FSDP's gathers and scatters, or those of gradients and weights, beyond what compute hides
    pipeline_bubble_s: Real
    optimizer_s: Real
    tokens_per_gpu: Real  # of a step
    model_flops_per_token: float  # matrices and causal attention
    peak_flops_per_s: float  # bf16, as MFU has it also where products are in fp8

    def of(self, i: int) -> StepTime:
        """Those of one of many splits."""
        values = {f.name: np.broadcast_to(getattr(self, f.name), np.shape(self.total_s))[i] for f in fields(self)}
        return StepTime(**{name: float(value) for name, value in values.items()})

    @property
    def total_s(self) -> Any:
        """All parts."""
        return sum(getattr(self, f"{name}_s") for name in NAMES)

    @property
    def tokens_per_s_per_gpu(self) -> Any:
        """Training throughput of one GPU."""
        return self.tokens_per_gpu / self.total_s

    @property
    def mfu(self) -> Any:
        """Model FLOPs over peak bf16 FLOPs."""
        return self.tokens_per_s_per_gpu * self.model_flops_per_token / self.peak_flops_per_s

    @property
    def shares(self) -> dict[str, float]:
        """Each part's share of the step, in the order of the fields."""
        return {name: getattr(self, f"{name}_s") / self.total_s for name in NAMES}

    def __str__(self) -> str:
        parts = ", ".join(f"{NAMES[name]} {share:.0%}" for name, share in self.shares.items() if share >= 0.005)
        return f"a step takes {self.total_s:.3g} s, {self.mfu:.0%} of peak: {parts}"

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values."""
        return record(self) | {name: getattr(self, name) for name in ("total_s", "tokens_per_s_per_gpu", "mfu")}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepError:
    """How far predicted throughputs of one kind of model lie from published ones that no constant was chosen by."""

    kind: Literal["dense", "moe"]
    geometric_mean: float  # of predicted over measured
    spread: float  # a factor: exp of the standard deviation of the logarithm
    within_25: float  # share with a ratio from 0.8 to 1.25
    runs: int
    fp8_gain: float | None = None  # predicted gain of fp8 over the measured one, of pairs of published runs
    real_routing: float | None = None  # times the time of forced balance, at most; None: no experts

    @property
    def _ln_ratio(self) -> NormalDist:
        return NormalDist(math.log(self.geometric_mean), math.log(self.spread))

    def kept(self, times: float) -> float:
        """The chance that a run takes at most so many times its predicted time, as published runs spread around predictions."""
        return self._ln_ratio.cdf(math.log(times)) if times > 0.0 else 0.0

    def times(self, chance: float) -> float:
        """The times of its predicted time that a run takes at most with a chance."""
        return math.exp(self._ln_ratio.inv_cdf(chance))


def step_error(model: Architecture) -> StepError:
    """The error of `step_time` for models of this kind (catalogue/training.toml)."""
    kind = "moe" if float(model.n_moe_layers) else "dense"
    k = _constants()
    forced, real = (float(k["routing"][name]) for name in ("forced_tflops", "real_tflops"))
    return StepError(kind=kind, **k["error"][kind], real_routing=forced / real if kind == "moe" else None)


def _constants() -> dict[str, Any]:
    return catalogue.read("training.toml")["step"]


@lru_cache(maxsize=8)  # a choice asks hundreds of times about one model
def _facts(model: Architecture, sequence_tokens: int) -> tuple[float, float, float, float, float]:
    """Of a token its FLOPs, the parameters that it is multiplied with, of them those of routed experts, and the elements that the backward pass keeps of it; and all parameters of routed experts."""
    parts, moe_layers = parts_of(model), float(model.n_moe_layers)
    plain, moe = (layer_elements_per_token(model, moe=moe) for moe in (False, moe_layers > 0))
    elements = (float(model.n_layers) - moe_layers) * plain + moe_layers * moe
    flops = float(training_flops_per_token(model, sequence_tokens=float(sequence_tokens)))
    return flops, float(active_matmul_params(model)), float(parts.active_experts), elements, float(parts.experts)


def products_flops_per_s(gpu: Gpu, precision: Precision) -> float:
    """What large products keep up: a share of the data sheet's FLOP/s, of the GPU's own benchmarks or of its system's; bf16 without fp8."""
    fp8 = gpu.fp8_flops_per_s if precision == "fp8" else None
    shares = _constants()["arithmetic" if fp8 is None else "arithmetic_fp8"]
    share = gpu.arithmetic_share or float(shares.get(gpu.silicon_system, shares["default"]))
    return share * (fp8 or gpu.bf16_flops_per_s)


def step_time(
    model: Architecture,
    *,
    batch_sequences: int,
    sequence_tokens: int,
    gpu: Gpu,
    split: Split,
    trainer: Trainer,
    precision: Precision = "bf16",
    stages_per_gpu: int = 1,
    context: int = 1,
    exchange_hidden: bool = False,
) -> StepTime:
    """Seconds of one step of `batch_sequences` over the GPUs of `split`, by part; of each of many splits.

    `stages_per_gpu` interleaves the pipeline, `context` GPUs share a sequence (split.gpus then holds t p c d), `exchange_hidden`
    lets another micro-batch's work hide the exchange of experts. A GPU without fp8 arithmetic multiplies in bf16.
    """
    k = _constants()
    flops, active, routed, elements, experts = _facts(model, sequence_tokens)
    t, p, e, d = split.tensor, split.pipeline, split.expert, split.data
    rate, layer_rate = products_flops_per_s(gpu, "bf16"), products_flops_per_s(gpu, precision)
    fp8 = precision == "fp8" and gpu.fp8_flops_per_s is not None
    memory = gpu.memory_bandwidth_bytes_per_s * float(k["memory_share"])
    tokens = split.micro_batch * sequence_tokens / context
    micro_batches = batch_sequences / (d * split.micro_batch)
    layers, moe_layers = float(model.n_layers), float(model.n_moe_layers)

    # One micro-batch's forward pass through the whole model, on GPUs that hold 1 / t of each layer.
    head = float(model.vocab_size * model.d_model)
    dense = active - routed - head
    rows = tokens * float(model.top_k) * e / (t * float(model.n_experts))  # of one expert's products
    filled = (rows + TILE / 2) / rows if moe_layers else 1.0
    products = 2.0 * tokens / t * (dense + routed * filled / float(k["grouped_share"])) / layer_rate
    weight_bytes = 1.0 if fp8 else 2.0
    weights = weight_bytes * (dense / t + experts / e) / memory
    passes = float(k["activation_passes"]) + (float(k["fp8_passes"]) if fp8 else 0.0)
    activations = passes * ELEMENT * elements * tokens / t / memory  # forward and backward
    overhead = layers * float(k["layer_overhead_s"]) + moe_layers * float(k["moe_layer_overhead_s"])  # likewise
    vocabulary = 6.0 * tokens / t * head / rate + 2.0 * 8.0 * tokens * float(model.vocab_size) / t / memory
    layer_work = 3.0 * (products + weights) + activations + overhead

    attention_share = float(k["attention"].get(gpu.silicon_system, k["attention"]["default"]))
    attention = (flops - 6.0 * active) / 3.0 * tokens / t / (gpu.bf16_flops_per_s * attention_share)

    # Messages of a micro-batch, in one direction.
    hidden_state = ELEMENT * tokens * float(model.d_model)
    tensor = layers * 4.0 * _gather_s(gpu, t, hidden_state)
    exchange = moe_layers * 2.0 * _exchange_s(gpu, e, tokens / t, model)
    keys = ELEMENT * tokens * context * 2.0 * float(model.n_kv_heads * model.head_dim) / t
    sequence = np.maximum(0.0, layers * 3.0 * _gather_s(gpu, t * context, keys) - 3.5 * attention) * (context > 1)

    forward = (products + weights) + activations / 3.0 + overhead / 3.0 + attention
    if exchange_hidden:
        exchange = _exposed_s(exchange, (layer_work + 3.5 * attention) / 2.0)
    again, again_messages = (np.where(split.recompute, each, 0.0) for each in (forward, tensor + exchange))

    # A pipeline goes at the pace of its slowest stage, and the last one holds the output layer. Several stages a GPU of layers that
    # do not divide are laid out evenly.
    first, last = first_and_last_stage(model, p)
    whole_stages = np.greater(last, 0) & ((stages_per_gpu == 1) | (layers % p == 0))
    per_layer = (layer_work + 3.5 * attention + again + again_messages + 2.0 * (tensor + exchange) + sequence) / layers
    pace = np.maximum(first * per_layer, last * per_layer + vocabulary)
    uneven = np.maximum(0.0, p * pace - layers * per_layer - vocabulary) * ((p > 1) & whole_stages)
    per_step = micro_batches / p
    compute_s = (layer_work + vocabulary + uneven) * per_step
    attention_s = 3.5 * attention * per_step
    recompute_s = (again + again_messages) * per_step
    tensor_s, exchange_s, context_s = 2.0 * tensor * per_step, 2.0 * exchange * per_step, sequence * per_step
    busy = compute_s + attention_s + recompute_s + tensor_s + exchange_s + context_s
    bubble_s = busy * (p - 1) / (stages_per_gpu * micro_batches)

    # Weights are gathered in bf16, gradients reduced in fp32; what lies beyond the work that hides them.
    group = d * context
    copies = np.maximum(1.0, t * group / e)
    whole = dense / (p * t) + head / t * tables_of(model, p)
    own = experts / (p * e)
    each = (compute_s + attention_s + recompute_s) / micro_batches
    gather, scatter = (
        _gather_s(gpu, group, element * whole) + _gather_s(gpu, copies, element * own)
        for element in (ELEMENT, GRADIENT_BYTES)
    )
    # Once a step, beside the first micro-batch's forward pass and the last one's backward pass; where all state is split, every
    # micro-batch gathers twice, and scatters while it gathers.
    full = trainer.states == "full"
    beside_backward = gather + scatter if full else scatter
    exposed = _exposed_s(gather, each / 3.0) + _exposed_s(beside_backward, each * 2.0 / 3.0)
    return StepTime(
        compute_s=compute_s,
        attention_s=attention_s,
        recompute_s=recompute_s,
        tensor_parallel_s=tensor_s,
        context_parallel_s=context_s,
        expert_exchange_s=exchange_s,
        data_parallel_s=micro_batches * exposed if full else exposed,
        pipeline_bubble_s=bubble_s,
        optimizer_s=ADAM_BYTES * (whole / group + own / copies) / memory,
        tokens_per_gpu=batch_sequences * sequence_tokens / (t * p * context * d),
        model_flops_per_token=flops,
        peak_flops_per_s=gpu.bf16_flops_per_s,
    )


def _gather_s(gpu: Gpu, gpus: Real, message_bytes: Real) -> Real:
    """An all-gather, or a reduce-scatter, of so many bytes in all."""
    k, near = _constants(), np.minimum(gpus, gpu.gpus_per_server)
    inside = message_bytes * (near - 1) / near / (gpu.interconnect_bytes_per_s * float(k["link_share"]))
    return inside + network.gather_s(gpu, gpus, message_bytes / float(k["network_share"]))


def _exchange_s(gpu: Gpu, gpus: Real, tokens: Real, model: Architecture) -> Real:
    """Dispatch or combine of one layer: every token's state to each of its experts, once to each server that holds some."""
    k, top_k = _constants(), float(model.top_k)
    state = ELEMENT * tokens * float(model.d_expert_model or model.d_model)
    inside = state * top_k * (1.0 - 1.0 / gpus) / (gpu.interconnect_bytes_per_s * float(k["link_share"]))
    count = network.servers(gpu, gpus)
    reached = (count - 1.0) * (1.0 - (1.0 - 1.0 / count) ** top_k)  # other servers that a token's experts are on
    across = state * reached / (gpu.network_bytes_per_s * float(k["network_share"])) + network.HOP_S * (count > 1)
    return np.maximum(inside, across)  # what arrives is handed on while the rest is under way


def _exposed_s(message_s: Real, work_s: Real) -> Real:
    """What a message adds to the work beside it: what is longer, and the part of the GPU that it takes from the work."""
    return np.maximum(0.0, message_s - work_s) + float(_constants()["contention"]) * np.minimum(message_s, work_s)
