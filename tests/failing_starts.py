"""What commands that fail start from, and how faulty_files.py is asked to make them fail."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import failing_cases
from command_line import ROOT, RUNS, answer_of
from processes import environment
from reference_data import TESTS

FAULTS = TESTS / "faulty_files.py"
FIT = ("fit", "runs.csv", "--law", "chinchilla", "--starts", "1", "--where", "n_experts == 1")
PLAN = ("plan", "--budget", "5e21", "--experts", "1,4", "--shape", "mixtral", "--bootstrap", "0",
        "--objective", "loss", "--latency", "roofline")  # fmt: skip
HEAD = "name,settings_sha256,tokens,loss\n"
ENVIRONMENT = environment(PYTHONDONTWRITEBYTECODE="1")  # which would be file operations, too


def with_runs(folder: Path) -> None:
    shutil.copy(RUNS, folder / "runs.csv")
    (folder / "law.toml").write_text("old")


def with_trainer(folder: Path) -> None:
    shutil.copytree(ROOT / "examples" / "trainer", folder / "trainer")


def with_table(folder: Path) -> None:
    (folder / "runs.csv").write_text(HEAD + "a,1,1000,2.50\n")


def with_text(folder: Path) -> None:
    (folder / "text.jsonl").write_text("".join(json.dumps({"text": f"word {n} " * 20}) + "\n" for n in range(60)))


def with_law(folder: Path) -> None:
    shutil.copy(ROOT / "src" / "moescale" / "catalogue" / "laws" / "besiroglu2024.toml", folder / "law.toml")
    (folder / "page.html").write_text("old")


def with_plan(folder: Path) -> None:
    (folder / "plan.json").write_text(json.dumps(answer_of(*PLAN)))
    (folder / "page.html").write_text("old")


def with_facts(folder: Path) -> None:
    from moescale.experiments.sweep_file import expand

    names = ("n_params_dense", "n_params_active", "n_params_total", "training_flops")
    found = {
        each.name: {"sha256": each.settings.sha256, **{name: getattr(each, name) for name in names}}
        for each in expand(failing_cases.SETTINGS).runs
    }
    (folder / "facts.json").write_text(json.dumps(found))


def with_grid(folder: Path) -> None:
    (folder / "profile.toml").write_text(failing_cases.PROFILE)


def nothing(_: Path) -> None:
    pass


def faulty(case: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    (folder / "case.json").write_text(json.dumps(case))
    done = subprocess.run(
        [sys.executable, str(FAULTS), str(folder / "case.json")], capture_output=True, text=True, check=False,
        env=ENVIRONMENT, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]
