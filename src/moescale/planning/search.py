"""The search behind a plan: one law, one question and one deployment, and the models that answer it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from moescale.errors import InfeasibleError
from moescale.latency import LatencySource
from moescale.models.architecture import Architecture
from moescale.models.coordinates import expansion
from moescale.models.family import n_active, n_total, training_flops, with_convention
from moescale.models.parameters import count_parameters
from moescale.models.rounding import Buildable, family_of, vocabulary
from moescale.planning.allocation import (
    Allocation,
    Budget,
    at_size,
    inputs_at,
    largest_within_cost,
    loss_optimal,
    smallest_at_loss,
)
from moescale.planning.as_built import NEAR_SIZES, SLACK, Built, depth_factor, in_shape, nearest_shape, stacked
from moescale.planning.candidate import (
    AnyRow,
    Candidate,
    CostCurve,
    Costs,
    Regret,
    Row,
    Trained,
    candidates,
    part_of,
    sizes_of,
    trained_models,
)
from moescale.planning.draws import Draws, Oracle, draws_of, oracle_of
from moescale.planning.question import CONFIDENCE, KnownModel, Question, as_released, inputs_of, own_inputs, prepare
from moescale.planning.sampled_costs import CURVE_SIZES, USUAL, SampledCosts, sampled_costs
from moescale.roots import bracket
from moescale.scaling_laws.law import Law
from moescale.serving.deployment import Deployment
from moescale.serving.pareto import pareto
from moescale.typing import FloatArray
from moescale.units import format_count, format_usd

FRONTIER_SIZES = 32  # over-trained sizes of each expert count that the frontier is drawn from
TINY = 1e-300
ANY_USD = 1e300  # per million tokens: what is served at all
NEAR_COST = 1e-7  # of a size, relative: how close the models at a cost are to it
SMALLEST_SHARE = 0.03  # of the loss-optimal size: smaller ones cost almost no less and lose much
SMALLEST_SAMPLED = 0.01  # of the least of these sizes: what draws of the law choose among


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What every answer of a plan is looked for with: the law as asked, its draws, the costs, and the loss-optimal models."""

    law: Law  # under the question's convention
    question: Question  # what of it the law can speak of
    costs: Costs
    best: Allocation  # the loss-optimal models of the expert counts that are asked about, (m,)
    optima: tuple[Trained, ...]  # the same as rows
    base: Trained  # what others are compared with; chosen only where its expert count is asked about
    notes: tuple[str, ...]  # on what was left out
    sampled: SampledCosts
    draws: Draws  # asks for the base's loss
    oracle: Oracle
    largest: FloatArray  # (m,): sizes that the bounds on parameters allow, infinite without any

    @classmethod
    def of(
        cls, law: Law, question: Question, deployment: Deployment, latency: LatencySource, *, coarse: bool = False
    ) -> Search:
        """The search for a question; `coarse`: its regrets are of few sizes.

        Raises InputError for what the law cannot be asked, InfeasibleError without optima.
        """
        law, question, notes = prepare(law, question)
        costs = costs_of(law, question, deployment, latency)
        _check_reach(law, question)
        experts = np.array(question.experts)
        best = loss_optimal(law, question.budget, experts)
        least = max(USUAL[0], SMALLEST_SAMPLED * float(np.nanmin(best.n_params)))
        least = 10.0 ** (math.floor(2.0 * math.log10(least)) / 2.0)  # so that questions of like budgets share samples
        ends, sizes = (min(least, 0.1 * USUAL[1]), USUAL[1]), CURVE_SIZES // 4 if coarse else CURVE_SIZES
        sampled = sampled_costs(costs, experts, ends, sizes)
        optima = tuple(trained_models(best, costs))
        if question.base is None:
            found = base_optimum(law, question, best)
            same = (c for c in optima if (c.experts, c.n_params) == (question.match_experts, found.n_params[0]))
            base = next(same, None) or trained_models(found, costs)[0]
        else:
            base = known_model(law, question.base, costs)
        stated = None if question.base is None else question.base.inputs(law.form)
        draws = draws_of(law, question.budget, experts, _model_of(base), base_inputs=stated, draws=question.draws)
        return cls(
            law=law,
            question=question,
            costs=costs,
            best=best,
            base=base,
            optima=optima,
            notes=tuple(notes),
            sampled=sampled,
            draws=draws,
            oracle=oracle_of(draws, sampled, law.allows(experts)),
            largest=np.array([largest_size(law, question, e) for e in question.experts]),
        )

    @property
    def base_model(self) -> Allocation:
        """The base as the law counts it, (1,)."""
        return _model_of(self.base)

    @property
    def confidence(self) -> float | None:
        """The probability with which a loss is promised; None where the law's own curve promises it."""
        stated = self.question.confidence
        return CONFIDENCE if stated is None and self.law.promises_by_draws else stated

    def most_sure(self) -> float:
        """The highest probability of the loss that a served model of another expert count than the baseline's has; 0 without any."""
        others = self.law.allows(self.best.experts) & (self.best.experts != self.question.match_experts)
        served = self._sampled_within(self.question.max_usd_per_mtok or ANY_USD)
        sure = self.draws_at(self.question.max_loss).most_sure(np.minimum(served, self.largest), others)
        return float(np.max(sure, where=np.isfinite(sure), initial=0.0))

    def cheapest_counts(self, chosen: float, equal: float) -> FloatArray:
        """Share of the draws under which each expert count, of those allowed, matches the loss for the fewest dollars, (m,).

        A draw under which the chosen count costs more than the fewest by a share of `equal` at most is the chosen one's: where the
        host is all that costs, every count is as cheap.
        """
        draws = self.draws_at(self.question.max_loss)
        usd = self.sampled.usd_per_mtok(draws.smallest.n_params)
        usd = np.where(np.isfinite(usd) & self.law.allows(self.best.experts), usd, np.inf)
        known = np.isfinite(usd).any(axis=1)
        shares = np.zeros(usd.shape[1])
        alike = (usd <= (1.0 + equal) * usd.min(axis=1, keepdims=True)) & (self.best.experts == chosen)
        first = np.where(alike.any(axis=1), alike.argmax(axis=1), usd.argmin(axis=1))
        np.add.at(shares, first[known], draws.weights[known])
        return shares / max(shares.sum(), TINY)

    def draws_at(self, loss: float | None) -> Draws:
        """The draws, which ask for a loss or for the base's."""
        return self.draws if loss is None else self.draws.asking_for(loss)

    def at_loss(self, loss: float | None = None) -> list[Row]:
        """Algorithm 1 at every expert count: the smallest, hence cheapest, models that reach a loss, or the base's."""
        draws, target = self.draws_at(loss), self.base.loss if loss is None else loss
        if self.confidence is None:
            found = smallest_at_loss(self.law, self.question.budget, self.best.experts, target, optimal=self.best)
            sizes, reasons = found.n_params, [f"no size reaches a loss of {target:.5g}"] * self.best.experts.size
        else:
            sizes = draws.sizes(self.confidence)
            goal = "the baseline's loss" if loss is None else f"a loss of {loss:.5g}"
            missed = f"no size reaches {goal} with a probability of {self.confidence:.0%}"
            reasons = [f"{missed}, {most:.0%} at most" for most in draws.most_sure(self.largest, np.isnan(sizes))]
        bounds = size_bounds(self.question)
        leave = f"{bounds} leave{'' if ' and ' in bounds else 's'} N ="
        reasons = [
            f"{leave} {format_count(most)} at most, less than what reaches {target:.5g}" if n > most else reason
            for n, most, reason in zip(sizes, self.largest, reasons, strict=True)
        ]
        return self._rows(np.where(sizes > self.largest, np.nan, sizes), reasons, draws)

    def within_cost(self, usd_per_mtok: float) -> list[Row]:
        """Algorithm 2 at every expert count: the lowest loss within a serving cost."""
        return self._rows(self._largest_within(usd_per_mtok), f"every size costs more than {format_usd(usd_per_mtok)}")

    def near_cost(self, usd_per_mtok: float) -> list[Row]:
        """About the same, by the sampled costs alone: what is built within a cost may start from it."""
        return self._rows(self._near_cost(usd_per_mtok))

    def below(self, loss: float, usd_per_mtok: float, among: NDArray[np.bool_], most: int) -> list[Candidate]:
        """About the models of the lowest losses under a loss and within a cost, by the sampled costs, where a shape near them has it: so many expert counts `among` those of a mask (m,)."""
        sizes = self._near_cost(usd_per_mtok)
        losses = at_size(self.law, self.question.budget, sizes * NEAR_SIZES[1], self.best.experts).loss
        losses = np.where(among & self.law.allows(self.best.experts) & (losses < loss), losses, np.inf)
        kept = np.argsort(np.argsort(losses)) < min(most, np.count_nonzero(np.isfinite(losses)))
        return self.recommendable(self._rows(np.where(kept, sizes, np.nan)))

    def outright(self) -> list[Row]:
        """The lowest loss of every expert count that can be served, whatever it costs; unserved where no size can be."""
        sizes = np.minimum(self.best.n_params, self.largest)
        rows = self._rows(sizes)
        unserved = np.array([not isinstance(row, Candidate) for row in rows])
        if not unserved.any():
            return rows
        # The optimum is too large, and a smaller model may not be.
        return self._rows(np.where(unserved, np.fmin(sizes, self._largest_within(ANY_USD)), sizes))

    def _largest_within(self, usd_per_mtok: float) -> FloatArray:
        """The largest sizes within a cost and the bounds on parameters, up to the loss-optimal ones, (m,)."""
        experts, price, near = self.best.experts, self.costs.usd_per_mtok, self._sampled_within(usd_per_mtok)
        most = self.best.n_params
        found = largest_within_cost(experts, usd_per_mtok, price, largest=most, near=near, close=NEAR_COST)
        return np.fmin(found, self.largest)

    def _near_cost(self, usd_per_mtok: float) -> FloatArray:
        """About the same by the sampled costs, (m,)."""
        return np.fmin(np.fmin(self._sampled_within(usd_per_mtok), self.best.n_params), self.largest)

    def _sampled_within(self, usd_per_mtok: float) -> FloatArray:
        return self.sampled.size_within(np.array([usd_per_mtok]))[0]

    def recommendable(self, rows: Iterable[Row]) -> list[Candidate]:
        """The served models that the law may recommend."""
        return [c for c in rows if isinstance(c, Candidate) and self.law.allows(c.experts)]

    def judged(
        self, rows: Sequence[AnyRow], draws: Draws, law: Law | None = None, base: Trained | None = None
    ) -> list[AnyRow]:
        """Rows set against their own optimum and the base, with how probable it is that they keep the goal of the draws, and their regret; `law` counts built shapes."""
        known, own = [c for c in rows if isinstance(c, Trained)], {c.experts: c.n_params for c in self.optima}
        base, unit = base or self.base, self.base.usd_per_mtok
        figures: list[list[float]] = []
        if len(draws.theta) > 1 and known:
            losses = draws.losses(sizes_of(known), np.array([c.experts for c in known]), law)
            usd = np.array([c.usd_per_mtok or np.nan for c in known])
            lost = self.oracle.regrets(draws, losses, usd, unit or 1.0)
            figures = np.stack((draws.probability(losses), draws.weights @ lost, draws.worst(lost)), axis=1).tolist()
        of_each, found = iter(figures), list[AnyRow]()
        for c in rows:
            if isinstance(c, Trained):
                sure, *lost = next(of_each, (None,))
                new = replace(
                    c,
                    size_ratio=c.n_params / own[c.experts],
                    size_ratio_to_base=c.n_params / base.n_params,
                    active_ratio_to_base=c.n_params_active / base.n_params_active,
                    cost_ratio=c.usd_per_mtok and base.usd_per_mtok and c.usd_per_mtok / base.usd_per_mtok,
                    probability_at_least_base=sure,
                    regret=Regret(expected=lost[0], worst=lost[1]) if lost and unit and c.usd_per_mtok else None,
                )
                found.append(new)
            else:
                found.append(c)
        return found

    def answering(self) -> list[Row]:
        """The models among which the question chooses."""
        question = self.question
        if question.budget_goal == "loss":
            return self.outright()
        if question.budget_goal != "quality":
            return self.at_loss(question.max_loss)
        limit = question.max_usd_per_mtok or self.base.usd_per_mtok
        if limit is None:
            raise InfeasibleError(
                f"{question.base_name} cannot be served, so no cost equals its cost",
                next_step="give --max-usd-per-mtok",
            )
        return self.within_cost(limit)

    def base_as_built(self, *, at_most: bool) -> Built[Candidate] | None:
        """The baseline in whole layers and heads, from its size up (`at_most`: down), priced at that shape.

        None where it is a published model, which is built already, and where it cannot be served.
        """
        if self.question.base is not None or not isinstance(self.base, Candidate):
            return None
        search = replace(self, question=self.question.of_base)
        most = largest_size(self.law, self.question, self.base.experts)
        at_most |= self.question.bounds_base and self.base.n_params >= most * (1.0 - 1e-9)
        shape = nearest_shape(self.law, self.costs, self.base, at_most=at_most)
        return in_shape(self.law, self.costs, self.base, shape, search._sized)

    def judging_built(self, base: Built[Candidate] | None) -> Search:
        """The search that judges models as built: the baseline as built keeps its own loss under every draw, too."""
        if base is None:
            return self
        goal = np.maximum(self.draws.goal, self.losses_as_built(base.model, base.shape))
        return replace(self, draws=replace(self.draws, goal=goal))

    def losses_as_built(self, model: Candidate, shape: Buildable) -> FloatArray:
        """The losses of a built model under the draws, (k,)."""
        law = replace(self.law, family=family_of(shape, self.law.family))
        draws = replace(self.draws, budget=self.budget_of(shape.architecture(), model))
        return draws.losses(np.array([model.n_params]), np.array([model.experts]), law)[:, 0]

    def built(self, law: Law, costs: Costs, model: Candidate, *, base: Trained) -> Candidate | None:
        """The model of the same size under another law and family, set against `base`; None where it cannot be served."""
        if (sized := self._sized(law, costs, model)) is None:
            return None
        draws = replace(self.draws_at(self.question.max_loss), budget=self.budget_of(costs.shape, sized))
        (row,) = self.judged([sized], draws, law, base)
        return row

    def _sized(self, law: Law, costs: Costs, model: Candidate) -> Candidate | None:
        """What the budget trains at a model's size under another law and family, None where it cannot be served."""
        budget, n, e = self.budget_of(costs.shape), np.array([model.n_params]), np.array([model.experts])
        sized = at_size(law, budget, n, e)
        if costs.shape is not None and self.question.is_bought:
            flops = float(training_flops(law.family, n, sized.tokens, e)[0])
            flops *= self.question.affordable(costs.shape, flops, float(sized.tokens[0]))
            sized = at_size(law, replace(budget, flops=flops, by_experts=()), n, e)
        (row,) = trained_models(sized, costs)
        return row if isinstance(row, Candidate) else None

    def judged_shapes(self, shapes: Sequence[Buildable], experts: float) -> tuple[FloatArray, FloatArray | None]:
        """The losses of whole shapes of an expert count that use the budget (s,), NaN beyond the bounds on parameters, and how probable it is that they meet the goal; None without draws."""
        n, e = np.array([shape.n_params for shape in shapes]), np.full(len(shapes), experts)
        ((alike, _),) = stacked([shape.architecture() for shape in shapes])
        law, budget, draws = self.law, self.question.budget, self.draws_at(self.question.max_loss)
        extra = {**own_inputs(law.form, alike), **budget.extra}
        tokens = at_size(law, budget, n, e).tokens / (depth_factor(shapes) if self.question.is_bought else 1.0)
        tokens = np.minimum(tokens, budget.max_tokens or math.inf)
        x = inputs_at(law, extra, n, np.log(tokens), e)
        drawn = None if len(draws.theta) == 1 else np.exp(law.form.log_loss(draws.theta, x))
        loss = np.where(self.allowed(shapes), np.exp(law.form.log_loss(law.theta, x)), np.nan)
        return loss, None if drawn is None else draws.probability(drawn)

    def allowed(self, shapes: Sequence[Buildable]) -> NDArray[np.bool_]:
        """Whether shapes are within the bounds on parameters by their own counts, (s,): those of one size differ in all of theirs."""
        most_active, most_total = self.question.max_active_params, self.question.max_total_params
        if not shapes or (most_active, most_total) == (None, None):
            return np.ones(len(shapes), np.bool_)
        ((alike, _),) = stacked([shape.architecture() for shape in shapes])
        count = count_parameters(alike)
        within = count.non_embedding_active <= (most_active or np.inf) * (1.0 + SLACK)
        return within & (count.non_embedding_total <= (most_total or np.inf) * (1.0 + SLACK))

    def budget_of(self, shape: Architecture | None, model: Candidate | None = None) -> Budget:
        """The budget with what the law takes of a built model, which is then judged as a published one of its shape is; of days or dollars what these bought `model`."""
        budget = self.question.budget
        if model is not None and self.question.is_bought:
            budget = replace(budget, flops=model.training_flops, by_experts=())
        return budget if shape is None else replace(budget, extra=inputs_of(self.law.form, shape, budget.extra))

    def frontier(self, known: Iterable[Row]) -> tuple[list[Candidate], tuple[CostCurve, ...]]:
        """The Pareto frontier over all expert counts that the law may speak of, all over-trained sizes, and known models; and the curves of loss and cost of each expert count, from over-trained to under-trained sizes."""
        models, shape = curve_models(self.law, self.question, self.best)
        served, (_, s) = self.costs.serving(models.n_params, models.experts), shape
        over = np.arange(models.loss.size) % s < FRONTIER_SIZES  # over-trained, up to the optimum
        at = np.flatnonzero(over & self.law.allows(models.experts) & np.isfinite(served.usd_per_mtok))
        drawn = at[pareto(served.usd_per_mtok[at], models.loss[at])]
        made = trained_models(part_of(models, drawn), self.costs, part_of(served, drawn))
        rows = self.recommendable([*made, *known])
        front = pareto(np.array([c.usd_per_mtok for c in rows]), np.array([c.loss for c in rows]))
        gone = {"intervals": None, "size_ratio_to_base": None, "active_ratio_to_base": None, "cost_ratio": None}
        optima = {c.experts: c.n_params for c in self.optima}
        frontier = [replace(rows[i], size_ratio=rows[i].n_params / optima[rows[i].experts], **gone) for i in front]
        usd = np.where(np.isfinite(served.usd_per_mtok), served.usd_per_mtok, np.nan)
        columns = [v.reshape(shape) for v in (models.n_params, models.tokens, models.loss, usd)]
        curves = (CostCurve(e, *(column[i] for column in columns)) for i, e in enumerate(self.question.experts))
        return frontier, tuple(curves)

    def _rows(self, sizes: FloatArray, reasons: str | Sequence[str] = "", draws: Draws | None = None) -> list[Row]:
        """Rows of sizes (m,), judged by the draws, or those of the base's loss; the reason, or reasons (m,), say why one is NaN."""
        found = at_size(self.law, self.question.budget, sizes, self.best.experts)
        every = [reasons] * sizes.size if isinstance(reasons, str) else reasons
        rows = candidates(found, self.costs, every)
        return self.judged(rows, draws or self.draws)


