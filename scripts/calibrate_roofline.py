"""Fit the roofline's constants to measured kernels, one set a measured system, and write them with their errors.

    python scripts/calibrate_roofline.py            writes src/moescale/catalogue/roofline.toml

Judge of every pass is latency/silicon.py on vLLM's tables without the host's time. The fit sees one set of models, the
errors in docs/evidence/kernels.md (scripts/document_roofline.py) are of another; no measured server enters, so that servers stay
a check of the whole model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from moescale import catalogue
from moescale.hardware.gpus import Gpu, gpus
from moescale.io.files import write_atomically
from moescale.latency import LatencySource
from moescale.latency.card import ENGINE
from moescale.latency.kernels.tables import System, default_version, find_system, measured_formats
from moescale.latency.latent import module_types
from moescale.latency.roofline import Roofline
from moescale.latency.roofline_constants import RooflineConstants
from moescale.latency.silicon import Silicon
from moescale.models.architecture import NUMERIC_FIELDS, Architecture
from moescale.models.family import architecture, find_family
from moescale.models.parameters import kv_bytes_per_request, weight_bytes_per_gpu
from moescale.models.published import shapes
from moescale.typing import FloatArray

FAMILY = find_family("yun2024")
# Sizes and expert counts of the paper's family, and published models, that the fit sees; and those that judge it.
SEEN = (np.geomspace(1e8, 2.56e10, 5), (1.0, 4.0, 8.0, 16.0, 64.0))
UNSEEN = (np.geomspace(2e8, 1.28e10, 4), (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0))
SEEN_MODELS = (
    "qwen3-0.6b", "llama-3.1-8b", "qwen3-32b", "llama-3.1-70b", "qwen1.5-moe-a2.7b", "mixtral-8x7b", "qwen3-30b-a3b",
    "gpt-oss-120b", "llama-4-scout",
)  # fmt: skip
UNSEEN_MODELS = (
    "qwen3-1.7b", "llama-2-7b", "mistral-7b", "qwen2.5-7b", "qwen3-8b", "llama-33b", "qwen2.5-72b", "olmoe-1b-7b",
    "gpt-oss-20b", "mixtral-8x22b", "qwen3-235b-a22b", "qwen3-coder-480b-a35b", "llama-4-maverick",
)  # fmt: skip
# Latent attention has kernels of its own, and one constant of its own; in bf16, as the fp8 ones carry launches (Judge).
SEEN_LATENT = ("deepseek-v2-lite", "deepseek-v2")
UNSEEN_LATENT = ("deepseek-v3",)
POINTS = 40  # of each model, stage and number format
TRIES = 40 * POINTS
GPU_COUNTS = (1.0, 2.0, 4.0, 8.0)
BATCHES, LENGTHS = (1.0, 2048.0), (32.0, 8192.0)
MOST_PROMPT_TOKENS = 65_536.0  # of one pass: four times what servers are set to
USABLE = 0.95  # of the memory: passes that no server could be in are not asked for
EXPERT_PARALLEL_SHARE = 0.25  # of the points of MoE models on several GPUs
OUTLIER = 0.1  # errors beyond it weigh less
SEED = 0
NOTHING = 1e-3  # of a constant's usual size
SAME = 0.02  # data sheets are rounded
DATE = "2026-11-21"
CATALOGUE = Path("src/moescale/catalogue/roofline.toml")
DEFAULT_SOURCE = "geometric means of the measured systems; medians of constants that may be 0"


class Judge(Silicon):
    """Silicon with per-tensor fp8 products.

    The products of fp8 in blocks that the tables hold take 60 (H100) to 300 (L40S) microseconds however small they are,
    and 85 milliseconds on RTX PRO 6000: launches outside of a CUDA graph, or a fallback, not what a server waits for.
    """

    def product_kind(self, model: Architecture, *, with_experts: bool) -> str:
        """Per-tensor fp8 where weights are of 8 bits, with experts or without; else bf16."""
        narrow = self.weight_bytes_per_param < 1.5 and "fp8" in measured_formats("gemm", *self.tables)
        return "fp8" if narrow else "bfloat16"


@dataclass(frozen=True, slots=True, eq=False)
class Passes:
    """Passes of one stage and number format: one model, GPU count, batch and length a point, and what silicon says."""

    stage: str
    weight_bytes: float
    model: Architecture  # every field (points,)
    model_index: npt.NDArray[np.intp]
    gpus: FloatArray
    batch: FloatArray
    tokens: FloatArray
    expert_parallel: FloatArray
    measured_s: FloatArray

    @property
    def latent(self) -> bool:
        """Whether the models have latent attention."""
        return bool(np.any(np.asarray(self.model.kv_lora_rank) > 0))

    def ask(self, source: LatencySource) -> FloatArray:
        """Seconds that a source answers for these passes."""
        ask = source.decode_s if self.stage == "decode" else source.prefill_s
        return ask(self.model, self.gpus, self.batch, self.tokens, expert_parallel=self.expert_parallel)


def family_models(sizes: FloatArray, experts: Sequence[float]) -> list[Architecture]:
    """Models of the paper's family."""
    return [replace(architecture(FAMILY, n, e), name=f"{n:.2g} x {e:.0f}") for n in sizes for e in experts]


