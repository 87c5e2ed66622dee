"""Models as they would be built: whole layers and heads, served with their tables, and the best of the shapes near a size.

Of shapes at equal loss prices differ by a fifth.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain
from operator import attrgetter
from typing import Any, Generic, TypeVar

import numpy as np

from moescale.models.architecture import NUMERIC_FIELDS, Architecture
from moescale.models.rounding import Buildable, buildable, buildable_between, family_of
from moescale.planning.candidate import Candidate, Costs, Limits, part_of
from moescale.scaling_laws.law import Law
from moescale.serving.gpu_counts import usd_at
from moescale.typing import FloatArray

STEP = 0.01  # of the size: what a built model grows or shrinks by until it meets the bound
MOST_STEPS = 12
# Heads split over so many GPUs where the proportions allow it: an odd number of them shuts tensor parallelism out of training.
TRAINED = 2
SLACK = 1e-6  # of a bound, relative: rounding
NEVER = 1e-3  # stands for a probability of zero, whose logarithm there is not
# Sizes that are looked at, over the wanted one: attention that is wide for the body, or narrow experts, make up for a tenth of N.
NEAR_SIZES = (0.85, 1.1)
# Within a bound on total parameters, where narrow experts leave room for a wider body (by 1.15 in one question); our choice.
OF_TOTAL = (0.85, 1.2)
EQUAL = 0.01  # relative difference of two prices that decides nothing
# How shapes are priced, ever fewer: at the batch of the wanted size or on its servers; how many are kept, to be priced on all servers
# in the end; and how far above a limit, as the next price may be lower.
STAGES = ((True, 24, 0.1), (False, 4, 0.02))
# What models in one array share, and what they may differ in.
_kind_of = attrgetter(*(f.name for f in fields(Architecture) if f.name not in NUMERIC_FIELDS))
_numbers_of = attrgetter(*NUMERIC_FIELDS)

Model = TypeVar("Model", bound=Candidate)
Priced = Callable[[Law, Costs, Model], Model | None]
"""The tokens, loss and dollars of a model of its size under a built family; None where it cannot be served."""
Judged = Callable[[Sequence[Buildable], float], tuple[FloatArray, FloatArray | None]]
"""The losses of shapes of an expert count by the law (s,), and with which probability they keep a promise, None without draws."""


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
        least, sure, found = self.min_probability, model.probability_at_least_base, list[tuple[float, str]]()
        if least is not None and sure is not None:
            found.append((math.log(least / max(sure, NEVER)), f"a probability of {sure:.0%} against {least:.0%}"))
        pairs = (
            ("loss", model.loss, self.max_loss),
            ("dollars per million output tokens", model.usd_per_mtok, self.max_usd_per_mtok),
            ("total dollars", model.total_usd, self.max_total_usd),
            ("active parameters", model.n_params_active, self.max_active_params),
            ("total parameters", model.n_params_total, self.max_total_params),
        )
        return found + [
            (math.log(value / most), f"{name} {value:.5g} against {most:.5g}")
            for name, value, most in pairs
            if value is not None and most is not None
        ]

    def excess(self, model: Candidate) -> float:
        """The largest of the excesses; 0 or less where the model meets all its bounds."""
        return max((factor for factor, _ in self.excesses(model)), default=-math.inf)


def met(bounds: Bounds, model: Candidate) -> bool:
    """Whether a model meets its bounds; a loss that is promised with a probability is not bounded by the law's own curve."""
    promised = bounds.min_probability is not None and model.probability_at_least_base is not None
    return (replace(bounds, max_loss=None) if promised else bounds).excess(model) <= SLACK


@dataclass(frozen=True, slots=True)
class Built(Generic[Model]):
    """A whole-number shape, the model it makes, and what to say where it misses what the real-valued one meets."""

    shape: Buildable
    model: Model
    notes: tuple[str, ...] = ()


