"""Compute the tables of docs/roofline.md: the roofline's constants, and how far it is from measured kernels on models that no fit saw.

python scripts/document_roofline.py
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from calibrate_roofline import (
    FAMILY,
    FP8_CONSTANTS,
    GPU_COUNTS,
    MOST_PROMPT_TOKENS,
    SEED,
    SEEN,
    SEEN_MODELS,
    START,
    UNSEEN_MODELS,
    Fitted,
    Passes,
    default_of,
    design,
    fit_formats,
    log_errors,
    measured_gpus,
    seen_passes,
    unseen_models,
)
from moescale.hardware.gpus import Gpu
from moescale.latency import LatencySource
from moescale.latency.kernels.tables import default_version
from moescale.latency.roofline import Roofline, RooflineConstants, constants_of
from moescale.latency.silicon import ENGINE, Silicon, host_s
from moescale.models.family import architecture
from moescale.serving.deployment import Deployment, with_traffic
from moescale.serving.gpu_counts import cheapest
from moescale.serving.traffic import find_traffic
from moescale.typing import FloatArray
from pages import filled, table, write

COST_SIZES = (1e8, 2.56e10)
# Terms that the page weighs: the fit without them.
TERMS = {
    "nothing": (),
    "activations": ("activation_traffic",),
    "the soft ridge": ("ridge_softness",),
    "launches of MoE layers": ("per_moe_layer_overhead_s",),
    "launches of prompts": ("per_prompt_layer_overhead_s",),
    "contention of links": ("interconnect_contention", "allreduce_latency_per_gpu_s"),
}
# The constants that all GPUs shared before each had its own, when the host's time was added to every pass.
SHARED = RooflineConstants(
    memory_efficiency=0.75, expert_memory_efficiency=0.75, cache_memory_efficiency=0.75, gemm_compute_efficiency=0.81,
    moe_compute_efficiency=0.40, attention_compute_efficiency=0.55, ridge_softness=0.0, activation_traffic=0.0,
    interconnect_efficiency=0.68, interconnect_contention=0.0, allreduce_latency_s=5.2e-6,
    allreduce_latency_per_gpu_s=0.0, per_layer_overhead_s=3.0e-5, per_moe_layer_overhead_s=0.0,
    per_latent_layer_overhead_s=0.0, per_prompt_layer_overhead_s=0.0, per_iteration_overhead_s=0.0,
)  # fmt: skip
STAGES = (("decode", 2.0), ("prefill", 2.0), ("decode", 1.0), ("prefill", 1.0))


@dataclass(frozen=True, slots=True)
class Error:
    """Absolute log errors of a source: the median and the 90th percentile; and the median with its sign."""

    median: float
    ninth_decile: float
    bias: float

    def __str__(self) -> str:
        return f"{np.expm1(self.median):.0%}, {np.expm1(self.ninth_decile):.0%}"


def error_of(logs: FloatArray) -> Error:
    size = np.abs(logs)
    return Error(float(np.median(size)), float(np.quantile(size, 0.9)), float(np.median(logs)))


def errors(gpu: Gpu, fitted: Fitted, passes: Iterable[Passes]) -> dict[tuple[str, float], Error]:
    """Errors by stage and bytes a weight."""
    found: dict[tuple[str, float], list[FloatArray]] = {}
    for part in passes:
        logs = log_errors(gpu, fitted[part.weight_bytes], part)
        found.setdefault((part.stage, part.weight_bytes), []).append(logs)
    return {key: error_of(np.concatenate(parts)) for key, parts in found.items()}


@dataclass(frozen=True, slots=True)
class Added:
    """The roofline as it was: the host's time is added to every pass."""

    roofline: Roofline
    host_s: float
    name: str = "roofline"

    def prefill_s(self, *asked: Any, **named: Any) -> FloatArray:
        return self.roofline.prefill_s(*asked, **named) + self.host_s

    def decode_s(self, *asked: Any, **named: Any) -> FloatArray:
        return self.roofline.decode_s(*asked, **named) + self.host_s

    def mixed_s(self, *asked: Any, **named: Any) -> FloatArray:
        return self.roofline.mixed_s(*asked, **named) + self.host_s


