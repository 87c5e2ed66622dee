"""How a model is served: hardware, price, traffic and limits, each with its bounds; and how records and screens state it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np

from moescale import catalogue
from moescale.bounds import Bound, bounds_of, check_bounds
from moescale.errors import InputError, unknown_name
from moescale.hardware.gpus import Gpu, measured_reserve_bytes
from moescale.hardware.precisions import format_of_bytes
from moescale.latency import LatencySource
from moescale.latency.engines import NO_ENGINE, NO_OVERHEAD, Engine, HostOverhead
from moescale.models.architecture import Architecture
from moescale.serving.traffic import Traffic
from moescale.typing import FloatArray, Real
from moescale.units import format_seconds

BATCHES = {
    "cheapest": "the batch with the fewest dollars per token, up to what memory and limits allow",
    "largest": "all that memory and limits allow (the paper's)",
}
SCHEDULING = {
    "separate": "prompts and output tokens in passes of their own (the paper's)",
    "chunked": "one pass for both (chunked prefill, the default of vLLM and SGLang)",
}
STATED = (
    *("usd_per_gpu_hour", "prompt_tokens", "output_tokens", "max_num_seqs", "max_ttft_s", "max_tpot_s"),
    *("memory_fraction", "utilization", "scheduling", "max_num_batched_tokens", "draft_tokens"),
    *("prefix_hit", "accepted_tokens"),
)

# Ten tokens a second are some 450 words a minute, about twice the reading speed (238 words a minute; Brysbaert, How many
# words do we read per minute?, Journal of Memory and Language 109, 2019).
MOST_TPOT_S = 0.1
# What keeps a user's attention on the dialogue (Nielsen, Usability Engineering, 1993, section 5.5).
MOST_TTFT_S = 10.0
MOST_GPUS = 1024  # far beyond any tensor-parallel server; keeps a slip of the pen from filling the memory

POSITIVE, AT_LEAST_ONE, NOT_NEGATIVE = Bound(0.0, above=True), Bound(1.0), Bound(0.0)
SHARE, COUNT = Bound(0.0, 1.0, above=True), Bound(1.0, whole=True)
WAYS = Bound(1.0, whole=True, unlimited=True)
PART, NOT_NEGATIVE_COUNT = Bound(0.0, 1.0), Bound(0.0, whole=True)
CAP, TIME = Bound(1.0, unlimited=True), Bound(0.0, above=True, unlimited=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """How a model is served: hardware, price, traffic, limits; numbers may be arrays, which broadcast with models and GPU counts.

    Raises InputError for what no server can do, when it is made.
    """

    gpu: Gpu
    usd_per_gpu_hour: Annotated[Real, POSITIVE]
    prompt_tokens: Annotated[Real, AT_LEAST_ONE]  # p, mean prompt length
    output_tokens: Annotated[Real, AT_LEAST_ONE]  # n, mean output length
    max_gpus: int = 8  # of one replica
    tensor_parallel_degrees: tuple[int, ...] | None = None  # GPU counts to look at; None: powers of two (`degrees`)
    max_num_seqs: Annotated[Real | None, CAP] = None  # None: vLLM's (`batch_cap`); inf: memory alone limits the batch
    memory_fraction: Annotated[Real, SHARE] = 0.9  # for weights, reserve and cache: vLLM's gpu_memory_utilization
    utilization: Annotated[Real, SHARE] = 1.0  # share of the plateau throughput that traffic uses
    weight_bytes_per_param: Annotated[Real, POSITIVE] = 2.0  # bf16
    kv_bytes_per_element: Annotated[Real, POSITIVE] = 2.0  # bf16
    weights: str | None = None  # name of the weights' number format, such as nvfp4; None: the one with such bytes
    # Of each GPU, for activations and the runtime; None: the median of vLLM's logs (`reserved_bytes`).
    reserve_bytes: Annotated[Real | None, NOT_NEGATIVE] = None
    expert_parallel: Annotated[Real, WAYS] = 1.0  # GPUs that split whole experts; 1: each is split; inf: all of a stage
    # So many groups of GPUs hold attention and dense layers whole and serve their own share of the requests; the experts
    # are spread over all of them.
    attention_dp: Annotated[Real, COUNT] = 1.0
    # Whether `cheapest` and `cost` also look at a group of attention for each part that a cache can be cut into, with whole
    # experts over all GPUs, where tensor parallelism alone would hold the cache more than once.
    searches_groups: bool = False
    pipeline_parallel: Annotated[Real, COUNT] = 1.0  # stages of consecutive layers, each on as many GPUs
    replicas: Annotated[Real, COUNT] = 1.0  # copies of the model, each on GPUs of its own
    scheduling: str = "separate"  # a name of SCHEDULING
    # Tokens that a pass computes at most, prompts and drafted tokens included; None: no bound (closed loops and simulated
    # runs: the engine's own).
    max_num_batched_tokens: Annotated[Real | None, AT_LEAST_ONE] = None
    prefix_hit: Annotated[Real, PART] = 0.0  # share of prompt tokens that the cache holds, once for all requests
    accepted_tokens: Annotated[Real, NOT_NEGATIVE] = 0.0  # drafted ones that a pass keeps on average; 0: no drafts
    draft_tokens: Annotated[Real | None, NOT_NEGATIVE_COUNT] = None  # None: accepted_tokens, rounded up
    batching: str = "cheapest"  # a name of BATCHES
    engine: Engine = NO_ENGINE  # how it admits requests, holds prompts back and launches their kernels
    host: HostOverhead = NO_OVERHEAD  # the CPU side of the server, added to the kernels of every pass
    max_ttft_s: Annotated[Real | None, TIME] = None  # longest time to first token; None: no limit
    max_tpot_s: Annotated[Real | None, TIME] = None  # longest time per output token; None: no limit
    # The distribution of lengths, as `with_traffic` takes it; without it every request has the mean lengths.
    context_tokens: Annotated[Real | None, AT_LEAST_ONE] = None  # held on average while served; None: p + n/2
    longest_request_tokens: Annotated[Real | None, AT_LEAST_ONE] = None  # must fit beside the weights; None: p + n
    prompt_nodes: tuple[tuple[float, float], ...] = ()  # (length, share) that stand for all prompts; (): the mean

    def __post_init__(self) -> None:
        check_bounds(self, where="deployment")
        degrees(self)
        for name, known in (("scheduling", SCHEDULING), ("batching", BATCHES)):
            if getattr(self, name) not in known:
                raise unknown_name(name, getattr(self, name), known, where="deployment")
        if np.any(np.asarray(self.longest_tokens) < self.held_tokens):
            what = "longest_request_tokens must not be below what a request holds on average"
            raise InputError(what, where="deployment")
        if np.any(np.asarray(self.accepted_tokens) > self.drafted_tokens):
            what = f"accepted_tokens {np.max(self.accepted_tokens):g} are more than are drafted"
            raise InputError(what, where="deployment", next_step="raise draft_tokens, or leave it out")

    @property
    def held_tokens(self) -> Real:
        """Tokens that a request holds on average while it is served."""
        return self.prompt_tokens + self.output_tokens / 2 if self.context_tokens is None else self.context_tokens

    @property
    def longest_tokens(self) -> Real:
        """Tokens of the longest request."""
        stated = self.longest_request_tokens
        return self.prompt_tokens + self.output_tokens if stated is None else stated

    @property
    def tokens_a_pass(self) -> FloatArray:
        """Tokens that a pass gives to a request on average: one, and the drafted ones that are kept."""
        return 1.0 + np.asarray(self.accepted_tokens)

    @property
    def drafted_tokens(self) -> FloatArray:
        """Tokens that are drafted for each request and verified by one pass."""
        return np.asarray(np.ceil(self.accepted_tokens) if self.draft_tokens is None else self.draft_tokens)

    @property
    def batch_cap(self) -> Real:
        """Most concurrent requests of a replica: as stated, or vLLM's own cap for the GPU, of each attention group."""
        return self.gpu.default_max_num_seqs * self.attention_dp if self.max_num_seqs is None else self.max_num_seqs

    @property
    def pass_tokens(self) -> int:
        """Most tokens of a pass of one attention group: as stated, or as the engine has it, vLLM's API server by the GPU."""
        for stated in (self.max_num_batched_tokens, self.engine.max_num_batched_tokens):
            if stated is not None:
                return int(np.asarray(stated))
        entries = sorted(catalogue.read("servers.toml")["vllm_api_server"], key=lambda entry: entry["max_num_seqs"])
        fitting = [entry for entry in entries if entry["max_num_seqs"] <= self.gpu.default_max_num_seqs]
        return int((fitting or entries[:1])[-1]["max_num_batched_tokens"])

    @property
    def reserved_bytes(self) -> Real:
        """Bytes of each GPU that activations and the runtime take."""
        return measured_reserve_bytes() if self.reserve_bytes is None else self.reserve_bytes

    def keeps_limits(self, ttft_s: float, tpot_s: float | None) -> bool:
        """Whether a time to first token and one per output token are within the limits of one deployment."""
        limits = ((ttft_s, self.max_ttft_s), (tpot_s, self.max_tpot_s))
        return all(most_s is None or (time_s or 0.0) <= most_s for time_s, most_s in limits)

    def stage_gpus(self, gpus: Real) -> FloatArray:
        """GPUs of one pipeline stage of a replica of so many."""
        return np.asarray(gpus, dtype=np.float64) / self.pipeline_parallel

    def expert_ways(self, gpus: Real) -> FloatArray:
        """GPUs of a stage that split whole experts, of a replica of so many GPUs."""
        ways = np.asarray(self.expert_parallel, dtype=np.float64)
        return np.where(np.isinf(ways), self.stage_gpus(gpus), ways) if np.any(np.isinf(ways)) else ways


