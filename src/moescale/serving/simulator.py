"""What a server does with a burst, a stream or a closed loop of requests, pass by pass, as vLLM's V1 scheduler would.

Each pass first gives every running request one token, then continues and admits prompts in order of arrival until the
token budget of a pass, `max_num_seqs` or the memory of the KV cache is used up (continuous batching with chunked
prefill). A pass takes its kernels' time and what the host adds (`HostOverhead`). Runs of passes without a prompt are
taken in one step, so time grows with requests, not with tokens. Left out: prefix caching, speculative decoding, rounding
of the cache to blocks of 16 tokens, tokenisation of prompts.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import numpy.typing as npt

from moescale import catalogue
from moescale.bounds import Bound, check_bounds
from moescale.errors import InfeasibleError, InputError
from moescale.hardware.gpus import Gpu
from moescale.io.records import record
from moescale.latency import LatencySource, common_shape
from moescale.models.architecture import Architecture
from moescale.models.kv_cache import kv_bytes_per_request
from moescale.models.parameters import weight_bytes_per_gpu
from moescale.serving.deployment import Deployment, batch_cap, reserved_bytes
from moescale.serving.host import HostOverhead, default_overhead
from moescale.typing import FloatArray, Real

IntArray = npt.NDArray[np.int64]

MOST_REQUESTS = 1_000_000  # a slip of the pen must not fill the memory
MOST_TOKENS = 10_000_000  # of one request, likewise

# Passes are priced on a grid and interpolated linearly. Every kernel is the longer of two lines, so the error peaks at
# the kinks between them; this ratio of neighbours keeps it below 1% (tests/test_simulator.py). Measured kernels also have
# steps: one pass may be 5% off there, on average 0.1%; whole runs moved by 0.02% in throughput, 0.5% in latencies.
_EVERY_UP_TO = 32
_RATIO = 1.04
_CONTEXT_POINTS = 17


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """When requests come: at random intervals, the last one n_requests / requests_per_s from the start.

    With `clients` they come in a closed loop instead: so many at once, and from then on one for each that is answered,
    `request_s` later. Raises BoundError for an impossible number, rate, burstiness (as vLLM's benchmark has it) or seed,
    InputError for a closed loop with a rate.
    """

    n_requests: Annotated[int, Bound(1, MOST_REQUESTS, whole=True)]
    requests_per_s: Annotated[float, Bound(0.0, above=True, unlimited=True)] = math.inf  # inf: all at once
    burstiness: Annotated[float, Bound(0.0, above=True)] = 1.0  # shape of the intervals' gamma distribution; 1: Poisson
    seed: Annotated[int, Bound(0, whole=True)] = 0
    clients: Annotated[int | None, Bound(1, whole=True)] = None  # of a closed loop; None: an open one
    request_s: Annotated[float, Bound(0.0)] = 0.0  # from sending a request until the scheduler has it

    def __post_init__(self) -> None:
        check_bounds(self, where="arrivals")
        if self.clients is not None and not math.isinf(self.requests_per_s):
            what = "the clients of a closed loop set the rate themselves"
            raise InputError(what, where="arrivals", next_step="leave out requests_per_s, or clients")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One simulated run; arrays have one entry a request, in order of arrival, as its client sees it."""

    output_tok_s: float  # all output tokens over the makespan
    requests_per_s: float  # completed, over the makespan
    makespan_s: float  # from the start of the arrivals to the last token
    usd_per_mtok: float  # dollars per million output tokens over the makespan
    arrival_s: FloatArray  # when its client sent it
    ttft_s: FloatArray  # time to first token
    tpot_s: FloatArray  # mean time between the later tokens; NaN for a single token
    e2e_s: FloatArray  # arrival to last token
    output_tokens: FloatArray  # produced, of each request
    n_passes: int
    n_preemptions: int
    peak_running: int  # on the busiest replica
    mean_running: float  # over the makespan, idle time included
    peak_kv_bytes: float  # on each GPU
    kv_bytes_available: float  # on each GPU

    def to_dict(self) -> dict[str, object]:
        """JSON-ready values; times of requests become their p50, p90 and p99 (absent where no request has one)."""
        found = record(self, without=("arrival_s", "output_tokens"))
        for name in ("ttft_s", "tpot_s", "e2e_s"):
            values = getattr(self, name)
            if np.isfinite(values).any():
                cuts = np.percentile(values[np.isfinite(values)], [50, 90, 99]).tolist()
                found[name] = dict(zip(("p50", "p90", "p99"), cuts, strict=True))
            else:
                del found[name]
        return found


def default_max_num_batched_tokens(gpu: Gpu) -> int:
    """vLLM's token budget of a pass on `gpu` (API server): the entry whose max_num_seqs is the GPU's default."""
    entries = sorted(catalogue.read("servers.toml")["vllm_api_server"], key=lambda entry: entry["max_num_seqs"])
    fitting = [entry for entry in entries if entry["max_num_seqs"] <= gpu.default_max_num_seqs]
    return int((fitting or entries)[-1 if fitting else 0]["max_num_batched_tokens"])


def arrival_times_s(arrivals: Arrivals) -> FloatArray:
    """Arrival of each request, sorted, in seconds from the start; gamma-distributed intervals.

    The intervals are scaled so that their mean is exactly 1 / requests_per_s in every run, as vLLM's benchmark does.
    """
    a = arrivals
    if a.clients is not None:  # when the others come is known as the run goes on
        return np.where(np.arange(a.n_requests) < a.clients, 0.0, math.inf)
    if math.isinf(a.requests_per_s):
        return np.zeros(a.n_requests)
    times = np.cumsum(np.random.default_rng(a.seed).gamma(a.burstiness, 1.0, a.n_requests))
    # Bursts so extreme that every interval rounds to 0 come at once, at the end.
    scaled = times / times[-1] if times[-1] > 0 else np.ones(a.n_requests)
    return scaled * (a.n_requests / a.requests_per_s)


def simulate(
    model: Architecture,
    latency: LatencySource,
    deployment: Deployment,
    gpus: int,
    arrivals: Arrivals,
    *,
    prompt_tokens: Real | None = None,
    output_tokens: Real | None = None,
    max_num_batched_tokens: int | None = None,
    chunked_prefill: bool = True,
    overhead: HostOverhead | None = None,
) -> Run:
    """Serve every request of `arrivals` with `model` on `gpus` tensor-parallel GPUs a replica; deterministic by the seed.

    Replicas get the requests in turn; a closed loop is of one replica, whatever the deployment has.
    Lengths are whole tokens, one number or one a request (defaults: those of `deployment`, which also holds
    max_num_seqs, precision, memory and price). `max_num_batched_tokens` defaults to the deployment's, or else vLLM's,
    `overhead` to the published figures (whatever host the deployment has); `latency` should price kernels alone
    (`kernels_alone`).

    Raises InputError for impossible input, InfeasibleError where the weights, or the longest request beside them, do
    not fit, or where the latency source has no answer for a pass that is needed.
    """
    n, d = arrivals.n_requests, deployment
    prompt = _lengths("prompt_tokens", d.prompt_tokens if prompt_tokens is None else prompt_tokens, n)
    output = _lengths("output_tokens", d.output_tokens if output_tokens is None else output_tokens, n)
    copies = int(_number("replicas", d.replicas)) if arrivals.clients is None else 1
    times_s, settings = arrival_times_s(arrivals), (max_num_batched_tokens, chunked_prefill, overhead)
    runs = [
        _one_replica(
            model, latency, d, gpus, arrivals, times_s[i::copies], prompt[i::copies], output[i::copies], *settings
        )
        for i in range(min(copies, n))
    ]
    return runs[0] if copies == 1 else _together(runs, copies, gpus, d)


def _together(runs: list[Run], copies: int, gpus: int, deployment: Deployment) -> Run:
    """One run of replicas that got the requests in turn."""
    makespan_s, tokens = max(run.makespan_s for run in runs), sum(float(np.sum(run.output_tokens)) for run in runs)
    n = sum(len(run.arrival_s) for run in runs)

    def dealt(name: str) -> FloatArray:
        values = np.empty(n)
        for i, run in enumerate(runs):
            values[i::copies] = getattr(run, name)
        return values

    usd_per_s = copies * gpus * _number("usd_per_gpu_hour", deployment.usd_per_gpu_hour) / 3600.0
    return Run(
        output_tok_s=tokens / makespan_s,
        requests_per_s=n / makespan_s,
        makespan_s=makespan_s,
        usd_per_mtok=usd_per_s * makespan_s / tokens * 1e6,
        **{name: dealt(name) for name in ("arrival_s", "ttft_s", "tpot_s", "e2e_s", "output_tokens")},
        n_passes=sum(run.n_passes for run in runs),
        n_preemptions=sum(run.n_preemptions for run in runs),
        peak_running=max(run.peak_running for run in runs),
        mean_running=sum(run.mean_running * run.makespan_s for run in runs) / makespan_s,
        peak_kv_bytes=max(run.peak_kv_bytes for run in runs),
        kv_bytes_available=runs[0].kv_bytes_available,
    )


def _one_replica(
    model: Architecture,
    latency: LatencySource,
    deployment: Deployment,
    gpus: int,
    arrivals: Arrivals,
    arrival_s: FloatArray,
    prompt: IntArray,
    output: IntArray,
    max_num_batched_tokens: int | None,
    chunked_prefill: bool,
    overhead: HostOverhead | None,
) -> Run:
    if common_shape(model):
        raise InputError("a run serves one model, but this architecture holds arrays", next_step="loop over models")
    if not (1 <= gpus == int(gpus)):
        raise InputError(f"gpus must be a whole number of at least 1, not {gpus}", where="burst")
    for name in ("attention_dp", "pipeline_parallel"):
        if _number(name, getattr(deployment, name)) > 1:
            what = f"a burst is simulated on GPUs that are tensor-parallel or expert-parallel, without {name}"
            raise InputError(what, where="burst", next_step="leave one of them out")
    d, n = deployment, len(arrival_s)
    stated = d.max_num_batched_tokens if max_num_batched_tokens is None else max_num_batched_tokens
    budget = default_max_num_batched_tokens(d.gpu) if stated is None else int(_number("max_num_batched_tokens", stated))
    if budget < 1:
        raise InputError(f"max_num_batched_tokens must be at least 1, not {budget}", where="burst")
    if not chunked_prefill and (longest_prompt := int(np.max(prompt))) > budget:
        what = f"a prompt of {longest_prompt} tokens exceeds max_num_batched_tokens of {budget}"
        more = "allow chunked prefill, or raise max_num_batched_tokens to the longest prompt"
        raise InputError(what, where="burst", next_step=more)
    most = _number("max_num_seqs", batch_cap(d))
    usd_per_gpu_hour, ways = (_number(name, getattr(d, name)) for name in ("usd_per_gpu_hour", "expert_parallel"))
    longest = prompt + output - 1  # the last token is never fed back
    kv_bytes, available = _cache_bytes(model, d, gpus, int(np.max(longest)))
    in_flight = n if arrivals.clients is None else min(n, arrivals.clients)
    at_once = int(min(most, in_flight, max(1.0, available // kv_bytes[int(np.min(prompt))])))
    scheduler = _Scheduler(prompt, output, _Limits(most, budget, chunked_prefill, kv_bytes, available))
    host = default_overhead() if overhead is None else overhead
    trace = _run(arrival_s, arrivals.request_s, scheduler, _price(model, latency, gpus, ways, at_once, scheduler), host)
    usd_per_s = gpus * usd_per_gpu_hour / 3600.0
    return _as_clients_see_it(trace, scheduler, arrival_s, host.front_end_s_per_token, usd_per_s)


def _as_clients_see_it(
    trace: _Trace, scheduler: _Scheduler, arrival_s: FloatArray, token_s: float, usd_per_s: float
) -> Run:
    """The run behind API servers, which handle the passes' tokens in turn, `token_s` seconds each."""
    # out_j = max(out_(j-1), end_j) + tokens_j c, unrolled
    output, ends, tokens = scheduler.output, np.concatenate(trace.pass_ends), np.concatenate(trace.pass_tokens)
    work = np.cumsum(tokens) * token_s
    out = work + np.maximum.accumulate(ends - work + tokens * token_s)
    first, last = out[trace.first_pass], out[trace.last_pass]
    makespan_s, total = float(np.max(last)), float(np.sum(output))
    with np.errstate(invalid="ignore", divide="ignore"):
        tpot_s = np.where(output > 1, (last - first) / (output - 1), math.nan)
    return Run(
        output_tok_s=total / makespan_s,
        requests_per_s=len(output) / makespan_s,
        makespan_s=makespan_s,
        usd_per_mtok=usd_per_s * makespan_s / total * 1e6,
        arrival_s=arrival_s,
        ttft_s=first - arrival_s,
        tpot_s=tpot_s,
        e2e_s=last - arrival_s,
        output_tokens=scheduler.produced.astype(np.float64),
        n_passes=len(ends),
        n_preemptions=scheduler.n_preemptions,
        peak_running=trace.peak_running,
        mean_running=trace.running_s / makespan_s,
        peak_kv_bytes=trace.peak_kv_bytes,
        kv_bytes_available=scheduler.limits.available,
    )


def _number(name: str, value: Real) -> float:
    if np.ndim(value):
        raise InputError(f"{name} must be one number: a run is of one deployment", where="deployment")
    return float(value)


def _lengths(name: str, values: Real, n: int) -> IntArray:
    numbers = np.asarray(values, dtype=np.float64)
    if numbers.shape not in ((), (1,), (n,)):
        raise InputError(f"{name} must be one number or one for each of {n} requests", where="burst")
    if not np.all((numbers >= 1) & (numbers <= MOST_TOKENS) & (numbers == np.floor(numbers))):
        raise InputError(f"{name} must be whole numbers from 1 to {MOST_TOKENS}", where="burst")
    return np.broadcast_to(numbers.astype(np.int64), (n,)).copy()


def _cache_bytes(model: Architecture, d: Deployment, gpus: int, most_tokens: int) -> tuple[FloatArray, float]:
    """Cache bytes on each GPU of a request by its tokens (from 0), and the bytes there are beside the weights.

    Raises InfeasibleError where the weights, or a request of the most tokens beside them, do not fit.
    """
    fraction, ways = (_number(name, getattr(d, name)) for name in ("memory_fraction", "expert_parallel"))
    reserve = _number("reserve_bytes", reserved_bytes(d))
    weights = float(weight_bytes_per_gpu(model, d.weight_bytes_per_param, gpus, ways))
    usable, where = d.gpu.memory_bytes * fraction - reserve, f"{gpus} x {d.gpu.name}"
    if weights >= usable:
        memory = f"{fraction:g} x {d.gpu.memory_bytes / 1e9:.1f} GB less a reserve of {reserve / 1e9:.1f} GB"
        what = f"weights take {weights / 1e9:.1f} GB a GPU, more than the {usable / 1e9:.1f} GB usable ({memory})"
        raise InfeasibleError(what, where=where, next_step="allow more GPUs, a GPU with more memory, or fp8 weights")
    tokens, available = np.arange(most_tokens + 2, dtype=np.float64), usable - weights
    kv_bytes = kv_bytes_per_request(model, tokens, d.kv_bytes_per_element, gpus)
    if kv_bytes[most_tokens] > available:
        taken = f"one request of {most_tokens + 1} tokens takes {kv_bytes[most_tokens] / 1e9:.3g} GB of KV cache a GPU"
        what = f"{taken}, but {available / 1e9:.3g} GB are left beside the weights"
        more = "allow more GPUs, shorter requests, or a GPU with more memory"
        raise InfeasibleError(what, where=where, next_step=more)
    return kv_bytes, available


@dataclass(frozen=True, slots=True)
class _Prices:
    """Seconds of passes on a grid: `decode` [batch, context], `mixed` [batch (from 0), prefilled tokens]."""

    batches: list[float]  # from 1
    contexts: FloatArray
    decode: FloatArray
    chunks: list[float]
    mixed: list[list[float]]  # at the context `middle`; row 0 prefills only
    middle: float

    def decode_s(self, batch: int, contexts: FloatArray) -> FloatArray:
        """Seconds of passes that decode `batch` requests whose mean context is each of `contexts`."""
        i, share = _between(self.batches, batch)
        row = (1 - share) * self.decode[i] + share * self.decode[i + 1]
        return np.interp(contexts, self.contexts, row)

    def mixed_s(self, batch: int, context: float, chunk: int) -> float:
        """Seconds of a pass that decodes `batch` requests and prefills `chunk` tokens.

        The context acts through the cache reads of the decoding requests, which add to everything else.
        """
        j, right = _between(self.chunks, chunk)

        def at(row: list[float]) -> float:
            return (1 - right) * row[j] + right * row[j + 1]

        if batch == 0:
            return at(self.mixed[0])
        i, share = _between(self.batches, batch)
        at_middle = (1 - share) * at(self.mixed[i + 1]) + share * at(self.mixed[i + 2])
        here, there = self.decode_s(batch, np.asarray([context, self.middle]))
        return at_middle + float(here - there)


def _between(grid: list[float], value: float) -> tuple[int, float]:
    """The cell of `grid` that holds `value`, and how far into it."""
    i = min(max(bisect_right(grid, value) - 1, 0), len(grid) - 2)
    return i, (value - grid[i]) / (grid[i + 1] - grid[i])


def _grid(most: float) -> FloatArray:
    """Whole numbers from 1 to `most` (at least two of them): every one at first, then _RATIO apart."""
    most = max(most, 2.0)
    steps = max(2, 1 + math.ceil(math.log(max(most / _EVERY_UP_TO, 1.0)) / math.log(_RATIO)))
    tail = np.round(np.geomspace(min(_EVERY_UP_TO, most), most, steps))
    return np.unique(np.concatenate([np.arange(1.0, min(_EVERY_UP_TO, most) + 1), tail]))


def _price(
    model: Architecture, latency: LatencySource, gpus: int, ways: float, most_batch: int, scheduler: _Scheduler
) -> _Prices:
    """Prices up to a batch and the chunk of a pass, with experts split over `ways` GPUs."""
    prompt, longest = scheduler.prompt, scheduler.prompt + scheduler.output - 1
    mean_prompt = float(np.mean(prompt))
    batches = _grid(most_batch)
    chunks = _grid(min(scheduler.limits.max_num_batched_tokens, int(np.sum(longest))))
    low, high = float(np.min(prompt)), float(np.max(longest)) + 1.0
    contexts = np.linspace(low, max(high, low + 1.0), _CONTEXT_POINTS)
    middle, column = float(contexts[_CONTEXT_POINTS // 2]), batches[:, np.newaxis]
    decode = latency.decode_s(model, gpus, column, contexts, expert_parallel=ways)
    # Less than one prompt in a pass is a shorter prompt; more are several.
    prompts = chunks / mean_prompt
    whole, length = np.maximum(prompts, 1.0), np.minimum(chunks, mean_prompt)
    prefill = latency.prefill_s(model, gpus, whole, length, expert_parallel=ways)
    separate = decode[:, [_CONTEXT_POINTS // 2]] + prefill
    mixed = latency.mixed_s(model, gpus, column, middle, prompts, mean_prompt, expert_parallel=ways)
    mixed = np.where(np.isnan(mixed), separate, mixed)  # a source that knows separate passes only
    rows = np.vstack([prefill[np.newaxis], mixed]).tolist()
    return _Prices(batches.tolist(), contexts, decode, chunks.tolist(), rows, middle)


@dataclass(frozen=True, slots=True)
class _Limits:
    """What a pass may hold."""

    max_num_seqs: float
    max_num_batched_tokens: int
    chunked_prefill: bool
    kv_bytes: FloatArray  # on each GPU, of a request that has so many tokens in the cache
    available: float  # bytes on each GPU


@dataclass(frozen=True, slots=True)
class _Pass:
    """What one pass computes."""

    chunk: IntArray  # tokens of each running request
    batch: int  # requests that decode
    context: float  # their mean context
    prefilled: int  # tokens of prompts

    @property
    def decodes_only(self) -> bool:
        return not self.prefilled and self.batch == len(self.chunk)


class _Scheduler:
    """vLLM V1: running requests first, then admissions in order of arrival.

    A request is admitted when its whole prompt fits beside what the cache holds now; when the cache is full, the latest one
    is evicted and computed again later. A request's index is its place in the order of arrival.
    """

    def __init__(self, prompt: IntArray, output: IntArray, limits: _Limits) -> None:
        self.prompt, self.output, self.limits = prompt, output, limits
        self.needed = prompt.copy()  # tokens to compute before the next one can be sampled
        self.cached, self.produced = np.zeros_like(prompt), np.zeros_like(prompt)
        self.running = prompt[:0]  # in order of admission
        self.waiting: deque[int] = deque()
        self.n_preemptions = 0

    def step(self) -> _Pass:
        """The next pass, whose requests are then running."""
        before = self.n_preemptions
        held, missing, chunk, used = self._continue_running()
        decodes = (missing == 0) & (chunk > 0)
        batch = int(np.count_nonzero(decodes))
        context = float(held[decodes].sum()) / batch if batch else 0.0
        left = self.limits.max_num_batched_tokens - int(chunk.sum())
        if self.n_preemptions == before and (admitted := self._admit(left, used)):
            chunk = np.concatenate([chunk, admitted])
        return _Pass(chunk, batch, context, int(chunk.sum()) - batch)

    def _continue_running(self) -> tuple[IntArray, IntArray, IntArray, float]:
        """Tokens in the cache, missing of the prompt (0: it decodes) and given, by running request; bytes that this takes."""
        held = self.cached[self.running]
        missing = np.maximum(self.needed[self.running] - held, 0)
        chunk, budget = np.maximum(missing, 1), self.limits.max_num_batched_tokens
        if chunk.sum() > budget:
            chunk = np.minimum(chunk, np.maximum(budget - (chunk.cumsum() - chunk), 0))
        while (used := float(self.limits.kv_bytes[held + chunk].sum())) > self.limits.available:
            self._preempt_latest()
            held, missing, chunk = held[:-1], missing[:-1], chunk[:-1]
        return held, missing, chunk, used

    def _preempt_latest(self) -> None:
        evicted = int(self.running[-1])
        self.running = self.running[:-1]
        self.needed[evicted] = self.prompt[evicted] + self.produced[evicted]
        self.cached[evicted] = 0
        self.waiting.appendleft(evicted)
        self.n_preemptions += 1

    def _admit(self, left: int, used: float) -> list[int]:
        """Let waiting requests run, within so many tokens and beside `used` bytes of cache; the tokens that each gets."""
        limits, admitted, chunks = self.limits, list[int](), list[int]()
        while self.waiting and left > 0 and len(self.running) + len(admitted) < limits.max_num_seqs:
            whole = int(self.needed[self.waiting[0]])
            # Without chunks a prompt waits for a pass that holds all of it; what an eviction left longer than any pass
            # is computed in parts all the same.
            must_wait = not limits.chunked_prefill and left < whole <= limits.max_num_batched_tokens
            if must_wait or used + limits.kv_bytes[whole] > limits.available:
                break
            admitted.append(self.waiting.popleft())
            chunks.append(min(whole, left))
            left -= chunks[-1]
            used += float(limits.kv_bytes[chunks[-1]])
        if admitted:
            self.running = np.concatenate([self.running, admitted])
        return chunks

    def passes_ahead(self, now: _Pass) -> int:
        """How many passes like this one there are at most before a request finishes or the cache is full."""
        if not now.decodes_only:
            return 1
        cached, available = self.cached[self.running], self.limits.available
        most = int((self.output[self.running] - self.produced[self.running]).min())

        def held_bytes(passes: int) -> float:
            return float(self.limits.kv_bytes[cached + passes].sum())

        if held_bytes(most) <= available:
            return most
        return max(bisect_right(range(1, most), available, key=held_bytes), 1)

    def finish(self, now: _Pass, passes: int) -> tuple[IntArray, IntArray]:
        """So many such passes have run: the requests that got a token of each, and those of them that are done."""
        running = self.running
        self.cached[running] += now.chunk * passes
        given = running[(self.cached[running] >= self.needed[running]) & (now.chunk > 0)]
        self.produced[given] += passes
        done = given[self.produced[given] >= self.output[given]]
        if len(done):
            self.running = running[self.produced[running] < self.output[running]]
        return given, done


@dataclass(slots=True)
class _Trace:
    """What happened."""

    first_pass: IntArray  # the pass that gave each request its first token
    last_pass: IntArray
    pass_ends: list[FloatArray]
    pass_tokens: list[FloatArray]  # output tokens of each pass
    n_passes: int = 0
    peak_running: int = 0
    peak_kv_bytes: float = 0.0
    running_s: float = 0.0  # running requests times seconds


def _run(arrival_s: FloatArray, request_s: float, scheduler: _Scheduler, prices: _Prices, host: HostOverhead) -> _Trace:
    """The passes of a run; writes when a client of a closed loop sends its next request into `arrival_s`."""
    n, limits = len(arrival_s), scheduler.limits
    known = int(np.count_nonzero(np.isfinite(arrival_s)))  # requests whose clients have sent them
    trace = _Trace(np.full(n, -1), np.full(n, -1), [], [])
    clock_s, arrived, finished = 0.0, 0, 0
    while finished < n:
        if not len(scheduler.running) and not scheduler.waiting:
            clock_s = max(clock_s, float(arrival_s[arrived]) + request_s)
        while arrived < n and arrival_s[arrived] + request_s <= clock_s:
            scheduler.waiting.append(arrived)
            arrived += 1
        now = scheduler.step()
        running, passes = scheduler.running, scheduler.passes_ahead(now)
        if now.decodes_only:
            kernels_s = prices.decode_s(now.batch, now.context + np.arange(passes, dtype=np.float64))
        else:
            kernels_s = np.asarray([prices.mixed_s(now.batch, now.context, now.prefilled)])
        ends = clock_s + np.cumsum(host.pass_s(kernels_s, len(running)))
        if not ends[-1] < math.inf:
            decoded = f"a pass that decodes {now.batch} requests of {now.context:.0f} tokens"
            what = f"the latency source has no answer for {decoded} and prefills {now.prefilled}"
            smaller = "a smaller max_num_seqs or max_num_batched_tokens may lie within its range"
            raise InfeasibleError(what, where="burst", next_step=f"{smaller}; the roofline answers for every shape")
        if passes > 1 and arrived < n and len(running) < limits.max_num_seqs:
            passes = min(passes, int(np.searchsorted(ends, arrival_s[arrived] + request_s)) + 1)
            ends = ends[:passes]
        given, done = scheduler.finish(now, passes)
        trace.first_pass[given[scheduler.produced[given] == passes]] = trace.n_passes
        trace.last_pass[done] = trace.n_passes + passes - 1
        trace.n_passes += passes
        trace.pass_ends.append(ends)
        trace.pass_tokens.append(np.full(passes, float(len(given))))
        trace.peak_running = max(trace.peak_running, len(running))
        trace.peak_kv_bytes = max(trace.peak_kv_bytes, float(limits.kv_bytes[scheduler.cached[running]].sum()))
        trace.running_s += len(running) * (float(ends[-1]) - clock_s)
        clock_s = float(ends[-1])
        finished += len(done)
        arrival_s[known : known + len(done)] = clock_s  # nothing is left to send in an open loop
        known = min(known + len(done), n)
    return trace
