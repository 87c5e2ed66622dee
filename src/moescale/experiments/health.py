"""Whether a run is sound: divergence of its loss, and how evenly its routers use their experts. Needs no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import entr

# All of these are ours; no publication settles them.
MARGIN_NATS = 1.0  # a smoothed loss so far above its own minimum ..
LEAST_STRETCH, STRETCH_SHARE = 50, 0.05  # .. for so many steps, or this share, has diverged: spikes recover faster
SMOOTHING = 0.9  # weight of the past in the smoothed loss
DEAD_SHARE = 0.01  # an expert with less than this share of an even load is dead


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """What divergence is judged by, after some steps; `next` gives that after one more."""

    steps: int  # of the whole run
    smoothed: float = math.nan
    lowest: float = math.inf
    above: int = 0  # steps in a row with a smoothed loss above the margin
    why: str = ""  # empty while the run is sound

    def next(self, loss: float, gradient_norm: float = 0.0) -> Watch:
        """The watch after a step with this training loss (nats) and gradient norm."""
        if self.why:
            return self
        for what, value in (("loss", loss), ("gradient", gradient_norm)):
            if not math.isfinite(value):
                return replace(self, why=f"the {what} is not finite")
        smoothed = loss if math.isnan(self.smoothed) else SMOOTHING * self.smoothed + (1 - SMOOTHING) * loss
        lowest = min(self.lowest, smoothed)
        above = self.above + 1 if smoothed > lowest + MARGIN_NATS else 0
        stretch = max(LEAST_STRETCH, round(STRETCH_SHARE * self.steps))
        why = f"the loss stayed {MARGIN_NATS:g} above its minimum for {stretch} steps" if above >= stretch else ""
        return replace(self, smoothed=smoothed, lowest=lowest, above=above, why=why)


def balance(tokens_by_expert: ArrayLike) -> dict[str, Any]:
    """How evenly experts are used: `tokens_by_expert` (layers, experts) counts the tokens that routers sent to each.

    `imbalance` is the largest load over the mean, `router_entropy` that of the loads in units of ln E, both of the worst
    layer; `dead_experts` counts those of all layers below 1% of an even load (our threshold). A dense model, which has no
    layer with experts, is perfectly even. `token_drop` is 0: no expert has a capacity, so no token is dropped.
    """
    counts = np.asarray(tokens_by_expert, dtype=np.float64)
    found: dict[str, Any] = {"dead_experts": 0, "token_drop": 0.0, "imbalance": 1.0, "router_entropy": 1.0}
    if counts.sum() and counts.shape[1] > 1:
        shares, experts = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1.0), counts.shape[1]
        found["dead_experts"] = int(np.sum(shares * experts < DEAD_SHARE))
        found["imbalance"] = float(shares.max() * experts)
        found["router_entropy"] = float(np.clip(entr(shares).sum(axis=1).min() / math.log(experts), 0.0, 1.0))
    return found
