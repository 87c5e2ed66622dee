"""Ways to split a training run over GPUs, and the memory that each takes, with the arithmetic in words.

Legend: t tensor, p pipeline, e expert, d data parallel; t p d GPUs in all, the experts' GPUs drawn from the t d of a
pipeline stage. s tokens a sequence, b sequences a micro-batch. Experts are never split by t (expert tensor parallel 1).
Activations are counted tensor by tensor as Korthikanti et al. do (arXiv 2205.05198, section 4), with bf16, no dropout, and
attention that keeps no s x s scores; sequence parallelism splits all of them by t. Constants: catalogue/export.toml.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any, Literal

from moescale import catalogue
from moescale.hardware.gpus import Gpu
from moescale.io.records import record
from moescale.models.architecture import Architecture
from moescale.models.parameters import ParameterCount, count_parameters
from moescale.models.recipe import Recipe
from moescale.units import format_bytes, format_count

States = Literal["full", "optimizer"]  # what data-parallel GPUs split: all training state, or the optimiser's alone
MOST_GPUS = 2**17


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainer:
    """What of a training program decides memory: what it splits, and which sizes it can use."""

    states: States
    pipeline: bool  # whether it is given pipeline stages
    tensor: bool
    expert: bool = True
    logit_chunks: int = 1  # the output layer runs on so many parts of a sequence, one after another


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Sizes of one run; `data` counts GPUs that see different sequences, `expert` divides tensor x data."""

    gpus: int
    tensor: int
    pipeline: int
    expert: int
    data: int
    micro_batch: int  # sequences a GPU sees at once
    accumulation: int  # micro-batches a step
    recompute: bool  # whether each layer runs again in the backward pass


