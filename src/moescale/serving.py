"""Batch, iteration latency, throughput and dollars per token of a served model (the paper's appendix B)."""

from __future__ import annotations

from dataclasses import dataclass

from moescale.architecture import Architecture, FloatArray, Real
from moescale.hardware import Gpu
from moescale.latency import LatencySource


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """How a model is served: hardware, price, traffic, limits."""

    gpu: Gpu
    usd_per_gpu_hour: float
    prompt_tokens: float  # p, mean prompt length
    output_tokens: float  # n, mean output length
    max_gpus: int = 8
    max_num_seqs: float | None = None  # None: memory alone limits the batch
    memory_fraction: float = 0.9  # share of GPU memory for weights and KV cache, as vLLM's gpu_memory_utilization
    utilization: float = 1.0  # share of the plateau throughput that traffic uses
    weight_bytes_per_param: float = 2.0  # bf16
    kv_bytes_per_element: float = 2.0  # bf16


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """Serving figures over the common shape of models and GPU counts; infeasible entries cost infinity."""

    gpus: FloatArray
    batch: FloatArray  # concurrent requests, a time average (0 where infeasible)
    prefill_s: FloatArray
    decode_s: FloatArray
    iteration_s: FloatArray
    throughput_tok_s: FloatArray  # output tokens a second of the whole deployment (0 where infeasible)
    usd_per_mtok: FloatArray  # dollars per million output tokens (inf where infeasible)
    weight_bytes: FloatArray  # of the whole model
    kv_bytes_per_token: FloatArray  # of the whole model
    limited_by: FloatArray  # index into LIMITS
    infeasible: FloatArray  # index into REASONS, 0 where feasible


LIMITS = ("memory", "max_num_seqs", "latency")


def serve(model: Architecture, gpus: Real, latency: LatencySource, deployment: Deployment) -> Serving:
    """Serving figures of `model` on `gpus` GPUs; model fields and `gpus` broadcast."""
    raise NotImplementedError


def cheapest(model: Architecture, latency: LatencySource, deployment: Deployment) -> Serving:
    """Serving figures at the GPU count from 1 to `deployment.max_gpus` with the fewest dollars per token."""
    raise NotImplementedError
