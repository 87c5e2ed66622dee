"""Compute the part of the roofline in docs/evidence/kernels.md: how far it is from measured kernels on models that no fit saw. Its
errors and constants are in docs/evidence/kernels-roofline*.csv.

python scripts/document_roofline.py [--stored]   (--stored: the page anew from the tables that are there)
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

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
from moescale.latency import LatencySource, Pass
from moescale.latency.card import ENGINE
from moescale.latency.kernels.tables import default_version
from moescale.latency.roofline import Roofline
from moescale.latency.roofline_constants import RooflineConstants, constants_of
from moescale.latency.silicon import Silicon, host_s
from moescale.models.architecture import Architecture
from moescale.models.family import architecture
from moescale.options.serving import DEFAULT_TRAFFIC
from moescale.serving.deployment import Deployment, with_traffic
from moescale.serving.gpu_counts import cheapest
from moescale.serving.traffic import Traffic
from moescale.typing import FloatArray
from pages import csv_text, filled, read_csv, table, write

PAGE, OWNER = "evidence/kernels.md", "roofline"
ERRORS, KINDS, LEFT_OUT, CONSTANTS = (
    f"evidence/kernels-roofline{name}.csv" for name in ("", "-kinds", "-terms", "-constants")
)
Rows = Sequence[Mapping[str, str]]
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

    def cells(self) -> list[str]:
        """Median and 90th percentile, as a factor minus one."""
        return [f"{np.expm1(self.median):.4f}", f"{np.expm1(self.ninth_decile):.4f}"]

    def signed(self) -> str:
        """The bias, as a factor minus one."""
        return f"{np.expm1(self.bias):+.4f}"


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


@dataclass(frozen=True)
class Added(LatencySource):
    """The roofline as it was: the host's time is added to every pass."""

    roofline: Roofline
    host_s: float

    name = "roofline"

    def pass_s(self, model: Architecture, a: Pass) -> FloatArray:
        """Seconds of a pass."""
        return self.roofline.pass_s(model, a) + self.host_s


