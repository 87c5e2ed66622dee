"""RUN.toml, the description of one training run, as frozen dataclasses: read, checked, defaults filled in. Needs no torch."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

from moescale.errors import InputError, unknown_name
from moescale.export.huggingface import config_of
from moescale.io.schema import Table, as_mapping, read_toml
from moescale.models.architecture import Architecture
from moescale.models.family import ModelFamily, find_family
from moescale.models.flops import training_flops_per_token
from moescale.models.hf_config import from_config
from moescale.models.parameters import ParameterCount, count_parameters
from moescale.models.recipe import defaults, paper_peak_lr, training_steps
from moescale.models.rounding import Buildable, buildable

SCHEDULES = ("cosine", "wsd")
DTYPES = ("float32", "bfloat16")
DEVICES = ("cpu", "cuda")
TRACKERS = ("mlflow", "tensorboard", "wandb", "trainer")
FAMILY = "yun2024"  # whose shapes a size stands for
PAPER_HEAD = 64  # head_dim of the paper's four shapes: 768 wide with 12 heads (appendix A)

# These do not change what a run computes, so that a run may go on under other ones.
NOT_HASHED = ("output", "tracking", "parallel")
NOT_HASHED_TRAINING = ("micro_batch_tokens", "checkpoint_every_s", "checkpoint_every_steps")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """The table [model]: a whole-number shape, stated or the buildable one nearest to a size."""

    d_model: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    d_ffn: int
    experts: int = 1
    top_k: int = 2  # never more than `experts`
    moe_every: int = 2  # layers 1, 3, 5 .. hold experts
    balance_loss: float

    def shape(self) -> Buildable:
        """The same as a Buildable, with its counts (without embeddings)."""
        a = _architecture(self)
        counted = count_parameters(a)
        return Buildable(
            n_layers=self.n_layers, d_model=self.d_model, n_heads=self.n_heads, n_kv_heads=self.n_kv_heads,
            head_dim=self.head_dim, d_ffn=self.d_ffn, n_experts=self.experts, top_k=self.top_k,
            moe_every=self.moe_every, n_params=dense_params(self), n_params_total=float(counted.non_embedding_total),
        )  # fmt: skip

    def config(self, vocab_size: int) -> dict[str, Any]:
        """The Hugging Face config of the model."""
        return config_of(self._bare_shape(), vocab_size)

    def _bare_shape(self) -> Buildable:
        return Buildable(
            n_layers=self.n_layers, d_model=self.d_model, n_heads=self.n_heads, n_kv_heads=self.n_kv_heads,
            head_dim=self.head_dim, d_ffn=self.d_ffn, n_experts=self.experts, top_k=self.top_k,
            moe_every=self.moe_every, n_params=0.0, n_params_total=0.0,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSettings:
    """The table [data]: a packed corpus, or sources that are packed into it on first use."""

    corpus: str
    sources: tuple[str, ...] = ()
    tokenizer: str | None = None
    vocab_size: int | None = None
    text_field: str = "text"
    max_epochs: float = 1.0  # passes over the training tokens that are allowed


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSettings:
    """The table [training]; the optimiser is AdamW. What the paper states or leaves open comes from moescale.models.recipe."""

    tokens: tuple[int, ...]  # D; several with schedule wsd: a branch each, ascending
    batch_tokens: int  # a whole number of sequences
    sequence_tokens: int
    micro_batch_tokens: int  # of one process; gradient accumulation fills the batch
    peak_lr: float
    warmup: float  # share of all steps (with wsd of the shortest branch's)
    schedule: str = "cosine"
    decay: float = 0.2  # with wsd: share of a branch's steps in which the rate falls
    min_lr_ratio: float
    weight_decay: float
    beta1: float
    beta2: float
    grad_clip: float
    validation_tokens: int = 1_000_000
    dtype: str = "float32"
    checkpoint_every_s: float = 600.0
    checkpoint_every_steps: int = 0  # 0: by time alone

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

    processes: int = 1
    fsdp: int = 1
    tensor: int = 1
    expert: int = 1
    threads: int = 1  # CPU threads of a process
    device: str | None = None  # cuda where there is one

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
    uri: str | None = None
    project: str = "moescale"
    offline: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """One run, with every default filled in; `output` and `data.corpus` are relative to the current directory."""

    name: str
    seed: int
    output: str
    model: ModelSettings
    data: DataSettings
    training: TrainingSettings
    parallel: ParallelSettings
    tracking: TrackingSettings

    def to_dict(self) -> dict[str, Any]:
        """The settings as JSON and TOML hold them, which `settings_of` reads back: no key for None."""
        return {
            key: {k: _plain(v) for k, v in cast("dict[str, Any]", value).items() if v is not None}
            if isinstance(value, dict)
            else value
            for key, value in asdict(self).items()
        }

    @property
    def sha256(self) -> str:
        """Identifies what the run computes: the settings without output, tracking, parallelism and checkpoint times."""
        document = {key: value for key, value in self.to_dict().items() if key not in NOT_HASHED}
        training = document["training"]
        document["training"] = {key: training[key] for key in training if key not in NOT_HASHED_TRAINING}
        # Where a corpus lies is no part of it; run.py compares the corpus itself.
        document["data"] = {"max_epochs": document["data"]["max_epochs"]}
        return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def read_settings(path: str | Path) -> RunSettings:
    """The run that a RUN.toml states; docs/training.md lists its keys. Raises InputError that names file and key."""
    where = str(path)
    document = read_toml(path)
    if "grid" in document:
        raise InputError("holds a [grid]: that is a sweep of runs", where=where, next_step=f"`moescale sweep {where}`")
    return settings_of(document, where=where)


def settings_of(mapping: Mapping[str, Any], where: str = "settings") -> RunSettings:
    """The run that a mapping of RUN.toml's tables states, checked and complete.

    Raises InputError with the nearest key for one that is unknown, and for values that are missing or out of range.
    """
    tables = ("model", "data", "training", "parallel", "tracking")
    top = Table({key: value for key, value in mapping.items() if key not in tables}, where, tables)
    sections = {
        name: Table(as_mapping(mapping.get(name, {}), f"{where}, [{name}]"), f"{where}, [{name}]") for name in tables
    }
    name = top.text("name")
    model = _model(sections["model"])
    settings = RunSettings(
        name=name,
        seed=top.whole("seed", 0, least=0, most=2**31 - 1),
        output=top.text("output", f"runs/{_safe(name)}"),
        model=model,
        data=_data(sections["data"]),
        training=_training(sections["training"], dense_params(model)),
        parallel=_parallel(sections["parallel"]),
        tracking=_tracking(sections["tracking"]),
    )
    top.finish()
    for section in sections.values():
        section.finish()
    _check_layout(settings, where)
    return settings


def dense_params(model: ModelSettings) -> float:
    """N: parameters without embeddings of the same model with one FFN in every layer, counted exactly (norms too)."""
    return float(count_parameters(_architecture(replace(model, experts=1, top_k=1))).non_embedding_total)


def estimate(settings: RunSettings) -> dict[str, float]:
    """Sizes (without embeddings), tokens and training FLOPs, 6 n_params_active tokens, of a run; sums over wsd branches.

    `n_params` is the size as the paper counts it, without norms; `tokens` those that are trained on, whole batches. With
    wsd a trunk is trained once, so that FLOPs are fewer than those of the runs on their own.
    """
    counted = parameters(settings.model)
    tokens = sum(leg_tokens(settings.training))
    active = float(counted.non_embedding_active)
    return {
        "n_params": paper_params(settings.model),
        "n_params_dense": dense_params(settings.model),
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


def paper_params(model: ModelSettings) -> float:
    """N as the paper counts it: matrices of attention and one FFN a layer."""
    attention = model.d_model * model.head_dim * 2 * (model.n_heads + model.n_kv_heads)
    return float(model.n_layers * (attention + 3 * model.d_model * model.d_ffn))


def model_flops_per_token(settings: RunSettings, vocab_size: int) -> float:
    """FLOPs of a training token for model FLOPs utilisation: 6 a matmul parameter, and causal attention."""
    a = _architecture(settings.model, vocab_size)
    return float(training_flops_per_token(a, counted="matmul", sequence_tokens=settings.training.sequence_tokens))


def _architecture(model: ModelSettings, vocab_size: int = 0) -> Architecture:
    shape = from_config(model.config(vocab_size or 1))
    return shape if vocab_size else replace(shape, vocab_size=0.0)


# The tables.


def _model(table: Table) -> ModelSettings:
    experts = table.whole("experts", 1, most=65_536)
    top_k = min(table.whole("top_k", 2, most=65_536), experts)
    moe_every = table.whole("moe_every", 2, most=10_000)
    balance = table.number("balance_loss", defaults().balance_loss, least=0, most=1e3)
    by_shape = ("d_model", "n_layers", "n_heads", "n_kv_heads", "head_dim", "d_ffn")
    if table.has("n_params"):
        for key in by_shape:
            if table.has(key):
                raise InputError(
                    f"{key} does not go with n_params", where=table.where, next_step="state one of the two"
                )
        size = table.number("n_params", least=1e3, most=1e15)
        family = replace(find_family(FAMILY), top_k=top_k, moe_every=moe_every)
        shape = _nearest_shape(family, size, experts, table.where)
        return ModelSettings(
            d_model=shape.d_model, n_layers=shape.n_layers, n_heads=shape.n_heads, n_kv_heads=shape.n_kv_heads,
            head_dim=shape.head_dim, d_ffn=shape.d_ffn, experts=experts, top_k=top_k, moe_every=moe_every,
            balance_loss=balance,
        )  # fmt: skip
    for key in ("d_model", "n_layers"):
        if not table.has(key):
            raise InputError(f"{key} is missing", where=table.where, next_step="give n_params, or d_model and n_layers")
    d_model, n_layers = table.whole("d_model", most=10**6), table.whole("n_layers", most=10**4)
    if table.has("n_heads"):
        n_heads = table.whole("n_heads", most=10**5)
        head_dim = table.whole("head_dim", max(1, d_model // n_heads), most=10**5)
    else:
        head_dim = table.whole("head_dim", PAPER_HEAD, most=10**5)
        if d_model % head_dim:
            raise InputError(
                f"d_model {d_model} is no multiple of head_dim {head_dim}", where=table.where, next_step="give n_heads"
            )
        n_heads = d_model // head_dim
    n_kv_heads = table.whole("n_kv_heads", n_heads, most=n_heads)
    if n_heads % n_kv_heads:
        raise InputError(f"n_kv_heads {n_kv_heads} does not divide n_heads {n_heads}", where=table.where)
    if head_dim % 2:
        raise InputError(
            f"head_dim {head_dim} is odd, which rotary positions cannot be",
            where=table.where,
            nearest=str(head_dim + 1),
        )
    if experts > 1 and moe_every > n_layers:
        raise InputError(
            f"moe_every {moe_every} leaves no layer of {n_layers} with experts",
            where=table.where,
            nearest=str(n_layers),
        )
    return ModelSettings(
        d_model=d_model, n_layers=n_layers, n_heads=n_heads, n_kv_heads=n_kv_heads, head_dim=head_dim,
        d_ffn=table.whole("d_ffn", 64 * max(1, round(8 / 3 * d_model / 64)), most=10**7), experts=experts,
        top_k=top_k, moe_every=moe_every, balance_loss=balance,
    )  # fmt: skip


def _nearest_shape(family: ModelFamily, n_params: float, experts: int, where: str) -> Buildable:
    """The buildable shape nearest to a size; below 1e7, where heads of 128 are too coarse, with narrower heads."""
    found: list[tuple[float, Buildable]] = []
    for head_dim in (128.0, 64.0, 32.0):
        try:
            shape = buildable(replace(family, head_dim=head_dim), n_params, float(experts))
        except InputError:
            continue
        off = abs(math.log(shape.n_params / n_params))
        if off < 0.05:
            return shape
        found.append((off, shape))
    if not found:
        raise InputError(f"no shape near {n_params:.3g} parameters", where=where, next_step="give d_model and n_layers")
    return min(found, key=lambda pair: pair[0])[1]


def _data(table: Table) -> DataSettings:
    sources = table.texts("sources")
    vocab_size = table.whole("vocab_size", 0, least=0, most=2**31 - 1) or None
    tokenizer = table.text("tokenizer", "") or None
    if sources and tokenizer is None and vocab_size is None:
        raise InputError("sources need a tokenizer file or a vocab_size to train one", where=table.where)
    return DataSettings(
        corpus=table.text("corpus"), sources=sources, tokenizer=tokenizer, vocab_size=vocab_size,
        text_field=table.text("text_field", "text"), max_epochs=table.number("max_epochs", 1.0, least=1e-9, most=1e6),
    )  # fmt: skip


def _training(table: Table, n_params: float) -> TrainingSettings:
    schedule = table.choice("schedule", SCHEDULES, "cosine")
    tokens = tuple(sorted(table.wholes("tokens", most=10**18)))
    if len(set(tokens)) < len(tokens):
        raise InputError("tokens holds a number twice", where=table.where)
    if len(tokens) > 1 and schedule != "wsd":
        raise InputError(
            "several tokens need schedule wsd: a cosine run has one length",
            where=table.where,
            next_step='add schedule = "wsd", or write a sweep',
        )
    usual = defaults()
    sequence = table.whole("sequence_tokens", usual.sequence_tokens, least=2, most=10**7)
    batch = table.whole("batch_tokens", usual.batch_sequences * usual.sequence_tokens, most=10**12)
    sequences = max(1, round(batch / sequence))
    return TrainingSettings(
        tokens=tokens,
        batch_tokens=sequences * sequence,
        sequence_tokens=sequence,
        micro_batch_tokens=max(sequence, table.whole("micro_batch_tokens", 16_384, most=10**12) // sequence * sequence),
        peak_lr=table.number("peak_lr", least=0, most=10)
        if table.has("peak_lr")
        else paper_peak_lr(n_params, where=f"{table.where}, peak_lr"),
        warmup=table.number("warmup", usual.warmup, least=0, most=1),
        schedule=schedule,
        decay=table.number("decay", 0.2, least=1e-9, most=1),
        min_lr_ratio=table.number("min_lr_ratio", usual.min_lr_ratio, least=0, most=1),
        weight_decay=table.number("weight_decay", usual.weight_decay, least=0, most=10),
        beta1=table.number("beta1", usual.beta1, least=0, most=0.999999),
        beta2=table.number("beta2", usual.beta2, least=0, most=0.9999999),
        grad_clip=table.number("grad_clip", usual.grad_clip, least=1e-9, most=1e9),
        validation_tokens=table.whole("validation_tokens", 1_000_000, most=10**12),
        dtype=table.choice("dtype", DTYPES, "float32"),
        checkpoint_every_s=table.number("checkpoint_every_s", 600.0, least=0, most=1e9),
        checkpoint_every_steps=table.whole("checkpoint_every_steps", 0, least=0, most=10**12),
    )


def _parallel(table: Table) -> ParallelSettings:
    sizes = {key: table.whole(key, 1, most=100_000) for key in ("processes", "fsdp", "tensor", "expert")}
    device = table.choice("device", DEVICES, "") or None
    made = ParallelSettings(**sizes, threads=table.whole("threads", 1, most=4096), device=device)
    product = made.fsdp * made.tensor * made.expert
    if made.processes % product:
        raise InputError(
            f"fsdp x tensor x expert = {product} does not divide the {made.processes} processes",
            where=table.where,
            nearest=f"processes = {product * max(1, round(made.processes / product))}",
        )
    return made


def _tracking(table: Table) -> TrackingSettings:
    to = table.texts("to")
    for name in to:
        if name not in TRACKERS:
            raise unknown_name("tracker", name, TRACKERS, where=table.where)
    return TrackingSettings(
        to=to, uri=table.text("uri", "") or None, project=table.text("project", "moescale"),
        offline=table.flag("offline"),
    )  # fmt: skip


def _check_layout(settings: RunSettings, where: str) -> None:
    """What model, batch and layout must have in common."""
    model, training, parallel = settings.model, settings.training, settings.parallel
    at = f"{where}, [parallel]"
    for key in ("n_heads", "n_kv_heads", "d_ffn"):
        if getattr(model, key) % parallel.tensor:
            raise InputError(
                f"tensor = {parallel.tensor} does not divide {key} = {getattr(model, key)}", where=at,
                nearest=f"tensor = {_divisor(math.gcd(model.n_heads, model.n_kv_heads), parallel.tensor)}",
            )  # fmt: skip
    if parallel.fsdp > 1 and model.d_model % parallel.fsdp:
        raise InputError(f"fsdp = {parallel.fsdp} does not divide d_model = {model.d_model}", where=at)
    if model.experts == 1 and parallel.expert > 1:
        raise InputError("a dense model has no experts to split", where=at, nearest="expert = 1")
    split = parallel.expert * parallel.tensor
    if model.experts > 1 and model.experts % split:
        raise InputError(
            f"expert x tensor = {split} processes share whole experts, and do not divide {model.experts}",
            where=at,
            nearest=f"expert x tensor = {_divisor(model.experts, split)}",
        )
    if training.batch_sequences % parallel.streams:
        nearest = max(1, round(training.batch_sequences / parallel.streams)) * parallel.streams
        raise InputError(
            f"the batch of {training.batch_sequences} sequences does not split over {parallel.streams} processes "
            "that see different data",
            where=at,
            nearest=f"batch_tokens = {nearest * training.sequence_tokens}",
        )


def _divisor(number: int, near: int) -> int:
    return min((d for d in range(1, number + 1) if number % d == 0), key=lambda d: abs(d - near))


def _plain(value: Any) -> Any:
    return list(cast("tuple[Any, ...]", value)) if isinstance(value, tuple) else value


def _safe(name: str) -> str:
    """A name as a folder of its own."""
    return re.sub(r"[^\w.+-]+", "-", name).strip(".-") or "run"
