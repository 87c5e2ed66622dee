"""Intervals of a plan: its models, and the models that each of a law's draws would take in their place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from moescale.planning.candidate import AnyRow, Limits, Unreachable
from moescale.planning.draws import Draws
from moescale.planning.sampled_costs import SampledCosts
from moescale.planning.total_cost import LifetimeCost
from moescale.scaling_laws.law import interval
from moescale.typing import FloatArray

KNOWN = 0.9  # of the draws, as many as an interval holds
OF_PRICE = ("usd_per_mtok", "cost_ratio")  # what a model has where it is served

Figures = Mapping[str, FloatArray]  # by name, (k, m): of each draw and each row


def optima_limits(draws: Draws, sampled: SampledCosts) -> Figures:
    """Figures of the loss-optimal model of each expert count."""
    best = draws.best
    usd = sampled.usd_per_mtok(best.n_params)
    return {"n_params": best.n_params, "tokens": best.tokens, "loss": best.loss, "usd_per_mtok": usd}


def at_loss_limits(draws: Draws, sampled: SampledCosts, base_usd: float | None, n_params: FloatArray) -> Figures:
    """Figures of the smallest model of each expert count that meets each draw's goal, and the losses of those that are chosen, of m sizes."""
    small = draws.smallest
    usd = sampled.usd_per_mtok(small.n_params)
    found = {"n_params": small.n_params, "tokens": small.tokens, "usd_per_mtok": usd}
    found["size_ratio"] = small.n_params / draws.best.n_params
    of_base = {} if base_usd is None else {"cost_ratio": usd / base_usd}
    return {**found, **of_base, **loss_limits(draws, n_params)}


def loss_limits(draws: Draws, n_params: FloatArray) -> Figures:
    """The losses of models of m sizes, and what each draw has them gain on its goal."""
    known = np.where(np.isfinite(n_params), n_params, 1e9)
    losses = np.where(np.isfinite(n_params), draws.losses(known, draws.experts), np.nan)
    return {"loss": losses, "loss_gain": draws.goal[:, None] - losses}


def lifetime_limits(found: LifetimeCost) -> Figures:
    """Figures of lifetime models (k, m)."""
    names = ("n_params", "tokens", "loss", "training_flops", "training_usd", "serving_usd", "total_usd")
    return {name: getattr(found, name) for name in names}


def with_intervals(rows: Sequence[AnyRow], figures: Figures | None) -> list[AnyRow]:
    """The rows with the intervals of their figures, where there are draws; of what a model costs only where it is served.

    Without those that fewer than KNOWN of the draws have: an interval of the others alone could leave out the answer, as half
    of an ensemble may know no such model.
    """
    limits: list[Limits] = [{} for _ in rows]
    for name, values in (figures or {}).items():
        known = np.flatnonzero(np.isfinite(values).mean(axis=0) >= KNOWN)
        if known.size == 0:
            continue
        finite = np.where(np.isfinite(values[:, known]), values[:, known], np.nan)
        for j, low, high in zip(known.tolist(), *interval(finite), strict=True):
            if rows[j].infeasible is None or name not in OF_PRICE:
                limits[j][name] = (float(low), float(high))
    return [
        c if isinstance(c, Unreachable) else replace(c, intervals=own or None)
        for c, own in zip(rows, limits, strict=True)
    ]
