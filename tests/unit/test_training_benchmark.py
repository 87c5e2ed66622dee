"""benchmarks/gpu/training.py: what it would measure on a GPU; `make test-engines` runs it small on a CPU."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest

from moescale.experiments.settings import estimate
from reference_data import ROOT
from script_modules import load_script

SCRIPT = ROOT / "benchmarks" / "gpu" / "training.py"


def test_it_measures_the_papers_shapes_with_1_to_64_experts() -> None:
    runs = load_script("benchmarks/gpu/training.py").runs(tiny=False, device="cuda")
    sizes = [estimate(settings)["n_params_total"] for settings in runs]
    assert sizes == sorted(sizes)
    assert {settings.model.experts for settings in runs} == {1, 2, 4, 8, 16, 32, 64}
    first = estimate(runs[0])["n_params_dense"]
    assert round(first / 1e6) == 85  # 768 wide, 12 layers
    # Float32 weights, gradients and two moments of most fit a GPU of 79 GiB with room for activations; the others are written as too large.
    assert sum(16 * size < 70 * 2**30 for size in sizes) >= 18


@pytest.mark.engine
def test_it_measures_in_calls(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs torch")
    pytest.importorskip("transformers", reason="needs transformers")
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