def cost_error(gpu: Gpu, source: LatencySource) -> Error:
    """Dollars per million tokens of the paper's family at its cheapest GPU count, ShareGPT's lengths, against silicon."""
    sizes, experts = np.geomspace(*COST_SIZES, 10), 2.0 ** np.arange(7.0)
    model, kernels = architecture(FAMILY, sizes[:, np.newaxis], experts), Silicon(gpu)
    traffic, logs = find_traffic("sharegpt"), list[FloatArray]()
    for cap in (None, float(gpu.default_max_num_seqs)):
        deployment = with_traffic(
            Deployment(gpu=gpu, usd_per_gpu_hour=1.0, prompt_tokens=1.0, output_tokens=1.0, max_num_seqs=cap), traffic
        )
        ours, theirs = (cheapest(model, s, deployment).usd_per_mtok for s in (source, kernels))
        both = np.isfinite(ours) & np.isfinite(theirs)
        logs.append(np.log(ours[both] / theirs[both]))
    return error_of(np.concatenate(logs))


def shipped(gpu: Gpu) -> Fitted:
    """The catalogue's constants of a GPU."""
    return {weight_bytes: constants_of(gpu, weight_bytes) for weight_bytes in (2.0, 1.0)}


def shared() -> Fitted:
    """The constants of all GPUs before."""
    return {2.0: SHARED, 1.0: SHARED}


def row(gpu: Gpu, fitted: Fitted, passes: Sequence[Passes]) -> list[str]:
    """Cells of one GPU's errors; empty where the GPU does not multiply fp8."""
    found = errors(gpu, fitted, passes)
    return [str(found[key]) if key in found else "" for key in STAGES]


def number(value: float) -> str:
    return f"{value:.1e}" if 0.0 < value < 1e-3 else f"{value:.3g}"


def constants_table(own: Sequence[Gpu]) -> list[str]:
    """Every constant of every measured system."""
    stand_in = {weight_bytes: constants_of(NOBODYS, weight_bytes) for weight_bytes in (2.0, 1.0)}
    columns = {gpu.name: shipped(gpu) for gpu in own} | {"default": stand_in}
    has_fp8 = {gpu.name: gpu.fp8_flops_per_s is not None for gpu in own} | {"default": True}

    def cell(name: str, column: str) -> str:
        bf16, fp8 = (getattr(columns[column][weight_bytes], name) for weight_bytes in (2.0, 1.0))
        return f"{number(bf16)}; {number(fp8)}" if name in FP8_CONSTANTS and has_fp8[column] else number(bf16)

    return table(("constant", *columns), ((f"`{name}`", *(cell(name, column) for column in columns)) for name in START))


NOBODYS = Gpu(
    name="of nobody", memory_bytes=1.0, memory_bandwidth_bytes_per_s=1.0, bf16_flops_per_s=1.0, fp8_flops_per_s=1.0,
    interconnect_bytes_per_s=1.0, default_max_num_seqs=1, silicon_system=None, source="", date="",
)  # fmt: skip


def kinds_table(own: Sequence[Gpu], unseen: dict[str, dict[str, list[Passes]]]) -> list[str]:
    """Errors by kind of model, all GPUs together."""
    names = {
        "family": "the paper's family",
        "published": "published models",
        "latent": "latent attention (DeepSeek-V3)",
    }
    rows: list[list[str]] = []
    for kind, label in names.items():
        cells = [label]
        for stage in ("decode", "prefill"):
            parts = [(gpu, part) for gpu in own for part in unseen[gpu.name][kind] if part.stage == stage]
            logs = [log_errors(gpu, constants_of(gpu, part.weight_bytes), part) for gpu, part in parts]
            found = error_of(np.concatenate(logs))
            cells += [str(found), f"{np.expm1(found.bias):+.0%}"]
        rows.append(cells)
    return table(("models", "decode", "its bias", "prefill", "its bias"), rows)


