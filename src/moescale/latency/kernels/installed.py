"""NVIDIA's measured kernel tables as the package aiconfigurator-core installs them."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from moescale.typing import FloatArray

PACKAGE = "aiconfigurator_core"


def present() -> bool:
    """Whether the package is installed; nothing of it is loaded."""
    return importlib.util.find_spec(PACKAGE) is not None


def root() -> Path:
    """The folder of its systems, where it is installed (`tables.check_present`)."""
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
    if not folder.is_dir():
        return []
    found = sorted((path for path in folder.iterdir() if path.is_dir()), key=lambda path: version_key(path.name))
    wanted = version_key(version)
    older = [path for path in found if version_key(path.name) <= wanted][::-1]
    return older + [path for path in found if version_key(path.name) > wanted]


def find_table(system: str, family: str, engine: str, version: str, stem: str) -> InstalledTable | None:
    """The table of an operation for a version, or else for the version next to it; None where there is none."""
    folders = stand_ins(root() / "data" / system / family / engine, version)
    found = next((path for folder in folders if (path := folder / f"{stem}.parquet").is_file()), None)
    return None if found is None else InstalledTable(found)


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
