"""An open loop: so many requests a second, whether or not the server keeps up, and how many GPUs answer them in time.

A load balancer deals the requests in turn to replicas. The fewest are looked for with which a simulated replica
(`simulator`, its share of Poisson arrivals) keeps up and stays within the latency limits: their means over the requests, or
a percentile of them. The plateau of `steady_state` says from how many on a replica can keep up at all; from there the count
is doubled until the limits hold, and halved between.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from moescale.errors import InfeasibleError, InputError
from moescale.io.records import record
from moescale.latency import LatencySource
from moescale.models.architecture import Architecture
from moescale.serving.deployment import Deployment
from moescale.serving.host import HostOverhead
from moescale.serving.simulator import Arrivals, Run, simulate
from moescale.serving.steady_state import Servers, largest_batches
from moescale.typing import FloatArray

MOST_REPLICAS = 2**20
# Requests of one simulated replica: so many that ten are above the 99th percentile, or some batches full, but no more than
# take a second to simulate.
LEAST_REQUESTS, MOST_REQUESTS, BATCHES = 1000, 4000, 8.0
WARM_UP = 0.25  # of the requests, which meet a server that still fills
KEEPS_UP = 0.97  # served over asked a second; the last requests of a run have no successors to wait for


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLoop:
    """The fewest replicas that answer a rate in time; times are means, or the percentile.

    `utilization` = requests_per_s / (replicas x the plateau of one), the plateau being b / (n iteration) requests a second
    at the largest batch b that memory and max_num_seqs allow, latency limits left out. It is a share of throughput, not of
    time: at half of it the server may still run passes without a gap, of smaller batches.
    """

    requests_per_s: float
    replicas: int
    tensor_parallel: int  # GPUs of one replica
    gpus: int
    utilization: float  # the rate, over what the replicas serve at most (see the class)
    percentile: float | None  # None: means
    ttft_s: float
    tpot_s: float
    e2e_s: float
    output_tok_s: float
    usd_per_hour: float
    usd_per_mtok: float  # output tokens

    def to_dict(self) -> dict[str, object]:
        """JSON-ready values; without percentile where times are means."""
        return record(self)


def open_loop(
    model: Architecture,
    latency: LatencySource,
    deployment: Deployment,
    gpus: int,
    requests_per_s: float,
    *,
    percentile: float | None = None,
    overhead: HostOverhead | None = None,
    prompt_tokens: FloatArray | None = None,
    output_tokens: FloatArray | None = None,
) -> OpenLoop:
    """The fewest replicas of `gpus` GPUs that serve `requests_per_s` within the limits of `deployment`; see the module.

    `latency` should price kernels alone (`kernels_alone`); lengths may be those of a trace, from which requests are drawn
    in turn. Deterministic. Raises InputError for an impossible rate or percentile, InfeasibleError where no number of
    replicas is fast enough.
    """
    if not 0.0 < requests_per_s < math.inf:
        raise InputError(f"must be positive and finite, not {requests_per_s:g}", where="requests_per_s")
    if percentile is not None and not 0.0 < percentile < 100.0:
        raise InputError(f"must be between 0 and 100, not {percentile:g}", where="percentile")
    d = replace(deployment, replicas=1.0, max_ttft_s=None, max_tpot_s=None)
    servers = Servers(model, np.asarray(float(gpus)), latency, replace(d, host=overhead or d.host))
    most = largest_batches(servers)
    output = float(np.asarray(d.output_tokens))
    plateau = float(most.batch / (most.times.iteration_s * output)) if bool(most.served) else math.nan

    def run_of(replicas: int) -> Run:
        rate = requests_per_s / replicas
        n = int(np.clip(BATCHES * float(most.batch), LEAST_REQUESTS, MOST_REQUESTS))
        # Every k-th of Poisson arrivals: intervals of k exponential ones.
        arrivals = Arrivals(n_requests=n, requests_per_s=rate, burstiness=float(replicas))
        prompt = _whole(d.prompt_tokens if prompt_tokens is None else prompt_tokens, n)
        answer = _whole(d.output_tokens if output_tokens is None else output_tokens, n)
        return simulate(
            model, latency, d, gpus, arrivals, prompt_tokens=prompt, output_tokens=answer, overhead=overhead
        )

    def of_requests(values: FloatArray) -> float:
        kept = values[int(WARM_UP * len(values)) :]
        kept = kept[np.isfinite(kept)]
        if not kept.size:
            return 0.0
        return float(np.mean(kept) if percentile is None else np.percentile(kept, percentile))

    def holds(run: Run, replicas: int) -> bool:
        limits = ((run.ttft_s, deployment.max_ttft_s), (run.tpot_s, deployment.max_tpot_s))
        within = all(most_s is None or of_requests(values) <= most_s for values, most_s in limits)
        # The run ends when the last request is answered; until then it has waited no longer than one takes.
        last_s = float(run.arrival_s[-1]) + float(np.median(run.e2e_s))
        return within and run.makespan_s * KEEPS_UP <= last_s and requests_per_s <= replicas * plateau

    least = max(math.floor(requests_per_s / plateau) + 1 if plateau > 0 else 1, 1)
    low, high = least - 1, least  # low is too few
    run = run_of(high)
    while not holds(run, high):
        alone = requests_per_s / high * float(np.median(run.e2e_s)) < 0.01  # no request meets another
        if alone or high > MOST_REPLICAS:
            kind = "mean" if percentile is None else f"{percentile:g}th percentile"
            what = f"an idle server already needs {of_requests(run.ttft_s):.3g} s to a first token and {of_requests(run.tpot_s):.3g} s a token ({kind})"
            raise InfeasibleError(what, where=f"{gpus} x {d.gpu.name}", next_step="relax the limits, or take more GPUs")
        low, high = high, 2 * high
        run = run_of(high)
    while high - low > 1:
        middle = (low + high) // 2
        tried = run_of(middle)
        if holds(tried, middle):
            high, run = middle, tried
        else:
            low = middle
    usd_per_hour = high * gpus * float(np.asarray(d.usd_per_gpu_hour))
    tokens_per_s = requests_per_s * float(np.mean(run.output_tokens))
    return OpenLoop(
        requests_per_s=requests_per_s,
        replicas=high,
        tensor_parallel=gpus,
        gpus=high * gpus,
        utilization=requests_per_s / (high * plateau),
        percentile=percentile,
        ttft_s=of_requests(run.ttft_s),
        tpot_s=of_requests(run.tpot_s),
        e2e_s=of_requests(run.e2e_s),
        output_tok_s=tokens_per_s,
        usd_per_hour=usd_per_hour,
        usd_per_mtok=usd_per_hour / 3600.0 / tokens_per_s * 1e6,
    )


def _whole(lengths: FloatArray | float, n: int) -> FloatArray:
    """So many whole lengths, the given ones in turn."""
    given = np.maximum(np.round(np.atleast_1d(np.asarray(lengths, dtype=np.float64))), 1.0)
    return np.resize(given, n)
