"""GPUs and their prices, read from the catalogue."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU of a server whose GPUs are linked to each other."""

    name: str
    memory_bytes: float  # GiB of the data sheet times 2**30
    memory_bandwidth_bytes_per_s: float
    bf16_flops_per_s: float  # dense, without sparsity
    fp8_flops_per_s: float | None  # None: the GPU has no fp8 arithmetic
    interconnect_bytes_per_s: float  # to the other GPUs of the server, one direction
    default_max_num_seqs: int  # vLLM's own default for this GPU
    silicon_system: str | None  # its name in aiconfigurator-core's tables; None: not measured there
    source: str
    date: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What one GPU costs an hour."""

    gpu: str
    usd_per_gpu_hour: float
    terms: str  # on-demand, spot, owned ..
    source: str
    date: str
