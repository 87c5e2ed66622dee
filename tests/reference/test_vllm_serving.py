"""Simulated servers against real ones (172 measured runs, vLLM 0.19), as docs/evidence/serving-vllm.csv states them row by row.

Nothing in the package was adjusted to these runs: host overheads are published figures that were recorded first.
"""

from __future__ import annotations

import csv
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from reference_data import ROOT
from script_modules import load_script

pytestmark = pytest.mark.system


@cache
def servings() -> ModuleType:
    """scripts/document_servings.py as a module."""
    return load_script("scripts/document_servings.py")


@pytest.fixture(scope="module")
def judged() -> list[Any]:
    """vLLM's runs at the highest request rate of each configuration."""
    rows = servings().measured("vllm_servings")
    return servings().highest(row for row in rows if row.engine == "vllm")


@pytest.mark.fuzz
def test_the_page_and_its_tables_state_what_the_simulation_gives() -> None:
    page = (ROOT / "docs" / servings().PAGE).read_text(encoding="utf-8")
    assert page == servings().page(), "run `python scripts/document_servings.py`"
    for name, text in servings().csvs().items():
        assert (ROOT / "docs" / name).read_text(encoding="utf-8") == text, name


def test_a_part_of_the_page_and_of_its_table_state_what_the_simulation_gives(judged: list[Any]) -> None:
    """All of both is held by the long tests."""
    page = (ROOT / "docs" / servings().PAGE).read_text(encoding="utf-8").splitlines()
    for part in (servings().comparison, servings().verdict, servings().summary):
        assert [line for line in part(judged) if line not in page] == [], "run `python scripts/document_servings.py`"
    vllm, _, others = servings().first_table()
    with (ROOT / "docs" / "evidence" / "serving-vllm.csv").open(newline="", encoding="utf-8") as file:
        stored = list(csv.reader(file))[1:]
    asked = [*((row, servings().JUDGED) for row in (*vllm, *others)), *((row, "roofline") for row in judged)]
    for cells, (row, source) in list(zip(stored, asked, strict=True))[::40]:
        assert cells == [str(cell) for cell in servings().run_cells(row, source)]


def test_every_configuration_is_judged_at_its_highest_rate(judged: list[Any]) -> None:
    assert [row.config for row in judged] == ["A1", "A2", "A3", "A4", "C1", "C2", "C3", "C4", "C5", "C6", "M1", "M3"]
    assert {row.requests_per_s for row in judged} == {200.0}


@pytest.mark.parametrize("source", list(servings().SOURCES))
def test_no_prediction_is_beyond_a_factor_of_two(source: str, judged: list[Any]) -> None:
    errors = [servings().log2_ratio(row, source) for row in judged]
    assert np.max(np.abs(errors)) <= 1.0


def test_every_prediction_counts_the_host(judged: list[Any]) -> None:
    for row in judged:
        bare, hidden, in_line = (
            servings().simulated(row, servings().JUDGED, host).output_tok_s
            for host in ("none", "published, asynchronous", "published, in line (default)")
        )
        assert bare > hidden > in_line


def test_two_a100_beat_four_per_dollar_as_measured(judged: list[Any]) -> None:
    two, four = (next(row for row in judged if row.config == name) for name in ("M1", "M3"))
    assert two.usd_per_mtok < four.usd_per_mtok
    assert servings().simulated(two).usd_per_mtok < servings().simulated(four).usd_per_mtok


@pytest.mark.parametrize("configs", ["C1 A1 M3", pytest.param("", marks=pytest.mark.fuzz, id="all")])
def test_low_load_costs_what_was_measured(configs: str) -> None:
    """Up to five requests a second the arrivals set the cost: within 5% of the measured dollars, 20 times the plateau's."""
    measured = servings().measured("vllm_servings")
    rows = [row for row in measured if row.engine == "vllm" and row.config in (configs or row.config)]
    for row in rows:
        if row.requests_per_s <= 5:
            assert servings().simulated(row).usd_per_mtok == pytest.approx(row.usd_per_mtok, rel=0.05)
    c1 = {row.requests_per_s: row for row in rows if row.config == "C1"}
    assert c1[1.0].usd_per_mtok > 20 * c1[200.0].usd_per_mtok
    assert servings().simulated(c1[1.0]).usd_per_mtok > 20 * servings().simulated(c1[200.0]).usd_per_mtok
