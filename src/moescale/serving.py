"""Batch, iteration latency, throughput and dollars per token of a served model (the paper's appendix B).

Legend: g GPUs, p prompt and n output tokens a request, b concurrent requests. Memory of one GPU times memory_fraction
holds its share of the weights and of the KV cache, so b = free bytes / KV bytes of a request of p + n/2 tokens, its
time average. One iteration decodes b tokens and starts b/n prompts: prefill(b/n) + decode(b), with prefill(x) =
x prefill(1) below one prompt. As in the paper, the two are separate passes: near b/n = 1 weights are read twice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

import numpy as np

from moescale.accounting import count_parameters, kv_bytes_per_token
from moescale.architecture import Architecture, FloatArray, Real
from moescale.errors import InfeasibleError, InputError
from moescale.hardware import Gpu
from moescale.latency import NUMERIC_FIELDS, LatencySource, common_shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """How a model is served: hardware, price, traffic, limits."""

    gpu: Gpu
    usd_per_gpu_hour: float
    prompt_tokens: float  # p, mean prompt length
    output_tokens: float  # n, mean output length
    max_gpus: int = 8
    max_num_seqs: float | None = None  # None: memory alone limits the batch
    memory_fraction: float = 0.9  # share of GPU memory for weights and KV cache, as vLLM's gpu_memory_utilization
    utilization: float = 1.0  # share of the plateau throughput that traffic uses
    weight_bytes_per_param: float = 2.0  # bf16
    kv_bytes_per_element: float = 2.0  # bf16


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """Serving figures over the common shape of models and GPU counts; infeasible entries cost infinity."""

    gpus: FloatArray
    batch: FloatArray  # concurrent requests, a time average (0 where infeasible)
    prefill_s: FloatArray  # NaN where infeasible, as the next two
    decode_s: FloatArray
    iteration_s: FloatArray
    throughput_tok_s: FloatArray  # output tokens a second of the whole deployment (0 where infeasible)
    usd_per_mtok: FloatArray  # dollars per million output tokens (inf where infeasible)
    weight_bytes: FloatArray  # of the whole model
    kv_bytes_per_token: FloatArray  # of the whole model
    limited_by: FloatArray  # index into LIMITS
    infeasible: FloatArray  # index into REASONS, 0 where feasible


MOST_GPUS = 1024  # far beyond any tensor-parallel server; keeps a slip of the pen from filling the memory

LIMITS = ("memory", "max_num_seqs", "latency")

REASONS = (
    "feasible",
    "the weights do not fit into GPU memory",
    "one request of full length does not fit beside the weights",
    "the GPU count does not divide the number of attention heads",
    "the latency source has no answer",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Cost of serving one model on one GPU count; None where a figure does not apply because it is infeasible."""

    gpus: int
    n_params_total: float
    n_params_active: float
    weight_bytes: float
    kv_bytes_per_token: float
    latency_source: str
    usd_per_mtok: float | None = None  # dollars per million output tokens at the stated utilization
    batch: float | None = None
    limited_by: str | None = None
    prefill_s: float | None = None
    decode_s: float | None = None
    iteration_s: float | None = None
    throughput_tok_s: float | None = None  # output tokens a second of the whole deployment
    infeasible: str | None = None
    candidates: tuple[Cost, ...] | None = None  # one record a GPU count that was looked at

    def to_dict(self) -> dict[str, object]:
        """The record as JSON-ready values; keys that do not apply are absent."""
        record = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "candidates"}
        record = {name: value for name, value in record.items() if value is not None}
        if self.candidates is not None:
            record["candidates"] = [candidate.to_dict() for candidate in self.candidates]
        return record


