"""The recommended model as it would be built: whole layers and heads, served with its tables, its loss at that size."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Any, Generic, TypeVar

import numpy as np

from moescale.models.architecture import NUMERIC_FIELDS, Architecture
from moescale.models.rounding import Buildable, buildable, family_of
from moescale.planning.candidate import Candidate, Costs, Limits, part_of
from moescale.scaling_laws.law import Law

STEP = 0.01  # of the size: what a built model grows or shrinks by until it meets the bound
MOST_STEPS = 12
# Heads split over so many GPUs where the proportions allow it: an odd number of them shuts tensor parallelism out of training.
TRAINED = 2
SLACK = 1e-6  # of a bound, relative: rounding
NEVER = 1e-3  # stands for a probability of zero, whose logarithm there is not
_kind_of = attrgetter(
    *(f.name for f in fields(Architecture) if f.name not in NUMERIC_FIELDS)
)  # what models in one array share
_numbers_of = attrgetter(*NUMERIC_FIELDS)

Model = TypeVar("Model", bound=Candidate)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a model as built must meet; None: no such bound."""

    max_loss: float | None = None
    max_usd_per_mtok: float | None = None
    max_total_usd: float | None = None
    max_active_params: float | None = None
    max_total_params: float | None = None
    min_probability: float | None = None  # of the loss that is promised, where the model states one

    def excesses(self, model: Candidate) -> list[tuple[float, str]]:
        """By which factor, as a logarithm, the model exceeds each of its bounds, and the two in words."""
        least, sure = self.min_probability, model.probability_at_least_base
        if least is not None and sure is not None:
            missed = [(math.log(least / max(sure, NEVER)), f"a probability of {sure:.0%} against {least:.0%}")]
        else:
            missed = []
        pairs = (
            ("loss", model.loss, self.max_loss),
            ("dollars per million output tokens", model.usd_per_mtok, self.max_usd_per_mtok),
            ("total dollars", model.total_usd, self.max_total_usd),
            ("active parameters", model.n_params_active, self.max_active_params),
            ("total parameters", model.n_params_total, self.max_total_params),
        )
        return missed + [
            (math.log(value / most), f"{name} {value:.5g} against {most:.5g}")
            for name, value, most in pairs
            if value is not None and most is not None
        ]

    def excess(self, model: Candidate) -> float:
        """The largest of the excesses; 0 or less where the model meets all its bounds."""
        return max((factor for factor, _ in self.excesses(model)), default=-math.inf)


@dataclass(frozen=True, slots=True)
class Built(Generic[Model]):
    """A whole-number shape, the model it makes, and what to say where it misses what the real-valued one meets."""

    shape: Buildable
    model: Model
    notes: tuple[str, ...] = ()


def as_built(
    law: Law, costs: Costs, model: Model, priced: Callable[[Law, Costs, Model], Model | None], bounds: Bounds
) -> Built[Model]:
    """The buildable model nearest to a real-valued one that meets the bounds, priced and predicted at its own shape.

    It is at least as large where a loss bounds it, else at most as large; where rounding misses a bound it grows, or
    shrinks, by STEP. `priced` gives the tokens, loss and dollars of a model of its size under a built family.
    """
    upwards = bounds.max_loss is not None
    factor = 1.0 + STEP if upwards else 1.0 - STEP
    steps = [replace(model, n_params=model.n_params * factor**step) for step in range(MOST_STEPS)]
    tries: list[Built[Model]] = []
    for i, each in enumerate(steps):
        if i == 1:  # the first one misses a bound
            remember_prices(costs, (nearest_shape(law, costs, other, at_most=not upwards) for other in steps))
        built = rounded(law, costs, each, priced, at_most=not upwards)
        if built is None:
            continue
        tries.append(replace(built, model=replace(built.model, intervals=carried(model, built.model))))
        if bounds.excess(built.model) <= SLACK:
            return tries[-1]
    if not tries:
        shape = buildable(law.family, model.n_params, model.experts, vocab_size=costs.vocab_size)
        note = (
            "The rounded shape cannot be served like the real-valued model; the figures are for the real-valued model."
        )
        return Built(shape, model, (note,))
    nearest = min(tries, key=lambda built: bounds.excess(built.model))
    missed = ", ".join(words for factor, words in bounds.excesses(nearest.model) if factor > SLACK)
    share = math.expm1(bounds.excess(nearest.model))
    return replace(
        nearest, notes=(f"Rounded to whole layers and heads, the model misses its bound by {share:.2%}: {missed}.",)
    )


