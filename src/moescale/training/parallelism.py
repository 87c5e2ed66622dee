"""Ways to split a training run over GPUs, and the memory that each takes; constants: catalogue/export.toml.

Legend: t tensor, p pipeline, e expert, d data parallel; t p d GPUs in all, the experts' GPUs drawn from the t d of a
pipeline stage; b sequences a micro-batch. Experts are never split by t (expert tensor parallel 1).
Activations are counted tensor by tensor as Korthikanti et al. do (arXiv 2205.05198, section 4), with bf16, no dropout, and
attention that keeps no scores; sequence parallelism splits all of them by t.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from moescale import catalogue
from moescale.hardware.gpus import Gpu
from moescale.io.records import record
from moescale.models.architecture import Architecture
from moescale.models.parameters import parts_of
from moescale.models.recipe import Recipe
from moescale.typing import FloatArray, Real

States = Literal["full", "optimizer"]  # what data-parallel GPUs split: all training state, or the optimiser's alone
MOST_GPUS = 2**17
SIZES = ("tensor", "pipeline", "expert", "data", "micro_batch", "accumulation")


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
    """Sizes of one run, or arrays of the sizes of many, of which `split[i]` is one."""

    gpus: int
    tensor: Any
    pipeline: Any
    expert: Any  # divides tensor x data
    data: Any  # GPUs that see different sequences
    micro_batch: Any  # sequences a GPU sees at once
    accumulation: Any  # micro-batches a step
    recompute: Any  # whether each layer runs again in the backward pass

    def __getitem__(self, i: int) -> Split:
        sizes = {name: int(getattr(self, name)[i]) for name in SIZES}
        return Split(gpus=self.gpus, **sizes, recompute=bool(self.recompute[i]))


def _periods(model: Architecture) -> tuple[int, int]:
    """Whole periods of layers with and without experts, of which stages are made: layers of one, 1 where they do not divide, and their number."""
    layers, moe = int(model.n_layers), int(model.n_moe_layers)
    period = layers // moe if moe and layers % (layers // moe) == 0 else 1
    return period, layers // period


def stages_of(model: Architecture, pipeline: int) -> tuple[int, ...] | None:
    """The layers of each of so many stages of whole periods, as even as they go, the fuller ones first; None where they do not suffice."""
    period, number = _periods(model)
    least, more = divmod(number, pipeline)
    return (period * (least + 1),) * more + (period * least,) * (pipeline - more) if least else None


def first_and_last_stage(model: Architecture, pipeline: Real) -> tuple[Real, Real]:
    """The layers of the first and of the last of these stages; the last has none where layers do not suffice."""
    period, number = _periods(model)
    return period * -(-number // pipeline), period * (number // pipeline)


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes on the fullest GPU, of one split, or of many."""

    weights_bytes: Real
    gradients_bytes: Real
    optimizer_bytes: Real
    gathered_bytes: Real  # of blocks that run, and their gradients
    activation_bytes: Real
    logit_bytes: Real
    available_bytes: float

    @property
    def total_bytes(self) -> Any:
        """All of it."""
        states = self.weights_bytes + self.gradients_bytes + self.optimizer_bytes
        return states + self.gathered_bytes + self.activation_bytes + self.logit_bytes

    @property
    def fits(self) -> Any:
        """Whether the GPU holds it."""
        return self.total_bytes <= self.available_bytes

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values."""
        return record(self) | {"total_bytes": self.total_bytes}


@lru_cache(maxsize=32)
def layer_elements_per_token(model: Architecture, *, moe: bool, expert_imbalance: float = 1.0) -> float:
    """Elements that the backward pass of one layer keeps for a token, before any splitting."""
    # Inputs of both norms; of attention its input, queries, keys and values (with the norm of heads: also before it) and the
    # output of the heads; latent attention keeps its compressed queries, keys and values before and after their norm, too.
    h, value_dim = float(model.d_model), float(model.v_head_dim or model.head_dim)
    queries_and_keys = float((model.n_heads + model.n_kv_heads) * model.head_dim)
    kept = 3 * h + queries_and_keys * (2 if model.qk_norm else 1) + float(model.n_heads + model.n_kv_heads) * value_dim
    kept += 2 * float(model.q_lora_rank + model.kv_lora_rank) + float(model.qk_rope_head_dim)
    # Of an FFN its input and a tensor of its width for each of its matrices; of experts so top_k times, with the tokens as sent
    # and as returned, once of the shared ones, and fp32 scores of every expert.
    if not moe:
        return kept + h + model.ffn_matrices * float(model.d_ffn)
    routed = float(model.top_k) * (2 * h + model.ffn_matrices * float(model.d_expert)) * expert_imbalance
    return kept + h + 2 * float(model.n_experts) + routed + model.ffn_matrices * float(model.d_shared_expert)


def memory_of(model: Architecture, recipe: Recipe, gpu: Gpu, split: Split, trainer: Trainer) -> Memory:
    """Bytes of training on the fullest GPU of a split, or of each of many."""
    facts, parts = catalogue.read("export.toml"), parts_of(model)
    state, element = facts["states"][trainer.states], float(facts["activations"]["bytes_per_element"])
    t, p, e, fully = split.tensor, split.pipeline, split.expert, trainer.states == "full"
    layers, moe_layers = float(model.n_layers), float(model.n_moe_layers)
    first, last = first_and_last_stage(model, p)
    share = np.where(np.greater(last, 0), first / layers, 1.0 / p)  # of the layers, on the fullest stage
    table, tables = float(model.vocab_size * model.d_model) / t, tables_of(model, p)

    # Parameters on a GPU; norms and routers are whole on every GPU of a stage.
    split_params = float(parts.attention + parts.dense_ffn + parts.shared_experts) / t
    dense = (split_params + float(parts.norms + parts.router)) * share + tables * table
    experts, copies = float(parts.experts) * share / e, t * split.data // e
    shared_out = dense / split.data + experts / copies

    # The larger kind of block, which FSDP gathers whole.
    plain_layers = layers - moe_layers
    ffn = float(parts.dense_ffn) / plain_layers / t if plain_layers else 0.0
    routed = (float(parts.experts) / e + float(parts.shared_experts) / t) / moe_layers if moe_layers else 0.0
    block = float(parts.attention) / layers / t + np.maximum(ffn, routed)
    gathered = float(state["gathered"]) * (state["gathered_blocks"] * block + (table if fully else 0.0))
    gathered += float(state["block_gradients"]) * (block + table)

    tokens, in_flight = split.micro_batch * recipe.sequence_tokens, np.minimum(p, split.accumulation)
    # What a layer keeps of a token: one without experts, one with them, which are sent more than their share.
    plain, imbalance = layer_elements_per_token(model, moe=False), float(facts["choice"]["expert_imbalance"])
    even, uneven = (layer_elements_per_token(model, moe=moe_layers > 0, expert_imbalance=n) for n in (1.0, imbalance))
    moe = np.where(np.greater(e, 1), uneven, even)
    # Where layers are recomputed, a layer's input, and all of the one that runs again.
    inputs = in_flight * layers * share * float(model.d_model) + np.maximum(plain, moe)
    kept_per_token = np.where(split.recompute, inputs, in_flight * share * (plain_layers * plain + moe_layers * moe))
    activation = tokens * element * kept_per_token / t
    logits = float(state["logits"]) * tokens * float(model.vocab_size) / t / trainer.logit_chunks
    # The last stage, which holds the logits, keeps one micro-batch, the first all in flight.
    logits = np.maximum(0.0, logits - activation * (in_flight - 1) / in_flight)
    return Memory(
        weights_bytes=state["weights"] * (shared_out if fully else dense + experts),
        gradients_bytes=state["gradients"] * (shared_out if fully else dense + experts),
        optimizer_bytes=state["optimizer"] * shared_out,
        gathered_bytes=gathered,
        activation_bytes=activation,
        logit_bytes=logits,
        available_bytes=gpu.memory_bytes * float(facts["choice"]["memory_fraction"]),
    )


def tables_of(model: Architecture, pipeline: Real) -> Real:
    """Embedding tables on a GPU: the first stage has the input's, the last one the output's; those that are tied are one."""
    return 1 + (pipeline == 1) * (not model.tied_embeddings)


def _divisors(of: int, most: int) -> FloatArray:
    numbers = np.arange(1.0, min(of, most) + 1)
    return numbers[of % numbers == 0]


def splits(model: Architecture, recipe: Recipe, gpus: int, trainer: Trainer) -> Split:
    """Every way to split a run over `gpus` GPUs, most wanted first, whether it fits or not.

    Wanted is, in this order: no recomputation, few GPUs a replica (t p), few stages, experts within a server, few expert
    groups, large micro-batches. So the second half are those of the first, with recomputation.
    """
    choice, batch = catalogue.read("export.toml")["choice"], recipe.batch_sequences
    server, per_stage = int(choice["gpus_per_server"]), int(choice["micro_batches_per_stage"])
    most = max(1, int(choice["micro_batch_tokens"]) // recipe.sequence_tokens)
    heads, kv_heads, n_layers = int(model.n_heads), int(model.n_kv_heads), int(model.n_layers)
    groups = int(model.n_experts) if trainer.expert and model.n_moe_layers else 1
    tried = (
        _divisors(math.gcd(heads, kv_heads, gpus, recipe.sequence_tokens), server if trainer.tensor else 1),
        _divisors(gpus, n_layers if trainer.pipeline else 1),
        _divisors(groups, groups),
        _divisors(batch, most),
    )
    t, p, e, b = (size.ravel() for size in np.meshgrid(*tried))
    d = np.maximum(gpus // (t * p), 1)
    accumulation = batch // (d * b)
    whole = (t * p * d == gpus) & (t * d % e == 0) & (d * b * accumulation == batch)
    _, last = first_and_last_stage(model, p)
    found = np.flatnonzero(whole & np.greater(last, 0) & ((p == 1) | (accumulation >= per_stage * p)))
    found = found[np.lexsort([key[found] for key in (-b, e, e > server, p, t * p)])]
    twice = np.tile(found, 2)
    sizes = {name: size[twice] for name, size in zip(SIZES, (t, p, e, d, b, accumulation), strict=True)}
    return Split(gpus=gpus, **sizes, recompute=np.repeat([False, True], found.size))


def gpu_counts() -> list[int]:
    """The GPU counts that are tried where none is asked for: 1, 2, 4, 8, 16, 24, 32, 48, 64 .."""
    powers = [2**k for k in range(MOST_GPUS.bit_length())]
    return sorted(count for count in {*powers, *(3 * power for power in powers if power >= 8)} if count <= MOST_GPUS)


def fits(model: Architecture, recipe: Recipe, gpu: Gpu, gpus: int, trainer: Trainer) -> bool:
    """Whether some split of a run over so many GPUs fits in their memory."""
    return bool(np.any(memory_of(model, recipe, gpu, splits(model, recipe, gpus, trainer), trainer).fits))
