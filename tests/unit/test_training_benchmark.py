"""benchmarks/gpu/training.py: `make test-engines` runs it small on a CPU."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest

from reference_data import ROOT

SCRIPT = ROOT / "benchmarks" / "gpu" / "training.py"


@pytest.mark.engine
def test_it_measures_in_calls(tmp_path: Path) -> None:
    for name in ("torch", "transformers"):
        pytest.importorskip(name, reason=f"needs {name}")
    table = tmp_path / "t.csv"
    command = [sys.executable, str(SCRIPT), "-o", str(table), "--device", "cpu", "--tiny"]
    first = subprocess.run([*command, "--seconds", "0"], capture_output=True, text=True, check=True)
    assert "2 models are missing: run it again" in first.stdout
    second = subprocess.run(command, capture_output=True, text=True, check=True)
    assert second.stdout.splitlines()[-1] == "complete"
    with table.open() as stream:
        rows = list(csv.DictReader(stream))
    assert [(row["n_experts"], row["status"]) for row in rows] == [("1", "ok"), ("4", "ok")]
    assert all(float(row["tokens_per_s"]) > 0 for row in rows)
