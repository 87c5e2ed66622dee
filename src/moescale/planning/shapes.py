"""Which shape of models is planned: the best model of each, what training costs to one loss, and when that is repaid."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from moescale.errors import MoescaleError
from moescale.planning.as_built import EQUAL
from moescale.planning.beside import best_life, settled
from moescale.planning.candidate import Candidate, Life
from moescale.planning.question import Question
from moescale.planning.recommend import CHEAPER, FOR_NOTHING
from moescale.planning.search import Search
from moescale.planning.total_cost import break_even_tokens, tokens_at_loss
from moescale.serving.accuracy import accuracy_of
from moescale.serving.gpu_counts import laid_out


@dataclass(frozen=True, slots=True)
class ShapeChoice:
    """The model to train of one shape of models, as built, and the dollars of its training where they are known."""

    shape: str
    model: Candidate | Life
    training_usd: float | None = None
    usd_at_loss: float | None = None  # trained on to the lowest loss of the shapes; None where it does not get there
    price_factor: float | None = None  # measured over predicted price of held-out servings of its kind; None: unknown

    @property
    def likely_usd_per_mtok(self) -> float | None:
        """The price by the known error of its kind; None where that is not known."""
        return None if self.price_factor is None else self.price_factor * self.model.usd_per_mtok


def prices(choices: Sequence[ShapeChoice]) -> list[float]:
    """Dollars per million tokens: by the known error of each kind where it is known of all, else as predicted."""
    likely = [choice.likely_usd_per_mtok for choice in choices]
    known = [usd for usd in likely if usd is not None]
    return known if len(known) == len(choices) else [choice.model.usd_per_mtok for choice in choices]


def choice_in_shape(shape: str, search: Search) -> tuple[ShapeChoice, Question] | None:
    """The best model of a search in one shape, as built: the cheapest at the goal and not of least regret, and the question with what days and dollars buy it; None where none is served."""
    question = search.question
    with suppress(MoescaleError):
        if question.of_life:
            life = best_life(search)
            model, usd = (None, None) if life is None else (life.model, life.model.training_usd)
        else:
            found = settled(search, coarse=True)
            model, usd = (None, None) if found is None else (found[0].advice.model, found[0].use.usd)
            search = search if found is None else found[1]
        if model is None or model.architecture is None:
            return None
        served, built = laid_out(search.costs.deployment, model.attention_dp), model.architecture.architecture()
        known = accuracy_of(built, served, search.costs.latency, apart=question.disaggregated)
        return ShapeChoice(shape, model, usd, price_factor=known and known.geometric_mean), search.question
    return None


def lowest_budget_loss(search: Search) -> float:
    """The lowest loss that the budget of a search trains with an expert count that the law may recommend, served or not."""
    return float(np.min(search.best.loss, where=search.law.allows(search.best.experts), initial=math.inf))


def looks_for_loss(question: Question) -> bool:
    """Whether the lowest loss is looked for, and not the fewest dollars."""
    return question.goal in ("quality", "loss") or (question.of_life and question.max_total_usd is not None)


def in_order(choices: Iterable[ShapeChoice], usual: str, *, by_loss: bool) -> list[ShapeChoice]:
    """The choices of several shapes, the best first: what the question looks for, dollars of a life or a token, or the loss.

    The `usual` shape is first unless another one is better by more than CHEAPER (of a life EQUAL), or FOR_NOTHING of loss at a price as good as
    equal, and repays what its training costs more before it has served as many tokens as it was trained on. Of dollars as good
    as equal, the lower price of serving is first, or the lower loss. A lower loss
    by FOR_NOTHING whose training costs no more is worth CHEAPER of the price. Prices are those of `prices`.
    """
    choices = list(choices)
    priced = {choice.shape: usd for choice, usd in zip(choices, prices(choices), strict=True)}

    def value(choice: ShapeChoice) -> float:
        model, usd = choice.model, priced[choice.shape]
        if by_loss:
            return model.loss
        served = usd / model.usd_per_mtok - 1.0
        return model.total_usd + model.serving_usd * served if isinstance(model, Life) else usd

    def lower_loss(choice: ShapeChoice, other: ShapeChoice) -> bool:
        return choice.model.loss < other.model.loss - FOR_NOTHING

    def better(choice: ShapeChoice, other: ShapeChoice) -> bool:
        """Whether a choice is better than the usual shape's by enough, and repays it."""
        if by_loss:
            return lower_loss(choice, other)
        of_life = isinstance(choice.model, Life)  # all of whose dollars are counted
        cheaper = value(choice) < (1.0 - (EQUAL if of_life else CHEAPER)) * value(other)
        for_nothing = not of_life and lower_loss(choice, other) and value(choice) <= (1.0 + EQUAL) * value(other)
        tokens = repaid_after(choice, other)
        return (cheaper or for_nothing) and (tokens is None or tokens <= choice.model.tokens)

    ordered = sorted(choices, key=value)
    first, best = next((c for c in ordered if c.shape == usual), None), ordered[0]
    if not by_loss:
        alike = [c for c in ordered if value(c) <= (1.0 + EQUAL) * value(best)]
        best = min(alike, key=lambda c: priced[c.shape] if isinstance(c.model, Life) else c.model.loss)
    if first is not None and not better(best, first):
        best = first
    if not by_loss and not isinstance(best.model, Life) and (spent := best.training_usd) is not None:
        no_dearer = [c for c in ordered if lower_loss(c, best) and (c.training_usd or math.inf) <= spent]
        worth = [c for c in no_dearer if value(c) <= (1.0 + CHEAPER) * value(best)]
        best = min(worth, key=lambda c: c.model.loss, default=best)
    return [best, *(c for c in ordered if c is not best)]


