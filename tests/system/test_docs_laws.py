"""The catalogue of laws on the site, and what the evidence states of laws, say what the code and the stored scores say."""

from __future__ import annotations

import csv
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moescale.scaling_laws import FORMS, catalogue_names
from reference_data import ROOT
from script_modules import load_script

EVIDENCE = ROOT / "docs" / "evidence"


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def test_the_page_of_laws_has_every_form_and_every_coefficient_set() -> None:
    page = load_script("scripts/document_laws.py").pages()["laws.md"]
    assert all(f"\n### {name}" in page for name in (*FORMS, *catalogue_names()))


def test_what_laws_say_of_many_experts_is_current() -> None:
    texts = load_script("scripts/document_laws.py").evidence()
    assert len(texts) == 4
    for path, text in texts.items():
        assert (ROOT / "docs" / path).read_text(encoding="utf-8") == text, "run `python scripts/document_laws.py`"


@pytest.fixture(scope="module")
def benchmark() -> Any:
    return load_script("benchmarks/laws.py")


@pytest.fixture(scope="module")
def scores() -> list[Any]:
    """The stored scores of every split, as far as tables of errors need them."""
    return [
        SimpleNamespace(
            law=row["law"],
            rmsle=float(row["rmsle"]),
            split=SimpleNamespace(
                source=row["source"], table=row["table"], name=row["held_out"], reach=row["held_out"].startswith("1/")
            ),
        )
        for row in rows_of(ROOT / "benchmarks" / "results" / "laws.csv")
    ]


def test_errors_on_public_tables_are_those_of_the_stored_scores(benchmark: Any, scores: list[Any]) -> None:
    stored = [list(row.values()) for row in rows_of(EVIDENCE / "own-law-errors.csv")]
    assert stored == benchmark.error_rows(scores)


def test_the_page_states_the_stored_errors_and_coverage(benchmark: Any, scores: list[Any]) -> None:
    coverage = [list(row.values()) for row in rows_of(EVIDENCE / "own-law-coverage.csv")]
    parts = benchmark.page_parts(scores, coverage)
    pages = load_script("scripts/pages.py")
    assert pages.filled("evidence/own-law.md", parts, "laws") == (EVIDENCE / "own-law.md").read_text(encoding="utf-8")


def test_mean_coverage_is_that_of_the_sources() -> None:
    rows = rows_of(EVIDENCE / "own-law-coverage.csv")
    distances = "times_beyond_largest_fitted_nd"
    for mean in (row for row in rows if row["source"] == "mean over sources"):
        held = [
            float(row["held_percent"])
            for row in rows
            if row["law"] == mean["law"] and row[distances] == mean[distances] and row is not mean
        ]
        assert abs(sum(held) / len(held) - float(mean["held_percent"])) < 1.0  # both are rounded
