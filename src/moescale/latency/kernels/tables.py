"""NVIDIA's measured kernel tables: the default engine's from the catalogue, all others from the package aiconfigurator-core.

The catalogue has one archive a system, written by scripts/make_kernel_tables.py. A table's rows stand in blocks of equal texts,
their sizes as whole numbers. A time is stored as the count of an event clock that gives it back to its last bit,
float64(float32(count * tick)) / repeats, as a decimal (tick 0), or as it is.
"""

from __future__ import annotations

import importlib.util
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from moescale.errors import InputError, install, unknown_name
from moescale.latency.kernels.log_grid import LogGrid, grid_of
from moescale.typing import FloatArray

FOLDER = "kernels"  # of the catalogue
INDEX = "index.json"
PACKAGE = "aiconfigurator_core"


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
            sizes = dict(zip(self.entry["sizes"], _archive(self.system)[f"{key}/sizes"], strict=True))
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
    return json.loads(_bytes(INDEX))


def _current(system: str) -> dict[str, str]:
    """The current version of each engine that was measured on a system; of the default one the tables are here."""
    return index()["systems"].get(system, {}).get("engines", {})


def _bytes(name: str) -> bytes:
    return (resources.files("moescale.catalogue") / FOLDER / name).read_bytes()


@cache
def _archive(system: str) -> Mapping[str, npt.NDArray[Any]]:
    """The archive, from memory: no file stays open."""
    return np.load(io.BytesIO(_bytes(f"{system}.npz")))


def _numbers(system: str, name: str, kind: str) -> npt.NDArray[Any]:
    """The numbers whose bytes stand in planes; none where there is no such member."""
    planes = _archive(system).get(name, np.zeros((np.dtype(kind).itemsize, 0), np.uint8))
    return np.ascontiguousarray(planes.T).view(kind).ravel()


def _times(system: str, key: str, block: dict[str, Any], name: str) -> FloatArray:
    """The times of a block's rows, in the table's own unit."""
    units, alike = block["units"][name], block.get("code", {}).get(name)
    code = _archive(system)[f"{key}/code"] if alike is None else np.full(block["rows"], alike, dtype=np.uint8)
    times = np.empty(block["rows"])
    times[code == 0] = _numbers(system, f"{key}/rest", "<f8")
    tick, repeats = np.asarray([[1.0, 1.0], *units]).T
    of, count = code[code > 0], _numbers(system, f"{key}/count", "<u4").astype(np.float64)
    ticks = (count * tick[of]).astype(np.float32).astype(np.float64)
    times[code > 0] = np.where(tick[of] > 0.0, ticks, count) / repeats[of]
    return times


def present() -> bool:
    """Whether the package is installed; nothing of it is loaded."""
    return importlib.util.find_spec(PACKAGE) is not None


def root() -> Path:
    """The folder of its systems, where it is installed (`check_present`)."""
    found = importlib.util.find_spec(PACKAGE)
    assert found is not None
    assert found.submodule_search_locations
    return Path(found.submodule_search_locations[0]) / "systems"


def version_key(version: str) -> tuple[tuple[int, int | str], ...]:
    """Sorts 0.9 before 0.14 and 1.3.0rc9 before 1.3.0rc20."""
    parts = [*version.replace("rc", ".-1.").replace("post", ".1.").split("."), "0"]
    return tuple((0, int(part)) if part.lstrip("-").isdigit() else (-1, part) for part in parts if part)


def stand_ins(folder: Path, version: str) -> list[Path]:
    """Version folders in the order in which they may stand in: the version, older ones newest first, newer ones."""
    found = sorted((path for path in folder.glob("*") if path.is_dir()), key=lambda path: version_key(path.name))
    older = [path for path in found if version_key(path.name) <= version_key(version)]
    return older[::-1] + found[len(older) :]


@dataclass(frozen=True, slots=True)
class InstalledTable:
    """A Parquet file of the package; its methods are those of PackedTable."""

    path: Path

    def read_columns(self, names: tuple[str, ...], **equal: str) -> dict[str, FloatArray]:
        """Columns of the rows whose text columns hold these values, as `tables.read_columns` gives them; latency in ms."""
        file, texts = self._opened()
        have = file.schema_arrow.names
        table = file.read(columns=[name for name in {*names, *equal} if name in have])
        kept = np.ones(table.num_rows, dtype=bool)
        for name, value in equal.items():
            column = table[name].combine_chunks().dictionary_encode()
            codes = [code for code, text in enumerate(column.dictionary.to_pylist()) if text == value]
            kept &= np.isin(_values(column.indices), codes)
        columns = dict.fromkeys(names, np.zeros(kept.sum()))
        for name in (name for name in names if name in have):
            column = table[name].combine_chunks()
            column = column.dictionary_encode().indices if name in texts else column
            columns[name] = np.asarray(_values(column), dtype=np.float64)[kept]
        return columns

    def text_values(self, name: str) -> tuple[str, ...]:
        """The distinct texts of one column; empty where the table has no such column."""
        _, texts = self._opened()
        return tuple(text for (text,) in self.distinct_rows((name,))) if name in texts else ()

    def distinct_rows(self, names: tuple[str, ...]) -> list[tuple[str, ...]]:
        """The distinct combinations of some text columns, sorted; of rows that lack none."""
        from pyarrow.parquet import ParquetFile

        rows = ParquetFile(self.path).read(columns=list(names)).group_by(list(names)).aggregate([]).to_pylist()
        return sorted({tuple(map(str, row.values())) for row in rows if None not in row.values()})

    def _opened(self) -> tuple[Any, list[str]]:
        """The file and its columns of text, to be read as codes of a dictionary, which takes a tenth of the time.

        The file itself: pyarrow's read_table would load its data sets, and pandas with them.
        """
        from pyarrow.parquet import ParquetFile

        file = ParquetFile(self.path)
        schema: Any = file.schema_arrow
        kinds = zip(schema.names, schema.types, strict=True)
        texts = [str(name) for name, kind in kinds if str(kind) in ("string", "large_string")]
        return ParquetFile(self.path, metadata=file.metadata, read_dictionary=texts), texts


