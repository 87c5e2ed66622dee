"""All the ways to serve one model: GPUs, number formats and batches, with dollars per token against time per token.

A platform is a kind of GPU with the number formats of weights and cache. On each platform every GPU count and
expert-parallel degree is served at every cap of the batch, in one call of `serving.serve`. A larger batch shares the
weights among more requests, so a token costs less and takes longer: the points that no other beats in both are the
Pareto set. Number formats are compared by cost and time alone; what they do to quality is not known here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from moescale.errors import InfeasibleError, InputError, MoescaleError
from moescale.hardware.gpus import Gpu
from moescale.hardware.precisions import Precision
from moescale.io.records import record
from moescale.latency import LatencySource, common_shape
from moescale.models.architecture import Architecture
from moescale.models.parameters import count_parameters
from moescale.models.quantisation import with_usual_shares
from moescale.serving.deployment import ARRAY_FIELDS, Deployment, degrees
from moescale.serving.pareto import pareto
from moescale.serving.reasons import infeasible_reason
from moescale.serving.steady_state import LIMITS, REASONS, Reason, Serving, batch_by_memory, serve
from moescale.typing import FloatArray

BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.intp]

MOST_CONFIGURATIONS = 500_000  # of one call: a table of them is still read and drawn in seconds
SAME_BATCH = 1e-7  # relative: two caps that both exceed what memory or a latency limit allows give one point


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """One kind of GPU with the number formats of weights and cache, its price, and the source of its latencies."""

    gpu: Gpu
    usd_per_gpu_hour: float
    weights: Precision
    kv_cache: Precision
    latency: LatencySource

    @property
    def name(self) -> str:
        """For a reader, such as `h100-sxm, fp8 weights, bf16 cache`."""
        return f"{self.gpu.name}, {self.weights.name} weights, {self.kv_cache.name} cache"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Configurations without an answer, and why; what is None stands for all of its kind."""

    reason: str
    cause: str | None = None  # the kind of reason, one of serving.REASONS: reasons with other numbers have the same
    gpu: str | None = None
    weights: str | None = None
    kv_cache: str | None = None
    gpus: int | None = None  # of the whole deployment
    expert_parallel: int | None = None
    max_num_seqs: float | None = None  # from this cap on; None: at every cap

    def to_dict(self) -> dict[str, object]:
        """JSON-ready values; keys that do not apply are absent."""
        return record(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatingPoints:
    """Ways to serve one model: arrays of one entry a point, and the Pareto set among them.

    A cap that gives the same batch as a smaller one (memory or a latency limit binds first) is not a point of its own.
    """

    model: Architecture
    deployment: Deployment  # what all points share; GPU, price and number formats are those of the platforms
    platforms: tuple[Platform, ...]
    platform: IntArray  # index into platforms
    tensor_parallel: FloatArray  # GPUs of one replica
    expert_parallel: FloatArray
    max_num_seqs: FloatArray  # cap of the batch
    batch: FloatArray  # concurrent requests of one replica, a time average
    limited_by: IntArray  # index into serving.LIMITS
    prefill_s: FloatArray
    decode_s: FloatArray
    tpot_s: FloatArray  # time per output token of a request
    ttft_s: FloatArray  # time to first token of a request that finds a place
    throughput_tok_s: FloatArray  # output tokens a second of the whole deployment
    usd_per_mtok: FloatArray  # dollars per million output tokens
    weight_bytes_per_gpu: FloatArray
    kv_bytes_per_token: FloatArray
    pareto: IntArray  # points that no other beats in both usd_per_mtok and tpot_s, by rising tpot_s
    left_out: tuple[LeftOut, ...]
    n_configurations: int  # that were evaluated

    def __len__(self) -> int:
        return self.tpot_s.size

    @property
    def gpus(self) -> FloatArray:
        """GPUs of the whole deployment."""
        return self.tensor_parallel * np.asarray(self.deployment.replicas)

    @property
    def tok_s_per_user(self) -> FloatArray:
        """Output tokens a second that one request receives: 1 / tpot_s."""
        return 1.0 / self.tpot_s

    def frontier(self, among: BoolArray) -> IntArray:
        """The Pareto set among the points of a mask (n,), by rising tpot_s: the fastest first, the cheapest last."""
        mine = np.flatnonzero(among)
        return mine[pareto(self.tpot_s[mine], self.usd_per_mtok[mine])]

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """Every point as named columns (n,), as a table file holds them; units are in the names."""
        on, platforms, replicas = self.platform, self.platforms, int(np.asarray(self.deployment.replicas))
        is_pareto = np.zeros(on.shape, dtype=np.bool_)
        is_pareto[self.pareto] = True
        return {
            "gpu": np.asarray([p.gpu.name for p in platforms])[on],
            "weights": np.asarray([p.weights.name for p in platforms])[on],
            "kv_cache": np.asarray([p.kv_cache.name for p in platforms])[on],
            "gpus": self.gpus.astype(np.int64),
            "tensor_parallel": self.tensor_parallel.astype(np.int64),
            "expert_parallel": self.expert_parallel.astype(np.int64),
            "replicas": np.full(on.shape, replicas),
            "max_num_seqs": self.max_num_seqs,
            "batch": self.batch,
            "limited_by": np.asarray(LIMITS)[self.limited_by],
            "usd_per_mtok": self.usd_per_mtok,
            "tpot_s": self.tpot_s,
            "tok_s_per_user": self.tok_s_per_user,
            "ttft_s": self.ttft_s,
            "prefill_s": self.prefill_s,
            "decode_s": self.decode_s,
            "throughput_tok_s": self.throughput_tok_s,
            "usd_per_gpu_hour": np.asarray([p.usd_per_gpu_hour for p in platforms])[on],
            "weight_bytes_per_gpu": self.weight_bytes_per_gpu,
            "kv_bytes_per_token": self.kv_bytes_per_token,
            "latency_source": np.asarray([p.latency.name for p in platforms])[on],
            "pareto": is_pareto,
        }

    def to_dict(self) -> dict[str, object]:
        """JSON-ready: `points` and `pareto` as records, `left_out` with reasons, and what all points share."""
        columns = {name: values.tolist() for name, values in self.columns().items()}
        points = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        parameters, d = count_parameters(self.model), self.deployment
        return {
            "n_params_total": float(parameters.total),
            "n_params_active": float(parameters.active),
            "prompt_tokens": float(d.prompt_tokens),
            "output_tokens": float(d.output_tokens),
            "utilization": float(d.utilization),
            "n_configurations": self.n_configurations,
            "pareto": [points[i] for i in self.pareto.tolist()],
            "points": points,
            "left_out": [entry.to_dict() for entry in self.left_out],
        }


SHARED = {f.name for f in fields(OperatingPoints)} & {f.name for f in fields(Serving)} - {"limited_by"}
"""Columns of points that are taken as they are served."""


def find_platforms(
    gpus: Iterable[tuple[Gpu, Callable[[], float]]],
    weights: Sequence[Precision],
    kv_cache: Sequence[Precision],
    source: Callable[[Deployment], LatencySource],
    deployment: Deployment,
) -> tuple[tuple[Platform, ...], tuple[LeftOut, ...]]:
    """Every GPU with every pair of number formats that `source` answers for, and why the others are left out.

    `gpus` are pairs of a GPU and a function that tells its price an hour; `source` gets `deployment` with GPU and number
    formats in place. Where either raises a MoescaleError, that is the reason; the first is raised where nothing is left.
    """
    found, left_out, errors = list[Platform](), list[LeftOut](), list[MoescaleError]()
    formats = list(product(weights, kv_cache))
    for gpu, price in gpus:
        refused: list[LeftOut] = []
        for w, kv in formats:
            try:
                usd = price()
                latency = source(_on(deployment, gpu, usd, w, kv))
                found.append(Platform(gpu=gpu, usd_per_gpu_hour=usd, weights=w, kv_cache=kv, latency=latency))
            except MoescaleError as error:
                errors.append(error)
                refused.append(LeftOut(reason=error.what, gpu=gpu.name, weights=w.name, kv_cache=kv.name))
        same = len({entry.reason for entry in refused}) == 1 and len(refused) == len(formats)
        left_out += [LeftOut(reason=refused[0].reason, gpu=gpu.name)] if same else refused
    if errors and not found:
        raise errors[0]
    return tuple(found), tuple(left_out)


def batch_grid(most: float, cap: float = math.inf) -> FloatArray:
    """Caps 1, 2, 3, 4, 6, 8, 12, 16 .. up to the first that reaches `most`, or up to `cap` where that is smaller."""
    end = max(min(most, cap), 1.0)
    steps = np.unique(np.outer(np.exp2(np.arange(math.ceil(math.log2(end)) + 1)), (1.0, 1.5)))
    steps = steps[steps == np.floor(steps)]
    return np.append(steps[steps < end], min(steps[steps >= end][0], cap))


def operating_points(
    model: Architecture,
    platforms: Sequence[Platform],
    deployment: Deployment,
    *,
    gpus: Sequence[int] | None = None,
    batch_caps: Sequence[float] | FloatArray | None = None,
    expert_parallel: Sequence[int] = (1,),
    left_out: Sequence[LeftOut] = (),
) -> OperatingPoints:
    """Every GPU count (default: `serving.degrees`), expert-parallel degree and batch cap on every platform.

    Counts are of one replica. `batch_caps` default to `batch_grid` up to what memory holds; deployment.max_num_seqs is
    above none of them where it is stated: a GPU's own default leaves no batch out.
    GPU, price and number formats of `deployment` are replaced by each platform's; its other numbers must be single ones.
    `left_out` is handed on, beside what is left out here.
    Raises InputError for arrays, for counts, degrees or caps below 1, and for more than MOST_CONFIGURATIONS of them;
    InfeasibleError where no configuration has an answer.
    """
    if common_shape(model, *(getattr(deployment, n) for n in ARRAY_FIELDS if getattr(deployment, n) is not None)):
        what = "operating points are those of one model and one deployment, not of arrays"
        raise InputError(what, next_step="use serve()")
    counts = _whole("gpus", degrees(deployment) if gpus is None else gpus)
    ways = _whole("expert_parallel", expert_parallel)
    if not platforms:
        raise InfeasibleError(_why_none(left_out), next_step="take another GPU, or the roofline as the latency source")
    base = replace(deployment, expert_parallel=ways.reshape(-1, 1))
    rooms = [_on(base, p.gpu, p.usd_per_gpu_hour, p.weights, p.kv_cache) for p in platforms]
    caps = _batch_caps(model, counts, rooms, batch_caps)
    total = len(platforms) * counts.size * ways.size * caps.size
    if total > MOST_CONFIGURATIONS:
        sizes = f"{len(platforms)} platforms x {counts.size} GPU counts x {ways.size} expert-parallel degrees"
        what = f"{sizes} x {caps.size} batches are {total:,} configurations, more than {MOST_CONFIGURATIONS:,}"
        raise InputError(what, next_step="use fewer GPU counts, or split them into several calls")
    columns, missing = list[dict[str, npt.NDArray[Any]]](), list(left_out)
    for index, (platform, room) in enumerate(zip(platforms, rooms, strict=True)):
        d = replace(room, max_num_seqs=caps, batching="largest")  # every batch is a point of its own
        held = with_usual_shares(model, platform.weights.name)
        served = serve(held, counts.reshape(-1, 1, 1), platform.latency, d)  # (counts, ways, caps)
        missing += _missing(served, held, d, platform, first=index == 0)
        kept = served.infeasible == Reason.FEASIBLE  # and each batch once
        kept[..., 1:] &= served.batch[..., 1:] > served.batch[..., :-1] * (1.0 + SAME_BATCH)
        taken: dict[str, npt.NDArray[Any]] = {name: getattr(served, name) for name in SHARED} | {
            "platform": np.full(kept.shape, index, dtype=np.intp),
            "tensor_parallel": served.gpus,
            "expert_parallel": np.broadcast_to(d.expert_parallel, kept.shape),
            "max_num_seqs": np.broadcast_to(caps, kept.shape),
            "limited_by": served.limited_by.astype(np.intp),
        }
        columns.append({name: values[kept] for name, values in taken.items()})
    flat = {name: np.concatenate([part[name] for part in columns]) for name in columns[0]}
    if not flat["platform"].size:
        relax = "allow more GPUs, take a GPU with more memory, shorter requests, a looser latency limit"
        roofline = "or use the roofline where a latency source has no data"
        raise InfeasibleError(_why_none(missing), next_step=f"{relax}, {roofline}")
    return OperatingPoints(
        model=model,
        deployment=deployment,
        platforms=tuple(platforms),
        **flat,
        pareto=pareto(flat["tpot_s"], flat["usd_per_mtok"]),
        left_out=tuple(missing),
        n_configurations=total,
    )


def _batch_caps(
    model: Architecture, counts: FloatArray, rooms: Sequence[Deployment], stated: Sequence[float] | FloatArray | None
) -> FloatArray:
    """The stated caps or the grid up to what memory holds, none above max_num_seqs; ascending, each once."""
    highest = rooms[0].max_num_seqs
    cap = math.inf if highest is None else float(highest)
    if stated is None:
        most = max(float(np.max(batch_by_memory(model, counts.reshape(-1, 1, 1), room))) for room in rooms)
        return batch_grid(most, cap)
    caps = np.asarray(stated, dtype=np.float64)
    if not caps.size or not np.all((caps >= 1) & (caps < np.inf)):
        what = "caps of the batch must be finite and at least 1"
        raise InputError(what, where="batch_caps", next_step="such as 1, 8, 64")
    return np.unique(np.minimum(caps, cap))


def _on(
    deployment: Deployment, gpu: Gpu, usd_per_gpu_hour: float, weights: Precision, kv_cache: Precision
) -> Deployment:
    return replace(
        deployment,
        gpu=gpu,
        usd_per_gpu_hour=usd_per_gpu_hour,
        weight_bytes_per_param=weights.bytes_per_element,
        weights=weights.name,
        kv_bytes_per_element=kv_cache.bytes_per_element,
    )


def _whole(name: str, values: Sequence[int]) -> FloatArray:
    numbers = np.unique(np.asarray(values, dtype=np.float64))
    if not numbers.size or not np.all((numbers >= 1) & (numbers == np.floor(numbers)) & (numbers < np.inf)):
        raise InputError("takes whole numbers of at least 1", where=name, next_step="such as 1, 2, 4, 8")
    return numbers


def _missing(
    served: Serving, model: Architecture, deployment: Deployment, platform: Platform, *, first: bool
) -> list[LeftOut]:
    """What of one platform's (counts, ways, caps) has no answer; what no platform changes is told with the first."""
    reasons, found = served.infeasible.astype(int), list[LeftOut]()
    replicas, caps = int(np.asarray(deployment.replicas)), np.asarray(deployment.max_num_seqs)
    ways = np.asarray(deployment.expert_parallel).ravel()
    impossible = np.all(reasons[..., 0] == Reason.EXPERT_PARALLEL, axis=0)
    for i, j in np.ndindex(*reasons.shape[:2]):
        lacking = np.flatnonzero(reasons[i, j])
        if not lacking.size:
            continue
        at = int(lacking[0])
        reason, way, count = Reason(reasons[i, j, at]), int(ways[j]), int(served.gpus[i, j, at]) * replicas
        text = infeasible_reason(served, model, deployment, (i, j, at)) or ""
        entry = LeftOut(reason=text, cause=REASONS[reason])
        if reason is Reason.HEADS:  # told once for all degrees
            found += [replace(entry, gpus=count)] if first and j == 0 else []
        elif reason is Reason.EXPERT_PARALLEL:  # a degree that suits some counts only is no news
            found += [replace(entry, expert_parallel=way)] if first and i == 0 and impossible[j] else []
        else:
            formats = {"weights": platform.weights.name, "kv_cache": platform.kv_cache.name}
            entry = replace(entry, gpu=platform.gpu.name, **formats, gpus=count)
            entry = replace(entry, expert_parallel=way) if way > 1 else entry
            found.append(replace(entry, max_num_seqs=float(caps[at])) if at else entry)
    return found


def _why_none(left_out: Sequence[LeftOut]) -> str:
    """Why nothing has an answer: of each GPU and cause the reason of the largest; heads aside, if others failed."""
    entries = [entry for entry in left_out if entry.gpu is not None] or list(left_out)
    if not entries:
        return "there is no platform to serve on"
    named: list[str] = []
    for entry in {(entry.gpu, entry.cause): entry for entry in entries}.values():  # a later one takes the place
        formats = (entry.weights and f"{entry.weights} weights", entry.kv_cache and f"{entry.kv_cache} cache")
        where = ", ".join(part for part in (entry.gpu, *formats) if part)
        named.append(f"{where}: {entry.reason}" if where else entry.reason)
    return f"no configuration is feasible: {'; '.join(named)}"
