"""What training costs, and the MFU that it reaches by its parts for each expert count of a plan.

One model an expert count: the loss-optimal one of the budget, as it would be built. The MFU changes slowly with the size (a few
per cent over a factor of two) and quickly with the experts, whose exchange and small products it pays for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
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
from moescale.planning.allocation import Allocation, Budget, loss_optimal
from moescale.scaling_laws.law import Law
from moescale.training.choice import Launch, choose_launch
from moescale.training.parallelism import Memory
from moescale.training.step_time import Precision, StepError
from moescale.typing import FloatArray, Real


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
    """What training costs: GPU hours at a share of peak bf16 arithmetic (MFU), one for all or by the parts of a step.

    The MFU is of the FLOPs that a plan counts, which leave out attention and embedding tables.
    """

    gpu: Gpu
    usd_per_gpu_hour: Annotated[float, POSITIVE]
    mfu: Annotated[float, Bound(0, 1, above=True)]
    # (experts, MFU), experts rising; None: `mfu` for every model.
    mfu_by_experts: tuple[tuple[float, float], ...] | None = None
    timed: bool = False  # whether a model that is built is priced by the parts of its own step, instead of by `mfu`
    launch: Launch = field(default_factory=Launch)  # of runs that are timed

    def __post_init__(self) -> None:
        check_bounds(self, where="training price")

    @property
    def usd_per_flop(self) -> float:
        """Dollars for one model FLOP at `mfu`."""
        return self.usd_per_gpu_hour / 3600.0 / (self.gpu.bf16_flops_per_s * self.mfu)

    def mfu_at(self, experts: Real) -> FloatArray:
        """The MFU with so many experts: between those known by ln E, beyond them as the nearest."""
        if self.mfu_by_experts is None:
            return np.full(np.shape(experts), self.mfu)
        counts, mfus = np.array(self.mfu_by_experts).T
        return np.asarray(np.interp(np.log(np.asarray(experts, float)), np.log(counts), mfus))

    def scaled(self, scale: float) -> TrainingPrice:
        """The price at so many times every MFU."""
        mfus = self.mfu_by_experts and tuple((e, min(mfu * scale, 1.0)) for e, mfu in self.mfu_by_experts)
        return replace(self, mfu=min(self.mfu * scale, 1.0), mfu_by_experts=mfus)

    def usd_per_flop_at(self, experts: Real) -> FloatArray:
        """Dollars for one model FLOP of training models of so many experts."""
        return self.usd_per_gpu_hour / 3600.0 / (self.gpu.bf16_flops_per_s * self.mfu_at(experts))

    def flops_bought(self, days: float | None, gpus: float | None, usd: float | None, most: float | None) -> float:
        """Training FLOPs at `mfu` that days on so many GPUs and dollars buy, the least of them and of `most`."""
        gpu_seconds = math.inf if days is None or gpus is None else 24.0 * days * gpus * 3600.0
        in_days = gpu_seconds * self.gpu.bf16_flops_per_s * self.mfu
        in_usd = math.inf if usd is None else usd / self.usd_per_flop
        return min(in_days, in_usd, math.inf if most is None else most)

    def flops_by_experts(
        self, days: float | None, gpus: float | None, usd: float | None, most: float | None
    ) -> tuple[tuple[float, float], ...]:
        """The same at the MFU of each expert count that was timed, as `Budget` takes them; () where one MFU is for all."""
        if self.mfu_by_experts is None or (days, usd) == (None, None):
            return ()
        return tuple((e, replace(self, mfu=mfu).flops_bought(days, gpus, usd, most)) for e, mfu in self.mfu_by_experts)

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


def by_parts(
    price: TrainingPrice,
    law: Law,
    budget: Budget,
    experts: Sequence[float],
    *,
    gpus: int | None,
    vocab_size: int | None,
) -> TrainingPrice:
    """A price with the MFU by parts of the loss-optimal model of each expert count; as it is where one is stated or known."""
    if not price.timed or price.mfu_by_experts is not None:
        return price
    best = loss_optimal(law, budget, np.unique(np.asarray(experts, float)))
    return timed_on(price, law, best, gpus=gpus, vocab_size=vocab_size)


def timed_on(
    price: TrainingPrice, law: Law, models: Allocation, *, gpus: int | None, vocab_size: int | None
) -> TrainingPrice:
    """A price with the MFU by parts of models (m,) of rising expert counts; as it is where no GPU count holds any.

    They train on `gpus` GPUs; where these do not hold a model, and without a number, on as many as `choose_launch` takes.
    """
    found: list[tuple[float, float]] = []
    for e, n, d in zip(models.experts.tolist(), models.n_params.tolist(), models.tokens.tolist(), strict=True):
        if not math.isfinite(n) or e != round(e):
            continue
        shape = buildable(law.family, n, e, vocab_size=vocab_size).architecture()
        flops = float(training_flops(law.family, n, d, e))
        for tried in dict.fromkeys((gpus, None)):
            with suppress(InfeasibleError):
                run = choose_launch(shape, d, price.gpu, price.launch, gpus=tried)
                found.append((e, flops / (price.gpu.bf16_flops_per_s * run.gpu_days * 86400.0)))
                break
    return replace(price, mfu_by_experts=tuple(found)) if found else price
