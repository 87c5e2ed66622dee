"""One serving engine, pass by pass: whatever load a server gets, the same scheduler and the same prices of passes answer.

Each pass first continues the running requests, then admits waiting ones in order of arrival until its tokens,
`max_num_seqs` or the KV cache are used up (continuous batching). When the cache is full, the latest request is evicted and
computed again later. A pass takes its kernels' time, from a table that is made once of a latency source, and what the host
adds. Runs of passes without a prompt are taken in one step, so that time grows with requests, not with tokens.

A replica is one engine. Attention groups share it: each has its own room in memory and tokens of a pass, and the latency
source prices the busiest. A pipeline of P stages is P engines that take turns, each with a P-th of memory and requests.
Replicas, and such parts, are alike: one is run, with its share of the load. Left out: the rounding of the cache to blocks.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from moescale.errors import InfeasibleError, InputError
from moescale.latency import LatencySource
from moescale.latency.engines import NO_OVERHEAD, HostOverhead
from moescale.models.architecture import Architecture
from moescale.serving.deployment import Deployment, with_traffic
from moescale.serving.servers import Servers, shape_of
from moescale.serving.steady_state import REMEDIES, Reason, infeasible_reason, serve
from moescale.serving.traffic import summarise
from moescale.serving.workload import IntArray, Load, Run, arrival_times_s, lengths_of
from moescale.typing import BoolArray, FloatArray, Real

# Passes are priced on a grid and interpolated linearly. Every kernel is the longer of two lines, so the error peaks at
# the kinks between them; this ratio of neighbours keeps it below 1% (tests/unit/test_engine.py). Measured kernels also have
# steps: one pass may be 5% off there, on average 0.1%; whole runs moved by 0.02% in throughput, 0.5% in latencies.
EVERY_UP_TO = 32
RATIO = 1.04
CONTEXT_POINTS = 17
PASSES_AT_ONCE = 4096  # that are priced before the next arrival is looked at


def simulate(model: Architecture, latency: LatencySource, deployment: Deployment, gpus: int, load: Load) -> Run:
    """Serve every request of `load` with `model` on `gpus` GPUs a replica; deterministic by the load's seed.

    Where the deployment has a host, `latency` should price kernels alone (`kernels_alone`). Raises InfeasibleError where the
    model, or the longest request beside it, does not fit, or the latency source has no answer for a pass that is needed.
    """
    if shape_of(model, gpus, deployment):
        what = "a load is answered for one model and one deployment, not for arrays"
        raise InputError(what, where="load", next_step="loop over them")
    stages, replicas = int(np.asarray(deployment.pipeline_parallel)), int(np.asarray(deployment.replicas))
    mine = load.share(stages * replicas)
    rng = np.random.default_rng((mine.seed, 1))
    prompt = lengths_of("prompt_tokens", mine, deployment.prompt_tokens, rng)
    output = lengths_of("output_tokens", mine, deployment.output_tokens, rng)
    lengths = summarise(prompt.astype(np.float64), output.astype(np.float64))
    if mine.prompt_tokens is None:
        d = replace(deployment, longest_request_tokens=lengths.longest_request_tokens, context_tokens=None)
        d = replace(d, prompt_tokens=lengths.prompt_tokens, prompt_nodes=()) if not d.prompt_nodes else d
    else:
        d = with_traffic(deployment, lengths)
    servers = Servers(model, np.asarray(float(gpus)), latency, replace(d, host=NO_OVERHEAD))
    scheduler = _Scheduler(prompt, output, servers, computed=mine.computed)
    arrival_s = arrival_times_s(mine)
    one = replace(servers.deployment, max_num_seqs=1.0, batching="largest", max_ttft_s=None, max_tpot_s=None)
    alone = serve(model, servers.count, latency, replace(one, max_num_batched_tokens=None))
    if (reason := Reason(int(alone.infeasible))) not in (Reason.FEASIBLE, Reason.NO_LATENCY):
        what, where = infeasible_reason(alone, model, latency, one), f"{gpus} x {one.gpu.name}"
        raise InfeasibleError(str(what), where=where, next_step=REMEDIES[reason])
    in_flight = min(len(prompt), mine.clients or len(prompt))
    prices = _Prices(servers, scheduler, int(min(scheduler.max_num_seqs, in_flight, scheduler.most_requests())))
    sent_s = mine.request_s + mine.token_s * prompt.astype(np.float64)
    first_s, last_s, busy, n_passes = _run(arrival_s, sent_s, scheduler, prices, d.host)
    whole, part = (load.n_requests, mine.n_requests) if load.clients is None else (load.clients, mine.clients or 1)
    tokens, makespan_s = output.astype(np.float64), float(np.max(last_s))
    output_tok_s = whole / part * float(np.sum(tokens)) / makespan_s
    usd_per_s = replicas * gpus * float(np.asarray(d.usd_per_gpu_hour)) / 3600.0
    return Run(
        load=mine,
        engines=whole / part,
        parts=stages,
        arrival_s=arrival_s,
        first_s=first_s,
        last_s=last_s,
        output_tokens=tokens,
        ttft_s=first_s - arrival_s,
        tpot_s=np.where(tokens > 1.0, (last_s - first_s) / np.maximum(tokens - 1.0, 1.0), math.nan),
        e2e_s=last_s - arrival_s,
        makespan_s=makespan_s,
        output_tok_s=output_tok_s,
        usd_per_mtok=usd_per_s / output_tok_s * 1e6,
        n_passes=n_passes,
        n_preemptions=scheduler.n_preemptions,
        peak_running=scheduler.peak_running,
        mean_running=busy / makespan_s,
    )


# Prices of passes.


class _Prices:
    """Seconds of passes up to a batch and the prompt tokens of a pass, on a grid of both and of contexts."""

    def __init__(self, servers: Servers, scheduler: _Scheduler, most_batch: int) -> None:
        mixes, longest = scheduler.mixed, scheduler.whole
        most_chunk = scheduler.budget if mixes else max(scheduler.budget, int(np.max(longest)))
        batches, chunks = _grid(most_batch), _grid(min(most_chunk, int(np.sum(longest))))
        self.batches: list[float] = batches.tolist()
        self.chunks: list[float] = chunks.tolist()
        self.contexts = np.linspace(float(np.min(scheduler.prompt)), float(np.max(longest)) + 1.0, CONTEXT_POINTS)
        self.middle = float(self.contexts[CONTEXT_POINTS // 2])

        def at(contexts: Real) -> Servers:
            held = {"context_tokens": contexts, "longest_request_tokens": self.contexts[-1]}
            return replace(servers, deployment=replace(servers.deployment, **held))

        self.decode = at(self.contexts).pass_s(batches[:, np.newaxis])  # [batch, context]
        prompts = chunks / float(servers.computed(servers.deployment.prompt_tokens))
        alone = at(self.middle).pass_s(None, prompts)
        self.prompts: list[float] = alone.tolist()
        self.mixed: list[list[float]] = []  # [batch, tokens], at the middle context
        if mixes:
            both = at(self.middle).pass_s(batches[:, np.newaxis], prompts)
            separate = self.decode[:, [CONTEXT_POINTS // 2]] + alone
            self.mixed = np.where(np.isnan(both), separate, both).tolist()  # a source may know separate passes only

    def decode_s(self, batch: int, contexts: FloatArray) -> FloatArray:
        """Seconds of passes that decode `batch` requests whose mean context is each of `contexts`."""
        i, share = _between(self.batches, batch)
        row = (1 - share) * self.decode[i] + share * self.decode[i + 1]
        return np.interp(contexts, self.contexts, row)

    def mixed_s(self, batch: int, context: float, chunk: float) -> float:
        """Seconds of a pass that decodes `batch` requests, whose cache reads add to all else, and computes `chunk` tokens."""
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


# The scheduler.


class _Pass(NamedTuple):
    chunk: IntArray  # tokens of prompts, of each running request
    decodes: BoolArray  # the running requests that decode
    batch: int  # how many these are
    context: float  # their mean context
    prefilled: int  # tokens of all prompts


class _Scheduler:
    """Requests of an engine, by their place in the order of arrival, and which of them the next pass computes."""

    def __init__(self, prompt: IntArray, output: IntArray, servers: Servers, *, computed: bool = False) -> None:
        d = servers.deployment
        groups, stages = (float(np.asarray(number)) for number in (d.attention_dp, d.pipeline_parallel))
        self.prompt, self.engine = prompt, d.engine
        self.mixed = d.scheduling == "chunked"  # else whole prompts have passes of their own, first
        self.max_num_seqs = float(np.ceil(d.batch_cap / stages))
        self.pass_tokens = d.pass_tokens  # of each attention group
        self.yielded, self.groups = 1.0 + float(np.asarray(d.accepted_tokens)), groups
        self.tokens = 1 + int(d.drafted_tokens)  # that a decoding request takes of a pass
        self.budget = max(int(self.pass_tokens * groups), self.tokens)
        # Passes that give a token: that of the prompt, and those of the later tokens.
        self.left = 1 + np.ceil((output - 1) / self.yielded).astype(np.int64)
        self.hits = np.minimum(np.floor(prompt * float(np.asarray(d.prefix_hit))), prompt - 1).astype(np.int64)
        self.start = prompt.copy() if computed else self.hits.copy()  # tokens in the cache when a request comes
        self.needed = prompt.copy()  # tokens to compute before the next one can be sampled
        self.whole = (prompt + output).astype(np.float64)
        self.cached = np.zeros(len(prompt))
        most_tokens = int(np.max(prompt + output)) + 2 * math.ceil(self.yielded)
        self.kv_bytes = servers.kv_bytes(np.arange(most_tokens + 1, dtype=np.float64))
        self.shared = np.where(self.hits > 0, self.kv_bytes[self.hits], 0.0)  # held once by each attention group
        _, free = servers.bytes_per_gpu()
        of_engine = (float(free) - float(np.max(self.shared))) * groups / stages
        self.available = max(of_engine, float(self.kv_bytes[most_tokens]))  # the longest request fits
        self.running = np.zeros(0, dtype=np.int64)  # in order of admission
        self.waiting: deque[int] = deque()
        self.waited = 0.0  # passes since prompts are held back
        self.looked = 0  # passes that decoded since the scheduler looked for new requests
        self.balance_passes = d.engine.balance_passes if groups > 1 else 0  # that prompts wait for other groups'
        self.n_preemptions = self.peak_running = 0

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
            admitted = self._admit(left if self.mixed else self.budget, used)
            if admitted:
                new = np.asarray(admitted, dtype=np.int64)
                chunk, decodes = np.concatenate([chunk, new]), np.concatenate([decodes, new == 0])
                decodes &= self.mixed or not new.any()
                self.waited = 0.0
        batch = int(np.count_nonzero(decodes))
        context = float(self.cached[self.running[decodes]].sum()) / batch if batch else 0.0
        return _Pass(chunk, decodes, batch, context, int(chunk.sum()))

    def holds_back(self) -> bool:
        """Whether prompts wait: for those of the other attention groups, or for more of them."""
        if not len(self.running) or not self.waiting:
            return False
        if self.waited < self.balance_passes and len(self.waiting) < self.groups:
            return True
        tokens = self.tokens * len(self.running) + int(self.needed[list(self.waiting)].sum())
        return self.waited < self.engine.batch_wait_passes and tokens < self.engine.batch_wait_share * self.budget

    def _continue_running(self) -> tuple[IntArray, BoolArray, float]:
        """Prompt tokens of each running request, which of them decode, and the bytes that all hold after the pass."""
        running = self.running
        held = self.cached[running]
        missing = np.maximum(self.needed[running] - held, 0).astype(np.int64)
        decodes = missing == 0
        wanted = np.where(decodes, self.tokens, np.minimum(missing, self.pass_tokens))
        if wanted.sum() > self.budget:
            wanted = np.clip(self.budget - (wanted.cumsum() - wanted), 0, wanted)
        decodes &= wanted >= self.tokens
        chunk = np.where(missing > 0, wanted, 0)
        after = held + chunk + self.yielded * decodes
        if self.engine.reserves:
            return chunk, decodes, self.bytes_of(running, self.whole[running])
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
        """Let waiting requests run, whose whole prompts fit beside `used` bytes, within so many tokens; the tokens of each."""
        chunks, admitted = list[int](), list[int]()
        while self.waiting and left > 0 and len(self.running) + len(admitted) < self.max_num_seqs:
            first = self.waiting[0]
            start, needed = int(self.start[first]), int(self.needed[first])
            must_wait = not self.mixed and admitted and needed - start > left
            held = int(self.whole[first]) if self.engine.reserves else needed
            need = float(self.kv_bytes[held] - self.shared[first])
            if must_wait or used + need > self.available:
                break
            admitted.append(self.waiting.popleft())
            self.cached[first] = start
            chunk = needed - start
            chunks.append(min(chunk, left, self.pass_tokens) if self.mixed else chunk)
            left -= chunks[-1] or self.tokens
            used += need if self.engine.reserves else float(self.kv_bytes[start + chunks[-1]] - self.shared[first])
        if admitted:
            self.running = np.concatenate([self.running, np.asarray(admitted, dtype=np.int64)])
        return chunks

    def passes_ahead(self, now: _Pass) -> int:
        """How many passes like this one there are at most before a request finishes or the cache is full."""
        if not now.decodes.all():
            return 1
        running, cached = self.running, self.cached[self.running]
        most = min(int(self.left[running].min()), PASSES_AT_ONCE)
        engine = self.engine
        if self.holds_back():
            most = min(most, max(math.ceil(max(self.balance_passes, engine.batch_wait_passes) - self.waited), 1))
        if engine.receive_interval > 1:
            most = min(most, max(engine.receive_interval - self.looked, 1))

        def held_bytes(passes: int) -> float:
            return self.bytes_of(running, cached + self.yielded * passes)

        if engine.reserves or held_bytes(most) <= self.available:
            return most
        return max(bisect_right(range(1, most), self.available, key=held_bytes), 1)

    def finish(self, now: _Pass, passes: int) -> tuple[IntArray, IntArray]:
        """So many such passes have run: the requests that got a token of each, and those of them that are done."""
        running = self.running
        self.cached[running] += now.chunk + self.yielded * passes * now.decodes
        self.peak_running = max(self.peak_running, len(running))
        self.waited += passes if self.waiting else 0
        # After a pass with prompts the scheduler looks at once.
        self.looked = self.engine.receive_interval if now.prefilled else self.looked + passes
        prompted = (now.chunk > 0) & (self.cached[running] >= self.needed[running])
        given = running[now.decodes | prompted]
        self.left[given] -= passes
        done = given[self.left[given] <= 0]
        self.running = running[self.left[running] > 0]
        return given, done


def _run(
    arrival_s: FloatArray, request_s: FloatArray, scheduler: _Scheduler, prices: _Prices, host: HostOverhead
) -> tuple[FloatArray, FloatArray, float, int]:
    """First and last token of each request, running requests times seconds, and passes; fills in a closed loop's `arrival_s`."""
    n = len(arrival_s)
    first_s, last_s = np.full(n, math.nan), np.full(n, math.nan)
    known = int(np.count_nonzero(np.isfinite(arrival_s)))  # requests whose clients have sent them
    clock_s, arrived, finished, n_passes, busy = 0.0, 0, 0, 0, 0.0
    seen_s = 0.0  # a host that works while the GPU runs has filled the next pass when this one starts
    while finished < n:
        if not len(scheduler.running) and not scheduler.waiting:
            clock_s = seen_s = max(clock_s, float(arrival_s[arrived] + request_s[arrived]))
        if not len(scheduler.running) or scheduler.looked >= scheduler.engine.receive_interval:
            scheduler.looked = 0
            while arrived < n and arrival_s[arrived] + request_s[arrived] <= seen_s:
                scheduler.waiting.append(arrived)
                arrived += 1
        now = scheduler.step()
        running, passes = scheduler.running, scheduler.passes_ahead(now)
        if not now.prefilled:
            contexts = now.context + scheduler.yielded * np.arange(passes, dtype=np.float64)
            kernels_s = prices.decode_s(now.batch, contexts)
        else:
            kernels_s = np.asarray([prices.mixed_s(now.batch, now.context, now.prefilled)])
        ends = clock_s + np.cumsum(host.pass_s(kernels_s, len(running) / scheduler.groups))
        if not ends[-1] < math.inf:
            decoded = f"a pass that decodes {now.batch} requests of {now.context:.0f} tokens"
            what = f"the latency source has no answer for {decoded} and prefills {now.prefilled}"
            smaller = "a smaller max_num_seqs or max_num_batched_tokens may lie within its range"
            raise InfeasibleError(what, next_step=f"{smaller}; the roofline answers for every shape")
        if passes > 1 and arrived < n and len(running) < scheduler.max_num_seqs:
            passes = min(passes, int(np.searchsorted(ends, arrival_s[arrived] + request_s[arrived])) + 1)
        given, done = scheduler.finish(now, passes)
        n_passes += passes
        busy += len(running) * (float(ends[passes - 1]) - clock_s)
        started_s, clock_s = float(ends[passes - 2]) if passes > 1 else clock_s, float(ends[passes - 1])
        seen_s = started_s if host.asynchronous else clock_s
        starting = given[np.isnan(first_s[given])]
        first_s[starting] = float(ends[0])
        last_s[done] = clock_s
        finished += len(done)
        arrival_s[known : known + len(done)] = clock_s  # nothing is left to send in an open loop
        known = min(known + len(done), n)
    return first_s, last_s, busy, n_passes
