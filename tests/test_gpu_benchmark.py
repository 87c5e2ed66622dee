"""benchmarks/gpu/profile.py: what it would measure on a GPU, and how it judges silicon; `make test-engines` runs it small."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from moescale.latency.measurements import Measurement, read_measurements
from moescale.models.parameters import count_parameters
from script_modules import load_script

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "gpu" / "profile.py"


script = load_script("benchmarks/gpu/profile.py")


def test_the_papers_models_have_the_papers_parameters() -> None:
    # Non-embedding millions of 768/12 with 1, 4, 8, 16 and 32 experts, counted from the model classes themselves.
    counted = dict(zip((1, 4, 8, 16, 32), (85.0, 169.9, 283.2, 509.7, 962.8), strict=True))
    for experts, millions in counted.items():
        model = script.paper_model(768, 12, experts)
        assert round(float(count_parameters(model.architecture).non_embedding_total) / 1e6, 1) == millions


def test_the_grid_is_what_the_readme_says() -> None:
    whole, layer = script.grids("h200-sxm", tiny=False)
    assert {model.n_experts for model in whole.models} == {1, 2, 4, 8, 16, 32, 64}
    assert (whole.batches[0], whole.batches[-1], len(whole.models)) == (1, 512, 49)
    assert all(model.n_experts > 1 for model in layer.models)
    assert {stage for stage, _, _ in layer.points()} == {"prefill"}
    sizes = [model.columns()["n_params_total"] for model in whole.models]
    assert sizes == sorted(sizes)


def row(model: int = 0, **changes: object) -> Measurement:
    whole, _ = script.grids("g", tiny=True)
    made = Measurement(
        **whole.models[model].columns(), gpu="g", gpus=1, stage="decode", batch=1, tokens=8, latency_s=1.0, engine="torch",
        engine_version="1", dtype="bfloat16", device="d", date="2026-01-01",
    )  # fmt: skip
    return replace(made, **changes)


def test_errors_are_predicted_over_measured() -> None:
    rows = [row(1, latency_s=2.0), row(1, latency_s=4.0), row(1, latency_s=None, status="failed"), row(0)]
    lines = script.silicon_errors(rows, lambda r: 3.0 if r.n_experts == 4 else float("nan"))
    assert [line.split()[:2] for line in lines] == [["decode", "E=1"], ["decode", "E=4"]]
    assert "no answer for 1 rows" in lines[0]
    assert "2 rows  +12%  (-21% to +46%)" in lines[1]  # of +50% and -25%


@pytest.mark.parametrize("model", [0, 1])
def test_a_row_gives_its_architecture_back(model: int) -> None:
    made = row(model)
    whole, _ = script.grids("g", tiny=True)
    assert float(count_parameters(script.shape_of(made)).total) == made.n_params_total
    assert float(count_parameters(whole.models[model].architecture).active) == float(
        count_parameters(script.shape_of(made)).active
    )


@pytest.mark.engine
def test_it_measures_in_calls_and_judges(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs torch")
    pytest.importorskip("transformers", reason="needs transformers")
    table = tmp_path / "t.parquet"
    command = [sys.executable, str(SCRIPT), "-o", str(table), "--device", "cpu", "--tiny"]
    first = subprocess.run([*command, "--seconds", "0.1"], capture_output=True, text=True, check=True)
    assert "points are missing: run it again" in first.stdout
    second = subprocess.run(command, capture_output=True, text=True, check=True)
    assert second.stdout.splitlines()[-1] == "complete"
    assert len(read_measurements(table)) == 24
    assert len(read_measurements(tmp_path / "t-layer.parquet")) == 2
    pytest.importorskip("aiconfigurator_core", reason="silicon needs aiconfigurator-core")
    judged = subprocess.run([*command, "--check"], capture_output=True, text=True, check=True)
    assert "the MoE layer alone" in judged.stdout
