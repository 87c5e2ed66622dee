"""How a recommended model is to be trained: batch, schedule and learning rate, the paper's where it states them."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from moescale import catalogue
from moescale.errors import InputError
from moescale.units import format_count


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One training run: AdamW, linear warm-up, cosine to `min_lr_ratio` of the peak; sources in catalogue/export.toml."""

    tokens: float
    batch_sequences: int
    sequence_tokens: int
    steps: int
    warmup_steps: int
    peak_lr: float
    min_lr_ratio: float
    weight_decay: float
    beta1: float
    beta2: float
    adam_eps: float
    grad_clip: float
    balance_loss: float
    init_std: float
    rope_theta: float
    rms_norm_eps: float
    vocab_size: int
    notes: tuple[str, ...] = ()

    @property
    def batch_tokens(self) -> int:
        """Tokens of one step of the optimiser."""
        return self.batch_sequences * self.sequence_tokens

    @property
    def min_lr(self) -> float:
        """Learning rate at the end."""
        return self.peak_lr * self.min_lr_ratio

    def to_dict(self) -> dict[str, object]:
        """JSON-ready values."""
        record: dict[str, object] = {f.name: getattr(self, f.name) for f in fields(self)}
        return record | {"notes": list(self.notes)}


def paper_peak_lr(n_params: float) -> float:
    """The paper's peak learning rate for N = `n_params` (dense-equivalent, no embeddings): 0.003239 - 0.0001395 ln N.

    Raises InputError where the formula falls to zero, from 1.2e10 parameters.
    """
    stated = catalogue.read("export.toml")["recipe"]
    lr = float(stated["lr_intercept"]) + float(stated["lr_per_ln_n"]) * math.log(n_params)
    if lr <= 0:
        zero = math.exp(-float(stated["lr_intercept"]) / float(stated["lr_per_ln_n"]))
        raise InputError(
            f"the paper's learning rate falls to zero at {format_count(zero)} parameters, and the model has "
            f"{format_count(n_params)}",
            where="--peak-lr",
            next_step="state a peak learning rate, such as 3e-4",
        )
    return lr


def recipe_for(
    n_params: float, tokens: float, *, vocab_size: int | None = None, peak_lr: float | None = None
) -> Recipe:
    """The recipe for a model with N = `n_params` (dense-equivalent, no embeddings) on `tokens` tokens.

    `vocab_size` and `peak_lr` take the place of the paper's. Steps are rounded up, so that no token is left out.
    """
    stated = catalogue.read("export.toml")["recipe"]
    own = stated["own"]
    batch_sequences, sequence_tokens = int(stated["batch_sequences"]), int(stated["sequence_tokens"])
    steps = max(1, math.ceil(tokens / (batch_sequences * sequence_tokens)))
    notes: list[str] = []
    if peak_lr is None:
        peak_lr = paper_peak_lr(n_params)
        least, most = stated["lr_fitted_n_params"]
        if not least <= n_params <= most:
            notes.append(
                f"the learning rate extrapolates the paper's formula, which it states for {format_count(least)} to "
                f"{format_count(most)} parameters"
            )
    return Recipe(
        tokens=tokens,
        batch_sequences=batch_sequences,
        sequence_tokens=sequence_tokens,
        steps=steps,
        warmup_steps=round(float(stated["warmup"]) * steps),
        peak_lr=peak_lr,
        min_lr_ratio=float(stated["min_lr_ratio"]),
        weight_decay=float(stated["weight_decay"]),
        beta1=float(stated["beta1"]),
        beta2=float(stated["beta2"]),
        adam_eps=float(stated["adam_eps"]),
        grad_clip=float(stated["grad_clip"]),
        balance_loss=float(own["balance_loss"]),
        init_std=float(own["init_std"]),
        rope_theta=float(own["rope_theta"]),
        rms_norm_eps=float(own["rms_norm_eps"]),
        vocab_size=int(stated["vocab_size"]) if vocab_size is None else vocab_size,
        notes=tuple(notes),
    )