def stages_of(model: Architecture, pipeline: int) -> tuple[int, ...] | None:
    """The layers of each of so many stages, as even as whole layers go, the fuller ones first; None where they do not suffice.

    A stage holds whole periods of layers with and without experts; the last one also holds the output layer.
    """
    layers, moe = int(model.n_layers), int(model.n_moe_layers)
    period = layers // moe if moe else 1
    least, more = divmod(layers // period, pipeline)
    return (period * (least + 1),) * more + (period * least,) * (pipeline - more) if least else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes on the fullest GPU, and how each number comes about."""

    weights_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    gathered_bytes: float
    activation_bytes: float
    logit_bytes: float
    available_bytes: float
    arithmetic: tuple[str, ...]

    @property
    def total_bytes(self) -> float:
        """All of it."""
        parts = (self.weights_bytes, self.gradients_bytes, self.optimizer_bytes, self.gathered_bytes)
        return sum(parts) + self.activation_bytes + self.logit_bytes

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values."""
        return record(self) | {"total_bytes": self.total_bytes}


@cache
def _facts() -> dict[str, Any]:
    return catalogue.read("export.toml")


@lru_cache(maxsize=8)  # a search asks thousands of times about one model
def parts_of(model: Architecture) -> ParameterCount:
    """Parameters of a model by part."""
    return count_parameters(model)


def layer_elements_per_token(model: Architecture, *, moe: bool, expert_imbalance: float = 1.0) -> float:
    """Elements that the backward pass of one layer keeps for a token, before any splitting.

    Inputs of both norms; of attention its input, queries, keys and values (with the norm of heads: also before it) and the
    output of the heads; latent attention keeps its compressed queries, keys and values before and after their norm, too. Of
    an FFN its input and one tensor of the FFN's width for each of its matrices. Where the layer holds experts, the latter
    top_k times, with the tokens as sent and as returned, once for the shared experts, and fp32 scores of every expert.
    """
    h = float(model.d_model)
    queries, keys = (float(heads * model.head_dim) for heads in (model.n_heads, model.n_kv_heads))
    values, outputs = (
        float(heads * (model.v_head_dim or model.head_dim)) for heads in (model.n_kv_heads, model.n_heads)
    )
    attention = 2 * h + h + queries + keys + values + outputs + (queries + keys if model.qk_norm else 0.0)
    attention += 2 * float(model.q_lora_rank + model.kv_lora_rank) + float(model.qk_rope_head_dim)
    if not moe:
        return attention + h + model.ffn_matrices * float(model.d_ffn)
    routed = float(model.top_k) * (2 * h + model.ffn_matrices * float(model.d_expert)) * expert_imbalance
    shared = model.ffn_matrices * float(model.d_shared_expert)
    return attention + h + 2 * float(model.n_experts) + routed + shared


@lru_cache(maxsize=16)  # as parts_of
def _kept_bytes(model: Architecture, imbalance: float) -> tuple[float, float]:
    """Bytes that a layer keeps for a token: one without experts, one with them."""
    element = float(_facts()["activations"]["bytes_per_element"])
    with_experts = layer_elements_per_token(model, moe=True, expert_imbalance=imbalance) if model.n_moe_layers else 0.0
    return element * layer_elements_per_token(model, moe=False), element * with_experts


@dataclass(frozen=True, slots=True, kw_only=True)
class _Load:
    """What the fullest GPU of a split holds and keeps, before its bytes."""

    dense: float  # parameters outside of experts
    experts: float  # parameters in experts
    copies: int  # of each expert over the GPUs
    block: float  # parameters of the larger kind of block
    table: float  # parameters of an embedding table
    micro_tokens: int
    in_flight: int  # micro-batches whose activations are kept
    layers: tuple[float, float]  # of a stage: without and with experts
    per_layer: tuple[float, float]  # bytes that one keeps for a token
    imbalance: float  # tokens of the busiest GPU's experts over their share


def _load_of(model: Architecture, recipe: Recipe, split: Split) -> _Load:
    facts, parts = _facts(), parts_of(model)
    t, p, e = split.tensor, split.pipeline, split.expert
    stages = stages_of(model, p)
    share = stages[0] / float(model.n_layers) if stages else 1.0 / p  # of the layers, on the fullest stage
    table = float(model.vocab_size * model.d_model)  # of the two: input on the first stage, output on the last
    whole = float(parts.norms + parts.router) * share  # on every GPU of a stage
    blocks, moe_blocks = int(model.n_layers), int(model.n_moe_layers)
    plain_blocks = blocks - moe_blocks
    attention = float(parts.attention) / blocks / t
    dense_block = attention + (float(parts.dense_ffn) / plain_blocks / t if plain_blocks else 0.0)
    moe_block = attention + float(parts.experts / e + parts.shared_experts / t) / moe_blocks if moe_blocks else 0.0
    imbalance = float(facts["choice"]["expert_imbalance"]) if e > 1 else 1.0
    return _Load(
        dense=float(parts.attention + parts.dense_ffn + parts.shared_experts) * share / t
        + whole
        + (2 if p == 1 else 1) * table / t,
        experts=float(parts.experts) * share / e,
        copies=t * split.data // e,
        block=max(dense_block, moe_block),
        table=table,
        micro_tokens=split.micro_batch * recipe.sequence_tokens,
        in_flight=min(p, split.accumulation),
        layers=(plain_blocks * share, moe_blocks * share),
        per_layer=_kept_bytes(model, imbalance),
        imbalance=imbalance,
    )


def memory_of(
    model: Architecture, recipe: Recipe, gpu: Gpu, split: Split, trainer: Trainer, *, in_words: bool = True
) -> Memory:
    """Bytes of training on the fullest GPU of a split; with `in_words` the arithmetic beside them."""
    facts, load = _facts(), _load_of(model, recipe, split)
    state, t = facts["states"][trainer.states], split.tensor
    fully = trainer.states == "full"

    def held(bytes_per_param: float, split_over_data: bool) -> float:
        shares = (split.data, load.copies) if split_over_data else (1, 1)
        return bytes_per_param * (load.dense / shares[0] + load.experts / shares[1])

    gathered = float(state["gathered"]) * (state["gathered_blocks"] * load.block + (load.table / t if fully else 0.0))
    gathered += float(state["block_gradients"]) * (load.block + load.table / t)
    (plain_layers, moe_layers), (per_dense, per_moe) = load.layers, load.per_layer
    if split.recompute:
        inputs = float(facts["activations"]["bytes_per_element"]) * float(model.d_model)
        kept_per_token = load.in_flight * sum(load.layers) * inputs + max(per_dense, per_moe)
    else:
        kept_per_token = load.in_flight * (plain_layers * per_dense + moe_layers * per_moe)
    activation = load.micro_tokens * kept_per_token / t
    logits = float(state["logits"]) * load.micro_tokens * float(model.vocab_size) / t / trainer.logit_chunks
    if load.in_flight > 1:  # the last stage, which holds the logits, keeps one micro-batch, the first all in flight
        logits = max(0.0, logits - activation * (load.in_flight - 1) / load.in_flight)
    memory = Memory(
        weights_bytes=held(state["weights"], fully),
        gradients_bytes=held(state["gradients"], fully),
        optimizer_bytes=held(state["optimizer"], True),
        gathered_bytes=gathered,
        activation_bytes=activation,
        logit_bytes=logits,
        available_bytes=gpu.memory_bytes * float(facts["choice"]["memory_fraction"]),
        arithmetic=(),
    )
    return replace(memory, arithmetic=_arithmetic(model, gpu, split, trainer, load, memory)) if in_words else memory


def _arithmetic(
    model: Architecture, gpu: Gpu, split: Split, trainer: Trainer, load: _Load, memory: Memory
) -> tuple[str, ...]:
    """Each number of a memory and how it comes about, a line each."""
    state, parts, t = _facts()["states"][trainer.states], parts_of(model), split.tensor
    tables = "one GPU" if split.pipeline == 1 else "the first and last stage"
    where = f"tensor {t}, pipeline {split.pipeline}, embedding tables on {tables}"
    one = format_count(load.dense)
    both, share = f"{one}{f' / {split.data} data parallel' if split.data > 1 else ''}", f"{one} ({where})"
    if model.n_moe_layers:
        experts = f" + {format_count(load.experts)} of experts"
        both, one = f"{both}{experts}{f' / {load.copies} copies' if load.copies > 1 else ''}", f"{one}{experts}"
        share = (
            f"{format_count(load.dense)} outside of experts ({where}) and {format_count(load.experts)} of "
            f"{format_count(float(parts.experts))} in experts (pipeline {split.pipeline}, expert {split.expert})"
        )
    split_states = both if trainer.states == "full" else one
    gathered = (
        f"gathered while a block runs: {state['gathered_blocks']} blocks of {format_count(load.block)} and the output table in "
        f"bf16, gradients of one of each in bf16 and fp32 = {format_bytes(memory.gathered_bytes)}"
    )
    chunks = f" / {trainer.logit_chunks} chunks" if trainer.logit_chunks > 1 else ""
    beyond = " beyond what the first stage holds" if load.in_flight > 1 else ""
    usable = f"{float(_facts()['choice']['memory_fraction']):.0%} of {format_bytes(gpu.memory_bytes)} ({gpu.name})"
    return (
        f"parameters {format_count(float(parts.total))}: a GPU's share is {share}",
        f"weights {state['weights']} bytes x ({split_states}) = {format_bytes(memory.weights_bytes)}",
        f"gradients {state['gradients']} bytes x ({split_states}) = {format_bytes(memory.gradients_bytes)}",
        f"optimiser {state['optimizer']} bytes x ({both}) = {format_bytes(memory.optimizer_bytes)}",
        *([gathered] if memory.gathered_bytes else []),
        _activations(model, split, load, memory),
        f"logits {state['logits']} bytes x {load.micro_tokens:,} tokens x {model.vocab_size:g} / tensor {t}{chunks}{beyond}"
        f" = {format_bytes(memory.logit_bytes)}",
        f"total {format_bytes(memory.total_bytes)} of {usable} = {format_bytes(memory.available_bytes)}",
    )


def _activations(model: Architecture, split: Split, load: _Load, memory: Memory) -> str:
    (plain_layers, moe_layers), (per_dense, per_moe) = load.layers, load.per_layer
    if split.recompute:
        element = float(_facts()["activations"]["bytes_per_element"])
        how = (
            f"({load.in_flight} in flight x {sum(load.layers):g} layers x {element:g} x {model.d_model:g} + "
            f"{max(per_dense, per_moe):,.0f} of the layer that runs again)"
        )
    else:
        with_experts = f" + {moe_layers:g} with experts x {per_moe:,.0f}" if model.n_moe_layers else ""
        how = f"{load.in_flight} in flight x ({plain_layers:g} layers x {per_dense:,.0f}{with_experts})"
    uneven = split.expert > 1 and model.n_moe_layers
    return (
        f"activations {load.micro_tokens:,} tokens x {how} bytes a token / tensor {split.tensor} = "
        f"{format_bytes(memory.activation_bytes)}"
        + (f"; experts at {load.imbalance:g} times their share" if uneven else "")
    )


def _divisors(of: int, most: int) -> list[int]:
    return [k for k in range(1, min(of, most) + 1) if of % k == 0]


def splits(model: Architecture, recipe: Recipe, gpus: int, trainer: Trainer) -> Iterable[Split]:
    """Every way to split a run over `gpus` GPUs, most wanted first, whether it fits or not.

    Wanted is, in this order: no recomputation, few GPUs a replica (t p), few stages, experts within a server, few expert
    groups, large micro-batches.
    """
    choice = _facts()["choice"]
    server, per_stage = int(choice["gpus_per_server"]), int(choice["micro_batches_per_stage"])
    most = max(1, int(choice["micro_batch_tokens"]) // recipe.sequence_tokens)
    heads, kv_heads, n_layers = int(model.n_heads), int(model.n_kv_heads), int(model.n_layers)
    groups = int(model.n_experts) if trainer.expert and model.n_moe_layers else 1
    found: list[Split] = []
    for t in _divisors(math.gcd(heads, kv_heads, gpus, recipe.sequence_tokens), server if trainer.tensor else 1):
        for p in _divisors(gpus // t, n_layers if trainer.pipeline else 1):
            d = gpus // (t * p)
            if recipe.batch_sequences % d or stages_of(model, p) is None:
                continue
            rank = recipe.batch_sequences // d  # sequences of a step on each
            for e in _divisors(math.gcd(groups, t * d), groups):
                sizes = {"gpus": gpus, "tensor": t, "pipeline": p, "expert": e, "data": d}
                for b in _divisors(rank, most):
                    if p == 1 or rank // b >= per_stage * p:
                        plain = Split(**sizes, micro_batch=b, accumulation=rank // b, recompute=False)
                        found += [plain, replace(plain, recompute=True)]

    def wanted(s: Split) -> tuple[int, ...]:
        return s.recompute, s.tensor * s.pipeline, s.pipeline, s.expert > server, s.expert, -s.micro_batch

    return sorted(found, key=wanted)


def gpu_counts() -> list[int]:
    """The GPU counts that are tried where none is asked for: 1, 2, 4, 8, 16, 24, 32, 48, 64 .."""
    powers = [2**k for k in range(MOST_GPUS.bit_length())]
    return sorted(count for count in {*powers, *(3 * power for power in powers if power >= 8)} if count <= MOST_GPUS)


def fits(model: Architecture, recipe: Recipe, gpu: Gpu, gpus: int, trainer: Trainer) -> bool:
    """Whether some split of a run over so many GPUs fits in their memory."""
    return any(
        memory.total_bytes <= memory.available_bytes
        for split in splits(model, recipe, gpus, trainer)
        for memory in (memory_of(model, recipe, gpu, split, trainer, in_words=False),)
    )


def smallest_count(model: Architecture, recipe: Recipe, gpu: Gpu, trainer: Trainer, *, least: int = 1) -> int | None:
    """The smallest of `gpu_counts` from `least` up whose GPUs hold the run; None where no count does."""
    counts = (count for count in gpu_counts() if count >= least)
    return next((count for count in counts if fits(model, recipe, gpu, count, trainer)), None)
