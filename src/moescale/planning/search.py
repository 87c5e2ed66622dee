"""The search behind a plan: one law, one question and one deployment, and the models that answer it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from moescale.errors import InfeasibleError
from moescale.latency import LatencySource
from moescale.models.rounding import vocabulary
from moescale.planning.allocation import (
    Allocation,
    at_size,
    best_within_cost,
    loss_optimal,
    smallest_at_loss,
)
from moescale.planning.candidate import (
    Candidate,
    CostCurve,
    Costs,
    Row,
    Trained,
    candidates,
    trained_models,
    with_ratios,
)
from moescale.planning.question import Question, prepare
from moescale.scaling_laws.law import Law
from moescale.serving.deployment import Deployment
from moescale.serving.pareto import pareto
from moescale.units import expert_model, format_usd

FRONTIER_SIZES = 48  # over-trained sizes of each expert count that the frontier is drawn from
SMALLEST_SHARE = 0.03  # of the loss-optimal size: smaller ones cost almost no less and lose much


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What every answer of a plan is looked for with: the law as asked, the costs, and the loss-optimal models."""

    law: Law  # under the question's convention
    question: Question  # what of it the law can speak of
    costs: Costs
    best: Allocation  # the loss-optimal models
    optima: tuple[Trained, ...]  # the same as rows
    notes: tuple[str, ...]  # on what was left out

    @classmethod
    def of(cls, law: Law, question: Question, deployment: Deployment, latency: LatencySource) -> Search:
        """The search for a question; raises InputError for what the law cannot be asked, InfeasibleError without optima."""
        law, question, notes = prepare(law, question)
        costs = costs_of(law, question, deployment, latency)
        best = loss_optimal(law, question.budget, np.array(question.experts))
        optima = tuple(trained_models(best, costs, lifetime_tokens=question.lifetime_tokens))
        return cls(law=law, question=question, costs=costs, best=best, optima=optima, notes=tuple(notes))

    @property
    def base(self) -> Trained:
        """The loss-optimal model that others are compared with."""
        return self.own(self.question.match_experts)

    def own(self, experts: float) -> Trained:
        """The loss-optimal model of an expert count."""
        return self.optima[self.question.experts.index(experts)]

    def at_loss(self, loss: float) -> list[Row]:
        """Algorithm 1 at every expert count: the smallest, hence cheapest, models that reach a loss."""
        found = smallest_at_loss(self.law, self.question.budget, self.best.experts, loss, optimal=self.best)
        return self._rows(found, f"no size reaches a loss of {loss:.5g}")

    def within_cost(self, usd_per_mtok: float) -> list[Row]:
        """Algorithm 2 at every expert count: the lowest loss within a serving cost."""
        cost_of, budget = self.costs.usd_per_mtok, self.question.budget
        found = best_within_cost(self.law, budget, self.best.experts, usd_per_mtok, cost_of, optimal=self.best)
        return self._rows(found, f"every size costs more than {format_usd(usd_per_mtok)}")

    def answering(self) -> list[Row]:
        """The models among which the question chooses: within its cost, at its loss, or at the base's loss."""
        limit, loss = self.question.cost_limit, self.question.max_loss
        return self.at_loss(loss or self.base.loss) if limit is None else self.within_cost(limit)

    def built(self, law: Law, costs: Costs, model: Candidate) -> Candidate | None:
        """The model of the same size under another law and family, None where it cannot be served."""
        sized = at_size(law, self.question.budget, np.array([model.n_params]), np.array([model.experts]))
        (found,) = with_ratios(self._models(sized, costs), self.optima, self.base)
        return found if isinstance(found, Candidate) else None

    def frontier(self, known: Iterable[Row]) -> list[Candidate]:
        """The Pareto frontier over all expert counts that the law may speak of, all over-trained sizes, and known models."""
        allowed = self.law.allows(self.best.experts)
        own = self.best.n_params[allowed]
        sizes = (own[:, None] * np.geomspace(SMALLEST_SHARE, 1.0, FRONTIER_SIZES)).ravel()
        sized = at_size(self.law, self.question.budget, sizes, np.repeat(self.best.experts[allowed], FRONTIER_SIZES))
        every = [*self._models(sized, self.costs), *known]
        served = [c for c in every if isinstance(c, Candidate) and self.law.allows(c.experts)]
        front = pareto(np.array([c.usd_per_mtok for c in served]), np.array([c.loss for c in served]))
        gone = {"intervals": None, "size_ratio_to_base": None, "active_ratio_to_base": None, "cost_ratio": None}
        chosen = [served[i] for i in front]
        return [replace(c, size_ratio=c.n_params / self.own(c.experts).n_params, **gone) for c in chosen]

    def curves(self) -> tuple[CostCurve, ...]:
        """Loss and cost of each expert count from over-trained to under-trained sizes."""
        every, shape = curve_models(self.law, self.question, self.best)
        served = self.costs.serving(every.n_params, every.experts)
        known = np.isfinite(served.usd_per_mtok)
        usd, gpus = np.where(known, served.usd_per_mtok, np.nan), np.where(known, served.gpus, 0.0)
        columns = [values.reshape(shape) for values in (every.n_params, every.tokens, every.loss, usd, gpus)]
        return tuple(CostCurve(e, *(column[i] for column in columns)) for i, e in enumerate(self.question.experts))

    def _models(self, found: Allocation, costs: Costs) -> list[Trained]:
        return trained_models(found, costs, lifetime_tokens=self.question.lifetime_tokens)

    def _rows(self, found: Allocation, missed: str) -> list[Row]:
        reasons = [missed] * found.experts.size
        rows = candidates(found, self.costs, reasons, lifetime_tokens=self.question.lifetime_tokens)
        return with_ratios(rows, self.optima, self.base)


