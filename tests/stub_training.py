"""Stands for `moescale train RUN.toml`: the same files, a loss that depends on every step, and faults on demand.

    python stub_training.py RUN.toml

Faults stand in stub.json beside RUN.toml, by the name of the run, and for all runs under "*": {"sleep_s": 0.01, "kill_at": 5
(once), "kill_always": true, "code": 2, "child": true, "diverge": true}. Every start adds a line to starts.txt there. What the
settings stand for is read from facts.json, one folder up: this must start quickly, and importing moescale takes longer.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

STEPS = 20


GRID: dict[str, Any] = {"shapes": [[64, 2], [128, 2]], "experts": [1, 4], "tokens": ["1M"]}


def document(**tables: Any) -> dict[str, Any]:
    """A sweep's tables."""
    training = {"sequence_tokens": 64, "batch_tokens": 1024}
    return {"data": {"corpus": "corpus"}, "training": training, "grid": GRID, **tables}


def made(folder: Path, **tables: Any) -> Any:
    """A sweep in a folder, with what the stub must know of it."""
    from moescale.experiments.sweep_file import expand

    return know(expand(document(table=str(folder / "runs.csv"), folder=str(folder / "sweep"), **tables)))


def know(sweep: Any) -> Any:
    names = ("n_params_dense", "n_params_active", "n_params_total", "training_flops")
    found = {
        run.name: {"sha256": run.settings.sha256, **{name: getattr(run, name) for name in names}} for run in sweep.runs
    }
    if sweep.folder.parent.is_dir():
        (sweep.folder.parent / "facts.json").write_text(json.dumps(found))
    return sweep


def step_of(output: Path) -> int:
    """The last step that a run has told."""
    file = output / "progress.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    return max((json.loads(line)["step"] for line in lines if line.endswith("}")), default=0)


def command(file: Path) -> list[str]:
    return [sys.executable, "-S", __file__, str(file)]


def main(run_file: Path) -> int:
    settings = tomllib.loads(run_file.read_text(encoding="utf-8"))
    name: str = settings["name"]
    found: dict[str, Any] = json.loads((run_file.parents[1] / "facts.json").read_text())[name]
    faults_file = run_file.with_name("stub.json")
    every = json.loads(faults_file.read_text()) if faults_file.exists() else {}
    faults: dict[str, Any] = {**every.get("*", {}), **every.get(name, {})}
    with run_file.with_name("starts.txt").open("a") as stream:
        stream.write(f"{name} {os.getpid()}\n")
    if faults.get("child"):
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        run_file.with_name("child.txt").write_text(str(child.pid))
    if faults.get("code"):
        print("the stub ends as asked")
        return int(faults["code"])

    output = Path(settings["output"])
    output.mkdir(parents=True, exist_ok=True)
    checkpoint, result = output / "checkpoint.json", output / "result.json"
    if result.exists():
        return 0
    state = json.loads(checkpoint.read_text()) if checkpoint.exists() else {"step": 0, "loss": 10.0}
    tokens: list[int] = [settings["training"]["tokens"]]
    while state["step"] < STEPS:
        step = state["step"] + 1
        state = {
            "step": step,
            "loss": state["loss"] - 1 / (step + math.log(found["training_flops"]) + settings["seed"]),
        }
        write(checkpoint, state)
        line = {"time": time.time(), "step": step, "steps": STEPS, "tokens": tokens[-1] * step / STEPS, "loss": state["loss"],
                "tokens_per_s": 1000.0, "mfu": 0.25, "seconds": step * 0.5}  # fmt: skip
        with (output / "progress.jsonl").open("a") as stream:
            stream.write(json.dumps(line) + "\n")
        if faults.get("kill_always") or (step == faults.get("kill_at") and not (output / "killed").exists()):
            (output / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(faults.get("sleep_s", 0))
    diverged = bool(faults.get("diverge"))
    rows = [
        {
            "name": name,
            **{key: found[key] for key in ("n_params_dense", "n_params_active", "n_params_total")},
            "n_experts": settings["model"]["experts"], "tokens": count,
            "loss": math.nan if diverged else state["loss"] - math.log(count) / 100,
            "seed": settings["seed"], "training_flops": found["training_flops"], "seconds": 10.0,
            "mfu": "", "diverged": diverged, "diverged_why": "loss is not a number" if diverged else "",
            "settings_sha256": found["sha256"],
        }
        for count in tokens
    ]  # fmt: skip
    write(result, {"rows": rows, "settings_sha256": found["sha256"]})
    return 0


def write(path: Path, value: object) -> None:
    aside = path.with_suffix(".tmp")
    aside.write_text(json.dumps(value))
    aside.replace(path)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
