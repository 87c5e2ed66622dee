"""How many GPUs a training run takes and how it is split over them, from memory, with the arithmetic in words.

Legend: t tensor, p pipeline, e expert, d data parallel; t p d GPUs in all, the experts' GPUs drawn from the t d of a
pipeline stage. s tokens a sequence, b sequences a micro-batch. Experts are never split by t (expert tensor parallel 1).
Activations are counted tensor by tensor as Korthikanti et al. do (arXiv 2205.05198, section 4), with bf16, no dropout, and
attention that keeps no s x s scores; sequence parallelism splits all of them by t. Constants: catalogue/export.toml.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from functools import cache, lru_cache
from typing import Any, Literal

from moescale import catalogue
from moescale.errors import InfeasibleError
from moescale.hardware.gpus import Gpu
from moescale.models.architecture import Architecture
from moescale.models.flops import training_flops_per_token
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

    def to_dict(self) -> dict[str, object]:
        """JSON-ready values."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


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

    def to_dict(self) -> dict[str, object]:
        """JSON-ready values."""
        record: dict[str, object] = {f.name: getattr(self, f.name) for f in fields(self)}
        return record | {"total_bytes": self.total_bytes, "arithmetic": list(self.arithmetic)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The split that was chosen, its memory, and how long the run takes."""

    gpu: str
    split: Split
    memory: Memory
    training_flops: float
    mfu: float
    days: float
    why: str

    def to_dict(self) -> dict[str, object]:
        """JSON-ready values."""
        plain = {name: getattr(self, name) for name in ("gpu", "training_flops", "mfu", "days", "why")}
        return {**plain, "split": self.split.to_dict(), "memory": self.memory.to_dict()}


@cache
def _facts() -> dict[str, Any]:
    return catalogue.read("export.toml")


@lru_cache(maxsize=8)  # a search asks thousands of times about one model
def _parts(model: Architecture) -> ParameterCount:
    return count_parameters(model)


def layer_elements_per_token(model: Architecture, *, moe: bool, expert_imbalance: float = 1.0) -> float:
    """Elements that the backward pass of one layer keeps for a token, before any splitting.

    Inputs of both norms; of attention its input, queries, keys and values (with the norm of heads: also before it) and the
    output of the heads; of an FFN its input and one tensor of the FFN's width for each of its matrices. Where the layer
    holds experts, the latter top_k times, with the tokens as sent and as returned, and fp32 scores of every expert.
    """
    h, queries, keys = (
        float(model.d_model),
        float(model.n_heads * model.head_dim),
        float(model.n_kv_heads * model.head_dim),
    )
    attention = 2 * h + h + 2 * queries + 2 * keys + (queries + keys if model.qk_norm else 0.0)
    if not moe:
        return attention + h + model.ffn_matrices * float(model.d_ffn)
    routed = float(model.top_k) * (2 * h + model.ffn_matrices * float(model.d_expert)) * expert_imbalance
    return attention + h + 2 * float(model.n_experts) + routed


def memory_of(
    model: Architecture, recipe: Recipe, gpu: Gpu, split: Split, trainer: Trainer, *, in_words: bool = True
) -> Memory:
    """Bytes of training on the fullest GPU of a split; with `in_words` the arithmetic beside them."""
    facts = _facts()
    state, kept, choice = facts["states"][trainer.states], facts["activations"], facts["choice"]
    t, p, e, d = split.tensor, split.pipeline, split.expert, split.data
    parts = _parts(model)
    table = float(model.vocab_size * model.d_model)  # of the two: input on the first stage, output on the last
    tables = (2 if p == 1 else 1) * table / t
    whole = float(parts.norms + parts.router) / p  # on every GPU of a stage
    dense = float(parts.attention + parts.dense_ffn) / (p * t) + whole + tables
    experts = float(parts.experts) / (p * e)
    expert_copies = t * d // e

    def held(bytes_per_param: float, split_over_data: bool) -> float:
        shares = (d, expert_copies) if split_over_data else (1, 1)
        return bytes_per_param * (dense / shares[0] + experts / shares[1])

    fully = trainer.states == "full"
    weights = held(state["weights"], fully)
    gradients = held(state["gradients"], fully)
    optimizer = held(state["optimizer"], True)
    blocks = int(model.n_layers)
    moe_blocks = int(model.n_moe_layers)
    dense_block = float(parts.attention) / blocks / t + (
        float(parts.dense_ffn) / (blocks - moe_blocks) / t if blocks > moe_blocks else 0.0
    )
    moe_block = float(parts.attention) / blocks / t + float(parts.experts) / moe_blocks / e if moe_blocks else 0.0
    block = max(dense_block, moe_block)
    gathered = float(state["gathered"]) * (state["gathered_blocks"] * block + (table / t if fully else 0.0))
    gathered += float(state["block_gradients"]) * (block + table / t)

    element = float(kept["bytes_per_element"])
    micro_tokens = split.micro_batch * recipe.sequence_tokens
    imbalance = float(choice["expert_imbalance"]) if e > 1 else 1.0
    per_dense = element * layer_elements_per_token(model, moe=False)
    per_moe = element * layer_elements_per_token(model, moe=True, expert_imbalance=imbalance) if moe_blocks else 0.0
    in_flight = min(p, split.accumulation)
    layers = (blocks - moe_blocks) / p, moe_blocks / p
    if split.recompute:
        kept_per_token = in_flight * sum(layers) * element * float(model.d_model) + max(per_dense, per_moe)
    else:
        kept_per_token = in_flight * (layers[0] * per_dense + layers[1] * per_moe)
    activation = micro_tokens * kept_per_token / t
    logits = float(state["logits"]) * micro_tokens * float(model.vocab_size) / t / trainer.logit_chunks
    if (
        p > 1 and in_flight > 1
    ):  # the last stage, which holds the logits, has one micro-batch in flight, the first holds p
        logits = max(0.0, logits - activation * (in_flight - 1) / in_flight)

    fraction = float(choice["memory_fraction"])
    result = Memory(
        weights_bytes=weights,
        gradients_bytes=gradients,
        optimizer_bytes=optimizer,
        gathered_bytes=gathered,
        activation_bytes=activation,
        logit_bytes=logits,
        available_bytes=gpu.memory_bytes * fraction,
        arithmetic=(),
    )
    if not in_words:
        return result
    over = f" / {d} data parallel" if d > 1 else ""
    over_experts = f" / {expert_copies} copies" if expert_copies > 1 else ""
    both, one = f"{format_count(dense)}{over}", format_count(dense)
    where = f"tensor {t}, pipeline {p}, embedding tables on {'one GPU' if p == 1 else 'the first and last stage'}"
    share = f"{format_count(dense)} ({where})"
    if moe_blocks:
        both, one = (
            f"{both} + {format_count(experts)} of experts{over_experts}",
            f"{one} + {format_count(experts)} of experts",
        )
        share = (
            f"{format_count(dense)} outside of experts ({where}) and {format_count(experts)} of "
            f"{format_count(float(parts.experts))} in experts (pipeline {p}, expert {e})"
        )
    lines = [
        f"parameters {format_count(float(parts.total))}: a GPU's share is {share}",
        f"weights {state['weights']} bytes x ({both if fully else one}) = {format_bytes(weights)}",
        f"gradients {state['gradients']} bytes x ({both if fully else one}) = {format_bytes(gradients)}",
        f"optimiser {state['optimizer']} bytes x ({both}) = {format_bytes(optimizer)}",
    ]
    if gathered:
        lines.append(
            f"gathered while a block runs: {state['gathered_blocks']} blocks of {format_count(block)} and the output table in "
            f"bf16, gradients of one of each in bf16 and fp32 = {format_bytes(gathered)}"
        )
    with_experts = f" + {layers[1]:g} with experts x {per_moe:,.0f}" if moe_blocks else ""
    how = (
        f"({in_flight} in flight x {sum(layers):g} layers x {element:g} x {model.d_model:g} + {max(per_dense, per_moe):,.0f} of the "
        "layer that runs again)"
        if split.recompute
        else f"{in_flight} in flight x ({layers[0]:g} layers x {per_dense:,.0f}{with_experts})"
    )
    lines += [
        f"activations {micro_tokens:,} tokens x {how} bytes a token / tensor {t} = {format_bytes(activation)}"
        + (f"; experts at {imbalance:g} times their share" if e > 1 and moe_blocks else ""),
        f"logits {state['logits']} bytes x {micro_tokens:,} tokens x {model.vocab_size:g} / tensor {t}"
        + (f" / {trainer.logit_chunks} chunks" if trainer.logit_chunks > 1 else "")
        + (" beyond what the first stage holds" if p > 1 and in_flight > 1 else "")
        + f" = {format_bytes(logits)}",
    ]
    lines.append(
        f"total {format_bytes(result.total_bytes)} of {fraction:.0%} of {format_bytes(gpu.memory_bytes)} ({gpu.name}) = "
        f"{format_bytes(result.available_bytes)}"
    )
    return replace(result, arithmetic=tuple(lines))


def splits(model: Architecture, recipe: Recipe, gpus: int, trainer: Trainer) -> Iterable[Split]:
    """Every way to split a run over `gpus` GPUs, most wanted first, whether it fits or not.

    Wanted is, in this order: no recomputation, few GPUs a replica (t p), few stages, experts within a server, few expert
    groups, large micro-batches.
    """
    choice = _facts()["choice"]
    server, per_stage = int(choice["gpus_per_server"]), int(choice["micro_batches_per_stage"])
    most = max(1, int(choice["micro_batch_tokens"]) // recipe.sequence_tokens)
    heads, kv_heads, n_layers = int(model.n_heads), int(model.n_kv_heads), int(model.n_layers)
    period = n_layers // int(model.n_moe_layers) if model.n_moe_layers else 1
    groups = int(model.n_experts) if trainer.expert and model.n_moe_layers else 1
    found: list[Split] = []
    for t in range(1, (min(server, gpus) if trainer.tensor else 1) + 1):
        if heads % t or kv_heads % t or gpus % t or recipe.sequence_tokens % t:
            continue
        for p in range(1, (min(n_layers, gpus // t) if trainer.pipeline else 1) + 1):
            if n_layers % p or (n_layers // p) % period or gpus % (t * p):
                continue
            d = gpus // (t * p)
            if recipe.batch_sequences % d:
                continue
            rank = recipe.batch_sequences // d  # sequences of a step on each
            for e in range(1, groups + 1):
                if groups % e or (t * d) % e:
                    continue
                for b in range(1, min(rank, most) + 1):
                    if rank % b or (p > 1 and rank // b < per_stage * p):
                        continue
                    found += [
                        Split(
                            gpus=gpus,
                            tensor=t,
                            pipeline=p,
                            expert=e,
                            data=d,
                            micro_batch=b,
                            accumulation=rank // b,
                            recompute=recompute,
                        )
                        for recompute in (False, True)
                    ]
    return sorted(
        found,
        key=lambda s: (s.recompute, s.tensor * s.pipeline, s.pipeline, s.expert > server, s.expert, -s.micro_batch),
    )


def gpu_counts() -> list[int]:
    """The GPU counts that are tried where none is asked for: 1, 2, 4, 8, 16, 24, 32, 48, 64 .."""
    powers = [2**k for k in range(MOST_GPUS.bit_length())]
    return sorted(count for count in {*powers, *(3 * power for power in powers if power >= 8)} if count <= MOST_GPUS)


def _first_fit(
    model: Architecture, recipe: Recipe, gpu: Gpu, gpus: int, trainer: Trainer
) -> tuple[tuple[Split, Memory] | None, Memory | None]:
    """The most wanted split that fits, and the memory of the one that needs least."""
    least: Memory | None = None
    for split in splits(model, recipe, gpus, trainer):
        memory = memory_of(model, recipe, gpu, split, trainer, in_words=False)
        if memory.total_bytes <= memory.available_bytes:
            return (split, memory_of(model, recipe, gpu, split, trainer)), memory
        if least is None or memory.total_bytes < least.total_bytes:
            least = memory
    return None, least


def smallest_count(model: Architecture, recipe: Recipe, gpu: Gpu, trainer: Trainer, *, least: int = 1) -> int | None:
    """The smallest of `gpu_counts` from `least` up whose GPUs hold the run; None where no count does."""
    return next(
        (count for count in gpu_counts() if count >= least and _first_fit(model, recipe, gpu, count, trainer)[0]), None
    )


def choose(
    model: Architecture, recipe: Recipe, gpu: Gpu, trainer: Trainer, *, mfu: float, gpus: int | None = None
) -> Choice:
    """The split of a run over `gpus` GPUs; without a number, over the smallest that holds it and ends within 30 days.

    Where no count does, the largest is taken that the batch keeps busy. `mfu` is the share of the GPU's peak that the run
    reaches. Raises InfeasibleError where nothing fits, with the smallest number of GPUs that would.
    """
    choice = _facts()["choice"]
    flops = recipe.tokens * float(
        training_flops_per_token(model, counted="matmul", sequence_tokens=float(recipe.sequence_tokens))
    )
    seconds = flops / (gpu.bf16_flops_per_s * mfu)
    reasons = ["the number asked for"]
    if gpus is None:
        in_time = math.ceil(seconds / (float(choice["days"]) * 86400))
        gpus = smallest_count(model, recipe, gpu, trainer, least=in_time)
        reasons = [f"the smallest number that holds the run and ends within {choice['days']} days"]
    if gpus is None:
        fitting = (n for n in reversed(gpu_counts()) if _first_fit(model, recipe, gpu, n, trainer)[0])
        gpus = next(fitting, recipe.batch_sequences)
        reasons = [
            f"the largest number that a batch of {recipe.batch_sequences} sequences keeps busy; {choice['days']} days take more"
        ]
    found, least = _first_fit(model, recipe, gpu, gpus, trainer)
    if found is None:
        fits = [count for count in gpu_counts() if _first_fit(model, recipe, gpu, count, trainer)[0]]
        if least is None:
            near = min(fits, key=lambda count: abs(math.log(count / gpus)), default=None)
            why = f"no split of them divides heads, layers and the batch of {recipe.batch_sequences} sequences"
        else:
            near = next((count for count in fits if count > gpus), None)
            why = f"it takes {format_bytes(least.total_bytes)} of each, and {format_bytes(least.available_bytes)} may be used"
        raise InfeasibleError(
            f"{gpus} x {gpu.name} cannot train this model: {why}",
            nearest=None if near is None else f"{near} GPU{'s' if near > 1 else ''}",
            next_step="give that number to --train-gpus"
            if near is not None
            else "take a GPU with more memory (--train-gpu), or export for a trainer that splits models (megatron)",
        )
    split, memory = found
    modelled = split.tensor * split.pipeline > 1
    reasons.append("as few GPUs a replica as can be" if modelled else "data parallel alone holds it")
    if split.expert > 1:
        reasons.append("experts apart, as they do not fit beside each other")
    if split.recompute:
        reasons.append("layers run again in the backward pass, as their activations do not fit")
    return Choice(
        gpu=gpu.name,
        split=split,
        memory=memory,
        training_flops=flops,
        mfu=mfu,
        days=seconds / gpus / 86400,
        why="; ".join(reasons),
    )
