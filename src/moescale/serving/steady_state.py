"""Batch, iteration latency, throughput and dollars per token of a served model (the paper's appendix B).

Legend: g GPUs of one replica, p prompt and n output tokens a request, b requests in service. Memory of one GPU times
memory_fraction holds its share of the weights, the reserve and its share of the KV cache, so b = free bytes / KV bytes
of a request of p + n/2 tokens, its time average. One iteration decodes b tokens in D = decode(b) and starts x = b/n
prompts; a prompt is processed in one pass, so that below x = 1 a share x of the iterations has one. y = min(x, 1).

    separate (the paper's): prompts have passes of A = prefill(max(x, 1)), so that the weights are read twice
        I = D + y A                     seconds of an iteration; b/I output tokens a second, X = b/(n I) requests a second
        TPOT = D + A min(b - 1, n - 1)/n                       TTFT = W + A        b = X (A + n TPOT)
    chunked: prompts ride in passes that decode, which take D + A, A = min(mixed(b, max(x, 1)) - D, prefill(max(x, 1)))
        I = D + y A
        TPOT = D + A min(b - 1, n - 1)/(n - 1)                 TTFT = W + D + A    b = X (D + A + (n - 1) TPOT)

TPOT, the mean time between a request's output tokens as its client measures it, holds the prompts of the b - 1 others
and not its own: D for a batch of one. TTFT is the pass of its own prompt and W, the mean rest of the pass under way when
it comes, which is E[S^2] / 2 E[S] of passes of S seconds: none for a batch of one. In a closed loop requests start evenly
spaced, so that no further prompt waits before it; those in service are b = X times a request's time in service
(Little's law), and with the waiting ones c = b + X W = X (TTFT + n TPOT), where the paper charges n decodes beside the
prompt's pass and chunked prefill n - 1. A client that holds more requests in flight than b waits for a place: its TTFT is
c/X - n TPOT, and nothing else changes.

Latency limits shrink b until both hold. Seconds per token nearly always fall with b; where measured kernels have them
rise, `batching` "cheapest" takes a smaller batch. `host` adds what a server's CPU does for each pass; the paper's
formula, and the default, counts none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt

from moescale.errors import InfeasibleError, InputError
from moescale.hardware.gpus import Gpu
from moescale.latency import NUMERIC_FIELDS, LatencySource, common_shape
from moescale.models.accounting import (
    count_parameters,
    kv_bytes_per_request,
    kv_bytes_per_token,
    weight_bytes,
    weight_bytes_per_gpu,
)
from moescale.models.architecture import Architecture
from moescale.serving.deployment import (
    ARRAY_FIELDS,
    MOST_GPUS,
    Deployment,
    context_tokens,
    degrees,
    longest_request_tokens,
)
from moescale.typing import FloatArray, Real

BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """Serving figures over the common shape of models, GPU counts and deployments; infeasible entries cost infinity."""

    gpus: FloatArray  # of one replica
    batch: FloatArray  # concurrent requests of one replica, a time average (0 where infeasible)
    prefill_s: FloatArray  # NaN where infeasible, as the other times; chunked: what prompts add to the pass
    decode_s: FloatArray
    iteration_s: FloatArray  # a token for every request, and the prompts that start meanwhile
    tpot_s: FloatArray  # mean time between the output tokens of a request, as its client measures it
    ttft_s: FloatArray  # time to first token of a request that finds a place
    throughput_tok_s: FloatArray  # output tokens a second of the whole deployment (0 where infeasible)
    usd_per_mtok: FloatArray  # dollars per million output tokens (inf where infeasible)
    weight_bytes: FloatArray  # of one whole model
    weight_bytes_per_gpu: FloatArray  # on the fullest GPU
    kv_bytes_per_token: FloatArray  # of the whole model
    limited_by: FloatArray  # index into LIMITS
    infeasible: FloatArray  # index into REASONS, 0 where feasible


LIMITS = ("memory", "max_num_seqs", "latency", "optimum", "front_end")

REASONS = (
    "feasible",
    "the weights do not fit into GPU memory",
    "one request of full length does not fit beside the weights",
    "the GPU count does not divide the attention heads, or neither divides nor is a multiple of the key-value heads",
    "the latency source has no answer",
    "a batch of one exceeds a latency limit",
    "the expert-parallel GPUs do not divide the GPU count, or exceed the experts",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Cost of serving one model on one GPU count; None where a figure does not apply because it is infeasible."""

    gpus: int  # of the whole deployment: tensor_parallel times replicas
    n_params_total: float
    n_params_active: float
    weight_bytes: float
    kv_bytes_per_token: float
    latency_source: str
    tensor_parallel: int | None = None  # GPUs of one replica
    expert_parallel: int | None = None  # so many of them hold whole experts
    replicas: int | None = None
    weight_bytes_per_gpu: float | None = None  # on the fullest GPU
    reserve_bytes: float | None = None  # of each GPU, for activations and the runtime
    usd_per_mtok: float | None = None  # dollars per million output tokens at the stated utilization
    batch: float | None = None  # of one replica
    limited_by: str | None = None
    latency_limit: str | None = None  # which limit binds where `limited_by` is latency: max_ttft or max_tpot
    prefill_s: float | None = None
    decode_s: float | None = None
    iteration_s: float | None = None
    ttft_s: float | None = None  # time to first token of a request that finds a place
    tpot_s: float | None = None  # time per output token
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
    """Serving figures of `model` on `gpus` GPUs a replica; model, `gpus` and the deployment's numbers broadcast.

    All answers have the common shape. Raises InputError for impossible traffic, limits or GPU counts, and for a latency
    source of another GPU or number format than the deployment's. What cannot be
    served is not an error here: it costs infinity and carries the index of its reason (see `infeasible_reason`).
    """
    return _serve(model, gpus, latency, deployment)


