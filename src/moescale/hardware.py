"""GPUs and their prices, read from the catalogue."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from moescale import catalogue
from moescale.errors import InputError, unknown_name

DEFAULT_TERMS = "on-demand"


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
    # Name in aiconfigurator-core's tables of this GPU, or of one with the same cores whose kernels can be scaled to its
    # memory and clock; None: there is none.
    silicon_system: str | None
    source: str
    date: str
    # Whose all-reduce holds for this card, where not that of `silicon_system`: for PCIe cards of a part measured on NVLink.
    silicon_link_system: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What one GPU costs an hour."""

    gpu: str
    usd_per_gpu_hour: float
    terms: str  # on-demand, spot, owned ..
    source: str
    date: str


def _gpu(name: str, entry: dict[str, Any]) -> Gpu:
    fp8_tflops: float | None = entry.get("fp8_tflops")
    return Gpu(
        name=name,
        memory_bytes=float(entry["memory_gib"]) * 2.0**30,
        memory_bandwidth_bytes_per_s=float(entry["bandwidth_gb_per_s"]) * 1e9,
        bf16_flops_per_s=float(entry["bf16_tflops"]) * 1e12,
        fp8_flops_per_s=None if fp8_tflops is None else float(fp8_tflops) * 1e12,
        interconnect_bytes_per_s=float(entry["link_gb_per_s"]) * 1e9,
        default_max_num_seqs=int(entry["max_num_seqs"]),
        silicon_system=entry.get("silicon_system"),
        silicon_link_system=entry.get("silicon_link_system"),
        source=entry["source"],
        date=entry["date"],
    )


@cache
def _read_gpus() -> tuple[Gpu, ...]:
    return tuple(_gpu(name, entry) for name, entry in catalogue.read("gpus.toml")["gpu"].items())


@cache
def _read_prices() -> tuple[Price, ...]:
    return tuple(Price(**entry) for entry in catalogue.read("prices.toml")["price"])


def gpus() -> dict[str, Gpu]:
    """Every GPU of the catalogue by name."""
    return {gpu.name: gpu for gpu in _read_gpus()}


def find_gpu(name: str) -> Gpu:
    """The GPU called `name` (either case, `_` as `-`); raises InputError that names the nearest ones."""
    known = gpus()
    found = known.get(name.strip().lower().replace("_", "-"))
    if found is None:
        raise unknown_name("GPU", name, known)
    return found


def prices(gpu_name: str) -> list[Price]:
    """Every recorded price of a GPU, possibly none; raises InputError where the GPU is unknown."""
    gpu = find_gpu(gpu_name)
    return [price for price in _read_prices() if price.gpu == gpu.name]


def price(gpu_name: str, terms: str = DEFAULT_TERMS) -> Price:
    """The recorded price of a GPU on `terms` (on-demand, spot, owned); raises InputError where there is none."""
    recorded = prices(gpu_name)
    for candidate in recorded:
        if candidate.terms == terms.strip().lower():
            return candidate
    listed = ", ".join(f"{entry.terms} at ${entry.usd_per_gpu_hour:.2f}" for entry in recorded)
    raise InputError(
        f"no {terms} price is recorded for {find_gpu(gpu_name).name}",
        nearest=listed or None,
        next_step="pass --usd-per-gpu-hour with what you pay",
    )
