"""How a model is trained where nobody says otherwise: batch, schedule and learning rate, the paper's where it states them."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from functools import cache
from typing import Any

from moescale import catalogue
from moescale.errors import InputError
from moescale.io.records import record
from moescale.units import format_count, parse_quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class Usual:
    """The numbers of catalogue/recipe.toml that hold for every run: the paper's, of Llama 2 what it leaves open, our own."""

    batch_sequences: int
    sequence_tokens: int
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults(Usual):
    """The same, with the length of the warm-up."""

    warmup: float  # share of all steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe(Usual):
    """One training run: AdamW, linear warm-up, cosine to `min_lr_ratio` of the peak; sources in catalogue/recipe.toml."""

    tokens: float
    steps: int
    warmup_steps: int
    peak_lr: float
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
        return record(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextCeiling:
    """How many tokens of text a model can be trained on; sources in catalogue/training.toml."""

    largest_trained_tokens: float  # the most that a published open model states
    largest_trained_model: str  # which, as catalogue/shapes.toml names it
    largest_trained_source: str
    largest_trained_date: str
    stock_tokens: float  # estimate of the public text that people wrote, repetition included
    stock_interval: tuple[float, float]  # 90% of the estimate
    stock_source: str
    stock_date: str

    def to_dict(self) -> dict[str, object]:
        """JSON-ready values."""
        return record(self)


@cache
def text_ceiling() -> TextCeiling:
    """The most tokens that a published open model was trained on, and the estimated stock of text."""
    stated = catalogue.read("training.toml")["text"]
    largest, stock = stated["largest_trained"], stated["stock"]
    low, high = map(parse_quantity, stock["interval"])
    return TextCeiling(
        largest_trained_tokens=parse_quantity(largest["tokens"]),
        largest_trained_model=largest["model"],
        largest_trained_source=largest["source"],
        largest_trained_date=largest["date"],
        stock_tokens=parse_quantity(stock["tokens"]),
        stock_interval=(low, high),
        stock_source=stock["source"],
        stock_date=stock["date"],
    )


@cache
def defaults() -> Defaults:
    """The recipe's numbers where nobody says otherwise."""
    stated = catalogue.read("recipe.toml")
    every: dict[str, Any] = {**stated["paper"], **stated["own"]}
    return Defaults(**{f.name: every[f.name] for f in fields(Defaults)})


def training_steps(tokens: float, batch_tokens: int) -> int:
    """Optimiser steps of a run of so many tokens: the nearest whole number, at least one."""
    return max(1, round(tokens / batch_tokens))


def paper_peak_lr(n_params: float, *, where: str = "--peak-lr") -> float:
    """The paper's peak learning rate for N = `n_params` (dense-equivalent, no embeddings): 0.003239 - 0.0001395 ln N.

    Raises InputError where the formula falls to zero, from 1.2e10 parameters; `where` is where one could be stated.
    """
    stated = catalogue.read("recipe.toml")["paper"]
    lr = float(stated["lr_intercept"]) + float(stated["lr_per_ln_n"]) * math.log(n_params)
    if lr <= 0:
        zero = format_count(math.exp(-float(stated["lr_intercept"]) / float(stated["lr_per_ln_n"])))
        size = format_count(n_params)
        what = f"the paper's learning rate falls to zero at {zero} parameters, and the model has {size}"
        raise InputError(what, where=where, next_step="state a peak learning rate, such as 3e-4")
    return lr


def recipe_for(
    n_params: float, tokens: float, *, vocab_size: int | None = None, peak_lr: float | None = None
) -> Recipe:
    """The recipe for a model with N = `n_params` (dense-equivalent, no embeddings) on `tokens` tokens.

    `vocab_size` and `peak_lr` take the place of the paper's.
    """
    usual: dict[str, Any] = asdict(defaults()) | ({} if vocab_size is None else {"vocab_size": vocab_size})
    warmup: float = usual.pop("warmup")
    steps = training_steps(tokens, usual["batch_sequences"] * usual["sequence_tokens"])
    notes: tuple[str, ...] = ()
    if peak_lr is None:
        peak_lr = paper_peak_lr(n_params)
        least, most = catalogue.read("recipe.toml")["paper"]["lr_fitted_n_params"]
        if not least <= n_params <= most:
            stated = f"{format_count(least)} to {format_count(most)} parameters"
            notes = (f"the learning rate extrapolates the paper's formula, which it states for {stated}",)
    warmup_steps = round(warmup * steps)
    return Recipe(tokens=tokens, steps=steps, warmup_steps=warmup_steps, peak_lr=peak_lr, notes=notes, **usual)
