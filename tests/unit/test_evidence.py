"""The evidence pages and their tables say what is stored beside them; the scripts that compute them anew take minutes."""

from __future__ import annotations

import csv
from typing import Any

import pytest

from script_modules import ROOT, load_script


def stored(page: str) -> str:
    return (ROOT / "docs" / page).read_text(encoding="utf-8")


pages: Any = load_script("scripts/pages.py")


def test_several_scripts_fill_one_page_and_each_only_its_own_marks(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "DOCS", tmp_path)
    text = "<!-- computed a.n -->1<!-- /computed --> <!-- computed b.n -->2<!-- /computed -->"
    (tmp_path / "page.md").write_text(text, encoding="utf-8")
    assert pages.filled("page.md", {"n": "3"}, "b") == text.replace(">2<", ">3<")
    with pytest.raises(ValueError, match="differ: m"):
        pages.filled("page.md", {"n": "3", "m": "4"}, "b")
    with pytest.raises(ValueError, match=r"differ: b\.n"):
        pages.filled("page.md", {"a.n": "3"})


def test_shapes_are_those_of_the_catalogue() -> None:
    script = load_script("scripts/document_shapes.py")
    assert script.page() == stored(script.PAGE)
    for name, text in script.csvs().items():
        assert text == stored(name), name


def test_training_times_are_those_of_the_stored_scores() -> None:
    script = load_script("benchmarks/training_throughput.py")
    assert script.page() == stored(script.PAGE)


def test_measured_kernels_are_those_of_the_tables() -> None:
    script = load_script("scripts/document_silicon.py")
    pytest.importorskip("aiconfigurator_core", reason="names the cards that are scaled from a measured part")
    assert script.page([pages.read_csv(name) for name in script.CSVS]) == stored(script.PAGE)


def test_the_roofline_is_that_of_the_tables_each_measured_on_one_gpu() -> None:
    pytest.importorskip("aiconfigurator_core", reason="the script imports the calibration")
    script = load_script("scripts/document_roofline.py")
    tables = {name: pages.read_csv(name) for name in (script.ERRORS, script.KINDS, script.LEFT_OUT)}
    assert script.page(tables) == stored(script.PAGE)
    own, scaled = load_script("scripts/calibrate_roofline.py").measured_gpus()
    assert script.constants_csv(own) == stored("evidence/kernels-roofline-constants.csv")
    # A second GPU with the same kernels would lend them to the mean of the others, which stands for a GPU without tables.
    assert len({gpu.silicon_system for gpu in own}) == len(own)
    assert {"h100-sxm", "rtx-pro-6000", "l40s"} <= {gpu.name for gpu in own}
    assert {"h800-sxm", "rtx-pro-6000-workstation", "h100-pcie"} <= {gpu.name for gpu in scaled}
    assert {gpu.silicon_system for gpu in scaled} <= {gpu.silicon_system for gpu in own}


def test_designed_sweeps_are_those_of_the_stored_studies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    script = load_script("benchmarks/designed_sweeps.py")
    studies = script.stored()
    assert script.page(studies) == stored(script.PAGE)
    assert script.by_law_csv(studies) == stored(script.BY_LAW)


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "evidence").glob("*.csv")), ids=lambda path: path.name)
def test_tables_are_rectangular_with_names_of_their_own(path: Any) -> None:
    with path.open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    assert rows
    assert len({*header}) == len(header)
    assert {len(row) for row in rows} == {len(header)}
