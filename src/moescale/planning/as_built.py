"""The recommended model as it would be built: whole layers and heads, served with its tables, its loss at that size."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from moescale.models.rounding import Buildable, buildable, family_of
from moescale.planning.candidate import Candidate, Costs
from moescale.scaling_laws.law import Law

STEP = 0.01  # of the size: what a built model grows or shrinks by until it meets the bound
MOST_STEPS = 12
SLACK = 1e-6  # of a bound, relative: rounding

Record = Callable[[Law, Costs, Candidate], Candidate]  # of the model whose N is the candidate's, under a built family


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a model as built must meet; None: no such bound."""

    max_loss: float | None = None
    max_usd_per_mtok: float | None = None
    max_total_usd: float | None = None

    def excess(self, model: Candidate) -> float:
        """By which factor, as a logarithm, the model misses its bounds at most; 0 or less where it meets them all."""
        pairs = (
            (model.loss, self.max_loss),
            (model.usd_per_mtok, self.max_usd_per_mtok),
            (model.total_usd, self.max_total_usd),
        )
        beyond = [math.log(value / most) for value, most in pairs if value is not None and most is not None]
        return max(beyond, default=-math.inf)


@dataclass(frozen=True, slots=True)
class Built:
    """A whole-number shape, the model it makes, and what to say where it misses what the real-valued one meets."""

    shape: Buildable
    model: Candidate
    notes: tuple[str, ...] = ()


def as_built(law: Law, costs: Costs, model: Candidate, record: Record, bounds: Bounds) -> Built:
    """The buildable model nearest to a real-valued one that meets the bounds, priced and predicted at its own shape.

    It is at least as large where a loss bounds it, else at most as large; where rounding misses a bound it grows, or
    shrinks, by STEP. `record` gives its tokens, loss and dollars.
    """
    upwards = bounds.max_loss is not None
    tries: list[Built] = []
    for step in range(MOST_STEPS):
        size = (model.n_params or 0.0) * (1.0 + STEP if upwards else 1.0 - STEP) ** step
        shape = buildable(
            law.family, size, model.experts, gpus=model.gpus or 1, vocab_size=costs.vocab_size, at_most=not upwards
        )
        family = family_of(shape, law.family)
        built = record(
            replace(law, family=family),
            replace(costs, family=family, shape=shape),
            replace(model, n_params=shape.n_params, intervals=None),
        )
        if built.usd_per_mtok is None:
            continue
        tries.append(Built(shape, replace(built, intervals=_carried(model, built))))
        if bounds.excess(built) <= SLACK:
            return tries[-1]
    if not tries:
        shape = buildable(law.family, model.n_params or 0.0, model.experts, vocab_size=costs.vocab_size)
        note = "The whole-number shape cannot be served as the real-valued model can; figures are of the latter."
        return Built(shape, model, (note,))
    nearest = min(tries, key=lambda built: bounds.excess(built.model))
    return replace(nearest, notes=(_missed(nearest.model, bounds),))


def _carried(model: Candidate, built: Candidate) -> dict[str, tuple[float, float]] | None:
    """The intervals of a real-valued model around the built one: the same factors of each figure."""
    if model.intervals is None:
        return None
    factors = {
        name: (getattr(built, name, None) or 1.0) / (getattr(model, name, None) or 1.0) for name in model.intervals
    }
    return {name: (low * factors[name], high * factors[name]) for name, (low, high) in model.intervals.items()}


def _missed(model: Candidate, bounds: Bounds) -> str:
    parts = [
        f"{name} {value:.5g} against {most:.5g}"
        for name, value, most in (
            ("loss", model.loss, bounds.max_loss),
            ("dollars a million tokens", model.usd_per_mtok, bounds.max_usd_per_mtok),
            ("dollars in all", model.total_usd, bounds.max_total_usd),
        )
        if value is not None and most is not None and math.log(value / most) > SLACK
    ]
    return f"In whole layers and heads the model misses its bound by {math.expm1(bounds.excess(model)):.2%}: {', '.join(parts)}."
