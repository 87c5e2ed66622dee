"""What servers are asked, answered by the engine: clients of a closed loop, and how many replicas serve a request rate."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from moescale.errors import InfeasibleError, InputError
from moescale.latency import LatencySource
from moescale.models.architecture import Architecture
from moescale.serving.deployment import Deployment
from moescale.serving.engine import simulate
from moescale.serving.steady_state import serve
from moescale.serving.workload import Answer, Load, Measured, Run, closed
from moescale.typing import FloatArray

MOST_REPLICAS = 2**20
# Requests of one replica at a rate: so many that ten are above the 99th percentile, or some batches full, but no more than
# take a second to simulate.
LEAST_REQUESTS, MOST_REQUESTS, BATCHES = 1000, 4000, 8.0
WARM_UP = 0.25  # of the requests, which meet a server that still fills
KEEPS_UP = 0.97  # served over asked a second; the last requests of a run have no successors to wait for
SHRINKS = 4  # of the batch, until a closed loop meets a limit on the time per token


def closed_loop(
    model: Architecture,
    latency: LatencySource,
    deployment: Deployment,
    gpus: int,
    clients: int,
    lengths: tuple[FloatArray, FloatArray] | None = None,
    percentile: float | None = None,
) -> Answer | None:
    """A benchmark of `clients` over all replicas of `gpus` GPUs; None where it has no answer.

    A limit on the time per token bounds the batch in service, and the others wait. Lengths may be those of a trace. Times, which the
    limits bound, are means, or the `percentile` of the requests after the first of each client.
    """
    d, load, most = deployment, closed(clients), float(np.asarray(deployment.batch_cap))
    if lengths is not None:
        load = replace(load, prompt_tokens=lengths[0], output_tokens=lengths[1])
    most_tpot_s = math.inf if d.max_tpot_s is None else float(np.asarray(d.max_tpot_s))

    if math.isfinite(most_tpot_s):
        largest = float(serve(model, gpus, latency, replace(d, batching="largest", max_ttft_s=None)).batch)
        most = max(math.floor(largest), 1)
    shrinks = 0
    while True:
        try:
            found = simulate(model, latency, replace(d, max_num_seqs=most), gpus, load).answer(percentile)
        except InfeasibleError:
            return None
        if (found.tpot_s or 0.0) <= most_tpot_s or most <= 1 or shrinks == SHRINKS:
            return replace(found, meets_limits=d.keeps_limits(found.ttft_s, found.tpot_s))
        fewer = min(most, found.peak_running) * 0.99 * most_tpot_s / (found.tpot_s or 1.0)
        most, shrinks = max(math.floor(fewer), 1), shrinks + 1


def dealt(batch: float, requests_per_s: float, copies: int, **more: Any) -> Load:
    """What one of so many copies gets of Poisson arrivals: every k-th of them, in intervals of k exponential ones."""
    n = int(np.clip(BATCHES * batch, LEAST_REQUESTS, MOST_REQUESTS))
    return Load(n_requests=n, requests_per_s=requests_per_s / copies, burstiness=float(copies), **more)


def fewest(
    run_of: Callable[[int], tuple[Run, dict[str, Any]]], limits: Deployment, gpus: int, requests_per_s: float,
    of_one: float, percentile: float | None, least: int = 1, most: int = MOST_REPLICAS,
) -> tuple[int, Run, dict[str, Any]]:  # fmt: skip
    """The fewest copies, of `of_one` requests a second at most, that serve a rate within limits; the run of one, its times.

    Their number is doubled until the limits hold, and halved between. Raises InfeasibleError where none does.
    """

    high = max(math.floor(requests_per_s / of_one) + 1 if of_one > 0 else 1, least)
    low, found = high - 1, None  # low is too few
    while found is None or high - low > 1:
        copies = high if found is None else (low + high) // 2
        run, times = run_of(copies)
        # A server that keeps up ends as late as if each request had waited for its first token no longer than most do.
        last_s = float(np.max(run.last_s - run.ttft_s)) + float(np.median(run.ttft_s))
        keeps_up = run.makespan_s * KEEPS_UP <= last_s and requests_per_s <= copies * of_one
        if keeps_up and limits.keeps_limits(times["ttft_s"], times["tpot_s"]):
            high, found = copies, (run, times)
            continue
        alone = requests_per_s / copies * float(np.median(run.e2e_s)) < 0.01  # no request meets another
        if found is None and (alone or copies >= most):
            kind = "mean" if percentile is None else f"{percentile:g}th percentile"
            takes = f"{times['ttft_s']:.3g} s to a first token and {times['tpot_s'] or 0.0:.3g} s a token ({kind})"
            server = "an idle server already needs" if alone else f"each of {copies} servers still needs"
            what, where = f"{server} {takes}", f"{gpus} x {limits.gpu.name}"
            raise InfeasibleError(what, where=where, next_step="relax the limits, or take more GPUs")
        low, high = copies, min(2 * copies, most) if found is None else high
    return high, *found


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLoop(Measured):
    """The fewest replicas that answer a rate in time; times are means, or the percentile.

    `utilization` = requests_per_s / (replicas x the plateau of one, `plateau_of`), a share of throughput, not of time.
    """

    requests_per_s: float
    replicas: int
    tensor_parallel: int  # GPUs of one replica
    gpus: int
    utilization: float  # the rate, over what the replicas serve at most (see the class)
    percentile: float | None = None  # None: means
    output_tok_s: float
    usd_per_hour: float
    usd_per_mtok: float  # output tokens


def plateau_of(model: Architecture, latency: LatencySource, deployment: Deployment, gpus: int) -> tuple[float, float]:
    """The largest batch of a replica, limits of latency left out, and the requests a second that it then answers."""
    largest = serve(model, gpus, latency, replace(deployment, batching="largest", max_ttft_s=None, max_tpot_s=None))
    return float(largest.batch), float(largest.throughput_tok_s) / float(np.asarray(deployment.output_tokens))


def open_loop(
    model: Architecture,
    latency: LatencySource,
    deployment: Deployment,
    gpus: int,
    requests_per_s: float,
    *,
    percentile: float | None = None,
    prompt_tokens: FloatArray | None = None,
    output_tokens: FloatArray | None = None,
    most_replicas: int = MOST_REPLICAS,
) -> OpenLoop:
    """The fewest replicas of `gpus` GPUs that serve `requests_per_s` (Poisson, dealt in turn) within the deployment's limits.

    Lengths may be those of a trace, from which requests are drawn in turn. Deterministic. Raises InputError for an impossible
    rate or percentile, InfeasibleError where no number of replicas is fast enough.
    """
    if not 0.0 < requests_per_s < math.inf:
        raise InputError(f"must be positive and finite, not {requests_per_s:g}", where="requests_per_s")
    if percentile is not None and not 0.0 < percentile < 100.0:
        raise InputError(f"must be between 0 and 100, not {percentile:g}", where="percentile")
    d = replace(deployment, replicas=1.0, max_ttft_s=None, max_tpot_s=None)
    batch, plateau = plateau_of(model, latency, d, gpus)
    lengths = {"prompt_tokens": prompt_tokens, "output_tokens": output_tokens}

    def run_of(n: int) -> tuple[Run, dict[str, Any]]:
        run = simulate(model, latency, d, gpus, dealt(batch, requests_per_s, n, **lengths))
        return run, run.measured(percentile, first=int(WARM_UP * len(run.last_s)))

    n, run, times = fewest(run_of, deployment, gpus, requests_per_s, plateau, percentile, most=most_replicas)
    usd_per_hour = n * gpus * float(np.asarray(d.usd_per_gpu_hour))
    tokens_per_s = requests_per_s * float(np.mean(run.output_tokens))
    return OpenLoop(
        requests_per_s=requests_per_s,
        replicas=n,
        tensor_parallel=gpus,
        gpus=n * gpus,
        utilization=requests_per_s / (n * plateau),
        percentile=percentile,
        **times,
        output_tok_s=tokens_per_s,
        usd_per_hour=usd_per_hour,
        usd_per_mtok=usd_per_hour / 3600.0 / tokens_per_s * 1e6,
    )
