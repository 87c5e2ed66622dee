"""GPUs, their prices, and the bytes of number formats, read from the catalogue."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from moescale import catalogue
from moescale.errors import InputError, unknown_name
from moescale.io.schema import read_toml
from moescale.typing import FloatArray, Real

DEFAULT_TERMS = "on-demand"
HOURS_PER_YEAR = 365.25 * 24
# The fields of a GPU's own file, numbers with their bounds: far beyond what exists, and products far from overflow.
GPU_NUMBERS = {
    "memory_gib": (1e-3, 1e6),
    "bandwidth_gb_per_s": (1e-3, 1e7),
    "bf16_tflops": (1e-3, 1e7),
    "link_gb_per_s": (1e-3, 1e7),
    "fp8_tflops": (1e-3, 1e7),
    "max_num_seqs": (1, 1e6),
    "usd_per_gpu_hour": (1e-6, 1e6),
    "arithmetic_share": (1e-3, 1.0),
    "memory_share": (1e-3, 1.0),
}
GPU_TEXTS = ("name", "silicon_system", "silicon_link_system", "source", "date")
GPU_NEEDED = ("name", "memory_gib", "bandwidth_gb_per_s", "bf16_tflops", "link_gb_per_s")
GPU_OPTIONAL = tuple(key for key in (*GPU_NUMBERS, *GPU_TEXTS) if key not in GPU_NEEDED)
# vLLM's default of max_num_seqs by memory: see max_num_seqs in catalogue/gpus.toml.
LARGE_MEMORY_GIB = 70
MAX_NUM_SEQS = {True: 1024, False: 256}


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
    # Shares of the data sheet's arithmetic and bandwidth that large products and long copies were measured to reach, for a
    # GPU without tables; None: not known, and taken to be as on the measured systems.
    arithmetic_share: float | None = None
    memory_share: float | None = None
    usd_per_gpu_hour: float | None = None  # as a file of one's own states it; None: prices are in catalogue/prices.toml


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What one GPU costs an hour."""

    gpu: str
    usd_per_gpu_hour: float
    terms: str  # on-demand, spot, owned ..
    source: str
    date: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """A number format of weights or of the KV cache."""

    name: str
    bytes_per_element: float  # with its share of the scales
    source: str
    date: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedDefaults:
    """What stands in where the price of owned hardware is not fully stated; sources in catalogue/prices.toml."""

    years: float
    usd_per_kwh: float
    pue: float


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
        arithmetic_share=entry.get("arithmetic_share"),
        memory_share=entry.get("memory_share"),
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
        own = "or the path of a TOML file with the data sheet of another (docs/howto/my-gpu.md)"
        raise unknown_name("GPU", name, known, otherwise=own)
    return found


def read_gpu(path: str | os.PathLike[str]) -> Gpu:
    """A GPU by numbers: a TOML file with the fields of one entry of catalogue/gpus.toml, and its name.

    name, memory_gib, bandwidth_gb_per_s, bf16_tflops and link_gb_per_s (one direction) are needed; fp8_tflops (without
    it: no fp8 arithmetic), max_num_seqs (vLLM's rule by memory), usd_per_gpu_hour, silicon_system and silicon_link_system
    (no measured kernels), arithmetic_share and memory_share (of the data sheet, where benchmarks of large products and
    long copies are known), source and date may be left out. Raises InputError that names the file and the field.
    """
    where = os.fspath(path)
    entry = read_toml(path)
    for key in entry:
        if key not in GPU_NUMBERS and key not in GPU_TEXTS:
            raise unknown_name("field", key, (*GPU_NEEDED, *GPU_OPTIONAL), where=where)
    for key in GPU_NEEDED:
        if key not in entry:
            raise InputError(
                f"{key} is missing",
                where=where,
                next_step=f"needed: {', '.join(GPU_NEEDED)}; optional: {', '.join(GPU_OPTIONAL)}",
            )
    for key, value in entry.items():
        if key in GPU_TEXTS:
            if not isinstance(value, str) or not value.strip() or not value.isprintable():
                raise InputError(f"{key} must be a line of text, not {value!r}", where=where)
            continue
        least, most = GPU_NUMBERS[key]
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            raise InputError(f"{key} must be a number from {least:g} to {most:g}, not {value!r}", where=where)
        if key == "max_num_seqs" and value != int(value):
            raise InputError(f"{key} must be a whole number, not {value!r}", where=where)
    measured = sorted({gpu.silicon_system for gpu in _read_gpus() if gpu.silicon_system is not None})
    for key in ("silicon_system", "silicon_link_system"):
        if key in entry and entry[key] not in measured:
            raise unknown_name(key, entry[key], measured, where=where)
    large = entry["memory_gib"] >= LARGE_MEMORY_GIB
    filled = {"max_num_seqs": MAX_NUM_SEQS[large], "source": where, "date": ""} | entry
    price: float | None = entry.get("usd_per_gpu_hour")
    return replace(_gpu(entry["name"].strip(), filled), usd_per_gpu_hour=None if price is None else float(price))


