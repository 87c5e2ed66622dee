"""RUN.toml, the description of one training run: checked, with every default filled in. Needs no torch."""

from __future__ import annotations

import datetime
import hashlib
import json
import math
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, StrictBool, model_validator

from moescale.errors import InputError
from moescale.export.huggingface import config_of
from moescale.hardware.gpus import gpus
from moescale.io import toml
from moescale.io.toml import Quantity, Table, checked, read_toml
from moescale.models.architecture import Architecture
from moescale.models.family import find_family
from moescale.models.parameters import count_parameters, dense_equivalent_params, training_flops_per_token
from moescale.models.recipe import defaults, paper_peak_lr, training_steps
from moescale.models.rounding import FURTHER, Buildable, buildable

USUAL = defaults()
FAMILY = "yun2024"  # whose shapes a size stands for
PAPER_HEAD = 64  # head_dim of the paper's four shapes: 768 wide with 12 heads (appendix A)
SHAPE = ("d_model", "n_layers", "n_heads", "n_kv_heads", "head_dim", "d_ffn")
NOT_COMPUTED: Any = {
    **dict.fromkeys(("output", "tracking", "parallel"), True),
    "data": {"corpus"},  # where it lies; run.py compares the corpus itself
    "training": {"micro_batch_tokens", "checkpoint_every_s", "checkpoint_every_steps"},
}
"""Settings that do not change what a run computes."""