def _model_of(row: Trained) -> Allocation:
    return Allocation(*(np.array([value]) for value in (row.experts, row.n_params, row.tokens, row.loss)))


def base_optimum(law: Law, question: Question, best: Allocation) -> Allocation:
    """The loss-optimal model within the bounds that others are compared with, (1,): one of `best` where that is it."""
    if question.match_experts in question.experts and question.base_flops is None:
        at = question.experts.index(question.match_experts)
        found = part_of(best, slice(at, at + 1))
    else:
        found = loss_optimal(law, question.base_budget, question.match_experts)
    largest = np.array([largest_size(law, question, question.match_experts)])
    if not question.bounds_base or np.all(found.n_params <= largest):
        return found
    return at_size(law, question.base_budget, largest, found.experts)


def known_model(law: Law, model: KnownModel, costs: Costs) -> Trained:
    """A known model as a row, in the size convention of the law; served as it is built."""
    n, e = (np.array([value]) for value in model.in_convention_of(law.family))
    x = inputs_at(law, model.inputs(law.form), n, np.log([model.tokens]), e)
    at = Allocation(e, n, np.array([model.tokens]), np.exp(law.form.log_loss(law.theta, x)))
    deployment, latency = as_released(model, costs.deployment, costs.latency)
    (row,) = trained_models(at, replace(costs, shape=model.architecture, deployment=deployment, latency=latency))
    active, total = model.sizes
    return replace(row, n_params_active=active, n_params_total=total, training_flops=model.training_flops)