def seen_passes(gpu: Gpu) -> list[Passes]:
    """The passes that the fit sees; latent attention apart, and only where its kernels were measured."""
    plain = family_models(*SEEN) + [shapes()[name] for name in SEEN_MODELS]
    return design(gpu, plain) + design(gpu, [shapes()[name] for name in SEEN_LATENT])


def unseen_models() -> dict[str, list[Architecture]]:
    """Models that judge the fit, by kind."""
    return {
        "family": family_models(*UNSEEN),
        "published": [shapes()[name] for name in UNSEEN_MODELS],
        "latent": [shapes()[name] for name in UNSEEN_LATENT],
    }


def log_uniform(rng: np.random.Generator, bounds: tuple[float, float]) -> FloatArray:
    low, high = bounds
    return np.exp(rng.uniform(np.log(low), np.log(high), TRIES))


def draw(
    gpu: Gpu, models: Sequence[Architecture], stage: str, weight_bytes: float, rng: np.random.Generator
) -> Passes | None:
    """Passes of servers that could exist, drawn evenly in the logarithms; None where no GPU count holds any model."""
    source = Judge(gpu, weight_bytes_per_param=weight_bytes, host_s=0.0)
    rows: list[FloatArray] = []
    for index, model in enumerate(models):
        count, batch, tokens = rng.choice(GPU_COUNTS, TRIES), log_uniform(rng, BATCHES), log_uniform(rng, LENGTHS)
        whole = rng.uniform(size=TRIES) < EXPERT_PARALLEL_SHARE
        routed = float(np.asarray(model.n_experts)) if np.any(np.asarray(model.n_moe_layers) > 0) else 1.0
        ways = np.where(whole & (count <= routed), count, 1.0)
        held = weight_bytes_per_gpu(model, weight_bytes, count, ways)
        held = held + batch * kv_bytes_per_request(model, tokens, 2.0, count)
        fits = held <= USABLE * gpu.memory_bytes
        if stage == "prefill":
            fits &= batch * tokens <= MOST_PROMPT_TOKENS
        taken = np.flatnonzero(fits)[:POINTS]
        if not taken.size:
            continue
        asked = (count[taken], batch[taken], tokens[taken], ways[taken])
        ask = source.decode_s if stage == "decode" else source.prefill_s
        seconds = ask(model, *asked[:3], expert_parallel=asked[3])
        known = np.isfinite(seconds)
        rows.append(np.stack([np.full(known.sum(), float(index)), *(v[known] for v in asked), seconds[known]]))
    if not rows:
        return None
    which, count, batch, tokens, ways, seconds = np.concatenate(rows, axis=1)
    index = which.astype(np.intp)
    stacked: dict[str, Any] = {
        name: np.array([float(np.asarray(getattr(models[i], name))) for i in index]) for name in NUMERIC_FIELDS
    }
    assert len({model.ffn_matrices for model in models}) == 1
    model = Architecture(**stacked, ffn_matrices=models[0].ffn_matrices)
    return Passes(stage, weight_bytes, model, index, count, batch, tokens, ways, seconds)


def formats(gpu: Gpu) -> tuple[float, ...]:
    """Bytes a weight that are asked for: bf16, and fp8 where the GPU multiplies it."""
    return (2.0,) if gpu.fp8_flops_per_s is None else (2.0, 1.0)


def design(gpu: Gpu, models: Sequence[Architecture], seed: int = SEED) -> list[Passes]:
    """Decode and prefill passes of all models in all number formats."""
    rng = np.random.default_rng(seed)
    found = [draw(gpu, models, stage, b, rng) for stage in ("decode", "prefill") for b in formats(gpu)]
    return [passes for passes in found if passes is not None and passes.measured_s.size]


def log_errors(gpu: Gpu, constants: RooflineConstants, passes: Passes) -> FloatArray:
    """log(roofline / silicon) of each pass, kernels alone."""
    kernels = replace(constants, per_iteration_overhead_s=0.0)
    return np.log(passes.ask(Roofline(gpu, passes.weight_bytes, constants=kernels)) / passes.measured_s)


