"""How many GPUs a training run takes and how it is split over them: of the splits that fit, the fastest by its parts."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np

from moescale import catalogue
from moescale.errors import InfeasibleError
from moescale.hardware.gpus import Gpu
from moescale.models.architecture import Architecture
from moescale.models.parameters import count_parameters, parts_of, training_flops_per_token
from moescale.models.recipe import MOST_OFF, Recipe, find_rule, recipe_for, stated_batch, whole_batch
from moescale.training.parallelism import Memory, Split, Trainer, fits, gpu_counts, memory_of, splits
from moescale.training.step_time import Precision, StepError, StepTime, products_flops_per_s, step_error, step_time
from moescale.units import format_bytes, plural

# Of splits whose times differ by less, the most wanted is taken (parallelism.splits): a tenth of published runs' error.
NEAR = 0.02
WORTH = 0.05  # of the GPU hours: more GPUs than the run needs are taken to save more
PLANNED = Trainer(states="optimizer", pipeline=True, tensor=True)  # splits models in every way, as Megatron-LM does


Fastest = tuple[Split, StepTime, int]  # the fastest split, its step, and how many fit


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How a run is launched: what its trainer splits, and what is stated of its recipe (None: see `recipe_for`)."""

    trainer: Trainer = PLANNED
    rule: str | None = None
    peak_lr: float | None = None
    batch_tokens: float | None = None
    sequence_tokens: int | None = None
    schedule: str | None = None
    precision: Precision = "bf16"  # of matrix products

    def recipe(self, model: Architecture, tokens: float, gpus: int | None = None) -> Recipe:
        """The recipe of a model's run, see `recipe_for`; N counts one FFN in every layer, C the experts that a token meets."""
        sequence = self.sequence_tokens or find_rule(self.rule).sequence_tokens
        params = parts_of(model).non_embedding_active
        causal, bare = (training_flops_per_token(model, params, sequence_tokens=n) for n in (sequence, 0.0))
        return recipe_for(
            float(count_parameters(replace(model, n_moe_layers=0.0)).non_embedding_total),
            tokens,
            # M of DeepSeek LLM counts attention over all pairs of a sequence, not the causal half.
            flops=tokens * float(2.0 * causal - bare),
            rule=self.rule,
            vocab_size=int(model.vocab_size) or None,
            peak_lr=self.peak_lr,
            batch_tokens=self.batch_tokens,
            sequence_tokens=sequence,
            schedule=self.schedule,
            gpus=gpus,
        )

    def for_gpus(self, recipe: Recipe, gpus: int) -> Recipe:
        """A recipe with a batch that so many GPUs share equally, where that is near the rule's; the steps are those of its own batch."""
        whole = whole_batch if self.batch_tokens is None else stated_batch
        sequences = whole(recipe.asked_batch_tokens, recipe.sequence_tokens, gpus)
        near = sequences * recipe.sequence_tokens <= MOST_OFF * recipe.asked_batch_tokens
        return replace(recipe, batch_sequences=sequences) if near else recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The split that was chosen, its memory, the time of its step by parts, and how long the run takes."""

    gpu: str
    recipe: Recipe
    split: Split
    memory: Memory
    training_flops: float
    step: StepTime
    mfu: float
    mfu_from: Literal["parts", "stated"]
    days: float
    error: StepError  # of published runs of this kind
    why: str

    @property
    def gpu_days(self) -> float:
        """Days of all GPUs together."""
        return self.days * self.split.gpus

    @property
    def time_in_words(self) -> str:
        """The parts of a step in a line."""
        return str(self.step) if self.mfu_from == "parts" else f"{self.step} (days are at the stated {self.mfu:.0%})"


@lru_cache(maxsize=64)  # a plan prices its model where it explains it and where it states it
def choose_launch(
    model: Architecture, tokens: float, gpu: Gpu, launch: Launch, *, mfu: float | None = None, gpus: int | None = None
) -> Choice:
    """The fastest split of a run over `gpus` GPUs; without a number, over the fewest that hold it and end within 30 days.

    Up to twice as many are taken where they save more than WORTH of the GPU hours; where no count ends in time, the largest
    that the batch keeps busy. The run takes as long as its steps do, or as a stated `mfu` says. Its batch is a multiple of the
    GPUs where that is near the rule's, and where nothing else fits stated ones. Raises InfeasibleError where nothing fits,
    with the smallest number of GPUs that would.
    """
    recipe, why, stated = launch.recipe(model, tokens), "the stated number", gpus is not None
    if gpus is None:
        gpus, why = _count(model, recipe, gpu, launch, mfu)
    shared = launch.recipe(model, tokens, gpus)  # whose batch the GPUs divide
    tried = launch.for_gpus(recipe, gpus)  # the same where that is near the rule's
    found = _fastest(model, tried, gpu, gpus, launch)
    if found is None and stated:
        tried, found = shared, _fastest(model, shared, gpu, gpus, launch)
    recipe = shared if tried.batch_sequences == shared.batch_sequences else recipe
    if found is None:
        raise _does_not_fit(model, recipe, gpu, launch.trainer, gpus)
    split, step, fitting = found
    why += f"; the fastest of {fitting} splits that fit" if fitting > 1 else "; the only split that fits"
    why += "; layers are recomputed in the backward pass to fit their activations" * split.recompute
    share, flops = mfu or float(step.mfu), _flops(model, recipe)
    return Choice(
        gpu=gpu.name,
        recipe=recipe,
        split=split,
        memory=memory_of(model, recipe, gpu, split, launch.trainer),
        training_flops=flops,
        step=step,
        mfu=share,
        mfu_from="stated" if mfu else "parts",
        days=_days(flops, gpu, gpus, share),
        error=step_error(model),
        why=why,
    )


@lru_cache(maxsize=64)  # a count is asked about again once it is chosen
def _fastest(model: Architecture, recipe: Recipe, gpu: Gpu, gpus: int, launch: Launch) -> Fastest | None:
    """The split that fits with the shortest step, the most wanted of those that are NEAR it, and how many fit; None: none."""
    ways = splits(model, recipe, gpus, launch.trainer)
    # `ways` are all splits, then all again with layers recomputed, which is done only where the same split does not fit without.
    plain, again = np.reshape(memory_of(model, recipe, gpu, ways, launch.trainer).fits, (2, -1))
    fitting = np.concatenate([plain, again & ~plain])
    if not fitting.any():
        return None
    times = step_time(
        model,
        batch_sequences=recipe.batch_sequences,
        sequence_tokens=recipe.sequence_tokens,
        gpu=gpu,
        split=ways,
        trainer=launch.trainer,
        precision=launch.precision,
    )
    seconds = np.where(fitting, times.total_s, np.inf)
    best = int(np.argmax(seconds <= seconds.min() * (1.0 + NEAR)))
    return ways[best], times.of(best), int(fitting.sum())


def _flops(model: Architecture, recipe: Recipe) -> float:
    """Training FLOPs of a run, attention included."""
    return recipe.tokens * float(training_flops_per_token(model, sequence_tokens=float(recipe.sequence_tokens)))


def _days(flops: float, gpu: Gpu, gpus: int, mfu: float) -> float:
    return flops / (gpu.bf16_flops_per_s * mfu) / gpus / 86400


def _count(model: Architecture, recipe: Recipe, gpu: Gpu, launch: Launch, mfu: float | None) -> tuple[int, str]:
    """How many GPUs a run takes where nobody says it, and why."""
    flops, most_days = _flops(model, recipe), float(catalogue.read("export.toml")["choice"]["days"])
    # No step keeps up more than large products do.
    best_mfu = mfu or products_flops_per_s(gpu, launch.precision) / gpu.bf16_flops_per_s
    least_gpus = math.ceil(_days(flops, gpu, 1, best_mfu) / most_days)
    mfu_by_gpus: dict[int, float] = {}  # from the fewest that are in time to twice as many
    for n in filter(lambda n: n >= least_gpus, gpu_counts()):
        if mfu_by_gpus and n > 2 * min(mfu_by_gpus):
            break
        found = _fastest(model, launch.for_gpus(recipe, n), gpu, n, launch)
        if found and (mfu_by_gpus or _days(flops, gpu, n, mfu or found[1].mfu) <= most_days):
            mfu_by_gpus[n] = mfu or found[1].mfu
    if mfu_by_gpus:
        # A count that few splits divide, such as 3 x 2^n, wastes up to a third of the GPU hours.
        best, fewest = max(mfu_by_gpus.values()), min(mfu_by_gpus)
        count = next(n for n, reached in mfu_by_gpus.items() if reached >= best * (1.0 - WORTH))
        if count == fewest:
            return count, f"the smallest number that holds the run and ends within {most_days:g} days"
        return count, f"it takes fewer GPU hours than {fewest}, the smallest number that ends within {most_days:g} days"
    recipes = ((n, launch.for_gpus(recipe, n)) for n in reversed(gpu_counts()))
    fitting = ((n, tried) for n, tried in recipes if fits(model, tried, gpu, n, launch.trainer))
    alone = launch.for_gpus(recipe, 1)
    count, tried = next(fitting, (alone.batch_sequences, alone))
    batch = f"a batch of {tried.batch_sequences} sequences"
    return count, f"the largest number that {batch} keeps busy; {most_days:g} days take more"


def _does_not_fit(model: Architecture, recipe: Recipe, gpu: Gpu, trainer: Trainer, gpus: int) -> InfeasibleError:
    """Why so many GPUs cannot train a model, and the next number that can."""
    fitting = [count for count in gpu_counts() if fits(model, recipe, gpu, count, trainer)]
    memory = memory_of(model, recipe, gpu, splits(model, recipe, gpus, trainer), trainer)
    if not np.size(memory.total_bytes):
        near = min(fitting, key=lambda count: abs(math.log(count / gpus)), default=None)
        why = f"no split of them divides heads, layers and the batch of {recipe.batch_sequences} sequences"
    else:
        near = next((count for count in fitting if count > gpus), None)
        taken, there = format_bytes(float(np.min(memory.total_bytes))), format_bytes(memory.available_bytes)
        why = f"it needs {taken} per GPU, and {there} are usable"
    what = f"{gpus} x {gpu.name} cannot train this model: {why}"
    if near is not None:
        return InfeasibleError(what, nearest=plural(near, "GPU"), next_step="give that number to --train-gpus")
    larger = "take a GPU with more memory (--train-gpu), or export for a trainer that splits models (megatron)"
    return InfeasibleError(what, next_step=larger)