def _serve(
    model: Architecture, gpus: Real, latency: LatencySource, deployment: Deployment, *, every: bool = False
) -> Serving:
    """As `serve`; `every` looks at a ladder of batches, for questions of a few entries."""
    count = _counts(gpus, latency, deployment)
    found = _largest(model, count, latency, deployment)
    if deployment.batching == "cheapest":
        found = _cheapest_batch(found, found.served, model, latency, deployment, every=every)
    return _figures(found, model, deployment)


@dataclass(frozen=True, slots=True)
class _Found:
    """Batches with their times, before they are figures; arrays broadcast to the common shape of the question."""

    count: FloatArray
    per_gpu: FloatArray  # bytes of weights
    batch: FloatArray
    times: _Times
    limited_by: FloatArray
    reason: FloatArray

    @property
    def served(self) -> BoolArray:
        seconds = self.times.iteration_s
        return (self.reason == 0) & (seconds > 0) & (seconds < math.inf)  # false for NaN, too

    def usd_per_mtok(self, deployment: Deployment) -> FloatArray:
        """Dollars per million tokens; infinite where it is not served."""
        usd_per_mega_s = deployment.usd_per_gpu_hour / 3600.0 * 1e6 / deployment.utilization
        return np.where(self.served, self.count * usd_per_mega_s * self.times.iteration_s / self.batch, math.inf)


def _counts(gpus: Real, latency: LatencySource, deployment: Deployment) -> FloatArray:
    """GPU counts as numbers, the whole question checked."""
    _check_source(latency, deployment)
    count = np.asarray(gpus, dtype=np.float64)
    if not np.all((count >= 1) & (count <= MOST_GPUS) & (count == np.floor(count))):
        raise InputError(f"GPU counts must be whole numbers from 1 to {MOST_GPUS}, not {gpus!r}", where="gpus")
    return count


