"""How a model is trained where nobody says otherwise: batch, schedule and learning rate, by published laws.

RUN.toml and the reproduction keep the paper's recipe. Exported launches and designed sweeps follow `deepseek` (arXiv
2401.02954), the only rule of catalogue/recipe.toml that was fitted to compute and by which models of 7B and 67B were
then trained.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from typing import Any

from moescale import catalogue
from moescale.errors import InputError, unknown_name
from moescale.units import format_count, format_flops, parse_quantity

SCHEDULES = ("cosine", "wsd")
MOST_OFF = 1.5  # of a batch over what its rule says, either way, without a note: rounding alone stays below
_SYMBOLS = {"n_params": "N", "tokens": "D", "flops": "C"}


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
    """The same, with the lengths of the warm-up and of the decay of a schedule `wsd`, shares of all steps."""

    warmup: float
    decay: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe(Usual):
    """One training run: AdamW, linear warm-up, a fall to `min_lr_ratio` of the peak; sources in catalogue/recipe.toml."""

    rule: str  # of `rules`
    tokens: float
    asked_batch_tokens: float  # by the rule, or as stated: before the batch is whole sequences
    steps: int
    warmup_steps: int
    schedule: str  # one of SCHEDULES
    decay_steps: int  # in which the rate falls: with wsd the last ones, with cosine all after the warm-up
    peak_lr: float
    arithmetic: tuple[str, ...] = ()  # how batch, steps and rate come about
    notes: tuple[str, ...] = ()  # where a batch fills the GPUs alone

    @property
    def batch_tokens(self) -> int:
        """Tokens of one step of the optimiser."""
        return self.batch_sequences * self.sequence_tokens

    @property
    def min_lr(self) -> float:
        """Learning rate at the end."""
        return self.peak_lr * self.min_lr_ratio

    @property
    def decay_words(self) -> str:
        """What the learning rate does after the warm-up."""
        fall = "cosine" if self.schedule == "cosine" else f"constant, over the last {self.decay_steps:,} steps 1 - sqrt"
        return f"{fall} to {self.min_lr:.4g}"


@cache
def most_trained_tokens() -> float:
    """The most tokens that a published open model states to have been trained on; source in catalogue/training.toml."""
    return parse_quantity(catalogue.read("training.toml")["text"]["largest_trained"]["tokens"])


@cache
def defaults() -> Defaults:
    """The recipe's numbers where nobody says otherwise."""
    every = {**_stated("paper"), **_stated("own"), **_stated("wsd")}
    return Defaults(**{f.name: every[f.name] for f in fields(Defaults)})


def training_steps(tokens: float, batch_tokens: int) -> int:
    """Optimiser steps of a run of so many tokens: the nearest whole number, at least one."""
    return max(1, round(tokens / batch_tokens))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A published law of batch and peak learning rate: a row of catalogue/recipe.toml.

    `batch` and `lr` are a `factor` and powers of variables, or an `intercept` and `per_ln_n_params`.
    """

    name: str
    batch: Mapping[str, float]  # tokens of a step
    lr: Mapping[str, float]
    counts: str  # what its variables count
    dense_only: bool  # whether its runs were dense models alone
    sequence_tokens: int  # where nobody says otherwise
    warmup_steps: float  # at most
    source: str
    date: str
    fitted: Mapping[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])


def _stated(part: str) -> dict[str, Any]:
    return catalogue.read("recipe.toml")[part]


@cache
def rules() -> dict[str, Rule]:
    """The published rules by name."""
    usual = {key: _stated("launch")[key] for key in ("sequence_tokens", "warmup_steps")}
    return {name: Rule(name=name, **usual | row) for name, row in _stated("rules").items()}


def find_rule(name: str | None = None, *, where: str | None = None) -> Rule:
    """The rule of a name, or that of launches. Raises UnknownNameError with the nearest."""
    named = name or str(_stated("launch")["rule"])
    if named not in rules():
        raise unknown_name("recipe", named, rules(), where=where)
    return rules()[named]


def check_schedule(name: str, *, where: str | None = None) -> str:
    """The name of a schedule. Raises UnknownNameError with the nearest."""
    if name not in SCHEDULES:
        raise unknown_name("schedule", name, SCHEDULES, where=where)
    return name


def _variables(law: Mapping[str, float]) -> list[str]:
    return ["n_params"] if "intercept" in law else [name for name in law if name != "factor"]


def _value(law: Mapping[str, float], at: Mapping[str, float]) -> float:
    if "intercept" in law:
        return law["intercept"] + law["per_ln_n_params"] * math.log(at["n_params"])
    return law["factor"] * math.prod(at[name] ** law[name] for name in _variables(law))


def _words(law: Mapping[str, float]) -> str:
    if "intercept" in law:
        return f"{law['intercept']:g} - {-law['per_ln_n_params']:g} ln N"
    return " x ".join([f"{law['factor']:g}", *(f"{_SYMBOLS[name]}^{law[name]:.4g}" for name in _variables(law))])


def paper_peak_lr(n_params: float, *, where: str = "--peak-lr", instead: str = "state") -> float:
    """The paper's peak learning rate for N = `n_params` (dense-equivalent), 0.003239 - 0.0001395 ln N; InputError from 1.2e10, where it is 0."""
    law = rules()["paper"].lr
    if (lr := _value(law, {"n_params": n_params})) > 0:
        return lr
    zero = format_count(math.exp(-law["intercept"] / law["per_ln_n_params"]))
    what = f"the paper's learning rate falls to zero at {zero} parameters, but the model has {format_count(n_params)}"
    raise InputError(what, where=where, next_step=f"{instead} a peak learning rate, such as 3e-4")