def as_built(law: Law, costs: Costs, model: Model, priced: Priced[Model], bounds: Bounds) -> Built[Model]:
    """The buildable model nearest to a real-valued one that meets the bounds, priced and predicted at its own shape.

    It is at least as large where a loss bounds it, else at most as large; where rounding misses a bound it grows, or
    shrinks, by STEP.
    """
    upwards = bounds.max_loss is not None
    factor = 1.0 + STEP if upwards else 1.0 - STEP
    tries: list[Built[Model]] = []
    for step in range(MOST_STEPS):
        sized = replace(model, n_params=model.n_params * factor**step)
        built = in_shape(law, costs, model, nearest_shape(law, costs, sized, at_most=not upwards), priced)
        if built is not None and bounds.excess(built.model) <= SLACK:
            return built
        tries += [] if built is None else [built]
    if not tries:
        shape = buildable(law.family, model.n_params, model.experts, vocab_size=costs.vocab_size)
        what = "The rounded shape cannot be served like the real-valued model"
        note = f"{what}; the figures are for the real-valued model."
        return Built(shape, replace(model, architecture=shape), (note,))
    nearest = min(tries, key=lambda built: bounds.excess(built.model))
    missed = ", ".join(words for factor, words in bounds.excesses(nearest.model) if factor > SLACK)
    share = math.expm1(bounds.excess(nearest.model))
    note = f"Rounded to whole layers and heads, the model misses its bound by {share:.2%}: {missed}."
    return replace(nearest, notes=(note,))


def in_shape(law: Law, costs: Costs, model: Model, shape: Buildable, priced: Priced[Model]) -> Built[Model] | None:
    """A model in a shape near its size, with its intervals around the figures there; None where that cannot be served."""
    remember_prices(costs, [shape])
    family = family_of(shape, law.family)
    sized = replace(model, n_params=shape.n_params, intervals=None)
    of_shape = replace(costs, family=family, shape=shape.architecture(), known=costs.prices[shape])
    built = priced(replace(law, family=family), of_shape, sized)
    if built is None:
        return None
    return Built(shape, replace(built, architecture=shape, intervals=carried(model, built)))


def carried(model: Candidate, built: Candidate) -> Limits | None:
    """The intervals of a real-valued model around the built one: the same factors of each figure."""
    if model.intervals is None:
        return None
    found: Limits = {}
    for name, (low, high) in model.intervals.items():
        own = getattr(model, name, None)  # None for what models do not state, such as the gain of loss
        times = 1.0 if own is None else getattr(built, name) / own
        found[name] = (low * times, high * times)
    return found


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


def near_shapes(law: Law, costs: Costs, model: Candidate, shares: tuple[float, float] = NEAR_SIZES) -> list[Buildable]:
    """All whole shapes near the size of a model whose heads split over its GPUs; of equal size they differ in depth, heads and width."""
    low, high = (model.n_params * share for share in shares)
    gpus, vocab_size = math.lcm(model.gpus, TRAINED), costs.vocab_size
    return buildable_between(law.family, low, high, model.experts, gpus=gpus, vocab_size=vocab_size)


def depth_factor(shapes: Sequence[Buildable]) -> FloatArray:
    """About what depth does to the training dollars of shapes of one size, (s,): wide layers train at a higher MFU, about by the square root."""
    # Of 1,028 shapes near the sizes of three plans (5e21, 1e23 and 3e24 FLOPs) the bill rises with depth (correlation 0.53 to 0.80). It
    # says what is billed, and which shapes days or dollars may train long enough to be tried; it enters no figure.
    layers = np.array([shape.n_layers for shape in shapes], float)
    return np.sqrt(layers / np.median(layers))