def _largest(model: Architecture, count: FloatArray, latency: LatencySource, deployment: Deployment) -> _Found:
    """The largest batches that memory, max_num_seqs and the latency limits allow."""
    d = deployment
    per_gpu = weight_bytes_per_gpu(model, d.weight_bytes_per_param, count, d.expert_parallel)
    free = d.gpu.memory_bytes * d.memory_fraction - per_gpu - d.reserve_bytes
    longest = kv_bytes_per_request(model, longest_request_tokens(d), d.kv_bytes_per_element, count)

    reason = np.where(free > 0, np.where(free >= longest, 0.0, 2.0), 1.0)
    reason = np.where(_is_whole(model) & ~_shares_heads(model, count), 3.0, reason)
    ways = np.asarray(d.expert_parallel, dtype=np.float64)
    routed = np.where(np.asarray(model.n_moe_layers) > 0, model.n_experts, 1.0)
    reason = np.where((count % ways != 0) | (ways > routed), 6.0, reason)
    fits = reason == 0
    cap = math.inf if d.max_num_seqs is None else d.max_num_seqs
    by_memory = free / kv_bytes_per_request(model, context_tokens(d), d.kv_bytes_per_element, count)
    batch = np.where(fits, np.minimum(by_memory, cap), 1.0)  # 1: a valid question for the latency source

    times = _times(model, count, batch, latency, d)
    limited_by = np.where(by_memory > cap, 1.0, 0.0)
    if d.max_ttft_s is not None or d.max_tpot_s is not None:
        late = fits & _late(times, d)
        if np.any(late):
            batch, late = _within_limits(model, count, batch, late, latency, d)
            times = _times(model, count, batch, latency, d)
            reason = np.where(late & _late(times, d), 5.0, reason)
            limited_by = np.where(late, 2.0, limited_by)
    if d.host.front_end_s_per_token > 0:
        limited_by = np.where(times.passes_s < times.iteration_s, 4.0, limited_by)
    return _Found(count, per_gpu, batch, times, limited_by, reason)


PROBES = (4.0, 1.4)  # by so much smaller batches show whether seconds per token still fall at the largest
LADDER = 49  # batches from 1 to the largest, evenly spaced in logarithms
ZOOM = 9  # batches between the neighbours of the best
WORTH = 1e-3  # a smaller batch is taken for a saving of more than this; kernels are known to percents


def _cheapest_batch(
    found: _Found,
    among: BoolArray,
    model: Architecture,
    latency: LatencySource,
    deployment: Deployment,
    *,
    every: bool = False,
) -> _Found:
    """The same with smaller batches where those take fewer seconds per token, among the entries of a mask.

    A batch shares its weights, so that seconds per token nearly always fall up to the largest; measured kernels have
    steps. The best of a few smaller batches, or of `every` one on a ladder, is refined between its neighbours.
    """
    shape = _shape(model, found.count, deployment)
    batch, among = np.broadcast_to(found.batch, shape), np.broadcast_to(among & (found.batch > 1.0), shape)
    if not np.any(among):
        return found
    asked, most = _only(among, model, found.count, deployment), batch[among]
    seconds = np.broadcast_to(found.times.iteration_s, shape)[among] / most
    steps = np.linspace(0.0, 1.0, LADDER)[:-1, np.newaxis]
    tried = most**steps if every else np.maximum(most / np.reshape(PROBES, (-1, 1)), 1.0)
    tried_s, _ = _seconds_per_token(tried, asked, latency)
    better = np.min(tried_s, axis=0) < seconds * (1.0 - WORTH)
    if not np.any(better):
        return found
    at = np.argmin(tried_s, axis=0)[better]
    around = np.concatenate([np.ones_like(most)[np.newaxis], tried, most[np.newaxis]])[:, better]
    low, best, high = (_row(around, at + step) for step in (0, 1, 2))
    between = np.exp(np.linspace(np.log(low), np.log(high), ZOOM + 2)[1:-1])
    zoomed = np.concatenate([best[np.newaxis], between])
    zoomed_s, times = _seconds_per_token(zoomed, _only(better, *asked), latency)
    at, place = np.argmin(zoomed_s, axis=0), np.flatnonzero(among)[better]

    def with_new(values: FloatArray, new: FloatArray | float) -> FloatArray:
        changed = np.array(np.broadcast_to(values, shape))
        changed.flat[place] = new
        return changed

    both = {f.name: with_new(getattr(found.times, f.name), _row(getattr(times, f.name), at)) for f in fields(_Times)}
    limited_by = with_new(found.limited_by, 3.0)
    return replace(found, batch=with_new(batch, _row(zoomed, at)), limited_by=limited_by, times=_Times(**both))