def terms_table(fits: dict[str, dict[str, Fitted]], judged: dict[str, list[Passes]], own: Sequence[Gpu]) -> list[str]:
    """Mean over GPUs, stages and formats of medians and 90th percentiles, without each term."""
    rows: list[list[str]] = []
    for term in TERMS:
        found = [e for gpu in own for e in errors(gpu, fits[gpu.name][term], judged[gpu.name]).values()]
        median, decile = (np.mean([getattr(e, name) for e in found]) for name in ("median", "ninth_decile"))
        rows.append([term, f"{np.expm1(median):.1%}", f"{np.expm1(decile):.0%}"])
    return table(("left out", "median", "nine of ten within"), rows)


def page() -> str:
    """The page's text, outputs of commands excepted."""
    own, scaled = measured_gpus()
    unseen = {
        gpu.name: {kind: design(gpu, models, SEED + 1) for kind, models in unseen_models().items()}
        for gpu in (*own, *scaled)
    }
    judged = {name: kinds["family"] + kinds["published"] for name, kinds in unseen.items()}
    fits: dict[str, dict[str, Fitted]] = {}
    for gpu in own:
        seen = seen_passes(gpu)
        fits[gpu.name] = {term: fit_formats(gpu, seen, dict.fromkeys(names, 0.0)) for term, names in TERMS.items()}
    header = ("GPU", "decode", "prefill", "decode, fp8", "prefill, fp8", "$/Mtok", "its bias")

    def costs(gpu: Gpu, source: LatencySource) -> list[str]:
        found = cost_error(gpu, source)
        return [str(found), f"{np.expm1(found.bias):+.0%}"]

    def ours(gpu: Gpu) -> list[str]:
        return [gpu.name, *row(gpu, shipped(gpu), judged[gpu.name]), *costs(gpu, Roofline(gpu))]

    def before(gpu: Gpu) -> list[str]:
        source = Added(Roofline(gpu, constants=SHARED), host_s())
        return [gpu.name, *row(gpu, shared(), judged[gpu.name]), *costs(gpu, source)]

    def unmeasured(gpu: Gpu) -> list[str]:
        others = default_of(fits[other.name]["nothing"] for other in own if other is not gpu)
        constants = replace(others[2.0], per_iteration_overhead_s=host_s())
        return [gpu.name, *row(gpu, others, judged[gpu.name]), *costs(gpu, Roofline(gpu, constants=constants))]

    passes = sum(part.measured_s.size for gpu in own for part in judged[gpu.name])
    tables = ", ".join(f"{gpu.name} {ENGINE} {default_version(str(gpu.silicon_system), ENGINE)}" for gpu in own)
    parts = {
        "host-ms": f"{host_s() * 1e3:.1f}",
        "passes": f"{passes:,}",
        "unseen": ", ".join(UNSEEN_MODELS),
        "seen-sizes": ", ".join(f"{n:.2g}" for n in SEEN[0]),
        "seen-experts": ", ".join(f"{e:.0f}" for e in SEEN[1]),
        "seen": ", ".join(SEEN_MODELS),
        "gpu-counts": ", ".join(f"{g:.0f}" for g in GPU_COUNTS),
        "most-prompt-tokens": f"{MOST_PROMPT_TOKENS:,.0f}",
        "errors": table(header, map(ours, own)),
        "versions": tables,
        "kinds": kinds_table(own, unseen),
        "before": table(header, map(before, own)),
        "scaled": table(header, map(ours, scaled)),
        "unmeasured": table(header, map(unmeasured, own)),
        "terms": terms_table(fits, judged, own),
        "constants": constants_table(own),
    }
    return filled("roofline.md", parts)


if __name__ == "__main__":
    write("roofline.md", page())
