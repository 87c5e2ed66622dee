"""What a plan is asked, checked, and fitted to what a law can speak of."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from moescale.bounds import Bound, check_bounds
from moescale.errors import InputError
from moescale.models.family import with_convention
from moescale.planning.allocation import Budget
from moescale.planning.total_cost import NEAR_EQUAL, POSITIVE, Lifetime, TrainingPrice
from moescale.scaling_laws.law import Law
from moescale.units import expert_model

EXPERTS = Bound(1, whole=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a plan is asked: the budget and its bounds, and the models that may be chosen; impossible ones raise InputError.

    With `lifetime_tokens` and `training` also the best life is looked for: the cheapest at `max_loss` (None: the loss of the
    base), with `max_total_usd` alone the lowest loss within so many dollars, with both the cheapest if it stays within them.
    """

    budget: Budget
    experts: Annotated[tuple[float, ...], EXPERTS] = (1.0, 4.0, 8.0, 16.0, 32.0, 64.0)
    match_experts: Annotated[float, EXPERTS] = 4.0  # the base: the loss-optimal model of so many experts
    max_loss: Annotated[float | None, POSITIVE] = None
    max_usd_per_mtok: Annotated[float | None, POSITIVE] = None
    lifetime_tokens: Annotated[float | None, POSITIVE] = None
    training: TrainingPrice | None = None  # for training days and dollars; with lifetime_tokens also the cheapest life
    max_total_usd: Annotated[float | None, POSITIVE] = None  # of training and serving
    kv_heads: float | None = None  # key-value heads of a layer; None: the family's own, one a query head for most
    vocab_size: int | None = None  # rows of the tables that are served; None: those that N counts, or the recipe's
    draws: int | None = None  # how many of the law's draws intervals use; None: all, 0: no intervals
    convention: str | None = None

    def __post_init__(self) -> None:
        check_bounds(self, where="question")
        if self.max_total_usd is not None and (self.lifetime_tokens is None or self.training is None):
            raise InputError(
                "total dollars are those of training and of serving a number of tokens",
                where="--max-total-usd",
                next_step="give --lifetime-tokens as well",
            )

    @property
    def bounded(self) -> bool:
        """Whether a loss or a serving cost is bounded, so that the base's loss is not the goal."""
        return self.max_loss is not None or self.max_usd_per_mtok is not None

    @property
    def cost_limit(self) -> float | None:
        """The serving cost within which the lowest loss is asked for; None where a loss is to be reached instead."""
        return self.max_usd_per_mtok if self.max_loss is None else None

    @property
    def total_limit(self) -> float | None:
        """The dollars of a whole life within which the lowest loss is asked for; None where a loss is to be reached instead."""
        return self.max_total_usd if self.max_loss is None else None

    @property
    def life(self) -> Lifetime | None:
        """The conditions of a model's life as the searches take them; None where its life is not asked about."""
        if self.lifetime_tokens is None or self.training is None:
            return None
        return Lifetime(
            served_tokens=self.lifetime_tokens,
            usd_per_flop=self.training.usd_per_flop,
            max_tokens=self.budget.max_tokens,
            max_usd_per_mtok=self.max_usd_per_mtok,
            extra=self.budget.extra,
        )

    @property
    def tolerance(self) -> float:
        """The share of a life's dollars within which the smoother choice over expert counts is taken; none below a limit."""
        return NEAR_EQUAL if self.max_total_usd is None else 0.0


def prepare(law: Law, question: Question) -> tuple[Law, Question, list[str]]:
    """The law under the question's convention and the question that it can answer, with notes on what was left out."""
    notes: list[str] = []
    experts, base = sorted({*question.experts, question.match_experts}), question.match_experts
    # A form with experts that dense runs alone were fitted to has learnt nothing of experts.
    if not (law.form.uses_experts or law.form.implied_inputs) or law.max_experts == 1.0:
        least, most = law.fit_range.get("experts", (1.0, 1.0))
        only = least if least == most else 1.0
        if experts != [only]:
            notes.append(f"{law.name} knows {expert_model(only)}s only: other expert counts are left out of this plan")
        experts, base = [only], only
    if question.convention is not None and question.convention != law.family.convention:
        law = replace(law, family=with_convention(law.family, question.convention))
        notes.append(f"{law.name} was obtained with another counting of training FLOPs than `{question.convention}`")
    if question.kv_heads is not None:
        law = replace(law, family=replace(law.family, kv_heads=question.kv_heads))
    return law, replace(question, experts=tuple(experts), match_experts=base), notes
