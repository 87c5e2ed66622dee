"""What another law answers to the same question, and whether it agrees.

Losses of different laws are in different units, so that each answer is set against its own law's base: its cost over the
base's, or its loss over the base's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import numpy as np

from moescale.errors import InfeasibleError, InputError
from moescale.planning.allocation import Budget, bracket, loss_optimal
from moescale.planning.candidate import Candidate, plain
from moescale.scaling_laws.law import Law
from moescale.typing import FloatArray
from moescale.units import format_count, format_usd

ALIKE = 1.5  # shares of a cost, or gains of a loss, no further apart than this factor are the same advice
NO_GAIN = 0.002  # of a loss, relative: below what seeds differ by (0.2% to 0.4% in the public runs of arXiv 2502.05172)
LEAST_BUDGET, MOST_BUDGET = 1e12, 1e32  # training FLOPs between which a loss is looked for
CLOSE = 1e-6  # of a budget, relative


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondOpinion:
    """What another law answers to a plan's question; without a model where it has no answer.

    `cost_ratio` is to the base of that law, as `loss_ratio` is; each is there where the question is about it.
    """

    law: str
    agrees: bool
    sentence: str
    experts: float | None = None
    n_params: float | None = None
    cost_ratio: float | None = None
    loss_ratio: float | None = None

    def to_dict(self) -> dict[str, object]:
        """JSON-ready values; keys that do not apply are absent."""
        record = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: plain(value) for name, value in record.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A law's answer to a question, and what it is set against: the dollars and the loss of its own base."""

    law: Law
    model: Candidate
    usd: float | None  # of the model: dollars a million tokens, or of its life
    base_usd: float | None  # None where the base cannot be served
    base_loss: float

    @property
    def cost_ratio(self) -> float | None:
        """The model's dollars over the base's; None where one of them is not known."""
        return None if self.usd is None or self.base_usd is None else self.usd / self.base_usd

    @property
    def loss_ratio(self) -> float:
        """The model's loss over the base's."""
        return (self.model.loss or math.nan) / self.base_loss


def compared(theirs: Answer, ours: Answer, question: str, share_of: str, unit: str, *, by_loss: bool) -> SecondOpinion:
    """Another law's answer beside ours; `question` is what both answer, `share_of` names what each is set against.

    `unit` follows dollars, which are compared where a base cannot be served.
    They agree where they have as many experts and, `by_loss`, losses that are alike over the base's, else costs that are.
    """
    same_experts = theirs.model.experts == ours.model.experts
    if by_loss:
        alike, what = _alike_gains(1.0 - theirs.loss_ratio, 1.0 - ours.loss_ratio), "loss"
        measure, brief = f"loss {_change(theirs.loss_ratio)} {share_of}", _change(ours.loss_ratio)
    elif theirs.cost_ratio is not None and ours.cost_ratio is not None:
        alike, what = _alike(theirs.cost_ratio, ours.cost_ratio), "saving"
        measure, brief = f"{theirs.cost_ratio:.0%} of {share_of}", f"{ours.cost_ratio:.0%}"
    else:
        alike, what = _alike(theirs.usd or math.inf, ours.usd or math.inf), "cost"
        measure, brief = (f"{format_usd(answer.usd or math.inf)} {unit}" for answer in (theirs, ours))
    agrees = same_experts and alike
    verdict = (
        f"differs on the experts ({theirs.model.experts:g} against {ours.model.experts:g})"
        if not same_experts
        else "agrees"
        if alike
        else f"agrees on the experts but not on the {what}"
    )
    counted = " with embeddings" if _counts_embeddings(theirs.law) and not _counts_embeddings(ours.law) else ""
    return SecondOpinion(
        law=theirs.law.name,
        agrees=agrees,
        sentence=(
            f"{theirs.law.name} {verdict}. {question[0].upper()}{question[1:]}: {_sized(theirs.model)}{counted}, "
            f"{measure} ({ours.law.name}: {ours.model.experts:g} at {format_count(ours.model.n_params or 0.0)}, {brief})."
        ),
        experts=theirs.model.experts,
        n_params=theirs.model.n_params,
        cost_ratio=None if by_loss else theirs.cost_ratio,
        loss_ratio=theirs.loss_ratio if by_loss else None,
    )


def unanswered(law: Law, question: str, reason: str) -> SecondOpinion:
    """A law that has no answer to the question."""
    asked = f"{question[0].upper()}{question[1:]}"
    return SecondOpinion(law=law.name, agrees=False, sentence=f"{law.name} has no answer. {asked}: {reason}.")


def budget_of_loss(law: Law, budget: Budget, experts: float, loss: float) -> float | None:
    """Training FLOPs whose loss-optimal model of so many experts has this loss, at the tokens and inputs of `budget`.

    None where no budget from LEAST_BUDGET to MOST_BUDGET has it. This carries a loss from one law to another: it is the
    other law's loss at that budget.
    """

    def short(ln_flops: FloatArray) -> FloatArray:
        reached = loss_of_base(law, budget, experts, math.exp(float(ln_flops[0])))
        return np.array([math.log(loss / reached)])  # rises with the budget

    at, step = np.array([math.log(budget.flops)]), 1.0
    try:
        sign = -1.0 if short(at)[0] > 0 else 1.0  # a higher loss takes a smaller budget
        far = at
        while sign * short(far)[0] < 0:
            at, far, step = far, far + sign * step, 2.0 * step
            if not math.log(LEAST_BUDGET) <= far[0] <= math.log(MOST_BUDGET):
                return None
        low, high = bracket(short, np.minimum(at, far), np.maximum(at, far), close=CLOSE)
    except (InfeasibleError, InputError):
        return None
    return math.exp(0.5 * float(low[0] + high[0]))


def loss_of_base(law: Law, budget: Budget, experts: float, flops: float) -> float:
    """The loss of the loss-optimal model of so many experts on another number of training FLOPs."""
    return float(loss_optimal(law, Budget(flops, budget.max_tokens, budget.extra), experts).loss[0])


def _sized(model: Candidate) -> str:
    experts = "a dense model" if model.experts == 1 else f"{model.experts:g} experts"
    return f"{experts} at {format_count(model.n_params or 0.0)}"


def _change(ratio: float) -> str:
    """A loss over another in words: 2.1% below."""
    return f"{abs(1.0 - ratio):.1%} {'below' if ratio <= 1.0 else 'above'}"


def _counts_embeddings(law: Law) -> bool:
    return law.family.embedding_matrices * law.family.vocab_size > 0


def _alike(theirs: float, ours: float) -> bool:
    return max(theirs, ours) <= ALIKE * min(theirs, ours)


def _alike_gains(theirs: float, ours: float) -> bool:
    """Whether two relative gains of loss are alike: both next to nothing, or of one sign and within a factor."""
    if max(abs(theirs), abs(ours)) <= NO_GAIN:
        return True
    return theirs * ours > 0 and _alike(abs(theirs), abs(ours))
