"""What another law answers to the same question, and whether it agrees.

Losses of different laws are in different units, so that each answer is set against its own law's base: its cost over the
base's, or its loss over the base's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from moescale.errors import InfeasibleError, InputError
from moescale.io.records import record
from moescale.planning.allocation import Budget, bracket, loss_optimal
from moescale.planning.candidate import Candidate, whole_numbers
from moescale.scaling_laws.ensemble import restate
from moescale.scaling_laws.law import Law
from moescale.scaling_laws.store import find_law
from moescale.typing import FloatArray
from moescale.units import format_count, format_usd

# Asked beside a law that is no ensemble: equation 4, and another, on public runs.
SECOND_LAWS = ("yun2024-joint", "moescale2026-joint")
MOST_MEMBERS = (
    4  # of an ensemble that are asked beside it, the heaviest first: each takes as long as a plan without draws
)
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
        return whole_numbers(record(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A law's answer to a question, and what it is set against: the dollars and the loss of its own base."""

    law: Law
    model: Candidate
    usd: float  # of the model: a million tokens, or its life
    base_usd: float | None  # None where the base cannot be served
    base_loss: float

    @property
    def cost_ratio(self) -> float | None:
        """The model's dollars over the base's; None where those are not known."""
        return None if self.base_usd is None else self.usd / self.base_usd

    @property
    def loss_ratio(self) -> float:
        """The model's loss over the base's."""
        return self.model.loss / self.base_loss


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What laws are compared on, in words, and whether by loss instead of by dollars."""

    question: str
    share_of: str  # what each law's answer is set against
    unit: str  # that follows dollars, which are compared where a base cannot be served
    by_loss: bool

    @property
    def sentence(self) -> str:
        """The question as a sentence begins."""
        return self.question[0].upper() + self.question[1:]


def laws_beside(law: Law) -> list[Law]:
    """The laws that answer a plan's question beside `law`: an ensemble's members with experts, else SECOND_LAWS."""
    heaviest = sorted(law.members, key=lambda member: -member.weight)
    members = [member.law for member in heaviest if restate(member.law, law.family).form.uses_experts]
    return members[:MOST_MEMBERS] or [find_law(name) for name in SECOND_LAWS if name != law.name]


def in_letters_of(law: Law, others: Sequence[Law]) -> list[Law]:
    """Other laws with N and E as `law` counts them, so that 32 experts of two laws are one model.

    As they are where `law` counts all experts in N: no law can be restated so.
    """
    return [restate(other, law.family) if law.family.n_counts == "dense" else other for other in others]


def compared(theirs: Answer, ours: Answer, asked: Asked) -> SecondOpinion:
    """Another law's answer beside ours.

    They agree where they have as many experts and, by loss, losses that are alike over the base's, else costs that are.
    """
    experts = theirs.model.experts
    if asked.by_loss:
        gains = 1.0 - theirs.loss_ratio, 1.0 - ours.loss_ratio
        nothing, one_sign = max(map(abs, gains)) <= NO_GAIN, gains[0] * gains[1] > 0
        alike, what = nothing or (one_sign and _alike(*map(abs, gains))), "loss"
        measure, brief = f"loss {_change(theirs.loss_ratio)} {asked.share_of}", _change(ours.loss_ratio)
    elif theirs.cost_ratio is not None and ours.cost_ratio is not None:
        alike, what = _alike(theirs.cost_ratio, ours.cost_ratio), "saving"
        measure, brief = f"{theirs.cost_ratio:.0%} of {asked.share_of}", f"{ours.cost_ratio:.0%}"
    else:
        alike, what = _alike(theirs.usd, ours.usd), "cost"
        measure, brief = (f"{format_usd(answer.usd)} {asked.unit}" for answer in (theirs, ours))
    verdict = "agrees" if alike else f"agrees on the experts but not on the {what}"
    if experts != ours.model.experts:
        alike, verdict = False, f"differs on the experts ({experts:g} against {ours.model.experts:g})"
    sized = f"{'a dense model' if experts == 1 else f'{experts:g} experts'} at {format_count(theirs.model.n_params)}"
    return SecondOpinion(
        law=theirs.law.name,
        agrees=alike,
        sentence=(
            f"{theirs.law.name} {verdict}. {asked.sentence}: {sized}, {measure} "
            f"({ours.law.name}: {ours.model.experts:g} at {format_count(ours.model.n_params)}, {brief})."
        ),
        experts=experts,
        n_params=theirs.model.n_params,
        cost_ratio=None if asked.by_loss else theirs.cost_ratio,
        loss_ratio=theirs.loss_ratio if asked.by_loss else None,
    )


def opinions(
    answer: Callable[[Law], Answer], ours: Answer, others: Sequence[Law], asked: Asked
) -> tuple[SecondOpinion, ...]:
    """Each other law's answer beside ours, or why it has none; a law of dense models alone compares with none."""
    found: list[SecondOpinion] = []
    for other in others if ours.law.form.uses_experts else ():
        try:
            found.append(compared(answer(other), ours, asked))
        except InfeasibleError as error:
            sentence = f"{other.name} has no answer. {asked.sentence}: {error.what}."
            found.append(SecondOpinion(law=other.name, agrees=False, sentence=sentence))
    return tuple(found)


def budget_of_loss(law: Law, budget: Budget, experts: float, loss: float) -> float | None:
    """Training FLOPs whose loss-optimal model of so many experts has this loss, at the tokens and inputs of `budget`.

    None where no budget from LEAST_BUDGET to MOST_BUDGET has it.
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
    return float(loss_optimal(law, replace(budget, flops=flops), experts).loss[0])


def _change(ratio: float) -> str:
    """A loss over another in words: 2.1% below."""
    return f"{abs(1.0 - ratio):.1%} {'below' if ratio <= 1.0 else 'above'}"


def _alike(theirs: float, ours: float) -> bool:
    return max(theirs, ours) <= ALIKE * min(theirs, ours)