def usd_nearby(
    costs: Costs, models: Sequence[Candidate], shapes: Sequence[Sequence[Buildable]], *, at_batch: bool = False
) -> list[FloatArray]:
    """Dollars a million tokens of the shapes near each of several models, on its GPUs and groups, or also at its batch; one question."""
    of = np.array([i for i, those in enumerate(shapes) for _ in those], int)
    usd = np.full(of.shape, np.inf)
    for alike, at in stacked([shape.architecture() for those in shapes for shape in those]):
        near = [models[i] for i in of[at].tolist()]
        gpus, groups = np.array([[c.gpus, c.attention_dp or 1] for c in near], float).T
        batch = np.array([c.batch or 1.0 for c in near]) if at_batch else None
        usd[at] = usd_at(alike, costs.latency, costs.deployment, gpus, groups, batch)
    return [usd[of == i] for i in range(len(models))]


def promising(
    law: Law, costs: Costs, models: Sequence[Candidate], bounds: Sequence[Bounds], judged: Judged
) -> list[list[Buildable]]:
    """Of the shapes near each model the few that should meet its bounds for the fewest dollars or, without a bound on the loss, with the lowest loss."""
    # Of each model the cheapest, and the lowest losses: of prices as good as the least, or of all without a bound on the loss.
    looked: list[tuple[int, bool, list[Buildable], FloatArray]] = []
    for j, (model, limits) in enumerate(zip(models, bounds, strict=True)):
        shapes = near_shapes(law, costs, model, NEAR_SIZES if limits.max_total_params is None else OF_TOTAL)
        loss, sure = judged(shapes, model.experts) if shapes else (np.empty(0), None)
        good = np.isfinite(loss)
        if limits.min_probability is not None and sure is not None:
            good &= sure >= limits.min_probability - SLACK
        elif limits.max_loss is not None:
            good &= loss <= limits.max_loss * (1.0 + SLACK)
        kept = [shapes[at] for at in np.flatnonzero(good).tolist()]
        looked += [(j, by_loss, kept, loss[good]) for by_loss in ((False, True) if limits.max_loss else (True,))]
    for at_batch, most, dearer in STAGES:
        near = [models[j] for j, *_ in looked]
        every_usd = usd_nearby(costs, near, [shapes for _, _, shapes, _ in looked], at_batch=at_batch)
        for i, ((j, by_loss, shapes, loss), usd) in enumerate(zip(looked, every_usd, strict=True)):
            value = np.where(usd <= (bounds[j].max_usd_per_mtok or math.inf) * (1.0 + dearer), usd, np.inf)
            if by_loss:
                alike = (1.0 + EQUAL) * np.min(value, initial=np.inf) if bounds[j].max_loss else math.inf
                value = np.where(np.isfinite(value) & (value <= alike), loss, np.inf)
            best = [at for at in np.argsort(value, kind="stable")[:most].tolist() if np.isfinite(value[at])]
            looked[i] = j, by_loss, [shapes[at] for at in best], loss[best]
    found = [dict[Buildable, None]() for _ in models]
    for j, _, shapes, _ in looked:
        found[j] |= dict.fromkeys(shapes)
    return [list(each) for each in found]


def best_near(
    law: Law, costs: Costs, models: Sequence[Model], bounds: Sequence[Bounds], priced: Priced[Model], judged: Judged
) -> list[Built[Model] | None]:
    """Of the shapes near each model the one of the lowest loss that meets its bounds, where these bound the loss of those as cheap as the cheapest; None where none does."""
    near = promising(law, costs, models, bounds, judged)
    remember_prices(costs, chain(*near))
    found: list[Built[Model] | None] = []
    for model, limits, shapes in zip(models, bounds, near, strict=True):
        every = [in_shape(law, costs, model, shape, priced) for shape in shapes]
        kept = [each for each in every if each is not None and met(limits, each.model)]
        most = math.inf
        if limits.max_loss is not None:
            most = (1.0 + EQUAL) * min((each.model.usd_per_mtok for each in kept), default=math.inf)
        alike = (each for each in kept if each.model.usd_per_mtok <= most)
        found.append(min(alike, key=lambda each: each.model.loss, default=None))
    return found
