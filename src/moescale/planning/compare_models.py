"""Models side by side: what each takes to train, its loss by one law, what it costs to serve, and when the dearer one pays off."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from moescale.errors import InfeasibleError, InputError
from moescale.io.records import Record
from moescale.latency import LatencySource
from moescale.models.coordinates import of_architecture
from moescale.models.family import law_size
from moescale.planning.allocation import inputs_at
from moescale.planning.known import beyond_law, varied_expansion
from moescale.planning.question import KnownModel, as_released
from moescale.planning.total_cost import break_even_tokens
from moescale.planning.training_price import TrainingPrice
from moescale.scaling_laws.law import Law, extrapolation, interval
from moescale.serving.accuracy import Calibrated, accuracy_of, calibrated
from moescale.serving.deployment import Deployment
from moescale.serving.gpu_counts import cost, laid_out
from moescale.typing import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedModel(Record):
    """One of several models; parameters are as built, without embeddings. None where not applicable.

    Intervals hold 90% of the law's draws, and probabilities are shares of them. `loss_change` is ln of the loss over that
    of the first model, by the law itself. `break_even_tokens` holds, by the name of a model that is cheaper to train and
    dearer to serve, the output tokens after which this one has cost as little. `repaid_tokens_as_released` holds the same of a model
    that is not released against released ones, whose training is paid: the tokens that repay all of its own.
    """

    name: str
    released: bool  # trained already, with these tokens
    n_params_active: float
    n_params_total: float
    expansion: float  # FFN weights of all experts over those that a token meets
    tokens: float
    training_flops: float
    gpu_days: float | None = None
    training_usd: float | None = None
    training_usd_interval: tuple[float, float] | None = None  # of nine in ten published runs of its kind
    mfu: float | None = None
    mfu_from: str | None = None  # as TrainingBill, as is the next
    train_precision: str | None = None
    train_precision_source: str | None = None  # who says that it was trained in this one
    loss: float
    loss_interval: tuple[float, float] | None = None
    loss_change: float | None = None  # None for the first, as are the next
    loss_change_interval: tuple[float, float] | None = None
    probability_better: float | None = None
    beyond_law: str | None = None  # why the law may not speak of the loss
    extrapolation: Mapping[str, float] = field(default_factory=dict[str, float])  # factors beyond what was fitted
    weights: str | None = None  # the number format that it is served in; None: the deployment's
    usd_per_mtok: float | None = None
    gpus: int | None = None
    batch: float | None = None
    tpot_s: float | None = None
    attention_dp: int | None = None  # groups of the GPUs that hold attention, where more than one
    infeasible: str | None = None  # why it cannot be served
    calibrated: Calibrated | None = None  # the price by the known error of its kind, where that is known
    total_usd: float | None = None  # of training, and of serving the lifetime tokens
    total_usd_as_released: float | None = None  # of serving them alone; None for a model that is not released
    break_even_tokens: Mapping[str, float] | None = None
    repaid_tokens_as_released: Mapping[str, float] | None = None


def compare_models(
    models: Sequence[KnownModel],
    law: Law,
    deployment: Deployment,
    latency: LatencySource,
    *,
    training: TrainingPrice | None = None,
    train_gpus: int | None = None,
    lifetime_tokens: float | None = None,
    extra: Mapping[str, float] | None = None,
) -> tuple[ComparedModel, ...]:
    """Two or more models in the order in which they are given, each under the same law and deployment.

    `training` prices their training on `train_gpus` GPUs, or on as many as it takes, in the precision that is known of a model;
    `lifetime_tokens` (output tokens) their lives; `extra` holds further inputs of the law. Raises InputError for fewer than two
    models, two of one name, and a law that gives no finite loss, InfeasibleError where `train_gpus` do not hold a model.
    """
    names = [model.name for model in models]
    if len(names) < 2 or len(set(names)) < len(names):
        what = "one model cannot be compared" if len(names) < 2 else "a model is named twice"
        raise InputError(what, next_step="name two or more models, such as llama-3.1-8b olmoe-1b-7b")
    losses, drawn = _losses(law, models, extra or {})
    if not np.isfinite(losses).all():
        what = f"{law.name} gives no finite loss for these models"
        raise InputError(what, where="--law", next_step="take another law")
    rows: list[ComparedModel] = []
    for model, loss in zip(models, losses.tolist(), strict=True):
        n, e = model.in_convention_of(law.family)
        x, varied = varied_expansion(law, e)
        far = extrapolation(law, float(law_size(law.family, n, e)), model.tokens, e)
        row = ComparedModel(
            name=model.name,
            released=model.released,
            n_params_active=model.sizes[0],
            n_params_total=model.sizes[1],
            expansion=float(of_architecture(model.architecture)[1]),
            tokens=model.tokens,
            training_flops=model.training_flops,
            loss=loss,
            beyond_law=beyond_law(law, e),
            extrapolation=far | ({"expansion": x / varied} if x > varied else {}),
            **({} if training is None else _trained(model, training, train_gpus)),
            **_served(model, deployment, latency),
        )
        rows.append(row if lifetime_tokens is None else _lived(row, lifetime_tokens))
    paid = [replace(row, training_usd=0.0) for row in rows if row.released]
    told = (
        replace(
            row,
            loss_interval=_ends(drawn[:, i]),
            loss_change=math.log(row.loss / rows[0].loss) if i else None,
            loss_change_interval=_ends(np.log(drawn[:, i] / drawn[:, 0])) if i else None,
            probability_better=float(np.mean(drawn[:, i] < drawn[:, 0])) if i and len(drawn) else None,
            break_even_tokens=_break_even(row, rows),
            repaid_tokens_as_released=None if row.released else _break_even(row, paid),
        )
        for i, row in enumerate(rows)
    )
    return tuple(told)


def _losses(law: Law, models: Sequence[KnownModel], extra: Mapping[str, float]) -> tuple[FloatArray, FloatArray]:
    """Losses (m,) by the law itself, and by each of its draws (k, m)."""
    n, e = np.array([model.in_convention_of(law.family) for model in models]).T
    own = [model.inputs(law.form) for model in models]
    of_each = {name: np.array([one[name] for one in own]) for name in own[0]}
    x = inputs_at(law, {**of_each, **extra}, n, np.log([model.tokens for model in models]), e)
    with np.errstate(over="ignore"):
        drawn = np.exp(law.form.log_loss(law.draws, x)) if len(law.draws) else np.empty((0, n.size))
        return np.exp(law.form.log_loss(law.theta, x)), drawn


def _trained(model: KnownModel, training: TrainingPrice, gpus: int | None) -> dict[str, Any]:
    """What training takes, in the precision that is known of the model."""
    price = model.priced_as_trained(training)
    bill = price.bill(model.architecture, model.training_flops, model.tokens, gpus)
    return {
        "gpu_days": bill.gpu_days,
        "training_usd": bill.usd,
        "training_usd_interval": bill.usd_interval,
        "mfu": bill.mfu,
        "mfu_from": bill.mfu_from,
        "train_precision": bill.precision,
        "train_precision_source": (bill.precision == model.trained_in and model.trained_in_source) or None,
    }


def _served(model: KnownModel, deployment: Deployment, latency: LatencySource) -> dict[str, Any]:
    """What serving costs in the format of the checkpoint, or why nothing serves it."""
    try:
        own, source = as_released(model, deployment, latency)
        served = cost(model.architecture, source, own)
    except InfeasibleError as error:
        return {"infeasible": error.what}
    accuracy = accuracy_of(model.architecture, laid_out(own, served.attention_dp), source)
    same = ("usd_per_mtok", "gpus", "batch", "tpot_s", "attention_dp")
    told = {name: getattr(served, name) for name in same}
    return told | {"weights": own.weights, "calibrated": calibrated(served.usd_per_mtok, accuracy)}


def _lived(row: ComparedModel, served_tokens: float) -> ComparedModel:
    """The model with the dollars of a life of so many output tokens."""
    if row.usd_per_mtok is None:
        return row
    serving = row.usd_per_mtok * served_tokens / 1e6
    total = None if row.training_usd is None else row.training_usd + serving
    return replace(row, total_usd=total, total_usd_as_released=serving if row.released else None)


def _ends(values: FloatArray) -> tuple[float, float] | None:
    if not values.size:
        return None
    low, high = interval(values)
    return float(low), float(high)


def _break_even(model: ComparedModel, others: Sequence[ComparedModel]) -> dict[str, float] | None:
    """Output tokens after which a model that is dearer to train has cost as little as each that is dearer to serve."""
    own = model.training_usd, model.usd_per_mtok
    pairs = (
        (other.name, break_even_tokens(own[0], other.training_usd, own[1], other.usd_per_mtok)) for other in others
    )
    return {name: tokens for name, tokens in pairs if tokens is not None} or None
