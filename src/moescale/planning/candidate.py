"""Models that a budget can train, with their loss and serving cost: the rows of a plan's tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from moescale.latency import LatencySource
from moescale.models.family import ModelFamily, architecture, n_active, n_total
from moescale.models.rounding import Buildable
from moescale.planning.allocation import Allocation, largest_within_cost
from moescale.planning.total_cost import LifetimeCost
from moescale.serving.deployment import Deployment, degrees
from moescale.serving.gpu_counts import cheapest
from moescale.serving.steady_state import REASONS, Serving
from moescale.typing import FloatArray

PRICED = ("usd_per_mtok", "cost_ratio")  # figures of a model that is served


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One model that the budget can train: what it is, its loss, what serving it costs; None where not applicable.

    `size_ratio` is to that expert count's own loss-optimal size, the `_to_base` ratios are to the base model. Intervals
    hold 90% of the law's draws.
    """

    experts: float
    n_params: float | None = None  # dense-equivalent N of the law
    n_params_active: float | None = None  # under the law's convention
    n_params_total: float | None = None
    tokens: float | None = None
    loss: float | None = None
    usd_per_mtok: float | None = None
    gpus: int | None = None
    batch: float | None = None
    size_ratio: float | None = None
    size_ratio_to_base: float | None = None
    active_ratio_to_base: float | None = None
    cost_ratio: float | None = None
    lifetime_usd: float | None = None  # serving the lifetime tokens
    training_flops: float | None = None  # that its tokens take: the whole budget, where tokens do not run out first
    training_usd: float | None = None
    serving_usd: float | None = None
    total_usd: float | None = None
    infeasible: str | None = None
    intervals: dict[str, tuple[float, float]] | None = None

    def to_dict(self) -> dict[str, object]:
        """JSON-ready values; keys that do not apply are absent."""
        record = {f.name: getattr(self, f.name) for f in fields(self)}
        return {k: plain(v) for k, v in record.items() if v is not None}

    def with_intervals(self, intervals: dict[str, tuple[float, float]]) -> Candidate:
        """The same model with intervals, where there are any; of what it costs only where it is served."""
        known = intervals if self.infeasible is None else {k: v for k, v in intervals.items() if k not in PRICED}
        return replace(self, intervals=known) if known and self.n_params is not None else self

    def alone(self, *, size_ratio: float) -> Candidate:
        """The same model without intervals and without a base to compare with."""
        return replace(
            self,
            size_ratio=size_ratio,
            intervals=None,
            size_ratio_to_base=None,
            active_ratio_to_base=None,
            cost_ratio=None,
        )


def plain(value: object) -> object:
    """JSON-ready form of a field: whole expert counts as integers, intervals as lists."""
    if isinstance(value, dict):
        return {k: list(v) for k, v in value.items()}  # pyright: ignore[reportUnknownArgumentType]
    if isinstance(value, np.floating | float) and float(value).is_integer() and abs(value) < 1e6:
        return int(value)
    return value


@dataclass(frozen=True, slots=True)
class CostCurve:
    """Models of one expert count that spend a whole budget, by rising size: arrays (n,); cost is NaN where nothing serves."""

    experts: float
    n_params: FloatArray
    tokens: FloatArray
    loss: FloatArray
    usd_per_mtok: FloatArray
    gpus: FloatArray | None = None  # of the cheapest deployment; 0 where nothing serves

    def to_dict(self) -> dict[str, object]:
        """The served models as lists of one length, rounded to what a plot needs."""
        served = np.isfinite(self.usd_per_mtok)
        columns = {name: getattr(self, name)[served] for name in ("n_params", "tokens", "loss", "usd_per_mtok")}
        record: dict[str, object] = {"experts": plain(self.experts)}
        record |= {name: [float(f"{x:.6g}") for x in values] for name, values in columns.items()}
        if self.gpus is not None:
            record["gpus"] = [int(x) for x in self.gpus[served]]
        return record


@dataclass(frozen=True, slots=True)
class ServingCurves:
    """Serving cost of m expert counts over s rising sizes, at the cheapest GPU count; NaN (0 GPUs) where nothing serves."""

    experts: FloatArray  # (m,)
    n_params: FloatArray  # (s,), dense-equivalent
    usd_per_mtok: FloatArray  # (m, s)
    gpus: FloatArray  # (m, s)
    gpu: str
    max_gpus: int
    prompt_tokens: float
    output_tokens: float


@dataclass(frozen=True, slots=True)
class LargestModels:
    """The largest size of m expert counts that serves within each of c rising costs; NaN (0 GPUs) where there is none."""

    experts: FloatArray  # (m,)
    usd_per_mtok: FloatArray  # (c,)
    n_params: FloatArray  # (m, c), dense-equivalent
    gpus: FloatArray  # (m, c)
    gpu: str
    max_gpus: int
    prompt_tokens: float
    output_tokens: float