def costs_of(law: Law, question: Question, deployment: Deployment, latency: LatencySource) -> Costs:
    """Serving costs of the models of a prepared law, with the tables of the vocabulary that they are built with."""
    return Costs(law.family, latency, deployment, vocab_size=vocabulary(law.family, question.vocab_size))


def curve_models(law: Law, question: Question, best: Allocation) -> tuple[Allocation, tuple[int, int]]:
    """The models (m * s,) of the curves of m expert counts over s rising sizes, and (m, s).

    The sizes end at twice the loss-optimal one, which is number FRONTIER_SIZES - 1.
    """
    beyond = np.geomspace(1.0, 2.0, FRONTIER_SIZES // 4)[1:]
    shares = np.concatenate((np.geomspace(SMALLEST_SHARE, 1.0, FRONTIER_SIZES), beyond))
    sizes = (best.n_params[:, None] * shares).ravel()
    every = at_size(law, question.budget, sizes, np.repeat(best.experts, shares.size))
    return every, (best.experts.size, shares.size)


def choose(search: Search, rows: Sequence[Row]) -> tuple[Candidate, str]:
    """The recommended model among the rows that answer the question, and the rule that chose it.

    Raises InfeasibleError when no model that the law may speak of meets the bounds and can be served.
    """
    law, question = search.law, search.question
    allowed = [c for c in rows if law.allows(c.experts)]
    if not allowed:
        raise InfeasibleError(
            f"{law.name} speaks of at most {law.max_experts:g} experts, fewer than any that was asked for",
            next_step=f"add smaller counts to --experts, such as {law.max_experts:g}, and to --match-experts",
        )
    served = [c for c in allowed if isinstance(c, Candidate)]
    if (limit := question.cost_limit) is not None:
        within = f"{format_usd(limit)} a million tokens or less"
        if not served:
            raise InfeasibleError(
                f"no model of this budget serves at {within}{_reasons(allowed)}",
                next_step="raise --max-usd-per-mtok, or take another GPU",
            )
        return min(served, key=lambda c: (c.loss, c.experts)), f"lowest loss at {within}"
    goal = loss_goal(question)
    if not served:
        raise _none_reaches(search, allowed, goal)
    best = min(served, key=lambda c: (c.usd_per_mtok, c.experts))
    if question.max_usd_per_mtok is not None and best.usd_per_mtok > question.max_usd_per_mtok:
        raise too_dear(question, best, goal)
    return best, f"cheapest to serve at {goal}"


def loss_goal(question: Question) -> str:
    """The loss that is to be reached, in words."""
    if question.max_loss is None:
        return f"the loss of the loss-optimal {expert_model(question.match_experts)}"
    return f"a loss of at most {question.max_loss:g}"


def too_dear(question: Question, model: Candidate, goal: str, remark: str = "") -> InfeasibleError:
    """The error for a model that reaches its goal at a higher serving cost than the question allows."""
    return InfeasibleError(
        f"the cheapest model that reaches {goal} costs {format_usd(model.usd_per_mtok)} a million tokens{remark}, "
        f"more than {format_usd(question.max_usd_per_mtok or math.inf)}",
        next_step="raise --max-usd-per-mtok, or relax --max-loss",
    )


def _none_reaches(search: Search, allowed: Sequence[Row], goal: str) -> InfeasibleError:
    budget = f"no model of {search.question.budget.flops:.3g} FLOPs"
    if any(c.n_params is not None for c in allowed):
        return InfeasibleError(
            f"{budget} that reaches {goal} can be served{_reasons(allowed)}",
            next_step="allow more GPUs, take a GPU with more memory, or lower the budget",
        )
    lowest = min(c.loss for c in search.optima if search.law.allows(c.experts))
    return InfeasibleError(
        f"{budget} with at most {max(c.experts for c in allowed):g} experts reaches {goal}",
        nearest=f"the lowest loss of this budget is {lowest:.4f}",
        next_step="raise --budget, relax --max-loss, or consider more experts",
    )


def _reasons(rows: Sequence[Row]) -> str:
    listed = sorted({c.infeasible for c in rows if c.infeasible})
    return f" ({'; '.join(listed)})" if listed else ""