def largest_size(law: Law, question: Question, experts: float) -> float:
    """The largest size of an expert count within the bounds on its active and total parameters."""
    family, e = with_convention(law.family, "exact"), np.array([experts])
    bounds = ((question.max_active_params, n_active), (question.max_total_params, n_total))
    stated = [(limit, count) for limit, count in bounds if limit is not None]
    if not stated:
        return math.inf
    ends = np.log([1e3]), np.log([1e3 * min(limit for limit, _ in stated)])
    low, _ = bracket(lambda at: np.max([count(family, np.exp(at), e) / most - 1.0 for most, count in stated], 0), *ends)
    return float(np.exp(low[0]))


def size_bounds(question: Question) -> str:
    """The bounds on parameters in words; empty without any."""
    stated = {"--max-active-params": question.max_active_params, "--max-total-params": question.max_total_params}
    return " and ".join(f"{name} {format_count(value)}" for name, value in stated.items() if value is not None)


def costs_of(law: Law, question: Question, deployment: Deployment, latency: LatencySource) -> Costs:
    """Serving costs of the models of a prepared law, with the tables of the vocabulary that they are built with."""
    vocab_size = vocabulary(law.family, question.vocab_size)
    return Costs(law.family, latency, deployment, vocab_size=vocab_size, disaggregated=question.disaggregated)


