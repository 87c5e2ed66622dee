"""The learning rate of every step, as a factor of its peak: pure functions."""

from __future__ import annotations

import math

from moescale.experiments.settings import TrainingSettings


def cosine(step: int, *, steps: int, warmup_steps: int, min_ratio: float) -> float:
    """Linear warm-up over `warmup_steps`, then half a cosine from 1 to `min_ratio` at the last of `steps` (0-based step)."""
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    progress = (step + 1 - warmup_steps) / max(1, steps - warmup_steps)
    return min_ratio + (1.0 - min_ratio) * 0.5 * (1.0 + math.cos(math.pi * min(progress, 1.0)))


def warmup_stable_decay(step: int, *, steps: int, warmup_steps: int, decay_steps: int, min_ratio: float) -> float:
    """Linear warm-up, a constant rate, and over the last `decay_steps` of `steps` a fall as 1 - sqrt to `min_ratio`.

    The form of the fall is that of Hägele et al. 2024 (arXiv 2405.18392, equation 1), who let it fall to zero.
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    progress = (step + 1 - (steps - decay_steps)) / decay_steps
    return 1.0 if progress <= 0 else min_ratio + (1.0 - min_ratio) * (1.0 - math.sqrt(min(progress, 1.0)))


def learning_rate(training: TrainingSettings, step: int) -> float:
    """The learning rate of a 0-based step of a run."""
    t, steps = training, training.steps
    warmup = round(t.warmup * steps)
    if t.schedule == "cosine":
        return t.peak_lr * cosine(step, steps=steps, warmup_steps=warmup, min_ratio=t.min_lr_ratio)
    decay = min(steps, max(1, round(t.decay * steps)))
    return t.peak_lr * warmup_stable_decay(
        step, steps=steps, warmup_steps=warmup, decay_steps=decay, min_ratio=t.min_lr_ratio
    )
