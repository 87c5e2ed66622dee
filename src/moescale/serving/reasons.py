"""Why a model cannot be served, in words with the arithmetic, and what to change about it."""

from __future__ import annotations

import numpy as np

from moescale.latency import LatencySource
from moescale.models.architecture import Architecture
from moescale.models.parameters import fullest_stage, kv_bytes_per_request
from moescale.serving.deployment import Deployment
from moescale.serving.servers import Servers
from moescale.serving.steady_state import Reason, Serving, shares_heads
from moescale.typing import Real
from moescale.units import plural

MORE_ROOM = "allow more GPUs, take a GPU with more memory, fewer bytes a weight, or shorter requests"
REMEDIES = dict.fromkeys(Reason, MORE_ROOM) | {
    Reason.HEADS: "use a GPU count that it names",
    Reason.NO_LATENCY: "take the roofline (--latency roofline), or a smaller batch",
    Reason.EXPERT_PARALLEL: "state expert-parallel GPUs that divide the GPUs, or none",
    Reason.ATTENTION_DP: "state a number of groups that divides the GPUs of a stage, or none",
    Reason.PIPELINE: "state a number of stages that divides the GPUs, or none",
    Reason.TOO_SLOW: "relax the limit, shorten the prompts, or take a faster GPU or fewer bytes a weight",
}


def infeasible_reason(
    serving: Serving, model: Architecture, latency: LatencySource, deployment: Deployment, index: tuple[int, ...] = ()
) -> str | None:
    """Why the entry at `index` of `serve(model, ..)` cannot be served, with the arithmetic; None where it can."""

    def at(values: Real) -> float:
        return float(np.broadcast_to(values, np.shape(serving.gpus))[index])

    def kv_bytes(tokens: Real) -> float:
        stage, group_gpus = fullest_stage(model, d.pipeline_parallel), d.stage_gpus(serving.gpus) / d.attention_dp
        return at(kv_bytes_per_request(stage, tokens, d.kv_bytes_per_element, group_gpus))

    d, gpus, gpu = deployment, int(serving.gpus[index]), deployment.gpu
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
            tokens = d.longest_tokens
            return (
                f"one request of {at(tokens):g} tokens takes {kv_bytes(tokens) / 1e9:.3g} GB of KV cache a GPU "
                f"{on_gpus}, but weights {taken} leave {free / 1e9:.3g} GB of the {usable} usable"
            )
        case Reason.HEADS:
            return _uneven_heads(int(at(d.stage_gpus(gpus) / d.attention_dp)), at(model.n_heads), at(model.n_kv_heads))
        case Reason.EXPERT_PARALLEL:
            ways, experts = at(d.expert_ways(gpus)), at(model.n_experts) if at(model.n_moe_layers) else 1.0
            of_stage = at(d.stage_gpus(gpus))
            uneven = f"{of_stage:g} is not a multiple of it"
            what = uneven if of_stage % ways else f"the model has {experts:g} experts a layer"
            return f"expert parallelism over {ways:g} GPUs is impossible {on_gpus}: {what}"
        case Reason.ATTENTION_DP:
            groups, of_stage = at(d.attention_dp), at(d.stage_gpus(gpus))
            if at(model.n_moe_layers):
                return f"{plural(of_stage, 'GPU')} cannot be shared evenly by {groups:g} attention groups"
            return (
                f"attention data parallelism over {groups:g} groups spreads routed experts over all of them, but the model "
                "has none; for a dense model, use --replicas"
            )
        case Reason.PIPELINE:
            stages, layers = at(d.pipeline_parallel), at(model.n_layers)
            if stages > layers:
                return f"{stages:g} pipeline stages cannot each have one of {layers:g} layers"
            return f"{plural(gpus, 'GPU')} cannot be shared evenly by {stages:g} pipeline stages"
        case Reason.TOO_SLOW:
            times = Servers(model, serving.gpus, latency, d).times(np.asarray(1.0))
            first, later = (times.ttft_s, d.max_ttft_s), (times.tpot_s, d.max_tpot_s)
            exceeded = "; ".join(
                f"{kind} {at(took) * 1e3:.3g} ms, allowed {at(most) * 1e3:.3g} ms"
                for kind, took, most in (("time to first token", *first), ("time per output token", *later))
                if most is not None and at(took) > at(most)
            )
            return f"a batch of 1 {on_gpus} is too slow: {exceeded}"
        case Reason.NO_LATENCY:
            cap = at(d.batch_cap)
            separate = ", or it knows separate passes only" if d.scheduling == "chunked" else ""
            return (
                f"the latency source has no answer for this model {on_gpus} at a batch of "
                f"{min(at(d.attention_dp) * free / kv_bytes(d.held_tokens), cap):.4g}, prompts of {at(d.prompt_tokens):g} and contexts of "
                f"{at(d.held_tokens):g} tokens; a smaller max_num_seqs may lie within its range{separate}"
            )


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
