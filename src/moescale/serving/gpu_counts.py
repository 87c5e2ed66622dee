"""How many GPUs serve a model for the fewest dollars, with a record of every count that was looked at."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from moescale.errors import InfeasibleError, InputError
from moescale.io.records import Record
from moescale.latency import LatencySource
from moescale.models.architecture import Architecture, some
from moescale.models.parameters import count_parameters
from moescale.models.quantisation import with_usual_shares
from moescale.serving.deployment import Deployment, degrees
from moescale.serving.loads import MOST_REPLICAS, OpenLoop, closed_loop, open_loop, plateau_of
from moescale.serving.servers import Servers, shape_of
from moescale.serving.steady_state import (
    LIMITS,
    REMEDIES,
    Limit,
    Reason,
    Serving,
    figures,
    infeasible_reason,
    largest_batches,
    serve,
)
from moescale.serving.workload import Answer
from moescale.typing import FloatArray, Progress, Real
from moescale.units import plural

SLACK = 0.03  # of requests a second, by which arrivals may do better than a full batch of means: our choice
TIED = 1e-9  # relative: prices that differ by less are the same, as processors add up in other orders


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost(Record):
    """Cost of serving one model on one GPU count; None where a figure does not apply because it is infeasible."""

    gpus: int  # of the whole deployment
    n_params_total: float
    n_params_active: float
    weight_bytes: float
    kv_bytes_per_token: float
    latency_source: str
    tensor_parallel: int | None = None  # GPUs that split a layer: those of a replica, over groups and stages
    expert_parallel: int | None = None  # so many of them hold whole experts
    attention_dp: int | None = None  # so many groups of them hold attention, where more than one
    pipeline_parallel: int | None = None  # so many stages of them hold consecutive layers, where more than one
    replicas: int | None = None
    weight_bytes_per_gpu: float | None = None  # on the fullest GPU
    reserve_bytes: float | None = None  # of each GPU, for activations and the runtime
    usd_per_mtok: float | None = None  # dollars per million output tokens at the stated utilization
    usd_per_input_mtok: float | None = None  # what prompts add to the time, per million prompt tokens
    usd_per_output_mtok: float | None = None  # the rest, per million output tokens
    batch: float | None = None  # of one replica
    limited_by: str | None = None
    latency_limit: str | None = None  # which limit binds where `limited_by` is latency: max_ttft or max_tpot
    prefill_s: float | None = None
    decode_s: float | None = None
    iteration_s: float | None = None
    ttft_s: float | None = None  # time to first token of a request that finds a place
    tpot_s: float | None = None  # time per output token
    throughput_tok_s: float | None = None  # output tokens a second of the whole deployment
    closed_loop: Answer | None = None  # where clients were asked for
    infeasible: str | None = None
    candidates: tuple[Cost, ...] | None = None  # one record a GPU count that was looked at

    @property
    def gpus_per_replica(self) -> int:
        """GPUs of one copy of the model."""
        return self.gpus // (self.replicas or 1)


HELD = ("weight_bytes", "weight_bytes_per_gpu", "kv_bytes_per_token")
SERVED = (
    *("usd_per_mtok", "usd_per_input_mtok", "usd_per_output_mtok"),
    *("batch", "prefill_s", "decode_s", "iteration_s", "ttft_s", "tpot_s", "throughput_tok_s"),
)


def layouts(model: Architecture, deployment: Deployment, counts: tuple[int, ...]) -> tuple[FloatArray, Deployment]:
    """GPU counts of the replicas to look at, (k, 1, ..) before the common shape, and the deployment with the groups of each.

    Where it searches groups, each count that tensor parallelism alone would hold the cache more than once on comes twice, also
    with so many groups that it does not, and whole experts over all GPUs.
    """
    d, shape = deployment, (-1, *(1 for _ in shape_of(model, 1.0, deployment)))
    found = [(n, d.attention_dp, d.expert_parallel) for n in counts]
    if d.searches_groups and some(model.n_moe_layers):
        kv_heads = np.unique(np.asarray(model.n_kv_heads, dtype=np.float64))
        ways = 1.0 if some(model.kv_lora_rank) else kv_heads[0] if kv_heads.size == 1 else math.inf
        found += [(n, n / ways, math.inf) for n in counts if n > ways and n % ways == 0.0]
    sizes, groups, experts = (np.array(part, dtype=np.float64).reshape(shape) for part in zip(*found, strict=True))
    return sizes, replace(d, attention_dp=groups, expert_parallel=experts) if len(found) > len(counts) else d


def laid_out(deployment: Deployment, attention_dp: Real | None) -> Deployment:
    """The deployment with the groups of attention that a search chose; nothing more is searched then."""
    groups = np.asarray(1.0 if attention_dp is None else attention_dp, dtype=np.float64)
    if not deployment.searches_groups or np.all(groups <= 1.0):
        return replace(deployment, searches_groups=False)
    ways = np.where(groups > 1.0, math.inf, deployment.expert_parallel)
    return replace(deployment, searches_groups=False, attention_dp=groups[()], expert_parallel=ways[()])


def cheapest(model: Architecture, latency: LatencySource, deployment: Deployment, *, every: bool = False) -> Serving:
    """Serving figures at the GPU count among `degrees(deployment)` with the fewest dollars per token.

    Counts are compared at their largest batches; with `every`, for questions of a few entries, at the cheapest of a ladder
    of batches, as `cost` does. Where no count serves a model, the entry is that of the largest, and costs infinity.
    """
    model = with_usual_shares(model, deployment.weights)
    count, d = layouts(model, deployment, degrees(deployment))
    served = figures(Servers(model, count, latency, d), every=every, rivals=not every)
    least = np.min(served.usd_per_mtok, axis=0)
    best = np.argmax(served.usd_per_mtok <= least * (1.0 + TIED), axis=0)  # the first, which has the fewest GPUs
    best = np.where(np.isinf(least), len(count) - 1, best)[np.newaxis]
    return Serving(**{f.name: np.take_along_axis(getattr(served, f.name), best, axis=0)[0] for f in fields(served)})


def usd_at(
    model: Architecture,
    latency: LatencySource,
    deployment: Deployment,
    gpus: FloatArray,
    groups: FloatArray,
    batch: FloatArray | None = None,
) -> FloatArray:
    """Dollars per million output tokens of models (s, n) on `gpus` GPUs a replica in so many groups of attention, infinite where
    one is not served; at a `batch`, whether it fits and keeps the limits or not.
    """
    model = with_usual_shares(model, deployment.weights)
    servers = Servers(model, gpus, latency, laid_out(deployment, groups))
    if batch is None:
        return np.broadcast_to(largest_batches(servers).usd_per_mtok(servers), servers.shape)
    return servers.usd_per_mega_s * servers.times(np.broadcast_to(batch, servers.shape)).iteration_s / batch


def cost(
    model: Architecture,
    latency: LatencySource,
    deployment: Deployment,
    gpus: int | None = None,
    *,
    clients: int | None = None,
    lengths: tuple[FloatArray, FloatArray] | None = None,
    percentile: float | None = None,
    more_replicas: bool = False,
    progress: Progress = lambda step, share: None,
) -> Cost:
    """Cost of serving one `model` at its cheapest GPU count, or at `gpus` a replica, with every candidate looked at.

    With `clients` the cheapest for a closed loop of so many (of the `lengths` of a trace) within the latency limits, by means
    or the `percentile`; with `more_replicas` also the fewest copies of each count that keep them, where one does not. Raises
    InfeasibleError when no count serves the model, InputError for arrays.
    """
    if shape_of(model, 1.0, deployment):
        what = "a record describes one model and one deployment, but one of them holds arrays"
        raise InputError(what, next_step="use serve()")
    model = with_usual_shares(model, deployment.weights)
    counts, every = layouts(model, deployment, degrees(deployment) if gpus is None else (gpus,))
    groups, ways, _ = np.broadcast_arrays(every.attention_dp, every.expert_parallel, counts)
    each = zip(groups.tolist(), ways.tolist(), strict=True)
    of_each = [replace(every, attention_dp=n_groups, expert_parallel=n_ways) for n_groups, n_ways in each]
    serving = serve(model, counts, latency, every, every=True)
    reasons = [Reason(int(reason)) for reason in serving.infeasible]
    found = [_record(model, latency, d, serving, i) for i, d in enumerate(of_each)]
    if clients is not None:
        one_copy, found = found, list[Cost]()
        for i, (one, n, d) in enumerate(zip(one_copy, counts.astype(int).tolist(), of_each, strict=True)):
            progress(f"{clients} clients of {plural(n, 'GPU')}", i / len(of_each))
            for copies in range(1, (deployment.max_gpus // n if more_replicas else 1) + 1):
                copied = replace(d, replicas=d.replicas * copies)
                loop = closed_loop(model, latency, copied, n, clients, lengths, percentile)
                if copies == 1 or (loop is not None and loop.meets_limits):
                    several = {"gpus": one.gpus * copies, "replicas": (one.replicas or 1) * copies}
                    per_s = one.throughput_tok_s and one.throughput_tok_s * copies
                    found.append(replace(one, **several, throughput_tok_s=per_s, closed_loop=loop))
                if one.infeasible is not None or loop is None or loop.meets_limits:
                    break
    served = [one for one in found if one.infeasible is None]
    if not served:
        # The largest count comes closest to fitting; heads are named where nothing else failed. Latency does not fall
        # with every further GPU: counts that are too slow are all named.
        told = [i for i, reason in enumerate(reasons) if reason is Reason.TOO_SLOW]
        told = told or [i for i, reason in enumerate(reasons) if reason is not Reason.HEADS][-1:] or [-1]
        why = "; ".join(str(found[i].infeasible) for i in told)
        where = f"{'1 to ' if len(found) > 1 else ''}{found[-1].gpus} x {deployment.gpu.name}"
        what, remedy = f"no GPU count serves {model.name or 'the model'}: {why}", REMEDIES[reasons[told[0]]]
        raise InfeasibleError(what, where=where, next_step=remedy)
    return replace(min(served, key=_order), candidates=tuple(found))


def cost_at_rate(
    found: Cost,
    model: Architecture,
    latency: LatencySource,
    deployment: Deployment,
    requests_per_s: float,
    *,
    percentile: float | None = None,
    prompt_tokens: FloatArray | None = None,
    output_tokens: FloatArray | None = None,
) -> tuple[Cost, OpenLoop]:
    """Of the servers that `found` looked at, that whose replicas serve a rate within the limits on the fewest GPUs, and the replicas; of as many GPUs the cheapest at full load.

    Raises InfeasibleError where none does, for the reason of the one that comes first, and as `open_loop`.
    """
    own = replace(deployment, replicas=1.0)
    servers = [(one, laid_out(own, one.attention_dp)) for one in found.candidates or (found,) if one.infeasible is None]

    def fewest_gpus(one: Cost, d: Deployment) -> int:
        """Of so many none has more than full load takes, within limits that means keep there."""
        _, per_s = plateau_of(model, latency, d, one.gpus_per_replica)
        within = (one.throughput_tok_s or 0.0) / (one.replicas or 1) / float(np.asarray(d.output_tokens))
        per_s = min(per_s, within * (1.0 + SLACK))
        return one.gpus_per_replica * max(math.ceil(requests_per_s / per_s), 1) if per_s > 0.0 else 2**62

    least = sorted(((fewest_gpus(*each), each[0].usd_per_mtok or 0.0, each) for each in servers), key=lambda s: s[:2])
    best, refused = None, None
    for gpus, _, (one, d) in least:
        if best is not None and gpus >= best[1].gpus:
            break
        try:
            opened = open_loop(
                model, latency, d, one.gpus_per_replica, requests_per_s,
                percentile=percentile, prompt_tokens=prompt_tokens, output_tokens=output_tokens,
                most_replicas=MOST_REPLICAS if best is None else (best[1].gpus - 1) // one.gpus_per_replica,
            )  # fmt: skip
            best = replace(one, candidates=found.candidates), opened
        except InfeasibleError as error:
            refused = refused or error
    if best is None:
        what, step = f"no GPU count serves {model.name or 'the model'}", "relax the limits, or take more GPUs"
        raise refused or InfeasibleError(what, where=deployment.gpu.name, next_step=step)
    return best


def _order(one: Cost) -> tuple[bool, float, int]:
    """The cheapest first, of those within the limits; equal ones by GPUs."""
    loop = one.closed_loop
    return loop is not None and not loop.meets_limits, (loop or one).usd_per_mtok or 0.0, one.gpus


def _record(model: Architecture, latency: LatencySource, d: Deployment, serving: Serving, i: int) -> Cost:
    gpus, parameters = int(serving.gpus[i]), count_parameters(model)
    groups, stages, replicas = (int(np.asarray(n)) for n in (d.attention_dp, d.pipeline_parallel, d.replicas))
    infeasible = infeasible_reason(serving, model, latency, d, (i,))
    known = HELD if infeasible is not None else (*HELD, *SERVED)
    figures: dict[str, Any] = {name: float(getattr(serving, name)[i]) for name in known}
    limit = int(serving.limited_by[i])
    if infeasible is None:
        figures["limited_by"] = LIMITS[limit]
    if infeasible is None and limit == Limit.LATENCY:  # the one that it comes closest to
        limits = {"max_ttft": (serving.ttft_s[i], d.max_ttft_s), "max_tpot": (serving.tpot_s[i], d.max_tpot_s)}
        taken = {name: float(time_s / most_s) for name, (time_s, most_s) in limits.items() if most_s is not None}
        figures["latency_limit"] = max(taken, key=lambda name: (taken[name], name))
    return Cost(
        **figures,
        gpus=gpus * replicas,
        n_params_total=float(parameters.total),
        n_params_active=float(parameters.active),
        reserve_bytes=float(d.reserved_bytes),
        latency_source=latency.name,
        tensor_parallel=int(gpus / groups / stages) or 1,
        expert_parallel=int(d.expert_ways(gpus)),
        attention_dp=groups if groups > 1 else None,
        pipeline_parallel=stages if stages > 1 else None,
        replicas=replicas,
        infeasible=infeasible,
    )
