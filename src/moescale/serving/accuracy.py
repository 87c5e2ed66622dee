"""How far predictions lay from published measurements of the same kind, which nothing was chosen on.

The bands are catalogue/accuracy.toml's, written by scripts/document_accuracy.py; docs/evidence/serving.md has all of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist
from typing import Any

import numpy as np

from moescale import catalogue
from moescale.hardware.precisions import format_of_bytes
from moescale.io.records import Record
from moescale.latency import LatencySource
from moescale.models.architecture import Architecture, some
from moescale.serving.deployment import Deployment
from moescale.typing import Real

QUANTILE = NormalDist().inv_cdf(0.95)  # of the normal distribution: 90% lie within so many standard deviations
APART = "prefill and decode apart"
KEPT = 0.05  # over a limit that counts as kept: a batch is chosen to meet it


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """Predicted over measured, every set of rows weighing the same."""

    n: int  # measured figures
    geometric_mean: float
    spread: float  # exp of the standard deviation of ln(predicted / measured)


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy(Record):
    """Bands of output tokens a second, and of the times per output token and to the first, for one kind of server."""

    kind: str
    n: int
    geometric_mean: float
    spread: float
    sets: int  # of one model, GPU, engine and format
    gpus: tuple[str, ...]  # on which the kind was measured
    tpot: Band | None = None
    ttft: Band | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated(Record):
    """A price corrected by the mean error of its kind, with what nine of ten servings of the kind should cost."""

    usd_per_mtok: float
    interval: tuple[float, float]


def calibrated(usd_per_mtok: float | None, accuracy: Accuracy | None) -> Calibrated | None:
    """Dollars times predicted over measured throughput, log-normal by its spread; None where nothing was compared."""
    if usd_per_mtok is None or accuracy is None or not math.isfinite(usd_per_mtok):
        return None
    middle, factor = usd_per_mtok * accuracy.geometric_mean, accuracy.spread**QUANTILE
    return Calibrated(usd_per_mtok=middle, interval=(middle / factor, middle * factor))


def calibrated_by_any(usd_per_mtok: float | None, latency_source: str) -> Calibrated | None:
    """The same by the servings of all kinds, for a kind that was not compared; None where the latency source is not silicon."""
    return calibrated(usd_per_mtok, accuracy_of_any()) if latency_source == "silicon" else None


def limits_missed(
    accuracy: Accuracy | None, ttft_s: tuple[float | None, Real | None], tpot_s: tuple[float | None, Real | None]
) -> dict[str, float]:
    """Which of TTFT and TPOT, each with its limit, miss it by the mean error of their kind, and the seconds as corrected."""
    found: dict[str, float] = {}
    for name, (time_s, limit_s) in (("TTFT", ttft_s), ("TPOT", tpot_s)):
        band: Band | None = getattr(accuracy, name.lower(), None)
        if time_s is not None and limit_s is not None and band is not None:
            corrected_s = time_s / band.geometric_mean
            if corrected_s > float(np.asarray(limit_s)) * (1.0 + KEPT):
                found[name] = corrected_s
    return found


def kind_of(model: Architecture, weights: str, *, attention_dp: float = 1.0, apart: bool = False) -> str:
    """What a served model is an example of, such as `dense fp8`, `attention-DP latent MoE nvfp4` or `gpt-oss mxfp4`."""
    family = "MoE" if some(model.n_moe_layers) else "dense"
    if model.attention_sinks and model.expert_bias:
        family = "gpt-oss"
    elif some(model.n_linear_layers):
        family = f"hybrid {family}"
    elif some(model.kv_lora_rank):
        family = f"latent {family}"
    return f"{'attention-DP ' if attention_dp > 1 else ''}{family} {weights}{', ' + APART if apart else ''}"


def kind_of_served(model: Architecture, deployment: Deployment, *, apart: bool = False) -> str | None:
    """The kind of a deployment, with `apart` of its decode workers; None where its weights are of no one known format."""
    d = deployment
    if np.size(d.weight_bytes_per_param) != 1:
        return None
    weights = d.weights or format_of_bytes("weights", float(np.asarray(d.weight_bytes_per_param)))
    return weights and kind_of(model, weights, attention_dp=float(np.max(d.attention_dp)), apart=apart)


def uncompared(model: Architecture, deployment: Deployment, source: LatencySource) -> str:
    """What `accuracy_of` knows no measurements of, in words: the kind, and a latency source other than silicon."""
    kind = kind_of_served(model, deployment) or "this kind"
    return kind if source.name == "silicon" else f"{kind} with latency from {source.name}"


def accuracy_of(
    model: Architecture, deployment: Deployment, source: LatencySource, *, apart: bool = False
) -> Accuracy | None:
    """What held-out measurements of this kind gave; None where there were none, or where `source` is not silicon.

    The slice is the kind on this GPU, else with this engine, where three sets or more were measured; else the kind.
    """
    kind = kind_of_served(model, deployment, apart=apart)
    if kind is None or source.name != "silicon":
        return None
    found, engine = _held_out(), getattr(source, "backend", "")
    for words in (f"{kind} on {deployment.gpu.name}", f"{kind} with {engine}", kind):
        if (main := found.get((words, "output_tok_s"))) is not None:
            bands = {name: found.get((words, name)) for name in ("tpot", "ttft")}
            times: dict[str, Any] = {name: Band(**_ratios(entry)) for name, entry in bands.items() if entry is not None}
            return Accuracy(kind=words, **_ratios(main), sets=main["sets"], gpus=tuple(main["gpus"]), **times)
    return None


def accuracy_of_any() -> Accuracy:
    """What held-out measurements of all kinds gave together, for a kind that was not measured: every set of rows weighs the same."""
    bands = [band for (words, metric), band in _held_out().items() if (words, metric) == (band["kind"], "output_tok_s")]
    sets = np.array([band["sets"] for band in bands], float)
    means, spreads = (np.log([band[name] for band in bands]) for name in ("geometric_mean", "spread"))
    mean = float(np.average(means, weights=sets))
    variance = float(np.average(spreads**2 + (means - mean) ** 2, weights=sets))  # within kinds, and between them
    return Accuracy(
        kind="all kinds",
        n=sum(band["rows"] for band in bands),
        geometric_mean=math.exp(mean),
        spread=math.exp(math.sqrt(variance)),
        sets=int(sets.sum()),
        gpus=tuple(sorted({gpu for band in bands for gpu in band["gpus"]})),
    )


def _ratios(entry: dict[str, Any]) -> dict[str, Any]:
    return {"n": entry["rows"], "geometric_mean": entry["geometric_mean"], "spread": entry["spread"]}


@cache
def _held_out() -> dict[tuple[str, str], dict[str, Any]]:
    """The catalogue's entries by kind, alone and with what it is narrowed to (on a GPU, with an engine), and by metric."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for entry in catalogue.read("accuracy.toml").get("held_out", []):
        place = f" on {entry['gpu']}" if "gpu" in entry else f" with {entry['engine']}" if "engine" in entry else ""
        found[entry["kind"] + place, entry["metric"]] = entry
    return found