def curve_models(
    law: Law, question: Question, best: Allocation, count: int = FRONTIER_SIZES
) -> tuple[Allocation, tuple[int, int]]:
    """The models (m * s,) of the curves of m expert counts over s rising sizes, and (m, s).

    The sizes end at twice the loss-optimal one, which is number `count` - 1.
    """
    beyond = np.geomspace(1.0, 2.0, count // 4)[1:]
    shares = np.concatenate((np.geomspace(SMALLEST_SHARE, 1.0, count), beyond))
    sizes = (best.n_params[:, None] * shares).ravel()
    every = at_size(law, question.budget, sizes, np.repeat(best.experts, shares.size))
    return every, (best.experts.size, shares.size)


def fitted_up_to(law: Law) -> str:
    """How far a law reaches, in words: the expansion up to which it may recommend models, and the expert count that has it in its family."""
    most = law.max_experts or 1.0
    return f"{reach_words(law)} X = {float(expansion(law.family, most)):.3g} ({most:g} experts of this shape)"


def reach_words(law: Law) -> str:
    """Laws of several sources recommend fewer experts than some of them were fitted to."""
    fitted = law.fit_range.get("experts", (1.0, math.inf))[1]
    return "is trusted up to" if (law.max_experts or 1.0) < fitted * (1.0 - 1e-6) else "was fitted up to"


def _check_reach(law: Law, question: Question) -> None:
    """InfeasibleError where a law may recommend none of the expert counts that are asked about."""
    least = min(question.experts)
    if law.max_experts is None or law.allows(least):
        return
    raise InfeasibleError(
        f"{law.name} {fitted_up_to(law)} and may not recommend {least:g} experts "
        f"(X = {float(expansion(law.family, least)):.3g})",
        where="--experts",
        nearest=f"{math.floor(law.max_experts)}",
        next_step="ask about fewer experts, or give another --law (`moescale laws` lists them)",
    )


def either(parts: Sequence[str]) -> str:
    """Alternatives in words: a, b or c."""
    return " or ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))
