"""What a priced server was asked, as records and screens state it, and whether its answer is too slow to be of use."""

from __future__ import annotations

import math

import numpy as np

from moescale.hardware.precisions import format_of_bytes
from moescale.latency import LatencySource
from moescale.models.architecture import Architecture
from moescale.serving.deployment import Deployment
from moescale.units import format_seconds

STATED = (
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
    stated = {name: getattr(d, name) for name in (*STATED, *WHERE_NOT_ZERO)} | {"max_num_seqs": d.batch_cap}
    for name, value in stated.items():
        number = value if value is None or isinstance(value, str) else float(np.asarray(value))
        absent = (None, math.inf, 0.0) if name in WHERE_NOT_ZERO else (None, math.inf)
        if number not in absent:
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