def _row(values: FloatArray, at: npt.NDArray[np.intp]) -> FloatArray:
    """Of values (k, m), the one in row `at` (m,) of each column."""
    return np.take_along_axis(values, at[np.newaxis], axis=0)[0]


def _seconds_per_token(
    batch: FloatArray, asked: tuple[Architecture, FloatArray, Deployment], latency: LatencySource
) -> tuple[FloatArray, _Times]:
    """Seconds of an iteration over its batch, infinite where it is late or has no answer, and all times."""
    model, count, deployment = asked
    times = _times(model, count, batch, latency, deployment)
    known = (times.iteration_s > 0) & ~_late(times, deployment)
    return np.where(known, times.iteration_s / batch, math.inf), times


def _only(
    chosen: BoolArray, model: Architecture, count: FloatArray, deployment: Deployment
) -> tuple[Architecture, FloatArray, Deployment]:
    """The question of the chosen entries alone, each array flat; `chosen` has the common shape."""

    def taken(values: Real) -> Real:
        return np.broadcast_to(values, chosen.shape)[chosen] if np.ndim(values) else values

    some_model = replace(model, **{name: taken(getattr(model, name)) for name in NUMERIC_FIELDS})
    given = {name: getattr(deployment, name) for name in ARRAY_FIELDS}
    some = replace(deployment, **{name: taken(value) for name, value in given.items() if value is not None})
    return some_model, np.broadcast_to(count, chosen.shape)[chosen], some


def _figures(found: _Found, model: Architecture, deployment: Deployment) -> Serving:
    """Everything in the common shape of the question."""
    d, times, served, shape = deployment, found.times, found.served, _shape(model, found.count, deployment)

    def full(values: Real) -> FloatArray:
        return np.broadcast_to(np.asarray(values, dtype=np.float64), shape)

    def seconds(values: FloatArray) -> FloatArray:
        return full(np.where(served, values, math.nan))

    with np.errstate(invalid="ignore", divide="ignore"):
        per_s = d.replicas * (found.batch / times.iteration_s)
    return Serving(
        gpus=full(found.count),
        batch=full(np.where(served, found.batch, 0.0)),
        prefill_s=seconds(times.prefill_s),
        decode_s=seconds(times.decode_s),
        iteration_s=seconds(times.iteration_s),
        tpot_s=seconds(times.tpot_s),
        ttft_s=seconds(times.ttft_s),
        throughput_tok_s=full(np.where(served, per_s, 0.0)),
        usd_per_mtok=full(found.usd_per_mtok(d)),
        weight_bytes=full(weight_bytes(model, d.weight_bytes_per_param)),
        weight_bytes_per_gpu=full(found.per_gpu),
        kv_bytes_per_token=full(kv_bytes_per_token(model, d.kv_bytes_per_element)),
        limited_by=full(found.limited_by),
        infeasible=full(np.where((found.reason == 0) & ~served, 4.0, found.reason)),
    )


def batch_by_memory(model: Architecture, gpus: Real, deployment: Deployment) -> FloatArray:
    """Concurrent requests, a time average, that the memory of `gpus` GPUs holds beside the weights; 0 where none fits.

    Limits of latency and max_num_seqs, and whether the longest request fits, are left to `serve`. Everything broadcasts.
    Raises InputError for an impossible deployment.
    """
    d = deployment
    per_gpu = weight_bytes_per_gpu(model, d.weight_bytes_per_param, gpus, d.expert_parallel)
    free = d.gpu.memory_bytes * d.memory_fraction - per_gpu - d.reserve_bytes
    return np.maximum(free / kv_bytes_per_request(model, context_tokens(d), d.kv_bytes_per_element, gpus), 0.0)


def _shape(model: Architecture, count: Real, deployment: Deployment) -> tuple[int, ...]:
    numbers = (getattr(deployment, name) for name in ARRAY_FIELDS)
    return common_shape(model, count, *(number for number in numbers if number is not None))


