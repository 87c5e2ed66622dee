"""Write docs/roofline.md: the roofline's constants, and how far it is from measured kernels on models that no fit saw.

python scripts/document_roofline.py
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

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
from moescale.io.files import write_atomically
from moescale.latency import LatencySource
from moescale.latency.kernels.tables import default_version
from moescale.latency.roofline import Roofline, RooflineConstants, constants_of
from moescale.latency.silicon import ENGINE, Silicon, host_s
from moescale.models.architecture import Architecture
from moescale.models.family import architecture
from moescale.serving.deployment import Deployment, with_traffic
from moescale.serving.gpu_counts import cheapest
from moescale.serving.traffic import find_traffic
from moescale.typing import FloatArray, Real
from refresh_docs import refreshed

PAGE = Path("docs/roofline.md")
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

    def prefill_s(
        self, model: Architecture, gpus: Real, batch: Real, prompt_tokens: Real, *, expert_parallel: Real = 1.0
    ) -> FloatArray:
        return self.roofline.prefill_s(model, gpus, batch, prompt_tokens, expert_parallel=expert_parallel) + self.host_s

    def decode_s(
        self, model: Architecture, gpus: Real, batch: Real, context_tokens: Real, *, expert_parallel: Real = 1.0
    ) -> FloatArray:
        return self.roofline.decode_s(model, gpus, batch, context_tokens, expert_parallel=expert_parallel) + self.host_s

    def mixed_s(
        self, model: Architecture, gpus: Real, batch: Real, context_tokens: Real, prompts: Real, prompt_tokens: Real, *,
        expert_parallel: Real = 1.0,
    ) -> FloatArray:  # fmt: skip
        ways = expert_parallel
        asked = (model, gpus, batch, context_tokens, prompts, prompt_tokens)
        return self.roofline.mixed_s(*asked, expert_parallel=ways) + self.host_s


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


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(header)} |", "|" + "---|" * len(header), *(f"| {' | '.join(cells)} |" for cells in rows)]


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
    lines = [
        "# Latency from a roofline",
        "",
        "Written by `python scripts/document_roofline.py`; do not edit. Constants: `python scripts/calibrate_roofline.py`.",
        "",
        "`--latency roofline` needs no kernel tables: it answers on every platform, for every GPU whose data sheet is known, and",
        "for every shape and size. It is what `--latency auto` falls back to, with a warning, where aiconfigurator-core has no",
        "wheel (macOS, ARM) or no tables of the GPU or of the model's kernels. Its constants are fitted, one set a GPU, to",
        "[silicon](silicon.md), which composes passes from those tables.",
        "",
        "## The formula",
        "",
        "A layer's kernels are added up. Dense products, experts and LM head take (r^p + a^p)^(1/p), r bytes of weights over the",
        "reached bandwidth, a FLOPs over the reached arithmetic, p = 1 / `ridge_softness`. Decode attention reads the cache,",
        "prompt attention computes; an all-reduce of m bytes over g GPUs of bandwidth B takes `allreduce_latency_s` +",
        "(g - 2) `allreduce_latency_per_gpu_s` + m / B (2 (g - 1) / g / `interconnect_efficiency` + (g - 2)",
        "`interconnect_contention`). Activations add `activation_traffic` times the bytes of norms and of both sides of each",
        "product; every layer adds its launches. The host schedules and samples while the GPU works: a pass takes the longer",
        f"of its kernels and {host_s() * 1e3:.1f} ms, as in silicon.",
        "",
        "## How far it is from measured kernels",
        "",
        f"Against silicon, kernels alone, {passes:,} passes of models that no fit saw: the paper's family at sizes between the fitted",
        f"ones and with 2 and 32 experts as well, and {', '.join(UNSEEN_MODELS)}. The fit saw the family at "
        f"{', '.join(f'{n:.2g}' for n in SEEN[0])}",
        f"parameters with {', '.join(f'{e:.0f}' for e in SEEN[1])} experts, and {', '.join(SEEN_MODELS)}.",
        f"Passes are drawn evenly in the logarithms: {', '.join(f'{g:.0f}' for g in GPU_COUNTS)} GPUs, 1 to 2,048 requests, 32 to 8,192 tokens each, prompts of at",
        f"most {MOST_PROMPT_TOKENS:,.0f} tokens a pass; what the memory does not hold is left out. A quarter of the MoE passes is expert-parallel.",
        "Each cell: the median error, and what nine of ten passes stay within, as a factor minus one. $/Mtok: the paper's",
        "family from 1e8 to 2.56e10 parameters with 1 to 64 experts, ShareGPT's lengths, at its cheapest GPU count, with and",
        "without vLLM's max_num_seqs; its bias is the median of ours over silicon's, minus one.",
        "",
        *table(header, map(ours, own)),
        "",
        f"Tables: {tables}. GB200 and GB300 servers have 4 GPUs.",
        "",
        *kinds_table(own, unseen),
        "",
        "Before, with one set of constants for all GPUs, and in the costs with the host's time added to each pass:",
        "",
        *table(header, map(before, own)),
        "",
        "Cards whose kernels silicon scales from another part (not measurements, then, and not fitted): they take the constants",
        "of that part, and PCIe cards the link constants of the RTX PRO 6000 server; so do L40S and L4, whose own server's collapse.",
        "",
        *table(header, map(ours, scaled)),
        "",
        "### A GPU without tables",
        "",
        "takes the default constants. How good those are: each measured GPU with the mean of all the others. Where a benchmark of",
        "kernels is published, efficiencies are less in its proportion: MI300X reaches 45% of its arithmetic and 81% of its",
        "bandwidth where NVIDIA's GPUs reach 93% and 90% (arXiv 2510.27583), stated in `catalogue/gpus.toml`.",
        "",
        *table(header, map(unmeasured, own)),
        "",
        "### What each term earns",
        "",
        "The fit without it; means over GPUs, stages and formats.",
        "",
        *terms_table(fits, judged, own),
        "",
        "Tried and left out, as they changed the median by less than half a percent: padding of small expert batches, a softness of",
        "the experts' own, and fewer distinct experts under uneven load.",
        "",
        "## fp8",
        "",
        "Products of fp8 weights in blocks, which silicon takes, carry 60 (H100) to 300 (L40S) microseconds in vLLM's tables",
        "however small they are, and 85 milliseconds on RTX PRO 6000: launches outside of a CUDA graph, or a fallback. The",
        "roofline is fitted to products with per-tensor scales instead, and to experts in blocks. With fp8 weights the two",
        "sources differ, therefore, and most for small batches and models.",
        "",
        "## When to trust it",
        "",
        "- Cost, to about a tenth on a GPU with constants of its own; the part of it that the bias column shows is shared by all",
        "  models, so that comparisons of models on one GPU are better than that.",
        "- Absolute latencies to about a tenth there, one pass in ten being off by a fifth to a third; on a GPU without tables to",
        "  the errors of the table above. All-reduces over PCIe are the worst: the share of the data sheet's rate that",
        "  4 and 8 cards reach is 12% and 6% in the L40S server of the tables, 45% and 38% in that of RTX PRO 6000, and no data",
        "  sheet says which a server is like. A GPU's own file may name either as its `silicon_link_system`.",
        "- Latent attention (DeepSeek) decodes a seventh faster here than its measured modules, of which those in fp8 carry launches as well.",
        "- Constants are not the efficiency of any one kernel: near the ridge they trade with the softness, and an expert's",
        "  bandwidth near 1 stands for the uneven load, under which fewer experts are read than under uniform routing.",
        "- Left out: unequal load of the experts of one GPU, padding of products to tiles and waves, more than one server.",
        "- Where kernels were measured, take silicon. Neither knows a server's queue; see [servings](servings.md).",
        "",
        "## A GPU by numbers",
        "",
        "`--gpu` takes the name of a catalogue entry, or the path of a TOML file with the fields of one. A TPU:",
        "",
        "```console",
        "$ cat examples/gpus/tpu-v5e.toml",
        "$ moescale cost --n-params 1.5B --experts 16 --gpu examples/gpus/tpu-v5e.toml --latency roofline",
        "$ moescale cost --config examples/configs/mixtral-8x7b.json --gpu mi300x --usd-per-gpu-hour 2 --max-gpus 4 --latency roofline",
        "```",
        "",
        "`name`, `memory_gib`, `bandwidth_gb_per_s`, `bf16_tflops` and `link_gb_per_s` (one direction) are needed; without",
        "`fp8_tflops` the GPU multiplies fp8 weights in bf16, without `usd_per_gpu_hour` the price is asked for, and a",
        "`silicon_system` names a measured part with the same cores. A TPU's compiler, its padding to 128 x 128 and its servers",
        "are not in any constant: take its numbers as what a GPU of that data sheet would do.",
        "",
        "## Constants",
        "",
        "Of bf16; after a semicolon of fp8 weights, where they differ. Sources and dates: `src/moescale/catalogue/roofline.toml`.",
        "",
        *constants_table(own),
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    write_atomically(PAGE, refreshed(page())[0])
