"""Memory, passes and times of a server with so many requests in service (docs/reference/mathematics.md).

Legend: g GPUs of one replica, p prompt and n output tokens a request, b requests in service: free bytes / KV bytes of a
request of p + n/2 tokens. One iteration decodes b tokens in D = decode(b) and starts x = b/n prompts; y = min(x, 1).

    separate (the paper's): prompts have passes of A = prefill(max(x, 1)), so that the weights are read twice
        I = D + y A                     seconds of an iteration; b/I output tokens a second, b/(n I) requests a second
        TPOT = D + A min(b - 1, n - 1)/n                       TTFT = W + A
    chunked: prompts ride in passes that decode, which take D + A, A = min(mixed(b, max(x, 1)) - D, prefill(max(x, 1)))
        TPOT = D + A min(b - 1, n - 1)/(n - 1)                 TTFT = W + D + A

W is the mean rest of the pass under way when a request comes, E[S^2] / 2 E[S] of passes of S seconds, and E[S] more where an
asynchronous host has filled the next one: none for a batch of one. With drafted tokens n is the passes of a request,
n / (1 + accepted); of a prompt p (1 - prefix_hit) tokens are computed; in passes of T tokens a prompt takes c, and A is
what all c add. With `attention_dp` N, N groups of g/N GPUs hold attention and serve b/N requests each; the layers of experts
keep them in step, so that the busiest one sets the pace. With `pipeline_parallel` P, a pass of b/P requests through P stages
of g/P GPUs takes its layers' time and P messages; P such passes are under way at once.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import NamedTuple, cast

import numpy as np

from moescale.errors import InputError
from moescale.hardware.gpus import Gpu
from moescale.latency import LatencySource, Pass, common_shape, kernels_alone, seconds_of
from moescale.latency.engines import NO_ENGINE
from moescale.latency.network import HOP_S
from moescale.models.architecture import NUMERIC_FIELDS, Architecture
from moescale.models.parameters import fullest_stage, kv_bytes_per_request, layers_share, weight_bytes_per_gpu
from moescale.serving.deployment import ARRAY_FIELDS, MOST_GPUS, Deployment
from moescale.typing import BoolArray, FloatArray, Real

TINY = np.finfo(np.float64).tiny
ACTIVATION_BYTES = 2.0  # bf16, between pipeline stages
GATHERED_BUFFERS = 2.0  # the tokens of all attention groups, and the sums that go back


class Times(NamedTuple):
    """Seconds with so many requests in service; see the module's legend."""

    prefill_s: FloatArray
    decode_s: FloatArray
    iteration_s: FloatArray
    tpot_s: FloatArray
    ttft_s: FloatArray

    def over_limits(self, d: Deployment) -> FloatArray:
        """The larger of both times over its limit; 0 without one, NaN where a time is not known."""
        limits = ((self.tpot_s, d.max_tpot_s), (self.ttft_s, d.max_ttft_s))
        over = [seconds / most_s for seconds, most_s in limits if most_s is not None]
        return functools.reduce(np.maximum, over, np.zeros(()))


