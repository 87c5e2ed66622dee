"""Every reader of outside input under damaged input: nothing but a refusal that names the file, and nothing done on the way.

`hostile.guard` says what is watched. `make test-fuzz` reads a hundred thousand inputs, the everyday test some hundreds.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra test is not installed")

from hostile.broken import BROKEN
from hostile.readers import READERS
from hostile.runner import made

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "moescale"
SEED = os.environ.get("MOESCALE_FUZZ_SEED", "0")
SLICE = 20
PATIENCE_S = 1800  # of wall time: CPU time is what is limited, by the guard

pytestmark = [pytest.mark.system, pytest.mark.skipif(sys.platform != "linux", reason="the guard reads /proc")]

# What opens, parses or maps content, and by which reader each such module is fuzzed, or why it reads nothing from outside.
READS = re.compile(
    r"\bopen\(|\.read_text\(|\.read_bytes\(|\bread_text\(|\bread_bytes\(|json\.loads?\(|tomllib\.|struct\.|np\.(?:load|memmap|fromfile|frombuffer)\("
    r"|ParquetFile\(|read_csv\(|sqlite3\.connect\(|input_stream\(|yaml\.load\(|read_toml\("
)
FUZZED: Mapping[str, tuple[str, ...] | str] = {
    "models/hf_config.py": ("configs",),
    "catalogue/__init__.py": "its own files",
    "cli/__init__.py": "opens the null device",
    "cli/output.py": "hashes files that others have read",
    "cli/pages.py": ("laws",),
    "io/files.py": ("runs-csv", "laws", "traces"),
    "hardware/gpus.py": ("gpus",),
    "runs/importers/csv.py": ("exports",),
    "runs/importers/mlflow.py": "through its library: tests of the engine",
    "runs/importers/rules.py": ("mappings",),
    "runs/importers/tensorboard.py": "through its library: tests of the engine",
    "runs/importers/trainer.py": ("trainer",),
    "runs/importers/wandb.py": "through its library: tests of the engine",
    "latency/kernels/installed.py": "the tables of an installed package",
    "latency/kernels/packed.py": "the catalogue",
    "scaling_laws/store.py": ("laws",),
    "planning/plan_file.py": ("answers",),
    "views/html/render.py": "its own templates",
    "export/trainers.py": "its own templates",
    "views/html/reading.py": ("answers",),
    "io/parquet.py": ("runs-parquet", "latency-tables"),
    "io/frames.py": ("runs-csv", "runs-tsv", "runs-json", "runs-parquet", "frames", "latency-tables", "measurements"),
    "io/schema.py": ("run-settings", "sweeps", "gpus", "mappings", "profile-grids"),
    "serving/traffic.py": ("traces",),
    "experiments/corpus.py": ("corpora",),
    "experiments/launches.py": "the end of a log that its own run wrote",
    "experiments/pack.py": ("sources", "corpora"),
    "experiments/profile.py": ("profile-grids",),
    "experiments/run.py": ("run-folders",),
    "experiments/settings.py": ("run-settings",),
    "experiments/sweep.py": ("run-folders",),
    "experiments/sweep_file.py": ("sweeps",),
    "experiments/train.py": "its own checkpoints: tests of the engine",
    "experiments/run_table.py": ("resumed-tables", "run-folders"),
    "web/app.py": ("requests",),
    "web/worker.py": "what its own parent says; the table in it is one of requests",
}


def run(*arguments: str, note: Path) -> dict[str, dict[str, Any]]:
    """The outcome of each reader named; a process that ended otherwise is a failure of the reader it was in."""
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT / 'tests'}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "hostile", *arguments, "--note", str(note)],
        capture_output=True, text=True, env=environment, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    found = {outcome["reader"]: outcome for outcome in map(json.loads, done.stdout.splitlines())}
    if done.returncode not in (0, 1):
        reader, number = note.read_text().split()
        what = f"the process ended with code {done.returncode}: {done.stderr[-500:]}"
        found[reader] = {"reader": reader, "failures": [(int(number), what)]}
    return found


def told(outcome: Mapping[str, Any], seed: str) -> str:
    """What failed, each with the command that repeats it."""
    again = f"PYTHONPATH=src:tests python -W error -m hostile {outcome['reader']} --seed {seed} --keep FOLDER --only"
    return "\n".join(f"{what}\n  again: {again} {number}" for number, what in outcome["failures"])


def test_every_reader_refuses_damaged_input_and_does_nothing_else(tmp_path: Path) -> None:
    found = run("--count", str(SLICE), "--seed", "slice", note=tmp_path / "note")
    assert not [told(outcome, "slice") for outcome in found.values() if outcome["failures"]]
    assert set(found) == set(READERS)
    assert {outcome["inputs"] for outcome in found.values()} == {SLICE}


@pytest.mark.fuzz
@pytest.mark.parametrize("reader", READERS)
def test_a_reader_survives_thousands_of_inputs(reader: str, tmp_path: Path) -> None:
    found = run(reader, "--seed", SEED, note=tmp_path / "note")[reader]
    print(json.dumps(found))
    assert not found["failures"], told(found, SEED)
    # Input that is all taken or all refused reaches little of a reader.
    assert found["accepted"] > found["inputs"] / 50
    assert found["refused"] > found["inputs"] / 50
    assert found["inputs"] == READERS[reader].inputs


def test_the_long_run_reads_a_hundred_thousand_inputs() -> None:
    assert sum(reader.inputs for reader in READERS.values()) >= 100_000
    assert min(reader.inputs for reader in READERS.values()) >= 2_000


def test_no_module_reads_outside_input_unfuzzed() -> None:
    reading = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if READS.search(path.read_text(encoding="utf-8"))
    }
    assert reading == set(FUZZED)
    named = {reader for readers in FUZZED.values() if not isinstance(readers, str) for reader in readers}
    assert named | {"expressions", "quantities", "links"} == set(READERS)  # texts that no file holds


def test_an_input_is_made_of_seed_reader_and_number_alone() -> None:
    cases = [{"a.json": b'{"a": [1, 2.5], "b": "text"}', "b.csv": b"a,b\n1,2\n"}]
    first = [made("x", cases, "7", number)[:2] for number in range(50)]
    assert first == [made("x", cases, "7", number)[:2] for number in range(50)]
    assert len({tuple(files.items()) for files, _ in first}) > 40
    assert first != [made("x", cases, "8", number)[:2] for number in range(50)]


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    return run(*BROKEN, note=tmp_path_factory.mktemp("note") / "note")


@pytest.mark.parametrize("reader", BROKEN)
def test_a_reader_that_does_what_it_may_not_is_caught(reader: str, broken: Mapping[str, Any]) -> None:
    ((number, what),) = broken[reader]["failures"]
    assert (number, broken[reader]["inputs"]) == (0, 1)
    assert BROKEN[reader][1] in what


def test_a_reader_that_ends_the_process_is_caught(tmp_path: Path) -> None:
    found = run("crash", note=tmp_path / "note")
    assert "the process ended with code -6" in told(found["crash"], "0")
