"""What training costs, and the MFU that it reaches by its parts for each expert count of a plan.

One model an expert count: the loss-optimal one of the budget, as it would be built. The MFU changes slowly with the size (a few
per cent over a factor of two) and quickly with the experts, whose exchange and small products it pays for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

import numpy as np

from moescale import catalogue
from moescale.bounds import POSITIVE, Bound, check_bounds
from moescale.errors import InfeasibleError
from moescale.hardware.gpus import Gpu
from moescale.models.architecture import Architecture
from moescale.models.family import training_flops
from moescale.models.rounding import buildable
from moescale.planning.allocation import Budget, loss_optimal
from moescale.scaling_laws.law import Law
from moescale.training.choice import Launch, choose_launch
from moescale.training.parallelism import Memory
from moescale.training.step_time import Precision, StepError
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

    def scaled(self, scale: float) -> TrainingRate:
        """All MFUs times one factor."""
        return replace(self, mfu=tuple(min(mfu * scale, 1.0) for mfu in self.mfu))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingBill:
    """What one training run costs, and the MFU that it was priced at."""

    gpu_days: float
    usd: float
    mfu: float
    mfu_from: str  # parts, of its step; stated, for every model; assumed, where no split holds the model
    gpus: int | None = None  # that it was timed on
    error: StepError | None = None  # of published runs, where it comes from parts, as is the next
    precision: Precision | None = None  # of its products
    memory: Memory | None = None  # of a GPU of the run that was timed

    @property
    def usd_interval(self) -> tuple[float, float] | None:
        """The dollars of nine in ten runs, as published ones spread around predictions; None where no step was timed."""
        return self.error and (self.usd * self.error.times(0.05), self.usd * self.error.times(0.95))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPrice:
    """What training costs: GPU hours at a share of peak bf16 arithmetic (MFU), one for all or by the parts of a step."""

    gpu: Gpu
    usd_per_gpu_hour: Annotated[float, POSITIVE]
    mfu: Annotated[float, Bound(0, 1, above=True)]
    rate: TrainingRate | None = None  # the MFU of each expert count; None: `mfu` for every model
    timed: bool = False  # whether a model that is built is priced by the parts of its own step, instead of by `mfu`
    launch: Launch = field(default_factory=Launch)  # of runs that are timed

    def __post_init__(self) -> None:
        check_bounds(self, where="training price")

    @property
    def usd_per_flop(self) -> float:
        """Dollars for one model FLOP."""
        return self.usd_per_gpu_hour / 3600.0 / (self.gpu.bf16_flops_per_s * self.mfu)

    def mfu_at(self, experts: Real) -> FloatArray:
        """The MFU of training models of so many experts."""
        return np.full(np.shape(experts), self.mfu) if self.rate is None else self.rate.at(experts)

    def usd_per_flop_at(self, experts: Real) -> FloatArray:
        """Dollars for one model FLOP of training models of so many experts."""
        return self.usd_per_gpu_hour / 3600.0 / (self.gpu.bf16_flops_per_s * self.mfu_at(experts))

    def gpu_hours(self, flops: float, experts: float = 1.0) -> float:
        """GPU hours for so many training FLOPs of a model of so many experts."""
        return flops / (self.gpu.bf16_flops_per_s * float(self.mfu_at(experts))) / 3600.0

    def flops_bought(
        self, days: float | None, gpus: float | None, usd: float | None, most: float | None = None
    ) -> float:
        """Training FLOPs at `mfu` that days on so many GPUs and dollars buy, the least of them and of `most`."""
        bought = [math.inf if most is None else most]
        if days is not None and gpus is not None:
            bought.append(24.0 * days * gpus * 3600.0 * self.gpu.bf16_flops_per_s * self.mfu)
        if usd is not None:
            bought.append(usd / self.usd_per_flop)
        return min(bought)

    def flops_by_experts(
        self, days: float | None, gpus: float | None, usd: float | None, most: float | None = None
    ) -> tuple[tuple[float, float], ...]:
        """The same at the MFU of each expert count that was timed, as `Budget` takes them; () where one MFU is for all."""
        rate = self.rate
        if rate is None or (days, usd) == (None, None):
            return ()
        each = [replace(self, mfu=mfu).flops_bought(days, gpus, usd, most) for mfu in rate.mfu]
        return tuple(zip(rate.experts, each, strict=True))

    def bill(self, model: Architecture, flops: float, tokens: float, gpus: int | None = None) -> TrainingBill:
        """What a built model's run of so many FLOPs and tokens costs, on `gpus` GPUs or as many as it takes.

        Raises InfeasibleError where stated GPUs do not hold the run that is timed.
        """
        mfu, source, run = self.mfu, "stated", None
        if self.timed:
            mfu, source = default_mfu(), "assumed"
            try:
                run = choose_launch(model, tokens, self.gpu, self.launch, gpus=gpus)
                mfu, source = flops / (self.gpu.bf16_flops_per_s * run.gpu_days * 86400.0), "parts"
            except InfeasibleError:
                if gpus is not None:
                    raise
        hours = flops / (self.gpu.bf16_flops_per_s * mfu) / 3600.0
        return TrainingBill(
            gpu_days=hours / 24.0,
            usd=hours * self.usd_per_gpu_hour,
            mfu=mfu,
            mfu_from=source,
            gpus=gpus if run is None else run.split.gpus,
            error=run and run.error,
            memory=run and run.memory,
            precision=None if run is None else self.launch.precision if self.gpu.fp8_flops_per_s else "bf16",
        )


def default_mfu() -> float:
    """The catalogue's model FLOPs utilisation of pre-training; training.toml has its source."""
    return float(catalogue.read("training.toml")["mfu"]["default"]["mfu"])


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

    `gpus` is how many they are trained on; where these do not hold a model, and without a number, as many as `choose_launch` takes.
    """
    counts = np.unique(np.asarray(experts, float))
    best = loss_optimal(law, budget, counts)
    models = zip(counts.tolist(), best.n_params.tolist(), best.tokens.tolist(), strict=True)
    return rate_of(law, models, gpu, gpus=gpus, vocab_size=vocab_size, launch=launch)


def rate_of(
    law: Law,
    models: Iterable[tuple[float, float, float]],
    gpu: Gpu,
    *,
    gpus: int | None,
    vocab_size: int | None,
    launch: Launch,
) -> TrainingRate | None:
    """The same of models by experts, of rising counts, size and tokens."""
    found: list[tuple[float, float, int, StepError]] = []
    for e, n, d in models:
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


def by_parts(
    price: TrainingPrice,
    law: Law,
    budget: Budget,
    experts: Sequence[float],
    *,
    gpus: int | None = None,
    vocab_size: int | None = None,
) -> TrainingPrice:
    """A price with the MFU of each expert count by parts, as `training_rate`; as it is where that has none, or has one already."""
    if not price.timed or price.rate is not None:
        return price
    rate = training_rate(law, budget, experts, price.gpu, gpus=gpus, vocab_size=vocab_size, launch=price.launch)
    return price if rate is None else replace(price, rate=rate)