@dataclass(frozen=True, slots=True)
class Servers:
    """Models on `count` GPUs a replica under a deployment, whose numbers all broadcast.

    Raises InputError for counts that are not whole, and for a latency source of something else than what is deployed.
    """

    model: Architecture
    count: FloatArray
    latency: LatencySource
    deployment: Deployment

    def __post_init__(self) -> None:
        count = self.count
        if not np.all((count >= 1) & (count <= MOST_GPUS) & (count == np.floor(count))):
            raise InputError(f"GPU counts must be whole numbers from 1 to {MOST_GPUS}, not {count}", where="gpus")
        theirs, where, d = getattr(self.latency, "gpu", None), self.latency.name, self.deployment
        if isinstance(theirs, Gpu) and theirs.name != d.gpu.name:
            what = f"the latencies are those of {theirs.name}, the deployment is on {d.gpu.name}"
            raise InputError(what, where=where, next_step="make the latency source for the deployment's GPU")
        for name in ("weight_bytes_per_param", "kv_bytes_per_element"):
            stated, wanted = getattr(self.latency, name, None), np.asarray(getattr(d, name), dtype=np.float64)
            if stated is not None and np.any(wanted != stated):
                what = f"the latencies are for {name} = {stated:g}, the deployment has {wanted.flat[0]:g}"
                raise InputError(what, where=where, next_step=f"make the latency source with {name}={wanted.flat[0]:g}")

    @property
    def shape(self) -> tuple[int, ...]:
        """The common shape."""
        return shape_of(self.model, self.count, self.deployment)

    def only(self, chosen: BoolArray) -> Servers:
        """The chosen entries alone, each array flat; `chosen` has the common shape."""

        def taken(values: Real) -> Real:
            return np.broadcast_to(values, chosen.shape)[chosen] if np.ndim(values) else values

        model = replace(self.model, **{name: taken(getattr(self.model, name)) for name in NUMERIC_FIELDS})
        d, names = self.deployment, [name for name in ARRAY_FIELDS if np.ndim(getattr(self.deployment, name))]
        d = replace(d, **{name: taken(getattr(d, name)) for name in names}) if names else d
        return Servers(model, np.broadcast_to(self.count, chosen.shape)[chosen], self.latency, d)

    @property
    def usd_per_mega_s(self) -> FloatArray:
        """Dollars of a million seconds of one replica, over the stated utilization."""
        return self.count * (self.deployment.usd_per_gpu_hour / 3600.0 * 1e6 / self.deployment.utilization)

    @property
    def of_stage(self) -> FloatArray:
        """GPUs of one pipeline stage."""
        return self.deployment.stage_gpus(self.count)

    @property
    def group_gpus(self) -> FloatArray:
        """GPUs that split a head's layer: those of one attention group of one pipeline stage."""
        return self.of_stage / self.deployment.attention_dp

    def bytes_per_gpu(self) -> tuple[FloatArray, FloatArray]:
        """Bytes of weights on the fullest GPU, and those that are left for the cache."""
        d, ways = self.deployment, self.deployment.expert_ways(self.count)
        split = {"attention_dp": d.attention_dp, "pipeline_parallel": d.pipeline_parallel}
        weights = weight_bytes_per_gpu(self.model, d.weight_bytes_per_param, self.of_stage, ways, **split)
        free = d.gpu.memory_bytes * d.memory_fraction - weights - d.reserved_bytes
        groups = np.asarray(d.attention_dp)
        if d.engine is not NO_ENGINE and np.any(groups > 1):  # what all groups gather for the experts
            gathered = GATHERED_BUFFERS * ACTIVATION_BYTES * np.asarray(self.model.d_model) * d.pass_tokens
            free = free - np.where(groups > 1, gathered * d.attention_dp, 0.0)
        return weights, free

    def kv_bytes(self, tokens: Real) -> FloatArray:
        """Bytes of cache of a request of `tokens` tokens on each GPU."""
        stage = fullest_stage(self.model, self.deployment.pipeline_parallel)
        return kv_bytes_per_request(stage, tokens, self.deployment.kv_bytes_per_element, self.group_gpus)

    def held(self, free: FloatArray) -> FloatArray:
        """Requests, a time average, that so many bytes of each GPU hold; each attention group has one copy of a cached prefix."""
        d = self.deployment
        each = self.kv_bytes(np.add(d.prompt_tokens, d.output_tokens) if d.engine.reserves else d.held_tokens)
        hit = np.asarray(d.prefix_hit)
        shared = self.kv_bytes(d.prompt_tokens * hit) if np.any(hit > 0.0) else 0.0
        return (free - shared) / np.maximum(each - shared, TINY) * d.attention_dp

    def pass_s(self, batch: FloatArray | None = None, prompts: FloatArray | None = None) -> FloatArray:
        """Seconds of a pass that decodes `batch` requests of a pipeline's part, computes so many prompts (or a part), or both."""
        return self._passes_s((batch, prompts))[0]

    def _passes_s(self, *asked: tuple[FloatArray | None, FloatArray | None]) -> list[FloatArray]:
        """Seconds of several such passes, one question to the latency source; prompts are a mean over their lengths."""
        d, verified = self.deployment, 1.0 + self.deployment.drafted_tokens
        none = Pass(self.of_stage, d.expert_ways(self.count), attention_dp=d.attention_dp)
        decoding = replace(none, context_tokens=d.held_tokens, query_tokens=verified)
        parts: list[list[tuple[Pass, float, Real, Real]]] = []  # of a question: pass, share, tokens, least seconds
        for batch, prompts in asked:
            one, decoded = (none, 0.0) if batch is None else (replace(decoding, batch=batch), batch * verified)
            if prompts is None:
                parts.append([(one, 1.0, decoded, 0.0)])
                continue
            parts.append([])
            whole, part = (np.maximum(prompts, 1.0), np.minimum(prompts, 1.0)) if batch is None else (prompts, 1.0)
            for at, share in d.prompt_nodes or ((d.prompt_tokens, 1.0),):
                new = self.computed(at)
                tokens = decoded + prompts * new
                asked_for = replace(one, prompts=whole, prompt_tokens=new * part, prefix_tokens=at - new)
                # Kernels of prompts are launched one by one, which the busiest attention group waits for.
                of_group = np.maximum(tokens / d.attention_dp, np.minimum(tokens, new))
                parts[-1].append((asked_for, share, tokens, d.engine.floor_s(self.model, of_group)))
        kernels_s = iter(seconds_of(self.latency, self.model, [each[0] for of_one in parts for each in of_one]))
        found: list[FloatArray] = []
        for (batch, prompts), of_one in zip(asked, parts, strict=True):
            # Each attention group has a scheduler of its own.
            sequences, least = (cast("FloatArray", prompts), 1.0) if batch is None else (batch, 0.0)
            scheduled, total_s = np.maximum(sequences / d.attention_dp, least), np.asarray(0.0)
            for _, share, tokens, least_s in of_one:
                launched_s = np.maximum(self._staged_s(next(kernels_s), tokens), least_s)
                total_s = total_s + share * d.host.pass_s(launched_s, scheduled)
            if batch is not None and np.any(d.drafted_tokens > 0.0):
                total_s = total_s + self._drafting_s(replace(decoding, batch=batch))
            found.append(total_s)
        return found

    def computed(self, prompt_tokens: Real) -> FloatArray:
        """Tokens of such a prompt that are computed: what the cache does not hold, the last one at least."""
        missed = 1.0 - np.asarray(self.deployment.prefix_hit)
        return np.maximum(prompt_tokens * missed, np.minimum(prompt_tokens, 1.0))

    def _drafting_s(self, decoding: Pass) -> FloatArray:
        """Seconds of one layer with the LM head for each drafted token, as multi-token prediction has it."""
        drafted, model = self.deployment.drafted_tokens, self.model
        part = {name: np.minimum(getattr(model, name), 1.0) for name in ("n_layers", "n_moe_layers", "n_window_layers")}
        one = replace(decoding, query_tokens=1.0)
        return drafted * seconds_of(kernels_alone(self.latency), replace(model, **part), [one])[0]

    def _staged_s(self, kernels_s: FloatArray, tokens: Real) -> FloatArray:
        """Seconds of a pass through pipeline stages, which wait for the fullest one and send activations on."""
        d, model = self.deployment, self.model
        stages = np.asarray(d.pipeline_parallel, dtype=np.float64)
        if not np.any(stages > 1):
            return kernels_s
        # Stages follow each other in a server as long as there is room for them.
        in_one = np.asarray(self.count) <= d.gpu.gpus_per_server
        rate = np.where(in_one, d.gpu.interconnect_bytes_per_s, d.gpu.network_bytes_per_s)
        sent_s = stages * (tokens * (ACTIVATION_BYTES * np.asarray(model.d_model, dtype=np.float64)) / rate + HOP_S)
        uneven = layers_share(model, stages) * stages
        return np.where(stages > 1, kernels_s * uneven + sent_s, kernels_s)

    def _chunks(self, batch: FloatArray, prompts: FloatArray) -> FloatArray | float:
        """Passes that so many prompts take together, beside `batch` requests that decode; each attention group its own."""
        d = self.deployment
        if d.max_num_batched_tokens is None:
            return 1.0
        decoded = batch / d.attention_dp * (1.0 + d.drafted_tokens)
        room = np.maximum(d.max_num_batched_tokens - decoded, 1.0)
        prompts = np.maximum(prompts / d.attention_dp, np.minimum(prompts, 1.0))
        return np.maximum(np.ceil(prompts * self.computed(d.prompt_tokens) / room), 1.0)

    def times(self, batch: FloatArray) -> Times:
        """The times of an iteration and of a request with `batch` requests in service.

        Each of P pipeline stages works on another part of the batch, b / P, which sees the prompts of its own requests.
        """
        d, yielded = self.deployment, self.deployment.tokens_a_pass  # tokens of a request, a pass
        batch = batch / d.pipeline_parallel
        n = np.asarray(d.output_tokens, dtype=np.float64) / yielded  # passes that decode a request
        starting = batch / n  # prompts an iteration
        waits = max(d.engine.batch_wait_passes, d.engine.receive_interval - 1)  # passes that prompts are held back
        balanced = np.where(np.asarray(d.attention_dp) > 1, d.engine.balance_passes, 0)
        # A prompt has one pass, which those that come while it is held back share, up to one a group.
        together = np.maximum(np.minimum(d.attention_dp, balanced * starting), waits * starting)
        whole = np.maximum(np.maximum(starting, 1.0), together)
        share = starting / whole
        chunked = d.scheduling == "chunked"
        chunks = self._chunks(batch, whole) if chunked else 1.0
        both = ((batch, whole / chunks),) if chunked else ()
        decode_s, alone_s, *mixed_s = self._passes_s((batch, None), (None, whole), *both)
        others, held_s = np.minimum(batch, n) - 1.0, 0.0
        if waits > 0 or np.any(balanced > 0):
            others = np.maximum(batch / whole - 1.0, 0.0)
            first_s = (max(d.engine.batch_wait_passes, waits / 2.0) * np.minimum(batch - 1.0, 1.0)) * decode_s
            held_s = np.where(whole > np.maximum(starting, 1.0), 0.5 * decode_s / share, first_s)
        if chunked:
            # A prompt may always have a pass of its own.
            added_s = np.minimum(chunks * (mixed_s[0] - decode_s), alone_s)
            own_s = chunks * decode_s + added_s
            tpot_s = decode_s + added_s * (others / np.maximum(n - 1.0, TINY))
            share_mixed = np.minimum(share * chunks, 1.0)
            squares = (1.0 - share_mixed) * decode_s**2 + share_mixed * (own_s / chunks) ** 2
        else:
            added_s = own_s = alone_s
            tpot_s = decode_s + added_s * (others / n)
            squares = decode_s**2 + share * own_s**2
        prefill_s = share * added_s
        passes_s = prefill_s + decode_s
        ahead_s = passes_s if d.host.asynchronous else 0.0  # the next pass is filled when the present one starts
        under_way_s = np.minimum(batch - 1.0, 1.0) * (squares / (2.0 * passes_s) + ahead_s)
        return Times(prefill_s, decode_s, passes_s / yielded, tpot_s / yielded, under_way_s + own_s + held_s)

    def times_per_token(self, batch: FloatArray) -> tuple[FloatArray, Times]:
        """Seconds of an iteration over its batch, infinite where it is too slow or has no answer, and all times."""
        times = self.times(batch)
        known = (times.iteration_s > 0) & ~(times.over_limits(self.deployment) > 1.0)
        return np.where(known, times.iteration_s / batch, math.inf), times


def shape_of(model: Architecture, count: Real, deployment: Deployment) -> tuple[int, ...]:
    """The shape that models, GPU counts and a deployment broadcast to."""
    numbers = (getattr(deployment, name) for name in ARRAY_FIELDS)
    return common_shape(model, count, *(number for number in numbers if number is not None))
