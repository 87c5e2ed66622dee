"""The whole shapes near the size of a model, and which of them promise most: their prices differ by a fifth at equal loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from moescale.models.architecture import NUMERIC_FIELDS
from moescale.models.rounding import Buildable, buildable_between
from moescale.planning.as_built import SLACK, TRAINED, Bounds, Built, Model, carried, in_shape, stacked
from moescale.planning.candidate import Candidate, Costs
from moescale.scaling_laws.law import Law
from moescale.serving.gpu_counts import usd_at
from moescale.typing import FloatArray

# Sizes that are looked at, over the wanted one: attention that is wide for the body, or narrow experts, make up for a tenth of N.
NEAR_SIZES = (0.85, 1.1)
OF_TOTAL = (
    0.85,
    1.2,
)  # within a bound on total parameters, where narrow experts leave room for a wider body (by 1.15 in one question); our choice
EQUAL = 0.01  # relative difference of two prices that decides nothing
# How shapes are priced, ever fewer: at the batch of the wanted size or on its servers; how many are kept, to be priced on all servers
# in the end; and how far above a limit, as the next price may be lower.
STAGES = ((True, 24, 0.1), (False, 4, 0.02))

Judged = Callable[[Sequence[Buildable], float], tuple[FloatArray, FloatArray | None]]
"""The losses of shapes of an expert count by the law (s,), and with which probability they keep a promise, None without draws."""


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
    found = [np.full(len(those), np.inf) for those in shapes]
    known = [i for i, those in enumerate(shapes) if those]
    for _, at in stacked([shapes[i][0].architecture() for i in known]):
        own = [known[j] for j in at]
        most = max(len(shapes[i]) for i in own)
        # A column a model, with its last shape again where it has fewer than others.
        table = [shapes[i][min(row, len(shapes[i]) - 1)] for row in range(most) for i in own]
        ((alike, _),) = stacked([shape.architecture() for shape in table])
        numbers = {
            name: np.reshape(number, (most, -1)) for name in NUMERIC_FIELDS if np.ndim(number := getattr(alike, name))
        }
        gpus = np.array([models[i].gpus for i in own], float)
        groups = np.array([models[i].attention_dp or 1 for i in own], float)
        batch = np.array([models[i].batch or 1.0 for i in own]) if at_batch else None
        usd = usd_at(replace(alike, **numbers), costs.latency, costs.deployment, gpus, groups, batch)
        for column, i in enumerate(own):
            found[i] = usd[: len(shapes[i]), column]
    return found


def promising(
    law: Law, costs: Costs, models: Sequence[Candidate], bounds: Sequence[Bounds], judged: Judged
) -> list[list[Buildable]]:
    """Of the shapes near each model the few that should meet its bounds for the fewest dollars or, without a bound on the loss, with the lowest loss."""
    shapes_of: list[list[Buildable]] = []
    losses_of: list[FloatArray] = []
    for model, limits in zip(models, bounds, strict=True):
        shapes = near_shapes(law, costs, model, NEAR_SIZES if limits.max_total_params is None else OF_TOTAL)
        loss, sure = judged(shapes, model.experts) if shapes else (np.empty(0), None)
        good = np.isfinite(loss)
        if limits.min_probability is not None and sure is not None:
            good &= sure >= limits.min_probability - SLACK
        elif limits.max_loss is not None:
            good &= loss <= limits.max_loss * (1.0 + SLACK)
        shapes_of.append([shape for shape, one in zip(shapes, good.tolist(), strict=True) if one])
        losses_of.append(loss[good])
    # The cheapest, and beside them the lowest losses: of prices that are as good as the least, or of all without a bound on the loss.
    looked = [(j, by) for j, limits in enumerate(bounds) for by in ((False, True) if limits.max_loss else (True,))]
    kept, losses = [shapes_of[j] for j, _ in looked], [losses_of[j] for j, _ in looked]
    for at_batch, most, dearer in STAGES:
        every_usd = usd_nearby(costs, [models[j] for j, _ in looked], kept, at_batch=at_batch)
        for i, ((j, by_loss), usd) in enumerate(zip(looked, every_usd, strict=True)):
            value = np.where(usd <= (bounds[j].max_usd_per_mtok or math.inf) * (1.0 + dearer), usd, np.inf)
            if by_loss:
                alike = (1.0 + EQUAL) * np.min(value, initial=np.inf) if bounds[j].max_loss else math.inf
                value = np.where(np.isfinite(value) & (value <= alike), losses[i], np.inf)
            best = [at for at in np.argsort(value, kind="stable")[:most].tolist() if np.isfinite(value[at])]
            kept[i], losses[i] = [kept[i][at] for at in best], losses[i][best]
    found = [dict[Buildable, None]() for _ in models]
    for (j, _), shapes in zip(looked, kept, strict=True):
        found[j] |= dict.fromkeys(shapes)
    return [list(each) for each in found]


def best_shape(
    law: Law,
    costs: Costs,
    model: Model,
    shapes: Iterable[Buildable],
    priced: Callable[[Law, Costs, Model], Model | None],
    bounds: Bounds,
) -> Built[Model] | None:
    """The shape of the lowest loss that meets the bounds, where these bound the loss of those as cheap as the cheapest; None where none does; else as `as_built`."""
    found = [in_shape(law, costs, model, shape, priced) for shape in shapes]
    kept = [each for each in found if each is not None and met(bounds, each.model)]
    if not kept:
        return None
    to_loss = bounds.max_loss is not None
    least = min(each.model.usd_per_mtok for each in kept)
    alike = [each for each in kept if not to_loss or each.model.usd_per_mtok <= (1.0 + EQUAL) * least]
    best = min(alike, key=lambda each: each.model.loss)
    return replace(best, model=replace(best.model, intervals=carried(model, best.model)))


def met(bounds: Bounds, model: Candidate) -> bool:
    """Whether a model meets its bounds; a loss that is promised with a probability is not bounded by the law's own curve."""
    promised = bounds.min_probability is not None and model.probability_at_least_base is not None
    return (replace(bounds, max_loss=None) if promised else bounds).excess(model) <= SLACK
