"""NVIDIA's measured kernel tables: the default engine's from the catalogue, all others from the package aiconfigurator-core."""

from __future__ import annotations

import numpy as np

from moescale.errors import InputError, unknown_name
from moescale.latency.kernels import installed, packed
from moescale.latency.kernels.installed import InstalledTable
from moescale.latency.kernels.packed import PackedTable, System
from moescale.typing import FloatArray

Table = PackedTable | InstalledTable


def systems() -> tuple[str, ...]:
    """Systems with kernel tables, such as h100_sxm."""
    return tuple(sorted(packed.index()["systems"]))


def find_system(name: str) -> System:
    """The system called `name`; raises InputError where it has no tables."""
    system = packed.find_system(name)
    if system is None:
        raise unknown_name("measured system", name, systems(), where="silicon")
    return system


def engines(system: str) -> tuple[str, ...]:
    """Serving engines whose kernels were measured on a system, such as vllm."""
    return tuple(sorted(packed.engines(system)))


def versions(system: str, engine: str) -> tuple[str, ...]:
    """Versions of an engine with tables, oldest first; the current one alone without the package."""
    return installed.versions(system, engine) if installed.present() else (default_version(system, engine),)


def default_version(system: str, engine: str) -> str:
    """The engine's current version; raises InputError for an engine without tables on this system."""
    if engine not in packed.engines(system):
        raise unknown_name("engine", engine, engines(system), where=f"silicon tables of {system}")
    return packed.engines(system)[engine]


def check_present(system: str, engine: str, version: str) -> None:
    """Raise InputError where the tables of an engine's version are neither in the catalogue nor installed."""
    if not packed.is_whole(system, engine, version) and not installed.present():
        what = f"the kernels of {engine} {version} on {system} come with the extra `kernels`, which is not installed"
        instead = f"{installed.INSTALL} (Linux x86-64), or take vLLM's kernels (silicon) or the roofline"
        raise InputError(what, where="silicon", next_step=instead)


def find_table(
    system: str, family: str, engine: str, version: str, stem: str, *, load: str | None = None
) -> Table | None:
    """The table of an operation for a version, or else for the version next to it; None where there is none.

    Under another `load` on experts than the catalogue's, where it is stated, the package's table.
    """
    table = packed.find_table(system, family, engine, version, stem)
    if load in (None, packed.index()["load"]):
        whole = packed.is_whole(system, engine, version) or (table is not None and not table.is_part)
        if whole or not installed.present():
            return table
    return installed.find_table(system, family, engine, version, stem)


def read_columns(table: Table, names: tuple[str, ...], **equal: str) -> dict[str, FloatArray]:
    """Columns of the rows whose text columns hold these values: float64, latency in seconds; absent columns are 0.

    A text column among `names` comes as numbers, one a distinct text.
    """
    columns = table.read_columns(names, **equal)
    return columns | ({"latency": columns["latency"] / 1e3} if "latency" in columns else {})


def of_the_fastest(keys: FloatArray, sources: FloatArray, seconds: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The distinct rows of `keys` (n, sizes), sorted, and the time of each: of the kernel source that is fastest there.

    Sources are alternatives for one operation, of which an engine or who sets it up takes the better one; repeated
    measurements of one source are averaged (in logarithms).
    """
    places, index = np.unique(keys, axis=0, return_inverse=True)
    index = index.ravel()
    least = np.full(len(places), np.inf)
    for source in np.unique(sources):
        own = sources == source
        count = np.bincount(index[own], minlength=len(places))
        total = np.bincount(index[own], np.log(seconds[own]), minlength=len(places))
        least = np.where(count > 0, np.minimum(least, total / np.maximum(count, 1)), least)
    return places, np.exp(least)
