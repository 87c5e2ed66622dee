"""A model priced on a server: under every load that was asked about, with the limits that it misses by the known error."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from moescale.errors import MoescaleError

if TYPE_CHECKING:
    from moescale.hardware.precisions import Precision
    from moescale.latency import LatencySource
    from moescale.models.architecture import Architecture
    from moescale.models.quantisation import CheckpointWeights
    from moescale.options.cost import CostServingOptions
    from moescale.serving.accuracy import Accuracy, Calibrated
    from moescale.serving.deployment import Deployment
    from moescale.serving.disaggregated import Disaggregated
    from moescale.serving.gpu_counts import Cost
    from moescale.serving.loads import OpenLoop
    from moescale.serving.workload import Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """What serves a model: its cost, its layout, what answers a rate of requests, and the known error of its kind."""

    cost: Cost
    deployment: Deployment
    opened: OpenLoop | None
    accuracy: Accuracy | None

    @property
    def loaded(self) -> OpenLoop | Answer | Cost:
        """At the rate, or of the closed loop, where one is stated; else at full load."""
        return self.opened or self.cost.closed_loop or self.cost

    @property
    def usd_per_mtok(self) -> float:
        """Under the load that was asked about."""
        return self.loaded.usd_per_mtok or 0.0

    def late_s(self, limits: Deployment) -> dict[str, float]:
        """Which of the limits it misses by the known error, with the seconds as corrected."""
        from moescale.serving.accuracy import limits_missed

        times = self.loaded
        return limits_missed(self.accuracy, (times.ttft_s, limits.max_ttft_s), (times.tpot_s, limits.max_tpot_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Missed:
    """Which limits a server misses by the known error of its kind, and the cheapest server found that keeps all of them."""

    times_s: dict[str, float]  # as corrected
    kept: Server | None  # None: nothing that was looked at
    stricter_s: dict[str, float]  # limits that give it, by option, such as --max-tpot; none: the stated ones do

    def kept_record(self) -> dict[str, object]:
        """The server that keeps the limits as JSON-ready values; empty where there is none."""
        if self.kept is None:
            return {}
        one, groups = self.kept.opened or self.kept.cost, self.kept.cost.attention_dp
        record: dict[str, object] = {
            "gpus": one.gpus,
            "replicas": one.replicas or 1,
            "usd_per_mtok": self.kept.usd_per_mtok,
        }
        record |= {} if groups is None else {"attention_dp": groups}
        return record | {f"{option[2:].replace('-', '_')}_s": s for option, s in self.stricter_s.items()}


def missed_by_error(server: Server, limits: Deployment, ask: Callable[[Deployment], Server]) -> Missed | None:
    """What the known error says of the limits; None where all are kept.

    `ask` answers the same question under other limits: as strict as the error is large, which smaller batches may keep.
    """
    first = missed = server.late_s(limits)
    if not first:
        return None
    looked_at = server.cost.candidates or () if server.opened is None else ()
    others = [replace(server, cost=candidate) for candidate in looked_at if candidate.batch is not None]
    found = [(other, dict[str, float]()) for other in others if not other.late_s(limits)]
    strict: dict[str, float] = {}
    asked, last = limits, server
    for _ in range(2):  # the smaller batch may miss the other limit
        for name in missed:
            stated, band = f"max_{name.lower()}_s", getattr(last.accuracy, name.lower())
            most_s = _three_digits(float(getattr(limits, stated)) * band.geometric_mean)
            asked, strict = replace(asked, **{stated: most_s}), strict | {f"--max-{name.lower()}": most_s}
        try:
            last = ask(asked)
        except MoescaleError:
            break
        if not (missed := last.late_s(limits)):
            found.append((last, strict))
            break
    found = [(one, given) for one, given in found if one.cost.closed_loop is None or one.cost.closed_loop.meets_limits]
    kept, stricter_s = min(found, key=lambda each: float(f"{each[0].usd_per_mtok:.9g}"), default=(None, {}))
    return Missed(times_s=first, kept=kept, stricter_s=stricter_s)


def _three_digits(value: float) -> float:
    """Rounded down, as a limit is stated."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return float(f"{math.floor(value / unit) * unit:.3g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """The answer of `cost`: the model and the options that were asked about, the server, and what else is said of it."""

    model: Architecture
    published: bool  # the model has a name that `cost` knows
    checkpoint: CheckpointWeights | None
    weights: Precision | None  # None: bf16, as nothing says another format
    source: LatencySource
    serving: CostServingOptions
    has_price: bool  # of a GPU hour; else no dollars are shown
    server: Server
    missed: Missed | None
    apart: Disaggregated | None
    apart_accuracy: Accuracy | None
    burst: Answer | None
    launch: str | None  # the line that starts the server

    @property
    def calibrated(self) -> Calibrated | None:
        """The price, of the closed loop where there is one, corrected by the known error."""
        from moescale.serving.accuracy import calibrated

        return calibrated((self.server.cost.closed_loop or self.server.cost).usd_per_mtok, self.server.accuracy)

    def warnings(self) -> list[str]:
        """Latencies that are of little use and that no limit was stated for."""
        from moescale.serving.question import slow_for_use

        deployment, loaded, apart = self.server.deployment, self.server.loaded, self.apart
        found = slow_for_use(deployment, loaded.ttft_s, loaded.tpot_s)
        if apart is not None:
            found += slow_for_use(deployment, apart.ttft_s, apart.tpot_s, " with separate prefill and decode")
        return found

    def to_dict(self) -> dict[str, object]:
        """JSON-ready values; what does not apply is absent."""
        from moescale.serving.question import question_record

        server, error = self.server, self.apart_accuracy
        record = {"question": question_record(self.model, server.deployment, self.source), **server.cost.to_dict()}
        parts = {
            "weights": self._weights_record(),
            "open_loop": server.opened and server.opened.to_dict(),
            "disaggregated": self.apart and self.apart.to_dict() | ({"accuracy": error.to_dict()} if error else {}),
            "warnings": self.warnings(),
            "burst": self.burst and self.burst.to_dict(),
            "accuracy": server.accuracy and server.accuracy.to_dict(),
            "calibrated": self.calibrated and self.calibrated.to_dict(),
            "limits_missed_by_error": self.missed and self.missed.times_s,
            "limits_kept_by_error": self.missed and self.missed.kept_record(),
            "launch": self.launch,
        }
        record |= {name: part for name, part in parts.items() if part}
        return record if self.has_price else cast("dict[str, object]", _without_dollars(record))

    def _weights_record(self) -> dict[str, object]:
        """The format that was priced, and who says so."""
        name, held = ("bf16", 2.0) if self.weights is None else (self.weights.name, self.weights.bytes_per_element)
        source = "default" if self.checkpoint is None else self.checkpoint.stated
        record: dict[str, object] = {"format": name, "bytes_per_param": held, "source": source}
        if self.serving.weights is not None:
            record["source"] = "--weights"
            record |= {} if self.checkpoint is None else {"checkpoint": self.checkpoint.format or "not understood"}
        return record

    def weights_words(self) -> str:
        """The format of the weights, and whose choice it is where it is the checkpoint's and not of 16 bits."""
        from moescale.serving.question import weight_format

        checkpoint = self.checkpoint
        if checkpoint is None or self.serving.weights is not None or checkpoint.bytes_per_param >= 2.0:
            return weight_format(self.server.deployment)
        whose = "as released" if self.published else "as its config states"
        return f"{checkpoint.format}, {whose}; --weights overrides"


def _without_dollars(record: object) -> object:
    if isinstance(record, dict):
        parts = cast("dict[str, object]", record)
        return {name: _without_dollars(part) for name, part in parts.items() if not name.startswith("usd")}
    if isinstance(record, list):
        return [_without_dollars(part) for part in cast("list[object]", record)]
    return record
