"""What training a model of a plan takes: share of the budget, days and dollars, and why some of it is left over."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from moescale.errors import InfeasibleError
from moescale.models.rounding import Buildable, family_of
from moescale.planning.candidate import Candidate
from moescale.planning.question import Question
from moescale.planning.search import Search, size_bounds
from moescale.scaling_laws.law import loss
from moescale.training.choice import Launch
from moescale.training.step_time import StepError
from moescale.units import format_count

FP8_LOSS = 0.0025  # of the loss, at most: DeepSeek-V3 in fp8 beside bf16 (arXiv 2412.19437, section 3.3)
SPENT = 0.99  # of a budget: a plan that uses less says so


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingUse:
    """What training the recommended model takes; dollars and days where the GPU to train on is known."""

    flops_used: float
    tokens_per_active_param: float
    budget_share: float  # of the budget's FLOPs, days or dollars; above 1 where a life is worth more training
    budget_of: str | None = None  # whose FLOPs are the budget, where none is stated
    unused_because: str | None = None  # what bounds the training, where the budget is not spent
    train_gpu: str | None = None
    mfu: float | None = None
    gpu_days: float | None = None
    days: float | None = None  # on the GPUs that are stated
    usd: float | None = None
    mfu_from: str | None = None  # as TrainingBill
    train_gpus: int | None = None  # that the MFU from parts is of
    error: StepError | None = None  # of an MFU from parts
    memory_bytes: float | None = None  # of a GPU, likewise, counted in bf16, and what of it is usable
    usable_bytes: float | None = None
    precision: str | None = None  # of training products, where it is not bf16
    fp8_usd: float | None = None  # of the same run in fp8, where it is planned in bf16 on a GPU that has it
    bf16_usd: float | None = None  # of the same run in bf16, where it is planned in fp8
    fp8_worth_loss: float | None = None  # share of the loss that tokens for the dollars that fp8 saves take off
    fp8_worth_loss_published: float | None = None  # the same by what fp8 gained published pairs of runs of this kind

    @property
    def mfu_words(self) -> str:
        """The MFU, and where it comes from."""
        if self.mfu is None:
            return ""
        if self.error is None:
            assumed = f" assumed: no split holds this model on any number of {self.train_gpu}"
            return f"{self.mfu:g}{assumed if self.mfu_from == 'assumed' else ''}"
        return f"{self.mfu:.2f} predicted{f' in {self.precision}' if self.precision else ''}"

    @property
    def spent(self) -> bool:
        """Whether training uses the budget, but for rounding."""
        return self.budget_share >= SPENT

    @property
    def left_over(self) -> bool:
        """Whether some of a stated budget is not spent, for a reason that is known."""
        return self.unused_because is not None and not self.spent and self.budget_of is None


def training_use(question: Question, model: Candidate, shape: Buildable) -> TrainingUse:
    """What training a model of the plan takes, as the shape that is built, and why some of the budget is left over."""
    flops, budget, price, gpus = model.training_flops, question.budget, question.training, question.n_train_gpus
    share = flops / (float(budget.flops_at(model.experts)) if question.budget_of is None else budget.flops)
    because = None
    if share < SPENT and budget.max_tokens is not None and model.tokens > SPENT * budget.max_tokens:
        because = f"with --max-tokens {format_count(budget.max_tokens)}"
        if budget.max_epochs is not None:
            because = f"with {budget.max_epochs:g} epochs (more: --max-tokens)"
        usd = question.max_usd_per_mtok
        others = [size_bounds(question), "" if usd is None else f"--max-usd-per-mtok {usd:g}"]
        because = " and ".join(filter(None, (because, *others)))
    bill = price and price.bill(shape.architecture(), flops, model.tokens, gpus)
    days = bill.gpu_days / gpus if bill and gpus else None
    limits = ((days, question.max_days), (bill and bill.usd, question.max_training_usd))
    shares = [] if question.of_life else [taken / limit for taken, limit in limits if taken and limit]
    return TrainingUse(
        flops_used=flops,
        tokens_per_active_param=model.tokens / model.n_params_active,
        budget_share=max(shares, default=share),
        budget_of=question.budget_of,
        unused_because=because,
        train_gpu=price and price.gpu.name,
        mfu=bill and bill.mfu,
        gpu_days=bill and bill.gpu_days,
        days=days,
        usd=bill and bill.usd,
        mfu_from=bill and bill.mfu_from,
        train_gpus=bill and bill.gpus,
        error=bill and bill.error,
        memory_bytes=bill and bill.memory and float(bill.memory.total_bytes),
        usable_bytes=bill and bill.memory and bill.memory.available_bytes,
        precision=price.launch.precision if price and price.launch.precision != "bf16" else None,
    )


def beside_precision(search: Search, use: TrainingUse, model: Candidate, shape: Buildable) -> TrainingUse:
    """The use with what the same run costs in the other precision, fp8 or bf16; as it is where no such run can be asked for."""
    question, price = search.question, search.question.training
    if price is None or price.gpu.fp8_flops_per_s is None or use.mfu_from != "parts":
        return use
    if (stated := price.launch.precision) == "bf16" and price.launch != Launch():  # an export's trainer has no fp8
        return use
    other = replace(price, launch=replace(price.launch, precision="fp8" if stated == "bf16" else "bf16"))
    with suppress(InfeasibleError):  # its copies of weights do not fit the stated GPUs
        usd = training_use(replace(question, training=other), model, shape).usd
        if stated == "bf16":
            return replace(use, fp8_usd=usd)
        law = replace(search.law, family=family_of(shape, search.law.family))
        extra = search.budget_of(shape.architecture()).extra
        gain = usd / use.usd if usd is not None and use.usd else 1.0
        gains = np.array([1.0, gain, gain / ((use.error and use.error.fp8_gain) or 1.0)])
        losses = loss(law, model.n_params, gains * model.tokens, model.experts, extra=extra)
        worth, published = (share if share > 0.0 else None for share in (1.0 - losses[1:] / losses[0]).tolist())
        return replace(use, bf16_usd=usd, fp8_worth_loss=worth, fp8_worth_loss_published=published)
    return use
