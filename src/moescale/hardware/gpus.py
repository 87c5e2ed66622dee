"""GPUs, of the catalogue or by numbers from a file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Annotated

from pydantic import Field

from moescale import catalogue
from moescale.errors import unknown_name
from moescale.io.toml import Quantity, Table, Text, checked, read_toml

# vLLM's default of max_num_seqs by memory: see max_num_seqs in catalogue/gpus.toml.
LARGE_MEMORY_GIB = 70
MAX_NUM_SEQS = {True: 1024, False: 256}
# Bounds far beyond what exists, so that products are far from overflow.
Rate = Annotated[float, Quantity, Field(ge=1e-3, le=1e7)]
Share = Annotated[float, Quantity, Field(ge=1e-3, le=1)]
# What most servers of today have, for a data sheet that says nothing else: 8 GPUs, each with a network card of 400 Gbit/s
# (InfiniBand NDR or RoCE; NVIDIA DGX H100 data sheet, 2023: 8 x ConnectX-7 400 Gbit/s for 8 GPUs).
GPUS_PER_SERVER, NETWORK_GB_PER_S = 8, 50.0
SIZES = {  # of a data sheet's units: the field of a GPU, and what it is counted in
    "memory_gib": ("memory_bytes", 2.0**30),
    "bandwidth_gb_per_s": ("memory_bandwidth_bytes_per_s", 1e9),
    "bf16_tflops": ("bf16_flops_per_s", 1e12),
    "fp8_tflops": ("fp8_flops_per_s", 1e12),
    "fp4_tflops": ("fp4_flops_per_s", 1e12),
    "link_gb_per_s": ("interconnect_bytes_per_s", 1e9),
    "network_gb_per_s": ("network_bytes_per_s", 1e9),
}


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
    # Name in aiconfigurator-core's tables of this GPU, or of one with the same cores whose kernels can be scaled; None: none.
    silicon_system: str | None
    source: str
    date: str
    # Whose all-reduce holds for this card, where not that of `silicon_system`: for PCIe cards of a part measured on NVLink.
    silicon_link_system: str | None = None
    # Shares of the data sheet's arithmetic and bandwidth that large products and long copies were measured to reach, for a
    # GPU without tables; None: not known, and taken to be as on the measured systems.
    arithmetic_share: float | None = None
    memory_share: float | None = None
    fp4_flops_per_s: float | None = None  # None: the GPU has no fp4 arithmetic, and 4-bit weights are brought to bf16
    gpus_per_server: int = GPUS_PER_SERVER  # that the interconnect joins; an NVL72 rack is one server
    network_bytes_per_s: float = NETWORK_GB_PER_S * 1e9  # of one GPU to other servers, one direction
    usd_per_gpu_hour: float | None = None  # as a file of one's own states it; None: prices are in catalogue/prices.toml


class DataSheet(Table):
    """A GPU as catalogue/gpus.toml and files of one's own state it, in the units of data sheets."""

    name: Text
    memory_gib: Annotated[float, Quantity, Field(ge=1e-3, le=1e6)]
    bandwidth_gb_per_s: Rate
    bf16_tflops: Rate
    link_gb_per_s: Rate  # one direction
    fp8_tflops: Rate | None = None  # None: no fp8 arithmetic
    fp4_tflops: Rate | None = None  # None: no fp4 arithmetic
    max_num_seqs: Annotated[int, Quantity, Field(ge=1, le=10**6)] | None = None  # None: vLLM's rule by memory
    usd_per_gpu_hour: Annotated[float, Quantity, Field(ge=1e-6, le=1e6)] | None = None
    silicon_system: Text | None = None
    silicon_link_system: Text | None = None
    arithmetic_share: Share | None = None
    memory_share: Share | None = None
    gpus_per_server: Annotated[int, Quantity, Field(ge=1, le=1024)] = GPUS_PER_SERVER
    network_gb_per_s: Rate = NETWORK_GB_PER_S  # of one GPU to other servers, one direction
    source: Text | None = None  # None: the file
    date: str = ""

    def gpu(self, where: str) -> Gpu:
        """The GPU; `where` is its source where the sheet states none."""
        known = self.model_dump()
        for name, (field, size) in SIZES.items():
            stated = known.pop(name)
            known[field] = None if stated is None else stated * size
        cap = known.pop("max_num_seqs") or MAX_NUM_SEQS[self.memory_gib >= LARGE_MEMORY_GIB]
        known |= {"name": self.name.strip(), "default_max_num_seqs": cap, "source": self.source or where}
        return Gpu(**known)


@cache
def gpus() -> Mapping[str, Gpu]:
    """Every GPU of the catalogue by name."""
    where, rows = "catalogue/gpus.toml", catalogue.read("gpus.toml")["gpu"].items()
    known = {name: checked(DataSheet, {"name": name} | row, where=where).gpu(where) for name, row in rows}
    return MappingProxyType(known)


def find_gpu(name: str) -> Gpu:
    """The GPU called `name` (either case, `_` as `-`), or the only one whose name goes on from there; raises InputError that names the nearest ones."""
    known, stated = gpus(), name.strip().lower().replace("_", "-")
    longer = [gpu for other, gpu in known.items() if other.startswith(f"{stated}-")]
    found = known.get(stated) or (longer[0] if len(longer) == 1 else None)
    if found is None:
        own = "or the path of a TOML file with the data sheet of another (docs/serving.md)"
        raise unknown_name("GPU", name, known, otherwise=own)
    return found


def read_gpu(path: str | os.PathLike[str]) -> Gpu:
    """A GPU by numbers: a TOML file with the fields of a DataSheet; raises InputError that names the file and the field."""
    where = os.fspath(path)
    gpu = checked(DataSheet, read_toml(path), where=where).gpu(where)
    measured = {known.silicon_system for known in gpus().values()} - {None}
    for key in ("silicon_system", "silicon_link_system"):
        if (stated := getattr(gpu, key)) not in measured | {None}:
            raise unknown_name(key, stated, sorted(filter(None, measured)), where=where)
    return gpu


def load_gpu(name_or_path: str) -> Gpu:
    """A GPU of the catalogue by name, or one's own by the path of its file (anything that ends in .toml)."""
    return read_gpu(name_or_path) if name_or_path.lower().endswith(".toml") else find_gpu(name_or_path)


@cache
def measured_reserve_bytes() -> float:
    """Bytes of a GPU that a server keeps for activations and its runtime: the median of logs (catalogue/reserve.toml)."""
    return float(catalogue.read("reserve.toml")["default"]["per_gpu_gib"]) * 2.0**30
