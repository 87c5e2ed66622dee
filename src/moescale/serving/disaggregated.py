"""Prefill and decode on GPUs of their own: how many of each, and what a token then costs.

Legend: a worker is one copy of the model on t GPUs; p prompt and n output tokens a request. A prefill worker takes as many
prompts q as its pass has room for, in A = prefill(q) seconds, and hands their cache over in M seconds. A decode worker
serves b requests in passes of D = decode(b) that give each of them v tokens (1, and drafted ones that are kept); the
prompt's pass gives the first. W_p prefill and W_d decode workers answer at most

    X = min(W_p q / A, W_d b v / ((n - 1) D))         requests a second, for (t_p W_p + t_d W_d) price / X dollars each

Times are those of two engines, one of each kind, under Poisson arrivals at LOAD of that rate, or at the rate that is asked:
TTFT is the prefill engine's and M. For plans, which price thousands of models, `apart` has as many workers of each kind as
keep both busy: a request costs t_p A / q + t_d (n - 1) D / (b v) GPU seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from moescale.errors import InfeasibleError, InputError
from moescale.latency import LatencySource
from moescale.models.architecture import Architecture
from moescale.models.parameters import kv_bytes_per_request
from moescale.models.quantisation import with_usual_shares
from moescale.roots import bracket
from moescale.serving.deployment import Deployment, degrees
from moescale.serving.engine import simulate
from moescale.serving.gpu_counts import layouts
from moescale.serving.loads import MOST_REPLICAS, WARM_UP, dealt, fewest
from moescale.serving.servers import Servers, shape_of
from moescale.serving.steady_state import CLOSE, Batches, Limit, Reason, Serving, largest_batches, serving_of
from moescale.serving.workload import Measured, Run, measured
from moescale.typing import FloatArray
from moescale.units import plural

LOAD = 0.9  # of the rate that the workers answer at most, under which times are simulated
MOST_WORKERS = 16  # of a kind, where their number is searched
WORTH = 0.01  # more GPUs are taken for a saving of more than this
TRIED = 8  # of the cheapest numbers of workers, until the limits hold


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """The GPUs that do one of the two."""

    gpus: int
    workers: int
    gpus_per_worker: int
    batch: float  # prompts of a full pass, or requests that a worker decodes at once at most
    pass_s: float  # of such a batch
    busy: float  # share of what the workers could do that is asked of them at the rate of the answer
    attention_dp: int = 1  # groups of a worker that hold attention


@dataclass(frozen=True, slots=True, kw_only=True)
class Disaggregated(Measured):
    """A server with prefill and decode apart, at the rate that is asked, else at the highest; times are then at LOAD of it."""

    gpus: int
    prefill: Pool
    decode: Pool
    limited_by: str  # prefill or decode
    transfer_s: float  # of a prompt's cache
    requests_per_s: float  # as asked, else at most
    throughput_tok_s: float  # output tokens a second at that rate
    usd_per_mtok: float  # dollars per million output tokens at that rate; at the highest, at the stated utilization
    percentile: float | None = None  # None: means
    keeps_rate: bool | None = None  # within the limits, as every answer at a rate does; None: none is asked


@dataclass(frozen=True, slots=True, eq=False)  # compared as objects, by which runs are kept
class _Workers:
    """Workers of one kind, each at the batch with which it answers most: layouts (k, ..) by models, or one of them."""

    deployment: Deployment
    gpus: FloatArray
    attention_dp: FloatArray
    expert_parallel: FloatArray
    batch: FloatArray
    pass_s: FloatArray
    request_s: FloatArray  # of one worker, for a request; infinite where it cannot be
    reason: FloatArray  # a Reason, limits of latency aside

    def at(self, index: npt.NDArray[np.intp] | np.intp) -> _Workers:
        """One layout, or one for each model."""
        arrays = (getattr(self, field.name) for field in fields(self) if field.name != "deployment")
        taken = (np.take_along_axis(array, np.expand_dims(index, 0), axis=0)[0] for array in arrays)
        return _Workers(self.deployment, *taken)

    def pool(self, workers: int, rate: float) -> Pool:
        """So many of one layout, of which so many requests a second are asked."""
        gpus = int(self.gpus)
        return Pool(
            gpus=workers * gpus,
            workers=workers,
            gpus_per_worker=gpus,
            batch=float(self.batch),
            pass_s=float(self.pass_s),
            busy=rate * float(self.request_s) / workers,
            attention_dp=int(self.attention_dp),
        )


def apart(model: Architecture, latency: LatencySource, deployment: Deployment) -> Serving:
    """Serving figures of models with prefill and decode apart, each worker at its cheapest GPU count; workers in the ratio that keeps all busy.

    `gpus`, `batch` and `attention_dp` are those of a decode worker, `prefill_gpus` those of a prefill worker; a limit of
    TTFT is on a full pass of prompts, and the way of a cache. What cannot be served costs infinity.
    """
    d, model = deployment, with_usual_shares(model, deployment.weights)
    later, shape = _decode_workers(model, latency, d), shape_of(model, 1.0, d)
    q = later.at(np.argmin(later.gpus * later.request_s, axis=0))
    first = _prefill_workers(model, latency, d, q.gpus)
    p = first.at(np.argmin(first.gpus * first.request_s, axis=0))
    usd_per_gpu_s = np.asarray(d.usd_per_gpu_hour) / 3600.0 / np.asarray(d.utilization)
    usd_p, usd_q = (part.gpus * part.request_s * usd_per_gpu_s * 1e6 for part in (p, q))  # of a million requests
    served = np.isfinite(usd_p + usd_q)
    # What keeps the largest worker of each kind from it, else the limits.
    reason, other = (np.asarray(kind.reason[-1]) for kind in (later, first))
    worst = np.select([reason != Reason.FEASIBLE, other != Reason.FEASIBLE], [reason, other], Reason.TOO_SLOW)
    moved_s = _transfer_s(model, d, np.minimum(p.gpus, q.gpus), p.gpus + q.gpus)
    found = {
        "usd_per_mtok": (usd_p + usd_q) / d.output_tokens,
        "usd_per_input_mtok": usd_p / d.prompt_tokens,
        "usd_per_output_mtok": usd_q / d.output_tokens,
        "prefill_s": p.pass_s,
        "decode_s": q.pass_s,
        "iteration_s": q.pass_s / d.tokens_a_pass,
        "tpot_s": q.pass_s / d.tokens_a_pass,
        "ttft_s": p.pass_s + moved_s,
        "gpus": np.where(served, q.gpus, degrees(d)[-1]),
        "prefill_gpus": np.where(served, p.gpus, 0.0),
        "batch": q.batch,
        "throughput_tok_s": d.output_tokens / q.request_s,
        "weight_bytes_per_gpu": math.nan,
        "attention_dp": np.where(served, q.attention_dp, 1.0),
        "limited_by": Limit.LATENCY if d.max_tpot_s is not None else Limit.MEMORY,
        "infeasible": np.where(served, Reason.FEASIBLE, worst),
    }
    return serving_of(model, d, served, shape, found)


def disaggregated(
    model: Architecture,
    latency: LatencySource,
    deployment: Deployment,
    *,
    prefill_gpus: int | None = None,
    decode_gpus: int | None = None,
    requests_per_s: float | None = None,
    percentile: float | None = None,
    lengths: tuple[FloatArray, FloatArray] | None = None,
) -> Disaggregated:
    """The cheapest server with prefill and decode apart, within the latency limits of `deployment`.

    A worker has one of `degrees` GPUs, up to max_gpus. Counts that are not stated are searched, up to MOST_WORKERS of a
    kind; of those within WORTH of the cheapest the fewest GPUs. At a rate they are the fewest GPUs of each kind that keep it
    within the limits, of means or of the percentile, decode first; lengths may be those of a trace. Raises InfeasibleError
    where nothing is served or the rate is not kept, InputError for arrays.
    """
    d = deployment
    if shape_of(model, 1.0, d):
        raise InputError("prefill and decode apart are priced for one model and one deployment", where="disaggregated")
    kinds = _prefill_workers(model, latency, d), _decode_workers(model, latency, d)
    first, later = ([kind.at(index) for index in np.flatnonzero(np.isfinite(kind.request_s))] for kind in kinds)
    for kind, found, limit in (("a prompt", first, "first token"), ("an output token", later, "output token")):
        if not found:
            what = f"no GPU count serves {kind}: memory, heads, the latency source or the limit of {limit}s prevent it"
            where = f"1 to {degrees(d)[-1]} x {d.gpu.name} a worker"
            step = "allow more GPUs a worker (--max-gpus), fewer bytes a weight, or relax the limit"
            raise InfeasibleError(what, where=where, next_step=step)

    def numbers(kind: list[_Workers], stated: int | None) -> list[tuple[_Workers, int]]:
        if stated is None:
            return [(worker, n) for worker in kind for n in range(1, MOST_WORKERS + 1)]
        return [(worker, stated // int(worker.gpus)) for worker in kind if stated % worker.gpus == 0]

    output = float(np.asarray(d.output_tokens))
    later_tokens = max(output - 1.0, 1.0)

    @cache
    def run_of(worker: _Workers, copies: int, rate: float, decode_batch: float, decodes: bool) -> Run:
        split = {"attention_dp": float(worker.attention_dp), "expert_parallel": float(worker.expert_parallel)}
        at_once = {"max_num_seqs": max(math.floor(worker.batch), 1), "context_tokens": None}
        own = replace(worker.deployment, output_tokens=later_tokens if decodes else 1.0, **split, **at_once)
        load = dealt(decode_batch, rate, copies, computed=decodes)
        if lengths is not None:
            load = replace(load, prompt_tokens=lengths[0], output_tokens=np.maximum(lengths[1] * decodes - 1.0, 1.0))
        return simulate(model, latency, own, int(worker.gpus), load)

    def answered(p: _Workers, w_p: int, q: _Workers, w_d: int, rate: float) -> tuple[list[Run], float, dict[str, Any]]:
        """The runs of a worker of each kind, seconds of a transfer, and the times of requests."""
        runs = [run_of(worker, n, rate, float(q.batch), worker is q) for worker, n in ((p, w_p), (q, w_d))]
        moved_s = float(_transfer_s(model, d, min(p.gpus, q.gpus), (w_p * p.gpus + w_d * q.gpus) / 2.0))
        kept = slice(int(WARM_UP * len(runs[0].e2e_s)), None)  # of the requests of one pipeline stage
        ttft_s, later_s = runs[0].e2e_s[kept] + moved_s, runs[1].e2e_s[kept]
        tokens = later_tokens if lengths is None else runs[1].output_tokens[kept]
        return runs, moved_s, measured(ttft_s, later_s / tokens, ttft_s + later_s, percentile)

    def sized(rate: float, beside: tuple[_Workers, int], decodes: bool) -> list[tuple[_Workers, int]]:
        """The fewest GPUs of a kind that serve a rate beside workers of the other."""
        kind, stated = (later, decode_gpus) if decodes else (first, prefill_gpus)
        limits = replace(d, max_ttft_s=None) if decodes else d
        found, refused = list[tuple[_Workers, int]](), None
        below = MOST_REPLICAS if stated is None else stated + 1  # GPUs

        def run(worker: _Workers, copies: int) -> tuple[Run, dict[str, Any]]:
            runs, _, times = answered(*((*beside, worker, copies) if decodes else (worker, copies, *beside)), rate)
            return runs[decodes], times

        for worker in sorted(kind, key=lambda worker: float(worker.gpus * worker.request_s)):
            gpus, of_one, most = int(worker.gpus), 1.0 / float(worker.request_s), (below - 1) // int(worker.gpus)
            counts = (1 if stated is None else most, most)
            if rate < most * of_one and (stated or 0) % gpus == 0:
                try:
                    copies, *_ = fewest(partial(run, worker), limits, gpus, rate, of_one, percentile, *counts)
                    found, below = [(worker, copies)], copies * gpus
                except InfeasibleError as error:
                    refused = refused or error
        if not found:
            pool = f"{plural(stated or 0, 'GPU')} to {'decode' if decodes else 'prefill'}"
            few = InfeasibleError(f"{pool} cannot take {rate:g} requests a second", next_step="state more")
            raise (refused or few).within("separate prefill and decode")
        return found

    prefills, decodes = numbers(first, prefill_gpus), numbers(later, decode_gpus)
    if not (prefills and decodes):
        known = sorted({int(worker.gpus) for worker in (*first, *later)})
        what = f"{prefill_gpus} and {decode_gpus} GPUs are no whole numbers of workers"
        step = f"multiples of what a worker takes: {', '.join(map(str, known))}"
        raise InfeasibleError(what, where="--prefill-gpus, --decode-gpus", next_step=step)
    if requests_per_s is not None:
        idle = first[0], 1 + int(100.0 * requests_per_s * first[0].request_s)
        decodes = sized(requests_per_s, idle, decodes=True)
        prefills = sized(requests_per_s, decodes[0], decodes=False)
    pairs = [  # requests a second, GPUs, and the workers of each kind
        (float(min(w_p / p.request_s, w_d / q.request_s)), int(w_p * p.gpus + w_d * q.gpus), p, w_p, q, w_d)
        for p, w_p in prefills
        for q, w_d in decodes
    ]
    least = min(gpus / rate for rate, gpus, *_ in pairs)
    pairs.sort(key=lambda pair: (math.floor(math.log(pair[1] / pair[0] / least) / WORTH), pair[1], pair[1] / pair[0]))
    for highest, gpus, p, w_p, q, w_d in pairs[:TRIED]:
        rate, used = (highest, float(np.asarray(d.utilization))) if requests_per_s is None else (requests_per_s, 1.0)
        _, moved_s, times = answered(p, w_p, q, w_d, requests_per_s or LOAD * highest)
        if d.keeps_limits(times["ttft_s"], times["tpot_s"]):
            usd_per_s, tokens_per_s = gpus * float(np.asarray(d.usd_per_gpu_hour)) / 3600.0, rate * output
            return Disaggregated(
                gpus=gpus,
                prefill=p.pool(w_p, rate),
                decode=q.pool(w_d, rate),
                limited_by="prefill" if w_p / p.request_s < w_d / q.request_s else "decode",
                transfer_s=moved_s,
                **times,
                requests_per_s=rate,
                throughput_tok_s=tokens_per_s,
                usd_per_mtok=usd_per_s / tokens_per_s * 1e6 / used,
                percentile=percentile,
                keeps_rate=None if requests_per_s is None else True,
            )
    cheapest = f"of the {TRIED} cheapest numbers of workers none" if len(pairs) > TRIED else "no number of workers"
    what = f"{cheapest} meets the limits at {LOAD:.0%} of its highest rate"
    raise InfeasibleError(what, where="disaggregated", next_step="relax the limits, or state more GPUs")


def _alone(d: Deployment) -> Deployment:
    """The deployment of one kind of worker, whose passes hold prompts or output tokens only."""
    return replace(d, scheduling="separate", max_ttft_s=None, max_tpot_s=None, replicas=1.0, batching="largest")


def _servers(model: Architecture, latency: LatencySource, d: Deployment) -> tuple[Servers, Batches]:
    """The layouts of a worker (k, ..) and their largest batches."""
    count, d = layouts(model, d, degrees(d))
    servers = Servers(model, count, latency, d)
    return servers, largest_batches(servers)


def _prefill_workers(
    model: Architecture, latency: LatencySource, d: Deployment, decode_gpus: FloatArray | None = None
) -> _Workers:
    """Workers that take full passes of prompts, where a single prompt is within the limit of a first token.

    With the GPUs of a decode worker passes hold no more prompts than keep the limit.
    """
    most_s = math.inf if d.max_ttft_s is None else d.max_ttft_s
    lengths = {"output_tokens": 1.0, "context_tokens": None, "longest_request_tokens": None}
    room = d.pass_tokens / np.asarray(d.prompt_tokens)  # prompts of a pass of one group
    servers, batches = _servers(model, latency, replace(_alone(d), max_num_seqs=math.inf, **lengths))
    d, stages = servers.deployment, np.asarray(d.pipeline_parallel)  # so many passes are under way at once
    prompts = np.minimum(batches.batch, stages * np.maximum(room * np.asarray(d.attention_dp), 1.0))
    alone_s, feasible = servers.pass_s(None, np.ones_like(prompts)), batches.reason == Reason.FEASIBLE

    def pass_of(some: Servers, prompts: FloatArray) -> FloatArray:
        return some.pass_s(None, prompts / np.asarray(some.deployment.pipeline_parallel))

    if decode_gpus is None:
        pass_s, moved_s = pass_of(servers, prompts), _transfer_s(model, d, servers.count, servers.count)
    else:
        moved_s = _transfer_s(model, d, np.minimum(servers.count, decode_gpus), servers.count + decode_gpus)
        prompts, pass_s = _within(servers, prompts, stages, pass_of, feasible, most_s - moved_s)
    ok = feasible & (pass_s > 0.0) & (alone_s + moved_s <= most_s)
    return _workers(servers, prompts, pass_s, np.where(ok, pass_s / prompts, math.inf), batches.reason)


def _decode_workers(model: Architecture, latency: LatencySource, d: Deployment) -> _Workers:
    """Workers at the largest batch within the limit of an output token."""
    servers, batches = _servers(model, latency, _alone(d))
    stages, tokens = np.asarray(d.pipeline_parallel), d.tokens_a_pass  # tokens of a request, a pass
    feasible = (batches.reason == Reason.FEASIBLE) & (batches.batch >= 1.0)
    most_s = np.asarray(math.inf if d.max_tpot_s is None else d.max_tpot_s * tokens)

    def pass_of(some: Servers, batch: FloatArray) -> FloatArray:
        return some.pass_s(batch / np.asarray(some.deployment.pipeline_parallel))

    batch, pass_s = _within(servers, batches.batch, np.ones_like(stages), pass_of, feasible, most_s)
    passes = np.maximum(np.asarray(d.output_tokens) - 1.0, 1.0) / tokens
    ok = feasible & (pass_s > 0.0) & (pass_s <= most_s * (1.0 + CLOSE))
    return _workers(servers, batch, pass_s, np.where(ok, passes * pass_s / batch, math.inf), batches.reason)


def _within(
    servers: Servers,
    batch: FloatArray,
    least: FloatArray,
    pass_of: Callable[[Servers, FloatArray], FloatArray],
    feasible: npt.NDArray[np.bool_],
    most_s: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """The largest batches from `least` on whose passes are within a limit, where feasible, and the seconds of a pass."""
    batch, limit_s, least = (
        np.broadcast_to(np.asarray(v, float), servers.shape).copy() for v in (batch, most_s, least)
    )
    pass_s = np.broadcast_to(pass_of(servers, batch), servers.shape).copy()
    if np.any(late := feasible & (limit_s > 0.0) & (pass_s > limit_s)):
        some, within_s = servers.only(late), limit_s[late]

        def beyond(ln_batch: FloatArray) -> FloatArray:
            return np.log(pass_of(some, np.exp(ln_batch)) / within_s)

        batch[late] = np.exp(bracket(beyond, np.log(least[late]), np.log(batch[late]), close=CLOSE)[0])
        pass_s[late] = pass_of(some, batch[late])
    return batch, pass_s


def _workers(servers: Servers, *figures: FloatArray) -> _Workers:
    d = servers.deployment
    return _Workers(d, *np.broadcast_arrays(servers.count, d.attention_dp, d.expert_parallel, *figures))


def _transfer_s(model: Architecture, d: Deployment, fewest: FloatArray | float, gpus: FloatArray | float) -> FloatArray:
    """Seconds to move a prompt's cache; each GPU of the smaller worker has a port of its own, in one server its links."""
    cache_bytes = kv_bytes_per_request(model, d.prompt_tokens, d.kv_bytes_per_element)
    in_one = np.asarray(gpus) * 2 <= d.gpu.gpus_per_server
    port = np.where(in_one, d.gpu.interconnect_bytes_per_s, d.gpu.network_bytes_per_s)
    return cache_bytes / (port * fewest)