def cost_error(gpu: Gpu, source: LatencySource) -> Error:
    """Dollars per million tokens of the paper's family at its cheapest GPU count, ShareGPT's lengths, against silicon."""
    sizes, experts = np.geomspace(*COST_SIZES, 10), 2.0 ** np.arange(7.0)
    model, kernels = architecture(FAMILY, sizes[:, np.newaxis], experts), Silicon(gpu)
    traffic, logs = Traffic(*DEFAULT_TRAFFIC), list[FloatArray]()
    for cap in (math.inf, float(gpu.default_max_num_seqs)):
        deployment = with_traffic(
            Deployment(
                gpu=gpu,
                usd_per_gpu_hour=1.0,
                prompt_tokens=1.0,
                output_tokens=1.0,
                max_num_seqs=cap,
                reserve_bytes=0.0,
            ),
            traffic,
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
    return [cell for key in STAGES for cell in (found[key].cells() if key in found else ("", ""))]


def number(value: float) -> str:
    return f"{value:.1e}" if 0.0 < value < 1e-3 else f"{value:.3g}"


def constants_csv(own: Sequence[Gpu]) -> str:
    """Every constant of every measured system in bf16, and in fp8 where weights that are multiplied in fp8 have their own."""
    columns = {gpu.name: gpu for gpu in own} | {"default": NOBODYS}

    def cell(name: str, gpu: Gpu, weight_bytes: float) -> str:
        if weight_bytes == 1.0 and gpu.fp8_flops_per_s is None:
            return ""
        return number(getattr(constants_of(gpu, weight_bytes), name))

    formats = {"bf16": (2.0, tuple(START)), "fp8": (1.0, FP8_CONSTANTS)}
    rows = [
        [name, words, *(cell(name, gpu, weight_bytes) for gpu in columns.values())]
        for words, (weight_bytes, names) in formats.items()
        for name in names
    ]
    return csv_text(("constant", "format", *columns), rows)


NOBODYS = Gpu(
    name="of nobody", memory_bytes=1.0, memory_bandwidth_bytes_per_s=1.0, bf16_flops_per_s=1.0, fp8_flops_per_s=1.0,
    interconnect_bytes_per_s=1.0, default_max_num_seqs=1, silicon_system=None, source="", date="",
)  # fmt: skip


def kinds_csv(own: Sequence[Gpu], unseen: dict[str, dict[str, list[Passes]]]) -> str:
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
            cells += [*found.cells(), found.signed()]
        rows.append(cells)
    names_of = (f"{stage}_{figure}" for stage in ("decode", "prefill") for figure in ("median", "p90", "bias"))
    return csv_text(("models", *names_of), rows)


def terms_csv(fits: dict[str, dict[str, Fitted]], judged: dict[str, list[Passes]], own: Sequence[Gpu]) -> str:
    """Mean over GPUs, stages and formats of medians and 90th percentiles, without each term."""
    rows: list[list[str]] = []
    for term in TERMS:
        found = [e for gpu in own for e in errors(gpu, fits[gpu.name][term], judged[gpu.name]).values()]
        rows.append(
            [term, *(f"{np.expm1(np.mean([getattr(e, n) for e in found])):.4f}" for n in ("median", "ninth_decile"))]
        )
    return csv_text(("left_out", "median", "p90"), rows)


STAGE_NAMES = ("decode_bf16", "prefill_bf16", "decode_fp8", "prefill_fp8")
HEADER = (
    *("constants", "gpu", "tables", "passes"),
    *(f"{stage}_{figure}" for stage in STAGE_NAMES for figure in ("median", "p90")),
    *("usd_per_mtok_median", "usd_per_mtok_p90", "usd_per_mtok_bias"),
)
OWN, PART, OTHERS, SHARED_ONCE = (
    "its own",
    "of the part it is scaled from",
    "mean of the other GPUs",
    "one set for all, before",
)


def computed() -> dict[str, str]:
    """Every table, by name."""
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

    def line(constants: str, gpu: Gpu, fitted: Fitted, source: LatencySource) -> list[str]:
        tables = f"{ENGINE} {default_version(str(gpu.silicon_system), ENGINE)}"
        passes = sum(part.measured_s.size for part in judged[gpu.name])
        cost = cost_error(gpu, source)
        about = [constants, gpu.name, tables, f"{passes}"]
        return [*about, *row(gpu, fitted, judged[gpu.name]), *cost.cells(), cost.signed()]

    def unmeasured(gpu: Gpu) -> list[str]:
        others = default_of(fits[other.name]["nothing"] for other in own if other is not gpu)
        constants = replace(others[2.0], per_iteration_overhead_s=host_s())
        return line(OTHERS, gpu, others, Roofline(gpu, constants=constants))

    before = {gpu.name: Added(Roofline(gpu, constants=SHARED), host_s()) for gpu in own}
    rows = [line(OWN, gpu, shipped(gpu), Roofline(gpu)) for gpu in own]
    rows += [line(PART, gpu, shipped(gpu), Roofline(gpu)) for gpu in scaled]
    rows += [unmeasured(gpu) for gpu in own]
    rows += [line(SHARED_ONCE, gpu, shared(), before[gpu.name]) for gpu in own]
    return {
        ERRORS: csv_text(HEADER, rows),
        KINDS: kinds_csv(own, unseen),
        LEFT_OUT: terms_csv(fits, judged, own),
        CONSTANTS: constants_csv(own),
    }


def percent(cell: str, sign: str = "") -> str:
    """A cell as whole percents; empty where it is."""
    return f"{float(cell):{sign}.0%}" if cell else ""


def both(row: Mapping[str, str], name: str) -> str:
    """Median and 90th percentile of a figure."""
    return f"{percent(row[f'{name}_median'])}, {percent(row[f'{name}_p90'])}" if row[f"{name}_median"] else ""


def own_table(rows: Rows) -> list[str]:
    """The errors of the GPUs that have constants of their own."""
    head = ("GPU", "decode", "prefill", "decode, fp8", "prefill, fp8", "$/Mtok", "bias")
    figures = (*STAGE_NAMES, "usd_per_mtok")
    mine = [row for row in rows if row["constants"] == OWN]
    cells = ([r["gpu"], *(both(r, name) for name in figures), percent(r["usd_per_mtok_bias"], "+")] for r in mine)
    return table(head, cells, numbers=6)


def constants_table(rows: Rows) -> list[str]:
    """Errors by where a GPU's constants are from: the median over GPUs of medians, and the GPU with the largest 90th percentile."""
    cells: list[list[str]] = []
    for constants in dict.fromkeys(row["constants"] for row in rows):
        mine = [row for row in rows if row["constants"] == constants]
        line = [constants, f"{len(mine)}"]
        for name in ("decode_bf16", "prefill_bf16", "usd_per_mtok"):
            typical = float(np.median([float(row[f"{name}_median"]) for row in mine]))
            worst = max(mine, key=lambda row: float(row[f"{name}_p90"]))
            line.append(f"{typical:.0%} ({worst['gpu']} {both(worst, name)})")
        cells.append(line)
    return table(("constants", "GPUs", "decode", "prefill", "$/Mtok"), cells, numbers=4)


def kinds_text(rows: Rows) -> str:
    """Errors by kind of model."""
    parts: list[str] = []
    for row in rows:
        stages = (f"{s} {both(row, s)} (bias {percent(row[f'{s}_bias'], '+')})" for s in ("decode", "prefill"))
        parts.append(f"{row['models']}: {'; '.join(stages)}")
    return ". ".join(parts)


def page(tables: Mapping[str, Rows]) -> str:
    """The text of docs/evidence/kernels.md with its part of the roofline, from the stored tables."""
    rows = tables[ERRORS]
    terms = {row["left_out"]: f"{float(row['median']):.1%}" for row in tables[LEFT_OUT]}
    parts = {
        "host-ms": f"{host_s() * 1e3:.1f}",
        "passes": f"{sum(int(row['passes']) for row in rows if row['constants'] == OWN):,}",
        "unseen": ", ".join(UNSEEN_MODELS),
        "seen-sizes": ", ".join(f"{n:.2g}" for n in SEEN[0]),
        "seen-experts": ", ".join(f"{e:.0f}" for e in SEEN[1]),
        "seen": ", ".join(SEEN_MODELS),
        "gpu-counts": ", ".join(f"{g:.0f}" for g in GPU_COUNTS),
        "most-prompt-tokens": f"{MOST_PROMPT_TOKENS:,.0f}",
        "errors": own_table(rows),
        "constants": constants_table(rows),
        "kinds": kinds_text(tables[KINDS]),
        "all-terms": terms.pop("nothing"),
        "terms": ", ".join(f"{term} {error}" for term, error in terms.items()),
    }
    return filled(PAGE, parts, OWNER)


if __name__ == "__main__":
    if "--stored" not in sys.argv:
        for name, text in computed().items():
            write(name, text)
    write(PAGE, page({name: read_csv(name) for name in (ERRORS, KINDS, LEFT_OUT)}))
