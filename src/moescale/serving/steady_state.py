"""The batch of a served model, and what it gives: throughput and dollars per token (the paper's appendix B).

Letters and times are those of moescale.serving.servers. Latency limits shrink b until both hold. Seconds per token nearly
always fall with b; where measured kernels have them rise, `batching` "cheapest" takes a smaller batch.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np

from moescale.latency import LatencySource
from moescale.models.architecture import NUMERIC_FIELDS, Architecture
from moescale.models.parameters import kv_bytes_per_token, weight_bytes_per_gpu
from moescale.roots import last_within
from moescale.serving.deployment import Deployment
from moescale.serving.servers import Servers, Times
from moescale.typing import BoolArray, FloatArray, Real
from moescale.units import plural

CLOSE = 1e-8  # of the logarithm of a batch: of any batch below a thousandth of a request
PROBES = (4.0, 1.4)  # by so much smaller batches show whether seconds per token still fall at the largest
LADDER = 193  # batches from 1 to the largest, evenly spaced in logarithms
ZOOM = 9  # batches between the neighbours of the best
WORTH = 1e-3  # a smaller batch is taken for a saving of more than this; kernels are known to percents


class Limit(IntEnum):
    """What a batch is limited by."""

    MEMORY, MAX_NUM_SEQS, LATENCY, OPTIMUM, MAX_NUM_BATCHED_TOKENS = range(5)


class Reason(IntEnum):
    """Why a model is not served."""

    FEASIBLE, WEIGHTS, LONGEST_REQUEST, HEADS, NO_LATENCY, TOO_SLOW, EXPERT_PARALLEL, ATTENTION_DP, PIPELINE = range(9)


LIMITS = tuple(limit.name.lower() for limit in Limit)
REASONS = (
    "feasible",
    "the weights do not fit into GPU memory",
    "one request of full length does not fit beside the weights",
    "the GPU count does not divide the attention heads, or neither divides nor is a multiple of the key-value heads",
    "the latency source has no answer",
    "a batch of one exceeds a latency limit",
    "the expert-parallel GPUs exceed the experts, or do not divide the GPU count",
    "attention groups (--attention-dp) need a model with experts, and a number that divides the GPU count",
    "the pipeline stages exceed the layers, or do not divide the GPU count",
)
MORE_ROOM = "allow more GPUs, take a GPU with more memory, fewer bytes a weight, or shorter requests"
REMEDIES = dict.fromkeys(Reason, MORE_ROOM) | {
    Reason.HEADS: "use a GPU count that it names",
    Reason.NO_LATENCY: "take the roofline (--latency roofline), or a smaller batch",
    Reason.EXPERT_PARALLEL: "state expert-parallel GPUs that divide the GPUs, or none",
    Reason.ATTENTION_DP: "state a number of groups that divides the GPUs of a stage, or none",
    Reason.PIPELINE: "state a number of stages that divides the GPUs, or none",
    Reason.TOO_SLOW: "relax the limit, shorten the prompts, or take a faster GPU or fewer bytes a weight",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """Serving figures over the common shape of models, GPU counts and deployments; infeasible entries cost infinity."""

    gpus: FloatArray  # of one replica; of a decode worker where prefill and decode are apart
    batch: FloatArray  # concurrent requests of one replica, a time average (0 where infeasible)
    prefill_s: FloatArray  # NaN where infeasible, as the other times; chunked: what prompts add to the pass
    decode_s: FloatArray
    iteration_s: FloatArray  # a token for every request, and the prompts that start meanwhile
    tpot_s: FloatArray  # mean time between the output tokens of a request, as its client measures it
    ttft_s: FloatArray  # time to first token of a request that finds a place
    throughput_tok_s: FloatArray  # output tokens a second of the whole deployment (0 where infeasible)
    usd_per_mtok: FloatArray  # dollars per million output tokens (inf where infeasible)
    usd_per_input_mtok: FloatArray  # what prompts add to the passes, per million prompt tokens
    usd_per_output_mtok: FloatArray  # the rest, per million output tokens
    weight_bytes: FloatArray  # of one whole model
    weight_bytes_per_gpu: FloatArray  # on the fullest GPU
    kv_bytes_per_token: FloatArray  # of the whole model
    limited_by: FloatArray  # a Limit
    infeasible: FloatArray  # a Reason
    attention_dp: FloatArray  # groups of GPUs that hold attention
    prefill_gpus: FloatArray  # of a prefill worker, 0 where the same GPUs do both


UNSERVED = {
    **dict.fromkeys(Times._fields, math.nan),
    **dict.fromkeys(("batch", "throughput_tok_s"), 0.0),
    **dict.fromkeys(("usd_per_mtok", "usd_per_input_mtok", "usd_per_output_mtok"), math.inf),
}


def serve(
    model: Architecture, gpus: Real, latency: LatencySource, deployment: Deployment, *, every: bool = False
) -> Serving:
    """Serving figures of `model` on `gpus` GPUs a replica; model, `gpus` and the deployment's numbers broadcast.

    All answers have the common shape. `every` looks at a ladder of batches, for questions of a few entries. What cannot be
    served costs infinity and carries its Reason. Raises InputError for impossible GPU counts, and for a latency source of
    another GPU or number format than the deployment's.
    """
    return figures(Servers(model, np.asarray(gpus, dtype=np.float64), latency, deployment), every=every)


@dataclass(frozen=True, slots=True)
class Batches:
    """Batches of Servers with their times; arrays broadcast to the common shape."""

    batch: FloatArray
    times: Times
    weight_bytes_per_gpu: FloatArray
    limited_by: FloatArray
    reason: FloatArray

    @property
    def served(self) -> BoolArray:
        """Which are feasible, and have an answer."""
        seconds = self.times.iteration_s
        return (self.reason == Reason.FEASIBLE) & (seconds > 0) & (seconds < math.inf)  # false for NaN, too

    def usd_per_mtok(self, servers: Servers) -> FloatArray:
        """Dollars per million tokens; infinite where it is not served."""
        return np.where(self.served, servers.usd_per_mega_s * self.times.iteration_s / self.batch, math.inf)

    def changed(
        self, where: BoolArray, batch: FloatArray, times: Times, limited_by: Limit, reason: Real = Reason.FEASIBLE
    ) -> Batches:
        """With other ones (n,) at the n places of a mask of the common shape."""

        def put(values: FloatArray, new: Real) -> FloatArray:
            whole = np.array(np.broadcast_to(values, where.shape), dtype=np.float64)
            whole[where] = new
            return whole

        return replace(
            self,
            batch=put(self.batch, batch),
            times=Times(*(put(old, new) for old, new in zip(self.times, times, strict=True))),
            limited_by=put(self.limited_by, limited_by),
            reason=put(self.reason, reason),
        )


def largest_batches(servers: Servers) -> Batches:
    """The largest batches that memory, max_num_seqs and the latency limits allow."""
    d = servers.deployment
    per_gpu, free = servers.bytes_per_gpu()
    reason = _reason(servers, free)
    fits, cap, by_memory = reason == Reason.FEASIBLE, d.batch_cap, servers.held(free)
    limited_by = np.where(by_memory > cap, Limit.MAX_NUM_SEQS, Limit.MEMORY)
    if d.max_num_batched_tokens is not None:  # passes are full at b = passes of a request times T / its tokens
        passes = np.asarray(d.output_tokens) / d.tokens_a_pass
        own = passes * (1.0 + d.drafted_tokens)
        if d.scheduling == "chunked":  # else prompts have passes of their own
            own = own + servers.computed(d.prompt_tokens)
        budget = np.asarray(d.max_num_batched_tokens) * d.attention_dp * d.pipeline_parallel  # of all groups and parts
        by_tokens = np.maximum(passes * (budget / own), 1.0)
        limited_by = np.where(by_tokens < np.minimum(by_memory, cap), Limit.MAX_NUM_BATCHED_TOKENS, limited_by)
        cap = np.minimum(cap, by_tokens)
    batch = np.where(fits, np.minimum(by_memory, cap), 1.0)  # 1: a valid question for the latency source
    times = servers.times(batch)
    late = np.broadcast_to(fits & (times.over_limits(d) > 1.0), servers.shape)
    return _within_limits(servers, Batches(batch, times, per_gpu, limited_by, reason), late)


def _within_limits(servers: Servers, batches: Batches, late: BoolArray) -> Batches:
    """With the largest batches from 1 on that meet the latency limits at the entries that are late, too slow where 1 does not.

    Latency grows with the batch; where a measured one does not, a looser limit still finds no smaller batch.
    """
    if not np.any(late):
        return batches
    some, ln_most = servers.only(late), np.log(np.broadcast_to(batches.batch, late.shape)[late])

    def beyond(ln_batch: FloatArray, wanted: BoolArray) -> FloatArray:
        part = some if np.all(wanted) else some.only(wanted)
        times = part.times(np.exp(ln_batch))
        of_limit = times.over_limits(part.deployment)
        return np.stack((np.where(np.isnan(of_limit), math.inf, np.log(of_limit)), *times))

    ln_batch, (_, *found) = last_within(beyond, np.zeros_like(ln_most), ln_most, close=CLOSE)
    times = Times(*found)
    reason = np.where(times.over_limits(some.deployment) > 1.0, Reason.TOO_SLOW, Reason.FEASIBLE)
    return batches.changed(late, np.exp(ln_batch), times, Limit.LATENCY, reason)


def _reason(servers: Servers, free: FloatArray) -> FloatArray:
    """Why each entry cannot be served with so many bytes free on a GPU, before any latency."""
    model, d, of_stage = servers.model, servers.deployment, servers.of_stage
    stages, groups = (np.asarray(n, dtype=np.float64) for n in (d.pipeline_parallel, d.attention_dp))
    ways, has_experts = d.expert_ways(servers.count), np.asarray(model.n_moe_layers) > 0
    numbers = (np.asarray(getattr(model, name), dtype=np.float64) for name in NUMERIC_FIELDS)
    could_be_built = functools.reduce(np.logical_and, (values == np.floor(values) for values in numbers))
    uneven = {
        Reason.PIPELINE: (stages > 1) & ((servers.count % stages != 0) | (stages > model.n_layers)),
        Reason.ATTENTION_DP: (groups > 1) & ((of_stage % groups != 0) | ~has_experts),
        Reason.EXPERT_PARALLEL: (of_stage % ways != 0) | (ways > np.where(has_experts, model.n_experts, 1.0)),
        Reason.HEADS: could_be_built & ~shares_heads(model.n_heads, model.n_kv_heads, servers.group_gpus),
        Reason.WEIGHTS: ~(free > 0),
        Reason.LONGEST_REQUEST: ~(free >= servers.kv_bytes(d.longest_tokens)),
    }
    return np.select(list(uneven.values()), list(uneven), Reason.FEASIBLE)


def _with_cheaper_batches(servers: Servers, batches: Batches, among: BoolArray, *, every: bool) -> Batches:
    """The same with smaller batches where those take fewer seconds per token, among the entries of a mask.

    The best of a few smaller batches, or of `every` one on a ladder, is refined between its neighbours.
    """
    shape = servers.shape
    batch, among = np.broadcast_to(batches.batch, shape), np.broadcast_to(among & (batches.batch > 1.0), shape)
    if not np.any(among):
        return batches
    some, most = servers.only(among), batch[among]
    seconds = np.broadcast_to(batches.times.iteration_s, shape)[among] / most
    steps = np.linspace(0.0, 1.0, LADDER)[:-1, np.newaxis]
    tried = most**steps if every else np.maximum(most / np.reshape(PROBES, (-1, 1)), 1.0)
    tried_s, _ = some.times_per_token(tried)
    better = np.min(tried_s, axis=0) < seconds * (1.0 - WORTH)
    if not np.any(better):
        return batches
    at, column = np.argmin(tried_s, axis=0)[better], np.arange(np.count_nonzero(better))
    around = np.concatenate([np.ones_like(most)[np.newaxis], tried, most[np.newaxis]])[:, better]
    low, best, high = (around[at + step, column] for step in (0, 1, 2))
    between = np.exp(np.linspace(np.log(low), np.log(high), ZOOM + 2)[1:-1])
    zoomed = np.concatenate([best[np.newaxis], between])
    zoomed_s, times = some.only(better).times_per_token(zoomed)
    at, changed = np.argmin(zoomed_s, axis=0), np.zeros(shape, np.bool_)
    changed.flat[np.flatnonzero(among)[better]] = True
    times = Times(*(part[at, column] for part in times))
    return batches.changed(changed, zoomed[at, column], times, Limit.OPTIMUM)


def figures(servers: Servers, *, every: bool, rivals: bool = False) -> Serving:
    """Everything in the common shape, at the largest batches or, as the deployment has it, the cheapest.

    `rivals`: the entries along the first axis compete, and no smaller batch is looked for but of those that are the cheapest
    at their largest.
    """
    d, batches = servers.deployment, largest_batches(servers)
    if d.batching == "cheapest":
        usd = batches.usd_per_mtok(servers)
        among = batches.served & (not rivals or usd <= np.min(usd, axis=0))
        batches = _with_cheaper_batches(servers, batches, among, every=every)
    times, served, usd = batches.times, batches.served, batches.usd_per_mtok(servers)
    with np.errstate(invalid="ignore", divide="ignore"):
        prompts_share = times.prefill_s / (times.prefill_s + times.decode_s)  # of the time, and of the dollars
        found = {
            **times._asdict(),
            "batch": batches.batch,
            "throughput_tok_s": d.replicas * (batches.batch / times.iteration_s),
            "usd_per_mtok": usd,
            "usd_per_input_mtok": usd * prompts_share * (d.output_tokens / d.prompt_tokens),
            "usd_per_output_mtok": usd * (1.0 - prompts_share),
            "gpus": servers.count,
            "weight_bytes_per_gpu": batches.weight_bytes_per_gpu,
            "limited_by": batches.limited_by,
            "infeasible": np.where((batches.reason == Reason.FEASIBLE) & ~served, Reason.NO_LATENCY, batches.reason),
            "attention_dp": d.attention_dp,
            "prefill_gpus": 0.0,
        }
    return serving_of(servers.model, d, served, servers.shape, found)


def serving_of(
    model: Architecture, d: Deployment, served: BoolArray, shape: tuple[int, ...], found: Mapping[str, Real]
) -> Serving:
    """Figures of models in the common shape, with what UNSERVED says where they are not served, and what holds anywhere."""
    known = {name: np.where(served, values, UNSERVED.get(name, values)) for name, values in found.items()}
    known["weight_bytes"] = weight_bytes_per_gpu(model, d.weight_bytes_per_param)
    known["kv_bytes_per_token"] = kv_bytes_per_token(model, d.kv_bytes_per_element)
    return Serving(**{name: np.broadcast_to(np.asarray(v, dtype=np.float64), shape) for name, v in known.items()})


def shares_heads(n_heads: Real, n_kv_heads: Real, count: Real) -> BoolArray:
    """Where `count` GPUs hold equal shares of the heads, as vLLM demands; fewer key-value heads are each held by equally many."""
    heads, kv_heads = (np.asarray(n, dtype=np.float64) for n in (n_heads, n_kv_heads))
    return (heads % count == 0) & ((kv_heads % count == 0) | (count % kv_heads == 0))


def infeasible_reason(
    serving: Serving, model: Architecture, latency: LatencySource, deployment: Deployment, index: tuple[int, ...] = ()
) -> str | None:
    """Why the entry at `index` of `serve(model, ..)` cannot be served, with the arithmetic; None where it can."""

    def at(values: Real) -> float:
        return float(np.broadcast_to(values, np.shape(serving.gpus))[index])

    d, gpus, gpu = deployment, int(serving.gpus[index]), deployment.gpu
    servers = Servers(model, serving.gpus, latency, d)
    on_gpus = f"on {plural(gpus, 'GPU')}"
    budget, fraction = gpu.memory_bytes * at(d.memory_fraction), at(d.memory_fraction)
    per_gpu, reserve = float(serving.weight_bytes_per_gpu[index]), at(d.reserved_bytes)
    taken = _gb(per_gpu) + (f" + reserve {_gb(reserve)} = {_gb(per_gpu + reserve)}" if reserve else "")
    free, usable = budget - per_gpu - reserve, f"{fraction:g} x {_gb(gpu.memory_bytes)} = {_gb(budget)}"
    match Reason(int(serving.infeasible[index])):
        case Reason.FEASIBLE:
            return None
        case Reason.WEIGHTS:
            return f"weights take {taken} a GPU {on_gpus}, more than the {usable} usable on {gpu.name}"
        case Reason.LONGEST_REQUEST:
            longest_bytes = at(servers.kv_bytes(d.longest_tokens))
            return (
                f"one request of {at(d.longest_tokens):g} tokens takes {longest_bytes / 1e9:.3g} GB of KV cache a GPU "
                f"{on_gpus}, but weights {taken} leave {free / 1e9:.3g} GB of the {usable} usable"
            )
        case Reason.HEADS:
            return _uneven_heads(int(at(servers.group_gpus)), at(model.n_heads), at(model.n_kv_heads))
        case Reason.TOO_SLOW:
            times = servers.times(np.asarray(1.0))
            first = ("time to first token", times.ttft_s, d.max_ttft_s)
            exceeded = [
                f"{kind} {at(took) * 1e3:.3g} ms, allowed {at(most) * 1e3:.3g} ms"
                for kind, took, most in (first, ("time per output token", times.tpot_s, d.max_tpot_s))
                if most is not None and at(took) > at(most)
            ]
            return f"a batch of 1 {on_gpus} is too slow: {'; '.join(exceeded)}"
        case reason:
            return f"{on_gpus} {REASONS[reason]}"


def _uneven_heads(gpus: int, heads: float, kv_heads: float) -> str:
    """The refusal of a GPU count, with the nearest counts below and above that share the heads."""
    counts = np.arange(1.0, max(int(heads), gpus) + 1.0)
    possible = counts[shares_heads(heads, kv_heads, counts)]
    below, above = possible[possible <= gpus].max(), possible[possible >= gpus]
    what = f"{heads:g} attention heads" if heads % gpus else f"{kv_heads:g} key-value heads"
    nearest = f"{below:g} or {above.min():g} GPUs" if above.size else plural(below, "GPU")
    return f"{gpus} GPUs cannot share {what} evenly, as vLLM requires; {nearest} can"


def _gb(value: float) -> str:
    return f"{value / 1e9:.1f} GB"
