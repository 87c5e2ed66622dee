"""Prefill and decode on GPUs of their own: how many of each, and what a token then costs.

Legend: a worker is one copy of the model on t GPUs; p prompt and n output tokens a request. A prefill worker takes q
prompts a pass of A = prefill(q) seconds, and hands their cache over in M seconds. A decode worker serves b requests in
passes of D = decode(b) that give each of them v tokens (1, and drafted ones that are kept); the prompt's pass gives the
first. W_p prefill and W_d decode workers answer

    X = min(W_p q / A, W_d b v / ((n - 1) D))                         requests a second
    TTFT = A + A (q - 1)/2q + M      TPOT = D / v      dollars a request = (t_p W_p + t_d W_d) price / X

with A (q - 1)/2q the mean wait for the other prompts of the pass. The kind that has GPUs to spare waits: decode workers
then hold fewer requests, so that b v / ((n - 1) D) is what comes in. As in `serve` requests come evenly spaced. Prompts
never delay an output token, which is what the split is for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from moescale.errors import InfeasibleError, InputError
from moescale.io.records import record
from moescale.latency import LatencySource, common_shape
from moescale.models.architecture import Architecture
from moescale.models.kv_cache import kv_bytes_per_request
from moescale.serving.deployment import Deployment, degrees
from moescale.serving.steady_state import LADDER, Reason, Servers, largest_batches, shape_of
from moescale.typing import FloatArray

MOST_PROMPTS = 256.0  # of one prefill pass
MOST_WORKERS = 16  # of a kind, where their number is searched
WORTH = 0.01  # more GPUs are taken for a saving of more than this


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """The GPUs that do one of the two."""

    gpus: int
    workers: int
    gpus_per_worker: int
    batch: float  # prompts of a pass, or requests that a worker decodes at once
    pass_s: float
    busy: float  # share of what the workers could do that is asked of them


@dataclass(frozen=True, slots=True, kw_only=True)
class Disaggregated:
    """A server with prefill and decode apart."""

    gpus: int
    prefill: Pool
    decode: Pool
    limited_by: str  # prefill or decode
    transfer_s: float  # of a prompt's cache
    ttft_s: float
    tpot_s: float
    requests_per_s: float
    throughput_tok_s: float  # output tokens a second
    usd_per_mtok: float  # dollars per million output tokens at the stated utilization

    def to_dict(self) -> dict[str, object]:
        """JSON-ready values."""
        return record(self)


@dataclass(frozen=True, slots=True)
class _Workers:
    """Ways to run one worker, arrays (k,): GPUs, batch, seconds of a pass, requests a second."""

    gpus: FloatArray
    batch: FloatArray
    pass_s: FloatArray
    requests_per_s: FloatArray


def disaggregated(
    model: Architecture,
    latency: LatencySource,
    prefill: Deployment,
    decode: Deployment | None = None,
    *,
    prefill_gpus: int | None = None,
    decode_gpus: int | None = None,
) -> Disaggregated:
    """The cheapest server with prefill and decode apart, within the latency limits of `prefill`.

    `decode` is how the decode workers run (None: as the prefill workers). A worker has one of `degrees` GPUs, up to
    max_gpus. Counts that are not stated are searched, up to MOST_WORKERS of a kind; of those within WORTH of the cheapest
    the fewest GPUs. Raises InfeasibleError where nothing is served, InputError for arrays.
    """
    decode = prefill if decode is None else decode
    for d in (prefill, decode):
        if np.any(np.asarray(d.pipeline_parallel) > 1):
            what = "workers are tensor-parallel, without pipeline stages"
            raise InputError(what, where="disaggregated", next_step="leave pipeline_parallel out")
    if common_shape(model) or shape_of(model, 1.0, prefill) or shape_of(model, 1.0, decode):
        raise InputError("prefill and decode apart are priced for one model and one deployment", where="disaggregated")
    first, later = _prefill_workers(model, latency, prefill), _decode_workers(model, latency, decode)
    most_ttft_s = math.inf if prefill.max_ttft_s is None else float(np.asarray(prefill.max_ttft_s))
    cache_bytes = float(kv_bytes_per_request(model, prefill.prompt_tokens, prefill.kv_bytes_per_element))
    moved_s = cache_bytes / prefill.gpu.network_bytes_per_s / first.gpus
    first = _only(first, _first_token_s(first.pass_s, first.batch) + moved_s <= most_ttft_s)
    for kind, found, limit in (
        ("a prompt", first, "to a first token"),
        ("an output token", later, "for an output token"),
    ):
        if not found.gpus.size:
            what = f"no GPU count serves {kind}: memory, heads, the latency source or the limit {limit} prevent it"
            raise InfeasibleError(
                what,
                where=f"1 to {degrees(prefill)[-1]} x {prefill.gpu.name} a worker",
                next_step="allow more GPUs a worker (--max-gpus), fewer bytes a weight, or relax the limit",
            )
    pairs = _pairs(first, later, prefill_gpus, decode_gpus)
    if not pairs[0].size:
        known = sorted({int(g) for g in (*first.gpus, *later.gpus)})
        what = f"{prefill_gpus} and {decode_gpus} GPUs are no whole numbers of workers"
        step = f"multiples of what a worker takes: {', '.join(str(g) for g in known)}"
        raise InfeasibleError(what, where="--prefill-gpus, --decode-gpus", next_step=step)
    i, j, w_p, w_d = pairs
    rate = np.minimum(w_p * first.requests_per_s[i], w_d * later.requests_per_s[j])
    gpus = w_p * first.gpus[i] + w_d * later.gpus[j]
    per_request = gpus / rate
    close = per_request <= np.min(per_request) * (1.0 + WORTH)
    at = np.flatnonzero(close)[np.lexsort((per_request[close], gpus[close]))[0]]
    return _answer(model, latency, (prefill, decode), (first, int(i[at]), int(w_p[at])), (later, int(j[at]), int(w_d[at])), cache_bytes)  # fmt: skip


def _first_token_s(pass_s: FloatArray, prompts: FloatArray) -> FloatArray:
    """Seconds from a prompt to its first token, the wait for the others of its pass included."""
    return pass_s * (1.0 + (prompts - 1.0) / (2.0 * prompts))


def _only(workers: _Workers, which: npt.NDArray[np.bool_]) -> _Workers:
    return _Workers(*(getattr(workers, name)[which] for name in _Workers.__slots__))


def _pairs(
    first: _Workers, later: _Workers, prefill_gpus: int | None, decode_gpus: int | None
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp], FloatArray, FloatArray]:
    """Indices of both kinds of workers and how many there are of each: (k,) four times."""

    def counts(stated: int | None, gpus: FloatArray) -> FloatArray:
        """(ways to run, numbers of workers); 0 where there is none."""
        if stated is None:
            return np.tile(np.arange(1.0, MOST_WORKERS + 1.0), (gpus.size, 1))
        return np.where(stated % gpus == 0, stated // gpus, 0.0)[:, np.newaxis]

    many_first, many_later = counts(prefill_gpus, first.gpus), counts(decode_gpus, later.gpus)
    shape = (first.gpus.size, later.gpus.size, many_first.shape[1], many_later.shape[1])
    i, j, k, m = (index.ravel() for index in np.indices(shape))
    w_p, w_d = many_first[i, k], many_later[j, m]
    there = (w_p > 0) & (w_d > 0)
    return i[there], j[there], w_p[there], w_d[there]


def _prefill_workers(model: Architecture, latency: LatencySource, d: Deployment) -> _Workers:
    """Every GPU count with the batches of prompts that fit: one at a time, and more for short ones."""
    count = np.asarray(degrees(d), dtype=np.float64)
    alone = replace(d, output_tokens=1.0, context_tokens=None, longest_request_tokens=None, max_num_seqs=MOST_PROMPTS)
    alone = replace(alone, max_ttft_s=None, max_tpot_s=None, host=d.host)
    servers = Servers(model, count, latency, alone)
    found = largest_batches(servers)
    fits = found.reason == Reason.FEASIBLE
    prompts = 2.0 ** np.arange(0.0, math.log2(MOST_PROMPTS) + 1.0)[:, np.newaxis]
    pass_s = np.broadcast_to(servers.prompt_pass_s(prompts), (prompts.size, count.size))
    batch, gpus = (np.broadcast_to(values, pass_s.shape) for values in (prompts, count))
    served = fits & (batch <= np.maximum(found.batch, 1.0)) & (pass_s > 0)
    return _Workers(gpus[served], batch[served], pass_s[served], (batch / pass_s)[served])


def _decode_workers(model: Architecture, latency: LatencySource, d: Deployment) -> _Workers:
    """Every GPU count with a ladder of batches up to the largest that memory and the limit on output tokens allow."""
    count = np.asarray(degrees(d), dtype=np.float64)
    servers = Servers(model, count, latency, replace(d, max_ttft_s=None, max_tpot_s=None))
    found = largest_batches(servers)
    batch = np.broadcast_to(found.batch ** np.linspace(0.0, 1.0, LADDER)[:, np.newaxis], (LADDER, count.size))
    pass_s, gpus = np.broadcast_to(servers.decode_pass_s(batch), batch.shape), np.broadcast_to(count, batch.shape)
    most_s = math.inf if d.max_tpot_s is None else float(np.asarray(d.max_tpot_s))
    yielded = 1.0 + np.asarray(d.accepted_tokens)
    served = (found.reason == Reason.FEASIBLE) & (pass_s > 0) & (pass_s / yielded <= most_s)
    rate = batch * yielded / (np.maximum(np.asarray(d.output_tokens) - 1.0, 1.0) * pass_s)
    return _Workers(gpus[served], batch[served], pass_s[served], rate[served])


def _answer(
    model: Architecture,
    latency: LatencySource,
    deployments: tuple[Deployment, Deployment],
    first: tuple[_Workers, int, int],
    later: tuple[_Workers, int, int],
    cache_bytes: float,
) -> Disaggregated:
    """The figures of so many workers of each kind."""
    (p, i, w_p), (q, j, w_d) = first, later
    can_start, can_decode = w_p * float(p.requests_per_s[i]), w_d * float(q.requests_per_s[j])
    rate = min(can_start, can_decode)
    gpus_each = int(p.gpus[i]), int(q.gpus[j])
    # Decode workers hold as many requests as come in.
    same = q.gpus == q.gpus[j]
    order = np.argsort(q.requests_per_s[same])
    batch = float(np.interp(rate / w_d, q.requests_per_s[same][order], q.batch[same][order], left=1.0))
    servers = Servers(model, np.asarray(float(gpus_each[1])), latency, deployments[1])
    decode_s = float(servers.decode_pass_s(np.asarray(batch)))
    d, gpus = deployments[0], w_p * gpus_each[0] + w_d * gpus_each[1]
    tokens_per_s = rate * float(np.asarray(d.output_tokens))
    usd_per_s = gpus * float(np.asarray(d.usd_per_gpu_hour)) / 3600.0
    # Each GPU of the smaller worker sends over a port of its own (NIXL and the like), in one server over its links.
    in_one = gpus <= d.gpu.gpus_per_server
    port = d.gpu.interconnect_bytes_per_s if in_one else d.gpu.network_bytes_per_s
    moved_s = cache_bytes / (port * min(gpus_each))
    pools = [
        Pool(gpus=w * g, workers=w, gpus_per_worker=g, batch=b, pass_s=s, busy=rate / most)
        for w, g, b, s, most in (
            (w_p, gpus_each[0], float(p.batch[i]), float(p.pass_s[i]), can_start),
            (w_d, gpus_each[1], batch, decode_s, can_decode),
        )
    ]
    return Disaggregated(
        gpus=gpus,
        prefill=pools[0],
        decode=pools[1],
        limited_by="prefill" if can_start < can_decode else "decode",
        transfer_s=moved_s,
        ttft_s=float(_first_token_s(p.pass_s[i], p.batch[i])) + moved_s,
        tpot_s=decode_s / (1.0 + float(np.asarray(deployments[1].accepted_tokens))),
        requests_per_s=rate,
        throughput_tok_s=tokens_per_s,
        usd_per_mtok=usd_per_s / tokens_per_s * 1e6 / float(np.asarray(d.utilization)),
    )
