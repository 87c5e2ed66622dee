"""Intervals of a plan: its models, and the models that each of a law's draws would take in their place."""

from __future__ import annotations

import numpy as np

from moescale.planning.candidate import Limits
from moescale.planning.draws import Draws
from moescale.planning.sampled_costs import SampledCosts
from moescale.planning.total_cost import LifetimeCost
from moescale.scaling_laws.law import interval
from moescale.typing import FloatArray

KNOWN = 0.9  # of the draws, as many as an interval holds


def optima_limits(draws: Draws, sampled: SampledCosts) -> list[Limits]:
    """Intervals of the loss-optimal model of each expert count."""
    best = draws.best
    usd = sampled.usd_per_mtok(best.n_params)
    return _limits({"n_params": best.n_params, "tokens": best.tokens, "loss": best.loss, "usd_per_mtok": usd})


def at_loss_limits(draws: Draws, sampled: SampledCosts, base_usd: float | None, n_params: FloatArray) -> list[Limits]:
    """Intervals of the smallest model of each expert count that meets each draw's goal, their dollars also over the base's.

    That of the loss is of the models of m sizes that are chosen.
    """
    small = draws.smallest
    usd = sampled.usd_per_mtok(small.n_params)
    figures = {"n_params": small.n_params, "tokens": small.tokens, "usd_per_mtok": usd}
    figures["size_ratio"] = small.n_params / draws.best.n_params
    found = _limits(figures if base_usd is None else figures | {"cost_ratio": usd / base_usd})
    return [limits | of_loss for limits, of_loss in zip(found, loss_limits(draws, n_params), strict=True)]


def loss_limits(draws: Draws, n_params: FloatArray) -> list[Limits]:
    """Intervals of the losses of models of m sizes, and of what each draw has them gain on its goal."""
    known = np.where(np.isfinite(n_params), n_params, 1e9)
    losses = np.where(np.isfinite(n_params), draws.losses(known, draws.experts), np.nan)
    return _limits({"loss": losses, "loss_gain": draws.goal[:, None] - losses})


def lifetime_limits(found: LifetimeCost) -> list[Limits]:
    """Intervals of lifetime models (k, m)."""
    names = ("n_params", "tokens", "loss", "training_flops", "training_usd", "serving_usd", "total_usd")
    return _limits({name: getattr(found, name) for name in names})


def _limits(figures: dict[str, FloatArray]) -> list[Limits]:
    """Intervals of named figures (k, m) of each of m models; without those that fewer than KNOWN of the draws have.

    An interval of the others alone could leave out the answer: half of an ensemble may know no such model.
    """
    found: list[Limits] = [{} for _ in range(next(iter(figures.values())).shape[1])]
    for name, values in figures.items():
        known = np.flatnonzero(np.isfinite(values).mean(axis=0) >= KNOWN)
        if known.size == 0:
            continue
        finite = np.where(np.isfinite(values[:, known]), values[:, known], np.nan)
        for j, low, high in zip(known, *interval(finite), strict=True):
            found[j][name] = (float(low), float(high))
    return found