def whole_batch(batch_tokens: float, sequence_tokens: int, gpus: int | None = None) -> int:
    """Sequences of the batch nearest to so many tokens that is 2^k or 3 x 2^k for each of `gpus` GPUs (None: in all), at least one."""
    share = batch_tokens / sequence_tokens / (gpus or 1)
    if share <= 1:
        return gpus or 1
    power = 2 ** math.floor(math.log2(share))
    near = [power, *([3 * power // 2] if power > 1 else []), 2 * power]
    return (gpus or 1) * min(near, key=lambda each: abs(math.log(each / share)))


def stated_batch(batch_tokens: float, sequence_tokens: int, gpus: int | None = None) -> int:
    """Sequences of a batch that was stated: as many where they are whole, else the nearest multiple of the GPUs, or of a power of two."""
    sequences = batch_tokens / sequence_tokens
    if sequences >= 1 and sequences.is_integer():
        return int(sequences)
    step = gpus if gpus and sequences >= gpus else 2 ** math.floor(math.log2(max(1.0, sequences / 32)))
    return max(1, round(sequences / step) * step)


def recipe_for(
    n_params: float,
    tokens: float,
    *,
    flops: float | None = None,
    rule: str | None = None,
    vocab_size: int | None = None,
    peak_lr: float | None = None,
    batch_tokens: float | None = None,
    sequence_tokens: int | None = None,
    schedule: str | None = None,
    gpus: int | None = None,
) -> Recipe:
    """The recipe for a model with N = `n_params` (dense-equivalent, no embeddings) on `tokens` tokens, by a published rule.

    `rule` names it (None: that of launches). `flops` is what its C counts, training FLOPs without embeddings (None: 6 N
    tokens). `batch_tokens` and `peak_lr` replace the rule's, `vocab_size` the paper's. Raises UnknownNameError for
    another rule or schedule, InputError where the rate of `paper` falls to zero.
    """
    chosen, schedule = find_rule(rule), check_schedule(schedule or SCHEDULES[0])
    usual: dict[str, Any] = asdict(defaults()) | ({} if vocab_size is None else {"vocab_size": vocab_size})
    warmup, decay = usual.pop("warmup"), usual.pop("decay")
    sequence = sequence_tokens or chosen.sequence_tokens
    at = {"n_params": n_params, "tokens": tokens, "flops": 6.0 * n_params * tokens if flops is None else flops}
    if batch_tokens is None:
        asked = _value(chosen.batch, at)
        sequences = whole_batch(asked, sequence, gpus)
        values = ", ".join(f"{_SYMBOLS[name]} = {_shown(name, at[name])}" for name in _variables(chosen.batch))
        origin = f"{_words(chosen.batch)} ({chosen.name}{f'; {values}' if values else ''}) = {format_count(asked)}"
    else:
        asked, sequences = batch_tokens, stated_batch(batch_tokens, sequence, gpus)
        origin = f"as stated: {format_count(asked)}"
    rate = "as stated"
    if peak_lr is None:
        rate = f"{_words(chosen.lr)} ({chosen.name})"
        instead = f"take the recipe {find_rule().name}, or state"
        peak_lr = paper_peak_lr(n_params, instead=instead) if chosen.name == "paper" else _value(chosen.lr, at)
    batch = sequences * sequence
    steps = training_steps(tokens, batch)
    warmup_steps = int(min(round(warmup * steps), chosen.warmup_steps))
    falling = min(steps, max(1, round(decay * steps))) if schedule == "wsd" else steps - warmup_steps
    notes: tuple[str, ...] = ()
    if gpus and batch > MOST_OFF * asked:
        times = f"{batch / asked:,.0f}" if batch >= 100 * asked else f"{batch / asked:.3g}"
        over = f"a sequence for each of {gpus:,} GPUs is {times} times the batch of the rule"
        notes = (f"{over}: fewer GPUs (--train-gpus) or shorter sequences (--sequence-tokens) bring it closer",)
    shared = f" = {gpus:,} GPUs x {sequences // gpus:,}" if gpus and not sequences % gpus else ""
    return Recipe(
        **usual | {"batch_sequences": sequences, "sequence_tokens": sequence},
        rule=chosen.name,
        tokens=tokens,
        asked_batch_tokens=asked,
        steps=steps,
        warmup_steps=warmup_steps,
        schedule=schedule,
        decay_steps=falling,
        peak_lr=peak_lr,
        arithmetic=(
            f"batch {origin} tokens, as {sequences:,} sequences of {sequence:,}{shared}: {batch:,} tokens",
            f"{format_count(tokens)} tokens / {batch:,} = {steps:,} steps, {warmup_steps:,} of them warm-up",
            f"peak learning rate {rate} = {peak_lr:.4g}",
        ),
        notes=notes,
    )


def _shown(name: str, value: float) -> str:
    return format_flops(value) if name == "flops" else format_count(value)
