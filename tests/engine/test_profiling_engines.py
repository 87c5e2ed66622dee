"""The real engines, measured and planned with: `make test-engines`. They need libraries that the other tests do not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from moescale.cli import main
from moescale.experiments.profile import ModelsTable
from moescale.latency.table import key_of, read_measurements

GPU = """
name = "some-cpu"
memory_gib = 8
bandwidth_gb_per_s = 20
bf16_tflops = 0.1
link_gb_per_s = 10
usd_per_gpu_hour = 0.05
"""
# Sizes and tables that hold what a plan of 1e17 FLOPs asks for, and little enough to be measured in a minute.
GRID = """
gpu = "some-cpu"
dtype = "{dtype}"
batch = [1, 4]
prompt_tokens = [32, 96]
gpus = {gpus}
[[models]]
n_params = ["2M", "12M"]
experts = [4]
"""
SERVED = ("--prompt", "48", "--output", "32", "--max-num-seqs", "4")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    """The JSON answer of a command that succeeds."""
    try:
        main([*arguments, "--json"])
    except SystemExit as stop:
        pytest.fail(f"exit code {stop.code}: {capsys.readouterr().err}")
    said = capsys.readouterr()
    sys.stderr.write(said.err)
    return json.loads(said.out)


def close_the_loop(dtype: str, python: str, gpus: list[int], capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    """Profile, look at the table, price a model and plan with it; then profile again, which finds everything there."""
    (folder / "gpu.toml").write_text(GPU)
    (folder / "grid.toml").write_text(GRID.format(dtype=dtype, gpus=gpus))
    table = str(folder / "table.parquet")
    measure = ("profile", str(folder / "grid.toml"), "-o", table, "--python", python)
    options = ("--repeats", "5", "--rounds", "2", "--log", str(folder / "log"))
    ran = run(capsys, *measure, *options)
    points = 2 * len(gpus) * 8
    assert (ran["points"], ran["measured"], ran["not_ok"]) == (points, points, {}), (folder / "log").read_text()[-3000:]
    rows = read_measurements(table)
    assert {row.gpus for row in rows} == set(gpus)
    assert all(row.engine_version and row.device and row.repeats and row.latency_s for row in rows)
    shown = run(capsys, "profile", "--show", table)
    assert [c["rows"] for c in shown["coverage"]] == [8] * 2 * len(gpus)
    where = ("--gpu", str(folder / "gpu.toml"), "--latency", table, *SERVED)
    cost = run(capsys, "cost", "--n-params", "5M", "--experts", "4", *where, "--max-gpus", str(max(gpus)))
    assert cost["batch"] == 4
    assert cost["latency_source"] == "table table.parquet"
    assert {c["gpus"] for c in cost["candidates"] if "infeasible" not in c} == set(gpus)
    by_stage = [
        [row.latency_s for row in rows if (row.stage, row.gpus) == (stage, cost["gpus"])]
        for stage in ("prefill", "decode")
    ]
    # The price is of what was measured: between the fastest and the slowest row of its stage.
    assert min(by_stage[1]) <= cost["decode_s"] <= max(by_stage[1])
    plan = run(capsys, "plan", "--budget", "1e17", "--experts", "4", *where, "--max-gpus", str(max(gpus)))
    (best,) = plan["loss_optimal"]
    assert best["usd_per_mtok"] > 0
    assert best["gpus"] in gpus
    sys.stderr.write(f"cost {cost['usd_per_mtok']:.4g}, plan {best}\n")
    again = run(capsys, *measure, *options)
    assert (again["points"], again["measured"]) == (points, 0)
    assert read_measurements(table) == rows


def test_vllm_profile_cost_plan(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Tensor parallel 1 and 2."""
    python = vllm_python()
    close_the_loop("bfloat16", python, [1, 2], capsys, tmp_path)


def test_a_killed_profile_of_a_real_engine_goes_on(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """kill -9 of the command in the middle: no row is lost or there twice, and its engine does not outlive it for long."""
    python, dtype = vllm_python(), "bfloat16"
    (tmp_path / "grid.toml").write_text(GRID.format(dtype=dtype, gpus=[1]))
    table = tmp_path / "table.csv"
    command = ("profile", str(tmp_path / "grid.toml"), "-o", str(table), "--python", python)
    options = ("--repeats", "3", "--rounds", "1")
    with subprocess.Popen(
        [sys.executable, "-m", "moescale", *command, *options], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    ) as started:
        deadline = time.monotonic() + 240
        while not (table.exists() and len(read_measurements(table)) >= 3):
            assert time.monotonic() < deadline
            assert started.poll() is None
            time.sleep(0.02)
        children = children_of(started.pid)
        started.kill()
    assert children
    kept = read_measurements(table)
    assert 3 <= len(kept) < 16
    done = run(capsys, *command, *options)
    assert (done["points"], done["measured"]) == (16, 16 - len(kept))
    rows = read_measurements(table)
    assert rows[: len(kept)] == kept
    assert len({key_of(row) for row in rows}) == len(rows) == 16
    sys.stderr.write(f"killed with {len(kept)} of 16 rows; the next call measured {done['measured']}\n")
    while any(Path(f"/proc/{pid}").exists() for pid in children):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def children_of(pid: int) -> list[int]:
    """The processes that a process has started."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def vllm_python() -> str:
    """The interpreter that has vLLM for a CPU."""
    python = os.environ.get("MOESCALE_VLLM_PYTHON", "")
    if not Path(python).is_file():
        pytest.skip("no vLLM: set MOESCALE_VLLM_PYTHON to the interpreter of an environment that has it")
    found = subprocess.run(
        [python, "-c", "import torch; print(torch.cuda.is_available())"], capture_output=True, text=True, check=False
    )
    if found.stdout.strip() != "False":
        pytest.skip("this test is for vLLM on a CPU")
    return python


@pytest.mark.parametrize("experts", [1, 4])
def test_the_engine_builds_the_model_that_the_table_states(experts: int) -> None:
    torch: Any = pytest.importorskip("torch", reason="needs torch")
    transformers: Any = pytest.importorskip("transformers", reason="needs transformers")
    (model,) = ModelsTable(n_params=(3e7,), experts=(experts,)).models(Path(), 1)
    given = dict(model.config)
    with torch.device("meta"):
        built = transformers.AutoModelForCausalLM.from_config(
            transformers.AutoConfig.for_model(given.pop("model_type"), **given)
        )
    columns = model.columns()
    assert sum(p.numel() for p in built.parameters()) == columns["n_params_total"]
    assert sum("gate.weight" in name for name, _ in built.named_parameters()) == columns["n_moe_layers"]