@dataclass(frozen=True, slots=True)
class _Times:
    """Seconds with so many requests in service; see the module's legend."""

    prefill_s: FloatArray
    decode_s: FloatArray
    passes_s: FloatArray  # both
    iteration_s: FloatArray  # no shorter than the front end takes for its tokens
    tpot_s: FloatArray
    ttft_s: FloatArray


def _times(
    model: Architecture, count: FloatArray, batch: FloatArray, latency: LatencySource, deployment: Deployment
) -> _Times:
    """The times of an iteration and of a request with `batch` requests in service."""
    d, n, ways = deployment, np.asarray(deployment.output_tokens, dtype=np.float64), deployment.expert_parallel
    starting = batch / n
    whole, share = np.maximum(starting, 1.0), np.minimum(starting, 1.0)  # a prompt is processed in one pass
    nodes = d.prompt_nodes or ((d.prompt_tokens, 1.0),)
    decode_s = d.host.pass_s(latency.decode_s(model, count, batch, context_tokens(d), expert_parallel=ways), batch)
    alone_s = np.asarray(0.0)
    for at, part in nodes:
        prefill_s = latency.prefill_s(model, count, whole, at, expert_parallel=ways)
        alone_s = alone_s + part * d.host.pass_s(prefill_s, whole)
    others = np.minimum(batch, n) - 1.0
    if d.scheduling == "chunked":
        both_s = np.asarray(0.0)
        for at, part in nodes:
            mixed_s = latency.mixed_s(model, count, batch, context_tokens(d), whole, at, expert_parallel=ways)
            both_s = both_s + part * d.host.pass_s(mixed_s, batch)
        added_s = np.minimum(both_s - decode_s, alone_s)  # a prompt may always have a pass of its own
        own_s = decode_s + added_s
        tpot_s = decode_s + added_s * (others / np.maximum(n - 1.0, TINY))
        squares = (1.0 - share) * decode_s**2 + share * own_s**2
    else:
        added_s = own_s = alone_s
        tpot_s = decode_s + added_s * (others / n)
        squares = decode_s**2 + share * own_s**2
    prefill_s = share * added_s
    passes_s = prefill_s + decode_s
    under_way_s = np.minimum(batch - 1.0, 1.0) * squares / (2.0 * passes_s)
    front_end_s = d.host.front_end_s_per_token * batch
    return _Times(
        prefill_s=prefill_s,
        decode_s=decode_s,
        passes_s=passes_s,
        iteration_s=np.maximum(passes_s, front_end_s),
        tpot_s=np.maximum(tpot_s, front_end_s),
        ttft_s=under_way_s + own_s,
    )


TINY = np.finfo(np.float64).tiny


def _late(times: _Times, deployment: Deployment) -> BoolArray:
    most_ttft_s = math.inf if deployment.max_ttft_s is None else deployment.max_ttft_s
    most_tpot_s = math.inf if deployment.max_tpot_s is None else deployment.max_tpot_s
    return (times.tpot_s > most_tpot_s) | (times.ttft_s > most_ttft_s)


HALVINGS = 40  # of the logarithm of the batch: far below a millionth of a request


def _within_limits(
    model: Architecture,
    count: FloatArray,
    batch: FloatArray,
    late: BoolArray,
    latency: LatencySource,
    deployment: Deployment,
) -> tuple[FloatArray, BoolArray]:
    """The largest batch from 1 to `batch` that meets the latency limits, where `late`, and `late` in full shape.

    Where even a batch of 1 is late, it is 1. Bisection: latency grows with the batch, and where a measured one does not, a
    looser limit still finds no smaller batch.
    """
    shape = _shape(model, count, deployment)
    batch, late = np.array(np.broadcast_to(batch, shape)), np.broadcast_to(late, shape)
    some_model, some_count, some = _only(late, model, count, deployment)
    low, high = np.ones_like(batch[late]), batch[late]
    for _ in range(HALVINGS):
        middle = np.sqrt(low * high)
        times = _times(some_model, some_count, middle, latency, some)
        beyond = _late(times, some) | np.isnan(times.ttft_s)
        low, high = np.where(beyond, low, middle), np.where(beyond, middle, high)
    batch[late] = low
    return batch, late


