"""One serving engine, pass by pass: whatever load a server gets, the same scheduler and the same prices of passes answer.

A `Policy` says how passes are filled, a `Load` when requests come: at once, at a rate, from clients that wait for their
answers, or at stated times. Each pass first continues the running requests, then admits waiting ones in order of arrival
until its tokens, `max_num_seqs` or the KV cache are used up (continuous batching). When the cache is full, the latest
request is evicted and computed again later. A pass takes its kernels' time, from a table that is made once of a latency
source, and what the host adds. Runs of passes without a prompt are taken in one step, so that time grows with requests, not
with tokens.

A replica is one engine. Attention groups share it: each has its own room in memory and tokens of a pass, and the latency
source prices the busiest. A pipeline of P stages is P engines that take turns, each with a P-th of memory and requests.
Replicas, and such parts, are alike: one is run, with its share of the load. Left out: the rounding of the cache to blocks.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from moescale import catalogue
from moescale.bounds import Bound, check_bounds
from moescale.errors import InfeasibleError, InputError
from moescale.hardware.gpus import Gpu
from moescale.io.records import record
from moescale.latency import LatencySource
from moescale.models.architecture import Architecture
from moescale.serving.deployment import Deployment, batch_cap, drafted_tokens, with_traffic
from moescale.serving.host import NO_OVERHEAD, HostOverhead
from moescale.serving.reasons import REMEDIES, infeasible_reason
from moescale.serving.steady_state import Reason, Servers, bytes_per_gpu, serve, shape_of
from moescale.serving.traffic import summarise
from moescale.typing import FloatArray, Real

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

MOST_REQUESTS = 1_000_000  # a slip of the pen must not fill the memory
MOST_TOKENS = 10_000_000  # of one request, likewise
# InferenceX (formerly InferenceMAX) sends 10 requests a client, with lengths that are uniform in 0.8 to 1.0 of a nominal one.
ROUNDS, LEAST_LENGTH = 10, 0.8
# Between sending a request and the scheduler having it: HTTP, chat template, tokenising, and the first token's way back.
# Candidates, written before the formula of version 0.2 had a score: 0, 10, 20 and 30 ms. Of the development rows of
# benchmarks/measured_servings.py 58%, 77%, 86% and 88% were then within a factor of 2: the smallest was taken from which the
# next adds less than 5%, a rule that was written with these scores in sight.
REQUEST_S = 0.02

# Passes are priced on a grid and interpolated linearly. Every kernel is the longer of two lines, so the error peaks at
# the kinks between them; this ratio of neighbours keeps it below 1% (tests/test_engine.py). Measured kernels also have
# steps: one pass may be 5% off there, on average 0.1%; whole runs moved by 0.02% in throughput, 0.5% in latencies.
EVERY_UP_TO = 32
RATIO = 1.04
CONTEXT_POINTS = 17


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How one engine fills its passes."""

    max_num_seqs: float
    max_num_batched_tokens: int  # of each attention group
    mixed: (
        bool  # prompts, or parts of them, ride in passes that decode; else whole prompts in passes of their own, first
    )
    prompt_wait_passes: float = 0.0  # prompts are held back so long at most, until each attention group has one
    host: HostOverhead = NO_OVERHEAD


def policy_of(deployment: Deployment) -> Policy:
    """The policy that a deployment states; vLLM's numbers for its GPU where it states none."""
    d = deployment
    stated = d.max_num_batched_tokens
    return Policy(
        max_num_seqs=float(np.asarray(batch_cap(d))),
        max_num_batched_tokens=default_max_num_batched_tokens(d.gpu) if stated is None else int(np.asarray(stated)),
        mixed=d.scheduling == "chunked",
        prompt_wait_passes=float(np.asarray(d.prompt_wait_passes)),
        host=d.host,
    )


