"""Models side by side: what each takes to train, its loss by one law, what it costs to serve, and when the dearer one pays off."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

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
from moescale.serving.accuracy import Calibrated, accuracy_of, calibrated, calibrated_by_any
from moescale.serving.deployment import Deployment
from moescale.serving.gpu_counts import cost, laid_out
from moescale.typing import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedModel(Record):
    """One of several models; parameters are as built, without embeddings. None where not applicable.

    Intervals hold 90% of the law's draws, and probabilities are shares of them. `loss_change` is ln of the loss over that
    of the first model, by the law itself. Dollars over those of the first are by the known errors of prices, of both models
    independent, those of kinds that were not compared by the errors of all kinds. `break_even_tokens` holds, by the name of a model that is cheaper to train and
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
    training_usd_over_first: float | None = None
    training_usd_over_first_interval: tuple[float, float] | None = None
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
    usd_per_mtok_over_first: float | None = None
    usd_per_mtok_over_first_interval: tuple[float, float] | None = None
    total_usd: float | None = None  # of training, and of serving the lifetime tokens
    total_usd_as_released: float | None = (
        None  # of serving the lifetime tokens alone; None for a model that is not released
    )
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
        raise InputError(
            f"{law.name} gives no finite loss for these models", where="--law", next_step="take another law"
        )
    rows = [
        _alone(model, law, float(loss), deployment, latency, training, train_gpus, lifetime_tokens)
        for model, loss in zip(models, losses, strict=True)
    ]
    paid = [replace(row, training_usd=0.0) for row in rows if row.released]
    told = [
        replace(
            row,
            **_judged(i, losses, drawn),
            **(_over_first(row, rows[0], latency) if i else {}),
            break_even_tokens=_break_even(row, rows) or None,
            repaid_tokens_as_released=(not row.released and _break_even(row, paid)) or None,
        )
        for i, row in enumerate(rows)
    ]
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


def _alone(
    model: KnownModel,
    law: Law,
    loss: float,
    deployment: Deployment,
    latency: LatencySource,
    training: TrainingPrice | None,
    train_gpus: int | None,
    lifetime_tokens: float | None,
) -> ComparedModel:
    """What needs no other model."""
    sizes, flops = model.sizes, model.training_flops
    n, e = model.in_convention_of(law.family)
    size, (x, varied) = float(law_size(law.family, n, e)), varied_expansion(law, e)
    bill = training and model.priced_as_trained(training).bill(model.architecture, flops, model.tokens, train_gpus)
    found = ComparedModel(
        name=model.name,
        released=model.released,
        n_params_active=sizes[0],
        n_params_total=sizes[1],
        expansion=float(of_architecture(model.architecture)[1]),
        tokens=model.tokens,
        training_flops=flops,
        gpu_days=bill and bill.gpu_days,
        training_usd=bill and bill.usd,
        training_usd_interval=bill and bill.usd_interval,
        mfu=bill and bill.mfu,
        mfu_from=bill and bill.mfu_from,
        train_precision=bill and bill.precision,
        train_precision_source=(bill and bill.precision == model.trained_in and model.trained_in_source) or None,
        loss=loss,
        beyond_law=beyond_law(law, e),
        extrapolation=extrapolation(law, size, model.tokens, e) | ({"expansion": x / varied} if x > varied else {}),
    )
    try:
        own, source = as_released(model, deployment, latency)
        served = cost(model.architecture, source, own)
    except InfeasibleError as error:
        return replace(found, infeasible=error.what)
    usd = served.usd_per_mtok
    serving = None if lifetime_tokens is None or usd is None else usd * lifetime_tokens / 1e6
    found = replace(found, weights=own.weights)
    return replace(
        found,
        usd_per_mtok=usd,
        gpus=served.gpus,
        batch=served.batch,
        tpot_s=served.tpot_s,
        attention_dp=served.attention_dp,
        total_usd=None if serving is None or found.training_usd is None else found.training_usd + serving,
        total_usd_as_released=serving if model.released else None,
        calibrated=calibrated(usd, accuracy_of(model.architecture, laid_out(own, served.attention_dp), source)),
    )


def _judged(i: int, losses: FloatArray, drawn: FloatArray) -> dict[str, object]:
    """The intervals of model number `i`, and how it compares with the first."""
    judged: dict[str, object] = {"loss_interval": _ends(drawn[:, i])}
    if i == 0:
        return judged
    better = float(np.mean(drawn[:, i] < drawn[:, 0])) if len(drawn) else None
    return judged | {
        "loss_change": math.log(losses[i] / losses[0]),
        "loss_change_interval": _ends(np.log(drawn[:, i] / drawn[:, 0])),
        "probability_better": better,
    }


def _over_first(model: ComparedModel, first: ComparedModel, latency: LatencySource) -> dict[str, object]:
    """The dollars of training and serving over those of the first model, with the ranges of nine in ten."""
    of_kind = (one.calibrated or calibrated_by_any(one.usd_per_mtok, latency.name) for one in (model, first))
    pairs = {
        "training_usd": (model.training_usd_interval, first.training_usd_interval),
        "usd_per_mtok": [None if one is None else one.interval for one in of_kind],
    }
    found: dict[str, object] = {}
    for name, (own, its) in pairs.items():
        if own is not None and its is not None:
            (low, high), (its_low, its_high) = np.log(own), np.log(its)
            middle, half = (low + high - its_low - its_high) / 2.0, math.hypot(high - low, its_high - its_low) / 2.0
            ends = math.exp(middle - half), math.exp(middle + half)
            found |= {f"{name}_over_first": math.exp(middle), f"{name}_over_first_interval": ends}
    return found


def _ends(values: FloatArray) -> tuple[float, float] | None:
    if not values.size:
        return None
    low, high = interval(values)
    return float(low), float(high)


def _break_even(model: ComparedModel, others: Sequence[ComparedModel]) -> dict[str, float]:
    """Output tokens after which a model that is dearer to train has cost as little as each that is dearer to serve."""
    tokens = {
        other.name: break_even_tokens(model.training_usd, other.training_usd, model.usd_per_mtok, other.usd_per_mtok)
        for other in others
    }
    return {name: count for name, count in tokens.items() if count is not None}