def cheapest(model: Architecture, latency: LatencySource, deployment: Deployment, *, every: bool = False) -> Serving:
    """Serving figures at the GPU count among `degrees(deployment)` with the fewest dollars per token.

    Counts are compared at their largest batches; with `every`, for questions of a few entries, at the cheapest of a ladder
    of batches, as `cost` does. Ties go to fewer GPUs. Where no count serves a model, the entry is that of the largest, and
    costs infinity.
    """
    shape = _shape(model, 1.0, deployment)
    degree = np.asarray(degrees(deployment), dtype=np.float64).reshape(-1, *(1 for _ in shape))
    count = _counts(degree, latency, deployment)
    found = _largest(model, count, latency, deployment)
    if deployment.batching == "cheapest":
        usd = found.usd_per_mtok(deployment)
        among = found.served & (every | (usd <= np.min(usd, axis=0)))
        found = _cheapest_batch(found, among, model, latency, deployment, every=every)
    figures = _figures(found, model, deployment)
    best = np.argmin(figures.usd_per_mtok, axis=0)
    best = np.where(np.isinf(np.min(figures.usd_per_mtok, axis=0)), len(degree) - 1, best)[np.newaxis]
    return Serving(**{f.name: np.take_along_axis(getattr(figures, f.name), best, axis=0)[0] for f in fields(figures)})


def candidates(model: Architecture, latency: LatencySource, deployment: Deployment) -> list[Cost]:
    """One record for each GPU count of `degrees(deployment)`, the infeasible ones with their reason."""
    return _records(model, np.asarray(degrees(deployment), dtype=np.float64), latency, deployment)