@dataclass(frozen=True, slots=True)
class Costs:
    """Serving cost as a function of size and experts, for one law's family and one deployment.

    With a `shape` it is that of one built model, whatever size is asked for.
    """

    family: ModelFamily
    latency: LatencySource
    deployment: Deployment
    kv_heads: float | None = None  # of the cache alone, as in the paper's reproduction; else the family's own
    vocab_size: int | None = None  # rows of tables that are served beside what N counts; None: those that N counts
    shape: Buildable | None = None

    def usd_per_mtok(self, n_params: FloatArray, experts: FloatArray) -> FloatArray:
        """Dollars per million tokens at the cheapest GPU count; infinite where none serves. Arguments of one shape."""
        return self.serving(n_params, experts).usd_per_mtok

    def serving(self, n_params: FloatArray, experts: FloatArray) -> Serving:
        """All serving figures at the cheapest GPU count. Arguments of one shape."""
        if self.shape is not None:
            built = cheapest(self.shape.architecture(), self.latency, self.deployment, every=True)
            return Serving(**{f.name: np.broadcast_to(getattr(built, f.name), n_params.shape) for f in fields(built)})
        shapes = architecture(self.family, n_params, experts, kv_heads=self.kv_heads, vocab_size=self.vocab_size)
        return cheapest(shapes, self.latency, self.deployment)


def candidates(
    allocation: Allocation,
    costs: Costs,
    *,
    lifetime_tokens: float | None = None,
    unreachable: str | Sequence[str] = "",
) -> list[Candidate]:
    """Records of an allocation of shape (m,); `unreachable` says why an entry is NaN, for all of them or for each."""
    known = np.where(np.isfinite(allocation.n_params), allocation.n_params, 1e9)
    served = costs.serving(known, allocation.experts)
    active = n_active(costs.family, known, allocation.experts)
    total = n_total(costs.family, known, allocation.experts)
    records: list[Candidate] = []
    for i, e in enumerate(allocation.experts):
        if not np.isfinite(allocation.n_params[i]):
            reason = unreachable if isinstance(unreachable, str) else unreachable[i]
            records.append(Candidate(experts=float(e), infeasible=reason))
            continue
        record = Candidate(
            experts=float(e),
            n_params=float(known[i]),
            n_params_active=float(active[i]),
            n_params_total=float(total[i]),
            tokens=float(allocation.tokens[i]),
            loss=float(allocation.loss[i]),
            training_flops=6.0 * float(active[i]) * float(allocation.tokens[i]),
        )
        usd = float(served.usd_per_mtok[i])
        if math.isfinite(usd):
            lifetime = None if lifetime_tokens is None else usd * lifetime_tokens / 1e6
            record = replace(
                record, usd_per_mtok=usd, gpus=int(served.gpus[i]), batch=float(served.batch[i]), lifetime_usd=lifetime
            )
        else:
            reason = REASONS[int(served.infeasible[i])]
            record = replace(
                record, infeasible=f"{reason} of {degrees(costs.deployment)[-1]} x {costs.deployment.gpu.name}"
            )
        records.append(record)
    return records


def lifetime_candidates(found: LifetimeCost, costs: Costs, unreachable: Sequence[str]) -> list[Candidate]:
    """Records of lifetime models of shape (m,), with the dollars of their lives."""
    allocation = Allocation(found.experts, found.n_params, found.tokens, found.loss)
    return [
        replace(
            record,
            training_flops=float(found.training_flops[i]),
            training_usd=float(found.training_usd[i]),
            serving_usd=float(found.serving_usd[i]),
            total_usd=float(found.total_usd[i]),
        )
        if record.infeasible is None
        else record
        for i, record in enumerate(candidates(allocation, costs, unreachable=unreachable))
    ]


def with_ratios(records: list[Candidate], optima: Sequence[Candidate], base: Candidate) -> list[Candidate]:
    """The records with their sizes and costs set against their own optimum and the base model."""

    def ratio(over: float | None, under: float | None) -> float | None:
        return None if over is None or under is None else over / under

    own = {c.experts: c.n_params for c in optima}
    return [
        replace(
            c,
            size_ratio=ratio(c.n_params, own[c.experts]),
            size_ratio_to_base=ratio(c.n_params, base.n_params),
            active_ratio_to_base=ratio(c.n_params_active, base.n_params_active),
            cost_ratio=ratio(c.usd_per_mtok, base.usd_per_mtok),
        )
        for c in records
    ]


def serving_curves(costs: Costs, experts: FloatArray, n_params: FloatArray) -> ServingCurves:
    """Serving cost of expert counts (m,) at sizes (s,), in one call of the latency source."""
    n, e = np.meshgrid(np.sort(n_params), experts)
    found = costs.serving(n, e)
    served = np.isfinite(found.usd_per_mtok)
    d = costs.deployment
    return ServingCurves(
        experts,
        np.sort(n_params),
        np.where(served, found.usd_per_mtok, np.nan),
        np.where(served, found.gpus, 0.0),
        d.gpu.name,
        d.max_gpus,
        float(d.prompt_tokens),
        float(d.output_tokens),
    )


def largest_models(costs: Costs, experts: FloatArray, usd_per_mtok: FloatArray) -> LargestModels:
    """The largest size of each expert count (m,) that serves within each cost (c,)."""
    limit, e = np.meshgrid(np.sort(usd_per_mtok), experts)
    n = largest_within_cost(e, limit, costs.usd_per_mtok)
    gpus = costs.serving(np.where(np.isnan(n), 1e9, n), e).gpus
    d = costs.deployment
    return LargestModels(
        experts,
        np.sort(usd_per_mtok),
        n,
        np.where(np.isnan(n), 0.0, gpus),
        d.gpu.name,
        d.max_gpus,
        float(d.prompt_tokens),
        float(d.output_tokens),
    )
