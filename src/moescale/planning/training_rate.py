"""The MFU that training reaches by its parts, for each expert count of a plan: what a model costs to train depends on it.

One model an expert count: the loss-optimal one of the budget, as it would be built. The MFU changes slowly with the size (a few
per cent over a factor of two) and quickly with the experts, whose exchange and small products it pays for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from moescale.errors import InfeasibleError
from moescale.hardware.gpus import Gpu
from moescale.models.family import training_flops
from moescale.models.rounding import buildable
from moescale.planning.allocation import Budget, loss_optimal
from moescale.scaling_laws.law import Law
from moescale.training.choice import Launch, choose_launch
from moescale.training.step_time import StepError
from moescale.typing import FloatArray, Real


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


def training_rate(
    law: Law,
    budget: Budget,
    experts: Sequence[float],
    gpu: Gpu,
    *,
    gpus: int | None = None,
    vocab_size: int | None = None,
    launch: Launch = Launch(),  # noqa: B008  # frozen
) -> TrainingRate | None:
    """The MFU by parts of the loss-optimal models of a budget, for each expert count; None where no GPU count holds any.

    `gpus` is how many they are trained on; where these do not hold a model, and without a number, as many as `choose` takes.
    """
    counts = np.unique(np.asarray(experts, float))
    best = loss_optimal(law, budget, counts)
    found: list[tuple[float, float, int, StepError]] = []
    for e, n, d in zip(counts.tolist(), best.n_params.tolist(), best.tokens.tolist(), strict=True):
        if not math.isfinite(n) or e != round(e):
            continue
        model = buildable(law.family, n, e, vocab_size=vocab_size).architecture()
        for tried in dict.fromkeys((gpus, None)):
            try:
                run = choose_launch(model, d, gpu, launch, gpus=tried)
            except InfeasibleError:
                continue
            mfu = float(training_flops(law.family, n, d, e)) / (gpu.bf16_flops_per_s * run.gpu_days * 86400.0)
            found.append((e, mfu, run.split.gpus, run.error))
            break
    if not found:
        return None
    rows, mfus, gpu_counts, errors = zip(*found, strict=True)
    return TrainingRate(experts=rows, mfu=mfus, gpus=gpu_counts, errors=errors)