class ModelSettings(Table):
    """The table [model]: a whole-number shape, stated or the buildable one nearest to a size; 0 is filled in."""

    n_params: toml.Size | None = None  # None once the shape is known, as is `shape`
    shape: Literal["fine-grained", "deepseek"] | None = None  # None: the proportions of FAMILY
    d_model: toml.Width = 0
    n_layers: Annotated[int, Quantity, Field(ge=1, le=10**4)] = 0
    n_heads: toml.Width = 0
    n_kv_heads: toml.Width = 0
    head_dim: toml.Width = 0
    d_ffn: toml.Width = 0
    d_expert: toml.Width | None = None  # these as in Buildable, where it has them
    d_shared_expert: toml.Width | None = None
    kv_lora_rank: toml.Width | None = None
    q_lora_rank: toml.Width | None = None
    qk_rope_head_dim: toml.Width | None = None
    v_head_dim: toml.Width | None = None
    experts: toml.Experts = 1
    top_k: toml.Experts = 2  # never more than `experts`
    moe_every: Annotated[int, Quantity, Field(ge=1, le=10**4)] = 2  # layers 1, 3, 5 .. hold experts
    balance_loss: Annotated[float, Quantity, Field(ge=0, le=1e3)] = USUAL.balance_loss

    @model_validator(mode="after")
    def complete(self) -> Self:
        """Fill in the shape."""
        if self.shape is not None:
            usual = find_family(self.shape)
            self.fill(**{key: int(getattr(usual, key)) for key in {"top_k", "moe_every"} - self.model_fields_set})
        self.fill(top_k=min(self.top_k, self.experts))
        if self.n_params is not None:
            if stated := [key for key in (*SHAPE, *FURTHER) if getattr(self, key)]:
                raise InputError(f"{stated[0]} does not go with n_params", next_step="state one of the two")
            shape = _nearest_shape(self.n_params, self)
            self.fill(n_params=None, shape=None, **{key: getattr(shape, key) for key in SHAPE})
            self.fill(**{key: getattr(shape, key) or None for key in FURTHER})
            return self
        if self.shape is not None:
            raise InputError("shape is that of a size", next_step="give n_params as well, or leave shape out")
        if missing := [key for key in ("d_model", "n_layers") if not getattr(self, key)]:
            raise InputError(f"{missing[0]} is missing", next_step="give n_params, or d_model and n_layers")
        width, head_dim = self.d_model, self.head_dim or PAPER_HEAD
        if not self.n_heads and width % head_dim:
            raise InputError(f"d_model {width} is no multiple of head_dim {head_dim}", next_step="give n_heads")
        heads = self.n_heads or width // head_dim
        self.fill(
            n_heads=heads, n_kv_heads=self.n_kv_heads or heads, head_dim=self.head_dim or max(1, width // heads),
            d_ffn=self.d_ffn or 64 * max(1, round(width / 24)),
        )  # fmt: skip
        if heads % self.n_kv_heads:
            raise InputError(f"n_kv_heads {self.n_kv_heads} does not divide n_heads {heads}")
        if self.head_dim % 2:
            what = f"head_dim {self.head_dim} is odd, which rotary positions cannot be"
            raise InputError(what, nearest=str(self.head_dim + 1))
        if self.kv_lora_rank and not (self.qk_rope_head_dim and self.v_head_dim):
            raise InputError("kv_lora_rank goes with qk_rope_head_dim and v_head_dim", next_step="give these as well")
        self.config(1)  # says what no class of transformers builds
        if self.experts > 1 and self.moe_every > self.n_layers:
            what = f"moe_every {self.moe_every} leaves no layer of {self.n_layers} with experts"
            raise InputError(what, nearest=str(self.n_layers))
        return self

    def buildable(self) -> Buildable:
        """The shape as exports take it."""
        shape = {key: getattr(self, key) or 0 for key in (*SHAPE, *FURTHER, "top_k", "moe_every")}
        return Buildable(**shape, n_experts=self.experts, n_params=0.0, n_params_total=0.0)

    def config(self, vocab_size: int) -> dict[str, Any]:
        """The Hugging Face config of the model."""
        return config_of(self.buildable(), vocab_size)

    def architecture(self, vocab_size: int = 0) -> Architecture:
        """The model as it is built; without a vocabulary all of it but the embedding tables."""
        return replace(self.buildable().architecture(), vocab_size=float(vocab_size))


class DataSettings(Table):
    """The table [data]: a corpus that `pack` made."""

    corpus: toml.Text
    max_epochs: Annotated[float, Quantity, Field(ge=1e-9, le=1e6)] = 1.0  # passes over the corpus that are allowed


class TrainingSettings(Table):
    """The table [training]; the optimiser is AdamW. What the paper states or leaves open comes from moescale.models.recipe."""

    tokens: toml.Tokens  # D
    sequence_tokens: Annotated[int, Quantity, Field(ge=2, le=10**7)] = USUAL.sequence_tokens
    batch_tokens: toml.Whole = USUAL.batch_sequences * USUAL.sequence_tokens
    micro_batch_tokens: toml.Whole = 16_384  # of one process; gradient accumulation fills the batch
    peak_lr: toml.Rate = math.nan  # until the model's size gives the paper's
    warmup: toml.Share = USUAL.warmup  # share of all steps
    schedule: Literal["cosine", "wsd"] = "cosine"
    decay: Annotated[float, Quantity, Field(ge=1e-9, le=1)] = USUAL.decay  # of wsd
    min_lr_ratio: toml.Share = USUAL.min_lr_ratio
    weight_decay: toml.Rate = USUAL.weight_decay
    beta1: Annotated[float, Quantity, Field(ge=0, le=0.999999)] = USUAL.beta1
    beta2: Annotated[float, Quantity, Field(ge=0, le=0.9999999)] = USUAL.beta2
    grad_clip: Annotated[float, Quantity, Field(ge=1e-9, le=1e9)] = USUAL.grad_clip
    validation_tokens: toml.Whole = 1_000_000
    dtype: Literal["float32", "bfloat16"] = "float32"
    checkpoint_every_s: Annotated[float, Quantity, Field(ge=0, le=1e9)] = 600.0
    checkpoint_every_steps: Annotated[int, Quantity, Field(ge=0, le=10**12)] = 0  # 0: by time alone

    @model_validator(mode="after")
    def complete(self) -> Self:
        """Make batches whole sequences."""
        sequence = self.sequence_tokens
        self.fill(
            batch_tokens=max(1, round(self.batch_tokens / sequence)) * sequence,
            micro_batch_tokens=max(sequence, self.micro_batch_tokens // sequence * sequence),
        )
        return self

    @property
    def batch_sequences(self) -> int:
        """Sequences of one optimiser step, over all processes."""
        return self.batch_tokens // self.sequence_tokens

    @property
    def steps(self) -> int:
        """Optimiser steps: the nearest whole number to D over the batch, at least one."""
        return training_steps(self.tokens, self.batch_tokens)

    @property
    def trained_tokens(self) -> int:
        """D as trained: whole batches."""
        return self.steps * self.batch_tokens

    def learning_rate(self, step: int) -> float:
        """The learning rate of a 0-based step: a linear warm-up to the peak, then a fall to `min_lr_ratio` of it.

        It falls as half a cosine, or with "wsd" stays, and falls as 1 - sqrt in the last `decay` of the steps (Hägele et al.
        2024, arXiv 2405.18392, equation 1, who let it fall to zero).
        """
        warmup = round(self.warmup * self.steps)
        decay = self.steps - warmup if self.schedule == "cosine" else round(self.decay * self.steps)
        decay = min(self.steps, max(1, decay))
        progress = min(1.0, (step + 1 - (self.steps - decay)) / decay)
        if step < warmup:
            return self.peak_lr * ((step + 1) / warmup)
        if progress <= 0:
            return self.peak_lr
        left = 0.5 * (1.0 + math.cos(math.pi * progress)) if self.schedule == "cosine" else 1.0 - math.sqrt(progress)
        return self.peak_lr * (self.min_lr_ratio + (1.0 - self.min_lr_ratio) * left)


class ParallelSettings(Table):
    """The table [parallel]: data parallelism over `processes`, with `fsdp` each holding a part of weights and moments."""

    processes: Annotated[int, Quantity, Field(ge=1, le=10**5)] = 1
    fsdp: StrictBool = False
    threads: Annotated[int, Quantity, Field(ge=1, le=4096)] = 1  # CPU threads of a process
    device: Literal["cpu", "cuda"] | None = None  # cuda where there is one


class TrackingSettings(Table):
    """The table [tracking]: accelerate's trackers, besides progress.jsonl."""

    to: Annotated[tuple[Literal["mlflow", "tensorboard", "wandb"], ...], toml.Listed] = ()
    project: toml.Text = "moescale"


class RunSettings(Table):
    """One run, with every default filled in; `output` and `data.corpus` are relative to the current directory."""

    name: toml.Text
    seed: toml.Seed = 0
    output: str = ""  # runs/NAME
    model: ModelSettings
    data: DataSettings
    training: TrainingSettings
    parallel: ParallelSettings = ParallelSettings()
    tracking: TrackingSettings = TrackingSettings()

    @model_validator(mode="after")
    def complete(self) -> Self:
        """The folder, the paper's learning rate, and a batch that splits over the processes."""
        folder = re.sub(r"[^\w.+-]+", "-", self.name).strip(".-") or "run"
        self.fill(output=self.output or f"runs/{folder}")
        t, processes = self.training, self.parallel.processes
        if math.isnan(t.peak_lr):
            t.fill(peak_lr=paper_peak_lr(dense_params(self.model), where="[training], peak_lr"))
        if t.batch_sequences % processes:
            raise InputError(
                f"[parallel]: the batch of {t.batch_sequences} sequences does not split over {processes} processes",
                nearest=f"batch_tokens = {max(1, round(t.batch_sequences / processes)) * processes * t.sequence_tokens}",
            )
        return self

    def to_dict(self) -> dict[str, Any]:
        """The settings as JSON and TOML hold them, which `settings_of` reads back: no key for None or an empty list."""
        left_out = None if self.tracking.to else {"tracking": {"to"}}
        return self.model_dump(mode="json", exclude_none=True, exclude=left_out)

    @property
    def sha256(self) -> str:
        """Identifies what the run computes, so that it may go on under other settings of all else."""
        document = self.model_dump(mode="json", exclude_none=True, exclude=NOT_COMPUTED)
        document["training"]["tokens"] = [self.training.tokens]  # a list, as since version 0.1
        return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def read_settings(path: str | Path) -> RunSettings:
    """The run that a RUN.toml states; docs/sweep.md lists its keys. Raises InputError that names file and key."""
    where, document = str(path), read_toml(path)
    if "grid" in document or "runs" in document:
        what = "holds a [grid] or [[runs]]: that is a sweep of runs"
        raise InputError(what, where=where, next_step=f"`moescale sweep {where}`")
    return settings_of(document, where=where)


def settings_of(mapping: Mapping[str, Any], where: str = "settings") -> RunSettings:
    """The run that a mapping of RUN.toml's tables states, checked and complete. Raises InputError with place and nearest."""
    return checked(RunSettings, {"model": {}, "data": {}, "training": {}, **mapping}, where=where)


def dense_params(model: ModelSettings) -> float:
    """N: parameters without embeddings of the same model with one FFN in every layer, counted exactly (norms too)."""
    return float(count_parameters(replace(model.architecture(), n_moe_layers=0.0)).total)


def estimate(run: RunSettings) -> dict[str, float]:
    """Sizes (without embeddings), tokens and training FLOPs, 6 n_params_active tokens, of a run.

    `n_params` is the size as the paper counts it, the matrices of attention and one FFN a layer, without norms; `tokens`
    those that are trained on, whole batches.
    """
    shape, tokens = run.model.architecture(), float(run.training.trained_tokens)
    counted = count_parameters(shape)
    active = float(counted.active)
    return {
        "n_params": float(dense_equivalent_params(shape)),
        "n_params_dense": dense_params(run.model),
        "n_params_active": active,
        "n_params_total": float(counted.total),
        "tokens": tokens,
        "training_flops": 6.0 * active * tokens,
    }


def stated_columns(run: RunSettings, vocab_size: int) -> dict[str, Any]:
    """What is known of a row of the run table before the run: its name, sizes, tokens and settings."""
    m, t, found = run.model, run.training, estimate(run)
    # Without these experts are as wide as an FFN.
    widths = {"ffn_width": m.d_ffn, "expert_width": m.d_expert or m.d_ffn, "shared_width": m.d_shared_expert or 0}
    return {
        "name": run.name,
        **{key: found[key] for key in ("n_params_dense", "n_params_active", "n_params_total")},
        "n_params_embedding": float(count_parameters(m.architecture(vocab_size)).embedding),
        "n_params_nonemb": found["n_params_active"],  # of a token, which the columns above do not name as theirs
        "n_experts": m.experts,
        "top_k": m.top_k,
        "moe_every": m.moe_every,
        "tokens": t.trained_tokens,
        "schedule": t.schedule,
        "seed": run.seed,
        **{key: getattr(m, key) for key in ("d_model", "n_layers", "d_ffn")},
        **(widths if m.d_expert or m.d_shared_expert else {}),
        **{key: getattr(t, key) for key in ("batch_tokens", "sequence_tokens")},
        "vocab_size": vocab_size,
        "peak_lr": t.peak_lr,
        "training_flops": found["training_flops"],
        "settings_sha256": run.sha256,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def mfu(run: RunSettings, vocab_size: int, device: str, tokens_per_s: float) -> float | None:
    """FLOPs of matrix products and causal attention over the bf16 peak; None in float32 and for a device not in the catalogue."""
    peak = peak_flops_per_s(device) if run.training.dtype == "bfloat16" else None
    if peak is None:
        return None
    shape, sequence = run.model.architecture(vocab_size), run.training.sequence_tokens
    per_token = float(training_flops_per_token(shape, sequence_tokens=sequence))
    return per_token * tokens_per_s / (peak * run.parallel.processes)


def peak_flops_per_s(device: str) -> float | None:
    """The dense bf16 peak of a device of the GPU catalogue by the name that its driver gives, or None."""
    words = device.lower().replace("-", " ").split()
    for name, gpu in gpus().items():
        chip = name.split("-")[0]
        if chip in words and (("pcie" in words) == ("pcie" in name) or name == chip):
            return gpu.bf16_flops_per_s
    return None


def _nearest_shape(n_params: float, model: ModelSettings) -> Buildable:
    """The buildable shape nearest to a size; below 1e7, where heads of 128 are too coarse, with narrower heads."""
    family = replace(find_family(model.shape or FAMILY), top_k=model.top_k, moe_every=model.moe_every)
    found: dict[float, Buildable] = {}  # by how far its size is off
    for head_dim in (family.head_dim,) if family.kv_lora_rank else (128.0, 64.0, 32.0):
        with suppress(InputError):
            shape = buildable(replace(family, head_dim=head_dim), n_params, float(model.experts))
            found.setdefault(abs(math.log(shape.n_params / n_params)), shape)
    if not found:
        raise InputError(f"no shape near {n_params:.3g} parameters", next_step="give d_model and n_layers")
    return found[next((off for off in found if off < 0.05), min(found))]
