"""Measured kernels of the default engine, as the catalogue ships them: one archive a system, written by scripts/make_kernel_tables.py.

A table's rows stand in blocks of equal texts, their sizes as whole numbers. A time is stored as the count of an event clock
that gives it back to its last bit, float64(float32(count * tick)) / repeats, as a decimal (tick 0), or as it is.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
import numpy.typing as npt

from moescale.typing import FloatArray

FOLDER = "kernels"  # of the catalogue
INDEX = "index.json"


@dataclass(frozen=True, slots=True)
class System:
    """One measured kind of GPU: its rates as the package states them, and how it prices operations without a table."""

    name: str
    memory_bandwidth_bytes_per_s: float
    bf16_flops_per_s: float
    fp8_flops_per_s: float | None
    fp4_flops_per_s: float | None
    elementwise_efficiency: float  # share of the bandwidth that norms and activations reach
    elementwise_latency_s: float  # of one such kernel without any bytes
    link_bytes_per_s: float  # between the GPUs of the measured server, one direction


@dataclass(frozen=True, slots=True, eq=False)
class PackedTable:
    """One table of a system's archive: its key there, and its entry of the index."""

    system: str
    key: str
    entry: dict[str, Any]

    @property
    def is_part(self) -> bool:
        """Whether only those rows are here that the default engine's are compared with."""
        return bool(self.entry.get("part"))

    def text_values(self, name: str) -> tuple[str, ...]:
        """The distinct texts of one column; empty where the table has no such column."""
        return tuple(sorted({texts[name] for _, _, texts in self._blocks() if name in texts}))

    def distinct_rows(self, names: tuple[str, ...]) -> list[tuple[str, ...]]:
        """The distinct combinations of some text columns, sorted."""
        return sorted({tuple(texts[name] for name in names) for _, _, texts in self._blocks()})

    def read_columns(self, names: tuple[str, ...], **equal: str) -> dict[str, FloatArray]:
        """Columns of the rows whose text columns hold these values, as `tables.read_columns` gives them."""
        parts: dict[str, list[FloatArray]] = {name: [] for name in names}
        for number, block, texts in self._blocks():
            if any(texts[name] != value for name, value in equal.items()):
                continue
            key = f"{self.key}/{number}"
            sizes = dict(zip(self.entry["sizes"], _member(self.system, f"{key}/sizes"), strict=True))
            for name in names:
                if name in sizes:
                    parts[name].append(sizes[name].astype(np.float64))
                elif name in block["units"]:
                    parts[name].append(_times(self.system, f"{key}/{name}", block, name))
                else:  # a text as a number of its own, or a column that the table lacks
                    value = 0.0 if name not in texts else float(self.text_values(name).index(texts[name]))
                    parts[name].append(np.full(block["rows"], value))
        return {name: np.concatenate([np.zeros(0), *values]) for name, values in parts.items()}

    def _blocks(self) -> Iterator[tuple[int, dict[str, Any], dict[str, str]]]:
        for number, block in enumerate(self.entry["blocks"]):
            yield number, block, dict(zip(self.entry["texts"], block["texts"], strict=True))


@cache
def index() -> dict[str, Any]:
    """What the archives hold, by system, and where it came from."""
    return json.loads((_folder() / INDEX).read_text(encoding="utf-8"))


@cache
def find_system(name: str) -> System | None:
    """The system called `name`; None where it has no archive."""
    entry = index()["systems"].get(name)
    return None if entry is None else System(**entry["specification"])


def engines(system: str) -> dict[str, str]:
    """The current version of each engine that was measured on a system; of the default one the tables are here."""
    return index()["systems"].get(system, {}).get("engines", {})


def is_whole(system: str, engine: str, version: str) -> bool:
    """Whether everything that is read of this engine and version is here."""
    return engine == index()["engine"] and engines(system).get(engine) == version


def find_table(system: str, family: str, engine: str, version: str, stem: str) -> PackedTable | None:
    """The table of an operation; None where it is not here."""
    key = f"{family}/{engine}/{version}/{stem}"
    entry = index()["systems"].get(system, {}).get("tables", {}).get(key)
    return None if entry is None else PackedTable(system, key, entry)


def _folder() -> Any:
    return resources.files("moescale.catalogue") / FOLDER


@cache
def _archive(system: str) -> zipfile.ZipFile:
    """The archive, from memory: no file stays open."""
    return zipfile.ZipFile(io.BytesIO((_folder() / f"{system}.npz").read_bytes()))


def _member(system: str, name: str) -> npt.NDArray[Any]:
    return np.lib.format.read_array(io.BytesIO(_archive(system).read(f"{name}.npy")), allow_pickle=False)


def _numbers(system: str, name: str, kind: str) -> npt.NDArray[Any]:
    """The numbers whose bytes stand in planes; none where there is no such member."""
    try:
        planes = _member(system, name)
    except KeyError:
        return np.zeros(0, dtype=kind)
    return np.ascontiguousarray(planes.T).view(kind).ravel()


def _times(system: str, key: str, block: dict[str, Any], name: str) -> FloatArray:
    """The times of a block's rows, in the table's own unit."""
    units, alike = block["units"][name], block.get("code", {}).get(name)
    code = _member(system, f"{key}/code") if alike is None else np.full(block["rows"], alike, dtype=np.uint8)
    times = np.empty(block["rows"])
    times[code == 0] = _numbers(system, f"{key}/rest", "<f8")
    tick, repeats = np.asarray([[1.0, 1.0], *units]).T
    of, count = code[code > 0], _numbers(system, f"{key}/count", "<u4").astype(np.float64)
    ticks = (count * tick[of]).astype(np.float32).astype(np.float64)
    times[code > 0] = np.where(tick[of] > 0.0, ticks, count) / repeats[of]
    return times
