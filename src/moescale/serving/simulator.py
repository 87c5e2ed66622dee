"""What a server does with a burst or a stream of requests, pass by pass, as vLLM's V1 scheduler would run it.

Each pass first gives every running request one token, then continues and admits prompts in order of arrival until the
token budget of a pass, `max_num_seqs` or the memory of the KV cache is used up (continuous batching with chunked
prefill). A request is admitted when its whole prompt fits beside what the cache holds now; when the cache is full, the
latest one is evicted and computed again later, as vLLM does. A pass takes its kernels' time and what the host adds
(`HostOverhead`). Runs of passes without a prompt are taken in one step, so time grows with requests, not with tokens.

Left out: prefix caching, speculative decoding, rounding of the cache to blocks of 16 tokens, tokenisation of prompts.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from moescale import catalogue
from moescale.errors import InfeasibleError, InputError
from moescale.hardware.gpus import Gpu
from moescale.latency import LatencySource, common_shape
from moescale.models.accounting import kv_bytes_per_request, weight_bytes_per_gpu
from moescale.models.architecture import Architecture
from moescale.serving.deployment import Deployment
from moescale.serving.host import HostOverhead, default_overhead
from moescale.typing import FloatArray, Real

IntArray = npt.NDArray[np.int64]

MOST_REQUESTS = 1_000_000  # a slip of the pen must not fill the memory
MOST_TOKENS = 10_000_000  # of one request, likewise

# Passes are priced on a grid and interpolated linearly. Every kernel is the longer of two lines, so the error peaks at
# the kinks between them; this ratio of neighbours keeps it below 1% (tests/test_burst.py). Measured kernels also have
# steps: one pass may be 5% off there, on average 0.1%; whole runs moved by 0.02% in throughput, 0.5% in latencies.
_EVERY_UP_TO = 32
_RATIO = 1.04
_CONTEXT_POINTS = 17


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """When requests come: `n_requests` of them at random intervals, the last one n_requests / requests_per_s from the start."""

    n_requests: int
    requests_per_s: float = math.inf  # inf: all at once
    burstiness: float = (
        1.0  # shape of the gamma distribution of the intervals, as vLLM's benchmark: 1 is a Poisson process
    )
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One simulated run; arrays have one entry a request, in order of arrival, as its client sees it."""

    output_tok_s: float  # all output tokens over the makespan
    requests_per_s: float  # completed, over the makespan
    makespan_s: float  # from the start of the arrivals to the last token
    usd_per_mtok: float  # dollars per million output tokens over the makespan
    arrival_s: FloatArray
    ttft_s: FloatArray  # time to first token
    tpot_s: FloatArray  # mean time between the later tokens; NaN for a single token
    e2e_s: FloatArray  # arrival to last token
    output_tokens: FloatArray  # produced, of each request
    n_passes: int
    n_preemptions: int
    peak_running: int
    mean_running: float  # over the makespan, idle time included
    peak_kv_bytes: float  # on each GPU
    kv_bytes_available: float  # on each GPU

    def to_dict(self) -> dict[str, object]:
        """JSON-ready values; arrays become their p50, p90 and p99 (absent where no request has the figure)."""
        record: dict[str, object] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in ("arrival_s", "output_tokens"):
                continue
            if isinstance(value, np.ndarray):
                known = value[np.isfinite(value)]
                if known.size:
                    cuts = np.percentile(known, [50, 90, 99])
                    record[field.name] = dict(zip(("p50", "p90", "p99"), cuts.tolist(), strict=True))
            else:
                record[field.name] = value
        return record


def default_max_num_batched_tokens(gpu: Gpu) -> int:
    """vLLM's token budget of a pass on `gpu` (API server): the entry whose max_num_seqs is the GPU's default."""
    entries = sorted(catalogue.read("servers.toml")["vllm_api_server"], key=lambda entry: entry["max_num_seqs"])
    fitting = [entry for entry in entries if entry["max_num_seqs"] <= gpu.default_max_num_seqs]
    return int((fitting or entries)[-1 if fitting else 0]["max_num_batched_tokens"])


