"""What a priced server was asked, as records and screens state it, and whether its answer is too slow to be of use."""

from __future__ import annotations

import math

import numpy as np

from moescale.hardware.precisions import precisions
from moescale.latency import LatencySource
from moescale.models.architecture import Architecture
from moescale.serving.deployment import Deployment
from moescale.units import format_seconds

PLAIN = (
    *("usd_per_gpu_hour", "prompt_tokens", "output_tokens", "max_num_seqs", "max_ttft_s", "max_tpot_s"),
    *("memory_fraction", "utilization", "scheduling", "max_num_batched_tokens", "draft_tokens"),
)
WHERE_NOT_ZERO = ("prefix_hit", "accepted_tokens")

# Ten tokens a second are some 450 words a minute, about twice the reading speed (238 words a minute; Brysbaert, How many
# words do we read per minute?, Journal of Memory and Language 109, 2019).
MOST_TPOT_S = 0.1
# What keeps a user's attention on the dialogue (Nielsen, Usability Engineering, 1993, section 5.5).
MOST_TTFT_S = 10.0


def question_record(model: Architecture, deployment: Deployment, source: LatencySource) -> dict[str, object]:
    """Model, hardware, traffic, formats and kernels of an answer; what was not stated is absent."""
    d = deployment
    record: dict[str, object] = {"model": model.name, "gpu": d.gpu.name, "kv_cache": cache_format(d)}
    for name in (*PLAIN, *WHERE_NOT_ZERO):
        value = d.batch_cap if name == "max_num_seqs" else getattr(d, name)
        if value is None or (name in WHERE_NOT_ZERO and not np.any(np.asarray(value))):
            continue
        number = value if isinstance(value, str) else float(np.asarray(value))
        if isinstance(number, str) or math.isfinite(number):
            record[name] = number
    engine, version = engine_of(source)
    return record | ({} if engine is None else {"engine": engine, "engine_version": version})


def weight_format(deployment: Deployment) -> str:
    """The weights' number format by name, or its bytes an element."""
    return deployment.weights or _named("weights", float(np.asarray(deployment.weight_bytes_per_param)))


def cache_format(deployment: Deployment) -> str:
    """The KV cache's number format by name, or its bytes an element."""
    return _named("kv_cache", float(np.asarray(deployment.kv_bytes_per_element)))


def _named(kind: str, held: float) -> str:
    known = (name for name, entry in precisions(kind).items() if entry.bytes_per_element == held)
    return next(known, f"{held:g} bytes")


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
    d = deployment
    kinds = (
        ("TPOT", tpot_s, MOST_TPOT_S, d.max_tpot_s, "--max-tpot 100ms"),
        ("TTFT", ttft_s, MOST_TTFT_S, d.max_ttft_s, "--max-ttft 10s"),
    )
    late = [kind for kind in kinds if kind[3] is None and (kind[1] or 0.0) > kind[2]]
    if not late:
        return []
    times = ", ".join(
        f"{name} {format_seconds(took or 0.0)} (above {format_seconds(most)})" for name, took, most, *_ in late
    )
    return [f"Too slow for interactive use{what}: {times}; {' '.join(kind[4] for kind in late)} sets a limit."]