# Where the search starts, and its bounds; efficiencies above 1 would beat the data sheet.
START: dict[str, tuple[float, float, float]] = {
    "memory_efficiency": (0.75, 0.1, 1.0),
    "expert_memory_efficiency": (0.75, 0.1, 1.0),
    "cache_memory_efficiency": (0.75, 0.1, 1.0),
    "gemm_compute_efficiency": (0.8, 0.05, 1.0),
    "moe_compute_efficiency": (0.5, 0.02, 1.0),
    "attention_compute_efficiency": (0.5, 0.02, 1.0),
    "ridge_softness": (0.3, 0.0, 1.0),
    "activation_traffic": (1.0, 0.0, 10.0),
    "interconnect_efficiency": (0.6, 0.01, 1.0),
    "interconnect_contention": (0.1, 0.0, 30.0),
    "allreduce_latency_s": (5e-6, 1e-6, 1e-3),
    "allreduce_latency_per_gpu_s": (1e-6, 0.0, 1e-3),
    "per_layer_overhead_s": (4e-5, 1e-6, 1e-3),
    "per_moe_layer_overhead_s": (2e-5, 0.0, 1e-3),
    "per_latent_layer_overhead_s": (1e-5, 0.0, 1e-3),
    "per_prompt_layer_overhead_s": (1e-5, 0.0, 1e-3),
}
# Of weights that are multiplied in fp8, everything else is as in bf16.
FP8_CONSTANTS = (
    "memory_efficiency", "expert_memory_efficiency", "gemm_compute_efficiency", "moe_compute_efficiency",
    "ridge_softness", "activation_traffic", "per_layer_overhead_s", "per_moe_layer_overhead_s",
)  # fmt: skip


def fit(gpu: Gpu, passes: Sequence[Passes], fixed: dict[str, float] | None = None) -> RooflineConstants:
    """Least squares on the logarithms, soft L1 beyond OUTLIER; `fixed` constants are left where they are."""
    from scipy.optimize import least_squares

    held = fixed or {}
    free = [name for name in START if name not in held]
    scale = np.array([START[name][0] for name in free])

    def constants(x: FloatArray) -> RooflineConstants:
        found = dict(zip(free, (float(v) for v in x * scale), strict=True))
        return RooflineConstants(**{**held, **found}, per_iteration_overhead_s=0.0)

    def off(x: FloatArray) -> FloatArray:
        return np.concatenate([log_errors(gpu, constants(x), part) for part in passes])

    low, high = (np.array([START[name][i] for name in free]) / scale for i in (1, 2))
    found = least_squares(off, np.ones(len(free)), bounds=(low, high), loss="soft_l1", f_scale=OUTLIER)
    return constants(found.x)


Fitted = dict[float, RooflineConstants]  # by bytes a weight: 2 bf16, 1 fp8


def fit_formats(gpu: Gpu, passes: Sequence[Passes], fixed: dict[str, float] | None = None) -> Fitted:
    """Constants of bf16, and of fp8 where the GPU multiplies it, rounded as they are written."""
    plain = {"per_latent_layer_overhead_s": 0.0} | (fixed or {})
    wide = [part for part in passes if part.weight_bytes == 2.0]
    found = {2.0: rounded(fit(gpu, [part for part in wide if not part.latent], plain))}
    narrow = [part for part in passes if part.weight_bytes == 1.0 and not part.latent]
    latent = [part for part in wide if part.latent]
    if latent:
        kept = {name: getattr(found[2.0], name) for name in START if name != "per_latent_layer_overhead_s"}
        found[2.0] = rounded(fit(gpu, latent, kept))
    if narrow:
        kept = {name: getattr(found[2.0], name) for name in START if name not in FP8_CONSTANTS}
        found[1.0] = rounded(fit(gpu, narrow, kept | (fixed or {})))
    return found


def rounded(constants: RooflineConstants) -> RooflineConstants:
    """Three digits, and zero where nothing would change."""
    values = {name: float(f"{getattr(constants, name):.3g}") for name in START}
    zero = {name: 0.0 for name, value in values.items() if value < NOTHING * START[name][0]}
    return replace(constants, **(values | zero))