ARRAY_FIELDS = tuple(bounds_of(Deployment))


def degrees(deployment: Deployment) -> tuple[int, ...]:
    """The GPU counts of one replica to look at, ascending: those stated, or powers of two, up to `max_gpus`.

    Raises InputError for a degree that is no whole number of at least 1, and where none is left.
    """
    most, stated = deployment.max_gpus, deployment.tensor_parallel_degrees
    if not (1 <= most <= MOST_GPUS and most == int(most)):
        raise InputError(f"max_gpus must be a whole number from 1 to {MOST_GPUS}, not {most:g}", where="deployment")
    if stated is None:
        return tuple(2**power for power in range(int(most).bit_length()))
    if (wrong := next((degree for degree in stated if COUNT.bad(degree) is not None), None)) is not None:
        what = f"tensor_parallel_degrees must be whole numbers of at least 1, not {wrong:g}"
        raise InputError(what, where="deployment")
    within = tuple(sorted({int(degree) for degree in stated if degree <= most}))
    if not within:
        what = f"none of tensor_parallel_degrees is within max_gpus = {most}"
        raise InputError(what, where="deployment", next_step="raise max_gpus, or leave tensor_parallel_degrees out")
    return within


def with_traffic(deployment: Deployment, traffic: Traffic) -> Deployment:
    """The same deployment under the lengths, and their distribution, of `traffic`."""
    names = ("prompt_tokens", "output_tokens", "context_tokens", "longest_request_tokens", "prompt_nodes")
    return replace(deployment, **{name: getattr(traffic, name) for name in names})