def serve(model: Architecture, gpus: Real, latency: LatencySource, deployment: Deployment) -> Serving:
    """Serving figures of `model` on `gpus` GPUs; model fields and `gpus` broadcast, all answers have their shape.

    Raises InputError for impossible traffic, limits or GPU counts. What cannot be served is not an error here: it costs
    infinity and carries the index of its reason (see `infeasible_reason`).
    """
    _check(deployment)
    count = np.asarray(gpus, dtype=np.float64)
    if not np.all((count >= 1) & (count <= MOST_GPUS) & (count == np.floor(count))):
        raise InputError(f"GPU counts must be whole numbers from 1 to {MOST_GPUS}, not {gpus!r}", where="gpus")
    p, n = deployment.prompt_tokens, deployment.output_tokens
    weight_bytes = deployment.weight_bytes_per_param * count_parameters(model).total
    kv_bytes = kv_bytes_per_token(model, deployment.kv_bytes_per_element)
    free = deployment.gpu.memory_bytes * deployment.memory_fraction - weight_bytes / count
    kv_bytes_per_gpu = kv_bytes * _kv_share(model, count)

    reason = np.where(free > 0, np.where(free >= kv_bytes_per_gpu * (p + n), 0.0, 2.0), 1.0)
    heads = np.asarray(model.n_heads, dtype=np.float64)
    reason = np.where(_is_whole(model) & (heads % count != 0), 3.0, reason)
    fits = reason == 0
    cap = math.inf if deployment.max_num_seqs is None else deployment.max_num_seqs
    by_memory = free / (kv_bytes_per_gpu * (p + n / 2))
    batch = np.where(fits, np.minimum(by_memory, cap), 1.0)  # 1: a valid question for the latency source

    starting = batch / n
    prefill_s = latency.prefill_s(model, count, np.maximum(starting, 1.0), p) * np.minimum(starting, 1.0)
    decode_s = latency.decode_s(model, count, batch, p + n / 2)
    iteration_s = prefill_s + decode_s
    served = fits & (iteration_s > 0) & (iteration_s < math.inf)  # false for NaN, too
    usd_per_iteration = count * (deployment.usd_per_gpu_hour / 3600.0 * 1e6 / deployment.utilization) * iteration_s
    iteration_s = np.where(served, iteration_s, math.nan)

    shape = common_shape(model, count, served)

    def full(values: Real) -> FloatArray:
        return np.broadcast_to(np.asarray(values, dtype=np.float64), shape)

    return Serving(
        gpus=full(count),
        batch=full(np.where(served, batch, 0.0)),
        prefill_s=full(np.where(served, prefill_s, math.nan)),
        decode_s=full(np.where(served, decode_s, math.nan)),
        iteration_s=full(iteration_s),
        throughput_tok_s=full(np.where(served, batch / iteration_s, 0.0)),
        usd_per_mtok=full(np.where(served, usd_per_iteration / batch, math.inf)),
        weight_bytes=full(weight_bytes),
        kv_bytes_per_token=full(kv_bytes),
        limited_by=full(np.where(by_memory > cap, 1.0, 0.0)),
        infeasible=full(np.where(fits & ~served, 4.0, reason)),
    )


def cheapest(model: Architecture, latency: LatencySource, deployment: Deployment) -> Serving:
    """Serving figures at the GPU count from 1 to `deployment.max_gpus` with the fewest dollars per token.

    Ties go to fewer GPUs. Where no count serves a model, the entry is that of `max_gpus`, and costs infinity.
    """
    _check(deployment)
    models = common_shape(model)
    counts = np.arange(1.0, deployment.max_gpus + 1).reshape(-1, *(1 for _ in models))
    every = serve(model, counts, latency, deployment)
    best = np.argmin(every.usd_per_mtok, axis=0)
    best = np.where(np.isinf(np.min(every.usd_per_mtok, axis=0)), deployment.max_gpus - 1, best)[np.newaxis]
    return Serving(**{f.name: np.take_along_axis(getattr(every, f.name), best, axis=0)[0] for f in fields(every)})


def candidates(model: Architecture, latency: LatencySource, deployment: Deployment) -> list[Cost]:
    """One record for each GPU count from 1 to `deployment.max_gpus`, the infeasible ones with their reason."""
    _check(deployment)
    return _records(model, np.arange(1.0, deployment.max_gpus + 1), latency, deployment)


def cost(model: Architecture, latency: LatencySource, deployment: Deployment, gpus: int | None = None) -> Cost:
    """Cost of serving one `model` at its cheapest GPU count, or at `gpus` GPUs, with every candidate looked at.

    Raises InfeasibleError when no count serves the model.
    """
    if gpus is None:
        looked_at = candidates(model, latency, deployment)
    else:
        looked_at = _records(model, np.asarray([gpus], dtype=np.float64), latency, deployment)
    served = [record for record in looked_at if record.usd_per_mtok is not None]
    if not served:
        where = f"{'1 to ' if gpus is None and len(looked_at) > 1 else ''}{looked_at[-1].gpus} x {deployment.gpu.name}"
        raise InfeasibleError(
            f"no GPU count serves {model.name or 'the model'}: {_last_word(looked_at)}",
            where=where,
            next_step="allow more GPUs, take a GPU with more memory, fp8 weights, shorter requests, or the roofline "
            "where a latency source has no answer",
        )
    best = min(served, key=lambda record: (record.usd_per_mtok or 0.0, record.gpus))
    return replace(best, candidates=tuple(looked_at))