def at_one_loss(choices: Iterable[ShapeChoice], searches: Mapping[str, Search]) -> list[ShapeChoice]:
    """The choices, by the searches in their shapes, with what it costs to train each on to the lowest loss of them."""
    choices = list(choices)
    least, found = min(choice.model.loss for choice in choices), list[ShapeChoice]()
    for choice in choices:
        model, search = choice.model, searches[choice.shape]
        budget, n, e = search.question.budget, np.array([model.n_params]), np.array([model.experts])
        tokens, most, extra = model.tokens, budget.max_tokens, budget.extra
        if model.loss > least:
            tokens = float(tokens_at_loss(search.law, n, e, least, max_tokens=most, extra=extra)[0])
        times = tokens / model.tokens  # 1 of the lowest loss, whose dollars stay as they are, to the last digit
        longer = times * (choice.training_usd or math.nan)
        found.append(replace(choice, usd_at_loss=None if math.isnan(longer) else longer))
    return found


def better_choice(model: Candidate, searches: Mapping[str, Search], usual: str) -> ShapeChoice | None:
    """The choice of searches in several shapes where it is better than a model: cheaper (of a life in all), or of a lower loss for the price; else None."""
    found = [best[0] for name, search in searches.items() if (best := choice_in_shape(name, search)) is not None]
    if not found:
        return None
    by_loss = looks_for_loss(next(iter(searches.values())).question)
    first = in_order(at_one_loss(found, searches), usual, by_loss=by_loss)[0]
    if isinstance(model, Life) and isinstance(first.model, Life):
        return first if first.model.total_usd < (1.0 - EQUAL) * model.total_usd else None
    lower, price = first.model.loss < model.loss - FOR_NOTHING, first.model.usd_per_mtok / model.usd_per_mtok
    return first if (lower if by_loss else price < 1.0 - EQUAL or (lower and price <= 1.0 + EQUAL)) else None


def repaid_after(choice: ShapeChoice, other: ShapeChoice) -> float | None:
    """The served tokens after which a choice has repaid what its training costs more than another's; None where that is not known, 0 where it costs no more.

    The other one is trained on to the loss of the choice, where that is the lowest of all shapes.
    """
    spent, others = choice.training_usd, other.training_usd
    if spent is None or others is None or isinstance(choice.model, Life):
        return None
    if choice.usd_at_loss == spent:
        others = math.inf if other.usd_at_loss is None else other.usd_at_loss
    usd, others_usd = prices((choice, other))
    return 0.0 if spent <= others else break_even_tokens(spent, others, usd, others_usd) or math.inf
