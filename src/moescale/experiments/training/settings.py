"""RUN.toml, the description of one training run, as frozen dataclasses: read, checked, defaults filled in. Needs no torch."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from moescale.bounds import Bound
from moescale.errors import InputError, located, unknown_name
from moescale.export.huggingface import config_of
from moescale.io.records import record
from moescale.io.schema import Quantity, QuantityCount, read_toml, settings
from moescale.models.architecture import Architecture
from moescale.models.family import find_family
from moescale.models.flops import training_flops_per_token
from moescale.models.hf_config import from_config
from moescale.models.parameters import ParameterCount, count_parameters
from moescale.models.recipe import defaults, paper_peak_lr, training_steps
from moescale.models.rounding import Buildable, buildable

TRACKERS = ("mlflow", "tensorboard", "wandb", "trainer")
FAMILY = "yun2024"  # whose shapes a size stands for
PAPER_HEAD = 64  # head_dim of the paper's four shapes: 768 wide with 12 heads (appendix A)
SHAPE = ("d_model", "n_layers", "n_heads", "n_kv_heads", "head_dim", "d_ffn")
TABLES = ("model", "data", "training", "parallel", "tracking")

# These do not change what a run computes, so that a run may go on under other ones.
NOT_HASHED = ("output", "tracking", "parallel")
NOT_HASHED_TRAINING = ("micro_batch_tokens", "checkpoint_every_s", "checkpoint_every_steps")

Count = Annotated[QuantityCount, Bound(1, 10**12)]
Small = Annotated[QuantityCount, Bound(1, 10**5)]
Share = Annotated[Quantity, Bound(0, 1)]


def _fill(record: Any, **values: Any) -> None:
    """Set fields of a frozen dataclass while it is made."""
    for key, value in values.items():
        object.__setattr__(record, key, value)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """The table [model]: a whole-number shape, stated or the buildable one nearest to a size; 0 is filled in."""

    n_params: Annotated[Quantity, Bound(1e3, 1e15)] | None = None  # None once the shape is known
    d_model: Annotated[QuantityCount, Bound(1, 10**6)] = 0
    n_layers: Annotated[QuantityCount, Bound(1, 10**4)] = 0
    n_heads: Small = 0
    n_kv_heads: Small = 0
    head_dim: Small = 0
    d_ffn: Annotated[QuantityCount, Bound(1, 10**7)] = 0
    experts: Annotated[QuantityCount, Bound(1, 65_536)] = 1
    top_k: Annotated[QuantityCount, Bound(1, 65_536)] = 2  # never more than `experts`
    moe_every: Annotated[QuantityCount, Bound(1, 10_000)] = 2  # layers 1, 3, 5 .. hold experts
    balance_loss: Annotated[Quantity, Bound(0, 1e3)] = field(default_factory=lambda: defaults().balance_loss)

    def __post_init__(self) -> None:
        _fill(self, top_k=min(self.top_k, self.experts))
        if self.n_params is None:
            self._complete_shape()
            return
        for key in SHAPE:
            if getattr(self, key):
                raise InputError(f"{key} does not go with n_params", next_step="state one of the two")
        shape = _nearest_shape(self.n_params, self)
        _fill(self, n_params=None, **{key: getattr(shape, key) for key in SHAPE})

    def _complete_shape(self) -> None:
        for key in ("d_model", "n_layers"):
            if not getattr(self, key):
                raise InputError(f"{key} is missing", next_step="give n_params, or d_model and n_layers")
        width = self.d_model
        if not self.n_heads:
            head_dim = self.head_dim or PAPER_HEAD
            if width % head_dim:
                raise InputError(f"d_model {width} is no multiple of head_dim {head_dim}", next_step="give n_heads")
            _fill(self, n_heads=width // head_dim, head_dim=head_dim)
        _fill(
            self,
            head_dim=self.head_dim or max(1, width // self.n_heads),
            n_kv_heads=self.n_kv_heads or self.n_heads,
            d_ffn=self.d_ffn or 64 * max(1, round(8 / 3 * width / 64)),
        )
        if self.n_heads % self.n_kv_heads:
            raise InputError(f"n_kv_heads {self.n_kv_heads} does not divide n_heads {self.n_heads}")
        if self.head_dim % 2:
            what = f"head_dim {self.head_dim} is odd, which rotary positions cannot be"
            raise InputError(what, nearest=str(self.head_dim + 1))
        if self.experts > 1 and self.moe_every > self.n_layers:
            what = f"moe_every {self.moe_every} leaves no layer of {self.n_layers} with experts"
            raise InputError(what, nearest=str(self.n_layers))

    def config(self, vocab_size: int) -> dict[str, Any]:
        """The Hugging Face config of the model."""
        shape = {key: getattr(self, key) for key in (*SHAPE, "top_k", "moe_every")}
        return config_of(Buildable(**shape, n_experts=self.experts, n_params=0.0, n_params_total=0.0), vocab_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSettings:
    """The table [data]: a packed corpus, or sources that are packed into it on first use."""

    corpus: str
    sources: tuple[str, ...] = ()
    tokenizer: str | None = None
    vocab_size: Annotated[QuantityCount, Bound(1, 2**31 - 1)] | None = None
    text_field: str = "text"
    max_epochs: Annotated[Quantity, Bound(1e-9, 1e6)] = 1.0  # passes over the training tokens that are allowed

    def __post_init__(self) -> None:
        if self.sources and self.tokenizer is None and self.vocab_size is None:
            raise InputError("sources need a tokenizer file or a vocab_size to train one")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSettings:
    """The table [training]; the optimiser is AdamW. What the paper states or leaves open comes from moescale.models.recipe."""

    tokens: tuple[
        Annotated[QuantityCount, Bound(1, 10**18)], ...
    ]  # D; several with schedule wsd: a branch each, ascending
    batch_tokens: Count = field(default_factory=lambda: defaults().batch_sequences * defaults().sequence_tokens)
    sequence_tokens: Annotated[QuantityCount, Bound(2, 10**7)] = field(
        default_factory=lambda: defaults().sequence_tokens
    )
    micro_batch_tokens: Count = 16_384  # of one process; gradient accumulation fills the batch
    peak_lr: Annotated[Quantity, Bound(0, 10)] = math.nan  # until the model's size gives the paper's
    warmup: Share = field(
        default_factory=lambda: defaults().warmup
    )  # share of all steps (with wsd of the shortest branch's)
    schedule: Literal["cosine", "wsd"] = "cosine"
    decay: Annotated[Quantity, Bound(1e-9, 1)] = field(
        default_factory=lambda: defaults().decay
    )  # with wsd: share of a branch's steps in which the rate falls
    min_lr_ratio: Share = field(default_factory=lambda: defaults().min_lr_ratio)
    weight_decay: Annotated[Quantity, Bound(0, 10)] = field(default_factory=lambda: defaults().weight_decay)
    beta1: Annotated[Quantity, Bound(0, 0.999999)] = field(default_factory=lambda: defaults().beta1)
    beta2: Annotated[Quantity, Bound(0, 0.9999999)] = field(default_factory=lambda: defaults().beta2)
    grad_clip: Annotated[Quantity, Bound(1e-9, 1e9)] = field(default_factory=lambda: defaults().grad_clip)
    validation_tokens: Count = 1_000_000
    dtype: Literal["float32", "bfloat16"] = "float32"
    checkpoint_every_s: Annotated[Quantity, Bound(0, 1e9)] = 600.0
    checkpoint_every_steps: Annotated[QuantityCount, Bound(0, 10**12)] = 0  # 0: by time alone

    def __post_init__(self) -> None:
        """Make batches whole sequences, and sort the lengths."""
        if len(set(self.tokens)) < len(self.tokens):
            raise InputError("tokens holds a number twice")
        if len(self.tokens) > 1 and self.schedule != "wsd":
            raise InputError(
                "several tokens need schedule wsd: a cosine run has one length",
                next_step='add schedule = "wsd", or write a sweep',
            )
        sequence = self.sequence_tokens
        _fill(
            self,
            tokens=tuple(sorted(self.tokens)),
            batch_tokens=max(1, round(self.batch_tokens / sequence)) * sequence,
            micro_batch_tokens=max(sequence, self.micro_batch_tokens // sequence * sequence),
        )

    @property
    def batch_sequences(self) -> int:
        """Sequences of one optimiser step, over all processes."""
        return self.batch_tokens // self.sequence_tokens

    def steps(self, tokens: int) -> int:
        """Optimiser steps of a run of so many tokens: the nearest whole number, at least one."""
        return training_steps(tokens, self.batch_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelSettings:
    """The table [parallel]: how `processes` are laid out; data parallelism is what the other three leave."""

    processes: Small = 1
    fsdp: Small = 1
    tensor: Small = 1
    expert: Small = 1
    threads: Annotated[QuantityCount, Bound(1, 4096)] = 1  # CPU threads of a process
    device: Literal["cpu", "cuda"] | None = None  # cuda where there is one

    def __post_init__(self) -> None:
        product = self.fsdp * self.tensor * self.expert
        if self.processes % product:
            raise InputError(
                f"fsdp x tensor x expert = {product} does not divide the {self.processes} processes",
                nearest=f"processes = {product * max(1, round(self.processes / product))}",
            )

    @property
    def data(self) -> int:
        """Copies of the model."""
        return self.processes // (self.fsdp * self.tensor * self.expert)

    @property
    def streams(self) -> int:
        """Groups of processes that see different sequences: all but the tensor-parallel ones."""
        return self.processes // self.tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackingSettings:
    """The table [tracking]: where metrics are sent besides progress.jsonl."""

    to: tuple[str, ...] = ()
    uri: str | None = None  # MLflow's tracking URI; None: $MLFLOW_TRACKING_URI, else a database in the run's folder
    project: str = "moescale"  # MLflow's experiment, W&B's project
    offline: bool | None = None  # W&B: None is as $WANDB_MODE says, else online where an API key is found

    def __post_init__(self) -> None:
        for name in self.to:
            if name not in TRACKERS:
                raise unknown_name("tracker", name, TRACKERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """One run, with every default filled in; `output` and `data.corpus` are relative to the current directory."""

    name: str
    seed: Annotated[QuantityCount, Bound(0, 2**31 - 1)] = 0
    output: str = ""  # runs/NAME
    model: ModelSettings
    data: DataSettings
    training: TrainingSettings
    parallel: ParallelSettings = field(default_factory=ParallelSettings)
    tracking: TrackingSettings = field(default_factory=TrackingSettings)

    def to_dict(self) -> dict[str, Any]:
        """The settings as JSON and TOML hold them, which `settings_of` reads back: no key for None."""
        return record(self)

    @property
    def sha256(self) -> str:
        """Identifies what the run computes: the settings without output, tracking, parallelism and checkpoint times."""
        document = record(self, without=NOT_HASHED)
        document["training"] = record(self.training, without=NOT_HASHED_TRAINING)
        # Where a corpus lies is no part of it; run.py compares the corpus itself.
        document["data"] = {"max_epochs": self.data.max_epochs}
        return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def read_settings(path: str | Path) -> RunSettings:
    """The run that a RUN.toml states; docs/sweep.md lists its keys. Raises InputError that names file and key."""
    where = str(path)
    document = read_toml(path)
    for key, words in (("grid", "a [grid]"), ("runs", "[[runs]]")):
        if key in document:
            what = f"holds {words}: that is a sweep of runs"
            raise InputError(what, where=where, next_step=f"`moescale sweep {where}`")
    return settings_of(document, where=where)


def settings_of(mapping: Mapping[str, Any], where: str = "settings") -> RunSettings:
    """The run that a mapping of RUN.toml's tables states, checked and complete.

    Raises InputError with the nearest key for one that is unknown, and for values that are missing or out of range.
    """
    run = settings(RunSettings, {**{name: {} for name in TABLES}, **mapping}, where=where)
    if math.isnan(run.training.peak_lr):
        lr = paper_peak_lr(dense_params(run.model), where=f"{where}, [training], peak_lr")
        run = replace(run, training=replace(run.training, peak_lr=lr))
    with located(f"{where}, [parallel]"):
        _check_layout(run.model, run.training, run.parallel)
    folder = re.sub(r"[^\w.+-]+", "-", run.name).strip(".-") or "run"
    return replace(run, output=run.output or f"runs/{folder}")


def dense_params(model: ModelSettings) -> float:
    """N: parameters without embeddings of the same model with one FFN in every layer, counted exactly (norms too)."""
    return float(parameters(replace(model, experts=1, top_k=1)).non_embedding_total)


def estimate(run: RunSettings) -> dict[str, float]:
    """Sizes (without embeddings), tokens and training FLOPs, 6 n_params_active tokens, of a run; sums over wsd branches.

    `n_params` is the size as the paper counts it, the matrices of attention and one FFN a layer, without norms; `tokens`
    those that are trained on, whole batches. With wsd a trunk is trained once, so that FLOPs are fewer than those of the
    runs on their own.
    """
    m = run.model
    counted = parameters(m)
    attention = m.d_model * m.head_dim * 2 * (m.n_heads + m.n_kv_heads)
    tokens = sum(leg_tokens(run.training))
    active = float(counted.non_embedding_active)
    return {
        "n_params": float(m.n_layers * (attention + 3 * m.d_model * m.d_ffn)),
        "n_params_dense": dense_params(m),
        "n_params_active": active,
        "n_params_total": float(counted.non_embedding_total),
        "tokens": float(tokens),
        "training_flops": 6.0 * active * tokens,
    }


def leg_tokens(training: TrainingSettings) -> list[int]:
    """Tokens that are trained on for each branch beyond what an earlier branch has paid for; one entry for cosine."""
    found: list[int] = []
    trunk = 0
    for tokens in training.tokens:
        steps = training.steps(tokens)
        fork = steps - decay_steps(training, steps) if training.schedule == "wsd" else 0
        found.append((steps - min(trunk, fork)) * training.batch_tokens)
        trunk = max(trunk, fork)
    return found


def decay_steps(training: TrainingSettings, steps: int) -> int:
    """Steps of a wsd branch in which the learning rate falls: at least one."""
    return min(steps, max(1, round(training.decay * steps)))


def parameters(model: ModelSettings, vocab_size: int = 0) -> ParameterCount:
    """The exact counts of the model as it is built; without a vocabulary those of everything but embeddings."""
    return count_parameters(_architecture(model, vocab_size))


def model_flops_per_token(run: RunSettings, vocab_size: int) -> float:
    """FLOPs of a training token for model FLOPs utilisation: 6 a matmul parameter, and causal attention."""
    shape = _architecture(run.model, vocab_size)
    return float(training_flops_per_token(shape, counted="matmul", sequence_tokens=run.training.sequence_tokens))


def _architecture(model: ModelSettings, vocab_size: int) -> Architecture:
    shape = from_config(model.config(vocab_size or 1))
    return shape if vocab_size else replace(shape, vocab_size=0.0)


def _nearest_shape(n_params: float, model: ModelSettings) -> Buildable:
    """The buildable shape nearest to a size; below 1e7, where heads of 128 are too coarse, with narrower heads."""
    family = replace(find_family(FAMILY), top_k=model.top_k, moe_every=model.moe_every)
    found: list[tuple[float, Buildable]] = []
    for head_dim in (128.0, 64.0, 32.0):
        try:
            shape = buildable(replace(family, head_dim=head_dim), n_params, float(model.experts))
        except InputError:
            continue
        off = abs(math.log(shape.n_params / n_params))
        if off < 0.05:
            return shape
        found.append((off, shape))
    if not found:
        raise InputError(f"no shape near {n_params:.3g} parameters", next_step="give d_model and n_layers")
    return min(found, key=lambda pair: pair[0])[1]


def _check_layout(model: ModelSettings, training: TrainingSettings, parallel: ParallelSettings) -> None:
    """What model, batch and layout must have in common."""
    ways = parallel.tensor
    for key in ("n_heads", "n_kv_heads", "d_ffn"):
        if getattr(model, key) % ways:
            nearest = f"tensor = {_divisor(math.gcd(model.n_heads, model.n_kv_heads), ways)}"
            raise InputError(f"tensor = {ways} does not divide {key} = {getattr(model, key)}", nearest=nearest)
    if parallel.fsdp > 1 and model.d_model % parallel.fsdp:
        raise InputError(f"fsdp = {parallel.fsdp} does not divide d_model = {model.d_model}")
    if model.experts == 1 and parallel.expert > 1:
        raise InputError("a dense model has no experts to split", nearest="expert = 1")
    split = parallel.expert * ways
    if model.experts > 1 and model.experts % split:
        raise InputError(
            f"expert x tensor = {split} processes share whole experts, and do not divide {model.experts}",
            nearest=f"expert x tensor = {_divisor(model.experts, split)}",
        )
    count, streams = training.batch_sequences, parallel.streams
    if count % streams:
        raise InputError(
            f"the batch of {count} sequences does not split over {streams} processes that see different data",
            nearest=f"batch_tokens = {max(1, round(count / streams)) * streams * training.sequence_tokens}",
        )


def _divisor(number: int, near: int) -> int:
    return min((d for d in range(1, number + 1) if number % d == 0), key=lambda d: abs(d - near))