def infeasible_reason(
    serving: Serving, model: Architecture, deployment: Deployment, index: tuple[int, ...] = ()
) -> str | None:
    """Why the entry at `index` of `serve(model, ..)` cannot be served, with the arithmetic; None where it can."""
    reason = int(serving.infeasible[index])
    if reason == 0:
        return None

    def at(values: Real) -> float:
        return float(np.broadcast_to(values, np.shape(serving.gpus))[index])

    gpus, gpu = int(serving.gpus[index]), deployment.gpu
    on_gpus = f"on {gpus} GPU{'' if gpus == 1 else 's'}"
    p, n = deployment.prompt_tokens, deployment.output_tokens
    weights = float(serving.weight_bytes[index]) / gpus
    budget = gpu.memory_bytes * deployment.memory_fraction
    kv_bytes = float(serving.kv_bytes_per_token[index]) * max(1 / gpus, 1 / at(model.n_kv_heads))
    usable = f"{deployment.memory_fraction:g} x {gpu.memory_bytes / 1e9:.1f} GB = {budget / 1e9:.1f} GB"
    if reason == 1:
        return f"weights take {weights / 1e9:.1f} GB a GPU {on_gpus}, more than the {usable} usable on {gpu.name}"
    if reason == 2:
        return (
            f"one request of {p + n:g} tokens takes {kv_bytes * (p + n) / 1e9:.3g} GB of KV cache a GPU {on_gpus}, but "
            f"{weights / 1e9:.1f} GB of weights leave {(budget - weights) / 1e9:.3g} GB of the {usable} usable"
        )
    if reason == 3:
        return f"{gpus} GPUs cannot share {at(model.n_heads):g} attention heads evenly, as vLLM demands"
    batch = min((budget - weights) / (kv_bytes * (p + n / 2)), deployment.max_num_seqs or math.inf)
    return (
        f"the latency source has no answer for this model {on_gpus} at a batch of {batch:.4g}, prompts of {p:g} and "
        f"contexts of {p + n / 2:g} tokens; a smaller max_num_seqs may lie within its range"
    )


def _records(model: Architecture, counts: FloatArray, latency: LatencySource, deployment: Deployment) -> list[Cost]:
    if common_shape(model):
        raise InputError("a record describes one model, but this architecture holds arrays", next_step="use serve()")
    serving = serve(model, counts, latency, deployment)
    parameters = count_parameters(model)

    def record(i: int) -> Cost:
        model_only = Cost(
            gpus=int(serving.gpus[i]),
            n_params_total=float(parameters.total),
            n_params_active=float(parameters.active),
            weight_bytes=float(serving.weight_bytes[i]),
            kv_bytes_per_token=float(serving.kv_bytes_per_token[i]),
            latency_source=latency.name,
            infeasible=infeasible_reason(serving, model, deployment, (i,)),
        )
        if model_only.infeasible is not None:
            return model_only
        return replace(
            model_only,
            usd_per_mtok=float(serving.usd_per_mtok[i]),
            batch=float(serving.batch[i]),
            limited_by=LIMITS[int(serving.limited_by[i])],
            prefill_s=float(serving.prefill_s[i]),
            decode_s=float(serving.decode_s[i]),
            iteration_s=float(serving.iteration_s[i]),
            throughput_tok_s=float(serving.throughput_tok_s[i]),
        )

    return [record(i) for i in range(len(counts))]


def _last_word(looked_at: list[Cost]) -> str:
    """The reason of the largest count, where a model comes closest to fitting; heads aside, if others failed too."""
    reasons = [record.infeasible or "" for record in looked_at]
    return next((reason for reason in reversed(reasons) if "attention heads" not in reason), reasons[-1])


def _kv_share(model: Architecture, gpus: FloatArray) -> FloatArray:
    """Share of the KV cache that each GPU holds: with more GPUs than key-value heads each still holds one head."""
    return np.maximum(1.0 / gpus, 1.0 / np.asarray(model.n_kv_heads, dtype=np.float64))


def _is_whole(model: Architecture) -> FloatArray | bool:
    """Where every field is a whole number: a model that could be built, so that heads must split evenly."""
    whole: FloatArray | bool = True
    for name in NUMERIC_FIELDS:
        values = np.asarray(getattr(model, name), dtype=np.float64)
        whole = whole & (values == np.floor(values))
    return whole


def _check(deployment: Deployment) -> None:
    """Refuse what no server can do, naming the field."""
    positive = {
        "gpu.memory_bytes": deployment.gpu.memory_bytes,
        "usd_per_gpu_hour": deployment.usd_per_gpu_hour,
        "weight_bytes_per_param": deployment.weight_bytes_per_param,
        "kv_bytes_per_element": deployment.kv_bytes_per_element,
    }
    at_least_one = {
        "prompt_tokens": deployment.prompt_tokens,
        "output_tokens": deployment.output_tokens,
        "max_gpus": deployment.max_gpus,
        "max_num_seqs": 1.0 if deployment.max_num_seqs is None else deployment.max_num_seqs,
    }
    shares = {"memory_fraction": deployment.memory_fraction, "utilization": deployment.utilization}
    for name, value in positive.items():
        if not 0 < value < math.inf:
            raise InputError(f"{name} must be positive and finite, not {value:g}", where="deployment")
    for name, value in at_least_one.items():
        if not 1 <= value < math.inf:
            raise InputError(f"{name} must be finite and at least 1, not {value:g}", where="deployment")
    for name, value in shares.items():
        if not 0 < value <= 1:
            raise InputError(f"{name} must be above 0 and at most 1, not {value:g}", where="deployment")
    if deployment.max_gpus > MOST_GPUS or deployment.max_gpus != int(deployment.max_gpus):
        raise InputError(
            f"max_gpus must be a whole number of at most {MOST_GPUS}, not {deployment.max_gpus:g}", where="deployment"
        )
