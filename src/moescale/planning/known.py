"""Known models beside a plan: their loss by its law, their serving cost as built, and how far from its frontier they lie."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from moescale.models.coordinates import expansion, of_architecture
from moescale.planning.candidate import Candidate, Trained, values_of
from moescale.planning.question import KnownModel, Question, only_experts
from moescale.planning.search import Search, known_model, reach_words
from moescale.scaling_laws.law import Law
from moescale.units import expert_model


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownRow(Trained):
    """A known model as a row of a plan; ratios are over what the plan's frontier offers, None where it offers nothing.

    Sizes are those of the model as built, without embeddings; n_params and experts those that the plan's law counts.
    """

    name: str
    expansion: float
    n_experts: float | None = None  # routed experts of a layer, as it is built; None in files of before it was there
    loss_ratio_to_frontier: float | None = None  # over the lowest loss at its serving cost or less
    cost_ratio_to_frontier: float | None = None  # over the fewest dollars at its loss or less
    beyond_law: str | None = None  # why the law may not speak of it
    trained_in: str | None = None  # the precision that its training is priced in, where that is not the plan's


def known_rows(search: Search, frontier: Sequence[Candidate]) -> tuple[KnownRow, ...]:
    """The models that the question names, in its order, against the frontier of its budget."""
    found: list[KnownRow] = []
    price = search.question.training
    for model in search.question.against:
        paid = training_usd(search.question, model)
        row = replace(known_model(search.law, model, search.costs), training_usd=paid)
        usd = row.usd_per_mtok
        losses = [c.loss for c in frontier if usd is not None and c.usd_per_mtok <= usd]
        dollars = [c.usd_per_mtok for c in frontier if c.loss <= row.loss]
        known = KnownRow(
            **values_of(row),
            name=model.name,
            expansion=float(of_architecture(model.architecture)[1]),
            n_experts=float(model.architecture.n_experts),
            loss_ratio_to_frontier=row.loss / min(losses) if losses else None,
            cost_ratio_to_frontier=usd / min(dollars) if dollars and usd is not None else None,
            beyond_law=beyond_law(search.law, row.experts),
            trained_in=model.trained_in if price and model.trained_in != price.launch.precision else None,
        )
        found.append(known)
    return tuple(found)


def training_usd(question: Question, model: KnownModel) -> float | None:
    """Dollars of training a known model as it was trained; None without a price, and where the stated GPUs do not hold it."""
    priced = replace(question, training=question.training and model.priced_as_trained(question.training))
    usd = priced.training_usd(model.architecture, model.training_flops, model.tokens)
    return usd if math.isfinite(usd) else None


def varied_expansion(law: Law, experts: float) -> tuple[float, float]:
    """The expansion X of a model, and the largest at which labs varied N and D; infinite where the law does not say."""
    varied = law.evidence.get("varied_expansion")
    return float(expansion(law.family, experts)), varied if isinstance(varied, float) else math.inf


def beyond_law(law: Law, experts: float) -> str | None:
    """Why a law may not speak of a model with so many experts as its family counts them; None where it may."""
    if (only := only_experts(law)) is not None:
        return None if experts == only else f"{law.name} knows {expert_model(only)}s only"
    if law.max_experts is None or law.allows(experts):
        return None
    own, most = (float(expansion(law.family, e)) for e in (experts, law.max_experts))
    return f"{law.name} {reach_words(law)} X = {most:.3g} and is not trusted at {own:.3g}"
