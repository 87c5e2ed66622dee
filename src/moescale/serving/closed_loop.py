"""A closed loop: so many clients, each of which sends its next request when the last one is answered.

Meant is the usual benchmark of a server (vLLM's and InferenceX's): all C clients start at once, each sends R = ROUNDS
requests one after another, and the lengths scatter around their means (SPREAD). Times are means over all of its requests,
the first ones included; `plateau_ttft_s` leaves the first of each client out. Prompts are served in order of arrival, in
passes of at most T tokens (max_num_batched_tokens; where none is stated, the engine's default), of which k = T / p
are one prompt of p tokens each; where prompts ride in passes that decode, k may be below 1: a prompt takes 1/k passes.

    first round     C prompts at once: on average (C/k + max(1, 1/k)) / 2 passes of k prompts go by (one pass where C <= k)
    round r         requests that began together end together. Their ends scatter over w = n sqrt(12 (r - 1)) SPREAD passes
                    beside those of the first prompts, n at most, so that l = (b - 1)/w further prompts come in each pass:
                    TTFT = S + W + Q + own, with
                    S   from the client to the scheduler (REQUEST_S)
                    W   the rest of the pass under way, E[s^2] / 2 E[s] over passes of s seconds
                    Q   prompts ahead that do not fit into the own pass: with u = l/k of a pass's room taken, u / 2k(1 - u)
                        passes (M/D/1), no more than BACKLOG sqrt(b - 1) / k, and where more come than fit, half of what
                        is left over at the end
                    own max(1, 1/k) passes of min(1 + l, k) prompts
    queue           memory and max_num_seqs hold B requests; with t seconds in service a request, B/t are answered a
                    second at most, so that TTFT is at least C t/B less the later tokens; those beyond B wait
                    (C - B)^2 / 2 C (t/B) on average in the first round.

The batch in service is what Little's law leaves of C beside the requests that wait, TPOT is that of `steady_state` at this
batch, and output_tok_s = C n / (TTFT + (n - 1) TPOT) with the TTFT after the first round, again Little's law. tests/test_closed_loop.py holds all of it against
the simulator, whatever the kernels take.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from moescale.errors import InputError
from moescale.latency import LatencySource
from moescale.models.architecture import Architecture
from moescale.serving.deployment import Deployment, drafted_tokens
from moescale.serving.simulator import default_max_num_batched_tokens
from moescale.serving.steady_state import Servers, largest_batches
from moescale.typing import FloatArray, Real

# InferenceX (formerly InferenceMAX) sends 10 requests a client: num_prompts is 10 times the concurrency.
ROUNDS = 10
# Standard deviation over mean of lengths that are uniform in 0.8 to 1.0 of a nominal one, as InferenceX draws them.
SPREAD = 0.2 / math.sqrt(12.0) / 0.9
# Between sending a request and the scheduler having it: HTTP, chat template, tokenising, and the first token's way back.
# Candidates, written before the formula had a score: 0, 10, 20 and 30 ms. Of the development rows of
# benchmarks/measured_servings.py 58%, 77%, 86% and 88% were then within a factor of 2: the smallest was taken from which the
# next adds less than 5%, a rule that was written with these scores in sight. Seen before: 75 of the rows against the
# simulator, with 0 and 10 ms.
REQUEST_S = 0.02
# Prompts that wait near a full load, over the square root of those that come: the scatter of N arrivals, sqrt(2 N / pi) at
# the end, is 2/3 of it over time, and as often too few as too many. A rule of thumb, held against the simulator alone.
BACKLOG = 0.3
STEPS = 4  # of the batch towards Little's law: it moves by percents


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedLoop:
    """Figures of closed loops over the common shape of clients and servers; NaN where a server answers nothing."""

    clients: FloatArray
    batch: FloatArray  # in service at a time, of one replica
    output_tok_s: FloatArray  # of the whole deployment
    ttft_s: FloatArray  # means over a benchmark of ROUNDS requests a client
    tpot_s: FloatArray
    e2e_s: FloatArray
    plateau_ttft_s: FloatArray  # without the first request of each client


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """A closed loop of one server; times are means over a benchmark of ROUNDS requests a client."""

    concurrency: int
    batch: float  # in service at a time, of one replica
    output_tok_s: float  # of the whole deployment
    ttft_s: float
    tpot_s: float
    e2e_s: float
    plateau_ttft_s: float  # without the first request of each client
    usd_per_mtok: float  # dollars per million output tokens
    meets_limits: bool  # of latency


def loops(
    model: Architecture, gpus: FloatArray, latency: LatencySource, deployment: Deployment, clients: int
) -> list[Loop | None]:
    """The closed loop on each GPU count of a replica (k,); None where a server answers nothing."""
    d, found = deployment, closed_loop(model, gpus, latency, deployment, clients)
    usd_per_s = gpus * float(np.asarray(d.replicas)) * float(np.asarray(d.usd_per_gpu_hour)) / 3600.0
    most_s = [math.inf if limit is None else float(np.asarray(limit)) for limit in (d.max_ttft_s, d.max_tpot_s)]
    answers: list[Loop | None] = []
    for i in range(len(gpus)):
        names = ("batch", "output_tok_s", "ttft_s", "tpot_s", "e2e_s", "plateau_ttft_s")
        figures = {name: float(getattr(found, name)[i]) for name in names}
        usd = float(usd_per_s[i]) / figures["output_tok_s"] * 1e6
        within = figures["ttft_s"] <= most_s[0] and figures["tpot_s"] <= most_s[1] * (1.0 + 1e-9)
        loop = Loop(concurrency=clients, **figures, usd_per_mtok=usd, meets_limits=within)
        answers.append(loop if math.isfinite(usd) else None)
    return answers


def closed_loop(
    model: Architecture,
    gpus: Real,
    latency: LatencySource,
    deployment: Deployment,
    clients: Real,
    *,
    rounds: int = ROUNDS,
    spread: float = SPREAD,
    request_s: float = REQUEST_S,
) -> ClosedLoop:
    """Closed loops of `clients` over all replicas of `deployment`; see the module's legend. Everything broadcasts.

    A limit on the time per token bounds the batch in service, and the others queue; one on the first token is left out.
    Raises InputError for less than one client.
    """
    wanted = np.asarray(clients, dtype=np.float64)
    if not np.all((wanted >= 1) & (wanted < math.inf)):
        raise InputError(f"clients must be at least 1, not {wanted.min():g}", where="closed loop")
    budget = deployment.max_num_batched_tokens
    budget = default_max_num_batched_tokens(deployment.gpu) if budget is None else budget
    d = replace(deployment, max_ttft_s=None)
    servers = Servers(model, np.asarray(gpus, dtype=np.float64), latency, d)
    held = largest_batches(servers)
    # Each part of a pipeline's batch is a loop of its own; each attention group is an engine with its own budget.
    most, each = held.batch / d.pipeline_parallel, np.maximum(wanted / d.replicas / d.pipeline_parallel, 1.0)
    loops = _Loops(servers, budget * d.attention_dp, each, most, rounds, spread, request_s)
    batch = np.minimum(each, most)
    for _ in range(STEPS - 1):
        left = loops.answer(batch).batch
        batch = np.where(left >= 1.0, left, batch)  # NaN where there is no answer
    found = loops.answer(batch)
    shape = np.broadcast_shapes(servers.shape, wanted.shape, np.shape(budget))
    served = np.broadcast_to(held.served, shape)

    def full(values: Real) -> FloatArray:
        return np.where(served, np.broadcast_to(np.asarray(values, dtype=np.float64), shape), math.nan)

    n = np.asarray(d.output_tokens, dtype=np.float64)
    decoding_s = (n - 1.0) * found.tpot_s
    clients_held = d.replicas * d.pipeline_parallel * each
    return ClosedLoop(
        clients=np.broadcast_to(wanted, shape),
        batch=full(batch * d.pipeline_parallel),
        output_tok_s=full(clients_held * n / (found.plateau_ttft_s + decoding_s)),
        ttft_s=full(found.ttft_s),
        tpot_s=full(found.tpot_s),
        e2e_s=full(found.ttft_s + decoding_s),
        plateau_ttft_s=full(found.plateau_ttft_s),
    )


@dataclass(frozen=True, slots=True)
class _Answer:
    ttft_s: FloatArray
    plateau_ttft_s: FloatArray
    tpot_s: FloatArray
    batch: FloatArray  # that Little's law leaves in service


@dataclass(frozen=True, slots=True)
class _Loops:
    """Closed loops of `clients` a replica, of which memory and max_num_seqs hold `most`."""

    servers: Servers
    budget: Real
    clients: FloatArray
    most: FloatArray
    rounds: int
    spread: float
    request_s: float

    def answer(self, batch: FloatArray) -> _Answer:
        """Times with `batch` requests in service, all of the legend."""
        d, servers = self.servers.deployment, self.servers
        times = servers.times(batch * d.pipeline_parallel)
        n, decode_s, chunked = np.asarray(d.output_tokens, np.float64), times.decode_s, d.scheduling == "chunked"
        decoding = n / (1.0 + np.asarray(d.accepted_tokens))  # passes that decode a request
        room = self.budget - (batch * (1.0 + np.asarray(drafted_tokens(d))) if chunked else 0.0)
        k = np.maximum(room, 1.0) / servers.new_prompt_tokens  # prompts of a full pass
        k = k if chunked else np.maximum(k, 1.0)
        at_once = np.minimum(self.clients, self.most)
        passes, first = np.maximum(1.0, 1.0 / k), np.minimum(k, at_once)
        after = np.arange(1.0, self.rounds).reshape(
            -1, *(1 for _ in np.shape(first + batch + decoding))
        )  # rounds before
        window = decoding * (np.sqrt(12.0 * after) * self.spread) + (at_once / k if chunked else 0.0)
        window = np.clip(window, 1.0, np.maximum(decoding, 1.0))
        others = np.maximum(batch - 1.0, 0.0)
        come = others / window
        own = np.minimum(1.0 + come, k)
        prompts = np.concatenate(
            [np.broadcast_to(first, own.shape[1:])[np.newaxis], own, np.broadcast_to(k, own.shape[1:])[np.newaxis]]
        )
        pass_s = servers.mixed_pass_s(batch, prompts) if chunked else servers.prompt_pass_s(np.maximum(prompts, 1.0))
        first_s, own_s, full_s = pass_s[0], pass_s[1:-1], pass_s[-1]
        burst_s = first_s * np.maximum((at_once / first + passes) / 2.0, passes)
        taken = come / k
        busy = np.minimum(np.maximum(-np.expm1(-come), taken), 1.0)
        with np.errstate(divide="ignore"):
            ahead = np.minimum(taken / (2.0 * k * np.maximum(1.0 - taken, 0.0)), BACKLOG * np.sqrt(others) / k)
        ahead = ahead + np.maximum(others / k - window, 0.0) / 2.0
        mean = (1.0 - busy * chunked) * decode_s + busy * own_s
        squares = (1.0 - busy * chunked) * decode_s**2 + busy * own_s**2
        rest_s = np.minimum(others, 1.0) * squares / (2.0 * mean) if self.request_s > 0 else 0.0
        waits_s = self.request_s + rest_s + ahead * full_s + times.held_s
        later_s = np.mean(waits_s + own_s * passes, axis=0) if self.rounds > 1 else burst_s
        waits_s = np.mean(waits_s, axis=0)
        tpot_s = times.tpot_s
        inside_s = later_s - waits_s + (n - 1.0) * tpot_s
        # A place that falls free is taken at once while others queue for it: most / inside requests a second.
        queue_s = np.maximum(self.clients * inside_s / self.most - inside_s - waits_s, 0.0)
        plateau_s = later_s + queue_s
        beyond = np.maximum(self.clients - self.most, 0.0)
        first_round_s = self.request_s + burst_s + beyond**2 / (2.0 * self.clients) * (inside_s / self.most)
        return _Answer(
            ttft_s=(first_round_s + (self.rounds - 1.0) * plateau_s) / self.rounds,
            plateau_ttft_s=plateau_s,
            tpot_s=tpot_s,
            batch=np.clip(self.clients * inside_s / (inside_s + waits_s), 1.0, self.most),
        )
