"""Calibrated constants of the roofline: the share of its data sheet that a GPU reaches, and overheads of layers, messages and passes."""

from __future__ import annotations

import functools
from dataclasses import dataclass, fields, replace
from typing import Any

from moescale import catalogue
from moescale.hardware.gpus import Gpu

LINKS = ("interconnect_efficiency", "interconnect_contention", "allreduce_latency_s", "allreduce_latency_per_gpu_s")
# Shares of the data sheet that NVIDIA's GPUs reach where an accelerator without tables has a share of its own, by the same
# benchmarks: up to 93% in large products, up to 90% in long copies (Ambati et al., arXiv 2510.27583, October 2025).
USUAL_ARITHMETIC_SHARE, USUAL_MEMORY_SHARE = 0.93, 0.90
ARITHMETIC = ("gemm_compute_efficiency", "moe_compute_efficiency", "attention_compute_efficiency")
MEMORY = ("memory_efficiency", "expert_memory_efficiency", "cache_memory_efficiency")
# Bytes a weight, scales included, between which fp8 arithmetic is meant; int4 weights are multiplied in bf16.
FP8_BYTES = (0.75, 1.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflineConstants:
    """What the data sheet does not say; values and sources in catalogue/roofline.toml."""

    memory_efficiency: float  # reached share of memory bandwidth, weights of dense matrix products and all activations
    expert_memory_efficiency: float  # the same, weights of experts
    cache_memory_efficiency: float  # the same, KV cache in decode attention
    gemm_compute_efficiency: float  # reached share of peak arithmetic, dense matrix products
    moe_compute_efficiency: float  # the same, expert matrix products
    attention_compute_efficiency: float  # the same, prefill attention
    # How far reading and arithmetic of one product add up near the ridge: (r^p + a^p)^(1/p) with p = 1 / softness.
    # 0: the longer of the two, 1: their sum.
    ridge_softness: float
    # Moved bytes of norms, activations and products, over the activation bytes that `roofline` counts.
    activation_traffic: float
    interconnect_efficiency: float  # reached share of interconnect bandwidth in an all-reduce
    interconnect_contention: float  # every GPU beyond two adds this share of a message's time: a bus that all share
    allreduce_latency_s: float  # of a message without bytes between two GPUs
    allreduce_latency_per_gpu_s: float  # what every further GPU adds to it
    per_layer_overhead_s: float  # kernel launches of one layer
    per_moe_layer_overhead_s: float  # what the router and the experts of a layer add
    per_latent_layer_overhead_s: float  # what the further products of latent attention add
    per_prompt_layer_overhead_s: float  # what a pass with prompts adds to a layer: rotary positions, filling the cache
    per_iteration_overhead_s: float  # scheduling and sampling on the CPU as the GPU works: the least that a pass takes


@functools.cache
def measured_constants() -> dict[str, RooflineConstants]:
    """The constants by measured system, such as h100_sxm and h100_sxm.fp8 (weights multiplied in fp8), and their geometric means as `default`."""
    table = catalogue.read("roofline.toml")
    names = [f.name for f in fields(RooflineConstants)]
    host = {name: float(entry["value"]) for name, entry in table["host"].items()}
    found: dict[str, RooflineConstants] = {}
    for system, entry in table["system"].items():
        own = host | {name: float(entry[name]) for name in names if name in entry}
        found[system] = RooflineConstants(**own)
        found[f"{system}.fp8"] = replace(found[system], **entry.get("fp8", {}))
    return found


def constants_of(gpu: Gpu, weight_bytes_per_param: float = 2.0, weights: str | None = None) -> RooflineConstants:
    """The constants of a GPU with weights of so many bytes, those of its links included; else the default ones.

    Where a GPU without tables is known to reach another share of its data sheet than NVIDIA's do by the same benchmark,
    the default efficiencies are less in that proportion. Products in fp4 are taken to reach the share of their peak
    that those in fp8 do.
    """
    known, suffix = measured_constants(), ".fp8" if narrow_peak(gpu, weight_bytes_per_param, weights) else ""

    def named(name: str | None) -> RooflineConstants:
        return known[f"{name if name in known else 'default'}{suffix}"]

    links = named(gpu.silicon_link_system or gpu.silicon_system)
    found = replace(named(gpu.silicon_system), **{name: getattr(links, name) for name in LINKS})
    if gpu.silicon_system in known:
        return found
    ratios = {name: (gpu.arithmetic_share or USUAL_ARITHMETIC_SHARE) / USUAL_ARITHMETIC_SHARE for name in ARITHMETIC}
    ratios |= {name: (gpu.memory_share or USUAL_MEMORY_SHARE) / USUAL_MEMORY_SHARE for name in MEMORY}
    found = replace(found, **{name: min(ratio * getattr(found, name), 1.0) for name, ratio in ratios.items()})
    return replace(found, **{key: value for key, value in _on_servings(gpu).items() if key.endswith("_s")})


def _on_servings(gpu: Gpu) -> dict[str, Any]:
    """Constants of a GPU that were chosen on measured servings: catalogue/measured_overheads.toml, with the rule."""
    return catalogue.read("measured_overheads.toml")["gpu"].get(gpu.name, {})


def basis(gpu: Gpu, *, latent: bool = False) -> str | None:
    """What the times of a GPU without measured kernels, of a model with `latent` attention or others, rest on; None for other GPUs."""
    if gpu.silicon_system is not None:
        return None
    found = f"{gpu.name}: roofline with the mean efficiencies of the measured GPUs"
    if gpu.arithmetic_share is not None or gpu.memory_share is not None:
        arithmetic, memory = gpu.arithmetic_share or USUAL_ARITHMETIC_SHARE, gpu.memory_share or USUAL_MEMORY_SHARE
        found += f", lowered to {arithmetic:.0%} of its arithmetic and {memory:.0%} of its bandwidth"
    entry = _on_servings(gpu)
    if latent and entry:
        each_us = entry["per_latent_layer_overhead_s"] * 1e6
        found += f"; latent layers carry {each_us:.0f} us each, from servings of DeepSeek-R1 on {entry['measured_on'].upper()}"
    return found if entry.get("measured_on") == gpu.name else f"{found}; no measurement of {gpu.name} was compared"


def narrow_peak(gpu: Gpu, weight_bytes_per_param: float, weights: str | None) -> float | None:
    """FLOPs a second of such weights in fewer than 16 bits; None where the GPU brings them to 16, as it does int4 and mxfp4."""
    if weights == "nvfp4" and gpu.fp4_flops_per_s is not None:
        return gpu.fp4_flops_per_s
    return gpu.fp8_flops_per_s if FP8_BYTES[0] <= weight_bytes_per_param <= FP8_BYTES[1] else None
