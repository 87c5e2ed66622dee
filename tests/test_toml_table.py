"""TOML files of settings that no reader of them takes for more than bad input."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from moescale.errors import InputError
from moescale.experiments.profiling.grid import read_grid
from moescale.experiments.sweeps.sweep import read_sweep
from moescale.experiments.training.settings import read_settings
from moescale.hardware.gpus import read_gpu
from moescale.io.schema import SETTINGS_LIMIT_BYTES
from moescale.runs.importers import read_mapping
from moescale.scaling_laws import find_law

READERS = (read_gpu, read_mapping, read_grid, read_settings, read_sweep)


@pytest.mark.parametrize("read", [*READERS, lambda path: find_law(str(path))])
@pytest.mark.parametrize(
    "text",
    [
        "name = " + "[" * 5000,
        "name = " + "[" * 3000 + "]" * 3000,
        "name = " + "9" * 5000,
        "name = 0x" + "f" * 5000,
        'name = "a',
        "name = 2026-13-40",
    ],
    ids=["open", "deep", "digits", "hexadecimal", "cut", "date"],
)
def test_what_the_parser_cannot_take_is_told_with_the_file(
    read: Callable[[Path], object], text: str, tmp_path: Path
) -> None:
    path = tmp_path / "given.toml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read(path)
    assert str(path) in str(caught.value)
    assert caught.value.what.startswith(("is not valid TOML", "is not a law file"))
    assert caught.value.next_step


@pytest.mark.parametrize("read", READERS)
def test_settings_of_megabytes_are_refused_unparsed(read: Callable[[Path], object], tmp_path: Path) -> None:
    path = tmp_path / "given.toml"
    path.write_text("# " + "x" * SETTINGS_LIMIT_BYTES)
    with pytest.raises(InputError, match="larger than"):
        read(path)
