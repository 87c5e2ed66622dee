"""Models that a budget can train, with their loss and serving cost: the rows of a plan's tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from moescale.io.records import record
from moescale.latency import LatencySource
from moescale.models.architecture import Architecture
from moescale.models.family import ModelFamily, architecture, n_active, n_total
from moescale.models.rounding import Buildable
from moescale.planning.allocation import Allocation
from moescale.planning.scores import Score
from moescale.planning.total_cost import LifetimeCost
from moescale.serving.deployment import Deployment, degrees
from moescale.serving.disaggregated import apart
from moescale.serving.gpu_counts import cheapest
from moescale.serving.steady_state import REASONS, Serving
from moescale.typing import FloatArray

KNOWN_SIZE = 1e9  # stands for a size that there is not

Limits = dict[str, tuple[float, float]]  # a figure's name -> the interval that holds 90% of the draws


def whole(value: object) -> object:
    """A whole number as an integer, anything else as it is."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 1e6 else value


class WholeRecord:
    """Derived dataclasses are records in JSON whose whole numbers, such as expert counts, are integers."""

    __slots__ = ()

    def to_dict(self) -> dict[str, object]:
        """The record as JSON-ready values; keys that do not apply are absent."""
        return {name: whole(value) for name, value in record(self).items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreachable(WholeRecord):
    """An expert count without a model that answers, and why; what a model has is None."""

    experts: float
    infeasible: str
    n_params: None = None
    tokens: None = None
    loss: None = None
    usd_per_mtok: None = None
    gpus: None = None
    cost_ratio: None = None
    total_usd: None = None
    intervals: None = None
    regret: None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Regret:
    """What a choice loses against a lab that knows the law, as a share of the base's dollars a token (`draws`)."""

    expected: float  # over all draws
    worst: float  # the mean over the draws of the law under which it is largest


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained(WholeRecord):
    """One model that the budget can train: what it is and its loss; as itself one that cannot be served, see Candidate.

    `size_ratio` is to that expert count's own loss-optimal size, the `_to_base` ratios are to the base model. Intervals
    hold 90% of the law's draws. None where not applicable.
    """

    experts: float
    n_params: float  # dense-equivalent N of the law
    n_params_active: float  # under the law's convention
    n_params_total: float
    tokens: float
    loss: float
    usd_per_mtok: float | None = None
    gpus: int | None = None
    batch: float | None = None  # also None in files that leave it out, as are the next two
    tpot_s: float | None = None
    ttft_s: float | None = None
    attention_dp: int | None = None  # groups of its GPUs that hold attention, where more than one
    prefill_gpus: int | None = None  # of a prefill worker, where prefill and decode are apart; `gpus` decode
    size_ratio: float | None = None
    size_ratio_to_base: float | None = None
    active_ratio_to_base: float | None = None
    cost_ratio: float | None = None
    training_flops: float = math.nan  # that its tokens take, 6 n_params_active tokens where not stated
    training_usd: float | None = None
    serving_usd: float | None = None
    total_usd: float | None = None
    infeasible: str | None = None
    intervals: Limits | None = None
    probability_at_least_base: float | None = None  # that its loss is the base's, or the one that is asked for, at most
    regret: Regret | None = None
    scores: Mapping[str, Score] | None = None  # of benchmark tasks, of the recommended models
    architecture: Buildable | None = None  # of a model as built; None: sizes are real-valued

    def __post_init__(self) -> None:
        if math.isnan(self.training_flops):
            object.__setattr__(self, "training_flops", 6.0 * self.n_params_active * self.tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate(Trained):
    """A model that is trained and served."""

    # The same fields, now required, which dataclasses allow.
    usd_per_mtok: float  # pyright: ignore[reportGeneralTypeIssues]
    gpus: int  # pyright: ignore[reportGeneralTypeIssues]


@dataclass(frozen=True, slots=True, kw_only=True)
class Life(Candidate):
    """A model with the dollars of its whole life."""

    training_usd: float  # pyright: ignore[reportGeneralTypeIssues]
    serving_usd: float  # pyright: ignore[reportGeneralTypeIssues]
    total_usd: float  # pyright: ignore[reportGeneralTypeIssues]


Row = Candidate | Trained | Unreachable
AnyRow = TypeVar("AnyRow", bound=Trained | Unreachable)


@dataclass(frozen=True, slots=True)
class CostCurve:
    """Models of one expert count that spend a whole budget, by rising size: arrays (n,); cost is NaN where nothing serves."""

    experts: float
    n_params: FloatArray
    tokens: FloatArray
    loss: FloatArray
    usd_per_mtok: FloatArray

    def to_dict(self) -> dict[str, object]:
        """The served models as lists of one length, rounded to what a plot needs."""
        served, names = np.isfinite(self.usd_per_mtok), ("n_params", "tokens", "loss", "usd_per_mtok")
        rounded = {name: [float(f"{x:.6g}") for x in getattr(self, name)[served]] for name in names}
        return {"experts": whole(self.experts), **rounded}


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
    disaggregated: bool = False  # whether prefill and decode are on GPUs of their own
    shape: Architecture | None = None
    known: Serving | None = None  # what that model costs, where it was asked before
    prices: dict[Buildable, Serving] = field(default_factory=dict[Buildable, Serving])  # of built models, (1,)

    def usd_per_mtok(self, n_params: FloatArray, experts: FloatArray) -> FloatArray:
        """Dollars per million tokens at the cheapest GPU count; infinite where none serves. Arguments of one shape."""
        return self.serving(n_params, experts).usd_per_mtok

    def serving(self, n_params: FloatArray, experts: FloatArray) -> Serving:
        """All serving figures at the cheapest GPU count. Arguments of one shape."""
        if self.shape is not None:
            built = self.known or self.cheapest(self.shape, every=True)
            return Serving(**{f.name: np.broadcast_to(getattr(built, f.name), n_params.shape) for f in fields(built)})
        shapes = architecture(self.family, n_params, experts, kv_heads=self.kv_heads, vocab_size=self.vocab_size)
        return self.cheapest(shapes)

    def cheapest(self, model: Architecture, *, every: bool = False) -> Serving:
        """The figures of models at their cheapest servers; `every` as in `gpu_counts.cheapest`."""
        if self.disaggregated:
            return apart(model, self.latency, self.deployment)
        return cheapest(model, self.latency, self.deployment, every=every)


Arrays = TypeVar("Arrays", Serving, Allocation)


def part_of(every: Arrays, index: slice | NDArray[np.intp] | tuple[NDArray[np.intp], ...]) -> Arrays:
    """The figures of some of several models."""
    return type(every)(**{f.name: getattr(every, f.name)[index] for f in fields(every)})


def trained_models(models: Allocation, costs: Costs, served: Serving | None = None) -> list[Trained]:
    """Records of models (m,) of known size, those that can be served as Candidate; `served` if they are priced already."""
    n, e = models.n_params, models.experts
    served = served or costs.serving(n, e)
    most = f"{degrees(costs.deployment)[-1]} x {costs.deployment.gpu.name}"
    columns = {f.name: getattr(models, f.name) for f in fields(models)}
    columns |= {"n_params_active": n_active(costs.family, n, e), "n_params_total": n_total(costs.family, n, e)}
    of_servers = {name: getattr(served, name) for name in ("usd_per_mtok", "batch", "tpot_s", "ttft_s")}
    records: list[Trained] = []
    for i, usd in enumerate(served.usd_per_mtok.tolist()):
        figures: dict[str, Any] = {name: float(values[i]) for name, values in columns.items()}
        if not math.isfinite(usd):
            records.append(Trained(**figures, infeasible=f"{REASONS[int(served.infeasible[i])]} of {most}"))
            continue
        figures |= {name: float(values[i]) for name, values in of_servers.items()}
        figures |= {"gpus": int(served.gpus[i]), "prefill_gpus": int(served.prefill_gpus[i]) or None}
        figures["attention_dp"] = groups if (groups := int(served.attention_dp[i])) > 1 else None
        records.append(Candidate(**figures))
    return records


def candidates(models: Allocation, costs: Costs, unreachable: Sequence[str]) -> list[Row]:
    """Records of an allocation (m,); `unreachable` (m,) says why an entry is NaN."""
    sized = replace(models, n_params=np.where(np.isfinite(models.n_params), models.n_params, KNOWN_SIZE))
    rows: list[Row] = [*trained_models(sized, costs)]
    for i in np.flatnonzero(~np.isfinite(models.n_params)).tolist():
        rows[i] = Unreachable(experts=rows[i].experts, infeasible=unreachable[i])
    return rows


def lives(found: LifetimeCost, costs: Costs, unreachable: Sequence[str]) -> list[Life | Unreachable]:
    """Records of lifetime models (m,), with the dollars of their lives; `unreachable` (m,) says why there is none."""
    models = Allocation(found.experts, found.n_params, found.tokens, found.loss)
    rows: list[Life | Unreachable] = []
    for i, row in enumerate(candidates(models, costs, unreachable)):
        names = ("training_flops", "training_usd", "serving_usd", "total_usd")
        dollars: dict[str, Any] = {name: float(getattr(found, name)[i]) for name in names}
        rows.append(row if isinstance(row, Unreachable) else Life(**{**values_of(row), **dollars}))
    return rows


def values_of(row: Trained) -> dict[str, Any]:
    """The fields of a row, for a record that has more of them."""
    return {field.name: getattr(row, field.name) for field in fields(row)}


def sizes_of(rows: Sequence[Row]) -> FloatArray:
    """The sizes of rows, NaN where there is no model."""
    return np.array([np.nan if c.n_params is None else c.n_params for c in rows])