def cost(model: Architecture, latency: LatencySource, deployment: Deployment, gpus: int | None = None) -> Cost:
    """Cost of serving one `model` at its cheapest GPU count, or at `gpus` a replica, with every candidate looked at.

    Raises InfeasibleError when no count serves the model.
    """
    if gpus is None:
        looked_at = candidates(model, latency, deployment)
    else:
        looked_at = _records(model, np.asarray([gpus], dtype=np.float64), latency, deployment)
    served = [record for record in looked_at if record.usd_per_mtok is not None]
    if not served:
        where = f"{'1 to ' if gpus is None and len(looked_at) > 1 else ''}{looked_at[-1].gpus} x {deployment.gpu.name}"
        reason = _last_word(looked_at)
        raise InfeasibleError(
            f"no GPU count serves {model.name or 'the model'}: {reason}", where=where, next_step=_remedy(reason)
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

    d, gpus, gpu = deployment, int(serving.gpus[index]), deployment.gpu
    on_gpus = _on(gpus)
    budget = gpu.memory_bytes * at(d.memory_fraction)
    per_gpu, reserve = float(serving.weight_bytes_per_gpu[index]), at(d.reserve_bytes)
    taken = f"weights {_gb(per_gpu)}" + (f" + reserve {_gb(reserve)} = {_gb(per_gpu + reserve)}" if reserve else "")
    usable = f"{at(d.memory_fraction):g} x {_gb(gpu.memory_bytes)} = {_gb(budget)}"
    if reason == 1:
        return f"{taken.replace('weights', 'weights take', 1)} a GPU {on_gpus}, more than the {usable} usable on {gpu.name}"
    if reason == 2:
        tokens = at(longest_request_tokens(d))
        longest = at(kv_bytes_per_request(model, longest_request_tokens(d), d.kv_bytes_per_element, serving.gpus))
        return (
            f"one request of {tokens:g} tokens takes {longest / 1e9:.3g} GB of KV cache a GPU {on_gpus}, but {taken} "
            f"leave {(budget - per_gpu - reserve) / 1e9:.3g} GB of the {usable} usable"
        )
    if reason == 3:
        return _uneven_heads(gpus, at(model.n_heads), at(model.n_kv_heads))
    if reason == 6:
        ways, experts = at(d.expert_parallel), at(model.n_experts) if at(model.n_moe_layers) else 1.0
        what = f"{gpus} is not a multiple of it" if gpus % ways else f"the model has {experts:g} experts a layer"
        return f"expert parallelism over {ways:g} GPUs is impossible {on_gpus}: {what}"
    if reason == 5:
        limits = (("to a first token", d.max_ttft_s), ("for an output token", d.max_tpot_s))
        told = " and ".join(f"{at(most) * 1e3:.3g} ms {kind}" for kind, most in limits if most is not None)
        return f"a batch of 1 {on_gpus} takes longer than {told}"
    context = at(context_tokens(d))
    held = at(kv_bytes_per_request(model, context_tokens(d), d.kv_bytes_per_element, serving.gpus))
    cap = math.inf if d.max_num_seqs is None else at(d.max_num_seqs)
    separate = ", or it knows separate passes only" if d.scheduling == "chunked" else ""
    return (
        f"the latency source has no answer for this model {on_gpus} at a batch of "
        f"{min((budget - per_gpu - reserve) / held, cap):.4g}, prompts of {at(d.prompt_tokens):g} and contexts of "
        f"{context:g} tokens; a smaller max_num_seqs may lie within its range{separate}"
    )


def _shares_heads(model: Architecture, count: FloatArray) -> BoolArray:
    """Where `count` GPUs hold equal shares of the heads, as vLLM demands.

    Query heads are split evenly. Key-value heads are split evenly or, where there are fewer of them than GPUs, each is
    held by equally many GPUs. Latent attention, whose cache has no heads, has as many of either.
    """
    heads, kv_heads = (np.asarray(n, dtype=np.float64) for n in (model.n_heads, model.n_kv_heads))
    return (heads % count == 0) & ((kv_heads % count == 0) | (count % kv_heads == 0))


def _uneven_heads(gpus: int, heads: float, kv_heads: float) -> str:
    """The refusal of a GPU count, with the nearest counts below and above that share the heads."""

    def shares(count: int) -> bool:
        return heads % count == 0 and (kv_heads % count == 0 or count % kv_heads == 0)

    what = f"{heads:g} attention heads" if heads % gpus else f"{kv_heads:g} key-value heads"
    below = next(count for count in range(gpus, 0, -1) if shares(count))
    above = next((count for count in range(gpus, int(heads) + 1) if shares(count)), None)
    nearest = f"{below} GPU{'' if below == 1 else 's'}" if above is None else f"{below} or {above} GPUs"
    return f"{gpus} GPUs cannot share {what} evenly, as vLLM demands; {nearest} can"


def _on(gpus: int) -> str:
    return f"on {gpus} GPU{'' if gpus == 1 else 's'}"


def _gb(value: float) -> str:
    return f"{value / 1e9:.1f} GB"


def _why_not(
    serving: Serving, model: Architecture, latency: LatencySource, deployment: Deployment, index: int
) -> str | None:
    """The reason with the figures that only the latency source knows."""
    told = infeasible_reason(serving, model, deployment, (index,))
    d = deployment
    if int(serving.infeasible[index]) != 5:
        return told
    count = np.asarray(serving.gpus[index])
    times = _times(model, count, np.asarray(1.0), latency, d)
    parts = [
        f"{kind} {float(value) * 1e3:.3g} ms, allowed {float(np.asarray(most)) * 1e3:.3g} ms"
        for kind, value, most in (
            ("time to first token", times.ttft_s, d.max_ttft_s),
            ("time per output token", times.tpot_s, d.max_tpot_s),
        )
        if most is not None and value > most
    ]
    return f"a batch of 1 {_on(int(count))} {TOO_SLOW}: {'; '.join(parts)}"


def _records(model: Architecture, counts: FloatArray, latency: LatencySource, deployment: Deployment) -> list[Cost]:
    if common_shape(model):
        raise InputError("a record describes one model, but this architecture holds arrays", next_step="use serve()")
    if _shape(model, 1.0, deployment):
        raise InputError("a record describes one deployment, but this one holds arrays", next_step="use serve()")
    serving = _serve(model, counts, latency, deployment, every=True)
    parameters = count_parameters(model)
    replicas = int(np.asarray(deployment.replicas))

    def record(i: int) -> Cost:
        model_only = Cost(
            gpus=int(serving.gpus[i]) * replicas,
            n_params_total=float(parameters.total),
            n_params_active=float(parameters.active),
            weight_bytes=float(serving.weight_bytes[i]),
            weight_bytes_per_gpu=float(serving.weight_bytes_per_gpu[i]),
            reserve_bytes=float(deployment.reserve_bytes),
            kv_bytes_per_token=float(serving.kv_bytes_per_token[i]),
            latency_source=latency.name,
            tensor_parallel=int(serving.gpus[i]),
            expert_parallel=int(np.asarray(deployment.expert_parallel)),
            replicas=replicas,
            infeasible=_why_not(serving, model, latency, deployment, i),
        )
        if model_only.infeasible is not None:
            return model_only
        return replace(
            model_only,
            usd_per_mtok=float(serving.usd_per_mtok[i]),
            batch=float(serving.batch[i]),
            limited_by=LIMITS[int(serving.limited_by[i])],
            latency_limit=_latency_limit(serving, deployment, i),
            prefill_s=float(serving.prefill_s[i]),
            decode_s=float(serving.decode_s[i]),
            iteration_s=float(serving.iteration_s[i]),
            ttft_s=float(serving.ttft_s[i]),
            tpot_s=float(serving.tpot_s[i]),
            throughput_tok_s=float(serving.throughput_tok_s[i]),
        )

    return [record(i) for i in range(len(counts))]


def _latency_limit(serving: Serving, deployment: Deployment, index: int) -> str | None:
    """The limit that an entry of `serve` comes closest to, where latency limits its batch."""
    if LIMITS[int(serving.limited_by[index])] != "latency":
        return None
    limits = (
        ("max_ttft", serving.ttft_s[index], deployment.max_ttft_s),
        ("max_tpot", serving.tpot_s[index], deployment.max_tpot_s),
    )
    return max((float(taken / most), name) for name, taken, most in limits if most is not None)[1]


def _last_word(looked_at: list[Cost]) -> str:
    """The reason of the largest count, where a model comes closest to fitting; heads aside, if others failed too.

    Latency does not fall with every further GPU: counts that are too slow are all named.
    """
    reasons = [record.infeasible or "" for record in looked_at]
    if slow := [reason for reason in reasons if TOO_SLOW in reason]:
        return "; ".join(slow)
    return next((reason for reason in reversed(reasons) if " heads evenly" not in reason), reasons[-1])


TOO_SLOW = "is too slow"


def _remedy(reason: str) -> str:
    """What to change about a reason that no GPU count serves a model."""
    if TOO_SLOW in reason:
        return "relax the limit, shorten the prompts, or take a faster GPU or fewer bytes a weight"
    if " heads evenly" in reason:
        return "ask for a GPU count that it names"
    if "has no answer" in reason:
        return "take the roofline (--latency roofline), at most 8 GPUs, or a smaller batch"
    return "allow more GPUs, take a GPU with more memory, fewer bytes a weight, or shorter requests"


def _is_whole(model: Architecture) -> BoolArray | bool:
    """Where every field is a whole number: a model that could be built, so that heads must split evenly."""
    whole: BoolArray | bool = True
    for name in NUMERIC_FIELDS:
        values = np.asarray(getattr(model, name), dtype=np.float64)
        whole = whole & (values == np.floor(values))
    return whole


def _check_source(latency: LatencySource, deployment: Deployment) -> None:
    """Refuse a source that says what it stands for, where that is not what is deployed."""
    theirs = getattr(latency, "gpu", None)
    if isinstance(theirs, Gpu) and theirs.name != deployment.gpu.name:
        raise InputError(
            f"the latencies are those of {theirs.name}, the deployment is on {deployment.gpu.name}",
            where=latency.name,
            next_step="make the latency source for the deployment's GPU",
        )
    for name in ("weight_bytes_per_param", "kv_bytes_per_element"):
        stated, wanted = getattr(latency, name, None), np.asarray(getattr(deployment, name), dtype=np.float64)
        if stated is not None and np.any(wanted != stated):
            raise InputError(
                f"the latencies are for {name} = {stated:g}, the deployment has {wanted.flat[0]:g}",
                where=latency.name,
                next_step=f"make the latency source with {name}={wanted.flat[0]:g}",
            )