def arrival_times_s(arrivals: Arrivals) -> FloatArray:
    """Arrival of each request, sorted, in seconds from the start; gamma-distributed intervals.

    The intervals are scaled so that their mean is exactly 1 / requests_per_s in every run, as vLLM's benchmark does. Raises InputError for an impossible number, rate or burstiness.
    """
    a = arrivals
    if not (1 <= a.n_requests <= MOST_REQUESTS and a.n_requests == int(a.n_requests)):
        raise InputError(
            f"n_requests must be a whole number from 1 to {MOST_REQUESTS}, not {a.n_requests}", where="arrivals"
        )
    if not a.requests_per_s > 0:
        raise InputError(f"requests_per_s must be positive, not {a.requests_per_s:g}", where="arrivals")
    if not 0 < a.burstiness < math.inf:
        raise InputError(f"burstiness must be positive and finite, not {a.burstiness:g}", where="arrivals")
    if a.seed < 0:
        raise InputError(f"seed must be 0 or more, not {a.seed}", where="arrivals")
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
    """Serve every request of `arrivals` with one `model` on `gpus` tensor-parallel GPUs; deterministic by the seed.

    Lengths are whole tokens, one number or one a request (defaults: those of `deployment`, which also holds
    max_num_seqs, precision, memory and price). `max_num_batched_tokens` and `overhead` default to vLLM's and to the
    published figures (whatever host the deployment has); `latency` should price kernels alone (Silicon(host_s=0), a roofline without per-iteration overhead).

    Raises InputError for impossible input, InfeasibleError where the weights, or the longest request beside them, do
    not fit, or where the latency source has no answer for a pass that is needed.
    """
    if common_shape(model):
        raise InputError("a run serves one model, but this architecture holds arrays", next_step="loop over models")
    if not (1 <= gpus == int(gpus)):
        raise InputError(f"gpus must be a whole number of at least 1, not {gpus}", where="burst")
    arrival_s = arrival_times_s(arrivals)
    n = arrivals.n_requests
    prompt = _lengths("prompt_tokens", deployment.prompt_tokens if prompt_tokens is None else prompt_tokens, n)
    output = _lengths("output_tokens", deployment.output_tokens if output_tokens is None else output_tokens, n)
    budget = (
        default_max_num_batched_tokens(deployment.gpu) if max_num_batched_tokens is None else max_num_batched_tokens
    )
    if budget < 1:
        raise InputError(f"max_num_batched_tokens must be at least 1, not {budget}", where="burst")
    if not chunked_prefill and int(np.max(prompt)) > budget:
        raise InputError(
            f"a prompt of {int(np.max(prompt))} tokens exceeds max_num_batched_tokens of {budget}",
            where="burst",
            next_step="allow chunked prefill, or raise max_num_batched_tokens to the longest prompt",
        )
    most = math.inf if deployment.max_num_seqs is None else _number("max_num_seqs", deployment.max_num_seqs)
    if not most >= 1:
        raise InputError(f"max_num_seqs must be at least 1, not {most:g}", where="deployment")
    usd_per_gpu_hour = _number("usd_per_gpu_hour", deployment.usd_per_gpu_hour)

    kv_bytes, available = _cache_bytes(model, deployment, gpus, int(np.max(prompt + output)))
    longest = prompt + output - 1  # the last token is never fed back
    if kv_bytes[int(np.max(longest))] > available:
        raise InfeasibleError(
            f"one request of {int(np.max(longest)) + 1} tokens takes {kv_bytes[int(np.max(longest))] / 1e9:.3g} GB of "
            f"KV cache a GPU, but {available / 1e9:.3g} GB are left beside the weights",
            where=f"{gpus} x {deployment.gpu.name}",
            next_step="allow more GPUs, shorter requests, or a GPU with more memory",
        )
    at_once = int(min(most, n, max(1.0, available // kv_bytes[int(np.min(prompt))])))
    ways = float(deployment.expert_parallel)
    prices = _price(model, latency, gpus, ways, at_once, budget, prompt, longest)
    limits = _Limits(most, budget, chunked_prefill, kv_bytes, available)
    host = default_overhead() if overhead is None else overhead
    trace = _run(arrival_s, prompt, output, limits, prices, host)

    # The API servers handle the passes' tokens in turn: out_j = max(out_(j-1), end_j) + tokens_j c, unrolled.
    ends, tokens = np.concatenate(trace.pass_ends), np.concatenate(trace.pass_tokens)
    work = np.cumsum(tokens) * host.front_end_s_per_token
    out = work + np.maximum.accumulate(ends - work + tokens * host.front_end_s_per_token)
    first, last = out[trace.first_pass], out[trace.last_pass]
    makespan_s = float(np.max(last))
    total = float(np.sum(output))
    with np.errstate(invalid="ignore", divide="ignore"):
        tpot_s = np.where(output > 1, (last - first) / (output - 1), math.nan)
    usd_per_s = gpus * usd_per_gpu_hour / 3600.0
    return Run(
        output_tok_s=total / makespan_s,
        requests_per_s=n / makespan_s,
        makespan_s=makespan_s,
        usd_per_mtok=usd_per_s * makespan_s / total * 1e6,
        arrival_s=arrival_s,
        ttft_s=first - arrival_s,
        tpot_s=tpot_s,
        e2e_s=last - arrival_s,
        output_tokens=trace.produced.astype(np.float64),
        n_passes=len(ends),
        n_preemptions=trace.n_preemptions,
        peak_running=trace.peak_running,
        mean_running=trace.running_s / makespan_s,
        peak_kv_bytes=trace.peak_kv_bytes,
        kv_bytes_available=available,
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


def _cache_bytes(model: Architecture, deployment: Deployment, gpus: int, most_tokens: int) -> tuple[FloatArray, float]:
    """Cache bytes on each GPU of a request by its tokens (from 0), and the bytes there are beside the weights."""
    fraction = _number("memory_fraction", deployment.memory_fraction)
    if not 0 < fraction <= 1:
        raise InputError(f"memory_fraction must be above 0 and at most 1, not {fraction:g}", where="deployment")
    ways = _number("expert_parallel", deployment.expert_parallel)
    weights = float(weight_bytes_per_gpu(model, deployment.weight_bytes_per_param, gpus, ways))
    reserve = _number("reserve_bytes", deployment.reserve_bytes)
    usable = deployment.gpu.memory_bytes * fraction - reserve
    if weights >= usable:
        raise InfeasibleError(
            f"weights take {weights / 1e9:.1f} GB a GPU, more than the {usable / 1e9:.1f} GB usable "
            f"({fraction:g} x {deployment.gpu.memory_bytes / 1e9:.1f} GB less a reserve of {reserve / 1e9:.1f} GB)",
            where=f"{gpus} x {deployment.gpu.name}",
            next_step="allow more GPUs, a GPU with more memory, or fp8 weights",
        )
    tokens = np.arange(most_tokens + 1, dtype=np.float64)
    return kv_bytes_per_request(model, tokens, deployment.kv_bytes_per_element, gpus), usable - weights


# Prices of passes.


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
        if batch == 0:
            low = high = self.mixed[0]
            share = 0.0
        else:
            i, share = _between(self.batches, batch)
            low, high = self.mixed[i + 1], self.mixed[i + 2]
        at_middle = (1 - share) * ((1 - right) * low[j] + right * low[j + 1]) + share * (
            (1 - right) * high[j] + right * high[j + 1]
        )
        if batch == 0:
            return at_middle
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
    model: Architecture,
    latency: LatencySource,
    gpus: int,
    expert_parallel: float,
    most_batch: int,
    most_chunk: int,
    prompt: IntArray,
    longest: IntArray,
) -> _Prices:
    mean_prompt = float(np.mean(prompt))
    batches = _grid(most_batch)
    chunks = _grid(min(most_chunk, int(np.sum(longest))))
    low, high = float(np.min(prompt)), float(np.max(longest)) + 1.0
    contexts = np.linspace(low, max(high, low + 1.0), _CONTEXT_POINTS)
    middle = float(contexts[_CONTEXT_POINTS // 2])
    decode = latency.decode_s(model, gpus, batches[:, np.newaxis], contexts, expert_parallel=expert_parallel)
    # Less than one prompt in a pass is a shorter prompt; more are several.
    prompts = chunks / mean_prompt
    prefill = latency.prefill_s(
        model, gpus, np.maximum(prompts, 1.0), np.minimum(chunks, mean_prompt), expert_parallel=expert_parallel
    )
    separate = decode[:, [_CONTEXT_POINTS // 2]] + prefill
    mixed = latency.mixed_s(
        model, gpus, batches[:, np.newaxis], middle, prompts, mean_prompt, expert_parallel=expert_parallel
    )
    mixed = np.where(np.isnan(mixed), separate, mixed)  # a source that knows separate passes only
    return _Prices(
        batches=batches.tolist(),
        contexts=contexts,
        decode=decode,
        chunks=chunks.tolist(),
        mixed=np.vstack([prefill[np.newaxis], mixed]).tolist(),
        middle=middle,
    )


# The simulation.


@dataclass(frozen=True, slots=True)
class _Limits:
    """What a pass may hold."""

    max_num_seqs: float
    max_num_batched_tokens: int
    chunked_prefill: bool
    kv_bytes: FloatArray  # on each GPU, of a request that has so many tokens in the cache
    available: float  # bytes on each GPU


@dataclass(slots=True)
class _Trace:
    """What happened; a request's index is its place in the order of arrival."""

    first_pass: IntArray  # the pass that gave each request its first token
    last_pass: IntArray
    produced: IntArray
    pass_ends: list[FloatArray]
    pass_tokens: list[FloatArray]  # output tokens of each pass
    n_passes: int = 0
    n_preemptions: int = 0
    peak_running: int = 0
    peak_kv_bytes: float = 0.0
    running_s: float = 0.0  # running requests times seconds


def _run(
    arrival_s: FloatArray, prompt: IntArray, output: IntArray, limits: _Limits, prices: _Prices, host: HostOverhead
) -> _Trace:
    n = len(arrival_s)
    kv_bytes, available = limits.kv_bytes, limits.available
    needed = prompt.copy()  # tokens to compute before the next one can be sampled
    cached = np.zeros(n, dtype=np.int64)
    trace = _Trace(np.full(n, -1), np.full(n, -1), np.zeros(n, dtype=np.int64), [], [])
    running = np.zeros(0, dtype=np.int64)  # in order of admission
    waiting: deque[int] = deque()
    clock_s, arrived, finished = 0.0, 0, 0

    while finished < n:
        if not len(running) and not waiting:
            clock_s = max(clock_s, float(arrival_s[arrived]))
        while arrived < n and arrival_s[arrived] <= clock_s:
            waiting.append(arrived)
            arrived += 1

        # Running requests first: a token each, or the next chunk of a prompt, within the budget of the pass.
        held = cached[running]
        missing = np.maximum(needed[running] - held, 0)  # of its prompt; 0 where a request decodes
        left = limits.max_num_batched_tokens
        chunk = np.maximum(missing, 1)
        if chunk.sum() > left:
            chunk = np.minimum(chunk, np.maximum(left - (chunk.cumsum() - chunk), 0))
        preempted = False
        while (used := float(kv_bytes[held + chunk].sum())) > available:
            evicted = int(running[-1])
            running, held, missing, chunk = running[:-1], held[:-1], missing[:-1], chunk[:-1]
            needed[evicted] = prompt[evicted] + trace.produced[evicted]
            cached[evicted] = 0
            waiting.appendleft(evicted)
            trace.n_preemptions += 1
            preempted = True
        decodes = (missing == 0) & (chunk > 0)
        batch = int(np.count_nonzero(decodes))
        context = float(held[decodes].sum()) / batch if batch else 0.0
        scheduled = int(chunk.sum())
        left -= scheduled

        admitted: list[int] = []
        chunks: list[int] = []
        while waiting and left > 0 and not preempted and len(running) + len(admitted) < limits.max_num_seqs:
            request = waiting[0]
            whole = int(needed[request])
            # Without chunks a prompt waits for a pass that holds all of it; what an eviction left longer than any pass
            # is computed in parts all the same.
            must_wait = not limits.chunked_prefill and left < whole <= limits.max_num_batched_tokens
            if must_wait or used + kv_bytes[whole] > available:
                break
            waiting.popleft()
            admitted.append(request)
            chunks.append(min(whole, left))
            left -= chunks[-1]
            used += float(kv_bytes[chunks[-1]])
        if admitted:
            running = np.concatenate([running, admitted])
            chunk = np.concatenate([chunk, chunks])
        prefilled = scheduled - batch + sum(chunks)

        if prefilled or batch < len(running):  # one pass
            steps = 1
            kernels_s = np.asarray([prices.mixed_s(batch, context, prefilled)])
        else:  # passes that only decode, up to the next finish, arrival or lack of memory
            steps = _steps_that_fit(kv_bytes, held, available, int((output[running] - trace.produced[running]).min()))
            kernels_s = prices.decode_s(batch, context + np.arange(steps, dtype=np.float64))
        pass_s = host.pass_s(kernels_s, len(running))
        ends = clock_s + np.cumsum(pass_s)
        if not ends[-1] < math.inf:
            raise InfeasibleError(
                f"the latency source has no answer for a pass that decodes {batch} requests of {context:.0f} tokens and "
                f"prefills {prefilled}",
                where="burst",
                next_step="a smaller max_num_seqs or max_num_batched_tokens may lie within its range; the roofline "
                "answers for every shape",
            )
        if steps > 1 and arrived < n and len(running) < limits.max_num_seqs:
            steps = min(steps, int(np.searchsorted(ends, arrival_s[arrived])) + 1)
            ends = ends[:steps]

        grown = cached[running] + chunk * steps
        cached[running] = grown
        given = running[(grown >= needed[running]) & (chunk > 0)]
        produced = trace.produced[given] + steps
        trace.produced[given] = produced
        trace.first_pass[given[produced == steps]] = trace.n_passes
        done = produced >= output[given]
        trace.last_pass[given[done]] = trace.n_passes + steps - 1

        trace.n_passes += steps
        trace.pass_ends.append(ends)
        trace.pass_tokens.append(np.full(steps, float(len(given))))
        trace.peak_running = max(trace.peak_running, len(running))
        trace.peak_kv_bytes = max(trace.peak_kv_bytes, float(kv_bytes[grown].sum()))
        trace.running_s += len(running) * (float(ends[-1]) - clock_s)
        clock_s = float(ends[-1])
        if done.any():
            finished += int(np.count_nonzero(done))
            running = running[trace.produced[running] < output[running]]
    return trace


def _steps_that_fit(kv_bytes: FloatArray, cached: IntArray, available: float, most: int) -> int:
    """How many passes of one token each, from 1 to `most`, the cache has room for."""
    low, high = 1, most
    if float(kv_bytes[cached + most].sum()) <= available:
        return most
    while low < high:
        middle = (low + high + 1) // 2
        if float(kv_bytes[cached + middle].sum()) <= available:
            low = middle
        else:
            high = middle - 1
    return low
