"""The MFU that training reaches by its parts, for each expert count of a plan: what a model costs to train depends on it.

One model an expert count: the loss-optimal one of the budget, as it would be built. The MFU changes slowly with the size (a few
per cent over a factor of two) and quickly with the experts, whose exchange and small products it pays for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from moescale import catalogue
from moescale.hardware.gpus import Gpu
from moescale.models.architecture import Architecture
from moescale.models.family import ModelFamily, architecture, training_flops
from moescale.models.parameters import count_parameters
from moescale.models.recipe import recipe_for
from moescale.models.rounding import Buildable, buildable, family_of, vocabulary
from moescale.planning.allocation import Budget, loss_optimal
from moescale.scaling_laws.law import Law
from moescale.training.choice import fastest
from moescale.training.parallelism import Trainer, smallest_count
from moescale.training.step_time import StepError, step_error
from moescale.typing import FloatArray, Real

MOST_USUAL_GPUS = 2**14  # where nobody says how many: the published runs have up to 16,384
USUAL_MFU = 0.4  # until the model is timed
# Splits that are timed for one model: with so many the fastest of 54 pairs of published models and GPU counts was among them.
TIMED = 32
PLANNED = Trainer(states="optimizer", pipeline=True, tensor=True)  # splits models in every way, as Megatron-LM does


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRate:
    """MFU at some expert counts, rising: of the FLOPs that a plan counts, which leave out attention and embedding tables."""

    experts: tuple[float, ...]
    mfu: tuple[float, ...]
    gpus: tuple[int, ...]  # that each was timed on
    errors: tuple[StepError, ...]  # of published runs of each one's kind

    def at(self, experts: Real) -> FloatArray:
        """The MFU with so many experts: between those that were timed by ln E, beyond them as the nearest."""
        return np.asarray(np.interp(np.log(np.asarray(experts, float)), np.log(self.experts), self.mfu))

    def error_at(self, experts: float) -> StepError:
        """The error of published runs of the kind of a model with so many experts: that of the nearest that was timed."""
        return min(zip(self.experts, self.errors, strict=True), key=lambda pair: abs(math.log(pair[0] / experts)))[1]


def whole_model(family: ModelFamily, n_params: float, experts: float, vocab_size: int | None = None) -> Architecture:
    """A model as it would be built, with whole layers and heads."""
    return built_model(family, buildable(family, n_params, experts, vocab_size=vocab_size), vocab_size)


def built_model(family: ModelFamily, shape: Buildable, vocab_size: int | None = None) -> Architecture:
    """A shape as an architecture."""
    experts = float(shape.n_experts)
    model = architecture(family_of(shape, family), shape.n_params, experts, vocab_size=vocabulary(family, vocab_size))
    moe_layers = shape.n_layers / float(shape.moe_every)
    return replace(
        model,
        n_layers=float(shape.n_layers),
        d_model=float(shape.d_model),
        n_heads=float(shape.n_heads),
        n_kv_heads=float(shape.n_kv_heads),
        d_ffn=float(shape.d_ffn),
        n_moe_layers=moe_layers if experts > 1 else 0.0,
        n_experts=float(experts),
        top_k=float(min(shape.top_k, experts)),
        d_expert=float(model.d_expert),
        d_shared_expert=float(model.d_shared_expert),
        qk_norm=shape.model_type != "deepseek_v3",  # as exported: its activations decide whether a micro-batch fits
    )


def speed_of(model: Architecture, n_params: float, tokens: float, gpu: Gpu, gpus: int) -> tuple[float, int] | None:
    """Tokens a second and GPU of training one model on so many GPUs, or on the fewest more that hold it, and how many; None: none do."""
    flops = 6.0 * float(count_parameters(model).non_embedding_active) * tokens
    recipe = recipe_for(n_params, tokens, flops=flops, vocab_size=int(model.vocab_size) or None, gpus=gpus)
    count = gpus
    found = fastest(model, recipe, gpu, count, PLANNED, most=TIMED)
    if found is None:
        more = smallest_count(model, recipe, gpu, PLANNED, least=gpus + 1)
        if more is None:
            return None
        count, found = more, fastest(model, recipe, gpu, more, PLANNED, most=TIMED)
    return None if found is None else (found[1].tokens_per_s_per_gpu, count)


def usual_gpus(flops: float, gpu: Gpu) -> int:
    """How many GPUs a run takes where nobody says: the power of two that ends it within the 30 days of an export's own choice."""
    days = float(catalogue.read("export.toml")["choice"]["days"])
    needed = flops / (gpu.bf16_flops_per_s * USUAL_MFU) / 86400.0 / days
    return min(MOST_USUAL_GPUS, 2 ** math.ceil(math.log2(max(1.0, needed))))


def model_mfu(
    family: ModelFamily, shape: Buildable, n_params: float, tokens: float, gpu: Gpu, gpus: int, vocab_size: int | None
) -> tuple[float, int, StepError] | None:
    """The MFU of one shape of a family, on how many GPUs, and the error of its kind; None: none hold it."""
    model = built_model(family, shape, vocab_size)
    timed = speed_of(model, n_params, tokens, gpu, gpus)
    if timed is None:
        return None
    per_token = float(training_flops(family, n_params, 1.0, float(shape.n_experts)))
    return timed[0] * per_token / gpu.bf16_flops_per_s, timed[1], step_error(model)


def training_rate(
    law: Law,
    budget: Budget,
    experts: Sequence[float],
    gpu: Gpu,
    *,
    gpus: int | None = None,
    vocab_size: int | None = None,
) -> TrainingRate | None:
    """The MFU by parts of the loss-optimal models of a budget, for each expert count; None where no GPU count holds any.

    `gpus` is how many they are trained on (None: `usual_gpus`), or as many more as hold a model.
    """
    counts = np.unique(np.asarray(experts, float))
    best = loss_optimal(law, budget, counts)
    found: list[tuple[float, float, int, StepError]] = []
    for e, n, d in zip(counts.tolist(), best.n_params.tolist(), best.tokens.tolist(), strict=True):
        if not math.isfinite(n) or e != round(e):
            continue
        shape = buildable(law.family, n, e, vocab_size=vocab_size)
        if (
            timed := model_mfu(law.family, shape, n, d, gpu, gpus or usual_gpus(budget.flops, gpu), vocab_size)
        ) is not None:
            found.append((e, *timed))
    if not found:
        return None
    rows, mfus, gpu_counts, errors = zip(*found, strict=True)
    return TrainingRate(experts=rows, mfu=mfus, gpus=gpu_counts, errors=errors)