def default_max_num_batched_tokens(gpu: Gpu) -> int:
    """vLLM's token budget of a pass on `gpu` (API server): the entry whose max_num_seqs is the GPU's default."""
    entries = sorted(catalogue.read("servers.toml")["vllm_api_server"], key=lambda entry: entry["max_num_seqs"])
    fitting = [entry for entry in entries if entry["max_num_seqs"] <= gpu.default_max_num_seqs]
    return int((fitting or entries)[-1 if fitting else 0]["max_num_batched_tokens"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """When requests come and how long they are; `burst`, `open_load`, `closed` and `saturated` make the usual ones.

    Without lengths requests have the deployment's means; lengths are dealt in turn. Raises BoundError for an impossible
    number.
    """

    n_requests: Annotated[int, Bound(1, MOST_REQUESTS, whole=True)]
    requests_per_s: Annotated[float, Bound(0.0, above=True, unlimited=True)] = math.inf  # inf: all at once
    burstiness: Annotated[float, Bound(0.0, above=True)] = 1.0  # shape of the intervals' gamma distribution; 1: Poisson
    clients: Annotated[int | None, Bound(1, whole=True)] = None  # each sends its next request when one is answered
    request_s: Annotated[float, Bound(0.0)] = 0.0  # from sending a request until the scheduler has it
    least_length: Annotated[float, Bound(0.0, 1.0, above=True)] = (
        1.0  # lengths are uniform from this share of the longest
    )
    seed: Annotated[int, Bound(0, whole=True)] = 0
    prompt_tokens: FloatArray | None = None
    output_tokens: FloatArray | None = None
    arrival_s: FloatArray | None = None  # stated times, sorted
    computed: bool = False  # prompts come with their cache, from another server that gave the first token

    def __post_init__(self) -> None:
        check_bounds(self, where="load")
        if self.clients is not None and not math.isinf(self.requests_per_s):
            what = "the clients of a closed loop set the rate themselves"
            raise InputError(what, where="load", next_step="leave out requests_per_s, or clients")

    def share(self, copies: int) -> Load:
        """What one of so many engines gets that are dealt the requests in turn."""

        def dealt(values: FloatArray | None) -> FloatArray | None:
            return None if values is None else values[::copies]

        return replace(
            self,
            n_requests=max(round(self.n_requests / copies), 1),
            requests_per_s=self.requests_per_s / copies,
            burstiness=self.burstiness * copies,  # every k-th of Poisson arrivals: intervals of k exponential ones
            clients=None if self.clients is None else max(round(self.clients / copies), 1),
            **{name: dealt(getattr(self, name)) for name in ("prompt_tokens", "output_tokens", "arrival_s")},
        )


def burst(n_requests: int, requests_per_s: float = math.inf, *, seed: int = 0) -> Load:
    """So many requests, all at once or at random (Poisson)."""
    return Load(n_requests=n_requests, requests_per_s=requests_per_s, seed=seed)


def closed(clients: int, rounds: int = ROUNDS, *, seed: int = 0) -> Load:
    """A benchmark of so many clients, which start at once and send so many requests each, as InferenceX does."""
    rounds = max(min(rounds, 20_000 // clients), 1)
    return Load(n_requests=rounds * clients, clients=clients, request_s=REQUEST_S, least_length=LEAST_LENGTH, seed=seed)


def saturated(batch: float, rounds: int = ROUNDS) -> Load:
    """A server that always has as many requests as it holds, `batch` of a replica."""
    return replace(closed(math.ceil(batch), rounds), request_s=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Seconds of a request; the one between tokens is None where no request has a second token."""

    ttft_s: float  # to the first token
    tpot_s: float | None  # between the later tokens, on average
    e2e_s: float  # to the last token


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured(Times):
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
    meets_limits: bool | None = None  # of latency

    def to_dict(self) -> dict[str, object]:
        """JSON-ready values; keys that do not apply are absent."""
        return record(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run of one engine; arrays have one entry a request, in order of arrival, as its client sees it."""

    load: Load  # of this engine
    engines: float  # that share the whole load
    parts: int  # engines of a replica
    usd_per_s: float  # of all GPUs
    arrival_s: FloatArray  # when its client sent it
    first_s: FloatArray  # when its first token came
    last_s: FloatArray
    output_tokens: FloatArray
    n_passes: int
    n_preemptions: int
    peak_running: int
    mean_running: float  # over the makespan, idle time included
    peak_kv_share: float  # of the cache

    @property
    def makespan_s(self) -> float:
        """From the start of the arrivals to the last token."""
        return float(np.max(self.last_s))

    @property
    def output_tok_s(self) -> float:
        """Output tokens a second of the whole deployment, over the makespan."""
        return self.engines * float(np.sum(self.output_tokens)) / self.makespan_s

    @property
    def ttft_s(self) -> FloatArray:
        """Time to first token."""
        return self.first_s - self.arrival_s

    @property
    def tpot_s(self) -> FloatArray:
        """Mean time between the later tokens; NaN for a single token."""
        with np.errstate(invalid="ignore", divide="ignore"):
            between_s = (self.last_s - self.first_s) / (self.output_tokens - 1.0)
        return np.where(self.output_tokens > 1, between_s, math.nan)

    @property
    def e2e_s(self) -> FloatArray:
        """Arrival to last token."""
        return self.last_s - self.arrival_s

    def measured(self, percentile: float | None = None, first: int = 0) -> dict[str, Any]:
        """The fields of `Measured` over the requests from `first` on."""
        return measured(self.ttft_s[first:], self.tpot_s[first:], self.e2e_s[first:], percentile)

    def answer(self) -> Answer:
        """The figures of the run."""
        requests, clients = self.engines * len(self.last_s), self.load.clients
        loop: dict[str, Any] = {}
        if clients is not None:
            later = self.ttft_s[clients:] if clients < len(self.last_s) else self.ttft_s
            loop = {"concurrency": round(self.engines * clients), "plateau_ttft_s": float(np.mean(later))}
        return Answer(
            **self.measured(),
            requests=round(requests),
            output_tok_s=self.output_tok_s,
            requests_per_s=requests / self.makespan_s,
            makespan_s=self.makespan_s,
            usd_per_mtok=self.usd_per_s / self.output_tok_s * 1e6,
            batch=self.parts * self.mean_running,
            peak_running=self.parts * self.peak_running,
            n_preemptions=self.n_preemptions,
            **loop,
        )


def simulate(
    model: Architecture,
    latency: LatencySource,
    deployment: Deployment,
    gpus: int,
    load: Load,
    policy: Policy | None = None,
) -> Run:
    """Serve every request of `load` with `model` on `gpus` GPUs a replica; deterministic by the load's seed.

    `policy` is by default what the deployment states. Where it has a host, `latency` should price kernels alone
    (`kernels_alone`). Raises InputError for impossible input, InfeasibleError where the model, or the longest request beside
    it, does not fit, or where the latency source has no answer for a pass that is needed.
    """
    if shape_of(model, gpus, deployment):
        what = "a load is answered for one model and one deployment, not for arrays"
        raise InputError(what, where="load", next_step="loop over them")
    stages, replicas = int(np.asarray(deployment.pipeline_parallel)), int(np.asarray(deployment.replicas))
    mine = load.share(stages * replicas)
    rng = np.random.default_rng((mine.seed, 1))
    prompt, output = (
        _lengths(name, mine, getattr(deployment, name), rng) for name in ("prompt_tokens", "output_tokens")
    )
    lengths = summarise(prompt.astype(np.float64), output.astype(np.float64))
    if mine.prompt_tokens is None:
        d = replace(deployment, longest_request_tokens=lengths.longest_request_tokens, context_tokens=None)
        d = replace(d, prompt_tokens=lengths.prompt_tokens, prompt_nodes=()) if not d.prompt_nodes else d
    else:
        d = with_traffic(deployment, lengths)
    policy = policy_of(d) if policy is None else policy
    per_stage = float(np.ceil(policy.max_num_seqs / stages))
    servers = Servers(model, np.asarray(float(gpus)), latency, replace(d, host=NO_OVERHEAD))
    scheduler = _Scheduler(prompt, output, replace(policy, max_num_seqs=per_stage), servers, computed=mine.computed)
    arrival_s = _arrivals(mine)
    _check_fits(scheduler, latency)
    in_flight = min(len(prompt), mine.clients or len(prompt))
    prices = _prices(servers, scheduler, int(min(per_stage, in_flight, scheduler.most_requests())))
    first_s, last_s, busy, n_passes = _run(arrival_s, mine.request_s, scheduler, prices)
    whole, part = (load.n_requests, mine.n_requests) if load.clients is None else (load.clients, mine.clients or 1)
    return Run(
        load=mine,
        engines=whole / part,
        parts=stages,
        usd_per_s=replicas * gpus * float(np.asarray(d.usd_per_gpu_hour)) / 3600.0,
        arrival_s=arrival_s,
        first_s=first_s,
        last_s=last_s,
        output_tokens=output.astype(np.float64),
        n_passes=n_passes,
        n_preemptions=scheduler.n_preemptions,
        peak_running=scheduler.peak_running,
        mean_running=busy / float(np.max(last_s)),
        peak_kv_share=scheduler.peak_bytes / scheduler.available,
    )


def _lengths(name: str, load: Load, mean: Real, rng: np.random.Generator) -> IntArray:
    stated: FloatArray | None = getattr(load, name)
    if stated is None:
        low = load.least_length
        drawn = rng.uniform(low, 1.0, load.n_requests) if low < 1.0 else np.ones(load.n_requests)
        stated = np.maximum(np.round(float(np.asarray(mean)) * 2.0 / (1.0 + low) * drawn), 1.0)
    if not np.all((stated >= 1) & (stated <= MOST_TOKENS) & (stated == np.floor(stated))):
        raise InputError(f"{name} must be whole numbers from 1 to {MOST_TOKENS}", where="load")
    return np.resize(stated.astype(np.int64), load.n_requests)


def _arrivals(load: Load) -> FloatArray:
    """When each request is sent, sorted, in seconds from the start; infinite where that depends on an answer.

    Random intervals are scaled so that their mean is exactly 1 / requests_per_s in every run, as vLLM's benchmark does.
    """
    n = load.n_requests
    if load.arrival_s is not None:
        return load.arrival_s[:n].astype(np.float64)
    if load.clients is not None:
        return np.where(np.arange(n) < load.clients, 0.0, math.inf)
    if math.isinf(load.requests_per_s):
        return np.zeros(n)
    times = np.cumsum(np.random.default_rng(load.seed).gamma(load.burstiness, 1.0, n))
    # Bursts so extreme that every interval rounds to 0 come at once, at the end.
    scaled = times / times[-1] if times[-1] > 0 else np.ones(n)
    return scaled * (n / load.requests_per_s)


def _check_fits(scheduler: _Scheduler, latency: LatencySource) -> None:
    """Raise InfeasibleError unless the model and its longest request fit on the GPUs of a replica."""
    servers = scheduler.servers
    one = replace(servers.deployment, max_num_seqs=1.0, batching="largest", max_ttft_s=None, max_tpot_s=None)
    alone = serve(servers.model, servers.count, latency, replace(one, max_num_batched_tokens=None))
    reason = Reason(int(alone.infeasible))
    if reason not in (Reason.FEASIBLE, Reason.NO_LATENCY):
        what, where = infeasible_reason(alone, servers.model, one), f"{float(servers.count):g} x {one.gpu.name}"
        raise InfeasibleError(str(what), where=where, next_step=REMEDIES[reason])


# Prices of passes.


@dataclass(frozen=True, slots=True)
class _Prices:
    """Seconds of passes on a grid: `decode` [batch, context], `prompts` [tokens] alone, `mixed` [batch, tokens]."""

    batches: list[float]  # from 1
    contexts: FloatArray
    decode: FloatArray
    chunks: list[float]
    prompts: list[float]
    mixed: list[list[float]]  # at the context `middle`
    middle: float

    def decode_s(self, batch: int, contexts: FloatArray) -> FloatArray:
        """Seconds of passes that decode `batch` requests whose mean context is each of `contexts`."""
        i, share = _between(self.batches, batch)
        row = (1 - share) * self.decode[i] + share * self.decode[i + 1]
        return np.interp(contexts, self.contexts, row)

    def mixed_s(self, batch: int, context: float, chunk: float) -> float:
        """Seconds of a pass that decodes `batch` requests and computes `chunk` tokens of prompts.

        The context acts through the cache reads of the decoding requests, which add to everything else.
        """
        j, right = _between(self.chunks, chunk)

        def at(row: list[float]) -> float:
            return (1 - right) * row[j] + right * row[j + 1]

        if batch == 0:
            return at(self.prompts)
        i, share = _between(self.batches, batch)
        at_middle = (1 - share) * at(self.mixed[i]) + share * at(self.mixed[i + 1])
        here, there = self.decode_s(batch, np.asarray([context, self.middle]))
        return at_middle + float(here - there)


def _between(grid: list[float], value: float) -> tuple[int, float]:
    """The cell of `grid` that holds `value`, and how far into it."""
    i = min(max(bisect_right(grid, value) - 1, 0), len(grid) - 2)
    return i, (value - grid[i]) / (grid[i + 1] - grid[i])


def _grid(most: float) -> FloatArray:
    """Whole numbers from 1 to `most` (at least two of them): every one at first, then RATIO apart."""
    most = max(most, 2.0)
    steps = max(2, 1 + math.ceil(math.log(max(most / EVERY_UP_TO, 1.0)) / math.log(RATIO)))
    tail = np.round(np.geomspace(min(EVERY_UP_TO, most), most, steps))
    return np.unique(np.concatenate([np.arange(1.0, min(EVERY_UP_TO, most) + 1), tail]))


def _prices(servers: Servers, scheduler: _Scheduler, most_batch: int) -> _Prices:
    """Prices up to a batch and the prompt tokens of a pass."""
    d, policy = servers.deployment, scheduler.policy
    longest = scheduler.prompt + scheduler.output
    batches = _grid(most_batch)
    most_chunk = scheduler.budget if policy.mixed else max(scheduler.budget, int(np.max(longest)))
    chunks = _grid(min(most_chunk, int(np.sum(longest))))
    contexts = np.linspace(float(np.min(scheduler.prompt)), float(np.max(longest)) + 1.0, CONTEXT_POINTS)
    middle, column = float(contexts[CONTEXT_POINTS // 2]), batches[:, np.newaxis]
    at_contexts = replace(d, context_tokens=contexts, longest_request_tokens=contexts[-1])
    decode = replace(servers, deployment=at_contexts).decode_pass_s(column)
    at_middle = replace(servers, deployment=replace(d, context_tokens=middle, longest_request_tokens=contexts[-1]))
    prompts = chunks / float(servers.new_prompt_tokens)
    alone = at_middle.prompt_pass_s(prompts)
    mixed: list[list[float]] = []
    if policy.mixed:
        both = at_middle.mixed_pass_s(column, prompts)
        separate = decode[:, [CONTEXT_POINTS // 2]] + alone
        mixed = np.where(np.isnan(both), separate, both).tolist()  # a source may know separate passes only
    return _Prices(batches.tolist(), contexts, decode, chunks.tolist(), alone.tolist(), mixed, middle)


# The scheduler.


@dataclass(frozen=True, slots=True)
class _Pass:
    """What one pass computes."""

    chunk: IntArray  # tokens of prompts, of each running request
    decodes: BoolArray  # the running requests that decode
    context: float  # their mean context

    @property
    def batch(self) -> int:
        return int(np.count_nonzero(self.decodes))

    @property
    def prefilled(self) -> int:
        return int(self.chunk.sum())


class _Scheduler:
    """Requests of an engine, by their place in the order of arrival, and which of them the next pass computes.

    A request is admitted when its whole prompt fits beside what the cache holds now.
    """

    def __init__(
        self, prompt: IntArray, output: IntArray, policy: Policy, servers: Servers, *, computed: bool = False
    ) -> None:
        d = servers.deployment
        groups, stages = (float(np.asarray(number)) for number in (d.attention_dp, d.pipeline_parallel))
        self.prompt, self.output, self.policy, self.servers = prompt, output, policy, servers
        self.yielded, self.groups = 1.0 + float(np.asarray(d.accepted_tokens)), groups
        self.tokens = 1 + int(np.asarray(drafted_tokens(d)))  # that a decoding request takes of a pass
        self.budget = max(int(policy.max_num_batched_tokens * groups), self.tokens)
        # Passes that give a token: that of the prompt, and those of the later tokens.
        self.left = 1 + np.ceil((output - 1) / self.yielded).astype(np.int64)
        self.hits = np.minimum(np.floor(prompt * float(np.asarray(d.prefix_hit))), prompt - 1).astype(np.int64)
        self.start = prompt.copy() if computed else self.hits.copy()  # tokens in the cache when a request comes
        self.needed = prompt.copy()  # tokens to compute before the next one can be sampled
        self.cached = np.zeros(len(prompt))
        most_tokens = int(np.max(prompt + output)) + 2 * math.ceil(self.yielded)
        self.kv_bytes = servers.kv_bytes(np.arange(most_tokens + 1, dtype=np.float64))
        self.shared = np.where(self.hits > 0, self.kv_bytes[self.hits], 0.0)  # held once by each attention group
        _, free = bytes_per_gpu(servers.model, servers.count, d)
        of_engine = (float(free) - float(np.max(self.shared))) * groups / stages
        self.available = max(of_engine, float(self.kv_bytes[most_tokens]))  # the longest request fits: `_check_fits`
        self.running = np.zeros(0, dtype=np.int64)  # in order of admission
        self.waiting: deque[int] = deque()
        self.waited = 0.0  # passes since prompts are held back
        self.n_preemptions = self.peak_running = 0
        self.peak_bytes = 0.0

    def most_requests(self) -> float:
        """Requests that the cache holds at most, when they come."""
        least = float(np.min(self.kv_bytes[self.prompt] - self.shared))
        return max(self.available // least, 1.0) if least > 0 else math.inf

    def bytes_of(self, requests: IntArray, tokens: FloatArray) -> float:
        """Bytes of cache of requests that hold so many tokens each."""
        return float((self.kv_bytes[tokens.astype(np.int64)] - self.shared[requests]).sum())

    def step(self) -> _Pass:
        """The next pass, whose requests are then running."""
        before = self.n_preemptions
        chunk, decodes, used = self._continue_running()
        left = self.budget - int(chunk.sum()) - self.tokens * int(np.count_nonzero(decodes))
        if self.n_preemptions == before and not self.holds_back():
            admitted = self._admit(left if self.policy.mixed else self.budget, used)
            if admitted:
                new = np.asarray(admitted, dtype=np.int64)
                chunk, decodes = np.concatenate([chunk, new]), np.concatenate([decodes, new == 0])
                decodes &= self.policy.mixed or not new.any()
                self.waited = 0.0
        batch = int(np.count_nonzero(decodes))
        context = float(self.cached[self.running[decodes]].sum()) / batch if batch else 0.0
        return _Pass(chunk, decodes, context)

    def holds_back(self) -> bool:
        """Whether prompts wait for those of the other attention groups."""
        most = self.policy.prompt_wait_passes
        return bool(len(self.running)) and len(self.waiting) < self.groups and self.waited < most

    def _continue_running(self) -> tuple[IntArray, BoolArray, float]:
        """Prompt tokens of each running request, which of them decode, and the bytes that all hold after the pass."""
        running = self.running
        held = self.cached[running]
        missing = np.maximum(self.needed[running] - held, 0).astype(np.int64)
        decodes = missing == 0
        wanted = np.where(decodes, self.tokens, np.minimum(missing, self.policy.max_num_batched_tokens))
        if wanted.sum() > self.budget:
            wanted = np.clip(self.budget - (wanted.cumsum() - wanted), 0, wanted)
        decodes &= wanted >= self.tokens
        chunk = np.where(missing > 0, wanted, 0)
        after = held + chunk + self.yielded * decodes
        while (used := self.bytes_of(self.running, after)) > self.available:
            evicted = int(self.running[-1])
            self.running = self.running[:-1]
            self.needed[evicted] = max(int(self.needed[evicted]), math.ceil(self.cached[evicted]) + 1)
            self.start[evicted] = self.hits[evicted]
            self.waiting.appendleft(evicted)
            self.n_preemptions += 1
            chunk, decodes, after = chunk[:-1], decodes[:-1], after[:-1]
        return chunk, decodes, used

    def _admit(self, left: int, used: float) -> list[int]:
        """Let waiting requests run, within so many tokens and beside `used` bytes of cache; the prompt tokens of each."""
        policy, chunks, admitted = self.policy, list[int](), list[int]()
        while self.waiting and left > 0 and len(self.running) + len(admitted) < policy.max_num_seqs:
            first = self.waiting[0]
            start, needed = int(self.start[first]), int(self.needed[first])
            must_wait = not policy.mixed and admitted and needed - start > left
            need = float(self.kv_bytes[needed] - self.shared[first])
            if must_wait or used + need > self.available:
                break
            admitted.append(self.waiting.popleft())
            self.cached[first] = start
            chunk = needed - start
            chunks.append(min(chunk, left, policy.max_num_batched_tokens) if policy.mixed else chunk)
            left -= chunks[-1] or self.tokens
            used += float(self.kv_bytes[start + chunks[-1]] - self.shared[first])
        if admitted:
            self.running = np.concatenate([self.running, np.asarray(admitted, dtype=np.int64)])
        return chunks

    def passes_ahead(self, now: _Pass) -> int:
        """How many passes like this one there are at most before a request finishes or the cache is full."""
        if not now.decodes.all():
            return 1
        running, cached = self.running, self.cached[self.running]
        most = int(self.left[running].min())
        if self.holds_back() and self.waiting:
            most = min(most, max(math.ceil(self.policy.prompt_wait_passes - self.waited), 1))

        def held_bytes(passes: int) -> float:
            return self.bytes_of(running, cached + self.yielded * passes)

        if held_bytes(most) <= self.available:
            return most
        return max(bisect_right(range(1, most), self.available, key=held_bytes), 1)

    def finish(self, now: _Pass, passes: int) -> tuple[IntArray, IntArray]:
        """So many such passes have run: the requests that got a token of each, and those of them that are done."""
        running = self.running
        self.cached[running] += now.chunk + self.yielded * passes * now.decodes
        self.peak_running = max(self.peak_running, len(running))
        self.peak_bytes = max(self.peak_bytes, self.bytes_of(running, self.cached[running]))
        self.waited += passes if self.waiting else 0
        prompted = (now.chunk > 0) & (self.cached[running] >= self.needed[running])
        given = running[now.decodes | prompted]
        self.left[given] -= passes
        done = given[self.left[given] <= 0]
        if len(done):
            self.running = running[self.left[running] > 0]
        return given, done


def _run(
    arrival_s: FloatArray, request_s: float, scheduler: _Scheduler, prices: _Prices
) -> tuple[FloatArray, FloatArray, float, int]:
    """First and last token of each request, running requests times seconds, and passes.

    Writes when a client of a closed loop sends its next request into `arrival_s`.
    """
    n, policy = len(arrival_s), scheduler.policy
    first_s, last_s = np.full(n, math.nan), np.full(n, math.nan)
    known = int(np.count_nonzero(np.isfinite(arrival_s)))  # requests whose clients have sent them
    clock_s, arrived, finished, n_passes, busy = 0.0, 0, 0, 0, 0.0
    while finished < n:
        if not len(scheduler.running) and not scheduler.waiting:
            clock_s = max(clock_s, float(arrival_s[arrived]) + request_s)
        while arrived < n and arrival_s[arrived] + request_s <= clock_s:
            scheduler.waiting.append(arrived)
            arrived += 1
        now = scheduler.step()
        running, passes = scheduler.running, scheduler.passes_ahead(now)
        if not now.prefilled:
            contexts = now.context + scheduler.yielded * np.arange(passes, dtype=np.float64)
            kernels_s = prices.decode_s(now.batch, contexts)
        else:
            kernels_s = np.asarray([prices.mixed_s(now.batch, now.context, now.prefilled)])
        ends = clock_s + np.cumsum(policy.host.pass_s(kernels_s, len(running)))
        if not ends[-1] < math.inf:
            decoded = f"a pass that decodes {now.batch} requests of {now.context:.0f} tokens"
            what = f"the latency source has no answer for {decoded} and prefills {now.prefilled}"
            smaller = "a smaller max_num_seqs or max_num_batched_tokens may lie within its range"
            raise InfeasibleError(what, where="load", next_step=f"{smaller}; the roofline answers for every shape")
        if passes > 1 and arrived < n and len(running) < policy.max_num_seqs:
            passes = min(passes, int(np.searchsorted(ends, arrival_s[arrived] + request_s)) + 1)
        given, done = scheduler.finish(now, passes)
        n_passes += passes
        busy += len(running) * (float(ends[passes - 1]) - clock_s)
        clock_s = float(ends[passes - 1])
        starting = given[np.isnan(first_s[given])]
        first_s[starting] = float(ends[0])
        last_s[done] = clock_s
        finished += len(done)
        arrival_s[known : known + len(done)] = clock_s  # nothing is left to send in an open loop
        known = min(known + len(done), n)
    return first_s, last_s, busy, n_passes