def load_gpu(name_or_path: str) -> Gpu:
    """A GPU of the catalogue by name, or one's own by the path of its file (anything that ends in .toml)."""
    return read_gpu(name_or_path) if name_or_path.lower().endswith(".toml") else find_gpu(name_or_path)


def usd_per_gpu_hour(gpu: Gpu) -> float:
    """What an hour of a GPU costs: as its file states, else the catalogue's; raises InputError where neither does."""
    if gpu.usd_per_gpu_hour is not None:
        return gpu.usd_per_gpu_hour
    if gpu.name not in gpus():
        raise InputError(
            f"no price is stated for {gpu.name}",
            next_step="pass --usd-per-gpu-hour, or add usd_per_gpu_hour to its file",
        )
    return price(gpu.name).usd_per_gpu_hour


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


def precisions(kind: str) -> dict[str, Precision]:
    """Every number format of `kind` (`weights` or `kv_cache`) by name."""
    return {
        name: Precision(
            name=name,
            bytes_per_element=float(entry["bytes"]),
            source=entry["source"],
            date=entry["date"],
        )
        for name, entry in catalogue.read("precisions.toml")[kind].items()
    }


def find_precision(kind: str, name: str) -> Precision:
    """The format called `name` of `weights` or `kv_cache`; raises InputError that names the nearest ones."""
    known = precisions(kind)
    found = known.get(name.strip().lower())
    if found is None:
        raise unknown_name("weight type" if kind == "weights" else "cache type", name, known)
    return found


def measured_reserve_bytes() -> float:
    """Bytes of a GPU that a server keeps for activations and its runtime: the median of logs (catalogue/reserve.toml)."""
    return float(catalogue.read("reserve.toml")["default"]["per_gpu_gib"]) * 2.0**30


def owned_defaults() -> OwnedDefaults:
    """Years of use, price of electricity and overhead of the building, where nothing else is stated."""
    stated = catalogue.read("prices.toml")["owned"]
    return OwnedDefaults(**{name: float(entry["value"]) for name, entry in stated.items()})


def owned_usd_per_gpu_hour(
    capital_usd: Real,
    *,
    years: Real,
    power_w: Real = 0.0,
    usd_per_kwh: Real = 0.0,
    pue: Real = 1.0,
    share_in_use: Real = 1.0,
) -> FloatArray:
    """Dollars of an hour in use of a GPU that one owns: capital_usd / (years in hours x share_in_use) + electricity.

    capital_usd is of one GPU with its share of server, network and building, written off in a straight line without
    interest or resale; power_w what both draw in use, times `pue` for cooling; share_in_use the share of all hours in
    which the GPU serves at all (the load while it serves is the deployment's utilization, not this). All broadcast.
    Raises InputError for a negative or infinite figure, years of 0, a PUE below 1 or a share outside (0, 1].
    """
    figures = {
        "capital_usd": capital_usd,
        "years": years,
        "power_w": power_w,
        "usd_per_kwh": usd_per_kwh,
        "pue": pue,
        "share_in_use": share_in_use,
    }
    for name, value in figures.items():
        number = np.asarray(value, dtype=np.float64)
        least = 1.0 if name == "pue" else 0.0
        most = 1.0 if name == "share_in_use" else np.finfo(np.float64).max
        above = number > 0 if name in ("years", "share_in_use") else number >= least
        if not np.all(above & (number <= most)):
            bounds = "above 0 and at most 1" if name == "share_in_use" else f"{least:g} or more and finite"
            bounds = "above 0 and finite" if name == "years" else bounds
            raise InputError(f"{name} must be {bounds}, not {value!r}", where="owned hardware")
    hours = HOURS_PER_YEAR * np.asarray(years, dtype=np.float64) * share_in_use
    return np.asarray(capital_usd / hours + np.asarray(power_w, dtype=np.float64) / 1e3 * usd_per_kwh * pue)