def rounded(
    law: Law, costs: Costs, model: Model, priced: Callable[[Law, Costs, Model], Model | None], *, at_most: bool
) -> Built[Model] | None:
    """The buildable model nearest to a real-valued one from its size up (`at_most`: down), None where it cannot be served.

    `priced` as in `as_built`; it has no intervals.
    """
    return in_shape(law, costs, model, nearest_shape(law, costs, model, at_most=at_most), priced)


def in_shape(
    law: Law, costs: Costs, model: Model, shape: Buildable, priced: Callable[[Law, Costs, Model], Model | None]
) -> Built[Model] | None:
    """A model in a shape near its size, None where that cannot be served; `priced` as in `as_built`, no intervals."""
    remember_prices(costs, [shape])
    family = family_of(shape, law.family)
    sized = replace(model, n_params=shape.n_params, intervals=None)
    of_shape = replace(costs, family=family, shape=shape.architecture(), known=costs.prices[shape])
    built = priced(replace(law, family=family), of_shape, sized)
    return None if built is None else Built(shape, replace(built, architecture=shape))


def nearest_shape(law: Law, costs: Costs, model: Candidate, *, at_most: bool) -> Buildable:
    """The buildable shape nearest to a real-valued model from its size up, or down."""
    gpus = math.lcm(model.gpus, TRAINED)
    return buildable(law.family, model.n_params, model.experts, gpus=gpus, vocab_size=costs.vocab_size, at_most=at_most)


def remember_prices(costs: Costs, shapes: Iterable[Buildable]) -> None:
    """Price the shapes that `costs` does not know, all at once, which takes as long as one of them alone would."""
    new = list(dict.fromkeys(each for each in shapes if each not in costs.prices))
    for alike, at in stacked([shape.architecture() for shape in new]):
        served = costs.cheapest(alike, every=True)
        costs.prices.update((new[j], part_of(served, slice(i, i + 1))) for i, j in enumerate(at))


def stacked(models: Sequence[Architecture]) -> list[tuple[Architecture, list[int]]]:
    """Models of one kind as one, and which of the models they are: `n_layers` and all numbers that differ among them are arrays."""
    alike: dict[tuple[object, ...], list[int]] = {}
    for i, model in enumerate(models):
        alike.setdefault(_kind_of(model), []).append(i)
    found: list[tuple[Architecture, list[int]]] = []
    for at in alike.values():
        table = np.array([_numbers_of(models[i]) for i in at], float)
        differ = np.any(table != table[0], axis=0) | (np.array(NUMERIC_FIELDS) == "n_layers")
        numbers: dict[str, Any] = {NUMERIC_FIELDS[j]: table[:, j] for j in np.flatnonzero(differ).tolist()}
        found.append((replace(models[at[0]], **numbers), at))
    return found


def carried(model: Candidate, built: Candidate) -> Limits | None:
    """The intervals of a real-valued model around the built one: the same factors of each figure."""
    if model.intervals is None:
        return None
    factors = {name: _ratio(built, model, name) for name in model.intervals}
    return {name: (low * factors[name], high * factors[name]) for name, (low, high) in model.intervals.items()}


def _ratio(over: Candidate, under: Candidate, name: str) -> float:
    """One figure of a model over another's; 1 for what models do not state, such as the gain of loss."""
    return 1.0 if getattr(under, name, None) is None else getattr(over, name) / getattr(under, name)
