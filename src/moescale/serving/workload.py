"""Loads of a server: when requests come, how long they are, and what is measured of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from moescale.bounds import Bound, check_bounds
from moescale.errors import InputError
from moescale.io.records import Record
from moescale.typing import FloatArray, Real

IntArray = npt.NDArray[np.int64]

MOST_REQUESTS = 1_000_000  # a slip of the pen must not fill the memory
MOST_TOKENS = 10_000_000  # of one request, likewise
# InferenceX (formerly InferenceMAX) sends 10 requests a client, with lengths that are uniform in 0.8 to 1.0 of a nominal one.
ROUNDS, LEAST_LENGTH = 10, 0.8
ENOUGH = 20_000  # requests of one engine in a closed loop; beyond, clients send fewer each
# Between sending a request and the scheduler having it: HTTP, chat template, tokenising, and the first token's way back.
# Candidates, written before the formula of version 0.2 had a score: 0, 10, 20 and 30 ms. Of the development rows of
# benchmarks/measured_servings.py 58%, 77%, 86% and 88% were then within a factor of 2: the smallest was taken from which the
# next adds less than 5%, a rule that was written with these scores in sight.
REQUEST_S = 0.02
TOKEN_S = 4e-6  # of each token of the prompt: tokenising on one thread, measured (docs/evidence/serving.md)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """When requests come and how long they are; `burst`, `closed` and `saturated` make the usual ones.

    Without lengths requests have the deployment's means; lengths are dealt in turn. BoundError for an impossible number.
    """

    n_requests: Annotated[int, Bound(1, MOST_REQUESTS, whole=True)]
    requests_per_s: Annotated[float, Bound(0.0, above=True, unlimited=True)] = math.inf  # inf: all at once
    burstiness: Annotated[float, Bound(0.0, above=True)] = 1.0  # shape of the intervals' gamma distribution; 1: Poisson
    clients: Annotated[int | None, Bound(1, whole=True)] = None  # each sends its next request when one is answered
    request_s: Annotated[float, Bound(0.0)] = 0.0  # from sending a request until the scheduler has it
    token_s: Annotated[float, Bound(0.0)] = 0.0  # the same, of each token of its prompt
    least_length: Annotated[float, Bound(0.0, 1.0, above=True)] = 1.0  # of the longest: lengths are uniform above
    seed: Annotated[int, Bound(0, whole=True)] = 0
    prompt_tokens: FloatArray | None = None
    output_tokens: FloatArray | None = None
    computed: bool = False  # prompts come with their cache, from another server that gave the first token

    def __post_init__(self) -> None:
        check_bounds(self, where="load")
        if self.clients is not None and not math.isinf(self.requests_per_s):
            what = "the clients of a closed loop set the rate themselves"
            raise InputError(what, where="load", next_step="leave out requests_per_s, or clients")

    def share(self, copies: int) -> Load:
        """What one of so many engines gets that are dealt the requests in turn."""
        stated = {name: getattr(self, name) for name in ("prompt_tokens", "output_tokens")}
        dealt = {name: values[::copies] for name, values in stated.items() if values is not None}
        requests, clients = max(round(self.n_requests / copies), 1), self.clients
        if clients is not None:
            clients = max(round(clients / copies), 1)
            requests = min(requests, clients * max(ENOUGH // clients, 1))
        return replace(
            self,
            n_requests=requests,
            requests_per_s=self.requests_per_s / copies,
            burstiness=self.burstiness * copies,  # every k-th of Poisson arrivals: intervals of k exponential ones
            clients=clients,
            **dealt,
        )


def burst(n_requests: int, requests_per_s: float = math.inf, *, seed: int = 0) -> Load:
    """So many requests, all at once or at random (Poisson)."""
    return Load(n_requests=n_requests, requests_per_s=requests_per_s, seed=seed)


def closed(clients: int, rounds: int = ROUNDS) -> Load:
    """A benchmark of so many clients, which start at once and send so many requests each, as InferenceX does."""
    sent: dict[str, Any] = {"request_s": REQUEST_S, "token_s": TOKEN_S, "least_length": LEAST_LENGTH}
    return Load(n_requests=rounds * clients, clients=clients, **sent)


def saturated(batch: float, rounds: int = ROUNDS) -> Load:
    """A server that always has as many requests as it holds, `batch` of a replica."""
    return replace(closed(math.ceil(batch), rounds), request_s=0.0, token_s=0.0)


def lengths_of(name: str, load: Load, mean: Real, rng: np.random.Generator) -> IntArray:
    """Whole `prompt_tokens` or `output_tokens` of each request; `mean` where the load states none."""
    stated: FloatArray | None = getattr(load, name)
    if stated is None:
        low = load.least_length
        drawn = rng.uniform(low, 1.0, load.n_requests)
        stated = np.maximum(np.round(float(np.asarray(mean)) * 2.0 / (1.0 + low) * drawn), 1.0)
    if not np.all((stated >= 1) & (stated <= MOST_TOKENS) & (stated == np.floor(stated))):
        raise InputError(f"{name} must be whole numbers from 1 to {MOST_TOKENS}")
    return np.resize(stated.astype(np.int64), load.n_requests)


def arrival_times_s(load: Load) -> FloatArray:
    """When each request is sent, sorted, in seconds from the start; infinite where that depends on an answer.

    Random intervals are scaled so that their mean is exactly 1 / requests_per_s in every run, as vLLM's benchmark does.
    """
    n = load.n_requests
    if load.clients is not None:
        return np.where(np.arange(n) < load.clients, 0.0, math.inf)
    if math.isinf(load.requests_per_s):
        return np.zeros(n)
    times = np.cumsum(np.random.default_rng(load.seed).gamma(load.burstiness, 1.0, n))
    # Bursts so extreme that every interval rounds to 0 come at once, at the end.
    scaled = times / times[-1] if times[-1] > 0 else np.ones(n)
    return scaled * (n / load.requests_per_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Seconds of a request; the one between tokens is None where no request has a second token."""

    ttft_s: float  # to the first token
    tpot_s: float | None = None  # between the later tokens, on average
    e2e_s: float  # to the last token


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured(Times, Record):
    """Means over requests, and percentiles of them."""

    p50: Times
    p90: Times
    p99: Times