# In words, and as records state it.


def question_record(model: Architecture, deployment: Deployment, source: LatencySource) -> dict[str, object]:
    """Model, hardware, traffic, formats and kernels of an answer; what was not stated is absent."""
    d = deployment
    record: dict[str, object] = {"model": model.name, "gpu": d.gpu.name, "kv_cache": cache_format(d)}
    stated = {name: getattr(d, name) for name in STATED} | {"max_num_seqs": d.batch_cap}
    for name, value in stated.items():
        number = value if value is None or isinstance(value, str) else float(np.asarray(value))
        if number not in (None, math.inf, 0.0):
            record[name] = number
    engine, version = engine_of(source)
    return record | ({} if engine is None else {"engine": engine, "engine_version": version})


def weight_format(deployment: Deployment) -> str:
    """The weights' number format by name, or its bytes an element."""
    held = float(np.asarray(deployment.weight_bytes_per_param))
    return deployment.weights or format_of_bytes("weights", held) or f"{held:g} bytes"


def cache_format(deployment: Deployment) -> str:
    """The KV cache's number format by name, or its bytes an element."""
    held = float(np.asarray(deployment.kv_bytes_per_element))
    return format_of_bytes("kv_cache", held) or f"{held:g} bytes"


def engine_of(source: LatencySource) -> tuple[str | None, str | None]:
    """Engine and version whose kernels were measured; None for another kind of source."""
    backend, tables = getattr(source, "backend", None), getattr(source, "tables", None)
    return (None, None) if backend is None or tables is None else (str(backend), str(tables[2]))


def latency_text(source: LatencySource) -> str:
    """Where latencies come from, in words."""
    engine, version = engine_of(source)
    return source.name if engine is None else f"measured kernels of {engine} {version} ({source.name})"


def slow_for_use(deployment: Deployment, ttft_s: float | None, tpot_s: float | None, what: str = "") -> list[str]:
    """A warning for latencies above MOST_TTFT_S and MOST_TPOT_S that no limit was stated for; `what` names the server."""
    d, late = deployment, dict[str, str]()
    for kind, took_s, most_s, limit_s, option in (
        ("TPOT", tpot_s, MOST_TPOT_S, d.max_tpot_s, "--max-tpot 100ms"),
        ("TTFT", ttft_s, MOST_TTFT_S, d.max_ttft_s, "--max-ttft 10s"),
    ):
        if limit_s is None and took_s is not None and took_s > most_s:
            late[option] = f"{kind} {format_seconds(took_s)} (above {format_seconds(most_s)})"
    if not late:
        return []
    return [f"Too slow for interactive use{what}: {', '.join(late.values())}; {' '.join(late)} sets a limit."]