def _values(array: Any) -> npt.NDArray[Any]:
    """The numbers of an Arrow array; without nulls from its buffer, as its own conversion would load pandas for 0.25 s."""
    return np.asarray(array.to_numpy(zero_copy_only=False)) if array.null_count else np.from_dlpack(array)


def find_installed(system: str, family: str, engine: str, version: str, stem: str) -> InstalledTable | None:
    """The package's table of an operation for a version, or else for the version next to it; None where there is none."""
    folders = stand_ins(root() / "data" / system / family / engine, version)
    found = next((path for folder in folders if (path := folder / f"{stem}.parquet").is_file()), None)
    return None if found is None else InstalledTable(found)


Table = PackedTable | InstalledTable
Place = tuple[str, str, str, str, str]  # of a table: system, family, engine, version, stem


def systems() -> tuple[str, ...]:
    """Systems with kernel tables, such as h100_sxm."""
    return tuple(sorted(index()["systems"]))


@cache
def find_system(name: str) -> System:
    """The system called `name`; raises InputError where it has no tables."""
    if name not in index()["systems"]:
        raise unknown_name("measured system", name, systems(), where="silicon")
    return System(**index()["systems"][name]["specification"])


def engines(system: str) -> tuple[str, ...]:
    """Serving engines whose kernels were measured on a system, such as vllm."""
    return tuple(sorted(_current(system)))


def default_version(system: str, engine: str) -> str:
    """The engine's current version; raises InputError for an engine without tables on this system."""
    if engine not in _current(system):
        raise unknown_name("engine", engine, engines(system), where=f"silicon tables of {system}")
    return _current(system)[engine]


def check_present(system: str, engine: str) -> None:
    """Raise InputError where the tables of an engine are neither here nor installed."""
    if engine != index()["engine"] and not present():
        what = f"the kernels of {engine} {default_version(system, engine)} on {system} come with the extra `kernels`"
        instead = f"{install('kernels')} (Linux x86-64), or take vLLM's kernels (silicon) or the roofline"
        raise InputError(f"{what}, which is not installed", where="silicon", next_step=instead)


def find_table(system: str, family: str, engine: str, version: str, stem: str) -> Table | None:
    """The table of an operation for a version, or else for the version next to it; None where there is none."""
    key = f"{family}/{engine}/{version}/{stem}"
    entry = index()["systems"].get(system, {}).get("tables", {}).get(key)
    # Of other engines there may be a part: the rows that the default one's are compared with.
    whole = engine == index()["engine"] or (entry is not None and not entry.get("part"))
    if whole or not present():
        return None if entry is None else PackedTable(system, key, entry)
    return find_installed(system, family, engine, version, stem)


def read_columns(table: Table, names: tuple[str, ...], **equal: str) -> dict[str, FloatArray]:
    """Columns of the rows with these texts: float64, seconds, texts as numbers of their own, absent columns 0."""
    columns = table.read_columns(names, **equal)
    return columns | ({"latency": columns["latency"] / 1e3} if "latency" in columns else {})


@cache
def measured_formats(family: str, system: str, engine: str, version: str) -> tuple[str, ...]:
    """Number formats with measured kernels of a family (gemm, moe), such as bfloat16 and fp8_block."""
    table = find_table(system, family, engine, version, f"{family}_perf")
    return () if table is None else table.text_values(f"{family}_dtype")


@cache
def find_grid(place: Place, sizes: tuple[str, ...], slopes: tuple[float, ...], **equal: str) -> LogGrid | None:
    """Seconds over these columns, of the rows whose text columns hold these values; None where there are none."""
    table = find_table(*place)
    rows = {} if table is None else read_columns(table, (*sizes, "latency"), **equal)
    if not rows or not rows["latency"].size:
        return None
    return grid_of(tuple(rows[name] for name in sizes), rows["latency"], slopes)


def of_the_fastest(keys: FloatArray, sources: FloatArray, seconds: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The distinct rows of `keys` (n, sizes), sorted, and the time of each: of the kernel source that is fastest there on (geometric) average."""
    # One number a row, by the rank of each of its sizes: rows themselves take ten times as long to sort.
    ranks = [np.unique(column, return_inverse=True) for column in keys.T]
    shape = tuple(values.size for values, _ in ranks)
    codes, index = np.unique(np.ravel_multi_index([rank for _, rank in ranks], shape), return_inverse=True)
    found = zip(ranks, np.unravel_index(codes, shape), strict=True)
    places = np.stack([values[at] for (values, _), at in found], axis=1)
    least = np.full(len(places), np.inf)
    for source in np.unique(sources):
        own = sources == source
        count = np.bincount(index[own], minlength=len(places))
        total = np.bincount(index[own], np.log(seconds[own]), minlength=len(places))
        least = np.where(count > 0, np.minimum(least, total / np.maximum(count, 1)), least)
    return places, np.exp(least)