def measured(
    ttft_s: FloatArray, tpot_s: FloatArray, e2e_s: FloatArray, percentile: float | None = None
) -> dict[str, Any]:
    """The fields of `Measured` from those of requests (n,); with `percentile` that one takes the place of the means."""

    def of(values: FloatArray, cut: float | None) -> float | None:
        values = values[np.isfinite(values)]
        if not values.size:
            return None
        return float(np.mean(values) if cut is None else np.percentile(values, cut))

    def at(cut: float | None) -> dict[str, Any]:
        return {"ttft_s": of(ttft_s, cut), "tpot_s": of(tpot_s, cut), "e2e_s": of(e2e_s, cut)}

    return at(percentile) | {f"p{cut}": Times(**at(cut)) for cut in (50, 90, 99)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer(Measured):
    """What a load measured, as a record."""

    requests: int
    output_tok_s: float  # of the whole deployment, over the makespan
    requests_per_s: float
    makespan_s: float  # from the start of the arrivals to the last token
    usd_per_mtok: float  # dollars per million output tokens over the makespan
    batch: float  # running requests of a replica, mean over the makespan
    peak_running: int
    n_preemptions: int
    concurrency: int | None = None  # of a closed loop, as the next two
    plateau_ttft_s: float | None = None  # mean without the first request of each client
    percentile: float | None = None  # at which times are stated, without those first requests; None: means
    meets_limits: bool | None = None  # of latency


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run of one engine; arrays have one entry a request, in order of arrival, as its client sees it."""

    load: Load  # of this engine
    engines: float  # that share the whole load
    parts: int  # engines of a replica
    arrival_s: FloatArray  # when its client sent it
    first_s: FloatArray  # when its first token came
    last_s: FloatArray
    output_tokens: FloatArray
    ttft_s: FloatArray
    tpot_s: FloatArray  # mean time between the later tokens; NaN for a single token
    e2e_s: FloatArray  # arrival to last token
    makespan_s: float  # from the start of the arrivals to the last token
    output_tok_s: float  # of the whole deployment, over the makespan
    usd_per_mtok: float  # dollars per million output tokens, over the makespan
    n_passes: int
    n_preemptions: int
    peak_running: int
    mean_running: float  # over the makespan, idle time included

    def measured(self, percentile: float | None = None, first: int = 0) -> dict[str, Any]:
        """The fields of `Measured` over the requests from `first` on."""
        return measured(self.ttft_s[first:], self.tpot_s[first:], self.e2e_s[first:], percentile)

    def answer(self, percentile: float | None = None) -> Answer:
        """The figures of the run; at a percentile its times are those of the requests after the first of each client."""
        requests, clients = self.engines * len(self.last_s), self.load.clients
        loop: dict[str, Any] = {}
        first = clients if clients is not None and clients < len(self.last_s) else 0
        if clients is not None:
            later_s = float(np.mean(self.ttft_s[first:]))
            loop = {"concurrency": round(self.engines * clients), "plateau_ttft_s": later_s, "percentile": percentile}
        same = ("output_tok_s", "makespan_s", "usd_per_mtok", "n_preemptions")
        return Answer(
            **self.measured(percentile, 0 if percentile is None else first),
            **{name: getattr(self, name) for name in same},
            requests=round(requests),
            requests_per_s=requests / self.makespan_s,
            batch=self.parts * self.mean_running,
            peak_running=self.parts * self.peak_running,
            **loop,
        )