def default_of(fits: Iterable[Fitted]) -> Fitted:
    """Constants of a GPU that nobody measured: geometric means, or medians of those that may be 0."""
    every = list(fits)
    found: Fitted = {}
    for weight_bytes in (2.0, 1.0):
        known = [fitted[weight_bytes] for fitted in every if weight_bytes in fitted]
        values: dict[str, float] = {}
        for name, (_, low, _) in START.items():
            column = np.array([getattr(constants, name) for constants in known])
            if name == "per_latent_layer_overhead_s":  # 0 where its kernels were not measured
                column = column[column > 0.0]
            values[name] = float(np.median(column) if low == 0.0 else np.exp(np.mean(np.log(column))))
        if weight_bytes == 1.0:
            values |= {name: getattr(found[2.0], name) for name in START if name not in FP8_CONSTANTS}
        found[weight_bytes] = rounded(RooflineConstants(**values, per_iteration_overhead_s=0.0))
    return found


def measured_gpus() -> tuple[list[Gpu], list[Gpu]]:
    """GPUs whose own kernels were measured, one a system, and those whose kernels or links silicon takes from another part.

    Of the GPUs with a system's memory bandwidth, the measured one has the arithmetic and the links nearest to the system's. It
    is fitted with the links that were measured with it, also where a server's are another's.
    """
    served = [gpu for gpu in gpus().values() if gpu.silicon_system is not None]
    nearest: dict[str, Gpu] = {}
    for gpu in served:
        system = find_system(str(gpu.silicon_system))
        if abs(gpu.memory_bandwidth_bytes_per_s / system.memory_bandwidth_bytes_per_s - 1.0) < SAME:
            other = nearest.setdefault(system.name, gpu)
            nearest[system.name] = min(other, gpu, key=lambda one: _distance(one, system))
    own = [gpu for gpu in served if nearest.get(str(gpu.silicon_system)) is gpu]
    return [replace(gpu, silicon_link_system=None) for gpu in own], [gpu for gpu in served if gpu not in own]


def _distance(gpu: Gpu, system: System) -> float:
    """How far a data sheet's arithmetic and links are from a system's, in logarithms."""
    rates = (
        (gpu.bf16_flops_per_s, system.bf16_flops_per_s),
        (gpu.interconnect_bytes_per_s, system.link_bytes_per_s),
    )
    return sum(abs(float(np.log(ours / theirs))) for ours, theirs in rates)


def toml(fits: Mapping[Gpu, Fitted], default: Fitted) -> str:
    """catalogue/roofline.toml."""
    package = f"aiconfigurator-core {version('aiconfigurator-core')}"
    host = catalogue.read("roofline.toml")["host"]["per_iteration_overhead_s"]
    lines = [
        "# Constants of latency/roofline.py, written by `python scripts/calibrate_roofline.py`; errors: docs/evidence/kernels.md.",
        "# Efficiencies are shares of the data sheet's figure (catalogue/gpus.toml); times are in seconds. One section a measured",
        "# system (silicon_system of a GPU), in bf16; its `fp8` holds what differs for weights that are multiplied in fp8.",
        "# No measured server was used to choose any of them.",
        "",
        "# Of both sources, silicon too: the host schedules and samples while the GPU works, and no pass is shorter than that.",
        "[host.per_iteration_overhead_s]",
        f"value = {float(host['value']):.1e}",
        f'source = "{host["source"]}"',
        f'date = "{host["date"]}"',
    ]
    sections = [("default", DEFAULT_SOURCE, default)]
    for gpu, fitted in fits.items():
        tables = f"{ENGINE} {default_version(str(gpu.silicon_system), ENGINE)}"
        sections.append(
            (str(gpu.silicon_system), f"fit to kernel tables of {package} ({tables}) on {gpu.name}", fitted)
        )
    for system, source, fitted in sections:
        lines += ["", f"[system.{system}]", f'source = "{source}"', f'date = "{DATE}"']
        lines += [f"{name} = {getattr(fitted[2.0], name):.6g}" for name in START]
        if 1.0 in fitted:
            lines += ["", f"[system.{system}.fp8]"]
            lines += [f"{name} = {getattr(fitted[1.0], name):.6g}" for name in FP8_CONSTANTS]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Fit every measured system, and write the catalogue."""
    fits = {gpu: fit_formats(gpu, seen_passes(gpu)) for gpu in measured_gpus()[0]}
    default = default_of(fits.values())
    for gpu, fitted in fits.items():
        system = str(gpu.silicon_system)
        if not module_types(system, ENGINE, default_version(system, ENGINE), "generation"):
            usual = default[2.0].per_latent_layer_overhead_s
            fits[gpu] = {w: replace(constants, per_latent_layer_overhead_s=usual) for w, constants in fitted.items()}
    write_atomically(CATALOGUE, toml(fits, default))


if __name__ == "__main__":
    main()
